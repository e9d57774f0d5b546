//! What a revision requests from the backend for an instance: program, variables, files and limits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mote_core::backend::{Data, Folders, InstanceLimits, InstanceRequest, Launch};
use mote_spec::files::HOST_FOLDERS_DIR;
use mote_spec::name::kept;
use mote_spec::{Platform, Runtime, SERVER_PORT};
use mote_store::seal::SecretError;

use crate::revision::Revision;

/// The path of the function's code inside the sandbox.
pub const CODE_DIR: &str = "/function";
/// The path of the installed packages inside the sandbox.
pub const PACKAGES_DIR: &str = "/packages";
/// The path at which functions of OpenFaaS expect their code. A link leads from there to
/// [`CODE_DIR`].
const CODE_LINK: &str = "/home/app/function";
/// The path at which functions of Fission with several files expect their code. A link leads from
/// there to [`CODE_DIR`].
const FISSION_CODE_LINK: &str = "/userfunc/deployarchive";
/// The path of a Go function's program, which is built during the deploy.
pub(crate) const GO_PROGRAM: &str = "/packages/function";
/// The program that runs chains. The node puts it next to the shims.
const CHAIN_PROGRAM: &str = "/mote/chain/mote-chain";
/// The program that compiles and runs WebAssembly. The node puts it next to the shims.
pub const WASM_PROGRAM: &str = "/mote/wasm/mote-wasm";
/// Bun and Deno search the folders above a file for packages. A link leads from there to the
/// packages.
const NODE_MODULES_LINK: &str = "/node_modules";
/// Keep Deno from asking for new versions, from printing in colours, and from writing caches that no
/// later start finds: the folder of the shims is read-only.
const DENO_VARIABLES: [(&str, &str); 3] =
    [("DENO_NO_UPDATE_CHECK", "1"), ("NO_COLOR", "1"), ("DENO_DIR", "/mote/deno")];
/// Keep Bun from sending reports of crashes, and from writing a cache of translated files.
const BUN_VARIABLES: [(&str, &str); 2] =
    [("DO_NOT_TRACK", "1"), ("BUN_RUNTIME_TRANSPILER_CACHE_PATH", "0")];
/// The folder in which functions find their secrets, one file for each.
const SECRETS_DIR: &str = "/secrets";
/// The path at which functions of OpenFaaS expect their secrets. A link leads from there to
/// [`SECRETS_DIR`].
const SECRETS_LINK: &str = "/var/openfaas/secrets";
/// The folders in which programs of an image are looked up, if the image does not say.
const IMAGE_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// These variables fix the limits up to which glibc keeps freed memory. Without them, neighbouring
/// memory decides whether glibc keeps freed memory or returns it, so the same work causes either
/// thousands of page faults in every call or none at all. The values are the highest that glibc
/// chooses by itself. Other C libraries ignore the variables. See
/// docs/decisions/0088-memory-by-need.md.
const KEEPS_MEMORY: [(&str, &str); 2] =
    [("MALLOC_MMAP_THRESHOLD_", "33554432"), ("MALLOC_TRIM_THRESHOLD_", "67108864")];

/// Why an instance cannot be launched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    #[error("{runtime} is not installed on this node; see: mote doctor")]
    NoRuntime { runtime: &'static str },
    #[error(transparent)]
    NoSecret(#[from] SecretError),
    #[error("the image {image} is not on this node; deploy the function again")]
    ImageMissing { image: String },
    #[error(
        "the node no longer shares the folder {folder}; let an operator add it to the setting \
         shared_folders"
    )]
    NotShared { folder: String },
}

