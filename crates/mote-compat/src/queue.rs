//! Accepted calls: run after the client has its 202. Each is on disk before it is accepted and stays
//! there until it has ended, so one that a restart cuts short is run again: at least once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use bytes::Bytes;
use mote_api::Problem;
use mote_core::body::{Body, BodyError};
use mote_core::invocation::{Head, headers};
use mote_core::{Fault, FaultClass};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::call::is_hop_by_hop;
use crate::node::{Call, Node};
use crate::outgoing::{self, Reach};

/// Calls that may be kept at once, and their bytes on disk.
const CALLS_MAX: u64 = 10_000;
const BYTES_MAX: u64 = 256 << 20;
/// Calls that run at once.
const RUNNING_MAX: usize = 32;
/// Bytes of bodies that are being received to be accepted; whoever comes beyond is told to try again.
const RECEIVING_BYTES_MAX: usize = 64 << 20;
/// How long one body may take.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(60);
/// Callbacks under way at once beside them.
const CALLBACKS_MAX: usize = 32;
/// Longest answer that a callback carries; a longer one is a failure that the callback tells.
const ANSWER_BYTES_MAX: u64 = 8 << 20;
/// Answer of a callback that is read at most, to keep its server content.
const CALLBACK_ANSWER_BYTES_MAX: usize = 64 << 10;
/// Tries of a call that finds no room, and of a callback; the pause between doubles from
/// [`PAUSE`].
const TRIES_MAX: u32 = 8;
const PAUSE: Duration = Duration::from_millis(500);

/// A call to run later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Later {
    /// The function.
    pub function: String,
    /// Its method.
    pub method: String,
    /// Path and query below the function.
    pub target: String,
    /// Where the result goes: `http://…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<String>,
    /// Whether the callback may reach what only this machine reaches.
    #[serde(default)]
    pub local: bool,
    /// Fields of the callback.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub callback_fields: Vec<(String, String)>,
    /// Header block of the call (see [`Head`]).
    #[serde(skip)]
    pub fields: Bytes,
    /// Its body.
    #[serde(skip)]
    pub body: Bytes,
}

impl Later {
    /// A POST of the function's root whose result nobody waits for.
    pub fn plain(function: &str, fields: Bytes, body: Bytes) -> Self {
        Self {
            function: function.to_owned(),
            method: "POST".to_owned(),
            target: "/".to_owned(),
            callback: None,
            local: false,
            callback_fields: Vec::new(),
            fields,
            body,
        }
    }

    /// As one record: length and text of the JSON, length and bytes of the fields, the body.
    fn encode(&self) -> Vec<u8> {
        let json = serde_json::to_vec(self).unwrap_or_default();
        let mut record = Vec::with_capacity(8 + json.len() + self.fields.len() + self.body.len());
        for part in [&json[..], &self.fields[..]] {
            record.extend_from_slice(&(part.len() as u32).to_le_bytes());
            record.extend_from_slice(part);
        }
        record.extend_from_slice(&self.body);
        record
    }

    fn decode(record: Vec<u8>) -> Option<Self> {
        let mut rest = Bytes::from(record);
        let mut part = || {
            let length = rest.get(..4)?.try_into().ok().map(u32::from_le_bytes)? as usize;
            let part = rest.get(4..4 + length)?.len();
            let found = rest.slice(4..4 + part);
            rest = rest.slice(4 + part..);
            Some(found)
        };
        let (json, fields) = (part()?, part()?);
        let later: Later = serde_json::from_slice(&json).ok()?;
        Some(Self { fields, body: rest, ..later })
    }

    fn head(&self) -> Head {
        let (path, query) = self.target.split_once('?').unwrap_or((&self.target, ""));
        let mut head = Head::builder(self.method.as_bytes(), path.as_bytes(), query.as_bytes());
        for (name, value) in headers(&self.fields) {
            head.header(name, value);
        }
        head.finish()
    }
}

/// The accepted calls of a node. Cheap to clone.
#[derive(Clone)]
pub struct Queue {
    node: Arc<dyn Node>,
    calls: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
    /// In KiB.
    receiving: Arc<Semaphore>,
    callbacks: Arc<Semaphore>,
    numbers: mpsc::UnboundedSender<(u64, u64)>,
}

/// A body in memory, counted until it is dropped.
pub struct Received {
    /// All of it.
    pub bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

/// What is still to run; see [`Waiting::run`].
pub struct Waiting {
    queue: Queue,
    numbers: mpsc::UnboundedReceiver<(u64, u64)>,
}

impl Queue {
    /// The queue and what runs it.
    pub fn new(node: Arc<dyn Node>) -> (Self, Waiting) {
        let (numbers, received) = mpsc::unbounded_channel();
        let receiving = Arc::new(Semaphore::new(RECEIVING_BYTES_MAX >> 10));
        let callbacks = Arc::new(Semaphore::new(CALLBACKS_MAX));
        let (calls, bytes) = (Arc::default(), Arc::default());
        let queue = Self { node, calls, bytes, receiving, callbacks, numbers };
        (queue.clone(), Waiting { queue, numbers: received })
    }

