//! Limits the rate of events for each of many keys, and remembers only a bounded number of keys.

use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, NotUntil, Quota, RateLimiter};
pub(crate) use mote_process::clock::unix_ms;

/// The refusal of an event. It says how long it takes until the next event is accepted.
pub(crate) type Until = NotUntil<<DefaultClock as Clock>::Instant>;

/// The keys whose events were counted recently.
pub(crate) struct Bounded<K: Hash + Eq + Clone> {
    by_key: DefaultKeyedRateLimiter<K>,
    keys_max: usize,
    cleaned_s: AtomicU64,
}

impl<K: Hash + Eq + Clone> Bounded<K> {
    /// Each key may have events at the rate `quota`. About `keys_max` keys are remembered.
    pub(crate) fn new(quota: Quota, keys_max: usize) -> Self {
        let by_key = RateLimiter::keyed(quota);
        Self { by_key, keys_max, cleaned_s: AtomicU64::new(0) }
    }

    /// Counts an event of `key`. Returns `None` if `key` is not remembered and there is no room for
    /// it.
    pub(crate) fn check(&self, key: &K, now_unix_ms: u64) -> Option<Result<(), Until>> {
        if self.by_key.len() >= self.keys_max {
            // Forgets keys without recent events. Runs at most once a second, because it visits all
            // keys.
            let now_s = now_unix_ms / 1_000;
            if self.cleaned_s.swap(now_s, Ordering::Relaxed) != now_s {
                self.by_key.retain_recent();
            }
            if self.by_key.len() >= self.keys_max {
                return None;
            }
        }
        Some(self.by_key.check_key(key))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }
}
