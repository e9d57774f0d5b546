//! The agent of a cell: it follows the resources and configures its cell accordingly.
//!
//! `sync.rs` compares and changes, `journals.rs` makes the cell run the journals that the
//! controller has given it, `report.rs` writes the state of the cell into the resource `Cell`, and
//! `proxy.rs` lets the controller read the cell's management API. The cell itself has no token for
//! the API server, so a function that escaped from its sandbox into the cell would find none.

mod journals;
mod proxy;
mod report;
mod sync;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ObjectMeta, PartialObjectMeta, Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use mote_api::client::{Client as Node, Endpoint};
use tokio::sync::{Notify, Semaphore};

use crate::metrics::Metrics;
use crate::mirror::{Mirror, follow, follow_part, functions_config, trim_function};
use crate::resources::{Cell, CellSpec, Function, PLACE, POD};
use crate::serving::Port;
use crate::work::Work;
use crate::{Place, keys};

/// How often the agent asks whether its cell has started. Starting takes some tenths of a second.
const START_PAUSE: Duration = Duration::from_millis(20);
/// How many functions are changed at once. Installing packages is slow, and a slow function must
/// not delay the others.
const WORKERS: usize = 4;

/// The options of the agent.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    place: Place,
    /// The name of this pod, which becomes the name of the cell.
    #[arg(long, env = "POD_NAME")]
    pod: String,
    /// The uid of this pod: its end removes the Cell.
    #[arg(long, env = "POD_UID")]
    pod_uid: Option<String>,
    /// The IP address of this pod.
    #[arg(long, env = "POD_IP")]
    address: String,
    /// The machine on which it runs.
    #[arg(long, env = "NODE_NAME")]
    node: Option<String>,
    /// The management socket of the cell.
    #[arg(long, env = "MOTE_SOCKET", default_value = "/run/mote/mote.sock")]
    socket: PathBuf,
    /// Where the controller reads the cell's management API, and where /readyz is.
    #[arg(long, env = "MOTE_AGENT_LISTEN", default_value = "0.0.0.0:8082")]
    listen: SocketAddr,
    /// The port at which the cell takes the invocations of other cells.
    #[arg(long, env = "MOTE_CELL_PORT", default_value_t = 8095)]
    cell_port: u16,
}

/// The agent's parts.
struct Agent {
    options: Options,
    client: kube::Client,
    node: Node,
    functions: Mirror<Function>,
    secrets: Mirror<Secret>,
    keys: Mirror<Secret>,
    cells: Mirror<PartialObjectMeta<Cell>>,
    /// The cells, with the journals that each should run. Only if this cell has a journal in NATS.
    with_journals: Option<Mirror<Cell>>,
    cells_api: Api<Cell>,
    work: Work,
    /// Allows one large archive in memory at a time.
    large: Semaphore,
    metrics: Metrics,
    report: report::Report,
    /// The journal of the cell in NATS, if it has one.
    journal: Option<String>,
    /// Notified when the journals of a cell change.
    journals_changed: Arc<Notify>,
    held: sync::Held,
    is_synced: AtomicBool,
}

impl Agent {
    /// Returns the key that the cells and the controller share, once the controller has created it.
    fn key(&self) -> Option<String> {
        keys::text(&*self.keys.get(keys::CELL.0)?, keys::CELL.1)
    }
}

/// Runs the agent until a signal ends it.
pub(crate) async fn run(options: Options) -> Result<(), Box<dyn std::error::Error>> {
    let port = Port::bind(options.listen).await?;
    let later = proxy::Later::default();
    tokio::select! {
        () = port.serve(proxy::routes(later.clone())) => Ok(()),
        ended = follow_cluster(options, later) => ended,
        () = crate::stopped() => Ok(()),
    }
}

