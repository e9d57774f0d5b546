//! The protocols between the node and functions that are servers.

use serde::{Deserialize, Serialize};

/// The protocol that a server function speaks with its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2 with prior knowledge, without TLS; gRPC needs it.
    H2c,
}
