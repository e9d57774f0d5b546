//! Limits how much an instance may request from its node at once, and counts what is under way.

use std::sync::Arc;
use std::task::Waker;

use mote_core::services::{REQUEST_BYTES_MAX, REQUESTS_MAX};
use mote_core::wire::{FrameKind, WireError};
use tokio::sync::{Semaphore, oneshot};

/// How many requests of one instance may read from the state at once. Each may return a whole value
/// or listing, so this limit bounds what the node keeps for a worker that does not read.
pub(crate) const READS_MAX: usize = 16;
/// When the list of an invocation's calls has this many entries, ended calls are removed from it.
pub(crate) const CALLS_KEPT: usize = 8;

/// The invocation holds this guard. When the guard is dropped, the call is cancelled.
pub(crate) type CallGuard = oneshot::Sender<()>;

pub(crate) struct Requests {
    under_way: u32,
    bytes: usize,
    reads: Option<Arc<Semaphore>>,
    /// Tasks whose answer waits for room in the outgoing bytes.
    wakers: Vec<Waker>,
    /// Calls that belong to no invocation.
    calls: Vec<CallGuard>,
}

impl Requests {
    pub(crate) const fn new() -> Self {
        Self { under_way: 0, bytes: 0, reads: None, wakers: Vec::new(), calls: Vec::new() }
    }

    /// The semaphore that admits reading requests.
    pub(crate) fn reads(&mut self) -> Arc<Semaphore> {
        self.reads.get_or_insert_with(|| Arc::new(Semaphore::new(READS_MAX))).clone()
    }

    /// The guards of calls outside any invocation.
    pub(crate) fn calls(&mut self) -> &mut Vec<CallGuard> {
        &mut self.calls
    }

    /// Adds a task that waits for room.
    pub(crate) fn wait(&mut self, waker: Option<&Waker>) {
        self.wakers.extend(waker.cloned());
    }

    pub(crate) fn answered(&mut self, bytes: usize) {
        self.under_way -= 1;
        self.bytes -= bytes;
    }

    /// Wakes the tasks that wait for room in the outgoing bytes.
    pub(crate) fn wake(&mut self) {
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }

    /// Counts a request. Returns an error if there are too many.
    pub(crate) fn admit(&mut self, bytes: usize) -> Result<(), WireError> {
        let too_many = |why| Err(WireError::Malformed(FrameKind::Request, why));
        if self.under_way >= REQUESTS_MAX {
            return too_many("too many requests under way");
        }
        if self.bytes + bytes > REQUEST_BYTES_MAX {
            return too_many("too many bytes of requests under way");
        }
        self.under_way += 1;
        self.bytes += bytes;
        Ok(())
    }
}
