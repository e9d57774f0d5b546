//! The keys of one issuer: when they are fetched, and how long they are used. The current time is
//! always an argument.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::jwt::KeySet;
use arc_swap::ArcSwapOption;
use mote_spec::TokenKeys;

/// How long keys are used before they are fetched again, if the answer does not say how long.
const FRESH: Duration = Duration::from_secs(15 * 60);
/// The shortest and the longest time that is accepted from an answer.
const FRESH_MIN: Duration = Duration::from_secs(60);
const FRESH_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Keys are no longer used when their last successful fetch is this long ago.
const USED_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Shortest time between two fetches that are caused by tokens with unknown keys.
const PAUSE_UNKNOWN: Duration = Duration::from_secs(30);
/// Pause after the first failure. It doubles with each failure up to `RETRY_MAX`.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Keys, and the time at which the issuer last confirmed them.
#[derive(Clone)]
struct Known {
    keys: Arc<KeySet>,
    /// `None` for keys in the function's own rules. Such keys do not age.
    fetched: Option<Instant>,
}

/// An issuer, and the place from which its keys are fetched.
pub(crate) struct Issuer {
    pub(crate) name: String,
    pub(crate) place: TokenKeys,
    known: ArcSwapOption<Known>,
    /// A leaf lock: no other lock is taken while it is held.
    plan: Mutex<Plan>,
}

/// Says when the keys are fetched.
#[derive(Default)]
struct Plan {
    /// The time of the next fetch; `None` to fetch at once.
    next: Option<Instant>,
    /// The time of the last fetch that was caused by a token with an unknown key.
    asked: Option<Instant>,
    is_running: bool,
    failures: u32,
    /// The reason of the last failure, until a fetch succeeds.
    problem: Option<String>,
}

impl Issuer {
    /// An issuer whose keys are at `place`.
    pub(crate) fn new(name: &str, place: &TokenKeys) -> Self {
        let known = match place {
            // The deploy has checked this text. If the text still cannot be read, all tokens are
            // refused.
            TokenKeys::Set(text) => KeySet::parse(text.as_bytes()).ok(),
            TokenKeys::Discovered | TokenKeys::Url(_) => None,
        };
        let known = known.map(|keys| Arc::new(Known { keys: Arc::new(keys), fetched: None }));
        Self {
            name: name.to_owned(),
            place: place.clone(),
            known: ArcSwapOption::new(known),
            plan: Mutex::default(),
        }
    }

    /// The keys, if they are known and not too old.
    pub(crate) fn keys(&self, now: Instant) -> Option<Arc<KeySet>> {
        let known = self.known.load();
        let known = known.as_ref()?;
        let is_usable =
            known.fetched.is_none_or(|fetched| now.saturating_duration_since(fetched) < USED_MAX);
        is_usable.then(|| known.keys.clone())
    }

    /// Notes that a token names an unknown key. Returns whether this causes a fetch.
    pub(crate) fn lacks_a_key(&self, now: Instant) -> bool {
        let mut plan = self.plan();
        let is_soon = |asked: Instant| now.saturating_duration_since(asked) < PAUSE_UNKNOWN;
        if !self.is_fetched() || plan.is_running || plan.asked.is_some_and(is_soon) {
            return false;
        }
        (plan.asked, plan.next) = (Some(now), None);
        true
    }

    /// The time of the next fetch; `None` if none is planned or if one is running.
    pub(crate) fn next(&self, now: Instant) -> Option<Instant> {
        let plan = self.plan();
        (self.is_fetched() && !plan.is_running).then(|| plan.next.unwrap_or(now))
    }

    /// Begins a fetch if one is due. Returns whether it did.
    pub(crate) fn begin(&self, now: Instant) -> bool {
        let mut plan = self.plan();
        let is_due = self.is_fetched() && plan.next.is_none_or(|next| next <= now);
        let begins = is_due && !plan.is_running;
        plan.is_running |= begins;
        begins
    }

    /// Ends a fetch that has found keys. They are fetched again after `fresh`.
    pub(crate) fn found(&self, keys: KeySet, fresh: Option<Duration>, now: Instant) {
        // If the keys are unchanged, the old set is kept, so that tokens that were verified with it
        // stay verified.
        let before = self.known.load().as_ref().map(|known| known.keys.clone());
        let keys = match before.filter(|before| **before == keys) {
            Some(before) => before,
            None => Arc::new(keys),
        };
        self.known.store(Some(Arc::new(Known { keys, fetched: Some(now) })));
        let fresh = fresh.unwrap_or(FRESH).clamp(FRESH_MIN, FRESH_MAX);
        let mut plan = self.plan();
        let asked = plan.asked;
        *plan = Plan { next: Some(now + fresh), asked, ..Plan::default() };
    }

