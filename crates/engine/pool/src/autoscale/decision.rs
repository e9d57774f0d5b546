//! The decision of an autoscaler, and the reason for it.

use serde::{Deserialize, Serialize};

/// Why this number of instances is wanted. The words are stable, for outputs and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// No invocation arrives and none runs.
    Idle,
    /// An invocation waits and there is no instance.
    FirstInvocation,
    /// Invocations wait longer than they should.
    Backlog,
    /// The offered load (arrivals times run time, with headroom) needs them.
    OfferedLoad,
    /// The instances were needed a short time ago.
    RecentPeak,
    /// The next invocation is likely to arrive soon, so the instance is kept.
    KeepAlive,
    /// The next invocation is expected about now, so an instance is started before it arrives.
    Predicted,
    /// The rule compares concurrency with its target.
    Concurrency,
    /// The rule compares offered invocations per second with their target.
    Rate,
    /// The rule compares processor use with its target.
    Cpu,
    /// The rule compares memory use with its target.
    Memory,
    /// Knative's panic mode: the short window calls for at least twice the ready instances.
    Panic,
    /// OpenFaaS's alert fires.
    Alert,
    /// OpenFaaS's alert has ended.
    AlertEnded,
    /// Fewer instances would be enough, but the rule waits until that has been true for a while.
    Stabilising,
    /// The measured value is within the rule's tolerance, so nothing changes.
    Steady,
}

impl Reason {
    /// The word used in outputs and metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Idle => "idle",
            Reason::FirstInvocation => "first-invocation",
            Reason::Backlog => "backlog",
            Reason::OfferedLoad => "offered-load",
            Reason::RecentPeak => "recent-peak",
            Reason::KeepAlive => "keep-alive",
            Reason::Predicted => "predicted",
            Reason::Concurrency => "concurrency",
            Reason::Rate => "rate",
            Reason::Cpu => "cpu",
            Reason::Memory => "memory",
            Reason::Panic => "panic",
            Reason::Alert => "alert",
            Reason::AlertEnded => "alert-ended",
            Reason::Stabilising => "stabilising",
            Reason::Steady => "steady",
        }
    }

    /// The reason as a sentence for people.
    pub fn text(self) -> &'static str {
        match self {
            Reason::Idle => "keeping it would cost more than starting it again",
            Reason::FirstInvocation => "an invocation waits and no instance runs",
            Reason::Backlog => "invocations wait longer than the queueing target",
            Reason::OfferedLoad => "this many serve the offered load within the queueing target",
            Reason::RecentPeak => "this many were needed a short while ago",
            Reason::KeepAlive => "the next call is expected soon, so one idle instance is kept",
            Reason::Predicted => "the next call is expected now",
            Reason::Concurrency => "concurrency divided by its target",
            Reason::Rate => "offered invocations per second divided by the target",
            Reason::Cpu => "CPU use divided by its target",
            Reason::Memory => "memory use divided by its target",
            Reason::Panic => "the short window needs at least twice the ready instances",
            Reason::Alert => "the rate alert fires",
            Reason::AlertEnded => "the rate alert has ended",
            Reason::Stabilising => "fewer would be enough, but not for long enough yet",
            Reason::Steady => "within tolerance of the target",
        }
    }
}

/// The bound that changed the proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cut {
    /// `scale.min` requires more instances.
    Min,
    /// `scale.max` does not allow more instances.
    Max,
}

/// How many instances there should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// The number of ready, starting and paused instances together, within the bounds.
    pub desired: u32,
    /// The number that the rule proposed.
    pub wished: u32,
    /// The reason for the number.
    pub reason: Reason,
    /// Set if a bound changed the proposal; `mote describe` then says "would be 7, scale.max is 4".
    pub cut: Option<Cut>,
    /// The latest time of the next look, even if nothing happens. `None` means that a look is
    /// needed only when something changes, so that an idle function needs no timer.
    pub look_ns: Option<u64>,
    /// When an instance will be started ahead of a predicted call. Until then, a function without
    /// instances needs a timer.
    pub predicted_ns: Option<u64>,
}
