//! Rules from publications that the node does not offer, for comparison.
//!
//! All three start an instance for each call that waits, as the platforms of the publications do.
//! They differ in how long they keep an instance, and whether they start one ahead of a call.

use mote_pool::autoscale::{ForeignRule, Observation, Reason, Wish};
use rand::{RngExt, SeedableRng};

use crate::distribution::Random;

const SECOND_NS: f64 = 1e9;
const MINUTE_S: f64 = 60.0;

/// The rules by name.
pub const STUDIED: [&str; 3] = ["keep-10-min", "hybrid-histogram", "q-learning"];

/// A new rule for one function; `None` for an unknown name.
pub fn studied(name: &str, seed: u64) -> Option<Box<dyn ForeignRule>> {
    Some(match name {
        "keep-10-min" => Box::new(KeepAlive::new(10.0 * MINUTE_S)),
        "hybrid-histogram" => Box::new(HybridHistogram::new()),
        "q-learning" => Box::new(QLearning::new(seed)),
        _ => return None,
    })
}

/// How many instances were in use, and when each number was last reached.
///
/// A pool that gives each call to the instance that was used last, and stops the one that has been
/// idle longest, keeps its `n`th instance as long as there were `n` calls at once a short time ago.
#[derive(Debug, Default)]
struct InUse {
    /// The time at which there were last at least `index + 1` calls at once.
    last_ns: Vec<u64>,
}

impl InUse {
    fn note(&mut self, o: &Observation) -> u32 {
        let inside = (o.in_flight + o.queued).div_ceil(o.concurrency.max(1));
        let count = inside as usize;
        if self.last_ns.len() < count {
            self.last_ns.resize(count, o.now_ns);
        }
        for at_ns in &mut self.last_ns[..count] {
            *at_ns = o.now_ns;
        }
        inside
    }

    /// How many instances are kept if each is kept for `keep_ns`, and when the next one is stopped.
    fn kept(&self, keep_ns: u64, now_ns: u64) -> (u32, Option<u64>) {
        let until = |at_ns: &u64| at_ns.saturating_add(keep_ns);
        let kept = self.last_ns.iter().map(until).filter(|until_ns| *until_ns > now_ns);
        (kept.clone().count() as u32, kept.min())
    }
}

/// Keeps each instance for a fixed time after its last call, as AWS Lambda and OpenWhisk do (ten
/// minutes in OpenWhisk; Shahrad et al., section 2).
#[derive(Debug)]
struct KeepAlive {
    keep_ns: u64,
    in_use: InUse,
}

impl KeepAlive {
    fn new(keep_s: f64) -> Self {
        Self { keep_ns: (keep_s * SECOND_NS) as u64, in_use: InUse::default() }
    }
}

impl ForeignRule for KeepAlive {
    fn decide(&mut self, o: &Observation) -> Wish {
        let inside = self.in_use.note(o);
        let (kept, look_ns) = self.in_use.kept(self.keep_ns, o.now_ns);
        Wish { desired: inside.max(kept), reason: Reason::RecentPeak, look_ns }
    }
}

/// The hybrid histogram policy: Shahrad et al., "Serverless in the Wild", USENIX ATC 2020, section 4.
///
/// A histogram of idle times, in bins of a minute up to four hours, gives two times: the instance is
/// stopped after each call, started again at the 5th percentile, and kept until the 99th, each with
/// a margin of 10 %. If the histogram says too little (its bins have a coefficient of variation
/// below 2), the instance is kept for four hours. If most idle times are longer than the histogram,
/// the publication predicts the next one with an ARIMA model; here, the median of the last eight
/// idle times stands for it, with the publication's margin of 15 %.
#[derive(Debug)]
struct HybridHistogram {
    bins: Vec<u32>,
    count: u32,
    beyond: u32,
    /// The newest idle times in seconds.
    recent_s: Vec<f64>,
    idle_since_ns: Option<u64>,
    in_use: InUse,
}

/// When an idle function has an instance: from the first time to the second, in seconds since its
/// last call ended.
type Window = (f64, f64);

impl HybridHistogram {
    const BINS: usize = 240;
    const HEAD: f64 = 0.05;
    const TAIL: f64 = 0.99;
    const MARGIN: f64 = 0.1;
    const MARGIN_PREDICTED: f64 = 0.15;
    const VARIATION_MIN: f64 = 2.0;
    const RECENT: usize = 8;

