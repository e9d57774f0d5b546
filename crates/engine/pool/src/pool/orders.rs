//! The orders that a look at a pool returns.

use super::Why;

/// Starts that were ordered; see [`Pool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    pub count: u32,
    pub why: Why,
    /// Whether a caller waits for the starts, or the owner asked for them. If so, idle instances of
    /// other functions may be stopped to make room.
    pub evict: bool,
}

/// An instance that is being stopped because the autoscaler no longer needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopping {
    pub number: u64,
    /// The reason that the autoscaler gave.
    pub why: Why,
}

/// The work that the pool's owner has to do after a look.
#[derive(Debug, Default)]
pub struct Orders {
    /// The starts to carry out. They count as starting from now on.
    pub start: Option<Start>,
    /// Whether to start an instance as a spare. It counts as starting from now on.
    pub start_spare: bool,
    /// Instances that are being stopped from now on.
    pub stopping: Vec<Stopping>,
    /// Instances that were killed because they did not end invocations that no caller waited for.
    pub killed: Vec<u64>,
    /// Workers that were just asked to exit.
    pub exiting: Vec<usize>,
    /// When to look again at the latest, in nanoseconds from now; `None` means only when something
    /// changes. While there is work, this time is short, so that passed deadlines and ended
    /// invocations are noticed.
    pub sleep_ns: Option<u64>,
    /// Whether nothing runs or waits. The next look is then due at `next_ns`, or when the caller
    /// reports a change.
    pub rests: bool,
    /// The time at which the pool must decide although nothing has changed, on the pool's clock in
    /// nanoseconds. For callers that report every other change themselves.
    pub next_ns: Option<u64>,
}
