//! Deploys that are under way and those that failed. A client polls for them between its request
//! and the time when the function serves.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

/// Deploys under way at once.
const UNDER_WAY_MAX: usize = 16;
/// Failed deploys that are remembered.
const FAILED_MAX: usize = 256;
/// Bytes of the document of a failed deploy that are remembered. Of a longer document only the
/// metadata is kept, and of longer metadata only the name.
const DOCUMENT_BYTES_MAX: usize = 16 << 10;
/// Most characters of a reason.
const FAILURE_CHARS_MAX: usize = 8_192;

/// Deploys by the name of the function.
#[derive(Default)]
pub(super) struct Building(Mutex<BTreeMap<String, Build>>);

/// The reason why a deploy cannot begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Busy {
    /// Another one of this function is under way.
    Function,
    /// The largest permitted number of deploys is under way.
    Node,
}

/// One deploy.
#[derive(Debug, Clone)]
pub(super) struct Build {
    /// The document of the request.
    pub(super) document: Value,
    /// The reason for its failure, once it has failed.
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
    /// Begins a deploy, or returns the reason why it cannot begin now.
    pub(super) fn begin(&self, name: &str, document: Value) -> Result<(), Busy> {
        let mut all = self.lock();
        let under_way = |build: &Build| build.failure.is_none();
        if all.get(name).is_some_and(under_way) {
            return Err(Busy::Function);
        }
        if all.values().filter(|build| under_way(build)).count() >= UNDER_WAY_MAX {
            return Err(Busy::Node);
        }
        all.insert(name.to_owned(), Build { document, failure: None });
        Ok(())
    }

    /// Ends a deploy, with a reason if it failed.
    pub(super) fn end(&self, name: &str, failure: Option<String>) {
        let mut all = self.lock();
        match failure {
            None => {
                all.remove(name);
            }
            Some(failure) => {
                let failed = |build: &Build| build.failure.is_some();
                if all.values().filter(|build| failed(build)).count() >= FAILED_MAX {
                    all.retain(|_, build| !failed(build));
                }
                if let Some(build) = all.get_mut(name) {
                    shorten(&mut build.document);
                    build.failure = Some(failure.chars().take(FAILURE_CHARS_MAX).collect());
                }
            }
        }
    }

    /// Forgets a failed deploy; returns whether there was one.
    pub(super) fn forget(&self, name: &str) -> bool {
        let mut all = self.lock();
        let failed = all.get(name).is_some_and(|build| build.failure.is_some());
        failed && all.remove(name).is_some()
    }

    pub(super) fn get(&self, name: &str) -> Option<Build> {
        self.lock().get(name).cloned()
    }

    pub(super) fn all(&self) -> Vec<(String, Build)> {
        self.lock().iter().map(|(name, build)| (name.clone(), build.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Build>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_deploy_of_a_function_at_a_time() {
        let building = Building::default();
        assert_eq!(building.begin("a", Value::Null), Ok(()));
        assert_eq!(building.begin("a", Value::Null), Err(Busy::Function));
        assert!(!building.forget("a"), "it is under way");
        building.end("a", Some("no".to_owned()));
        assert_eq!(building.get("a").and_then(|build| build.failure).as_deref(), Some("no"));
        assert_eq!(building.begin("a", Value::Null), Ok(()), "after a failure");
        building.end("a", None);
        assert!(building.get("a").is_none());
        for number in 0..UNDER_WAY_MAX {
            assert_eq!(building.begin(&number.to_string(), Value::Null), Ok(()));
        }
        assert_eq!(building.begin("one more", Value::Null), Err(Busy::Node));
    }
}
