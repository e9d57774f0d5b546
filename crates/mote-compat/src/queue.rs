//! Accepted calls. They run after the client has received its 202, and the journal keeps them until
//! they have ended.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use bytes::Bytes;
use futures_util::FutureExt as _;
use mote_api::Problem;
use mote_core::body::{Body, BodyError};
use mote_core::invocation::{Head, headers};
use mote_core::shares::{Share, Shares, address_owner};
use mote_core::{Fault, FaultClass};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::call::{TooManyFields, fields as all_fields, is_hop_by_hop};
use crate::fair::Fair;
use crate::journal::{self, Journal, Kept, Runner};
use crate::node::{Call, Invocations, KeptCalls};
use crate::outgoing::{self, Outgoing};

/// Calls that run at once, in total and of one function. Calls that take long, or that find no room
/// and are tried again, can delay those of other functions only if several functions have such
/// calls.
const RUNNING_MAX: usize = 32;
const RUNNING_OF_ONE_MAX: usize = 8;
/// Bytes of accepted bodies that are being received; one address may use half of them. Further
/// clients receive a 503.
const RECEIVING_BYTES_MAX: usize = 64 << 20;
/// Time limit for receiving one body.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(60);
/// Callbacks that are sent at once, which do not count as running calls, and those of one function.
const CALLBACKS_MAX: usize = 32;
const CALLBACKS_OF_ONE_MAX: usize = 8;
/// Bytes of answers that wait for their callbacks. A callback above this limit is given up, like
/// one whose server does not answer, because a waiting answer must not delay calls.
const UNTOLD_BYTES_MAX: usize = 64 << 20;
/// Longest answer that a callback carries; for a longer one the callback reports a failure.
const ANSWER_BYTES_MAX: u64 = 8 << 20;
/// Most bytes that are read of the answer to a callback, so that its server can finish sending.
const CALLBACK_ANSWER_BYTES_MAX: usize = 64 << 10;
/// Attempts for a call that finds no room, and for a callback.
pub const TRIES_MAX: u32 = 8;
/// The pause before the second attempt; it doubles from then on.
pub const PAUSE: Duration = Duration::from_millis(500);

