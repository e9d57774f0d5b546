//! One invocation, in its own instance.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use mote_core::invocation::headers;
use mote_core::wire::{Invoke, WireError};
use mote_core::{InvocationId, Trigger};
use mote_process::clock::now_ns;
use tokio::sync::oneshot;
use wasmtime::{Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;
use wasmtime_wasi_http::WasiHttpView as _;
use wasmtime_wasi_http::p2::bindings::http::types::Scheme;

use crate::answer::{Sender, pass};
use crate::body::{RequestBody, Stdin};
use crate::imports::text_of;
use crate::link::{Link, Times, Window, lock};
use crate::output::{Lines, STDERR, STDOUT, Stdout};
use crate::program::{Pre, Program};

/// The first output of a program is held back for this long, so that a short answer is one frame.
const SOON: Duration = Duration::from_millis(100);

/// An invocation as the node sent it.
pub(crate) struct Call {
    pub(crate) link: Arc<Link>,
    pub(crate) stream: u32,
    pub(crate) window: Arc<Window>,
    pub(crate) payload: Bytes,
    pub(crate) body: RequestBody,
}

/// Why an invocation failed.
struct Failure {
    kind: &'static str,
    message: String,
    trace: String,
}

/// Ends the stream of a call whose task has panicked, so that its caller receives an error and the
/// other calls go on. A stream that was cancelled has already ended.
struct Guard {
    link: Arc<Link>,
    stream: u32,
    has_ended: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.has_ended && self.link.is_open(self.stream) {
            let text = "the worker made a mistake; see the log".to_owned();
            self.link.fail(self.stream, "Worker", text, String::new(), Times::default());
            self.link.end(self.stream);
        }
    }
}

impl Failure {
    fn new(kind: &'static str, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), trace: String::new() }
    }
}

/// The guest's result, and whether the guest was refused memory.
type Ran<T> = (wasmtime::Result<T>, bool);

impl Call {
    /// Runs the invocation. The stream has ended when this returns.
    pub(crate) async fn run(self, program: &Program) {
        let (link, stream) = (self.link.clone(), self.stream);
        let mut guard = Guard { link: link.clone(), stream, has_ended: false };
        // The node may send a few more invocations than run at once.
        let _place = program.places.acquire().await;
        let entered_ns = now_ns();
        let lines = [STDOUT, STDERR].map(|source| Lines::new(&link, stream, source));
        let sender = Sender::new(&link, stream, self.window.clone(), entered_ns);
        let sender = Arc::new(Mutex::new(sender));
        let ended = match &program.pre {
            Pre::Http(_) => self.http(program, &lines, &sender).await,
            Pre::Command(_) | Pre::Module(_) => self.command(program, &lines[1], &sender).await,
        };
        for lines in &lines {
            lines.finish();
        }
        match ended {
            Ok(()) => lock(&sender).finish(),
            Err(failure) => {
                let times = Times { entered_ns, returned_ns: now_ns() };
                link.fail(stream, failure.kind, failure.message, failure.trace, times);
            }
        }
        guard.has_ended = true;
        link.end(stream);
    }

    async fn http(
        self,
        program: &Program,
        [out, err]: &[Lines; 2],
        sender: &Arc<Mutex<Sender>>,
    ) -> Result<(), Failure> {
        let Pre::Http(pre) = &program.pre else { return Ok(()) };
        let caller = program.caller(&self.link, self.stream);
        let request = Invoke::parse(&self.payload).map_err(broken).and_then(|invoke| {
            request(&invoke, &program.function).map_err(|text| Failure::new("BadRequest", text))
        })?;
        let request = request.map(|()| self.body);
        let mut wasi = program.surroundings().map_err(failed)?;
        wasi.stdout(out.clone()).stderr(err.clone());
        let mut store = program.store(wasi, caller);
        let (answer, answered) = oneshot::channel();
        let mut view = store.data_mut().http();
        let request = view.new_incoming_request(Scheme::Http, request).map_err(failed)?;
        let answer = view.new_response_outparam(answer).map_err(failed)?;
        let guest = async {
            let ran = async {
                let instance = pre.instantiate_async(&mut store).await?;
                let handler = instance.wasi_http_incoming_handler();
                handler.call_handle(&mut store, request, answer).await
            };
            let ran = ran.await;
            let refused = store.data().share.refused;
            drop(store);
            (ran, refused)
        };
        let progress = AtomicBool::new(false);
        let answer = async {
            let Ok(answer) = answered.await else {
                return Err(Failure::new("BadReply", "the component returned without an answer"));
            };
            progress.store(true, Ordering::Relaxed);
            let answer = answer.map_err(|error| {
                Failure::new("BadReply", format!("the component answered with an error: {error}"))
            })?;
            let (head, body) = answer.into_parts();
            let accepted = lock(sender).head(head.status.as_u16(), &head.headers);
            accepted.map_err(|text| Failure::new("BadReply", text))?;
            let passed = pass(body, sender, &progress).await;
            passed.map_err(|text| Failure::new("BadReply", text))
        };
        match together(guest, answer, &progress, sender).await {
            (Some((Ok(()), _)) | None, answer) => answer,
            (Some(ran), _) => Err(trapped(ran, program)),
        }
    }

