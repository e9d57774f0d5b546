//! Serves the listener inside a sandbox, with limits on connections, sizes and times.
//!
//! All clients are processes of one instance, so a slow or silent client takes only from the
//! resources of that instance.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use mote_core::InvocationId;
use mote_core::services::{AnswerFuture, Asked, CALL_BODY_BYTES_MAX, REQUEST_BYTES_MAX};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::service_api::Ask;
use crate::service_api::answer::{Form, refused, response};
use crate::service_api::request::{Parts, Refusal, read};
use crate::service_api::timed::Timed;

/// The maximum number of simultaneous connections of one instance. Further connections wait in the
/// listener.
const CONNECTIONS_MAX: usize = 128;
/// While more connections than this are open, each answer closes its connection, so that idle
/// connections never occupy all places.
const KEPT_MAX: usize = 32;
/// How long a connection may be idle, and how long a head or a body may be incomplete.
const IDLE: Duration = Duration::from_secs(60);
/// The maximum length of a request's head, not counting optional spaces. It is also the number of
/// bytes that are read ahead.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// The maximum number of bytes of answers that are being written. Answers of calls may hold the
/// same number of bytes again while they wait to be written.
const ANSWERS_BYTES_MAX: usize = 4 << 20;
/// Answers of up to this length need no reserved room, because each connection has at most one of
/// them.
const SMALL_BYTES: usize = 8 << 10;
/// How many values and lists are read at once. A read counts until its answer has room.
const READS_MAX: usize = 8;
/// How many bytes of a connection the kernel holds for its client.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// The unit, in bytes, in which bodies and answers are counted.
const UNIT_BYTES: usize = 1 << 10;
/// The pause when the node has no descriptors or memory left.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// How long each part of an answer may take.
#[derive(Debug, Clone, Copy)]
struct Times {
    /// Until the answer has room.
    room: Duration,
    /// Until the client has read the answer.
    writing: Duration,
}

const TIMES: Times = Times { room: Duration::from_secs(10), writing: Duration::from_secs(30) };

/// The data that the connections of one listener share.
struct Door {
    token: String,
    ask: Arc<dyn Ask>,
    /// The bytes of request bodies that may be held at once, in units.
    room: Arc<Semaphore>,
    /// The bytes of answers that may be written at once, in units.
    answers: Arc<Semaphore>,
    /// The bytes of call answers that may wait for `answers`, in units.
    waiting: Semaphore,
    /// The reads that may be under way at once.
    reads: Semaphore,
    times: Times,
    open: AtomicUsize,
}

struct Open(Arc<Door>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves the listener of an instance until `closed` resolves. The connections end with the
/// listener.
pub async fn serve(
    listener: TcpListener,
    instance: u64,
    ask: Arc<dyn Ask>,
    closed: impl Future<Output = ()>,
) {
    serve_within(listener, instance, ask, closed, TIMES).await;
}

async fn serve_within(
    listener: TcpListener,
    instance: u64,
    ask: Arc<dyn Ask>,
    closed: impl Future<Output = ()>,
    times: Times,
) {
    let door = Arc::new(Door {
        token: crate::service_api::token(instance),
        ask,
        room: Arc::new(Semaphore::new(REQUEST_BYTES_MAX / UNIT_BYTES)),
        answers: Arc::new(Semaphore::new(ANSWERS_BYTES_MAX / UNIT_BYTES)),
        waiting: Semaphore::new(ANSWERS_BYTES_MAX / UNIT_BYTES),
        reads: Semaphore::new(READS_MAX),
        times,
        open: AtomicUsize::new(0),
    });
    let mut connections = JoinSet::new();
    let mut closed = std::pin::pin!(closed);
    loop {
        tokio::select! {
            () = &mut closed => return,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => drop(connections.spawn(connection(door.clone(), stream))),
                Err(_) => tokio::time::sleep(SHORTAGE_PAUSE).await,
            },
        }
    }
}

async fn connection(door: Arc<Door>, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = socket2::SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER_BYTES);
    let stream = Timed::new(stream, door.times.writing);
    door.open.fetch_add(1, Ordering::Relaxed);
    let _open = Open(door.clone());
    let service = service_fn(move |request| {
        let door = door.clone();
        async move { Ok::<_, Infallible>(door.answer(request).await.map(Full::new)) }
    });
    // An error needs no handling: either the client broke the protocol and has been told so, or it
    // has left.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// A body, together with the room that it occupies.
struct Held {
    body: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// Refuses a head that is too long. This check is needed because a head that arrives at once may be
/// longer than the bytes that are read ahead.
fn check_length(head: &hyper::http::request::Parts) -> Result<(), Refusal> {
    let target = head.uri.path_and_query().map_or(0, |target| target.as_str().len());
    let line = head.method.as_str().len() + target + " HTTP/1.1\r\n\r\n".len() + 1;
    let fields = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    if line + fields.sum::<usize>() > HEAD_BYTES_MAX {
        let text = format!("the head of a request has at most {} KiB", HEAD_BYTES_MAX >> 10);
        return Err(Refusal::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, text));
    }
    Ok(())
}

