//! The sizes of folders, and the places of deploys that add some.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mote_store::disk_bytes;
use parking_lot::Mutex;

const SIZES_MAX: usize = 10_000;

/// What is known about the disk.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    /// The size of a tree does not change, but another one may get its path, because packages are
    /// stored under what was asked for.
    sizes: Mutex<HashMap<PathBuf, (Identity, u64)>>,
    pub(crate) turns: Mutex<HashMap<String, FilesPlace>>,
}

/// The number of a folder, and when it was last changed or moved, in seconds and nanoseconds.
type Identity = (u64, i64, i64);

/// A place among the deploys of a namespace that are under way.
pub type FilesPlace = Arc<tokio::sync::Mutex<()>>;

impl Disk {
    /// Bytes on disk of these folders and what is in them. Blocks.
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
