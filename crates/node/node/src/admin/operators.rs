//! Routes about the tokens of those who manage the node, and about the record of their acts. Only
//! the answer to the request that makes a token contains the token.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use mote_api::Problem;
use mote_api::operators::{AuditLog, NewOperatorToken, OperatorTokenRequest, OperatorTokens};
use mote_process::clock;
use mote_tenants::operators::tokens;
use serde::Deserialize;

use super::access::{Made, Seen};
use super::extract::{Path, Query};
use super::refused::{Refused, to_the_end};
use crate::store_work::{blocking, internal, with_store};
use crate::{Node, operators};

/// The number of entries in an answer: the default, and the maximum.
const ENTRIES_DEFAULT: usize = 100;
const ENTRIES_MAX: usize = 10_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditQuery {
    limit: Option<usize>,
}

pub(super) async fn list(
    State(node): State<Arc<Node>>,
    Seen(view): Seen,
) -> Result<Json<OperatorTokens>, Refused> {
    let mut list = with_store(&node.opened.store, tokens::list).await?;
    if let Some(namespace) = view.namespace() {
        list.tokens.retain(|token| token.namespace.as_deref() == Some(&**namespace));
    }
    Ok(Json(list))
}

pub(super) async fn create(
    State(node): State<Arc<Node>>,
    body: Bytes,
) -> Result<(StatusCode, Extension<Made>, Json<NewOperatorToken>), Refused> {
    let wish: OperatorTokenRequest = serde_json::from_slice(&body)
        .map_err(|error| Problem::new(422, "M1403", format!("token: {error}")))?;
    // The change lasts until the token is made, so that a removal of the namespace also finds this
    // token.
    let namespace = wish.namespace.as_ref();
    let change =
        namespace.map(|namespace| node.tenants.namespaces.change(namespace)).transpose()?;
    let now_ms = clock::unix_ms();
    let create = move |store: &_, operators: &_| tokens::create(store, operators, wish, now_ms);
    let created = to_the_end(async move {
        let created = operators::changed(&node.opened.store, &node.tenants, create).await;
        drop(change);
        created
    });
    let created = created.await?;
    Ok((StatusCode::CREATED, Extension(Made(created.name.clone())), Json(created)))
}

pub(super) async fn revoke(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
) -> Result<StatusCode, Refused> {
    let revoke = move |store: &_, operators: &_| tokens::revoke(store, operators, &name);
    to_the_end(async move { operators::changed(&node.opened.store, &node.tenants, revoke).await })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn audit(
    State(node): State<Arc<Node>>,
    Query(query): Query<AuditQuery>,
) -> Result<Json<AuditLog>, Refused> {
    let most = query.limit.unwrap_or(ENTRIES_DEFAULT).min(ENTRIES_MAX);
    let audit = node.tenants.audit.clone();
    let read = blocking(move || audit.latest(most)).await.map_err(|error| internal(&error))?;
    let entries = read.map_err(|error| {
        Problem::new(500, "M0704", format!("the record of acts: {error}"))
            .with_hint("check the data folder and its permissions")
    })?;
    Ok(Json(AuditLog { entries }))
}
