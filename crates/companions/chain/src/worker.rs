//! The program's side of the worker protocol (docs/reference/worker-protocol.md). One thread serves
//! many runs at once.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future as _;
use std::os::fd::FromRawFd as _;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use futures_util::future::{Either, LocalBoxFuture, select};
use mote_core::services::{FUNCTIONS, PUBLISH, RUNS, Status};
use mote_core::wire::{
    self, CHUNK_BYTES_MAX, FLAG_END, FrameKind, INLINE_BODY_BYTES_MAX, Invoke, Load, Ready,
    ResultHead, WINDOW_BYTES, WorkerError,
};
use mote_process::clock::{now_ns, unix_ms};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, Semaphore, oneshot};

use crate::document::Chain;
use crate::expression::{parse, to_json};
use crate::host::{Error, Host, Outgoing, Publication, Reply, Stop};
use crate::interpreter::{self, Beginning, Outcome};
use crate::watchdog;

/// The file descriptor of the connection to the engine.
const CONNECTION: i32 = 3;
/// The most requests that one run may have in progress. This is within the number that the node
/// permits for one invocation.
const REQUESTS_OF_ONE: usize = 48;
/// The most requests that all runs together may have in progress.
const REQUESTS_MAX: usize = 200;
/// A request takes one permit for each piece of this length. The next constant is the number of
/// permits, which limits the bytes of all requests in progress.
const PERMIT_BYTES: usize = 16 << 10;
const PERMITS: usize = (3 << 20) / PERMIT_BYTES;
/// The number of runs at once, unless LOAD gives another one.
const CONCURRENCY: u32 = 64;
/// The answer field that says when a run continues.
pub const RESUME_FIELD: &str = "mote-resume-at";

/// Why the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The worker has drained, or the engine has closed the connection.
    Done = 0,
    /// The chain cannot be loaded.
    Load = 1,
    /// The engine broke the protocol.
    Protocol = 65,
}

/// All bytes to be written, in order.
#[derive(Default)]
struct Output {
    bytes: RefCell<Vec<u8>>,
    changed: Notify,
}

impl Output {
    fn put(&self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes.borrow_mut());
        self.changed.notify_one();
    }
}

/// A running invocation.
struct Stream {
    /// The part of its body that has arrived.
    body: BytesMut,
    /// Cancels the invocation.
    cancel: Option<oneshot::Sender<()>>,
    /// The number of bytes that may still be sent.
    window: Rc<Window>,
    /// The head of the invocation. Kept until the body is complete.
    waiting: Option<Invocation>,
}

struct Window {
    left: Cell<u32>,
    changed: Notify,
}

struct Invocation {
    id: u128,
    remaining_ms: u32,
    is_accepted: bool,
}

struct Worker {
    output: Output,
    chain: RefCell<Option<Rc<Chain>>>,
    services: RefCell<Vec<String>>,
    streams: RefCell<HashMap<u32, Stream>>,
    waiting: RefCell<HashMap<u32, oneshot::Sender<(u8, Bytes)>>>,
    next_request: Cell<u32>,
    requests: Semaphore,
    request_bytes: Semaphore,
    draining: Cell<bool>,
    /// Notified when a run has ended.
    ended: Notify,
}

/// Serves the connection until it ends. The process must end afterwards.
pub fn serve() -> End {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return End::Protocol };
    // SAFETY: the process was started with this descriptor as its connection, and nothing else in
    // the process owns it.
    #[expect(unsafe_code, reason = "the descriptor comes from outside")]
    let stream = unsafe { std::os::unix::net::UnixStream::from_raw_fd(CONNECTION) };
    if let Ok(mut copy) = stream.try_clone() {
        watchdog::start(move |number, may_write| {
            if may_write {
                let _ = std::io::Write::write_all(&mut copy, &overdue(number));
            }
        });
    }
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async move {
        if stream.set_nonblocking(true).is_err() {
            return End::Protocol;
        }
        match UnixStream::from_std(stream) {
            Ok(stream) => Worker::new().serve(stream).await,
            Err(_) => End::Protocol,
        }
    })
}

