//! Reads the tar format strictly: ustar with PAX and GNU long names. Refuses everything that two
//! readers could interpret differently.

use std::io::{self, Read};

use crate::archive_error::ArchiveError;
use crate::entry_path::shown;

pub(crate) const BLOCK: usize = 512;
/// Largest PAX records of one entry. A path, a link and a few times need much less.
const PAX_BYTES_MAX: u64 = 64 << 10;
/// Longest path of an entry. It is the longest path that Linux accepts in a system call.
const PATH_BYTES_MAX: usize = 4096;
/// The most zero bytes after the end of the archive. tar pads to 10 KiB.
const PADDING_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File,
    Dir,
    Symlink,
    Hardlink,
    Device,
    Unknown(u8),
}

/// The head of one entry, which `size` bytes of content follow.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// The entry's number, from 1.
    pub(crate) index: u64,
    pub(crate) kind: EntryKind,
    pub(crate) path: Vec<u8>,
    pub(crate) link: Vec<u8>,
    pub(crate) size: u64,
    pub(crate) mode: u32,
    /// Whether the entry had extended attributes. They are dropped.
    pub(crate) attributes: bool,
}

impl Entry {
    pub(crate) fn fault(&self, reason: impl Into<String>) -> ArchiveError {
        ArchiveError::Entry { index: self.index, path: shown(&self.path), reason: reason.into() }
    }
}

/// Reads the heads of entries. The caller reads the content between them with
/// [`TarReader::read_content`].
pub(crate) struct TarReader<R> {
    input: R,
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
    attributes: bool,
    seen: bool,
}

impl<R: Read> TarReader<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, index: 0, left: 0, padding: 0 }
    }

    /// Returns the next entry. The content of the previous entry must have been read.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, ArchiveError> {
        let mut extensions = Extensions::default();
        loop {
            self.skip_padding()?;
            let Some(block) = self.block(self.index == 0 && !extensions.seen)? else {
                if extensions.seen {
                    return Err(self.ambiguous(b"", "a name without an entry"));
                }
                self.expect_only_zeros()?;
                return Ok(None);
            };
            let size = octal(&block[124..136]);
            let path = header_path(&block);
            let size = size.ok_or_else(|| self.ambiguous(&path, "its size is not plain octal"))?;
            match block[156] {
                b'x' => {
                    if extensions.seen {
                        return Err(self.ambiguous(&path, "two extended headers"));
                    }
                    let records = self.small_content(size, &path)?;
                    self.read_pax(&records, &mut extensions)?;
                    extensions.seen = true;
                }
                b'g' => {
                    // `git archive` writes its commit into a global header. Any other global record
                    // would apply to every entry, which no honest packer needs.
                    let mut global = Extensions::default();
                    let records = self.small_content(size, &path)?;
                    self.read_pax(&records, &mut global)?;
                    if global.path.is_some() || global.link.is_some() || global.size.is_some() {
                        return Err(self.ambiguous(&path, "a global path or size"));
                    }
                }
                kind @ (b'L' | b'K') => {
                    let mut name = self.small_content(size, &path)?;
                    while name.last() == Some(&0) {
                        name.pop();
                    }
                    let slot =
                        if kind == b'L' { &mut extensions.path } else { &mut extensions.link };
                    if slot.replace(name).is_some() {
                        return Err(self.ambiguous(&path, "two long names"));
                    }
                    extensions.seen = true;
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
        extensions: Extensions,
    ) -> Result<Entry, ArchiveError> {
        self.index += 1;
        let path = extensions.path.unwrap_or(path);
        let kind = match kind {
            // Old writers mark a folder only by the slash at the end of its path.
            b'0' | 0 if path.last() == Some(&b'/') => EntryKind::Dir,
            b'0' | 0 => EntryKind::File,
            b'1' => EntryKind::Hardlink,
            b'2' => EntryKind::Symlink,
            b'3' | b'4' | b'6' => EntryKind::Device,
            b'5' => EntryKind::Dir,
            other => EntryKind::Unknown(other),
        };
        let entry = Entry {
            index: self.index,
            kind,
            path,
            link: extensions.link.unwrap_or_else(|| until_nul(&block[157..257]).to_vec()),
            size,
            mode: octal(&block[100..108]).map_or(0o644, |mode| (mode & 0o7777) as u32),
            attributes: extensions.attributes,
        };
        if entry.path.len() > PATH_BYTES_MAX {
            return Err(entry.fault("its path is longer than 4,096 bytes"));
        }
        if extensions.size.is_some_and(|pax| pax != size) {
            return Err(entry.fault("ambiguous archive (two sizes)"));
        }
        if kind != EntryKind::File && size != 0 && kind != EntryKind::Device {
            return Err(entry.fault("ambiguous archive (only files have content)"));
        }
        self.left = size;
        self.padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
        Ok(entry)
    }

    /// Reads content of the current entry. Returns 0 at its end.
    pub(crate) fn read_content(&mut self, buffer: &mut [u8]) -> Result<usize, ArchiveError> {
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

    fn small_content(&mut self, size: u64, path: &[u8]) -> Result<Vec<u8>, ArchiveError> {
        if size > PAX_BYTES_MAX {
            return Err(self.ambiguous(path, "an extended header past 64 KiB"));
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
        match self.exact(&mut block[..]) {
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
        if octal(&block[148..156]) != Some(sum) {
            if first {
                return Err(ArchiveError::NotTar);
            }
            return Err(self.ambiguous(&header_path(&block), "its checksum is wrong"));
        }
        Ok(Some(block))
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
                b"path" => into.path.replace(value.to_vec()).is_some(),
                b"linkpath" => into.link.replace(value.to_vec()).is_some(),
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
            if twice {
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

fn until_nul(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    &field[..end]
}

/// Reads a number field: octal digits, with spaces around them, ended by a space or NUL. Base-256
/// is refused, because no entry within the limits needs it.
fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(until_nul(field)).ok()?.trim_matches(' ');
    if text.is_empty() {
        return Some(0);
    }
    text.bytes().all(|b| (b'0'..=b'7').contains(&b)).then(|| u64::from_str_radix(text, 8).ok())?
}

/// Builds a ustar header block. If `path` is longer than 100 bytes, a PAX record must come before
/// the block.
pub(crate) fn header(kind: u8, path: &[u8], link: &[u8], size: u64, mode: u32) -> [u8; BLOCK] {
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

pub(crate) fn pax(key: &str, value: &[u8]) -> Vec<u8> {
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
