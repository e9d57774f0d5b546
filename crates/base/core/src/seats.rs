//! Limits how many connections, handshakes and similar things are open at once. At the limit, some
//! of them end to make room for newcomers, so that no client can keep others out by opening many.
//!
//! [`Shares`](crate::shares::Shares) only refuse newcomers: whoever holds a share keeps it. That is
//! right for bytes and running calls. It is wrong for things that cost a client nothing to hold,
//! such as a connection without a request: two owners with half of the total each could keep
//! everybody else out. So [`Seats`] admit a newcomer at the limit, and end another seat in its
//! place:
//!
//! 1. Only a seat that is not at work can end. [`Seat::begin`] marks work, such as a call that runs
//!    or an answer that is being sent.
//! 2. Seats end in the order of their [`Standing`]: callers without a proof lose their seats before
//!    proven callers and operators do.
//! 3. Among these seats, the owner with the most loses one: of its least proven kind, the oldest
//!    seat that was not used since the last search for room. So an owner that holds more seats than
//!    others only ever displaces itself, and never an owner with fewer.
//! 4. Callers without a proof may not use the last part of the total ([`Seats::with_reserve`]), so
//!    proven callers find room even if all other seats are at work. [`Seats::with_most`] bounds
//!    another standing in the same way, so that newcomers and holders of a higher standing find
//!    room.
//! 5. Once a holder has shown its identity, its seat can count for that user, and no longer for its
//!    address ([`Seat::belong`]).
//!
//! While it works, the holder of a seat also waits for [`Seat::ended`], and gives up when that
//! future resolves.
//!
//! No operation scans all seats. Taking and returning a seat costs the logarithm of the number of
//! owners. Beginning and ending work costs two atomic operations and no lock. This is possible
//! because a seat at work counts as idle until a search for room finds it. The search then takes
//! the seat out of its list, and the seat puts itself back when its work has ended.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::shares::Exceeded;

/// What is known about the holder of a seat. Seats of a lower standing end first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// The holder has not requested anything yet.
    Unproven,
    /// The holder has made a call that needs no proof.
    Anonymous,
    /// The holder has shown a valid key, token or certificate.
    Proven,
    /// The holder may manage the whole node.
    Operator,
}

const STANDINGS: [Standing; 4] =
    [Standing::Unproven, Standing::Anonymous, Standing::Proven, Standing::Operator];

/// A bounded number of seats, and their holders. A clone is another handle to the same seats.
#[derive(Debug)]
pub struct Seats<K: Eq + Hash>(Arc<Hall<K>>);

impl<K: Eq + Hash> Clone for Seats<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[derive(Debug)]
struct Hall<K> {
    total_max: usize,
    owner_max: usize,
    /// The most seats of each standing. Unproven seats have no limit other than the total.
    most: [usize; 4],
    /// A leaf lock: while it is held, nothing is awaited and no task is woken.
    state: Mutex<State<K>>,
}

#[derive(Debug)]
struct State<K> {
    /// Seats by their number. `None` means that the number is free.
    seats: Vec<Option<Entry>>,
    free: Vec<u32>,
    owners: Vec<Option<Owner<K>>>,
    free_owners: Vec<u32>,
    by_key: HashMap<K, u32>,
    /// The number of seats of each standing, whether at work or not.
    counts: [usize; 4],
    /// For each standing, the owners with idle seats. The owner with the most is last; among
    /// equals, the owner that has had this number for the longest time is last.
    greediest: [BTreeSet<(u32, Reverse<u64>, u32)>; 4],
    /// The number of changes so far. Each change in the length of an owner's list of idle seats
    /// gets the next number.
    changes: u64,
}

#[derive(Debug)]
struct Entry {
    owner: u32,
    standing: Standing,
    /// Whether the seat is in its owner's list.
    is_listed: bool,
    /// The seat's neighbours in that list.
    before: u32,
    after: u32,
    signal: Arc<Signal>,
}

#[derive(Debug)]
struct Owner<K> {
    key: K,
    seats: u32,
    /// The owner's idle seats by standing, the oldest first.
    idle: [List; 4],
}

