//! Approximate percentiles, without a lock. Each bucket is an eighth of an octave wide, so a
//! reported value is at most 9 % off.

use std::sync::atomic::{AtomicU32, Ordering};

/// Buckets per octave.
const STEPS: usize = 8;
/// The number of octaves, which begin at 1 us. The last bucket counts everything above 18 minutes.
const OCTAVES: usize = 30;

/// Counts by duration, in 960 bytes.
pub struct Latencies {
    counts: [AtomicU32; OCTAVES * STEPS],
}

impl Default for Latencies {
    fn default() -> Self {
        Self { counts: [const { AtomicU32::new(0) }; OCTAVES * STEPS] }
    }
}

impl Latencies {
    /// Counts one duration in nanoseconds. The call takes a few nanoseconds.
    #[inline]
    pub fn record(&self, ns: u64) {
        self.counts[bucket(ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// The duration in nanoseconds that a `share` (0 to 1) of all durations did not exceed. `None`
    /// if nothing was counted.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let counts: Vec<u64> =
            self.counts.iter().map(|count| u64::from(count.load(Ordering::Relaxed))).collect();
        let total: u64 = counts.iter().sum();
        let wanted = (total as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        counts
            .iter()
            .position(|count| {
                seen += count;
                total > 0 && seen >= wanted
            })
            .map(middle)
    }
}

fn bucket(ns: u64) -> usize {
    let us = (ns / 1_000).max(1);
    let octave = us.ilog2() as usize;
    // The three bits below the highest one select the eighth of the octave.
    let step = if octave >= 3 { us >> (octave - 3) } else { us << (3 - octave) } as usize & 7;
    (octave * STEPS + step).min(OCTAVES * STEPS - 1)
}

/// The middle of a bucket, in nanoseconds.
fn middle(bucket: usize) -> u64 {
    let octave = bucket / STEPS;
    let step = bucket % STEPS;
    let from = (1_000u64 << octave) + ((1_000u64 << octave) * step as u64) / 8;
    from + (1_000u64 << octave) / 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_recorded_is_read_back_within_a_tenth() {
        for ns in [8_000, 50_000, 123_456, 1_000_000, 9_999_999, 3_000_000_000] {
            let latencies = Latencies::default();
            latencies.record(ns);
            let read = latencies.quantile(0.5).expect("one was recorded");
            let error = (read as f64 - ns as f64).abs() / ns as f64;
            assert!(error < 0.1, "{ns} came back as {read}");
        }
        assert_eq!(Latencies::default().quantile(0.5), None);
    }

    #[test]
    fn quantiles_are_in_order() {
        let latencies = Latencies::default();
        for us in 1..=1_000 {
            latencies.record(us * 1_000);
        }
        let p50 = latencies.quantile(0.5).expect("recorded");
        let p99 = latencies.quantile(0.99).expect("recorded");
        assert!((450_000..=560_000).contains(&p50), "{p50}");
        assert!((900_000..=1_080_000).contains(&p99), "{p99}");
        latencies.record(u64::MAX);
        assert!(latencies.quantile(1.0).is_some());
    }
}
