//! The result of a run, which users read, save and compare. New versions only add members to the
//! JSON form.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::tally::{SecondTally, percentile};
use crate::{Limit, Load, Nanos, PHASES, Plan, Request, Tally, Target};

/// The version of the saved form.
const VERSION: u32 = 1;
/// The percentiles of a [`Summary`], by the names that users write.
pub const PERCENTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999)];
/// If a thread was busy for a larger share of the time than this, it could not have done much more.
const SATURATED: f64 = 0.9;
/// If the machine was busy for this share of the time or more, a target on the same machine
/// competed with the generator for processor time.
const MACHINE_FULL: f64 = 0.95;
/// If fewer operations than this are above a percentile, the percentile depends on chance.
const TAIL_MIN: f64 = 10.0;

/// A run and its results. Latencies are in milliseconds, from the intended time of each operation.
/// Failed operations count as longer than any answer, so a percentile that falls on a failed
/// operation is `None`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The version of this form, which is 1.
    pub version: u32,
    pub mote: String,
    /// When the run took place (RFC 3339).
    pub at: String,
    pub machine: Machine,
    pub target: String,
    /// `http` or `coap`.
    pub protocol: String,
    pub method: String,
    pub body_bytes: u64,
    /// `closed` or `open`.
    pub load: String,
    /// The operations per second of the schedule. Present only for an open loop.
    pub rate_wanted: Option<f64>,
    /// The number of connections or ports.
    pub clients: usize,
    /// The requested number of measured operations, which counts for each client in a closed loop
    /// and for all clients together in an open loop.
    pub operations_wanted: Option<u64>,
    /// The requested duration in seconds.
    pub duration_wanted_s: Option<f64>,
    /// The length of the warm-up before the measured span, in seconds.
    pub warmup_s: f64,
    /// The time limit of an operation in seconds.
    pub timeout_s: f64,
    /// The length of the measured span in seconds.
    pub elapsed_s: f64,
    /// All operations whose intended time is in the span, whether answered or failed.
    pub offered: u64,
    /// Operations that got a good answer.
    pub answered: u64,
    /// Operations that failed for any reason.
    pub failed: u64,
    /// Failed operations by reason.
    pub failures: BTreeMap<String, u64>,
    /// Operations before the span, which were not measured.
    pub warmup: u64,
    /// Operations per second, over the span.
    pub offered_per_s: f64,
    /// Answers per second, over the span.
    pub answered_per_s: f64,
    /// The 95 % confidence interval of the mean number of answers per second. Present only for
    /// spans of at least 5 seconds.
    pub answered_per_s_interval: Option<[f64; 2]>,
    /// The number of bytes in the received bodies.
    pub bytes: u64,
    pub latency: Summary,
    /// The time from the intended start of an operation until a client was free to begin it. It is
    /// part of the latency.
    pub delay: Option<Summary>,
    /// The durations that the target reports, by phase.
    pub phases: BTreeMap<String, Summary>,
    /// The resources that the generator used.
    pub generator: Generator,
    /// Reasons to doubt the result.
    pub warnings: Vec<String>,
    pub seconds: Vec<Second>,
    /// The latencies of answered operations, as pairs of nanoseconds and count, with a precision of
    /// three digits.
    pub histogram: Vec<[u64; 2]>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The instruction set.
    pub arch: String,
    pub kernel: String,
    /// The number of processors that this process may use.
    pub cores: usize,
}

impl Machine {
    pub fn here() -> Self {
        let uname = rustix::system::uname();
        Self {
            arch: std::env::consts::ARCH.to_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// A distribution in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The mean over the answered operations.
    pub mean_ms: f64,
    /// Half of the operations took no longer.
    pub p50_ms: Option<f64>,
    /// 90 % of the operations took no longer.
    pub p90_ms: Option<f64>,
    /// 95 % of the operations took no longer.
    pub p95_ms: Option<f64>,
    /// 99 % of the operations took no longer.
    pub p99_ms: Option<f64>,
    /// 99.9 % of the operations took no longer.
    #[serde(rename = "p99.9_ms")]
    pub p999_ms: Option<f64>,
    /// The longest latency of an answered operation.
    pub max_ms: f64,
}

impl Summary {
    fn of(histogram: &Histogram<u64>, failed: u64) -> Self {
        let [p50_ms, p90_ms, p95_ms, p99_ms, p999_ms] =
            PERCENTILES.map(|(_, share)| percentile(histogram, failed, share).map(ms));
        let mean_ms = histogram.mean() / 1e6;
        let max_ms = ms(histogram.max());
        Self { mean_ms, p50_ms, p90_ms, p95_ms, p99_ms, p999_ms, max_ms }
    }

    /// The percentiles in the order of [`PERCENTILES`].
    pub fn percentiles(&self) -> [Option<f64>; 5] {
        [self.p50_ms, self.p90_ms, self.p95_ms, self.p99_ms, self.p999_ms]
    }
}

/// The resources that the generator used in the measured span.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Generator {
    /// The number of threads that made operations.
    pub threads: usize,
    /// The processor time of all threads.
    pub cpu_s: f64,
    pub cpu_us_per_operation: f64,
    /// The share of the span during which the busiest thread used a processor.
    pub busiest_thread: f64,
    /// The share of the time during which the whole machine was busy, with any program.
    pub machine_busy: f64,
    /// How many connections were established again and datagrams were sent again. The warm-up is
    /// included.
    pub repeats: u64,
}

/// Operations that ended within one second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Operations that were answered.
    pub answered: u64,
    pub failed: u64,
    /// The mean latency of the answered operations.
    pub mean_ms: f64,
    /// The longest latency of the answered operations.
    pub max_ms: f64,
}

