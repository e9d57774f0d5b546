//! The packages that a function needs: what its own files ask for ([`inputs`]), what the images of
//! other platforms contain ([`provided`]), and the proxy through which an installation reaches the
//! registries of its node ([`registries`]).
//!
//! This crate must not know a node, the store or sandboxes. `mote-node` runs the installations.

pub mod inputs;
pub mod provided;
pub mod registries;
