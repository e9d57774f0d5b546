//! Secrets: values that functions read as files. They are not encrypted; the data folder protects
//! them, because only its owner can read it.

use rusqlite::params;

use crate::error::StoreError;
use crate::schema;
use crate::store::Store;

impl Store {
    /// Creates or replaces a secret. Returns whether it existed before.
    pub fn put_secret(&self, name: &str, value: &str) -> Result<bool, StoreError> {
        self.change(|change| {
            let there = change.execute("DELETE FROM secrets WHERE name = ?1", params![name])? > 0;
            let sql = "INSERT INTO secrets (name, value) VALUES (?1, ?2)";
            change.execute(sql, params![name, value])?;
            Ok(there)
        })
    }

    /// Removes a secret. Returns whether it existed.
    pub fn remove_secret(&self, name: &str) -> Result<bool, StoreError> {
        let sql = "DELETE FROM secrets WHERE name = ?1";
        Ok(self.change(|change| change.execute(sql, params![name]))? > 0)
    }

    /// Names and values of all secrets, sorted by name.
    pub fn secrets(&self) -> Result<Vec<(String, String)>, StoreError> {
        let connection = self.lock();
        let sql = |error| schema::sql(self.root(), error);
        let mut statement =
            connection.prepare("SELECT name, value FROM secrets ORDER BY name").map_err(sql)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).map_err(sql)?;
        rows.collect::<Result<Vec<_>, _>>().map_err(sql)
    }
}

#[cfg(test)]
mod tests {
    use crate::Store;

    #[test]
    fn secrets_are_replaced_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        assert!(!store.put_secret("b", "1").unwrap());
        assert!(store.put_secret("b", "2").unwrap());
        assert!(!store.put_secret("a", "").unwrap());
        let expected = [("a".to_owned(), String::new()), ("b".to_owned(), "2".to_owned())];
        assert_eq!(store.secrets().unwrap(), expected);
        assert!(store.remove_secret("a").unwrap());
        assert!(!store.remove_secret("a").unwrap());
    }
}
