//! Converts an HTTP request into the request that a worker would send.

use std::borrow::Cow;

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use mote_core::invocation::put_header;
use mote_core::publish::Message;
use mote_core::services::{Asked, CALL_BODY_BYTES_MAX, Call, NOTICE_BODY_BYTES_MAX, Notice};
use mote_core::state::{Condition, Operation};
use mote_spec::fields::is_set_by_node;
use mote_spec::hop_by_hop::{Named, is_hop_by_hop};
use mote_spec::mqtt::Connection;

/// The content type that `curl -d` gives to every body. It says nothing about the body, so it does
/// not become the content type of a message or of a state.
const FORM: &[u8] = b"application/x-www-form-urlencoded";
/// Fields of a call that describe the request to the node, so they are not passed on. The list does
/// not contain the fields that describe the connection.
const OWN_FIELDS: [&str; 8] = [
    "content-length",
    "expect",
    "host",
    "mote-invocation",
    "mote-timeout",
    // A program that receives fields as variables would take this field for its own `HTTP_PROXY`.
    "proxy",
    "mote-after",
    "mote-order-key",
];

/// The maximum length of a call's method.
const METHOD_BYTES_MAX: usize = 24;

/// A request that is not carried out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }
}

fn invalid(text: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, text)
}

fn not_allowed(allowed: &str) -> Refusal {
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, format!("use {allowed} here"))
}

/// The parts of a request. `path` does not include the token and begins with `/`.
pub(crate) struct Parts<'a> {
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
    pub(crate) query: Option<&'a str>,
    pub(crate) headers: &'a HeaderMap,
}

pub(crate) fn read(parts: &Parts<'_>, body: Bytes) -> Result<Asked, Refusal> {
    let path = parts.path.strip_prefix('/').unwrap_or(parts.path);
    let (service, rest) = path.split_once('/').unwrap_or((path, ""));
    match service {
        "kv" => state(parts, rest, body),
        "call" => call(parts, rest, body, Caller::Waits),
        "call-async" => call(parts, rest, body, Caller::GoesOn),
        "publish" => publish(parts, rest, body),
        "notify" => notify(parts, rest, body),
        _ => {
            let text = "the services are kv, call, call-async, publish and notify";
            Err(Refusal::new(StatusCode::NOT_FOUND, text))
        }
    }
}

fn state(parts: &Parts<'_>, key: &str, body: Bytes) -> Result<Asked, Refusal> {
    let key = decoded(key, Part::Path)?.into_owned();
    let is_listing = key.is_empty() && matches!(*parts.method, Method::GET | Method::HEAD);
    let known: &[&str] = match *parts.method {
        Method::GET | Method::HEAD if is_listing => {
            &["shared", "prefix", "after", "limit", "values"]
        }
        Method::GET | Method::HEAD => &["shared"],
        Method::PUT => &["shared", "ttl", "durable"],
        Method::DELETE => &["shared", "durable"],
        Method::POST => &["shared", "ttl", "durable", "increment"],
        _ => return Err(not_allowed("GET, PUT, DELETE, or POST with ?increment=N")),
    };
    let query = Query::read(parts.query, known)?;
    let ttl_ms = query.get("ttl").map(|text| milliseconds("ttl", text)).transpose()?;
    let operation = match *parts.method {
        Method::PUT => {
            let condition = condition(parts.headers)?;
            Operation::Put { key, value: body, condition, ttl_ms }
        }
        Method::DELETE => Operation::Delete { key, condition: condition(parts.headers)? },
        Method::POST => {
            let by = query.get("increment").ok_or_else(|| {
                invalid("POST adds to a number: ?increment=N; write a value with PUT")
            })?;
            let by = if by.is_empty() { "1" } else { by };
            let by = by.parse().map_err(|_| invalid("increment: a whole number"))?;
            Operation::Increment { key, by, ttl_ms }
        }
        _ if is_listing => Operation::List {
            prefix: query.get("prefix").unwrap_or_default().to_owned(),
            after: query.get("after").filter(|key| !key.is_empty()).map(str::to_owned),
            limit: match query.get("limit") {
                None => 0,
                Some(text) => text.parse().map_err(|_| invalid("limit: a whole number"))?,
            },
            values: query.flag_or("values", true)?,
        },
        _ => Operation::Get { key },
    };
    operation.check().map_err(invalid)?;
    let shared = query.get("shared").map(str::to_owned);
    Ok(Asked::State { shared, operation, durable: query.flag_or("durable", true)? })
}

