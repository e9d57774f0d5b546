//! Packs a folder or a file into a tar that the node accepts. The tar is sorted and has no times
//! and owners, so that equal folders give equal bytes.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::archive::ArchiveLimits;
use crate::entry_path::{self, shown};
use crate::ignore::{Ignore, Verdict};
use crate::source;
use crate::tar;

/// The reason why a folder cannot be packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// A file cannot be read.
    #[error("{path}")]
    Io { path: PathBuf, source: io::Error },
    /// The node would refuse this file or name.
    #[error("{path}: {reason}")]
    Refused {
        /// The path relative to the folder.
        path: String,
        reason: String,
    },
    /// A limit of uploads is exceeded.
    #[error("{0}")]
    TooLarge(String),
}

impl PackError {
    pub fn code(&self) -> &'static str {
        match self {
            PackError::Io { .. } => "M0102",
            PackError::Refused { .. } => "M1301",
            PackError::TooLarge(_) => "M1302",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    pub tar: Vec<u8>,
    /// Number of packed files, without the entry in front.
    pub files: u64,
    /// Bytes in the packed files.
    pub bytes: u64,
    /// Files that were left out because files with such names hold secrets, even though no rule of
    /// the folder mentions them.
    pub secret: Vec<String>,
}

impl Packed {
    /// Adds the file `from` as the last entry. Its size is not limited.
    pub fn append(&mut self, name: &str, from: &Path) -> Result<(), PackError> {
        let io = |error| io_error(from, error);
        let mut file = fs::File::open(from).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        self.append_from(name, length, |out| {
            let mut content = (&mut file).take(length);
            content.read_to_end(out).map(drop).map_err(io)
        })
    }

    /// Adds a folder as the last entry, as a tar with its plain files.
    pub fn append_folder(&mut self, name: &str, folder: &Path) -> Result<(), PackError> {
        let mut packer = Packer { whole: true, unlimited: true, ..Packer::default() };
        packer.add_dir(folder, "", None)?;
        packer.out.extend_from_slice(&[0; 2 * tar::BLOCK]);
        let length = packer.out.len() as u64;
        self.append_from(name, length, |out| {
            out.extend_from_slice(&packer.out);
            Ok(())
        })
    }

    fn append_from(
        &mut self,
        name: &str,
        length: u64,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), PackError>,
    ) -> Result<(), PackError> {
        // The blocks that end the archive come after this entry.
        self.tar.truncate(self.tar.len() - 2 * tar::BLOCK);
        self.tar.extend_from_slice(&tar::header(b'0', name.as_bytes(), b"", length, 0o644));
        let begin = self.tar.len();
        write(&mut self.tar)?;
        if (self.tar.len() - begin) as u64 != length {
            return Err(refused("", name, "its size changed while it was read"));
        }
        let padded = self.tar.len().next_multiple_of(tar::BLOCK) + 2 * tar::BLOCK;
        self.tar.resize(padded, 0);
        Ok(())
    }
}

/// Packs everything below the folder `root` that is not ignored, or the single file `root`. `first`
/// is a file that goes in front (the spec).
pub fn pack(root: &Path, first: Option<(&str, &[u8])>) -> Result<Packed, PackError> {
    Packer::default().pack(root, first)
}

/// Packs like [`pack`], but includes files that are otherwise left out. For code whose files
/// someone chose individually, as in an archive.
pub fn pack_whole(root: &Path, first: Option<(&str, &[u8])>) -> Result<Packed, PackError> {
    Packer { whole: true, ..Packer::default() }.pack(root, first)
}

/// Returns which rules file leaves out the entry at `path` below the folder `root`, if one does.
pub fn left_out_by(root: &Path, path: &str) -> Result<Option<&'static str>, PackError> {
    let Some((name, ignore)) = find_ignore(root)? else { return Ok(None) };
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    let is_left_out =
        |part: &str| ignore.verdict(part, root.join(part).is_dir()) == Verdict::LeftOut;
    Ok(ends.map(|end| &path[..end]).any(is_left_out).then_some(name))
}

/// The rules that decide which files of a folder are packed, kept for programs that ask repeatedly.
pub struct Rules(Ignore);

