//! Routes that store and remove secrets. No answer contains a value.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use mote_api::types::{Secret, SecretList};

use super::access::Seen;
use super::extract::Path;
use super::refused::{Refused, to_the_end};
use crate::{Node, secrets};

pub(super) async fn list(
    State(node): State<Arc<Node>>,
    Seen(view): Seen,
) -> Result<Json<SecretList>, Refused> {
    let mut list = secrets::list(&node.opened.store, &node.data_path.engine).await?;
    list.secrets.retain(|secret| view.shows_kept(&secret.name));
    Ok(Json(list))
}

pub(super) async fn put(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    body: Body,
) -> Result<(StatusCode, Json<Secret>), Refused> {
    let bytes = axum::body::to_bytes(body, secrets::VALUE_BYTES_MAX).await;
    let value = bytes.ok().and_then(|bytes| String::from_utf8(bytes.into()).ok());
    let value = value.ok_or_else(secrets::not_a_value)?;
    let keeper = node.clone();
    let wanted = name.clone();
    let put = async move {
        secrets::put(
            &keeper.opened.store,
            &keeper.data_path.engine,
            &keeper.tenants.namespaces,
            wanted,
            value,
            None,
        )
        .await
    };
    let status = if to_the_end(put).await? { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(secrets::described(&node.data_path.engine, name))))
}

pub(super) async fn remove(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
) -> Result<StatusCode, Refused> {
    to_the_end(
        async move { secrets::remove(&node.opened.store, &node.data_path.engine, name).await },
    )
    .await?;
    Ok(StatusCode::NO_CONTENT)
}
