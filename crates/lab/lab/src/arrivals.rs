//! The arrival times of invocations.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::distribution::{Random, exponential, uniform};

const SECOND_NS: f64 = 1e9;

/// The demand for one function. Rates are in invocations per second, and times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// A Poisson process: many independent callers.
    Poisson { rate: f64 },
    /// Calls from a timer.
    Regular {
        /// The time between two calls.
        period_s: f64,
        /// The time of the first call.
        first_s: f64,
    },
    /// A Poisson process whose rate follows straight lines through these points of (time, rate).
    /// After the last point, the rate stays constant.
    Profile {
        /// The points in order of time, beginning at time 0.
        points: Vec<(f64, f64)>,
    },
    /// A Poisson process whose rate follows a sine that begins at its lowest value.
    Diurnal {
        mean_rate: f64,
        /// The amplitude as a share of the mean, from 0 to 1.
        swing: f64,
        /// The length of one day.
        period_s: f64,
    },
    /// Two Poisson processes that alternate after exponentially distributed times (a
    /// Markov-modulated process).
    Modulated {
        /// The rate and the mean length of the quiet phase.
        quiet: (f64, f64),
        /// The rate and the mean length of the busy phase.
        busy: (f64, f64),
    },
    /// A closed load: each caller sends its next call only after the previous answer, and not
    /// before its pause is over.
    Clients {
        /// The steps, each with its length in seconds and its number of callers. The load ends
        /// after the last step.
        steps: Vec<(f64, u32)>,
        /// The maximum number of calls per second of each caller; 0 means that callers do not
        /// pause.
        rate: f64,
    },
    /// Calls at recorded times.
    Recorded {
        /// The time and the run time of each call in nanoseconds, in order of time. For a run time
        /// of 0, a value is drawn from the function's distribution.
        calls: Arc<Vec<(u64, u64)>>,
    },
}

/// A call that does not wait for earlier answers (an open process).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Call {
    pub(crate) at_ns: u64,
    /// The run time in nanoseconds; 0 if the trace contains none.
    pub(crate) service_ns: u64,
}

/// Iterates over the calls of an open process.
#[derive(Debug)]
pub(crate) struct Source {
    arrivals: Arrivals,
    at_s: f64,
    next: usize,
    busy: bool,
    phase_end_s: f64,
}

impl Source {
    pub(crate) fn new(arrivals: Arrivals) -> Self {
        Self { arrivals, at_s: 0.0, next: 0, busy: true, phase_end_s: 0.0 }
    }

    /// The next call; `None` after the last call. A closed load always returns `None`, because its
    /// callers are events.
    pub(crate) fn next(&mut self, random: &mut Random) -> Option<Call> {
        let at_s = match &self.arrivals {
            Arrivals::Clients { .. } => return None,
            Arrivals::Recorded { calls } => {
                let (at_ns, service_ns) = *calls.get(self.next)?;
                self.next += 1;
                return Some(Call { at_ns, service_ns });
            }
            Arrivals::Poisson { rate } => self.at_s + exponential(random, *rate),
            Arrivals::Regular { period_s, first_s } => {
                self.next += 1;
                first_s + period_s * (self.next - 1) as f64
            }
            Arrivals::Profile { points } => {
                let max = points.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
                let last = points.last().copied().unwrap_or((0.0, 0.0));
                if self.at_s >= last.0 && last.1 <= 0.0 {
                    return None;
                }
                thin(random, self.at_s, max, last.0, |at_s| rate_at(points, at_s))?
            }
            Arrivals::Diurnal { mean_rate, swing, period_s } => {
                let max = mean_rate * (1.0 + swing);
                thin(random, self.at_s, max, f64::INFINITY, |at_s| {
                    let turn = std::f64::consts::TAU * at_s / period_s;
                    mean_rate * (1.0 - swing * turn.cos())
                })?
            }
            Arrivals::Modulated { quiet, busy } => loop {
                if self.phase_end_s <= self.at_s {
                    self.busy = !self.busy;
                    let mean_s = if self.busy { busy.1 } else { quiet.1 };
                    self.phase_end_s = self.at_s + exponential(random, 1.0 / mean_s);
                }
                let rate = if self.busy { busy.0 } else { quiet.0 };
                let at_s = self.at_s + exponential(random, rate);
                if at_s < self.phase_end_s {
                    break at_s;
                }
                self.at_s = self.phase_end_s;
            },
        };
        self.at_s = at_s;
        at_s.is_finite().then_some(Call { at_ns: (at_s * SECOND_NS) as u64, service_ns: 0 })
    }
}

