//! Tests observation over real sockets, UDP and TCP, with clients of other projects: libcoap's
//! `coap-client` and aiocoap. If a client is not installed, its part is skipped with a message
//! (`scripts/setup.sh test` installs both).

#![allow(clippy::unwrap_used)]

mod support;

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use mote_coap::notices::{Notices, State};
use mote_coap::{Config, StreamConfig, serve, serve_stream};
use mote_spec::FunctionName;
use support::coap::*;
use support::relay::Relay;
use support::{Fake, seed};

const OBSERVE: u16 = 6;
/// The time limit for one step of a client. It is long because other work may share the machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A front over UDP and a front over TCP that share the same notices.
struct Fronts {
    udp: SocketAddr,
    tcp: SocketAddr,
    fake: Fake,
    notices: Notices,
    stopper: Stopper,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Fronts {
    fn start() -> Self {
        let (fake, (stopper, end)) = (Fake::default(), Stopper::new());
        let notices = Notices::default();
        let invoker = fake.clone();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = socket.local_addr().unwrap();
        let tcp = listener.local_addr().unwrap();
        socket.set_nonblocking(true).unwrap();
        listener.set_nonblocking(true).unwrap();
        let config = Config { notices: Some(notices.clone()), ..Config::default() };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let socket = tokio::net::UdpSocket::from_std(socket).unwrap();
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let configs = (config.clone(), StreamConfig::default());
                let stream = serve_stream(listener, invoker.clone(), configs, end.clone());
                let (udp, tcp) = tokio::join!(serve(socket, invoker, config, end), stream);
                udp.and(tcp).unwrap();
            });
        });
        Self { udp, tcp, fake, notices, stopper, thread: Some(thread) }
    }

    fn publish(&self, text: &str) {
        let headers = Bytes::from_static(b"content-type\napplication/json\n");
        let state = State { status: 200, headers, body: text.to_owned().into() };
        self.notices.publish(&FunctionName::new("number").unwrap(), b"/", None, state).unwrap();
    }

    fn wait_for_observers(&self, count: usize) {
        self.fake.wait("observers", |_| self.notices.figures().observers == count);
    }
}

impl Drop for Fronts {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            thread.join().unwrap();
        }
    }
}

