//! The controller: the one process of a cluster that makes decisions.
//!
//! If there are several controllers, only the holder of the lease (`lease.rs`) acts. It makes
//! revisions, decides on traffic (`reconcile.rs`) and journals (`journals.rs`), keeps large
//! archives (`archives.rs`), and offers the management API (`api.rs`, `change.rs`), for which it
//! asks the cells (`ask.rs`, `merge.rs`). Its knowledge is stored in the API server, so a new
//! controller continues where the last one stopped.

mod answer;
mod api;
mod archives;
mod ask;
mod change;
mod journals;
mod lease;
mod merge;
pub(crate) mod pulse;
mod reconcile;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::PartialObjectMeta;
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc};

pub(crate) use lease::{ADDRESS, NAME as LEASE};

use crate::metrics::Metrics;
use crate::mirror::{Mirror, follow, follow_part, functions_config, trim_function};
use crate::resources::{Cell, Function, FunctionRevision, LABEL_FUNCTION, POD};
use crate::serving::Port;
use crate::work::Work;
use crate::{Place, keys};

/// How many locks of functions are kept even if they are unused.
const TURNS_KEPT: usize = 1_024;
/// How many functions are handled at once.
const WORKERS: usize = 4;

/// The options of the controller.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    place: Place,
    /// The name of this pod, which holds the lease.
    #[arg(long, env = "POD_NAME")]
    pod: String,
    /// The IP address of this pod, at which the agents ask for archives.
    #[arg(long, env = "POD_IP")]
    address: String,
    /// Where the management API listens.
    #[arg(long, env = "MOTE_CONTROLLER_LISTEN", default_value = "0.0.0.0:8081")]
    listen: SocketAddr,
    /// Where functions can be called, as answers name it, for example http://mote.example.
    #[arg(long, env = "MOTE_URL")]
    url: Option<String>,
    /// The folder with archives that are too large for their resources.
    #[arg(long, env = "MOTE_CONTROLLER_DATA", default_value = "/var/lib/mote-controller")]
    data: PathBuf,
}

/// The controller's parts.
struct Controller {
    options: Options,
    functions_api: Api<Function>,
    revisions_api: Api<FunctionRevision>,
    secrets_api: Api<Secret>,
    functions: Mirror<Function>,
    revisions: Mirror<PartialObjectMeta<FunctionRevision>>,
    cells: Mirror<Cell>,
    cells_api: Api<Cell>,
    pods: Mirror<Pod>,
    pods_api: Api<Pod>,
    /// Cells whose machines do not answer.
    lost: Mutex<HashSet<String>>,
    /// Cells whose pulse this controller has heard.
    heard: Mutex<HashSet<String>>,
    /// The time since which each of these pods has not been ready.
    not_ready: Mutex<HashMap<String, Instant>>,
    archives: archives::Archives,
    recorder: Recorder,
    token: String,
    key: String,
    work: Work,
    /// Allows one large archive in memory at a time.
    large: Arc<Semaphore>,
    metrics: Metrics,
    /// Locks that allow one change of a function at a time.
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Wakes requests that wait for the status of a function.
    changes: tokio::sync::watch::Sender<u64>,
}

impl Controller {
    /// Puts every function into the queue again.
    fn wake_all(&self) {
        self.functions.names().iter().for_each(|name| self.work.add(name));
        self.work.add(journals::WORK);
        self.changes.send_modify(|count| *count += 1);
    }

    /// Waits for the exclusive right to change a function.
    async fn turn(&self, name: &str) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.turns.lock();
            if turns.len() > TURNS_KEPT {
                // A lock with one reference is neither held nor waited for, so it is dropped.
                turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            }
            turns.entry(name.to_owned()).or_default().clone()
        };
        turn.lock_owned().await
    }

    /// Returns the cells that take part: they have had all functions once, and their pods are
    /// ready.
    fn live_cells(&self) -> Vec<Arc<Cell>> {
        let is_live = |cell: &Arc<Cell>| {
            let synced = cell.status.as_ref().is_some_and(|status| status.synced);
            let is_lost = self.lost.lock().contains(&cell.name_any());
            synced
                && !is_lost
                && self.pods.get(&cell.name_any()).map_or(is_podless(cell), |pod| is_ready(&pod))
        };
        self.cells.all().into_iter().filter(is_live).collect()
    }
}

/// Whether a cell never had a pod, as in tests. The `Cell` of a removed pod stays until Kubernetes
/// has collected it.
fn is_podless(cell: &Cell) -> bool {
    cell.owner_references().is_empty() && !cell.annotations().contains_key(POD)
}

/// Whether the kubelet reports the pod as ready, and the pod is not being deleted.
fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    pod.metadata.deletion_timestamp.is_none() && ready.any(|ready| ready.status == "True")
}

