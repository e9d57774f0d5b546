//! A node is stopped, killed and started at random moments, and its clock steps. The node must run
//! every due time exactly once. The due times come from croniter and zoneinfo, in ten zones, over
//! the days on which their clocks change.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use mote_core::accept::Accepted;
use mote_core::invocation::InvocationId;
use mote_schedule::UnixMs;
use mote_schedule::book::{Begin, Book};
use mote_spec::{Missed, Overlap, Schedule, When};
use serde_json::{Value, json};

const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const YEAR: i32 = 2026;

/// Each zone with a day on which its clock changes, or any day if it never does.
const ZONES: [(&str, (u32, u32)); 10] = [
    ("Europe/Berlin", (3, 29)),
    ("Europe/Lisbon", (10, 25)),
    ("America/New_York", (11, 1)),
    ("America/Los_Angeles", (3, 8)),
    ("America/Santiago", (4, 5)),
    ("Australia/Lord_Howe", (10, 4)),
    ("Pacific/Auckland", (9, 27)),
    ("Africa/Cairo", (4, 24)),
    ("Asia/Kolkata", (6, 15)),
    ("UTC", (2, 28)),
];
const EXPRESSIONS: [&str; 6] =
    ["*/10 * * * *", "7,37 * * * *", "0 * * * *", "30 1,2,3 * * *", "0 0,12 * * *", "*/15 2 * * *"];

/// The due times of a year by expression and zone, computed by a library that the product does not
/// use.
fn oracle() -> Option<BTreeMap<(String, String), Vec<UnixMs>>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = here.join("../../../.cache/test-venv/bin/python");
    let has = Command::new(&python).args(["-c", "import croniter"]).output();
    if !has.is_ok_and(|ran| ran.status.success()) {
        eprintln!("SKIPPED: croniter is not in .cache/test-venv: scripts/setup.sh test");
        return None;
    }
    let mut running = Command::new(python)
        .arg(here.join("tests/oracle.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let zones: Vec<&str> = ZONES.iter().map(|(zone, _)| *zone).collect();
    let asked = json!({ "year": YEAR, "zones": zones, "expressions": EXPRESSIONS });
    running.stdin.take().unwrap().write_all(asked.to_string().as_bytes()).unwrap();
    let output = running.wait_with_output().unwrap();
    assert!(output.status.success());
    let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let times = |one: &Value| {
        let seconds = one["rule"].as_array().unwrap().iter();
        seconds.map(|second| second.as_i64().unwrap() * SECOND).collect()
    };
    let key = |one: &Value| {
        let text = |name: &str| one[name].as_str().unwrap().to_owned();
        (text("expression"), text("zone"))
    };
    Some(all.iter().map(|one| (key(one), times(one))).collect())
}

/// A small seeded generator of random numbers.
struct Random(u64);

impl Random {
    /// Returns a number from 0 up to but not including `end`.
    fn below(&mut self, end: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as i64 % end
    }
}

/// A journal that accepts each key once. It survives kills.
#[derive(Default)]
struct Journal {
    keys: HashSet<String>,
    ran: Vec<UnixMs>,
}

/// Everything that a node keeps on disk, and what has happened to it.
struct Life<'a> {
    schedule: &'a Arc<Schedule>,
    random: Random,
    journal: Journal,
    mark: Option<UnixMs>,
    /// The periods in which the node was off, each from a stop or kill to the next start.
    off: Vec<(UnixMs, UnixMs)>,
}

