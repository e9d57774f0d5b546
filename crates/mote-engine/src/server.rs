//! Functions that are HTTP servers of their own: connections into their sandbox, one invocation
//! per connection at a time, kept for the next.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use mote_core::body::{Body, BodyError, BodySource};
use mote_core::fault::error_chain;
use mote_core::invocation::{headers, put_header};
use mote_core::turn::{TURN_BYTES_MAX, Turn};
use mote_core::wire::HEADERS_BYTES_MAX;
use mote_core::{Fault, Invocation, Reply};
use parking_lot::Mutex;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::clock::now_ns;
use crate::pool::{FollowUp, Unanswered, end_stream};
use crate::revision::Revision;

/// Pause between attempts to connect while the server starts, doubling from first to last.
const RETRY_FIRST: Duration = Duration::from_millis(1);
const RETRY_LAST: Duration = Duration::from_millis(50);
/// Idle connections kept per instance.
const IDLE_MAX: usize = 64;
/// Answers up to this length are read whole before the head is passed on.
const WHOLE_BYTES_MAX: u64 = 64 << 10;

/// Bytes that a server may send before the head of its answer is whole, `1xx` answers included.
const HEAD_BYTES_MAX: usize = HEADERS_BYTES_MAX + HEAD_READ_BYTES;
/// One read while a head is awaited. All of it is parsed in one go: a hundred `1xx` answers, or 0.2 ms
/// of a chunk's size behind the head.
const HEAD_READ_BYTES: usize = 4 << 10;
/// Bytes that a server may send without a byte of its answer among them: sizes and extensions of
/// chunks, trailers. Larger than what is read ahead of a caller that takes nothing.
const SILENT_BYTES_MAX: usize = 512 << 10;
/// A byte that is parsed costs as much of a turn as this many that are only copied.
const PARSE_WEIGHT: usize = 4;
/// One read of an answer of unknown length, mostly one in chunks, while content comes. All of it is
/// parsed in one go, at 50 ns for a byte of a chunk's size.
const CONTENT_READ_BYTES: usize = 8 << 10;
/// The same while none comes: at most 0.1 ms of parsing.
const SILENT_READ_BYTES: usize = 2 << 10;
/// The same as [`PARSE_WEIGHT`] for such a read: it is a turn.
const SILENT_WEIGHT: usize = TURN_BYTES_MAX / SILENT_READ_BYTES;

/// A connection to a server, and what it reads.
struct Connection {
    sender: SendRequest<RequestBody>,
    meter: Arc<Meter>,
}

/// What was read from a server since its answer last made progress.
#[derive(Default)]
struct Meter {
    silent_bytes: AtomicUsize,
    awaits_head: AtomicBool,
    /// Nobody knows how long the answer is.
    is_open_ended: AtomicBool,
}

impl Meter {
    fn begin(&self) {
        self.progress();
        self.awaits_head.store(true, Ordering::Relaxed);
    }

    fn head_came(&self, is_open_ended: bool) {
        // What follows an open-ended head is no content until some has been taken.
        self.silent_bytes.store(is_open_ended.into(), Ordering::Relaxed);
        self.is_open_ended.store(is_open_ended, Ordering::Relaxed);
        self.awaits_head.store(false, Ordering::Relaxed);
    }

    fn progress(&self) {
        self.silent_bytes.store(0, Ordering::Relaxed);
    }

    /// Counts what was read; an error when it is too much for nothing.
    fn charge(&self, bytes: usize) -> io::Result<()> {
        let silent = self.silent_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let (what, bytes_max) = if self.awaits_head.load(Ordering::Relaxed) {
            ("its head", HEAD_BYTES_MAX)
        } else {
            ("any of its body", SILENT_BYTES_MAX)
        };
        if silent <= bytes_max {
            return Ok(());
        }
        Err(io::Error::other(format!("more than {bytes_max} bytes came without {what}")))
    }
}

