//! The pool of a revision: its one queue, and the instances that take from it.
//!
//! The queue stands in front of all instances (late binding): the instance that first has room
//! takes the oldest invocation. The pool decides which instance runs which invocation, how many
//! instances there are, and what happens to each of them ([`State`] lists the transitions). It has
//! no clock, no lock and no task: every method takes the time as an argument, in nanoseconds of a
//! clock that never goes back, and acts on an instance only through [`Instance`]. The daemon drives
//! it behind one short lock per revision; the simulator drives the same type on a virtual clock.
//!
//! # How it is driven
//!
//! 1. [`Pool::offer`] gives an invocation to an instance, puts it into the queue or refuses it. After
//!    an invocation has ended ([`Worker::end`]), [`Pool::dispatch`] gives waiting invocations to
//!    instances with room.
//! 2. [`Pool::expire`] and [`Pool::look`] are called when [`Submitted::asks`] is true, when an
//!    instance was added or has ended, and not later than [`Orders::sleep_ns`] after the last look.
//! 3. Starts that `look` orders are counted as starting. Each of them ends in exactly one of
//!    [`Pool::add_ready`], [`Pool::start_failed`] and [`Pool::start_refused`].
//! 4. When the process of an instance has ended, whatever the reason, [`Pool::ended`] takes it out.

mod guests;
mod life;
mod look;
mod orders;
mod own;
#[cfg(test)]
mod own_tests;
mod owner;
mod pick;
mod run_times;
mod scaling;
#[cfg(test)]
mod tests;
mod why;
mod worker;

use std::collections::VecDeque;

use mote_core::invocation::{CALLER_FIELD, Head, headers};
use mote_spec::policy::{Balance, Policy};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use slab::Slab;

use crate::admission::{Admission, admit};
use crate::autoscale::{Bounds, Decision, Known};
use crate::balance::Candidate;
use mote_spec::{
    CONCURRENCY_DEFAULT_CHAIN, CONCURRENCY_DEFAULT_EXEC, CONCURRENCY_DEFAULT_GO,
    CONCURRENCY_DEFAULT_NODE, CONCURRENCY_DEFAULT_SERVER, FunctionSpec, Runtime,
};

pub use life::{Ended, NewInstance};
pub use look::{Expired, Expiry, Surroundings};
pub use orders::{Orders, Start, Stopping};
use scaling::{Count, Scaling};
pub use why::Why;
use worker::Total;
pub use worker::{Call, Calls, State, Stop, StopReason, Worker};

/// An invocation that waits in the queue.
pub trait Waiting {
    /// When it arrived, in nanoseconds.
    fn received_ns(&self) -> u64;
    /// When its answer is due, in nanoseconds.
    fn deadline_ns(&self) -> u64;
    /// Whether no caller waits for its answer any more.
    fn is_abandoned(&self) -> bool {
        false
    }
    /// The thread whose task waits for its answer, if that matters; see [`Instance::thread`].
    fn thread(&self) -> Option<usize> {
        None
    }
    /// The name of its caller, if that is known. Asked only if instances are kept for single callers.
    fn caller(&self) -> Option<&[u8]> {
        None
    }
}

/// The caller of an invocation, as the node has told it the function.
pub fn caller_of(head: &Head) -> Option<&[u8]> {
    let mut fields = headers(head.headers());
    fields.find(|(name, _)| *name == CALLER_FIELD).map(|(_, value)| value)
}

/// An invocation inside an instance.
pub trait Running {
    /// When its answer is due, in nanoseconds; `None` if its answer has begun, or no caller waits
    /// for it.
    fn due_ns(&self) -> Option<u64>;
    /// Whether another instance can run it, as long as this one has not begun it.
    fn can_be_given_back(&self) -> bool {
        false
    }
}

