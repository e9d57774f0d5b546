//! The part of gRPC that one unary method needs: HTTP/2, a prefix of five bytes before each
//! message, and the outcome in trailers. The two messages are fields of text (`tinyfaas.proto`):
//! `Request(Data { functionIdentifier = 1, data = 2 }) returns (Response { response = 1 })`.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Method, Request, Response};
use bytes::{Buf, BufMut as _, Bytes, BytesMut};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use mote_compat::Bound;
use mote_compat::call::{self, NotTaken, append, expect};
use mote_compat::connection::{Metered, Patient, until};
use mote_compat::node::{Call, Invocations};
use mote_compat::queue::Later;
use mote_core::Fault;
use mote_core::body::Body;
use mote_core::shares::{Share, Shares, address_owner};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

/// The path of the method.
const PATH: &str = "/openfogstack.tinyfaas.tinyfaas.TinyFaaS/Request";
/// Longest message in either direction, as is the default of gRPC servers.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Calls of one connection at once.
const STREAMS_MAX: u32 = 128;
/// How often the front checks that a silent client is still alive.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// How often a connection is checked, and how long it may be without calls. Clients connect again
/// for their next call.
const LOOK: Duration = Duration::from_secs(10);
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a connection may be without its first call. The same limit applies to calls that make
/// no progress while no function runs for them: their message does not continue, or their answer is
/// not read.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for the arrival of one message.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of calls and their messages in memory, in both directions, of all clients; one address may
/// use half. A call above the limit is refused with RESOURCE_EXHAUSTED.
const MESSAGES_BYTES_MAX: usize = 16 << 20;
/// Bytes that a call counts in addition to its metadata and its message: an open HTTP/2 stream uses
/// memory even if nothing arrives on it.
const CALL_BYTES: usize = 4 << 10;
/// Bytes that a client may send ahead on one stream and on the connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// Outcomes (google.golang.org/grpc/codes numbers).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Code {
    Ok = 0,
    Unknown = 2,
    InvalidArgument = 3,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unauthenticated = 16,
}

type Failure = (Code, String);

/// The context of the gRPC front.
pub type GrpcContext = mote_compat::Context<dyn Invocations>;

/// Serves the method until the node stops.
pub async fn serve(bound: Bound, context: GrpcContext) {
    let memory = Shares::new(MESSAGES_BYTES_MAX, MESSAGES_BYTES_MAX / 2);
    let stop = context.stop.clone();
    let one = move |stream, peer| one(stream, peer, context.clone(), memory.clone());
    bound.serve_with(one, stop).await;
}

async fn one<S>(stream: S, peer: SocketAddr, context: GrpcContext, memory: Memory)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if let Err(error) = converse(stream, peer, context, memory).await {
        tracing::debug!(%error, %peer, "gRPC connection ended");
    }
}

/// Bytes of messages by the address that sent them or will receive them.
type Memory = Shares<IpAddr>;

async fn converse<S>(
    stream: S,
    peer: SocketAddr,
    context: GrpcContext,
    memory: Memory,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let calls = Arc::new(Calls::default());
    let (shared, counted) = (context.clone(), calls.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (context, calls, memory) = (shared.clone(), counted.clone(), memory.clone());
        async move { Ok::<_, Infallible>(answer(&context, request, calls, memory, peer).await) }
    });
    let stream = TokioIo::new(Patient::new(Metered::new(stream)));
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .serve_connection(stream, service);
    let idle_or_stopped = async {
        tokio::select! {
            () = calls.idle() => {}
            () = context.stop.stopped() => {}
        }
    };
    let served = until(connection, |connection| connection.graceful_shutdown(), idle_or_stopped);
    tokio::select! {
        ended = served => ended,
        () = calls.stalled() => Ok(()),
    }
}

/// The state of the calls of one connection.
#[derive(Default)]
struct Calls {
    /// Calls that have begun and whose answer has not been sent.
    open: AtomicUsize,
    /// Calls whose function runs.
    running: AtomicUsize,
    /// Rises whenever a call begins or ends, or when a part of a message arrives or is sent.
    moved: AtomicUsize,
}

impl Calls {
    fn moved(&self) {
        self.moved.fetch_add(1, Ordering::Relaxed);
    }

    /// Resolves when there was no call for longer than an idle connection may stay open.
    async fn idle(&self) {
        self.still(IDLE_TIMEOUT, || self.open.load(Ordering::Relaxed) == 0).await;
    }

