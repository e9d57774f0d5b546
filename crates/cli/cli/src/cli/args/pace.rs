//! The flags for the machine's speed and the use of its cores.

use clap::Args;

/// How many threads serve, whether they poll, and by how much timeouts are extended.
#[derive(Debug, Clone, Default, Args)]
pub(in crate::cli) struct PaceFlags {
    /// Threads that serve HTTP connections, 0 to choose by the number of cores
    #[arg(long, value_name = "N")]
    pub(in crate::cli) threads: Option<String>,
    /// Whether to poll for the next event for up to 0.3 ms before sleeping [default: true]
    #[arg(long, value_name = "BOOL")]
    pub(in crate::cli) polling: Option<String>,
    /// Factor by which timeouts of functions are multiplied, for a slow machine [default: 1]
    #[arg(long, value_name = "N")]
    pub(in crate::cli) timeout_factor: Option<String>,
}
