//! Keeps the data path awake while the next event is likely to arrive at once.
//!
//! With one request at a time, the most common load at the edge, every event finds the data path
//! asleep, and waking it costs more than serving the event. While at most one invocation runs, this
//! task polls for the next event for as long as [`HaltPoll`] expects one, and sleeps otherwise.
//! With more invocations in flight it does nothing: then the workers need the processor, and
//! batches form anyway.

use std::sync::Arc;

use mote_pool::admission::Callees;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::now_ns;
use crate::halt_poll::HaltPoll;

/// Watches the invocations in flight on the whole node.
pub(crate) struct BusyPoll {
    state: Mutex<State>,
    wake: Notify,
}

struct State {
    enabled: bool,
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
            _ if !self.enabled => 0,
            0 => self.arrival.window_ns(),
            1 => self.answer.window_ns(),
            _ => 0,
        }
    }

    /// Whether the task must be woken.
    fn rouse(&mut self, now_ns: u64) -> bool {
        self.last_ns = now_ns;
        self.window_ns() > 0 && std::mem::take(&mut self.asleep)
    }
}

impl BusyPoll {
    /// `enabled` is for machines with more than one core: on a single one, polling would keep the
    /// awaited process from running.
    pub(crate) fn new(enabled: bool) -> Arc<Self> {
        let state = State {
            enabled,
            in_flight: 0,
            last_ns: 0,
            arrival: HaltPoll::default(),
            answer: HaltPoll::default(),
            asleep: true,
            callees: Callees::default(),
        };
        Arc::new(Self { state: Mutex::new(state), wake: Notify::new() })
    }

    /// Counts an invocation of the function `who` until the guard is dropped.
    pub(crate) fn enter(&self, who: u64, now_ns: u64) -> InFlight<'_> {
        let rouse = {
            let mut state = self.state.lock();
            state.callees.called(who, now_ns);
            if state.in_flight == 0 {
                let wait = now_ns.saturating_sub(state.last_ns);
                state.arrival.waited(wait);
            }
            state.in_flight += 1;
            state.rouse(now_ns)
        };
        if rouse {
            self.wake.notify_one();
        }
        InFlight { poll: self, ended_ns: 0 }
    }

    fn leave(&self, now_ns: u64) {
        let rouse = {
            let mut state = self.state.lock();
            if state.in_flight == 1 {
                let wait = now_ns.saturating_sub(state.last_ns);
                state.answer.waited(wait);
            }
            state.in_flight -= 1;
            state.rouse(now_ns)
        };
        if rouse {
            self.wake.notify_one();
        }
    }

    /// How long no invocation has been in flight, in nanoseconds; `None` while one is.
    pub(crate) fn idle_ns(&self, now_ns: u64) -> Option<u64> {
        let state = self.state.lock();
        (state.in_flight == 0).then(|| now_ns.saturating_sub(state.last_ns))
    }

    /// Whether any function other than `who` was called recently.
    pub(crate) fn has_neighbours(&self, who: u64, now_ns: u64) -> bool {
        self.state.lock().callees.has_neighbours(who, now_ns)
    }

    /// Whether to poll once more; otherwise the next event must wake the task.
    fn expects_more(&self) -> bool {
        let now_ns = now_ns();
        let mut state = self.state.lock();
        let more = now_ns.saturating_sub(state.last_ns) < state.window_ns();
        state.asleep = !more;
        more
    }

    /// Runs for the life of the node. Each yield lets the runtime poll for events without sleeping,
    /// and run the tasks that they made ready.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            self.wake.notified().await;
            while self.expects_more() {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// One invocation in flight.
pub(crate) struct InFlight<'a> {
    poll: &'a BusyPoll,
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
        self.poll.leave(if self.ended_ns == 0 { now_ns() } else { self.ended_ns });
    }
}
