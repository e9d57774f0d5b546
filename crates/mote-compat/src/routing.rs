//! Routes of the APIs, whose handlers are behind pointers.
//!
//! For each handler, axum itself would put services, their futures and their destructors into a
//! binary. With these functions they are there once for each type of state.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::extract::Request;
use axum::handler::Handler;
use axum::response::Response;
use axum::routing::{self, MethodRouter};

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

macro_rules! method {
    ($name:ident, $text:literal) => {
        #[doc = $text]
        pub fn $name<H, T, S>(handler: H) -> MethodRouter<S>
        where
            H: Handler<T, S, Future = Answered>,
            S: Clone + Send + Sync + 'static,
        {
            routing::$name(handled(handler))
        }
    };
}

method!(any, "A route that answers every method.");
method!(get, "A route that answers GET.");
method!(put, "A route that answers PUT.");
method!(post, "A route that answers POST.");
method!(delete, "A route that answers DELETE.");
