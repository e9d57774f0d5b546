//! Namespaces with their shares, and the operators who manage them.

pub mod namespaces;
pub mod operators;
