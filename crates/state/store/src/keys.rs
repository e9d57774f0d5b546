//! The stored data about the keys of callers. The key itself is never stored.

use rusqlite::{OptionalExtension as _, Row, params};

use crate::error::StoreError;
use crate::schema::{self, NAMESPACE, namespace_of};
use crate::store::Store;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredKey {
    /// The name of the caller.
    pub name: String,
    /// The SHA-256 of the key.
    pub hash: [u8; 32],
    /// The functions that the key opens, as patterns without spaces. Empty means every function.
    pub functions: Vec<String>,
    /// When the key was made, in milliseconds since 1970.
    pub created_at_ms: u64,
    /// The time at which the key expires, in milliseconds since 1970.
    pub expires_at_ms: Option<u64>,
    /// Whether this is the caller's current key. False for a key that was replaced.
    pub is_current: bool,
}

/// The result of adding a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    Stored,
    /// The caller already has a key.
    Exists,
    /// The namespace already has the most keys allowed.
    Full,
}

const COLUMNS: &str = "name, hash, functions, created_at_ms, expires_at_ms, is_current";

impl Store {
    /// Adds the first key of a caller. Fails with [`Added::Full`] if the namespace already has
    /// `keys_max` callers.
    pub fn add_key(&self, key: &StoredKey, keys_max: i64) -> Result<Added, StoreError> {
        self.change(|change| {
            let known = "SELECT EXISTS (SELECT 1 FROM keys WHERE name = ?1)";
            if change.query_row(known, params![key.name], |row| row.get(0))? {
                return Ok(Added::Exists);
            }
            let count = format!("SELECT count(*) FROM keys WHERE is_current AND {NAMESPACE} = ?1");
            let own = params![namespace_of(&key.name)];
            if change.query_row(&count, own, |row| row.get::<_, i64>(0))? >= keys_max {
                return Ok(Added::Full);
            }
            insert(change, key)?;
            Ok(Added::Stored)
        })
    }

    /// Replaces the key of a caller. The new key has another hash, but the same functions and
    /// expiry. The replaced key stays valid until `previous_until_ms` at the latest. A key that was
    /// replaced earlier is removed. Returns the new key, or `None` if the caller has no key.
    pub fn rotate_key(
        &self,
        name: &str,
        hash: [u8; 32],
        now_ms: u64,
        previous_until_ms: u64,
    ) -> Result<Option<StoredKey>, StoreError> {
        self.change(|change| {
            let sql = format!("SELECT {COLUMNS} FROM keys WHERE name = ?1 AND is_current");
            let Some(old) = change.query_row(&sql, params![name], stored).optional()? else {
                return Ok(None);
            };
            change.execute("DELETE FROM keys WHERE name = ?1", params![name])?;
            let lifetime = |expires: u64| expires.saturating_sub(old.created_at_ms);
            let new = StoredKey {
                hash,
                created_at_ms: now_ms,
                expires_at_ms: old.expires_at_ms.map(|expires| now_ms + lifetime(expires)),
                ..old.clone()
            };
            insert(change, &new)?;
            let until = old.expires_at_ms.unwrap_or(u64::MAX).min(previous_until_ms);
            if until > now_ms {
                insert(
                    change,
                    &StoredKey { expires_at_ms: Some(until), is_current: false, ..old },
                )?;
            }
            Ok(Some(new))
        })
    }

    /// Removes all keys of a caller. Returns whether the caller had one.
    pub fn remove_key(&self, name: &str) -> Result<bool, StoreError> {
        let sql = "DELETE FROM keys WHERE name = ?1";
        Ok(self.change(|change| change.execute(sql, params![name]))? > 0)
    }

    /// Removes all keys of a namespace other than the default one.
    pub fn remove_keys_of(&self, namespace: &str) -> Result<(), StoreError> {
        let sql = format!("DELETE FROM keys WHERE {NAMESPACE} = ?1 || '/'");
        self.change(|change| change.execute(&sql, params![namespace]))?;
        Ok(())
    }

