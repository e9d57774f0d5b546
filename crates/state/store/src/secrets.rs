//! Secrets: values that functions read as files. The store keeps them encrypted and knows no key.

use rusqlite::params;

use crate::error::StoreError;
use crate::schema::{self, NAMESPACE, namespace_of};
use crate::store::Store;

/// The first version of the tables without secrets in plain text.
const ENCRYPTED_VERSION: u32 = 8;

/// The secrets that the store already contains when another one is put into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecretsThere {
    /// Whether there is a secret with this name.
    pub exists: bool,
    /// How many other secrets the namespace has.
    pub others: u64,
    /// The encrypted bytes of these other secrets.
    pub others_bytes: u64,
}

impl Store {
    /// Creates or replaces a secret if `may` permits it. Returns whether it existed before.
    pub fn put_secret<E>(
        &self,
        name: &str,
        sealed: &[u8],
        may: impl FnOnce(SecretsThere) -> Result<(), E>,
    ) -> Result<Result<bool, E>, StoreError> {
        self.change(|change| {
            let known = "SELECT EXISTS (SELECT 1 FROM secrets WHERE name = ?1)";
            let exists = change.query_row(known, params![name], |row| row.get(0))?;
            let others = format!(
                "SELECT count(*), coalesce(sum(length(sealed)), 0) FROM secrets
                 WHERE {NAMESPACE} = ?1 AND name <> ?2"
            );
            let there = change.query_row(&others, params![namespace_of(name), name], |row| {
                let [others, others_bytes] = [row.get::<_, i64>(0)?, row.get(1)?].map(|n| n as u64);
                Ok(SecretsThere { exists, others, others_bytes })
            })?;
            if let Err(error) = may(there) {
                return Ok(Err(error));
            }
            let sql = "INSERT OR REPLACE INTO secrets (name, sealed) VALUES (?1, ?2)";
            change.execute(sql, params![name, sealed])?;
            Ok(Ok(exists))
        })
    }

    /// Removes all secrets of a namespace other than the default one. Returns their names.
    pub fn remove_secrets_of(&self, namespace: &str) -> Result<Vec<String>, StoreError> {
        let sql = format!("DELETE FROM secrets WHERE {NAMESPACE} = ?1 || '/' RETURNING name");
        self.change(|change| {
            let mut statement = change.prepare(&sql)?;
            statement.query_map(params![namespace], |row| row.get(0))?.collect()
        })
    }

    /// Removes a secret. Returns whether it existed.
    pub fn remove_secret(&self, name: &str) -> Result<bool, StoreError> {
        let sql = "DELETE FROM secrets WHERE name = ?1";
        Ok(self.change(|change| change.execute(sql, params![name]))? > 0)
    }

