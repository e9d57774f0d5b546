//! Reads the archive of a release, checks every sum, and unpacks the archive.
//!
//! The archive is not trusted while it is read. It may contain only files and folders below one
//! folder, with plain names and bounded sizes.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::{Read, Seek as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use flate2::bufread::GzDecoder;
use semver::Version;
use sha2::{Digest as _, Sha256};
use tar::EntryType;

use crate::failure::{ARCHIVE, Failure};

const SUMS: &str = "SHA256SUMS";
const SIGNATURE: &str = "SHA256SUMS.minisig";
const REQUIREMENTS: &str = "requirements";
/// The files that every release has.
const NEEDED: [&str; 4] = [REQUIREMENTS, "install.sh", "bin/mote", "services/systemd"];
/// The longest file that is kept in memory as text.
const TEXT_BYTES_MAX: u64 = 1 << 20;
const UNPACKED_BYTES_MAX: u64 = 1 << 30;
const ENTRIES_MAX: usize = 10_000;
const AGAIN: &str = "download the archive again, and name the file \
                     mote-VERSION-MACHINE-linux-musl.tar.gz, or linux-gnu for x86-64";

/// A release whose files match its sums.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) version: Version,
    pub(crate) architecture: String,
    pub(crate) kernel: String,
    pub(crate) glibc: String,
    /// The content of the file with the sums, and the signature of that file.
    pub(crate) sums: Vec<u8>,
    pub(crate) signature: Option<String>,
    /// The space that one copy of the unpacked files takes on a disk, in bytes.
    pub(crate) unpacked_bytes: u64,
    /// The name of the top folder, which contains everything.
    top: String,
    files: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    sum: String,
    bytes: u64,
    executable: bool,
}

/// What one pass over the archive has found.
#[derive(Debug, Default)]
struct Found {
    top: String,
    files: BTreeMap<String, Entry>,
    texts: BTreeMap<String, Vec<u8>>,
}

fn damaged(what: impl std::fmt::Display) -> Failure {
    Failure::new(ARCHIVE, format!("the archive is damaged or cut off: {what}"), AGAIN)
}

fn hostile(path: &str, why: &str) -> Failure {
    let text = format!("the archive is not that of a release: {path} {why}");
    Failure::new(ARCHIVE, text, "do not use this archive")
}

impl Release {
    /// Reads and checks the whole archive without writing anything.
    pub(crate) fn read(file: &mut File) -> Result<Self, Failure> {
        let mut found = scan(file, &mut |_, _| Ok(None))?;
        let sums = found.texts.remove(SUMS).ok_or_else(|| {
            Failure::new(
                ARCHIVE,
                format!("the archive is not that of a release: it has no {SUMS}"),
                AGAIN,
            )
        })?;
        check_sums(&sums, &found.files)?;
        let signature = found.texts.remove(SIGNATURE);
        let signature = signature.map(|text| String::from_utf8_lossy(&text).into_owned());
        let requirements = found.texts.remove(REQUIREMENTS).unwrap_or_default();
        let requirements = String::from_utf8_lossy(&requirements).into_owned();
        let value = |key: &str| {
            let found =
                requirements.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            found.map(str::to_owned).ok_or_else(|| {
                damaged(format_args!("the file {REQUIREMENTS} does not name the {key}"))
            })
        };
        let version = value("version")?;
        let version = version.parse().map_err(|_| {
            damaged(format_args!("the file {REQUIREMENTS} names the version {version:?}"))
        })?;
        // A file takes whole blocks of 4,096 bytes.
        let unpacked_bytes =
            found.files.values().map(|entry| entry.bytes.div_ceil(4_096) * 4_096).sum();
        Ok(Self {
            version,
            architecture: value("architecture")?,
            kernel: value("kernel")?,
            glibc: value("glibc")?,
            sums,
            signature,
            unpacked_bytes,
            top: found.top,
            files: found.files,
        })
    }

    /// Unpacks the archive into an empty folder. Refuses an archive that has changed since it was
    /// read.
    pub(crate) fn unpack(&self, file: &mut File, into: &Path) -> Result<(), Failure> {
        let found = scan(file, &mut |path, executable| {
            let path = into.join(path);
            let folder = path.parent().unwrap_or(into);
            let made = std::fs::create_dir_all(folder).and_then(|()| File::create_new(&path));
            let file = made.map_err(|error| Failure::file(&path, &error))?;
            let mode = if executable { 0o755 } else { 0o644 };
            file.set_permissions(Permissions::from_mode(mode))
                .map_err(|error| Failure::file(&path, &error))?;
            Ok(Some(file))
        })?;
        if found.files != self.files || found.top != self.top {
            return Err(damaged("it was changed while it was read"));
        }
        Ok(())
    }
}

/// Opens the file into which an entry is written. The arguments are the entry's path and whether it
/// is executable. Returns `None` if the entry is not written.
type Open<'a> = dyn FnMut(&str, bool) -> Result<Option<File>, Failure> + 'a;