impl Life<'_> {
    /// Runs due times. The journal answers at once, later, or not before a kill.
    fn look(&mut self, book: &mut Book, now: UnixMs, is_killed: bool) {
        while book.wake().is_some_and(|wake| wake <= now) {
            for run in book.due(now) {
                // A kill may come before the journal has received the run.
                if is_killed && self.random.below(2) == 0 {
                    continue;
                }
                if self.journal.keys.insert(run.deferred.key.clone().unwrap()) {
                    self.journal.ran.push(run.due);
                }
                let accepted = Ok(Accepted { id: InvocationId(1), is_new: true });
                if book.answered((&run.key, run.due, run.is_counted), accepted, now) {
                    book.ended(&run.key);
                }
            }
        }
    }

    /// Runs the node from `from` to `until`: it starts, waits, stops or is killed, and starts
    /// again.
    fn live(&mut self, from: UnixMs, until: UnixMs) {
        let mut now = from;
        let mut is_first = true;
        while now < until {
            let mut book = Book::default();
            let handled = self.mark.map_or(now, |mark| mark.min(now));
            let begin = match is_first {
                true => Begin::new(now),
                false => Begin { handled, started: Some(now) },
            };
            is_first = false;
            book.publish("f", std::slice::from_ref(self.schedule), 1, begin, &[]).unwrap();
            self.mark = Some(book.mark(now));
            // Most runs of the node are short, as in a loop of restarts; some last for hours.
            let length = match self.random.below(4) {
                0 => self.random.below(5 * HOUR),
                _ => self.random.below(20 * MINUTE),
            };
            let end = (now + 1 + length).min(until);
            while now < end {
                self.look(&mut book, now, false);
                // Once in a while the clock is set back by up to a minute, which the timer reports.
                if self.random.below(40) == 0 {
                    now -= self.random.below(MINUTE);
                    book.clock_was_set(now);
                }
                let wake = book.wake().unwrap_or(end);
                now =
                    end.min((now + 1 + self.random.below(30 * SECOND)).max(wake.min(now + MINUTE)));
            }
            let is_killed = self.random.below(2) == 0;
            self.look(&mut book, now, is_killed);
            if !is_killed {
                self.mark = Some(book.mark(now));
            }
            let gap = match self.random.below(3) {
                0 => self.random.below(3 * HOUR),
                _ => self.random.below(50 * SECOND),
            };
            self.off.push((now, now + gap));
            now += gap;
        }
    }
}

#[test]
fn every_due_time_runs_exactly_once_whatever_the_life_of_the_node() {
    let Some(oracle) = oracle() else { return };
    let mut due = 0;
    let mut lives = 0;
    let mut changes = BTreeSet::new();
    for (zone, (month, day)) in ZONES {
        let tz = mote_schedule::times::zone(zone).unwrap();
        let noon = jiff::civil::date(YEAR as i16, month as i8, day as i8).at(12, 0, 0, 0);
        let noon = tz.to_timestamp(noon).unwrap();
        let from = noon.as_millisecond() - 24 * HOUR;
        let until = noon.as_millisecond() + 24 * HOUR;
        let change = tz.following(jiff::Timestamp::from_millisecond(from).unwrap()).next();
        if change.is_some_and(|change| change.timestamp().as_millisecond() < until) {
            changes.insert(zone);
        }
        for expression in EXPRESSIONS {
            let all = &oracle[&(expression.to_owned(), zone.to_owned())];
            for missed in [Missed::Skip, Missed::RunOnce, Missed::RunAll] {
                for seed in 1..=3 {
                    let expression = expression.to_owned();
                    let timezone = zone.to_owned();
                    let mut schedule =
                        Schedule::new(When::Cron { expression: expression.clone(), timezone });
                    (schedule.missed, schedule.overlap) = (missed, Overlap::Allow);
                    let schedule = Arc::new(schedule);
                    let journal = Journal::default();
                    let off = Vec::new();
                    let random = Random(seed * 31 + due as u64);
                    let mut life = Life { schedule: &schedule, random, journal, mark: None, off };
                    life.live(from, until);
                    let end = life.off.pop().unwrap().0;
                    let expected: Vec<UnixMs> = all
                        .iter()
                        .copied()
                        .filter(|time| *time > from && *time < end - MINUTE)
                        .filter(|time| must_run(all, *time, &life.off, missed))
                        .collect();
                    let mut ran = life.journal.ran.clone();
                    ran.sort_unstable();
                    let ran: Vec<UnixMs> =
                        ran.into_iter().filter(|time| *time < end - MINUTE).collect();
                    assert_eq!(
                        ran, expected,
                        "{expression} {zone} {missed:?} {seed} {:?}",
                        life.off
                    );
                    due += expected.len();
                    lives += life.off.len() + 1;
                }
            }
        }
    }
    println!("{due} due times, {lives} lives, clock changes in {changes:?}");
    assert!(due >= 2_000 && lives > 1_000 && changes.len() >= 7, "{due} {lives} {changes:?}");
}

/// Whether `docs/guides/schedules.md` promises that this time runs.
fn must_run(all: &[UnixMs], time: UnixMs, off: &[(UnixMs, UnixMs)], missed: Missed) -> bool {
    let Some((end, start)) = off.iter().find(|(end, start)| *end < time && time <= *start) else {
        return true;
    };
    let is_newest = !all.iter().any(|other| *other > time && other <= start && other > end);
    match missed {
        Missed::RunAll => true,
        Missed::RunOnce => is_newest,
        Missed::Skip => is_newest && start - time <= MINUTE,
    }
}
