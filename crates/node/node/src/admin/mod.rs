//! The management API: its access rules and its routes.
//!
//! The API has a separate thread and runtime, so that deploys and scrapes never delay requests on
//! the data path.

mod access;
mod caller;
mod cells;
mod compress;
mod dashboard;
mod extract;
mod files;
mod functions;
mod functions_openapi;
mod invocations;
mod journals;
mod keys;
mod kv;
mod logs;
mod mqtt;
mod mqtt_turns;
mod namespaces;
mod node_routes;
mod on_demand;
mod openwhisk;
mod operators;
mod pages;
mod recording;
mod refused;
mod rollout;
mod scale;
mod secrets;
mod sessions;
mod traces;
mod watching;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{delete, get, post, put};
use mote_api::sessions::DASHBOARD;
use mote_api::{Problem, paths};
use mote_core::shares::Shares;
use mote_platforms::compat::connection::{Place, http1};
use mote_platforms::compat::{Bound, Stop};
use mote_tls::Stream;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::Node;
use caller::Caller;
pub(crate) use mqtt_turns::MqttUserTurns;
pub(crate) use on_demand::OnDemand;
pub(crate) use refused::Refused;

fn routes(node: Arc<Node>) -> Router {
    let managed = Router::new()
        .route(paths::STATUS, get(node_routes::status))
        .route(paths::DOCTOR, get(node_routes::doctor))
        .route(paths::OPENAPI, get(node_routes::openapi))
        .route(paths::FUNCTIONS_OPENAPI, get(functions_openapi::show))
        .route(paths::METRICS, get(node_routes::metrics))
        .route(paths::CELLS, get(cells::list).put(cells::put))
        .route(paths::JOURNALS, get(journals::list))
        .route(paths::JOURNAL, put(journals::take).delete(journals::give_back))
        .route(paths::FUNCTIONS, get(watching::list))
        .route(
            paths::FUNCTION,
            get(functions::describe).put(functions::deploy).delete(functions::remove),
        )
        .route(paths::REVISIONS, get(rollout::revisions))
        .route(paths::REVISION, put(rollout::place))
        .route(paths::SPLIT, put(rollout::split))
        .route(paths::TRAFFIC, put(rollout::traffic))
        .route(paths::ROLLBACK, post(rollout::rollback))
        .route(paths::DURATIONS, get(watching::durations))
        .route(paths::PROGRESS, get(functions::progress))
        .route(paths::SCALE, post(scale::scale))
        .route(paths::LOGS, get(logs::read))
        .route(paths::RECORDING, get(recording::read))
        .route(paths::INVOCATIONS, get(invocations::list))
        .route(paths::INVOCATION, get(invocations::show).delete(invocations::cancel))
        .route(paths::RETRY, post(invocations::retry))
        .route(paths::DEAD_LETTERS, delete(invocations::delete_dead_letters))
        .route(paths::DEAD_LETTER, delete(invocations::delete_dead_letter))
        .route(paths::OPENWHISK, put(openwhisk::apply))
        .route(paths::SCHEDULES, get(functions::schedules))
        .route(paths::SECRETS, get(secrets::list))
        .route(paths::SECRET, put(secrets::put).delete(secrets::remove))
        .route(paths::KEYS, get(keys::list).post(keys::create))
        .route(paths::KEY, delete(keys::revoke))
        .route(paths::KEY_ROTATE, post(keys::rotate))
        .route(paths::TOKENS, get(operators::list).post(operators::create))
        .route(paths::TOKEN, delete(operators::revoke))
        .route(paths::AUDIT, get(operators::audit))
        .route(
            paths::SESSION,
            get(sessions::show)
                .post(sessions::begin)
                .delete(sessions::end)
                .layer(DefaultBodyLimit::max(sessions::BODY_BYTES_MAX)),
        )
        .route(paths::SESSION_CODE, post(sessions::code))
        .route(paths::MQTT_USERS, get(mqtt::list))
        .route(paths::MQTT_USER, put(mqtt::put).delete(mqtt::remove))
        .route(paths::KV, get(kv::namespaces))
        .route(paths::KV_NAMESPACE, get(kv::list).delete(kv::clear))
        .route(paths::KV_ENTRY, get(kv::get).put(kv::put).delete(kv::delete).post(kv::increment))
        .route(paths::FILES, get(files::folders))
        .route(paths::FILES_OF, get(files::list).delete(files::remove_all))
        .route(paths::TRACES, get(traces::list))
        .route(paths::TRACE, get(traces::show))
        .route(paths::NAMESPACES, get(namespaces::list).post(namespaces::create))
        .route(
            paths::NAMESPACE,
            get(namespaces::describe).put(namespaces::update).delete(namespaces::delete),
        )
        .layer(from_fn(compress::compress))
        // Answers of functions are sent unchanged.
        .route(paths::INVOKE, post(functions::invoke))
        // The length of a file is announced, so it is sent as it is, too.
        .route(paths::FILE, get(files::read).put(files::write).delete(files::remove))
        // Uploads are limited by the limits for archives, and bodies of calls by the function's own
        // limit.
        .layer(DefaultBodyLimit::disable())
        .fallback(no_such_route)
        .method_not_allowed_fallback(no_such_method)
        .with_state(node.clone());
    // The check runs before the routes, because it replaces short names in paths by full names.
    Router::new()
        .fallback_service(managed)
        .layer(from_fn_with_state(node.clone(), access::check))
        // Health is reported without credentials, because it reveals only that the node is running.
        .route(paths::LIVEZ, get(|| async { "ok\n" }))
        .route(paths::READYZ, get(node_routes::readyz))
        .route("/", get(dashboard::lead))
        .route(DASHBOARD.trim_end_matches('/'), get(dashboard::lead))
        .route(DASHBOARD, get(dashboard::index))
        .route(&format!("{DASHBOARD}{{*name}}"), get(dashboard::file))
        .with_state(node)
}

