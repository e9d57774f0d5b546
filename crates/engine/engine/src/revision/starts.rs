//! Requests room from the node's ledger on behalf of a revision, and makes room on behalf of
//! others.

use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use mote_core::Fault;
use mote_core::fault::{bytes_text, rounded_bytes_text};
use mote_pool::autoscale::Known;
use mote_pool::budget::{IdleInstance, Lack, Occupied, remaining_ns};
use mote_pool::{Start, Why};
use mote_spec::name::split;
use mote_spec::{FunctionName, FunctionSpec};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::entry::offer::Origin;
use crate::entry::routes::{Routes, Serving};
use crate::instance;
use crate::ledger::{Evictable, Ledger, Refusal, Reservation, RoomRequest, Survey};
use crate::revision::Revision;
use crate::revision::logs::LogLevel;
use crate::revision::pool::Pool;
use mote_process::clock::now_ns;

/// How long the revision waits before it requests a refused start again while a caller waits. It
/// does so earlier if memory is given back, but an instance that becomes idle sends no
/// notification.
const ASK_AGAIN_NS: u64 = 20_000_000;
/// The assumed duration of a start until one has been measured. It is used only for comparisons.
const START_NS_GUESS: u64 = 50_000_000;

/// Why an explicitly requested start did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WarmError {
    #[error("{0}")]
    NodeFull(String),
    /// The namespace of the function is at a limit.
    #[error("{0}")]
    NamespaceFull(String),
    /// The instance did not become ready.
    #[error("{0}")]
    Failed(String),
}

/// Starts the instances that the pool already counts as starting, or as many of them as the node
/// has room for. The remaining starts are taken back, and the returned text says what the node
/// lacks.
pub(crate) fn begin(revision: &Arc<Revision>, start: Start) -> Option<String> {
    let room = if start.evict { Room::Evicting } else { Room::Free };
    for started in 0..start.count {
        match revision.shared.ledger.reserve(&wish(revision, room)) {
            Ok(reservation) => spawn(revision, start.why, reservation),
            Err(refusal) => return Some(refused(revision, start.count - started, refusal)),
        }
    }
    revision.pool.lock().starts_granted();
    None
}

/// Starts one spare that the pool already counts as starting. If there is no room, the pool tries
/// again later, because a spare takes no room from others.
pub(crate) fn begin_spare(revision: &Arc<Revision>) {
    match revision.shared.ledger.reserve(&wish(revision, Room::Free)) {
        Ok(reservation) => spawn(revision, Why::SPARE, reservation),
        Err(_) => revision.pool.lock().spare_refused(now_ns()),
    }
}

/// Where the room for a start may come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// From free memory, and from idle instances of other functions, which are stopped for it.
    Evicting,
    /// From free memory only.
    Free,
}

fn wish(revision: &Revision, room: Room) -> RoomRequest<'_> {
    RoomRequest {
        memory_bytes: revision.spec.limits.memory_bytes,
        cpu_millis: revision.spec.limits.cpu_millis,
        evict: room == Room::Evicting,
        function: revision.spec.name.as_str(),
        revision: revision.number,
        is_part_of_start: false,
        waiter: Some(&revision.changed),
    }
}

fn spawn(revision: &Arc<Revision>, why: Why, reservation: Reservation) {
    let start = instance::start(revision.clone(), why, reservation);
    let (runtime, seat) = revision.shared.threads.next();
    runtime.spawn(async move {
        // A failure has already been recorded in the pool and in the log.
        let _ = start.await;
        drop(seat);
    });
}

/// Takes back refused starts, and answers the callers that cannot be served before their deadline.
fn refused(revision: &Revision, count: u32, refusal: Refusal) -> String {
    let lack = refusal.lack;
    let version = revision.shared.ledger.version();
    let (in_vain, news) =
        revision.pool.lock().start_refused(count, lack, version, refusal.room_in_ns, now_ns());
    let text = lack_text(&revision.spec, &revision.shared.ledger, &refusal);
    let fault = match lack {
        Lack::Memory if refusal.exceeded.is_some() => {
            Fault::NamespaceFull { message: text.clone() }
        }
        Lack::TooLarge => Fault::StartFailed { message: text.clone() },
        Lack::Memory | Lack::Starts => Fault::NodeFull,
    };
    if news {
        revision.log.platform(LogLevel::Warn, revision.number, 0, &format!("not started: {text}"));
    }
    for pending in in_vain {
        match pending.origin {
            // Another cell may have room for the invocation.
            Origin::Movable | Origin::Waits | Origin::Guest if lack == Lack::Memory => {
                pending.move_on();
            }
            _ => pending.fail(fault.clone()),
        }
    }
    if lack == Lack::Memory {
        revision.give_guests_back();
    }
    text
}

