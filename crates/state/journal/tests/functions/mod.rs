//! Functions that are closures.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use mote_core::accept::{Accept as _, Callback, Deferred};
use mote_core::body::Body;
use mote_core::invocation::Head;
use mote_core::{
    Fault, Instances, Invocation, InvocationId, Invoker, Phases, Reply, RouteInfo, Routed, Trigger,
};
use mote_journal::{Journal, State};
use mote_spec::FunctionName;

pub(crate) type Answer = Result<(u16, &'static str), Fault>;
pub(crate) type Run = dyn Fn(String, Invocation) -> BoxFuture<'static, Answer> + Send + Sync;

/// Answers for functions of any name except `absent`, each with 16 places.
#[derive(Clone)]
pub(crate) struct Functions(pub(crate) Arc<Run>);

#[derive(Clone)]
pub(crate) struct Route(FunctionName);

impl Routed for Route {
    fn info(&self) -> RouteInfo<'_> {
        RouteInfo { instances: Some(self), ..RouteInfo::new(&self.0, 10_000, 1 << 20) }
    }
}

impl Instances for Route {
    fn is_replaced(&self) -> bool {
        false
    }
    fn places(&self) -> u32 {
        16
    }
}

impl Invoker for Functions {
    type Route = Route;

    fn route(&self, name: &str, _: impl FnOnce() -> Option<u64>) -> Option<Route> {
        FunctionName::new(name).ok().filter(|name| name.as_str() != "absent").map(Route)
    }

    fn routes(&self) -> Vec<Route> {
        Vec::new()
    }

    async fn invoke(&self, route: &Route, invocation: Invocation) -> Result<Reply, Fault> {
        let (status, body) = (self.0)(route.0.as_str().to_owned(), invocation).await?;
        let body = Body::whole(Bytes::from_static(body.as_bytes()));
        Ok(Reply { status, headers: Bytes::new(), body, phases: Phases::default() })
    }
}

pub(crate) fn deferred(function: &str, callback: Option<&str>) -> Deferred {
    let head = Head::builder(b"POST", b"/", b"").finish();
    let callback = callback.map(|url| Callback { url: url.to_owned(), fields: Vec::new() });
    let body = Bytes::from_static(b"body");
    Deferred { callback, ..Deferred::new(function, Trigger::Http, head, body) }
}

pub(crate) async fn until(what: &str, done: impl Fn() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("waited in vain: {what}"));
}

pub(crate) async fn state(journal: &Journal, id: InvocationId) -> State {
    tokio::time::timeout(Duration::from_secs(20), journal.ended(id)).await.expect("it ends");
    journal.show(id).await.expect("readable").expect("known").stored.state
}
