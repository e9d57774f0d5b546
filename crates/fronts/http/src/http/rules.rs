//! The rules of a function for HTTP requests: pure functions over the head of a request.
//!
//! CORS follows the Fetch standard: the node tells the browser what a page of another origin may
//! do, and the browser obeys. A request from an origin that is not permitted still runs, because
//! any client other than a browser could send the same request. This is not safe if browsers add
//! credentials: the page could not read the answer, but its request would have acted in the name of
//! the browser's user. In that case, the node refuses the request.

use mote_core::invocation::{Head, headers, put_header};
use mote_spec::{Cors, HttpRules};

use crate::added::Added;
use crate::refusal::Refusal;

const ANY: &str = "*";

/// The result of checking a request against the rules.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Fields that the front adds to the answers.
    pub(crate) added: Added,
    /// The refusal if the request breaks a rule. It applies only if the sender may call the
    /// function at all.
    pub(crate) broken: Option<Refusal>,
    /// Whether the request is a browser's question about another request that it wants to send.
    pub(crate) is_preflight: bool,
}

/// Checks a request in the form in which it was sent, because admission later removes the caller's
/// key from the head.
#[cold]
pub(crate) fn check(rules: &HttpRules, head: &Head, wants_websocket: bool) -> Checked {
    let field = |wanted: &[u8]| headers(head.headers()).find(|(name, _)| *name == wanted);
    let value = |wanted: &[u8]| field(wanted).map(|(_, value)| value);
    let mut origins = headers(head.headers()).filter(|(name, _)| *name == b"origin");
    let origin = match (origins.next(), origins.next()) {
        // A browser sends exactly one origin. Several origins count as `null`.
        (Some(_), Some(_)) => Some(&b"null"[..]),
        (one, _) => one.map(|(_, value)| value),
    };
    let is_preflight = rules.cors.is_some()
        && head.method() == b"OPTIONS"
        && origin.is_some()
        && value(b"access-control-request-method").is_some();
    let missing = || rules.headers.iter().find(|name| field(name.as_bytes()).is_none());
    let mut broken = None;
    if let (Some(cors), Some(origin)) = (&rules.cors, origin) {
        let changes = wants_websocket || !matches!(head.method(), b"GET" | b"HEAD" | b"OPTIONS");
        let is_foreign = !permits(cors, origin) && !is_own(origin, value(b"host"));
        if cors.credentials && changes && is_foreign {
            broken = Some(Refusal::new(403, "M1035", "this origin may not change anything here"));
        }
    }
    if broken.is_none()
        && let Some(name) = missing()
    {
        broken = Some(Refusal::new(400, "M1034", format!("the field {name} is required")));
    }
    let added = rules.cors.as_ref().map(|cors| fields(cors, origin, is_preflight));
    let mut added = added.map_or_else(Added::default, Added::new);
    let has_fallback = rules.files.as_ref().is_some_and(|files| files.fallback.is_some());
    if has_fallback && matches!(head.method(), b"GET" | b"HEAD") {
        // A browser that opens a page receives a different answer from a script.
        let mut block = Vec::new();
        put_header(&mut block, b"vary", b"accept");
        added = added.and(&Added::new(block.into()));
    }
    Checked { added, broken, is_preflight }
}

/// Whether pages of this origin may call the function.
fn permits(cors: &Cors, origin: &[u8]) -> bool {
    cors.origins.iter().any(|permitted| permitted == ANY || permitted.as_bytes() == origin)
}

/// Whether the page comes from this node itself. Browsers send `Origin` for such pages, too.
fn is_own(origin: &[u8], host: Option<&[u8]>) -> bool {
    let at = origin.windows(3).position(|three| three == b"://");
    let authority = at.map(|at| &origin[at + 3..]);
    authority.zip(host).is_some_and(|(authority, host)| authority.eq_ignore_ascii_case(host))
}

/// The CORS fields, and `Vary` if the answer depends on the origin. The spec has checked every
/// permitted origin, so an origin can be written as a field value.
fn fields(cors: &Cors, origin: Option<&[u8]>, is_preflight: bool) -> Box<[u8]> {
    let mut block = Vec::with_capacity(128);
    let is_any = cors.origins.iter().any(|origin| origin == ANY);
    let allowed = match origin {
        _ if is_any => Some(ANY.as_bytes()),
        origin => origin.filter(|origin| permits(cors, origin)),
    };
    if let Some(allowed) = allowed {
        put_header(&mut block, b"access-control-allow-origin", allowed);
        if cors.credentials {
            put_header(&mut block, b"access-control-allow-credentials", b"true");
        }
        let mut list = |name: &[u8], entries: &[String]| {
            if !entries.is_empty() {
                put_header(&mut block, name, entries.join(", ").as_bytes());
            }
        };
        if is_preflight {
            list(b"access-control-allow-methods", &cors.methods);
            list(b"access-control-allow-headers", &cors.headers);
            if let Some(age) = cors.max_age_s {
                list(b"access-control-max-age", &[age.to_string()]);
            }
        } else {
            list(b"access-control-expose-headers", &cors.expose);
        }
    }
    if !is_any {
        put_header(&mut block, b"vary", b"Origin");
    }
    block.into()
}

