//! Which revisions serve a function: rollbacks, traffic splits, and the switch itself.
//!
//! A revision receives traffic only after one of its instances has been ready. A change of traffic
//! is durable before it takes effect, and it takes effect before the sender of the request receives
//! the answer.

use std::sync::Arc;
use std::time::Instant;

use mote_api::types::{
    DeployStep, RevisionInfo, RevisionList, TrafficEdit, TrafficResult, TrafficShare,
};
use mote_api::{Problem, Timestamp};
use mote_core::Invoker;
use mote_core::rollout::{Edit, Split, SplitError, Traffic};
use mote_engine::revision::logs::LogLevel;
use mote_engine::{Engine, Revision, Serving, WarmError};
use mote_process::clock;
use mote_spec::FunctionName;
use mote_spec::FunctionSpec;
use mote_spec::Runtime;
use mote_store::{RevisionState, Store, StoredRevision};

use super::spec_check::{self, check};
use super::store_work::{internal, with_store};
use super::turns::turn;
use super::{Node, functions, images, schedules};

/// How many log lines are searched for those of a failed start, and how many of the last lines the
/// error shows for a live function. `mote logs` shows the other lines of such a function.
const LINES_LOOKED_AT: usize = 1_000;
const LINES_OF_LIVE: usize = 5;
/// For a function that was never live: how many lines the error shows from the beginning and from
/// the end.
const LINES_AT_FIRST: usize = 10;
const LINES_AT_LAST: usize = 20;

/// The stored revisions of `name`, newest first.
pub(crate) async fn revisions(
    store: &Arc<Store>,
    engine: &Engine,
    name: &FunctionName,
) -> Result<RevisionList, Problem> {
    let stored = with_store(store, {
        let name = name.clone();
        move |store| store.revisions(&name)
    })
    .await?;
    let split = serving(engine, name)?.split();
    let now = clock::unix_ms();
    let info = |stored: StoredRevision| {
        let share = split.shares().iter().find(|share| share.revision == stored.revision);
        let percent = split.percent(stored.revision);
        let state = match stored.state {
            _ if percent > 0 => "live",
            RevisionState::Added => "added",
            RevisionState::Live | RevisionState::Retired => "retired",
        };
        RevisionInfo {
            revision: stored.revision,
            state: state.to_owned(),
            percent,
            tag: share.and_then(|share| share.tag.clone()),
            created_at: Timestamp::from_unix_ms(stored.created_at_ms),
            age_ms: now.saturating_sub(stored.created_at_ms),
            code: stored.code_hash,
            image: stored.spec.image.as_ref().map(|image| image.shown()),
        }
    };
    let revisions = stored.into_iter().map(info).collect();
    Ok(RevisionList { function: name.to_string(), revisions })
}

pub(crate) async fn set_traffic(
    node: &Arc<Node>,
    name: &FunctionName,
    edits: Vec<TrafficEdit>,
) -> Result<TrafficResult, Problem> {
    let _turn = turn(&node.deploys.deploying, &node.tenants.namespaces, name)?;
    let now = traffic(&node.opened.store, &node.data_path.engine, name).await?;
    let edits: Vec<_> = edits
        .into_iter()
        .map(|TrafficEdit { revision, percent, tag }| Edit { revision, percent, tag })
        .collect();
    let split = now.split.edited(&edits).map_err(|error| not_a_split(&error))?;
    change(node, name, Some(&now), now.moved(split), "traffic", true).await
}

/// Applies the traffic split that a cluster has chosen. All revisions in it must be stored. With
/// `warm`, the new ones must become ready first.
pub(crate) async fn set_split(
    node: &Arc<Node>,
    name: &FunctionName,
    then: Traffic,
    warm: bool,
) -> Result<TrafficResult, Problem> {
    let _turn = turn(&node.deploys.deploying, &node.tenants.namespaces, name)?;
    let is_first = node.data_path.engine.serving(name.as_str()).is_none();
    let now = if is_first {
        None
    } else {
        Some(traffic(&node.opened.store, &node.data_path.engine, name).await?)
    };
    if is_first {
        node.deployed.created(name, clock::unix_ms());
    }
    let changed = change(node, name, now.as_ref(), then, "cluster", warm).await;
    if changed.is_err() && is_first {
        node.deployed.forget(name);
    }
    changed
}

