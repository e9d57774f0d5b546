//! `mote cluster`: another program does it, which is installed next to this one.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use super::failure::Failure;

/// The program for clusters; nodes outside of clusters do without it.
const PROGRAM: &str = "mote-cluster";

/// Becomes that program. Returns only if it cannot be executed.
pub(super) fn run(arguments: &[OsString]) -> Result<(), Failure> {
    let own = std::env::current_exe().ok();
    let next_to_us = own.map(|own| own.with_file_name(PROGRAM)).filter(|program| program.exists());
    let program = next_to_us.unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(program).args(arguments).exec();
    Err(Failure::new("M0101", format!("cannot run {PROGRAM}: {error}"))
        .with_hint(format!("install {PROGRAM} next to mote")))
}
