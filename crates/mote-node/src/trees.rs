//! Code and packages on disk that nothing uses any more. The node removes them after each deploy
//! and removal, not only at the next start.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mote_core::fault::error_chain;
use mote_engine::Revision;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Node;
use super::store_work::blocking;

/// Pause before a collection, so that one collection covers several deploys in a row.
const CALM: Duration = Duration::from_secs(1);
/// Pause before the next check of revisions that still finish their invocations.
const LOOK_PAUSE: Duration = Duration::from_secs(10);

/// The trees that instances may be using.
#[derive(Default)]
pub(crate) struct Trees {
    /// Revisions that were made since the start, as long as anything refers to them: their
    /// instances may run on after their routes and rows have been removed.
    made: Mutex<Vec<Weak<Revision>>>,
    wanted: Notify,
}

impl Trees {
    /// Keeps the trees of a revision as long as the revision lives.
    pub(crate) fn keep(&self, revision: &Arc<Revision>) {
        let mut made = self.made.lock();
        made.retain(|known| known.strong_count() > 0);
        made.push(Arc::downgrade(revision));
    }

    /// Requests a collection of unused trees.
    pub(crate) fn collect_soon(&self) {
        self.wanted.notify_one();
    }
}

/// Collects whenever a collection is requested. Runs for the life of the node.
pub(crate) async fn collect(node: Arc<Node>) {
    loop {
        node.trees.wanted.notified().await;
        tokio::time::sleep(CALM).await;
        while collect_once(&node).await {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }
}

/// Runs one collection; returns true when a revision that receives no traffic any more still uses
/// its trees.
async fn collect_once(node: &Arc<Node>) -> bool {
    let routed = node.engine.revisions();
    let made: Vec<Arc<Revision>> =
        node.trees.made.lock().iter().filter_map(Weak::upgrade).collect();
    let leaving = made.iter().any(|one| !routed.iter().any(|routed| Arc::ptr_eq(routed, one)));
    let in_use: HashSet<String> =
        routed.iter().chain(&made).flat_map(|revision| revision.trees_in_use()).collect();
    drop((routed, made));
    let store = node.store.clone();
    let collected = blocking(move || store.collect_garbage(&in_use)).await;
    match collected {
        Ok(Ok(collected)) => warn_of(&collected.left),
        Ok(Err(error)) => {
            tracing::warn!(error = %error_chain(&error), "old code was not removed");
        }
        Err(error) => tracing::error!(%error, "cannot remove old code"),
    }
    leaving
}

/// Warns of trees that could not be removed.
pub(crate) fn warn_of(left: &[String]) {
    for what in left {
        tracing::warn!(%what, "cannot remove old files; they use disk space but cause no other problem");
    }
}

/// Compares the code of all functions with the code that was deployed, and names each that differs.
/// Reads all of it, so it is not part of the start.
pub(crate) async fn verify(node: Arc<Node>) {
    for revision in node.engine.revisions() {
        // The name of a code tree is the hash of its content; the name of a package tree is not.
        let Some(hash) = revision.trees_in_use().next() else { continue };
        let store = node.store.clone();
        let verified = blocking(move || store.verify_code(&hash)).await;
        let reason = match verified {
            Ok(Ok(true)) | Err(_) => continue,
            Ok(Ok(false)) => "its content on disk has changed".to_owned(),
            Ok(Err(error)) => error_chain(&error),
        };
        tracing::error!(
            function = %revision.spec.name,
            revision = revision.number,
            %reason,
            "code is not what was deployed; deploy it again"
        );
    }
}
