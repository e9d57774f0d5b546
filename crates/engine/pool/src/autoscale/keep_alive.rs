//! How long an idle instance is worth its memory, learned from the arrival times of past calls.
//!
//! The module keeps a histogram of idle times per function. Shahrad et al. do the same in the
//! hybrid histogram policy ("Serverless in the Wild", USENIX ATC 2020), which keeps an instance
//! between two percentiles of the idle time. Here, costs and savings determine the window instead.
//! Keeping an instance through a period costs the part of the period before the next call arrives,
//! and saves one start if that call falls into the period. The rule chooses the periods with the
//! best balance. An instance of a rarely called function is stopped at once; an instance of a
//! periodically called function is stopped, and started again before the next call.

/// The length of the first bin. An instance is always kept through shorter idle times.
const BIN_FIRST_S: f64 = 1.0;
/// The number of bins per doubling of the idle time. A bin is 19 % wide, so that starting an
/// instance before a periodic call costs at most a fifth of the period.
const BINS_PER_OCTAVE: f64 = 4.0;
/// The number of bins: they cover 1 s to 4 h, the range of the published policy, and one bin holds
/// all shorter times.
const BINS: usize = 56;
/// When the counts reach this sum, they are halved, so that the function's recent behaviour counts
/// most.
const COUNT_MAX: u32 = 128;
/// The weight, in idle times, of the assumption that holds before anything was observed: idle times
/// between one second and a day are log-uniformly distributed, as they are for the rarely called
/// functions in the published traces.
const PRIOR_WEIGHT: f64 = 2.0;
/// The number of bins that the assumption has beyond the last bin: 4 h to a day.
const PRIOR_BINS_BEYOND: f64 = 10.0;

/// When an idle function should have an instance. Times are in seconds since the function became
/// idle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WarmPlan {
    /// Keep the instance until this time.
    pub keep_s: f64,
    /// Have an instance again during this period.
    pub again: Option<(f64, f64)>,
}

/// What the plan weighs. Costs are in seconds of an instance that waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IdleCosts {
    /// A cold start that a caller waits for.
    pub cold_s: f64,
    /// A start that no caller waits for: the instance is stopped and started again.
    pub start_s: f64,
    /// How long a start takes.
    pub start_takes_s: f64,
}

impl WarmPlan {
    /// Whether an instance is wanted `elapsed_s` after the last work ended.
    pub fn is_warm(&self, elapsed_s: f64) -> bool {
        elapsed_s < self.keep_s
            || self.again.is_some_and(|(from, to)| (from..to).contains(&elapsed_s))
    }

    /// When an instance is to be started ahead of a call, if that time has not come yet.
    pub fn starts_again_s(&self, elapsed_s: f64) -> Option<f64> {
        self.again.map(|(from, _)| from).filter(|from| *from > elapsed_s)
    }

    /// The next time at which [`WarmPlan::is_warm`] changes.
    pub fn next_change_s(&self, elapsed_s: f64) -> Option<f64> {
        let (from, to) = self.again.unwrap_or((0.0, 0.0));
        [self.keep_s, from, to].into_iter().filter(|at| *at > elapsed_s).reduce(f64::min)
    }
}

/// The idle times of one function, in 116 bytes.
#[derive(Debug, Clone)]
pub struct IdleTimes {
    bins: [u16; BINS],
    count: u32,
}

impl Default for IdleTimes {
    fn default() -> Self {
        Self { bins: [0; BINS], count: 0 }
    }
}

fn bin_of(idle_s: f64) -> usize {
    if idle_s < BIN_FIRST_S {
        return 0;
    }
    ((idle_s / BIN_FIRST_S).log2() * BINS_PER_OCTAVE) as usize + 1
}

/// Where a bin begins, in seconds.
fn bin_begin_s(bin: usize) -> f64 {
    if bin == 0 { 0.0 } else { BIN_FIRST_S * ((bin - 1) as f64 / BINS_PER_OCTAVE).exp2() }
}

impl IdleTimes {
    /// Adds an idle time, in seconds, that ended with a call.
    pub fn record(&mut self, idle_s: f64) {
        if let Some(bin) = self.bins.get_mut(bin_of(idle_s)) {
            *bin += 1;
        }
        self.count += 1;
        if self.count >= COUNT_MAX {
            for bin in &mut self.bins {
                *bin /= 2;
            }
            self.count /= 2;
        }
    }