    /// Ends a fetch that has failed. Returns whether this is the first failure after a success.
    pub(crate) fn failed(&self, problem: String, now: Instant) -> bool {
        let mut plan = self.plan();
        let pause = RETRY_FIRST * 2u32.saturating_pow(plan.failures.min(16));
        plan.next = Some(now + pause.min(RETRY_MAX));
        (plan.is_running, plan.failures) = (false, plan.failures.saturating_add(1));
        plan.problem = Some(problem);
        plan.failures == 1
    }

    /// Why the last fetch failed.
    pub(crate) fn problem(&self) -> Option<String> {
        self.plan().problem.clone()
    }

    fn is_fetched(&self) -> bool {
        !matches!(self.place, TokenKeys::Set(_))
    }

    fn plan(&self) -> std::sync::MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(x: char) -> KeySet {
        let x = x.to_string().repeat(42) + "A";
        let text = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{x}"}}]}}"#);
        KeySet::parse(text.as_bytes()).expect("valid")
    }

    fn issuer() -> (Issuer, Instant) {
        (Issuer::new("https://a", &TokenKeys::Discovered), Instant::now())
    }

    #[test]
    fn keys_are_fetched_as_often_as_the_answer_says() {
        let (issuer, start) = issuer();
        let s = Duration::from_secs;
        assert!(issuer.keys(start).is_none() && issuer.next(start) == Some(start));
        for (fresh, expected) in
            [(None, 900), (Some(s(1)), 60), (Some(s(300)), 300), (Some(s(1 << 40)), 86_400)]
        {
            let begin = issuer.next(start).expect("planned");
            assert!(issuer.begin(begin) && !issuer.begin(begin), "once");
            assert_eq!(issuer.next(begin), None);
            issuer.found(keys('a'), fresh, start);
            assert_eq!(issuer.next(start), Some(start + s(expected)));
            assert!(!issuer.begin(start + s(expected - 1)));
        }
    }

    #[test]
    fn old_keys_are_used_for_a_day_while_fetches_fail() {
        let (issuer, start) = issuer();
        issuer.found(keys('a'), None, start);
        let mut now = start + FRESH;
        let mut pauses = Vec::new();
        while issuer.begin(now) && now < start + USED_MAX {
            assert!(issuer.keys(now).is_some());
            assert_eq!(issuer.failed("down".into(), now), pauses.is_empty(), "the first one");
            let next = issuer.next(now).expect("planned");
            pauses.push((next - now).as_secs());
            now = next;
        }
        assert_eq!(pauses[..8], [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(issuer.problem().as_deref(), Some("down"));
        assert!(issuer.keys(start + USED_MAX - Duration::from_secs(1)).is_some());
        assert!(issuer.keys(start + USED_MAX).is_none(), "too old");
        issuer.found(keys('a'), None, now);
        assert!(issuer.keys(now).is_some() && issuer.problem().is_none());
    }

    #[test]
    fn unknown_keys_cause_a_fetch_every_thirty_seconds() {
        let (issuer, start) = issuer();
        issuer.found(keys('a'), None, start);
        assert!(issuer.lacks_a_key(start));
        assert!(issuer.begin(start) && !issuer.lacks_a_key(start), "it is under way");
        issuer.found(keys('b'), None, start);
        assert!(!issuer.lacks_a_key(start + PAUSE_UNKNOWN - Duration::from_millis(1)));
        assert!(!issuer.begin(start + PAUSE_UNKNOWN));
        assert!(issuer.lacks_a_key(start + PAUSE_UNKNOWN) && issuer.begin(start + PAUSE_UNKNOWN));
    }

    #[test]
    fn equal_keys_stay_the_same_ones() {
        let (issuer, start) = issuer();
        issuer.found(keys('a'), None, start);
        let before = issuer.keys(start).expect("known");
        issuer.found(keys('a'), None, start);
        assert!(Arc::ptr_eq(&before, &issuer.keys(start).expect("known")));
        issuer.found(keys('b'), None, start);
        assert!(!Arc::ptr_eq(&before, &issuer.keys(start).expect("known")));
    }

    #[test]
    fn keys_of_the_function_itself_are_never_fetched() {
        let text =
            format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{}"}}]}}"#, "A".repeat(43));
        let issuer = Issuer::new("any", &TokenKeys::Set(text));
        let now = Instant::now();
        assert!(issuer.keys(now + 10 * USED_MAX).is_some());
        assert!(issuer.next(now).is_none() && !issuer.begin(now) && !issuer.lacks_a_key(now));
    }
}
