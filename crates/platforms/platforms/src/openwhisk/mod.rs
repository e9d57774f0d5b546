//! OpenWhisk: the API that `wsk` speaks, and web actions.
//!
//! This module was written from descriptions of the documented API. Actions are functions of the
//! node. The platform's other data about actions is stored as documents, and so are sequences,
//! triggers, rules, packages and activations. `NAMESPACE` is the default namespace of the node. The
//! node's other namespaces have only actions and activations (`spaces.rs`). In a path, `_` is the
//! namespace of the sender's token. This module must not know the engine, the store, other
//! platforms or the configuration. Start reading at `routes`, then `entities.rs`, then `run.rs`.

mod accepted;
mod action_limits;
mod actions;
mod activations;
mod callers;
mod entities;
mod id;
mod limits;
mod manifest;
mod not_run;
mod packages;
mod refused;
mod run;
mod spaces;
mod system;
mod triggers;
mod web;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::compat::access::{Denied, Gate, Rule};
use crate::compat::node::{Act, Api, Documents, Invocations, Managed};
use crate::compat::part::Part;
use crate::compat::queue::Resumed;
use crate::compat::{Bound, access};
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use mote_api::Problem;
use mote_core::shares::Shares;
use serde_json::json;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::task::TaskTracker;

use self::activations::Activations;
use self::entities::Entities;
use self::limits::AllLimits;
pub use self::manifest::{Incoming, Manifests};
use self::refused::Refused;

/// The name by which clients know the default namespace.
const NAMESPACE: &str = "guest";
/// Requests below this path need a token.
const NAMESPACES: &str = "/api/v1/namespaces";
/// The largest code of an action, as base64 in a request, and the largest parameters and results.
const CODE_BYTES_MAX: usize = 48 << 20;
const PARAMETERS_BYTES_MAX: usize = 1 << 20;
/// The most bytes that the bodies of web actions may use in memory until their activations have ended.
/// There is a limit because anyone may call web actions. One address may use half. A call above the
/// limit is answered 429.
const WEB_BODIES_BYTES_MAX: usize = 16 << 20;

/// The traits of a node that this API uses.
pub trait Node: Managed + Documents + Invocations {}

impl<N: Managed + Documents + Invocations> Node for N {}

pub type Context = crate::compat::Context<dyn Node>;

/// The state that the handlers share.
#[derive(Clone)]
struct Whisk {
    context: Context,
    gate: Gate,
    entities: Arc<Entities>,
    activations: Arc<Activations>,
    limits: Arc<AllLimits>,
    /// The memory used by the bodies of web actions, by sender.
    bodies: Shares<IpAddr>,
    /// The running activations, including those for which no client waits.
    tasks: TaskTracker,
}

impl Whisk {
    /// Loads the data that the node stores for this API.
    async fn load(context: Context) -> Result<Self, Problem> {
        let entities = Arc::new(Entities::load(context.node.as_ref()).await?);
        let activations = Arc::new(Activations::load(context.node.as_ref()).await);
        let limits = Arc::default();
        let tasks = TaskTracker::new();
        let bodies = Shares::new(WEB_BODIES_BYTES_MAX, WEB_BODIES_BYTES_MAX / 2);
        let gate =
            Gate { node: context.node.clone(), rule: Rule::Token, api: Some(Api::OpenWhisk) };
        Ok(Self { context, gate, entities, activations, limits, bodies, tasks })
    }
}

