//! The sizes of folders, and the places for deploys that add folders.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mote_store::disk_bytes;
use parking_lot::Mutex;

const SIZES_MAX: usize = 10_000;

/// Known sizes of folders, and the places for deploys.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    /// The size of a tree never changes. But another tree may later have the same path, because the
    /// path of packages depends on the request and not on the content. The identity is therefore
    /// compared as well.
    sizes: Mutex<HashMap<PathBuf, (Identity, u64)>>,
    pub(crate) turns: Mutex<HashMap<String, FilesPlace>>,
}

/// The inode number of a folder, and the time of its last change or move in seconds and
/// nanoseconds.
type Identity = (u64, i64, i64);

/// A place among the simultaneous deploys of a namespace.
pub type FilesPlace = Arc<tokio::sync::Mutex<()>>;

impl Disk {
    /// Bytes on disk of these folders and their contents. Blocks.
    pub(crate) fn sum(&self, trees: Vec<PathBuf>) -> u64 {
        trees.into_iter().map(|tree| self.size(tree)).sum()
    }

    fn size(&self, tree: PathBuf) -> u64 {
        let identity = |tree: &Path| -> Option<Identity> {
            let folder = tree.symlink_metadata().ok()?;
            Some((folder.ino(), folder.ctime(), folder.ctime_nsec()))
        };
        let Some(before) = identity(&tree) else { return 0 };
        let known = self.sizes.lock().get(&tree).copied();
        if let Some((_, bytes)) = known.filter(|(known, _)| *known == before) {
            return bytes;
        }
        let bytes = disk_bytes(&tree);
        if identity(&tree) == Some(before) {
            let mut sizes = self.sizes.lock();
            if sizes.len() >= SIZES_MAX {
                sizes.clear();
            }
            sizes.insert(tree, (before, bytes));
        }
        bytes
    }
}
