//! Demand with the statistics that two cloud providers have published about their functions.
//!
//! The recordings themselves are too large for this repository, and a node with two cores could not
//! serve them. These families draw functions from the published distributions, so that a rule can be
//! judged on many functions that are called rarely, regularly or in bursts. A number that no
//! publication states is marked as chosen.
//!
//! - `azure`: Shahrad et al., "Serverless in the Wild", USENIX ATC 2020
//! - `huawei`: Joosen et al., "How Does It Function? Characterizing Long-term Trends in Production
//!   Serverless Workloads", ACM SoCC 2023

use mote_spec::policy::Policy;

use crate::arrivals::Arrivals;
use crate::distribution::{Distribution, Random, log_normal, stream, uniform};
use crate::scenario::{FunctionModel, NodeModel, START_CPU_MS, Scenario};

pub const PUBLISHED: [&str; 2] = ["azure", "huawei"];

/// A one-line description; `None` for an unknown name.
pub fn about(name: &str) -> Option<&'static str> {
    Some(match name {
        "azure" => "2,000 functions with the published statistics of Azure Functions, 3 h",
        "huawei" => "1,000 functions with the published statistics of Huawei's functions, 3 h",
        _ => return None,
    })
}

/// The most calls per second of one function (chosen). Both studies have functions that are called
/// more often than a small node can answer, and such a function would decide every comparison alone.
const RATE_MAX: f64 = 1.0;
/// The most work of one function, which its 20 instances can do (chosen).
const ERLANGS_MAX: f64 = 8.0;
/// The duration of one simulation in seconds (chosen). Several periods of most timers fit in.
const DURATION_S: f64 = 3.0 * 3_600.0;
/// The spread of a function's run times around its mean (chosen; the studies state means).
const TIME_VARIATION: f64 = 0.5;

/// The family with this name; `None` for an unknown name. `start_ms` is the mean time of a start.
pub fn published(name: &str, policy: Policy, seed: u64, start_ms: f64) -> Option<Scenario> {
    let functions = match name {
        "azure" => azure(2_000, seed, start_ms),
        "huawei" => huawei(1_000, seed, start_ms),
        _ => return None,
    };
    Some(Scenario {
        name: name.to_owned(),
        seed,
        duration_s: DURATION_S,
        sample_s: 0.0,
        node: NodeModel::default(),
        policy,
        balance: Default::default(),
        functions,
    })
}

/// Functions of Azure Functions. The sections are those of the publication.
///
/// - Triggers (3.2): a timer calls 15.6 % of the functions.
/// - Rates (3.3, figure 5): over 8 orders of magnitude; 45 % are called at most once an hour and 81 %
///   at most once a minute. The publication counts applications, of which most have one function.
///   Functions without a timer have a lognormal rate whose two parameters follow from these shares.
/// - Regularity (3.3, figure 6): the coefficient of variation of the time between calls is close to 0
///   for timers and for about a fifth of the others, and larger than 1 for about two fifths.
/// - Run time (3.4, figure 7): lognormal means, with -0.38 and 2.36 for the logarithm of seconds.
/// - Memory (3.5, figure 8): Burr, with c = 11.652, k = 0.221 and a scale of 107.083 MB.
pub fn azure(count: usize, seed: u64, start_ms: f64) -> Vec<FunctionModel> {
    let mut random = stream(seed, 0xa2_07e);
    let start = Distribution::LogNormal { mean_ms: start_ms, variation: 0.2 };
    (0..count)
        .map(|at| {
            let arrivals = azure_arrivals(&mut random);
            let rate = mean_rate(&arrivals);
            let service_s = log_normal(&mut random, -0.38, 2.36).clamp(0.005, 30.0);
            let mut function = model("azure", at, arrivals, service_s, rate, start);
            function.memory_bytes = burr_bytes(&mut random);
            function
        })
        .collect()
}

