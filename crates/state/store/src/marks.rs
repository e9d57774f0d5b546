//! Named values that must survive a restart, such as the time up to which schedules were handled.

use rusqlite::{OptionalExtension, params};

use crate::error::StoreError;
use crate::schema;
use crate::store::Store;

impl Store {
    pub fn mark(&self, name: &str) -> Result<Option<i64>, StoreError> {
        let connection = self.lock();
        let found = connection
            .query_row("SELECT value FROM marks WHERE name = ?1", [name], |row| row.get(0))
            .optional();
        found.map_err(|error| schema::sql(self.root(), error))
    }

    /// Stores a value under a name, in place of the former value.
    pub fn set_mark(&self, name: &str, value: i64) -> Result<(), StoreError> {
        self.change(|change| {
            change.execute(
                "INSERT INTO marks (name, value) VALUES (?1, ?2)
                 ON CONFLICT (name) DO UPDATE SET value = ?2",
                params![name, value],
            )?;
            Ok(())
        })
    }

    /// Removes the value under a name.
    pub(crate) fn forget_mark(&self, name: &str) -> Result<(), StoreError> {
        self.change(|change| {
            change.execute("DELETE FROM marks WHERE name = ?1", [name])?;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_survives_a_restart_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        assert_eq!(store.mark("schedules").unwrap(), None);
        store.set_mark("schedules", 5).unwrap();
        store.set_mark("schedules", -7).unwrap();
        drop(store);
        let store = Store::open(folder.path()).unwrap();
        assert_eq!(store.mark("schedules").unwrap(), Some(-7));
        assert_eq!(store.mark("others").unwrap(), None);
    }
}
