//! The recent values of a revision's counters, sampled rarely enough to be kept for thousands of
//! functions.

use std::collections::VecDeque;

use super::observation::{Observation, SECOND_NS};

#[derive(Debug, Clone, Copy)]
struct Sample {
    at_ns: u64,
    offered: u64,
    refused: u64,
    answered: u64,
    demand_ns: u64,
    cpu_ns: u64,
}

/// The changes of the counters between two looks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Growth {
    /// The length of the period in seconds.
    pub(super) seconds: f64,
    /// Invocations offered in the period.
    pub(super) offered: f64,
    /// Offered invocations that were not refused.
    pub(super) admitted: f64,
    /// Invocations answered in the period.
    pub(super) answered: f64,
    /// Mean number of running and waiting invocations.
    pub(super) concurrency: f64,
    /// Mean CPU use in cores.
    pub(super) cores: f64,
}

/// The number of arrivals in each period over which a rate is measured. The errors are about 1/6,
/// 1/10 and 1/18.
const RATE_ARRIVALS: [u64; 3] = [36, 108, 324];

/// Two rates count as different if they differ by more than this many standard deviations, because
/// chance does not explain such a difference. Looks are frequent, so a smaller number would report
/// a change every few seconds.
const DOUBT: f64 = 3.0;
/// The same number for a period that was chosen because it is the shortest. The number is larger,
/// because chance produces many short periods with a high rate.
const SURGE_DOUBT: f64 = 5.0;

/// Samples of the counters over a bounded time, at most one per step. The newest sample is always
/// exact.
#[derive(Debug)]
pub(super) struct History {
    step_ns: u64,
    span_ns: u64,
    samples: VecDeque<Sample>,
}

impl History {
    /// A history that keeps at most `span / step + 2` samples of 48 bytes.
    pub(super) fn new(step_ns: u64, span_ns: u64) -> Self {
        Self { step_ns, span_ns, samples: VecDeque::new() }
    }

    /// Adds the counters of one look.
    pub(super) fn push(&mut self, o: &Observation) {
        let sample = Sample {
            at_ns: o.now_ns,
            offered: o.offered_total,
            refused: o.refused_total,
            answered: o.answered_total,
            demand_ns: o.demand_ns_total,
            cpu_ns: o.cpu_ns_total,
        };
        let count = self.samples.len();
        if count >= 2
            && self.samples[count - 1].at_ns - self.samples[count - 2].at_ns < self.step_ns
        {
            self.samples[count - 1] = sample;
        } else {
            self.samples.push_back(sample);
        }
        // The newest sample before the span is kept, because the growth over the span begins there.
        let begin = o.now_ns.saturating_sub(self.span_ns);
        while self.samples.get(1).is_some_and(|sample| sample.at_ns <= begin) {
            self.samples.pop_front();
        }
    }

    /// The growth over the newest `window_ns`, or over the whole known time if that is shorter.
    /// `None` until there were two looks at different times.
    pub(super) fn over(&self, window_ns: u64) -> Option<Growth> {
        let newest = self.samples.back()?;
        let begin = newest.at_ns.saturating_sub(window_ns);
        let after = self.samples.partition_point(|sample| sample.at_ns <= begin);
        growth(&self.samples[after.saturating_sub(1)], newest)
    }

    /// The growth over the shortest period of at least `window_min_ns` in which `offered`
    /// invocations arrived, or over the whole known time if fewer arrived.
    pub(super) fn over_arrivals(&self, offered: u64, window_min_ns: u64) -> Option<Growth> {
        let newest = self.samples.back()?;
        let enough = |sample: &Sample| {
            newest.at_ns - sample.at_ns >= window_min_ns
                && newest.offered.wrapping_sub(sample.offered) >= offered
        };
        let after = self.samples.partition_point(enough);
        growth(&self.samples[after.saturating_sub(1)], newest)
    }

