//! Invocation ids. The front makes them; they are unique on the node and sortable by time.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};

use mote_core::InvocationId;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rustix::time::{ClockId, clock_gettime};

thread_local! {
    /// One generator per thread, seeded from the system's randomness. Ids must be unique but need
    /// not be secret, because knowing an id gives no rights.
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

/// Monotonic time in nanoseconds. All phases are measured with this clock.
pub(crate) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
