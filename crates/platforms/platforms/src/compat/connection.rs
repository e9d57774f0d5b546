//! One connection of a platform's HTTP/1.1 API. The module limits how long the client may be silent
//! before a head is complete, inside a body, and while an answer waits to be read. It also limits the
//! number of connections. The node's own management API uses this module, too.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::http::Extensions;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use mote_core::seats::{Seat, Seats, Standing};
use mote_core::shares::address_owner;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// The longest wait for the head of a request, and the longest pause before the next request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest silence of a client inside the body of a request.
const BODY_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest time in which a client reads nothing of its answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the connection reads and drops what a client still sends after its answer, and how many
/// bytes.
const DROP_PATIENCE: Duration = Duration::from_secs(2);
const DROPPED_BYTES_MAX: usize = 16 << 20;
const DROPPED_BYTES_PER_TURN: usize = mote_core::turn::TURN_BYTES_MAX;
/// The most bytes that are read ahead on a connection. A longer head is refused. The library's own
/// limit is 408 KiB; a client that sends that much and then stops would keep those bytes in memory on
/// each of its connections.
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// The answer to a client that is refused because all connections, or all connections of its address,
/// are in use.
const CROWDED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\n\
    retry-after: 1\r\ncontent-length: 47\r\nconnection: close\r\n\r\n\
    too many connections, and all of them are used\n";

/// Serves `app` on a connection. Returns when the connection ends, or when `stopped` has resolved and
/// the running request has ended. Each request carries `info` as its [`ConnectInfo`]. With a `place`,
/// the connection counts as used while a request runs. The caller that passes a place must end the
/// connection when the place ends.
///
/// All generic values are behind pointers, so that a binary contains the code of a connection only
/// once.
pub fn http1<S, T>(
    stream: S,
    info: T,
    place: Option<Place>,
    app: Router,
    stopped: impl Future<Output = ()> + Send + 'static,
) -> Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: Clone + Send + Sync + 'static,
{
    let of_requests = place.clone();
    let mark = move |extensions: &mut Extensions| {
        extensions.insert(ConnectInfo(info.clone()));
        if let Some(place) = &of_requests {
            extensions.insert(place.clone());
        }
    };
    Box::pin(serve(Box::new(stream), Box::new(mark), place, app, Box::pin(stopped)))
}

/// What a connection reads and writes.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

async fn serve(
    stream: Box<dyn Stream>,
    mark: Box<dyn Fn(&mut Extensions) + Send>,
    place: Option<Place>,
    app: Router,
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
) -> hyper::Result<()> {
    let unread = Arc::new(AtomicBool::new(false));
    let of_bodies = unread.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let unread = of_bodies.clone();
        let work = place.clone().map(|place| Arc::new(Work { place, has_begun: false.into() }));
        let mut request = request.map(|incoming| Idle::new(incoming, work.clone(), unread));
        mark(request.extensions_mut());
        let app = app.clone();
        async move {
            if request.body().is_end_stream() && !begins(work.as_ref()) {
                return Err(Ended);
            }
            let answered = tower_service::Service::call(&mut { app }, request).await;
            let mut response = answered.unwrap_or_else(|never| match never {});
            // Most answers to clients without a proof are short, but a client that does not read a long
            // answer keeps its place in use. The connection therefore counts as anonymous from now on.
            if let Some(work) = &work
                && work.place.standing() == Standing::Unproven
                && let Err(crowded) = anonymous(&work.place)
            {
                response = crowded.into_response();
            }
            Ok(response.map(|body| Answer { body, _work: work }))
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(Patient::new(stream, unread)), service);
    until(connection, |connection| connection.graceful_shutdown(), stopped).await
}

/// Drives a connection until it ends. When `stopped` resolves, `wind_up` tells the connection to accept
/// no further requests.
async fn until<C>(
    connection: C,
    wind_up: impl FnOnce(Pin<&mut C>),
    stopped: impl Future<Output = ()>,
) -> hyper::Result<()>
where
    C: Future<Output = hyper::Result<()>>,
{
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = stopped => wind_up(connection.as_mut()),
    }
    connection.await
}

/// A place among the connections of a listener. Each request carries the place of its connection in its
/// extensions.
#[derive(Debug, Clone)]
pub struct Place {
    seat: Arc<Seat<Holder>>,
    /// The most connections that may count for one token.
    token_max: usize,
}

impl Deref for Place {
    type Target = Seat<Holder>;

    fn deref(&self) -> &Self::Target {
        &self.seat
    }
}

