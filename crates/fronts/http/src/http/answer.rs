//! Writes HTTP/1.1 answers. A head goes into one buffer, and a short body follows it in the same
//! write.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::{Deref, DerefMut};

use bytes::Bytes;
use mote_core::body::Body;
use mote_core::invocation::headers;
use mote_core::{InvocationId, Phases, Reply};
use mote_spec::fields::sets_session;
use mote_spec::hop_by_hop::is_hop_by_hop;
use tokio::io::AsyncWriteExt;

use super::front::Config;
use super::head::is_token;
use super::socket::Writer;
use crate::refusal::{Refusal, reason};

/// Bodies up to this size are copied after the head and sent with it.
const COPY_BYTES_MAX: usize = 16 << 10;
/// An output buffer that has grown larger than this is freed after use.
const OUT_KEEP_BYTES: usize = 64 << 10;

/// How many header blocks of answers a thread remembers, and how long each of them may be.
const FIELDS_KEPT: usize = 8;
const FIELDS_KEPT_BYTES: usize = 1 << 10;

/// What happens to the connection after the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Another request may follow.
    KeepAlive,
    Close,
    /// Close the connection, although the client may still be sending.
    CloseUnread,
    /// The answer is incomplete, or the client does not read it. With TLS, the connection is closed
    /// without `close_notify`, so that the client cannot take the answer for complete.
    Broken,
}

/// The form that the request demands of its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    pub(crate) is_head: bool,
    pub(crate) http10: bool,
    pub(crate) keep_alive: bool,
}

/// Why an answer was not sent.
#[derive(Debug)]
pub(crate) enum SendError {
    /// The client has closed the connection or reads too slowly.
    Socket,
    /// The function's answer cannot be expressed in HTTP. Nothing has been sent yet.
    BadReply(String),
}

impl From<io::Error> for SendError {
    fn from(_: io::Error) -> Self {
        SendError::Socket
    }
}

/// A buffer for heads and short bodies. The thread lends it out and gets it back empty. An answer
/// usually leaves before the next one begins, so one buffer serves all connections of a thread.
struct OutBuffer(Vec<u8>);

thread_local! {
    static OUT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl OutBuffer {
    /// The thread's buffer, or a new one while another answer holds it.
    fn take() -> Self {
        Self(OUT.take())
    }
}

impl Deref for OutBuffer {
    type Target = Vec<u8>;
    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for OutBuffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl Drop for OutBuffer {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.0);
        if buffer.capacity() <= OUT_KEEP_BYTES {
            buffer.clear();
            OUT.set(buffer);
        }
    }
}

pub(crate) async fn send(
    writer: &mut Writer<'_>,
    config: &Config,
    reply: Reply,
    id: InvocationId,
    form: Form,
) -> Result<After, SendError> {
    let bodiless = matches!(reply.status, 204 | 304);
    let length = reply.body.length();
    writer.logged.answered(reply.status, Some(id));
    let chunked = length.is_none() && !bodiless && !form.http10;
    // An HTTP/1.0 client recognises the end of a stream by the end of the connection.
    let keep_alive = form.keep_alive && (length.is_some() || bodiless || chunked);
    let mut out = OutBuffer::take();
    status_line(&mut out, reply.status);
    reply_fields(&mut out, &reply.headers).map_err(SendError::BadReply)?;
    if chunked {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    } else if let Some(length) = length
        && !bodiless
        // A function may leave out the body of its answer to HEAD. The length of 0 then says
        // nothing about the content.
        && !(form.is_head && length == 0)
    {
        number_field(&mut out, b"content-length: ", length);
    }
    out.extend_from_slice(b"server-timing: ");
    server_timing(&mut out, &reply.phases);
    out.extend_from_slice(b"\r\n");
    common_fields(&mut out, Some(id), persistence(keep_alive, form.http10));
    let after = if keep_alive { After::KeepAlive } else { After::Close };
    let mut body = reply.body;
    if form.is_head || bodiless {
        write_all(writer, config, &out).await?;
        return Ok(after);
    }
    match &mut body {
        Body::Empty => write_all(writer, config, &out).await?,
        Body::Whole(bytes) if bytes.len() <= COPY_BYTES_MAX => {
            out.extend_from_slice(bytes);
            writer.logged.sent(bytes.len());
            write_all(writer, config, &out).await?;
        }
        Body::Whole(bytes) => {
            write_all(writer, config, &out).await?;
            write_all(writer, config, bytes).await?;
            writer.logged.sent(bytes.len());
        }
        Body::Stream { .. } => {
            write_all(writer, config, &out).await?;
            stream(writer, config, body, length, chunked).await?;
        }
    }
    Ok(after)
}

