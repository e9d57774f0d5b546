//! Decides whether one request may call a function.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use crate::issuers::{Issuers, Rejected};
use arc_swap::ArcSwap;
use bytes::{Bytes, BytesMut};
use mote_core::body::Body;
use mote_core::invocation::Head;
use mote_core::{Fault, RouteInfo};
use mote_spec::{Access, CertificateRules, Rates, TokenRules, WebhookRules, name};
use tokio::sync::watch;

use crate::bounded::unix_ms;
use crate::credentials::{presented, tokens};
use crate::guesses::Guesses;
use crate::meters::Meters;
use crate::pages;
use crate::refusals::Refusals;
use crate::ring::KeyRing;

/// Decides which requests may call a function. A clone is cheap and shares all keys.
#[derive(Clone, Default)]
pub struct Guard(Arc<Shared>);

#[derive(Default)]
struct Shared {
    ring: ArcSwap<KeyRing>,
    guesses: Guesses,
    issuers: Issuers,
    meters: Meters,
    refusals: Refusals,
    secrets: OnceLock<Box<UseSecret>>,
    replaced: watch::Sender<()>,
}

/// Passes the value of the node's secret with this name to the callback. If there is no such
/// secret, the callback is not called.
pub type UseSecret = dyn Fn(&str, &mut dyn FnMut(&str)) + Send + Sync;

impl Guard {
    /// Replaces all keys. Requests that arrive from now on are checked with the new keys.
    pub fn replace(&self, ring: KeyRing) {
        self.0.ring.store(Arc::new(ring));
        self.0.replaced.send_replace(());
    }

    /// Signals each later [`Guard::replace`].
    pub fn replaced(&self) -> watch::Receiver<()> {
        self.0.replaced.subscribe()
    }

    /// All current keys.
    pub fn ring(&self) -> Arc<KeyRing> {
        self.0.ring.load_full()
    }

    /// Whether there is a key that opens this function.
    pub fn opens(&self, function: &str) -> bool {
        self.0.ring.load().opens(function, unix_ms())
    }

    /// The issuers of the tokens of callers.
    pub fn issuers(&self) -> &Issuers {
        &self.0.issuers
    }

    /// Gives the guard access to the secrets with which signatures are checked. A second call has
    /// no effect.
    pub fn set_secrets(&self, secrets: Box<UseSecret>) {
        let _ = self.0.secrets.set(secrets);
    }

    /// Whether the head of a request contains everything that a signature needs. This proves
    /// nothing: whoever passes the request on must call [`Guard::verify`] with the body.
    pub(crate) fn is_signed(
        &self,
        rules: &WebhookRules,
        function: &str,
        head: &Head,
        from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        if head.is_admitted() || crate::webhook::is_signed(rules, head.headers(), unix_ms()) {
            return Ok(());
        }
        self.0.refusals.note(function, &Fault::NoSignature, from);
        Err(Fault::NoSignature)
    }

    /// Checks the signature of a request. If it is valid, admits the request; its caller is then
    /// the name of the scheme.
    pub(crate) fn verify(
        &self,
        rules: &WebhookRules,
        function: &str,
        head: &mut Head,
        body: &mut Body,
    ) -> Result<(), Fault> {
        if head.is_admitted() {
            return Ok(());
        }
        let bytes = arrived(body)?;
        let mut verified = Err(Fault::NoSignatureSecret);
        if let Some(secrets) = self.0.secrets.get() {
            let secret = name::kept(&rules.secret, name::split(function).1);
            secrets(&secret, &mut |secret| {
                let is_valid =
                    crate::webhook::verifies(rules, secret, head.headers(), &bytes, unix_ms());
                verified = if is_valid { Ok(()) } else { Err(Fault::NoSignature) };
            });
        }
        match &verified {
            Ok(()) => {
                head.admit(Some(rules.scheme.as_str().as_bytes()));
                *body = Body::whole(bytes);
            }
            Err(fault) => self.0.refusals.note(function, fault, None),
        }
        verified
    }

