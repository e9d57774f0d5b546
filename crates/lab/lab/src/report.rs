//! The result of a simulation.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// A summary of a duration over all answered invocations, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct WaitSummary {
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

/// The values at one point in time of the run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Seconds since the beginning.
    pub time_s: f64,
    /// Invocations offered since the previous point.
    pub offered: u64,
    /// Invocations answered since the previous point.
    pub answered: u64,
    pub ready: u32,
    pub starting: u32,
    /// The number of running invocations.
    pub in_flight: u32,
    /// The number of waiting invocations.
    pub queued: u32,
    /// The reserved memory in bytes.
    pub memory_bytes: u64,
}

/// The result of one simulation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub scenario: String,
    pub policy: String,
    pub functions: u32,
    /// The simulated time during which there was demand, in seconds.
    pub duration_s: f64,
    /// Invocations that were sent.
    pub offered: u64,
    /// Invocations that were answered.
    pub answered: u64,
    /// Invocations refused because a queue was full.
    pub refused: u64,
    /// Invocations whose deadline passed while they waited.
    pub expired: u64,
    /// Invocations without a known result. This is always 0, unless the simulated code loses work.
    pub lost: u64,
    /// Answered invocations that arrived before their instance was ready.
    pub cold: u64,
    /// The cold invocations as a share of the answered ones.
    pub cold_share: f64,
    /// The time between arrival and dispatch to an instance.
    pub wait: WaitSummary,
    /// The time between arrival and answer.
    pub response: WaitSummary,
    /// The time from the beginning of each start until the instance was stopped, summed over all
    /// instances.
    pub instance_seconds: f64,
    /// The part of `instance_seconds` in which an instance had no invocation, because it was
    /// starting, idle or paused.
    pub wasted_seconds: f64,
    pub starts: u64,
    /// The processor time of starts, and the memory of instances without work at the node's rate
    /// ([`crate::NodeModel::memory_per_core_bytes`]), in seconds of one processor.
    pub cost_s: f64,
    pub start_reasons: BTreeMap<String, u64>,
    /// Instances that were stopped to release memory for others.
    pub evictions: u64,
    /// Starts that the node's budget delayed.
    pub starts_refused: u64,
    /// The largest number of instances that existed at once.
    pub peak_instances: u32,
    /// The largest amount of memory that was reserved at once, in bytes.
    pub peak_memory_bytes: u64,
    /// How many invocations each instance answered, by its index. Recorded only if there is a
    /// single function.
    pub served_by: Vec<u64>,
    /// The run over time.
    pub series: Vec<Point>,
}

impl Report {
    /// The time in seconds until `ready` instances were ready for the first time, to the resolution
    /// of the series.
    pub fn time_to(&self, ready: u32) -> Option<f64> {
        self.series.iter().find(|point| point.ready >= ready).map(|point| point.time_s)
    }

    /// The largest number of ready instances in a period.
    pub fn most_ready(&self, from_s: f64, to_s: f64) -> u32 {
        self.between(from_s, to_s).map(|point| point.ready).max().unwrap_or(0)
    }

    /// The number of invocations answered per second in a period.
    pub fn answered_rate(&self, from_s: f64, to_s: f64) -> f64 {
        self.between(from_s, to_s).map(|point| point.answered).sum::<u64>() as f64 / (to_s - from_s)
    }

    fn between(&self, from_s: f64, to_s: f64) -> impl Iterator<Item = &Point> {
        self.series.iter().filter(move |point| point.time_s > from_s && point.time_s <= to_s)
    }
}

/// A table that compares reports, for people.
pub fn table(reports: &[Report]) -> String {
    let mut text = format!(
        "{:<12} {:>9} {:>8} {:>8} {:>6} {:>7} {:>9} {:>8} {:>9} {:>9} {:>10} {:>10} {:>7} {:>5}\n",
        "policy",
        "offered",
        "refused",
        "expired",
        "lost",
        "cold %",
        "mean ms",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "inst. s",
        "wasted s",
        "starts",
        "peak"
    );
    for report in reports {
        let _ = writeln!(
            text,
            "{:<12} {:>9} {:>8} {:>8} {:>6} {:>7.3} {:>9.2} {:>8.2} {:>9.1} {:>9.1} {:>10.0} {:>10.0} {:>7} {:>5}",
            report.policy,
            report.offered,
            report.refused,
            report.expired,
            report.lost,
            report.cold_share * 100.0,
            report.wait.mean_ms,
            report.wait.p50_ms,
            report.wait.p95_ms,
            report.wait.p99_ms,
            report.instance_seconds,
            report.wasted_seconds,
            report.starts,
            report.peak_instances,
        );
    }
    text
}

/// The time series as CSV, for plotting.
pub fn csv(report: &Report) -> String {
    let mut text =
        String::from("time_s,offered,answered,ready,starting,in_flight,queued,memory_bytes\n");
    for point in &report.series {
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{}",
            point.time_s,
            point.offered,
            point.answered,
            point.ready,
            point.starting,
            point.in_flight,
            point.queued,
            point.memory_bytes
        );
    }
    text
}
