//! Reads and packs a project as `mote deploy` does, with the settings for development.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use bytes::Bytes;
use mote_project::{Code, Options};
use mote_spec::{FunctionSpec, Runtime};
use mote_store::pack::Rules;

use super::env_file::EnvFile;
use crate::cli::deploy::build_failure;
use crate::cli::failure::Failure;
use crate::cli::output::harmless;
use crate::cli::syntax;

/// The memory of an instance that a debugger may use. The debugger needs more memory than the
/// function alone.
const DEBUG_MEMORY_BYTES: u64 = 512 << 20;
/// How many of the last lines of a failed build are shown.
const BUILD_LINES_MAX: usize = 40;

/// A project, and the state in which it was last deployed.
#[derive(Debug, Clone)]
pub(super) struct Project {
    pub(super) path: PathBuf,
    inspect: bool,
    variables: Variables,
    /// A hash of everything that was last packed.
    packed: Option<u64>,
    /// The files that builds have written; `None` before the first build.
    built: Option<BTreeSet<PathBuf>>,
}

/// The functions of a project, ready for a deploy.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) functions: Vec<Function>,
    /// Remarks for the developer.
    pub(super) notes: Vec<String>,
    hash: u64,
}

#[derive(Debug)]
pub(super) struct Function {
    pub(super) spec: FunctionSpec,
    pub(super) tar: Bytes,
    /// The folder of its code, as the developer knows it.
    pub(super) folder: Option<PathBuf>,
    /// The values of secrets that `.env` gives.
    pub(super) secrets: BTreeMap<String, String>,
}

/// The variables that the functions of a project get in addition to those in the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variables {
    /// All in `.env`.
    OfFile,
    /// The values of secrets that the manifest names, from `.env` or this process's environment.
    Secrets,
}

/// What was read after a build, and whether the files must be built again.
type Built = (Result<Packed, Failure>, bool);

impl Project {
    pub(super) fn new(path: &Path, inspect: bool) -> Self {
        Self {
            path: path.to_owned(),
            inspect,
            variables: Variables::OfFile,
            packed: None,
            built: None,
        }
    }

    /// A project for a test. Because a test should not depend on the content of `.env`, the
    /// functions get only the secrets that their manifest names.
    pub(super) fn for_tests(path: &Path) -> Self {
        Self { variables: Variables::Secrets, ..Self::new(path, false) }
    }

    /// The folder of the project, or the folder with its file.
    pub(super) fn folder(&self) -> &Path {
        folder_of(&self.path)
    }

    /// Forgets what was packed, so that the next deploy happens even without a change.
    pub(super) fn forget(&mut self) {
        self.packed = None;
    }

    /// Builds and packs the project. Returns `None` if nothing has changed since the last time.
    /// Blocks.
    pub(super) fn pack(&mut self) -> Result<Option<Packed>, Failure> {
        let commands = self.build_commands()?;
        // The files that a build writes are noticed as changes, but must not start the next build.
        // Before the first build, the files that it makes may be missing.
        let before = if commands.is_empty() { None } else { self.packed.and(self.read().ok()) };
        if before.is_some_and(|before| Some(before.hash) == self.packed) {
            return Ok(None);
        }
        // A failed build is repeated only after the next change.
        let former = self.packed.take();
        let mut packed = self.build_and_read(&commands)?;
        // Somebody has saved a file during a build, and the build may have read its former content.
        // A file that a build writes for the first time looks the same.
        if packed.1 {
            packed = self.build_and_read(&commands)?;
        }
        let packed = packed.0;
        let hash = packed.as_ref().ok().map(|packed| packed.hash);
        let is_same = hash.is_some() && hash == former;
        self.packed = hash;
        packed.map(|packed| (!is_same).then_some(packed))
    }

    /// Runs the build commands and reads the project. Also returns whether any file that no earlier
    /// build has written has changed meanwhile.
    fn build_and_read(&mut self, commands: &[String]) -> Result<Built, Failure> {
        if commands.is_empty() {
            return Ok((self.read(), false));
        }
        let before = files(self.folder());
        for command in commands {
            build(command, self.folder())?;
        }
        let packed = self.read();
        let mut written = BTreeSet::new();
        for (path, version) in files(self.folder()) {
            if before.get(&path) != Some(&version) {
                written.insert(path);
            }
        }
        let has_new = self.built.as_ref().is_some_and(|built| !written.is_subset(built));
        self.built.get_or_insert_default().extend(written);
        Ok((packed, has_new))
    }

