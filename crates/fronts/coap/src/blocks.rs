//! Block-wise transfer (RFC 7959): request bodies that arrive in blocks, and answers that are sent
//! in blocks. Pure. All memory is bounded, and the oldest entries are dropped first.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use bytes::{Bytes, BytesMut};

/// The size exponent of the largest block that is sent or requested: 1,024 bytes.
pub const SIZE_EXPONENT_MAX: u8 = 6;

/// The value of a Block1 or Block2 option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    pub number: u32,
    pub more: bool,
    /// SZX: the block has `2^(SZX + 4)` bytes. Over UDP, 7 is reserved. Over TCP, 7 stands for
    /// several blocks of 1,024 bytes in one message (RFC 8323, 6).
    pub size_exponent: u8,
}

impl Block {
    pub fn from_value(value: u32) -> Self {
        Self { number: value >> 4, more: value & 8 != 0, size_exponent: (value & 7) as u8 }
    }

    pub fn value(self) -> u32 {
        self.number << 4 | u32::from(self.more) << 3 | u32::from(self.size_exponent)
    }

    /// The number of bytes of a full block.
    pub fn size(self) -> usize {
        16 << self.size_exponent.min(SIZE_EXPONENT_MAX)
    }

    /// Whether a payload of this length is valid for this block.
    fn has_length(self, length: usize) -> bool {
        match self.size_exponent > SIZE_EXPONENT_MAX {
            true => !self.more || (length > 0 && length.is_multiple_of(self.size())),
            false => length == self.size() || (!self.more && length < self.size()),
        }
    }
}

/// The result of a block of a request body.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The next block should follow (2.31).
    Continue,
    /// The block was the last one. Holds the whole body.
    Complete(Bytes),
    /// The block does not continue the blocks that arrived before it (4.08).
    OutOfOrder,
    /// The body is longer than allowed (4.13).
    TooLarge,
    /// The length of the block does not fit its size exponent (4.00).
    WrongLength,
}

struct Held<V> {
    value: V,
    bytes: usize,
    until_ns: u64,
}

/// A map whose values have a limit on their age and on their total bytes. The oldest values are
/// dropped first.
pub struct Bounded<K, V> {
    map: HashMap<K, Held<V>>,
    order: VecDeque<(u64, K)>,
    bytes: usize,
    bytes_max: usize,
    keep_ns: u64,
}

impl<K: Hash + Eq + Clone, V> Bounded<K, V> {
    /// Keeps at most `bytes_max` bytes in total, and each value for at most `keep_ns`.
    pub fn new(bytes_max: usize, keep_ns: u64) -> Self {
        Self { map: HashMap::new(), order: VecDeque::new(), bytes: 0, bytes_max, keep_ns }
    }

    /// Returns the value of `key`, unless it has expired.
    pub fn get(&self, key: &K, now_ns: u64) -> Option<&V> {
        self.map.get(key).filter(|held| held.until_ns > now_ns).map(|held| &held.value)
    }

    /// Takes the value of `key` out.
    pub fn take(&mut self, key: &K, now_ns: u64) -> Option<V> {
        let held = self.map.remove(key)?;
        self.bytes -= held.bytes;
        (held.until_ns > now_ns).then_some(held.value)
    }

    /// Stores a value that counts as `bytes` bytes. Replaces the previous value of `key`.
    pub fn put(&mut self, key: K, value: V, bytes: usize, now_ns: u64) {
        let _ = self.take(&key, now_ns);
        let until_ns = now_ns + self.keep_ns;
        self.bytes += bytes;
        self.order.push_back((until_ns, key.clone()));
        self.map.insert(key, Held { value, bytes, until_ns });
        self.shrink(now_ns);
        self.compact();
    }

    /// Drops the marks of values that were replaced or taken, once these marks are in the majority.
    fn compact(&mut self) {
        if self.order.len() <= 2 * self.map.len() + 16 {
            return;
        }
        let map = &self.map;
        self.order
            .retain(|(until_ns, key)| map.get(key).is_some_and(|held| held.until_ns == *until_ns));
    }

    /// Drops expired values, and then the oldest values while there are too many bytes.
    pub fn shrink(&mut self, now_ns: u64) {
        while let Some((until_ns, key)) = self.order.front() {
            let current = self.map.get(key).is_some_and(|held| held.until_ns == *until_ns);
            // The mark is stale if its value was taken or replaced.
            if current && *until_ns > now_ns && self.bytes <= self.bytes_max {
                return;
            }
            if current && let Some(held) = self.map.remove(key) {
                self.bytes -= held.bytes;
            }
            self.order.pop_front();
        }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of marks that record the order of the values. There are at most a few marks per
    /// value, however often a value was replaced.
    pub fn marks(&self) -> usize {
        self.order.len()
    }
}

/// Request bodies that are arriving in blocks.
pub struct Uploads<K> {
    bodies: Bounded<K, BytesMut>,
}

impl<K: Hash + Eq + Clone> Uploads<K> {
    /// Holds at most `bytes_max` bytes of incomplete bodies, and each body for at most `keep_ns`
    /// after its last block.
    pub fn new(bytes_max: usize, keep_ns: u64) -> Self {
        Self { bodies: Bounded::new(bytes_max, keep_ns) }
    }

