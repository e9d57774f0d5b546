//! The body of a request, as an instance reads it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use wasmtime_wasi::cli::{IsTerminal, StdinStream};
use wasmtime_wasi::p2::{InputStream, Pollable, StreamError, StreamResult};

use crate::link::{Link, Piece, lock};

/// The part of the body that came with the invocation, and the source of the rest.
pub(crate) struct RequestBody {
    link: Arc<Link>,
    stream: u32,
    inline: Bytes,
    rest: Option<mpsc::UnboundedReceiver<Piece>>,
    has_ended: bool,
}

impl RequestBody {
    pub(crate) fn new(
        link: Arc<Link>,
        stream: u32,
        inline: Bytes,
        rest: Option<mpsc::UnboundedReceiver<Piece>>,
    ) -> Self {
        let has_ended = rest.is_none();
        Self { link, stream, inline, rest, has_ended }
    }

    /// The next bytes; `None` at the end.
    fn next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if !self.inline.is_empty() {
            return Poll::Ready(Some(std::mem::take(&mut self.inline)));
        }
        let Some(rest) = self.rest.as_mut().filter(|_| !self.has_ended) else {
            return Poll::Ready(None);
        };
        match rest.poll_recv(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Piece::Chunk(bytes))) => {
                self.link.credit(self.stream, bytes.len());
                Poll::Ready(Some(bytes))
            }
            Poll::Ready(Some(Piece::End) | None) => {
                self.has_ended = true;
                Poll::Ready(None)
            }
        }
    }
}

impl Drop for RequestBody {
    /// The guest will not read the rest, but the caller may still send it.
    fn drop(&mut self) {
        let Some(rest) = &mut self.rest else { return };
        rest.close();
        while let Ok(piece) = rest.try_recv() {
            if let Piece::Chunk(bytes) = piece
                && self.link.is_open(self.stream)
            {
                self.link.credit(self.stream, bytes.len());
            }
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = wasmtime_wasi_http::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.next(cx).map(|next| next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended && self.inline.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        match self.has_ended {
            true => SizeHint::with_exact(self.inline.len() as u64),
            false => SizeHint::default(),
        }
    }
}

/// The body as the standard input of a program.
#[derive(Clone)]
pub(crate) struct Stdin(Arc<std::sync::Mutex<Input>>);

struct Input {
    body: RequestBody,
    ready: Bytes,
    is_closed: bool,
}

impl Stdin {
    pub(crate) fn new(body: RequestBody) -> Self {
        Self(Arc::new(std::sync::Mutex::new(Input { body, ready: Bytes::new(), is_closed: false })))
    }
}

impl Input {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.ready.is_empty() && !self.is_closed {
            match self.body.next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(bytes)) => self.ready = bytes,
                Poll::Ready(None) => self.is_closed = true,
            }
        }
        Poll::Ready(())
    }
}

impl IsTerminal for Stdin {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdinStream for Stdin {
    fn async_stream(&self) -> Box<dyn AsyncRead + Send + Sync> {
        // Only preview 3 asks for this form, and preview 3 is not linked.
        Box::new(tokio::io::empty())
    }

    fn p2_stream(&self) -> Box<dyn InputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Stdin {
    async fn ready(&mut self) {
        std::future::poll_fn(|cx| lock(&self.0).poll(cx)).await;
    }
}

impl InputStream for Stdin {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        let mut input = lock(&self.0);
        let waker = std::task::Waker::noop();
        let _ = input.poll(&mut Context::from_waker(waker));
        if input.ready.is_empty() && input.is_closed {
            return Err(StreamError::Closed);
        }
        let size = size.min(input.ready.len());
        Ok(input.ready.split_to(size))
    }
}
