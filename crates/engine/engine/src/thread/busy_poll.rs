//! Keeps the data path awake while the next request is likely to arrive at once.
//!
//! At the edge, there are usually few requests at a time. Each of them then finds the data path
//! asleep, and waking it costs more than serving the request. This task polls for the next request
//! for as long as [`HaltPoll`] expects one, and sleeps otherwise.
//!
//! A node shares its processors, so polling gives way: each turn lets any other process run that
//! waits for this processor (sched_yield(2)), and a turn that took long because one did ends the
//! polling. While an invocation is in flight, nothing polls: the worker runs on this processor
//! ([`nearby`](crate::thread::nearby)), or works for so long that being woken costs little.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mote_pool::admission::{Callee, Callees};
use parking_lot::Mutex;
use rustix::thread::sched_yield;
use tokio::sync::Notify;

use crate::thread::halt_poll::HaltPoll;
use crate::thread::threads::here;
use mote_process::clock::now_ns;

/// A turn of polling that took longer than this, in nanoseconds, ran another process. A turn takes
/// 1 to 3 µs otherwise.
const TURN_MAX_NS: u64 = 50_000;

/// With more invocations in flight than this, a worker and the thread that serves it have enough to
/// do for a processor each.
const FEW: u32 = 8;

/// The number of a thread's instances that work on an invocation, in a separate cache line.
#[derive(Default)]
#[repr(align(128))]
struct Working(AtomicU32);

/// Counts the invocations of one instance. The instance counts in [`Working`] while it has any.
pub(crate) struct Load {
    invocations: AtomicU32,
    working: Arc<Working>,
}

impl Load {
    /// Counts an invocation until the result is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Work {
        if self.invocations.fetch_add(1, Ordering::Relaxed) == 0 {
            self.working.0.fetch_add(1, Ordering::Relaxed);
        }
        Work(self.clone())
    }
}

/// One invocation of an instance.
pub(crate) struct Work(Arc<Load>);

