//! Processes that a node starts, what they may do, and the service manager above them.

pub mod clock;
pub mod companion;
pub mod memory;
pub mod service_manager;
