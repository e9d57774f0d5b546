//! Tests the load engine against targets that follow a script in virtual time. The tests cover the
//! counts, the cost of a stall, and operations that are given up.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io;
use std::time::Duration;

use mote_load::turns::{self, Turns, TurnsPlan};
use mote_load::{Done, Failure, Limit, Live, Load, Nanos, Outcome, Plan, Tally, Wire, drive};

const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1_000 * MS;
const GOOD: Outcome = Outcome::Answered { bytes: 4, phases: None };

/// The script of a target. It returns the end and the outcome of the operation with this number,
/// which begins now. `None` means that the operation never ends.
type Script = fn(u64, Nanos) -> Option<(Nanos, Outcome)>;

struct Scripted<'a> {
    script: Script,
    now: Nanos,
    begun: u64,
    under_way: Vec<Done>,
    /// Stops the run at this time.
    stop: Option<(Nanos, &'a Live)>,
}

impl Wire for Scripted<'_> {
    fn now(&mut self) -> Nanos {
        self.now
    }

    fn begin(&mut self, client: usize) {
        self.begun += 1;
        if let Some((at, outcome)) = (self.script)(self.begun, self.now) {
            self.under_way.push(Done { client, at, outcome });
        }
    }

    fn give_up(&mut self, client: usize) {
        self.under_way.retain(|done| done.client != client);
    }

    fn next(&mut self, until: Nanos) -> io::Result<Option<Done>> {
        assert!(until >= self.now || !self.under_way.is_empty(), "waits for the past");
        if let Some((at, live)) = self.stop
            && self.now >= at
        {
            live.stop();
        }
        let first = (0..self.under_way.len()).min_by_key(|index| self.under_way[*index].at);
        let first = first.filter(|index| self.under_way[*index].at <= until);
        let done = first.map(|index| self.under_way.swap_remove(index));
        self.now = self.now.max(done.map_or(until, |done| done.at));
        Ok(done)
    }
}

fn plan(load: Load, clients: usize, limit: Limit) -> Plan {
    let warmup = Duration::ZERO;
    let timeout = Duration::from_secs(10);
    Plan { load, clients, threads: 1, warmup, limit, timeout, keeps_rows: true }
}

fn run(plan: &Plan, script: Script) -> (Tally, u64) {
    let live = Live::default();
    let mut wire = Scripted { script, now: 0, begun: 0, under_way: Vec::new(), stop: None };
    let tally = drive(&mut wire, plan, 0, 7 * MS, &live).unwrap();
    let (answered, failed, _) = live.totals();
    assert_eq!(answered + failed, tally.answered() + tally.failed() + tally.warmup());
    (tally, wire.begun)
}

/// Answers after 1 ms, but answers nothing during the sixth second.
fn stalls(_: u64, now: Nanos) -> Option<(Nanos, Outcome)> {
    let begin = if (5 * SECOND..6 * SECOND).contains(&now) { 6 * SECOND } else { now };
    Some((begin + MS, GOOD))
}

fn near(got: Option<Nanos>, expected: Nanos) {
    let got = got.expect("was answered");
    assert!(got.abs_diff(expected) <= expected / 8, "{got} ns, not {expected}");
}

#[test]
fn every_operation_of_every_client_is_counted_once() {
    let script: Script = |number, now| {
        let outcome = match number % 10 {
            0 => Outcome::Failed(Failure::Http(503)),
            5 => Outcome::Failed(Failure::Broken),
            _ => GOOD,
        };
        Some((now + MS * (number % 7), outcome))
    };
    for clients in [1, 3, 64, 1024] {
        let plan = plan(Load::Closed, clients, Limit::Operations(50));
        let (tally, begun) = run(&plan, script);
        let all = 50 * clients as u64;
        assert_eq!((begun, tally.answered() + tally.failed()), (all, all));
        assert_eq!(tally.failures(Failure::Http(503)), all / 10);
        assert_eq!(tally.failures(Failure::Broken), all / 10);
        assert!(tally.percentile(0.8).is_some());
        assert_eq!(tally.percentile(0.81), None, "a fifth failed");
        let rows = tally.into_rows();
        assert_eq!(rows.len() as u64, all, "each is kept");
        assert!(rows.iter().all(|row| row.intended <= row.begun && row.begun <= row.ended));
    }
}

#[test]
fn the_warm_up_is_made_and_not_counted() {
    let closed =
        Plan { warmup: Duration::from_secs(1), ..plan(Load::Closed, 2, Limit::Operations(10)) };
    let (tally, begun) = run(&closed, |_, now| Some((now + 100 * MS, GOOD)));
    assert_eq!((tally.answered(), tally.warmup(), begun), (20, 20, 40));
    let open = Plan { load: Load::Open { rate: 100.0 }, ..closed };
    let (tally, begun) = run(&open, |_, now| Some((now + MS, GOOD)));
    assert_eq!((tally.answered(), tally.warmup(), begun), (10, 100, 110));
}

