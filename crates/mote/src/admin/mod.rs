//! The management API: who may use it, and what each route does.
//!
//! It runs on its own thread and runtime, so that deploys and scrapes never sit between two
//! requests of the data path.

mod access;
mod functions;
mod logs;
mod node_routes;
mod openwhisk;
mod rollout;
mod scale;
mod secrets;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use mote_api::{Problem, paths};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

pub(crate) use access::Token;

use crate::node::Node;

/// An error as an HTTP answer.
pub(crate) struct Refused(pub(crate) Problem);

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::BAD_REQUEST);
        let fault = self.0.code.clone();
        let body = serde_json::to_string(&self.0).unwrap_or_default();
        let headers =
            [("content-type", "application/problem+json".to_owned()), (paths::HEADER_FAULT, fault)];
        (status, headers, body).into_response()
    }
}

fn routes(node: Arc<Node>) -> Router {
    Router::new()
        .route(paths::STATUS, get(node_routes::status))
        .route(paths::DOCTOR, get(node_routes::doctor))
        .route(paths::OPENAPI, get(node_routes::openapi))
        .route(paths::METRICS, get(node_routes::metrics))
        .route(paths::FUNCTIONS, get(functions::list))
        .route(
            paths::FUNCTION,
            get(functions::describe).put(functions::deploy).delete(functions::remove),
        )
        .route(paths::REVISIONS, get(rollout::revisions))
        .route(paths::TRAFFIC, put(rollout::traffic))
        .route(paths::ROLLBACK, post(rollout::rollback))
        .route(paths::INVOKE, post(functions::invoke))
        .route(paths::SCALE, post(scale::scale))
        .route(paths::LOGS, get(logs::read))
        .route(paths::OPENWHISK, put(openwhisk::apply))
        .route(paths::SECRETS, get(secrets::list))
        .route(paths::SECRET, put(secrets::put).delete(secrets::remove))
        // Uploads are bounded by the archive's own limits, bodies by their function's.
        .layer(DefaultBodyLimit::disable())
        .with_state(node.clone())
        .fallback(no_such_route)
        .method_not_allowed_fallback(no_such_method)
        .layer(axum::middleware::from_fn_with_state(node.clone(), access::check))
        // Health is answered without credentials: it tells nothing but that the node lives.
        .route(paths::LIVEZ, get(|| async { "ok\n" }))
        .route(paths::READYZ, get(node_routes::readyz).with_state(node))
}

/// A client that goes away must not leave a change half-way: it runs to its end by itself.
async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Refused> {
    let failed = |_| Problem::new(500, "M0599", "the node failed to make a change; see its log");
    Ok(tokio::spawn(work).await.map_err(failed)??)
}

async fn no_such_route() -> Refused {
    Problem::new(404, "M1404", "no such address in the management API")
        .with_hint("see GET /v1/openapi.json")
        .into()
}

async fn no_such_method() -> Refused {
    Problem::new(405, "M1404", "this address does not offer that method")
        .with_hint("see GET /v1/openapi.json")
        .into()
}

/// Serves the API on its sockets until `stop` turns true.
pub(crate) async fn serve(
    node: Arc<Node>,
    socket: UnixListener,
    tcp: Option<TcpListener>,
    stop: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let app = routes(node);
    let stopped = |mut stop: watch::Receiver<bool>| async move {
        // An error says that the sender is gone, which is a stop as well.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    let unix =
        axum::serve(socket, app.clone().into_make_service_with_connect_info::<access::Caller>())
            .with_graceful_shutdown(stopped(stop.clone()));
    match tcp {
        Some(tcp) => {
            let tcp = axum::serve(tcp, app.into_make_service_with_connect_info::<access::Caller>())
                .with_graceful_shutdown(stopped(stop));
            tokio::try_join!(async { unix.await }, async { tcp.await })?;
        }
        None => unix.await?,
    }
    Ok(())
}
