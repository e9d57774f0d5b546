//! A Prometheus histogram of durations that counts without a lock. The library's own histogram
//! takes a lock and compares floating-point bounds, which is noticeable at a hundred thousand
//! invocations per second.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// The upper bounds in microseconds. They begin at 50 us, because an invocation at the edge often
/// takes far less than the 5 ms at which the commonly recommended bounds begin.
pub const BOUNDS_US: [u64; 14] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 250_000, 1_000_000, 2_500_000,
    10_000_000,
];

/// Counts of durations by bucket. Cloning is cheap, and all clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct DurationHistogram(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// There is one bucket more than bounds. The last bucket counts everything above the last
    /// bound.
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
}

impl DurationHistogram {
    /// Counts one duration in nanoseconds. The call takes a few nanoseconds.
    #[inline]
    pub fn observe_ns(&self, ns: u64) {
        let us = ns.div_ceil(1_000);
        let bucket = BOUNDS_US.iter().filter(|bound| us > **bound).count();
        self.0.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.0.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// The count of each bucket, and the sum of all durations in nanoseconds.
    pub fn counts_and_sum_ns(&self) -> (Vec<u64>, u64) {
        let counts = self.0.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        (counts, self.0.sum_ns.load(Ordering::Relaxed))
    }

    /// The number of durations that were counted, and their sum in nanoseconds.
    pub fn count_and_sum_ns(&self) -> (u64, u64) {
        let (counts, sum_ns) = self.counts_and_sum_ns();
        (counts.iter().sum(), sum_ns)
    }
}

impl TypedMetric for DurationHistogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for DurationHistogram {
    fn encode(&self, mut encoder: MetricEncoder) -> Result<(), fmt::Error> {
        let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
        let counts = self.0.buckets.iter().map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        // The count is the sum of the values that were just read and not a separate counter,
        // because `+Inf` and `count` must agree.
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum_s = self.0.sum_ns.load(Ordering::Relaxed) as f64 / 1e9;
        encoder.encode_histogram::<NoLabelSet>(sum_s, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn durations_fall_below_their_bounds() {
        let histogram = DurationHistogram::default();
        for ns in [0, 50_000, 50_001, 1_000_000, 10_000_000_000, u64::from(u32::MAX) * 1_000_000] {
            histogram.observe_ns(ns);
        }
        let (counts, sum_ns) = histogram.counts_and_sum_ns();
        assert_eq!(counts, [2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(sum_ns, 10_001_100_001 + u64::from(u32::MAX) * 1_000_000);
        let mut registry = Registry::default();
        registry.register("d", "durations", histogram);
        let mut text = String::new();
        encode(&mut text, &registry).expect("a String takes everything");
        for line in [
            "d_bucket{le=\"0.00005\"} 2",
            "d_bucket{le=\"0.0001\"} 3",
            "d_bucket{le=\"0.001\"} 4",
            "d_bucket{le=\"10.0\"} 5",
            "d_bucket{le=\"+Inf\"} 6",
            "d_count 6",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
    }
}
