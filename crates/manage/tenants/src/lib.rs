//! Namespaces with their shares, and the operators who manage them.
//!
//! The crate must not know connections, or how a namespace is emptied. [`namespaces`] separates the
//! functions of several owners, and [`operators`] says who may manage a node and records what they
//! did.

pub mod namespaces;
pub mod operators;
