//! Chains: workflows of functions in the language of the CNCF Serverless Workflow specification
//! (DSL 1.0), which a user writes in one YAML file.
//!
//! A chain is a function. Its worker is the program of this crate: it runs in a sandbox like every
//! other worker, speaks the worker protocol, and asks its node to call functions, to publish
//! messages and to keep the results of steps. [`reader`] reads the file into a [`document`],
//! [`interpreter`] runs it, and [`worker`] speaks the protocol. This crate must not know the
//! engine, the store or the management API. Start reading at `interpreter.rs`; `expression.rs` is
//! jq, `attempts.rs` has the errors that are caught, `fields.rs` the keys of one map. What runs ask
//! of their node, `mote_node::services` answers.

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

/// Serves as the worker of this process, on the socket that the node gave it.
pub fn main() -> ExitCode {
    ExitCode::from(worker::serve() as u8)
}
