//! What the tests of this front share.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod fake;
pub mod raw_http;

pub use fake::*;
