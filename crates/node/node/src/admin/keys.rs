//! Routes about the keys of callers. An answer contains a secret key only if the request made that
//! key.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use mote_api::Problem;
use mote_api::keys::{CallerKeyRequest, CallerKeys, NewCallerKey};
use mote_spec::name::of_kept;
use mote_tenants::namespaces::no_such_namespace;
use serde::de::DeserializeOwned;

use super::access::{Made, Seen};
use super::extract::Path;
use super::refused::{Refused, to_the_end};
use crate::{Node, keys};

pub(super) async fn list(
    State(node): State<Arc<Node>>,
    Seen(view): Seen,
) -> Result<Json<CallerKeys>, Refused> {
    let mut list = keys::list(&node.opened.store).await?;
    list.keys.retain(|key| view.shows_kept(&key.name));
    Ok(Json(list))
}

pub(super) async fn create(
    State(node): State<Arc<Node>>,
    Seen(view): Seen,
    body: Bytes,
) -> Result<(StatusCode, Extension<Made>, Json<NewCallerKey>), Refused> {
    let mut wish: CallerKeyRequest = read(&body)?;
    let foreign = || no_such_namespace(of_kept(&wish.name).0.unwrap_or_default());
    wish.name = view.kept(&wish.name).ok_or_else(foreign)?;
    let created = to_the_end(async move {
        keys::create(&node.opened.store, &node.callers, &node.tenants.namespaces, wish).await
    })
    .await?;
    Ok((StatusCode::CREATED, Extension(Made(created.name.clone())), Json(created)))
}

pub(super) async fn rotate(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<NewCallerKey>, Refused> {
    let wish = read(if body.is_empty() { b"{}" } else { &body })?;
    Ok(Json(
        to_the_end(
            async move { keys::rotate(&node.opened.store, &node.callers, name, wish).await },
        )
        .await?,
    ))
}

pub(super) async fn revoke(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
) -> Result<StatusCode, Refused> {
    to_the_end(async move { keys::revoke(&node.opened.store, &node.callers, name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body)
        .map_err(|error| Problem::new(422, "M1403", format!("key: {error}")))
}
