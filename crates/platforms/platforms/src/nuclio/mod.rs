//! Nuclio: the dashboard's API for functions and their invocations.
//!
//! A client sends a function as one document that contains its source. The node builds the function
//! while the client polls. Callers reach the function through the dashboard or at the node's own front.
//! This module must not know the engine, the store, other platforms or the configuration. Start reading
//! at `functions.rs`.

mod building;
mod functions;
mod invoke;
mod projects;

use std::sync::Arc;

use crate::compat::access::{Gate, Rule, guard};
use crate::compat::node::{Api, Documents, Invocations, Managed};
use crate::compat::part::Part;
use crate::compat::refused::{RefusalForm, parse};
use crate::compat::{Bound, Stop};
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use serde_json::{Value, json};

use self::building::Building;

/// The platform's only namespace, and the project of a function that names none. A project with the
/// name of one of the node's namespaces contains the functions of that namespace. Any other project is
/// only a label.
const NAMESPACE: &str = "nuclio";
const PROJECT: &str = "default";
/// The label that names the project of a function.
const PROJECT_LABEL: &str = "nuclio.io/project-name";
/// The largest document of a function in bytes, including its source.
const DOCUMENT_BYTES_MAX: usize = 4 << 20;

/// The traits of a node that this API uses.
pub trait Node: Managed + Documents + Invocations {}

impl<N: Managed + Documents + Invocations> Node for N {}

pub type Context = crate::compat::Context<dyn Node>;

/// The state that the handlers share. The handlers may manage functions only through the [`Part`] of a
/// request.
#[derive(Clone)]
struct Dashboard {
    calls: Arc<dyn Invocations>,
    documents: Arc<dyn Documents>,
    stop: Stop,
    building: Arc<Building>,
}

/// Serves the dashboard's routes until the node stops.
pub async fn serve(bound: Bound, context: Context) {
    let app = routes(&context, Rule::without_credentials(bound.address().ip()));
    bound.serve(app, context.stop).await;
}

fn routes(context: &Context, rule: Rule) -> Router {
    let gate = Gate { node: context.node.clone(), rule, api: Some(Api::Nuclio) };
    let dashboard = Dashboard {
        calls: context.node.clone(),
        documents: context.node.clone(),
        stop: context.stop.clone(),
        building: Arc::default(),
    };
    let one = get(functions::one)
        .put(functions::update)
        .patch(functions::patch)
        .delete(functions::remove);
    let all = get(functions::all).post(functions::create).delete(functions::remove_named);
    Router::new()
        .route("/api/functions", all)
        .route("/api/functions/{name}", one)
        .route("/api/functions/{name}/replicas", get(functions::replicas))
        .route("/api/functions/{name}/logs/{replica}", get(functions::logs))
        .route(
            "/api/projects",
            get(projects::all).post(projects::create).delete(projects::remove_named),
        )
        .route(
            "/api/projects/{name}",
            get(projects::one).put(projects::update).delete(projects::remove),
        )
        .route("/api/versions", get(versions))
        .route("/api/external_ip_addresses", get(addresses))
        // These are resources that a node does not have.
        .route("/api/function_events", get(nothing))
        .route("/api/function_templates", get(nothing))
        .route("/api/api_gateways", get(nothing))
        .layer(DefaultBodyLimit::max(DOCUMENT_BYTES_MAX))
        .route("/api/function_invocations", any(invoke::run))
        .layer(from_fn_with_state(gate, guard))
        .route("/health", get(|| async { "OK" }))
        .with_state(dashboard)
}

async fn nothing() -> Json<Value> {
    Json(json!({}))
}

async fn versions() -> Json<Value> {
    let version = env!("CARGO_PKG_VERSION");
    let arch = std::env::consts::ARCH;
    Json(
        json!({ "dashboard": { "label": format!("mote {version}"), "arch": arch, "os": "linux" } }),
    )
}

async fn addresses() -> Json<Value> {
    Json(json!({ "externalIPAddresses": { "addresses": [] } }))
}

type Refused = crate::compat::refused::Refused<Form>;

/// The dashboard's form of an error: `{"error": …}`.
struct Form;

impl RefusalForm for Form {
    const AS_BAD_REQUEST: &'static [u16] = &[422];

    fn response(status: StatusCode, text: &str) -> Response {
        (status, Json(json!({ "error": text }))).into_response()
    }
}

fn unknown(name: &str) -> Refused {
    let shown = crate::compat::shown(name);
    Refused::new(StatusCode::NOT_FOUND, format!("function {shown} not found"))
}

/// Returns the part of the node for a project. A project with the name of a namespace means that
/// namespace, and any other project is only a label. The token of a namespace finds only the project
/// with the name of that namespace. Without a token, every project is a label, so that no answer
/// reveals which namespaces exist.
fn within(part: &Part, project: Option<&str>) -> Result<Part, Refused> {
    let Some(project) = project.filter(|_| part.has_token()) else { return Ok(part.clone()) };
    let is_namespace = part.is_confined() || part.is_namespace(project);
    let chosen = if is_namespace { part.of(Some(project)) } else { Ok(part.clone()) };
    chosen.map_err(|_| projects::not_found())
}

/// Returns a header field of the request as text. An empty field counts as absent.
fn field<'a>(fields: &'a HeaderMap, name: &str) -> Option<&'a str> {
    fields.get(name)?.to_str().ok().filter(|text| !text.is_empty())
}

/// For the fuzzer: the code that reads what clients send.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    use crate::compat::access::Rule;
    use crate::compat::fuzzing::Api;

    /// The API over a node.
    pub fn api(context: &crate::nuclio::Context) -> Api {
        Api::of(crate::nuclio::routes(context, Rule::Loopback))
    }
}
