//! A connection that has become a WebSocket to a function whose worker takes messages. The front
//! answers the handshake, reads and writes the frames, and passes records to and from the bodies of
//! the invocation ([`crate::websocket`]).
//!
//! The front passes content on as it arrives, so it holds at most a few chunks for each direction.
//! A side that does not read stops the other side.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::websocket::{
    ABNORMAL, Ended, FAILED, FromClient, GOING_AWAY, ToClient, close_frame, close_record,
};
use bytes::Bytes;
use mote_core::Reply;
use mote_core::body::Body;
use mote_core::invocation::{Head, headers, put_header};
use mote_core::turn::Turn;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::answer;
use super::front::{Config, Stopper};
use super::input::{Input, ReadEnd};
use super::request_body::Sender;
use super::socket::{Reader, Writer};
use super::websocket::{Bodies, over};
use crate::ids::now_ns;

/// How long the client may take to answer a close frame, and how long the function may take to end
/// after a close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two checks whether the revision was replaced.
const LOOK: Duration = Duration::from_secs(5);
/// How long the function may take to end when the node ends its WebSocket.
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// The most bytes of pongs that may wait for a client that does not read. Beyond this limit, only
/// the newest pong is kept, which RFC 6455 permits.
const PONG_BYTES_MAX: usize = 4 << 10;

/// The value of `Sec-WebSocket-Accept`, if this is a WebSocket handshake of version 13.
pub(super) fn accept(head: &Head) -> Option<String> {
    let field = |wanted: &[u8]| {
        let mut found = headers(head.headers()).filter(|(name, _)| *name == wanted);
        let (_, value) = found.next()?;
        found.next().is_none().then_some(value)
    };
    if field(b"sec-websocket-version")? != b"13" {
        return None;
    }
    crate::websocket::accept(field(b"sec-websocket-key")?)
}

/// Whether the worker has accepted the WebSocket. It accepts by answering with status 200 and the
/// field `upgrade`, which the worker never passes on from a function.
pub(super) fn is_accepted(reply: &Reply) -> bool {
    reply.status == 200
        && matches!(reply.body, Body::Stream { .. })
        && headers(&reply.headers).any(|field| field == (b"upgrade", b"websocket"))
}

/// The fields of the answer to the handshake.
pub(super) fn fields(block: &[u8], accept: &str) -> Bytes {
    let mut fields = Vec::with_capacity(block.len() + 64);
    for (name, value) in headers(block) {
        let is_own =
            matches!(name, b"upgrade" | b"sec-websocket-accept" | b"sec-websocket-extensions");
        if !is_own {
            put_header(&mut fields, name, value);
        }
    }
    put_header(&mut fields, b"sec-websocket-accept", accept.as_bytes());
    fields.into()
}

/// The connection to the client.
pub(super) struct Sides<'a, 'r, 'w> {
    pub(super) input: &'a mut Input,
    pub(super) reader: &'a mut Reader<'r>,
    pub(super) writer: &'a mut Writer<'w>,
}

pub(super) struct Limits<'a> {
    pub(super) idle: Duration,
    pub(super) message_bytes_max: u64,
    /// Whether the function's revision was replaced.
    pub(super) is_replaced: &'a (dyn Fn() -> bool + Sync),
}

/// What the reading direction tells the writing direction.
#[derive(Default)]
struct FromReader {
    pongs: Mutex<Vec<u8>>,
    ended: Mutex<Option<End>>,
    notify: Notify,
}

#[derive(Debug, Clone, Copy)]
enum End {
    /// The client has sent a close frame with this code.
    Closed(u16),
    /// The client broke the protocol or a limit. The close frame to the client has this code.
    Failed(u16),
    Gone,
}

/// Passes messages until the client, the function or the node ends the WebSocket, or until the
/// WebSocket has been silent for too long.
pub(super) async fn relay(
    bodies: Bodies,
    sides: Sides<'_, '_, '_>,
    config: &Config,
    stopper: &Stopper,
    limits: Limits<'_>,
) {
    let Bodies { mut from_function, to_function } = bodies;
    let Sides { input, reader, writer } = sides;
    let last_ns = AtomicU64::new(now_ns());
    let shared = FromReader::default();
    let mut frames = ToClient::default();
    let is_writing = AtomicBool::new(false);
    let up = async {
        let end = read(input, reader, &to_function, &shared, &last_ns, &limits).await;
        *shared.ended.lock() = Some(end);
        shared.notify.notify_one();
        std::future::pending::<()>().await;
    };
    let down =
        write(&mut from_function, writer, &mut frames, &shared, &last_ns, (config, &is_writing));
    let is_over = tokio::select! {
        biased;
        () = up => false,
        () = down => false,
        () = over(stopper, limits.idle, &last_ns) => true,
        () = replaced(limits.is_replaced) => true,
    };
    if is_over {
        if !is_writing.load(Ordering::Relaxed) && frames.is_between_frames() && !frames.has_closed()
        {
            let _ = answer::write_all(writer, config, &close_frame(GOING_AWAY)).await;
        }
        // If the function does not read, its invocation is cancelled below.
        if to_function.try_send(Some(close_record(GOING_AWAY).into())).is_ok() {
            let _ = to_function.try_send(None);
        }
        drain(&mut from_function, END_TIMEOUT).await;
    }
}

