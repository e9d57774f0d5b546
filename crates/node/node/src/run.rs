//! Starts the parts in order, announces readiness, and stops them in the opposite order.
//!
//! There are two runtimes: the data path (fronts and engine) on this thread, and the management API
//! on its own thread, so that a deploy or a scrape never delays requests.
//!
//! Each step of the start is a file here and returns a struct named after it: [`open`] the files,
//! the [`data_path`], the addresses on which the node [`listen`]s, and the [`management`]. A
//! [`Node`] consists of these. It can then [`bring_back`] what it had before, and serve its
//! [`fronts`] and its [`apis`]. [`stop`] ends them.

mod announcement;
mod apis;
mod bring_back;
pub(crate) mod data_path;
mod fronts;
mod listen;
mod management;
pub(crate) mod open;
mod stop;
mod thread;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context as _, Result};
use mote_api::exit;
use mote_process::companion::OWN_PROGRAM;
use mote_process::service_manager::ServiceManager;
use mote_sandbox::ZygoteHandle;
use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use super::Node;
use crate::config::Config;
use announcement::{announce, serving_text};
use data_path::DataPath;
use listen::Listening;
use management::Management;
use open::Opened;
use thread::runtime_on_thread;

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

async fn serve(
    mut config: Config,
    deploy: &[PathBuf],
    zygote: ZygoteHandle,
    mut manager: ServiceManager,
    started: Instant,
    runtime: &Handle,
) -> Result<ExitCode> {
    // Signal handlers are installed first, because a Ctrl-C during a slow start must stop it too.
    let mut signals = Signals::install()?;
    let start_can_end = runtime.spawn(end_of_start());
    let (opened, secrets) = open::open(&config, zygote, runtime).await?;
    let data_path = data_path::begin(&config, &opened, secrets)?;
    let given = std::mem::take(&mut manager.sockets);
    let mut listening = listen::listen(&mut config, given, &data_path).await?;
    let management = management::prepare(&config, &opened, &data_path, &listening, runtime).await?;
    let node = Arc::new(node(config, opened, data_path, &listening, management, started));
    bring_back::bring_back(&node, &listening.platforms, runtime).await?;

    // From here on, calls may have been accepted, so a signal no longer ends the process at once.
    start_can_end.abort();
    let _ = start_can_end.await;
    let mut fronts = fronts::serve(&node, &mut listening, runtime)?;
    let mut apis = apis::serve(&node, listening, &mut fronts, runtime).await?;
    runtime.spawn({
        let engine = node.data_path.engine.clone();
        mote_process::memory::give_back(move || engine.idle())
    });

    node.ready.store(true, Ordering::Release);
    announce(&node);
    let manager = Arc::new(manager);
    manager.ready(&serving_text(&node.addresses));
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
        () = signals.received() => exit::DONE,
        () = node.opened.backend.helper_ended() => exit::HELPER,
    };
    drop(deploying);
    node.ready.store(false, Ordering::Release);
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
    tokio::select! {
        () = stop::stop(&node, &mut fronts, &mut apis) => {}
        // A second signal ends the wait.
        () = signals.received() => {}
    }
    tracing::info!("the node has stopped");
    // The backend is shut down here and not in a destructor, because tasks that are still running
    // keep their parts alive.
    node.opened.backend.shut_down();
    if apis.owns_socket {
        let _ = std::fs::remove_file(&node.config.socket);
    }
    Ok(ExitCode::from(code))
}

/// The node with the parts that the first steps have returned.
fn node(
    config: Config,
    opened: Opened,
    data_path: DataPath,
    listening: &Listening,
    management: Management,
    started: Instant,
) -> Node {
    let Management { tenants, accepted, mqtt, callers, deployed, outgoing } = management;
    Node {
        config,
        opened,
        data_path,
        addresses: listening.addresses(),
        cells: listening.cells.clone(),
        openwhisk: listening.platforms.openwhisk_manifests(),
        tenants,
        accepted,
        mqtt,
        callers,
        deployed,
        outgoing,
        deploys: Default::default(),
        ids: Default::default(),
        started,
        ready: false.into(),
    }
}

/// The signals that ask the node to stop.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn install() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("signal handler")?,
            terminate: signal(SignalKind::terminate()).context("signal handler")?,
        })
    }

    async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
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
