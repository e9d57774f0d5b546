//! One immutable revision of a function, and the operations that other code performs on the
//! revision's queue.

pub(crate) mod family;
pub mod logs;
pub(crate) mod manual;
mod masks;
pub(crate) mod pool;
pub(crate) mod reconciler;
pub mod seen;
pub(crate) mod shared;
pub(crate) mod starts;
pub(crate) mod tasks;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use crate::metrics::{FunctionDurations, FunctionMetrics};
use mote_core::backend::ImageRoot;
use mote_core::elsewhere::RevisionKey;
use mote_core::line_budget::{Line, LineBudget};
use mote_core::{Fault, FaultClass, Invocation, InvocationId, Reply, Trigger};
use mote_pool::admission::Callee;
use mote_pool::autoscale::{Bounds, Decision, Known};
use mote_pool::{Refusal, StopReason, Why, Withdrawn};
use mote_spec::{Access, FunctionSpec, ScaleOverride};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::entry::offer::{Failure, Offer, Origin, Unanswered};
use crate::link::server_link::ServerLink;
use crate::revision::family::Family;
use crate::revision::logs::{FunctionLog, LogLevel, LogSource};
use crate::revision::pool::{FollowUp, Pending, Pool};
use crate::revision::seen::{Seen, SeenCounters};
use crate::revision::shared::Shared;
use crate::thread::threads::ReplySender;
use mote_process::clock::{now_ns, unix_ms};

/// How many failed calls of a revision are logged in one second, so that they cannot push all other
/// lines out of the log in memory.
const FAILURES_LOGGED_PER_S: u32 = 100;
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// A revision: its spec, its folders and its pool.
pub struct Revision {
    pub spec: FunctionSpec,
    /// The number of the revision, counted from 1.
    pub number: u64,
    /// The folder of the code on the host.
    pub code_dir: PathBuf,
    /// The folder of the installed packages on the host.
    pub packages_dir: Option<PathBuf>,
    /// The container image of the spec, if it has one.
    pub image: Option<RunnableImage>,
    /// Who may call the function; not [`Access::Unset`].
    pub(crate) access: Access,
    /// The log of the function, which all its revisions share.
    pub log: Arc<FunctionLog>,
    /// Identifies the function among all functions of the node. It is the same for every revision,
    /// even after the function was removed.
    pub(crate) who: Callee,
    /// Whether the function is in a namespace.
    pub(crate) is_confined: bool,
    pub(crate) metrics: Arc<FunctionMetrics>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) tasks: Arc<dyn Tasks>,
    pub(crate) pool: Mutex<Pool>,
    /// The key of this revision for other cells, which is computed when it is first needed.
    pub(crate) key: OnceLock<RevisionKey>,
    /// Opens connections to the debug port of the newest instance.
    pub(crate) debugger: Mutex<Option<Arc<ServerLink>>>,
    /// Bounds that replace those of the manifest.
    pub(crate) bounds: Mutex<ScaleOverride>,
    /// Wakes the reconciler.
    pub(crate) changed: Arc<Notify>,
    pub(crate) last_error: Mutex<Option<LastError>>,
    pub(crate) failure_lines: Mutex<LineBudget>,
    pub(crate) seen: SeenCounters,
    pub(crate) family: Family,
    /// Whether workers take only whole bodies, as a worker last reported.
    pub(crate) whole_bodies: AtomicBool,
    /// The number of concurrent invocations that a worker last reported; 1 until one has reported.
    pub(crate) concurrency: AtomicU32,
}

/// The tasks that work for a revision. Their code uses [`Revision`], so the revision knows them
/// only through this trait.
pub(crate) trait Tasks: Send + Sync {
    /// Spawns the reconciler of `revision`. Does not block.
    fn reconcile(&self, revision: Arc<Revision>);
    /// Spawns the task for the work that a dispatch left over. Does not block. Call it without
    /// holding the lock of the pool, because it takes that lock for a moment.
    fn follow_up(&self, revision: &Arc<Revision>, follow_up: FollowUp);
    /// Notes that `revision` accepts no new invocations while its instances drain.
    fn drains(&self, revision: &Arc<Revision>);
}