impl From<&SecondTally> for Second {
    fn from(tally: &SecondTally) -> Self {
        let mean_ms = tally.latency_sum as f64 / 1e6 / tally.answered.max(1) as f64;
        let answered = tally.answered;
        let failed = tally.failed;
        Self { answered, failed, mean_ms, max_ms: ms(tally.latency_max) }
    }
}

impl Report {
    /// The report of a run of `plan`. `mote` is the version of `mote`, and `at` is the time of the
    /// run (RFC 3339).
    pub fn new(
        target: &Target,
        request: &Request,
        plan: &Plan,
        tally: &Tally,
        mote: &str,
        at: &str,
    ) -> Self {
        let answered = tally.answered();
        let failed = tally.failed();
        let offered = answered + failed;
        let elapsed_s = tally.span() as f64 / 1e9;
        let seconds: Vec<Second> = tally.seconds.iter().map(Second::from).collect();
        let is_open = plan.load != Load::Closed;
        let mut report = Self {
            version: VERSION,
            mote: mote.to_owned(),
            at: at.to_owned(),
            machine: Machine::here(),
            target: target.url(),
            protocol: target.protocol.name().to_owned(),
            method: request.method.clone(),
            body_bytes: request.body.len() as u64,
            load: if is_open { "open" } else { "closed" }.to_owned(),
            rate_wanted: match plan.load {
                Load::Open { rate } => Some(rate),
                Load::Closed => None,
            },
            clients: plan.clients,
            operations_wanted: match plan.limit {
                Limit::Operations(operations) => Some(operations),
                Limit::Duration(_) => None,
            },
            duration_wanted_s: match plan.limit {
                Limit::Duration(duration) => Some(duration.as_secs_f64()),
                Limit::Operations(_) => None,
            },
            warmup_s: plan.warmup.as_secs_f64(),
            timeout_s: plan.timeout.as_secs_f64(),
            elapsed_s,
            offered,
            answered,
            failed,
            failures: tally.failures.iter().map(|(kind, n)| (kind.to_string(), *n)).collect(),
            warmup: tally.warmup,
            offered_per_s: offered as f64 / elapsed_s,
            answered_per_s: tally.in_span as f64 / elapsed_s,
            answered_per_s_interval: interval(&seconds, elapsed_s),
            bytes: tally.bytes,
            latency: Summary::of(&tally.latency, failed),
            delay: is_open.then(|| Summary::of(&tally.delay, 0)),
            phases: tally.phases.iter().flat_map(|all| PHASES.iter().zip(all.iter())).fold(
                BTreeMap::new(),
                |mut phases, (name, histogram)| {
                    phases.insert((*name).to_owned(), Summary::of(histogram, 0));
                    phases
                },
            ),
            generator: generator(plan, tally, offered),
            warnings: Vec::new(),
            seconds,
            histogram: tally
                .latency
                .iter_recorded()
                .map(|value| [value.value_iterated_to(), value.count_since_last_iteration()])
                .collect(),
        };
        report.warnings = report.find_warnings();
        report
    }

    pub fn failed_share(&self) -> f64 {
        self.failed as f64 / self.offered.max(1) as f64
    }

