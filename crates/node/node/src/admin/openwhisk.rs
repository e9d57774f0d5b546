//! The route that accepts the entities of an OpenWhisk manifest.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use mote_api::Problem;
use mote_api::openwhisk::{WhiskManifest, WhiskResult};

use super::refused::{Refused, to_the_end};
use crate::Node;

pub(super) async fn apply(
    State(node): State<Arc<Node>>,
    body: Bytes,
) -> Result<Json<WhiskResult>, Refused> {
    let Some(manifests) = node.openwhisk.clone() else {
        let problem = Problem::new(409, "M0416", "the node's OpenWhisk API is off");
        return Err(problem.with_hint("start the node with it: mote up --openwhisk on").into());
    };
    let manifest: WhiskManifest = serde_json::from_slice(&body)
        .map_err(|error| Problem::new(400, "M1403", format!("openwhisk: {error}")))?;
    Ok(Json(to_the_end(async move { manifests.apply(manifest).await }).await?))
}
