//! Cells: nodes that forward invocations to each other when they have no room.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mote_tests::network::Far;
use mote_tests::{
    Answer, Connection, Node, free_address, is_root, mote_binary, signal, skip, wait_for,
};
use serde_json::{Value, json};

/// Answers with the name of the cell that runs it. Sleeps for `s` seconds; if `on` names a cell,
/// only on that cell.
const WHO: &str = r#"
import os, time

def handle(event, ctx):
    if event.args.get("on", os.environ["WHO"]) == os.environ["WHO"]:
        time.sleep(float(event.args.get("s", "0")))
    return event.body if event.path == "/echo" else os.environ["WHO"]
"#;
/// At most one instance, which runs one invocation at a time.
const ALONE: &str = "version = 1\n[scale]\nmax = 1\n[env]\nWHO = { secret = \"who\" }\n";
/// The time within which a lost cell must be noticed, plus some time for the answer.
const NOTICED: Duration = Duration::from_millis(2_000);

struct Cell {
    node: Node,
    name: &'static str,
    address: SocketAddr,
}

/// The key that most tests use.
const KEY: &str = "0123456789abcdef0123456789abcdef";

impl Cell {
    fn start(name: &'static str) -> Self {
        Self::start_with(name, KEY, &[])
    }

    fn start_with(name: &'static str, key: &str, flags: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("mote-cell").tempdir().expect("temp folder");
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), mode).expect("mode");
        let path = dir.path().join("cell.key");
        std::fs::write(&path, key).expect("the key");
        let address = free_address();
        let at = address.to_string();
        let mut all = vec!["--cell", &at, "--cell-key", path.to_str().expect("UTF-8")];
        all.extend_from_slice(flags);
        let node = Node::start_in(dir, &all);
        let set = node.mote_with_input(&["secret", "set", "who"], name.as_bytes());
        assert!(set.status.success(), "{set:?}");
        Self { node, name, address }
    }

    /// Starts cells that all know each other.
    fn start_all<const N: usize>(names: [&'static str; N]) -> [Self; N] {
        let cells = names.map(Self::start);
        for cell in &cells {
            let others: Vec<_> = cells.iter().filter(|other| other.name != cell.name).collect();
            cell.knows(&others);
        }
        cells
    }

    fn deploy(&self, manifest: &str, code: &str) {
        self.node.deploy_ok("f", &[("mote.toml", manifest), ("app.py", code)]);
    }

    /// Gives this cell the list of the others, and waits until it is connected to them.
    fn knows(&self, others: &[&Cell]) {
        let list: Vec<_> = others.iter().map(|cell| (cell.name, cell.address)).collect();
        self.knows_at(&list);
        wait_for("the connections", || {
            let cells = self.list();
            let all = cells["cells"].as_array().expect("an array").iter();
            (all.clone().count() == others.len()
                && all.clone().all(|cell| cell["state"] == "connected"))
            .then_some(())
        });
    }

    fn knows_at(&self, others: &[(&str, SocketAddr)]) {
        let cell = |(name, address): &(&str, SocketAddr)| json!({"name": name, "address": address});
        let cells: Vec<_> = others.iter().map(cell).collect();
        let list = json!({"name": self.name, "cells": cells}).to_string();
        let (status, text) = self.manage("PUT", "/v1/cells", &list);
        assert_eq!(status, 200, "{text}");
    }

    /// Sends a request to the cell's management API. Returns status and body.
    fn manage(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        manage(&self.node.dir.path().join("s"), method, path, body)
    }

    fn list(&self) -> Value {
        serde_json::from_str(&self.manage("GET", "/v1/cells", "").1).expect("JSON")
    }

    /// Returns the state of another cell, as this cell sees it.
    fn sees(&self, name: &str) -> Value {
        let list = self.list();
        let cells = list["cells"].as_array().expect("an array").clone();
        cells.into_iter().find(|cell| cell["name"] == name).expect("it is in the list")
    }

    fn metric(&self, name: &str) -> u64 {
        let (_, text) = self.manage("GET", "/metrics", "");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not in {text}")).parse().expect("a number")
    }

    fn running(&self) -> u64 {
        let (_, text) = self.manage("GET", "/v1/functions/f", "");
        let described: Value = serde_json::from_str(&text).expect("JSON");
        described["requests"]["running"].as_u64().expect("a number")
    }

    /// Keeps an instance of this cell busy. The instance is busy when this returns.
    fn occupy(&self, seconds: f64) -> JoinHandle<Answer> {
        let http = self.node.http;
        let path = format!("/f?s={seconds}&on={}", self.name);
        let before = self.running();
        let call = std::thread::spawn(move || Connection::open(http).call("GET", &path, &[], b""));
        wait_for("the call to run", || (self.running() > before).then_some(()));
        call
    }

    fn get(&self, path: &str) -> Answer {
        self.node.get(path)
    }

    fn who(&self) -> String {
        let answer = self.get("/f");
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.text()
    }
}