    fn build_commands(&self) -> Result<Vec<String>, Failure> {
        let manifest = mote_project::load_manifest(&self.path)?;
        let functions = manifest.map(|manifest| manifest.functions).unwrap_or_default();
        let of = |function| mote_project::build_command(function, &self.path);
        let commands = functions.iter().filter_map(of);
        Ok(commands.map(str::to_owned).collect())
    }

    fn read(&self) -> Result<Packed, Failure> {
        let options = Options { check_machine: true, ..Options::default() };
        let project = mote_project::read(&self.path, options);
        let project = project.map_err(|mistakes| syntax::named(mistakes.into(), &self.path))?;
        let mut notes = Vec::new();
        let env = EnvFile::read(self.folder());
        let env = env.map_err(|error| Failure::of_file("M0102", ".env", &error))?;
        if let (Some(env), Variables::OfFile) = (&env, self.variables) {
            notes.push(said_of(env));
        }
        let env = env.unwrap_or_default().variables;
        let mut functions = Vec::new();
        let mut hasher = DefaultHasher::new();
        for mut planned in project.functions {
            let spec = &mut planned.spec;
            let secrets = match self.variables {
                Variables::OfFile => use_env(spec, &env),
                Variables::Secrets => secrets_for_tests(spec, &env),
            };
            if self.inspect {
                inspected(spec);
            }
            let json = mote_spec::json::to_json(spec).into_bytes();
            let code = planned.code.as_ref().map_or(self.path.as_path(), |code| code.path());
            let folder = match &planned.code {
                None => Some(self.folder().to_owned()),
                Some(Code::At(path)) => Some(folder_of(path).to_owned()),
                // The manifest contains the code.
                Some(Code::Taken(_)) => None,
            };
            let packed = mote_store::pack::pack(code, Some((mote_api::SPEC_ENTRY, &json)))?;
            packed.tar.hash(&mut hasher);
            secrets.hash(&mut hasher);
            for warning in &planned.warnings {
                notes.push(format!("{}: {}", planned.spec.name, harmless(warning)));
            }
            let tar = Bytes::from(packed.tar);
            functions.push(Function { spec: planned.spec, tar, folder, secrets });
        }
        Ok(Packed { functions, notes, hash: hasher.finish() })
    }
}

