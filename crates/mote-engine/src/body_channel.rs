//! A streamed answer on its way from a worker's socket to the front that sends it.
//!
//! The worker may have a window of bytes under way; what the front takes out is credited back, so
//! a slow client slows its own stream and nobody else's, and memory stays bounded.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use mote_core::body::{BodyError, BodySource};
use parking_lot::Mutex;

/// Called with the bytes taken out (0 when the reader went away).
pub(crate) type OnTaken = Box<dyn Fn(Taken) + Send + Sync>;

/// What the reader did.
pub(crate) enum Taken {
    /// It consumed that many bytes.
    Bytes(u32),
    /// It went away before the end.
    Dropped,
}

#[derive(Default)]
struct State {
    chunks: VecDeque<Bytes>,
    ended: bool,
    error: Option<BodyError>,
    waker: Option<Waker>,
}

/// The writing end, held by the stream in the pool.
#[derive(Clone)]
pub(crate) struct AnswerSink(Arc<Mutex<State>>);

/// The reading end, inside a [`mote_core::body::Body::Stream`].
pub(crate) struct AnswerSource {
    state: Arc<Mutex<State>>,
    on_taken: OnTaken,
    done: bool,
}

/// A connected pair.
pub(crate) fn answer_channel(on_taken: OnTaken) -> (AnswerSink, AnswerSource) {
    let state = Arc::new(Mutex::new(State::default()));
    (AnswerSink(state.clone()), AnswerSource { state, on_taken, done: false })
}

impl AnswerSink {
    /// Adds a chunk and, with `end`, closes.
    pub(crate) fn push(&self, chunk: Bytes, end: bool) {
        let mut state = self.0.lock();
        if !chunk.is_empty() {
            state.chunks.push_back(chunk);
        }
        state.ended |= end;
        if let Some(waker) = state.waker.take() {
            drop(state);
            waker.wake();
        }
    }

    /// Ends the answer before its end.
    pub(crate) fn fail(&self, error: BodyError) {
        let mut state = self.0.lock();
        if !state.ended {
            state.error = Some(error);
        }
        if let Some(waker) = state.waker.take() {
            drop(state);
            waker.wake();
        }
    }
}

impl BodySource for AnswerSource {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let mut state = self.state.lock();
        if let Some(chunk) = state.chunks.pop_front() {
            drop(state);
            (self.on_taken)(Taken::Bytes(chunk.len() as u32));
            return Poll::Ready(Some(Ok(chunk)));
        }
        if let Some(error) = state.error.take() {
            self.done = true;
            return Poll::Ready(Some(Err(error)));
        }
        if state.ended {
            self.done = true;
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for AnswerSource {
    fn drop(&mut self) {
        if !self.done {
            let ended = self.state.lock().ended;
            if !ended {
                (self.on_taken)(Taken::Dropped);
            }
        }
    }
}
