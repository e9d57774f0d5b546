//! gRPC, as far as tinyFaaS' one unary method needs it: a prefix of five bytes before each message, and
//! the outcome in trailers. The two messages consist of text fields (`tinyfaas.proto`): `Request(Data {
//! functionIdentifier = 1, data = 2 }) returns (Response { response = 1 })`.
//!
//! The node's own HTTP front serves the connections. That front sees the method as the only
//! function. The method calls the function that the message names.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::compat::call::{NotTaken, append};
use crate::compat::node::{Call, Invocations};
use crate::compat::queue::{Later, Queue};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::future::{BoxFuture, FutureExt as _};
use mote_core::body::{Body, BodyError, BodySource};
use mote_core::invocation::{Head, Phases, Reply, RouteInfo, Routed, headers, put_header};
use mote_core::shares::{Share, Shares, address_owner};
use mote_core::{Fault, Invocation, Invoker};
use mote_spec::FunctionName;
use mote_spec::fields::is_set_by_node;

/// The name of the gRPC service. The method's path is below it.
const SERVICE: &str = "openfogstack.tinyfaas.tinyfaas.TinyFaaS";
const METHOD: &[u8] = b"/Request";
/// The longest message in either direction. The value is the default of gRPC servers.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Time limit for the arrival of one message.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// The most bytes of clients' messages in memory. One address may use half. A call above the limit is
/// refused with RESOURCE_EXHAUSTED. The limit does not cover answers, because a call that has run is
/// not refused; the front limits them.
const MESSAGES_BYTES_MAX: usize = 16 << 20;
/// The header field in which [`GrpcFront::admit`] passes the sender's address to the call.
const FROM_FIELD: &[u8] = b"mote-from";

/// The outcomes other than success, which is 0. The numbers are those of google.golang.org/grpc/codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Code {
    Unknown = 2,
    InvalidArgument = 3,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unauthenticated = 16,
}

type Failure = (Code, String);

/// Bytes of messages, by the address that sent them.
type Memory = Shares<IpAddr>;

/// The functions of a node, which are all called through one method.
#[derive(Clone)]
pub struct GrpcFront {
    node: Arc<dyn Invocations>,
    queue: Queue,
    memory: Memory,
}

impl GrpcFront {
    /// Makes the front for `node`. Calls whose answer nobody reads go through `queue`.
    pub fn new(node: Arc<dyn Invocations>, queue: Queue) -> Self {
        Self { node, queue, memory: Shares::new(MESSAGES_BYTES_MAX, MESSAGES_BYTES_MAX / 2) }
    }

    /// Runs a call. The future is behind a pointer so that its code is compiled in this crate, and not
    /// in the crate of the fronts, which is compiled for speed.
    fn answered(&self, invocation: Invocation) -> BoxFuture<'_, Reply> {
        async move {
            let called = self.call(&invocation.head, invocation.body).await;
            called.unwrap_or_else(|(code, message)| failure(code, &message))
        }
        .boxed()
    }

    async fn call(&self, head: &Head, body: Body) -> Result<Reply, Failure> {
        let from = sender(head);
        let owner = address_owner(from);
        let mut memory = self.memory.take(owner, 0).expect("nothing always fits");
        let field = |name: &[u8]| headers(head.headers()).find(|(known, _)| *known == name);
        let is_grpc =
            field(b"content-type").is_some_and(|(_, kind)| kind.starts_with(b"application/grpc"));
        if !is_grpc {
            return Err((Code::Unimplemented, "send gRPC".to_owned()));
        }
        if head.path() != METHOD {
            let method = String::from_utf8_lossy(METHOD);
            return Err((Code::Unimplemented, format!("there is /{SERVICE}{method}")));
        }
        let received = tokio::time::timeout(MESSAGE_TIMEOUT, message(body, &mut memory)).await;
        let late = |_| (Code::InvalidArgument, "the message was not received in time".to_owned());
        let data = Data::parse(&unframed(received.map_err(late)??)?)?;
        let name = data.function.to_ascii_lowercase();
        let Some(limit_bytes) = self.node.body_bytes_max(&name) else {
            let shown = crate::compat::shown(&data.function);
            return Err((Code::Unknown, format!("function {shown} not found")));
        };
        if data.data.len() as u64 > limit_bytes {
            let text = Fault::BodyTooLarge { limit_bytes }.public_text(&name);
            return Err((Code::ResourceExhausted, text));
        }
        let failed = || (Code::Unknown, format!("error calling function {name}"));
        let is_later = field(b"x-tinyfaas-async").is_some_and(|(_, value)| !value.is_empty());
        let mut head = metadata(head);
        let admitted = self.node.admit(&name, &mut head, from);
        admitted.map_err(|fault| (code_of(&fault), fault.public_text(&name)))?;
        if is_later {
            let fields = Bytes::copy_from_slice(head.headers());
            let later = Later::plain(&name, fields, data.data);
            self.queue.accept(later).await.map_err(|_| failed())?;
            return Ok(answer(&[], Phases::default()));
        }
        let call =
            Call { function: name.clone(), head, body: Body::whole(data.data), timeout_ms: None };
        let (body, phases) = match self.node.invoke(call).await {
            Ok(reply) => (reply.body, reply.phases),
            // A function that failed counts as having answered, whichever contract it uses.
            Err(fault @ Fault::HandlerError { .. }) => {
                (Body::whole(fault.public_text(&name)), Phases::default())
            }
            Err(_) => return Err(failed()),
        };
        let body = body.collect(MESSAGE_BYTES_MAX as u64).await;
        let body = body.map_err(|_| (Code::ResourceExhausted, "answer is too long".to_owned()))?;
        match std::str::from_utf8(&body) {
            Ok(_) => Ok(answer(&body, phases)),
            Err(_) => {
                Err((Code::Internal, "answer is not UTF-8, as the message's field is".to_owned()))
            }
        }
    }
}

