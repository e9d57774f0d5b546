//! Checks whether the other databases of a node, `journal.db` and `state.db`, are missing or
//! damaged although the node had them. Without this check, SQLite would create a new, empty file in
//! place of a missing one.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::error::StoreError;
use crate::schema;
use crate::store::{Store, sync_dir};

/// A database that the node had and has lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostFile {
    /// The database's name in the data folder.
    pub name: String,
    /// What is left of the database.
    pub loss: Loss,
}

/// What is left of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loss {
    Missing,
    /// The file was damaged, and was moved aside.
    Damaged {
        reason: String,
        moved_to: PathBuf,
    },
}

impl fmt::Display for LostFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match &self.loss {
            Loss::Missing => write!(f, "{name} is missing or empty, so what it held is lost"),
            Loss::Damaged { reason, moved_to } => {
                write!(f, "{name} is damaged ({reason}); it was moved to {}", moved_to.display())
            }
        }
    }
}

/// Longest file of which every page is checked when the node starts. The check takes some
/// milliseconds.
const CHECKED_BYTES_MAX: u64 = 8 << 20;
/// The most damaged files of one name that are kept.
const MOVED_MAX: u32 = 100;

impl Store {
    /// Checks the database `name` of the data folder before it is opened. A damaged database is
    /// moved aside together with its log, so that a new one can be made. The result says what was
    /// lost.
    pub fn check_file(&self, name: &str) -> Result<Option<LostFile>, StoreError> {
        let path = self.root().join(name);
        let was_made = self.mark(&schema::made(name))?.is_some();
        let bytes = match std::fs::metadata(&path) {
            Ok(meta) => meta.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Err(error) => return Err(StoreError::io(&path, error)),
        };
        if bytes == 0 {
            if !was_made {
                return Ok(None);
            }
            // A log without its file is useless, and SQLite would remove it.
            self.forget_mark(&schema::made(name))?;
            return Ok(Some(LostFile { name: name.to_owned(), loss: Loss::Missing }));
        }
        let Some(reason) = damage(&path, bytes)? else {
            if !was_made {
                self.set_mark(&schema::made(name), 1)?;
            }
            return Ok(None);
        };
        let moved_to = self.move_aside(&path)?;
        self.forget_mark(&schema::made(name))?;
        let loss = Loss::Damaged { reason, moved_to };
        Ok(Some(LostFile { name: name.to_owned(), loss }))
    }

    fn move_aside(&self, path: &Path) -> Result<PathBuf, StoreError> {
        let free = (1..=MOVED_MAX)
            .map(|number| schema::beside(path, &format!(".damaged-{number}")))
            .find(|free| !free.exists());
        let Some(target) = free else {
            let text =
                format!("{}: damaged, and {MOVED_MAX} damaged files are kept", path.display());
            return Err(StoreError::Damaged(text));
        };
        for suffix in ["-wal", "-shm", ""] {
            let from = schema::beside(path, suffix);
            let to = schema::beside(&target, suffix);
            match std::fs::rename(&from, &to) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StoreError::io(&from, error));
                }
                _ => {}
            }
        }
        sync_dir(self.root())?;
        Ok(target)
    }
}

/// Returns what is wrong with a file that is not empty; `None` if nothing is.
fn damage(path: &Path, bytes: u64) -> Result<Option<String>, StoreError> {
    let Some(header) = schema::header(path)? else {
        return Ok(Some(format!("it has {bytes} bytes, less than its header")));
    };
    if &header[..16] != b"SQLite format 3\0" {
        return Ok(Some("it is not a database".to_owned()));
    }
    // The format of the file is described at sqlite.org/fileformat2.html, 1.3.
    let page_bytes = match u64::from(u16::from_be_bytes([header[16], header[17]])) {
        1 => 65_536,
        bytes => bytes,
    };
    let pages = u64::from(schema::number(&header, 28));
    let is_counted = schema::number(&header, 24) == schema::number(&header, 92);
    if is_counted && pages * page_bytes > bytes {
        return Ok(Some(format!("it has {bytes} bytes of {}", pages * page_bytes)));
    }
    if bytes > CHECKED_BYTES_MAX {
        return Ok(None);
    }
    let connection = schema::connect(path)?;
    match quick_check(&connection) {
        // The tables were still in the log, and the log is gone.
        Ok(found)
            if found == "ok"
                && schema::pragma(&connection, "user_version")
                    .is_ok_and(|version| version == 0) =>
        {
            Ok(Some("it has no tables".to_owned()))
        }
        Ok(found) if found == "ok" => Ok(None),
        Ok(found) => Ok(Some(found.replace('\n', " "))),
        Err(error) => match schema::sql(path, error) {
            StoreError::Damaged(text) => Ok(Some(text)),
            other => Err(other),
        },
    }
}

