//! Starts the parts in order, announces readiness, and stops them in the opposite order.
//!
//! There are two runtimes: the data path (fronts and engine) on this thread, and the management API
//! on its own thread, so that a deploy or a scrape never delays requests.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::fronts::{Calls, dtls, on_thread};
use crate::ports::Ports;
use crate::services::{NodeServices, Runs};
use anyhow::{Context as _, Result};
use mote_access::{Guard, Guarded, RefusalMetrics};
use mote_api::exit;
use mote_api::text::wrapped;
use mote_api::types::Reach;
use mote_coap::notices::NoticeMetrics;
use mote_core::RouteInfo;
use mote_engine::{Config as EngineConfig, Engine, Revision, Serving};
use mote_http::access_log::{AccessLog, Destination as AccessLogPlace};
use mote_http::http;
use mote_journal::Deferring;
use mote_outgoing::Outgoing;
use mote_platforms::compat::Bound;
use mote_pool::budget::Budget;
use mote_process::companion::OWN_PROGRAM;
use mote_process::service_manager::ServiceManager;
use mote_sandbox::{ProcessBackend, SandboxConfig, ZygoteHandle};
use mote_store::{LostFile, Store, StoredFunction, StoredRevision};
use mote_tenants::operators::{Audit, Operators};
use mote_tls::handover::Handover;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::listeners::Listeners;
use super::unusable::unusable;
use super::{
    Node, accepted, cells, compat, https, interpreters, keys, mqtt, namespaces, nats, operators,
    reach, schedules, secrets,
};
use crate::admin;
use crate::config::Config;
use crate::fronts::limits::{HTTP_FILES_SHARE, data_threads, http_config};

/// How long running invocations may take after the node begins to stop.
const STOP_GRACE: Duration = Duration::from_secs(30);

/// How long attempts at accepted invocations may take after the callers' invocations have ended.
const BACKGROUND_GRACE: Duration = Duration::from_secs(12);

/// How long brokers may take to acknowledge what was published before the node stopped.
const PUBLISH_GRACE: Duration = Duration::from_secs(3);

/// A step of the stop that takes longer than this is logged, and logged again after each such
/// period.
const SLOW_STOP: Duration = Duration::from_secs(2);
/// Most functions that such a line names.
const SLOW_STOP_NAMES_MAX: usize = 8;

/// The share of the budget for prewarmed interpreters, unless the configuration sets it.
const PREWARM_SHARE: u64 = 16;
/// Small nodes give more of their budget, up to this share, for one Python and one Node
/// ([`PREWARM_FIRST_BYTES`]): a start of Node without it takes a hundred times as long. Prewarmed
/// interpreters are evicted before any instance.
const PREWARM_SHARE_SMALL: u64 = 4;
/// What one prewarmed Python and one prewarmed Node count as.
const PREWARM_FIRST_BYTES: u64 = 80 << 20;
/// Instances that may start at once on the whole node, per core. A start is mostly processor work,
/// so more of them delay each other. The limit is twice that of one function, so that one function
/// cannot block all others.
const STARTS_PER_CORE: u32 = 4;
/// Lines of the announcement about what other machines reach.
const REACH_LINES_MAX: usize = 24;
/// The file of the state of functions, in the data folder.
const STATE_FILE: &str = "state.db";

/// Runs a node until it is stopped. `zygote` was forked, and what the service manager gives was
/// taken, before any thread existed.
pub(crate) fn run(
    config: Config,
    deploy: &[PathBuf],
    zygote: ZygoteHandle,
    manager: ServiceManager,
) -> Result<ExitCode> {
    let started = Instant::now();
    let data_path =
        Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    let (stop_management, stopped) = oneshot::channel::<()>();
    let management = runtime_on_thread("mote-admin", async { drop(stopped.await) })?;
    mote_sandbox::take_short_turns();
    let code = data_path.block_on(serve(config, deploy, zygote, manager, started, &management))?;
    // Blocking tasks of the management side may still wait for a slow disk; the node does not wait
    // for them.
    drop(stop_management);
    Ok(code)
}

/// The memory for prewarmed interpreters on a node with this budget.
fn prewarm_bytes(budget_bytes: u64) -> u64 {
    let first = PREWARM_FIRST_BYTES.min(budget_bytes / PREWARM_SHARE_SMALL);
    first.max(budget_bytes / PREWARM_SHARE)
}