/// Sends the answer with which a connection becomes a WebSocket.
pub(crate) async fn switch(
    writer: &mut Writer<'_>,
    config: &Config,
    fields: &[u8],
    id: InvocationId,
) -> Result<(), SendError> {
    let mut out = OutBuffer::take();
    writer.logged.answered(101, Some(id));
    out.extend_from_slice(b"HTTP/1.1 101 Switching Protocols\r\n");
    reply_fields(&mut out, fields).map_err(SendError::BadReply)?;
    common_fields(&mut out, Some(id), b"connection: upgrade\r\nupgrade: websocket\r\n");
    Ok(write_all(writer, config, &out).await?)
}

/// Sends a streamed body. If the body fails before its end, the connection is closed without the
/// end mark, so that the client cannot take the answer for complete.
async fn stream(
    writer: &mut Writer<'_>,
    config: &Config,
    mut body: Body,
    length: Option<u64>,
    chunked: bool,
) -> io::Result<()> {
    let mut sent = 0;
    while let Some(chunk) = body.chunk().await {
        let chunk: Bytes = chunk.map_err(io::Error::other)?;
        sent += chunk.len() as u64;
        if length.is_some_and(|length| sent > length) {
            return Err(io::Error::other("answer is longer than its Content-Length"));
        }
        if chunked {
            let mut piece = Vec::with_capacity(chunk.len() + 20);
            piece.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            piece.extend_from_slice(&chunk);
            piece.extend_from_slice(b"\r\n");
            write_all(writer, config, &piece).await?;
        } else {
            write_all(writer, config, &chunk).await?;
        }
        writer.logged.sent(chunk.len());
    }
    if chunked {
        write_all(writer, config, b"0\r\n\r\n").await?;
    }
    if length.is_some_and(|length| sent < length) {
        return Err(io::Error::other("answer is shorter than its Content-Length"));
    }
    Ok(())
}

/// How a refusal is sent. By default, the answer contains no invocation id and the connection is
/// closed.
#[derive(Clone, Copy, Default)]
pub(crate) struct RefusalForm {
    /// The invocation, if it already exists.
    pub(crate) id: Option<InvocationId>,
    /// The request is `HEAD`, so the answer has no body.
    pub(crate) is_head: bool,
    /// The connection can take another request.
    pub(crate) keep_alive: bool,
}

