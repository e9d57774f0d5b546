//! Compares the state of the cell with the resources, and changes what differs. This happens when a
//! resource changes, after a failure, and once at the start. At the start it also removes
//! everything that no resource asks for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::api::PartialObjectMeta;
use kube::{Api, ResourceExt as _};
use mote_api::ClientError;
use mote_api::cells::{CELLS_MAX, CellPlace, CellsRequest};
use mote_api::types::ScaleRequest;
use mote_core::rollout::{Traffic, sticky_key};
use parking_lot::Mutex;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;

use super::{Agent, WORKERS};
use crate::keys;
use crate::resources::{
    Bounds, Cell, CellFunction, Function, FunctionRevision, READY, revision_name,
};
use crate::source;

/// The queue entry that stands for the secrets of functions. No function has this name.
pub(super) const SECRETS: &str = "_secrets";
/// The queue entry that stands for the other cells. No function has this name.
pub(super) const CELLS: &str = "_cells";

/// The pause before the agent asks again if its cell does not answer.
const NODE_PAUSE: Duration = Duration::from_millis(500);

/// The known state of the cell.
#[derive(Default)]
pub(super) struct Held {
    functions: Mutex<HashMap<String, HeldFunction>>,
    /// Whether the cell can forward invocations to other cells.
    forwards: AtomicBool,
}

#[derive(Default, Clone)]
struct HeldFunction {
    /// The uid of the resource. A function that was removed and created again starts from nothing.
    uid: Option<String>,
    revisions: BTreeSet<u64>,
    traffic: Option<Traffic>,
    /// The limits of instances that were set since the last change of traffic.
    bounds: Option<Bounds>,
}

/// Why a function is not in the desired state.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Cell(#[from] ClientError),
    #[error("the API server: {0}")]
    Cluster(#[from] kube::Error),
    #[error("{0}")]
    Code(String),
}

impl Failure {
    /// The text of the failure for the status of the cell.
    fn text(&self) -> String {
        match self {
            Failure::Cell(ClientError::Problem(problem)) => match &problem.hint {
                Some(hint) => format!("{}: {} ({hint})", problem.code, problem.detail),
                None => format!("{}: {}", problem.code, problem.detail),
            },
            other => other.to_string(),
        }
    }
}

/// Keeps the cell in the state that the resources ask for, for the rest of the process.
pub(super) async fn keep(agent: Arc<Agent>) {
    agent.functions.synced().await;
    agent.secrets.synced().await;
    agent.keys.synced().await;
    // Functions need their secrets when they start.
    if let Err(failure) = secrets(&agent).await {
        tracing::warn!("the secrets of functions: {}", failure.text());
        agent.work.again(SECRETS);
    }
    first(&agent).await;
    tokio::spawn(follow_node(agent.clone()));
    let mut workers = tokio::task::JoinSet::new();
    // The functions that a worker is handling; true if the function has changed since. At most one
    // worker handles a function at a time.
    let busy: Arc<Mutex<HashMap<String, bool>>> = Arc::default();
    for _ in 0..WORKERS {
        let agent = agent.clone();
        let busy = busy.clone();
        workers.spawn(async move {
            loop {
                let name = agent.work.next().await;
                if let Some(changed) = busy.lock().get_mut(&name) {
                    *changed = true;
                    continue;
                }
                // Nothing can happen between the check above and this insertion, because all
                // workers share one thread.
                busy.lock().insert(name.clone(), false);
                handle(&agent, &name).await;
                if busy.lock().remove(&name) == Some(true) {
                    agent.work.add(&name);
                }
            }
        });
    }
    workers.join_all().await;
}

/// Starts over when the cell's process was restarted, because everything that the cell had only in
/// memory is gone. An open connection reveals a restart, because it ends with the process. The cell
/// also ends an idle connection after some time.
async fn follow_node(agent: Arc<Agent>) {
    let mut before: Option<(u32, u64)> = None;
    loop {
        // The connection is opened before the question, so that no restart can go unnoticed between
        // the two.
        let open = UnixStream::connect(&agent.options.socket).await;
        let (Ok(open), Ok(status)) = (open, agent.node.status().await) else {
            tokio::time::sleep(NODE_PAUSE).await;
            continue;
        };
        let is_new =
            before.is_some_and(|(pid, uptime)| pid != status.pid || status.uptime_ms < uptime);
        before = Some((status.pid, status.uptime_ms));
        if is_new {
            tracing::info!("the cell was restarted");
            agent.held.functions.lock().clear();
            agent.work.add(SECRETS);
            agent.work.add(CELLS);
            agent.functions.names().iter().for_each(|name| agent.work.add(name));
        }
        ended(open).await;
        // The pause keeps this from becoming a busy loop if the cell closes each connection at
        // once.
        tokio::time::sleep(NODE_PAUSE).await;
    }
}

