use std::slice::from_ref;

use mote_core::invocation::headers;

use super::*;

const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
/// A whole hour.
const START: UnixMs = 1_792_864_800_000;

fn every(ms: i64) -> Schedule {
    Schedule::new(When::Every { ms: ms as u64 })
}

fn edited(schedule: &Schedule, edit: impl FnOnce(&mut Schedule)) -> Arc<Schedule> {
    let mut schedule = schedule.clone();
    edit(&mut schedule);
    Arc::new(schedule)
}

fn book(schedules: &[Arc<Schedule>]) -> Book {
    let mut book = Book::default();
    book.publish("f", schedules, 1, Begin::new(START), &[]).unwrap();
    book
}

/// Returns all runs that are due.
fn runs(book: &mut Book, now: UnixMs) -> Vec<Run> {
    let mut all = Vec::new();
    while book.wake().is_some_and(|wake| wake <= now) {
        all.extend(book.due(now));
    }
    all
}

fn accepted(number: u128) -> Result<Accepted, AcceptError> {
    Ok(Accepted { id: InvocationId(number), is_new: true })
}

/// Accepts a run, and ends it at once.
fn done(book: &mut Book, run: &Run, now: UnixMs) {
    if book.answered((&run.key, run.due, run.is_counted), accepted(1), now) {
        book.ended(&run.key);
    }
}

#[test]
fn a_run_says_what_it_is_for() {
    let schedule = edited(&every(MINUTE), |one| {
        one.call.path = "/tidy?deep=1".into();
        one.call.headers.insert("content-type".into(), "application/json".into());
        one.call.body = "{}".into();
    });
    let mut book = book(&[schedule]);
    assert_eq!(book.wake(), Some(START + MINUTE));
    assert!(runs(&mut book, START + MINUTE - 1).is_empty());
    let all = runs(&mut book, START + MINUTE + 5);
    let Deferred { function, trigger, head, body, key, order, .. } = &all[0].deferred;
    assert_eq!((all.len(), &**function, *trigger), (1, "f", Trigger::Schedule));
    assert_eq!(
        (head.method(), head.path(), head.query()),
        (&b"POST"[..], &b"/tidy"[..], &b"deep=1"[..])
    );
    let fields: Vec<_> = headers(head.headers())
        .map(|(name, value)| {
            (std::str::from_utf8(name).unwrap(), std::str::from_utf8(value).unwrap())
        })
        .collect();
    let expected = [
        ("content-type", "application/json"),
        (FIELD_SCHEDULE, "every 1m"),
        (FIELD_DUE, "2026-10-24T18:01:00Z"),
    ];
    assert_eq!(fields, expected);
    assert_eq!(&body[..], b"{}");
    let order = order.as_deref().unwrap();
    assert_eq!(key.as_deref().unwrap(), format!("{order}/{}", START + MINUTE));
    // The key is stored on disk, so it must not change between builds.
    assert_eq!(order, "schedule/4d334008c332dd99");
}

#[test]
fn overlap_decides_what_a_long_run_keeps_away() {
    let at = |minute: i64| START + minute * MINUTE;
    let with = |overlap| book(&[edited(&every(MINUTE), |one| one.overlap = overlap)]);
    // With `skip`, one time is left out, and the next runs.
    let mut skip = with(Overlap::Skip);
    let first = runs(&mut skip, at(1)).remove(0);
    assert!(runs(&mut skip, at(2)).is_empty(), "the journal has not answered yet");
    assert!(skip.answered((&first.key, first.due, true), accepted(1), at(2)));
    assert!(runs(&mut skip, at(3)).is_empty());
    assert_eq!(skip.list(None)[0].left_out, 2);
    assert_eq!(skip.list(None)[0].last.as_ref().unwrap().outcome, Outcome::LeftOut);
    skip.ended(&first.key);
    assert_eq!(runs(&mut skip, at(4))[0].due, at(4));
    // With `queue`, all times run in order. With `allow`, all run in any order.
    for overlap in [Overlap::Queue, Overlap::Allow] {
        let mut book = with(overlap);
        for minute in 1..4 {
            let run = runs(&mut book, at(minute)).remove(0);
            assert_eq!((run.due, run.is_counted), (at(minute), false));
            assert_eq!(run.deferred.order.is_some(), overlap == Overlap::Queue);
        }
    }
}

#[test]
fn a_restart_makes_up_for_missed_times_once() {
    for (missed, expected) in [(Missed::Skip, 1), (Missed::RunOnce, 1), (Missed::RunAll, 5)] {
        let schedule = edited(&every(MINUTE), |one| one.missed = missed);
        let mut book = Book::default();
        let now = START + 5 * MINUTE + 1;
        let begin = Begin { handled: START, started: Some(now) };
        book.publish("f", from_ref(&schedule), 1, begin, &[]).unwrap();
        let missed_runs = runs(&mut book, now);
        assert_eq!(missed_runs.len(), expected, "{missed:?}");
        for run in &missed_runs {
            assert!(run.deferred.order.is_some(), "they run one after another");
            done(&mut book, run, now);
        }
        assert_eq!(book.mark(now), now);
        assert_eq!(runs(&mut book, START + 6 * MINUTE).len(), 1, "the usual run");
        // The node kept no newer mark, but the journal recognizes the keys.
        let mut again = Book::default();
        again.publish("f", &[schedule], 1, begin, &[]).unwrap();
        let keys =
            |runs: &[Run]| runs.iter().map(|run| run.deferred.key.clone()).collect::<Vec<_>>();
        assert_eq!(keys(&runs(&mut again, now)), keys(&missed_runs));
    }
}

