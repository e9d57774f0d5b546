//! Counters and histograms, which are rendered as Prometheus' text format on request.
//!
//! Metric handles are created once per function and kept by its revisions, so that the request path
//! touches only atomics and one short lock, and never a map of labels. Label values come from
//! closed lists.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::durations::{DurationHistogram, Latencies};
use crate::egress_doors::Destinations;
use mote_core::{Fault, Phases, Trigger};
use mote_spec::FunctionName;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

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
    schedule,
    mqtt,
    function,
}

const TRIGGERS: [TriggerLabel; 6] = [
    TriggerLabel::http,
    TriggerLabel::coap,
    TriggerLabel::admin,
    TriggerLabel::schedule,
    TriggerLabel::mqtt,
    TriggerLabel::function,
];
const OUTCOMES: [&str; 6] = ["ok", "caller", "function", "timeout", "capacity", "platform"];

fn trigger_index(trigger: Trigger) -> usize {
    match trigger {
        Trigger::Http => 0,
        Trigger::Coap => 1,
        Trigger::Admin => 2,
        Trigger::Schedule => 3,
        Trigger::Mqtt => 4,
        Trigger::Function => 5,
    }
}

/// The metric families of all functions, each with one metric per label set. Cloning is cheap.
#[derive(Clone)]
struct Families {
    invocations: Family<OutcomeLabels, Counter>,
    request_duration: Family<TriggerLabels, DurationHistogram>,
    queue_duration: Family<FunctionLabel, DurationHistogram>,
    invoke_duration: Family<FunctionLabel, DurationHistogram>,
    cold_starts: Family<FunctionLabel, Counter>,
    start_duration: Family<FunctionLabel, DurationHistogram>,
    stops: Family<StopLabels, Counter>,
    instances: Family<FunctionLabel, Gauge>,
}

pub struct Metrics {
    registry: Mutex<Registry>,
    families: Families,
    /// One set of handles per function. All revisions of a function share the set, so that its
    /// counts continue through deploys.
    functions: Mutex<HashMap<FunctionName, Arc<FunctionMetrics>>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let families = Families {
            invocations: Family::default(),
            request_duration: Family::default(),
            queue_duration: Family::default(),
            invoke_duration: Family::default(),
            cold_starts: Family::default(),
            start_duration: Family::default(),
            stops: Family::default(),
            instances: Family::default(),
        };
        let mut registry = Registry::with_prefix("mote");
        registry.register("invocations", "Invocations ended", families.invocations.clone());
        registry.register_with_unit(
            "request_duration",
            "Arrival to the head of the answer",
            Unit::Seconds,
            families.request_duration.clone(),
        );
        registry.register_with_unit(
            "queue_duration",
            "Waiting for a free worker, start of an instance included",
            Unit::Seconds,
            families.queue_duration.clone(),
        );
        registry.register_with_unit(
            "invoke_duration",
            "Inside the function",
            Unit::Seconds,
            families.invoke_duration.clone(),
        );
        registry.register(
            "cold_starts",
            "Invocations that waited for an instance to start",
            families.cold_starts.clone(),
        );
        registry.register_with_unit(
            "start_duration",
            "Start of an instance, until it is ready",
            Unit::Seconds,
            families.start_duration.clone(),
        );
        registry.register("instance_stops", "Instances ended", families.stops.clone());
        registry.register("instances", "Instances ready", families.instances.clone());
        Self { registry: Mutex::new(registry), families, functions: Mutex::default() }
    }
}