/// Says which of the databases next to the store are missing or damaged, and moves damaged ones aside.
/// The journal of a node whose log is elsewhere is made again from that log.
fn lost_files(store: &Store, journal_is_elsewhere: bool) -> Result<Vec<LostFile>> {
    let mut all = Vec::new();
    for name in [accepted::FILE_NAME, STATE_FILE] {
        if name == accepted::FILE_NAME && journal_is_elsewhere {
            continue;
        }
        if let Some(lost) = store.check_file(name)? {
            tracing::error!(
                "{lost}. The node makes a new one; to keep what it held, stop the node and restore \
                 the file from a backup"
            );
            all.push(lost);
        }
    }
    Ok(all)
}

/// A data folder that others could change, with the remedy.
fn not_own(error: mote_store::own::NotOwn) -> anyhow::Error {
    let text = format!(
        "{error}; the data folder is for the node alone: give what is in it to the user of the node, \
         or name another folder with --data"
    );
    unusable("data", text)
}

async fn serve(
    mut config: Config,
    deploy: &[PathBuf],
    zygote: ZygoteHandle,
    mut manager: ServiceManager,
    started: Instant,
    management: &Handle,
) -> Result<ExitCode> {
    // Signal handlers are installed first, because a Ctrl-C during a slow start must stop it too.
    let mut interrupt = signal(SignalKind::interrupt()).context("signal handler")?;
    let mut terminate = signal(SignalKind::terminate()).context("signal handler")?;
    let start_can_end = management.spawn(end_of_start());
    let (data_dir, settings) = (config.data.clone(), config.clone());
    let opening = management.spawn_blocking(move || -> Result<_> {
        let tightened = mote_store::own::secure(&data_dir).map_err(not_own)?;
        for path in tightened {
            let path = path.display();
            tracing::warn!(
                "others could write to {path} in the data folder, which they cannot now"
            );
        }
        // All files are checked before one of them is changed.
        mote_journal::records::refuse_newer(&data_dir.join(accepted::FILE_NAME))?;
        mote_store::state::FileState::refuse_newer(&data_dir.join(STATE_FILE))?;
        let store = Store::open(&data_dir)?;
        let lost_files = lost_files(&store, settings.journal_name.is_some())?;
        let shims = mote_build::shims::unpack(store.root())
            .with_context(|| format!("cannot write the shims below {}", data_dir.display()))?;
        let secrets = secrets::open(&settings, &store)?;
        Ok((store, shims, secrets, lost_files))
    });
    let (found, opened) = tokio::join!(interpreters::find(), opening);
    let (store, shims_dir, secrets, lost_files) = opened.context("cannot open the store")??;
    let store = Arc::new(store);
    interpreters::compile_shims(&found, &shims_dir, management);
    let mut sandbox = SandboxConfig::default();
    sandbox.runtime_prefixes = found.prefixes();
    sandbox.shims_dir = Some(shims_dir);
    sandbox.uid_base = config.uid_base;
    let backend = Arc::new(ProcessBackend::new(zygote, sandbox));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores_max = u32::try_from(cores).unwrap_or(1);
    let budget = Budget {
        memory_bytes: config.memory.of(mote_process::memory::machine_bytes()),
        starts_max: STARTS_PER_CORE.saturating_mul(cores_max),
    };
    let for_prewarmed = config.prewarm_bytes.unwrap_or_else(|| prewarm_bytes(budget.memory_bytes));
    let engine_config = EngineConfig {
        instances_max_default: cores_max,
        budget,
        interpreters: interpreters::for_engine(&found),
        busy_poll: config.polling && cores > 1,
        prewarm_bytes: for_prewarmed,
        timeout_factor: config.timeout_factor,
        access_default: config.access,
        closed_networks: config.closed_networks.clone(),
        secrets,
    };
    let mut further = Vec::new();
    for _ in 1..data_threads(config.threads, cores) {
        further.push(runtime_on_thread("mote-data", std::future::pending())?);
    }
    let data_path = Handle::current();
    let engine = Engine::new(engine_config, backend.clone(), data_path, &further);
    let nats = match &config.nats {
        Some(servers) => Some(nats::start(servers, config.uid_base, &Handle::current())?),
        None => None,
    };
    let (state, state_file) = nats::state(nats.as_ref(), &config.data.join(STATE_FILE));

    if let Some((AccessLogPlace::File(path), _)) = &config.access_log
        && std::path::absolute(path)?.starts_with(std::path::absolute(&config.data)?)
    {
        let text = "a file in the data folder, which the node keeps for itself".to_owned();
        return Err(unusable("access_log", text));
    }
    let open = |(to, format): &(_, _)| AccessLog::open(to, *format);
    let access_log = config.access_log.as_ref().map(open).transpose();
    let access_log = access_log.map_err(|error| unusable("access_log", error.to_string()))?;
    let listeners = Listeners::open(&mut config, std::mem::take(&mut manager.sockets)).await?;
    let Listeners {
        http: http_listener,
        https: https_listener,
        coap: coap_socket,
        coap_tcp: coap_listener,
        coap_dtls: dtls_socket,
        coap_tls: coap_tls_listener,
        ..
    } = listeners;
    let Listeners { management: socket, owns_management, admin: admin_listener, .. } = listeners;
    let certificates = https::certificates(&config)?;
    let clients = https::client_authorities(&config)?;
    let tls = https::of_apis(certificates.as_ref())?;
    let cells = match &config.cell {
        Some(settings) => Some(cells::start(settings, &engine).await?),
        None => None,
    };
    let platforms = compat::Listeners::bind(&config.compat, tls.as_ref()).await?;
    let audit = Arc::new(Audit::new(&config.data));
    let operators = if config.admin.is_some() || !config.compat.is_off() {
        let path = config.data.join("admin.token");
        let unusable = |error| unusable("data", format!("the token {}: {error}", path.display()));
        Operators::with_owner(&path).map_err(unusable)?
    } else {
        Operators::default()
    };

    let http_address = http_listener.as_ref().and_then(|listener| listener.local_addr().ok());
    let https_address = https_listener.as_ref().and_then(|listener| listener.local_addr().ok());
    let admin_port = admin_listener.as_ref().and_then(|tcp| Some(tcp.local_addr().ok()?.port()));
    let outgoing = Outgoing {
        reach: config.outgoing,
        own_ports: platforms
            .ports()
            .chain([http_address, https_address].into_iter().flatten().map(|at| at.port()))
            .chain(admin_port)
            .chain(cells.iter().map(|cells| cells.address().port()))
            .chain(coap_listener.iter().filter_map(|tcp| Some(tcp.local_addr().ok()?.port())))
            .chain(coap_tls_listener.iter().filter_map(|tcp| Some(tcp.local_addr().ok()?.port())))
            .collect(),
        open_ports: Default::default(),
    };
    let journals = accepted::journals(&config, &store, outgoing.clone(), nats.as_ref(), management);
    let schedules = {
        let shared = config.schedule_journal.clone();
        let (store, journals, runtime) = (store.clone(), journals.clone(), management.clone());
        let open = move || schedules::open(store, &journals, shared, runtime);
        let opening = management.spawn_blocking(open).await;
        opening.context("cannot read the store")??
    };
    let all_namespaces = namespaces::open(&store, &config).await?;
    let own_broker = match &config.mqtt {
        Some(own) => {
            let to_broker = certificates.clone().map(|all| Handover::new(all, clients.clone()));
            let (data, uid_base, names) = (&config.data, config.uid_base, &all_namespaces);
            Some(mqtt::start_broker(own, data, uid_base, to_broker, names, management).await?)
        }
        None => None,
    };
    let (mqtt, publisher) = mqtt::parts(
        &engine,
        config.data.clone(),
        config.mqtt_broker.clone(),
        own_broker.clone(),
        Arc::new(journals.clone()),
        Handle::current(),
    );
    let guard = Guard::default();
    let of_node = engine.clone();
    guard.set_secrets(Box::new(move |name, use_secret| {
        // One that is missing, or that no key opens, is as if it were not there.
        if let Ok(value) = of_node.secrets().get(name) {
            use_secret(&value);
        }
    }));
    keys::bring_back(&store, &guard).await?;
    management.spawn(guard.issuers().clone().run(outgoing.clone()));
    let of_callers = guard.clone();
    let opens = Arc::new(move |head: &_, route: &dyn RouteInfo| of_callers.proves(head, route));
    let node = Arc::new(Node {
        mqtt,
        publisher: publisher.clone(),
        own_broker: own_broker.clone(),
        mqtt_users: crate::admin::MqttUserTurns::default(),
        http: http_address,
        https: https_address,
        certificates: certificates.clone(),
        coap: coap_socket.as_ref().and_then(|socket| socket.local_addr().ok()),
        coap_tcp: coap_listener.as_ref().and_then(|listener| listener.local_addr().ok()),
        coap_dtls: dtls_socket.as_ref().and_then(|socket| socket.local_addr().ok()),
        coap_tls: coap_tls_listener.as_ref().and_then(|listener| listener.local_addr().ok()),
        ports: Ports::new(&config.function_ports, http_address, https_address, &outgoing),
        config,
        engine: engine.clone(),
        invoker: Deferring::new(engine.clone(), journals.clone()).with_callers(opens),
        guard: guard.clone(),
        key_turn: Default::default(),
        store: store.clone(),
        lost_files,
        journals: journals.clone(),
        runs: Runs::new(journals.clone()),
        schedules: schedules.clone(),
        outgoing,
        notices: Default::default(),
        state: state.clone(),
        nats: nats.clone(),
        cells: cells.clone(),
        backend,
        interpreters: found,
        deploying: Default::default(),
        failed_logs: Default::default(),
        go_builds: Default::default(),
        route_turn: Default::default(),
        trees: Default::default(),
        data_path: Handle::current(),
        operators: Arc::new(operators),
        namespaces: all_namespaces,
        namespace_turn: Default::default(),
        token_turn: Default::default(),
        audit,
        compat: platforms.addresses(),
        openwhisk: platforms.openwhisk_manifests(),
        uid: rustix::process::geteuid().as_raw(),
        memory_bytes: budget.memory_bytes,
        cores: cores_max,
        started,
        ready: AtomicBool::new(false),
        gathering: mote_http::gathering::Gathering::default(),
        created_at_ms: Mutex::default(),
        elsewhere: Mutex::default(),
        random: Default::default(),
        counter: Default::default(),
    });
    operators::bring_back(&node).await?;
    namespaces::apply_limits(&node);
    node.engine.set_own_apis(platforms.own_apis(node.http));
    let accept = Arc::new(journals.clone());
    let runs = node.runs.clone();
    let notices = node.notices.clone();
    let publish = Arc::new(publisher.clone());
    journals.set_publish(publish.clone());
    let services = NodeServices::new(
        engine.clone(),
        state,
        accept,
        runs,
        notices.clone(),
        publish,
        node.namespaces.clone(),
    );
    engine.set_services(Arc::new(services));
    bring_back(&node, management).await?;
    accepted::take_up(&journals.own(), &store).await;
    engine.metrics().add(mote_journal::JournalMetrics(journals.clone()));
    engine.metrics().add(NoticeMetrics(notices.clone()));
    engine.metrics().add(RefusalMetrics(guard.clone()));
    let (running, data_path) = (engine.clone(), Handle::current());
    journals.run(move |journal| data_path.spawn(mote_journal::run(journal, running.clone())));
    let invoker = Calls::Own(Guarded::new(node.invoker.clone(), guard));

    // From here on, calls may have been accepted, so a signal no longer ends the process at once.
    start_can_end.abort();
    let _ = start_can_end.await;
    let stopper = http::Stopper::default();
    let (stop_coap, coap_stopped) = tokio::sync::watch::channel(false);
    let mut fronts = tokio::task::JoinSet::new();
    if let Some(listener) = http_listener {
        let mut config = http_config(HTTP_FILES_SHARE);
        config.helpers = further;
        config.proxies.clone_from(&node.config.proxies);
        config.access_log.clone_from(&access_log);
        config.well_known = certificates.as_ref().and_then(https::well_known);
        node.ports.follow(&mut config, &invoker, &Handle::current());
        fronts.spawn(crate::fronts::http(listener, invoker.clone(), config, stopper.clone()));
    }
    // Handshakes take long, and must not delay the functions and the other fronts.
    let has_tls = https_listener.is_some() || coap_tls_listener.is_some();
    let thread = || runtime_on_thread("mote-tls", std::future::pending());
    let of_fronts = has_tls.then(thread).transpose()?.zip(certificates.as_ref());
    let coap_config = mote_coap::Config { notices: Some(notices), ..Default::default() };
    if let (Some(listener), Some((thread, certificates))) = (coap_tls_listener, &of_fronts) {
        let configs = (coap_config.clone(), https::coap_config(certificates, clients.clone())?);
        let (invoker, stopped) = (invoker.clone(), coap_stopped.clone());
        let front = crate::fronts::coap_stream(listener, invoker, configs, stopped);
        fronts.spawn(on_thread(thread, front));
    }
    if let (Some(listener), Some((thread, certificates))) = (https_listener, &of_fronts) {
        let mut config = https::front_config(&node.config, certificates, clients.clone())?;
        config.access_log.clone_from(&access_log);
        node.ports.follow(&mut config, &invoker, thread);
        let front = crate::fronts::http(listener, invoker.clone(), config, stopper.clone());
        fronts.spawn(on_thread(thread, front));
    }
    let handover = certificates.clone().map(|all| Handover::new(all, clients.clone()));
    if let Some(certificates) = certificates {
        management.spawn(certificates.clone().keep_ordered());
        management.spawn(mote_tls::keep_renewed(certificates, clients));
    }
    if let Some(listener) = coap_listener {
        let configs = (coap_config.clone(), mote_coap::StreamConfig::default());
        let (invoker, stopped) = (invoker.clone(), coap_stopped.clone());
        fronts.spawn(crate::fronts::coap_stream(listener, invoker, configs, stopped));
    }
    if let (Some(socket), Some(certificates)) = (dtls_socket, handover) {
        let settings = dtls::Settings {
            socket,
            uid: node.config.uid_base - 4,
            guard: node.guard.clone(),
            certificates,
            data_path: Handle::current(),
        };
        let (invoker, stopped) = (invoker.clone(), coap_stopped.clone());
        let front = dtls::coap_dtls(settings, invoker, coap_config.clone(), stopped);
        fronts.spawn_on(front, management);
    }
    if let Some(socket) = coap_socket {
        fronts.spawn(crate::fronts::coap(socket, invoker, coap_config, coap_stopped.clone()));
    }
    for revision in engine.list() {
        let spec = &revision.spec;
        spec.tokens.iter().for_each(|rules| node.guard.issuers().expect(rules));
        let is_here = !node.elsewhere.lock().contains(&spec.name);
        let triggers = if is_here { &spec.mqtt[..] } else { &[] };
        node.mqtt.apply(&spec.name, triggers, &spec.publishing.topics);
        node.ports.bring_back(spec);
    }
    let (stop_admin, admin_stopped) = tokio::sync::watch::channel(false);
    let fronts_of_others = compat::Fronts {
        tasks: &mut fronts,
        stopper: stopper.clone(),
        coap_stopped,
        access_log: access_log.clone(),
    };
    let handle = management.clone();
    let platforms = if node.config.compat.is_off() {
        compat::warn_of_activations(&node).await;
        None
    } else {
        let stopped = admin_stopped.clone();
        let serving = platforms.serve(node.clone(), handle, fronts_of_others, stopped);
        Some(serving.await?)
    };
    let admin_task = management.spawn(admin::serve(
        node.clone(),
        socket,
        admin_listener
            .map(|socket| Ok::<_, std::io::Error>(Bound::of(socket)?.with_tls(tls)))
            .transpose()?,
        admin_stopped,
    ));
    management.spawn({
        let engine = engine.clone();
        mote_process::memory::give_back(move || engine.idle())
    });

    node.ready.store(true, std::sync::atomic::Ordering::Release);
    announce(&node);
    let manager = Arc::new(manager);
    manager.ready(&serving_text(&node));
    if manager.watchdog.is_some() {
        // A task of the data path: if that hangs, the service manager hears nothing more.
        let manager = manager.clone();
        tokio::spawn(async move { manager.pet_in_time().await });
    }
    let deploying = deploy_at_start(deploy, &node.config.socket);
    let code = tokio::select! {
        // A signal to the whole process group also ends the zygote; the node treats this as a
        // request to stop.
        biased;
        _ = interrupt.recv() => exit::DONE,
        _ = terminate.recv() => exit::DONE,
        () = node.backend.helper_ended() => exit::HELPER,
    };
    drop(deploying);
    node.ready.store(false, std::sync::atomic::Ordering::Release);
    manager.stopping("finishes the calls that have begun");
    match code {
        exit::HELPER => tracing::error!(
            exit_status = code,
            "the zygote, which starts functions, has ended: the node stops; start it again"
        ),
        _ => tracing::info!(
            "the node is stopping: it accepts no new calls and waits for running ones"
        ),
    }
    let stopping = async {
        cells.iter().for_each(|cells| cells.drain());
        stopper.stop();
        let _ = stop_coap.send(true);
        // What is due from here on is missed.
        schedules.stop().await;
        let all_served = async {
            let all_served = async { while fronts.join_next().await.is_some() {} };
            let guests = async {
                if let Some(cells) = &cells {
                    cells.drained().await;
                }
            };
            tokio::join!(all_served, node.ports.stop(), node.mqtt.stop(STOP_GRACE), guests);
        };
        let all_served = waiting_for(&engine, "calls of HTTP, CoAP and MQTT clients", all_served);
        if tokio::time::timeout(STOP_GRACE, all_served).await.is_err() {
            let grace_s = STOP_GRACE.as_secs();
            tracing::warn!(grace_s, "ending calls that did not finish in time");
        }
        if let Some(log) = access_log {
            let closed = tokio::task::spawn_blocking(move || log.close());
            let _ = waiting_for(&engine, "the access log", closed).await;
        }
        let _ = stop_admin.send(true);
        if let Some(platforms) = platforms {
            let joined = tokio::task::spawn_blocking(move || platforms.join());
            let _ = waiting_for(&engine, "the APIs of other platforms", joined).await;
        }
        // Attempts that do not end in time are repeated by the next start.
        journals.stop();
        let ended = tokio::time::timeout(BACKGROUND_GRACE, journals.all_ended());
        let _ = waiting_for(&engine, "accepted invocations that run", ended).await;
        waiting_for(&engine, "the stream of the journal", journals.flush()).await;
        let stopped = engine.stop(Duration::from_secs(3));
        waiting_for(&engine, "instances to end", stopped).await;
        waiting_for(&engine, "messages to MQTT brokers", publisher.stop(PUBLISH_GRACE)).await;
        if let Some(broker) = &own_broker {
            waiting_for(&engine, "the MQTT broker", broker.stop()).await;
        }
        if let Some(state) = state_file {
            let closed = tokio::task::spawn_blocking(move || state.close());
            let _ = waiting_for(&engine, "the state of functions", closed).await;
        }
        if let Some(nats) = &nats {
            waiting_for(&engine, "the connection to NATS", nats.stop()).await;
        }
        let _ = tokio::time::timeout(Duration::from_millis(500), admin_task).await;
    };
    tokio::select! {
        () = stopping => {}
        // A second signal ends the wait.
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    tracing::info!("the node has stopped");
    // The backend is shut down here and not in a destructor, because tasks that are still running
    // keep their parts alive.
    node.backend.shut_down();
    if owns_management {
        let _ = std::fs::remove_file(&node.config.socket);
    }
    Ok(ExitCode::from(code))
}

/// Ends the process on a signal that arrives before the node serves. The node has accepted nothing
/// yet, the store survives such an end, and the zygote ends with its parent.
async fn end_of_start() {
    let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    let (Ok(mut interrupt), Ok(mut terminate)) = signals else { return };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    tracing::info!("the node received a signal to stop while it was starting");
    std::process::exit(exit::DONE.into());
}

/// Waits for a step of the stop, and logs what it still waits for each time [`SLOW_STOP`] has
/// passed.
async fn waiting_for<T>(engine: &Engine, what: &str, step: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let mut step = std::pin::pin!(step);
    loop {
        if let Ok(done) = tokio::time::timeout(SLOW_STOP, &mut step).await {
            return done;
        }
        let mut functions = Vec::new();
        for revision in engine.revisions() {
            let status = revision.status();
            let running: usize = status.instances.iter().map(|instance| instance.in_flight).sum();
            if running + status.queued > 0 {
                let title = revision.title();
                functions.push(format!("{title} ({running} running, {} waiting)", status.queued));
            }
        }
        functions.truncate(SLOW_STOP_NAMES_MAX);
        let waited_s = began.elapsed().as_secs();
        let functions = functions.join(", ");
        tracing::warn!(waited_s, %functions, "the node waits for {what} before it stops");
    }
}

/// A runtime on a thread of its own, which ends after `end`. It is the runtime for one thread, as
/// that of the data path: tokio's runtime for several would put a second copy of each task's code
/// into the binary.
fn runtime_on_thread(name: &str, end: impl Future<Output = ()> + Send + 'static) -> Result<Handle> {
    let runtime =
        Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            runtime.block_on(end);
            runtime.shutdown_background();
        })
        .with_context(|| format!("cannot start the thread {name}"))?;
    Ok(handle)
}

