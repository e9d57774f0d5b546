//! Decides whether the sender of a request may run an action whose functions require keys.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::compat::call;
use crate::compat::part::Part;
use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mote_core::Fault;
use mote_core::invocation::headers;
use mote_core::place::Place;
use mote_spec::fields::is_set_by_node;

use super::entities::What;
use super::run::{self, Found};
use super::{Refused, Whisk};

/// The sender of a request: its method, header fields and address, and the part of the node that the
/// sender may manage.
pub(super) struct Sender {
    pub(super) part: Part,
    pub(super) method: Method,
    pub(super) fields: HeaderMap,
    pub(super) from: IpAddr,
}

impl<S: Send + Sync> FromRequestParts<S> for Sender {
    type Rejection = Response;

    async fn from_request_parts(head: &mut Parts, state: &S) -> Result<Self, Response> {
        let from = ConnectInfo::<SocketAddr>::from_request_parts(head, state).await;
        let ConnectInfo(from) = from.map_err(IntoResponse::into_response)?;
        let part = Part::from_request_parts(head, state).await;
        let part = part.map_err(IntoResponse::into_response)?;
        let method = head.method.clone();
        let fields = head.headers.clone();
        Ok(Self { part, method, fields, from: from.ip() })
    }
}

/// The header fields that may contain a key.
const KEY_FIELDS: [HeaderName; 2] = [header::AUTHORIZATION, HeaderName::from_static("x-api-key")];

/// Checks that the sender may run an action: a key must open every function of the action that requires
/// one, including the functions of a sequence. Returns the caller's name. Also adds the name to the
/// header fields and removes the key from them. The second result holds the sender's places at
/// functions that limit their calls at once.
pub(super) fn admit(
    whisk: &Whisk,
    found: &Found,
    fields: &mut HeaderMap,
    from: IpAddr,
) -> Result<(Option<String>, Vec<Place>), Fault> {
    let forged = fields.keys().filter(|name| is_set_by_node(name.as_str().as_bytes()));
    for name in forged.cloned().collect::<Vec<_>>() {
        fields.remove(name);
    }
    let mut caller = None;
    let mut used = Vec::new();
    let mut places = Vec::new();
    for function in functions(whisk, found) {
        let mut head = call::head("POST", "/", fields, &[]);
        whisk.context.node.admit(&function, &mut head, from)?;
        places.extend(head.take_place());
        let Some(name) = head.caller() else { continue };
        caller = Some(String::from_utf8_lossy(name).into_owned());
        let is_left = |field: &HeaderName| {
            headers(head.headers()).any(|(name, _)| name == field.as_str().as_bytes())
        };
        used.extend(KEY_FIELDS.into_iter().filter(|field| !is_left(field)));
    }
    for field in used {
        fields.remove(field);
    }
    if let Some(Ok(value)) = caller.as_deref().map(HeaderValue::from_str) {
        fields.insert(HeaderName::from_static("mote-caller"), value);
    }
    Ok((caller, places))
}

/// Returns the functions that an action may run.
fn functions(whisk: &Whisk, found: &Found) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut next = vec![found.clone()];
    while let Some(found) = next.pop() {
        match found.entity.what {
            What::Action { function, .. } if !function.is_empty() => drop(all.insert(function)),
            What::Sequence { components, .. } if seen.insert(found.name) => {
                next.extend(components.iter().filter_map(|name| run::find(whisk, None, name).ok()));
            }
            _ => {}
        }
    }
    all
}

/// Answers a caller that may not run an action.
pub(super) fn denied(fault: &Fault, action: &str) -> Response {
    let mut response = refused(fault, action).into_response();
    call::challenge(&mut response);
    response
}

/// Returns the refusal of a caller that may not run an action.
pub(super) fn refused(fault: &Fault, action: &str) -> Refused {
    let status = StatusCode::from_u16(fault.answer().http).unwrap_or(StatusCode::FORBIDDEN);
    Refused(status, fault.public_text(&crate::compat::shown(action)))
}
