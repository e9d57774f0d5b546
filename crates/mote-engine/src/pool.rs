//! The one queue of a revision and the workers that take from it.
//!
//! Everything a request touches sits behind one short lock per revision: the queue, the streams
//! each worker has open, and the bytes waiting to be written to it. Nothing awaits under it. The
//! queue stands in front of all instances (late binding): whichever worker is free first takes the
//! oldest invocation, and its frame is written by whoever freed the worker, so a waiting caller is
//! woken once, for its answer.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use mote_core::admission::frames_max;
use mote_core::backend::{Exit, InstanceControl};
use mote_core::balance::{self, Balance, Candidate};
use mote_core::body::{Body, BodyError};
use mote_core::wire::{self, FLAG_END, FrameKind, INLINE_BODY_BYTES_MAX, WINDOW_BYTES};
use mote_core::{Fault, Invocation, InvocationId, Phases, Reply, Trigger};
use slab::Slab;
use tokio::sync::oneshot;

use crate::body_channel::AnswerSink;
use crate::ledger::Reservation;
use crate::revision::Offer;
use crate::scaling::{RunTimes, Scaling, Why};
use crate::server::ServerLink;

/// Bytes that wait to be written to a worker from which on it gets no further invocation and no
/// more of a body. A worker may answer without reading, so only this bounds what is kept for it;
/// one that reads takes this much in a few milliseconds.
pub(crate) const OUT_BYTES_MAX: usize = 1 << 20;
/// Bytes that a front has taken of an answer are credited to the worker in steps of this size: a
/// quarter of the window, the most that the protocol lets a receiver owe.
const CREDIT_STEP_BYTES: u32 = WINDOW_BYTES / 4;
/// Pause between two lines about a function in the node's own log.
const TELL_PAUSE_NS: u64 = 1_000_000_000;

/// Where an invocation's answer goes.
pub(crate) type ReplySender = oneshot::Sender<Result<Reply, Fault>>;

/// An invocation that waits for a worker.
pub(crate) struct Pending {
    pub(crate) serial: u64,
    pub(crate) invocation: Invocation,
    pub(crate) reply: ReplySender,
    /// Times it was already handed to a worker that died.
    pub(crate) attempts: u8,
}

/// One invocation inside a worker.
pub(crate) struct Stream {
    pub(crate) serial: u64,
    pub(crate) id: InvocationId,
    pub(crate) trigger: Trigger,
    pub(crate) reply: Option<ReplySender>,
    pub(crate) phases: Phases,
    pub(crate) deadline_ns: u64,
    /// BODY bytes that may still be sent before the worker gives credit.
    pub(crate) send_credit: u32,
    pub(crate) credit_waker: Option<Waker>,
    /// We have not sent END yet.
    pub(crate) request_open: bool,
    /// Its RESULT has come.
    pub(crate) answered: bool,
    /// BODY bytes that the worker may still send before it gets credit.
    pub(crate) answer_credit: u32,
    /// BODY bytes that were taken and are not credited yet.
    pub(crate) owed: u32,
    /// The answer has begun and streams into this.
    pub(crate) sink: Option<AnswerSink>,
    /// When nobody waited for it any more.
    pub(crate) cancelled_ns: Option<u64>,
    /// Frames of the worker seen when it was cancelled, to tell slow from stuck.
    pub(crate) cancelled_at_frame: u64,
    /// The invocation itself, until its answer begins, so that another worker can run it. `None`
    /// where its body streams.
    pub(crate) kept: Option<Invocation>,
    /// It may run once more although the worker may have begun it.
    pub(crate) may_repeat: bool,
    /// Its place in the order in which the worker was handed invocations, from 1.
    pub(crate) handed: u64,
    /// Times it was already handed to a worker that died.
    pub(crate) attempts: u8,
    /// Ends the task that serves this stream over HTTP.
    pub(crate) task: Option<tokio::task::AbortHandle>,
}

/// How a worker is reached.
pub(crate) enum Link {
    /// Worker protocol: bytes to write, and who writes them.
    Frames { out: Vec<u8>, waker: Option<Waker> },
    /// HTTP/1.1 connections.
    Server(Arc<ServerLink>),
}

