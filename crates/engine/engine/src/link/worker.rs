//! A connection to a worker that speaks the worker protocol. It reads and writes in batches.
//!
//! A single task owns the socket. Each time the task runs, it reads everything available, ends and
//! begins streams while it holds the lock once, and writes all gathered bytes with one call. Code
//! that adds bytes wakes the task.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use mote_core::body::{Body, BodyError};
use mote_core::line_budget::{Line, LineBudget};
use mote_core::turn::Turn;
use mote_core::wire::{
    self, CHUNK_BYTES_MAX, FLAG_END, FrameHeader, FrameKind, HEADER_BYTES, HEADER_FIELDS_MAX,
    ResultHead, WINDOW_BYTES, WireError, WorkerError,
};
use mote_core::{Fault, InvocationId, Reply};
use mote_pool::Instance as _;
use mote_process::quiet_socket::{QuietSocket, Read};
use mote_spec::Runtime;

use crate::entry::offer::Unanswered;
use crate::instance::requests::{self, Admitted};
use crate::instance::worker_log::{InstanceLog, log_dropped, log_frame, tell_dropped, tell_rest};
use crate::link::body_channel::{Taken, answer_channel};
use crate::revision::Revision;
use crate::revision::logs::{LogLevel, LogSource};
use crate::revision::pool::{
    FollowUp, Link, Pending, Pool, cancel, end_stream, owe, pay, stream_number, stream_slot,
    wake_bodies, work_ahead_ns, written,
};
use crate::thread::nearby::Nearby;
use crate::thread::threads::Answers;
use mote_process::clock::now_ns;

const READ_BYTES: usize = 64 << 10;
thread_local! {
    // Nothing stays in the buffer between reads, so all connections of a thread share it.
    static READ: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}
