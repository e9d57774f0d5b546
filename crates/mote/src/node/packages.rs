//! Packages of a function: installed once per lock file, runtime version and machine, at deploy
//! time, in a sandbox that has the network and nothing else more than a function has.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mote_api::Problem;
use mote_core::FunctionSpec;
use mote_core::backend::InstanceLimits;
use mote_core::fault::error_chain;
use mote_core::spec::{Compat, Runtime};
use mote_sandbox::{BuildOutcome, BuildRequest};
use mote_store::{Lookup, PackagesStaging};
use sha2::{Digest, Sha256};

use super::{Node, deploy::store_problem};

/// An installation that takes longer is stopped.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);
/// What an installation may use: compiling a wheel takes memory and processes.
const INSTALL_MEMORY_BYTES: u64 = 1 << 30;
const INSTALL_PIDS: u32 = 512;
const INSTALL_TMP_BYTES: u64 = 1 << 30;
/// Variables of the daemon that steer package clients and their proxies.
const PASSED_ON: &[&str] = &[
    "PIP_",
    "GOPROXY",
    "GONOSUMDB",
    "GOSUMDB",
    "GOPRIVATE",
    "GONOPROXY",
    "GOINSECURE",
    "npm_config_",
    "NPM_CONFIG_",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "ALL_PROXY",
    "all_proxy",
];
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
    /// Their name in the store.
    pub(crate) key: String,
    /// Where they are.
    pub(crate) path: PathBuf,
    /// What was done, for people.
    pub(crate) detail: String,
}

/// What a function asks for: the client's command and the files that determine the result.
struct Wanted {
    argv: Vec<String>,
    /// Files of the code that the client must find in the packages folder.
    seeds: Vec<&'static str>,
    key: String,
}

/// Installs what `requirements.txt` or `package.json` in `code` asks for, if anything.
pub(crate) async fn install(
    node: &Arc<Node>,
    spec: &FunctionSpec,
    code: &Path,
    warnings: &mut Vec<String>,
) -> Result<Option<Installed>, Problem> {
    let Some(wanted) = wanted(node, spec, code, warnings)? else { return Ok(None) };
    let store = node.store.clone();
    let key = wanted.key.clone();
    let lookup = tokio::task::spawn_blocking(move || store.packages_dir(&key))
        .await
        .map_err(|_| failed("the node failed while it looked for packages"))?
        .map_err(|error| store_problem(&error))?;
    let staging = match lookup {
        Lookup::Ready(path) => {
            return Ok(Some(Installed { key: wanted.key, path, detail: "from cache".into() }));
        }
        Lookup::Build(staging) => staging,
    };
    for seed in &wanted.seeds {
        std::fs::copy(code.join(seed), staging.path().join(seed))
            .map_err(|error| failed(&format!("cannot copy {seed}: {error}")))?;
    }
    let outcome = run(node, spec, code, &wanted, &staging).await?;
    if !outcome.succeeded() {
        let client = wanted.argv.iter().find(|word| *word == "pip" || *word == "npm");
        return Err(explain(spec, client.map_or("installer", String::as_str), &outcome));
    }
    let store = node.store.clone();
    let path = tokio::task::spawn_blocking(move || store.commit_packages(staging))
        .await
        .map_err(|_| failed("the node failed while it stored packages"))?
        .map_err(|error| store_problem(&error))?;
    Ok(Some(Installed { key: wanted.key, path, detail: "installed".into() }))
}

