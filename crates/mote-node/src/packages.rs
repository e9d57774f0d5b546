//! Packages of a function. The node installs them at deploy time, once per lock file, runtime
//! version and machine, in a sandbox that reaches registries and otherwise sees only what a
//! function sees.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mote_api::Problem;
use mote_core::backend::InstanceLimits;
use mote_core::fault::error_chain;
use mote_core::spec::{Platform, Runtime};
use mote_core::{FunctionName, FunctionSpec};
use mote_packages::inputs::{self, Inputs};
use mote_packages::registries::{Client, Registries};
use mote_packages::{output, provided};
use mote_sandbox::{BuildOutcome, BuildRequest};
use mote_store::{Lookup, PackagesStaging, StagedCode, StoredPackages};
use sha2::{Digest, Sha256};

use super::store_work::{blocking, store_problem};
use super::{Node, namespaces};

/// An installation that takes longer is stopped.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);
/// Memory that an installation may use: compiling a wheel takes memory and processes.
const INSTALL_MEMORY_BYTES: u64 = 1 << 30;
/// Largest `package.json` that the node itself reads, in bytes.
const PACKAGE_JSON_BYTES_MAX: u64 = 1 << 20;
const INSTALL_PIDS: u32 = 512;
const INSTALL_TMP_BYTES: u64 = 1 << 30;
/// Bytes that one function's packages may take; frameworks for machine learning need most of it.
const INSTALL_BYTES_MAX: u64 = 4 << 30;
/// Packages of all functions may take this share of the file system that holds the store.
const ALL_BYTES_SHARE: u64 = 2;
/// Bytes that an installation must leave free there for everything else, above all for calls that
/// the node promises to keep; fewer on a small file system.
const FREE_BYTES_MIN: u64 = 256 << 20;
const FREE_BYTES_SHARE: u64 = 20;
/// The folder for the files that an installation may see while it runs.
const INPUTS: &str = ".mote-inputs";
/// Variables that name certificate files, which the sandbox must show.
const CERTIFICATES: &[&str] = &[
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
];

/// Installed packages.
pub(crate) struct Installed {
    /// Their key in the store.
    pub(crate) key: String,
    /// Their folder.
    pub(crate) path: PathBuf,
    /// What was done, as text for people.
    pub(crate) detail: String,
    /// Keeps them in the store until a revision names them.
    _stored: StoredPackages,
}

impl Installed {
    pub(super) fn new(key: String, stored: StoredPackages, detail: String) -> Self {
        Self { key, path: stored.path.clone(), detail, _stored: stored }
    }
}

/// The packages that a function asks for: the client's command and the files that determine the
/// result.
struct Wanted {
    argv: Vec<String>,
    /// Files of the code that the client must find in the packages folder.
    seeds: Vec<&'static str>,
    key: String,
    inputs: Inputs,
    registries: Arc<Registries>,
}

/// Installs the packages that `requirements.txt` or `package.json` in `code` asks for, if any.
pub(crate) async fn install(
    node: &Arc<Node>,
    spec: &FunctionSpec,
    staged: &StagedCode,
    warnings: &mut Vec<String>,
) -> Result<Option<Installed>, Problem> {
    let code = &*staged.path;
    let Some(wanted) = wanted(node, spec, staged, warnings)? else { return Ok(None) };
    let store = node.store.clone();
    let key = wanted.key.clone();
    let lookup = blocking(move || store.packages_dir(&key))
        .await
        .map_err(|_| failed("the node could not check for installed packages"))?
        .map_err(|error| store_problem(&error))?;
    let staging = match lookup {
        Lookup::Ready(stored) => {
            return Ok(Some(Installed::new(wanted.key, stored, "from cache".into())));
        }
        Lookup::Build(staging) => staging,
    };
    for seed in &wanted.seeds {
        // The file is not copied with its mode, because npm has to write to lock files of older
        // versions.
        std::fs::read(code.join(seed))
            .and_then(|bytes| std::fs::write(staging.path().join(seed), bytes))
            .map_err(|error| failed(&format!("cannot copy {seed}: {error}")))?;
    }
    let outcome = run(node, spec, code, &wanted, &staging).await?;
    if !outcome.succeeded() {
        let client = wanted.argv.iter().find(|word| *word == "pip" || *word == "npm");
        let client = client.map_or("installer", String::as_str);
        return Err(explain(spec, client, &outcome, &wanted.registries));
    }
    mote_store::remove_tree(&staging.path().join(INPUTS))
        .map_err(|error| failed(&format!("cannot remove {INPUTS}: {error}")))?;
    let store = node.store.clone();
    let stored = blocking(move || store.commit_packages(staging))
        .await
        .map_err(|_| failed("the node could not store the packages"))?
        .map_err(|error| store_problem(&error))?;
    Ok(Some(Installed::new(wanted.key, stored, "installed".into())))
}

