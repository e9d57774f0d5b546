//! What this front needs from the node.

use std::net::SocketAddr;
use std::sync::Arc;

use mote_core::InvocationId;
use mote_core::accept::Accept;
use mote_spec::FunctionName;

/// What the triggers need from the node.
pub trait Host: Send + Sync + 'static {
    fn invocation_id(&self) -> InvocationId;
    /// Monotonic time in nanoseconds, on the clock that invocations use.
    fn now_ns(&self) -> u64;
    /// Random bits. They need not be secret.
    fn random(&self) -> u64;
    fn secret(&self, name: &str) -> Option<String>;
    /// Writes a line to a function's log.
    fn log(&self, function: &FunctionName, level: Level, text: &str);
    /// The journal of accepted invocations.
    fn journal(&self) -> Arc<dyn Accept>;
    /// The name of this node. It stays the same over restarts, and no other node has it.
    fn node_id(&self) -> String;
    /// The broker of triggers that do not name one: `mqtt://HOST:PORT`, or `local`.
    fn broker(&self) -> String;
    /// The node's own broker. `None` if it does not run.
    fn local(&self) -> Option<Local>;
}

/// How the node reaches its own broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Local {
    /// The address of the broker's listener without TLS, on this machine.
    pub address: SocketAddr,
    /// The user name of the node.
    pub username: String,
    /// The node's password, which is made at each start of the node.
    pub password: String,
    /// Whether the broker divides the space for retained messages between namespaces. If so, the
    /// node must ask the broker before it publishes a message with retain.
    pub divides_kept: bool,
}

/// The severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// What the node did.
    Info,
    /// A problem that may pass.
    Warn,
    /// A message was lost, so the function never handled it.
    Error,
}
