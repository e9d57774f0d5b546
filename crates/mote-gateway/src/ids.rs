//! Invocation ids: made at the front, unique on the node, sortable by time.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

use mote_core::InvocationId;
use rustix::time::{ClockId, clock_gettime};

thread_local! {
    /// State of a splitmix64 generator per thread, seeded from the system's randomness. Ids must
    /// be unique, not secret: nothing is authorised by knowing one.
    static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(std::thread::current().id()));
}

fn random() -> u64 {
    STATE.with(|state| {
        let seed = state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        state.set(seed);
        let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

/// A fresh id.
pub(crate) fn invocation_id() -> InvocationId {
    let time = clock_gettime(ClockId::RealtimeCoarse);
    let unix_ms =
        u64::try_from(time.tv_sec).map_or(0, |s| s * 1_000 + time.tv_nsec as u64 / 1_000_000);
    InvocationId::new(unix_ms, u128::from(random()) << 64 | u128::from(random()))
}

/// Monotonic nanoseconds, the clock of all phases.
pub(crate) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
