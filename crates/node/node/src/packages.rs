//! Installs the packages of a function during a deploy, once for each lock file, runtime version
//! and machine. An installation runs in a sandbox that can reach registries, but otherwise sees
//! only what a function sees.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mote_api::Problem;
use mote_build::packages::output;
use mote_build::packages::registries::Registries;
use mote_build::packages::wanted::Wanted;
use mote_core::backend::InstanceLimits;
use mote_core::fault::error_chain;
use mote_sandbox::{BuildOutcome, BuildRequest};
use mote_spec::{FunctionName, FunctionSpec};
use mote_store::{Lookup, PackagesStaging, StagedCode, StoredPackages};

use super::store_work::{blocking, store_problem};
use super::{Node, kept_packages, namespaces};

/// An installation is stopped after this time.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);
/// Memory that an installation may use: half of the machine's memory, because compiling a wheel
/// takes memory and processes. With less than the minimum, few packages can be installed. No
/// package needs more than the maximum.
const INSTALL_MEMORY_BYTES_MIN: u64 = 1 << 30;
const INSTALL_MEMORY_BYTES_MAX: u64 = 8 << 30;
/// The folder for the client's temporary files. It is not in `/tmp`, because `/tmp` is held in
/// memory, where the archives of large frameworks would need more space than the installation
/// itself.
const TEMPORARY: &str = ".mote-tmp";
const INSTALL_PIDS: u32 = 512;
const INSTALL_TMP_BYTES: u64 = 1 << 30;
/// Bytes that the packages of one function may use. Frameworks for machine learning use most of
/// this.
const INSTALL_BYTES_MAX: u64 = 4 << 30;
/// The packages of all functions together may use one part in this many of the file system that
/// holds the store.
const ALL_BYTES_SHARE: u64 = 2;
/// Bytes that an installation must leave free on that file system for everything else, above all
/// for accepted calls, which the node promises to keep. On a small file system, one part in
/// `FREE_BYTES_SHARE` is enough.
const FREE_BYTES_MIN: u64 = 256 << 20;
const FREE_BYTES_SHARE: u64 = 20;
/// The folder for files that an installation may see while it runs.
const INPUTS: &str = ".mote-inputs";
/// Environment variables that name files with certificates. The sandbox must contain these files.
const CERTIFICATES: &[&str] = &[
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
];

pub(crate) struct Installed {
    /// The packages' key in the store.
    pub(crate) key: String,
    /// The packages' folder.
    pub(crate) path: PathBuf,
    /// A description of the step for people.
    pub(crate) detail: String,
    /// Keeps the packages in the store until a revision names them.
    _stored: StoredPackages,
}

impl Installed {
    pub(super) fn new(key: String, stored: StoredPackages, detail: String) -> Self {
        Self { key, path: stored.path.clone(), detail, _stored: stored }
    }
}

/// Installs the packages that `requirements.txt` or `package.json` asks for, if there are any.
pub(crate) async fn install(
    node: &Arc<Node>,
    spec: &FunctionSpec,
    staged: &StagedCode,
    warnings: &mut Vec<String>,
) -> Result<Option<Installed>, Problem> {
    let code = &*staged.path;
    let wanted = Wanted::of(spec, code, &staged.hash, &node.opened.interpreters, warnings)
        .map_err(|reason| failed(&reason))?;
    let Some(wanted) = wanted else { return Ok(None) };
    let store = node.opened.store.clone();
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
    let kept = node.config.packages_cache.clone();
    if let Some(kept) = &kept
        && kept_packages::fetch(kept, &wanted.key, staging.path()).await
    {
        let stored = commit(node, staging).await?;
        return Ok(Some(Installed::new(wanted.key, stored, "from an earlier session".into())));
    }
    for seed in &wanted.seeds {
        // Copies the contents and not the file, whose mode could be read-only: npm has to write to
        // lock files of older versions.
        std::fs::read(code.join(seed))
            .and_then(|bytes| std::fs::write(staging.path().join(seed), bytes))
            .map_err(|error| failed(&format!("cannot copy {seed}: {error}")))?;
    }
    let outcome = run(node, spec, code, &wanted, &staging).await?;
    if !outcome.succeeded() {
        let client = wanted.argv.iter().find(|word| *word == "pip" || *word == "npm");
        let client = client.map_or("installer", String::as_str);
        return Err(explain(
            spec,
            client,
            &outcome,
            &wanted.registries,
            node.data_path.memory_bytes,
        ));
    }
    for made in [INPUTS, TEMPORARY] {
        mote_store::remove_tree(&staging.path().join(made))
            .map_err(|error| failed(&format!("cannot remove {made}: {error}")))?;
    }
    let stored = commit(node, staging).await?;
    if let Some(kept) = kept {
        kept_packages::keep(kept, wanted.key.clone(), stored.path.clone()).await;
    }
    Ok(Some(Installed::new(wanted.key, stored, "installed".into())))
}

