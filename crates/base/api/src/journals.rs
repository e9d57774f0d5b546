//! The journals of accepted invocations that a node runs. There are only some if the node keeps its
//! journal in NATS.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::types::{Check, CheckState};

/// The journals that a node runs: its own first. Empty if it has none in NATS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JournalList {
    /// The journals.
    pub journals: Vec<JournalStatus>,
}

/// A journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JournalStatus {
    /// Its name.
    pub name: String,
    /// Whether it is the node's own, into which the node accepts.
    pub own: bool,
    /// Whether it accepts and runs.
    pub state: JournalState,
    /// Why it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Invocations that have not ended.
    pub waiting: u64,
    /// Whether it knows no invocation at all, not even one that has ended.
    pub empty: bool,
}

impl JournalList {
    /// Returns a check for each journal: whether the journal can accept and run work.
    pub fn checks(self) -> impl Iterator<Item = Check> {
        self.journals.into_iter().map(|JournalStatus { name, state, detail, .. }| {
            let code = match state {
                JournalState::Open => {
                    let detail = format!("{name} is open; its records are in NATS");
                    let state = CheckState::Ok;
                    return Check { name: "journal".into(), state, detail, hint: None };
                }
                JournalState::Away => "M0706",
                JournalState::Taken => "M0707",
            };
            let detail = format!("{name}: {}", detail.unwrap_or_default());
            let hint = Some(format!("see: mote explain {code}"));
            Check { name: "journal".into(), state: CheckState::Fail, detail, hint }
        })
    }
}

/// Whether a journal accepts and runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JournalState {
    /// It does.
    Open,
    /// Its stream cannot be reached.
    Away,
    /// Another node has taken it over.
    Taken,
}
