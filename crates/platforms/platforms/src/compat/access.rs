//! Decides who may use a platform's management API. A client must send a token of the node whose role
//! permits the request, either as a bearer token or as the password of basic authentication. A platform
//! without authentication needs no credentials on loopback, but refuses requests that a web page makes
//! through a browser.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{Extensions, HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::Body as _;
use mote_api::Problem;
use mote_process::clock::unix_ms;
use mote_spec::fields::without_sessions;
use mote_tenants::operators::{Admitted, Begun, bearer, reads_only};

use crate::compat::call;
use crate::compat::connection::{self, Crowded};
use crate::compat::node::{Act, Admission, Api, Managed, Role, Scope};
use crate::compat::part::Part;

/// The longest credentials that are examined, in bytes. Longer ones are ignored.
const CREDENTIALS_BYTES_MAX: usize = 2_048;

/// The credentials that a platform's management API requires from its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    Token,
    /// No credentials are required, because the address is loopback and the platform's clients send
    /// none.
    Loopback,
}

impl Rule {
    /// Returns the rule at address `local` for a platform whose clients send no credentials.
    pub fn without_credentials(local: IpAddr) -> Self {
        if local.is_loopback() { Rule::Loopback } else { Rule::Token }
    }
}

/// Decides which management requests may reach an API's routes.
#[derive(Clone)]
pub struct Gate {
    /// The node that knows the tokens.
    pub node: Arc<dyn Managed>,
    pub rule: Rule,
    /// The platform's API, if its clients can name namespaces. At other APIs, the token of a namespace
    /// permits nothing.
    pub api: Option<Api>,
}

/// The sender of a permitted request, and the part of the node that the sender may manage. The part is
/// absent at an API whose clients cannot name namespaces.
pub struct Allowed {
    /// The sender's token; `None` if the request needs no token and has none.
    pub token: Option<Admitted>,
    pub part: Option<Part>,
}

impl Allowed {
    /// The sender's name in the record of management acts.
    pub fn name(&self) -> &str {
        self.token.as_ref().map_or(WITHOUT_TOKEN, |token| &token.name)
    }

    /// Notes the sender of a request on the connection of the request.
    pub fn note(&self, extensions: &Extensions) -> Result<(), Crowded> {
        match &self.token {
            Some(token) => connection::admitted(extensions, &token.name, token.is_operator),
            None => connection::called(extensions, false),
        }
    }
}

/// The reason for refusing a request.
#[derive(Debug)]
pub enum Denied {
    /// The token's name, and the reason why the token does not permit the request.
    NotPermitted(Arc<str>, String),
    NoToken,
    WrongToken,
    /// The sender's address has sent too many wrong tokens.
    TooManyTries,
}

impl Gate {
    /// Examines a request that needs a token. Only this function decides what a token permits at the
    /// API of another platform.
    pub fn allowed(
        &self,
        from: IpAddr,
        headers: &HeaderMap,
        method: &str,
        path: &str,
    ) -> Result<Allowed, Denied> {
        let token = token(headers);
        let reads_only = reads_only(method);
        let needed = Role::for_platform(reads_only);
        let (admission, scope) = self.node.admits(from, token.as_deref(), needed);
        let (name, other_role, token) = match admission {
            Admission::Admitted(token) => (token.name.clone(), None, Some(token)),
            Admission::OtherRole { name, role } => (name, Some(role), None),
            Admission::Refused if token.is_none() => return Err(Denied::NoToken),
            Admission::Refused => return Err(Denied::WrongToken),
            Admission::TooManyTries => return Err(Denied::TooManyTries),
        };
        let is_permitted = match self.api {
            Some(api) => api.permits(&scope, reads_only, path),
            None => scope == Scope::All,
        };
        let part = is_permitted.then(|| self.part(Some(scope))).and_then(Result::ok);
        let text = match (part, other_role) {
            (Some(part), None) => return Ok(Allowed { token, part }),
            // A different role would not help, because the token is for one namespace.
            (None, _) => {
                format!(
                    "M1408: the token {name} is for one namespace; this concerns the whole node"
                )
            }
            (_, Some(role)) => {
                format!("M1407: the token {name} has the role {role}, which does not permit this")
            }
        };
        Err(Denied::NotPermitted(name, text))
    }

    fn part(&self, scope: Option<Scope>) -> Result<Option<Part>, Problem> {
        self.api.map(|api| Part::new(self.node.clone(), api, scope)).transpose()
    }

