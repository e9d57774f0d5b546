//! Processes next to a node, such as the MQTT broker and the connection to NATS. They are separate
//! processes so that they can run without privileges, and so that a fault in one of them does not
//! end the node.
//!
//! [`role`] tells which part of the program a process is. [`supervision`] is the node's side: it
//! starts a companion, writes the companion's lines to the log of the node, and starts the
//! companion again when it ends. Two more modules are on the node's side: [`errand`] runs a
//! companion that answers one question and ends, and [`own_folder`] makes the folder in which a
//! companion keeps its files. [`confinement`] is the companion's side: it gives up rights. This
//! module must not know what a companion does, or what the node and the companion say to each
//! other.

pub mod confinement;
pub mod errand;
pub mod own_folder;
pub mod role;
pub mod supervision;

pub use role::{OWN_PROGRAM, Role};
