//! What reads what clients send, for the fuzzer: the platforms' APIs without their sockets, and the
//! readers of bytes below them.

use std::net::{Ipv4Addr, SocketAddr};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use axum::http::Request;
use bytes::Bytes;

use crate::access::Rule;
use crate::node::{Code, Function};
use crate::tinyfaas::Ports;
use crate::{Context, Queue, nuclio, openfaas, openwhisk, tinyfaas};

/// One platform's API over a node.
pub struct Api(Router);

impl Api {
    /// The API of this platform; `None` for a name that is none of them.
    pub async fn of(platform: &str, context: Context) -> Option<Self> {
        let router = match platform {
            "openfaas" => openfaas::routes(&context, Rule::Loopback),
            "nuclio" => nuclio::routes(&context, Rule::Loopback),
            "tinyfaas" => tinyfaas::routes(&context, Rule::Loopback, Ports::default()),
            "openwhisk" => openwhisk::routes_over(context).await,
            _ => return None,
        };
        Some(Self(router))
    }

    /// Status and body of the answer; `None` for a request that no server would hand over.
    pub async fn answer(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
        body: Bytes,
    ) -> Option<(u16, Bytes)> {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::from(body)).ok()?;
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        request.extensions_mut().insert(ConnectInfo(peer));
        let response = tower_service::Service::call(&mut self.0, request).await;
        let (head, body) = response.expect("a router answers").into_parts();
        let body = to_bytes(body, usize::MAX).await.ok()?;
        Some((head.status.as_u16(), body))
    }
}

/// What every API needs, over this node.
pub fn context(node: std::sync::Arc<dyn crate::Node>) -> Context {
    let (queue, _) = Queue::new(node.clone(), Default::default());
    let (_, stop) = tokio::sync::watch::channel(false);
    Context { node, queue, stop }
}

/// An accepted call as it is kept, read and written again.
pub fn accepted_call(record: Vec<u8>) -> Option<Vec<u8>> {
    crate::queue::read_again(record)
}

/// The function and the data that a gRPC request of tinyFaaS names, and its answer with `text`.
pub fn grpc(body: Bytes) -> Option<(String, Bytes)> {
    tinyfaas::grpc_request(body)
}

/// A gRPC request of tinyFaaS.
pub fn grpc_written(function: &str, data: &[u8]) -> Bytes {
    tinyfaas::grpc_written(function, data)
}

/// The code that an image of OpenFaaS names.
pub fn image(image: &str, has_process: bool, all: &[Function]) -> Result<Code, String> {
    openfaas::code_of(image, has_process, all)
}