/// The last message before the watchdog ends the worker. It says that the run has failed.
fn overdue(stream: u32) -> Vec<u8> {
    let seconds = watchdog::EXPRESSION_SECONDS_MAX;
    let message = format!("an expression took longer than {seconds} s");
    let mut frames = Vec::new();
    put_error(&mut frames, stream, "Run", message.clone());
    put_error(&mut frames, 0, "Exit", message);
    frames
}

fn put_error(out: &mut Vec<u8>, stream: u32, kind: &str, message: String) {
    let error = WorkerError {
        kind: kind.to_owned(),
        message,
        trace: String::new(),
        entered_ns: 0,
        returned_ns: 0,
    };
    let error = serde_json::to_vec(&error.clamped()).expect("it has only string keys");
    let flags = if stream == 0 { 0 } else { FLAG_END };
    wire::put_frame(out, FrameKind::Error, flags, stream, &error);
}

impl Worker {
    fn new() -> Rc<Self> {
        Rc::new(Self {
            output: Output::default(),
            chain: RefCell::default(),
            services: RefCell::default(),
            streams: RefCell::default(),
            waiting: RefCell::default(),
            next_request: Cell::new(0),
            requests: Semaphore::new(REQUESTS_MAX),
            request_bytes: Semaphore::new(PERMITS),
            draining: Cell::new(false),
            ended: Notify::new(),
        })
    }

    async fn serve(self: Rc<Self>, stream: UnixStream) -> End {
        let (mut input, mut output) = stream.into_split();
        let mut hello = wire::VERSION.to_le_bytes().to_vec();
        hello.extend_from_slice(concat!("chain/", env!("CARGO_PKG_VERSION")).as_bytes());
        self.output.put(|out| wire::put_frame(out, FrameKind::Hello, 0, 0, &hello));
        let end = {
            let reads = pin!(self.clone().read(&mut input));
            let writes = pin!(self.write(&mut output));
            match select(reads, writes).await {
                Either::Left((end, _)) | Either::Right((end, _)) => end,
            }
        };
        // The bytes that were written last may contain, for example, the reason of a failed load.
        let last = std::mem::take(&mut *self.output.bytes.borrow_mut());
        let _ = output.write_all(&last).await;
        end
    }

    async fn write(&self, output: &mut OwnedWriteHalf) -> End {
        loop {
            let bytes = std::mem::take(&mut *self.output.bytes.borrow_mut());
            if bytes.is_empty() {
                self.output.changed.notified().await;
                continue;
            }
            watchdog::writing(true);
            let written = output.write_all(&bytes).await;
            watchdog::writing(false);
            if written.is_err() {
                return End::Done;
            }
        }
    }

    async fn read(self: Rc<Self>, input: &mut OwnedReadHalf) -> End {
        let mut buffer = BytesMut::with_capacity(64 << 10);
        loop {
            loop {
                let (header, payload) = match wire::split_frame(&mut buffer) {
                    Ok(Some(frame)) => frame,
                    Ok(None) => break,
                    Err(_) => return End::Protocol,
                };
                if let Some(end) = self.clone().frame(header, payload) {
                    return end;
                }
            }
            let idle = self.draining.get() && self.streams.borrow().is_empty();
            if idle {
                return End::Done;
            }
            let read = input.read_buf(&mut buffer);
            tokio::select! {
                read = read => match read {
                    Ok(0) | Err(_) => return End::Done,
                    Ok(_) => {}
                },
                () = self.ended.notified() => {}
            }
        }
    }