    /// For a request that does not call a function but asks about it, for example about its
    /// invocations: decides whether the sender may call this function. The head was admitted with
    /// [`Access::KeyIfSent`], so if it names a caller, that caller has sent a key. A token is
    /// verified by the rules of this function, because the name in a token proves nothing to other
    /// functions.
    pub fn proves(&self, head: &Head, route: &RouteInfo<'_>) -> bool {
        let ring = self.0.ring.load();
        let now_unix_ms = unix_ms();
        let name = route.name.as_str();
        // The head no longer contains the key that named the caller, but one of its other keys may
        // open the function.
        let opens = |access| {
            let mut others = presented(head.headers(), access);
            let mut others = || {
                others.any(|one| one.find(&ring, now_unix_ms).is_some_and(|key| key.opens(name)))
            };
            head.caller().is_some_and(|caller| ring.caller_opens(caller, name, now_unix_ms))
                || others()
        };
        match (route.access, route.tokens) {
            (Access::Key, _) => opens(Access::Key),
            (Access::Basic, _) => {
                !pages::is_of_another_origin(head.headers()) && opens(Access::Basic)
            }
            (Access::Jwt, Some(rules)) => self.subject(head, rules, now_unix_ms).is_ok(),
            (Access::Mtls, _) => {
                route.certificates.is_some_and(|rules| certified(rules, head).is_ok())
            }
            _ => false,
        }
    }

    /// Checks whether a request may run a function. If the request has a key that permits this,
    /// removes the key from the head and adds the name of the caller. A token stays in the head, so
    /// that the function can read further claims. `tokens` are the rules of a function with
    /// [`Access::Jwt`]. `from` is the sender's address, if it is known. A request that was admitted
    /// before is not checked again.
    #[inline]
    pub fn admit(
        &self,
        access: Access,
        tokens: Option<&Arc<TokenRules>>,
        function: &str,
        head: &mut Head,
        from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        if access == Access::Public || head.is_admitted() {
            return Ok(());
        }
        let checked = match access {
            Access::Local | Access::Unset => check_local(head, from),
            _ => self.check((access, tokens), function, head, from),
        };
        checked.inspect_err(|fault| self.0.refusals.note(function, fault, from))
    }

    /// Like [`Guard::admit`], for a function that asks for client certificates. [`Guard::admit`]
    /// refuses all requests for such functions, because it does not know which certificates they
    /// accept.
    pub(crate) fn admit_certified(
        &self,
        rules: &CertificateRules,
        function: &str,
        head: &mut Head,
        from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        if head.is_admitted() {
            return Ok(());
        }
        let checked = certified(rules, head);
        let caller = checked.inspect_err(|fault| self.0.refusals.note(function, fault, from))?;
        head.admit(Some(caller.as_bytes()));
        Ok(())
    }

    /// The number of requests that were refused since the start, for each error code.
    pub fn refusals(&self) -> Vec<(&'static str, u64)> {
        self.0.refusals.by_code()
    }

    /// Counts a request against the rates of a function, and gives it one of the places for
    /// simultaneous calls. Does nothing if the request was counted before.
    #[inline]
    pub fn count(
        &self,
        access: Access,
        rates: &Rates,
        function: &str,
        head: &mut Head,
        from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        if rates.is_none() || head.is_counted() {
            return Ok(());
        }
        // A key and a token may contain the same name, but they belong to different callers.
        let caller = head.caller().map(|name| (access == Access::Jwt, name));
        let counted = match head.is_paid() {
            true => self.0.meters.place(rates, function, caller, from),
            false => self.0.meters.count(rates, function, caller, from),
        };
        let place = counted.inspect_err(|fault| self.0.refusals.note(function, fault, from))?;
        head.keep_place(place);
        head.count();
        Ok(())
    }

