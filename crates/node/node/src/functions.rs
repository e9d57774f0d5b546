//! Operations on one function, shared by all APIs.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_stream::stream;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use mote_api::Problem;
use mote_api::types::LogLine;
use mote_engine::revision::logs::{FunctionLog, LogLevel, LogLine as EngineLine, LogSource};
use mote_engine::{Engine, Revision};
use mote_process::clock;
use mote_spec::ScaleOverride;
use mote_spec::name::split;
use mote_store::Store;
use tokio::sync::broadcast::error::RecvError;

use super::store_work::{blocking, store_problem};
use super::{Node, schedules, turns};
use crate::log_line::{REMOVED, log_line};

/// How long the removal of a function waits until the end of its log is written.
const LOG_WAIT: Duration = Duration::from_secs(2);
/// How many lines in memory are read at a time. For a client that does not read, up to 16 such
/// parts wait.
const PART_LINES: usize = 16;

/// The live revision of `name`, or 404 with similar names.
pub(crate) fn find(engine: &Engine, name: &str) -> Result<Arc<Revision>, Problem> {
    engine.get(name).ok_or_else(|| no_such(engine, name))
}

/// A 404 that suggests similar names in the same namespace. Whoever may ask for `name` may also
/// know those names.
pub(crate) fn no_such(engine: &Engine, name: &str) -> Problem {
    let namespace = split(name).1;
    let all = engine.list();
    let all = all.iter().filter(|revision| revision.spec.name.namespace() == namespace);
    Problem::no_such_function(name, all.map(|revision| revision.spec.name.as_str()))
}

/// Removes a function with all its revisions.
pub(crate) async fn remove(node: &Node, name: &str) -> Result<(), Problem> {
    let revision = find(&node.data_path.engine, name)?;
    // Without the turn, a deploy or a switch could end after the removal and bring back a function
    // that the store no longer has.
    let _turn =
        turns::turn(&node.deploys.deploying, &node.tenants.namespaces, &revision.spec.name)?;
    remove_in_turn(node, &revision).await
}

/// Removes a function with all its revisions. The caller must hold the function's turn.
pub(crate) async fn remove_in_turn(node: &Node, revision: &Revision) -> Result<(), Problem> {
    let name = revision.spec.name.as_str();
    let store = node.opened.store.clone();
    let function = revision.spec.name.clone();
    // The end of the log is written to disk first: a later function of this name must not show the
    // earlier lines, even if the node is killed meanwhile.
    revision.log.platform(LogLevel::Info, 0, 0, REMOVED);
    let logs = node.opened.logs.clone();
    blocking(move || {
        logs.iter().for_each(|logs| logs.flush(LOG_WAIT));
        store.remove(&function)
    })
    .await
    .map_err(|_| Problem::new(500, "M0599", "the node could not remove the function; see its log"))?
    .map_err(|error| store_problem(&error))?;
    revision.log.end();
    node.data_path.engine.remove(name);
    node.deployed.ports.close(&revision.spec.name);
    node.deployed.notices.end(&revision.spec.name);
    schedules::forget(&node.accepted.schedules, &revision.spec.name);
    node.mqtt.triggers.apply(&revision.spec.name, &[], &[]);
    node.deployed.forget(&revision.spec.name);
    tracing::info!(function = %name, "removed");
    node.deployed.trees.collect_soon();
    Ok(())
}

/// Replaces the manifest's bounds by `bounds`; this survives restarts.
pub(crate) async fn set_bounds(
    store: &Arc<Store>,
    revision: &Arc<Revision>,
    bounds: ScaleOverride,
) -> Result<(), Problem> {
    let store = store.clone();
    let function = revision.spec.name.clone();
    let kept = (bounds != ScaleOverride::default()).then_some(bounds);
    blocking(move || store.set_scale(&function, kept.as_ref()))
        .await
        .map_err(|_| {
            Problem::new(500, "M0599", "the node could not store the change; see its log")
        })?
        .map_err(|error| store_problem(&error))?;
    revision.set_bounds(bounds);
    Ok(())
}

