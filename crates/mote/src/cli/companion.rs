//! `mote cluster` and `mote upgrade`: other programs do it, which are installed next to this one.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use super::failure::Failure;

/// Becomes that program. Returns only if it cannot be executed.
pub(super) fn run(name: &str, arguments: &[OsString]) -> Result<(), Failure> {
    let own = std::env::current_exe().ok();
    let next_to_us = own.map(|own| own.with_file_name(name)).filter(|program| program.exists());
    let program = next_to_us.unwrap_or_else(|| PathBuf::from(name));
    let error = Command::new(program).args(arguments).exec();
    Err(Failure::new("M0101", format!("cannot run {name}: {error}"))
        .with_hint(format!("install {name} next to mote")))
}
