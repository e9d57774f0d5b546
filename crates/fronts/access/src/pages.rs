//! Recognises requests that a browser sends for a web page of another site.
//!
//! A browser on the node's machine can reach the node's loopback addresses. Any page that the
//! browser shows can make the browser send requests there: directly, or under a host name that
//! belongs to the page's owner and points to loopback (DNS rebinding). Such requests come from this
//! machine, but the machine's user did not ask for them.

use std::net::IpAddr;
use std::str;

use mote_core::invocation::headers;
use mote_spec::{OPENFAAS_GATEWAYS, OWN_FRONT};

/// The field in which a browser says how the page that sends a request is related to the target.
const SITE_FIELD: &[u8] = b"sec-fetch-site";

/// Whether these fields may come from a page that this machine did not serve. Browsers send
/// `Origin` with all requests except simple ones that only read. They send `Sec-Fetch-Site` with
/// all requests to loopback addresses.
pub(crate) fn is_of_another_site(fields: &[u8]) -> bool {
    headers(fields).any(|(name, value)| match name {
        b"host" => !is_own_host(value),
        b"origin" => !is_own_origin(value),
        SITE_FIELD => value.eq_ignore_ascii_case(b"cross-site"),
        _ => false,
    })
}

/// Whether a browser sends the request for a page of another origin. Browsers add a stored password
/// or a certificate to such a request without asking. Not every browser sends `Sec-Fetch-Site` with
/// the handshake of a WebSocket, but all of them send `Origin`.
pub(crate) fn is_of_another_origin(fields: &[u8]) -> bool {
    let all = |wanted| headers(fields).filter(move |(name, _)| *name == wanted);
    let mut sites = all(SITE_FIELD).peekable();
    if sites.peek().is_some() {
        return sites.any(|(_, site)| !matches!(site.trim_ascii(), b"none" | b"same-origin"));
    }
    let host = all(b"host").next().map_or(&b""[..], |(_, host)| host);
    all(b"origin").any(|(_, origin)| {
        let of_origin = origin.strip_prefix(b"https://").or(origin.strip_prefix(b"http://"));
        !of_origin.is_some_and(|of_origin| of_origin.eq_ignore_ascii_case(host))
    })
}

/// Whether the host is one that no owner of a page can have chosen: an address, or a name that
/// always means this machine.
fn is_own_host(host: &[u8]) -> bool {
    let name = without_port(host);
    name.is_empty()
        || address(name).is_some()
        || is_name_of_loopback(name)
        || is_name_for_functions(name)
}

/// Whether a page of this origin (RFC 6454) came from this machine. The origin `null` does not
/// prove this.
fn is_own_origin(origin: &[u8]) -> bool {
    let host =
        [&b"http://"[..], b"https://"].iter().find_map(|scheme| origin.strip_prefix(*scheme));
    host.map(without_port).is_some_and(|name| {
        is_name_of_loopback(name) || address(name).is_some_and(|ip| ip.to_canonical().is_loopback())
    })
}

/// Whether functions of this node reach the node under this name.
fn is_name_for_functions(name: &[u8]) -> bool {
    let names = std::iter::once(OWN_FRONT.0).chain(OPENFAAS_GATEWAYS);
    names.into_iter().any(|own| own.as_bytes().eq_ignore_ascii_case(name))
}

/// Whether this is `localhost` or a name below it. Browsers do not look these names up (RFC 6761,
/// 6.3).
fn is_name_of_loopback(name: &[u8]) -> bool {
    const LOCALHOST: &[u8] = b"localhost";
    let Some(at) = name.len().checked_sub(LOCALHOST.len()) else { return false };
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    name[at..].eq_ignore_ascii_case(LOCALHOST)
        && (at == 0 || name[at - 1] == b'.')
        && name.iter().all(is_plain)
}

/// Returns a host without its port and without the final dot of a complete name.
fn without_port(host: &[u8]) -> &[u8] {
    let digits = host.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let name = host[..host.len() - digits].strip_suffix(b":").unwrap_or(host);
    name.strip_suffix(b".").unwrap_or(name)
}