    fn frame(self: Rc<Self>, header: wire::FrameHeader, payload: Bytes) -> Option<End> {
        match header.kind {
            FrameKind::Load => {
                let began = Instant::now();
                let Ok(load) = serde_json::from_slice::<Load>(&payload) else {
                    return Some(End::Protocol);
                };
                let path = Path::new(&load.code_dir).join(&load.entry);
                let read = std::fs::read_to_string(&path)
                    .map_err(|error| format!("{}: {error}", load.entry))
                    .and_then(|text| {
                        let read = crate::reader::read(&text);
                        read.map_err(|mistake| format!("{}, {mistake}", load.entry))
                    });
                match read {
                    Err(message) => {
                        self.fail(0, "Chain", message);
                        Some(End::Load)
                    }
                    Ok(chain) => {
                        *self.chain.borrow_mut() = Some(Rc::new(chain));
                        *self.services.borrow_mut() = load.services;
                        let ready = Ready {
                            init_ns: began.elapsed().as_nanos() as u64,
                            concurrency: load.concurrency.unwrap_or(CONCURRENCY),
                            shape: "chain".to_owned(),
                            whole_bodies: true,
                            ..Ready::default()
                        };
                        let ready = serde_json::to_vec(&ready).expect("it has only string keys");
                        self.output.put(|out| wire::put_frame(out, FrameKind::Ready, 0, 0, &ready));
                        None
                    }
                }
            }
            FrameKind::Invoke => {
                let Ok(invoke) = Invoke::parse(&payload) else { return Some(End::Protocol) };
                let waiting = Invocation {
                    id: invoke.id,
                    remaining_ms: invoke.remaining_ms,
                    is_accepted: self.services.borrow().iter().any(|word| word == RUNS.0),
                };
                let window =
                    Rc::new(Window { left: Cell::new(WINDOW_BYTES), changed: Notify::new() });
                let body = BytesMut::from(invoke.body);
                let stream = Stream { body, cancel: None, window, waiting: Some(waiting) };
                self.streams.borrow_mut().insert(header.stream, stream);
                if header.is_end() {
                    self.begin(header.stream);
                }
                None
            }
            FrameKind::Body => {
                let known = {
                    let mut streams = self.streams.borrow_mut();
                    let stream = streams.get_mut(&header.stream);
                    stream.is_some_and(|stream| {
                        stream.body.extend_from_slice(&payload);
                        stream.waiting.is_some()
                    })
                };
                if known && header.is_end() {
                    self.begin(header.stream);
                } else if known && !payload.is_empty() {
                    let credit = (payload.len() as u32).to_le_bytes();
                    self.output.put(|out| {
                        wire::put_frame(out, FrameKind::Credit, 0, header.stream, &credit);
                    });
                }
                None
            }
            FrameKind::Cancel => {
                let mut streams = self.streams.borrow_mut();
                let stream = streams.get_mut(&header.stream)?;
                match stream.cancel.take() {
                    Some(cancel) => drop(cancel.send(())),
                    None if stream.waiting.is_some() => {
                        streams.remove(&header.stream);
                        drop(streams);
                        self.fail(header.stream, "Cancelled", "cancelled".to_owned());
                        self.ended.notify_one();
                    }
                    None => {}
                }
                None
            }
            FrameKind::Credit => {
                let Some(bytes) = payload.first_chunk::<4>() else { return Some(End::Protocol) };
                if let Some(stream) = self.streams.borrow().get(&header.stream) {
                    let left = stream.window.left.get().saturating_add(u32::from_le_bytes(*bytes));
                    stream.window.left.set(left.min(WINDOW_BYTES));
                    stream.window.changed.notify_one();
                }
                None
            }
            FrameKind::Drain => {
                self.draining.set(true);
                self.chain.borrow().is_none().then_some(End::Done)
            }
            FrameKind::Response => {
                if payload.len() < 8 {
                    return Some(End::Protocol);
                }
                let number = u32::from_le_bytes([payload[0], payload[1], payload[2], payload[3]]);
                if let Some(waiting) = self.waiting.borrow_mut().remove(&number) {
                    let _ = waiting.send((payload[4], payload.slice(8..)));
                }
                None
            }
            _ => Some(End::Protocol),
        }
    }