    /// Resolves when the client keeps the connection open and does nothing with it.
    async fn stalled(&self) {
        let waits = || {
            let (open, running) = (self.open.load(Ordering::Relaxed), &self.running);
            let never_called = self.moved.load(Ordering::Relaxed) == 0;
            never_called || (open > 0 && running.load(Ordering::Relaxed) == 0)
        };
        self.still(STALL_TIMEOUT, waits).await;
    }

    /// Resolves when nothing has changed for `timeout` while `state` held.
    async fn still(&self, timeout: Duration, state: impl Fn() -> bool) {
        let mut moved = self.moved.load(Ordering::Relaxed);
        let mut since = Instant::now();
        loop {
            tokio::time::sleep(LOOK).await;
            let now_moved = self.moved.load(Ordering::Relaxed);
            if now_moved != moved || !state() {
                (moved, since) = (now_moved, Instant::now());
            } else if since.elapsed() >= timeout {
                return;
            }
        }
    }
}

/// One call, open until it is dropped, and the memory of its messages.
struct OpenCall {
    calls: Arc<Calls>,
    memory: Share<IpAddr>,
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.calls.moved();
        self.calls.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer that is being sent: its call is open until hyper and h2 have sent it.
struct Answer {
    bytes: Bytes,
    call: OpenCall,
}

impl Buf for Answer {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }
    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }
    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.call.calls.moved();
    }
}

async fn answer(
    context: &GrpcContext,
    request: Request<Incoming>,
    calls: Arc<Calls>,
    memory: Memory,
    peer: SocketAddr,
) -> Response<BoxBody<Answer, Infallible>> {
    calls.open.fetch_add(1, Ordering::Relaxed);
    calls.moved();
    let memory = memory.take(address_owner(peer.ip()), 0).expect("nothing always fits");
    let mut call = OpenCall { calls, memory };
    let (code, message, body) = match run(context, request, peer.ip(), &mut call).await {
        Ok(text) => (Code::Ok, String::new(), framed(&field(1, text.as_ref()))),
        Err((code, message)) => (code, message, Bytes::new()),
    };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(code as u16));
    if let Ok(text) = HeaderValue::from_str(&percent_encoded(&message))
        && !message.is_empty()
    {
        trailers.insert("grpc-message", text);
    }
    let body = if body.is_empty() {
        // The answer has only an outcome, which is sent with the head.
        let mut response = Response::new(Empty::new().boxed());
        *response.headers_mut() = trailers;
        response
    } else {
        let trailers = async move { Some(Ok(trailers)) };
        let body = Full::new(Answer { bytes: body, call });
        Response::new(body.with_trailers(trailers).boxed())
    };
    let mut response = body;
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert("content-type", kind);
    response
}

/// Reads a request's message, whose bytes are counted as they arrive.
async fn message(mut body: Incoming, call: &mut OpenCall) -> Result<Bytes, Failure> {
    let too_long = || (Code::ResourceExhausted, "message is longer than 4 MiB".to_owned());
    let refused = |not_taken| match not_taken {
        NotTaken::TooLong => too_long(),
        NotTaken::NoRoom => crowded(),
    };
    let (mut whole, limit) = (Vec::new(), MESSAGE_BYTES_MAX + 5);
    while let Some(frame) = body.frame().await {
        let broken = |_| (Code::InvalidArgument, "the message broke off".to_owned());
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        call.calls.moved();
        if let (true, Some(prefix)) = (whole.is_empty(), data.get(1..5)) {
            let length = u32::from_be_bytes(prefix.try_into().expect("four bytes")) as usize;
            expect(&mut whole, length.saturating_add(5), limit, &mut call.memory)
                .map_err(refused)?;
        }
        append(&mut whole, &data, limit, &mut call.memory).map_err(refused)?;
    }
    Ok(whole.into())
}

fn crowded() -> Failure {
    let text = format!(
        "calls and messages of {} MiB are in memory ({} MiB of one address): try again",
        MESSAGES_BYTES_MAX >> 20,
        MESSAGES_BYTES_MAX >> 21
    );
    (Code::ResourceExhausted, text)
}

