//! The packages that a function needs, and how they are installed:
//!
//! - [`inputs`]: what the function's own files ask for
//! - [`provided`]: packages that the images of other platforms contain
//! - [`wanted`]: both together, with the command of a [`client`] that installs them
//! - [`registries`]: the proxy through which an installation reaches the node's registries
//! - `credentials`: the parts of the registry configuration that an installation does not see
//! - [`output`]: the lines of an installation's output that people need
//!
//! This module must not know a node, the store or sandboxes. `mote-node` runs the installations.

pub mod client;
mod credentials;
pub mod inputs;
pub mod output;
pub mod provided;
pub mod registries;
pub mod wanted;