    async fn command(
        self,
        program: &Program,
        err: &Lines,
        sender: &Arc<Mutex<Sender>>,
    ) -> Result<(), Failure> {
        let caller = program.caller(&self.link, self.stream);
        let mut wasi = program.surroundings().map_err(failed)?;
        let invoke = Invoke::parse(&self.payload).map_err(broken)?;
        facts(&invoke, |name, value| {
            wasi.env(name, value);
        });
        wasi.stdin(Stdin::new(self.body)).stdout(Stdout(sender.clone())).stderr(err.clone());
        let mut store = program.store(wasi, caller);
        let guest = async {
            let ran: wasmtime::Result<Result<(), ()>> = async {
                match &program.pre {
                    Pre::Command(pre) => {
                        let command = pre.instantiate_async(&mut store).await?;
                        command.wasi_cli_run().call_run(&mut store).await
                    }
                    Pre::Module(pre) => {
                        let instance = pre.instantiate_async(&mut store).await?;
                        let start = instance.get_typed_func::<(), ()>(&mut store, "_start")?;
                        start.call_async(&mut store, ()).await.map(Ok)
                    }
                    Pre::Http(_) => Ok(Ok(())),
                }
            }
            .await;
            let refused = store.data().share.refused;
            drop(store);
            (ran, refused)
        };
        let mut guest = pin!(guest);
        let ran = loop {
            tokio::select! {
                ran = &mut guest => break ran,
                () = tokio::time::sleep(SOON) => {
                    if lock(sender).has_output() {
                        lock(sender).flush();
                    }
                }
            }
        };
        let code = match &ran.0 {
            Ok(Ok(())) => 0,
            Ok(Err(())) => 1,
            Err(error) => match error.downcast_ref::<I32Exit>() {
                Some(exit) => exit.0,
                None => return Err(trapped(ran, program)),
            },
        };
        if code == 0 {
            return Ok(());
        }
        let last = err.finish();
        let colon = if last.is_empty() { "" } else { ": " };
        Err(Failure::new("ExitStatus", format!("exited {code}{colon}{last}")))
    }
}

/// Runs a guest and passes on its answer, both in one task. After each part of the answer, the
/// guest continues at once. The part is sent only when the guest waits for something else. A guest
/// whose answer is refused is not continued, and has no result.
async fn together<T>(
    guest: impl Future<Output = Ran<T>>,
    answer: impl Future<Output = Result<(), Failure>>,
    progress: &AtomicBool,
    sender: &Mutex<Sender>,
) -> (Option<Ran<T>>, Result<(), Failure>) {
    let (mut guest, mut answer) = (pin!(guest), pin!(answer));
    let (mut ran, mut passed) = (None, None);
    std::future::poll_fn(|cx| {
        loop {
            if ran.is_none()
                && let Poll::Ready(done) = Pin::as_mut(&mut guest).poll(cx)
            {
                ran = Some(done);
            }
            if passed.is_none()
                && let Poll::Ready(done) = Pin::as_mut(&mut answer).poll(cx)
            {
                passed = Some(done);
            }
            if (ran.is_some() && passed.is_some()) || matches!(passed, Some(Err(_))) {
                return Poll::Ready(());
            }
            let has_progress = progress.swap(false, Ordering::Relaxed);
            if !has_progress || ran.is_some() {
                break;
            }
        }
        let mut sender = lock(sender);
        if ran.is_none() && (sender.has_output() || passed.is_some()) {
            sender.flush();
        }
        Poll::Pending
    })
    .await;
    (ran, passed.expect("it is ready"))
}

