//! The life of one instance: start, handshake, service, end.

pub(crate) mod egress;
pub(crate) mod family;
pub(crate) mod governor;
pub(crate) mod handshake;
pub(crate) mod launch;
pub(crate) mod output;
pub(crate) mod prewarm;
pub(crate) mod program;
pub(crate) mod request_bounds;
pub(crate) mod requests;
pub(crate) mod services_door;
pub(crate) mod worker_log;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mote_core::Fault;
use mote_core::backend::{BoxFuture, Exit, InstanceControl, Launch, Started};
use mote_core::fault::error_chain;
use mote_core::wire::Ready;
use mote_pool::{NewInstance, Why};
use mote_spec::{CONCURRENCY_DEFAULT_SERVER, FunctionSpec, Protocol};
use tokio::runtime::Handle;

use crate::entry::offer::Unanswered;
use crate::instance::handshake::{StartFailure, Told, handshake, services, stream};
use crate::instance::launch::request;
use crate::instance::worker_log::InstanceLog;
use crate::ledger::Reservation;
use crate::link::action_image;
use crate::link::server_link::ServerLink;
use crate::link::worker::{Connection, LinkEnd};
use crate::revision::Revision;
use crate::revision::logs::{LogLevel, Stopped};
use crate::revision::pool::{FollowUp, Instance, Left, Link, fault_of_exit, leave_behind};
use mote_process::clock::{now_ns, unix_ms};

/// How long a worker whose socket has closed may take to report its exit before it is killed.
const EXIT_GRACE: Duration = Duration::from_millis(500);
/// How many further programs are tried if a prewarmed program or a copy was killed.
const DIED_PREWARMED_MAX: u32 = 2;
/// Resolves when a server accepts connections and, if it runs an action, has been told which one.
async fn serves(link: &Arc<ServerLink>, spec: &FunctionSpec) -> std::io::Result<()> {
    link.wait_ready().await?;
    if action_image::is_meant(spec) { action_image::init(link, spec).await } else { Ok(()) }
}

/// A start under way.
#[derive(Clone, Copy)]
struct Birth {
    instance: u64,
    since_ns: u64,
    why: Why,
    origin: Origin,
}

/// Where the program of an instance came from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    New,
    Prewarmed,
    /// It is a copy of the revision's seed.
    Copied,
}

/// Starts one instance in the room reserved for it, and serves the instance until it ends. Resolves
/// once the instance is ready or has failed. The caller must already have counted the instance as
/// starting.
pub(crate) async fn start(
    revision: Arc<Revision>,
    why: Why,
    mut reservation: Reservation,
) -> Result<(), String> {
    reservation.room().await;
    let instance = revision.shared.next_instance();
    let birth = Birth { instance, since_ns: now_ns(), why, origin: Origin::New };
    let mut reservation = Some(reservation);
    let mut result = ready(&revision, birth, &mut reservation).await;
    for _ in 0..DIED_PREWARMED_MAX {
        // As far as the node can tell, this failure is not the function's fault.
        if let Err(StartFailure::DiedPrewarmed(_)) = result {
            result = ready(&revision, birth, &mut reservation).await;
        }
    }
    match result {
        Ok(()) => Ok(()),
        Err(failure) => {
            let text = revision.log.masked_reason(&error_chain(&failure));
            failed(&revision, birth, &text);
            Err(text)
        }
    }
}

/// Keeps the room of an instance that failed to start until its processes have ended.
fn bury(runtime: &Handle, exited: BoxFuture<Exit>, reservation: Option<Reservation>) {
    let Some(reservation) = reservation else { return };
    reservation.started();
    runtime.spawn(async move {
        exited.await;
        drop(reservation);
    });
}

/// Why a server was not ready in time. Sockets that stand for destinations of the function do not
/// count as sockets of the server.
fn silent_server(
    spec: &FunctionSpec,
    waited_ms: u64,
    port: u16,
    mut listening: Vec<u16>,
) -> StartFailure {
    if listening.contains(&port) {
        return StartFailure::TimedOut(waited_ms);
    }
    let doors = spec.doors();
    listening.retain(|port| !doors.iter().any(|door| door.port == *port));
    StartFailure::NotListening { port, waited_ms, listening, is_image: spec.image.is_some() }
}

fn held(room: &mut Option<Reservation>) -> Reservation {
    room.take().expect("room is held until an instance takes it")
}