/// The socket of a connection. Ends one that sends on and on without getting further, and lets the
/// other tasks of the data path run after a turn's worth of bytes.
struct Metered {
    stream: TcpStream,
    meter: Arc<Meter>,
    turn: Turn,
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.turn.is_over() {
            self.turn = Turn::new();
            // It never resolves at once; the runtime wakes us when the others have run.
            let _ = pin!(tokio::task::yield_now()).poll(cx);
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let (bytes_max, weight) = if self.meter.awaits_head.load(Ordering::Relaxed) {
            (HEAD_READ_BYTES, PARSE_WEIGHT)
        } else if !self.meter.is_open_ended.load(Ordering::Relaxed) {
            (usize::MAX, PARSE_WEIGHT)
        } else if self.meter.silent_bytes.load(Ordering::Relaxed) == 0 {
            (CONTENT_READ_BYTES, PARSE_WEIGHT)
        } else {
            (SILENT_READ_BYTES, SILENT_WEIGHT)
        };
        if bytes_max < buffer.remaining() {
            let mut space = [MaybeUninit::uninit(); CONTENT_READ_BYTES];
            let room = bytes_max.min(space.len());
            let mut piece = ReadBuf::uninit(&mut space[..room]);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut piece))?;
            buffer.put_slice(piece.filled());
        } else {
            ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        }
        let bytes = buffer.filled().len() - before;
        self.turn.charge(1, bytes.saturating_mul(weight));
        let charged = self.meter.charge(bytes);
        if charged.is_err() {
            buffer.set_filled(before);
        }
        Poll::Ready(charged)
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
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

/// The way into one server instance.
pub(crate) struct ServerLink {
    channel: tokio::sync::Mutex<UnixStream>,
    idle: Mutex<Vec<Connection>>,
}

impl ServerLink {
    /// Takes the channel on which connections are asked for.
    pub(crate) fn new(channel: OwnedFd) -> io::Result<Self> {
        // Sequenced packets, not a stream; only readiness and the calls below are used.
        let channel = std::os::unix::net::UnixStream::from(channel);
        channel.set_nonblocking(true)?;
        let channel = tokio::sync::Mutex::new(UnixStream::from_std(channel)?);
        Ok(Self { channel, idle: Mutex::new(Vec::new()) })
    }

