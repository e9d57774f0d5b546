//! Calls that were accepted and have not ended. They survive a power cut.

use rusqlite::{OptionalExtension as _, params};

use crate::error::StoreError;
use crate::schema;
use crate::store::Store;

impl Store {
    /// Stores a call and returns its number, which is never used again. The call is then on disk.
    pub fn add_call(&self, record: &[u8]) -> Result<u64, StoreError> {
        let number = self.change(|change| {
            change.execute("INSERT INTO calls (record) VALUES (?1)", params![record])?;
            Ok(change.last_insert_rowid())
        })?;
        Ok(number.unsigned_abs())
    }

    pub fn call(&self, number: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let connection = self.lock();
        let sql = "SELECT record FROM calls WHERE number = ?1";
        let row = connection.query_row(sql, params![number as i64], |row| row.get(0));
        row.optional().map_err(|error| schema::sql(self.root(), error))
    }

    pub fn remove_call(&self, number: u64) -> Result<(), StoreError> {
        self.change(|change| {
            change.execute("DELETE FROM calls WHERE number = ?1", params![number as i64])
        })?;
        Ok(())
    }

    /// Number and length in bytes of every stored call, oldest first.
    pub fn calls(&self) -> Result<Vec<(u64, u64)>, StoreError> {
        let connection = self.lock();
        let sql = |error| schema::sql(self.root(), error);
        let mut statement = connection
            .prepare("SELECT number, length(record) FROM calls ORDER BY number")
            .map_err(sql)?;
        let rows = statement
            .query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))
            .map_err(sql)?;
        let all = rows.collect::<Result<Vec<_>, _>>().map_err(sql)?;
        Ok(all.into_iter().map(|(n, length)| (n.unsigned_abs(), length.unsigned_abs())).collect())
    }
}

#[cfg(test)]
mod tests {
    use crate::Store;

    #[test]
    fn calls_are_kept_until_they_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let first = store.add_call(b"one").unwrap();
        let second = store.add_call(b"two!").unwrap();
        drop(store);
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.calls().unwrap(), [(first, 3), (second, 4)]);
        assert_eq!(store.call(first).unwrap().as_deref(), Some(&b"one"[..]));
        store.remove_call(first).unwrap();
        store.remove_call(second).unwrap();
        assert_eq!(store.call(first).unwrap(), None);
        assert!(store.add_call(b"three").unwrap() > second, "numbers are not used twice");
    }
}
