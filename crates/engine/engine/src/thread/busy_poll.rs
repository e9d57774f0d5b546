//! Keeps the data path awake while the next event is likely to arrive at once.
//!
//! At the edge, there are usually few requests at a time. Every event then finds the data path
//! asleep, and waking it costs more than serving the event. This task polls for the next event for
//! as long as [`HaltPoll`] expects one, and sleeps otherwise. With several invocations in flight,
//! the task polls only while the machine has a processor for each instance that works on them and
//! one for each thread of the data path, because otherwise polling would take the processor from
//! the instances. Each thread counts its own invocations and instances, so that threads do not wait
//! for each other. A thread polls only while no other thread has any invocation.
//!
//! A worker that has answered waits for its next invocation in the same way, and may poll for it by
//! the same rule. Only the engine knows how many others need a processor in the meantime. With each
//! invocation, it therefore tells the worker whether few invocations are under way
//! ([`few_in_flight`]).

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mote_pool::admission::{Callee, Callees};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::thread::halt_poll::HaltPoll;
use crate::thread::threads::here;
use mote_process::clock::now_ns;

thread_local! {
    static FEW: Cell<bool> = const { Cell::new(false) };
}

/// Whether so few invocations are in flight on this thread that their workers may poll.
pub(crate) fn few_in_flight() -> bool {
    FEW.get()
}

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
    /// The maximum number of working instances with which a thread may poll, however many
    /// invocations are in flight.
    room: u32,
    /// The maximum number of invocations in flight on a thread with which its workers may poll.
    few: u32,
    /// The number of threads with invocations in flight.
    busy: AtomicU32,
    /// One entry for each thread of the data path. All other threads count as the first one.
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
    /// Learns from waits that begin while no invocation is in flight.
    arrival: HaltPoll,
    /// Learns from all other waits.
    answer: HaltPoll,
    asleep: bool,
    callees: Callees,
}

impl State {
    /// How long to poll. `has_room` says whether each working instance has a processor.
    fn window_ns(&self, has_room: bool) -> u64 {
        match self.in_flight {
            0 => self.arrival.window_ns(),
            1 => self.answer.window_ns(),
            _ if has_room => self.answer.window_ns(),
            _ => 0,
        }
    }

    /// Learns how long the thread has waited until an invocation began or ended now.
    fn waited(&mut self, now_ns: u64) {
        let wait_ns = now_ns.saturating_sub(self.last_ns);
        if self.in_flight == 0 { &mut self.arrival } else { &mut self.answer }.waited(wait_ns);
        self.last_ns = now_ns;
    }

