//! The services of a node over HTTP/1.1, for programs and servers in their sandboxes.
//!
//! Functions in Python, Node and Go ask their node over the worker protocol. A program that runs
//! once per call, and a server, have an address instead, in the variable [`URL_VARIABLE`]:
//! `http://mote.internal:6685/TOKEN`. The node listens there inside the sandbox, so nobody else
//! reaches it. The token keeps out requests that a program sends to an address that somebody else
//! chose.
//!
//! [`request`] turns a request into what a worker would ask for, and [`answer`] turns the node's
//! answer into a response; both are pure. [`connection`] serves a listener. Whose invocation asks,
//! and what is done, are up to the caller, behind [`Ask`].

mod answer;
mod connection;
mod request;
mod timed;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::LazyLock;

use mote_core::InvocationId;
use mote_core::services::{AnswerFuture, Asked};
use mote_spec::OWN_FRONT;

pub use connection::serve;
pub use mote_core::services::URL_VARIABLE;
pub use mote_spec::SERVICES_PORT;

/// Keys the tokens of all instances, anew with each start of the node.
static TOKENS: LazyLock<[RandomState; 2]> = LazyLock::new(Default::default);

/// The address of the services for an instance.
pub fn address(instance: u64) -> String {
    format!("http://{}:{SERVICES_PORT}/{}", OWN_FRONT.0, token(instance))
}

/// A program cannot be made to send a request to an address with this token unless it reveals it.
fn token(instance: u64) -> String {
    let [high, low] = TOKENS.each_ref().map(|key| key.hash_one(instance));
    format!("{high:016x}{low:016x}")
}

/// Carries out requests of one instance.
pub trait Ask: Send + Sync + 'static {
    /// Begins a request of this invocation; `None` if it belongs to none. Dropping the future
    /// cancels a call.
    fn ask(&self, invocation: Option<InvocationId>, asked: Asked) -> AnswerFuture;
}
