//! Unpacks a zip that a client of another platform uploaded. The rules are those for a tar: no path
//! and no link leaves the folder, no two names stand for the same file, and every limit holds.

use std::fs::File;
use std::io::{Cursor, Read};
use std::path::Path;

use zip::ZipArchive;
use zip::read::ZipFile;

use crate::archive::{ArchiveLimits, Filling, RATIO_FREE_BYTES, copy};
use crate::archive_error::ArchiveError;
use crate::entry_path::{self, shown};
use crate::tree::{TreeError, TreeWriter};

/// Longest target of a symbolic link.
const LINK_BYTES_MAX: u64 = 4_096;

/// Unpacks `bytes` into `root`, an empty folder that the caller removes on an error. Takes only the
/// entries below the folder `below`, or all entries if `below` is empty. Returns the number of
/// files, which is never 0. Blocks.
pub fn unzip(
    bytes: &[u8],
    below: &str,
    root: &Path,
    limits: &ArchiveLimits,
) -> Result<u64, ArchiveError> {
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|error| broken(0, "", &error))?;
    if archive.len() as u64 > limits.entries {
        return Err(ArchiveError::TooLarge(format!("more than {} entries", limits.entries)));
    }
    let ratio_bytes = RATIO_FREE_BYTES.max(limits.ratio.saturating_mul(bytes.len() as u64));
    let mut unpacking = Unpacking {
        tree: TreeWriter::new(root).map_err(ArchiveError::Io)?,
        below: below.trim_matches('/').to_owned(),
        left: limits.bytes.min(ratio_bytes),
        files: 0,
    };
    for at in 0..archive.len() {
        let index = at as u64 + 1;
        let entry = archive.by_index(at).map_err(|error| broken(index, "", &error))?;
        unpacking.add(index, entry)?;
    }
    match unpacking.files {
        0 => Err(ArchiveError::Empty),
        files => Ok(files),
    }
}

struct Unpacking {
    tree: TreeWriter,
    below: String,
    /// How many more bytes may be unpacked.
    left: u64,
    files: u64,
}

impl Unpacking {
    fn add<R: Read>(&mut self, index: u64, mut entry: ZipFile<'_, R>) -> Result<(), ArchiveError> {
        let raw = entry.name_raw().to_vec();
        let fault = |reason: &str| ArchiveError::Entry {
            index,
            path: shown(&raw),
            reason: reason.to_owned(),
        };
        let path = entry_path::normal(&raw).map_err(|error| fault(error.text()))?;
        let Some(path) = self.inside(&path) else { return Ok(()) };
        let mode = entry.unix_mode().unwrap_or(0o644);
        let refused = |error: TreeError| match error {
            TreeError::Taken(why) => fault(&format!("ambiguous archive ({why})")),
            TreeError::ThroughLink => fault("path leads through a link or a file"),
            TreeError::Io(error) => ArchiveError::Io(error),
        };
        if entry.is_dir() {
            return self.tree.add_dir(&path).map_err(refused);
        }
        if path.is_empty() {
            return Err(fault("path leaves the function"));
        }
        match mode & 0o170_000 {
            0 | 0o100_000 => {}
            0o120_000 => {
                let mut target = String::new();
                let read = (&mut entry).take(LINK_BYTES_MAX).read_to_string(&mut target);
                if read.is_err() || !entry_path::link_stays_inside(&path, &target) {
                    return Err(fault("link leaves the function"));
                }
                return self.tree.add_link(&path, &target).map_err(refused);
            }
            _ => return Err(fault("entries of this kind are not allowed")),
        }
        self.files += 1;
        let left = &mut self.left;
        let fill = |file: &mut File| {
            copy(file, |buffer| {
                let count = entry.read(buffer).map_err(|_| fault("its data is broken"))?;
                *left = left.checked_sub(count as u64).ok_or_else(|| {
                    ArchiveError::TooLarge("unpacks to more than is allowed".to_owned())
                })?;
                Ok(count)
            })
            .map_err(Filling::Archive)
        };
        self.tree.add_file(&path, mode & 0o111 != 0, fill).map_err(|error| match error {
            Filling::Archive(error) => error,
            Filling::Tree(error) => refused(error),
        })
    }