    fn fail(&self, stream: u32, kind: &str, message: String) {
        self.output.put(|out| put_error(out, stream, kind, message));
    }

    /// Starts the run of a stream whose body is complete.
    fn begin(self: Rc<Self>, stream: u32) {
        let (invocation, body, window, cancelled) = {
            let mut streams = self.streams.borrow_mut();
            let Some(entry) = streams.get_mut(&stream) else { return };
            let Some(invocation) = entry.waiting.take() else { return };
            let (cancel, cancelled) = oneshot::channel();
            entry.cancel = Some(cancel);
            (invocation, std::mem::take(&mut entry.body), entry.window.clone(), cancelled)
        };
        let Some(chain) = self.chain.borrow().clone() else { return };
        watchdog::busy(true);
        tokio::task::spawn_local(async move {
            let mut work = pin!(self.answer(stream, &chain, invocation, &body, &window));
            let work = std::future::poll_fn(|cx| {
                watchdog::stream(stream);
                work.as_mut().poll(cx)
            });
            if let Either::Right(_) = select(work, cancelled).await {
                self.fail(stream, "Cancelled", "cancelled".to_owned());
            }
            self.streams.borrow_mut().remove(&stream);
            watchdog::busy(!self.streams.borrow().is_empty());
            self.ended.notify_one();
        });
    }

    async fn answer(
        &self,
        stream: u32,
        chain: &Chain,
        invocation: Invocation,
        body: &[u8],
        window: &Window,
    ) {
        let entered_ns = now_ns();
        let outcome = self.run(stream, chain, invocation, body).await;
        let (status, fields, body) = match outcome {
            Outcome::Broken(text) => {
                self.fail(stream, "Run", text);
                return;
            }
            Outcome::Done(output) => match to_json(&output) {
                Ok(json) => {
                    (200, vec![("content-type", "application/json".to_owned())], json.to_string())
                }
                Err(text) => failed(&Error::new("expression", 400, "Expression failed", text)),
            },
            Outcome::Failed(error) => {
                self.log(stream, &error);
                failed(&error)
            }
            Outcome::Suspended(at_ms) => {
                (204, vec![(RESUME_FIELD, at_ms.to_string())], String::new())
            }
        };
        let mut headers = Vec::new();
        for (name, value) in fields {
            headers.extend_from_slice(format!("{name}\n{value}\n").as_bytes());
        }
        self.send(stream, status, headers, body.into_bytes().into(), entered_ns, window).await;
    }

    async fn send(
        &self,
        stream: u32,
        status: u16,
        headers: Vec<u8>,
        mut body: Bytes,
        entered_ns: u64,
        window: &Window,
    ) {
        let first = body.split_to(body.len().min(INLINE_BODY_BYTES_MAX));
        let head = ResultHead {
            entered_ns,
            returned_ns: now_ns(),
            status,
            headers: headers.into(),
            body: first,
        };
        self.output.put(|out| head.put(out, stream, body.is_empty()));
        while !body.is_empty() {
            let left = window.left.get() as usize;
            if left == 0 {
                window.changed.notified().await;
                continue;
            }
            let chunk = body.split_to(body.len().min(left).min(CHUNK_BYTES_MAX));
            window.left.set((left - chunk.len()) as u32);
            let flags = if body.is_empty() { FLAG_END } else { 0 };
            self.output.put(|out| wire::put_frame(out, FrameKind::Body, flags, stream, &chunk));
        }
    }

    fn log(&self, stream: u32, error: &Error) {
        let line = format!("{}: {} {} {}", error.instance, error.status, error.title, error.detail);
        let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let mut payload = vec![3, 4];
        payload.extend_from_slice(line.as_bytes());
        payload.truncate(4 << 10);
        self.output.put(|out| wire::put_frame(out, FrameKind::Log, 0, stream, &payload));
    }