    fn find_warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let generator = &self.generator;
        if generator.busiest_thread >= SATURATED {
            warnings.push(format!(
                "the generator was the bottleneck: its busiest thread used {:.0} % of a processor; use more --threads, or another machine",
                generator.busiest_thread * 100.0
            ));
        } else if generator.machine_busy >= MACHINE_FULL && generator.cpu_s > 0.1 * self.elapsed_s {
            warnings.push(format!(
                "the CPUs of this machine were {:.0} % busy: if the target runs here too, it competed with the generator for CPU time",
                generator.machine_busy * 100.0
            ));
        }
        if let Some(rate) = self.rate_wanted
            && self.answered_per_s < 0.95 * rate
        {
            warnings.push(format!(
                "{:.1} operations a second were offered and {:.1} answered: the target did not keep up with the schedule",
                rate, self.answered_per_s
            ));
        }
        if let (Some(delay), Some(latency)) =
            (self.delay.and_then(|delay| delay.p99_ms), self.latency.p50_ms)
            && delay > latency.max(1.0)
        {
            warnings.push(format!(
                "operations waited {delay:.1} ms (p99) for a free client: with more --clients the target would have received them earlier"
            ));
        }
        if generator.repeats > 0 {
            let what = match self.protocol.as_str() {
                "coap" => "datagrams were retransmitted",
                _ => "connections were opened again because the server had closed them",
            };
            warnings.push(format!("{} {what}", generator.repeats));
        }
        let thin = PERCENTILES
            .iter()
            .find(|(_, share)| (1.0 - share) * (self.offered as f64) < TAIL_MIN - 1e-6);
        if let Some((name, _)) = thin {
            warnings.push(format!(
                "with {} operations, fewer than {TAIL_MIN} were slower than {name}: read it and the percentiles above it with caution",
                self.offered
            ));
        }
        warnings
    }
}

fn generator(plan: &Plan, tally: &Tally, offered: u64) -> Generator {
    let cpu_s = tally.cpu as f64 / 1e9;
    Generator {
        threads: plan.threads(),
        cpu_s,
        cpu_us_per_operation: cpu_s * 1e6 / offered.max(1) as f64,
        busiest_thread: tally.busiest,
        machine_busy: tally.machine.0 as f64 / tally.machine.1.max(1) as f64,
        repeats: tally.repeats,
    }
}

fn ms(nanos: Nanos) -> f64 {
    nanos as f64 / 1e6
}

/// The 95 % confidence interval of the mean rate, computed from whole seconds.
fn interval(seconds: &[Second], elapsed_s: f64) -> Option<[f64; 2]> {
    let whole = seconds.get(..elapsed_s as usize).filter(|whole| whole.len() >= 5)?;
    let count = whole.len() as f64;
    let mean = whole.iter().map(|second| second.answered as f64).sum::<f64>() / count;
    let squares: f64 = whole.iter().map(|second| (second.answered as f64 - mean).powi(2)).sum();
    let half = student(whole.len() - 1) * (squares / (count - 1.0) / count).sqrt();
    Some([(mean - half).max(0.0), mean + half])
}

/// The 95 % value of Student's t distribution, two-sided.
fn student(freedom: usize) -> f64 {
    const TABLE: [f64; 9] = [2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179];
    match freedom {
        4..=12 => TABLE[freedom - 4],
        13..=20 => 2.16,
        21..=40 => 2.08,
        _ => 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_longer_than_any_answer() {
        let mut histogram = Histogram::<u64>::new_with_bounds(10, 1_000_000_000, 3).unwrap();
        for ms in 1..=98 {
            histogram.record(ms * 1_000_000).unwrap();
        }
        let near = |got: Option<u64>, ms: f64| {
            let got = got.expect("was answered") as f64 / 1e6;
            assert!((got - ms).abs() <= ms / 500.0, "{got} for {ms}");
        };
        near(percentile(&histogram, 2, 0.5), 50.0);
        near(percentile(&histogram, 2, 0.98), 98.0);
        assert_eq!(percentile(&histogram, 2, 0.99), None);
        near(percentile(&histogram, 0, 1.0), 98.0);
        let none = Histogram::<u64>::new(3).unwrap();
        assert_eq!(percentile(&none, 0, 0.5), None);
        assert_eq!(percentile(&none, 5, 0.5), None);
    }

    #[test]
    fn the_interval_holds_the_mean() {
        let second = |answered| Second { answered, ..Second::default() };
        let seconds: Vec<Second> = [90, 110, 100, 95, 105, 7].map(second).to_vec();
        assert_eq!(interval(&seconds, 4.5), None);
        let [low, high] = interval(&seconds, 5.2).unwrap();
        assert!((low - 90.2).abs() < 0.1 && (high - 109.8).abs() < 0.1, "{low} {high}");
    }
}
