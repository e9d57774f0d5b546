//! Routes of the APIs, whose handlers are behind pointers.
//!
//! For each handler, axum itself would put services, their futures and their destructors into a
//! binary, and for each type of state a whole router. With these functions the first are there once
//! for each type of state, and the router is there once: a route knows its state itself.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::handler::Handler;
use axum::response::Response;
use axum::routing::{self, MethodFilter, MethodRouter};

type Answered = Pin<Box<dyn Future<Output = Response> + Send>>;
type Handle<S> = dyn Fn(Request, S) -> Answered + Send + Sync;

/// Any handler of an API with the state `S`.
pub struct Handled<S>(Arc<Handle<S>>);

impl<S> Clone for Handled<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: 'static> Handler<(), S> for Handled<S> {
    type Future = Answered;

    fn call(self, request: Request, state: S) -> Answered {
        (self.0)(request, state)
    }
}

/// Puts a handler behind a pointer.
pub fn handled<H, T, S>(handler: H) -> Handled<S>
where
    H: Handler<T, S, Future = Answered>,
{
    Handled(Arc::new(move |request, state| handler.clone().call(request, state)))
}

impl<S: Clone + Send + Sync + 'static> Handled<S> {
    /// The same handler for a router without a state.
    fn bound(self, state: &S) -> Handled<()> {
        let (handle, state) = (self.0, state.clone());
        Handled(Arc::new(move |request, ()| handle(request, state.clone())))
    }
}

/// The handlers of one address.
pub struct Methods<S> {
    any: Option<Handled<S>>,
    others: Vec<(MethodFilter, Handled<S>)>,
}

macro_rules! method {
    ($name:ident, $filter:ident, $text:literal) => {
        #[doc = $text]
        pub fn $name<H, T, S>(handler: H) -> Methods<S>
        where
            H: Handler<T, S, Future = Answered>,
        {
            Methods { any: None, others: vec![(MethodFilter::$filter, handled(handler))] }
        }

        impl<S> Methods<S> {
            #[doc = $text]
            #[must_use]
            pub fn $name<H, T>(mut self, handler: H) -> Self
            where
                H: Handler<T, S, Future = Answered>,
            {
                self.others.push((MethodFilter::$filter, handled(handler)));
                self
            }
        }
    };
}

method!(get, GET, "A route that answers GET.");
method!(put, PUT, "A route that answers PUT.");
method!(post, POST, "A route that answers POST.");
method!(patch, PATCH, "A route that answers PATCH.");
method!(delete, DELETE, "A route that answers DELETE.");

/// A route that answers every method.
pub fn any<H, T, S>(handler: H) -> Methods<S>
where
    H: Handler<T, S, Future = Answered>,
{
    Methods { any: Some(handled(handler)), others: Vec::new() }
}

impl<S: Clone + Send + Sync + 'static> Methods<S> {
    fn bound(self, state: &S) -> MethodRouter {
        let mut router = match self.any {
            Some(handler) => routing::any(handler.bound(state)),
            None => MethodRouter::new(),
        };
        for (filter, handler) in self.others {
            router = router.on(filter, handler.bound(state));
        }
        router
    }
}

/// Routes of an API with the state `S`, on their way into a router.
pub struct Routes<S> {
    router: Router,
    state: S,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    /// No routes yet.
    pub fn new(state: S) -> Self {
        Self { router: Router::new(), state }
    }

    /// Adds an address.
    #[must_use]
    pub fn route(mut self, path: &str, methods: Methods<S>) -> Self {
        self.router = self.router.route(path, methods.bound(&self.state));
        self
    }

    /// Changes what has been added so far, for example by a layer.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(Router) -> Router) -> Self {
        self.router = change(self.router);
        self
    }

    /// The router with these routes.
    pub fn router(self) -> Router {
        self.router
    }
}
