//! The worker's connection to its node: bytes to be written, open streams, requests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use mote_core::wire::{self, FLAG_END, FrameKind, WINDOW_BYTES, WorkerError};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio::task::AbortHandle;

/// While more bytes than this wait to be written, guests cannot write lines and requests wait.
const BACKLOG_BYTES: usize = 256 << 10;
/// The most requests in progress. It stays below the number that the node permits.
const REQUESTS_MAX: usize = 200;
/// A request takes one permit for each piece of this length. The next constant is the number of
/// permits, which limits the bytes of all requests in progress.
const PERMIT_BYTES: usize = 16 << 10;
const PERMITS: usize = (3 << 20) / PERMIT_BYTES;

/// Locks a mutex. A panic of one call must not end the others, so a poisoned lock stays in use.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A piece of a request body.
pub(crate) enum Piece {
    /// Bytes that came in a BODY frame. They are credited when the guest has read them.
    Chunk(Bytes),
    End,
}

/// An invocation that has not ended.
pub(crate) struct Stream {
    /// Where the rest of the body goes.
    pub(crate) body: Option<mpsc::UnboundedSender<Piece>>,
    pub(crate) window: Arc<Window>,
    pub(crate) task: Option<AbortHandle>,
}

/// The number of bytes of an answer that may still be sent.
pub(crate) struct Window {
    left: AtomicU32,
    pub(crate) changed: Notify,
}

impl Window {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { left: AtomicU32::new(WINDOW_BYTES), changed: Notify::new() })
    }

    pub(crate) fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn take(&self, bytes: usize) {
        self.left.fetch_sub(bytes as u32, Ordering::Relaxed);
    }

    fn add(&self, bytes: u32) {
        let left = self.left.load(Ordering::Relaxed).saturating_add(bytes).min(WINDOW_BYTES);
        self.left.store(left, Ordering::Relaxed);
        self.changed.notify_one();
    }
}

/// See the module's documentation. All work happens on one thread, so no lock is ever waited for.
pub(crate) struct Link {
    output: Mutex<Vec<u8>>,
    pub(crate) written: Notify,
    /// Notified when the backlog has been written.
    room: Notify,
    streams: Mutex<HashMap<u32, Stream>>,
    waiting: Mutex<HashMap<u32, oneshot::Sender<(u8, Bytes)>>>,
    next_request: AtomicU32,
    requests: Semaphore,
    request_bytes: Semaphore,
    pub(crate) is_draining: AtomicBool,
    /// Notified when an invocation has ended.
    pub(crate) ended: Notify,
}

