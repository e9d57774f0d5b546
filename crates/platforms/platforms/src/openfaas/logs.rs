//! Sends log lines, as one JSON object per line.

use std::convert::Infallible;

use crate::compat::part::Part;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use mote_api::Timestamp;
use mote_api::types::LogLine;
use mote_spec::name::split;
use serde::Deserialize;
use serde_json::json;

use super::{Gateway, Refused, unknown};

#[derive(Deserialize)]
pub(super) struct Asked {
    #[serde(default)]
    name: String,
    instance: Option<String>,
    tail: Option<i64>,
    follow: Option<String>,
    since: Option<String>,
}

pub(super) async fn read(
    State(gateway): State<Gateway>,
    part: Part,
    asked: Result<Query<Asked>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Refused> {
    let unusable = |text: String| Refused::new(StatusCode::UNPROCESSABLE_ENTITY, text);
    let Query(asked) = asked.map_err(|error| unusable(error.body_text()))?;
    if asked.name.is_empty() {
        return Err(unusable("name: the function whose log is wanted".to_owned()));
    }
    let since_us = match asked.since.as_deref().filter(|text| !text.is_empty()) {
        Some(text) => Timestamp::parse(text)
            .map_err(|_| unusable("since: not RFC 3339".to_owned()))?
            .unix_us(),
        None => 0,
    };
    let follow = match asked.follow.as_deref() {
        None | Some("" | "0" | "false") => false,
        Some("1" | "true") => true,
        Some(_) => return Err(unusable("follow: true or false".to_owned())),
    };
    let log = part.logs(&asked.name, follow).ok_or_else(|| unknown(&asked.name))?;
    let instance = asked.instance.filter(|instance| !instance.is_empty());
    let wanted = move |line: &LogLine| {
        line.time.unix_us() >= since_us
            && instance.as_ref().is_none_or(|wanted| line.instance.as_ref() == Some(wanted))
    };
    let mut held: Vec<LogLine> = log.held.into_iter().filter(|line| wanted(line)).collect();
    if let Some(tail) = asked.tail.and_then(|tail| usize::try_from(tail).ok()).filter(|n| *n > 0) {
        held.drain(..held.len().saturating_sub(tail));
    }
    let following = log.following.filter(move |line| std::future::ready(wanted(line)));
    let lines = futures_util::stream::iter(held).chain(following);
    // The answer ends when the node stops. Otherwise a client that follows the log would delay the
    // stop.
    let stop = gateway.stop.clone();
    let stopped = async move { stop.stopped().await };
    let lines = lines.take_until(Box::pin(stopped));
    let body =
        Body::from_stream(lines.map(move |line| Ok::<_, Infallible>(message(&line, part.shown()))));
    Ok(([("content-type", "application/x-ndjson")], body).into_response())
}

fn message(line: &LogLine, namespace: &str) -> Bytes {
    let message = json!({
        "name": split(&line.function).0,
        "namespace": namespace,
        "instance": line.instance.as_deref().unwrap_or_default(),
        "timestamp": line.time.to_string(),
        "text": line.message,
    });
    format!("{message}\n").into()
}
