//! Compares the times of a whole year with those of Python's croniter and zoneinfo.

#![allow(clippy::unwrap_used)]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use mote_schedule::times::Times;
use mote_spec::{Schedule, When};
use serde_json::{Value, json};

const YEAR: i16 = 2026;

/// Zones whose summer time adds an hour, in both hemispheres, or half an hour; a zone whose offset
/// has a fraction of an hour; and a zone without clock changes.
const ZONES: [&str; 5] =
    ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC"];

/// Expressions that both libraries read in the same way. All forms of fields occur, and the hours
/// of clock changes (1, 2 and 3) occur often.
const EXPRESSIONS: &[&str] = &[
    "*/5 * * * *",
    "7,37 * * * *",
    "0 * * * *",
    "45 * * * *",
    "59 * * * *",
    "15,45 * * * 0",
    "0 */2 * * *",
    "0 */3 * * *",
    "30 */6 * * *",
    "0 1-23/2 * * *",
    "0 0 * * *",
    "30 0 * * *",
    "30 1 * * *",
    "0 2 * * *",
    "1 2 * * *",
    "15 2 * * *",
    "30 2 * * *",
    "59 2 * * *",
    "0 3 * * *",
    "30 3 * * *",
    "0 1,2,3 * * *",
    "*/15 2 * * *",
    "*/20 1-3 * * *",
    "*/10 2,14 * * *",
    "0 12 * * *",
    "15 6 * * 1-5",
    "0 6 * * mon-fri",
    "0 22 * * SUN",
    "0 9 * * 7",
    "30 2 * * 0",
    "0 4 * * 6,0",
    "0 0 1 * *",
    "0 0 1,15 * *",
    "30 2 29 3 *",
    "30 2 25 10 *",
    "30 1 1 11 *",
    "0 5 31 * *",
    "0 0 29 2 *",
    "0 0 L * *",
    "0 0 1 1 *",
    "0 0 1 */3 *",
    "0 0 1 jan,jul *",
    "0 12 1-7 * 1",
    "0 12 13 * 5",
    "0 12 * * 5#2",
    "0 8 * * 1#1",
    "30 4 */7 * *",
    "0 7-19/4 * 4-9 *",
    "30 15 2 * * *",
    "0 */30 * * * *",
    "15,45 0 3 * * 1",
];

fn cron(expression: &str, zone: &str) -> Times {
    let expression = expression.to_owned();
    let timezone = zone.to_owned();
    let schedule = Schedule::new(When::Cron { expression, timezone });
    Times::read(Arc::new(schedule), 0).unwrap().0
}

/// Returns our times of the year in a zone, in seconds since 1970.
fn ours(expression: &str, zone: &str) -> Vec<i64> {
    let start = |year| {
        let zone = mote_schedule::times::zone(zone).unwrap();
        zone.to_timestamp(jiff::civil::date(year, 1, 1).at(0, 0, 0, 0)).unwrap().as_millisecond()
    };
    let first = start(YEAR);
    let end = start(YEAR + 1);
    let times = cron(expression, zone);
    times.iter(first).take_while(|time| *time < end).map(|time| time / 1_000).collect()
}

/// Whether the clock of the zone changes within two hours of `time`.
fn is_near_a_change(zone: &str, time: i64) -> bool {
    let zone = mote_schedule::times::zone(zone).unwrap();
    let from = jiff::Timestamp::from_second(time - 7_200).unwrap();
    let change = zone.following(from).next();
    change.is_some_and(|change| change.timestamp().as_second() <= time + 7_200)
}

#[test]
fn a_year_in_five_zones_is_the_year_of_croniter() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let python = root.join(".cache/test-venv/bin/python");
    let has = Command::new(&python).args(["-c", "import croniter"]).output();
    if !has.is_ok_and(|ran| ran.status.success()) {
        eprintln!("SKIPPED: croniter is not in .cache/test-venv: scripts/setup.sh test");
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle.py");
    let mut running = Command::new(python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let asked = json!({ "year": YEAR, "zones": ZONES, "expressions": EXPRESSIONS });
    running.stdin.take().unwrap().write_all(asked.to_string().as_bytes()).unwrap();
    let output = running.wait_with_output().unwrap();
    assert!(output.status.success());
    let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(all.len(), ZONES.len() * EXPRESSIONS.len());
    let seconds = |value: &Value| -> Vec<i64> {
        value.as_array().unwrap().iter().map(|one| one.as_i64().unwrap()).collect()
    };
    let mut compared = 0;
    let mut differ_by_rule = 0;
    let mut differ = Vec::new();
    for one in &all {
        let (expression, zone) =
            (one["expression"].as_str().unwrap(), one["zone"].as_str().unwrap());
        let ours = ours(expression, zone);
        let theirs = seconds(&one["rule"]);
        compared += theirs.len();
        let only = |these: &[i64], those: &[i64]| -> Vec<i64> {
            these.iter().filter(|time| !those.contains(time)).take(5).copied().collect()
        };
        if ours != theirs {
            let more = only(&ours, &theirs);
            let fewer = only(&theirs, &ours);
            differ
                .push(format!("{expression} in {zone}: only ours {more:?}, only theirs {fewer:?}"));
        }
        // croniter has a different rule for clock changes, so its times may differ from ours only
        // near such a change.
        if !one["own"].is_null() {
            let own = seconds(&one["own"]);
            for time in only(&ours, &own).into_iter().chain(only(&own, &ours)) {
                differ_by_rule += 1;
                if !is_near_a_change(zone, time) {
                    differ.push(format!("{expression} in {zone}: croniter differs at {time}"));
                }
            }
        }
    }
    println!(
        "{compared} times compared; {differ_by_rule} differ by croniter's own rule for changes"
    );
    assert!(compared > 500_000, "{compared}");
    assert_eq!(differ, Vec::<String>::new());
}
