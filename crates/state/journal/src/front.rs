//! The layer between the fronts and the engine. It accepts invocations for later (RFC 7240,
//! `respond-async`), and answers questions about them below `/_invocations`.
//!
//! For every other request, this layer costs one comparison.

use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use mote_api::Problem;
use mote_core::accept::{Accept as _, AcceptError, Accepted, Deferred};
use mote_core::body::{Body, BodyError, BodySource};
use mote_core::invocation::{Head, headers, put_header};
use mote_core::shares::{Share, Shares};
use mote_core::{
    Fault, Invocation, InvocationId, Invoker, Phases, Reply, RouteInfo, Routed, Trigger,
};
use mote_spec::routes::Asked;
use mote_spec::routes::Found;
use mote_spec::{Access, FunctionName};

use crate::journal::{Cancelled, Shown};
use crate::journals::Journals;
use crate::record::State;
use crate::records::unix_ms;
use crate::view::{Reader, problem_of, view};

/// The first path segment of the addresses of invocations. No function can have this name.
pub const SEGMENT: &str = "_invocations";
/// The longest body with which an invocation is accepted.
const BODY_BYTES_MAX: u64 = 16 << 20;
/// The most bytes of bodies that the node may be receiving at one time, over all functions. One
/// function may use half of them.
const RECEIVING_BYTES_MAX: usize = 64 << 20;
/// The most bytes of looked-up answers that the node is sending to callers at one time.
const LOOKED_UP_BYTES_MAX: usize = 32 << 20;
/// Time limit for receiving one body.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest time that a caller can wait for the result. After that, the caller receives a 202.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// An [`Invoker`] that accepts invocations for later. Cheap to clone.
#[derive(Clone)]
pub struct Deferring<I> {
    inner: I,
    journals: Journals,
    receiving: Shares<String>,
    /// Counts the bytes of looked-up answers until the front has taken them.
    looked_up: Shares<()>,
    opens: Option<CallerOpens>,
}

/// Decides from a request's head whether the sender may call the function.
pub type CallerOpens = Arc<dyn Fn(&Head, &RouteInfo<'_>) -> bool + Send + Sync>;

/// The target of a request: a function, or the invocations of the journal.
#[derive(Clone)]
pub enum Route<R> {
    Function(R),
    /// The invocations of the journal, below `/_invocations`.
    Invocations,
}

impl<I> Deferring<I> {
    pub fn new(inner: I, journals: Journals) -> Self {
        let receiving = Shares::new(RECEIVING_BYTES_MAX, RECEIVING_BYTES_MAX / 2);
        let looked_up = Shares::new(LOOKED_UP_BYTES_MAX, LOOKED_UP_BYTES_MAX);
        Self { inner, journals, receiving, looked_up, opens: None }
    }

    /// Lets callers see the invocations of functions that require keys or tokens. Without this
    /// call, no caller sees those invocations.
    #[must_use]
    pub fn with_callers(self, opens: CallerOpens) -> Self {
        Self { opens: Some(opens), ..self }
    }
}

impl<R: Routed> Routed for Route<R> {
    #[inline(always)]
    fn info(&self) -> RouteInfo<'_> {
        match self {
            Route::Function(route) => route.info(),
            Route::Invocations => invocations(),
        }
    }
}

/// The route information of `/_invocations`.
fn invocations() -> RouteInfo<'static> {
    static NAME: LazyLock<FunctionName> =
        LazyLock::new(|| FunctionName::new("invocations").expect("it is a valid name"));
    static METHODS: LazyLock<[String; 3]> =
        LazyLock::new(|| ["GET", "HEAD", "DELETE"].map(str::to_owned));
    RouteInfo {
        stream_idle_ms: 10_000,
        methods: &METHODS[..],
        access: Access::KeyIfSent,
        ..RouteInfo::new(&NAME, 10_000, 0)
    }
}

impl<I: Invoker> Invoker for Deferring<I> {
    type Route = Route<I::Route>;

    fn route(&self, name: &str, key: impl FnOnce() -> Option<u64>) -> Option<Self::Route> {
        match self.inner.route(name, key) {
            Some(route) => Some(Route::Function(route)),
            None if name == SEGMENT => Some(Route::Invocations),
            None => None,
        }
    }

    fn has_routed_hosts(&self) -> bool {
        self.inner.has_routed_hosts()
    }

    fn routed(&self, asked: &Asked<'_>) -> Found {
        self.inner.routed(asked)
    }

    fn routes(&self) -> Vec<Self::Route> {
        self.inner.routes().into_iter().map(Route::Function).collect()
    }

