//! A place among the calls that a function accepts at once.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::body::{Body, BodyError, BodySource};
use crate::shares::Share;

/// The place that a call holds until its answer is complete. Dropping the last clone frees the
/// place, so a call that fails, or whose caller leaves, frees it too.
#[derive(Debug, Clone)]
pub struct Place(#[expect(dead_code, reason = "held until it is dropped")] Arc<Share<u64>>);

impl Place {
    /// Makes a place from this share of the function's calls.
    pub fn new(share: Share<u64>) -> Self {
        Self(Arc::new(share))
    }

    /// Holds the place until the body of an answer has ended, if the body is a stream. A whole body
    /// has already ended, so the place is freed at once.
    #[must_use]
    pub fn until_end_of(self, body: Body) -> Body {
        match body {
            Body::Stream { source, length } => {
                let source = Box::new(Placed { source, place: Some(self) });
                Body::Stream { source, length }
            }
            whole => whole,
        }
    }
}

/// All places are equal, because requests are compared by their content and not by their place.
impl PartialEq for Place {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Place {}

struct Placed {
    source: Box<dyn BodySource>,
    place: Option<Place>,
}

impl BodySource for Placed {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let polled = self.source.poll_chunk(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.place = None;
        }
        polled
    }

    fn take_trailers(&mut self) -> Bytes {
        self.source.take_trailers()
    }

    fn held_bytes(&self) -> usize {
        self.source.held_bytes()
    }
}
