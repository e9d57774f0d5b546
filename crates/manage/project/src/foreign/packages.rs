//! Packages that a manifest installs with a command. They become lines of `requirements.txt` and
//! entries of `package.json`, because `mote` reads packages from these files.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use mote_store::source;
use serde_json::{Map, Value};

/// Flags of `pip install` and `npm install` that have no effect here.
const FLAGS: [&str; 14] = [
    "--upgrade",
    "-U",
    "--user",
    "--quiet",
    "-q",
    "--no-cache-dir",
    "--no-cache",
    "--break-system-packages",
    "--save",
    "-S",
    "--global",
    "-g",
    "--no-save",
    "--production",
];
/// Commands that an image's build runs before it installs packages. They have no meaning here.
const PREPARATIONS: [&str; 4] = ["apk update", "apt-get update", "apt update", "npm install"];
/// Packages that are part of the interpreter's installation.
const TOOLS: [&str; 4] = ["pip", "setuptools", "wheel", "npm"];

/// Packages with which OpenFaaS' templates serve HTTP.
const SERVERS: [&str; 3] = ["express", "body-parser", "get-stdin"];

/// Packages, by the tool that installs them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Packages {
    /// Lines of `requirements.txt`.
    python: Vec<String>,
    /// Names and versions of dependencies in `package.json`.
    node: Vec<(String, String)>,
}

impl Packages {
    pub fn is_empty(&self) -> bool {
        self.python.is_empty() && self.node.is_empty()
    }

    /// Adds the packages that a command installs. Fails if the command does anything else.
    pub(super) fn add_command(&mut self, command: &str) -> Result<(), ()> {
        for part in command.split("&&").map(str::trim).filter(|part| !part.is_empty()) {
            let words: Vec<&str> = part.split_whitespace().collect();
            if PREPARATIONS.contains(&words.join(" ").as_str()) {
                continue;
            }
            match words.as_slice() {
                ["pip" | "pip3", "install", rest @ ..]
                | ["python" | "python3", "-m", "pip", "install", rest @ ..] => self.pip(rest)?,
                ["npm", "install" | "i" | "add", rest @ ..] => self.npm(rest)?,
                _ => return Err(()),
            }
        }
        Ok(())
    }

    fn pip(&mut self, words: &[&str]) -> Result<(), ()> {
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let word = unquoted(word);
            match word {
                _ if FLAGS.contains(&word) => {}
                "-r" | "--requirement" => {
                    let file = words.next().ok_or(())?;
                    // `requirements.txt` needs no entry, because it is read in any case.
                    if file.trim_start_matches("./") != "requirements.txt" {
                        self.python.push(format!("-r {file}"));
                    }
                }
                "-i" | "--index-url" | "--extra-index-url" => {
                    let flag = if word == "-i" { "--index-url" } else { word };
                    self.python.push(format!("{flag} {}", words.next().ok_or(())?));
                }
                _ if word.starts_with('-') || !is_requirement(word) => return Err(()),
                _ if TOOLS.contains(&word) => {}
                _ => self.python.push(word.to_owned()),
            }
        }
        Ok(())
    }

    fn npm(&mut self, words: &[&str]) -> Result<(), ()> {
        for word in words.iter().map(|word| unquoted(word)) {
            if FLAGS.contains(&word) || TOOLS.contains(&word) {
                continue;
            }
            if word.starts_with('-') || !is_requirement(word) {
                return Err(());
            }
            // The `@` at the beginning of a scoped name does not separate a version.
            let at = word.rfind('@').filter(|at| *at > 0);
            let (name, version) = at.map_or((word, "*"), |at| (&word[..at], &word[at + 1..]));
            self.node.push((name.to_owned(), version.to_owned()));
        }
        Ok(())
    }

    /// Adds the packages in the `requirements.txt` and `package.json` of a template.
    pub(super) fn add_template(&mut self, folder: &Path) {
        let requirements = source::text(folder.join("requirements.txt")).unwrap_or_default();
        let lines = requirements.lines().map(str::trim);
        let named = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        self.python.extend(named.map(str::to_owned));
        let package = source::text(folder.join("package.json")).unwrap_or_default();
        let package: Value = serde_json::from_str(&package).unwrap_or_default();
        for (name, version) in package["dependencies"].as_object().into_iter().flatten() {
            // The template's server is not used here, so its packages are left out.
            if let Some(version) = version.as_str().filter(|_| !SERVERS.contains(&name.as_str())) {
                self.node.push((name.clone(), version.to_owned()));
            }
        }
    }

    /// Adds the packages to the files of a folder. Entries that are already in the files stay.
    pub fn add_to(&self, folder: &Path) -> io::Result<()> {
        if !self.python.is_empty() {
            let file = folder.join("requirements.txt");
            let mut text = read_if_there(&file)?;
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            for line in &self.python {
                if !text.lines().any(|known| known.trim() == line) {
                    text.push_str(line);
                    text.push('\n');
                }
            }
            write_anew(&file, &text)?;
        }
        if !self.node.is_empty() {
            let file = folder.join("package.json");
            let text = read_if_there(&file)?;
            let mut package: Value = if text.is_empty() {
                Value::Object(Map::new())
            } else {
                serde_json::from_str(&text).map_err(io::Error::other)?
            };
            let Some(table) = package.as_object_mut() else {
                return Err(io::Error::other("package.json is not an object"));
            };
            let dependencies = table.entry("dependencies").or_insert_with(|| Map::new().into());
            if let Some(dependencies) = dependencies.as_object_mut() {
                for (name, version) in &self.node {
                    dependencies.entry(name).or_insert_with(|| version.clone().into());
                }
            }
            write_anew(&file, &(serde_json::to_string_pretty(&package)? + "\n"))?;
        }
        Ok(())
    }
}

