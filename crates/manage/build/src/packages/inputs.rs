//! Finds the inputs of a package installation in the function's own files.
//!
//! Functions that ask for the same packages share one installation. But a list of requirements may
//! lead to further files of the function, and scripts may read any file. If all files that an
//! installation can use are known, the installation sees only these files. Otherwise it sees the
//! whole code, and its result is used only for this code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use mote_spec::{FunctionSpec, Platform};

use crate::packages::registries::{Place, places_in};

/// The maximum number of files to which lists of requirements may lead, and the maximum number of
/// bytes in each. Beyond these limits, the whole code counts as an input.
const FILES_MAX: usize = 64;
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Options that a requirements list may contain and that refer to no file. The second list contains the options whose
/// value is a separate word.
const HARMLESS: [&str; 6] =
    ["--pre", "--prefer-binary", "--require-hashes", "--no-index", "--hash=", "--config-settings="];
const HARMLESS_WITH_VALUE: [&str; 4] =
    ["--no-binary", "--only-binary", "--trusted-host", "--use-feature"];
/// Endings by which pip recognises a file.
const ARCHIVES: [&str; 8] = [".whl", ".zip", ".tar", ".gz", ".bz2", ".xz", ".tgz", ".tbz"];
/// Scripts in a package.json that npm runs during an installation.
const SCRIPTS: [&str; 8] = [
    "preinstall",
    "install",
    "postinstall",
    "prepublish",
    "preprepare",
    "prepare",
    "postprepare",
    "dependencies",
];

/// The inputs that determine an installation.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Inputs {
    /// Input files, by their path in the code.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Whether other files of the code may affect the result.
    pub whole_code: bool,
    /// Hosts that the function names in addresses of packages.
    pub named: BTreeSet<Place>,
}

impl Inputs {
    /// Writes the files into `folder`, which this makes. Blocks.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::create_dir(folder)?;
        for (name, bytes) in &self.files {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
            std::fs::write(&path, bytes)?;
            // The installation's own user must be able to read the files, whatever the umask of
            // this process is.
            for made in path.ancestors().take_while(|made| made.starts_with(folder)) {
                let mode = if made == path { 0o644 } else { 0o755 };
                std::fs::set_permissions(made, std::fs::Permissions::from_mode(mode))?;
            }
        }
        Ok(())
    }

    /// Adds a file of the code and returns its text. If the file cannot be read, the whole code
    /// counts as an input.
    fn add(&mut self, code: &Path, name: &str) -> Option<String> {
        let path = code.join(name);
        let small = std::fs::symlink_metadata(&path)
            .is_ok_and(|meta| meta.is_file() && meta.len() <= FILE_BYTES_MAX);
        let bytes = (small && self.files.len() < FILES_MAX).then(|| std::fs::read(&path).ok());
        let Some(bytes) = bytes.flatten() else {
            self.whole_code = true;
            return None;
        };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        self.files.insert(name.to_owned(), bytes);
        Some(text)
    }

    /// The inputs of `requirements.txt`: the file itself, and the files to which it leads.
    pub fn of_requirements(code: &Path) -> Self {
        let mut inputs = Self::default();
        let mut ahead = vec!["requirements.txt".to_owned()];
        while let Some(name) = ahead.pop() {
            if inputs.files.contains_key(&name) {
                continue;
            }
            let Some(text) = inputs.add(code, &name) else { continue };
            for line in lines(&text) {
                match requirement(&line) {
                    Requirement::Plain => {}
                    Requirement::Other => inputs.whole_code = true,
                    Requirement::List(list) => match inside(&name, &list) {
                        Some(list) => ahead.push(list),
                        None => inputs.whole_code = true,
                    },
                }
                inputs.named.extend(places_in(&line));
            }
        }
        inputs
    }

    /// The inputs of a `pyproject.toml` that lists the dependencies `asked`.
    pub fn of_pyproject(code: &Path, asked: &[String]) -> Self {
        let mut inputs = Self::default();
        inputs.add(code, "pyproject.toml");
        for line in asked {
            inputs.whole_code |= requirement(line) != Requirement::Plain;
            inputs.named.extend(places_in(line));
        }
        inputs
    }

    /// The inputs of `package.json`: the file itself, and its lock file.
    pub fn of_package(code: &Path) -> Self {
        let mut inputs = Self::default();
        let package = inputs.add(code, "package.json").unwrap_or_default();
        let package: serde_json::Value = serde_json::from_str(&package).unwrap_or_default();
        let has_script = |name: &&str| !package["scripts"][*name].is_null();
        inputs.whole_code |= SCRIPTS.iter().any(has_script)
            || !package["workspaces"].is_null()
            || code.join(".npmrc").exists();
        for table in ["dependencies", "optionalDependencies", "devDependencies", "overrides"] {
            inputs.add_versions(&package[table]);
        }
        if code.join("package-lock.json").is_file() {
            let lock = inputs.add(code, "package-lock.json").unwrap_or_default();
            let lock: serde_json::Value = serde_json::from_str(&lock).unwrap_or_default();
            for table in ["packages", "dependencies"] {
                inputs.add_locked(&lock[table]);
            }
        }
        inputs
    }

    /// Adds the places that version strings name. The value may be nested, as overrides are.
    fn add_versions(&mut self, value: &serde_json::Value) {
        match value {
            serde_json::Value::Object(table) => {
                table.values().for_each(|value| self.add_versions(value));
            }
            serde_json::Value::String(version) => {
                let is_path = ["file:", "link:", ".", "/", "~/"];
                self.whole_code |= is_path.iter().any(|start| version.starts_with(start));
                self.named.extend(places_in(version));
                // `owner/name` is short for a repository on GitHub.
                if version.contains('/') && !version.contains(':') || version.starts_with("github:")
                {
                    self.named.extend(places_in("https://github.com"));
                }
            }
            _ => {}
        }
    }

    /// Adds the places from which a lock file takes packages. Called again for nested dependencies.
    fn add_locked(&mut self, table: &serde_json::Value) {
        for entry in table.as_object().into_iter().flat_map(serde_json::Map::values) {
            self.whole_code |= entry["link"] == true;
            for key in ["resolved", "version"] {
                let at = entry[key].as_str().unwrap_or_default();
                self.whole_code |= at.starts_with("file:") || at.starts_with("link:");
                self.named.extend(places_in(at));
            }
            self.add_locked(&entry["dependencies"]);
        }
    }
}

