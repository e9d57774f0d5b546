//! HTTP/2 with prior knowledge (RFC 9113), by hyper and h2; the same checks and the same answers.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use mote_core::body::{Body, BodyError, BodySource};
use mote_core::invocation::{Head, headers};
use mote_core::{Fault, Invocation, InvocationId, Invoker, RouteInfo, Trigger};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::answer;
use super::connection::find_route;
use super::head::{self, FIELDS_BYTES_MAX, FIELDS_MAX};
use super::listener::Front;
use super::target::{self, TARGET_BYTES_MAX, Target};
use crate::ids::{invocation_id, now_ns};
use crate::refusal::Refusal;

/// Streams of one connection at once; more are refused and may be retried.
const STREAMS_MAX: u32 = 100;
/// Bytes a client may send ahead on one stream and on the connection.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// How often an idle connection is looked at.
const IDLE_LOOK: Duration = Duration::from_secs(5);

/// Serves one connection to its end. `read` are the bytes read already, the preface among them.
pub(crate) async fn serve<I: Invoker>(stream: TcpStream, read: Bytes, front: &Front<I>) {
    let activity = Arc::new(Activity::default());
    let context = Arc::new(Service {
        invoker: front.invoker.clone(),
        body_idle: front.config.body_idle_timeout,
        activity: activity.clone(),
    });
    let service = hyper::service::service_fn(move |request| {
        let context = context.clone();
        async move { Ok::<_, Infallible>(context.serve(request).await) }
    });
    let io = TokioIo::new(Prefixed { read, stream });
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(FIELDS_BYTES_MAX as u32)
        .max_send_buf_size(256 << 10)
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20))
        .serve_connection(io, service);
    tokio::pin!(connection);
    let stopped = front.stopper.notified();
    tokio::pin!(stopped);
    let mut look = tokio::time::interval(IDLE_LOOK);
    let mut ending = false;
    loop {
        tokio::select! {
            result = &mut connection => {
                if let Err(error) = result {
                    tracing::debug!(%error, "HTTP/2 connection ended");
                }
                return;
            }
            () = &mut stopped, if !ending => {
                connection.as_mut().graceful_shutdown();
                ending = true;
            }
            _ = look.tick() => {
                let idle = activity.idle_for();
                if idle > front.config.keep_alive_timeout + Duration::from_secs(10) && ending {
                    return;
                }
                if idle > front.config.keep_alive_timeout && !ending {
                    connection.as_mut().graceful_shutdown();
                    ending = true;
                }
            }
        }
    }
}

/// Streams that are open, and when the last one ended.
struct Activity {
    open: AtomicU64,
    last_ns: AtomicU64,
}

impl Default for Activity {
    fn default() -> Self {
        Self { open: AtomicU64::new(0), last_ns: AtomicU64::new(now_ns()) }
    }
}

impl Activity {
    fn idle_for(&self) -> Duration {
        if self.open.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        Duration::from_nanos(now_ns().saturating_sub(self.last_ns.load(Ordering::Relaxed)))
    }

    fn begin(self: &Arc<Self>) -> OpenStream {
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenStream(self.clone())
    }
}

