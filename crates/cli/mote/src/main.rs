//! `mote`: a function platform for the edge, in one file.
//!
//! The command line is in `mote-cli`, and the node in `mote-node`. A companion of a node is the same
//! program in another [`Role`].

use std::process::ExitCode;

use mote_process::companion::Role;
use mote_process::memory::counting::Counting;

/// musl's own allocator has one lock for all threads, so it is replaced
/// (docs/decisions/0053-packages.md).
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: Counting<mimalloc::MiMalloc> = Counting(mimalloc::MiMalloc);
#[cfg(not(target_env = "musl"))]
#[global_allocator]
static ALLOCATOR: Counting<std::alloc::System> = Counting(std::alloc::System);

fn main() -> ExitCode {
    match Role::of_this_process() {
        None => mote_cli::run(),
        Some(Role::Acme) => mote_acme::main(),
        Some(Role::Broker) => mote_broker::main(),
        Some(Role::Chain) => mote_chain::main(),
        Some(Role::Dtls) => mote_dtls::main(),
        Some(Role::Nats) => mote_nats::main(),
    }
}
