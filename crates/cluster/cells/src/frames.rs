//! The frames between two cells. Pure.
//!
//! Integers are little-endian. The header has the same layout as in the worker protocol:
//!
//! ```text
//! header (12 bytes): payload length u32 | kind u8 | flags u8 | zero u16 | stream u32
//! ```
//!
//! The cell that made the connection chooses the numbers of streams. Each stream is one invocation.
//! That cell sends INVOKE, BODY, TRAILERS, FAILED and CANCEL. The other cell sends LOAD, REFUSED,
//! RESULT, FAULT, BODY, TRAILERS, FAILED and STOP. Both begin with HELLO, and both send CREDIT,
//! PING and PONG.

use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use mote_core::body::{Body, BodyError};
use mote_core::chain::Chain;
use mote_core::elsewhere::{HEAD_BYTES_MAX, Load, Places, RevisionKey};
use mote_core::fault::RateOf;
use mote_core::invocation::{Head, headers};
use mote_core::{Fault, Invocation, InvocationId, Phases, Reply, Trigger};
use mote_spec::{FunctionName, Platform};

/// The version of this protocol. Cells with different versions do not forward to each other.
pub(crate) const VERSION: u16 = 1;
pub(crate) const HEADER_BYTES: usize = 12;
/// Largest chunk in one BODY frame.
pub(crate) const CHUNK_BYTES_MAX: usize = 16 << 10;
/// Bodies up to this size travel inside INVOKE and RESULT.
pub(crate) const INLINE_BYTES_MAX: usize = 64 << 10;
/// How many bytes of BODY a cell may send on a stream in one direction before it receives CREDIT.
pub(crate) const WINDOW_BYTES: u32 = 64 << 10;
/// The most revisions in one LOAD.
pub(crate) const REVISIONS_MAX: usize = 1_024;
pub(crate) const CELL_NAME_BYTES_MAX: usize = 63;
/// Longest text of a fault.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// Marks the last frame of its direction on its stream.
pub(crate) const FLAG_END: u8 = 1;
/// Stands for the length of a body whose length is unknown.
const UNKNOWN: u64 = u64::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Version u16, then the name of the cell. The first frame of each side.
    Hello = 1,
    /// How much room the cell has.
    Load = 2,
    /// Asks the other side for a PONG.
    Ping = 3,
    /// Answers a PING.
    Pong = 4,
    /// Begins an invocation.
    Invoke = 5,
    /// The cell has not begun the invocation and never will. Payload: u8, a [`Refused`].
    Refused = 6,
    /// Begins an answer.
    Result = 7,
    /// The invocation failed.
    Fault = 8,
    /// A chunk of a body.
    Body = 9,
    /// The body has ended. Payload: its trailer fields.
    Trailers = 10,
    /// The body ends early. Payload: u8, the reason.
    Failed = 11,
    /// Allows further bytes. Payload: u32, the bytes of BODY that were consumed.
    Credit = 12,
    /// The caller no longer waits for the invocation.
    Cancel = 13,
    /// The body of the request is no longer read.
    Stop = 14,
}

impl Kind {
    fn from_wire(number: u8) -> Option<Self> {
        use Kind::*;
        let all = [
            Hello, Load, Ping, Pong, Invoke, Refused, Result, Fault, Body, Trailers, Failed,
            Credit, Cancel, Stop,
        ];
        all.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Longest payload of a frame of this kind.
    fn payload_bytes_max(self) -> usize {
        match self {
            Kind::Hello => 2 + CELL_NAME_BYTES_MAX,
            Kind::Load => 16 + REVISIONS_MAX * 96,
            Kind::Ping | Kind::Pong | Kind::Cancel | Kind::Stop => 0,
            Kind::Invoke => 512 << 10,
            Kind::Result => 256 << 10,
            Kind::Fault => TEXT_BYTES_MAX + 64,
            Kind::Body => CHUNK_BYTES_MAX,
            Kind::Trailers => 64 << 10,
            Kind::Refused | Kind::Failed => 1,
            Kind::Credit => 4,
        }
    }
}

/// The bytes are not a valid frame. The connection cannot be used any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it sent a malformed frame: {0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Why a cell refused to begin an invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Refused {
    NotHere = 1,
    Busy = 2,
}