/// Sends all traffic to `revision`, or if that is `None`, to the revision that was live before.
pub(crate) async fn rollback(
    node: &Arc<Node>,
    name: &FunctionName,
    revision: Option<u64>,
) -> Result<TrafficResult, Problem> {
    let _turn = turn(&node.deploys.deploying, &node.tenants.namespaces, name)?;
    let now = traffic(&node.opened.store, &node.data_path.engine, name).await?;
    let revision = revision.or_else(|| now.back()).ok_or_else(|| {
        Problem::new(404, "M0412", format!("{name} has no earlier live revision"))
            .with_hint(format!("list the revisions: mote revisions {name}"))
    })?;
    let then = now.rolled_back(revision).map_err(|error| not_a_split(&error))?;
    change(node, name, Some(&now), then, "rollback", true).await
}

/// The traffic split that is in force, with its history from the store.
pub(super) async fn traffic(
    store: &Arc<Store>,
    engine: &Engine,
    name: &FunctionName,
) -> Result<Traffic, Problem> {
    let split = serving(engine, name)?.split();
    let wanted = name.clone();
    let stored = with_store(store, move |store| store.traffic(&wanted)).await?;
    Ok(match stored {
        Some(stored) => Traffic { split, ..stored },
        None => Traffic::new(split),
    })
}

fn serving(engine: &Engine, name: &FunctionName) -> Result<Serving, Problem> {
    let none = || functions::no_such(engine, name.as_str());
    engine.serving(name.as_str()).ok_or_else(none)
}

async fn change(
    node: &Arc<Node>,
    name: &FunctionName,
    now: Option<&Traffic>,
    then: Traffic,
    why: &str,
    warm: bool,
) -> Result<TrafficResult, Problem> {
    let started = Instant::now();
    let was = now.map(|now| &now.split);
    let (revisions, fresh) = ready(node, name, was, &then.split, warm).await?;
    let mut steps = Vec::new();
    if !fresh.is_empty() {
        let titles: Vec<_> = fresh.iter().map(|revision| revision.title()).collect();
        let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        steps.push(DeployStep { name: "start".to_owned(), detail: titles.join(", "), ms });
    }
    switch(node, name, now, &then, &revisions, why).await.inspect_err(|_| {
        fresh.iter().for_each(|revision| node.data_path.engine.discard(revision));
    })?;
    Ok(TrafficResult {
        function: name.to_string(),
        revision: then.split.main(),
        previous: now.map_or(then.split.main(), |now| now.split.main()),
        traffic: shares(&then.split),
        steps,
    })
}

/// Returns all revisions that `then` reaches and, separately, the new ones that did not serve before.
/// If `is_warmed`, waits until each new revision has had a ready instance. If one does not become ready,
/// stops all new revisions.
async fn ready(
    node: &Arc<Node>,
    name: &FunctionName,
    now: Option<&Split>,
    then: &Split,
    is_warmed: bool,
) -> Result<(Vec<Arc<Revision>>, Vec<Arc<Revision>>), Problem> {
    let serving = node.data_path.engine.serving(name.as_str());
    let wanted = name.clone();
    let stored = with_store(&node.opened.store, move |store| store.revisions(&wanted)).await?;
    let mut all = Vec::new();
    let mut fresh = Vec::new();
    let mut result = Ok(());
    for share in then.shares() {
        let serves = serving.as_ref().and_then(|serving| serving.revision(share.revision));
        if let Some(revision) = serves {
            all.push(revision.clone());
            // A revision that callers could reach only by its tag may have no running instance.
            let before = now.map_or(0, |now| now.percent(share.revision));
            let takes_more = share.percent > 0 && before == 0;
            if is_warmed && takes_more && revision.status().instances.is_empty() {
                result = warm(node, revision).await;
            }
        } else {
            let found = stored.iter().find(|stored| stored.revision == share.revision);
            let revision = found.map(|stored| revive(node, stored));
            result = match revision.unwrap_or_else(|| Err(no_revision(name, share.revision))) {
                Ok(revision) => {
                    all.push(revision.clone());
                    fresh.push(revision.clone());
                    if is_warmed { warm(node, &revision).await } else { Ok(()) }
                }
                Err(problem) => Err(problem),
            };
        }
        if result.is_err() {
            break;
        }
    }
    if result.is_err() {
        fresh.iter().for_each(|revision| node.data_path.engine.discard(revision));
    }
    result.map(|()| (all, fresh))
}