    async fn invoke(&self, route: &Self::Route, invocation: Invocation) -> Result<Reply, Fault> {
        match route {
            Route::Function(route) if !invocation.head.has_preference() => {
                self.inner.invoke(route, invocation).await
            }
            // Boxed to keep the futures of all other invocations small.
            Route::Function(route) => Box::pin(self.prefer(route, invocation)).await,
            Route::Invocations => {
                let reply = Box::pin(self.answer(invocation)).await?;
                held(reply, &self.looked_up)
            }
        }
    }
}

/// The wishes that a request's header fields express.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wishes {
    respond_async: bool,
    wait: Option<Duration>,
    key: Option<String>,
    order: Option<String>,
    due_unix_ms: u64,
}

impl<I: Invoker> Deferring<I> {
    async fn prefer(&self, route: &I::Route, invocation: Invocation) -> Result<Reply, Fault> {
        let wishes = match wishes(invocation.head.headers(), unix_ms()) {
            Ok(wishes) if wishes.respond_async => wishes,
            Ok(_) => return self.inner.invoke(route, invocation).await,
            Err(text) => return Ok(refused(&Problem::new(400, "M0516", text))),
        };
        let trigger = invocation.trigger;
        let head = invocation.head;
        let limit = route.info().body_bytes_max.min(BODY_BYTES_MAX);
        let wanted = invocation.body.length().unwrap_or(limit);
        if wanted > limit {
            return Err(Fault::BodyTooLarge { limit_bytes: limit });
        }
        let owner = route.info().name.as_str().to_owned();
        let room = self.receiving.take(owner, usize::try_from(wanted).unwrap_or(usize::MAX));
        let _room = room.map_err(|_| Fault::NodeFull)?;
        let received = tokio::time::timeout(RECEIVE_TIMEOUT, invocation.body.collect(limit)).await;
        let body = match received {
            Ok(Ok(body)) => body,
            Ok(Err(error)) => return Err(Fault::of_body(&error)),
            Err(_) => return Err(Fault::of_body(&BodyError::TimedOut)),
        };
        let name = route.info().name.as_str();
        let function = match route.info().tag {
            Some(tag) => format!("{name}@{tag}"),
            None => name.to_owned(),
        };
        let deferred = Deferred {
            key: wishes.key,
            order: wishes.order,
            due_unix_ms: wishes.due_unix_ms,
            ..Deferred::new(function, trigger, head, body)
        };
        // A namespace may have been deleted while the body arrived.
        if name.contains('.') && self.inner.route(name, || None).is_none() {
            return Err(Fault::NoSuchFunction);
        }
        let accepted = match self.journals.accept(deferred).await {
            Ok(accepted) => accepted,
            Err(AcceptError::Stopping) => return Err(Fault::Stopping),
            Err(error) => return Ok(refused(&problem_of(&error, Reader::Caller))),
        };
        if let Some(wait) = wishes.wait {
            let ended = self.journals.ended(accepted.id);
            if tokio::time::timeout(wait, ended).await.is_ok()
                && let Ok(Some(shown)) = self.journals.show(accepted.id).await
                && shown.stored.state != State::Waiting
            {
                return Ok(result(&shown, trigger));
            }
        }
        Ok(accepted_reply(trigger, accepted))
    }

    /// Returns whether the sender of a request may see an invocation. If the function requires a
    /// key, a token or a certificate, the sender must present one that opens the function. If only
    /// this machine may call the function, or if the function was removed, the sender must be on
    /// this machine.
    fn may_see(&self, head: &Head, shown: &Shown) -> bool {
        // After a function has been removed, no record says who was allowed to call it.
        let Some(route) = self.inner.route(&shown.stored.function, || None) else {
            return head.is_local();
        };
        match route.info().access {
            Access::Key | Access::Basic | Access::Jwt | Access::Mtls => {
                self.opens.as_ref().is_some_and(|opens| opens(head, &route.info()))
            }
            // A webhook signature covers one body, so it cannot prove who sent a later question.
            Access::Local | Access::Webhook => head.is_local(),
            Access::Unset | Access::Public | Access::KeyIfSent => true,
        }
    }

