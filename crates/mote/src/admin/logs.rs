//! Log lines of one function, one JSON object per line, following when asked.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use mote_api::types::{LogLine, LogStream};
use mote_api::{Problem, Timestamp};
use mote_engine::clock;
use mote_engine::logs::{LogLevel, LogLine as EngineLine, LogSource};
use serde::Deserialize;
use tokio::sync::broadcast::error::RecvError;

use super::Refused;
use super::functions::find;
use crate::node::Node;

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
    let revision = find(&node.engine, &name)?;
    let since_ms = match &query.since {
        Some(text) => since(text)?,
        None => 0,
    };
    let (held, mut following) = revision.log.follow();
    let wanted = {
        let invocation = query.invocation.clone();
        move |line: &EngineLine| {
            line.unix_us / 1_000 >= since_ms
                && invocation.as_ref().is_none_or(|wanted| {
                    line.invocation.is_some_and(|id| id.to_string() == *wanted)
                })
        }
    };
    let mut lines: Vec<_> = held.into_iter().filter(|line| wanted(line)).collect();
    if let Some(tail) = query.tail {
        let skip = lines.len().saturating_sub(usize::try_from(tail).unwrap_or(usize::MAX));
        lines.drain(..skip);
    }
    let first: Bytes = lines.iter().map(|line| json(&name, line)).collect::<String>().into();
    let follow = query.follow;
    // The log ends for a follower when the function is removed: it holds no revision itself.
    drop(revision);
    let stream = async_stream::stream! {
        if !first.is_empty() {
            yield Ok::<_, std::convert::Infallible>(first);
        }
        loop {
            if !follow {
                break;
            }
            match following.recv().await {
                Ok(line) if wanted(&line) => yield Ok(Bytes::from(json(&name, &line))),
                Ok(_) => {}
                Err(RecvError::Lagged(missed)) => {
                    let line = EngineLine {
                        sequence: 0,
                        unix_us: clock::unix_us(),
                        level: LogLevel::Warn,
                        source: LogSource::Platform,
                        revision: 0,
                        instance: 0,
                        invocation: None,
                        text: format!("{missed} lines were too fast to follow"),
                    };
                    yield Ok(Bytes::from(json(&name, &line)));
                }
                Err(RecvError::Closed) => break,
            }
        }
    };
    let headers = [("content-type", "application/jsonl")];
    Ok((headers, Body::from_stream(stream)).into_response())
}

/// A time, or a duration back from now, as milliseconds since 1970.
fn since(text: &str) -> Result<u64, Problem> {
    if let Ok(ms) = mote_api::quantity::parse_duration_ms(text) {
        return Ok(clock::unix_ms().saturating_sub(ms));
    }
    Timestamp::parse(text).map(|time| time.unix_ms()).map_err(|_| {
        Problem::new(400, "M1403", "since: a duration such as 10m, or an RFC 3339 time")
            .with_field("since")
    })
}

fn json(function: &str, line: &EngineLine) -> String {
    let line = LogLine {
        time: Timestamp::from_unix_us(line.unix_us),
        level: match line.level {
            LogLevel::Debug => "debug",
            LogLevel::Info => "info",
            LogLevel::Warn => "warn",
            LogLevel::Error => "error",
        }
        .to_owned(),
        message: line.text.clone(),
        function: function.to_owned(),
        revision: line.revision,
        instance: (line.instance > 0).then(|| line.instance.to_string()),
        invocation: line.invocation.map(|id| id.to_string()),
        stream: match line.source {
            LogSource::Stdout => LogStream::Stdout,
            LogSource::Stderr => LogStream::Stderr,
            LogSource::Log => LogStream::Log,
            LogSource::Platform => LogStream::Platform,
        },
    };
    let mut text = serde_json::to_string(&line).unwrap_or_default();
    text.push('\n');
    text
}