/// Whether a function with these methods accepts `method`. A client that may use GET may also use
/// HEAD (RFC 9110, 9.3.2).
pub(crate) fn is_permitted(methods: &[String], method: &[u8]) -> bool {
    let method = if method == b"HEAD" && !has(methods, "HEAD") { b"GET" } else { method };
    methods.is_empty() || methods.iter().any(|permitted| permitted.as_bytes() == method)
}

/// The refusal of a method. It names all methods that are permitted.
#[cold]
pub(crate) fn other_method(methods: &[String]) -> Refusal {
    let mut allow = methods.join(", ");
    if has(methods, "GET") && !has(methods, "HEAD") {
        allow.push_str(", HEAD");
    }
    let mut refusal = Refusal::new(405, "M1030", format!("{allow} only"));
    refusal.allow = Some(allow);
    refusal
}

fn has(methods: &[String], method: &str) -> bool {
    methods.iter().any(|permitted| permitted == method)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const APP: &str = "https://app.example";

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|word| (*word).to_owned()).collect()
    }

    fn cors(origins: &[&str]) -> Cors {
        Cors {
            origins: words(origins),
            methods: words(&["GET", "PUT"]),
            headers: words(&["content-type", "x-device"]),
            expose: words(&["x-count"]),
            credentials: false,
            max_age_s: Some(600),
        }
    }

    fn request(method: &str, fields: &[(&str, &str)]) -> Head {
        let mut head = Head::builder(method.as_bytes(), b"/", b"");
        head.header(b"host", b"node.local:6683");
        for (name, value) in fields {
            head.header(name.as_bytes(), value.as_bytes());
        }
        head.finish()
    }

    fn checked(rules: &HttpRules, method: &str, fields: &[(&str, &str)]) -> Checked {
        check(rules, &request(method, fields), false)
    }

    fn text(added: &Added) -> String {
        added
            .fields()
            .map(|(name, value)| {
                format!("{}: {}\n", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
            })
            .collect()
    }

    #[test]
    fn required_fields_are_named() {
        let rules = HttpRules {
            headers: words(&["x-device", "x-site"]),
            cors: None,
            ..HttpRules::default()
        };
        for (fields, missing) in [
            (&[][..], Some("x-device")),
            (&[("x-site", "1")], Some("x-device")),
            (&[("X-Device", "1")], Some("x-site")),
            (&[("x-device", ""), ("X-SITE", "2")], None),
            (&[("x-device-2", "1"), ("x-site", "1")], Some("x-device")),
        ] {
            let broken = checked(&rules, "GET", fields).broken;
            let expected = missing
                .map(|name| Refusal::new(400, "M1034", format!("the field {name} is required")));
            assert_eq!(broken, expected, "{fields:?}");
        }
    }

    #[test]
    fn permitted_origins_receive_the_fields() {
        let app = format!(
            "access-control-allow-origin: {APP}\naccess-control-expose-headers: x-count\n\
             vary: Origin\n"
        );
        let any = "access-control-allow-origin: *\naccess-control-expose-headers: x-count\n";
        for (origins, origin, expected) in [
            (&[APP][..], Some(APP), app.as_str()),
            (&["https://other.example", APP], Some(APP), app.as_str()),
            (&[APP], Some("https://app.example:8443"), "vary: Origin\n"),
            (&[APP], Some("http://app.example"), "vary: Origin\n"),
            (&[APP], Some("https://app.example.evil.example"), "vary: Origin\n"),
            (&[APP], Some("null"), "vary: Origin\n"),
            (&[APP], Some("*"), "vary: Origin\n"),
            (&[APP], None, "vary: Origin\n"),
            (&["*"], Some("null"), any),
            (&["*"], None, any),
        ] {
            let rules = HttpRules {
                headers: Vec::new(),
                cors: Some(cors(origins)),
                ..HttpRules::default()
            };
            let fields: Vec<_> = origin.map(|origin| ("origin", origin)).into_iter().collect();
            let checked = checked(&rules, "GET", &fields);
            assert_eq!((text(&checked.added).as_str(), checked.broken), (expected, None));
        }
    }

    #[test]
    fn preflight_requests_are_recognised_and_answered() {
        let rules =
            HttpRules { headers: Vec::new(), cors: Some(cors(&[APP])), ..HttpRules::default() };
        let asks = ("access-control-request-method", "PUT");
        for (method, fields, expected) in [
            ("OPTIONS", &[("origin", APP), asks][..], true),
            ("OPTIONS", &[("origin", "https://evil.example"), asks], true),
            ("OPTIONS", &[("origin", APP)], false),
            ("OPTIONS", &[asks], false),
            ("POST", &[("origin", APP), asks], false),
        ] {
            assert_eq!(checked(&rules, method, fields).is_preflight, expected, "{fields:?}");
        }
        let without =
            HttpRules { headers: words(&["x-device"]), cors: None, ..HttpRules::default() };
        assert!(!checked(&without, "OPTIONS", &[("origin", APP), asks]).is_preflight);
        let answer = text(&checked(&rules, "OPTIONS", &[("origin", APP), asks]).added);
        let expected = format!(
            "access-control-allow-origin: {APP}\naccess-control-allow-methods: GET, PUT\n\
             access-control-allow-headers: content-type, x-device\n\
             access-control-max-age: 600\nvary: Origin\n"
        );
        assert_eq!(answer, expected);
        let evil = checked(&rules, "OPTIONS", &[("origin", "https://evil.example"), asks]);
        assert_eq!(text(&evil.added), "vary: Origin\n");
    }

    #[test]
    fn with_credentials_other_origins_change_nothing() {
        let with = Cors { credentials: true, ..cors(&[APP]) };
        let rules = HttpRules { headers: Vec::new(), cors: Some(with), ..HttpRules::default() };
        let evil = ("origin", "https://evil.example");
        for (method, origin, is_refused) in [
            ("POST", evil, true),
            ("DELETE", evil, true),
            ("POST", ("origin", "null"), true),
            ("POST", ("origin", "http://"), true),
            ("POST", ("origin", "http://evil.example/://node.local:6683"), true),
            ("GET", evil, false),
            ("HEAD", evil, false),
            ("OPTIONS", evil, false),
            ("POST", ("origin", APP), false),
            ("POST", ("origin", "http://node.local:6683"), false),
            ("POST", ("origin", "http://NODE.local:6683"), false),
            ("POST", ("origin", "http://node.local"), true),
            ("POST", ("x-a", "b"), false),
        ] {
            let broken = checked(&rules, method, &[origin]).broken;
            assert_eq!(broken.map(|broken| broken.status), is_refused.then_some(403), "{origin:?}");
        }
        for several in [[("origin", APP), evil], [evil, ("origin", APP)]] {
            let checked = checked(&rules, "POST", &several);
            assert_eq!(checked.broken.map(|broken| broken.code), Some("M1035"));
            assert_eq!(text(&checked.added), "vary: Origin\n");
        }
        let websocket = check(&rules, &request("GET", &[evil]), true);
        assert_eq!(websocket.broken.map(|broken| broken.code), Some("M1035"));
        let answer = text(&checked(&rules, "GET", &[("origin", APP)]).added);
        assert!(answer.contains("access-control-allow-credentials: true\n"), "{answer}");
    }

    #[test]
    fn the_functions_own_fields_are_replaced() {
        let rules =
            HttpRules { headers: Vec::new(), cors: Some(cors(&[APP])), ..HttpRules::default() };
        let own =
            b"Access-Control-Allow-Origin\n*\nx-a\nb\naccess-control-allow-credentials\ntrue\n\
                    vary\naccept\n";
        let added = checked(&rules, "GET", &[("origin", "https://evil.example")]).added;
        let fields = added.to(Bytes::from_static(own));
        assert_eq!(&fields[..], b"x-a\nb\nvary\naccept\nvary\nOrigin\n");
        assert_eq!(Added::default().to(Bytes::from_static(own)), own[..]);
    }

    #[test]
    fn head_is_permitted_with_get() {
        let methods = words(&["GET", "POST"]);
        for (method, expected) in
            [("GET", true), ("HEAD", true), ("POST", true), ("PUT", false), ("OPTIONS", false)]
        {
            assert_eq!(is_permitted(&methods, method.as_bytes()), expected, "{method}");
            assert!(is_permitted(&[], method.as_bytes()));
        }
        assert!(!is_permitted(&words(&["POST"]), b"HEAD"));
        assert!(is_permitted(&words(&["HEAD"]), b"HEAD"));
        assert_eq!(other_method(&methods).allow.as_deref(), Some("GET, POST, HEAD"));
        assert_eq!(other_method(&words(&["POST"])).allow.as_deref(), Some("POST"));
    }
}
