//! Records the calls of one function for a client of the management API. The recorder sees calls
//! through the engine's watch, and only while a client reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use mote_api::Timestamp;
use mote_api::recording::{RecordedAnswer, RecordedBody, RecordedCall, is_left_out};
use mote_core::invocation::{Head, headers};
use mote_core::shares::{Exceeded, Share, Shares};
use mote_core::{Fault, Invocation, Reply, Trigger};
use mote_engine::{Ended, Engine, Watch, Watching};
use mote_process::clock;
use mote_spec::FunctionSpec;
use mote_spec::name::split;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::kept::{Budget, Kept};

/// The maximum number of bytes in bodies that all recordings of a node keep until their clients
/// have read them.
const KEPT_BYTES_MAX: usize = 16 << 20;
/// The maximum number of calls in a recording that wait for its client. Further calls are left out.
const WAITING_MAX: usize = 64;
/// The maximum number of recordings that run at once: in total, and of one function. A namespace
/// may hold all of them until another namespace asks for one; from then on, it may hold half.
const RECORDINGS_MAX: usize = 16;
const RECORDINGS_OF_ONE_MAX: usize = 4;

/// The recordings of a node.
#[derive(Debug)]
pub(crate) struct Recordings {
    running: Shares<String>,
    of_namespaces: Shares<Option<String>>,
    budget: Arc<Budget>,
}

impl Default for Recordings {
    fn default() -> Self {
        // The shares of the namespaces also limit the total.
        let running = Shares::new(2 * RECORDINGS_MAX, RECORDINGS_OF_ONE_MAX);
        let of_namespaces = Shares::even(RECORDINGS_MAX);
        Self { running, of_namespaces, budget: Budget::of(KEPT_BYTES_MAX) }
    }
}

impl Recordings {
    /// Begins to record the calls of a function. The recording ends when the result is dropped.
    /// Fails if too many recordings are running.
    pub(crate) fn begin(&self, engine: &Engine, function: &str) -> Result<Recording, Exceeded> {
        let namespace = split(function).1.map(str::to_owned);
        let place =
            (self.running.take(function.to_owned(), 1)?, self.of_namespaces.take(namespace, 1)?);
        let (sender, calls) = mpsc::channel(WAITING_MAX);
        let recorder = Recorder {
            function: function.to_owned(),
            to: Arc::new(To { sender, missed: AtomicU64::new(0) }),
            budget: self.budget.clone(),
        };
        let watching = engine.watch(Arc::new(recorder));
        Ok(Recording { calls, _watching: watching, _place: place })
    }
}

/// The calls that were recorded, in the order in which their answers ended.
pub(crate) struct Recording {
    calls: mpsc::Receiver<Box<Seen>>,
    _watching: Watching,
    _place: (Share<String>, Share<Option<String>>),
}

impl Recording {
    pub(crate) async fn next(&mut self) -> Option<RecordedCall> {
        self.calls.recv().await.map(|seen| seen.recorded())
    }
}

struct To {
    sender: mpsc::Sender<Box<Seen>>,
    missed: AtomicU64,
}

struct Recorder {
    function: String,
    to: Arc<To>,
    budget: Arc<Budget>,
}

/// A call whose answer has begun.
struct Seen {
    function: String,
    revision: u64,
    trigger: Trigger,
    began_ms: u64,
    head: Head,
    body: Kept,
    answer: SeenAnswer,
    missed: u64,
}

struct SeenAnswer {
    status: u16,
    headers: Bytes,
    body: Kept,
    ms: f64,
    fault: Option<String>,
}

/// Sends a call to the client when this is dropped, which happens when the answer has begun and is
/// no longer being read.
struct Sent {
    seen: Mutex<Option<Box<Seen>>>,
    to: Arc<To>,
}

impl Drop for Sent {
    fn drop(&mut self) {
        let Some(mut seen) = self.seen.get_mut().take() else { return };
        seen.missed = self.to.missed.swap(0, Ordering::Relaxed);
        if let Err(error) = self.to.sender.try_send(seen) {
            let missed = error.into_inner().missed + 1;
            self.to.missed.fetch_add(missed, Ordering::Relaxed);
        }
    }
}

impl Watch for Recorder {
    fn begin(
        &self,
        function: &FunctionSpec,
        revision: u64,
        invocation: &mut Invocation,
    ) -> Option<Ended> {
        if function.name.as_str() != self.function {
            return None;
        }
        let received_ns = invocation.received_ns;
        let (function, trigger) = (self.function.clone(), invocation.trigger);
        let (began_ms, head) = (clock::unix_ms(), invocation.head.clone());
        let body = Kept::of(&mut invocation.body, &self.budget, None);
        let (to, budget) = (self.to.clone(), self.budget.clone());
        Some(Box::new(move |result: Result<&mut Reply, &Fault>| {
            let ms = clock::now_ns().saturating_sub(received_ns) as f64 / 1e6;
            let sent = Arc::new(Sent { seen: Mutex::new(None), to });
            let answer = match result {
                Ok(reply) => SeenAnswer {
                    status: reply.status,
                    headers: reply.headers.clone(),
                    body: Kept::of(&mut reply.body, &budget, Some(Box::new(sent.clone()))),
                    ms,
                    fault: None,
                },
                Err(fault) => SeenAnswer {
                    status: fault.http_for(None),
                    headers: Bytes::new(),
                    body: Kept::Missing("the call failed"),
                    ms,
                    fault: Some(fault.to_string()),
                },
            };
            let seen =
                Seen { function, revision, trigger, began_ms, head, body, answer, missed: 0 };
            *sent.seen.lock() = Some(Box::new(seen));
        }))
    }
}

impl Seen {
    fn recorded(self) -> RecordedCall {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut path = text(self.head.path());
        if !self.head.query().is_empty() {
            path.push('?');
            path.push_str(&text(self.head.query()));
        }
        let (headers, left_out) = fields(self.head.headers());
        let SeenAnswer { status, headers: block, body, ms, fault } = self.answer;
        let (kept, body) = (fields(&block).0, recorded(&body));
        let answer = RecordedAnswer { status, headers: kept, body, ms, fault };
        RecordedCall {
            time: Timestamp::from_unix_ms(self.began_ms),
            function: self.function,
            revision: self.revision,
            trigger: self.trigger.as_str().to_owned(),
            method: text(self.head.method()),
            path,
            headers,
            left_out,
            body: recorded(&self.body),
            answer,
            missed: self.missed,
        }
    }
}

fn recorded(body: &Kept) -> RecordedBody {
    match body.bytes() {
        Ok(bytes) => RecordedBody::of(&bytes),
        Err(why) => RecordedBody::Missing(why.to_owned()),
    }
}

/// The fields of a header block, and the names of the fields that are left out.
fn fields(block: &[u8]) -> (Vec<(String, String)>, Vec<String>) {
    let mut kept = Vec::new();
    let mut left_out = Vec::new();
    for (name, value) in headers(block) {
        let name = String::from_utf8_lossy(name).into_owned();
        if is_left_out(&name) {
            left_out.push(name);
        } else {
            kept.push((name, String::from_utf8_lossy(value).into_owned()));
        }
    }
    (kept, left_out)
}
