//! The packages that a function asks for, and the command that installs them.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use crate::interpreters::Found;
use mote_spec::{FunctionSpec, Platform, Runtime};
use sha2::{Digest, Sha256};

use crate::packages::client::Client;
use crate::packages::inputs::{self, Inputs};
use crate::packages::provided;
use crate::packages::registries::Registries;

/// The node itself reads a `package.json` of at most this many bytes.
const PACKAGE_JSON_BYTES_MAX: u64 = 1 << 20;

/// The packages that a function asks for: the command that installs them, and the inputs that
/// determine the result.
pub struct Wanted {
    /// The command that installs the packages into `/packages`.
    pub argv: Vec<String>,
    /// Files of the code that the client must find in the folder of packages.
    pub seeds: Vec<&'static str>,
    /// The key of the result in the store. Equal inputs have the same key.
    pub key: String,
    /// The part of the function that the installation sees.
    pub inputs: Inputs,
    pub registries: Arc<Registries>,
}

impl Wanted {
    /// Finds what the files in `code` ask for, if anything. `code_hash` is the hash of the code.
    /// Reads some of the files. Fails with a reason for people if the required interpreter is
    /// missing.
    pub fn of(
        spec: &FunctionSpec,
        code: &Path,
        code_hash: &str,
        interpreters: &Found,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Self>, String> {
        let has = |name: &str| code.join(name).is_file();
        let asked = inputs::project_dependencies(spec, code);
        let provided = provided::packages(spec, code);
        if !provided.is_empty() {
            let platform = spec.compat.map_or("", Platform::as_str);
            let list = provided.join(", ");
            warnings.push(format!(
                "installed {list}, because {platform} provides it: list it in the function's \
             own packages to choose versions"
            ));
        }
        let (seeds, inputs, language) = if has("requirements.txt") && !spec.runtime.is_javascript()
        {
            (vec![], Inputs::of_requirements(code), "python")
        } else if !asked.is_empty() {
            (vec![], Inputs::of_pyproject(code, &asked), "python")
        } else if !provided.is_empty() && spec.runtime == Runtime::Python {
            (vec![], Inputs::default(), "python")
        } else if has("package.json") && spec.runtime != Runtime::Python {
            let asks = has_dependencies(spec, &code.join("package.json"));
            if code.join("node_modules").is_dir() || (!asks && provided.is_empty()) {
                return Ok(None);
            }
            if has("package-lock.json") {
                let both = vec!["package.json", "package-lock.json"];
                (both, Inputs::of_package(code), "node")
            } else {
                let other =
                    ["bun.lock", "bun.lockb", "deno.lock"].into_iter().find(|lock| has(lock));
                let unread = other.map_or_else(String::new, |lock| {
                    format!("; npm does not read {lock}: npm install --package-lock-only")
                });
                warnings.push(format!(
                    "there is no package-lock.json next to package.json: the next deploy may install \
                     other versions{unread}"
                ));
                (vec!["package.json"], Inputs::of_package(code), "node")
            }
        } else if !provided.is_empty() && !code.join("node_modules").is_dir() {
            (vec![], Inputs::default(), "node")
        } else {
            return Ok(None);
        };
        let interpreter =
            if language == "python" { &interpreters.python } else { &interpreters.node };
        let interpreter = interpreter
            .as_ref()
            .map_err(|reason| format!("{} has packages to install: {reason}", spec.name))?;
        let client = if language == "python" { Client::Pip } else { Client::Npm };
        let registries = Arc::new(Registries::of(client, &spec.name, inputs.named.clone()));
        let mut hash = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        add(interpreter.program.as_os_str().as_encoded_bytes());
        for (name, bytes) in &inputs.files {
            add(name.as_bytes());
            add(bytes);
        }
        add(if inputs.whole_code { code_hash.as_bytes() } else { b"" });
        for package in &provided {
            add(package.as_bytes());
        }
        // Another registry may serve other packages under the same names, so its settings belong to
        // the key.
        for (name, value) in &registries.env {
            add(name.as_bytes());
            add(value.as_bytes());
        }
        for (_, text) in &registries.files {
            add(text.as_bytes());
        }
        let mut key = base16ct::lower::encode_string(&hash.finalize()[..16]);
        let _ = write!(key, "-{language}{}-{}", interpreter.version, std::env::consts::ARCH);
        let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let npm = |words: &[&str]| {
            let more = ["--omit=dev", "--no-audit", "--no-fund", "--prefix", "/packages"];
            text(&[&["npm"], words, &more].concat())
        };
        let mut argv = if language == "python" {
            let mut argv = vec![interpreter.program.to_string_lossy().into_owned()];
            argv.extend(text(&[
                "-m",
                "pip",
                "install",
                "--no-input",
                "--disable-pip-version-check",
                "--no-cache-dir",
                "--no-warn-script-location",
                "--target",
                "/packages",
            ]));
            if has("requirements.txt") {
                argv.extend(text(&["-r", "/function/requirements.txt", "--"]));
            } else {
                argv.push("--".to_owned());
                argv.extend(asked);
            }
            argv
        } else if seeds.len() == 2 && spec.compat.is_some() {
            // This installation works as in the templates of other platforms: npm follows a lock
            // file that matches, and updates one that does not.
            npm(&["install"])
        } else if seeds.len() == 2 {
            npm(&["ci"])
        } else {
            npm(&["install", "--no-package-lock"])
        };
        argv.extend(provided);
        Ok(Some(Self { argv, seeds, key, inputs, registries }))
    }
}

/// Whether a `package.json` has dependencies. Without any, nothing has to be installed.
fn has_dependencies(spec: &FunctionSpec, path: &Path) -> bool {
    // The server that the adapter replaces. Every Knative function lists it.
    let provided = |name: &str| spec.compat == Some(Platform::Knative) && name == "faas-js-runtime";
    // A longer file is left to npm, which reads it within the installation's own memory limit.
    if std::fs::metadata(path).is_ok_and(|meta| meta.len() > PACKAGE_JSON_BYTES_MAX) {
        return true;
    }
    let text = std::fs::read(path).unwrap_or_default();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    ["dependencies", "optionalDependencies"].iter().any(|key| {
        json[key].as_object().is_some_and(|wanted| wanted.keys().any(|name| !provided(name)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_package_json_is_left_to_npm() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("package.json");
        let name = mote_spec::FunctionName::new("f").unwrap();
        let spec = FunctionSpec::with_defaults(name, Runtime::Node, "app.mjs");
        // The file lists no dependency. The rest of it is white space.
        let padded = |bytes: u64| format!("{{{}}}", " ".repeat(bytes as usize - 2));
        for (bytes, asks) in [(PACKAGE_JSON_BYTES_MAX, false), (PACKAGE_JSON_BYTES_MAX + 1, true)] {
            std::fs::write(&path, padded(bytes)).unwrap();
            assert_eq!(has_dependencies(&spec, &path), asks, "{bytes} bytes");
        }
        // Only the length of the file is set, because the file is never read.
        std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(has_dependencies(&spec, &path));
        std::fs::write(&path, r#"{"dependencies":{"a":"1"}}"#).unwrap();
        assert!(has_dependencies(&spec, &path));
    }
}
