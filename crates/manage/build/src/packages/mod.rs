//! The packages that a function needs: what its own files ask for ([`inputs`]), what the images of
//! other platforms contain ([`provided`]), the command of a [`client`] that installs both
//! ([`wanted`]), the proxy through which an installation reaches the registries of its node
//! ([`registries`]), what it does not see of their configuration (`credentials`), and what people need
//! of its output ([`output`]).
//!
//! This module must not know a node, the store or sandboxes. `mote-node` runs the installations.

pub mod client;
mod credentials;
pub mod inputs;
pub mod output;
pub mod provided;
pub mod registries;
pub mod wanted;