#[test]
fn a_start_before_the_clock_is_set_drops_nothing_that_comes() {
    // The clock is two hours ahead when the node starts, and is then corrected.
    let mut book = Book::default();
    let ahead = START + 2 * HOUR;
    let begin = Begin { handled: ahead, started: Some(ahead) };
    book.publish("f", &[Arc::new(every(HOUR))], 1, begin, &[]).unwrap();
    book.clock_was_set(START);
    assert_eq!(
        runs(&mut book, ahead + HOUR).iter().map(|run| run.due).collect::<Vec<_>>(),
        [ahead + HOUR]
    );
}

#[test]
fn a_time_that_waits_for_its_jitter_at_a_restart_runs() {
    let schedule = edited(&every(HOUR), |one| one.jitter_ms = 600_000);
    let mut book = book(from_ref(&schedule));
    let wake = book.wake().unwrap();
    assert!(wake > START + HOUR + 2, "this seed has jitter");
    let started = wake - 1;
    let mut again = Book::default();
    let begin = Begin { handled: book.mark(START + HOUR + 1), started: Some(started) };
    again.publish("f", &[schedule], 1, begin, &[]).unwrap();
    assert_eq!(again.wake(), Some(wake));
    assert_eq!(runs(&mut again, wake)[0].due, START + HOUR);
}

#[test]
fn what_the_journal_has_not_answered_is_not_handled() {
    let mut book = book(&[Arc::new(every(MINUTE))]);
    let now = START + MINUTE + 5;
    let run = runs(&mut book, now).remove(0);
    assert_eq!(book.mark(now), START + MINUTE - 1);
    done(&mut book, &run, now);
    assert_eq!(book.mark(now), now);
}

#[test]
fn jitter_is_a_constant_that_differs_between_nodes() {
    let schedule = edited(&every(HOUR), |one| one.jitter_ms = 30_000);
    let delay = |seed| {
        let mut book = Book::default();
        book.publish("f", from_ref(&schedule), seed, Begin::new(START), &[]).unwrap();
        let wake = book.wake().unwrap();
        let run = runs(&mut book, wake).remove(0);
        assert_eq!(run.due, START + HOUR, "the time itself is without jitter");
        assert_eq!(book.wake().unwrap() - wake, HOUR, "the distance stays the same");
        wake - START - HOUR
    };
    let delays: Vec<i64> = (0..1_000).map(delay).collect();
    assert_eq!(delays, (0..1_000).map(delay).collect::<Vec<_>>());
    assert!(delays.iter().all(|delay| (0..30_000).contains(delay)));
    let late = delays.iter().filter(|delay| **delay >= 15_000).count();
    assert!((400..600).contains(&late), "{late} of 1000 in the second half");
    // A time that waits for its jitter is not handled yet.
    let mut book = Book::default();
    let schedule = edited(&schedule, |one| one.missed = Missed::RunAll);
    book.publish("f", &[schedule], 1, Begin::new(START), &[]).unwrap();
    assert!(delay(1) > 0);
    assert_eq!(book.mark(START + HOUR), START + HOUR - 1);
}

