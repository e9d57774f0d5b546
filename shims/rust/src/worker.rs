//! The worker: reads frames on the main thread, and runs each call on a thread that is kept for
//! later calls. [`run`] is its life.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::FromRawFd as _;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use serde_json::{json, Value};

use crate::answer::{Answer, Body};
use crate::event::Event;
use crate::services::{Error, NAMES};
use crate::wire::{
    block, frame, put, split, u32_at, Frame, Invoke, Kind, CHUNK_BYTES_MAX, VERSION, WINDOW_BYTES,
};

const FD: i32 = 3;
const CONCURRENCY_DEFAULT: usize = 64;
const READ_BYTES: usize = 256 << 10;
/// How many requests to the node may be unanswered at once.
const REQUESTS_MAX: usize = 256;
/// The longest payload of a request.
const REQUEST_BYTES_MAX: usize = 1 << 20;
const MESSAGE_CHARS_MAX: usize = 4_096;
const EXIT_LOAD: i32 = 1;
const EXIT_PROTOCOL: i32 = 65;
const GONE: &str = "the caller is gone";

pub(crate) type Handler = Box<dyn Fn(Event) -> Result<Answer, String> + Send + Sync>;

/// What LOAD says.
pub(crate) struct Loaded {
    pub(crate) function: String,
    pub(crate) revision: u64,
    services: Vec<String>,
}

/// The answer to a request.
pub(crate) struct Response {
    pub(crate) status: u8,
    pub(crate) content: Vec<u8>,
}

pub(crate) struct Worker {
    handler: Handler,
    output: Mutex<Output>,
    written: Condvar,
    state: Mutex<State>,
    work: Condvar,
    loaded: OnceLock<Loaded>,
    requests: Mutex<Requests>,
    answered: Condvar,
}

/// Bytes for the engine. One thread writes, and the others leave their bytes here meanwhile.
struct Output {
    socket: Option<File>,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct State {
    limit: usize,
    /// Calls that no thread has taken yet, in order.
    waiting: VecDeque<Arc<Call>>,
    /// All calls that have not ended.
    calls: HashMap<u32, Arc<Call>>,
    threads: usize,
    idle: usize,
    running: usize,
    drains: bool,
}

#[derive(Default)]
struct Requests {
    last: u32,
    /// The calls that wait, and the answers that have arrived.
    waiting: HashMap<u32, Option<Response>>,
}

pub(crate) struct Call {
    pub(crate) head: Invoke,
    pub(crate) head_stream: u32,
    pub(crate) is_cancelled: AtomicBool,
    is_over: AtomicBool,
    pub(crate) flow: Mutex<Flow>,
    pub(crate) changed: Condvar,
}

impl Call {
    /// The stream on which work of the call is reported: 0 once it has ended.
    pub(crate) fn stream_now(&self) -> u32 {
        if self.is_over.load(Ordering::Acquire) {
            0
        } else {
            self.head_stream
        }
    }
}

/// The bodies of a call.
pub(crate) struct Flow {
    /// Chunks of the request that the handler has not taken, and whether they count as window.
    pub(crate) chunks: VecDeque<(Vec<u8>, bool)>,
    pub(crate) has_ended: bool,
    pub(crate) owed: usize,
    /// How much of the answer may be sent.
    window: usize,
}

/// CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local value, and this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Takes a lock even if a thread panicked while it held the lock. This is safe, because nothing
/// here panics between two changes.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a change, like [`lock`].
pub(crate) fn waited<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn run(handler: Handler) -> ! {
    // SAFETY: plain integers. Programs that the function starts must not hold the connection open.
    let is_open = unsafe { libc::fcntl(FD, libc::F_SETFD, libc::FD_CLOEXEC) } == 0;
    if !is_open {
        eprintln!("this program is a function; run it with: mote dev or mote deploy");
        exit(EXIT_LOAD);
    }
    // SAFETY: the node starts a worker with its end of the connection at this number, and nothing else
    // uses it.
    let socket = unsafe { File::from_raw_fd(FD) };
    let reader = socket.try_clone().unwrap_or_else(|error| {
        eprintln!("mote_function: {error}");
        exit(EXIT_LOAD)
    });
    let worker = Arc::new(Worker {
        handler,
        output: Mutex::new(Output { socket: Some(socket), bytes: Vec::new() }),
        written: Condvar::new(),
        state: Mutex::default(),
        work: Condvar::new(),
        loaded: OnceLock::new(),
        requests: Mutex::default(),
        answered: Condvar::new(),
    });
    let mut hello = VERSION.to_le_bytes().to_vec();
    hello.extend_from_slice(concat!("rust/", env!("CARGO_PKG_VERSION")).as_bytes());
    worker.send(&frame(Kind::Hello, false, 0, &[&hello]));
    match receive(&worker, reader) {
        Ok(code) => exit(code),
        Err(why) => {
            eprintln!("mote_function: {why}");
            exit(EXIT_PROTOCOL)
        }
    }
}

/// Handles frames until the engine closes the connection.
fn receive(worker: &Arc<Worker>, mut reader: File) -> Result<i32, &'static str> {
    let mut buffer = vec![0; READ_BYTES];
    let mut data = Vec::new();
    loop {
        match reader.read(&mut buffer) {
            Ok(0) | Err(_) => return Ok(0),
            Ok(count) => data.extend_from_slice(&buffer[..count]),
        }
        let mut at = 0;
        while let Some((frame, used)) = split(&data[at..])? {
            at += used;
            if let Some(code) = worker.handle(frame)? {
                return Ok(code);
            }
        }
        data.drain(..at);
    }
}

