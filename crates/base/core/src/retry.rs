//! What happens after an attempt at an accepted invocation: the invocation has succeeded, is tried
//! again later, or becomes a dead letter. Pure.

use mote_spec::{AsyncRules, RetryOn};

use crate::fault::{Fault, FaultClass};

/// How one attempt ended.
#[derive(Debug, Clone, Copy)]
pub enum Attempt<'a> {
    /// The function answered with this status.
    Answered(u16),
    /// The function did not answer.
    Failed(&'a Fault),
}

/// What happens after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The invocation has succeeded.
    Succeeded,
    /// The invocation is tried again after a pause. An attempt that found no room does not count.
    Again {
        /// The pause in milliseconds.
        after_ms: u64,
        /// Whether the attempt counts towards the limit on attempts.
        counts: bool,
    },
    /// The invocation has failed for good and becomes a dead letter.
    Dead,
    /// The node is stopping. The invocation is kept, and runs when the node starts again.
    Kept,
}

/// The state of an invocation at the end of an attempt.
#[derive(Debug, Clone, Copy)]
pub struct Tried {
    /// The number of this attempt, from 1. Attempts that found no room are not counted.
    pub attempt: u32,
    /// Attempts in a row that found no room, this one included.
    pub roomless: u32,
    /// Milliseconds since the invocation could first have run.
    pub age_ms: u64,
    /// The number of attempts if the manifest does not set one.
    pub attempts_default: u32,
    /// A random number from 0 to 1. It spreads out the retries of invocations that failed at the
    /// same time.
    pub random: f64,
}

/// Decides what happens after an attempt that ended as `ended`.
pub fn next(rules: &AsyncRules, tried: Tried, ended: Attempt<'_>) -> Next {
    let pause = |number: u32| {
        let doubled = rules.backoff_ms.saturating_mul(1 << number.saturating_sub(1).min(32));
        let longest = doubled.min(rules.backoff_ms_max).max(1);
        // A random value between half of the longest pause and all of it.
        (longest as f64 * (0.5 + tried.random.clamp(0.0, 1.0) / 2.0)) as u64
    };
    let reason = match ended {
        Attempt::Answered(500..=599) => RetryOn::Status,
        Attempt::Answered(_) => return Next::Succeeded,
        Attempt::Failed(Fault::Stopping) => return Next::Kept,
        // The function was removed before the attempt reached it. It may exist again at the next
        // attempt.
        Attempt::Failed(Fault::NoSuchFunction) if tried.age_ms < rules.age_ms_max => {
            return Next::Again { after_ms: pause(tried.roomless), counts: false };
        }
        Attempt::Failed(fault) => match fault.class() {
            FaultClass::Caller => return Next::Dead,
            FaultClass::Capacity if tried.age_ms < rules.age_ms_max => {
                return Next::Again { after_ms: pause(tried.roomless), counts: false };
            }
            FaultClass::Capacity => return Next::Dead,
            FaultClass::Function | FaultClass::Platform => match fault {
                Fault::DeadlineStarting { .. } | Fault::DeadlineRunning { .. } => RetryOn::Timeout,
                _ => RetryOn::Error,
            },
        },
    };
    let attempts = rules.attempts.unwrap_or(tried.attempts_default);
    if tried.attempt >= attempts
        || tried.age_ms >= rules.age_ms_max
        || !rules.retry.contains(&reason)
    {
        return Next::Dead;
    }
    Next::Again { after_ms: pause(tried.attempt), counts: true }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mote_spec::{AGE_MS_MAX_DEFAULT, BACKOFF_MS_MAX_DEFAULT};

    const TRIED: Tried =
        Tried { attempt: 1, roomless: 1, age_ms: 0, attempts_default: 3, random: 1.0 };

    fn error() -> Fault {
        Fault::HandlerError { message: "boom".to_owned() }
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_vary_by_half() {
        let rules = AsyncRules { backoff_ms_max: 5_000, attempts: Some(9), ..Default::default() };
        let after = |attempt, random| {
            let tried = Tried { attempt, random, ..TRIED };
            match next(&rules, tried, Attempt::Failed(&error())) {
                Next::Again { after_ms, counts: true } => after_ms,
                other => panic!("{other:?}"),
            }
        };
        let longest: Vec<_> = (1..=5).map(|attempt| after(attempt, 1.0)).collect();
        assert_eq!(longest, [1_000, 2_000, 4_000, 5_000, 5_000]);
        assert_eq!(after(2, 0.0), 1_000);
        assert_eq!(after(2, 0.5), 1_500);
    }

    #[test]
    fn every_outcome_has_its_consequence() {
        let again = Next::Again { after_ms: 1_000, counts: true };
        let rules = AsyncRules::default();
        let after = |ended: Attempt<'_>| next(&rules, TRIED, ended);
        assert_eq!(after(Attempt::Answered(200)), Next::Succeeded);
        assert_eq!(after(Attempt::Answered(404)), Next::Succeeded, "the function has answered");
        assert_eq!(after(Attempt::Answered(503)), again);
        assert_eq!(after(Attempt::Failed(&error())), again);
        assert_eq!(after(Attempt::Failed(&Fault::DeadlineRunning { timeout_ms: 1 })), again);
        assert_eq!(after(Attempt::Failed(&Fault::Stopping)), Next::Kept);
        assert_eq!(
            after(Attempt::Failed(&Fault::NoSuchFunction)),
            Next::Again { after_ms: 1_000, counts: false },
            "it waits until the function is deployed"
        );
        let old = Tried { age_ms: AGE_MS_MAX_DEFAULT, ..TRIED };
        assert_eq!(next(&rules, old, Attempt::Failed(&Fault::NoSuchFunction)), Next::Dead);
        let full = after(Attempt::Failed(&Fault::QueueFull));
        assert_eq!(full, Next::Again { after_ms: 1_000, counts: false });
    }

    #[test]
    fn attempts_age_and_the_chosen_failures_limit_it() {
        let rules = AsyncRules { retry: vec![RetryOn::Timeout], ..Default::default() };
        assert_eq!(next(&rules, TRIED, Attempt::Failed(&error())), Next::Dead);
        let rules = AsyncRules::default();
        let third = Tried { attempt: 3, ..TRIED };
        assert_eq!(next(&rules, third, Attempt::Failed(&error())), Next::Dead);
        let once = Tried { attempts_default: 1, ..TRIED };
        assert_eq!(next(&rules, once, Attempt::Failed(&error())), Next::Dead);
        let old = Tried { age_ms: AGE_MS_MAX_DEFAULT, ..TRIED };
        assert_eq!(next(&rules, old, Attempt::Failed(&error())), Next::Dead);
        assert_eq!(next(&rules, old, Attempt::Failed(&Fault::NodeFull)), Next::Dead);
        let many = Tried { roomless: 70, attempt: 1, ..TRIED };
        let full = next(&rules, many, Attempt::Failed(&Fault::NodeFull));
        assert_eq!(full, Next::Again { after_ms: BACKOFF_MS_MAX_DEFAULT, counts: false });
    }
}