/// A client in its own process, and the lines that it prints.
struct Observer {
    name: String,
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Observer {
    fn start(name: &str, command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok).filter(|line| !line.is_empty()) {
                let _ = sender.send(line);
            }
        });
        Self { name: name.to_owned(), child, lines }
    }

    fn expect(&self, line: &str) {
        let got = self.lines.recv_timeout(PATIENCE);
        assert_eq!(got.as_deref(), Ok(line), "{}", self.name);
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn skipped(client: &str) {
    eprintln!("SKIPPED: {client} is not installed; scripts/setup.sh test installs it");
}

fn libcoap(uri: &str) -> Option<Observer> {
    let name = ["coap-client-notls", "coap-client", "coap-client-openssl", "coap-client-gnutls"]
        .into_iter()
        .find(|name| Command::new(name).output().is_ok());
    let Some(name) = name else {
        skipped("libcoap's coap-client");
        return None;
    };
    // Without `stdbuf`, the client writes to a pipe only at its end.
    let mut command = Command::new("stdbuf");
    command.args(["-oL", name, "-w", "-s", "100", "-B", "120", "-m", "get", uri]);
    Some(Observer::start(name, &mut command))
}

fn aiocoap(uri: &str) -> Option<Observer> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python: PathBuf = here.join("../../../.cache/test-venv/bin/python");
    let works = Command::new(&python).args(["-c", "import aiocoap"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        skipped("aiocoap (.cache/test-venv)");
        return None;
    }
    let script = here.join("tests/aiocoap_observer.py");
    Some(Observer::start("aiocoap", Command::new(python).arg(script).arg(uri)))
}

/// Observers of every kind see every state in order, including a state of many blocks, and the end
/// of the observation.
fn all_see_all(scheme: &str, address: SocketAddr, fronts: &Fronts) {
    let uri = format!("{scheme}://{address}/number");
    let libcoap = libcoap(&uri);
    let aiocoap = aiocoap(&uri);
    let all: Vec<&Observer> = libcoap.iter().chain(&aiocoap).collect();
    if all.is_empty() {
        return;
    }
    fronts.wait_for_observers(all.len());
    libcoap.iter().for_each(|observer| observer.expect("7"));
    aiocoap.iter().for_each(|observer| observer.expect("registered 7"));
    let mut tried = 0;
    for number in 0..15 {
        let text = format!("state {number}");
        fronts.publish(&text);
        for observer in &all {
            observer.expect(&text);
            tried += 1;
        }
    }
    let large = format!("{}large", "x".repeat(20_000));
    fronts.publish(&large);
    libcoap.iter().for_each(|observer| observer.expect(&large));
    aiocoap.iter().for_each(|observer| observer.expect("20005 bytes large"));
    fronts.publish("small again");
    all.iter().for_each(|observer| observer.expect("small again"));
    fronts.notices.end(&FunctionName::new("number").unwrap());
    fronts.wait_for_observers(0);
    let names: Vec<&str> = all.iter().map(|observer| observer.name.as_str()).collect();
    println!("{scheme}: {}: {tried} states tried / {tried} as expected", names.join(", "));
}

#[test]
fn other_clients_see_every_state_over_udp() {
    let fronts = Fronts::start();
    all_see_all("coap", fronts.udp, &fronts);
}

#[test]
fn other_clients_see_every_state_over_tcp() {
    let fronts = Fronts::start();
    all_see_all("coap+tcp", fronts.tcp, &fronts);
}

/// Loss delays states, and newer states replace lost ones. An older state never follows a newer
/// one, and the last state always arrives.
#[test]
fn observers_behind_a_bad_network_end_with_the_last_state() {
    let fronts = Fronts::start();
    let seed = seed();
    let relays = [Relay::start(fronts.udp, seed), Relay::start(fronts.udp, seed + 1)];
    let uri = |relay: &Relay| format!("coap://{}/number", relay.address);
    let all: Vec<Observer> =
        libcoap(&uri(&relays[0])).into_iter().chain(aiocoap(&uri(&relays[1]))).collect();
    for observer in &all {
        let first = observer.lines.recv_timeout(PATIENCE);
        assert!(first.is_ok_and(|line| line.ends_with('7')), "{} is not registered", observer.name);
    }
    const LAST: u32 = 300;
    for number in 1..=LAST {
        fronts.publish(&number.to_string());
        // Measured: how many states the clients see when the states follow at this pace.
        std::thread::sleep(Duration::from_millis(10));
    }
    for observer in &all {
        let mut before = 0;
        let mut seen = 0;
        while before < LAST {
            let line = observer.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("{}: nothing after {before}", observer.name));
            let number: u32 = line.parse().unwrap();
            assert!(number > before, "{}: {number} after {before}, seed {seed}", observer.name);
            (before, seen) = (number, seen + 1);
        }
        println!("{}: {seen} of {LAST} states, the last one included; seed {seed}", observer.name);
    }
    let dropped: u64 = relays.iter().map(|relay| relay.dropped.load(Ordering::SeqCst)).sum();
    assert!(all.is_empty() || dropped > 0, "the relays dropped nothing");
}

#[test]
fn every_client_has_its_own_observation() {
    let fronts = Fronts::start();
    let mut clients: Vec<Client> = (0..20).map(|_| client(fronts.udp)).collect();
    for client in &mut clients {
        let get = Message::request(CON, GET, client.fresh(), "number").option(OBSERVE, b"");
        assert!(client.call(&get).uint(OBSERVE).is_some());
    }
    fronts.publish("1");
    for client in &clients {
        let sent = client.receive();
        assert_eq!((sent.kind, sent.text()), (CON, "1".to_owned()));
        let kind = if client.socket.local_addr().unwrap().port() % 2 == 0 { ACK } else { RST };
        client.send(&Message { kind, mid: sent.mid, ..Message::default() }.encode());
    }
    let even =
        clients.iter().filter(|client| client.socket.local_addr().unwrap().port() % 2 == 0).count();
    fronts.wait_for_observers(even);
}

fn client(address: SocketAddr) -> Client {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    Client { socket, mid: 0 }
}
