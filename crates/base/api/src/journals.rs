//! The journals of accepted invocations that a node runs. The list is empty unless the node keeps
//! its journal in NATS.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::types::{Check, CheckState};

/// The journals that a node runs, its own first. Empty if the node has no journal in NATS.
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
    /// Whether this is the node's own journal, to which the node adds the invocations that it
    /// accepts.
    pub own: bool,
    /// Whether the journal accepts and runs invocations.
    pub state: JournalState,
    /// Why the journal does not accept and run invocations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Invocations that have not ended.
    pub waiting: u64,
    /// Whether the journal contains no invocations at all, not even ended ones.
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

/// Whether a journal accepts and runs invocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JournalState {
    /// The journal accepts and runs invocations.
    Open,
    /// The journal's stream cannot be reached.
    Away,
    /// Another node has taken the journal over.
    Taken,
}