impl Door {
    async fn answer(&self, request: Request<Incoming>) -> Response<Bytes> {
        let mut response = match self.begin(request).await {
            Ok((form, answer, room)) => self.finish(form, answer, room).await,
            Err(refusal) => Err(refusal),
        }
        .unwrap_or_else(|refusal| refused(&refusal));
        if self.open.load(Ordering::Relaxed) > KEPT_MAX {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// The response. Its body holds its room until the client has read it.
    async fn finish(
        &self,
        form: Form,
        answer: AnswerFuture,
        room: Option<OwnedSemaphorePermit>,
    ) -> Result<Response<Bytes>, Refusal> {
        let full = || {
            let text = "the answers of this instance are not read; read them and try again";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text)
        };
        // A reading request waits for its turn before it reads, so that its value is not held while
        // it waits.
        let read = match form {
            Form::Entry | Form::Listed => {
                let turn = tokio::time::timeout(self.times.room, self.reads.acquire()).await;
                Some(turn.map_err(|_| full())?)
            }
            _ => None,
        };
        let response = response(form, answer.await);
        drop(room);
        let length = response.body().len();
        if length <= SMALL_BYTES {
            return Ok(response);
        }
        let units = length.min(ANSWERS_BYTES_MAX).div_ceil(UNIT_BYTES) as u32;
        let room = match self.answers.clone().try_acquire_many_owned(units) {
            Ok(room) => room,
            Err(_) => {
                let _place = match read {
                    Some(_) => None,
                    None => Some(self.waiting.try_acquire_many(units).map_err(|_| full())?),
                };
                let room = self.answers.clone().acquire_many_owned(units);
                let room = tokio::time::timeout(self.times.room, room).await;
                room.ok().and_then(Result::ok).ok_or_else(full)?
            }
        };
        Ok(response.map(|body| Bytes::from_owner(Held { body, _room: room })))
    }

    async fn begin(
        &self,
        request: Request<Incoming>,
    ) -> Result<(Form, AnswerFuture, Option<OwnedSemaphorePermit>), Refusal> {
        let (head, incoming) = request.into_parts();
        check_length(&head)?;
        let (invocation, path) =
            self.admit(head.uri.path(), head.headers.get("mote-invocation"))?;
        let (body, room) = self.collect(incoming).await?;
        let parts =
            Parts { method: &head.method, path, query: head.uri.query(), headers: &head.headers };
        let asked = read(&parts, body)?;
        if invocation.is_none() && matches!(&asked, Asked::Call(call) if call.waits) {
            let text = "a call belongs to an invocation: pass on the field Mote-Invocation of the \
                        request that the server answers";
            return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
        }
        Ok((Form::of(&asked), self.ask.ask(invocation, asked), room))
    }

    /// The invocation that makes the request, and the rest of the path. The path is
    /// `/TOKEN/kv/KEY`, or `/TOKEN.ID/kv/KEY` with the id of the invocation.
    fn admit<'p>(
        &self,
        path: &'p str,
        field: Option<&HeaderValue>,
    ) -> Result<(Option<InvocationId>, &'p str), Refusal> {
        let unknown = || {
            let text = format!("the address begins with ${}", crate::service_api::URL_VARIABLE);
            Refusal::new(StatusCode::NOT_FOUND, text)
        };
        let rest = path.strip_prefix('/').ok_or_else(unknown)?;
        let (key, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (token, id) = match key.split_once('.') {
            Some((token, id)) => (token, Some(id)),
            None => (key, None),
        };
        if token != self.token {
            return Err(unknown());
        }
        let id = id.or_else(|| Some(field?.to_str().unwrap_or_default().trim()));
        let id = id.map(|text| {
            let wrong = || Refusal::new(StatusCode::BAD_REQUEST, "Mote-Invocation: not an id");
            InvocationId::from_text(text).ok_or_else(wrong)
        });
        Ok((id.transpose()?, rest))
    }

    /// The whole body. The permit reserves room for its bytes for as long as the request is carried
    /// out.
    async fn collect(
        &self,
        mut incoming: Incoming,
    ) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Refusal> {
        let too_large = || {
            let text = format!("a body has at most {} KiB", CALL_BODY_BYTES_MAX >> 10);
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text)
        };
        let hint = hyper::body::Body::size_hint(&incoming);
        if hint.lower() > CALL_BODY_BYTES_MAX as u64 {
            return Err(too_large());
        }
        let mut body = BytesMut::new();
        let mut room = None::<OwnedSemaphorePermit>;
        let receive = async {
            while let Some(frame) = incoming.frame().await {
                let frame = frame
                    .map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "the body ends early"))?;
                let Ok(data) = frame.into_data() else { continue };
                if body.len() + data.len() > CALL_BODY_BYTES_MAX {
                    return Err(too_large());
                }
                let held = room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
                let units = (body.len() + data.len()).div_ceil(UNIT_BYTES) - held;
                let more =
                    self.room.clone().try_acquire_many_owned(units as u32).map_err(|_| {
                        let text = "too many bytes of requests are under way; try again";
                        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text)
                    })?;
                match &mut room {
                    Some(room) => room.merge(more),
                    None => room = Some(more),
                }
                body.extend_from_slice(&data);
            }
            Ok(())
        };
        match tokio::time::timeout(IDLE, receive).await {
            Ok(received) => received?,
            Err(_) => {
                let text = "the body was not received in time";
                return Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, text));
            }
        }
        Ok((body.freeze(), room))
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
