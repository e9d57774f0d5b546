//! What a rule proposes, and the bounds within which the proposal must stay.

use mote_spec::policy::Policy;

use super::decision::Reason;

/// Nanoseconds in a millisecond.
pub(super) const MS_NS: u64 = 1_000_000;

/// The bounds that the function's owner sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The minimum number of instances.
    pub min: u32,
    /// The maximum number of instances.
    pub max: u32,
    /// The longest time for which an unused instance is kept, in nanoseconds.
    pub idle_timeout_ns: u64,
}

impl Bounds {
    /// Adjusts the bounds to those that `policy` can keep.
    pub(super) fn checked(mut self, policy: &Policy) -> Self {
        self.max = self.max.max(1);
        if !policy.scales_to_zero() {
            self.min = self.min.max(1);
        }
        self
    }
}

/// The proposal of a rule, before the bounds are applied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Proposal {
    pub(super) desired: u32,
    pub(super) reason: Reason,
    pub(super) look_ns: Option<u64>,
    pub(super) predicted_ns: Option<u64>,
}

impl Proposal {
    pub(super) fn new(desired: u32, reason: Reason) -> Self {
        Self { desired, reason, look_ns: None, predicted_ns: None }
    }

    pub(super) fn look_at(self, at_ns: u64) -> Self {
        Self { look_ns: Some(at_ns), ..self }
    }
}