/// The dependencies in the `pyproject.toml` of a Knative function, which has no other list of them.
/// For other functions, this file is not read, because it may be there only for development tools.
pub fn project_dependencies(spec: &FunctionSpec, code: &Path) -> Vec<String> {
    if spec.compat != Some(Platform::Knative) || spec.runtime != mote_spec::Runtime::Python {
        return Vec::new();
    }
    let file = code.join("pyproject.toml");
    let is_short = std::fs::metadata(&file).is_ok_and(|meta| meta.len() <= FILE_BYTES_MAX);
    let text =
        if is_short { std::fs::read_to_string(file).unwrap_or_default() } else { String::new() };
    let table = text.parse::<toml::Table>().unwrap_or_default();
    let list = table.get("project").and_then(|project| project.get("dependencies"));
    let list = list.and_then(toml::Value::as_array).into_iter().flatten();
    list.filter_map(|one| Some(one.as_str()?.to_owned())).collect()
}

/// A line of a list of requirements.
#[derive(Debug, PartialEq, Eq)]
enum Requirement {
    /// A package, given by its name or its address.
    Plain,
    /// Another list.
    List(String),
    /// Anything else. It may lead to any file.
    Other,
}

/// Returns the lines without comments. Lines that a backslash continues are joined.
fn lines(text: &str) -> Vec<String> {
    let joined = text.replace("\\\r\n", " ").replace("\\\n", " ");
    let lines = joined.lines().map(|line| {
        let comment = line.find(" #").or_else(|| line.find("\t#"));
        let line = if line.trim_start().starts_with('#') { "" } else { line };
        line[..comment.unwrap_or(line.len()).min(line.len())].trim().to_owned()
    });
    lines.filter(|line| !line.is_empty()).collect()
}

fn requirement(line: &str) -> Requirement {
    let is_address = |word: &str| {
        ["http://", "https://", "git+http://", "git+https://"].iter().any(|at| word.starts_with(at))
    };
    for option in ["--requirement", "--constraint", "-r", "-c"] {
        if let Some(rest) = line.strip_prefix(option) {
            let name = rest.trim_start_matches(['=', ' ', '\t']).trim();
            let name = name.trim_matches(['"', '\'']);
            return if is_address(name) || name.contains("${") {
                // A list at an address may change, and so may its packages. The places that it
                // names are not known here.
                Requirement::Other
            } else {
                Requirement::List(name.to_owned())
            };
        }
    }
    let mut words = line.split_whitespace();
    while let Some(word) = words.next() {
        if HARMLESS_WITH_VALUE.contains(&word) {
            words.next();
            continue;
        }
        let (option, value) = word.split_once('=').unwrap_or((word, ""));
        if ["-i", "--index-url", "--extra-index-url"].contains(&option) {
            let value = if value.is_empty() { words.next().unwrap_or_default() } else { value };
            if !is_address(value) {
                return Requirement::Other;
            }
            continue;
        }
        let harmless = HARMLESS.iter().any(|option| word.starts_with(option))
            || HARMLESS_WITH_VALUE.contains(&option);
        if harmless || is_address(word) {
            continue;
        }
        // The word may be `name@https://…` without spaces.
        let word =
            word.split_once('@').filter(|(_, at)| is_address(at)).map_or(word, |(name, _)| name);
        let lower = word.to_ascii_lowercase();
        let may_be_path = word.starts_with(['-', '.', '~'])
            || word.contains(['/', '\\', ':', '$'])
            || ARCHIVES.iter().any(|end| lower.ends_with(end));
        if may_be_path {
            return Requirement::Other;
        }
    }
    Requirement::Plain
}

