//! The namespaces of a node, in the store and in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use arc_swap::ArcSwap;
use mote_api::Problem;
use mote_api::namespaces::Quotas;
use mote_spec::name::{DEFAULT_NAMESPACE, is_label};
use mote_store::{DocumentChange, Store, StoreError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::namespaces::problems::{being_deleted, no_such_namespace};
use crate::namespaces::sizes::Disk;

/// The collection of the store that holds the namespaces.
const COLLECTION: &str = "namespaces";
/// The maximum number of namespaces of a node.
const NAMESPACES_MAX: usize = 1_000;

/// What the store holds of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// When the namespace was made, in milliseconds since 1970.
    pub created_at_ms: u64,
    #[serde(default)]
    pub quotas: Quotas,
    /// Whether the contents of the namespace are being removed. The namespace stays closed until
    /// everything is removed, even after a crash.
    #[serde(default)]
    pub is_being_deleted: bool,
}

/// All namespaces except the default one.
#[derive(Debug, Default)]
pub struct Namespaces {
    all: ArcSwap<BTreeMap<String, Namespace>>,
    /// The number of changes in each namespace that are under way.
    changes: Mutex<HashMap<Arc<str>, usize>>,
    /// Namespaces whose removal is under way. This is not stored on disk, so that after a crash a
    /// namespace is open again if nothing in it was removed yet.
    removals: watch::Sender<BTreeSet<Arc<str>>>,
    /// Signals that a namespace was added or removed.
    listed: watch::Sender<()>,
    pub(crate) disk: Disk,
}

/// The removal of a namespace. Until this is dropped, no further change can begin in the namespace.
#[derive(Debug)]
pub struct Removal {
    of: Arc<Namespaces>,
    name: Arc<str>,
}

impl Drop for Removal {
    fn drop(&mut self) {
        self.of.removals.send_if_modified(|all| all.remove(&self.name));
    }
}

/// A change in a namespace. Until this is dropped, the removal of the namespace waits.
#[derive(Debug)]
pub struct Change {
    of: Arc<Namespaces>,
    name: Arc<str>,
}

impl Change {
    /// Resolves when the removal of the namespace begins.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut removals = self.of.removals.subscribe();
        let name = self.name.clone();
        async move { drop(removals.wait_for(|all| all.contains(&name)).await) }
    }

    /// The error for a request that has not arrived completely when the removal begins.
    pub fn refusal(&self) -> Problem {
        being_deleted(&self.name)
    }
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
    /// Loads the namespaces from the store. Blocks.
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

    /// All namespaces by name.
    pub fn all(&self) -> Arc<BTreeMap<String, Namespace>> {
        self.all.load_full()
    }

    /// Signals each time that a namespace was added or removed.
    pub fn listed(&self) -> watch::Receiver<()> {
        self.listed.subscribe()
    }

    /// Whether a namespace with this name exists.
    pub fn exists(&self, name: &str) -> bool {
        self.all.load().contains_key(name)
    }

    pub fn get(&self, name: &str) -> Result<Namespace, Problem> {
        self.all.load().get(name).cloned().ok_or_else(|| no_such_namespace(name))
    }

    /// Begins a change in a namespace. Fails if the namespace is being removed.
    pub fn change(self: &Arc<Self>, name: &str) -> Result<Change, Problem> {
        let name: Arc<str> = name.into();
        *self.changes.lock().entry(name.clone()).or_default() += 1;
        // The change is counted before the check. A removal closes the namespace first and then
        // waits for the counted changes, so it misses no change.
        let change = Change { of: self.clone(), name };
        if !self.exists(&change.name) {
            return Err(no_such_namespace(&change.name));
        }
        if self.is_closed(&change.name) {
            return Err(being_deleted(&change.name));
        }
        Ok(change)
    }

    /// Closes a namespace. This ends changes whose requests have not arrived completely. The other
    /// changes, which [`Namespaces::changes`] still counts, go on.
    pub fn remove(self: &Arc<Self>, name: &str) -> Result<Removal, Problem> {
        if !self.exists(name) {
            return Err(no_such_namespace(name));
        }
        let name: Arc<str> = name.into();
        let is_first = self.removals.send_if_modified(|all| all.insert(name.clone()));
        match is_first {
            true => Ok(Removal { of: self.clone(), name }),
            false => Err(being_deleted(&name)),
        }
    }

    /// Whether a namespace is being removed, so that nothing in it can be changed.
    pub fn is_closed(&self, name: &str) -> bool {
        let is_marked = |one: &Namespace| one.is_being_deleted;
        self.removals.borrow().contains(name) || self.all.load().get(name).is_some_and(is_marked)
    }

    /// The number of changes in a namespace that are under way.
    pub fn changes(&self, name: &str) -> usize {
        self.changes.lock().get(name).copied().unwrap_or(0)
    }

    /// Makes a namespace. Must not be called by two callers at once. Blocks.
    pub fn create(&self, store: &Store, name: &str, one: Namespace) -> Result<(), Wrong> {
        if !is_label(name) || name == DEFAULT_NAMESPACE {
            let text = format!(
                "{}: the name of a namespace has 1 to 63 of a-z, 0-9 and -, does not begin or end \
                 with -, and is not default",
                name.chars().take(64).flat_map(char::escape_debug).collect::<String>()
            );
            return Err(Problem::new(422, "M0303", text).with_field("name").into());
        }
        check_limits(&one.quotas)?;
        let all = self.all.load();
        if self.is_closed(name) {
            return Err(being_deleted(name).into());
        }
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

    /// Replaces a namespace, or removes it if `one` is `None`. Must not be called by two callers at
    /// once. Blocks.
    pub fn put(&self, store: &Store, name: &str, one: Option<Namespace>) -> Result<(), Wrong> {
        let value = one.as_ref().map(|one| serde_json::to_vec(one).expect("plain data"));
        let collection = COLLECTION.to_owned();
        let key = name.to_owned();
        store.put_documents(&[DocumentChange { collection, key, value }])?;
        let mut all = BTreeMap::clone(&self.all.load());
        match one {
            Some(one) => drop(all.insert(name.to_owned(), one)),
            None => drop(all.remove(name)),
        }
        let is_other = all.len() != self.all.load().len();
        self.all.store(Arc::new(all));
        if is_other {
            self.listed.send_replace(());
        }
        Ok(())
    }
}