impl Invoker for GrpcFront {
    type Route = Method;

    fn route(&self, name: &str, _key: impl FnOnce() -> Option<u64>) -> Option<Method> {
        (name == SERVICE).then_some(Method)
    }

    fn routes(&self) -> Vec<Method> {
        vec![Method]
    }

    /// Only notes the sender's address. Whether the sender may call the function can be checked only
    /// when the message has arrived, because the message names the function.
    fn admit(&self, _: &Method, head: &mut Head, from: Option<IpAddr>) -> Result<(), Fault> {
        let from = from.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        head.replace_header(FROM_FIELD, from.to_string().as_bytes());
        Ok(())
    }

    async fn invoke(&self, _: &Method, invocation: Invocation) -> Result<Reply, Fault> {
        Ok(self.answered(invocation).await)
    }
}

/// The only method of the service.
#[derive(Debug, Clone, Copy)]
pub struct Method;

impl Routed for Method {
    /// The time limit of a call is that of the called function. Messages that are too long are refused
    /// in gRPC's form, not by the front.
    fn info(&self) -> RouteInfo<'_> {
        static NAME: LazyLock<FunctionName> =
            LazyLock::new(|| FunctionName::new("request").expect("a valid name"));
        RouteInfo::new(&NAME, MESSAGE_TIMEOUT.as_millis() as u64, u64::MAX)
    }
}

/// An answer while it is sent: first the message, then the outcome.
struct Answer(Option<Bytes>);

impl BodySource for Answer {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        Poll::Ready(self.0.take().map(Ok))
    }

    fn take_trailers(&mut self) -> Bytes {
        Bytes::from_static(b"grpc-status\n0\n")
    }

    fn held_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, Bytes::len)
    }
}

fn answer(text: &[u8], phases: Phases) -> Reply {
    let source = Box::new(Answer(Some(framed(&field(1, text)))));
    let headers = Bytes::from_static(b"content-type\napplication/grpc\n");
    Reply { status: 200, headers, body: Body::Stream { source, length: None }, phases }
}

/// Returns an answer without a message. The outcome is sent with the head.
fn failure(code: Code, message: &str) -> Reply {
    let mut fields = Vec::new();
    put_header(&mut fields, b"content-type", b"application/grpc");
    put_header(&mut fields, b"grpc-status", (code as u16).to_string().as_bytes());
    put_header(&mut fields, b"grpc-message", percent_encoded(message).as_bytes());
    Reply { status: 200, headers: fields.into(), body: Body::Empty, phases: Phases::default() }
}

/// Returns the address that [`GrpcFront::admit`] noted.
fn sender(head: &Head) -> IpAddr {
    let noted = headers(head.headers()).find(|(name, _)| *name == FROM_FIELD);
    let noted = noted.and_then(|(_, value)| std::str::from_utf8(value).ok()?.parse().ok());
    noted.unwrap_or(Ipv4Addr::UNSPECIFIED.into())
}

