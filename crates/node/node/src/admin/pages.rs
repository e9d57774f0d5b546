//! Checks requests that a browser may send on behalf of a page from elsewhere.
//!
//! A browser adds the cookie of a session to each request to the node's host, whichever page sends
//! the request. So the node recognises its own pages by what other pages cannot do: read the
//! session's `csrf`, or set `Sec-Fetch-Site`. A page of another site can also point its own host
//! name at a loopback address (DNS rebinding); its requests have that name in `Host`.

use axum::http::{HeaderMap, HeaderValue, Method, header};
use mote_api::{Problem, paths};
use mote_platforms::compat::access::is_loopback_name;
use mote_spec::fields::SESSION_COOKIE;

use super::caller::Caller;

/// The name of the cookie of a session. Browsers send the cookies of a host to all its ports, so the
/// name contains the port at which the browser has reached the node. Behind a tunnel, this is not the
/// port of the listener.
pub(super) fn cookie_name(headers: &HeaderMap, is_encrypted: bool) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let port = host.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    format!("{SESSION_COOKIE}{}", port.unwrap_or(if is_encrypted { 443 } else { 80 }))
}

/// The secret in the session's cookie. A request with two such cookies counts as having none,
/// because another server on this host may have set one of them.
pub(super) fn secret(headers: &HeaderMap, is_encrypted: bool) -> Option<&str> {
    let name = cookie_name(headers, is_encrypted);
    let fields = headers.get_all(header::COOKIE).iter().filter_map(|field| field.to_str().ok());
    let mut found = fields.flat_map(|field| field.split(';')).filter_map(|cookie| {
        let (of, value) = cookie.trim().split_once('=')?;
        (of == name).then_some(value)
    });
    match (found.next(), found.next()) {
        (Some(secret), None) => Some(secret),
        _ => None,
    }
}

/// Checks that `Host` is a name of this machine if the connection comes from this machine. Over TLS,
/// a page's host name fails earlier, because the certificate does not contain it.
pub(super) fn check_host(caller: Caller, headers: &HeaderMap) -> Result<(), Problem> {
    let Caller::Remote(address, false) = caller else { return Ok(()) };
    let mut hosts = headers.get_all(header::HOST).iter().map(HeaderValue::to_str);
    match (hosts.next(), hosts.next()) {
        _ if !address.is_loopback() => Ok(()),
        (Some(Ok(host)), None) if is_loopback_name(host) => Ok(()),
        _ => Err(refused("the request names a host that is not this machine")),
    }
}

/// Checks that no page of another origin has sent a request.
pub(super) fn check_site(headers: &HeaderMap, is_read: bool) -> Result<(), Problem> {
    let mut sites = headers.get_all("sec-fetch-site").iter().map(HeaderValue::as_bytes).peekable();
    let is_same = match sites.peek() {
        Some(_) => sites.all(|site| site == b"same-origin" || (is_read && site == b"none")),
        None => names_own_origin(headers),
    };
    match is_same {
        true => Ok(()),
        false => Err(refused("the request comes from a page of another origin")),
    }
}

/// Whether the origin of the page that sent a request, if the browser names it, is the host of the
/// request. Browsers that send no `Sec-Fetch-Site` name the origin in requests that change
/// something.
fn names_own_origin(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
    let mut origins = headers.get_all(header::ORIGIN).iter().map(HeaderValue::as_bytes);
    origins.all(|origin| {
        let scheme = [&b"https://"[..], b"http://"];
        scheme.into_iter().any(|scheme| origin.strip_prefix(scheme) == host)
    })
}

/// Checks that a body is sent as JSON. A page of another origin can send other types without asking
/// the node first, even from a browser that sends no `Sec-Fetch-Site`. Such a page could log a user
/// in with somebody else's token.
pub(super) fn check_type(headers: &HeaderMap) -> Result<(), Problem> {
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    match kind.eq_ignore_ascii_case(b"application/json") {
        true => Ok(()),
        false => Err(Problem::new(415, "M1403", "the body must be sent as application/json")),
    }
}

/// Checks a request that belongs to the session with this `csrf`.
pub(super) fn check(
    caller: Caller,
    method: &Method,
    headers: &HeaderMap,
    csrf: &str,
) -> Result<(), Problem> {
    let is_read = matches!(*method, Method::GET | Method::HEAD);
    check_host(caller, headers)?;
    check_site(headers, is_read)?;
    let mut sent = headers.get_all(paths::HEADER_CSRF).iter();
    let is_same = match (sent.next(), sent.next()) {
        (Some(sent), None) => is_equal(sent.as_bytes(), csrf.as_bytes()),
        _ => false,
    };
    match is_read || is_same {
        true => Ok(()),
        false => Err(refused("the request lacks the session's value in Mote-Csrf")),
    }
}