/// `mote up PATH…` deploys like any other client: through the management socket, with the same
/// output. What has not changed since is left alone: each start would otherwise add a revision, and
/// undo a rollback. The child is killed if the node stops first.
fn deploy_at_start(paths: &[PathBuf], socket: &Path) -> Option<tokio::process::Child> {
    if paths.is_empty() {
        return None;
    }
    let spawned = tokio::process::Command::new(OWN_PROGRAM)
        .arg0("mote")
        .args(["deploy", "--if-changed"])
        .args(paths)
        .env("MOTE_SOCKET", socket)
        .kill_on_drop(true)
        .spawn();
    match spawned {
        Ok(child) => Some(child),
        Err(error) => {
            tracing::error!(%error, "functions cannot be deployed at start");
            None
        }
    }
}

/// Makes every deployed function available again; an instance starts only when it is called.
async fn bring_back(node: &Arc<Node>, management: &Handle) -> Result<()> {
    let store = node.store.clone();
    let read = move || Ok::<_, anyhow::Error>((store.functions()?, store.scales()?));
    let (inventory, scales) =
        management.spawn_blocking(read).await.context("cannot read the store")??;
    for damaged in &inventory.damaged {
        tracing::error!(
            function = %damaged.function,
            revision = damaged.revision,
            reason = %damaged.reason,
            "function cannot be served"
        );
    }
    let mut functions = Vec::new();
    let mut created = node.created_at_ms.lock();
    for StoredFunction { live, traffic, others } in inventory.functions {
        let name = live.spec.name.clone();
        created.insert(name.clone(), live.function_created_at_ms);
        if traffic.elsewhere {
            node.elsewhere.lock().insert(name.clone());
        }
        let engine = &node.engine;
        let revisions: Vec<_> = [live]
            .into_iter()
            .chain(others)
            .map(|stored| {
                let StoredRevision { spec, revision, code_path, packages_path, .. } = stored;
                let revision = engine.revision(spec, revision, code_path, packages_path);
                node.trees.keep(&revision);
                revision
            })
            .collect();
        if let Some(bounds) = scales.get(name.as_str()) {
            revisions[0].set_bounds(*bounds);
        }
        let serving = Serving::new(traffic.split, &revisions);
        functions.push(serving.unwrap_or_else(|| revisions[0].clone().into()));
    }
    drop(created);
    let live: Vec<_> = functions.iter().map(|serving| serving.live().clone()).collect();
    node.engine.publish_all(functions);
    let elsewhere = node.elsewhere.lock().clone();
    let is_here = |live: &&Arc<Revision>| !elsewhere.contains(&live.spec.name);
    for revision in live.iter().filter(is_here).filter(|live| !live.spec.schedules.is_empty()) {
        schedules::bring_back(node, revision);
    }
    mote_engine::trees::warn_of(&node.store.recovery().left);
    let (trees, engine, store) = (node.trees.clone(), node.engine.clone(), node.store.clone());
    management.spawn(mote_engine::trees::collect(trees, engine.clone(), store.clone()));
    management.spawn(mote_engine::trees::verify(engine, store));
    Ok(())
}

