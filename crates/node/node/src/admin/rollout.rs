//! Routes about the revisions of a function and the split of its traffic.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use bytes::Bytes;
use mote_api::Problem;
use mote_api::types::{DeployResult, RevisionList, TrafficRequest, TrafficResult};
use mote_core::rollout::Traffic;
use mote_engine::Engine;
use mote_spec::FunctionName;
use serde::Deserialize;

use super::extract::{Path, Query};
use super::functions::upload;
use super::refused::{Refused, to_the_end};
use crate::functions::find;
use crate::{Node, deploy, rollout};

pub(super) async fn revisions(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
) -> Result<Json<RevisionList>, Refused> {
    let name = known(&node.data_path.engine, &name)?;
    Ok(Json(rollout::revisions(&node.opened.store, &node.data_path.engine, &name).await?))
}

pub(super) async fn traffic(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<TrafficResult>, Refused> {
    let name = known(&node.data_path.engine, &name)?;
    let wish: TrafficRequest = serde_json::from_slice(&body).map_err(|error| {
        Problem::new(400, "M1403", format!("traffic: {error}")).with_field("shares")
    })?;
    let moved = to_the_end(async move { rollout::set_traffic(&node, &name, wish.shares).await });
    Ok(Json(moved.await?))
}

/// The query of a request in which an agent places a revision that its cluster has chosen.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlaceQuery {
    /// Whether an instance of each new revision must become ready first.
    #[serde(default)]
    warm: bool,
}

pub(super) async fn place(
    State(node): State<Arc<Node>>,
    Path((name, number)): Path<(String, u64)>,
    Query(PlaceQuery { warm }): Query<PlaceQuery>,
    request: Request,
) -> Result<(StatusCode, Json<DeployResult>), Refused> {
    let place = Some(deploy::Place { number, warm });
    let options = deploy::Options {
        dry_run: false,
        no_traffic: true,
        if_changed: false,
        tag: None,
        registry_login: None,
        place,
    };
    Ok((StatusCode::CREATED, Json(upload(node, name, request, options).await?)))
}

pub(super) async fn split(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    Query(PlaceQuery { warm }): Query<PlaceQuery>,
    body: Bytes,
) -> Result<Json<TrafficResult>, Refused> {
    let name = FunctionName::new(&name)
        .map_err(|error| Problem::new(422, "M0303", error.to_string()).with_field("name"))?;
    let then: Traffic = serde_json::from_slice(&body).map_err(|error| {
        Problem::new(400, "M1403", format!("split: {error}")).with_field("split")
    })?;
    let moved = to_the_end(async move { rollout::set_split(&node, &name, then, warm).await });
    Ok(Json(moved.await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RollbackQuery {
    revision: Option<u64>,
}

pub(super) async fn rollback(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    Query(query): Query<RollbackQuery>,
) -> Result<Json<TrafficResult>, Refused> {
    let name = known(&node.data_path.engine, &name)?;
    let moved = to_the_end(async move { rollout::rollback(&node, &name, query.revision).await });
    Ok(Json(moved.await?))
}

fn known(engine: &Engine, name: &str) -> Result<FunctionName, Refused> {
    Ok(find(engine, name)?.spec.name.clone())
}
