//! Workers that the engine cannot distinguish from real ones, and an engine that starts them. The
//! workers are tasks that speak the worker protocol over a socket pair, each with a script of the
//! test.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use mote_core::backend::{
    Backend, BoxFuture, Exit, InstanceControl, InstanceRequest, Prewarmed, StartError, Started,
    Usage,
};
use mote_core::body::Body;
use mote_core::invocation::Head;
use mote_core::wire::{self, FrameHeader, FrameKind, Invoke, Ready, ResultHead};
use mote_core::{Fault, Invocation, InvocationId, Invoker, Reply, Trigger};
use mote_engine::{Config, Engine, Interpreters, Revision, Route};
use mote_pool::budget::Budget;
use mote_process::clock;
use mote_spec::{FunctionName, FunctionSpec, Runtime};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc, watch};

/// A worker's end of the socket, for the script of a test.
pub(crate) struct Worker {
    pub(crate) stream: UnixStream,
    pub(crate) input: BytesMut,
    /// Where a script writes the output that a program produces outside its shim.
    pub(crate) output: std::io::PipeWriter,
}

impl Worker {
    pub(crate) async fn frame(&mut self) -> Option<(FrameHeader, Bytes)> {
        loop {
            if let Some(frame) = wire::split_frame(&mut self.input).unwrap() {
                return Some(frame);
            }
            if self.stream.read_buf(&mut self.input).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    pub(crate) async fn send(&mut self, kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) {
        let mut out = Vec::new();
        wire::put_frame(&mut out, kind, flags, stream, payload);
        // The engine may have closed the socket. The test itself checks for that.
        let _ = self.stream.write_all(&out).await;
    }

    /// Sends RESULT without END: the answer continues in BODY frames.
    pub(crate) async fn begin_answer(&mut self, stream: u32) {
        let now = clock::now_ns();
        let headers = Bytes::new();
        let body = Bytes::new();
        let head = ResultHead { entered_ns: now, returned_ns: now, status: 200, headers, body };
        let mut out = Vec::new();
        head.put(&mut out, stream, false);
        let _ = self.stream.write_all(&out).await;
    }

    pub(crate) async fn answer(&mut self, stream: u32, body: &str) {
        let now = clock::now_ns();
        let head = ResultHead {
            entered_ns: now,
            returned_ns: now + 1_000,
            status: 200,
            headers: Bytes::new(),
            body: Bytes::copy_from_slice(body.as_bytes()),
        };
        let mut out = Vec::new();
        head.put(&mut out, stream, true);
        let _ = self.stream.write_all(&out).await;
    }

    /// The handshake: HELLO, LOAD, READY.
    pub(crate) async fn begin(&mut self, concurrency: u32) {
        self.send(FrameKind::Hello, 0, 0, &[1, 0, b't']).await;
        let (header, _) = self.frame().await.unwrap();
        assert_eq!(header.kind, FrameKind::Load);
        let ready = Ready { init_ns: 1, concurrency, shape: "test".into(), ..Ready::default() };
        self.send(FrameKind::Ready, 0, 0, &serde_json::to_vec(&ready).unwrap()).await;
    }

    /// Waits for the next INVOKE, and returns its stream and body.
    pub(crate) async fn invoke(&mut self) -> Option<(u32, String)> {
        let (header, payload) = self.frame().await?;
        if header.kind != FrameKind::Invoke {
            return None;
        }
        let invoke = Invoke::parse(&payload).unwrap();
        Some((header.stream, String::from_utf8_lossy(invoke.body).into_owned()))
    }
}

pub(crate) type Script = Box<dyn FnOnce(Worker) -> BoxFuture<()> + Send>;

/// The processor time of all instances, which a test sets, and whether the engine has moved the
/// last instance into the background.
pub(crate) struct Processor {
    /// The processor time up to the last measurement, the time of that measurement, and the present
    /// use in thousandths of a processor. `None` if nothing can be measured.
    used: Mutex<Option<(u64, u64, u64)>>,
    pub(crate) background: watch::Sender<bool>,
}

impl Default for Processor {
    fn default() -> Self {
        Self { used: Mutex::default(), background: watch::channel(false).0 }
    }
}

impl Processor {
    /// Sets how many thousandths of a processor the instances use from now on.
    pub(crate) fn uses(&self, thousandths: u64) {
        let so_far = self.measure().unwrap_or(0);
        *self.used.lock() = Some((so_far, clock::now_ns(), thousandths));
    }

    fn measure(&self) -> Option<u64> {
        let used = self.used.lock();
        let (so_far, since_ns, thousandths) = (*used)?;
        Some(so_far + clock::now_ns().saturating_sub(since_ns) / 1000 * thousandths)
    }
}

/// A backend that runs the next script for each instance. If there is no script, the start fails.
#[derive(Default)]
pub(crate) struct Scripts {
    pub(crate) next: Mutex<VecDeque<Script>>,
    pub(crate) starts: AtomicUsize,
    /// Whether instances can be paused.
    pub(crate) pausable: AtomicBool,
    /// The last list of programs that the engine wanted to keep waiting.
    pub(crate) waiting: Mutex<Vec<Prewarmed>>,
    pub(crate) processor: Arc<Processor>,
}

pub(crate) struct Control {
    pausable: bool,
    killed: Arc<Notify>,
    ended: Mutex<Option<mpsc::Receiver<Exit>>>,
    processor: Arc<Processor>,
}

impl InstanceControl for Control {
    fn kill(&self) {
        self.killed.notify_one();
    }
    fn set_background(&self, background: bool) {
        self.processor.background.send_replace(background);
    }
    fn set_paused(&self, _paused: bool) -> bool {
        self.pausable
    }
    fn pid(&self) -> Option<u32> {
        None
    }
    fn usage(&self) -> Option<Usage> {
        let cpu_ns = self.processor.measure()?;
        Some(Usage { cpu_ns, ..Usage::default() })
    }
    fn exited(&self) -> BoxFuture<Exit> {
        let mut ended = self.ended.lock().take().expect("asked once");
        Box::pin(async move { ended.recv().await.unwrap() })
    }
}

impl Backend for Scripts {
    fn keep_prewarmed(&self, wanted: Vec<Prewarmed>) {
        *self.waiting.lock() = wanted;
    }

    fn start(&self, request: InstanceRequest) -> BoxFuture<Result<Started, StartError>> {
        self.starts.fetch_add(1, Ordering::SeqCst);
        let Some(script) = self.next.lock().pop_front() else {
            return Box::pin(async move {
                Err(StartError::Unavailable(format!("no script for {}", request.label)))
            });
        };
        let pausable = self.pausable.load(Ordering::SeqCst);
        let processor = self.processor.clone();
        Box::pin(async move {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let (output, inside) = std::io::pipe().unwrap();
            let killed = Arc::new(Notify::new());
            let (exit, ended) = mpsc::channel(1);
            let kill = killed.clone();
            tokio::spawn(async move {
                let worker = Worker { stream: theirs, input: BytesMut::new(), output: inside };
                let signal = tokio::select! {
                    () = script(worker) => None,
                    () = kill.notified() => Some(9),
                };
                let status = signal.is_none().then_some(0);
                let _ = exit.send(Exit { status, signal, out_of_memory: false }).await;
            });
            Ok(Started {
                debugger: None,
                channel: OwnedFd::from(ours.into_std().unwrap()),
                output: output.into(),
                egress: Vec::new(),
                control: Box::new(Control {
                    pausable,
                    killed,
                    ended: Mutex::new(Some(ended)),
                    processor,
                }),
                prewarmed: false,
                under_way: Box::new(()),
            })
        })
    }
}

pub(crate) struct Bench {
    pub(crate) engine: Engine,
    pub(crate) scripts: Arc<Scripts>,
}

impl Bench {
    /// An engine that serves everything on the current runtime.
    pub(crate) fn new() -> Self {
        Self::on(tokio::runtime::Handle::current(), &[])
    }

    /// An engine that serves connections and instances on these runtimes.
    pub(crate) fn on(first: tokio::runtime::Handle, further: &[tokio::runtime::Handle]) -> Self {
        let scripts = Arc::new(Scripts::default());
        let config = Config {
            inspect: false,
            access_default: mote_spec::Access::Public,
            closed_networks: Default::default(),
            data_folders: Default::default(),
            shared_folders: Default::default(),
            log_sink: None,
            tracer: None,
            secrets: mote_store::seal::Secrets::new(mote_store::seal::Keys::random()),
            instances_max_default: 1,
            busy_poll: true,
            timeout_factor: 1,
            prewarm_bytes: 1 << 30,
            budget: Budget { memory_bytes: u64::MAX, starts_max: 64 },
            interpreters: Interpreters {
                python: Some(vec!["python3".into()]),
                ..Interpreters::default()
            },
        };
        Self { engine: Engine::new(config, scripts.clone(), first, further), scripts }
    }

    pub(crate) fn script<F, T>(&self, script: F)
    where
        F: FnOnce(Worker) -> T + Send + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        self.scripts.next.lock().push_back(Box::new(|worker| Box::pin(script(worker))));
    }

    pub(crate) fn publish(&self, edit: impl FnOnce(&mut FunctionSpec)) -> Arc<Revision> {
        let revision = self.revision(1, edit);
        self.engine.publish(revision.clone());
        revision
    }

    pub(crate) fn revision(
        &self,
        number: u64,
        edit: impl FnOnce(&mut FunctionSpec),
    ) -> Arc<Revision> {
        let name = FunctionName::new("f").unwrap();
        let mut spec = FunctionSpec::with_defaults(name, Runtime::Python, "app:handle");
        edit(&mut spec);
        self.engine.revision(spec, number, "/code".into(), None, None)
    }

    pub(crate) fn invocation(&self, method: &str, body: Body, timeout_ms: u64) -> Invocation {
        let now = clock::now_ns();
        Invocation {
            id: InvocationId(now.into()),
            trigger: Trigger::Http,
            head: Head::builder(method.as_bytes(), b"/", b"").finish(),
            body,
            received_ns: now,
            deadline_ns: now + timeout_ms * 1_000_000,
            chain: None,
        }
    }

    pub(crate) fn call(
        &self,
        revision: &Arc<Revision>,
        method: &str,
        body: &str,
    ) -> tokio::task::JoinHandle<Result<String, Fault>> {
        let body = Body::whole(body.as_bytes().to_vec());
        let invocation = self.invocation(method, body, revision.spec.limits.timeout_ms);
        let engine = self.engine.clone();
        let route = Route::to(revision.clone());
        tokio::spawn(async move { text(engine.invoke(&route, invocation).await?).await })
    }
}

pub(crate) async fn text(reply: Reply) -> Result<String, Fault> {
    let body = reply
        .body
        .collect(1 << 30)
        .await
        .map_err(|error| Fault::BadReply { message: error.to_string() })?;
    Ok(String::from_utf8_lossy(&body).into_owned())
}

pub(crate) async fn patient<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("in time")
}

/// A worker that answers `concurrency` invocations at once, each with its own body.
pub(crate) async fn echo(mut worker: Worker) {
    worker.begin(1).await;
    while let Some((stream, body)) = worker.invoke().await {
        worker.answer(stream, &body).await;
    }
}

/// Waits until some instance holds an invocation.
pub(crate) async fn until_running(revision: &Arc<Revision>) {
    patient(async {
        while revision.status().instances.first().is_none_or(|i| i.in_flight == 0) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

pub(crate) async fn until_queued(revision: &Arc<Revision>, count: usize) {
    patient(async {
        while revision.status().queued != count {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