#[test]
fn a_stall_counts_for_everything_that_was_due_meanwhile() {
    let limit = Limit::Duration(Duration::from_secs(10));
    // The first run has enough clients to send every operation that is due. The second run has only
    // one client, which cannot. The schedule is the same, and the single client needs a tenth of a
    // second to catch up.
    for clients in [200, 1] {
        let plan = plan(Load::Open { rate: 100.0 }, clients, limit);
        let (tally, _) = run(&plan, stalls);
        assert_eq!((tally.answered(), tally.failed()), (1_000, 0));
        near(tally.percentile(0.5), MS);
        // A tenth of the operations was due during the stall, evenly spaced. Half of these waited
        // for more than half a second.
        near(tally.percentile(0.95), SECOND / 2);
        near(tally.percentile(0.99), SECOND * 9 / 10);
        near(tally.percentile(1.0), SECOND);
    }
}

#[test]
fn a_closed_loop_sees_the_stall_once_and_whole() {
    let plan = plan(Load::Closed, 1, Limit::Duration(Duration::from_secs(10)));
    let (tally, _) = run(&plan, stalls);
    near(tally.percentile(0.99), MS);
    // A reported percentile is never less than the true value.
    assert!(tally.percentile(1.0).unwrap() >= SECOND - 2 * MS);
    assert!((8_990..9_010).contains(&tally.answered()), "{}", tally.answered());
}

#[test]
fn what_is_never_answered_or_never_sent_is_counted_too() {
    let silent: Script = |_, _| None;
    let timeout = Duration::from_millis(500);
    let limit = Limit::Duration(Duration::from_secs(2));
    let open = Plan { timeout, ..plan(Load::Open { rate: 100.0 }, 2, limit) };
    let (tally, begun) = run(&open, silent);
    assert_eq!((tally.answered(), tally.failed()), (0, 200));
    assert_eq!(tally.failures(Failure::Timeout), begun);
    assert_eq!(tally.failures(Failure::NotSent), 200 - begun);
    assert_eq!(tally.percentile(0.5), None);
    let closed = Plan { timeout, ..plan(Load::Closed, 3, Limit::Operations(2)) };
    let (tally, _) = run(&closed, silent);
    assert_eq!(tally.failures(Failure::Timeout), 6);
}

#[test]
fn a_run_can_be_stopped_and_keeps_what_it_has() {
    let live = Live::default();
    let plan = plan(Load::Closed, 4, Limit::Duration(Duration::from_secs(3_600)));
    let mut wire = Scripted {
        script: |_, now| Some((now + MS, GOOD)),
        now: 0,
        begun: 0,
        under_way: Vec::new(),
        stop: Some((SECOND, &live)),
    };
    let tally = drive(&mut wire, &plan, 0, 0, &live).unwrap();
    assert!((4_000..4_100).contains(&tally.answered()), "{}", tally.answered());
    assert_eq!(tally.failed(), 0, "what was under way is forgotten");
}

fn take_turns(scripts: [Script; 2], pairs: usize) -> Turns {
    let mut wires = scripts.map(|script| -> Box<dyn Wire> {
        Box::new(Scripted { script, now: 0, begun: 0, under_way: Vec::new(), stop: None })
    });
    let plan = TurnsPlan {
        clients: 4,
        turn: Duration::from_millis(100),
        pairs,
        warmup_pairs: 1,
        timeout: Duration::from_millis(500),
    };
    turns::take_turns(&mut wires, &plan, &Live::default()).unwrap()
}

#[test]
fn turns_see_through_a_machine_that_changes_its_speed() {
    // The machine is half as fast in every other second, and a third as fast in every other 300 ms.
    fn slowness(now: Nanos) -> u64 {
        (1 + now / SECOND % 2) * (1 + 2 * (now / (300 * MS) % 2))
    }
    let quick: Script = |_, now| Some((now + MS / 5 * slowness(now), GOOD));
    let slow: Script = |_, now| Some((now + MS / 4 * slowness(now), GOOD));
    let turns = take_turns([quick, slow], 50);
    let ratios = turns.ratios();
    assert_eq!((turns.pairs.len(), ratios.len()), (50, 50));
    let (ratio, interval) = turns::median(&ratios).unwrap();
    let [low, high] = interval.expect("50 have one");
    assert!((1.2..1.3).contains(&ratio) && low > 1.15 && high < 1.35, "{ratio} {low} {high}");
    assert_eq!((turns.whole(0).failed, turns.whole(1).failed), (0, 0));
}

#[test]
fn turns_count_what_fails_and_end_what_hangs() {
    let good: Script = |_, now| Some((now + MS, GOOD));
    let picky: Script = |number, now| {
        Some((now + MS, if number % 2 == 0 { GOOD } else { Outcome::Failed(Failure::Http(503)) }))
    };
    let silent: Script = |_, _| None;
    let turns = take_turns([picky, silent], 6);
    let picky = turns.whole(0);
    let silent = turns.whole(1);
    assert!(picky.failed > picky.answered && picky.answered > 1_000, "{picky:?}");
    assert_eq!((silent.answered, silent.failed), (0, 6 * 4), "each client once per turn");
    assert!(turns.ratios().is_empty());
    let turns = take_turns([good, good], 6);
    assert_eq!(turns::median(&turns.ratios()), Some((1.0, Some([1.0, 1.0]))));
    assert_eq!(turns.whole(0).answered, 6 * 4 * 100);
}
