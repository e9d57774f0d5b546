//! The pool of a revision: its single queue, and the instances that take from the queue.
//!
//! The queue stands in front of all instances (late binding), so that the first instance with room
//! takes the oldest invocation. The pool decides which instance runs which invocation, how many
//! instances there are, and what happens to each instance ([`State`] lists the transitions). The
//! pool has no clock, no lock and no task. Every method takes the time as an argument, in
//! nanoseconds of a clock that never goes back, and acts on an instance only through [`Instance`].
//! The daemon drives the pool behind one short lock per revision; the simulator drives the same
//! type on a virtual clock.
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
//! 4. When the process of an instance has ended, for whatever reason, [`Pool::ended`] removes the
//!    instance.

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
use crate::autoscale::{Bounds, Decision, ForeignRule, Known};
use crate::balance::Candidate;
use mote_spec::{
    CONCURRENCY_DEFAULT_CHAIN, CONCURRENCY_DEFAULT_EXEC, CONCURRENCY_DEFAULT_GO,
    CONCURRENCY_DEFAULT_NODE, CONCURRENCY_DEFAULT_RUST, CONCURRENCY_DEFAULT_SERVER,
    CONCURRENCY_DEFAULT_WASM, FunctionSpec, Runtime,
};

pub use life::{Ended, NewInstance};
pub use look::{Expired, Expiry, Surroundings};
pub use orders::{Orders, Start, Stopping};
use scaling::{Count, Scaling};
pub use why::Why;
use worker::Total;
pub use worker::{Call, Calls, Gone, State, Stop, StopReason, Worker};

/// An invocation that waits in the queue.
pub trait Waiting {
    /// When the invocation arrived, in nanoseconds.
    fn received_ns(&self) -> u64;
    /// When the answer is due, in nanoseconds.
    fn deadline_ns(&self) -> u64;
    /// Whether the caller has stopped waiting for the answer.
    fn is_abandoned(&self) -> bool {
        false
    }
    /// The thread whose task waits for the answer, if that matters; see [`Instance::thread`].
    fn thread(&self) -> Option<usize> {
        None
    }
    /// The caller's name, if it is known. The pool asks only if instances are kept for single
    /// callers.
    fn caller(&self) -> Option<&[u8]> {
        None
    }
}

/// The caller of an invocation, as the node names it to the function.
pub fn caller_of(head: &Head) -> Option<&[u8]> {
    let mut fields = headers(head.headers());
    fields.find(|(name, _)| *name == CALLER_FIELD).map(|(_, value)| value)
}

/// An invocation inside an instance.
pub trait Running {
    /// When the answer is due, in nanoseconds. `None` if the answer has begun, or if no caller
    /// waits for it any more.
    fn due_ns(&self) -> Option<u64>;
    /// Whether another instance may run the invocation, as long as this one has not begun it.
    fn can_be_given_back(&self) -> bool {
        false
    }
}

/// The operations that a pool performs on an instance. Every method is called under the lock of the
/// pool's owner and must not block.
pub trait Instance {
    /// Whether the instance can take nothing more at the moment, even if it holds few invocations.
    fn is_full(&self) -> bool {
        false
    }
    /// Whether the instance may be given further invocations in advance while it runs short ones.
    fn takes_ahead(&self) -> bool {
        false
    }
    /// The thread that serves the instance, if that matters. An invocation from a task on the same
    /// thread costs less.
    fn thread(&self) -> Option<usize> {
        None
    }
    /// Pauses or resumes the processes of the instance. Returns `false` if they could not be
    /// paused.
    fn set_paused(&mut self, paused: bool) -> bool;
    /// Notes that the instance has been chosen to exit, so its memory will be given back. Called at
    /// most once, before `ask_to_exit`.
    fn leaving(&mut self) {}
    /// Asks the instance to exit. At this point, the instance holds no invocation, and it will not
    /// get another.
    fn ask_to_exit(&mut self);
    /// How long the instance may take to exit after it was asked. After that, it is killed.
    fn exit_grace_ns(&self) -> u64 {
        EXIT_NS
    }
    /// Kills the processes of the instance at once.
    fn kill(&mut self);
}

