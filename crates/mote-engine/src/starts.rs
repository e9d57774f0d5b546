//! Asks the node's ledger for room on behalf of a revision, and makes room on behalf of others.

use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use mote_core::Fault;
use mote_core::autoscale::Known;
use mote_core::budget::{IdleInstance, Lack, Occupied, remaining_ns};
use mote_core::fault::bytes_text;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::now_ns;
use crate::instance;
use crate::ledger::{Evictable, Refusal, Reservation, Survey, Wish};
use crate::logs::LogLevel;
use crate::pool::{Full, Pending, Pool};
use crate::revision::Revision;
use crate::routes::{Routes, Serving};
use crate::scaling::Why;

/// Pause until a start that was refused is asked for again while somebody waits for it, unless
/// something came back before: an instance that becomes idle tells nobody.
const ASK_AGAIN_NS: u64 = 20_000_000;
/// The same where nobody waits.
const ASK_AGAIN_QUIET_NS: u64 = 1_000_000_000;
/// A start believed to take this long until one was measured; only compared with others.
const START_NS_GUESS: u64 = 50_000_000;

/// Why a start that somebody asked for by name was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WarmError {
    /// The node has no room.
    #[error("{0}")]
    NodeFull(String),
    /// The instance did not become ready.
    #[error("{0}")]
    Failed(String),
}

/// Starts `count` instances that the pool counts as starting already, or as many as the node has
/// room for; the rest is taken back, and what is lacking is said.
pub(crate) fn begin(revision: &Arc<Revision>, count: u32, why: Why, evict: bool) -> Option<String> {
    for started in 0..count {
        match revision.shared.ledger.reserve(&wish(revision, evict)) {
            Ok(reservation) => spawn(revision, why, reservation),
            Err(refusal) => return Some(refused(revision, count - started, refusal)),
        }
    }
    revision.pool.lock().full = None;
    None
}

/// Starts one spare instance that the pool counts as starting already, or tries again later: spare
/// ones take no room from others.
pub(crate) fn begin_spare(revision: &Arc<Revision>) {
    match revision.shared.ledger.reserve(&wish(revision, false)) {
        Ok(reservation) => spawn(revision, Why::SPARE, reservation),
        Err(_) => {
            let mut pool = revision.pool.lock();
            pool.starting_spares = 0;
            pool.spare_again_ns = now_ns() + ASK_AGAIN_QUIET_NS;
            let again_ns = pool.spare_again_ns;
            pool.look_at(again_ns);
        }
    }
}

fn wish(revision: &Revision, evict: bool) -> Wish<'_> {
    Wish {
        memory_bytes: revision.spec.limits.memory_bytes,
        evict,
        function: revision.spec.name.as_str(),
        revision: revision.number,
        waiter: Some(&revision.changed),
    }
}

fn spawn(revision: &Arc<Revision>, why: Why, reservation: Reservation) {
    revision.shared.runtime.spawn(instance::start(revision.clone(), why, reservation));
}

/// Takes starts back, and answers those who could only wait in vain: who has no instance to wait
/// for, and a deadline before anything is expected to be free.
fn refused(revision: &Revision, count: u32, refusal: Refusal) -> String {
    let now = now_ns();
    let mut pool = revision.pool.lock();
    pool.starting = pool.starting.saturating_sub(count);
    let news = pool.full.is_none_or(|full| !full.memory) && refusal.lack != Lack::Starts;
    let pause_ns = if pool.queue.is_empty() { ASK_AGAIN_QUIET_NS } else { ASK_AGAIN_NS };
    pool.full = Some(Full {
        memory: refusal.lack != Lack::Starts,
        version: revision.shared.ledger.version(),
        until_ns: now + pause_ns,
    });
    if let Some(scaling) = &mut pool.scaling {
        scaling.look_by(now + pause_ns);
    }
    let text = lack_text(revision, &refusal);
    let fault = match refusal.lack {
        Lack::TooLarge => Fault::StartFailed { message: text.clone() },
        Lack::Memory | Lack::Starts => Fault::NodeFull,
    };
    let alone = pool.ready() == 0 && pool.starting == 0;
    let answered = match refusal.lack {
        Lack::TooLarge => std::mem::take(&mut pool.queue).into(),
        Lack::Memory if alone => hopeless(&mut pool, now, refusal.room_in_ns),
        Lack::Memory | Lack::Starts => Vec::new(),
    };
    drop(pool);
    if news {
        revision.log.platform(LogLevel::Warn, revision.number, 0, &format!("not started: {text}"));
    }
    for pending in answered {
        let _ = pending.reply.send(Err(fault.clone()));
    }
    text
}

