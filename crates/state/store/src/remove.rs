//! Removes whole trees of any depth. Hostile code and installers can nest any number of folders.
//!
//! The standard library keeps one descriptor per level open, and a path of more than 4,096 bytes
//! cannot be named. So this module keeps only one folder open at a time. It descends by name and
//! ascends by `..`, and checks that `..` is the folder through which it came. The heap holds one
//! name per level.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Opens only a folder, and does not follow links.
const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Device and inode, which distinguish folders while they are open.
type Identity = (u64, u64);

/// Removes a tree or file without following links. A missing tree is not an error. Uses at most
/// four descriptors, and memory for one name per level of folders. After an error the rest of the
/// tree remains, and the call can be repeated. Blocks.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let removed = match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => empty(open(CWD, path).map_err(io::Error::from)?)
            .and_then(|()| std::fs::remove_dir(path)),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes everything below `top`.
fn empty(top: OwnedFd) -> io::Result<()> {
    let mut current = top;
    // The folders above the current one, each with the name that leads down from it.
    let mut above: Vec<(Identity, CString)> = Vec::new();
    loop {
        if let Some(name) = empty_of_files(current.as_fd())? {
            let below = open(current.as_fd(), name.as_c_str())?;
            above.push((identity(current.as_fd())?, name));
            current = below;
            continue;
        }
        let Some((parent, name)) = above.pop() else { return Ok(()) };
        let up = rustix::fs::openat(&current, c"..", FOLDER, Mode::empty())?;
        if identity(up.as_fd())? != parent {
            return Err(io::Error::other("a folder was moved while it was removed"));
        }
        current = up;
        rustix::fs::unlinkat(&current, &name, AtFlags::REMOVEDIR)?;
    }
}

/// Removes the files and empty folders of one folder. Returns the name of the first folder that is
/// not empty, if there is one.
fn empty_of_files(folder: BorrowedFd<'_>) -> io::Result<Option<CString>> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let is_folder = match entry.file_type() {
            FileType::Unknown => is_folder(folder, name)?,
            known => known == FileType::Directory,
        };
        let flags = if is_folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match rustix::fs::unlinkat(folder, name, flags) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) if is_folder => return Ok(Some(name.to_owned())),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn is_folder(folder: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Opens a folder below `at`. If an installer has removed the necessary mode bits from a folder of
/// this user, restores them.
fn open(at: BorrowedFd<'_>, name: impl rustix::path::Arg + Copy) -> rustix::io::Result<OwnedFd> {
    let opened = rustix::fs::openat(at, name, FOLDER, Mode::empty());
    let folder = match opened {
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(at, name, Mode::RWXU, AtFlags::empty())?;
            rustix::fs::openat(at, name, FOLDER, Mode::empty())?
        }
        other => other?,
    };
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&folder)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        // This fails for another user's folder. The removal itself then reports the error.
        let _ = rustix::fs::fchmod(&folder, mode | Mode::RWXU);
    }
    Ok(folder)
}

fn identity(folder: BorrowedFd<'_>) -> io::Result<Identity> {
    let stat = rustix::fs::fstat(folder)?;
    Ok((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, getrlimit, setrlimit};

    /// Makes a chain of folders with a file and a link in each. The chain is made step by step,
    /// because no path can name it.
    fn chain(top: &Path, levels: usize) {
        let mut folder = open(CWD, top).unwrap();
        for _ in 0..levels {
            rustix::fs::mkdirat(&folder, c"folder", Mode::from_raw_mode(0o755)).unwrap();
            rustix::fs::symlinkat(c"/", &folder, c"link").unwrap();
            let flags = OFlags::CREATE | OFlags::WRONLY;
            rustix::fs::openat(&folder, c"file", flags, Mode::RUSR).unwrap();
            folder = open(folder.as_fd(), c"folder").unwrap();
        }
    }

    #[test]
    fn trees_deeper_than_descriptors_and_paths_reach_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        // 1,000 levels do not fit into a path of 4,096 bytes, and are more than the permitted
        // number of descriptors.
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = Some(limit.maximum.unwrap_or(512).min(512));
        setrlimit(Resource::Nofile, limit).unwrap();
        chain(&tree, 1_000);
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        remove_tree(&tree).unwrap();
    }

    #[test]
    fn wide_trees_closed_folders_and_links_are_removed_and_targets_stay() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        let kept = dir.path().join("kept");
        std::fs::create_dir(&kept).unwrap();
        std::fs::write(kept.join("file"), "x").unwrap();
        for number in 0..300 {
            let folder = tree.join(format!("a/{number}/b"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("file"), "x").unwrap();
        }
        symlink(&kept, tree.join("a/link")).unwrap();
        let closed = std::fs::Permissions::from_mode(0o000);
        std::fs::set_permissions(tree.join("a/7"), closed).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists() && kept.join("file").exists());
        symlink(&kept, &tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists() && kept.join("file").exists());
    }
}
