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
    until_ns: u64,
    state: State,
}

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
    pub fn get(&self, key: &Key, now_ns: u64) -> Option<Seen<'_>> {
        let entry = &self.entries[self.find(key)?];
        if entry.until_ns <= now_ns {
            return None;
        }
        Some(match &entry.state {
            State::Running { acked } => Seen::Running { acked: *acked },
            State::Short(length, bytes) => Seen::Answered(&bytes[..usize::from(*length)]),
            State::Long(datagram) => Seen::Answered(datagram),
        })
    }

    /// Notes that it is being served.
    pub fn begin(&mut self, key: Key, now_ns: u64) {
        self.note(key, State::Running { acked: false }, now_ns);
    }

    /// Notes that an empty acknowledgement was sent.
    pub fn acked(&mut self, key: Key, now_ns: u64) {
        self.note(key, State::Running { acked: true }, now_ns);
    }

    /// Notes its answer.
    pub fn answer(&mut self, key: Key, datagram: &[u8], now_ns: u64) {
        self.note(key, State::answered(datagram), now_ns);
    }

    /// Sets what is known of a message; one that was forgotten meanwhile is remembered anew.
    fn note(&mut self, key: Key, state: State, now_ns: u64) {
        // First, so that an entry of this key whose time is over makes room for a new one.
        self.shrink(now_ns);
        self.bytes += state.bytes();
        match self.find(&key) {
            Some(at) => {
                let before = std::mem::replace(&mut self.entries[at].state, state);
                self.bytes -= before.bytes();
            }
            None => {
                let number = self.first.wrapping_add(self.entries.len() as u32);
                self.entries.push_back(Entry { key, until_ns: now_ns + LIFETIME_NS, state });
                let Self { entries, first, index, keys, .. } = self;
                index.insert_unique(keys.hash(&key), number, |number| {
                    keys.hash(&entries[number.wrapping_sub(*first) as usize].key)
                });
            }
        }
        self.shrink(now_ns);
    }

    /// Where the entry of a key is.
    fn find(&self, key: &Key) -> Option<usize> {
        let at = |number: &u32| number.wrapping_sub(self.first) as usize;
        let hash = self.keys.hash(key);
        self.index.find(hash, |number| self.entries[at(number)].key == *key).map(at)
    }

    /// Forgets what is too old or too much.
    fn shrink(&mut self, now_ns: u64) {
        while let Some(oldest) = self.entries.front() {
            if oldest.until_ns > now_ns && self.bytes <= self.bytes_max {
                return;
            }
            let hash = self.keys.hash(&oldest.key);
            if let Ok(found) = self.index.find_entry(hash, |number| *number == self.first) {
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

    #[test]
    fn a_message_is_known_from_its_beginning_to_its_end() {
        let mut exchanges = Exchanges::new(1 << 20);
        let six: Key = ("[2001:db8::1]:5683".parse().unwrap(), 7);
        for key in [key(1, 7), key(1, 8), key(2, 7), six] {
            assert_eq!(exchanges.get(&key, 0), None);
            exchanges.begin(key, 0);
            assert_eq!(exchanges.get(&key, 0), Some(Seen::Running { acked: false }));
            exchanges.acked(key, 1);
            assert_eq!(exchanges.get(&key, 1), Some(Seen::Running { acked: true }));
        }
        for (at, key) in [key(1, 7), key(1, 8), key(2, 7), six].into_iter().enumerate() {
            let answer = vec![at as u8; SHORT_BYTES - 1 + at];
            exchanges.answer(key, &answer, 2);
            assert_eq!(exchanges.get(&key, 3), Some(Seen::Answered(&answer)));
            assert_eq!(exchanges.get(&key, LIFETIME_NS), None, "its time is over");
        }
        exchanges.begin(key(1, 7), LIFETIME_NS);
        let held = exchanges.get(&key(1, 7), LIFETIME_NS);
        assert_eq!(held, Some(Seen::Running { acked: false }), "the id stands for a new message");
        assert_eq!((exchanges.marks(), exchanges.bytes()), (1, ENTRY_BYTES));
    }

    #[test]
    fn the_oldest_is_forgotten_and_an_answer_to_it_is_kept() {
        let mut exchanges = Exchanges::new(100 * ENTRY_BYTES);
        for mid in 0..10_000 {
            exchanges.begin(key(1, mid), u64::from(mid));
            assert!(exchanges.bytes() <= 100 * ENTRY_BYTES);
            assert_eq!(exchanges.index.len(), exchanges.entries.len());
        }
        assert_eq!(exchanges.get(&key(1, 9_899), 10_000), None);
        for mid in 9_900..10_000 {
            assert!(exchanges.get(&key(1, mid), 10_000).is_some(), "{mid}");
        }
        exchanges.answer(key(1, 5), b"late", 10_000);
        assert_eq!(exchanges.get(&key(1, 5), 10_000), Some(Seen::Answered(b"late")));
        assert!(exchanges.bytes() <= 100 * ENTRY_BYTES);
    }
}
