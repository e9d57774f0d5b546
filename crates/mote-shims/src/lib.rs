//! The shims: one worker for each language, with the adapters for other platforms. They are part of
//! the binaries, which write them to a folder before they start workers.
//!
//! It must not know functions, sandboxes or who starts a worker.

#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What Python gets before the path of its shim: -s and -E ignore a user's site folder and PYTHON*
/// variables, -S starts without `site`, -u turns output buffering off, and -B writes no bytecode,
/// because the code folder is read-only.
pub const PYTHON_OPTIONS: &str = "-sSEuB";
/// The path of Python's shim in the folder of the shims.
pub const PYTHON_SHIM: &str = "python/mote_shim.py";
/// The path of Node's shim there.
pub const NODE_SHIM: &str = "node/mote_shim.mjs";

/// Texts that the build has compressed together, see `build.rs`.
struct Archive {
    /// The path of each text in `shims/`, and its length.
    files: &'static [(&'static str, usize)],
    packed: &'static [u8],
}

// The constants SHIMS, GO and STANDALONE.
include!(concat!(env!("OUT_DIR"), "/archives.rs"));

/// Decompressed texts, which take memory until they are dropped.
#[derive(Debug)]
pub struct Files {
    text: String,
    files: &'static [(&'static str, usize)],
}

impl Files {
    fn of(archive: &Archive) -> Self {
        let bytes = miniz_oxide::inflate::decompress_to_vec(archive.packed)
            .expect("the build has compressed them");
        let text = String::from_utf8(bytes).expect("the build has read them as UTF-8");
        Self { text, files: archive.files }
    }

    /// Each text with its path in `shims/`.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let mut at = 0;
        self.files.iter().map(move |(path, length)| {
            at += length;
            (*path, &self.text[at - length..at])
        })
    }

    /// The text with this path, which must be among them.
    pub fn text(&self, path: &str) -> &str {
        let found = self.iter().find(|(own, _)| *own == path);
        found.map(|(_, text)| text).expect("a path that build.rs names")
    }
}

/// The shims of Python and Node.
pub fn files() -> Files {
    Files::of(&SHIMS)
}

/// The server for images that contain no `mote`.
pub fn standalone() -> Files {
    Files::of(&STANDALONE)
}

/// The worker of Go functions, and the modules that the node provides to them.
pub fn go() -> Files {
    Files::of(&GO)
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
    for (name, text) in files().iter() {
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