/// The operations of a pool on an instance. Every method is called under the lock of the pool's
/// owner and must not block.
pub trait Instance {
    /// Whether it cannot be given anything more at the moment, whatever number of invocations it
    /// holds.
    fn is_full(&self) -> bool {
        false
    }
    /// Whether it may be given further invocations in advance while it runs others, if they are
    /// short.
    fn takes_ahead(&self) -> bool {
        false
    }
    /// The thread that serves it, if that matters: an invocation of a task on the same thread costs
    /// less.
    fn thread(&self) -> Option<usize> {
        None
    }
    /// Pauses its processes, or lets them continue; returns `false` if they could not be paused.
    fn set_paused(&mut self, paused: bool) -> bool;
    /// The instance has been chosen to exit, so its memory will be given back. Called once at most,
    /// before `ask_to_exit`.
    fn leaving(&mut self) {}
    /// Asks it to exit. It holds no invocation and gets no more.
    fn ask_to_exit(&mut self);
    /// How long it may take to exit after it was asked to; then it is killed.
    fn exit_grace_ns(&self) -> u64 {
        EXIT_NS
    }
    /// Ends its processes at once.
    fn kill(&mut self);
}

/// A draining instance that has not exited this long after it was asked to is killed, unless it says
/// another time.
const EXIT_NS: u64 = 1_000_000_000;

/// The rules for all instances of a revision.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The rule that chooses the instance for an invocation.
    pub balance: Balance,
    /// The policy that determines the number of instances.
    pub policy: Policy,
    /// The number of invocations that may wait.
    pub queue_max: u32,
    /// Instances that are kept loaded and paused in addition to those that serve.
    pub spares: u32,
    /// How long an instance is idle until it is paused, in nanoseconds; `None` for never.
    pub pause_after_ns: Option<u64>,
    /// Invocations that an instance runs at once; used until an instance has reported its own value.
    pub concurrency: u32,
    /// Processor time that an instance may use, in thousandths of a core.
    pub cpu_millis_per_instance: u32,
    /// Memory that an instance may use, in bytes.
    pub memory_limit_bytes: u64,
    /// Starts that may be under way at the same time. A start is mostly processor work, so more starts
    /// than cores make each start later and take the processor from instances that serve.
    pub starts_max: u32,
}

impl Rules {
    /// Starts of one function under way at once, per core.
    pub const STARTS_PER_CORE: u32 = 2;

    /// The rules of a function on a node with `cores` cores.
    pub fn of(spec: &FunctionSpec, cores: u32) -> Self {
        let concurrency = spec.limits.concurrency.unwrap_or(match spec.answered_by() {
            Runtime::Python => 1,
            Runtime::Node => CONCURRENCY_DEFAULT_NODE,
            Runtime::Go => CONCURRENCY_DEFAULT_GO,
            Runtime::Exec => CONCURRENCY_DEFAULT_EXEC,
            Runtime::Server => CONCURRENCY_DEFAULT_SERVER,
            Runtime::Chain => CONCURRENCY_DEFAULT_CHAIN,
        });
        // Without a limit, an interpreter with one thread uses one core at most; other programs use
        // all cores.
        let cores_used = match spec.runtime {
            Runtime::Python | Runtime::Node | Runtime::Chain => 1,
            Runtime::Go | Runtime::Exec | Runtime::Server => cores.max(1),
        };
        Self {
            balance: spec.scale.balance,
            policy: spec.scale.policy.clone(),
            queue_max: spec.scale.queue,
            spares: spec.scale.spare,
            pause_after_ns: spec.scale.pause_ms.map(|ms| ms.saturating_mul(1_000_000)),
            concurrency,
            cpu_millis_per_instance: spec.limits.cpu_millis.unwrap_or(cores_used * 1_000),
            memory_limit_bytes: spec.limits.memory_bytes,
            starts_max: Self::STARTS_PER_CORE * cores.max(1),
        }
    }
}

/// An invocation that was taken into the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submitted {
    /// The number by which [`Pool::withdraw`] finds it; 1 and more, unique in this pool.
    pub serial: u64,
    /// The invocation waits, and no look has been asked for since the last decision: call
    /// [`Pool::look`] soon.
    pub asks: bool,
}

/// Why an invocation was not taken into the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    Closed,
    /// The last start failed for this reason, there is no instance, and the pause before the next
    /// start has not ended.
    NotStarted(String),
    QueueFull {
        /// See [`Submitted::asks`].
        asks: bool,
    },
}

