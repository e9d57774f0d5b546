//! The gateway's own metrics, under the names that dashboards for OpenFaaS query.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use axum::extract::State;
use axum::response::IntoResponse;

use crate::compat::part::Part;

use super::{Gateway, with_namespace};

/// The upper bounds of the histogram's buckets in seconds. They are Prometheus' usual bounds.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Counts calls through this gateway, by function and status. When the metrics are read, removed
/// functions are dropped, so the number of existing functions bounds the memory.
#[derive(Default)]
pub(super) struct Metrics {
    by_function: Mutex<BTreeMap<String, Counts>>,
}

#[derive(Default)]
struct Counts {
    started: u64,
    ended: BTreeMap<u16, Ended>,
}

#[derive(Default)]
struct Ended {
    count: u64,
    seconds: f64,
    buckets: [u64; BUCKETS.len()],
}

impl Metrics {
    /// Counts the start of a call to a function that exists.
    pub(super) fn started(&self, function: &str) {
        let mut all = self.by_function.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(function.to_owned()).or_default().started += 1;
    }

    /// Counts the answer to a call.
    pub(super) fn ended(&self, function: &str, status: u16, seconds: f64) {
        let mut all = self.by_function.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(counts) = all.get_mut(function) else { return };
        let ended = counts.ended.entry(status).or_default();
        ended.count += 1;
        ended.seconds += seconds;
        for (bound, count) in BUCKETS.iter().zip(&mut ended.buckets) {
            *count += u64::from(seconds <= *bound);
        }
    }

    /// Drops the counts of functions that no longer exist.
    fn keep(&self, exists: impl Fn(&str) -> bool) {
        let mut all = self.by_function.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|name, _| exists(name));
    }

    fn render(&self, services: &[(String, u32)]) -> String {
        let all = self.by_function.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = |name: &&String| services.iter().any(|(service, _)| service == *name);
        let mut total = String::from("# TYPE gateway_function_invocation_total counter\n");
        let mut started = String::from("# TYPE gateway_function_invocation_started counter\n");
        let mut seconds = String::from("# TYPE gateway_functions_seconds histogram\n");
        for (name, counts) in all.iter().filter(|(name, _)| shown(name)) {
            let label = format!("function_name=\"{}\"", with_namespace(name));
            let _ = writeln!(
                started,
                "gateway_function_invocation_started{{{label}}} {}",
                counts.started
            );
            for (code, ended) in &counts.ended {
                let label = format!("{label},code=\"{code}\"");
                let _ =
                    writeln!(total, "gateway_function_invocation_total{{{label}}} {}", ended.count);
                for (bound, count) in BUCKETS.iter().zip(ended.buckets) {
                    let _ = writeln!(
                        seconds,
                        "gateway_functions_seconds_bucket{{{label},le=\"{bound}\"}} {count}"
                    );
                }
                let Ended { count, seconds: sum, .. } = ended;
                let _ = writeln!(
                    seconds,
                    "gateway_functions_seconds_bucket{{{label},le=\"+Inf\"}} {count}\n\
                     gateway_functions_seconds_sum{{{label}}} {sum}\n\
                     gateway_functions_seconds_count{{{label}}} {count}"
                );
            }
        }
        let mut service = String::from("# TYPE gateway_service_count gauge\n");
        for (name, count) in services {
            let label = format!("function_name=\"{}\"", with_namespace(name));
            let _ = writeln!(service, "gateway_service_count{{{label}}} {count}");
        }
        format!("{total}{started}{seconds}{service}")
    }
}

pub(super) async fn show(State(gateway): State<Gateway>, part: Part) -> impl IntoResponse {
    let functions = part.visible();
    let services: Vec<_> =
        functions.iter().map(|one| (one.spec.name.to_string(), one.instances)).collect();
    gateway.metrics.keep(|name| gateway.calls.body_bytes_max(name).is_some());
    let kind = [("content-type", "text/plain; version=0.0.4; charset=utf-8")];
    (kind, gateway.metrics.render(&services))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_function_and_code() {
        let metrics = Metrics::default();
        metrics.started("a");
        metrics.ended("a", 200, 0.02);
        metrics.started("gone");
        metrics.ended("never-started", 200, 1.0);
        metrics.started("of.plant");
        metrics.keep(|name| name != "gone");
        let text = metrics.render(&[("a".to_owned(), 2)]);
        for line in [
            "gateway_function_invocation_total{function_name=\"a.openfaas-fn\",code=\"200\"} 1",
            "gateway_function_invocation_started{function_name=\"a.openfaas-fn\"} 1",
            "gateway_functions_seconds_bucket{function_name=\"a.openfaas-fn\",code=\"200\",le=\"0.01\"} 0",
            "gateway_functions_seconds_bucket{function_name=\"a.openfaas-fn\",code=\"200\",le=\"0.025\"} 1",
            "gateway_functions_seconds_count{function_name=\"a.openfaas-fn\",code=\"200\"} 1",
            "gateway_service_count{function_name=\"a.openfaas-fn\"} 2",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("gone") && !text.contains("never"), "{text}");
        assert!(!text.contains("plant"), "a reader who may not know of it: {text}");
        let text = metrics.render(&[("of.plant".to_owned(), 1)]);
        assert!(text.contains("started{function_name=\"of.plant\"} 1"), "{text}");
    }
}
