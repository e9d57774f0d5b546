//! The MQTT broker of a node. It is a separate process, so that it runs without privileges.
//!
//! The library `mqtt5` provides the protocol, the sessions and the storage. This program confines
//! itself ([`confinement`]), decides who may do what (`auth.rs`, `acl.rs`, `users.rs`), accepts
//! connections with and without TLS (`front.rs`), and sets the limits (`limits.rs`, `shares.rs`,
//! `kept.rs`). The node starts the program in the folder of the broker's data. On the program's
//! standard input it writes one line of settings, and later changes of certificates and namespaces
//! (`config.rs`). It reads the ports from the program's standard output, and ends the program by
//! closing the input. The program must not know functions, manifests or the store.

mod acl;
mod auth;
mod config;
mod front;
mod kept;
mod limits;
mod shares;
mod users;

use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mote_core::seats::{Seats, Standing};
use mote_process::companion::confinement::{self, Files, Network, Rights};
use mote_tls::handover::Received;
use mqtt5::broker::config::StorageConfig;
use mqtt5::broker::{BrokerConfig, MqttBroker, ResourceLimits, StorageBackend as _};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tracing::level_filters::LevelFilter;

use auth::{Holder, Rules};
use config::{Change, Config, read_change};
use front::{Front, Service, accept_plain};
use kept::{KEPT_BYTES_MAX, KEPT_MAX};
use limits::MORE_CONNECTIONS_MAX;

/// The most connections at once, and the most connections of one address whose clients have no user
/// name.
const CONNECTIONS_MAX: usize = 1_000;
const CONNECTIONS_OF_ONE_MAX: usize = 250;
/// How many connections clients without a user name leave free for others. Clients with a user name
/// leave as many free.
const RESERVE: usize = 125;
/// Largest packet. A message for an absent client is kept whatever its size, and for a moment in
/// several copies. Therefore three times this size times the number of sessions must fit into the
/// memory.
const PACKET_BYTES_MAX: usize = 128 << 10;
/// The most subscriptions of a session.
const SUBSCRIPTIONS_MAX: usize = 100;
/// The most messages, and bytes of them, that wait for one client while it is absent or does not
/// read.
const QUEUED_MAX: usize = 1_000;
const QUEUED_BYTES_MAX: usize = 128 << 10;
/// The most messages that one client may leave unread. If a burst of small messages with QoS 0 is
/// longer than this, its end is lost. `shares.rs` limits how many bytes all clients together may
/// leave unread.
const UNREAD_MAX: usize = 256;
/// The most unacknowledged messages of one client in each direction.
const INFLIGHT_MAX: u16 = 64;
/// How long a session outlives its connection.
const SESSION_EXPIRY: Duration = Duration::from_secs(7 * 24 * 3600);
/// How often the users' file and the number of sessions are checked.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Runs the command line of this process as this companion.
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["users", "--folder", folder, ..] => {
            let status = users::command(Path::new(folder), &arguments[3..]);
            return ExitCode::from(u8::try_from(status).unwrap_or(1));
        }
        ["run"] => {}
        _ => {
            eprintln!("mote-broker is started by a node of mote: mote up --mqtt on");
            return ExitCode::from(2);
        }
    }
    // Counting lets publishers wait while clients that do not read hold much memory.
    mote_process::memory::counting::begin();
    // Of the library's messages, only errors are logged. Reports about single clients would fill
    // the node's log.
    confinement::log_to_node("mote_", LevelFilter::ERROR);
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let mut line = String::new();
    io::stdin().lock().take(1 << 20).read_line(&mut line)?;
    let config: Config = serde_json::from_str(&line).map_err(io::Error::other)?;
    let received = match config.tls.map(|_| read_change(&mut io::stdin().lock())).transpose()? {
        Some(Change::Certificates(message)) => Some(Arc::new(Received::new(&message)?)),
        Some(_) => return Err(io::Error::other("there are no certificates")),
        None => None,
    };
    let mut key = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut key)?;
    let folder = PathBuf::from(".");
    confinement::confine(Rights {
        uid: config.uid,
        memory_bytes: 512 << 20,
        // Enough for every connection and the storage, with a few to spare.
        open_files: 4_096,
        files: Files::Folder(&folder),
        network: Network::Listen,
    })?;
    // One thread is enough for the broker, and the node needs the other cores.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_keep_alive(Duration::from_secs(5))
        .build()?;
    let rules = Arc::new(Rules::new(config.anonymous, &config.password, key));
    rules.kept.set_namespaces(config.namespaces.clone());
    runtime.block_on(serve(config, received, rules, folder))
}

