//! Deduplication (RFC 7252, 4.5): a message that arrives again is not served again. A message is
//! recognised by the whole datagram and not only by its id. Devices that have lost their state
//! reuse ids, and the answer to an old sensor reading must not confirm a new one. Pure and bounded.
//! At high rates the oldest exchanges are forgotten early, which affects a client only if it
//! repeats a message later than its own retransmission span.
//!
//! Messages are kept in order of arrival in two lists: one of all messages, and one of those with
//! the same [`Owner`]. An owner that has used up its share loses its own oldest message, so it
//! cannot make the node forget the messages of other owners. An index finds a message by its key.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};

use hashbrown::HashTable;
use mote_core::shares::address_owner;
use slab::Slab;

use super::message::DATAGRAM_BYTES_MAX;

/// A message of one peer.
pub type Key = (SocketAddr, u16);

/// What is known about a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen<'a> {
    /// The message is being served.
    Running {
        /// Whether an empty acknowledgement has been sent.
        acked: bool,
    },
    /// The message was answered with this datagram.
    Answered(&'a [u8]),
}

/// The owner of messages that share one part of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Owner {
    /// All sources that may be forged. They count as one owner, because an attacker who can forge
    /// one address can forge many.
    Unproven,
    /// A source whose address is proven.
    Address(IpAddr),
    /// A socket on this machine. The address alone is not enough to identify it, because all local
    /// programs share the address.
    Local(SocketAddr),
}

impl Owner {
    /// The owner of the messages from a peer that has proved that it receives what is sent to it.
    pub fn proven(peer: SocketAddr) -> Self {
        Self::of(peer, true)
    }

    /// The owner of the messages from `peer`. For `proven`, see [`Owner::proven`].
    pub fn of(peer: SocketAddr, proven: bool) -> Self {
        match (proven, peer.ip().is_loopback()) {
            (false, _) => Self::Unproven,
            (true, true) => Self::Local(peer),
            (true, false) => Self::Address(address_owner(peer.ip())),
        }
    }
}

/// How long the id of a confirmable message identifies the message: EXCHANGE_LIFETIME (RFC 7252,
/// 4.8.2).
pub const LIFETIME_NS: u64 = 247_000_000_000;
/// The bytes counted per exchange in addition to its answer: the entry itself and its share of the
/// index.
const ENTRY_BYTES: usize = 200;
/// Answers up to this length are stored in the entry itself. Most answers are this short.
const SHORT_BYTES: usize = 46;

enum State {
    Running { acked: bool },
    Short(u8, [u8; SHORT_BYTES]),
    Long(Box<[u8]>),
}

impl State {
    fn answered(datagram: &[u8]) -> Self {
        let mut short = [0; SHORT_BYTES];
        match short.get_mut(..datagram.len()) {
            Some(place) => {
                place.copy_from_slice(datagram);
                Self::Short(datagram.len() as u8, short)
            }
            None => Self::Long(datagram.into()),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Running { .. } => ENTRY_BYTES,
            Self::Short(length, _) => ENTRY_BYTES + usize::from(*length),
            Self::Long(datagram) => ENTRY_BYTES + datagram.len(),
        }
    }
}

struct Entry {
    key: Key,
    /// The hash of the datagram.
    print: u64,
    hash: u64,
    until_ns: u64,
    state: State,
    /// The place of the entry's owner.
    owner: u32,
    /// The neighbours in the list of all messages, and in the list of the owner's messages.
    all: Neighbours,
    own: Neighbours,
}

/// The places of the older and the newer entry in a list.
#[derive(Clone, Copy)]
struct Neighbours {
    older: u32,
    newer: u32,
}

/// Stands for a missing place.
const NONE: u32 = u32::MAX;
const ALONE: Neighbours = Neighbours { older: NONE, newer: NONE };

/// The two ends of a list.
#[derive(Clone, Copy)]
struct Ends {
    oldest: u32,
    newest: u32,
}

const EMPTY: Ends = Ends { oldest: NONE, newest: NONE };

