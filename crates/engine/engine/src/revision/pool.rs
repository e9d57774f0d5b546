//! The pool of a revision, as the engine drives it: the engine's data about invocations and
//! instances, and how an invocation is written to an instance.
//!
//! [`mote_pool`] decides which worker runs which invocation, and how many instances there are.
//! Everything that a request touches is behind one short lock per revision: the queue, the open
//! streams of each worker, and the bytes that wait to be written to each worker. No task awaits
//! while it holds the lock. The task that frees a worker also writes the frame of the next
//! invocation, so a waiting caller is woken only once, for its answer.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use mote_core::backend::{Exit, InstanceControl};
use mote_core::body::{Body, BodyError};
use mote_core::chain::Chain;
use mote_core::wire::{self, FLAG_END, FrameKind, INLINE_BODY_BYTES_MAX, WINDOW_BYTES};
use mote_core::{Fault, Invocation, InvocationId, Phases};
use mote_pool::admission::Background;
use mote_pool::autoscale::Bounds;
use mote_pool::{
    self as pool, Call, Dispatched, Gone, Orders, Refusal, Rules, Running, Submitted, Surroundings,
    Waiting, Why,
};
use mote_process::clock::now_ns;
use mote_spec::FunctionSpec;

use crate::entry::offer::{Offer, Origin, Unanswered};
use crate::instance::request_bounds::{CallGuard, Requests};
use crate::ledger::Reservation;
use crate::link::body_channel::AnswerSink;
use crate::link::server_link::ServerLink;
use crate::thread::busy_poll::{Load, Work};
use crate::thread::threads::{ReplySender, Seat, here};

/// When this many bytes wait to be written to a worker, the worker gets no further invocation and
/// no more of a body. A worker may answer without reading, so nothing else limits the bytes that
/// are kept for it. A worker that does read takes this many bytes in a few milliseconds.
pub(crate) const OUT_BYTES_MAX: usize = 1 << 20;
/// Bytes of an answer that a front has taken are credited to the worker in steps of this size. A
/// step is a quarter of the window, which is the most that the protocol allows a receiver to owe.
const CREDIT_STEP_BYTES: u32 = WINDOW_BYTES / 4;
/// The pause between two lines about the same function in the node's own log.
const TELL_PAUSE_NS: u64 = 1_000_000_000;

pub(crate) type Worker = pool::Worker<Stream, Instance>;

/// An invocation that waits for a worker.
pub(crate) struct Pending {
    pub(crate) invocation: Invocation,
    pub(crate) reply: ReplySender,
    /// How often the invocation was already given to a worker that died.
    pub(crate) attempts: u8,
    pub(crate) origin: Origin,
}

impl Waiting for Pending {
    fn received_ns(&self) -> u64 {
        self.invocation.received_ns
    }

    fn deadline_ns(&self) -> u64 {
        self.invocation.deadline_ns
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    fn thread(&self) -> Option<usize> {
        self.reply.thread()
    }
    fn caller(&self) -> Option<&[u8]> {
        pool::caller_of(&self.invocation.head)
    }
}

impl Pending {
    /// Gives the invocation back to its caller's task, which looks up the next revision. Call it
    /// without holding the pool's lock.
    pub(crate) fn move_on(self) {
        let Pending { invocation, reply, attempts, origin } = self;
        let offer = Offer { invocation, attempts, moved: true, origin };
        reply.send(Err(Unanswered::Replaced(Box::new(offer))));
    }