/// A folder, or the folder with this file. A path that leads nowhere counts as a folder.
fn folder_of(path: &Path) -> &Path {
    if !path.is_file() {
        return path;
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// What changes when a file is written. It is compared with itself, never with a clock: the time of
/// a file may lie some milliseconds before the clock's.
type FileVersion = (SystemTime, u64);

/// The files below a folder, except those that a deploy never packs.
fn files(root: &Path) -> BTreeMap<PathBuf, FileVersion> {
    let mut found = BTreeMap::new();
    let Ok(rules) = Rules::of(root) else { return found };
    let mut waiting = vec![String::new()];
    while let Some(below) = waiting.pop() {
        let Ok(entries) = std::fs::read_dir(root.join(&below)) else { continue };
        for entry in entries.flatten() {
            let (Ok(meta), Ok(name)) = (entry.metadata(), entry.file_name().into_string()) else {
                continue;
            };
            let path = if below.is_empty() { name } else { format!("{below}/{name}") };
            if !rules.packs(&path, meta.is_dir()) || path.ends_with("node_modules") {
                continue;
            }
            if meta.is_dir() {
                waiting.push(path);
            } else if let Ok(time) = meta.modified() {
                found.insert(path.into(), (time, meta.len()));
            }
        }
    }
    found
}

fn said_of(env: &EnvFile) -> String {
    let names: Vec<&str> = env.variables.keys().map(String::as_str).collect();
    let mut text = match names.as_slice() {
        [] => ".env has no variables".to_owned(),
        names => format!(".env: {}", names.join(", ")),
    };
    if !env.odd_lines.is_empty() {
        let lines: Vec<String> = env.odd_lines.iter().map(usize::to_string).collect();
        text.push_str(&format!("; not used: line {}", lines.join(", ")));
    }
    text
}

/// Adds the variables of `.env` as secrets, which the node encrypts with a key that only its memory
/// holds. A line that gives the value of a secret in the manifest, such as `API_KEY` for the secret
/// `api-key`, does not become a variable. Returns the secrets with their values.
fn use_env(spec: &mut FunctionSpec, env: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    if spec.runtime == Runtime::Chain {
        return BTreeMap::new();
    }
    spec.secret_env.retain(|variable, _| !env.contains_key(variable));
    let mut secrets = BTreeMap::new();
    let mut given = BTreeSet::new();
    for name in spec.secret_names() {
        let variable = variable_of(name);
        if let Some(value) = env.get(&variable) {
            secrets.insert(name.to_owned(), value.clone());
            given.insert(variable);
        }
    }
    for (variable, value) in env.iter().filter(|(variable, _)| !given.contains(*variable)) {
        spec.env.remove(variable);
        let secret = format!("{}-env-{variable}", spec.name);
        spec.secret_env.insert(variable.clone(), secret.clone());
        secrets.insert(secret, value.clone());
    }
    secrets
}

/// The variable that holds the value of a secret, such as `API_KEY` for the secret `api-key`.
fn variable_of(secret: &str) -> String {
    secret.to_ascii_uppercase().replace(['-', '.'], "_")
}

/// The values of the secrets that the manifest names. As in a session, the variable is named after the
/// secret, or is the variable of `[env]` that has the secret as its value. A machine that runs tests
/// often provides them as environment variables.
fn secrets_for_tests(
    spec: &FunctionSpec,
    env: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let value =
        |variable: &str| env.get(variable).cloned().or_else(|| std::env::var(variable).ok());
    let value_of = |name: &str| {
        let of_manifest = spec.secret_env.iter().filter(|(_, secret)| *secret == name);
        value(&variable_of(name))
            .or_else(|| of_manifest.map(|(variable, _)| variable).find_map(|one| value(one)))
    };
    let named = spec.secret_names().into_iter();
    named.filter_map(|name| Some((name.to_owned(), value_of(name)?))).collect()
}

/// Prepares a function for a debugger, which can attach to only one instance.
fn inspected(spec: &mut FunctionSpec) {
    if matches!(spec.answered_by(), Runtime::Node | Runtime::Deno | Runtime::Python) {
        spec.scale.min = 1;
        spec.scale.max = Some(1);
        spec.limits.memory_bytes = spec.limits.memory_bytes.max(DEBUG_MEMORY_BYTES);
    }
}

/// Runs `[build] command`. Its output is shown only if it fails.
fn build(command: &str, folder: &Path) -> Result<(), Failure> {
    let output = Command::new("sh")
        .args(["-c", command])
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Failure::new("M0402", format!("build: sh: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(BUILD_LINES_MAX)..].join("\n");
    let text = format!("build: `{}` failed ({})\n{last}", harmless(command), output.status);
    Err(build_failure(command, folder, text))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (file, text) in files {
            fs::write(folder.path().join(file), text).expect("written");
        }
        folder
    }

    const CODE: &str = "def handle(event, ctx):\n    return 1\n";

    #[test]
    fn only_a_change_of_what_is_packed_is_deployed() {
        let folder = folder(&[("app.py", CODE), (".gitignore", "*.log\n")]);
        let write = |file: &str, text: &str| {
            fs::write(folder.path().join(file), text).expect("written");
        };
        let mut project = Project::new(folder.path(), false);
        let mut is_new = || project.pack().expect("packed").is_some();
        assert!(is_new());
        assert!(!is_new());
        write("a.log", "x");
        assert!(!is_new());
        write("app.py", &format!("{CODE}\n"));
        assert!(is_new());
        write(".env", "A=1\n");
        assert!(is_new());
        write("mote.toml", "unknown = 1\n");
        assert!(project.pack().is_err());
        write("mote.toml", "version = 1\n");
        assert!(project.pack().expect("packed").is_some());
    }

    #[test]
    fn a_build_does_not_start_itself_again() {
        let manifest =
            "version = 1\n[build]\ncommand = \"echo x >> built && echo y >> count.log\"\n";
        let folder =
            folder(&[("app.py", CODE), ("mote.toml", manifest), (".gitignore", "*.log\n")]);
        let builds = || {
            let text = fs::read_to_string(folder.path().join("count.log")).unwrap_or_default();
            text.lines().count()
        };
        let mut project = Project::new(folder.path(), false);
        assert!(project.pack().expect("packed").is_some());
        assert!(project.pack().expect("packed").is_none());
        assert_eq!(builds(), 1);
        fs::write(folder.path().join("app.py"), format!("{CODE}\n")).expect("written");
        assert!(project.pack().expect("packed").is_some());
        assert_eq!(builds(), 2);
    }

    #[test]
    fn a_file_that_is_saved_during_a_build_is_built() {
        // The build reads the source, then the source is saved, and then the build writes what it
        // has read. During the second build, nothing is saved.
        let save = "test -e saved || { touch saved; echo 'x = 2' > source.txt; }";
        let command = format!(
            "read=$(cat source.txt); test -e first && {save}; touch first; \
                               echo \\\"$read\\\" > built.py"
        );
        let manifest = format!("version = 1\n[build]\ncommand = \"{command}\"\n");
        let files = [
            ("app.py", CODE),
            ("source.txt", "x = 1\n"),
            ("mote.toml", &manifest),
            (".moteignore", "saved\nfirst\n"),
        ];
        let folder = folder(&files);
        let built = || fs::read_to_string(folder.path().join("built.py")).expect("built");
        let mut project = Project::new(folder.path(), false);
        assert!(project.pack().expect("packed").is_some());
        assert_eq!(built(), "x = 1\n");
        fs::write(folder.path().join("app.py"), format!("{CODE}\n")).expect("written");
        assert!(project.pack().expect("packed").is_some());
        assert_eq!(built(), "x = 2\n");
        assert!(project.pack().expect("packed").is_none());
    }

    #[test]
    fn a_failed_build_shows_its_output() {
        let manifest = "version = 1\n[build]\ncommand = \"echo app.c:3: missing; exit 3\"\n";
        let folder = folder(&[("app.py", CODE), ("mote.toml", manifest)]);
        let failure = Project::new(folder.path(), false).pack().expect_err("fails");
        assert!(failure.is_of("M0402"));
        assert!(failure.mistakes[0].text.contains("app.c:3: missing"));
    }

    #[test]
    fn variables_and_secrets_come_from_the_file() {
        let manifest = "version = 1\nsecrets = [\"api-key\", \"other\"]\n[env]\nA = \"manifest\"\n\
                        B = \"manifest\"\nTOKEN = { secret = \"token\" }\n";
        let env = "A=file\nTOKEN=t\nAPI_KEY=k\n";
        let folder = folder(&[("app.py", CODE), ("mote.toml", manifest), (".env", env)]);
        let packed = Project::new(folder.path(), false).pack().expect("packed").expect("new");
        let Function { spec, secrets, .. } = &packed.functions[0];
        let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(spec.env, pairs(&[("B", "manifest")]));
        let (a, token) = (format!("{}-env-A", spec.name), format!("{}-env-TOKEN", spec.name));
        assert_eq!(spec.secret_env, pairs(&[("A", &a), ("TOKEN", &token)]));
        assert_eq!(*secrets, pairs(&[("api-key", "k"), (&a, "file"), (&token, "t")]));
        assert_eq!(packed.notes, [".env: A, API_KEY, TOKEN"]);
        let packed = Project::for_tests(folder.path()).pack().expect("packed").expect("new");
        let Function { spec, secrets, .. } = &packed.functions[0];
        assert_eq!(spec.env, pairs(&[("A", "manifest"), ("B", "manifest")]));
        assert_eq!(*secrets, pairs(&[("api-key", "k"), ("token", "t")]));
    }
}
