//! The parts that the APIs of all platforms share. Through these APIs, the platforms' own clients work
//! against a node unchanged.
//!
//! A module for each platform ([`crate::openfaas`], [`crate::openwhisk`], [`crate::nuclio`],
//! [`crate::tinyfaas`]) turns that platform's requests into calls of the traits of [`node`], the
//! narrow view of a node that `mote-node` implements. This module contains their common basis:
//! management access ([`access`]), the part of a node that a request may manage ([`part`]),
//! connections and listeners, HTTP as one invocation ([`call`]), calls that are accepted now and
//! run later ([`queue`], [`journal`]). It must not know a platform, the engine, the store,
//! sandboxes or the configuration. Start reading at [`node`].

pub mod access;
pub mod call;
pub mod connection;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fake;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod journal;
mod listener;
pub mod node;
pub mod part;
pub mod queue;
pub mod refused;

use std::sync::Arc;

use axum::http::StatusCode;
use mote_api::Problem;
use tokio::sync::watch;

pub use listener::Bound;
pub use mote_outgoing::{self as outgoing, Outgoing, Reach};
pub use mote_tls::listen;
pub use queue::Queue;

/// The context of a platform's API. `N` is the set of traits that it uses.
pub struct Context<N: ?Sized> {
    pub node: Arc<N>,
    /// Calls that are accepted now and run later.
    pub queue: Queue,
    /// The signal that ends it.
    pub stop: Stop,
}

impl<N: ?Sized> Clone for Context<N> {
    fn clone(&self) -> Self {
        Self { node: self.node.clone(), queue: self.queue.clone(), stop: self.stop.clone() }
    }
}

/// Signals that the node stops. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// The signal of a node that stops when this turns true, or when its sender is dropped.
    pub fn new(stop: watch::Receiver<bool>) -> Self {
        Self(stop)
    }

    /// Waits until the node stops.
    pub async fn stopped(&self) {
        // An error means that the sender was dropped, which is a stop as well.
        let _ = self.0.clone().wait_for(|stop| *stop).await;
    }
}

/// The text of a problem on one line.
pub fn words(problem: &Problem) -> String {
    let hint = problem.hint.as_ref().map_or_else(String::new, |hint| format!(" ({hint})"));
    format!("{}: {}{hint}", problem.code, problem.detail)
}

/// The status of a problem; those in `bad` become 400 for a platform's clients.
pub fn status_of(problem: &Problem, bad: &[u16]) -> StatusCode {
    match problem.status {
        status if bad.contains(&status) => StatusCode::BAD_REQUEST,
        status => StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

/// Decodes an upload in base64 on another thread: it takes tens of milliseconds for many MiB, and
/// one thread serves every client of these APIs.
pub async fn decoded(text: String) -> Option<Vec<u8>> {
    let decoding = tokio::task::spawn_blocking(move || mote_core::base64::decode(text.as_bytes()));
    decoding.await.ok().flatten()
}

/// A name that a client sent, escaped and cut for use in texts.
pub fn shown(name: &str) -> String {
    name.chars().take(64).flat_map(char::escape_debug).collect()
}
