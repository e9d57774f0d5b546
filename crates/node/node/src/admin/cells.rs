//! Routes about the other cells of a cluster.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use mote_api::Problem;
use mote_api::cells::CellList;

use super::refused::Refused;
use crate::Node;

pub(super) async fn list(State(node): State<Arc<Node>>) -> Json<CellList> {
    Json(node.cells.as_ref().map(|cells| cells.list()).unwrap_or_default())
}

pub(super) async fn put(
    State(node): State<Arc<Node>>,
    body: Bytes,
) -> Result<Json<CellList>, Refused> {
    let Some(cells) = &node.cells else {
        let off = Problem::new(409, "M1402", "the node does not listen for cells");
        return Err(off.with_hint("start it with --cell ADDR:PORT and --cell-key FILE").into());
    };
    let wish = serde_json::from_slice(&body)
        .map_err(|error| Problem::new(422, "M1403", format!("cells: {error}")))?;
    Ok(Json(cells.put(&wish)?))
}
