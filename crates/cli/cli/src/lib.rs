//! The command line of `mote`.
//!
//! [`cli`] reads the command line and sends requests to a node. `mote_node::settings` reads a node's
//! settings from flags, environment and file. The node itself is `mote-node`, which `mote up` runs.
//! Both use `mote-project` to turn a folder into a function.
//!
//! The files:
//!
//! - `cli/verbs.rs`, `cli/args.rs`: the verbs and their flags; each verb has its own file in `cli/`
//! - `cli/nodes.rs`, `cli/fleet.rs`, `fleet/`: the nodes that a command addresses
//! - `cli/simulate.rs`, `cli/bench.rs`, `bench_text.rs`: the simulator and the load tool
//! - `cli/program.rs`: replaces the process with `mote-cluster`
//! - `templates.rs`: the files of `mote new`
//! - `export/`, `tables/`: functions for users who stop using `mote`, and tables for terminals

pub mod bench_text;
mod cli;
pub mod export;
pub mod fleet;
pub mod tables;
pub mod templates;

pub use cli::{command, run};
