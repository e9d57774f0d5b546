//! The record of who took a log.

use serde::{Deserialize, Serialize};

/// The subject of the message by which a node takes a log.
pub(crate) const EPOCH: &str = "e";

/// Says who took a log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Epoch {
    /// The form of the log; a node refuses one that it does not know.
    pub(crate) format: u32,
    pub(crate) node: String,
    /// When, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// Whether the rows of the node's file were still missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) filling: bool,
}
