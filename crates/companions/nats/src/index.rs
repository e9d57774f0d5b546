//! What a node knows about the entries in a namespace: their keys, sequence numbers, sizes and
//! times of expiry, but not their values. Pure.
//!
//! The stream is authoritative, and the index may be behind it. A change therefore requires the
//! server to check that the last message of the subject is the known one. If it is not, the node
//! looks again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use bytes::Bytes;
use mote_core::state::{Quota, StateError};

/// The longest value that is kept for the next increment: a 64-bit number.
const NUMBER_BYTES_MAX: usize = 20;

/// The last message of a key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// The sequence number of the message, which is the version of the entry.
    pub(crate) sequence: u64,
    /// The bytes of the key and the value.
    pub(crate) bytes: u64,
    /// When the entry expires, in milliseconds since 1970. 0 means never.
    pub(crate) expires_ms: u64,
    /// Whether the message says that the key was removed.
    pub(crate) is_removed: bool,
    /// The value, if it is short and this node has written or read it.
    pub(crate) value: Option<Bytes>,
}

impl Held {
    /// Whether the entry exists at this time.
    pub(crate) fn lives(&self, now_ms: u64) -> bool {
        self.sequence > 0 && !self.is_removed && (self.expires_ms == 0 || self.expires_ms > now_ms)
    }

    /// The version that a condition is compared with. 0 if there is no entry.
    pub(crate) fn version(&self, now_ms: u64) -> u64 {
        if self.lives(now_ms) { self.sequence } else { 0 }
    }

    pub(crate) fn keeping(mut self, value: &Bytes) -> Self {
        if value.len() <= NUMBER_BYTES_MAX {
            self.value = Some(Bytes::copy_from_slice(value));
        }
        self
    }
}

/// The last messages of all keys.
#[derive(Debug, Default)]
pub(crate) struct Index {
    held: BTreeMap<String, Held>,
    by_end: BTreeSet<(u64, String)>,
    removed: VecDeque<Removed>,
    keys: u64,
    bytes: u64,
    /// The sequence number of the last message that marks everything before it as removed.
    cleared: u64,
    /// The last sequence number that the follower has reached.
    pub(crate) reached: u64,
    /// What writes in progress will add.
    pending_keys: u64,
    pending_bytes: u64,
}

/// A message that says that a key was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Removed {
    /// When the message itself may be removed, in milliseconds since 1970.
    pub(crate) due_ms: u64,
    pub(crate) sequence: u64,
    pub(crate) key: String,
}

/// Room in the quota for a write in progress.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reserved {
    keys: u64,
    bytes: u64,
    /// Whether the quota is so nearly used up that the write must first see all writes of other
    /// nodes.
    pub(crate) is_strict: bool,
}

impl Index {
    /// The last message of a key. Without a message, its sequence number is 0.
    pub(crate) fn get(&self, key: &str) -> Held {
        self.held.get(key).cloned().unwrap_or_default()
    }

    /// Learns about a message. Messages may be learnt in any order and more than once.
    pub(crate) fn learn(&mut self, key: &str, held: Held) {
        let known = self.held.get(key);
        if held.sequence <= self.cleared || known.is_some_and(|one| one.sequence > held.sequence) {
            return;
        }
        if let Some(known) = known
            && known.sequence == held.sequence
            && (held.value.is_none() || known.value.is_some())
        {
            return;
        }
        self.forget(key);
        if !held.is_removed {
            self.keys += 1;
            self.bytes += held.bytes;
            if held.expires_ms > 0 {
                self.by_end.insert((held.expires_ms, key.to_owned()));
            }
        }
        self.held.insert(key.to_owned(), held);
    }

    /// Records that the stream has no message of this key.
    pub(crate) fn forget(&mut self, key: &str) {
        let Some(held) = self.held.remove(key) else { return };
        if !held.is_removed {
            self.keys -= 1;
            self.bytes -= held.bytes;
            self.by_end.remove(&(held.expires_ms, key.to_owned()));
        }
    }

    /// Records that all messages before this sequence number were removed.
    pub(crate) fn clear(&mut self, sequence: u64) {
        self.cleared = self.cleared.max(sequence);
        let gone = |held: &Held| held.sequence < sequence;
        let keys = self.held.iter().filter(|(_, held)| gone(held)).map(|(key, _)| key.clone());
        for key in keys.collect::<Vec<_>>() {
            self.forget(&key);
        }
    }

    /// Takes over what an older index knows and this one cannot have seen.
    pub(crate) fn absorb(&mut self, older: Index) {
        self.cleared = self.cleared.max(older.cleared);
        let later = older.held.into_iter().filter(|(_, held)| held.sequence > self.reached);
        for (key, held) in later.collect::<Vec<_>>() {
            self.learn(&key, held);
        }
        (self.pending_keys, self.pending_bytes) = (older.pending_keys, older.pending_bytes);
    }

    /// Remembers that a removal message must itself be removed later.
    pub(crate) fn remove_later(&mut self, removed: Removed) {
        self.removed.push_back(removed);
    }

    /// Returns the sequence numbers of removal messages that every node has seen by now, and
    /// forgets these messages.
    pub(crate) fn take_removed(&mut self, now_ms: u64, most: usize) -> Vec<u64> {
        let mut sequences = Vec::new();
        while sequences.len() < most
            && self.removed.front().is_some_and(|one| one.due_ms <= now_ms)
            && let Some(removed) = self.removed.pop_front()
        {
            if self.held.get(&removed.key).is_some_and(|held| held.sequence == removed.sequence) {
                self.forget(&removed.key);
            }
            sequences.push(removed.sequence);
        }
        sequences
    }

