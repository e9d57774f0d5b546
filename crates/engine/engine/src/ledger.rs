//! The memory that the node gives to instances, and which instances hold it. Each engine has one
//! ledger.
//!
//! Every start first reserves its memory limit, and holds the [`Reservation`] until its process has
//! ended. Dropping the reservation releases the memory, so no code path can forget to release it.
//! When memory is short, idle instances are evicted to make room ([`mote_pool::budget`] selects
//! them). Their memory is promised to the start that needs it, and that start waits until they have
//! ended, so that the sum never exceeds the budget. A caller whose request was refused is notified
//! when memory was given back.
//!
//! Lock order: the books are a leaf. The books may be locked while a pool is locked, but no pool
//! may be locked while the books are locked.

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

/// A start that takes longer than this is waiting for something other than the processor (for
/// instance, a server waits for another host), so it no longer prevents other starts.
const STARTING_NS: u64 = 1_000_000_000;
/// How often admission is repeated because a victim was given work in the meantime.
const ROUNDS: usize = 4;
/// How many waiters are notified at once when memory was given back. The number is larger than the
/// number of waiters that could use the memory, but far smaller than the number of functions that a
/// node may have.
const WAKES: usize = 8;

/// A request for room for one instance: what the room is for, and whether other instances may be
/// evicted to get it.
#[derive(Debug, Clone, Copy, Default)]
pub struct RoomRequest<'a> {
    /// The memory limit of the instance, in bytes.
    pub memory_bytes: u64,
    /// The processor limit of the instance, if it has one.
    pub cpu_millis: Option<u32>,
    /// Whether idle instances of other functions may be evicted, because a caller waits or because
    /// the owner asked for the instance.
    pub evict: bool,
    /// The function that needs the room, as shown in logs.
    pub function: &'a str,
    /// The revision that needs the room. Its own idle instances are not asked to make room.
    pub revision: u64,
    /// Whether the room is for a part of a start that holds a reservation already. Such a part does
    /// not count among the starts under way.
    pub is_part_of_start: bool,
    /// Notified after a refusal when it is worth asking again.
    pub waiter: Option<&'a Arc<Notify>>,
}

/// The refusal of a start, which must wait or is impossible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub lack: Lack,
    /// In how many nanoseconds there may be room; `None` if no room is expected soon.
    pub room_in_ns: Option<u64>,
    /// The exceeded limit of the namespace, if that is the reason of the refusal.
    pub exceeded: Option<Exceeded>,
}

/// The result of one survey: the instances that hold memory and might give it back.
#[derive(Debug, Default)]
pub struct Survey {
    /// Instances that can stop now.
    pub idle: Vec<IdleInstance>,
    /// Instances that can stop later.
    pub occupied: Vec<Occupied>,
    /// If set, the survey covers only the instances of these namespaces; `None` in the list is the
    /// default namespace.
    pub only: Option<Vec<Option<Arc<str>>>>,
}

