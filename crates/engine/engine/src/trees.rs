//! The code and packages of functions on disk. Unused trees are removed after each deploy and
//! removal, not only at the next start ([`collect`]). Functions whose code has changed on disk are
//! reported in the log ([`verify`]). This module must not know how a function is deployed.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::{Engine, Revision};
use mote_core::fault::error_chain;
use mote_store::Store;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;

/// The pause before a collection, so that one collection covers several deploys in a row.
const CALM: Duration = Duration::from_secs(1);
/// The pause before the next check of revisions that are still finishing their invocations.
const LOOK_PAUSE: Duration = Duration::from_secs(10);

/// The trees that instances may be using.
#[derive(Default)]
pub struct Trees {
    /// The revisions that were created since the start of the node and are still referenced. Their
    /// instances may keep running after their routes and rows have been removed.
    made: Mutex<Vec<Weak<Revision>>>,
    wanted: Notify,
}

impl Trees {
    /// Keeps the trees of a revision for as long as the revision exists.
    pub fn keep(&self, revision: &Arc<Revision>) {
        let mut made = self.made.lock();
        made.retain(|known| known.strong_count() > 0);
        made.push(Arc::downgrade(revision));
    }

    /// Requests a collection of unused trees.
    pub fn collect_soon(&self) {
        self.wanted.notify_one();
    }
}

/// Runs a collection whenever one is requested, and `also` after each, which may block. Runs for the
/// life of the node.
pub async fn collect(
    trees: Arc<Trees>,
    engine: Engine,
    store: Arc<Store>,
    also: impl Fn(&Store) + Clone + Send + 'static,
) {
    loop {
        trees.wanted.notified().await;
        tokio::time::sleep(CALM).await;
        loop {
            let leaving = collect_once(&trees, &engine, &store).await;
            let (also, store) = (also.clone(), store.clone());
            // The panic hook logs a panic in that thread, and the next collection tries again.
            let _ = spawn_blocking(move || also(&store)).await;
            if !leaving {
                break;
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }
}

/// Runs one collection. Returns true if a revision that no longer receives traffic still uses its
/// trees.
async fn collect_once(trees: &Trees, engine: &Engine, store: &Arc<Store>) -> bool {
    let routed = engine.revisions();
    let made: Vec<Arc<Revision>> = trees.made.lock().iter().filter_map(Weak::upgrade).collect();
    let leaving = made.iter().any(|one| !routed.iter().any(|routed| Arc::ptr_eq(routed, one)));
    let in_use: HashSet<String> =
        routed.iter().chain(&made).flat_map(|revision| revision.trees_in_use()).collect();
    drop((routed, made));
    let store = store.clone();
    let collected = spawn_blocking(move || store.collect_garbage(&in_use)).await;
    match collected {
        Ok(Ok(collected)) => warn_of(&collected.left),
        Ok(Err(error)) => {
            tracing::warn!(error = %error_chain(&error), "old code was not removed");
        }
        Err(error) => tracing::error!(%error, "cannot remove old code"),
    }
    leaving
}

/// Logs a warning for each tree that could not be removed.
pub fn warn_of(left: &[String]) {
    for what in left {
        tracing::warn!(%what, "cannot remove old files; they use disk space but cause no other problem");
    }
}

/// Compares the code of all functions with the code that was deployed, and logs an error for each
/// function whose code differs. It reads all code, so it does not run during the start.
pub async fn verify(engine: Engine, store: Arc<Store>) {
    for revision in engine.revisions() {
        // The name of a code tree is the hash of its content, unlike the name of a package tree.
        let Some(hash) = revision.trees_in_use().next() else { continue };
        let store = store.clone();
        let verified = spawn_blocking(move || store.verify_code(&hash)).await;
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