    /// Examines a request that needs no token. If the request has credentials all the same, they must
    /// be valid, and they decide what is permitted. A call of a function is an exception: its
    /// credentials may be meant for the function.
    fn allowed_here(&self, from: IpAddr, request: &Request) -> Result<Allowed, Denied> {
        let method = request.method().as_str();
        let path = request.uri().path();
        let headers = request.headers();
        let is_examined = match path {
            CALLS => self.has_token(headers),
            _ => headers.get_all(header::AUTHORIZATION).iter().any(|field| !is_empty(field)),
        };
        if is_examined {
            return self.allowed(from, headers, method, path);
        }
        Ok(Allowed { token: None, part: self.part(None).ok().flatten() })
    }

    fn has_token(&self, headers: &HeaderMap) -> bool {
        let mut fields = headers.get_all(header::AUTHORIZATION).iter();
        fields.any(|field| self.scope_of(field).is_some())
    }

    fn scope_of(&self, field: &HeaderValue) -> Option<Scope> {
        self.node.scope_of(&token_in(field)?)
    }

    /// Returns the part of the node that the sender of a call may use. A call needs no token. If the
    /// call's credentials include a valid token of the node, the token determines the part, whatever
    /// the token's role is.
    pub fn caller(&self, headers: &HeaderMap) -> Result<Option<Part>, Problem> {
        let mut fields = headers.get_all(header::AUTHORIZATION).iter();
        self.part(fields.find_map(|field| self.scope_of(field)))
    }

    /// Removes the node's tokens and sessions from a request, because no function may see them. Other
    /// credentials stay, because they may be meant for the function.
    pub fn without_tokens(&self, headers: &mut HeaderMap) {
        let sent: Vec<_> = headers.get_all(header::COOKIE).iter().cloned().collect();
        headers.remove(header::COOKIE);
        for cookies in sent {
            let kept = without_sessions(cookies.as_bytes());
            if let Ok(kept) = HeaderValue::from_bytes(&kept)
                && !kept.is_empty()
            {
                headers.append(header::COOKIE, kept);
            }
        }
        if !self.has_token(headers) {
            return;
        }
        let fields = headers.get_all(header::AUTHORIZATION).iter();
        let kept = fields.filter(|field| self.scope_of(field).is_none()).cloned();
        let kept: Vec<HeaderValue> = kept.collect();
        headers.remove(header::AUTHORIZATION);
        for field in kept {
            headers.append(header::AUTHORIZATION, field);
        }
    }
}

/// Examines each management request before it reaches the routes behind this layer. Passes the request
/// on, or answers it with a refusal.
pub async fn guard(
    State(gate): State<Gate>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let refusal = match gate.rule {
        Rule::Loopback if led_by_a_page(headers) => Some(NO_PAGES),
        Rule::Loopback if came_by_a_proxy(headers) => Some(NO_PROXIES),
        Rule::Token if sends_stored_password(headers) => Some(NO_PAGES),
        _ => None,
    };
    if let Some(text) = refusal {
        return (StatusCode::FORBIDDEN, format!("{text}\n")).into_response();
    }
    let allowed = match gate.rule {
        Rule::Loopback => gate.allowed_here(from.ip(), &request),
        Rule::Token => {
            let method = request.method().as_str();
            let path = request.uri().path();
            gate.allowed(from.ip(), headers, method, path)
        }
    };
    match allowed {
        Ok(allowed) => {
            // A call without a token may carry the key of a function in its credentials.
            let is_call = allowed.token.is_none() && request.uri().path() == CALLS;
            if !is_call && let Err(crowded) = allowed.note(request.extensions()) {
                return crowded.into_response();
            }
            let act = act(allowed.name(), from, &request);
            gate.without_tokens(request.headers_mut());
            if let Some(part) = allowed.part {
                request.extensions_mut().insert(part);
            }
            recorded(&gate.node, (allowed.token, act), request, next).await
        }
        Err(Denied::NotPermitted(name, text)) => {
            if let Some(act) = act(&name, from, &request) {
                gate.node.record(act).await;
            }
            (StatusCode::FORBIDDEN, format!("{text}\n")).into_response()
        }
        Err(Denied::NoToken | Denied::WrongToken) => {
            let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"Restricted\"")];
            let text = "invalid credentials; the password is a token of the node, such as the one in admin.token\n";
            (StatusCode::UNAUTHORIZED, challenge, text).into_response()
        }
        Err(Denied::TooManyTries) => {
            let after = [(header::RETRY_AFTER, "60")];
            (StatusCode::TOO_MANY_REQUESTS, after, "too many wrong credentials\n").into_response()
        }
    }
}

