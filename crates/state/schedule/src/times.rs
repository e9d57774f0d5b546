//! The times of a schedule: reads an expression, and finds the next time after a given one.
//!
//! The library `croner` reads cron expressions and searches the calendar, but it never sees a time
//! zone. This module translates between the calendar and the zone, because the rule for clock
//! changes is a promise to users (docs/decisions/0037-journal.md).

use std::sync::Arc;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use mote_spec::{EXPRESSION_BYTES_MAX, Schedule, When};

/// Milliseconds since 1970 in UTC.
pub type UnixMs = i64;

/// Why a schedule cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimesError {
    #[error("{0}")]
    Expression(String),
    /// No day of the calendar matches.
    #[error("no date ever matches it")]
    Never,
    /// The zone is missing from the database of this machine.
    #[error("no zone of this name")]
    Zone,
    /// This machine has no time zone database.
    #[error("this machine has no database of time zones, so only UTC can be used")]
    NoZones,
}

/// Finds a zone by its IANA name. UTC needs no database.
pub fn zone(name: &str) -> Result<TimeZone, TimesError> {
    if name == "UTC" {
        return Ok(TimeZone::UTC);
    }
    let zones = jiff::tz::db();
    match zones.get(name) {
        Ok(zone) => Ok(zone),
        Err(_) if zones.is_definitively_empty() || zones.available().next().is_none() => {
            Err(TimesError::NoZones)
        }
        Err(_) => Err(TimesError::Zone),
    }
}

pub fn zones() -> Vec<String> {
    jiff::tz::db().available().map(|name| name.to_string()).collect()
}

/// Reads a cron expression: five fields, six with seconds first, or a word such as `@hourly`.
fn read(expression: &str) -> Result<Cron, TimesError> {
    if expression.len() > EXPRESSION_BYTES_MAX {
        let text = format!("at most {EXPRESSION_BYTES_MAX} bytes");
        return Err(TimesError::Expression(text));
    }
    let words = expression.split_whitespace().count();
    let is_word = expression.trim_start().starts_with('@') && words == 1;
    if !is_word && !(5..=6).contains(&words) {
        let text = format!("five fields, or six with seconds first, not {words}");
        return Err(TimesError::Expression(text));
    }
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    parser.parse(expression).map_err(|error| {
        let text = error.to_string();
        // The library puts the kind of the error in front of the actual message.
        let text = text.split_once(": ").map_or(text.as_str(), |(_, what)| what);
        TimesError::Expression(text.trim_end_matches('.').to_owned())
    })
}

/// The times of one schedule. A parsed expression takes kilobytes, so only the text is kept. It is
/// parsed again whenever the next time is needed.
#[derive(Debug, Clone)]
pub struct Times {
    schedule: Arc<Schedule>,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Cron { zone: TimeZone, is_hourly: bool },
    Every { ms: i64 },
}

/// If an expression has no time after this date, it never has one.
const CALENDAR_START: DateTime = DateTime::constant(2000, 1, 1, 0, 0, 0, 0);

impl Times {
    /// Reads the times of a schedule, and finds the first time after `after`.
    pub fn read(
        schedule: Arc<Schedule>,
        after: UnixMs,
    ) -> Result<(Self, Option<UnixMs>), TimesError> {
        let mut parsed = None;
        let kind = match &schedule.when {
            When::Every { ms } => Kind::Every { ms: i64::try_from(*ms).unwrap_or(i64::MAX).max(1) },
            When::Cron { expression, timezone } => {
                let cron = read(expression)?;
                let is_hourly = is_hourly(&cron);
                parsed = Some(cron);
                Kind::Cron { zone: zone(timezone)?, is_hourly }
            }
        };
        let times = Self { schedule, kind };
        let first = times.after(after, &mut parsed);
        if first.is_none() && parsed.is_some_and(|cron| is_never(&cron)) {
            return Err(TimesError::Never);
        }
        Ok((times, first))
    }

    pub fn schedule(&self) -> &Arc<Schedule> {
        &self.schedule
    }

    pub fn next(&self, after: UnixMs) -> Option<UnixMs> {
        self.after(after, &mut None)
    }

