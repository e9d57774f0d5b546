//! Connections to functions that are HTTP servers inside their sandboxes.
//!
//! A connection carries one invocation at a time, and is kept for the next one.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::Response;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use mote_core::backend::ServerOrder;
use mote_core::body::{Body, BodyError};
use mote_core::wire::HEADERS_BYTES_MAX;
use mote_core::{Fault, Invocation};
use mote_spec::Protocol;
use parking_lot::Mutex;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Handle;

use crate::link::server_h2::H2Link;
use crate::link::server_meter::{Meter, Metered};

/// The pause between attempts to connect while the server starts. It doubles from the first value
/// to the last.
const RETRY_FIRST: Duration = Duration::from_millis(1);
const RETRY_LAST: Duration = Duration::from_millis(50);
/// The maximum number of idle connections that are kept per instance.
const IDLE_MAX: usize = 64;
/// A connection to a server, and the meter of the bytes that were read from it.
pub(crate) struct Connection {
    pub(crate) sender: SendRequest<RequestBody>,
    pub(crate) meter: Arc<Meter>,
}

/// The access to one server instance.
pub(crate) struct ServerLink {
    channel: UnixStream,
    /// Held by the task that waits for an answer on the channel.
    asking: tokio::sync::Mutex<()>,
    idle: Mutex<Vec<Connection>>,
    /// The only connection, if the server speaks HTTP/2.
    h2: Option<H2Link>,
    /// The runtime on which the connections are served.
    runtime: Handle,
}

impl ServerLink {
    /// Takes the channel on which connections are requested. Call it on the runtime that is to
    /// serve the connections.
    pub(crate) fn new(channel: OwnedFd, protocol: Protocol) -> io::Result<Self> {
        // The channel carries sequenced packets and is not a stream. Only its readiness and the
        // calls below are used.
        let channel = std::os::unix::net::UnixStream::from(channel);
        channel.set_nonblocking(true)?;
        let channel = UnixStream::from_std(channel)?;
        let h2 = (protocol == Protocol::H2c).then(H2Link::default);
        let asking = tokio::sync::Mutex::new(());
        Ok(Self { channel, asking, idle: Mutex::new(Vec::new()), h2, runtime: Handle::current() })
    }

    /// The runtime on which the connections are served.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// The connection to the server, if it speaks HTTP/2.
    pub(crate) fn h2(&self) -> Option<&H2Link> {
        self.h2.as_ref()
    }

    /// Sends an invocation to a server that speaks HTTP/2, and returns the head of its answer.
    pub(crate) async fn perform_h2(
        &self,
        invocation: Invocation,
    ) -> Result<Response<Incoming>, Fault> {
        let h2 = self.h2.as_ref().expect("the caller has looked");
        h2.perform(&|| Box::pin(self.open()), invocation).await
    }

    /// Resolves when the server accepts connections. The caller limits the time.
    pub(crate) async fn wait_ready(&self) -> io::Result<()> {
        let mut pause = RETRY_FIRST;
        loop {
            let connected = match &self.h2 {
                Some(h2) => h2.connection(&|| Box::pin(self.open())).await.map(drop),
                None => self.connect().await.map(|connection| self.keep(connection)),
            };
            match connected {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(error),
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(RETRY_LAST);
        }
    }

    pub(crate) async fn connect(&self) -> io::Result<Connection> {
        let (io, meter) = self.open().await?;
        let (sender, driver) = client().handshake(io).await.map_err(io::Error::other)?;
        tokio::spawn(async move {
            // The caller that waits for the answer receives the error itself. Here, it only ends
            // the task.
            let _ = driver.await;
        });
        Ok(Connection { sender, meter })
    }

    /// A new connection that can switch to another protocol.
    pub(crate) async fn connect_for_upgrade(&self) -> io::Result<Connection> {
        let (io, meter) = self.open().await?;
        let (sender, driver) = client().handshake(io).await.map_err(io::Error::other)?;
        tokio::spawn(async move {
            let _ = driver.with_upgrades().await;
        });
        Ok(Connection { sender, meter })
    }

    /// A new socket, and the meter of the bytes read from it.
    pub(crate) async fn open(&self) -> io::Result<(TokioIo<Metered>, Arc<Meter>)> {
        let stream = {
            let _asking = self.asking.lock().await;
            let channel = &self.channel;
            let ask = || {
                Ok(rustix::net::send(channel, &[ServerOrder::Connect as u8], SendFlags::NOSIGNAL)?)
            };
            channel.async_io(Interest::WRITABLE, ask).await?;
            channel.async_io(Interest::READABLE, || receive(channel)).await?
        };
        let stream = std::net::TcpStream::from(stream);
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let meter = Arc::new(Meter::default());
        let stream = TcpStream::from_std(stream)?;
        let io = TokioIo::new(Metered::new(stream, meter.clone()));
        Ok((io, meter))
    }

    /// Asks the server to end (SIGTERM). Returns whether the order could be sent.
    pub(crate) fn terminate(&self) -> bool {
        // The order has no answer, so it may be sent between a question and its answer. Sending
        // does not wait for room in the channel: the kernel reports at once whether there is room.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::send(&self.channel, &[ServerOrder::Terminate as u8], flags).is_ok()
    }

    pub(crate) fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock();
        while let Some(connection) = idle.pop() {
            if connection.sender.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    pub(crate) fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX && !connection.sender.is_closed() {
            idle.push(connection);
        }
    }
}

/// The settings of all connections, with room for the largest head and for one read of a body.
fn client() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(HEADERS_BYTES_MAX);
    builder
}

/// Receives one message of the channel, which is a descriptor or an errno.
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

/// A request body in the form that hyper needs.
pub(crate) struct RequestBody(pub(crate) Body);

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
