//! Operations on one function, shared by all APIs.

use std::sync::Arc;
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

/// How long the removal of a function waits for the end of its log to be written.
const LOG_WAIT: Duration = Duration::from_secs(2);

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
    // The end of the log is on disk first: a later function of this name must not show these lines,
    // also if the node is killed meanwhile.
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

/// Replaces the manifest's bounds by `bounds`, also after restarts.
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
    let (held, mut following) = log.follow();
    let held = held.iter().map(|line| log_line(&name, line)).collect();
    if !follow {
        return (held, futures_util::stream::empty().boxed());
    }
    let lines = stream! {
        loop {
            match following.recv().await {
                Ok(line) => yield log_line(&name, &line),
                Err(RecvError::Lagged(missed)) => yield log_line(&name, &lost(missed)),
                Err(RecvError::Closed) => break,
            }
        }
    };
    (held, lines.boxed())
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