/// Removes fields of a function's answer that would affect the origin of the dashboard.
pub(super) fn disarm(fields: &mut HeaderMap) {
    const FIELDS: [&str; 14] = [
        "access-control-allow-credentials",
        "access-control-allow-headers",
        "access-control-allow-methods",
        "access-control-allow-origin",
        "access-control-expose-headers",
        "alt-svc",
        "clear-site-data",
        "link",
        "location",
        "refresh",
        "service-worker-allowed",
        "set-cookie",
        "strict-transport-security",
        "www-authenticate",
    ];
    for name in FIELDS {
        fields.remove(name);
    }
}

/// Adds fields to an answer for a browser. If the browser shows the answer as a page, that page may
/// contain the words of functions and callers, so it must not run scripts or stay in a cache.
pub(super) fn protect(fields: &mut HeaderMap) {
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'; sandbox"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        fields.insert(name, HeaderValue::from_static(value));
    }
}

/// Compares in an amount of time that does not depend on where the texts differ.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

fn refused(text: &str) -> Problem {
    Problem::new(403, "M1410", text).with_hint("open the dashboard with mote dashboard")
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    const HERE: Caller = Caller::Remote(IpAddr::V4(Ipv4Addr::LOCALHOST), false);

    fn fields(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn the_cookie_has_the_port_that_the_browser_uses() {
        for (host, is_encrypted, name) in [
            ("127.0.0.1:6684", false, "mote-session-6684"),
            ("[::1]:8000", false, "mote-session-8000"),
            ("localhost", false, "mote-session-80"),
            ("pi.example", true, "mote-session-443"),
        ] {
            assert_eq!(cookie_name(&fields(&[("host", host)]), is_encrypted), name);
        }
        let of = |cookies| fields(&[("host", "localhost:1"), ("cookie", cookies)]);
        assert_eq!(secret(&of("a=b; mote-session-1=x"), false), Some("x"));
        assert_eq!(secret(&of("mote-session-2=x"), false), None);
        assert_eq!(secret(&of("mote-session-1=x; mote-session-1=y"), false), None);
    }

    #[test]
    fn requests_of_other_pages_are_refused() {
        let checked = |method: Method, more: &[(&'static str, &'static str)]| {
            let all = [&[("host", "localhost:1")], more].concat();
            check(HERE, &method, &fields(&all), "secret").is_ok()
        };
        let csrf = ("mote-csrf", "secret");
        assert!(checked(Method::GET, &[]));
        assert!(checked(Method::GET, &[("sec-fetch-site", "none")]));
        assert!(checked(Method::POST, &[csrf]));
        assert!(checked(Method::POST, &[csrf, ("sec-fetch-site", "same-origin")]));
        for site in ["cross-site", "same-site", "Same-Origin", ""] {
            assert!(!checked(Method::GET, &[("sec-fetch-site", site)]), "{site}");
        }
        assert!(!checked(Method::POST, &[csrf, ("sec-fetch-site", "none")]));
        assert!(checked(Method::POST, &[csrf, ("origin", "http://localhost:1")]));
        for origin in ["http://evil.example", "null", "http://localhost:2"] {
            assert!(!checked(Method::POST, &[csrf, ("origin", origin)]), "{origin}");
        }
        assert!(!checked(Method::POST, &[]));
        assert!(!checked(Method::OPTIONS, &[]));
        assert!(!checked(Method::DELETE, &[("mote-csrf", "secreT")]));
        assert!(!checked(Method::DELETE, &[csrf, csrf]));
    }

    #[test]
    fn a_host_name_of_others_is_refused_on_loopback() {
        let remote = IpAddr::from([192, 0, 2, 1]);
        let here = IpAddr::from([127, 0, 0, 1]);
        for (address, is_encrypted, host, is_permitted) in [
            (here, false, "127.0.0.1:6684", true),
            (here, false, "[::1]:6684", true),
            (here, false, "localhost", true),
            (here, false, "evil.example:6684", false),
            (here, false, "192.0.2.9:6684", false),
            (here, true, "evil.example:6684", true),
            (remote, false, "pi.example:6684", true),
        ] {
            let caller = Caller::Remote(address, is_encrypted);
            let checked = check_host(caller, &fields(&[("host", host)]));
            assert_eq!(checked.is_ok(), is_permitted, "{address} {host}");
        }
        assert!(check_host(HERE, &fields(&[])).is_err());
        assert!(check_host(HERE, &fields(&[("host", "localhost"), ("host", "x")])).is_err());
    }
}
