//! Counts the calls of functions that have rates, and their unfinished calls.

use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use hashbrown::{DefaultHashBuilder, HashMap};
use mote_core::Fault;
use mote_core::fault::RateOf;
use mote_core::place::Place;
use mote_core::shares::{Exceeded, Shares, address_owner};
use mote_spec::name::split;
use mote_spec::{Rate, Rates};

use crate::bounded::{Bounded, Until, unix_ms};

/// The maximum number of combinations of function and rates that are counted. When another one is
/// added, counting starts again for all of them.
const METERS_MAX: usize = 10_000;
/// The maximum number of callers of one function that are remembered. All further callers share one
/// rate.
const CALLERS_MAX: usize = 4_096;

/// The meters of all functions that have rates and were called at least once.
#[derive(Default)]
pub(crate) struct Meters {
    clock: DefaultClock,
    /// Resists chosen input, because callers choose what is hashed.
    callers: RandomState,
    /// Need not resist chosen input, because only manifests choose what is hashed.
    rates: DefaultHashBuilder,
    /// The key is the hash of the function and its rates, because revisions with different rates
    /// may serve at the same time. Each change replaces the whole map, so that calls can read it
    /// without a lock.
    all: ArcSwap<HashMap<u64, Arc<Meter>>>,
    /// Held while one of the maps is changed.
    change: Mutex<()>,
    namespaces: ArcSwap<HashMap<String, Arc<DefaultDirectRateLimiter>>>,
}

struct Meter {
    all: Option<DefaultDirectRateLimiter>,
    callers: Option<Callers>,
    /// The places for simultaneous calls. They are divided among callers if the number for each
    /// caller is limited; unknown callers share the key 0. Callers without a running call are not
    /// kept, so the table has no more entries than the node has connections.
    places: Option<Shares<u64>>,
}

/// The rate of each caller.
struct Callers {
    known: Bounded<u64>,
    /// The rate that all other callers share: those for which there is no room, and those whose
    /// address is not known.
    others: DefaultDirectRateLimiter,
}

impl Meters {
    /// Counts a call, or fails if it comes too early. `caller` says whether a token names the
    /// caller, and the caller's name; with `None`, the caller's address is counted. If the function
    /// limits its simultaneous calls, returns a place for the call.
    pub(crate) fn count(
        &self,
        rates: &Rates,
        function: &str,
        caller: Option<(bool, &[u8])>,
        from: Option<IpAddr>,
    ) -> Result<Option<Place>, Fault> {
        self.with_meter(rates, function, caller, from, |meter, who| {
            // The place is taken first. A call that gets no place uses up no rate, and a call that
            // a rate refuses gives its place back at once.
            let place = meter.place(who)?;
            // The caller's rate is checked first, so that a caller that is too fast does not use up
            // the rate of all callers.
            let callers = meter.callers.as_ref().map_or(Ok(()), |callers| callers.count(who));
            callers.map_err(|until| self.refused(&until, RateOf::Caller))?;
            let all = meter.all.as_ref().map_or(Ok(()), RateLimiter::check);
            all.map_err(|until| self.refused(&until, RateOf::Function))?;
            Ok(place)
        })
    }

    /// Counts a call of a function in a namespace, if the namespace has a rate.
    pub(crate) fn count_namespace(&self, function: &str) -> Result<(), Fault> {
        let all = self.namespaces.load();
        let Some(meter) = split(function).1.and_then(|namespace| all.get(namespace)) else {
            return Ok(());
        };
        meter.check().map_err(|until| self.refused(&until, RateOf::Namespace))
    }

    /// Sets the rate of a namespace. With `None`, its calls are no longer counted.
    pub(crate) fn limit_namespace(&self, namespace: &str, calls_per_s: Option<u32>) {
        let _changing = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = HashMap::clone(&self.namespaces.load());
        changed.remove(namespace);
        if let Some(calls) = calls_per_s.and_then(NonZeroU32::new) {
            let meter = RateLimiter::direct(Quota::per_second(calls));
            changed.insert(namespace.to_owned(), Arc::new(meter));
        }
        self.namespaces.store(Arc::new(changed));
    }

    /// Gives a place to a call whose rates were counted before.
    pub(crate) fn place(
        &self,
        rates: &Rates,
        function: &str,
        caller: Option<(bool, &[u8])>,
        from: Option<IpAddr>,
    ) -> Result<Option<Place>, Fault> {
        self.with_meter(rates, function, caller, from, Meter::place)
    }

