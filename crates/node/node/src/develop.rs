//! A node for one developer. A guest in the same process sees each call, repeats calls, and reaches
//! debuggers. Start reading at [`Guest`].
//!
//! The guest deploys through the management socket, as every other client does.

use std::fs::{File, Permissions};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use anyhow::Context as _;
use bytes::Bytes;
use mote_core::body::{Body, BodyError, BodySource};
use mote_core::invocation::{Head, headers};
use mote_core::{Fault, Invocation, InvocationId, Invoker as _, Reply, Trigger};
use mote_engine::{Ended, Watch};
use mote_process::clock;
use mote_spec::{FunctionName, FunctionSpec};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::unix::pipe::Receiver;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::Node;

/// How many calls may wait until the guest has shown them. Further ones are not shown.
const CALLS_WAITING_MAX: usize = 64;
/// A call with a longer body cannot be repeated.
const BODY_BYTES_MAX: usize = 1 << 20;
/// The longest part of an answer that the guest receives when it repeats a call.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// The longest output of a program that is shown. A program that writes more waits for nobody, and is
/// ended.
const OUTPUT_BYTES_MAX: u64 = 64 << 20;
/// Ports that are tried for a debugger, from the usual one of its language.
const PORTS_TRIED: u16 = 64;

/// What runs next to the node, on a thread of its own. The node stops when it returns.
pub struct Guest {
    /// Returns the exit code of the process.
    pub run: Box<dyn FnOnce(DevNode) -> u8 + Send>,
    /// The folder for everything that the node writes. The node makes it when a signal no longer ends
    /// the process at once, and the caller removes it afterwards.
    pub folder: PathBuf,
    /// Sockets that the node takes instead of binding the addresses of its settings: HTTP and CoAP.
    pub sockets: (Option<std::net::TcpListener>, Option<std::net::UdpSocket>),
}

impl Guest {
    /// Makes the folder, which only its owner can list, and which sandboxes enter as other users.
    pub(crate) fn make_folder(&self) -> anyhow::Result<()> {
        let made = std::fs::create_dir(&self.folder)
            .and_then(|()| std::fs::set_permissions(&self.folder, Permissions::from_mode(0o711)));
        made.with_context(|| format!("cannot make the folder {}", self.folder.display()))
    }
}

/// A node as its guest sees it.
pub struct DevNode {
    pub socket: PathBuf,
    pub http: Option<SocketAddr>,
    pub coap: Option<SocketAddr>,
    /// The addresses of the node's own MQTT broker, each with its scheme.
    pub mqtt: Vec<(&'static str, SocketAddr)>,
    /// What the sandbox cannot enforce on this machine: name and details.
    pub notes: Vec<(String, String)>,
    /// The calls of functions, in the order in which their answers began.
    pub calls: mpsc::Receiver<Call>,
    node: Arc<Node>,
}

/// A call whose answer has begun, or that failed.
#[derive(Debug)]
pub struct Call {
    pub function: FunctionName,
    pub revision: u64,
    pub trigger: Trigger,
    pub id: InvocationId,
    pub method: String,
    /// The path below the function, with its query.
    pub path: String,
    pub status: u16,
    /// Why the call failed, if it did.
    pub fault: Option<String>,
    /// The time from the call's arrival to the beginning of its answer.
    pub took_ms: f64,
    /// Whether the call waited for an instance to start.
    pub is_cold: bool,
    again: Again,
    /// The answer, unless the call failed.
    answer: Option<(u16, String, Kept)>,
}

/// The answer to a repeated call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub content_type: String,
    pub body: Bytes,
}

/// What is needed to repeat a call.
#[derive(Debug)]
struct Again {
    head: Head,
    body: Kept,
}

/// The body of a call. The body of a stream is kept while the function reads it.
#[derive(Debug)]
enum Kept {
    Whole(Bytes),
    Read(Arc<Mutex<Reading>>),
}

#[derive(Debug, Default)]
struct Reading {
    bytes: Vec<u8>,
    is_complete: bool,
    is_too_long: bool,
}

/// Passes a stream on, and keeps what passes.
struct Tee {
    source: Box<dyn BodySource>,
    kept: Arc<Mutex<Reading>>,
}

