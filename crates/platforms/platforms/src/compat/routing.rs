//! Routes of the APIs, whose handlers are behind pointers.
//!
//! For each handler, axum itself would put services, futures that take its arguments, and their
//! destructors into a binary, and for each type of state a whole router. Here, a handler adds only
//! its own future and a function that takes its arguments (`arguments.rs`). The router is there once:
//! a route knows its state itself. The same holds for layers: one type of layer calls any handler.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{self, MethodFilter, MethodRouter};
use futures_util::FutureExt as _;

pub use crate::compat::arguments::{Argument, Call, Refusal};

type Answered = Pin<Box<dyn Future<Output = Response> + Send>>;

/// An asynchronous function that answers requests of an API with the state `S`, and whose arguments
/// are `A`.
pub trait Handler<A, S>: Send + Sync + 'static {
    const TAKES_WHOLE_BODY: bool;

    /// Calls it with the arguments that it takes.
    fn answer(&self, call: &mut Call, state: &S) -> Result<Answered, Refusal>;
}

macro_rules! handler {
    ($($argument:ident)*) => {
        #[allow(non_snake_case, unused_variables, reason = "one variable for each type, if any")]
        impl<F, R, S, $($argument),*> Handler<($($argument,)*), S> for F
        where
            F: Fn($($argument),*) -> R + Send + Sync + 'static,
            R: Future<Output: IntoResponse> + Send + 'static,
            $($argument: Argument<S>,)*
        {
            const TAKES_WHOLE_BODY: bool = false $(|| $argument::IS_WHOLE_BODY)*;

            fn answer(&self, call: &mut Call, state: &S) -> Result<Answered, Refusal> {
                $(let $argument = $argument::take(call, state)?;)*
                Ok(Box::pin(self($($argument),*).map(response)))
            }
        }
    };
}

handler!();
handler!(A);
handler!(A B);
handler!(A B C);
handler!(A B C D);
handler!(A B C D E);

/// Not inlined, because many handlers have results of the same type.
#[inline(never)]
fn response(result: impl IntoResponse) -> Response {
    result.into_response()
}

/// Any handler of an API with the state `S`.
trait AnyHandler<S>: Send + Sync {
    fn answer(&self, call: &mut Call, state: &S) -> Result<Answered, Refusal>;
}

/// A handler whose arguments `A` are named by its type.
struct Typed<H, A>(H, PhantomData<fn(A)>);

impl<H: Handler<A, S>, A, S> AnyHandler<S> for Typed<H, A> {
    fn answer(&self, call: &mut Call, state: &S) -> Result<Answered, Refusal> {
        self.0.answer(call, state)
    }
}

/// A handler that has its state.
struct Stateful<S> {
    handler: Box<dyn AnyHandler<S>>,
    state: S,
}

impl<S: Send + Sync> AnyHandler<()> for Stateful<S> {
    fn answer(&self, call: &mut Call, (): &()) -> Result<Answered, Refusal> {
        self.handler.answer(call, &self.state)
    }
}

/// A handler behind a pointer, which still needs its state.
struct Unbound<S> {
    handler: Box<dyn AnyHandler<S>>,
    takes_whole_body: bool,
}

impl<S: Clone + Send + Sync + 'static> Unbound<S> {
    fn new<H: Handler<A, S>, A: 'static>(handler: H) -> Self {
        let takes_whole_body = H::TAKES_WHOLE_BODY;
        Self { handler: Box::new(Typed(handler, PhantomData)), takes_whole_body }
    }

    fn bound(self, state: &S) -> Handled {
        let Self { handler, takes_whole_body } = self;
        Handled { handler: Arc::new(Stateful { handler, state: state.clone() }), takes_whole_body }
    }
}

/// A handler behind a pointer, for axum's router.
#[derive(Clone)]
pub struct Handled {
    handler: Arc<dyn AnyHandler<()>>,
    takes_whole_body: bool,
}

/// Puts a handler without a state behind a pointer.
pub fn handled<H: Handler<A, ()>, A: 'static>(handler: H) -> Handled {
    Unbound::new(handler).bound(&())
}

impl Handled {
    fn answer(self, request: Request, next: Option<Next>) -> Answered {
        if self.takes_whole_body {
            return Box::pin(async move {
                match Call::whole(request, next).await {
                    Ok(call) => self.answer_call(call).await,
                    Err(refusal) => *refusal,
                }
            });
        }
        self.answer_call(Call::new(request, next))
    }