#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) end: bool,
    pub(crate) stream: u32,
    pub(crate) payload: Bytes,
}

/// Splits the next frame off `buffer`. Returns `None` if the frame is not complete yet. If a frame
/// is longer than its kind allows, returns an error as soon as the header has arrived.
pub(crate) fn split(buffer: &mut BytesMut) -> Result<Option<Frame>, Malformed> {
    let Some(header) = buffer.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let kind = Kind::from_wire(header[4]).ok_or(Malformed("unknown kind"))?;
    if header[5] & !FLAG_END != 0 || header[6] != 0 || header[7] != 0 {
        return Err(Malformed("reserved bits"));
    }
    if length > kind.payload_bytes_max() {
        return Err(Malformed("longer than its kind allows"));
    }
    let end = header[5] & FLAG_END != 0;
    let stream = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
    if buffer.len() < HEADER_BYTES + length {
        return Ok(None);
    }
    buffer.advance(HEADER_BYTES);
    let payload = buffer.split_to(length).freeze();
    Ok(Some(Frame { kind, end, stream, payload }))
}

/// Appends a frame whose payload `fill` writes.
pub(crate) fn put(
    out: &mut Vec<u8>,
    kind: Kind,
    end: bool,
    stream: u32,
    fill: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind as u8, u8::from(end), 0, 0]);
    out.extend_from_slice(&stream.to_le_bytes());
    fill(out);
    let length = out.len() - start - HEADER_BYTES;
    debug_assert!(length <= kind.payload_bytes_max(), "{kind:?}: {length} bytes");
    out[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
}

/// Reads the fields of a payload.
struct Reader(Bytes);

impl Reader {
    fn take(&mut self, length: usize) -> Result<Bytes, Malformed> {
        if length > self.0.len() {
            return Err(Malformed("lengths do not add up"));
        }
        Ok(self.0.split_to(length))
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.0.try_get_u8().map_err(|_| Malformed("too short"))
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.0.try_get_u16_le().map_err(|_| Malformed("too short"))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.0.try_get_u32_le().map_err(|_| Malformed("too short"))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.0.try_get_u64_le().map_err(|_| Malformed("too short"))
    }

    fn function(&mut self) -> Result<FunctionName, Malformed> {
        let length = usize::from(self.u8()?);
        let text = self.take(length)?;
        let text = std::str::from_utf8(&text).map_err(|_| Malformed("not a function's name"))?;
        FunctionName::new(text).map_err(|_| Malformed("not a function's name"))
    }

    fn revision(&mut self) -> Result<RevisionKey, Malformed> {
        let function = self.function()?;
        Ok(RevisionKey { function, number: self.u64()?, content: self.u64()? })
    }

    /// Reads a header block. Checks everything that other code relies on.
    fn fields(&mut self, length: usize) -> Result<Bytes, Malformed> {
        let block = self.take(length)?;
        let read: usize = headers(&block).map(|(name, value)| name.len() + value.len() + 2).sum();
        if read != block.len() || block.contains(&0) {
            return Err(Malformed("not a header block"));
        }
        Ok(block)
    }
}

fn put_name(out: &mut Vec<u8>, name: &FunctionName) {
    out.push(name.as_str().len() as u8);
    out.extend_from_slice(name.as_str().as_bytes());
}

fn put_revision(out: &mut Vec<u8>, key: &RevisionKey) {
    put_name(out, &key.function);
    out.extend_from_slice(&key.number.to_le_bytes());
    out.extend_from_slice(&key.content.to_le_bytes());
}

