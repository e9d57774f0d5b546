//! The services of a node over HTTP/1.1, for programs and servers in their sandboxes.
//!
//! Functions in Python, Node and Go request services over the worker protocol. A program that runs
//! once per call, and a server, use an HTTP address instead. They find it in the variable
//! [`URL_VARIABLE`]: `http://mote.internal:6685/TOKEN`. The node listens at that address inside the
//! sandbox, so nobody outside the sandbox reaches it. A third party might make a program send a
//! request to an address of the third party's choice. Without the token, such a request fails.
//!
//! [`request`] converts an HTTP request into the request that a worker would send, and [`answer`]
//! converts the node's answer into a response. Both are pure. [`connection`] serves a listener. The
//! caller of this module decides, behind [`Ask`], which invocation makes a request and how the
//! request is carried out.

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

/// The keys for the tokens of all instances. They are new at each start of the node.
static TOKENS: LazyLock<[RandomState; 2]> = LazyLock::new(Default::default);

/// The address of the services for an instance.
pub fn address(instance: u64) -> String {
    format!("http://{}:{SERVICES_PORT}/{}", OWN_FRONT.0, token(instance))
}

/// The token of an instance. As long as the token is secret, nobody can make a program send a
/// request to an address with the token.
fn token(instance: u64) -> String {
    let [high, low] = TOKENS.each_ref().map(|key| key.hash_one(instance));
    format!("{high:016x}{low:016x}")
}

/// Carries out requests of one instance.
pub trait Ask: Send + Sync + 'static {
    /// Begins a request of this invocation, or of no invocation if it is `None`. If the request is
    /// a call, dropping the future cancels the call.
    fn ask(&self, invocation: Option<InvocationId>, asked: Asked) -> AnswerFuture;
}