    /// The number of idle times that are remembered.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The plan for the idle time that begins now. `keep_max_s` is the longest time for which an
    /// unused instance is held.
    pub fn plan(&self, costs: &IdleCosts, keep_max_s: f64) -> WarmPlan {
        let IdleCosts { cold_s, start_s, start_takes_s } = *costs;
        let prior = PRIOR_WEIGHT / (BINS as f64 - 1.0 + PRIOR_BINS_BEYOND);
        let total = f64::from(self.count) + PRIOR_WEIGHT;
        // For each bin, the balance of keeping an instance through the bin. `remaining` is the
        // weight of the idle times that last at least until the bin begins.
        let mut remaining = total;
        let mut balance = [0.0; BINS];
        let mut remaining_at = [0.0; BINS];
        for bin in 0..BINS {
            let calls = f64::from(self.bins[bin]) + if bin == 0 { 0.0 } else { prior };
            remaining_at[bin] = remaining;
            remaining -= calls;
            let width_s = bin_begin_s(bin + 1) - bin_begin_s(bin);
            balance[bin] = cold_s * calls - width_s * (remaining + calls / 2.0);
        }
        // Where the owner's limit ends the keeping, the instance can still be started again.
        let keepable = (0..BINS).take_while(|bin| bin_begin_s(*bin) < keep_max_s).count();
        let keep_bins = best_prefix(&balance[..keepable]);
        let keep_s = bin_begin_s(keep_bins).max(BIN_FIRST_S).min(keep_max_s);
        let again = best_stretch(&balance, &remaining_at, keep_bins, start_s).map(|(from, to)| {
            let to_s = bin_begin_s(to);
            // The last bin of the period has calls, so a limit cuts off the beginning.
            let from_s = bin_begin_s(from).max(to_s - keep_max_s);
            // The instance must be ready, not only starting, when the period begins.
            ((from_s - start_takes_s).max(keep_s), to_s)
        });
        WarmPlan { keep_s, again }
    }
}

/// The number of leading bins with the largest total balance.
fn best_prefix(balance: &[f64]) -> usize {
    let mut sum = 0.0;
    let mut best = 0.0;
    let mut bins = 0;
    for (bin, value) in balance.iter().enumerate() {
        sum += value;
        if sum > best {
            (best, bins) = (sum, bin + 1);
        }
    }
    bins
}

/// The later range of bins with the best balance, which includes the cost of the additional start.
fn best_stretch(
    balance: &[f64; BINS],
    remaining_at: &[f64; BINS],
    after: usize,
    start_s: f64,
) -> Option<(usize, usize)> {
    let mut best = (0.0, None);
    let mut sum = f64::NEG_INFINITY;
    let mut from = after;
    for bin in after + 1..BINS {
        let fresh = -start_s * remaining_at[bin];
        if sum < fresh {
            (sum, from) = (fresh, bin);
        }
        sum += balance[bin];
        if sum > best.0 {
            best = (sum, Some((from, bin + 1)));
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(cold_s: f64, start_takes_s: f64) -> IdleCosts {
        IdleCosts { cold_s, start_s: 1.0 + start_takes_s, start_takes_s }
    }

    fn after(idle_s: &[f64], times: usize) -> IdleTimes {
        let mut idle_times = IdleTimes::default();
        for _ in 0..times {
            for value in idle_s {
                idle_times.record(*value);
            }
        }
        idle_times
    }

    #[test]
    fn unknown_functions_are_kept_for_a_while() {
        let plan = IdleTimes::default().plan(&costs(300.0, 0.05), 300.0);
        assert!((10.0..200.0).contains(&plan.keep_s), "{plan:?}");
        assert_eq!(plan.again, None);
    }

    #[test]
    fn frequent_calls_keep_it_rare_calls_do_not() {
        let frequent = after(&[5.0, 12.0, 20.0, 31.0], 20).plan(&costs(100.0, 0.05), 300.0);
        assert!(frequent.keep_s >= 30.0, "{frequent:?}");
        let rare = after(&[3_000.0, 7_000.0, 11_000.0], 20).plan(&costs(100.0, 0.05), 300.0);
        assert!(rare.keep_s < 10.0, "{rare:?}");
    }

    #[test]
    fn a_timer_is_stopped_and_started_ahead() {
        let plan = after(&[600.0], 20).plan(&costs(200.0, 0.5), 300.0);
        assert!(plan.keep_s < 10.0, "{plan:?}");
        let (from, to) = plan.again.expect("the next call is known");
        assert!(from < 600.0 && 600.0 < to && to - from < 150.0, "{plan:?}");
        assert!(!plan.is_warm(60.0) && plan.is_warm(599.0) && plan.is_warm(0.5));
        assert_eq!(plan.next_change_s(60.0), Some(from));
        assert_eq!(plan.next_change_s(to), None);
    }

    #[test]
    fn a_limit_shorter_than_the_period_leaves_the_start_ahead() {
        // Memory is cheap enough to keep the instance for three seconds, but the owner allows one.
        let plan = after(&[2.99], 2).plan(&costs(30.0, 0.05), 1.0);
        assert_eq!(plan.keep_s, 1.0);
        let (from, to) = plan.again.expect("the next call is known");
        assert!(from < 2.9 && 3.0 < to && to - from <= 1.1, "{plan:?}");
    }

    #[test]
    fn nothing_is_kept_longer_than_allowed() {
        let plan = after(&[250.0, 280.0], 30).plan(&costs(10_000.0, 0.05), 60.0);
        assert!(plan.keep_s <= 60.0, "{plan:?}");
        let hasty = after(&[0.2], 30).plan(&costs(100.0, 0.05), 0.1);
        assert_eq!(hasty.keep_s, 0.1, "not even for a moment");
        if let Some((from, to)) = plan.again {
            assert!(to - from <= 60.1);
        }
    }

    #[test]
    fn it_forgets_what_is_long_past() {
        let mut idle_times = after(&[2.0], 1_000);
        for _ in 0..300 {
            idle_times.record(1_000.0);
        }
        assert!(idle_times.plan(&costs(20.0, 0.05), 300.0).keep_s < 5.0);
    }
}
