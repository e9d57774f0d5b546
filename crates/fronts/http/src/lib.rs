//! The fronts of a node: each turns its protocol's request into one [`mote_core::Invocation`] and
//! the reply back, and refuses everything that is not strictly valid before any other part handles
//! it.
//!
//! A front must not know instances, queues or the store; it reaches functions through
//! [`mote_core::Invoker`] only. Start reading at `http/connection.rs`.

#![forbid(unsafe_code)]

pub mod access_log;
mod added;
pub mod gathering;
pub mod h2_frames;
pub mod http;
mod ids;
pub mod refusal;
pub mod static_files;
pub mod websocket;
