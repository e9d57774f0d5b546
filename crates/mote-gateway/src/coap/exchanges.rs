//! Deduplication (RFC 7252, 4.5): a message that arrives again is not served again.
//! Pure and bounded: at high rates the oldest exchanges are forgotten before their time, which a
//! client meets only when it repeats a message later than its own retransmission span.
//!
//! Messages are remembered in the order in which they came, so what is too old or too much is
//! always at the front; an index beside it finds one by its key.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

use hashbrown::HashTable;

/// A message of one peer.
pub type Key = (SocketAddr, u16);

/// What is known of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen<'a> {
    /// It is being served; `acked` when an empty acknowledgement was sent.
    Running {
        /// See there.
        acked: bool,
    },
    /// It was answered with this.
    Answered(&'a [u8]),
}

/// How long a confirmable message's id stands for it: EXCHANGE_LIFETIME (RFC 7252, 4.8.2).
pub const LIFETIME_NS: u64 = 247_000_000_000;
/// Counted per exchange beside the bytes of its answer; the entry and its share of the index.
const ENTRY_BYTES: usize = 160;
/// Answers up to this length, which most are, lie in the entry itself.
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
    hash: u64,
    until_ns: u64,
    state: State,
}

/// That a message is not known; see [`Exchanges::begin`].
#[derive(Debug, PartialEq, Eq)]
pub struct Absent {
    hash: u64,
}

/// Where a message was noted. It may have been forgotten since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noted(u32);

/// Messages seen lately.
pub struct Exchanges {
    /// Oldest first; all have the same lifetime, so also in the order in which they end.
    entries: VecDeque<Entry>,
    /// Number of the oldest entry. Numbers wrap; there are never so many at once.
    first: u32,
    /// Numbers of entries by key. Only a word per entry, so that finding stays in the cache.
    index: HashTable<u32>,
    keys: Keys,
    bytes: usize,
    bytes_max: usize,
}

/// Hashes keys: keyed by a random per start, since peers choose what is hashed.
struct Keys(RandomState);

impl Keys {
    fn hash(&self, (peer, mid): &Key) -> u64 {
        let low = u64::from(peer.port()) << 16 | u64::from(*mid);
        match peer {
            SocketAddr::V4(peer) => self.0.hash_one(u64::from(peer.ip().to_bits()) << 32 | low),
            SocketAddr::V6(peer) => {
                self.0.hash_one((peer.ip().to_bits(), u64::from(peer.scope_id()) << 32 | low))
            }
        }
    }
}

