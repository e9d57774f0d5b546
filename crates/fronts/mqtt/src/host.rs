//! What this front needs from the node.

use std::net::SocketAddr;
use std::sync::Arc;

use mote_core::InvocationId;
use mote_core::accept::Accept;
use mote_spec::FunctionName;

/// What the triggers need from the node.
pub trait Host: Send + Sync + 'static {
    fn invocation_id(&self) -> InvocationId;
    /// Monotonic nanoseconds, as invocations have them.
    fn now_ns(&self) -> u64;
    /// Random bits, which need not be secret.
    fn random(&self) -> u64;
    fn secret(&self, name: &str) -> Option<String>;
    /// Writes a line to the log of a function.
    fn log(&self, function: &FunctionName, level: Level, text: &str);
    /// The journal of accepted invocations.
    fn journal(&self) -> Arc<dyn Accept>;
    /// A name of this node that stays the same over restarts, and that no other node has.
    fn node_id(&self) -> String;
    /// The broker of triggers that name none: `mqtt://HOST:PORT`, or `local`.
    fn broker(&self) -> String;
    /// The node's own broker; `None` if it does not run.
    fn local(&self) -> Option<Local>;
}

/// How the node reaches its own broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Local {
    /// A listener without TLS on this machine.
    pub address: SocketAddr,
    /// The node's user.
    pub username: String,
    /// Its password, which was made at the start of the node.
    pub password: String,
    /// Whether it divides the messages that it keeps between namespaces. It must then be asked before
    /// a message is published that it should keep.
    pub divides_kept: bool,
}

/// How important a line of the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// What the node did.
    Info,
    /// A problem that may pass.
    Warn,
    /// A message was lost for the function.
    Error,
}