    fn answer_call(&self, mut call: Call) -> Answered {
        let answered = self.handler.answer(&mut call, &());
        answered.unwrap_or_else(|refusal| Box::pin(std::future::ready(*refusal)))
    }
}

impl axum::handler::Handler<(), ()> for Handled {
    type Future = Answered;

    fn call(self, request: Request, (): ()) -> Answered {
        self.answer(request, None)
    }
}

/// Calls a handler before the routes of a router. The handler takes [`Next`] and the request, which
/// it may pass on.
pub fn guarded<H, A, S>(router: Router, state: &S, handler: H) -> Router
where
    H: Handler<A, S>,
    A: 'static,
    S: Clone + Send + Sync + 'static,
{
    behind(router, Unbound::new(handler).bound(state))
}

#[inline(never)]
fn behind(router: Router, handler: Handled) -> Router {
    let call = move |request, next| handler.clone().answer(request, Some(next));
    router.layer(from_fn(call))
}

/// Limits the bodies that handlers of these routes take whole.
#[inline(never)]
pub fn limited(router: Router, limit: DefaultBodyLimit) -> Router {
    router.layer(limit)
}

/// The handlers of one address.
pub struct Methods<S> {
    any: Option<Unbound<S>>,
    others: Vec<(MethodFilter, Unbound<S>)>,
}