/// How long a draining instance may take to exit after it was asked, unless the instance sets
/// another time. After that, it is killed.
const EXIT_NS: u64 = 1_000_000_000;

/// The settings for all instances of a revision.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The rule that chooses the instance for an invocation.
    pub balance: Balance,
    /// The policy that determines the number of instances.
    pub policy: Policy,
    /// The maximum number of waiting invocations.
    pub queue_max: u32,
    /// The number of instances that are kept loaded and paused in addition to those that serve.
    pub spares: u32,
    /// How long an instance must be idle before it is paused, in nanoseconds; `None` for never.
    pub pause_after_ns: Option<u64>,
    /// The number of invocations that an instance runs at once, until an instance reports its own
    /// number.
    pub concurrency: u32,
    /// Processor time that an instance may use, in thousandths of a core.
    pub cpu_millis_per_instance: u32,
    /// Memory that an instance may use, in bytes.
    pub memory_limit_bytes: u64,
    /// The node's memory budget divided by its cores, in bytes. It is the rate at which the default
    /// policy compares memory with processor time.
    pub memory_per_core_bytes: u64,
    /// The maximum number of starts under way at the same time. A start is mostly processor work,
    /// so more starts than cores delay each start and take the processor from instances that serve.
    pub starts_max: u32,
}

impl Rules {
    /// How many starts of one function may be under way at once, per core.
    pub const STARTS_PER_CORE: u32 = 2;

    /// The rules for a function on a node with `cores` cores, whose instances may together use
    /// `memory_bytes`.
    pub fn of(spec: &FunctionSpec, cores: u32, memory_bytes: u64) -> Self {
        let concurrency = spec.limits.concurrency.unwrap_or(match spec.answered_by() {
            Runtime::Python => 1,
            Runtime::Node | Runtime::Bun | Runtime::Deno => CONCURRENCY_DEFAULT_NODE,
            Runtime::Go => CONCURRENCY_DEFAULT_GO,
            Runtime::Exec => CONCURRENCY_DEFAULT_EXEC,
            Runtime::Server => CONCURRENCY_DEFAULT_SERVER,
            Runtime::Chain => CONCURRENCY_DEFAULT_CHAIN,
            Runtime::Wasm => CONCURRENCY_DEFAULT_WASM,
            Runtime::Rust => CONCURRENCY_DEFAULT_RUST,
        });
        // Without a limit, an interpreter with one thread uses at most one core. Other programs use
        // all cores.
        let cores_used = match spec.runtime {
            Runtime::Python
            | Runtime::Node
            | Runtime::Bun
            | Runtime::Deno
            | Runtime::Chain
            | Runtime::Wasm => 1,
            Runtime::Go | Runtime::Rust | Runtime::Exec | Runtime::Server => cores.max(1),
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
            memory_per_core_bytes: memory_bytes / u64::from(cores.max(1)),
            starts_max: Self::STARTS_PER_CORE * cores.max(1),
        }
    }
}

/// An invocation that was taken into the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submitted {
    /// The number that identifies the invocation for [`Pool::withdraw`]. It is at least 1 and
    /// unique in this pool.
    pub serial: u64,
    /// Whether the invocation waits although no look has been requested since the last decision. If
    /// so, call [`Pool::look`] soon.
    pub asks: bool,
}

/// Why an invocation was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    Closed,
    /// There is no instance because the last start failed, and the pause before the next start has
    /// not ended. The text is the reason of the failure.
    NotStarted(String),
    QueueFull {
        /// See [`Submitted::asks`].
        asks: bool,
    },
}

