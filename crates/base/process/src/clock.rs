//! The clocks. Pure code takes the time as an argument; all other code calls these functions.

use rustix::time::{ClockId, clock_gettime};

/// The monotonic clock in nanoseconds. The call goes through the vDSO and takes about 30 ns.
/// Workers stamp their phases with the same clock, so the times of both sides can be compared
/// directly.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Wall-clock milliseconds since 1970; 0 if the clock is set to an earlier time.
pub fn unix_ms() -> u64 {
    unix_us() / 1_000
}

/// Wall-clock microseconds since 1970; 0 if the clock is set to an earlier time.
pub fn unix_us() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    u64::try_from(time.tv_sec).map_or(0, |s| s * 1_000_000 + time.tv_nsec as u64 / 1_000)
}