/// One ready instance.
pub(crate) struct WorkerState {
    pub(crate) instance: u64,
    pub(crate) link: Link,
    pub(crate) streams: Slab<Stream>,
    pub(crate) concurrency: u32,
    pub(crate) shape: String,
    pub(crate) run_times: RunTimes,
    /// Takes no new invocations.
    pub(crate) draining: bool,
    /// Since when it is known to end by itself: it takes no new invocations, and is replaced when it is
    /// gone and what its end means for the next start is known.
    pub(crate) ending_ns: Option<u64>,
    /// Its processes are stopped where they were; it goes on when there is work for it.
    pub(crate) paused: bool,
    /// It is kept beside those that serve, and has not served yet.
    pub(crate) spare: bool,
    /// When it was asked to exit.
    pub(crate) drain_sent_ns: Option<u64>,
    /// Why it is being stopped, for metrics and log.
    pub(crate) stop_reason: Option<&'static str>,
    /// The same in a sentence; empty where the reason says enough.
    pub(crate) stop_text: String,
    /// Why it was started.
    pub(crate) why: Why,
    pub(crate) idle_since_ns: u64,
    pub(crate) started_unix_ms: u64,
    pub(crate) init_ns: u64,
    pub(crate) frames_seen: u64,
    /// Some stream is owed enough credit for a frame, which is made when the socket takes it.
    pub(crate) owes: bool,
    /// Invocations whose frame waits to be written.
    pub(crate) unwritten: usize,
    /// Invocations that it was handed in all.
    pub(crate) handed: u64,
    pub(crate) served: u64,
    /// It was given an invocation, however that ended.
    pub(crate) had_work: bool,
    /// CPU time at the last look, and when that was; to tell who is greedy.
    pub(crate) burnt_ns: u64,
    pub(crate) looked_ns: u64,
    /// Until when it competes although its function is in the background; 0 where it does not.
    pub(crate) lifted_until_ns: u64,
    /// CPU time and memory when the autoscaler last asked.
    pub(crate) cpu_ns: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) control: Arc<dyn InstanceControl>,
    /// Its memory in the node's ledger, given back when this is dropped.
    pub(crate) reservation: Reservation,
}

impl WorkerState {
    /// How many invocations more it may take.
    fn room(&self) -> u32 {
        if self.draining || self.ending_ns.is_some() || self.paused || self.out_is_full() {
            return 0;
        }
        let most = match self.link {
            Link::Frames { .. } => frames_max(self.concurrency, self.run_times.mean_ns),
            Link::Server(_) => self.concurrency,
        };
        most.saturating_sub(self.streams.len() as u32)
    }

    /// Whether it may take one more invocation.
    fn has_room(&self) -> bool {
        self.room() > 0
    }