#[test]
fn a_journal_that_is_full_is_asked_again() {
    let mut book = book(&[Arc::new(every(HOUR))]);
    let mut now = START + HOUR;
    let mut waits = Vec::new();
    for _ in 0..8 {
        let run = runs(&mut book, now).remove(0);
        assert_eq!(run.due, START + HOUR);
        let full = Err(AcceptError::Full("64 MiB".into()));
        assert!(!book.answered((&run.key, run.due, run.is_counted), full, now));
        assert!(book.mark(now) <= now);
        waits.push((book.wake().unwrap() - now) / SECOND);
        now = book.wake().unwrap();
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
    let run = runs(&mut book, now).remove(0);
    done(&mut book, &run, now);
    assert_eq!(book.wake(), Some(START + 2 * HOUR));
    let last = book.list(None)[0].last.clone().unwrap();
    assert_eq!(last, Last { due: START + HOUR, outcome: Outcome::Accepted(InvocationId(1)) });
}

#[test]
fn a_redeploy_keeps_what_stays_and_forgets_what_goes() {
    let kept = Arc::new(every(HOUR));
    let gone = Arc::new(every(2 * HOUR));
    let mut book = book(&[kept.clone(), gone]);
    let now = START + HOUR;
    let run = runs(&mut book, now).remove(0);
    done(&mut book, &run, now);
    let changed = edited(&kept, |one| one.call.body = "new".into());
    let new = Arc::new(every(MINUTE));
    book.publish("f", &[new, changed], 1, Begin::new(now + 1), &[]).unwrap();
    let listed = book.list(Some("f"));
    let all: Vec<_> =
        listed.iter().map(|one| (expression(&one.schedule.when), one.last.is_some())).collect();
    assert_eq!(all, [("every 1m".to_owned(), false), ("every 1h".to_owned(), true)]);
    let minutely = runs(&mut book, now + MINUTE).remove(0);
    done(&mut book, &minutely, now + MINUTE);
    // The end of a run that began before the redeploy still counts.
    let before = runs(&mut book, now + HOUR);
    let before = before.iter().find(|one| one.deferred.order == run.deferred.order).unwrap();
    assert!(book.answered((&before.key, before.due, true), accepted(3), now + HOUR));
    let schedules: Vec<_> = listed.iter().map(|one| one.schedule.clone()).rev().collect();
    book.publish("f", &schedules, 1, Begin::new(now + HOUR), &[]).unwrap();
    book.ended(&before.key);
    let next = runs(&mut book, now + 2 * HOUR);
    assert!(next.iter().any(|one| one.deferred.order == run.deferred.order));
    // An invalid schedule changes nothing.
    let expression = "x".to_owned();
    let timezone = "UTC".to_owned();
    let wrong = Arc::new(Schedule::new(When::Cron { expression, timezone }));
    book.publish("f", &[wrong], 1, Begin::new(now), &[]).unwrap_err();
    assert_eq!(book.list(None).len(), 2);
    book.remove("f");
    assert!(book.is_empty() && book.wake().is_none() && book.list(None).is_empty());
    // The function was removed, so this answer belongs to no schedule.
    assert!(!book.answered((&run.key, run.due, true), accepted(2), now));
}

#[test]
fn equal_schedules_of_a_function_are_told_apart() {
    let mut book = book(&[Arc::new(every(MINUTE)), Arc::new(every(MINUTE))]);
    let all = runs(&mut book, START + MINUTE);
    assert_eq!(all.len(), 2);
    assert_ne!(all[0].deferred.key, all[1].deferred.key);
}

#[test]
fn a_clock_that_was_a_year_ahead_does_not_stop_a_schedule() {
    let year = 365 * 24 * HOUR;
    let mut book = Book::default();
    book.publish("f", &[Arc::new(every(MINUTE))], 1, Begin::new(START + year), &[]).unwrap();
    book.clock_was_set(START);
    assert_eq!(book.wake(), Some(START + MINUTE));
    assert_eq!(runs(&mut book, START + MINUTE).len(), 1);
}

#[test]
fn many_redeploys_leave_no_garbage() {
    let mut book = Book::default();
    for number in 0..10_000 {
        book.publish("f", &[Arc::new(every(MINUTE))], 1, Begin::new(START + number), &[]).unwrap();
    }
    assert!(book.heap.len() < 100, "{}", book.heap.len());
}

#[test]
fn a_node_goes_on_where_another_one_ended() {
    let schedule = edited(&every(SECOND), |_| {});
    let first = runs(&mut book(from_ref(&schedule)), START + SECOND).remove(0);
    let ran = Known { identity: first.key.identity, handled: first.due, running: Vec::new() };
    let after = |known: &Known, schedule: &Arc<Schedule>, late_ms: i64| {
        let now = first.due + late_ms;
        let mut book = Book::default();
        let from = Begin::new(now);
        let begun = book.publish("f", from_ref(schedule), 9, from, from_ref(known)).unwrap();
        let all = runs(&mut book, now);
        (begun, all.iter().map(|run| (run.due - first.due) / SECOND).collect::<Vec<_>>(), book)
    };
    // Within a minute no time is left out, and no time runs twice.
    let expected: Vec<i64> = (1..=40).collect();
    assert_eq!(after(&ran, &schedule, 40 * SECOND + 1).1, expected);
    let expected: Vec<i64> = (60..=120).collect();
    assert_eq!(after(&ran, &schedule, 120 * SECOND).1, expected, "older times are left out");
    let all = edited(&schedule, |one| one.missed = Missed::RunAll);
    assert_eq!(after(&ran, &all, 120 * SECOND).1.len(), 100, "but not if all are made up for");
    // An unfinished run of the other node keeps the next one from running.
    let running = Known { running: vec![InvocationId(7)], ..ran.clone() };
    let (begun, due, mut book) = after(&running, &schedule, 5 * SECOND);
    assert_eq!((begun.len(), begun[0].1, due.len()), (1, InvocationId(7), 0));
    book.ended(&begun[0].0);
    assert_eq!(runs(&mut book, first.due + 6 * SECOND).len(), 1);
    // A schedule that the other node did not know begins now.
    let other = Known { identity: 1, ..ran };
    assert!(after(&other, &schedule, 5 * SECOND).1.is_empty());
}
