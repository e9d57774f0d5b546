//! A Mosquitto broker for a test, clients for it, and a relay that can cut connections.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::{Node, free_port, signal, wait_for};

/// Whether Mosquitto and its clients are installed.
pub fn is_there() -> bool {
    let runs = |program: &str| {
        let mut asking = Command::new(program);
        asking.arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    broker_program().is_some() && runs("mosquitto_pub") && runs("mosquitto_sub")
}

/// The path of the broker. Debian installs it where only root's `PATH` finds it.
fn broker_program() -> Option<&'static str> {
    [
        "/usr/sbin/mosquitto",
        "/usr/local/sbin/mosquitto",
        "/usr/bin/mosquitto",
        "/opt/homebrew/sbin/mosquitto",
    ]
    .into_iter()
    .find(|path| Path::new(path).exists())
}

pub fn broker_process(node: &Node) -> u32 {
    let children = format!("/proc/{0}/task", node.pid());
    wait_for("the broker's process", || {
        let tasks = std::fs::read_dir(&children).ok()?.flatten();
        let children =
            tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let all: Vec<u32> = children
            .flat_map(|text| text.split(' ').flat_map(str::parse).collect::<Vec<_>>())
            .collect();
        all.into_iter().find(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.trim() == "mote-broker"
        })
    })
}

/// A running broker. It ends on drop.
pub struct Broker {
    child: Option<Child>,
    folder: tempfile::TempDir,
    pub port: u16,
}

impl Broker {
    /// Starts a broker that accepts all clients.
    pub fn start() -> Self {
        Self::start_with("allow_anonymous true\n", |_| ())
    }

    /// Starts a broker with these lines in its configuration. In the lines, `DIR` stands for the
    /// broker's folder. `prepare` can put files there.
    pub fn start_with(lines: &str, prepare: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::Builder::new().prefix("mote-broker").tempdir().expect("a folder");
        prepare(folder.path());
        let dir = folder.path().display();
        let port = free_port();
        let config = format!(
            "user root\nlistener {port} 127.0.0.1\npersistence true\npersistence_location {dir}/\n\
             max_queued_messages 0\nmax_inflight_messages 100\nsys_interval 1\n{}",
            lines.replace("DIR", &dir.to_string())
        );
        std::fs::write(folder.path().join("mosquitto.conf"), config).expect("a file");
        let mut broker = Self { child: None, folder, port };
        broker.start_again();
        broker
    }

