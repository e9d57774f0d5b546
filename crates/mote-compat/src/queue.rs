//! Accepted calls: run after the client has its 202, kept in the journal until they have ended.

use std::sync::Arc;
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
use crate::journal::{self, Journal, Kept, Kind};
use crate::node::{Call, Node};
use crate::outgoing::{self, Reach};

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
pub(crate) const TRIES_MAX: u32 = 8;
pub(crate) const PAUSE: Duration = Duration::from_millis(500);

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

    fn encode(&self) -> Vec<u8> {
        journal::record(self, &self.fields, &self.body)
    }

    fn decode(record: &Bytes) -> Option<Self> {
        let [description, fields, body] = journal::parts(record)?;
        let later: Later = serde_json::from_slice(&description).ok()?;
        Some(Self { fields, body, ..later })
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
    /// Where they are kept, and where what is run elsewhere may be kept, too.
    pub journal: Journal,
    /// In KiB.
    receiving: Arc<Semaphore>,
    callbacks: Arc<Semaphore>,
    accepted: mpsc::UnboundedSender<Kept>,
    activations: mpsc::UnboundedSender<Resumed>,
}

/// A kept record of before that another than the queue runs, and what it says.
pub type Resumed = (Kept, Bytes);

/// A body in memory, counted until it is dropped.
pub struct Received {
    /// All of it.
    pub bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

/// What is still to run; see [`Waiting::run`].
pub struct Waiting {
    queue: Queue,
    accepted: mpsc::UnboundedReceiver<Kept>,
    /// Those that OpenWhisk's API runs. They stay kept where nobody receives them.
    pub activations: Option<mpsc::UnboundedReceiver<Resumed>>,
}

impl Queue {
    /// The queue and what runs it.
    pub fn new(node: Arc<dyn Node>) -> (Self, Waiting) {
        let (accepted, received) = mpsc::unbounded_channel();
        let (activations, resumed) = mpsc::unbounded_channel();
        let receiving = Arc::new(Semaphore::new(RECEIVING_BYTES_MAX >> 10));
        let callbacks = Arc::new(Semaphore::new(CALLBACKS_MAX));
        let journal = Journal::new(node.clone());
        let queue = Self { node, journal, receiving, callbacks, accepted, activations };
        let waiting =
            Waiting { queue: queue.clone(), accepted: received, activations: Some(resumed) };
        (queue, waiting)
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
        let kept = self.journal.keep(later.encode()).await?;
        // Nobody receives only when the node stops; the call is kept for the next start.
        let _ = self.accepted.send(kept);
        Ok(())
    }

    /// Runs a call to its end. `slot` is its right to run, which its callback does not need.
    async fn run(self, kept: Kept, slot: OwnedSemaphorePermit) {
        let number = kept.number();
        let record = match kept.read().await {
            Ok(Some(record)) => record,
            Ok(None) => return kept.forget().await,
            Err(problem) => {
                tracing::error!(
                    number,
                    problem = problem.detail,
                    "accepted call cannot be read; kept"
                );
                return;
            }
        };
        if Kind::of(&record) == Some(Kind::Activation) {
            if self.activations.send((kept, record)).is_err() {
                tracing::warn!(number, "an activation waits until OpenWhisk's API is on again");
            }
            return;
        }
        let Some(later) = Later::decode(&record) else {
            tracing::error!(number, "accepted call is not readable; kept");
            return;
        };
        let Outcome::Ended(result) = self.outcome(&later).await else {
            tracing::warn!(number, "accepted call found the node stopping; kept");
            return;
        };
        // Taken before the other is given back: so few answers are in memory at once.
        let _turn = match later.callback {
            Some(_) => self.callbacks.acquire().await.ok(),
            None => None,
        };
        drop(slot);
        self.tell(&later, number, result).await;
        kept.forget().await;
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

#[cfg(feature = "fuzzing")]
pub(crate) fn read_again(record: Vec<u8>) -> Option<Vec<u8>> {
    let later = Later::decode(&record.into())?;
    assert_eq!(later.head().method(), later.method.as_bytes());
    Some(later.encode())
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
        let left = match self.queue.journal.left().await {
            Ok(left) => left,
            Err(problem) => {
                tracing::error!(problem = problem.detail, "accepted calls of before are not read");
                return;
            }
        };
        if !left.is_empty() {
            tracing::info!(calls = left.len(), "accepted calls of before are run");
        }
        for kept in left {
            let _ = self.queue.accepted.send(kept);
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
                (slot, self.accepted.recv().await)
            };
            let (slot, kept) = tokio::select! {
                next = next => next,
                () = &mut stopped => break,
            };
            let Some(kept) = kept else { break };
            let queue = self.queue.clone();
            running.spawn(queue.run(kept, slot));
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
        assert_eq!(Later::decode(&later.encode().into()).as_ref(), Some(&later));
        assert_eq!(later.head().query(), b"b=c");
        for cut in [0, 3, 5, 20] {
            let cut_short = Bytes::from(later.encode()).slice(..cut);
            assert_eq!(Later::decode(&cut_short), None, "{cut}");
        }
    }
}