    /// Offered invocations per second, measured over the longest of three periods whose rate does
    /// not contradict that of a shorter one. This is a long period if the load is steady, because a
    /// long period measures it well, and a short period after a change. Two rates contradict each
    /// other if their difference is larger than chance (a Poisson distribution) explains.
    pub(super) fn offered_rate(&self, window_min_ns: u64) -> Option<f64> {
        let window_min_s = window_min_ns as f64 / SECOND_NS;
        let of = |growth: Growth| growth.offered / growth.seconds.max(window_min_s);
        let mut believed = self.over_arrivals(RATE_ARRIVALS[0], window_min_ns)?;
        for arrivals in &RATE_ARRIVALS[1..] {
            let Some(longer) = self.over_arrivals(*arrivals, window_min_ns) else { break };
            let expected = of(longer) * believed.seconds;
            if (believed.offered - expected).abs() > DOUBT * expected.max(1.0).sqrt() {
                break;
            }
            believed = longer;
        }
        Some(of(believed))
    }

    /// The rate of offered invocations per second over the shortest period that lasts at least
    /// `window_min_ns` and contains `arrivals` arrivals. `None` unless this rate is too high to be
    /// random variation around `rate`.
    pub(super) fn surge(&self, arrivals: u64, window_min_ns: u64, rate: f64) -> Option<f64> {
        let growth = self.over_arrivals(arrivals, window_min_ns)?;
        let expected = rate * growth.seconds;
        let surges = growth.offered - expected > SURGE_DOUBT * expected.max(1.0).sqrt();
        surges.then(|| growth.offered / growth.seconds)
    }
}

fn growth(from: &Sample, to: &Sample) -> Option<Growth> {
    let elapsed_ns = to.at_ns - from.at_ns;
    let offered = to.offered.wrapping_sub(from.offered) as f64;
    (elapsed_ns > 0).then(|| Growth {
        seconds: elapsed_ns as f64 / SECOND_NS,
        offered,
        admitted: offered - to.refused.wrapping_sub(from.refused) as f64,
        answered: to.answered.wrapping_sub(from.answered) as f64,
        concurrency: to.demand_ns.wrapping_sub(from.demand_ns) as f64 / elapsed_ns as f64,
        cores: to.cpu_ns.wrapping_sub(from.cpu_ns) as f64 / elapsed_ns as f64,
    })
}

/// The largest value in the newest window of time.
#[derive(Debug, Default)]
pub(super) struct WindowMax {
    /// Pairs of time and value. The times rise and the values fall.
    entries: VecDeque<(u64, u32)>,
}

impl WindowMax {
    /// Adds a value and forgets values older than `window_ns`.
    pub(super) fn push(&mut self, now_ns: u64, value: u32, window_ns: u64) {
        self.forget(now_ns, window_ns);
        while self.entries.back().is_some_and(|(_, last)| *last <= value) {
            self.entries.pop_back();
        }
        self.entries.push_back((now_ns, value));
    }

    /// Forgets values older than `window_ns`.
    pub(super) fn forget(&mut self, now_ns: u64, window_ns: u64) {
        while self.entries.front().is_some_and(|(at, _)| at.saturating_add(window_ns) <= now_ns) {
            self.entries.pop_front();
        }
    }

    /// The largest value, 0 if there is none.
    pub(super) fn max(&self) -> u32 {
        self.entries.front().map_or(0, |(_, value)| *value)
    }

    /// The time at which the largest value was seen.
    pub(super) fn max_at_ns(&self) -> Option<u64> {
        self.entries.front().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn look(at_ns: u64, offered_total: u64) -> Observation {
        Observation {
            now_ns: at_ns,
            offered_total,
            demand_ns_total: offered_total * S / 2,
            ..Default::default()
        }
    }

    #[test]
    fn windows_over_counters() {
        let mut history = History::new(S, 10 * S);
        assert_eq!(history.over(S), None);
        for tick in 0..=100 {
            history.push(&look(tick * S / 4, tick));
        }
        let growth = history.over(4 * S).unwrap();
        assert_eq!((growth.seconds, growth.offered, growth.concurrency), (4.0, 16.0, 2.0));
        assert!(history.samples.len() <= 13, "{}", history.samples.len());
        let growth = history.over_arrivals(8, S).unwrap();
        assert_eq!(growth.seconds, 2.0, "eight arrivals took two seconds");
    }

    #[test]
    fn maximum_of_a_window() {
        let mut window = WindowMax::default();
        for (at, value, expected) in [(0, 3, 3), (1, 5, 5), (2, 4, 5), (9, 1, 5), (11, 1, 4)] {
            window.push(at, value, 10);
            assert_eq!(window.max(), expected, "at {at}");
        }
    }
}
