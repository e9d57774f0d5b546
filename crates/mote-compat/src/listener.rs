//! Sockets of the platforms' HTTP APIs: bounded in connections, and in how long one may be silent
//! before its request is whole.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::Context;

/// Connections of one listener at once.
const CONNECTIONS_MAX: usize = 512;
/// How long the head of a request may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long requests that run may take to end once the node stops.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// A listener before it serves: its port is taken, so a start can fail early and say why.
#[derive(Debug)]
pub struct Bound {
    socket: TcpListener,
    address: SocketAddr,
}

impl Bound {
    /// Takes the port.
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
    pub(crate) async fn serve(self, app: Router, context: Context) {
        let one = move |stream, peer, context| one(stream, peer, app.clone(), context);
        self.serve_with(one, context).await;
    }

    /// Serves each connection with `one` until the node stops.
    pub(crate) async fn serve_with<F>(
        self,
        one: impl Fn(TcpStream, SocketAddr, Context) -> F,
        context: Context,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let slot = tokio::select! {
                slot = slots.clone().acquire_owned() => slot.expect("never closed"),
                () = context.stopped() => break,
            };
            let (stream, peer) = tokio::select! {
                accepted = self.socket.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        // Out of descriptors, most likely: others must end first.
                        tracing::warn!(%error, address = %self.address, "connection not accepted");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
                () = context.stopped() => break,
            };
            let _ = stream.set_nodelay(true);
            let served = one(stream, peer, context.clone());
            connections.spawn(async move {
                served.await;
                drop(slot);
            });
        }
        drop(self.socket);
        let all = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(STOP_GRACE, all).await;
    }
}

async fn one(stream: TcpStream, peer: SocketAddr, app: Router, context: Context) {
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        let app = app.clone();
        async move { tower_service::Service::call(&mut { app }, request).await }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    drive(connection, |connection| connection.graceful_shutdown(), peer, &context).await;
}

/// Drives a connection until it ends; when the node stops, `wind_up` tells it to take no more.
pub(crate) async fn drive<C>(
    connection: C,
    wind_up: impl FnOnce(Pin<&mut C>),
    peer: SocketAddr,
    context: &Context,
) where
    C: Future<Output = hyper::Result<()>>,
{
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = context.stopped() => {
            wind_up(connection.as_mut());
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, %peer, "connection ended");
    }
}