fn revive(node: &Node, stored: &StoredRevision) -> Result<Arc<Revision>, Problem> {
    check(node, &stored.spec)?;
    let revision = node.data_path.engine.revision(
        stored.spec.clone(),
        stored.revision,
        stored.code_path.clone(),
        stored.packages_path.clone(),
        images::stored(&node.opened.images, &stored.spec),
    );
    node.deployed.trees.keep(&revision);
    Ok(revision)
}

/// Tests that a stored revision can start: starts an instance, waits until it is ready, and stops
/// it.
pub(super) async fn shown(node: &Arc<Node>, stored: &StoredRevision) -> Result<(), Problem> {
    let revision = revive(node, stored)?;
    let warmed = warm(node, &revision).await;
    node.data_path.engine.discard(&revision);
    warmed
}

/// Starts an instance of a revision and waits until it is ready. If the start fails, the error
/// contains the last lines of the instance's log.
pub(super) async fn warm(node: &Node, revision: &Arc<Revision>) -> Result<(), Problem> {
    let since = revision.log.tail(1).last().map_or(0, |line| line.sequence);
    let warming = revision.clone();
    let warmed = node.data_path.runtime.spawn(async move { warming.warm().await }).await;
    let reason = match warmed.map_err(|error| internal(&error))? {
        Ok(()) => return Ok(()),
        Err(WarmError::NodeFull(reason)) => {
            let hint =
                "stop other functions with mote scale NAME 0, or raise the node's setting `memory`";
            let text = format!("{}: {reason}", revision.title());
            return Err(Problem::new(503, "M0505", text).with_hint(hint));
        }
        Err(WarmError::NamespaceFull(reason)) => {
            let text = format!("{}: {reason}", revision.title());
            return Err(Problem::new(503, "M0428", text));
        }
        Err(WarmError::Failed(reason)) => reason,
    };
    let lines = revision.log.tail(LINES_LOOKED_AT);
    let said: Vec<String> = lines
        .iter()
        .filter(|line| line.revision == revision.number && line.sequence > since)
        // Leaves out lines that contain the reason and further text. The last line of a trace
        // equals the reason, so it stays.
        .filter(|line| line.text == reason || !line.text.contains(&reason))
        .map(|line| format!("  | {}", line.text))
        .collect();
    let is_live = node.data_path.engine.get(revision.spec.name.as_str()).is_some();
    let mut text = format!("{} did not become ready: {reason}", revision.title());
    if is_live {
        let last = &said[said.len().saturating_sub(LINES_OF_LIVE)..];
        if !last.is_empty() {
            text = format!("{text}; its last log lines:\n{}", last.join("\n"));
        }
    } else if !said.is_empty() {
        // Some programs log the cause in the first line, others in the last one, so both ends are
        // shown.
        text = format!("{text}; its log:\n{}", first_and_last(&said).join("\n"));
        node.deploys.failed_logs.keep(&revision.spec.name, &revision.log);
    }
    let elsewhere = (is_live || said.len() > LINES_AT_FIRST + LINES_AT_LAST)
        .then(|| format!("see: mote logs {}", revision.spec.name));
    let problem = Problem::new(422, "M0411", text);
    let hint = missing_module(&problem.detail, &revision.spec)
        .or_else(|| too_few_processes(&reason, &revision.spec));
    Err(match hint.or(elsewhere) {
        Some(hint) => problem.with_hint(hint),
        None => problem,
    })
}