/// An invocation that is given to an instance. The closure passed to [`Pool::dispatch`] converts it
/// to the data that is kept while the invocation runs.
pub struct Dispatched<'a, Q, I> {
    pub instance: &'a mut I,
    /// The key of the instance's worker.
    pub worker: usize,
    /// The slot of the invocation in that worker.
    pub slot: usize,
    /// The number of the invocation.
    pub serial: u64,
    /// The invocation.
    pub waiting: Q,
    /// The part of its wait during which an instance was being started, in nanoseconds.
    pub init_ns: u64,
}

/// Where a withdrawn invocation was.
#[derive(Debug)]
pub enum Withdrawn<Q> {
    /// It waited and has been taken out of the queue.
    Waiting(Q),
    /// An instance holds it.
    Running { worker: usize, slot: usize },
    /// It is in neither place.
    Unknown,
}

#[derive(Debug, Default)]
struct Starting {
    serving: u32,
    spare: u32,
    /// Of those that will serve, how many stop at once when they are ready, because the owner has
    /// asked for fewer since. A start cannot be interrupted.
    unwanted: u32,
    /// Since when the oldest of those that will serve has been starting.
    since_ns: u64,
}

impl Starting {
    /// Starts of instances that would have served have ended, or are not made.
    fn give_back(&mut self, count: u32) {
        self.serving = self.serving.saturating_sub(count);
        self.unwanted = self.unwanted.min(self.serving);
    }
}

/// Recent failures, and until when nothing is tried because of them.
#[derive(Debug, Default)]
struct Trouble {
    /// Failed starts in a row, and until when no other start is tried.
    failures: u32,
    retry_at_ns: u64,
    last_failure: String,
    /// Instances in a row that died before they answered anything, and until when no other is
    /// started because of them. Unlike a failed start, this causes no refusals.
    deaths: u32,
    slow_until_ns: u64,
    /// Until when no spare instance is tried: the node had no room for it.
    spare_again_ns: u64,
    /// An instance that should be a spare could not be paused: another one would only serve as
    /// well.
    no_spares: bool,
    /// No instance is paused before this time, because the last attempt to pause one failed.
    pause_again_ns: u64,
}

impl Trouble {
    /// Until when no instance that would serve is started.
    fn until_ns(&self) -> u64 {
        self.retry_at_ns.max(self.slow_until_ns)
    }
}

/// The node had no room for another instance.
#[derive(Debug, Clone, Copy)]
struct Full {
    /// Memory is short, not only the right to start now.
    memory: bool,
    /// The version of the node's books at the time of the refusal. While it is unchanged, no start is
    /// tried before `until_ns`.
    version: u64,
    until_ns: u64,
}

#[derive(Debug)]
struct Queued<Q> {
    serial: u64,
    waiting: Q,
}

/// Queue and instances of one revision. See the module's documentation.
#[derive(Debug)]
pub struct Pool<Q, R, I> {
    rules: Rules,
    bounds: Bounds,
    queue: VecDeque<Queued<Q>>,
    workers: Slab<Worker<R, I>>,
    /// The threads that serve the workers, with their keys; only of those on a known thread. The workers
    /// know them, too, but to ask all of them would read what other threads have just written.
    threads: Vec<(usize, usize)>,
    /// The invocations inside all workers, which are not counted for the same reason.
    in_flight: Total,
    starting: Starting,
    /// When an instance last became ready, and when its start had begun.
    last_ready_ns: u64,
    last_ready_since_ns: u64,
    trouble: Trouble,
    full: Option<Full>,
    /// Instances that the owner asked for, and until when they are kept even if no calls arrive.
    asked_for: Option<(u32, u64)>,
    /// If the pool takes no new invocations, the reason. The queue is empty from then on.
    closed: Option<StopReason>,
    scaling: Option<Box<Scaling>>,
    next_serial: u64,
    /// The data of the balancing rule: choices so far, random numbers, and space for a list of the
    /// instances.
    turn: u64,
    random: Xoshiro256PlusPlus,
    line_up: Vec<Candidate>,
}

