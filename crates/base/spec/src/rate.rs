//! How many calls from outside a function accepts: in a period, and at once.

use serde::{Deserialize, Serialize};

/// Largest number of calls that may run at once.
pub const CALLS_AT_ONCE_MAX: u32 = 100_000;
/// Largest number of calls in a rate's period, and largest burst.
pub const RATE_CALLS_MAX: u32 = 1_000_000;
/// Longest period of a rate: a day.
pub const RATE_PERIOD_MS_MAX: u64 = 86_400_000;

/// A limit on calls in a period. Tokens are added evenly (GCRA), so the average is at most `calls`
/// in `period_ms`. After a pause, `burst` calls may arrive at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// The number of calls in `period_ms`, from 1 to [`RATE_CALLS_MAX`].
    pub calls: u32,
    /// The period in milliseconds, from 1 to [`RATE_PERIOD_MS_MAX`].
    pub period_ms: u64,
    /// The number of calls that may arrive at once, from 1 to [`RATE_CALLS_MAX`].
    pub burst: u32,
}

/// The rates of a function, and how many accepted calls may be unfinished at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// The rate of all callers together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<Rate>,
    /// The rate of each caller. The node distinguishes callers by their names if the access mode names
    /// them, and otherwise by their addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<Rate>,
    /// How many calls of all callers together may be unfinished, from 1 to [`CALLS_AT_ONCE_MAX`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_once: Option<u32>,
    /// How many calls of each caller may be unfinished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller_at_once: Option<u32>,
}

impl Rates {
    /// No limits.
    pub const NONE: Self = Self { all: None, caller: None, at_once: None, caller_at_once: None };

    /// Whether there are no limits. This is called for each call.
    #[inline]
    pub fn is_none(&self) -> bool {
        // The operator `&` avoids branches between the checks.
        self.all.is_none()
            & self.caller.is_none()
            & self.at_once.is_none()
            & self.caller_at_once.is_none()
    }

    /// Whether a limit applies to each caller separately.
    pub fn is_by_caller(&self) -> bool {
        self.caller.is_some() || self.caller_at_once.is_some()
    }

    /// Returns the key whose number is outside its limits, and the limits.
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
