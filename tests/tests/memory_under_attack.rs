//! Ten functions with hostile workers and ten hostile clients, all at once. The memory of the node
//! itself must stay within a limit above its idle use, and a correct function must be served.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mote_tests::{Connection, Node, basic_auth, call_at};
use serde_json::json;

/// The most memory above idle while all of them attack: the sum of the limits for each attack, and
/// room for the allocator.
const GROWTH_BYTES_MAX: u64 = 64 << 20;
/// Duration of the attack. Without these limits, one second was enough to exceed the bound.
const ATTACK: Duration = Duration::from_secs(10);
/// How long a client waits for a socket before it checks whether the attack is over.
const LOOK: Duration = Duration::from_millis(50);

const ON: [&str; 12] = [
    "--openfaas",
    ":0",
    "--openwhisk",
    ":0",
    "--tinyfaas",
    ":0",
    "--tinyfaas-http",
    "off",
    "--tinyfaas-coap",
    "off",
    "--tinyfaas-grpc",
    ":0",
];

/// A function that writes to its worker's socket what the path says, and reads nothing meanwhile.
const HOSTILE: &str = r#"
import os, socket, struct, time

BODY, RESULT, CREDIT = 5, 6, 9
SECONDS = 4

def frame(kind, stream, data, flags=0):
    return struct.pack("<IBBHI", len(data), kind, flags, 0, stream) + data

def result(headers=b"", body=b""):
    now = time.monotonic_ns()
    return struct.pack("<QQHHI", now, now, 200, 0, len(headers)) + headers + body

def handle(event, ctx):
    kind, own = event.path.strip("/"), event._stream
    worker = socket.socket(fileno=os.dup(3))
    end = time.monotonic() + SECONDS
    try:
        if kind == "head":
            fields = b"".join(b"x-%d\nv\n" % n for n in range(40000))
            worker.sendall(frame(RESULT, own, result(fields), 1))
            return
        if kind == "credit":
            while time.monotonic() < end:
                worker.sendall(frame(CREDIT, own, struct.pack("<I", 2**32 - 1)))
                time.sleep(0.01)
            return
        worker.sendall(frame(RESULT, own, result()))
        piece = frame(BODY, own, b"x") * 20000 if kind == "bytes" else frame(BODY, own, bytes(65536)) * 16
        while time.monotonic() < end:
            worker.sendall(piece)
    except OSError:
        pass
    os._exit(0)
"#;
const HOSTILE_MANIFEST: &str =
    "version = 1\n[limits]\ntimeout = \"5s\"\nbody = \"1GiB\"\n[scale]\nmax = 1\n";
/// The requests to each hostile function. They are repeated.
const KINDS: [&str; 10] =
    ["body", "body", "body", "bytes", "bytes", "bytes", "credit", "credit", "head", "head"];

const HONEST: &str = "def handle(event, ctx):\n    return event.text\n";
const LARGE: &str = "def handle(event, ctx):\n    return 'x' * 262144\n";

fn status_bytes(node: &Node, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("alive");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a field");
    line.trim_matches([':', ' ', '\t']).trim_end_matches(" kB").parse::<u64>().expect("a number")
        << 10
}

/// State that all attackers share.
struct Attack {
    http: SocketAddr,
    openfaas: SocketAddr,
    openwhisk: SocketAddr,
    grpc: SocketAddr,
    over: AtomicBool,
    /// How much each kind of attacker has done, in a unit of that kind.
    did: [AtomicU64; 4],
}

impl Attack {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn count(&self, kind: usize) {
        self.did[kind].fetch_add(1, Ordering::SeqCst);
    }
}

fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LOOK))?;
    stream.set_write_timeout(Some(LOOK))?;
    Ok(stream)
}

fn is_wait(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Writes all bytes unless the attack ends first. Returns false if the connection has ended.
fn send(attack: &Attack, stream: &mut TcpStream, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if is_wait(&error) && !attack.is_over() => {}
            Err(_) => return false,
        }
    }
    true
}

