//! The runtimes of functions, and how many invocations one instance of each runtime runs at once.

use serde::{Deserialize, Serialize};

/// Concurrency of Python coroutines if neither the manifest nor the handler sets a number. The shim
/// has the same default.
pub const CONCURRENCY_DEFAULT_PYTHON: u32 = 100;
/// Concurrency of functions in Node, Bun and Deno. Handlers are asynchronous, so one process serves many
/// invocations.
pub const CONCURRENCY_DEFAULT_NODE: u32 = 256;
/// Concurrency of Go functions. Each handler runs in a goroutine. Bodies use memory, but goroutines
/// use hardly any.
pub const CONCURRENCY_DEFAULT_GO: u32 = 64;
/// Concurrency of Rust functions. Each call has a thread.
pub const CONCURRENCY_DEFAULT_RUST: u32 = 64;
/// Concurrency of servers on `$PORT`: connections that are open to one instance at once.
pub const CONCURRENCY_DEFAULT_SERVER: u32 = 64;
/// Concurrency of programs that run once per invocation: processes of one instance at once.
pub const CONCURRENCY_DEFAULT_EXEC: u32 = 8;
/// Concurrency of chains: runs of one instance at once. Most of the time, a run waits for
/// functions.
pub const CONCURRENCY_DEFAULT_CHAIN: u32 = 64;
/// Concurrency of WebAssembly functions. Each invocation has its own instance. Instances share
/// pages of memory until they change them.
pub const CONCURRENCY_DEFAULT_WASM: u32 = 64;

/// How a function's code is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// CPython 3.9 or newer from the host, through the Python shim.
    Python,
    /// Node.js 18 or newer from the host, through the Node shim.
    Node,
    /// Bun 1.3 or newer from the host, through the same shim as Node.
    Bun,
    /// Deno 2.9 or newer from the host, through the same shim as Node.
    Deno,
    /// Go. The node builds the function during the deploy, together with a worker that speaks the
    /// worker protocol.
    Go,
    /// Any program: the request body on stdin, the answer on stdout, one process per invocation.
    Exec,
    /// Any HTTP/1.1 server that listens on `$PORT`, kept running.
    Server,
    /// A chain: a workflow of functions, described in one file and run by `mote-chain`.
    Chain,
    /// WebAssembly: a component, or a program of WASI preview 1. The node compiles it during the
    /// deploy, and `mote-wasm` runs it.
    Wasm,
    /// A Rust program, built before the deploy, that answers with the library `mote-function`.
    Rust,
}

impl Runtime {
    /// Whether the code is JavaScript or TypeScript, which the Node shim runs.
    pub fn is_javascript(self) -> bool {
        matches!(self, Runtime::Node | Runtime::Bun | Runtime::Deno)
    }

    /// The word for this runtime in manifests and outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            Runtime::Python => "python",
            Runtime::Node => "node",
            Runtime::Bun => "bun",
            Runtime::Deno => "deno",
            Runtime::Go => "go",
            Runtime::Exec => "exec",
            Runtime::Server => "server",
            Runtime::Chain => "chain",
            Runtime::Wasm => "wasm",
            Runtime::Rust => "rust",
        }
    }
}