/// If a write buffer has grown beyond this size, it is released when it is empty.
const KEEP_BYTES: usize = 256 << 10;
/// When this many bytes are gathered, they are written without waiting for more.
const GATHER_BYTES: usize = 8 << 10;
/// If a worker has at least this much work, in nanoseconds, gathering more bytes does not delay it.
const GATHER_WORK_NS: u64 = 50_000;
/// How many frames that end an invocation count as one item of a turn. There are never more such
/// frames than waiting callers, and delivering one is less work than its caller then has to do.
const ENDS_PER_ITEM: u32 = 8;
/// The maximum number of lines that are kept from the trace of an ERROR frame.
pub(crate) const TRACE_LINES_MAX: usize = 200;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkEnd {
    /// The worker closed the connection, usually by exiting.
    #[error("worker closed its socket")]
    Closed,
    #[error("worker broke the protocol: {0}")]
    Protocol(#[from] WireError),
    #[error("worker socket failed: {0}")]
    Socket(#[from] std::io::Error),
}

/// The socket and its buffers.
pub(crate) struct Connection {
    socket: QuietSocket<UnixStream>,
    input: BytesMut,
    writing: Vec<u8>,
    written: usize,
    /// How many of the invocations given to the worker are contained in the bytes being written,
    /// and how many may have reached the worker. Both are counted from the first invocation.
    writing_to: u64,
    reached: u64,
    /// The number of bytes that waited to be written at the last check.
    gathered: usize,
    /// Whether `input` may hold whole frames for which the last turn had no room.
    unserved: bool,
    nearby: Option<Nearby>,
    /// Whether the bytes being written wake a worker that has nothing to do.
    wakes: bool,
    lines: LineBudget,
    /// The answers of a batch. The list is empty between batches and is kept for its capacity.
    answers: Answers,
}

impl Connection {
    /// Uses a nonblocking socket. Call this in the runtime of the thread that will serve it.
    pub(crate) fn new(socket: UnixStream) -> io::Result<Self> {
        Ok(Self {
            socket: QuietSocket::new(socket)?,
            input: BytesMut::new(),
            writing: Vec::new(),
            written: 0,
            writing_to: 0,
            reached: 0,
            gathered: 0,
            unserved: false,
            nearby: None,
            wakes: false,
            lines: LineBudget::default(),
            answers: Vec::new(),
        })
    }

    /// Adds what has arrived to `input`, and returns how many bytes this was: 0 at the end.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Self { socket, input, .. } = self;
        READ.with_borrow_mut(|buffer| {
            socket.poll_read(cx, |mut socket| {
                let count = socket.read(buffer)?;
                input.extend_from_slice(&buffer[..count]);
                Ok(Read { result: count, emptied: count < READ_BYTES })
            })
        })
    }

    /// Reads the next frame, during the handshake only. Lets other tasks run when `turn` is over.
    pub(crate) async fn read_frame(
        &mut self,
        turn: &mut Turn,
    ) -> Result<(FrameHeader, Bytes), LinkEnd> {
        loop {
            if let Some((header, payload)) = wire::split_worker_frame(&mut self.input)? {
                turn.charge(1, HEADER_BYTES + payload.len());
                if turn.is_over() {
                    *turn = Turn::new();
                    tokio::task::yield_now().await;
                }
                // Frames after the handshake may already be in the buffer.
                self.unserved = true;
                return Ok((header, payload));
            }
            if poll_fn(|cx| self.poll_read(cx)).await? == 0 {
                return Err(LinkEnd::Closed);
            }
        }
    }

    /// Writes all bytes, during the handshake only.
    pub(crate) async fn write_all(&mut self, bytes: &[u8]) -> Result<(), LinkEnd> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let write = |mut socket: &UnixStream| socket.write(rest);
            let count = poll_fn(|cx| self.socket.poll_write(cx, write)).await?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Keeps the line of a LOG frame if there is room for it, during the handshake only.
    pub(crate) fn log(&mut self, log: InstanceLog<'_>, payload: &[u8]) {
        if tell_dropped(&mut self.lines, payload.len(), now_ns(), log) {
            log_frame(log, InvocationId(0), payload);
        }
    }

    /// Serves the worker until the connection ends. Returns why the connection ended, and how many
    /// of the invocations given to the worker may have reached it.
    pub(crate) async fn run(
        mut self,
        revision: &Arc<Revision>,
        key: usize,
        instance: u64,
    ) -> (LinkEnd, u64) {
        // In programs of other languages, another thread than the first one reads the invocations.
        let is_interpreted = matches!(
            revision.spec.answered_by(),
            Runtime::Python | Runtime::Node | Runtime::Bun | Runtime::Deno
        );
        let control =
            revision.pool.lock().worker_mut(key).map(|worker| worker.instance().control.clone());
        self.nearby = control.filter(|_| is_interpreted).and_then(|control| Nearby::new(&*control));
        let end = std::future::poll_fn(|cx| self.poll(cx, revision, key)).await;
        tell_rest(&self.lines, revision.log_of(instance));
        (end, self.reached)
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        revision: &Arc<Revision>,
        key: usize,
    ) -> Poll<LinkEnd> {
        if let Poll::Ready(end) = self.poll_input(cx, revision, key) {
            return Poll::Ready(end);
        }
        self.poll_output(cx, revision, key)
    }

    /// Reads until the socket is empty, and serves every complete frame. After a turn's worth of
    /// frames, the other tasks of the data path run first.
    fn poll_input(
        &mut self,
        cx: &mut Context<'_>,
        revision: &Arc<Revision>,
        key: usize,
    ) -> Poll<LinkEnd> {
        let mut turn = Turn::new();
        loop {
            if !self.unserved {
                match self.poll_read(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(error)) => return Poll::Ready(error.into()),
                    Poll::Ready(Ok(0)) => return Poll::Ready(LinkEnd::Closed),
                    Poll::Ready(Ok(_)) => {}
                }
            }
            let mut batch = Batch::new(revision, key, &mut self.answers, &mut self.lines);
            let served = loop {
                match wire::split_worker_frame(&mut self.input) {
                    Ok(Some((header, payload))) => {
                        turn.charge(0, HEADER_BYTES + payload.len());
                        match batch.frame(header, payload) {
                            Ok(items) => turn.charge(items, 0),
                            Err(error) => break Err(error),
                        }
                    }
                    Ok(None) => {
                        self.unserved = false;
                        break Ok(());
                    }
                    Err(error) => break Err(error),
                }
                if turn.is_over() {
                    self.unserved = true;
                    break Ok(());
                }
            };
            turn.charge(batch.ended / ENDS_PER_ITEM, 0);
            batch.finish();
            if let Err(error) = served {
                return Poll::Ready(error.into());
            }
            if turn.is_over() {
                // The future never resolves at its first poll. The runtime wakes this task after
                // the other tasks have run.
                let _ = pin!(tokio::task::yield_now()).poll(cx);
                return Poll::Pending;
            }
        }
    }

    /// Writes the gathered bytes. After all of them are written, code that adds more bytes wakes
    /// this task.
    fn poll_output(
        &mut self,
        cx: &mut Context<'_>,
        revision: &Arc<Revision>,
        key: usize,
    ) -> Poll<LinkEnd> {
        loop {
            if self.written == self.writing.len() {
                self.written = 0;
                self.writing.clear();
                if self.writing.capacity() > KEEP_BYTES {
                    self.writing = Vec::new();
                }
                let mut pool = revision.pool.lock();
                let Some(worker) = pool.worker_mut(key) else {
                    return Poll::Ready(LinkEnd::Closed);
                };
                pay(worker);
                let has_work = work_ahead_ns(worker) >= GATHER_WORK_NS;
                let given = worker.given();
                let was_idle = written(worker) == 0;
                let instance = worker.instance_mut();
                let was_full = instance.is_full();
                let Link::Frames { out, waker } = &mut instance.link else {
                    return Poll::Ready(LinkEnd::Closed);
                };
                if out.is_empty() {
                    *waker = Some(cx.waker().clone());
                    self.gathered = 0;
                    return Poll::Pending;
                }
                // Check once more for requests that have already arrived, because a write that
                // wakes the worker costs as much as serving a request. While the worker has work,
                // the check is repeated until it finds nothing new. An idle worker must not wait
                // for more than one check.
                let grows = out.len() > self.gathered && out.len() < GATHER_BYTES;
                if grows && (self.gathered == 0 || has_work) {
                    self.gathered = out.len();
                    drop(pool);
                    // The future never resolves at its first poll. The runtime wakes this task
                    // after it has checked for events.
                    let _ = pin!(tokio::task::yield_now()).poll(cx);
                    return Poll::Pending;
                }
                self.gathered = 0;
                std::mem::swap(out, &mut self.writing);
                self.wakes = was_idle;
                instance.has_written();
                self.writing_to = given;
                if was_full {
                    wake_bodies(worker);
                    let mut follow_ups = Vec::new();
                    pool.dispatch(now_ns(), &mut follow_ups);
                    drop(pool);
                    revision.follow_up(follow_ups);
                }
            }
            let rest = &self.writing[self.written..];
            let mut write = || self.socket.poll_write(cx, |mut socket| socket.write(rest));
            let alone = std::mem::take(&mut self.wakes) && revision.shared.busy_poll.is_alone();
            let nearby = self.nearby.as_ref().filter(|_| alone);
            let woken = nearby.map(|nearby| nearby.wake(&mut write));
            let wrote = match woken {
                Some(Some(wrote)) => wrote,
                Some(None) => {
                    let wrote = write();
                    self.nearby = None;
                    wrote
                }
                None => write(),
            };
            match wrote {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(bytes)) => {
                    self.written += bytes;
                    self.reached = self.writing_to;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(error.into()),
            }
        }
    }
}

