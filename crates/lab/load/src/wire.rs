//! The trait between the schedule and the transport of operations: HTTP, CoAP, or a test's script.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::{Failure, Nanos, Phases};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A complete, good answer.
    Answered {
        /// Bytes of its body.
        bytes: u64,
        /// The durations that the target reports.
        phases: Option<Phases>,
    },
    /// Anything else.
    Failed(Failure),
}

/// An operation that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    pub client: usize,
    /// The time of its end.
    pub at: Nanos,
    pub outcome: Outcome,
}

/// Processor time at a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mark {
    /// Processor time of this thread.
    pub cpu: Nanos,
    /// Processor time of the machine in ticks: busy, and in total.
    pub machine: (u64, u64),
}

/// The clients of one thread, each with at most one operation under way. The wire owns the clock,
/// so that a test can control it.
pub trait Wire {
    /// The current time.
    fn now(&mut self) -> Nanos;

    /// Begins an operation on a client that has none. Does not block; [`Wire::next`] reports a
    /// failure.
    fn begin(&mut self, client: usize);

    /// Abandons the operation of a client, which is free afterwards.
    fn give_up(&mut self, client: usize);

    /// The next operation that ended, or `None` at `until`. Blocks until then at most.
    ///
    /// # Errors
    /// Fails when the machine refuses a resource that every operation needs, such as its event
    /// queue.
    fn next(&mut self, until: Nanos) -> io::Result<Option<Done>>;

    /// Processor time used so far.
    fn mark(&mut self) -> Mark {
        Mark::default()
    }

    /// The number of messages sent again and connections made again since the start.
    fn repeats(&self) -> u64 {
        0
    }
}

/// The progress of a run, which other threads can read, and their way to end it.
#[derive(Debug, Default)]
pub struct Live {
    stop: AtomicBool,
    answered: AtomicU64,
    failed: AtomicU64,
    latency_sum: AtomicU64,
    latency_max: AtomicU64,
}

impl Live {
    /// Ends the run soon; operations that are under way are abandoned.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether the run should end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Operations answered, operations failed, and the sum of the latencies of the answered ones in
    /// nanoseconds, including the warm-up.
    pub fn totals(&self) -> (u64, u64, Nanos) {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        (read(&self.answered), read(&self.failed), read(&self.latency_sum))
    }

    /// The longest latency since the last call.
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