fn manage(socket: &Path, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut socket = UnixStream::connect(socket).expect("the node's socket");
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    socket.write_all(request.as_bytes()).expect("the node reads");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("the node answers");
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    let (_, body) = text.split_once("\r\n\r\n").expect("an answer");
    (status.expect("a status"), body.to_owned())
}

#[test]
fn an_invocation_leaves_only_if_its_cell_has_no_room() {
    let [a, b, c] = Cell::start_all(["a", "b", "c"]);
    for cell in [&a, &b, &c] {
        cell.deploy(ALONE, WHO);
        assert_eq!(cell.who(), cell.name);
    }
    for _ in 0..50 {
        assert_eq!(a.who(), "a", "there is room here");
    }
    assert_eq!(a.metric("mote_spilled_out_total"), 0);
    let busy = [a.occupy(4.0), b.occupy(4.0)];
    let begun = Instant::now();
    for _ in 0..20 {
        assert_eq!(a.who(), "c", "the only one with room");
    }
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert!(a.metric("mote_spilled_out_total") >= 20);
    assert!(c.metric("mote_spilled_in_total") >= 20);
    for call in busy {
        assert_eq!(call.join().expect("an answer").status, 200);
    }
    assert_eq!(a.who(), "a", "its own instance is free again");
    let answer = a.get("/f");
    assert!(answer.header("server-timing").is_some_and(|timing| timing.contains("invoke")));
}

#[test]
fn an_invocation_that_waits_leaves_when_another_cell_has_room() {
    let [a, b] = Cell::start_all(["a", "b"]);
    for cell in [&a, &b] {
        cell.deploy(ALONE, WHO);
    }
    let busy = a.occupy(5.0);
    let other = b.occupy(1.0);
    let begun = Instant::now();
    assert_eq!(a.who(), "b", "it waited for the other one's instance");
    let waited = begun.elapsed();
    assert!(waited > Duration::from_millis(300) && waited < Duration::from_secs(3), "{waited:?}");
    other.join().expect("an answer");
    busy.join().expect("an answer");
}

#[test]
fn a_cell_that_may_start_nothing_forwards_everything() {
    let [a, b] = Cell::start_all(["a", "b"]);
    for cell in [&a, &b] {
        cell.deploy(ALONE, WHO);
    }
    a.node.ok(&["scale", "f", "--min", "0", "--max", "0"]);
    a.node.ok(&["scale", "f", "0"]);
    for _ in 0..20 {
        assert_eq!(a.who(), "b");
    }
    a.node.ok(&["scale", "f", "--reset"]);
    // While this cell's own instance is starting, the other cell answers.
    wait_for("its own instance", || (a.who() == "a").then_some(()));
    // A node that knows no cells must be able to start an instance.
    let alone = Node::start();
    alone.deploy_ok("f", &[("app.py", "def handle(request):\n    return ''\n")]);
    let refused = alone.mote(&["scale", "f", "--max", "0"]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && error.contains("max: 1 to"), "{error}");
}

