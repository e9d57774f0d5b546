//! A look at a pool handles deadlines, the autoscaler, spares, pauses and stops.

use super::orders::{Orders, Start, Stopping};
use super::own::Unserved;
use super::{Dispatched, Instance, Pool, Running, State, StopReason, Waiting, Why, Worker};
use crate::autoscale::{Decision, Reason};
use crate::budget::{Rest, rest};

/// If an instance has not ended an invocation this long after the deadline, the instance is stuck,
/// or works on an answer for which no caller waits.
const STUCK_NS: u64 = 1_000_000_000;
/// The pause before another attempt to pause an instance after one has failed, for instance because
/// the machine has no control groups.
const PAUSE_AGAIN_NS: u64 = 60_000_000_000;
/// While there is work, a passed deadline is noticed after at most this delay.
const TICK_NS: u64 = 20_000_000;
/// After this long without work, only the autoscaler requests looks.
const QUIET_NS: u64 = 1_000_000_000;

/// Why a waiting invocation has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// The node had no memory for an instance.
    NodeFull,
    /// No instance was ready yet.
    Starting,
    /// All instances were busy.
    Queued,
}

/// Invocations whose deadline has passed.
pub struct Expired<Q> {
    /// Waiting invocations, which have been removed from the queue.
    pub waiting: Vec<(Q, Expiry)>,
    /// Running invocations, as worker and slot. The owner must answer their callers, and tell the
    /// instance that no caller waits any longer ([`Worker::note_cancelled`]).
    pub running: Vec<(usize, usize)>,
}

/// Facts about the node that the pool cannot know.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings {
    /// The version of the node's memory books, which changes whenever memory is given back.
    pub version: u64,
    /// The share of the node's memory that is taken, from 0 to 1.
    pub memory_pressure: f64,
}

impl<Q: Waiting, R: Running, I: Instance> Pool<Q, R, I> {
    /// Finds invocations whose deadline has passed. Call [`Pool::look`] once these have been
    /// handled.
    pub fn expire(&mut self, now_ns: u64) -> Expired<Q> {
        let starting = self.workers.is_empty();
        let is_full =
            starting && self.starting.serving == 0 && self.full.is_some_and(|full| full.memory);
        let expiry = if is_full {
            Expiry::NodeFull
        } else if starting {
            Expiry::Starting
        } else {
            Expiry::Queued
        };
        let mut expired = Expired { waiting: Vec::new(), running: Vec::new() };
        // Deadlines are out of order only where callers have shortened them, so the scan is rarely
        // long.
        let mut at = 0;
        while let Some(queued) = self.queue.get(at) {
            if queued.waiting.deadline_ns() > now_ns && !queued.waiting.is_abandoned() {
                at += 1;
            } else if let Some(queued) = self.queue.remove(at) {
                expired.waiting.push((queued.waiting, expiry));
            }
        }
        for (key, worker) in &self.workers {
            let late = |call: &R| call.due_ns().is_some_and(|due_ns| due_ns <= now_ns);
            let calls = worker.calls().iter().filter(|(_, call)| late(call));
            expired.running.extend(calls.map(|(slot, _)| (key, slot)));
        }
        expired
    }