/// An invocation that is being given to an instance. The closure passed to [`Pool::dispatch`]
/// converts it to the data that is kept while the invocation runs.
pub struct Dispatched<'a, Q, I> {
    pub instance: &'a mut I,
    /// The key of the instance's worker.
    pub worker: usize,
    /// The slot that the invocation takes in that worker.
    pub slot: usize,
    /// The serial number of the invocation.
    pub serial: u64,
    pub waiting: Q,
    /// The part of the invocation's wait during which an instance was starting, in nanoseconds.
    pub init_ns: u64,
}

/// Where a withdrawn invocation was.
#[derive(Debug)]
pub enum Withdrawn<Q> {
    /// The invocation was waiting, and has been removed from the queue.
    Waiting(Q),
    /// An instance holds the invocation.
    Running { worker: usize, slot: usize },
    /// The invocation is in neither place.
    Unknown,
}

#[derive(Debug, Default)]
struct Starting {
    serving: u32,
    spare: u32,
    /// How many of the `serving` starts stop as soon as they are ready, because the owner has asked
    /// for fewer instances since. A start cannot be interrupted.
    unwanted: u32,
    /// When the oldest of the `serving` starts began.
    since_ns: u64,
}

impl Starting {
    /// Stops counting starts of serving instances that have ended or will not be carried out.
    fn give_back(&mut self, count: u32) {
        self.serving = self.serving.saturating_sub(count);
        self.unwanted = self.unwanted.min(self.serving);
    }
}

/// Recent failures, and the times until which nothing is tried because of them.
#[derive(Debug, Default)]
struct Trouble {
    /// The number of failed starts in a row, and the time until which no other start is tried.
    failures: u32,
    retry_at_ns: u64,
    last_failure: String,
    /// How many instances in a row died before they answered anything, and the time until which no
    /// other is started for that reason. Unlike a failed start, this causes no refusals.
    deaths: u32,
    slow_until_ns: u64,
    /// The time until which no spare is tried, because the node had no room for one.
    spare_again_ns: u64,
    /// Whether spares are impossible, because an instance that should have become a spare could not
    /// be paused. A further attempt would only produce another ordinary instance.
    no_spares: bool,
    /// No instance is paused before this time, because the last attempt to pause one failed.
    pause_again_ns: u64,
}

impl Trouble {
    /// The time until which no serving instance is started.
    fn until_ns(&self) -> u64 {
        self.retry_at_ns.max(self.slow_until_ns)
    }
}

/// The refusal of a start because the node had no room for another instance.
#[derive(Debug, Clone, Copy)]
struct Full {
    /// Whether memory is short. Otherwise, too many instances are starting at the moment.
    memory: bool,
    /// The version of the node's memory books at the time of the refusal. As long as that version
    /// is unchanged, no start is tried before `until_ns`.
    version: u64,
    until_ns: u64,
}

#[derive(Debug)]
struct Queued<Q> {
    serial: u64,
    waiting: Q,
}

/// The queue and the instances of one revision. See the module's documentation.
#[derive(Debug)]
pub struct Pool<Q, R, I> {
    rules: Rules,
    bounds: Bounds,
    queue: VecDeque<Queued<Q>>,
    workers: Slab<Worker<R, I>>,
    /// Pairs of a thread and the key of a worker that the thread serves; a worker without a known
    /// thread has no entry. The workers also know their threads, but asking every worker would read
    /// memory that other threads have just written.
    threads: Vec<(usize, usize)>,
    /// The number of invocations inside all workers. It is kept as a total, because counting would
    /// also read memory that other threads have just written.
    in_flight: Total,
    starting: Starting,
    /// The time at which an instance last became ready, and the time at which that start began.
    last_ready_ns: u64,
    last_ready_since_ns: u64,
    trouble: Trouble,
    full: Option<Full>,
    /// The number of instances that the owner asked for, and the time until which these are kept
    /// even if no calls arrive.
    asked_for: Option<(u32, u64)>,
    /// Why the pool takes no new invocations, if it is closed. The queue is empty from then on.
    closed: Option<StopReason>,
    scaling: Option<Box<Scaling>>,
    next_serial: u64,
    /// The data of the balancing rule: the number of choices so far, random numbers, and space for
    /// a list of the instances.
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

