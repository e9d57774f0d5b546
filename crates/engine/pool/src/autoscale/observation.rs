//! An autoscaler's view of one revision.

use super::estimate::Estimate;

/// Nanoseconds in a second; times are `u64` nanoseconds in the interface and seconds (`f64`) in
/// formulas.
pub(super) const SECOND_NS: f64 = 1e9;

/// One look at a revision.
///
/// Fields that end in `_total` only grow and wrap around. Policies use the difference between two
/// looks, so a late or missing look loses nothing, and no sampling is needed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Observation {
    /// The clock of the caller, in nanoseconds; never goes back.
    pub now_ns: u64,
    /// Invocations that asked for the revision: running, waiting, answered *and refused*. Demand
    /// means offered invocations; a rule that counts answers scales a saturated function down.
    pub offered_total: u64,
    /// Offered invocations that found the queue full.
    pub refused_total: u64,
    /// Invocations answered by the function.
    pub answered_total: u64,
    /// Time integral of (running + waiting), in invocation-nanoseconds; its growth per second is
    /// exactly the mean concurrency over any window. [`Autoscaler::decide`] fills it in from the
    /// calls of [`Autoscaler::settle`].
    ///
    /// [`Autoscaler::decide`]: super::Autoscaler::decide
    /// [`Autoscaler::settle`]: super::Autoscaler::settle
    pub demand_ns_total: u64,
    /// CPU time used by all instances that ever existed, in nanoseconds.
    pub cpu_ns_total: u64,
    /// Invocations inside instances now.
    pub in_flight: u32,
    /// The sum of the times for which those have been inside, in nanoseconds: run times that have
    /// not ended yet.
    pub run_age_ns_total: u64,
    /// Invocations waiting in the one queue now.
    pub queued: u32,
    /// How long the oldest of them has waited, in nanoseconds.
    pub oldest_wait_ns: u64,
    /// Instances that take invocations.
    pub ready: u32,
    pub starting: u32,
    /// Instances that take no more invocations and will exit.
    pub draining: u32,
    /// Instances that are paused and can be resumed.
    pub paused: u32,
    /// Invocations that one instance runs at once.
    pub concurrency: u32,
    /// Run time of an invocation, waiting excluded.
    pub service: Estimate,
    /// Time from the proposal for an instance until it is ready.
    pub start: Estimate,
    /// CPU promised to one instance, in thousandths of a core; the base of CPU percentages.
    pub cpu_millis_per_instance: u32,
    /// Memory in use by all instances, in bytes.
    pub memory_bytes: u64,
    /// Memory limit of one instance, in bytes.
    pub memory_limit_bytes: u64,
    /// Share of the node's memory budget that is taken, 0 to 1.
    pub memory_pressure: f64,
}

impl Observation {
    /// Instances that serve or could serve without a new start.
    pub fn live(&self) -> u32 {
        self.ready + self.starting + self.paused
    }

    /// Whether anything runs or waits.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.queued == 0
    }

    /// Invocations that no instance works on: those in the queue, and those that an instance holds
    /// beyond the number that it runs at once (frames ahead).
    pub fn waiting(&self) -> u32 {
        self.queued + self.in_flight.saturating_sub(self.ready * self.concurrency.max(1))
    }
}
