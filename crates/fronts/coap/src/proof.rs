//! Proof that a source address is real (RFC 9175). Until a source has proved its address, only few
//! bytes are sent to it, so that a forged address cannot make the node flood a third party.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::net::SocketAddr;

/// The number of bytes that may always be sent to an unproven source, whatever the length of its
/// request (RFC 9175, 2.4).
pub const UNPROVEN_BYTES: usize = 136;
/// An answer that is longer than [`UNPROVEN_BYTES`] may have this many times the length of the
/// request.
pub const UNPROVEN_FACTOR: usize = 3;
/// The number of proven sources that are remembered.
const PROVEN_MAX: usize = 16_384;
/// How long an Echo value is valid, and how long a source stays proven.
const ECHO_NS: u64 = 60_000_000_000;
const PROVEN_NS: u64 = 600_000_000_000;

/// The sources that have proved their address.
pub struct Proofs {
    keys: RandomState,
    proven: HashMap<SocketAddr, u64>,
    order: VecDeque<SocketAddr>,
    /// Whether every source is already proven before its first datagram arrives.
    pub(crate) are_all_proven: bool,
}

impl Default for Proofs {
    fn default() -> Self {
        Self {
            keys: RandomState::new(),
            proven: HashMap::new(),
            order: VecDeque::new(),
            are_all_proven: false,
        }
    }
}

impl Proofs {
    /// The number of bytes that may be sent as an answer to a request of `request_bytes`. `None`
    /// means no limit. A loopback source cannot be forged from outside, unless it is an IPv4
    /// loopback address inside an IPv6 datagram.
    pub fn answer_bytes_max(
        &self,
        peer: SocketAddr,
        request_bytes: usize,
        now_ns: u64,
    ) -> Option<usize> {
        let proven = self.are_all_proven
            || peer.ip().is_loopback()
            || self.proven.get(&peer).is_some_and(|until| *until > now_ns);
        if proven { None } else { Some(UNPROVEN_BYTES.max(request_bytes * UNPROVEN_FACTOR)) }
    }

    /// An Echo value that only the holder of the address `peer` can return in time. The node stores
    /// nothing for it.
    pub fn echo(&self, peer: SocketAddr, now_ns: u64) -> Vec<u8> {
        self.value(peer, now_ns / ECHO_NS).to_be_bytes().to_vec()
    }

    /// Checks an Echo value. A correct value proves the source.
    pub fn prove(&mut self, peer: SocketAddr, echo: &[u8], now_ns: u64) -> bool {
        let window = now_ns / ECHO_NS;
        let right = [window, window.saturating_sub(1)]
            .iter()
            .any(|window| self.value(peer, *window).to_be_bytes() == echo);
        if right && self.proven.insert(peer, now_ns + PROVEN_NS).is_none() {
            self.order.push_back(peer);
            if self.order.len() > PROVEN_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.proven.remove(&oldest);
            }
        }
        right
    }

    /// A keyed hash. The key is random for each start and never leaves the process.
    fn value(&self, peer: SocketAddr, window: u64) -> u64 {
        self.keys.hash_one((peer, window))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_holder_of_an_address_proves_it() {
        let mut proofs = Proofs::default();
        let peer: SocketAddr = "192.0.2.1:5000".parse().unwrap();
        let other: SocketAddr = "192.0.2.2:5000".parse().unwrap();
        assert_eq!(proofs.answer_bytes_max(peer, 10, 0), Some(136));
        assert_eq!(proofs.answer_bytes_max(peer, 100, 0), Some(300));
        let echo = proofs.echo(peer, 0);
        assert!(!proofs.prove(other, &echo, 0));
        assert!(!proofs.prove(peer, b"12345678", 0));
        assert!(!proofs.prove(peer, &echo, ECHO_NS * 3), "too old");
        assert!(proofs.prove(peer, &echo, ECHO_NS));
        assert_eq!(proofs.answer_bytes_max(peer, 10, ECHO_NS), None);
        assert_eq!(proofs.answer_bytes_max(other, 10, ECHO_NS), Some(136));
        assert_eq!(proofs.answer_bytes_max("127.0.0.1:1".parse().unwrap(), 1, 0), None);
        assert_eq!(proofs.answer_bytes_max("[::1]:1".parse().unwrap(), 1, 0), None);
        // Other machines can send datagrams with this source address over IPv6.
        let mapped = "[::ffff:127.0.0.1]:1".parse().unwrap();
        assert_eq!(proofs.answer_bytes_max(mapped, 1, 0), Some(136));
    }
}
