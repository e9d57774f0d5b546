//! Routes about the pods of a cluster that wait for functions.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use mote_api::Problem;
use mote_api::pods::PodList;

use super::Refused;
use crate::Node;

pub(super) async fn list(State(node): State<Arc<Node>>) -> Json<PodList> {
    Json(node.pods.as_ref().map(|pods| pods.list()).unwrap_or_default())
}

pub(super) async fn put(
    State(node): State<Arc<Node>>,
    body: Bytes,
) -> Result<Json<PodList>, Refused> {
    let Some(pods) = &node.pods else {
        let off = Problem::new(409, "M1402", "the node is not a cell, so it claims no pods");
        return Err(off.with_hint("start it with --cell ADDR:PORT and --cell-key FILE").into());
    };
    let wish = serde_json::from_slice(&body)
        .map_err(|error| Problem::new(422, "M1403", format!("pods: {error}")))?;
    Ok(Json(pods.put(&wish)?))
}
