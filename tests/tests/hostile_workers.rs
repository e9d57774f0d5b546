//! Functions whose workers violate the protocol, on a node that also serves another function. The
//! calls of the other function must succeed, and the node must neither grow nor panic.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mote_tests::{Connection, Node, is_long};

/// A server on `$PORT`. Its answer depends on the path and usually never ends.
const SERVER: &str = r#"#!/usr/bin/env python3
import os, socket, threading

ENDLESS = {
    "/early": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2000),
    "/head": (b"HTTP/1.1 200 OK\r\n", b"x: yyyyyyyyyyyyyyyy\r\n" * 2000),
    "/zeros": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"0" * 65536),
    "/extension": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;", b"x" * 65536),
    "/trailers": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", b"a: b\r\n" * 9000),
}

def serve(connection):
    try:
        while request := connection.recv(65536):
            path = request.split(b" ")[1].decode()
            if path not in ENDLESS:
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                continue
            first, rest = ENDLESS[path]
            connection.sendall(first)
            while True:
                connection.sendall(rest)
    except OSError:
        pass

listener = socket.create_server(("127.0.0.1", int(os.environ["PORT"])), backlog=64)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;
const MANIFEST: &str =
    "version = 1\nruntime = \"server\"\ncommand = [\"./serve.py\"]\n[limits]\ntimeout = \"20s\"\n";

#[test]
fn a_server_that_sends_on_and_on_fails_its_own_calls_only() {
    let node = Node::start();
    node.deploy_ok("hostile", &[("serve.py", SERVER), ("mote.toml", MANIFEST)]);
    node.deploy_ok("other", &[("app.py", "def handle(event, ctx):\n    return 'ok'\n")]);
    assert_eq!(node.get("/hostile/fine").text(), "ok");
    for path in ["early", "head"] {
        let answer = node.get(&format!("/hostile/{path}"));
        assert_eq!(answer.status, 502, "{path}: {answer:?}");
        assert_eq!(answer.json()["code"], "M0513", "{path}");
    }
    // The heads of these answers are valid, so the caller sees an answer that breaks off.
    for path in ["zeros", "extension", "trailers"] {
        let mut connection = Connection::open(node.http);
        let answer = connection.try_call("GET", &format!("/hostile/{path}"), &[], b"");
        let ended = answer.expect_err(path).kind();
        // The answer must break off. A timeout in the test itself would be the wrong error.
        let cut_off = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
        assert!(cut_off.contains(&ended), "{path}: {ended}");
    }
    assert_eq!(node.get("/hostile/fine").text(), "ok");
    assert_eq!(node.get("/other").text(), "ok");
    assert!(!node.log().contains("panicked"), "{}", node.log());
}

/// A function that takes a seed and writes to its worker's socket what the seed determines: frames
/// of the protocol, which are usually changed, repeated, cut or in the wrong order.
const SCRIPTS: &str = r#"
import json, os, random, socket, struct, time

HELLO, LOAD, READY, INVOKE, BODY, RESULT, ERROR, CANCEL, CREDIT, LOG, DRAIN = range(1, 12)
BYTES_MAX = 64 << 20  # of one script

def payload(dice, kind):
    """A payload as the kind should have it."""
    if kind == BODY:
        return dice.randbytes(dice.choice([0, 1, 1, 100, 65536]))
    if kind == RESULT:
        headers = b"a\nb\n" * dice.choice([0, 1, 3, 600, 16384])
        body = b"x" * dice.choice([0, 1, 1000, 65536])
        times = [dice.choice([0, 1, time.monotonic_ns(), 2**64 - 1]) for _ in "ab"]
        status = dice.choice([200, 200, 404, 599, 199, 600, 0])
        return struct.pack("<QQHHI", *times, status, 0, len(headers)) + headers + body
    if kind == ERROR:
        text = dice.choice(["", "no", "x" * 5000, "\n" * 20000, "\x1b[31m", "\u202e"])
        fault = {"kind": dice.choice(["E", text]), "message": text, "trace": text}
        if not dice.randrange(4):
            fault["more"] = json.loads("[" * 100 + "]" * 100)
        return json.dumps(fault).encode()
    if kind == CREDIT:
        return struct.pack("<I", dice.choice([0, 1, 65536, 2**32 - 1]))
    if kind == LOG:
        return bytes([dice.randrange(5), dice.randrange(6)]) + b"line" * dice.choice([0, 1, 4000])
    if kind == READY:
        ready = {"init_ns": 2**64 - 1, "concurrency": 2**32 - 1, "shape": "s" * dice.choice([1, 5000])}
        return json.dumps(ready).encode()
    return dice.randbytes(dice.choice([0, 2, 40]))