/// Reads changes from the node on a separate thread, and applies them on this runtime. The receiver
/// gets a value when the input is closed. The node closes the input when it stops, and the kernel
/// closes it if the node dies.
fn listen_to_node(
    received: Option<Arc<Received>>,
    rules: Arc<Rules>,
) -> io::Result<oneshot::Receiver<()>> {
    let (closed, is_closed) = oneshot::channel();
    let runtime = Handle::current();
    std::thread::Builder::new().name("node".to_owned()).spawn(move || {
        let mut input = io::stdin().lock();
        let error = loop {
            let message = match read_change(&mut input) {
                Ok(Change::Certificates(message)) => message,
                // These changes run on the runtime, so that they cannot happen between a permission
                // and the library's use of that permission.
                Ok(Change::Namespaces(names)) => {
                    let rules = rules.clone();
                    runtime.spawn(async move { rules.kept.set_namespaces(names) });
                    continue;
                }
                Ok(Change::Deleted(name)) => {
                    let rules = rules.clone();
                    runtime.spawn(async move { rules.kept.clear(&name).await });
                    continue;
                }
                Err(error) => break error,
            };
            let replaced = received.as_ref().map(|received| received.replace(&message));
            if let Some(Err(error)) = replaced {
                tracing::error!(
                    "changed certificates cannot be used, so the former ones are: {error}"
                );
            }
        };
        if error.kind() != io::ErrorKind::UnexpectedEof {
            tracing::error!("a message of the node cannot be read: {error}");
        }
        let _ = closed.send(());
    })?;
    Ok(is_closed)
}

fn bound(address: SocketAddr) -> io::Result<TcpListener> {
    let cannot = |error| io::Error::other(format!("cannot listen on {address}: {error}"));
    mote_tls::listen(address).map_err(cannot)
}

/// The seats of all connections. Clients with a user name cannot use all seats, so that new
/// clients, clients without a name and the node itself find room.
fn seats() -> Seats<Holder> {
    Seats::with_reserve(CONNECTIONS_MAX, CONNECTIONS_OF_ONE_MAX, RESERVE)
        .with_most(Standing::Proven, CONNECTIONS_MAX - RESERVE)
}

