//! Code shared by the tests of this front.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod coap;
#[path = "../../../http/tests/support/fake.rs"]
pub mod fake;
pub mod relay;

pub use fake::*;