/// Whether a text is a valid name of a cell.
pub(crate) fn is_cell_name(text: &str) -> bool {
    let fits = (1..=CELL_NAME_BYTES_MAX).contains(&text.len());
    fits && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

pub(crate) fn put_hello(out: &mut Vec<u8>, name: &str) {
    put(out, Kind::Hello, false, 0, |out| {
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(name.as_bytes());
    });
}

/// Reads the version and the name from a HELLO. The name is empty if the cell does not know its
/// name.
pub(crate) fn read_hello(frame: &Frame) -> Result<(u16, String), Malformed> {
    if frame.kind != Kind::Hello {
        return Err(Malformed("it did not begin with HELLO"));
    }
    let mut reader = Reader(frame.payload.clone());
    let version = reader.u16()?;
    let name = std::str::from_utf8(&reader.0).map_err(|_| Malformed("not a name"))?;
    if !name.is_empty() && !is_cell_name(name) {
        return Err(Malformed("not a name"));
    }
    Ok((version, name.to_owned()))
}

pub(crate) fn load(load: &Load, draining: bool) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&load.free_bytes.to_le_bytes());
    out.push(u8::from(draining));
    let revisions = &load.revisions[..load.revisions.len().min(REVISIONS_MAX)];
    out.extend_from_slice(&(revisions.len() as u16).to_le_bytes());
    for (key, places) in revisions {
        put_revision(&mut out, key);
        out.extend_from_slice(&places.ready.to_le_bytes());
        out.extend_from_slice(&places.more.to_le_bytes());
    }
    out
}

/// Reads a LOAD. Also returns whether the cell is draining.
pub(crate) fn read_load(payload: Bytes) -> Result<(Load, bool), Malformed> {
    let mut reader = Reader(payload);
    let free_bytes = reader.u64()?;
    let draining = reader.u8()? != 0;
    let count = usize::from(reader.u16()?);
    if count > REVISIONS_MAX {
        return Err(Malformed("too many revisions"));
    }
    let mut revisions = Vec::with_capacity(count);
    for _ in 0..count {
        let key = reader.revision()?;
        revisions.push((key, Places { ready: reader.u32()?, more: reader.u32()? }));
    }
    Ok((Load { free_bytes, revisions }, draining))
}

/// Returns the body of a message, if the body travels inside the message's first frame.
fn inline(body: &Body) -> Option<Bytes> {
    match body {
        Body::Empty => Some(Bytes::new()),
        Body::Whole(bytes) if bytes.len() <= INLINE_BYTES_MAX => Some(bytes.clone()),
        _ => None,
    }
}

/// Whether an invocation fits into a frame. An invocation with a longer head is legal but rare, and
/// is not forwarded.
pub(crate) fn fits(invocation: &Invocation) -> bool {
    invocation.head.wire().len() <= HEAD_BYTES_MAX
}

/// Appends an INVOKE. Returns whether the frame holds the whole body.
pub(crate) fn put_invoke(
    out: &mut Vec<u8>,
    stream: u32,
    key: &RevisionKey,
    invocation: &Invocation,
    now_ns: u64,
) -> bool {
    let body = inline(&invocation.body);
    put(out, Kind::Invoke, body.is_some(), stream, |out| {
        put_revision(out, key);
        out.extend_from_slice(&invocation.id.0.to_le_bytes());
        let remaining_ns = invocation.deadline_ns.saturating_sub(now_ns);
        out.extend_from_slice(&remaining_ns.to_le_bytes());
        out.push(invocation.trigger as u8);
        let names = invocation.chain.as_deref().map(|chain| chain.names().collect::<Vec<_>>());
        let names = names.unwrap_or_default();
        out.push(names.len() as u8);
        for name in names {
            put_name(out, name);
        }
        let head = &invocation.head;
        out.push(head.method().len() as u8);
        out.extend_from_slice(&(head.path().len() as u16).to_le_bytes());
        out.extend_from_slice(&(head.query().len() as u16).to_le_bytes());
        out.extend_from_slice(&(head.headers().len() as u32).to_le_bytes());
        out.extend_from_slice(&invocation.body.length().unwrap_or(UNKNOWN).to_le_bytes());
        out.extend_from_slice(head.wire());
        out.extend_from_slice(body.as_deref().unwrap_or_default());
    });
    body.is_some()
}

/// An invocation from another cell. Its body is missing if the body streams.
pub(crate) struct Invoked {
    pub(crate) key: RevisionKey,
    pub(crate) invocation: Invocation,
    /// `Some` if the body streams; then the declared length of the body, if one was declared.
    pub(crate) streams: Option<Option<u64>>,
}

