//! The worker protocol: length-prefixed binary frames over one connected Unix stream socket.
//!
//! The contract is `docs/reference/worker-protocol.md`. This module and every shim replay the byte
//! fixtures in `shims/conformance`. Integers are little-endian, like every machine that `mote` runs
//! on, so interpreters read them without swapping bytes.
//!
//! ```text
//! header (12 bytes): payload length u32 | kind u8 | flags u8 | zero u16 | stream u32
//! ```

use bytes::{Buf, Bytes};

use crate::invocation::Head;
use crate::path;

/// The protocol version of this build. A worker that speaks another version is refused at start.
pub const VERSION: u16 = 1;
/// Bytes of a frame header.
pub const HEADER_BYTES: usize = 12;
/// Largest payload of one frame. A worker that sends a longer one violates the protocol.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Largest body that travels inside INVOKE or RESULT. Larger bodies travel in BODY frames.
pub const INLINE_BODY_BYTES_MAX: usize = 64 << 10;
/// Largest chunk in one BODY frame. It is small enough that streams share the socket fairly.
pub const CHUNK_BYTES_MAX: usize = 64 << 10;
/// The maximum number of BODY payload bytes that a sender may send on one stream in one
/// direction before it needs CREDIT.
pub const WINDOW_BYTES: u32 = 256 << 10;
/// Largest header block of an answer.
pub const HEADERS_BYTES_MAX: usize = 64 << 10;
/// The maximum number of fields of an answer. HTTP clients and proxies refuse far fewer. This limit
/// is needed because the shortest field takes two bytes, so the length of the block alone would
/// allow 32,768 fields.
pub const HEADER_FIELDS_MAX: usize = 512;
/// Longest line in a LOG frame. Senders split longer lines.
pub const LOG_LINE_BYTES_MAX: usize = 16 << 10;
/// Bytes of source and level that precede the line in a LOG frame.
pub const LOG_FIXED_BYTES: usize = 2;
/// Largest HELLO or READY. Such a frame holds a name, two numbers, a word and a short text.
pub const GREETING_BYTES_MAX: usize = 4 << 10;
/// The maximum number of characters kept of a handler's shape.
pub const SHAPE_CHARS_MAX: usize = 64;
/// The maximum number of characters kept of the reason why no copies of a worker can be made.
pub const NO_COPIES_CHARS_MAX: usize = 200;
/// Largest ERROR: texts of 4,096 and 16,384 characters (section 4 of the contract), each character
/// up to 12 bytes when JSON escapes it, and room for the rest.
pub const ERROR_BYTES_MAX: usize = 256 << 10;
/// The maximum number of characters kept of an ERROR's kind, which is the name of a class.
pub const ERROR_KIND_CHARS_MAX: usize = 200;
/// The maximum number of characters kept of an ERROR's message.
pub const ERROR_MESSAGE_CHARS_MAX: usize = 4_096;
/// The maximum number of characters kept of an ERROR's trace.
pub const ERROR_TRACE_CHARS_MAX: usize = 16_384;
/// Fixed part of an INVOKE payload.
pub const INVOKE_FIXED_BYTES: usize = 40;
/// Fixed part of a RESULT payload.
pub const RESULT_FIXED_BYTES: usize = 24;

