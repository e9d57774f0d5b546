//! Sockets of the platforms' APIs. Their connections are limited, and one address may have half of
//! them.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::Stop;
use crate::connection::{self, Places};

/// Connections of one listener at once. Above this limit, or above half of it from one address, a
/// client receives a 503.
const CONNECTIONS_MAX: usize = 512;
/// How long running requests may take to end once the node stops.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// A listener before it serves. Its port is already bound, so that a start can fail early with a
/// reason.
#[derive(Debug)]
pub struct Bound {
    socket: TcpListener,
    address: SocketAddr,
}

impl Bound {
    /// Binds the port.
    pub async fn new(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address).await?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
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
    pub async fn serve_with<F>(self, one: impl Fn(TcpStream, SocketAddr) -> F, stop: Stop)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let places = Places::new(CONNECTIONS_MAX);
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
            let served = one(stream, peer);
            connections.spawn(mote_tasks::boxed(async move {
                served.await;
                drop(place);
            }));
        }
        drop(self.socket);
        let all = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(STOP_GRACE, all).await;
    }
}

async fn one(stream: TcpStream, peer: SocketAddr, app: Router, stop: Stop) {
    if let Err(error) =
        connection::http1(stream, peer, app, async move { stop.stopped().await }).await
    {
        tracing::debug!(%error, %peer, "connection ended");
    }
}