    /// Returns the path relative to the folder to unpack; `None` outside of that folder.
    fn inside(&self, path: &str) -> Option<String> {
        if self.below.is_empty() {
            return Some(path.to_owned());
        }
        let rest = path.strip_prefix(self.below.as_str())?;
        rest.strip_prefix('/').map(str::to_owned)
    }
}

fn broken(index: u64, path: &str, error: &zip::result::ZipError) -> ArchiveError {
    let reason = format!("not a zip that can be read here: {error}");
    ArchiveError::Entry { index, path: path.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::PathBuf;

    use zip::CompressionMethod;
    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::*;

    fn zipped(entries: &[(&str, &[u8], u32)]) -> Vec<u8> {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, content, mode) in entries {
            let options = SimpleFileOptions::default()
                .compression_method(CompressionMethod::Deflated)
                .unix_permissions(*mode);
            writer.start_file(*name, options).unwrap();
            writer.write_all(content).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    fn check(bytes: &[u8], below: &str) -> Result<(tempfile::TempDir, Vec<PathBuf>), ArchiveError> {
        let root = tempfile::tempdir().unwrap();
        unzip(bytes, below, root.path(), &ArchiveLimits { bytes: 4 << 20, ..Default::default() })?;
        let mut found: Vec<_> =
            root.path().read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        found.sort_unstable();
        Ok((root, found))
    }

    #[test]
    fn files_keep_their_content_and_whether_they_run() {
        use std::os::unix::fs::PermissionsExt;
        let bytes =
            zipped(&[("fn.py", b"x = 1\n", 0o644), ("./sub/run.sh", b"#!/bin/sh\n", 0o755)]);
        let (root, found) = check(&bytes, "").unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(std::fs::read(root.path().join("fn.py")).unwrap(), b"x = 1\n");
        let mode = std::fs::metadata(root.path().join("sub/run.sh")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        let (root, _) = check(&bytes, "/sub/").unwrap();
        assert!(root.path().join("run.sh").is_file());
        assert!(matches!(check(&bytes, "su"), Err(ArchiveError::Empty)));
    }

    #[test]
    fn nothing_leaves_the_folder() {
        for name in ["../x", "/etc/x", "a/../../x", "a\\..\\x", "C:x"] {
            // The writer would correct such names, so the test patches the bytes of the archive.
            let plain = "a".repeat(name.len());
            let mut bytes = zipped(&[(&plain, b"1", 0o644)]);
            for at in 0..bytes.len() - plain.len() {
                if &bytes[at..at + plain.len()] == plain.as_bytes() {
                    bytes[at..at + plain.len()].copy_from_slice(name.as_bytes());
                }
            }
            let error = check(&bytes, "").unwrap_err();
            assert_eq!(error.code(), "M1301", "{name}: {error}");
        }
    }

    #[test]
    fn links_stay_inside() {
        let linked = |target: &str| {
            let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
            writer.start_file("real", SimpleFileOptions::default()).unwrap();
            writer.add_symlink("link", target, SimpleFileOptions::default()).unwrap();
            writer.finish().unwrap().into_inner()
        };
        check(&linked("real"), "").unwrap();
        for target in ["/etc/passwd", "../x"] {
            assert!(check(&linked(target), "").unwrap_err().to_string().contains("link leaves"));
        }
    }

    #[test]
    fn bombs_broken_and_empty_archives_are_refused() {
        let bomb = zipped(&[("zeros", &vec![0; 3 << 20], 0o644)]);
        assert!(bomb.len() < 16 << 10, "{}", bomb.len());
        assert_eq!(check(&bomb, "").unwrap_err().http_status(), 413);
        let noise: Vec<u8> =
            (0..5u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        assert_eq!(check(&zipped(&[("big", &noise, 0o644)]), "").unwrap_err().http_status(), 413);
        assert!(matches!(check(&zipped(&[]), ""), Err(ArchiveError::Empty)));
        assert_eq!(check(b"PK nothing", "").unwrap_err().http_status(), 422);
        let mut cut = zipped(&[("a", b"some text that is long enough", 0o644)]);
        cut[40] ^= 0xff;
        assert!(check(&cut, "").is_err());
    }
}
