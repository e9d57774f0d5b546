//! Calls functions. `/function/NAME[.NAMESPACE]/…` returns the answer. `/async-function/…` delivers the
//! result to a callback, or drops the result if the call names no callback.

use std::net::SocketAddr;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::compat::access::{self, Rule};
use crate::compat::call;
use crate::compat::node::Call;
use crate::compat::outgoing;
use crate::compat::queue::Later;
use axum::body::Body as HttpBody;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use mote_core::Fault;

use super::{Gateway, NAMESPACE, Refused, unknown, with_namespace};

/// A call's function and target, read from the path of its request.
struct Route {
    function: String,
    body_bytes_max: u64,
    /// Path and query below the function.
    target: String,
}

/// Runs a function and passes its answer on.
pub(super) async fn run(
    State(gateway): State<Gateway>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let called = called(&gateway, &mut parts);
    let trace = Trace::of(&parts.headers, gateway.calls.random());
    let since = Instant::now();
    let name = called.clone().unwrap_or_else(|| name_of(&parts).to_owned());
    let mut response = match answer(&gateway, &trace, peer, &parts, called, body).await {
        Ok(response) => response,
        Err(refused) => refused.into_response(),
    };
    let seconds = since.elapsed().as_secs_f64();
    gateway.metrics.ended(&name, response.status().as_u16(), seconds);
    call::set(&mut response, "x-call-id", &trace.call_id);
    call::set(&mut response, "x-start-time", &trace.start_ns);
    call::set(&mut response, "x-duration-seconds", &format!("{seconds:.6}"));
    call::set(&mut response, "x-served-by", concat!("mote/", env!("CARGO_PKG_VERSION")));
    response
}

async fn answer(
    gateway: &Gateway,
    trace: &Trace,
    peer: SocketAddr,
    parts: &Parts,
    called: Option<String>,
    body: HttpBody,
) -> Result<Response, Refused> {
    let route = route(gateway, parts, called)?;
    let name = route.function.clone();
    let limit = route.body_bytes_max;
    let head = admitted(gateway, trace, peer, parts, &route)?;
    let length = call::declared_length(&parts.headers);
    if length.is_some_and(|length| length > limit) {
        call::drain(body).await;
        return Err(refused(&Fault::BodyTooLarge { limit_bytes: limit }, &name));
    }
    gateway.metrics.started(&name);
    let body = call::body(body, length, limit);
    let call = Call { function: name.clone(), head, body, timeout_ms: timeout_ms(&parts.headers) };
    let reply = gateway.calls.invoke(call).await;
    let reply = reply.map_err(|fault| refused(&fault, &name))?;
    let mut response = call::response(reply);
    if !response.headers().contains_key("content-type") {
        let asked = parts.headers.get("content-type").and_then(|kind| kind.to_str().ok());
        call::set(&mut response, "content-type", asked.unwrap_or("text/plain"));
    }
    Ok(response)
}

/// Accepts a call. Answers 202 once the call is on disk.
pub(super) async fn later(
    State(gateway): State<Gateway>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let called = called(&gateway, &mut parts);
    let trace = Trace::of(&parts.headers, gateway.calls.random());
    let mut response = match accept(&gateway, &trace, peer, &parts, called, body).await {
        Ok(()) => StatusCode::ACCEPTED.into_response(),
        Err(refused) => refused.into_response(),
    };
    call::set(&mut response, "x-call-id", &trace.call_id);
    call::set(&mut response, "x-start-time", &trace.start_ns);
    response
}

async fn accept(
    gateway: &Gateway,
    trace: &Trace,
    peer: SocketAddr,
    parts: &Parts,
    called: Option<String>,
    body: HttpBody,
) -> Result<(), Refused> {
    let route = route(gateway, parts, called)?;
    let name = route.function.clone();
    let callback = match parts.headers.get("x-callback-url") {
        Some(url) => {
            let url = url.to_str().map_err(|_| Refused::bad("X-Callback-Url: not a URL"))?;
            if gateway.open == Rule::Loopback && access::led_by_a_page(&parts.headers) {
                return Err(Refused::new(StatusCode::FORBIDDEN, access::NO_PAGES.to_owned()));
            }
            outgoing::check(url)
                .map_err(|error| Refused::bad(format!("X-Callback-Url: {error}")))?;
            Some(url.to_owned())
        }
        None => None,
    };
    let limit = route.body_bytes_max;
    let head = admitted(gateway, trace, peer, parts, &route)?;
    let body = call::body(body, call::declared_length(&parts.headers), limit);
    let received = gateway.queue.receive(body, limit, peer.ip()).await;
    let received = received.map_err(|fault| refused(&fault, &name))?;
    let callback_fields = [
        ("x-call-id", trace.call_id.clone()),
        ("x-start-time", trace.start_ns.clone()),
        ("x-function-name", with_namespace(&name)),
    ];
    let later = Later {
        function: name,
        method: parts.method.as_str().to_owned(),
        target: route.target,
        callback,
        callback_fields: callback_fields.map(|(key, value)| (key.to_owned(), value)).into(),
        fields: bytes::Bytes::copy_from_slice(head.headers()),
        body: received.bytes.clone(),
    };
    gateway.queue.accept(later).await.map_err(|problem| match problem.status {
        429 => Refused::new(StatusCode::TOO_MANY_REQUESTS, problem.detail),
        _ => problem.into(),
    })
}

