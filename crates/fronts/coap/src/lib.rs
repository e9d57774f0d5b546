//! The CoAP front over UDP (RFC 7252), with block-wise transfer in both directions (RFC 7959).
//!
//! The front turns each request into one [`mote_core::Invocation`] and its reply into a CoAP
//! answer. It must not know instances, queues or the store. It reaches functions only through
//! [`mote_core::Invoker`]. Start reading at `server.rs`.
//!
//! One task owns the socket and all state, so no locks are needed. The task reads a batch of
//! datagrams, answers at once where it can, passes the rest to the engine, and sends all resulting
//! datagrams with one call. Pure modules with time as an argument interpret the datagrams.
//!
//! The files:
//!
//! - `server.rs`: handles each message, without a socket
//! - `exchanges.rs`: recognises repeated messages, and repeats their answers (pure)
//! - `message.rs`, `blocks.rs`, `cutting.rs`, `translate.rs`: the codec, block-wise transfer, the
//!   size limits of one message, and the translation of answers into codes and options (pure)
//! - `proof.rs`, `room.rs`: proof of source addresses, and limits on running invocations (pure)
//! - `observers.rs`, `notifying.rs`, `notices/`: observation
//! - `exchange_io.rs`, `batch.rs`, `runs.rs`: the turns of the task, batches of datagrams, and
//!   running invocations
//! - `stream.rs`, `stream_io.rs`, `stream_tls.rs`: CoAP over TCP and TLS
//! - `sessions.rs`, `dtls_frames.rs`: DTLS sessions, which the process `mote-dtls` terminates, and
//!   the messages between that process and the node

#![forbid(unsafe_code)]

mod batch;
pub mod blocks;
pub mod content_format;
mod cutting;
pub mod dtls_frames;
mod exchange;
mod exchange_io;
pub mod exchanges;
mod ids;
mod links;
#[cfg(feature = "fuzzing")]
pub mod machine;
pub mod message;
pub mod notices;
mod notifying;
#[cfg(test)]
mod notifying_tests;
mod observers;
pub mod proof;
mod room;
mod runs;
mod sender;
mod server;
mod sessions;
pub mod stream;
mod stream_io;
mod stream_tls;
mod translate;

pub use exchange_io::{prepare, serve};
pub use sender::CheckCertificate;
pub use server::Config;
pub use sessions::serve_sessions;
pub use stream_io::{StreamConfig, serve_stream};
pub use stream_tls::{ALPN, StreamTls};