impl Rules {
    /// Reads the rules of the folder `root`.
    pub fn of(root: &Path) -> Result<Self, PackError> {
        read_ignore(root).map(Self)
    }

    /// Whether the entry at `path` is packed, provided that the folder that contains it is packed.
    pub fn packs(&self, path: &str, is_dir: bool) -> bool {
        self.0.verdict(path, is_dir) == Verdict::Packed
    }
}

#[derive(Default)]
struct Packer {
    /// Packs every file, so no rule applies.
    whole: bool,
    /// Packs files of any size, for an archive that does not become code.
    unlimited: bool,
    out: Vec<u8>,
    entries: u64,
    files: u64,
    bytes: u64,
    secret: Vec<String>,
}

impl Packer {
    fn pack(mut self, root: &Path, first: Option<(&str, &[u8])>) -> Result<Packed, PackError> {
        if let Some((name, content)) = first {
            self.append(b'0', name, b"", content, 0o644);
        }
        let meta = fs::metadata(root).map_err(|error| io_error(root, error))?;
        if meta.is_dir() {
            let ignore = if self.whole { None } else { Some(read_ignore(root)?) };
            self.add_dir(root, "", ignore.as_ref())?;
        } else {
            let name = root
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            self.add_file(root, &name, &meta)?;
        }
        self.out.extend_from_slice(&[0; 2 * tar::BLOCK]);
        Ok(Packed { tar: self.out, files: self.files, bytes: self.bytes, secret: self.secret })
    }