/// Reads the message of a request. Its bytes are counted as they arrive.
async fn message(mut body: Body, memory: &mut Share<IpAddr>) -> Result<Bytes, Failure> {
    let too_long = || (Code::ResourceExhausted, "message is longer than 4 MiB".to_owned());
    let refused = |not_taken| match not_taken {
        NotTaken::TooLong => too_long(),
        NotTaken::NoRoom => crowded(),
    };
    let mut whole = Vec::new();
    let limit = MESSAGE_BYTES_MAX + 5;
    while let Some(chunk) = body.chunk().await {
        let data =
            chunk.map_err(|_| (Code::InvalidArgument, "the message broke off".to_owned()))?;
        if let (true, Some(prefix)) = (whole.is_empty(), data.get(1..5)) {
            let length = u32::from_be_bytes(prefix.try_into().expect("four bytes")) as usize;
            // Memory is reserved only for bytes that arrive, because a client may announce many and
            // send none.
            if length > MESSAGE_BYTES_MAX {
                return Err(too_long());
            }
        }
        append(&mut whole, &data, limit, memory).map_err(refused)?;
    }
    Ok(whole.into())
}

fn crowded() -> Failure {
    let text = format!(
        "messages of {} MiB are in memory ({} MiB of one address): try again",
        MESSAGES_BYTES_MAX >> 20,
        MESSAGES_BYTES_MAX >> 21
    );
    (Code::ResourceExhausted, text)
}

/// Returns the outcome of a call whose sender may not call the function.
fn code_of(fault: &Fault) -> Code {
    match fault.answer().http {
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        429 => Code::ResourceExhausted,
        _ => Code::Unknown,
    }
}

/// Returns the head of a call. It has the first value of each of the caller's own fields, without
/// the fields that gRPC itself sends. If the caller names no content type, the head also has the
/// type that tinyFaaS functions then see.
fn metadata(sent: &Head) -> Head {
    let own = |name: &[u8]| {
        let is_grpc = name.starts_with(b"grpc-") || matches!(name, b"content-type" | b"te");
        !is_grpc && name != FROM_FIELD && !is_set_by_node(name)
    };
    let mut kept = Vec::new();
    let mut head = Head::builder(b"POST", b"/", b"");
    for (name, value) in headers(sent.headers()).filter(|(name, _)| own(name)) {
        if !kept.contains(&name) {
            kept.push(name);
            head.header(name, value);
        }
    }
    head.header(b"content-type", b"application/binary");
    head.finish()
}

/// Returns the one message of a request without its prefix.
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

/// Encodes a text field. An empty field takes no bytes, as proto3 specifies.
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
    /// Parses the message. Unknown fields are skipped. If a field appears more than once, its last
    /// value applies.
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
                // These are the fields 1 and 2, of wire type 2.
                0x0a => data.function = String::from_utf8(text.to_vec()).map_err(|_| not_data())?,
                0x12 => data.data = text,
                _ => {}
            }
        }
        Ok(data)
    }
}

/// Returns the function and the data of a request.
#[cfg(feature = "fuzzing")]
pub fn read(body: Bytes) -> Option<(String, Bytes)> {
    let Data { function, data } = Data::parse(&unframed(body).ok()?).ok()?;
    Some((function, data))
}

/// Encodes a request with this function and data.
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