/// Returns the first and the last lines, and between them how many lines were left out.
fn first_and_last(lines: &[String]) -> Vec<String> {
    let left_out = lines.len().saturating_sub(LINES_AT_FIRST + LINES_AT_LAST);
    if left_out == 0 {
        return lines.to_vec();
    }
    let first = &lines[..LINES_AT_FIRST];
    let last = &lines[lines.len() - LINES_AT_LAST..];
    let between = format!("  … {left_out} more lines");
    first.iter().cloned().chain([between]).chain(last.iter().cloned()).collect()
}

/// The processes and threads of an instance that imports an ES module in Node. With fewer, Node ends or
/// waits forever, without a word.
const PIDS_OF_NODE: u32 = 12;

/// A hint for a start of Node that may lack threads.
fn too_few_processes(reason: &str, spec: &FunctionSpec) -> Option<String> {
    let is_mute = reason.contains("killed by signal") || reason.contains("did not become ready in");
    let is_meant = spec.answered_by() == Runtime::Node && spec.limits.pids < PIDS_OF_NODE;
    (is_mute && is_meant).then(|| {
        format!(
            "pids = {} may be too few: Node needs {PIDS_OF_NODE} for ES modules; raise pids in [limits], \
             or leave it out",
            spec.limits.pids
        )
    })
}

/// A hint for a module that was not found while the function was loaded, and for similar errors.
fn missing_module(text: &str, spec: &FunctionSpec) -> Option<String> {
    let quoted = |after: &str| {
        let rest = text.split_once(after)?.1;
        let name = rest.split_once(['\'', '"'])?.0;
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.@/".contains(c);
        (!name.is_empty() && name.len() <= 100 && name.chars().all(plain)).then_some(name)
    };
    if text.contains("Read-only file system") || text.contains("EROFS: read-only") {
        let hint = "the code folder is read-only: let the function write to /tmp, or write writable = true in mote.toml";
        return Some(hint.to_owned());
    }
    if text.contains("No space left on device") || text.contains("no space left on device") {
        let import = match spec.compat {
            Some(_) => "; mote import writes that file from another platform's manifest",
            None => "",
        };
        return Some(format!(
            "the function's /tmp is full: raise [limits] disk in mote.toml, and also memory, because /tmp counts \
             as memory{import}"
        ));
    }
    match spec.runtime {
        Runtime::Python => {
            if let Some(name) = quoted("cannot import name '") {
                return Some(format!(
                    "if `{name}` belongs to a package, the function needs another version of it: write that \
                     version into requirements.txt next to the code, as in package<2, and deploy again"
                ));
            }
            let module = quoted("No module named '")?.split('.').next()?;
            Some(format!(
                "if `{module}` belongs to a package, list that package in requirements.txt next to the \
                 code and deploy again; if you deployed a single file, put both into a folder"
            ))
        }
        Runtime::Node | Runtime::Bun | Runtime::Deno => {
            let is_remote = ["--no-remote", "'npm:", "'jsr:", "\"npm:", "\"jsr:", "reading \"http"]
                .iter()
                .any(|sign| text.contains(sign));
            if is_remote {
                return Some(
                    "a function downloads nothing when it starts: list the package in the dependencies \
                     of package.json next to the code, import it by its name, and deploy again; \
                     packages of JSR are on npm too: https://jsr.io/docs/npm-compatibility"
                        .to_owned(),
                );
            }
            let signs = [
                "Cannot find package '",
                "Cannot find module '",
                "Import \"",
                "Could not resolve \"",
            ];
            let package = signs.iter().find_map(|sign| quoted(sign))?;
            (!package.starts_with(['.', '/'])).then(|| {
                format!(
                    "if `{package}` is a package, list it in the dependencies of package.json next to \
                     the code and deploy again; if you deployed a single file, put both into a folder"
                )
            })
        }
        _ => None,
    }
}

