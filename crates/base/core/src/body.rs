//! Bodies of requests and answers: empty, whole, or in chunks with backpressure.

use std::fmt;
use std::task::{Context, Poll};

use bytes::Bytes;

/// Why a body stopped before its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The body is longer than the limit (bytes).
    #[error("body is longer than {0} bytes")]
    TooLarge(u64),
    /// The sender closed the connection or broke its framing.
    #[error("body ended early")]
    Incomplete,
    /// The sender was silent for too long.
    #[error("body was not received in time")]
    TimedOut,
    /// The worker failed after its answer had begun.
    #[error("function failed while it was answering")]
    WorkerFailed,
}

/// A body that arrives in chunks. Dropping the body tells the sender that nobody will read the
/// rest.
pub trait BodySource: Send {
    /// The next chunk; `None` at the end. A chunk is never empty. Only one task polls at a time,
    /// and it must not poll again after `None` or an error. Must not block.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>>;

    /// The trailer fields after the last chunk, as a header block; empty if there were none. Called
    /// once, after `None`. Must not block.
    fn take_trailers(&mut self) -> Bytes {
        Bytes::new()
    }

    /// The approximate memory of the bytes that have arrived but have not been taken. Must not
    /// block.
    fn held_bytes(&self) -> usize {
        0
    }
}

/// A request or answer body.
#[derive(Default)]
pub enum Body {
    /// No bytes.
    #[default]
    Empty,
    /// The complete body.
    Whole(Bytes),
    /// A body in chunks, with its length if that is known in advance.
    Stream {
        /// The source of the chunks.
        source: Box<dyn BodySource>,
        /// Declared length in bytes.
        length: Option<u64>,
    },
}

impl Body {
    /// The approximate memory that the body occupies. For a whole body, this is all of it. For a
    /// stream, it is the bytes that have arrived but have not been taken, if the source counts
    /// them.
    pub fn held_bytes(&self) -> usize {
        match self {
            Body::Empty => 0,
            Body::Whole(bytes) => bytes.len(),
            Body::Stream { source, .. } => source.held_bytes(),
        }
    }

    /// A whole body, or [`Body::Empty`] if there are no bytes.
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        if bytes.is_empty() { Body::Empty } else { Body::Whole(bytes) }
    }

    /// Length in bytes, if it is known.
    pub fn length(&self) -> Option<u64> {
        match self {
            Body::Empty => Some(0),
            Body::Whole(bytes) => Some(bytes.len() as u64),
            Body::Stream { length, .. } => *length,
        }
    }

    /// The next chunk; `None` at the end. A whole body is a single chunk.
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        match self {
            Body::Empty => Poll::Ready(None),
            Body::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Body::Empty;
                Poll::Ready(Some(Ok(bytes)))
            }
            Body::Stream { source, .. } => source.poll_chunk(cx),
        }
    }

    /// The trailer fields after the last chunk of a stream, as a header block. The stream must have
    /// ended.
    pub fn take_trailers(&mut self) -> Bytes {
        match self {
            Body::Stream { source, .. } => source.take_trailers(),
            _ => Bytes::new(),
        }
    }

    /// The next chunk; see [`Body::poll_chunk`].
    pub async fn chunk(&mut self) -> Option<Result<Bytes, BodyError>> {
        std::future::poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// Reads the whole body, or refuses it if it is longer than `limit_bytes`.
    pub async fn collect(mut self, limit_bytes: u64) -> Result<Bytes, BodyError> {
        let first = match self.chunk().await {
            None => return Ok(Bytes::new()),
            Some(chunk) => chunk?,
        };
        if first.len() as u64 > limit_bytes {
            return Err(BodyError::TooLarge(limit_bytes));
        }
        if let Body::Empty = self {
            return Ok(first);
        }
        let mut all = first.to_vec();
        while let Some(chunk) = self.chunk().await {
            let chunk = chunk?;
            if (all.len() + chunk.len()) as u64 > limit_bytes {
                return Err(BodyError::TooLarge(limit_bytes));
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all.into())
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Body::Empty => f.write_str("Empty"),
            Body::Whole(bytes) => write!(f, "Whole({} bytes)", bytes.len()),
            Body::Stream { length, .. } => write!(f, "Stream({length:?})"),
        }
    }
}
