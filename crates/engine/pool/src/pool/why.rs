//! Why an instance starts.

use crate::autoscale::Reason;

/// Why an instance starts or stops: a stable word for programs, a sentence for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Why {
    /// The word, for instance `first-invocation`.
    pub word: &'static str,
    pub text: &'static str,
}

impl Why {
    /// A deploy waits for its first instance.
    pub const DEPLOY: Why =
        Why { word: "deploy", text: "the deploy waits until one instance is ready" };
    /// The node started.
    pub const WARM: Why =
        Why { word: "warm", text: "scale.start requires one as soon as the node runs" };
    /// The instance is loaded and paused in addition to those that serve.
    pub const SPARE: Why =
        Why { word: "spare", text: "scale.spare keeps this many loaded and paused" };
    /// No caller needs the instance, but the owner keeps a minimum.
    pub const MIN: Why = Why { word: "min", text: "scale.min keeps this many" };
    /// The instance stops because a namespace that holds less than its share of the memory needs
    /// room.
    pub const OTHERS: Why = Why {
        word: "evicted",
        text: "its namespace uses more than its share of the memory, and another one needs some",
    };
    /// The instance stops because another caller needs an instance.
    pub const CALLERS: Why =
        Why { word: "callers", text: "another caller needs an instance of its own" };
    /// The instance stops because its caller has not called for a long time.
    pub const CALLER_GONE: Why =
        Why { word: "idle", text: "its caller has not called for scale.idle" };
    /// The owner asked for the instance.
    pub const MANUAL: Why = Why { word: "scale", text: "mote scale asked for it" };
}

impl From<Reason> for Why {
    fn from(reason: Reason) -> Self {
        Why { word: reason.as_str(), text: reason.text() }
    }
}