    /// Sets the seed of the balancing rule's random numbers. Without it, every pool draws the same
    /// numbers.
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

    /// The number of instances that are ready, paused, or ending although nobody stopped them.
    /// Spares do not count. Like the other counts, it visits each instance.
    pub fn ready_count(&self) -> u32 {
        let ready = |worker: &Worker<R, I>| !worker.is_draining() && !worker.is_spare();
        self.workers.iter().filter(|(_, worker)| ready(worker)).count() as u32
    }

    /// The number of instances that are kept loaded and paused in addition to those that serve.
    pub fn spare_count(&self) -> u32 {
        self.workers.iter().filter(|(_, worker)| worker.is_spare()).count() as u32
    }

    /// The number of instances that are starting and will serve.
    pub fn starting_count(&self) -> u32 {
        self.starting.serving
    }

    /// How many of the starting instances stop as soon as they are ready, unless they are needed by
    /// then.
    pub fn unwanted_count(&self) -> u32 {
        self.starting.unwanted
    }

    /// When the oldest start that is under way began, in nanoseconds.
    pub fn starting_since_ns(&self) -> u64 {
        self.starting.since_ns
    }

    /// The number of waiting invocations.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// When the answer to the first invocation in the queue is due, in nanoseconds.
    pub fn oldest_deadline_ns(&self) -> Option<u64> {
        self.queue.front().map(|queued| queued.waiting.deadline_ns())
    }

    /// Whether the pool takes no new invocations.
    pub fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Whether no instance is starting, and no invocation runs or waits.
    pub fn is_quiet(&self) -> bool {
        self.queue.is_empty()
            && self.workers.is_empty()
            && self.starting.serving + self.starting.spare == 0
    }

    /// Whether instances are kept even without demand, so that the pool needs looks even when it is
    /// idle.
    pub fn keeps_some(&self) -> bool {
        self.closed.is_none() && (self.bounds.min > 0 || self.rules.spares > 0)
    }

    /// Whether an instance will be started ahead of a predicted call, so that the pool needs a look
    /// although it has no instance.
    pub fn expects_call(&self, now_ns: u64) -> bool {
        let predicted_ns = self.decision().and_then(|decision| decision.predicted_ns);
        self.closed.is_none() && predicted_ns.is_some_and(|at_ns| now_ns < at_ns)
    }

    /// Why the last start failed, if it failed.
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

    /// The recent demand in offered invocations per second; 0 before the first one.
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