    /// Ready, and nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        !self.draining && self.ending_ns.is_none() && self.streams.is_empty()
    }

    /// Its state in a word, for people.
    pub(crate) fn state(&self) -> &'static str {
        match (self.draining || self.ending_ns.is_some(), self.spare, self.paused) {
            (true, _, _) => "draining",
            (_, true, _) => "spare",
            (_, _, true) => "paused",
            _ => "ready",
        }
    }

    /// Stops its processes where they are; stays as it is where that cannot be had. A few system
    /// calls per process, under the lock: whoever hands over an invocation must see the truth.
    pub(crate) fn pause(&mut self) {
        self.paused = self.control.set_paused(true);
    }

    /// Lets it go on.
    pub(crate) fn resume(&mut self) {
        if std::mem::take(&mut self.paused) {
            self.control.set_paused(false);
        }
        self.spare = false;
    }

    /// How long the worker is busy with what was written to it, in nanoseconds of its mean service
    /// time.
    pub(crate) fn work_ahead_ns(&self) -> u64 {
        self.streams.len().saturating_sub(self.unwritten) as u64 * self.run_times.mean_ns
    }

    /// Whether as much waits to be written as may; see [`OUT_BYTES_MAX`].
    pub(crate) fn out_is_full(&self) -> bool {
        matches!(&self.link, Link::Frames { out, .. } if out.len() >= OUT_BYTES_MAX)
    }

    /// Lets go on who waited for room in what is to be written.
    pub(crate) fn wake_bodies(&mut self) {
        for (_, stream) in &mut self.streams {
            if let Some(waker) = stream.credit_waker.take() {
                waker.wake();
            }
        }
    }

    /// Notes that `bytes` of a stream's answer were taken. The credit leaves as one frame per stream
    /// when the socket takes it, however many pieces were taken meanwhile: a worker that never reads
    /// costs no memory.
    pub(crate) fn owe(&mut self, stream: usize, bytes: u32) {
        let Some(stream) = self.streams.get_mut(stream) else { return };
        stream.owed = stream.owed.saturating_add(bytes);
        if stream.owed >= CREDIT_STEP_BYTES {
            self.owes = true;
            if let Link::Frames { waker, .. } = &mut self.link
                && let Some(waker) = waker.take()
            {
                waker.wake();
            }
        }
    }

    /// Makes the CREDIT frames that are due. Called when all that was written before is out.
    pub(crate) fn pay(&mut self) {
        if !std::mem::take(&mut self.owes) {
            return;
        }
        let Link::Frames { out, .. } = &mut self.link else { return };
        for (slot, stream) in &mut self.streams {
            if stream.owed >= CREDIT_STEP_BYTES {
                let bytes = std::mem::take(&mut stream.owed);
                stream.answer_credit = stream.answer_credit.saturating_add(bytes);
                let bytes = bytes.to_le_bytes();
                wire::put_frame(out, FrameKind::Credit, 0, stream_number(slot), &bytes);
            }
        }
    }

    /// Bytes for the worker, and its writer if it sleeps.
    pub(crate) fn write(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        if let Link::Frames { out, waker } = &mut self.link {
            put(out);
            if let Some(waker) = waker.take() {
                waker.wake();
            }
        }
    }

    /// Tells the worker that nobody waits for `stream` any more.
    pub(crate) fn cancel(&mut self, stream: usize, now_ns: u64) {
        let frames_seen = self.frames_seen;
        let Some(entry) = self.streams.get_mut(stream) else { return };
        entry.reply = None;
        entry.sink = None;
        entry.kept = None;
        if entry.cancelled_ns.is_some() {
            return;
        }
        entry.cancelled_ns = Some(now_ns);
        entry.cancelled_at_frame = frames_seen;
        if let Some(task) = entry.task.take() {
            task.abort();
            self.streams.remove(stream);
            self.idle_since_ns = now_ns;
            return;
        }
        let end_request = std::mem::take(&mut entry.request_open);
        self.write(|out| {
            wire::put_frame(out, FrameKind::Cancel, 0, stream_number(stream), &[]);
            if end_request {
                wire::put_frame(out, FrameKind::Body, FLAG_END, stream_number(stream), &[]);
            }
        });
    }

    /// Forgets an ended stream.
    pub(crate) fn end_stream(&mut self, stream: usize, now_ns: u64) -> Option<Stream> {
        let mut entry = self.streams.try_remove(stream)?;
        self.served += 1;
        self.idle_since_ns = now_ns;
        if entry.request_open {
            // The worker answered before it had read everything; close our direction so that
            // the number can be used again.
            entry.request_open = false;
            self.write(|out| {
                wire::put_frame(out, FrameKind::Body, FLAG_END, stream_number(stream), &[]);
            });
        }
        if let Some(waker) = entry.credit_waker.take() {
            waker.wake();
        }
        Some(entry)
    }

    /// Takes a measured service time into account.
    pub(crate) fn served_in(&mut self, run_ns: u64) {
        self.run_times.record(run_ns);
    }
}

/// Stream numbers on the wire start at 1; 0 is the connection.
pub(crate) fn stream_number(slot: usize) -> u32 {
    slot as u32 + 1
}

/// The slot of a stream number, `None` for 0.
pub(crate) fn stream_slot(number: u32) -> Option<usize> {
    (number as usize).checked_sub(1)
}

/// What must be done outside the lock after a dispatch.
pub(crate) enum FollowUp {
    /// Send the rest of a request body in BODY frames.
    Pump { worker: usize, stream: usize, serial: u64, body: Body },
    /// Serve an invocation over an HTTP connection.
    Exchange {
        worker: usize,
        stream: usize,
        serial: u64,
        link: Arc<ServerLink>,
        invocation: Invocation,
    },
}

