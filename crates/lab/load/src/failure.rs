//! The reasons for which an operation fails.

use std::fmt;

/// Why an operation failed. Results name the reason by a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// HTTP answered with a status of 400 or above.
    Http(u16),
    /// CoAP answered with 4.xx or 5.xx: class and detail.
    Coap(u8, u8),
    /// No answer within the time limit.
    Timeout,
    /// The time limit passed before a client was free to begin the operation.
    NotSent,
    /// No connection could be established.
    Connect,
    /// The connection ended, or the network refused it, before the whole answer had arrived.
    Broken,
    /// The answer violates the rules of its protocol.
    Malformed,
    /// CoAP: the server rejected the message.
    Reset,
    /// CoAP: no retransmission was answered.
    Silence,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(status) => write!(f, "status {status}"),
            Self::Coap(class, detail) => write!(f, "code {class}.{detail:02}"),
            Self::Timeout => f.write_str("timeout"),
            Self::NotSent => f.write_str("not sent in time"),
            Self::Connect => f.write_str("not connected"),
            Self::Broken => f.write_str("connection broken"),
            Self::Malformed => f.write_str("malformed answer"),
            Self::Reset => f.write_str("reset"),
            Self::Silence => f.write_str("no acknowledgement"),
        }
    }
}
