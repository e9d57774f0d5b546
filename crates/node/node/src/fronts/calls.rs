//! The interface that the fronts call. All fronts use this one type, so that the program contains
//! the code of each front only once.

use std::future::Future;
use std::net::IpAddr;

use futures_util::future::Either;
use mote_access::Guarded;
use mote_core::invocation::{Head, Reply, RouteInfo, Routed};
use mote_core::{Fault, Invocation, Invoker};
use mote_engine::Engine;
use mote_journal::Deferring;
use mote_platforms::tinyfaas::{GrpcFront, Method, TinyFaasFront};
use mote_spec::FunctionName;
use mote_spec::routes::{Asked, Found};

/// The functions of a node, called by the conventions of one front.
#[derive(Clone)]
pub enum Calls {
    /// By the node's own conventions.
    Own(Guarded<Deferring<Engine>>),
    /// By the node's own conventions, except that this function answers every request.
    One(Guarded<Deferring<Engine>>, FunctionName),
    TinyFaas(TinyFaasFront<Guarded<Engine>>),
    /// By the method of tinyFaaS' gRPC service.
    TinyFaasGrpc(GrpcFront),
}

/// A function, in the form in which one front addresses it.
#[derive(Clone)]
pub enum Route {
    /// By the node's own conventions.
    Own(<Guarded<Deferring<Engine>> as Invoker>::Route),
    TinyFaas(<TinyFaasFront<Guarded<Engine>> as Invoker>::Route),
    /// The only method of tinyFaaS' gRPC service.
    TinyFaasGrpc(Method),
}

impl Calls {
    /// Returns the calls for a front on which `function` answers every request.
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
            // The function answers for every host. It also takes precedence over functions whose
            // names begin the path.
            Self::One(..) => true,
            Self::TinyFaas(_) | Self::TinyFaasGrpc(_) => false,
        }
    }

    fn routed(&self, asked: &Asked<'_>) -> Found {
        match self {
            Self::Own(own) => own.routed(asked),
            Self::One(_, function) => Found::Function(function.clone(), Vec::new()),
            // Other platforms have their own addresses, at which routes do not apply.
            Self::TinyFaas(_) | Self::TinyFaasGrpc(_) => Found::Nothing,
        }
    }

    fn keeps(&self, first: &str) -> bool {
        // Applications use paths such as `/_next/`, so the node keeps only one segment for itself:
        // the one at which it answers questions about accepted invocations.
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
            // A front receives only the routes that it returned itself.
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
            // A tinyFaaS call never waits until a signature is verified.
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

    /// The future of a tinyFaaS call is behind a pointer, so that it does not increase the size of
    /// the node's own calls.
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
            // A front receives only the routes that it returned itself.
            _ => Either::Right(Either::Right(std::future::ready(Err(Fault::NoSuchFunction)))),
        }
    }
}

impl Routed for Route {
    #[inline(always)]
    fn info(&self) -> RouteInfo<'_> {
        match self {
            Self::Own(own) => own.info(),
            other => other.info_of_tinyfaas(),
        }
    }
}

impl Route {
    #[inline(never)]
    fn info_of_tinyfaas(&self) -> RouteInfo<'_> {
        match self {
            Self::Own(own) => own.info(),
            Self::TinyFaas(route) => route.info(),
            Self::TinyFaasGrpc(method) => method.info(),
        }
    }
}