#[derive(Debug, Clone, Copy)]
struct List {
    first: u32,
    last: u32,
    length: u32,
    /// The number of the change that set this length.
    changed: u64,
}

/// No seat.
const NONE: u32 = u32::MAX;

/// The state that a seat and the hall exchange without a lock.
#[derive(Debug)]
struct Signal {
    /// The flags below in the low bits, and the number of works in the bits above them.
    flags: AtomicU32,
    /// A copy of the [`Standing`].
    standing: AtomicU8,
    waker: Mutex<Option<Waker>>,
}

/// The seat was given to a newcomer.
const ENDED: u32 = 1;
/// The seat was at work since the last search for room.
const USED: u32 = 2;
/// A search found the seat at work and took it out of its list.
const ASIDE: u32 = 4;
/// One work: a call that runs, or an answer that is being sent. There may be several at once.
const WORK: u32 = 8;

impl<K: Eq + Hash + Clone> Seats<K> {
    /// `total_max` seats of which one owner may hold `owner_max`.
    pub fn new(total_max: usize, owner_max: usize) -> Self {
        Self::with_reserve(total_max, owner_max, 0)
    }

    /// Like [`Seats::new`], but anonymous callers must leave `reserve` seats free.
    pub fn with_reserve(total_max: usize, owner_max: usize, reserve: usize) -> Self {
        let state = State {
            seats: Vec::new(),
            free: Vec::new(),
            owners: Vec::new(),
            free_owners: Vec::new(),
            by_key: HashMap::new(),
            counts: [0; 4],
            greediest: Default::default(),
            changes: 0,
        };
        let total_max = total_max.clamp(1, NONE as usize - 1);
        let mut most = [total_max; 4];
        most[Standing::Anonymous as usize] = total_max.saturating_sub(reserve).max(1);
        Self(Arc::new(Hall {
            total_max,
            owner_max: owner_max.max(1),
            most,
            state: Mutex::new(state),
        }))
    }

    /// Limits the number of seats of this standing to `most`. Must be called before any seat is
    /// taken and before the handle is cloned.
    #[must_use]
    pub fn with_most(mut self, standing: Standing, most: usize) -> Self {
        let hall = Arc::get_mut(&mut self.0).expect("nothing else refers to new seats");
        hall.most[standing as usize] = most.max(1);
        self
    }

    /// Takes a seat for a newcomer that has not proved anything yet. At a limit, another seat ends.
    /// Returns an error if every seat that could end is at work or belongs to an owner with fewer
    /// seats. Does not block.
    pub fn take(&self, owner: K) -> Result<Seat<K>, Exceeded> {
        let hall = &self.0;
        let mut state = hall.lock();
        let number = state.owner(owner);
        let (seat, signal) = state.insert(number);
        let made = hall.make_room(&mut state, seat);
        drop(state);
        match made {
            Ok(ended) => {
                wake(ended);
                Ok(Seat { hall: hall.clone(), number: seat, signal })
            }
            Err(why) => Err(why),
        }
    }

    /// The number of seats that are taken.
    pub fn taken(&self) -> usize {
        self.0.lock().taken()
    }

    /// The number of seats that `owner` holds.
    pub fn taken_by(&self, owner: &K) -> usize {
        let state = self.0.lock();
        let number = state.by_key.get(owner).copied();
        number.map_or(0, |number| state.owner_of(number).seats as usize)
    }
}

impl<K> Hall<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        // No code panics while this lock is held, so the state is complete even if the lock is
        // poisoned.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash + Clone> Hall<K> {
    /// Ends another seat if `newcomer` exceeds a limit. If no other seat can end, removes the
    /// newcomer.
    fn make_room(
        &self,
        state: &mut State<K>,
        newcomer: u32,
    ) -> Result<Option<Arc<Signal>>, Exceeded> {
        let owner = state.entry(newcomer).owner;
        if state.owner_of(owner).seats as usize > self.owner_max {
            let own = STANDINGS.into_iter().find_map(|one| state.oldest(owner, one, newcomer));
            let Some(own) = own else {
                state.remove(newcomer);
                return Err(Exceeded::Share);
            };
            return Ok(Some(state.remove(own)));
        }
        if state.taken() <= self.total_max {
            return Ok(None);
        }
        let Some(ended) = state.choose(owner, newcomer) else {
            state.remove(newcomer);
            return Err(Exceeded::Total);
        };
        Ok(Some(state.remove(ended)))
    }
}