    /// Names and encrypted values of all secrets, sorted by name.
    pub fn secrets(&self) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.named_values("SELECT name, sealed FROM secrets ORDER BY name")
    }

    /// Names of all secrets, sorted.
    pub fn secret_names(&self) -> Result<Vec<String>, StoreError> {
        let all = self.named_values::<i64>("SELECT name, 0 FROM secrets ORDER BY name")?;
        Ok(all.into_iter().map(|(name, _)| name).collect())
    }

    /// Names and values of secrets that an earlier version wrote in plain text.
    pub fn plain_secrets(&self) -> Result<Vec<(String, String)>, StoreError> {
        self.named_values("SELECT name, value FROM plain_secrets ORDER BY name")
    }

    /// Replaces all secrets by these in one step. The former bytes may remain in the file's free
    /// space; see [`Store::clean_secrets`].
    pub fn replace_secrets(&self, all: &[(String, Vec<u8>)]) -> Result<(), StoreError> {
        self.change(|change| {
            change.execute_batch("DELETE FROM secrets; DELETE FROM plain_secrets;")?;
            let mut insert =
                change.prepare("INSERT INTO secrets (name, sealed) VALUES (?1, ?2)")?;
            for (name, sealed) in all {
                insert.execute(params![name, sealed])?;
            }
            Ok(())
        })
    }

    /// Removes the remains of secrets that earlier versions wrote in plain text. This happens once
    /// for each data folder; after a crash the next start begins again. The first start clears the
    /// file's free space and its log. The copy that an upgrade has kept is needed to go back, so
    /// only the next start removes that copy.
    pub fn clean_secrets(&self) -> Result<(), StoreError> {
        if self.mark(schema::SECRETS_CLEANED)?.is_some() {
            schema::remove_former(&self.root().join("mote.db"), ENCRYPTED_VERSION);
            return Ok(());
        }
        let sql = |error| schema::sql(self.root(), error);
        {
            let connection = self.lock();
            // VACUUM writes the file anew without the removed data. The checkpoint then empties the
            // log.
            connection.execute_batch("VACUUM").map_err(sql)?;
            let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
            let busy: i64 = connection.query_row(checkpoint, [], |row| row.get(0)).map_err(sql)?;
            if busy != 0 {
                return Ok(());
            }
        }
        self.set_mark(schema::SECRETS_CLEANED, 1)
    }

    fn named_values<T: rusqlite::types::FromSql>(
        &self,
        query: &str,
    ) -> Result<Vec<(String, T)>, StoreError> {
        let connection = self.lock();
        let sql = |error| schema::sql(self.root(), error);
        let mut statement = connection.prepare(query).map_err(sql)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).map_err(sql)?;
        rows.collect::<Result<Vec<_>, _>>().map_err(sql)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::SecretsThere;
    use crate::Store;

    /// Puts a secret. Returns what the store contained before.
    fn put(store: &Store, name: &str, sealed: &[u8]) -> SecretsThere {
        let mut seen = None;
        let may = |there| {
            seen = Some(there);
            Ok::<_, Infallible>(())
        };
        let existed = store.put_secret(name, sealed, may).unwrap().unwrap();
        let seen = seen.unwrap();
        assert_eq!(existed, seen.exists);
        seen
    }

    #[test]
    fn namespaces_have_secrets_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let there = |exists, others, others_bytes| SecretsThere { exists, others, others_bytes };
        assert_eq!(put(&store, "a", b"123"), there(false, 0, 0));
        assert_eq!(put(&store, "plant/a", b"1234"), there(false, 0, 0));
        assert_eq!(put(&store, "plant/b", b"12"), there(false, 1, 4));
        assert_eq!(put(&store, "plant/b", b"12345"), there(true, 1, 4));
        assert_eq!(put(&store, "planted/a", b"1"), there(false, 0, 0));
        assert_eq!(put(&store, "b", b"1"), there(false, 1, 3));
        let refused = store.put_secret("plant/a", b"", |there| Err(there.others_bytes));
        assert_eq!(refused.unwrap(), Err(5));
        assert_eq!(store.remove_secrets_of("plant").unwrap(), ["plant/a", "plant/b"]);
        assert_eq!(store.secret_names().unwrap(), ["a", "b", "planted/a"]);
    }

    #[test]
    fn secrets_are_replaced_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        assert!(!put(&store, "b", b"1").exists);
        assert!(put(&store, "b", b"2").exists);
        assert!(!put(&store, "a", b"").exists);
        let expected = [("a".to_owned(), b"".to_vec()), ("b".to_owned(), b"2".to_vec())];
        assert_eq!(store.secrets().unwrap(), expected);
        assert!(store.remove_secret("a").unwrap());
        assert!(!store.remove_secret("a").unwrap());
        drop(store);
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.secrets().unwrap(), expected[1..]);
    }

    #[test]
    fn nothing_is_left_of_secrets_in_plain_text() {
        const VALUE: &str = "the value in plain text";
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        // The file now looks like one from an earlier version.
        store.lock().execute("DELETE FROM marks", []).unwrap();
        for (name, value) in [("a", "gone before: the value in plain text"), ("a", VALUE)] {
            let connection = store.lock();
            connection.execute("DELETE FROM plain_secrets", []).unwrap();
            let sql = "INSERT INTO plain_secrets (name, value) VALUES (?1, ?2)";
            connection.execute(sql, [name, value]).unwrap();
        }
        let found = || {
            let files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
            let has = |path: &std::path::PathBuf| {
                let content = std::fs::read(path).unwrap_or_default();
                content.windows(VALUE.len()).any(|part| part == VALUE.as_bytes())
            };
            files.filter(has).count()
        };
        assert!(found() > 0, "the test finds what it looks for");
        assert_eq!(store.plain_secrets().unwrap(), [("a".to_owned(), VALUE.to_owned())]);
        store.replace_secrets(&[("a".to_owned(), b"sealed".to_vec())]).unwrap();
        // Simulates a crash, and a start after it.
        drop(store);
        let store = Store::open(dir.path()).unwrap();
        assert!(found() > 0, "the rows are gone, but not their bytes");
        let former = dir.path().join("mote.db.format-7");
        std::fs::write(&former, VALUE).unwrap();
        store.clean_secrets().unwrap();
        assert!(former.exists(), "going back needs it");
        assert_eq!(found(), 1);
        store.clean_secrets().unwrap();
        assert_eq!(found(), 0);
        assert_eq!(store.plain_secrets().unwrap(), []);
        assert_eq!(store.secrets().unwrap(), [("a".to_owned(), b"sealed".to_vec())]);
    }
}