/// Reads every entry. `open` opens the file into which an entry is written, if the entry is to be
/// written.
fn scan(file: &mut File, open: &mut Open) -> Result<Found, Failure> {
    file.rewind().map_err(damaged)?;
    let mut magic = [0; 2];
    if file.read_exact(&mut magic).is_err() || magic != [0x1f, 0x8b] {
        return Err(Failure::new(ARCHIVE, "the archive is not a .tar.gz file", AGAIN));
    }
    file.rewind().map_err(damaged)?;
    let unpacked = GzDecoder::new(std::io::BufReader::with_capacity(64 << 10, file));
    // This limit also applies to entries that are skipped.
    let mut archive = tar::Archive::new(unpacked.take(UNPACKED_BYTES_MAX + 1));
    let mut found = Found::default();
    let mut buffer = vec![0; 64 << 10];
    // Long names and other extensions are not resolved. A release does not need them, and they
    // would be read into memory before the signature is checked.
    for (number, entry) in archive.entries().map_err(damaged)?.raw(true).enumerate() {
        let mut entry = entry.map_err(damaged)?;
        if number >= ENTRIES_MAX {
            return Err(hostile("it", &format!("has more than {ENTRIES_MAX} entries")));
        }
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let kind = entry.header().entry_type();
        let plain =
            path.strip_suffix('/').filter(|_| kind == EntryType::Directory).unwrap_or(&path);
        if !is_plain(plain) {
            return Err(hostile(&format!("{path:?}"), "is not a plain path"));
        }
        let (top, inner) = plain.split_once('/').unwrap_or((plain, ""));
        if found.top.is_empty() {
            top.clone_into(&mut found.top);
        }
        if top != found.top {
            return Err(hostile(&format!("{path:?}"), "is outside of its folder"));
        }
        match kind {
            EntryType::Directory => continue,
            EntryType::Regular if !inner.is_empty() => {}
            _ => return Err(hostile(&format!("{path:?}"), "is neither a file nor a folder")),
        }
        if entry.size() > UNPACKED_BYTES_MAX {
            return Err(hostile(&format!("{path:?}"), "is too long"));
        }
        let executable = entry.header().mode().map_err(damaged)? & 0o100 != 0;
        let mut to = open(inner, executable)?;
        let keeps = [SUMS, SIGNATURE, REQUIREMENTS].contains(&inner);
        if keeps && entry.size() > TEXT_BYTES_MAX {
            return Err(hostile(&format!("{path:?}"), "is too long"));
        }
        let mut sum = Sha256::new();
        let mut text = Vec::new();
        let mut bytes = 0;
        loop {
            let count = entry.read(&mut buffer).map_err(damaged)?;
            let Some(part) = buffer.get(..count).filter(|part| !part.is_empty()) else { break };
            bytes += count as u64;
            sum.update(part);
            if keeps {
                text.extend_from_slice(part);
            }
            if let Some(to) = &mut to {
                to.write_all(part).map_err(|error| Failure::file(inner, &error))?;
            }
        }
        if bytes != entry.size() {
            return Err(damaged(format_args!("{path} ends early")));
        }
        let sum = sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if keeps {
            found.texts.insert(inner.to_owned(), text);
        }
        if found.files.insert(inner.to_owned(), Entry { sum, bytes, executable }).is_some() {
            return Err(hostile(&format!("{path:?}"), "is there twice"));
        }
    }
    // Only the check sum of the compression may follow the last entry. Other programs could
    // otherwise unpack content that was not checked.
    let mut rest = archive.into_inner();
    loop {
        let count = rest.read(&mut buffer).map_err(damaged)?;
        let Some(part) = buffer.get(..count).filter(|part| !part.is_empty()) else { break };
        if part.iter().any(|byte| *byte != 0) {
            return Err(hostile("it", "has something after its last entry"));
        }
    }
    if rest.limit() == 0 {
        let text = format!("has more than {} MiB", UNPACKED_BYTES_MAX >> 20);
        return Err(hostile("it", &text));
    }
    let mut compressed = rest.into_inner().into_inner();
    if compressed.read(&mut buffer).map_err(damaged)? > 0 {
        return Err(hostile("it", "has something after its end"));
    }
    Ok(found)
}

/// Whether each part of a path begins with a letter, a digit or `_` and contains no unusual
/// characters. Such a path is relative and has no `..`.
fn is_plain(path: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    path.split('/').all(|part| {
        part.bytes().next().is_some_and(plain)
            && part.bytes().all(|byte| plain(byte) || b".-".contains(&byte))
    })
}

/// Checks that the sums name every file, and that every file matches its sum.
fn check_sums(sums: &[u8], files: &BTreeMap<String, Entry>) -> Result<(), Failure> {
    let sums = String::from_utf8_lossy(sums);
    let mut named = BTreeMap::new();
    for line in sums.lines() {
        let (sum, path) = line.split_once("  ").unwrap_or_default();
        let is_sum = sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_sum || !is_plain(path) || named.insert(path, sum).is_some() {
            return Err(damaged(format_args!("the file {SUMS} has the line {line:?}")));
        }
    }
    if let Some(path) = NEEDED.iter().find(|path| !named.contains_key(*path)) {
        return Err(damaged(format_args!("the file {SUMS} does not name {path}")));
    }
    for (path, sum) in &named {
        match files.get(*path) {
            None => return Err(damaged(format_args!("the file {path} is missing"))),
            Some(entry) if entry.sum != *sum => {
                return Err(damaged(format_args!("the file {path} does not match {SUMS}")));
            }
            Some(_) => {}
        }
    }
    let extra = files.keys().find(|path| {
        !named.contains_key(path.as_str()) && ![SUMS, SIGNATURE].contains(&path.as_str())
    });
    match extra {
        Some(path) => Err(hostile(path, &format!("is not in {SUMS}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::is_plain;

    #[test]
    fn only_paths_below_the_folder_are_plain() {
        for path in ["a", "a/b-c_1.2/_d", "mote-0.1.0/share/fish/vendor_completions.d/mote.fish"] {
            assert!(is_plain(path), "{path}");
        }
        for path in
            ["", "/a", "a/", "a//b", "..", "a/..", "a/../b", ".a", "a b", "a\n", "a\\b", "-a"]
        {
            assert!(!is_plain(path), "{path}");
        }
    }
}
