//! `mote upgrade`: replaces an installation that `install.sh` made by another release, and goes back
//! if the new one does not start.
//!
//! Everything that can be wrong is checked before the first change: [`release`] reads the archive,
//! [`trust`] checks its signature, [`installation`] and [`machine`] check that it fits. The files are
//! installed by the archive's own `install.sh`. [`transaction`] keeps the former version, and writes
//! down each step, so that an interrupted upgrade is completed or undone by the next command.
//! [`service`] restarts the node and asks it for its version, and [`data`] brings its files back if a
//! version that did not start has changed their tables. Start with [`upgrade`].
//!
//! The crate knows the layout of an installation, and of a node only its command line, its unit and
//! the status that its management socket shows, and the
//! names of its files.

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

/// Runs `mote upgrade`. Blocks until the new version is ready, or the former one runs again.
pub fn run(args: &Args) -> ExitCode {
    // Nobody else may write to what root runs from the unpacked archive.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    match upgrade::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.show(),
    }
}