/// Keeps a connection without reading from it until the connection ends, the attack ends, or
/// `length` has passed.
fn hold(attack: &Attack, stream: &mut TcpStream, length: Duration) {
    let until = Instant::now() + length;
    let mut byte = [0];
    while !attack.is_over() && Instant::now() < until {
        match stream.peek(&mut byte) {
            Ok(0) => return,
            Ok(_) => std::thread::park_timeout(LOOK),
            Err(error) if is_wait(&error) => {}
            Err(_) => return,
        }
    }
}

/// Calls a hostile function in the way that does the most harm.
fn provoke(attack: &Attack, name: &str, kind: &str) {
    let Ok(mut stream) = connect(attack.http) else { return };
    let length = if kind == "credit" { 512 << 20 } else { 0 };
    let head = format!(
        "POST /{name}/{kind} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n"
    );
    if !send(attack, &mut stream, head.as_bytes()) {
        return;
    }
    match kind {
        // This caller reads nothing.
        "body" => hold(attack, &mut stream, Duration::from_secs(4)),
        // This caller disconnects once the answer has begun.
        "bytes" => {
            while !attack.is_over() {
                match stream.read(&mut [0; 16]) {
                    Err(error) if is_wait(&error) => {}
                    _ => break,
                }
            }
            let since = Instant::now();
            drop(stream);
            // The worker continues for this long, and meanwhile its function accepts no other call.
            while !attack.is_over() && since.elapsed() < Duration::from_secs(4) {
                std::thread::park_timeout(LOOK);
            }
        }
        "credit" => {
            let piece = vec![b'c'; 1 << 20];
            for _ in 0..512 {
                if !send(attack, &mut stream, &piece) {
                    break;
                }
            }
        }
        _ => hold(attack, &mut stream, Duration::from_millis(500)),
    }
}

const HEADERS: u8 = 1;
const DATA: u8 = 0;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

/// An HTTP/2 client that respects the windows of the other side and offers the given window.
struct Http2 {
    stream: TcpStream,
    read: Vec<u8>,
    /// How many bytes may be sent, by stream. 0 stands for the connection.
    windows: HashMap<u32, i64>,
    initial: i64,
}