/// If a host without a port is an address, returns the address. The hosts of most requests are
/// addresses, so each one is parsed either as IPv4 or as IPv6, but not as both.
fn address(name: &[u8]) -> Option<IpAddr> {
    match name.first()? {
        b'0'..=b'9' => str::from_utf8(name).ok()?.parse().ok().map(IpAddr::V4),
        b'[' => {
            let text = str::from_utf8(name.strip_prefix(b"[")?.strip_suffix(b"]")?).ok()?;
            text.parse().ok().map(IpAddr::V6)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(fields: &[(&str, &str)], expected: bool) {
        let block: String =
            fields.iter().map(|(name, value)| format!("{name}\n{value}\n")).collect();
        assert_eq!(is_of_another_site(block.as_bytes()), expected, "{fields:?}");
    }

    #[test]
    fn hosts() {
        for own in [
            "127.0.0.1",
            "127.0.0.1:6683",
            "[::1]",
            "[::1]:6683",
            "192.0.2.7:80",
            "localhost",
            "LocalHost:6683",
            "localhost.:6683",
            "lamp.localhost",
            "1.localhost:6683",
            "mote.internal",
            "gateway:8080",
            "gateway.openfaas",
            "",
        ] {
            check(&[("host", own)], false);
        }
        for other in [
            "evil.example",
            "evil.example:6683",
            "evil.example.:6683",
            "evillocalhost",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil.example:localhost",
            "pi",
            "pi.local",
            "a.mote.internal",
            "[::1].evil.example",
            "127.0.0.1:6683:1",
            "::1",
            "[127.0.0.1]",
            "[::1",
            "1.example",
        ] {
            check(&[("host", other)], true);
        }
    }

    #[test]
    fn origins() {
        for own in [
            "http://127.0.0.1:3000",
            "https://localhost",
            "http://lamp.localhost:3000",
            "http://[::1]:3000",
            "http://127.0.0.1",
        ] {
            check(&[("host", "127.0.0.1:6683"), ("origin", own)], false);
        }
        for other in [
            "null",
            "",
            "https://evil.example",
            "http://127.0.0.1.evil.example",
            "http://192.0.2.7",
            "http://pi",
            "file://",
            "chrome-extension://abcdefghijklmnop",
            "http://localhost@evil.example",
            "http://mote.internal",
            "http://evil.example#.localhost",
            "http://evil.example/.localhost",
            "http://evil.example:.localhost",
        ] {
            check(&[("host", "127.0.0.1:6683"), ("origin", other)], true);
        }
        check(&[("origin", "http://localhost"), ("origin", "http://evil.example")], true);
    }

    #[test]
    fn what_browsers_say_about_the_page() {
        for (site, expected) in
            [("none", false), ("same-origin", false), ("same-site", false), ("cross-site", true)]
        {
            check(&[("host", "localhost:6683"), ("sec-fetch-site", site)], expected);
        }
        check(&[], false);
        check(&[("referer", "http://evil.example/")], false);
    }

    #[test]
    fn origins_of_websockets() {
        for (fields, expected) in [
            (&[("host", "a.example:6684")][..], false),
            (&[("host", "a.example:6684"), ("origin", "https://A.example:6684")], false),
            (&[("host", "a.example"), ("origin", "http://a.example")], false),
            (&[("host", "a.example:6684"), ("origin", "https://a.example")], true),
            (&[("host", "a.example"), ("origin", "https://evil.example")], true),
            (&[("host", "a.example"), ("origin", "null")], true),
            (&[("host", "a.example"), ("origin", "")], true),
            (&[("origin", "https://evil.example"), ("sec-fetch-site", "same-origin")], false),
            (&[("host", "a.example"), ("sec-fetch-site", "cross-site")], true),
        ] {
            let block: String =
                fields.iter().map(|(name, value)| format!("{name}\n{value}\n")).collect();
            assert_eq!(is_of_another_origin(block.as_bytes()), expected, "{fields:?}");
        }
    }
}