fn broken(error: WireError) -> Failure {
    Failure::new("Protocol", error.to_string())
}

fn failed(error: wasmtime::Error) -> Failure {
    Failure::new("Instance", text_of(&error))
}

/// Says why a guest ended early.
fn trapped<T>((ran, refused): Ran<T>, program: &Program) -> Failure {
    let Err(error) = ran else { return Failure::new("Trap", "the guest ended early") };
    let cause = cause(&error);
    let (kind, message) = if refused {
        let mib = program.memory_bytes() >> 20;
        let text = "the instance needed more memory than [limits] memory leaves for instances";
        ("MemoryLimit", format!("{text} ({mib} MiB): {cause}"))
    } else if error.downcast_ref::<Trap>().is_some() {
        ("Trap", cause)
    } else {
        ("Instance", cause)
    };
    // The log shows the trace instead of the message.
    let trace = error.downcast_ref::<WasmBacktrace>();
    let trace = trace.map_or_else(String::new, |trace| format!("{kind}: {message}\n{trace}"));
    Failure { kind, message, trace }
}

/// The innermost cause of an error, which leaves out the trace.
fn cause(error: &wasmtime::Error) -> String {
    match error.downcast_ref::<Trap>() {
        Some(trap) => trap.to_string(),
        None => error.root_cause().to_string(),
    }
}

/// The request that a component receives, without its body.
fn request(invoke: &Invoke<'_>, function: &str) -> Result<Request<()>, String> {
    let mut target = invoke.path.to_vec();
    if !invoke.query.is_empty() {
        target.push(b'?');
        target.extend_from_slice(invoke.query);
    }
    let mut request = Request::new(());
    *request.uri_mut() = Uri::try_from(target).map_err(|error| format!("the path: {error}"))?;
    *request.method_mut() =
        Method::from_bytes(invoke.method).map_err(|error| format!("the method: {error}"))?;
    let fields: &mut HeaderMap = request.headers_mut();
    for (name, value) in headers(invoke.headers) {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            fields.append(name, value);
        }
    }
    // Only HTTP callers name a host.
    if fields.get(header::HOST).is_none_or(|host| host.to_str().is_err()) {
        let host = HeaderValue::from_str(function).map_err(|error| error.to_string())?;
        fields.insert(header::HOST, host);
    }
    Ok(request)
}

/// The facts about an invocation that a program finds in its environment. They are the same as for
/// the runtime `exec`; the name of the function is in the environment already.
fn facts(invoke: &Invoke<'_>, mut add: impl FnMut(&str, &str)) {
    let mut push = |name: &str, value: &[u8]| {
        if let Ok(value) = std::str::from_utf8(value)
            && !value.contains('\0')
        {
            add(name, value);
        }
    };
    push("MOTE_METHOD", invoke.method);
    push("MOTE_PATH", invoke.path);
    push("MOTE_QUERY", invoke.query);
    push("MOTE_INVOCATION", &InvocationId(invoke.id).text());
    let trigger = Trigger::from_wire(invoke.trigger).map_or("unknown", Trigger::as_str);
    push("MOTE_TRIGGER", trigger.as_bytes());
    push("MOTE_DEADLINE_MS", invoke.remaining_ms.to_string().as_bytes());
    // A field whose name has other characters could pass for another field.
    let is_plain = |name: &[u8]| name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-');
    let mut fields = std::collections::BTreeMap::<String, Vec<u8>>::new();
    for (name, value) in headers(invoke.headers).filter(|(name, _)| is_plain(name)) {
        let name = String::from_utf8_lossy(name).to_ascii_uppercase().replace('-', "_");
        let joined = fields.entry(format!("MOTE_HEADER_{name}")).or_default();
        if !joined.is_empty() {
            joined.extend_from_slice(b", ");
        }
        joined.extend_from_slice(value);
    }
    for (name, value) in fields {
        push(&name, &value);
    }
}
