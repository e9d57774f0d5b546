//! A place among the calls that a function accepts at once.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::body::{Body, BodyError, BodySource};
use crate::shares::Share;

/// A place that a call holds until its answer is complete. Dropping the last clone frees it, so that
/// a call that fails, or whose caller leaves, frees it too.
#[derive(Debug, Clone)]
pub struct Place(#[expect(dead_code, reason = "held until it is dropped")] Arc<Share<u64>>);

impl Place {
    /// The place of a call that has taken this share of its function.
    pub fn new(share: Share<u64>) -> Self {
        Self(Arc::new(share))
    }

    /// Keeps the place until the body of an answer has ended, if it is streamed. A whole one has
    /// ended already.
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

/// Requests are compared by what they ask for.
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
