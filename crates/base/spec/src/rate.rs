//! How many calls from outside a function accepts, in a time and at once.

use serde::{Deserialize, Serialize};

/// Largest number of calls that may run at once.
pub const CALLS_AT_ONCE_MAX: u32 = 100_000;
/// Largest number of calls of a rate, and largest burst.
pub const RATE_CALLS_MAX: u32 = 1_000_000;
/// Longest time of a rate: a day.
pub const RATE_PERIOD_MS_MAX: u64 = 86_400_000;

/// Calls in a time. Tokens come evenly (GCRA), so that `calls` in `period_ms` is the average, and
/// `burst` calls may come at once after a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Calls in `period_ms`, from 1 to [`RATE_CALLS_MAX`].
    pub calls: u32,
    /// Milliseconds, from 1 to [`RATE_PERIOD_MS_MAX`].
    pub period_ms: u64,
    /// Calls that may come at once, from 1 to [`RATE_CALLS_MAX`].
    pub burst: u32,
}

/// The rates of a function, and how many of its calls may be accepted and unfinished at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Of all callers together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<Rate>,
    /// Of each caller: of each key if the function asks for one, otherwise of each address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<Rate>,
    /// Calls of all callers together that may be unfinished, from 1 to [`CALLS_AT_ONCE_MAX`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_once: Option<u32>,
    /// Those of each caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller_at_once: Option<u32>,
}

impl Rates {
    /// No limits.
    pub const NONE: Self = Self { all: None, caller: None, at_once: None, caller_at_once: None };

    /// Whether there are no limits. Asked for each call.
    #[inline]
    pub fn is_none(&self) -> bool {
        // Without branches in between.
        self.all.is_none()
            & self.caller.is_none()
            & self.at_once.is_none()
            & self.caller_at_once.is_none()
    }

    /// Whether something is counted for each caller.
    pub fn is_by_caller(&self) -> bool {
        self.caller.is_some() || self.caller_at_once.is_some()
    }

    /// The key with a number outside of its limits, and the limits.
    pub(super) fn mistake(&self) -> Option<(&'static str, &'static str)> {
        let is_valid = |rate: Rate| {
            let numbers = [rate.calls, rate.burst];
            numbers.iter().all(|number| (1..=RATE_CALLS_MAX).contains(number))
                && (1..=RATE_PERIOD_MS_MAX).contains(&rate.period_ms)
        };
        let mut at_once = [self.at_once, self.caller_at_once].into_iter().flatten();
        if ![self.all, self.caller].into_iter().flatten().all(is_valid) {
            return Some((
                "limits.rate",
                "1 to 1000000 calls in 1ms to 24h, and a burst of 1 to 1000000",
            ));
        }
        let is_valid = at_once.all(|calls| (1..=CALLS_AT_ONCE_MAX).contains(&calls));
        (!is_valid).then_some(("limits.calls_at_once", "1 to 100000"))
    }
}