    /// Receives a body that is to be accepted, at most `limit_bytes` of it, within the memory that
    /// all such bodies may take.
    pub async fn receive(&self, body: Body, limit_bytes: u64) -> Result<Received, Fault> {
        let wanted = body.length().unwrap_or(limit_bytes);
        if wanted > limit_bytes {
            return Err(Fault::BodyTooLarge { limit_bytes });
        }
        let kib = u32::try_from((wanted >> 10) + 1).unwrap_or(u32::MAX);
        let room = self.receiving.clone().try_acquire_many_owned(kib);
        let room = room.map_err(|_| Fault::NodeFull)?;
        let bytes = tokio::time::timeout(RECEIVE_TIMEOUT, body.collect(limit_bytes)).await;
        match bytes {
            Ok(Ok(bytes)) => Ok(Received { bytes, _room: room }),
            Ok(Err(BodyError::TooLarge(limit_bytes))) => Err(Fault::BodyTooLarge { limit_bytes }),
            Ok(Err(_)) | Err(_) => Err(Fault::BodyIncomplete),
        }
    }

    /// Accepts a call: it is on disk when this returns `Ok`. 429 where too many wait.
    pub async fn accept(&self, later: &Later) -> Result<(), Problem> {
        let record = later.encode();
        let length = record.len() as u64;
        self.reserve(length)?;
        match self.node.keep_call(record).await {
            Ok(number) => {
                // Nobody receives only when the node stops; the call is kept for the next start.
                let _ = self.numbers.send((number, length));
                Ok(())
            }
            Err(problem) => {
                self.release(length);
                Err(problem)
            }
        }
    }

    fn reserve(&self, length: u64) -> Result<(), Problem> {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let bytes = self.bytes.fetch_add(length, Ordering::Relaxed) + length;
        if calls <= CALLS_MAX && bytes <= BYTES_MAX {
            return Ok(());
        }
        self.release(length);
        let text = format!("{CALLS_MAX} accepted calls or {} MiB of them wait", BYTES_MAX >> 20);
        Err(Problem::new(429, "M0504", text))
    }

    fn release(&self, length: u64) {
        self.calls.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(length, Ordering::Relaxed);
    }

    /// Runs a call to its end. `slot` is its right to run, which its callback does not need.
    async fn run(self, number: u64, length: u64, slot: OwnedSemaphorePermit) {
        let later = match self.node.kept_call(number).await {
            Ok(Some(record)) => Later::decode(record),
            Ok(None) => None,
            Err(problem) => {
                tracing::error!(
                    number,
                    problem = problem.detail,
                    "accepted call cannot be read; kept"
                );
                return;
            }
        };
        if let Some(later) = later {
            match self.outcome(&later).await {
                Outcome::Ended(result) => {
                    // Taken before the other is given back: so few answers are in memory at once.
                    let _turn = match later.callback {
                        Some(_) => self.callbacks.acquire().await.ok(),
                        None => None,
                    };
                    drop(slot);
                    self.tell(&later, number, result).await;
                }
                Outcome::Stopping => {
                    tracing::warn!(number, "accepted call found the node stopping; kept");
                    return;
                }
            }
        } else {
            tracing::error!(number, "accepted call is not readable; dropped");
        }
        if let Err(problem) = self.node.forget_call(number).await {
            tracing::error!(
                number,
                problem = problem.detail,
                "accepted call ended and is still kept"
            );
        }
        self.release(length);
    }

    async fn outcome(&self, later: &Later) -> Outcome {
        let mut pause = PAUSE;
        for attempt in 1.. {
            let call = Call {
                function: later.function.clone(),
                head: later.head(),
                body: Body::whole(later.body.clone()),
                timeout_ms: None,
            };
            let since = std::time::Instant::now();
            let fault = match self.node.invoke(call).await {
                Ok(reply) => {
                    let (status, fields) = (reply.status, reply.headers);
                    let body = match later.callback {
                        Some(_) => reply.body.collect(ANSWER_BYTES_MAX).await,
                        None => to_the_end(reply.body).await,
                    };
                    let body = body.map_err(|error| error.to_string());
                    let seconds = since.elapsed().as_secs_f64();
                    return Outcome::Ended(Ended { status, fields, body, seconds });
                }
                Err(fault) => fault,
            };
            if fault.class() == FaultClass::Capacity && attempt < TRIES_MAX {
                tokio::time::sleep(pause).await;
                pause *= 2;
                continue;
            }
            if fault == Fault::Stopping {
                return Outcome::Stopping;
            }
            let status = fault.answer().http;
            let text = fault.public_text(&later.function);
            let seconds = since.elapsed().as_secs_f64();
            return Outcome::Ended(Ended {
                status,
                fields: Bytes::new(),
                body: Err(text),
                seconds,
            });
        }
        Outcome::Stopping
    }

