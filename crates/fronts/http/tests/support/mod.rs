//! Code shared by the tests of this front.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod fake;
pub mod raw_http;

pub use fake::*;
