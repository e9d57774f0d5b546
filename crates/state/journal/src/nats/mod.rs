//! A node's side of NATS JetStream.
//!
//! [`Nats`] runs the program `mote-nats`, which holds the connection to the servers, and sends
//! requests ([`Request`]) to that program over a socket pair. The library for NATS is linked into
//! that program alone, so that a node without NATS carries none of its code. [`NatsState`] is the
//! state of functions over such a connection.
//!
//! This module must not know the protocol of NATS. Start with `client.rs`. `process.rs` starts,
//! watches and ends the program, `shared.rs` has the requests that wait for an answer, and
//! `frames.rs` is the protocol, which `mote-nats` uses too.

mod address;
mod client;
mod codec;
mod frames;
mod process;
mod shared;
mod state;
mod state_codec;

pub use address::{WrongAddress, address};
pub use client::Nats;
pub use codec::Malformed;
pub use frames::{
    FRAME_BYTES_MAX, HEAD_BYTES, NatsError, PageOf, Publishing, Reply, Request, ServerStatus,
    Settings, Stored, take_frame,
};
pub use process::Launch;
pub use state::NatsState;
