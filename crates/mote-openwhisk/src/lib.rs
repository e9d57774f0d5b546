//! OpenWhisk: the API that `wsk` speaks, and web actions.
//!
//! Written from descriptions of the documented API. Actions are functions of the node. This crate
//! stores as documents the platform's other data about them, and everything that is not a function
//! (sequences, triggers, rules, packages, activations). There is one namespace, `NAMESPACE`, which
//! `_` also denotes. This crate must not know the engine, the store, other platforms or the
//! configuration. Start reading at `routes`, then `entities.rs`, then `run.rs`.

mod accepted;
mod action_limits;
mod actions;
mod activations;
mod callers;
mod entities;
mod limits;
mod manifest;
mod packages;
mod refused;
mod run;
mod system;
mod triggers;
mod web;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use mote_api::Problem;
use mote_compat::node::{
    Access, Admission, Deploys, Documents, Functions, Invocations, Logs, Role,
};
use mote_compat::queue::Resumed;
use mote_compat::routing::{Routes, any, get, guarded, handled, limited};
use mote_compat::{Bound, access};
use mote_core::shares::Shares;
use serde_json::json;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::task::TaskTracker;

use self::activations::Activations;
use self::entities::Entities;
use self::limits::Limits;
pub use self::manifest::{Incoming, Manifests};
use self::refused::Refused;

/// The only namespace.
const NAMESPACE: &str = "guest";
/// Largest code of an action, as base64 in a request, and largest parameters and results.
const CODE_BYTES_MAX: usize = 48 << 20;
const PARAMETERS_BYTES_MAX: usize = 1 << 20;
/// Bytes of the bodies of web actions, which anyone may call, that are in memory until their
/// activations have ended; one address may use half. A call above the limit is answered 429.
const WEB_BODIES_BYTES_MAX: usize = 16 << 20;

/// The traits of a node that this API uses.
pub trait Node: Access + Deploys + Documents + Functions + Invocations + Logs {}

impl<N: Access + Deploys + Documents + Functions + Invocations + Logs> Node for N {}

/// The context of this API.
pub type Context = mote_compat::Context<dyn Node>;

/// The state that the handlers share.
#[derive(Clone)]
struct Whisk {
    context: Context,
    entities: Arc<Entities>,
    activations: Arc<Activations>,
    limits: Arc<Limits>,
    /// Bytes of the bodies of web actions that are in memory, by sender.
    bodies: Shares<IpAddr>,
    /// Running activations, whether or not a client waits for them.
    tasks: TaskTracker,
}

impl Whisk {
    /// Loads the data that the node stores for this API.
    async fn load(context: Context) -> Result<Self, Problem> {
        let entities = Arc::new(Entities::load(context.node.as_ref()).await?);
        let activations = Arc::new(Activations::load(context.node.as_ref()).await);
        let (limits, tasks) = (Arc::default(), TaskTracker::new());
        let bodies = Shares::new(WEB_BODIES_BYTES_MAX, WEB_BODIES_BYTES_MAX / 2);
        Ok(Self { context, entities, activations, limits, bodies, tasks })
    }
}

/// Serves the API until the node stops, and runs activations that were accepted before it started.
/// `manifests` are those that the node's owner applies.
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
    let (node, activations) = (context.node.clone(), whisk.activations.clone());
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
    let entity = |whisk: &Whisk| {
        let (actions, action) = (actions::list, actions::dispatch);
        Routes::new(whisk.clone())
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
            .route("/activations/{id}/{part}", get(activations::show_part))
            .router()
    };
    let managed = Routes::new(whisk.clone())
        .route(
            &format!("/namespaces/{}/actions/{{package}}/{{name}}", system::NAMESPACE),
            any(actions::dispatch_system),
        )
        .route("/namespaces", get(|| async { axum::Json([NAMESPACE]) }))
        .router()
        .nest("/namespaces/_", entity(&whisk))
        .nest(&format!("/namespaces/{NAMESPACE}"), entity(&whisk));
    let longest = DefaultBodyLimit::max(CODE_BYTES_MAX + PARAMETERS_BYTES_MAX);
    let managed = guarded(limited(managed, longest), &whisk, authorise);
    let web = Routes::new(whisk)
        .route("/web/{namespace}/{package}/{action}", any(web::run))
        .route("/web/{namespace}/{package}/{action}/{*path}", any(web::run))
        .with(|router| limited(router, DefaultBodyLimit::max(PARAMETERS_BYTES_MAX)))
        .router();
    Routes::new(())
        .route("/", get(info))
        .route("/api/v1", get(info))
        .router()
        .nest("/api/v1", managed.merge(web))
        .fallback(handled(|| async { Refused::not_found() }))
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
    axum::Json(json!({
        "description": "OpenWhisk API", "api_paths": ["/api/v1"], "runtimes": runtimes, "limits": limits,
        "support": { "github": "", "slack": "" },
    }))
    .into_response()
}

/// Lets a request through if it has the key.
async fn authorise(
    State(whisk): State<Whisk>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let needed = Role::for_platform(mote_compat::node::reads_only(request.method().as_str()));
    let node = &whisk.context.node;
    match holder(&whisk, from, request.headers(), needed) {
        Ok((name, None)) => access::recorded(node, &name, from, request, next).await,
        Ok((name, Some(role))) => {
            let act = access::act(&name, from, &request);
            let text = access::other_role(node, &name, role, act).await;
            Refused(StatusCode::FORBIDDEN, text).into_response()
        }
        Err(refused) => refused.into_response(),
    }
}

/// The name of the sender's token, and its role if that does not suffice.
fn holder(
    whisk: &Whisk,
    from: SocketAddr,
    headers: &HeaderMap,
    needed: Role,
) -> Result<(Arc<str>, Option<Role>), Refused> {
    let token = access::token(headers);
    let text = match whisk.context.node.admits(from.ip(), token.as_deref(), needed) {
        Admission::Admitted(name) => return Ok((name, None)),
        Admission::OtherRole { name, role } => return Ok((name, Some(role))),
        Admission::OtherScope { name } => {
            return Err(Refused(StatusCode::FORBIDDEN, access::other_scope(&name)));
        }
        Admission::Refused if token.is_none() => {
            "The resource requires authentication, which was not supplied with the request."
        }
        Admission::Refused => "The supplied authentication is invalid.",
        Admission::TooManyTries => {
            return Err(Refused(StatusCode::TOO_MANY_REQUESTS, "too many wrong keys".to_owned()));
        }
    };
    Err(Refused(StatusCode::UNAUTHORIZED, text.to_owned()))
}

/// The body of a request as an object; an empty body is an empty object.
fn object<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Refused> {
    let body = if body.is_empty() { &b"{}"[..] } else { body };
    serde_json::from_slice(body)
        .map_err(|error| Refused::bad(format!("The request content was malformed:\n{error}")))
}

/// For the fuzzer: the code that reads what clients send.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    use mote_compat::fuzzing::Api;

    /// The API over a node.
    pub async fn api(context: crate::Context) -> Api {
        Api::of(crate::routes(crate::Whisk::load(context).await.expect("kept entities")))
    }
}
