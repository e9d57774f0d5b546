//! Unpacks an uploaded archive, which is not trusted.
//!
//! A plain or gzip tar becomes a tree below one empty folder. The whole archive is refused if a
//! path or a link leads outside, if it contains a device, if two names stand for the same file, or
//! if a limit is exceeded. Set-id bits are never kept.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;
use sha2::{Digest, Sha256};

use crate::archive_error::{ArchiveError, Past};
use crate::entry_path::{self, shown};
use crate::tar::{Entry, EntryKind, TarReader};
use crate::tree::{Node, TreeError, TreeWriter};

/// The ratio limit does not apply to compressed input up to this size, because a small text
/// compresses very well.
pub(crate) const RATIO_FREE_BYTES: u64 = 1 << 20;
/// Largest content of the entry that is returned to the caller.
const SET_ASIDE_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Clone)]
pub struct ArchiveLimits {
    pub entries: u64,
    /// The most bytes of all files together.
    pub bytes: u64,
    /// Highest ratio of unpacked to packed size. Applies to compressed archives.
    pub ratio: u64,
    /// If the first entry has this name, its content is returned to the caller and not written.
    pub set_aside: Option<String>,
    /// A large entry that does not become part of the tree.
    pub large: Option<LargeEntry>,
}

/// An entry whose content is written to a file of the caller.
#[derive(Debug, Clone)]
pub struct LargeEntry {
    pub name: String,
    pub file: Arc<File>,
    /// The most bytes of the content.
    pub bytes: u64,
}

impl Default for ArchiveLimits {
    fn default() -> Self {
        Self { entries: 10_000, bytes: 256 << 20, ratio: 100, set_aside: None, large: None }
    }
}

/// The result of unpacking an archive.
#[derive(Debug)]
pub struct Unpacked {
    /// The hash of the tree.
    pub hash: String,
    pub files: u64,
    /// Bytes in the files.
    pub bytes: u64,
    /// What was changed or left out.
    pub notes: Vec<String>,
    /// The content of the entry that [`ArchiveLimits::set_aside`] names.
    pub set_aside: Option<Vec<u8>>,
}

/// Unpacks into `root`, an empty folder that the caller removes on an error. Blocks.
pub fn unpack(
    input: impl Read,
    root: &Path,
    limits: &ArchiveLimits,
) -> Result<Unpacked, ArchiveError> {
    let mut input = BufReader::with_capacity(64 << 10, input);
    let mut magic = [0; 2];
    let mut got = 0;
    while got < magic.len() {
        match input.read(&mut magic[got..]) {
            Ok(0) => return Err(ArchiveError::NotTar),
            Ok(count) => got += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(ArchiveError::Io(error)),
        }
    }
    let input = io::Cursor::new(magic).chain(input);
    if magic == [0x1f, 0x8b] {
        let packed = Counted { input, count: 0 };
        let decoder = MultiGzDecoder::new(BufReader::with_capacity(16 << 10, packed));
        unpack_tar(&mut RatioLimited { decoder, unpacked: 0, ratio: limits.ratio }, root, limits)
    } else {
        unpack_tar(&mut { input }, root, limits)
    }
}

/// The source is a trait object, so that this code is compiled only once.
fn unpack_tar(
    input: &mut dyn Read,
    root: &Path,
    limits: &ArchiveLimits,
) -> Result<Unpacked, ArchiveError> {
    Unpacking::new(TarReader::new(input), root, limits)?.run()
}

struct Unpacking<'l, R> {
    tar: TarReader<R>,
    tree: TreeWriter,
    limits: &'l ArchiveLimits,
    files: u64,
    bytes: u64,
    notes: Vec<String>,
    set_aside: Option<Vec<u8>>,
}

impl<'l, R: Read> Unpacking<'l, R> {
    fn new(
        tar: TarReader<R>,
        root: &Path,
        limits: &'l ArchiveLimits,
    ) -> Result<Self, ArchiveError> {
        Ok(Self {
            tar,
            tree: TreeWriter::new(root).map_err(ArchiveError::Io)?,
            limits,
            files: 0,
            bytes: 0,
            notes: Vec::new(),
            set_aside: None,
        })
    }

    fn run(mut self) -> Result<Unpacked, ArchiveError> {
        while let Some(entry) = self.tar.next_entry()? {
            if entry.index > self.limits.entries {
                let text = format!("more than {} entries", self.limits.entries);
                return Err(ArchiveError::TooLarge(text));
            }
            if entry.index == 1
                && let Some(name) = &self.limits.set_aside
                && entry.path == name.as_bytes()
                && entry.kind == EntryKind::File
            {
                self.set_aside = Some(self.read_aside(&entry)?);
                continue;
            }
            if let Some(large) = &self.limits.large
                && entry.path == large.name.as_bytes()
                && entry.kind == EntryKind::File
            {
                if entry.size > large.bytes {
                    let text = format!("{}: more than {} MiB", large.name, large.bytes >> 20);
                    return Err(ArchiveError::TooLarge(text));
                }
                let mut file = &*large.file;
                copy(&mut file, |buffer| self.tar.read_content(buffer))?;
                continue;
            }
            self.add(&entry)?;
        }
        if self.files == 0 {
            return Err(ArchiveError::Empty);
        }
        Ok(Unpacked {
            hash: self.tree.finish()?,
            files: self.files,
            bytes: self.bytes,
            notes: self.notes,
            set_aside: self.set_aside,
        })
    }

