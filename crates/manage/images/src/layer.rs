//! Unpacks one layer, which is not trusted, into a folder that overlayfs can use.
//!
//! Everything is written relative to open folders and without following links, so a layer cannot
//! reach anything outside its folder. Devices, pipes, owners, extended attributes and set-id bits
//! are left out, because containers cannot need them.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mote_store::ArchiveError;
use mote_store::tar::{Entry, EntryKind, TarReader};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use crate::compression::Unpacked;
use crate::error::ImageError;

/// Longest name of a file in Linux.
const NAME_BYTES_MAX: usize = 255;
/// Longest path, and longest target of a symbolic link, in Linux.
const PATH_BYTES_MAX: usize = 4095;
/// The deepest path. Each folder in a path costs one system call per entry.
const DEPTH_MAX: usize = 256;
/// The approximate disk space that a folder or a link needs.
const NODE_BYTES: u64 = 4096;
/// The disk space that stays free for the node's databases.
pub(crate) const RESERVE_BYTES: u64 = 128 << 20;
/// The free room is checked each time that this many bytes have been written.
const CHECK_EVERY_BYTES: u64 = 16 << 20;
const BUFFER_BYTES: usize = 128 << 10;

/// What all layers of one image together may still use.
pub(crate) struct Budget {
    pub(crate) bytes: AtomicU64,
    pub(crate) entries: AtomicU64,
}

impl Budget {
    pub(crate) fn take(&self, bytes: u64, entries: u64) -> bool {
        let take = |left: &AtomicU64, count: u64| {
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(count))
                .is_ok()
        };
        take(&self.bytes, bytes) && take(&self.entries, entries)
    }
}

/// What a layer contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    /// The digest of the unpacked tar.
    pub(crate) diff_id: String,
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    /// Devices, pipes, and markers of other file systems that were left out.
    pub(crate) skipped: u64,
}

/// Unpacks into the empty folder `root`, and syncs its file system. `aside` is another empty folder
/// on the same file system. It receives nodes that later entries replace. The caller removes both
/// on an error. Blocks.
pub(crate) fn unpack(
    input: &mut dyn Read,
    root: &Path,
    aside: &Path,
    budget: &Budget,
    is_cancelled: &AtomicBool,
) -> Result<Contents, ArchiveError> {
    let input = Unpacked::new(input, is_cancelled).map_err(ArchiveError::Io)?;
    let mut layer = Layer {
        tar: TarReader::of_layer(input),
        root: open_path(root).map_err(ArchiveError::Io)?,
        aside: open_path(aside).map_err(ArchiveError::Io)?,
        replaced: 0,
        parent: None,
        budget,
        bytes: 0,
        entries: 0,
        skipped: 0,
        unchecked: CHECK_EVERY_BYTES,
    };
    rustix::fs::fchmod(&layer.root, Mode::from_raw_mode(0o755)).map_err(failed)?;
    while let Some(entry) = layer.tar.next_entry()? {
        layer.add(&entry)?;
        layer.tar.skip_content()?;
    }
    rustix::fs::syncfs(&layer.root).map_err(failed)?;
    Ok(Contents {
        diff_id: layer.tar.input().digest(),
        bytes: layer.bytes,
        entries: layer.entries,
        skipped: layer.skipped,
    })
}

struct Layer<'a> {
    tar: TarReader<Unpacked<'a>>,
    root: OwnedFd,
    aside: OwnedFd,
    replaced: u64,
    /// The folder of the previous entry. Entries of one folder follow each other.
    parent: Option<(Vec<u8>, OwnedFd)>,
    budget: &'a Budget,
    bytes: u64,
    entries: u64,
    skipped: u64,
    /// Bytes written since the free room was last checked.
    unchecked: u64,
}

/// What there is at a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum There {
    Nothing,
    Folder,
    Whiteout,
    Other,
}

