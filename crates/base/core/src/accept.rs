//! Accepting an invocation that runs later, after its caller has been answered.
//!
//! The sources of such invocations (fronts, schedules, MQTT triggers, other functions) know only
//! [`Accept`]. The journal implements it.

use std::pin::Pin;

use bytes::Bytes;
use mote_spec::ATTEMPTS_DEFAULT;

use crate::invocation::{Head, InvocationId, Trigger};

/// The prefix of the idempotency keys and order keys that schedules use. No other key begins with
/// it.
pub const SCHEDULE_KEYS: &str = "schedule/";

/// An invocation to run later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deferred {
    /// The function, or `NAME@TAG`.
    pub function: String,
    /// The source of the invocation.
    pub trigger: Trigger,
    /// Method, path below the function, query, header fields.
    pub head: Head,
    /// The whole body.
    pub body: Bytes,
    /// The idempotency key, at most 255 bytes. If several invocations of one function are accepted
    /// with the same key, only the first is kept, and the others receive its id.
    pub key: Option<String>,
    /// The earliest time at which the invocation may begin, in milliseconds since 1970; 0 means at
    /// once.
    pub due_unix_ms: u64,
    /// The order key: invocations of one function with the same order key run one after another, in
    /// the order in which they were accepted. `None` means that they run in any order.
    pub order: Option<String>,
    /// Where the result is sent in addition to the recipients of the function's manifest.
    pub callback: Option<Callback>,
    /// The number of attempts if the function's manifest does not set one.
    pub attempts_default: u32,
}

impl Deferred {
    /// An invocation that runs as soon as possible, in any order. Its result is kept but not sent
    /// anywhere.
    pub fn new(function: impl Into<String>, trigger: Trigger, head: Head, body: Bytes) -> Self {
        Self {
            function: function.into(),
            trigger,
            head,
            body,
            key: None,
            due_unix_ms: 0,
            order: None,
            callback: None,
            attempts_default: ATTEMPTS_DEFAULT,
        }
    }
}

/// An address that receives the result of an invocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callback {
    /// `http://…` or `https://…`.
    pub url: String,
    /// Header fields of the request, names in lower case.
    pub fields: Vec<(String, String)>,
}

/// An invocation that is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// The id under which the invocation's state and result can be read.
    pub id: InvocationId,
    /// False if an earlier invocation with the same idempotency key was already accepted.
    pub is_new: bool,
}

/// Why an invocation was not accepted. No part of the invocation is kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AcceptError {
    /// The journal already holds as many invocations, or bytes, as its limits allow. The caller may
    /// retry later.
    #[error("the journal is full: {0}")]
    Full(String),
    /// The disk is full.
    #[error("{0}")]
    DiskFull(String),
    /// The disk failed to store the invocation.
    #[error("the journal cannot write: {0}")]
    Disk(String),
    /// Accepted invocations are also stored outside this machine, and that store did not confirm
    /// this one, for the reason given. The invocation was not accepted, unless only the
    /// confirmation was lost in transit.
    #[error("it is not known to be accepted: {0}")]
    Away(String),
    /// Another node accepts and runs the invocations of this node.
    #[error("{0}")]
    TakenOver(String),
    /// The node is stopping.
    #[error("the node is stopping")]
    Stopping,
    /// The request cannot be accepted as it is.
    #[error("{0}")]
    Invalid(String),
}

/// Whether a header field with this name (in lower case) controls how an accepted invocation runs
/// later.
pub fn is_wish(name: &[u8]) -> bool {
    matches!(name, b"prefer" | b"idempotency-key" | b"mote-order-key" | b"mote-after" | b"mote-at")
}

/// The future that [`Accept::accept`] returns.
pub type AcceptFuture = Pin<Box<dyn Future<Output = Result<Accepted, AcceptError>> + Send>>;

/// Keeps invocations until they have run.
pub trait Accept: Send + Sync + 'static {
    /// Keeps an invocation. When the future resolves to `Ok`, the invocation is on disk, survives a
    /// power cut, and will run at least once. Many callers share one write, so a caller should not
    /// wait for one invocation before it offers the next.
    fn accept(&self, deferred: Deferred) -> AcceptFuture;

    /// Resolves when the invocation has ended. Resolves at once if it has already ended or is
    /// unknown.
    fn ended(&self, id: InvocationId) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}