    fn new() -> Self {
        Self {
            bins: vec![0; Self::BINS],
            count: 0,
            beyond: 0,
            recent_s: Vec::new(),
            idle_since_ns: None,
            in_use: InUse::default(),
        }
    }

    fn record(&mut self, idle_s: f64) {
        match self.bins.get_mut((idle_s / MINUTE_S) as usize) {
            Some(bin) => *bin += 1,
            None => self.beyond += 1,
        }
        self.count += 1;
        if self.recent_s.len() == Self::RECENT {
            self.recent_s.remove(0);
        }
        self.recent_s.push(idle_s);
    }

    fn window(&self) -> Window {
        let range_s = Self::BINS as f64 * MINUTE_S;
        if self.count > 1 && self.beyond * 2 > self.count {
            let mut sorted = self.recent_s.clone();
            sorted.sort_unstable_by(f64::total_cmp);
            let expected_s = sorted[sorted.len() / 2];
            let margin_s = expected_s * Self::MARGIN_PREDICTED;
            return (expected_s - margin_s, expected_s + margin_s);
        }
        if self.variation() < Self::VARIATION_MIN {
            return (0.0, range_s);
        }
        let from_s = self.percentile(Self::HEAD) as f64 * MINUTE_S * (1.0 - Self::MARGIN);
        let to_s = (self.percentile(Self::TAIL) + 1) as f64 * MINUTE_S * (1.0 + Self::MARGIN);
        (from_s, to_s)
    }

    /// The coefficient of variation of the counts in the bins.
    fn variation(&self) -> f64 {
        let bins = Self::BINS as f64;
        let mean = f64::from(self.count - self.beyond) / bins;
        if mean == 0.0 {
            return 0.0;
        }
        let square = |count: &u32| (f64::from(*count) - mean).powi(2);
        (self.bins.iter().map(square).sum::<f64>() / bins).sqrt() / mean
    }

    /// The bin of a percentile.
    fn percentile(&self, share: f64) -> usize {
        let wanted = share * f64::from(self.count - self.beyond);
        let mut sum = 0.0;
        let reaches = |count: &u32| {
            sum += f64::from(*count);
            sum >= wanted && sum > 0.0
        };
        self.bins.iter().position(reaches).unwrap_or(Self::BINS - 1)
    }
}

impl ForeignRule for HybridHistogram {
    fn decide(&mut self, o: &Observation) -> Wish {
        let inside = self.in_use.note(o);
        let (from_s, to_s) = self.window();
        if !o.is_idle() {
            if let Some(since_ns) = self.idle_since_ns.take() {
                self.record((o.now_ns - since_ns) as f64 / SECOND_NS);
            }
            // Further instances are kept only where the policy keeps the first one, too.
            let keep_ns = if from_s == 0.0 { (to_s * SECOND_NS) as u64 } else { 0 };
            let (kept, look_ns) = self.in_use.kept(keep_ns, o.now_ns);
            let desired = inside.max(kept);
            return Wish { desired, reason: Reason::RecentPeak, look_ns };
        }
        let since_ns = *self.idle_since_ns.get_or_insert(o.now_ns);
        let at_ns = |at_s: f64| since_ns + (at_s * SECOND_NS) as u64;
        let (from_ns, to_ns) = (at_ns(from_s), at_ns(to_s));
        if o.now_ns < from_ns {
            return Wish { desired: 0, reason: Reason::Idle, look_ns: Some(from_ns) };
        }
        if o.now_ns >= to_ns {
            return Wish { desired: 0, reason: Reason::Idle, look_ns: None };
        }
        if from_s > 0.0 {
            return Wish { desired: 1, reason: Reason::Predicted, look_ns: Some(to_ns) };
        }
        let (kept, look_ns) = self.in_use.kept((to_s * SECOND_NS) as u64, o.now_ns);
        let look_ns = Some(look_ns.map_or(to_ns, |at_ns| at_ns.min(to_ns)));
        Wish { desired: kept, reason: Reason::RecentPeak, look_ns }
    }
}