    /// Returns all keys sorted by name, the current key of each caller first.
    pub fn keys(&self) -> Result<Vec<StoredKey>, StoreError> {
        let connection = self.lock();
        let sql = |error| schema::sql(self.root(), error);
        let all = format!("SELECT {COLUMNS} FROM keys ORDER BY name, is_current DESC");
        let mut statement = connection.prepare(&all).map_err(sql)?;
        let rows = statement.query_map([], stored).map_err(sql)?;
        rows.collect::<Result<Vec<_>, _>>().map_err(sql)
    }
}

fn insert(change: &rusqlite::Transaction<'_>, key: &StoredKey) -> rusqlite::Result<usize> {
    let sql = format!("INSERT INTO keys ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6)");
    change.execute(
        &sql,
        params![
            key.name,
            key.hash,
            key.functions.join(" "),
            key.created_at_ms as i64,
            key.expires_at_ms.map(|ms| ms as i64),
            key.is_current
        ],
    )
}

fn stored(row: &Row<'_>) -> rusqlite::Result<StoredKey> {
    let functions: String = row.get(2)?;
    Ok(StoredKey {
        name: row.get(0)?,
        hash: row.get(1)?,
        functions: functions.split_ascii_whitespace().map(str::to_owned).collect(),
        created_at_ms: row.get::<_, i64>(3)? as u64,
        expires_at_ms: row.get::<_, Option<i64>>(4)?.map(|ms| ms as u64),
        is_current: row.get(5)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, hash: u8, expires_at_ms: Option<u64>) -> StoredKey {
        StoredKey {
            name: name.to_owned(),
            hash: [hash; 32],
            functions: vec!["hello".to_owned(), "shop-*".to_owned()],
            created_at_ms: 1_000,
            expires_at_ms,
            is_current: true,
        }
    }

    #[test]
    fn keys_are_added_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.add_key(&key("b", 1, None), 2).unwrap(), Added::Stored);
        assert_eq!(store.add_key(&key("b", 2, None), 2).unwrap(), Added::Exists);
        assert_eq!(store.add_key(&key("a", 3, Some(5)), 2).unwrap(), Added::Stored);
        assert_eq!(store.add_key(&key("c", 4, None), 2).unwrap(), Added::Full);
        assert_eq!(store.keys().unwrap(), [key("a", 3, Some(5)), key("b", 1, None)]);
        assert!(store.remove_key("a").unwrap());
        assert!(!store.remove_key("a").unwrap());
        drop(store);
        assert_eq!(Store::open(dir.path()).unwrap().keys().unwrap(), [key("b", 1, None)]);
    }

    #[test]
    fn namespaces_have_keys_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        for (number, name) in (1..).zip(["plant/a", "plant/b", "planted/a", "a", "b"]) {
            assert_eq!(store.add_key(&key(name, number, None), 2).unwrap(), Added::Stored);
        }
        for name in ["plant/c", "c"] {
            assert_eq!(store.add_key(&key(name, 9, None), 2).unwrap(), Added::Full, "{name}");
        }
        store.rotate_key("plant/a", [8; 32], 2_000, 3_000).unwrap();
        store.remove_keys_of("plant").unwrap();
        let left: Vec<String> = store.keys().unwrap().into_iter().map(|key| key.name).collect();
        assert_eq!(left, ["a", "b", "planted/a"]);
    }

    #[test]
    fn a_rotation_keeps_one_former_key() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.rotate_key("a", [9; 32], 2_000, 3_000).unwrap(), None);
        store.add_key(&key("a", 1, Some(11_000)), 10).unwrap();
        let new = store.rotate_key("a", [2; 32], 2_000, 3_000).unwrap().unwrap();
        assert_eq!((new.created_at_ms, new.expires_at_ms), (2_000, Some(12_000)));
        let former = StoredKey { is_current: false, ..key("a", 1, Some(3_000)) };
        assert_eq!(store.keys().unwrap(), [new, former]);
        // The second rotation ends the first key. Without a grace period, it ends the second key,
        // too.
        let last = store.rotate_key("a", [3; 32], 2_500, 2_500).unwrap().unwrap();
        assert_eq!(store.keys().unwrap(), [last]);
        assert!(store.remove_key("a").unwrap());
        assert_eq!(store.keys().unwrap(), []);
    }
}
