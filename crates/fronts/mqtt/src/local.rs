//! The node's own broker: a process that the node starts, watches and restarts.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use mote_process::companion::Role;
use mote_process::companion::supervision::{self, Companion, Serving};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::host::Local;

/// The user name of the node, which `mote-broker` knows.
const USER: &str = "mote-node";
/// How long the broker may take before it accepts connections. Before that, it reads all its
/// sessions.
const READY_PATIENCE: Duration = Duration::from_secs(30);
/// The bytes at the beginning of a message with certificates, with the list of namespaces, and with
/// the name of a deleted namespace.
const CERTIFICATES: &[u8] = b"c";
const NAMESPACES: &[u8] = b"n";
const DELETED: &[u8] = b"d";
/// The longest line in which the broker tells its ports.
const LINE_BYTES_MAX: u64 = 1 << 10;

/// The settings with which the broker runs.
pub struct LocalSettings {
    /// The broker's data folder. It must exist, and the broker must be able to write to it.
    pub folder: PathBuf,
    /// The address to which devices connect.
    pub listen: SocketAddr,
    /// The listener for devices with TLS, if there is one.
    pub tls: Option<LocalTls>,
    /// Which clients need no user name: `off`, `loopback` or `all`.
    pub anonymous: &'static str,
    /// The user id under which the broker runs if the node runs as root.
    pub uid: u32,
    /// The node's own password, made for this run of the node.
    pub password: String,
    /// The namespaces of the node. The broker divides the space for retained messages between them.
    pub namespaces: LocalNamespaces,
}

pub struct LocalNamespaces {
    /// Lists the names of the namespaces.
    pub names: Box<dyn Fn() -> Vec<String> + Send + Sync>,
    /// Notifies when the namespaces have changed.
    pub changes: watch::Receiver<()>,
}

/// The broker's TLS listener.
pub struct LocalTls {
    pub listen: SocketAddr,
    /// Makes the message with the current certificates and keys, in the form that the broker reads.
    pub message: Box<dyn Fn() -> Vec<u8> + Send + Sync>,
    /// Notifies when the message has changed.
    pub changes: watch::Receiver<()>,
}

/// The ports of a running broker.
#[derive(Debug, Clone, Copy)]
struct Ports {
    /// The port without TLS, which the node uses.
    own: u16,
    /// The port of the TLS listener, if there is one.
    tls: Option<u16>,
    /// Whether the broker has received the namespaces, among which it then divides the space for
    /// retained messages.
    divides_kept: bool,
}