/// A learned rule: tabular Q-learning after Agarwal, Rodriguez and Buyya, "On-demand Cold Start
/// Frequency Reduction with Off-Policy Reinforcement Learning in Serverless Computing", 2023.
///
/// As there, the agent observes the use of the instances, their number, and the share of late calls,
/// and learns for each function how many instances to add or to remove. It differs in three ways, all
/// to its advantage: calls that wait get an instance at once; the reward is the cost by which the
/// comparison is judged (starts, idle memory and waits); and the agent keeps learning during the
/// comparison.
#[derive(Debug)]
struct QLearning {
    /// The expected reward of each action in each state.
    values: Vec<[f64; QLearning::ACTIONS.len()]>,
    random: Random,
    decisions: u32,
    /// The state and the action of the last decision.
    last: Option<(usize, usize)>,
    desired: u32,
    next_ns: u64,
    before: Option<Observation>,
    /// Instances that were started and calls that waited since the last decision.
    starts: u32,
    late: u32,
    calls: u64,
    live: u32,
}

impl QLearning {
    const ACTIONS: [i32; 5] = [-2, -1, 0, 1, 2];
    /// States: 5 levels of use, 0 to 8 instances, and whether calls were late.
    const USE_LEVELS: usize = 5;
    const INSTANCES_MAX: u32 = 8;
    /// The time between two decisions.
    const PERIOD_NS: u64 = 15_000_000_000;
    const LEARNING_RATE: f64 = 0.2;
    const DISCOUNT: f64 = 0.9;
    /// The share of random actions: at least this, and one in `1 + decisions / 20` at first.
    const EXPLORES_MIN: f64 = 0.02;
    /// The price of a late call, in seconds of an instance that waits.
    const LATE_PRICE: f64 = 5.0;

    fn new(seed: u64) -> Self {
        let states = Self::USE_LEVELS * (Self::INSTANCES_MAX as usize + 1) * 2;
        Self {
            values: vec![[0.0; Self::ACTIONS.len()]; states],
            random: Random::seed_from_u64(seed),
            decisions: 0,
            last: None,
            desired: 0,
            next_ns: 0,
            before: None,
            starts: 0,
            late: 0,
            calls: 0,
            live: 0,
        }
    }

    fn learn_and_choose(&mut self, o: &Observation) {
        let before = self.before.replace(*o);
        let seconds = before.map_or(0.0, |it| (o.now_ns - it.now_ns) as f64 / SECOND_NS);
        let growth = before.map_or(0, |it| o.demand_ns_total.wrapping_sub(it.demand_ns_total));
        let busy = growth as f64 / SECOND_NS / seconds.max(1e-9);
        let live = o.live();
        let used = if live == 0 { 0.0 } else { (busy / f64::from(live)).min(0.999) };
        let level = (used * Self::USE_LEVELS as f64) as usize;
        let count = live.min(Self::INSTANCES_MAX) as usize;
        let state =
            (level * (Self::INSTANCES_MAX as usize + 1) + count) * 2 + usize::from(self.late > 0);
        let best = |values: &[f64; Self::ACTIONS.len()]| {
            let better = |a: &(usize, &f64), b: &(usize, &f64)| a.1.total_cmp(b.1);
            values.iter().enumerate().max_by(better).map_or((2, 0.0), |(at, value)| (at, *value))
        };
        if let Some((last_state, action)) = self.last {
            let idle_s = (f64::from(live) - busy).max(0.0) * seconds;
            let start_s = o.start_cpu.mean_ns().unwrap_or(0) as f64 / SECOND_NS
                * (o.memory_per_core_bytes as f64 / o.memory_limit_bytes.max(1) as f64);
            let reward = -(idle_s
                + f64::from(self.starts) * start_s
                + f64::from(self.late) * Self::LATE_PRICE);
            let target = reward + Self::DISCOUNT * best(&self.values[state]).1;
            let value = &mut self.values[last_state][action];
            *value += Self::LEARNING_RATE * (target - *value);
        }
        self.decisions += 1;
        let explores = (1.0 / (1.0 + f64::from(self.decisions) / 20.0)).max(Self::EXPLORES_MIN);
        let action = if self.random.random::<f64>() < explores {
            (self.random.random::<f64>() * Self::ACTIONS.len() as f64) as usize
        } else {
            best(&self.values[state]).0
        };
        self.last = Some((state, action));
        self.desired = live.saturating_add_signed(Self::ACTIONS[action]).min(Self::INSTANCES_MAX);
        (self.starts, self.late) = (0, 0);
    }
}

