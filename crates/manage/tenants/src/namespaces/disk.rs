//! How much disk space the functions of a namespace use. If two namespaces have the same code, it
//! counts in both, so that neither can find out what the other has.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mote_api::Problem;
use mote_core::fault::bytes_text;
use mote_spec::FunctionName;
use mote_store::{Store, StoreError};
use tokio::sync::OwnedMutexGuard;

use crate::namespaces::problems::being_deleted;
use crate::namespaces::registry::{Namespaces, Wrong};
use crate::namespaces::sizes::FilesPlace;

/// The maximum number of deploys of a namespace at the same time. A waiting deploy already holds an
/// upload on disk, which counts towards no other limit.
const DEPLOYS_MAX: usize = 16;
/// Longest time that a deploy waits for other deploys of its namespace.
const PATIENCE: Duration = Duration::from_secs(600);

/// The right to add files to a namespace, held until drop.
pub type FilesTurn = OwnedMutexGuard<()>;

impl Namespaces {
    /// Bytes on disk of the code and packages of all revisions of a namespace's functions. Blocks.
    pub fn disk_bytes(&self, store: &Store, namespace: &str) -> Result<u64, StoreError> {
        Ok(self.disk.sum(store.trees_of(namespace)?))
    }

    /// The bytes on disk of each namespace. Blocks.
    pub fn disk_bytes_of_all(&self, store: &Store) -> Result<BTreeMap<String, u64>, StoreError> {
        let all = self.all();
        all.keys().map(|name| Ok((name.clone(), self.disk_bytes(store, name)?))).collect()
    }

    /// How many bytes the function's namespace may still add, in addition to these trees. Fails if
    /// the trees already exceed the limit. Blocks.
    pub fn disk_left(
        &self,
        store: &Store,
        function: &FunctionName,
        trees: &[PathBuf],
    ) -> Result<u64, Wrong> {
        let Some(namespace) = function.namespace() else { return Ok(u64::MAX) };
        let Some(most) = self.get(namespace)?.quotas.disk_bytes else { return Ok(u64::MAX) };
        let stored = store.trees_of(namespace)?;
        let added: BTreeSet<_> = trees.iter().filter(|tree| !stored.contains(tree)).collect();
        let more = self.disk.sum(added.into_iter().cloned().collect());
        let used = self.disk.sum(stored);
        let then = used + more;
        most.checked_sub(then).ok_or_else(|| {
            let [used, most, more] = [used, most, more].map(bytes_text);
            let text = format!(
                "{function}: the files of the namespace {namespace} take {used} of at most {most}, and \
                 this deploy adds {more}"
            );
            let hint = format!(
                "remove functions, whose earlier revisions count as well, or let an operator raise the \
                 limit: mote namespace update {namespace} --disk SIZE"
            );
            Problem::new(507, "M0428", text).with_hint(hint).into()
        })
    }

    /// Takes one of the places for deploys of a namespace, before the deploy stores anything.
    /// Returns `None` in the default namespace.
    pub fn files_place(&self, function: &FunctionName) -> Result<Option<FilesPlace>, Problem> {
        let Some(namespace) = function.namespace() else { return Ok(None) };
        let mut turns = self.disk.turns.lock();
        turns.retain(|_, place| Arc::strong_count(place) > 1);
        let place = turns.entry(namespace.to_owned()).or_default();
        if Arc::strong_count(place) > DEPLOYS_MAX {
            let text = format!(
                "{function}: {DEPLOYS_MAX} deploys of the namespace {namespace} are under way, which \
                 is the limit"
            );
            let problem = Problem::new(503, "M0428", text);
            return Err(problem.with_hint("try again when one of them has ended"));
        }
        Ok(Some(place.clone()))
    }

