//! The life of an instance, from its start to its end.

use super::{
    Call, Full, Instance, Pool, Queued, Running, State, Stop, StopReason, Waiting, Worker,
};
use crate::budget::Lack;

/// The first and the longest pause after failed starts.
const RETRY_MIN_NS: u64 = 1_000_000_000;
const RETRY_MAX_NS: u64 = 60_000_000_000;
/// How many instances in a row may die by themselves before they have answered anything. After
/// that, starts are paused.
const CRASHES_BEFORE_PAUSE: u32 = 3;
/// How many instances in a row may die during a request, without an answer from any of them, before
/// starts are slowed. By then, it is likely that every request kills its instance.
const DEATHS_BEFORE_SLOW: u32 = 8;
/// The pause before a slowed start. It is about as long as ten starts, so that a function whose
/// requests all kill their instances uses a tenth of a core. Callers that are waiting continue to
/// wait.
const SLOW_NS: u64 = 500_000_000;
/// How long the pool waits before it requests a refused start again while a caller waits for that
/// start. The pool requests the start earlier if memory is given back, but an instance that becomes
/// idle sends no notification.
const ASK_AGAIN_NS: u64 = 20_000_000;
/// The same pause when no caller waits.
const ASK_AGAIN_QUIET_NS: u64 = 1_000_000_000;

/// An instance that has become ready, as its owner describes it.
#[derive(Debug)]
pub struct NewInstance<I> {
    /// The instance's number, unique while the node runs.
    pub number: u64,
    /// The owner's part of the instance.
    pub instance: I,
    /// The number of invocations that the instance runs at once.
    pub concurrency: u32,
    pub spare: bool,
    /// When the start of the instance began, in nanoseconds; not later than now.
    pub since_ns: u64,
    /// The processor time that the start took, in nanoseconds; `None` if the machine does not
    /// measure it.
    pub start_cpu_ns: Option<u64>,
}

/// The remains of an instance that has ended.
pub struct Ended<R> {
    pub number: u64,
    /// How the instance was being stopped; `None` if it ended by itself.
    pub stop: Option<Stop>,
    /// The invocations that the instance held.
    pub calls: Vec<Call<R>>,
    /// Set if starts are paused because instances die before they answer: how many instances died
    /// in a row, and the length of the pause in nanoseconds.
    pub starts_paused: Option<(u32, u64)>,
    /// How many instances in a row died before they answered anything, including this one.
    pub deaths: u32,
}

impl<Q: Waiting, R: Running, I: Instance> Pool<Q, R, I> {
    /// Counts an explicitly requested instance as starting.
    pub fn count_start(&mut self, now_ns: u64) {
        self.ensure_scaling();
        self.starting.serving += 1;
        self.starting.since_ns = now_ns;
    }

    /// Takes back a start that [`Pool::count_start`] counted.
    pub fn uncount_start(&mut self) {
        self.starting.give_back(1);
    }

    /// Notes that the node had room for all starts that were ordered.
    pub fn starts_granted(&mut self) {
        self.full = None;
    }

    /// Notes that the node has no room for `count` of the ordered starts. `version` is the version
    /// of the node's memory books. `room_in_ns` says in how many nanoseconds there may be room.
    /// Returns the invocations that no instance can serve before their deadline, and whether memory
    /// has only now become short.
    pub fn start_refused(
        &mut self,
        count: u32,
        lack: Lack,
        version: u64,
        room_in_ns: Option<u64>,
        now_ns: u64,
    ) -> (Vec<Q>, bool) {
        self.starting.give_back(count);
        let is_news = self.full.is_none_or(|full| !full.memory) && lack != Lack::Starts;
        let pause_ns = if self.queue.is_empty() { ASK_AGAIN_QUIET_NS } else { ASK_AGAIN_NS };
        let until_ns = now_ns + pause_ns;
        self.full = Some(Full { memory: lack != Lack::Starts, version, until_ns });
        self.look_by(until_ns);
        let is_alone = self.ready_count() == 0 && self.starting.serving == 0;
        let in_vain = match lack {
            Lack::TooLarge => self.take_queue(),
            Lack::Memory if is_alone => self.take_hopeless(room_in_ns, now_ns),
            Lack::Memory | Lack::Starts => Vec::new(),
        };
        self.settle(now_ns);
        (in_vain, is_news)
    }

    /// Notes that the node has no room for the ordered spare. A spare never takes room from other
    /// functions.
    pub fn spare_refused(&mut self, now_ns: u64) {
        self.starting.spare = 0;
        self.trouble.spare_again_ns = now_ns + ASK_AGAIN_QUIET_NS;
        self.look_by(self.trouble.spare_again_ns);
    }

    /// Notes that a start has failed. Returns the waiting invocations if there is no other instance
    /// to wait for, and the time in nanoseconds during which no other start is tried.
    pub fn start_failed(&mut self, spare: bool, text: &str, now_ns: u64) -> (Vec<Q>, u64) {
        self.start_has_ended(spare);
        self.trouble.failures = self.trouble.failures.saturating_add(1);
        text.clone_into(&mut self.trouble.last_failure);
        let pause_ns = pause_ns(self.trouble.failures - 1);
        self.trouble.retry_at_ns = now_ns + pause_ns;
        if let Some(scaling) = &mut self.scaling {
            scaling.gone(0, 0);
        }
        let is_alone = self.workers.is_empty() && self.starting.serving == 0;
        (if is_alone { self.take_queue() } else { Vec::new() }, pause_ns)
    }

