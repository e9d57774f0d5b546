//! Carries a streamed answer from a worker's socket to the front that sends it to the caller.
//!
//! The worker may have only a window of bytes under way. Bytes that the front takes are credited to
//! the worker. So a slow client slows only its own stream, and memory stays bounded.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use mote_core::body::{BodyError, BodySource};
use mote_core::chunks::Chunks;
use parking_lot::Mutex;

/// Called with the number of bytes that were taken from BODY frames. Bytes that arrived with RESULT
/// do not count.
pub(crate) type OnTaken = Box<dyn Fn(Taken) + Send + Sync>;

/// What the reading end did.
pub(crate) enum Taken {
    /// The reading end took this many bytes.
    Bytes(u32),
    /// The reading end was dropped before the end of the answer.
    Dropped,
}

#[derive(Default)]
struct State {
    chunks: Chunks,
    ended: bool,
    error: Option<BodyError>,
    waker: Option<Waker>,
}

/// The writing end, held by the stream in the pool.
#[derive(Clone)]
pub(crate) struct AnswerSink(Arc<Mutex<State>>);

/// The reading end, which is inside a [`mote_core::body::Body::Stream`].
pub(crate) struct AnswerSource {
    state: Arc<Mutex<State>>,
    on_taken: OnTaken,
    /// How many bytes at the beginning earn the worker no credit.
    inline: usize,
    done: bool,
}

/// Creates a connected pair of ends. The answer begins with `inline`, which needed no credit.
pub(crate) fn answer_channel(inline: Bytes, on_taken: OnTaken) -> (AnswerSink, AnswerSource) {
    let length = inline.len();
    let mut state = State::default();
    state.chunks.push(inline, true);
    let state = Arc::new(Mutex::new(state));
    (AnswerSink(state.clone()), AnswerSource { state, on_taken, inline: length, done: false })
}

impl AnswerSink {
    /// Adds a chunk, and closes the channel if `end` is true.
    pub(crate) fn push(&self, chunk: Bytes, end: bool) {
        let mut state = self.0.lock();
        let reader_waits = state.waker.is_some();
        state.chunks.push(chunk, reader_waits);
        state.ended |= end;
        if let Some(waker) = state.waker.take() {
            drop(state);
            waker.wake();
        }
    }

    /// Ends the answer early with an error.
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
        if let Some(chunk) = state.chunks.pop() {
            drop(state);
            let inline = self.inline.min(chunk.len());
            self.inline -= inline;
            if chunk.len() > inline {
                (self.on_taken)(Taken::Bytes((chunk.len() - inline) as u32));
            }
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

    fn held_bytes(&self) -> usize {
        self.state.lock().chunks.held_bytes()
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
