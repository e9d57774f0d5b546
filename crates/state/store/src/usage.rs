//! How much disk space functions use.

use std::path::{Path, PathBuf};

use rusqlite::Row;

use crate::error::StoreError;
use crate::schema;
use crate::store::Store;

/// The block size of the disk. A file uses at least one block, and its size is rounded up to whole
/// blocks.
const BLOCK_BYTES: u64 = 4_096;

impl Store {
    /// Returns the folders with the code and packages of all revisions of a namespace's functions,
    /// each folder once. Functions of several namespaces may share a folder.
    pub fn trees_of(&self, namespace: &str) -> Result<Vec<PathBuf>, StoreError> {
        let connection = self.lock();
        let sql = |error| schema::sql(self.root(), error);
        // The name of a namespace contains no character with a special meaning in a pattern.
        let mut statement = connection
            .prepare(
                "SELECT 1, code_hash FROM revisions WHERE function LIKE '%.' || ?1
                 UNION
                 SELECT 0, packages_key FROM revisions
                 WHERE function LIKE '%.' || ?1 AND packages_key IS NOT NULL",
            )
            .map_err(sql)?;
        let read = |row: &Row<'_>| {
            let (is_code, key): (bool, String) = (row.get(0)?, row.get(1)?);
            Ok(if is_code { self.code_path(&key) } else { self.packages_path(&key) })
        };
        let rows = statement.query_map([namespace], read).map_err(sql)?;
        rows.collect::<Result<Vec<_>, _>>().map_err(sql)
    }
}

/// Counts the bytes of the files below a folder, and stops counting above `most`. Anything
/// unreadable counts as 0. Visits each file.
pub fn bytes_below(folder: &Path, most: u64) -> u64 {
    sum_below(folder, most, |bytes| bytes)
}

/// Returns the disk space of a folder in bytes. Each file and each folder uses whole blocks.
pub fn disk_bytes(folder: &Path) -> u64 {
    BLOCK_BYTES + sum_below(folder, u64::MAX, |bytes| bytes.max(1).next_multiple_of(BLOCK_BYTES))
}

fn sum_below(folder: &Path, most: u64, taken: impl Fn(u64) -> u64) -> u64 {
    let mut sum = 0;
    let mut folders: Vec<PathBuf> = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => {
                    folders.push(entry.path());
                    sum += taken(0);
                }
                Ok(meta) => sum += taken(meta.len()),
                Err(_) => {}
            }
            if sum > most {
                return sum;
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_take_whole_blocks_on_disk() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("a")).unwrap();
        for (name, bytes) in [("b", 1), ("a/c", 4_096), ("a/d", 4_097), ("e", 0)] {
            std::fs::write(folder.path().join(name), vec![0; bytes]).unwrap();
        }
        assert_eq!(bytes_below(folder.path(), u64::MAX), 1 + 4_096 + 4_097);
        assert!(bytes_below(folder.path(), 4_000) > 4_000);
        assert_eq!(disk_bytes(folder.path()), 4_096 * (1 + 1 + 1 + 1 + 2 + 1));
    }
}
