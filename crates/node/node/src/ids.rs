//! Random bits for ids.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Random bits for ids.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    random: RandomState,
    counter: AtomicU64,
}

impl Ids {
    /// The result is unique but not secret.
    pub(crate) fn random(&self) -> u128 {
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        let high = self.random.hash_one((count, 0));
        let low = self.random.hash_one((count, 1));
        u128::from(high) << 64 | u128::from(low)
    }
}
