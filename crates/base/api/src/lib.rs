//! The contract of the management API. The node, the command line and every other client of `mote`
//! follow it.
//!
//! The crate contains the wire types ([`types`]), the error body and the catalogue of error codes
//! ([`error`]), the exit codes ([`exit`]), the OpenAPI document ([`openapi`]) and a client
//! ([`client`]). The crate must not know how a function is run or stored. The manifest `mote.toml`
//! is in `mote-spec`.
//!
//! Start reading at [`types`], then at [`paths`] for the addresses.

// All districts use these items, so each item documents its contract. In other crates, an item has a
// comment only if the comment says more than the name does.
#![warn(missing_docs)]

pub mod cells;
pub mod client;
mod cluster;
mod endpoint;
pub mod error;
pub mod exit;
mod explanations;
pub mod files;
pub mod invocations;
pub mod journals;
pub mod keys;
pub mod kv;
pub mod mqtt;
pub mod namespaces;
pub mod openapi;
pub mod openwhisk;
pub mod operators;
pub mod paths;
mod reach;
pub mod recording;
pub mod sessions;
pub mod text;
pub mod time;
pub mod traces;
pub mod types;
pub mod watching;

pub use client::{Client, ClientError};
pub use error::{Problem, explain};
pub use text::harmless;
pub use time::Timestamp;

/// The name of the first entry of a deployed tar: the function's spec as JSON.
///
/// The node reads this entry before it unpacks the tar, and the entry never becomes part of the code.
/// If the entry is missing, the node reads `mote.toml` in the tar and guesses the rest, as the command
/// line does.
pub const SPEC_ENTRY: &str = ".mote/spec.json";
/// The entry of an uploaded archive that holds a container image, as an archive of its own.
pub const IMAGE_ENTRY: &str = ".mote/image.tar";