/// The share of functions that a timer calls.
const TIMER_SHARE: f64 = 0.156;
/// The mean and the deviation of the logarithm of calls per hour, for functions without a timer. With
/// the timers below, 45 % of all functions are called at most once an hour, and 81 % at most once a
/// minute.
const AZURE_RATE: (f64, f64) = (0.25, 5.1);
/// Periods of timers (chosen; the publication says that most timers are called at most once a
/// minute).
const PERIODS_S: [f64; 7] = [60.0, 300.0, 600.0, 900.0, 1_800.0, 3_600.0, 86_400.0];

fn azure_arrivals(random: &mut Random) -> Arrivals {
    let (mu, sigma) = AZURE_RATE;
    let timer = uniform(random) < TIMER_SHARE;
    let period = uniform(random);
    let first = uniform(random);
    let kind = uniform(random);
    let rate = (log_normal(random, mu, sigma) / 3_600.0).min(RATE_MAX);
    match (timer, kind) {
        (true, _) => {
            let period_s = PERIODS_S[(period * PERIODS_S.len() as f64) as usize];
            Arrivals::Regular { period_s, first_s: first * period_s }
        }
        (false, ..0.2) => Arrivals::Regular { period_s: 1.0 / rate, first_s: first / rate },
        (false, 0.2..0.6) => bursty(rate),
        (false, _) => Arrivals::Poisson { rate },
    }
}

/// Calls in bursts of about ten, at ten times the mean rate (chosen).
fn bursty(rate: f64) -> Arrivals {
    Arrivals::Modulated { quiet: (0.0, 9.0 / rate), busy: (10.0 * rate, 1.0 / rate) }
}

/// Functions of Huawei's public platform. The publication gives ranges: calls per day over nine
/// orders of magnitude (section 4), run times and cold starts over two to four (4), and a strong
/// daily period in many functions (5). The medians are chosen.
pub fn huawei(count: usize, seed: u64, start_ms: f64) -> Vec<FunctionModel> {
    /// 99.9 % of a lognormal distribution lie within 3.3 deviations on each side: nine orders of
    /// magnitude for rates, three for run times, two for cold starts.
    fn deviation(orders: f64) -> f64 {
        orders * std::f64::consts::LN_10 / 6.6
    }
    /// The length of the simulated day, so that two days fit in.
    const DAY_S: f64 = DURATION_S / 2.0;
    let mut random = stream(seed, 0x40a_3e1);
    (0..count)
        .map(|at| {
            let periodic = uniform(&mut random) < 0.5;
            let rate = log_normal(&mut random, 10f64.ln(), deviation(9.0)) / 3_600.0;
            let rate = rate.min(RATE_MAX);
            let arrivals = if periodic {
                Arrivals::Diurnal { mean_rate: rate, swing: 0.9, period_s: DAY_S }
            } else {
                bursty(rate)
            };
            let service_s = log_normal(&mut random, 0.1f64.ln(), deviation(3.0));
            let factor = log_normal(&mut random, 0.0, deviation(2.0));
            let start = Distribution::LogNormal { mean_ms: start_ms * factor, variation: 0.2 };
            let service_s = service_s.clamp(0.005, 30.0);
            let mut function = model("huawei", at, arrivals, service_s, rate, start);
            function.start.cpu_ms = START_CPU_MS * factor;
            function
        })
        .collect()
}

fn model(
    family: &str,
    at: usize,
    arrivals: Arrivals,
    service_s: f64,
    rate: f64,
    start: Distribution,
) -> FunctionModel {
    let mean_ms = service_s.min(ERLANGS_MAX / rate.max(1e-9)) * 1e3;
    let time = Distribution::LogNormal { mean_ms, variation: TIME_VARIATION };
    FunctionModel::new(&format!("{family}-{at}"), arrivals, time, start)
}

/// Calls per second on average.
fn mean_rate(arrivals: &Arrivals) -> f64 {
    match arrivals {
        Arrivals::Poisson { rate } => *rate,
        Arrivals::Regular { period_s, .. } => 1.0 / period_s,
        Arrivals::Modulated { quiet, busy } => {
            (quiet.0 * quiet.1 + busy.0 * busy.1) / (quiet.1 + busy.1)
        }
        Arrivals::Diurnal { mean_rate, .. } => *mean_rate,
        Arrivals::Profile { .. } | Arrivals::Clients { .. } | Arrivals::Recorded { .. } => 0.0,
    }
}