fn quick_check(connection: &Connection) -> rusqlite::Result<String> {
    connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
}

/// Whether a file begins like a database. False if the file cannot be read.
pub(crate) fn begins_like_a_database(path: &Path) -> bool {
    let mut magic = [0; 16];
    let read =
        File::open(path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic));
    read.is_ok() && &magic == b"SQLite format 3\0"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::Committer;

    const STEPS: &[&str] = &["CREATE TABLE t (value TEXT NOT NULL) STRICT;"];

    /// A data folder in which `x.db` was created and filled.
    fn filled() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        drop(Store::open(folder.path()).unwrap());
        let path = folder.path().join("x.db");
        let committer = Committer::open(&path, STEPS, "test").unwrap();
        let (sender, done) = std::sync::mpsc::channel();
        let insert = |connection: &Connection| {
            for _ in 0..1_000 {
                connection.execute("INSERT INTO t VALUES (hex(randomblob(100)))", [])?;
            }
            Ok(())
        };
        committer.submit(true, insert, move |result| sender.send(result.is_ok()).unwrap());
        assert!(done.recv().unwrap());
        drop(committer);
        (folder, path)
    }

    fn check(folder: &tempfile::TempDir) -> Option<LostFile> {
        Store::open(folder.path()).unwrap().check_file("x.db").unwrap()
    }

    #[test]
    fn a_file_that_is_whole_or_was_never_made_is_no_loss() {
        let (folder, _) = filled();
        assert_eq!(check(&folder), None);
        let store = Store::open(folder.path()).unwrap();
        assert_eq!(store.check_file("y.db").unwrap(), None);
        std::fs::write(folder.path().join("y.db"), "").unwrap();
        assert_eq!(store.check_file("y.db").unwrap(), None);
    }

    #[test]
    fn a_file_that_was_made_and_is_gone_is_said_once() {
        for empty in [true, false] {
            let (folder, path) = filled();
            match empty {
                true => std::fs::write(&path, "").unwrap(),
                false => std::fs::remove_file(&path).unwrap(),
            }
            let lost = check(&folder).unwrap();
            assert_eq!(lost.loss, Loss::Missing);
            assert_eq!(lost.to_string(), "x.db is missing or empty, so what it held is lost");
            assert_eq!(check(&folder), None);
        }
    }

    #[test]
    fn a_damaged_file_is_kept_aside() {
        let whole = std::fs::metadata(filled().1).unwrap().len();
        for cut in [50, 4_096, whole / 2, whole - 1] {
            let (folder, path) = filled();
            std::fs::File::options().write(true).open(&path).unwrap().set_len(cut).unwrap();
            let Loss::Damaged { reason, moved_to } = check(&folder).unwrap().loss else {
                panic!("{cut}");
            };
            assert!(reason.starts_with(&format!("it has {cut} bytes")), "{reason}");
            assert_eq!(std::fs::metadata(&moved_to).unwrap().len(), cut);
            assert!(moved_to.ends_with("x.db.damaged-1") && !path.exists());
            assert_eq!(check(&folder), None, "a new file can be made");
        }
        let (folder, path) = filled();
        std::fs::write(&path, vec![7; 10_000]).unwrap();
        assert!(matches!(check(&folder).unwrap().loss, Loss::Damaged { .. }));
        let (folder, path) = filled();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[20_000..24_000].fill(0xff);
        std::fs::write(&path, bytes).unwrap();
        assert!(matches!(check(&folder).unwrap().loss, Loss::Damaged { .. }));
    }
}
