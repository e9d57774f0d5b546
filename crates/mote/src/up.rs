//! Runs the node.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::config::Config;

/// Starts the node and serves until it is told to stop; `deploy` are projects to bring up first.
pub(crate) fn run(_config: Config, _deploy: &[PathBuf]) -> ExitCode {
    eprintln!("error: `mote up` is not built into this branch");
    ExitCode::from(mote_api::error::exit::FAILED)
}