/// Serves the API until the node stops. Also runs the activations that an earlier run of the node
/// accepted. `manifests` receives the manifests that the node's owner applies.
pub async fn serve(
    bound: Bound,
    context: Context,
    resumed: UnboundedReceiver<Resumed>,
    manifests: Incoming,
) {
    let whisk = match Whisk::load(context.clone()).await {
        Ok(whisk) => whisk,
        Err(problem) => {
            tracing::error!(%problem.detail, "cannot read the entities of OpenWhisk's API");
            return;
        }
    };
    let node = context.node.clone();
    let activations = whisk.activations.clone();
    let resuming = async {
        tokio::select! {
            () = accepted::resume(&whisk, resumed) => {}
            () = context.stop.stopped() => {}
        }
    };
    let serving = async {
        let applying = manifests.serve(whisk.clone());
        tokio::join!(bound.serve(routes(whisk.clone()), context.stop.clone()), resuming, applying);
        whisk.tasks.close();
        whisk.tasks.wait().await;
    };
    tokio::select! {
        () = serving => {}
        () = activations.keep(node.as_ref()) => {}
    }
    activations.write(node.as_ref()).await;
}

fn routes(whisk: Whisk) -> Router {
    let actions = actions::list;
    let action = actions::dispatch;
    let entities = Router::new()
        .route("/actions", get(actions))
        .route("/actions/{name}", any(action))
        .route("/actions/{package}/{name}", any(actions::dispatch_in_package))
        .route("/packages", get(packages::list))
        .route("/packages/{name}", any(packages::dispatch))
        .route("/triggers", get(triggers::list))
        .route("/triggers/{name}", any(triggers::dispatch))
        .route("/rules", get(triggers::list_rules))
        .route("/rules/{name}", any(triggers::dispatch_rule))
        .route("/activations", get(activations::list))
        .route("/activations/{id}", get(activations::show))
        .route("/activations/{id}/{part}", get(activations::show_part));
    let longest = DefaultBodyLimit::max(CODE_BYTES_MAX + PARAMETERS_BYTES_MAX);
    let managed = Router::new()
        .route(
            &format!("{NAMESPACES}/{}/actions/{{package}}/{{name}}", system::NAMESPACE),
            any(actions::dispatch_system),
        )
        .route(NAMESPACES, get(|part: Part| async move { Json(part.namespaces()) }))
        .nest(&format!("{NAMESPACES}/_"), entities)
        .layer(longest);
    let web = Router::new()
        .route("/web/{namespace}/{package}/{action}", any(web::run))
        .route("/web/{namespace}/{package}/{action}/{*path}", any(web::run))
        .layer(DefaultBodyLimit::max(PARAMETERS_BYTES_MAX));
    let all = Router::new()
        .route("/", get(info))
        .route("/api/v1", get(info))
        .nest("/api/v1", web)
        .merge(managed)
        .fallback(|| async { Refused::not_found() })
        .with_state(whisk.clone());
    // This layer must run before the routes, because it changes paths.
    Router::new().fallback_service(all).layer(from_fn_with_state(whisk, authorise))
}

async fn info() -> Response {
    let kind = |kind: &str, main: &str| json!({ "kind": kind, "default": true, "requireMain": !main.is_empty() });
    let runtimes = json!({
        "nodejs": [kind("nodejs:20", "")], "python": [kind("python:3", "")], "go": [kind("go:1", "")],
        "blackbox": [kind("blackbox", "")],
    });
    let limits = json!({
        "actions_per_minute": limits::INVOCATIONS_PER_MINUTE, "triggers_per_minute": limits::FIRES_PER_MINUTE,
        "concurrent_actions": limits::CONCURRENT, "sequence_length": run::SEQUENCE_MAX,
        "max_action_duration": action_limits::TIMEOUT_MS_MAX, "max_action_memory": action_limits::MEMORY_MIB_MAX << 20,
    });
    Json(json!({
        "description": "OpenWhisk API", "api_paths": ["/api/v1"], "runtimes": runtimes, "limits": limits,
        "support": { "github": "", "slack": "" },
    }))
    .into_response()
}