async fn run(
    context: &GrpcContext,
    request: Request<Incoming>,
    from: IpAddr,
    open: &mut OpenCall,
) -> Result<Bytes, Failure> {
    let (parts, body) = request.into_parts();
    let fields = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    open.memory.grow(CALL_BYTES + fields.sum::<usize>()).map_err(|_| crowded())?;
    let kind = parts.headers.get("content-type").map(HeaderValue::as_bytes).unwrap_or_default();
    if parts.method != Method::POST || !kind.starts_with(b"application/grpc") {
        return Err((Code::Unimplemented, "send gRPC".to_owned()));
    }
    if parts.uri.path() != PATH {
        return Err((Code::Unimplemented, format!("there is {PATH}")));
    }
    let received = tokio::time::timeout(MESSAGE_TIMEOUT, message(body, open)).await;
    let late = |_| (Code::InvalidArgument, "the message was not received in time".to_owned());
    let data = Data::parse(&unframed(received.map_err(late)??)?)?;
    let name = data.function.to_ascii_lowercase();
    let Some(limit_bytes) = context.node.body_bytes_max(&name) else {
        return Err((
            Code::Unknown,
            format!("function {} not found", mote_compat::shown(&data.function)),
        ));
    };
    if data.data.len() as u64 > limit_bytes {
        let text = Fault::BodyTooLarge { limit_bytes }.public_text(&name);
        return Err((Code::ResourceExhausted, text));
    }
    let failed = || (Code::Unknown, format!("error calling function {name}"));
    // The type that functions of tinyFaaS see when their caller names none.
    let kind = [("content-type", "application/binary")];
    let mut head = call::head("POST", "/", &metadata(&parts.headers), &kind);
    let admitted = context.node.admit(&name, &mut head, from);
    admitted.map_err(|fault| (code_of(&fault), fault.public_text(&name)))?;
    if parts.headers.get("x-tinyfaas-async").is_some_and(|value| !value.is_empty()) {
        let fields = Bytes::copy_from_slice(head.headers());
        let later = Later::plain(&name, fields, data.data);
        context.queue.accept(later).await.map_err(|_| failed())?;
        return Ok(Bytes::new());
    }
    let call =
        Call { function: name.clone(), head, body: Body::whole(data.data), timeout_ms: None };
    let running = Running::new(&open.calls);
    let reply = match context.node.invoke(call).await {
        Ok(reply) => reply,
        // A function that failed counts as having answered, whatever its contract.
        Err(fault @ Fault::HandlerError { .. }) => return Ok(fault.public_text(&name).into()),
        Err(_) => return Err(failed()),
    };
    let body = reply.body.collect(MESSAGE_BYTES_MAX as u64).await;
    let body = body.map_err(|_| (Code::ResourceExhausted, "answer is too long".to_owned()))?;
    drop(running);
    open.memory.grow(body.len()).map_err(|_| crowded())?;
    match std::str::from_utf8(&body) {
        Ok(_) => Ok(body),
        Err(_) => {
            Err((Code::Internal, "answer is not UTF-8, as the message's field is".to_owned()))
        }
    }
}

/// The outcome of a call whose sender may not call the function.
fn code_of(fault: &Fault) -> Code {
    match fault.answer().http {
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        429 => Code::ResourceExhausted,
        _ => Code::Unknown,
    }
}

/// Counts a running function until it is dropped.
struct Running(Arc<Calls>);