    pub fn iter(&self, after: UnixMs) -> impl Iterator<Item = UnixMs> + '_ {
        let mut at = after;
        let mut parsed = None;
        std::iter::from_fn(move || {
            at = self.after(at, &mut parsed)?;
            Some(at)
        })
    }

    /// Returns the `most` newest times in (`after`, `until`], oldest first. However long the range
    /// is, the search looks at a bounded number of times.
    pub fn newest(&self, after: UnixMs, until: UnixMs, most: usize) -> Vec<UnixMs> {
        const HOUR_MS: i64 = 3_600_000;
        let mut window = HOUR_MS;
        loop {
            let start = until.saturating_sub(window).max(after);
            // The search stays bounded: each window is larger than the one before by a constant
            // factor, and is searched only if the smaller window has fewer than `most` times.
            let found: Vec<UnixMs> = self.iter(start).take_while(|time| *time <= until).collect();
            if found.len() >= most || start == after {
                let surplus = found.len().saturating_sub(most);
                return found[surplus..].to_vec();
            }
            window = window.saturating_mul(24);
        }
    }

    fn after(&self, after: UnixMs, parsed: &mut Option<Cron>) -> Option<UnixMs> {
        match (&self.kind, &self.schedule.when) {
            (Kind::Every { ms }, _) => after.div_euclid(*ms).checked_add(1)?.checked_mul(*ms),
            (Kind::Cron { .. }, When::Every { .. }) => None,
            (Kind::Cron { zone, is_hourly }, When::Cron { expression, .. }) => {
                if parsed.is_none() {
                    *parsed = read(expression).ok();
                }
                let cron = parsed.as_ref()?;
                let after = Timestamp::from_millisecond(after).ok()?;
                let found = match is_hourly {
                    true => next_of_every_hour(cron, zone, after),
                    false => next_of_hours(cron, zone, after),
                };
                Some(found?.as_millisecond())
            }
        }
    }
}

/// Checks an expression without its time zone.
pub fn check_expression(expression: &str) -> Result<(), TimesError> {
    if is_never(&read(expression)?) { Err(TimesError::Never) } else { Ok(()) }
}

fn is_never(cron: &Cron) -> bool {
    search(cron, CALENDAR_START, true).is_none()
}

/// Whether an expression names no hours, and therefore runs in every hour of its days.
fn is_hourly(cron: &Cron) -> bool {
    (0..24).all(|hour| cron.pattern.hours.is_bit_set(hour, 1).unwrap_or(false))
}

fn search(cron: &Cron, from: DateTime, inclusive: bool) -> Option<DateTime> {
    cron.find_next_occurrence(&from, inclusive).ok()
}

/// Finds the next time of an expression that names hours. It runs once for each local time that it
/// names. If the clock skips that local time, the expression runs once the clock has moved. If the
/// clock repeats that time, the expression runs the first time.
fn next_of_hours(cron: &Cron, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
    let mut local = zone.to_datetime(after);
    loop {
        local = search(cron, local, false)?;
        let found = zone.to_ambiguous_timestamp(local);
        let time = match found.offset() {
            // With the later offset, the skipped local time is before the change, so the change is
            // the next transition.
            AmbiguousOffset::Gap { after: offset, .. } => {
                let before = offset.to_timestamp(local).ok()?;
                zone.following(before).next()?.timestamp()
            }
            AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => {
                found.earlier().ok()?
            }
        };
        // A time that is not later is passed over. In the second pass of a repeated hour, the times
        // of that hour have already run. After a skipped hour, all its times fall on the same
        // moment.
        if time > after {
            return Some(time);
        }
    }
}

/// Finds the next time of an expression that runs in every hour. Such an expression follows elapsed
/// time: it runs in both passes of a repeated hour, and never in a skipped hour, which has no
/// length.
fn next_of_every_hour(cron: &Cron, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
    // Between two changes of the clock, local time and elapsed time differ by a constant.
    let mut from = after;
    let mut inclusive = false;
    loop {
        let offset = zone.to_offset(from);
        let local = search(cron, offset.to_datetime(from), inclusive)?;
        let time = offset.to_timestamp(local).ok();
        let change = zone.following(from).next().map(|change| change.timestamp());
        match (time, change) {
            (Some(time), None) => return Some(time),
            (Some(time), Some(change)) if time < change => return Some(time),
            (_, Some(change)) => (from, inclusive) = (change, true),
            (None, None) => return None,
        }
    }
}

