//! One instance from the pool's point of view: its state, and the invocations that it holds.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use slab::Slab;

use super::owner::Owner;
use super::run_times::RunTimes;
use super::{Instance, Running};
use crate::admission::frames_max;

/// The state of an instance, with the transitions to other states.
///
/// | From | To | When |
/// |---|---|---|
/// | (started) | `Ready` | the instance reports that it is ready ([`Pool::add_ready`]) |
/// | (started) | `Spare` | the instance reports that it is ready, was started as a spare and can be paused, and no invocation waits |
/// | (started) | `Draining` | the instance reports that it is ready, but the pool has been closed |
/// | `Ready` | `Paused` | it has been idle for as long as the manifest says ([`Pool::look`]) |
/// | `Paused`, `Spare` | `Ready` | an invocation needs it ([`Pool::dispatch`]), or the autoscaler wants one more ([`Pool::look`], [`Pool::scale_to`]) |
/// | `Ready`, `Paused`, `Spare` | `Draining` | fewer instances are wanted, another function needs the memory, an invocation continues after its deadline, or the pool is closed |
/// | all | `Ending` | the instance reported that it ends, or closed its connection ([`Pool::take_back`]) |
/// | all | (ended) | its process has ended ([`Pool::ended`]) |
///
/// A starting instance is a number in the pool and has no state yet.
///
/// [`Pool::add_ready`]: super::Pool::add_ready
/// [`Pool::look`]: super::Pool::look
/// [`Pool::dispatch`]: super::Pool::dispatch
/// [`Pool::scale_to`]: super::Pool::scale_to
/// [`Pool::take_back`]: super::Pool::take_back
/// [`Pool::ended`]: super::Pool::ended
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The instance takes invocations.
    Ready,
    /// Its processes are paused, and it has not served any invocation yet.
    Spare,
    /// Its processes are paused until there is work for it.
    Paused,
    /// It takes no more invocations, and exits when the ones that it holds have ended.
    Draining(Stop),
    /// It takes no more invocations, because it is known to be ending by itself. It is replaced
    /// only after its process has ended, because the cause of the end decides whether the next
    /// start is delayed.
    Ending {
        since_ns: u64,
        /// How the instance is being stopped; `None` if nobody decided to stop it.
        stop: Option<Stop>,
    },
}

impl State {
    /// The state as one word, for people.
    pub fn as_str(&self) -> &'static str {
        match self {
            State::Ready => "ready",
            State::Spare => "spare",
            State::Paused => "paused",
            State::Draining(_) | State::Ending { .. } => "draining",
        }
    }

    /// How the instance is being stopped, if it is being stopped.
    pub fn stop(&self) -> Option<&Stop> {
        match self {
            State::Draining(stop) => Some(stop),
            State::Ending { stop, .. } => stop.as_ref(),
            State::Ready | State::Spare | State::Paused => None,
        }
    }

    pub(super) fn into_stop(self) -> Option<Stop> {
        match self {
            State::Draining(stop) => Some(stop),
            State::Ending { stop, .. } => stop,
            State::Ready | State::Spare | State::Paused => None,
        }
    }
}

/// How an instance is being stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// The reason, as a word for metrics and the log.
    pub reason: StopReason,
    /// The reason as a sentence; empty if the word is enough.
    pub text: String,
    /// When the instance was asked to exit, which happens after its last invocation has ended.
    pub asked_ns: Option<u64>,
    /// Whether the instance was killed because it did not end an invocation whose deadline had
    /// passed.
    pub hung: bool,
}

impl Stop {
    /// A stop that has been decided but not begun.
    pub fn new(reason: StopReason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into(), asked_ns: None, hung: false }
    }
}

/// Why an instance is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The function has not been called for a long time.
    Idle,
    /// Fewer instances are enough for the demand.
    Surplus,
    /// The owner asked for fewer instances.
    Manual,
    /// Another function needs the memory.
    Evicted,
    /// The instance did not end an invocation whose deadline had passed.
    Deadline,
    /// A new revision takes the traffic.
    Redeploy,
    /// The instance's revision was never published.
    Discarded,
    /// The function was removed.
    Removed,
    /// The node stops.
    Shutdown,
}

