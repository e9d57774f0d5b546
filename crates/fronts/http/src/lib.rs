//! The HTTP front of a node: it turns each request into one [`mote_core::Invocation`] and the reply
//! back, and refuses everything that is not strictly valid before any other part handles it.
//!
//! It must not know instances, queues or the store; it reaches functions through
//! [`mote_core::Invoker`] only. Start reading at `http/connection.rs`.
//!
//! The files:
//!
//! - `http/head.rs`, `http/chunked.rs`, `http/target.rs`: the strict parser (pure)
//! - `http/listener.rs`, `http/front.rs`, `http/socket.rs`: connections, their limits, TCP or TLS
//! - `http/input.rs`, `http/request_body.rs`, `gathering.rs`: what has been read, and bodies that
//!   calls wait for
//! - `http/route.rs`, `http/rules.rs`: which requests a function accepts, and in which order that
//!   is checked
//! - `http/client.rs`, `http/proxies.rs`: who the client is
//! - `http/answer.rs`: the only place that writes heads
//! - `http/compress.rs`, `http/files.rs`, `static_files/`: compressed answers, and files that the
//!   node serves
//! - `http/h2*.rs`, `h2_frames.rs`: HTTP/2 with hyper, and the same checks
//! - `http/websocket*.rs`, `websocket/`: connections that have become WebSockets, and messages
//!   without frames
//! - `http/silence.rs`: ends silent streams
//! - `http/fission.rs`: fields in which functions of Fission find their route
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