/// The address or token for which a connection counts. A connection counts for the address that it
/// comes from until it has shown a token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Holder {
    /// See [`address_owner`].
    Address(IpAddr),
    Token(Arc<str>),
}

/// No place is left for a connection of this standing, because all of them are in use. The connection
/// must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many connections, and all of them are used")]
pub struct Crowded;

impl IntoResponse for Crowded {
    fn into_response(self) -> Response {
        let fields = [(header::RETRY_AFTER, "1"), (header::CONNECTION, "close")];
        (StatusCode::SERVICE_UNAVAILABLE, fields, format!("{self}\n")).into_response()
    }
}

/// Notes, before a call of a function, whether its sender has shown a valid key or token. Callers
/// without one may not use all places, so that some stay free for others.
pub fn called(extensions: &Extensions, is_proven: bool) -> Result<(), Crowded> {
    let Some(place) = extensions.get::<Place>() else { return Ok(()) };
    if is_proven {
        return place.prove(Standing::Proven).map_err(|_| Crowded);
    }
    anonymous(place)
}

fn anonymous(place: &Place) -> Result<(), Crowded> {
    place.prove(Standing::Anonymous).map_err(|_| Crowded)
}

/// Notes that a request contains the valid token `name`. From now on, the connection counts for the
/// token and no longer for its address. The number of connections of an operator's token has no limit;
/// other tokens leave a part of the places to operators.
pub fn admitted(
    extensions: &Extensions,
    name: &Arc<str>,
    is_operator: bool,
) -> Result<(), Crowded> {
    let Some(place) = extensions.get::<Place>() else { return Ok(()) };
    let (most, standing) = match is_operator {
        true => (usize::MAX, Standing::Operator),
        false => (place.token_max, Standing::Proven),
    };
    place.belong(Holder::Token(name.clone()), most, standing).map_err(|_| Crowded)
}

/// A request that has arrived and whose answer is not complete. Meanwhile, its connection is in use.
struct Work {
    place: Place,
    has_begun: AtomicBool,
}

impl Drop for Work {
    fn drop(&mut self) {
        if *self.has_begun.get_mut() {
            self.place.end_work();
        }
    }
}

/// Marks the beginning of work. Returns false if the connection has already ended and no work may
/// begin.
fn begins(work: Option<&Arc<Work>>) -> bool {
    work.is_none_or(|work| work.has_begun.swap(true, Ordering::Relaxed) || work.place.begin_work())
}

/// The connection was ended to make room for others before its request had begun.
#[derive(Debug, thiserror::Error)]
#[error("the connection was ended because others needed its place")]
struct Ended;

/// An answer. The work of its request ends when the answer is complete or given up.
struct Answer {
    body: axum::body::Body,
    _work: Option<Arc<Work>>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The limits of a listener's connections: in total, for one address, and for one token.
#[derive(Debug, Clone)]
pub struct Places {
    seats: Seats<Holder>,
    token_max: usize,
}

impl Places {
    /// Makes room for `total_max` connections. One address may have half of them, and one token a
    /// quarter. Callers without a proof leave an eighth to others. Everyone except operators leaves an
    /// eighth to newcomers, because a newcomer may turn out to be an operator.
    pub fn new(total_max: usize) -> Self {
        let reserve = total_max / 8;
        let seats = Seats::with_reserve(total_max, total_max / 2, reserve)
            .with_most(Standing::Proven, total_max - reserve);
        Self { seats, token_max: (total_max / 4).max(1) }
    }

