//! The virtual clock and its queue of events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An event. Its numbers are indices of functions, instances and callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A call of an open process arrives. The function stores the call's details.
    Arrival { function: u32 },
    /// A caller of a closed load sends a call.
    Send { function: u32, client: u32 },
    /// The number of callers changes.
    Step { function: u32 },
    /// An invocation ends.
    Done { function: u32, worker: u32, serial: u64 },
    /// An instance is ready. Its start began at `since_ns`.
    Ready { function: u32, since_ns: u64 },
    /// A stopped instance has released its memory.
    Gone { function: u32, worker: u32 },
    /// The oldest waiting invocation may have reached its deadline.
    Expire { function: u32 },
    /// The autoscaler evaluates the function.
    Look { function: u32 },
    /// A generic sandbox is ready again.
    Refill,
    /// A point of the time series is recorded.
    Sample,
}

/// Events in order of time. Events at the same time are in the order in which they were added.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    entered: u64,
}

impl Agenda {
    pub(crate) fn at(&mut self, at_ns: u64, event: Event) {
        self.entered += 1;
        self.heap.push(Reverse((at_ns, self.entered, event)));
    }

    pub(crate) fn next(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse((at_ns, _, event))| (at_ns, event))
    }
}