impl StopReason {
    /// The word used in outputs and metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            StopReason::Idle => "idle",
            StopReason::Surplus => "surplus",
            StopReason::Manual => "scale",
            StopReason::Evicted => "evicted",
            StopReason::Deadline => "deadline",
            StopReason::Redeploy => "redeploy",
            StopReason::Discarded => "discarded",
            StopReason::Removed => "removed",
            StopReason::Shutdown => "shutdown",
        }
    }
}

/// One invocation inside an instance. It dereferences to the owner's data about the invocation.
#[derive(Debug)]
pub struct Call<R> {
    serial: u64,
    /// The position of the invocation among all that the instance was given, counted from 1.
    order: u64,
    began_ns: u64,
    cancelled: Option<Cancelled>,
    running: R,
}

/// Why no caller waits for an invocation any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// The caller left. If the instance holds other invocations, this one may run on until its
    /// deadline, in nanoseconds.
    Left { deadline_ns: u64 },
    /// The deadline of the invocation has passed.
    Late,
}

/// Records when the caller of an invocation stopped waiting.
#[derive(Debug, Clone, Copy)]
struct Cancelled {
    at_ns: u64,
    /// When the instance should have ended the invocation, if it runs others.
    due_ns: u64,
    gone: Gone,
    /// The number of messages that the instance had sent by then. If another message arrives later,
    /// the instance is slow rather than stuck.
    messages: u64,
}

impl<R> Call<R> {
    /// The serial number that [`Pool::submit`](super::Pool::submit) gave the invocation.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// When the instance received the invocation, in nanoseconds.
    pub fn began_ns(&self) -> u64 {
        self.began_ns
    }

    /// The owner's data about the invocation.
    pub fn into_inner(self) -> R {
        self.running
    }
}

impl<R> Deref for Call<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.running
    }
}

impl<R> DerefMut for Call<R> {
    fn deref_mut(&mut self) -> &mut R {
        &mut self.running
    }
}

/// A count of invocations that several instances share. It is atomic only so that it can be shared;
/// it changes only under the lock of the pool's owner.
#[derive(Debug, Clone, Default)]
pub(super) struct Total(Arc<AtomicU32>);

impl Total {
    pub(super) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, count: u32) {
        self.0.store(self.get() + count, Ordering::Relaxed);
    }

    fn subtract(&self, count: u32) {
        self.0.store(self.get() - count, Ordering::Relaxed);
    }
}

/// The invocations of one instance, each in a separate slot.
#[derive(Debug)]
pub struct Calls<R> {
    slots: Slab<Call<R>>,
    /// The number of invocations that were cancelled and have not ended yet.
    cancelled: u32,
    /// The number of invocations of all instances of the pool.
    total: Total,
}

impl<R> Calls<R> {
    fn insert(&mut self, call: Call<R>) {
        self.slots.insert(call);
        self.total.add(1);
    }

    fn remove(&mut self, slot: usize) -> Option<Call<R>> {
        let call = self.slots.try_remove(slot)?;
        self.total.subtract(1);
        self.cancelled -= u32::from(call.cancelled.is_some());
        Some(call)
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn get(&self, slot: usize) -> Option<&Call<R>> {
        self.slots.get(slot)
    }

    pub fn get_mut(&mut self, slot: usize) -> Option<&mut Call<R>> {
        self.slots.get_mut(slot)
    }

    /// The invocation in `slot`, if it has this serial number.
    pub fn get_mut_if(&mut self, slot: usize, serial: u64) -> Option<&mut Call<R>> {
        self.slots.get_mut(slot).filter(|call| call.serial == serial)
    }

    /// All invocations, with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Call<R>)> {
        self.slots.iter()
    }