/// The condition that a change sets for the entry, read from the HTTP header fields.
fn condition(headers: &HeaderMap) -> Result<Condition, Refusal> {
    let text = |name: &str| {
        let value = headers.get(name)?;
        Some(value.to_str().unwrap_or_default().trim().trim_matches('"').to_owned())
    };
    match (text("if-match"), text("if-none-match")) {
        (None, None) => Ok(Condition::None),
        (None, Some(any)) if any == "*" => Ok(Condition::Absent),
        (Some(version), None) => match version.parse() {
            Ok(0) => Ok(Condition::Absent),
            Ok(version) => Ok(Condition::Version(version)),
            Err(_) => Err(invalid("If-Match: the version of an entry, as in its ETag")),
        },
        _ => Err(invalid("If-None-Match: only *, and not together with If-Match")),
    }
}

/// How the caller continues after a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// The caller waits for the answer.
    Waits,
    /// The caller continues, and the call runs later.
    GoesOn,
}

fn call(parts: &Parts<'_>, rest: &str, body: Bytes, caller: Caller) -> Result<Asked, Refusal> {
    let waits = caller == Caller::Waits;
    let (name, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let function = decoded(name, Part::Path)?.into_owned();
    if function.is_empty() {
        return Err(invalid("name a function: call/NAME/PATH"));
    }
    if body.len() > CALL_BODY_BYTES_MAX {
        return Err(too_large("the body of a call", CALL_BODY_BYTES_MAX));
    }
    if parts.method.as_str().len() > METHOD_BYTES_MAX {
        return Err(invalid(format!("a method has at most {METHOD_BYTES_MAX} letters")));
    }
    let field = |name: &str| match parts.headers.get(name).map(|value| value.to_str()) {
        None => Ok(None),
        Some(Ok(text)) => Ok(Some(text.trim())),
        Some(Err(_)) => Err(invalid(format!("{name}: visible ASCII"))),
    };
    let wait = |name: &str| match field(name)? {
        None => Ok(0),
        Some(text) => milliseconds(name, text),
    };
    let owned = |text: Option<&str>| text.unwrap_or_default().trim_matches('"').to_owned();
    let (key, order, delay_ms) = if waits {
        (String::new(), String::new(), 0)
    } else {
        let key = owned(field("idempotency-key")?);
        (key, owned(field("mote-order-key")?), wait("mote-after")?)
    };
    let mut block = Vec::new();
    let named = Named::of(parts.headers.get_all("connection").iter().map(HeaderValue::as_bytes));
    for (name, value) in parts.headers {
        let bytes = name.as_str().as_bytes();
        let of_connection = is_hop_by_hop(bytes) || named.contains(bytes);
        let is_own =
            OWN_FIELDS.contains(&name.as_str()) || (!waits && name.as_str() == "idempotency-key");
        if !of_connection && !is_own && !is_set_by_node(bytes) {
            put_header(&mut block, name.as_str().as_bytes(), value.as_bytes());
        }
    }
    let path = if path.is_empty() { "/" } else { path };
    Ok(Asked::Call(Call {
        function,
        waits,
        timeout_ms: u32::try_from(wait("mote-timeout")?).unwrap_or(u32::MAX),
        delay_ms,
        key,
        order,
        method: Bytes::copy_from_slice(parts.method.as_str().as_bytes()),
        path: Bytes::copy_from_slice(path.as_bytes()),
        query: Bytes::copy_from_slice(parts.query.unwrap_or_default().as_bytes()),
        headers: block.into(),
        body,
    }))
}

fn publish(parts: &Parts<'_>, topic: &str, body: Bytes) -> Result<Asked, Refusal> {
    if !matches!(*parts.method, Method::POST | Method::PUT) {
        return Err(not_allowed("POST"));
    }
    let known = ["qos", "retain", "response_topic", "correlation", "property"];
    let query = Query::read(parts.query, &known)?;
    let topic = decoded(topic, Part::Path)?.into_owned();
    let mut message = Message::new(String::new(), Connection::default(), topic, body);
    if let Some(qos) = query.get("qos") {
        message.qos = qos.parse().map_err(|_| invalid("qos: 0, 1 or 2"))?;
    }
    message.retain = query.flag_or("retain", false)?;
    message.response_topic = query.get("response_topic").map(str::to_owned);
    message.correlation = query.get("correlation").map(|text| text.to_owned().into());
    message.content_type = content_type(parts.headers)
        .map(|value| String::from_utf8(value.to_vec()))
        .transpose()
        .map_err(|_| invalid("content-type: UTF-8"))?;
    for property in query.all("property") {
        let (name, value) =
            property.split_once('=').ok_or_else(|| invalid("property: NAME=VALUE"))?;
        message.user.push((name.to_owned(), value.to_owned()));
    }
    match message.mistake() {
        Some(text) => Err(invalid(text)),
        None => Ok(Asked::Publish(Box::new(message))),
    }
}

fn notify(parts: &Parts<'_>, path: &str, body: Bytes) -> Result<Asked, Refusal> {
    if !matches!(*parts.method, Method::POST | Method::PUT) {
        return Err(not_allowed("POST"));
    }
    if body.len() > NOTICE_BODY_BYTES_MAX {
        return Err(too_large("the body of a notice", NOTICE_BODY_BYTES_MAX));
    }
    let mut block = Vec::new();
    if let Some(value) = content_type(parts.headers) {
        put_header(&mut block, b"content-type", value);
    }
    if let Some(value) = parts.headers.get(hyper::header::CACHE_CONTROL) {
        put_header(&mut block, b"cache-control", value.as_bytes());
    }
    // A notice may carry an empty state, which is rare. Such a notice has a content type.
    let is_state = !body.is_empty() || parts.headers.contains_key(CONTENT_TYPE);
    Ok(Asked::Notify(Notice {
        path: format!("/{path}").into(),
        query: parts.query.map(|query| Bytes::copy_from_slice(query.as_bytes())),
        headers: block.into(),
        body: is_state.then_some(body),
    }))
}

const CONTENT_TYPE: HeaderName = hyper::header::CONTENT_TYPE;

fn content_type(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(CONTENT_TYPE).map(|value| value.as_bytes()).filter(|value| *value != FORM)
}

fn too_large(what: &str, bytes: usize) -> Refusal {
    let text = format!("{what} has at most {} KiB", bytes >> 10);
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text)
}

