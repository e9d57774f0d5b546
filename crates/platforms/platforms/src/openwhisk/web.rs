//! Web actions. Anyone may call them with any method, and the action's result determines the answer.

use std::net::{IpAddr, SocketAddr};

use crate::compat::call::{self, NotTaken, append, expect};
use crate::compat::connection;
use crate::compat::node::Space;
use axum::body::Body as HttpBody;
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_REQUEST_HEADERS,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use mote_core::base64;
use mote_core::body::Body;
use mote_core::invocation::Reply;
use mote_core::openwhisk_action as whisk;
use mote_core::shares::{Share, address_owner};
use mote_core::wire::Invoke;
use serde_json::{Map, Value};

use super::run::{self, Activation, Found, Patience};
use super::{NAMESPACE, NAMESPACES, PARAMETERS_BYTES_MAX, Refused, Whisk, callers, refused};

/// The ways to turn a result into an answer. The caller selects one by the extension of the action's
/// name.
const ENDINGS: [&str; 5] = ["http", "json", "html", "svg", "text"];

pub(super) async fn run(
    State(whisk): State<Whisk>,
    Path(parts): Path<Vec<(String, String)>>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    request: Request,
) -> Result<Response, Refused> {
    let (head, body) = request.into_parts();
    let part = |name: &str| {
        let found = parts.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value.as_str())
    };
    let caller = whisk.gate.caller(&head.headers).map_err(|_| Refused::not_found())?;
    let space = match (part("namespace"), caller) {
        (name, Some(own)) if own.is_confined() => {
            let chosen = own.of(Some(name).filter(|name| *name != "_"));
            chosen.map_err(|_| Refused::not_found())?.space().cloned()
        }
        (NAMESPACE | "_", _) => None,
        (name, _) => {
            let one = whisk.context.node.namespaces().get(name);
            let one = one.map_err(|_| Refused::not_found())?;
            Some(Space { name: name.into(), created_at_ms: one.created_at_ms })
        }
    };
    let (action, ending) = match part("action").rsplit_once('.') {
        Some((action, ending)) if ENDINGS.contains(&ending) => (action, ending),
        _ => (part("action"), "http"),
    };
    let name = match part("package") {
        "default" => action.to_owned(),
        package => format!("{package}/{action}"),
    };
    let found = run::find(&whisk, space.as_ref(), &name)?;
    let exported = found.entity.annotation("web-export") == Some(&Value::Bool(true));
    if !exported {
        return Err(Refused::not_found());
    }
    let path = match part("path") {
        "" => String::new(),
        path => format!("/{path}"),
    };
    if found.entity.annotation("web-custom-options") == Some(&Value::Bool(true)) {
        return invoked(&whisk, found, (head, body), from, (ending, &path)).await;
    }
    // Unless the action has this annotation, the platform lets scripts of every page call the action,
    // and answers the browser's preliminary requests itself.
    let fields = cors(&head.headers);
    let mut response = if head.method == Method::OPTIONS {
        StatusCode::OK.into_response()
    } else {
        let answered = invoked(&whisk, found, (head, body), from, (ending, &path)).await;
        answered.unwrap_or_else(IntoResponse::into_response)
    };
    for (name, value) in fields {
        // A browser rejects an answer in which such a field appears twice, so a field that the action
        // sets is kept.
        response.headers_mut().entry(name).or_insert(value);
    }
    Ok(response)
}

