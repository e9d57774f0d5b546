//! OpenFaaS: the API that `faas-cli` speaks, and the routes on which functions are called.
//!
//! This module was written from the MIT-licensed types of faas-provider and the behaviour of faas-cli.
//! Nothing is taken from the gateway or faasd. `image.rs` says which code an image means. This
//! module must not know the engine, the store, other platforms or the configuration. Start reading at
//! `routes`.

mod functions;
mod image;
mod invoke;
mod logs;
mod metrics;
mod secrets;
mod types;

use std::sync::Arc;

use crate::compat::access::{Gate, Rule, guard};
use crate::compat::node::{Api, Invocations, Managed, Secrets};
use crate::compat::part::Part;
use crate::compat::refused::{RefusalForm, parse};
use crate::compat::{Bound, Queue, Stop};
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Path, Query, Request};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};

use self::metrics::Metrics;

/// The name by which clients know the default namespace.
const NAMESPACE: &str = "openfaas-fn";
/// The largest body of a management request, which contains an environment, labels or a secret.
const MANAGEMENT_BYTES_MAX: usize = 1 << 20;

/// The traits of a node that this API uses.
pub trait Node: Managed + Invocations + Secrets {}

impl<N: Managed + Invocations + Secrets> Node for N {}

pub type Context = crate::compat::Context<dyn Node>;

/// The state that the handlers share. The handlers may manage functions only through the [`Part`] of a
/// request.
#[derive(Clone)]
struct Gateway {
    calls: Arc<dyn Invocations>,
    secrets: Arc<dyn Secrets>,
    queue: Queue,
    stop: Stop,
    metrics: Arc<Metrics>,
    /// Recognises the node's tokens among the credentials of calls, although calls need no token.
    gate: Gate,
    /// The rule for routes that need no token.
    open: Rule,
}

/// Serves the gateway's routes until the node stops.
pub async fn serve(bound: Bound, context: Context) {
    let app = routes(&context, Rule::without_credentials(bound.address().ip()));
    bound.serve(app, context.stop).await;
}

fn routes(context: &Context, open: Rule) -> Router {
    let gate = |rule| Gate { node: context.node.clone(), rule, api: Some(Api::OpenFaas) };
    let gateway = Gateway {
        calls: context.node.clone(),
        secrets: context.node.clone(),
        queue: context.queue.clone(),
        stop: context.stop.clone(),
        metrics: Arc::default(),
        gate: gate(open),
        open,
    };
    let metrics = Router::new()
        .route("/metrics", get(metrics::show))
        .layer(from_fn_with_state(gate(open), guard));
    let functions = get(functions::list)
        .post(functions::create)
        .put(functions::update)
        .delete(functions::remove);
    let secrets =
        get(secrets::list).post(secrets::create).put(secrets::update).delete(secrets::remove);
    Router::new()
        .route("/system/functions", functions)
        .route("/system/function/{name}", get(functions::describe))
        .route("/system/scale-function/{name}", post(functions::scale))
        .route("/system/info", get(info))
        .route("/system/logs", get(logs::read))
        .route("/system/secrets", secrets)
        .route("/system/namespaces", get(|part: Part| async move { Json(part.namespaces()) }))
        .route("/system/namespace/{name}", any(namespace))
        // faas-cli creates a namespace at this path, with the namespace's name in the body.
        .route("/system/namespace/", any(nameless))
        .route("/system/alert", post(|| async { StatusCode::OK }))
        .layer(DefaultBodyLimit::max(MANAGEMENT_BYTES_MAX))
        .layer(from_fn(in_namespace))
        .layer(from_fn_with_state(gate(Rule::Token), guard))
        // These routes need no credentials, because they only call functions.
        .route("/function/{name}", any(invoke::run))
        .route("/function/{name}/", any(invoke::run))
        .route("/function/{name}/{*path}", any(invoke::run))
        .route("/async-function/{name}", post(invoke::later))
        .route("/async-function/{name}/", post(invoke::later))
        .route("/async-function/{name}/{*path}", post(invoke::later))
        .route("/healthz", get(|| async { "OK" }))
        .merge(metrics)
        .layer(DefaultBodyLimit::disable())
        .with_state(gateway)
}

