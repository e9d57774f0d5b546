//! The arguments of a handler, which it takes from a request without waiting.
//!
//! The whole body ([`Bytes`]) is the only argument for which a request has to wait. `routing.rs`
//! reads it before it calls a handler that takes it. A binary therefore contains the code that takes
//! an argument once for each type of argument, and not in the future of each handler.

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{ConnectInfo, FromRequest as _, FromRequestParts as _, Path, Query};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use serde::de::DeserializeOwned;

/// The answer to a request from which an argument could not be taken.
pub type Refusal = Box<Response>;

/// A request whose handler takes its arguments.
pub struct Call {
    /// Everything but the body.
    pub head: Parts,
    /// The body; empty if it has been read.
    body: Body,
    /// The body of a call that was made by [`Call::whole`].
    bytes: Bytes,
    /// The routes behind a handler that is called before them.
    next: Option<Next>,
}

impl Call {
    /// A call whose body has not been read.
    pub(crate) fn new(request: Request, next: Option<Next>) -> Self {
        let (head, body) = request.into_parts();
        Self { head, body, bytes: Bytes::new(), next }
    }

    /// A call whose body is in memory. A body above the limit of its route is refused.
    pub(crate) async fn whole(request: Request, next: Option<Next>) -> Result<Self, Refusal> {
        let (head, body) = request.into_parts();
        let mut limited = Request::new(body);
        // The limit is one of the extensions.
        limited.extensions_mut().clone_from(&head.extensions);
        let bytes = Bytes::from_request(limited, &()).await.map_err(refused)?;
        Ok(Self { head, body: Body::empty(), bytes, next })
    }
}

/// An argument of a handler of an API with the state `S`.
pub trait Argument<S>: Sized {
    /// Whether the body must be in memory.
    const IS_WHOLE_BODY: bool = false;

    fn take(call: &mut Call, state: &S) -> Result<Self, Refusal>;
}

#[inline(never)]
fn refused(answer: impl IntoResponse) -> Refusal {
    Box::new(answer.into_response())
}

impl<S: Clone> Argument<S> for State<S> {
    #[inline(never)]
    fn take(_: &mut Call, state: &S) -> Result<Self, Refusal> {
        Ok(State(state.clone()))
    }
}

/// The types that the parameters of a path can have. They are named so that the code that reads
/// them is in this crate alone.
macro_rules! parameters {
    ($($type:ty),*) => {$(
        impl<S> Argument<S> for Path<$type> {
            fn take(call: &mut Call, _: &S) -> Result<Self, Refusal> {
                #[inline(never)]
                fn read(head: &mut Parts) -> Result<Path<$type>, Refusal> {
                    let read = Path::from_request_parts(head, &()).now_or_never();
                    read.expect("axum reads parameters without waiting").map_err(refused)
                }
                read(&mut call.head)
            }
        }
    )*};
}

parameters!(String, (String, String), (String, u64), Vec<(String, String)>);

impl<S, T: DeserializeOwned> Argument<S> for Result<Query<T>, QueryRejection> {
    fn take(call: &mut Call, _: &S) -> Result<Self, Refusal> {
        Ok(query(&call.head))
    }
}

impl<S, T: DeserializeOwned> Argument<S> for Query<T> {
    fn take(call: &mut Call, _: &S) -> Result<Self, Refusal> {
        query(&call.head).map_err(refused)
    }
}

#[inline(never)]
fn query<T: DeserializeOwned>(head: &Parts) -> Result<Query<T>, QueryRejection> {
    Query::try_from_uri(&head.uri)
}

impl<S, T: Clone + Send + Sync + 'static> Argument<S> for ConnectInfo<T> {
    fn take(call: &mut Call, _: &S) -> Result<Self, Refusal> {
        call.head.extensions.get().cloned().ok_or_else(not_connected)
    }
}

#[inline(never)]
fn not_connected() -> Refusal {
    refused((StatusCode::INTERNAL_SERVER_ERROR, "the sender of the request is not known\n"))
}

impl<S> Argument<S> for Method {
    fn take(call: &mut Call, _: &S) -> Result<Self, Refusal> {
        Ok(call.head.method.clone())
    }
}

impl<S> Argument<S> for HeaderMap {
    fn take(call: &mut Call, _: &S) -> Result<Self, Refusal> {
        Ok(call.head.headers.clone())
    }
}

impl<S> Argument<S> for Bytes {
    const IS_WHOLE_BODY: bool = true;

    fn take(call: &mut Call, _: &S) -> Result<Self, Refusal> {
        Ok(std::mem::take(&mut call.bytes))
    }
}

impl<S> Argument<S> for Body {
    fn take(call: &mut Call, _: &S) -> Result<Self, Refusal> {
        Ok(std::mem::take(&mut call.body))
    }
}

/// The request itself. Arguments after it would be taken from an empty request.
impl<S> Argument<S> for Request {
    fn take(call: &mut Call, _: &S) -> Result<Self, Refusal> {
        Ok(taken(call))
    }
}

#[inline(never)]
fn taken(call: &mut Call) -> Request {
    let (nothing, ()) = Request::new(()).into_parts();
    let head = std::mem::replace(&mut call.head, nothing);
    Request::from_parts(head, std::mem::take(&mut call.body))
}

impl<S> Argument<S> for Next {
    fn take(call: &mut Call, _: &S) -> Result<Self, Refusal> {
        call.next.take().ok_or_else(no_routes_behind)
    }
}

#[inline(never)]
fn no_routes_behind() -> Refusal {
    refused((StatusCode::INTERNAL_SERVER_ERROR, "there are no routes behind this one\n"))
}