/// Makes one attempt to start an instance. If another attempt may follow, `room` is left unchanged.
async fn ready(
    revision: &Arc<Revision>,
    birth: Birth,
    room: &mut Option<Reservation>,
) -> Result<(), StartFailure> {
    let instance = birth.instance;
    let request = request(revision, instance)?;
    let launch = request.launch.clone();
    let (started, seed) = match family::copy(revision, &request).await {
        Some((started, seed)) => (started, Some(seed)),
        None => {
            if !matches!(birth.why, Why::DEPLOY | Why::WARM | Why::SPARE) {
                revision.shared.prewarm.start(&request);
            }
            (revision.shared.backend.start(request).await?, None)
        }
    };
    let init_timeout_ms = revision.init_timeout_ms();
    let Started { channel, output, egress, debugger, control, prewarmed, under_way: _under_way } =
        started;
    let origin = match &seed {
        Some(_) => Origin::Copied,
        None if prewarmed => Origin::Prewarmed,
        None => Origin::New,
    };
    let birth = Birth { origin, ..birth };
    let control: Arc<dyn InstanceControl> = control.into();
    revision.shared.runtime.spawn(output::read(revision.clone(), instance, output));
    let doors = egress::serve(revision, instance, egress);
    if let Some(debugger) = debugger {
        let link = ServerLink::new(debugger, Protocol::Http1)?;
        *revision.debugger.lock() = Some(Arc::new(link));
    }
    let limit = Duration::from_millis(init_timeout_ms);
    let ended = |exit: Exit| {
        let text = fault_of_exit(&exit, &revision.spec).public_text("worker");
        if prewarmed && exit.signal.is_some() && !exit.out_of_memory {
            return StartFailure::DiedPrewarmed(text);
        }
        StartFailure::Ended(text)
    };
    match launch {
        Launch::Server { port, .. } => {
            let link = Arc::new(ServerLink::new(channel, revision.spec.protocol)?);
            let mut exited = control.exited();
            let failure = tokio::select! {
                result = serves(&link, &revision.spec) => result.err().map(StartFailure::from),
                exit = &mut exited => return Err(ended(exit)),
                () = tokio::time::sleep(limit) => {
                    Some(silent_server(
                        &revision.spec,
                        revision.init_timeout_ms(),
                        port,
                        control.listening(),
                    ))
                }
            };
            if let Some(failure) = failure {
                control.kill();
                bury(&revision.shared.runtime, exited, room.take());
                return Err(failure);
            }
            let concurrency =
                revision.spec.limits.concurrency.unwrap_or(CONCURRENCY_DEFAULT_SERVER);
            let ready = Ready { concurrency, shape: "server".into(), ..Ready::default() };
            let link = Link::Server(link);
            let key = enlist(revision, birth, link, ready, control, held(room));
            let revision = revision.clone();
            tokio::spawn(async move {
                let exit = exited.await;
                drop(doors);
                end(&revision, key, fault_of_exit(&exit, &revision.spec));
            });
        }
        Launch::Shim { .. } | Launch::Worker { .. } | Launch::PerInvocation { .. } => {
            let mut connection = Connection::new(stream(channel)?)?;
            let told = if seed.is_some() { Told::Nothing } else { Told::Function };
            let handshake =
                tokio::time::timeout(limit, handshake(revision, instance, &mut connection, told));
            let ready = match handshake.await {
                Ok(Ok(ready)) => ready,
                // The function may work where it is loaded again.
                failed if seed.is_some() => {
                    control.kill();
                    control.exited().await;
                    let failure = failed.ok().and_then(Result::err);
                    let failure = failure.unwrap_or(StartFailure::TimedOut(init_timeout_ms));
                    let why = revision.log.masked_reason(&error_chain(&failure));
                    revision.family.give_up(format!("a copy failed: {why}"));
                    return Err(StartFailure::DiedPrewarmed(why));
                }
                Ok(Err(StartFailure::Ended(_))) => {
                    // The worker's own exit status explains more than a kill would, so wait for the
                    // exit before killing.
                    let mut exited = control.exited();
                    let last_word = tokio::time::timeout(EXIT_GRACE, &mut exited).await;
                    control.kill();
                    return Err(ended(match last_word {
                        Ok(exit) => exit,
                        Err(_) => exited.await,
                    }));
                }
                failed => {
                    control.kill();
                    bury(&revision.shared.runtime, control.exited(), room.take());
                    let late = || StartFailure::TimedOut(init_timeout_ms);
                    return Err(failed.ok().and_then(Result::err).unwrap_or_else(late));
                }
            };
            let link = Link::Frames { out: Vec::new(), waker: None };
            let key = enlist(revision, birth, link, ready, control.clone(), held(room));
            let revision = revision.clone();
            tokio::spawn(async move {
                let (link_end, reached) = connection.run(&revision, key, instance).await;
                // This must happen before the exit is known, so that an invocation that arrives in
                // the meantime is not given to this worker.
                leave(&revision, key, reached);
                let log = revision.log_of(instance);
                let fault = fault_of_end(&revision.spec, log, &control, link_end).await;
                drop(doors);
                end(&revision, key, fault);
                // The seed lives as long as its copies.
                drop(seed);
            });
        }
    }
    Ok(())
}

