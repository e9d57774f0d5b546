//! A node for one developer. In the same process, a guest sees each call, repeats calls, and
//! connects debuggers. Start reading at [`Guest`].
//!
//! The guest deploys through the management socket, as every other client does.

use std::fs::{File, Permissions};
use std::io::{self, BufRead as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use bytes::Bytes;
use mote_core::body::Body;
use mote_core::invocation::{Head, headers};
use mote_core::{Fault, Invocation, InvocationId, Invoker as _, Reply, Trigger};
use mote_engine::{Ended, Watch, Watching};
use mote_process::clock;
use mote_spec::{FunctionName, FunctionSpec};
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::unix::pipe::Receiver;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::Node;
use crate::kept::{Budget, Kept};

/// How many calls may wait until the guest has shown them. Further calls are not shown.
const CALLS_WAITING_MAX: usize = 64;
/// The bodies that are kept at once.
const KEPT_BYTES_MAX: usize = 256 << 20;
/// The longest part of an answer that the guest receives when it repeats a call.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// The longest output of a program that is shown. A program that writes more is ended.
const OUTPUT_BYTES_MAX: u64 = 64 << 20;
/// How many ports are tried for a debugger, starting at the usual one for its language.
const PORTS_TRIED: u16 = 64;
/// How often making the folder is tried, because another node may remove it.
const FOLDER_TRIES: u32 = 10;

/// The guest, which runs next to the node on its own thread. The node stops when the guest returns.
pub struct Guest {
    /// Returns the exit code of the process.
    pub run: Box<dyn FnOnce(DevNode) -> u8 + Send>,
    /// The folder for everything that the node writes. The node makes the folder once a signal no
    /// longer ends the process at once, and the caller removes it afterwards.
    pub folder: PathBuf,
    /// Sockets that the node takes instead of binding the addresses of its settings: HTTP and CoAP.
    pub sockets: (Option<std::net::TcpListener>, Option<std::net::UdpSocket>),
}

impl Guest {
    /// Makes the folder, which only its owner can list, and which sandboxes enter as other users.
    /// Returns its lock. A later node removes folders that nobody has locked.
    pub(crate) fn make_folder(&self) -> anyhow::Result<File> {
        let mut made = self.try_to_make_folder();
        for _ in 1..FOLDER_TRIES {
            match &made {
                // Another node has removed the folder before it was locked.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    made = self.try_to_make_folder();
                }
                _ => break,
            }
        }
        made.with_context(|| format!("cannot make the folder {}", self.folder.display()))
    }

    fn try_to_make_folder(&self) -> io::Result<File> {
        std::fs::create_dir(&self.folder)?;
        std::fs::set_permissions(&self.folder, Permissions::from_mode(0o711))?;
        let folder = File::open(&self.folder)?;
        flock(&folder, FlockOperation::LockExclusive)?;
        if folder.metadata()?.nlink() == 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(folder)
    }
}

/// The signal that a terminal sends when it is closed. `None` if the process was started so that it
/// outlives its terminal, as by nohup(1).
pub fn hangup() -> Option<Signal> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    let ignored = u64::from_str_radix(ignored.trim(), 16).ok()?;
    let kind = SignalKind::hangup();
    (ignored >> (kind.as_raw_value() - 1) & 1 == 0).then(|| signal(kind).ok()).flatten()
}

/// Waits for the signal; waits forever if there is none.
pub async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
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
    _watching: Watching,
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

/// The answer to a call, or its failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub content_type: String,
    pub body: Bytes,
    /// Why the call failed, if it did. The body is empty then.
    pub fault: Option<String>,
}

impl Answer {
    fn failed(status: u16, fault: String) -> Self {
        Self { status, content_type: String::new(), body: Bytes::new(), fault: Some(fault) }
    }
}

/// What is needed to repeat a call.
#[derive(Debug)]
struct Again {
    head: Head,
    body: Kept,
}

/// Sends each call to the guest.
struct Watcher {
    calls: mpsc::Sender<Call>,
    budget: Arc<Budget>,
}