/// The path at which clients call functions through a gated API.
const CALLS: &str = "/api/function_invocations";

/// The name in the record for a client that needs no token.
const WITHOUT_TOKEN: &str = "a program of this machine, without a token";

/// Runs a request for as long as its token is valid. A request that changes something is recorded
/// before its answer is sent.
pub async fn recorded(
    node: &Arc<dyn Managed>,
    (token, act): (Option<Admitted>, Option<Act>),
    request: Request,
    next: Next,
) -> Response {
    let of_node = node.clone();
    let left = move |act| drop(tokio::spawn(of_node.record(act)));
    let begun = act.map(|act| Begun::new(act, left));
    let response = match token {
        Some(token) => {
            let of_node = node.clone();
            let is_valid = move || of_node.is_valid(token.key);
            let answered = while_valid(is_valid, begun.is_some(), request, |it| next.run(it)).await;
            answered.unwrap_or_else(|| (StatusCode::UNAUTHORIZED, NOT_VALID).into_response())
        }
        None => next.run(request).await,
    };
    if let Some(act) = begun.and_then(|begun| begun.answered(response.status().as_u16())) {
        node.record(act).await;
    }
    response
}

/// How often the token of a long request is checked again.
const LOOK_EVERY: Duration = Duration::from_secs(1);

const NOT_VALID: &str = "the credentials are not valid any more\n";

/// Runs a request until its token is no longer valid, and then ends the answer. Returns `None` if the
/// answer had not begun by then. A change whose body has arrived is completed even if the token becomes
/// invalid.
pub async fn while_valid<F>(
    is_valid: impl Fn() -> bool + Send + 'static,
    is_change: bool,
    request: Request,
    run: impl FnOnce(Request) -> F,
) -> Option<Response>
where
    F: Future<Output = Response>,
{
    let mut ends: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
        while is_valid() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    });
    if is_change {
        if request.body().is_end_stream() {
            return Some(run(request).await);
        }
        let request = request.map(|body| call::until(body, ends, Arc::default()));
        return Some(run(request).await);
    }
    let response = tokio::select! {
        biased;
        response = run(request) => response,
        () = &mut ends => return None,
    };
    // An answer of known length ends without help, so it is not cut off.
    let is_whole = response.body().size_hint().exact().is_some();
    Some(match is_whole {
        true => response,
        false => response.map(|body| call::until(body, ends, Arc::default())),
    })
}

/// Returns the record of the change that a request makes, with the status of a refusal. Returns
/// `None` if the request changes nothing.
pub fn act(who: &str, from: SocketAddr, request: &Request) -> Option<Act> {
    let method = request.method().as_str();
    let path = request.uri().path();
    mote_tenants::operators::is_act(method, path).then(|| Act {
        at_unix_ms: unix_ms(),
        who: who.to_owned(),
        from: from.ip().to_canonical().to_string(),
        method: method.to_owned(),
        path: path.to_owned(),
        status: StatusCode::FORBIDDEN.as_u16(),
    })
}

/// The reason for refusing a web page's request at an API that requires no credentials.
pub const NO_PAGES: &str = "requests of web pages are refused";
const NO_PROXIES: &str = "requests that a proxy passes on are refused without credentials: on \
    an address that is not loopback, the API requires the token";

/// Returns whether a proxy on this machine forwarded the request. The request may then come from any
/// machine.
fn came_by_a_proxy(headers: &HeaderMap) -> bool {
    ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip"]
        .iter()
        .any(|name| headers.contains_key(*name))
}

/// Returns whether a browser may have added a stored password to a page's request. Once a user has
/// typed the password of basic authentication, the browser adds it to the requests of every page that
/// knows the address.
fn sends_stored_password(headers: &HeaderMap) -> bool {
    let is_basic = headers
        .get_all(header::AUTHORIZATION)
        .iter()
        .any(|field| field.as_bytes().get(..5).is_some_and(|it| it.eq_ignore_ascii_case(b"basic")));
    is_basic && names_a_page(headers)
}

/// Returns whether the browser's fields say that a page made this request, not the browser's user.
fn names_a_page(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN)
        || headers.get("sec-fetch-site").is_some_and(|site| site != "none")
}

/// Returns whether a browser sends this request for another site's page. Either the browser says so, or
/// the host name does not belong to this machine: a page can point its own domain name at loopback.
pub fn led_by_a_page(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    names_a_page(headers) || !is_loopback_name(host)
}