/// A container image on the disk of this node.
#[derive(Clone)]
pub struct RunnableImage {
    pub root: ImageRoot,
    /// The entry point and the arguments that follow it.
    pub entry_point: Vec<String>,
    pub arguments: Vec<String>,
    /// The image's environment. Variables of the function take precedence.
    pub env: Vec<(String, String)>,
    /// Keeps the image on disk while the revision exists.
    pub kept: Arc<dyn Send + Sync>,
}

/// The last invocation or start that failed, for people.
#[derive(Debug, Clone)]
pub struct LastError {
    /// Wall-clock time, in milliseconds since 1970.
    pub unix_ms: u64,
    pub code: &'static str,
    /// The whole text. It is meant for the owner, and must not be sent to callers.
    pub message: String,
    pub invocation: Option<InvocationId>,
}

/// A running instance, for people.
#[derive(Debug, Clone)]
pub struct InstanceStatus {
    /// The number of the instance, which is unique while the node runs.
    pub instance: u64,
    /// `ready`, `paused`, `spare` (paused and has not served yet) or `draining`.
    pub state: &'static str,
    pub shape: String,
    /// The number of invocations that the instance holds.
    pub in_flight: usize,
    /// The number of invocations that the instance has ended.
    pub served: u64,
    /// The number of invocations that the instance runs at once.
    pub concurrency: u32,
    /// When the instance was started, in milliseconds since 1970.
    pub started_unix_ms: u64,
    pub why: Why,
    /// How long the instance took to become ready, in nanoseconds.
    pub init_ns: u64,
    /// The process id, on the host, of the instance's first process.
    pub pid: Option<u32>,
    /// Processor time so far, in nanoseconds.
    pub cpu_ns: Option<u64>,
    /// The memory of the instance in bytes, if the machine can measure it.
    pub memory_bytes: Option<u64>,
}

/// A function's pool, for people.
#[derive(Debug, Clone)]
pub struct PoolStatus {
    /// The ready and draining instances.
    pub instances: Vec<InstanceStatus>,
    pub starting: u32,
    /// The number of waiting invocations.
    pub queued: usize,
    /// Why the last start failed, if it failed.
    pub last_failure: Option<String>,
    /// The last decision of the autoscaler.
    pub decision: Option<Decision>,
}

/// How many instances a function may have. `own` replaces the bounds of the function's manifest. A
/// manifest without a maximum means `max_default`, or the minimum if that is larger. The maximum is
/// at least `least`.
pub(crate) fn bounds_of(
    spec: &FunctionSpec,
    own: ScaleOverride,
    max_default: u32,
    least: u32,
) -> Bounds {
    let min = own.min.unwrap_or_else(|| spec.scale.floor());
    let max = own.max.or(spec.scale.max).unwrap_or(max_default.max(min)).max(least);
    Bounds {
        min: min.min(max),
        max,
        idle_timeout_ns: spec.scale.idle_timeout_ms.saturating_mul(1_000_000),
    }
}

impl Revision {
    /// Whether the function's handlers begin only after they have the whole body. `false` until a
    /// worker has reported this.
    pub fn takes_whole_bodies(&self) -> bool {
        self.whole_bodies.load(Ordering::Relaxed)
    }

    /// How long a call may take on this node, in milliseconds.
    pub fn timeout_ms(&self) -> u64 {
        self.on_this_machine(self.spec.limits.timeout_ms)
    }

    /// How long a start may take on this node, in milliseconds.
    pub fn init_timeout_ms(&self) -> u64 {
        self.on_this_machine(self.spec.limits.init_timeout_ms)
    }

    fn on_this_machine(&self, ms: u64) -> u64 {
        ms * u64::from(self.shared.config.timeout_factor)
    }

    /// The number of invocations that can run at once when there are as many instances as allowed.
    pub(crate) fn places(&self) -> u32 {
        self.instances_max().saturating_mul(self.concurrency.load(Ordering::Relaxed).max(1))
    }

    /// A label such as `thermo-3`, for names of objects on the host.
    pub(crate) fn label(&self) -> String {
        format!("{}-{}", self.spec.name, self.number)
    }

    /// The title `thermo@3`.
    pub fn title(&self) -> String {
        format!("{}@{}", self.spec.name, self.number)
    }

    pub(crate) fn instances_max(&self) -> u32 {
        self.autoscaler_bounds().max
    }

    pub(crate) fn instances_min(&self) -> u32 {
        self.autoscaler_bounds().min
    }