impl Watch for Watcher {
    fn begin(
        &self,
        function: &FunctionSpec,
        revision: u64,
        invocation: &mut Invocation,
    ) -> Option<Ended> {
        let began = Instant::now();
        let (calls, budget) = (self.calls.clone(), self.budget.clone());
        let head = invocation.head.clone();
        let body = Kept::of(&mut invocation.body, &budget, None);
        let (id, trigger) = (invocation.id, invocation.trigger);
        let function = function.name.clone();
        Some(Box::new(move |result| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let mut path = text(head.path());
            if !head.query().is_empty() {
                path.push('?');
                path.push_str(&text(head.query()));
            }
            let took_ms = began.elapsed().as_secs_f64() * 1e3;
            let (status, fault, is_cold, answer) = match result {
                Ok(reply) => {
                    let kept = Kept::of(&mut reply.body, &budget, None);
                    let answer = (reply.status, kind_of(&reply.headers), kept);
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
            // A guest that shows calls too slowly misses some.
            let _ = calls.try_send(call);
        }))
    }
}

/// The content type in a header block; empty if there is none.
fn kind_of(block: &[u8]) -> String {
    let kind = headers(block).find(|(name, _)| *name == b"content-type");
    kind.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
}

impl Call {
    /// The answer, if it was short enough and has ended, or else the failure.
    pub fn answer(&self) -> Option<Answer> {
        if let Some(fault) = &self.fault {
            return Some(Answer::failed(self.status, fault.clone()));
        }
        let (status, kind, body) = self.answer.as_ref()?;
        let (content_type, body) = (kind.clone(), body.bytes().ok()?);
        Some(Answer { status: *status, content_type, body, fault: None })
    }
}

impl DevNode {
    /// Lets a guest see the calls of a node. Must be called before the node serves.
    pub(crate) fn new(node: &Arc<Node>) -> Self {
        let (sender, calls) = mpsc::channel(CALLS_WAITING_MAX);
        let watcher = Watcher { calls: sender, budget: Budget::of(KEPT_BYTES_MAX) };
        let watching = node.data_path.engine.watch(Arc::new(watcher));
        let listeners = node.mqtt.own_broker.iter().flat_map(|broker| broker.listeners());
        Self {
            socket: node.config.socket.clone(),
            http: node.addresses.http,
            coap: node.addresses.coap,
            mqtt: listeners.collect(),
            notes: node.status().notes.into_iter().collect(),
            calls,
            _watching: watching,
            node: node.clone(),
        }
    }

