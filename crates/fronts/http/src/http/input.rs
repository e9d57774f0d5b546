//! The reading side of a connection: received bytes that are not served yet, and the time limit for
//! further bytes.
//!
//! An idle connection holds no buffer. Each thread reads bytes into one scratch buffer, and copies
//! them only if necessary. Each connection has one timer, and moving its deadline costs nothing
//! until the timer fires.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use mote_core::turn::Turn;
use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::front::{Config, Stopped};
use super::head::{self, RequestHead};
use super::socket::Reader;
use crate::refusal::Refusal;

/// The number of bytes read at once.
const SCRATCH_BYTES: usize = 64 << 10;
/// How long an answer in progress may be silent after its client has ended its side of the
/// connection.
const SILENCE_AFTER_END: Duration = Duration::from_secs(3);
/// The most bytes of following requests that are kept while one request is served.
const AHEAD_BYTES_MAX: usize = 64 << 10;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_BYTES].into_boxed_slice());
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadEnd {
    /// The connection failed.
    Gone,
    /// The client sends nothing more, but may still read.
    Ended,
    /// The phase took too long.
    TimedOut,
    /// The node is stopping, and either the connection is idle or its grace period has passed.
    Stopping,
}

/// The reading side: received bytes that are not served yet, and the timer of the current phase.
pub(crate) struct Input {
    pub(crate) bytes: BytesMut,
    timer: Pin<Box<Sleep>>,
    deadline: Instant,
    stopped: Stopped,
    /// Whether a request is arriving whose invocation has not begun. A stopping node gives such a
    /// request up after `arrival_grace`, at `arrive_by`.
    pub(crate) arriving: bool,
    arrival_grace: Duration,
    pub(crate) arrive_by: Option<Instant>,
    /// A stopping node closes the connection if no request begins within `last_request_grace`, that
    /// is, by `begin_by`.
    last_request_grace: Duration,
    begin_by: Option<Instant>,
    /// How much work this connection may still do before other tasks run.
    turn: Turn,
    /// Whether the client ended its side of the connection before its answer began. Such a client
    /// usually waits for the answer.
    waits_for_answer: bool,
    /// The number of requests since the last invocation; see [`super::REFUSALS_IN_A_ROW_MAX`].
    pub(crate) refusals: u32,
}

impl Input {
    /// A new input from which nothing has been read. The first head may take `head_timeout`.
    pub(crate) fn new(config: &Config, stopped: Stopped) -> Self {
        Self {
            bytes: BytesMut::new(),
            timer: Box::pin(tokio::time::sleep(config.head_timeout)),
            deadline: Instant::now(),
            stopped,
            arriving: true,
            arrival_grace: config.arrival_grace,
            arrive_by: None,
            last_request_grace: config.last_request_grace,
            begin_by: None,
            turn: Turn::new(),
            waits_for_answer: false,
            refusals: 0,
        }
    }

    /// Charges the work done, and lets other tasks run when the turn is over. Without this, a
    /// client that sends faster than it is served would keep the thread, because no `await` on its
    /// path would ever have to wait.
    pub(crate) async fn charge(&mut self, items: u32, bytes: usize) {
        self.turn.charge(items, bytes);
        if self.turn.is_over() {
            self.turn = Turn::new();
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn set_deadline(&mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let by = self.arrive_by.filter(|_| self.arriving);
        self.deadline = by.map_or(deadline, |by| by.min(deadline));
    }

    /// Reads more bytes. Ends early if the phase is over.
    pub(crate) async fn fill(&mut self, socket: &mut Reader<'_>) -> Result<(), ReadEnd> {
        std::future::poll_fn(|cx| {
            if let Poll::Ready(result) = poll_read(&mut self.bytes, socket, cx) {
                return Poll::Ready(result);
            }
            self.poll_waiting(false, cx).map(Err)
        })
        .await
    }

    /// Reads the first bytes of a request. A head that arrives in one piece, as nearly all do, is
    /// parsed in the scratch buffer and never copied. Otherwise the bytes are kept and the result
    /// is `None`.
    pub(crate) async fn first(
        &mut self,
        socket: &mut Reader<'_>,
    ) -> Result<Option<Result<RequestHead, Refusal>>, ReadEnd> {
        std::future::poll_fn(|cx| {
            let bytes = &mut self.bytes;
            let read = poll_read_with(socket, cx, |read| {
                if let Ok(Some(end)) = head::find_end(read, 0)
                    && !read.starts_with(b"\r\n")
                {
                    bytes.extend_from_slice(&read[end..]);
                    return Some(head::parse(&read[..end]));
                }
                bytes.extend_from_slice(read);
                None
            });
            if let Poll::Ready(result) = read {
                return Poll::Ready(result);
            }
            self.poll_waiting(true, cx).map(Err)
        })
        .await
    }

    /// Ready when waiting for bytes must end. `idle` means that no byte of the next request has
    /// arrived.
    fn poll_waiting(&mut self, idle: bool, cx: &mut Context<'_>) -> Poll<ReadEnd> {
        while self.timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= self.deadline {
                let late = self.arriving && self.arrive_by.is_some_and(|by| by <= self.deadline);
                return Poll::Ready(if late { ReadEnd::Stopping } else { ReadEnd::TimedOut });
            }
            let deadline = self.deadline;
            self.timer.as_mut().reset(deadline);
        }
        if self.arriving
            && self.arrive_by.is_none()
            && Pin::new(&mut self.stopped).poll(cx).is_ready()
        {
            let by = Instant::now() + self.arrival_grace;
            self.arrive_by = Some(by);
            self.deadline = self.deadline.min(by);
        }
        if idle && self.arrive_by.is_some() {
            let grace = self.last_request_grace;
            let by = *self.begin_by.get_or_insert_with(|| Instant::now() + grace);
            self.deadline = self.deadline.min(by);
        }
        // If the new deadline is later, the timer fires at its old time and is moved then. If the
        // new deadline is earlier, the timer must be moved now.
        if self.deadline < self.timer.deadline() {
            let deadline = self.deadline;
            self.timer.as_mut().reset(deadline);
            let _ = self.timer.as_mut().poll(cx);
        }
        Poll::Pending
    }
}

fn poll_read(
    bytes: &mut BytesMut,
    socket: &mut Reader<'_>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), ReadEnd>> {
    poll_read_with(socket, cx, |read| bytes.extend_from_slice(read))
}

/// Reads into the thread's scratch buffer and passes the bytes to `take`.
fn poll_read_with<T>(
    socket: &mut Reader<'_>,
    cx: &mut Context<'_>,
    take: impl FnOnce(&[u8]) -> T,
) -> Poll<Result<T, ReadEnd>> {
    SCRATCH.with_borrow_mut(|scratch| {
        let mut buffer = ReadBuf::new(scratch);
        match Pin::new(socket).poll_read(cx, &mut buffer) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                Poll::Ready(Ok(take(buffer.filled())))
            }
            Poll::Ready(Ok(())) => Poll::Ready(Err(ReadEnd::Ended)),
            Poll::Ready(Err(_)) => Poll::Ready(Err(ReadEnd::Gone)),
        }
    })
}

