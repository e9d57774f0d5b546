//! The runtimes of functions, and how many invocations an instance of each runs at once.

use serde::{Deserialize, Serialize};

/// Python coroutines, if neither manifest nor handler sets a number; the shim's own default.
pub const CONCURRENCY_DEFAULT_PYTHON: u32 = 100;
/// Node handlers are asynchronous: one process serves this many invocations at once.
pub const CONCURRENCY_DEFAULT_NODE: u32 = 256;
/// Go handlers run in a goroutine each. Memory is used by bodies, not by goroutines.
pub const CONCURRENCY_DEFAULT_GO: u32 = 64;
/// Servers on `$PORT`: connections opened to one instance at once.
pub const CONCURRENCY_DEFAULT_SERVER: u32 = 64;
/// Programs run once per invocation: processes of one instance at once.
pub const CONCURRENCY_DEFAULT_EXEC: u32 = 8;
/// Chains: runs of one instance at once. A run waits for functions most of the time.
pub const CONCURRENCY_DEFAULT_CHAIN: u32 = 64;

/// How a function's code is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// CPython 3.9 or newer from the host, through the Python shim.
    Python,
    /// Node.js 18 or newer from the host, through the Node shim.
    Node,
    /// Go, built on the node during the deploy, together with a worker that speaks the worker
    /// protocol for it.
    Go,
    /// Any program: the request body on stdin, the answer on stdout, one process per invocation.
    Exec,
    /// Any HTTP/1.1 server that listens on `$PORT`, kept running.
    Server,
    /// A chain: a workflow of functions, described in one file and run by `mote-chain`.
    Chain,
}

impl Runtime {
    /// The word used in manifests and outputs.
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