/// The frames of one read. They are served while the lock is held once, and answers are delivered
/// afterwards.
struct Batch<'a> {
    revision: &'a Arc<Revision>,
    key: usize,
    pool: parking_lot::MutexGuard<'a, Pool>,
    now_ns: u64,
    answers: &'a mut Answers,
    lines: &'a mut LineBudget,
    logs: Vec<(InvocationId, Logged)>,
    errors: Vec<(InvocationId, String)>,
    /// Requests for services of the node.
    requests: Vec<Admitted>,
    /// The number of invocations that ended in this batch.
    ended: u32,
    /// Invocations that must move on to the next revision.
    moved: Vec<Pending>,
}

/// An entry that a batch adds to the log.
enum Logged {
    /// The payload of a LOG frame.
    Frame(Bytes),
    /// The number of lines that were dropped; 0 means that dropping begins.
    Dropped(u64),
}

impl<'a> Batch<'a> {
    fn new(
        revision: &'a Arc<Revision>,
        key: usize,
        answers: &'a mut Answers,
        lines: &'a mut LineBudget,
    ) -> Self {
        Self {
            revision,
            key,
            pool: revision.pool.lock(),
            now_ns: now_ns(),
            answers,
            lines,
            logs: Vec::new(),
            errors: Vec::new(),
            requests: Vec::new(),
            ended: 0,
            moved: Vec::new(),
        }
    }