impl Exchanges {
    /// Remembers at most `bytes_max` bytes of exchanges.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            first: 0,
            index: HashTable::new(),
            keys: Keys(RandomState::new()),
            bytes: 0,
            bytes_max,
        }
    }

    /// What is known of this message.
    pub fn get(&self, key: &Key, now_ns: u64) -> Result<Seen<'_>, Absent> {
        let hash = self.keys.hash(key);
        let found = self.find(key, hash).map(|at| &self.entries[at]);
        let Some(entry) = found.filter(|entry| entry.until_ns > now_ns) else {
            return Err(Absent { hash });
        };
        Ok(match &entry.state {
            State::Running { acked } => Seen::Running { acked: *acked },
            State::Short(length, bytes) => Seen::Answered(&bytes[..usize::from(*length)]),
            State::Long(datagram) => Seen::Answered(datagram),
        })
    }

    /// Notes that a message is being served which [`Exchanges::get`] has just not found.
    pub fn begin(&mut self, key: Key, absent: Absent, now_ns: u64) -> Noted {
        self.add(key, absent.hash, State::Running { acked: false }, now_ns)
    }

    /// Notes that an empty acknowledgement was sent.
    pub fn acked(&mut self, noted: Noted, key: Key, now_ns: u64) {
        self.change(noted, key, State::Running { acked: true }, now_ns);
    }

    /// Notes its answer.
    pub fn answer(&mut self, noted: Noted, key: Key, datagram: &[u8], now_ns: u64) {
        self.change(noted, key, State::answered(datagram), now_ns);
    }

    /// Sets what is known of a message; one that was forgotten meanwhile is remembered anew.
    fn change(&mut self, noted: Noted, key: Key, state: State, now_ns: u64) {
        self.shrink(now_ns);
        let at = noted.0.wrapping_sub(self.first) as usize;
        // Where it was noted: the index, which is rarely in the cache, is not asked.
        let is_there = self.entries.get(at).is_some_and(|entry| entry.key == key);
        let hash = if is_there { 0 } else { self.keys.hash(&key) };
        let at = if is_there { Some(at) } else { self.find(&key, hash) };
        let Some(at) = at else {
            self.add(key, hash, state, now_ns);
            return;
        };
        self.bytes += state.bytes();
        self.bytes -= std::mem::replace(&mut self.entries[at].state, state).bytes();
        self.shrink(now_ns);
    }

    /// Where the entry of a key is.
    fn find(&self, key: &Key, hash: u64) -> Option<usize> {
        let at = |number: &u32| number.wrapping_sub(self.first) as usize;
        self.index.find(hash, |number| self.entries[at(number)].key == *key).map(at)
    }

    fn add(&mut self, key: Key, hash: u64, state: State, now_ns: u64) -> Noted {
        // First, so that an entry of this key whose time is over makes room for a new one.
        self.shrink(now_ns);
        self.bytes += state.bytes();
        let number = self.first.wrapping_add(self.entries.len() as u32);
        self.entries.push_back(Entry { key, hash, until_ns: now_ns + LIFETIME_NS, state });
        let Self { entries, first, index, .. } = self;
        index.insert_unique(hash, number, |number| {
            entries[number.wrapping_sub(*first) as usize].hash
        });
        self.shrink(now_ns);
        Noted(number)
    }

    /// Forgets what is too old or too much.
    fn shrink(&mut self, now_ns: u64) {
        while let Some(oldest) = self.entries.front() {
            if oldest.until_ns > now_ns && self.bytes <= self.bytes_max {
                return;
            }
            if let Ok(found) = self.index.find_entry(oldest.hash, |number| *number == self.first) {
                found.remove();
            }
            self.bytes -= oldest.state.bytes();
            self.entries.pop_front();
            self.first = self.first.wrapping_add(1);
        }
    }

    /// Bytes held now.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Entries held now.
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
        let absent = exchanges.get(&key, now_ns).expect_err("not known");
        exchanges.begin(key, absent, now_ns)
    }

    #[test]
    fn a_message_is_known_from_its_beginning_to_its_end() {
        let mut exchanges = Exchanges::new(1 << 20);
        let six: Key = ("[2001:db8::1]:5683".parse().unwrap(), 7);
        let keys = [key(1, 7), key(1, 8), key(2, 7), six];
        let noted = keys.map(|key| {
            let noted = begin(&mut exchanges, key, 0);
            assert_eq!(exchanges.get(&key, 0), Ok(Seen::Running { acked: false }));
            exchanges.acked(noted, key, 1);
            assert_eq!(exchanges.get(&key, 1), Ok(Seen::Running { acked: true }));
            noted
        });
        for (at, (key, noted)) in keys.into_iter().zip(noted).enumerate() {
            let answer = vec![at as u8; SHORT_BYTES - 1 + at];
            exchanges.answer(noted, key, &answer, 2);
            assert_eq!(exchanges.get(&key, 3), Ok(Seen::Answered(&answer)));
            assert!(exchanges.get(&key, LIFETIME_NS).is_err(), "its time is over");
        }
        begin(&mut exchanges, key(1, 7), LIFETIME_NS);
        let held = exchanges.get(&key(1, 7), LIFETIME_NS);
        assert_eq!(held, Ok(Seen::Running { acked: false }), "the id stands for a new message");
        assert_eq!((exchanges.marks(), exchanges.bytes()), (1, ENTRY_BYTES));
    }

    #[test]
    fn the_oldest_is_forgotten_and_an_answer_to_it_is_kept() {
        let mut exchanges = Exchanges::new(100 * ENTRY_BYTES);
        let mut noted = Vec::new();
        for mid in 0..10_000 {
            noted.push(begin(&mut exchanges, key(1, mid), u64::from(mid)));
            assert!(exchanges.bytes() <= 100 * ENTRY_BYTES);
            assert_eq!(exchanges.index.len(), exchanges.entries.len());
        }
        assert!(exchanges.get(&key(1, 9_899), 10_000).is_err());
        for mid in 9_900..10_000 {
            assert!(exchanges.get(&key(1, mid), 10_000).is_ok(), "{mid}");
        }
        // The second time it is where the first put it, not where it began.
        for answer in [b"late", b"last"] {
            exchanges.answer(noted[5], key(1, 5), answer, 10_000);
            assert_eq!(exchanges.get(&key(1, 5), 10_000), Ok(Seen::Answered(answer)));
        }
        assert!(exchanges.bytes() <= 100 * ENTRY_BYTES);
    }
}
