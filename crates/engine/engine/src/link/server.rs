//! Serves invocations of functions that are HTTP servers, over HTTP/1.1.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::Incoming;
use mote_core::body::{Body, BodyError, BodySource};
use mote_core::fault::error_chain;
use mote_core::invocation::{Head, headers};
use mote_core::{Fault, Invocation, InvocationId, Reply};

use crate::entry::offer::Unanswered;
use crate::link::server_link::{Connection, RequestBody, ServerLink};
use crate::link::server_message::{bad, block_of, is_framing};
use crate::revision::Revision;
use crate::revision::pool::{FollowUp, end_stream};
use mote_process::clock::now_ns;

/// An answer of up to this length is read whole before its head is passed on.
const WHOLE_BYTES_MAX: u64 = 64 << 10;
/// How long the end of a server may take to become known after its connections broke.
const DEATH_GRACE: Duration = Duration::from_millis(500);
const ENDED_EARLY: &str = "reply ended early";

/// Serves one invocation over HTTP/1.1.
pub(crate) async fn exchange(place: Place, link: Arc<ServerLink>, invocation: Invocation) {
    if link.h2().is_some() {
        return match link.perform_h2(invocation).await {
            Ok(response) => answer(place, link.clone(), response, None).await,
            Err(fault) => broken(place, fault).await,
        };
    }
    match perform(&link, &invocation.head, invocation.body).await {
        Ok((response, connection)) => answer(place, link, response, Some(connection)).await,
        Err(fault) => broken(place, fault).await,
    }
}

/// Fails an exchange whose connection broke. If it broke because the server has died, the end of the
/// instance decides what becomes of the invocation, and aborts this task.
pub(crate) async fn broken(place: Place, fault: Fault) {
    tokio::time::sleep(DEATH_GRACE).await;
    place.reply(Err(fault));
}

/// Sends a request that is not an invocation, and reads the whole answer.
pub(crate) async fn whole(
    link: &Arc<ServerLink>,
    head: &Head,
    body: Body,
    limit_bytes: u64,
) -> Result<(u16, Bytes), Fault> {
    let (response, connection) = perform(link, head, body).await?;
    let status = response.status().as_u16();
    let length = hyper::body::Body::size_hint(response.body()).exact();
    let source = ServerAnswer {
        incoming: response.into_body(),
        connection: Some(connection),
        link: link.clone(),
        trailers: Bytes::new(),
        place: None,
    };
    let body = Body::Stream { source: Box::new(source), length };
    let bytes = body.collect(limit_bytes).await.map_err(|error| bad("reply", &error))?;
    Ok((status, bytes))
}

async fn perform(
    link: &ServerLink,
    head: &Head,
    mut body: Body,
) -> Result<(hyper::Response<Incoming>, Connection), Fault> {
    let repeatable = matches!(body, Body::Empty | Body::Whole(_));
    let mut attempt = 0;
    loop {
        attempt += 1;
        let idle = if attempt == 1 { link.take_idle() } else { None };
        let reused = idle.is_some();
        let mut connection = match idle {
            Some(connection) => connection,
            None => link.connect().await.map_err(|error| bad("cannot connect to $PORT", &error))?,
        };
        let this_body = match &body {
            Body::Empty => Body::Empty,
            Body::Whole(bytes) => Body::Whole(bytes.clone()),
            Body::Stream { .. } => std::mem::take(&mut body),
        };
        let request = request(head, this_body).map_err(|error| bad("request", &error))?;
        connection.meter.begin();
        match connection.sender.send_request(request).await {
            Ok(response) => {
                let length = hyper::body::Body::size_hint(response.body()).exact();
                connection.meter.head_came(length.is_none());
                return Ok((response, connection));
            }
            // The server closed a kept connection at the moment when it was used again, so it read
            // nothing.
            Err(error)
                if reused
                    && repeatable
                    && (error.is_canceled() || error.is_incomplete_message()) => {}
            Err(error) => return Err(bad("reply is not valid HTTP", &error_chain(&error))),
        }
    }
}

pub(crate) fn request(
    head: &Head,
    body: Body,
) -> Result<hyper::Request<RequestBody>, hyper::http::Error> {
    let mut target = BytesMut::from(head.path());
    if !head.query().is_empty() {
        target.extend_from_slice(b"?");
        target.extend_from_slice(head.query());
    }
    let mut builder = hyper::Request::builder().method(head.method()).uri(&target[..]);
    let mut has_host = false;
    for (name, value) in headers(head.headers()) {
        if is_framing(name) {
            continue;
        }
        has_host |= name == b"host";
        builder = builder.header(name, value);
    }
    if !has_host {
        builder = builder.header("host", "function");
    }
    builder.body(RequestBody(body))
}

