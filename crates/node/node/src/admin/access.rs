//! Decides who may use the management API. On the Unix socket, these are root and the user that
//! runs the node; the kernel names the user of each connection. Over TCP, these are clients that
//! send a token whose role permits the request, and browsers with a session of the token's holder.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::Method;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use mote_api::{Problem, paths};
use mote_core::InvocationId;
use mote_journal::{Reader, problem_of};
use mote_platforms::compat::access::while_valid;
use mote_platforms::compat::{call, connection};
use mote_process::clock;
use mote_tenants::namespaces::{Change, Scope, View, no_such_invocation};
use mote_tenants::operators::{
    Act, Admission, Admitted, Begun, Credential, Maker, Role, Session, bearer, is_act, reads_only,
    user_name,
};

use super::caller::Caller;
use super::pages;
use super::refused::Refused;
use crate::{Node, operators};

/// The name of the object that a request created. If the path does not contain this name, the
/// handler adds the name to its answer, so that the record of acts can show it.
#[derive(Debug, Clone)]
pub(super) struct Made(pub(super) String);

const NOT_VALID: &str = "the token is not valid any more: it has expired or was revoked";

/// The view of the request's sender: what its short names mean, and what it may see. Every handler
/// behind [`check`] can take this as an argument.
#[derive(Clone)]
pub(super) struct Seen(pub(super) View);

impl<S: Sync> FromRequestParts<S> for Seen {
    type Rejection = Refused;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, Refused> {
        let seen = head.extensions.get::<Seen>().cloned();
        let missing = || Problem::new(500, "M0599", "the sender of the request is not known");
        seen.ok_or_else(|| Refused(missing()))
    }
}

/// Lets a request through or refuses it. This is the only place that expands the short names of a
/// namespace to full names, and that decides who may name what.
pub(crate) async fn check(
    State(node): State<Arc<Node>>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    request: Request,
    next: Next,
) -> Response {
    // At this point, the sender has nothing yet that could be examined.
    if request.method() == Method::POST && request.uri().path() == paths::SESSION {
        return next.run(request).await;
    }
    let mut request = request;
    let mut is_of_browser = false;
    let is_call = request.uri().path().ends_with("/invoke");
    let (who, key, denied) = match allowed(&node, caller, &request) {
        Ok(sender) => {
            is_of_browser = sender.session.is_some();
            let name = sender.name.to_string();
            let key = sender.key;
            let denied = within(&node, sender.scope.clone(), &mut request).await.err();
            request.extensions_mut().insert(sender);
            (Some(name), key, denied.map(Denied::from))
        }
        Err(denied) => (denied.who.clone(), None, Some(denied)),
    };
    let method = request.method().as_str();
    let path = request.uri().path();
    let act = who.filter(|_| is_act(method, path)).map(|who| Act {
        at_unix_ms: clock::unix_ms(),
        who,
        from: caller.from(),
        method: method.to_owned(),
        path: path.to_owned(),
        status: 0,
    });
    let of_node = node.clone();
    let left = move |act| drop(tokio::spawn(operators::record(&of_node.tenants.audit, act)));
    let begun = act.map(|act| Begun::new(act, left));
    let mut response = match denied {
        None => match key {
            Some(key) => {
                let of_node = node.clone();
                let is_valid = move || of_node.tenants.operators.is_valid(key);
                let is_change = begun.is_some() && !reads_only(request.method().as_str());
                let ran = while_valid(is_valid, is_change, request, |it| run(it, next)).await;
                ran.unwrap_or_else(|| {
                    Refused(Problem::new(401, "M1401", NOT_VALID)).into_response()
                })
            }
            None => run(request, next).await,
        },
        Some(Denied { problem, header, .. }) => {
            let mut response = Refused(problem).into_response();
            if let Some((name, value)) = header {
                response.headers_mut().insert(name, axum::http::HeaderValue::from_static(value));
            }
            response
        }
    };
    if is_of_browser {
        if is_call {
            pages::disarm(response.headers_mut());
        }
        pages::protect(response.headers_mut());
    }
    if let Some(mut act) = begun.and_then(|begun| begun.answered(response.status().as_u16())) {
        if let Some(Made(name)) = response.extensions().get() {
            act.path.push_str(&format!("/{name}"));
        }
        operators::record(&node.tenants.audit, act).await;
    }
    response
}