impl Layer<'_> {
    fn add(&mut self, entry: &Entry) -> Result<(), ArchiveError> {
        let path = normal(&entry.path).map_err(|reason| entry.fault(reason))?;
        let Some(name) = path.rsplit(|byte| *byte == b'/').next().filter(|name| !name.is_empty())
        else {
            return self.set_root(entry);
        };
        let folder = &path[..path.len() - name.len()];
        let folder = folder.strip_suffix(b"/").unwrap_or(folder);
        if path.split(|byte| *byte == b'/').any(|part| part.starts_with(b".wh..wh."))
            && name != b".wh..wh..opq"
        {
            self.skipped += 1; // the bookkeeping of aufs
            return Ok(());
        }
        if folder.split(|byte| *byte == b'/').any(|part| part.starts_with(b".wh.")) {
            return Err(entry.fault("path leads through a deleted name"));
        }
        if name == b".wh..wh..opq" {
            let folder = self.folder(folder, entry)?;
            return make_opaque(&folder).map_err(|error| refused(entry, error));
        }
        if let Some(hidden) = name.strip_prefix(b".wh.") {
            if matches!(hidden, b"" | b"." | b"..") {
                return Err(entry.fault("deletes nothing that has a name"));
            }
            let parent = self.folder(folder, entry)?;
            let deleted = self.delete(&parent, &c_name(hidden), entry);
            self.parent = Some((folder.to_vec(), parent));
            return deleted;
        }
        if entry.kind == EntryKind::Device {
            self.skipped += 1;
            return Ok(());
        }
        let parent = self.folder(folder, entry)?;
        let added = self.add_node(&parent, &c_name(name), &path, entry);
        // A folder that was moved aside may have been an ancestor of the kept folder, but it is
        // never the parent of this entry.
        self.parent = Some((folder.to_vec(), parent));
        added
    }

    fn set_root(&mut self, entry: &Entry) -> Result<(), ArchiveError> {
        if entry.kind != EntryKind::Dir {
            return Err(entry.fault("only a folder can be the root"));
        }
        rustix::fs::fchmod(&self.root, folder_mode(entry.mode)).map_err(failed)
    }

    fn add_node(
        &mut self,
        parent: &OwnedFd,
        name: &CString,
        path: &[u8],
        entry: &Entry,
    ) -> Result<(), ArchiveError> {
        match entry.kind {
            EntryKind::Dir => {
                let folder = self.make_folder(parent, name, entry)?;
                rustix::fs::fchmod(&folder, folder_mode(entry.mode)).map_err(failed)
            }
            EntryKind::File => self.add_file(parent, name, entry),
            EntryKind::Symlink => {
                if entry.link.is_empty() || entry.link.contains(&0) {
                    return Err(entry.fault("link without a target"));
                }
                if entry.link.len() > PATH_BYTES_MAX {
                    return Err(entry.fault("the target of the link is longer than 4,095 bytes"));
                }
                self.charge(NODE_BYTES)?;
                self.clear(parent, name).map_err(|error| refused(entry, error))?;
                rustix::fs::symlinkat(&*entry.link, parent, name)
                    .map_err(|error| refused(entry, error))
            }
            EntryKind::Hardlink => self.add_hardlink(parent, name, path, entry),
            EntryKind::Device => Ok(()),
            EntryKind::Unknown(kind) => {
                Err(entry.fault(format!("entries of kind {kind:#04x} are not supported")))
            }
        }
    }

    fn add_file(
        &mut self,
        parent: &OwnedFd,
        name: &CString,
        entry: &Entry,
    ) -> Result<(), ArchiveError> {
        let size = entry.sparse.as_ref().map_or(entry.size, |sparse| sparse.size);
        self.charge(size)?;
        self.clear(parent, name).map_err(|error| refused(entry, error))?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o600))
            .map_err(|error| refused(entry, error))?;
        let mut file = File::from(file);
        match &entry.sparse {
            None => self.copy(&mut file, entry.size)?,
            Some(sparse) => {
                for (at, length) in &sparse.pieces {
                    file.seek(SeekFrom::Start(*at)).map_err(ArchiveError::Io)?;
                    self.copy(&mut file, *length)?;
                }
                file.set_len(sparse.size).map_err(ArchiveError::Io)?;
            }
        }
        // Set-id bits would have no effect in a sandbox, and would be dangerous outside it.
        let mode = Mode::from_raw_mode(entry.mode & 0o777 | 0o600);
        rustix::fs::fchmod(&file, mode).map_err(failed)?;
        // Python compares these times with the times in its compiled files.
        let (seconds, nanoseconds) = entry.modified;
        let time = Timespec {
            tv_sec: i64::try_from(seconds).unwrap_or(0).min(u32::MAX.into()),
            tv_nsec: nanoseconds.into(),
        };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::futimens(&file, &times).map_err(failed)
    }

    fn copy(&mut self, file: &mut File, length: u64) -> Result<(), ArchiveError> {
        let mut buffer = vec![0; BUFFER_BYTES.min(usize::try_from(length).unwrap_or(BUFFER_BYTES))];
        let mut left = length;
        while left > 0 {
            let want = buffer.len().min(usize::try_from(left).unwrap_or(BUFFER_BYTES));
            let count = self.tar.read_content(&mut buffer[..want])?;
            if count == 0 {
                return Err(ArchiveError::Cut { index: 0 });
            }
            file.write_all(&buffer[..count]).map_err(ArchiveError::Io)?;
            left -= count as u64;
        }
        Ok(())
    }

    /// Makes a second name for a file that came earlier in the layer.
    fn add_hardlink(
        &mut self,
        parent: &OwnedFd,
        name: &CString,
        path: &[u8],
        entry: &Entry,
    ) -> Result<(), ArchiveError> {
        let missing = || entry.fault("hard link to a file that is not earlier in the layer");
        let target = normal(&entry.link).map_err(|reason| entry.fault(reason))?;
        if target.is_empty() {
            return Err(missing());
        }
        self.charge(NODE_BYTES)?;
        if target == path {
            return Ok(()); // itself
        }
        let (folder, base) = split(&target);
        let from = match self.walk(folder) {
            Ok(Some(folder)) => folder,
            Ok(None) => return Err(missing()),
            Err(error) => return Err(refused(entry, error)),
        };
        let base = c_name(base);
        match there(&from, &base).map_err(|error| refused(entry, error))? {
            There::Other => {}
            There::Folder => return Err(entry.fault("hard link to a folder")),
            There::Nothing | There::Whiteout => return Err(missing()),
        }
        self.clear(parent, name).map_err(|error| refused(entry, error))?;
        rustix::fs::linkat(&from, &base, parent, name, AtFlags::empty())
            .map_err(|error| refused(entry, error))
    }

    /// Records that a name from the layers below no longer exists.
    fn delete(
        &mut self,
        parent: &OwnedFd,
        name: &CString,
        entry: &Entry,
    ) -> Result<(), ArchiveError> {
        match there(parent, name).map_err(|error| refused(entry, error))? {
            There::Nothing => {
                self.charge(NODE_BYTES)?;
                rustix::fs::mknodat(parent, name, FileType::CharacterDevice, Mode::empty(), 0)
                    .map_err(|error| refused(entry, error))
            }
            // This layer has made the name again. If it is a folder, it must not be merged with the
            // old folder.
            There::Folder => {
                let folder = open_folder(parent, name).map_err(|error| refused(entry, error))?;
                make_opaque(&folder).map_err(|error| refused(entry, error))
            }
            There::Whiteout | There::Other => Ok(()),
        }
    }

    /// Makes a folder, or returns the existing one.
    fn make_folder(
        &mut self,
        parent: &OwnedFd,
        name: &CString,
        entry: &Entry,
    ) -> Result<OwnedFd, ArchiveError> {
        let found = there(parent, name).map_err(|error| refused(entry, error))?;
        if found == There::Folder {
            return open_folder(parent, name).map_err(|error| refused(entry, error));
        }
        self.charge(NODE_BYTES)?;
        let made = || -> Result<OwnedFd, Errno> {
            if found != There::Nothing {
                rustix::fs::unlinkat(parent, name, AtFlags::empty())?;
            }
            rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
            let folder = open_folder(parent, name)?;
            rustix::fs::fchmod(&folder, Mode::from_raw_mode(0o755))?;
            if found == There::Whiteout {
                make_opaque(&folder)?;
            }
            Ok(folder)
        };
        made().map_err(|error| refused(entry, error))
    }

    /// Makes room for a new node by moving the old one aside. A folder can be large, so it is
    /// removed later, together with the folder `aside`.
    fn clear(&mut self, parent: &OwnedFd, name: &CString) -> Result<(), Errno> {
        match there(parent, name)? {
            There::Nothing => Ok(()),
            There::Folder => {
                self.replaced += 1;
                self.parent = None;
                rustix::fs::renameat(parent, name, &self.aside, self.replaced.to_string())
            }
            There::Whiteout | There::Other => rustix::fs::unlinkat(parent, name, AtFlags::empty()),
        }
    }

    /// Returns the folder at a path, and makes the folders on the way that no entry has made.
    fn folder(&mut self, path: &[u8], entry: &Entry) -> Result<OwnedFd, ArchiveError> {
        if let Some((_, folder)) = self.parent.take_if(|(known, _)| known == path) {
            return Ok(folder);
        }
        match self.walk(path) {
            Ok(Some(folder)) => return Ok(folder),
            Ok(None) => {}
            Err(error) => return Err(refused(entry, error)),
        }
        let mut folder = self.root.try_clone().map_err(ArchiveError::Io)?;
        for part in parts(path) {
            let name = c_name(part);
            if there(&folder, &name).map_err(|error| refused(entry, error))? == There::Other {
                return Err(entry.fault(THROUGH_LINK));
            }
            folder = self.make_folder(&folder, &name, entry)?;
        }
        Ok(folder)
    }

    /// Opens a folder component by component, so that a link anywhere in the path is refused.
    /// Returns `None` if a component is missing or deleted.
    fn walk(&self, path: &[u8]) -> Result<Option<OwnedFd>, Errno> {
        let mut folder = self.root.try_clone().map_err(|_| Errno::MFILE)?;
        for part in parts(path) {
            let name = c_name(part);
            folder = match open_folder(&folder, &name) {
                Ok(next) => next,
                Err(Errno::NOENT) => return Ok(None),
                Err(Errno::NOTDIR) if there(&folder, &name)? == There::Whiteout => return Ok(None),
                Err(error) => return Err(error),
            };
        }
        Ok(Some(folder))
    }

    fn charge(&mut self, bytes: u64) -> Result<(), ArchiveError> {
        if !self.budget.take(bytes, 1) {
            let entries_left = self.budget.entries.load(Ordering::Relaxed);
            return Err(ArchiveError::TooLarge(if entries_left == 0 {
                "exceeds the number of files that an image may have".to_owned()
            } else {
                "exceeds the size that an image may unpack to".to_owned()
            }));
        }
        self.bytes += bytes;
        self.entries += 1;
        self.unchecked = self.unchecked.saturating_add(bytes);
        if self.unchecked >= CHECK_EVERY_BYTES {
            self.unchecked = 0;
            check_room(&self.root, bytes).map_err(|error| ArchiveError::Io(error.into()))?;
        }
        Ok(())
    }
}

