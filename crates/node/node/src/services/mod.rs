//! What functions ask of their node: their state, calls of other functions, notices to those who
//! observe their resources, messages for MQTT brokers, and the records of runs of chains.
//!
//! [`NodeServices`] answers requests, which the engine has read and admitted. Names in a request mean
//! what is in the namespace of the function that asks; nothing else exists for it. This module must not
//! know how functions are deployed or managed. Start reading at `answers.rs`.

mod answers;
mod publisher;
mod runs;

pub use answers::NodeServices;
pub use runs::{RunningStep, Runs};