/// A call to run later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Later {
    /// The function.
    pub function: String,
    /// Its method.
    pub method: String,
    /// Path and query below the function.
    pub target: String,
    /// The address for the result: `http://…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<String>,
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
    /// A POST to the function's root whose result is discarded.
    pub fn plain(function: &str, fields: Bytes, body: Bytes) -> Self {
        Self {
            function: function.to_owned(),
            method: "POST".to_owned(),
            target: "/".to_owned(),
            callback: None,
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
    node: Arc<dyn Invocations>,
    /// The destinations that callbacks may reach.
    pub outgoing: Outgoing,
    /// The journal of the queue, which may also keep records that run outside the queue.
    pub journal: Journal,
    receiving: Shares<IpAddr>,
    /// Free capacity in KiB.
    untold: Arc<Semaphore>,
    accepted: mpsc::UnboundedSender<(Option<String>, Kept)>,
    activations: mpsc::UnboundedSender<Resumed>,
}

/// A record from before the restart that is executed outside the queue, and its content.
pub type Resumed = (Kept, Bytes);

/// A body in memory, which counts until it is dropped.
pub struct Received {
    /// All of it.
    pub bytes: Bytes,
    _room: Share<IpAddr>,
}

/// Calls that have not run yet; see [`Waiting::run`].
pub struct Waiting {
    queue: Queue,
    /// Calls with their function, where it is known without reading the record.
    accepted: mpsc::UnboundedReceiver<(Option<String>, Kept)>,
    /// Records that OpenWhisk's API runs. They stay kept if nothing receives them.
    pub activations: Option<mpsc::UnboundedReceiver<Resumed>>,
}

impl Queue {
    /// The queue, and the calls that wait to be run.
    pub fn new<N: Invocations + KeptCalls>(node: Arc<N>, outgoing: Outgoing) -> (Self, Waiting) {
        let (accepted, received) = mpsc::unbounded_channel();
        let (activations, resumed) = mpsc::unbounded_channel();
        let receiving = Shares::new(RECEIVING_BYTES_MAX, RECEIVING_BYTES_MAX / 2);
        let untold = Arc::new(Semaphore::new(UNTOLD_BYTES_MAX >> 10));
        let journal = Journal::new(node.clone());
        let queue = Self { node, outgoing, journal, receiving, untold, accepted, activations };
        let waiting =
            Waiting { queue: queue.clone(), accepted: received, activations: Some(resumed) };
        (queue, waiting)
    }

    /// Receives the body of a call to accept from `peer`, at most `limit_bytes` of it, within the
    /// memory limit of all such bodies.
    pub async fn receive(
        &self,
        body: Body,
        limit_bytes: u64,
        peer: IpAddr,
    ) -> Result<Received, Fault> {
        let wanted = body.length().unwrap_or(limit_bytes);
        if wanted > limit_bytes {
            return Err(Fault::BodyTooLarge { limit_bytes });
        }
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let room = self.receiving.take(address_owner(peer), wanted);
        let room = room.map_err(|_| Fault::NodeFull)?;
        let bytes = tokio::time::timeout(RECEIVE_TIMEOUT, body.collect(limit_bytes)).await;
        match bytes {
            Ok(Ok(bytes)) => Ok(Received { bytes, _room: room }),
            Ok(Err(BodyError::TooLarge(limit_bytes))) => Err(Fault::BodyTooLarge { limit_bytes }),
            Ok(Err(_)) | Err(_) => Err(Fault::BodyIncomplete),
        }
    }

    /// Accepts a call: it is on disk when this returns `Ok`. 429 if too many wait.
    pub async fn accept(&self, later: &Later) -> Result<(), Problem> {
        let kept = self.journal.keep(later.encode()).await?;
        // The receiver is gone only when the node stops; the call is kept for the next start.
        let _ = self.accepted.send((Some(later.function.clone()), kept));
        Ok(())
    }

    /// The function of a record that an earlier run of the node left; the record itself if the
    /// queue does not run it.
    async fn function_of(self, kept: Kept) -> TaskEnd {
        let number = kept.number();
        let record = match kept.read().await {
            Ok(Some(record)) => record,
            Ok(None) => {
                kept.forget().await;
                return TaskEnd::Done;
            }
            Err(problem) => {
                let problem = problem.detail;
                tracing::error!(number, problem, "cannot read an accepted call; it is kept");
                return TaskEnd::Done;
            }
        };
        if Runner::of(&record) == Some(Runner::Activation) {
            if self.activations.send((kept, record)).is_err() {
                tracing::warn!(number, "an activation waits until OpenWhisk's API is on again");
            }
            return TaskEnd::Done;
        }
        match Later::decode(&record) {
            Some(later) => TaskEnd::Known(later.function, kept),
            None => {
                tracing::error!(number, "cannot parse an accepted call; it is kept");
                TaskEnd::Done
            }
        }
    }

    /// Runs a call to its end; returns the callback to send. A call that makes the node panic
    /// counts as ended, because it would do so again at each start.
    async fn run(self, kept: Kept) -> Option<Tell> {
        let number = kept.number();
        match AssertUnwindSafe(self.end_of(&kept)).catch_unwind().await {
            Ok(End::Kept) => None,
            Ok(End::Over) => {
                kept.forget().await;
                None
            }
            Ok(End::Untold(untold)) => Some(Tell { kept, untold, attempt: 1, pause: PAUSE }),
            Err(_) => {
                tracing::error!(number, "an accepted call is dropped: the node could not run it");
                kept.forget().await;
                None
            }
        }
    }

    async fn end_of(&self, kept: &Kept) -> End {
        let number = kept.number();
        let record = match kept.read().await {
            Ok(Some(record)) => record,
            Ok(None) => return End::Over,
            Err(problem) => {
                let problem = problem.detail;
                tracing::error!(number, problem, "cannot read an accepted call; it is kept");
                return End::Kept;
            }
        };
        let Some(later) = Later::decode(&record) else {
            tracing::error!(number, "cannot parse an accepted call; it is kept");
            return End::Kept;
        };
        let Outcome::Ended(ended) = self.outcome(&later).await else {
            tracing::warn!(
                number,
                "an accepted call could not run because the node is stopping; it is kept"
            );
            return End::Kept;
        };
        let Ended { status, fields, body, seconds } = ended;
        if let Err(reason) = &body {
            let function = later.function.as_str();
            tracing::warn!(function, number, status, reason, "accepted call failed");
        }
        let Some(url) = later.callback else { return End::Over };
        let (fields, body) = match all_fields(&fields) {
            Ok(fields) => (fields, body.unwrap_or_else(Bytes::from)),
            Err(TooManyFields) => (HeaderMap::new(), Bytes::from(TooManyFields.to_string())),
        };
        let kib = u32::try_from((body.len() >> 10) + 1).unwrap_or(u32::MAX);
        let Ok(room) = self.untold.clone().try_acquire_many_owned(kib) else {
            tracing::warn!(number, "a callback is dropped: too many answers wait for callbacks");
            return End::Over;
        };
        let mut untold = Untold { url, fields, body, _room: room };
        for (name, value) in &later.callback_fields {
            untold.set(name.as_bytes(), value.as_bytes());
        }
        untold.set(b"x-duration-seconds", format!("{seconds:.6}").as_bytes());
        untold.set(b"x-function-status", status.to_string().as_bytes());
        End::Untold(untold)
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

    /// Tries once to report to a callback how its call ended; returns the callback if it must be
    /// tried again.
    async fn tell(self, tell: Tell) -> Option<Tell> {
        let number = tell.kept.number();
        let told = AssertUnwindSafe(self.told(&tell)).catch_unwind().await;
        let again = match told {
            Ok(again) => again,
            Err(_) => {
                tracing::error!(number, "a callback is dropped: the node could not send it");
                None
            }
        };
        match again {
            Some(reason) if tell.attempt == TRIES_MAX => {
                tracing::warn!(number, reason, "a callback is dropped");
            }
            Some(_) => return Some(tell),
            None => {}
        }
        tell.kept.forget().await;
        None
    }

    /// The reason why a callback must be sent again; `None` if it arrived or never can.
    async fn told(&self, tell: &Tell) -> Option<String> {
        let Tell { kept, untold, .. } = tell;
        let number = kept.number();
        let uri = match outgoing::check(&untold.url) {
            Ok(uri) => uri,
            Err(error) => {
                tracing::warn!(number, %error, "cannot send a callback");
                return None;
            }
        };
        let (fields, body) = (untold.fields.clone(), untold.body.clone());
        let sent = outgoing::send(
            Method::POST,
            &uri,
            fields,
            body,
            &self.outgoing,
            CALLBACK_ANSWER_BYTES_MAX,
        );
        match sent.await {
            Ok((answer, _)) if answer < 500 && answer != 429 => None,
            Ok((answer, _)) => Some(format!("answered {answer}")),
            Err(error) if error.is_final() => {
                tracing::warn!(number, %error, "cannot send a callback");
                None
            }
            Err(error) => Some(error.to_string()),
        }
    }
}

/// The outcome of running a record.
enum End {
    /// It stays for the next start.
    Kept,
    /// Nothing is left to do.
    Over,
    /// A callback must be sent.
    Untold(Untold),
}

/// The result of a call that its callback has not received yet.
struct Untold {
    url: String,
    fields: HeaderMap,
    body: Bytes,
    _room: OwnedSemaphorePermit,
}

impl Untold {
    fn set(&mut self, name: &[u8], value: &[u8]) {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
            && !is_hop_by_hop(name.as_str())
        {
            // The function's fields leave room for these.
            let _ = self.fields.try_insert(name, value);
        }
    }
}

/// A callback that is being sent.
struct Tell {
    kept: Kept,
    untold: Untold,
    attempt: u32,
    /// The pause before the next attempt.
    pause: Duration,
}

/// The result of a task of [`Waiting::run`].
enum TaskEnd {
    Done,
    /// The function of a record is known.
    Known(String, Kept),
    /// A call of this function has ended; a callback may have to be sent.
    Ran(String, Option<Tell>),
    /// A callback of this function was sent; it may have to be sent again.
    Told(String, Option<Tell>),
    /// The pause before another attempt is over.
    Rested(String, Tell),
}

#[cfg(feature = "fuzzing")]
pub(crate) fn read_again(record: Vec<u8>) -> Option<Vec<u8>> {
    let later = Later::decode(&record.into())?;
    assert_eq!(later.head().method(), later.method.as_bytes());
    Some(later.encode())
}

/// Reads an answer that no callback receives.
async fn to_the_end(mut body: Body) -> Result<Bytes, BodyError> {
    while let Some(chunk) = body.chunk().await {
        chunk?;
    }
    Ok(Bytes::new())
}

struct Ended {
    status: u16,
    fields: Bytes,
    /// Its body, or the message to send instead.
    body: Result<Bytes, String>,
    seconds: f64,
}

enum Outcome {
    Ended(Ended),
    /// The node stops; the call is kept.
    Stopping,
}

impl Waiting {
    /// Loads the calls that an earlier run of the node left. Must be called before anything is
    /// accepted, because later calls would be loaded twice.
    pub async fn take_up(&mut self) {
        let left = match self.queue.journal.left().await {
            Ok(left) => left,
            Err(problem) => {
                tracing::error!(
                    problem = problem.detail,
                    "cannot read accepted calls from before the restart"
                );
                return;
            }
        };
        if !left.is_empty() {
            tracing::info!(calls = left.len(), "running accepted calls from before the restart");
        }
        for kept in left {
            let _ = self.queue.accepted.send((None, kept));
        }
    }

    /// Runs accepted calls until `stopped` resolves. Calls that run then have until the future is
    /// dropped.
    pub async fn run(mut self, stopped: impl Future<Output = ()>) {
        // Records of an earlier run are read as if they belonged to one function without a name.
        let mut unread: Fair<Kept> = Fair::new(RUNNING_OF_ONE_MAX, RUNNING_OF_ONE_MAX);
        let mut calls: Fair<Kept> = Fair::new(RUNNING_MAX, RUNNING_OF_ONE_MAX);
        let mut callbacks: Fair<Tell> = Fair::new(CALLBACKS_MAX, CALLBACKS_OF_ONE_MAX);
        let mut running: JoinSet<TaskEnd> = JoinSet::new();
        let mut stopping = false;
        tokio::pin!(stopped);
        loop {
            while let Some((_, kept)) = (!stopping).then(|| unread.next()).flatten() {
                running.spawn(self.queue.clone().function_of(kept));
            }
            while let Some((function, kept)) = (!stopping).then(|| calls.next()).flatten() {
                let run = self.queue.clone().run(kept);
                running.spawn(async move { TaskEnd::Ran(function, run.await) });
            }
            while let Some((function, tell)) = callbacks.next() {
                let tell = self.queue.clone().tell(tell);
                running.spawn(async move { TaskEnd::Told(function, tell.await) });
            }
            if stopping && running.is_empty() {
                return;
            }
            tokio::select! {
                accepted = self.accepted.recv(), if !stopping => match accepted {
                    Some((Some(function), kept)) => calls.push(&function, kept),
                    Some((None, kept)) => unread.push("", kept),
                    None => stopping = true,
                },
                Some(step) = running.join_next(), if !running.is_empty() => {
                    // Panics are caught inside the steps.
                    let Ok(step) = step else { continue };
                    match step {
                        TaskEnd::Done => unread.ended(""),
                        TaskEnd::Known(function, kept) => {
                            unread.ended("");
                            calls.push(&function, kept);
                        }
                        TaskEnd::Ran(function, tell) => {
                            calls.ended(&function);
                            if let Some(tell) = tell {
                                callbacks.push(&function, tell);
                            }
                        }
                        TaskEnd::Told(function, tell) => {
                            callbacks.ended(&function);
                            if let Some(tell) = tell {
                                running.spawn(rest(function, tell));
                            }
                        }
                        TaskEnd::Rested(function, tell) => callbacks.push(&function, tell),
                    }
                }
                () = &mut stopped, if !stopping => stopping = true,
            }
        }
    }
}

/// Waits between two attempts of a callback, without using a place of those that are being sent.
async fn rest(function: String, tell: Tell) -> TaskEnd {
    tokio::time::sleep(tell.pause).await;
    let again = Tell { attempt: tell.attempt + 1, pause: tell.pause * 2, ..tell };
    TaskEnd::Rested(function, again)
}

#[cfg(test)]
mod tests {
    use mote_core::invocation::Reply;

    use super::*;
    use crate::fake::Fake;

    #[test]
    fn records_hold_everything() {
        let later = Later {
            function: "f".to_owned(),
            method: "PUT".to_owned(),
            target: "/a?b=c".to_owned(),
            callback: Some("http://127.0.0.1/x".to_owned()),
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

    fn answer(headers: Vec<u8>) -> Result<Reply, Fault> {
        let (headers, body) = (headers.into(), Body::whole("done"));
        Ok(Reply { status: 200, headers, body, phases: Default::default() })
    }

    /// A queue over a node whose functions are `run`, and the channel that stops it.
    fn running(
        run: impl Fn(Call) -> futures_util::future::BoxFuture<'static, Result<Reply, Fault>>
        + Send
        + Sync
        + 'static,
    ) -> (Arc<Fake>, Queue, tokio::sync::oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
        let node = Arc::new(Fake::new(run));
        let outgoing = Outgoing { reach: outgoing::Reach::Machine, ..Default::default() };
        let (queue, waiting) = Queue::new(node.clone(), outgoing);
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let serving = tokio::spawn(waiting.run(async move {
            let _ = stopped.await;
        }));
        (node, queue, stop, serving)
    }

    async fn until(what: &str, done: impl Fn() -> bool) {
        let waited = tokio::time::timeout(Duration::from_secs(20), async {
            while !done() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        waited.await.unwrap_or_else(|_| panic!("waited in vain: {what}"));
    }

    #[tokio::test]
    async fn callbacks_that_hang_do_not_keep_other_calls_from_running() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let url = format!("http://{}/", silent.local_addr().expect("bound"));
        let ran = Arc::new(std::sync::Mutex::new(Vec::new()));
        let noted = ran.clone();
        let (_node, queue, _stop, _serving) = running(move |call| {
            noted.lock().expect("not poisoned").push(call.function);
            async { answer(Vec::new()) }.boxed()
        });
        for _ in 0..100 {
            let plain = Later::plain("hostile", Bytes::new(), Bytes::new());
            let later = Later { callback: Some(url.clone()), ..plain };
            queue.accept(&later).await.expect("accepted");
        }
        let ran_all = || ran.lock().expect("not poisoned").len() == 100;
        until("all run while their callbacks hang", ran_all).await;
        let later = Later::plain("other", Bytes::new(), Bytes::new());
        queue.accept(&later).await.expect("accepted");
        let other = || ran.lock().expect("not poisoned").contains(&"other".to_owned());
        until("a call of another function runs", other).await;
    }

    #[tokio::test]
    async fn calls_that_take_long_leave_room_to_other_functions() {
        let began = Arc::new(std::sync::Mutex::new(Vec::new()));
        let noted = began.clone();
        let (_node, queue, _stop, _serving) = running(move |call| {
            noted.lock().expect("not poisoned").push(call.function.clone());
            let slow = call.function == "slow";
            async move {
                if slow {
                    std::future::pending::<()>().await;
                }
                answer(Vec::new())
            }
            .boxed()
        });
        for function in std::iter::repeat_n("slow", 100).chain(["quick"]) {
            let later = Later::plain(function, Bytes::new(), Bytes::new());
            queue.accept(&later).await.expect("accepted");
        }
        let count = |name: &str| {
            began.lock().expect("not poisoned").iter().filter(|ran| *ran == name).count()
        };
        until("the quick one runs", || count("quick") == 1).await;
        until("its share is used", || count("slow") == RUNNING_OF_ONE_MAX).await;
    }

    #[tokio::test]
    async fn a_call_that_makes_the_node_fail_is_not_kept() {
        let (node, queue, stop, serving) = running(|call| match call.function.as_str() {
            "panics" => async { panic!("as planned") }.boxed(),
            _ => {
                let mut many = Vec::new();
                for n in 0..40_000 {
                    let name = format!("x-{n}");
                    mote_core::invocation::put_header(&mut many, name.as_bytes(), b"v");
                }
                async { answer(many) }.boxed()
            }
        });
        let receiver = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let url = format!("http://{}/", receiver.local_addr().expect("bound"));
        for function in ["panics", "many"] {
            let plain = Later::plain(function, Bytes::new(), Bytes::new());
            let later = Later { callback: Some(url.clone()), ..plain };
            queue.accept(&later).await.expect("accepted");
        }
        // The answer cannot be passed on, so the callback receives an error in its place.
        let (mut told, _) = receiver.accept().await.expect("a callback");
        let mut read = vec![0; 4_096];
        let length = tokio::io::AsyncReadExt::read(&mut told, &mut read).await.expect("read");
        let text = String::from_utf8_lossy(&read[..length]).into_owned();
        assert!(text.contains("x-function-status: 200"), "{text}");
        let ok = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut told, ok).await.expect("sent");
        until("nothing is kept", || node.kept.lock().expect("not poisoned").is_empty()).await;
        assert_eq!(queue.journal.held(), (0, 0), "its place in the journal is free");
        stop.send(()).expect("running");
        serving.await.expect("it ends");
    }

    /// A body that never delivers anything.
    struct Silent;

    impl mote_core::body::BodySource for Silent {
        fn poll_chunk(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<Bytes, BodyError>>> {
            std::task::Poll::Pending
        }
    }

    #[tokio::test]
    async fn bodies_of_calls_for_later_take_bounded_memory() {
        const BODY: u64 = 8 << 20;
        let (_node, queue, _stop, _serving) = running(|_| async { answer(Vec::new()) }.boxed());
        let begin = |peer: &str| {
            let body = Body::Stream { source: Box::new(Silent), length: Some(BODY) };
            let (queue, peer) = (queue.clone(), peer.parse().expect("an address"));
            let mut call = async move { queue.receive(body, BODY, peer).await.map(|_| ()) }.boxed();
            let ended = (&mut call).now_or_never();
            (call, ended)
        };
        let share = RECEIVING_BYTES_MAX / 2 / BODY as usize;
        let mut held = Vec::new();
        for peer in ["192.0.2.1", "192.0.2.2"] {
            for n in 0..share {
                let (call, ended) = begin(peer);
                assert!(ended.is_none(), "{peer}: body {n} of {share}: {ended:?}");
                held.push(call);
            }
            assert!(matches!(begin(peer).1, Some(Err(Fault::NodeFull))), "{peer} has its share");
        }
        // All memory is used; a released part is available again.
        assert!(matches!(begin("192.0.2.3").1, Some(Err(Fault::NodeFull))));
        held.truncate(share);
        assert!(begin("192.0.2.3").1.is_none());
        assert_eq!(queue.receiving.taken(), RECEIVING_BYTES_MAX / 2);
    }

    #[tokio::test]
    async fn answers_that_wait_for_callbacks_take_bounded_memory() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let url = format!("http://{}/", silent.local_addr().expect("bound"));
        let ran = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let noted = ran.clone();
        let long = Bytes::from(vec![b'x'; ANSWER_BYTES_MAX as usize]);
        let (node, queue, _stop, _serving) = running(move |_| {
            noted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let (headers, body) = (Bytes::new(), Body::Whole(long.clone()));
            async { Ok(Reply { status: 200, headers, body, phases: Default::default() }) }.boxed()
        });
        const CALLS: usize = 12;
        for n in 0..CALLS {
            let plain = Later::plain(&format!("f{n}"), Bytes::new(), Bytes::new());
            let later = Later { callback: Some(url.clone()), ..plain };
            queue.accept(&later).await.expect("accepted");
        }
        // Each callback counts one KiB in addition to its answer.
        let waiting = UNTOLD_BYTES_MAX / (ANSWER_BYTES_MAX as usize + 1_024);
        let given_up = || node.kept.lock().expect("not poisoned").len() == waiting;
        until("the callbacks beyond are given up", given_up).await;
        assert_eq!(ran.load(std::sync::atomic::Ordering::SeqCst), CALLS, "all calls have run");
        let free = queue.untold.available_permits();
        assert!(free < ANSWER_BYTES_MAX as usize >> 10, "{free} KiB are free");
    }
}