/// Runs the controller until a signal ends it or another controller holds the lease.
pub(crate) async fn run(options: Options) -> Result<(), Box<dyn std::error::Error>> {
    let work = Work::default();
    let metrics = Metrics::new("mote_cluster", &work);
    let client = metrics.client().await?;
    let port = Port::bind(options.listen).await?;
    let held = tokio::select! {
        held = lease::acquire(client.clone(), &options, &port) => held,
        () = crate::stopped() => return Ok(()),
    };
    let system = &options.place.system_namespace;
    let namespace = &options.place.functions_namespace;
    let keys_api: Api<Secret> = Api::namespaced(client.clone(), system);
    let token = keys::ensure(&keys_api, keys::TOKEN).await?;
    let key = keys::ensure(&keys_api, keys::CELL).await?;
    let (changes, _) = tokio::sync::watch::channel(0);

    let functions_api: Api<Function> = Api::namespaced(client.clone(), namespace);
    let functions = follow_part(
        "functions",
        watcher(functions_api.clone(), functions_config()),
        trim_function,
        {
            let work = work.clone();
            let changes = changes.clone();
            move |before: Option<&Function>, after: Option<&Function>| {
                after.or(before).into_iter().for_each(|function| work.add(&function.name_any()));
                changes.send_modify(|count| *count += 1);
            }
        },
    );
    let revisions_api: Api<FunctionRevision> = Api::namespaced(client.clone(), namespace);
    // Only the metadata is watched, because the archives of all functions would not fit into a
    // small controller.
    let metadata: Api<PartialObjectMeta<FunctionRevision>> =
        Api::namespaced(client.clone(), namespace);
    let revisions = follow("revisions", watcher(metadata, watcher::Config::default()), {
        let work = work.clone();
        move |before: Option<&PartialObjectMeta<FunctionRevision>>, after: Option<&_>| {
            let function = after.or(before).and_then(|it| it.labels().get(LABEL_FUNCTION));
            function.into_iter().for_each(|function| work.add(function));
        }
    });
    let cells_api: Api<Cell> = Api::namespaced(client.clone(), system);
    let (arrivals, new_cells) = mpsc::unbounded_channel();
    let cells = follow("cells", watcher(cells_api.clone(), watcher::Config::default()), {
        let work = work.clone();
        let functions = functions.clone();
        let changes = changes.clone();
        move |before: Option<&Cell>, after: Option<&Cell>| {
            let place = |cell: &Cell| (cell.metadata.uid.clone(), cell.spec.clone());
            if let Some(cell) = after.filter(|cell| before.map(place) != Some(place(cell))) {
                // The receiver lives as long as the process.
                let _ = arrivals.send(Arc::new(cell.clone()));
            }
            if journals::of(before) != journals::of(after) {
                work.add(journals::WORK);
            }
            ask::changed(before, after, &functions).iter().for_each(|name| work.add(name));
            changes.send_modify(|count| *count += 1);
        }
    });
    let pods: Api<Pod> = Api::namespaced(client.clone(), system);
    let selector = watcher::Config::default().labels("app.kubernetes.io/name=mote-cell");
    let pods_api = pods.clone();
    let pods = follow("pods", watcher(pods, selector), {
        let work = work.clone();
        let functions = functions.clone();
        move |before: Option<&Pod>, after: Option<&Pod>| {
            if before.is_none() || after.is_none() || before.map(is_ready) != after.map(is_ready) {
                work.add(journals::WORK);
            }
            if before.is_some_and(is_ready) != after.is_some_and(is_ready) {
                functions.names().iter().for_each(|name| work.add(name));
            }
        }
    });
    let reporter =
        Reporter { controller: "mote-controller".to_owned(), instance: Some(options.pod.clone()) };
    let archives = archives::Archives::open(&options.data)?;
    let controller = Arc::new(Controller {
        functions_api,
        revisions_api,
        secrets_api: Api::namespaced(client.clone(), namespace),
        functions,
        revisions,
        cells,
        cells_api,
        pods,
        pods_api,
        lost: Mutex::default(),
        heard: Mutex::default(),
        not_ready: Mutex::default(),
        archives,
        recorder: Recorder::new(client.clone(), reporter),
        token,
        key,
        work,
        large: Arc::new(Semaphore::new(1)),
        metrics,
        turns: Mutex::default(),
        changes,
        options,
    });
    controller.functions.synced().await;
    controller.revisions.synced().await;
    controller.cells.synced().await;
    controller.pods.synced().await;
    tracing::info!("this controller holds the lease");
    tokio::spawn(listen_to_cells(controller.clone(), new_cells));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(reconcile::keep(controller.clone()));
    }
    tokio::select! {
        () = port.serve(api::routes(controller.clone())) => {}
        lost = held.keep() => return Err(lost.into()),
        () = crate::stopped() => {}
    }
    // The next controller then need not wait until the lease expires.
    held.give_back().await;
    Ok(())
}

/// Follows the pulse of each cell after the cell has arrived.
async fn listen_to_cells(
    controller: Arc<Controller>,
    mut arrivals: mpsc::UnboundedReceiver<Arc<Cell>>,
) {
    while let Some(cell) = arrivals.recv().await {
        tokio::spawn(pulse::follow(controller.clone(), cell));
    }
}

/// The metrics: the number of functions by the reason of their condition `Ready`, and the number of
/// cells by state.
fn metrics(controller: &Controller) -> axum::response::Response {
    let functions = controller.functions.all().into_iter().map(|function| {
        ready_condition(&function).map_or_else(|| "New".to_owned(), |ready| ready.reason.clone())
    });
    let live: HashSet<String> =
        controller.live_cells().iter().map(|cell| cell.name_any()).collect();
    let lost = controller.lost.lock().clone();
    let state = |name: String| {
        if live.contains(&name) {
            "live"
        } else if lost.contains(&name) {
            "silent"
        } else {
            "starting"
        }
    };
    let cells = controller.cells.names().into_iter().map(state);
    controller.metrics.answer(functions, cells)
}

fn ready_condition(function: &Function) -> Option<&Condition> {
    let status = function.status.as_ref()?;
    status.conditions.iter().find(|condition| condition.type_ == "Ready")
}
