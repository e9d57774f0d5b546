//! Points in time on the wire: RFC 3339 in UTC with milliseconds, or microseconds where they are known.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A point in time, in microseconds since 1970. Ordered and cheap to copy; reads and writes
/// `2026-01-31T12:00:00.000Z`, with six digits when it is between two milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

/// A text that is not a time in UTC.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("time: RFC 3339 in UTC, e.g. 2026-01-31T12:00:00Z")]
pub struct TimestampError;

/// Last millisecond of the year 9999; later times are shown as this.
const UNIX_US_MAX: u64 = 253_402_300_799_999_000;
const DAY_US: u64 = 86_400_000_000;

impl Timestamp {
    /// From milliseconds since 1970.
    pub fn from_unix_ms(unix_ms: u64) -> Self {
        Self::from_unix_us(unix_ms.saturating_mul(1_000))
    }

    /// From microseconds since 1970.
    pub fn from_unix_us(unix_us: u64) -> Self {
        Self(unix_us.min(UNIX_US_MAX))
    }

    /// Milliseconds since 1970.
    pub fn unix_ms(self) -> u64 {
        self.0 / 1_000
    }

    /// Microseconds since 1970.
    pub fn unix_us(self) -> u64 {
        self.0
    }

    /// Reads `YYYY-MM-DDTHH:MM:SS[.fff]Z`; digits past microseconds are dropped.
    pub fn parse(text: &str) -> Result<Self, TimestampError> {
        parse(text).map(Self::from_unix_us).ok_or(TimestampError)
    }
}

fn parse(text: &str) -> Option<u64> {
    let body = text.strip_suffix(['Z', 'z'])?;
    let bytes = body.as_bytes();
    if !body.is_ascii()
        || bytes.len() < 19
        || bytes[4] != b'-'
        || bytes[7] != b'-'
        || !matches!(bytes[10], b'T' | b't' | b' ')
        || bytes[13] != b':'
        || bytes[16] != b':'
    {
        return None;
    }
    let number = |from: usize, to: usize| -> Option<u64> {
        let digits = &body[from..to];
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let micros = match body.get(19..)? {
        "" => 0,
        fraction => {
            let digits = fraction.strip_prefix('.')?;
            if digits.is_empty() || digits.len() > 9 || !digits.bytes().all(|b| b.is_ascii_digit())
            {
                return None;
            }
            format!("{digits:0<6}")[..6].parse().ok()?
        }
    };
    if year < 1970
        || !(1..=12).contains(&month)
        || day == 0
        || day > month_days(year, month)
        || hour > 23
        || minute > 59
        || second > 60
    {
        return None;
    }
    let seconds = (hour * 60 + minute) * 60 + second;
    Some(days_since_1970(year, month, day) * DAY_US + seconds * 1_000_000 + micros)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn month_days(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days of the civil calendar; years count from March so that the leap day comes last.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil(self.0 / DAY_US);
        let second = self.0 % DAY_US / 1_000_000;
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.")?;
        match self.0 % 1_000_000 {
            micros if micros % 1_000 == 0 => write!(f, "{:03}Z", micros / 1_000),
            micros => write!(f, "{micros:06}Z"),
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_back_as_they_were_written() {
        for (unix_ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_767_225_599_999, "2025-12-31T23:59:59.999Z"),
            (1_774_958_400_123, "2026-03-31T12:00:00.123Z"),
            (UNIX_US_MAX / 1_000, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(Timestamp::from_unix_ms(unix_ms).to_string(), text);
            assert_eq!(Timestamp::parse(text), Ok(Timestamp::from_unix_ms(unix_ms)), "{text}");
        }
        for day in (0..80_000).step_by(17) {
            let time = Timestamp::from_unix_us(day * DAY_US + 1);
            assert_eq!(Timestamp::parse(&time.to_string()), Ok(time));
        }
        assert_eq!(Timestamp::parse("1970-01-01T00:00:01.5Z"), Ok(Timestamp::from_unix_ms(1_500)));
        assert_eq!(Timestamp::parse("1970-01-01T00:00:01.000002Z").unwrap().unix_us(), 1_000_002);
    }

    #[test]
    fn what_is_not_a_time_is_refused() {
        for text in [
            "",
            "now",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00+01:00",
            "1969-12-31T23:59:59Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00.Z",
            "+026-01-01T00:00:00Z",
            "2026-01-01T00:00:00Zé",
            "é026-01-01T00:00:00Z",
        ] {
            assert!(Timestamp::parse(text).is_err(), "{text}");
        }
    }
}