/// Waits for `work`. Returns `None` if the client ends its side first or the connection fails.
pub(crate) async fn or_ended<T>(
    mut work: Pin<&mut impl Future<Output = T>>,
    input: &mut Input,
    reader: &mut Reader<'_>,
) -> Option<T> {
    std::future::poll_fn(|cx| {
        if let Poll::Ready(result) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(result));
        }
        poll_end(input, reader, cx).map(|_| None)
    })
    .await
}

/// Waits for `work`. Returns `None` if the client is [`gone`] first.
pub(crate) async fn or_gone<T>(
    mut work: Pin<&mut impl Future<Output = T>>,
    input: &mut Input,
    reader: &mut Reader<'_>,
    until: Until<'_>,
) -> Option<T> {
    let end = std::future::poll_fn(|cx| {
        if let Poll::Ready(result) = work.as_mut().poll(cx) {
            return Poll::Ready(Ok(result));
        }
        poll_end(input, reader, cx).map(Err)
    });
    match end.await {
        Ok(result) => Some(result),
        Err(end) => tokio::select! {
            biased;
            result = work => Some(result),
            () = Box::pin(gone_after(end, input, reader, until)) => None,
        },
    }
}

/// The work in progress while the connection watches whether its client disconnects.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until<'a> {
    /// An invocation whose answer has not begun to be sent. The client accepts interim answers
    /// unless it uses HTTP/1.0.
    Answered { http10: bool },
    /// An answer. Its writes detect whether the client is still connected.
    Written,
    /// `Answered` until the flag is true, then `Written`.
    Either { http10: bool, has_begun: &'a AtomicBool },
}

/// Resolves when the client has disconnected. Bytes of following requests are kept, up to a limit.
pub(crate) async fn gone(input: &mut Input, reader: &mut Reader<'_>, until: Until<'_>) {
    let end = std::future::poll_fn(|cx| poll_end(input, reader, cx)).await;
    // This is rare, so the future is boxed to keep the state of each connection small.
    Box::pin(gone_after(end, input, reader, until)).await;
}

/// Resolves when a client that has stopped sending has also stopped reading.
///
/// The end of the client's data looks the same whether the client has closed the connection or
/// still waits for the answer (RFC 9112, 9.6). Only a write shows the difference, because a closed
/// connection refuses the bytes. So before the answer begins, this function sends an interim
/// answer, which an HTTP/1.1 client ignores (RFC 9110, 15.2).
async fn gone_after(end: ReadEnd, input: &mut Input, reader: &Reader<'_>, until: Until<'_>) {
    // A client that ends TLS no longer reads. No known client waits for an answer after that.
    let (ReadEnd::Ended, Some(stream)) = (end, reader.plain()) else { return };
    let (http10, has_begun) = match until {
        Until::Answered { http10 } => (http10, false),
        Until::Written => (false, true),
        Until::Either { http10, has_begun } => (http10, has_begun.load(Ordering::Relaxed)),
    };
    if !has_begun && !std::mem::replace(&mut input.waits_for_answer, true) && !http10 {
        // If the kernel does not take the bytes at once, they are lost, and only this probe fails.
        let _ = stream.try_write(b"HTTP/1.1 100 Continue\r\n\r\n");
    }
    let refused = async {
        // An error here would be an error of this process, not of the client.
        if stream.ready(Interest::ERROR).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    if input.waits_for_answer {
        return refused.await;
    }
    // The client ended its side in the middle of the answer. Nearly all clients that do so have
    // disconnected. If this one has not, the next write shows that. An answer may be silent for a
    // long time, so the wait has a limit.
    let _ = tokio::time::timeout(SILENCE_AFTER_END, refused).await;
}

/// Ready when the client has ended its side. Bytes of following requests are kept, up to a limit.
fn poll_end(input: &mut Input, reader: &mut Reader<'_>, cx: &mut Context<'_>) -> Poll<ReadEnd> {
    while input.bytes.len() < AHEAD_BYTES_MAX {
        match poll_read(&mut input.bytes, reader, cx) {
            Poll::Pending => break,
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(end)) => return Poll::Ready(end),
        }
    }
    Poll::Pending
}
