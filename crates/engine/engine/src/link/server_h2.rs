//! Functions that are HTTP/2 servers, as gRPC needs them. Each instance has one connection, and
//! each invocation is a stream on it. Bodies stream in both directions, with trailers.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use mote_core::body::{Body, BodyError};
use mote_core::fault::error_chain;
use mote_core::invocation::{Head, headers};
use mote_core::wire::HEADERS_BYTES_MAX;
use mote_core::{Fault, Invocation};

use crate::link::server_message::{bad, is_framing};
use crate::link::server_meter::{Meter, Metered};

/// The number of bytes that a function may send on one stream before its caller has taken them.
const STREAM_WINDOW_BYTES: u32 = 128 << 10;
/// The same limit for all streams of a connection together.
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// The number of request bytes per stream that may wait in memory until the function takes them.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// A new socket, and its meter.
type Opened = (TokioIo<Metered>, Arc<Meter>);
/// Opens a socket. The future is boxed so that the code of a connection is compiled only once.
type Opening<'a> = Pin<Box<dyn Future<Output = io::Result<Opened>> + Send + 'a>>;

/// The connection to a server that speaks HTTP/2. If it has ended, it is opened again.
#[derive(Default)]
pub(crate) struct H2Link {
    connection: tokio::sync::Mutex<Option<SendRequest<H2Body>>>,
    /// The meter of the connection, on which arriving answers are noted.
    meter: parking_lot::Mutex<Option<Arc<Meter>>>,
}

impl H2Link {
    /// Returns the connection. If there is none, it is opened on a new socket.
    pub(crate) async fn connection<'a>(
        &self,
        open: &(dyn Fn() -> Opening<'a> + Sync),
    ) -> io::Result<SendRequest<H2Body>> {
        let mut kept = self.connection.lock().await;
        if let Some(sender) = kept.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let (io, meter) = open().await?;
        let handshake = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .max_header_list_size(HEADERS_BYTES_MAX as u32)
            .handshake(io);
        let (sender, driver) = handshake.await.map_err(io::Error::other)?;
        tokio::spawn(async move {
            // The callers that wait for answers receive the error themselves. Here, it only ends
            // the task.
            let _ = driver.await;
        });
        *self.meter.lock() = Some(meter);
        *kept = Some(sender.clone());
        Ok(sender)
    }

    /// Notes that a part of an answer has arrived.
    pub(crate) fn progress(&self) {
        if let Some(meter) = &*self.meter.lock() {
            meter.progress();
        }
    }

    /// Sends an invocation, and returns the head of its answer.
    pub(crate) async fn perform<'a>(
        &self,
        open: &(dyn Fn() -> Opening<'a> + Sync),
        invocation: Invocation,
    ) -> Result<Response<Incoming>, Fault> {
        let Invocation { head, mut body, .. } = invocation;
        let repeatable = matches!(body, Body::Empty | Body::Whole(_));
        let mut attempt = 0;
        loop {
            attempt += 1;
            let this_body = match &body {
                Body::Empty => Body::Empty,
                Body::Whole(bytes) => Body::Whole(bytes.clone()),
                Body::Stream { .. } => std::mem::take(&mut body),
            };
            let connected = self.connection(open).await;
            let mut sender = connected.map_err(|error| bad("cannot connect to $PORT", &error))?;
            let request = request(&head, this_body).map_err(|error| bad("request", &error))?;
            match sender.send_request(request).await {
                Ok(response) => {
                    self.progress();
                    return Ok(response);
                }
                // The server ended the connection before it had read the request.
                Err(error) if attempt == 1 && repeatable && error.is_canceled() => {}
                Err(error) => return Err(bad("reply is not valid HTTP/2", &error_chain(&error))),
            }
        }
    }
}

fn request(head: &Head, body: Body) -> Result<Request<H2Body>, hyper::http::Error> {
    let host = headers(head.headers()).find(|(name, _)| *name == b"host");
    let host = host.map_or(&b"function"[..], |(_, value)| value);
    let mut target = head.path().to_vec();
    if !head.query().is_empty() {
        target.push(b'?');
        target.extend_from_slice(head.query());
    }
    let uri = Uri::builder().scheme("http").authority(host).path_and_query(target).build()?;
    let mut builder = Request::builder().method(head.method()).uri(uri);
    for (name, value) in headers(head.headers()) {
        if !is_framing(name) && name != b"host" {
            builder = builder.header(name, value);
        }
    }
    // The node passes trailers on. gRPC servers require this field.
    builder.header("te", "trailers").body(H2Body { body, is_over: false })
}

/// A request body, including its trailers.
pub(crate) struct H2Body {
    body: Body,
    is_over: bool,
}

impl hyper::body::Body for H2Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let polled = self.body.poll_chunk(cx);
        if !matches!(polled, Poll::Ready(None)) {
            return polled.map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)));
        }
        self.is_over = true;
        let block = self.body.take_trailers();
        let fields: HeaderMap = headers(&block)
            .filter(|(name, _)| !is_framing(name))
            .filter_map(|(name, value)| {
                let value = HeaderValue::from_bytes(value).ok()?;
                Some((HeaderName::from_bytes(name).ok()?, value))
            })
            .collect();
        Poll::Ready((!fields.is_empty()).then(|| Ok(Frame::trailers(fields))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.body, Body::Empty)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.length().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use hyper::body::Body as _;
    use mote_core::body::BodySource;

    use super::*;

    /// A source with one chunk, followed by trailers.
    struct Source(Option<Bytes>);

    impl BodySource for Source {
        fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
            Poll::Ready(self.0.take().map(Ok))
        }

        fn take_trailers(&mut self) -> Bytes {
            Bytes::from_static(b"x-sum\n7\ntransfer-encoding\nchunked\nbad name\n1\n")
        }
    }

    #[test]
    fn trailers_follow_the_last_chunk() {
        let body = Body::Stream {
            source: Box::new(Source(Some(Bytes::from_static(b"chunk")))),
            length: None,
        };
        let mut body = H2Body { body, is_over: false };
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut next = || match Pin::new(&mut body).poll_frame(&mut cx) {
            Poll::Ready(frame) => frame.map(Result::unwrap),
            Poll::Pending => panic!("it waits"),
        };
        assert_eq!(next().unwrap().into_data().unwrap(), "chunk");
        let fields = next().unwrap().into_trailers().unwrap();
        let fields: Vec<_> = fields.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            fields,
            ["x-sum"],
            "fields that frame a message, or are not valid, are left out"
        );
        assert!(next().is_none() && next().is_none());
    }
}
