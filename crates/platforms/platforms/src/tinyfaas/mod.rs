//! tinyFaaS: its management API, and its fronts over HTTP, CoAP and gRPC.
//!
//! All three fronts are the node's own. The HTTP and CoAP fronts use a [`TinyFaasFront`], which gives
//! each call and answer tinyFaaS' form. The gRPC front uses a [`GrpcFront`]. This module must not know
//! the engine, the store, other platforms or the configuration. Start reading at `front.rs`.

mod context;
mod front;
mod grpc;
mod management;

use crate::compat::Bound;
use crate::compat::access::{Gate, Rule, guard};
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::any;

pub use context::{Context, Ports};
pub use front::{Route, TinyFaasFront};
pub use grpc::{GrpcFront, Method};

/// Serves the management API until the node stops.
pub async fn serve(bound: Bound, context: Context, ports: Ports) {
    let app = routes(&context, Rule::without_credentials(bound.address().ip()), ports);
    bound.serve(app, context.stop).await;
}

fn routes(context: &Context, rule: Rule, ports: Ports) -> Router {
    let gate = Gate { node: context.node.clone(), rule, api: None };
    let manager = management::Manager::new(context.clone(), ports);
    Router::new()
        .route("/upload", any(management::upload))
        .route("/uploadURL", any(management::upload_url))
        .route("/delete", any(management::delete))
        .route("/list", any(management::list))
        .route("/wipe", any(management::wipe))
        .route("/logs", any(management::logs))
        .layer(DefaultBodyLimit::max(management::BODY_BYTES_MAX))
        .layer(from_fn_with_state(gate, guard))
        .with_state(manager)
}

/// Lets the fuzzer reach the code that reads what clients send.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    use crate::compat::access::Rule;
    use crate::compat::fuzzing::Api;

    pub use crate::tinyfaas::grpc::{read as grpc, written as grpc_written};

    /// The management API over a node.
    pub fn api(context: &crate::tinyfaas::Context) -> Api {
        Api::of(crate::tinyfaas::routes(context, Rule::Loopback, crate::tinyfaas::Ports::default()))
    }
}
