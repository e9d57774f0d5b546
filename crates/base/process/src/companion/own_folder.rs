//! The side of the node: the folder in which a program keeps its files.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Makes the folder of a program if it is missing. Nobody else may read it; if the node runs as root,
/// it belongs to the user `uid`. Blocks.
pub fn make(folder: &Path, uid: u32) -> io::Result<()> {
    DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(folder, Some(uid), Some(uid))?;
    }
    Ok(())
}
