//! Accepted invocations as the management API and the node's fronts show them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Timestamp;

/// The state of an accepted invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum InvocationState {
    /// It has not run yet, or it waits for another attempt.
    Waiting,
    /// An attempt is running.
    Running,
    /// The function has answered.
    Succeeded,
    /// It has failed for good and is kept as a dead letter.
    Dead,
    /// It was cancelled.
    Cancelled,
}

impl InvocationState {
    /// All states.
    pub const ALL: [InvocationState; 5] = [
        InvocationState::Waiting,
        InvocationState::Running,
        InvocationState::Succeeded,
        InvocationState::Dead,
        InvocationState::Cancelled,
    ];

    /// The word for the state in outputs and queries.
    pub fn as_str(self) -> &'static str {
        match self {
            InvocationState::Waiting => "waiting",
            InvocationState::Running => "running",
            InvocationState::Succeeded => "succeeded",
            InvocationState::Dead => "dead",
            InvocationState::Cancelled => "cancelled",
        }
    }

    /// Returns the state that this word names.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// An accepted invocation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AcceptedInvocation {
    /// Its id.
    pub id: String,
    /// The function.
    pub function: String,
    /// The source: `http`, `coap`, `admin`, `schedule`, `mqtt` or `function`; `result` for a
    /// request that delivers a result to an address.
    pub trigger: String,
    /// Its state.
    pub state: InvocationState,
    /// When it was accepted.
    #[schema(value_type = String, format = DateTime)]
    pub accepted_at: Timestamp,
    /// When the next attempt runs, if the invocation waits for that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub due_at: Option<Timestamp>,
    /// The idempotency key with which it was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Attempts that have ended.
    pub attempts: u32,
    /// When the last attempt began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub began_at: Option<Timestamp>,
    /// When the last attempt ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// The status of the last attempt, from the function's answer or from the fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The code of the fault of the last attempt, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// The text of the fault. Only the management API includes the function's own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The header fields of the answer, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// The body of the answer, if the body is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The body of the answer in base 64, if the body is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// The steps of a chain's run, in the order in which they ended, followed by those still
    /// running.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<RunStep>,
}

/// A step of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunStep {
    /// The names of the step's tasks, with the numbers of iterations and attempts.
    pub step: String,
    /// Its state.
    pub state: RunStepState,
    /// When the step reached this state; absent while the step is running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub at: Option<Timestamp>,
    /// How long a call took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// When a wait, or the time limit of a task, ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub until: Option<Timestamp>,
}

/// The state of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RunStepState {
    /// It is running.
    Running,
    /// It has ended.
    Done,
    /// A time is set for it.
    Timed,
    /// It failed, and the chain caught the error.
    Caught,
}

impl RunStepState {
    /// The word for the state in outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            RunStepState::Running => "running",
            RunStepState::Done => "done",
            RunStepState::Timed => "timed",
            RunStepState::Caught => "caught",
        }
    }
}

/// The number of invocations in a list, unless the query asks for another number.
pub const LIST_DEFAULT: usize = 100;
/// The largest number of invocations in a list.
pub const LIST_MAX: usize = 1_000;

/// A list of accepted invocations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AcceptedInvocations {
    /// The invocations, newest first, without their answers.
    pub invocations: Vec<AcceptedInvocation>,
    /// Whether the limit leaves out older invocations.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// The outcome of a request to cancel an invocation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CancelledInvocation {
    /// Its id.
    pub id: String,
    /// Whether an attempt was running. That attempt is being ended.
    pub was_running: bool,
}

/// How many dead letters were removed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeletedDeadLetters {
    /// Their number.
    pub deleted: usize,
}