macro_rules! method {
    ($name:ident, $filter:ident, $text:literal) => {
        #[doc = $text]
        pub fn $name<H, A, S>(handler: H) -> Methods<S>
        where
            H: Handler<A, S>,
            A: 'static,
            S: Clone + Send + Sync + 'static,
        {
            Methods { any: None, others: Vec::new() }.$name(handler)
        }

        impl<S: Clone + Send + Sync + 'static> Methods<S> {
            #[doc = $text]
            #[must_use]
            pub fn $name<H: Handler<A, S>, A: 'static>(self, handler: H) -> Self {
                self.on(MethodFilter::$filter, Unbound::new(handler))
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
pub fn any<H, A, S>(handler: H) -> Methods<S>
where
    H: Handler<A, S>,
    A: 'static,
    S: Clone + Send + Sync + 'static,
{
    Methods { any: Some(Unbound::new(handler)), others: Vec::new() }
}

impl<S: Clone + Send + Sync + 'static> Methods<S> {
    #[inline(never)]
    fn on(mut self, filter: MethodFilter, handler: Unbound<S>) -> Self {
        self.others.push((filter, handler));
        self
    }
}

#[inline(never)]
fn added(
    router: Router,
    path: &str,
    any: Option<Handled>,
    others: Vec<(MethodFilter, Handled)>,
) -> Router {
    let mut methods = any.map_or_else(MethodRouter::new, routing::any);
    for (filter, handler) in others {
        methods = methods.on(filter, handler);
    }
    router.route(path, methods)
}

/// Routes of an API with the state `S`, on their way into a router.
pub struct Routes<S> {
    router: Router,
    state: S,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    pub fn new(state: S) -> Self {
        Self { router: Router::new(), state }
    }

    /// Adds an address.
    #[must_use]
    pub fn route(mut self, path: &str, methods: Methods<S>) -> Self {
        let bound = |handler: Unbound<S>| handler.bound(&self.state);
        let others = methods.others.into_iter().map(|(filter, handler)| (filter, bound(handler)));
        self.router = added(self.router, path, methods.any.map(bound), others.collect());
        self
    }

    /// Changes what has been added so far, for example by a layer.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(Router) -> Router) -> Self {
        self.router = change(self.router);
        self
    }

    pub fn router(self) -> Router {
        self.router
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, Bytes, to_bytes};
    use axum::extract::{ConnectInfo, Path, Query, State};
    use axum::http::{HeaderMap, Method, StatusCode};
    use serde::Deserialize;
    use tower_service::Service as _;

    use super::*;

    #[derive(Deserialize)]
    struct Asked {
        limit: u8,
        #[serde(default)]
        word: String,
    }

    async fn everything(
        State(name): State<&'static str>,
        Path((one, two)): Path<(String, u64)>,
        Query(Asked { limit, word }): Query<Asked>,
        method: Method,
        body: Bytes,
    ) -> String {
        format!("{name} {one} {two} {limit} {word} {method} {}", body.len())
    }

    async fn unread(headers: HeaderMap, request: Request) -> Result<String, StatusCode> {
        let body = to_bytes(request.into_body(), 32).await.map_err(|_| StatusCode::IM_A_TEAPOT)?;
        Ok(format!("{} {}", headers.len(), body.len()))
    }

    async fn sender(ConnectInfo(from): ConnectInfo<u8>) -> String {
        from.to_string()
    }

    async fn only_posts(State(key): State<&'static str>, request: Request, next: Next) -> Response {
        if request.method() == Method::POST {
            return next.run(request).await;
        }
        (StatusCode::UNAUTHORIZED, key).into_response()
    }

    /// The status and the body that these routes answer.
    async fn answer(request: axum::http::request::Builder, body: &str) -> (u16, String) {
        let mut router = Routes::new("state")
            .route("/every/{one}/{two}", any(everything))
            .route("/missing/{one}", any(everything))
            .with(|router| limited(router, DefaultBodyLimit::max(8)))
            .route("/unread", get(unread).post(unread))
            .route("/sender", get(sender))
            .route("/none", get(|| async { "none" }))
            .route("/nothing-behind", get(only_posts))
            .with(|router| router.fallback(handled(|| async { StatusCode::GONE })))
            .router()
            .nest("/guarded", {
                let routes = Routes::new("state").route("/{one}", any(|| async { "inside" }));
                guarded(routes.router(), &"key", only_posts)
            });
        let request = request.body(Body::from(body.to_owned())).expect("a request");
        let response = router.call(request).await.expect("an answer");
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1 << 10).await.expect("a short body");
        (status, String::from_utf8(body.to_vec()).expect("text"))
    }

    async fn check(request: axum::http::request::Builder, body: &str, expected: (u16, &str)) {
        let shown = format!("{request:?}");
        let (status, text) = answer(request, body).await;
        assert_eq!((status, text.as_str()), expected, "{shown}");
    }

    #[tokio::test]
    async fn handlers_take_their_arguments() {
        let put = Request::put("/every/a%2Fb%20%C3%A9/7?limit=3&word=x%20y");
        check(put, "12345678", (200, "state a/b é 7 3 x y PUT 8")).await;
        check(Request::get("/none"), "", (200, "none")).await;
        check(Request::post("/unread").header("a", "b"), "longer than 8", (200, "1 13")).await;
        check(Request::get("/sender").extension(ConnectInfo(7_u8)), "", (200, "7")).await;
        check(Request::get("/unknown"), "", (410, "")).await;
        check(Request::put("/none"), "", (405, "")).await;
    }

    #[tokio::test]
    async fn arguments_that_cannot_be_taken_are_refused() {
        let query = "Failed to deserialize query string: ";
        let text = format!("{query}limit: invalid digit found in string");
        check(Request::get("/every/a/7?limit=x"), "", (400, &text)).await;
        let text = format!("{query}missing field `limit`");
        check(Request::get("/every/a/7"), "", (400, &text)).await;
        let text = "Invalid URL: Cannot parse value at index 1 with value `b` to a `u64`";
        check(Request::get("/every/a/b?limit=1"), "", (400, text)).await;
        let text = "Invalid URL: Invalid UTF-8 in `one`";
        check(Request::get("/every/%FF/7?limit=1"), "", (400, text)).await;
        let text = "Wrong number of path arguments for `Path`. Expected 2 but got 1";
        check(Request::get("/missing/a?limit=1"), "", (500, text)).await;
        let text = "Failed to buffer the request body: length limit exceeded";
        check(Request::put("/every/a/7?limit=1"), "123456789", (413, text)).await;
        let text = "the sender of the request is not known\n";
        check(Request::get("/sender"), "", (500, text)).await;
    }

    #[tokio::test]
    async fn a_guard_decides_what_reaches_the_routes() {
        check(Request::get("/guarded/a"), "", (401, "key")).await;
        check(Request::post("/guarded/a"), "", (200, "inside")).await;
        let text = "there are no routes behind this one\n";
        check(Request::get("/nothing-behind"), "", (500, text)).await;
    }
}