#[derive(Debug)]
pub struct LocalBroker {
    listen: SocketAddr,
    listen_tls: Option<SocketAddr>,
    ports: Arc<Mutex<Option<Ports>>>,
    password: String,
    deleted: mpsc::UnboundedSender<String>,
    stopping: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl LocalBroker {
    pub fn start(settings: LocalSettings, runtime: &Handle) -> Self {
        let ports = Arc::new(Mutex::new(None));
        let (stopping, stopped) = watch::channel(false);
        let password = settings.password.clone();
        let listen = settings.listen;
        let listen_tls = settings.tls.as_ref().map(|tls| tls.listen);
        let (sender, deleted) = mpsc::unbounded_channel();
        let broker = Broker { settings, ports: ports.clone(), deleted };
        let task = runtime.spawn(supervision::keep(broker, stopped));
        let task = Mutex::new(Some(task));
        Self { listen, listen_tls, ports, password, deleted: sender, stopping, task }
    }

    /// Tells the broker to remove the retained messages of a namespace. If the broker does not run,
    /// it removes them after its next start.
    pub fn forget(&self, namespace: &str) {
        let _ = self.deleted.send(namespace.to_owned());
    }

    /// How the node reaches the broker. `None` while the broker does not run.
    pub fn local(&self) -> Option<Local> {
        let Ports { own, divides_kept, .. } = (*self.ports.lock())?;
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), own);
        let username = USER.to_owned();
        let password = self.password.clone();
        Some(Local { address, username, password, divides_kept })
    }

    /// The addresses to which devices connect, each with its scheme.
    pub fn listeners(&self) -> Vec<(&'static str, SocketAddr)> {
        let ports = *self.ports.lock();
        // With port 0, the system chooses the port.
        let at = |mut address: SocketAddr, found: Option<u16>| {
            if let (0, Some(port)) = (address.port(), found) {
                address.set_port(port);
            }
            address
        };
        let mut all = vec![("mqtt", at(self.listen, ports.map(|ports| ports.own)))];
        let tls = self.listen_tls.map(|tls| at(tls, ports.and_then(|ports| ports.tls)));
        all.extend(tls.map(|tls| ("mqtts", tls)));
        all
    }

    /// Waits until the broker accepts connections, but at most for `patience`.
    pub async fn ready(&self, patience: Duration) {
        let until = Instant::now() + patience;
        while self.ports.lock().is_none() && Instant::now() < until {
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends the broker after it has written its sessions to disk.
    pub async fn stop(&self) {
        self.stopping.send_replace(true);
        let task = self.task.lock().take();
        if let Some(task) = task {
            let _ = task.await;
        }
    }
}

/// The process of the broker.
struct Broker {
    settings: LocalSettings,
    ports: Arc<Mutex<Option<Ports>>>,
    /// The names of deleted namespaces.
    deleted: mpsc::UnboundedReceiver<String>,
}

impl Companion for Broker {
    fn label(&self) -> &'static str {
        "MQTT broker"
    }

    fn pauses(&self) -> (Duration, Duration) {
        (Duration::from_millis(250), Duration::from_secs(30))
    }

    fn command(&mut self) -> io::Result<Command> {
        let mut command = supervision::command(Role::Broker, &self.settings.folder);
        command
            // Without this setting, the allocator raises its threshold with each large message that
            // is freed, and keeps the holes. The process would then reach its memory limit with
            // only half of its memory in use.
            .env("MALLOC_MMAP_THRESHOLD_", "32768")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Ok(command)
    }

    fn serve<'a>(
        &'a mut self,
        child: &'a mut Child,
        stopped: &'a mut watch::Receiver<bool>,
    ) -> Serving<'a> {
        Box::pin(serve(self, stopped, child))
    }

    fn ended(&mut self, ended: &io::Result<String>, is_stopping: bool) {
        *self.ports.lock() = None;
        match ended {
            _ if is_stopping => {}
            Ok(status) => {
                tracing::error!("[M1208] the MQTT broker ended ({status}); it is started again")
            }
            Err(error) => {
                tracing::error!("[M1208] the MQTT broker cannot run: {error}; the node tries again")
            }
        }
    }
}