/// The parameters of a query. Unknown parameters are refused, because they are probably misspelt.
struct Query<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Query<'a> {
    fn read(query: Option<&'a str>, known: &[&str]) -> Result<Self, Refusal> {
        let mut pairs = Vec::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decoded(name, Part::Query)?;
            if !known.contains(&&*name) {
                let known = known.join(", ");
                return Err(invalid(format!("unknown parameter {name:?}; here: {known}")));
            }
            pairs.push((name, decoded(value, Part::Query)?));
        }
        Ok(Self(pairs))
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| &**value)
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// A parameter that is true or false, or `without` if the query does not have it.
    fn flag_or(&self, name: &str, without: bool) -> Result<bool, Refusal> {
        match self.get(name) {
            None => Ok(without),
            Some("" | "1" | "true") => Ok(true),
            Some("0" | "false") => Ok(false),
            Some(_) => Err(invalid(format!("{name}: true or false"))),
        }
    }
}

/// A part of a target.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Path,
    /// A name or a value, in which `+` is a space.
    Query,
}

/// The text with percent-encoding removed.
fn decoded(text: &str, part: Part) -> Result<Cow<'_, str>, Refusal> {
    let is_query = part == Part::Query;
    let is_encoded = text.contains('%') || is_query && text.contains('+');
    if !is_encoded {
        return Ok(Cow::Borrowed(text));
    }
    let wrong = || invalid(format!("{text:?} is not percent-encoded UTF-8"));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' if is_query => b' ',
            b'%' => {
                let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
                match (digit(), digit()) {
                    (Some(high), Some(low)) => (high << 4 | low) as u8,
                    _ => return Err(wrong()),
                }
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map(Cow::Owned).map_err(|_| wrong())
}

