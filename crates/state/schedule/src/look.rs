//! Decides which times of one schedule run now. Pure, with the wall clock as an argument.
//!
//! The wall clock is not assumed to be steady. It may step in both directions while the node runs,
//! and it may be years off on a board without a battery. So a schedule remembers the last time that
//! it has handled, and the decision depends only on that time and the current clock.

use mote_spec::Missed;

use crate::times::{Times, UnixMs};

/// A time that is at most this late runs, whatever `missed` says: the node was busy or restarted,
/// or a small step corrected its clock. Of several times during a restart, only the newest one
/// runs.
pub const LATE_MS_MAX: i64 = 60_000;
/// If the node was running, the newest time runs even when it is this late, so that a step of the
/// clock does not make a daily schedule lose its day. If the clock has stepped forward further than
/// this, it was wrong before. If it has stepped backward further than this, the handled times were
/// not real.
pub const STEP_MS_MAX: i64 = 3 * 3_600_000;
/// The most runs that make up for missed times.
pub const RUNS_MAX: usize = 100;

/// The result of a look at one schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// The times that run now, oldest first.
    pub runs: Vec<UnixMs>,
    /// All times up to this one are now handled; none of them will run later.
    pub handled: UnixMs,
    /// The next time, if there is one.
    pub next: Option<UnixMs>,
}

