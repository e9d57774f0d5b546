//! Deduplication (RFC 7252, 4.5): a message that arrives again is not served again.
//! Pure and bounded: at high rates the oldest exchanges are forgotten before their time, which a
//! client meets only when it repeats a message later than its own retransmission span.

use std::net::SocketAddr;

use bytes::Bytes;

use super::blocks::Bounded;

/// A message of one peer.
pub type Key = (SocketAddr, u16);

/// What is known of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// It is being served; `acked` when an empty acknowledgement was sent.
    Running {
        /// See there.
        acked: bool,
    },
    /// It was answered with this.
    Answered(Bytes),
}

/// How long a confirmable message's id stands for it: EXCHANGE_LIFETIME (RFC 7252, 4.8.2).
pub const LIFETIME_NS: u64 = 247_000_000_000;
/// Counted per exchange beside the bytes of its answer.
const ENTRY_BYTES: usize = 160;

/// Messages seen lately.
pub struct Exchanges {
    seen: Bounded<Key, Seen>,
}

impl Exchanges {
    /// Remembers at most `bytes_max` bytes of exchanges.
    pub fn new(bytes_max: usize) -> Self {
        Self { seen: Bounded::new(bytes_max, LIFETIME_NS) }
    }

    /// What is known of this message.
    pub fn get(&self, key: &Key, now_ns: u64) -> Option<&Seen> {
        self.seen.get(key, now_ns)
    }

    /// Notes that it is being served.
    pub fn begin(&mut self, key: Key, now_ns: u64) {
        self.seen.put(key, Seen::Running { acked: false }, ENTRY_BYTES, now_ns);
    }

    /// Notes that an empty acknowledgement was sent.
    pub fn acked(&mut self, key: Key, now_ns: u64) {
        self.seen.put(key, Seen::Running { acked: true }, ENTRY_BYTES, now_ns);
    }

    /// Notes its answer.
    pub fn answer(&mut self, key: Key, datagram: Bytes, now_ns: u64) {
        let bytes = ENTRY_BYTES + datagram.len();
        self.seen.put(key, Seen::Answered(datagram), bytes, now_ns);
    }

    /// Bytes held now.
    pub fn bytes(&self) -> usize {
        self.seen.bytes()
    }

    /// Marks that order them.
    pub fn marks(&self) -> usize {
        self.seen.marks()
    }
}