impl Metrics {
    /// The metrics as OpenMetrics text, for scrapes. Takes milliseconds if there are many
    /// functions.
    pub fn render(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry.lock()).expect("writing to a String cannot fail");
        text
    }

    /// The metrics in Prometheus' text format 0.0.4, for programs that do not read OpenMetrics
    /// (`promtool check metrics`, older scrapers).
    pub fn render_text(&self) -> String {
        text_format(&self.render())
    }

    /// The handles of one function, which all its revisions share until the function is forgotten.
    /// A series exists only after something was counted.
    pub fn function(&self, name: &FunctionName) -> Arc<FunctionMetrics> {
        let made = || {
            Arc::new(FunctionMetrics {
                families: self.families.clone(),
                function: name.clone(),
                by_trigger: Default::default(),
                timings: OnceLock::new(),
                ended_cpu_ns: AtomicU64::new(0),
                is_forgotten: AtomicBool::new(false),
                egress: Destinations::default(),
            })
        };
        self.functions.lock().entry(name.clone()).or_insert_with(made).clone()
    }

    /// Adds the metrics of another part of the node, which are read at each scrape.
    pub fn add(&self, collector: impl Collector) {
        self.registry.lock().register_collector(Box::new(collector));
    }

    /// Forgets a removed function, so that its series are no longer exposed.
    pub fn forget(&self, name: &FunctionName) {
        if let Some(forgotten) = self.functions.lock().remove(name) {
            forgotten.is_forgotten.store(true, Ordering::Relaxed);
        }
        let function = || name.as_str().to_owned();
        let label = FunctionLabel { function: function() };
        for trigger in TRIGGERS {
            let labels = TriggerLabels { function: function(), trigger };
            self.families.request_duration.remove(&labels);
            for outcome in OUTCOMES {
                let labels = OutcomeLabels { function: function(), trigger, outcome };
                self.families.invocations.remove(&labels);
            }
        }
        self.families.queue_duration.remove(&label);
        self.families.invoke_duration.remove(&label);
        self.families.cold_starts.remove(&label);
        self.families.start_duration.remove(&label);
        self.families.instances.remove(&label);
        for reason in STOP_REASONS {
            self.families.stops.remove(&StopLabels { function: function(), reason });
        }
    }
}

/// Converts OpenMetrics to Prometheus' text format 0.0.4. In that format, the family of a counter
/// has the same name as its samples (with `_total`), and there are no lines for units and for the
/// end.
fn text_format(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    let mut help = None;
    for line in openmetrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), ..) => {}
            // The help line precedes the type line, but its name depends on the type.
            (Some("#"), Some("HELP"), Some(_), said) => help = said,
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let suffix = if kind == "counter" { "_total" } else { "" };
                if let Some(help) = help.take() {
                    text.push_str(&format!("# HELP {name}{suffix} {help}\n"));
                }
                text.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
            }
            _ => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

/// Why instances end, as label values.
const STOP_REASONS: [&str; 12] = [
    "idle",
    "surplus",
    "evicted",
    "scale",
    "memory",
    "crash",
    "deadline",
    "redeploy",
    "removed",
    "shutdown",
    "discarded",
    "start",
];

/// The metric handles of one function. A series appears with its first value, so a function that
/// was never called has no series.
pub struct FunctionMetrics {
    families: Families,
    function: FunctionName,
    by_trigger: [OnceLock<TriggerMetrics>; TRIGGERS.len()],
    timings: OnceLock<Timings>,
    ended_cpu_ns: AtomicU64,
    /// Whether the function is removed. Its instances may end later, and must not bring its series
    /// back.
    is_forgotten: AtomicBool,
    /// What is carried to and from the destinations of the manifest.
    pub(crate) egress: Destinations,
}

struct TriggerMetrics {
    invocations: [Counter; 6],
    request_duration: DurationHistogram,
}