    /// Repeats a call with the function's present revision. The guest does not see it among the
    /// calls. Fails if the call cannot be repeated.
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
            let content_type = kind_of(&block);
            Ok::<_, Fault>(Answer { status, content_type, body, fault: None })
        });
        let answer = running.await.map_err(|error| error.to_string())?;
        Ok(answer.unwrap_or_else(|fault| Answer::failed(fault.http_for(None), fault.to_string())))
    }

    /// The position of the last line in a function's log; 0 if there is none.
    pub fn last_line(&self, function: &str) -> u64 {
        let revision = self.node.data_path.engine.get(function);
        let last = revision.and_then(|revision| revision.log.tail(1).pop());
        last.map_or(0, |line| line.sequence)
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

    /// Lets debuggers of this user and of root reach a function at a loopback port, the first free
    /// one from `port` on. Refuses the debuggers of other users, and calls `refused` with the user
    /// id of each one, or with `None` if it is not known.
    pub async fn debug(
        &self,
        function: &str,
        port: u16,
        refused: impl Fn(Option<u32>) + Send + 'static,
    ) -> std::io::Result<SocketAddr> {
        let mut last = None;
        for port in port..port.saturating_add(PORTS_TRIED) {
            match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
                Ok(listener) => {
                    let address = listener.local_addr()?;
                    let node = self.node.clone();
                    tokio::spawn(serve_debuggers(listener, node, function.to_owned(), refused));
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

/// Connects each debugger to the function's newest instance.
async fn serve_debuggers(
    listener: TcpListener,
    node: Arc<Node>,
    function: String,
    refused: impl Fn(Option<u32>),
) {
    let own = geteuid().as_raw();
    while let Ok((mut outside, _)) = listener.accept().await {
        // The check is needed because every user of the machine can connect to a loopback port, and
        // a debugger can evaluate code.
        let user = owner(&outside);
        if user.is_none_or(|user| user != own && user != 0) {
            refused(user);
            continue;
        }
        let (node, function) = (node.clone(), function.clone());
        tokio::spawn(async move {
            if let Err(error) = carry(&mut outside, &node, &function).await {
                tracing::debug!(%error, function, "a debugger was not connected");
            }
        });
    }
}

/// The user that holds the other end of a loopback connection; `None` if the kernel names none.
fn owner(connection: &TcpStream) -> Option<u32> {
    let (Ok(SocketAddr::V4(peer)), Ok(SocketAddr::V4(own))) =
        (connection.peer_addr(), connection.local_addr())
    else {
        return None;
    };
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"].into_iter().find_map(|table| {
        let lines = io::BufReader::new(File::open(table).ok()?).lines();
        lines.map_while(Result::ok).find_map(|line| owner_in(&line, peer, own))
    })
}

/// The user of a connection, if this line of the kernel's table (proc(5), `/proc/net/tcp`) is about it.
fn owner_in(line: &str, from: SocketAddrV4, to: SocketAddrV4) -> Option<u32> {
    const ESTABLISHED: &str = "01";
    let mut words = line.split_ascii_whitespace().skip(1);
    let is = |word: &str, address: SocketAddrV4| {
        let (ip, port) = (u32::from_ne_bytes(address.ip().octets()), address.port());
        let mapped = u32::from_ne_bytes([0, 0, 0xff, 0xff]);
        word == format!("{ip:08X}:{port:04X}")
            || word == format!("{:016X}{mapped:08X}{ip:08X}:{port:04X}", 0)
    };
    if !is(words.next()?, from) || !is(words.next()?, to) || words.next()? != ESTABLISHED {
        return None;
    }
    let user = words.nth(3)?.parse().ok()?;
    // A socket that its process has closed belongs to nobody, but the kernel shows root as its
    // user.
    let inode = words.nth(1)?;
    (inode != "0").then_some(user)
}

async fn carry(outside: &mut TcpStream, node: &Node, function: &str) -> std::io::Result<()> {
    outside.set_nodelay(true)?;
    let mut inside = node.data_path.engine.debug(function).await?;
    tokio::io::copy_bidirectional(outside, &mut inside).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_owner_of_a_connection_is_known() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mapped: SocketAddr = format!("[::ffff:127.0.0.1]:{}", address.port()).parse().unwrap();
        for address in [address, mapped] {
            let own = TcpStream::connect(address).await.unwrap();
            let (outside, _) = listener.accept().await.unwrap();
            assert_eq!(owner(&outside), Some(geteuid().as_raw()));
            // No process holds the other end any longer.
            drop(own);
            assert_eq!(owner(&outside), None);
        }
    }

    #[test]
    fn only_a_held_connection_has_an_owner() {
        let at = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let line = |state: &str, inode: &str| {
            let ip = format!("{:08X}", u32::from_ne_bytes([127, 0, 0, 1]));
            format!(
                " 1: {ip}:D431 {ip}:240D {state} 00000000:00000000 00:00000000 00000000  1000        \
                 0 {inode} 1 0"
            )
        };
        let owner = |line: &str| owner_in(line, at(0xd431), at(0x240d));
        assert_eq!(owner(&line("01", "77")), Some(1000));
        assert_eq!(owner(&line("01", "0")), None);
        assert_eq!(owner(&line("06", "77")), None);
        assert_eq!(owner_in(&line("01", "77"), at(1), at(0x240d)), None);
    }
}
