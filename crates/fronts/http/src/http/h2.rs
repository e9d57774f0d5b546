//! HTTP/2 with prior knowledge (RFC 9113), using hyper and h2. Requests get the same checks and the
//! same answers as over HTTP/1.1.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::access_log::AccessLog;
use crate::gathering::Gathering;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use mote_core::body::Body;
use mote_core::invocation::{Head, headers};
use mote_core::seats::{Seat, Standing};
use mote_core::shares::{Shares, address_owner};
use mote_core::{Fault, Invocation, InvocationId, Invoker, Routed, Trigger};
use mote_spec::fields::is_set_by_node;
use mote_spec::hop_by_hop::is_hop_by_hop;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::client::TlsClient;
use super::compress::Choice;
use super::front::{HttpFront, Stopper, WellKnown};
use super::h2_activity::{Activity, OpenStream, Progress, UNSENT_BYTES_TOTAL_MAX, Waiting};
use super::h2_answer::AnswerBody;
use super::h2_body::{Arriving, StreamBody};
use super::h2_meter::Metered;
use super::head::{self, FIELDS_BYTES_MAX, FIELDS_MAX};
use super::logged::Logged;
use super::proxies::Proxies;
use super::route::{Asked, LINGER_BYTES_MAX, REFUSALS_IN_A_ROW_MAX, find_route};
use super::socket::Socket;
use super::target::{self, TARGET_BYTES_MAX, Target};
use super::{answer, files, silence};
use crate::ids::{invocation_id, now_ns};
use crate::refusal::Refusal;

/// The name of the protocol in the access log.
const PROTOCOL: &str = "HTTP/2.0";
/// The limit of open streams on one connection. Further streams are refused, and the client may
/// retry them. The front's `streams_max` limits all connections together.
const STREAMS_MAX: u32 = 100;
/// A stream with a head that is longer than this counts as several streams, one for each part of this
/// length, because the head stays in memory as long as the stream waits.
const HEAD_BYTES_PER_PLACE: usize = 4 << 10;
/// The number of bytes that a client may send ahead on one stream. The connection has the same
/// window.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// How often a connection is checked. The check ends an idle connection and one whose client does
/// not read answers.
const LOOK: Duration = Duration::from_secs(5);
/// How often a connection is checked once a stopping node waits only for running invocations.
const LATE_LOOK: Duration = Duration::from_millis(500);
/// Serves one connection to its end. `read` holds the bytes that were already read, including the
/// preface. If the connection belongs to a trusted proxy, `via` says how the proxy names the client
/// of each request.
pub(crate) async fn serve<I: Invoker>(
    stream: Socket,
    read: Bytes,
    address: IpAddr,
    via: Option<Arc<Proxies>>,
    seat: &Arc<Seat<IpAddr>>,
    front: &HttpFront<I>,
) {
    let activity = Arc::new(Activity::new(front.unsent.clone(), seat.clone()));
    let context = Arc::new(Service {
        invoker: front.invoker.clone(),
        body_idle: front.config.body_idle_timeout,
        arrival_grace: front.config.arrival_grace,
        stopper: front.stopper.clone(),
        activity: activity.clone(),
        streams: front.streams.clone(),
        gathering: front.gathering.clone(),
        address,
        access_log: front.config.access_log.clone(),
        via,
        well_known: front.config.well_known.clone(),
        tls: stream.client().cloned(),
    });
    let service = hyper::service::service_fn(move |request| {
        let context = context.clone();
        async move { Ok::<_, Infallible>(context.serve(request).await) }
    });
    let (metered, sent) = Metered::new(read, stream);
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(FIELDS_BYTES_MAX as u32)
        .max_send_buf_size(256 << 10)
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20))
        .serve_connection(TokioIo::new(metered), service);
    let ended = drive(connection, &activity, front).await;
    let Some(ended) = ended else { return };
    if let Err(error) = ended {
        tracing::debug!(%error, "HTTP/2 connection ended");
    }
    if let Ok(stream) = sent.await {
        linger(stream).await;
    }
}

