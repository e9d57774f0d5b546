//! Compares two targets in short turns in the order A B B A, so that other activity on the machine
//! affects both. Each pair of neighbouring turns gives one ratio of rates. The median of the ratios
//! does not depend on how the machine changes over time. In two runs one after the other, such a
//! change would look like a difference between the targets.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use crate::plan::PAIRS_MIN;
use crate::plan::check_clients;
use crate::{Done, Failure, Live, Mark, Nanos, Outcome, PlanError, Wire};

/// The beginning of each turn, which is not measured because the clients settle during this time.
const SETTLE: Nanos = 10_000_000;
/// How often the stop signal is checked if nothing happens.
const LOOK_EVERY: Nanos = 10_000_000;
/// An interval of 1.96 standard deviations on either side contains 95 %.
const Z: f64 = 1.96;

/// The plan of a run in turns. One thread makes all operations, in a closed loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnsPlan {
    /// The number of connections (HTTP) or ports (CoAP) of each target.
    pub clients: usize,
    /// The measured part of a turn.
    pub turn: Duration,
    /// The number of pairs of turns that are counted, at least [`PAIRS_MIN`].
    pub pairs: usize,
    /// The number of earlier pairs that are not counted.
    pub warmup_pairs: usize,
    /// An operation fails if it has no answer this long after the end of its turn.
    pub timeout: Duration,
}

impl TurnsPlan {
    /// Checks that the plan can be run.
    pub fn check(&self) -> Result<(), PlanError> {
        check_clients(self.clients)?;
        if self.turn.is_zero() {
            return Err(PlanError::Empty);
        }
        if self.pairs < PAIRS_MIN {
            return Err(PlanError::Pairs);
        }
        if self.timeout.is_zero() {
            return Err(PlanError::Timeout);
        }
        Ok(())
    }
}

/// The counts of one target, in one turn or in several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// Good answers within the measured part of the turn.
    pub answered: u64,
    /// Failures in any part of the turn.
    pub failed: u64,
    /// How many of the failures were answers with an error.
    #[serde(default)]
    pub errors: u64,
    pub answered_per_s: f64,
}

/// The results of a run in turns.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turns {
    /// The counts of the first and of the second target, for each counted pair.
    pub pairs: Vec<[Side; 2]>,
    /// The share of the run during which the generator's thread used a processor.
    pub busy: f64,
}

impl Turns {
    /// The rate of the first target divided by the rate of the second, for each pair. A pair in
    /// which the second target answered nothing is left out.
    pub fn ratios(&self) -> Vec<f64> {
        self.pairs
            .iter()
            .filter(|[_, second]| second.answered > 0)
            .map(|[first, second]| first.answered_per_s / second.answered_per_s)
            .collect()
    }

    /// The counts of one target over all pairs, with their mean rate.
    pub fn whole(&self, side: usize) -> Side {
        let sides = self.pairs.iter().map(|pair| &pair[side]);
        let mut whole = sides.clone().fold(Side::default(), |sum, one| Side {
            answered: sum.answered + one.answered,
            failed: sum.failed + one.failed,
            errors: sum.errors + one.errors,
            ..sum
        });
        let rates: f64 = sides.map(|side| side.answered_per_s).sum();
        whole.answered_per_s = rates / self.pairs.len().max(1) as f64;
        whole
    }
}

/// The median of the values, and its interval with about 95 % confidence, from the ranks of its
/// neighbours. There is no interval if there are fewer than [`PAIRS_MIN`] values.
pub fn median(values: &[f64]) -> Option<(f64, Option<[f64; 2]>)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let upper = sorted.get(count / 2)?;
    let middle = if count % 2 == 1 { *upper } else { (sorted[count / 2 - 1] + upper) / 2.0 };
    let half = Z * (count as f64).sqrt() / 2.0;
    let low = (count as f64 / 2.0 - half).floor().max(1.0) as usize - 1;
    let interval = (count >= PAIRS_MIN).then(|| [sorted[low], sorted[count - 1 - low]]);
    Some((middle, interval))
}

/// Measures two targets in turns until all pairs are made or `live` is stopped. Blocks.
///
/// # Errors
/// The same as those of [`Wire::next`].
pub fn take_turns(
    wires: &mut [Box<dyn Wire + '_>; 2],
    plan: &TurnsPlan,
    live: &Live,
) -> io::Result<Turns> {
    let mut turns = Turns::default();
    let began = wires[0].now();
    let mark = wires[0].mark();
    for number in 0..plan.warmup_pairs + plan.pairs {
        let mut pair = [Side::default(); 2];
        for place in 0..2 {
            // The order is A B, B A, A B and so on.
            let side = (number + place) % 2;
            pair[side] = turn(&mut *wires[side], plan, live)?;
            if live.is_stopped() {
                return Ok(turns);
            }
        }
        if number >= plan.warmup_pairs {
            turns.pairs.push(pair);
        }
    }
    let (ended, Mark { cpu, .. }) = (wires[0].now(), wires[0].mark());
    turns.busy = (cpu - mark.cpu) as f64 / (ended - began).max(1) as f64;
    Ok(turns)
}

/// Runs one turn. All clients begin, and when the turn is over, it waits for their last operations.
fn turn(wire: &mut dyn Wire, plan: &TurnsPlan, live: &Live) -> io::Result<Side> {
    let measured_from = wire.now() + SETTLE;
    let until = measured_from + plan.turn.as_nanos() as Nanos;
    let gives_up_at = until + plan.timeout.as_nanos() as Nanos;
    let mut side = Side::default();
    let mut begun: Vec<Option<Nanos>> = vec![Some(wire.now()); plan.clients];
    for client in 0..plan.clients {
        wire.begin(client);
    }
    let mut busy = plan.clients;
    while busy > 0 {
        let now = wire.now();
        let Some(Done { client, at, outcome }) = wire.next(gives_up_at.min(now + LOOK_EVERY))?
        else {
            if live.is_stopped() || now >= gives_up_at {
                for client in (0..plan.clients).filter(|client| begun[*client].is_some()) {
                    wire.give_up(client);
                    side.failed += u64::from(!live.is_stopped());
                }
                break;
            }
            continue;
        };
        let is_answered = matches!(outcome, Outcome::Answered { .. });
        side.failed += u64::from(!is_answered);
        let is_error = |failure: &Failure| matches!(failure, Failure::Http(_) | Failure::Coap(..));
        side.errors += u64::from(matches!(&outcome, Outcome::Failed(why) if is_error(why)));
        side.answered += u64::from(is_answered && (measured_from..until).contains(&at));
        live.add(begun[client].filter(|_| is_answered).map(|begun| at.saturating_sub(begun)));
        let goes_on = at < until && !live.is_stopped();
        begun[client] = goes_on.then_some(at);
        if goes_on {
            wire.begin(client);
        } else {
            busy -= 1;
        }
    }
    side.answered_per_s = side.answered as f64 / plan.turn.as_secs_f64();
    Ok(side)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_median_is_of_ranks() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(median(&values), Some((50.5, Some([40.0, 61.0]))));
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some((2.0, None)));
        assert_eq!(median(&[1.0, 2.0, 3.0, 4.0, 5.0, 9.0]), Some((3.5, Some([1.0, 9.0]))));
        assert_eq!(median(&[]), None);
    }
}