/// The stored lines of a function's log, and if `follow` is set, a stream of new lines. A follower
/// that is too slow receives the number of lines that it missed. The stream holds no revision, so
/// it ends when the function `name` is removed.
pub(crate) fn log_lines(
    name: &str,
    log: &FunctionLog,
    follow: bool,
) -> (Vec<LogLine>, BoxStream<'static, LogLine>) {
    let name = name.to_owned();
    let (kept, following) = match follow {
        true => followed(&name, log),
        false => (log.kept(), futures_util::stream::empty().boxed()),
    };
    let held = log.lines(kept.start, usize::MAX);
    let held = held.iter().filter(|line| line.sequence < kept.end);
    (held.map(|line| log_line(&name, line)).collect(), following)
}

/// The positions of the kept lines, and a stream of the lines after them.
pub(crate) fn followed(name: &str, log: &FunctionLog) -> (Range<u64>, BoxStream<'static, LogLine>) {
    let name = name.to_owned();
    let (kept, mut following) = log.follow();
    let lines = stream! {
        loop {
            match following.recv().await {
                Ok(line) => yield log_line(&name, &line),
                Err(RecvError::Lagged(missed)) => yield log_line(&name, &lost(missed)),
                Err(RecvError::Closed) => break,
            }
        }
    };
    (kept, lines.boxed())
}

/// Lines in memory. A reader holds only a part of them at a time, because there may be many readers.
pub(crate) struct HeldLines {
    name: String,
    /// A reader must not keep the log of a removed function.
    log: Weak<FunctionLog>,
    positions: Range<u64>,
}

impl HeldLines {
    pub(crate) fn new(name: &str, log: &Arc<FunctionLog>, positions: Range<u64>) -> Self {
        Self { name: name.to_owned(), log: Arc::downgrade(log), positions }
    }

    /// The next lines; `None` if there are no more. The log may drop lines before they are read; then
    /// a line says how many.
    pub(crate) fn next(&mut self) -> Option<Vec<LogLine>> {
        let Range { start, end } = self.positions;
        let part = self.log.upgrade()?.lines(start, PART_LINES);
        let part = part.iter().filter(|line| line.sequence < end);
        let mut part: Vec<_> = part.map(|line| log_line(&self.name, line)).collect();
        let first = part.first().map_or(end, |line| line.sequence);
        self.positions.start = part.last().map_or(end, |line| line.sequence + 1);
        if first > start {
            part.insert(0, log_line(&self.name, &lost(first - start)));
        }
        (!part.is_empty()).then_some(part)
    }
}

fn lost(lines: u64) -> EngineLine {
    EngineLine {
        sequence: 0,
        unix_us: clock::unix_us(),
        level: LogLevel::Warn,
        source: LogSource::Platform,
        revision: 0,
        instance: 0,
        invocation: None,
        text: format!("{lines} lines were skipped, because they arrived too fast"),
    }
}

#[cfg(test)]
mod tests {
    use mote_spec::FunctionName;

    use super::*;

    #[test]
    fn lines_in_memory_are_read_in_parts() {
        let log = Arc::new(FunctionLog::new(FunctionName::new("f").unwrap(), None));
        let write = |count: usize| {
            (0..count).for_each(|_| log.platform(LogLevel::Info, 1, 0, "x"));
        };
        write(2 * PART_LINES + 5);
        let mut held = HeldLines::new("f", &log, log.kept());
        let mut parts = Vec::new();
        while let Some(part) = held.next() {
            parts.push(part.len());
            write(1);
        }
        assert_eq!(parts, [PART_LINES, PART_LINES, 5]);
        // The log drops lines that a slow reader has not read.
        let mut held = HeldLines::new("f", &log, log.kept());
        assert_eq!(held.next().unwrap()[0].sequence, 1);
        write(1_000);
        let skipped = log.kept().start - (PART_LINES as u64 + 1);
        let message = format!("{skipped} lines were skipped, because they arrived too fast");
        assert_eq!(held.next().unwrap()[0].message, message);
        drop(log);
        assert!(held.next().is_none());
    }
}
