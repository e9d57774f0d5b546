//! What the node has seen of a revision since it created the revision in this process, for advice
//! to the owner.
//!
//! Only starts, ends and refusals are counted. Everything else is read from the instances on
//! request, so calls cost nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use mote_core::backend::Peaks;
use mote_pool::Why;
use mote_process::clock::now_ns;
use parking_lot::Mutex;

/// Idle times that could replace the one that a function has.
pub const IDLE_TIMES_MS: [u64; 3] = [15 * 60_000, 60 * 60_000, 6 * 60 * 60_000];

/// What was seen of a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// For how long.
    pub age_ns: u64,
    /// Calls that its instances have ended.
    pub calls: u64,
    /// The most memory of one instance; 0 if the machine does not measure it.
    pub memory_peak_bytes: u64,
    /// How many instances were ended because they needed more memory than the limit.
    pub memory_stops: u64,
    /// The processor time of all instances, and for how long the limit held them back.
    pub cpu_ns: u64,
    pub held_back_ns: u64,
    /// Calls that the full queue refused.
    pub queue_refusals: u64,
    /// Starts for which a call waited, and how many of them began while there was no instance.
    pub cold_starts: u64,
    pub starts_from_zero: u64,
    /// Starts from zero that this idle time would have avoided, but that no shorter one would have.
    pub starts_by_idle_ms: [(u64, u64); IDLE_TIMES_MS.len()],
    /// How long the first start for which a call waited took, if neither a deploy nor the start of
    /// the node had started an instance before.
    pub first_start_ns: Option<u64>,
    /// Instances that have run for more than a day and served no call.
    pub unused_for_a_day: usize,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            age_ns: 0,
            calls: 0,
            memory_peak_bytes: 0,
            memory_stops: 0,
            cpu_ns: 0,
            held_back_ns: 0,
            queue_refusals: 0,
            cold_starts: 0,
            starts_from_zero: 0,
            starts_by_idle_ms: IDLE_TIMES_MS.map(|ms| (ms, 0)),
            first_start_ns: None,
            unused_for_a_day: 0,
        }
    }
}

/// The counters of a revision.
#[derive(Debug)]
pub(crate) struct SeenCounters {
    since_ns: u64,
    queue_refusals: AtomicU64,
    rest: Mutex<Rest>,
}

#[derive(Debug, Default)]
struct Rest {
    ended: Seen,
    had_start: bool,
    /// When the last instance ended because it was idle, and when it had served its last call.
    last_idle: Option<u64>,
}

impl SeenCounters {
    pub(crate) fn new() -> Self {
        Self { since_ns: now_ns(), queue_refusals: AtomicU64::new(0), rest: Mutex::default() }
    }

    /// What the node has seen, without the instances that run now.
    pub(crate) fn of_ended(&self) -> Seen {
        let mut seen = self.rest.lock().ended;
        seen.age_ns = now_ns().saturating_sub(self.since_ns);
        seen.queue_refusals = self.queue_refusals.load(Ordering::Relaxed);
        seen
    }

    pub(crate) fn refused_by_queue(&self) {
        self.queue_refusals.fetch_add(1, Ordering::Relaxed);
    }

    /// An instance became ready, `took_ns` after its start. There were already `others`.
    pub(crate) fn started(&self, why: Why, took_ns: u64, others: usize) {
        let is_for_call =
            !matches!(why, Why::DEPLOY | Why::WARM | Why::SPARE | Why::MIN | Why::MANUAL);
        let mut rest = self.rest.lock();
        let is_first = !std::mem::replace(&mut rest.had_start, true);
        if !is_for_call {
            return;
        }
        rest.ended.cold_starts += 1;
        if others > 0 {
            return;
        }
        rest.ended.starts_from_zero += 1;
        if is_first {
            rest.ended.first_start_ns = Some(took_ns);
        }
        if let Some(last_call_ns) = rest.last_idle.take() {
            let idle_ms = (now_ns() - took_ns).saturating_sub(last_call_ns) / 1_000_000;
            let mut fitting = rest.ended.starts_by_idle_ms.iter_mut();
            if let Some((_, starts)) = fitting.find(|(ms, _)| idle_ms < *ms) {
                *starts += 1;
            }
        }
    }

    /// An instance that had been ready has ended. If the instance ended because the function's idle
    /// time was over, `idle_at_ns` is when its last call ended.
    pub(crate) fn ended(&self, peaks: Peaks, calls: u64, memory: bool, idle_at_ns: Option<u64>) {
        let mut rest = self.rest.lock();
        rest.ended.add(peaks, calls);
        rest.ended.memory_stops += u64::from(memory);
        rest.last_idle = idle_at_ns;
    }
}

impl Seen {
    pub(crate) fn add(&mut self, peaks: Peaks, calls: u64) {
        self.calls += calls;
        self.memory_peak_bytes = self.memory_peak_bytes.max(peaks.memory_bytes);
        self.cpu_ns += peaks.cpu_ns;
        self.held_back_ns += peaks.held_back_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Why = Why { word: "first-invocation", text: "" };

    #[test]
    fn starts_soon_after_an_idle_stop_are_counted() {
        let seen = SeenCounters::new();
        let figures = || seen.rest.lock().ended;
        let now = now_ns();
        seen.started(Why::DEPLOY, 5, 0);
        assert_eq!(figures(), Seen::default());
        // The last call ended ten minutes before the next one came.
        seen.ended(Peaks::default(), 1, false, Some(now.saturating_sub(600_000_000_000)));
        seen.started(START, 5, 0);
        assert_eq!(figures().starts_by_idle_ms.map(|(_, starts)| starts), [1, 0, 0]);
        // Nothing is known about a start after another end.
        seen.ended(Peaks::default(), 1, true, None);
        seen.started(START, 5, 0);
        seen.started(START, 5, 1);
        let all = figures();
        assert_eq!((all.cold_starts, all.starts_from_zero, all.memory_stops), (3, 2, 1));
        assert_eq!((all.starts_by_idle_ms[0].1, all.first_start_ns), (1, None));
    }

    #[test]
    fn the_first_start_counts_if_nothing_started_an_instance_before() {
        let seen = SeenCounters::new();
        seen.started(START, 7, 0);
        seen.started(START, 9, 0);
        assert_eq!(seen.rest.lock().ended.first_start_ns, Some(7));
    }
}