impl Running {
    fn new(calls: &Arc<Calls>) -> Self {
        calls.running.fetch_add(1, Ordering::Relaxed);
        Self(calls.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.moved();
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The caller's own fields, without those that gRPC itself sends.
fn metadata(fields: &HeaderMap) -> HeaderMap {
    let own = |name: &str| !name.starts_with("grpc-") && !matches!(name, "content-type" | "te");
    let mut kept = HeaderMap::new();
    for name in fields.keys().filter(|name| own(name.as_str())) {
        if let Some(first) = fields.get(name) {
            kept.insert(name, first.clone());
        }
    }
    kept
}

/// The one message of a request.
fn unframed(body: Bytes) -> Result<Bytes, Failure> {
    let bad = || (Code::InvalidArgument, "not one gRPC message".to_owned());
    let (prefix, message) = body.split_first_chunk::<5>().ok_or_else(bad)?;
    if prefix[0] != 0 {
        return Err((Code::Unimplemented, "compressed messages are not read".to_owned()));
    }
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
    if message.len() != length as usize {
        return Err(bad());
    }
    Ok(body.slice(5..))
}

fn framed(message: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(5 + message.len());
    out.put_u8(0);
    out.put_u32(message.len() as u32);
    out.put_slice(message);
    out.freeze()
}

/// A text field; no bytes for an empty one, as proto3 specifies.
fn field(number: u8, text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 6);
    if text.is_empty() {
        return out;
    }
    out.push(number << 3 | 2);
    let mut length = text.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(text);
    out
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Data {
    function: String,
    data: Bytes,
}

impl Data {
    /// Reads the message; unknown fields are skipped, and the last of several equal fields applies.
    fn parse(message: &Bytes) -> Result<Self, Failure> {
        let mut data = Self::default();
        let mut at = 0;
        while at < message.len() {
            let key = varint(message, &mut at)?;
            let length = match key & 7 {
                0 => {
                    varint(message, &mut at)?;
                    continue;
                }
                1 => 8,
                2 => usize::try_from(varint(message, &mut at)?).map_err(|_| not_data())?,
                5 => 4,
                _ => return Err(not_data()),
            };
            let end = at.checked_add(length).filter(|end| *end <= message.len());
            let end = end.ok_or_else(not_data)?;
            let text = message.slice(at..end);
            at = end;
            match key {
                // Fields 1 and 2, of wire type 2.
                0x0a => data.function = String::from_utf8(text.to_vec()).map_err(|_| not_data())?,
                0x12 => data.data = text,
                _ => {}
            }
        }
        Ok(data)
    }
}

/// The function and the data of a request.
#[cfg(feature = "fuzzing")]
pub fn read(body: Bytes) -> Option<(String, Bytes)> {
    let Data { function, data } = Data::parse(&unframed(body).ok()?).ok()?;
    Some((function, data))
}

/// A request with this function and these data.
#[cfg(feature = "fuzzing")]
pub fn written(function: &str, data: &[u8]) -> Bytes {
    framed(&[field(1, function.as_bytes()), field(2, data)].concat())
}

fn not_data() -> Failure {
    (Code::InvalidArgument, "not a message of type Data".to_owned())
}

fn varint(message: &[u8], at: &mut usize) -> Result<u64, Failure> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *message.get(*at).ok_or_else(not_data)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(not_data())
}

/// A message as gRPC writes it in a header: `%` and all bytes that are not printable ASCII are
/// percent-encoded.
fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages() {
        let long = "x".repeat(300);
        for (function, text) in [("f", "a"), ("", ""), ("sieve", long.as_str())] {
            let message = [field(1, function.as_bytes()), field(2, text.as_bytes())].concat();
            let framed = framed(&message);
            let data = Data::parse(&unframed(framed).expect("one")).expect("readable");
            assert_eq!((data.function.as_str(), &data.data[..]), (function, text.as_bytes()));
        }
        // Unknown fields of every type are skipped.
        let message = [&[0x18, 0xff, 0x01, 0x21][..], &[0; 8], &[0x2d, 0, 0, 0, 0, 0x0a, 1, b'f']];
        let data = Data::parse(&Bytes::from(message.concat())).expect("readable");
        assert_eq!(data.function, "f");
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [&[0x0a][..], &[0x0a, 5, b'f'], &[0x0b], &[0x0a, 1, 0xff], &[0xff; 11]] {
            assert!(Data::parse(&Bytes::copy_from_slice(bytes)).is_err(), "{bytes:?}");
        }
        for frame in [&[][..], &[0, 0, 0, 0], &[0, 0, 0, 0, 2, 1], &[1, 0, 0, 0, 0]] {
            assert!(unframed(Bytes::copy_from_slice(frame)).is_err(), "{frame:?}");
        }
        assert_eq!(percent_encoded("grün 5%"), "gr%C3%BCn 5%25");
    }

    use futures_util::FutureExt as _;
    use tokio::io::DuplexStream;

    type Serving = tokio::task::JoinHandle<hyper::Result<()>>;

    /// A connection to a node whose functions never answer, and the task that serves it.
    fn served(memory: &Memory) -> (DuplexStream, Serving) {
        let never = |_| async { std::future::pending().await }.boxed();
        let node = Arc::new(mote_compat::fake::Fake::new(never));
        let nothing = Arc::new(mote_compat::fake::Nothing);
        let queue = mote_compat::Queue::new(node.clone(), nothing, Default::default());
        let (stopper, stop) = tokio::sync::watch::channel(false);
        // The node never stops.
        std::mem::forget(stopper);
        let stop = mote_compat::Stop::new(stop);
        let context = GrpcContext { node, queue, stop };
        let (client, server) = tokio::io::duplex(64 << 10);
        let peer = SocketAddr::from(([192, 0, 2, 1], 1));
        (client, tokio::spawn(converse(server, peer, context, memory.clone())))
    }

    async fn client(stream: DuplexStream) -> h2::client::SendRequest<Bytes> {
        let (sender, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
        tokio::spawn(connection);
        sender.ready().await.expect("a connection")
    }

    fn call_of() -> Request<()> {
        let request = Request::post(format!("http://a{PATH}"));
        request.header("content-type", "application/grpc").body(()).expect("a request")
    }

    /// The first `length` bytes of a message of 4 MiB.
    fn begun(length: usize) -> Bytes {
        let mut begun = framed(&vec![b'x'; MESSAGE_BYTES_MAX]).to_vec();
        begun.truncate(length);
        begun.into()
    }

    async fn within(serving: Serving, limit: Duration) {
        let since = Instant::now();
        let ended = tokio::time::timeout(Duration::from_secs(3_600), serving).await;
        let _ = ended.expect("the connection ends").expect("without a panic");
        assert!(since.elapsed() <= limit, "after {:?}", since.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_nothing_is_not_waited_for() {
        let memory = Shares::new(MESSAGES_BYTES_MAX, MESSAGES_BYTES_MAX / 2);
        let limit = STALL_TIMEOUT + 2 * LOOK;
        let (_silent, serving) = served(&memory);
        within(serving, limit).await;
        let (stream, serving) = served(&memory);
        let _without_calls = client(stream).await;
        within(serving, limit).await;
        let (stream, serving) = served(&memory);
        let mut sender = client(stream).await;
        let (_answer, mut body) = sender.send_request(call_of(), false).expect("sent");
        body.send_data(begun(100), false).expect("sent");
        within(serving, limit).await;
        assert_eq!(memory.taken(), 0);
        // The connection waits for a call whose function runs.
        let (stream, serving) = served(&memory);
        let mut sender = client(stream).await;
        let (_answer, mut body) = sender.send_request(call_of(), false).expect("sent");
        body.send_data(framed(&field(1, b"slow")), true).expect("sent");
        tokio::time::sleep(10 * limit).await;
        assert!(!serving.is_finished());
    }

    #[tokio::test]
    async fn calls_without_a_message_take_bounded_memory() {
        let share = 40 * CALL_BYTES;
        let memory = Shares::new(2 * share, share);
        let (stream, serving) = served(&memory);
        tokio::spawn(serving);
        let mut sender = client(stream).await;
        let mut calls = Vec::new();
        for _ in 0..100 {
            calls.push(sender.send_request(call_of(), false).expect("sent"));
            sender = sender.ready().await.expect("room for a stream");
        }
        let (last, _body) = calls.pop().expect("a hundred");
        let answer = tokio::time::timeout(Duration::from_secs(20), last).await;
        let answer = answer.expect("it is refused").expect("an answer");
        assert_eq!(answer.headers()["grpc-status"], "8");
        let other = IpAddr::from([192, 0, 2, 2]);
        assert!(memory.take(other, share).is_ok(), "others have theirs");
    }

    #[tokio::test]
    async fn messages_that_are_not_whole_take_bounded_memory() {
        let share = MESSAGES_BYTES_MAX / 2;
        let memory = Shares::new(MESSAGES_BYTES_MAX, share);
        let mut answers = Vec::new();
        let mut open = Vec::new();
        for _ in 0..3 {
            let (stream, serving) = served(&memory);
            let mut sender = client(stream).await;
            for _ in 0..4 {
                let (answer, mut body) = sender.send_request(call_of(), false).expect("sent");
                body.send_data(begun(MESSAGE_BYTES_MAX), false).expect("sent");
                answers.push(Box::pin(answer));
                open.push(body);
            }
            tokio::spawn(serving);
            // If the sender were dropped, the connection would end with its streams.
            std::mem::forget(sender);
        }
        let first = futures_util::future::select_all(answers);
        let (first, ..) =
            tokio::time::timeout(Duration::from_secs(20), first).await.expect("one is refused");
        let first = first.expect("an answer");
        assert_eq!(first.headers()["grpc-status"], "8");
        let other = IpAddr::from([192, 0, 2, 2]);
        assert!(memory.taken() <= share);
        assert!(memory.take(other, share).is_ok(), "others have theirs");
    }
}
