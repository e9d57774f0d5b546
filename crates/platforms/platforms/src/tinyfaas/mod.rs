//! tinyFaaS: its management API, and its fronts over HTTP, CoAP and gRPC.
//!
//! All three are the node's own fronts: HTTP and CoAP over a [`TinyFaasFront`], which gives each
//! call and answer tinyFaaS' form, and gRPC over a [`GrpcFront`]. This module must not know the
//! engine, the store, other platforms or the configuration. Start reading at `front.rs`.

mod context;
mod front;
mod grpc;
mod management;

use crate::compat::Bound;
use crate::compat::access::{Gate, Rule};
use crate::compat::routing::{Routes, any, limited};
use axum::Router;
use axum::extract::DefaultBodyLimit;

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
    Routes::new(manager)
        .route("/upload", any(management::upload))
        .route("/uploadURL", any(management::upload_url))
        .route("/delete", any(management::delete))
        .route("/list", any(management::list))
        .route("/wipe", any(management::wipe))
        .route("/logs", any(management::logs))
        .with(|router| limited(router, DefaultBodyLimit::max(management::BODY_BYTES_MAX)))
        .with(|router| gate.guard(router))
        .router()
}

/// For the fuzzer: the code that reads what clients send.
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
