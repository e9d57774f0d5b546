//! The node's own broker: a process that the node starts, watches and starts again.

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

/// The name of the node's user, which `mote-broker` knows.
const USER: &str = "mote-node";
/// How long the broker may take until it accepts connections: it reads all its sessions first.
const READY_PATIENCE: Duration = Duration::from_secs(30);
/// What is before a message with certificates, one with the namespaces, and one with the name of a
/// namespace that is deleted.
const CERTIFICATES: &[u8] = b"c";
const NAMESPACES: &[u8] = b"n";
const DELETED: &[u8] = b"d";
/// The longest line that tells its port.
const LINE_BYTES_MAX: u64 = 1 << 10;

/// How the broker is run.
pub struct LocalSettings {
    /// The folder of its data, which exists and which it may write.
    pub folder: PathBuf,
    /// Where devices connect.
    pub listen: SocketAddr,
    /// Where devices connect with TLS, if they can.
    pub tls: Option<LocalTls>,
    /// Which clients need no user name: `off`, `loopback` or `all`.
    pub anonymous: &'static str,
    /// The user id that it takes if the node runs as root.
    pub uid: u32,
    /// A password for the node itself, made for this run of the node.
    pub password: String,
    /// The namespaces of the node, which divide the messages that the broker keeps.
    pub namespaces: LocalNamespaces,
}

pub struct LocalNamespaces {
    /// Lists their names, which are labels.
    pub names: Box<dyn Fn() -> Vec<String> + Send + Sync>,
    /// Changes whenever there are others.
    pub changes: watch::Receiver<()>,
}

/// The listener of the broker for TLS.
pub struct LocalTls {
    pub listen: SocketAddr,
    /// Makes the message with the certificates and keys in use, as the broker reads it.
    pub message: Box<dyn Fn() -> Vec<u8> + Send + Sync>,
    /// Changes whenever there is another message.
    pub changes: watch::Receiver<()>,
}

/// A broker that runs.
#[derive(Debug, Clone, Copy)]
struct Ports {
    /// Where the node reaches it.
    own: u16,
    /// That of the listener for TLS, if there is one.
    tls: Option<u16>,
    /// Whether it was told of namespaces, which divide what it keeps.
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

    /// Lets it remove the messages that it keeps for a namespace, soon, or when it runs again.
    pub fn forget(&self, namespace: &str) {
        let _ = self.deleted.send(namespace.to_owned());
    }

    /// How the node reaches it; `None` while it does not run.
    pub fn local(&self) -> Option<Local> {
        let Ports { own, divides_kept, .. } = (*self.ports.lock())?;
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), own);
        let username = USER.to_owned();
        let password = self.password.clone();
        Some(Local { address, username, password, divides_kept })
    }

    /// Where devices connect, with the scheme of each address.
    pub fn listeners(&self) -> Vec<(&'static str, SocketAddr)> {
        let ports = *self.ports.lock();
        // The system chooses a port for 0.
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

    /// Waits until it accepts connections, or until `patience` is over.
    pub async fn ready(&self, patience: Duration) {
        let until = Instant::now() + patience;
        while self.ports.lock().is_none() && Instant::now() < until {
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends it, after it has written its sessions to disk.
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
    /// Names of namespaces that are deleted.
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
            // Without a fixed threshold the allocator raises it with each large message that is
            // freed, keeps the holes, and the process reaches its limit with half of its memory in
            // use.
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

/// Tells the process its settings, and waits until it has ended or is to end.
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
    // The end of this input, when it is dropped, ends the process.
    let mut input = child.stdin.take().ok_or_else(missing)?;
    let mut answer = String::new();
    let mut output = BufReader::new(output).take(LINE_BYTES_MAX);
    let starting = async {
        // A process that ends at once is reported by its status.
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
        // Its log says why.
        return Ok(());
    };
    let found = Ports { own, tls: told.next(), divides_kept };
    // Devices find it again after it was started again.
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

/// Writes the certificates in use. A process that has ended meanwhile is reported by its status.
async fn hand_over(tls: &mut LocalTls, input: &mut ChildStdin) {
    tls.changes.borrow_and_update();
    let _ = input.write_all(CERTIFICATES).await;
    let _ = input.write_all(&(tls.message)()).await;
}

/// Writes the names of the namespaces; returns whether there are any.
async fn tell_namespaces(namespaces: &LocalNamespaces, input: &mut ChildStdin) -> bool {
    let (list, are_some) = list(namespaces);
    tell(NAMESPACES, &list, input).await;
    are_some
}

/// Writes a message of this kind. A process that has ended meanwhile is reported by its status.
async fn tell(kind: &[u8], text: &str, input: &mut ChildStdin) {
    let length = u32::try_from(text.len()).unwrap_or(0).to_be_bytes();
    let _ = input.write_all(&[kind, &length, text.as_bytes()].concat()).await;
}

/// The names of the namespaces as JSON, and whether there are any.
fn list(namespaces: &LocalNamespaces) -> (String, bool) {
    let names: Vec<_> = (namespaces.names)().iter().map(|name| quoted(name)).collect();
    (format!("[{}]", names.join(",")), !names.is_empty())
}

/// Waits for a change, for ever if there can be none.
async fn changed(changes: Option<&mut watch::Receiver<()>>) {
    let is_there = match changes {
        Some(changes) => changes.changed().await.is_ok(),
        None => false,
    };
    if !is_there {
        std::future::pending().await
    }
}

/// A text as JSON.
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