/// Waits until the other side closes a connection that is not used otherwise.
async fn ended(mut open: UnixStream) {
    let mut said = [0; 256];
    while matches!(open.read(&mut said).await, Ok(count) if count > 0) {}
}

/// Handles all functions once, including functions that only the cell has. Afterwards the cell is
/// ready.
async fn first(agent: &Arc<Agent>) {
    let mut names: BTreeSet<String> = agent.functions.names().into_iter().collect();
    // Without this list, functions that were removed while no agent ran would stay in the cell for
    // ever.
    let list = loop {
        match agent.node.functions().await {
            Ok(list) => break list,
            Err(error) => tracing::warn!("the functions of the cell cannot be listed: {error}"),
        }
        tokio::time::sleep(NODE_PAUSE).await;
    };
    names.extend(list.functions.into_iter().map(|function| function.name));
    let count = names.len();
    for name in names {
        handle(agent, &name).await;
    }
    agent.is_synced.store(true, Ordering::Release);
    agent.report.synced(true);
    tracing::info!("the cell has all functions, {count} in number");
}

async fn handle(agent: &Agent, name: &str) {
    let handled = match name {
        SECRETS => secrets(agent).await,
        CELLS => cells(agent).await,
        name => function(agent, name).await,
    };
    match handled {
        Ok(()) => agent.work.done(name),
        Err(failure) => {
            let text = failure.text();
            let pause = agent.work.again(name);
            tracing::warn!("{name}: {text}; next attempt in {} ms", pause.as_millis());
        }
    }
}

/// Brings the function `name` on this cell into the state that the resource asks for.
async fn function(agent: &Agent, name: &str) -> Result<(), Failure> {
    let Some(wanted) = agent.functions.get(name) else { return removed(agent, name).await };
    let uid = wanted.metadata.uid.clone();
    let mut held = agent.held.functions.lock().get(name).cloned().unwrap_or_default();
    if held.uid.is_some() && held.uid != uid {
        removed(agent, name).await?;
        held = HeldFunction::default();
    }
    held.uid = uid;
    let status = wanted.status.as_ref();
    let is_home = status.and_then(|status| status.home.as_ref()) == Some(&agent.options.pod);
    let traffic = status.and_then(|status| status.traffic.clone());
    let traffic = traffic.map(|traffic| Traffic { elsewhere: !is_home, ..traffic });
    let bounds = status.and_then(|status| status.shares.get(&agent.options.pod).copied());
    // A cell that cannot forward must be allowed to start at least one instance.
    let least = u32::from(!agent.held.forwards.load(Ordering::Relaxed));
    let bounds = bounds.map(|part| Bounds { max: part.max.map(|max| max.max(least)), ..part });
    let mut has = agent.report.told(name);
    has.error = None;
    if has.uid != held.uid {
        has = CellFunction { uid: held.uid.clone(), ..CellFunction::default() };
    }
    let placed = place(agent, &wanted, traffic.as_ref(), &mut held, &mut has).await;
    agent.held.functions.lock().insert(name.to_owned(), held.clone());
    let switched = match &traffic {
        Some(traffic) if placed_all(traffic, &held) && held.traffic.as_ref() != Some(traffic) => {
            let switched = agent.node.set_split(name, traffic, agent.is_synced()).await;
            if switched.is_ok() {
                has.split = Some(traffic.split.to_string());
                held.traffic = Some(traffic.clone());
                held.bounds = None;
            }
            switched.map(|_| ())
        }
        _ => Ok(()),
    };
    let scaled = match bounds {
        Some(bounds)
            if held.bounds != Some(bounds) && switched.is_ok() && held.traffic.is_some() =>
        {
            // Without a maximum in the limits, the cell allows as many instances as it has cores.
            let Bounds { min, max } = bounds;
            let wish = ScaleRequest { min: Some(min), max, reset: true, ..ScaleRequest::default() };
            let scaled = agent.node.scale(name, &wish).await;
            held.bounds = scaled.is_ok().then_some(bounds);
            has.bounds_error = match &scaled {
                Err(ClientError::Problem(problem)) if problem.status == 422 => {
                    Some(format!("{}: {}", problem.code, problem.detail))
                }
                _ => None,
            };
            scaled.map(|_| ())
        }
        _ => Ok(()),
    };
    if let Err(ClientError::Problem(problem)) = &switched
        && problem.code == "M0412"
    {
        // The cell has removed old revisions that the cluster still has, so all must be placed
        // again.
        held.revisions.clear();
    }
    agent.held.functions.lock().insert(name.to_owned(), held);
    let failure = placed.and(switched.map_err(Failure::from)).and(scaled.map_err(Failure::from));
    has.error = failure.as_ref().err().map(Failure::text);
    agent.report.tell(name, has);
    failure
}