/// Says what the node lacks for an instance of this function, for the function's owner.
fn lack_text(spec: &FunctionSpec, ledger: &Ledger, refusal: &Refusal) -> String {
    if let (Some(exceeded), Some(namespace)) = (&refusal.exceeded, spec.name.namespace()) {
        return exceeded.text(namespace);
    }
    let status = ledger.status();
    let wanted = bytes_text(spec.limits.memory_bytes);
    let budget = rounded_bytes_text(status.budget.memory_bytes);
    match refusal.lack {
        Lack::TooLarge => {
            format!("an instance may use {wanted}, but the node's memory budget is {budget}")
        }
        Lack::Memory => format!(
            "the node is full: an instance may use {wanted}, but busy and required instances \
             leave only {} of {budget}",
            rounded_bytes_text(status.budget.memory_bytes.saturating_sub(status.taken_bytes))
        ),
        Lack::Starts => format!("{} instances are starting already", status.starting),
    }
}

impl Revision {
    /// Starts one instance and waits until it is ready. Deploys use this, so that a revision that
    /// cannot start never takes traffic. It may stop idle instances of other functions to make
    /// room.
    pub async fn warm(self: &Arc<Self>) -> Result<(), WarmError> {
        self.start_one(Why::DEPLOY, Room::Evicting).await
    }

    /// Starts one instance and waits until it is ready. Waits for room for at most the time that a
    /// start may take.
    pub(crate) async fn start_one(self: &Arc<Self>, why: Why, room: Room) -> Result<(), WarmError> {
        // This is a separate `Notify`, so that this wait does not take notifications from the
        // reconciler.
        let told = Arc::new(Notify::new());
        let until = now_ns() + self.init_timeout_ms() * 1_000_000;
        {
            self.pool.lock().count_start(now_ns());
        }
        let reservation = loop {
            let wish = RoomRequest { waiter: Some(&told), ..wish(self, room) };
            let refusal = match self.shared.ledger.reserve(&wish) {
                Ok(reservation) => break reservation,
                Err(refusal) => refusal,
            };
            let soonest = refusal.room_in_ns.map(|room_in_ns| now_ns() + room_in_ns);
            if soonest.is_none_or(|soonest| soonest >= until) || now_ns() >= until {
                self.pool.lock().uncount_start();
                self.changed.notify_one();
                let text = lack_text(&self.spec, &self.shared.ledger, &refusal);
                self.log.platform(LogLevel::Warn, self.number, 0, &format!("not started: {text}"));
                return Err(match refusal.exceeded {
                    Some(_) => WarmError::NamespaceFull(text),
                    None => WarmError::NodeFull(text),
                });
            }
            let again = Duration::from_nanos(ASK_AGAIN_NS);
            let _ = tokio::time::timeout(again, told.notified()).await;
        };
        let start = instance::start(self.clone(), why, reservation);
        let started = self.shared.threads.start(start).await;
        self.ensure_reconciler();
        started.map_err(WarmError::Failed)
    }
}

/// Revisions that accept no new invocations while those that they hold end.
pub(crate) type Draining = Arc<Mutex<Vec<Weak<Revision>>>>;

/// The instances of all revisions, as a source of room.
pub(crate) struct Revisions {
    pub(crate) routes: Weak<ArcSwap<Routes>>,
    pub(crate) draining: Draining,
}

impl Evictable for Revisions {
    fn survey(&self, wish: &RoomRequest<'_>, now_ns: u64, into: &mut Survey) {
        let draining: Vec<_> = {
            let mut draining = self.draining.lock();
            draining.retain(|revision| revision.strong_count() > 0);
            draining.iter().filter_map(Weak::upgrade).collect()
        };
        for revision in draining {
            let pool = revision.pool.lock();
            let known = pool.known();
            into.occupied.extend(occupied(
                revision.spec.limits.memory_bytes,
                &pool,
                &known,
                now_ns,
            ));
        }
        let Some(routes) = self.routes.upgrade() else { return };
        for revision in routes.load().values().flat_map(Serving::revisions) {
            let own = revision.spec.name.as_str() == wish.function;
            let is_meant = into.only.as_ref().is_none_or(|only| is_of(&revision.spec.name, only));
            if (own && revision.number == wish.revision) || !is_meant {
                continue;
            }
            survey(&revision.pool.lock(), revision.spec.limits.memory_bytes, now_ns, into);
        }
    }

