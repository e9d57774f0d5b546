//! The memory that the node gives to instances, and which instances hold it: one ledger per engine.
//!
//! Every start reserves its memory limit first and holds the [`Reservation`] until its process has
//! ended. Dropping it releases the memory, so no code path can forget to. When memory is short,
//! idle instances make room ([`mote_pool::budget`] selects them). The start that they make room for
//! is promised their memory and waits until they have left, so the sum never exceeds the budget. A
//! caller whose request was refused is notified when something was given back.
//!
//! Lock order: the books are a leaf. The books may be locked while a pool is locked, never the
//! other way round.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use mote_pool::budget::{
    Budget, IdleInstance, Lack, Occupied, Taken, Verdict, admit_start, room_in,
};
use mote_pool::tenants::Tenants;
pub use mote_pool::tenants::{Exceeded, Held, UNLIMITED};
use mote_spec::name::split;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use mote_process::clock::now_ns;

/// A start that takes longer waits for something other than the processor (a server that connects
/// to another host, for instance) and no longer keeps others from starting.
const STARTING_NS: u64 = 1_000_000_000;
/// How often admission is tried again because a victim was given work in the meantime.
const ROUNDS: usize = 4;
/// How many waiters are notified at once when memory was given back: more than can use it, but far
/// fewer than the functions that a node may have.
const WAKES: usize = 8;

/// A request for room: its purpose, and whether other instances may be evicted for it.
#[derive(Debug, Clone, Copy, Default)]
pub struct RoomRequest<'a> {
    /// Memory limit of the instance, in bytes.
    pub memory_bytes: u64,
    /// Its processor limit, if it has one.
    pub cpu_millis: Option<u32>,
    /// Whether idle instances of others may be evicted for it: a caller waits, or the owner asked
    /// for it.
    pub evict: bool,
    /// The function that the room is for, as shown in logs.
    pub function: &'a str,
    /// The function's revision; its own idle instances are not asked to make room.
    pub revision: u64,
    /// Notified when it is worth asking again after a refusal.
    pub waiter: Option<&'a Arc<Notify>>,
}

/// The refusal of a start, which has to wait or is impossible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub lack: Lack,
    /// When there may be room, in nanoseconds from now; `None` when nothing will be free soon.
    pub room_in_ns: Option<u64>,
    /// The limit of the namespace, if the node itself has room.
    pub exceeded: Option<Exceeded>,
}

/// The instances that hold memory and might give it back, as seen in one survey.
#[derive(Debug, Default)]
pub struct Survey {
    /// Instances that could stop now.
    pub idle: Vec<IdleInstance>,
    /// Instances that could stop later.
    pub occupied: Vec<Occupied>,
    /// Only those of these namespaces are asked for; `None` is the default one.
    pub only: Option<Vec<Option<Arc<str>>>>,
}

