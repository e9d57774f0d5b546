//! The node's own broker: a process that the node starts, watches and starts again.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use mote_companion::supervision::{self, Companion, Serving};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::Local;

/// The name of the node's user, which `mote-broker` knows.
const USER: &str = "mote-node";
/// How long the broker may take until it accepts connections: it reads all its sessions first.
const READY_PATIENCE: Duration = Duration::from_secs(30);
/// The longest line that tells its port.
const LINE_BYTES_MAX: u64 = 1 << 10;

/// How the broker is run.
#[derive(Debug, Clone)]
pub struct LocalSettings {
    /// The program `mote-broker`.
    pub program: PathBuf,
    /// The folder of its data, which exists and which it may write.
    pub folder: PathBuf,
    /// Where devices connect.
    pub listen: SocketAddr,
    /// Where devices connect with TLS: address, certificates and key (PEM).
    pub tls: Option<(SocketAddr, String, String)>,
    /// Which clients need no user name: `off`, `loopback` or `all`.
    pub anonymous: &'static str,
    /// The user id that it takes if the node runs as root.
    pub uid: u32,
    /// A password for the node itself, made for this run of the node.
    pub password: String,
}

/// The node's own broker.
#[derive(Debug)]
pub struct LocalBroker {
    address: Arc<Mutex<Option<SocketAddr>>>,
    password: String,
    stopping: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl LocalBroker {
    /// Starts it on `runtime`.
    pub fn start(settings: LocalSettings, runtime: &Handle) -> Self {
        let address = Arc::new(Mutex::new(None));
        let (stopping, stopped) = watch::channel(false);
        let password = settings.password.clone();
        let broker = Broker { settings, address: address.clone() };
        let task = runtime.spawn(supervision::keep(broker, stopped));
        Self { address, password, stopping, task: Mutex::new(Some(task)) }
    }

    /// How the node reaches it; `None` while it does not run.
    pub fn local(&self) -> Option<Local> {
        let address = (*self.address.lock())?;
        Some(Local { address, username: USER.to_owned(), password: self.password.clone() })
    }

    /// Waits until it accepts connections, or until `patience` is over.
    pub async fn ready(&self, patience: Duration) {
        let until = Instant::now() + patience;
        while self.address.lock().is_none() && Instant::now() < until {
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
    address: Arc<Mutex<Option<SocketAddr>>>,
}

impl Companion for Broker {
    fn label(&self) -> &'static str {
        "MQTT broker"
    }

    fn pauses(&self) -> (Duration, Duration) {
        (Duration::from_millis(250), Duration::from_secs(30))
    }

    fn command(&mut self) -> io::Result<Command> {
        let mut command = supervision::command(&self.settings.program, &self.settings.folder);
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
        Box::pin(serve(&mut self.settings, &self.address, stopped, child))
    }

    fn ended(&mut self, ended: &io::Result<String>, is_stopping: bool) {
        *self.address.lock() = None;
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
    settings: &mut LocalSettings,
    address: &Mutex<Option<SocketAddr>>,
    stopped: &mut watch::Receiver<bool>,
    child: &mut Child,
) -> io::Result<()> {
    let tls = settings.tls.as_ref().map(|(listen, certificate, key)| {
        format!(
            r#"{{"listen":"{listen}","certificate":{},"key":{}}}"#,
            quoted(certificate),
            quoted(key)
        )
    });
    let line = format!(
        "{{\"listen\":\"{}\",\"tls\":{},\"anonymous\":\"{}\",\"password\":{},\"uid\":{}}}\n",
        settings.listen,
        tls.as_deref().unwrap_or("null"),
        settings.anonymous,
        quoted(&settings.password),
        settings.uid,
    );
    let output = child.stdout.take().ok_or_else(|| io::Error::other("it has no output"))?;
    // The end of this input, when it is dropped, ends the process.
    let mut input = child.stdin.take();
    if let Some(input) = &mut input {
        // A process that ends at once is reported by its status.
        let _ = input.write_all(line.as_bytes()).await;
    }
    let mut answer = String::new();
    let mut output = BufReader::new(output).take(LINE_BYTES_MAX);
    tokio::select! {
        read = timeout(READY_PATIENCE, output.read_line(&mut answer)) => match read {
            Ok(read) => read?,
            Err(_) => return Err(io::Error::other("it did not become ready in time")),
        },
        _ = stopped.changed() => return Ok(()),
    };
    let Some(port) = answer.trim().parse::<u16>().ok().filter(|port| *port != 0) else {
        // Its log says why.
        return Ok(());
    };
    let ip = settings.listen.ip();
    let is_shared = ip == Ipv4Addr::LOCALHOST || ip == Ipv4Addr::UNSPECIFIED;
    if settings.listen.port() == 0 && is_shared {
        // Devices find it again after it was started again.
        settings.listen.set_port(port);
    }
    *address.lock() = Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    tracing::info!(listen = %settings.listen, "the MQTT broker is ready");
    tokio::select! {
        ended = child.wait() => {
            *address.lock() = None;
            ended.map(|_| ())
        }
        _ = stopped.changed() => Ok(()),
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