    fn give_way(&self, of: &[Option<Arc<str>>], wish: &RoomRequest<'_>) {
        let Some(routes) = self.routes.upgrade() else { return };
        let routes = routes.load();
        let all =
            routes.values().flat_map(Serving::revisions).filter(|one| is_of(&one.spec.name, of));
        let mut most = None;
        let mut leaving_bytes = 0;
        for revision in all {
            let pool = revision.pool.lock();
            let leaving = pool.workers().filter(|(_, worker)| worker.is_draining()).count() as u64;
            leaving_bytes += leaving * revision.spec.limits.memory_bytes;
            let ready = pool.ready_count();
            if most.is_none_or(|(_, most)| ready > most) {
                most = Some((revision, ready));
            }
        }
        let Some((revision, _)) = most.filter(|_| leaving_bytes < wish.memory_bytes) else {
            return;
        };
        // In a namespace, the minimum is not kept: the namespace's owner chooses it, and it must
        // not take more than the namespace's share.
        let keeps_minimum = revision.spec.name.namespace().is_none();
        let given = revision.pool.lock().give_way(Why::OTHERS, keeps_minimum);
        if let Some(number) = given {
            let text = format!("stopping (evicted): {}", Why::OTHERS.text);
            revision.log.platform(LogLevel::Info, revision.number, number, &text);
            revision.changed.notify_one();
        }
    }

    fn evict(&self, id: u64, wish: &RoomRequest<'_>, now_ns: u64) -> bool {
        let Some(routes) = self.routes.upgrade() else { return false };
        let routes = routes.load();
        let mut revisions = routes.values().flat_map(Serving::revisions);
        revisions.any(|revision| evict(revision, id, wish, now_ns))
    }
}

fn is_of(name: &FunctionName, namespaces: &[Option<Arc<str>>]) -> bool {
    let own = name.namespace();
    namespaces.iter().any(|namespace| namespace.as_deref() == own)
}

fn survey(pool: &Pool, memory_bytes: u64, now_ns: u64, into: &mut Survey) {
    if pool.workers().len() == 0 && pool.starting_count() == 0 {
        return;
    }
    let known = pool.known();
    let demand_per_s = pool.demand_per_s();
    let start_ns = known.start.mean_ns();
    let spare = pool.dispensable();
    let mut idle: Vec<_> =
        pool.workers().map(|(_, worker)| worker).filter(|worker| worker.is_idle()).collect();
    idle.sort_unstable_by_key(|worker| worker.idle_since_ns());
    into.idle.extend(idle.iter().take(spare).map(|worker| IdleInstance {
        id: worker.number(),
        memory_bytes,
        paused: worker.is_paused(),
        idle_ns: now_ns.saturating_sub(worker.idle_since_ns()),
        demand_per_s,
        start_ns: start_ns.unwrap_or(START_NS_GUESS),
    }));
    let mut occupied = occupied(memory_bytes, pool, &known, now_ns);
    // A starting instance will first serve the caller for which it was started, so it counts as
    // busy until then.
    let elapsed_ns = now_ns.saturating_sub(pool.starting_since_ns());
    let free_in_ns =
        remaining_ns(elapsed_ns, start_ns).saturating_add(known.service.mean_ns().unwrap_or(0));
    occupied.extend((0..pool.starting_count()).map(|_| Occupied { memory_bytes, free_in_ns }));
    let later = (spare + pool.starting_count() as usize).saturating_sub(idle.len());
    if pool.queued() == 0 || pool.ready_count() == 0 {
        occupied.sort_unstable_by_key(|held| held.free_in_ns);
        into.occupied.extend(occupied.into_iter().take(later));
    }
}

/// The instances that work, and when each of them has probably ended its invocations. An instance
/// that has ended its last call and is about to be asked to exit is included, because nothing else
/// shows yet that its memory will become free.
fn occupied(memory_bytes: u64, pool: &Pool, known: &Known, now_ns: u64) -> Vec<Occupied> {
    let workers = pool.workers().filter_map(|(_, worker)| {
        let mean_ns = match worker.mean_ns() {
            0 => known.service.mean_ns(),
            mean_ns => Some(mean_ns),
        };
        let left = worker
            .calls()
            .iter()
            .map(|(_, call)| remaining_ns(now_ns.saturating_sub(call.began_ns()), mean_ns));
        let about_to_go =
            (worker.is_draining() || pool.is_closed()) && !worker.instance().reservation.has_left();
        let free_in_ns = left.max().or(about_to_go.then_some(0));
        free_in_ns.map(|free_in_ns| Occupied { memory_bytes, free_in_ns })
    });
    workers.collect()
}

fn evict(revision: &Revision, id: u64, wish: &RoomRequest<'_>, now_ns: u64) -> bool {
    let mut line = String::new();
    let text = |idle_ns: u64| {
        // The owners of a namespace must not learn the names of functions in other namespaces.
        let is_known = split(wish.function).1 == revision.spec.name.namespace();
        let whom = if is_known { wish.function } else { "another function of the node" };
        let idle_ms = idle_ns / 1_000_000;
        let text = format!("idle for {idle_ms} ms, stopped in favour of {whom}");
        line = format!("stopping (evicted): {text}");
        text
    };
    if !revision.pool.lock().evict(id, text, now_ns) {
        return false;
    }
    revision.log.platform(LogLevel::Info, revision.number, id, &line);
    revision.changed.notify_one();
    true
}