/// Lets a request through if its key permits it.
async fn authorise(
    State(whisk): State<Whisk>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    if !path.starts_with(NAMESPACES) {
        // These are the routes that need no key, and web actions, which check keys themselves.
        return next.run(request).await;
    }
    let method = request.method().as_str();
    let mut allowed = match whisk.gate.allowed(from.ip(), request.headers(), method, path) {
        Ok(allowed) => allowed,
        Err(denied) => {
            if let Denied::NotPermitted(name, _) = &denied
                && let Some(act) = access::act(name, from, &request)
            {
                whisk.gate.node.record(act).await;
            }
            return refused(denied).into_response();
        }
    };
    if let Err(crowded) = allowed.note(request.extensions()) {
        return Refused::from(crowded).into_response();
    }
    let act = access::act(allowed.name(), from, &request);
    let part = allowed.part.take().expect("the API has parts");
    match within(part, &request) {
        Ok((part, path)) => {
            if let Some(path) = path {
                *request.uri_mut() = path;
            }
            request.extensions_mut().insert(part);
            access::recorded(&whisk.gate.node, (allowed.token, act), request, next).await
        }
        Err(response) => {
            if let Some(act) = act {
                let status = response.status().as_u16();
                whisk.gate.node.record(Act { status, ..act }).await;
            }
            *response
        }
    }
}

/// Returns the part for the namespace that a path names. Also returns the path with `_` in place of the
/// namespace, because the routes know only `_`.
fn within(part: Part, request: &Request) -> Result<(Part, Option<Uri>), Box<Response>> {
    let path = request.uri().path();
    let query = request.uri().query().unwrap_or_default();
    let named = path.strip_prefix(NAMESPACES).and_then(|rest| rest.strip_prefix('/'));
    let (named, below) = match named.map(|rest| rest.split_once('/').unwrap_or((rest, ""))) {
        Some((named, below)) if named != system::NAMESPACE => (named, below),
        _ => return Ok((part, None)),
    };
    let refuse = |refused: Refused| Box::new(refused.into_response());
    let chosen = if named == "_" { Ok(part) } else { part.of(Some(named)) };
    let part = chosen.map_err(|_| refuse(Refused::not_found()))?;
    let kinds: Vec<&str> = below.split('/').collect();
    if part.namespace().is_some() {
        match kinds[..] {
            ["actions" | "activations"] | ["actions", _] | ["activations", _, ..] => {}
            ["packages" | "triggers" | "rules"] if request.method() == Method::GET => {
                return Err(Box::new(Json::<[(); 0]>([]).into_response()));
            }
            _ => return Err(refuse(spaces::only_actions(part.shown()))),
        }
    }
    let path = format!("{NAMESPACES}/_/{below}?{query}");
    let path = path.parse().map_err(|_| refuse(Refused::not_found()))?;
    Ok((part, Some(path)))
}

/// Makes the refusal of a request whose key does not permit it.
fn refused(denied: Denied) -> Refused {
    let (status, text) = match denied {
        Denied::NotPermitted(_, text) => return Refused(StatusCode::FORBIDDEN, text),
        Denied::NoToken => (
            StatusCode::UNAUTHORIZED,
            "The resource requires authentication, which was not supplied with the request.",
        ),
        Denied::WrongToken => (StatusCode::UNAUTHORIZED, "The supplied authentication is invalid."),
        Denied::TooManyTries => (StatusCode::TOO_MANY_REQUESTS, "too many wrong keys"),
    };
    Refused(status, text.to_owned())
}

/// Parses the body of a request as an object. An empty body counts as an empty object.
fn object<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Refused> {
    let body = if body.is_empty() { &b"{}"[..] } else { body };
    serde_json::from_slice(body)
        .map_err(|error| Refused::bad(format!("The request content was malformed:\n{error}")))
}

/// Lets the fuzzer reach the code that reads what clients send.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    use crate::compat::fuzzing::Api;

    /// The API over a node.
    pub async fn api(context: crate::openwhisk::Context) -> Api {
        Api::of(crate::openwhisk::routes(
            crate::openwhisk::Whisk::load(context).await.expect("kept entities"),
        ))
    }
}
