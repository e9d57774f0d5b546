//! The settings of the functions' logs on disk.

use std::ops::RangeInclusive;
use std::time::Duration;

use mote_spec::quantity::{parse_duration_ms, parse_size};
use mote_store::log_files::LogLimits;

use super::Check;

const SIZES: RangeInclusive<u64> = 16 << 20..=1 << 30;
const AGES_MS: RangeInclusive<u64> = 60 * 1_000..=10 * 366 * 24 * 60 * 60 * 1_000;
const WRITES: RangeInclusive<u64> = 1 << 20..=1 << 50;

impl Check<'_> {
    /// The limits of the logs on disk; `None` if they are only in memory.
    pub(super) fn logs(&mut self) -> Option<LogLimits> {
        let size = |text: &str| parse_size(text).ok();
        let bytes = match self.given("log_size").as_deref() {
            Some("off") => {
                self.settle("log_size", "off".to_owned());
                None
            }
            _ => self.amount("log_size", "64MiB", size, SIZES, "a size from 16MiB to 1GiB, or off"),
        };
        let time = |text: &str| parse_duration_ms(text).ok();
        let age =
            self.amount("log_age", "14d", time, AGES_MS, "a time from 1m to 10 years, as 14d");
        let writes = self.amount("log_writes", "256MiB", size, WRITES, "a size of at least 1MiB");
        Some(LogLimits { bytes: bytes?, age: Duration::from_millis(age?), bytes_per_day: writes? })
    }

    fn amount(
        &mut self,
        key: &str,
        default: &str,
        parse: impl Fn(&str) -> Option<u64>,
        allowed: RangeInclusive<u64>,
        wanted: &str,
    ) -> Option<u64> {
        let text = self.given(key).unwrap_or_else(|| default.to_owned());
        let amount = parse(&text).filter(|amount| allowed.contains(amount));
        if amount.is_none() {
            self.fault(key, wanted, None);
        }
        self.settle(key, text);
        amount
    }
}