/// Encodes a message for a gRPC header: `%` and all bytes that are not printable ASCII are
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

    use mote_core::{InvocationId, Trigger};

    /// Returns the method over a node whose functions answer with the body that they receive.
    fn front() -> GrpcFront {
        let echo = |call: Call| {
            async move {
                let reply = |body| Reply {
                    status: 200,
                    headers: Bytes::new(),
                    body: Body::whole(body),
                    phases: Phases::default(),
                };
                Ok(reply(call.body.collect(u64::MAX).await.expect("a whole body")))
            }
            .boxed()
        };
        let node = Arc::new(crate::compat::fake::Fake::new(echo));
        let nothing = Arc::new(crate::compat::fake::Nothing);
        let queue = Queue::new(node.clone(), nothing, Default::default());
        GrpcFront::new(node, queue)
    }

    /// Makes a call in the same way as the HTTP front.
    async fn call(front: &GrpcFront, fields: &[(&str, &str)], body: Body) -> Reply {
        let mut head = Head::builder(b"POST", METHOD, b"");
        head.header(b"content-type", b"application/grpc");
        for (name, value) in fields {
            head.header(name.as_bytes(), value.as_bytes());
        }
        let mut head = head.finish();
        let method = front.route(SERVICE, || None).expect("the method");
        front.admit(&method, &mut head, Some(IpAddr::from([192, 0, 2, 1]))).expect("admitted");
        let invocation = Invocation {
            id: InvocationId(1),
            trigger: Trigger::Http,
            head,
            body,
            received_ns: 0,
            deadline_ns: u64::MAX,
            chain: None,
        };
        front.invoke(&method, invocation).await.expect("an answer")
    }

    fn outcome(reply: &Reply) -> Option<&[u8]> {
        headers(&reply.headers).find(|(name, _)| *name == b"grpc-status").map(|(_, value)| value)
    }

    /// A body whose first part arrives, followed by silence.
    struct Begun(Option<Bytes>);

    impl BodySource for Begun {
        fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
            self.0.take().map_or(Poll::Pending, |bytes| Poll::Ready(Some(Ok(bytes))))
        }
    }

    /// Returns the first `length` bytes of a message that is `whole` bytes long.
    fn begun(whole: usize, length: usize) -> Body {
        let mut bytes = framed(&vec![b'x'; whole]);
        bytes.truncate(length);
        Body::Stream { source: Box::new(Begun(Some(bytes))), length: None }
    }

    #[tokio::test]
    async fn the_outcome_follows_the_message() {
        let front = front();
        let message = [field(1, b"f"), field(2, b"hello")].concat();
        let reply = call(&front, &[], Body::whole(framed(&message))).await;
        assert_eq!(outcome(&reply), None, "not before the message");
        let Body::Stream { mut source, .. } = reply.body else { panic!("no message") };
        let chunk = std::future::poll_fn(|cx| source.poll_chunk(cx)).await;
        assert_eq!(chunk.expect("a message").expect("whole"), framed(&field(1, b"hello")));
        assert!(std::future::poll_fn(|cx| source.poll_chunk(cx)).await.is_none());
        assert_eq!(source.take_trailers(), "grpc-status\n0\n");
        assert_eq!(front.memory.taken(), 0);
    }

    #[test]
    fn functions_see_what_the_caller_set() {
        let mut sent = Head::builder(b"POST", METHOD, b"");
        for (name, value) in [
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("grpc-timeout", "1S"),
            ("mote-from", "127.0.0.1"),
            ("mote-caller", "somebody"),
            ("x-sensor", "t1"),
            ("x-sensor", "t2"),
        ] {
            sent.header(name.as_bytes(), value.as_bytes());
        }
        let mut sent = sent.finish();
        let admitted = front().admit(&Method, &mut sent, Some(IpAddr::from([192, 0, 2, 1])));
        assert!(admitted.is_ok());
        assert_eq!(sender(&sent), IpAddr::from([192, 0, 2, 1]), "not what the client claims");
        let seen = metadata(&sent);
        assert_eq!(seen.headers(), b"x-sensor\nt1\ncontent-type\napplication/binary\n");
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_does_not_arrive_is_not_waited_for() {
        let front = front();
        let reply = call(&front, &[], begun(100, 50)).await;
        assert_eq!(outcome(&reply), Some(&b"3"[..]));
        let reply = call(&front, &[], begun(MESSAGE_BYTES_MAX + 1, 50)).await;
        assert_eq!(outcome(&reply), Some(&b"8"[..]), "longer than a message may be");
        assert_eq!(front.memory.taken(), 0);
    }

    #[tokio::test]
    async fn messages_that_are_not_whole_take_bounded_memory() {
        let front = front();
        let share = MESSAGES_BYTES_MAX / 2;
        // The announced length of a message does not use memory.
        for length in [100, MESSAGE_BYTES_MAX] {
            let calls: Vec<_> = (0..3)
                .map(|_| Box::pin(call(&front, &[], begun(MESSAGE_BYTES_MAX, length))))
                .collect();
            let first = futures_util::future::select_all(calls);
            let first = tokio::time::timeout(Duration::from_millis(200), first).await;
            assert_eq!(first.is_ok(), length > 100, "{length}");
        }
        let calls: Vec<_> = (0..3)
            .map(|_| Box::pin(call(&front, &[], begun(MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX))))
            .collect();
        let (first, ..) = futures_util::future::select_all(calls).await;
        assert_eq!(outcome(&first), Some(&b"8"[..]));
        let other = IpAddr::from([192, 0, 2, 2]);
        assert!(front.memory.taken() <= share);
        assert!(front.memory.take(other, share).is_ok(), "others have theirs");
    }
}