    /// All invocations, with their slots.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Call<R>)> {
        self.slots.iter_mut()
    }
}

impl<R> Drop for Calls<R> {
    fn drop(&mut self) {
        self.total.subtract(self.slots.len() as u32);
    }
}

/// A worker: an instance that has become ready, and what the pool knows about it.
#[derive(Debug)]
pub struct Worker<R, I> {
    number: u64,
    state: State,
    instance: I,
    calls: Calls<R>,
    concurrency: u32,
    pub(super) run_times: RunTimes,
    idle_since_ns: u64,
    /// The number of messages received from the instance so far.
    messages: u64,
    given: u64,
    served: u64,
    /// The caller or invocation that the instance is reserved for, if it has served one and may not
    /// serve others.
    pub(super) owner: Option<Owner>,
    pub(super) cpu_ns: u64,
    pub(super) memory_bytes: u64,
}

impl<R: Running, I: Instance> Worker<R, I> {
    pub(super) fn new(
        number: u64,
        instance: I,
        concurrency: u32,
        in_flight: Total,
        now_ns: u64,
    ) -> Self {
        Self {
            number,
            state: State::Ready,
            instance,
            calls: Calls { slots: Slab::new(), cancelled: 0, total: in_flight },
            concurrency,
            run_times: RunTimes::default(),
            idle_since_ns: now_ns,
            messages: 0,
            given: 0,
            served: 0,
            owner: None,
            cpu_ns: 0,
            memory_bytes: 0,
        }
    }

    /// The number of the instance, which is unique while the node runs.
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    /// The owner's part of the instance.
    pub fn instance(&self) -> &I {
        &self.instance
    }

    /// The owner's part of the instance.
    pub fn instance_mut(&mut self) -> &mut I {
        &mut self.instance
    }

    /// The invocations that the instance holds.
    pub fn calls(&self) -> &Calls<R> {
        &self.calls
    }

    /// The invocations that the instance holds, and the owner's part.
    pub fn parts(&mut self) -> (&mut Calls<R>, &mut I) {
        (&mut self.calls, &mut self.instance)
    }

    /// The number of invocations that the instance runs at once.
    pub fn concurrency(&self) -> u32 {
        self.concurrency
    }

    /// When the instance became idle, in nanoseconds. If it holds invocations, when its last one
    /// ended.
    pub fn idle_since_ns(&self) -> u64 {
        self.idle_since_ns
    }

    pub fn given(&self) -> u64 {
        self.given
    }

    /// The number of invocations that the instance has ended.
    pub fn served(&self) -> u64 {
        self.served
    }

    /// The moving mean of the instance's run times in nanoseconds; 0 before its first run has
    /// ended.
    pub fn mean_ns(&self) -> u64 {
        self.run_times.mean_ns()
    }

