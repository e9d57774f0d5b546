//! One immutable revision of a function, and what is done with its queue from outside.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mote_core::admission::{Admission, admit};
use mote_core::autoscale::{Bounds, Decision, Known};
use mote_core::spec::{FunctionSpec, ScaleOverride};
use mote_core::{Fault, FaultClass, Invocation, InvocationId, Reply, Trigger};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::clock::{now_ns, unix_ms};
use crate::engine::Shared;
use crate::logs::FunctionLog;
use crate::metrics::FunctionMetrics;
use crate::pool::{FollowUp, Pending, Pool};
use crate::scaling::{Scaling, Why};
use crate::starts::WarmError;
use crate::{keeper, server, worker};

/// A revision: its spec, where its files are, and its pool.
pub struct Revision {
    /// The function.
    pub spec: FunctionSpec,
    /// Revision number, from 1 on.
    pub number: u64,
    /// Host folder of the code.
    pub code_dir: PathBuf,
    /// Host folder of installed packages.
    pub packages_dir: Option<PathBuf>,
    /// The function's log, shared by its revisions.
    pub log: Arc<FunctionLog>,
    /// Its function among all callees of the node: the same for every revision, also after a removal.
    pub(crate) who: u64,
    pub(crate) metrics: Arc<FunctionMetrics>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Mutex<Pool>,
    /// Bounds that stand in for the manifest's.
    pub(crate) bounds: Mutex<ScaleOverride>,
    /// Wakes the keeper.
    pub(crate) changed: Arc<Notify>,
    pub(crate) last_error: Mutex<Option<LastError>>,
    /// What its workers said last of `whole_bodies`.
    pub(crate) whole_bodies: AtomicBool,
}

/// The last invocation or start that failed, for people.
#[derive(Debug, Clone)]
pub struct LastError {
    /// Wall clock, milliseconds since 1970.
    pub unix_ms: u64,
    /// Stable code.
    pub code: &'static str,
    /// The whole text; for the owner, not for the network.
    pub message: String,
    /// The invocation, where there was one.
    pub invocation: Option<InvocationId>,
}

/// A running instance, for people.
#[derive(Debug, Clone)]
pub struct InstanceStatus {
    /// Number, unique while the node runs.
    pub instance: u64,
    /// `ready`, `paused`, `spare` (paused, and has not served yet) or `draining`.
    pub state: &'static str,
    /// Shape of its handler.
    pub shape: String,
    /// Invocations it holds.
    pub in_flight: usize,
    /// Invocations it ended.
    pub served: u64,
    /// Invocations it runs at once.
    pub concurrency: u32,
    /// When it was started, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Why it was started.
    pub why: Why,
    /// How long it took to be ready, in nanoseconds.
    pub init_ns: u64,
    /// The number of its first process on the host.
    pub pid: Option<u32>,
    /// Memory in bytes, where the machine can tell.
    pub memory_bytes: Option<u64>,
}

/// A function's pool, for people.
#[derive(Debug, Clone)]
pub struct PoolStatus {
    /// Ready and draining instances.
    pub instances: Vec<InstanceStatus>,
    /// Instances on their way.
    pub starting: u32,
    /// Invocations that wait.
    pub queued: usize,
    /// Why the last start failed, if the last one did.
    pub last_failure: Option<String>,
    /// What the autoscaler decided last.
    pub decision: Option<Decision>,
}

/// An invocation on its way into a queue.
pub(crate) struct Offer {
    pub(crate) invocation: Invocation,
    /// Times it was already handed to a worker that died.
    pub(crate) attempts: u8,
    /// It waited in the queue of a revision that was replaced: its place is not taken from it.
    pub(crate) moved: bool,
}

impl Offer {
    pub(crate) fn new(invocation: Invocation) -> Self {
        Self { invocation, attempts: 0, moved: false }
    }
}

impl Revision {
    /// Whether its handlers begin only with their whole body; `false` until a worker has said so.
    pub fn takes_whole_bodies(&self) -> bool {
        self.whole_bodies.load(Ordering::Relaxed)
    }

