//! The life of one instance: start, handshake, service, end.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use mote_core::backend::{
    InstanceControl, InstanceLimits, InstanceRequest, Launch, StartError, Started,
};
use mote_core::fault::error_chain;
use mote_core::spec::{
    CONCURRENCY_DEFAULT_EXEC, CONCURRENCY_DEFAULT_NODE, CONCURRENCY_DEFAULT_SERVER, Runtime,
};
use mote_core::wire::{self, FrameKind, Load, Ready, WorkerError};
use mote_core::{Fault, InvocationId};
use slab::Slab;
use tokio::net::UnixStream;

use crate::clock::{now_ns, unix_ms};
use crate::logs::LogLevel;
use crate::pool::{FollowUp, Link, WorkerState, fault_of_exit};
use crate::revision::Revision;
use crate::scaling::{RunTimes, Why};
use crate::server::ServerLink;
use crate::worker::{Connection, LinkEnd, log_frame};
use crate::{egress, output};

/// Where the sandbox shows the code and the installed packages.
pub const CODE_DIR: &str = "/function";
/// See [`CODE_DIR`].
pub const PACKAGES_DIR: &str = "/packages";
/// The port servers are asked to listen on, unless their manifest says otherwise.
const SERVER_PORT: u16 = 8080;
/// How long the exit report of a worker whose socket closed may take before it is killed.
const EXIT_GRACE: Duration = Duration::from_millis(500);
/// First and longest pause between failed starts.
const RETRY_MIN_NS: u64 = 1_000_000_000;
const RETRY_MAX_NS: u64 = 60_000_000_000;
/// Workers in a row that die before their first answer until starts are paused.
const CRASHES_BEFORE_PAUSE: u32 = 3;

