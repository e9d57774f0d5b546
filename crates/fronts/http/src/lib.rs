//! The HTTP front of a node: it turns each request into one [`mote_core::Invocation`] and its reply
//! into an HTTP answer. A request that is not strictly valid is refused before any other part of
//! the node handles it.
//!
//! The front must not know instances, queues or the store. It reaches functions only through
//! [`mote_core::Invoker`]. Start reading at `http/connection.rs`.
//!
//! The files:
//!
//! - `http/head.rs`, `http/chunked.rs`, `http/target.rs`: the strict parser (pure)
//! - `http/listener.rs`, `http/front.rs`, `http/socket.rs`: connections, their limits, TCP or TLS
//! - `http/input.rs`, `http/request_body.rs`, `gathering.rs`: received bytes that are not served
//!   yet, and bodies that must be complete before a call begins
//! - `http/route.rs`, `http/rules.rs`: which requests a function accepts, and the order of the
//!   checks
//! - `http/client.rs`, `http/proxies.rs`: who the client is
//! - `http/answer.rs`: the only place that writes heads
//! - `http/compress.rs`, `http/files.rs`, `static_files/`: compressed answers, and files that the
//!   node serves without the function
//! - `http/h2*.rs`, `h2_frames.rs`: HTTP/2 with hyper, with the same checks as HTTP/1.1
//! - `http/websocket*.rs`, `websocket/`: connections that have become WebSockets, as raw bytes or
//!   as messages without frames
//! - `http/silence.rs`: ends streamed answers whose function is silent for too long
//! - `http/fission.rs`: header fields that describe the matched route to Fission functions
//! - `http/logged.rs`, `access_log/`: the access log

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
