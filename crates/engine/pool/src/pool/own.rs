//! Instances with an owner. With the rule `per-caller`, an instance never serves two callers; with
//! `per-call`, it never serves two invocations.
//!
//! An instance that has not served anyone yet is open to every caller. With its first invocation it
//! becomes the instance of that caller (or of that invocation), and it never becomes open again.
//! The autoscaler counts only instances that are open or busy, because an instance that rests for
//! its caller does not help other callers. This file adds what the autoscaler cannot know: which
//! waiting callers have no instance, and which instances must give way to them.

use mote_spec::policy::Balance;

use super::orders::{Orders, Stopping};
use super::owner::Owner;
use super::{Dispatched, Instance, Pool, Queued, Running, StopReason, Waiting, Why, Worker};

/// If there are already as many instances as the bounds permit, an invocation without an instance
/// waits this long before a busy instance gives way. That instance then takes nothing more, and
/// exits when its running invocations have ended. Each such change costs a start, so this is the
/// shortest time between changes if callers share too few instances.
const GIVE_WAY_NS: u64 = 500_000_000;

/// The waiting callers that have no instance.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unserved {
    /// How many instances they need.
    pub(super) count: u32,
    /// When the first of their invocations arrived. `None` if no busy instance may give way to it.
    oldest_ns: Option<u64>,
}

impl<R: Running, I: Instance> Worker<R, I> {
    /// Whether the worker is kept for its owner and holds no invocation.
    pub(super) fn rests(&self) -> bool {
        self.owner.is_some() && self.is_idle()
    }

    /// Whether the worker could serve this caller now, if necessary after being resumed.
    fn serves(&self, caller: Option<&[u8]>) -> bool {
        self.owner.as_ref().is_none_or(|owner| owner.is(caller))
            && (self.room() > 0 || self.is_paused())
    }
}

impl<Q: Waiting, R: Running, I: Instance> Pool<Q, R, I> {
    /// Whether the pool keeps its instances for single callers or invocations.
    #[inline]
    pub(super) fn is_divided(&self) -> bool {
        matches!(self.rules.balance, Balance::PerCaller | Balance::PerCall)
    }

    /// Like [`Pool::ready_count`], without the instances that rest for their owners.
    pub(super) fn at_hand_count(&self) -> u32 {
        self.ready_count() - self.resting().count() as u32
    }

    /// The number of instances that have an owner and are in use.
    pub(super) fn owned_busy_count(&self) -> u32 {
        let is_busy = |worker: &Worker<R, I>| {
            worker.owner.is_some() && !worker.is_draining() && !worker.calls().is_empty()
        };
        self.workers.iter().filter(|(_, worker)| is_busy(worker)).count() as u32
    }

    fn resting(&self) -> impl Iterator<Item = &Worker<R, I>> {
        self.workers.iter().map(|(_, worker)| worker).filter(|worker| worker.rests())
    }

    /// Whether an invocation of this caller can start at once.
    pub(super) fn has_own_room(&self, caller: Option<&[u8]>) -> bool {
        self.workers.iter().any(|(_, worker)| worker.serves(caller))
    }

    /// The worker for an invocation of this caller: the least busy one that the caller owns, or
    /// else an open one.
    fn pick_own(&self, caller: Option<&[u8]>) -> Option<usize> {
        let rank = |worker: &Worker<R, I>| {
            (worker.owner.is_none(), worker.is_spare(), worker.is_paused(), worker.calls().len())
        };
        let serving = self.workers.iter().filter(|(_, worker)| worker.serves(caller));
        serving.min_by_key(|(_, worker)| rank(worker)).map(|(key, _)| key)
    }

