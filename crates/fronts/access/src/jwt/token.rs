//! Decides about one token.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mote_spec::TokenRules;
use serde_json::{Map, Value};

use crate::jwt::json;
use crate::jwt::jwks::{Algorithm, KeySet};

/// Longest token that is examined, in bytes.
pub const TOKEN_BYTES_MAX: usize = 8 << 10;
/// How much the clocks of the node and of the issuer may differ, in seconds.
pub const SKEW_S: u64 = 60;
/// Longest name of a caller, in bytes.
const SUBJECT_BYTES_MAX: usize = 128;

/// A token whose signature and times are valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// The claim `sub`, which names the caller: 1 to 128 visible ASCII characters.
    pub subject: Arc<str>,
    /// The time until which the token is accepted, in seconds since 1970. This time includes the
    /// permitted difference between the clocks.
    pub until_s: u64,
    /// Whether the token has the claims that the function requires.
    pub has_claims: bool,
}

/// Why a token is refused. The sender learns only that the token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The token names a key that is not in the set. A newer set may contain it.
    UnknownKey,
    /// Any other reason. The text is only for tests.
    Wrong(&'static str),
}

/// Verifies a token in compact form at the time `now_s`, in seconds since 1970.
pub fn verify(
    token: &[u8],
    keys: &KeySet,
    rules: &TokenRules,
    now_s: u64,
) -> Result<Verified, Refused> {
    use Refused::Wrong;
    if token.len() > TOKEN_BYTES_MAX {
        return Err(Wrong("too long"));
    }
    let signed_bytes = token.iter().rposition(|byte| *byte == b'.').ok_or(Wrong("one part"))?;
    let signed = &token[..signed_bytes];
    let signature = &token[signed_bytes + 1..];
    let mut parts = signed.split(|byte| *byte == b'.');
    let (Some(head), Some(claims), None) = (parts.next(), parts.next(), parts.next()) else {
        return Err(Wrong("not three parts"));
    };
    let decoded = |part| URL_SAFE_NO_PAD.decode(part).map_err(|_| Wrong("not base64url"));
    let head = json::parse(&decoded(head)?).ok_or(Wrong("head is no object"))?;
    let signature = decoded(signature)?;
    let (algorithm, name) = algorithm(&head)?;
    let key = {
        let id = match head.get("kid") {
            Some(id) => Some(id.as_str().ok_or(Wrong("kid is no text"))?),
            None => None,
        };
        let mut named = keys.keys().iter().filter(|key| id.is_none() || key.id.as_deref() == id);
        if id.is_some() && named.clone().next().is_none() {
            return Err(Refused::UnknownKey);
        }
        // Exactly one key may fit, so that a token costs at most one verification.
        let mut fitting = named.by_ref().filter(|key| key.fits(algorithm, name));
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => key,
            (None, _) => return Err(Wrong("no key fits")),
            (Some(_), Some(_)) => return Err(Wrong("several keys fit")),
        }
    };
    if !key.verifies(algorithm, signed, &signature) {
        return Err(Wrong("signature"));
    }
    let claims = json::parse(&decoded(claims)?).ok_or(Wrong("claims are no object"))?;
    accept(&claims, rules, now_s)
}

/// Returns the algorithm that a token names, together with the name. Refuses parameters that change
/// what is signed. Ignores parameters that name keys: `jku`, `jwk`, `x5u` and `x5c` are never read.
fn algorithm(head: &Map<String, Value>) -> Result<(Algorithm, &str), Refused> {
    use Refused::Wrong;
    if head.contains_key("crit") || head.contains_key("b64") || head.contains_key("zip") {
        return Err(Wrong("an extension"));
    }
    if head.contains_key("cty") {
        return Err(Wrong("nested"));
    }
    // With the same keys, an issuer also signs other things, such as logout tokens (RFC 8725,
    // 3.11).
    let is_known = head.get("typ").is_none_or(|kind| {
        let kind = kind.as_str().unwrap_or_default().to_ascii_lowercase();
        matches!(kind.strip_prefix("application/").unwrap_or(&kind), "jwt" | "at+jwt")
    });
    if !is_known {
        return Err(Wrong("another type"));
    }
    let name = head.get("alg").and_then(Value::as_str).ok_or(Wrong("no algorithm"))?;
    Ok((Algorithm::from_name(name).ok_or(Wrong("algorithm"))?, name))
}

/// Checks the claims of a token whose signature is valid.
fn accept(
    claims: &Map<String, Value>,
    rules: &TokenRules,
    now_s: u64,
) -> Result<Verified, Refused> {
    use Refused::Wrong;
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    if text("iss") != Some(&rules.issuer) {
        return Err(Wrong("issuer"));
    }
    let audience = Value::from(rules.audience.as_str());
    if !claims.get("aud").is_some_and(|found| is_or_has(found, &audience)) {
        return Err(Wrong("audience"));
    }
    let time = |name: &'static str| match claims.get(name) {
        Some(value) => value.as_f64().map(Some).ok_or(Wrong(name)),
        None => Ok(None),
    };
    let now = now_s as f64;
    let skew = SKEW_S as f64;
    let expires = time("exp")?.ok_or(Wrong("no exp"))?;
    if expires + skew <= now {
        return Err(Wrong("expired"));
    }
    for name in ["nbf", "iat"] {
        if time(name)?.is_some_and(|from| from > now + skew) {
            return Err(Wrong("not yet"));
        }
    }
    let subject = text("sub").ok_or(Wrong("no sub"))?;
    if !(1..=SUBJECT_BYTES_MAX).contains(&subject.len())
        || !subject.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(Wrong("sub"));
    }
    let has = |(name, wanted)| claims.get::<String>(name).is_some_and(|at| is_or_has(at, wanted));
    Ok(Verified {
        subject: subject.into(),
        until_s: (expires + skew) as u64,
        has_claims: rules.claims.iter().all(has),
    })
}

/// Whether a claim equals the value `wanted`, or is a list that contains it.
fn is_or_has(claim: &Value, wanted: &Value) -> bool {
    claim == wanted || claim.as_array().is_some_and(|list| list.contains(wanted))
}

#[cfg(test)]
mod tests;