/// The memory of one application, by inversion of Burr's distribution. The bounds are those of an
/// instance on a small node (chosen).
fn burr_bytes(random: &mut Random) -> u64 {
    const C: f64 = 11.652;
    const K: f64 = 0.221;
    const SCALE_MB: f64 = 107.083;
    let above = 1.0 - uniform(random);
    let mb = SCALE_MB * (above.powf(-1.0 / K) - 1.0).powf(1.0 / C);
    (mb.clamp(32.0, 1_500.0) * 1e6) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Source;

    fn share(functions: &[FunctionModel], is: impl Fn(&FunctionModel) -> bool) -> f64 {
        functions.iter().filter(|function| is(function)).count() as f64 / functions.len() as f64
    }

    #[test]
    fn azure_has_the_published_shares() {
        let functions = azure(20_000, 7, 50.0);
        let rate = |function: &FunctionModel| mean_rate(&function.arrivals);
        let per_hour = |most: f64| share(&functions, |it| rate(it) * 3_600.0 <= most * 1.001);
        assert!((per_hour(1.0) - 0.45).abs() < 0.02, "at most once an hour: {}", per_hour(1.0));
        assert!((per_hour(60.0) - 0.81).abs() < 0.02, "once a minute: {}", per_hour(60.0));
        let rates = || functions.iter().map(rate);
        let orders = (rates().fold(0.0, f64::max) / rates().fold(f64::MAX, f64::min)).log10();
        assert!(orders >= 8.0, "{orders} orders of magnitude");
        // Means below a second: published as half of the functions. The median of the distribution
        // is 0.68 s.
        let quick = share(&functions, |it| it.work.time.mean_ms() < 1_000.0);
        assert!((0.5..0.62).contains(&quick), "shorter than a second: {quick}");
        // At most 400 MB in nine of ten applications, and about 170 MB in half of them.
        let small = share(&functions, |it| it.memory_bytes <= 400_000_000);
        let half = share(&functions, |it| it.memory_bytes <= 170_000_000);
        assert!(small > 0.9, "at most 400 MB: {small}");
        assert!((0.5..0.75).contains(&half), "at most 170 MB: {half}");
    }

    #[test]
    fn bursts_have_a_coefficient_of_variation_above_one() {
        let mut random = stream(3, 1);
        let mut source = Source::new(bursty(0.1));
        let times: Vec<f64> = std::iter::from_fn(|| source.next(&mut random))
            .map(|call| call.at_ns as f64 / 1e9)
            .take(20_000)
            .collect();
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let square = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 10.0).abs() < 1.0, "{mean}");
        assert!(square.sqrt() / mean > 2.0, "{}", square.sqrt() / mean);
    }

    #[test]
    fn huawei_spans_the_published_orders_of_magnitude() {
        let functions = huawei(5_000, 7, 50.0);
        let orders = |value: fn(&FunctionModel) -> f64| {
            let values = || functions.iter().map(value);
            (values().fold(0.0, f64::max) / values().fold(f64::MAX, f64::min)).log10()
        };
        let rates = orders(|it| mean_rate(&it.arrivals));
        assert!(rates > 6.0, "the most frequent calls are cut off: {rates}");
        let starts = orders(|it| it.start.cold.mean_ms());
        assert!((2.0..4.0).contains(&starts), "{starts}");
    }

    #[test]
    fn every_family_says_what_it_is() {
        for name in PUBLISHED {
            assert!(about(name).is_some(), "{name}");
            assert!(published(name, Policy::Auto, 1, 50.0).is_some(), "{name}");
        }
        assert!(about("unknown").is_none() && published("unknown", Policy::Auto, 1, 1.0).is_none());
    }
}
