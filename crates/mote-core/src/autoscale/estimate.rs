//! Mean and spread of a duration, learnt from what was measured.

/// The newest value never weighs less than this: the estimate follows a function whose work
/// changes, and needs about this many invocations to forget.
const MEMORY: f64 = 256.0;

/// Moving mean and variance of a duration. The first values count fully (plain mean), later ones
/// with weight 1/256. A few bytes; one call per invocation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Estimate {
    count: u32,
    mean_ns: f64,
    variance_ns2: f64,
}

impl Estimate {
    /// An estimate that starts from one believed value.
    pub fn of(mean_ns: u64) -> Self {
        Self { count: 1, mean_ns: mean_ns as f64, variance_ns2: 0.0 }
    }

    /// Takes one measured duration into account.
    pub fn record(&mut self, value_ns: u64) {
        self.count = self.count.saturating_add(1);
        let weight = 1.0 / f64::from(self.count).min(MEMORY);
        let difference = value_ns as f64 - self.mean_ns;
        self.mean_ns += weight * difference;
        self.variance_ns2 = (1.0 - weight) * (self.variance_ns2 + weight * difference * difference);
    }

    /// Values seen.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The mean in nanoseconds, `None` before the first value.
    pub fn mean_ns(&self) -> Option<u64> {
        (self.count > 0).then_some(self.mean_ns as u64)
    }

    /// Standard deviation in nanoseconds.
    pub fn deviation_ns(&self) -> u64 {
        self.variance_ns2.sqrt() as u64
    }

    /// Squared coefficient of variation: 0 for constant work, 1 for exponential. Fewer than two
    /// values count as exponential.
    pub fn variation_squared(&self) -> f64 {
        if self.count < 2 || self.mean_ns <= 0.0 {
            return 1.0;
        }
        self.variance_ns2 / (self.mean_ns * self.mean_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_spread() {
        let mut estimate = Estimate::default();
        assert_eq!(estimate.mean_ns(), None);
        for value in [100, 300, 100, 300] {
            estimate.record(value);
        }
        assert_eq!((estimate.mean_ns(), estimate.deviation_ns()), (Some(200), 100));
        assert_eq!(estimate.variation_squared(), 0.25);
    }

    #[test]
    fn it_forgets() {
        let mut estimate = Estimate::of(1_000);
        for _ in 0..2_000 {
            estimate.record(5_000);
        }
        assert!(estimate.mean_ns().unwrap() > 4_900);
    }
}