/// The request for an instance of a function that is added (true) or removed (false). `None` if a
/// prewarmed program cannot serve the function. That is the case for functions with secrets,
/// because no other function may see the secrets, for functions with folders, which are mounted
/// before a program starts, and for images, which have their own programs.
pub(crate) fn kind(
    (revision, comes): (&Arc<Revision>, bool),
) -> Option<(InstanceRequest, Runtime, bool)> {
    // If the interpreter reads variables of the function when it starts, it cannot be prewarmed,
    // because it may need the function's files at that time.
    let spec = &revision.spec;
    let must_start_fresh = spec.env.keys().any(|name| is_read_at_start(spec.answered_by(), name));
    let has_own_files =
        !spec.secret_names().is_empty() || spec.image.is_some() || !spec.files.is_none();
    if has_own_files || must_start_fresh || debug_port(revision).is_some() {
        return None;
    }
    Some((request(revision, 0).ok()?, revision.spec.answered_by(), comes))
}

pub(crate) fn request(revision: &Revision, instance: u64) -> Result<InstanceRequest, LaunchError> {
    let spec = &revision.spec;
    if let (Some(image), None) = (&spec.image, &revision.image) {
        return Err(LaunchError::ImageMissing { image: image.shown() });
    }
    let interpreters = &revision.shared.config.interpreters;
    let missing = || LaunchError::NoRuntime { runtime: spec.runtime.as_str() };
    let debug_port = debug_port(revision);
    let launch = match spec.answered_by() {
        Runtime::Python => {
            Launch::Shim { argv: interpreters.python.clone().ok_or_else(missing)?, forks: true }
        }
        Runtime::Node => {
            let mut argv = interpreters.node.clone().ok_or_else(missing)?;
            if let Some(port) = debug_port {
                argv.insert(1, format!("--inspect=127.0.0.1:{port}"));
            }
            Launch::Shim { argv, forks: false }
        }
        Runtime::Bun => {
            Launch::Shim { argv: interpreters.bun.clone().ok_or_else(missing)?, forks: false }
        }
        Runtime::Deno => {
            let mut argv = interpreters.deno.clone().ok_or_else(missing)?;
            if let Some(port) = debug_port {
                // The first argument after the program is the verb `run`.
                argv.insert(2, format!("--inspect=127.0.0.1:{port}"));
            }
            Launch::Shim { argv, forks: false }
        }
        Runtime::Go => Launch::Worker { argv: vec![GO_PROGRAM.to_owned()] },
        Runtime::Chain => Launch::Worker { argv: vec![CHAIN_PROGRAM.to_owned()] },
        Runtime::Wasm => Launch::Shim { argv: vec![WASM_PROGRAM.to_owned()], forks: false },
        Runtime::Rust => Launch::Worker { argv: program(revision) },
        Runtime::Exec => Launch::PerInvocation { argv: program(revision) },
        Runtime::Server => {
            Launch::Server { argv: program(revision), port: spec.port.unwrap_or(SERVER_PORT) }
        }
    };
    // Other programs receive the variables with LOAD. A Go package reads its variables before its
    // worker runs, so it gets them at the start.
    let is_started_with_all = matches!(launch, Launch::Server { .. } | Launch::Worker { .. });
    let runtime = spec.answered_by();
    // The function's variables must come before those of its image.
    let gets_all = is_started_with_all || revision.image.is_some();
    let is_given = |key: &String| gets_all || is_read_at_start(runtime, key);
    let mut own: Vec<(String, String)> = spec.env.clone().into_iter().collect();
    if spec.secret_env.keys().any(is_given) {
        own.extend(secret_env(revision)?);
    }
    own.retain(|(key, _)| is_given(key));
    if let Some(image) = &revision.image {
        let missing = |(key, _): &&(String, String)| !own.iter().any(|(other, _)| other == key);
        let more: Vec<_> = image.env.iter().filter(missing).cloned().collect();
        own.extend(more);
    }
    // In an image, the home folder is that of the image's user, which the sandbox looks up.
    let base: &[(&str, &str)] = match &revision.image {
        Some(_) => &[("PATH", IMAGE_PATH)],
        None => &[("PATH", &interpreters.path), ("HOME", "/tmp"), ("LANG", "C.UTF-8")],
    };
    // If a variable occurs twice, a program takes the first value.
    let mut env: Vec<(String, String)> = base
        .iter()
        .copied()
        .chain(KEEPS_MEMORY)
        .filter(|(key, _)| !own.iter().any(|(other, _)| other == key))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    if is_started_with_all {
        env.push(("MOTE_FUNCTION".into(), spec.name.to_string()));
    }
    env.extend(own);
    if spec.runtime == Runtime::Go
        && matches!(launch, Launch::Worker { .. })
        && !spec.env.contains_key("GOMEMLIMIT")
    {
        // With this limit, the garbage collector works harder first, so the kernel rarely has to
        // kill the instance.
        env.push(("GOMEMLIMIT".into(), (spec.limits.memory_bytes / 8 * 7).to_string()));
    }
    let more: &[(&str, &str)] = match runtime {
        Runtime::Bun => &BUN_VARIABLES,
        Runtime::Deno => &DENO_VARIABLES,
        _ => &[],
    };
    for (key, value) in more {
        if !env.iter().any(|(other, _)| other == key) {
            env.push(((*key).to_owned(), (*value).to_owned()));
        }
    }
    if let Launch::Server { port, .. } = launch {
        // An image may have a port in its own environment, but calls go to this port.
        env.retain(|(key, _)| key != "PORT");
        env.push(("PORT".into(), port.to_string()));
        env.extend(crate::instance::services_door::variable(spec, instance));
        if revision.packages_dir.is_some() {
            env.push(("PYTHONPATH".into(), PACKAGES_DIR.into()));
            env.push(("NODE_PATH".into(), format!("{PACKAGES_DIR}/node_modules")));
        }
    }
    let files = secret_files(revision)?;
    let mut links = Vec::new();
    if spec.image.is_none() {
        links.push((CODE_LINK.into(), CODE_DIR.into()));
    }
    if spec.compat == Some(Platform::Fission) {
        links.push((FISSION_CODE_LINK.into(), CODE_DIR.into()));
    }
    if matches!(spec.runtime, Runtime::Bun | Runtime::Deno) {
        links.push((NODE_MODULES_LINK.into(), Path::new(PACKAGES_DIR).join("node_modules")));
    }
    if !files.is_empty() {
        links.push((SECRETS_LINK.into(), SECRETS_DIR.into()));
    }
    Ok(InstanceRequest {
        instance,
        label: revision.label(),
        code_dir: revision.code_dir.clone(),
        image: revision.image.as_ref().map(|image| image.root.clone()),
        packages_dir: revision.packages_dir.clone(),
        launch,
        env,
        limits: InstanceLimits {
            memory_bytes: spec.limits.memory_bytes,
            cpu_millis: spec.limits.cpu_millis,
            pids: spec.limits.pids,
            disk_bytes: spec.limits.disk_bytes,
        },
        shows_memory: !spec.runtime.is_javascript(),
        writable_code: spec.writable,
        egress: spec.doors(),
        folders: folders(revision)?,
        links,
        files,
        debug_port,
    })
}