    /// Resolves when the server accepts connections; the caller bounds the time.
    pub(crate) async fn wait_ready(&self) -> io::Result<()> {
        let mut pause = RETRY_FIRST;
        loop {
            match self.connect().await {
                Ok(connection) => {
                    self.keep(connection);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(error),
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(RETRY_LAST);
        }
    }

    /// A fresh connection.
    async fn connect(&self) -> io::Result<Connection> {
        let stream = {
            let channel = self.channel.lock().await;
            channel
                .async_io(Interest::WRITABLE, || {
                    Ok(rustix::net::send(&*channel, &[1], SendFlags::NOSIGNAL)?)
                })
                .await?;
            channel.async_io(Interest::READABLE, || receive(&channel)).await?
        };
        let stream = std::net::TcpStream::from(stream);
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let meter = Arc::new(Meter::default());
        let stream = TcpStream::from_std(stream)?;
        let io = TokioIo::new(Metered { stream, meter: meter.clone(), turn: Turn::new() });
        // The largest head, and what is read of a body at once.
        let handshake = http1::Builder::new().max_buf_size(HEADERS_BYTES_MAX).handshake(io);
        let (sender, driver) = handshake.await.map_err(io::Error::other)?;
        tokio::spawn(async move {
            // The error reaches whoever waits for the answer; here it only ends the task.
            let _ = driver.await;
        });
        Ok(Connection { sender, meter })
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock();
        while let Some(connection) = idle.pop() {
            if connection.sender.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX && !connection.sender.is_closed() {
            idle.push(connection);
        }
    }
}

/// One message of the channel: a descriptor, or an errno.
fn receive(channel: &UnixStream) -> io::Result<OwnedFd> {
    let mut bytes = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::net::recvmsg(
        channel,
        &mut [io::IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = ancillary
            && let Some(descriptor) = descriptors.next()
        {
            return Ok(descriptor);
        }
    }
    match bytes.first_chunk::<4>() {
        _ if message.bytes == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
        Some(errno) if message.bytes >= 4 => {
            Err(io::Error::from_raw_os_error(i32::from_le_bytes(*errno)))
        }
        _ => Err(io::Error::other("malformed message from the sandbox")),
    }
}

/// Serves one invocation over HTTP/1.1.
pub(crate) async fn exchange(
    revision: Arc<Revision>,
    key: usize,
    stream: usize,
    serial: u64,
    link: Arc<ServerLink>,
    invocation: Invocation,
) {
    let place = Place { revision, key, stream, serial };
    match perform(&link, invocation).await {
        Ok((response, connection)) => answer(place, link, response, connection).await,
        Err(fault) => place.reply(Err(fault)),
    }
}

async fn perform(
    link: &ServerLink,
    invocation: Invocation,
) -> Result<(hyper::Response<Incoming>, Connection), Fault> {
    let bad = |what: &str, error: &dyn std::fmt::Display| Fault::BadReply {
        message: format!("{what}: {error}"),
    };
    let head = invocation.head;
    let mut body = invocation.body;
    let repeatable = matches!(body, Body::Empty | Body::Whole(_));
    let mut attempt = 0;
    loop {
        attempt += 1;
        let idle = if attempt == 1 { link.take_idle() } else { None };
        let reused = idle.is_some();
        let mut connection = match idle {
            Some(connection) => connection,
            None => link.connect().await.map_err(|error| bad("cannot connect to $PORT", &error))?,
        };
        let this_body = match &body {
            Body::Empty => Body::Empty,
            Body::Whole(bytes) => Body::Whole(bytes.clone()),
            Body::Stream { .. } => std::mem::take(&mut body),
        };
        let request = request(&head, this_body).map_err(|error| bad("request", &error))?;
        connection.meter.begin();
        match connection.sender.send_request(request).await {
            Ok(response) => {
                let length = hyper::body::Body::size_hint(response.body()).exact();
                connection.meter.head_came(length.is_none());
                return Ok((response, connection));
            }
            // The server closed a kept connection in the instant we used it: nothing was read.
            Err(error)
                if reused
                    && repeatable
                    && (error.is_canceled() || error.is_incomplete_message()) => {}
            Err(error) => return Err(bad("reply is not valid HTTP", &error_chain(&error))),
        }
    }
}

fn request(
    head: &mote_core::invocation::Head,
    body: Body,
) -> Result<hyper::Request<RequestBody>, hyper::http::Error> {
    let mut target = BytesMut::from(head.path());
    if !head.query().is_empty() {
        target.extend_from_slice(b"?");
        target.extend_from_slice(head.query());
    }
    let mut builder = hyper::Request::builder().method(head.method()).uri(&target[..]);
    let mut has_host = false;
    for (name, value) in headers(head.headers()) {
        if is_framing(name) {
            continue;
        }
        has_host |= name == b"host";
        builder = builder.header(name, value);
    }
    if !has_host {
        builder = builder.header("host", "function");
    }
    builder.body(RequestBody(body))
}

/// Fields that speak of one connection, not of the message (RFC 9110, 7.6.1).
fn is_framing(name: &[u8]) -> bool {
    matches!(
        name,
        b"connection"
            | b"content-length"
            | b"transfer-encoding"
            | b"keep-alive"
            | b"proxy-connection"
            | b"te"
            | b"trailer"
            | b"upgrade"
            | b"expect"
    )
}

async fn answer(
    place: Place,
    link: Arc<ServerLink>,
    response: hyper::Response<Incoming>,
    connection: Connection,
) {
    let (parts, incoming) = response.into_parts();
    let mut block = Vec::new();
    for (name, value) in &parts.headers {
        if !is_framing(name.as_str().as_bytes()) {
            put_header(&mut block, name.as_str().as_bytes(), value.as_bytes());
        }
    }
    let status = parts.status.as_u16();
    let length = hyper::body::Body::size_hint(&incoming).exact();
    if !(200..=599).contains(&status) {
        place.reply(Err(Fault::BadReply { message: format!("status {status}") }));
        return;
    }
    let whole = length.is_some_and(|length| length <= WHOLE_BYTES_MAX);
    let source = ServerAnswer {
        incoming,
        connection: Some(connection),
        link,
        // A streamed answer ends its stream when it is dropped; a whole one below.
        place: (!whole).then(|| place.clone()),
    };
    let mut body = Body::Stream { source: Box::new(source), length };
    if whole {
        body = match body.collect(WHOLE_BYTES_MAX).await {
            Ok(bytes) => Body::whole(bytes),
            Err(_) => {
                place.reply(Err(Fault::BadReply { message: "reply ended early".into() }));
                return;
            }
        };
    }
    place.deliver(status, block.into(), body);
}

/// Where an exchange's stream is.
#[derive(Clone)]
struct Place {
    revision: Arc<Revision>,
    key: usize,
    stream: usize,
    serial: u64,
}

impl Place {
    fn reply(&self, result: Result<Reply, Fault>) {
        if let Some((sender, _)) = self.take() {
            let _ = sender.send(result.map_err(Unanswered::from));
        }
        self.end();
    }

    fn deliver(&self, status: u16, headers: Bytes, body: Body) {
        let whole = !matches!(body, Body::Stream { .. });
        if let Some((sender, mut phases)) = self.take() {
            phases.answered_ns = now_ns();
            // A server does not tell when its handler was entered: all of the time is its own.
            phases.entered_ns = phases.sent_ns;
            phases.returned_ns = phases.answered_ns;
            {
                let mut pool = self.revision.pool.lock();
                pool.answered();
                if let Some(worker) = pool.worker_mut(self.key) {
                    worker.record_exchange(phases.run_ns());
                }
            }
            let _ = sender.send(Ok(Reply { status, headers, body, phases }));
        }
        if whole {
            self.end();
        }
    }

    fn take(&self) -> Option<(crate::pool::ReplySender, mote_core::Phases)> {
        let mut pool = self.revision.pool.lock();
        let (streams, _) = pool.worker_mut(self.key)?.parts();
        let stream = streams.get_mut_if(self.stream, self.serial)?;
        // From here on the body's own drop ends the stream, not an abort.
        stream.task = None;
        stream.phases.entered_ns = stream.phases.sent_ns;
        Some((stream.reply.take()?, stream.phases))
    }

    fn end(&self) {
        let now = now_ns();
        let mut follow_ups: Vec<FollowUp> = Vec::new();
        let mut pool = self.revision.pool.lock();
        if let Some(worker) = pool.worker_mut(self.key)
            && worker.parts().0.get_mut_if(self.stream, self.serial).is_some()
        {
            end_stream(worker, self.stream, now);
        }
        pool.dispatch(now, &mut follow_ups);
        drop(pool);
        self.revision.follow_up(follow_ups);
    }
}

/// A streamed answer of a server; keeps its connection when it was read to the end.
struct ServerAnswer {
    incoming: Incoming,
    connection: Option<Connection>,
    link: Arc<ServerLink>,
    place: Option<Place>,
}

impl BodySource for ServerAnswer {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            match hyper::body::Body::poll_frame(Pin::new(&mut self.incoming), cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {
                    if let Some(connection) = self.connection.take() {
                        self.link.keep(connection);
                    }
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(Err(_))) => {
                    self.connection = None;
                    return Poll::Ready(Some(Err(BodyError::WorkerFailed)));
                }
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        if let Some(connection) = &self.connection {
                            connection.meter.progress();
                        }
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
            }
        }
    }
}

impl Drop for ServerAnswer {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            place.end();
        }
    }
}

