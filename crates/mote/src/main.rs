//! `mote`: a function platform for the edge in one binary.
//!
//! This crate is the command line: [`cli`] reads it and sends requests to a node, and [`config`]
//! reads a node's settings from flags, environment and file. The node itself is `mote-node`, which
//! `mote up` runs; `mote-project` turns a folder into a function for both.

mod cli;
mod config;

use std::process::ExitCode;

/// musl's own allocator takes one lock for all threads (docs/decisions/0058-static-builds.md).
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run()
}
