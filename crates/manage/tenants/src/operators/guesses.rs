//! Slows down clients that guess tokens.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use mote_core::shares::address_owner;
use parking_lot::Mutex;

/// An address may send this many wrong tokens within [`WINDOW`], and must then wait.
const GUESSES_MAX: u32 = 30;
const WINDOW: Duration = Duration::from_secs(60);
/// The maximum number of addresses that are remembered.
const ADDRESSES_MAX: usize = 4_096;

/// The addresses that have sent wrong tokens lately. All addresses in an IPv6 /64 network count as
/// one.
#[derive(Default)]
pub(crate) struct Guesses(Mutex<HashMap<IpAddr, (u32, Instant)>>);

impl Guesses {
    /// Counts a wrong token. Returns `false` if this address must wait. If there is no room for
    /// further addresses, unknown addresses must wait, too.
    pub(crate) fn may_guess(&self, address: IpAddr, now: Instant) -> bool {
        let mut all = self.0.lock();
        let address = address_owner(address);
        if all.len() >= ADDRESSES_MAX {
            all.retain(|_, (_, since)| now.duration_since(*since) < WINDOW);
        }
        if all.len() >= ADDRESSES_MAX && !all.contains_key(&address) {
            return false;
        }
        let (count, since) = all.entry(address).or_insert((0, now));
        if now.duration_since(*since) >= WINDOW {
            (*count, *since) = (0, now);
        }
        *count = count.saturating_add(1);
        *count <= GUESSES_MAX
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn an_address_waits_after_thirty_wrong_tokens() {
        let guesses = Guesses::default();
        let now = Instant::now();
        let one = IpAddr::from([192, 0, 2, 1]);
        assert!((0..GUESSES_MAX).all(|_| guesses.may_guess(one, now)));
        assert!(!guesses.may_guess(one, now));
        assert!(guesses.may_guess(IpAddr::from([192, 0, 2, 2]), now));
        assert!(guesses.may_guess(one, now + WINDOW));
    }

    #[test]
    fn the_addresses_of_a_network_of_ipv6_count_as_one() {
        let guesses = Guesses::default();
        let now = Instant::now();
        let of = |host| IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, host));
        assert_eq!((0..40).filter(|host| guesses.may_guess(of(*host), now)).count(), 30);
    }

    #[test]
    fn many_addresses_fill_the_table_and_no_more() {
        let guesses = Guesses::default();
        let now = Instant::now();
        let of = |number: u32| IpAddr::from(Ipv4Addr::from(number));
        let admitted = (0..5_000).filter(|number| guesses.may_guess(of(*number), now)).count();
        assert_eq!(admitted, ADDRESSES_MAX);
        assert!(guesses.may_guess(of(4_999), now + WINDOW), "the others are forgotten");
    }
}
