//! The node's side: the folder in which a companion keeps its files.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Makes the folder if it is missing. No other user may read it. If the node runs as root, the
/// folder belongs to the user `uid`. Blocks.
pub fn make(folder: &Path, uid: u32) -> io::Result<()> {
    DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(folder, Some(uid), Some(uid))?;
    }
    Ok(())
}
