//! The record that says which node took a log.

use serde::{Deserialize, Serialize};

/// The subject of the message by which a node takes a log.
pub(crate) const EPOCH: &str = "e";

/// Says which node took a log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Epoch {
    /// The format of the log. A node refuses a log whose format it does not know.
    pub(crate) format: u32,
    pub(crate) node: String,
    /// When the node took the log, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// Whether rows of the node's file were still missing from the log.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) filling: bool,
}
