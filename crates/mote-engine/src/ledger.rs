//! What the node gives to instances, and who has it: one ledger per engine.
//!
//! Every start reserves its memory limit first and holds the [`Reservation`] until its process is
//! gone; dropping it releases, so no path can forget to. When memory is short, idle instances make
//! room ([`mote_pool::budget`] says which); the start they make room for is promised theirs and
//! waits until they have left, so the sum never passes the budget. Who is refused is told when
//! something was given back.
//!
//! Locks: the books are a leaf. A pool may be locked while they are, never the other way round.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use mote_pool::budget::{
    Budget, IdleInstance, Lack, Occupied, Taken, Verdict, admit_start, room_in,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::clock::now_ns;

/// A start that takes longer waits for something other than the processor (a server that connects
/// somewhere, for instance) and no longer keeps others from starting.
const STARTING_NS: u64 = 1_000_000_000;
/// How often admission is tried again because a victim was given work in the meantime.
const ROUNDS: usize = 4;
/// Waiters told at once of something that came back: more than can use it, far fewer than a node
/// may have functions.
const WAKES: usize = 8;

/// Who asks for room, and how badly.
#[derive(Debug, Clone, Copy)]
pub struct RoomRequest<'a> {
    /// Memory limit of the instance, in bytes.
    pub memory_bytes: u64,
    /// Whether idle instances of others may go for it: somebody waits, or its owner wants it.
    pub evict: bool,
    /// The function it is for; in logs.
    pub function: &'a str,
    /// Its revision; its own idle instances are not asked to make room.
    pub revision: u64,
    /// Woken when it is worth asking again after a refusal.
    pub waiter: Option<&'a Arc<Notify>>,
}

/// A start that has to wait or cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// What is missing.
    pub lack: Lack,
    /// When there may be room, in nanoseconds from now; `None` when nothing is about to be free.
    pub room_in_ns: Option<u64>,
}

/// What holds memory and might give it back, as seen in one look.
#[derive(Debug, Default)]
pub struct Survey {
    /// Those that could go now.
    pub idle: Vec<IdleInstance>,
    /// Those that could go later.
    pub occupied: Vec<Occupied>,
}

