//! The limits of one instance and one invocation.

/// Default memory limit. A board with 1 GiB has room for many such instances.
pub const MEMORY_BYTES_DEFAULT: u64 = 64 << 20;
/// Default memory limit for Node, whose own heap and code need about 45 MiB before the function's
/// first line runs.
pub const MEMORY_BYTES_DEFAULT_NODE: u64 = 128 << 20;
/// Smallest memory limit with which a runtime can start.
pub const MEMORY_BYTES_MIN: u64 = 4 << 20;
/// Default deadline of one invocation, including the time in the queue.
pub const TIMEOUT_MS_DEFAULT: u64 = 10_000;
/// Default for the longest silence of a WebSocket or a streamed answer. Proxies and clients usually
/// give up earlier, and a connection whose peer has vanished must not be kept forever.
pub const STREAM_IDLE_MS_DEFAULT: u64 = 300_000;
/// The longest silence that a manifest can permit.
pub const STREAM_IDLE_MS_MAX: u64 = 24 * 3_600_000;
/// Longest deadline; longer work belongs in an async invocation.
pub const TIMEOUT_MS_MAX: u64 = 3_600_000;
/// Default for processes and threads of one instance. Node needs 11 and Python a few. The limit
/// stops a fork bomb.
pub const PIDS_DEFAULT: u32 = 64;
/// Default size of an instance's private writable space (`/tmp`). It is held in memory and counts
/// as memory of the instance.
pub const DISK_BYTES_DEFAULT: u64 = 16 << 20;
/// Largest request body, unless the manifest raises this limit.
pub const BODY_BYTES_DEFAULT: u64 = 6 << 20;
/// Longest body a function may accept.
pub const BODY_BYTES_MAX: u64 = 64 << 30;
/// A worker that has not reported within this time that it is ready has failed to start.
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
    /// Deadline of one invocation in milliseconds, including the time in the queue.
    pub timeout_ms: u64,
    /// How long an instance may take to become ready, in milliseconds.
    pub init_timeout_ms: u64,
    /// Invocations that run at once in one instance. With `None`, the runtime decides (Python: 1
    /// for `def`, 100 for `async def`; others: the constants in `runtime.rs`).
    pub concurrency: Option<u32>,
    /// Largest request body in bytes.
    pub body_bytes: u64,
    /// Private writable space of one instance in bytes.
    pub disk_bytes: u64,
    /// How long a WebSocket or a streamed answer may be silent, in milliseconds.
    pub stream_idle_ms: u64,
}
