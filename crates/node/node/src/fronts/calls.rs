//! What the fronts call: one type for all of them, so that a binary contains each front once.

use std::future::Future;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::Either;
use mote_access::Guarded;
use mote_core::invocation::{Head, Reply, RouteInfo};
use mote_core::{Fault, Invocation, Invoker};
use mote_engine::Engine;
use mote_journal::Deferring;
use mote_platforms::tinyfaas::{GrpcFront, Method, TinyFaasFront};
use mote_spec::mqtt::Connection;
use mote_spec::routes::{Asked, Found};
use mote_spec::{
    Access, AsyncRules, CertificateRules, CoapResource, FunctionName, HttpRules, Platform, Rates,
    TokenRules, WebhookRules,
};

/// The functions of a node, by the conventions of one front.
#[derive(Clone)]
pub enum Calls {
    /// The node's own.
    Own(Guarded<Deferring<Engine>>),
    /// One of them, which answers every request.
    One(Guarded<Deferring<Engine>>, FunctionName),
    TinyFaas(TinyFaasFront<Guarded<Engine>>),
    /// The method of tinyFaaS' gRPC service.
    TinyFaasGrpc(GrpcFront),
}

/// A function as one front knows it.
#[derive(Clone)]
pub enum Route {
    /// By the node's own conventions.
    Own(<Guarded<Deferring<Engine>> as Invoker>::Route),
    TinyFaas(<TinyFaasFront<Guarded<Engine>> as Invoker>::Route),
    /// The one method.
    TinyFaasGrpc(Method),
}

impl Calls {
    /// The calls of a front of which `function` answers every request.
    pub fn only(&self, function: FunctionName) -> Self {
        match self {
            Self::Own(own) | Self::One(own, _) => Self::One(own.clone(), function),
            Self::TinyFaas(_) | Self::TinyFaasGrpc(_) => self.clone(),
        }
    }
}

impl Invoker for Calls {
    type Route = Route;

    fn route(&self, name: &str, key: impl FnOnce() -> Option<u64>) -> Option<Route> {
        match self {
            Self::Own(own) | Self::One(own, _) => own.route(name, key).map(Route::Own),
            Self::TinyFaas(front) => front.route(name, key).map(Route::TinyFaas),
            Self::TinyFaasGrpc(front) => front.route(name, key).map(Route::TinyFaasGrpc),
        }
    }

    fn has_routed_hosts(&self) -> bool {
        match self {
            Self::Own(own) => own.has_routed_hosts(),
            // Whatever the host is, the function comes before those that have the names in paths.
            Self::One(..) => true,
            Self::TinyFaas(_) | Self::TinyFaasGrpc(_) => false,
        }
    }

    fn routed(&self, asked: &Asked<'_>) -> Found {
        match self {
            Self::Own(own) => own.routed(asked),
            Self::One(_, function) => Found::Function(function.clone(), Vec::new()),
            // Other platforms have addresses of their own.
            Self::TinyFaas(_) | Self::TinyFaasGrpc(_) => Found::Nothing,
        }
    }

    fn keeps(&self, first: &str) -> bool {
        // Applications have paths such as `/_next/`. The node has to answer for what it has accepted.
        !matches!(self, Self::One(..)) || first == mote_journal::SEGMENT
    }

    fn routes(&self) -> Vec<Route> {
        match self {
            Self::Own(own) | Self::One(own, _) => {
                own.routes().into_iter().map(Route::Own).collect()
            }
            Self::TinyFaas(front) => front.routes().into_iter().map(Route::TinyFaas).collect(),
            Self::TinyFaasGrpc(front) => {
                front.routes().into_iter().map(Route::TinyFaasGrpc).collect()
            }
        }
    }

    #[inline]
    fn admit(&self, route: &Route, head: &mut Head, from: Option<IpAddr>) -> Result<(), Fault> {
        match (self, route) {
            (Self::Own(own) | Self::One(own, _), Route::Own(route)) => own.admit(route, head, from),
            (Self::TinyFaas(front), Route::TinyFaas(route)) => front.admit(route, head, from),
            (Self::TinyFaasGrpc(front), Route::TinyFaasGrpc(method)) => {
                front.admit(method, head, from)
            }
            // A front only has routes of its own.
            _ => Err(Fault::NoSuchFunction),
        }
    }

