//! The limits of one instance and one invocation.

/// Default memory limit: a board with 1 GiB has room for many times this amount.
pub const MEMORY_BYTES_DEFAULT: u64 = 64 << 20;
/// Node's own heap and code need about 45 MiB before the function's first line.
pub const MEMORY_BYTES_DEFAULT_NODE: u64 = 128 << 20;
/// Smallest memory limit in which any runtime starts.
pub const MEMORY_BYTES_MIN: u64 = 4 << 20;
/// Deadline of one invocation, queueing included.
pub const TIMEOUT_MS_DEFAULT: u64 = 10_000;
/// Longest silence of a WebSocket or a streamed answer: proxies and clients usually give up earlier,
/// and a connection whose peer has vanished must not be kept for ever.
pub const STREAM_IDLE_MS_DEFAULT: u64 = 300_000;
/// The longest silence that a manifest can permit.
pub const STREAM_IDLE_MS_MAX: u64 = 24 * 3_600_000;
/// Longest deadline; longer work belongs in an async invocation.
pub const TIMEOUT_MS_MAX: u64 = 3_600_000;
/// Processes and threads of one instance: Node needs 11, Python a few; a fork bomb stops here.
pub const PIDS_DEFAULT: u32 = 64;
/// Private writable space (`/tmp`) of one instance; held in memory and counted there.
pub const DISK_BYTES_DEFAULT: u64 = 16 << 20;
/// Largest request body unless the manifest raises it.
pub const BODY_BYTES_DEFAULT: u64 = 6 << 20;
/// Longest body a function may accept.
pub const BODY_BYTES_MAX: u64 = 64 << 30;
/// A worker that has not reported that it is ready by then has failed to start.
pub const INIT_TIMEOUT_MS_DEFAULT: u64 = 10_000;

/// Limits of one function. `mote doctor` reports those that a machine cannot enforce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Memory of one instance in bytes, its `/tmp` included.
    pub memory_bytes: u64,
    /// CPU time per second of one instance, in thousandths of a core; `None` means no limit.
    pub cpu_millis: Option<u32>,
    /// Processes and threads of one instance.
    pub pids: u32,
    /// Deadline of one invocation in milliseconds, queueing included.
    pub timeout_ms: u64,
    /// How long an instance may take until it is ready, in milliseconds.
    pub init_timeout_ms: u64,
    /// Invocations running at once in one instance; with `None` the runtime decides (Python: 1 for
    /// `def`, 100 for `async def`; Node, exec and server: the constants above).
    pub concurrency: Option<u32>,
    /// Largest request body in bytes.
    pub body_bytes: u64,
    /// Private writable space of one instance in bytes.
    pub disk_bytes: u64,
    /// How long a WebSocket or a streamed answer may be silent, in milliseconds.
    pub stream_idle_ms: u64,
}