fn wanted(
    node: &Node,
    spec: &FunctionSpec,
    staged: &StagedCode,
    warnings: &mut Vec<String>,
) -> Result<Option<Wanted>, Problem> {
    let code = &*staged.path;
    let has = |name: &str| code.join(name).is_file();
    let asked = inputs::project_dependencies(spec, code);
    let provided = provided::packages(spec, code);
    if !provided.is_empty() {
        let (platform, list) = (spec.compat.map_or("", Platform::as_str), provided.join(", "));
        warnings.push(format!(
            "installed {list}, because {platform} provides it: list it in the function's \
             own packages to choose versions"
        ));
    }
    let (seeds, inputs, language) = if has("requirements.txt") && spec.runtime != Runtime::Node {
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
            warnings.push(
                "there is no package-lock.json next to package.json: the next deploy may install other versions"
                    .to_owned(),
            );
            (vec!["package.json"], Inputs::of_package(code), "node")
        }
    } else if !provided.is_empty() && !code.join("node_modules").is_dir() {
        (vec![], Inputs::default(), "node")
    } else {
        return Ok(None);
    };
    let interpreter =
        if language == "python" { &node.interpreters.python } else { &node.interpreters.node };
    let interpreter = interpreter
        .as_ref()
        .map_err(|reason| failed(&format!("{} has packages to install: {reason}", spec.name)))?;
    let client = if language == "python" { Client::Pip } else { Client::Npm };
    let registries = Arc::new(Registries::of(client, inputs.named.clone()));
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
    add(if inputs.whole_code { staged.hash.as_bytes() } else { b"" });
    for package in &provided {
        add(package.as_bytes());
    }
    // Another index may have other packages of the same name.
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
        // Installs as the templates of other platforms do: npm follows a lock file that matches and
        // updates one that does not.
        text(&["npm", "install", "--omit=dev", "--no-audit", "--no-fund", "--prefix", "/packages"])
    } else if seeds.len() == 2 {
        text(&["npm", "ci", "--omit=dev", "--no-audit", "--no-fund", "--prefix", "/packages"])
    } else {
        text(&[
            "npm",
            "install",
            "--omit=dev",
            "--no-audit",
            "--no-fund",
            "--no-package-lock",
            "--prefix",
            "/packages",
        ])
    };
    argv.extend(provided);
    Ok(Some(Wanted { argv, seeds, key, inputs, registries }))
}

/// Whether a `package.json` has dependencies; without any, no installation is necessary.
fn has_dependencies(spec: &FunctionSpec, path: &Path) -> bool {
    // The server that the adapter replaces; every function of that platform names it.
    let provided = |name: &str| spec.compat == Some(Platform::Knative) && name == "faas-js-runtime";
    // A longer file is left to npm, which reads it in the installation's own memory.
    if std::fs::metadata(path).is_ok_and(|meta| meta.len() > PACKAGE_JSON_BYTES_MAX) {
        return true;
    }
    let text = std::fs::read(path).unwrap_or_default();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    ["dependencies", "optionalDependencies"].iter().any(|key| {
        json[key].as_object().is_some_and(|wanted| wanted.keys().any(|name| !provided(name)))
    })
}

async fn run(
    node: &Arc<Node>,
    spec: &FunctionSpec,
    code: &Path,
    wanted: &Wanted,
    staging: &PackagesStaging,
) -> Result<BuildOutcome, Problem> {
    // The installation sees the inputs of its key, and nothing else of the function.
    let shown = if wanted.inputs.whole_code {
        code.to_owned()
    } else {
        let folder = staging.path().join(INPUTS);
        write_inputs(&folder, &wanted.inputs)
            .map_err(|error| failed(&format!("cannot write {}: {error}", folder.display())))?;
        folder
    };
    let request = request(node, spec, &shown, staging, &wanted.registries).await?;
    let request = BuildRequest { argv: wanted.argv.clone(), ..request };
    let registries = wanted.registries.clone();
    node.backend
        .run_build(request, |listeners| registries.serve(listeners))
        .await
        .map_err(|error| failed(&format!("cannot install packages: {}", error_chain(&error))))
}

fn write_inputs(folder: &Path, inputs: &Inputs) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::create_dir(folder)?;
    for (name, bytes) in &inputs.files {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
        std::fs::write(&path, bytes)?;
        // The installation's own user reads them, whatever the umask of this process is.
        for made in path.ancestors().take_while(|made| made.starts_with(folder)) {
            let mode = if made == path { 0o644 } else { 0o755 };
            std::fs::set_permissions(made, std::fs::Permissions::from_mode(mode))?;
        }
    }
    Ok(())
}

/// Bytes that one more installation may write, and bytes that it must leave free.
async fn room(node: &Node, name: &FunctionName) -> Result<(u64, u64), Problem> {
    let own = namespaces::room_on_disk(node, name, Vec::new()).await?;
    let data = node.config.data.clone();
    let counted = blocking(move || {
        let disk = rustix::fs::statvfs(&data)?;
        let all_max = disk.f_blocks.saturating_mul(disk.f_frsize) / ALL_BYTES_SHARE;
        let used = mote_store::bytes_below(&data.join("packages"), all_max);
        let free_min = FREE_BYTES_MIN.min(disk.f_blocks * disk.f_frsize / FREE_BYTES_SHARE);
        Ok::<_, std::io::Error>((all_max.saturating_sub(used), free_min))
    });
    let (left, free_min) = counted
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
        .map_err(|error| failed(&format!("cannot check the free disk space: {error}")))?;
    if left == 0 {
        let text = "the packages of all functions already use half of the disk, which is the limit";
        let problem = Problem::new(507, "M0703", text);
        return Err(problem.with_hint("remove functions, or deploy them with fewer packages"));
    }
    Ok((left.min(INSTALL_BYTES_MAX).min(own), free_min))
}

