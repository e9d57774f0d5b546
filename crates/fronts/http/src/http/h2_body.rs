//! HTTP/2 request bodies in the form that hyper provides, and trailer fields in both directions.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use mote_core::body::{BodyError, BodySource};
use mote_core::invocation::{headers, put_header};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

use super::answer;
use super::route::LINGER_BYTES_MAX;

/// How long the end of an answer may wait for the rest of its request's body.
const REST_TIMEOUT: Duration = Duration::from_secs(1);

/// Receives a request's body when the function no longer reads it, so that the answer can wait for
/// the rest of the body.
///
/// If the rest were not read, the stream would be reset with NO_ERROR after the answer (RFC 9113,
/// 8.1). That is correct, but some clients (curl 7.88, part of Debian 12) then lose the answer. The
/// answer waits only for a short body. A client that sends a long body or does not declare its
/// length may itself wait for the end of the answer first.
#[derive(Clone, Default)]
pub(super) struct Unread(Option<Arc<Mutex<Rest>>>);

#[derive(Default)]
enum Rest {
    /// The body may still be read.
    #[default]
    Held,
    /// The body may still be read, and the answer waits for its end.
    Awaited(Waker),
    /// The body is no longer read.
    Left(Incoming),
    /// The body has ended, or the answer does not wait for it.
    Over,
}

impl Unread {
    /// Whether there may be a rest of the body to wait for.
    pub(super) fn is_open(&self) -> bool {
        self.0.as_ref().is_some_and(|rest| !matches!(*rest.lock(), Rest::Over))
    }

    fn replace(&self, now: Rest) {
        let Some(rest) = &self.0 else { return };
        let before = std::mem::replace(&mut *rest.lock(), now);
        if let Rest::Awaited(waker) = before {
            waker.wake();
        }
    }

    /// Waits until the body has ended or too much time has passed. The first call that has to wait
    /// sets `timeout`.
    pub(super) fn poll_rest(
        &self,
        timeout: &mut Option<Pin<Box<Sleep>>>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let Some(rest) = &self.0 else { return Poll::Ready(()) };
        let mut rest = rest.lock();
        loop {
            match &mut *rest {
                Rest::Over => return Poll::Ready(()),
                Rest::Held | Rest::Awaited(_) => *rest = Rest::Awaited(cx.waker().clone()),
                Rest::Left(incoming) => {
                    match hyper::body::Body::poll_frame(Pin::new(incoming), cx) {
                        Poll::Ready(Some(Ok(_))) => continue,
                        Poll::Ready(None | Some(Err(_))) => return Poll::Ready(()),
                        Poll::Pending => {}
                    }
                }
            }
            let new = || Box::pin(tokio::time::sleep(REST_TIMEOUT));
            return timeout.get_or_insert_with(new).as_mut().poll(cx);
        }
    }
}

/// A request body as it arrives. When it is dropped, the answer can still wait for the rest.
pub(super) struct Arriving {
    /// `None` only while this value is being dropped.
    incoming: Option<Incoming>,
    unread: Unread,
}

impl Arriving {
    pub(super) fn new(incoming: Incoming) -> Self {
        let length = hyper::body::Body::size_hint(&incoming).exact();
        let is_short = length.is_some_and(|length| length <= LINGER_BYTES_MAX as u64);
        let waits = is_short && !hyper::body::Body::is_end_stream(&incoming);
        let unread = Unread(waits.then(Arc::default));
        Self { incoming: Some(incoming), unread }
    }

    /// The place that receives the rest of the body.
    pub(super) fn unread(&self) -> Unread {
        self.unread.clone()
    }

    fn incoming(&mut self) -> Pin<&mut Incoming> {
        Pin::new(self.incoming.as_mut().expect("it is there until this is dropped"))
    }

    /// Whether the whole body has been read.
    pub(super) fn is_over(&self) -> bool {
        self.incoming.as_ref().is_none_or(hyper::body::Body::is_end_stream)
    }

    /// Tells a waiting answer that the whole body has been read.
    fn end(&self) {
        self.unread.replace(Rest::Over);
    }

    /// The length of the body, if the client has declared it.
    pub(super) fn length(&self) -> Option<u64> {
        self.incoming.as_ref().and_then(|incoming| hyper::body::Body::size_hint(incoming).exact())
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        let is_over = self.is_over();
        let left = self.incoming.take().filter(|_| !is_over);
        self.unread.replace(left.map_or(Rest::Over, Rest::Left));
    }
}

/// A request body that enforces the function's length limit and a limit on silence.
pub(super) struct StreamBody {
    body: Arriving,
    limit: u64,
    seen: u64,
    idle: Pin<Box<tokio::time::Sleep>>,
    idle_timeout: Duration,
    trailers: Bytes,
}

impl StreamBody {
    pub(super) fn new(body: Arriving, limit: u64, idle_timeout: Duration) -> Self {
        let idle = Box::pin(tokio::time::sleep(idle_timeout));
        Self { body, limit, seen: 0, idle, idle_timeout, trailers: Bytes::new() }
    }
}

impl BodySource for StreamBody {
    fn take_trailers(&mut self) -> Bytes {
        std::mem::take(&mut self.trailers)
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            match hyper::body::Body::poll_frame(self.body.incoming(), cx) {
                Poll::Pending => {
                    if self.idle.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(Some(Err(BodyError::TimedOut)));
                    }
                    return Poll::Pending;
                }
                Poll::Ready(None) => {
                    self.body.end();
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Some(Err(BodyError::Incomplete))),
                Poll::Ready(Some(Ok(frame))) => {
                    let data = match frame.into_data() {
                        Ok(data) => data,
                        Err(frame) => {
                            if let Ok(fields) = frame.into_trailers() {
                                self.trailers = block_of(&fields);
                            }
                            continue;
                        }
                    };
                    if data.is_empty() {
                        continue;
                    }
                    let deadline = Instant::now() + self.idle_timeout;
                    self.idle.as_mut().reset(deadline);
                    self.seen += data.len() as u64;
                    if self.seen > self.limit {
                        return Poll::Ready(Some(Err(BodyError::TooLarge(self.limit))));
                    }
                    return Poll::Ready(Some(Ok(data)));
                }
            }
        }
    }
}

/// Trailer fields as a header block, except those that frame a message.
fn block_of(fields: &HeaderMap) -> Bytes {
    let mut block = Vec::new();
    for (name, value) in fields {
        if !answer::is_framing(name.as_str().as_bytes()) {
            put_header(&mut block, name.as_str().as_bytes(), value.as_bytes());
        }
    }
    block.into()
}

/// The fields of a header block in the form that HTTP/2 sends. Invalid fields are left out.
pub(super) fn fields_of(block: &[u8]) -> HeaderMap {
    let valid = headers(block).filter(|(name, _)| !answer::is_framing(name));
    valid
        .filter_map(|(name, value)| {
            let value = HeaderValue::from_bytes(value).ok()?;
            Some((HeaderName::from_bytes(name).ok()?, value))
        })
        .collect()
}