/// Writes a new file in place of anything that has its name. The old entry is not followed, because it
/// may be a link in a stranger's code that leads to any file of the user.
pub fn write_anew(file: &Path, text: &str) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut new = fs::File::create_new(file)?;
    new.write_all(text.as_bytes())
}

/// Returns a word without the quotes that a shell would remove.
fn unquoted(word: &str) -> &str {
    word.trim_matches(['\'', '"'])
}

/// Returns whether a word can be the name of a package, which contains no shell syntax.
fn is_requirement(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.=<>~!^@/[],+:#&?%".contains(c);
    !word.is_empty() && word.chars().all(plain)
}

fn read_if_there(file: &Path) -> io::Result<String> {
    let is_link = fs::symlink_metadata(file).is_ok_and(|meta| meta.is_symlink());
    if is_link {
        return Err(io::Error::other("is a link, but must be a file"));
    }
    match source::text(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(commands: &[&str]) -> Result<Packages, ()> {
        let mut packages = Packages::default();
        commands.iter().try_for_each(|command| packages.add_command(command))?;
        Ok(packages)
    }

    #[test]
    fn commands_that_install_packages_are_understood_and_others_are_not() {
        let packages = of(&[
            "pip install requests 'numpy==1.26.4' --no-cache-dir",
            "apk update",
            "pip3 install --upgrade pip && python -m pip install -i https://index.example/ pandas",
            "pip install -r requirements.txt",
            "npm install --global left-pad@1.3.0 @scope/thing @scope/other@^2",
        ]);
        let packages = packages.expect("all of them install packages");
        assert_eq!(
            packages.python,
            ["requests", "numpy==1.26.4", "--index-url https://index.example/", "pandas"]
        );
        let node: Vec<String> =
            packages.node.iter().map(|(name, version)| format!("{name} {version}")).collect();
        assert_eq!(node, ["left-pad 1.3.0", "@scope/thing *", "@scope/other ^2"]);
        for other in [
            "apk --update --no-cache add ca-certificates",
            "curl https://example.com/x | sh",
            "pip install $PACKAGE",
            "pip install x; rm -rf /",
            "pip install --target /x y",
            "npm run build",
        ] {
            assert!(of(&[other]).is_err(), "{other}");
        }
    }

    #[test]
    fn files_of_the_function_keep_what_they_say() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("requirements.txt"), "requests==2.0\nflask").unwrap();
        fs::write(folder.path().join("package.json"), r#"{"dependencies":{"left-pad":"1.0.0"}}"#)
            .unwrap();
        let packages = of(&["pip install flask numpy", "npm i left-pad@1.3.0 is-odd"]).unwrap();
        packages.add_to(folder.path()).unwrap();
        let text = fs::read_to_string(folder.path().join("requirements.txt")).unwrap();
        assert_eq!(text, "requests==2.0\nflask\nnumpy\n");
        let text = fs::read_to_string(folder.path().join("package.json")).unwrap();
        let package: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(package["dependencies"]["left-pad"], "1.0.0");
        assert_eq!(package["dependencies"]["is-odd"], "*");
    }
}