    /// Answers a request below `/_invocations`.
    async fn answer(&self, invocation: Invocation) -> Result<Reply, Fault> {
        let path = std::str::from_utf8(invocation.head.path()).unwrap_or_default();
        let path = path.trim_start_matches('/');
        let (id, rest) = path.split_once('/').unwrap_or((path, ""));
        let unknown = || {
            let text = "no such invocation: it does not exist, or it ended too long ago";
            refused(&Problem::new(404, "M0517", text))
        };
        let Some(id) = InvocationId::from_text(id) else { return Ok(unknown()) };
        let shown = match self.journals.show(id).await {
            Ok(Some(shown)) => shown,
            Ok(None) => return Ok(unknown()),
            Err(error) => return Ok(refused(&problem_of(&error, Reader::Caller))),
        };
        if !self.may_see(&invocation.head, &shown) {
            return Ok(unknown());
        }
        if invocation.head.method() == b"DELETE" {
            if !rest.is_empty() {
                return Ok(unknown());
            }
            return Ok(match self.journals.cancel(id).await {
                Ok(Cancelled::Waiting) => plain(204, Bytes::new()),
                Ok(Cancelled::Running) => plain(202, Bytes::new()),
                Ok(Cancelled::Ended) => {
                    refused(&Problem::new(409, "M0518", "the invocation has already ended"))
                }
                Ok(Cancelled::Unknown) => unknown(),
                Err(error) => refused(&problem_of(&error, Reader::Caller)),
            });
        }
        Ok(match rest {
            "" => json(200, &view(&shown, Reader::Caller)),
            "result" => result(&shown, invocation.trigger),
            _ => unknown(),
        })
    }
}

/// The reply to a caller whose invocation is on disk.
fn accepted_reply(trigger: Trigger, accepted: Accepted) -> Reply {
    let location = format!("/{SEGMENT}/{}", accepted.id);
    // CoAP has no code for 202. For a created resource it has 2.01 (RFC 7252, 5.9.1.1).
    let status = if trigger == Trigger::Coap { 201 } else { 202 };
    let body = serde_json::json!({
        "id": accepted.id.to_string(),
        "location": location,
        "new": accepted.is_new,
    });
    let mut reply = json(status, &body);
    let mut fields = reply.headers.to_vec();
    put_header(&mut fields, b"location", location.as_bytes());
    put_header(&mut fields, b"preference-applied", b"respond-async");
    reply.headers = fields.into();
    reply
}

/// Counts the reply's body against the limit until the front has taken it, so that callers who read
/// slowly cannot use up the memory.
fn held(reply: Reply, shares: &Shares<()>) -> Result<Reply, Fault> {
    let length = reply.body.length().unwrap_or(0);
    if length < HELD_BYTES_MIN {
        return Ok(reply);
    }
    let bytes = usize::try_from(length).unwrap_or(usize::MAX);
    // Building a JSON document needs a second copy of the bytes.
    let share = shares.take((), bytes.saturating_mul(2)).map_err(|_| Fault::NodeFull)?;
    let source = Box::new(Held { body: reply.body, _share: share });
    Ok(Reply { body: Body::Stream { source, length: Some(length) }, ..reply })
}

/// Answers shorter than this do not count against the limit.
const HELD_BYTES_MIN: u64 = 4 << 10;
/// The size of the pieces in which a body is handed to the front, so that the front's buffers never
/// hold the whole body.
const PIECE_BYTES: usize = 64 << 10;

/// A whole body, and its share of the limit on looked-up answers.
struct Held {
    body: Body,
    _share: Share<()>,
}

impl BodySource for Held {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let Body::Whole(bytes) = &mut self.body else { return Poll::Ready(None) };
        if bytes.is_empty() {
            return Poll::Ready(None);
        }
        let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
        Poll::Ready(Some(Ok(piece)))
    }
}

/// Returns the function's own answer, or says that there is none yet.
fn result(shown: &Shown, trigger: Trigger) -> Reply {
    let stored = &shown.stored;
    match (stored.state, &stored.last) {
        (State::Waiting, _) => {
            // CoAP has no code for 202, and 2.05 would look like the result. 5.03 with Max-Age asks
            // the client to try again after that time (RFC 7252, 5.9.3.4).
            let status = if trigger == Trigger::Coap { 503 } else { 202 };
            let mut reply = json(status, &view(shown, Reader::Caller));
            let mut fields = reply.headers.to_vec();
            put_header(&mut fields, b"retry-after", b"1");
            if trigger == Trigger::Coap {
                put_header(&mut fields, b"cache-control", b"max-age=1");
            }
            reply.headers = fields.into();
            reply
        }
        (State::Cancelled, _) | (_, None) => {
            refused(&Problem::new(410, "M0519", "the invocation was cancelled"))
        }
        (_, Some(last)) => match (&last.fault, &last.body) {
            (Some(code), _) => {
                let title = mote_api::explain(code).map_or("the function failed", |row| row.title);
                refused(&Problem::new(last.status, code, title))
            }
            (None, Some(body)) => Reply {
                status: last.status,
                headers: last.fields.clone(),
                body: Body::whole(body.clone()),
                phases: Phases::default(),
            },
            (None, None) => {
                let text = "the answer was longer than the journal keeps, which is 1 MiB";
                refused(&Problem::new(410, "M0519", text))
            }
        },
    }
}