impl<Q: Waiting, R: Running, I: Instance> Pool<Q, R, I> {
    pub fn new(rules: Rules, bounds: Bounds) -> Self {
        Self {
            rules,
            bounds,
            queue: VecDeque::new(),
            workers: Slab::new(),
            threads: Vec::new(),
            in_flight: Total::default(),
            starting: Starting::default(),
            last_ready_ns: 0,
            last_ready_since_ns: 0,
            trouble: Trouble::default(),
            full: None,
            asked_for: None,
            closed: None,
            scaling: None,
            next_serial: 0,
            turn: 0,
            random: Xoshiro256PlusPlus::seed_from_u64(0),
            line_up: Vec::new(),
        }
    }

    /// Sets the seed of the balancing rule's random numbers. Without it every pool draws the same
    /// ones.
    pub fn seed(&mut self, seed: u64) {
        self.random = Xoshiro256PlusPlus::seed_from_u64(seed);
    }

    // Queries.

    pub fn worker(&self, key: usize) -> Option<&Worker<R, I>> {
        self.workers.get(key)
    }

    pub fn worker_mut(&mut self, key: usize) -> Option<&mut Worker<R, I>> {
        self.workers.get_mut(key)
    }

    pub fn workers(&self) -> impl ExactSizeIterator<Item = (usize, &Worker<R, I>)> {
        self.workers.iter()
    }

    /// All workers, with their keys.
    pub fn workers_mut(&mut self) -> impl ExactSizeIterator<Item = (usize, &mut Worker<R, I>)> {
        self.workers.iter_mut()
    }

    /// Instances that are ready or paused, and those that end although they were not stopped.
    /// Spares do not count. Visits each instance, like all these counts.
    pub fn ready_count(&self) -> u32 {
        let ready = |worker: &Worker<R, I>| !worker.is_draining() && !worker.is_spare();
        self.workers.iter().filter(|(_, worker)| ready(worker)).count() as u32
    }

    /// Instances that are kept loaded and paused in addition to those that serve.
    pub fn spare_count(&self) -> u32 {
        self.workers.iter().filter(|(_, worker)| worker.is_spare()).count() as u32
    }

    /// Instances that are starting and will serve.
    pub fn starting_count(&self) -> u32 {
        self.starting.serving
    }

    /// How many of those stop at once when they are ready, unless they are needed by then.
    pub fn unwanted_count(&self) -> u32 {
        self.starting.unwanted
    }

    /// Since when the oldest of those has been starting, in nanoseconds.
    pub fn starting_since_ns(&self) -> u64 {
        self.starting.since_ns
    }

    /// The number of waiting invocations.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// When the answer of the invocation that has waited longest is due, in nanoseconds.
    pub fn oldest_deadline_ns(&self) -> Option<u64> {
        self.queue.front().map(|queued| queued.waiting.deadline_ns())
    }

    /// Whether the pool takes no new invocations.
    pub fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Whether no instance starts, and no invocation runs or waits.
    pub fn is_quiet(&self) -> bool {
        self.queue.is_empty()
            && self.workers.is_empty()
            && self.starting.serving + self.starting.spare == 0
    }

    /// Whether instances are kept whatever the demand, so that the pool needs looks even when it is
    /// idle.
    pub fn keeps_some(&self) -> bool {
        self.closed.is_none() && (self.bounds.min > 0 || self.rules.spares > 0)
    }

    /// Why the last start failed, if it did.
    pub fn last_failure(&self) -> Option<&str> {
        (self.trouble.failures > 0).then_some(self.trouble.last_failure.as_str())
    }

    /// The last decision of the autoscaler.
    pub fn decision(&self) -> Option<Decision> {
        self.scaling.as_ref().and_then(|scaling| scaling.decision())
    }

    /// What the autoscaler has learned.
    pub fn known(&self) -> Known {
        self.scaling.as_ref().map_or_else(Known::default, |scaling| scaling.known())
    }

    /// Recently offered invocations per second; 0 before the first one.
    pub fn demand_per_s(&self) -> f64 {
        self.scaling.as_ref().map_or(0.0, |scaling| scaling.demand_per_s())
    }

    /// Releases memory that was allocated in busy times.
    pub fn shrink(&mut self) {
        self.workers.shrink_to_fit();
        self.threads.shrink_to_fit();
        self.queue.shrink_to_fit();
    }

    // Requests of the owner.

