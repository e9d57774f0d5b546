//! Deploys that are under way, and deploys that have failed. After its request, a client polls the
//! deploy until the function serves.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::compat::node::Space;
use mote_spec::name::split;
use serde_json::Value;

/// The most deploys under way at once, on the node and in one namespace.
const UNDER_WAY_MAX: usize = 16;
const UNDER_WAY_WITHIN_MAX: usize = 4;
/// The most failed deploys that are remembered.
const FAILED_MAX: usize = 256;
/// The most bytes that are remembered of a failed deploy's document. If the document is longer, only
/// its metadata is kept; if the metadata is longer, only the name is kept.
const DOCUMENT_BYTES_MAX: usize = 16 << 10;
/// The maximum number of characters of a reason.
const FAILURE_CHARS_MAX: usize = 8_192;

/// Deploys by the name of their function.
#[derive(Default)]
pub(super) struct Building(Mutex<BTreeMap<String, Build>>);

/// The reason why a deploy cannot begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Busy {
    /// Another deploy of this function is under way.
    Function,
    /// The most permitted deploys are already under way.
    Node,
}

#[derive(Debug, Clone)]
pub(super) struct Build {
    /// The document of the request.
    pub(super) document: Value,
    /// The namespace of the function.
    space: Option<Space>,
    /// The reason why the deploy failed, if it has failed.
    pub(super) failure: Option<String>,
}

/// Shortens a remembered document to its limit.
fn shorten(document: &mut Value) {
    let fits = |value: &Value| value.to_string().len() <= DOCUMENT_BYTES_MAX;
    if fits(document) {
        return;
    }
    let metadata = document["metadata"].take();
    let name = metadata["name"].clone();
    *document = if fits(&metadata) {
        serde_json::json!({"metadata": metadata, "spec": {}})
    } else {
        serde_json::json!({"metadata": {"name": name}, "spec": {}})
    };
}

impl Building {
    /// Begins a deploy. If the deploy cannot begin now, returns the reason.
    pub(super) fn begin(
        &self,
        name: &str,
        document: Value,
        space: Option<&Space>,
    ) -> Result<(), Busy> {
        let mut all = self.lock();
        let under_way = |build: &&Build| build.failure.is_none();
        if all.get(name).is_some_and(|build| under_way(&build)) {
            return Err(Busy::Function);
        }
        let own = |build: &&Build| build.space.as_ref() == space;
        if all.values().filter(under_way).count() >= UNDER_WAY_MAX
            || (space.is_some()
                && all.values().filter(under_way).filter(own).count() >= UNDER_WAY_WITHIN_MAX)
        {
            return Err(Busy::Node);
        }
        all.insert(name.to_owned(), Build { document, space: space.cloned(), failure: None });
        Ok(())
    }

    /// Ends a deploy. `failure` is the reason if the deploy failed.
    pub(super) fn end(&self, name: &str, failure: Option<String>) {
        let mut all = self.lock();
        match failure {
            None => {
                all.remove(name);
            }
            Some(failure) => {
                if all.values().filter(|build| build.failure.is_some()).count() >= FAILED_MAX {
                    forget_most(&mut all);
                }
                if let Some(build) = all.get_mut(name) {
                    shorten(&mut build.document);
                    build.failure = Some(failure.chars().take(FAILURE_CHARS_MAX).collect());
                }
            }
        }
    }

    /// Forgets the failed deploy of a function. Returns whether there was one.
    pub(super) fn forget(&self, name: &str) -> bool {
        let mut all = self.lock();
        let failed = all.get(name).is_some_and(|build| build.failure.is_some());
        failed && all.remove(name).is_some()
    }

    /// Returns the deploy of a function. If a namespace was deleted and another with the same name was
    /// created, deploys of the old namespace are not returned.
    pub(super) fn get(&self, name: &str, space: Option<&Space>) -> Option<Build> {
        self.lock().get(name).filter(|build| build.space.as_ref() == space).cloned()
    }

    /// All deploys in a namespace.
    pub(super) fn all(&self, space: Option<&Space>) -> Vec<(String, Build)> {
        let all = self.lock();
        let own = all.iter().filter(|(_, build)| build.space.as_ref() == space);
        own.map(|(name, build)| (name.clone(), build.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Build>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets the failed deploys of the namespace that has most of them.
fn forget_most(all: &mut BTreeMap<String, Build>) {
    let mut counts: BTreeMap<Option<String>, usize> = BTreeMap::new();
    let namespace = |name: &str| split(name).1.map(str::to_owned);
    for (name, _) in all.iter().filter(|(_, build)| build.failure.is_some()) {
        *counts.entry(namespace(name)).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    let Some((most, _)) = most else { return };
    all.retain(|name, build| build.failure.is_none() || namespace(name) != most);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_deploy_of_a_function_at_a_time() {
        let building = Building::default();
        assert_eq!(building.begin("a", Value::Null, None), Ok(()));
        assert_eq!(building.begin("a", Value::Null, None), Err(Busy::Function));
        assert!(!building.forget("a"), "it is under way");
        building.end("a", Some("no".to_owned()));
        assert_eq!(building.get("a", None).and_then(|build| build.failure).as_deref(), Some("no"));
        assert_eq!(building.begin("a", Value::Null, None), Ok(()), "after a failure");
        building.end("a", None);
        assert!(building.get("a", None).is_none());
        for number in 0..UNDER_WAY_MAX {
            assert_eq!(building.begin(&number.to_string(), Value::Null, None), Ok(()));
        }
        assert_eq!(building.begin("one more", Value::Null, None), Err(Busy::Node));
    }

    #[test]
    fn namespaces_do_not_disturb_each_other() {
        let building = Building::default();
        let plant = Space { name: "plant".into(), created_at_ms: 1 };
        for number in 0..UNDER_WAY_WITHIN_MAX {
            let name = format!("f{number}.plant");
            assert_eq!(building.begin(&name, Value::Null, Some(&plant)), Ok(()));
        }
        let more = building.begin("more.plant", Value::Null, Some(&plant));
        assert_eq!(more, Err(Busy::Node));
        assert_eq!(building.begin("a", Value::Null, None), Ok(()));
        building.end("a", Some("no".to_owned()));
        for number in 0..2 * FAILED_MAX {
            let name = format!("g{number}.plant");
            building.end("f0.plant", None);
            assert_eq!(building.begin(&name, Value::Null, Some(&plant)), Ok(()));
            building.end(&name, Some("no".to_owned()));
        }
        assert!(building.get("a", None).is_some(), "what others have is still known");
        assert_eq!(building.all(None).len(), 1);
        let again = Space { created_at_ms: 2, ..plant.clone() };
        assert!(!building.all(Some(&plant)).is_empty() && building.all(Some(&again)).is_empty());
    }
}