    /// Tells the caller that the invocation failed.
    pub(crate) fn fail(self, fault: Fault) {
        let now_ns = now_ns();
        let received_ns = self.invocation.received_ns;
        let waited_for_start = matches!(fault, Fault::StartFailed { .. });
        let init_ns = if waited_for_start { now_ns.saturating_sub(received_ns) } else { 0 };
        let phases = Phases { received_ns, init_ns, ..Phases::default() };
        self.reply.send(Err(Unanswered::failed(fault, phases, now_ns)));
    }
}

/// One invocation inside a worker.
pub(crate) struct Stream {
    pub(crate) id: InvocationId,
    pub(crate) reply: Option<ReplySender>,
    pub(crate) phases: Phases,
    pub(crate) deadline_ns: u64,
    /// How many BODY bytes may still be sent before the worker gives credit.
    pub(crate) send_credit: u32,
    pub(crate) credit_waker: Option<Waker>,
    /// Whether END must still be sent to the worker.
    pub(crate) request_open: bool,
    /// Whether the RESULT frame has arrived.
    pub(crate) answered: bool,
    /// How many BODY bytes the worker may still send before it gets credit.
    pub(crate) answer_credit: u32,
    /// How many BODY bytes were taken but not credited yet.
    owed: u32,
    /// Where the rest of the answer goes, once the answer has begun and is streamed.
    pub(crate) sink: Option<AnswerSink>,
    /// The invocation, kept until its answer begins so that another worker can run it. `None` if
    /// its body is a stream.
    pub(crate) kept: Option<Invocation>,
    /// Whether the invocation may run once more even if the worker has begun it.
    may_repeat: bool,
    /// How often the invocation was already given to a worker that died.
    attempts: u8,
    origin: Origin,
    /// The functions that called this one.
    pub(crate) chain: Option<Arc<Chain>>,
    /// Guards of the calls that the invocation makes to other functions. The calls end with the
    /// invocation.
    pub(crate) calls: Vec<CallGuard>,
    /// The handle that aborts the task that serves this stream over HTTP.
    pub(crate) task: Option<tokio::task::AbortHandle>,
    _work: Work,
}

impl Running for Stream {
    fn due_ns(&self) -> Option<u64> {
        // Once the head of an answer has been passed on, the deadline is met.
        self.reply.is_some().then_some(self.deadline_ns)
    }

    fn can_be_given_back(&self) -> bool {
        self.kept.is_some()
    }
}

/// How the engine reaches a worker.
pub(crate) enum Link {
    /// By the worker protocol: the bytes to write, and the waker of the task that writes them.
    Frames { out: Vec<u8>, waker: Option<Waker> },
    /// By HTTP connections.
    Server(Arc<ServerLink>),
}

/// The engine's data about a ready instance.
pub(crate) struct Instance {
    pub(crate) link: Link,
    pub(crate) control: Arc<dyn InstanceControl>,
    /// The thread of the data path that serves the instance, and the instance's seat on that
    /// thread.
    thread: Option<usize>,
    _seat: Option<Seat>,
    /// The instance's memory in the node's ledger. It is given back when this is dropped.
    pub(crate) reservation: Reservation,
    pub(crate) shape: String,
    pub(crate) why: Why,
    pub(crate) started_unix_ms: u64,
    pub(crate) init_ns: u64,
    /// The instance's requests for services of the node, and whether it may send any.
    pub(crate) requests: Requests,
    pub(crate) takes_requests: bool,
    load: Arc<Load>,
    /// Whether some stream is owed enough credit for a frame. The frame is created when the socket
    /// can take it.
    owes: bool,
    /// The number of invocations whose frame waits to be written.
    unwritten: usize,
    /// The processor time at the last measurement, and the time of that measurement. They serve to
    /// find greedy functions and starved instances. A lift does not change them.
    pub(crate) burnt_ns: u64,
    pub(crate) looked_ns: u64,
    /// The time until which the instance competes for the processor although its function is in the
    /// background; 0 if the instance does not compete.
    pub(crate) lifted_until_ns: u64,
}

impl Instance {
    /// Puts the instance into the background again.
    pub(crate) fn end_lift(&mut self) {
        self.lifted_until_ns = 0;
        self.control.set_background(true);
    }
}

impl pool::Instance for Instance {
    /// Whether too many bytes wait to be written; see [`OUT_BYTES_MAX`].
    fn is_full(&self) -> bool {
        matches!(&self.link, Link::Frames { out, .. } if out.len() >= OUT_BYTES_MAX)
    }