/// Decides which times in (`handled`, `now`] run. Times up to `off_until` passed while the node was
/// off, so `missed` decides about them. Later times follow the rule for a running node.
pub fn look(
    times: &Times,
    missed: Missed,
    handled: UnixMs,
    now: UnixMs,
    off_until: Option<UnixMs>,
) -> Look {
    if handled > now.saturating_add(STEP_MS_MAX) {
        // The clock was far ahead when these times were handled.
        return Look { runs: Vec::new(), handled: now, next: times.next(now) };
    }
    let mut runs = times.newest(handled, now, RUNS_MAX);
    let Some(newest) = runs.last().copied() else {
        return Look { runs, handled, next: times.next(handled) };
    };
    let late = |time: UnixMs| now.saturating_sub(time);
    let was_off = |time: UnixMs| off_until.is_some_and(|until| time <= until);
    let newest_while_off = runs.iter().rev().copied().find(|time| was_off(*time));
    runs.retain(|time| match missed {
        Missed::RunAll => true,
        Missed::RunOnce if was_off(*time) => newest_while_off == Some(*time),
        Missed::Skip if was_off(*time) => {
            newest_while_off == Some(*time) && late(*time) <= LATE_MS_MAX
        }
        Missed::RunOnce => late(*time) <= LATE_MS_MAX || *time == newest,
        Missed::Skip => {
            late(*time) <= LATE_MS_MAX || (*time == newest && late(*time) <= STEP_MS_MAX)
        }
    });
    Look { runs, handled: newest, next: times.next(newest) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mote_spec::{Schedule, When};

    use super::*;

    const MINUTE: i64 = 60_000;
    const HOUR: i64 = 60 * MINUTE;

    fn every(ms: i64) -> Times {
        Times::read(Arc::new(Schedule::new(When::Every { ms: ms as u64 })), 0).unwrap().0
    }

    #[test]
    fn a_time_runs_when_it_has_come() {
        let times = every(MINUTE);
        let look = |handled, now| look(&times, Missed::Skip, handled, now, None);
        let nothing = Look { runs: vec![], handled: 0, next: Some(MINUTE) };
        assert_eq!(look(0, MINUTE - 1), nothing);
        let one = Look { runs: vec![MINUTE], handled: MINUTE, next: Some(2 * MINUTE) };
        assert_eq!(look(0, MINUTE), one);
        assert_eq!(look(0, MINUTE + 500), one);
    }

    #[test]
    fn what_was_due_while_the_node_was_off_follows_the_policy() {
        let times = every(MINUTE);
        let runs = |missed, now| look(&times, missed, 0, now, Some(now)).runs;
        assert!(runs(Missed::Skip, 11 * MINUTE - 1).len() == 1, "a restart in the last minute");
        assert!(
            look(&every(HOUR), Missed::Skip, 0, HOUR + MINUTE + 1, Some(HOUR + MINUTE))
                .runs
                .is_empty()
        );
        assert_eq!(runs(Missed::RunOnce, 10 * MINUTE), [10 * MINUTE]);
        assert_eq!(runs(Missed::RunAll, 3 * MINUTE), [MINUTE, 2 * MINUTE, 3 * MINUTE]);
        let all = runs(Missed::RunAll, 1_000 * MINUTE);
        assert_eq!((all.len(), all[0], all[99]), (100, 901 * MINUTE, 1_000 * MINUTE));
        for missed in [Missed::Skip, Missed::RunOnce, Missed::RunAll] {
            assert!(runs(missed, MINUTE - 1).is_empty(), "nothing was due");
            let after = look(&times, missed, 0, 10 * MINUTE, Some(10 * MINUTE));
            assert_eq!((after.handled, after.next), (10 * MINUTE, Some(11 * MINUTE)));
        }
    }

    /// Only times before the start count as missed, even if the first look is late.
    #[test]
    fn the_first_time_after_a_start_runs() {
        let times = every(MINUTE);
        let start = 10 * MINUTE + 10_000;
        for (missed, expected) in [
            (Missed::Skip, vec![11 * MINUTE]),
            (Missed::RunOnce, vec![10 * MINUTE, 11 * MINUTE]),
            (Missed::RunAll, (1..=11).map(|minute| minute * MINUTE).collect()),
        ] {
            let seen = look(&times, missed, 0, 11 * MINUTE + 10_001, Some(start));
            assert_eq!(seen.runs, expected, "{missed:?}");
        }
        let seen = look(&times, Missed::Skip, start, 11 * MINUTE, Some(start));
        assert_eq!(seen.runs, [11 * MINUTE]);
    }

    #[test]
    fn a_step_forward_loses_no_daily_run_and_repeats_no_backlog() {
        let daily = every(24 * HOUR);
        let minutely = every(MINUTE);
        let runs = |times, missed, now| look(times, missed, 0, now, None).runs;
        assert_eq!(runs(&daily, Missed::Skip, 24 * HOUR + 2 * HOUR), [24 * HOUR]);
        assert!(runs(&daily, Missed::Skip, 24 * HOUR + 4 * HOUR).is_empty(), "years, perhaps");
        assert_eq!(runs(&daily, Missed::RunOnce, 24 * HOUR + 4 * HOUR), [24 * HOUR]);
        assert_eq!(runs(&minutely, Missed::Skip, HOUR), [HOUR - MINUTE, HOUR]);
        assert_eq!(runs(&minutely, Missed::RunAll, HOUR).len(), 60);
        // A board without a battery begins in 1970 and then learns the time.
        let years = 56 * 365 * 24 * HOUR;
        let begin = std::time::Instant::now();
        assert_eq!(runs(&every(1_000), Missed::Skip, years).len(), 61);
        assert!(begin.elapsed().as_secs() < 5, "it does not visit each second of 56 years");
    }

    #[test]
    fn a_step_backward_repeats_nothing() {
        let times = every(MINUTE);
        let back = look(&times, Missed::RunAll, 2 * HOUR, HOUR, None);
        let waits = Look { runs: vec![], handled: 2 * HOUR, next: Some(2 * HOUR + MINUTE) };
        assert_eq!(back, waits);
        // The clock was a year ahead. Waiting for the handled time would stop the schedule for a
        // year.
        let ahead = 365 * 24 * HOUR;
        let back = look(&times, Missed::RunAll, ahead, HOUR, None);
        assert_eq!(back, Look { runs: vec![], handled: HOUR, next: Some(HOUR + MINUTE) });
    }

    /// A small seeded generator of random numbers.
    fn random(state: &mut u64) -> i64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*state >> 33) as i64
    }

    /// Simulates a day on a clock that steps all the time. Every time must run exactly once, in
    /// order.
    #[test]
    fn steps_of_the_clock_neither_repeat_nor_lose_a_time() {
        let cron = |expression: &str| {
            let expression = expression.to_owned();
            let when = When::Cron { expression, timezone: "Europe/Berlin".into() };
            Times::read(Arc::new(Schedule::new(when)), 0).unwrap().0
        };
        let schedules = [every(1_000), every(7_000), cron("*/5 * * * *"), cron("30 2 * * *")];
        // The simulated day includes the night in which the clock of Berlin is set back.
        let begin = 1_792_864_800_000;
        for seed in 1..=4 {
            for times in &schedules {
                let mut state = seed;
                let mut now = begin;
                let mut handled = begin;
                let mut most = begin;
                let mut ran: Vec<UnixMs> = Vec::new();
                for _ in 0..5_000 {
                    // Time passes. Once in a while, the clock steps: up to a minute forward, or up
                    // to three hours backward.
                    now += random(&mut state) % 20_000;
                    match random(&mut state) % 150 {
                        0 => now += random(&mut state) % 40_000,
                        1 => now -= random(&mut state) % (STEP_MS_MAX / 10),
                        _ => {}
                    }
                    now = now.max(most - STEP_MS_MAX);
                    most = most.max(now);
                    let seen = look(times, Missed::Skip, handled, now, None);
                    ran.extend(&seen.runs);
                    handled = seen.handled;
                    assert!(handled <= most && seen.next.is_none_or(|next| next > handled));
                }
                let all: Vec<UnixMs> = times.iter(begin).take_while(|time| *time <= most).collect();
                assert_eq!(ran, all, "seed {seed}, {times:?}");
                assert!(most > begin + 7 * HOUR && !all.is_empty(), "{most} {times:?}");
            }
        }
    }

    /// Simulates steps of hours. No time may run twice, and the newest time must always run.
    #[test]
    fn larger_steps_never_repeat_a_time() {
        let times = every(30 * MINUTE);
        for seed in 1..=200 {
            let mut state = seed;
            let begin = 1_000 * HOUR;
            let mut now = begin;
            let mut handled = begin;
            let mut most = begin;
            let mut ran: Vec<UnixMs> = Vec::new();
            for _ in 0..500 {
                now += random(&mut state) % (5 * HOUR) - 2 * HOUR;
                now = now.max(most - STEP_MS_MAX);
                most = most.max(now);
                let seen = look(&times, Missed::Skip, handled, now, None);
                if now > handled + 30 * MINUTE {
                    assert_eq!(seen.runs.last(), times.newest(handled, now, 1).last());
                }
                ran.extend(&seen.runs);
                handled = seen.handled;
            }
            assert!(ran.windows(2).all(|pair| pair[0] < pair[1]), "seed {seed}");
        }
    }
}