/// Drives a connection to its end. Ends it at once, with `None`, if the client does not read its
/// answers or does not leave when asked to. When the node stops, the connection may stay for
/// `arrival_grace`, and after that for as long as one of its invocations runs or an answer is not
/// yet taken.
async fn drive<I: Invoker, C>(
    connection: C,
    activity: &Activity,
    front: &HttpFront<I>,
) -> Option<hyper::Result<()>>
where
    C: Future<Output = hyper::Result<()>> + WindUp,
{
    tokio::pin!(connection);
    let mut stopped = front.stopper.stopped();
    let keep_alive = front.config.keep_alive_timeout;
    let write_timeout = front.config.write_timeout;
    let mut stopping = false;
    let given_up = front.stopper.given_up(front.config.arrival_grace);
    tokio::pin!(given_up);
    let mut look = tokio::time::interval(LOOK.min(write_timeout));
    let mut progress = Progress::default();
    let mut ending = false;
    let mut late = false;
    loop {
        tokio::select! {
            result = &mut connection => return Some(result),
            () = &mut stopped, if !stopping => {
                connection.as_mut().wind_up();
                (ending, stopping) = (true, true);
            }
            () = &mut given_up, if !late => {
                late = true;
                // The first check comes after a delay, because a refusal that was just written may
                // still have to be sent.
                look = tokio::time::interval_at(Instant::now() + LATE_LOOK, LATE_LOOK);
            }
            () = activity.useless.notified(), if !ending => {
                connection.as_mut().wind_up();
                ending = true;
            }
            _ = look.tick() => {
                if late && activity.accepted.load(Ordering::Relaxed) == 0 {
                    tracing::debug!("HTTP/2 connection ended: the node stops");
                    return None;
                }
                let idle = activity.idle_for();
                activity.count_held();
                let silent = progress.silent_for(activity);
                let crowded = activity.unsent_total.load(Ordering::Relaxed)
                    > UNSENT_BYTES_TOTAL_MAX / 2;
                if silent >= write_timeout || (crowded && !silent.is_zero()) {
                    tracing::debug!("HTTP/2 connection ended: its client does not read answers");
                    return None;
                }
                activity.drop_stalled(write_timeout);
                if idle > keep_alive + Duration::from_secs(10) && ending {
                    return None;
                }
                if idle > keep_alive && !ending {
                    connection.as_mut().wind_up();
                    ending = true;
                }
            }
        }
    }
}

/// A connection that can be asked to accept no more requests.
trait WindUp {
    fn wind_up(self: Pin<&mut Self>);
}

