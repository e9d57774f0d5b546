//! Namespaces with their limits, and the operators who manage a node.
//!
//! [`namespaces`] separates the functions of several owners. [`operators`] decides who may manage a
//! node, and records what they do. The crate must not know connections, or how a namespace is
//! emptied.

pub mod namespaces;
pub mod operators;
