//! Provides the files that a function needs: packages, Go programs, interpreters and shims.
//!
//! The crate must not know the node, the store or sandboxes. It only describes installations and
//! builds; `mote-node` runs them. [`packages`], [`golang`], [`interpreters`] and [`shims`] do not
//! depend on each other.

pub mod golang;
pub mod interpreters;
pub mod packages;
pub mod shims;