    /// Like [`Guard::count`], for a function in a namespace. The rate of the namespace is counted
    /// first.
    #[cold]
    pub fn count_within(
        &self,
        access: Access,
        rates: &Rates,
        function: &str,
        head: &mut Head,
        from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        if head.is_counted() {
            return Ok(());
        }
        if !head.is_paid() {
            self.count_namespace(function, from)?;
        }
        self.count(access, rates, function, head, from)?;
        head.count();
        Ok(())
    }

    /// Counts a call of a function in a namespace. Fails if the namespace has used up its rate.
    pub fn count_namespace(&self, function: &str, from: Option<IpAddr>) -> Result<(), Fault> {
        let counted = self.0.meters.count_namespace(function);
        counted.inspect_err(|fault| self.0.refusals.note(function, fault, from))
    }

    /// Sets how many calls a second are accepted for all functions of a namespace together.
    pub fn limit_namespace(&self, namespace: &str, calls_per_s: Option<u32>) {
        self.0.meters.limit_namespace(namespace, calls_per_s);
    }

    #[inline(never)]
    fn check(
        &self,
        (access, tokens): (Access, Option<&Arc<TokenRules>>),
        function: &str,
        head: &mut Head,
        from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        let is_optional = access == Access::KeyIfSent;
        if is_optional && is_of_this_machine(from) && !pages::is_of_another_site(head.headers()) {
            head.set_local();
        }
        if access == Access::Jwt {
            return self.check_token(tokens, head, from);
        }
        match access {
            Access::Webhook => return Err(Fault::NoSignature),
            Access::Mtls => return Err(Fault::NoCertificate),
            _ => {}
        }
        if access == Access::Basic && pages::is_of_another_origin(head.headers()) {
            return Err(Fault::OtherSite);
        }
        let ring = self.0.ring.load();
        let now_unix_ms = unix_ms();
        // If a client proved its key when it connected, it need not send the key again.
        let proved = head.psk().and_then(|identity| ring.find_psk(identity, now_unix_ms));
        if let Some(key) = proved
            && (is_optional || key.opens(function))
        {
            head.admit(Some(key.name.as_bytes()));
            return Ok(());
        }
        // A request may contain several keys. One of them must open the function.
        let mut sent = 0;
        let mut has_other = proved.is_some();
        let mut found = None;
        for one in presented(head.headers(), access) {
            sent += 1;
            if found.is_none()
                && let Some(key) = one.find(&ring, now_unix_ms)
            {
                let opens = is_optional || key.opens(function);
                has_other |= !opens;
                found = opens.then_some((one.field(), key));
            }
        }
        match found {
            Some((field, key)) => {
                head.admit_with_key(field, key.name.as_bytes());
                // If the node itself answers, further keys stay, because one of them may be needed
                // to open the function that the request asks about.
                if sent > 1 && !is_optional {
                    remove_keys(head, access, &ring, now_unix_ms);
                }
                Ok(())
            }
            None if has_other => Err(Fault::OtherKey),
            None if is_optional => Ok(()),
            // A request without any key is not an attempt to guess one.
            None if sent > 0 && !self.0.guesses.may_guess(from, now_unix_ms) => {
                Err(Fault::TooManyKeys)
            }
            None if access == Access::Basic => Err(Fault::NoPassword),
            None => Err(Fault::NoKey),
        }
    }

    #[cold]
    fn check_token(
        &self,
        rules: Option<&Arc<TokenRules>>,
        head: &mut Head,
        from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        // If there are no rules, the function has another access mode.
        let rules = rules.ok_or(Fault::NoToken)?;
        if tokens(head.headers()).next().is_none() {
            return Err(Fault::NoToken);
        }
        let now_unix_ms = unix_ms();
        match self.subject(head, rules, now_unix_ms) {
            Ok(subject) => {
                head.admit(Some(subject.as_bytes()));
                Ok(())
            }
            Err(Rejected::NoKeys) => Err(Fault::NoTokenKeys),
            Err(Rejected::Claims) => Err(Fault::OtherToken),
            Err(Rejected::Wrong) if self.0.guesses.may_guess(from, now_unix_ms) => {
                Err(Fault::NoToken)
            }
            Err(Rejected::Wrong) => Err(Fault::TooManyKeys),
        }
    }

