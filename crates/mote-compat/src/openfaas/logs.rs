//! Log lines, one JSON object per line.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use mote_api::Timestamp;
use mote_api::types::LogLine;
use serde::Deserialize;
use serde_json::json;

use super::{Gateway, NAMESPACE, Refused, check_namespace};

#[derive(Deserialize)]
pub(super) struct Asked {
    #[serde(default)]
    name: String,
    namespace: Option<String>,
    instance: Option<String>,
    tail: Option<i64>,
    follow: Option<String>,
    since: Option<String>,
}

pub(super) async fn read(
    State(gateway): State<Gateway>,
    asked: Result<Query<Asked>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Refused> {
    let unusable = |text: String| Refused(StatusCode::UNPROCESSABLE_ENTITY, text);
    let Query(asked) = asked.map_err(|error| unusable(error.body_text()))?;
    if asked.name.is_empty() {
        return Err(unusable("name: the function whose log is wanted".to_owned()));
    }
    check_namespace(asked.namespace.as_deref())?;
    let since_us = match asked.since.as_deref().filter(|text| !text.is_empty()) {
        Some(text) => since_us(text).ok_or_else(|| unusable("since: not RFC 3339".to_owned()))?,
        None => 0,
    };
    let follow = match asked.follow.as_deref() {
        None | Some("" | "0" | "false") => false,
        Some("1" | "true") => true,
        Some(_) => return Err(unusable("follow: true or false".to_owned())),
    };
    let log = gateway.context.node.logs(&asked.name, follow);
    let log = log.ok_or_else(|| Refused::unknown(&asked.name))?;
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
    // A node that stops ends the answer; otherwise a follower would hold it back.
    let context = gateway.context.clone();
    let stopped = async move { context.stopped().await };
    let lines = lines.take_until(Box::pin(stopped));
    let body = Body::from_stream(lines.map(|line| Ok::<_, Infallible>(message(&line))));
    Ok(([("content-type", "application/x-ndjson")], body).into_response())
}

fn message(line: &LogLine) -> Bytes {
    let message = json!({
        "name": line.function,
        "namespace": NAMESPACE,
        "instance": line.instance.as_deref().unwrap_or_default(),
        "timestamp": line.time.to_string(),
        "text": line.message,
    });
    format!("{message}\n").into()
}

/// An RFC 3339 time with any offset, in microseconds since 1970.
fn since_us(text: &str) -> Option<u64> {
    if let Ok(time) = Timestamp::parse(text) {
        return Some(time.unix_us());
    }
    let (local, offset) = text.split_at_checked(text.len().checked_sub(6)?)?;
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    let number = |text: &str, max: u64| text.parse::<u64>().ok().filter(|n| *n <= max);
    let minutes = number(hours, 23)? * 60 + number(minutes, 59)?;
    let local = Timestamp::parse(&format!("{local}Z")).ok()?.unix_us();
    let offset_us = minutes * 60_000_000;
    match text.as_bytes()[text.len() - 6] {
        b'+' => Some(local.saturating_sub(offset_us)),
        b'-' => Some(local + offset_us),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::since_us;

    #[test]
    fn times() {
        assert_eq!(since_us("1970-01-01T00:00:01Z"), Some(1_000_000));
        assert_eq!(since_us("1970-01-01T01:00:01+01:00"), Some(1_000_000));
        assert_eq!(since_us("1970-01-01T00:00:01-00:30"), Some(1_801_000_000));
        for text in ["", "now", "+01:00", "1970-01-01T01:00:01*01:00", "1970-01-01T01:00:01+99:00"]
        {
            assert_eq!(since_us(text), None, "{text}");
        }
    }
}