/// Reads an INVOKE that arrived at `now_ns`.
pub(crate) fn read_invoke(frame: &Frame, now_ns: u64) -> Result<Invoked, Malformed> {
    let mut reader = Reader(frame.payload.clone());
    let key = reader.revision()?;
    let id = u128::from(reader.u64()?) | u128::from(reader.u64()?) << 64;
    let deadline_ns = now_ns.saturating_add(reader.u64()?);
    let trigger = Trigger::from_wire(reader.u8()?).ok_or(Malformed("unknown trigger"))?;
    let count = reader.u8()?;
    let names: Result<Vec<_>, _> = (0..count).map(|_| reader.function()).collect();
    let chain = chain(&names?, &key.function)?;
    let method = reader.u8()?;
    let path = reader.u16()?;
    let query = reader.u16()?;
    let fields = reader.u32()? as usize;
    let length = reader.u64()?;
    let method = reader.take(method.into())?;
    let path = reader.take(path.into())?;
    let query = reader.take(query.into())?;
    let mut head = Head::builder(&method, &path, &query);
    for (name, value) in headers(&reader.fields(fields)?) {
        head.header(name, value);
    }
    let (body, streams) = if frame.end {
        (Body::whole(own(reader.0)), None)
    } else if reader.0.is_empty() {
        (Body::Empty, Some((length != UNKNOWN).then_some(length)))
    } else {
        return Err(Malformed("lengths do not add up"));
    };
    let invocation = Invocation {
        id: InvocationId(id),
        trigger,
        head: head.finish(),
        body,
        received_ns: now_ns,
        deadline_ns,
        chain,
    };
    Ok(Invoked { key, invocation, streams })
}

/// Builds the call chain that has led to `called`. `names` lists its functions from last to first.
fn chain(names: &[FunctionName], called: &FunctionName) -> Result<Option<Arc<Chain>>, Malformed> {
    let mut chain = None;
    for (at, name) in names.iter().enumerate().rev() {
        let next = if at == 0 { called } else { &names[at - 1] };
        let longer = Chain::extend(name, chain.as_ref(), next);
        chain = Some(longer.map_err(|_| Malformed("not a chain of calls"))?);
    }
    Ok(chain)
}

/// Copies a small part of a buffer, so that this part does not keep the whole buffer in memory.
pub(crate) fn own(bytes: Bytes) -> Bytes {
    if bytes.len() < CHUNK_BYTES_MAX / 2 { Bytes::copy_from_slice(&bytes) } else { bytes }
}

/// Appends a RESULT. Returns whether the frame holds the whole body.
pub(crate) fn put_result(out: &mut Vec<u8>, stream: u32, reply: &Reply) -> bool {
    let body = inline(&reply.body);
    put(out, Kind::Result, body.is_some(), stream, |out| {
        out.extend_from_slice(&reply.status.to_le_bytes());
        let phases = &reply.phases;
        for ns in [phases.init_ns, phases.to_worker_ns(), phases.run_ns(), phases.from_worker_ns()]
        {
            out.extend_from_slice(&ns.to_le_bytes());
        }
        out.extend_from_slice(&(reply.headers.len() as u32).to_le_bytes());
        out.extend_from_slice(&reply.body.length().unwrap_or(UNKNOWN).to_le_bytes());
        out.extend_from_slice(&reply.headers);
        out.extend_from_slice(body.as_deref().unwrap_or_default());
    });
    body.is_some()
}

/// The head of an answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Bytes,
    pub(crate) body: Bytes,
    /// `Some` if the body streams; then the declared length of the body, if one was declared.
    pub(crate) streams: Option<Option<u64>>,
    init_ns: u64,
    to_worker_ns: u64,
    run_ns: u64,
    from_worker_ns: u64,
}