/// The request for an empty installation: what every installation may see and use.
pub(super) async fn request(
    node: &Node,
    spec: &FunctionSpec,
    code: &Path,
    staging: &PackagesStaging,
    registries: &Registries,
) -> Result<BuildRequest, Problem> {
    let (packages_bytes_max, free_bytes_min) = room(node, &spec.name).await?;
    let mut env = vec![
        ("PATH".to_owned(), node.interpreters.path()),
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
        ("npm_config_cache".to_owned(), "/tmp/npm".to_owned()),
        ("npm_config_update_notifier".to_owned(), "false".to_owned()),
    ];
    let mut extra_read_only = Vec::new();
    for (name, value) in std::env::vars() {
        let certificate = CERTIFICATES.contains(&name.as_str());
        if certificate && Path::new(&value).exists() {
            extra_read_only.push(PathBuf::from(&value));
        }
        if certificate {
            env.retain(|(known, _)| *known != name);
            env.push((name, value));
        }
    }
    for (name, value) in &registries.env {
        env.retain(|(known, _)| known != name);
        env.push((name.clone(), value.clone()));
    }
    Ok(BuildRequest {
        label: format!("{}-packages", spec.name),
        argv: Vec::new(),
        env,
        packages_dir: staging.path().to_owned(),
        code_dir: Some(code.to_owned()),
        extra_read_only,
        cache_dir: None,
        files: registries.files.clone(),
        listen: registries.listen(),
        packages_bytes_max,
        free_bytes_min,
        limits: InstanceLimits {
            memory_bytes: INSTALL_MEMORY_BYTES.min(node.memory_bytes),
            cpu_millis: None,
            pids: INSTALL_PIDS,
            disk_bytes: INSTALL_TMP_BYTES,
        },
        timeout: INSTALL_TIMEOUT,
    })
}

/// Explains a failed installation with the errors that the client printed and the end of its
/// output.
pub(super) fn explain(
    spec: &FunctionSpec,
    client: &str,
    outcome: &BuildOutcome,
    registries: &Registries,
) -> Problem {
    let how = if outcome.too_large {
        let most = mote_core::fault::bytes_text(INSTALL_BYTES_MAX);
        format!(
            "was stopped because the packages need too much space (at most {most} per function, half \
             of the disk for all functions, and some space must stay free; a namespace may have a limit \
             of its own)"
        )
    } else if outcome.timed_out {
        format!("took longer than {} s", INSTALL_TIMEOUT.as_secs())
    } else if outcome.exit.out_of_memory {
        let most = mote_core::fault::bytes_text(INSTALL_MEMORY_BYTES);
        format!(
            "ran out of memory (an installation may use {most}, and no more than the node's \
             setting memory)"
        )
    } else {
        match outcome.exit.status {
            Some(status) => format!("exited {status}"),
            None => format!("was killed by signal {}", outcome.exit.signal.unwrap_or(0)),
        }
    };
    let text = format!("{}: {client} {how}; {}", spec.name, output::told(&outcome.output));
    let refused = registries.refused();
    let problem = failed(&text);
    if outcome.output.iter().any(|line| line.contains("package.json and package-lock.json")) {
        return failed(&format!(
            "{}: package-lock.json does not match package.json{}",
            spec.name,
            output::stale_entries(&outcome.output)
        ))
        .with_hint("update it with npm install, or remove it, and deploy again");
    }
    if refused.is_empty() {
        return problem;
    }
    problem.with_hint(format!(
        "it tried to reach {}, but an installation can reach only the registries in the node's \
         configuration of pip, npm or go, and public addresses in the list of dependencies",
        refused.join(", ")
    ))
}

pub(super) fn failed(text: &str) -> Problem {
    Problem::new(422, "M0401", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_package_json_is_left_to_npm() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("package.json");
        let name = mote_core::FunctionName::new("f").unwrap();
        let spec = FunctionSpec::with_defaults(name, Runtime::Node, "app.mjs");
        // The file names no dependency; the rest of it is white space.
        let padded = |bytes: u64| format!("{{{}}}", " ".repeat(bytes as usize - 2));
        for (bytes, asks) in [(PACKAGE_JSON_BYTES_MAX, false), (PACKAGE_JSON_BYTES_MAX + 1, true)] {
            std::fs::write(&path, padded(bytes)).unwrap();
            assert_eq!(has_dependencies(&spec, &path), asks, "{bytes} bytes");
        }
        // The length is set without content, because the file is never read.
        std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(has_dependencies(&spec, &path));
        std::fs::write(&path, r#"{"dependencies":{"a":"1"}}"#).unwrap();
        assert!(has_dependencies(&spec, &path));
    }
}