/// Sends a refusal as problem details.
pub(crate) async fn refuse(
    writer: &mut Writer<'_>,
    config: &Config,
    refusal: &Refusal,
    form: RefusalForm,
) -> io::Result<()> {
    let RefusalForm { id, is_head, keep_alive } = form;
    let body = refusal.problem_json(id);
    let mut out = OutBuffer::take();
    writer.logged.answered(refusal.status, id);
    status_line(&mut out, refusal.status);
    if refusal.has_body() {
        for part in ["content-type: ", refusal.content_type(), "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        number_field(&mut out, b"content-length: ", body.len() as u64);
    }
    for (name, value) in refusal.added.fields() {
        for part in [name, b": ", value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    if let Some(allow) = &refusal.allow {
        out.extend_from_slice(format!("allow: {allow}\r\n").as_bytes());
    }
    if let Some(seconds) = refusal.retry_after_s {
        number_field(&mut out, b"retry-after: ", u64::from(seconds));
    }
    if refusal.status == 401 {
        out.extend_from_slice(format!("www-authenticate: {}\r\n", refusal.challenge()).as_bytes());
    }
    common_fields(&mut out, id, persistence(keep_alive, false));
    if !is_head && refusal.has_body() {
        out.extend_from_slice(body.as_bytes());
        writer.logged.sent(body.len());
    }
    write_all(writer, config, &out).await
}

/// Writes all bytes. A client that reads nothing for too long counts as disconnected.
pub(crate) async fn write_all(
    writer: &mut Writer<'_>,
    config: &Config,
    bytes: &[u8],
) -> io::Result<()> {
    let mut rest = bytes;
    // The first write usually takes everything and needs no timer.
    match writer.try_write(rest) {
        Ok(written) => rest = &rest[written..],
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        Err(error) => return Err(error),
    }
    while !rest.is_empty() {
        let written = tokio::time::timeout(config.write_timeout, writer.write(rest))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        rest = &rest[written..];
    }
    if writer.buffers() {
        tokio::time::timeout(config.write_timeout, writer.flush())
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    }
    Ok(())
}

fn status_line(out: &mut Vec<u8>, status: u16) {
    if status == 200 {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        return;
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(itoa::Buffer::new().format(status).as_bytes());
    out.push(b' ');
    out.extend_from_slice(reason(status).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Header blocks that were found valid, each with its encoded form. A function usually answers with
/// the same fields, and checking every byte of the fields costs more than the rest of a head.
#[derive(Default)]
struct KnownFields {
    kept: Vec<(Vec<u8>, Vec<u8>)>,
    /// The index of the entry that is replaced next.
    oldest: usize,
}

impl KnownFields {
    fn find(&self, block: &[u8]) -> Option<&[u8]> {
        self.kept.iter().find(|(known, _)| known == block).map(|(_, fields)| &fields[..])
    }

    fn keep(&mut self, block: &[u8], fields: &[u8]) {
        if block.len() > FIELDS_KEPT_BYTES {
            return;
        }
        if self.kept.len() < FIELDS_KEPT {
            self.kept.push((block.to_vec(), fields.to_vec()));
            return;
        }
        let (known, its) = &mut self.kept[self.oldest];
        for (old, new) in [(known, block), (its, fields)] {
            old.clear();
            old.extend_from_slice(new);
        }
        self.oldest = (self.oldest + 1) % FIELDS_KEPT;
    }
}

thread_local! {
    static KNOWN_FIELDS: RefCell<KnownFields> = RefCell::default();
}

/// Writes the function's fields, except those that frame the message.
fn reply_fields(out: &mut Vec<u8>, block: &[u8]) -> Result<(), String> {
    KNOWN_FIELDS.with_borrow_mut(|known| {
        if let Some(fields) = known.find(block) {
            out.extend_from_slice(fields);
            return Ok(());
        }
        let from = out.len();
        put_fields(out, block)?;
        known.keep(block, &out[from..]);
        Ok(())
    })
}

fn put_fields(out: &mut Vec<u8>, block: &[u8]) -> Result<(), String> {
    for (name, value) in headers(block) {
        if is_framing(name) || sets_session(name, value) {
            continue;
        }
        if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
            return Err(format!("header name {:?}", crate::refusal::shown(name)));
        }
        if value.iter().any(|byte| (*byte < 0x20 && *byte != b'\t') || *byte == 0x7f) {
            return Err(format!("value of header {}", crate::refusal::shown(name)));
        }
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    Ok(())
}

/// Whether a field describes the connection rather than the message, or is one that the front
/// writes itself.
pub(crate) fn is_framing(name: &[u8]) -> bool {
    let own = ["date", "content-length", "mote-invocation"];
    is_hop_by_hop(name) || own.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes()))
}

/// The field that says whether the connection stays open. HTTP/1.0 clients need it if the
/// connection stays open, all other clients if it is closed (RFC 9112, 9.3).
fn persistence(keep_alive: bool, http10: bool) -> &'static [u8] {
    match (keep_alive, http10) {
        (false, _) => b"connection: close\r\n",
        (true, true) => b"connection: keep-alive\r\n",
        (true, false) => b"",
    }
}

fn common_fields(out: &mut Vec<u8>, id: Option<InvocationId>, persistence: &[u8]) {
    if let Some(id) = id {
        out.extend_from_slice(b"mote-invocation: ");
        out.extend_from_slice(&id.text());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"date: ");
    date(out);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(persistence);
    out.extend_from_slice(b"\r\n");
}

fn number_field(out: &mut Vec<u8>, name: &[u8], number: u64) {
    out.extend_from_slice(name);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// The value of `Server-Timing` (W3C): how the time was spent, in milliseconds.
pub(crate) fn server_timing(out: &mut Vec<u8>, phases: &Phases) {
    for (name, ns) in [
        (&b"queue;dur="[..], phases.queue_ns()),
        (b", init;dur=", phases.init_ns),
        (b", handover;dur=", phases.handover_ns()),
        (b", invoke;dur=", phases.run_ns()),
    ] {
        out.extend_from_slice(name);
        let us = ns / 1_000;
        let mut buffer = itoa::Buffer::new();
        out.extend_from_slice(buffer.format(us / 1_000).as_bytes());
        let part = us % 1_000;
        if part > 0 {
            out.push(b'.');
            let digits = [part / 100, part / 10 % 10, part % 10].map(|digit| b'0' + digit as u8);
            out.extend_from_slice(&digits);
        }
    }
}

/// The `Date` value (RFC 9110, 5.6.7). Each thread makes it once per second.
pub(crate) fn date(out: &mut Vec<u8>) {
    thread_local! {
        static DATE: RefCell<(i64, String)> = const { RefCell::new((i64::MIN, String::new())) };
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse).tv_sec;
    DATE.with_borrow_mut(|(second, text)| {
        if *second != now {
            let time = std::time::UNIX_EPOCH
                + std::time::Duration::from_secs(u64::try_from(now).unwrap_or(0));
            *text = httpdate::fmt_http_date(time);
            *second = now;
        }
        out.extend_from_slice(text.as_bytes());
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timings_are_milliseconds_with_microsecond_digits() {
        let phases = Phases {
            received_ns: 0,
            init_ns: 0,
            sent_ns: 1_500_000,
            entered_ns: 1_520_000,
            returned_ns: 5_520_000,
            answered_ns: 5_525_000,
        };
        let mut out = Vec::new();
        server_timing(&mut out, &phases);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "queue;dur=1.500, init;dur=0, handover;dur=0.025, invoke;dur=4"
        );
    }

    #[test]
    fn a_functions_fields_cannot_frame_or_split_the_answer() {
        let mut out = Vec::new();
        let block = b"content-length\n999\ntransfer-encoding\nchunked\nx-ok\nyes\n";
        reply_fields(&mut out, block).unwrap();
        assert_eq!(out, b"x-ok: yes\r\n");
        assert!(reply_fields(&mut Vec::new(), b"x\na\r\nb\n").is_err());
        assert!(reply_fields(&mut Vec::new(), b"x y\na\n").is_err());
        assert!(reply_fields(&mut Vec::new(), b"x\na\0\n").is_err());
    }

    #[test]
    fn fields_are_the_same_however_often_and_in_whatever_company() {
        let block = |number: usize| format!("x-a\n{}\nte\nno\nX-B\n{number}\n", number % 3);
        // More numbers than the thread keeps, some of them repeated.
        let numbers = (0..20).chain([1, 19, 1, 19, 7]).chain(0..20);
        for number in numbers {
            let mut out = b"before".to_vec();
            reply_fields(&mut out, block(number).as_bytes()).unwrap();
            let expected = format!("beforex-a: {}\r\nX-B: {number}\r\n", number % 3);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
            assert!(reply_fields(&mut Vec::new(), b"x y\na\n").is_err(), "never known");
        }
        let long = format!("x-long\n{}\n", "v".repeat(FIELDS_KEPT_BYTES));
        for _ in 0..2 {
            let mut out = Vec::new();
            reply_fields(&mut out, long.as_bytes()).unwrap();
            assert_eq!(out.len(), long.len() + 2);
        }
    }
}