/// Returns whether a `Host` is a loopback address or `localhost`, with or without a port.
pub fn is_loopback_name(host: &str) -> bool {
    if let Ok(address) = host.parse::<SocketAddr>() {
        return address.ip().is_loopback();
    }
    let name = host.rsplit_once(':').map_or(host, |(name, port)| {
        if port.bytes().all(|byte| byte.is_ascii_digit()) { name } else { host }
    });
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.is_empty()
        || name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The token of a request, if it has exactly one `Authorization` field.
pub fn token(headers: &HeaderMap) -> Option<String> {
    let mut fields = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(field), None) = (fields.next(), fields.next()) else { return None };
    token_in(field)
}

/// Returns whether the field has neither a name nor a password. Clients send such a field if they have
/// no credentials.
fn is_empty(field: &HeaderValue) -> bool {
    let text = field.to_str().unwrap_or("-").trim();
    text.is_empty()
        || text.split_once(' ').is_some_and(|(scheme, rest)| {
            scheme.eq_ignore_ascii_case("basic") && rest.trim() == "Og=="
        })
}

/// The token in one `Authorization` field.
fn token_in(field: &HeaderValue) -> Option<String> {
    let field = field.to_str().ok().filter(|field| field.len() <= CREDENTIALS_BYTES_MAX)?;
    if let Some(token) = bearer(field) {
        return Some(token.trim().to_owned());
    }
    let (scheme, rest) = field.split_once(' ')?;
    let rest = rest.trim();
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(mote_core::base64::decode(rest.as_bytes())?).ok()?;
    // Any user name is accepted, because the holder of the token is the only user.
    decoded.split_once(':').map(|(_, password)| password.to_owned())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::time::Instant;

    use super::*;
    use crate::compat::fake::{Fake, TOKEN};

    #[test]
    fn names_of_this_machine() {
        for host in ["127.0.0.1:8080", "localhost", "LOCALHOST:80", "[::1]:8080", "127.0.0.9", ""] {
            assert!(is_loopback_name(host), "{host}");
        }
        for host in ["evil.example", "evil.example:8080", "10.0.0.1:80", "localhost.evil.example"] {
            assert!(!is_loopback_name(host), "{host}");
        }
    }

    #[test]
    fn what_a_page_or_a_proxy_sends_is_not_local() {
        let said = |fields: &[(&'static str, &'static str)]| {
            let fields = fields.iter().map(|(name, value)| {
                (header::HeaderName::from_static(name), header::HeaderValue::from_static(value))
            });
            let headers: HeaderMap = fields.collect();
            (led_by_a_page(&headers), came_by_a_proxy(&headers))
        };
        assert_eq!(said(&[("host", "localhost:8080")]), (false, false));
        assert_eq!(said(&[("host", "evil.example")]), (true, false));
        assert_eq!(said(&[("host", "localhost"), ("origin", "http://localhost")]), (true, false));
        for name in ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip"] {
            assert_eq!(said(&[("host", "localhost"), (name, "1")]), (false, true), "{name}");
        }
    }

    #[test]
    fn a_page_cannot_use_a_password_that_the_browser_keeps() {
        let sends = |authorization: &'static str, more: Option<(&'static str, &'static str)>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, header::HeaderValue::from_static(authorization));
            if let Some((name, value)) = more {
                headers.insert(name, header::HeaderValue::from_static(value));
            }
            sends_stored_password(&headers)
        };
        assert!(sends("Basic YWRtaW46czpj", Some(("origin", "http://evil.example"))));
        assert!(sends("basic YWRtaW46czpj", Some(("sec-fetch-site", "cross-site"))));
        assert!(!sends("Basic YWRtaW46czpj", None));
        assert!(!sends("Basic YWRtaW46czpj", Some(("sec-fetch-site", "none"))));
        assert!(!sends("Bearer abc", Some(("origin", "http://evil.example"))));
    }

    fn fields(values: &[&str]) -> HeaderMap {
        let values = values.iter().map(|value| value.parse().expect("a value"));
        values.map(|value| (header::AUTHORIZATION, value)).collect()
    }

    #[test]
    fn functions_see_no_token_of_the_node() {
        let node = Fake::new(|_| unreachable!("no function is called"));
        let gate = Gate { node: Arc::new(node), rule: Rule::Loopback, api: Some(Api::Nuclio) };
        let encoded = mote_core::base64::encode(format!("x:{TOKEN}").as_bytes());
        let bearer = &*format!("Bearer {TOKEN}");
        let basic = &*format!("basic {encoded}");
        let theirs = "Basic YWRtaW46czpj";
        let other = "Digest x";
        for (sent, kept) in [
            (&[][..], &[][..]),
            (&[bearer], &[]),
            (&[basic], &[]),
            (&[theirs, basic, bearer, other], &[theirs, other]),
            (&[theirs], &[theirs]),
        ] {
            let mut headers = fields(sent);
            let part = gate.caller(&headers).expect("a part").expect("the API has parts");
            assert_eq!(part.has_token(), sent.len() != kept.len(), "{sent:?}");
            gate.without_tokens(&mut headers);
            assert_eq!(headers, fields(kept), "{sent:?}");
        }
    }

    /// Runs a request whose token is revoked after ten seconds. The answer begins at once if `answers`
    /// is true, and never otherwise.
    async fn revoked(answers: bool, is_change: bool, body: axum::body::Body) -> (Duration, u16) {
        let since = Instant::now();
        let revoked = Arc::new(AtomicBool::new(false));
        let of_check = revoked.clone();
        let is_valid = move || !of_check.load(Ordering::Relaxed);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(10)).await;
            revoked.store(true, Ordering::Relaxed);
        });
        let run = move |request: Request| async move {
            if is_change {
                let read = axum::body::to_bytes(request.into_body(), 64).await;
                return if read.is_ok() { StatusCode::OK } else { StatusCode::BAD_REQUEST }
                    .into_response();
            }
            if !answers {
                std::future::pending::<()>().await;
            }
            let lines = futures_util::stream::pending::<Result<&str, Infallible>>();
            axum::body::Body::from_stream(lines).into_response()
        };
        let answer = while_valid(is_valid, is_change, Request::new(body), run).await;
        let status = answer.as_ref().map_or(401, |answer| answer.status().as_u16());
        if let Some(answer) = answer {
            let _ = axum::body::to_bytes(answer.into_body(), 64).await;
        }
        (since.elapsed(), status)
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_revoked_token_has_begun_ends() {
        let empty = axum::body::Body::empty;
        let never = || {
            axum::body::Body::from_stream(
                futures_util::stream::pending::<Result<&str, Infallible>>(),
            )
        };
        let late = Duration::from_secs(10)..Duration::from_secs(12);
        for (what, answers, is_change, body, status) in [
            ("a stream", true, false, empty(), 200),
            ("a long call", false, false, empty(), 401),
            ("a body that never arrives", false, true, never(), 400),
        ] {
            let (after, found) = revoked(answers, is_change, body).await;
            assert!(late.contains(&after), "{what}: {after:?}");
            assert_eq!(found, status, "{what}");
        }
        let (after, found) = revoked(false, true, empty()).await;
        assert!((after, found) == (Duration::ZERO, 200), "a change runs to its end: {after:?}");
    }

    #[test]
    fn credentials_on_loopback_must_be_valid() {
        let node = Fake::new(|_| unreachable!("no function is called"));
        let gate = Gate { node: Arc::new(node), rule: Rule::Loopback, api: Some(Api::Nuclio) };
        let allowed = |path: &str, sent: &[&str]| {
            let mut request = Request::new(axum::body::Body::empty());
            *request.uri_mut() = path.parse().expect("a path");
            *request.headers_mut() = fields(sent);
            gate.allowed_here(IpAddr::from([127, 0, 0, 1]), &request).is_ok()
        };
        let token = format!("Bearer {TOKEN}");
        for path in [CALLS, "/api/functions", "/api/functions/function_invocations"] {
            for sent in [&[][..], &["Basic Og=="], &[""]] {
                assert!(allowed(path, sent), "{path} {sent:?}");
            }
            for sent in
                [&["Bearer wrong"][..], &["Basic eDo="], &["Digest x"], &["Bearer a", "Bearer b"]]
            {
                assert_eq!(allowed(path, sent), path == CALLS, "{path} {sent:?}");
            }
            // The fake node's token permits no management.
            assert!(!allowed(path, &[&token]), "{path}");
            assert!(!allowed(path, &[&token, "Bearer a"]), "{path}");
        }
    }

    #[test]
    fn tokens() {
        let given = |values: &[&str]| token(&fields(values));
        assert_eq!(given(&["Bearer abc"]).as_deref(), Some("abc"));
        assert_eq!(given(&["Basic YWRtaW46czpj"]).as_deref(), Some("s:c")); // admin:s:c
        assert_eq!(given(&["Basic YWRtaW4="]), None);
        assert_eq!(given(&["Basic %%"]), None);
        assert_eq!(given(&["Bearer a", "Bearer b"]), None);
        assert_eq!(given(&["Digest x"]), None);
        assert_eq!(given(&[]), None);
    }
}
