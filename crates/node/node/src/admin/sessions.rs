//! Routes about the sessions of browsers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use mote_api::sessions::{DASHBOARD, Session, SessionCode, SessionRequest};
use mote_api::{Problem, Timestamp, paths};
use mote_process::clock;
use mote_tenants::operators::{self, Act, CODE_LIFETIME, LogIn, Proof};

use super::access::{self, Sender};
use super::caller::Caller;
use super::pages;
use super::refused::Refused;
use crate::Node;
use crate::operators::record;
use crate::ports::reachable;

/// The longest body of a request for a session. The longest token has 1 KiB.
pub(super) const BODY_BYTES_MAX: usize = 4 << 10;

/// Begins a session. Anybody may ask, so everything is checked here.
pub(super) async fn begin(
    State(node): State<Arc<Node>>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refused> {
    let address = access::address(&node, caller)?;
    pages::check_host(caller, &headers)?;
    pages::check_site(&headers, false)?;
    pages::check_type(&headers)?;
    let wish: SessionRequest = serde_json::from_slice(&body)
        .map_err(|error| Problem::new(422, "M1403", format!("session: {error}")))?;
    let proof = match (&wish.token, &wish.code) {
        (Some(token), None) => Proof::Token(token),
        (None, Some(code)) => Proof::Code(code),
        _ => {
            let text = "session: send either a token or a code";
            return Err(Problem::new(422, "M1403", text).into());
        }
    };
    let begun = node.tenants.operators.log_in(address, proof, Instant::now());
    let (secret, session) = match begun.map_err(no_random_bits)? {
        LogIn::Begun { secret, session } => (secret, session),
        LogIn::Refused => return Err(wrong(&proof).into()),
        LogIn::TooManyTries => {
            let mut response = Refused(access::too_many_tries()).into_response();
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("60"));
            return Ok(response);
        }
    };
    let act = Act {
        at_unix_ms: clock::unix_ms(),
        who: session.full_name().to_string(),
        from: caller.from(),
        method: Method::POST.to_string(),
        path: paths::SESSION.to_owned(),
        status: StatusCode::OK.as_u16(),
    };
    record(&node.tenants.audit, act).await;
    let name = pages::cookie_name(&headers, caller.is_encrypted());
    let secure = if caller.is_encrypted() { "; Secure" } else { "" };
    let cookie = format!("{name}={secret}; Path=/; HttpOnly; SameSite=Strict{secure}");
    let fields = [(header::SET_COOKIE, cookie), (header::CACHE_CONTROL, "no-store".to_owned())];
    Ok((fields, Json(described(&session))).into_response())
}

fn wrong(proof: &Proof<'_>) -> Problem {
    match proof {
        Proof::Token(_) => {
            let text = "the token has expired, was revoked, or is not one of this node";
            Problem::new(401, "M1401", text)
                .with_hint("an operator makes one on the node: mote token create NAME --role ROLE")
        }
        Proof::Code(_) => {
            let text = "the code was used already, is older than a minute, or was made by a session that has ended";
            Problem::new(401, "M1401", text).with_hint("make a new one: mote dashboard")
        }
    }
}

fn described(session: &operators::Session) -> Session {
    Session {
        name: session.name.to_string(),
        role: session.role.as_str().to_owned(),
        namespace: session.scope.namespace().map(|name| name.to_string()),
        csrf: session.csrf.clone(),
    }
}

pub(super) async fn show(Extension(sender): Extension<Sender>) -> Result<Json<Session>, Refused> {
    Ok(Json(described(&sender.session.ok_or_else(no_session)?)))
}

pub(super) async fn end(
    State(node): State<Arc<Node>>,
    Extension(sender): Extension<Sender>,
) -> Result<StatusCode, Refused> {
    let session = sender.session.ok_or_else(no_session)?;
    node.tenants.operators.log_out(session.key);
    Ok(StatusCode::NO_CONTENT)
}

fn no_random_bits(error: std::io::Error) -> Problem {
    tracing::error!(%error, "cannot read random bits");
    Problem::new(500, "M0599", "the node could not make a session; see its log")
}

fn no_session() -> Problem {
    Problem::new(401, "M1401", "the request belongs to no session")
}

/// Makes a code with the rights of the sender. If a session asks for the code, then the code, and
/// the session that the code begins, end with that session at the latest.
pub(super) async fn code(
    State(node): State<Arc<Node>>,
    Extension(sender): Extension<Sender>,
) -> Result<Json<SessionCode>, Refused> {
    let opened = match node.addresses.admin {
        Some(address) => Ok(address),
        None => node.on_demand.address(&node.outgoing.open_ports).await,
    };
    let cannot = |error| Problem::new(500, "M0203", format!("no address for a browser: {error}"));
    let address = reachable(opened.map_err(cannot)?);
    let session = sender.session.map(|session| session.key);
    let made = node.tenants.operators.make_code(sender.maker, session, Instant::now());
    let code = made.map_err(no_random_bits)?;
    let lifetime_ms = u64::try_from(CODE_LIFETIME.as_millis()).unwrap_or(u64::MAX);
    Ok(Json(SessionCode {
        url: format!("{}://{address}{DASHBOARD}#code={code}", scheme(&node, address)),
        code,
        expires_at: Timestamp::from_unix_ms(clock::unix_ms() + lifetime_ms),
    }))
}

/// The scheme that the API accepts from this machine.
fn scheme(node: &Node, address: SocketAddr) -> &'static str {
    match address.ip().is_loopback() || node.config.admin_plain {
        true => "http",
        false => "https",
    }
}