    /// Calls `then` with the meter of the function for these rates. `then` also receives the hash
    /// of the caller, if the rates count callers separately.
    #[inline]
    fn with_meter<T>(
        &self,
        rates: &Rates,
        function: &str,
        caller: Option<(bool, &[u8])>,
        from: Option<IpAddr>,
        then: impl FnOnce(&Meter, Option<u64>) -> T,
    ) -> T {
        let who = match (caller, from) {
            _ if !rates.is_by_caller() => None,
            (Some(caller), _) => Some(self.callers.hash_one(caller)),
            (None, from) => from.map(|from| self.callers.hash_one(address_owner(from))),
        };
        let key = self.rates.hash_one((function, rates));
        match self.all.load().get(&key) {
            Some(meter) => then(meter, who),
            None => then(&self.add(key, rates), who),
        }
    }

    #[cold]
    fn add(&self, key: u64, rates: &Rates) -> Arc<Meter> {
        let _changing = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.all.load();
        if let Some(meter) = all.get(&key) {
            return meter.clone();
        }
        let mut changed =
            if all.len() < METERS_MAX { HashMap::clone(&all) } else { HashMap::default() };
        let meter = Arc::new(Meter {
            all: rates.all.map(|rate| RateLimiter::direct(quota(rate))),
            callers: rates.caller.map(|rate| Callers {
                known: Bounded::new(quota(rate), CALLERS_MAX),
                others: RateLimiter::direct(quota(rate)),
            }),
            places: match (rates.at_once, rates.caller_at_once) {
                (None, None) => None,
                (Some(all), None) => Some(Shares::undivided(all as usize)),
                (all, Some(of_caller)) => {
                    let all = all.map_or(usize::MAX, |calls| calls as usize);
                    Some(Shares::new(all, of_caller as usize))
                }
            },
        });
        changed.insert(key, meter.clone());
        self.all.store(Arc::new(changed));
        meter
    }

    fn refused(&self, until: &Until, of: RateOf) -> Fault {
        let wait = until.wait_time_from(self.clock.now());
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let retry_after_s = u32::try_from(seconds).unwrap_or(u32::MAX).max(1);
        Fault::TooManyCalls { retry_after_s, of }
    }
}

impl Meter {
    /// Takes a place for a call of this caller, if the function limits its simultaneous calls.
    #[inline]
    fn place(&self, who: Option<u64>) -> Result<Option<Place>, Fault> {
        let take = |places: &Shares<u64>| places.take(who.unwrap_or(0), 1).map(Place::new);
        self.places
            .as_ref()
            .map(take)
            .transpose()
            .map_err(|exceeded| Fault::TooManyAtOnce { of_caller: exceeded == Exceeded::Share })
    }
}

impl Callers {
    fn count(&self, who: Option<u64>) -> Result<(), Until> {
        let known = who.and_then(|who| self.known.check(&who, unix_ms()));
        known.unwrap_or_else(|| self.others.check())
    }
}