/// Something whose instances hold reservations and can be asked to make room.
pub trait Evictable: Send + Sync {
    /// Adds what could make room for `wish`. Called for starts that find the node full only; may
    /// take a few locks, must not ask the ledger.
    fn survey(&self, wish: &RoomRequest<'_>, now_ns: u64, into: &mut Survey);
    /// Stops the idle instance numbered `id`, and calls [`Reservation::leave`] before it returns.
    /// False when it is not its own or no longer idle.
    fn evict(&self, id: u64, wish: &RoomRequest<'_>, now_ns: u64) -> bool;
}

/// The ledger as people see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerStatus {
    /// What there is.
    pub budget: Budget,
    /// Sum of memory limits of all instances that are not gone, in bytes.
    pub taken_bytes: u64,
    /// The most that was ever taken.
    pub peak_bytes: u64,
    /// The part of it that is about to come back: idle instances told to exit.
    pub leaving_bytes: u64,
    /// Held for starts that wait for that part.
    pub promised_bytes: u64,
    /// Instances starting, those that wait for room among them.
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
    /// Starts under way and since when.
    starting: Vec<(u64, u64)>,
    waiters: VecDeque<Weak<Notify>>,
    next_id: u64,
}

/// See the module.
pub struct Ledger {
    budget: Budget,
    books: Mutex<Books>,
    sources: Mutex<Vec<Arc<dyn Evictable>>>,
    /// Raised whenever something came back.
    version: AtomicU64,
}

impl Ledger {
    /// An empty one.
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
        };
        Arc::new(Self {
            budget,
            books: Mutex::new(books),
            sources: Mutex::default(),
            version: AtomicU64::new(0),
        })
    }

    /// Adds something that can be asked to make room.
    pub fn add_source(&self, source: Arc<dyn Evictable>) {
        self.sources.lock().push(source);
    }

    /// Reserves room for one instance, if need be at the expense of idle ones: the reservation then
    /// waits for them in [`Reservation::room`]. Never blocks on anything but short locks; the
    /// caller must hold none of a pool.
    pub fn reserve(self: &Arc<Self>, wish: &RoomRequest<'_>) -> Result<Reservation, Refusal> {
        let refuse = |lack, room_in_ns| Err(Refusal { lack, room_in_ns });
        for _ in 0..ROUNDS {
            let now_ns = now_ns();
            let taken = {
                let mut books = self.books.lock();
                let taken = books.taken(now_ns);
                match admit_start(&self.budget, &taken, wish.memory_bytes, &[]) {
                    Verdict::Refuse { lack: Lack::TooLarge, .. } => {
                        return refuse(Lack::TooLarge, None);
                    }
                    Verdict::Refuse { lack, retry_after_ns } => {
                        books.wait(wish.waiter);
                        if lack == Lack::Starts {
                            return refuse(lack, Some(retry_after_ns));
                        }
                        taken
                    }
                    Verdict::Start | Verdict::Evict(_) => {
                        return Ok(books.grant(self, wish.memory_bytes, now_ns));
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
            match admit_start(&self.budget, &taken, wish.memory_bytes, &survey.idle) {
                Verdict::Evict(victims) => {
                    for id in victims {
                        // One that was given work in the meantime is missed in the next round.
                        let _ = sources.iter().any(|source| source.evict(id, wish, now_ns));
                    }
                }
                Verdict::Start => {}
                Verdict::Refuse { .. } => {
                    let idle: u64 = survey.idle.iter().map(|idle| idle.memory_bytes).sum();
                    let after = taken.memory_bytes + wish.memory_bytes;
                    let missing = after.saturating_sub(self.budget.memory_bytes + idle);
                    return refuse(Lack::Memory, room_in(missing, &mut survey.occupied));
                }
            }
        }
        refuse(Lack::Memory, Some(0))
    }

    /// Share of the memory budget that is taken and stays so, 0 to 1.
    pub fn pressure(&self) -> f64 {
        let taken = self.books.lock().held();
        taken as f64 / self.budget.memory_bytes.max(1) as f64
    }

    /// A number that grows whenever something came back.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    /// What there is and what is taken.
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

    /// Changes the books, hands over what came back, and tells those who wait.
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
    /// Bytes that stay taken: without those that leave, with those promised.
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

    fn grant(&mut self, ledger: &Arc<Ledger>, memory_bytes: u64, now_ns: u64) -> Reservation {
        self.next_id += 1;
        let id = self.next_id;
        let (granted, room) = oneshot::channel();
        self.promised += memory_bytes;
        self.promises.push_back(Promise { id, memory_bytes, granted });
        self.starting.push((id, now_ns));
        self.keep_promises(ledger.budget.memory_bytes);
        let room = Some(room);
        Reservation { ledger: ledger.clone(), id, memory_bytes, room, left: false }
    }

    /// In the order they were made: each is covered by what leaves, so the first is never stuck.
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

/// Room for one instance; given back when dropped, which must not be before its process is gone.
pub struct Reservation {
    ledger: Arc<Ledger>,
    id: u64,
    memory_bytes: u64,
    room: Option<oneshot::Receiver<()>>,
    left: bool,
}

impl Reservation {
    /// Waits until those who make room for it have left. Start nothing before.
    pub async fn room(&mut self) {
        if let Some(room) = &mut self.room {
            // The ledger keeps its end until it grants or this is dropped.
            let _ = room.await;
            self.room = None;
        }
    }

    /// Its start has ended, well or badly: another may begin.
    pub fn started(&self) {
        self.ledger.give_back(|books| books.starting.retain(|(id, _)| *id != self.id));
    }

    /// Whether [`Reservation::leave`] was called.
    pub fn has_left(&self) -> bool {
        self.left
    }

    /// It is idle and was told to exit: its room may be promised to somebody.
    pub fn leave(&mut self) {
        if !std::mem::replace(&mut self.left, true) {
            self.ledger.give_back(|books| books.leaving += self.memory_bytes);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.ledger.give_back(|books| {
            books.starting.retain(|(id, _)| *id != self.id);
            if let Some(at) = books.promises.iter().position(|promise| promise.id == self.id) {
                books.promises.remove(at);
                books.promised -= self.memory_bytes;
                return;
            }
            books.taken -= self.memory_bytes;
            if self.left {
                books.leaving -= self.memory_bytes;
            }
        });
    }
}

#[cfg(test)]
mod tests;
