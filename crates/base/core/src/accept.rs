//! Accepting an invocation that runs later, after its caller has been answered.
//!
//! The parts of a node that accept such invocations (fronts, schedules, MQTT triggers, other
//! functions) know only [`Accept`]; the journal behind it implements it.

use std::pin::Pin;

use bytes::Bytes;
use mote_spec::ATTEMPTS_DEFAULT;

use crate::invocation::{Head, InvocationId, Trigger};

/// The idempotency keys and order keys of schedules begin with this, and no others do.
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
    /// The idempotency key: of the invocations of one function that are accepted with the same key,
    /// only the first is kept, and the others receive its id. At most 255 bytes.
    pub key: Option<String>,
    /// When it may begin at the earliest, in milliseconds since 1970; 0 for at once.
    pub due_unix_ms: u64,
    /// The order key: invocations of one function with the same order key run one after another, in
    /// the order in which they were accepted. `None` means that they run in any order.
    pub order: Option<String>,
    /// Where the result is sent in addition to the recipients of the function's manifest.
    pub callback: Option<Callback>,
    /// Attempts if the function's manifest sets no number.
    pub attempts_default: u32,
}

impl Deferred {
    /// An invocation that runs as soon as possible, in any order, and whose result is only kept.
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
    /// The id under which its state and its result can be read.
    pub id: InvocationId,
    /// False if an earlier invocation had the same idempotency key.
    pub is_new: bool,
}

/// Why an invocation was not accepted. Nothing of it is kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AcceptError {
    /// The journal holds as many invocations, or bytes, as it may. Retrying later is reasonable.
    #[error("the journal is full: {0}")]
    Full(String),
    /// The disk is full.
    #[error("{0}")]
    DiskFull(String),
    /// The disk did not take it.
    #[error("the journal cannot write: {0}")]
    Disk(String),
    /// The place outside of the machine that keeps accepted invocations did not confirm this one,
    /// for the reason given. Nothing was accepted, unless the confirmation was lost on its way.
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

/// Whether a field of this name, in lower case, describes an invocation that is accepted for later.
pub fn is_wish(name: &[u8]) -> bool {
    matches!(name, b"prefer" | b"idempotency-key" | b"mote-order-key" | b"mote-after" | b"mote-at")
}

/// A future of this module.
pub type AcceptFuture = Pin<Box<dyn Future<Output = Result<Accepted, AcceptError>> + Send>>;

/// Keeps invocations until they have run.
pub trait Accept: Send + Sync + 'static {
    /// Keeps an invocation. When the future resolves to `Ok`, the invocation is on disk and survives
    /// a power cut; it then runs at least once. Many callers share one write, so a caller should
    /// not wait for one invocation before it offers the next.
    fn accept(&self, deferred: Deferred) -> AcceptFuture;

    /// Resolves when an invocation has ended: at once if it has ended before, or is not known.
    fn ended(&self, id: InvocationId) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}
