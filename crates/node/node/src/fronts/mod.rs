//! The fronts of a node over its own engine.
//!
//! The fronts are generic over what they call, so the crate that names the engine contains the code
//! that every request passes; this module is the only place where both meet. Each future is behind
//! a pointer, because otherwise its code would be compiled into whoever spawns it. The module must
//! not know more than which front gets which invoker.

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

/// A front until it has stopped.
pub type Served = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// A front on a thread of its own.
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
