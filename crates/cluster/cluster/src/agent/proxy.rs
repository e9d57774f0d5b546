//! The agent's HTTP server: `/readyz` for the kubelet, and the cell's management API for the
//! controller, which authenticates with the key of the cluster.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bytes::Bytes;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use mote_api::client::Endpoint;
use tokio::net::UnixStream;

use super::Agent;
use crate::controller::pulse::{BEAT, PATH};
use crate::controller::{ADDRESS, LEASE};
use crate::keys::same;

/// The metrics of the agent itself. `/metrics` returns those of its cell.
const METRICS: &str = "/agent/metrics";

/// The agent, once it has reached its cell and the API server. The port answers before that,
/// because the kubelet must not restart the agent while one of them cannot be reached.
pub(super) type Later = Arc<OnceLock<Arc<Agent>>>;

pub(super) fn routes(agent: Later) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .fallback(forward)
        .with_state(agent)
}

async fn readyz(State(agent): State<Later>) -> Response {
    if agent.get().is_some_and(|agent| agent.is_synced()) {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, "the cell does not have all functions yet\n").into_response()
}

/// Forwards a request to the cell's management socket, if it comes from the controller.
async fn forward(State(agent): State<Later>, request: Request) -> Response {
    let Some(agent) = agent.get() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the agent is starting\n").into_response();
    };
    let shown = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|value| value.strip_prefix("Bearer "));
    let is_known = agent.key().zip(shown).is_some_and(|(key, shown)| same(&key, shown));
    if !is_known {
        return (StatusCode::UNAUTHORIZED, "show the key of the cluster\n").into_response();
    }
    if request.uri().path() == PATH {
        return pulse();
    }
    if request.uri().path() == METRICS {
        return metrics(agent);
    }
    // Functions, traffic and secrets can be changed only through the resources.
    let path = request.uri().path();
    let acts = request.method() == Method::POST
        && ["/invoke", "/scale", "/retry"].iter().any(|end| path.ends_with(end));
    let is_own = path.starts_with("/v1/kv/") || path.starts_with("/v1/invocations/");
    let is_letter = path.starts_with("/v1/dead-letters");
    if request.method() != Method::GET && !acts && !is_own && !is_letter {
        let text = "a cell is changed through the resources of its cluster\n";
        return (StatusCode::METHOD_NOT_ALLOWED, text).into_response();
    }
    match exchange(agent, request).await {
        Ok(response) => response,
        Err(reason) => (StatusCode::BAD_GATEWAY, format!("the cell: {reason}\n")).into_response(),
    }
}

/// Returns the metrics. A function counts as `failing` while its last attempt has failed.
fn metrics(agent: &Agent) -> Response {
    let state = |name: String| match agent.report.told(&name).error {
        Some(_) => "failing".to_owned(),
        None => "placed".to_owned(),
    };
    let cells = agent.cells.names().into_iter().map(|_| "known");
    agent.metrics.answer(agent.functions.names().into_iter().map(state), cells)
}

/// Sends a byte twice a second for as long as the client listens.
fn pulse() -> Response {
    let beats = futures_util::stream::unfold(tokio::time::interval(BEAT), |mut beat| async move {
        beat.tick().await;
        Some((Ok::<_, std::convert::Infallible>("."), beat))
    });
    Body::from_stream(beats).into_response()
}

async fn exchange(
    agent: &Agent,
    mut request: Request,
) -> Result<Response, Box<dyn std::error::Error + Send + Sync>> {
    request.headers_mut().remove("authorization");
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str()).to_owned();
    *request.uri_mut() = target.parse()?;
    let stream = UnixStream::connect(&agent.options.socket).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let response = sender.send_request(request).await?;
    Ok(response.map(Body::new))
}

/// Downloads an archive that is too large for its resource from the controller.
pub(super) async fn archive(agent: &Agent, digest: &str) -> Result<Bytes, String> {
    let leases: Api<Lease> =
        Api::namespaced(agent.client.clone(), &agent.options.place.system_namespace);
    let lease =
        leases.get(LEASE).await.map_err(|error| format!("the controller's lease: {error}"))?;
    let address = lease.metadata.annotations.and_then(|mut notes| notes.remove(ADDRESS));
    let address = address.ok_or("the controller has no address yet")?;
    let endpoint = Endpoint::parse(&format!("http://{address}"), agent.key())
        .map_err(|error| error.to_string())?;
    let path = format!("/v1/archives/{digest}");
    let answer = mote_api::Client::new(endpoint).bytes(&path).await;
    answer.map_err(|error| format!("the controller has no archive: {error}"))
}