/// Flag: this frame is the last one of its direction on its stream.
pub const FLAG_END: u8 = 1;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// Worker to engine, the first frame: version u16, then the shim's name.
    Hello = 1,
    /// Engine to worker: JSON that names the function to load ([`Load`]).
    Load = 2,
    /// Worker to engine: JSON, sent once the function is loaded ([`Ready`]).
    Ready = 3,
    /// Engine to worker: an invocation begins.
    Invoke = 4,
    /// Either way: a chunk of a body.
    Body = 5,
    /// Worker to engine: an answer begins.
    Result = 6,
    /// Worker to engine: JSON ([`WorkerError`]), sent when the invocation failed or, on stream 0,
    /// when the load failed.
    Error = 7,
    /// Engine to worker: the caller of this stream no longer waits. The worker may stop working on
    /// the stream, but must still end it with RESULT, BODY or ERROR carrying END.
    Cancel = 8,
    /// Either direction: u32, the number of bytes of BODY payload that the receiver has consumed.
    Credit = 9,
    /// Worker to engine: source u8 (1 stdout, 2 stderr, 3 log), level u8 (1 debug, 2 info, 3 warn,
    /// 4 error), then one line of text. Stream 0 means outside any invocation.
    Log = 10,
    /// Engine to worker: finish the running invocations, then exit 0. No INVOKE follows.
    Drain = 11,
    /// Worker to engine: a request to a service of the node ([`crate::services::Request`]), made
    /// for the invocation of the stream. Stream 0 means outside any invocation.
    Request = 12,
    /// Engine to worker: the answer to a REQUEST ([`crate::services::Answer`]).
    Response = 13,
}

impl FrameKind {
    /// The kind with this number.
    pub fn from_wire(number: u8) -> Option<Self> {
        Some(match number {
            1 => FrameKind::Hello,
            2 => FrameKind::Load,
            3 => FrameKind::Ready,
            4 => FrameKind::Invoke,
            5 => FrameKind::Body,
            6 => FrameKind::Result,
            7 => FrameKind::Error,
            8 => FrameKind::Cancel,
            9 => FrameKind::Credit,
            10 => FrameKind::Log,
            11 => FrameKind::Drain,
            12 => FrameKind::Request,
            13 => FrameKind::Response,
            _ => return None,
        })
    }

    /// Largest payload of this kind that a worker may send, in bytes; 0 for kinds that only the
    /// engine sends. The engine checks this limit before it buffers the payload.
    pub fn worker_payload_bytes_max(self) -> usize {
        match self {
            FrameKind::Hello | FrameKind::Ready => GREETING_BYTES_MAX,
            FrameKind::Body => CHUNK_BYTES_MAX,
            FrameKind::Result => RESULT_FIXED_BYTES + HEADERS_BYTES_MAX + INLINE_BODY_BYTES_MAX,
            FrameKind::Error => ERROR_BYTES_MAX,
            FrameKind::Credit => 4,
            FrameKind::Log => LOG_FIXED_BYTES + LOG_LINE_BYTES_MAX,
            FrameKind::Request => PAYLOAD_BYTES_MAX,
            FrameKind::Load
            | FrameKind::Invoke
            | FrameKind::Cancel
            | FrameKind::Drain
            | FrameKind::Response => 0,
        }
    }
}

/// Why bytes are not a valid frame. After such an error, the connection can no longer be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The frame kind is out of range.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// Unknown flag bits are set, or reserved bytes are not zero.
    #[error("reserved bits are set in a frame header")]
    Reserved,
    /// The payload length is above [`PAYLOAD_BYTES_MAX`].
    #[error("frame of {0} bytes, at most 1 MiB is allowed")]
    TooLong(u32),
    /// The payload is too short for its kind, or its lengths do not add up.
    #[error("{0:?} frame is malformed: {1}")]
    Malformed(FrameKind, &'static str),
}

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of payload after the header.
    pub payload_bytes: u32,
    /// The kind of the frame.
    pub kind: FrameKind,
    /// [`FLAG_END`] or 0.
    pub flags: u8,
    /// Stream number; 0 is the connection itself. The engine chooses the number, and may reuse it
    /// once both directions have ended.
    pub stream: u32,
}

impl FrameHeader {
    /// Parses a header.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, WireError> {
        let payload_bytes = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if payload_bytes as usize > PAYLOAD_BYTES_MAX {
            return Err(WireError::TooLong(payload_bytes));
        }
        let kind = FrameKind::from_wire(bytes[4]).ok_or(WireError::UnknownKind(bytes[4]))?;
        if bytes[5] & !FLAG_END != 0 || bytes[6] != 0 || bytes[7] != 0 {
            return Err(WireError::Reserved);
        }
        let stream = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        Ok(Self { payload_bytes, kind, flags: bytes[5], stream })
    }

    /// Whether this frame is the last one of its direction.
    pub fn is_end(&self) -> bool {
        self.flags & FLAG_END != 0
    }
}