/// Wakes the holder of a seat that has ended.
fn wake(ended: Option<Arc<Signal>>) {
    let Some(signal) = ended else { return };
    let waker = signal.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl<K> State<K> {
    fn taken(&self) -> usize {
        self.seats.len() - self.free.len()
    }

    fn entry(&mut self, seat: u32) -> &mut Entry {
        self.seats[seat as usize].as_mut().expect("a number of a seat that is taken")
    }

    fn owner_of(&self, number: u32) -> &Owner<K> {
        self.owners[number as usize].as_ref().expect("an owner with seats")
    }

    fn owner_mut(&mut self, number: u32) -> &mut Owner<K> {
        self.owners[number as usize].as_mut().expect("an owner with seats")
    }

    /// Changes an owner's list of idle seats, and updates its position in `greediest`.
    fn change(&mut self, owner: u32, standing: Standing, change: impl FnOnce(&mut List)) {
        let at = standing as usize;
        self.changes += 1;
        let changed = self.changes;
        let list = &mut self.owner_mut(owner).idle[at];
        let before = (list.length, Reverse(list.changed), owner);
        change(list);
        list.changed = changed;
        let after = (list.length, Reverse(changed), owner);
        let greediest = &mut self.greediest[at];
        if before.0 > 0 {
            greediest.remove(&before);
        }
        if after.0 > 0 {
            greediest.insert(after);
        }
    }

    /// Adds a seat at the end of its owner's list.
    fn list(&mut self, seat: u32) {
        let entry = self.entry(seat);
        let owner = entry.owner;
        let standing = entry.standing;
        let last = self.owner_of(owner).idle[standing as usize].last;
        let entry = self.entry(seat);
        (entry.is_listed, entry.before, entry.after) = (true, last, NONE);
        if last != NONE {
            self.entry(last).after = seat;
        }
        self.change(owner, standing, |list| {
            list.length += 1;
            list.last = seat;
            if last == NONE {
                list.first = seat;
            }
        });
    }

    /// Takes a seat out of its owner's list, if the seat is listed.
    fn unlist(&mut self, seat: u32) {
        let entry = self.entry(seat);
        if !std::mem::replace(&mut entry.is_listed, false) {
            return;
        }
        let (owner, standing, before, after) =
            (entry.owner, entry.standing, entry.before, entry.after);
        if before != NONE {
            self.entry(before).after = after;
        }
        if after != NONE {
            self.entry(after).before = before;
        }
        self.change(owner, standing, |list| {
            list.length -= 1;
            if before == NONE {
                list.first = after;
            }
            if after == NONE {
                list.last = before;
            }
        });
    }

    /// Finds and ends the seat of this owner and standing that has been idle for the longest time,
    /// other than `newcomer`. Seats at work are taken out of the list. Seats used since the last
    /// search are spared once and move to the end.
    fn oldest(&mut self, owner: u32, standing: Standing, newcomer: u32) -> Option<u32> {
        loop {
            let list = self.owner_of(owner).idle[standing as usize];
            let mut seat = list.first;
            if seat == newcomer {
                seat = self.entry(seat).after;
            }
            if seat == NONE {
                return None;
            }
            let signal = self.entry(seat).signal.clone();
            let flags = signal.flags.load(Ordering::Acquire);
            let next = match flags {
                _ if flags >= WORK => (flags | ASIDE) & !USED,
                _ if flags & USED != 0 => flags & !USED,
                _ => flags | ENDED,
            };
            let changed =
                signal.flags.compare_exchange(flags, next, Ordering::AcqRel, Ordering::Acquire);
            if changed.is_err() {
                continue;
            }
            if next & ENDED != 0 {
                return Some(seat);
            }
            self.unlist(seat);
            if next & ASIDE == 0 {
                self.list(seat);
            }
        }
    }

    /// The owner with the most idle seats of this standing, and their number.
    fn top(&self, standing: Standing) -> Option<Top> {
        let top = self.greediest[standing as usize].last().copied();
        top.map(|(length, _, owner)| Top { length, standing, owner })
    }

    /// Chooses the seat that ends for a newcomer of `owner`.
    fn choose(&mut self, owner: u32, newcomer: u32) -> Option<u32> {
        loop {
            let lists = self.owner_of(owner).idle;
            let all: u32 = lists.iter().map(|list| list.length).sum();
            let idle = lists[Standing::Unproven as usize].length
                + lists[Standing::Anonymous as usize].length;
            // The newcomer's own seat does not count.
            let unproven = self.top(Standing::Unproven);
            let unproven = unproven.filter(|top| top.owner != owner || top.length > 1);
            let anonymous = self.top(Standing::Anonymous);
            let mut best = match (unproven, anonymous) {
                (Some(unproven), Some(anonymous)) if anonymous.length > unproven.length => {
                    Some(anonymous)
                }
                (unproven, anonymous) => unproven.or(anonymous),
            };
            let others = [Standing::Unproven, Standing::Anonymous].into_iter().any(|one| {
                let own = usize::from(lists[one as usize].length > 0);
                self.greediest[one as usize].len() > own
            });
            if !others {
                let proven = [Standing::Proven, Standing::Operator].into_iter();
                let mut proven = proven.filter_map(|standing| self.top(standing));
                best = proven.find(|top| top.owner != owner && top.length >= all).or(best);
            }
            let own = best.is_none_or(|top| top.owner == owner || (top.length < idle && idle > 1));
            if own {
                return STANDINGS.into_iter().find_map(|one| self.oldest(owner, one, newcomer));
            }
            let top = best?;
            if let Some(seat) = self.oldest(top.owner, top.standing, newcomer) {
                return Some(seat);
            }
            // All seats of that list were at work, so they have been taken out of the list.
        }
    }

    /// Chooses the seat of this standing that ends so that `owner` can have one more.
    fn choose_of(&mut self, standing: Standing, owner: u32, newcomer: u32) -> Option<u32> {
        while let Some(top) = self.top(standing) {
            let own = self.owner_of(owner).idle[standing as usize].length;
            let from = if top.length <= own { owner } else { top.owner };
            if let Some(seat) = self.oldest(from, standing, newcomer) {
                return Some(seat);
            }
        }
        None
    }
}

/// An owner with the most idle seats of a standing.
#[derive(Clone, Copy)]
struct Top {
    length: u32,
    standing: Standing,
    owner: u32,
}

impl<K: Eq + Hash + Clone> State<K> {
    /// The number of an owner. Counts one more seat for that owner.
    fn owner(&mut self, key: K) -> u32 {
        if let Some(number) = self.by_key.get(&key).copied() {
            self.owner_mut(number).seats += 1;
            return number;
        }
        let empty = List { first: NONE, last: NONE, length: 0, changed: 0 };
        let owner = Owner { key: key.clone(), seats: 1, idle: [empty; 4] };
        let number = place(&mut self.owners, &mut self.free_owners, owner);
        self.by_key.insert(key, number);
        number
    }

    fn insert(&mut self, owner: u32) -> (u32, Arc<Signal>) {
        let signal = Arc::new(Signal {
            flags: AtomicU32::new(0),
            standing: AtomicU8::new(Standing::Unproven as u8),
            waker: Mutex::new(None),
        });
        let entry = Entry {
            owner,
            standing: Standing::Unproven,
            is_listed: false,
            before: NONE,
            after: NONE,
            signal: signal.clone(),
        };
        let seat = place(&mut self.seats, &mut self.free, entry);
        self.counts[Standing::Unproven as usize] += 1;
        self.list(seat);
        (seat, signal)
    }

    /// Removes a seat, and also its owner if the owner has no other seat.
    fn remove(&mut self, seat: u32) -> Arc<Signal> {
        self.unlist(seat);
        let entry = self.seats[seat as usize].take().expect("a number of a seat that is taken");
        self.free.push(seat);
        self.counts[entry.standing as usize] -= 1;
        self.leave(entry.owner);
        if self.free.len() == self.seats.len() {
            // All seats are free now. Releases the memory of earlier peaks.
            (self.seats, self.free) = Default::default();
            (self.owners, self.free_owners) = Default::default();
            self.by_key = HashMap::new();
        }
        entry.signal
    }

    fn leave(&mut self, number: u32) {
        let owner = self.owner_mut(number);
        owner.seats -= 1;
        if owner.seats == 0 {
            let owner = self.owners[number as usize].take().expect("an owner with seats");
            self.free_owners.push(number);
            self.by_key.remove(&owner.key);
        }
    }
}

/// Stores a value in a free place of a table, and returns the number of the place.
fn place<T>(table: &mut Vec<Option<T>>, free: &mut Vec<u32>, value: T) -> u32 {
    if let Some(number) = free.pop() {
        table[number as usize] = Some(value);
        return number;
    }
    table.push(Some(value));
    u32::try_from(table.len() - 1).expect("the total is less than that")
}

/// A seat. Dropping it frees the seat.
#[derive(Debug)]
pub struct Seat<K: Eq + Hash + Clone> {
    hall: Arc<Hall<K>>,
    number: u32,
    signal: Arc<Signal>,
}

impl<K: Eq + Hash + Clone> Seat<K> {
    /// Whether the seat was given to another holder.
    pub fn is_ended(&self) -> bool {
        self.signal.flags.load(Ordering::Acquire) & ENDED != 0
    }

    /// What is known about the holder.
    pub fn standing(&self) -> Standing {
        let known = self.signal.standing.load(Ordering::Relaxed);
        STANDINGS.into_iter().find(|one| *one as u8 == known).unwrap_or(Standing::Unproven)
    }

    /// Whether any work has begun and has not ended.
    pub fn is_working(&self) -> bool {
        self.signal.flags.load(Ordering::Acquire) >= WORK
    }

    /// Resolves when the seat was given to another holder. The previous holder must then close what
    /// the seat stood for, at once and without waiting.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<K> {
        let signal = self.signal.clone();
        let mut known: Option<Waker> = None;
        std::future::poll_fn(move |cx| signal.poll_ended(&mut known, cx))
    }

    /// Marks the beginning of work, during which the seat cannot end. `None` means that the seat
    /// has already ended, so the work must not begin. Takes no lock.
    pub fn begin(&self) -> Option<Working<'_, K>> {
        let working = self.begin_work();
        let work = Working(self);
        working.then_some(work)
    }

    /// Like [`Seat::begin`], but the caller marks the end with [`Seat::end_work`], whatever this
    /// call returns. Several works may run at once.
    pub fn begin_work(&self) -> bool {
        let flags = self.signal.flags.fetch_add(WORK, Ordering::AcqRel);
        if flags & USED == 0 {
            self.signal.flags.fetch_or(USED, Ordering::AcqRel);
        }
        flags & ENDED == 0
    }

    /// Marks the end of one work.
    pub fn end_work(&self) {
        let flags = self.signal.flags.fetch_sub(WORK, Ordering::AcqRel) - WORK;
        if flags < WORK && flags & ASIDE != 0 {
            self.come_back();
        }
    }

    #[cold]
    fn come_back(&self) {
        let mut state = self.hall.lock();
        let flags = self.signal.flags.fetch_and(!ASIDE, Ordering::AcqRel);
        if flags & ENDED == 0 && flags & ASIDE != 0 {
            state.list(self.number);
        }
    }

    /// Raises the standing of the holder. A standing that is not higher changes nothing. An error
    /// means that the limit of this standing is reached and that none of its seats can end, so the
    /// holder must leave. Takes a lock only if the standing changes.
    pub fn prove(&self, standing: Standing) -> Result<(), Exceeded> {
        if self.signal.standing.load(Ordering::Relaxed) >= standing as u8 {
            return Ok(());
        }
        let mut state = self.hall.lock();
        if self.is_ended() {
            // The seat has ended, so any work of its holder ends too.
            return Ok(());
        }
        let raised = self.raise(&mut state, standing);
        drop(state);
        wake(raised?);
        Ok(())
    }

    /// Like [`Seat::prove`], for a holder that has shown its identity. From now on, the seat counts
    /// for `owner`, and no longer for the owner that took it. If `owner` then holds more than
    /// `owner_max` seats, its oldest idle seats end until it holds no more than that. After an
    /// error, the seat still counts for `owner` until it is dropped.
    pub fn belong(&self, owner: K, owner_max: usize, standing: Standing) -> Result<(), Exceeded> {
        let mut state = self.hall.lock();
        if self.is_ended() {
            return Ok(());
        }
        let number = state.owner(owner);
        let entry = state.entry(self.number);
        let before = entry.owner;
        let was_listed = entry.is_listed;
        state.unlist(self.number);
        state.entry(self.number).owner = number;
        state.leave(before);
        if was_listed {
            state.list(self.number);
        }
        // Refused holders may not have left yet, so ending one seat may not be enough.
        let mut own = Vec::new();
        while state.owner_of(number).seats as usize > owner_max.max(1) {
            let oldest =
                STANDINGS.into_iter().find_map(|one| state.oldest(number, one, self.number));
            let Some(oldest) = oldest else { break };
            own.push(state.remove(oldest));
        }
        let raised = match state.owner_of(number).seats as usize > owner_max.max(1) {
            true => Err(Exceeded::Share),
            false => self.raise(&mut state, standing),
        };
        drop(state);
        own.into_iter().for_each(|ended| wake(Some(ended)));
        wake(raised?);
        Ok(())
    }

    /// Raises the standing, and returns the signal of the seat that ended to make room.
    fn raise(
        &self,
        state: &mut State<K>,
        standing: Standing,
    ) -> Result<Option<Arc<Signal>>, Exceeded> {
        let entry = state.entry(self.number);
        let was_listed = entry.is_listed;
        let before = entry.standing;
        let owner = entry.owner;
        if before >= standing {
            return Ok(None);
        }
        let mut ended = None;
        if state.counts[standing as usize] >= self.hall.most[standing as usize] {
            let greediest = state.choose_of(standing, owner, self.number);
            ended = Some(state.remove(greediest.ok_or(Exceeded::Total)?));
        }
        state.unlist(self.number);
        state.entry(self.number).standing = standing;
        self.signal.standing.store(standing as u8, Ordering::Relaxed);
        state.counts[before as usize] -= 1;
        state.counts[standing as usize] += 1;
        if was_listed {
            state.list(self.number);
        }
        Ok(ended)
    }
}

impl<K: Eq + Hash + Clone> Drop for Seat<K> {
    fn drop(&mut self) {
        let mut state = self.hall.lock();
        if !self.is_ended() {
            state.remove(self.number);
        }
    }
}

impl Signal {
    fn poll_ended(&self, known: &mut Option<Waker>, cx: &mut Context<'_>) -> Poll<()> {
        if self.flags.load(Ordering::Acquire) & ENDED != 0 {
            return Poll::Ready(());
        }
        if known.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        *known = Some(cx.waker().clone());
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        // The seat may have ended before the waker was stored, and then nothing would wake this
        // task.
        match self.flags.load(Ordering::Acquire) & ENDED {
            0 => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }
}

/// Work on a seat. Dropping it marks the end of the work.
#[derive(Debug)]
pub struct Working<'a, K: Eq + Hash + Clone>(&'a Seat<K>);

impl<K: Eq + Hash + Clone> Drop for Working<'_, K> {
    fn drop(&mut self) {
        self.0.end_work();
    }
}

#[cfg(test)]
#[path = "seats_tests.rs"]
mod tests;
