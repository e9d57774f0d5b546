//! Mean and spread of a duration, learned from measurements.

/// The newest value has at least the weight 1/256. The estimate therefore follows a function whose
/// work changes, and forgets old values after about this many invocations.
const MEMORY: f64 = 256.0;

/// The moving mean and variance of a duration. The first values count equally (plain mean), later
/// ones with weight 1/256. The struct takes a few bytes and is updated once per invocation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Estimate {
    count: u32,
    mean_ns: f64,
    variance_ns2: f64,
}

impl Estimate {
    /// An estimate that starts from one assumed value.
    pub fn of(mean_ns: u64) -> Self {
        Self { count: 1, mean_ns: mean_ns as f64, variance_ns2: 0.0 }
    }

    /// The same estimate, but with at most the weight of `count_max` values. Use this for an
    /// estimate that was learned from something similar.
    pub fn believed(self, count_max: u32) -> Self {
        Self { count: self.count.min(count_max), ..self }
    }

    /// Takes one measured duration into account.
    pub fn record(&mut self, value_ns: u64) {
        self.count = self.count.saturating_add(1);
        let weight = 1.0 / f64::from(self.count).min(MEMORY);
        let difference = value_ns as f64 - self.mean_ns;
        self.mean_ns += weight * difference;
        self.variance_ns2 = (1.0 - weight) * (self.variance_ns2 + weight * difference * difference);
    }

    /// Takes `count` durations into account at once, given their sum and the sum of their squares.
    /// Use it where recording each duration would cost too much.
    pub fn record_many(&mut self, count: u32, sum_ns: u64, squares_ns2: u128) {
        if count == 0 {
            return;
        }
        let newest = f64::from(count);
        let mean_ns = sum_ns as f64 / newest;
        let variance_ns2 = (squares_ns2 as f64 / newest - mean_ns * mean_ns).max(0.0);
        self.count = self.count.saturating_add(count);
        let weight = (newest / f64::from(self.count).min(MEMORY)).min(1.0);
        let difference = mean_ns - self.mean_ns;
        self.mean_ns += weight * difference;
        self.variance_ns2 = (1.0 - weight) * (self.variance_ns2 + weight * difference * difference)
            + weight * variance_ns2;
    }

    /// The number of recorded values.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The mean in nanoseconds, `None` before the first value.
    pub fn mean_ns(&self) -> Option<u64> {
        (self.count > 0).then_some(self.mean_ns as u64)
    }

    /// The standard deviation in nanoseconds.
    pub fn deviation_ns(&self) -> u64 {
        self.variance_ns2.sqrt() as u64
    }

    /// The squared coefficient of variation: 0 for constant work, 1 for exponentially distributed
    /// work. With fewer than two values the result is 1.
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
    fn many_at_once_are_as_good_as_each() {
        let values = [100u64, 300, 100, 300, 200, 900];
        let mut each = Estimate::default();
        let mut many = Estimate::default();
        values.iter().for_each(|value| each.record(*value));
        for part in values.chunks(4) {
            let squares = part.iter().map(|value| u128::from(value * value)).sum();
            many.record_many(part.len() as u32, part.iter().sum(), squares);
        }
        assert_eq!(each.count(), many.count());
        assert!(each.mean_ns().unwrap().abs_diff(many.mean_ns().unwrap()) <= 1);
        assert!(each.deviation_ns().abs_diff(many.deviation_ns()) <= 1);
        many.record_many(10_000, 50_000_000, 10_000 * 5_000 * 5_000);
        assert_eq!((many.mean_ns(), many.deviation_ns()), (Some(5_000), 0), "it forgets");
    }

    #[test]
    fn what_was_inherited_gives_way() {
        let old = Estimate { count: 10_000, mean_ns: 1_000.0, variance_ns2: 100.0 };
        let mut new = old.believed(4);
        assert_eq!((new.mean_ns(), new.deviation_ns()), (Some(1_000), 10));
        for _ in 0..16 {
            new.record(5_000);
        }
        assert_eq!(new.mean_ns(), Some(4_200));
        assert_eq!(Estimate::default().believed(4).mean_ns(), None);
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