/// What the service manager shows of a node that serves.
fn serving_text(node: &Node) -> String {
    let at = |address: Option<std::net::SocketAddr>| {
        address.map_or("off".to_owned(), |address| address.to_string())
    };
    format!("serves HTTP ({}) and CoAP ({})", at(node.http), at(node.coap))
}

/// Announces that the node is ready, its addresses, and the limits that it cannot enforce here.
fn announce(node: &Node) {
    let mut text = format!(
        "mote {} is ready in {:.0} ms: {} functions\n",
        env!("CARGO_PKG_VERSION"),
        node.started.elapsed().as_secs_f64() * 1e3,
        node.engine.list().len(),
    );
    for (name, address) in [("http", node.http), ("coap", node.coap)] {
        match address {
            Some(address) => text.push_str(&format!("  {name}   {name}://{address}\n")),
            None => text.push_str(&format!("  {name}   off\n")),
        }
    }
    if let Some(certificates) = &node.certificates {
        let (file, fingerprint) = certificates.first();
        match node.https {
            Some(address) => text.push_str(&format!("  https  https://{address}\n         ")),
            None => text.push_str("  tls    "),
        }
        text.push_str(&format!("SHA-256 {fingerprint}\n"));
        text.push_str(&format!("         of {}\n", file.display()));
    }
    if let Some(address) = node.coap_tcp {
        text.push_str(&format!("  coap+tcp  coap+tcp://{address}\n"));
    }
    if let Some(address) = node.coap_dtls {
        text.push_str(&format!("  coaps  coaps://{address}\n"));
        if !node.shows_certificate_over_dtls() {
            text.push_str(
                "         only clients with a pre-shared key: no certificate of this node has a key \
                 on the curve P-256 or P-384\n",
            );
        }
    }
    if let Some(address) = node.coap_tls {
        text.push_str(&format!("  coaps+tcp  coaps+tcp://{address}\n"));
    }
    text.push_str(&format!("  admin  {}\n", node.config.socket.display()));
    if let Some(admin) = node.config.admin {
        let scheme = if node.certificates.is_some() { "https" } else { "http" };
        text.push_str(&format!("         {scheme}://{admin} (token in admin.token)\n"));
    }
    for (scheme, address) in node.own_broker.iter().flat_map(|broker| broker.listeners()) {
        text.push_str(&format!("  {scheme:<5}  {scheme}://{address}\n"));
    }
    if let Some(cells) = &node.cells {
        text.push_str(&format!("  cell   {}\n", cells.address()));
    }
    if let Some(nats) = &node.config.nats {
        text.push_str(&format!("  nats   {}\n", nats.servers.join(", ")));
    }
    for (platform, address) in &node.compat {
        text.push_str(&format!("  {platform}  {address}\n"));
    }
    let reached = reach::of(node);
    text.push_str(match (node.config.lan, reached.is_empty()) {
        (true, false) => "  reach  the local network:\n",
        (true, true) => "  reach  this machine only, because every address above is its own\n",
        (false, true) => "  reach  from this machine only; --lan opens it\n",
        (false, false) => {
            "  reach  functions from this machine only (--lan opens them), and also:\n"
        }
    });
    for Reach { what, address, who } in reached.iter().take(REACH_LINES_MAX) {
        let address = address.as_ref().map(|at| format!(" {at}")).unwrap_or_default();
        text.push_str(&format!("         {what}{address}: {who}\n"));
    }
    if reached.len() > REACH_LINES_MAX {
        let more = reached.len() - REACH_LINES_MAX;
        text.push_str(&format!("         and {more} more: mote doctor shows them\n"));
    }
    let notes = node.status().notes;
    for (name, detail) in &notes {
        text.push_str(&wrapped("  note   ", &format!("{name}: {detail}")));
    }
    if !notes.is_empty() {
        text.push_str("         mote doctor explains how to fix these\n");
    }
    for (name, found) in [("python", &node.interpreters.python), ("node", &node.interpreters.node)]
    {
        if let Err(reason) = found {
            text.push_str(&wrapped("  note   ", &format!("{name}: {reason}")));
        }
    }
    // The process that started the node may have closed the other end, which does not affect the
    // node.
    let _ = std::io::stdout().write_all(text.as_bytes());
    let _ = std::io::stdout().flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_node_has_room_for_one_prewarmed_interpreter_of_each_kind() {
        const MIB: u64 = 1 << 20;
        for (budget, expected) in [(128, 32), (320, 80), (768, 80), (1_280, 80), (8_192, 512)] {
            assert_eq!(prewarm_bytes(budget * MIB), expected * MIB, "{budget} MiB");
        }
    }
}