    /// `thermo-3`, for names of things on the host.
    pub(crate) fn label(&self) -> String {
        format!("{}-{}", self.spec.name, self.number)
    }

    /// `thermo@3`.
    pub fn title(&self) -> String {
        format!("{}@{}", self.spec.name, self.number)
    }

    /// Instances at most.
    pub(crate) fn instances_max(&self) -> u32 {
        let own = self.bounds.lock().max.or(self.spec.scale.max);
        own.unwrap_or(self.shared.config.instances_max_default).max(1)
    }

    /// Instances at least.
    pub(crate) fn instances_min(&self) -> u32 {
        let own = self.bounds.lock().min;
        own.unwrap_or_else(|| self.spec.scale.floor()).min(self.instances_max())
    }

    /// Bounds that stand in for the manifest's.
    pub fn bounds(&self) -> ScaleOverride {
        *self.bounds.lock()
    }

    /// As the autoscaler keeps them.
    pub(crate) fn autoscaler_bounds(&self) -> Bounds {
        Bounds {
            min: self.instances_min(),
            max: self.instances_max(),
            idle_timeout_ns: self.spec.scale.idle_timeout_ms.saturating_mul(1_000_000),
        }
    }

    /// Whether some instance is kept whatever the demand.
    pub(crate) fn keeps_some(&self) -> bool {
        self.instances_min() > 0 || self.spec.scale.spare > 0
    }

    /// Makes the autoscaler when there is work for the first time.
    pub(crate) fn ensure_scaling(&self, pool: &mut Pool) {
        pool.scaling.get_or_insert_with(|| {
            let cores = self.shared.config.instances_max_default;
            Box::new(Scaling::new(&self.spec, self.autoscaler_bounds(), cores))
        });
    }

    /// Lets the autoscaler begin with what that of `before` has learnt.
    pub(crate) fn inherit(&self, before: &Revision) {
        let (mut pool, before) = (self.pool.lock(), before.pool.lock());
        let Some(learnt) = &before.scaling else { return };
        self.ensure_scaling(&mut pool);
        if let Some(scaling) = &mut pool.scaling {
            scaling.inherit(learnt);
        }
    }

    /// State for people; reads one small file per instance.
    pub fn status(&self) -> PoolStatus {
        let pool = self.pool.lock();
        let controls: Vec<_> =
            pool.workers.iter().map(|(_, worker)| worker.control.clone()).collect();
        let mut status = PoolStatus {
            instances: pool
                .workers
                .iter()
                .map(|(_, worker)| InstanceStatus {
                    instance: worker.instance,
                    state: worker.state(),
                    shape: worker.shape.clone(),
                    in_flight: worker.streams.len(),
                    served: worker.served,
                    concurrency: worker.concurrency,
                    started_unix_ms: worker.started_unix_ms,
                    why: worker.why,
                    init_ns: worker.init_ns,
                    pid: None,
                    memory_bytes: None,
                })
                .collect(),
            starting: pool.starting,
            queued: pool.queue.len(),
            last_failure: (pool.failures > 0).then(|| pool.last_failure.clone()),
            decision: pool.scaling.as_ref().and_then(|scaling| scaling.decision),
        };
        drop(pool);
        for (instance, control) in status.instances.iter_mut().zip(controls) {
            instance.pid = control.pid();
            instance.memory_bytes = control.usage().map(|usage| usage.memory_bytes);
        }
        status
    }

    /// What the autoscaler has learnt of it.
    pub fn known(&self) -> Known {
        self.pool.lock().scaling.as_ref().map_or_else(Known::default, |scaling| scaling.known())
    }