/// Fails if the folder's disk has no room for this many more bytes.
pub(crate) fn check_room(folder: impl AsFd, bytes: u64) -> Result<(), ImageError> {
    let there = rustix::fs::fstatvfs(folder).map_err(io::Error::from)?;
    let free = there.f_bavail.saturating_mul(there.f_frsize);
    if free < bytes.saturating_add(RESERVE_BYTES) {
        return Err(ImageError::NoSpace { needed: bytes >> 20, free: free >> 20 });
    }
    Ok(())
}

const THROUGH_LINK: &str = "path leads through a link or a file";

fn refused(entry: &Entry, error: Errno) -> ArchiveError {
    match error {
        Errno::LOOP | Errno::NOTDIR => entry.fault(THROUGH_LINK),
        Errno::NAMETOOLONG => entry.fault("name is too long for the disk's file system"),
        Errno::MLINK => entry.fault("too many hard links to one file"),
        Errno::ILSEQ | Errno::INVAL => {
            entry.fault("name that the disk's file system does not take")
        }
        Errno::OPNOTSUPP => {
            entry.fault("the disk's file system keeps no extended attributes, which it needs")
        }
        error => ArchiveError::Io(error.into()),
    }
}

fn failed(error: Errno) -> ArchiveError {
    ArchiveError::Io(error.into())
}