#[test]
fn an_invocation_leaves_at_most_once() {
    let [a, b, c] = ["a", "b", "c"].map(Cell::start);
    a.knows(&[&b]);
    b.knows(&[&c]);
    for cell in [&a, &b, &c] {
        cell.deploy(ALONE, WHO);
        assert_eq!(cell.who(), cell.name);
    }
    let busy = a.occupy(1.5);
    let other = b.occupy(3.0);
    assert_eq!(b.who(), "c", "b forwards what its own callers send");
    let out = b.metric("mote_spilled_out_total");
    // Fills the queue of `a`. None of these calls may reach `c`, even though `c` has room all the
    // time.
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let http = a.node.http;
            std::thread::spawn(move || Connection::open(http).call("GET", "/f", &[], b"").text())
        })
        .collect();
    for call in calls {
        let who = call.join().expect("an answer");
        assert!(who == "a" || who == "b", "{who}");
    }
    assert_eq!(b.metric("mote_spilled_out_total"), out);
    busy.join().expect("an answer");
    other.join().expect("an answer");
}

#[test]
fn the_deadline_holds_at_the_other_cell() {
    let [a, b] = Cell::start_all(["a", "b"]);
    let manifest = format!("{ALONE}[limits]\ntimeout = \"1500ms\"\n");
    for cell in [&a, &b] {
        cell.deploy(&manifest, WHO);
        assert_eq!(cell.who(), cell.name);
    }
    let busy = a.occupy(1.4);
    let begun = Instant::now();
    let answer = a.get("/f?s=30&on=b");
    let took = begun.elapsed();
    assert_eq!(answer.status, 504);
    assert!(answer.text().contains("1500 ms passed while the function ran"), "{}", answer.text());
    assert!(took > Duration::from_millis(1_400) && took < Duration::from_millis(1_900), "{took:?}");
    busy.join().expect("an answer");
}

#[test]
fn ten_instances_start_across_two_cells() {
    let [a, b] = Cell::start_all(["a", "b"]);
    let manifest = format!("{}[limits]\ntimeout = \"60s\"\n", ALONE.replace("max = 1", "max = 5"));
    for cell in [&a, &b] {
        cell.deploy(&manifest, WHO);
    }
    for _ in 0..10 {
        let http = a.node.http;
        // The end of the nodes ends the calls.
        std::thread::spawn(move || Connection::open(http).try_call("GET", "/f?s=60", &[], b""));
    }
    // At most five instances run in a cell, so the other instances start in the second cell.
    for cell in [&a, &b] {
        wait_for("five calls to run", || (cell.running() == 5).then_some(()));
    }
}

#[test]
fn whole_and_streamed_bodies_arrive_in_both_directions() {
    let [a, b] = Cell::start_all(["a", "b"]);
    for cell in [&a, &b] {
        cell.deploy(ALONE, WHO);
        assert_eq!(cell.who(), cell.name);
    }
    let busy = a.occupy(6.0);
    for length in [0, 1, 65_536, 65_537, 3_000_000] {
        let body: Vec<u8> = (0..length).map(|at: u32| (at * 7 + at / 251) as u8).collect();
        let answer = a.node.post("/f/echo", &body);
        assert_eq!(answer.status, 200, "{length}: {}", answer.text());
        assert!(answer.body == body, "{length}: {} bytes came back", answer.body.len());
    }
    assert_eq!(b.metric("mote_spilled_in_total"), 5);
    busy.join().expect("an answer");
}

/// Answers each piece of its body as it arrives.
const PIECES: &str = r#"
import os
stream_request = True

async def handle(event, ctx):
    async def pieces():
        yield os.environ["WHO"].encode() + b"|"
        async for piece in event.astream():
            yield piece
    return pieces()
"#;

