//! Sockets of the platforms' APIs. Their connections are limited, and one address may have half of
//! them.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use mote_core::shares::{Shares, address_owner};
use mote_tls::{Acceptor, Stream};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::Stop;
use crate::connection::{self, Places};

/// Connections of one listener at once. Above this limit, or above half of it from one address, a
/// client receives a 503.
const CONNECTIONS_MAX: usize = 512;
/// Handshakes of TLS at once, and a quarter of them from one address.
const HANDSHAKES_MAX: usize = 64;
/// How long running requests may take to end once the node stops.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// A listener before it serves. Its port is already bound, so that a start can fail early with a
/// reason.
#[derive(Debug)]
pub struct Bound {
    socket: TcpListener,
    address: SocketAddr,
    tls: Option<Acceptor>,
}

impl Bound {
    /// Binds the port.
    pub async fn new(address: SocketAddr) -> io::Result<Self> {
        Self::of(TcpListener::bind(address).await?)
    }

    /// A listener that is bound already.
    pub fn of(socket: TcpListener) -> io::Result<Self> {
        let address = socket.local_addr()?;
        Ok(Self { socket, address, tls: None })
    }

    /// From now on, clients may speak TLS.
    #[must_use]
    pub fn with_tls(self, tls: Option<Acceptor>) -> Self {
        Self { tls, ..self }
    }

    /// The address as bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves `app` over HTTP/1.1 until the node stops; each request carries its peer's address.
    pub async fn serve(self, app: Router, stop: Stop) {
        let ending = stop.clone();
        let one = move |stream, peer| one(stream, peer, app.clone(), ending.clone());
        self.serve_with(one, stop).await;
    }

    /// Serves each connection with `one` until the node stops.
    pub async fn serve_with<F>(
        self,
        one: impl Fn(Stream, SocketAddr) -> F + Clone + Send + 'static,
        stop: Stop,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let places = Places::new(CONNECTIONS_MAX);
        let handshakes = Shares::new(HANDSHAKES_MAX, HANDSHAKES_MAX / 4);
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let (stream, peer) = tokio::select! {
                accepted = self.socket.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        // Most likely no descriptor is left, so other connections must end first.
                        tracing::warn!(%error, address = %self.address, "connection not accepted");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
                () = stop.stopped() => break,
            };
            let Some(place) = places.take(&stream, peer.ip()) else { continue };
            let _ = stream.set_nodelay(true);
            let (one, tls, ending) = (one.clone(), self.tls.clone(), stop.clone());
            let (handshakes, owner) = (handshakes.clone(), address_owner(peer.ip()));
            connections.spawn(mote_tasks::boxed(async move {
                let accepted = match tls {
                    Some(tls) => tokio::select! {
                        accepted = tls.accept(stream, || handshakes.take(owner, 1).ok()) => accepted,
                        () = ending.stopped() => return,
                    },
                    None => Ok(mote_tls::plain(stream)),
                };
                match accepted {
                    Ok(stream) => one(stream, peer).await,
                    Err(error) => tracing::debug!(%error, %peer, "no connection"),
                }
                drop(place);
            }));
        }
        drop(self.socket);
        let all = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(STOP_GRACE, all).await;
    }
}

async fn one(stream: Stream, peer: SocketAddr, app: Router, stop: Stop) {
    if let Err(error) =
        connection::http1(stream, peer, app, async move { stop.stopped().await }).await
    {
        tracing::debug!(%error, %peer, "connection ended");
    }
}