    /// Adds an instance that is ready, and returns its worker's key. Call [`Pool::dispatch`] next.
    pub fn add_ready(&mut self, new: NewInstance<I>, now_ns: u64) -> usize {
        let NewInstance { number, instance, concurrency, spare, since_ns, start_cpu_ns } = new;
        let is_unwanted = !spare && self.starting.unwanted > 0;
        self.starting.unwanted -= u32::from(is_unwanted);
        self.start_has_ended(spare);
        self.trouble.retry_at_ns = 0;
        self.last_ready_ns = now_ns;
        self.last_ready_since_ns = since_ns;
        if let Some(scaling) = &mut self.scaling {
            scaling.ready(now_ns - since_ns, start_cpu_ns, concurrency);
        }
        let thread = instance.thread();
        let in_flight = self.in_flight.clone();
        let mut worker = Worker::new(number, instance, concurrency, in_flight, now_ns);
        if !self.queue.is_empty() {
            self.starting.unwanted = 0;
        }
        if let Some(reason) = self.closed {
            worker.drain(reason, "");
        } else if is_unwanted && self.queue.is_empty() {
            worker.drain(StopReason::Manual, "mote scale asked for fewer while it was starting");
        } else if spare && self.queue.is_empty() {
            // A spare that cannot be paused serves as an ordinary instance.
            self.trouble.no_spares = !worker.pause_as(State::Spare);
        }
        let key = self.workers.insert(worker);
        self.threads.extend(thread.map(|thread| (thread, key)));
        key
    }

    /// Whether the pool keeps no spares because the last one could not be paused.
    pub fn cannot_pause_spares(&self) -> bool {
        self.trouble.no_spares
    }

    /// Notes that an instance is about to end by itself, and that it has begun at most the first
    /// `reached` of the invocations that it was given. The instance gets no further invocations.
    /// The ones that it has not begun return to the front of the queue, as if they had never been
    /// dispatched. `back` converts each of them to a waiting invocation, or returns `None` if no
    /// caller waits for it. If the pool is closed, they are returned instead, newest first.
    pub fn take_back(
        &mut self,
        key: usize,
        reached: u64,
        now_ns: u64,
        mut back: impl FnMut(R) -> Option<Q>,
    ) -> Vec<Q> {
        let Some(worker) = self.workers.get_mut(key) else { return Vec::new() };
        let mut returned = Vec::new();
        for call in worker.end_early(reached, now_ns) {
            let serial = call.serial();
            let Some(waiting) = back(call.into_inner()) else { continue };
            if self.closed.is_some() {
                returned.push(waiting);
            } else {
                self.queue.push_front(Queued { serial, waiting });
            }
        }
        self.settle(now_ns);
        returned
    }

    /// Notes that the process of an instance has ended for the reason in `text`. Removes its worker
    /// and drops the owner's part. Returns `None` if there is no worker with this key. Handle the
    /// invocations that the instance held, then call [`Pool::dispatch`].
    pub fn ended(&mut self, key: usize, text: &str, now_ns: u64) -> Option<Ended<R>> {
        let worker = self.workers.try_remove(key)?;
        self.threads.retain(|(_, of)| *of != key);
        let served = worker.served();
        let had_work = worker.given() > 0;
        if let Some(scaling) = &mut self.scaling {
            scaling.gone(served, worker.cpu_ns);
        }
        let (number, state, calls) = worker.into_parts();
        let calls = calls.collect();
        let stop = state.into_stop();
        if stop.as_ref().is_none_or(|stop| stop.hung) {
            // This may be the instance that could not be paused.
            self.trouble.no_spares = false;
        }
        let mut starts_paused = None;
        if stop.is_none() && served == 0 {
            let trouble = &mut self.trouble;
            trouble.deaths = trouble.deaths.saturating_add(1);
            if had_work {
                // The request may have killed the instance, and other callers wait for the next
                // instance, so no caller is refused. If every request kills its instance, starts
                // are slowed a little.
                if trouble.deaths > DEATHS_BEFORE_SLOW {
                    trouble.slow_until_ns = now_ns + SLOW_NS;
                }
            } else {
                // The instance died by itself before it answered anything. Once or twice may be
                // chance. More deaths are a crash loop, which delays starts as failed starts do.
                trouble.failures = trouble.failures.saturating_add(1);
                text.clone_into(&mut trouble.last_failure);
                if trouble.failures >= CRASHES_BEFORE_PAUSE {
                    let pause_ns = pause_ns(trouble.failures - CRASHES_BEFORE_PAUSE);
                    trouble.retry_at_ns = now_ns + pause_ns;
                    starts_paused = Some((trouble.failures, pause_ns));
                }
            }
        }
        Some(Ended { number, stop, calls, starts_paused, deaths: self.trouble.deaths })
    }

    fn start_has_ended(&mut self, spare: bool) {
        if spare {
            self.starting.spare = self.starting.spare.saturating_sub(1);
        } else {
            self.starting.give_back(1);
        }
    }

    /// Removes from the queue the invocations whose answer is due before any instance can be free.
    fn take_hopeless(&mut self, room_in_ns: Option<u64>, now_ns: u64) -> Vec<Q> {
        let soonest = room_in_ns.map_or(u64::MAX, |room_in_ns| now_ns.saturating_add(room_in_ns));
        let (waiting, hopeless): (Vec<_>, Vec<_>) = std::mem::take(&mut self.queue)
            .into_iter()
            .partition(|queued| queued.waiting.deadline_ns() > soonest);
        self.queue = waiting.into();
        hopeless.into_iter().map(|queued| queued.waiting).collect()
    }
}

/// The pause after `before` earlier failures. It doubles with each failure, from the first to the
/// longest pause.
fn pause_ns(before: u32) -> u64 {
    (RETRY_MIN_NS << before.min(6)).min(RETRY_MAX_NS)
}