/// The file that contains the data folder of a function. `folder` contains those of all functions.
pub fn data_image(folder: &Path, function: &str) -> PathBuf {
    folder.join(format!("{function}.ext4"))
}

/// The folders that a function has besides its code. Whether the node still shares a folder of the
/// host is checked at each start, because the setting may have changed since the deploy.
fn folders(revision: &Revision) -> Result<Folders, LaunchError> {
    let Revision { spec, shared, .. } = revision;
    let config = &shared.config;
    let data = spec
        .files
        .data_bytes
        .map(|bytes| Data { image: data_image(&config.data_folders, spec.name.as_str()), bytes });
    let mut host = Vec::new();
    for (name, path) in &spec.files.host_folders {
        if !config.shared_folders.permit(spec.name.namespace(), path) {
            return Err(LaunchError::NotShared { folder: path.clone() });
        }
        host.push((PathBuf::from(path), Path::new(HOST_FOLDERS_DIR).join(name)));
    }
    Ok(Folders { data, host })
}

/// The port on which a debugger can attach to an instance. Each is the usual port of its language.
pub(crate) fn debug_port(revision: &Revision) -> Option<u16> {
    match revision.spec.answered_by() {
        Runtime::Node | Runtime::Deno => Some(9229),
        Runtime::Python => Some(5678),
        // Bun speaks another protocol than the debuggers of editors.
        Runtime::Bun
        | Runtime::Go
        | Runtime::Rust
        | Runtime::Exec
        | Runtime::Server
        | Runtime::Chain
        | Runtime::Wasm => None,
    }
    .filter(|_| revision.shared.config.inspect)
}

