//! `mote upgrade`: replaces an installation made by `install.sh` with another release, and goes
//! back to the former version if the new one does not start.
//!
//! Everything that can be wrong is checked before the first change: [`release`] reads the archive,
//! [`trust`] checks its signature, and [`installation`] and [`machine`] check that the release
//! fits. The files are installed by the archive's own `install.sh`. [`transaction`] keeps the
//! former version and records each step, so that the next command can complete or undo an
//! interrupted upgrade. [`service`] restarts the node and asks it for its version, and [`data`]
//! restores the node's files if a version that did not start has changed their tables. Start with
//! [`upgrade`].
//!
//! The crate knows the layout of an installation. Of a node, it knows only the command line, the
//! unit, the status that the management socket shows, and the names of the files.

mod args;
mod data;
mod failure;
mod installation;
mod machine;
mod receipt;
mod release;
mod service;
mod source;
mod transaction;
mod trust;
mod upgrade;

use std::process::ExitCode;

pub use args::Args;

/// Runs `mote upgrade`. Blocks until the new version is ready or the former version runs again.
pub fn run(args: &Args) -> ExitCode {
    // Root runs programs from the unpacked archive, so no other user may be able to write to it.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    match upgrade::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.show(),
    }
}
