//! Translates between a client's HTTP messages and one invocation: header fields, bodies and answers.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body as HttpBody, BodyDataStream};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use mote_core::body::{Body, BodyError, BodySource};
use mote_core::invocation::{Head, HeadBuilder, Reply, headers};
use mote_core::shares::Share;
use mote_spec::fields::is_set_by_node;
use mote_spec::hop_by_hop::{Named, is_hop_by_hop};
use tokio::time::Sleep;

/// How many bytes of a refused body are read at most, and for how long.
const DRAIN_BYTES_MAX: usize = 16 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the sender of a body may be silent. The node's own front has the same limit.
const BODY_SILENCE_MAX: Duration = Duration::from_secs(30);

/// Returns whether a field is left out, in both directions, because it applies to one connection or to
/// the framing.
fn is_left_out(name: &str) -> bool {
    // A program that receives header fields as variables would take `proxy` for its own HTTP_PROXY.
    is_hop_by_hop(name.as_bytes()) || matches!(name, "content-length" | "expect" | "proxy")
}

/// Begins the head of a call with the fields of a request, except the fields that `instead` replaces.
pub fn head(method: &str, target: &str, fields: &HeaderMap, instead: &[(&str, &str)]) -> Head {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut head = Head::builder(method.as_bytes(), path.as_bytes(), query.as_bytes());
    let named = Named::of(fields.get_all("connection").iter().map(HeaderValue::as_bytes));
    for (name, value) in fields {
        let replaced = instead.iter().any(|(other, _)| *other == name.as_str());
        let bytes = name.as_str().as_bytes();
        let stays = !is_left_out(name.as_str()) && !is_set_by_node(bytes) && !named.contains(bytes);
        if stays && !replaced {
            head.header(name.as_str().as_bytes(), value.as_bytes());
        }
    }
    put(&mut head, instead);
    head.finish()
}

fn put(head: &mut HeadBuilder, fields: &[(&str, &str)]) {
    for (name, value) in fields {
        // The node's own values fit on one line, and a client's value contains no line ends, so nothing
        // is lost here.
        head.header(name.as_bytes(), value.replace(['\r', '\n', '\0'], " ").as_bytes());
    }
}

/// The whole target of a request as text.
pub fn target(parts: &Parts) -> &str {
    parts.uri.path_and_query().map_or("/", |target| target.as_str())
}

/// Converts a request's body to the form that the function receives. A body longer than `limit_bytes`
/// is refused.
pub fn body(body: HttpBody, length: Option<u64>, limit_bytes: u64) -> Body {
    if length == Some(0) {
        return Body::Empty;
    }
    let stream = body.into_data_stream();
    let source = Limited { stream, left: limit_bytes, limit_bytes, silence: None };
    Body::Stream { source: Box::new(source), length }
}

/// Wraps `body` so that reading it fails as soon as `end` resolves, unless the body is complete by
/// then. `ended` becomes true if reading failed for that reason.
pub fn until(
    body: HttpBody,
    end: impl Future<Output = ()> + Send + 'static,
    ended: Arc<AtomicBool>,
) -> HttpBody {
    let mut stream = body.into_data_stream();
    let mut end = Box::pin(end);
    HttpBody::from_stream(futures_util::stream::poll_fn(move |cx| {
        if ended.load(Ordering::Relaxed) || end.as_mut().poll(cx).is_ready() {
            ended.store(true, Ordering::Relaxed);
            return Poll::Ready(Some(Err(axum::Error::new("it came too late"))));
        }
        stream.poll_next_unpin(cx)
    }))
}

/// Returns the length that the request declares for its body, if any.
pub fn declared_length(fields: &HeaderMap) -> Option<u64> {
    if fields.contains_key("transfer-encoding") {
        return None;
    }
    let declared = fields.get("content-length");
    declared.map_or(Some(0), |value| value.to_str().ok()?.parse().ok())
}

/// Reads and drops the rest of a refused body, within limits. If the connection were closed while the
/// client sends, the client might never read the reason for the refusal.
pub async fn drain(body: HttpBody) {
    let mut stream = body.into_data_stream();
    let reading = async {
        let mut left = DRAIN_BYTES_MAX;
        while let Some(Ok(chunk)) = stream.next().await {
            match left.checked_sub(chunk.len()) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, reading).await;
}

/// The reason why a piece of a body was not taken into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotTaken {
    /// The body is longer than its limit.
    TooLong,
    /// The body's sender, or all senders together, already use their share of memory.
    NoRoom,
}

/// Reserves a buffer for a body of the length that its sender declares.
pub fn expect(
    whole: &mut Vec<u8>,
    length: usize,
    limit_bytes: usize,
    room: &mut Share<IpAddr>,
) -> Result<(), NotTaken> {
    if length > limit_bytes {
        return Err(NotTaken::TooLong);
    }
    if length > whole.capacity() {
        room.grow(length - whole.capacity()).map_err(|_| NotTaken::NoRoom)?;
        whole.reserve_exact(length - whole.len());
    }
    Ok(())
}

/// Adds a piece to a body in memory of at most `limit_bytes`. `room` counts the memory of the body.
/// That may be twice the bytes that have arrived: without [`expect`], the buffer grows by doubling.
pub fn append(
    whole: &mut Vec<u8>,
    piece: &[u8],
    limit_bytes: usize,
    room: &mut Share<IpAddr>,
) -> Result<(), NotTaken> {
    let length = whole.len() + piece.len();
    if length > limit_bytes {
        return Err(NotTaken::TooLong);
    }
    if length > whole.capacity() {
        let wanted = length.max(2 * whole.capacity()).min(limit_bytes);
        expect(whole, wanted, limit_bytes, room)?;
    }
    whole.extend_from_slice(piece);
    Ok(())
}