/// Checks the names in a request, and replaces short names in its path by full names.
async fn within(node: &Node, scope: Scope, request: &mut Request) -> Result<(), Problem> {
    let chosen = request.headers().get(paths::HEADER_NAMESPACE);
    let chosen = chosen.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let view = View::new(scope, chosen.as_deref());
    let method = request.method().as_str();
    let path = request.uri().path();
    let exists = |name: &str| node.tenants.namespaces.exists(name);
    let examined = mote_tenants::namespaces::examine(&view, method, path, exists)?;
    if let Some(text) = examined.invocation {
        let unknown = || no_such_invocation(&text);
        let id = InvocationId::from_text(&text).ok_or_else(unknown)?;
        let shown = node.accepted.journals.show(id).await;
        let shown = shown.map_err(|error| problem_of(&error, Reader::Owner))?;
        let seen = shown.is_some_and(|shown| view.shows(&shown.stored.function));
        seen.then_some(()).ok_or_else(unknown)?;
    }
    if let Some(path) = examined.path {
        let target = match request.uri().query() {
            Some(query) => format!("{path}?{query}"),
            None => path,
        };
        let wrong = |_| Problem::new(400, "M1403", "the path is not valid");
        *request.uri_mut() = target.parse().map_err(wrong)?;
    }
    if let Some(namespace) = examined.namespace.filter(|_| !reads_only(request.method().as_str())) {
        request.extensions_mut().insert(Arc::new(node.tenants.namespaces.change(&namespace)?));
    }
    request.extensions_mut().insert(Seen(view));
    Ok(())
}

/// Runs a request. A change in a namespace runs to its end even if its client disconnects, because
/// the removal of the namespace waits for the change. The removal does not wait for slow clients:
/// if a request body is not complete when the removal begins, the body is cut off.
async fn run(mut request: Request, next: Next) -> Response {
    let Some(change) = request.extensions_mut().remove::<Arc<Change>>() else {
        return next.run(request).await;
    };
    let answered = tokio::spawn(async move {
        let ended = Arc::new(AtomicBool::new(false));
        let request = request.map(|body| call::until(body, change.closed(), ended.clone()));
        let response = next.run(request).await;
        // A handler that receives only a part of a body may report a different error, so that error
        // is replaced.
        match ended.load(Ordering::Relaxed) && !response.status().is_success() {
            true => Err(change.refusal()),
            false => Ok(response),
        }
    });
    let failed = || Problem::new(500, "M0599", "the node could not make the change; see its log");
    match answered.await {
        Ok(result) => result.unwrap_or_else(|problem| Refused(problem).into_response()),
        Err(_) => Refused(failed()).into_response(),
    }
}

/// A request that is refused.
struct Denied {
    problem: Problem,
    header: Option<(&'static str, &'static str)>,
    /// The name of the sender, if it is known.
    who: Option<String>,
}

impl From<Problem> for Denied {
    fn from(problem: Problem) -> Self {
        Self { problem, header: None, who: None }
    }
}

/// The sender of a request that is let through. Handlers can take it as an extension.
#[derive(Clone)]
pub(super) struct Sender {
    pub(super) name: Arc<str>,
    scope: Scope,
    /// The owner of the rights that a session of this sender gets.
    pub(super) maker: Maker,
    /// The session to which the request belongs.
    pub(super) session: Option<Session>,
    /// The key of the token or session; `None` on the Unix socket.
    key: Option<Credential>,
}

/// The address of a client that may send a token or a session over this connection.
pub(super) fn address(node: &Node, caller: Caller) -> Result<IpAddr, Problem> {
    match caller {
        Caller::Local(_) => {
            let text = "the socket identifies you by your user id, so it needs no session";
            Err(Problem::new(403, "M1402", text))
        }
        // Without encryption, others on the network could read the token and everything that is
        // deployed.
        Caller::Remote(address, false) if !address.is_loopback() && !node.config.admin_plain => {
            let text = "the management API answers other machines over TLS only";
            Err(Problem::new(403, "M1406", text).with_hint(
                "use https:// instead of http://; for a network that others cannot read, start the \
                 node with --admin http://ADDRESS:PORT",
            ))
        }
        Caller::Remote(address, _) => Ok(address),
    }
}

pub(super) fn too_many_tries() -> Problem {
    Problem::new(429, "M1401", "too many wrong tokens from this address")
}