/// Queue and workers of one revision.
#[derive(Default)]
pub(crate) struct Pool {
    pub(crate) queue: VecDeque<Pending>,
    /// By serial, what waited when the revision was replaced, until its caller's task has taken
    /// it on to the next one.
    pub(crate) moved: HashMap<u64, Offer>,
    pub(crate) workers: Slab<WorkerState>,
    /// Instances on their way, and since when the oldest of them is.
    pub(crate) starting: u32,
    pub(crate) starting_since_ns: u64,
    /// When an instance last became ready, and when its start had begun.
    pub(crate) last_ready_ns: u64,
    pub(crate) last_ready_since_ns: u64,
    /// The same of those that will be spare.
    pub(crate) starting_spares: u32,
    /// Until when no spare one is tried: the node had no room for it.
    pub(crate) spare_again_ns: u64,
    /// One that was to be spare could not be paused: another would only serve as well.
    pub(crate) no_spares: bool,
    /// Until when none is paused: the last attempt failed.
    pub(crate) pause_again_ns: u64,
    /// Failed starts in a row, and until when no other is tried.
    pub(crate) failures: u32,
    pub(crate) retry_at_ns: u64,
    pub(crate) last_failure: String,
    /// Workers in a row that died before they answered anything, and until when no other is started
    /// because of them. Unlike a failed start, this refuses nobody.
    pub(crate) deaths: u32,
    pub(crate) slow_until_ns: u64,
    /// When the node's own log last told of an end or a failed start, and how many it has not told of.
    told_ns: u64,
    untold: u32,
    /// No new invocations: the revision was replaced or removed. The queue is empty from then on.
    pub(crate) closed: bool,
    /// A keeper task runs.
    pub(crate) keeper: bool,
    /// Its instances run in the background: they were greedy, hung or died again and again while the
    /// node had others to serve, and have not shown short work since.
    pub(crate) background: bool,
    /// The keeper does not tick; new work must wake it.
    pub(crate) keeper_sleeps: bool,
    /// The autoscaler, from the first work on.
    pub(crate) scaling: Option<Box<Scaling>>,
    pub(crate) next_serial: u64,
    /// Which instance takes an invocation, and what that rule needs: choices so far, random bits,
    /// and room to line the instances up in.
    balance: Balance,
    turn: u64,
    random: u64,
    line_up: Vec<Candidate>,
    /// The node had no room for another instance: when to ask again.
    pub(crate) full: Option<Full>,
    /// Instances that `mote scale` asked for, and until when they are kept for nobody.
    pub(crate) asked_for: Option<(u32, u64)>,
}

/// A start was refused for want of room on the node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Full {
    /// Memory is short, not only the right to start now.
    pub(crate) memory: bool,
    /// Nothing given back since then changes anything before `until_ns`.
    pub(crate) version: u64,
    pub(crate) until_ns: u64,
}

impl Pool {
    /// An empty one that hands over by `balance`.
    pub(crate) fn new(balance: Balance) -> Self {
        Self { balance, ..Self::default() }
    }

    /// Whether some worker could take an invocation now, if need be after it is resumed.
    pub(crate) fn has_room(&self) -> bool {
        let could = |worker: &WorkerState| worker.has_room() || (worker.paused && !worker.draining);
        self.workers.iter().any(|(_, worker)| could(worker))
    }

    /// Lets a paused worker go on: one that served before comes first.
    pub(crate) fn resume_one(&mut self) -> Option<usize> {
        let paused =
            self.workers.iter_mut().filter(|(_, worker)| worker.paused && !worker.draining);
        let (key, worker) = paused.min_by_key(|(_, worker)| worker.spare)?;
        worker.resume();
        Some(key)
    }

    /// Lets a spare worker serve from now on.
    pub(crate) fn wake_spare(&mut self) -> bool {
        let mut spares = self.workers.iter_mut().map(|(_, worker)| worker);
        let Some(worker) = spares.find(|worker| worker.spare && !worker.draining) else {
            return false;
        };
        worker.resume();
        true
    }

    /// The worker that takes the next invocation.
    fn pick(&mut self) -> Option<usize> {
        if self.balance != Balance::LateBinding {
            return self.pick_by_rule();
        }
        // The same rule as in `balance::pick`, without lining anybody up.
        self.workers
            .iter()
            .filter(|(_, worker)| worker.has_room())
            .min_by_key(|(_, worker)| worker.streams.len())
            .map(|(key, _)| key)
    }