    /// Returns the subject of a request's token. A request must have exactly one token.
    fn subject(
        &self,
        head: &Head,
        rules: &Arc<TokenRules>,
        now_unix_ms: u64,
    ) -> Result<Arc<str>, Rejected> {
        let mut all = tokens(head.headers());
        let (Some(token), None) = (all.next(), all.next()) else { return Err(Rejected::Wrong) };
        self.0.issuers.check(token, rules, now_unix_ms / 1_000)
    }
}

/// Returns the caller that the client certificate of a request's connection names. A page of
/// another site must not use the certificate of the browser that shows the page.
fn certified(rules: &CertificateRules, head: &Head) -> Result<String, Fault> {
    if pages::is_of_another_origin(head.headers()) {
        return Err(Fault::OtherSite);
    }
    let caller = head.certificate().and_then(|names| rules.caller(names));
    caller.map(str::to_owned).ok_or(Fault::NoCertificate)
}

/// Returns all bytes of a body that has arrived completely, and refuses any other body. For such
/// functions, a front waits for the end of the body, except when too many bodies are arriving at
/// once.
fn arrived(body: &mut Body) -> Result<Bytes, Fault> {
    let mut context = Context::from_waker(Waker::noop());
    let mut all = BytesMut::new();
    loop {
        match body.poll_chunk(&mut context) {
            Poll::Ready(None) => return Ok(all.freeze()),
            Poll::Ready(Some(Ok(chunk))) if all.is_empty() => all = chunk.into(),
            Poll::Ready(Some(Ok(chunk))) => all.extend_from_slice(&chunk),
            Poll::Ready(Some(Err(error))) => return Err(Fault::of_body(&error)),
            Poll::Pending => return Err(Fault::NodeFull),
        }
    }
}

/// Removes further valid keys from the head, because the function would otherwise receive them.
#[cold]
fn remove_keys(head: &mut Head, access: Access, ring: &KeyRing, now_unix_ms: u64) {
    loop {
        let mut further = presented(head.headers(), access);
        let found = further.find_map(|one| one.find(ring, now_unix_ms).map(|_| one.field()));
        drop(further);
        let Some(field) = found else { break };
        head.remove_header(field);
    }
}

/// Checks whether a request comes from this machine, for a function that only this machine may
/// call.
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