    async fn run(
        &self,
        stream: u32,
        chain: &Chain,
        invocation: Invocation,
        body: &[u8],
    ) -> Outcome {
        let now_ms = unix_ms();
        let remaining_ms = u64::from(invocation.remaining_ms);
        let mut host = Requests {
            worker: self,
            stream,
            id: mote_core::InvocationId(invocation.id).to_string(),
            is_journalled: false,
            // The last tenth of the time is left for steps that are in progress.
            begins_until_ms: now_ms + remaining_ms / 10 * 9,
            requests: Semaphore::new(REQUESTS_OF_ONE),
        };
        let input = match body {
            [] => crate::expression::object([]),
            body => match parse(body) {
                Some(input) => input,
                None => {
                    let text = "the body of the call of a chain is JSON, or empty";
                    return Outcome::Failed(Error::new("validation", 400, "Unusable input", text));
                }
            },
        };
        let mut beginning =
            Beginning { id: host.id.clone(), began_ms: now_ms, input, records: HashMap::new() };
        if invocation.is_accepted {
            match host.records(&mut beginning).await {
                Ok(is_journalled) => host.is_journalled = is_journalled,
                Err(Stop::Error(error)) => return Outcome::Failed(error),
                Err(Stop::Broken(text)) => return Outcome::Broken(text),
            }
        }
        interpreter::run(chain, &host, beginning).await
    }

    /// Sends a request and waits for its answer.
    async fn ask(
        &self,
        stream: u32,
        service: u8,
        operation: u8,
        content: &[u8],
    ) -> Result<(u8, Bytes), Stop> {
        let permits = content.len().div_ceil(PERMIT_BYTES).clamp(1, PERMITS) as u32;
        let _room = self.request_bytes.acquire_many(permits).await;
        let _place = self.requests.acquire().await;
        let number = self.next_request.get().wrapping_add(1);
        self.next_request.set(number);
        let (answer, answered) = oneshot::channel();
        self.waiting.borrow_mut().insert(number, answer);
        let mut payload = number.to_le_bytes().to_vec();
        payload.extend_from_slice(&[service, operation, 0, 0]);
        payload.extend_from_slice(content);
        if payload.len() > wire::PAYLOAD_BYTES_MAX {
            let text = "the data of a step have at most 960 KiB";
            return Err(Stop::Error(Error::new("validation", 400, "Too much data", text)));
        }
        self.output.put(|out| wire::put_frame(out, FrameKind::Request, 0, stream, &payload));
        answered.await.map_err(|_| Stop::Broken("the node has closed".to_owned()))
    }
}

fn failed(error: &Error) -> (u16, Vec<(&'static str, String)>, String) {
    let status = u16::try_from(error.status).ok().filter(|status| (400..600).contains(status));
    let json = error.value().to_string();
    (status.unwrap_or(500), vec![("content-type", "application/problem+json".to_owned())], json)
}

/// The requests of one run to its node.
struct Requests<'w> {
    worker: &'w Worker,
    stream: u32,
    id: String,
    is_journalled: bool,
    begins_until_ms: u64,
    requests: Semaphore,
}

impl Requests<'_> {
    /// Reads the records of earlier attempts. Returns `false` if the node keeps no records for this
    /// run.
    async fn records(&self, beginning: &mut Beginning) -> Result<bool, Stop> {
        let mut after = String::new();
        loop {
            let asked = self.worker.ask(self.stream, RUNS.1, 1, after.as_bytes());
            let (status, content) = asked.await?;
            if status == Status::NotFound as u8 {
                return Ok(false);
            }
            if status != Status::Done as u8 {
                return Err(Stop::Broken(String::from_utf8_lossy(&content).into_owned()));
            }
            let page = Page::parse(&content)
                .ok_or_else(|| Stop::Broken("the node sent unusable records".to_owned()))?;
            beginning.began_ms = page.began_ms;
            for (key, value) in page.records {
                let value = parse(&value).unwrap_or_default();
                after.clone_from(&key);
                beginning.records.insert(key, value);
            }
            if !page.more {
                return Ok(true);
            }
        }
    }
}

