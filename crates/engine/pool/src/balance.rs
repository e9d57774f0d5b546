//! Chooses the instance that takes an invocation. The functions are pure and are called under the
//! queue's lock.

use mote_spec::policy::Balance;

/// The properties of an instance that matter for this choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// The number of invocations that the instance holds.
    pub(crate) in_flight: u32,
    /// How many more invocations the instance may take.
    pub(crate) room: u32,
}

/// Chooses an instance. Under every rule, the result is `None` if no instance has room, because an
/// instance has no queue. `turn` is the number of choices made so far for this revision, and
/// `random` is any random number; each rule reads only what it needs.
pub(crate) fn pick(
    rule: Balance,
    candidates: &[Candidate],
    turn: u64,
    random: u64,
) -> Option<usize> {
    let open = || candidates.iter().enumerate().filter(|(_, candidate)| candidate.room > 0);
    let count = candidates.len();
    let begin = usize::try_from(turn % count.max(1) as u64).ok()?;
    let mut in_turn = (begin..begin + count).map(|at| at % count);
    match rule {
        // The caller of this function has already removed the instances that are closed to the
        // invocation's caller.
        Balance::LateBinding | Balance::PerCaller | Balance::PerCall => {
            // Of several equal instances, the first one is chosen, as by a plain minimum.
            open().min_by_key(|(_, candidate)| candidate.in_flight).map(|(at, _)| at)
        }
        Balance::LeastConnections => {
            in_turn.filter(|at| candidates[*at].room > 0).min_by_key(|at| candidates[*at].in_flight)
        }
        Balance::RoundRobin => in_turn.find(|at| candidates[*at].room > 0),
        Balance::Random => {
            let count = open().count() as u64;
            (count > 0).then(|| open().nth((random % count) as usize))?.map(|(at, _)| at)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(list: &[(u32, u32)]) -> Vec<Candidate> {
        list.iter()
            .map(|(in_flight, room)| Candidate { in_flight: *in_flight, room: *room })
            .collect()
    }

    #[test]
    fn rules() {
        use Balance::*;
        let three = of(&[(3, 1), (1, 2), (2, 6)]);
        for (rule, turn, random, expected) in [
            (LateBinding, 0, 0, Some(1)),
            (LeastConnections, 0, 0, Some(1)),
            (RoundRobin, 0, 0, Some(0)),
            (RoundRobin, 1, 0, Some(1)),
            (RoundRobin, 5, 0, Some(2)),
            (Random, 0, 4, Some(1)),
        ] {
            assert_eq!(pick(rule, &three, turn, random), expected, "{rule:?} {turn}");
        }
    }

    #[test]
    fn nobody_is_overfilled() {
        let full = of(&[(4, 0), (4, 0)]);
        let one = of(&[(4, 0), (9, 1), (0, 0)]);
        for rule in
            [Balance::LateBinding, Balance::LeastConnections, Balance::RoundRobin, Balance::Random]
        {
            for turn in 0..5 {
                assert_eq!(pick(rule, &full, turn, turn * 7), None, "{rule:?}");
                assert_eq!(pick(rule, &[], turn, turn * 7), None, "{rule:?}");
                assert_eq!(pick(rule, &one, turn, turn * 7), Some(1), "{rule:?}");
            }
        }
    }

    #[test]
    fn in_turn_means_equal_shares() {
        let mut served = [0; 3];
        for rule in [Balance::RoundRobin, Balance::LeastConnections] {
            for turn in 0..300 {
                let at = pick(rule, &of(&[(0, 1), (0, 1), (0, 1)]), turn, 0).unwrap();
                served[at] += 1;
            }
        }
        assert_eq!(served, [200; 3]);
    }
}
