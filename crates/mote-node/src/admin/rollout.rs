//! Routes about the revisions of a function and the split of its traffic.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use bytes::Bytes;
use mote_api::Problem;
use mote_api::types::{RevisionList, TrafficRequest, TrafficResult};
use mote_core::FunctionName;
use serde::Deserialize;

use super::{Refused, to_the_end};
use crate::functions::find;
use crate::{Node, rollout};

pub(super) async fn revisions(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
) -> Result<Json<RevisionList>, Refused> {
    let name = known(&node, &name)?;
    Ok(Json(rollout::revisions(&node, &name).await?))
}

pub(super) async fn traffic(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<TrafficResult>, Refused> {
    let name = known(&node, &name)?;
    let wish: TrafficRequest = serde_json::from_slice(&body).map_err(|error| {
        Problem::new(400, "M1403", format!("traffic: {error}")).with_field("shares")
    })?;
    let moved = to_the_end(async move { rollout::set_traffic(&node, &name, wish.shares).await });
    Ok(Json(moved.await?))
}

#[derive(Deserialize)]
pub(super) struct RollbackQuery {
    revision: Option<u64>,
}

pub(super) async fn rollback(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    Query(query): Query<RollbackQuery>,
) -> Result<Json<TrafficResult>, Refused> {
    let name = known(&node, &name)?;
    let moved = to_the_end(async move { rollout::rollback(&node, &name, query.revision).await });
    Ok(Json(moved.await?))
}

fn known(node: &Node, name: &str) -> Result<FunctionName, Refused> {
    Ok(find(&node.engine, name)?.spec.name.clone())
}
