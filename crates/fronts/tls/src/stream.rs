//! Connections to a listener that accepts clients with and without TLS. A client that begins with a
//! TLS handshake gets TLS.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::Certificates;
use crate::acme::PROTOCOL;

/// How long a client may take to send its first byte.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The first byte of a TLS handshake (RFC 8446, section 5.1). No HTTP request begins with this
/// byte.
const HANDSHAKE: u8 = 22;

/// The number of connections that the kernel completes before they are accepted. The usual backlog
/// of 128 is full after a burst of 128 clients, and each further client tries again after a whole
/// second.
const BACKLOG: u32 = 4096;

/// Listens on an address, with room for bursts of new clients. Must be called inside the runtime
/// that accepts the clients.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Without this, a restarted program would have to wait until the kernel forgets the connections
    // of the previous process.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Recognises clients that speak TLS, and answers their handshakes.
#[derive(Debug, Clone)]
pub struct Acceptor(Arc<ServerConfig>);

impl Acceptor {
    /// An acceptor with these certificates, for the protocols in `alpn`.
    pub fn new(certificates: &Arc<Certificates>, alpn: &[&str]) -> Result<Self, rustls::Error> {
        Ok(Self(certificates.server(alpn, None)?))
    }

    /// Waits for the first byte of a client, and for the handshake if that byte begins one. A
    /// handshake may hold up to 64 KiB, so it needs a place. `place` returns `None` if no place is
    /// free. The future of a place resolves when the handshake has to end to make room for others.
    pub async fn accept<P: Future<Output = ()>>(
        &self,
        stream: TcpStream,
        place: impl FnOnce() -> Option<P>,
    ) -> io::Result<Stream> {
        let mut first = [0];
        let peeked = tokio::time::timeout(FIRST_BYTE_TIMEOUT, stream.peek(&mut first)).await??;
        if peeked == 0 || first[0] != HANDSHAKE {
            return Ok(plain(stream));
        }
        let crowded = || io::Error::other("too many handshakes");
        let mut place = pin!(place().ok_or_else(crowded)?);
        let handshake = TlsAcceptor::from(self.0.clone()).accept(stream);
        let mut handshake = pin!(tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake));
        let session = poll_fn(|cx| match handshake.as_mut().poll(cx) {
            Poll::Pending => place.as_mut().poll(cx).map(|()| Ok(Err(crowded()))),
            session => session,
        });
        let session = session.await??;
        if session.get_ref().1.alpn_protocol() == Some(PROTOCOL) {
            return Err(io::Error::other("a question of an authority")); // the handshake answered it
        }
        Ok(Either::Right(Box::new(session)))
    }
}

/// A connection without TLS (left) or with TLS (right).
pub type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

pub fn plain(stream: TcpStream) -> Stream {
    Either::Left(stream)
}

/// Whether the connection is encrypted, so that others on the network cannot read it.
pub fn is_encrypted(stream: &Stream) -> bool {
    matches!(stream, Either::Right(_))
}