/// Starts the agent's parts, which run for the rest of the process.
async fn follow_cluster(
    options: Options,
    later: proxy::Later,
) -> Result<(), Box<dyn std::error::Error>> {
    let work = Work::default();
    let metrics = Metrics::new("mote_agent", &work);
    let client = metrics.client().await?;
    let node = Node::new(Endpoint::Unix(options.socket.clone()));
    started(&node).await;
    let journal = journals::own(&node).await;
    let cells: Api<Cell> = Api::namespaced(client.clone(), &options.place.system_namespace);
    announce(&cells, &options, journal.as_deref()).await;

    let functions = Api::<Function>::namespaced(client.clone(), &options.place.functions_namespace);
    let functions =
        follow_part("functions", watcher(functions, functions_config()), trim_function, {
            let work = work.clone();
            move |before: Option<&Function>, after: Option<&Function>| {
                let name = after.or(before).and_then(|function| function.metadata.name.clone());
                name.into_iter().for_each(|name| work.add(&name));
            }
        });
    let secrets = Api::<Secret>::namespaced(client.clone(), &options.place.functions_namespace);
    let secrets = follow("secrets", one_secret(secrets, keys::FUNCTIONS), {
        let work = work.clone();
        move |_: Option<&Secret>, _: Option<&Secret>| work.add(sync::SECRETS)
    });
    let held_keys = Api::<Secret>::namespaced(client.clone(), &options.place.system_namespace);
    let held_keys = follow("keys", one_secret(held_keys, keys::CELL.0), |_, _| {});

    // An agent only needs the addresses of the other cells. Their status is large and changes
    // often. If agents watched it, the API server would send each change of each cell to every
    // agent.
    let places: Api<PartialObjectMeta<Cell>> =
        Api::namespaced(client.clone(), &options.place.system_namespace);
    let others = follow("cells", watcher(places, watcher::Config::default()), {
        let work = work.clone();
        move |before: Option<&PartialObjectMeta<Cell>>, after: Option<&PartialObjectMeta<Cell>>| {
            if before.map(place) != after.map(place) {
                work.add(sync::CELLS);
            }
        }
    });
    let journals_changed = Arc::new(Notify::new());
    // The status says which cell should run which journal, so only agents with journals follow it.
    let with_journals = journal.is_some().then(|| {
        let changed = journals_changed.clone();
        let trim = |cell: &mut Cell| {
            cell.status.iter_mut().for_each(|status| status.functions.clear());
        };
        let watch = watcher(cells.clone(), watcher::Config::default());
        follow_part("cells and their journals", watch, trim, move |before, after| {
            let of = |cell: &Cell| cell.status.as_ref().map(|it| it.journals.clone());
            if before.and_then(of) != after.and_then(of) {
                changed.notify_one();
            }
        })
    });
    let report = report::start(cells.clone(), options.pod.clone());
    let agent = Arc::new(Agent {
        options,
        client,
        node,
        functions,
        secrets,
        keys: held_keys,
        cells: others,
        with_journals,
        cells_api: cells,
        work,
        large: Semaphore::new(1),
        metrics,
        report,
        journal,
        journals_changed,
        held: sync::Held::default(),
        is_synced: AtomicBool::new(false),
    });
    let agent = later.get_or_init(|| agent);
    tokio::select! {
        () = sync::keep(agent.clone()) => {}
        () = journals::keep(agent.clone()) => {}
    }
    Ok(())
}

fn one_secret(
    api: Api<Secret>,
    name: &str,
) -> impl futures_util::Stream<Item = Result<watcher::Event<Secret>, watcher::Error>> + Send + use<>
{
    watcher(api, watcher::Config::default().fields(&format!("metadata.name={name}")))
}

/// Returns the address at which a cell takes invocations from other cells.
fn place(cell: &PartialObjectMeta<Cell>) -> Option<String> {
    cell.annotations().get(PLACE).cloned()
}

/// Waits until the cell answers.
async fn started(node: &Node) {
    let mut asked = 0;
    while let Err(error) = node.status().await {
        if asked == 100 {
            tracing::warn!("the cell does not answer yet: {error}");
        }
        asked += 1;
        tokio::time::sleep(START_PAUSE).await;
    }
}

/// Creates or updates the resource of this cell.
async fn write_cell(
    cells: &Api<Cell>,
    options: &Options,
    journal: Option<&str>,
) -> Result<(), kube::Error> {
    let owner = options.pod_uid.clone().filter(|_| journal.is_none()).map(|uid| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: options.pod.clone(),
        uid,
        ..OwnerReference::default()
    });
    let spec = CellSpec {
        address: options.address.clone(),
        node: options.node.clone(),
        agent_port: Some(options.listen.port()),
        cell_port: Some(options.cell_port),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        journal: journal.map(str::to_owned),
    };
    let host = if options.address.contains(':') {
        format!("[{}]", options.address)
    } else {
        options.address.clone()
    };
    let address = format!("{host}:{}", options.cell_port);
    let pod = options.pod_uid.clone().map(|uid| (POD.to_owned(), uid));
    let annotations = pod.into_iter().chain([(PLACE.to_owned(), address)]).collect();
    let mut cell = Cell::new(&options.pod, spec);
    cell.metadata = ObjectMeta {
        name: Some(options.pod.clone()),
        owner_references: owner.map(|owner| vec![owner]),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    };
    let params = PatchParams::apply("mote-agent").force();
    cells.patch(&options.pod, &params, &Patch::Apply(&cell)).await?;
    Ok(())
}

/// Writes the resource of this cell, and retries until it succeeds. While mote is being installed,
/// the definitions may still be missing.
async fn announce(cells: &Api<Cell>, options: &Options, journal: Option<&str>) {
    let mut pause = Duration::from_millis(200);
    while let Err(error) = write_cell(cells, options, journal).await {
        tracing::warn!("the resource {} cannot be written: {error}", options.pod);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(10));
    }
}

impl Agent {
    fn is_synced(&self) -> bool {
        self.is_synced.load(Ordering::Acquire)
    }
}
