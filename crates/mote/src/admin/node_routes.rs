//! Routes that speak of the node as a whole.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use mote_api::types::{DoctorReport, NodeStatus};

use crate::node::{Node, doctor};

pub(super) async fn status(State(node): State<Arc<Node>>) -> Json<NodeStatus> {
    Json(node.status())
}

pub(super) async fn doctor(State(node): State<Arc<Node>>) -> Json<DoctorReport> {
    Json(doctor::report(&node).await)
}

pub(super) async fn openapi() -> impl IntoResponse {
    ([("content-type", "application/json")], mote_api::openapi::document())
}

pub(super) async fn metrics(State(node): State<Arc<Node>>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([("content-type", kind)], node.engine.metrics().render())
}

pub(super) async fn readyz(State(node): State<Arc<Node>>) -> impl IntoResponse {
    if node.is_ready() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "starting or stopping\n")
    }
}
