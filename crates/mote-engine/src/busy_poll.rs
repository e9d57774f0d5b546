//! Keeps the data path awake while the next event is likely to arrive at once.
//!
//! With one request at a time, the most common load at the edge, every event finds the data path
//! asleep, and waking it costs more than serving the event. While at most one invocation runs, this
//! task polls for the next event for as long as [`HaltPoll`] expects one, and sleeps otherwise.
//! With more invocations in flight it does nothing: then the workers need the processor, and
//! batches form anyway. Each thread of the data path counts its own invocations, so that threads do
//! not wait for each other; one polls only while no other has any.
//!
//! A worker that has answered waits for its next invocation in the same way, and may poll for it by
//! the same rule. Only the engine knows how many others need a processor meanwhile, so it tells the
//! worker with each invocation whether few are under way ([`few_in_flight`]).

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mote_pool::admission::{Callee, Callees};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::now_ns;
use crate::halt_poll::HaltPoll;
use crate::threads::here;

thread_local! {
    static FEW: Cell<bool> = const { Cell::new(false) };
}

/// Whether so few invocations are in flight on this thread that their workers may poll.
pub(crate) fn few_in_flight() -> bool {
    FEW.get()
}

/// Watches the invocations in flight on the whole node.
pub(crate) struct BusyPoll {
    enabled: bool,
    /// Invocations in flight on one thread up to which the workers may poll.
    few: u32,
    /// Threads with invocations in flight.
    busy: AtomicU32,
    /// One for each thread of the data path; other threads count as the first one.
    threads: Box<[Thread]>,
}

/// One thread's invocations, in cache lines of its own.
#[repr(align(128))]
struct Thread {
    state: Mutex<State>,
    wake: Notify,
}

struct State {
    in_flight: u32,
    /// When an invocation last began or ended.
    last_ns: u64,
    /// The wait for a request, and the wait for a worker's answer.
    arrival: HaltPoll,
    answer: HaltPoll,
    asleep: bool,
    callees: Callees,
}

impl State {
    fn window_ns(&self) -> u64 {
        match self.in_flight {
            0 => self.arrival.window_ns(),
            1 => self.answer.window_ns(),
            _ => 0,
        }
    }

    /// Whether the task must be woken.
    fn rouse(&mut self, now_ns: u64, may_poll: bool) -> bool {
        self.last_ns = now_ns;
        may_poll && self.window_ns() > 0 && std::mem::take(&mut self.asleep)
    }
}

impl BusyPoll {
    /// `enabled` is for machines with more than one core: on a single one, polling would keep the
    /// awaited process from running.
    pub(crate) fn new(enabled: bool, threads: usize) -> Arc<Self> {
        let thread = || Thread {
            state: Mutex::new(State {
                in_flight: 0,
                last_ns: 0,
                arrival: HaltPoll::default(),
                answer: HaltPoll::default(),
                asleep: true,
                callees: Callees::default(),
            }),
            wake: Notify::new(),
        };
        let threads: Box<[_]> = (0..threads.max(1)).map(|_| thread()).collect();
        let few = if enabled { few_of(threads.len()) } else { 0 };
        Arc::new(Self { enabled, few, busy: AtomicU32::new(0), threads })
    }

    /// Whether a thread may poll that has no invocation in flight, or is the only one that has.
    fn may_poll(&self) -> bool {
        self.enabled && self.busy.load(Ordering::Relaxed) <= 1
    }

    /// Counts an invocation of the function `who` until the guard is dropped.
    pub(crate) fn enter(&self, who: Callee, now_ns: u64) -> InFlight<'_> {
        let thread = here().and_then(|thread| self.threads.get(thread)).unwrap_or(&self.threads[0]);
        let rouse = {
            let mut state = thread.state.lock();
            state.callees.called(who, now_ns);
            if state.in_flight == 0 {
                let wait = now_ns.saturating_sub(state.last_ns);
                state.arrival.waited(wait);
                self.busy.fetch_add(1, Ordering::Relaxed);
            }
            state.in_flight += 1;
            FEW.set(state.in_flight <= self.few);
            state.rouse(now_ns, self.may_poll())
        };
        if rouse {
            thread.wake.notify_one();
        }
        InFlight { poll: self, thread, ended_ns: 0 }
    }

    fn leave(&self, thread: &Thread, now_ns: u64) {
        let rouse = {
            let mut state = thread.state.lock();
            if state.in_flight == 1 {
                let wait = now_ns.saturating_sub(state.last_ns);
                state.answer.waited(wait);
                self.busy.fetch_sub(1, Ordering::Relaxed);
            }
            state.in_flight -= 1;
            FEW.set(state.in_flight <= self.few);
            state.rouse(now_ns, self.may_poll())
        };
        if rouse {
            thread.wake.notify_one();
        }
    }

    /// How long no invocation has been in flight, in nanoseconds; `None` while one is.
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

    /// Whether any function of another namespace was called recently.
    pub(crate) fn has_strangers(&self, who: Callee, now_ns: u64) -> bool {
        self.threads.iter().any(|thread| thread.state.lock().callees.has_strangers(who, now_ns))
    }

    /// Whether to poll once more; otherwise the next event must wake the task.
    fn expects_more(&self, thread: &Thread) -> bool {
        let now_ns = now_ns();
        let may_poll = self.may_poll();
        let mut state = thread.state.lock();
        let more = may_poll && now_ns.saturating_sub(state.last_ns) < state.window_ns();
        state.asleep = !more;
        more
    }

    /// Polls on the thread with this number, for the life of the node. Each yield lets the runtime
    /// poll for events without sleeping, and run the tasks that they made ready.
    pub(crate) async fn run(self: Arc<Self>, thread: usize) {
        let thread = &self.threads[thread];
        loop {
            thread.wake.notified().await;
            while self.expects_more(thread) {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// The invocations in flight on each of so many threads for which workers may poll: each has a
/// processor, one is left for each thread and one for a client on this machine. On two processors, a
/// client and a worker that polls leave none for the thread while a second invocation waits.
fn few_of(threads: usize) -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from((cores.saturating_sub(threads + 1) / threads).max(1)).unwrap_or(1)
}

/// One invocation in flight.
pub(crate) struct InFlight<'a> {
    poll: &'a BusyPoll,
    thread: &'a Thread,
    ended_ns: u64,
}

impl InFlight<'_> {
    /// Sets when the invocation ended, where that is known, which saves reading the clock.
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
