//! gRPC, as much of it as one unary method takes: HTTP/2, a prefix of five bytes before each message,
//! the outcome in trailers. The two messages are fields of text (`tinyfaas.proto`):
//! `Request(Data { functionIdentifier = 1, data = 2 }) returns (Response { response = 1 })`.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::http::{HeaderMap, HeaderValue, Method, Request, Response};
use bytes::{BufMut as _, Bytes, BytesMut};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use mote_core::Fault;
use mote_core::body::Body;
use tokio::net::TcpStream;

use crate::call;
use crate::listener::drive;
use crate::node::Call;
use crate::queue::Later;
use crate::{Bound, Context};

/// The method.
const PATH: &str = "/openfogstack.tinyfaas.tinyfaas.TinyFaaS/Request";
/// Longest message in either direction, as gRPC servers have it by default.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Calls of one connection at once.
const STREAMS_MAX: u32 = 128;
/// How often an idle connection is looked at, and how long it may be silent then.
const KEEP_ALIVE: std::time::Duration = std::time::Duration::from_secs(60);

/// Outcomes (google.golang.org/grpc/codes numbers).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Code {
    Ok = 0,
    Unknown = 2,
    InvalidArgument = 3,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
}

type Failure = (Code, String);

/// Serves the method until the node stops.
pub async fn serve(bound: Bound, context: Context) {
    bound.serve_with(one, context).await;
}

async fn one(stream: TcpStream, peer: SocketAddr, context: Context) {
    let shared = context.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let context = shared.clone();
        async move { Ok::<_, Infallible>(answer(&context, request).await) }
    });
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .max_concurrent_streams(STREAMS_MAX)
        .serve_connection(TokioIo::new(stream), service);
    drive(connection, |connection| connection.graceful_shutdown(), peer, &context).await;
}

async fn answer(
    context: &Context,
    request: Request<Incoming>,
) -> Response<BoxBody<Bytes, Infallible>> {
    let (code, message, body) = match run(context, request).await {
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
        // Nothing but the outcome: it goes with the head.
        let mut response = Response::new(Full::new(Bytes::new()).boxed());
        *response.headers_mut() = trailers;
        response
    } else {
        let trailers = async move { Some(Ok(trailers)) };
        Response::new(Full::new(body).with_trailers(trailers).boxed())
    };
    let mut response = body;
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert("content-type", kind);
    response
}

async fn run(context: &Context, request: Request<Incoming>) -> Result<Bytes, Failure> {
    let (parts, body) = request.into_parts();
    let kind = parts.headers.get("content-type").map(HeaderValue::as_bytes).unwrap_or_default();
    if parts.method != Method::POST || !kind.starts_with(b"application/grpc") {
        return Err((Code::Unimplemented, "send gRPC".to_owned()));
    }
    if parts.uri.path() != PATH {
        return Err((Code::Unimplemented, format!("there is {PATH}")));
    }
    let limited = Limited::new(body, MESSAGE_BYTES_MAX + 5).collect().await;
    let too_long = |_| (Code::ResourceExhausted, "message is longer than 4 MiB".to_owned());
    let data = Data::parse(&unframed(limited.map_err(too_long)?.to_bytes())?)?;
    let name = data.function.to_ascii_lowercase();
    let Some(limit_bytes) = context.node.body_bytes_max(&name) else {
        return Err((
            Code::Unknown,
            format!("function {} not found", crate::shown(&data.function)),
        ));
    };
    if data.data.len() as u64 > limit_bytes {
        let text = Fault::BodyTooLarge { limit_bytes }.public_text(&name);
        return Err((Code::ResourceExhausted, text));
    }
    let failed = || (Code::Unknown, format!("error calling function {name}"));
    // What functions of tinyFaaS see when their caller names no type.
    let kind = [("content-type", "application/binary")];
    let head = call::head("POST", "/", &metadata(&parts.headers), &kind);
    if parts.headers.get("x-tinyfaas-async").is_some_and(|value| !value.is_empty()) {
        let fields = Bytes::copy_from_slice(head.headers());
        let later = Later::plain(&name, fields, data.data);
        context.queue.accept(&later).await.map_err(|_| failed())?;
        return Ok(Bytes::new());
    }
    let call =
        Call { function: name.clone(), head, body: Body::whole(data.data), timeout_ms: None };
    let reply = match context.node.invoke(call).await {
        Ok(reply) => reply,
        // A function that failed has answered, whatever its contract.
        Err(fault @ Fault::HandlerError { .. }) => return Ok(fault.public_text(&name).into()),
        Err(_) => return Err(failed()),
    };
    let body = reply.body.collect(MESSAGE_BYTES_MAX as u64).await;
    let body = body.map_err(|_| (Code::ResourceExhausted, "answer is too long".to_owned()))?;
    match std::str::from_utf8(&body) {
        Ok(_) => Ok(body),
        Err(_) => {
            Err((Code::Internal, "answer is not UTF-8, as the message's field is".to_owned()))
        }
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

/// A field of text; nothing for an empty one, as proto3 has it.
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
    /// Reads the message; fields it does not know are skipped, the last of several holds.
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
                // 1 and 2, of type 2.
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
pub(crate) fn read(body: Bytes) -> Option<(String, Bytes)> {
    let Data { function, data } = Data::parse(&unframed(body).ok()?).ok()?;
    Some((function, data))
}

#[cfg(feature = "fuzzing")]
pub(crate) fn written(function: &str, data: &[u8]) -> Bytes {
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

/// A message as gRPC writes it in a header: what is not printable ASCII, and `%`, in percent form.
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
}