impl BodySource for Tee {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let polled = self.source.poll_chunk(cx);
        let mut kept = self.kept.lock();
        match &polled {
            Poll::Ready(None) => kept.is_complete = true,
            Poll::Ready(Some(Ok(chunk))) if kept.bytes.len() + chunk.len() <= BODY_BYTES_MAX => {
                kept.bytes.extend_from_slice(chunk);
            }
            Poll::Ready(Some(_)) => kept.is_too_long = true,
            Poll::Pending => {}
        }
        polled
    }

    fn take_trailers(&mut self) -> Bytes {
        self.source.take_trailers()
    }

    fn held_bytes(&self) -> usize {
        self.source.held_bytes()
    }
}

impl Kept {
    /// Keeps a body without changing what the function receives.
    fn of(body: &mut Body) -> Self {
        match std::mem::take(body) {
            Body::Stream { source, length } => {
                let kept = Arc::<Mutex<Reading>>::default();
                let source = Box::new(Tee { source, kept: kept.clone() });
                *body = Body::Stream { source, length };
                Self::Read(kept)
            }
            whole => {
                let bytes = match &whole {
                    Body::Whole(bytes) => bytes.clone(),
                    _ => Bytes::new(),
                };
                *body = whole;
                Self::Whole(bytes)
            }
        }
    }

    fn bytes(&self) -> Result<Bytes, &'static str> {
        match self {
            Self::Whole(bytes) => Ok(bytes.clone()),
            Self::Read(kept) => {
                let kept = kept.lock();
                match (kept.is_too_long, kept.is_complete) {
                    (true, _) => Err("its body is longer than 1 MiB"),
                    (false, false) => Err("its body did not arrive to its end"),
                    (false, true) => Ok(kept.bytes.clone().into()),
                }
            }
        }
    }
}

/// Sends each call to the guest.
struct Watcher(mpsc::Sender<Call>);

impl Watch for Watcher {
    fn begin(&self, function: &FunctionSpec, revision: u64, invocation: &mut Invocation) -> Ended {
        let began = Instant::now();
        let calls = self.0.clone();
        let head = invocation.head.clone();
        let body = Kept::of(&mut invocation.body);
        let (id, trigger) = (invocation.id, invocation.trigger);
        let function = function.name.clone();
        Box::new(move |result| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let mut path = text(head.path());
            if !head.query().is_empty() {
                path.push('?');
                path.push_str(&text(head.query()));
            }
            let took_ms = began.elapsed().as_secs_f64() * 1e3;
            let (status, fault, is_cold, answer) = match result {
                Ok(reply) => {
                    let answer = (reply.status, kind_of(&reply.headers), Kept::of(&mut reply.body));
                    (reply.status, None, reply.phases.init_ns > 0, Some(answer))
                }
                Err(fault) => (fault.http_for(None), Some(fault.to_string()), false, None),
            };
            let call = Call {
                function,
                revision,
                trigger,
                id,
                method: text(head.method()),
                path,
                status,
                fault,
                took_ms,
                is_cold,
                again: Again { head, body },
                answer,
            };
            // A guest that shows too slowly misses calls.
            let _ = calls.try_send(call);
        })
    }
}

/// The content type in a header block; empty if there is none.
fn kind_of(block: &[u8]) -> String {
    let kind = headers(block).find(|(name, _)| *name == b"content-type");
    kind.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
}

impl Call {
    /// The answer, if it was short enough and has ended.
    pub fn answer(&self) -> Option<Answer> {
        let (status, kind, body) = self.answer.as_ref()?;
        Some(Answer { status: *status, content_type: kind.clone(), body: body.bytes().ok()? })
    }
}

impl DevNode {
    /// Lets a guest see the calls of a node. Must be called before the node serves.
    pub(crate) fn new(node: &Arc<Node>) -> Self {
        let (sender, calls) = mpsc::channel(CALLS_WAITING_MAX);
        node.data_path.engine.set_watch(Arc::new(Watcher(sender)));
        let listeners = node.mqtt.own_broker.iter().flat_map(|broker| broker.listeners());
        Self {
            socket: node.config.socket.clone(),
            http: node.addresses.http,
            coap: node.addresses.coap,
            mqtt: listeners.collect(),
            notes: node.status().notes.into_iter().collect(),
            calls,
            node: node.clone(),
        }
    }