struct Limited {
    stream: BodyDataStream,
    left: u64,
    limit_bytes: u64,
    /// The timer that ends a body whose sender is silent. It is set only while the node waits for the
    /// sender.
    silence: Option<Pin<Box<Sleep>>>,
}

impl BodySource for Limited {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            let chunk = match Pin::new(&mut self.stream).poll_next(cx) {
                Poll::Pending => {
                    let begin = || Box::pin(tokio::time::sleep(BODY_SILENCE_MAX));
                    let silence = self.silence.get_or_insert_with(begin).as_mut();
                    return silence.poll(cx).map(|()| Some(Err(BodyError::TimedOut)));
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Some(Err(BodyError::Incomplete))),
                Poll::Ready(Some(Ok(chunk))) => chunk,
            };
            if chunk.is_empty() {
                continue;
            }
            self.silence = None;
            match self.left.checked_sub(chunk.len() as u64) {
                Some(left) => self.left = left,
                None => return Poll::Ready(Some(Err(BodyError::TooLarge(self.limit_bytes)))),
            }
            return Poll::Ready(Some(Ok(chunk)));
        }
    }
}

/// The chunks of an answer as a stream.
struct Chunks(Body);

impl Stream for Chunks {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_chunk(cx)
    }
}

/// The most header fields of an answer. Clients and proxies usually accept 100, which is far fewer; a
/// map of fields can hold far more.
pub(crate) const ANSWER_FIELDS_MAX: usize = 1_000;

/// The answer has more header fields than can be passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the function's answer has more than {ANSWER_FIELDS_MAX} header fields")]
pub(crate) struct TooManyFields;

/// Returns the fields of an answer, without those that HTTP cannot carry.
pub(crate) fn fields(block: &[u8]) -> Result<HeaderMap, TooManyFields> {
    let mut all = HeaderMap::new();
    for (name, value) in headers(block) {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
            && !is_left_out(name.as_str())
        {
            if all.len() == ANSWER_FIELDS_MAX {
                return Err(TooManyFields);
            }
            all.try_append(name, value).map_err(|_| TooManyFields)?;
        }
    }
    Ok(all)
}

/// Converts a function's answer, with the function's fields, to an HTTP response. An answer that cannot
/// be passed on becomes a 502 with the reason.
pub fn response(reply: Reply) -> Response {
    let fields = match fields(&reply.headers) {
        Ok(fields) => fields,
        Err(error) => return (StatusCode::BAD_GATEWAY, format!("{error}\n")).into_response(),
    };
    let body = match reply.body {
        Body::Empty => HttpBody::empty(),
        Body::Whole(bytes) => HttpBody::from(bytes),
        stream @ Body::Stream { .. } => HttpBody::from_stream(Chunks(stream)),
    };
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *response.headers_mut() = fields;
    response
}

/// Adds the fields that the status of the node's refusal calls for. If a key is missing, the answer
/// names the expected credentials (RFC 6750, 3). If the refusal is temporary, the answer says when
/// to try again.
pub fn challenge(response: &mut Response) {
    match response.status() {
        StatusCode::UNAUTHORIZED => set(response, "www-authenticate", "Bearer realm=\"mote\""),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            set(response, "retry-after", "1");
        }
        _ => {}
    }
}

/// Sets a field that belongs to the node, replacing a field of the same name from the function.
pub fn set(response: &mut Response, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(HeaderName::from_static(name), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_drop_what_speaks_of_the_connection() {
        let mut fields = HeaderMap::new();
        for (name, value) in [
            ("x-a", "1"),
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("http2-settings", "AA"),
            ("content-length", "3"),
        ] {
            fields.insert(name, value.parse().expect("a value"));
        }
        fields.insert("x-call-id", "theirs".parse().expect("a value"));
        let head = head("POST", "/a/b?c=1", &fields, &[("x-call-id", "ou\nrs")]);
        assert_eq!((head.path(), head.query()), (&b"/a/b"[..], &b"c=1"[..]));
        assert_eq!(head.headers(), b"x-a\n1\nx-call-id\nou rs\n");
    }

    #[test]
    fn answers_with_very_many_fields_are_refused_and_nothing_panics() {
        let block = |count: usize| {
            let mut block = Vec::new();
            for n in 0..count {
                mote_core::invocation::put_header(&mut block, format!("x-{n}").as_bytes(), b"v");
            }
            block
        };
        let answer = |count| {
            let headers = block(count).into();
            let body = Body::whole("body");
            response(Reply { status: 201, headers, body, phases: Default::default() })
        };
        let fits = answer(ANSWER_FIELDS_MAX);
        assert_eq!((fits.status().as_u16(), fits.headers().len()), (201, ANSWER_FIELDS_MAX));
        for count in [ANSWER_FIELDS_MAX + 1, 40_000] {
            assert_eq!(answer(count).status(), StatusCode::BAD_GATEWAY, "{count} fields");
        }
    }

    #[test]
    fn lengths() {
        let length = |fields: &[(&'static str, &str)]| {
            let parse = |value: &str| value.parse().expect("a value");
            let all = fields.iter().map(|(n, v)| (HeaderName::from_static(n), parse(v)));
            declared_length(&all.collect())
        };
        assert_eq!(length(&[]), Some(0));
        assert_eq!(length(&[("content-length", "12")]), Some(12));
        assert_eq!(length(&[("transfer-encoding", "chunked")]), None);
    }
}
