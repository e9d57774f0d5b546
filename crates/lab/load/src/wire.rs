//! The trait between the schedule and the transport of operations, which is HTTP, CoAP, or the
//! script of a test.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::{Failure, Nanos, Phases};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A complete, good answer.
    Answered {
        /// The number of bytes in the answer's body.
        bytes: u64,
        /// The durations that the target reports.
        phases: Option<Phases>,
    },
    /// Any other outcome.
    Failed(Failure),
}

/// An operation that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    pub client: usize,
    /// When the operation ended.
    pub at: Nanos,
    pub outcome: Outcome,
}

/// The processor time at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mark {
    /// The processor time of this thread.
    pub cpu: Nanos,
    /// The processor time of the machine in ticks: the busy time and the total.
    pub machine: (u64, u64),
}

/// The clients of one thread, each of which has at most one operation under way. The wire owns the
/// clock, so that a test can control the time.
pub trait Wire {
    fn now(&mut self) -> Nanos;

    /// Begins an operation on a client that has none under way. Does not block. If this fails,
    /// [`Wire::next`] reports the failure.
    fn begin(&mut self, client: usize);

    /// Abandons the operation of a client, which is then free.
    fn give_up(&mut self, client: usize);

    /// The next operation that ended, or `None` when `until` is reached. Blocks until then at most.
    ///
    /// # Errors
    /// Fails if the machine refuses a resource that every operation needs, such as its event queue.
    fn next(&mut self, until: Nanos) -> io::Result<Option<Done>>;

    /// The processor time used so far.
    fn mark(&mut self) -> Mark {
        Mark::default()
    }

    /// How many messages were sent again and connections were established again since the start.
    fn repeats(&self) -> u64 {
        0
    }
}

/// The progress of a run, which other threads can read, and through which they can end the run.
#[derive(Debug, Default)]
pub struct Live {
    stop: AtomicBool,
    answered: AtomicU64,
    failed: AtomicU64,
    latency_sum: AtomicU64,
    latency_max: AtomicU64,
}

impl Live {
    /// Ends the run soon. Operations that are under way are abandoned.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether the run should end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The number of operations that were answered, the number that failed, and the sum of the
    /// latencies of the answered ones in nanoseconds. The warm-up is included.
    pub fn totals(&self) -> (u64, u64, Nanos) {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        (read(&self.answered), read(&self.failed), read(&self.latency_sum))
    }

    /// The longest latency since the previous call.
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