/// Appends a header.
pub fn put_header(
    out: &mut Vec<u8>,
    kind: FrameKind,
    flags: u8,
    stream: u32,
    payload_bytes: usize,
) {
    debug_assert!(payload_bytes <= PAYLOAD_BYTES_MAX);
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&(payload_bytes as u32).to_le_bytes());
    header[4] = kind as u8;
    header[5] = flags;
    header[8..].copy_from_slice(&stream.to_le_bytes());
    out.extend_from_slice(&header);
}

/// Appends a whole frame.
pub fn put_frame(out: &mut Vec<u8>, kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) {
    put_header(out, kind, flags, stream, payload.len());
    out.extend_from_slice(payload);
}

/// Splits the next frame off `buffer`; returns `None` if the frame is not complete yet. Does not
/// reserve space in `buffer`, so the caller must read more after `None`.
pub fn split_frame(
    buffer: &mut bytes::BytesMut,
) -> Result<Option<(FrameHeader, Bytes)>, WireError> {
    split_frame_within(buffer, |_| PAYLOAD_BYTES_MAX)
}

/// Like [`split_frame`], for bytes from a worker. A frame that is longer than its kind allows is an
/// error as soon as its header has arrived.
pub fn split_worker_frame(
    buffer: &mut bytes::BytesMut,
) -> Result<Option<(FrameHeader, Bytes)>, WireError> {
    split_frame_within(buffer, FrameKind::worker_payload_bytes_max)
}

fn split_frame_within(
    buffer: &mut bytes::BytesMut,
    bytes_max: impl Fn(FrameKind) -> usize,
) -> Result<Option<(FrameHeader, Bytes)>, WireError> {
    let Some(bytes) = buffer.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let header = FrameHeader::parse(bytes)?;
    if header.payload_bytes as usize > bytes_max(header.kind) {
        return Err(WireError::Malformed(header.kind, "longer than its kind allows"));
    }
    if buffer.len() < HEADER_BYTES + header.payload_bytes as usize {
        return Ok(None);
    }
    buffer.advance(HEADER_BYTES);
    let payload = buffer.split_to(header.payload_bytes as usize).freeze();
    Ok(Some((header, payload)))
}

/// The fixed part of an INVOKE payload:
///
/// ```text
///  0 t1 u64 | 8 id [16] | 24 remaining ms u32 | 28 trigger u8 | 29 method length u8
/// 30 path length u16 | 32 query length u16 | 34 zero u16 | 36 headers length u32
/// 40 method, path, query, headers, then the inline body
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invoke<'a> {
    /// t1: when the frame was written, in monotonic nanoseconds.
    pub sent_ns: u64,
    /// Invocation id, most significant byte first.
    pub id: u128,
    /// Milliseconds until the deadline.
    pub remaining_ms: u32,
    /// Trigger number ([`crate::Trigger`]).
    pub trigger: u8,
    /// Request method.
    pub method: &'a [u8],
    /// Path below the route.
    pub path: &'a [u8],
    /// Query without `?`.
    pub query: &'a [u8],
    /// Header block.
    pub headers: &'a [u8],
    /// Inline body. If the frame has END, this is the whole body.
    pub body: &'a [u8],
}

impl<'a> Invoke<'a> {
    /// Parses an INVOKE payload.
    pub fn parse(payload: &'a [u8]) -> Result<Self, WireError> {
        let malformed = |why| WireError::Malformed(FrameKind::Invoke, why);
        if payload.len() < INVOKE_FIXED_BYTES {
            return Err(malformed("too short"));
        }
        let (fixed, rest) = payload.split_at(INVOKE_FIXED_BYTES);
        let u16_at = |at: usize| u16::from_le_bytes([fixed[at], fixed[at + 1]]) as usize;
        let method_len = fixed[29] as usize;
        let path_len = u16_at(30);
        let query_len = u16_at(32);
        let headers_len = u32_at(fixed, 36) as usize;
        if rest.len() < method_len + path_len + query_len + headers_len {
            return Err(malformed("lengths pass its end"));
        }
        let (method, rest) = rest.split_at(method_len);
        let (path, rest) = rest.split_at(path_len);
        let (query, rest) = rest.split_at(query_len);
        let (headers, body) = rest.split_at(headers_len);
        let mut id = [0; 16];
        id.copy_from_slice(&fixed[8..24]);
        Ok(Self {
            sent_ns: u64_at(fixed, 0),
            id: u128::from_be_bytes(id),
            remaining_ms: u32_at(fixed, 24),
            trigger: fixed[28],
            method,
            path,
            query,
            headers,
            body,
        })
    }
}

