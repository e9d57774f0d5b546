//! Restores a node's files whose tables a new version has changed.
//!
//! Before a node changes the tables of `mote.db`, it keeps the file as `mote.db.format-4`. A
//! version that never became ready has accepted no work, so its file can be replaced by that copy.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::failure::Failure;

/// A file whose tables were changed, and the copy from before the change.
#[derive(Debug)]
pub(crate) struct Changed {
    file: PathBuf,
    copy: PathBuf,
}

pub(crate) fn written(path: &Path) -> Result<SystemTime, Failure> {
    let written = path.metadata().and_then(|meta| meta.modified());
    written.map_err(|error| Failure::file(path, &error))
}

/// The files in a data folder whose tables have been changed since `since`.
pub(crate) fn changed_since(folder: &Path, since: SystemTime) -> Result<Vec<Changed>, Failure> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| Failure::file(folder, &error))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let copy = entry.map_err(|error| Failure::file(folder, &error))?.path();
        let text = copy.to_string_lossy();
        let Some((file, format)) = text.split_once(".db.format-") else { continue };
        if format.parse::<u32>().is_ok() && written(&copy)? >= since {
            let file = PathBuf::from(format!("{file}.db"));
            found.push(Changed { file, copy });
        }
    }
    Ok(found)
}

pub(crate) fn names(changed: &[Changed]) -> String {
    let name =
        |one: &Changed| one.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    changed.iter().map(name).collect::<Vec<_>>().join(" and ")
}

/// Replaces each file by its copy. No node may be using the files. Can be repeated.
pub(crate) fn bring_back(changed: &[Changed]) -> Result<(), Failure> {
    for Changed { file, copy } in changed {
        for log in ["-wal", "-shm"] {
            let log = PathBuf::from(format!("{}{log}", file.display()));
            match std::fs::remove_file(&log) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Failure::file(&log, &error));
                }
                _ => {}
            }
        }
        std::fs::rename(copy, file).map_err(|error| Failure::file(file, &error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_copies_of_this_upgrade_come_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let write = |name: &str| std::fs::write(path(name), name).expect("a file");
        let names_of = |since| names(&changed_since(folder.path(), since).expect("a folder"));
        for name in ["mote.db", "mote.db-wal", "state.db", "mote.db.format-new", "x.format-1"] {
            write(name);
        }
        assert_eq!(names_of(SystemTime::UNIX_EPOCH), "");
        write("mote.db.format-4");
        let since = written(&path("mote.db.format-4")).expect("a file");
        assert_eq!(names_of(since), "mote.db");
        assert_eq!(names_of(since + std::time::Duration::from_secs(1)), "");
        bring_back(&changed_since(folder.path(), since).expect("a folder")).expect("renamed");
        assert_eq!(std::fs::read(path("mote.db")).expect("a file"), b"mote.db.format-4");
        assert!(!path("mote.db-wal").exists() && !path("mote.db.format-4").exists());
        assert!(path("state.db").exists());
        assert!(changed_since(&path("none"), since).expect("no folder").is_empty());
    }
}
