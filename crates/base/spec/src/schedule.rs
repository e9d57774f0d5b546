//! Schedules: when a function runs without a caller.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::SpecError;
use crate::fields::is_set_by_node;

/// The maximum number of schedules of one function.
pub const SCHEDULES_MAX: usize = 100;
/// Longest expression of a schedule in bytes.
pub const EXPRESSION_BYTES_MAX: usize = 256;
/// Shortest interval of `every`.
pub const EVERY_MS_MIN: u64 = 1_000;
/// Longest interval of `every`. A cron expression can describe longer ones.
pub const EVERY_MS_MAX: u64 = 7 * 86_400_000;
/// Longest delay of `jitter`.
pub const JITTER_MS_MAX: u64 = 86_400_000;
/// Longest body of a scheduled call, in bytes. The node keeps the body in memory.
pub const SCHEDULE_BODY_BYTES_MAX: usize = 64 << 10;
/// The time zone of schedules that name none.
pub const TIMEZONE_DEFAULT: &str = "UTC";

/// A schedule of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// The times at which the function runs.
    pub when: When,
    /// What happens if times passed while the node was off.
    pub missed: Missed,
    /// Each run is delayed by a constant time that is shorter than this, in milliseconds.
    pub jitter_ms: u64,
    /// What happens at a scheduled time if the previous run has not ended.
    pub overlap: Overlap,
    /// What the schedule sends to its function.
    pub call: ScheduledCall,
}

/// The times of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum When {
    /// A cron expression.
    Cron {
        /// Five fields, six fields or a word such as `@hourly`.
        expression: String,
        /// An IANA name such as `Europe/Berlin`.
        timezone: String,
    },
    /// All multiples of an interval, counted from 1970.
    Every {
        /// The interval in milliseconds.
        ms: u64,
    },
}

/// What happens if times passed while the node was off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Missed {
    /// These times cause no run.
    #[default]
    Skip,
    /// Together, these times cause one run.
    RunOnce,
    /// Each of them causes a run, up to a limit.
    RunAll,
}

impl Missed {
    /// The word for this choice in manifests and outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            Missed::Skip => "skip",
            Missed::RunOnce => "run-once",
            Missed::RunAll => "run-all",
        }
    }
}

/// What happens at a scheduled time if the previous run has not ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// No run begins at this time.
    #[default]
    Skip,
    /// The run begins when the previous one has ended.
    Queue,
    /// Both run at the same time.
    Allow,
}

impl Overlap {
    /// The word for this choice in manifests and outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            Overlap::Skip => "skip",
            Overlap::Queue => "queue",
            Overlap::Allow => "allow",
        }
    }
}

/// What a schedule sends to its function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduledCall {
    /// The method, in upper case.
    pub method: String,
    /// The path below the function, with its leading `/`. A query may follow.
    pub path: String,
    /// Header fields. Their names are in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: String,
}

impl Default for ScheduledCall {
    fn default() -> Self {
        let method = "POST".to_owned();
        let path = "/".to_owned();
        Self { method, path, headers: BTreeMap::new(), body: String::new() }
    }
}

impl Schedule {
    /// A schedule with every default.
    pub fn new(when: When) -> Self {
        let call = ScheduledCall::default();
        Self { when, missed: Missed::Skip, jitter_ms: 0, overlap: Overlap::Skip, call }
    }

    /// Returns the mistakes in a schedule, except those in the expression and the time zone, which
    /// a library checks.
    pub fn check(&self) -> Vec<SpecError> {
        let mut errors = Vec::new();
        let mut check = |ok: bool, field: &'static str, problem: &str| {
            if !ok {
                errors.push(SpecError { field, problem: problem.to_owned() });
            }
        };
        match &self.when {
            When::Cron { expression, timezone } => {
                let short = expression.len() <= EXPRESSION_BYTES_MAX;
                check(short, "trigger.cron", "at most 256 bytes");
                check(timezone.len() <= 64, "trigger.timezone", "at most 64 bytes");
            }
            When::Every { ms } => {
                let fits = (EVERY_MS_MIN..=EVERY_MS_MAX).contains(ms);
                check(fits, "trigger.every", "1s to 168h, for example 10s");
            }
        }
        check(self.jitter_ms <= JITTER_MS_MAX, "trigger.jitter", "at most 24h");
        let ScheduledCall { method, path, headers, body } = &self.call;
        check(
            (1..=24).contains(&method.len()) && method.bytes().all(|b| b.is_ascii_uppercase()),
            "trigger.method",
            "an upper-case word such as POST",
        );
        let graphic = |text: &str| text.bytes().all(|b| b.is_ascii_graphic());
        check(
            path.starts_with('/') && path.len() <= 2_048 && graphic(path) && !path.contains('#'),
            "trigger.path",
            "a path that begins with /, at most 2048 bytes, without spaces",
        );
        let is_token = |name: &str| {
            (1..=128).contains(&name.len())
                && name.bytes().all(|b| {
                    b.is_ascii_lowercase() || b.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(&b)
                })
        };
        check(
            headers.len() <= 32
                && headers.iter().all(|(name, value)| {
                    is_token(name)
                        && !name.starts_with("mote-")
                        && !is_set_by_node(name.as_bytes())
                        && value.len() <= 4_096
                        && !value.chars().any(char::is_control)
                }),
            "trigger.headers",
            "at most 32 fields; names do not begin with mote-, mqtt- or coap-",
        );
        check(body.len() <= SCHEDULE_BODY_BYTES_MAX, "trigger.body", "at most 64KiB");
        errors
    }
}
