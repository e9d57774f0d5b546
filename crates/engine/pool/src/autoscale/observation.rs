//! An autoscaler's view of one revision.

use super::estimate::Estimate;

/// Nanoseconds in a second. Times are `u64` nanoseconds in the interface and `f64` seconds in
/// formulas.
pub(super) const SECOND_NS: f64 = 1e9;

/// A revision at one moment.
///
/// Fields that end in `_total` only grow, and wrap around. The rules use the differences between
/// two looks. A late or missing look therefore loses nothing, and no sampling is needed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Observation {
    /// The caller's clock in nanoseconds, which never goes back.
    pub now_ns: u64,
    /// Invocations that were sent to the revision: running, waiting, answered *and refused*. Demand
    /// means offered invocations, because a rule that counts only answers would scale a saturated
    /// function down.
    pub offered_total: u64,
    /// Offered invocations that found the queue full.
    pub refused_total: u64,
    /// Invocations answered by the function.
    pub answered_total: u64,
    /// The time integral of running plus waiting invocations, in invocation-nanoseconds. Its growth
    /// per second is exactly the mean concurrency over any window. [`Autoscaler::decide`] fills it
    /// in from the calls of [`Autoscaler::settle`].
    ///
    /// [`Autoscaler::decide`]: super::Autoscaler::decide
    /// [`Autoscaler::settle`]: super::Autoscaler::settle
    pub demand_ns_total: u64,
    /// The processor time of all instances, past and present, in nanoseconds.
    pub cpu_ns_total: u64,
    /// The number of invocations inside instances now.
    pub in_flight: u32,
    /// The sum of the run times of those invocations so far, in nanoseconds.
    pub run_age_ns_total: u64,
    /// The number of invocations that wait in the queue now.
    pub queued: u32,
    /// How long the oldest waiting invocation has waited, in nanoseconds.
    pub oldest_wait_ns: u64,
    /// Instances that take invocations.
    pub ready: u32,
    pub starting: u32,
    /// Instances that take no more invocations and are about to exit.
    pub draining: u32,
    /// Paused instances, which can be resumed.
    pub paused: u32,
    /// The number of invocations that one instance runs at once.
    pub concurrency: u32,
    /// The run time of an invocation, without the time that it waited.
    pub service: Estimate,
    /// The time from the proposal of an instance until the instance is ready.
    pub start: Estimate,
    /// The processor time that a start takes until the instance is ready.
    pub start_cpu: Estimate,
    /// The processor time promised to one instance, in thousandths of a core. Processor percentages
    /// are relative to it.
    pub cpu_millis_per_instance: u32,
    /// Memory in use by all instances, in bytes.
    pub memory_bytes: u64,
    /// Memory limit of one instance, in bytes.
    pub memory_limit_bytes: u64,
    /// The node's memory budget divided by its cores, in bytes; see `cost.rs`.
    pub memory_per_core_bytes: u64,
    /// The share of the node's memory budget that is taken, from 0 to 1.
    pub memory_pressure: f64,
}

impl Observation {
    /// Instances that serve, or could serve without a new start.
    pub fn live(&self) -> u32 {
        self.ready + self.starting + self.paused
    }

    /// Whether no invocation runs or waits.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.queued == 0
    }

    /// The number of invocations on which no instance works: those in the queue, and those that an
    /// instance holds beyond its concurrency (frames ahead).
    pub fn waiting(&self) -> u32 {
        self.queued + self.in_flight.saturating_sub(self.ready * self.concurrency.max(1))
    }
}