/// A time for people and for header fields, as RFC 3339 in UTC.
pub fn shown(time: UnixMs) -> String {
    Timestamp::from_millisecond(time).unwrap_or(Timestamp::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cron(expression: &str, zone: &str) -> Result<Times, TimesError> {
        let expression = expression.to_owned();
        let timezone = zone.to_owned();
        let schedule = Schedule::new(When::Cron { expression, timezone });
        Ok(Times::read(Arc::new(schedule), 0)?.0)
    }

    fn ms(text: &str) -> UnixMs {
        text.parse::<Timestamp>().unwrap().as_millisecond()
    }

    #[track_caller]
    fn check(expression: &str, zone: &str, after: &str, expected: &[&str]) {
        let times = cron(expression, zone).unwrap();
        let found: Vec<String> = times.iter(ms(after)).take(expected.len()).map(shown).collect();
        assert_eq!(found, expected, "{expression} in {zone} after {after}");
    }

    #[test]
    fn fields_seconds_names_and_words() {
        check("*/5 * * * *", "UTC", "2026-01-01T00:00:00Z", &["2026-01-01T00:05:00Z"]);
        check("*/10 * * * * *", "UTC", "2026-01-01T00:00:09.9Z", &["2026-01-01T00:00:10Z"]);
        check("@hourly", "UTC", "2026-01-01T00:59:59.999Z", &["2026-01-01T01:00:00Z"]);
        check("@daily", "Asia/Kolkata", "2026-01-01T00:00:00Z", &["2026-01-01T18:30:00Z"]);
        check("@weekly", "UTC", "2026-01-01T00:00:00Z", &["2026-01-04T00:00:00Z"]);
        check("@monthly", "UTC", "2026-01-01T00:00:00Z", &["2026-02-01T00:00:00Z"]);
        check("@yearly", "UTC", "2026-01-01T00:00:00Z", &["2027-01-01T00:00:00Z"]);
        check("0 6 * * MON-FRI", "UTC", "2026-01-02T06:00:00Z", &["2026-01-05T06:00:00Z"]);
        check("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", &["2028-02-29T00:00:00Z"]);
        check("0 0 L * *", "UTC", "2026-02-01T00:00:00Z", &["2026-02-28T00:00:00Z"]);
        check("0 0 15W 8 *", "UTC", "2026-01-01T00:00:00Z", &["2026-08-14T00:00:00Z"]);
        check("0 0 * 5 fri#2", "UTC", "2026-01-01T00:00:00Z", &["2026-05-08T00:00:00Z"]);
        check("0 0 1 * mon", "UTC", "2026-01-29T00:00:00Z", &["2026-02-01T00:00:00Z"]);
    }

    #[test]
    fn a_skipped_local_time_runs_once_when_the_clock_has_moved() {
        // Berlin moves from 02:00 to 03:00 at 01:00 UTC.
        let change = ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"];
        check("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", &change);
        let before = "2026-03-29T00:59:00Z";
        let at = "2026-03-29T01:00:00Z";
        check("*/15 2-3 * * *", "Europe/Berlin", before, &[at, "2026-03-29T01:15:00Z"]);
        check("0 */2 * * *", "Europe/Berlin", before, &[at, "2026-03-29T02:00:00Z"]);
        // An expression for every hour loses no run, because no time passes in the skipped hour.
        check("30 * * * *", "Europe/Berlin", "2026-03-29T00:30:00Z", &["2026-03-29T01:30:00Z"]);
        // Lord Howe Island moves from 02:00 to 02:30.
        let moved = ["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"];
        check("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", &moved);
    }

    #[test]
    fn a_repeated_local_time_runs_once_and_every_hour_runs_on() {
        // Berlin moves from 03:00 to 02:00 at 01:00 UTC.
        let once = ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"];
        check("30 2 * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", &once);
        let hourly = ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"];
        check("30 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", &hourly);
        // A restart in the second pass of the hour repeats no run.
        check("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", &["2026-10-26T01:30:00Z"]);
    }

    #[test]
    fn an_interval_counts_from_1970_and_needs_no_state() {
        let every = Schedule::new(When::Every { ms: 10_000 });
        let (times, first) = Times::read(Arc::new(every), 5).unwrap();
        assert_eq!(first, Some(10_000));
        let found: Vec<_> = times.iter(-1).take(3).collect();
        assert_eq!(found, [0, 10_000, 20_000]);
        assert_eq!(times.next(9_999), Some(10_000));
        assert_eq!(times.next(i64::MAX), None);
    }

    #[test]
    fn mistakes_are_named() {
        let check = |expression: &str, zone: &str, expected: &str| {
            assert_eq!(cron(expression, zone).unwrap_err().to_string(), expected, "{expression}");
        };
        check("* * * *", "UTC", "five fields, or six with seconds first, not 4");
        check("", "UTC", "five fields, or six with seconds first, not 0");
        check("0 0 0 1 1 * 2030", "UTC", "five fields, or six with seconds first, not 7");
        check("0 0 30 2 *", "UTC", "no date ever matches it");
        check("0 0 * * *", "Europe/Berlni", "no zone of this name");
        for wrong in
            ["61 * * * *", "* 24 * * *", "x * * * *", "@reboot", "@every 5s", "*/0 * * * *"]
        {
            assert!(matches!(cron(wrong, "UTC"), Err(TimesError::Expression(_))), "{wrong}");
        }
    }

    #[test]
    fn hostile_text_is_refused_without_a_panic() {
        for text in
            ["\0", "🕐 * * * *", "* * * * * * * * *", "*/99999999999 * * * *", "1-0 * * * *"]
        {
            assert!(cron(text, "UTC").is_err(), "{text}");
        }
        let long = "1,".repeat(10_000) + "1 * * * *";
        assert!(cron(&long, "UTC").is_err());
        for zone in ["../../etc/passwd", "/etc/localtime", "", "Europe/\0", "🕐"] {
            assert!(cron("* * * * *", zone).is_err(), "{zone}");
        }
    }

    /// The result of a search must not depend on where it begins. Otherwise a schedule could be due
    /// without having a time to run.
    #[test]
    fn a_search_from_any_moment_finds_the_same_times() {
        const MINUTE: i64 = 60_000;
        let zones = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"];
        let expressions =
            ["*/15 * * * *", "30 2 * * *", "*/20 1-3 * * *", "0 */2 * * *", "7 1,2 * * *"];
        for name in zones {
            let zone = zone(name).unwrap();
            for change in zone.following(Timestamp::UNIX_EPOCH).skip(60).take(4) {
                let change = change.timestamp().as_millisecond();
                let first = change - 300 * MINUTE;
                let last = change + 300 * MINUTE;
                for expression in expressions {
                    let times = cron(expression, name).unwrap();
                    let all: Vec<_> = times.iter(first).take_while(|time| *time <= last).collect();
                    assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
                    for after in (first..last).step_by(7 * MINUTE as usize) {
                        let expected = all.iter().copied().find(|time| *time > after);
                        let found = times.next(after).filter(|time| *time <= last);
                        assert_eq!(found, expected, "{expression} in {name} after {after}");
                        let newest = times.newest(after, last, 1_000);
                        let later = all.iter().filter(|time| **time > after);
                        assert!(newest.iter().eq(later), "{expression} in {name} from {after}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_newest_times_of_decades_are_found_at_once() {
        let after = 0;
        let until = ms("2026-01-01T00:00:30Z");
        let second = cron("* * * * * *", "Europe/Berlin").unwrap();
        assert_eq!(second.newest(after, until, 3), [until - 2_000, until - 1_000, until]);
        let yearly = cron("@yearly", "UTC").unwrap();
        let years = ["2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z"].map(ms);
        assert_eq!(yearly.newest(after, until, 2), years);
        assert_eq!(yearly.newest(after, until, 100).len(), 56);
        assert!(yearly.newest(until, until, 100).is_empty());
        assert!(yearly.newest(until, after, 100).is_empty(), "the clock was set back");
    }
}
