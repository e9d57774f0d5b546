//! TLS for CoAP over TCP (RFC 8323, 8.2): the handshake, and what a client proves with it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mote_core::shares::{Shares, address_owner};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use super::sender::Clients;

/// The protocol's name in the handshake. A client that sends no name is accepted, too, because the
/// default port already identifies the protocol (RFC 8323, 8.2).
pub const ALPN: &str = "coap";
/// The memory that a handshake may hold for the client's bytes, in units of
/// [`super::stream_io::UNIT_BYTES`].
const HANDSHAKE_UNITS: usize = 4;

/// The TLS configuration of a front.
#[derive(Debug, Clone)]
pub struct StreamTls {
    /// The certificates of the node, and the rule which client certificates are accepted.
    pub server: Arc<ServerConfig>,
    /// Returns the names in a client certificate.
    pub names_of: fn(&CertificateDer<'_>) -> Vec<String>,
}

/// A plain TCP connection, or one with TLS.
pub(crate) type Socket = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Performs the TLS handshake, if TLS is configured. Returns the socket and its client. `None` if
/// the handshake fails, if it takes longer than `time_max`, if there is no memory for it, or if the
/// node stops.
pub(crate) async fn open(
    socket: TcpStream,
    peer: SocketAddr,
    tls: Option<StreamTls>,
    bytes: &Shares<IpAddr>,
    time_max: Duration,
    stop: &watch::Receiver<bool>,
) -> Option<(Socket, Clients)> {
    let Some(tls) = tls else { return Some((Either::Left(socket), Clients::Unknown)) };
    let _held = bytes.take(address_owner(peer.ip()), HANDSHAKE_UNITS).ok()?;
    let handshake = TlsAcceptor::from(tls.server).accept(socket);
    let mut stop = stop.clone();
    let opened = tokio::select! {
        opened = tokio::time::timeout(time_max, handshake) => opened,
        _ = stop.wait_for(|stop| *stop) => return None,
    };
    match opened {
        Ok(Ok(session)) => {
            let certificates = session.get_ref().1.peer_certificates();
            let client = match certificates.and_then(<[_]>::first) {
                Some(certificate) => Clients::Certified(Arc::new((tls.names_of)(certificate))),
                None => Clients::Unknown,
            };
            Some((Either::Right(Box::new(session)), client))
        }
        Ok(Err(error)) => {
            tracing::debug!(%error, %peer, "TLS handshake of a CoAP connection failed");
            None
        }
        Err(_) => {
            tracing::debug!(%peer, "TLS handshake of a CoAP connection took too long");
            None
        }
    }
}
