//! The protocols of functions that are servers of their own.

use serde::{Deserialize, Serialize};

/// What a server function speaks with its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2 with prior knowledge, without TLS; gRPC needs it.
    H2c,
}
