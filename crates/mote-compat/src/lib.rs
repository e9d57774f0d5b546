//! The management and invocation APIs of other platforms, so that their clients work against a
//! node unchanged.
//!
//! One module per platform turns that platform's requests into calls of [`Node`], the narrow view
//! of a node that `mote` implements. No engine, store, sandbox or configuration here. Each platform
//! listens on ports of its own and only where the node's configuration says so. Start reading at
//! [`node`], then at the platform you need.

mod access;
mod call;
pub mod connection;
mod fair;
#[cfg(test)]
mod fake;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod journal;
mod listener;
pub mod node;
pub mod nuclio;
pub mod openfaas;
pub mod openwhisk;
mod outgoing;
pub mod queue;
pub mod tinyfaas;
mod tls;

use std::sync::Arc;

use axum::http::StatusCode;
use mote_api::Problem;
use tokio::sync::watch;

pub use listener::Bound;
pub use node::Node;
pub use outgoing::{Outgoing, Reach};
pub use queue::Queue;

/// What every listener needs.
#[derive(Clone)]
pub struct Context {
    /// The node behind it.
    pub node: Arc<dyn Node>,
    /// Calls that are accepted now and run later.
    pub queue: Queue,
    /// Turns true when the node stops.
    pub stop: watch::Receiver<bool>,
}

impl Context {
    /// Waits until the node stops.
    pub async fn stopped(&self) {
        // An error says that the sender is gone, which is a stop as well.
        let _ = self.stop.clone().wait_for(|stop| *stop).await;
    }
}

/// A problem on one line.
fn words(problem: &Problem) -> String {
    let hint = problem.hint.as_ref().map_or_else(String::new, |hint| format!(" ({hint})"));
    format!("{}: {}{hint}", problem.code, problem.detail)
}

/// The status of a problem; those in `bad` are bad requests to a platform's clients.
fn status_of(problem: &Problem, bad: &[u16]) -> StatusCode {
    match problem.status {
        status if bad.contains(&status) => StatusCode::BAD_REQUEST,
        status => StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

/// The bytes of an upload in base64, decoded on another thread: it takes tens of milliseconds for
/// many MiB, and one thread serves every client of these APIs.
async fn decoded(text: String) -> Option<Vec<u8>> {
    let decoding = tokio::task::spawn_blocking(move || mote_core::base64::decode(text.as_bytes()));
    decoding.await.ok().flatten()
}

/// A name that a client sent, escaped and cut, for texts.
fn shown(name: &str) -> String {
    name.chars().take(64).flat_map(char::escape_debug).collect()
}
