//! How many calls from outside a function accepts in a time.

use serde::{Deserialize, Serialize};

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

/// The rates of a function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Of all callers together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<Rate>,
    /// Of each caller: of each key if the function asks for one, otherwise of each address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<Rate>,
}

impl Rates {
    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the numbers are within their limits.
    pub(super) fn is_valid(&self) -> bool {
        let is_valid = |rate: Rate| {
            let numbers = [rate.calls, rate.burst];
            numbers.iter().all(|number| (1..=RATE_CALLS_MAX).contains(number))
                && (1..=RATE_PERIOD_MS_MAX).contains(&rate.period_ms)
        };
        [self.all, self.caller].into_iter().flatten().all(is_valid)
    }
}
