//! Processes that a node starts, what they may do, and the service manager above them.
//!
//! The crate must not know what a process is for. [`companion`] is about the processes next to a
//! node, [`memory`] about the memory of the own process, and [`service_manager`] about systemd and
//! the like.

pub mod clock;
pub mod companion;
pub mod memory;
pub mod service_manager;