def frame(dice, own, wild):
    """A frame of which each part is wrong with the probability `wild`."""
    def part(right, wrong):
        return wrong if dice.random() < wild else right

    kind = part(dice.choice([BODY, BODY, BODY, LOG, LOG, CREDIT]),
                dice.choice([RESULT, ERROR, READY, HELLO, INVOKE, dice.randrange(256)]))
    stream = part(own, dice.choice([0, own + 1, dice.randrange(2**32)]))
    flags = part(0, dice.choice([1, 1, dice.randrange(256)]))
    data = payload(dice, kind)
    data = part(data, dice.choice([data[: len(data) // 2], data + dice.randbytes(9), dice.randbytes(len(data))]))
    length = len(data)
    length = part(length, length if dice.randrange(4) else dice.choice([0, length + 1, 2**20, 2**32 - 1]))
    zero = part(0, dice.choice([0, 0, 0, 1]))
    return struct.pack("<IBBHI", length, kind, flags, zero, stream) + data

def play(seed, own):
    dice = random.Random(seed)
    worker = socket.socket(fileno=os.dup(3))
    wild = dice.choice([0, 0, 0.01, 0.1, 0.5])
    if wild < 0.5:  # an answer begins as it should
        worker.sendall(struct.pack("<IBBHI", 24, RESULT, 0, 0, own) + struct.pack("<QQHHI", 1, 2, 200, 0, 0))
    left = BYTES_MAX
    for _ in range(dice.randrange(1, 60)):
        step = dice.randrange(200)
        if step == 0 and not dice.randrange(8):
            return "hang"
        if step == 1:
            os._exit(dice.randrange(3))
        if step == 2:
            return "answer"
        if step == 3:
            left -= 65536
            worker.sendall(dice.randbytes(65536))
        elif step < 14:
            os.write(1, b"l\n" * dice.choice([10, 20000]))
        elif step < 20 and wild:
            worker.setblocking(False)
            try:
                worker.recv(dice.choice([1, 65536]))
            except BlockingIOError:
                pass
            worker.setblocking(True)
        elif step < 25:
            for byte in frame(dice, own, wild)[:64]:
                worker.sendall(bytes([byte]))
        else:
            piece = frame(dice, own, wild) * dice.choice([1, 1, 1, 2, 100, 20000])
            piece = piece[: min(left, 16 << 20)]
            left -= len(piece)
            worker.sendall(piece)
        if left <= 0:
            break
    return dice.choice(["answer", "end", "end", "close"] if seed % 10 == 0 else ["answer", "end"])

def handle(event, ctx):
    seed = event.text.split()[0]
    if seed == "fine":
        return "fine"
    try:
        last = play(int(seed), event._stream)
    except OSError:
        last = "end"
    if last == "hang":
        time.sleep(60)
    if last == "close":
        os.close(3)
        time.sleep(60)
    if last == "end":
        os._exit(0)
    return "answered"
"#;
/// Seeds that run first: five with callers that do not read, and two with callers that disconnect.
const KEPT: [u64; 7] = [1, 13, 25, 37, 49, 7, 35];
/// The most that the node's memory may grow while it serves them. A worker may make the node keep a
/// window for each stream and 2 MiB for the worker's own direction, 6 MiB in all, and its lines may
/// fill the 4 MiB in which lines wait for the disk. Pages that were used once stay with the
/// process. Code that runs for the first time is not counted, because it is in the program's file.
const GROWTH_BYTES_MAX: u64 = (6 + 4) << 20;

fn status_bytes(node: &Node, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("alive");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a field");
    line.trim_matches([':', ' ', '\t']).trim_end_matches(" kB").parse::<u64>().expect("a number")
        << 10
}

/// Makes one call with a seed. The seed chooses between a body that streams, a caller that
/// disconnects, and a caller that stays connected and reads nothing until the next such call.
fn provoke(http: SocketAddr, seed: u64, unread: &mut Option<TcpStream>) {
    let padding = if seed.is_multiple_of(5) { 300_000 } else { 0 };
    let body = format!("{seed} {}", "p".repeat(padding));
    if seed.is_multiple_of(7) || seed % 12 == 1 {
        let mut caller = TcpStream::connect(http).expect("the front listens");
        let head = format!(
            "POST /hostile HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let _ = caller.write_all((head + &body).as_bytes());
        let _ = caller.set_read_timeout(Some(Duration::from_millis(20)));
        let _ = std::io::Read::read(&mut caller, &mut [0; 16]);
        if seed % 12 == 1 {
            *unread = Some(caller);
        }
        return;
    }
    // Any answer is accepted, and so is a missing one.
    let _ = Connection::open(http).try_call("POST", "/hostile", &[], body.as_bytes());
}

#[test]
fn random_workers_hurt_themselves_only() {
    let count = if is_long() { 1_000 } else { 60 };
    let node = Node::start();
    let manifest = "version = 1\n[limits]\ntimeout = \"1s\"\n[scale]\nmax = 1\n";
    node.deploy_ok("hostile", &[("app.py", SCRIPTS), ("mote.toml", manifest)]);
    let other = "[scale]\nmin = 1\n";
    let code = "def handle(event, ctx):\n    return event.text\n";
    node.deploy_ok("other", &[("app.py", code), ("mote.toml", &format!("version = 1\n{other}"))]);
    assert_eq!(node.post("/hostile", b"fine").text(), "fine");
    for _ in 0..200 {
        assert_eq!(node.post("/other", b"warm").text(), "warm");
    }
    let before = status_bytes(&node, "RssAnon");
    let most = AtomicU64::new(before);
    let http = node.http;
    let over = AtomicBool::new(false);
    let current = AtomicU64::new(0);
    let mut fine = 0;
    let (calls, slowest) = std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| {
            let mut connection = Connection::open(http);
            let mut calls = 0;
            let mut slowest = (Duration::ZERO, 0);
            while !over.load(Ordering::SeqCst) {
                let since = Instant::now();
                let seed = current.load(Ordering::SeqCst);
                let answer = connection.try_call("POST", "/other", &[], b"here");
                let answer = answer.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                assert_eq!((answer.status, answer.text()), (200, "here".into()), "seed {seed}");
                slowest = slowest.max((since.elapsed(), seed));
                calls += 1;
                most.fetch_max(status_bytes(&node, "RssAnon"), Ordering::SeqCst);
            }
            (calls, slowest)
        });
        let mut unread = None;
        for (at, seed) in KEPT.into_iter().chain(0..count).enumerate() {
            if at % 3 == 2 {
                // In between, a caller with a correct request is served quickly.
                let answer = Connection::open(http).call("POST", "/hostile", &[], b"fine");
                fine += usize::from(answer.status == 200);
            }
            current.store(seed, Ordering::SeqCst);
            if neighbour.is_finished() {
                break;
            }
            provoke(http, seed, &mut unread);
        }
        over.store(true, Ordering::SeqCst);
        neighbour.join().expect("calls to the other function")
    });
    let grown = most.load(Ordering::SeqCst) - before;
    println!(
        "{count} hostile workers: {calls} calls of another function served, the slowest in {:?} \
         (seed {}), and {fine} good calls of theirs; the node grew by {} KiB",
        slowest.0,
        slowest.1,
        grown >> 10
    );
    assert!(!node.log().contains("panicked"), "{}", node.log());
    assert!(grown <= GROWTH_BYTES_MAX, "the node grew by {grown} bytes");
    assert!(calls > count, "{calls} calls");
    // The last worker may have reported the end of a call that it is still running.
    mote_tests::wait_for("the function to be itself again", || {
        (node.post("/hostile", b"fine").text() == "fine").then_some(())
    });
}