    /// Bounds that replace those of the manifest.
    pub fn bounds(&self) -> ScaleOverride {
        *self.bounds.lock()
    }

    /// The bounds in the autoscaler's form. If the node knows other cells, the maximum may be 0,
    /// because the node can then forward every invocation.
    pub(crate) fn autoscaler_bounds(&self) -> Bounds {
        let least = u32::from(self.shared.elsewhere.get().is_none());
        bounds_of(&self.spec, self.bounds(), self.shared.config.instances_max_default, least)
    }

    /// Whether at least one instance is kept even without demand.
    pub(crate) fn keeps_some(&self) -> bool {
        self.pool.lock().keeps_some()
    }

    /// The state of the pool, for people. Reads one small file per instance.
    pub fn status(&self) -> PoolStatus {
        let pool = self.pool.lock();
        let mut controls = Vec::new();
        let mut status = PoolStatus {
            instances: Vec::new(),
            starting: pool.starting_count(),
            queued: pool.queued(),
            last_failure: pool.last_failure().map(str::to_owned),
            decision: pool.decision(),
        };
        for (_, worker) in pool.workers() {
            let instance = worker.instance();
            controls.push(instance.control.clone());
            status.instances.push(InstanceStatus {
                instance: worker.number(),
                state: worker.state().as_str(),
                shape: instance.shape.clone(),
                in_flight: worker.calls().len(),
                served: worker.served(),
                concurrency: worker.concurrency(),
                started_unix_ms: instance.started_unix_ms,
                why: instance.why,
                init_ns: instance.init_ns,
                pid: None,
                cpu_ns: None,
                memory_bytes: None,
            });
        }
        drop(pool);
        for (instance, control) in status.instances.iter_mut().zip(controls) {
            instance.pid = control.pid();
            let usage = control.usage();
            instance.memory_bytes = usage.map(|usage| usage.memory_bytes);
            instance.cpu_ns = usage.map(|usage| usage.cpu_ns);
        }
        status
    }

    /// Why each instance of a function that loads slowly loads it again; `None` if further
    /// instances are copies of a loaded one, or if the function loads fast.
    pub fn no_copies(&self) -> Option<String> {
        self.family.no_copies()
    }

    /// What the autoscaler has learned about the function.
    pub fn known(&self) -> Known {
        self.pool.lock().known()
    }