/// Adds a ready worker to the pool and gives it the waiting invocations.
fn enlist(
    revision: &Arc<Revision>,
    birth: Birth,
    link: Link,
    ready: Ready,
    control: Arc<dyn InstanceControl>,
    reservation: Reservation,
) -> usize {
    let Birth { instance, since_ns, why, origin } = birth;
    // A copy has not loaded anything.
    if origin != Origin::Copied {
        revision.family.learn(&ready);
    }
    reservation.started();
    // The group of a prewarmed program has also counted the work of prewarming it. That work is a
    // part of the start, because another program is prewarmed in its place. A machine that does not
    // count processor time reports 0.
    let start_cpu_ns = control.usage().map(|usage| usage.cpu_ns).filter(|cpu_ns| *cpu_ns > 0);
    let now = now_ns();
    let mut follow_ups: Vec<FollowUp> = Vec::new();
    let has_neighbours = revision.has_neighbours(now);
    let mut pool = revision.pool.lock();
    // An instance enters the background only now. On a machine that is always busy, it would
    // otherwise never become ready.
    if pool.background().is_some() && has_neighbours {
        control.set_background(true);
    } else if pool.background().is_some() {
        pool.put_into_background(None);
    }
    revision.whole_bodies.store(ready.whole_bodies, Ordering::Relaxed);
    revision.concurrency.store(ready.concurrency, Ordering::Relaxed);
    let spare = why == Why::SPARE;
    let times = (unix_ms(), now, now - since_ns);
    let place = (revision.shared.threads.seat(), revision.shared.busy_poll.load());
    let mut ready_instance =
        Instance::new(link, control, reservation, ready.shape, why, times, place);
    ready_instance.takes_requests =
        !services(&revision.spec, revision.shared.services.get()).is_empty();
    let key = pool.add_ready(
        NewInstance {
            number: instance,
            instance: ready_instance,
            concurrency: ready.concurrency,
            spare,
            since_ns,
            start_cpu_ns,
        },
        now,
    );
    let no_spares = pool.cannot_pause_spares();
    let others = pool.workers().len() - 1;
    pool.dispatch(now, &mut follow_ups);
    drop(pool);
    revision.metrics.ready(now - since_ns);
    revision.seen.started(why, now - since_ns, others);
    let ms = (now - since_ns) / 1_000_000;
    let how = match origin {
        Origin::New => "",
        Origin::Prewarmed => " in a prewarmed sandbox",
        Origin::Copied => " as a copy",
    };
    let text = format!("ready after {ms} ms{how}; started ({}): {}", why.word, why.text);
    revision.log.platform(LogLevel::Info, revision.number, instance, &text);
    if spare && no_spares {
        let text = "keeping no spare instances: this node cannot pause them";
        revision.log.platform(LogLevel::Warn, revision.number, instance, text);
    }
    revision.changed.notify_one();
    revision.follow_up(follow_ups);
    key
}

/// Handles a failed start: records it, and answers the waiting callers if no other instance can.
fn failed(revision: &Arc<Revision>, birth: Birth, text: &str) {
    revision.metrics.stopped("start");
    revision.log.stopped(Stopped::now(birth.instance, revision.number, "start", text));
    let mut pool = revision.pool.lock();
    let (waiting, pause_ns) = pool.start_failed(birth.why == Why::SPARE, text, now_ns());
    let tells = pool.tells(now_ns());
    drop(pool);
    if let Some(untold) = tells {
        let function = revision.title();
        tracing::warn!(function, instance = birth.instance, reason = text, untold, "start failed");
    }
    let line = format!("start failed: {text}; {}", pause_text(pause_ns));
    revision.log.platform(LogLevel::Error, revision.number, birth.instance, &line);
    for pending in waiting {
        pending.fail(Fault::StartFailed { message: text.to_owned() });
    }
    revision.changed.notify_one();
}

fn pause_text(pause_ns: u64) -> String {
    format!("the next start is tried in {} s", pause_ns / 1_000_000_000)
}

/// Converts the reason for which a worker's connection ended into the fault of the invocations that
/// the worker held.
async fn fault_of_end(
    spec: &FunctionSpec,
    log: InstanceLog<'_>,
    control: &Arc<dyn InstanceControl>,
    link_end: LinkEnd,
) -> Fault {
    if let LinkEnd::Protocol(error) = &link_end {
        control.kill();
        let text = format!("killed: {error}");
        log.to.platform(LogLevel::Error, log.revision, log.instance, &text);
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
        _ => fault_of_exit(&exit, spec),
    }
}

