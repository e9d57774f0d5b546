//! The fronts of a node over its own engine.
//!
//! The fronts are generic over what they call. Every request passes through their code, so it is
//! compiled in the crate that names the engine, and only this module names both. Each future is
//! behind a pointer, because otherwise its code would be compiled again wherever the future is
//! spawned. This module must know only which front uses which invoker.

mod calls;
pub mod dtls;
pub mod limits;

use std::future::Future;
use std::io;
use std::pin::Pin;

use mote_http::http;
use tokio::net::{TcpListener, UdpSocket};
use tokio::runtime::Handle;
use tokio::sync::watch;

pub use calls::{Calls, Route};

/// A future that runs a front until the front has stopped.
pub type Served = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// Runs a front on another thread.
pub fn on_thread(thread: &Handle, front: Served) -> Served {
    let ended = thread.spawn(front);
    Box::pin(async move { ended.await.map_err(io::Error::other)? })
}

pub fn http(
    listener: TcpListener,
    invoker: Calls,
    config: http::Config,
    stopper: http::Stopper,
) -> Served {
    Box::pin(http::serve(listener, invoker, config, stopper))
}

/// The CoAP front over UDP.
pub fn coap(
    socket: UdpSocket,
    invoker: Calls,
    config: mote_coap::Config,
    stop: watch::Receiver<bool>,
) -> Served {
    Box::pin(mote_coap::serve(socket, invoker, config, stop))
}

/// The CoAP front over TCP.
pub fn coap_stream(
    listener: TcpListener,
    invoker: Calls,
    configs: (mote_coap::Config, mote_coap::StreamConfig),
    stop: watch::Receiver<bool>,
) -> Served {
    Box::pin(mote_coap::serve_stream(listener, invoker, configs, stop))
}