pub(crate) async fn answer(
    place: Place,
    link: Arc<ServerLink>,
    response: hyper::Response<Incoming>,
    connection: Option<Connection>,
) {
    let (parts, incoming) = response.into_parts();
    let block = block_of(&parts.headers);
    let status = parts.status.as_u16();
    let length = hyper::body::Body::size_hint(&incoming).exact();
    if !(200..=599).contains(&status) {
        place.reply(Err(Fault::BadReply { message: format!("status {status}") }));
        return;
    }
    // Over HTTP/2, even an answer with a length can have trailers.
    let whole_bytes_max = if connection.is_some() { WHOLE_BYTES_MAX } else { 0 };
    let whole = length.is_some_and(|length| length <= whole_bytes_max);
    let source = ServerAnswer {
        incoming,
        connection,
        link,
        trailers: Bytes::new(),
        // A streamed answer keeps `place`, and the stream ends when that answer is dropped. If the
        // answer is already complete, the code below ends the stream.
        place: (!whole).then(|| place.clone()),
    };
    let mut body = Body::Stream { source: Box::new(source), length };
    if whole {
        body = match body.collect(WHOLE_BYTES_MAX).await {
            Ok(bytes) => Body::whole(bytes),
            Err(_) => {
                broken(place, Fault::BadReply { message: ENDED_EARLY.into() }).await;
                return;
            }
        };
    }
    place.deliver(status, block.into(), body);
}

/// Identifies the stream of an exchange.
#[derive(Clone)]
pub(crate) struct Place {
    revision: Arc<Revision>,
    id: InvocationId,
    key: usize,
    stream: usize,
    serial: u64,
}

impl Place {
    pub(crate) fn new(
        revision: Arc<Revision>,
        id: InvocationId,
        (key, stream, serial): (usize, usize, u64),
    ) -> Self {
        Self { revision, id, key, stream, serial }
    }

    pub(crate) fn revision(&self) -> &Revision {
        &self.revision
    }

    pub(crate) fn reply(&self, result: Result<Reply, Fault>) {
        if let Some((sender, phases)) = self.take() {
            let failed = |fault| Unanswered::failed(fault, phases, now_ns());
            sender.send(result.map_err(failed));
        }
        self.end();
    }

    pub(crate) fn deliver(&self, status: u16, headers: Bytes, body: Body) {
        let whole = !matches!(body, Body::Stream { .. });
        if let Some((sender, mut phases)) = self.take() {
            phases.answered_ns = now_ns();
            // A server does not report when its handler was entered, so all of the time counts as
            // time in the handler.
            phases.entered_ns = phases.sent_ns;
            phases.returned_ns = phases.answered_ns;
            {
                let mut pool = self.revision.pool.lock();
                pool.answered();
                if let Some(worker) = pool.worker_mut(self.key) {
                    worker.record_exchange(phases.run_ns());
                }
            }
            sender.send(Ok(Reply { status, headers, body, phases }));
        }
        if whole {
            self.end();
        }
    }

    fn take(&self) -> Option<(crate::thread::threads::ReplySender, mote_core::Phases)> {
        let mut pool = self.revision.pool.lock();
        let (streams, _) = pool.worker_mut(self.key)?.parts();
        let stream = streams.get_mut_if(self.stream, self.serial)?;
        // From here on, dropping the body ends the stream, and an abort no longer does.
        stream.task = None;
        stream.phases.entered_ns = stream.phases.sent_ns;
        Some((stream.reply.take()?, stream.phases))
    }

    /// Whether the instance is being stopped.
    pub(crate) fn drains(&self) -> bool {
        let mut pool = self.revision.pool.lock();
        pool.worker_mut(self.key).is_none_or(|worker| worker.is_draining())
    }

    pub(crate) fn end(&self) {
        let now = now_ns();
        let mut follow_ups: Vec<FollowUp> = Vec::new();
        let mut pool = self.revision.pool.lock();
        if let Some(worker) = pool.worker_mut(self.key)
            && worker.parts().0.get_mut_if(self.stream, self.serial).is_some()
        {
            end_stream(worker, self.stream, now);
        }
        pool.dispatch(now, &mut follow_ups);
        drop(pool);
        self.revision.follow_up(follow_ups);
    }
}

/// A streamed answer of a server. If the answer was read to the end, its connection is kept.
struct ServerAnswer {
    incoming: Incoming,
    connection: Option<Connection>,
    link: Arc<ServerLink>,
    trailers: Bytes,
    place: Option<Place>,
}

impl BodySource for ServerAnswer {
    fn take_trailers(&mut self) -> Bytes {
        std::mem::take(&mut self.trailers)
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            match hyper::body::Body::poll_frame(Pin::new(&mut self.incoming), cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {
                    if let Some(connection) = self.connection.take() {
                        self.link.keep(connection);
                    }
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(Err(_))) => {
                    self.connection = None;
                    if let Some(place) = &self.place {
                        let fault = Fault::BadReply { message: ENDED_EARLY.into() };
                        place.revision.torn(place.id, &fault);
                    }
                    return Poll::Ready(Some(Err(BodyError::WorkerFailed)));
                }
                Poll::Ready(Some(Ok(frame))) => {
                    match (&self.connection, self.link.h2()) {
                        (Some(connection), _) if frame.is_data() => connection.meter.progress(),
                        (None, Some(h2)) => h2.progress(),
                        _ => {}
                    }
                    match frame.into_data() {
                        Ok(data) if data.is_empty() => {}
                        Ok(data) => return Poll::Ready(Some(Ok(data))),
                        Err(frame) => {
                            if let Ok(fields) = frame.into_trailers() {
                                self.trailers = block_of(&fields).into();
                            }
                        }
                    }
                }
            }
        }
    }
}

impl Drop for ServerAnswer {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            place.end();
        }
    }
}
