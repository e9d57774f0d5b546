//! How many bytes a function sent to, and received from, each destination in its manifest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mote_spec::Egress;
use parking_lot::Mutex;

/// The maximum number of destinations that are counted separately for one function. Otherwise,
/// deploys with ever new destinations could add series without end.
const DESTINATIONS_MAX: usize = 64;
/// The entry under which the bytes of further destinations are counted.
const OTHERS: &str = "other";

/// The bytes of one destination, without headers of TCP, UDP and IP.
#[derive(Debug, Default)]
pub struct EgressBytes {
    sent: AtomicU64,
    received: AtomicU64,
}

impl EgressBytes {
    pub(crate) fn count_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The destinations of one function.
#[derive(Debug, Default)]
pub struct Destinations(Mutex<BTreeMap<String, Arc<EgressBytes>>>);

impl Destinations {
    /// The counters of a destination.
    pub(crate) fn of(&self, to: &Egress) -> Arc<EgressBytes> {
        let mut all = self.0.lock();
        let name = to.to_string();
        let is_known = all.len() < DESTINATIONS_MAX || all.contains_key(&name);
        let name = if is_known { name } else { OTHERS.to_owned() };
        all.entry(name).or_default().clone()
    }

    /// The destinations to or from which any bytes went, and how many were sent and received.
    pub(crate) fn all(&self) -> Vec<(String, u64, u64)> {
        let all = self.0.lock();
        let figures = all.iter().map(|(name, bytes)| {
            let [sent, received] =
                [&bytes.sent, &bytes.received].map(|count| count.load(Ordering::Relaxed));
            (name.clone(), sent, received)
        });
        figures.filter(|(_, sent, received)| sent + received > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_destinations_is_bounded() {
        let all = Destinations::default();
        for port in 1..=200 {
            all.of(&Egress::tcp("host.example", port)).count_sent(1);
        }
        all.of(&Egress::tcp("host.example", 1)).count_received(2);
        let all = all.all();
        assert_eq!(all.len(), DESTINATIONS_MAX + 1);
        assert!(all.contains(&("host.example:1".to_owned(), 1, 2)), "{all:?}");
        assert!(all.contains(&(OTHERS.to_owned(), 136, 0)), "{all:?}");
    }
}