fn placed_all(traffic: &Traffic, held: &HeldFunction) -> bool {
    traffic.split.shares().iter().all(|share| held.revisions.contains(&share.revision))
}

/// Stores the revisions that the resource asks for and the cell does not have. Tries all of them,
/// and returns the first failure.
async fn place(
    agent: &Agent,
    wanted: &Function,
    traffic: Option<&Traffic>,
    held: &mut HeldFunction,
    has: &mut CellFunction,
) -> Result<(), Failure> {
    let name = wanted.metadata.name.as_deref().unwrap_or_default();
    let serving = |number: u64| traffic.is_some_and(|traffic| traffic.split.reaches(number));
    let asked: BTreeSet<u64> = asked(wanted, traffic);
    has.revisions.retain(|number, _| number.parse().is_ok_and(|number| asked.contains(&number)));
    let mut outcome = Ok(());
    for number in asked {
        if held.revisions.contains(&number) {
            has.revisions.insert(number.to_string(), READY.to_owned());
            continue;
        }
        // A revision that serves at other cells has already shown there that it starts.
        let placed = one_revision(agent, name, number, !serving(number)).await;
        let told = match &placed {
            Ok(()) => {
                held.revisions.insert(number);
                READY.to_owned()
            }
            Err(failure) => failure.text(),
        };
        has.revisions.insert(number.to_string(), told);
        outcome = outcome.and(placed);
    }
    outcome
}

/// Returns the revisions that a cell must hold: those that serve now, and those that should serve.
fn asked(wanted: &Function, traffic: Option<&Traffic>) -> BTreeSet<u64> {
    let serving = traffic.into_iter().flat_map(|traffic| traffic.split.shares());
    let named = wanted.spec.traffic.iter().flatten().filter_map(|share| share.revision);
    let latest = wanted.status.as_ref().and_then(|status| status.latest);
    serving.map(|share| share.revision).chain(named).chain(latest).collect()
}

async fn one_revision(agent: &Agent, name: &str, number: u64, warm: bool) -> Result<(), Failure> {
    let revisions: Api<FunctionRevision> =
        Api::namespaced(agent.client.clone(), &agent.options.place.functions_namespace);
    let found = revisions.get_opt(&revision_name(name, number)).await?;
    let missing =
        || Failure::Code(format!("{name} has no revision {number}; see: kubectl get fnrev"));
    let revision = found.ok_or_else(missing)?.spec;
    // Held until the cell has the archive.
    let _large = match revision.bytes {
        0..source::LARGE_BYTES => None,
        _ => Some(agent.large.acquire().await.expect("it is never closed")),
    };
    let tar = match &revision.archive {
        Some(text) => source::from_inline(text, revision.bytes).map_err(Failure::Code)?.into(),
        None => super::proxy::archive(agent, &revision.digest).await.map_err(Failure::Code)?,
    };
    source::check(&tar, &revision.digest).map_err(Failure::Code)?;
    match agent.node.place(name, number, tar.clone(), warm).await {
        // The cell still has a function with the same name that was removed while no agent ran.
        Err(ClientError::Problem(problem)) if problem.field.as_deref() == Some("number") => {
            removed(agent, name).await?;
            agent.node.place(name, number, tar, warm).await?;
        }
        placed => placed.map(|_| ())?,
    }
    Ok(())
}

/// Removes a function that no resource asks for.
async fn removed(agent: &Agent, name: &str) -> Result<(), Failure> {
    match agent.node.remove(name).await {
        Err(ClientError::Problem(problem)) if problem.status == 404 => {}
        removed => removed?,
    }
    agent.held.functions.lock().remove(name);
    agent.report.forget(name);
    Ok(())
}