    /// Waits for the turn to add files to the namespace of a function. Because of the turns,
    /// simultaneous deploys together cannot exceed the namespace's limit, and a namespace installs
    /// or builds only one thing at a time. Returns `None` without a place.
    pub async fn files_turn(
        &self,
        place: Option<FilesPlace>,
        function: &FunctionName,
    ) -> Result<Option<FilesTurn>, Problem> {
        let (Some(place), Some(namespace)) = (place, function.namespace()) else { return Ok(None) };
        let turn = tokio::time::timeout(PATIENCE, place.lock_owned()).await;
        if self.is_closed(namespace) {
            return Err(being_deleted(namespace));
        }
        turn.map(Some).map_err(|_| {
            let minutes = PATIENCE.as_secs() / 60;
            let text = format!(
                "{function}: other deploys of the namespace {namespace} have not ended within {minutes} min"
            );
            Problem::new(503, "M0428", text).with_hint("try again when they have ended")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespaces::registry::Namespace;
    use mote_api::namespaces::Quotas;
    use mote_spec::{FunctionSpec, Runtime};
    use mote_store::ArchiveLimits;

    fn stored(store: &Store, name: &str, bytes: usize) -> (FunctionName, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("app.py"), vec![b'#'; bytes]).expect("written");
        let packed = mote_store::pack::pack(folder.path(), None).expect("packed");
        let staged = store.stage_archive(&*packed.tar, &ArchiveLimits::default()).expect("stored");
        let name = FunctionName::new(name).expect("a name");
        let spec = FunctionSpec::with_defaults(name.clone(), Runtime::Python, "app.py");
        store.add_revision(&spec, &staged.hash, None).expect("added");
        (name, staged.path.clone())
    }

    #[test]
    fn a_namespace_keeps_no_more_files_than_it_may() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a store");
        let all = Namespaces::default();
        let quotas = Quotas { disk_bytes: Some(100 << 10), ..Quotas::default() };
        let one = Namespace { created_at_ms: 1, quotas, is_being_deleted: false };
        all.create(&store, "plant", one).expect("made");
        let (a, tree_of_a) = stored(&store, "a.plant", 30_000);
        let used = all.disk_bytes(&store, "plant").expect("counted");
        assert_eq!(used, 32_768 + 4_096);
        // The same code counts once per namespace, and in every namespace that has it.
        let (b, _) = stored(&store, "b.plant", 30_000);
        assert_eq!(all.disk_bytes(&store, "plant").expect("counted"), used);
        stored(&store, "a.orchard", 30_000);
        assert_eq!(all.disk_bytes(&store, "orchard").expect("counted"), used);
        let left = all.disk_left(&store, &b, &[tree_of_a]).expect("room");
        assert_eq!(left, (100 << 10) - used);
        let (default, large) = stored(&store, "large", 70_000);
        let Err(Wrong::Problem(problem)) = all.disk_left(&store, &a, std::slice::from_ref(&large))
        else {
            panic!("too much");
        };
        assert_eq!((problem.code.as_str(), problem.status), ("M0428", 507));
        let without_limit = all.disk_left(&store, &default, &[large]).expect("no limit");
        assert_eq!(without_limit, u64::MAX);
    }

    #[test]
    fn one_deploy_of_a_namespace_adds_files_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a store");
        let namespaces = Arc::new(Namespaces::default());
        for name in ["plant", "orchard"] {
            let quotas = Quotas::default();
            let one = Namespace { created_at_ms: 1, quotas, is_being_deleted: false };
            namespaces.create(&store, name, one).expect("made");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let name = |text: &str| FunctionName::new(text).expect("a name");
            let [a, b, c] = ["a.plant", "b.plant", "c.orchard"].map(name);
            let all = &*namespaces;
            let turn =
                async |name: &FunctionName| all.files_turn(all.files_place(name)?, name).await;
            let first = turn(&a).await.expect("nobody else").expect("a namespace");
            let mut second = std::pin::pin!(turn(&b));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(second.as_mut().poll(&mut context).is_pending());
            assert!(turn(&c).await.expect("nobody else").is_some());
            assert!(turn(&name("d")).await.expect("nobody else").is_none());
            let waiting: Vec<_> = (2..DEPLOYS_MAX).map(|_| all.files_place(&b)).collect();
            assert!(waiting.iter().all(Result::is_ok));
            assert_eq!(all.files_place(&a).expect_err("too many").code, "M0428");
            assert!(all.files_place(&c).is_ok());
            drop(waiting);
            let removal = namespaces.remove("plant").expect("one");
            drop(first);
            assert_eq!(second.await.expect_err("closed").code, "M0424");
            drop(removal);
            assert!(turn(&a).await.is_ok());
        });
    }
}
