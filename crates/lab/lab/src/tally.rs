//! The counts of the whole node, and the report that is computed from them.

use std::collections::BTreeMap;

use mote_pool::autoscale::memory_cost_s;

use crate::function::Function;
use crate::report::{Point, Report};
use crate::scenario::{FunctionModel, Scenario};
use crate::waits::Waits;

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) offered: u64,
    pub(crate) answered: u64,
    pub(crate) refused: u64,
    pub(crate) expired: u64,
    pub(crate) cold: u64,
    /// The number of waiting and running invocations.
    pub(crate) inside: u64,
    pub(crate) waits: Waits,
    pub(crate) responses: Waits,
    pub(crate) memory_bytes: u64,
    /// The number of instances in a cold start.
    pub(crate) starting: u32,
    /// The number of instances with work.
    pub(crate) busy: u32,
    /// The memory of the instances with work.
    pub(crate) busy_bytes: u64,
    pub(crate) evictions: u64,
    pub(crate) starts_refused: u64,
    instances: u32,
    instances_ns: f64,
    busy_ns: f64,
    /// The time integral of the memory of instances without work, in byte-nanoseconds.
    idle_byte_ns: f64,
    /// The processor time of all starts, in milliseconds.
    start_cpu_ms: f64,
    at_ns: u64,
    starts: u64,
    reasons: BTreeMap<&'static str, u64>,
    instances_peak: u32,
    memory_peak_bytes: u64,
    series: Vec<Point>,
    sampled: (u64, u64),
}

impl Tally {
    /// Updates the integrals to `now_ns`. They stop growing when the demand ends.
    pub(crate) fn advance(&mut self, now_ns: u64, end_ns: u64) {
        let now_ns = now_ns.min(end_ns);
        let elapsed_ns = now_ns.saturating_sub(self.at_ns) as f64;
        self.instances_ns += f64::from(self.instances) * elapsed_ns;
        self.busy_ns += f64::from(self.busy) * elapsed_ns;
        self.idle_byte_ns += (self.memory_bytes - self.busy_bytes) as f64 * elapsed_ns;
        self.at_ns = self.at_ns.max(now_ns);
    }

    pub(crate) fn started(
        &mut self,
        now_ns: u64,
        end_ns: u64,
        model: &FunctionModel,
        reason: &'static str,
    ) {
        self.advance(now_ns, end_ns);
        if now_ns < end_ns {
            self.start_cpu_ms += model.start.cpu_ms;
        }
        self.instances += 1;
        self.starting += 1;
        self.starts += 1;
        self.memory_bytes += model.memory_bytes;
        self.instances_peak = self.instances_peak.max(self.instances);
        self.memory_peak_bytes = self.memory_peak_bytes.max(self.memory_bytes);
        *self.reasons.entry(reason).or_default() += 1;
    }

    pub(crate) fn ended(&mut self, now_ns: u64, end_ns: u64, bytes: u64) {
        self.advance(now_ns, end_ns);
        self.instances -= 1;
        self.memory_bytes -= bytes;
    }

    pub(crate) fn sample(&mut self, now_ns: u64, functions: &[Function]) {
        let sum = |part: fn(&Function) -> u32| functions.iter().map(part).sum();
        self.series.push(Point {
            time_s: now_ns as f64 / 1e9,
            offered: self.offered - self.sampled.0,
            answered: self.answered - self.sampled.1,
            ready: sum(Function::awake),
            starting: sum(|function| function.pool.starting_count()),
            in_flight: sum(|function| function.pool.in_flight()),
            queued: sum(|function| function.pool.queued() as u32),
            memory_bytes: self.memory_bytes,
        });
        self.sampled = (self.offered, self.answered);
    }

    /// The report of a run of `scenario`. `functions` are its functions in their final state.
    pub(crate) fn report(self, scenario: &Scenario, functions: &[Function]) -> Report {
        let served_by = match functions {
            [only] => only.served(),
            _ => Vec::new(),
        };
        let known = self.answered + self.refused + self.expired;
        Report {
            scenario: scenario.name.clone(),
            policy: scenario.policy.as_str().to_owned(),
            functions: scenario.functions.len() as u32,
            duration_s: scenario.duration_s,
            offered: self.offered,
            answered: self.answered,
            refused: self.refused,
            expired: self.expired,
            lost: self.offered - known,
            cold: self.cold,
            cold_share: self.cold as f64 / self.answered.max(1) as f64,
            wait: self.waits.summary(),
            response: self.responses.summary(),
            instance_seconds: self.instances_ns / 1e9,
            wasted_seconds: (self.instances_ns - self.busy_ns) / 1e9,
            starts: self.starts,
            cost_s: self.start_cpu_ms / 1e3
                + memory_cost_s(self.idle_byte_ns / 1e9, scenario.node.memory_per_core_bytes),
            start_reasons: self.reasons.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect(),
            evictions: self.evictions,
            starts_refused: self.starts_refused,
            peak_instances: self.instances_peak,
            peak_memory_bytes: self.memory_peak_bytes,
            served_by,
            series: self.series,
        }
    }
}
