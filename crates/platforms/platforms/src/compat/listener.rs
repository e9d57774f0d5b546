//! The sockets of the platforms' APIs. The number of connections is limited. At the limit, the address
//! with the most connections loses an idle one to a new connection.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use mote_core::seats::Seats;
use mote_core::shares::address_owner;
use mote_tls::{Acceptor, Stream};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::compat::Stop;
use crate::compat::connection::{self, Place, Places};

/// The most connections of one listener, unless the node may open only few files.
const CONNECTIONS_MAX: usize = 512;
/// One listener may use one in this many of the files that the node may open.
const FILES_SHARE: usize = 32;
/// The least number of connections that one listener may have, however few files the node may open.
const CONNECTIONS_LEAST: usize = 32;
/// The most TLS handshakes at once. At the limit, the oldest handshake of the address with the most
/// handshakes ends.
const HANDSHAKES_MAX: usize = 64;
/// How long running requests may take to end once the node is stopping.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// A listener that does not serve yet. Its port is already bound, so that the start of a node can fail
/// early and name the reason.
#[derive(Debug)]
pub struct Bound {
    socket: TcpListener,
    address: SocketAddr,
    tls: Option<Acceptor>,
}

impl Bound {
    /// Binds the port.
    pub async fn new(address: SocketAddr) -> io::Result<Self> {
        Self::of(mote_tls::listen(address)?)
    }

    /// Takes over a socket that is already bound.
    pub fn of(socket: TcpListener) -> io::Result<Self> {
        let address = socket.local_addr()?;
        Ok(Self { socket, address, tls: None })
    }

    /// Lets clients use TLS on this listener.
    #[must_use]
    pub fn with_tls(self, tls: Option<Acceptor>) -> Self {
        Self { tls, ..self }
    }

    /// The address to which the listener is bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves `app` over HTTP/1.1 until the node stops; each request carries its peer's address.
    pub async fn serve(self, app: Router, stop: Stop) {
        let ending = stop.clone();
        let one = move |stream, peer, place| one(stream, peer, place, app.clone(), ending.clone());
        self.serve_with(one, stop).await;
    }

    /// Passes each connection to `one` until the node stops.
    pub async fn serve_with<F>(
        self,
        one: impl Fn(Stream, SocketAddr, Place) -> F + Clone + Send + 'static,
        stop: Stop,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let places = Places::new(connections_max());
        let handshakes = Seats::new(HANDSHAKES_MAX, HANDSHAKES_MAX);
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let (stream, peer) = tokio::select! {
                accepted = self.socket.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        // Most likely the process has no free file descriptor, and one becomes free
                        // only when another connection ends.
                        tracing::warn!(%error, address = %self.address, "connection not accepted");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
                () = stop.stopped() => break,
            };
            let Some(place) = places.take(&stream, peer.ip()) else { continue };
            let _ = stream.set_nodelay(true);
            let one = one.clone();
            let tls = self.tls.clone();
            let ending = stop.clone();
            let handshakes = handshakes.clone();
            let owner = address_owner(peer.ip());
            let until = place.ended();
            let serving = async move {
                let handshake = || {
                    let seat = handshakes.take(owner).ok()?;
                    Some(async move { seat.ended().await })
                };
                let accepted = match tls {
                    Some(tls) => tokio::select! {
                        accepted = tls.accept(stream, handshake) => accepted,
                        () = ending.stopped() => return,
                    },
                    None => Ok(mote_tls::plain(stream)),
                };
                match accepted {
                    Ok(stream) => one(stream, peer, place).await,
                    Err(error) => tracing::debug!(%error, %peer, "no connection"),
                }
            };
            connections.spawn(async move {
                tokio::select! {
                    biased;
                    () = serving => {}
                    () = until => tracing::debug!(%peer, "connection ended: others needed its place"),
                }
            });
        }
        drop(self.socket);
        let all = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(STOP_GRACE, all).await;
    }
}

/// Returns how many connections a listener may have.
fn connections_max() -> usize {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let files = files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    (files / FILES_SHARE).clamp(CONNECTIONS_LEAST, CONNECTIONS_MAX)
}

async fn one(stream: Stream, peer: SocketAddr, place: Place, app: Router, stop: Stop) {
    let stopped = async move { stop.stopped().await };
    if let Err(error) = connection::http1(stream, peer, Some(place), app, stopped).await {
        tracing::debug!(%error, %peer, "connection ended");
    }
}