impl Drop for Work {
    fn drop(&mut self) {
        if self.0.invocations.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.working.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Observes the invocations in flight on the whole node.
pub(crate) struct BusyPoll {
    enabled: bool,
    /// The number of threads with invocations in flight.
    busy: AtomicU32,
    /// One entry for each thread of the data path. All other threads share the entry of the first
    /// one.
    threads: Box<[Thread]>,
}

/// The invocations of one thread, in separate cache lines.
#[repr(align(128))]
struct Thread {
    state: Mutex<State>,
    wake: Notify,
    working: Arc<Working>,
}

struct State {
    in_flight: u32,
    /// When an invocation last began or ended.
    last_ns: u64,
    /// Learns from the time between the end of the last invocation and the next one.
    arrival: HaltPoll,
    asleep: bool,
    callees: Callees,
}

impl BusyPoll {
    /// Set `enabled` only on machines with more than one core. On a single core, polling would keep
    /// the awaited process from running.
    pub(crate) fn new(enabled: bool, threads: usize) -> Arc<Self> {
        let thread = || Thread {
            state: Mutex::new(State {
                in_flight: 0,
                last_ns: 0,
                arrival: HaltPoll::default(),
                asleep: true,
                callees: Callees::default(),
            }),
            wake: Notify::new(),
            working: Arc::default(),
        };
        let threads = (0..threads.max(1)).map(|_| thread()).collect();
        Arc::new(Self { enabled, busy: AtomicU32::new(0), threads })
    }

    /// Whether at most one of this thread's instances works on invocations, and only a few.
    pub(crate) fn is_alone(&self) -> bool {
        let thread = self.this_thread();
        thread.working.0.load(Ordering::Relaxed) <= 1 && thread.state.lock().in_flight <= FEW
    }

    fn this_thread(&self) -> &Thread {
        here().and_then(|thread| self.threads.get(thread)).unwrap_or(&self.threads[0])
    }

    /// The counter for a new instance that the current thread serves.
    pub(crate) fn load(&self) -> Arc<Load> {
        let working = self.this_thread().working.clone();
        Arc::new(Load { invocations: AtomicU32::new(0), working })
    }

    /// Counts an invocation of the function `who` until the guard is dropped.
    pub(crate) fn enter(&self, who: Callee, now_ns: u64) -> InFlight<'_> {
        let thread = self.this_thread();
        let mut state = thread.state.lock();
        state.callees.called(who, now_ns);
        if state.in_flight == 0 {
            let wait_ns = now_ns.saturating_sub(state.last_ns);
            state.arrival.waited(wait_ns);
            self.busy.fetch_add(1, Ordering::Relaxed);
        }
        state.in_flight += 1;
        state.last_ns = now_ns;
        drop(state);
        InFlight { poll: self, thread, ended_ns: 0 }
    }

    fn leave(&self, thread: &Thread, now_ns: u64) {
        let mut state = thread.state.lock();
        state.in_flight -= 1;
        state.last_ns = now_ns;
        let polls = state.in_flight == 0
            && self.busy.fetch_sub(1, Ordering::Relaxed) == 1
            && self.enabled
            && state.arrival.window_ns() > 0
            && std::mem::take(&mut state.asleep);
        drop(state);
        if polls {
            thread.wake.notify_one();
        }
    }

    /// How long no invocation has been in flight, in nanoseconds. `None` while one is in flight.
    pub(crate) fn idle_ns(&self, now_ns: u64) -> Option<u64> {
        let idle = |thread: &Thread| {
            let state = thread.state.lock();
            (state.in_flight == 0).then(|| now_ns.saturating_sub(state.last_ns))
        };
        self.threads.iter().map(idle).min().flatten()
    }

    /// Whether any function other than `who` was called recently.
    pub(crate) fn has_neighbours(&self, who: Callee, now_ns: u64) -> bool {
        self.threads.iter().any(|thread| thread.state.lock().callees.has_neighbours(who, now_ns))
    }

    /// Whether any function in another namespace was called recently.
    pub(crate) fn has_strangers(&self, who: Callee, now_ns: u64) -> bool {
        self.threads.iter().any(|thread| thread.state.lock().callees.has_strangers(who, now_ns))
    }

    /// Whether to poll once more. If not, the end of an invocation must wake the task.
    fn expects_more(&self, thread: &Thread, now_ns: u64) -> bool {
        let is_idle = self.busy.load(Ordering::Relaxed) == 0;
        let mut state = thread.state.lock();
        let more = is_idle && now_ns.saturating_sub(state.last_ns) < state.arrival.window_ns();
        state.asleep = !more;
        more
    }

    /// Polls on the thread with this number, for the life of the node. Each yield to the runtime
    /// lets it check for events without sleeping, and run the tasks that became ready.
    pub(crate) async fn run(self: Arc<Self>, thread: usize) {
        let thread = &self.threads[thread];
        loop {
            thread.wake.notified().await;
            let mut began_ns = now_ns();
            while self.expects_more(thread, began_ns) {
                sched_yield();
                if now_ns().saturating_sub(began_ns) > TURN_MAX_NS {
                    thread.state.lock().arrival = HaltPoll::default();
                }
                tokio::task::yield_now().await;
                began_ns = now_ns();
            }
        }
    }
}

pub(crate) struct InFlight<'a> {
    poll: &'a BusyPoll,
    thread: &'a Thread,
    ended_ns: u64,
}

impl InFlight<'_> {
    /// Sets the time at which the invocation ended, which saves reading the clock if the time is
    /// already known.
    pub(crate) fn ended_ns(&mut self, ns: u64) {
        self.ended_ns = ns;
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let ended_ns = if self.ended_ns == 0 { now_ns() } else { self.ended_ns };
        self.poll.leave(self.thread, ended_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_counts_once_while_it_works() {
        let poll = BusyPoll::new(true, 1);
        let one = poll.load();
        let other = poll.load();
        let first = one.begin();
        let second = one.begin();
        assert!(poll.is_alone(), "both invocations are in one instance");
        let third = other.begin();
        assert!(!poll.is_alone());
        drop(first);
        assert!(!poll.is_alone(), "the instance still has one");
        drop(second);
        assert!(poll.is_alone());
        drop(third);
        assert!(poll.is_alone());
    }

    #[test]
    fn a_thread_polls_after_short_waits_and_never_during_an_invocation() {
        let poll = BusyPoll::new(true, 2);
        let thread = &poll.threads[0];
        let invoke = |begin_ns, end_ns| {
            let mut invocation = poll.enter(Callee::default(), begin_ns);
            assert!(!poll.expects_more(thread, begin_ns + 1), "an invocation is in flight");
            invocation.ended_ns(end_ns);
        };
        invoke(1_000_000, 1_020_000);
        assert!(!poll.expects_more(thread, 1_020_001), "nothing is known yet");
        invoke(1_030_000, 1_050_000);
        assert!(poll.expects_more(thread, 1_050_001), "the next one may come as soon");
        assert!(!poll.expects_more(thread, 1_062_500), "it has not come");
        invoke(9_000_000, 9_020_000);
        assert!(!poll.expects_more(thread, 9_020_001), "the last wait was long");
    }
}