    /// Whether the instance is ready, paused or spare, and holds no invocation.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Ready | State::Paused | State::Spare) && self.calls.is_empty()
    }

    /// Whether the instance is being stopped, even if it ends by itself in the meantime.
    pub fn is_draining(&self) -> bool {
        self.state.stop().is_some()
    }

    /// Whether the instance is known to be ending, by itself or because it was asked to exit.
    pub fn is_ending(&self) -> bool {
        matches!(self.state, State::Ending { .. })
    }

    pub fn is_paused(&self) -> bool {
        matches!(self.state, State::Paused | State::Spare)
    }

    /// Whether the instance is paused and has not served yet.
    pub fn is_spare(&self) -> bool {
        self.state == State::Spare
    }

    /// Notes a message from the instance. If a message arrives after a deadline, the instance is
    /// slow rather than stuck.
    pub fn note_message(&mut self) {
        self.messages += 1;
    }

    /// Records the run time of an invocation, in nanoseconds.
    pub fn record_run(&mut self, run_ns: u64) {
        self.run_times.record(run_ns);
    }

    /// Records a run time for the autoscaler alone. The mean that allows invocations in advance
    /// does not change: a server gets none in advance, and a short exchange does not mean that the
    /// server's work is short.
    pub fn record_exchange(&mut self, run_ns: u64) {
        self.run_times.add(run_ns);
    }

    /// Notes the processor time that the instance's processes have used so far, and the memory that
    /// they use now.
    pub fn record_usage(&mut self, cpu_ns: u64, memory_bytes: u64) {
        self.cpu_ns = cpu_ns;
        self.memory_bytes = memory_bytes;
    }

    /// Notes that no caller waits for the invocation in `slot` any longer. Returns `false` if that
    /// was already known, or if the slot is empty.
    pub fn note_cancelled(&mut self, slot: usize, gone: Gone, now_ns: u64) -> bool {
        let messages = self.messages;
        let Some(call) = self.calls.slots.get_mut(slot) else { return false };
        if call.cancelled.is_some() {
            return false;
        }
        let due_ns = match gone {
            Gone::Left { deadline_ns } => deadline_ns.max(now_ns),
            Gone::Late => now_ns,
        };
        call.cancelled = Some(Cancelled { at_ns: now_ns, due_ns, gone, messages });
        self.calls.cancelled += 1;
        true
    }

    /// Removes an invocation that has ended, which makes room for another one.
    pub fn end(&mut self, slot: usize, now_ns: u64) -> Option<Call<R>> {
        let call = self.calls.remove(slot)?;
        self.served += 1;
        self.idle_since_ns = now_ns;
        Some(call)
    }

    /// Removes an invocation that the instance has stopped because no caller waits for it. It does
    /// not count as served.
    pub fn drop_call(&mut self, slot: usize, now_ns: u64) -> Option<Call<R>> {
        let call = self.calls.remove(slot)?;
        self.idle_since_ns = now_ns;
        Some(call)
    }

    /// The slot that the next invocation will get.
    pub(super) fn next_slot(&self) -> usize {
        self.calls.slots.vacant_key()
    }

    /// Gives the instance an invocation.
    pub(super) fn begin(&mut self, serial: u64, began_ns: u64, running: R) {
        self.given += 1;
        let order = self.given;
        self.calls.insert(Call { serial, order, began_ns, cancelled: None, running });
    }

    /// How many more invocations the instance may take. None is sent ahead to an instance that
    /// continues with a cancelled one, because the instance may be killed for it.
    pub(super) fn room(&self) -> u32 {
        if self.state != State::Ready || self.instance.is_full() {
            return 0;
        }
        let most = if self.calls.cancelled == 0 && self.instance.takes_ahead() {
            frames_max(self.concurrency, self.run_times.mean_ns())
        } else {
            self.concurrency
        };
        most.saturating_sub(self.calls.len() as u32)
    }

    /// `Ready` → `paused`, which is `Paused` or `Spare`. Returns whether the instance could be
    /// paused.
    pub(super) fn pause_as(&mut self, paused: State) -> bool {
        debug_assert!(matches!(paused, State::Paused | State::Spare), "another state runs");
        debug_assert_eq!(self.state, State::Ready, "only a ready instance is paused");
        let is_paused = self.instance.set_paused(true);
        if is_paused {
            self.state = paused;
        }
        is_paused
    }

    /// `Paused` or `Spare` → `Ready`.
    pub(super) fn resume(&mut self) {
        if self.is_paused() {
            self.instance.set_paused(false);
            self.state = State::Ready;
        }
    }

    /// Changes to `Draining`, if the instance is not already being stopped. If the instance is
    /// already ending by itself, it continues, and its end now counts as requested.
    pub(super) fn drain(&mut self, reason: StopReason, text: impl Into<String>) {
        if self.is_draining() {
            return;
        }
        self.resume();
        let new = Stop::new(reason, text);
        match &mut self.state {
            State::Ending { stop, .. } => *stop = Some(new),
            state => *state = State::Draining(new),
        }
    }

    /// Changes to `Ending` from any other state. Removes and returns, newest first, the invocations
    /// that were given to the instance after the first `reached` and that can be given back.
    pub(super) fn end_early(&mut self, reached: u64, now_ns: u64) -> Vec<Call<R>> {
        if !self.is_ending() {
            // A paused instance could not end, and the pool would resume it for the next
            // invocation.
            self.resume();
            let stop = std::mem::replace(&mut self.state, State::Ready).into_stop();
            self.state = State::Ending { since_ns: now_ns, stop };
        }
        let not_begun = |call: &Call<R>| call.order > reached && call.can_be_given_back();
        let calls = self.calls.slots.iter().filter(|(_, call)| not_begun(call));
        let slots: Vec<_> = calls.map(|(slot, _)| slot).collect();
        let mut taken: Vec<_> =
            slots.into_iter().filter_map(|slot| self.calls.remove(slot)).collect();
        taken.sort_unstable_by_key(|call| std::cmp::Reverse(call.order));
        taken
    }

    /// Asks a draining instance without invocations to exit, and kills it if it still runs when its
    /// time for the exit is over. An instance that ends by itself has the same time from the moment
    /// at which its end became known. Returns whether the instance was asked now.
    pub(super) fn leave(&mut self, now_ns: u64) -> bool {
        let grace_ns = self.instance.exit_grace_ns();
        let stop = match &mut self.state {
            State::Draining(stop) => stop,
            State::Ending { since_ns, .. } => {
                if now_ns.saturating_sub(*since_ns) > grace_ns {
                    self.instance.kill();
                }
                return false;
            }
            State::Ready | State::Spare | State::Paused => return false,
        };
        if !self.calls.is_empty() {
            return false;
        }
        match stop.asked_ns {
            None => {
                stop.asked_ns = Some(now_ns);
                self.instance.ask_to_exit();
                true
            }
            Some(asked_ns) => {
                if now_ns.saturating_sub(asked_ns) > grace_ns {
                    self.instance.kill();
                }
                false
            }
        }
    }

    /// Stops an instance in which a cancelled invocation has continued for longer than `grace_ns`.
    /// An instance that holds no other work is killed, and so is one that has sent nothing since a
    /// deadline passed. That a caller left does not show that the instance is stuck, so while the
    /// instance holds other invocations, the cancelled one may continue until its deadline. Returns
    /// whether the instance was killed now.
    pub(super) fn stop_if_stuck(&mut self, now_ns: u64, grace_ns: u64) -> bool {
        let all = || self.calls.slots.iter().map(|(_, call)| call.cancelled);
        let is_alone = all().all(|cancelled| cancelled.is_some());
        let is_over = |since_ns: u64| now_ns.saturating_sub(since_ns) > grace_ns;
        let stuck = match all().flatten().map(|it| it.at_ns).max() {
            Some(last_ns) if is_alone => is_over(last_ns),
            _ => all().flatten().any(|it| is_over(it.due_ns)),
        };
        if !stuck || self.state.stop().is_some_and(|stop| stop.hung) {
            return false;
        }
        let is_silent = |it: Cancelled| it.gone == Gone::Late && it.messages == self.messages;
        let silent = all().flatten().any(is_silent);
        let kills = silent || is_alone;
        self.drain(StopReason::Deadline, "");
        if kills {
            if let State::Draining(stop) | State::Ending { stop: Some(stop), .. } = &mut self.state
            {
                stop.reason = StopReason::Deadline;
                stop.hung = true;
            }
            self.instance.kill();
        }
        kills
    }

    /// The parts of the worker that remain when its process has ended.
    pub(super) fn into_parts(self) -> (u64, State, impl Iterator<Item = Call<R>>) {
        let Self { number, state, mut calls, .. } = self;
        let slots = std::mem::take(&mut calls.slots);
        calls.total.subtract(slots.len() as u32);
        (number, state, slots.into_iter().map(|(_, call)| call))
    }
}