    /// Says how a call ended: in the node's log where it failed, and to its callback.
    async fn tell(&self, later: &Later, number: u64, ended: Ended) {
        let Ended { status, fields, body, seconds } = ended;
        if let Err(reason) = &body {
            tracing::warn!(
                function = later.function,
                number,
                status,
                reason,
                "accepted call failed"
            );
        }
        let Some(url) = &later.callback else { return };
        let reach = if later.local { Reach::Any } else { Reach::Beyond };
        let mut all = HeaderMap::new();
        for (name, value) in headers(&fields) {
            set(&mut all, name, value);
        }
        for (name, value) in &later.callback_fields {
            set(&mut all, name.as_bytes(), value.as_bytes());
        }
        set(&mut all, b"x-duration-seconds", format!("{seconds:.6}").as_bytes());
        set(&mut all, b"x-function-status", status.to_string().as_bytes());
        let body = body.unwrap_or_else(Bytes::from);
        let mut pause = PAUSE;
        for attempt in 1..=TRIES_MAX {
            let uri = match outgoing::check(url) {
                Ok(uri) => uri,
                Err(error) => return tracing::warn!(number, %error, "callback not possible"),
            };
            let sent = outgoing::send(
                Method::POST,
                &uri,
                all.clone(),
                body.clone(),
                reach,
                CALLBACK_ANSWER_BYTES_MAX,
            );
            let reason = match sent.await {
                Ok((answer, _)) if answer < 500 && answer != 429 => return,
                Ok((answer, _)) => format!("answered {answer}"),
                Err(error) if error.is_final() => {
                    return tracing::warn!(number, %error, "callback not possible");
                }
                Err(error) => error.to_string(),
            };
            if attempt == TRIES_MAX {
                tracing::warn!(number, reason, "callback given up");
                return;
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }
}

/// Reads an answer that nobody is told.
async fn to_the_end(mut body: Body) -> Result<Bytes, BodyError> {
    while let Some(chunk) = body.chunk().await {
        chunk?;
    }
    Ok(Bytes::new())
}

fn set(all: &mut HeaderMap, name: &[u8], value: &[u8]) {
    if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        && !is_hop_by_hop(name.as_str())
    {
        all.insert(name, value);
    }
}

struct Ended {
    status: u16,
    fields: Bytes,
    /// Its body, or what to say instead.
    body: Result<Bytes, String>,
    seconds: f64,
}

enum Outcome {
    Ended(Ended),
    /// The node stops; the call is kept.
    Stopping,
}

impl Waiting {
    /// Takes up the calls that an earlier run of the node has left. Before anything is accepted:
    /// later ones would be taken up twice.
    pub async fn take_up(&mut self) {
        let left = match self.queue.node.kept_calls().await {
            Ok(left) => left,
            Err(problem) => {
                tracing::error!(problem = problem.detail, "accepted calls of before are not read");
                return;
            }
        };
        if !left.is_empty() {
            tracing::info!(calls = left.len(), "accepted calls of before are run");
        }
        for (number, length) in left {
            self.queue.calls.fetch_add(1, Ordering::Relaxed);
            self.queue.bytes.fetch_add(length, Ordering::Relaxed);
            let _ = self.queue.numbers.send((number, length));
        }
    }

    /// Runs accepted calls until `stopped` resolves. What runs then has until the future is dropped.
    pub async fn run(mut self, stopped: impl Future<Output = ()>) {
        let slots = Arc::new(Semaphore::new(RUNNING_MAX));
        let mut running = JoinSet::new();
        tokio::pin!(stopped);
        loop {
            while running.try_join_next().is_some() {}
            let next = async {
                let slot = slots.clone().acquire_owned().await.expect("never closed");
                (slot, self.numbers.recv().await)
            };
            let (slot, number) = tokio::select! {
                next = next => next,
                () = &mut stopped => break,
            };
            let Some((number, length)) = number else { break };
            let queue = self.queue.clone();
            running.spawn(queue.run(number, length, slot));
        }
        while running.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_hold_everything() {
        let later = Later {
            function: "f".to_owned(),
            method: "PUT".to_owned(),
            target: "/a?b=c".to_owned(),
            callback: Some("http://127.0.0.1/x".to_owned()),
            local: true,
            callback_fields: vec![("x-call-id".to_owned(), "1".to_owned())],
            fields: Bytes::from_static(b"x-a\n\xff\n"),
            body: Bytes::from_static(b"\0body"),
        };
        assert_eq!(Later::decode(later.encode()).as_ref(), Some(&later));
        assert_eq!(later.head().query(), b"b=c");
        for cut in [0, 3, 5, 20] {
            assert_eq!(Later::decode(later.encode()[..cut].to_vec()), None, "{cut}");
        }
    }
}
