//! Processes next to a node, such as the MQTT broker and the connection to NATS. They are processes
//! of their own so that they run without privileges, and so that a fault of theirs does not end the
//! node.
//!
//! [`role`] says which part of the program a process is. [`supervision`] is the side of the node: it
//! starts a companion, writes its lines to the log of the node, and starts it again when it ends.
//! [`errand`] is its side, too, for a companion that answers one question and ends, and
//! [`own_folder`] makes the folder in which a companion keeps its files. [`confinement`] is the side
//! of the companion: it gives up rights. This module does not know what a companion does, or what
//! the node and the companion say to each other.

pub mod confinement;
pub mod errand;
pub mod own_folder;
pub mod role;
pub mod supervision;

pub use role::{OWN_PROGRAM, Role};