/// Tells the cell the addresses of the other cells.
async fn cells(agent: &Agent) -> Result<(), Failure> {
    agent.cells.synced().await;
    let own = &agent.options.pod;
    if agent.cells.get(own).is_none() {
        // The cell's resource was removed. The agent writes it again, with everything that the cell
        // has.
        let journal = agent.journal.as_deref();
        super::write_cell(&agent.cells_api, &agent.options, journal).await?;
        agent.report.tell_all();
    }
    let place = |cell: &PartialObjectMeta<Cell>| {
        let address: SocketAddr = super::place(cell)?.parse().ok()?;
        Some(CellPlace { name: cell.name_any(), address: address.to_string() })
    };
    let others = agent.cells.all();
    let others = others.iter().filter(|cell| cell.name_any() != *own);
    let places = chosen(own, others.filter_map(|cell| place(cell)).collect());
    let wish = CellsRequest { name: own.clone(), cells: places };
    match agent.node.set_cells(&wish).await {
        // The cell was started without the setting `cell`, so it forwards nothing.
        Err(ClientError::Problem(problem)) if problem.status == 409 => Ok(()),
        set => {
            set?;
            if !agent.held.forwards.swap(true, Ordering::Relaxed) {
                agent.functions.names().iter().for_each(|name| agent.work.add(name));
            }
            Ok(())
        }
    }
}

/// Chooses as many other cells as a cell can know. In a larger cluster, each cell knows different
/// ones.
fn chosen(own: &str, mut others: Vec<CellPlace>) -> Vec<CellPlace> {
    if others.len() > CELLS_MAX {
        others.sort_by_cached_key(|other| sticky_key(format!("{own} {}", other.name).as_bytes()));
        others.truncate(CELLS_MAX);
    }
    others
}

/// Gives the cell the secrets of functions, and removes secrets that are not in the Secret.
async fn secrets(agent: &Agent) -> Result<(), Failure> {
    let wanted = agent.secrets.get(keys::FUNCTIONS);
    let wanted: BTreeMap<String, String> = wanted
        .iter()
        .flat_map(|secret| secret.data.iter().flatten())
        .filter_map(|(name, value)| {
            let text = String::from_utf8(value.0.clone());
            if text.is_err() {
                tracing::warn!("the Secret {}: {name} is not text", keys::FUNCTIONS);
            }
            Some((name.clone(), text.ok()?))
        })
        .collect();
    let there = agent.node.secrets().await?;
    for secret in &there.secrets {
        if !wanted.contains_key(&secret.name) {
            agent.node.remove_secret(&secret.name).await?;
        }
    }
    let mut outcome = Ok(());
    for (name, value) in wanted {
        outcome = outcome.and(agent.node.put_secret(&name, value).await.map(|_| ()));
    }
    // Functions that failed may have lacked a secret, so they are tried again.
    for name in agent.functions.names() {
        if agent.report.told(&name).error.is_some() {
            agent.work.add(&name);
        }
    }
    Ok(outcome?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_large_cluster_every_cell_is_known_to_some() {
        let all: Vec<_> = (0..300)
            .map(|number| CellPlace { name: format!("cell-{number}"), address: String::new() })
            .collect();
        let mut known = BTreeSet::new();
        for own in &all {
            let others = all.iter().filter(|other| other.name != own.name).cloned().collect();
            let chosen = chosen(&own.name, others);
            assert_eq!(chosen.len(), CELLS_MAX);
            known.extend(chosen.into_iter().map(|other| other.name));
        }
        assert_eq!(known.len(), all.len());
        assert_eq!(chosen("a", all[..10].to_vec()).len(), 10);
    }

    #[test]
    fn a_cell_holds_what_serves_and_what_is_to_serve() {
        let wanted: Function = serde_json::from_value(serde_json::json!({
            "apiVersion": "mote.dev/v1alpha1", "kind": "Function", "metadata": {"name": "a"},
            "spec": {"traffic": [{"revision": 2, "percent": 100}, {"latest": true, "tag": "next"}]},
            "status": {"latest": 5, "traffic": {"split": [{"revision": 4, "percent": 100}]}},
        }))
        .unwrap();
        let traffic = wanted.status.as_ref().unwrap().traffic.clone();
        assert_eq!(asked(&wanted, traffic.as_ref()), BTreeSet::from([2, 4, 5]));
        assert_eq!(asked(&wanted, None), BTreeSet::from([2, 5]));
    }
}