/// A duration in milliseconds. `2`, `2.5` and `2s` are seconds; `90ms`, `5m`, `2h` and `1d` name
/// their unit.
fn milliseconds(name: &str, text: &str) -> Result<u64, Refusal> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "ms" => 1.0,
        "" | "s" => 1_000.0,
        "m" => 60_000.0,
        "h" => 3_600_000.0,
        "d" => 86_400_000.0,
        _ => f64::NAN,
    };
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let value = digits.parse::<f64>().ok().filter(|_| plain).map(|number| number * factor);
    match value {
        Some(ms) if ms > 0.0 && ms < 1e15 => Ok((ms.round() as u64).max(1)),
        _ => Err(invalid(format!("{name}: a duration above 0 such as 90, 1.5, 250ms or 2h"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
        body: &str,
    ) -> Result<Asked, Refusal> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, value.parse().unwrap());
        }
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let parts = Parts { method: &method, path, query, headers: &headers };
        read(&parts, Bytes::copy_from_slice(body.as_bytes()))
    }

    fn operation(method: &str, target: &str, fields: &[(&str, &str)]) -> (Operation, bool) {
        match ask(method, target, fields, "value") {
            Ok(Asked::State { shared: None, operation, durable }) => (operation, durable),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_to_the_state_are_read() {
        let key = || "a/b c".to_owned();
        let check = |method: &str, target: &str, fields: &[(&str, &str)], expected: Operation| {
            assert_eq!(operation(method, target, fields), (expected, true), "{method} {target}");
        };
        check("GET", "/kv/a/b%20c", &[], Operation::Get { key: key() });
        let put = |condition, ttl_ms| {
            let value = Bytes::from_static(b"value");
            Operation::Put { key: key(), value, condition, ttl_ms }
        };
        check("PUT", "/kv/a/b%20c", &[], put(Condition::None, None));
        check("PUT", "/kv/a/b%20c?ttl=1.5", &[], put(Condition::None, Some(1500)));
        check("PUT", "/kv/a/b%20c", &[("if-match", "\"7\"")], put(Condition::Version(7), None));
        check("PUT", "/kv/a/b%20c", &[("if-none-match", "*")], put(Condition::Absent, None));
        let condition = Condition::Version(7);
        check(
            "DELETE",
            "/kv/k",
            &[("if-match", "7")],
            Operation::Delete { key: "k".into(), condition },
        );
        let count = |by, ttl_ms| Operation::Increment { key: "k".into(), by, ttl_ms };
        check("POST", "/kv/k?increment=-3", &[], count(-3, None));
        check("POST", "/kv/k?increment&ttl=2h", &[], count(1, Some(7_200_000)));
        let prefix = || "p+ q".to_owned();
        let after = Some("x".to_owned());
        check(
            "GET",
            "/kv?prefix=p%2B+q&after=x&limit=5&values=false",
            &[],
            Operation::List { prefix: prefix(), after, limit: 5, values: false },
        );
        assert!(!operation("PUT", "/kv/k?durable=false", &[]).1);
        let shared = ask("GET", "/kv/k?shared=site", &[], "").unwrap();
        assert!(matches!(shared, Asked::State { shared: Some(name), .. } if name == "site"));
    }

    #[test]
    fn calls_are_read() {
        let fields = [
            ("host", "mote.internal:6685"),
            ("content-type", "text/plain"),
            ("mote-invocation", "x"),
            ("mote-timeout", "2.5"),
            ("mote-source", "forged"),
            ("proxy", "http://elsewhere"),
            ("connection", "keep-alive, x-hop"),
            ("x-hop", "1"),
            ("x-a", "1"),
        ];
        let Ok(Asked::Call(call)) = ask("PUT", "/call/f@blue/a%20b?x=%20", &fields, "b") else {
            panic!()
        };
        assert_eq!((call.function.as_str(), call.waits, call.timeout_ms), ("f@blue", true, 2500));
        assert_eq!((&call.method[..], &call.path[..]), (&b"PUT"[..], &b"/a%20b"[..]));
        assert_eq!((&call.query[..], &call.body[..]), (&b"x=%20"[..], &b"b"[..]));
        assert_eq!(call.headers, "content-type\ntext/plain\nx-a\n1\n");
        let fields = [("idempotency-key", "\"k\""), ("mote-order-key", "o"), ("mote-after", "90s")];
        let Ok(Asked::Call(call)) = ask("POST", "/call-async/f", &fields, "") else { panic!() };
        assert_eq!((call.waits, call.delay_ms, &call.path[..]), (false, 90_000, &b"/"[..]));
        assert_eq!(
            (call.key.as_str(), call.order.as_str(), &call.headers[..]),
            ("k", "o", &[][..])
        );
    }

    #[test]
    fn messages_and_notices_are_read() {
        let target = "/publish/a/b?qos=0&retain&property=n=v%3Dw&correlation=c";
        let Ok(Asked::Publish(message)) = ask("POST", target, &[("content-type", "a/b")], "21")
        else {
            panic!()
        };
        assert_eq!((message.topic.as_str(), message.qos, message.retain), ("a/b", 0, true));
        assert_eq!(message.user, [("n".to_owned(), "v=w".to_owned())]);
        assert_eq!(
            (message.content_type.as_deref(), &message.payload[..]),
            (Some("a/b"), &b"21"[..])
        );
        let form = [("content-type", "application/x-www-form-urlencoded")];
        let Ok(Asked::Publish(message)) = ask("POST", "/publish/a", &form, "21") else { panic!() };
        assert_eq!((message.qos, message.content_type), (1, None));

        let Ok(Asked::Notify(notice)) = ask("POST", "/notify/t/x?u=f", &form, "21") else {
            panic!()
        };
        assert_eq!((&notice.path[..], notice.query), (&b"/t/x"[..], Some("u=f".into())));
        assert_eq!((&notice.headers[..], notice.body), (&[][..], Some("21".into())));
        let Ok(Asked::Notify(notice)) = ask("POST", "/notify/t", &[], "") else { panic!() };
        assert_eq!((notice.query, notice.body), (None, None));
    }

    #[test]
    fn mistakes_are_named() {
        let check = |method: &str, target: &str, fields: &[(&str, &str)], expected: (u16, &str)| {
            let refusal = ask(method, target, fields, "").unwrap_err();
            let found = (refusal.status.as_u16(), refusal.text.as_str());
            assert!(found.0 == expected.0 && found.1.contains(expected.1), "{target}: {found:?}");
        };
        check("GET", "/nothing", &[], (404, "the services are"));
        check("GET", "/kv/%ff", &[], (400, "percent-encoded UTF-8"));
        check("GET", "/kv/%f", &[], (400, "percent-encoded UTF-8"));
        check("PATCH", "/kv/k", &[], (405, "use GET"));
        check("POST", "/kv/k", &[], (400, "?increment=N"));
        check("PUT", "/kv/", &[], (400, "1 to 512 bytes"));
        check("PUT", "/kv/k?tll=1", &[], (400, "unknown parameter \"tll\"; here: shared, ttl"));
        check("PUT", "/kv/k?ttl=-1", &[], (400, "a duration above 0"));
        check("PUT", "/kv/k?ttl=inf", &[], (400, "a duration above 0"));
        check("PUT", "/kv/k?ttl=1y", &[], (400, "a duration above 0"));
        check("PUT", "/kv/k?durable=no", &[], (400, "true or false"));
        check("PUT", "/kv/k", &[("if-match", "*")], (400, "the version of an entry"));
        check("PUT", "/kv/k", &[("if-none-match", "\"3\"")], (400, "only *"));
        check("POST", "/call/", &[], (400, "name a function"));
        check(&"M".repeat(25), "/call/f", &[], (400, "a method has at most 24 letters"));
        check("POST", "/call/f", &[("mote-timeout", "soon")], (400, "mote-timeout: a duration"));
        check("GET", "/publish/a", &[], (405, "use POST"));
        check("POST", "/publish/a/+", &[], (400, "no wildcards"));
        check("POST", "/publish/a?qos=3", &[], (400, "the QoS is 0, 1 or 2"));
        check("POST", "/publish/a?property=x", &[], (400, "NAME=VALUE"));
        check("DELETE", "/notify/a", &[], (405, "use POST"));
    }
}
