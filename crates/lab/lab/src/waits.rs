//! A histogram of any number of waiting times, in constant memory.

use crate::report::WaitSummary;

/// The number of bins per doubling, so that a percentile is exact to 1 %.
const BINS_PER_OCTAVE: f64 = 64.0;
/// Waits below this time share one bin, because nobody notices a microsecond.
const FIRST_NS: f64 = 1_000.0;
/// The number of bins, which cover 1 µs to more than a day.
const BINS: usize = 64 * 37;

/// A histogram of waits with logarithmic bins, and the exact sum of the waits.
#[derive(Debug)]
pub(crate) struct Waits {
    bins: Vec<u64>,
    count: u64,
    sum_ns: f64,
    max_ns: u64,
}

impl Default for Waits {
    fn default() -> Self {
        Self { bins: vec![0; BINS], count: 0, sum_ns: 0.0, max_ns: 0 }
    }
}

impl Waits {
    pub(crate) fn record(&mut self, wait_ns: u64) {
        let bin = (wait_ns as f64 / FIRST_NS).max(1.0).log2() * BINS_PER_OCTAVE;
        self.bins[(bin as usize).min(BINS - 1)] += 1;
        self.count += 1;
        self.sum_ns += wait_ns as f64;
        self.max_ns = self.max_ns.max(wait_ns);
    }

    pub(crate) fn summary(&self) -> WaitSummary {
        WaitSummary {
            mean_ms: self.mean_ms(),
            p50_ms: self.quantile_ms(0.5),
            p95_ms: self.quantile_ms(0.95),
            p99_ms: self.quantile_ms(0.99),
            max_ms: self.max_ns as f64 / 1e6,
        }
    }

    fn mean_ms(&self) -> f64 {
        self.sum_ns / self.count.max(1) as f64 / 1e6
    }

    /// The wait that a `share` of the invocations did not exceed; 0 if it is below a microsecond.
    fn quantile_ms(&self, share: f64) -> f64 {
        let rank = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        for (bin, count) in self.bins.iter().enumerate() {
            below += count;
            if below >= rank {
                let end_ns = FIRST_NS * ((bin + 1) as f64 / BINS_PER_OCTAVE).exp2();
                return if bin == 0 { 0.0 } else { end_ns.min(self.max_ns as f64) / 1e6 };
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let mut waits = Waits::default();
        for ms in 1..=1_000 {
            waits.record(ms * 1_000_000);
        }
        assert_eq!(waits.mean_ms(), 500.5);
        for (share, expected) in [(0.5, 500.0), (0.95, 950.0), (0.99, 990.0), (1.0, 1_000.0)] {
            let value = waits.quantile_ms(share);
            assert!((value / expected - 1.0).abs() < 0.012, "{share}: {value}");
        }
        let mut none = Waits::default();
        none.record(0);
        assert_eq!((none.quantile_ms(0.99), none.mean_ms()), (0.0, 0.0));
    }
}
