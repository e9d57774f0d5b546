//! Reads the tar format: ustar with PAX and GNU long names.
//!
//! [`TarReader::new`] reads strictly and refuses everything that two readers could interpret
//! differently. [`TarReader::of_layer`] reads what writers of container images produce, as other
//! container programs do: of two statements, the later one counts, numbers may be binary, files may
//! be sparse, and the blocks of zeros at the end may be missing.

use std::io::{self, Read};

use crate::archive_error::ArchiveError;
use crate::entry_path::shown;
use crate::sparse::{self, Sparse};
pub use crate::tar_fields::BLOCK;
use crate::tar_fields::{number, octal, time, until_nul};

/// Largest PAX records of one entry. A path, a link and a few times need much less.
const PAX_BYTES_MAX: u64 = 64 << 10;
/// The same in a layer, where attributes of files are in these records.
const LAYER_PAX_BYTES_MAX: u64 = 1 << 20;
/// Longest path of an entry. It is the longest path that Linux accepts in a system call.
const PATH_BYTES_MAX: usize = 4096;
/// The most zero bytes after the end of the archive. tar pads to 10 KiB.
const PADDING_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Dir,
    Symlink,
    Hardlink,
    Device,
    Unknown(u8),
}

/// The head of one entry, which `size` bytes of content follow.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The entry's number, from 1.
    pub index: u64,
    pub kind: EntryKind,
    pub path: Vec<u8>,
    pub link: Vec<u8>,
    /// Bytes of content in the archive.
    pub size: u64,
    pub mode: u32,
    /// Seconds and nanoseconds since 1970.
    pub modified: (u64, u32),
    /// Whether the entry had extended attributes. They are dropped.
    pub attributes: bool,
    /// Where the content belongs in the file. Only in layers.
    pub sparse: Option<Sparse>,
}

impl Entry {
    pub fn fault(&self, reason: impl Into<String>) -> ArchiveError {
        ArchiveError::Entry { index: self.index, path: shown(&self.path), reason: reason.into() }
    }
}

/// Reads the heads of entries. The caller reads the content between them with
/// [`TarReader::read_content`].
pub struct TarReader<R> {
    input: R,
    of_layer: bool,
    index: u64,
    /// Content and padding of the current entry that have not been read.
    left: u64,
    padding: u64,
}

#[derive(Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    modified: Option<(u64, u32)>,
    attributes: bool,
    sparse: sparse::Records,
    seen: bool,
    /// Whether the path, and whether the link, is from a PAX record, which takes precedence over a
    /// GNU long name.
    pax: (bool, bool),
}

impl<R: Read> TarReader<R> {
    pub fn new(input: R) -> Self {
        Self { input, of_layer: false, index: 0, left: 0, padding: 0 }
    }

    /// A reader for layers and archives of container images.
    pub fn of_layer(input: R) -> Self {
        Self { of_layer: true, ..Self::new(input) }
    }

    pub fn input(&self) -> &R {
        &self.input
    }