/// Returns the header fields that let scripts of other origins read an answer.
fn cors(request: &HeaderMap) -> [(HeaderName, HeaderValue); 3] {
    let asked = request.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let usual = HeaderValue::from_static(
        "Authorization, Origin, X-Requested-With, Content-Type, Accept, User-Agent",
    );
    let methods = HeaderValue::from_static("OPTIONS, GET, DELETE, POST, PUT, HEAD, PATCH");
    [
        (ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*")),
        (ACCESS_CONTROL_ALLOW_METHODS, methods),
        (ACCESS_CONTROL_ALLOW_HEADERS, asked.unwrap_or(usual)),
    ]
}

/// Invokes the action and converts the result to an answer.
async fn invoked(
    whisk: &Whisk,
    found: Found,
    (mut head, body): (Parts, HttpBody),
    from: SocketAddr,
    (ending, path): (&str, &str),
) -> Result<Response, Refused> {
    let space = found.space.clone();
    let keyed = authenticated(whisk, &found, from, &head.headers)?;
    whisk.gate.without_tokens(&mut head.headers);
    let (caller, _places) = match callers::admit(whisk, &found, &mut head.headers, from.ip()) {
        Ok(admitted) => admitted,
        Err(fault) => return Ok(callers::denied(&fault, &found.name)),
    };
    connection::called(&head.extensions, keyed || caller.is_some())?;
    let length = call::declared_length(&head.headers);
    let (body, _room) = received(whisk, body, length, from).await?;
    let query = head.uri.query().unwrap_or("");
    let payload = arguments(&found, head.method.as_str(), path, query, &head.headers, &body)?;
    let limits = whisk.limits.of(space.as_ref());
    let _place = if keyed {
        limits.invocation()?;
        limits.place()?
    } else {
        limits.keyless_invocation()?;
        limits.keyless_place()?
    };
    let payload = Value::Object(payload);
    let id = run::new_id(whisk);
    let activation = Activation { id, found, payload, cause: None, caller };
    let ended = run::activate(whisk, &activation, Patience::Refused).await?;
    let mut response = answer(ended.result(), ended.code(), ending, path)?;
    call::set(&mut response, "x-openwhisk-activation-id", &ended.id.to_string());
    Ok(response)
}

/// Receives the body of a request. Also returns the share of memory that the body uses.
async fn received(
    whisk: &Whisk,
    body: HttpBody,
    length: Option<u64>,
    from: SocketAddr,
) -> Result<(Vec<u8>, Share<IpAddr>), Refused> {
    let not_received = |not_taken| match not_taken {
        NotTaken::TooLong => {
            let text = "The entity size exceeds the maximum allowed size of 1 MB.".to_owned();
            Refused(StatusCode::PAYLOAD_TOO_LARGE, text)
        }
        NotTaken::NoRoom => {
            let text = "Too many bodies are being received; try again.".to_owned();
            Refused(StatusCode::TOO_MANY_REQUESTS, text)
        }
    };
    let mut stream = body.into_data_stream();
    let mut whole = Vec::new();
    let mut room = whisk.bodies.take(address_owner(from.ip()), 0).expect("nothing always fits");
    let length = length.map_or(0, |length| usize::try_from(length).unwrap_or(usize::MAX));
    expect(&mut whole, length, PARAMETERS_BYTES_MAX, &mut room).map_err(not_received)?;
    while let Some(piece) = stream.next().await {
        let broken = |_| Refused::bad("The request body was not received.");
        append(&mut whole, &piece.map_err(broken)?, PARAMETERS_BYTES_MAX, &mut room)
            .map_err(not_received)?;
    }
    Ok((whole, room))
}

/// Returns whether the sender has shown a key of the node that the action requires. Fails if that
/// key is missing, or if the action requires its own secret and the request does not contain that
/// secret.
fn authenticated(
    whisk: &Whisk,
    found: &Found,
    from: SocketAddr,
    fields: &HeaderMap,
) -> Result<bool, Refused> {
    let wanted = match found.entity.annotation("require-whisk-auth") {
        None | Some(Value::Null | Value::Bool(false)) => return Ok(false),
        Some(Value::Bool(true)) => return has_token(whisk, found, from, fields),
        Some(Value::String(word)) => word.clone(),
        Some(other) => other.to_string(),
    };
    let given = fields.get("x-require-whisk-auth").and_then(|value| value.to_str().ok());
    if given == Some(wanted.as_str()) {
        return Ok(false);
    }
    let text = "Authentication is possible but has failed or not yet been provided.";
    Err(Refused(StatusCode::UNAUTHORIZED, text.to_owned()))
}

/// Returns true if the request has a token that may invoke this action. Otherwise refuses the request.
fn has_token(
    whisk: &Whisk,
    found: &Found,
    from: SocketAddr,
    fields: &HeaderMap,
) -> Result<bool, Refused> {
    let path = format!("{NAMESPACES}/_/actions/{}", found.name);
    let allowed = whisk.gate.allowed(from.ip(), fields, "POST", &path);
    let is_foreign = allowed
        .map_err(refused)?
        .part
        .is_some_and(|own| own.is_confined() && own.space() != found.space.as_ref());
    if is_foreign { Err(Refused::not_found()) } else { Ok(true) }
}

fn arguments(
    found: &Found,
    method: &str,
    path: &str,
    query: &str,
    fields: &HeaderMap,
    body: &[u8],
) -> Result<Map<String, Value>, Refused> {
    let mut block = Vec::new();
    for (name, value) in fields {
        if name.as_str().as_bytes() != whisk::ACTIVATION {
            block.extend_from_slice(name.as_str().as_bytes());
            block.push(b'\n');
            block.extend_from_slice(value.as_bytes());
            block.push(b'\n');
        }
    }
    let raw = found.entity.annotation("raw-http") == Some(&Value::Bool(true));
    let request = Invoke {
        sent_ns: 0,
        id: 0,
        remaining_ms: 0,
        trigger: 1,
        method: method.as_bytes(),
        path: if path.is_empty() { b"/" } else { path.as_bytes() },
        query: if raw { b"" } else { query.as_bytes() },
        headers: &block,
        body: &[],
    };
    let malformed = |answer: whisk::Answer| {
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        Refused(StatusCode::from_u16(answer.status).unwrap_or(StatusCode::BAD_REQUEST), text)
    };
    let taken = if raw { &[][..] } else { body };
    let mut args = whisk::arguments(&request, taken, "{}").map_err(malformed)?;
    if raw {
        let text = std::str::from_utf8(body).map_or_else(|_| base64::encode(body), str::to_owned);
        args.insert("__ow_body".into(), text.into());
        args.insert("__ow_query".into(), query.into());
    }
    if found.entity.annotation("final") == Some(&Value::Bool(true))
        && args.keys().any(|key| found.parameters.contains_key(key))
    {
        return Err(Refused::bad(
            "Request defines parameters that are not allowed (e.g., reserved properties).",
        ));
    }
    Ok(args)
}

fn answer(result: &Value, code: u64, ending: &str, path: &str) -> Result<Response, Refused> {
    if ending == "http" || code != 0 {
        let answer = whisk::answer(result.to_string().as_bytes(), false);
        let body = Body::Whole(answer.body.into());
        let reply = Reply {
            status: answer.status,
            headers: answer.fields.into(),
            body,
            phases: Default::default(),
        };
        return Ok(call::response(reply));
    }
    // A path selects a part of the result. Without a path, the part is named after the extension,
    // except for `json`.
    let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    if parts.is_empty() && ending != "json" {
        parts.push(ending);
    }
    let mut part = result;
    for name in parts {
        part = part.get(name).ok_or_else(|| {
            let text = "The requested resource does not exist in the action's result.".to_owned();
            Refused(StatusCode::NOT_FOUND, text)
        })?;
    }
    if ending == "json" {
        return Ok(axum::Json(part.clone()).into_response());
    }
    let kind = match ending {
        "html" => "text/html; charset=UTF-8",
        "svg" => "image/svg+xml",
        _ => "text/plain; charset=UTF-8",
    };
    let text = part.as_str().map_or_else(|| part.to_string(), str::to_owned);
    let mut response = Response::new(HttpBody::from(text));
    call::set(&mut response, "content-type", kind);
    Ok(response)
}