impl Worker {
    pub(crate) fn loaded(&self) -> &Loaded {
        self.loaded.get().expect("no call comes before LOAD")
    }

    /// Sends whole frames. Only the thread that finds the connection free writes.
    pub(crate) fn send(&self, frames: &[u8]) {
        let mut output = lock(&self.output);
        output.bytes.extend_from_slice(frames);
        let Some(mut socket) = output.socket.take() else { return };
        while !output.bytes.is_empty() {
            let bytes = std::mem::take(&mut output.bytes);
            drop(output);
            if socket.write_all(&bytes).is_err() {
                // Nobody is left to answer.
                exit(0);
            }
            output = lock(&self.output);
        }
        output.socket = Some(socket);
        self.written.notify_all();
    }

    /// Waits until everything is written.
    fn settle(&self) {
        let mut output = lock(&self.output);
        while output.socket.is_none() {
            output = waited(&self.written, output);
        }
    }

    /// Returns the exit code if the worker ends.
    fn handle(self: &Arc<Self>, frame: Frame) -> Result<Option<i32>, &'static str> {
        if self.loaded.get().is_none() {
            return match frame.kind {
                Kind::Load => self.load(&frame.payload),
                Kind::Drain => Ok(Some(0)),
                _ => Err("a frame before LOAD"),
            };
        }
        match frame.kind {
            Kind::Invoke => self.invoke(frame)?,
            Kind::Body => self.body(frame)?,
            Kind::Credit => {
                if frame.payload.len() != 4 {
                    return Err("CREDIT is not 4 bytes");
                }
                let call = lock(&self.state).calls.get(&frame.stream).cloned();
                if let Some(call) = call {
                    let mut flow = lock(&call.flow);
                    let credit = u32_at(&frame.payload, 0) as usize;
                    flow.window = flow.window.saturating_add(credit).min(WINDOW_BYTES);
                    call.changed.notify_all();
                }
            }
            Kind::Cancel => self.cancel(frame.stream),
            Kind::Response => self.response(frame.payload)?,
            Kind::Drain => {
                let mut state = lock(&self.state);
                state.drains = true;
                if state.calls.is_empty() && state.running == 0 {
                    drop(state);
                    self.settle();
                    return Ok(Some(0));
                }
            }
            _ => return Err("a frame that only workers send, or a second LOAD"),
        }
        Ok(None)
    }

    fn load(&self, payload: &[u8]) -> Result<Option<i32>, &'static str> {
        let began_ns = now_ns();
        let load: Value = serde_json::from_slice(payload).map_err(|_| "LOAD is not JSON")?;
        let text = |name: &str| load[name].as_str().map(str::to_owned);
        let function = text("function").ok_or("LOAD has no function")?;
        if let Some(platform) = load["compat"].as_str() {
            let message = format!("a Rust function cannot follow the contract of {platform}");
            let error = json!({"kind": "Load", "message": message, "trace": "",
                "entered_ns": 0, "returned_ns": 0});
            self.send(&frame(Kind::Error, true, 0, &[error.to_string().as_bytes()]));
            self.settle();
            return Ok(Some(EXIT_LOAD));
        }
        for (name, value) in load["env"].as_object().into_iter().flatten() {
            // There is only one thread yet.
            #[allow(clippy::disallowed_methods)]
            std::env::set_var(name, value.as_str().unwrap_or_default());
        }
        if let Some(folder) = text("code_dir") {
            let _ = std::env::set_current_dir(folder);
        }
        let limit =
            load["concurrency"].as_u64().map_or(CONCURRENCY_DEFAULT, |limit| limit as usize);
        let limit = limit.max(1);
        lock(&self.state).limit = limit;
        let services = load["services"].as_array().into_iter().flatten();
        let services = services.filter_map(|name| name.as_str().map(str::to_owned)).collect();
        let revision = load["revision"].as_u64().unwrap_or_default();
        let _ = self.loaded.set(Loaded { function, revision, services });
        let ready = json!({"init_ns": now_ns() - began_ns, "concurrency": limit, "shape": "handle",
            "whole_bodies": false});
        self.send(&frame(Kind::Ready, false, 0, &[ready.to_string().as_bytes()]));
        Ok(None)
    }

    fn invoke(self: &Arc<Self>, frame: Frame) -> Result<(), &'static str> {
        if frame.stream == 0 {
            return Err("INVOKE on stream 0");
        }
        let head = Invoke::parse(&frame.payload)?;
        let inline = frame.payload[head.body_at..].to_vec();
        let mut chunks = VecDeque::new();
        if !inline.is_empty() {
            chunks.push_back((inline, false));
        }
        let flow = Flow { chunks, has_ended: frame.is_last, owed: 0, window: WINDOW_BYTES };
        let call = Arc::new(Call {
            head,
            head_stream: frame.stream,
            is_cancelled: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            flow: Mutex::new(flow),
            changed: Condvar::new(),
        });
        let mut state = lock(&self.state);
        state.calls.insert(frame.stream, call.clone());
        state.waiting.push_back(call);
        if state.idle >= state.waiting.len() {
            self.work.notify_one();
        } else if state.threads < state.limit {
            state.threads += 1;
            drop(state);
            let worker = self.clone();
            let thread = std::thread::Builder::new().spawn(move || worker.serve());
            if let Err(error) = thread {
                lock(&self.state).threads -= 1;
                eprintln!("mote_function: no thread for a call: {error}");
                if lock(&self.state).threads == 0 {
                    exit(EXIT_LOAD);
                }
            }
        }
        Ok(())
    }

    fn body(&self, frame: Frame) -> Result<(), &'static str> {
        if frame.payload.len() > CHUNK_BYTES_MAX {
            return Err("BODY is too long");
        }
        let call = lock(&self.state).calls.get(&frame.stream).cloned();
        if let Some(call) = call {
            let mut flow = lock(&call.flow);
            if !frame.payload.is_empty() {
                flow.chunks.push_back((frame.payload, true));
            }
            flow.has_ended |= frame.is_last;
            call.changed.notify_all();
        }
        Ok(())
    }

    fn cancel(&self, stream: u32) {
        let mut state = lock(&self.state);
        let Some(call) = state.calls.get(&stream).cloned() else { return };
        if let Some(at) = state.waiting.iter().position(|one| one.head_stream == stream) {
            state.waiting.remove(at);
            drop(state);
            self.finish(&call, &error_frame(&call, "Cancelled", GONE, (0, 0)));
            self.leave_if_drained();
            return;
        }
        drop(state);
        // Shows the engine that the worker still reads, even if the function continues.
        self.send(&frame(Kind::Credit, false, stream, &[&[0; 4]]));
        let flow = lock(&call.flow);
        call.is_cancelled.store(true, Ordering::Relaxed);
        call.changed.notify_all();
        drop(flow);
        // Threads that wait for an answer of the node check again.
        drop(lock(&self.requests));
        self.answered.notify_all();
    }

    fn response(&self, payload: Vec<u8>) -> Result<(), &'static str> {
        if payload.len() < 8 {
            return Err("RESPONSE is too short");
        }
        let number = u32_at(&payload, 0);
        let mut requests = lock(&self.requests);
        // A cancelled call no longer waits, but its number was given out.
        if number == 0 || number > requests.last {
            return Err("RESPONSE to no request");
        }
        if let Some(slot) = requests.waiting.get_mut(&number) {
            *slot = Some(Response { status: payload[4], content: payload[8..].to_vec() });
            self.answered.notify_all();
        }
        Ok(())
    }

    /// Runs calls for ever.
    fn serve(self: Arc<Self>) {
        let mut state = lock(&self.state);
        loop {
            let Some(call) = state.waiting.pop_front() else {
                state.idle += 1;
                state = waited(&self.work, state);
                state.idle -= 1;
                continue;
            };
            state.running += 1;
            drop(state);
            self.serve_call(&call);
            state = lock(&self.state);
            state.running -= 1;
            if state.drains && state.calls.is_empty() && state.running == 0 {
                drop(state);
                self.settle();
                exit(0);
            }
        }
    }

    fn leave_if_drained(&self) {
        let state = lock(&self.state);
        if state.drains && state.calls.is_empty() && state.running == 0 {
            drop(state);
            self.settle();
            exit(0);
        }
    }

    fn serve_call(self: &Arc<Self>, call: &Arc<Call>) {
        let entered_ns = now_ns();
        let event = Event { worker: self.clone(), call: call.clone(), rest: Vec::new() };
        let result = catch_unwind(AssertUnwindSafe(|| (self.handler)(event)));
        let times = (entered_ns, now_ns());
        let (kind, message) = match result {
            _ if call.is_cancelled.load(Ordering::Relaxed) => ("Cancelled", GONE.to_owned()),
            Ok(Ok(answer)) => match self.answer(call, answer, times) {
                Ok(()) => return,
                Err(failure) => failure,
            },
            Ok(Err(message)) => ("Error", message),
            Err(panic) => ("panic", panic_text(&*panic)),
        };
        self.finish(call, &error_frame(call, kind, &message, times));
    }

    /// Sends an answer. Fails with the kind and the text of an ERROR.
    fn answer(
        &self,
        call: &Call,
        answer: Answer,
        (entered_ns, returned_ns): (u64, u64),
    ) -> Result<(), (&'static str, String)> {
        if !(200..=599).contains(&answer.status) {
            return Err(("BadReply", format!("the status {} is not 200 to 599", answer.status)));
        }
        let headers = block(&answer.headers).map_err(|why| ("BadReply", why))?;
        let mut head = entered_ns.to_le_bytes().to_vec();
        head.extend_from_slice(&returned_ns.to_le_bytes());
        head.extend_from_slice(&answer.status.to_le_bytes());
        head.extend_from_slice(&[0; 2]);
        head.extend_from_slice(&(headers.len() as u32).to_le_bytes());
        head.extend_from_slice(&headers);
        let stream = call.head_stream;
        match answer.body {
            Body::Whole(body) if body.len() <= CHUNK_BYTES_MAX => {
                self.finish(call, &frame(Kind::Result, true, stream, &[&head, &body]));
            }
            Body::Whole(body) => {
                let (inline, rest) = body.split_at(CHUNK_BYTES_MAX);
                self.send(&frame(Kind::Result, false, stream, &[&head, inline]));
                self.chunks(call, rest, true)?;
            }
            Body::Stream(parts) => {
                let mut is_begun = false;
                let mut begin = |inline: &[u8]| {
                    if !std::mem::replace(&mut is_begun, true) {
                        let (now, rest) = inline.split_at(inline.len().min(CHUNK_BYTES_MAX));
                        self.send(&frame(Kind::Result, false, stream, &[&head, now]));
                        return rest.to_vec();
                    }
                    inline.to_vec()
                };
                // An iterator may panic, too.
                let mut parts = AssertUnwindSafe(parts);
                while let Some(part) = catch_unwind(AssertUnwindSafe(|| parts.next()))
                    .map_err(|panic| ("panic", panic_text(&*panic)))?
                {
                    let part = part.map_err(|message| ("Error", message))?;
                    if part.is_empty() {
                        continue;
                    }
                    let rest = begin(&part);
                    self.chunks(call, &rest, false)?;
                }
                begin(&[]);
                self.finish(call, &frame(Kind::Body, true, stream, &[]));
            }
        }
        Ok(())
    }

    /// Sends chunks as the window allows.
    fn chunks(
        &self,
        call: &Call,
        mut rest: &[u8],
        is_last: bool,
    ) -> Result<(), (&'static str, String)> {
        while !rest.is_empty() {
            let mut flow = lock(&call.flow);
            while flow.window == 0 && !call.is_cancelled.load(Ordering::Relaxed) {
                flow = waited(&call.changed, flow);
            }
            if call.is_cancelled.load(Ordering::Relaxed) {
                return Err(("Cancelled", GONE.to_owned()));
            }
            let length = rest.len().min(flow.window).min(CHUNK_BYTES_MAX);
            flow.window -= length;
            drop(flow);
            let (chunk, after) = rest.split_at(length);
            rest = after;
            let ends = is_last && rest.is_empty();
            let bytes = frame(Kind::Body, ends, call.head_stream, &[chunk]);
            if ends {
                self.finish(call, &bytes)
            } else {
                self.send(&bytes)
            }
        }
        Ok(())
    }

    /// Ends a call. The engine may use its stream again as soon as it has read `frames`.
    fn finish(&self, call: &Call, frames: &[u8]) {
        call.is_over.store(true, Ordering::Release);
        lock(&self.state).calls.remove(&call.head_stream);
        self.send(frames);
    }
}

