//! `mote`: a function platform for the edge. Its command line is `mote-cli`.

use std::process::ExitCode;

use mote_relocations as _; // contains the first function of the program

/// musl's own allocator takes one lock for all threads (docs/decisions/0053-packages.md).
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    mote_cli::run()
}