struct Owned {
    owner: Owner,
    order: Ends,
    bytes: usize,
}

/// Proof that a message is not known yet; see [`Exchanges::begin`].
#[derive(Debug, PartialEq, Eq)]
pub struct Absent {
    hash: u64,
    print: u64,
}

/// The place where a message was noted. The message may have been forgotten since then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noted {
    place: u32,
    print: u64,
}

/// The messages that were received recently.
pub struct Exchanges {
    entries: Slab<Entry>,
    /// All entries have the same lifetime, so this is also the order in which they expire.
    order: Ends,
    /// The places of entries by key. Each entry takes only one word, so the index stays in the
    /// cache during a search.
    index: HashTable<u32>,
    keys: Keys,
    /// The owners of entries, and the place of each owner.
    owned: Slab<Owned>,
    owners: HashMap<Owner, u32>,
    bytes: usize,
    bytes_max: usize,
    /// The most bytes that one owner may hold.
    share_max: usize,
    /// The place of the owner that held the most bytes at the last check. That owner may have been
    /// removed since then, or its place reused.
    heaviest: u32,
}

/// Hashes keys and datagrams. The hash is keyed by a random number that changes with each start,
/// because peers choose the hashed values.
struct Keys(RandomState);

impl Keys {
    fn hash(&self, (peer, mid): &Key, print: u64) -> u64 {
        let low = u64::from(peer.port()) << 16 | u64::from(*mid);
        match peer {
            SocketAddr::V4(peer) => {
                self.0.hash_one((u64::from(peer.ip().to_bits()) << 32 | low, print))
            }
            SocketAddr::V6(peer) => {
                let low = u64::from(peer.scope_id()) << 32 | low;
                self.0.hash_one((peer.ip().to_bits(), low, print))
            }
        }
    }
}