    fn log(&mut self, id: InvocationId, payload: Bytes) {
        match self.lines.admit(payload.len(), self.now_ns) {
            Line::Dropped => return,
            Line::FirstDropped => return self.logs.push((id, Logged::Dropped(0))),
            Line::KeptAfter(dropped) => self.logs.push((id, Logged::Dropped(dropped))),
            Line::Kept => {}
        }
        self.logs.push((id, Logged::Frame(payload)));
    }

    /// Serves one frame. Returns how many items of a turn the frame used.
    fn frame(&mut self, header: FrameHeader, payload: Bytes) -> Result<u32, WireError> {
        let Some(worker) = self.pool.worker_mut(self.key) else { return Ok(1) };
        worker.note_message();
        let slot = stream_slot(header.stream);
        if header.kind == FrameKind::Log {
            // Log lines may arrive after their invocation has ended.
            let stream = slot.and_then(|slot| worker.calls().get(slot));
            let id = stream.map_or(InvocationId(0), |stream| stream.id);
            self.log(id, payload);
            return Ok(1);
        }
        if header.kind == FrameKind::Error && header.stream == 0 {
            worker_error(&payload)?;
            // The worker is ending. The only invocations that it has begun are those that it has
            // ended or partly answered.
            self.moved.append(&mut self.pool.take_back(self.key, 0, self.now_ns));
            return Ok(1);
        }
        let Some(slot) = slot else {
            if header.kind == FrameKind::Request {
                return self.request(0, None, payload);
            }
            return Err(WireError::Malformed(header.kind, "not allowed on stream 0"));
        };
        let Some(stream) = worker.parts().0.get_mut(slot) else {
            return match header.kind {
                // These frames were sent before the worker knew that the stream had ended.
                FrameKind::Body | FrameKind::Credit => Ok(1),
                // The same is true of this frame. Its request runs outside the invocation.
                FrameKind::Request => self.request(header.stream, None, payload),
                kind => Err(WireError::Malformed(kind, "no such stream")),
            };
        };
        let mut items = 1;
        match header.kind {
            FrameKind::Result => {
                let result = ResultHead::parse(payload)?;
                if std::mem::replace(&mut stream.answered, true) {
                    return Err(WireError::Malformed(FrameKind::Result, "answered twice"));
                }
                stream.phases.claim(result.entered_ns, result.returned_ns, self.now_ns);
                stream.phases.answered_ns = self.now_ns;
                let phases = stream.phases;
                let reply = stream.reply.take();
                let id_slot = (slot, stream.serial());
                let too_many = has_too_many_fields(&result.headers);
                let body = if header.is_end() {
                    worker.record_run(phases.run_ns());
                    end_stream(worker, slot, self.now_ns);
                    (items, self.ended) = (0, self.ended + 1);
                    Body::whole(result.body)
                } else {
                    stream.kept = None;
                    if reply.is_none() || too_many {
                        // No caller reads the answer, so there is no channel. BODY frames are
                        // credited and dropped.
                        Body::Empty
                    } else {
                        let on_taken = on_taken(self.revision.clone(), self.key, id_slot);
                        let (sink, source) = answer_channel(result.body, on_taken);
                        stream.sink = Some(sink);
                        Body::Stream { source: Box::new(source), length: None }
                    }
                };
                if let Some(sender) = reply {
                    let answer = if too_many {
                        let message = format!("more than {HEADER_FIELDS_MAX} header fields");
                        let fault = Fault::BadReply { message };
                        Err(Unanswered::failed(fault, phases, self.now_ns))
                    } else {
                        let status = result.status;
                        let headers = result.headers;
                        Ok(Reply { status, headers, body, phases })
                    };
                    self.answers.push((sender, answer));
                }
            }
            FrameKind::Body => {
                if !stream.answered {
                    return Err(WireError::Malformed(FrameKind::Body, "before RESULT"));
                }
                let taken = payload.len() as u32;
                let Some(left) = stream.answer_credit.checked_sub(taken) else {
                    return Err(WireError::Malformed(FrameKind::Body, "beyond its window"));
                };
                stream.answer_credit = left;
                match &stream.sink {
                    Some(sink) => sink.push(payload, header.is_end()),
                    // No caller reads the answer. The credit is returned so that the worker can
                    // finish.
                    None if taken > 0 && !header.is_end() => owe(worker, slot, taken),
                    None => {}
                }
                if header.is_end() {
                    end_stream(worker, slot, self.now_ns);
                    self.ended += 1;
                }
            }
            FrameKind::Error => {
                let error = worker_error(&payload)?;
                let id = stream.id;
                let mut text = format!("{}: {}", error.kind, error.message);
                if let Some(sink) = stream.sink.take() {
                    sink.fail(BodyError::WorkerFailed);
                    let trace = if error.trace.is_empty() { &text } else { &error.trace };
                    self.errors.push((id, format!("its answer had begun; {trace}")));
                }
                if let Some(sender) = stream.reply.take() {
                    let fault = if error.kind == "BadReply" {
                        Fault::BadReply { message: text.clone() }
                    } else {
                        Fault::HandlerError { message: text.clone() }
                    };
                    let failed = Unanswered::failed(fault, stream.phases, self.now_ns);
                    self.answers.push((sender, Err(failed)));
                    if !error.trace.is_empty() {
                        text = error.trace;
                    }
                    self.errors.push((id, text));
                }
                end_stream(worker, slot, self.now_ns);
                self.ended += 1;
            }
            FrameKind::Credit => {
                let bytes = payload
                    .first_chunk::<4>()
                    .map(|bytes| u32::from_le_bytes(*bytes))
                    .ok_or(WireError::Malformed(FrameKind::Credit, "too short"))?;
                stream.send_credit = stream.send_credit.saturating_add(bytes).min(WINDOW_BYTES);
                if let Some(waker) = stream.credit_waker.take() {
                    waker.wake();
                }
            }
            FrameKind::Request => return self.request(header.stream, Some(slot), payload),
            kind => return Err(WireError::Malformed(kind, "a worker may not send this frame")),
        }
        Ok(items)
    }