/// A page of records, as the node sends it.
struct Page {
    more: bool,
    began_ms: u64,
    records: Vec<(String, Bytes)>,
}

impl Page {
    /// Parses `more u8 | zero [3] | count u32 | began ms u64`, followed for each record by `key
    /// length u32 | value length u32 | key, value`.
    fn parse(content: &Bytes) -> Option<Self> {
        let number = |at: usize| {
            content.get(at..at + 4)?.try_into().ok().map(|bytes| u32::from_le_bytes(bytes) as usize)
        };
        let more = *content.first()? == 1;
        let count = number(4)?;
        let began_ms = u64::from_le_bytes(content.get(8..16)?.try_into().ok()?);
        let mut at = 16;
        let mut records = Vec::new();
        for _ in 0..count {
            let key = number(at)?;
            let value = number(at + 4)?;
            let begins = at + 8;
            let text = std::str::from_utf8(content.get(begins..begins + key)?).ok()?;
            let from = begins + key;
            content.get(from..from + value)?;
            records.push((text.to_owned(), content.slice(from..from + value)));
            at = from + value;
        }
        Some(Self { more, began_ms, records })
    }
}

/// Turns the node's refusal of a request into an error.
fn refusal(status: u8, content: &[u8]) -> Stop {
    let text = String::from_utf8_lossy(content).into_owned();
    let error = |kind, status, title| Stop::Error(Error::new(kind, status, title, text.clone()));
    if status == Status::Denied as u8 {
        error("authorization", 403, "Not allowed")
    } else if status == Status::Invalid as u8 {
        error("configuration", 400, "Impossible request")
    } else if status == Status::Full as u8 {
        error("runtime", 507, "No room")
    } else {
        Stop::Broken(text)
    }
}