    /// Kills stuck instances, dispatches, carries out a decision of the autoscaler if one is due,
    /// keeps spares, pauses idle instances, and stops instances that are not wanted.
    pub fn look(
        &mut self,
        around: Surroundings,
        now_ns: u64,
        begin: impl FnMut(Dispatched<'_, Q, I>) -> R,
    ) -> Orders {
        let mut orders = Orders::default();
        for (_, worker) in &mut self.workers {
            if worker.stop_if_stuck(now_ns, STUCK_NS) {
                orders.killed.push(worker.number());
            }
        }
        self.dispatch(now_ns, begin);
        self.stop_spent();
        self.scale(around, now_ns, &mut orders);
        self.keep_spares(now_ns, &mut orders);
        self.pause_idle(now_ns);
        for (key, worker) in &mut self.workers {
            if worker.leave(now_ns) {
                orders.exiting.push(key);
            }
        }
        let until = |at_ns: u64| at_ns.saturating_sub(now_ns);
        orders.next_ns = self.next_ns(now_ns);
        orders.rests = self.rests(now_ns);
        orders.sleep_ns = if orders.rests {
            orders.next_ns.map(until)
        } else {
            // If a decision is due before the next tick, the look does not wait for the tick.
            Some(orders.next_ns.map_or(TICK_NS, until).min(TICK_NS))
        };
        orders
    }

    /// Whether the owner should now read the processor time and memory of instances, because the
    /// autoscaler's rule depends on them ([`Worker::record_usage`]).
    pub fn wants_measures(&mut self, now_ns: u64) -> bool {
        self.scaling.as_mut().is_some_and(|scaling| scaling.wants_measures(now_ns))
    }

    fn decide(&mut self, memory_pressure: f64, now_ns: u64) -> Option<Decision> {
        let live = self.at_hand_count() + self.starting.serving;
        let scaling = self.scaling.as_ref()?;
        if !scaling.is_due(self.queue.len(), live, now_ns) {
            return None;
        }
        let count = self.count(now_ns);
        let scaling = self.scaling.as_mut()?;
        Some(scaling.decide(&count, memory_pressure, now_ns))
    }

    fn scale(&mut self, around: Surroundings, now_ns: u64, orders: &mut Orders) {
        if self.is_closed() {
            return;
        }
        self.notice_room(around.version);
        let Some(decision) = self.decide(around.memory_pressure, now_ns) else { return };
        let ready = self.at_hand_count();
        let min = self.bounds.min;
        // An instance that is kept only for the next invocation is not replaced if it dies.
        let kept_only = decision.reason == Reason::KeepAlive && ready + self.starting.serving == 0;
        let mut desired = if kept_only { min } else { decision.desired };
        self.asked_for = self.asked_for.filter(|(_, until_ns)| now_ns < *until_ns);
        if let Some((count, until_ns)) = self.asked_for {
            desired = desired.max(count.min(ready + self.starting.serving));
            self.look_by(until_ns);
        }
        // How many instances are kept, and how many there are once missing ones are started.
        let mut kept = desired;
        let unserved = if self.is_divided() { self.unserved() } else { Unserved::default() };
        if self.is_divided() {
            // As long as no caller waits, the resting instances serve the present callers.
            let wished = if self.queue.is_empty() { min } else { desired };
            desired = wished.max(self.owned_busy_count() + unserved.count);
            kept = kept.max(desired);
        }
        // A spare that is starting will serve if it is needed once it is ready. Instances beyond
        // the limit of simultaneous starts are requested again when a start has succeeded or
        // failed.
        let on_their_way = self.starting.serving + self.starting.spare;
        let starts_max = self.rules.starts_max;
        let mut missing = desired
            .saturating_sub(ready + on_their_way)
            .min(starts_max.saturating_sub(on_their_way));
        if self.is_divided() {
            missing = self.make_place(missing, unserved, now_ns, orders);
        }
        // Paused instances that have already served count as ready.
        while missing > 0 && self.resume_spare() {
            missing -= 1;
        }
        let for_minimum = missing > 0 && self.queue.is_empty() && desired <= min;
        let why = if for_minimum { Why::MIN } else { Why::from(decision.reason) };
        let evict = for_minimum || !self.queue.is_empty();
        let full_until_ns = self.full.map_or(0, |full| full.until_ns);
        let not_before = full_until_ns.max(self.trouble.until_ns());
        if missing == 0 {
            self.full = None;
        }
        if missing > 0 && now_ns < not_before {
            self.look_by(not_before);
        } else if missing > 0 {
            self.count_starts(missing, now_ns);
            orders.start = Some(Start { count: missing, why, evict });
        }
        // Only ready instances are stopped. An instance that is starting is judged once it is
        // ready.
        let is_idle = decision.reason == Reason::Idle;
        let reason = if is_idle { StopReason::Idle } else { StopReason::Surplus };
        for _ in kept..ready {
            let Some(number) = self.drain_surplus(reason, why) else { return };
            orders.stopping.push(Stopping { number, why });
        }
    }

    /// Stops one instance when fewer are wanted: the instance that has been idle longest, or the
    /// least busy one if none is idle. Returns the number of the instance.
    pub(super) fn drain_surplus(&mut self, reason: StopReason, why: Why) -> Option<u64> {
        let workers = self.workers.iter_mut().map(|(_, worker)| worker);
        let worker = workers
            .filter(|worker| !worker.is_draining() && !worker.is_spare() && !worker.rests())
            .min_by_key(|worker| (worker.calls().len(), worker.idle_since_ns()))?;
        worker.drain(reason, why.text);
        Some(worker.number())
    }

    /// Stops the least busy instance once its invocations have ended, so that a namespace that
    /// holds less than its share gets memory. Returns the number of the instance, or `None` if
    /// there is no instance or the function `keeps_minimum` and has no more than the minimum.
    pub fn give_way(&mut self, why: Why, keeps_minimum: bool) -> Option<u64> {
        if self.is_closed() || (keeps_minimum && self.ready_count() <= self.bounds.min) {
            return None;
        }
        let resting = self.drain_resting(StopReason::Evicted, why);
        resting.or_else(|| self.drain_surplus(StopReason::Evicted, why))
    }

    /// Makes a decision due if memory was given back to the node since a start was refused.
    fn notice_room(&mut self, version: u64) {
        if let Some(full) = &mut self.full
            && full.version != version
        {
            full.version = version;
            full.until_ns = 0;
            self.look_by(0);
        }
    }

    /// Orders an instance if there are fewer spares than should be kept loaded and paused.
    fn keep_spares(&mut self, now_ns: u64, orders: &mut Orders) {
        // Instances for which a caller waits take precedence.
        let have = self.spare_count() + self.starting.spare;
        let live = self.ready_count() + self.starting.serving + have;
        let room = self.bounds.max.saturating_sub(live);
        let trouble = &self.trouble;
        if self.is_closed() || trouble.no_spares || self.rules.spares <= have || room == 0 {
            return;
        }
        let not_before = trouble.until_ns().max(trouble.spare_again_ns);
        let on_their_way = self.starting.serving + self.starting.spare;
        if now_ns < not_before {
            self.look_by(not_before);
        } else if on_their_way == 0 && self.queue.is_empty() {
            // Only one spare starts at a time, because no caller waits for spares.
            self.starting.spare = 1;
            orders.start_spare = true;
        }
    }

    /// Pauses instances that have been idle for long enough.
    fn pause_idle(&mut self, now_ns: u64) {
        let Some(after_ns) = self.rules.pause_after_ns else { return };
        if now_ns < self.trouble.pause_again_ns {
            return;
        }
        for (_, worker) in &mut self.workers {
            let idle_ns = now_ns.saturating_sub(worker.idle_since_ns());
            let rests = rest(true, idle_ns, Some(after_ns)) == Rest::Pause;
            let may = *worker.state() == State::Ready && worker.calls().is_empty();
            if may && rests && !worker.pause_as(State::Paused) {
                self.trouble.pause_again_ns = now_ns + PAUSE_AGAIN_NS;
                return;
            }
        }
    }

    /// Whether no invocation runs or waits, and none has run for a while.
    fn rests(&self, now_ns: u64) -> bool {
        let goes = |worker: &Worker<R, I>| worker.is_draining() || worker.is_ending();
        let busy = |worker: &Worker<R, I>| goes(worker) || !worker.calls().is_empty();
        let recent = |worker: &Worker<R, I>| now_ns < worker.idle_since_ns() + QUIET_NS;
        let mut workers = self.workers.iter().map(|(_, worker)| worker);
        self.queue.is_empty() && !workers.any(|worker| busy(worker) || recent(worker))
    }

    /// The time at which the next decision is due if nothing changes.
    fn next_ns(&self, now_ns: u64) -> Option<u64> {
        let scaling = self.scaling.as_ref()?;
        let live = self.at_hand_count() + self.starting.serving;
        let is_full = self.full.is_some_and(|full| now_ns < full.until_ns);
        let may_start = !self.queue.is_empty()
            && live < self.bounds.max
            && now_ns >= self.trouble.until_ns()
            && !is_full;
        // One decision serves all waiting invocations and is due soon.
        let for_waiting = may_start.then(|| scaling.next_ns(live));
        for_waiting.into_iter().chain(scaling.look_ns()).chain(self.next_pause_ns()).min()
    }

    /// The time at which the next idle instance is to be paused.
    fn next_pause_ns(&self) -> Option<u64> {
        let after_ns = self.rules.pause_after_ns?;
        let pausable =
            |worker: &Worker<R, I>| *worker.state() == State::Ready && worker.calls().is_empty();
        let ready = self.workers.iter().filter(|(_, worker)| pausable(worker));
        let next = ready.map(|(_, worker)| worker.idle_since_ns().saturating_add(after_ns)).min();
        next.map(|next_ns| next_ns.max(self.trouble.pause_again_ns))
    }
}
