//! The route for the log lines of one function, one JSON object per line. If the client asks for
//! it, new lines follow.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::ready;
use mote_api::types::LogLine;
use mote_api::{Problem, Timestamp};
use mote_process::clock;
use serde::Deserialize;

use super::refused::Refused;
use crate::Node;
use crate::functions::{find, log_lines};

#[derive(Deserialize)]
pub(super) struct LogQuery {
    #[serde(default)]
    follow: bool,
    since: Option<String>,
    tail: Option<u64>,
    invocation: Option<String>,
}

pub(super) async fn read(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    Query(query): Query<LogQuery>,
) -> Result<Response, Refused> {
    let log = match find(&node.data_path.engine, &name) {
        Ok(revision) => revision.log.clone(),
        // The function may never have been live. Then the log of its failed deploy may still be
        // there.
        Err(unknown) => node.deploys.failed_logs.of(&name).ok_or(unknown)?,
    };
    let since_ms = match &query.since {
        Some(text) => since(text)?,
        None => 0,
    };
    let wanted = {
        let invocation = query.invocation.clone();
        move |line: &LogLine| {
            line.time.unix_ms() >= since_ms
                && invocation.as_ref().is_none_or(|id| line.invocation.as_ref() == Some(id))
        }
    };
    let (mut lines, following) = log_lines(&name, &log, query.follow);
    // A follower must not hold the log, so that the stream ends when the function is removed.
    drop(log);
    lines.retain(|line| wanted(line));
    if let Some(tail) = query.tail {
        let skip = lines.len().saturating_sub(usize::try_from(tail).unwrap_or(usize::MAX));
        lines.drain(..skip);
    }
    let first: Bytes = lines.iter().map(json).collect::<String>().into();
    let following = following
        .filter(move |line| ready(wanted(line)))
        .map(|line| Ok::<_, std::convert::Infallible>(Bytes::from(json(&line))));
    let first = futures_util::stream::iter((!first.is_empty()).then_some(Ok(first)));
    let stream = first.chain(following);
    let headers = [("content-type", "application/jsonl")];
    Ok((headers, Body::from_stream(stream)).into_response())
}

/// Reads a time, or a duration before now, as milliseconds since 1970.
fn since(text: &str) -> Result<u64, Problem> {
    if let Ok(ms) = mote_spec::quantity::parse_duration_ms(text) {
        return Ok(clock::unix_ms().saturating_sub(ms));
    }
    Timestamp::parse(text).map(|time| time.unix_ms()).map_err(|_| {
        Problem::new(400, "M1403", "since: a duration such as 10m, or an RFC 3339 time")
            .with_field("since")
    })
}

fn json(line: &LogLine) -> String {
    let mut text = serde_json::to_string(line).unwrap_or_default();
    text.push('\n');
    text
}
