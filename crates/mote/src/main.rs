//! `mote`: a function platform for the edge in one binary.
//!
//! This crate is the only place that knows all the parts. [`cli`] reads the command line and talks
//! to a node, [`up`] is the node, [`project`] turns a folder into a function for both, [`config`]
//! is what a node can be told.

mod cli;
mod config;
mod project;
mod up;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