struct OpenStream(Arc<Activity>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.last_ns.store(now_ns(), Ordering::Relaxed);
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Service<I> {
    invoker: I,
    body_idle: Duration,
    activity: Arc<Activity>,
}

impl<I: Invoker> Service<I> {
    async fn serve(&self, request: Request<Incoming>) -> Response<AnswerBody> {
        let open = self.activity.begin();
        let is_head = request.method() == hyper::Method::HEAD;
        let received_ns = now_ns();
        let id = invocation_id();
        let (name, result) = self.invoke(request, id, received_ns).await;
        let refusal = match result {
            Ok(reply) => match response(is_head, reply, id, open) {
                Ok(response) => return response,
                Err(message) => Refusal::of_fault(&Fault::BadReply { message }, &name),
            },
            Err(refusal) => refusal,
        };
        refuse(is_head, &refusal, id)
    }

    async fn invoke(
        &self,
        request: Request<Incoming>,
        id: InvocationId,
        received_ns: u64,
    ) -> (String, Result<mote_core::Reply, Refusal>) {
        let (name, head) = match request_head(&request) {
            Ok(found) => found,
            Err(refusal) => return (String::new(), Err(refusal)),
        };
        let route = match find_route(&self.invoker, &name, &head) {
            Ok(route) => route,
            Err(refusal) => return (name, Err(refusal)),
        };
        let limit = route.body_bytes_max();
        let body = request.into_body();
        let length = hyper::body::Body::size_hint(&body).exact();
        if length.is_some_and(|length| length > limit) {
            let fault = Fault::BodyTooLarge { limit_bytes: limit };
            return (name.clone(), Err(Refusal::of_fault(&fault, &name)));
        }
        let body = if hyper::body::Body::is_end_stream(&body) {
            Body::Empty
        } else {
            let source = StreamBody {
                incoming: body,
                limit,
                seen: 0,
                idle: Box::pin(tokio::time::sleep(self.body_idle)),
                idle_timeout: self.body_idle,
            };
            Body::Stream { source: Box::new(source), length }
        };
        let invocation = Invocation {
            id,
            trigger: Trigger::Http,
            head,
            body,
            received_ns,
            deadline_ns: received_ns + route.timeout_ms() * 1_000_000,
        };
        let result = self.invoker.invoke(&route, invocation).await;
        let result = result.map_err(|fault| Refusal::of_fault_for(&fault, &name, route.compat()));
        (name, result)
    }
}

/// Method, route and fields of a request, under the rules of the HTTP/1.1 side.
fn request_head(request: &Request<Incoming>) -> Result<(String, Head), Refusal> {
    if matches!(request.method().as_str(), "CONNECT" | "TRACE") {
        let mut refusal = Refusal::new(405, "M1022", "method not offered");
        refusal.allow = Some("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS".into());
        return Err(refusal);
    }
    let path_and_query = request.uri().path_and_query().map_or("/", |target| target.as_str());
    if path_and_query.len() > TARGET_BYTES_MAX {
        return Err(Refusal::new(414, "M1016", "target 8,192 bytes at most"));
    }
    if request.headers().len() > FIELDS_MAX {
        return Err(Refusal::new(431, "M1017", "headers: 100 fields, 32 KiB at most"));
    }
    let Target { name, path, query } = target::split(path_and_query.as_bytes())?;
    let mut builder = Head::builder(request.method().as_str().as_bytes(), path, query);
    let host = host(request)?;
    builder.header(b"host", host);
    let names: Vec<_> = request.headers().keys().map(|name| name.as_str().as_bytes()).collect();
    if head::has_twins(&names) {
        return Err(head::twins());
    }
    for (name, value) in request.headers() {
        let name = name.as_str().as_bytes();
        let own = matches!(name, b"host" | b"cookie" | b"expect")
            || (answer::is_framing(name) && name != b"content-length");
        if !own {
            builder.header(name, value.as_bytes());
        }
    }
    // Clients may send a cookie in crumbs; functions know it whole (RFC 9113, 8.2.3).
    let crumbs: Vec<_> =
        request.headers().get_all("cookie").iter().map(HeaderValue::as_bytes).collect();
    if !crumbs.is_empty() {
        builder.header(b"cookie", &crumbs.join(&b"; "[..]));
    }
    Ok((String::from_utf8_lossy(name).into_owned(), builder.finish()))
}

/// `:authority`, or `Host` without it; never two that differ.
fn host(request: &Request<Incoming>) -> Result<&[u8], Refusal> {
    let mut hosts = request.headers().get_all("host").iter().map(HeaderValue::as_bytes);
    let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let (host, second) = (hosts.next(), hosts.next());
    let found = authority.or(host).filter(|found| second.is_none() && head::is_host(found));
    let found = found.ok_or_else(head::one_host)?;
    if host.is_some_and(|host| !host.eq_ignore_ascii_case(found)) {
        return Err(Refusal::new(400, "M1013", "target and Host disagree"));
    }
    Ok(found)
}

fn response(
    is_head: bool,
    reply: mote_core::Reply,
    id: InvocationId,
    open: OpenStream,
) -> Result<Response<AnswerBody>, String> {
    let mut response = Response::builder().status(reply.status);
    for (name, value) in headers(&reply.headers) {
        if answer::is_framing(name) {
            continue;
        }
        let shown = || format!("header {}", crate::refusal::shown(name));
        let name = HeaderName::from_bytes(name).map_err(|_| shown())?;
        let value =
            HeaderValue::from_bytes(value).map_err(|_| format!("value of header {name}"))?;
        response = response.header(name, value);
    }
    let mut timing = Vec::new();
    answer::server_timing(&mut timing, &reply.phases);
    let mut body = reply.body;
    if is_head || matches!(reply.status, 204 | 304) {
        // A stream with DATA here is malformed to the client (RFC 9113, 8.1.1).
        if let Some(length) = body.length().filter(|length| is_head && *length > 0) {
            response = response.header("content-length", length);
        }
        body = Body::Empty;
    }
    response
        .header("server-timing", timing)
        .header("mote-invocation", id.to_string())
        .body(AnswerBody { body, _open: Some(open) })
        .map_err(|error| error.to_string())
}

fn refuse(is_head: bool, refusal: &Refusal, id: InvocationId) -> Response<AnswerBody> {
    let mut response = Response::builder()
        .status(refusal.status)
        .header("content-type", "application/problem+json")
        .header("mote-invocation", id.to_string());
    if let Some(allow) = &refusal.allow {
        response = response.header("allow", allow);
    }
    if let Some(seconds) = refusal.retry_after_s {
        response = response.header("retry-after", seconds);
    }
    let body = if is_head {
        Body::Empty
    } else {
        Body::whole(refusal.problem_json(Some(id)).into_bytes())
    };
    response.body(AnswerBody { body, _open: None }).expect("a refusal has only valid header values")
}

/// A request body with the function's limit and a bound on silence.
struct StreamBody {
    incoming: Incoming,
    limit: u64,
    seen: u64,
    idle: Pin<Box<tokio::time::Sleep>>,
    idle_timeout: Duration,
}

impl BodySource for StreamBody {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            match hyper::body::Body::poll_frame(Pin::new(&mut self.incoming), cx) {
                Poll::Pending => {
                    if self.idle.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(Some(Err(BodyError::TimedOut)));
                    }
                    return Poll::Pending;
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Some(Err(BodyError::Incomplete))),
                Poll::Ready(Some(Ok(frame))) => {
                    let Ok(data) = frame.into_data() else { continue };
                    if data.is_empty() {
                        continue;
                    }
                    let deadline = tokio::time::Instant::now() + self.idle_timeout;
                    self.idle.as_mut().reset(deadline);
                    self.seen += data.len() as u64;
                    if self.seen > self.limit {
                        return Poll::Ready(Some(Err(BodyError::TooLarge(self.limit))));
                    }
                    return Poll::Ready(Some(Ok(data)));
                }
            }
        }
    }
}

/// An answer body for hyper; the stream counts as open until it is gone.
struct AnswerBody {
    body: Body,
    _open: Option<OpenStream>,
}

impl hyper::body::Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.body.poll_chunk(cx).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.body, Body::Empty)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.length().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// A socket some of whose bytes were read before.
struct Prefixed {
    read: Bytes,
    stream: TcpStream,
}

impl AsyncRead for Prefixed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let take = self.read.len().min(buffer.remaining());
        buffer.put_slice(&self.read[..take]);
        self.read.advance(take);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Prefixed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
