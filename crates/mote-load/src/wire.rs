//! The seam between the schedule and what carries operations: HTTP, CoAP, or a test's script.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::{Failure, Nanos, Phases};

/// What came of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A good answer, whole.
    Answered {
        /// Bytes of its body.
        bytes: u64,
        /// Where the target says the time went.
        phases: Option<Phases>,
    },
    /// Anything else.
    Failed(Failure),
}

/// An operation that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Whose it was.
    pub client: usize,
    /// When.
    pub at: Nanos,
    /// What came of it.
    pub outcome: Outcome,
}

/// Processor time at a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mark {
    /// Of this thread.
    pub cpu: Nanos,
    /// Of the machine: busy and in all, in ticks.
    pub machine: (u64, u64),
}

/// Clients of one thread, each with one operation under way at most. Owns the clock, so that a
/// test can be its master.
pub trait Wire {
    /// The time.
    fn now(&mut self) -> Nanos;

    /// Begins an operation on a client that has none. Does not block; a failure is told by
    /// [`Wire::next`].
    fn begin(&mut self, client: usize);

    /// Forgets the operation of a client, which is free afterwards.
    fn give_up(&mut self, client: usize);

    /// The next operation that ended, or `None` once it is `until`. Blocks until then at most.
    ///
    /// # Errors
    /// When the machine refuses what every operation needs, such as its event queue.
    fn next(&mut self, until: Nanos) -> io::Result<Option<Done>>;

    /// Processor time used so far.
    fn mark(&mut self) -> Mark {
        Mark::default()
    }

    /// Times something had to be sent again or connected anew since the start.
    fn repeats(&self) -> u64 {
        0
    }
}

/// What others may see of a run while it goes on, and how they end it.
#[derive(Debug, Default)]
pub struct Live {
    stop: AtomicBool,
    answered: AtomicU64,
    failed: AtomicU64,
    latency_sum: AtomicU64,
    latency_max: AtomicU64,
}

impl Live {
    /// Ends the run soon: what is under way is forgotten.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Operations answered, operations failed, and the sum of the latencies of the former, in
    /// nanoseconds; warm-up included.
    pub fn totals(&self) -> (u64, u64, Nanos) {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        (read(&self.answered), read(&self.failed), read(&self.latency_sum))
    }

    /// The longest latency since this was asked last.
    pub fn take_max(&self) -> Nanos {
        self.latency_max.swap(0, Ordering::Relaxed)
    }

    pub(crate) fn add(&self, latency: Option<Nanos>) {
        match latency {
            Some(latency) => {
                self.answered.fetch_add(1, Ordering::Relaxed);
                self.latency_sum.fetch_add(latency, Ordering::Relaxed);
                if latency > self.latency_max.load(Ordering::Relaxed) {
                    self.latency_max.fetch_max(latency, Ordering::Relaxed);
                }
            }
            None => {
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