    /// Gives waiting invocations to instances that may serve them. Each caller's invocations are
    /// served oldest first.
    pub(super) fn dispatch_to_own(
        &mut self,
        now_ns: u64,
        begin: &mut impl FnMut(Dispatched<'_, Q, I>) -> R,
    ) {
        let per_call = self.rules.balance == Balance::PerCall;
        let mut at = 0;
        while let Some(Queued { waiting, .. }) = self.queue.get(at) {
            if waiting.is_abandoned() {
                self.queue.remove(at);
                continue;
            }
            let caller = if per_call { None } else { waiting.caller() };
            let Some(key) = self.pick_own(caller) else {
                // The queue may be long, and none of its invocations can start.
                if !self.has_any_room() {
                    return;
                }
                at += 1;
                continue;
            };
            let owner =
                if per_call { Owner::Call } else { Owner::Caller(caller.map(Box::<[u8]>::from)) };
            let Some(queued) = self.queue.remove(at) else { break };
            let worker = &mut self.workers[key];
            worker.resume();
            worker.owner = Some(owner);
            self.give(key, queued, now_ns, begin);
        }
    }

    fn has_any_room(&self) -> bool {
        self.workers.iter().any(|(_, worker)| worker.room() > 0 || worker.is_paused())
    }

    /// How many instances are needed by waiting callers that have none, and when the first
    /// invocation of these callers arrived. With the rule `per-call`, each invocation needs an
    /// instance.
    pub(super) fn unserved(&self) -> Unserved {
        if self.rules.balance == Balance::PerCall {
            return Unserved { count: self.queue.len() as u32, oldest_ns: None };
        }
        let has_one = |caller: Option<&[u8]>| {
            self.workers.iter().any(|(_, worker)| {
                !worker.is_draining()
                    && !worker.is_ending()
                    && worker.owner.as_ref().is_some_and(|owner| owner.is(caller))
            })
        };
        let waiting = self.queue.iter().map(|queued| &queued.waiting);
        let mut callers: Vec<_> = waiting.map(|one| (one.caller(), one.received_ns())).collect();
        // For each caller, only the invocation that arrived first stays in the list.
        callers.sort_unstable();
        callers.dedup_by_key(|(caller, _)| *caller);
        callers.retain(|(caller, _)| !has_one(*caller));
        let oldest_ns = callers.iter().map(|(_, received_ns)| *received_ns).min();
        Unserved { count: callers.len() as u32, oldest_ns }
    }

    /// Stops instances whose only invocation has ended.
    pub(super) fn stop_spent(&mut self) {
        for (_, worker) in &mut self.workers {
            if worker.owner == Some(Owner::Call) && worker.rests() {
                worker.drain(StopReason::Surplus, "it has served its one invocation");
            }
        }
    }

    /// Makes places for `missing` instances, and returns how many of them may be started now.
    /// Instances that are still ending count, so that there are never more than the bounds permit.
    /// Resting instances are stopped if their callers have not called for a long time, and further
    /// ones as needed. If no instance rests, a busy one gives way to an `unserved` caller that has
    /// waited for a long time.
    pub(super) fn make_place(
        &mut self,
        missing: u32,
        unserved: Unserved,
        now_ns: u64,
        orders: &mut Orders,
    ) -> u32 {
        let timeout_ns = self.bounds.idle_timeout_ns;
        let ends_ns = |worker: &Worker<R, I>| worker.idle_since_ns().saturating_add(timeout_ns);
        while self.resting().any(|worker| ends_ns(worker) <= now_ns)
            && let Some(number) = self.drain_resting(StopReason::Idle, Why::CALLER_GONE)
        {
            orders.stopping.push(Stopping { number, why: Why::CALLER_GONE });
        }
        let on_their_way = self.starting.serving + self.starting.spare;
        let taken = self.workers.len() as u32 + on_their_way;
        let room = self.bounds.max.saturating_sub(taken);
        // An instance that is already ending will make a place, so no other instance needs to give
        // way for that place.
        let ending = self.workers.iter().filter(|(_, worker)| worker.is_draining()).count() as u32;
        let lacks_memory = self.full.is_some_and(|full| full.memory);
        let needed = missing.min(unserved.count);
        let for_memory = u32::from(lacks_memory && ending == 0).min(needed);
        let short = needed.saturating_sub(room + ending).max(for_memory);
        let mut gave_way = 0;
        while gave_way < short
            && let Some(number) = self.drain_resting(StopReason::Surplus, Why::CALLERS)
        {
            orders.stopping.push(Stopping { number, why: Why::CALLERS });
            gave_way += 1;
        }
        let waits_long = unserved.oldest_ns.is_some_and(|at_ns| now_ns >= at_ns + GIVE_WAY_NS);
        if short > 0
            && gave_way + ending + on_their_way == 0
            && waits_long
            && let Some(number) = self.drain_surplus(StopReason::Surplus, Why::CALLERS)
        {
            orders.stopping.push(Stopping { number, why: Why::CALLERS });
        }
        let next_ns = self.resting().map(ends_ns).min();
        next_ns.into_iter().for_each(|at_ns| self.look_by(at_ns));
        missing.min(room)
    }

    /// Stops the instance that has rested longest.
    pub(super) fn drain_resting(&mut self, reason: StopReason, why: Why) -> Option<u64> {
        let workers = self.workers.iter_mut().map(|(_, worker)| worker);
        let resting = workers.filter(|worker| worker.rests());
        let worker = resting.min_by_key(|worker| worker.idle_since_ns())?;
        worker.drain(reason, why.text);
        Some(worker.number())
    }
}