/// Appends an INVOKE frame, with the path in its [canonical form](path::canonical). `body` is the
/// inline part, at most [`INLINE_BODY_BYTES_MAX`]. `end` says that the inline part is the whole
/// body.
#[expect(clippy::too_many_arguments, reason = "one field of the frame each, written in order")]
pub fn put_invoke(
    out: &mut Vec<u8>,
    stream: u32,
    sent_ns: u64,
    id: u128,
    remaining_ms: u32,
    trigger: u8,
    head: &Head,
    body: &[u8],
    end: bool,
) {
    let wire = head.wire();
    let sent_path = head.path();
    // If the canonical form is too long for its length field, the path is sent unchanged.
    let path = path::canonical(sent_path);
    let path = if path.len() > usize::from(u16::MAX) { sent_path } else { &path };
    let payload_bytes = INVOKE_FIXED_BYTES + wire.len() - sent_path.len() + path.len() + body.len();
    out.reserve(HEADER_BYTES + payload_bytes);
    put_header(out, FrameKind::Invoke, if end { FLAG_END } else { 0 }, stream, payload_bytes);
    let mut fixed = [0; INVOKE_FIXED_BYTES];
    fixed[..8].copy_from_slice(&sent_ns.to_le_bytes());
    fixed[8..24].copy_from_slice(&id.to_be_bytes());
    fixed[24..28].copy_from_slice(&remaining_ms.to_le_bytes());
    fixed[28] = trigger;
    fixed[29] = head.method().len() as u8;
    fixed[30..32].copy_from_slice(&(path.len() as u16).to_le_bytes());
    fixed[32..34].copy_from_slice(&(head.query().len() as u16).to_le_bytes());
    fixed[36..40].copy_from_slice(&(head.headers().len() as u32).to_le_bytes());
    out.extend_from_slice(&fixed);
    let (method, after) = wire.split_at(head.method().len());
    out.extend_from_slice(method);
    out.extend_from_slice(path);
    out.extend_from_slice(&after[sent_path.len()..]);
    out.extend_from_slice(body);
}

/// The head of an answer:
///
/// ```text
/// 0 t2 u64 | 8 t3 u64 | 16 status u16 | 18 zero u16 | 20 headers length u32 | 24 headers, body
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultHead {
    /// t2: when the worker entered the handler, in monotonic nanoseconds.
    pub entered_ns: u64,
    /// t3: when the handler returned or began to answer.
    pub returned_ns: u64,
    /// HTTP status.
    pub status: u16,
    /// Header block, not yet checked.
    pub headers: Bytes,
    /// Inline body. If the frame has END, this is the whole body.
    pub body: Bytes,
}

impl ResultHead {
    /// Parses a RESULT payload without copying.
    pub fn parse(mut payload: Bytes) -> Result<Self, WireError> {
        let malformed = |why| WireError::Malformed(FrameKind::Result, why);
        if payload.len() < RESULT_FIXED_BYTES {
            return Err(malformed("too short"));
        }
        let entered_ns = payload.get_u64_le();
        let returned_ns = payload.get_u64_le();
        let status = payload.get_u16_le();
        if payload.get_u16_le() != 0 {
            return Err(WireError::Reserved);
        }
        let headers_len = payload.get_u32_le() as usize;
        if payload.len() < headers_len {
            return Err(malformed("headers pass its end"));
        }
        if headers_len > HEADERS_BYTES_MAX {
            return Err(malformed("headers above 64 KiB"));
        }
        if payload.len() - headers_len > INLINE_BODY_BYTES_MAX {
            return Err(malformed("inline body above 64 KiB"));
        }
        if !(200..=599).contains(&status) {
            return Err(malformed("status is not 200 to 599"));
        }
        let headers = payload.split_to(headers_len);
        Ok(Self { entered_ns, returned_ns, status, headers, body: payload })
    }

