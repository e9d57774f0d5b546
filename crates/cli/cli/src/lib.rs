//! The command line of `mote`.
//!
//! [`cli`] reads it and sends requests to a node; `mote_node::settings` reads a node's settings from
//! flags, environment and file. The node itself is `mote-node`, which `mote up` runs; `mote-project`
//! turns a folder into a function for both.

pub mod bench_text;
mod cli;
pub mod export;
pub mod fleet;
pub mod tables;

pub use cli::{command, run};