fn wanted(
    node: &Node,
    spec: &FunctionSpec,
    code: &Path,
    warnings: &mut Vec<String>,
) -> Result<Option<Wanted>, Problem> {
    let has = |name: &str| code.join(name).is_file();
    let asked = project_dependencies(spec, code);
    let (seeds, locks, language) = if has("requirements.txt") && spec.runtime != Runtime::Node {
        (vec![], vec!["requirements.txt"], "python")
    } else if !asked.is_empty() {
        (vec![], vec!["pyproject.toml"], "python")
    } else if has("package.json") && spec.runtime != Runtime::Python {
        if !has_dependencies(spec, &code.join("package.json")) || code.join("node_modules").is_dir()
        {
            return Ok(None);
        }
        if has("package-lock.json") {
            let both = vec!["package.json", "package-lock.json"];
            (both.clone(), both, "node")
        } else {
            warnings.push(
                "package.json has no package-lock.json beside it: versions may differ next time"
                    .to_owned(),
            );
            (vec!["package.json"], vec!["package.json"], "node")
        }
    } else {
        return Ok(None);
    };
    let interpreter =
        if language == "python" { &node.interpreters.python } else { &node.interpreters.node };
    let interpreter = interpreter
        .as_ref()
        .map_err(|reason| failed(&format!("{} has packages to install: {reason}", spec.name)))?;
    let mut hash = Sha256::new();
    for lock in &locks {
        let bytes = std::fs::read(code.join(lock))
            .map_err(|error| failed(&format!("cannot read {lock}: {error}")))?;
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(&bytes);
    }
    let mut key = String::new();
    for byte in &hash.finalize()[..16] {
        let _ = write!(key, "{byte:02x}");
    }
    let _ = write!(key, "-{language}{}-{}", interpreter.version, std::env::consts::ARCH);
    let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let argv = if language == "python" {
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
            argv.extend(text(&["-r", "/function/requirements.txt"]));
        } else {
            argv.push("--".to_owned());
            argv.extend(asked);
        }
        argv
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
    Ok(Some(Wanted { argv, seeds, key }))
}

/// What the `pyproject.toml` of a Knative function asks for, which has no other list. A function of
/// our own may have one for its tools alone.
fn project_dependencies(spec: &FunctionSpec, code: &Path) -> Vec<String> {
    if spec.compat != Some(Compat::Knative) || spec.runtime != Runtime::Python {
        return Vec::new();
    }
    let text = std::fs::read_to_string(code.join("pyproject.toml")).unwrap_or_default();
    let table = text.parse::<toml::Table>().unwrap_or_default();
    let list = table.get("project").and_then(|project| project.get("dependencies"));
    let list = list.and_then(toml::Value::as_array).into_iter().flatten();
    list.filter_map(|one| Some(one.as_str()?.to_owned())).collect()
}

/// Whether a `package.json` asks for anything; one without dependencies needs no installation.
fn has_dependencies(spec: &FunctionSpec, path: &Path) -> bool {
    // The server that the adapter stands in for; every function of that platform names it.
    let provided = |name: &str| spec.compat == Some(Compat::Knative) && name == "faas-js-runtime";
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
    let request = BuildRequest { argv: wanted.argv.clone(), ..request(node, spec, code, staging) };
    node.backend
        .run_build(request)
        .await
        .map_err(|error| failed(&format!("cannot install packages: {}", error_chain(&error))))
}

/// An installation of nothing yet: what every one may see and use.
pub(super) fn request(
    node: &Node,
    spec: &FunctionSpec,
    code: &Path,
    staging: &PackagesStaging,
) -> BuildRequest {
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
        if certificate || PASSED_ON.iter().any(|prefix| name.starts_with(prefix)) {
            env.push((name, value));
        }
    }
    BuildRequest {
        label: format!("{}-packages", spec.name),
        argv: Vec::new(),
        env,
        packages_dir: staging.path().to_owned(),
        code_dir: Some(code.to_owned()),
        extra_read_only,
        cache_dir: None,
        home_dir: std::env::var_os("HOME").map(PathBuf::from),
        limits: InstanceLimits {
            memory_bytes: INSTALL_MEMORY_BYTES.min(node.memory_bytes),
            cpu_millis: None,
            pids: INSTALL_PIDS,
            disk_bytes: INSTALL_TMP_BYTES,
        },
        timeout: INSTALL_TIMEOUT,
    }
}

/// A failed installation, with the end of what the client said.
pub(super) fn explain(spec: &FunctionSpec, client: &str, outcome: &BuildOutcome) -> Problem {
    let how = if outcome.timed_out {
        format!("took longer than {} s", INSTALL_TIMEOUT.as_secs())
    } else if outcome.exit.out_of_memory {
        "ran out of memory".to_owned()
    } else {
        match outcome.exit.status {
            Some(status) => format!("exited {status}"),
            None => format!("was killed by signal {}", outcome.exit.signal.unwrap_or(0)),
        }
    };
    let mut text = format!("{}: {client} {how}; its last lines:", spec.name);
    let skip = outcome.output.len().saturating_sub(8);
    for line in outcome.output.iter().skip(skip) {
        let _ = write!(text, "\n  | {line}");
    }
    failed(&text)
}

pub(super) fn failed(text: &str) -> Problem {
    Problem::new(422, "M0401", text)
}
