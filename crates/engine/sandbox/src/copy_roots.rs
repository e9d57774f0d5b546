//! The roots of the copies of a seed.
//!
//! A copy shares the namespaces of its seed, but must not see the files of another copy. The seed
//! has no rights with which it could change a mount. So a root for each copy is composed before the
//! seed starts: the same mounts, with a `/tmp` of its own. Pid 1 makes one of these roots the root
//! of the seed before each copy (`seed_init`).
//!
//! The rules of landlock must name each `/tmp` before the seed starts, which limits the number of
//! copies. A seed that has made all of them is replaced.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::root;
use crate::step::{Failure, StepName};
use crate::sys;

/// How many copies a seed makes.
pub(crate) const COPIES_MAX: u8 = 32;
/// The folder with the roots. It is visible only in the sandbox of a seed.
pub(crate) const DIR: &std::ffi::CStr = c"/.copies";

fn root_of(number: u8) -> PathBuf {
    Path::new("/.copies").join(number.to_string())
}

fn tmp_of(number: u8) -> PathBuf {
    root_of(number).join("tmp")
}

/// The folders on which the roots are mounted.
pub(crate) fn folders() -> impl Iterator<Item = PathBuf> {
    (0..COPIES_MAX).map(root_of)
}

/// The folders to which the copies may write.
pub(crate) fn tmps() -> impl Iterator<Item = PathBuf> {
    (0..COPIES_MAX).map(tmp_of)
}

/// The place of `folder` in each copy's root.
pub(crate) fn in_each(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let inside = folder.strip_prefix("/").unwrap_or(folder).to_owned();
    folders().map(move |root| root.join(&inside))
}

/// Mounts the roots. The root of this process is already that of the sandbox.
pub(crate) fn compose(tmp_bytes: u64) -> Result<(), Failure> {
    // Every tree is copied before the first one is mounted, so none contains another.
    let trees = folders()
        .map(|folder| sys::open_tree(c"/").map(|tree| (folder, tree)))
        .collect::<std::io::Result<Vec<_>>>()
        .step("copy the root")?;
    for ((folder, tree), tmp) in trees.into_iter().zip(tmps()) {
        let shown = folder.display();
        mount(&tree, &folder).step(format_args!("mount {shown}"))?;
        root::new_tmp(tmp_bytes, 0, c"1777")
            .and_then(|new| mount(&new, &tmp))
            .step(format_args!("mount the /tmp of {shown}"))?;
    }
    Ok(())
}

fn mount(tree: &impl AsFd, at: &Path) -> std::io::Result<()> {
    sys::move_mount(tree.as_fd(), None, &sys::cstring(at.as_os_str().as_encoded_bytes())?)
}