/// Waiting invocations that nothing can be free for in time.
fn hopeless(pool: &mut Pool, now: u64, room_in_ns: Option<u64>) -> Vec<Pending> {
    let soonest = room_in_ns.map_or(u64::MAX, |room_in_ns| now.saturating_add(room_in_ns));
    let (waiting, answered): (Vec<_>, Vec<_>) = std::mem::take(&mut pool.queue)
        .into_iter()
        .partition(|pending| pending.invocation.deadline_ns > soonest);
    pool.queue = waiting.into();
    pool.settle(now);
    answered
}

/// What the node lacks for an instance of `revision`, for its owner.
fn lack_text(revision: &Revision, refusal: &Refusal) -> String {
    let status = revision.shared.ledger.status();
    let wanted = bytes_text(revision.spec.limits.memory_bytes);
    let budget = bytes_text(status.budget.memory_bytes);
    match refusal.lack {
        Lack::TooLarge => format!("an instance may take {wanted}, the node gives {budget} in all"),
        Lack::Memory => format!(
            "the node is full: an instance may take {wanted}, and of {budget} only {} are not taken \
             by instances that work or are kept",
            bytes_text(status.budget.memory_bytes.saturating_sub(status.taken_bytes))
        ),
        Lack::Starts => format!("{} instances are starting already", status.starting),
    }
}

impl Revision {
    /// Starts one instance and waits until it is ready; waits for room as long as a start may take.
    pub(crate) async fn start_one(
        self: &Arc<Self>,
        why: Why,
        evict: bool,
    ) -> Result<(), WarmError> {
        // Not the keeper's own: what wakes this one must not be taken from that.
        let told = Arc::new(Notify::new());
        let until = now_ns() + self.spec.limits.init_timeout_ms * 1_000_000;
        {
            let mut pool = self.pool.lock();
            self.ensure_scaling(&mut pool);
            pool.starting += 1;
            pool.starting_since_ns = now_ns();
        }
        let reservation = loop {
            let wish = Wish { waiter: Some(&told), ..wish(self, evict) };
            let refusal = match self.shared.ledger.reserve(&wish) {
                Ok(reservation) => break reservation,
                Err(refusal) => refusal,
            };
            let soonest = refusal.room_in_ns.map(|room_in_ns| now_ns() + room_in_ns);
            if soonest.is_none_or(|soonest| soonest >= until) || now_ns() >= until {
                let mut pool = self.pool.lock();
                pool.starting = pool.starting.saturating_sub(1);
                drop(pool);
                self.changed.notify_one();
                let text = lack_text(self, &refusal);
                self.log.platform(LogLevel::Warn, self.number, 0, &format!("not started: {text}"));
                return Err(WarmError::NodeFull(text));
            }
            let again = Duration::from_nanos(ASK_AGAIN_NS);
            let _ = tokio::time::timeout(again, told.notified()).await;
        };
        let started = instance::start(self.clone(), why, reservation).await;
        self.ensure_keeper();
        started.map_err(WarmError::Failed)
    }
}

/// Revisions that take nothing new while what they hold ends.
pub(crate) type Draining = Arc<Mutex<Vec<Weak<Revision>>>>;

/// The instances of all revisions.
pub(crate) struct Revisions {
    pub(crate) routes: Weak<ArcSwap<Routes>>,
    pub(crate) draining: Draining,
}

impl Evictable for Revisions {
    fn survey(&self, wish: &Wish<'_>, now_ns: u64, into: &mut Survey) {
        let draining: Vec<_> = {
            let mut draining = self.draining.lock();
            draining.retain(|revision| revision.strong_count() > 0);
            draining.iter().filter_map(Weak::upgrade).collect()
        };
        for revision in draining {
            let pool = revision.pool.lock();
            let known = pool.scaling.as_ref().map(|scaling| scaling.known()).unwrap_or_default();
            into.occupied.extend(occupied(&revision, &pool, &known, now_ns));
        }
        let Some(routes) = self.routes.upgrade() else { return };
        for revision in routes.load().values().flat_map(Serving::revisions) {
            let own = revision.spec.name.as_str() == wish.function;
            if own && revision.number == wish.revision {
                continue;
            }
            survey(revision, now_ns, into);
        }
    }