/// A request body for hyper.
pub(crate) struct RequestBody(Body);

impl hyper::body::Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.0.poll_chunk(cx).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, Body::Empty)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.length().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A server that sends `bytes` over and over, as its client sees it.
    async fn flood(bytes: &'static [u8]) -> (Metered, Arc<Meter>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        tokio::spawn(async move { while peer.write_all(bytes).await.is_ok() {} });
        let meter = Arc::new(Meter::default());
        (Metered { stream, meter: meter.clone(), turn: Turn::new() }, meter)
    }

    #[tokio::test]
    async fn bytes_without_progress_end_a_connection() {
        for (is_head, bytes_max) in [(true, HEAD_BYTES_MAX), (false, SILENT_BYTES_MAX)] {
            let (mut metered, meter) = flood(&[b'0'; 64 << 10]).await;
            if is_head {
                meter.begin();
            }
            let mut taken = Vec::new();
            let error = metered.read_to_end(&mut taken).await.unwrap_err();
            assert!(error.to_string().contains(&bytes_max.to_string()), "{error}");
            // What the last read brought is not handed on.
            assert!(taken.len() <= bytes_max, "{} bytes", taken.len());
        }
        let (mut metered, meter) = flood(&[b'0'; 64 << 10]).await;
        let mut piece = vec![0; 64 << 10];
        for _ in 0..100 {
            metered.read_exact(&mut piece).await.unwrap();
            meter.progress();
        }
    }

    #[tokio::test]
    async fn others_run_between_two_reads() {
        let (mut metered, meter) = flood(&[b'0'; 64 << 10]).await;
        let mut piece = vec![0; 256 << 10];
        let mut in_one_turn = 0;
        for _ in 0..100 {
            meter.progress();
            let mut buffer = ReadBuf::new(&mut piece);
            let polled = std::future::poll_fn(|cx| {
                Poll::Ready(Pin::new(&mut metered).poll_read(cx, &mut buffer))
            });
            match polled.await {
                Poll::Ready(read) => {
                    read.unwrap();
                    in_one_turn += buffer.filled().len();
                    assert!(in_one_turn <= 512 << 10, "{in_one_turn} bytes in one turn");
                }
                Poll::Pending => {
                    in_one_turn = 0;
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}