    fn takes_ahead(&self) -> bool {
        matches!(self.link, Link::Frames { .. })
    }

    fn thread(&self) -> Option<usize> {
        self.thread
    }

    /// The lock is held during a few system calls per process, because code that dispatches an
    /// invocation must see the true state.
    fn set_paused(&mut self, paused: bool) -> bool {
        self.control.set_paused(paused)
    }

    fn leaving(&mut self) {
        self.reservation.leave();
    }

    fn ask_to_exit(&mut self) {
        self.reservation.leave();
        match &self.link {
            Link::Frames { .. } => {
                self.write(|out| wire::put_frame(out, FrameKind::Drain, 0, 0, &[]));
            }
            // If the server still runs after its time to exit, it is killed then.
            Link::Server(link) if link.terminate() => {}
            Link::Server(_) => self.control.kill(),
        }
    }

    fn exit_grace_ns(&self) -> u64 {
        match self.link {
            Link::Frames { .. } => WORKER_EXIT_NS,
            Link::Server(_) => SERVER_EXIT_NS,
        }
    }

    fn kill(&mut self) {
        self.control.kill();
    }
}

/// How long a worker that speaks the worker protocol may take to exit after its last invocation.
const WORKER_EXIT_NS: u64 = 1_000_000_000;
/// How long a server may take to exit after a SIGTERM. It may need time to save its data.
const SERVER_EXIT_NS: u64 = 10_000_000_000;

impl Instance {
    /// Creates an instance that the current thread serves.
    pub(crate) fn new(
        link: Link,
        control: Arc<dyn InstanceControl>,
        reservation: Reservation,
        shape: String,
        why: Why,
        (started_unix_ms, now_ns, init_ns): (u64, u64, u64),
        (seat, load): (Option<Seat>, Arc<Load>),
    ) -> Self {
        Self {
            link,
            control,
            thread: here(),
            _seat: seat,
            reservation,
            shape,
            why,
            started_unix_ms,
            init_ns,
            requests: Requests::new(),
            takes_requests: false,
            load,
            owes: false,
            unwritten: 0,
            burnt_ns: 0,
            looked_ns: now_ns,
            lifted_until_ns: 0,
        }
    }

    /// Adds bytes for the worker, and wakes the task that writes them if it sleeps.
    pub(crate) fn write(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        if let Link::Frames { out, waker } = &mut self.link {
            put(out);
            if let Some(waker) = waker.take() {
                waker.wake();
            }
        }
    }