/// Gives the process its settings, and waits until the process has ended or has to end.
async fn serve(
    broker: &mut Broker,
    stopped: &mut watch::Receiver<bool>,
    child: &mut Child,
) -> io::Result<()> {
    let Broker { settings, ports, deleted } = broker;
    settings.namespaces.changes.borrow_and_update();
    let (namespaces, divides_kept) = list(&settings.namespaces);
    let line = format!(
        "{{\"listen\":\"{}\",\"tls\":{},\"anonymous\":\"{}\",\"password\":{},\"uid\":{},\
         \"namespaces\":{}}}\n",
        settings.listen,
        settings.tls.as_ref().map_or("null".to_owned(), |tls| format!("\"{}\"", tls.listen)),
        settings.anonymous,
        quoted(&settings.password),
        settings.uid,
        namespaces,
    );
    let missing = || io::Error::other("it has no input and output");
    let output = child.stdout.take().ok_or_else(missing)?;
    // The process ends when its input is closed, which happens when `input` is dropped.
    let mut input = child.stdin.take().ok_or_else(missing)?;
    let mut answer = String::new();
    let mut output = BufReader::new(output).take(LINE_BYTES_MAX);
    let starting = async {
        // A write error is ignored, because the exit status of the process says more.
        let _ = input.write_all(line.as_bytes()).await;
        if let Some(tls) = &mut settings.tls {
            hand_over(tls, &mut input).await;
        }
        output.read_line(&mut answer).await
    };
    tokio::select! {
        read = timeout(READY_PATIENCE, starting) => match read {
            Ok(read) => read?,
            Err(_) => return Err(io::Error::other("it did not become ready in time")),
        },
        _ = stopped.changed() => return Ok(()),
    };
    let mut told = answer.split_whitespace().map_while(|port| port.parse().ok());
    let Some(own) = told.next().filter(|port| *port != 0) else {
        // The log of the broker says why.
        return Ok(());
    };
    let found = Ports { own, tls: told.next(), divides_kept };
    // Keeping the ports lets devices find the broker again after a restart.
    let ip = settings.listen.ip();
    let is_shared = ip == Ipv4Addr::LOCALHOST || ip == Ipv4Addr::UNSPECIFIED;
    if settings.listen.port() == 0 && is_shared {
        settings.listen.set_port(own);
    }
    if let (Some(tls), Some(port)) = (&mut settings.tls, found.tls) {
        tls.listen.set_port(port);
    }
    *ports.lock() = Some(found);
    tracing::info!(listen = %settings.listen, "the MQTT broker is ready");
    let LocalSettings { tls, namespaces, .. } = settings;
    let handing_over = async {
        loop {
            tokio::select! {
                () = changed(tls.as_mut().map(|tls| &mut tls.changes)) => {
                    if let Some(tls) = tls {
                        hand_over(tls, &mut input).await;
                    }
                }
                Some(name) = deleted.recv() => tell(DELETED, &name, &mut input).await,
                () = changed(Some(&mut namespaces.changes)) => {
                    let divides_kept = tell_namespaces(namespaces, &mut input).await;
                    if let Some(found) = &mut *ports.lock() {
                        found.divides_kept = divides_kept;
                    }
                }
            }
        }
    };
    tokio::select! {
        ended = child.wait() => {
            *ports.lock() = None;
            ended.map(|_| ())
        }
        _ = stopped.changed() => Ok(()),
        () = handing_over => Ok(()),
    }
}

/// Writes the current certificates. Write errors are ignored, because the exit status of the
/// process is reported elsewhere.
async fn hand_over(tls: &mut LocalTls, input: &mut ChildStdin) {
    tls.changes.borrow_and_update();
    let _ = input.write_all(CERTIFICATES).await;
    let _ = input.write_all(&(tls.message)()).await;
}

/// Writes the names of the namespaces. Returns whether there are any.
async fn tell_namespaces(namespaces: &LocalNamespaces, input: &mut ChildStdin) -> bool {
    let (list, are_some) = list(namespaces);
    tell(NAMESPACES, &list, input).await;
    are_some
}

/// Writes a message of this kind. Write errors are ignored, because the exit status of the process
/// is reported elsewhere.
async fn tell(kind: &[u8], text: &str, input: &mut ChildStdin) {
    let length = u32::try_from(text.len()).unwrap_or(0).to_be_bytes();
    let _ = input.write_all(&[kind, &length, text.as_bytes()].concat()).await;
}

/// The names of the namespaces as JSON, and whether there are any.
fn list(namespaces: &LocalNamespaces) -> (String, bool) {
    let names: Vec<_> = (namespaces.names)().iter().map(|name| quoted(name)).collect();
    (format!("[{}]", names.join(",")), !names.is_empty())
}

/// Waits for a change. Without a source of changes, waits forever.
async fn changed(changes: Option<&mut watch::Receiver<()>>) {
    let is_there = match changes {
        Some(changes) => changes.changed().await.is_ok(),
        None => false,
    };
    if !is_there {
        std::future::pending().await
    }
}

/// A text as a JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