/// Returns the path in the code of a list that the file `from` names, or `None` if the list is
/// outside the code.
fn inside(from: &str, list: &str) -> Option<String> {
    let list = Path::new(list);
    let folder = Path::new(from).parent().unwrap_or(Path::new(""));
    let joined = match list.strip_prefix("/function") {
        Ok(below) => below.to_owned(),
        Err(_) if list.is_absolute() => return None,
        Err(_) => folder.join(list),
    };
    let mut path = PathBuf::new();
    for part in joined.components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::ParentDir if path.pop() => {}
            _ => return None,
        }
    }
    Some(path.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn lines_that_may_lead_to_files_are_told_from_those_that_cannot() {
        for plain in [
            "six==1.16.0",
            "requests[socks] >= 2.8.1, == 2.8.* ; python_version < \"2.7\"",
            "six==1.16.0 --hash=sha256:aa --hash=sha256:bb",
            "--index-url https://index.example/simple",
            "--extra-index-url=https://index.example/simple",
            "--no-binary :all:",
            "pip @ https://github.com/pypa/pip/archive/22.0.2.zip",
            "pip@git+https://github.com/pypa/pip",
        ] {
            assert_eq!(requirement(plain), Requirement::Plain, "{plain}");
        }
        for other in [
            "--find-links wheels",
            "-f /function/wheels",
            "-e .",
            "./lib",
            "lib/",
            "/function/lib",
            "lib @ file:///function/lib",
            "thing-1.0-py3-none-any.whl",
            "--index-url file:///function/index",
            "-r https://example.com/list.txt",
            "${PLACE}/lib",
            "--unknown",
        ] {
            assert_eq!(requirement(other), Requirement::Other, "{other}");
        }
        assert_eq!(requirement("-rmore.txt"), Requirement::List("more.txt".into()));
        assert_eq!(requirement("--constraint=a/b.txt"), Requirement::List("a/b.txt".into()));
        assert_eq!(lines("a \\\n==1 # why\n# no\n\nb # c"), ["a  ==1", "b"]);
    }

    #[test]
    fn lists_behind_lists_count() {
        let dir = folder(&[
            ("requirements.txt", "-r more/a.txt\nsix\n"),
            ("more/a.txt", "-c ../limits.txt\n-r a.txt\n"),
            ("limits.txt", "six<2\n"),
        ]);
        let inputs = Inputs::of_requirements(dir.path());
        let names: Vec<_> = inputs.files.keys().map(String::as_str).collect();
        assert_eq!(names, ["limits.txt", "more/a.txt", "requirements.txt"]);
        assert!(!inputs.whole_code);
        std::fs::write(dir.path().join("limits.txt"), "six<1\n").unwrap();
        assert_ne!(Inputs::of_requirements(dir.path()), inputs);
        for outside in ["-r ../x.txt", "-r /etc/passwd", "-r missing.txt", "-r more"] {
            std::fs::write(dir.path().join("requirements.txt"), outside).unwrap();
            assert!(Inputs::of_requirements(dir.path()).whole_code, "{outside}");
        }
    }

    #[test]
    fn packages_of_node_that_may_lead_to_files() {
        let whole = |files: &[(&str, &str)]| Inputs::of_package(folder(files).path()).whole_code;
        assert!(!whole(&[(
            "package.json",
            r#"{"dependencies": {"a": "^1"}, "scripts": {"test": "x"}}"#
        )]));
        for text in [
            r#"{"dependencies": {"a": "file:lib"}}"#,
            r#"{"dependencies": {"a": "../lib"}}"#,
            r#"{"scripts": {"postinstall": "cp -r /function/x ."}}"#,
            r#"{"workspaces": ["a"]}"#,
            r#"{"overrides": {"a": {"b": "file:lib"}}}"#,
        ] {
            assert!(whole(&[("package.json", text)]), "{text}");
        }
        assert!(whole(&[("package.json", "{}"), (".npmrc", "registry=file:x")]));
        let lock = r#"{"packages": {"node_modules/a": {"resolved": "lib", "link": true}}}"#;
        assert!(whole(&[("package.json", "{}"), ("package-lock.json", lock)]));
        let lock = r#"{"packages": {"node_modules/a": {"resolved": "https://npm.example/a.tgz"}}}"#;
        let dir = folder(&[("package.json", "{}"), ("package-lock.json", lock)]);
        let inputs = Inputs::of_package(dir.path());
        assert!(!inputs.whole_code && inputs.named.contains(&("npm.example".to_owned(), 443)));
    }
}
