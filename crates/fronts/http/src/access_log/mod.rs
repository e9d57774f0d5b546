//! The access log of the HTTP fronts: a line for each request that was answered.
//!
//! A front makes an [`Entry`] when it has read the head of a request, completes it when the answer
//! has ended, and gives it to [`AccessLog::write`], which never waits for a disk: lines gather in
//! memory, and a thread writes them. This module must not know how requests are read or answered.
//! Start with [`AccessLog::open`]; the formats are in `line.rs`, and the destinations in `writer.rs`.

mod entry;
mod line;
mod writer;

pub use entry::Entry;
pub use writer::{AccessLog, Destination, OpenError};

/// How a line says what happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The Common Log Format of the first web servers.
    Common,
    /// The same with the fields `Referer` and `User-Agent`, which most tools for logs read.
    Combined,
    /// An object of JSON with everything that is known.
    Json,
}
