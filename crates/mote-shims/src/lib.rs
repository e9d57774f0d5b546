//! The shims: one worker for each language, with the adapters for other platforms. They are part of
//! the binaries, which write them to a folder before they start workers.
//!
//! It must not know functions, sandboxes or who starts a worker.

#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A file of `shims/`, with its path there.
macro_rules! shim {
    ($path:literal) => {
        ($path, include_str!(concat!("../../../shims/", $path)))
    };
}

/// A file that the build put together from its parts, see `build.rs`.
macro_rules! bundle {
    ($folder:literal, $name:literal) => {
        (concat!($folder, "/", $name), include_str!(concat!(env!("OUT_DIR"), "/", $name)))
    };
}

/// What Python gets before the path of its shim: -s and -E ignore a user's site folder and PYTHON*
/// variables, -S starts without `site`, -u turns output buffering off, and -B writes no bytecode,
/// because the code folder is read-only.
pub const PYTHON_OPTIONS: &str = "-sSEuB";
/// The path of Python's shim in the folder of the shims.
pub const PYTHON_SHIM: &str = "python/mote_shim.py";
/// The path of Node's shim there.
pub const NODE_SHIM: &str = "node/mote_shim.mjs";

const FILES: [(&str, &str); 28] = [
    bundle!("python", "mote_shim.py"),
    bundle!("node", "mote_shim.mjs"),
    shim!("node/rehearsal.mjs"),
    shim!("python/mote_services.py"),
    shim!("python/mote_cloudevents.py"),
    shim!("python/mote_websocket.py"),
    shim!("node/mote_cloudevents.cjs"),
    shim!("node/mote_websocket.cjs"),
    shim!("python/compat/__init__.py"),
    shim!("python/compat/environment.py"),
    shim!("python/compat/tinyfaas.py"),
    shim!("python/compat/openfaas.py"),
    shim!("python/compat/nuclio.py"),
    shim!("python/compat/kubeless.py"),
    shim!("python/compat/openwhisk.py"),
    shim!("python/compat/fission.py"),
    shim!("python/compat/knative.py"),
    shim!("python/compat/cloudevents.py"),
    shim!("node/compat/http.mjs"),
    shim!("node/compat/tinyfaas.mjs"),
    shim!("node/compat/openfaas.mjs"),
    shim!("node/compat/nuclio.mjs"),
    shim!("node/compat/kubeless.mjs"),
    shim!("node/compat/openwhisk.mjs"),
    shim!("node/compat/fission.mjs"),
    shim!("node/compat/knative.mjs"),
    shim!("node/compat/cloudevents.mjs"),
    shim!("standalone/serve.py"),
];

/// The files of the shims with their paths, for images that contain them.
pub fn files() -> impl Iterator<Item = (&'static str, &'static str)> {
    FILES.into_iter()
}

/// The program that runs chains.
pub const CHAIN: &str = "mote-chain";

/// Puts the program that runs chains next to the shims, so that sandboxes show it. It is installed
/// next to `mote`. A copy that is already right stays unchanged. Blocks.
pub fn unpack_chain(data_dir: &Path) -> Result<(), String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let beside = own.with_file_name(CHAIN);
    let source = fs::metadata(&beside)
        .map_err(|error| format!("the program {} is missing: {error}", beside.display()))?;
    let folder = data_dir.join("shims/chain");
    let path = folder.join(CHAIN);
    let same = |held: &fs::Metadata| {
        let newer = held.modified().ok() >= source.modified().ok();
        held.len() == source.len() && newer
    };
    if fs::metadata(&path).is_ok_and(|held| same(&held)) {
        return Ok(());
    }
    let copy = || {
        fs::create_dir_all(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
        let fresh = path.with_extension("new");
        fs::copy(&beside, &fresh)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))?;
        fs::rename(&fresh, &path)
    };
    copy().map_err(|error: io::Error| format!("cannot copy {}: {error}", beside.display()))
}

/// Writes the shims of this build below `data_dir` and returns their folder. Files that are already
/// right stay unchanged, so that a start writes nothing to the disk.
pub fn unpack(data_dir: &Path) -> io::Result<PathBuf> {
    let root = data_dir.join("shims");
    for (name, text) in FILES {
        if name.starts_with("standalone/") {
            continue;
        }
        let path = root.join(name);
        if fs::read(&path).is_ok_and(|held| held == text.as_bytes()) {
            continue;
        }
        let folder = path.parent().unwrap_or(&root);
        fs::create_dir_all(folder)?;
        // The file is written under another name and renamed, so that a node that already runs
        // never reads a partial shim.
        let fresh = path.with_extension("new");
        fs::write(&fresh, text)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o644))?;
        fs::rename(&fresh, &path)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    }
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755))?;
    if root.join("chain").exists()
        && let Err(error) = unpack_chain(data_dir)
    {
        tracing::error!("chains cannot start: {error}");
    }
    Ok(root)
}