    /// Sets other bounds from now on.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
        if let Some(scaling) = &mut self.scaling {
            scaling.set_bounds(&self.rules.policy, bounds);
        }
    }

    /// Makes the autoscaler. A pool without work has none.
    pub fn ensure_scaling(&mut self) {
        self.scaling.get_or_insert_with(|| Box::new(Scaling::new(&self.rules, self.bounds)));
    }

    /// Begins with what the previous revision has learned.
    pub fn inherit(&mut self, before: &Self) {
        if let Some(learnt) = &before.scaling {
            self.ensure_scaling();
            if let Some(scaling) = &mut self.scaling {
                scaling.inherit(learnt);
            }
        }
    }

    /// Stops idle instances until `count` are left, or counts missing instances as starting.
    /// Returns the numbers of the stopped instances, and how many instances to start. For `hold_ns`
    /// at most, the autoscaler does not stop the started instances. At least `min` of the bounds
    /// stay. Starting instances beyond that number stop when they are ready, unless an invocation
    /// waits by then.
    pub fn scale_to(&mut self, count: u32, hold_ns: u64, now_ns: u64) -> (Vec<u64>, u32) {
        self.ensure_scaling();
        let count = count.min(self.bounds.max);
        let mut stopped = Vec::new();
        self.asked_for = (count > 0).then(|| (count, now_ns.saturating_add(hold_ns)));
        while self.ready_count() > count.max(self.bounds.min) {
            let idle = self.workers.iter_mut().map(|(_, worker)| worker);
            let longest = idle.filter(|worker| worker.is_idle() && !worker.is_spare());
            let Some(worker) = longest.min_by_key(|worker| worker.idle_since_ns()) else { break };
            worker.drain(StopReason::Manual, format!("mote scale asked for {count}"));
            stopped.push(worker.number());
        }
        let live = self.ready_count() + self.starting.serving;
        let surplus = live.saturating_sub(count.max(self.bounds.min));
        self.starting.unwanted = surplus.min(self.starting.serving);
        let mut missing = if self.is_closed() { 0 } else { count.saturating_sub(live) };
        while missing > 0 && self.resume_spare() {
            missing -= 1;
        }
        self.count_starts(missing, now_ns);
        (stopped, missing)
    }

    /// Takes no new invocations from now on; instances stop when the invocations that they hold
    /// have ended. Returns the waiting invocations, oldest first.
    pub fn close(&mut self, reason: StopReason, now_ns: u64) -> Vec<Q> {
        self.closed.get_or_insert(reason);
        let waiting = self.take_queue();
        self.settle(now_ns);
        for (_, worker) in &mut self.workers {
            worker.drain(reason, "");
        }
        waiting
    }

    /// Stops an idle instance so that another function can use its memory. `text` makes the
    /// sentence for it from the time for which the instance has been idle, in nanoseconds. Returns
    /// whether there is an instance with this number that may be stopped.
    pub fn evict(&mut self, number: u64, text: impl FnOnce(u64) -> String, now_ns: u64) -> bool {
        if self.dispensable() == 0 {
            return false;
        }
        let mut workers = self.workers.iter_mut().map(|(_, worker)| worker);
        let Some(worker) = workers.find(|worker| worker.number() == number && worker.is_idle())
        else {
            return false;
        };
        let idle_ns = now_ns.saturating_sub(worker.idle_since_ns());
        worker.drain(StopReason::Evicted, text(idle_ns));
        worker.instance_mut().leaving();
        true
    }

    /// How many instances may be stopped to make room for other functions. Instances that the bounds
    /// keep do not count; the result is 0 while invocations wait.
    pub fn dispensable(&self) -> usize {
        if self.is_closed() || !self.queue.is_empty() {
            return 0;
        }
        (self.ready_count().saturating_sub(self.bounds.min) + self.spare_count()) as usize
    }

    // The path of an invocation.

    /// Takes an invocation into the queue. One that `was_accepted` before is taken however many
    /// invocations wait. Call [`Pool::dispatch`] next.
    ///
    /// # Errors
    ///
    /// Gives the invocation back with the reason why it was not taken.
    pub fn submit(
        &mut self,
        waiting: Q,
        was_accepted: bool,
        now_ns: u64,
    ) -> Result<Submitted, (Q, Refusal)> {
        if self.is_closed() {
            return Err((waiting, Refusal::Closed));
        }
        let starts_later = self.workers.is_empty() && self.starting.serving == 0;
        if starts_later && now_ns < self.trouble.retry_at_ns {
            let reason = self.trouble.last_failure.clone();
            return Err((waiting, Refusal::NotStarted(reason)));
        }
        self.ensure_scaling();
        self.next_serial += 1;
        let serial = self.next_serial;
        let queue_max = if was_accepted { u32::MAX } else { self.rules.queue_max };
        let admission = match self.is_divided() {
            // Invocations that wait for other instances are in nobody's way.
            true if self.has_own_room(waiting.caller()) => Admission::Dispatch,
            true => admit(false, self.queue.len(), queue_max),
            false => admit(self.has_room(), self.queue.len(), queue_max),
        };
        let asks = match admission {
            Admission::Dispatch => false,
            Admission::Enqueue => self.ask(),
            Admission::Refuse => {
                if let Some(scaling) = &mut self.scaling {
                    scaling.refused();
                }
                let asks = self.ask();
                return Err((waiting, Refusal::QueueFull { asks }));
            }
        };
        self.queue.push_back(Queued { serial, waiting });
        Ok(Submitted { serial, asks })
    }

    /// Puts an invocation that an instance held when it ended into the queue again, behind those
    /// that have not run yet, because it may have caused the instance's end.
    pub fn requeue(&mut self, serial: u64, waiting: Q) {
        self.queue.push_back(Queued { serial, waiting });
    }

    /// Gives waiting invocations, oldest first, to instances with room, and resumes paused
    /// instances for the rest. `begin` converts each one to the data that is kept while it runs.
    pub fn dispatch(&mut self, now_ns: u64, mut begin: impl FnMut(Dispatched<'_, Q, I>) -> R) {
        if self.is_divided() {
            self.dispatch_to_own(now_ns, &mut begin);
            self.settle(now_ns);
            return;
        }
        while let Some(first) = self.queue.front() {
            let thread = first.waiting.thread();
            let Some(key) = self.pick(thread).or_else(|| self.resume_one()) else { break };
            let Some(queued) = self.queue.pop_front() else { break };
            if !queued.waiting.is_abandoned() {
                self.give(key, queued, now_ns, &mut begin);
            }
        }
        self.settle(now_ns);
    }

    /// Takes an invocation as [`Pool::submit`] does, and dispatches. One that need not wait does not
    /// pass through the queue.
    ///
    /// # Errors
    ///
    /// As those of [`Pool::submit`].
    pub fn offer(
        &mut self,
        waiting: Q,
        was_accepted: bool,
        now_ns: u64,
        mut begin: impl FnMut(Dispatched<'_, Q, I>) -> R,
    ) -> Result<Submitted, (Q, Refusal)> {
        if !self.is_closed()
            && self.queue.is_empty()
            && let Some(key) = self.pick(waiting.thread())
        {
            self.ensure_scaling();
            self.next_serial += 1;
            let serial = self.next_serial;
            self.give(key, Queued { serial, waiting }, now_ns, &mut begin);
            self.settle(now_ns);
            return Ok(Submitted { serial, asks: false });
        }
        let submitted = self.submit(waiting, was_accepted, now_ns)?;
        self.dispatch(now_ns, begin);
        Ok(submitted)
    }

    /// Gives an invocation to the worker with this key.
    fn give(
        &mut self,
        key: usize,
        queued: Queued<Q>,
        now_ns: u64,
        begin: &mut impl FnMut(Dispatched<'_, Q, I>) -> R,
    ) {
        let Queued { serial, waiting } = queued;
        let received_ns = waiting.received_ns();
        let init_ns = if received_ns < self.last_ready_ns {
            self.last_ready_ns - self.last_ready_since_ns.max(received_ns)
        } else {
            0
        };
        let worker = &mut self.workers[key];
        let slot = worker.next_slot();
        let instance = worker.instance_mut();
        let running = begin(Dispatched { instance, worker: key, slot, serial, waiting, init_ns });
        worker.begin(serial, now_ns, running);
    }

    /// Finds an invocation that no caller waits for any more, and takes it out of the queue if it
    /// waits.
    pub fn withdraw(&mut self, serial: u64, now_ns: u64) -> Withdrawn<Q> {
        if let Some(at) = self.queue.iter().position(|queued| queued.serial == serial)
            && let Some(queued) = self.queue.remove(at)
        {
            self.settle(now_ns);
            return Withdrawn::Waiting(queued.waiting);
        }
        for (key, worker) in &self.workers {
            let mut calls = worker.calls().iter();
            if let Some((slot, _)) = calls.find(|(_, call)| call.serial() == serial) {
                return Withdrawn::Running { worker: key, slot };
            }
        }
        Withdrawn::Unknown
    }

    /// An instance has answered, so earlier failures no longer count.
    pub fn answered(&mut self) {
        if self.trouble.failures > 0 || self.trouble.deaths > 0 {
            (self.trouble.failures, self.trouble.retry_at_ns) = (0, 0);
            (self.trouble.deaths, self.trouble.slow_until_ns) = (0, 0);
        }
    }

    // Internals.

    fn count_starts(&mut self, count: u32, now_ns: u64) {
        if count > 0 && self.starting.serving == 0 {
            self.starting.since_ns = now_ns;
        }
        self.starting.serving += count;
    }

    fn take_queue(&mut self) -> Vec<Q> {
        std::mem::take(&mut self.queue).into_iter().map(|queued| queued.waiting).collect()
    }

    /// Whether a worker could take an invocation now, possibly after it is resumed.
    fn has_room(&self) -> bool {
        self.workers.iter().any(|(_, worker)| worker.room() > 0 || worker.is_paused())
    }

    /// Resumes a paused instance: one that has served before is preferred.
    fn resume_one(&mut self) -> Option<usize> {
        let paused = self.workers.iter_mut().filter(|(_, worker)| worker.is_paused());
        let (key, worker) = paused.min_by_key(|(_, worker)| worker.is_spare())?;
        worker.resume();
        Some(key)
    }

    /// Lets a spare instance serve from now on; returns whether there was one.
    fn resume_spare(&mut self) -> bool {
        let mut spares = self.workers.iter_mut().filter(|(_, worker)| worker.is_spare());
        let Some((_, worker)) = spares.next() else { return false };
        worker.resume();
        true
    }

    /// Whether a look must be asked for, for an invocation that cannot be dispatched.
    fn ask(&mut self) -> bool {
        self.scaling.as_mut().is_some_and(|scaling| scaling.asks())
    }

    /// Updates the autoscaler's integrals; call it after every change of the running or waiting
    /// invocations. Returns whether the autoscaler needs to know of this change.
    pub fn settle(&mut self, now_ns: u64) -> bool {
        let running = self.in_flight();
        let queued = self.queue.len() as u32;
        self.scaling.as_mut().is_some_and(|scaling| scaling.settle(running + queued, now_ns))
    }

    /// Invocations inside instances.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    /// Requests a look at `at_ns` at the latest.
    fn look_by(&mut self, at_ns: u64) {
        if let Some(scaling) = &mut self.scaling {
            scaling.look_by(at_ns);
        }
    }

    fn count(&mut self, now_ns: u64) -> Count {
        let oldest_ns = self.queue.front().map_or(now_ns, |queued| queued.waiting.received_ns());
        let mut count = Count {
            offered: self.next_serial,
            queued: self.queue.len() as u32,
            oldest_wait_ns: now_ns.saturating_sub(oldest_ns),
            ready: self.at_hand_count(),
            starting: self.starting.serving,
            ..Count::default()
        };
        for (_, worker) in &mut self.workers {
            count.in_flight += worker.calls().len() as u32;
            let ages =
                worker.calls().iter().map(|(_, call)| now_ns.saturating_sub(call.began_ns()));
            count.run_age_ns += ages.sum::<u64>();
            count.answered += worker.served();
            count.cpu_ns += worker.cpu_ns;
            count.memory_bytes += worker.memory_bytes;
            count.draining += u32::from(worker.is_draining());
            if let Some(scaling) = &mut self.scaling {
                worker.run_times.drain_into(&mut scaling.service);
            }
        }
        count
    }
}
