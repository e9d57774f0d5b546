//! What a node tells its engine when it makes it.

use mote_pool::budget::Budget;

/// Interpreters found on the host, as they are started inside a sandbox.
#[derive(Debug, Clone, Default)]
pub struct Interpreters {
    /// Python with the shim as its last argument.
    pub python: Option<Vec<String>>,
    /// Node with the shim as its last argument.
    pub node: Option<Vec<String>>,
    /// `PATH` inside sandboxes.
    pub path: String,
}

/// Settings of the engine.
#[derive(Debug, Clone)]
pub struct Config {
    /// Instances of a function whose manifest says nothing: the number of cores.
    pub instances_max_default: u32,
    /// What runs Python and Node.
    pub interpreters: Interpreters,
    /// Whether the data path may look for the next event for up to 0.1 ms before it sleeps; for
    /// machines with more than one core.
    pub busy_poll: bool,
    /// Memory for prewarmed programs in bytes; 0 keeps none.
    pub prewarm_bytes: u64,
    /// What the node gives to instances in all.
    pub budget: Budget,
}