/// Reads the wishes from a request's header fields. Returns an error text if a wish cannot be
/// fulfilled.
fn wishes(block: &[u8], now_ms: u64) -> Result<Wishes, String> {
    let mut wishes = Wishes::default();
    for (name, value) in headers(block) {
        let text = || std::str::from_utf8(value).map_err(|_| "a field is not UTF-8".to_owned());
        match name {
            b"prefer" => {
                for preference in text()?.split(',') {
                    // The parameters after the semicolon do not change the meaning of these
                    // preferences (RFC 7240, 2).
                    let preference = preference.split(';').next().unwrap_or_default().trim();
                    let (token, value) = preference.split_once('=').unwrap_or((preference, ""));
                    match token.trim().to_ascii_lowercase().as_str() {
                        "respond-async" => wishes.respond_async = true,
                        "wait" => {
                            let seconds = value.trim().trim_matches('"').parse::<u64>();
                            let seconds = seconds
                                .map_err(|_| "Prefer: wait is a number of seconds".to_owned())?;
                            wishes.wait = Some(Duration::from_secs(seconds).min(WAIT_MAX));
                        }
                        _ => {}
                    }
                }
            }
            b"idempotency-key" => wishes.key = Some(text()?.trim().trim_matches('"').to_owned()),
            b"mote-order-key" => wishes.order = Some(text()?.trim().to_owned()),
            b"mote-after" => {
                let wait_ms = mote_spec::quantity::parse_duration_ms(text()?.trim())
                    .map_err(|_| "Mote-After: a duration such as 90s or 2h".to_owned())?;
                wishes.due_unix_ms = now_ms.saturating_add(wait_ms);
            }
            b"mote-at" => {
                let at = mote_api::Timestamp::parse(text()?.trim());
                let at =
                    at.map_err(|_| "Mote-At: a time such as 2030-01-31T06:00:00Z".to_owned())?;
                wishes.due_unix_ms = at.unix_ms();
            }
            _ => {}
        }
    }
    Ok(wishes)
}

fn json(status: u16, value: &impl serde::Serialize) -> Reply {
    let body = serde_json::to_vec(value).expect("it has only string keys");
    typed(status, b"application/json", body)
}

fn refused(problem: &Problem) -> Reply {
    let body = serde_json::to_vec(problem).expect("it has only string keys");
    let mut reply = typed(problem.status, b"application/problem+json", body);
    if matches!(problem.status, 429 | 503 | 507) {
        let mut fields = reply.headers.to_vec();
        put_header(&mut fields, b"retry-after", b"1");
        reply.headers = fields.into();
    }
    reply
}

fn typed(status: u16, media_type: &[u8], body: Vec<u8>) -> Reply {
    let mut fields = Vec::new();
    put_header(&mut fields, b"content-type", media_type);
    put_header(&mut fields, b"cache-control", b"no-store");
    Reply {
        status,
        headers: fields.into(),
        body: Body::whole(Bytes::from(body)),
        phases: Phases::default(),
    }
}

fn plain(status: u16, body: Bytes) -> Reply {
    Reply { status, headers: Bytes::new(), body: Body::whole(body), phases: Phases::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(fields: &[(&str, &str)]) -> Result<Wishes, String> {
        let mut head = Head::builder(b"POST", b"/", b"");
        for (name, value) in fields {
            head.header(name.as_bytes(), value.as_bytes());
        }
        let head = head.finish();
        wishes(head.headers(), 1_000)
    }

    #[test]
    fn preferences() {
        let wishes = of(&[("Prefer", "return=minimal; foo, Respond-Async ; x=1, wait=5")]);
        let expected =
            Wishes { respond_async: true, wait: Some(Duration::from_secs(5)), ..Wishes::default() };
        assert_eq!(wishes, Ok(expected));
        assert_eq!(of(&[("Prefer", "handling=lenient")]), Ok(Wishes::default()));
        let long = of(&[("Prefer", "wait=1000000000000")]).expect("valid");
        assert_eq!(long.wait, Some(WAIT_MAX));
        assert!(of(&[("Prefer", "wait=soon")]).is_err());
    }

    #[test]
    fn keys_and_times() {
        let wishes = of(&[("Idempotency-Key", "\"a b\""), ("Mote-After", "2s")]).expect("valid");
        assert_eq!((wishes.key.as_deref(), wishes.due_unix_ms), (Some("a b"), 3_000));
        let wishes = of(&[("Mote-At", "1970-01-01T00:01:00Z"), ("Mote-Order-Key", "k")]);
        let wishes = wishes.expect("valid");
        assert_eq!((wishes.order.as_deref(), wishes.due_unix_ms), (Some("k"), 60_000));
        assert!(of(&[("Mote-After", "later")]).is_err());
        assert!(of(&[("Mote-At", "noon")]).is_err());
    }
}
