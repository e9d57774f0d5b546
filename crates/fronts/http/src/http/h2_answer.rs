//! HTTP/2 answers in the form that hyper sends.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use hyper::header::HeaderMap;
use mote_core::body::{Body, BodyError};
use parking_lot::Mutex;
use tokio::time::Sleep;

use super::h2_activity::{OpenStream, Piece, Streamed, Waiting};
use super::h2_body::fields_of;
use crate::ids::now_ns;

/// An answer body for hyper. The stream counts as open until the body is dropped.
pub(super) struct AnswerBody {
    body: Answer,
    /// Counts the bytes of a whole answer. For a streamed answer, it only gives access to the
    /// connection's counters, and the pieces count themselves.
    waiting: Option<Waiting>,
    open: Option<OpenStream>,
    state: State,
    /// How long the end of the answer may wait for the rest of the request's body. Created at the
    /// first wait.
    timeout: Option<Pin<Box<Sleep>>>,
}

/// How much of an answer has been handed to hyper.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// There may be further pieces.
    Pieces,
    /// All pieces have been handed over, and there are no trailers.
    Ending,
    /// Everything has been handed over.
    Over,
}

enum Answer {
    /// An empty body or a body of one piece.
    Short(Body),
    /// Pieces in the order in which the function sends them. The connection shares the body, and
    /// drops it if the client takes nothing.
    Streamed(Arc<Streamed>, Option<u64>),
}

impl AnswerBody {
    pub(super) fn new(body: Body, open: OpenStream, waiting: Waiting) -> Self {
        let body = match body {
            Body::Stream { .. } => {
                let length = body.length();
                let body = Mutex::new(Some(body));
                let held = Mutex::new(open.activity.wait_anyway(0));
                let given_ns = AtomicU64::new(0);
                let streamed = Arc::new(Streamed { body, given_ns, held });
                streamed.count_held();
                let mut all = open.activity.streamed.lock();
                // Entries of ended answers are removed before the list grows.
                if all.len() == all.capacity() {
                    all.retain(|one| one.strong_count() > 0);
                }
                all.push(Arc::downgrade(&streamed));
                Answer::Streamed(streamed, length)
            }
            body => Answer::Short(body),
        };
        Self { body, waiting: Some(waiting), open: Some(open), state: State::Pieces, timeout: None }
    }

    /// An empty body for a stream that already counts as closed.
    pub(super) fn empty() -> Self {
        let body = Answer::Short(Body::Empty);
        Self { body, waiting: None, open: None, state: State::Over, timeout: None }
    }

    /// Waits for the rest of the request's body.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Self { open, timeout, .. } = self;
        open.as_ref().map_or(Poll::Ready(()), |open| open.unread.poll_rest(timeout, cx))
    }

    /// The trailer fields, which follow the last piece.
    fn trailers(&mut self) -> HeaderMap {
        match &mut self.body {
            Answer::Short(_) => HeaderMap::new(),
            Answer::Streamed(streamed, _) => {
                let block = streamed.body.lock().as_mut().map(Body::take_trailers);
                fields_of(&block.unwrap_or_default())
            }
        }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        let streamed = match &mut self.body {
            Answer::Short(body) => {
                let waiting = &mut self.waiting;
                let piece = |bytes| Piece { bytes, waiting: waiting.take() };
                return body.poll_chunk(cx).map(|chunk| chunk.map(|chunk| chunk.map(piece)));
            }
            Answer::Streamed(streamed, _) => streamed,
        };
        let mut body = streamed.body.lock();
        // The connection has dropped the answer meanwhile, so the stream is reset.
        let Some(body) = body.as_mut() else {
            return Poll::Ready(Some(Err(BodyError::Incomplete)));
        };
        let polled = body.poll_chunk(cx);
        let given_ns = if matches!(polled, Poll::Ready(Some(Ok(_)))) { now_ns() } else { 0 };
        streamed.given_ns.store(given_ns, Ordering::Relaxed);
        let activity = self.waiting.as_ref().map(|waiting| &waiting.activity);
        let piece = |bytes: Bytes| {
            let waiting = activity.map(|activity| activity.wait_anyway(bytes.len()));
            Piece { bytes, waiting }
        };
        polled.map(|chunk| chunk.map(|chunk| chunk.map(piece)))
    }
}

impl hyper::body::Body for AnswerBody {
    type Data = Piece;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, BodyError>>> {
        if self.state == State::Pieces {
            let polled = self.poll_piece(cx);
            if !matches!(polled, Poll::Ready(None)) {
                if let (Poll::Ready(Some(Ok(piece))), Some(open)) = (&polled, &mut self.open) {
                    open.logged.sent(piece.bytes.len());
                }
                return polled.map(|piece| piece.map(|piece| piece.map(Frame::data)));
            }
            let fields = self.trailers();
            if !fields.is_empty() {
                self.state = State::Over;
                return Poll::Ready(Some(Ok(Frame::trailers(fields))));
            }
            self.state = State::Ending;
        }
        if self.state == State::Ending {
            std::task::ready!(self.poll_rest(cx));
            self.state = State::Over;
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        let waits = self.open.as_ref().is_some_and(|open| open.unread.is_open());
        matches!(self.body, Answer::Short(Body::Empty)) && !waits
    }

    fn size_hint(&self) -> SizeHint {
        let length = match &self.body {
            Answer::Short(body) => body.length(),
            Answer::Streamed(_, length) => *length,
        };
        length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
