//! Traces of calls, as the management API shows them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Timestamp;

/// A recorded call of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceSummary {
    /// The id of its trace: 32 hexadecimal digits.
    pub trace: String,
    /// The id of its span: 16 hexadecimal digits.
    pub span: String,
    /// The function.
    pub function: String,
    /// The revision that the call was sent to.
    pub revision: u64,
    /// `http`, `coap`, `mqtt`, `schedule`, `function` or `admin`.
    pub trigger: String,
    /// Method and path.
    pub name: String,
    /// The status of the answer; 0 if the caller did not wait for it.
    pub status: u16,
    /// `ok`, `caller`, `function`, `timeout`, `capacity` or `platform`.
    pub outcome: String,
    /// When the call arrived.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// From arrival to the head of the answer, in microseconds.
    pub duration_us: u64,
    /// Whether the call waited for an instance to start.
    pub cold: bool,
    /// The id of the call.
    pub invocation: String,
}

/// Recorded calls, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceList {
    /// The calls.
    pub traces: Vec<TraceSummary>,
}

/// A part of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Span {
    /// Its id: 16 hexadecimal digits.
    pub span: String,
    /// The parent span, which may not be recorded on this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The function's name for a call; `queue`, `start`, `hand-over` or `run` for a part of a
    /// call's time.
    pub name: String,
    /// `server` for a call, `internal` for a part of a call's time.
    pub kind: String,
    /// The function that was called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The revision that the call was sent to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// The id of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocation: Option<String>,
    /// When it began, in microseconds since 1970.
    pub start_us: u64,
    /// How long it took, in microseconds.
    pub duration_us: u64,
    /// `ok` or `error`.
    pub status: String,
    /// Attributes of the span.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

/// All recorded parts of a trace, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Trace {
    /// The id of the trace: 32 hexadecimal digits.
    pub trace: String,
    /// Its parts.
    pub spans: Vec<Span>,
}
