//! Checks whether the token rules of a function can be applied.

use mote_spec::{TokenKeys, TokenRules};

use crate::jwt::jwks::KeySet;

/// The path below an issuer's address at which the issuer publishes its configuration.
pub const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";
/// Longest issuer, audience, address, or text of a claim, in bytes.
const TEXT_BYTES_MAX: usize = 1_024;
/// The maximum number of claims that a function may require.
const CLAIMS_MAX: usize = 16;
/// Claims that are checked by rules of their own, so `claims` must not name them.
const OWN: [&str; 6] = ["iss", "aud", "exp", "nbf", "iat", "sub"];

/// Finds the first mistake in the rules: the key in `[access]`, and what is wrong with its value.
pub fn check(rules: &TokenRules) -> Result<(), (&'static str, String)> {
    let is_text = |text: &str| {
        (1..=TEXT_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
    };
    for (key, text) in [("issuer", &rules.issuer), ("audience", &rules.audience)] {
        if !is_text(text) {
            return Err((key, format!("a text of 1 to {TEXT_BYTES_MAX} bytes")));
        }
    }
    match &rules.keys {
        TokenKeys::Discovered => {
            let reason = "without keys, an https:// address, below which the issuer says where its \
                          keys are";
            if !address(&rules.issuer) || rules.issuer.contains(['?', '#']) {
                return Err(("issuer", reason.to_owned()));
            }
        }
        TokenKeys::Url(url) => {
            if !address(url) {
                let wanted = "an https:// address, http:// with the address of this machine, or a \
                              file of the project";
                return Err(("keys", wanted.to_owned()));
            }
        }
        TokenKeys::Set(text) => {
            KeySet::parse(text.as_bytes()).map_err(|problem| ("keys", problem.to_owned()))?;
        }
    }
    if rules.claims.len() > CLAIMS_MAX {
        return Err(("claims", format!("at most {CLAIMS_MAX} claims")));
    }
    for (name, value) in &rules.claims {
        if !is_text(name) || OWN.contains(&name.as_str()) {
            return Err(("claims", format!("{}: has a rule of its own", name.escape_debug())));
        }
        let is_plain = match value {
            serde_json::Value::String(text) => text.len() <= TEXT_BYTES_MAX,
            other => other.is_boolean() || other.is_i64() || other.is_u64(),
        };
        if !is_plain {
            let text = format!("{}: a text, a whole number, true or false", name.escape_debug());
            return Err(("claims", text));
        }
    }
    Ok(())
}

/// Whether keys may be fetched from this address. It must use TLS, or be on this machine.
pub fn address(url: &str) -> bool {
    let is_short = url.len() <= TEXT_BYTES_MAX && url.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_short || url.contains('@') {
        return false;
    }
    if let Some(rest) = url.strip_prefix("https://") {
        return !rest.is_empty() && !rest.starts_with(['/', ':', '?', '#']);
    }
    let Some(rest) = url.strip_prefix("http://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (authority, "80"),
    };
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    let is_own = host == "localhost" || ip.is_ok_and(|ip| ip.to_canonical().is_loopback());
    is_own && port.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(issuer: &str, keys: TokenKeys) -> TokenRules {
        let issuer = issuer.to_owned();
        let audience = "a".to_owned();
        TokenRules { issuer, audience, keys, claims: Default::default() }
    }

    #[test]
    fn addresses_of_keys() {
        for url in [
            "https://a",
            "https://a.example:8443/b?c",
            "http://127.0.0.1:9/x",
            "http://[::1]:9",
            "http://localhost",
            "http://[::1]",
            "http://127.9.9.9/",
        ] {
            assert!(address(url), "{url}");
        }
        for url in [
            "",
            "a",
            "https://",
            "https:///x",
            "http://a/",
            "http://10.0.0.1/",
            "ftp://a",
            "http://localhost.example/",
            "http://127.0.0.1@example/",
            "http://127.0.0.1:x/",
            "https://a b",
            "http://localhost:9@example/",
            "file:///etc/passwd",
            "HTTPS://a",
        ] {
            assert!(!address(url), "{url}");
        }
    }

    #[test]
    fn mistakes_name_their_key() {
        let key = |rules: &TokenRules| check(rules).err().map(|(key, _)| key);
        let discovered = |issuer: &str| rules(issuer, TokenKeys::Discovered);
        assert_eq!(key(&discovered("https://a")), None);
        assert_eq!(key(&discovered("http://127.0.0.1:8080/realms/x")), None);
        for issuer in ["", "a", "http://a", "https://a?b", "https://a#b", "https://a\n"] {
            assert_eq!(key(&discovered(issuer)), Some("issuer"), "{issuer}");
        }
        assert_eq!(key(&rules("any", TokenKeys::Url("https://a/k".into()))), None);
        assert_eq!(key(&rules("any", TokenKeys::Url("http://a/k".into()))), Some("keys"));
        assert_eq!(key(&rules("any", TokenKeys::Set("{}".into()))), Some("keys"));
        let with = |name: &str, value: serde_json::Value| {
            let mut rules = discovered("https://a");
            rules.claims.insert(name.into(), value);
            key(&rules)
        };
        for value in [serde_json::json!("x"), 1.into(), true.into(), (-5).into()] {
            assert_eq!(with("role", value), None);
        }
        for value in [serde_json::json!([1]), 0.5.into(), serde_json::json!({}), ().into()] {
            assert_eq!(with("role", value), Some("claims"));
        }
        assert_eq!(with("sub", "x".into()), Some("claims"));
        let mut silent = discovered("https://a");
        silent.audience.clear();
        assert_eq!(key(&silent), Some("audience"));
    }
}
