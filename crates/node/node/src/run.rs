//! Starts the parts of a node in order, announces that the node is ready, and stops the parts in
//! the opposite order.
//!
//! There are two runtimes. The data path (fronts and engine) runs on this thread. The management
//! API runs on a separate thread, so that a deploy or a scrape never delays requests.
//!
//! Each step of the start is a file in `run/` and returns a struct named after the step: [`open`]
//! opens the files, [`data_path`] starts the engine, [`listen`] binds the addresses, and
//! [`management`] makes the parts that manage the node. A [`Node`] consists of these structs. The
//! next steps are [`bring_back`], which restores what the node had before, and [`fronts`] and
//! [`apis`], which serve. [`stop`] ends them.

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
use std::time::{Duration, Instant};

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
use crate::develop::{DevNode, Guest, hangup, received};
use announcement::{announce, serving_text};
use data_path::DataPath;
use listen::Listening;
use management::Management;
use open::Opened;
use thread::runtime_on_thread;

/// How long running calls may continue after a developer stops the node.
const DEV_STOP_GRACE: Duration = Duration::from_secs(1);

/// What a node is for.
pub(crate) enum Purpose {
    /// Deploys these projects, and then serves functions.
    Serve(Vec<PathBuf>),
    Develop(Guest),
}

/// Waits for the end of a guest. A signal also asks the guest to end.
async fn ended(mut guest: oneshot::Receiver<u8>, signals: &mut Signals) -> u8 {
    let code = tokio::select! {
        code = &mut guest => Some(code),
        () = signals.received() => None,
    };
    let code = match code {
        Some(code) => Ok(code),
        // The guest receives the signal, too, unless the signal came before the guest started.
        None => tokio::time::timeout(DEV_STOP_GRACE, guest).await.or(Ok::<_, u8>(Ok(exit::DONE))),
    };
    code.map_or(exit::DONE, |code| code.unwrap_or(exit::FAILED))
}

/// Runs the guest of a node. Resolves with the exit code when the guest has ended.
fn run_guest(guest: Guest, node: DevNode) -> Result<oneshot::Receiver<u8>> {
    let (ended, code) = oneshot::channel();
    let run = guest.run;
    std::thread::Builder::new()
        .name("mote-dev".to_owned())
        .spawn(move || {
            // The node may have ended first.
            let _ = ended.send(run(node));
        })
        .context("cannot start the thread mote-dev")?;
    Ok(code)
}

/// Runs a node until it is stopped. Before any thread existed, the caller forked `zygote` and took
/// what the service manager handed over.
pub(crate) fn run(
    config: Config,
    purpose: Purpose,
    zygote: ZygoteHandle,
    manager: ServiceManager,
) -> Result<ExitCode> {
    let started = Instant::now();
    let data_path =
        Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    let (stop_management, stopped) = oneshot::channel::<()>();
    let management = runtime_on_thread("mote-admin", async { drop(stopped.await) })?;
    mote_sandbox::take_short_turns();
    let code = data_path.block_on(serve(config, purpose, zygote, manager, started, &management))?;
    // Blocking tasks of the management runtime may still wait for a slow disk. The node does not
    // wait for these tasks.
    drop(stop_management);
    Ok(code)
}