    /// Admits a request for a service of the node. The request begins after the batch.
    #[cold]
    #[inline(never)]
    fn request(
        &mut self,
        number: u32,
        slot: Option<usize>,
        payload: Bytes,
    ) -> Result<u32, WireError> {
        let Some(worker) = self.pool.worker_mut(self.key) else { return Ok(1) };
        let from = (self.key, worker.number());
        let (streams, instance) = worker.parts();
        let stream = slot.and_then(|slot| streams.get_mut(slot)).map(|call| &mut **call);
        let of = (number, stream);
        let request =
            requests::admit(self.revision.timeout_ms(), from, instance, of, payload, self.now_ns)?;
        self.requests.push(request);
        Ok(1)
    }

    /// Gives the next invocations to workers that have become free, then delivers log lines and
    /// answers.
    fn finish(self) {
        let Batch {
            revision,
            key,
            mut pool,
            now_ns,
            answers,
            logs,
            errors,
            requests,
            lines,
            moved,
            ..
        } = self;
        if !answers.is_empty() {
            pool.answered();
        }
        let mut follow_ups: Vec<FollowUp> = Vec::new();
        pool.dispatch(now_ns, &mut follow_ups);
        let worker = pool.worker(key);
        let idle = worker.is_some_and(|worker| worker.calls().is_empty());
        let ending = worker.is_some_and(|worker| worker.is_ending());
        let instance = worker.map_or(0, |worker| worker.number());
        let closing = pool.is_closed();
        drop(pool);
        if ending || (idle && closing) {
            revision.changed.notify_one();
        }
        let log = revision.log_of(instance);
        for (id, logged) in logs {
            match logged {
                Logged::Frame(payload) => log_frame(log, id, &payload),
                Logged::Dropped(count) => log_dropped(log, count),
            }
        }
        for (id, text) in errors {
            for line in text.lines().take(TRACE_LINES_MAX) {
                if !tell_dropped(lines, line.len(), now_ns, log) {
                    continue;
                }
                revision.log.push(
                    LogLevel::Error,
                    LogSource::Platform,
                    revision.number,
                    instance,
                    Some(id),
                    line,
                );
            }
            if let Some(hint) = crate::egress_doors::hint(&revision.spec, &text) {
                let level = LogLevel::Warn;
                let source = LogSource::Platform;
                revision.log.push(level, source, revision.number, instance, Some(id), hint);
            }
        }
        // Answers are delivered after log lines, so that a caller that has its answer finds the
        // lines in the log.
        revision.shared.threads.pass_on(answers);
        for pending in moved {
            pending.move_on();
        }
        if !requests.is_empty() {
            requests::begin(revision, requests);
        }
        revision.follow_up(follow_ups);
    }
}