    #[inline]
    fn admit_before_body(
        &self,
        route: &Route,
        head: &mut Head,
        from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        match (self, route) {
            (Self::Own(own) | Self::One(own, _), Route::Own(route)) => {
                own.admit_before_body(route, head, from)
            }
            // Calls of tinyFaaS do not wait for a signature to be verified.
            _ => self.admit(route, head, from),
        }
    }

    #[inline]
    fn count(&self, route: &Route, head: &mut Head, from: Option<IpAddr>) -> Result<(), Fault> {
        match (self, route) {
            (Self::Own(own) | Self::One(own, _), Route::Own(route)) => own.count(route, head, from),
            (Self::TinyFaas(front), Route::TinyFaas(route)) => front.count(route, head, from),
            (Self::TinyFaasGrpc(front), Route::TinyFaasGrpc(method)) => {
                front.count(method, head, from)
            }
            _ => Err(Fault::NoSuchFunction),
        }
    }

    /// A call of tinyFaaS is behind a pointer, so that the node's own calls do not grow by it.
    fn invoke(
        &self,
        route: &Route,
        invocation: Invocation,
    ) -> impl Future<Output = Result<Reply, Fault>> + Send {
        match (self, route) {
            (Self::Own(own) | Self::One(own, _), Route::Own(route)) => {
                Either::Left(own.invoke(route, invocation))
            }
            (Self::TinyFaas(front), Route::TinyFaas(route)) => {
                Either::Right(Either::Left(Either::Left(Box::pin(front.invoke(route, invocation)))))
            }
            (Self::TinyFaasGrpc(front), Route::TinyFaasGrpc(method)) => {
                Either::Right(Either::Left(Either::Right(front.invoke(method, invocation))))
            }
            // A front only has routes of its own.
            _ => Either::Right(Either::Right(std::future::ready(Err(Fault::NoSuchFunction)))),
        }
    }
}

/// Passes a question on to the route, whichever it is.
macro_rules! of {
    ($route:ident.$question:ident()) => {
        match $route {
            Route::Own(own) => own.$question(),
            Route::TinyFaas(route) => route.$question(),
            Route::TinyFaasGrpc(method) => method.$question(),
        }
    };
}

impl RouteInfo for Route {
    fn name(&self) -> &FunctionName {
        of!(self.name())
    }

    fn timeout_ms(&self) -> u64 {
        of!(self.timeout_ms())
    }

    fn body_bytes_max(&self) -> u64 {
        of!(self.body_bytes_max())
    }

    fn takes_whole_bodies(&self) -> bool {
        of!(self.takes_whole_bodies())
    }

    fn takes_websockets(&self) -> bool {
        of!(self.takes_websockets())
    }

    fn takes_websocket_messages(&self) -> bool {
        of!(self.takes_websocket_messages())
    }

    fn is_replaced(&self) -> bool {
        of!(self.is_replaced())
    }

    fn is_confined(&self) -> bool {
        of!(self.is_confined())
    }

    fn takes_http2(&self) -> bool {
        of!(self.takes_http2())
    }

    fn stream_idle_ms(&self) -> u64 {
        of!(self.stream_idle_ms())
    }

    fn methods(&self) -> &[String] {
        of!(self.methods())
    }

    fn coap(&self) -> &CoapResource {
        of!(self.coap())
    }

    fn access(&self) -> Access {
        of!(self.access())
    }

    fn tokens(&self) -> Option<&Arc<TokenRules>> {
        of!(self.tokens())
    }

    fn certificates(&self) -> Option<&Arc<CertificateRules>> {
        of!(self.certificates())
    }

    fn webhook(&self) -> Option<&Arc<WebhookRules>> {
        of!(self.webhook())
    }

    fn rates(&self) -> &Rates {
        of!(self.rates())
    }

    fn http(&self) -> Option<&HttpRules> {
        of!(self.http())
    }

    fn code(&self) -> Option<&Path> {
        of!(self.code())
    }

    fn compat(&self) -> Option<Platform> {
        of!(self.compat())
    }

    fn background(&self) -> Option<&AsyncRules> {
        of!(self.background())
    }

    fn connection(&self) -> Option<&Connection> {
        of!(self.connection())
    }

    fn tag(&self) -> Option<&str> {
        of!(self.tag())
    }

    fn may_pause(&self) -> bool {
        of!(self.may_pause())
    }

    fn places(&self) -> u32 {
        of!(self.places())
    }
}