impl Http2 {
    /// Connects, and offers `window` for answers.
    fn connect(address: SocketAddr, window: u32) -> std::io::Result<Self> {
        let stream = connect(address)?;
        let windows = HashMap::from([(0, 65_535)]);
        let mut client = Self { stream, read: Vec::new(), windows, initial: 65_535 };
        client.stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
        let mut setting = vec![0, 4];
        setting.extend(window.to_be_bytes());
        client.frame(SETTINGS, 0, 0, &setting)?;
        Ok(client)
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> std::io::Result<()> {
        let mut bytes = u32::try_from(payload.len()).expect("small").to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        self.stream.write_all(&bytes)
    }

    /// Sends fields as literals without an index.
    fn headers(&mut self, stream: u32, ends: bool, fields: &[(&str, &str)]) -> std::io::Result<()> {
        let mut block = Vec::new();
        for (name, value) in fields {
            block.push(0);
            for text in [name, value] {
                block.push(u8::try_from(text.len()).expect("short"));
                block.extend(text.as_bytes());
            }
        }
        self.frame(HEADERS, if ends { 5 } else { 4 }, stream, &block)
    }

    fn window(&self, stream: u32) -> i64 {
        let own = self.windows.get(&stream).copied().unwrap_or(0) + self.initial;
        own.min(self.windows[&0])
    }

    /// Sends a piece of a body if the windows allow it now.
    fn data(&mut self, stream: u32, piece: &[u8]) -> std::io::Result<bool> {
        let length = i64::try_from(piece.len()).expect("small");
        if self.window(stream) < length {
            return Ok(false);
        }
        *self.windows.entry(0).or_default() -= length;
        *self.windows.entry(stream).or_default() -= length;
        self.frame(DATA, 0, stream, piece)?;
        Ok(true)
    }

    /// Reads pending data for at most [`LOOK`], and answers the frames that require an answer.
    fn pump(&mut self) -> std::io::Result<()> {
        let mut piece = [0; 65536];
        match self.stream.read(&mut piece) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.read.extend_from_slice(&piece[..count]),
            Err(error) if is_wait(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
        loop {
            let Some(head) = self.read.get(..9) else { return Ok(()) };
            let length =
                usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            let kind = head[3];
            let flags = head[4];
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            if self.read.len() < 9 + length {
                return Ok(());
            }
            let payload: Vec<u8> = self.read.drain(..9 + length).skip(9).collect();
            match kind {
                SETTINGS if flags == 0 => {
                    for setting in
                        payload.as_chunks::<6>().0.iter().filter(|setting| setting[1] == 4)
                    {
                        let value = [setting[2], setting[3], setting[4], setting[5]];
                        self.initial = i64::from(u32::from_be_bytes(value));
                    }
                    self.frame(SETTINGS, 1, 0, &[])?;
                }
                PING if flags == 0 => self.frame(PING, 1, 0, &payload)?,
                WINDOW_UPDATE => {
                    let more = [payload[0], payload[1], payload[2], payload[3]];
                    *self.windows.entry(stream).or_default() += i64::from(u32::from_be_bytes(more));
                }
                GOAWAY => return Err(ErrorKind::ConnectionAborted.into()),
                _ => {}
            }
        }
    }
}

/// Requests large answers on all streams that one connection may have, and reads none of them.
fn takes_nothing(attack: &Attack) -> std::io::Result<()> {
    let mut client = Http2::connect(attack.http, 0)?;
    for n in 0..100 {
        let fields =
            [(":method", "GET"), (":scheme", "http"), (":path", "/large"), (":authority", "t")];
        client.headers(1 + 2 * n, true, &fields)?;
        attack.count(0);
    }
    while !attack.is_over() {
        client.pump()?;
    }
    Ok(())
}

/// Sends gRPC messages of nearly 4 MiB on many streams and completes none of them.
fn never_ends_a_message(attack: &Attack) -> std::io::Result<()> {
    let mut client = Http2::connect(attack.grpc, 65_535)?;
    let streams: Vec<u32> = (0..100).map(|n| 1 + 2 * n).collect();
    for stream in &streams {
        let path = "/openfogstack.tinyfaas.tinyfaas.TinyFaaS/Request";
        client.headers(
            *stream,
            false,
            &[
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                (":authority", "t"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
            ],
        )?;
        attack.count(1);
    }
    let piece = vec![0; 16 << 10];
    let mut sent = 0;
    while !attack.is_over() && sent < 400 << 20 {
        let mut went = false;
        for stream in &streams {
            if client.data(*stream, &piece)? {
                (went, sent) = (true, sent + piece.len());
            }
        }
        if !went {
            client.pump()?;
        }
    }
    while !attack.is_over() {
        client.pump()?;
    }
    Ok(())
}

/// Sends nearly the whole body of many calls of a web action, and then stops.
fn stalls_bodies(attack: &Attack) {
    let mut held = Vec::new();
    let body = vec![b' '; (1 << 20) - 1];
    for _ in 0..60 {
        let Ok(mut stream) = connect(attack.openwhisk) else { break };
        let head = b"POST /api/v1/web/guest/default/page HTTP/1.1\r\nhost: localhost\r\n\
            content-type: application/json\r\ncontent-length: 1048576\r\n\r\n";
        if send(attack, &mut stream, head) && send(attack, &mut stream, &body) {
            attack.count(2);
        }
        held.push(stream);
    }
    if let Some(last) = held.last_mut() {
        hold(attack, last, ATTACK);
    }
}

/// Asks OpenFaaS' API for an answer with 40,000 fields.
fn asks_for_many_fields(attack: &Attack) {
    let answer = Connection::open(attack.openfaas).try_call("GET", "/function/wide/head", &[], b"");
    if answer.is_ok() {
        attack.count(3);
    }
}

#[test]
fn many_attacks_at_once_leave_the_node_small() {
    let node = Node::start_with(&ON);
    for at in 0..KINDS.len() {
        let files = [("app.py", HOSTILE), ("mote.toml", HOSTILE_MANIFEST)];
        node.deploy_ok(&format!("hostile-{at}"), &files);
    }
    node.deploy_ok("wide", &[("app.py", HOSTILE), ("mote.toml", HOSTILE_MANIFEST)]);
    node.deploy_ok("large", &[("app.py", LARGE)]);
    let kept = "version = 1\n[scale]\nmin = 1\n";
    node.deploy_ok("honest", &[("app.py", HONEST), ("mote.toml", kept)]);
    let page = json!({
        "exec": { "kind": "python:3", "code": "def main(args):\n    return {'body': 'x'}\n" },
        "annotations": [{ "key": "web-export", "value": true }],
    });
    let auth = basic_auth("guest", &node.token());
    let fields = [("authorization", auth.as_str()), ("content-type", "application/json")];
    let openwhisk = node.platform("openwhisk");
    let path = "/api/v1/namespaces/_/actions/page";
    let made = call_at(openwhisk, "PUT", path, &fields, page.to_string().as_bytes());
    assert!(made.status < 300, "{} {}", made.status, made.text());
    for _ in 0..200 {
        assert_eq!(node.post("/honest", b"warm").text(), "warm");
    }
    // Resets the peak to the current resident memory (proc(5)).
    std::fs::write(format!("/proc/{}/clear_refs", node.pid()), "5").expect("our own child");
    let before = status_bytes(&node, "VmHWM");
    let attack = Attack {
        http: node.http,
        openfaas: node.platform("openfaas"),
        openwhisk,
        grpc: node.platform("tinyfaas grpc"),
        over: AtomicBool::new(false),
        did: Default::default(),
    };
    let (calls, growth) = std::thread::scope(|scope| {
        let attack = &attack;
        let again = |one: Box<dyn Fn() + Send>| {
            scope.spawn(move || {
                while !attack.is_over() {
                    one();
                }
            });
        };
        for (at, kind) in KINDS.into_iter().enumerate() {
            let name = format!("hostile-{at}");
            again(Box::new(move || provoke(attack, &name, kind)));
        }
        for _ in 0..3 {
            // If the node ends the client's connection, the client connects again.
            again(Box::new(|| drop(takes_nothing(attack))));
            again(Box::new(|| stalls_bodies(attack)));
        }
        for _ in 0..2 {
            again(Box::new(|| drop(never_ends_a_message(attack))));
            again(Box::new(|| asks_for_many_fields(attack)));
        }
        let until = Instant::now() + ATTACK;
        let mut connection = Connection::open(attack.http);
        let mut calls = 0;
        let mut failed = Vec::new();
        let mut growth = Vec::new();
        while Instant::now() < until {
            match connection.try_call("POST", "/honest", &[], b"here") {
                Ok(answer) if (answer.status, answer.text()) == (200, "here".into()) => calls += 1,
                Ok(answer) => failed.push(format!("{} {}", answer.status, answer.text())),
                Err(error) => {
                    failed.push(error.to_string());
                    connection = Connection::open(attack.http);
                }
            }
            let seconds = (ATTACK - until.saturating_duration_since(Instant::now())).as_secs();
            if growth.len() as u64 <= seconds {
                growth.push(status_bytes(&node, "VmRSS").saturating_sub(before) >> 20);
            }
        }
        attack.over.store(true, Ordering::SeqCst);
        assert!(failed.is_empty(), "{} failed: {:?}", failed.len(), failed.first());
        (calls, growth)
    });
    let grown = status_bytes(&node, "VmHWM").saturating_sub(before);
    let did = attack.did.each_ref().map(|count| count.load(Ordering::SeqCst));
    println!(
        "{calls} honest calls, all served; the node had {} MiB and grew by {} MiB at the most; by \
         seconds, in MiB: {growth:?}; streams without a window, messages without an end, stalled \
         bodies, answers with many fields: {did:?}",
        before >> 20,
        grown >> 20,
    );
    assert!(!node.log().contains("panicked"), "{}", node.log());
    assert!(calls > 0 && did.iter().all(|count| *count > 0), "{calls} {did:?}");
    assert!(grown <= GROWTH_BYTES_MAX, "the node grew by {} MiB", grown >> 20);
}