async fn no_such_route() -> Refused {
    Problem::new(404, "M1404", "no such address in the management API")
        .with_hint("see GET /v1/openapi.json")
        .into()
}

async fn no_such_method() -> Refused {
    Problem::new(405, "M1404", "this address does not accept that method")
        .with_hint("see GET /v1/openapi.json")
        .into()
}

/// The maximum number of connections to the Unix socket by users that may use it: in total, and per
/// user.
const OWNER_CONNECTIONS: (usize, usize) = (1_024, 512);
/// The maximum number of connections to the Unix socket by other users, which only receive the
/// refusal: in total, and per user.
const STRANGER_CONNECTIONS: (usize, usize) = (64, 8);
/// File descriptors that are reserved for the Unix socket. They let the node's owners reach the
/// node even if clients of the fronts hold all other descriptors.
const RESERVED_FILES: usize = 16;
/// Pause after a failure to accept a connection, so that other connections can end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves the API on its sockets until `stop` turns true.
pub(crate) async fn serve(
    node: Arc<Node>,
    socket: UnixListener,
    tcp: Option<Bound>,
    stop: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let uid = node.tenants.uid;
    let on_demand = node.on_demand.opened();
    let app = routes(node);
    let unix = serve_unix(socket, uid, app.clone(), stop.clone());
    let configured = async {
        if let Some(tcp) = tcp {
            serve_tcp(tcp, app.clone(), stop.clone()).await;
        }
    };
    let on_demand = async {
        let Some(mut opened) = on_demand else { return };
        let tcp = tokio::select! {
            tcp = opened.recv() => tcp,
            () = stopped(stop.clone()) => None,
        };
        if let Some(tcp) = tcp {
            serve_tcp(tcp, app.clone(), stop.clone()).await;
        }
    };
    tokio::join!(unix, configured, on_demand);
    Ok(())
}

async fn serve_tcp(tcp: Bound, app: Router, stop: watch::Receiver<bool>) {
    let ending = Stop::new(stop);
    let of_one = ending.clone();
    let one = move |stream: Stream, peer: SocketAddr, place: Place| {
        let app = app.clone();
        let stop = of_one.clone();
        async move {
            let address = peer.ip().to_canonical();
            let caller = Caller::Remote(address, mote_tls::is_encrypted(&stream));
            let stopped = async move { stop.stopped().await };
            log_end(http1(stream, caller, Some(place), app, stopped).await);
        }
    };
    tcp.serve_with(one, ending).await;
}

/// Resolves when the node stops. A dropped sender also means that the node is stopping, so the error is ignored.
async fn stopped(mut stop: watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn serve_unix(socket: UnixListener, uid: u32, app: Router, stop: watch::Receiver<bool>) {
    let owners = Shares::new(OWNER_CONNECTIONS.0, OWNER_CONNECTIONS.1);
    let strangers = Shares::new(STRANGER_CONNECTIONS.0, STRANGER_CONNECTIONS.1);
    let mut reserve = Reserve::default();
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        reserve.fill();
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = stopped(stop.clone()) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the management socket");
                if !reserve.give_one() {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                continue;
            }
        };
        let peer = stream.peer_cred().ok().map(|credentials| credentials.uid());
        let shares = match peer {
            Some(peer) if peer == 0 || peer == uid => &owners,
            _ => &strangers,
        };
        let Ok(place) = shares.take(peer, 1) else { continue };
        let caller = Caller::Local(peer);
        let served = http1(stream, caller, None, app.clone(), stopped(stop.clone()));
        connections.spawn(async move {
            log_end(served.await);
            drop(place);
        });
    }
    drop(socket);
    while connections.join_next().await.is_some() {}
}

fn log_end<E: std::fmt::Display>(ended: Result<(), E>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "management connection ended");
    }
}

/// Open files whose only purpose is to be closed when a descriptor is needed; see
/// [`RESERVED_FILES`].
#[derive(Default)]
struct Reserve(Vec<std::fs::File>);

impl Reserve {
    fn fill(&mut self) {
        while self.0.len() < RESERVED_FILES {
            // If no descriptor is left, the reserve stays smaller until some are free again.
            let Ok(file) = std::fs::File::open("/dev/null") else { return };
            self.0.push(file);
        }
    }

    /// Releases one descriptor for the next connection. Returns `false` if none was left in the
    /// reserve.
    fn give_one(&mut self) -> bool {
        self.0.pop().is_some()
    }
}