    /// Forgets entries that have expired, and returns their sequence numbers.
    pub(crate) fn take_expired(&mut self, now_ms: u64, most: usize) -> Vec<u64> {
        let mut sequences = Vec::new();
        while sequences.len() < most
            && let Some((end, key)) = self.by_end.first().cloned()
            && end <= now_ms
        {
            sequences.push(self.get(&key).sequence);
            self.forget(&key);
        }
        sequences
    }

    /// The number of keys, and the bytes of keys and values.
    pub(crate) fn usage(&self) -> (u64, u64) {
        (self.keys, self.bytes)
    }

    /// Reserves room for an entry of `bytes`, by the same rules as for the state in one file.
    pub(crate) fn reserve(
        &mut self,
        key: &str,
        bytes: u64,
        quota: Quota,
    ) -> Result<Reserved, StateError> {
        let old = self.held.get(key).filter(|held| !held.is_removed);
        let is_new = old.is_none();
        let old = old.map_or(0, |held| held.bytes);
        let more = bytes.saturating_sub(old);
        let keys = self.keys + self.pending_keys;
        let held = self.bytes + self.pending_bytes;
        if is_new && keys + 1 > quota.keys {
            let text = format!("the namespace holds {} keys, its most", quota.keys);
            return Err(StateError::Full(text));
        }
        if more > 0 && held + more > quota.bytes {
            let text = format!(
                "the namespace holds {held} bytes of keys and values of its quota of {}",
                quota.bytes
            );
            return Err(StateError::Full(text));
        }
        // An eighth of the quota is left for writes of other nodes that this node has not yet
        // learnt about.
        let is_close = |held: u64, most: u64| held > most - most / 8;
        let is_strict = (is_new && is_close(keys + 1, quota.keys))
            || (more > 0 && is_close(held + more, quota.bytes));
        let reserved = Reserved { keys: is_new.into(), bytes: more, is_strict };
        self.pending_keys += reserved.keys;
        self.pending_bytes += reserved.bytes;
        Ok(reserved)
    }

    /// Gives room back.
    pub(crate) fn release(&mut self, reserved: Reserved) {
        self.pending_keys = self.pending_keys.saturating_sub(reserved.keys);
        self.pending_bytes = self.pending_bytes.saturating_sub(reserved.bytes);
    }

    /// The entries with a prefix and after a key, in the byte order of their keys.
    pub(crate) fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        now_ms: u64,
    ) -> impl Iterator<Item = (&'a String, &'a Held)> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        self.held
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(prefix))
            .filter(move |(_, held)| held.lives(now_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(sequence: u64, bytes: u64, expires_ms: u64) -> Held {
        Held { sequence, bytes, expires_ms, ..Default::default() }
    }

    #[test]
    fn the_latest_message_of_a_key_counts_in_whatever_order_it_is_learnt() {
        let mut index = Index::default();
        index.learn("a", held(5, 10, 0));
        index.learn("a", held(3, 100, 0));
        index.learn("b", held(4, 7, 0));
        assert_eq!((index.usage(), index.get("a").sequence), ((2, 17), 5));
        index.learn("a", Held { sequence: 6, is_removed: true, ..Default::default() });
        index.learn("a", held(5, 10, 0));
        assert_eq!((index.usage(), index.get("a").version(0)), ((1, 7), 0));
        index.clear(9);
        index.learn("c", held(8, 7, 0));
        assert_eq!(index.usage(), (0, 0));
        index.learn("c", held(10, 7, 0));
        assert_eq!(index.usage(), (1, 7));
    }

    #[test]
    fn ends_and_removed_keys_are_given_out_once() {
        let mut index = Index::default();
        index.learn("a", held(1, 10, 50));
        index.learn("b", held(2, 10, 60));
        index.learn("a", held(3, 10, 70));
        assert_eq!(index.take_expired(60, 9), [2]);
        assert_eq!(index.take_expired(70, 9), [3]);
        assert_eq!(index.usage(), (0, 0));
        index.learn("k", Held { sequence: 4, is_removed: true, ..Default::default() });
        index.remove_later(Removed { due_ms: 100, sequence: 4, key: "k".into() });
        assert_eq!(index.take_removed(99, 9), Vec::<u64>::new());
        assert_eq!(index.take_removed(100, 9), [4]);
        assert_eq!(index.get("k"), Held::default());
    }

    #[test]
    fn writes_under_way_count_and_close_to_the_quota_they_are_strict() {
        let quota = Quota { bytes: 100, keys: 100, together_bytes: None };
        let mut index = Index::default();
        let first = index.reserve("a", 60, quota).expect("room");
        assert!(!first.is_strict);
        assert!(index.reserve("b", 41, quota).is_err());
        assert!(index.reserve("b", 40, quota).expect("room").is_strict);
        index.release(first);
        assert!(index.reserve("c", 60, quota).is_ok());
    }

    #[test]
    fn what_is_newer_than_a_new_look_is_kept() {
        let mut old = Index::default();
        let mut new = Index::default();
        old.learn("gone", held(2, 1, 0));
        old.learn("new", held(9, 1, 0));
        new.learn("a", held(5, 1, 0));
        new.reached = 5;
        new.absorb(old);
        assert_eq!(
            new.list("", None, 0).map(|(key, _)| key.as_str()).collect::<Vec<_>>(),
            ["a", "new"]
        );
    }
}