    /// Starts the broker again after [`Broker::stop`] or [`Broker::kill`], with the same port and
    /// files.
    pub fn start_again(&mut self) {
        let mut log = std::fs::File::options();
        let log = log.create(true).append(true).open(self.folder.path().join("log"));
        let log = log.expect("a file");
        let child = Command::new(broker_program().expect("mosquitto"))
            .args(["-v", "-c"])
            .arg(self.folder.path().join("mosquitto.conf"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn()
            .expect("the broker starts");
        self.child = Some(child);
        wait_for("the broker to listen", || {
            if let Ok(Some(status)) = self.child.as_mut()?.try_wait() {
                panic!("the broker ended: {status}\n{}", self.log());
            }
            TcpStream::connect(("127.0.0.1", self.port)).ok()
        });
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The broker's address in the form for triggers.
    pub fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    /// Asks the broker to end and waits for that. A broker that ends writes its messages to disk.
    pub fn stop(&mut self) {
        self.end("TERM");
    }

    /// Kills the broker without warning.
    pub fn kill(&mut self) {
        self.end("KILL");
    }

    fn end(&mut self, name: &str) {
        if let Some(mut child) = self.child.take() {
            signal(child.id(), name);
            wait_for("the broker to end", || child.try_wait().expect("our child"));
        }
    }

    /// Publishes lines to a topic in order, over one connection. Returns when the broker has
    /// acknowledged all of them.
    pub fn publish(&self, topic: &str, qos: u8, lines: &[String]) {
        self.publish_with(&["-t", topic, "-q", &qos.to_string(), "-l"], lines);
    }

    /// Runs `mosquitto_pub` with these arguments and lines.
    pub fn publish_with(&self, args: &[&str], lines: &[String]) {
        let mut child = Command::new("mosquitto_pub")
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(args)
            .stdin(Stdio::piped())
            .spawn()
            .expect("mosquitto_pub");
        let mut input = child.stdin.take().expect("piped");
        for line in lines {
            let _ = writeln!(input, "{line}");
        }
        drop(input);
        assert!(child.wait().expect("our child").success(), "{args:?}");
    }

    pub fn subscribe(&self, filter: &str) -> Subscriber {
        Subscriber::start(self.port, &["-t", filter, "-q", "1"])
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.end("KILL");
    }
}

/// A client that receives messages. It ends on drop.
pub struct Subscriber {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Subscriber {
    /// Runs `mosquitto_sub` with these arguments. Returns when the client is subscribed.
    pub fn start(port: u16, args: &[&str]) -> Self {
        // The output is a pipe, so without `stdbuf` the client would write only full buffers.
        let mut child = Command::new("stdbuf")
            .args([
                "-oL",
                "mosquitto_sub",
                "-h",
                "127.0.0.1",
                "-p",
                &port.to_string(),
                "-d",
                "-F",
                "OUT %t %p",
            ])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("mosquitto_sub");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let output = child.stdout.take().expect("piped");
        let into = lines.clone();
        let subscribed = Arc::new(AtomicBool::new(false));
        let is_subscribed = subscribed.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if line.starts_with("Subscribed ") {
                    is_subscribed.store(true, Ordering::Release);
                } else if let Some(line) = line.strip_prefix("OUT ") {
                    into.lock().expect("lines").push(line.to_owned());
                }
            }
        });
        wait_for("the subscription", || subscribed.load(Ordering::Acquire).then_some(()));
        Self { child, lines }
    }

    /// The messages received so far, each as `TOPIC PAYLOAD`.
    pub fn all(&self) -> Vec<String> {
        self.lines.lock().expect("lines").clone()
    }

    /// Waits until this many messages have been received.
    pub fn wait(&self, count: usize) -> Vec<String> {
        wait_for(&format!("{count} messages"), || {
            let all = self.all();
            (all.len() >= count).then_some(all)
        })
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A TCP relay to a broker. The relay can cut its connections.
pub struct Relay {
    pub address: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    /// Relays connections to `port` of this machine.
    pub fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let open: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let known = open.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else {
                        continue;
                    };
                    let _ = from.set_nodelay(true);
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                known.lock().expect("connections").extend([client, server]);
            }
        });
        Self { address, open }
    }

    /// Cuts every connection at once. Bytes on their way are lost.
    pub fn cut(&self) {
        for stream in self.open.lock().expect("connections").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// A server to which functions report their effects. Each received line is one effect.
pub struct Effects {
    pub address: SocketAddr,
    lines: Arc<Mutex<Vec<String>>>,
}

/// Python code with a function `effect(text)`, which returns when the effect is recorded. In the
/// code, `PORT` stands for the server's port, which the manifest must permit.
pub const EFFECT_CODE: &str = "
import socket
peer = None

def effect(text):
    global peer
    if peer is None:
        peer = socket.create_connection(('127.0.0.1', PORT), 30)
    peer.sendall(text.encode() + b'\\n')
    assert peer.recv(1) == b'k'
";

impl Effects {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let all = lines.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let into = all.clone();
                std::thread::spawn(move || {
                    let Ok(mut answers) = client.try_clone() else { return };
                    for line in BufReader::new(client).lines().map_while(Result::ok) {
                        into.lock().expect("lines").push(line);
                        let _ = answers.write_all(b"k");
                    }
                });
            }
        });
        Self { address, lines }
    }

    /// [`EFFECT_CODE`] for this server.
    pub fn code(&self) -> String {
        EFFECT_CODE.replace("PORT", &self.address.port().to_string())
    }

    /// The part of a manifest that permits a function to reach this server.
    pub fn allow(&self) -> String {
        format!("[allow]\nnet = [\"{}\"]\n", self.address)
    }

    /// The effects recorded so far.
    pub fn all(&self) -> Vec<String> {
        self.lines.lock().expect("lines").clone()
    }
}
