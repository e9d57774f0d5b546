//! What functions use now, for scrapes: their queues, running calls, memory and processor time, and
//! the memory budget of the node. A function with neither instances nor waiting calls has no
//! series.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use crate::Engine;

/// Reads the figures at each scrape: one small file for each instance.
pub struct FunctionGauges(pub Engine);

impl fmt::Debug for FunctionGauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FunctionGauges")
    }
}

#[derive(Default)]
struct Figures {
    queued: u64,
    running: u64,
    memory_bytes: u64,
    memory_limit_bytes: u64,
    /// Of the instances that run, and of those that have ended.
    cpu_ns: u64,
    ended_cpu_ns: u64,
}

impl FunctionGauges {
    fn figures(&self) -> BTreeMap<String, Figures> {
        let mut all: BTreeMap<String, Figures> = BTreeMap::new();
        for revision in self.0.revisions() {
            let status = revision.status();
            let ended_ns = revision.ended_cpu_ns();
            if status.instances.is_empty() && status.queued == 0 && ended_ns == 0 {
                continue;
            }
            let figures = all.entry(revision.spec.name.to_string()).or_default();
            figures.queued += status.queued as u64;
            // All revisions of a function share this sum.
            figures.ended_cpu_ns = ended_ns;
            for instance in status.instances {
                figures.running += instance.in_flight as u64;
                figures.memory_bytes += instance.memory_bytes.unwrap_or(0);
                figures.memory_limit_bytes += revision.spec.limits.memory_bytes;
                figures.cpu_ns += instance.cpu_ns.unwrap_or(0);
            }
        }
        all
    }
}

impl FunctionGauges {
    /// Bytes sent and received by destination. All revisions of a function share them.
    fn egress(&self) -> BTreeMap<String, Vec<(String, u64, u64)>> {
        let revisions = self.0.revisions().into_iter();
        let all = revisions
            .map(|revision| (revision.spec.name.to_string(), revision.metrics.egress.all()));
        all.filter(|(_, destinations)| !destinations.is_empty()).collect()
    }
}

impl Collector for FunctionGauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let all = self.figures();
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        type Figure = fn(&Figures) -> u64;
        let gauges: [(&str, &str, Option<&Unit>, Figure); 4] = [
            ("queue_length", "Invocations that wait", None, |figures| figures.queued),
            ("running_invocations", "Invocations that run", None, |figures| figures.running),
            ("function_memory", "Memory that the instances use", Some(&Unit::Bytes), |figures| {
                figures.memory_bytes
            }),
            (
                "function_memory_limit",
                "Memory that the instances may use",
                Some(&Unit::Bytes),
                |figures| figures.memory_limit_bytes,
            ),
        ];
        for (name, help, unit, figure) in gauges {
            let kind = ConstGauge::new(0_i64).metric_type();
            let mut family = encoder.encode_descriptor(name, help, unit, kind)?;
            for (function, figures) in &all {
                let labels = [("function", function.as_str())];
                ConstGauge::new(whole(figure(figures))).encode(family.encode_family(&labels)?)?;
            }
        }
        let kind = ConstCounter::new(0.0_f64).metric_type();
        let help = "Processor time of the instances";
        let mut family =
            encoder.encode_descriptor("function_cpu", help, Some(&Unit::Seconds), kind)?;
        for (function, figures) in &all {
            let seconds = (figures.cpu_ns + figures.ended_cpu_ns) as f64 / 1e9;
            let labels = [("function", function.as_str())];
            ConstCounter::new(seconds).encode(family.encode_family(&labels)?)?;
        }
        let egress = self.egress();
        let kind = ConstCounter::new(0_u64).metric_type();
        let help = "Bytes to and from the destinations of functions";
        let mut family = encoder.encode_descriptor("egress", help, Some(&Unit::Bytes), kind)?;
        for (function, destinations) in &egress {
            for (destination, sent, received) in destinations {
                for (direction, bytes) in [("sent", sent), ("received", received)] {
                    let labels = [
                        ("function", function.as_str()),
                        ("destination", destination.as_str()),
                        ("direction", direction),
                    ];
                    ConstCounter::new(*bytes).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        let ledger = self.0.ledger_status();
        for (name, help, bytes) in [
            ("node_memory_budget", "Memory for all instances together", ledger.budget.memory_bytes),
            ("node_memory_reserved", "The part of it that instances have", ledger.taken_bytes),
        ] {
            let gauge = ConstGauge::new(whole(bytes));
            let unit = Some(&Unit::Bytes);
            let metric = encoder.encode_descriptor(name, help, unit, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        Ok(())
    }
}
