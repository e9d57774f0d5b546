//! Data that a page requests repeatedly: functions in a short form, and counts of durations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::types::{FunctionState, LastError, Requests};

/// A function in the short form, for lists of many functions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionSummary {
    /// Its name.
    pub name: String,
    /// `python`, `node`, `go`, `exec` or `server`.
    pub runtime: String,
    /// The live revision.
    pub revision: u64,
    /// Whether the function can answer.
    pub state: FunctionState,
    /// Number of its instances that have been ready.
    pub instances: u64,
    /// Number of instances that are starting.
    pub starting: u32,
    /// Who may call it.
    pub access: String,
    /// Counters of its invocations since the node started.
    pub requests: Requests,
    /// The last failure, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
}

/// All functions in the short form, sorted by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionSummaries {
    /// The functions.
    pub functions: Vec<FunctionSummary>,
}

/// How long the phases of a function's invocations and starts took, counted since the node started.
/// Each list has one count for each bound: the number of durations up to this bound and above the
/// previous bound. The last count of a list is for durations above every bound.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Durations {
    /// The bounds in microseconds.
    pub bounds_us: Vec<u64>,
    /// From arrival to the head of the answer, by trigger. Triggers without an answer are absent.
    pub request: BTreeMap<String, Vec<u64>>,
    /// Waiting for a free worker, including the start of an instance.
    pub queue: Vec<u64>,
    /// The start of an instance, until it is ready.
    pub start: Vec<u64>,
    /// Inside the function.
    pub run: Vec<u64>,
    /// The sums in microseconds.
    pub sum_us: DurationSums,
}

/// The sums of [`Durations`], in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DurationSums {
    /// From arrival to the head of the answer, by trigger.
    pub request: BTreeMap<String, u64>,
    /// Waiting for a free worker.
    pub queue: u64,
    /// Starts of instances.
    pub start: u64,
    /// Inside the function.
    pub run: u64,
}