    /// Notes that the frames of all invocations have been handed to the socket.
    pub(crate) fn has_written(&mut self) {
        self.unwritten = 0;
    }
}

/// The number of invocations that were written to the worker and have not ended.
pub(crate) fn written(worker: &Worker) -> usize {
    worker.calls().len().saturating_sub(worker.instance().unwritten)
}

/// How long the worker will be busy with the invocations that were written to it, in nanoseconds,
/// according to its mean service time.
pub(crate) fn work_ahead_ns(worker: &Worker) -> u64 {
    written(worker) as u64 * worker.mean_ns()
}

/// Wakes the tasks that wait for room in the outgoing bytes.
pub(crate) fn wake_bodies(worker: &mut Worker) {
    for (_, stream) in worker.parts().0.iter_mut() {
        if let Some(waker) = stream.credit_waker.take() {
            waker.wake();
        }
    }
    worker.instance_mut().requests.wake();
}

/// Notes that `bytes` of a stream's answer were taken. When the socket can take it, the credit is
/// sent as one frame per stream, however many pieces were taken by then. So a worker that never
/// reads uses no memory.
pub(crate) fn owe(worker: &mut Worker, slot: usize, bytes: u32) {
    let (streams, instance) = worker.parts();
    let Some(stream) = streams.get_mut(slot) else { return };
    stream.owed = stream.owed.saturating_add(bytes);
    if stream.owed >= CREDIT_STEP_BYTES {
        instance.owes = true;
        if let Link::Frames { waker, .. } = &mut instance.link
            && let Some(waker) = waker.take()
        {
            waker.wake();
        }
    }
}

/// Creates the CREDIT frames that are due. Call it when everything written before has been sent.
pub(crate) fn pay(worker: &mut Worker) {
    let (streams, instance) = worker.parts();
    if !std::mem::take(&mut instance.owes) {
        return;
    }
    let Link::Frames { out, .. } = &mut instance.link else { return };
    for (slot, stream) in streams.iter_mut() {
        if stream.owed >= CREDIT_STEP_BYTES {
            let bytes = std::mem::take(&mut stream.owed);
            stream.answer_credit = stream.answer_credit.saturating_add(bytes);
            let bytes = bytes.to_le_bytes();
            wire::put_frame(out, FrameKind::Credit, 0, stream_number(slot), &bytes);
        }
    }
}

/// Tells the worker that the caller of the stream in `slot` has left.
pub(crate) fn cancel(worker: &mut Worker, slot: usize, now_ns: u64) {
    let Some(stream) = worker.parts().0.get_mut(slot) else { return };
    let gone = Gone::Left { deadline_ns: stream.deadline_ns };
    cancel_as(worker, slot, gone, now_ns);
}

/// Tells the worker that the caller of the stream in `slot` no longer waits.
pub(crate) fn cancel_as(worker: &mut Worker, slot: usize, gone: Gone, now_ns: u64) {
    let Some(stream) = worker.parts().0.get_mut(slot) else { return };
    stream.reply = None;
    stream.sink = None;
    stream.kept = None;
    stream.calls.clear();
    if !worker.note_cancelled(slot, gone, now_ns) {
        return;
    }
    let (streams, instance) = worker.parts();
    let Some(stream) = streams.get_mut(slot) else { return };
    if let Some(task) = stream.task.take() {
        task.abort();
        worker.drop_call(slot, now_ns);
        return;
    }
    let end_request = std::mem::take(&mut stream.request_open);
    instance.write(|out| {
        wire::put_frame(out, FrameKind::Cancel, 0, stream_number(slot), &[]);
        if end_request {
            wire::put_frame(out, FrameKind::Body, FLAG_END, stream_number(slot), &[]);
        }
    });
}

pub(crate) fn end_stream(worker: &mut Worker, slot: usize, now_ns: u64) {
    let Some(mut stream) = worker.end(slot, now_ns) else { return };
    if stream.request_open {
        // The worker answered before it had read the whole request. Our direction is closed so that
        // the stream number can be used again.
        worker.instance_mut().write(|out| {
            wire::put_frame(out, FrameKind::Body, FLAG_END, stream_number(slot), &[]);
        });
    }
    if let Some(waker) = stream.credit_waker.take() {
        waker.wake();
    }
}

/// The remains of an invocation whose worker has died.
pub(crate) enum Left {
    /// The invocation may run once more.
    Repeat { serial: u64, pending: Pending, phases: Phases },
    /// The invocation may not run again. The number says how often it had been tried before.
    Failed(u8, ReplySender, Phases),
    /// Its caller has received only a part of the answer.
    Torn(InvocationId),
    /// No caller waits for it.
    Abandoned,
}

/// Takes apart a stream whose worker has died.
pub(crate) fn leave_behind(call: Call<Stream>) -> Left {
    let serial = call.serial();
    let mut stream = call.into_inner();
    if let Some(waker) = stream.credit_waker.take() {
        waker.wake();
    }
    if let Some(sink) = stream.sink.take() {
        sink.fail(BodyError::WorkerFailed);
        return Left::Torn(stream.id);
    }
    if let Some(task) = stream.task.take() {
        task.abort();
    }
    let attempts = stream.attempts + 1;
    match (stream.reply.take(), stream.kept.take().filter(|_| stream.may_repeat)) {
        (Some(reply), Some(invocation)) => {
            let Stream { origin, phases, .. } = stream;
            let pending = Pending { invocation, reply, attempts, origin };
            Left::Repeat { serial, pending, phases }
        }
        (Some(reply), None) => Left::Failed(stream.attempts, reply, stream.phases),
        (None, _) => Left::Abandoned,
    }
}

/// The stream number of a slot. Numbers on the wire start at 1, because 0 is the connection.
pub(crate) fn stream_number(slot: usize) -> u32 {
    slot as u32 + 1
}

/// The slot of a stream number; `None` for 0.
pub(crate) fn stream_slot(number: u32) -> Option<usize> {
    (number as usize).checked_sub(1)
}

/// Work that a dispatch leaves to be done without the lock.
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

/// The queue and the instances of one revision, and the engine's data about them under the same
/// lock.
pub(crate) struct Pool {
    inner: pool::Pool<Pending, Stream, Instance>,
    /// When the node's own log last reported a death or a failed start, and how many of them it has
    /// left out since then.
    told_ns: u64,
    untold: u32,
    reconciler_runs: bool,
    /// Whether the reconciler sleeps until it is woken, so that new work must wake it.
    pub(crate) reconciler_sleeps: bool,
    /// Why the instances run in the background, if they do.
    background: Option<Background>,
}

impl Deref for Pool {
    type Target = pool::Pool<Pending, Stream, Instance>;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl DerefMut for Pool {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.inner
    }
}

impl Pool {
    pub(crate) fn new(rules: Rules, bounds: Bounds) -> Self {
        Self {
            inner: pool::Pool::new(rules, bounds),
            told_ns: 0,
            untold: 0,
            reconciler_runs: false,
            reconciler_sleeps: false,
            background: None,
        }
    }