    /// Returns the next entry. The content of the previous entry must have been read.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, ArchiveError> {
        let mut extensions = Extensions::default();
        loop {
            self.skip_padding()?;
            let pax_bytes_max = if self.of_layer { LAYER_PAX_BYTES_MAX } else { PAX_BYTES_MAX };
            let Some(block) = self.block(self.index == 0 && !extensions.seen)? else {
                if extensions.seen {
                    return Err(self.ambiguous(b"", "a name without an entry"));
                }
                self.expect_only_zeros()?;
                return Ok(None);
            };
            let size = self.number(&block[124..136]);
            let path = header_path(&block);
            let size = size.ok_or_else(|| self.ambiguous(&path, "its size is not plain octal"))?;
            match block[156] {
                b'x' => {
                    if extensions.seen && !self.of_layer {
                        return Err(self.ambiguous(&path, "two extended headers"));
                    }
                    let records = self.small_content(size, pax_bytes_max, &path)?;
                    self.read_pax(&records, &mut extensions)?;
                    extensions.seen = true;
                }
                b'g' => {
                    // `git archive` writes its commit into a global header. Any other global record
                    // would apply to every entry, and no honest packer needs that.
                    let mut global = Extensions::default();
                    let records = self.small_content(size, pax_bytes_max, &path)?;
                    if self.of_layer {
                        continue;
                    }
                    self.read_pax(&records, &mut global)?;
                    if global.path.is_some() || global.link.is_some() || global.size.is_some() {
                        return Err(self.ambiguous(&path, "a global path or size"));
                    }
                }
                kind @ (b'L' | b'K') => {
                    let mut name = self.small_content(size, PAX_BYTES_MAX, &path)?;
                    while name.last() == Some(&0) {
                        name.pop();
                    }
                    extensions.seen = true;
                    let (slot, pax) = match kind {
                        b'L' => (&mut extensions.path, extensions.pax.0),
                        _ => (&mut extensions.link, extensions.pax.1),
                    };
                    if self.of_layer && pax {
                        continue;
                    }
                    if slot.replace(name).is_some() && !self.of_layer {
                        return Err(self.ambiguous(&path, "two long names"));
                    }
                }
                kind => return self.entry(&block, kind, size, path, extensions).map(Some),
            }
        }
    }

    fn entry(
        &mut self,
        block: &[u8; BLOCK],
        kind: u8,
        size: u64,
        path: Vec<u8>,
        mut extensions: Extensions,
    ) -> Result<Entry, ArchiveError> {
        self.index += 1;
        if let Some(name) = extensions.sparse.name.take() {
            extensions.path = Some(name);
        }
        let path = extensions.path.unwrap_or(path);
        let kind = match kind {
            // Old writers mark a folder only by the slash at the end of its path.
            b'0' | 0 if path.last() == Some(&b'/') => EntryKind::Dir,
            b'0' | 0 => EntryKind::File,
            b'7' | b'S' if self.of_layer => EntryKind::File,
            b'1' => EntryKind::Hardlink,
            b'2' => EntryKind::Symlink,
            b'3' | b'4' | b'6' => EntryKind::Device,
            b'5' => EntryKind::Dir,
            other => EntryKind::Unknown(other),
        };
        let size = match (self.of_layer, kind) {
            (true, EntryKind::File | EntryKind::Unknown(_)) => extensions.size.unwrap_or(size),
            // Whatever the header says, such an entry has no content.
            (true, _) => 0,
            (false, _) => size,
        };
        let mut entry = Entry {
            index: self.index,
            kind,
            path,
            link: extensions.link.unwrap_or_else(|| until_nul(&block[157..257]).to_vec()),
            size,
            mode: self.number(&block[100..108]).map_or(0o644, |mode| (mode & 0o7777) as u32),
            modified: extensions
                .modified
                .unwrap_or((self.number(&block[136..148]).unwrap_or_default(), 0)),
            attributes: extensions.attributes,
            sparse: None,
        };
        if entry.path.len() > PATH_BYTES_MAX {
            return Err(entry.fault("its path is longer than 4,096 bytes"));
        }
        if extensions.size.is_some_and(|pax| pax != size) && !self.of_layer {
            return Err(entry.fault("ambiguous archive (two sizes)"));
        }
        if kind != EntryKind::File && size != 0 && kind != EntryKind::Device {
            return Err(entry.fault("ambiguous archive (only files have content)"));
        }
        self.left = size;
        self.padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
        if self.of_layer && kind == EntryKind::File {
            entry.sparse = self.sparse(block, &extensions.sparse, &entry)?;
            entry.size = self.left;
        }
        Ok(entry)
    }

    /// Reads where the content of a sparse file belongs. A part of this information may be in the
    /// blocks after the header, or at the beginning of the content.
    fn sparse(
        &mut self,
        block: &[u8; BLOCK],
        records: &sparse::Records,
        entry: &Entry,
    ) -> Result<Option<Sparse>, ArchiveError> {
        let wrong = |reason: &str| entry.fault(format!("broken sparse file ({reason})"));
        let found = if block[156] == b'S' {
            let mut map = sparse::Gnu::new(block).map_err(wrong)?;
            while map.is_continued() {
                let mut more = [0; BLOCK];
                self.exact(&mut more)?;
                map.add(&more).map_err(wrong)?;
            }
            map.finish().map_err(wrong)?
        } else if records.is_in_content() {
            let mut map = sparse::Text::default();
            while !map.is_complete() {
                let mut more = [0; BLOCK];
                if self.left < BLOCK as u64 {
                    return Err(wrong("its map is cut off"));
                }
                self.exact(&mut more)?;
                self.left -= BLOCK as u64;
                map.add(&more).map_err(wrong)?;
            }
            map.finish(records).map_err(wrong)?
        } else {
            match records.map().map_err(wrong)? {
                Some(sparse) => sparse,
                None => return Ok(None),
            }
        };
        found.check(self.left).map_err(wrong)?;
        Ok(Some(found))
    }

    /// Skips the rest of the current entry's content.
    pub fn skip_content(&mut self) -> Result<(), ArchiveError> {
        let mut buffer = [0; 16 << 10];
        while self.read_content(&mut buffer)? != 0 {}
        Ok(())
    }

    fn number(&self, field: &[u8]) -> Option<u64> {
        if self.of_layer { number(field) } else { octal(field) }
    }

    /// Reads content of the current entry. Returns 0 at its end.
    pub fn read_content(&mut self, buffer: &mut [u8]) -> Result<usize, ArchiveError> {
        let want = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        let count = loop {
            match self.input.read(&mut buffer[..want]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other.map_err(ArchiveError::from_read)?,
            }
        };
        if count == 0 {
            return Err(ArchiveError::Cut { index: self.index });
        }
        self.left -= count as u64;
        Ok(count)
    }

    fn small_content(
        &mut self,
        size: u64,
        bytes_max: u64,
        path: &[u8],
    ) -> Result<Vec<u8>, ArchiveError> {
        if size > bytes_max {
            let text = format!("an extended header past {} KiB", bytes_max >> 10);
            return Err(self.ambiguous(path, &text));
        }
        let mut content = vec![0; size as usize];
        self.exact(&mut content)?;
        self.padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
        Ok(content)
    }

    fn skip_padding(&mut self) -> Result<(), ArchiveError> {
        debug_assert_eq!(self.left, 0, "content was read");
        let mut rest = [0; BLOCK];
        let padding = self.padding as usize;
        self.padding = 0;
        self.exact(&mut rest[..padding])
    }

    fn exact(&mut self, buffer: &mut [u8]) -> Result<(), ArchiveError> {
        self.input.read_exact(buffer).map_err(|error| {
            if error.kind() == io::ErrorKind::UnexpectedEof {
                ArchiveError::Cut { index: self.index }
            } else {
                ArchiveError::from_read(error)
            }
        })
    }

    /// Returns a header block with a correct checksum, or `None` for the zeros that end an archive.
    fn block(&mut self, first: bool) -> Result<Option<Box<[u8; BLOCK]>>, ArchiveError> {
        let mut block = Box::new([0; BLOCK]);
        if self.of_layer && !first && self.is_at_end(&mut block[..1])? {
            return Ok(None);
        }
        let from = usize::from(self.of_layer && !first);
        match self.exact(&mut block[from..]) {
            Err(ArchiveError::Cut { .. }) if first => return Err(ArchiveError::NotTar),
            other => other?,
        }
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let sum: u64 = block
            .iter()
            .enumerate()
            .map(|(at, byte)| u64::from(if (148..156).contains(&at) { b' ' } else { *byte }))
            .sum();
        if self.number(&block[148..156]) != Some(sum) {
            if first {
                return Err(ArchiveError::NotTar);
            }
            return Err(self.ambiguous(&header_path(&block), "its checksum is wrong"));
        }
        Ok(Some(block))
    }

    /// Reads one byte, if there is one.
    fn is_at_end(&mut self, byte: &mut [u8]) -> Result<bool, ArchiveError> {
        loop {
            match self.input.read(byte) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return Ok(other.map_err(ArchiveError::from_read)? == 0),
            }
        }
    }

    fn expect_only_zeros(&mut self) -> Result<(), ArchiveError> {
        let mut buffer = [0; 4096];
        let mut total = 0;
        loop {
            let count = self.input.read(&mut buffer).map_err(ArchiveError::from_read)?;
            total += count as u64;
            if count == 0 {
                return Ok(());
            }
            if buffer[..count].iter().any(|byte| *byte != 0) || total > PADDING_BYTES_MAX {
                return Err(ArchiveError::Trailing);
            }
        }
    }

    fn read_pax(&self, records: &[u8], into: &mut Extensions) -> Result<(), ArchiveError> {
        let mut rest = records;
        while !rest.is_empty() {
            let (key, value, after) =
                pax_record(rest).ok_or_else(|| self.ambiguous(b"", "a broken extended header"))?;
            rest = after;
            let twice = match key {
                // An empty value cancels an earlier one.
                b"path" | b"linkpath" if self.of_layer && value.is_empty() => false,
                b"path" => {
                    into.pax.0 = true;
                    into.path.replace(value.to_vec()).is_some()
                }
                b"linkpath" => {
                    into.pax.1 = true;
                    into.link.replace(value.to_vec()).is_some()
                }
                b"mtime" => {
                    into.modified = time(value);
                    false
                }
                key if self.of_layer && key.starts_with(b"GNU.sparse.") => {
                    into.sparse.add(&key[b"GNU.sparse.".len()..], value).map_err(|reason| {
                        self.ambiguous(b"", &format!("a sparse file: {reason}"))
                    })?;
                    false
                }
                b"size" => {
                    let number = std::str::from_utf8(value)
                        .ok()
                        .filter(|text| text.bytes().all(|b| b.is_ascii_digit()))
                        .and_then(|text| text.parse().ok())
                        .ok_or_else(|| self.ambiguous(b"", "its size is not a number"))?;
                    into.size.replace(number).is_some()
                }
                key if key.starts_with(b"GNU.sparse") => {
                    return Err(self.ambiguous(b"", "a sparse file"));
                }
                key if key.starts_with(b"SCHILY.xattr") || key.starts_with(b"LIBARCHIVE.xattr") => {
                    into.attributes = true;
                    false
                }
                _ => false,
            };
            if twice && !self.of_layer {
                return Err(self.ambiguous(b"", "an extended header says one thing twice"));
            }
        }
        Ok(())
    }

    fn ambiguous(&self, path: &[u8], why: &str) -> ArchiveError {
        ArchiveError::Entry {
            index: self.index + 1,
            path: shown(path),
            reason: format!("ambiguous archive ({why})"),
        }
    }
}

