//! Routes about the node as a whole.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use mote_api::types::{DoctorReport, NodeStatus};
use mote_tenants::namespaces::View;

use super::access::Seen;
use crate::{Node, doctor};

pub(super) async fn status(State(node): State<Arc<Node>>) -> Json<NodeStatus> {
    Json(node.status())
}

pub(super) async fn doctor(State(node): State<Arc<Node>>) -> Json<DoctorReport> {
    Json(doctor::report(&node).await)
}

pub(super) async fn openapi() -> impl IntoResponse {
    ([("content-type", "application/json")], mote_api::openapi::document())
}

/// Sends the metrics: as OpenMetrics to a scraper that accepts it, such as Prometheus, and in
/// Prometheus' older text format to all others.
pub(super) async fn metrics(
    State(node): State<Arc<Node>>,
    Seen(view): Seen,
    headers: HeaderMap,
) -> impl IntoResponse {
    let metrics = node.data_path.engine.metrics();
    let accepted = headers.get_all("accept").iter().filter_map(|value| value.to_str().ok());
    let wants_openmetrics = accepted.into_iter().any(|types| types.contains(OPENMETRICS));
    if wants_openmetrics {
        let kind = format!("{OPENMETRICS}; version=1.0.0; charset=utf-8");
        return ([("content-type", kind)], shown(metrics.render(), &view));
    }
    let kind = "text/plain; version=0.0.4; charset=utf-8".to_owned();
    ([("content-type", kind)], shown(metrics.render_text(), &view))
}

/// Returns the series of the functions in a view. A view of one namespace has no series of the node
/// as a whole.
fn shown(text: String, view: &View) -> String {
    if view.namespace().is_none() {
        return text;
    }
    let is_shown = |line: &&str| {
        let function = line.split_once("{function=\"").or_else(|| line.split_once(",function=\""));
        match function.and_then(|(_, rest)| rest.split_once('"')) {
            Some((name, _)) => !line.starts_with('#') && view.shows(name),
            None => line.starts_with('#'),
        }
    };
    text.lines().filter(is_shown).flat_map(|line| [line, "\n"]).collect()
}

const OPENMETRICS: &str = "application/openmetrics-text";

pub(super) async fn readyz(State(node): State<Arc<Node>>) -> impl IntoResponse {
    if node.is_ready() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "starting or stopping\n")
    }
}