async fn info() -> Response {
    let version = serde_json::json!({
        "release": env!("CARGO_PKG_VERSION"),
        // `make build` sets this variable.
        "sha": option_env!("MOTE_COMMIT").unwrap_or("unknown"),
        "commit_message": "",
    });
    let info = serde_json::json!({
        "provider": { "provider": "mote", "version": version, "orchestration": "mote" },
        "version": version,
        "arch": std::env::consts::ARCH,
    });
    Json(info).into_response()
}

/// Answers requests that would change namespaces, which this API does not do.
fn not_managed_here() -> Response {
    let text = "namespaces are managed with mote namespace create, update and delete\n";
    (StatusCode::NOT_IMPLEMENTED, text).into_response()
}

async fn nameless(method: Method) -> Response {
    if method == Method::GET { StatusCode::NOT_FOUND.into_response() } else { not_managed_here() }
}

async fn namespace(Path(name): Path<String>, method: Method, part: Part) -> Response {
    if method != Method::GET {
        return not_managed_here();
    }
    if let Err(problem) = part.of(Some(&name)) {
        return Refused::from(problem).into_response();
    }
    let empty = serde_json::json!({});
    Json(serde_json::json!({ "name": name, "labels": empty, "annotations": empty })).into_response()
}

type Refused = crate::compat::refused::Refused<Form>;

/// The gateway's form of an error: a line of text.
struct Form;

impl RefusalForm for Form {
    // OpenFaaS answers 400 where the node answers with one of these statuses.
    const AS_BAD_REQUEST: &'static [u16] = &[409, 413, 422];

    fn response(status: StatusCode, text: &str) -> Response {
        let from = [("x-openfaas-internal", "mote")];
        (status, from, format!("{text}\n")).into_response()
    }
}

fn unknown(name: &str) -> Refused {
    let shown = crate::compat::shown(name);
    Refused::new(StatusCode::NOT_FOUND, format!("no function named {shown}"))
}

#[derive(serde::Deserialize)]
struct InNamespace {
    namespace: Option<String>,
}

/// Applies the namespace in the query of a management request, even if the request's route does not
/// read one.
async fn in_namespace(
    asked: Result<Query<InNamespace>, QueryRejection>,
    part: Part,
    mut request: Request,
    next: Next,
) -> Result<Response, Refused> {
    let Query(asked) = asked.map_err(|error| Refused::bad(error.body_text()))?;
    request.extensions_mut().insert(within(&part, asked.namespace.as_deref())?);
    Ok(next.run(request).await)
}

/// Returns the part of the node for the namespace in a request's query or body.
fn within(part: &Part, named: Option<&str>) -> Result<Part, Refused> {
    part.of(named).map_err(|problem| Refused::bad(crate::compat::words(&problem)))
}

/// Returns a function's name with its namespace, in the form that clients know.
fn with_namespace(function: &str) -> String {
    match function.contains('.') {
        true => function.to_owned(),
        false => format!("{function}.{NAMESPACE}"),
    }
}

/// Lets the fuzzer reach the code that reads what clients send.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    use crate::compat::access::Rule;
    use crate::compat::fuzzing::Api;
    use crate::compat::node::{Code, Function};

    /// The code that an image names.
    pub fn code(image: &str, has_process: bool, all: &[Function]) -> Result<Code, String> {
        crate::openfaas::image::code(image, has_process, all)
    }

    /// The API over a node.
    pub fn api(context: &crate::openfaas::Context) -> Api {
        Api::of(crate::openfaas::routes(context, Rule::Loopback))
    }
}