/// Why an instance did not become ready.
#[derive(Debug, thiserror::Error)]
enum StartFailure {
    #[error(transparent)]
    Sandbox(#[from] StartError),
    #[error("{runtime} was not found on this node; see: mote doctor")]
    NoRuntime { runtime: &'static str },
    #[error("did not become ready in {0} ms")]
    TimedOut(u64),
    #[error("worker ended before it was ready ({0})")]
    Ended(String),
    #[error("worker broke the protocol: {0}")]
    Protocol(String),
    #[error("{0}")]
    Load(String),
    #[error("worker socket: {0}")]
    Socket(#[from] std::io::Error),
}

/// A start under way.
#[derive(Clone, Copy)]
struct Birth {
    instance: u64,
    since_ns: u64,
    why: Why,
}

/// Starts one instance and serves it until it ends; resolves once it is ready or has failed. The
/// caller has not counted it as starting unless it is the keeper.
pub(crate) async fn start(revision: Arc<Revision>, why: Why) -> Result<(), String> {
    let instance = revision.shared.next_instance();
    let birth = Birth { instance, since_ns: now_ns(), why };
    match ready(&revision, birth).await {
        Ok(()) => Ok(()),
        Err(failure) => {
            let text = error_chain(&failure);
            failed(&revision, instance, &text);
            Err(text)
        }
    }
}

async fn ready(revision: &Arc<Revision>, birth: Birth) -> Result<(), StartFailure> {
    let instance = birth.instance;
    let request = request(revision, instance)?;
    let launch = request.launch.clone();
    let init_timeout_ms = revision.spec.limits.init_timeout_ms;
    let Started { channel, output, egress, control } =
        revision.shared.backend.start(request).await?;
    let control: Arc<dyn InstanceControl> = control.into();
    if revision.pool.lock().background {
        control.set_background(true);
    }
    revision.shared.runtime.spawn(output::read(revision.clone(), instance, output));
    egress::serve(revision, instance, egress);
    let limit = Duration::from_millis(init_timeout_ms);
    let memory_bytes = revision.spec.limits.memory_bytes;
    let ended = |control: &Arc<dyn InstanceControl>| {
        let exited = control.exited();
        async move {
            let exit = exited.await;
            StartFailure::Ended(fault_of_exit(&exit, memory_bytes).public_text("worker"))
        }
    };
    match launch {
        Launch::Server { .. } => {
            let link = Arc::new(ServerLink::new(channel)?);
            tokio::select! {
                result = link.wait_ready() => result?,
                failure = ended(&control) => return Err(failure),
                () = tokio::time::sleep(limit) => {
                    control.kill();
                    return Err(StartFailure::TimedOut(init_timeout_ms));
                }
            }
            let concurrency =
                revision.spec.limits.concurrency.unwrap_or(CONCURRENCY_DEFAULT_SERVER);
            let ready = Ready { init_ns: 0, concurrency, shape: "server".into() };
            let key = enlist(revision, birth, Link::Server(link), ready, control.clone());
            let revision = revision.clone();
            revision.shared.runtime.clone().spawn(async move {
                let exit = control.exited().await;
                end(&revision, key, fault_of_exit(&exit, revision.spec.limits.memory_bytes));
            });
        }
        Launch::Shim { .. } | Launch::PerInvocation { .. } => {
            let mut connection = Connection::new(stream(channel)?);
            let handshake =
                tokio::time::timeout(limit, handshake(revision, instance, &mut connection));
            let ready = match handshake.await {
                Ok(Ok(ready)) => ready,
                Ok(Err(StartFailure::Ended(_))) => {
                    control.kill();
                    return Err(ended(&control).await);
                }
                Ok(Err(failure)) => {
                    control.kill();
                    return Err(failure);
                }
                Err(_) => {
                    control.kill();
                    return Err(StartFailure::TimedOut(init_timeout_ms));
                }
            };
            let link = Link::Frames { out: Vec::new(), waker: None };
            let key = enlist(revision, birth, link, ready, control.clone());
            let revision = revision.clone();
            revision.shared.runtime.clone().spawn(async move {
                let link_end = connection.run(&revision, key).await;
                let fault = fault_of_end(&revision, instance, &control, link_end).await;
                end(&revision, key, fault);
            });
        }
    }
    Ok(())
}

/// HELLO, LOAD, READY.
async fn handshake(
    revision: &Arc<Revision>,
    instance: u64,
    connection: &mut Connection,
) -> Result<Ready, StartFailure> {
    let spec = &revision.spec;
    let (header, payload) = connection.read_frame().await.map_err(handshake_end)?;
    let version = payload.first_chunk::<2>().map(|bytes| u16::from_le_bytes(*bytes));
    if header.kind != FrameKind::Hello || version != Some(wire::VERSION) {
        return Err(StartFailure::Protocol(format!("expected HELLO of version {}", wire::VERSION)));
    }
    let load = Load {
        function: spec.name.to_string(),
        revision: revision.number,
        code_dir: CODE_DIR.into(),
        packages_dir: revision.packages_dir.as_ref().map(|_| PACKAGES_DIR.into()),
        entry: spec.entry.clone(),
        concurrency: spec.limits.concurrency.or(match spec.runtime {
            Runtime::Node => Some(CONCURRENCY_DEFAULT_NODE),
            Runtime::Exec => Some(CONCURRENCY_DEFAULT_EXEC),
            Runtime::Python | Runtime::Server => None,
        }),
        env: spec.env.clone(),
    };
    let load = serde_json::to_vec(&load).expect("a Load has only string keys");
    let mut frame = Vec::new();
    wire::put_frame(&mut frame, FrameKind::Load, 0, 0, &load);
    connection.write_all(&frame).await.map_err(handshake_end)?;
    loop {
        let (header, payload) = connection.read_frame().await.map_err(handshake_end)?;
        match header.kind {
            FrameKind::Log => log_frame(revision, instance, InvocationId(0), &payload),
            FrameKind::Ready => {
                return serde_json::from_slice(&payload)
                    .map_err(|error| StartFailure::Protocol(format!("READY: {error}")));
            }
            FrameKind::Error => {
                let error: WorkerError = serde_json::from_slice(&payload)
                    .map_err(|error| StartFailure::Protocol(format!("ERROR: {error}")))?;
                for line in error.trace.lines() {
                    revision.log.platform(LogLevel::Error, revision.number, instance, line);
                }
                return Err(StartFailure::Load(format!("{}: {}", error.kind, error.message)));
            }
            kind => return Err(StartFailure::Protocol(format!("{kind:?} before READY"))),
        }
    }
}

fn handshake_end(end: LinkEnd) -> StartFailure {
    match end {
        LinkEnd::Closed | LinkEnd::Socket(_) => StartFailure::Ended(String::new()),
        LinkEnd::Protocol(error) => StartFailure::Protocol(error.to_string()),
    }
}

/// Adds a ready worker to the pool and gives it what waits.
fn enlist(
    revision: &Arc<Revision>,
    birth: Birth,
    link: Link,
    ready: Ready,
    control: Arc<dyn InstanceControl>,
) -> usize {
    let Birth { instance, since_ns, why } = birth;
    let now = now_ns();
    let mut follow_ups: Vec<FollowUp> = Vec::new();
    let mut pool = revision.pool.lock();
    let draining = pool.closed;
    pool.starting = pool.starting.saturating_sub(1);
    pool.retry_at_ns = 0;
    pool.last_ready_ns = now;
    pool.last_ready_since_ns = since_ns;
    if let Some(scaling) = &mut pool.scaling {
        scaling.ready(now - since_ns, ready.concurrency);
    }
    let key = pool.workers.insert(WorkerState {
        instance,
        link,
        streams: Slab::new(),
        concurrency: ready.concurrency.max(1),
        shape: ready.shape,
        run_times: RunTimes::default(),
        draining,
        drain_sent_ns: None,
        stop_reason: draining.then_some("redeploy"),
        why,
        idle_since_ns: now,
        started_unix_ms: unix_ms(),
        init_ns: now - since_ns,
        frames_seen: 0,
        unwritten: 0,
        served: 0,
        burnt_ns: 0,
        looked_ns: now,
        cpu_ns: 0,
        memory_bytes: 0,
        control,
    });
    pool.dispatch(now, &mut follow_ups);
    drop(pool);
    revision.metrics.ready();
    let ms = (now - since_ns) / 1_000_000;
    let text = format!("ready after {ms} ms; started ({}): {}", why.word, why.text);
    revision.log.platform(LogLevel::Info, revision.number, instance, &text);
    revision.changed.notify_one();
    revision.follow_up(follow_ups);
    key
}

/// A start that failed: remember it, and answer those who wait if nothing else can.
fn failed(revision: &Arc<Revision>, instance: u64, text: &str) {
    revision.metrics.stopped("start");
    let mut pool = revision.pool.lock();
    pool.starting = pool.starting.saturating_sub(1);
    pool.failures = pool.failures.saturating_add(1);
    pool.last_failure = text.to_owned();
    let pause_ns = pause_ns(pool.failures - 1);
    pool.retry_at_ns = now_ns() + pause_ns;
    if let Some(scaling) = &mut pool.scaling {
        scaling.gone(0, 0);
    }
    let waiting = if pool.workers.is_empty() && pool.starting == 0 {
        std::mem::take(&mut pool.queue)
    } else {
        Default::default()
    };
    drop(pool);
    let line = format!("start failed: {text}; {}", pause_text(pause_ns));
    revision.log.platform(LogLevel::Error, revision.number, instance, &line);
    for pending in waiting {
        let _ = pending.reply.send(Err(Fault::StartFailed { message: text.to_owned() }));
    }
    revision.changed.notify_one();
}

/// The pause after so many failures before: doubling from first to longest.
fn pause_ns(before: u32) -> u64 {
    (RETRY_MIN_NS << before.min(6)).min(RETRY_MAX_NS)
}

fn pause_text(pause_ns: u64) -> String {
    format!("not started again for {} s", pause_ns / 1_000_000_000)
}

/// Why a worker's connection ended, as the fault of what it held.
async fn fault_of_end(
    revision: &Revision,
    instance: u64,
    control: &Arc<dyn InstanceControl>,
    link_end: LinkEnd,
) -> Fault {
    if let LinkEnd::Protocol(error) = &link_end {
        control.kill();
        let text = format!("killed: {error}");
        revision.log.platform(LogLevel::Error, revision.number, instance, &text);
    }
    let exited = control.exited();
    tokio::pin!(exited);
    let exit = match tokio::time::timeout(EXIT_GRACE, &mut exited).await {
        Ok(exit) => exit,
        Err(_) => {
            control.kill();
            exited.await
        }
    };
    match link_end {
        LinkEnd::Protocol(error) => Fault::BadReply { message: error.to_string() },
        _ => fault_of_exit(&exit, revision.spec.limits.memory_bytes),
    }
}

/// A worker is gone: what it held runs once more or fails, and the keeper replaces it if needed.
fn end(revision: &Arc<Revision>, key: usize, fault: Fault) {
    let now = now_ns();
    let mut follow_ups = Vec::new();
    let mut pool = revision.pool.lock();
    let Some(dead) = pool.remove_worker(key) else { return };
    let expected = dead.stop_reason.is_some();
    if !expected || dead.stop_reason == Some("deadline-kill") {
        // What dies or hangs is restarted at the expense of nobody else.
        pool.background = true;
    }
    let retry = fault.answer().retryable;
    let mut failed = dead.failed;
    for pending in dead.repeat {
        if retry && !pool.closed {
            pool.queue.push_front(pending);
        } else {
            failed.push((pending.invocation.trigger, pending.reply));
        }
    }
    let mut paused = None;
    if !expected && !dead.started {
        // It died before it answered anything. Once or twice may be the fault of one request;
        // more is a crash loop, which backs off like failed starts do.
        pool.failures = pool.failures.saturating_add(1);
        pool.last_failure = fault.to_string();
        if pool.failures >= CRASHES_BEFORE_PAUSE {
            let pause_ns = pause_ns(pool.failures - CRASHES_BEFORE_PAUSE);
            pool.retry_at_ns = now + pause_ns;
            paused = Some((pool.failures, pause_ns));
        }
    }
    pool.dispatch(now, &mut follow_ups);
    drop(pool);
    let reason = match (&fault, dead.stop_reason) {
        (Fault::OutOfMemory { .. }, _) => "memory",
        (_, Some("deadline-kill")) => "deadline",
        (_, Some(reason)) => reason,
        _ => "crash",
    };
    revision.metrics.ended(reason);
    let (level, text) = if reason == "memory" || reason == "crash" {
        (
            LogLevel::Error,
            format!("stopped ({reason}): {}", fault.public_text(revision.spec.name.as_str())),
        )
    } else {
        (LogLevel::Info, format!("stopped ({reason})"))
    };
    revision.log.platform(level, revision.number, dead.instance, &text);
    if let Some((times, pause_ns)) = paused {
        let text = format!("died {times} times before its first answer: {}", pause_text(pause_ns));
        revision.log.platform(LogLevel::Warn, revision.number, dead.instance, &text);
    }
    for (_, reply) in failed {
        let _ = reply.send(Err(fault.clone()));
    }
    revision.changed.notify_one();
    revision.follow_up(follow_ups);
}

fn request(revision: &Revision, instance: u64) -> Result<InstanceRequest, StartFailure> {
    let spec = &revision.spec;
    let interpreters = &revision.shared.config.interpreters;
    let missing = || StartFailure::NoRuntime { runtime: spec.runtime.as_str() };
    let launch = match spec.runtime {
        Runtime::Python => Launch::Shim { argv: interpreters.python.clone().ok_or_else(missing)? },
        Runtime::Node => Launch::Shim { argv: interpreters.node.clone().ok_or_else(missing)? },
        Runtime::Exec => Launch::PerInvocation { argv: spec.command.clone() },
        Runtime::Server => Launch::Server { argv: spec.command.clone(), port: SERVER_PORT },
    };
    let mut env: Vec<(String, String)> = [
        ("PATH", interpreters.path.as_str()),
        ("HOME", "/tmp"),
        ("LANG", "C.UTF-8"),
        ("MOTE_FUNCTION", spec.name.as_str()),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    if let Launch::PerInvocation { .. } | Launch::Server { .. } = launch {
        env.extend(spec.env.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
    if let Launch::Server { port, .. } = launch {
        env.push(("PORT".into(), port.to_string()));
        if revision.packages_dir.is_some() {
            env.push(("PYTHONPATH".into(), PACKAGES_DIR.into()));
            env.push(("NODE_PATH".into(), format!("{PACKAGES_DIR}/node_modules")));
        }
    }
    Ok(InstanceRequest {
        instance,
        label: format!("{}-{}", spec.name, revision.number),
        code_dir: revision.code_dir.clone(),
        packages_dir: revision.packages_dir.clone(),
        launch,
        env,
        limits: InstanceLimits {
            memory_bytes: spec.limits.memory_bytes,
            cpu_millis: spec.limits.cpu_millis,
            pids: spec.limits.pids,
            disk_bytes: spec.limits.disk_bytes,
        },
        egress: spec.egress.clone(),
    })
}

fn stream(fd: OwnedFd) -> std::io::Result<UnixStream> {
    let stream = std::os::unix::net::UnixStream::from(fd);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}
