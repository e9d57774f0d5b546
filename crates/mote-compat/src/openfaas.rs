//! OpenFaaS: the API that `faas-cli` speaks.

use axum::Router;
use axum::routing::get;

use crate::access::{self, Gate, Rule};
use crate::{Bound, Context};

/// Serves the gateway's routes until the node stops.
pub async fn serve(bound: Bound, context: Context) {
    let app = routes(&context);
    bound.serve(app, context).await;
}

fn routes(context: &Context) -> Router {
    let gate = Gate { context: context.clone(), rule: Rule::Token };
    Router::new()
        .route("/system/namespaces", get(|| async { axum::Json(["openfaas-fn"]) }))
        .layer(axum::middleware::from_fn_with_state(gate, access::check))
        .route("/healthz", get(|| async { "OK" }))
}