    /// Sets the bounds from now on.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
        if let Some(scaling) = &mut self.scaling {
            scaling.set_bounds(&self.rules.policy, bounds);
        }
    }

    /// Creates the autoscaler if there is none. A pool that never had work has none.
    pub fn ensure_scaling(&mut self) {
        self.scaling.get_or_insert_with(|| Box::new(Scaling::new(&self.rules, self.bounds)));
    }

    /// Replaces the rule of the policy by one from outside this crate. The simulator calls this
    /// before the first invocation.
    pub fn scale_by(&mut self, rule: Box<dyn ForeignRule>) {
        self.scaling = Some(Box::new(Scaling::foreign(rule, &self.rules, self.bounds)));
    }

    /// Takes over what the previous revision has learned.
    pub fn inherit(&mut self, before: &Self) {
        if let Some(learnt) = &before.scaling {
            self.ensure_scaling();
            if let Some(scaling) = &mut self.scaling {
                scaling.inherit(learnt);
            }
        }
    }

    /// Stops idle instances until `count` are left, or counts missing instances as starting.
    /// Returns the numbers of the stopped instances, and how many instances to start. For at most
    /// `hold_ns`, the autoscaler does not stop the started instances. Never leaves fewer instances
    /// than the bounds require. Starting instances beyond `count` stop when they are ready, unless
    /// an invocation is waiting by then.
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

    /// Closes the pool: it takes no new invocations, and each instance stops once the invocations
    /// that it holds have ended. Returns the waiting invocations, oldest first.
    pub fn close(&mut self, reason: StopReason, now_ns: u64) -> Vec<Q> {
        self.closed.get_or_insert(reason);
        let waiting = self.take_queue();
        self.settle(now_ns);
        for (_, worker) in &mut self.workers {
            worker.drain(reason, "");
        }
        waiting
    }

    /// Stops an idle instance so that another function can use its memory. `text` receives how long
    /// the instance has been idle, in nanoseconds, and returns the sentence that explains the stop.
    /// Returns whether there is an instance with this number that may be stopped.
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

    /// How many instances may be stopped to make room for other functions. Instances that the
    /// bounds require do not count. The result is 0 while invocations wait.
    pub fn dispensable(&self) -> usize {
        if self.is_closed() || !self.queue.is_empty() {
            return 0;
        }
        (self.ready_count().saturating_sub(self.bounds.min) + self.spare_count()) as usize
    }

    // The path of an invocation.

    /// Puts an invocation into the queue. An invocation that `was_accepted` before is taken however
    /// many invocations wait. Call [`Pool::dispatch`] next.
    ///
    /// # Errors
    ///
    /// Returns the invocation with the reason why it was not taken.
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
        let queue_max = match was_accepted {
            true => u32::MAX,
            // What the first instance takes at once waits for it whatever the queue may hold. With
            // an empty queue, nothing else would start one.
            false if self.ready_count() == 0 => self.rules.queue_max.max(self.rules.concurrency),
            false => self.rules.queue_max,
        };
        let admission = match self.is_divided() {
            // Invocations that wait for the instances of other owners do not delay this one.
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

    /// Puts an invocation into the queue again after the instance that held it has ended. It goes
    /// behind invocations that have not run yet, because it may have caused the instance's end.
    pub fn requeue(&mut self, serial: u64, waiting: Q) {
        self.queue.push_back(Queued { serial, waiting });
    }

    /// Gives waiting invocations, oldest first, to instances with room, and resumes paused
    /// instances for the rest. `begin` converts each invocation to the data that is kept while it
    /// runs.
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

    /// Takes an invocation as [`Pool::submit`] does, and dispatches it. If the invocation need not
    /// wait, it does not pass through the queue.
    ///
    /// # Errors
    ///
    /// The same as those of [`Pool::submit`].
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

    /// Finds an invocation for which no caller waits any longer, and removes it from the queue if
    /// it is waiting.
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

    /// Notes that an instance has answered, so that earlier failures no longer count.
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

    /// Whether a worker could take an invocation now, if necessary after being resumed.
    fn has_room(&self) -> bool {
        self.workers.iter().any(|(_, worker)| worker.room() > 0 || worker.is_paused())
    }

    /// Resumes a paused instance, preferably one that has served before.
    fn resume_one(&mut self) -> Option<usize> {
        let paused = self.workers.iter_mut().filter(|(_, worker)| worker.is_paused());
        let (key, worker) = paused.min_by_key(|(_, worker)| worker.is_spare())?;
        worker.resume();
        Some(key)
    }

    /// Lets a spare serve from now on. Returns whether there was a spare.
    fn resume_spare(&mut self) -> bool {
        let mut spares = self.workers.iter_mut().filter(|(_, worker)| worker.is_spare());
        let Some((_, worker)) = spares.next() else { return false };
        worker.resume();
        true
    }

    /// For an invocation that cannot be dispatched: whether the caller must request a look.
    fn ask(&mut self) -> bool {
        self.scaling.as_mut().is_some_and(|scaling| scaling.asks())
    }

    /// Updates the autoscaler's integrals. Call it after every change in the number of running or
    /// waiting invocations. Returns whether the autoscaler needs to know of this change.
    pub fn settle(&mut self, now_ns: u64) -> bool {
        let running = self.in_flight();
        let queued = self.queue.len() as u32;
        self.scaling.as_mut().is_some_and(|scaling| scaling.settle(running + queued, now_ns))
    }

    /// The number of invocations inside instances.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    /// Requests a look not later than `at_ns`.
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
