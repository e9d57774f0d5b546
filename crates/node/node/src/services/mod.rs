//! The services of the node for its functions: state, calls of other functions, notices to the
//! observers of resources, messages for MQTT brokers, and the records of chain runs.
//!
//! [`NodeServices`] answers requests, which the engine has read and admitted. A name in a request
//! refers to the namespace of the function that sends the request. For that function, nothing in
//! other namespaces exists. This module must not know how functions are deployed or managed. Start
//! reading at `answers.rs`.

mod answers;
mod publisher;
mod runs;

pub use answers::NodeServices;
pub use runs::{RunningStep, Runs};
