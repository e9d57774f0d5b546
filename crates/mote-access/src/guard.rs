//! The decision about one request.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use mote_core::Fault;
use mote_core::invocation::{Head, headers};
use mote_core::spec::{Access, Rates};

use crate::bounded::unix_ms;
use crate::guesses::Guesses;
use crate::meters::Meters;
use crate::pages;
use crate::refusals::Refusals;
use crate::ring::KeyRing;

/// The fields in which a caller sends its key.
const BEARER_FIELD: &[u8] = b"authorization";
const KEY_FIELD: &[u8] = b"x-api-key";
const BEARER: &[u8] = b"bearer ";
/// Most keys of one request that are tried.
const TRIED_MAX: usize = 4;

/// Decides which requests a function accepts. Cheap to clone; all clones have the same keys.
#[derive(Clone, Default)]
pub struct Guard(Arc<Shared>);

#[derive(Default)]
struct Shared {
    ring: ArcSwap<KeyRing>,
    guesses: Guesses,
    meters: Meters,
    refusals: Refusals,
}

impl Guard {
    /// Replaces all keys. Requests that arrive from now on are checked with the new ones.
    pub fn replace(&self, ring: KeyRing) {
        self.0.ring.store(Arc::new(ring));
    }

    /// Whether there is a key that opens this function.
    pub fn opens(&self, function: &str) -> bool {
        self.0.ring.load().opens(function, unix_ms())
    }

    /// Whether the caller with this name may call a function.
    pub fn caller_opens(&self, caller: &[u8], function: &str) -> bool {
        self.0.ring.load().caller_opens(caller, function, unix_ms())
    }

    /// Whether a request may run a function. If it may because of its key, the key is removed from
    /// the head, and the name of the caller is added. `from` is the sender's address, if it is known.
    /// A request that was admitted before is not asked again.
    #[inline]
    pub fn admit(
        &self,
        access: Access,
        function: &str,
        head: &mut Head,
        from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        if access == Access::Public || head.is_admitted() {
            return Ok(());
        }
        let checked = match access {
            Access::Local | Access::Unset => check_local(head, from),
            _ => self.check_key(access, function, head, from),
        };
        checked.inspect_err(|fault| self.0.refusals.note(function, fault, from))
    }

    /// Requests that were refused since the start, by the code of the refusal.
    pub fn refusals(&self) -> Vec<(&'static str, u64)> {
        self.0.refusals.by_code()
    }

    /// Counts a request against the rates of a function and gives it a place among the calls that may
    /// be at once, unless that was done before.
    #[inline]
    pub fn count(
        &self,
        rates: &Rates,
        function: &str,
        head: &mut Head,
        from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        if rates.is_none() || head.is_counted() {
            return Ok(());
        }
        let counted = self.0.meters.count(rates, function, head.caller(), from);
        let place = counted.inspect_err(|fault| self.0.refusals.note(function, fault, from))?;
        head.keep_place(place);
        head.count();
        Ok(())
    }

    #[inline(never)]
    fn check_key(
        &self,
        access: Access,
        function: &str,
        head: &mut Head,
        from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        if is_of_this_machine(from) {
            head.set_local();
        }
        let (ring, now_unix_ms) = (self.0.ring.load(), unix_ms());
        let mut has_sent = false;
        let found = presented(head.headers()).find_map(|(field, text)| {
            has_sent = true;
            Some((field, ring.find(text, now_unix_ms)?))
        });
        match found {
            Some((field, key)) if access == Access::KeyIfSent || key.opens(function) => {
                let caller = key.name.clone();
                head.remove_header(field);
                head.admit(Some(caller.as_bytes()));
                Ok(())
            }
            Some(_) => Err(Fault::OtherKey),
            None if access == Access::KeyIfSent => Ok(()),
            // Only those who send a key can guess one.
            None if !has_sent || self.0.guesses.may_guess(from, now_unix_ms) => Err(Fault::NoKey),
            None => Err(Fault::TooManyKeys),
        }
    }
}