impl Answer {
    /// Converts the phases to the clock of this machine, for an invocation that was received at
    /// `received_ns` and is answered at `now_ns`. The transport between the cells counts as
    /// waiting.
    pub(crate) fn phases(&self, received_ns: u64, now_ns: u64) -> Phases {
        let returned_ns = now_ns.saturating_sub(self.from_worker_ns).max(received_ns);
        let entered_ns = returned_ns.saturating_sub(self.run_ns).max(received_ns);
        let sent_ns = entered_ns.saturating_sub(self.to_worker_ns).max(received_ns);
        Phases {
            received_ns,
            init_ns: self.init_ns.min(sent_ns - received_ns),
            sent_ns,
            entered_ns,
            returned_ns,
            answered_ns: now_ns,
        }
    }
}

pub(crate) fn read_result(frame: &Frame) -> Result<Answer, Malformed> {
    let mut reader = Reader(frame.payload.clone());
    let status = reader.u16()?;
    if !(100..=599).contains(&status) {
        return Err(Malformed("not a status"));
    }
    let init_ns = reader.u64()?;
    let to_worker_ns = reader.u64()?;
    let run_ns = reader.u64()?;
    let from_worker_ns = reader.u64()?;
    let fields = reader.u32()? as usize;
    let length = reader.u64()?;
    let headers = own(reader.fields(fields)?);
    if !frame.end && !reader.0.is_empty() {
        return Err(Malformed("lengths do not add up"));
    }
    let streams = (!frame.end).then_some((length != UNKNOWN).then_some(length));
    let body = own(reader.0);
    Ok(Answer { status, headers, body, streams, init_ns, to_worker_ns, run_ns, from_worker_ns })
}

/// Appends a FAULT: kind u8, attempt u8, number u64, text.
pub(crate) fn put_fault(out: &mut Vec<u8>, stream: u32, fault: &Fault) {
    let (kind, attempt, number, text) = match fault {
        Fault::NoSuchFunction => (1, 0, 0, ""),
        Fault::BodyTooLarge { limit_bytes } => (2, 0, *limit_bytes, ""),
        Fault::BodyIncomplete => (3, 0, 0, ""),
        Fault::CallerGone => (4, 0, 0, ""),
        Fault::QueueFull => (5, 0, 0, ""),
        Fault::NodeFull | Fault::NamespaceFull { .. } => (6, 0, 0, ""),
        Fault::Stopping => (7, 0, 0, ""),
        Fault::DeadlineQueued { timeout_ms } => (8, 0, *timeout_ms, ""),
        Fault::DeadlineStarting { timeout_ms } => (9, 0, *timeout_ms, ""),
        Fault::DeadlineRunning { timeout_ms } => (10, 0, *timeout_ms, ""),
        Fault::HandlerError { message } => (11, 0, 0, message.as_str()),
        Fault::StartFailed { message } => (12, 0, 0, message.as_str()),
        Fault::WorkerKilled { signal, attempt } => (13, *attempt, *signal as u64, ""),
        Fault::OutOfMemory { limit_bytes, platform } => {
            (14, 0, *limit_bytes, platform.map_or("", Platform::as_str))
        }
        Fault::WorkerExited { status, attempt } => (15, *attempt, *status as u64, ""),
        Fault::BadReply { message } => (16, 0, 0, message.as_str()),
        Fault::AnswerTooLarge { limit_bytes } => (17, 0, *limit_bytes, ""),
        Fault::Internal { message } => (18, 0, 0, message.as_str()),
        // The front that receives a request checks the caller, so no cell ever sends these faults.
        Fault::NoKey => (19, 0, 0, ""),
        Fault::OtherKey => (20, 0, 0, ""),
        Fault::TooManyKeys => (21, 0, 0, ""),
        Fault::NotLocal => (22, 0, 0, ""),
        Fault::OtherSite => (24, 0, 0, ""),
        Fault::TooManyCalls { retry_after_s, of } => {
            let of = match of {
                RateOf::Function => 0,
                RateOf::Caller => 1,
                RateOf::Namespace => 2,
            };
            (23, of, u64::from(*retry_after_s), "")
        }
        Fault::TooManyAtOnce { of_caller } => (25, u8::from(*of_caller), 0, ""),
        Fault::NoPassword => (29, 0, 0, ""),
        Fault::NoToken => (26, 0, 0, ""),
        Fault::NoTokenKeys => (27, 0, 0, ""),
        Fault::OtherToken => (28, 0, 0, ""),
        Fault::NoSignature => (30, 0, 0, ""),
        Fault::NoSignatureSecret => (31, 0, 0, ""),
        Fault::NoCertificate => (32, 0, 0, ""),
    };
    put(out, Kind::Fault, true, stream, |out| {
        out.extend_from_slice(&[kind, attempt]);
        out.extend_from_slice(&number.to_le_bytes());
        let mut length = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        out.extend_from_slice(&text.as_bytes()[..length]);
    });
}