    /// Repeats a call with the function's present revision. The guest does not see it among the
    /// calls.
    pub async fn repeat(&self, call: &Call) -> Result<Answer, String> {
        let engine = self.node.data_path.engine.clone();
        let name = call.function.to_string();
        let route = engine.route(&name, || None).ok_or_else(|| format!("{name} is gone"))?;
        let body = call.again.body.bytes()?;
        let received_ns = clock::now_ns();
        let invocation = Invocation {
            id: InvocationId::new(clock::unix_ms(), self.node.ids.random()),
            trigger: call.trigger,
            head: call.again.head.clone(),
            body: Body::whole(body),
            received_ns,
            deadline_ns: received_ns + route.revision().timeout_ms() * 1_000_000,
            chain: None,
        };
        let running = self.node.data_path.runtime.spawn(async move {
            let reply = engine.run(&route, invocation).await?;
            let Reply { status, headers: block, body, .. } = reply;
            let body =
                body.collect(ANSWER_BYTES_MAX).await.map_err(|error| Fault::of_body(&error))?;
            Ok::<_, Fault>(Answer { status, content_type: kind_of(&block), body })
        });
        match running.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(fault)) => Err(fault.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Runs a program in the sandbox of a function, and passes its lines to `show`. Returns the exit
    /// code of the program, or why it was ended.
    pub async fn run_program(
        &self,
        function: &str,
        argv: Vec<String>,
        mut show: impl FnMut(&str),
    ) -> Result<i32, String> {
        let mut program = self.node.data_path.engine.start_program(function, argv).await?;
        let output = std::mem::replace(&mut program.output, OwnedFd::from(null()?));
        let output =
            Receiver::from_owned_fd_unchecked(output).map_err(|error| error.to_string())?;
        let mut output = BufReader::new(output.take(OUTPUT_BYTES_MAX));
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).await.is_ok_and(|read| read > 0) {
            show(String::from_utf8_lossy(&line).trim_end_matches('\n'));
            line.clear();
        }
        let exit = program.exited().await;
        match (exit.status, exit.signal) {
            _ if exit.out_of_memory => Err("it used more memory than it may".to_owned()),
            (Some(status), _) => Ok(status),
            (None, Some(signal)) => Err(format!("it was ended by signal {signal}")),
            (None, None) => Err("it was ended".to_owned()),
        }
    }

    /// Lets debuggers reach a function at a loopback port, the first free one from `port` on.
    pub async fn debug(&self, function: &str, port: u16) -> std::io::Result<SocketAddr> {
        let mut last = None;
        for port in port..port.saturating_add(PORTS_TRIED) {
            match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
                Ok(listener) => {
                    let address = listener.local_addr()?;
                    tokio::spawn(serve_debuggers(listener, self.node.clone(), function.to_owned()));
                    return Ok(address);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into()))
    }
}

fn null() -> Result<File, String> {
    File::open("/dev/null").map_err(|error| error.to_string())
}

/// Connects each debugger with the function's newest instance.
async fn serve_debuggers(listener: TcpListener, node: Arc<Node>, function: String) {
    while let Ok((mut outside, _)) = listener.accept().await {
        let (node, function) = (node.clone(), function.clone());
        tokio::spawn(async move {
            if let Err(error) = carry(&mut outside, &node, &function).await {
                tracing::debug!(%error, function, "a debugger was not connected");
            }
        });
    }
}

async fn carry(outside: &mut TcpStream, node: &Node, function: &str) -> std::io::Result<()> {
    outside.set_nodelay(true)?;
    let mut inside = node.data_path.engine.debug(function).await?;
    tokio::io::copy_bidirectional(outside, &mut inside).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body in pieces of one kibibyte.
    struct Pieces(usize);

    impl BodySource for Pieces {
        fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
            let Some(left) = self.0.checked_sub(1) else { return Poll::Ready(None) };
            self.0 = left;
            Poll::Ready(Some(Ok(Bytes::from_static(&[b'x'; 1 << 10]))))
        }
    }

    #[tokio::test]
    async fn a_body_is_kept_while_it_is_read() {
        let mut whole = Body::whole("text");
        let kept = Kept::of(&mut whole);
        assert_eq!(whole.collect(10).await.unwrap(), "text");
        assert_eq!(kept.bytes().unwrap(), "text");
        for (pieces, expected) in [(3, Ok(3 << 10)), (2_000, Err("its body is longer than 1 MiB"))]
        {
            let mut body = Body::Stream { source: Box::new(Pieces(pieces)), length: None };
            let kept = Kept::of(&mut body);
            assert_eq!(kept.bytes().unwrap_err(), "its body did not arrive to its end");
            assert_eq!(body.collect(1 << 30).await.unwrap().len(), pieces << 10);
            assert_eq!(kept.bytes().map(|bytes| bytes.len()), expected);
        }
    }
}