/// Something whose instances hold reservations and can be asked to make room.
pub trait Evictable: Send + Sync {
    /// Adds the instances that could make room for `wish`. Called only for starts that find the
    /// node full. It may take a few locks, but must not ask the ledger.
    fn survey(&self, wish: &RoomRequest<'_>, now_ns: u64, into: &mut Survey);
    /// Stops the idle instance numbered `id`, and calls [`Reservation::leave`] before it returns.
    /// Returns false when the instance is not its own or no longer idle.
    fn evict(&self, id: u64, wish: &RoomRequest<'_>, now_ns: u64) -> bool;
    /// Lets an instance of these namespaces stop when it has ended its invocations, unless enough of
    /// them do so already.
    fn give_way(&self, _of: &[Option<Arc<str>>], _wish: &RoomRequest<'_>) {}
}

/// The state of the ledger, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerStatus {
    pub budget: Budget,
    /// Sum of memory limits of all instances that have not ended, in bytes.
    pub taken_bytes: u64,
    /// The most that was ever taken.
    pub peak_bytes: u64,
    /// The part of it that will be given back soon: idle instances that were asked to exit.
    pub leaving_bytes: u64,
    /// Memory held for starts that wait for that part.
    pub promised_bytes: u64,
    /// Instances that are starting, including those that wait for room.
    pub starting: u32,
}

struct Promise {
    id: u64,
    memory_bytes: u64,
    granted: oneshot::Sender<()>,
}

struct Books {
    taken: u64,
    peak: u64,
    leaving: u64,
    promised: u64,
    promises: VecDeque<Promise>,
    /// Starts under way, each with its start time.
    starting: Vec<(u64, u64)>,
    waiters: VecDeque<Weak<Notify>>,
    next_id: u64,
    tenants: Tenants,
}

/// See the module's documentation.
pub struct Ledger {
    budget: Budget,
    books: Mutex<Books>,
    sources: Mutex<Vec<Arc<dyn Evictable>>>,
    /// Incremented whenever memory was given back.
    version: AtomicU64,
}

impl Ledger {
    pub fn new(budget: Budget) -> Arc<Self> {
        let books = Books {
            taken: 0,
            peak: 0,
            leaving: 0,
            promised: 0,
            promises: VecDeque::new(),
            starting: Vec::new(),
            waiters: VecDeque::new(),
            next_id: 0,
            tenants: Tenants::default(),
        };
        Arc::new(Self {
            budget,
            books: Mutex::new(books),
            sources: Mutex::default(),
            version: AtomicU64::new(0),
        })
    }

    /// Adds a source that can be asked to make room.
    pub fn add_source(&self, source: Arc<dyn Evictable>) {
        self.sources.lock().push(source);
    }

    /// Reserves room for one instance, if necessary by evicting idle ones: the reservation then
    /// waits for them in [`Reservation::room`]. Blocks only on short locks; the caller must not
    /// hold the lock of a pool.
    pub fn reserve(self: &Arc<Self>, wish: &RoomRequest<'_>) -> Result<Reservation, Refusal> {
        let refuse = |lack, room_in_ns| Err(Refusal { lack, room_in_ns, exceeded: None });
        let (namespace, one) =
            (split(wish.function).1, Held::one(wish.memory_bytes, wish.cpu_millis));
        for _ in 0..ROUNDS {
            let now_ns = now_ns();
            let (taken, shares) = {
                let mut books = self.books.lock();
                if let Some(namespace) = namespace
                    && let Some(exceeded) = books.tenants.exceeded(namespace, one)
                {
                    books.wait(wish.waiter);
                    if books.tenants.fits_soon(namespace, exceeded) {
                        let lack = Lack::Memory;
                        let exceeded = Some(exceeded);
                        return Err(Refusal { lack, room_in_ns: Some(0), exceeded });
                    }
                    drop(books);
                    return Err(self.exceeds(wish, namespace, exceeded, now_ns));
                }
                let taken = books.taken(now_ns);
                let all = self.budget.memory_bytes;
                let wanted = wish.memory_bytes;
                let shares =
                    books.tenants.shares(all, taken.memory_bytes, namespace, wanted, now_ns);
                if shares.as_ref().is_some_and(|shares| !shares.is_within) {
                    let owed = books.tenants.owed_to_others(namespace, now_ns);
                    if owed > 0 && taken.memory_bytes + wanted + owed > all {
                        books.wait(wish.waiter);
                        return refuse(Lack::Memory, Some(0));
                    }
                }
                match admit_start(&self.budget, &taken, wish.memory_bytes, &[]) {
                    Verdict::Refuse { lack: Lack::TooLarge, .. } => {
                        return refuse(Lack::TooLarge, None);
                    }
                    Verdict::Refuse { lack, retry_after_ns } => {
                        books.wait(wish.waiter);
                        if lack == Lack::Starts {
                            return refuse(lack, Some(retry_after_ns));
                        }
                        (taken, shares)
                    }
                    Verdict::Start | Verdict::Evict(_) => {
                        return Ok(books.grant(self, one, namespace, now_ns));
                    }
                }
            };
            if !wish.evict {
                return refuse(Lack::Memory, None);
            }
            let sources = self.sources.lock().clone();
            let mut survey = Survey::default();
            for source in &sources {
                source.survey(wish, now_ns, &mut survey);
            }
            // Those that hold more than their share make room first, and take nothing from the others.
            let above = shares.as_ref().map_or(Vec::new(), |shares| shares.above.clone());
            let is_divided = !above.is_empty();
            let mut first = Survey { only: Some(above), ..Survey::default() };
            if is_divided {
                sources.iter().for_each(|source| source.survey(wish, now_ns, &mut first));
            }
            let is_within = shares.is_none_or(|shares| shares.is_within);
            let admit = |idle| admit_start(&self.budget, &taken, wish.memory_bytes, idle);
            let verdict = match admit(&first.idle) {
                Verdict::Refuse { .. } if is_within || !is_divided => admit(&survey.idle),
                verdict => verdict,
            };
            match verdict {
                Verdict::Evict(victims) => {
                    for id in victims {
                        // An instance that was given work in the meantime is not found in the next
                        // round.
                        let _ = sources.iter().any(|source| source.evict(id, wish, now_ns));
                    }
                }
                Verdict::Start => {}
                Verdict::Refuse { .. } => {
                    let idle: u64 = survey.idle.iter().map(|idle| idle.memory_bytes).sum();
                    let after = taken.memory_bytes + wish.memory_bytes;
                    let missing = after.saturating_sub(self.budget.memory_bytes + idle);
                    if is_within && is_divided {
                        if self.books.lock().tenants.owe(namespace, wish.memory_bytes, now_ns) {
                            let of = first.only.as_deref().unwrap_or_default();
                            sources.iter().for_each(|source| source.give_way(of, wish));
                        }
                        return refuse(Lack::Memory, Some(0));
                    }
                    return refuse(Lack::Memory, room_in(missing, &mut survey.occupied));
                }
            }
        }
        refuse(Lack::Memory, Some(0))
    }

    /// Asks an idle instance of a namespace that is at its limit to leave. The start is tried again
    /// when it has left, so that the namespace never holds more than its limit.
    fn exceeds(
        &self,
        wish: &RoomRequest<'_>,
        namespace: &str,
        exceeded: Exceeded,
        now_ns: u64,
    ) -> Refusal {
        let room_in_ns = wish.evict.then(|| self.evict_of(wish, namespace, now_ns)).flatten();
        Refusal { lack: Lack::Memory, room_in_ns, exceeded: Some(exceeded) }
    }

    /// Evicts the instance of a namespace that has been idle longest. Returns when there may be room.
    fn evict_of(&self, wish: &RoomRequest<'_>, namespace: &str, now_ns: u64) -> Option<u64> {
        let sources = self.sources.lock().clone();
        let mut survey = Survey { only: Some(vec![Some(namespace.into())]), ..Survey::default() };
        for source in &sources {
            source.survey(wish, now_ns, &mut survey);
        }
        let longest = survey.idle.iter().max_by_key(|idle| idle.idle_ns);
        if let Some(victim) = longest {
            let _ = sources.iter().any(|source| source.evict(victim.id, wish, now_ns));
            return Some(0);
        }
        survey.occupied.iter().map(|held| held.free_in_ns).min()
    }

    /// Sets what the instances of a namespace may hold from now on.
    pub fn limit(&self, namespace: &str, limit: Held) {
        self.give_back(|books| books.tenants.limit(namespace, limit));
    }

    /// What the instances of a namespace hold.
    pub fn held_by(&self, namespace: &str) -> Held {
        self.books.lock().tenants.held(namespace)
    }

    /// Memory that instances could have now, in bytes: what is not taken, and what idle instances
    /// would give back. Visits every function.
    pub fn free_bytes(&self) -> u64 {
        let free = self.budget.memory_bytes.saturating_sub(self.books.lock().held());
        let wish = RoomRequest { evict: true, ..RoomRequest::default() };
        let mut survey = Survey::default();
        for source in self.sources.lock().clone() {
            source.survey(&wish, now_ns(), &mut survey);
        }
        free + survey.idle.iter().map(|idle| idle.memory_bytes).sum::<u64>()
    }

    /// Share of the memory budget that is taken and not about to be given back, 0 to 1.
    pub fn pressure(&self) -> f64 {
        let taken = self.books.lock().held();
        taken as f64 / self.budget.memory_bytes.max(1) as f64
    }

    /// A number that grows whenever memory was given back.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    /// The budget and how much of it is taken.
    pub fn status(&self) -> LedgerStatus {
        let books = self.books.lock();
        LedgerStatus {
            budget: self.budget,
            taken_bytes: books.taken,
            peak_bytes: books.peak,
            leaving_bytes: books.leaving,
            promised_bytes: books.promised,
            starting: books.starting.len() as u32,
        }
    }

    /// Changes the books, hands over the memory that was given back, and notifies the waiters.
    fn give_back(&self, change: impl FnOnce(&mut Books)) {
        let mut books = self.books.lock();
        change(&mut books);
        books.keep_promises(self.budget.memory_bytes);
        let count = books.waiters.len().min(WAKES);
        let waiters: Vec<_> = books.waiters.drain(..count).collect();
        drop(books);
        self.version.fetch_add(1, Ordering::Relaxed);
        for waiter in waiters.iter().filter_map(Weak::upgrade) {
            waiter.notify_one();
        }
    }
}

impl Books {
    /// Bytes that stay taken: without those of leaving instances, with those promised.
    fn held(&self) -> u64 {
        self.taken - self.leaving + self.promised
    }

    fn taken(&self, now_ns: u64) -> Taken {
        let young = |since: &u64| now_ns.saturating_sub(*since) < STARTING_NS;
        let starting = self.starting.iter().filter(|(_, since)| young(since)).count() as u32;
        Taken { memory_bytes: self.held(), starting, free_in_ns: 0 }
    }

    fn wait(&mut self, waiter: Option<&Arc<Notify>>) {
        let Some(waiter) = waiter else { return };
        let known = self.waiters.iter().any(|held| std::ptr::eq(held.as_ptr(), &**waiter));
        if !known {
            self.waiters.push_back(Arc::downgrade(waiter));
        }
    }

    fn grant(
        &mut self,
        ledger: &Arc<Ledger>,
        one: Held,
        namespace: Option<&str>,
        now_ns: u64,
    ) -> Reservation {
        let memory_bytes = one.memory_bytes;
        self.tenants.paid(namespace);
        let namespace = namespace.map(|namespace| self.tenants.take(namespace, one));
        self.next_id += 1;
        let id = self.next_id;
        let (granted, room) = oneshot::channel();
        self.promised += memory_bytes;
        self.promises.push_back(Promise { id, memory_bytes, granted });
        self.starting.push((id, now_ns));
        self.keep_promises(ledger.budget.memory_bytes);
        let room = Some(room);
        Reservation { ledger: ledger.clone(), id, one, namespace, room, left: false }
    }

    /// Keeps promises in the order in which they were made: memory that is about to be given back
    /// covers each of them, so the first is never stuck.
    fn keep_promises(&mut self, budget_bytes: u64) {
        while let Some(first) = self.promises.front()
            && self.taken + first.memory_bytes <= budget_bytes
        {
            let Some(promise) = self.promises.pop_front() else { return };
            self.promised -= promise.memory_bytes;
            self.taken += promise.memory_bytes;
            self.peak = self.peak.max(self.taken);
            let _ = promise.granted.send(());
        }
    }
}

/// Room for one instance. It is given back when dropped, which must not happen before the process
/// has ended.
pub struct Reservation {
    ledger: Arc<Ledger>,
    id: u64,
    one: Held,
    namespace: Option<Arc<str>>,
    room: Option<oneshot::Receiver<()>>,
    left: bool,
}

impl Reservation {
    /// Waits until the instances that make room for it have left. Start nothing before that.
    pub async fn room(&mut self) {
        if let Some(room) = &mut self.room {
            // The ledger keeps its end until it grants the room or this reservation is dropped.
            let _ = room.await;
            self.room = None;
        }
    }

    /// The start has ended, successfully or not: another may begin.
    pub fn started(&self) {
        self.ledger.give_back(|books| books.starting.retain(|(id, _)| *id != self.id));
    }

    /// Whether [`Reservation::leave`] was called.
    pub fn has_left(&self) -> bool {
        self.left
    }

    /// The instance is idle and was asked to exit: its room may be promised to another start.
    pub fn leave(&mut self) {
        if !std::mem::replace(&mut self.left, true) {
            self.ledger.give_back(|books| {
                books.leaving += self.one.memory_bytes;
                if let Some(namespace) = &self.namespace {
                    books.tenants.leave(namespace, self.one);
                }
            });
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.ledger.give_back(|books| {
            books.starting.retain(|(id, _)| *id != self.id);
            if let Some(namespace) = &self.namespace {
                books.tenants.give(namespace, self.one, self.left);
            }
            if let Some(at) = books.promises.iter().position(|promise| promise.id == self.id) {
                books.promises.remove(at);
                books.promised -= self.one.memory_bytes;
                return;
            }
            books.taken -= self.one.memory_bytes;
            if self.left {
                books.leaving -= self.one.memory_bytes;
            }
        });
    }
}