/// Returns the function's name in the path. Removes the suffix with the default namespace, which is
/// right for a sender who has no token for a namespace.
fn name_of(parts: &Parts) -> &str {
    let segment = segment(parts);
    segment.strip_suffix(NAMESPACE).and_then(|name| name.strip_suffix('.')).unwrap_or(segment)
}

fn segment(parts: &Parts) -> &str {
    parts.uri.path().split('/').nth(2).unwrap_or_default()
}

/// Returns the full name of the function that the sender means; `None` if the sender's token is for a
/// namespace that does not contain it. Also removes tokens from the request, because no function may
/// see them.
fn called(gateway: &Gateway, parts: &mut Parts) -> Option<String> {
    let part = gateway.gate.caller(&parts.headers).ok().flatten();
    gateway.gate.without_tokens(&mut parts.headers);
    let part = part?;
    let name = if part.is_confined() { segment(parts) } else { name_of(parts) };
    part.callable(name)
}

fn route(gateway: &Gateway, parts: &Parts, called: Option<String>) -> Result<Route, Refused> {
    let function = called.ok_or_else(|| unknown(name_of(parts)))?;
    let node = &gateway.calls;
    let body_bytes_max = node.body_bytes_max(&function).ok_or_else(|| unknown(&function))?;
    let whole = call::target(parts);
    // The target begins after the second segment of the path.
    let below = whole.match_indices(['/', '?']).nth(2).map_or("", |(at, _)| &whole[at..]);
    let target = if below.starts_with('/') { below.to_owned() } else { format!("/{below}") };
    node.check_target(&target)?;
    Ok(Route { function, body_bytes_max, target })
}

/// Makes the head of a call. Fails if the sender may not call the function.
fn admitted(
    gateway: &Gateway,
    trace: &Trace,
    peer: SocketAddr,
    parts: &Parts,
    route: &Route,
) -> Result<mote_core::invocation::Head, Refused> {
    let mut head = head(trace, peer, parts, &route.target);
    let admitted = gateway.calls.admit(&route.function, &mut head, peer.ip());
    admitted.map_err(|fault| refused(&fault, &route.function))?;
    crate::compat::connection::called(&parts.extensions, head.caller().is_some())?;
    Ok(head)
}

fn head(
    trace: &Trace,
    peer: SocketAddr,
    parts: &Parts,
    target: &str,
) -> mote_core::invocation::Head {
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let host = text("host").unwrap_or_default();
    let ip = peer.ip().to_canonical().to_string();
    let forwarded = match text("x-forwarded-for") {
        Some(before) => format!("{before}, {ip}"),
        None => ip,
    };
    let ours = [
        ("x-call-id", trace.call_id.as_str()),
        ("x-start-time", trace.start_ns.as_str()),
        ("x-forwarded-host", text("x-forwarded-host").unwrap_or(host)),
        ("x-forwarded-for", forwarded.as_str()),
    ];
    call::head(parts.method.as_str(), target, &parts.headers, &ours)
}

/// Reads `X-Timeout`, which shortens the time limit of the function: `500ms`, `10s`, `1m`.
fn timeout_ms(fields: &HeaderMap) -> Option<u64> {
    let text = fields.get("x-timeout")?.to_str().ok()?;
    mote_spec::quantity::parse_duration_ms(text).ok().filter(|ms| *ms > 0)
}

fn refused(fault: &Fault, name: &str) -> Refused {
    let status = StatusCode::from_u16(fault.answer().http);
    let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Refused::new(status, fault.public_text(name))
}

/// The id and the start time of a call.
struct Trace {
    call_id: String,
    /// Nanoseconds since 1970.
    start_ns: String,
}

impl Trace {
    fn of(fields: &HeaderMap, random: u128) -> Self {
        let given = fields.get("x-call-id").and_then(|value| value.to_str().ok());
        let given = given.filter(|text| !text.is_empty() && text.len() <= 128);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            call_id: given.map_or_else(|| uuid(random), str::to_owned),
            start_ns: now.as_nanos().to_string(),
        }
    }
}

/// Formats a random UUID (RFC 9562, version 4).
fn uuid(random: u128) -> String {
    let bits = random & !(0xf000 << 64) | 0x4000 << 64;
    let bits = bits & !(0b11 << 62) | 0b10 << 62;
    let hex = format!("{bits:032x}");
    let [a, b, c, d, e] = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("{a}-{b}-{c}-{d}-{e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_ids_are_uuids() {
        assert_eq!(uuid(0), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uuid(u128::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }

    #[test]
    fn names_and_what_is_below() {
        let parts = |uri: &str| {
            let request = axum::http::Request::get(uri).body(()).expect("a request");
            request.into_parts().0
        };
        assert_eq!(name_of(&parts("/function/a.openfaas-fn/x")), "a");
        assert_eq!(name_of(&parts("/function/a")), "a");
        assert_eq!(name_of(&parts("/function/a.other")), "a.other");
    }
}
