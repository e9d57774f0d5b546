//! The run times of one worker's invocations.

use crate::admission::service_mean_ns;
use crate::autoscale::Estimate;

/// The moving mean that dispatch uses, and the sums that the autoscaler collects at its next look.
/// All values are integers, because one run time is recorded per invocation.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RunTimes {
    mean_ns: u64,
    count: u32,
    sum_ns: u64,
    squares_ns2: u128,
}

impl RunTimes {
    /// The moving mean in nanoseconds; 0 before the first run.
    pub(super) fn mean_ns(&self) -> u64 {
        self.mean_ns
    }

    /// Records the run time of an invocation.
    pub(super) fn record(&mut self, run_ns: u64) {
        self.mean_ns = service_mean_ns(self.mean_ns, run_ns);
        self.add(run_ns);
    }

    /// Records a run time without changing the mean.
    pub(super) fn add(&mut self, run_ns: u64) {
        self.count = self.count.saturating_add(1);
        self.sum_ns = self.sum_ns.saturating_add(run_ns);
        self.squares_ns2 += u128::from(run_ns) * u128::from(run_ns);
    }

    /// Moves the sums into `estimate`.
    pub(super) fn drain_into(&mut self, estimate: &mut Estimate) {
        if self.count > 0 {
            estimate.record_many(self.count, self.sum_ns, self.squares_ns2);
        }
        *self = Self { mean_ns: self.mean_ns, ..Self::default() };
    }
}
