//! Invocation ids: made by the front, unique on the node, sortable by time.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};

use mote_core::InvocationId;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rustix::time::{ClockId, clock_gettime};

thread_local! {
    /// A generator per thread, seeded from the system's randomness. Ids must be unique, not secret:
    /// knowing one gives no rights.
    static RANDOM: RefCell<Xoshiro256PlusPlus> = RefCell::new(Xoshiro256PlusPlus::seed_from_u64(
        RandomState::new().hash_one(std::thread::current().id()),
    ));
}

pub(crate) fn invocation_id() -> InvocationId {
    let time = clock_gettime(ClockId::RealtimeCoarse);
    let unix_ms =
        u64::try_from(time.tv_sec).map_or(0, |s| s * 1_000 + time.tv_nsec as u64 / 1_000_000);
    InvocationId::new(unix_ms, RANDOM.with_borrow_mut(|random| random.random()))
}

/// Monotonic nanoseconds, the clock of all phases.
pub(crate) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