    pub fn block(
        &mut self,
        key: K,
        block: Block,
        payload: &[u8],
        limit_bytes: u64,
        now_ns: u64,
    ) -> Arrival {
        let offset = block.number as usize * block.size();
        if !block.has_length(payload.len()) {
            return Arrival::WrongLength;
        }
        if (offset + payload.len()) as u64 > limit_bytes {
            let _ = self.bodies.take(&key, now_ns);
            return Arrival::TooLarge;
        }
        let mut body = match (block.number, self.bodies.take(&key, now_ns)) {
            (0, _) => BytesMut::new(),
            (_, Some(body)) => body,
            (_, None) => return Arrival::OutOfOrder,
        };
        if offset + payload.len() == body.len() && block.more && block.number > 0 {
            // The client repeats the previous block, because the answer to it was lost.
            let held = body.len();
            self.bodies.put(key, body, held + OVERHEAD_BYTES, now_ns);
            return Arrival::Continue;
        }
        if offset != body.len() {
            let held = body.len();
            self.bodies.put(key, body, held + OVERHEAD_BYTES, now_ns);
            return Arrival::OutOfOrder;
        }
        body.extend_from_slice(payload);
        if !block.more {
            return Arrival::Complete(body.freeze());
        }
        let held = body.len();
        self.bodies.put(key, body, held + OVERHEAD_BYTES, now_ns);
        Arrival::Continue
    }

    /// Drops bodies that have expired.
    pub fn shrink(&mut self, now_ns: u64) {
        self.bodies.shrink(now_ns);
    }

    pub fn bytes(&self) -> usize {
        self.bodies.bytes()
    }

    /// The number of marks that record the order of the bodies.
    pub fn marks(&self) -> usize {
        self.bodies.marks()
    }
}

/// The bytes counted for each stored value in addition to its own length.
pub const OVERHEAD_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u32, more: bool) -> Block {
        Block { number, more, size_exponent: 0 }
    }

    #[test]
    fn values() {
        for value in [0, 6, 0x0e, 0x16, 0xffffff] {
            assert_eq!(Block::from_value(value).value(), value);
        }
        assert_eq!(block(0, true).size(), 16);
    }

    #[test]
    fn bodies_arrive_in_order_or_not_at_all() {
        let mut uploads = Uploads::new(1 << 20, 1_000);
        let full = [b'x'; 16];
        assert_eq!(uploads.block("a", block(1, true), &full, 100, 0), Arrival::OutOfOrder);
        assert_eq!(uploads.block("a", block(0, true), &full, 100, 0), Arrival::Continue);
        assert_eq!(uploads.block("a", block(2, true), &full, 100, 0), Arrival::OutOfOrder);
        assert_eq!(uploads.block("a", block(1, true), &full, 100, 0), Arrival::Continue);
        assert_eq!(uploads.block("a", block(1, true), &full, 100, 0), Arrival::Continue, "again");
        let end = uploads.block("a", block(2, false), b"end", 100, 0);
        let mut whole = vec![b'x'; 32];
        whole.extend_from_slice(b"end");
        assert_eq!(end, Arrival::Complete(whole.into()));
        assert_eq!(uploads.block("a", block(0, true), b"short", 100, 0), Arrival::WrongLength);
        assert_eq!(uploads.block("a", block(0, true), &full, 100, 0), Arrival::Continue);
        assert_eq!(uploads.block("a", block(1, true), &full, 20, 0), Arrival::TooLarge);
        assert_eq!(uploads.block("b", block(0, true), &full, 100, 0), Arrival::Continue);
        assert_eq!(
            uploads.block("b", block(1, false), b"", 100, 5_000),
            Arrival::OutOfOrder,
            "late"
        );
    }

    #[test]
    fn several_blocks_arrive_in_one_message() {
        let mut uploads = Uploads::new(1 << 20, 1_000);
        let bert = |number, more| Block { number, more, size_exponent: 7 };
        let body = [7; 5_000];
        let mut put = |block, range: std::ops::Range<usize>| {
            uploads.block("a", block, &body[range], 1 << 20, 0)
        };
        assert_eq!(put(bert(0, true), 0..1_000), Arrival::WrongLength);
        assert_eq!(put(bert(0, true), 0..0), Arrival::WrongLength);
        assert_eq!(put(bert(0, true), 0..2_048), Arrival::Continue);
        assert_eq!(put(bert(1, true), 1_024..2_048), Arrival::Continue, "it is there already");
        assert_eq!(put(bert(2, true), 2_048..4_096), Arrival::Continue);
        let whole = bytes::Bytes::copy_from_slice(&body);
        assert_eq!(put(bert(4, false), 4_096..5_000), Arrival::Complete(whole));
    }

    #[test]
    fn a_value_put_again_and_again_costs_no_memory() {
        let mut bounded = Bounded::new(1_000, 1_000_000);
        bounded.put(0, (), 10, 0);
        for now in 0..100_000 {
            bounded.put(1, (), 10, now);
            assert!(bounded.marks() <= 32, "{} marks for two values", bounded.marks());
        }
        bounded.shrink(1_000_500);
        assert_eq!((bounded.get(&0, 1_000_500), bounded.get(&1, 1_000_500)), (None, Some(&())));
        assert_eq!(bounded.bytes(), 10);
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_goes_first() {
        let mut bounded = Bounded::new(1_000, 100);
        for key in 0..50 {
            bounded.put(key, key, 100, key);
        }
        assert!(bounded.bytes() <= 1_000);
        assert_eq!(bounded.get(&49, 50), Some(&49));
        assert_eq!(bounded.get(&0, 50), None);
        bounded.shrink(1_000);
        assert_eq!(bounded.bytes(), 0);
    }
}
