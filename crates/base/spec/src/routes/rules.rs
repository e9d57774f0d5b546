//! Checks which routes are valid, and splits their paths into parts.

use super::rule::RouteRule;

const HOST_BYTES_MAX: usize = 253;
const PATH_BYTES_MAX: usize = 1_024;
const SEGMENTS_MAX: usize = 32;
const PARAMETER_BYTES_MAX: usize = 32;
const TARGET_BYTES_MAX: usize = 2_048;
/// Statuses of a redirect (RFC 9110, 15.4).
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

/// One part of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment<'a> {
    /// Exactly this text.
    Literal(&'a str),
    /// Any one segment. The function receives it under this name.
    One(&'a str),
    /// All segments that follow. The function receives them under this name. Always the last part.
    Rest(&'a str),
}

/// The parameter name for the rest of a path that is written as `*`.
const REST: &str = "rest";

/// The parts of a path that [`mistake`] accepts. A `/` at the end makes no difference.
pub fn segments(path: &str) -> impl Iterator<Item = Segment<'_>> {
    let path = path.strip_prefix('/').unwrap_or_default();
    let path = path.strip_suffix('/').unwrap_or(path);
    let parts = (!path.is_empty()).then(|| path.split('/'));
    parts.into_iter().flatten().map(|part| {
        let name = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
        match name.map(|name| (name, name.strip_suffix("..."))) {
            None if part == "*" => Segment::Rest(REST),
            None => Segment::Literal(part),
            Some((_, Some(name))) => Segment::Rest(name),
            Some((name, None)) => Segment::One(name),
        }
    })
}

/// Checks a route. If it is not valid, returns the wrong key, and the rule for it.
pub fn mistake(rule: &RouteRule) -> Option<(&'static str, &'static str)> {
    if !rule.host.as_deref().is_none_or(is_host) {
        return Some((
            "route.host",
            "the name of a host in lower case, without a port, such as shop.example.org or *.example.org; localhost, internal, names below them, and IP addresses cannot be the host of a route",
        ));
    }
    if rule.path.starts_with("/_") {
        return Some(("route.path", "what begins with /_ belongs to the node"));
    }
    if !is_path(&rule.path) {
        return Some((
            "route.path",
            "a path such as /orders/{id} or /files/{path...}: it begins with /; parameter names differ, have at most 32 lower-case letters, digits or _, and do not begin with a digit; {name...} or * is the last segment; other segments contain no %, space, *, { or }; at most 32 segments and 1,024 bytes",
        ));
    }
    let is_method = |text: &String| {
        (1..=24).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_uppercase())
    };
    if rule.methods.len() > 16 || !rule.methods.iter().all(is_method) {
        return Some(("route.methods", "at most 16 upper-case words such as GET"));
    }
    let redirect = rule.redirect.as_ref()?;
    if !REDIRECTS.contains(&redirect.status) {
        return Some(("route.status", "301, 302, 303, 307 or 308"));
    }
    let names: Vec<&str> = segments(&rule.path).filter_map(Segment::name).collect();
    let is_valid = is_target(&redirect.to, &names);
    (!is_valid).then_some((
            "route.redirect",
            "a path, or a URL with http or https; it may contain the parameters of this route, but only before any ? or #, and not in the host",
        ))
}

impl<'a> Segment<'a> {
    /// The name of this part's parameter; `None` for fixed text.
    pub fn name(self) -> Option<&'a str> {
        match self {
            Segment::Literal(_) => None,
            Segment::One(name) | Segment::Rest(name) => Some(name),
        }
    }
}