/// Something whose instances hold reservations and can be asked to make room.
pub trait Evictable: Send + Sync {
    /// Adds the instances that could make room for `wish`. Called only for starts that find the
    /// node full. The method may take a few locks, but must not call the ledger.
    fn survey(&self, wish: &RoomRequest<'_>, now_ns: u64, into: &mut Survey);
    /// Stops the idle instance numbered `id`, and calls [`Reservation::leave`] before it returns.
    /// Returns false if the instance does not belong to this source or is no longer idle.
    fn evict(&self, id: u64, wish: &RoomRequest<'_>, now_ns: u64) -> bool;
    /// Stops an instance of these namespaces once its invocations have ended, unless enough of
    /// their instances are already stopping.
    fn give_way(&self, _of: &[Option<Arc<str>>], _wish: &RoomRequest<'_>) {}
}

/// The state of the ledger, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerStatus {
    pub budget: Budget,
    /// The sum of the memory limits of all instances that have not ended, in bytes.
    pub taken_bytes: u64,
    /// The largest sum that was ever taken.
    pub peak_bytes: u64,
    /// The part of `taken_bytes` that will be given back soon, by idle instances that were asked to
    /// exit.
    pub leaving_bytes: u64,
    /// Memory that is promised to starts that wait for it.
    pub promised_bytes: u64,
    /// The number of starting instances, including those that wait for room.
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
    /// The starts under way: the id and the start time of each.
    starting: Vec<(u64, u64)>,
    waiters: VecDeque<Weak<Notify>>,
    next_id: u64,
    tenants: Tenants,
}

/// The ledger of a node. See the module's documentation.
pub struct Ledger {
    budget: Budget,
    books: Mutex<Books>,
    sources: Mutex<Vec<Arc<dyn Evictable>>>,
    /// Incremented whenever memory is given back.
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

    /// Adds a source of instances that can be asked to make room.
    pub fn add_source(&self, source: Arc<dyn Evictable>) {
        self.sources.lock().push(source);
    }

    /// Reserves room for one instance. If this evicts idle instances, [`Reservation::room`] waits
    /// until they have ended. The method blocks only on short locks. The caller must not hold the
    /// lock of a pool.
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
                let mut taken = books.taken(now_ns);
                if wish.is_part_of_start {
                    taken.starting = 0;
                }
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
                        let reservation = books.grant(self, one, namespace);
                        if !wish.is_part_of_start {
                            books.starting.push((reservation.id, now_ns));
                        }
                        return Ok(reservation);
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
            // Namespaces that hold more than their share make room first, and take nothing from the
            // others.
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
                        // If the instance was given work in the meantime, it is not evicted, and
                        // the next round does not find it.
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

    /// Refuses a start whose namespace is at its limit, and asks an idle instance of that namespace
    /// to exit. The start is tried again after that instance has ended, so that the namespace never
    /// holds more than its limit.
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

    /// Evicts the namespace's longest-idle instance. Returns in how many nanoseconds there may be
    /// room.
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

    /// Sets the limit of a namespace from now on.
    pub fn limit(&self, namespace: &str, limit: Held) {
        self.give_back(|books| books.tenants.limit(namespace, limit));
    }

    /// What the instances of a namespace hold.
    pub fn held_by(&self, namespace: &str) -> Held {
        self.books.lock().tenants.held(namespace)
    }

    /// The memory that instances could get now, in bytes: the memory that is not taken, plus what
    /// idle instances would give back. Visits every function.
    pub fn free_bytes(&self) -> u64 {
        let free = self.budget.memory_bytes.saturating_sub(self.books.lock().held());
        let wish = RoomRequest { evict: true, ..RoomRequest::default() };
        let mut survey = Survey::default();
        for source in self.sources.lock().clone() {
            source.survey(&wish, now_ns(), &mut survey);
        }
        free + survey.idle.iter().map(|idle| idle.memory_bytes).sum::<u64>()
    }

    /// The share of the memory budget that is taken and will not be given back soon, from 0 to 1.
    pub fn pressure(&self) -> f64 {
        let taken = self.books.lock().held();
        taken as f64 / self.budget.memory_bytes.max(1) as f64
    }

    /// A number that grows whenever memory is given back.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    /// The budget, and how much of it is taken.
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

    /// Changes the books, grants promises from the memory that was given back, and notifies
    /// waiters.
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
    /// The bytes that stay taken, not counting those of leaving instances, but counting those that
    /// are promised.
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

    fn grant(&mut self, ledger: &Arc<Ledger>, one: Held, namespace: Option<&str>) -> Reservation {
        let memory_bytes = one.memory_bytes;
        self.tenants.paid(namespace);
        let namespace = namespace.map(|namespace| self.tenants.take(namespace, one));
        self.next_id += 1;
        let id = self.next_id;
        let (granted, room) = oneshot::channel();
        self.promised += memory_bytes;
        self.promises.push_back(Promise { id, memory_bytes, granted });
        self.keep_promises(ledger.budget.memory_bytes);
        let room = Some(room);
        Reservation { ledger: ledger.clone(), id, one, namespace, room, left: false }
    }

    /// Grants promises in the order in which they were made. Memory that is about to be given back
    /// covers every promise, so the first one always gets its memory.
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

/// Room for one instance. Dropping it gives the room back, so it must not be dropped before the
/// process has ended.
pub struct Reservation {
    ledger: Arc<Ledger>,
    id: u64,
    one: Held,
    namespace: Option<Arc<str>>,
    room: Option<oneshot::Receiver<()>>,
    left: bool,
}

impl Reservation {
    /// Waits until the instances that make room for this reservation have ended. Start nothing
    /// before that.
    pub async fn room(&mut self) {
        if let Some(room) = &mut self.room {
            // The ledger keeps the sender until it grants the room or this reservation is dropped.
            let _ = room.await;
            self.room = None;
        }
    }

    /// Notes that the start has ended, successfully or not, so that another start may begin.
    pub fn started(&self) {
        self.ledger.give_back(|books| books.starting.retain(|(id, _)| *id != self.id));
    }

    /// Gives back the part of the memory above `memory_bytes`, which the instance can no longer
    /// use.
    pub fn shrink(&mut self, memory_bytes: u64) {
        let surplus = self.one.memory_bytes.saturating_sub(memory_bytes);
        self.one.memory_bytes -= surplus;
        self.ledger.give_back(|books| {
            books.taken -= surplus;
            if let Some(namespace) = &self.namespace {
                books.tenants.shrink(namespace, surplus);
            }
        });
    }

    /// Whether [`Reservation::leave`] was called.
    pub fn has_left(&self) -> bool {
        self.left
    }

    /// Notes that the instance is idle and was asked to exit, so that its room may be promised to
    /// another start.
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
