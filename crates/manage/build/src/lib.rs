//! Turns what a function needs into files: packages, programs in Go, interpreters, shims.
//!
//! The crate must not know the node, the store or sandboxes: `mote-node` runs the installations and
//! builds that it describes. [`packages`], [`golang`], [`interpreters`] and [`shims`] do not depend
//! on each other.

pub mod golang;
pub mod interpreters;
pub mod packages;
pub mod shims;