#[test]
fn bodies_stream_in_both_directions_at_once_and_end_with_their_caller() {
    let [a, b] = Cell::start_all(["a", "b"]);
    let manifest = format!("{ALONE}[limits]\nconcurrency = 1\n");
    for cell in [&a, &b] {
        cell.deploy(&manifest, PIECES);
    }
    let mut open = Vec::new();
    for who in ["a", "b"] {
        let mut stream = TcpStream::connect(a.node.http).expect("the front listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        stream
            .write_all(b"POST /f HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
            .expect("the node reads");
        read_until(&mut stream, &format!("{who}|"));
        open.push(stream);
    }
    let stream = &mut open[1];
    for round in 0..5 {
        let piece = format!("piece {round};");
        let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
        stream.write_all(chunk.as_bytes()).expect("the node reads");
        read_until(stream, &piece);
    }
    assert_eq!((a.running(), b.running()), (1, 1));
    assert_eq!(a.sees("b")["in_flight"], 1);
    drop(open);
    wait_for("both invocations to end", || {
        (a.running() + b.running() == 0 && a.sees("b")["in_flight"] == 0).then_some(())
    });
}

fn read_until(stream: &mut TcpStream, wanted: &str) {
    let mut text = Vec::new();
    let mut buffer = [0; 4_096];
    while !String::from_utf8_lossy(&text).contains(wanted) {
        let read = stream.read(&mut buffer).expect("an answer");
        assert!(read > 0, "{}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&buffer[..read]);
    }
}

#[test]
fn a_caller_that_leaves_ends_its_invocation_at_the_other_cell() {
    let [a, b] = Cell::start_all(["a", "b"]);
    for cell in [&a, &b] {
        cell.deploy(ALONE, WHO);
        assert_eq!(cell.who(), cell.name);
    }
    let busy = a.occupy(3.0);
    let mut caller = TcpStream::connect(a.node.http).expect("the front listens");
    caller
        .write_all(b"GET /f?s=40&on=b HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .expect("the node reads");
    wait_for("the call to run at b", || (b.running() == 1).then_some(()));
    assert_eq!(a.sees("b")["in_flight"], 1);
    drop(caller);
    let begun = Instant::now();
    wait_for("the call to end at b", || (b.running() == 0).then_some(()));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(a.sees("b")["in_flight"], 0);
    busy.join().expect("an answer");
}

/// The address of a node for callers. `None` while it accepts no calls.
type Door = Arc<Mutex<Option<SocketAddr>>>;

fn door(address: SocketAddr) -> Door {
    Arc::new(Mutex::new(Some(address)))
}

/// Callers that send one request after the other until they are stopped. Each request goes to the
/// first node that accepts calls.
struct Callers {
    stop: Arc<AtomicBool>,
    good: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Callers {
    fn start(count: usize, doors: Vec<Door>, method: &'static str, path: &str) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let good = Arc::<AtomicU64>::default();
        let threads = (0..count).map(|_| {
            let stop = stop.clone();
            let good = good.clone();
            let doors = doors.clone();
            let path = path.to_owned();
            std::thread::spawn(move || {
                let mut bad = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let open = doors.iter().find_map(|door| {
                        // The request is sent while the door is locked, so that the door cannot
                        // close before.
                        let door = door.lock().expect("a door");
                        let mut open = Connection::open((*door)?);
                        let fields = [("connection", "close")];
                        open.send(method, &path, &fields, b"").map(|()| open).ok()
                    });
                    match open.expect("an open door").read_answer(false) {
                        Ok(answer) if answer.status == 200 => {
                            good.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(answer) => bad.push(format!("{} {}", answer.status, answer.text())),
                        Err(error) => bad.push(error.to_string()),
                    }
                }
                bad
            })
        });
        let threads = threads.collect();
        Self { stop, good, threads }
    }

    fn good(&self) -> u64 {
        self.good.load(Ordering::Relaxed)
    }

    /// Waits until this many more calls have succeeded.
    fn more(&self, count: u64) {
        let target = self.good() + count;
        wait_for("more answers", || (self.good() >= target).then_some(()));
    }

    /// Stops the callers and returns their errors.
    fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().flat_map(|thread| thread.join().expect("a caller")).collect()
    }
}

#[test]
fn a_cell_that_is_killed_loses_no_invocation_that_may_be_repeated() {
    let [a, mut b] = Cell::start_all(["a", "b"]);
    for cell in [&a, &b] {
        cell.deploy(ALONE, WHO);
    }
    let callers = Callers::start(6, vec![door(a.node.http)], "GET", "/f?s=0.02");
    for _ in 0..3 {
        let before = a.metric("mote_spilled_out_total");
        wait_for("forwarded calls", || {
            (a.metric("mote_spilled_out_total") >= before + 20).then_some(())
        });
        let Cell { node, name, address } = b;
        let node = node.crash_and_restart();
        b = Cell { node, name, address };
        wait_for("the connection", || (a.sees("b")["state"] == "connected").then_some(()));
    }
    callers.more(20);
    assert_eq!(callers.end(), Vec::<String>::new());
    assert_eq!(a.metric("mote_spilled_failed_total"), 0);
    assert!(a.metric("mote_spilled_repeated_total") > 0, "a call was at b each time");
}

#[test]
fn an_invocation_that_may_not_be_repeated_fails_like_that_of_a_dead_worker() {
    let [a, b] = Cell::start_all(["a", "b"]);
    for cell in [&a, &b] {
        cell.deploy(ALONE, WHO);
        assert_eq!(cell.who(), cell.name);
    }
    let busy = a.occupy(3.0);
    let http = a.node.http;
    let call = std::thread::spawn(move || {
        let answer = Connection::open(http).call("POST", "/f?s=40&on=b", &[], b"x");
        (answer, Instant::now())
    });
    wait_for("the call to run at b", || (b.running() == 1).then_some(()));
    let killed = Instant::now();
    signal(b.node.pid(), "KILL");
    let (answer, at) = call.join().expect("an answer");
    assert_eq!(answer.status, 502);
    assert!(answer.text().contains("worker was killed by signal 9"), "{}", answer.text());
    assert!(at - killed < NOTICED, "{:?}", at - killed);
    assert_eq!(a.metric("mote_spilled_failed_total"), 1);
    busy.join().expect("an answer");
}

/// Forwards connections to an address until it is frozen. A frozen wire forwards no bytes and
/// closes no connection, like a network that drops everything.
struct Wire {
    address: SocketAddr,
    frozen: Arc<AtomicBool>,
}

impl Wire {
    fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let frozen = Arc::<AtomicBool>::default();
        let is_frozen = frozen.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(target) else { continue };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let from = from.try_clone().expect("a descriptor");
                    let to = to.try_clone().expect("a descriptor");
                    let is_frozen = is_frozen.clone();
                    std::thread::spawn(move || carry(from, to, &is_frozen));
                }
            }
        });
        Self { address, frozen }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, is_frozen: &AtomicBool) {
    let mut buffer = [0; 16 << 10];
    loop {
        let read = from.read(&mut buffer).unwrap_or(0);
        while is_frozen.load(Ordering::Relaxed) {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        if read == 0 || to.write_all(&buffer[..read]).is_err() {
            let _ = to.shutdown(std::net::Shutdown::Both);
            return;
        }
    }
}

#[test]
fn a_cell_that_falls_silent_is_noticed_within_two_seconds() {
    let [a, b] = ["a", "b"].map(Cell::start);
    for cell in [&a, &b] {
        cell.deploy(ALONE, WHO);
        assert_eq!(cell.who(), cell.name);
    }
    let wire = Wire::to(b.address);
    a.knows_at(&[("b", wire.address)]);
    wait_for("the connection", || (a.sees("b")["state"] == "connected").then_some(()));
    let busy = a.occupy(1.0);
    let http = a.node.http;
    let call = |method| {
        std::thread::spawn(move || {
            let answer = Connection::open(http).call(method, "/f?s=40&on=b", &[], b"");
            (answer, Instant::now())
        })
    };
    let get = call("GET");
    wait_for("the call to run at b", || (b.running() == 1).then_some(()));
    busy.join().expect("an answer");
    let frozen = Instant::now();
    wire.frozen.store(true, Ordering::Relaxed);
    let (answer, at) = get.join().expect("an answer");
    assert_eq!((answer.status, answer.text().as_str()), (200, "a"), "it was repeated here");
    assert!(at - frozen < NOTICED, "{:?}", at - frozen);
    let cell = a.sees("b");
    assert_eq!(cell["state"], "unreachable");
    assert!(cell["last_error"].as_str().is_some_and(|text| text.contains("silent")), "{cell}");
    // In the meantime, no invocation is sent to that cell.
    let busy = a.occupy(0.5);
    assert_eq!(a.who(), "a");
    busy.join().expect("an answer");
    wire.frozen.store(false, Ordering::Relaxed);
    wait_for("the connection", || (a.sees("b")["state"] == "connected").then_some(()));
    let busy = a.occupy(2.0);
    assert_eq!(a.who(), "b");
    busy.join().expect("an answer");
}

/// A node in another network, which a virtual cable connects to this one.
struct Away {
    child: Child,
    dir: tempfile::TempDir,
    far: Far,
}

impl Away {
    fn start() -> Option<Self> {
        let far = Far::new()?;
        let dir = tempfile::Builder::new().prefix("mote-away").tempdir().expect("temp folder");
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), mode).expect("mode");
        std::fs::write(dir.path().join("cell.key"), KEY).expect("the key");
        let file = |name: &str| std::fs::File::create(dir.path().join(name)).expect("a file");
        let child = Command::new("ip")
            .args(["netns", "exec", far.name()])
            .arg(mote_binary())
            .args(["up", "--http", "off", "--coap", "off"])
            .args(["--cell", &format!("{}:8095", far.far)])
            .args(["--cell-key".as_ref(), dir.path().join("cell.key").as_os_str()])
            .args(["--data".as_ref(), dir.path().join("data").as_os_str()])
            .args(["--socket".as_ref(), dir.path().join("s").as_os_str()])
            .stdin(Stdio::null())
            .stdout(file("out"))
            .stderr(file("err"))
            .spawn()
            .expect("ip starts");
        let away = Self { child, dir, far };
        wait_for("the node to be ready", || {
            let text = std::fs::read_to_string(away.dir.path().join("out")).unwrap_or_default();
            text.contains("  reach ").then_some(())
        });
        Some(away)
    }

    fn mote(&self, args: &[&str], input: &[u8]) {
        let mut child = Command::new(mote_binary())
            .args(args)
            .env("MOTE_SOCKET", self.dir.path().join("s"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let _ = child.stdin.take().expect("piped").write_all(input);
        assert!(child.wait().expect("our child").success(), "{args:?}");
    }

    fn running(&self) -> u64 {
        let (_, text) = manage(&self.dir.path().join("s"), "GET", "/v1/functions/f", "");
        let described: Value = serde_json::from_str(&text).expect("JSON");
        described["requests"]["running"].as_u64().unwrap_or(0)
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        signal(self.child.id(), "TERM");
        let _ = self.child.wait();
    }
}

#[test]
fn a_cable_that_is_pulled_is_noticed_within_two_seconds() {
    if !is_root() {
        return skip("a cell behind a cable", "needs root");
    }
    let Some(away) = Away::start() else {
        return skip("a cell behind a cable", "cannot make a network namespace");
    };
    let a = Cell::start("a");
    a.deploy(ALONE, WHO);
    away.mote(&["secret", "set", "who"], b"b");
    let folder = a.node.dir.path().join("src/f");
    away.mote(&["deploy", folder.to_str().expect("UTF-8"), "--name", "f"], b"");
    a.knows_at(&[("b", (away.far.far, 8095).into())]);
    wait_for("the connection", || (a.sees("b")["state"] == "connected").then_some(()));
    let busy = a.occupy(1.0);
    let http = a.node.http;
    let call = std::thread::spawn(move || {
        let answer = Connection::open(http).call("GET", "/f?s=40&on=b", &[], b"");
        (answer, Instant::now())
    });
    wait_for("the call to run at b", || (away.running() == 1).then_some(()));
    busy.join().expect("an answer");
    let pulled = Instant::now();
    assert!(away.far.plug(false));
    let (answer, at) = call.join().expect("an answer");
    assert_eq!((answer.status, answer.text().as_str()), (200, "a"), "it was repeated here");
    assert!(at - pulled < NOTICED, "{:?}", at - pulled);
    assert!(away.far.plug(true));
    wait_for("the connection", || (a.sees("b")["state"] == "connected").then_some(()));
    // The other side has noticed the loss too, and has ended the call.
    wait_for("the call to end at b", || (away.running() == 0).then_some(()));
}

#[test]
fn cells_that_are_restarted_one_after_the_other_lose_no_invocation() {
    let mut cells = Cell::start_all(["a", "b"]).map(Some);
    let doors = cells.each_ref().map(|cell| door(cell.as_ref().expect("a cell").node.http));
    for cell in cells.iter().flatten() {
        cell.deploy(ALONE, WHO);
    }
    let callers = Callers::start(6, doors.to_vec(), "POST", "/f?s=0.02");
    let forwarded =
        |cell: &Option<Cell>| cell.as_ref().map_or(0, |cell| cell.metric("mote_spilled_out_total"));
    wait_for("forwarded calls", || (cells.iter().map(forwarded).sum::<u64>() > 20).then_some(()));
    let mut logs = String::new();
    for at in [1, 0, 1, 0] {
        callers.more(30);
        // A balancer sends nothing more to a stopping cell. The cell finishes the calls that it
        // has.
        *doors[at].lock().expect("a door") = None;
        let Cell { node, name, address } = cells[at].take().expect("a cell");
        logs += &node.log();
        let node = node.stop_and_restart();
        let http = node.http;
        cells[at] = Some(Cell { node, name, address });
        let [Some(a), Some(b)] = &cells else { unreachable!() };
        a.knows(&[b]);
        b.knows(&[a]);
        *doors[at].lock().expect("a door") = Some(http);
    }
    callers.more(30);
    let lost = callers.end();
    cells.iter().flatten().for_each(|cell| logs += &cell.node.log());
    // A cell that is silent for 2 s counts as lost, and so do its invocations.
    if logs.contains("was silent for") {
        return skip("invocations of restarted cells", "a cell of this slow machine fell silent");
    }
    assert_eq!(lost, Vec::<String>::new());
}

#[test]
fn a_cell_that_stops_finishes_what_it_has_and_gets_nothing_more() {
    let [a, b] = Cell::start_all(["a", "b"]);
    for cell in [&a, &b] {
        cell.deploy(ALONE, WHO);
        assert_eq!(cell.who(), cell.name);
    }
    b.node.ok(&["scale", "f", "--max", "2"]);
    let busy = a.occupy(5.0);
    let http = a.node.http;
    let call =
        std::thread::spawn(move || Connection::open(http).call("POST", "/f?s=2&on=b", &[], b""));
    wait_for("the call to run at b", || (b.running() == 1).then_some(()));
    signal(b.node.pid(), "TERM");
    wait_for("b to say so", || (a.sees("b")["state"] == "draining").then_some(()));
    let begun = Instant::now();
    let waits = std::thread::spawn(move || Connection::open(http).call("GET", "/f", &[], b""));
    let answer = call.join().expect("an answer");
    assert_eq!((answer.status, answer.text().as_str()), (200, "b"));
    let answer = waits.join().expect("an answer");
    assert_eq!((answer.status, answer.text().as_str()), (200, "a"));
    assert!(begun.elapsed() > Duration::from_secs(2), "b had room and was not asked");
    busy.join().expect("an answer");
}

#[test]
fn cells_with_different_keys_do_not_forward() {
    let a = Cell::start("a");
    let b = Cell::start_with("b", "ffffffffffffffffffffffffffffffff", &[]);
    for cell in [&a, &b] {
        cell.deploy(ALONE, WHO);
        assert_eq!(cell.who(), cell.name);
    }
    a.knows_at(&[("b", b.address)]);
    wait_for("the reason", || {
        let cell = a.sees("b");
        let text = cell["last_error"].as_str().unwrap_or_default();
        (cell["state"] == "unreachable" && text.contains("another cell_key")).then_some(())
    });
    let busy = a.occupy(1.0);
    assert_eq!(a.who(), "a", "it waited");
    busy.join().expect("an answer");
    assert_eq!(b.metric("mote_spilled_in_total"), 0);
    assert!(a.node.log().contains("another cell_key"), "{}", a.node.log());
    assert!(b.node.log().contains("refused a connection"), "{}", b.node.log());
    let said = a.node.doctor(&[]);
    assert!(said.contains("b at ") && said.contains("another cell_key"), "{said}");
    let said = b.node.doctor(&[]);
    assert!(said.contains("the last connection that was refused came from 127.0.0.1"), "{said}");
}

#[test]
fn strangers_at_the_port_do_no_harm() {
    let [a, b] = Cell::start_all(["a", "b"]);
    for cell in [&a, &b] {
        cell.deploy(ALONE, WHO);
        assert_eq!(cell.who(), cell.name);
    }
    let garbage: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        &[0xff; 100_000],
        &[0x16, 3, 1, 0xff, 0xff],
        b"",
    ];
    let mut open = Vec::new();
    for round in 0..60 {
        let mut stranger = TcpStream::connect(b.address).expect("the port");
        let _ = stranger.write_all(garbage[round % garbage.len()]);
        open.push(stranger);
    }
    // Connections that send nothing are closed, and a real cell is served meanwhile.
    let busy = a.occupy(2.0);
    assert_eq!(a.who(), "b");
    busy.join().expect("an answer");
    for mut stranger in open {
        stranger.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    assert_eq!(b.metric("mote_cells_inbound"), 1);
}

#[test]
fn another_revision_never_answers() {
    let [a, b] = Cell::start_all(["a", "b"]);
    for cell in [&a, &b] {
        cell.deploy(ALONE, WHO);
        assert_eq!(cell.who(), cell.name);
    }
    let newer = WHO.replace("else os.environ[\"WHO\"]", "else \"new \" + os.environ[\"WHO\"]");
    a.deploy(ALONE, &newer);
    let busy = a.occupy(1.0);
    assert_eq!(a.who(), "new a", "b has only the older one");
    busy.join().expect("an answer");
    assert_eq!(b.metric("mote_spilled_in_total"), 0);
    assert!(a.metric("mote_spilled_returned_total") >= 1, "b was asked");
    // The same revision number with other code is a different revision.
    b.deploy(ALONE, &WHO.replace("import os", "import  os"));
    let busy = a.occupy(1.5);
    assert_eq!(a.who(), "new a");
    busy.join().expect("an answer");
    let [c] = Cell::start_all(["c"]);
    c.deploy(ALONE, WHO);
    c.deploy(ALONE, &newer);
    a.knows(&[&b, &c]);
    let busy = a.occupy(3.0);
    assert_eq!(a.who(), "new c");
    busy.join().expect("an answer");
}

#[test]
fn the_list_of_cells_is_checked_and_replaced() {
    let [a, b] = ["a", "b"].map(Cell::start);
    let put = |list: Value| a.manage("PUT", "/v1/cells", &list.to_string());
    let address = b.address.to_string();
    for (list, wanted) in [
        (json!({"cells": [{"address": "somewhere"}]}), "ADDRESS:PORT"),
        (json!({"name": "a b", "cells": []}), "the name of a cell"),
        (json!({"cells": [{"address": address}, {"address": address}]}), "twice"),
        (json!({"cells": [], "more": 1}), "unknown field"),
    ] {
        let (status, text) = put(list);
        assert!(status == 422 && text.contains(wanted), "{status} {text}");
    }
    assert_eq!(a.list()["cells"], json!([]));
    a.knows(&[&b]);
    b.knows(&[]);
    // A cell with another name answers at the address.
    a.knows_at(&[("c", b.address)]);
    wait_for("the reason", || {
        let cell = a.sees("c");
        let text = cell["last_error"].as_str().unwrap_or_default().to_owned();
        text.contains("another cell, b, answers").then_some(())
    });
    a.knows_at(&[]);
    wait_for("the connection to end", || (b.metric("mote_cells_inbound") == 0).then_some(()));
    let node = Node::start();
    let (status, text) = manage(&node.dir.path().join("s"), "PUT", "/v1/cells", "{\"cells\": []}");
    assert!(status == 409 && text.contains("--cell-key"), "{status} {text}");
}

#[test]
fn a_node_with_full_memory_forwards_too() {
    let [a, b] = ["a", "b"].map(|name| Cell::start_with(name, KEY, &["--memory", "160MiB"]));
    a.knows(&[&b]);
    b.knows(&[&a]);
    let manifest = ALONE.replace("max = 1", "max = 9") + "[limits]\nmemory = \"128MiB\"\n";
    for cell in [&a, &b] {
        cell.deploy(&manifest, WHO);
    }
    let busy = a.occupy(3.0);
    let begun = Instant::now();
    assert_eq!(a.who(), "b", "a has no memory for a second instance");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    busy.join().expect("an answer");
}