impl<T, S, B, E> WindUp for hyper::server::conn::http2::Connection<T, S, E>
where
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    T: hyper::rt::Read + hyper::rt::Write + Unpin,
    B: hyper::body::Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    E: hyper::rt::bounds::Http2ServerConnExec<S::Future, B>,
{
    fn wind_up(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Reads some of the bytes that the client still sends. Otherwise the kernel would reset the
/// connection before the client has read why the connection ended.
async fn linger(mut stream: Socket) {
    let mut scratch = [0; 4 << 10];
    let mut left = LINGER_BYTES_MAX;
    let reading = async {
        // With TLS, this call waits if the client does not read.
        let _ = stream.shutdown().await;
        while let Ok(read @ 1..) = stream.read(&mut scratch).await
            && left > 0
        {
            left = left.saturating_sub(read);
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), reading).await;
}

struct Service<I> {
    invoker: I,
    body_idle: Duration,
    arrival_grace: Duration,
    stopper: Stopper,
    activity: Arc<Activity>,
    streams: Shares<IpAddr>,
    gathering: Gathering<IpAddr>,
    address: IpAddr,
    access_log: Option<AccessLog>,
    via: Option<Arc<Proxies>>,
    well_known: Option<WellKnown>,
    tls: Option<TlsClient>,
}

impl<I: Invoker> Service<I> {
    async fn serve(&self, request: Request<Incoming>) -> Response<AnswerBody> {
        let id = invocation_id();
        let Ok(place) = self.streams.take(address_owner(self.address), places(&request)) else {
            return crowded(id);
        };
        let mut open = self.activity.begin(place);
        let is_head = request.method() == hyper::Method::HEAD;
        let received_ns = now_ns();
        let (name, result) = self.invoke(request, id, received_ns, &mut open).await;
        let refusal = match result {
            Ok(reply) => match self.room(&reply.body) {
                Some(waiting) => match response(is_head, reply, id) {
                    Ok(response) => {
                        open.logged.answered(response.status().as_u16(), Some(id));
                        return response.map(|body| AnswerBody::new(body, open, waiting));
                    }
                    Err(message) => Refusal::of_fault(&Fault::BadReply { message }, &name),
                },
                None => Refusal::new(
                    503,
                    "M1031",
                    "too many answers wait for this client to read them (HTTP/2 windows)",
                ),
            },
            Err(refusal) => refusal,
        };
        let refusal = refusal.with(&open.added);
        refuse(is_head, &refusal, id, open)
    }

    /// Reserves room for an answer, whole or streamed, until the client has taken it. `None` if
    /// there is no room.
    fn room(&self, body: &Body) -> Option<Waiting> {
        if !matches!(body, Body::Stream { .. }) {
            return self.activity.wait(body.held_bytes());
        }
        self.activity.count_held();
        drop(self.activity.wait(body.held_bytes())?);
        // From here on, the bytes that a streamed answer holds are counted when they change, and
        // its pieces when they arrive.
        Some(self.activity.wait_anyway(0))
    }

    async fn invoke(
        &self,
        request: Request<Incoming>,
        id: InvocationId,
        mut received_ns: u64,
        open: &mut OpenStream,
    ) -> (String, Result<mote_core::Reply, Refusal>) {
        let request = request.map(Arriving::new);
        open.unread = request.body().unread();
        let (mut name, mut head, is_bare) = match request_head(&request) {
            Ok(found) => found,
            Err(refusal) => {
                let log = self.access_log.as_ref();
                open.logged = Logged::unreadable(log, self.address, PROTOCOL, b"");
                return (String::new(), Err(refusal));
            }
        };
        if let Some(client) = &self.tls {
            client.mark(&mut head);
        }
        let client = self.via.as_ref().and_then(|proxies| proxies.client(&head));
        let address = client.unwrap_or(self.address);
        open.logged =
            Logged::new(self.access_log.as_ref(), address, PROTOCOL, (&name, is_bare), &head);
        let from = address_owner(address);
        let length = request.body().length();
        let asked = Asked { from, length, wants_websocket: false, is_bare };
        let route = match find_route(
            &self.invoker,
            &mut name,
            &mut head,
            asked,
            self.well_known.as_ref(),
        ) {
            Ok((route, added)) => {
                open.added = added;
                open.logged.found(route.info().name.as_str(), &head);
                route
            }
            Err(refusal) => {
                if self.access_log.is_some() && self.invoker.route(&name, || None).is_some() {
                    open.logged.found(&name, &head);
                }
                let refusals = self.activity.refusals.fetch_add(1, Ordering::Relaxed) + 1;
                if refusals == REFUSALS_IN_A_ROW_MAX {
                    self.activity.useless.notify_one();
                }
                return (name, Err(refusal));
            }
        };
        self.activity.refusals.store(0, Ordering::Relaxed);
        let standing = if head.is_admitted() && head.caller().is_some() {
            Standing::Proven
        } else {
            Standing::Anonymous
        };
        if self.activity.seat.prove(standing).is_err() {
            return (name, Err(Refusal::no_place()));
        }
        let stream_idle = Duration::from_millis(route.info().stream_idle_ms);
        let choice = Choice::of(route.info().http, &head);
        let body = request.into_body();
        if body.is_over()
            && let Some(mut file) = files::answer(&route, &head, is_bare).await
        {
            // This makes a stopping node wait until the file is sent.
            if !open.accept() {
                return (name, Err(Refusal::no_place()));
            }
            file.headers = open.added.to(file.headers);
            return (name, Ok(choice.apply(file)));
        }
        let body = if body.is_over() {
            Body::Empty
        } else {
            // A call that streams in both directions may be silent in one direction for as long as
            // `stream_idle` allows.
            let silence = if route.info().takes_http2 { stream_idle } else { self.body_idle };
            let source = StreamBody::new(body, route.info().body_bytes_max, silence);
            Body::Stream { source: Box::new(source), length }
        };
        let body = if route.info().takes_whole_bodies && matches!(body, Body::Stream { .. }) {
            head.give_place_back();
            let gathered = tokio::select! {
                biased;
                gathered = self.gathering.whole(from, head.bytes(), body) => gathered,
                () = self.stopper.given_up(self.arrival_grace) => {
                    return (name.clone(), Err(Refusal::of_fault(&Fault::Stopping, &name)));
                }
            };
            received_ns = now_ns();
            let whole = gathered
                .map_err(Fault::from)
                .and_then(|body| self.invoker.count(&route, &mut head, Some(from)).map(|()| body));
            match whole {
                Ok(body) => body,
                Err(fault) => {
                    return (
                        name.clone(),
                        Err(Refusal::of_fault_for(&fault, &name, route.info().compat)),
                    );
                }
            }
        } else {
            body
        };
        let invocation = Invocation {
            id,
            trigger: Trigger::Http,
            head,
            body,
            received_ns,
            deadline_ns: received_ns + route.info().timeout_ms * 1_000_000,
            chain: None,
        };
        if !open.accept() {
            return (name, Err(Refusal::no_place()));
        }
        let result = self.invoker.invoke(&route, invocation).await;
        let result = result.map(|mut reply| {
            reply.headers = open.added.to(reply.headers);
            choice.apply(silence::limited(reply, stream_idle))
        });
        let result =
            result.map_err(|fault| Refusal::of_fault_for(&fault, &name, route.info().compat));
        (name, result)
    }
}

/// Reads method, route and fields of a request under the same rules as for HTTP/1.1. The flag says
/// whether the path is a single segment.
fn request_head<B>(request: &Request<B>) -> Result<(String, Head, bool), Refusal> {
    if matches!(request.method().as_str(), "CONNECT" | "TRACE") {
        let mut refusal = Refusal::new(405, "M1022", "method not supported");
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
    let Target { name, path, query, is_bare } = target::split(path_and_query.as_bytes())?;
    let mut builder = Head::builder(request.method().as_str().as_bytes(), path, query);
    let host = host(request)?;
    builder.header(b"host", host);
    let mut names: Vec<_> = request.headers().keys().map(|name| name.as_str().as_bytes()).collect();
    let all = names.clone();
    names.retain(|name| !head::is_shadowed(name, &all));
    if head::has_twins(&names) {
        return Err(head::twins());
    }
    for (name, value) in request.headers() {
        let name = name.as_str().as_bytes();
        let own = is_set_by_node(name)
            || head::is_shadowed(name, &all)
            || matches!(name, b"host" | b"cookie" | b"expect" | b"proxy" | b"mote-invocation")
            || is_hop_by_hop(name);
        if !own {
            builder.header(name, value.as_bytes());
        }
    }
    // Clients may send a cookie in several fields; functions receive it joined (RFC 9113, 8.2.3).
    let crumbs: Vec<_> =
        request.headers().get_all("cookie").iter().map(HeaderValue::as_bytes).collect();
    if !crumbs.is_empty() {
        builder.header(b"cookie", &crumbs.join(&b"; "[..]));
    }
    Ok((String::from_utf8_lossy(name).into_owned(), builder.finish(), is_bare))
}

/// The value of `:authority`, or of `Host` if there is no `:authority`. Two different values are
/// refused.
fn host<B>(request: &Request<B>) -> Result<&[u8], Refusal> {
    let mut hosts = request.headers().get_all("host").iter().map(HeaderValue::as_bytes);
    let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let host = hosts.next();
    let second = hosts.next();
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
) -> Result<Response<Body>, String> {
    let mut response = Response::builder().status(reply.status);
    for (name, value) in headers(&reply.headers) {
        if answer::is_framing(name) || mote_spec::fields::sets_session(name, value) {
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
        // The answer to HEAD has no body, so a client would treat a stream with DATA as malformed
        // here (RFC 9113, 8.1.1).
        if let Some(length) = body.length().filter(|length| is_head && *length > 0) {
            response = response.header("content-length", length);
        }
        body = Body::Empty;
    }
    response
        .header("server-timing", timing)
        .header("mote-invocation", id.to_string())
        .body(body)
        .map_err(|error| error.to_string())
}

/// How many streams a request counts as, depending on the length of its head.
fn places(request: &Request<Incoming>) -> usize {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len());
    1 + (target + fields.sum::<usize>()) / HEAD_BYTES_PER_PLACE
}

/// The answer to a stream beyond the limit. The answer has no body, because a body would wait for
/// the client's window and keep the stream open. A reset with REFUSED_STREAM would also close the
/// stream, but would make many clients retry at once (RFC 9113, 8.7). This answer says when to
/// retry.
fn crowded(id: InvocationId) -> Response<AnswerBody> {
    let response = Response::builder()
        .status(503)
        .header("retry-after", 1)
        .header("mote-invocation", id.to_string());
    response.body(AnswerBody::empty()).expect("the fields are valid")
}

fn refuse(
    is_head: bool,
    refusal: &Refusal,
    id: InvocationId,
    mut open: OpenStream,
) -> Response<AnswerBody> {
    open.logged.answered(refusal.status, Some(id));
    let mut response =
        Response::builder().status(refusal.status).header("mote-invocation", id.to_string());
    if refusal.has_body() {
        response = response.header("content-type", refusal.content_type());
    }
    for (name, value) in refusal.added.fields() {
        response = response.header(name, value);
    }
    if let Some(allow) = &refusal.allow {
        response = response.header("allow", allow);
    }
    if let Some(seconds) = refusal.retry_after_s {
        response = response.header("retry-after", seconds);
    }
    if refusal.status == 401 {
        response = response.header("www-authenticate", refusal.challenge().as_ref());
    }
    let body = if is_head || !refusal.has_body() {
        Body::Empty
    } else {
        Body::whole(refusal.problem_json(Some(id)).into_bytes())
    };
    // Like any other answer, the body of a refusal may wait for the client's window.
    let waiting = open.activity.wait_anyway(body.held_bytes());
    let body = AnswerBody::new(body, open, waiting);
    response.body(body).expect("a refusal has only valid header values")
}