/// Refuses limits of 0. They would permit nothing, and some parts of the node read 0 as no limit.
pub fn check_limits(quotas: &Quotas) -> Result<(), Problem> {
    let Quotas {
        functions,
        instances,
        memory_bytes,
        cpu_millis,
        disk_bytes,
        state_bytes,
        calls_per_s,
    } = quotas;
    let limits = [
        ("functions", *functions),
        ("instances", *instances),
        ("memory", *memory_bytes),
        ("cpu", *cpu_millis),
        ("disk", *disk_bytes),
        ("state", *state_bytes),
        ("rate", calls_per_s.map(u64::from)),
    ];
    match limits.into_iter().find(|(_, limit)| *limit == Some(0)) {
        None => Ok(()),
        Some((what, _)) => {
            let text = format!("a limit of a namespace is at least 1, and that of {what} is 0");
            Err(Problem::new(422, "M0303", text).with_field(what))
        }
    }
}

/// Why namespaces were not changed.
#[derive(Debug)]
pub enum Wrong {
    /// The request cannot be fulfilled.
    Problem(Problem),
    /// The store could not be read or written.
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
        let mut closed = std::pin::pin!(change.closed());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(closed.as_mut().poll(&mut context).is_pending());
        let removal = all.remove("plant").expect("one");
        assert!(closed.as_mut().poll(&mut context).is_ready());
        assert_eq!(all.changes("plant"), 1);
        assert_eq!(all.change("plant").expect_err("closed").code, "M0424");
        assert_eq!(all.remove("plant").expect_err("closed").code, "M0424");
        match all.create(&store, "plant", made()) {
            Err(Wrong::Problem(problem)) => assert_eq!(problem.code, "M0424"),
            other => panic!("{other:?}"),
        }
        drop(change);
        assert_eq!(all.changes("plant"), 0);
        all.put(&store, "plant", None).expect("removed");
        drop(removal);
        assert_eq!(all.change("plant").expect_err("gone").code, "M0423");
    }

    #[test]
    fn only_a_removal_that_removed_something_outlives_a_crash() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a store");
        let all = Arc::new(Namespaces::default());
        for name in ["plant", "orchard"] {
            all.create(&store, name, made()).expect("made");
        }
        let removals = ["plant", "orchard"].map(|name| all.remove(name).expect("one"));
        all.put(&store, "plant", Some(Namespace { is_being_deleted: true, ..made() }))
            .expect("marked");
        let again = Arc::new(Namespaces::default());
        again.load(&store).expect("read");
        assert!(again.is_closed("plant") && !again.is_closed("orchard"));
        // Running the same command again completes the removal.
        again.remove("plant").expect("one");
        drop(removals);
        assert!(all.is_closed("plant") && !all.is_closed("orchard"));
    }

    #[test]
    fn limits_permit_something() {
        assert!(check_limits(&Quotas::default()).is_ok());
        for wrong in [
            Quotas { functions: Some(0), ..Quotas::default() },
            Quotas { calls_per_s: Some(0), ..Quotas::default() },
        ] {
            assert_eq!(check_limits(&wrong).expect_err("wrong").code, "M0303");
        }
    }
}