    /// Appends a RESULT frame. `end` says that the inline body is the whole body.
    pub fn put(&self, out: &mut Vec<u8>, stream: u32, end: bool) {
        let payload_bytes = RESULT_FIXED_BYTES + self.headers.len() + self.body.len();
        put_header(out, FrameKind::Result, if end { FLAG_END } else { 0 }, stream, payload_bytes);
        out.extend_from_slice(&self.entered_ns.to_le_bytes());
        out.extend_from_slice(&self.returned_ns.to_le_bytes());
        out.extend_from_slice(&self.status.to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&(self.headers.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.headers);
        out.extend_from_slice(&self.body);
    }
}

/// LOAD, as JSON: the code that a shim must load. The engine sends it once. LOAD turns a waiting
/// generic worker into the worker of one function.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Load {
    /// Function name.
    pub function: String,
    /// Revision number.
    pub revision: u64,
    /// Folder of the code inside the sandbox.
    pub code_dir: String,
    /// Folder of installed packages inside the sandbox, if any.
    pub packages_dir: Option<String>,
    /// The entry point ([`mote_spec::FunctionSpec::entry`]).
    pub entry: String,
    /// The maximum number of invocations at once. With `None`, the shim decides by the shape of the
    /// handler.
    pub concurrency: Option<u32>,
    /// Environment variables to set before the code is loaded.
    pub env: std::collections::BTreeMap<String, String>,
    /// Program and arguments to run once per invocation; empty for shims.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The maximum memory that the whole instance may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The platform whose contract the code follows; absent for `mote`'s own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compat: Option<mote_spec::Platform>,
    /// The platform's contract that the code follows, if the platform has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The services of the node to which the worker may send REQUEST frames.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<String>,
    /// Whether the worker serves no calls, but makes copies of itself after READY.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub seed: bool,
}

/// READY, as JSON: the worker reports that the function is loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Ready {
    /// Nanoseconds from LOAD to READY. During this time, the shim imports the code and runs `init`.
    pub init_ns: u64,
    /// Invocations that the worker runs at once. The engine may send a few more in advance.
    pub concurrency: u32,
    /// Shape of the handler that the worker found, shown by `mote describe` (for instance `handle`,
    /// `asgi`).
    pub shape: String,
    /// Whether handlers begin only once their whole body has arrived. The front then collects the
    /// body, and an incomplete body does not occupy a place of the worker.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole_bodies: bool,
    /// Why no copies of the worker can be made. Empty if they can be made; absent if the worker does
    /// not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_copies: Option<String>,
}

impl Ready {
    /// Limits a worker's claims. The concurrency is at least one and at most `concurrency_max`,
    /// which the function's limits allow. The shape is a word of up to [`SHAPE_CHARS_MAX`]
    /// printable characters, and the reason against copies a text of up to [`NO_COPIES_CHARS_MAX`].
    pub fn clamped(mut self, concurrency_max: u32) -> Self {
        self.concurrency = self.concurrency.clamp(1, concurrency_max.max(1));
        if self.shape.len() > SHAPE_CHARS_MAX || self.shape.contains(char::is_control) {
            let printable = self.shape.chars().filter(|letter| !letter.is_control());
            self.shape = printable.take(SHAPE_CHARS_MAX).collect();
        }
        if let Some(why) = &mut self.no_copies {
            let printable = why.chars().filter(|letter| !letter.is_control());
            *why = printable.take(NO_COPIES_CHARS_MAX).collect();
        }
        self
    }
}

