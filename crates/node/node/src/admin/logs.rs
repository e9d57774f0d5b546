//! The route for the log lines of one function, one JSON object per line: first those on disk, then
//! those in memory, and, if the client asks for them, new lines as they arrive.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::ready;
use futures_util::stream::BoxStream;
use mote_api::types::LogLine;
use mote_api::{Problem, Timestamp};
use mote_process::clock;
use mote_spec::FunctionName;
use mote_tenants::namespaces::{Turn, Turns};
use serde::Deserialize;

use super::extract::{Path, Query};
use super::refused::Refused;
use crate::Node;
use crate::functions::{HeldLines, find, followed};
use crate::logs::Logs;
use crate::logs::read::{LEVELS, Search, Text, Wanted};
use crate::store_work::blocking;

/// The number of lines without `tail` and `since`.
const TAIL_DEFAULT: usize = 1_000;
/// How long a search keeps its place among those that wait for the disk.
const TURN_WAIT: Duration = Duration::from_secs(60);
/// How long a search waits for the newest lines to be written.
const FLUSH_WAIT: Duration = Duration::from_secs(1);

/// The turns of searches at the disk.
static SEARCHING: LazyLock<Turns> = LazyLock::new(Turns::default);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LogQuery {
    #[serde(default)]
    follow: bool,
    since: Option<String>,
    tail: Option<usize>,
    invocation: Option<String>,
    grep: Option<String>,
    #[serde(default)]
    ignore_case: bool,
    level: Option<String>,
}

impl LogQuery {
    fn wanted(&self) -> Result<Wanted, Problem> {
        let level = self.level.as_deref().unwrap_or(LEVELS[0]);
        let no_such_level = || {
            let text = "level: debug, info, warn or error";
            Problem::new(400, "M1403", text).with_field("level")
        };
        Ok(Wanted {
            since_ms: self.since.as_deref().map_or(Ok(0), since)?,
            invocation: self.invocation.clone(),
            text: self.grep.as_deref().map(|text| Text::new(text, self.ignore_case)),
            level: LEVELS.iter().position(|known| *known == level).ok_or_else(no_such_level)?,
        })
    }

    fn tail(&self) -> usize {
        let default = if self.since.is_some() { usize::MAX } else { TAIL_DEFAULT };
        self.tail.unwrap_or(default)
    }
}

pub(super) async fn read(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    Query(query): Query<LogQuery>,
) -> Result<Response, Refused> {
    let wanted = query.wanted()?;
    let (log, unknown) = match find(&node.data_path.engine, &name) {
        Ok(revision) => (Some(revision.log.clone()), None),
        // If the function has never been live, the log of its failed deploy may still be there.
        Err(unknown) => (node.deploys.failed_logs.of(&name), Some(unknown)),
    };
    let (kept, following) = match &log {
        Some(log) if query.follow => followed(&name, log),
        Some(log) => (log.kept(), futures_util::stream::empty().boxed()),
        None => (0..0, futures_util::stream::empty().boxed()),
    };
    let is_in_memory = log.is_some();
    let held = |positions| log.as_ref().map(|log| HeldLines::new(&name, log, positions));
    let tail = query.tail();
    let mut before = None;
    let mut places = Vec::new();
    for line in parts(held(kept.clone())).flatten() {
        before = before.or(Some((line.time, line.sequence)));
        places.extend(wanted.is(&line).then_some(line.sequence));
    }
    let first = places.len().saturating_sub(tail);
    let found = places.len() - first;
    let held = held(places.get(first).copied().unwrap_or(kept.end)..kept.end);
    // A follower must not keep the log alive, so that the stream ends when the function is removed.
    drop((log, places));
    let on_disk = match &node.opened.logs {
        Some(logs) => {
            let tail = if tail == usize::MAX { tail } else { tail - found };
            let search = Search { function: name, wanted: wanted.clone(), tail, before };
            from_disk(logs, search, unknown.filter(|_| !is_in_memory)).await?
        }
        None => match unknown.filter(|_| !is_in_memory) {
            Some(unknown) => return Err(unknown.into()),
            None => futures_util::stream::empty().boxed(),
        },
    };
    let of_memory = wanted.clone();
    let memory = futures_util::stream::iter(parts(held)).map(move |lines| {
        let lines = lines.iter().filter(|line| line.sequence == 0 || of_memory.is(line));
        Bytes::from(lines.map(json).collect::<String>())
    });
    let memory = memory.filter(|part| ready(!part.is_empty()));
    let following =
        following.filter(move |line| ready(wanted.is(line))).map(|line| Bytes::from(json(&line)));
    let stream = on_disk.chain(memory).chain(following).map(Ok::<_, std::convert::Infallible>);
    let headers = [("content-type", "application/jsonl")];
    Ok((headers, Body::from_stream(stream)).into_response())
}

fn parts(held: Option<HeldLines>) -> impl Iterator<Item = Vec<LogLine>> {
    held.into_iter().flat_map(|mut held| std::iter::from_fn(move || held.next()))
}

/// The lines that only the disk has. Fails with `unknown` if the disk has no lines of this
/// function.
async fn from_disk(
    logs: &Logs,
    search: Search,
    unknown: Option<Problem>,
) -> Result<BoxStream<'static, Bytes>, Problem> {
    let failed = |error: std::io::Error| {
        tracing::warn!(%error, "the functions' logs cannot be read");
        Problem::new(500, "M0599", "the node could not read its logs; see its own log")
    };
    let panicked = |_| Problem::new(500, "M0599", "the node could not read its logs");
    let Ok(function) = FunctionName::new(&search.function) else {
        return unknown.map_or_else(|| Ok(futures_util::stream::empty().boxed()), Err);
    };
    let begun = {
        let _turn = turn(&function).await;
        let logs = logs.clone();
        blocking(move || {
            logs.flush(FLUSH_WAIT);
            logs.begin(search)
        })
        .await
    };
    let mut finding = begun.map_err(panicked)?.map_err(failed)?;
    // The search gives its turn back now and then, because it may have to read all files.
    let found = loop {
        let _turn = turn(&function).await;
        let stepped = blocking(move || finding.step().map(|is_end| (finding, is_end)));
        let is_end;
        (finding, is_end) = stepped.await.map_err(panicked)?.map_err(failed)?;
        if is_end {
            break finding.found();
        }
    };
    if let Some(unknown) = unknown.filter(|_| !found.has_lines) {
        return Err(unknown);
    }
    // It also gives its turn back between two pieces, because a client may read slowly.
    let pieces =
        futures_util::stream::unfold((found, function), |(mut found, function)| async move {
            let _turn = turn(&function).await;
            blocking(move || found.next().map(|piece| (piece, (found, function)))).await.ok()?
        });
    Ok(pieces.filter(|piece| ready(!piece.is_empty())).boxed())
}

/// Waits until a search of this function may read the disk. Namespaces take turns.
async fn turn(function: &FunctionName) -> Turn {
    loop {
        if let Ok(turn) = SEARCHING.wait(function, TURN_WAIT).await {
            return turn;
        }
    }
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
