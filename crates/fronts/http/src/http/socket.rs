//! The socket of a connection: plain TCP or TLS.
//!
//!  One task polls both directions of a connection. A TLS session has one state for both
//!  directions, so the two halves share the state through a lock that never has to wait.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio_rustls::server::TlsStream;

use super::client::TlsClient;
use super::logged::Logged;

type Session = TlsStream<TcpStream>;

pub(crate) enum Socket {
    Plain(TcpStream),
    Tls(Box<(Mutex<Session>, TlsClient)>),
}

impl Socket {
    pub(crate) fn tls(session: Session, client: TlsClient) -> Self {
        Self::Tls(Box::new((Mutex::new(session), client)))
    }

    /// The client, if the connection uses TLS.
    pub(crate) fn client(&self) -> Option<&TlsClient> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(tls) => Some(&tls.1),
        }
    }

    pub(crate) fn split(&mut self) -> (Reader<'_>, Writer<'_>) {
        match self {
            Self::Plain(stream) => {
                let (reader, writer) = stream.split();
                (Reader::Plain(reader), Writer::new(Side::Plain(writer)))
            }
            Self::Tls(tls) => (Reader::Tls(&tls.0), Writer::new(Side::Tls(&tls.0))),
        }
    }

    /// Writes as much as the kernel takes at once. With TLS, nothing is written, because a TLS
    /// session has no such operation.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.try_write(bytes),
            Self::Tls(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// The half of a socket from which a connection reads.
pub(crate) enum Reader<'a> {
    Plain(ReadHalf<'a>),
    Tls(&'a Mutex<Session>),
}

impl Reader<'_> {
    /// The socket, if the connection does not use TLS.
    pub(crate) fn plain(&self) -> Option<&TcpStream> {
        match self {
            Self::Plain(reader) => Some(reader.as_ref()),
            Self::Tls(_) => None,
        }
    }
}

/// The half of a socket to which a connection writes.
pub(crate) struct Writer<'a> {
    side: Side<'a>,
    /// What the access log will say about the request that is being answered.
    pub(crate) logged: Logged,
}

enum Side<'a> {
    Plain(WriteHalf<'a>),
    Tls(&'a Mutex<Session>),
}

impl<'a> Writer<'a> {
    fn new(side: Side<'a>) -> Self {
        Self { side, logged: Logged::default() }
    }

    /// See [`Socket::try_write`].
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.side {
            Side::Plain(writer) => writer.try_write(bytes),
            Side::Tls(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Whether written bytes leave only after a flush.
    pub(crate) fn buffers(&self) -> bool {
        matches!(self.side, Side::Tls(_))
    }
}

impl AsyncRead for Reader<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(reader) => Pin::new(reader).poll_read(cx, buffer),
            Self::Tls(session) => Pin::new(&mut *session.lock()).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Writer<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().side {
            Side::Plain(writer) => Pin::new(writer).poll_write(cx, bytes),
            Side::Tls(session) => Pin::new(&mut *session.lock()).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().side {
            Side::Plain(writer) => Pin::new(writer).poll_flush(cx),
            Side::Tls(session) => Pin::new(&mut *session.lock()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().side {
            Side::Plain(writer) => Pin::new(writer).poll_shutdown(cx),
            Side::Tls(session) => Pin::new(&mut *session.lock()).poll_shutdown(cx),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(tls) => Pin::new(tls.0.get_mut()).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(tls) => Pin::new(tls.0.get_mut()).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(tls) => Pin::new(tls.0.get_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(tls.0.get_mut()).poll_shutdown(cx),
        }
    }
}