pub(crate) fn read_fault(payload: Bytes) -> Result<Fault, Malformed> {
    let mut reader = Reader(payload);
    let kind = reader.u8()?;
    let attempt = reader.u8()?;
    let number = reader.u64()?;
    let message = String::from_utf8_lossy(&reader.0).into_owned();
    Ok(match kind {
        1 => Fault::NoSuchFunction,
        2 => Fault::BodyTooLarge { limit_bytes: number },
        3 => Fault::BodyIncomplete,
        4 => Fault::CallerGone,
        5 => Fault::QueueFull,
        6 => Fault::NodeFull,
        7 => Fault::Stopping,
        8 => Fault::DeadlineQueued { timeout_ms: number },
        9 => Fault::DeadlineStarting { timeout_ms: number },
        10 => Fault::DeadlineRunning { timeout_ms: number },
        11 => Fault::HandlerError { message },
        12 => Fault::StartFailed { message },
        13 => Fault::WorkerKilled { signal: number as i32, attempt },
        14 => Fault::OutOfMemory {
            limit_bytes: number,
            platform: Platform::ALL.into_iter().find(|known| known.as_str() == message),
        },
        15 => Fault::WorkerExited { status: number as i32, attempt },
        16 => Fault::BadReply { message },
        17 => Fault::AnswerTooLarge { limit_bytes: number },
        18 => Fault::Internal { message },
        19 => Fault::NoKey,
        20 => Fault::OtherKey,
        21 => Fault::TooManyKeys,
        22 => Fault::NotLocal,
        23 => Fault::TooManyCalls {
            retry_after_s: u32::try_from(number).unwrap_or(u32::MAX),
            of: match attempt {
                1 => RateOf::Caller,
                2 => RateOf::Namespace,
                _ => RateOf::Function,
            },
        },
        24 => Fault::OtherSite,
        25 => Fault::TooManyAtOnce { of_caller: attempt == 1 },
        29 => Fault::NoPassword,
        26 => Fault::NoToken,
        27 => Fault::NoTokenKeys,
        28 => Fault::OtherToken,
        30 => Fault::NoSignature,
        31 => Fault::NoSignatureSecret,
        32 => Fault::NoCertificate,
        _ => return Err(Malformed("unknown fault")),
    })
}

/// Returns the number of a reason for which a body ends early.
pub(crate) fn body_error_number(error: &BodyError) -> u8 {
    match error {
        BodyError::TooLarge(_) => 1,
        BodyError::Incomplete => 2,
        BodyError::TimedOut => 3,
        BodyError::WorkerFailed => 4,
    }
}

/// Returns the reason with this number. The reason "too large" is never sent, because a front
/// checks the limit of a body.
pub(crate) fn body_error(number: u8) -> BodyError {
    match number {
        3 => BodyError::TimedOut,
        4 => BodyError::WorkerFailed,
        _ => BodyError::Incomplete,
    }
}

pub(crate) fn read_credit(payload: &[u8]) -> Result<u32, Malformed> {
    let bytes = payload.try_into().map_err(|_| Malformed("not a number"))?;
    Ok(u32::from_le_bytes(bytes))
}

pub(crate) fn read_refused(payload: &[u8]) -> Result<Refused, Malformed> {
    match payload {
        [1] => Ok(Refused::NotHere),
        [2] => Ok(Refused::Busy),
        _ => Err(Malformed("unknown reason")),
    }
}

#[cfg(test)]
mod tests;