async fn serve(
    mut config: Config,
    purpose: Purpose,
    zygote: ZygoteHandle,
    mut manager: ServiceManager,
    started: Instant,
    runtime: &Handle,
) -> Result<ExitCode> {
    // Signal handlers are installed first, so that Ctrl-C also stops a slow start.
    let develops = matches!(purpose, Purpose::Develop(_));
    let mut signals = Signals::install(develops)?;
    let _folder = match &purpose {
        Purpose::Develop(guest) => Some(guest.make_folder()?),
        Purpose::Serve(_) => None,
    };
    // The start of a developer's node is awaited, because only then can its folder be removed.
    let start_can_end = (!develops).then(|| runtime.spawn(end_of_start()));
    let (opened, secrets, compiling) = open::open(&config, zygote, runtime).await?;
    let data_path = data_path::begin(&config, &opened, secrets)?;
    let given = std::mem::take(&mut manager.sockets);
    let mut listening = listen::listen(&mut config, given, &data_path).await?;
    let management = management::prepare(&config, &opened, &data_path, &listening, runtime).await?;
    let node = Arc::new(node(config, opened, data_path, &listening, management, started));
    let dev_node = develops.then(|| DevNode::new(&node));
    bring_back::bring_back(&node, &listening.platforms, runtime).await?;

    // From here on, the node may have accepted calls, so a signal no longer ends the process at
    // once.
    if let Some(start_can_end) = start_can_end {
        start_can_end.abort();
        let _ = start_can_end.await;
    }
    let mut fronts = fronts::serve(&node, &mut listening, runtime)?;
    let mut apis = apis::serve(&node, listening, &mut fronts, runtime).await?;
    runtime.spawn({
        let engine = node.data_path.engine.clone();
        mote_process::memory::give_back(move || engine.idle())
    });

    node.ready.store(true, Ordering::Release);
    if !develops {
        announce(&node);
    }
    let manager = Arc::new(manager);
    manager.ready(&serving_text(&node.addresses));
    if manager.watchdog.is_some() {
        // This task runs on the data path on purpose: if the data path hangs, the service manager
        // hears nothing more.
        let manager = manager.clone();
        tokio::spawn(async move { manager.pet_in_time().await });
    }
    let (deploying, guest) = match (purpose, dev_node) {
        (Purpose::Serve(paths), _) => (deploy_at_start(&paths, &node.config.socket), None),
        (Purpose::Develop(guest), Some(node)) => (None, Some(run_guest(guest, node)?)),
        (Purpose::Develop(_), None) => (None, None),
    };
    let served = async {
        match guest {
            Some(guest) => ended(guest, &mut signals).await,
            None => {
                signals.received().await;
                exit::DONE
            }
        }
    };
    let code = tokio::select! {
        // A signal to the whole process group also ends the zygote. The signals are checked first,
        // so that the node then treats this as a request to stop and not as a failure of the
        // zygote.
        biased;
        code = served => code,
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
        // Only the developer waits for these calls.
        () = tokio::time::sleep(DEV_STOP_GRACE), if develops => {}
        // A second signal ends the wait for the stop.
        () = signals.received() => {}
    }
    tracing::info!("the node has stopped");
    if develops {
        // Otherwise, its process might still write to the folder while the folder is removed.
        compiling.abort();
        let _ = compiling.await;
    }
    // The backend is shut down here and not by its destructor, because tasks that are still running
    // may hold references to it.
    node.opened.backend.shut_down();
    if apis.owns_socket {
        let _ = std::fs::remove_file(&node.config.socket);
    }
    Ok(ExitCode::from(code))
}

/// Makes the node from the parts that the first steps returned.
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
        on_demand: Default::default(),
        recordings: Default::default(),
        ids: Default::default(),
        started,
        ready: false.into(),
    }
}

/// The signals that ask the node to stop.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Only for a developer's node, which ends with its terminal.
    hangup: Option<Signal>,
}

impl Signals {
    fn install(develops: bool) -> Result<Self> {
        Ok(Self {
            hangup: develops.then(hangup).flatten(),
            interrupt: signal(SignalKind::interrupt()).context("signal handler")?,
            terminate: signal(SignalKind::terminate()).context("signal handler")?,
        })
    }

    async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = received(self.hangup.as_mut()) => {}
        }
    }
}

/// Ends the process if a signal arrives before the node serves. This is safe, because the node has
/// accepted nothing yet, the store survives such an end, and the zygote ends with its parent.
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

/// Deploys the paths of `mote up PATH…` as any other client does: through the management socket,
/// with the same output. Unchanged functions are not deployed again, because otherwise each start
/// would add a revision and undo a rollback. The child process is killed if the node stops first.
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
