//! The one clock of the data path: `CLOCK_MONOTONIC` in nanoseconds. Workers stamp their phases
//! with the same clock, so times of both sides compare directly.

/// Monotonic nanoseconds now. A vDSO call, about 30 ns.
pub fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Wall-clock milliseconds since 1970, for ids and people only; 0 when the clock is before it.
pub fn unix_ms() -> u64 {
    unix_us() / 1_000
}

/// Wall-clock microseconds since 1970, for log lines only; 0 when the clock is before it.
pub fn unix_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    u64::try_from(time.tv_sec).map_or(0, |s| s * 1_000_000 + time.tv_nsec as u64 / 1_000)
}
