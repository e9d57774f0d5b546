//! Keeps the bodies of calls and answers for a guest or a recording that needs them later.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use mote_core::body::{Body, BodyError, BodySource};
use parking_lot::Mutex;

/// A longer body is not kept.
const BODY_BYTES_MAX: usize = 1 << 20;
const TOO_LONG: &str = "its body is longer than 1 MiB";
const NO_ROOM: &str = "too many bytes were kept at that time";

/// How many bytes may still be kept.
#[derive(Debug)]
pub(crate) struct Budget(AtomicUsize);

impl Budget {
    pub(crate) fn of(bytes: usize) -> Arc<Self> {
        Arc::new(Self(bytes.into()))
    }
}

/// Bytes taken from a budget. Dropping this gives them back.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Share {
    /// Takes more bytes. Returns whether the budget had that many.
    fn grow(&mut self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        let taken = self.budget.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        self.bytes += if taken { bytes } else { 0 };
        taken
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// A body. If it is a stream, it is kept while it is read.
#[derive(Debug)]
pub(crate) enum Kept {
    /// The share gives its bytes back when it is dropped.
    Whole {
        bytes: Bytes,
        _share: Share,
    },
    Read(Arc<Mutex<Reading>>),
    Missing(&'static str),
}

#[derive(Debug)]
pub(crate) struct Reading {
    bytes: Vec<u8>,
    is_complete: bool,
    missing: Option<&'static str>,
    share: Share,
}

impl Reading {
    fn keep(&mut self, chunk: &[u8]) {
        if self.missing.is_some() {
            return;
        }
        if self.bytes.len() + chunk.len() > BODY_BYTES_MAX {
            self.missing = Some(TOO_LONG);
        } else if !self.share.grow(chunk.len()) {
            self.missing = Some(NO_ROOM);
        } else {
            self.bytes.extend_from_slice(chunk);
        }
    }
}

/// A value that lives for as long as a stream is read.
pub(crate) type Guest = Box<dyn Any + Send>;

/// Passes a stream on, and keeps the chunks that pass.
struct Tee {
    source: Box<dyn BodySource>,
    kept: Arc<Mutex<Reading>>,
    _guest: Option<Guest>,
}

impl BodySource for Tee {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let polled = self.source.poll_chunk(cx);
        match &polled {
            Poll::Ready(None) => self.kept.lock().is_complete = true,
            Poll::Ready(Some(Ok(chunk))) => self.kept.lock().keep(chunk),
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
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

impl Kept {
    /// Keeps a body without changing what its reader receives. If it is a stream, `guest` is
    /// dropped when the stream's reader is done with it, otherwise at once.
    pub(crate) fn of(body: &mut Body, budget: &Arc<Budget>, guest: Option<Guest>) -> Self {
        let mut share = Share { budget: budget.clone(), bytes: 0 };
        match std::mem::take(body) {
            Body::Stream { source, length } => {
                let kept = Reading { bytes: Vec::new(), is_complete: false, missing: None, share };
                let kept = Arc::new(Mutex::new(kept));
                let source = Box::new(Tee { source, kept: kept.clone(), _guest: guest });
                *body = Body::Stream { source, length };
                Self::Read(kept)
            }
            whole => {
                let bytes = match &whole {
                    Body::Whole(bytes) => bytes.clone(),
                    _ => Bytes::new(),
                };
                *body = whole;
                if bytes.len() > BODY_BYTES_MAX {
                    Self::Missing(TOO_LONG)
                } else if share.grow(bytes.len()) {
                    Self::Whole { bytes, _share: share }
                } else {
                    Self::Missing(NO_ROOM)
                }
            }
        }
    }

    /// The body, or why it is not there.
    pub(crate) fn bytes(&self) -> Result<Bytes, &'static str> {
        match self {
            Self::Whole { bytes, .. } => Ok(bytes.clone()),
            Self::Missing(why) => Err(why),
            Self::Read(kept) => {
                let kept = kept.lock();
                match (kept.missing, kept.is_complete) {
                    (Some(why), _) => Err(why),
                    (None, false) => Err("its body did not arrive to its end"),
                    (None, true) => Ok(kept.bytes.clone().into()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body in pieces of one kibibyte.
    struct Pieces(usize);

    impl BodySource for Pieces {
        fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
            let Some(left) = self.0.checked_sub(1) else { return Poll::Ready(None) };
            self.0 = left;
            Poll::Ready(Some(Ok(Bytes::from_static(&[b'x'; 1 << 10]))))
        }
    }

    #[tokio::test]
    async fn a_body_is_kept_while_it_is_read() {
        let budget = Budget::of(4 << 20);
        let mut whole = Body::whole("text");
        let kept = Kept::of(&mut whole, &budget, None);
        assert_eq!(whole.collect(10).await.unwrap(), "text");
        assert_eq!(kept.bytes().unwrap(), "text");
        for (pieces, expected) in [(3, Ok(3 << 10)), (2_000, Err(TOO_LONG))] {
            let mut body = Body::Stream { source: Box::new(Pieces(pieces)), length: None };
            let kept = Kept::of(&mut body, &budget, None);
            assert_eq!(kept.bytes().unwrap_err(), "its body did not arrive to its end");
            assert_eq!(body.collect(1 << 30).await.unwrap().len(), pieces << 10);
            assert_eq!(kept.bytes().map(|bytes| bytes.len()), expected);
        }
        drop(kept);
        assert_eq!(budget.0.load(Ordering::Relaxed), 4 << 20);
    }

    #[tokio::test]
    async fn no_more_is_kept_than_there_is_room_for() {
        let budget = Budget::of(6 << 10);
        let stream = |pieces| Body::Stream { source: Box::new(Pieces(pieces)), length: None };
        let (mut first, mut second, mut third) = (stream(4), stream(4), Body::whole("x"));
        let kept = Kept::of(&mut first, &budget, None);
        first.collect(1 << 30).await.unwrap();
        let less = Kept::of(&mut second, &budget, None);
        assert_eq!(second.collect(1 << 30).await.unwrap().len(), 4 << 10, "all is passed on");
        assert_eq!((kept.bytes().is_ok(), less.bytes()), (true, Err(NO_ROOM)));
        assert_eq!(Kept::of(&mut third, &budget, None).bytes(), Err(NO_ROOM));
        drop((kept, less));
        assert!(Kept::of(&mut third, &budget, None).bytes().is_ok());
    }

    #[tokio::test]
    async fn a_guest_leaves_when_nobody_reads_any_more() {
        let budget = Budget::of(1 << 20);
        let guest = Arc::new(());
        let mut body = Body::Stream { source: Box::new(Pieces(3)), length: None };
        let _kept = Kept::of(&mut body, &budget, Some(Box::new(guest.clone())));
        assert_eq!(Arc::strong_count(&guest), 2);
        drop(body);
        assert_eq!(Arc::strong_count(&guest), 1);
    }
}