/// Whether the interpreter of a runtime reads a variable only when it starts, so that setting the
/// variable later has no effect. `PYTHONPATH`, `NODE_PATH` and `TZ` do not count, because the
/// workers apply them when they load a function. `PYTHONUNBUFFERED` and `PYTHONDONTWRITEBYTECODE`
/// do not count either, because the workers always behave as if these were set.
fn is_read_at_start(runtime: Runtime, name: &str) -> bool {
    const APPLIED: [&str; 6] = [
        "PYTHONPATH",
        "PYTHONUNBUFFERED",
        "PYTHONDONTWRITEBYTECODE",
        "NODE_PATH",
        "NODE_ENV",
        "NODE_TLS_REJECT_UNAUTHORIZED",
    ];
    const OF_LIBRARIES: [&str; 6] = ["LD_", "LC_", "MALLOC_", "GLIBC_", "OPENSSL_", "SSL_CERT_"];
    let prefixes: &[&str] = match runtime {
        Runtime::Python => &["PYTHON"],
        Runtime::Node => &["NODE_", "UV_"],
        Runtime::Bun => &["BUN_", "NODE_"],
        Runtime::Deno => &["DENO_", "V8_", "NODE_"],
        Runtime::Go
        | Runtime::Rust
        | Runtime::Exec
        | Runtime::Server
        | Runtime::Chain
        | Runtime::Wasm => {
            return false;
        }
    };
    let begins = |all: &[&str]| all.iter().any(|prefix| name.starts_with(prefix));
    (name == "LANG" || begins(prefixes) || begins(&OF_LIBRARIES)) && !APPLIED.contains(&name)
}

/// The program of a function, with its arguments: the manifest's command, the command of the image,
/// or the program that the deploy built.
pub(crate) fn program(revision: &Revision) -> Vec<String> {
    let spec = &revision.spec;
    match (&revision.image, spec.runtime) {
        (_, Runtime::Go) => vec![GO_PROGRAM.to_owned()],
        (Some(image), _) if spec.command.is_empty() => {
            let own = spec.image.as_ref().and_then(|image| image.arguments.as_ref());
            let arguments = own.unwrap_or(&image.arguments);
            image.entry_point.iter().chain(arguments).cloned().collect()
        }
        _ => spec.command.clone(),
    }
}

/// The secrets of a function as files, with their current values.
fn secret_files(revision: &Revision) -> Result<Vec<(PathBuf, String)>, LaunchError> {
    let file = |name: &String| Ok((Path::new(SECRETS_DIR).join(name), secret(revision, name)?));
    revision.spec.secrets.iter().map(file).collect()
}

/// The variables of a function that are secrets, with their current values.
pub(crate) fn secret_env(revision: &Revision) -> Result<Vec<(String, String)>, LaunchError> {
    let variables = revision.spec.secret_env.iter();
    variables.map(|(key, name)| Ok((key.clone(), secret(revision, name)?))).collect()
}

/// The value of a secret. From here on, the function's log masks it.
fn secret(revision: &Revision, name: &str) -> Result<String, LaunchError> {
    let kept = kept(name, revision.spec.name.namespace());
    let value = revision.shared.config.secrets.get(&kept)?;
    revision.log.mask(&value);
    Ok(value.to_string())
}
