//! Bodies of HTTP/2 requests as hyper receives them, and trailer fields in both directions.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use mote_core::body::{BodyError, BodySource};
use mote_core::invocation::{headers, put_header};
use tokio::time::Instant;

use super::answer;

/// A request body with the function's limit and a limit on silence.
pub(super) struct StreamBody {
    incoming: Incoming,
    limit: u64,
    seen: u64,
    idle: Pin<Box<tokio::time::Sleep>>,
    idle_timeout: Duration,
    trailers: Bytes,
}

impl StreamBody {
    pub(super) fn new(incoming: Incoming, limit: u64, idle_timeout: Duration) -> Self {
        let idle = Box::pin(tokio::time::sleep(idle_timeout));
        Self { incoming, limit, seen: 0, idle, idle_timeout, trailers: Bytes::new() }
    }
}

impl BodySource for StreamBody {
    fn take_trailers(&mut self) -> Bytes {
        std::mem::take(&mut self.trailers)
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            match hyper::body::Body::poll_frame(Pin::new(&mut self.incoming), cx) {
                Poll::Pending => {
                    if self.idle.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(Some(Err(BodyError::TimedOut)));
                    }
                    return Poll::Pending;
                }
                Poll::Ready(None) => return Poll::Ready(None),
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

/// Trailer fields as a header block, without those that frame a message.
fn block_of(fields: &HeaderMap) -> Bytes {
    let mut block = Vec::new();
    for (name, value) in fields {
        if !answer::is_framing(name.as_str().as_bytes()) {
            put_header(&mut block, name.as_str().as_bytes(), value.as_bytes());
        }
    }
    block.into()
}

/// The fields of a header block as HTTP/2 sends them. Fields that are not valid are left out.
pub(super) fn fields_of(block: &[u8]) -> HeaderMap {
    let valid = headers(block).filter(|(name, _)| !answer::is_framing(name));
    valid
        .filter_map(|(name, value)| {
            let value = HeaderValue::from_bytes(value).ok()?;
            Some((HeaderName::from_bytes(name).ok()?, value))
        })
        .collect()
}
