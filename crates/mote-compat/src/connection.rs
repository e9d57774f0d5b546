//! One connection of an HTTP/1.1 API. It limits how long its client may be silent: before a head is
//! complete, inside a body, and while an answer waits to be read. The module also limits the number
//! of connections. The node's own management API uses it, too.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::http::Extensions;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use mote_core::shares::{Share, Shares, address_owner};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// Time limit for the head of a request, and for the pause before the next one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may be silent inside the body of a request.
const BODY_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may read nothing of its answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Most bytes that are read ahead on a connection; a longer head is refused. The library's own
/// limit is 408 KiB, and a client that sends that much and stops would hold it on each of its
/// connections.
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// The answer to a client whose address has too many connections.
const CROWDED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\n\
    retry-after: 1\r\ncontent-length: 39\r\nconnection: close\r\n\r\n\
    too many connections from this address\n";

/// Serves `app` on a connection until it ends, or until `stopped` has resolved and the running
/// request has ended. Each request carries `info` as its [`ConnectInfo`].
///
/// All that is generic is behind pointers, so that a binary contains the code of a connection once.
pub fn http1<S, T>(
    stream: S,
    info: T,
    app: Router,
    stopped: impl Future<Output = ()> + Send + 'static,
) -> Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: Clone + Send + Sync + 'static,
{
    let mark = move |extensions: &mut Extensions| {
        extensions.insert(ConnectInfo(info.clone()));
    };
    Box::pin(serve(Box::new(stream), Box::new(mark), app, Box::pin(stopped)))
}

/// What a connection reads and writes.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

async fn serve(
    stream: Box<dyn Stream>,
    mark: Box<dyn Fn(&mut Extensions) + Send>,
    app: Router,
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
) -> hyper::Result<()> {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request = request.map(Idle::new);
        mark(request.extensions_mut());
        let app = app.clone();
        async move { tower_service::Service::call(&mut { app }, request).await }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(Patient::new(stream)), service);
    until(connection, |connection| connection.graceful_shutdown(), stopped).await
}

/// Drives a connection until it ends. When `stopped` resolves, `wind_up` makes the connection
/// accept no further requests.
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

/// The limits of a listener's connections: in total, and for one address.
#[derive(Debug, Clone)]
pub struct Places(Shares<IpAddr>);

impl Places {
    /// `total_max` connections, of which one address may have half, so that one client cannot block
    /// all others.
    pub fn new(total_max: usize) -> Self {
        Self(Shares::new(total_max, total_max / 2))
    }

    /// Takes a place for a connection; dropping the place releases it. If none is free, the client
    /// receives a 503, provided that the socket accepts it at once; the caller then closes the
    /// connection.
    pub fn take(&self, stream: &TcpStream, peer: IpAddr) -> Option<Share<IpAddr>> {
        let place = self.0.take(address_owner(peer), 1).ok();
        if place.is_none() {
            let _ = stream.try_write(CROWDED);
        }
        place
    }
}

/// A request's body that ends with an error when its client is silent for too long.
struct Idle {
    incoming: Incoming,
    /// The timer of the current silence; set when a read first has to wait.
    silent: Option<Pin<Box<Sleep>>>,
    waits: bool,
}

impl Idle {
    fn new(incoming: Incoming) -> Self {
        Self { incoming, silent: None, waits: false }
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

/// The timer of a wait; it starts anew unless the wait continues.
fn timer(place: &mut Option<Pin<Box<Sleep>>>, goes_on: bool, timeout: Duration) -> Pin<&mut Sleep> {
    let sleep = place.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
    if !goes_on {
        sleep.as_mut().reset(Instant::now() + timeout);
    }
    sleep.as_mut()
}

/// A connection whose client must read a part of its answer within `WRITE_TIMEOUT`.
struct Patient<S> {
    stream: S,
    stalled: Option<Pin<Box<Sleep>>>,
    waits: bool,
}

impl<S> Patient<S> {
    /// Wraps this stream.
    fn new(stream: S) -> Self {
        Self { stream, stalled: None, waits: false }
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

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
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
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    /// A connection to an API of two routes, and the result of serving it. The clock is virtual
    /// here: it advances as soon as every task waits.
    fn served() -> (DuplexStream, tokio::task::JoinHandle<hyper::Result<()>>) {
        let (client, server) = duplex(1_024);
        let echo = post(|body: Bytes| async move { body });
        let long = get(|| async { "x".repeat(1 << 20) });
        let app = Router::new().route("/echo", echo).route("/long", long);
        let never = std::future::pending();
        (client, tokio::spawn(http1(server, (), app, never)))
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
            // Clients that are silent from the start, in a head, in a body of known length, and in
            // a chunked one.
            ("", HEAD_TIMEOUT),
            ("POST /echo HTTP/1.1\r\nhost: a\r\n", HEAD_TIMEOUT),
            ("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nabc", BODY_IDLE_TIMEOUT),
            (
                "POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc",
                BODY_IDLE_TIMEOUT,
            ),
            // A client that never reads: its answer does not fit into the connection.
            ("GET /long HTTP/1.1\r\nhost: a\r\n\r\n", WRITE_TIMEOUT),
            // A client that is silent after an answer.
            ("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\na", HEAD_TIMEOUT),
        ] {
            let (mut client, serving) = served();
            client.write_all(sent.as_bytes()).await.expect("sent");
            let ended = ends(serving).await;
            assert!(ended <= within + Duration::from_secs(1), "{sent:?}: after {ended:?}");
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
    async fn one_address_gets_half_of_the_places() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let places = Places::new(4);
        let (mut clients, mut held) = (Vec::new(), Vec::new());
        for n in 0..3 {
            clients.push(TcpStream::connect(address).await.expect("connected"));
            let (stream, peer) = listener.accept().await.expect("accepted");
            let place = places.take(&stream, peer.ip());
            assert_eq!(place.is_some(), n < 2, "connection {n}");
            held.extend(place);
        }
        let mut told = String::new();
        clients[2].read_to_string(&mut told).await.expect("an answer");
        let (head, body) = told.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 503 "), "{told}");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{told}");
        // Other addresses have the other half.
        let (stream, other) = (&clients[0], "192.0.2.1".parse().expect("an address"));
        held.extend(places.take(stream, other));
        assert_eq!(held.len(), 3);
        held.clear();
        assert!(places.take(stream, address.ip()).is_some());
    }
}