/// Reads a record of the form `LENGTH KEY=VALUE\n`. Returns key, value and the remaining bytes.
fn pax_record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().take(8).position(|byte| *byte == b' ')?;
    let digits = std::str::from_utf8(&bytes[..space]).ok()?;
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let length: usize = digits.parse().ok()?;
    if length < space + 3 || length > bytes.len() || bytes[length - 1] != b'\n' {
        return None;
    }
    let record = &bytes[space + 1..length - 1];
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((&record[..equals], &record[equals + 1..], &bytes[length..]))
}

fn header_path(block: &[u8; BLOCK]) -> Vec<u8> {
    let name = until_nul(&block[..100]);
    let prefix = until_nul(&block[345..500]);
    // GNU's own format ("ustar  ") stores times where POSIX stores the prefix.
    if &block[257..263] == b"ustar\0" && !prefix.is_empty() {
        [prefix, b"/", name].concat()
    } else {
        name.to_vec()
    }
}

/// Builds a ustar header block. If `path` is longer than 100 bytes, a PAX record must come before
/// the block.
pub fn header(kind: u8, path: &[u8], link: &[u8], size: u64, mode: u32) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let put = |block: &mut [u8; BLOCK], at: usize, max: usize, bytes: &[u8]| {
        let count = bytes.len().min(max);
        block[at..at + count].copy_from_slice(&bytes[..count]);
    };
    put(&mut block, 0, 100, path);
    put(&mut block, 100, 8, format!("{mode:07o}\0").as_bytes());
    put(&mut block, 108, 8, b"0000000\0");
    put(&mut block, 116, 8, b"0000000\0");
    put(&mut block, 124, 12, format!("{size:011o}\0").as_bytes());
    put(&mut block, 136, 12, b"00000000000\0");
    put(&mut block, 148, 8, b"        ");
    block[156] = kind;
    put(&mut block, 157, 100, link);
    put(&mut block, 257, 8, b"ustar\x0000");
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    put(&mut block, 148, 8, format!("{sum:06o}\0 ").as_bytes());
    block
}

/// Builds a PAX record.
pub fn pax(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3; // space, equals, line end
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length = rest + length.to_string().len();
    }
    let mut record = format!("{length} {key}=").into_bytes();
    record.extend_from_slice(value);
    record.push(b'\n');
    record
}
