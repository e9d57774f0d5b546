//! What a page asks for again and again: short forms of functions, and counts of durations.

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
    /// What it does now.
    pub state: FunctionState,
    /// How many instances it has that were ready once.
    pub instances: u64,
    /// Instances on their way.
    pub starting: u32,
    /// Who may call it.
    pub access: String,
    /// Invocations since the node started.
    pub requests: Requests,
    /// The last failure, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
}

/// All functions in the short form, by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionSummaries {
    /// The functions.
    pub functions: Vec<FunctionSummary>,
}

/// How long things of a function took, counted since the node started. Each list has one count for
/// each bound, of what took at most that long and longer than the bound before, and a last one of
/// what took longer than every bound.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Durations {
    /// The bounds in microseconds.
    pub bounds_us: Vec<u64>,
    /// Arrival to the head of the answer, by trigger. Triggers without an answer are absent.
    pub request: BTreeMap<String, Vec<u64>>,
    /// Waiting for a free worker, start of an instance included.
    pub queue: Vec<u64>,
    /// Start of an instance, until it is ready.
    pub start: Vec<u64>,
    /// Inside the function.
    pub run: Vec<u64>,
    /// The sums in microseconds.
    pub sum_us: DurationSums,
}

/// The sums of [`Durations`], in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DurationSums {
    /// Arrival to the head of the answer, by trigger.
    pub request: BTreeMap<String, u64>,
    /// Waiting for a free worker.
    pub queue: u64,
    /// Starts of instances.
    pub start: u64,
    /// Inside the function.
    pub run: u64,
}