impl Host for Requests<'_> {
    fn call(&self, call: Outgoing) -> LocalBoxFuture<'_, Result<Reply, Stop>> {
        async move {
            let _place = self.requests.acquire().await;
            let mut headers = String::new();
            let own = [("mote-run", self.id.as_str()), ("mote-step", call.step.as_str())];
            let key = format!("{}/{}", self.id, call.step);
            let given = call.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let keyed = [("idempotency-key", key.as_str())];
            let has_key = call.headers.iter().any(|(name, _)| name == "idempotency-key");
            let keyed = keyed.into_iter().filter(|_| !has_key);
            for (name, value) in given.chain(own).chain(keyed) {
                if name.contains('\n') || value.contains('\n') {
                    let text = "a header field has no line breaks";
                    return Err(Stop::Error(Error::new("configuration", 400, "Bad field", text)));
                }
                headers.push_str(&format!("{name}\n{value}\n"));
            }
            let lengths =
                [call.function.len(), call.method.len(), call.path.len(), call.query.len()];
            if lengths[0] > 255 || lengths[1] > 32 || lengths[2] > 8 << 10 || lengths[3] > 8 << 10 {
                let text = "the name, the method, the path or the query of a call is too long";
                return Err(Stop::Error(Error::new("configuration", 400, "Bad call", text)));
            }
            let mut content = Vec::with_capacity(32 + headers.len() + call.body.len());
            content.extend_from_slice(&u32::try_from(call.timeout_ms).unwrap_or(0).to_le_bytes());
            content.extend_from_slice(&[lengths[0] as u8, lengths[1] as u8]);
            content.extend_from_slice(&(lengths[2] as u16).to_le_bytes());
            content.extend_from_slice(&(lengths[3] as u16).to_le_bytes());
            content.extend_from_slice(&0_u16.to_le_bytes());
            content.extend_from_slice(&(headers.len() as u32).to_le_bytes());
            content.extend_from_slice(&0_u64.to_le_bytes());
            content.extend_from_slice(&[0; 8]);
            for part in [&call.function, &call.method, &call.path, &call.query, &headers] {
                content.extend_from_slice(part.as_bytes());
            }
            content.extend_from_slice(&call.body);
            let (status, content) = self.worker.ask(self.stream, FUNCTIONS.1, 1, &content).await?;
            if status == Status::Done as u8 {
                return reply(&content)
                    .ok_or_else(|| Stop::Broken("the node sent an unusable answer".to_owned()));
            }
            if status == Status::Failed as u8 && content.len() >= 2 {
                return Ok(Reply {
                    status: u16::from_le_bytes([content[0], content[1]]),
                    headers: Vec::new(),
                    body: content[2..].to_vec(),
                });
            }
            Err(refusal(status, &content))
        }
        .boxed_local()
    }

    fn publish(&self, message: Publication) -> LocalBoxFuture<'_, Result<(), Stop>> {
        async move {
            let _place = self.requests.acquire().await;
            let lengths = [message.topic.len(), message.content_type.len()];
            if lengths.iter().any(|length| *length > 4 << 10) {
                let text = "the topic or the content type is too long";
                return Err(Stop::Error(Error::new("configuration", 400, "Bad message", text)));
            }
            let mut content = vec![message.qos, u8::from(message.retain)];
            for length in [lengths[0], lengths[1], 0, 0, 0] {
                content.extend_from_slice(&(length as u16).to_le_bytes());
            }
            content.extend_from_slice(&[0; 4]);
            content.extend_from_slice(message.topic.as_bytes());
            content.extend_from_slice(message.content_type.as_bytes());
            content.extend_from_slice(&message.payload);
            let (status, answer) = self.worker.ask(self.stream, PUBLISH.1, 1, &content).await?;
            if status == Status::Done as u8 {
                return Ok(());
            }
            if status == Status::Unavailable as u8 {
                let text = String::from_utf8_lossy(&answer).into_owned();
                let error = Error::new("communication", 503, "Not published", text);
                return Err(Stop::Error(error));
            }
            Err(refusal(status, &answer))
        }
        .boxed_local()
    }

    fn record(&self, key: &str, value: String) -> LocalBoxFuture<'_, Result<(), Stop>> {
        let mut content = (key.len() as u32).to_le_bytes().to_vec();
        content.extend_from_slice(key.as_bytes());
        content.extend_from_slice(value.as_bytes());
        async move {
            let (status, answer) = self.worker.ask(self.stream, RUNS.1, 2, &content).await?;
            if status == Status::Done as u8 {
                return Ok(());
            }
            Err(refusal(status, &answer))
        }
        .boxed_local()
    }

    fn is_journalled(&self) -> bool {
        self.is_journalled
    }

    fn now_ms(&self) -> u64 {
        unix_ms()
    }

    fn begins_until_ms(&self) -> u64 {
        self.begins_until_ms
    }

    fn random(&self) -> f64 {
        use std::hash::{BuildHasher as _, RandomState};
        RandomState::new().hash_one(now_ns()) as f64 / u64::MAX as f64
    }
}

/// Parses the content of an answered call: `status u16 | zero u16 | headers length u32 | headers,
/// body`.
fn reply(content: &Bytes) -> Option<Reply> {
    let status = u16::from_le_bytes([*content.first()?, *content.get(1)?]);
    let length = u32::from_le_bytes(content.get(4..8)?.try_into().ok()?) as usize;
    let block = content.get(8..8 + length)?;
    let headers = mote_core::invocation::headers(block).map(|(name, value)| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(name).to_ascii_lowercase(), text(value))
    });
    Some(Reply { status, headers: headers.collect(), body: content[8 + length..].to_vec() })
}
