//! What a look at a pool orders.

use super::Why;

/// Starts that were ordered; see [`Pool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    pub count: u32,
    pub why: Why,
    /// A caller waits for them, or the owner asked for them: idle instances of other functions may
    /// be stopped to make room.
    pub evict: bool,
}

/// An instance that the autoscaler no longer needs and that is being stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopping {
    pub number: u64,
    /// The reason that the autoscaler gave.
    pub why: Why,
}

/// The work that the owner of a pool has to do after a look.
#[derive(Debug, Default)]
pub struct Orders {
    /// Starts, which count as starting from now on.
    pub start: Option<Start>,
    /// Start an instance as a spare, which counts as starting from now on.
    pub start_spare: bool,
    /// Instances that are being stopped from now on.
    pub stopping: Vec<Stopping>,
    /// Instances that were killed because they did not end invocations that no caller waited for.
    pub killed: Vec<u64>,
    /// Workers that were asked to exit now.
    pub exiting: Vec<usize>,
    /// When to look again at the latest, in nanoseconds from now; `None` means only when something
    /// changes. While there is work this is soon, so that deadlines and ends of invocations are
    /// noticed.
    pub sleep_ns: Option<u64>,
    /// Nothing runs or waits. The next look is due at `next_ns`, or when the caller reports a change.
    pub rests: bool,
    /// When the pool must decide although nothing has changed, in nanoseconds of the clock, for
    /// callers that report every other change themselves.
    pub next_ns: Option<u64>,
}