fn allowed(node: &Node, caller: Caller, request: &Request) -> Result<Sender, Denied> {
    let address = match caller {
        Caller::Local(Some(uid)) if uid == 0 || uid == node.tenants.uid => {
            let name = user_name(uid).into();
            let maker = Maker::User(uid);
            return Ok(Sender { name, scope: Scope::All, maker, session: None, key: None });
        }
        Caller::Local(_) => {
            let text = "only root and the user that runs the node may use this socket";
            return Err(Problem::new(403, "M1402", text).into());
        }
        Caller::Remote(..) => self::address(node, caller)?,
    };
    let query = request.uri().query().unwrap_or_default();
    if query.split('&').any(|pair| pair.starts_with("token=") || pair.starts_with("access_token="))
    {
        let text = "a token in a URL is written to logs: send it in Authorization";
        return Err(Problem::new(400, "M1403", text).into());
    }
    let mut headers = request.headers().get_all("authorization").iter();
    let given = match (headers.next(), headers.next()) {
        (Some(header), None) => header.to_str().ok().and_then(bearer),
        _ => None,
    };
    let reads_only = reads_only(request.method().as_str());
    let needed = Role::for_management(reads_only, request.uri().path());
    // A token takes precedence over a session, which a browser may have added by itself.
    let has_token = request.headers().contains_key("authorization");
    let secret = pages::secret(request.headers(), caller.is_encrypted()).filter(|_| !has_token);
    let session = secret.and_then(|secret| node.tenants.operators.session(secret, Instant::now()));
    let (admission, scope) = match &session {
        Some(session) => {
            let checked = pages::check(caller, request.method(), request.headers(), &session.csrf);
            if let Err(problem) = checked {
                let who = Some(session.full_name().to_string());
                return Err(Denied { problem, header: None, who });
            }
            (session.admission(needed), session.scope.clone())
        }
        None => node.tenants.operators.admits(address, given, needed),
    };
    match admission {
        Admission::Admitted(Admitted { name, is_operator, key }) => {
            // If the places for connections run out, the connections that end last are those of
            // senders who may manage the whole node.
            if connection::admitted(request.extensions(), &name, is_operator).is_err() {
                let text = format!("too many requests of the token {name}, or of all tokens, run");
                let problem = Problem::new(429, "M1409", text);
                let header = Some(("retry-after", "1"));
                let who = Some(name.to_string());
                return Err(Denied { problem, header, who });
            }
            let maker = match (key, &session) {
                (_, Some(session)) => session.maker,
                (Credential::Token(key), None) => Maker::Token(key),
                (Credential::Session(_), None) => unreachable!("a session has admitted itself"),
            };
            return Ok(Sender { name, scope, maker, session, key: Some(key) });
        }
        Admission::OtherRole { name, role } => {
            // No role would let this token make the request.
            let method = request.method().as_str();
            let path = request.uri().path();
            if let Some(problem) = mote_tenants::namespaces::outside(&scope, method, path) {
                return Err(Denied { problem, header: None, who: Some(name.to_string()) });
            }
            let text =
                format!("the token {name} has the role {role}; this needs the role {needed}");
            // The hint suggests a token for the namespace, because a token for the whole node would
            // permit more than its holder needs.
            let within = match &scope {
                Scope::Namespace(namespace) => format!(" --namespace {namespace}"),
                Scope::All => String::new(),
            };
            let problem = Problem::new(403, "M1407", text).with_hint(format!(
                "an operator makes one that may: mote token create NAME --role {needed}{within}"
            ));
            return Err(Denied { problem, header: None, who: Some(name.to_string()) });
        }
        Admission::TooManyTries => {
            return Err(Denied { header: Some(("retry-after", "60")), ..too_many_tries().into() });
        }
        Admission::Refused => {}
    }
    let text = match given {
        Some(_) => {
            "the token is not valid: it has expired, was revoked, or is not one of this node"
        }
        None if secret.is_some() => "the session has ended; begin another one",
        None => "the request contains no token: send Authorization: Bearer TOKEN",
    };
    let problem = Problem::new(401, "M1401", text)
        .with_hint(
            "put a token into MOTE_TOKEN, or name its file as token_file in nodes.toml; an operator \
             makes tokens with mote token create, and the file admin.token in the node's data folder \
             has one that may do everything",
        );
    Err(Denied { header: Some(("www-authenticate", "Bearer")), ..problem.into() })
}