async fn commit(node: &Node, staging: PackagesStaging) -> Result<StoredPackages, Problem> {
    let store = node.opened.store.clone();
    blocking(move || store.commit_packages(staging))
        .await
        .map_err(|_| failed("the node could not store the packages"))?
        .map_err(|error| store_problem(&error))
}

async fn run(
    node: &Arc<Node>,
    spec: &FunctionSpec,
    code: &Path,
    wanted: &Wanted,
    staging: &PackagesStaging,
) -> Result<BuildOutcome, Problem> {
    // The only files of the function that the installation sees are the inputs from which its key
    // is computed.
    let shown = if wanted.inputs.whole_code {
        code.to_owned()
    } else {
        let folder = staging.path().join(INPUTS);
        (wanted.inputs.write(&folder))
            .map_err(|error| failed(&format!("cannot write {}: {error}", folder.display())))?;
        folder
    };
    let request = request(node, spec, &shown, staging, &wanted.registries).await?;
    // The folder is made inside the sandbox, so that it belongs to the user that runs the
    // installation.
    let start = "mkdir -p \"$TMPDIR\" && exec \"$@\"";
    let argv = ["sh", "-c", start, "install"].map(str::to_owned).into_iter();
    let argv = argv.chain(wanted.argv.iter().cloned()).collect();
    let mut request = BuildRequest { argv, ..request };
    request.env.push(("TMPDIR".to_owned(), format!("/packages/{TEMPORARY}")));
    let registries = wanted.registries.clone();
    node.opened
        .backend
        .run_build(request, |listeners| registries.serve(listeners))
        .await
        .map_err(|error| failed(&format!("cannot install packages: {}", error_chain(&error))))
}

/// How many bytes a further installation may write, and how many it must leave free.
pub(super) async fn room(node: &Node, name: &FunctionName) -> Result<(u64, u64), Problem> {
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

/// A request for an installation without packages. It holds what every installation may see and
/// use.
pub(super) async fn request(
    node: &Node,
    spec: &FunctionSpec,
    code: &Path,
    staging: &PackagesStaging,
    registries: &Registries,
) -> Result<BuildRequest, Problem> {
    let (packages_bytes_max, free_bytes_min) = room(node, &spec.name).await?;
    let mut env = vec![
        ("PATH".to_owned(), node.opened.interpreters.path()),
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
            memory_bytes: install_memory_bytes(
                mote_process::memory::machine_bytes(),
                node.data_path.memory_bytes,
            ),
            cpu_millis: None,
            pids: INSTALL_PIDS,
            disk_bytes: INSTALL_TMP_BYTES,
        },
        timeout: INSTALL_TIMEOUT,
    })
}

/// The memory that an installation may use on a machine with `machine` bytes, of which instances
/// may use `budget`.
pub(super) fn install_memory_bytes(machine: u64, budget: u64) -> u64 {
    (machine / 2).clamp(INSTALL_MEMORY_BYTES_MIN, INSTALL_MEMORY_BYTES_MAX).min(budget)
}

/// Explains a failed installation with the errors that the client printed and the end of its
/// output.
pub(super) fn explain(
    spec: &FunctionSpec,
    client: &str,
    outcome: &BuildOutcome,
    registries: &Registries,
    budget: u64,
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
        let most = install_memory_bytes(mote_process::memory::machine_bytes(), budget);
        format!(
            "ran out of memory (an installation may use {}: half of the machine's memory, and no \
             more than the node's setting memory)",
            mote_core::fault::bytes_text(most)
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
    use super::install_memory_bytes;

    #[test]
    fn an_installation_has_half_of_the_machine_within_bounds_and_the_budget() {
        let mib =
            |machine: u64, budget: u64| install_memory_bytes(machine << 20, budget << 20) >> 20;
        assert_eq!(mib(16_384, 12_288), 8_192);
        assert_eq!(mib(65_536, 49_152), 8_192);
        assert_eq!(mib(4_096, 3_072), 2_048);
        assert_eq!(mib(1_024, 768), 768, "a small board");
    }
}
