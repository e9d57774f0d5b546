//! Fetches the keys of an issuer.

use std::time::Duration;

use crate::jwt::{DISCOVERY_PATH, KeySet, SET_BYTES_MAX};
use bytes::Bytes;
use mote_core::fault::error_chain;
use mote_outgoing::{HeaderMap, HeaderValue, Method, Outgoing};
use mote_spec::TokenKeys;

use crate::issuers::issuer::Issuer;

/// Fetches the keys of an issuer. Also returns how long they may be used before they are fetched
/// again, if the answer says so.
pub(crate) async fn keys(
    issuer: &Issuer,
    outgoing: &Outgoing,
) -> Result<(KeySet, Option<Duration>), String> {
    let url = match &issuer.place {
        TokenKeys::Url(url) => url.clone(),
        TokenKeys::Discovered => discover(&issuer.name, outgoing).await?,
        TokenKeys::Set(_) => return Err("these keys are not fetched".to_owned()),
    };
    let (fields, body) = get(&url, outgoing).await?;
    let keys = KeySet::parse(&body).map_err(|problem| format!("{url}: {problem}"))?;
    Ok((keys, fresh(&fields)))
}

/// Finds the address of the keys in the issuer's configuration (OpenID Connect Discovery 1.0, 4).
async fn discover(issuer: &str, outgoing: &Outgoing) -> Result<String, String> {
    let url = format!("{}{DISCOVERY_PATH}", issuer.trim_end_matches('/'));
    let (_, body) = get(&url, outgoing).await?;
    jwks_uri(issuer, &body).map_err(|problem| format!("{url}: {problem}"))
}

/// Reads the address of the keys from the configuration of an issuer.
fn jwks_uri(issuer: &str, body: &[u8]) -> Result<String, &'static str> {
    let configuration =
        crate::jwt::parse_json(body).ok_or("not a JSON object with unique names")?;
    let text = |name: &str| configuration.get(name).and_then(serde_json::Value::as_str);
    // Without this check, one issuer's configuration could be used for another issuer.
    if text("issuer") != Some(issuer) {
        return Err("it is the configuration of another issuer");
    }
    let uri = text("jwks_uri").ok_or("no jwks_uri")?;
    let is_weaker = issuer.starts_with("https://") && !uri.starts_with("https://");
    if is_weaker || !crate::jwt::address(uri) {
        return Err("jwks_uri is not an https:// address");
    }
    Ok(uri.to_owned())
}

async fn get(url: &str, outgoing: &Outgoing) -> Result<(HeaderMap, Bytes), String> {
    let failed = |error: mote_outgoing::OutgoingError| format!("{url}: {}", error_chain(&error));
    let uri = mote_outgoing::check(url).map_err(failed)?;
    let accept = HeaderValue::from_static("application/json");
    let fields = HeaderMap::from_iter([(mote_outgoing::HeaderName::from_static("accept"), accept)]);
    let sent =
        mote_outgoing::send(Method::GET, &uri, fields, Bytes::new(), outgoing, SET_BYTES_MAX);
    match sent.await.map_err(failed)? {
        (200, fields, body) => Ok((fields, body)),
        (status, ..) => Err(format!("{url}: the answer has the status {status}")),
    }
}

/// How long an answer may be used, if the answer says so (RFC 9111, 5.2.2.1).
fn fresh(fields: &HeaderMap) -> Option<Duration> {
    let directives = fields.get_all("cache-control").iter().filter_map(|field| field.to_str().ok());
    let mut ages = directives.flat_map(|field| field.split(',')).filter_map(|directive| {
        let (name, value) = directive.trim().split_once('=')?;
        let is_age = name.eq_ignore_ascii_case("max-age");
        is_age.then(|| value.trim_matches('"').parse().map(Duration::from_secs).ok())?
    });
    ages.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_that_of_the_issuer() {
        let read = |issuer: &str, body: &str| jwks_uri(issuer, body.as_bytes());
        let uri = |issuer: &str, uri: &str| {
            read(issuer, &format!(r#"{{"issuer":"{issuer}","jwks_uri":"{uri}"}}"#)).is_ok()
        };
        assert!(uri("https://a", "https://keys.example/x"));
        assert!(uri("http://127.0.0.1:1", "http://127.0.0.1:1/x"));
        assert!(!uri("https://a", "http://127.0.0.1/x"), "weaker than the issuer");
        assert!(!uri("http://127.0.0.1:1", "http://a/x"));
        for body in [
            "",
            "[]",
            "{}",
            r#"{"issuer":"https://a"}"#,
            r#"{"jwks_uri":"https://a"}"#,
            r#"{"issuer":"https://a/","jwks_uri":"https://a"}"#,
            r#"{"issuer":"https://b","issuer":"https://a","jwks_uri":"https://a"}"#,
        ] {
            assert!(read("https://a", body).is_err(), "{body}");
        }
    }

    #[test]
    fn ages_of_answers() {
        let age = |value: &'static str| {
            let name = mote_outgoing::HeaderName::from_static("cache-control");
            let fields = HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
            fresh(&fields).map(|age| age.as_secs())
        };
        assert_eq!(age("public, max-age=300, must-revalidate"), Some(300));
        assert_eq!(age("Max-Age=\"5\""), Some(5));
        for other in ["no-store", "s-maxage=3", "max-age", "max-age=-1", "max-age=x"] {
            assert_eq!(age(other), None, "{other}");
        }
        assert_eq!(fresh(&HeaderMap::new()), None);
    }
}
