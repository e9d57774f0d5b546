//! The access log of the HTTP fronts: one line for each request.
//!
//! A front makes an [`Entry`] when it has read the head of a request, completes it when the answer
//! has ended, and passes the entry to [`AccessLog::write`]. That function never waits for a disk:
//! it collects lines in memory, and a separate thread writes them. This module must not know how
//! requests are read or answered. Start with [`AccessLog::open`]; the formats are in `line.rs`, and
//! the destinations in `writer.rs`.

mod entry;
mod line;
mod writer;

pub use entry::Entry;
pub use writer::{AccessLog, Destination, OpenError};

/// The format of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The Common Log Format of the first web servers.
    Common,
    /// The Common Log Format plus the fields `Referer` and `User-Agent`. Most log tools read this
    /// format.
    Combined,
    /// A JSON object with everything that is known about the request.
    Json,
}
