//! How many instances a function has, and when they start.

use serde::{Deserialize, Serialize};

use crate::policy::{Balance, Policy};

/// Default for the invocations that may wait for a free worker. Further callers are refused with
/// 429.
pub const QUEUE_DEFAULT: u32 = 1024;
/// An instance stops this long after its last invocation ended. The default rule stops it earlier
/// if another call is not likely enough.
pub const IDLE_TIMEOUT_MS_DEFAULT: u64 = 300_000;
/// The maximum number of instances of one function.
pub const INSTANCES_MAX: u32 = 1_000;
/// The maximum number of instances that are kept paused in addition to those that serve.
pub const SPARE_MAX: u32 = 100;
/// The maximum number of invocations that may wait for one function.
pub const QUEUE_MAX: u32 = 100_000;
/// Largest target of a scaling rule.
pub const TARGET_MAX: u32 = 1_000_000;

/// How many instances a function has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scale {
    /// The minimum of instances. With 0, the function can scale to zero.
    pub min: u32,
    /// The maximum of instances. `None` means the number of cores.
    pub max: Option<u32>,
    /// How long an instance stays at most after its last invocation, in milliseconds.
    pub idle_timeout_ms: u64,
    /// How many invocations may wait before callers are refused.
    pub queue: u32,
    /// How the number of instances follows demand.
    pub policy: Policy,
    /// Whether an instance exists before the first call.
    pub start: StartPolicy,
    /// The rule that chooses the instance for an invocation.
    pub balance: Balance,
    /// Milliseconds after which an idle instance is paused. With `None`, instances are never
    /// paused.
    pub pause_ms: Option<u64>,
    /// Instances that are kept loaded and paused in addition to those that serve.
    pub spare: u32,
}

impl Scale {
    /// The number of instances that are kept even without demand: `min`, or one if the start policy
    /// or the rule keeps one.
    pub fn floor(&self) -> u32 {
        let one = self.start == StartPolicy::Always || !self.policy.scales_to_zero();
        self.min.max(u32::from(one))
    }
}

/// Bounds that replace those of the manifest until the next deploy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaleOverride {
    /// Replaces `min`, and the instances that `start` keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u32>,
    /// Replaces `max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
}

/// Says when an instance exists before the first call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StartPolicy {
    /// After a restart of the node, the first invocation starts an instance.
    #[default]
    Cold,
    /// An instance starts with the node and with each deploy. It may be stopped when it is idle.
    Warm,
    /// At least one instance is always kept.
    Always,
}

impl StartPolicy {
    /// The word for this policy in manifests and outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            StartPolicy::Cold => "cold",
            StartPolicy::Warm => "warm",
            StartPolicy::Always => "always",
        }
    }
}