    fn add_dir(
        &mut self,
        root: &Path,
        below: &str,
        ignore: Option<&Ignore>,
    ) -> Result<(), PackError> {
        let folder = root.join(below);
        let io = |error| io_error(&folder, error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&folder).map_err(io)? {
            names.push(entry.map_err(io)?.file_name());
        }
        names.sort_unstable();
        let installs_modules = names.iter().any(|name| name == "package.json");
        for name in names {
            let Some(name) = name.to_str() else {
                return Err(refused(below, &name.to_string_lossy(), "name is not UTF-8"));
            };
            let path = if below.is_empty() { name.to_owned() } else { format!("{below}/{name}") };
            let full = root.join(&path);
            let meta = fs::symlink_metadata(&full).map_err(|error| io_error(&full, error))?;
            // The node installs these packages itself, for its own machine.
            let installed = name == "node_modules" && installs_modules;
            match ignore.map(|ignore| ignore.verdict(&path, meta.is_dir())) {
                Some(_) if installed => continue,
                Some(Verdict::LeftOut) => continue,
                Some(Verdict::Secret) => {
                    self.secret.push(path);
                    continue;
                }
                Some(Verdict::Packed) | None => {}
            }
            entry_path::normal(path.as_bytes()).map_err(|fault| PackError::Refused {
                path: shown(path.as_bytes()),
                reason: fault.text().to_owned(),
            })?;
            self.add(root, &full, &path, &meta, ignore)?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        root: &Path,
        full: &Path,
        path: &str,
        meta: &fs::Metadata,
        ignore: Option<&Ignore>,
    ) -> Result<(), PackError> {
        if meta.is_symlink() {
            let target = fs::read_link(full).map_err(|error| io_error(full, error))?;
            let target = target.to_str().unwrap_or("");
            if !entry_path::link_stays_inside(path, target) {
                return Err(refused("", path, "link leaves the function"));
            }
            self.count()?;
            self.append(b'2', path, target.as_bytes(), b"", 0o777);
        } else if meta.is_dir() {
            self.count()?;
            self.append(b'5', &format!("{path}/"), b"", b"", 0o755);
            self.add_dir(root, path, ignore)?;
        } else if meta.is_file() {
            self.add_file(full, path, meta)?;
        } else {
            return Err(refused("", path, "sockets, pipes and devices cannot be deployed"));
        }
        Ok(())
    }

    fn add_file(&mut self, full: &Path, path: &str, meta: &fs::Metadata) -> Result<(), PackError> {
        let limits = ArchiveLimits::default();
        self.count()?;
        self.files += 1;
        // The size is checked before the file is read, so that a huge file uses no memory.
        if !self.unlimited && self.bytes.saturating_add(meta.len()) > limits.bytes {
            return Err(PackError::TooLarge(format!(
                "more than {} MiB with {path}; exclude files in .moteignore",
                limits.bytes >> 20
            )));
        }
        let content = fs::read(full).map_err(|error| io_error(full, error))?;
        self.bytes += content.len() as u64;
        let executable = meta.permissions().mode() & 0o111 != 0;
        let mode = if executable { 0o755 } else { 0o644 };
        self.append(b'0', path, b"", &content, mode);
        Ok(())
    }

    fn count(&mut self) -> Result<(), PackError> {
        self.entries += 1;
        let limit = ArchiveLimits::default().entries;
        if self.entries >= limit {
            let text = format!("more than {limit} files; exclude files in .moteignore");
            return Err(PackError::TooLarge(text));
        }
        Ok(())
    }

    fn append(&mut self, kind: u8, path: &str, link: &[u8], content: &[u8], mode: u32) {
        let mut records = Vec::new();
        if path.len() > 100 {
            records.extend(tar::pax("path", path.as_bytes()));
        }
        if link.len() > 100 {
            records.extend(tar::pax("linkpath", link));
        }
        if !records.is_empty() {
            let head = tar::header(b'x', b"pax", b"", records.len() as u64, 0o644);
            self.out.extend_from_slice(&head);
            self.append_content(&records);
        }
        let head = tar::header(kind, path.as_bytes(), link, content.len() as u64, mode);
        self.out.extend_from_slice(&head);
        self.append_content(content);
    }

    fn append_content(&mut self, content: &[u8]) {
        self.out.extend_from_slice(content);
        let padded = self.out.len().next_multiple_of(tar::BLOCK);
        self.out.resize(padded, 0);
    }
}

fn read_ignore(root: &Path) -> Result<Ignore, PackError> {
    Ok(find_ignore(root)?.map(|(_, ignore)| ignore).unwrap_or_default())
}

/// Finds the file with rules in a folder, and reads the rules.
fn find_ignore(root: &Path) -> Result<Option<(&'static str, Ignore)>, PackError> {
    for name in [".moteignore", ".gitignore"] {
        let path = root.join(name);
        match source::bytes(&path, root, source::TEXT_BYTES_MAX) {
            Ok(text) => {
                let rules = Ignore::parse(&String::from_utf8_lossy(&text));
                return Ok(Some((name, rules.map_err(|reason| refused("", name, &reason))?)));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                return Err(refused("", name, &error.to_string()));
            }
            Err(error) => return Err(io_error(&path, error)),
        }
    }
    Ok(None)
}

fn io_error(path: &Path, source: io::Error) -> PackError {
    PackError::Io { path: path.to_owned(), source }
}

fn refused(below: &str, name: &str, reason: &str) -> PackError {
    let path = if below.is_empty() { name.to_owned() } else { format!("{below}/{name}") };
    PackError::Refused { path: shown(path.as_bytes()), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for folder in ["node_modules/x", ".git", "lib/__pycache__", "out"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        for file in [
            "package.json",
            "index.mjs",
            "node_modules/x/i.js",
            ".git/HEAD",
            "lib/a.py",
            "lib/__pycache__/a.pyc",
            "out/o",
            "note.log",
        ] {
            fs::write(at(file), file).unwrap();
        }
        fs::write(at(".moteignore"), "/out\n*.log\n").unwrap();
        fs::write(at("run.sh"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(at("run.sh"), fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink("../index.mjs", at("lib/link")).unwrap();
        dir
    }

    #[test]
    fn a_rule_that_leaves_out_a_file_or_its_folder_is_named_by_its_file() {
        let dir = tree();
        let by = |path: &str| left_out_by(dir.path(), path).unwrap();
        assert_eq!([by("out/o"), by("note.log")], [Some(".moteignore"); 2]);
        assert_eq!([by("index.mjs"), by("lib/a.py")], [None; 2]);
        fs::remove_file(dir.path().join(".moteignore")).unwrap();
        assert_eq!(by("out/o"), None);
        fs::write(dir.path().join(".gitignore"), "out\n!out/o\n").unwrap();
        assert_eq!(by("out/o"), Some(".gitignore"), "the folder is not entered");
    }

    #[test]
    fn what_was_chosen_file_by_file_is_packed_whole() {
        let dir = tree();
        // The six are the modules, `.git`, the compiled files, `.moteignore` and the two files that
        // it names.
        let left_out = 6;
        let all = pack_whole(dir.path(), None).unwrap().files;
        assert_eq!(pack(dir.path(), None).unwrap().files + left_out, all);
    }

    #[test]
    fn what_is_packed_is_accepted_and_equal_folders_give_equal_bytes() {
        let one = tree();
        let two = tree();
        let spec = Some((".mote/spec.json", &b"{}"[..]));
        let packed = pack(one.path(), spec).unwrap();
        assert_eq!(packed, pack(two.path(), spec).unwrap());
        let limits = ArchiveLimits {
            set_aside: Some(".mote/spec.json".to_owned()),
            ..ArchiveLimits::default()
        };
        let out = tempfile::tempdir().unwrap();
        let unpacked = archive::unpack(&packed.tar[..], out.path(), &limits).unwrap();
        assert_eq!(unpacked.files, packed.files);
        let mut names: Vec<_> = fs::read_dir(out.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["index.mjs", "lib", "package.json", "run.sh"]);
        assert!(out.path().join("lib/link").exists());
        assert!(!out.path().join("lib/__pycache__").exists());
    }

    #[test]
    fn files_of_secrets_stay_here_and_are_named() {
        let dir = tree();
        let before = pack(dir.path(), None).unwrap();
        assert!(before.secret.is_empty());
        fs::write(dir.path().join(".env"), "KEY=1").unwrap();
        fs::write(dir.path().join("lib/.env.local"), "KEY=2").unwrap();
        let after = pack(dir.path(), None).unwrap();
        assert_eq!(after.tar, before.tar);
        assert_eq!(after.secret, [".env", "lib/.env.local"]);
        assert!(pack_whole(dir.path(), None).unwrap().secret.is_empty());
        fs::write(dir.path().join(".moteignore"), "/out\n*.log\n!.env\n").unwrap();
        let wanted = pack(dir.path(), None).unwrap();
        assert_eq!(
            (wanted.files, wanted.secret),
            (before.files + 1, vec!["lib/.env.local".into()])
        );
    }

    #[test]
    fn one_file_is_a_function() {
        let dir = tree();
        let packed = pack(&dir.path().join("index.mjs"), None).unwrap();
        assert_eq!(packed.files, 1);
        assert_eq!(&packed.tar[..9], b"index.mjs");
    }

    #[test]
    fn long_names_survive() {
        let dir = tempfile::tempdir().unwrap();
        let name = "x".repeat(200);
        fs::write(dir.path().join(&name), "1").unwrap();
        let packed = pack(dir.path(), None).unwrap();
        let out = tempfile::tempdir().unwrap();
        archive::unpack(&packed.tar[..], out.path(), &ArchiveLimits::default()).unwrap();
        assert!(out.path().join(&name).exists());
    }

    #[test]
    fn rules_are_read_from_a_regular_file_of_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".moteignore");
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        let error = pack(dir.path(), None).unwrap_err();
        assert_eq!((error.code(), error.to_string().contains("leaves")), ("M1301", true));
        fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        let error = pack(dir.path(), None).unwrap_err();
        assert_eq!(error.to_string(), ".moteignore: not a regular file");
    }

    #[test]
    fn what_cannot_be_deployed_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("l")).unwrap();
        let error = pack(dir.path(), None).unwrap_err();
        assert_eq!(error.to_string(), "l: link leaves the function");
        fs::remove_file(dir.path().join("l")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("s")).unwrap();
        let error = pack(dir.path(), None).unwrap_err();
        assert!(error.to_string().starts_with("s: sockets, pipes"), "{error}");
        let error = pack(&dir.path().join("missing"), None).unwrap_err();
        assert_eq!(error.code(), "M0102");
    }
}
