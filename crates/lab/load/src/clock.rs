//! The clock of this machine.

use rustix::time::{ClockId, clock_gettime};

/// A number of nanoseconds. As a point in time, it is on `CLOCK_MONOTONIC` or on the clock of a
/// test.
pub type Nanos = u64;

pub(crate) const SECOND: Nanos = 1_000_000_000;

pub(crate) fn now() -> Nanos {
    read(ClockId::Monotonic)
}

/// The processor time that this thread has used.
pub(crate) fn thread_cpu() -> Nanos {
    read(ClockId::ThreadCPUTime)
}

fn read(clock: ClockId) -> Nanos {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}

/// The processor time of the whole machine since its start, in ticks: the busy time and the total.
pub(crate) fn machine_ticks() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> =
        line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
    let all = ticks.iter().sum();
    // The time without work, and the time waiting for a disk.
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (all - idle, all)
}
