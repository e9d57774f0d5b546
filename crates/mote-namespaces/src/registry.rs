//! The namespaces of a node, in the store and in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arc_swap::ArcSwap;
use mote_api::Problem;
use mote_api::namespaces::Quotas;
use mote_core::name::{DEFAULT_NAMESPACE, is_label};
use mote_store::{DocumentChange, Store, StoreError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::problems::{being_deleted, no_such_namespace};

/// The collection of the store in which they are.
const COLLECTION: &str = "namespaces";
/// Most namespaces of a node.
const NAMESPACES_MAX: usize = 1_000;

/// What the node keeps of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// When it was made, in milliseconds since 1970.
    pub created_at_ms: u64,
    /// Its limits.
    #[serde(default)]
    pub quotas: Quotas,
    /// Whether its removal has begun. Nothing in it changes any more.
    #[serde(default)]
    pub is_being_deleted: bool,
}

/// All namespaces but the default one.
#[derive(Debug, Default)]
pub struct Namespaces {
    all: ArcSwap<BTreeMap<String, Namespace>>,
    /// The changes in each namespace that are under way.
    changes: Mutex<HashMap<Arc<str>, usize>>,
}

/// A change in a namespace, which delays the removal of the namespace until it is dropped.
#[derive(Debug)]
pub struct Change {
    of: Arc<Namespaces>,
    name: Arc<str>,
}

impl Drop for Change {
    fn drop(&mut self) {
        let mut changes = self.of.changes.lock();
        if let Some(count) = changes.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                changes.remove(&self.name);
            }
        }
    }
}

impl Namespaces {
    /// Loads them from the store. Blocks.
    pub fn load(&self, store: &Store) -> Result<(), StoreError> {
        let mut all = BTreeMap::new();
        for (name, value) in store.documents(COLLECTION)? {
            match serde_json::from_slice(&value) {
                Ok(one) => drop(all.insert(name, one)),
                Err(error) => tracing::error!(%name, %error, "a namespace in the store is damaged"),
            }
        }
        self.all.store(Arc::new(all));
        Ok(())
    }

    /// All of them by name.
    pub fn all(&self) -> Arc<BTreeMap<String, Namespace>> {
        self.all.load_full()
    }

    /// Whether there is one with this name.
    pub fn exists(&self, name: &str) -> bool {
        self.all.load().contains_key(name)
    }

    /// One of them.
    pub fn get(&self, name: &str) -> Result<Namespace, Problem> {
        self.all.load().get(name).cloned().ok_or_else(|| no_such_namespace(name))
    }

    /// Begins a change in a namespace, unless it is being removed.
    pub fn change(self: &Arc<Self>, name: &str) -> Result<Change, Problem> {
        let name: Arc<str> = name.into();
        *self.changes.lock().entry(name.clone()).or_default() += 1;
        // Whoever removes a namespace marks it first and waits for changes afterwards.
        let change = Change { of: self.clone(), name };
        match self.all.load().get(&*change.name) {
            None => Err(no_such_namespace(&change.name)),
            Some(one) if one.is_being_deleted => Err(being_deleted(&change.name)),
            Some(_) => Ok(change),
        }
    }

    /// Changes in a namespace that are under way.
    pub fn changes(&self, name: &str) -> usize {
        self.changes.lock().get(name).copied().unwrap_or(0)
    }

    /// Makes one. One caller at a time; blocks.
    pub fn create(&self, store: &Store, name: &str, one: Namespace) -> Result<(), Wrong> {
        if !is_label(name) || name == DEFAULT_NAMESPACE {
            let text = format!(
                "{}: the name of a namespace has 1 to 63 of a-z, 0-9 and -, does not begin or end \
                 with -, and is not default",
                name.chars().take(64).flat_map(char::escape_debug).collect::<String>()
            );
            return Err(Problem::new(422, "M0303", text).with_field("name").into());
        }
        let all = self.all.load();
        if all.contains_key(name) {
            let text = format!("there is a namespace {name} already");
            let hint = format!("change its limits: mote namespace update {name}");
            return Err(Problem::new(409, "M0426", text).with_hint(hint).into());
        }
        if all.len() >= NAMESPACES_MAX {
            let text = format!("the node has {NAMESPACES_MAX} namespaces, which is the limit");
            return Err(Problem::new(409, "M0303", text).into());
        }
        self.put(store, name, Some(one))
    }

    /// Replaces one, or removes it. One caller at a time; blocks.
    pub fn put(&self, store: &Store, name: &str, one: Option<Namespace>) -> Result<(), Wrong> {
        let value = one.as_ref().map(|one| serde_json::to_vec(one).expect("plain data"));
        let (collection, key) = (COLLECTION.to_owned(), name.to_owned());
        store.put_documents(&[DocumentChange { collection, key, value }])?;
        let mut all = BTreeMap::clone(&self.all.load());
        match one {
            Some(one) => drop(all.insert(name.to_owned(), one)),
            None => drop(all.remove(name)),
        }
        self.all.store(Arc::new(all));
        Ok(())
    }
}

/// Why namespaces are not changed.
#[derive(Debug)]
pub enum Wrong {
    /// The wish cannot be fulfilled.
    Problem(Problem),
    /// The store cannot be written.
    Store(StoreError),
}

impl From<Problem> for Wrong {
    fn from(problem: Problem) -> Self {
        Wrong::Problem(problem)
    }
}

impl From<StoreError> for Wrong {
    fn from(error: StoreError) -> Self {
        Wrong::Store(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> Namespace {
        Namespace { created_at_ms: 1, quotas: Quotas::default(), is_being_deleted: false }
    }

    #[test]
    fn namespaces_are_made_once_and_outlive_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a store");
        let all = Arc::new(Namespaces::default());
        all.create(&store, "plant", made()).expect("made");
        for (name, code) in [("plant", "M0426"), ("default", "M0303"), ("a.b", "M0303")] {
            match all.create(&store, name, made()) {
                Err(Wrong::Problem(problem)) => assert_eq!(problem.code, code, "{name}"),
                other => panic!("{name}: {other:?}"),
            }
        }
        let again = Arc::new(Namespaces::default());
        again.load(&store).expect("read");
        assert_eq!(again.get("plant").expect("one"), made());
        assert_eq!(again.get("other").expect_err("none").code, "M0423");
    }

    #[test]
    fn a_removal_sees_changes_and_stops_new_ones() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a store");
        let all = Arc::new(Namespaces::default());
        all.create(&store, "plant", made()).expect("made");
        let change = all.change("plant").expect("permitted");
        all.put(&store, "plant", Some(Namespace { is_being_deleted: true, ..made() }))
            .expect("marked");
        assert_eq!(all.changes("plant"), 1);
        assert_eq!(all.change("plant").expect_err("marked").code, "M0424");
        drop(change);
        assert_eq!(all.changes("plant"), 0);
        all.put(&store, "plant", None).expect("removed");
        assert_eq!(all.change("plant").expect_err("gone").code, "M0423");
    }
}
