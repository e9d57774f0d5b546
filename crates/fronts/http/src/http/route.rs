//! Finds the function that a request addresses, and limits requests that do not address a function.

use std::net::IpAddr;

use mote_core::invocation::{Head, headers};
use mote_core::rollout::sticky_key;
use mote_core::{Fault, Invoker, Routed};
use mote_spec::routes::{self, Among, Found};
use mote_spec::{Access, Platform};

use super::fission;
use super::front::WellKnown;
use super::head::no_such_function;
use super::rules::{self, Checked};
use crate::added::Added;
use crate::refusal::Refusal;

/// While traffic is split, requests with equal values in this field go to the same revision.
const SPLIT_KEY: &[u8] = b"mote-split-key";
/// The first path segment of a request that concerns the machine rather than a function.
const WELL_KNOWN: &str = ".well-known";
/// The most bytes of an unread body that are read and dropped to keep the connection open.
pub(crate) const LINGER_BYTES_MAX: usize = 64 << 10;
/// The number of requests in a row that one connection may send without causing an invocation, for
/// example requests for unknown functions or with methods that a function does not accept. The
/// answer to the last of them closes the connection. A client that also causes invocations never
/// reaches the limit, and a client that reaches the limit can connect again.
pub const REFUSALS_IN_A_ROW_MAX: u32 = 100;

/// The field that tells a function how its client is connected. The front sets this field on
/// connections with TLS. On other connections, it passes on what the client or a proxy has sent.
pub(super) const SCHEME_FIELD: &[u8] = b"x-forwarded-proto";

/// What a front knows about a request in addition to its head.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// The sender's address.
    pub(crate) from: IpAddr,
    /// The length of the body, if it is known.
    pub(crate) length: Option<u64>,
    pub(crate) wants_websocket: bool,
    /// Whether the path is one segment without a trailing `/`.
    pub(crate) is_bare: bool,
}

/// Finds the function of a request, and the fields that the front adds to the answers. Fails with
/// the refusal if there is no function or the function does not accept the request.
pub(crate) fn find_route<I: Invoker>(
    invoker: &I,
    name: &mut String,
    head: &mut Head,
    asked: Asked,
    well_known: Option<&WellKnown>,
) -> Result<(I::Route, Added), Refusal> {
    let has_hosts = invoker.has_routed_hosts();
    let mut placed = Placed::ByName;
    if has_hosts {
        own_answer(name, head, well_known)?;
        placed = declared(invoker, name, head, asked.is_bare, Among::Hosts)?;
    }
    let mut found = invoker.route(name, || split_key(head));
    let has_own =
        |route: &I::Route| route.info().http.is_some_and(|rules| !rules.routes.is_empty());
    let is_by_name = placed == Placed::ByName;
    if is_by_name && found.is_none() {
        if !has_hosts {
            own_answer(name, head, well_known)?;
        }
        placed = declared(invoker, name, head, asked.is_bare, Among::Everywhere)?;
        if placed != Placed::ByName {
            found = invoker.route(name, || split_key(head));
        }
    } else if is_by_name && found.as_ref().is_some_and(has_own) {
        placed = declared(invoker, name, head, asked.is_bare, Among::BelowName)?;
    }
    let name = name.as_str();
    let route = found.ok_or_else(|| no_such_function(name))?;
    if placed == Placed::Routed && route.info().compat == Some(Platform::Fission) {
        fission::describe_route(head);
    }
    let Some(rules) = route.info().http else {
        accept(invoker, &route, name, head, asked, None)?;
        return placed.end(route, Added::default());
    };
    let Checked { added, broken, is_preflight } = rules::check(rules, head, asked.wants_websocket);
    let accepted = if is_preflight {
        // Browsers send preflight requests without credentials, so checking a key would refuse all
        // of them. Access rules about the client's address need no credentials, so they still
        // apply. A preflight runs nothing, so it counts against no rate.
        let is_key = matches!(route.info().access, Access::Key | Access::KeyIfSent);
        let admitted = if is_key { Ok(()) } else { invoker.admit(&route, head, Some(asked.from)) };
        Err(admitted.map_or_else(
            |fault| Refusal::of_fault_for(&fault, name, route.info().compat),
            |()| Refusal::no_content(),
        ))
    } else {
        accept(invoker, &route, name, head, asked, broken)
    };
    match accepted {
        Ok(()) => placed.end(route, added),
        Err(refusal) => Err(refusal.with(&added)),
    }
}

