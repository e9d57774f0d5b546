//! The settings of one trigger's task.

use mote_spec::FunctionName;
use mote_spec::mqtt::{Connection, LOCAL, MqttTrigger, matches};

/// A trigger, with everything that its task needs to know.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) function: FunctionName,
    pub(crate) trigger: MqttTrigger,
    /// The address of the broker as text.
    pub(crate) address: String,
    pub(crate) connection: Connection,
    pub(crate) client_id: String,
    /// The topics to which the function may publish (`[allow] mqtt`).
    pub(crate) topics: Vec<String>,
}

impl Settings {
    /// Whether the answer to a message may be published to this response topic.
    pub(crate) fn may_answer(&self, topic: &str) -> bool {
        self.address != LOCAL || self.topics.iter().any(|filter| matches(filter, topic))
    }
}