    fn read_aside(&mut self, entry: &Entry) -> Result<Vec<u8>, ArchiveError> {
        if entry.size > SET_ASIDE_BYTES_MAX {
            return Err(entry.fault("longer than 1 MiB"));
        }
        let mut content = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match self.tar.read_content(&mut buffer)? {
                0 => return Ok(content),
                count => content.extend_from_slice(&buffer[..count]),
            }
        }
    }

    fn add(&mut self, entry: &Entry) -> Result<(), ArchiveError> {
        if let EntryKind::Device | EntryKind::Unknown(_) = entry.kind {
            return Err(entry.fault(match entry.kind {
                EntryKind::Device => "device files are not allowed".to_owned(),
                EntryKind::Unknown(b'S') => "ambiguous archive (a sparse file)".to_owned(),
                _ => "entries of this kind are not allowed".to_owned(),
            }));
        }
        let path = entry_path::normal(&entry.path).map_err(|fault| entry.fault(fault.text()))?;
        if path.is_empty() {
            return match entry.kind {
                EntryKind::Dir => Ok(()), // "./", the folder itself
                _ => Err(entry.fault("path leaves the function")),
            };
        }
        if entry.mode & 0o7000 != 0 && entry.kind == EntryKind::File {
            let text = format!("{}: set-id and sticky bits were removed", shown(&entry.path));
            self.notes.push(text);
        }
        if entry.attributes {
            let text = format!("{}: extended attributes were removed", shown(&entry.path));
            self.notes.push(text);
        }
        match entry.kind {
            EntryKind::Dir => self.tree.add_dir(&path).map_err(|e| refused(entry, e)),
            EntryKind::Symlink => {
                let target = std::str::from_utf8(&entry.link).unwrap_or("");
                if !entry_path::link_stays_inside(&path, target) {
                    return Err(entry.fault("link leaves the function"));
                }
                self.tree.add_link(&path, target).map_err(|e| refused(entry, e))
            }
            EntryKind::Hardlink => self.add_hardlink(entry, &path),
            _ => self.add_file(entry, &path),
        }
    }

    fn add_file(&mut self, entry: &Entry, path: &str) -> Result<(), ArchiveError> {
        self.charge(entry.size)?;
        let Self { tree, tar, .. } = self;
        let executable = entry.mode & 0o111 != 0;
        tree.add_file(path, executable, |file| {
            copy(file, |buffer| tar.read_content(buffer)).map_err(Filling::Archive)
        })
        .map_err(|error| named(entry, error))
    }

    /// Adds a hard link as a copy of a file earlier in the archive. A real link would make two
    /// paths share a mode, and the tree's name depends only on its content in either case.
    fn add_hardlink(&mut self, entry: &Entry, path: &str) -> Result<(), ArchiveError> {
        let target =
            entry_path::normal(&entry.link).map_err(|_| entry.fault("link leaves the function"))?;
        let (size, executable) = match self.tree.nodes().get(&target) {
            Some(Node::File { size, executable, .. }) => (*size, *executable),
            _ => return Err(entry.fault("link to a file that does not precede it in the archive")),
        };
        self.charge(size)?;
        let mut from = self.tree.open_file(&target).map_err(|error| refused(entry, error))?;
        self.tree
            .add_file(path, executable, |file| {
                copy(file, |buffer| from.read(buffer).map_err(ArchiveError::Io))
                    .map_err(Filling::Archive)
            })
            .map_err(|error| named(entry, error))
    }

    fn charge(&mut self, size: u64) -> Result<(), ArchiveError> {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > self.limits.bytes {
            let text = format!("unpacks past {} MiB", self.limits.bytes >> 20);
            return Err(ArchiveError::TooLarge(text));
        }
        Ok(())
    }
}

/// An error while writing a file: on the archive's side or on the tree's side.
pub(crate) enum Filling {
    Archive(ArchiveError),
    Tree(TreeError),
}

impl From<TreeError> for Filling {
    fn from(error: TreeError) -> Self {
        Filling::Tree(error)
    }
}

fn named(entry: &Entry, error: Filling) -> ArchiveError {
    match error {
        Filling::Archive(error) => error,
        Filling::Tree(error) => refused(entry, error),
    }
}

fn refused(entry: &Entry, error: TreeError) -> ArchiveError {
    match error {
        TreeError::Taken(why) => entry.fault(format!("ambiguous archive ({why})")),
        TreeError::ThroughLink => entry.fault("path leads through a link or a file"),
        TreeError::Io(error) => ArchiveError::Io(error),
    }
}

/// Copies the data of `read`. Returns its size and digest.
pub(crate) fn copy(
    file: &mut impl Write,
    mut read: impl FnMut(&mut [u8]) -> Result<usize, ArchiveError>,
) -> Result<(u64, [u8; 32]), ArchiveError> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 64 << 10];
    let mut size = 0;
    loop {
        let count = read(&mut buffer)?;
        if count == 0 {
            return Ok((size, hasher.finalize().into()));
        }
        hasher.update(&buffer[..count]);
        file.write_all(&buffer[..count]).map_err(ArchiveError::Io)?;
        size += count as u64;
    }
}

struct Counted<R> {
    input: R,
    count: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.count += count as u64;
        Ok(count)
    }
}

struct RatioLimited<R> {
    decoder: MultiGzDecoder<BufReader<Counted<R>>>,
    unpacked: u64,
    ratio: u64,
}

impl<R: Read> Read for RatioLimited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.decoder.read(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
                io::Error::other(Past::Gzip)
            }
            _ => error,
        })?;
        self.unpacked += count as u64;
        let packed = self.decoder.get_ref().get_ref().count;
        if self.unpacked > RATIO_FREE_BYTES.max(packed.saturating_mul(self.ratio)) {
            return Err(io::Error::other(Past::Ratio(self.ratio)));
        }
        Ok(count)
    }
}

#[cfg(test)]
#[path = "archive_tests.rs"]
mod tests;
