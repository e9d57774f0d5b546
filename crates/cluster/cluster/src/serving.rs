//! The HTTP servers of the controller and of the agents. Every pod of the cluster can connect to
//! them. Therefore the number of connections is bounded, and silent clients are disconnected.

use std::io;
use std::time::Duration;

use axum::Router;
pub(crate) use mote_platforms::compat::connection::Place;
use mote_platforms::compat::connection::{Places, http1};
use tokio::net::{TcpListener, TcpStream};

/// The most connections of a port at once. At the limit, the address with the most connections
/// loses an idle one.
const CONNECTIONS_MAX: usize = 512;
/// The pause after a failed accept. Without free file descriptors, accept would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening socket with a bounded number of connections.
pub(crate) struct Port {
    listener: TcpListener,
    places: Places,
}

impl Port {
    pub(crate) async fn bind(address: std::net::SocketAddr) -> io::Result<Self> {
        let listener = mote_platforms::compat::listen(address).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot listen at {address}: {error}"))
        })?;
        Ok(Self { listener, places: Places::new(CONNECTIONS_MAX) })
    }

    /// Waits for the next connection for which there is a place.
    pub(crate) async fn next(&self) -> (TcpStream, std::net::SocketAddr, Place) {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    if let Some(place) = self.places.take(&stream, peer.ip()) {
                        return (stream, peer, place);
                    }
                }
                Err(error) => {
                    tracing::warn!("a connection cannot be accepted: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Serves the routes for the rest of the process.
    pub(crate) async fn serve(&self, routes: Router) {
        loop {
            let (stream, peer, place) = self.next().await;
            let routes = routes.clone();
            tokio::spawn(async move {
                let ended = place.ended();
                let never = std::future::pending();
                tokio::select! {
                    // The client ended the connection. Nobody needs to know why.
                    _ = http1(stream, peer, Some(place), routes, never) => {}
                    () = ended => {}
                }
            });
        }
    }
}
