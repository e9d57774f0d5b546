//! Distributions of durations.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution as _, Exp, LogNormal};
use serde::{Deserialize, Serialize};

/// The random generator of the lab. It is small and fast, and gives the same numbers on every
/// machine (rust-random/rand).
pub(crate) type Random = Xoshiro256PlusPlus;

/// An independent stream of random numbers for one part of a scenario. If a policy draws more
/// numbers from one stream, the numbers of the other streams do not change.
pub(crate) fn stream(seed: u64, part: u64) -> Random {
    Random::seed_from_u64(seed ^ part.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// A distribution of durations, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Always the same duration.
    Constant { ms: f64 },
    /// Exponentially distributed, so the coefficient of variation is 1.
    Exponential { mean_ms: f64 },
    /// Lognormally distributed, as run times and start times usually are.
    LogNormal {
        mean_ms: f64,
        /// The standard deviation divided by the mean.
        variation: f64,
    },
}

impl Distribution {
    pub fn mean_ms(&self) -> f64 {
        match *self {
            Distribution::Constant { ms } => ms,
            Distribution::Exponential { mean_ms } => mean_ms,
            Distribution::LogNormal { mean_ms, .. } => mean_ms,
        }
    }

    /// Draws one value in nanoseconds, at least 1.
    pub(crate) fn sample_ns(&self, random: &mut Random) -> u64 {
        let ms = match *self {
            Distribution::Constant { ms } => ms,
            Distribution::Exponential { mean_ms } => exponential(random, 1.0 / mean_ms),
            Distribution::LogNormal { mean_ms, variation } => {
                let sigma2 = (1.0 + variation * variation).ln();
                let mu = mean_ms.ln() - sigma2 / 2.0;
                LogNormal::new(mu, sigma2.sqrt()).map_or(mean_ms, |law| law.sample(random))
            }
        };
        ((ms * 1e6) as u64).max(1)
    }
}

/// Draws an exponentially distributed value with the given rate; infinite for a rate of 0.
pub(crate) fn exponential(random: &mut Random, rate: f64) -> f64 {
    Exp::new(rate).map_or(f64::INFINITY, |law| law.sample(random))
}

/// Draws a lognormally distributed value from the mean and deviation of its logarithm.
pub(crate) fn log_normal(random: &mut Random, mu: f64, sigma: f64) -> f64 {
    LogNormal::new(mu, sigma).map_or(0.0, |law| law.sample(random))
}

/// Draws a uniformly distributed value in 0..1.
pub(crate) fn uniform(random: &mut Random) -> f64 {
    random.random::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_spreads() {
        let cases = [
            (Distribution::Constant { ms: 20.0 }, 0.0),
            (Distribution::Exponential { mean_ms: 20.0 }, 1.0),
            (Distribution::LogNormal { mean_ms: 20.0, variation: 0.5 }, 0.5),
        ];
        for (law, variation) in cases {
            let mut random = stream(1, 0);
            let values: Vec<f64> =
                (0..50_000).map(|_| law.sample_ns(&mut random) as f64 / 1e6).collect();
            let mean = values.iter().sum::<f64>() / 50_000.0;
            let square = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 50_000.0;
            assert!((mean - law.mean_ms()).abs() < 0.5, "{law:?}: mean {mean}");
            assert!((square.sqrt() / mean - variation).abs() < 0.05, "{law:?}");
        }
    }

    #[test]
    fn equal_seeds_equal_numbers() {
        assert_eq!(uniform(&mut stream(7, 3)), uniform(&mut stream(7, 3)));
        assert_ne!(uniform(&mut stream(7, 3)), uniform(&mut stream(7, 4)));
    }
}