fn folder_mode(mode: u32) -> Mode {
    // The sticky bit protects files in folders such as /tmp.
    Mode::from_raw_mode(mode & 0o1777 | 0o700)
}

/// The path of an entry: components joined by `/`, and empty for the root.
fn normal(raw: &[u8]) -> Result<Vec<u8>, &'static str> {
    let mut path = Vec::with_capacity(raw.len());
    if raw.contains(&0) {
        return Err("name contains a NUL");
    }
    for part in parts(raw) {
        match part {
            b"." => continue,
            b".." => return Err("path leaves the layer"),
            part if part.len() > NAME_BYTES_MAX => return Err("name is longer than 255 bytes"),
            part => {
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(part);
            }
        }
    }
    if path.len() > PATH_BYTES_MAX {
        return Err("path is longer than 4,095 bytes");
    }
    if parts(&path).count() > DEPTH_MAX {
        return Err("path is deeper than 256 folders");
    }
    Ok(path)
}

fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

fn c_name(name: &[u8]) -> CString {
    // `normal` refuses NULs.
    CString::new(name).unwrap_or_default()
}

fn there(parent: &OwnedFd, name: &CString) -> Result<There, Errno> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => There::Folder,
            // The layer contains no other device.
            FileType::CharacterDevice => There::Whiteout,
            _ => There::Other,
        }),
        Err(Errno::NOENT) => Ok(There::Nothing),
        Err(error) => Err(error),
    }
}

fn open_folder(parent: impl AsFd, name: &CString) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

fn open_path(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Marks a folder that hides the folders with the same name in the layers below. A mount with the
/// option `userxattr` reads the `user` form. A mount without it reads the `trusted` form, which
/// only root can write.
fn make_opaque(folder: &OwnedFd) -> Result<(), Errno> {
    let set = |name: &str| rustix::fs::fsetxattr(folder, name, b"y", XattrFlags::empty());
    match (set("user.overlay.opaque"), set("trusted.overlay.opaque")) {
        (Ok(()), _) | (_, Ok(())) => Ok(()),
        (Err(error), _) => Err(error),
    }
}

#[cfg(test)]
#[path = "layer_tests.rs"]
mod tests;