/// The durations of one function: for each histogram, the count of each bucket of [`BOUNDS_US`] and
/// the sum in nanoseconds.
///
/// [`BOUNDS_US`]: crate::durations::BOUNDS_US
pub struct FunctionDurations {
    /// Arrival to the head of the answer, by trigger.
    pub requests: Vec<(&'static str, (Vec<u64>, u64))>,
    pub queue: (Vec<u64>, u64),
    pub start: (Vec<u64>, u64),
    /// Inside the function.
    pub run: (Vec<u64>, u64),
}

struct Timings {
    latencies: Latencies,
    queue: DurationHistogram,
    invoke: DurationHistogram,
    cold_starts: Counter,
}

impl FunctionMetrics {
    fn label(&self) -> FunctionLabel {
        FunctionLabel { function: self.function.as_str().to_owned() }
    }

    fn of_trigger(&self, trigger: Trigger) -> &TriggerMetrics {
        let index = trigger_index(trigger);
        self.by_trigger[index].get_or_init(|| {
            let function = || self.function.as_str().to_owned();
            let trigger = TRIGGERS[index];
            TriggerMetrics {
                invocations: OUTCOMES.map(|outcome| {
                    let labels = OutcomeLabels { function: function(), trigger, outcome };
                    self.families.invocations.get_or_create(&labels).clone()
                }),
                request_duration: self
                    .families
                    .request_duration
                    .get_or_create(&TriggerLabels { function: function(), trigger })
                    .clone(),
            }
        })
    }

    fn timings(&self) -> &Timings {
        self.timings.get_or_init(|| {
            let label = self.label();
            Timings {
                latencies: Latencies::default(),
                queue: self.families.queue_duration.get_or_create(&label).clone(),
                invoke: self.families.invoke_duration.get_or_create(&label).clone(),
                cold_starts: self.families.cold_starts.get_or_create(&label).clone(),
            }
        })
    }

    /// Counts an invocation that the function answered.
    pub fn answered(&self, trigger: Trigger, phases: &Phases) {
        let of_trigger = self.of_trigger(trigger);
        of_trigger.invocations[0].inc();
        self.took(of_trigger, phases);
    }

    fn took(&self, of_trigger: &TriggerMetrics, phases: &Phases) {
        let whole_ns = phases.answered_ns.saturating_sub(phases.received_ns);
        of_trigger.request_duration.observe_ns(whole_ns);
        let timings = self.timings();
        timings.latencies.record(whole_ns);
        timings.queue.observe_ns(phases.queue_ns() + phases.init_ns);
        timings.invoke.observe_ns(phases.run_ns());
        if phases.init_ns > 0 {
            timings.cold_starts.inc();
        }
    }

    /// Counts an invocation that ended with a fault. Its durations count like those of answered
    /// invocations if it has waited or run; an immediate refusal says nothing about durations.
    pub fn failed(&self, trigger: Trigger, fault: &Fault, phases: &Phases) {
        let outcome = fault.answer().outcome;
        let at = OUTCOMES.iter().position(|o| *o == outcome).unwrap_or(5);
        let of_trigger = self.of_trigger(trigger);
        of_trigger.invocations[at].inc();
        if phases.answered_ns > 0 {
            self.took(of_trigger, phases);
        }
    }

    /// Counts an instance that became ready, `took_ns` after its start had begun.
    pub fn ready(&self, took_ns: u64) {
        let label = self.label();
        self.families.instances.get_or_create(&label).inc();
        self.families.start_duration.get_or_create(&label).observe_ns(took_ns);
    }

    /// Counts the end of an instance that was ready.
    pub fn ended(&self, reason: &'static str) {
        if !self.is_forgotten.load(Ordering::Relaxed) {
            self.families.instances.get_or_create(&self.label()).dec();
        }
        self.stopped(reason);
    }

    /// Counts the end of an instance that never became ready.
    pub fn stopped(&self, reason: &'static str) {
        debug_assert!(STOP_REASONS.contains(&reason), "{reason} would never be forgotten");
        if self.is_forgotten.load(Ordering::Relaxed) {
            return;
        }
        let labels = StopLabels { function: self.function.as_str().to_owned(), reason };
        self.families.stops.get_or_create(&labels).inc();
    }