/// Converts the rate into even steps between calls.
fn quota(rate: Rate) -> Quota {
    let burst = NonZeroU32::new(rate.burst).unwrap_or(NonZeroU32::MIN);
    let step = Duration::from_millis(rate.period_ms) / rate.calls.max(1);
    let quota = Quota::with_period(step).unwrap_or(Quota::per_second(burst));
    quota.allow_burst(burst)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Rate = Rate { calls: 1, period_ms: 3_600_000, burst: 3 };
    const ONE: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)));
    const TWO: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2)));

    /// How many of `tries` calls are accepted.
    fn accepted(tries: usize, mut call: impl FnMut() -> Result<Option<Place>, Fault>) -> usize {
        (0..tries).filter(|_| call().is_ok()).count()
    }

    #[test]
    fn all_callers_share_the_rate_of_a_function() {
        let meters = Meters::default();
        let rates = Rates { all: Some(SLOW), ..Rates::NONE };
        assert_eq!(accepted(2, || meters.count(&rates, "a", None, ONE)), 2);
        assert_eq!(accepted(5, || meters.count(&rates, "a", Some((false, b"web")), TWO)), 1);
        assert_eq!(accepted(5, || meters.count(&rates, "b", None, None)), 3, "another function");
        let refused = meters.count(&rates, "a", None, None);
        let Err(Fault::TooManyCalls { retry_after_s, of: RateOf::Function }) = refused else {
            panic!("{refused:?}")
        };
        assert!((3_590..=3_600).contains(&retry_after_s), "{retry_after_s}");
        let faster = Rates { all: Some(Rate { burst: 4, ..SLOW }), ..Rates::NONE };
        assert_eq!(accepted(5, || meters.count(&faster, "a", None, ONE)), 4, "another revision");
        for rates in [rates, faster] {
            assert!(meters.count(&rates, "a", None, ONE).is_err(), "each keeps its count");
        }
    }

    #[test]
    fn a_caller_that_is_too_fast_takes_nothing_from_others() {
        let meters = Meters::default();
        let rates =
            Rates { all: Some(Rate { burst: 7, ..SLOW }), caller: Some(SLOW), ..Rates::NONE };
        let call = |caller: Option<(bool, &[u8])>, from| meters.count(&rates, "a", caller, from);
        assert_eq!(accepted(100, || call(None, ONE)), 3);
        assert_eq!(
            accepted(100, || call(Some((false, b"web")), ONE)),
            3,
            "a key counts for itself"
        );
        assert_eq!(accepted(1, || call(Some((true, b"web")), ONE)), 1, "and a token, too");
        assert_eq!(accepted(100, || call(None, TWO)), 0, "the rate of the function is used up");
    }

    #[test]
    fn calls_at_once_end_and_make_room() {
        let meters = Meters::default();
        let rates = Rates { at_once: Some(3), caller_at_once: Some(2), ..Rates::NONE };
        let call = |caller: Option<&[u8]>, from| {
            meters.count(&rates, "a", caller.map(|name| (false, name)), from)
        };
        let mut held: Vec<_> = (0..2).map(|_| call(None, ONE).expect("a place")).collect();
        assert_eq!(call(None, ONE), Err(Fault::TooManyAtOnce { of_caller: true }));
        held.push(call(Some(b"web"), ONE).expect("a key counts for itself"));
        assert_eq!(call(None, TWO), Err(Fault::TooManyAtOnce { of_caller: false }));
        assert!(meters.count(&rates, "b", None, ONE).is_ok(), "another function");
        held.remove(0);
        held.push(call(None, TWO).expect("a place is free"));
        assert!(call(None, TWO).is_err());
        drop(held);
        let places = meters.add(meters.rates.hash_one(("a", &rates)), &rates).places.clone();
        let places = places.expect("places");
        assert_eq!(places.taken(), 0);
    }

    #[test]
    fn a_call_without_a_place_uses_up_no_rate() {
        let meters = Meters::default();
        let rates = Rates { all: Some(SLOW), at_once: Some(1), ..Rates::NONE };
        let held = meters.count(&rates, "a", None, ONE).expect("a place");
        assert_eq!(accepted(100, || meters.count(&rates, "a", None, ONE)), 0);
        drop(held);
        assert_eq!(accepted(100, || meters.count(&rates, "a", None, ONE)), 2, "of three");
        let refused = meters.count(&rates, "a", None, ONE);
        assert!(matches!(refused, Err(Fault::TooManyCalls { .. })), "the place was given back");
    }

    #[test]
    fn another_place_uses_up_no_rate() {
        let meters = Meters::default();
        let rates = Rates { all: Some(SLOW), at_once: Some(1), ..Rates::NONE };
        for _ in 0..100 {
            assert!(matches!(meters.place(&rates, "a", None, ONE), Ok(Some(_))));
        }
        assert_eq!(accepted(100, || meters.count(&rates, "a", None, ONE)), 3);
        let held = meters.count(&Rates { all: None, ..rates }, "a", None, ONE);
        let again = meters.place(&Rates { all: None, ..rates }, "a", None, TWO);
        assert_eq!(again, Err(Fault::TooManyAtOnce { of_caller: false }), "{held:?}");
    }

    #[test]
    fn callers_without_room_share_a_rate() {
        let meters = Meters::default();
        let rates = Rates { caller: Some(SLOW), ..Rates::NONE };
        let call =
            |number: usize| meters.count(&rates, "a", Some((false, &number.to_le_bytes())), None);
        let mut number = 0;
        let mut next = || {
            number += 1;
            call(number)
        };
        assert_eq!(accepted(CALLERS_MAX + 100, &mut next), CALLERS_MAX + 3);
    }

    #[test]
    fn tokens_come_evenly() {
        let quota = quota(Rate { calls: 50, period_ms: 1_000, burst: 1 });
        assert_eq!(quota.replenish_interval(), Duration::from_millis(20));
        let fastest = super::quota(Rate { calls: 1_000_000, period_ms: 1_000, burst: 1 });
        assert_eq!(fastest.replenish_interval(), Duration::from_micros(1));
    }
}