    /// Invocations ended, by outcome.
    pub fn totals(&self) -> [(&'static str, u64); 6] {
        self.metrics.totals()
    }

    /// Runs one invocation to the head of its answer. It is still, or again, in `offer` when the
    /// revision was replaced before it had an instance; another one must run it then.
    pub(crate) async fn invoke(
        self: &Arc<Self>,
        offer: &mut Option<Offer>,
    ) -> Result<Reply, Fault> {
        let now = now_ns();
        let mut in_flight = self.shared.busy_poll.enter(self.who, now);
        let Some(Offer { invocation: Invocation { trigger, id, .. }, .. }) = *offer else {
            return Err(Fault::Internal { message: "nothing to invoke".into() });
        };
        let (reply, answer) = oneshot::channel();
        let serial = match self.submit(offer, reply, now) {
            Ok(serial) => serial,
            Err(fault) => {
                if offer.is_none() {
                    self.failed(trigger, id, &fault);
                }
                return Err(fault);
            }
        };
        let mut guard = CancelOnDrop { revision: self, serial, armed: true };
        let result = answer.await.unwrap_or_else(|_| {
            Err(Fault::Internal { message: "invocation was dropped by its worker".into() })
        });
        guard.armed = false;
        match &result {
            Ok(reply) => {
                in_flight.ended_ns(reply.phases.answered_ns);
                self.metrics.answered(trigger, &reply.phases);
            }
            Err(fault) => {
                if *fault == Fault::Stopping {
                    *offer = self.pool.lock().moved.remove(&serial);
                }
                if offer.is_none() {
                    self.failed(trigger, id, fault);
                }
            }
        }
        result
    }

    /// Whether other functions of the node were called of late.
    pub(crate) fn has_neighbours(&self, now_ns: u64) -> bool {
        self.shared.busy_poll.has_neighbours(self.who, now_ns)
    }

    pub(crate) fn failed(&self, trigger: Trigger, id: InvocationId, fault: &Fault) {
        self.metrics.failed(trigger, fault);
        if fault.class() != FaultClass::Caller {
            *self.last_error.lock() = Some(LastError {
                unix_ms: unix_ms(),
                code: fault.answer().code,
                message: match fault {
                    Fault::HandlerError { message } | Fault::StartFailed { message } => {
                        message.clone()
                    }
                    other => other.public_text(self.spec.name.as_str()),
                },
                invocation: Some(id),
            });
        }
    }

    /// The last failure, if any.
    pub fn last_error(&self) -> Option<LastError> {
        self.last_error.lock().clone()
    }

    /// Invocations that waited for an instance to start.
    pub fn cold_starts(&self) -> u64 {
        self.metrics.cold_starts()
    }

    /// Latency that `share` of all answers did not exceed, in nanoseconds.
    pub fn latency_ns(&self, share: f64) -> Option<u64> {
        self.metrics.latency_ns(share)
    }

    /// Names of the code and package folders it runs from.
    pub fn trees_in_use(&self) -> impl Iterator<Item = String> {
        [Some(&self.code_dir), self.packages_dir.as_ref()]
            .into_iter()
            .flatten()
            .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// Admits an invocation: hands it over, queues it, or refuses it. Leaves it in `offer` when
    /// the revision is closed.
    fn submit(
        self: &Arc<Self>,
        offer: &mut Option<Offer>,
        reply: oneshot::Sender<Result<Reply, Fault>>,
        now: u64,
    ) -> Result<u64, Fault> {
        let mut follow_ups = Vec::new();
        let mut pool = self.pool.lock();
        if pool.closed {
            return Err(Fault::Stopping);
        }
        let Some(Offer { invocation, attempts, moved }) = offer.take() else {
            return Err(Fault::Internal { message: "nothing to submit".into() });
        };
        if pool.workers.is_empty() && pool.starting == 0 && now < pool.retry_at_ns {
            return Err(Fault::StartFailed { message: pool.last_failure.clone() });
        }
        self.ensure_scaling(&mut pool);
        pool.next_serial += 1;
        let serial = pool.next_serial;
        let pending = Pending { serial, invocation, reply, attempts };
        let queue_max = if moved { u32::MAX } else { self.spec.scale.queue };
        match admit(pool.has_room(), pool.queue.len(), queue_max) {
            Admission::Dispatch => {
                pool.queue.push_back(pending);
                pool.dispatch(now, &mut follow_ups);
            }
            Admission::Enqueue => {
                pool.queue.push_back(pending);
                pool.settle(now);
                self.ask(&mut pool);
            }
            Admission::Refuse => {
                if let Some(scaling) = &mut pool.scaling {
                    scaling.refused();
                }
                self.ask(&mut pool);
                return Err(Fault::QueueFull);
            }
        }
        let start_keeper = !std::mem::replace(&mut pool.keeper, true);
        let wake_keeper = std::mem::take(&mut pool.keeper_sleeps);
        drop(pool);
        if wake_keeper {
            self.changed.notify_one();
        }
        if start_keeper {
            self.shared.runtime.spawn(keeper::run(self.clone()));
        }
        self.follow_up(follow_ups);
        Ok(serial)
    }

    /// Wakes the keeper for an arrival that could not be handed over.
    fn ask(&self, pool: &mut Pool) {
        if pool.scaling.as_mut().is_some_and(|scaling| scaling.asks()) {
            self.changed.notify_one();
        }
    }

    /// Does what a dispatch left to do outside the lock.
    pub(crate) fn follow_up(self: &Arc<Self>, follow_ups: Vec<FollowUp>) {
        for follow_up in follow_ups {
            match follow_up {
                FollowUp::Pump { worker, stream, serial, body } => {
                    self.shared.runtime.spawn(worker::pump(
                        self.clone(),
                        worker,
                        stream,
                        serial,
                        body,
                    ));
                }
                FollowUp::Exchange { worker, stream, serial, link, invocation } => {
                    let task = self.shared.runtime.spawn(server::exchange(
                        self.clone(),
                        worker,
                        stream,
                        serial,
                        link,
                        invocation,
                    ));
                    let mut pool = self.pool.lock();
                    if let Some(entry) = pool
                        .workers
                        .get_mut(worker)
                        .and_then(|worker| worker.streams.get_mut(stream))
                        .filter(|entry| entry.serial == serial)
                    {
                        entry.task = Some(task.abort_handle());
                    }
                }
            }
        }
    }

    /// Ends an invocation nobody waits for any more, wherever it is.
    fn cancel(self: &Arc<Self>, serial: u64) {
        let now = now_ns();
        let mut follow_ups = Vec::new();
        let mut pool = self.pool.lock();
        if let Some(at) = pool.queue.iter().position(|pending| pending.serial == serial) {
            pool.queue.remove(at);
            pool.settle(now);
            return;
        }
        if pool.moved.remove(&serial).is_some() {
            return;
        }
        for (_, worker) in &mut pool.workers {
            let found =
                worker.streams.iter().find(|(_, stream)| stream.serial == serial).map(|(k, _)| k);
            if let Some(stream) = found {
                worker.cancel(stream, now);
                break;
            }
        }
        pool.dispatch(now, &mut follow_ups);
        drop(pool);
        self.follow_up(follow_ups);
    }

    /// Starts one instance and waits until it is ready. For deploys: a revision that cannot
    /// start never takes traffic. May stop idle instances of others to make room.
    pub async fn warm(self: &Arc<Self>) -> Result<(), WarmError> {
        self.start_one(Why::DEPLOY, true).await
    }

    pub(crate) fn ensure_keeper(self: &Arc<Self>) {
        let start = {
            let mut pool = self.pool.lock();
            self.ensure_scaling(&mut pool);
            !std::mem::replace(&mut pool.keeper, true)
        };
        if start {
            self.shared.runtime.spawn(keeper::run(self.clone()));
        }
    }

    /// Takes no new invocations; instances stop when what they hold has ended. What waits for one
    /// goes back to its callers' tasks, which look for the next revision.
    pub(crate) fn close(self: &Arc<Self>, reason: &'static str) {
        let mut pool = self.pool.lock();
        pool.closed = true;
        let waiting = std::mem::take(&mut pool.queue);
        let callers: Vec<_> = waiting.into_iter().map(|pending| pool.move_on(pending)).collect();
        pool.settle(now_ns());
        for (_, worker) in &mut pool.workers {
            worker.draining = true;
            worker.stop_reason.get_or_insert(reason);
        }
        let drains = !pool.workers.is_empty();
        drop(pool);
        if drains {
            self.shared.draining.lock().push(Arc::downgrade(self));
        }
        for reply in callers {
            let _ = reply.send(Err(Fault::Stopping));
        }
        self.ensure_keeper();
        self.changed.notify_one();
    }
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
