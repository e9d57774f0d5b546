//! The layer between the fronts and everything that runs or accepts invocations.

use std::future::{Future, ready};
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::Either;
use mote_core::invocation::Head;
use mote_core::place::Place;
use mote_core::{Fault, Invocation, Invoker, Reply, Routed as _};
use mote_spec::Access;
use mote_spec::routes::{Asked, Found};

use crate::guard::Guard;

/// An [`Invoker`] that checks callers, and counts the calls of functions that have rates. Cheap to
/// clone.
///
/// A front should call [`Invoker::admit`] before it reads a body. If the front did not, the check
/// is made when it invokes the function, so that no call can avoid the check. The same is true of
/// [`Invoker::count`].
#[derive(Clone)]
pub struct Guarded<I> {
    inner: I,
    guard: Guard,
}

impl<I> Guarded<I> {
    /// Puts the layer over `inner`.
    pub fn new(inner: I, guard: Guard) -> Self {
        Self { inner, guard }
    }
}

impl<I: Invoker> Invoker for Guarded<I> {
    type Route = I::Route;

    fn route(&self, name: &str, key: impl FnOnce() -> Option<u64>) -> Option<Self::Route> {
        self.inner.route(name, key)
    }

    fn has_routed_hosts(&self) -> bool {
        self.inner.has_routed_hosts()
    }

    fn routed(&self, asked: &Asked<'_>) -> Found {
        self.inner.routed(asked)
    }

    fn routes(&self) -> Vec<Self::Route> {
        self.inner.routes()
    }

    #[inline]
    fn admit(
        &self,
        route: &Self::Route,
        head: &mut Head,
        from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        let info = route.info();
        let access = info.access;
        let name = info.name.as_str();
        match info.certificates {
            Some(rules) if access == Access::Mtls => {
                self.guard.admit_certified(rules, name, head, from)
            }
            _ => self.guard.admit(access, info.tokens, name, head, from),
        }
    }

    #[inline]
    fn admit_before_body(
        &self,
        route: &Self::Route,
        head: &mut Head,
        from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        let info = route.info();
        match info.webhook {
            Some(rules) => self.guard.is_signed(rules, info.name.as_str(), head, from),
            None => self.admit(route, head, from),
        }
    }

    #[inline]
    fn count(
        &self,
        route: &Self::Route,
        head: &mut Head,
        from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        let info = route.info();
        let access = info.access;
        let name = info.name.as_str();
        if info.is_confined {
            return self.guard.count_within(access, info.rates, name, head, from);
        }
        self.guard.count(access, info.rates, name, head, from)
    }

    fn invoke(
        &self,
        route: &Self::Route,
        mut invocation: Invocation,
    ) -> impl Future<Output = Result<Reply, Fault>> + Send {
        let head = &mut invocation.head;
        let admitted = match route.info().webhook {
            Some(rules) => {
                self.guard.verify(rules, route.info().name.as_str(), head, &mut invocation.body)
            }
            None => self.admit(route, head, None),
        };
        match admitted.and_then(|()| self.count(route, head, None)) {
            Ok(()) => {
                // From here on, the place is held as long as the answer lasts, and no copy of the
                // head contains it.
                let place = invocation.head.take_place();
                let answer = self.inner.invoke(route, invocation);
                Either::Left(Placed { answer, place })
            }
            Err(fault) => Either::Right(ready(Err(fault))),
        }
    }
}

pin_project_lite::pin_project! {
    /// The answer of a call that may hold a place among simultaneous calls.
    struct Placed<F> {
        #[pin]
        answer: F,
        place: Option<Place>,
    }
}

impl<F: Future<Output = Result<Reply, Fault>>> Future for Placed<F> {
    type Output = Result<Reply, Fault>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let polled = this.answer.poll(cx);
        match this.place {
            Some(_) if polled.is_ready() => polled.map_ok(|reply| match this.place.take() {
                Some(place) => Reply { body: place.until_end_of(reply.body), ..reply },
                None => reply,
            }),
            _ => polled,
        }
    }
}
