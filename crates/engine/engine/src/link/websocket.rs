//! WebSockets to functions that are HTTP servers: the request that opens a WebSocket, and the bytes
//! that flow in both directions after its answer.
//!
//! These bytes are in the bodies of the invocation, so fronts and limits treat them like other
//! bodies. The engine does not read the frames. An open WebSocket is a running invocation: it
//! occupies a place of its instance until the body of its answer is dropped.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use mote_core::body::{Body, BodyError, BodySource};
use mote_core::fault::error_chain;
use mote_core::invocation::Head;
use mote_core::turn::Turn;
use mote_core::{Fault, Invocation};
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::AbortHandle;
use tokio::time::Sleep;

use crate::link::server::{self, Place};
use crate::link::server_link::{Connection, ServerLink};
use crate::link::server_message::{bad, block_of};
use crate::link::server_meter::Metered;

/// The pause between two checks whether the instance is draining. A WebSocket can stay open for
/// days, and a draining instance cannot end before its WebSockets.
const LOOK: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 16 << 10;

/// Serves an invocation whose caller asks for a WebSocket.
pub(crate) async fn exchange(place: Place, link: Arc<ServerLink>, invocation: Invocation) {
    let Invocation { head, body, .. } = invocation;
    let (response, connection) = match ask(&link, &head).await {
        Ok(answered) => answered,
        Err(fault) => return place.reply(Err(fault)),
    };
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return server::answer(place, link, response, Some(connection)).await;
    }
    match switch(response, body, place.clone()).await {
        Ok((headers, body)) => place.deliver(101, headers, body),
        Err(fault) => place.reply(Err(fault)),
    }
}

/// Sends the request on a separate connection.
async fn ask(link: &ServerLink, head: &Head) -> Result<(Response<Incoming>, Connection), Fault> {
    let connected = link.connect_for_upgrade().await;
    let mut connection = connected.map_err(|error| bad("cannot connect to $PORT", &error))?;
    let mut request = server::request(head, Body::Empty).map_err(|error| bad("request", &error))?;
    for (name, value) in [("connection", "Upgrade"), ("upgrade", "websocket")] {
        request.headers_mut().insert(name, hyper::header::HeaderValue::from_static(value));
    }
    connection.meter.begin();
    let response = connection.sender.send_request(request).await;
    let response =
        response.map_err(|error| bad("reply is not valid HTTP", &error_chain(&error)))?;
    let length = hyper::body::Body::size_hint(response.body()).exact();
    connection.meter.head_came(length.is_none());
    Ok((response, connection))
}

/// The fields and the body of an answer that accepts the WebSocket.
async fn switch(
    mut response: Response<Incoming>,
    from_client: Body,
    place: Place,
) -> Result<(Bytes, Body), Fault> {
    let upgrade = response.headers().get("upgrade");
    if upgrade.is_none_or(|value| !value.as_bytes().eq_ignore_ascii_case(b"websocket")) {
        let message = "status 101 without Upgrade: websocket".to_owned();
        return Err(Fault::BadReply { message });
    }
    let block = block_of(response.headers());
    let upgraded = hyper::upgrade::on(&mut response).await;
    let upgraded = upgraded.map_err(|error| bad("upgrade", &error_chain(&error)))?;
    let parts = upgraded.downcast::<TokioIo<Metered>>();
    let parts = parts.map_err(|_| bad("upgrade", &"unexpected connection"))?;
    let (reader, writer) = parts.io.into_inner().into_stream().into_split();
    let source = FromFunction {
        reader,
        first: parts.read_buf,
        pump: tokio::spawn(to_function(from_client, writer)).abort_handle(),
        look: Box::pin(tokio::time::sleep(LOOK)),
        turn: Turn::new(),
        place,
    };
    Ok((block.into(), Body::Stream { source: Box::new(source), length: None }))
}

/// Writes the client's bytes to the function. Only one chunk is held at a time, so a function that
/// does not read stops its client. At the end of the bytes, the function sees the end of the
/// connection.
async fn to_function(mut from_client: Body, mut writer: OwnedWriteHalf) {
    while let Some(Ok(chunk)) = from_client.chunk().await {
        if writer.write_all(&chunk).await.is_err() {
            return;
        }
    }
}

/// The bytes that the function sends. Dropping this ends the WebSocket and frees its place.
struct FromFunction {
    reader: OwnedReadHalf,
    /// Bytes that arrived together with the head of the answer.
    first: Bytes,
    pump: AbortHandle,
    look: Pin<Box<Sleep>>,
    turn: Turn,
    place: Place,
}

impl BodySource for FromFunction {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        if !self.first.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.first))));
        }
        if self.turn.is_over() {
            self.turn = Turn::new();
            // The future never resolves at its first poll. The runtime wakes this task after the
            // other tasks have run.
            let _ = pin!(tokio::task::yield_now()).poll(cx);
            return Poll::Pending;
        }
        while self.look.as_mut().poll(cx).is_ready() {
            if self.place.drains() {
                return Poll::Ready(None);
            }
            self.look.as_mut().reset(tokio::time::Instant::now() + LOOK);
        }
        let stream = self.reader.as_ref();
        loop {
            // The buffer exists only while there is something to read.
            if ready!(stream.poll_read_ready(cx)).is_err() {
                return Poll::Ready(None);
            }
            let mut bytes = BytesMut::with_capacity(READ_BYTES);
            match stream.try_read_buf(&mut bytes) {
                Ok(0) => return Poll::Ready(None),
                Ok(read) => {
                    self.turn.charge(1, read);
                    return Poll::Ready(Some(Ok(bytes.freeze())));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // If a function ends its process, the connection is reset. To the client, the reset
                // is an end like any other.
                Err(_) => return Poll::Ready(None),
            }
        }
    }
}

impl Drop for FromFunction {
    fn drop(&mut self) {
        self.pump.abort();
        self.place.end();
    }
}
