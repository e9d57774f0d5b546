//! Routes about namespaces.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use mote_api::Problem;
use mote_api::namespaces::{Namespace, NamespaceList, NamespaceRequest, Quotas};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::access::Seen;
use super::extract::{Path, Query};
use super::refused::{Refused, to_the_end};
use crate::{Node, namespaces};

pub(super) async fn list(
    State(node): State<Arc<Node>>,
    Seen(view): Seen,
) -> Result<Json<NamespaceList>, Refused> {
    let mut all = namespaces::list(&node).await?;
    if let Some(own) = view.scope().namespace() {
        all.retain(|one| one.name == **own);
    }
    Ok(Json(NamespaceList { namespaces: all }))
}

pub(super) async fn describe(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
) -> Result<Json<Namespace>, Refused> {
    Ok(Json(namespaces::describe(&node, &name).await?))
}

pub(super) async fn create(
    State(node): State<Arc<Node>>,
    body: Bytes,
) -> Result<(StatusCode, Json<Namespace>), Refused> {
    let wish: NamespaceRequest = read(&body)?;
    let created = to_the_end(async move { namespaces::create(&node, wish).await }).await?;
    Ok((StatusCode::CREATED, Json(created)))
}

pub(super) async fn update(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<Namespace>, Refused> {
    let quotas: Quotas = read(&body)?;
    Ok(Json(to_the_end(async move { namespaces::update(&node, &name, quotas).await }).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteQuery {
    #[serde(default)]
    force: bool,
}

pub(super) async fn delete(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    Query(DeleteQuery { force }): Query<DeleteQuery>,
) -> Result<StatusCode, Refused> {
    to_the_end(async move { namespaces::delete(&node, &name, force).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body)
        .map_err(|error| Problem::new(422, "M1403", format!("namespace: {error}")))
}