    /// Takes a place for a connection. Dropping the place releases it. The holder of a place must close
    /// the connection when the place has ended. At the limit, the address with the most connections
    /// loses an idle one. If no connection is idle, the client receives a 503, provided that the socket
    /// accepts it at once, and the caller must close the connection.
    pub fn take(&self, stream: &TcpStream, peer: IpAddr) -> Option<Place> {
        let seat = self.seats.take(Holder::Address(address_owner(peer))).ok();
        if seat.is_none() {
            let _ = stream.try_write(CROWDED);
        }
        let token_max = self.token_max;
        seat.map(|seat| Place { seat: Arc::new(seat), token_max })
    }
}

/// A request's body that ends with an error when its client is silent for too long.
struct Idle {
    incoming: Incoming,
    /// The timer of the current silence. It is set when a read first has to wait.
    silent: Option<Pin<Box<Sleep>>>,
    waits: bool,
    /// The work of the request, which begins when the body is complete.
    work: Option<Arc<Work>>,
    /// Becomes true if the body is given up before its end.
    unread: Arc<AtomicBool>,
}

impl Drop for Idle {
    fn drop(&mut self) {
        if !self.incoming.is_end_stream() {
            self.unread.store(true, Ordering::Relaxed);
        }
    }
}

impl Idle {
    fn new(incoming: Incoming, work: Option<Arc<Work>>, unread: Arc<AtomicBool>) -> Self {
        Self { incoming, silent: None, waits: false, work, unread }
    }
}

impl Body for Idle {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(cx) {
            self.waits = false;
            if (frame.is_none() || self.incoming.is_end_stream()) && !begins(self.work.as_ref()) {
                return Poll::Ready(Some(Err(Ended.into())));
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let waits = std::mem::replace(&mut self.waits, true);
        let silent = timer(&mut self.silent, waits, BODY_IDLE_TIMEOUT);
        silent.poll(cx).map(|()| Some(Err("the body was not received in time".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// Returns the timer of a wait. The timer starts again unless the same wait goes on.
fn timer(place: &mut Option<Pin<Box<Sleep>>>, goes_on: bool, timeout: Duration) -> Pin<&mut Sleep> {
    let sleep = place.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
    if !goes_on {
        sleep.as_mut().reset(Instant::now() + timeout);
    }
    sleep.as_mut()
}

/// A connection whose client must read a part of its answer within `WRITE_TIMEOUT`.
///
/// If a body was given up, the connection ends in stages: nothing more is written, and whatever the
/// client still sends is read and dropped. If those bytes stayed unread, the kernel would reset the
/// connection and the client would lose the answer (RFC 9112, 9.6).
struct Patient<S> {
    stream: S,
    stalled: Option<Pin<Box<Sleep>>>,
    waits: bool,
    /// Whether the body of a request was given up.
    unread: Arc<AtomicBool>,
    /// The timer that limits how long incoming bytes are dropped. It is set once nothing more is
    /// written.
    dropping: Option<Pin<Box<Sleep>>>,
    dropped: usize,
}

impl<S> Patient<S> {
    fn new(stream: S, unread: Arc<AtomicBool>) -> Self {
        Self { stream, stalled: None, waits: false, unread, dropping: None, dropped: 0 }
    }

    fn watch<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.waits = false;
            return polled;
        }
        let waits = std::mem::replace(&mut self.waits, true);
        let stalled = timer(&mut self.stalled, waits, WRITE_TIMEOUT);
        stalled.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> Patient<S> {
    /// Reads and drops incoming bytes until the client ends the connection or the time is up.
    fn poll_drop(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let end = self.dropping.get_or_insert_with(|| Box::pin(tokio::time::sleep(DROP_PATIENCE)));
        if end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let mut bytes = [MaybeUninit::uninit(); 16 << 10];
        let mut turn = 0;
        while turn < DROPPED_BYTES_PER_TURN {
            let mut buffer = ReadBuf::uninit(&mut bytes);
            let read = std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer));
            let length = buffer.filled().len();
            self.dropped += length;
            if read.is_err() || length == 0 || self.dropped >= DROPPED_BYTES_MAX {
                return Poll::Ready(());
            }
            turn += length;
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.watch(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.dropping.is_none() {
            std::task::ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        }
        if self.unread.load(Ordering::Relaxed) {
            std::task::ready!(self.poll_drop(cx));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    /// Returns a connection to an API of two routes, and the task that serves it. The clock is virtual
    /// here: it advances as soon as every task waits.
    fn served() -> (DuplexStream, tokio::task::JoinHandle<hyper::Result<()>>) {
        let (client, server) = duplex(1_024);
        let echo = post(|body: Bytes| async move { body });
        let long = get(|| async { "x".repeat(1 << 20) });
        let refuse = post(|| async { StatusCode::PAYLOAD_TOO_LARGE });
        let app = Router::new().route("/echo", echo).route("/long", long).route("/refuse", refuse);
        let never = std::future::pending();
        (client, tokio::spawn(http1(server, (), None, app, never)))
    }

    async fn ends(serving: tokio::task::JoinHandle<hyper::Result<()>>) -> Duration {
        let since = Instant::now();
        let ended = tokio::time::timeout(Duration::from_secs(3_600), serving).await;
        let _ = ended.expect("the connection ends").expect("without a panic");
        since.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_not_waited_for() {
        for (sent, within) in [
            // These clients fall silent at the start, in a head, in a body of known length, and in a
            // chunked body.
            ("", HEAD_TIMEOUT),
            ("POST /echo HTTP/1.1\r\nhost: a\r\n", HEAD_TIMEOUT),
            ("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nabc", BODY_IDLE_TIMEOUT),
            (
                "POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc",
                BODY_IDLE_TIMEOUT,
            ),
            // This client never reads its answer, which does not fit into the connection's buffer.
            ("GET /long HTTP/1.1\r\nhost: a\r\n\r\n", WRITE_TIMEOUT),
            // This client falls silent after an answer.
            ("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\na", HEAD_TIMEOUT),
        ] {
            let (mut client, serving) = served();
            client.write_all(sent.as_bytes()).await.expect("sent");
            let ended = ends(serving).await;
            let within = within + DROP_PATIENCE;
            assert!(ended <= within + Duration::from_secs(1), "{sent:?}: after {ended:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_still_sends_gets_the_reason_for_its_refusal() {
        for (sent, ends) in [(1 << 20, true), (1 << 20, false)] {
            let (mut client, serving) = served();
            let head = "POST /refuse HTTP/1.1\r\nhost: a\r\ncontent-length: 9000000\r\n\r\n";
            client.write_all(head.as_bytes()).await.expect("sent");
            client.write_all(&vec![7; sent]).await.expect("the node takes what it has refused");
            if ends {
                client.shutdown().await.expect("ended");
            }
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
            let ended = self::ends(serving).await;
            assert!(ended <= DROP_PATIENCE + Duration::from_secs(1), "{ended:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_is_served() {
        let (mut client, _serving) = served();
        let head = "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n";
        client.write_all(head.as_bytes()).await.expect("sent");
        for byte in b"hello" {
            tokio::time::sleep(BODY_IDLE_TIMEOUT - Duration::from_secs(1)).await;
            client.write_all(&[*byte]).await.expect("sent");
        }
        let mut answer = [0; 512];
        let length = client.read(&mut answer).await.expect("an answer");
        assert!(answer[..length].ends_with(b"hello"));
        client.write_all(b"GET /long HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
        let mut left = 1 << 20;
        while left > 0 {
            tokio::time::sleep(WRITE_TIMEOUT - Duration::from_secs(1)).await;
            let mut part = vec![0; 64 << 10];
            left -= client.read(&mut part).await.expect("more").min(left);
        }
    }

    #[tokio::test]
    async fn an_address_at_its_limit_displaces_itself() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let places = Places::new(4);
        let mut clients = Vec::new();
        let mut held = Vec::new();
        for _ in 0..3 {
            clients.push(TcpStream::connect(address).await.expect("connected"));
            let (stream, peer) = listener.accept().await.expect("accepted");
            let place = places.take(&stream, peer.ip()).expect("an older one makes room");
            held.push((stream, place));
        }
        assert_eq!(held.iter().filter(|one| one.1.is_ended()).count(), 1);
        assert!(held.remove(0).1.is_ended());
        // Connections in use are not ended, and the newcomer is told so.
        assert!(held.iter().all(|one| one.1.begin_work()));
        clients.push(TcpStream::connect(address).await.expect("connected"));
        let (stream, peer) = listener.accept().await.expect("accepted");
        assert!(places.take(&stream, peer.ip()).is_none());
        drop(stream);
        let mut told = String::new();
        clients[3].read_to_string(&mut told).await.expect("an answer");
        let (head, body) = told.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 503 "), "{told}");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{told}");
        // The other half of the places is free for other addresses.
        assert!(places.take(&clients[0], "192.0.2.1".parse().expect("an address")).is_some());
    }

    fn place_of(places: &Places, last: u8) -> Option<Place> {
        let owner = Holder::Address(IpAddr::from([192, 0, 2, last]));
        let seat = places.seats.take(owner).ok()?;
        Some(Place { seat: Arc::new(seat), token_max: places.token_max })
    }

    /// Returns the extensions of a request that is at work at this place.
    fn request(place: &Place) -> Extensions {
        assert!(place.begin_work(), "it has not ended");
        let mut extensions = Extensions::new();
        extensions.insert(place.clone());
        extensions
    }

    #[test]
    fn callers_without_a_proof_leave_places_to_others() {
        let places = Places::new(16);
        let mut held = Vec::new();
        for last in (1..=16).chain(1..=16) {
            let Some(place) = place_of(&places, last) else { continue };
            if called(&request(&place), false).is_ok() {
                held.push(place);
            }
        }
        assert_eq!(held.len(), 14, "seven eighths");
        let caller = place_of(&places, 40).expect("room");
        assert_eq!(called(&request(&caller), true), Ok(()));
        let operator = place_of(&places, 41).expect("room");
        assert_eq!(admitted(&request(&operator), &"admin.token".into(), true), Ok(()));
        assert!(held.iter().all(|place| !place.is_ended()), "work was ended");
    }

    #[test]
    fn work_of_tokens_leaves_places_to_operators_also_at_the_same_address() {
        let places = Places::new(16);
        let mut held = Vec::new();
        let mut hold = |token: &str, count: usize| {
            for _ in 0..40 {
                let Some(place) = place_of(&places, 1) else { continue };
                if admitted(&request(&place), &token.into(), false).is_ok() {
                    held.push(place);
                }
            }
            assert_eq!(places.seats.taken_by(&Holder::Token(token.into())), count, "{token}");
        };
        hold("one", 4);
        hold("two", 4);
        hold("three", 4);
        hold("four", 2);
        for _ in 0..16 {
            let operator = place_of(&places, 1).expect("room");
            assert_eq!(admitted(&request(&operator), &"admin.token".into(), true), Ok(()));
        }
        assert!(held.iter().all(|place| !place.is_ended()), "work was ended");
    }

    #[tokio::test]
    async fn an_answer_that_nobody_reads_needs_a_place_of_those_without_a_proof() {
        let places = Places::new(8);
        let crowd: Vec<_> = (2..9).filter_map(|last| place_of(&places, last)).collect();
        for place in &crowd {
            called(&request(place), false).expect("seven eighths");
        }
        let long = Router::new().route("/", get(|| async { "x".repeat(1 << 20) }));
        let (mut client, server) = duplex(1_024);
        let place = place_of(&places, 1).expect("the last one");
        tokio::spawn(http1(server, (), Some(place), long, std::future::pending()));
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
        let mut told = String::new();
        client.read_to_string(&mut told).await.expect("an answer");
        assert!(told.starts_with("HTTP/1.1 503 ") && told.contains("connection: close"), "{told}");
    }

    /// Serves a connection with a place. Returns the client's side, the places, the place, and the task
    /// that serves.
    fn placed(app: Router) -> (DuplexStream, Places, Place, tokio::task::JoinHandle<()>) {
        let places = Places::new(2);
        let place = place_of(&places, 1).expect("free");
        let (client, server) = duplex(1_024);
        let ended = place.ended();
        let never = std::future::pending();
        let serving = http1(server, (), Some(place.clone()), app, never);
        let serving = tokio::spawn(async move {
            tokio::select! {
                _ = serving => {}
                () = ended => {}
            }
        });
        (client, places, place, serving)
    }

    #[tokio::test]
    async fn a_connection_is_in_use_from_the_end_of_a_body_to_the_end_of_the_answer() {
        let (go, wait) = tokio::sync::watch::channel(false);
        let held = post(move |body: Bytes| {
            let mut wait = wait.clone();
            async move {
                let _ = wait.wait_for(|go| *go).await;
                body
            }
        });
        let (mut client, places, place, serving) = placed(Router::new().route("/", held));
        let head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\na";
        client.write_all(head).await.expect("sent");
        client.write_all(b"b").await.expect("sent");
        let other = |last| place_of(&places, last);
        let _second = other(2).expect("free");
        // Once the request has arrived, a newcomer cannot end it.
        let mut newcomers = Vec::new();
        while !place.is_ended() && newcomers.len() < 3 {
            tokio::task::yield_now().await;
            if place.is_working() {
                newcomers.push(other(3).expect("the other one makes room"));
            }
        }
        assert!(!place.is_ended());
        go.send_replace(true);
        let mut answer = vec![0; 512];
        let mut length = 0;
        while !answer[..length].ends_with(b"ab") {
            length += client.read(&mut answer[length..]).await.expect("an answer");
        }
        while place.is_working() {
            tokio::task::yield_now().await;
        }
        // Once the connection is idle again, it is ended as soon as other holders have fewer
        // connections.
        while !place.is_ended() {
            newcomers.clear();
            // Silent newcomers are ended before a connection that has shown a token.
            let proven = other(4).expect("room");
            proven.prove(Standing::Proven).expect("room");
            newcomers.push(proven);
            newcomers.push(other(5).expect("room"));
        }
        serving.await.expect("it ends");
    }
}
