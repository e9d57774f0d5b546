//! Shows the invocations of a node to a developer of its functions, or to a recording.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mote_core::{Fault, Invocation, Reply};
use mote_spec::FunctionSpec;
use parking_lot::RwLock;

/// Sees each invocation of a node, whatever its trigger. The methods are called on the request
/// path, so they must not block.
pub trait Watch: Send + Sync {
    /// Called before an invocation of a function's revision runs; may replace the body by one that
    /// lets the watcher read along. The result is called when the answer has begun, and is dropped
    /// if the caller no longer waits for the answer. `None` if this invocation is of no interest.
    fn begin(
        &self,
        function: &FunctionSpec,
        revision: u64,
        invocation: &mut Invocation,
    ) -> Option<Ended>;
}

/// Called with the beginning of the answer, whose body it may replace in the same way.
pub type Ended = Box<dyn FnOnce(Result<&mut Reply, &Fault>) + Send>;

/// The watchers of a node's invocations. Without watchers, each invocation costs one load.
#[derive(Default)]
pub(crate) struct Watches {
    has_some: AtomicBool,
    all: RwLock<Vec<Arc<dyn Watch>>>,
}

impl Watches {
    #[inline]
    pub(crate) fn has_some(&self) -> bool {
        self.has_some.load(Ordering::Relaxed)
    }

    pub(crate) fn add(self: &Arc<Self>, watch: Arc<dyn Watch>) -> Watching {
        self.change(|all| all.push(watch.clone()));
        Watching { watches: self.clone(), watch }
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<dyn Watch>>)) {
        let mut all = self.all.write();
        change(&mut all);
        self.has_some.store(!all.is_empty(), Ordering::Relaxed);
    }

    pub(crate) fn begin(
        &self,
        function: &FunctionSpec,
        revision: u64,
        invocation: &mut Invocation,
    ) -> Vec<Ended> {
        let all = self.all.read();
        all.iter().filter_map(|watch| watch.begin(function, revision, invocation)).collect()
    }
}

/// Invocations are shown for as long as this exists.
#[must_use]
pub struct Watching {
    watches: Arc<Watches>,
    watch: Arc<dyn Watch>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.watches.change(|all| all.retain(|one| !Arc::ptr_eq(one, &self.watch)));
    }
}