    /// Whether the task must be woken.
    fn rouse(&mut self, may_poll: bool, has_room: bool) -> bool {
        may_poll && self.window_ns(has_room) > 0 && std::mem::take(&mut self.asleep)
    }
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
                answer: HaltPoll::default(),
                asleep: true,
                callees: Callees::default(),
            }),
            wake: Notify::new(),
            working: Arc::default(),
        };
        let threads: Box<[_]> = (0..threads.max(1)).map(|_| thread()).collect();
        let few = if enabled { few_of(threads.len()) } else { 0 };
        let room = u32::try_from(cores() / threads.len()).unwrap_or(u32::MAX).max(2) - 1;
        Arc::new(Self { enabled, room, few, busy: AtomicU32::new(0), threads })
    }

    /// Whether polling is allowed for a thread with no invocation in flight, and for the only
    /// thread that has some.
    fn may_poll(&self) -> bool {
        self.enabled && self.busy.load(Ordering::Relaxed) <= 1
    }

    /// Whether each of the thread's instances that work on an invocation has a processor.
    fn has_room(&self, thread: &Thread) -> bool {
        thread.working.0.load(Ordering::Relaxed) <= self.room
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
        let rouse = {
            let mut state = thread.state.lock();
            state.callees.called(who, now_ns);
            state.waited(now_ns);
            if state.in_flight == 0 {
                self.busy.fetch_add(1, Ordering::Relaxed);
            }
            state.in_flight += 1;
            FEW.set(state.in_flight <= self.few);
            state.rouse(self.may_poll(), self.has_room(thread))
        };
        if rouse {
            thread.wake.notify_one();
        }
        InFlight { poll: self, thread, ended_ns: 0 }
    }

    fn leave(&self, thread: &Thread, now_ns: u64) {
        let rouse = {
            let mut state = thread.state.lock();
            state.waited(now_ns);
            if state.in_flight == 1 {
                self.busy.fetch_sub(1, Ordering::Relaxed);
            }
            state.in_flight -= 1;
            FEW.set(state.in_flight <= self.few);
            state.rouse(self.may_poll(), self.has_room(thread))
        };
        if rouse {
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

    /// Whether any function of another namespace was called recently.
    pub(crate) fn has_strangers(&self, who: Callee, now_ns: u64) -> bool {
        self.threads.iter().any(|thread| thread.state.lock().callees.has_strangers(who, now_ns))
    }

    /// Whether to poll once more. If not, the next event must wake the task.
    fn expects_more(&self, thread: &Thread) -> bool {
        let now_ns = now_ns();
        let may_poll = self.may_poll();
        let has_room = self.has_room(thread);
        let mut state = thread.state.lock();
        let more = may_poll && now_ns.saturating_sub(state.last_ns) < state.window_ns(has_room);
        state.asleep = !more;
        more
    }

    /// Polls on the thread with this number, for the life of the node. Each yield lets the runtime
    /// check for events without sleeping, and run the tasks that became ready.
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

/// The maximum number of invocations in flight on a thread with which its workers may poll, if
/// there are `threads` threads. Up to this number, each invocation has a processor, and one more is
/// left for each thread and one for a client on this machine. With two processors the result is 1,
/// because a client and a polling worker would leave no processor for the thread while a second
/// invocation waits.
fn few_of(threads: usize) -> u32 {
    u32::try_from((cores().saturating_sub(threads + 1) / threads).max(1)).unwrap_or(1)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

pub(crate) struct InFlight<'a> {
    poll: &'a BusyPoll,
    thread: &'a Thread,
    ended_ns: u64,
}

impl InFlight<'_> {
    /// Sets when the invocation ended. This saves reading the clock if the time is already known.
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

    /// A thread that may poll unless too many instances work.
    fn poll() -> BusyPoll {
        let mut poll = Arc::into_inner(BusyPoll::new(true, 1)).unwrap();
        poll.room = 1;
        poll
    }

    #[test]
    fn an_instance_counts_once_while_it_works() {
        let poll = poll();
        let one = poll.load();
        let other = poll.load();
        let room = || poll.has_room(&poll.threads[0]);
        let first = one.begin();
        let second = one.begin();
        assert!(room(), "both invocations are in one instance");
        let third = other.begin();
        assert!(!room());
        drop(first);
        assert!(!room(), "the instance still has one");
        drop(second);
        assert!(room());
        drop(third);
        assert!(room());
    }

    #[test]
    fn several_invocations_are_awaited_only_with_a_processor_for_each_instance() {
        let poll = poll();
        let mut state = poll.threads[0].state.lock();
        state.waited(10_000);
        assert!(state.window_ns(false) > 0, "the next one may come as soon");
        for (in_flight, now_ns) in [(1, 20_000), (2, 30_000)] {
            state.in_flight = in_flight;
            state.waited(now_ns);
        }
        assert_eq!((state.window_ns(true), state.window_ns(false)), (12_500, 0));
        state.in_flight = 1;
        assert_eq!((state.window_ns(true), state.window_ns(false)), (12_500, 12_500));
        state.waited(1_000_000);
        assert_eq!(state.window_ns(true), 0, "answers take long now");
    }
}
