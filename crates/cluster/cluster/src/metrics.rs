//! The metrics of the controller and the agents, in the text format OpenMetrics, which Prometheus
//! reads.
//!
//! A counter costs one atomic addition. The numbers of existing things, such as functions, are
//! computed for each request. All labels come from closed lists.

use std::sync::Arc;

use axum::http::{Method, Request, Uri};
use axum::response::{IntoResponse as _, Response};
use kube::client::ClientBuilder;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tower::util::MapRequestLayer;

use crate::work::Work;

/// The content type of the answer.
const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Resources that can appear in a label. Every other resource is labelled `other`.
const RESOURCES: [&str; 7] =
    ["functions", "functionrevisions", "cells", "pods", "secrets", "leases", "events"];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: &'static str,
    resource: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    state: String,
}

/// The metrics of one process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Metrics {
    registry: Arc<Mutex<Registry>>,
    requests: Family<RequestLabels, Counter>,
    functions: Family<KindLabel, Gauge>,
    cells: Family<KindLabel, Gauge>,
    queue: Gauge,
    work: Work,
}

impl Metrics {
    /// Creates metrics whose names begin with `prefix`.
    pub(crate) fn new(prefix: &'static str, work: &Work) -> Self {
        let mut registry = Registry::with_prefix(prefix);
        let metrics = Self {
            registry: Arc::default(),
            requests: Family::default(),
            functions: Family::default(),
            cells: Family::default(),
            queue: Gauge::default(),
            work: work.clone(),
        };
        registry.register("functions", "Functions by state", metrics.functions.clone());
        registry.register("cells", "Cells by state", metrics.cells.clone());
        registry.register(
            "queue_length",
            "Functions that wait to be looked at",
            metrics.queue.clone(),
        );
        registry.register("reconciles", "Functions looked at", work.handled.clone());
        registry.register(
            "reconcile_failures",
            "Attempts that will be repeated",
            work.failed.clone(),
        );
        registry.register("api_requests", "Requests to the API server", metrics.requests.clone());
        *metrics.registry.lock() = registry;
        metrics
    }

    /// Creates a client of the API server that the environment of a pod or a kubeconfig names. The
    /// client's requests are counted.
    pub(crate) async fn client(&self) -> Result<kube::Client, kube::Error> {
        let config = kube::Config::infer().await.map_err(kube::Error::InferConfig)?;
        let requests = self.requests.clone();
        let count = MapRequestLayer::new(move |request: Request<kube::client::Body>| {
            requests.get_or_create(&labels(request.method(), request.uri())).inc();
            request
        });
        Ok(ClientBuilder::try_from(config)?.with_layer(&count).build())
    }

    /// Answers a request for all metrics. The arguments list the state of each function and of each
    /// cell.
    pub(crate) fn answer(
        &self,
        functions: impl IntoIterator<Item = String>,
        cells: impl IntoIterator<Item = &'static str>,
    ) -> Response {
        let mut text = String::new();
        // The lock keeps two concurrent requests from mixing their numbers.
        let registry = self.registry.lock();
        self.functions.clear();
        self.cells.clear();
        let gauge = |of: &Family<KindLabel, Gauge>, state: String| {
            of.get_or_create(&KindLabel { state }).inc();
        };
        functions.into_iter().for_each(|state| gauge(&self.functions, state));
        cells.into_iter().for_each(|state| gauge(&self.cells, state.to_owned()));
        self.queue.set(i64::try_from(self.work.len()).unwrap_or(i64::MAX));
        let encoded = encode(&mut text, &registry);
        debug_assert!(encoded.is_ok(), "a String takes everything");
        ([("content-type", TYPE)], text).into_response()
    }
}

/// Returns the verb and the resource of a request, in the words of Kubernetes.
fn labels(method: &Method, uri: &Uri) -> RequestLabels {
    // Path: /apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE/NAME, or below /api without the
    // group.
    let mut parts = uri.path().split('/').skip_while(|part| *part != "namespaces").skip(2);
    let resource = parts.next().unwrap_or_default();
    let is_named = parts.next().is_some_and(|name| !name.is_empty());
    let is_watch = uri.query().is_some_and(|query| query.split('&').any(|it| it == "watch=true"));
    let verb = match *method {
        Method::GET if is_watch => "watch",
        Method::GET if is_named => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    };
    let resource = RESOURCES.into_iter().find(|known| *known == resource).unwrap_or("other");
    RequestLabels { verb, resource }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_named_as_kubernetes_names_them() {
        let cases = [
            (Method::GET, "/apis/mote.dev/v1alpha1/namespaces/default/functions", "list functions"),
            (
                Method::GET,
                "/apis/mote.dev/v1alpha1/namespaces/default/functions?&watch=true&timeoutSeconds=290",
                "watch functions",
            ),
            (
                Method::PATCH,
                "/apis/mote.dev/v1alpha1/namespaces/default/functions/hello/status",
                "patch functions",
            ),
            (Method::GET, "/api/v1/namespaces/mote-system/secrets/mote-keys", "get secrets"),
            (
                Method::PUT,
                "/apis/coordination.k8s.io/v1/namespaces/mote-system/leases/mote-controller",
                "update leases",
            ),
            (Method::GET, "/api/v1/namespaces/namespaces/pods/pods", "get pods"),
            (Method::GET, "/version", "list other"),
            (Method::POST, "/api/v1/namespaces/default/configmaps", "create other"),
        ];
        for (method, path, said) in cases {
            let found = labels(&method, &path.parse().expect("a path"));
            assert_eq!(format!("{} {}", found.verb, found.resource), said, "{method} {path}");
        }
    }

    #[tokio::test]
    async fn an_answer_has_each_state_once_and_no_state_of_before() {
        let work = Work::default();
        work.add("a");
        let metrics = Metrics::new("mote_cluster", &work);
        let text = async |functions: &[&str]| {
            let functions = functions.iter().map(|state| (*state).to_owned());
            let answer = metrics.answer(functions, ["live", "live", "silent"]);
            let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.expect("a body");
            String::from_utf8(body.to_vec()).expect("text")
        };
        let first = text(&["Serving", "Serving", "Invalid"]).await;
        for line in [
            "mote_cluster_functions{state=\"Serving\"} 2",
            "mote_cluster_functions{state=\"Invalid\"} 1",
            "mote_cluster_cells{state=\"silent\"} 1",
            "mote_cluster_queue_length 1",
            "mote_cluster_reconciles_total 0",
        ] {
            assert!(first.lines().any(|found| found == line), "{line} is not in\n{first}");
        }
        work.next().await;
        work.done("a");
        let second = text(&["Serving"]).await;
        assert!(!second.contains("Invalid"), "{second}");
        for line in ["mote_cluster_reconciles_total 1", "mote_cluster_queue_length 0"] {
            assert!(second.lines().any(|found| found == line), "{line} is not in\n{second}");
        }
    }
}