/// Resolves when the revision was replaced. A WebSocket can stay open for days, and an instance
/// cannot end before its WebSockets have ended.
async fn replaced(is_replaced: &(dyn Fn() -> bool + Sync)) {
    loop {
        tokio::time::sleep(LOOK).await;
        if is_replaced() {
            return;
        }
    }
}

/// Reads frames and passes records to the function.
async fn read(
    input: &mut Input,
    reader: &mut Reader<'_>,
    to_function: &Sender,
    shared: &FromReader,
    last_ns: &AtomicU64,
    limits: &Limits<'_>,
) -> End {
    let mut frames = FromClient::new(limits.message_bytes_max);
    let mut replies = Vec::new();
    loop {
        // Only the watch in `relay` limits this silence.
        input.set_deadline(Duration::from_secs(24 * 3600));
        match input.fill(reader).await {
            Ok(()) => {}
            Err(ReadEnd::TimedOut) => continue,
            Err(_) => {
                end(to_function, Some(ABNORMAL)).await;
                return End::Gone;
            }
        }
        last_ns.store(now_ns(), Ordering::Relaxed);
        let mut chunk = input.bytes.split();
        input.charge(1, chunk.len()).await;
        let mut records = Vec::with_capacity(chunk.len() + 16);
        let result = frames.read(&mut chunk, &mut records, &mut replies);
        if !replies.is_empty() {
            let mut pongs = shared.pongs.lock();
            if pongs.len() + replies.len() > PONG_BYTES_MAX {
                pongs.clear();
                // Each reply is one frame. Only the last one is needed.
                let mut at = 0;
                while at + 2 + usize::from(replies[at + 1]) < replies.len() {
                    at += 2 + usize::from(replies[at + 1]);
                }
                replies.drain(..at);
            }
            pongs.append(&mut replies);
            drop(pongs);
            shared.notify.notify_one();
        }
        if !records.is_empty() {
            // An error means that the function has ended. Its close frame is on its way, so data
            // that the client sends meanwhile is of no use.
            let _ = to_function.send(Some(records.into())).await;
        }
        match result {
            Ok(()) => {}
            Err(Ended::Closed(code)) => {
                end(to_function, None).await;
                return End::Closed(code);
            }
            Err(Ended::Failed(code)) => {
                end(to_function, Some(code)).await;
                return End::Failed(code);
            }
        }
    }
}

/// Ends the function's input. With a `code`, the function first receives a close record with this
/// code, because it has not received one yet.
async fn end(to_function: &Sender, code: Option<u16>) {
    if let Some(code) = code {
        let _ = to_function.send(Some(close_record(code).into())).await;
    }
    let _ = to_function.send(None).await;
}

/// Reads the function's records and writes frames.
async fn write(
    from_function: &mut Body,
    writer: &mut Writer<'_>,
    frames: &mut ToClient,
    shared: &FromReader,
    last_ns: &AtomicU64,
    (config, is_writing): (&Config, &AtomicBool),
) {
    let mut turn = Turn::new();
    let mut out = Vec::new();
    // The function may still answer messages that the client sent before its close frame.
    let mut answer_by = None;
    loop {
        // The code of the node's close frame, unless the function has already sent a close frame.
        let mut close = None;
        tokio::select! {
            biased;
            () = shared.notify.notified() => {}
            () = tokio::time::sleep_until(answer_by.unwrap_or_else(Instant::now)),
                if answer_by.is_some() => close = Some(GOING_AWAY),
            chunk = from_function.chunk() => match chunk {
                Some(Ok(chunk)) => {
                    last_ns.store(now_ns(), Ordering::Relaxed);
                    turn.charge(1, chunk.len());
                    if frames.write(&chunk, &mut out).is_err() {
                        close = Some(FAILED);
                    }
                }
                Some(Err(_)) => close = Some(FAILED),
                None => close = Some(GOING_AWAY),
            },
        }
        let is_between = frames.is_between_frames();
        if is_between {
            out.append(&mut shared.pongs.lock());
        }
        let ended = *shared.ended.lock();
        match ended {
            Some(End::Gone) => return drain(from_function, CLOSE_TIMEOUT).await,
            Some(End::Failed(code)) => close = Some(code),
            Some(End::Closed(code)) if close.is_some() || frames.has_closed() => close = Some(code),
            Some(End::Closed(_)) if answer_by.is_none() => {
                answer_by = Some(Instant::now() + CLOSE_TIMEOUT);
            }
            Some(End::Closed(_)) | None => {}
        }
        if let Some(code) = close
            && is_between
            && !frames.has_closed()
        {
            out.extend_from_slice(&close_frame(code));
        }
        if !out.is_empty() {
            is_writing.store(true, Ordering::Relaxed);
            if answer::write_all(writer, config, &out).await.is_err() {
                return;
            }
            is_writing.store(false, Ordering::Relaxed);
            out.clear();
            out.shrink_to(64 << 10);
        }
        if close.is_some() {
            if ended.is_some() {
                return drain(from_function, CLOSE_TIMEOUT).await;
            }
            // Wait until the client has answered the close frame.
            let answered = async {
                while shared.ended.lock().is_none() {
                    shared.notify.notified().await;
                }
            };
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, answered).await;
            return;
        }
        if turn.is_over() {
            turn = Turn::new();
            tokio::task::yield_now().await;
        }
    }
}

/// Gives the function this much time to end by itself.
async fn drain(from_function: &mut Body, time: Duration) {
    let rest = async { while let Some(Ok(_)) = from_function.chunk().await {} };
    let _ = tokio::time::timeout(time, rest).await;
}
