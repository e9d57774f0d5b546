//! Code and packages on disk that nothing uses any more: removed after each deploy and removal, not
//! only at the next start.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mote_core::fault::error_chain;
use mote_engine::Revision;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Node;

/// Pause before a collection: several deploys in a row are followed by one.
const CALM: Duration = Duration::from_secs(1);
/// Pause before the next look at revisions that still finish what they run.
const LOOK_PAUSE: Duration = Duration::from_secs(10);

/// Which trees may be in use by instances.
#[derive(Default)]
pub(crate) struct Trees {
    /// Revisions that were made since the start, as long as anything of them lives: their instances
    /// may run on after their routes and rows are gone.
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

    /// Has unused trees removed, soon.
    pub(crate) fn collect_soon(&self) {
        self.wanted.notify_one();
    }
}

/// Collects whenever it is asked to. Runs for the life of the node.
pub(crate) async fn collect(node: Arc<Node>) {
    loop {
        node.trees.wanted.notified().await;
        tokio::time::sleep(CALM).await;
        while collect_once(&node).await {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }
}

/// One collection; true when a revision that takes no traffic any more still uses its trees.
async fn collect_once(node: &Arc<Node>) -> bool {
    let routed = node.engine.revisions();
    let made: Vec<Arc<Revision>> =
        node.trees.made.lock().iter().filter_map(Weak::upgrade).collect();
    let leaving = made.iter().any(|one| !routed.iter().any(|routed| Arc::ptr_eq(routed, one)));
    let in_use: HashSet<String> =
        routed.iter().chain(&made).flat_map(|revision| revision.trees_in_use()).collect();
    drop((routed, made));
    let store = node.store.clone();
    let collected = tokio::task::spawn_blocking(move || store.collect_garbage(&in_use)).await;
    match collected {
        Ok(Ok(collected)) => warn_of(&collected.left),
        Ok(Err(error)) => {
            tracing::warn!(error = %error_chain(&error), "old code was not removed");
        }
        Err(error) => tracing::error!(%error, "cannot remove old code"),
    }
    leaving
}

/// Names what could not be removed.
pub(crate) fn warn_of(left: &[String]) {
    for what in left {
        tracing::warn!(%what, "cannot remove old files; they use disk space but cause no other problem");
    }
}

/// Compares the code of all functions with what was deployed, and names each that differs. Reads all
/// of it, so it is kept off the start.
pub(crate) async fn verify(node: Arc<Node>) {
    for revision in node.engine.revisions() {
        // The code's name is the hash of its content; packages are not named by theirs.
        let Some(hash) = revision.trees_in_use().next() else { continue };
        let store = node.store.clone();
        let verified = tokio::task::spawn_blocking(move || store.verify_code(&hash)).await;
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
