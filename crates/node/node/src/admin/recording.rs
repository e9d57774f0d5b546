//! The route that shows the calls of one function as they happen: one JSON object per line.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use mote_api::Problem;
use tokio::time::{Instant, timeout_at};

use super::refused::Refused;
use crate::Node;
use crate::functions::find;

/// After this time, a recording ends, because somebody may have forgotten it.
const LONGEST: Duration = Duration::from_secs(3_600);

pub(super) async fn read(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
) -> Result<Response, Refused> {
    let engine = &node.data_path.engine;
    let name = find(engine, &name)?.spec.name.to_string();
    let recording = node.recordings.begin(engine, &name).map_err(|_| {
        Problem::new(429, "M1411", format!("{name}: too many recordings are running")).with_hint(
            "a node runs 16 at once, 4 of one function; end one, or wait: each ends after an hour",
        )
    })?;
    let end = Instant::now() + LONGEST;
    let lines = futures_util::stream::unfold(recording, move |mut recording| async move {
        let call = timeout_at(end, recording.next()).await.ok()??;
        let mut line = serde_json::to_vec(&call).unwrap_or_default();
        line.push(b'\n');
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(line)), recording))
    });
    let headers = [("content-type", "application/jsonl")];
    Ok((headers, Body::from_stream(lines)).into_response())
}
