//! Reads files of a project, which may come from a stranger: a pipe would block the reader,
//! `/dev/zero` has no end, and a link may lead to private files of the user who deploys the
//! project.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Largest file that is searched: a manifest, a list of packages, or a source file.
pub const TEXT_BYTES_MAX: u64 = 1 << 20;

const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits() as i32;

/// Reads a text of at most [`TEXT_BYTES_MAX`]. A link must stay in the folder of the file.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    let path = path.as_ref();
    let bytes = bytes(path, folder_of(path), TEXT_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8"))
}

/// Reads a file of at most `bytes_max`. A link must stay in `root`.
pub fn bytes(path: &Path, root: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = open(path, root)?;
    let too_large = || {
        let limit = match bytes_max >> 20 {
            0 => format!("{} KiB", bytes_max >> 10),
            mib => format!("{mib} MiB"),
        };
        io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {limit}"))
    };
    if file.metadata()?.len() > bytes_max {
        return Err(too_large());
    }
    // The kernel's own files report no length.
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max { Err(too_large()) } else { Ok(bytes) }
}

/// Opens a regular file. A link must stay in `root`.
pub fn open(path: &Path, root: &Path) -> io::Result<File> {
    let refused = |text| io::Error::new(io::ErrorKind::InvalidInput, text);
    let full = std::fs::canonicalize(path)?;
    if !full.starts_with(std::fs::canonicalize(root)?) {
        return Err(refused("the link leaves the folder"));
    }
    let file = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(&full)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(refused("not a regular file")) }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_regular_files_of_the_folder_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("below")).expect("a folder");
        std::fs::write(at("here"), "text").expect("a file");
        std::fs::write(at("large"), vec![b'x'; TEXT_BYTES_MAX as usize + 1]).expect("a file");
        std::fs::write(at("binary"), b"\xff").expect("a file");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), mode).expect("a pipe");
        for (name, target) in [
            ("inside", "here"),
            ("zero", "/dev/zero"),
            ("outside", "/etc/passwd"),
            ("nowhere", "missing"),
            ("below/up", "../here"),
        ] {
            symlink(target, at(name)).expect("a link");
        }
        for name in ["here", "inside"] {
            assert_eq!(text(at(name)).expect(name), "text");
        }
        for (name, expected) in [
            ("large", "larger than 1 MiB"),
            ("binary", "not UTF-8"),
            ("pipe", "not a regular file"),
            ("below", "not a regular file"),
            ("zero", "leaves the folder"),
            ("outside", "leaves the folder"),
            ("below/up", "leaves the folder"),
            ("nowhere", "No such file"),
            ("missing", "No such file"),
        ] {
            let error = text(at(name)).expect_err(name).to_string();
            assert!(error.contains(expected), "{name}: {error}");
        }
        assert_eq!(bytes(&at("below/up"), folder.path(), 4).expect("inside"), b"text");
        assert!(bytes(&at("here"), folder.path(), 3).is_err());
        assert!(bytes(Path::new("/dev/zero"), Path::new("/"), 64).is_err());
    }
}
