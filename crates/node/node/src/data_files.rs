//! Reads and changes files in the data folders of functions, for the people who manage the node.
//!
//! A function may have made anything in its folder: links that lead out of it, pipes that block,
//! names that look like options, and it may replace all of that at any moment. So the kernel
//! resolves every path below the descriptor of the folder, and follows no link and crosses no mount
//! on the way (`openat2`). A file is examined after it has been opened, and changes go through the
//! descriptor of the folder that contains it. Each function here blocks.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use mote_api::files::{FileEntry, FileKind};
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, fchown, mkdirat, openat2,
    renameat, statat, unlinkat,
};

/// The user and group of a function's files in its folder.
const OWNER: u32 = 1000;
/// The maximum number of names that are read from one folder.
pub(crate) const ENTRIES_MAX: usize = 10_000;
/// A path has at most this many parts, and folders nested deeper than this are not removed. Each
/// level holds a descriptor.
const DEPTH_MAX: usize = 64;
/// The maximum number of bytes of a path.
const PATH_BYTES_MAX: usize = 4096;
const PIECE_BYTES: usize = 64 << 10;
/// The name of a file that is being written. Each write has another number.
const UNFINISHED: &str = ".mote-upload";

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
/// Opening a pipe must not wait for its other end.
const FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK);

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error(
        "a path has at most {DEPTH_MAX} parts with / between them, without .., each of at most 255 \
         bytes, and 4,096 bytes in all"
    )]
    Path,
    #[error("{0} is a folder")]
    IsFolder(String),
    #[error("{0} is not a folder")]
    NotFolder(String),
    #[error("{0} is neither a file nor a folder; links, pipes and sockets are not opened")]
    Special(String),
    #[error("there is no {0}")]
    Missing(String),
    #[error("the folder {0} is not empty")]
    NotEmpty(String),
    #[error("folders are nested deeper than {DEPTH_MAX} levels")]
    Deep,
    #[error("the data folder is full")]
    Full,
    #[error("the upload ended early: {0}")]
    Upload(#[source] io::Error),
    #[error("{0}: {1}")]
    Disk(String, #[source] io::Error),
}

/// A path below a data folder, without `.` and `..`. Empty for the folder itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Below(PathBuf);

impl Below {
    /// Reads a path. A leading `/` and the leading folder `/data`, under which the function knows
    /// the folder, are not removed: paths begin at the folder.
    pub(crate) fn new(text: &str) -> Result<Self, FileError> {
        let mut path = PathBuf::new();
        for part in Path::new(text.trim_start_matches('/')).components() {
            match part {
                Component::Normal(name) => path.push(name),
                Component::CurDir => {}
                _ => return Err(FileError::Path),
            }
        }
        let parts = path.components().count();
        match text.len() > PATH_BYTES_MAX || parts > DEPTH_MAX || text.contains('\0') {
            true => Err(FileError::Path),
            false => Ok(Self(path)),
        }
    }

    fn shown(&self) -> String {
        match self.0.as_os_str().is_empty() {
            true => "the data folder".to_owned(),
            false => self.0.to_string_lossy().escape_debug().to_string(),
        }
    }

    /// The folder that contains the last part, and that part.
    fn split(&self) -> Result<(&Path, &Path), FileError> {
        let name = self.0.file_name().ok_or(FileError::Path)?;
        Ok((self.0.parent().unwrap_or(Path::new("")), Path::new(name)))
    }

    fn failed(&self, error: rustix::io::Errno) -> FileError {
        use rustix::io::Errno;
        match error {
            Errno::NOENT => FileError::Missing(self.shown()),
            Errno::NOTDIR => FileError::NotFolder(self.shown()),
            Errno::ISDIR => FileError::IsFolder(self.shown()),
            Errno::NOTEMPTY => FileError::NotEmpty(self.shown()),
            Errno::NOSPC | Errno::DQUOT => FileError::Full,
            // The kernel has met a link, or a socket or device that cannot be opened.
            Errno::LOOP | Errno::XDEV | Errno::NXIO | Errno::ACCESS | Errno::NODEV => {
                FileError::Special(self.shown())
            }
            Errno::NAMETOOLONG => FileError::Path,
            other => FileError::Disk(self.shown(), other.into()),
        }
    }
}

fn open(
    root: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, rustix::io::Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    // The kernel asks for another attempt if a rename elsewhere made it unsure.
    for _ in 0..8 {
        match openat2(root, path, flags | FLAGS, mode, RESOLVE) {
            Err(rustix::io::Errno::AGAIN) => {}
            opened => return opened,
        }
    }
    Err(rustix::io::Errno::AGAIN)
}

fn open_folder(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, rustix::io::Errno> {
    open(root, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

/// The entries of a folder, sorted by name, and whether there are more than [`ENTRIES_MAX`]. If
/// `path` is a file, the file itself is the only entry.
pub(crate) fn list(
    root: BorrowedFd<'_>,
    path: &Below,
) -> Result<(Vec<FileEntry>, bool), FileError> {
    let folder = match open_folder(root, &path.0) {
        // It is a file, or a link, which can only be shown.
        Err(rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {
            let (parent, name) = path.split()?;
            let parent = open_folder(root, parent).map_err(|error| path.failed(error))?;
            let own = entry(parent.as_fd(), name.as_os_str().as_bytes());
            return match own {
                Some(own) => Ok((vec![own], false)),
                None => Err(FileError::Missing(path.shown())),
            };
        }
        opened => opened.map_err(|error| path.failed(error))?,
    };
    let mut entries = Vec::new();
    let mut has_more = false;
    for found in Dir::read_from(&folder).map_err(|error| path.failed(error))? {
        let found = found.map_err(|error| path.failed(error))?;
        let name = found.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        if entries.len() == ENTRIES_MAX {
            has_more = true;
            break;
        }
        // A file that has just been removed is left out.
        entries.extend(entry(folder.as_fd(), name));
    }
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok((entries, has_more))
}

fn entry(folder: BorrowedFd<'_>, name: &[u8]) -> Option<FileEntry> {
    let stat = statat(folder, std::ffi::OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Folder,
        FileType::Symlink => FileKind::Link,
        _ => FileKind::Other,
    };
    let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
    Some(FileEntry {
        name: String::from_utf8_lossy(name).into_owned(),
        kind,
        bytes: u64::try_from(stat.st_size).unwrap_or(0),
        changed_unix_ms: seconds.saturating_mul(1_000),
    })
}

/// Opens a file for reading, and returns its size.
pub(crate) fn read(root: BorrowedFd<'_>, path: &Below) -> Result<(File, u64), FileError> {
    let opened = open(root, &path.0, OFlags::RDONLY | OFlags::NOCTTY, Mode::empty());
    let file = File::from(opened.map_err(|error| path.failed(error))?);
    let meta = file.metadata().map_err(|error| FileError::Disk(path.shown(), error))?;
    match (meta.is_file(), meta.is_dir()) {
        (true, _) => Ok((file, meta.len())),
        (_, true) => Err(FileError::IsFolder(path.shown())),
        _ => Err(FileError::Special(path.shown())),
    }
}

/// Writes a file and makes the folders above it. The file appears under its name only when it is
/// complete and on the disk. A file or link with this name is replaced.
pub(crate) fn write(
    root: BorrowedFd<'_>,
    path: &Below,
    number: u64,
    content: &mut dyn Read,
) -> Result<u64, FileError> {
    let (parent, name) = path.split()?;
    let parent = make_folders(root, parent).map_err(|error| path.failed(error))?;
    let unfinished = format!("{UNFINISHED}-{}-{number}", std::process::id());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = open(parent.as_fd(), Path::new(&unfinished), flags, Mode::from_raw_mode(0o644));
    let mut file = File::from(file.map_err(|error| path.failed(error))?);
    // The function owns even a part of the file, which it can then remove if the node is killed.
    let owned = own(file.as_fd()).map_err(|error| path.failed(error));
    let written = owned.and_then(|()| fill(&mut file, path, content)).and_then(|bytes| {
        rustix::fs::fsync(&file).map_err(|error| path.failed(error))?;
        renameat(&parent, &*unfinished, &parent, name).map_err(|error| path.failed(error))?;
        rustix::fs::fsync(&parent).map_err(|error| path.failed(error))?;
        Ok(bytes)
    });
    written.inspect_err(|_| {
        // The name may be gone, because the function can remove it.
        let _ = unlinkat(&parent, &*unfinished, AtFlags::empty());
    })
}

fn fill(file: &mut File, path: &Below, content: &mut dyn Read) -> Result<u64, FileError> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut bytes = 0;
    loop {
        let got = match content.read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            got => got.map_err(FileError::Upload)?,
        };
        if got == 0 {
            return Ok(bytes);
        }
        file.write_all(&piece[..got]).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FileError::Full,
            _ => FileError::Disk(path.shown(), error),
        })?;
        bytes += got as u64;
    }
}

/// Opens a folder, and makes it and those above it if they are missing.
fn make_folders(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, rustix::io::Errno> {
    let mut folder = open_folder(root, Path::new(""))?;
    for part in path.components() {
        let part = Path::new(part.as_os_str());
        folder = match open_folder(folder.as_fd(), part) {
            Err(rustix::io::Errno::NOENT) => {
                match mkdirat(&folder, part, Mode::from_raw_mode(0o755)) {
                    Err(rustix::io::Errno::EXIST) => {}
                    made => made?,
                }
                let made = open_folder(folder.as_fd(), part)?;
                own(made.as_fd())?;
                made
            }
            opened => opened?,
        };
    }
    Ok(folder)
}

/// Gives a new file or folder to the function.
fn own(file: BorrowedFd<'_>) -> Result<(), rustix::io::Errno> {
    fchown(file, Some(Uid::from_raw(OWNER)), Some(Gid::from_raw(OWNER)))
}

/// Removes a file, a link or another single name; with `everything` also a folder with its content.
pub(crate) fn remove(
    root: BorrowedFd<'_>,
    path: &Below,
    everything: bool,
) -> Result<(), FileError> {
    let (parent, name) = path.split()?;
    let parent = open_folder(root, parent).map_err(|error| path.failed(error))?;
    match unlinkat(&parent, name, AtFlags::empty()) {
        // The kernel answers differently for folders, depending on the file system.
        Err(rustix::io::Errno::ISDIR | rustix::io::Errno::PERM) => {}
        removed => return removed.map_err(|error| path.failed(error)),
    }
    if everything {
        empty(parent.as_fd(), name, 0)?;
    }
    unlinkat(&parent, name, AtFlags::REMOVEDIR).map_err(|error| path.failed(error))
}

/// Removes everything in a folder.
fn empty(parent: BorrowedFd<'_>, name: &Path, depth: usize) -> Result<(), FileError> {
    let here = || Below(name.to_owned());
    if depth == DEPTH_MAX {
        return Err(FileError::Deep);
    }
    let folder = open_folder(parent, name).map_err(|error| here().failed(error))?;
    loop {
        // The names are read in parts, because removals and reads of one folder do not mix.
        let mut names: Vec<OsString> = Vec::new();
        let found = Dir::read_from(&folder).map_err(|error| here().failed(error))?;
        for found in found.take(ENTRIES_MAX) {
            let found = found.map_err(|error| here().failed(error))?;
            let bytes = found.file_name().to_bytes();
            if !matches!(bytes, b"." | b"..") {
                names.push(OsString::from_vec(bytes.to_vec()));
            }
        }
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            let inside = Path::new(&name);
            match unlinkat(&folder, inside, AtFlags::empty()) {
                Err(rustix::io::Errno::ISDIR | rustix::io::Errno::PERM) => {
                    empty(folder.as_fd(), inside, depth + 1)?;
                    unlinkat(&folder, inside, AtFlags::REMOVEDIR)
                }
                Err(rustix::io::Errno::NOENT) => Ok(()),
                removed => removed,
            }
            .map_err(|error| Below(inside.to_owned()).failed(error))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn below(text: &str) -> Below {
        Below::new(text).expect("a path")
    }

    fn text(result: Result<(File, u64), FileError>) -> String {
        match result {
            Ok((mut file, _)) => {
                let mut text = String::new();
                file.read_to_string(&mut text).expect("UTF-8");
                text
            }
            Err(error) => format!("refused: {error}"),
        }
    }

    /// A folder of a function next to a file that must stay secret.
    fn planted() -> (tempfile::TempDir, OwnedFd) {
        let dir = tempfile::tempdir().expect("a folder");
        let data = dir.path().join("data");
        std::fs::create_dir_all(data.join("sub")).expect("a folder");
        std::fs::write(dir.path().join("secret"), "secret").expect("a file");
        std::fs::write(data.join("sub/file"), "inside").expect("a file");
        symlink("../secret", data.join("link")).expect("a link");
        symlink("..", data.join("up")).expect("a link");
        symlink("sub", data.join("within")).expect("a link");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            data.join("pipe"),
            FileType::Fifo,
            Mode::from_raw_mode(0o644),
            0,
        )
        .expect("a pipe");
        let root = File::open(&data).expect("a folder").into();
        (dir, root)
    }

    #[test]
    fn nothing_outside_is_read() {
        let (dir, root) = planted();
        let root = root.as_fd();
        assert_eq!(text(read(root, &below("sub/file"))), "inside");
        assert_eq!(text(read(root, &below("/sub/./file"))), "inside");
        for path in ["link", "up/secret", "within/file", "pipe"] {
            let found = text(read(root, &below(path)));
            assert!(found.contains("links, pipes and sockets are not opened"), "{path}: {found}");
        }
        assert!(text(read(root, &below("sub"))).contains("sub is a folder"));
        assert!(text(read(root, &below("none"))).contains("there is no none"));
        for path in ["../secret", "sub/../../secret", "a\0b", &"a/".repeat(3_000), &"a/".repeat(65)]
        {
            assert!(Below::new(path).is_err(), "{path:?}");
        }
        let absolute = dir.path().join("secret");
        let found = text(read(root, &below(absolute.to_str().expect("UTF-8"))));
        assert!(found.contains("there is no"), "{found}");
        for path in ["up", "within"] {
            let listed = list(root, &below(path)).expect("the link itself").0;
            assert_eq!((listed.len(), listed[0].kind), (1, FileKind::Link), "{path}");
            assert!(list(root, &below(&format!("{path}/file"))).is_err(), "{path}");
        }
        let (listed, has_more) = list(root, &below("")).expect("a folder");
        let names: Vec<_> = listed.iter().map(|entry| (&*entry.name, entry.kind)).collect();
        let expected = [
            ("link", FileKind::Link),
            ("pipe", FileKind::Other),
            ("sub", FileKind::Folder),
            ("up", FileKind::Link),
            ("within", FileKind::Link),
        ];
        assert_eq!((names.as_slice(), has_more), (&expected[..], false));
    }

    #[test]
    fn nothing_outside_is_written_or_removed() {
        let (dir, root) = planted();
        let root = root.as_fd();
        let secret = || std::fs::read_to_string(dir.path().join("secret")).expect("it is there");
        for path in ["up/new", "up/secret", "within/new", "pipe/new"] {
            assert!(write(root, &below(path), 1, &mut &b"x"[..]).is_err(), "{path}");
            assert!(remove(root, &below(path), true).is_err(), "{path}");
        }
        // A link is removed, and not what it names.
        remove(root, &below("up"), true).expect("the link");
        remove(root, &below("within"), true).expect("the link");
        assert_eq!(secret(), "secret");
        assert!(dir.path().join("data/sub/file").exists());
        let whole = remove(root, &below("sub"), false);
        assert!(matches!(whole, Err(FileError::NotEmpty(_))), "{whole:?}");
        symlink("../../secret", dir.path().join("data/sub/link")).expect("a link");
        remove(root, &below("sub"), true).expect("a folder");
        assert_eq!(secret(), "secret");
        assert!(remove(root, &below(""), true).is_err(), "the folder itself stays");
    }

    #[test]
    fn files_are_written_as_a_whole() {
        let (dir, root) = planted();
        let root = root.as_fd();
        if !rustix::process::geteuid().is_root() {
            return println!("SKIPPED: files are given to another user");
        }
        assert_eq!(write(root, &below("a/b/c"), 1, &mut &b"text"[..]).expect("written"), 4);
        assert_eq!(text(read(root, &below("a/b/c"))), "text");
        // A link with this name is replaced, and not followed.
        write(root, &below("link"), 2, &mut &b"mine"[..]).expect("written");
        assert_eq!(text(read(root, &below("link"))), "mine");
        assert_eq!(std::fs::read_to_string(dir.path().join("secret")).expect("there"), "secret");
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::ConnectionReset.into())
            }
        }
        let failed = write(root, &below("a/b/c"), 3, &mut Broken);
        assert!(matches!(failed, Err(FileError::Upload(_))), "{failed:?}");
        assert_eq!(text(read(root, &below("a/b/c"))), "text");
        assert_eq!(list(root, &below("a/b")).expect("a folder").0.len(), 1, "nothing is left");
        let meta = std::fs::metadata(dir.path().join("data/a/b/c")).expect("there");
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&meta), OWNER);
    }

    #[test]
    fn deep_folders_end_the_removal() {
        let dir = tempfile::tempdir().expect("a folder");
        let deep = (0..DEPTH_MAX + 2).fold(PathBuf::from("x"), |path, _| path.join("d"));
        std::fs::create_dir_all(dir.path().join(deep)).expect("folders");
        let root: OwnedFd = File::open(dir.path()).expect("a folder").into();
        let removed = remove(root.as_fd(), &below("x"), true);
        assert!(matches!(removed, Err(FileError::Deep)), "{removed:?}");
    }
}
