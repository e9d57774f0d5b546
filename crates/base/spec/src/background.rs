//! `[async]` of a manifest: how the accepted invocations of a function are run. `mote_core::retry`
//! decides by these rules when an invocation is tried again.

use serde::{Deserialize, Serialize};

use crate::mqtt::check_topic;
use crate::name::NAME_BYTES_MAX;

/// In the topic of a recipient, this part stands for the name of the function.
pub const FUNCTION_PART: &str = "{function}";

/// Attempts in total if the manifest sets no number: the first one, and two more after failures.
pub const ATTEMPTS_DEFAULT: u32 = 3;
/// The maximum number of attempts that a manifest may ask for.
pub const ATTEMPTS_MAX: u32 = 100;
/// The pause before the second attempt.
pub const BACKOFF_MS_DEFAULT: u64 = 1_000;
/// The longest pause between two attempts.
pub const BACKOFF_MS_MAX_DEFAULT: u64 = 300_000;
/// An invocation that has waited longer than this becomes a dead letter instead of being tried
/// again, because sensor values and notifications are worthless by then.
pub const AGE_MS_MAX_DEFAULT: u64 = 6 * 3_600_000;

/// A failure after which an invocation may be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RetryOn {
    /// The function raised an error, ended, or could not start.
    Error,
    /// The deadline of the invocation passed.
    Timeout,
    /// The function answered with a status from 500 to 599.
    Status,
}

impl RetryOn {
    /// All failures. This is the default.
    pub const ALL: [RetryOn; 3] = [RetryOn::Error, RetryOn::Timeout, RetryOn::Status];

    /// The word for this failure in a manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            RetryOn::Error => "error",
            RetryOn::Timeout => "timeout",
            RetryOn::Status => "status",
        }
    }
}

/// Where the result of an ended invocation is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recipient {
    /// Another function of the node.
    Function(String),
    /// This address, by a POST request under the rule for the node's own requests.
    Url(String),
    /// A topic of the function's MQTT broker.
    Topic(Topic),
}

/// A topic that receives results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topic {
    /// The topic; `{function}` stands for the name of the function.
    pub topic: String,
    /// The quality of service: 0, 1 or 2.
    pub qos: u8,
    /// Whether the broker keeps the message for later subscribers.
    pub retain: bool,
}

impl Topic {
    /// The topic for the results of this function. The function may be `NAME@TAG`.
    pub fn of(&self, function: &str) -> String {
        let name = function.split('@').next().unwrap_or(function);
        self.topic.replace(FUNCTION_PART, name)
    }
}

impl Recipient {
    /// The reason why a result could never be sent to this recipient; `None` if it could.
    pub fn mistake(&self) -> Option<String> {
        match self {
            Recipient::Function(name) => {
                let (name, tag) = name.split_once('@').unwrap_or((name, "live"));
                let ok = crate::name::is_label(name) && crate::name::is_label(tag);
                (!ok).then(|| format!("{name:?} is not the name of a function"))
            }
            Recipient::Url(_) => None,
            Recipient::Topic(topic) if topic.qos > 2 => Some("qos: 0, 1 or 2".to_owned()),
            Recipient::Topic(topic) => {
                // The longest function name is enough for this check, because every name is a valid
                // part of a topic.
                let longest = topic.topic.replace(FUNCTION_PART, &"f".repeat(NAME_BYTES_MAX));
                let problem = check_topic(&longest).err()?;
                Some(format!("topic: {problem}"))
            }
        }
    }
}

/// How the accepted invocations of a function are run: `[async]` of its manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AsyncRules {
    /// Attempts in total; `None` if the manifest sets no number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// The pause before the second attempt, in milliseconds. The pause doubles with each further
    /// attempt.
    pub backoff_ms: u64,
    /// The longest pause in milliseconds.
    pub backoff_ms_max: u64,
    /// The failures after which an invocation is tried again.
    pub retry: Vec<RetryOn>,
    /// The age in milliseconds from which on an invocation is not tried again. It is counted from
    /// the time at which the invocation was accepted, or from the later time for which it was
    /// accepted.
    pub age_ms_max: u64,
    /// Accepted invocations that run at once. `None` means half of the invocations that the
    /// function's instances can run at once. The other half is left for callers that wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// The recipient of the answer of an invocation that succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_success: Option<Recipient>,
    /// The recipient of the request of an invocation that failed for good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<Recipient>,
}

impl AsyncRules {
    /// The first mistake in the recipients: the setting, and what is wrong.
    pub fn mistake(&self) -> Option<(&'static str, String)> {
        let all = [("async.on_success", &self.on_success), ("async.on_failure", &self.on_failure)];
        all.into_iter().find_map(|(key, one)| Some((key, one.as_ref()?.mistake()?)))
    }
}

impl Default for AsyncRules {
    fn default() -> Self {
        Self {
            attempts: None,
            backoff_ms: BACKOFF_MS_DEFAULT,
            backoff_ms_max: BACKOFF_MS_MAX_DEFAULT,
            retry: RetryOn::ALL.to_vec(),
            age_ms_max: AGE_MS_MAX_DEFAULT,
            concurrency: None,
            on_success: None,
            on_failure: None,
        }
    }
}