/// How the function of a request was found.
#[derive(Debug, PartialEq, Eq)]
enum Placed {
    /// By the function's name.
    ByName,
    /// By a route.
    Routed,
    /// By a route that sends accepted requests elsewhere.
    Redirected(Refusal),
}

impl Placed {
    /// The result once the function has accepted the request. The picked revision may differ from
    /// the revision whose routes apply.
    fn end<R>(self, route: R, added: Added) -> Result<(R, Added), Refusal> {
        match self {
            Self::Redirected(answer) => Err(answer.with_fields(&added)),
            Self::ByName | Self::Routed => Ok((route, added)),
        }
    }
}

/// Finds the manifest-declared route that matches the request, and rewrites the request to address
/// the route's function.
#[cold]
fn declared<I: Invoker>(
    invoker: &I,
    name: &mut String,
    head: &mut Head,
    is_bare: bool,
    among: Among,
) -> Result<Placed, Refusal> {
    // Names that the node keeps for itself cannot have routes.
    if name.starts_with('_') && invoker.keeps(name) {
        return Ok(Placed::ByName);
    }
    let field = |wanted: &[u8]| headers(head.headers()).find(|(name, _)| *name == wanted);
    let value = |wanted: &[u8]| field(wanted).map(|(_, value)| value);
    // With OPTIONS, a browser asks whether it may send a request with another method, so the route
    // is matched by that other method.
    let wanted = value(b"access-control-request-method").filter(|_| head.method() == b"OPTIONS");
    let asked = routes::Asked {
        among,
        host: value(b"host").unwrap_or_default(),
        first: name.as_bytes(),
        path: head.path(),
        method: wanted.unwrap_or(head.method()),
    };
    let (function, placed, parameters) = match invoker.routed(&asked) {
        Found::Nothing => return Ok(Placed::ByName),
        Found::OtherMethod(_) if among == Among::BelowName => return Ok(Placed::ByName),
        Found::OtherMethod(methods) => return Err(rules::other_method(&methods)),
        Found::Redirect(function, to, status) => {
            let answer = Refusal::redirect(status, &to, head.query());
            (function, Placed::Redirected(answer), Vec::new())
        }
        Found::Function(function, parameters) => (function, Placed::Routed, parameters),
    };
    // A function receives the path as it was sent, including a trailing `/`.
    if !is_bare && !name.is_empty() && head.path() == b"/" {
        name.push('/');
    }
    head.set_route(name.as_bytes(), &parameters);
    name.clear();
    name.push_str(function.as_str());
    Ok(placed)
}

/// Answers requests below `/.well-known` that only the node itself can answer. Routes cannot take
/// over these paths.
fn own_answer(name: &str, head: &Head, well_known: Option<&WellKnown>) -> Result<(), Refusal> {
    let asks = name == WELL_KNOWN && matches!(head.method(), b"GET" | b"HEAD");
    let path = str::from_utf8(head.path()).ok().filter(|_| asks);
    let answer = well_known.zip(path).and_then(|(all, path)| all.answer(path));
    let answer = answer.and_then(|answer| String::from_utf8(answer).ok());
    answer.map_or(Ok(()), |answer| Err(Refusal::text(answer)))
}

/// Checks whether a function accepts a request. The order matters: a caller who may not call the
/// function learns nothing about its rules, and a request that breaks the rules counts against no
/// rate.
fn accept<I: Invoker>(
    invoker: &I,
    route: &I::Route,
    name: &str,
    head: &mut Head,
    asked: Asked,
    broken: Option<Refusal>,
) -> Result<(), Refusal> {
    let of_fault = |fault: Fault| Refusal::of_fault_for(&fault, name, route.info().compat);
    invoker.admit_before_body(route, head, Some(asked.from)).map_err(of_fault)?;
    if !rules::is_permitted(route.info().methods, head.method()) {
        return Err(rules::other_method(route.info().methods));
    }
    if let Some(broken) = broken {
        return Err(broken);
    }
    let limit_bytes = route.info().body_bytes_max;
    if asked.length.is_some_and(|length| length > limit_bytes) {
        return Err(Refusal::of_fault(&Fault::BodyTooLarge { limit_bytes }, name));
    }
    invoker.count(route, head, Some(asked.from)).map_err(of_fault)
}

/// The key that keeps a caller on one of several revisions, if the caller sent one.
fn split_key(head: &Head) -> Option<u64> {
    let (_, value) = headers(head.headers()).find(|(name, _)| *name == SPLIT_KEY)?;
    Some(sticky_key(value))
}
