//! Points in time on the wire. They are RFC 3339 in UTC with milliseconds, or with microseconds if
//! these are known.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A point in time, in microseconds since 1970. Its text is `2026-01-31T12:00:00.000Z`, with six
/// digits after the point if the time is not a whole number of milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

/// The error for a text that is not a time.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("time: RFC 3339, e.g. 2026-01-31T12:00:00Z")]
pub struct TimestampError;

/// The last time that can be printed, which is a day before the year 10000. Later times are printed as
/// this time.
const UNIX_US_MAX: u64 = 253_402_207_200_999_000;

impl Timestamp {
    /// Makes a time from milliseconds since 1970.
    pub fn from_unix_ms(unix_ms: u64) -> Self {
        Self::from_unix_us(unix_ms.saturating_mul(1_000))
    }

    /// Makes a time from microseconds since 1970.
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

    /// Parses an RFC 3339 time with any offset. Digits after the microseconds are dropped. Times before
    /// 1970 are refused.
    pub fn parse(text: &str) -> Result<Self, TimestampError> {
        let time: jiff::Timestamp = text.parse().map_err(|_| TimestampError)?;
        u64::try_from(time.as_microsecond()).map(Self::from_unix_us).map_err(|_| TimestampError)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time =
            i64::try_from(self.0).ok().and_then(|us| jiff::Timestamp::from_microsecond(us).ok());
        let time = time.unwrap_or(jiff::Timestamp::MAX);
        let digits = if self.0.is_multiple_of(1_000) { 3 } else { 6 };
        write!(f, "{time:.digits$}")
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
            (UNIX_US_MAX / 1_000, "9999-12-30T22:00:00.999Z"),
        ] {
            assert_eq!(Timestamp::from_unix_ms(unix_ms).to_string(), text);
            assert_eq!(Timestamp::parse(text), Ok(Timestamp::from_unix_ms(unix_ms)), "{text}");
        }
        assert_eq!(Timestamp::parse("1970-01-01T00:00:01.5Z"), Ok(Timestamp::from_unix_ms(1_500)));
        let time = Timestamp::from_unix_us(1_000_002);
        assert_eq!(Timestamp::parse("1970-01-01T00:00:01.000002Z"), Ok(time));
        assert_eq!(time.to_string(), "1970-01-01T00:00:01.000002Z");
        assert_eq!(
            Timestamp::parse("1970-01-01T01:00:01+01:00"),
            Ok(Timestamp::from_unix_ms(1_000))
        );
    }

    #[test]
    fn what_is_not_a_time_is_refused() {
        for text in [
            "",
            "now",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01T00:00:00",
            "1970-01-01T00:00:00+01:00",
            "2026-01-01T00:00:00+99:00",
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