impl Link {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            output: Mutex::default(),
            written: Notify::new(),
            room: Notify::new(),
            streams: Mutex::default(),
            waiting: Mutex::default(),
            next_request: AtomicU32::new(0),
            requests: Semaphore::new(REQUESTS_MAX),
            request_bytes: Semaphore::new(PERMITS),
            is_draining: AtomicBool::new(false),
            ended: Notify::new(),
        })
    }

    pub(crate) fn put(&self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut lock(&self.output));
        self.written.notify_one();
    }

    /// Exchanges the bytes to be written with an empty buffer.
    pub(crate) fn take_output(&self, empty: &mut Vec<u8>) {
        std::mem::swap(&mut *lock(&self.output), empty);
        self.room.notify_waiters();
    }

    pub(crate) fn has_room(&self) -> bool {
        lock(&self.output).len() < BACKLOG_BYTES
    }

    /// Waits until the node has read what was written.
    pub(crate) async fn room(&self) {
        loop {
            let changed = self.room.notified();
            if self.has_room() {
                return;
            }
            changed.await;
        }
    }

    pub(crate) fn fail(
        &self,
        stream: u32,
        kind: &str,
        message: String,
        trace: String,
        times: Times,
    ) {
        let error = WorkerError {
            kind: kind.to_owned(),
            message,
            trace,
            entered_ns: times.entered_ns,
            returned_ns: times.returned_ns,
        };
        let error = serde_json::to_vec(&error.clamped()).expect("it has only string keys");
        let flags = if stream == 0 { 0 } else { FLAG_END };
        self.put(|out| wire::put_frame(out, FrameKind::Error, flags, stream, &error));
    }

    pub(crate) fn credit(&self, stream: u32, bytes: usize) {
        let bytes = (bytes as u32).to_le_bytes();
        self.put(|out| wire::put_frame(out, FrameKind::Credit, 0, stream, &bytes));
    }

    /// Writes a line of the log. `source` has the source and the level.
    pub(crate) fn line(&self, stream: u32, source: [u8; 2], text: &[u8]) {
        let text = &text[..text.len().min(wire::LOG_LINE_BYTES_MAX)];
        self.put(|out| {
            wire::put_header(out, FrameKind::Log, 0, stream, text.len() + source.len());
            out.extend_from_slice(&source);
            out.extend_from_slice(text);
        });
    }

    pub(crate) fn begin(&self, stream: u32, entry: Stream) {
        lock(&self.streams).insert(stream, entry);
    }

    pub(crate) fn set_task(&self, stream: u32, task: AbortHandle) {
        if let Some(entry) = lock(&self.streams).get_mut(&stream) {
            entry.task = Some(task);
        }
    }

    pub(crate) fn end(&self, stream: u32) {
        lock(&self.streams).remove(&stream);
        self.ended.notify_one();
    }

    pub(crate) fn is_open(&self, stream: u32) -> bool {
        lock(&self.streams).contains_key(&stream)
    }

    pub(crate) fn is_idle(&self) -> bool {
        lock(&self.streams).is_empty()
    }

    /// A BODY frame has arrived.
    pub(crate) fn body(&self, stream: u32, bytes: Bytes, is_end: bool) {
        let mut streams = lock(&self.streams);
        let Some(entry) = streams.get_mut(&stream) else { return };
        let Some(body) = &entry.body else { return };
        let length = bytes.len();
        // If the guest does not read, its bytes are credited at once, so that the caller can send
        // the rest.
        if length > 0 && body.send(Piece::Chunk(bytes)).is_err() && !is_end {
            drop(streams);
            self.credit(stream, length);
            return;
        }
        if is_end {
            let _ = body.send(Piece::End);
            entry.body = None;
        }
    }

    pub(crate) fn credited(&self, stream: u32, bytes: u32) {
        if let Some(entry) = lock(&self.streams).get(&stream) {
            entry.window.add(bytes);
        }
    }

    /// Handles that the caller of an invocation has left. The invocation's instance is dropped,
    /// whatever it is doing.
    pub(crate) fn cancel(&self, stream: u32) {
        let Some(entry) = lock(&self.streams).remove(&stream) else { return };
        if let Some(task) = entry.task {
            task.abort();
        }
        self.fail(stream, "Cancelled", "cancelled".to_owned(), String::new(), Times::default());
        self.ended.notify_one();
    }

    /// A RESPONSE frame has arrived.
    pub(crate) fn answered(&self, number: u32, status: u8, content: Bytes) {
        if let Some(waiting) = lock(&self.waiting).remove(&number) {
            let _ = waiting.send((status, content));
        }
    }

    /// Sends a request to the node and waits for the status and the content of its answer. `None`
    /// if the request is too large, or the node has closed the connection.
    pub(crate) async fn ask(
        &self,
        stream: u32,
        (service, operation, flags): (u8, u8, u16),
        content: &[u8],
    ) -> Option<(u8, Bytes)> {
        if content.len() + 8 > wire::PAYLOAD_BYTES_MAX {
            return None;
        }
        let permits = content.len().div_ceil(PERMIT_BYTES).clamp(1, PERMITS) as u32;
        let _bytes = self.request_bytes.acquire_many(permits).await;
        let _place = self.requests.acquire().await;
        let number = self.next_request.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        lock(&self.waiting).insert(number, answer);
        self.put(|out| {
            wire::put_header(out, FrameKind::Request, 0, stream, content.len() + 8);
            out.extend_from_slice(&number.to_le_bytes());
            out.extend_from_slice(&[service, operation]);
            out.extend_from_slice(&flags.to_le_bytes());
            out.extend_from_slice(content);
        });
        answered.await.ok()
    }
}

/// When a handler was entered and when it returned; 0 if it was not entered.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Times {
    pub(crate) entered_ns: u64,
    pub(crate) returned_ns: u64,
}
