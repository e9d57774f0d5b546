//! The runtimes of functions, and how many invocations one instance of each runtime runs at once.

use serde::{Deserialize, Serialize};

/// Concurrency of Python coroutines if neither the manifest nor the handler sets a number. The shim
/// has the same default.
pub const CONCURRENCY_DEFAULT_PYTHON: u32 = 100;
/// Concurrency of Node functions. Handlers are asynchronous, so one process serves many
/// invocations.
pub const CONCURRENCY_DEFAULT_NODE: u32 = 256;
/// Concurrency of Go functions. Each handler runs in a goroutine. Bodies use memory, goroutines
/// hardly do.
pub const CONCURRENCY_DEFAULT_GO: u32 = 64;
/// Concurrency of servers on `$PORT`: connections that are open to one instance at once.
pub const CONCURRENCY_DEFAULT_SERVER: u32 = 64;
/// Concurrency of programs that run once per invocation: processes of one instance at once.
pub const CONCURRENCY_DEFAULT_EXEC: u32 = 8;
/// Concurrency of chains: runs of one instance at once. Most of the time, a run waits for
/// functions.
pub const CONCURRENCY_DEFAULT_CHAIN: u32 = 64;

/// How a function's code is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// CPython 3.9 or newer from the host, through the Python shim.
    Python,
    /// Node.js 18 or newer from the host, through the Node shim.
    Node,
    /// Go. The node builds the function during the deploy, together with a worker that speaks the
    /// worker protocol.
    Go,
    /// Any program: the request body on stdin, the answer on stdout, one process per invocation.
    Exec,
    /// Any HTTP/1.1 server that listens on `$PORT`, kept running.
    Server,
    /// A chain: a workflow of functions, described in one file and run by `mote-chain`.
    Chain,
}

impl Runtime {
    /// The word for this runtime in manifests and outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            Runtime::Python => "python",
            Runtime::Node => "node",
            Runtime::Go => "go",
            Runtime::Exec => "exec",
            Runtime::Server => "server",
            Runtime::Chain => "chain",
        }
    }
}
