//! One connection to another cell: its streams, the bytes that wait to be written, and the task
//! that reads and writes.
//!
//! One lock, held only briefly, protects everything. Code that has a frame to send appends it to
//! the outgoing bytes and wakes the task, which writes all of them at once. The sender of a body
//! waits for credit of its stream and for room in the outgoing bytes, so each connection holds a
//! bounded number of bytes.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use mote_core::Fault;
use mote_core::body::{Body, BodyError, BodySource};
use mote_core::chunks::Chunks;
use mote_core::turn::Turn;
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use crate::frames::{
    self, Answer, CHUNK_BYTES_MAX, Frame, Kind, Malformed, Refused, WINDOW_BYTES, put,
};

/// The most invocations on one connection at once.
pub(crate) const STREAMS_MAX: usize = 1_024;
/// While this many bytes wait to be written, no body and no new invocation is added.
const OUT_BYTES_MAX: usize = 1 << 20;
/// Longest trailers that are sent. Longer trailers are left out.
const TRAILERS_BYTES_MAX: usize = 64 << 10;
const READ_BYTES: usize = 32 << 10;
/// After this much silence, a connection with invocations on it is pinged.
const SILENCE: Duration = Duration::from_millis(500);
/// After this long without an answer to the ping, the connection is lost.
const PATIENCE: Duration = Duration::from_millis(1_000);

/// Why a connection has ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum End {
    #[error("it closed the connection")]
    Closed,
    #[error("it was silent for {} ms", (SILENCE + PATIENCE).as_millis())]
    Silent,
    #[error("{0}")]
    Io(String),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("it is no longer in the list of cells")]
    Unlisted,
}

/// A first message from the other cell about a sent invocation.
pub(crate) enum News {
    Answer(Answer),
    Fault(Fault),
    Refused(Refused),
    /// The other cell has begun to read the body.
    ReadsBody,
    /// The connection has ended. `unsent` means that no part of the invocation has left this cell.
    Lost {
        unsent: bool,
    },
}

#[derive(Default)]
struct Stream {
    /// The incoming body.
    chunks: Chunks,
    ended: bool,
    failed: Option<BodyError>,
    trailers: Bytes,
    /// For the incoming body: how many bytes the other cell may still send, and how many bytes were
    /// consumed here without CREDIT so far.
    window: u32,
    owed: u32,
    reader: Option<Waker>,
    /// For the outgoing body: how many bytes may still be sent.
    credit: u32,
    /// The other cell no longer reads the outgoing body.
    stopped: bool,
    writer: Option<Waker>,
    /// First messages about the invocation, for the cell that sent it.
    news: VecDeque<News>,
    caller: Option<Waker>,
    /// The other cell has given credit, so it reads the body.
    reads_body: bool,
    /// The position of the INVOKE in the whole byte stream of the connection.
    begins_at: u64,
    /// At the cell that received the invocation: the task that runs it.
    task: Option<tokio::task::AbortHandle>,
}

