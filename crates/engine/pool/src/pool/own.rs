//! Instances of their own: with the rules `per-caller` and `per-call`, no instance serves two callers,
//! or two invocations.
//!
//! An instance that has served nobody is open to everybody. The first invocation makes it that of its
//! caller (or of itself), and nothing makes it open again. The autoscaler counts only the instances
//! that are open or busy: one that rests for a caller is no help for others. Below, the pool adds what
//! the autoscaler cannot know: which callers wait without an instance, and who gives way to them.

use mote_spec::policy::Balance;

use super::orders::{Orders, Stopping};
use super::owner::Owner;
use super::{Dispatched, Instance, Pool, Queued, Running, StopReason, Waiting, Why, Worker};

/// How long an invocation waits for an instance of its own, while there are as many as there may be,
/// before a busy one gives way: it takes nothing more, and exits when it has ended what it runs. Each
/// change of hands costs a start, so callers that share too few instances change less often than that.
const GIVE_WAY_NS: u64 = 500_000_000;

/// Waiting callers without an instance.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unserved {
    /// The instances that they need.
    pub(super) count: u32,
    /// When the first of their invocations arrived, if a busy instance may give way to it.
    oldest_ns: Option<u64>,
}

impl<R: Running, I: Instance> Worker<R, I> {
    /// Whether it is kept for somebody and holds no invocation.
    pub(super) fn rests(&self) -> bool {
        self.owner.is_some() && self.is_idle()
    }

    /// Whether it could serve this caller now, possibly after it is resumed.
    fn serves(&self, caller: Option<&[u8]>) -> bool {
        self.owner.as_ref().is_none_or(|owner| owner.is(caller))
            && (self.room() > 0 || self.is_paused())
    }
}

impl<Q: Waiting, R: Running, I: Instance> Pool<Q, R, I> {
    /// Whether its instances are kept for single callers or invocations.
    #[inline]
    pub(super) fn is_divided(&self) -> bool {
        matches!(self.rules.balance, Balance::PerCaller | Balance::PerCall)
    }

    /// As [`Pool::ready_count`], without the instances that rest for somebody.
    pub(super) fn at_hand_count(&self) -> u32 {
        self.ready_count() - self.resting().count() as u32
    }

    /// The instances that are kept for somebody and are in use.
    pub(super) fn owned_busy_count(&self) -> u32 {
        let is_busy = |worker: &Worker<R, I>| {
            worker.owner.is_some() && !worker.is_draining() && !worker.calls().is_empty()
        };
        self.workers.iter().filter(|(_, worker)| is_busy(worker)).count() as u32
    }

    fn resting(&self) -> impl Iterator<Item = &Worker<R, I>> {
        self.workers.iter().map(|(_, worker)| worker).filter(|worker| worker.rests())
    }

    /// Whether an invocation of this caller need not wait.
    pub(super) fn has_own_room(&self, caller: Option<&[u8]>) -> bool {
        self.workers.iter().any(|(_, worker)| worker.serves(caller))
    }

    /// The worker for an invocation of this caller: one of its own, the least busy first, otherwise an
    /// open one.
    fn pick_own(&self, caller: Option<&[u8]>) -> Option<usize> {
        let rank = |worker: &Worker<R, I>| {
            (worker.owner.is_none(), worker.is_spare(), worker.is_paused(), worker.calls().len())
        };
        let serving = self.workers.iter().filter(|(_, worker)| worker.serves(caller));
        serving.min_by_key(|(_, worker)| rank(worker)).map(|(key, _)| key)
    }

    /// Gives waiting invocations to instances that may serve them, those of each caller oldest first.
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
                // The queue may be long, and nobody in it can begin.
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

    /// How many instances the waiting callers need that have none, and when the first of their
    /// invocations arrived. With the rule `per-call`, each invocation needs one.
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
        // Of each caller, the invocation that arrived first stays.
        callers.sort_unstable();
        callers.dedup_by_key(|(caller, _)| *caller);
        callers.retain(|(caller, _)| !has_one(*caller));
        let oldest_ns = callers.iter().map(|(_, received_ns)| *received_ns).min();
        Unserved { count: callers.len() as u32, oldest_ns }
    }

    /// Stops instances whose one invocation has ended.
    pub(super) fn stop_spent(&mut self) {
        for (_, worker) in &mut self.workers {
            if worker.owner == Some(Owner::Call) && worker.rests() {
                worker.drain(StopReason::Surplus, "it has served its one invocation");
            }
        }
    }

    /// Returns how many of the `missing` instances may be started, so that with those that are still
    /// ending there are not more than the bounds permit. Stops instances that rest: those whose callers
    /// are gone, and as many as have to give way. If none rests, a busy one gives way to an `unserved`
    /// caller that has waited for long.
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
        // Instances that end already make place without anybody giving way.
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

    /// Stops the instance that has rested longest for somebody.
    pub(super) fn drain_resting(&mut self, reason: StopReason, why: Why) -> Option<u64> {
        let workers = self.workers.iter_mut().map(|(_, worker)| worker);
        let resting = workers.filter(|worker| worker.rests());
        let worker = resting.min_by_key(|worker| worker.idle_since_ns())?;
        worker.drain(reason, why.text);
        Some(worker.number())
    }
}
