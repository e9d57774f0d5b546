//! Documents that the APIs of other platforms store. They have no meaning to the node itself.

use rusqlite::{OptionalExtension as _, params};

use crate::error::StoreError;
use crate::schema;
use crate::store::Store;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentChange {
    pub collection: String,
    pub key: String,
    /// The document's new content; `None` removes the document.
    pub value: Option<Vec<u8>>,
}

impl Store {
    /// Makes all of the changes or none of them. They are on disk when this returns.
    pub fn put_documents(&self, changes: &[DocumentChange]) -> Result<(), StoreError> {
        self.change(|change| {
            let put = "INSERT INTO documents (collection, key, value) VALUES (?1, ?2, ?3)
                       ON CONFLICT (collection, key) DO UPDATE SET value = excluded.value";
            let remove = "DELETE FROM documents WHERE collection = ?1 AND key = ?2";
            for DocumentChange { collection, key, value } in changes {
                match value {
                    Some(value) => change.prepare(put)?.execute(params![collection, key, value])?,
                    None => change.prepare(remove)?.execute(params![collection, key])?,
                };
            }
            Ok(())
        })
    }

    /// Returns the keys and documents of a collection, sorted by key.
    pub fn documents(&self, collection: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let connection = self.lock();
        let sql = |error| schema::sql(self.root(), error);
        let mut statement = connection
            .prepare("SELECT key, value FROM documents WHERE collection = ?1 ORDER BY key")
            .map_err(sql)?;
        let rows = statement
            .query_map(params![collection], |row| Ok((row.get(0)?, row.get(1)?)))
            .map_err(sql)?;
        rows.collect::<Result<Vec<_>, _>>().map_err(sql)
    }

    pub fn document(&self, collection: &str, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let connection = self.lock();
        let sql = "SELECT value FROM documents WHERE collection = ?1 AND key = ?2";
        let row = connection.query_row(sql, params![collection, key], |row| row.get(0));
        row.optional().map_err(|error| schema::sql(self.root(), error))
    }
}

#[cfg(test)]
mod tests {
    use super::DocumentChange;
    use crate::Store;

    #[test]
    fn documents_outlive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let change = |key: &str, value: Option<&str>| DocumentChange {
            collection: "c".into(),
            key: key.into(),
            value: value.map(|text| text.as_bytes().to_vec()),
        };
        store.put_documents(&[change("b", Some("1")), change("a", Some("2"))]).unwrap();
        store.put_documents(&[change("b", Some("3")), change("a", None)]).unwrap();
        drop(store);
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.documents("c").unwrap(), [("b".to_owned(), b"3".to_vec())]);
        assert_eq!(store.document("c", "b").unwrap().as_deref(), Some(&b"3"[..]));
        assert_eq!(store.document("d", "b").unwrap(), None);
    }
}