impl Stream {
    fn wake(&mut self) {
        let wakers = [self.reader.take(), self.writer.take(), self.caller.take()];
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

#[derive(Default)]
struct State {
    out: Vec<u8>,
    /// How many bytes were put into `out` so far, and how many of them were handed to the socket.
    queued: u64,
    written: u64,
    /// The task that reads and writes.
    driver: Option<Waker>,
    /// Tasks that wait for room in `out`.
    blocked: Vec<Waker>,
    streams: HashMap<u32, Stream>,
    next: u32,
    /// The time since which there has always been at least one stream.
    busy_since: Option<Instant>,
    /// No new stream may begin. The connection ends with its last stream.
    closing: bool,
    /// The task that waits until the connection is empty.
    quiet: Option<Waker>,
    end: Option<End>,
}

impl State {
    fn put(&mut self, kind: Kind, end: bool, stream: u32, fill: impl FnOnce(&mut Vec<u8>)) {
        let before = self.out.len();
        put(&mut self.out, kind, end, stream, fill);
        self.added(before);
    }

    fn added(&mut self, before: usize) {
        self.queued += (self.out.len() - before) as u64;
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    fn insert(&mut self, id: u32, stream: Stream) {
        if self.streams.is_empty() {
            self.busy_since = Some(Instant::now());
        }
        self.streams.insert(id, stream);
    }

    fn remove(&mut self, id: u32) {
        let removed = self.streams.remove(&id);
        if self.streams.is_empty() {
            if let Some(quiet) = self.quiet.take() {
                quiet.wake();
            }
            self.busy_since = None;
            self.streams.shrink_to(16);
            if self.closing
                && let Some(driver) = self.driver.take()
            {
                driver.wake();
            }
        }
        if let Some(mut stream) = removed {
            stream.wake();
        }
    }
}

/// The shared state of a connection. The module's documentation explains the locking.
#[derive(Default)]
pub(crate) struct Link(Mutex<State>);

impl Link {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Appends a frame that belongs to no body to the outgoing bytes.
    pub(crate) fn put(&self, kind: Kind, end: bool, stream: u32, fill: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.lock();
        if state.end.is_none() {
            state.put(kind, end, stream, fill);
        }
    }

    /// Appends a LOAD to the outgoing bytes unless they are full. A skipped LOAD does no harm,
    /// because each LOAD replaces the earlier ones.
    pub(crate) fn put_load(&self, payload: &[u8]) {
        let mut state = self.lock();
        if state.end.is_none() && state.out.len() < OUT_BYTES_MAX {
            state.put(Kind::Load, false, 0, |out| out.extend_from_slice(payload));
        }
    }

    /// The number of invocations on the connection.
    pub(crate) fn in_flight(&self) -> usize {
        self.lock().streams.len()
    }

    /// Makes the connection end as soon as no invocation is left on it.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closing = true;
        if let Some(driver) = state.driver.take() {
            driver.wake();
        }
    }

    /// Ends the connection and everything on it.
    pub(crate) fn end(&self, end: End) {
        let streams = {
            let mut state = self.lock();
            state.end.get_or_insert(end);
            if let Some(driver) = state.driver.take() {
                driver.wake();
            }
            state.out = Vec::new();
            if let Some(quiet) = state.quiet.take() {
                quiet.wake();
            }
            state.blocked.drain(..).for_each(Waker::wake);
            let written = state.written;
            for stream in state.streams.values_mut() {
                let unsent = written <= stream.begins_at;
                stream.news.push_back(News::Lost { unsent });
                if !stream.ended {
                    stream.failed = Some(BodyError::WorkerFailed);
                }
                stream.stopped = true;
                stream.wake();
            }
            let running = state.streams.values_mut().filter_map(|stream| stream.task.take());
            running.collect::<Vec<_>>()
        };
        streams.into_iter().for_each(|task| task.abort());
    }

    // For the cell that sends an invocation.

    /// Sends an INVOKE, if the connection has room for one. Returns the number of the stream.
    pub(crate) fn invoke(&self, invoke: impl FnOnce(&mut Vec<u8>, u32)) -> Option<u32> {
        let mut state = self.lock();
        let full = state.streams.len() >= STREAMS_MAX || state.out.len() >= OUT_BYTES_MAX;
        if state.end.is_some() || state.closing || full {
            return None;
        }
        loop {
            state.next = state.next.wrapping_add(1);
            if state.next != 0 && !state.streams.contains_key(&state.next) {
                break;
            }
        }
        let id = state.next;
        let begins_at = state.queued;
        let before = state.out.len();
        let stream = Stream { window: WINDOW_BYTES, begins_at, ..Stream::default() };
        state.insert(id, stream);
        invoke(&mut state.out, id);
        state.added(before);
        Some(id)
    }

    /// Waits for the next message about an invocation.
    pub(crate) async fn news(&self, id: u32) -> News {
        poll_fn(|cx| {
            let mut state = self.lock();
            let Some(stream) = state.streams.get_mut(&id) else {
                return Poll::Ready(News::Lost { unsent: false });
            };
            if let Some(news) = stream.news.pop_front() {
                return Poll::Ready(news);
            }
            stream.caller = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Forgets a stream. With `cancel`, tells the other cell to stop its work for the stream.
    pub(crate) fn forget(&self, id: u32, cancel: bool) {
        let mut state = self.lock();
        if state.streams.contains_key(&id) {
            state.remove(id);
            if cancel && state.end.is_none() {
                state.put(Kind::Cancel, true, id, |_| {});
            }
        }
    }

    // For the cell that receives an invocation.

    /// Opens a stream for an invocation that has arrived. Returns `false` if there are too many
    /// streams.
    pub(crate) fn accept(&self, id: u32) -> Result<bool, Malformed> {
        let mut state = self.lock();
        if id == 0 || state.streams.contains_key(&id) {
            return Err(Malformed("a stream that is in use"));
        }
        if state.streams.len() >= STREAMS_MAX || state.closing {
            return Ok(false);
        }
        let stream = Stream { credit: WINDOW_BYTES, ..Stream::default() };
        state.insert(id, stream);
        Ok(true)
    }

    /// Sets the task that runs the invocation. The task is aborted when the caller no longer waits.
    pub(crate) fn runs(&self, id: u32, task: tokio::task::AbortHandle) {
        if let Some(stream) = self.lock().streams.get_mut(&id) {
            stream.task = Some(task);
        }
    }

    /// Waits until there is room in the outgoing bytes.
    pub(crate) async fn room(&self) {
        poll_fn(|cx| {
            let mut state = self.lock();
            if state.end.is_some() || state.out.len() < OUT_BYTES_MAX {
                return Poll::Ready(());
            }
            state.blocked.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Appends the frame that begins an answer to the outgoing bytes.
    pub(crate) fn answer(&self, fill: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.lock();
        if state.end.is_none() {
            let before = state.out.len();
            fill(&mut state.out);
            state.added(before);
        }
    }

    /// Waits until nothing is on the connection, or the connection has ended.
    pub(crate) async fn empty(&self) {
        poll_fn(|cx| {
            let mut state = self.lock();
            if state.end.is_some() || (state.streams.is_empty() && state.out.is_empty()) {
                return Poll::Ready(());
            }
            state.quiet = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    // For both cells.

    /// Handles a frame that means the same at both cells. Returns any other frame to the caller.
    pub(crate) fn receive(&self, frame: Frame) -> Result<Option<Frame>, Malformed> {
        let mut state = self.lock();
        match frame.kind {
            Kind::Ping => state.put(Kind::Pong, false, 0, |_| {}),
            Kind::Pong => {}
            Kind::Body | Kind::Trailers | Kind::Failed => {
                // An unknown stream is one that this cell has already given up.
                let Some(stream) = state.streams.get_mut(&frame.stream) else { return Ok(None) };
                stream.body_arrives(frame)?;
            }
            Kind::Credit => {
                let bytes = frames::read_credit(&frame.payload)?;
                let Some(stream) = state.streams.get_mut(&frame.stream) else { return Ok(None) };
                stream.credit = stream.credit.saturating_add(bytes).min(WINDOW_BYTES);
                if !std::mem::replace(&mut stream.reads_body, true) {
                    stream.news.push_back(News::ReadsBody);
                }
                stream.wake();
            }
            Kind::Stop => {
                if let Some(stream) = state.streams.get_mut(&frame.stream) {
                    stream.stopped = true;
                    stream.wake();
                }
            }
            Kind::Cancel => {
                let task = state.streams.get_mut(&frame.stream).and_then(|s| s.task.take());
                state.remove(frame.stream);
                drop(state);
                if let Some(task) = task {
                    task.abort();
                }
            }
            _ => {
                drop(state);
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    /// Hands a first message about an invocation to its caller.
    pub(crate) fn tell(&self, id: u32, news: News, has_ended: bool) {
        if let Some(stream) = self.lock().streams.get_mut(&id) {
            stream.ended |= has_ended;
            stream.news.push_back(news);
            stream.wake();
        }
    }

    /// Waits until the other cell reads the body of a stream. Returns `false` if it never will.
    async fn is_read(&self, id: u32) -> bool {
        poll_fn(|cx| {
            let mut state = self.lock();
            match state.streams.get_mut(&id) {
                Some(stream) if stream.stopped => Poll::Ready(false),
                Some(stream) if stream.credit > 0 => Poll::Ready(true),
                Some(stream) => {
                    stream.writer = Some(cx.waker().clone());
                    Poll::Pending
                }
                None => Poll::Ready(false),
            }
        })
        .await
    }

    /// Sends a body that does not fit into the first frame, at the pace at which the other cell
    /// reads it.
    pub(crate) async fn pump(&self, id: u32, mut body: Body) {
        if !self.is_read(id).await {
            return;
        }
        loop {
            let chunk = poll_fn(|cx| {
                {
                    let mut state = self.lock();
                    match state.streams.get_mut(&id) {
                        Some(stream) if !stream.stopped => {
                            stream.writer = Some(cx.waker().clone());
                        }
                        _ => return Poll::Ready(None),
                    }
                }
                body.poll_chunk(cx).map(Some)
            });
            match chunk.await {
                None => return,
                Some(None) => {
                    let mut trailers = body.take_trailers();
                    if trailers.len() > TRAILERS_BYTES_MAX {
                        trailers = Bytes::new();
                    }
                    let put_end = |out: &mut Vec<u8>| out.extend_from_slice(&trailers);
                    return self.put(Kind::Trailers, true, id, put_end);
                }
                Some(Some(Err(error))) => {
                    let number = frames::body_error_number(&error);
                    return self.put(Kind::Failed, true, id, |out| out.push(number));
                }
                Some(Some(Ok(chunk))) => {
                    if !self.send(id, chunk).await {
                        return;
                    }
                }
            }
        }
    }

    /// Sends one chunk. Returns `false` if the body is no longer read.
    async fn send(&self, id: u32, mut chunk: Bytes) -> bool {
        while !chunk.is_empty() {
            let sent = poll_fn(|cx| {
                let mut state = self.lock();
                let is_full = state.out.len() >= OUT_BYTES_MAX;
                let stream = match state.streams.get_mut(&id) {
                    Some(stream) if !stream.stopped => stream,
                    _ => return Poll::Ready(false),
                };
                if stream.credit == 0 || is_full {
                    stream.writer = Some(cx.waker().clone());
                    if is_full {
                        state.blocked.push(cx.waker().clone());
                    }
                    return Poll::Pending;
                }
                let bytes = chunk.len().min(stream.credit as usize).min(CHUNK_BYTES_MAX);
                stream.credit -= bytes as u32;
                let piece = chunk.split_to(bytes);
                state.put(Kind::Body, false, id, |out| out.extend_from_slice(&piece));
                Poll::Ready(true)
            });
            if !sent.await {
                return false;
            }
        }
        true
    }

    /// Reads and writes until the connection ends, and then ends everything on it. `input` contains
    /// bytes that were read earlier. `receive` handles each frame.
    pub(crate) async fn drive<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        mut io: S,
        mut input: BytesMut,
        mut receive: impl FnMut(Frame) -> Result<(), Malformed>,
    ) -> End {
        let mut output = Output::default();
        let mut heard = Instant::now();
        let mut asked: Option<Instant> = None;
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        let end = loop {
            let mut turn = Turn::new();
            let step = poll_fn(|cx| {
                loop {
                    if let Err(error) = output.poll(self, &mut io, cx) {
                        return Poll::Ready(Err(End::Io(error.to_string())));
                    }
                    while let Some(frame) = frames::split(&mut input)? {
                        turn.charge(1, frame.payload.len());
                        receive(frame)?;
                        if turn.is_over() {
                            return Poll::Ready(Ok(()));
                        }
                    }
                    if input.is_empty() && input.capacity() > READ_BYTES {
                        input = BytesMut::new();
                    }
                    input.reserve(READ_BYTES);
                    let read = tokio_util::io::poll_read_buf(Pin::new(&mut io), cx, &mut input);
                    match read {
                        Poll::Ready(Ok(0)) => return Poll::Ready(Err(End::Closed)),
                        Poll::Ready(Ok(_)) => {
                            heard = Instant::now();
                            asked = None;
                        }
                        // A killed process ends the connection without first ending TLS.
                        Poll::Ready(Err(error))
                            if error.kind() == std::io::ErrorKind::UnexpectedEof =>
                        {
                            return Poll::Ready(Err(End::Closed));
                        }
                        Poll::Ready(Err(error)) => {
                            return Poll::Ready(Err(End::Io(error.to_string())));
                        }
                        Poll::Pending => break,
                    }
                }
                // The received frames may have added outgoing bytes.
                if let Err(error) = output.poll(self, &mut io, cx) {
                    return Poll::Ready(Err(End::Io(error.to_string())));
                }
                let mut state = self.lock();
                if let Some(end) = &state.end {
                    return Poll::Ready(Err(end.clone()));
                }
                if state.closing && state.streams.is_empty() {
                    return Poll::Ready(Err(End::Unlisted));
                }
                let Some(busy_since) = state.busy_since else {
                    asked = None;
                    return Poll::Pending;
                };
                let now = Instant::now();
                let due = match asked {
                    Some(asked) if now >= asked + PATIENCE => {
                        return Poll::Ready(Err(End::Silent));
                    }
                    Some(asked) => asked + PATIENCE,
                    None if now >= heard.max(busy_since) + SILENCE => {
                        asked = Some(now);
                        state.put(Kind::Ping, false, 0, |_| {});
                        drop(state);
                        if let Err(error) = output.poll(self, &mut io, cx) {
                            return Poll::Ready(Err(End::Io(error.to_string())));
                        }
                        now + PATIENCE
                    }
                    None => heard.max(busy_since) + SILENCE,
                };
                if timer.deadline() != due {
                    timer.as_mut().reset(due);
                }
                // An expired timer wakes this task again at once.
                if timer.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Ok(()));
                }
                Poll::Pending
            });
            match step.await {
                Ok(()) => tokio::task::yield_now().await,
                Err(end) => break end,
            }
        };
        self.end(end.clone());
        end
    }
}

impl Stream {
    fn body_arrives(&mut self, frame: Frame) -> Result<(), Malformed> {
        if self.ended {
            return Ok(());
        }
        match frame.kind {
            Kind::Body => {
                let bytes = frame.payload.len() as u32;
                self.window =
                    self.window.checked_sub(bytes).ok_or(Malformed("more than it may send"))?;
                self.chunks.push(frames::own(frame.payload), self.reader.is_some());
            }
            Kind::Trailers => {
                self.trailers = frames::own(frame.payload);
                self.ended = true;
            }
            _ => {
                let number = frame.payload.first().copied().unwrap_or_default();
                self.failed = Some(frames::body_error(number));
                self.ended = true;
            }
        }
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        Ok(())
    }
}

/// Bytes that are being written to the socket.
#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    at: usize,
}

impl Output {
    /// Writes as much as the socket takes, and makes sure that the task is woken when the socket
    /// can take more.
    fn poll<S: AsyncWrite + Unpin>(
        &mut self,
        link: &Link,
        io: &mut S,
        cx: &mut Context<'_>,
    ) -> std::io::Result<()> {
        loop {
            if self.at == self.bytes.len() {
                let mut state = link.lock();
                self.at = 0;
                self.bytes.clear();
                if self.bytes.capacity() > 2 * OUT_BYTES_MAX {
                    self.bytes = Vec::new();
                }
                if state.out.is_empty() {
                    if let Some(quiet) = state.quiet.take() {
                        quiet.wake();
                    }
                    match &mut state.driver {
                        Some(driver) => driver.clone_from(cx.waker()),
                        none => *none = Some(cx.waker().clone()),
                    }
                    break;
                }
                std::mem::swap(&mut state.out, &mut self.bytes);
                state.blocked.drain(..).for_each(Waker::wake);
            }
            match Pin::new(&mut *io).poll_write(cx, &self.bytes[self.at..])? {
                Poll::Ready(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                Poll::Ready(bytes) => {
                    self.at += bytes;
                    link.lock().written += bytes as u64;
                }
                Poll::Pending => break,
            }
        }
        match Pin::new(io).poll_flush(cx) {
            Poll::Ready(Err(error)) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Which cell reads a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The cell that sent the invocation reads the answer.
    Caller,
    /// The cell that runs the invocation reads the request.
    Runner,
}

/// The incoming body of a stream.
pub(crate) struct Arriving<P> {
    link: Arc<Link>,
    id: u32,
    side: Side,
    /// The body has been read from at least once, so the other cell may send.
    granted: bool,
    done: bool,
    trailers: Bytes,
    /// Released when the body has ended.
    _place: P,
}

impl<P: Send> Arriving<P> {
    /// The incoming body of the stream `id`. Keeps `place` until the body has ended.
    pub(crate) fn body(link: Arc<Link>, id: u32, side: Side, length: Option<u64>, place: P) -> Body
    where
        P: 'static,
    {
        let granted = side == Side::Caller;
        let trailers = Bytes::new();
        let source = Self { link, id, side, granted, done: false, trailers, _place: place };
        Body::Stream { source: Box::new(source), length }
    }

    fn ends(&mut self) {
        self.done = true;
        if self.side == Side::Caller {
            self.link.forget(self.id, false);
        }
    }
}

impl<P: Send> BodySource for Arriving<P> {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let link = self.link.clone();
        let mut state = link.lock();
        let has_ended = state.end.is_some();
        let Some(stream) = state.streams.get_mut(&self.id) else {
            self.done = true;
            return Poll::Ready(Some(Err(BodyError::Incomplete)));
        };
        if !std::mem::replace(&mut self.granted, true) && !has_ended {
            stream.window = WINDOW_BYTES;
            let bytes = WINDOW_BYTES.to_le_bytes();
            state.put(Kind::Credit, false, self.id, |out| out.extend_from_slice(&bytes));
            let Some(stream) = state.streams.get_mut(&self.id) else { return Poll::Pending };
            stream.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if let Some(chunk) = stream.chunks.pop() {
            stream.owed += chunk.len() as u32;
            if stream.owed >= WINDOW_BYTES / 4 && !stream.ended && !has_ended {
                let bytes = std::mem::take(&mut stream.owed);
                stream.window += bytes;
                let bytes = bytes.to_le_bytes();
                state.put(Kind::Credit, false, self.id, |out| out.extend_from_slice(&bytes));
            }
            return Poll::Ready(Some(Ok(chunk)));
        }
        if let Some(error) = stream.failed.take() {
            drop(state);
            self.ends();
            return Poll::Ready(Some(Err(error)));
        }
        if stream.ended {
            self.trailers = std::mem::take(&mut stream.trailers);
            drop(state);
            self.ends();
            return Poll::Ready(None);
        }
        stream.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn take_trailers(&mut self) -> Bytes {
        std::mem::take(&mut self.trailers)
    }

    fn held_bytes(&self) -> usize {
        let state = self.link.lock();
        let stream = state.streams.get(&self.id);
        stream.map_or(0, |stream| stream.chunks.held_bytes())
    }
}

impl<P> Drop for Arriving<P> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        match self.side {
            Side::Caller => self.link.forget(self.id, true),
            Side::Runner => {
                let mut state = self.link.lock();
                let open = state.streams.get(&self.id).is_some_and(|stream| !stream.ended);
                if open && self.granted && state.end.is_none() {
                    state.put(Kind::Stop, false, self.id, |_| {});
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