impl Event {
    /// Sends a request to the node, and waits for its answer.
    pub(crate) fn ask(
        &self,
        service: u8,
        operation: u8,
        flags: u16,
        content: &[u8],
    ) -> Result<Response, Error> {
        let worker = &self.worker;
        let name = NAMES[usize::from(service) - 1];
        if !worker.loaded().services.iter().any(|one| one == name) {
            return Err(Error::new("unavailable", format!("the node has no service {name}")));
        }
        if content.len() + 8 > REQUEST_BYTES_MAX {
            return Err(Error::new("invalid", "the request is longer than 1 MiB"));
        }
        let is_gone = || self.is_cancelled();
        let mut requests = lock(&worker.requests);
        while requests.waiting.len() >= REQUESTS_MAX && !is_gone() {
            requests = waited(&worker.answered, requests);
        }
        if is_gone() {
            return Err(Error::new("cancelled", GONE));
        }
        requests.last += 1;
        let number = requests.last;
        requests.waiting.insert(number, None);
        drop(requests);
        let mut head = number.to_le_bytes().to_vec();
        head.extend_from_slice(&[service, operation]);
        head.extend_from_slice(&flags.to_le_bytes());
        let stream = self.call.stream_now();
        worker.send(&frame(Kind::Request, false, stream, &[&head, content]));
        let mut requests = lock(&worker.requests);
        loop {
            if requests.waiting.get(&number).is_some_and(Option::is_some) || is_gone() {
                let response = requests.waiting.remove(&number).flatten();
                worker.answered.notify_all();
                return response.ok_or_else(|| Error::new("cancelled", GONE));
            }
            requests = waited(&worker.answered, requests);
        }
    }
}

fn error_frame(
    call: &Call,
    kind: &str,
    message: &str,
    (entered_ns, returned_ns): (u64, u64),
) -> Vec<u8> {
    let message: String = message.chars().take(MESSAGE_CHARS_MAX).collect();
    let error = json!({"kind": kind, "message": message, "trace": "",
        "entered_ns": entered_ns, "returned_ns": returned_ns});
    let mut out = Vec::new();
    put(&mut out, Kind::Error, true, call.head_stream, &[error.to_string().as_bytes()]);
    out
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "the handler panicked".to_owned())
}
