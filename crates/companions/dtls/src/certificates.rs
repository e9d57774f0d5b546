//! Sessions of clients without a pre-shared key: the certificate of the node, and how often an
//! address may begin such a handshake. Each handshake costs about a millisecond of processor time.

use std::collections::HashMap;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dimpl::{Config, Dtls, DtlsCertificate};
use mote_coap::dtls_frames::ServerCertificate;
use mote_core::shares::address_owner;

use crate::config;

/// How many handshakes with certificates an address may begin at once, and the pause before each
/// further one. Many devices may share one address, and all begin at once when their router is
/// back.
pub(crate) const BURST: u32 = 64;
const PAUSE: Duration = Duration::from_millis(100);
/// The same limits for handshakes in which the node has accepted the client's certificate. These
/// handshakes do not count against the limits above. They are limited too, because a device with a
/// certificate may be faulty or stolen.
const ACCEPTED_BURST: u32 = 1_024;
const ACCEPTED_PAUSE: Duration = Duration::from_millis(10);
/// The most addresses that are counted. Each has shown that it receives datagrams.
const COUNTED_MAX: usize = 4_096;

/// The certificate of the node.
pub(crate) struct Own {
    config: Arc<Config>,
    certificate: DtlsCertificate,
}

impl Own {
    /// Uses a certificate for new handshakes. The error says why the certificate cannot be used.
    pub(crate) fn new(own: ServerCertificate, now: Instant) -> Result<Self, String> {
        let config = config::builder().require_client_certificate(own.asks_clients).build();
        let config = config.map_err(|error| error.to_string())?;
        let certificate = DtlsCertificate { certificate: own.certificate, private_key: own.key };
        let own = Self { config: Arc::new(config), certificate };
        // The library panics if it cannot read a key.
        match catch_unwind(AssertUnwindSafe(|| own.dtls(now))) {
            Ok(_) => Ok(own),
            Err(_) => Err("its private key is not on the curve P-256 or P-384".to_owned()),
        }
    }

    /// Creates the state of a new handshake.
    pub(crate) fn dtls(&self, now: Instant) -> Dtls {
        Dtls::new_12(self.config.clone(), self.certificate.clone(), now)
    }
}

/// Limits how often each address may begin a handshake.
pub(crate) struct Paces {
    begun: Pace,
    accepted: Pace,
}

impl Default for Paces {
    fn default() -> Self {
        let pace = |burst, pause| Pace { burst, pause, rested: HashMap::new() };
        Self { begun: pace(BURST, PAUSE), accepted: pace(ACCEPTED_BURST, ACCEPTED_PAUSE) }
    }
}

impl Paces {
    /// Whether an address may begin a handshake now. If so, counts the handshake.
    pub(crate) fn may_begin(&mut self, ip: IpAddr, now: Instant) -> bool {
        self.begun.allows(ip, now)
    }

    /// Notes that the node has accepted the certificate of a handshake. The handshake then no
    /// longer counts as begun, unless too many handshakes have been accepted.
    pub(crate) fn accepted(&mut self, ip: IpAddr, now: Instant) {
        if self.accepted.allows(ip, now) {
            self.begun.give_back(ip);
        }
    }

    /// Forgets addresses that may begin a whole burst again.
    pub(crate) fn sweep(&mut self, now: Instant) {
        self.begun.sweep(now);
        self.accepted.sweep(now);
    }
}

/// Limits a kind of event by address.
struct Pace {
    burst: u32,
    /// The time after which one more event is allowed.
    pause: Duration,
    /// When each address may use its whole burst again.
    rested: HashMap<IpAddr, Instant>,
}

impl Pace {
    fn allows(&mut self, ip: IpAddr, now: Instant) -> bool {
        if self.rested.len() >= COUNTED_MAX {
            self.rested.retain(|_, rested| *rested > now);
        }
        let owner = address_owner(ip);
        if self.rested.len() >= COUNTED_MAX && !self.rested.contains_key(&owner) {
            return false;
        }
        let rested = self.rested.entry(owner).or_insert(now);
        let after = (*rested).max(now) + self.pause;
        let allows = after <= now + self.pause * self.burst;
        if allows {
            *rested = after;
        }
        allows
    }

    /// Uncounts one earlier event of an address.
    fn give_back(&mut self, ip: IpAddr) {
        if let Some(rested) = self.rested.get_mut(&address_owner(ip)) {
            *rested = rested.checked_sub(self.pause).unwrap_or(*rested);
        }
    }

    fn sweep(&mut self, now: Instant) {
        self.rested.retain(|_, rested| *rested > now);
        self.rested.shrink_to(64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_begins_a_burst_and_then_one_in_each_pause() {
        let mut pace = Paces::default().begun;
        let now = Instant::now();
        let one = "192.0.2.1".parse().unwrap();
        let other = "192.0.2.2".parse().unwrap();
        let mut begins = |ip, after: Duration| {
            (0..2 * BURST).filter(|_| pace.allows(ip, now + after)).count() as u32
        };
        assert_eq!(begins(one, Duration::ZERO), BURST);
        assert_eq!(begins(other, Duration::ZERO), BURST, "the others have their own");
        assert_eq!(begins(one, 3 * PAUSE), 3);
        assert_eq!(begins(one, 3 * PAUSE), 0);
        assert_eq!(begins(one, 500 * PAUSE), BURST);
        pace.sweep(now + 501 * PAUSE);
        assert_eq!(pace.rested.len(), 1);
        pace.sweep(now + 1_000 * PAUSE);
        assert!(pace.rested.is_empty());
    }

    #[test]
    fn accepted_handshakes_do_not_count_up_to_a_limit() {
        let mut paces = Paces::default();
        let now = Instant::now();
        let ip = "192.0.2.1".parse().unwrap();
        for _ in 0..ACCEPTED_BURST {
            assert!(paces.may_begin(ip, now));
            paces.accepted(ip, now);
        }
        let mut begins = |is_accepted: bool| {
            let begun = (0..2 * BURST).take_while(|_| {
                let begins = paces.may_begin(ip, now);
                if begins && is_accepted {
                    paces.accepted(ip, now);
                }
                begins
            });
            begun.count() as u32
        };
        assert_eq!(begins(true), BURST, "they count again");
        assert_eq!(begins(false), 0);
        paces.accepted("192.0.2.2".parse().unwrap(), now);
        assert_eq!(paces.begun.rested.len(), 1);
        paces.sweep(now + 500 * PAUSE);
        assert!(paces.begun.rested.is_empty() && paces.accepted.rested.is_empty());
    }

    #[test]
    fn addresses_that_are_counted_are_bounded() {
        let mut pace = Paces::default().begun;
        let now = Instant::now();
        let address = |number: usize| IpAddr::from((number as u32 + (9 << 24)).to_be_bytes());
        for number in 0..COUNTED_MAX {
            assert!(pace.allows(address(number), now));
        }
        assert!(!pace.allows(address(COUNTED_MAX), now));
        assert!(pace.allows(address(0), now), "an address that is counted goes on");
        assert!(pace.allows(address(COUNTED_MAX), now + 2 * PAUSE), "the others have rested");
    }

    #[test]
    fn a_key_that_cannot_be_used_is_named() {
        let own = ServerCertificate { certificate: vec![1], key: vec![2], asks_clients: false };
        assert!(Own::new(own, Instant::now()).err().unwrap().contains("P-256"));
        let own = ServerCertificate::default();
        assert!(Own::new(own, Instant::now()).is_err());
    }
}