    /// The number of ended invocations, by outcome.
    pub fn totals(&self) -> [(&'static str, u64); 6] {
        self.metrics.totals()
    }

    /// Runs one invocation until the head of its answer is available.
    pub(crate) async fn invoke(self: &Arc<Self>, offer: Offer) -> Result<Reply, Unanswered> {
        let now = now_ns();
        let mut in_flight = self.shared.busy_poll.enter(self.who, now);
        let Invocation { trigger, id, .. } = offer.invocation;
        let (reply, answer) = ReplySender::channel();
        let result = match self.submit(offer, reply, now) {
            Ok((serial, may_leave)) => {
                let mut guard = CancelOnDrop { revision: self, serial, armed: true };
                let result = match self.shared.elsewhere.get().filter(|_| may_leave) {
                    None => answered(answer.await),
                    Some(elsewhere) => {
                        Box::pin(self.answer_or_place(answer, serial, &**elsewhere)).await
                    }
                };
                guard.armed = false;
                result
            }
            Err(unanswered) => Err(unanswered),
        };
        match &result {
            Ok(reply) => {
                in_flight.ended_ns(reply.phases.answered_ns);
                self.metrics.answered(trigger, &reply.phases);
            }
            Err(Unanswered::Failed(failure)) => self.failed(trigger, id, failure),
            Err(_) => {}
        }
        result
    }

    /// Whether other functions of the node were called recently.
    pub(crate) fn has_neighbours(&self, now_ns: u64) -> bool {
        self.shared.busy_poll.has_neighbours(self.who, now_ns)
    }

    /// Whether functions of other namespaces were called recently.
    pub(crate) fn has_strangers(&self, now_ns: u64) -> bool {
        self.shared.busy_poll.has_strangers(self.who, now_ns)
    }

    pub(crate) fn failed(&self, trigger: Trigger, id: InvocationId, failure: &Failure) {
        let Failure { fault, phases } = failure;
        self.metrics.failed(trigger, fault, phases);
        let class = fault.class();
        // The worker has logged its own error with its trace. Refusals are only counted, because
        // under overload they would push all other lines out of the log. A call that waited until
        // its deadline was accepted.
        let was_accepted = matches!(class, FaultClass::Function | FaultClass::Platform)
            || matches!(fault, Fault::DeadlineQueued { .. });
        if was_accepted && !matches!(fault, Fault::HandlerError { .. }) {
            self.log_failed(id, fault, "");
        }
        if class != FaultClass::Caller {
            *self.last_error.lock() = Some(LastError {
                unix_ms: unix_ms(),
                code: fault.answer().code,
                message: match fault {
                    Fault::HandlerError { message } | Fault::StartFailed { message } => {
                        self.log.masked_reason(message)
                    }
                    other => other.public_text(self.spec.name.as_str()),
                },
                invocation: Some(id),
            });
        }
    }

    /// Logs that the rest of an answer is missing. Its caller has already received the head, so the
    /// call does not count as failed.
    pub(crate) fn torn(&self, id: InvocationId, fault: &Fault) {
        self.log_failed(id, fault, "its answer had begun; ");
    }

    /// Logs that a call failed, so that the lines of the call say how it ended.
    fn log_failed(&self, id: InvocationId, fault: &Fault, state: &str) {
        // A message of the function may have been cut off inside a secret.
        let reason = self.log.masked_reason(&fault.full_text(self.spec.name.as_str()));
        let text = format!("call failed: {state}{reason} ({})", fault.answer().code);
        let warn = |text: &str| self.log.platform(LogLevel::Warn, self.number, 0, text);
        let mut lines = self.failure_lines.lock();
        let admitted = lines.admit_within(FAILURES_LOGGED_PER_S, text.len(), now_ns());
        drop(lines);
        match admitted {
            Line::Kept => {}
            Line::KeptAfter(count) => warn(&format!("{count} failed calls were not logged")),
            Line::FirstDropped => return warn("calls fail too fast to log each of them"),
            Line::Dropped => return,
        }
        self.log.push(LogLevel::Error, LogSource::Platform, self.number, 0, Some(id), &text);
    }

    pub fn last_error(&self) -> Option<LastError> {
        self.last_error.lock().clone()
    }

    /// How many instances became ready, and the total time of their starts, in nanoseconds.
    pub fn starts(&self) -> (u64, u64) {
        self.metrics.starts()
    }

    /// What was seen of the revision so far. Reads a few small files for each instance.
    pub fn seen(&self) -> Seen {
        let mut seen = self.seen.of_ended();
        let now_ms = unix_ms();
        let pool = self.pool.lock();
        let mut live = Vec::new();
        for (_, worker) in pool.workers() {
            let instance = worker.instance();
            let is_old = instance.started_unix_ms + DAY_MS <= now_ms;
            seen.unused_for_a_day += usize::from(is_old && worker.served() == 0);
            live.push((instance.control.clone(), worker.served()));
        }
        drop(pool);
        for (control, calls) in live {
            seen.add(control.peaks().unwrap_or_default(), calls);
        }
        seen
    }

    /// The processor time of the function's instances that have ended, in nanoseconds.
    pub fn ended_cpu_ns(&self) -> u64 {
        self.metrics.ended_cpu_ns()
    }

    /// The number of invocations that waited for an instance to start.
    pub fn cold_starts(&self) -> u64 {
        self.metrics.cold_starts()
    }

    /// How long the function's invocations and starts took.
    pub fn durations(&self) -> FunctionDurations {
        self.metrics.durations()
    }

    /// The latency in nanoseconds that a `share` of all answers did not exceed.
    pub fn latency_ns(&self, share: f64) -> Option<u64> {
        self.metrics.latency_ns(share)
    }

    /// The names of the code and package folders from which the revision runs.
    pub fn trees_in_use(&self) -> impl Iterator<Item = String> {
        [Some(&self.code_dir), self.packages_dir.as_ref()]
            .into_iter()
            .flatten()
            .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// Admits an invocation: dispatches it, queues it or refuses it. Returns the invocation's
    /// serial number, and whether it waits and may leave for another cell.
    fn submit(
        self: &Arc<Self>,
        offer: Offer,
        reply: ReplySender,
        now: u64,
    ) -> Result<(u64, bool), Unanswered> {
        let Offer { invocation, attempts, moved, origin } = offer;
        let mut follow_ups = Vec::new();
        let mut pool = self.pool.lock();
        if origin == Origin::Movable && pool.overflows(self.shared.ledger.version(), now) {
            drop(pool);
            let offer = Offer { invocation, attempts, moved, origin };
            return Err(Unanswered::Overflows(Box::new(offer)));
        }
        let pending = Pending { invocation, reply, attempts, origin };
        let submitted = match pool.offer(pending, moved, now, &mut follow_ups) {
            Ok(submitted) => submitted,
            Err((pending, refusal)) => {
                drop(pool);
                return Err(self.refused(pending, moved, refusal));
            }
        };
        // The new invocation is the last in the queue. So if the queue is empty, the invocation is
        // running.
        let may_leave = matches!(origin, Origin::Movable | Origin::Waits) && pool.queued() > 0;
        let starts = pool.starts_reconciler();
        let wakes = std::mem::take(&mut pool.reconciler_sleeps) || submitted.asks;
        drop(pool);
        if wakes {
            self.changed.notify_one();
        }
        if starts {
            self.tasks.reconcile(self.clone());
        }
        self.follow_up(follow_ups);
        Ok((submitted.serial, may_leave))
    }

    fn refused(&self, pending: Pending, moved: bool, refusal: Refusal) -> Unanswered {
        match refusal {
            Refusal::Closed => {
                let Pending { invocation, attempts, origin, .. } = pending;
                Unanswered::Replaced(Box::new(Offer { invocation, attempts, moved, origin }))
            }
            Refusal::NotStarted(message) => Fault::StartFailed { message }.into(),
            Refusal::QueueFull { asks } => {
                if asks {
                    self.changed.notify_one();
                }
                self.seen.refused_by_queue();
                Fault::QueueFull.into()
            }
        }
    }

    /// Does the work that a dispatch has left to be done without the lock.
    pub(crate) fn follow_up(self: &Arc<Self>, follow_ups: Vec<FollowUp>) {
        for follow_up in follow_ups {
            self.tasks.follow_up(self, follow_up);
        }
    }

    /// Ends an invocation whose caller no longer waits, whether the invocation is in the queue or
    /// runs.
    fn cancel(self: &Arc<Self>, serial: u64) {
        let now = now_ns();
        let mut follow_ups = Vec::new();
        let mut pool = self.pool.lock();
        match pool.withdraw(serial, now) {
            Withdrawn::Waiting(_) => return,
            Withdrawn::Running { worker, slot } => {
                if let Some(worker) = pool.worker_mut(worker) {
                    pool::cancel(worker, slot, now);
                }
            }
            Withdrawn::Unknown => {}
        }
        pool.dispatch(now, &mut follow_ups);
        drop(pool);
        self.follow_up(follow_ups);
    }

    pub(crate) fn ensure_reconciler(self: &Arc<Self>) {
        let starts = {
            let mut pool = self.pool.lock();
            pool.ensure_scaling();
            pool.starts_reconciler()
        };
        if starts {
            self.tasks.reconcile(self.clone());
        }
    }

    /// Closes the revision: it takes no new invocations, and each instance stops once the
    /// invocations that it holds have ended. Waiting invocations return to their callers' tasks,
    /// which look up the next revision.
    pub(crate) fn close(self: &Arc<Self>, reason: StopReason) {
        let mut pool = self.pool.lock();
        let waiting = pool.close(reason, now_ns());
        let drains = pool.workers().len() > 0;
        drop(pool);
        if drains {
            self.tasks.drains(self);
        }
        for pending in waiting {
            pending.move_on();
        }
        self.ensure_reconciler();
        self.changed.notify_one();
    }
}

/// The answer to an invocation.
pub(crate) fn answered(
    answer: Result<Result<Reply, Unanswered>, oneshot::error::RecvError>,
) -> Result<Reply, Unanswered> {
    answer.unwrap_or_else(|_| {
        let message = "invocation was dropped by its worker".into();
        Err(Fault::Internal { message }.into())
    })
}

struct CancelOnDrop<'a> {
    revision: &'a Arc<Revision>,
    serial: u64,
    armed: bool,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.revision.cancel(self.serial);
        }
    }
}