impl Exchanges {
    /// Keeps at most `bytes_max` bytes of exchanges, of which one owner may use half.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            entries: Slab::new(),
            order: EMPTY,
            index: HashTable::new(),
            keys: Keys(RandomState::new()),
            owned: Slab::new(),
            owners: HashMap::new(),
            bytes: 0,
            bytes_max,
            share_max: bytes_max / 2,
            heaviest: NONE,
        }
    }

    /// Returns what is known about this message.
    pub fn get(&self, key: &Key, datagram: &[u8], now_ns: u64) -> Result<Seen<'_>, Absent> {
        let print = self.keys.0.hash_one(datagram);
        let hash = self.keys.hash(key, print);
        let found = self.find(key, print, hash).map(|at| &self.entries[at as usize]);
        let Some(entry) = found.filter(|entry| entry.until_ns > now_ns) else {
            return Err(Absent { hash, print });
        };
        Ok(match &entry.state {
            State::Running { acked } => Seen::Running { acked: *acked },
            State::Short(length, bytes) => Seen::Answered(&bytes[..usize::from(*length)]),
            State::Long(datagram) => Seen::Answered(datagram),
        })
    }

    /// Whether another message from an unproven source would make the node forget an earlier such
    /// message too early.
    pub fn is_crowded(&self, now_ns: u64) -> bool {
        let Some(at) = self.owners.get(&Owner::Unproven) else { return false };
        let unproven = &self.owned[*at as usize];
        let oldest = self.entries.get(unproven.order.oldest as usize);
        unproven.bytes + DATAGRAM_BYTES_MAX >= self.share_max
            && oldest.is_some_and(|oldest| oldest.until_ns > now_ns)
    }

    /// Notes that a message is now being served. `absent` shows that [`Exchanges::get`] did not
    /// find it.
    pub fn begin(&mut self, key: Key, owner: Owner, absent: Absent, now_ns: u64) -> Noted {
        self.add(key, owner, absent, State::Running { acked: false }, now_ns)
    }

    /// Notes that an empty acknowledgement has been sent.
    pub fn acked(&mut self, noted: Noted, key: Key, owner: Owner, now_ns: u64) {
        self.change(noted, key, owner, State::Running { acked: true }, now_ns);
    }

    pub fn answer(&mut self, noted: Noted, key: Key, owner: Owner, datagram: &[u8], now_ns: u64) {
        self.change(noted, key, owner, State::answered(datagram), now_ns);
    }

    /// Changes the state of a message. If the message has been forgotten meanwhile, it is added
    /// again.
    fn change(&mut self, noted: Noted, key: Key, owner: Owner, state: State, now_ns: u64) {
        self.expire(now_ns);
        // The noted place is checked first, because the index is rarely in the cache.
        let Noted { place, print } = noted;
        let entry = self.entries.get(place as usize);
        let is_there = entry.is_some_and(|entry| entry.key == key && entry.print == print);
        let hash = if is_there { 0 } else { self.keys.hash(&key, print) };
        let at = if is_there { Some(place) } else { self.find(&key, print, hash) };
        let Some(at) = at else {
            self.add(key, owner, Absent { hash, print }, state, now_ns);
            return;
        };
        let entry = &mut self.entries[at as usize];
        let more = state.bytes();
        let owned = entry.owner;
        let less = std::mem::replace(&mut entry.state, state).bytes();
        self.bytes = self.bytes + more - less;
        let owned = &mut self.owned[owned as usize];
        owned.bytes = owned.bytes + more - less;
        let owned = self.entries[at as usize].owner;
        self.shrink(owned);
    }

    /// Finds the place of a message's entry.
    fn find(&self, key: &Key, print: u64, hash: u64) -> Option<u32> {
        let is_it = |at: &u32| {
            let entry = &self.entries[*at as usize];
            entry.key == *key && entry.print == print
        };
        self.index.find(hash, is_it).copied()
    }

    fn add(&mut self, key: Key, owner: Owner, absent: Absent, state: State, now_ns: u64) -> Noted {
        let Absent { hash, print } = absent;
        // Done first, so that an expired entry with the same key does not stand in the way.
        self.expire(now_ns);
        let owned = self.place_of(owner);
        let bytes = state.bytes();
        let until_ns = now_ns + LIFETIME_NS;
        let all = ALONE;
        let own = ALONE;
        let entry = Entry { key, print, hash, until_ns, state, owner: owned, all, own };
        let at = self.entries.insert(entry) as u32;
        self.bytes += bytes;
        self.owned[owned as usize].bytes += bytes;
        self.append(at, owned);
        let Self { entries, index, .. } = self;
        index.insert_unique(hash, at, |at| entries[*at as usize].hash);
        self.shrink(owned);
        Noted { place: at, print }
    }

    fn place_of(&mut self, owner: Owner) -> u32 {
        let owned = &mut self.owned;
        let new = || owned.insert(Owned { owner, order: EMPTY, bytes: 0 }) as u32;
        *self.owners.entry(owner).or_insert_with(new)
    }

    /// Appends an entry at the newer end of both lists.
    fn append(&mut self, at: u32, owned: u32) {
        let all_before = std::mem::replace(&mut self.order.newest, at);
        let order = &mut self.owned[owned as usize].order;
        let own_before = std::mem::replace(&mut order.newest, at);
        if own_before == NONE {
            order.oldest = at;
        } else {
            self.entries[own_before as usize].own.newer = at;
        }
        if all_before == NONE {
            self.order.oldest = at;
        } else {
            self.entries[all_before as usize].all.newer = at;
        }
        let entry = &mut self.entries[at as usize];
        (entry.all.older, entry.own.older) = (all_before, own_before);
    }

    /// Forgets expired entries.
    fn expire(&mut self, now_ns: u64) {
        while let Some(oldest) = self.entries.get(self.order.oldest as usize)
            && oldest.until_ns <= now_ns
        {
            self.remove(self.order.oldest);
        }
    }

    /// Forgets entries beyond the limits, beginning with those of this owner.
    fn shrink(&mut self, owned: u32) {
        while let Some(Owned { order, bytes, .. }) = self.owned.get(owned as usize)
            && *bytes > self.share_max
        {
            self.remove(order.oldest);
        }
        let holds = |place: u32| self.owned.get(place as usize).map_or(0, |owned| owned.bytes);
        if holds(owned) > holds(self.heaviest) {
            self.heaviest = owned;
        }
        while self.bytes > self.bytes_max {
            // The owner that added a message loses its oldest entry. If that owner holds little,
            // the owner that holds most loses one instead.
            let own = self.owned.get(owned as usize);
            let own = own.filter(|own| own.bytes > self.bytes_max / 8);
            let from = own.or_else(|| self.owned.get(self.heaviest as usize));
            let at = from.map_or(self.order.oldest, |from| from.order.oldest);
            self.remove(at);
        }
    }

    fn remove(&mut self, at: u32) {
        let Some(entry) = self.entries.try_remove(at as usize) else { return };
        if let Ok(found) = self.index.find_entry(entry.hash, |found| *found == at) {
            found.remove();
        }
        let bytes = entry.state.bytes();
        self.bytes -= bytes;
        for (neighbours, is_own) in [(entry.all, false), (entry.own, true)] {
            let Neighbours { older, newer } = neighbours;
            if let Some(older) = self.entries.get_mut(older as usize) {
                if is_own { older.own.newer = newer } else { older.all.newer = newer }
            }
            if let Some(newer) = self.entries.get_mut(newer as usize) {
                if is_own { newer.own.older = older } else { newer.all.older = older }
            }
            let ends = match is_own {
                true => &mut self.owned[entry.owner as usize].order,
                false => &mut self.order,
            };
            if ends.oldest == at {
                ends.oldest = newer;
            }
            if ends.newest == at {
                ends.newest = older;
            }
        }
        let owned = &mut self.owned[entry.owner as usize];
        owned.bytes -= bytes;
        if owned.order.oldest == NONE {
            let owned = self.owned.remove(entry.owner as usize);
            self.owners.remove(&owned.owner);
        }
    }

    /// The number of bytes held now.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of entries held now.
    pub fn marks(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16, mid: u16) -> Key {
        (([192, 0, 2, 1], port).into(), mid)
    }

    fn begin(exchanges: &mut Exchanges, key: Key, now_ns: u64) -> Noted {
        let absent = exchanges.get(&key, b"", now_ns).expect_err("not known");
        exchanges.begin(key, Owner::proven(key.0), absent, now_ns)
    }

    #[test]
    fn a_message_is_known_from_its_beginning_to_its_end() {
        let mut exchanges = Exchanges::new(1 << 20);
        let six: Key = ("[2001:db8::1]:5683".parse().unwrap(), 7);
        let keys = [key(1, 7), key(1, 8), key(2, 7), six];
        let noted = keys.map(|key| {
            let noted = begin(&mut exchanges, key, 0);
            assert_eq!(exchanges.get(&key, b"", 0), Ok(Seen::Running { acked: false }));
            exchanges.acked(noted, key, Owner::proven(key.0), 1);
            assert_eq!(exchanges.get(&key, b"", 1), Ok(Seen::Running { acked: true }));
            noted
        });
        for (at, (key, noted)) in keys.into_iter().zip(noted).enumerate() {
            let answer = vec![at as u8; SHORT_BYTES - 1 + at];
            exchanges.answer(noted, key, Owner::proven(key.0), &answer, 2);
            assert_eq!(exchanges.get(&key, b"", 3), Ok(Seen::Answered(&answer)));
            assert!(exchanges.get(&key, b"", LIFETIME_NS).is_err(), "its time is over");
        }
        begin(&mut exchanges, key(1, 7), LIFETIME_NS);
        let held = exchanges.get(&key(1, 7), b"", LIFETIME_NS);
        assert_eq!(held, Ok(Seen::Running { acked: false }), "the id stands for a new message");
        assert_eq!((exchanges.marks(), exchanges.bytes()), (1, ENTRY_BYTES));
    }

    #[test]
    fn another_datagram_with_the_same_id_is_another_message() {
        let mut exchanges = Exchanges::new(1 << 20);
        let (key, owner) = (key(1, 7), Owner::proven(key(1, 7).0));
        let noted = [&b"t=20.1"[..], b"t=35.7"].map(|datagram| {
            let absent = exchanges.get(&key, datagram, 0).expect_err("not known");
            exchanges.begin(key, owner, absent, 0)
        });
        exchanges.answer(noted[0], key, owner, b"stored 20.1", 1);
        assert_eq!(exchanges.get(&key, b"t=20.1", 2), Ok(Seen::Answered(b"stored 20.1")));
        assert_eq!(exchanges.get(&key, b"t=35.7", 2), Ok(Seen::Running { acked: false }));
        exchanges.answer(noted[1], key, owner, b"stored 35.7", 3);
        assert_eq!(exchanges.get(&key, b"t=20.1", 4), Ok(Seen::Answered(b"stored 20.1")));
        assert_eq!(exchanges.get(&key, b"t=35.7", 4), Ok(Seen::Answered(b"stored 35.7")));
    }

    #[test]
    fn the_oldest_is_forgotten_and_an_answer_to_it_is_kept() {
        // One owner may use half of the memory.
        let mut exchanges = Exchanges::new(200 * ENTRY_BYTES);
        let mut noted = Vec::new();
        for mid in 0..10_000 {
            noted.push(begin(&mut exchanges, key(1, mid), u64::from(mid)));
            assert!(exchanges.bytes() <= 100 * ENTRY_BYTES);
            assert_eq!(exchanges.index.len(), exchanges.entries.len());
        }
        assert!(exchanges.get(&key(1, 9_899), b"", 10_000).is_err());
        for mid in 9_900..10_000 {
            assert!(exchanges.get(&key(1, mid), b"", 10_000).is_ok(), "{mid}");
        }
        // The second answer changes the entry at the place where the first answer put it, not where
        // the message was first noted.
        for answer in [b"late", b"last"] {
            exchanges.answer(noted[5], key(1, 5), Owner::proven(key(1, 5).0), answer, 10_000);
            assert_eq!(exchanges.get(&key(1, 5), b"", 10_000), Ok(Seen::Answered(answer)));
        }
        assert!(exchanges.bytes() <= 100 * ENTRY_BYTES);
    }

    #[test]
    fn what_others_send_does_not_make_a_message_forgotten() {
        let mut exchanges = Exchanges::new(200 * ENTRY_BYTES);
        let mine: Key = ("198.51.100.7:5683".parse().unwrap(), 7);
        begin(&mut exchanges, mine, 0);
        // All forged sources count as one owner, however many there are. All ports of one address
        // count as one owner, too.
        for n in 0..10_000u32 {
            let forged: Key = ((n.to_be_bytes(), 5_683).into(), 1);
            let absent = exchanges.get(&forged, b"", 1).expect_err("not known");
            assert_eq!(exchanges.is_crowded(1), n >= 94, "{n}");
            exchanges.begin(forged, Owner::Unproven, absent, 1);
            begin(&mut exchanges, key(n as u16, (n >> 8) as u16), 1);
            assert!(exchanges.bytes() <= 200 * ENTRY_BYTES);
            assert_eq!(exchanges.index.len(), exchanges.entries.len());
            assert_eq!(exchanges.get(&mine, b"", 1), Ok(Seen::Running { acked: false }), "{n}");
        }
        assert_eq!((exchanges.owners.len(), exchanges.owned.len()), (3, 3));
        assert!(exchanges.get(&key(1, 0), b"", LIFETIME_NS + 1).is_err());
        exchanges.expire(LIFETIME_NS + 1);
        assert_eq!((exchanges.marks(), exchanges.bytes(), exchanges.owners.len()), (0, 0, 0));
        assert!(!exchanges.is_crowded(LIFETIME_NS + 1));
    }
}