    /// Gives an invocation to a worker, puts it into the queue or refuses it, and dispatches.
    pub(crate) fn offer(
        &mut self,
        pending: Pending,
        was_accepted: bool,
        now_ns: u64,
        follow_ups: &mut Vec<FollowUp>,
    ) -> Result<Submitted, (Pending, Refusal)> {
        let begin = |dispatched: Dispatched<'_, _, _>| begin(dispatched, now_ns, follow_ups);
        self.inner.offer(pending, was_accepted, now_ns, begin)
    }

    /// Gives waiting invocations to workers with room.
    pub(crate) fn dispatch(&mut self, now_ns: u64, follow_ups: &mut Vec<FollowUp>) {
        self.inner.dispatch(now_ns, |dispatched| begin(dispatched, now_ns, follow_ups));
    }

    /// Marks the worker as ending, and takes back the invocations that the worker was given after
    /// the first `reached`. Returns the ones that the caller must move on after it has released the
    /// lock.
    pub(crate) fn take_back(&mut self, key: usize, reached: u64, now_ns: u64) -> Vec<Pending> {
        self.inner.take_back(key, reached, now_ns, |stream| {
            let Stream { kept, reply, attempts, origin, .. } = stream;
            Some(Pending { invocation: kept?, reply: reply?, attempts, origin })
        })
    }

    /// Does everything that is due, including dispatching.
    pub(crate) fn look(
        &mut self,
        around: Surroundings,
        now_ns: u64,
        follow_ups: &mut Vec<FollowUp>,
    ) -> Orders {
        self.inner.look(around, now_ns, |dispatched| begin(dispatched, now_ns, follow_ups))
    }

    /// Whether the caller must start the reconciler now. If so, the reconciler counts as running
    /// from then on.
    pub(crate) fn starts_reconciler(&mut self) -> bool {
        !std::mem::replace(&mut self.reconciler_runs, true)
    }