    fn evict(&self, id: u64, wish: &Wish<'_>, now_ns: u64) -> bool {
        let Some(routes) = self.routes.upgrade() else { return false };
        let routes = routes.load();
        let mut revisions = routes.values().flat_map(Serving::revisions);
        revisions.any(|revision| evict(revision, id, wish, now_ns))
    }
}

/// How many instances of a pool may go: what `scale.min` keeps stays, and where somebody waits,
/// nobody goes.
fn dispensable(pool: &Pool, revision: &Revision) -> usize {
    if pool.closed || !pool.queue.is_empty() {
        return 0;
    }
    (pool.ready().saturating_sub(revision.instances_min()) + pool.spares()) as usize
}

fn survey(revision: &Revision, now_ns: u64, into: &mut Survey) {
    let pool = revision.pool.lock();
    if pool.workers.is_empty() && pool.starting == 0 {
        return;
    }
    let known = pool.scaling.as_ref().map(|scaling| (scaling.known(), scaling.demand_per_s()));
    let (known, demand_per_s) = known.unwrap_or_default();
    let memory_bytes = revision.spec.limits.memory_bytes;
    let start_ns = known.start.mean_ns();
    let spare = dispensable(&pool, revision);
    let mut idle: Vec<_> =
        pool.workers.iter().map(|(_, worker)| worker).filter(|worker| worker.is_idle()).collect();
    idle.sort_unstable_by_key(|worker| worker.idle_since_ns);
    into.idle.extend(idle.iter().take(spare).map(|worker| IdleInstance {
        id: worker.instance,
        memory_bytes,
        paused: worker.paused,
        idle_ns: now_ns.saturating_sub(worker.idle_since_ns),
        demand_per_s,
        start_ns: start_ns.unwrap_or(START_NS_GUESS),
    }));
    let mut occupied = occupied(revision, &pool, &known, now_ns);
    // One on its way serves first whoever asked for it, and is as good as busy until then.
    let elapsed_ns = now_ns.saturating_sub(pool.starting_since_ns);
    let free_in_ns =
        remaining_ns(elapsed_ns, start_ns).saturating_add(known.service.mean_ns().unwrap_or(0));
    occupied.extend((0..pool.starting).map(|_| Occupied { memory_bytes, free_in_ns }));
    let later = (spare + pool.starting as usize).saturating_sub(idle.len());
    if pool.queue.is_empty() || pool.ready() == 0 {
        occupied.sort_unstable_by_key(|held| held.free_in_ns);
        into.occupied.extend(occupied.into_iter().take(later));
    }
}

/// The instances that work, and when each is likely to have ended what it holds. One that has ended
/// its last call and is about to be asked to go counts as well: until it is, nobody else tells that
/// its memory comes back.
fn occupied(revision: &Revision, pool: &Pool, known: &Known, now_ns: u64) -> Vec<Occupied> {
    let memory_bytes = revision.spec.limits.memory_bytes;
    let workers = pool.workers.iter().filter_map(|(_, worker)| {
        let mean_ns = match worker.run_times.mean_ns {
            0 => known.service.mean_ns(),
            mean_ns => Some(mean_ns),
        };
        let left = worker
            .streams
            .iter()
            .map(|(_, stream)| remaining_ns(now_ns.saturating_sub(stream.phases.sent_ns), mean_ns));
        let about_to_go = (worker.draining || pool.closed) && !worker.reservation.has_left();
        let free_in_ns = left.max().or(about_to_go.then_some(0));
        free_in_ns.map(|free_in_ns| Occupied { memory_bytes, free_in_ns })
    });
    workers.collect()
}

fn evict(revision: &Revision, id: u64, wish: &Wish<'_>, now_ns: u64) -> bool {
    let mut pool = revision.pool.lock();
    if dispensable(&pool, revision) == 0 {
        return false;
    }
    let found = pool.workers.iter_mut().map(|(_, worker)| worker);
    let Some(worker) = found.into_iter().find(|worker| worker.instance == id && worker.is_idle())
    else {
        return false;
    };
    let idle_ms = now_ns.saturating_sub(worker.idle_since_ns) / 1_000_000;
    let text = format!("idle for {idle_ms} ms, made room for {}", wish.function);
    worker.draining = true;
    worker.stop_reason = Some("evicted");
    worker.stop_text = text.clone();
    worker.reservation.leave();
    drop(pool);
    let line = format!("stopping (evicted): {text}");
    revision.log.platform(LogLevel::Info, revision.number, id, &line);
    revision.changed.notify_one();
    true
}
