//! Serves a platform's API to the fuzzer over any node, without a socket.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use axum::http::Request;
use bytes::Bytes;

use crate::compat::fake::Nothing;
use crate::compat::node::KeptCalls;
use crate::compat::{Queue, Stop};

/// One platform's API over a node.
pub struct Api(Router);

impl Api {
    pub fn of(routes: Router) -> Self {
        Self(routes)
    }

    /// Returns the status and body of the answer; `None` if the request is one that no server would
    /// pass on.
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

/// Returns the parts that every API needs in addition to its node.
pub fn parts<N: KeptCalls>(node: Arc<N>) -> (Queue, Stop) {
    let queue = Queue::new(node, Arc::new(Nothing), Default::default());
    let (_, stop) = tokio::sync::watch::channel(false);
    (queue, Stop::new(stop))
}

/// Reads the record of an accepted call and writes it again.
pub fn accepted_call(record: Vec<u8>) -> Option<Vec<u8>> {
    crate::compat::queue::read_again(record)
}
