//! Nuclio: the API of its dashboard, for functions and their invocations.
//!
//! A function arrives as one document that contains its source. The node builds it while the client
//! polls, and callers reach it through the dashboard or at the node's own front. This module must
//! not know the engine, the store, other platforms or the configuration. Start reading at
//! `functions.rs`.

mod building;
mod functions;
mod invoke;
mod projects;

use std::sync::Arc;

use crate::compat::access::{Gate, Rule};
use crate::compat::node::{Api, Documents, Invocations, Managed};
use crate::compat::part::Part;
use crate::compat::refused::{RefusalForm, parse};
use crate::compat::routing::{Routes, any, get, limited};
use crate::compat::{Bound, Stop};
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde_json::{Value, json};

use self::building::Building;

/// The only namespace of the platform, and the project of functions that name none. A project that is
/// a namespace of the node holds the functions of that; any other one is a label.
const NAMESPACE: &str = "nuclio";
const PROJECT: &str = "default";
/// The label that names the project of a function.
const PROJECT_LABEL: &str = "nuclio.io/project-name";
/// Largest document of a function, its source included.
const DOCUMENT_BYTES_MAX: usize = 4 << 20;

/// The traits of a node that this API uses.
pub trait Node: Managed + Documents + Invocations {}

impl<N: Managed + Documents + Invocations> Node for N {}

pub type Context = crate::compat::Context<dyn Node>;

/// The state that the handlers share. They manage functions through the [`Part`] of a request only.
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
    Routes::new(dashboard)
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
        // Resources that a node does not have.
        .route("/api/function_events", get(nothing))
        .route("/api/function_templates", get(nothing))
        .route("/api/api_gateways", get(nothing))
        .with(|router| limited(router, DefaultBodyLimit::max(DOCUMENT_BYTES_MAX)))
        .route("/api/function_invocations", any(invoke::run))
        .with(|router| gate.guard(router))
        .route("/health", get(|| async { "OK" }))
        .router()
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

/// `{"error": …}`, as the dashboard answers.
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

/// The part of the node that a project is. A project that is no namespace is a label, except for a
/// token of a namespace, which knows the project with the name of that only. Without a token, every
/// project is a label, so that no answer tells which namespaces there are.
fn within(part: &Part, project: Option<&str>) -> Result<Part, Refused> {
    let Some(project) = project.filter(|_| part.has_token()) else { return Ok(part.clone()) };
    let is_namespace = part.is_confined() || part.is_namespace(project);
    let chosen = if is_namespace { part.of(Some(project)) } else { Ok(part.clone()) };
    chosen.map_err(|_| projects::not_found())
}

/// A field of the request as text; an empty field counts as absent.
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