impl ForeignRule for QLearning {
    fn decide(&mut self, o: &Observation) -> Wish {
        self.starts += o.live().saturating_sub(self.live);
        self.live = o.live();
        let arrived =
            o.offered_total.wrapping_sub(std::mem::replace(&mut self.calls, o.offered_total));
        self.late += o.queued.min(arrived as u32);
        if o.now_ns >= self.next_ns {
            self.next_ns = o.now_ns + Self::PERIOD_NS;
            self.learn_and_choose(o);
        }
        let inside = (o.in_flight + o.queued).div_ceil(o.concurrency.max(1));
        let desired = self.desired.max(inside);
        // A function that is never called again needs no agent.
        let rests = o.is_idle() && desired == 0 && o.live() == 0;
        let look_ns = (!rests).then_some(self.next_ns);
        Wish { desired, reason: Reason::Predicted, look_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(now_s: f64, in_flight: u32) -> Observation {
        let now_ns = (now_s * SECOND_NS) as u64;
        Observation {
            now_ns,
            in_flight,
            concurrency: 1,
            ready: in_flight,
            ..Observation::default()
        }
    }

    #[test]
    fn each_instance_is_kept_for_ten_minutes() {
        let mut rule = KeepAlive::new(600.0);
        let mut desired = |now_s: f64, in_flight: u32| rule.decide(&at(now_s, in_flight)).desired;
        assert_eq!(desired(0.0, 3), 3);
        assert_eq!(desired(100.0, 1), 3);
        assert_eq!(desired(599.0, 0), 3);
        assert_eq!(desired(601.0, 0), 1, "the other two were last used at the beginning");
        assert_eq!(desired(701.0, 0), 0);
    }

    #[test]
    fn the_histogram_starts_an_instance_before_a_regular_call() {
        let mut rule = HybridHistogram::new();
        for call in 0..20 {
            rule.decide(&at(f64::from(call) * 1_800.0, 1));
            rule.decide(&at(f64::from(call) * 1_800.0 + 1.0, 0));
        }
        // Idle times of 1,799 s lie in the bin of minute 29, whose margin begins at minute 26.1.
        let begin_s = 19.0 * 1_800.0 + 1.0;
        let wish = rule.decide(&at(begin_s + 100.0, 0));
        assert_eq!((wish.desired, wish.reason), (0, Reason::Idle));
        let ahead_s = wish.look_ns.map(|at_ns| at_ns as f64 / SECOND_NS - begin_s);
        assert!(ahead_s.is_some_and(|ahead_s| (ahead_s - 26.1 * 60.0).abs() < 1.0), "{ahead_s:?}");
        let wish = rule.decide(&at(begin_s + 1_700.0, 0));
        assert_eq!((wish.desired, wish.reason), (1, Reason::Predicted));
        assert_eq!(rule.decide(&at(begin_s + 2_100.0, 0)).desired, 0, "the call did not come");
    }

    #[test]
    fn the_histogram_keeps_a_function_about_which_it_knows_nothing() {
        let mut rule = HybridHistogram::new();
        rule.decide(&at(0.0, 1));
        assert_eq!(rule.decide(&at(1.0, 0)).desired, 1);
        assert_eq!(rule.decide(&at(14_000.0, 0)).desired, 1);
        assert_eq!(rule.decide(&at(14_402.0, 0)).desired, 0);
    }

    #[test]
    fn the_learning_rule_learns_to_stop_an_idle_instance() {
        let mut rule = QLearning::new(1);
        let mut live = 4;
        for period in 0..4_000_u64 {
            let now_ns = (period + 1) * QLearning::PERIOD_NS;
            let o = Observation {
                now_ns,
                ready: live,
                concurrency: 1,
                memory_limit_bytes: 64 << 20,
                memory_per_core_bytes: 4 << 30,
                ..Observation::default()
            };
            live = rule.decide(&o).desired;
        }
        let idle: Vec<usize> = (1..=4)
            .map(|count| {
                let values = rule.values[count * 2];
                let better = |a: &usize, b: &usize| values[*a].total_cmp(&values[*b]);
                (0..values.len()).max_by(better).unwrap_or(0)
            })
            .collect();
        assert!(idle.iter().all(|action| QLearning::ACTIONS[*action] < 0), "{idle:?}");
    }

    #[test]
    fn every_name_is_known() {
        for name in STUDIED {
            assert!(studied(name, 1).is_some(), "{name}");
        }
        assert!(studied("unknown", 1).is_none());
    }
}
