//! Connections to a listener that speaks TLS with clients that begin with a handshake of it, and what
//! other clients send with them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;

use crate::Certificates;

/// How long a client may take until its first byte.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take for the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The first byte of a handshake (RFC 8446, section 5.1). No request of HTTP begins with it.
const HANDSHAKE: u8 = 22;

/// Tells clients that speak TLS from others, and answers their handshakes.
#[derive(Debug, Clone)]
pub struct Acceptor(Arc<ServerConfig>);

impl Acceptor {
    /// An acceptor with these certificates, for the protocols in `alpn`.
    pub fn new(certificates: &Arc<Certificates>, alpn: &[&str]) -> Result<Self, rustls::Error> {
        Ok(Self(certificates.server(alpn)?))
    }

    /// Waits for the first byte of a client, and for the handshake if it begins one. A handshake may
    /// hold up to 64 KiB, so it needs a `place`, and there is none if it returns `None`.
    pub async fn accept<P>(
        &self,
        stream: TcpStream,
        place: impl FnOnce() -> Option<P>,
    ) -> io::Result<Stream> {
        let mut first = [0];
        let peeked = tokio::time::timeout(FIRST_BYTE_TIMEOUT, stream.peek(&mut first)).await??;
        if peeked == 0 || first[0] != HANDSHAKE {
            return Ok(Stream::Plain(stream));
        }
        let _place = place().ok_or_else(|| io::Error::other("too many handshakes"))?;
        let handshake = TlsAcceptor::from(self.0.clone()).accept(stream);
        let session = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await??;
        Ok(Stream::Tls(Box::new(session)))
    }
}

/// A connection with or without TLS.
#[derive(Debug)]
pub enum Stream {
    /// Without.
    Plain(TcpStream),
    /// With.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Whether others on the network cannot read what is sent.
    pub fn is_encrypted(&self) -> bool {
        matches!(self, Self::Tls(_))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
