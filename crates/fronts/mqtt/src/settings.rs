//! What the task of one trigger needs to know.

use mote_spec::FunctionName;
use mote_spec::mqtt::{Connection, LOCAL, MqttTrigger, matches};

/// A trigger with everything that its task needs to know.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) function: FunctionName,
    pub(crate) trigger: MqttTrigger,
    /// The broker as text.
    pub(crate) address: String,
    pub(crate) connection: Connection,
    pub(crate) client_id: String,
    /// What the function may publish: `[allow] mqtt`.
    pub(crate) topics: Vec<String>,
}

impl Settings {
    /// Whether the answer to a message may go to this response topic of its publisher.
    pub(crate) fn may_answer(&self, topic: &str) -> bool {
        self.address != LOCAL || self.topics.iter().any(|filter| matches(filter, topic))
    }
}
