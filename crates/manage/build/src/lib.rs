//! Turns what a function needs into files: packages, programs in Go, interpreters, shims.

pub mod golang;
pub mod interpreters;
pub mod packages;
pub mod shims;
