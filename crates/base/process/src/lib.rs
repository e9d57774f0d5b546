//! Processes that a node starts, the rights that those processes have, and the service manager
//! above the node.
//!
//! The crate must not know the purpose of a process. [`companion`] handles the processes next to a
//! node, [`memory`] the memory of the current process, and [`service_manager`] the protocol of
//! systemd and similar service managers.

pub mod clock;
pub mod companion;
pub mod memory;
pub mod quiet_socket;
pub mod service_manager;