async fn serve(
    config: Config,
    received: Option<Arc<Received>>,
    rules: Arc<Rules>,
    folder: PathBuf,
) -> io::Result<()> {
    rules.look(&folder);
    rules.remember(&folder);
    // The library's own listener is only for the node. Devices connect to the listeners of this
    // program.
    let own = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let plain = bound(config.listen)?;
    let tls = match config.tls {
        Some(address) => Some(bound(address)?),
        None => None,
    };
    let storage = StorageConfig::new()
        .with_base_dir(folder.join("storage"))
        .with_max_queued_messages_per_client(QUEUED_MAX)
        .with_max_queued_bytes_per_client(QUEUED_BYTES_MAX)
        .with_cleanup_interval(Duration::from_secs(600));
    let settings = BrokerConfig {
        bind_addresses: vec![own],
        max_clients: CONNECTIONS_MAX + MORE_CONNECTIONS_MAX,
        session_expiry_interval: SESSION_EXPIRY,
        max_packet_size: PACKET_BYTES_MAX,
        topic_alias_maximum: 16,
        max_subscriptions_per_client: SUBSCRIPTIONS_MAX,
        max_retained_messages: KEPT_MAX,
        max_retained_message_size: KEPT_BYTES_MAX,
        client_channel_capacity: UNREAD_MAX,
        max_outbound_inflight: INFLIGHT_MAX,
        server_receive_maximum: Some(INFLIGHT_MAX),
        storage_config: storage,
        sys_topics_enabled: false,
        event_handler: Some(rules.clone()),
        ..BrokerConfig::default()
    };
    let broker = MqttBroker::with_config(settings.clone()).await.map_err(io::Error::other)?;
    let mut broker = broker.with_auth_provider(rules.clone());
    broker.resource_monitor().update_limits(ResourceLimits {
        max_connections: CONNECTIONS_MAX + MORE_CONNECTIONS_MAX,
        max_connections_per_ip: CONNECTIONS_MAX,
        max_message_rate_per_client: 0,
        max_bandwidth_per_client: 0,
        max_connection_rate: u32::try_from(CONNECTIONS_MAX).unwrap_or(u32::MAX),
        rate_limit_window: Duration::from_secs(1),
    });
    let service = Arc::new(Service::of(&broker, settings, rules.clone(), seats()));
    // The node connects over loopback and without TLS, whatever the address for devices is.
    let ip = config.listen.ip();
    let is_reached = ip == Ipv4Addr::UNSPECIFIED || ip == Ipv4Addr::LOCALHOST;
    let local = broker.local_addr().ok_or_else(|| io::Error::other("no listener"))?;
    let local = if is_reached { plain.local_addr()? } else { local };
    let mut ports = local.port().to_string();
    let mut tls_parts = None;
    if let (Some(listener), Some(received)) = (tls, &received) {
        ports.push_str(&format!(" {}", listener.local_addr()?.port()));
        let server = received.server(&[front::ALPN]).map_err(io::Error::other)?;
        tls_parts = Some((listener, server, service.clone()));
    }
    let closed = listen_to_node(received, rules.clone())?;
    let storage = broker.storage();
    let stop = broker.shutdown_handle();
    let mut ready = broker.ready_receiver();
    // A Ctrl-C is meant for the node, which ends the broker after its own clients.
    let _interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let looking = rules.clone();
    let own_folder = folder.clone();
    let watching = tokio::spawn(async move {
        let mut times = tokio::time::interval(LOOK_EVERY);
        times.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            times.tick().await;
            looking.look(&folder);
            looking.save_owners(&folder);
            looking.kept.look(Instant::now());
            if let Some(storage) = &storage
                && let Ok(ids) = storage.session_client_ids().await
            {
                looking.sessions.store(ids.len(), Ordering::Relaxed);
            }
        }
    });
    let keeping = rules.clone();
    let router = broker.router();
    let stopping = tokio::spawn(async move {
        // Until the library is ready, it knows neither the clients' sessions nor the kept messages.
        let is_ready = ready.wait_for(|ready| *ready).await.is_ok();
        let kept = router.get_retained_messages("#").await;
        keeping.kept.limit(router, kept.into_iter().map(|message| message.topic_name).collect());
        let parts = tls_parts.filter(|_| is_ready);
        let front =
            parts.map(|(listener, server, service)| Front::start(listener, server, service));
        let front = front.transpose().unwrap_or_else(|error| {
            tracing::error!("there is no thread for TLS: {error}");
            None
        });
        let (stop_plain, to_stop) = oneshot::channel();
        let plain = tokio::spawn(accept_plain(plain, service, to_stop));
        if is_ready {
            // The node reads this line. If the node has gone, there is nothing to serve.
            let _ = writeln!(io::stdout(), "{ports}");
        }
        tokio::select! {
            _ = closed => {}
            _ = terminate.recv() => {}
        }
        let _ = stop_plain.send(());
        if let Some(front) = front {
            front.stop().await;
        }
        let _ = plain.await;
        stop.shutdown();
    });
    let served = broker.run().await.map_err(io::Error::other);
    rules.save_owners(&own_folder);
    watching.abort();
    stopping.abort();
    served
}
