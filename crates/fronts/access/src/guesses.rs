//! Slows down clients that guess keys. An address may send some wrong keys at once, and then one
//! each second.

use std::net::IpAddr;
use std::num::NonZeroU32;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use mote_core::shares::address_owner;

use crate::bounded::Bounded;

/// How many wrong keys one address may send at once, and how many a second after that.
const AT_ONCE: NonZeroU32 = NonZeroU32::new(10).unwrap();
const A_SECOND: NonZeroU32 = NonZeroU32::new(1).unwrap();
/// The maximum number of addresses that are remembered.
const ADDRESSES_MAX: usize = 4_096;
/// How many wrong keys a second are accepted in total from senders that are not remembered:
/// addresses for which there is no room, and requests whose address is not known.
const OF_OTHERS: NonZeroU32 = NonZeroU32::new(100).unwrap();

/// The addresses that have recently sent wrong keys.
pub(crate) struct Guesses {
    by_address: Bounded<IpAddr>,
    others: DefaultDirectRateLimiter,
}

impl Default for Guesses {
    fn default() -> Self {
        let quota = Quota::per_second(A_SECOND).allow_burst(AT_ONCE);
        let others = RateLimiter::direct(Quota::per_second(OF_OTHERS));
        Self { by_address: Bounded::new(quota, ADDRESSES_MAX), others }
    }
}

impl Guesses {
    /// Counts a wrong key. Returns `false` if the sender has sent too many of them.
    pub(crate) fn may_guess(&self, from: Option<IpAddr>, now_unix_ms: u64) -> bool {
        let known = from.and_then(|from| self.by_address.check(&address_owner(from), now_unix_ms));
        known.unwrap_or_else(|| self.others.check()).is_ok()
    }

    #[cfg(test)]
    fn addresses(&self) -> usize {
        self.by_address.len()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn refused(guesses: &Guesses, from: IpAddr) -> bool {
        !guesses.may_guess(Some(from), 0)
    }

    #[test]
    fn an_address_may_guess_ten_times_at_once() {
        let guesses = Guesses::default();
        let one = IpAddr::from([192, 0, 2, 1]);
        for _ in 0..AT_ONCE.get() {
            assert!(!refused(&guesses, one));
        }
        // On a slow machine, a second may pass between the two guesses. So only one of them must be
        // refused.
        assert!(refused(&guesses, one) || refused(&guesses, one));
        assert!(!refused(&guesses, IpAddr::from([192, 0, 2, 2])), "others are not slowed down");
    }

    #[test]
    fn the_addresses_of_one_network_count_as_one() {
        let guesses = Guesses::default();
        let of = |last: u16| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, last));
        for last in 0..20 {
            refused(&guesses, of(last));
        }
        assert_eq!(guesses.addresses(), 1);
    }

    #[test]
    fn the_table_of_addresses_is_bounded() {
        let guesses = Guesses::default();
        let mut slowed = 0;
        for number in 0..2 * ADDRESSES_MAX as u32 {
            let from = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number));
            slowed += u32::from(refused(&guesses, from));
        }
        assert!(guesses.addresses() <= ADDRESSES_MAX);
        assert!(slowed > 0, "guesses from further addresses are slowed down together");
    }
}