/// Whether a request for a function that only this machine may call comes from it.
fn check_local(head: &mut Head, from: Option<IpAddr>) -> Result<(), Fault> {
    if !is_of_this_machine(from) {
        return Err(Fault::NotLocal);
    }
    if pages::is_of_another_site(head.headers()) {
        return Err(Fault::OtherSite);
    }
    head.set_local();
    head.admit(None);
    Ok(())
}

/// Whether the address is one of loopback. Other addresses of this machine do not count: functions
/// that may reach any host connect from them, and over IPv6 other machines can forge them.
fn is_of_this_machine(from: Option<IpAddr>) -> bool {
    from.is_some_and(|from| from.to_canonical().is_loopback())
}

/// What a request presents as its key, each with its field.
fn presented(block: &[u8]) -> impl Iterator<Item = (&'static [u8], &[u8])> {
    let all = headers(block).filter_map(|(name, value)| match name {
        KEY_FIELD => Some((KEY_FIELD, value.trim_ascii())),
        BEARER_FIELD => {
            let (scheme, text) = value.split_at_checked(BEARER.len())?;
            scheme.eq_ignore_ascii_case(BEARER).then(|| (BEARER_FIELD, text.trim_ascii()))
        }
        _ => None,
    });
    all.take(TRIED_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{Key, NewKey};

    /// A guard with a key for everything, one for `hello` and one that has expired; and their texts.
    fn guard() -> (Guard, [String; 3]) {
        let mut texts = Vec::new();
        let mut key = |name: &str, functions: &[&str], expires_unix_ms| {
            let NewKey { text, hash } = NewKey::random().expect("random");
            texts.push(text);
            let functions = functions.iter().map(|name| (*name).to_owned()).collect();
            Key { name: name.into(), hash, functions, expires_unix_ms }
        };
        let keys = [key("all", &[], None), key("one", &["hello"], None), key("old", &[], Some(1))];
        let guard = Guard::default();
        guard.replace(KeyRing::new(keys));
        (guard, texts.try_into().expect("three"))
    }

    fn head(fields: &[(&str, &str)]) -> Head {
        let mut head = Head::builder(b"GET", b"/", b"");
        for (name, value) in fields {
            head.header(name.as_bytes(), value.as_bytes());
        }
        head.finish()
    }

    fn answer(guard: &Guard, function: &str, fields: &[(&str, &str)]) -> Result<Head, Fault> {
        let mut head = head(fields);
        guard.admit(Access::Key, function, &mut head, None).map(|()| head)
    }

    #[test]
    fn a_key_opens_what_it_may_and_is_removed() {
        let (guard, [all, one, old]) = guard();
        let bearer = |key: &str| format!("Bearer {key}");
        for field in [("Authorization", bearer(&all)), ("X-API-Key", all.clone())] {
            let head =
                answer(&guard, "other", &[(field.0, &field.1), ("x-a", "b")]).expect("admitted");
            assert_eq!(head.headers(), b"x-a\nb\nmote-caller\nall\n");
            assert_eq!((head.is_admitted(), head.caller()), (true, Some(&b"all"[..])));
        }
        assert!(answer(&guard, "hello", &[("authorization", &format!("bearer  {one}"))]).is_ok());
        assert_eq!(answer(&guard, "other", &[("x-api-key", &one)]), Err(Fault::OtherKey));
        for wrong in [old.as_str(), "", "mote_x"] {
            assert_eq!(answer(&guard, "hello", &[("x-api-key", wrong)]), Err(Fault::NoKey));
        }
        assert_eq!(answer(&guard, "hello", &[]), Err(Fault::NoKey));
        assert_eq!(answer(&guard, "hello", &[("authorization", &all)]), Err(Fault::NoKey));
    }

    #[test]
    fn the_functions_own_credentials_stay() {
        let (guard, [all, ..]) = guard();
        let fields = [("authorization", "Bearer of-the-function"), ("x-api-key", all.as_str())];
        let head = answer(&guard, "hello", &fields).expect("admitted");
        assert_eq!(head.headers(), b"authorization\nBearer of-the-function\nmote-caller\nall\n");
    }

    #[test]
    fn public_functions_are_not_changed() {
        let (guard, [all, ..]) = guard();
        let mut head = head(&[("x-api-key", &all)]);
        let before = head.clone();
        assert_eq!(guard.admit(Access::Public, "hello", &mut head, None), Ok(()));
        assert_eq!(head, before);
    }

    #[test]
    fn a_local_function_is_called_from_this_machine_only() {
        let guard = Guard::default();
        let call = |access, from: Option<IpAddr>| {
            let mut head = head(&[("x-api-key", "mote_x")]);
            guard.admit(access, "hello", &mut head, from).map(|()| head)
        };
        for from in ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"] {
            let admitted = call(Access::Local, from.parse().ok()).expect(from);
            assert!(admitted.is_admitted() && admitted.caller().is_none(), "{from}");
            assert_eq!(admitted.headers(), b"x-api-key\nmote_x\n", "nothing is removed");
        }
        for from in ["192.0.2.8", "10.0.0.1", "::ffff:192.0.2.8", "fe80::1", "::", "0.0.0.0"] {
            assert_eq!(call(Access::Local, from.parse().ok()), Err(Fault::NotLocal), "{from}");
        }
        assert_eq!(call(Access::Local, None), Err(Fault::NotLocal), "an unknown address");
        assert_eq!(call(Access::Unset, None), Err(Fault::NotLocal));
    }

    #[test]
    fn pages_of_other_sites_call_no_local_function() {
        let guard = Guard::default();
        let call = |access, fields: &[(&str, &str)]| {
            let from = Some(IpAddr::from([127, 0, 0, 1]));
            guard.admit(access, "hello", &mut head(fields), from)
        };
        let by_a_page = [("Host", "127.0.0.1:6683"), ("Origin", "https://evil.example")];
        let rebound = [("Host", "evil.example:6683")];
        for fields in [&by_a_page[..], &rebound] {
            assert_eq!(call(Access::Local, fields), Err(Fault::OtherSite));
            assert_eq!(call(Access::Public, fields), Ok(()), "says so in its manifest");
        }
        assert_eq!(call(Access::Local, &[("Host", "localhost:6683")]), Ok(()));
        assert_eq!(guard.refusals()[5], ("M0525", 2));
    }

    #[test]
    fn a_key_is_optional_for_what_the_node_answers_itself() {
        let (guard, [all, ..]) = guard();
        let caller = |key: &str| {
            let mut head = head(&[("x-api-key", key)]);
            let admitted = guard.admit(Access::KeyIfSent, "invocations", &mut head, None);
            admitted.map(|()| head.caller().map(<[u8]>::to_vec))
        };
        assert_eq!(caller(&all), Ok(Some(b"all".to_vec())));
        assert_eq!(caller("wrong"), Ok(None));
    }

    #[test]
    fn guesses_are_slowed_down_and_right_keys_are_not() {
        let (guard, [all, ..]) = guard();
        let from = Some(IpAddr::from([192, 0, 2, 1]));
        let send =
            |key: &str| guard.admit(Access::Key, "hello", &mut head(&[("x-api-key", key)]), from);
        let wrong: Vec<_> = (0..30).map(|_| send("wrong")).collect();
        assert_eq!(wrong[..10], vec![Err(Fault::NoKey); 10]);
        assert!(wrong.contains(&Err(Fault::TooManyKeys)));
        assert_eq!(send(&all), Ok(()));
        assert_eq!(guard.admit(Access::Key, "hello", &mut head(&[]), from), Err(Fault::NoKey));
    }

    #[test]
    fn changed_keys_count_at_once() {
        let (guard, [all, ..]) = guard();
        assert!(guard.opens("hello"));
        guard.replace(KeyRing::default());
        assert!(!guard.opens("hello"));
        assert_eq!(answer(&guard, "hello", &[("x-api-key", &all)]), Err(Fault::NoKey));
    }
}
