//! The CoAP front over UDP (RFC 7252), with block-wise transfer both ways (RFC 7959).
//!
//! It turns each request into one [`mote_core::Invocation`] and the reply back. It must not know
//! instances, queues or the store; it reaches functions through [`mote_core::Invoker`] only. Start
//! reading at `server.rs`.
//!
//! One task owns the socket and all state, so nothing here is locked: it reads a batch of
//! datagrams, answers those that it can answer at once, gives the rest to the engine, and sends all
//! gathered datagrams with one call. Pure modules with time as an argument interpret the datagrams.
//!
//! The files:
//!
//! - `server.rs`: handles each message, without a socket
//! - `exchanges.rs`: answers of retransmissions (pure)
//! - `message.rs`, `blocks.rs`, `cutting.rs`, `translate.rs`: codec, blocks, what one message may
//!   hold, answers as codes and options (pure)
//! - `proof.rs`, `room.rs`: proof of addresses, and room for invocations (pure)
//! - `observers.rs`, `notifying.rs`, `notices/`: observation
//! - `exchange_io.rs`, `batch.rs`, `runs.rs`: one turn of the task, datagrams in batches, running
//!   invocations
//! - `stream.rs`, `stream_io.rs`, `stream_tls.rs`: CoAP over TCP and TLS
//! - `sessions.rs`, `dtls_frames.rs`: sessions of the process `mote-dtls`, and what both say to
//!   each other

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