/// The content of an ERROR frame.
fn worker_error(payload: &[u8]) -> Result<WorkerError, WireError> {
    serde_json::from_slice(payload)
        .map(WorkerError::clamped)
        .map_err(|_| WireError::Malformed(FrameKind::Error, "not the expected JSON"))
}

/// The function that is called when a front takes bytes from a streamed answer or abandons it.
fn on_taken(
    revision: Arc<Revision>,
    key: usize,
    (slot, serial): (usize, u64),
) -> Box<dyn Fn(Taken) + Send + Sync> {
    Box::new(move |taken| {
        let mut pool = revision.pool.lock();
        let Some(worker) = pool.worker_mut(key) else { return };
        if worker.parts().0.get_mut_if(slot, serial).is_none() {
            return;
        }
        match taken {
            Taken::Bytes(bytes) => owe(worker, slot, bytes),
            Taken::Dropped => cancel(worker, slot, now_ns()),
        }
    })
}

/// Sends the rest of a request body as fast as the worker gives credit.
pub(crate) async fn pump(
    revision: Arc<Revision>,
    key: usize,
    slot: usize,
    serial: u64,
    mut body: Body,
) {
    loop {
        let chunk = match body.chunk().await {
            None => Bytes::new(),
            Some(Ok(chunk)) => chunk,
            Some(Err(error)) => {
                let fault = Fault::of_body(&error);
                let mut pool = revision.pool.lock();
                let Some(worker) = pool.worker_mut(key) else { return };
                let Some(stream) = worker.parts().0.get_mut_if(slot, serial) else { return };
                let phases = stream.phases;
                let reply = stream.reply.take();
                cancel(worker, slot, now_ns());
                drop(pool);
                if let Some(reply) = reply {
                    reply.send(Err(Unanswered::failed(fault, phases, now_ns())));
                }
                return;
            }
        };
        let end = chunk.is_empty();
        let mut rest = chunk;
        loop {
            let piece = rest.split_to(rest.len().min(CHUNK_BYTES_MAX));
            let open = std::future::poll_fn(|cx| {
                let mut pool = revision.pool.lock();
                let Some(worker) = pool.worker_mut(key) else { return Poll::Ready(false) };
                let (streams, instance) = worker.parts();
                let Some(stream) = streams.get_mut_if(slot, serial) else {
                    return Poll::Ready(false);
                };
                if !stream.request_open {
                    return Poll::Ready(false);
                }
                if instance.is_full() || (stream.send_credit as usize) < piece.len() {
                    stream.credit_waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                stream.send_credit -= piece.len() as u32;
                stream.request_open = !end;
                instance.write(|out| {
                    let flags = if end { FLAG_END } else { 0 };
                    wire::put_frame(out, FrameKind::Body, flags, stream_number(slot), &piece);
                });
                Poll::Ready(true)
            })
            .await;
            if !open || end {
                return;
            }
            if rest.is_empty() {
                break;
            }
        }
    }
}

/// Whether a header block has more fields than any answer needs. A field takes at least two bytes,
/// so short blocks need not be examined.
fn has_too_many_fields(block: &[u8]) -> bool {
    block.len() > 2 * HEADER_FIELDS_MAX
        && block.iter().filter(|byte| **byte == b'\n').count() > 2 * HEADER_FIELDS_MAX
}