    /// Whether the reconciler may end because nothing is left to do. If so, it counts as ended.
    pub(crate) fn ends_reconciler(&mut self, now_ns: u64) -> bool {
        let is_quiet = self.inner.is_quiet() && !self.inner.keeps_some();
        let ends = is_quiet && !self.inner.expects_call(now_ns);
        self.reconciler_runs &= !ends;
        if is_quiet {
            // An idle function must not keep the memory that it allocated in busy times.
            self.inner.shrink();
        }
        ends
    }

    /// Whether the node's own log should report a death or a failed start now, and how many were
    /// left out since the last report. The limit prevents a function from filling the node's log.
    pub(crate) fn tells(&mut self, now_ns: u64) -> Option<u32> {
        if now_ns.saturating_sub(self.told_ns) < TELL_PAUSE_NS {
            self.untold = self.untold.saturating_add(1);
            return None;
        }
        self.told_ns = now_ns;
        Some(std::mem::take(&mut self.untold))
    }

    /// Why the instances run only when nothing else needs the processor, if they do.
    pub(crate) fn background(&self) -> Option<Background> {
        self.background
    }

    /// Whether an instance competes for the processor although the function is in the background.
    pub(crate) fn has_lifted(&self) -> bool {
        self.inner.workers().any(|(_, worker)| worker.instance().lifted_until_ns != 0)
    }

    /// Makes instances that start from now on run in the background.
    pub(crate) fn start_in_background(&mut self) {
        self.background = Some(Background::Function);
    }

    /// Makes the instances run only when nothing else needs the processor, or with the usual
    /// priority if `background` is `None`.
    pub(crate) fn put_into_background(&mut self, background: Option<Background>) {
        self.background = background;
        for (_, worker) in self.inner.workers_mut() {
            let instance = worker.instance_mut();
            instance.lifted_until_ns = 0;
            instance.control.set_background(background.is_some());
        }
    }
}

/// Writes an invocation to its worker, or leaves the work to be done without the lock.
fn begin(
    dispatched: Dispatched<'_, Pending, Instance>,
    now_ns: u64,
    follow_ups: &mut Vec<FollowUp>,
) -> Stream {
    let Dispatched { instance, worker, slot: stream, serial, waiting, init_ns } = dispatched;
    let Pending { mut invocation, reply, attempts, origin } = waiting;
    let remaining_ms = invocation.deadline_ns.saturating_sub(now_ns) / 1_000_000;
    let mut entry = Stream {
        id: invocation.id,
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
        kept: None,
        may_repeat: attempts == 0 && invocation.is_idempotent(),
        attempts,
        origin,
        chain: invocation.chain.clone(),
        calls: Vec::new(),
        task: None,
        _work: instance.load.begin(),
    };
    if let Link::Server(link) = &instance.link {
        let link = link.clone();
        follow_ups.push(FollowUp::Exchange { worker, stream, serial, link, invocation });
        return entry;
    }
    let inline = match &invocation.body {
        Body::Empty => Some(Bytes::new()),
        Body::Whole(bytes) if bytes.len() <= INLINE_BODY_BYTES_MAX => Some(bytes.clone()),
        _ => None,
    };
    entry.request_open = inline.is_none();
    let body = inline.as_deref().unwrap_or_default();
    instance.write(|out| {
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
    instance.unwritten += 1;
    if inline.is_none() {
        let body = std::mem::take(&mut invocation.body);
        follow_ups.push(FollowUp::Pump { worker, stream, serial, body });
    } else {
        entry.kept = Some(invocation);
    }
    entry
}

/// The fault of the invocations that a dead worker held.
pub(crate) fn fault_of_exit(exit: &Exit, spec: &FunctionSpec) -> Fault {
    if exit.out_of_memory {
        Fault::OutOfMemory { limit_bytes: spec.limits.memory_bytes, platform: spec.compat }
    } else if let Some(signal) = exit.signal {
        Fault::WorkerKilled { signal, attempt: 1 }
    } else {
        Fault::WorkerExited { status: exit.status.unwrap_or(-1), attempt: 1 }
    }
}