/// Whether the address is a loopback address. Other addresses of this machine do not count:
/// functions that may reach any host connect from them, and other machines can forge them over
/// IPv6.
fn is_of_this_machine(from: Option<IpAddr>) -> bool {
    from.is_some_and(|from| from.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use mote_spec::{FunctionName, TokenKeys};

    use super::*;
    use crate::ring::{Key, NewKey};

    /// Returns a guard with three keys, and the texts of these keys. The first key opens
    /// everything, the second one opens `hello`, and the third one has expired.
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
        guard.admit(Access::Key, None, function, &mut head, None).map(|()| head)
    }

    #[test]
    fn of_several_keys_one_must_open_the_function_and_none_reaches_it() {
        let (guard, [all, one, old]) = guard();
        let bearer = |key: &str| format!("Bearer {key}");
        for (first, second) in [(&one, &all), (&all, &one), (&all, &all), (&all, &old)] {
            let second_field = ("authorization", bearer(second));
            let fields = [("x-api-key", first.as_str()), (second_field.0, &*second_field.1)];
            let head = answer(&guard, "other", &fields).expect("one of them opens it");
            assert_eq!(head.caller(), Some(&b"all"[..]));
            let text = String::from_utf8_lossy(head.headers());
            assert!(!text.contains(all.as_str()) && !text.contains(one.as_str()), "{text}");
        }
        let other = bearer("a token of another service");
        let fields = [("x-api-key", all.as_str()), ("authorization", &other)];
        let head = answer(&guard, "other", &fields).expect("admitted");
        let text = String::from_utf8_lossy(head.headers());
        assert!(text.contains("a token of another service"), "{text}");
        let fields = [("x-api-key", one.as_str()), ("authorization", &other)];
        assert_eq!(answer(&guard, "other", &fields), Err(Fault::OtherKey));
    }

    #[test]
    fn a_pre_shared_key_opens_what_its_key_opens() {
        let (guard, _) = guard();
        let identity_of =
            |name: &str| guard.ring().keys().find(|key| &*key.name == name).map(Key::psk_identity);
        let answer = |identity: Option<String>, access, function: &str| {
            let mut head = head(&[]);
            head.set_psk(Arc::new(identity.expect("an identity")));
            guard.admit(access, None, function, &mut head, None).map(|()| head)
        };
        for function in ["hello", "other"] {
            let head = answer(identity_of("all"), Access::Key, function).expect("admitted");
            assert_eq!(head.caller(), Some(&b"all"[..]));
        }
        assert!(answer(identity_of("one"), Access::Key, "hello").is_ok());
        assert_eq!(answer(identity_of("one"), Access::Key, "other"), Err(Fault::OtherKey));
        assert_eq!(answer(identity_of("all"), Access::Mtls, "other"), Err(Fault::NoCertificate));
        assert_eq!(answer(identity_of("all"), Access::Local, "other"), Err(Fault::NotLocal));
        let one = identity_of("one");
        let replaced = guard.replaced();
        assert!(!replaced.has_changed().expect("the guard exists"));
        guard.replace(KeyRing::default());
        assert!(replaced.has_changed().expect("the guard exists"));
        assert!(answer(one, Access::Key, "hello").is_err(), "the key was revoked");
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
        assert_eq!(guard.admit(Access::Public, None, "hello", &mut head, None), Ok(()));
        assert_eq!(head, before);
    }

    #[test]
    fn a_password_opens_functions_of_its_mode_only() {
        let (guard, [all, one, old]) = guard();
        let basic = |text: &str| format!("Basic {}", mote_core::base64::encode(text.as_bytes()));
        let call = |access, field: &str, more: &[(&str, &str)]| {
            let mut head = head(&[&[("authorization", field)], more].concat());
            guard.admit(access, None, "other", &mut head, None).map(|()| head)
        };
        let right = basic(&format!("all:{all}"));
        let seen = call(Access::Basic, &right, &[("x-a", "b")]).expect("admitted");
        assert_eq!(seen.headers(), b"x-a\nb\nmote-caller\nall\n");
        assert!(call(Access::Basic, &right.replace("Basic", "bAsIc"), &[]).is_ok());
        assert!(call(Access::Basic, &format!("Bearer {all}"), &[]).is_ok(), "as with the mode key");
        assert_eq!(call(Access::Key, &right, &[]), Err(Fault::NoKey));
        assert_eq!(call(Access::Basic, &basic(&format!("one:{one}")), &[]), Err(Fault::OtherKey));
        let wrong = [
            format!("one:{all}"),
            format!(":{all}"),
            format!("all:{all} "),
            format!("all:{old}"),
            format!("All:{all}"),
            format!("all{all}"),
            "all:".to_owned(),
            all.clone(),
            format!("{}:{all}", "a".repeat(400)),
        ];
        for text in wrong {
            assert_eq!(call(Access::Basic, &basic(&text), &[]), Err(Fault::NoPassword), "{text}");
        }
        for field in ["Basic", "Basic ", "Basic %%", "Basic YQ", "Digest x", ""] {
            assert_eq!(call(Access::Basic, field, &[]), Err(Fault::NoPassword), "{field}");
        }
        for site in ["cross-site", "same-site", "Same-Origin", ""] {
            let refused = call(Access::Basic, &right, &[("sec-fetch-site", site)]);
            assert_eq!(refused, Err(Fault::OtherSite), "{site}");
        }
        let both = [("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")];
        assert_eq!(call(Access::Basic, &right, &both), Err(Fault::OtherSite));
        assert!(call(Access::Basic, &right, &both[..1]).is_ok());
    }

    /// Made by PyJWT: a key set, a token that the set verifies, and a token without the claim
    /// `role`.
    fn made() -> [&'static str; 3] {
        let lines: Vec<_> = include_str!("guard/pyjwt.txt").lines().collect();
        lines.try_into().expect("three lines")
    }

    fn rules(keys: TokenKeys) -> Arc<TokenRules> {
        let claims = [("role".to_owned(), "x".into())].into();
        let issuer = "https://a".to_owned();
        let audience = "b".to_owned();
        Arc::new(TokenRules { issuer, audience, keys, claims })
    }

    #[test]
    fn a_token_names_its_caller_and_stays() {
        let ((guard, [all, ..]), [set, token, without_role]) = (guard(), made());
        let rules = rules(TokenKeys::Set(set.to_owned()));
        let call = |fields: &[(&str, &str)]| {
            let mut head = head(fields);
            let admitted = guard.admit(Access::Jwt, Some(&rules), "hello", &mut head, None);
            admitted.map(|()| head)
        };
        let bearer = format!("Bearer {token}");
        for _ in 0..2 {
            let seen = call(&[("authorization", &bearer)]).expect("admitted");
            let expected = format!("authorization\n{bearer}\nmote-caller\nall\n");
            assert_eq!(seen.headers(), expected.as_bytes());
        }
        let bare = format!("Bearer {without_role}");
        for _ in 0..2 {
            assert_eq!(call(&[("authorization", &bare)]), Err(Fault::OtherToken));
        }
        assert_eq!(call(&[]), Err(Fault::NoToken));
        assert_eq!(call(&[("x-api-key", token)]), Err(Fault::NoToken));
        assert_eq!(call(&[("x-api-key", &all)]), Err(Fault::NoToken), "a key is no token");
        let key = format!("Bearer {all}");
        assert_eq!(call(&[("authorization", &key)]), Err(Fault::NoToken));
        let two = [("authorization", bearer.as_str()), ("authorization", bearer.as_str())];
        assert_eq!(call(&two), Err(Fault::NoToken), "two tokens");
        let early = super::tests::rules(TokenKeys::Discovered);
        let mut head = head(&[("authorization", &bearer)]);
        let refused = guard.admit(Access::Jwt, Some(&early), "hello", &mut head, None);
        assert_eq!(refused, Err(Fault::NoTokenKeys));
        assert_eq!(guard.admit(Access::Jwt, None, "hello", &mut head, None), Err(Fault::NoToken));
    }

    #[test]
    fn wrong_tokens_are_guesses_and_right_ones_always_work() {
        let [set, token, _] = made();
        let guard = Guard::default();
        let rules = rules(TokenKeys::Set(set.to_owned()));
        let from = Some(IpAddr::from([192, 0, 2, 1]));
        let send = |token: &str| {
            let mut head = head(&[("authorization", &format!("Bearer {token}"))]);
            guard.admit(Access::Jwt, Some(&rules), "hello", &mut head, from)
        };
        let wrong: Vec<_> = (0..30).map(|_| send("wrong")).collect();
        assert_eq!(wrong[..10], vec![Err(Fault::NoToken); 10]);
        assert!(wrong.contains(&Err(Fault::TooManyKeys)));
        assert_eq!(send(token), Ok(()));
    }

    #[test]
    fn what_concerns_a_function_is_for_those_who_may_call_it() {
        let ((guard, [all, one, _]), [set, token, without_role]) = (guard(), made());
        let rules = rules(TokenKeys::Set(set.to_owned()));
        let proves = |access, fields: &[(&str, &str)]| {
            let name = FunctionName::new("hello").expect("valid");
            let mut head = head(fields);
            guard.admit(Access::KeyIfSent, None, "invocations", &mut head, None).expect("optional");
            let rules = Some(&rules);
            guard.proves(&head, &RouteInfo { access, tokens: rules, ..RouteInfo::new(&name, 0, 0) })
        };
        let bearer = format!("Bearer {token}");
        let bare = format!("Bearer {without_role}");
        let password = mote_core::base64::encode(format!("one:{one}").as_bytes());
        let password = format!("Basic {password}");
        let token = ("authorization", bearer.as_str());
        let key = ("x-api-key", all.as_str());
        let password = ("authorization", password.as_str());
        assert!(proves(Access::Jwt, &[token]) && proves(Access::Jwt, &[key, token]));
        // The name of the key equals the subject of the token.
        assert!(!proves(Access::Jwt, &[key]) && !proves(Access::Key, &[token]));
        assert!(!proves(Access::Jwt, &[("authorization", &bare)]));
        assert!(proves(Access::Key, &[key]) && !proves(Access::Key, &[password]));
        assert!(proves(Access::Basic, &[key]) && proves(Access::Basic, &[password]));
        assert!(!proves(Access::Basic, &[token]) && !proves(Access::Basic, &[]));
    }

    #[test]
    fn of_several_keys_one_must_open_what_concerns_a_function() {
        let (guard, [all, one, _]) = guard();
        let bearer = format!("Bearer {all}");
        let both = [("x-api-key", one.as_str()), ("authorization", bearer.as_str())];
        for access in [Access::Key, Access::Basic] {
            let proves = |fields: &[(&str, &str)]| {
                let mut head = head(fields);
                let name = FunctionName::new("other").expect("valid");
                guard
                    .admit(Access::KeyIfSent, None, "invocations", &mut head, None)
                    .expect("optional");
                guard.proves(&head, &RouteInfo { access, ..RouteInfo::new(&name, 0, 0) })
            };
            assert!(proves(&both) && proves(&both[1..]), "{access:?}");
            assert!(!proves(&both[..1]) && !proves(&[]), "{access:?}");
        }
    }

    #[test]
    fn a_local_function_is_called_from_this_machine_only() {
        let guard = Guard::default();
        let call = |access, from: Option<IpAddr>| {
            let mut head = head(&[("x-api-key", "mote_x")]);
            guard.admit(access, None, "hello", &mut head, from).map(|()| head)
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
            guard.admit(access, None, "hello", &mut head(fields), from)
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
            let admitted = guard.admit(Access::KeyIfSent, None, "invocations", &mut head, None);
            admitted.map(|()| head.caller().map(<[u8]>::to_vec))
        };
        assert_eq!(caller(&all), Ok(Some(b"all".to_vec())));
        assert_eq!(caller("wrong"), Ok(None));
    }

    #[test]
    fn guesses_are_slowed_down_and_right_keys_are_not() {
        let (guard, [all, ..]) = guard();
        let from = Some(IpAddr::from([192, 0, 2, 1]));
        let send = |key: &str| {
            guard.admit(Access::Key, None, "hello", &mut head(&[("x-api-key", key)]), from)
        };
        let wrong: Vec<_> = (0..30).map(|_| send("wrong")).collect();
        assert_eq!(wrong[..10], vec![Err(Fault::NoKey); 10]);
        assert!(wrong.contains(&Err(Fault::TooManyKeys)));
        assert_eq!(send(&all), Ok(()));
        assert_eq!(
            guard.admit(Access::Key, None, "hello", &mut head(&[]), from),
            Err(Fault::NoKey)
        );
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
