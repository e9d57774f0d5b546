//! Counters and histograms, in Prometheus' text format on request.
//!
//! Handles are made once per function and kept by its revision, so the request path touches
//! atomics and one short lock, never a label map. Labels come from closed lists.

use std::sync::Arc;

use mote_core::{Fault, FunctionName, Phases, Trigger};
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Upper bounds in seconds, from 50 us: an edge invocation is often far below the 5 ms at which
/// the usual advice begins.
const DURATION_BUCKETS_S: [f64; 14] = [
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FunctionLabel {
    function: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TriggerLabels {
    function: String,
    trigger: TriggerLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    function: String,
    trigger: TriggerLabel,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StopLabels {
    function: String,
    reason: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the variants are the label values")]
enum TriggerLabel {
    http,
    coap,
    admin,
}

const TRIGGERS: [TriggerLabel; 3] = [TriggerLabel::http, TriggerLabel::coap, TriggerLabel::admin];
const OUTCOMES: [&str; 6] = ["ok", "caller", "function", "timeout", "capacity", "platform"];

fn trigger_index(trigger: Trigger) -> usize {
    match trigger {
        Trigger::Http => 0,
        Trigger::Coap => 1,
        Trigger::Admin => 2,
    }
}

/// All metrics of a node.
pub struct Metrics {
    registry: Mutex<Registry>,
    invocations: Family<OutcomeLabels, Counter>,
    request_duration: Family<TriggerLabels, Histogram, fn() -> Histogram>,
    queue_duration: Family<FunctionLabel, Histogram, fn() -> Histogram>,
    invoke_duration: Family<FunctionLabel, Histogram, fn() -> Histogram>,
    cold_starts: Family<FunctionLabel, Counter>,
    stops: Family<StopLabels, Counter>,
    instances: Family<FunctionLabel, Gauge>,
}

fn duration_histogram() -> Histogram {
    Histogram::new(DURATION_BUCKETS_S)
}

impl Default for Metrics {
    fn default() -> Self {
        let histogram = || duration_histogram as fn() -> Histogram;
        let metrics = Self {
            registry: Mutex::new(Registry::with_prefix("mote")),
            invocations: Family::default(),
            request_duration: Family::new_with_constructor(histogram()),
            queue_duration: Family::new_with_constructor(histogram()),
            invoke_duration: Family::new_with_constructor(histogram()),
            cold_starts: Family::default(),
            stops: Family::default(),
            instances: Family::default(),
        };
        {
            let mut registry = metrics.registry.lock();
            registry.register("invocations", "Invocations ended", metrics.invocations.clone());
            registry.register_with_unit(
                "request_duration",
                "Arrival to the head of the answer",
                Unit::Seconds,
                metrics.request_duration.clone(),
            );
            registry.register_with_unit(
                "queue_duration",
                "Waiting for a free worker, start of an instance included",
                Unit::Seconds,
                metrics.queue_duration.clone(),
            );
            registry.register_with_unit(
                "invoke_duration",
                "Inside the function",
                Unit::Seconds,
                metrics.invoke_duration.clone(),
            );
            registry.register(
                "cold_starts",
                "Invocations that waited for an instance to start",
                metrics.cold_starts.clone(),
            );
            registry.register("instance_stops", "Instances ended", metrics.stops.clone());
            registry.register("instances", "Instances ready", metrics.instances.clone());
        }
        metrics
    }
}

impl Metrics {
    /// The text exposition (OpenMetrics). For scrapes; takes milliseconds with many functions.
    pub fn render(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry.lock()).expect("writing to a String cannot fail");
        text
    }

    /// The handles of one function.
    pub fn function(&self, name: &FunctionName) -> Arc<FunctionMetrics> {
        let function = || name.as_str().to_owned();
        let label = FunctionLabel { function: function() };
        let counter = |trigger, outcome| {
            self.invocations
                .get_or_create(&OutcomeLabels { function: function(), trigger, outcome })
                .clone()
        };
        Arc::new(FunctionMetrics {
            invocations: TRIGGERS.map(|trigger| OUTCOMES.map(|outcome| counter(trigger, outcome))),
            request_duration: TRIGGERS.map(|trigger| {
                self.request_duration
                    .get_or_create(&TriggerLabels { function: function(), trigger })
                    .clone()
            }),
            queue_duration: self.queue_duration.get_or_create(&label).clone(),
            invoke_duration: self.invoke_duration.get_or_create(&label).clone(),
            cold_starts: self.cold_starts.get_or_create(&label).clone(),
            instances: self.instances.get_or_create(&label).clone(),
            stops: self.stops.clone(),
            function: function(),
        })
    }
}

/// Handles of one function.
pub struct FunctionMetrics {
    invocations: [[Counter; 6]; 3],
    request_duration: [Histogram; 3],
    queue_duration: Histogram,
    invoke_duration: Histogram,
    cold_starts: Counter,
    /// Instances that are ready.
    pub(crate) instances: Gauge,
    stops: Family<StopLabels, Counter>,
    function: String,
}

impl FunctionMetrics {
    /// Counts an invocation that was answered by the function.
    pub(crate) fn answered(&self, trigger: Trigger, phases: &Phases) {
        let index = trigger_index(trigger);
        self.invocations[index][0].inc();
        self.request_duration[index]
            .observe(seconds(phases.answered_ns.saturating_sub(phases.received_ns)));
        self.queue_duration.observe(seconds(phases.queue_ns() + phases.init_ns));
        self.invoke_duration.observe(seconds(phases.run_ns()));
        if phases.init_ns > 0 {
            self.cold_starts.inc();
        }
    }

    /// Counts an invocation that ended with a fault.
    pub(crate) fn failed(&self, trigger: Trigger, fault: &Fault) {
        let outcome = fault.answer().outcome;
        let at = OUTCOMES.iter().position(|o| *o == outcome).unwrap_or(5);
        self.invocations[trigger_index(trigger)][at].inc();
    }

    /// Counts an instance that ended.
    pub(crate) fn stopped(&self, reason: &'static str) {
        self.stops.get_or_create(&StopLabels { function: self.function.clone(), reason }).inc();
    }

    /// Invocations that waited for an instance to start.
    pub(crate) fn cold_starts(&self) -> u64 {
        self.cold_starts.get()
    }

    /// Invocations ended, by outcome, over all triggers.
    pub fn totals(&self) -> [(&'static str, u64); 6] {
        std::array::from_fn(|at| {
            (OUTCOMES[at], self.invocations.iter().map(|by_outcome| by_outcome[at].get()).sum())
        })
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