    /// Adds the processor time of an instance that ends.
    pub fn used_cpu(&self, cpu_ns: u64) {
        self.ended_cpu_ns.fetch_add(cpu_ns, Ordering::Relaxed);
    }

    /// The processor time of the instances that have ended, in nanoseconds.
    pub fn ended_cpu_ns(&self) -> u64 {
        self.ended_cpu_ns.load(Ordering::Relaxed)
    }

    /// How many instances became ready, and the total time of their starts, in nanoseconds.
    pub fn starts(&self) -> (u64, u64) {
        let starts = self.families.start_duration.get(&self.label());
        starts.map_or((0, 0), |starts| starts.count_and_sum_ns())
    }

    /// The durations so far. Triggers without invocations are left out.
    pub fn durations(&self) -> FunctionDurations {
        let of = |histogram: Option<&DurationHistogram>| {
            histogram.cloned().unwrap_or_default().counts_and_sum_ns()
        };
        let of_trigger = |trigger: Trigger| {
            let used = self.by_trigger[trigger_index(trigger)].get()?;
            Some((trigger.as_str(), of(Some(&used.request_duration))))
        };
        let requests = (1..).map_while(Trigger::from_wire).filter_map(of_trigger);
        let timings = self.timings.get();
        FunctionDurations {
            requests: requests.collect(),
            queue: of(timings.map(|timings| &timings.queue)),
            start: of(self.families.start_duration.get(&self.label()).as_deref()),
            run: of(timings.map(|timings| &timings.invoke)),
        }
    }

    /// The number of invocations that waited for an instance to start.
    pub fn cold_starts(&self) -> u64 {
        self.timings.get().map_or(0, |timings| timings.cold_starts.get())
    }

    /// The quantile `share` (0 to 1) of the time from arrival to the head of the answer, in
    /// nanoseconds. `None` before the first answer.
    pub fn latency_ns(&self, share: f64) -> Option<u64> {
        self.timings.get()?.latencies.quantile(share)
    }

    /// The number of ended invocations by outcome, over all triggers.
    pub fn totals(&self) -> [(&'static str, u64); 6] {
        std::array::from_fn(|at| {
            let used = self.by_trigger.iter().filter_map(OnceLock::get);
            (OUTCOMES[at], used.map(|trigger| trigger.invocations[at].get()).sum())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_format_names_counters_as_their_samples() {
        let metrics = Metrics::default();
        let function = metrics.function(&FunctionName::new("thermo").expect("a name"));
        function.failed(Trigger::Http, &Fault::Stopping, &Phases::default());
        function.ready(2_000_000);
        function.ready(3_000_000);
        assert_eq!(function.starts(), (2, 5_000_000));
        let text = metrics.render_text();
        for line in [
            "# HELP mote_invocations_total Invocations ended.",
            "# TYPE mote_invocations_total counter",
            "# TYPE mote_instances gauge",
            "mote_instances{function=\"thermo\"} 2",
            "mote_start_duration_seconds_count{function=\"thermo\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
    }

    #[test]
    fn counts_go_on_through_revisions_and_end_with_the_function() {
        let metrics = Metrics::default();
        let name = FunctionName::new("thermo").expect("a name");
        let first = metrics.function(&name);
        first.failed(Trigger::Http, &Fault::Stopping, &Phases::default());
        let second = metrics.function(&name);
        let total = |of: &FunctionMetrics| of.totals().iter().map(|(_, count)| count).sum::<u64>();
        assert_eq!(total(&second), 1, "a new revision begins with the function's counts");
        second.failed(Trigger::Coap, &Fault::Stopping, &Phases::default());
        assert_eq!(total(&first), 2);

        first.ready(1);
        metrics.forget(&name);
        first.ended("removed");
        assert!(!metrics.render().contains("thermo"), "a late end brings no series back");
        assert_eq!(total(&metrics.function(&name)), 0, "a function of the same name begins anew");
    }
}