/// Whether a text can be the host of a route. `localhost` and `mote.internal` cannot: a machine
/// calls itself `localhost`, and functions call each other at `mote.internal`. A function with such
/// a host would receive requests that are meant for other functions.
fn is_host(text: &str) -> bool {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let is_label = |label: &str| {
        let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(is_plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    text.len() <= HOST_BYTES_MAX
        && name.split('.').all(is_label)
        && !matches!(last, "localhost" | "internal")
        && last.parse::<u32>().is_err()
}

/// Whether a byte may occur in a path without encoding (RFC 3986, 3.3) and has no meaning in
/// patterns.
fn is_literal(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()+,=:@".contains(&byte)
}

fn is_parameter(name: &str) -> bool {
    (1..=PARAMETER_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        && !name.as_bytes()[0].is_ascii_digit()
}

fn is_path(text: &str) -> bool {
    if !text.starts_with('/') || text.ends_with("//") || text.len() > PATH_BYTES_MAX {
        return false;
    }
    let all: Vec<Segment<'_>> = segments(text).collect();
    let mut names: Vec<&str> = all.iter().filter_map(|part| part.name()).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    let is_valid = |(at, part): (usize, &Segment<'_>)| match part {
        Segment::Literal(text) => {
            !text.is_empty() && text.bytes().all(is_literal) && !matches!(*text, "." | "..")
        }
        Segment::One(name) => is_parameter(name),
        Segment::Rest(name) => is_parameter(name) && at + 1 == all.len(),
    };
    names.len() == count && all.len() <= SEGMENTS_MAX && all.iter().enumerate().all(is_valid)
}

/// Whether a text can be the target of a redirect whose path has parameters with these names.
fn is_target(text: &str, names: &[&str]) -> bool {
    let path = match text.strip_prefix("http://").or(text.strip_prefix("https://")) {
        Some(rest) => {
            let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            let (authority, path) = rest.split_at(at);
            let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b);
            if authority.is_empty() || !authority.bytes().all(is_plain) {
                return false;
            }
            path
        }
        // After two slashes, a host would begin.
        None if text.starts_with('/') && !text.starts_with("//") => text,
        None => return false,
    };
    let (path, query) = path.split_at(path.find(['?', '#']).unwrap_or(path.len()));
    let mut rest = path;
    while let Some(at) = rest.find('{') {
        let Some(end) = rest[at..].find('}') else { return false };
        if !names.contains(&&rest[at + 1..at + end]) {
            return false;
        }
        rest = &rest[at + end + 1..];
    }
    let is_plain = |b: u8| is_literal(b) || b"/%;*".contains(&b);
    text.len() <= TARGET_BYTES_MAX
        && !rest.contains('}')
        && path.bytes().all(|b| is_plain(b) || b"{}".contains(&b))
        && query.bytes().all(|b| is_plain(b) || b"?#".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::super::rule::Redirect;
    use super::*;

    fn rule(host: Option<&str>, path: &str) -> RouteRule {
        RouteRule { host: host.map(str::to_owned), path: path.to_owned(), ..Default::default() }
    }

    #[test]
    fn hosts_are_names_and_wildcards() {
        for good in ["shop.example.org", "*.example.org", "pi", "xn--ol-eka.de"] {
            assert_eq!(mistake(&rule(Some(good), "/")), None, "{good}");
        }
        let long = format!("{}.org", "a".repeat(64));
        for bad in [
            "",
            "*",
            "localhost",
            "*.localhost",
            "a.localhost",
            "mote.internal",
            "*.internal",
            "127.0.0.1",
            "[::1]",
            "a b",
            "Shop.org",
            "shop:80",
            "a..b",
            "*.*.org",
            "a.*.org",
            "-a.org",
            ".org",
            "org.",
            &long,
        ] {
            assert_eq!(mistake(&rule(Some(bad), "/")).map(|it| it.0), Some("route.host"), "{bad}");
        }
    }

    #[test]
    fn paths_are_segments_and_parameters() {
        for good in [
            "/",
            "/a",
            "/a/",
            "/{id}",
            "/orders/{id}/lines/{line_2}",
            "/files/{path...}",
            "/a/*",
            "/*",
            "/@user/a.b,c=d",
        ] {
            assert_eq!(mistake(&rule(None, good)), None, "{good}");
        }
        let deep = "/a".repeat(33);
        for bad in [
            "",
            "a",
            "/a//b",
            "/a//",
            "//",
            "/{}",
            "/{ID}",
            "/{1a}",
            "/{a}/{a}",
            "/{a...}/b",
            "/*/b",
            "/a*",
            "/a{b}",
            "/a%20b",
            "/a b",
            "/../a",
            "/a?b",
            "/a#b",
            "/_mote",
            "/_health/x",
            "/{a b}",
            &deep,
        ] {
            assert_eq!(mistake(&rule(None, bad)).map(|it| it.0), Some("route.path"), "{bad}");
        }
    }

    #[test]
    fn methods_and_redirects_are_checked() {
        let with = |to: &str, status| RouteRule {
            redirect: Some(Redirect { to: to.to_owned(), status }),
            ..rule(None, "/old/{id}/{path...}")
        };
        for good in
            ["/new", "/new/{id}?from=old", "https://example.org", "https://example.org:8443/{path}"]
        {
            assert_eq!(mistake(&with(good, 308)), None, "{good}");
        }
        for bad in [
            "",
            "new",
            "//evil.example",
            "ftp://a",
            "https://",
            "https://{id}.example/",
            "/{other}",
            "/{id",
            "/a}b",
            "/a?k={id}",
            "/a#{id}",
            "https://user@host/",
            "/a b",
            "/a\nb",
            "javascript:alert(1)",
        ] {
            assert_eq!(mistake(&with(bad, 308)).map(|it| it.0), Some("route.redirect"), "{bad}");
        }
        assert_eq!(mistake(&with("/new", 200)).map(|it| it.0), Some("route.status"));
        let methods = RouteRule { methods: vec!["get".into()], ..rule(None, "/") };
        assert_eq!(mistake(&methods).map(|it| it.0), Some("route.methods"));
    }
}
