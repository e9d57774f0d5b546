//! Programs next to `mote` that a node starts, such as `mote-broker` and `mote-nats`. They are
//! programs of their own, so that a node that does not use them carries none of their code, and so
//! that they run without privileges.
//!
//! [`supervision`] is the side of the node: it starts a program, writes its lines to the log of the
//! node, and starts it again when it ends. [`errand`] is its side, too, for a program that answers one
//! question and ends, and [`own_folder`] makes the folder in which a program keeps its files.
//! [`confinement`] is the side of the program: it gives up rights. This crate does
//! not know what a program does, or what the node and the program say to each other.

pub mod confinement;
pub mod errand;
pub mod own_folder;
pub mod supervision;
