//! Calls functions in the way of tinyFaaS. The function always receives a POST to its root, whatever
//! the method, path and query of the request are. The caller always receives 200 and the body, whatever
//! the function answers.

use std::net::{IpAddr, Ipv4Addr};

use crate::compat::queue::{Later, Queue};
use bytes::Bytes;
use mote_core::body::Body;
use mote_core::invocation::{Head, Phases, Reply, RouteInfo, Routed, headers, put_header};
use mote_core::{Fault, FaultClass, Invocation, Invoker};

/// The header field with which a caller asks for an answer before the function has run.
const ASYNC_FIELD: &[u8] = b"x-tinyfaas-async";
/// The only fields of an answer. Functions of tinyFaaS answer with text.
const ANSWER_FIELDS: &[u8] = b"content-type\ntext/plain; charset=utf-8\n";

/// Applies tinyFaaS' conventions to the functions behind `I`.
#[derive(Clone)]
pub struct TinyFaasFront<I> {
    inner: I,
    queue: Queue,
}

impl<I> TinyFaasFront<I> {
    /// Wraps `inner`. Calls whose answer nobody reads go through `queue`.
    pub fn new(inner: I, queue: Queue) -> Self {
        Self { inner, queue }
    }
}

/// A function, which can be called by any method that its manifest permits.
#[derive(Clone)]
pub struct Route<R>(R);

impl<R: Routed> Routed for Route<R> {
    /// tinyFaaS clients expect tinyFaaS' status codes for faults, whatever platform the function
    /// was written for. They do not expect features that tinyFaaS does not have.
    fn info(&self) -> RouteInfo<'_> {
        RouteInfo {
            takes_websockets: false,
            takes_websocket_messages: false,
            takes_http2: false,
            certificates: None,
            webhook: None,
            code: None,
            compat: None,
            background: None,
            connection: None,
            tag: None,
            may_pause: false,
            instances: None,
            ..self.0.info()
        }
    }
}

impl<I: Invoker> Invoker for TinyFaasFront<I> {
    type Route = Route<I::Route>;

    fn route(&self, name: &str, key: impl FnOnce() -> Option<u64>) -> Option<Self::Route> {
        if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return self.inner.route(&name.to_ascii_lowercase(), key).map(Route);
        }
        self.inner.route(name, key).map(Route)
    }

    fn routes(&self) -> Vec<Self::Route> {
        self.inner.routes().into_iter().map(Route).collect()
    }

    fn admit(
        &self,
        route: &Self::Route,
        head: &mut Head,
        from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        self.inner.admit(&route.0, head, from)
    }

    fn count(
        &self,
        route: &Self::Route,
        head: &mut Head,
        from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        self.inner.count(&route.0, head, from)
    }

    async fn invoke(
        &self,
        route: &Self::Route,
        mut invocation: Invocation,
    ) -> Result<Reply, Fault> {
        if invocation.head.path() != b"/" {
            return Err(Fault::NoSuchFunction);
        }
        // The fronts have already checked this. It is checked again because a call that is accepted for
        // later must never go unchecked.
        self.admit(route, &mut invocation.head, None)?;
        self.count(route, &mut invocation.head, None)?;
        let (fields, later) = fields(invocation.head.headers());
        if later {
            return self.accept(route, fields, invocation.body).await;
        }
        let mut head = Head::builder(b"POST", b"/", b"");
        for (name, value) in headers(&fields) {
            head.header(name, value);
        }
        let mut head = head.finish();
        if invocation.head.is_admitted() {
            head.admit(None);
        }
        head.count();
        head.keep_place(invocation.head.take_place());
        let invocation = Invocation { head, ..invocation };
        let answered = match self.inner.invoke(&route.0, invocation).await {
            Ok(reply) => (reply.body, reply.phases),
            // A function that failed counts as having answered, whichever contract it uses.
            Err(fault @ Fault::HandlerError { .. }) => {
                let text = fault.public_text(route.info().name.as_str());
                (Body::whole(text), Phases::default())
            }
            Err(fault) => return Err(plain(fault)),
        };
        let (body, phases) = answered;
        Ok(Reply { status: 200, headers: Bytes::from_static(ANSWER_FIELDS), body, phases })
    }
}

impl<I: Invoker> TinyFaasFront<I> {
    async fn accept(
        &self,
        route: &Route<I::Route>,
        fields: Vec<u8>,
        body: Body,
    ) -> Result<Reply, Fault> {
        // The front does not pass on the caller's address, so all callers together may use one half of
        // the memory.
        let everybody = Ipv4Addr::UNSPECIFIED.into();
        let received = self.queue.receive(body, route.info().body_bytes_max, everybody);
        let received = received.await.map_err(plain)?;
        let body = received.bytes.clone();
        let later = Later::plain(route.info().name.as_str(), fields.into(), body);
        let accepted = self.queue.accept(later).await;
        accepted.map_err(|problem| Fault::HandlerError { message: problem.detail })?;
        Ok(Reply {
            status: 202,
            headers: Bytes::new(),
            body: Body::Empty,
            phases: Phases::default(),
        })
    }
}

/// Keeps the first value of each field. Also returns whether the caller does not wait for the answer.
fn fields(block: &[u8]) -> (Vec<u8>, bool) {
    let mut kept = Vec::with_capacity(block.len());
    let mut later = false;
    for (name, value) in headers(block) {
        if headers(&kept).any(|(known, _)| known == name) {
            continue;
        }
        later |= name == ASYNC_FIELD && !value.is_empty();
        put_header(&mut kept, name, value);
    }
    (kept, later)
}

/// Turns every fault for which the caller is not responsible into 500 (HTTP) or 5.00 (CoAP).
fn plain(fault: Fault) -> Fault {
    match fault.class() {
        FaultClass::Caller => fault,
        _ => Fault::HandlerError { message: fault.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_of_each_field_is_passed_on() {
        let (kept, later) = fields(b"a\n1\nb\n2\na\n3\n");
        assert_eq!((kept.as_slice(), later), (&b"a\n1\nb\n2\n"[..], false));
        assert!(fields(b"x-tinyfaas-async\ntrue\n").1);
        assert!(!fields(b"x-tinyfaas-async\n\n").1);
    }

    #[test]
    fn faults_of_functions_and_node_are_all_one() {
        for fault in [Fault::QueueFull, Fault::DeadlineRunning { timeout_ms: 1 }] {
            assert_eq!(plain(fault).answer().http, 500);
        }
        assert_eq!(plain(Fault::NoSuchFunction).answer().http, 404);
    }
}