/// ERROR, as JSON: why an invocation or a load failed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct WorkerError {
    /// Class of the error in the worker's language, for instance `ValueError`.
    pub kind: String,
    /// The error's text.
    pub message: String,
    /// Stack trace, empty if there is none.
    #[serde(default)]
    pub trace: String,
    /// t2 if the handler was entered, otherwise 0.
    #[serde(default)]
    pub entered_ns: u64,
    /// t3 if the handler was entered, otherwise 0.
    #[serde(default)]
    pub returned_ns: u64,
}

impl WorkerError {
    /// Cuts the texts to the lengths that the contract allows.
    pub fn clamped(mut self) -> Self {
        cut(&mut self.kind, ERROR_KIND_CHARS_MAX);
        cut(&mut self.message, ERROR_MESSAGE_CHARS_MAX);
        cut(&mut self.trace, ERROR_TRACE_CHARS_MAX);
        self
    }
}

fn cut(text: &mut String, chars_max: usize) {
    // A text has at most as many characters as bytes, so a text with few enough bytes is short
    // enough.
    if text.len() > chars_max
        && let Some((end, _)) = text.char_indices().nth(chars_max)
    {
        text.truncate(end);
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes([
        bytes[at],
        bytes[at + 1],
        bytes[at + 2],
        bytes[at + 3],
        bytes[at + 4],
        bytes[at + 5],
        bytes[at + 6],
        bytes[at + 7],
    ])
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;

    #[test]
    fn invoke_survives_the_wire() {
        let mut builder = Head::builder(b"POST", b"/x", b"a=b");
        builder.header(b"host", b"h");
        let head = builder.finish();
        let mut out = Vec::new();
        put_invoke(&mut out, 7, 11, 22, 33, 1, &head, b"body", true);
        let mut buffer = BytesMut::from(&out[..]);
        let (header, payload) = split_frame(&mut buffer).unwrap().unwrap();
        assert!(header.is_end() && header.stream == 7 && header.kind == FrameKind::Invoke);
        let invoke = Invoke::parse(&payload).unwrap();
        assert_eq!((invoke.sent_ns, invoke.id, invoke.remaining_ms), (11, 22, 33));
        assert_eq!(
            (invoke.method, invoke.path, invoke.query),
            (&b"POST"[..], &b"/x"[..], &b"a=b"[..])
        );
        assert_eq!((invoke.headers, invoke.body), (&b"host\nh\n"[..], &b"body"[..]));
        assert!(buffer.is_empty());
    }

    #[test]
    fn workers_receive_a_path_in_its_canonical_form() {
        let mut builder = Head::builder(b"GET", b"/AA%3ABB/%c3%bc", b"a=%3a");
        builder.header(b"host", b"h");
        let mut out = Vec::new();
        put_invoke(&mut out, 1, 1, 1, 1, 1, &builder.finish(), b"body", true);
        let mut buffer = BytesMut::from(&out[..]);
        let (_, payload) = split_frame(&mut buffer).unwrap().unwrap();
        assert!(buffer.is_empty());
        let invoke = Invoke::parse(&payload).unwrap();
        assert_eq!((invoke.method, invoke.path), (&b"GET"[..], &b"/AA:BB/%C3%BC"[..]));
        assert_eq!((invoke.query, invoke.headers), (&b"a=%3a"[..], &b"host\nh\n"[..]));
        assert_eq!(invoke.body, b"body");
    }

    #[test]
    fn every_cut_of_a_frame_waits_for_more() {
        let result = ResultHead {
            entered_ns: 1,
            returned_ns: 2,
            status: 201,
            headers: Bytes::from_static(b"a\nb\n"),
            body: Bytes::from_static(b"xyz"),
        };
        let mut out = Vec::new();
        result.put(&mut out, 3, true);
        for cut in 0..out.len() {
            let mut buffer = BytesMut::from(&out[..cut]);
            assert_eq!(split_frame(&mut buffer).unwrap(), None, "cut at {cut}");
        }
        let (_, payload) = split_frame(&mut BytesMut::from(&out[..])).unwrap().unwrap();
        assert_eq!(ResultHead::parse(payload).unwrap(), result);
    }

    #[test]
    fn a_frame_longer_than_its_kind_allows_is_refused_by_its_header() {
        for (kind, payload_bytes_max) in [
            (FrameKind::Hello, GREETING_BYTES_MAX),
            (FrameKind::Ready, GREETING_BYTES_MAX),
            (FrameKind::Body, CHUNK_BYTES_MAX),
            (FrameKind::Log, LOG_FIXED_BYTES + LOG_LINE_BYTES_MAX),
            (FrameKind::Credit, 4),
            (FrameKind::Error, ERROR_BYTES_MAX),
            (FrameKind::Invoke, 0),
            (FrameKind::Response, 0),
        ] {
            let split = |payload_bytes| {
                let mut out = Vec::new();
                put_header(&mut out, kind, 0, 1, payload_bytes);
                split_worker_frame(&mut BytesMut::from(&out[..]))
            };
            assert!(split(payload_bytes_max).is_ok(), "{kind:?}");
            let refused = WireError::Malformed(kind, "longer than its kind allows");
            assert_eq!(split(payload_bytes_max + 1), Err(refused), "{kind:?}");
        }
    }

    #[test]
    fn the_parts_of_an_answer_are_bounded() {
        let parse = |headers: usize, body: usize| {
            let head = ResultHead {
                entered_ns: 1,
                returned_ns: 2,
                status: 200,
                headers: vec![b'x'; headers].into(),
                body: vec![b'x'; body].into(),
            };
            let mut out = Vec::new();
            head.put(&mut out, 1, true);
            ResultHead::parse(Bytes::from(out).slice(HEADER_BYTES..)).map(|_| ())
        };
        assert_eq!(parse(HEADERS_BYTES_MAX, INLINE_BODY_BYTES_MAX), Ok(()));
        assert!(parse(HEADERS_BYTES_MAX + 1, 0).is_err());
        assert!(parse(0, INLINE_BODY_BYTES_MAX + 1).is_err());
    }

    #[test]
    fn what_a_worker_claims_is_clamped() {
        let ready = |concurrency, shape: &str| {
            Ready { init_ns: 1, concurrency, shape: shape.into(), ..Ready::default() }.clamped(8)
        };
        assert_eq!(ready(0, "handle").concurrency, 1);
        assert_eq!(ready(8, "handle").concurrency, 8);
        assert_eq!(ready(4_000_000_000, "handle").concurrency, 8);
        assert_eq!(ready(1, "async handle").shape, "async handle");
        assert_eq!(ready(1, "a\x1b[31m\n").shape, "a[31m");
        assert_eq!(ready(1, &"\u{e4}".repeat(99)).shape.chars().count(), SHAPE_CHARS_MAX);
        let long = "\u{1f600}".repeat(20_000);
        let error = WorkerError {
            kind: long.clone(),
            message: long.clone(),
            trace: long,
            entered_ns: 0,
            returned_ns: 0,
        };
        let error = error.clamped();
        let chars = |text: &str| text.chars().count();
        assert_eq!(chars(&error.kind), ERROR_KIND_CHARS_MAX);
        assert_eq!(chars(&error.message), ERROR_MESSAGE_CHARS_MAX);
        assert_eq!(chars(&error.trace), ERROR_TRACE_CHARS_MAX);
    }

    #[test]
    fn broken_headers_are_refused() {
        let header = |edit: &dyn Fn(&mut [u8; 12])| {
            let mut bytes = [0, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0];
            edit(&mut bytes);
            FrameHeader::parse(&bytes)
        };
        assert!(header(&|_| ()).is_ok());
        assert_eq!(header(&|b| b[4] = 0), Err(WireError::UnknownKind(0)));
        assert_eq!(header(&|b| b[4] = 99), Err(WireError::UnknownKind(99)));
        assert_eq!(header(&|b| b[5] = 2), Err(WireError::Reserved));
        assert_eq!(header(&|b| b[6] = 1), Err(WireError::Reserved));
        assert_eq!(header(&|b| b[3] = 1), Err(WireError::TooLong(1 << 24)));
    }
}