    fn pick_by_rule(&mut self) -> Option<usize> {
        self.line_up.clear();
        self.line_up.extend(self.workers.iter().map(|(_, worker)| Candidate {
            in_flight: worker.streams.len() as u32,
            room: worker.room(),
        }));
        // SplitMix64: chance enough for shares, and no lock.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut random = self.random;
        random = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        random = (random ^ (random >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let at = balance::pick(self.balance, &self.line_up, self.turn, random ^ (random >> 31))?;
        self.turn += 1;
        self.workers.iter().nth(at).map(|(key, _)| key)
    }

    /// Hands waiting invocations to workers with room.
    pub(crate) fn dispatch(&mut self, now_ns: u64, follow_ups: &mut Vec<FollowUp>) {
        while !self.queue.is_empty() {
            let Some(key) = self.pick().or_else(|| self.resume_one()) else { break };
            let Some(pending) = self.queue.pop_front() else { break };
            if pending.reply.is_closed() {
                continue;
            }
            self.hand_over(key, pending, now_ns, follow_ups);
        }
        self.settle(now_ns);
    }

    fn hand_over(
        &mut self,
        key: usize,
        pending: Pending,
        now_ns: u64,
        follow_ups: &mut Vec<FollowUp>,
    ) {
        let Pending { serial, mut invocation, reply, attempts } = pending;
        let init_ns = if invocation.received_ns < self.last_ready_ns {
            self.last_ready_ns - self.last_ready_since_ns.max(invocation.received_ns)
        } else {
            0
        };
        let worker = &mut self.workers[key];
        worker.had_work = true;
        let remaining_ms = invocation.deadline_ns.saturating_sub(now_ns) / 1_000_000;
        worker.handed += 1;
        let stream = worker.streams.vacant_key();
        let mut entry = Stream {
            serial,
            id: invocation.id,
            trigger: invocation.trigger,
            reply: Some(reply),
            phases: Phases {
                received_ns: invocation.received_ns,
                init_ns,
                sent_ns: now_ns,
                ..Phases::default()
            },
            deadline_ns: invocation.deadline_ns,
            send_credit: WINDOW_BYTES,
            credit_waker: None,
            request_open: false,
            answered: false,
            answer_credit: WINDOW_BYTES,
            owed: 0,
            sink: None,
            cancelled_ns: None,
            cancelled_at_frame: 0,
            kept: None,
            may_repeat: attempts == 0 && invocation.is_idempotent(),
            handed: worker.handed,
            attempts,
            task: None,
        };
        if let Link::Server(link) = &worker.link {
            let link = link.clone();
            worker.streams.insert(entry);
            follow_ups.push(FollowUp::Exchange { worker: key, stream, serial, link, invocation });
            return;
        }
        let inline = match &invocation.body {
            Body::Empty => Some(Bytes::new()),
            Body::Whole(bytes) if bytes.len() <= INLINE_BODY_BYTES_MAX => Some(bytes.clone()),
            _ => None,
        };
        entry.request_open = inline.is_none();
        let body = inline.as_deref().unwrap_or_default();
        worker.write(|out| {
            wire::put_invoke(
                out,
                stream_number(stream),
                now_ns,
                invocation.id.0,
                u32::try_from(remaining_ms).unwrap_or(u32::MAX),
                invocation.trigger as u8,
                &invocation.head,
                body,
                inline.is_some(),
            );
        });
        if inline.is_none() {
            let body = std::mem::take(&mut invocation.body);
            follow_ups.push(FollowUp::Pump { worker: key, stream, serial, body });
        } else {
            entry.kept = Some(invocation);
        }
        worker.unwritten += 1;
        worker.streams.insert(entry);
    }

    /// Puts an invocation where its caller's task finds it for the next revision; the caller must
    /// be told [`Fault::Stopping`] once the lock is released.
    pub(crate) fn move_on(&mut self, pending: Pending) -> ReplySender {
        let Pending { serial, invocation, reply, attempts } = pending;
        self.moved.insert(serial, Offer { invocation, attempts, moved: true });
        reply
    }

    /// Whether the node's own log should tell of a death or a failed start now, and how many there were
    /// since it last did. A function must not fill the node's log.
    pub(crate) fn tells(&mut self, now_ns: u64) -> Option<u32> {
        if now_ns.saturating_sub(self.told_ns) < TELL_PAUSE_NS {
            self.untold = self.untold.saturating_add(1);
            return None;
        }
        self.told_ns = now_ns;
        Some(std::mem::take(&mut self.untold))
    }

    /// Some worker answered: whatever failed before is over.
    pub(crate) fn answered(&mut self) {
        if self.failures > 0 || self.deaths > 0 {
            (self.failures, self.retry_at_ns) = (0, 0);
            (self.deaths, self.slow_until_ns) = (0, 0);
        }
    }

    /// Removes a dead worker; returns invocations that may run once more and those that may not.
    pub(crate) fn remove_worker(&mut self, key: usize) -> Option<DeadWorker> {
        let mut worker = self.workers.try_remove(key)?;
        if let Some(scaling) = &mut self.scaling {
            scaling.gone(worker.served, worker.cpu_ns);
        }
        let mut dead = DeadWorker {
            instance: worker.instance,
            stop_reason: worker.stop_reason,
            stop_text: std::mem::take(&mut worker.stop_text),
            repeat: Vec::new(),
            failed: Vec::new(),
            started: worker.served > 0,
            had_work: worker.had_work,
        };
        for mut stream in worker.streams.drain() {
            if let Some(waker) = stream.credit_waker.take() {
                waker.wake();
            }
            if let Some(sink) = stream.sink.take() {
                sink.fail(BodyError::WorkerFailed);
            }
            if let Some(task) = stream.task.take() {
                task.abort();
            }
            match (stream.reply.take(), stream.kept.take().filter(|_| stream.may_repeat)) {
                (Some(reply), Some(invocation)) => dead.repeat.push(Pending {
                    serial: stream.serial,
                    invocation,
                    reply,
                    attempts: stream.attempts + 1,
                }),
                (Some(reply), None) => dead.failed.push((stream.attempts, reply)),
                (None, _) => {}
            }
        }
        Some(dead)
    }

    /// Gives a worker that ends no further invocation, and takes back from it those that it has not
    /// begun: all that it was handed after the first `reached`. They wait again, before all others and
    /// as if they had never been handed over. Returns callers to be told [`Fault::Stopping`], as with
    /// [`Pool::move_on`].
    pub(crate) fn take_back(&mut self, key: usize, reached: u64, now_ns: u64) -> Vec<ReplySender> {
        let Some(worker) = self.workers.get_mut(key) else { return Vec::new() };
        worker.ending_ns.get_or_insert(now_ns);
        // A paused one could not end, and would be woken for the next invocation.
        worker.resume();
        let not_begun = |stream: &Stream| stream.handed > reached && stream.kept.is_some();
        let slots: Vec<usize> = worker
            .streams
            .iter()
            .filter(|(_, stream)| not_begun(stream))
            .map(|(slot, _)| slot)
            .collect();
        let mut streams: Vec<Stream> =
            slots.into_iter().filter_map(|slot| worker.streams.try_remove(slot)).collect();
        streams.sort_by_key(|stream| std::cmp::Reverse(stream.handed));
        let mut moved = Vec::new();
        for Stream { serial, kept, reply, attempts, .. } in streams {
            let (Some(invocation), Some(reply)) = (kept, reply) else { continue };
            let pending = Pending { serial, invocation, reply, attempts };
            if self.closed {
                moved.push(self.move_on(pending));
            } else {
                self.queue.push_front(pending);
            }
        }
        moved
    }

    /// A start has ended, well or not.
    pub(crate) fn started(&mut self, spare: bool) {
        let count = if spare { &mut self.starting_spares } else { &mut self.starting };
        *count = count.saturating_sub(1);
    }

    /// Has its instances run when nobody else wants the processor, or as everyone does.
    pub(crate) fn put_into_background(&mut self, background: bool) {
        self.background = background;
        for (_, worker) in &mut self.workers {
            worker.lifted_until_ns = 0;
            worker.control.set_background(background);
        }
    }

    /// Nothing runs, starts or waits.
    pub(crate) fn is_quiet(&self) -> bool {
        self.queue.is_empty()
            && self.workers.is_empty()
            && self.starting + self.starting_spares == 0
    }
}

/// What a dead worker leaves behind.
pub(crate) struct DeadWorker {
    pub(crate) instance: u64,
    pub(crate) stop_reason: Option<&'static str>,
    pub(crate) stop_text: String,
    pub(crate) repeat: Vec<Pending>,
    /// With the number of times each had been tried before.
    pub(crate) failed: Vec<(u8, ReplySender)>,
    /// Whether it had answered anything.
    pub(crate) started: bool,
    /// Whether it had been given anything, also if the caller has gone since.
    pub(crate) had_work: bool,
}

/// The fault of invocations that a dead worker held.
pub(crate) fn fault_of_exit(exit: &Exit, memory_bytes: u64) -> Fault {
    if exit.out_of_memory {
        Fault::OutOfMemory { limit_bytes: memory_bytes }
    } else if let Some(signal) = exit.signal {
        Fault::WorkerKilled { signal, attempt: 1 }
    } else {
        Fault::WorkerExited { status: exit.status.unwrap_or(-1), attempt: 1 }
    }
}