/// The next point of a Poisson process with a changing rate. `None` if no point is left before
/// `end_s` and the rate is 0 from then on. Points are drawn at the highest rate, and each is kept
/// with a probability that is proportional to the rate at its time (Lewis and Shedler's thinning).
fn thin(
    random: &mut Random,
    from_s: f64,
    rate_max: f64,
    end_s: f64,
    rate: impl Fn(f64) -> f64,
) -> Option<f64> {
    let mut at_s = from_s;
    loop {
        at_s += exponential(random, rate_max);
        if at_s > end_s && rate(at_s) <= 0.0 {
            return None;
        }
        if uniform(random) * rate_max < rate(at_s) {
            return Some(at_s);
        }
    }
}

fn rate_at(points: &[(f64, f64)], at_s: f64) -> f64 {
    let after = points.partition_point(|(time, _)| *time <= at_s);
    match (after.checked_sub(1).map(|at| points[at]), points.get(after)) {
        (Some((t0, r0)), Some((t1, r1))) => r0 + (r1 - r0) * (at_s - t0) / (t1 - t0),
        (Some((_, rate)), None) => rate,
        (None, _) => points.first().map_or(0.0, |(_, rate)| *rate),
    }
}

/// The number of callers of a closed load at a time; `None` after the end of the load.
pub(crate) fn clients_at(steps: &[(f64, u32)], at_ns: u64) -> Option<u32> {
    let mut end_s = 0.0;
    for (length_s, clients) in steps {
        end_s += length_s;
        if (at_ns as f64) < end_s * SECOND_NS {
            return Some(*clients);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distribution::stream;

    fn calls(arrivals: Arrivals, until_s: f64) -> Vec<f64> {
        let mut source = Source::new(arrivals);
        let mut random = stream(5, 0);
        std::iter::from_fn(|| source.next(&mut random))
            .map(|call| call.at_ns as f64 / SECOND_NS)
            .take_while(|at_s| *at_s < until_s)
            .collect()
    }

    #[test]
    fn rates_are_met() {
        let cases = [
            (Arrivals::Poisson { rate: 10.0 }, 10_000.0),
            (Arrivals::Regular { period_s: 0.5, first_s: 0.25 }, 2_000.0),
            (
                Arrivals::Profile { points: vec![(0.0, 0.0), (500.0, 20.0), (1_000.0, 0.0)] },
                10_000.0,
            ),
            (Arrivals::Diurnal { mean_rate: 10.0, swing: 0.9, period_s: 100.0 }, 10_000.0),
            (Arrivals::Modulated { quiet: (0.0, 10.0), busy: (20.0, 10.0) }, 10_000.0),
        ];
        for (arrivals, expected) in cases {
            let times = calls(arrivals.clone(), 1_000.0);
            let difference = (times.len() as f64 - expected).abs();
            assert!(difference < expected * 0.15, "{arrivals:?}: {}", times.len());
            assert!(times.is_sorted());
        }
    }

    #[test]
    fn a_profile_follows_its_line() {
        let points = vec![(0.0, 2.0), (10.0, 4.0), (20.0, 0.0)];
        for (at_s, rate) in [(0.0, 2.0), (5.0, 3.0), (15.0, 2.0), (30.0, 0.0)] {
            assert_eq!(rate_at(&points, at_s), rate, "at {at_s}");
        }
        assert_eq!(
            calls(Arrivals::Profile { points }, 1e9).last().map(|at| *at < 20.0),
            Some(true)
        );
    }

    #[test]
    fn callers_come_in_steps() {
        let steps = [(10.0, 2), (10.0, 5)];
        for (at_s, clients) in [(0.0, Some(2)), (9.9, Some(2)), (10.0, Some(5)), (20.0, None)] {
            assert_eq!(clients_at(&steps, (at_s * SECOND_NS) as u64), clients);
        }
    }
}
