//! Routes about the node as a whole.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use mote_api::types::{DoctorReport, NodeStatus};

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

/// Sends OpenMetrics to a scraper that asks for it, as Prometheus does, and Prometheus' older text
/// format to all others.
pub(super) async fn metrics(
    State(node): State<Arc<Node>>,
    headers: HeaderMap,
) -> impl IntoResponse {
    let metrics = node.engine.metrics();
    let accepted = headers.get_all("accept").iter().filter_map(|value| value.to_str().ok());
    let wants_openmetrics = accepted.into_iter().any(|types| types.contains(OPENMETRICS));
    if wants_openmetrics {
        let kind = format!("{OPENMETRICS}; version=1.0.0; charset=utf-8");
        return ([("content-type", kind)], metrics.render());
    }
    let kind = "text/plain; version=0.0.4; charset=utf-8".to_owned();
    ([("content-type", kind)], metrics.render_text())
}

const OPENMETRICS: &str = "application/openmetrics-text";

pub(super) async fn readyz(State(node): State<Arc<Node>>) -> impl IntoResponse {
    if node.is_ready() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "starting or stopping\n")
    }
}
