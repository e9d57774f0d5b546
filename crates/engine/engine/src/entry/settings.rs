//! The settings that a node passes to its engine.

use std::path::PathBuf;
use std::sync::Arc;

use mote_core::destination::ClosedNetworks;
use mote_core::shared_folders::SharedFolders;
use mote_pool::budget::Budget;
use mote_spec::Access;
use mote_store::seal::Secrets;

use crate::entry::traces::Tracer;
use crate::revision::logs::LogSink;

/// Interpreters that were found on the host, with the arguments that start them inside a sandbox.
#[derive(Debug, Clone, Default)]
pub struct Interpreters {
    /// Python with the shim as its last argument.
    pub python: Option<Vec<String>>,
    /// Node with the shim as its last argument.
    pub node: Option<Vec<String>>,
    /// Bun, in the same form.
    pub bun: Option<Vec<String>>,
    /// Deno, in the same form. Its first argument is the verb `run`.
    pub deno: Option<Vec<String>>,
    /// `PATH` inside sandboxes.
    pub path: String,
}

#[derive(Debug)]
pub struct Config {
    /// The maximum number of instances of a function whose manifest sets none: the number of cores.
    pub instances_max_default: u32,
    /// The programs that run Python and JavaScript.
    pub interpreters: Interpreters,
    /// Whether the data path may poll for the next event for up to 0.3 ms before it sleeps. Set
    /// this only on machines with more than one core.
    pub busy_poll: bool,
    /// The memory for prewarmed programs in bytes; 0 keeps no programs.
    pub prewarm_bytes: u64,
    /// The budget that the node gives to all instances together.
    pub budget: Budget,
    /// The factor by which `timeout` and `init_timeout` of each function are multiplied, at least
    /// 1.
    pub timeout_factor: u32,
    /// The access mode of functions whose manifest sets none; not [`Access::Unset`].
    pub access_default: Access,
    pub secrets: Secrets,
    /// Receives each line of the functions' logs; `None` keeps the lines only in memory.
    pub log_sink: Option<Arc<dyn LogSink>>,
    /// Records traces; `None` records nothing.
    pub tracer: Option<Arc<dyn Tracer>>,
    /// Whether debuggers may attach to functions. Only on a node for one developer.
    pub inspect: bool,
    /// The folder that contains the files with the data folders of functions.
    pub data_folders: PathBuf,
    /// Folders of the host that functions may read.
    pub shared_folders: SharedFolders,
    /// Networks that stay closed even if `[allow] net` contains `*`.
    pub closed_networks: ClosedNetworks,
}