/// Notes that a worker has closed its connection and receives nothing more. Of the invocations that
/// the worker was given, only the first `reached` left the engine. The others wait for another
/// worker.
fn leave(revision: &Arc<Revision>, key: usize, reached: u64) {
    let mut follow_ups = Vec::new();
    let now = now_ns();
    let mut pool = revision.pool.lock();
    let moved = pool.take_back(key, reached, now);
    pool.dispatch(now, &mut follow_ups);
    drop(pool);
    for pending in moved {
        pending.move_on();
    }
    revision.changed.notify_one();
    revision.follow_up(follow_ups);
}

/// Notes that a worker has ended. The invocations that it held run once more or fail, and the
/// reconciler replaces the worker if needed.
fn end(revision: &Arc<Revision>, key: usize, fault: Fault) {
    let now = now_ns();
    let has_neighbours = revision.has_neighbours(now);
    let mut follow_ups = Vec::new();
    let mut pool = revision.pool.lock();
    let ending = pool.worker(key).map(|worker| {
        let control = worker.instance().control.clone();
        (control, worker.served(), worker.idle_since_ns())
    });
    let is_last = pool.workers().len() == 1;
    let Some(ended) = pool.ended(key, &fault.to_string(), now) else { return };
    let expected = ended.stop.is_some();
    let hung = ended.stop.as_ref().is_some_and(|stop| stop.hung);
    let retry = fault.answer().retryable;
    let mut failed = Vec::new();
    let mut torn = Vec::new();
    let mut moved = Vec::new();
    for call in ended.calls {
        match leave_behind(call) {
            Left::Repeat { pending, .. } if retry && pool.is_closed() => moved.push(pending),
            Left::Repeat { serial, pending, .. } if retry => pool.requeue(serial, pending),
            Left::Repeat { pending, phases, .. } => {
                failed.push((pending.attempts - 1, pending.reply, phases));
            }
            Left::Failed(attempts, reply, phases) => failed.push((attempts, reply, phases)),
            Left::Torn(id) => torn.push(id),
            Left::Abandoned => {}
        }
    }
    // A function that hangs, exhausts its memory or dies repeatedly is restarted in the background,
    // so that it does not slow other functions. A single death is not enough: it may not be the
    // function's fault, and on a busy machine a start in the background takes long.
    if has_neighbours && (hung || ended.deaths > 1 || matches!(fault, Fault::OutOfMemory { .. })) {
        pool.start_in_background();
    }
    pool.dispatch(now, &mut follow_ups);
    let tells = if !expected || hung { pool.tells(now) } else { None };
    drop(pool);
    let reason = match (&fault, &ended.stop) {
        (Fault::OutOfMemory { .. }, _) => "memory",
        (_, Some(stop)) => stop.reason.as_str(),
        (_, None) => "crash",
    };
    revision.metrics.ended(reason);
    if let Some((control, calls, idle_at_ns)) = ending {
        let peaks = control.peaks().unwrap_or_default();
        revision.metrics.used_cpu(peaks.cpu_ns);
        let idle_ns = revision.spec.scale.idle_timeout_ms.saturating_mul(1_000_000);
        let is_idle = is_last && reason == "idle" && now.saturating_sub(idle_at_ns) >= idle_ns;
        revision.seen.ended(peaks, calls, reason == "memory", is_idle.then_some(idle_at_ns));
    }
    let (level, text, why) = if reason == "memory" || reason == "crash" {
        let why = fault.public_text(revision.spec.name.as_str());
        (LogLevel::Error, format!("stopped ({reason}): {why}"), why)
    } else {
        let text = ended.stop.map(|stop| stop.text).unwrap_or_default();
        (LogLevel::Info, format!("stopped ({reason})"), text)
    };
    if let Some(untold) = tells {
        let function = revision.title();
        let why = fault.to_string();
        tracing::warn!(function, instance = ended.number, reason, why, untold, "instance ended");
    }
    revision.log.stopped(Stopped::now(ended.number, revision.number, reason, &why));
    revision.log.platform(level, revision.number, ended.number, &text);
    if let Some((times, pause_ns)) = ended.starts_paused {
        let text = format!("died {times} times before its first answer: {}", pause_text(pause_ns));
        revision.log.platform(LogLevel::Warn, revision.number, ended.number, &text);
    }
    for id in torn {
        revision.torn(id, &fault);
    }
    for (attempts, reply, phases) in failed {
        let fault = fault.clone().at_attempt(attempts + 1);
        reply.send(Err(Unanswered::failed(fault, phases, now)));
    }
    for pending in moved {
        pending.move_on();
    }
    revision.changed.notify_one();
    revision.follow_up(follow_ups);
}
