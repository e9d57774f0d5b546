//! Chains: workflows of functions. A user writes a chain in one YAML file, in the language of the
//! CNCF Serverless Workflow specification (DSL 1.0).
//!
//! A chain is a function, and its worker is the program of this crate. Like every other worker, the
//! program runs in a sandbox and speaks the worker protocol. It asks its node to call functions, to
//! publish messages and to keep the results of steps. [`reader`] reads the file into a
//! [`document`], [`interpreter`] runs it, and [`worker`] speaks the protocol. This crate must not
//! know the engine, the store or the management API. Start reading at `interpreter.rs`.
//! `expression.rs` evaluates jq, `attempts.rs` handles caught errors and retries, and `fields.rs`
//! reads the keys of one map. `mote_node::services` answers the requests that runs send to their
//! node.

mod answers;
mod attempts;
mod calls;
pub mod document;
pub mod expression;
mod fields;
pub mod host;
pub mod interpreter;
pub mod reader;
mod watchdog;
pub mod worker;
pub mod yaml;

use std::process::ExitCode;

/// Runs this process as a worker, on the socket that the node gave it.
pub fn main() -> ExitCode {
    ExitCode::from(worker::serve() as u8)
}