/// Moves traffic: first on disk, then in the engine, then in the log. `revisions` are all revisions
/// that the new split names. Each of them has had a ready instance.
pub(super) async fn switch(
    node: &Node,
    name: &FunctionName,
    from: Option<&Traffic>,
    to: &Traffic,
    revisions: &[Arc<Revision>],
    why: &str,
) -> Result<(), Problem> {
    let missing = || {
        tracing::error!(function = %name, split = %to.split, "a revision of the split is missing");
        Problem::new(500, "M0599", "the node could not change the traffic; see its log")
    };
    let serving = Serving::new(to.split.clone(), revisions).ok_or_else(missing)?;
    let spec = &serving.live().spec;
    // When two functions are deployed at the same time, their checks do not see each other's
    // routes. So the routes are checked again here, one function at a time.
    let _turn = match spec.routes() {
        [] => None,
        _ => Some(node.deploys.route_turn.lock().await),
    };
    spec_check::route_conflict(&node.data_path.engine, spec)?;
    let port = node.deployed.ports.reserve(spec).await?;
    let wanted = name.clone();
    let stored = to.clone();
    with_store(&node.opened.store, move |store| store.set_traffic(&wanted, &stored)).await?;
    let live = serving.live().clone();
    node.data_path.engine.publish(serving);
    port.serve();
    let topics = &live.spec.publishing.topics;
    if to.elsewhere {
        node.deployed.elsewhere.lock().insert(name.clone());
        node.mqtt.triggers.apply(name, &[], topics);
    } else {
        node.deployed.elsewhere.lock().remove(name);
        node.mqtt.triggers.apply(name, &live.spec.mqtt, topics);
    }
    schedules::publish(node, &live).await;
    let was = from.map_or_else(String::new, |from| format!(", was {}", from.split));
    let text = format!("traffic ({why}): {}{was}", to.split);
    live.log.platform(LogLevel::Info, live.number, 0, &text);
    Ok(())
}

/// The shares of a split, in the form that the management API shows.
pub(crate) fn shares(split: &Split) -> Vec<TrafficShare> {
    let share = |share: &mote_core::rollout::Share| TrafficShare {
        revision: share.revision,
        percent: share.percent,
        tag: share.tag.clone(),
    };
    split.shares().iter().map(share).collect()
}

pub(super) fn not_a_split(error: &SplitError) -> Problem {
    Problem::new(422, "M0413", error.to_string())
}

fn no_revision(name: &FunctionName, revision: u64) -> Problem {
    Problem::new(404, "M0412", format!("{name} has no revision {revision}"))
        .with_hint(format!("list the revisions: mote revisions {name}"))
}

/// Returns the revision that `NAME` or `NAME@TAG` reaches, or a 404 with a hint.
pub(crate) fn route(engine: &Engine, name: &str) -> Result<mote_engine::Route, Problem> {
    if let Some(route) = engine.route(name, || None) {
        return Ok(route);
    }
    let (function, tag) = name.split_once('@').unwrap_or((name, ""));
    let Some(serving) = engine.serving(function) else {
        return Err(functions::no_such(engine, function));
    };
    let shown: String = tag.chars().take(64).flat_map(char::escape_debug).collect();
    let split = serving.split();
    let tags: Vec<_> = split.shares().iter().filter_map(|share| share.tag.as_deref()).collect();
    let problem = Problem::new(404, "M0501", format!("{function} has no tag `{shown}`"));
    let hint = match tags[..] {
        [] => format!("it has no tags; set one: mote traffic {function} REVISION:TAG"),
        _ => format!("its tags: {}", tags.join(", ")),
    };
    Err(problem.with_hint(hint))
}
