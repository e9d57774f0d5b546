//! Server-sent events from functions of all kinds, read by a raw client and by a browser.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mote_tests::{Node, repository, skip, wait_for};

/// Name, file, and lines of the manifest.
const SHAPES: [(&str, &str, &str); 5] = [
    ("sync", "app.py", "[limits]\nconcurrency = 4\n"),
    ("loop", "app.py", "[limits]\n"),
    ("asgi", "app.py", "[limits]\n"),
    ("fetch", "index.mjs", "[limits]\n"),
    (
        "server",
        "serve.py",
        "runtime = \"server\"\ncommand = [\"python3\", \"-u\", \"serve.py\"]\n[limits]\n",
    ),
];

fn deploy(node: &Node, name: &str, limits: &str) {
    let (_, file, lines) = SHAPES.into_iter().find(|shape| shape.0 == name).expect("a shape");
    let ending = if file.ends_with("mjs") { "mjs" } else { "py" };
    let path = repository().join(format!("tests/fixtures/events/{name}.{ending}"));
    let code = std::fs::read_to_string(path).expect("a fixture");
    let manifest = format!("version = 1\n{lines}{limits}[scale]\nmin = 1\nmax = 1\n");
    node.deploy_ok(name, &[(file, &code), ("mote.toml", &manifest)]);
}

/// Asks for the events, and reads until the first one has arrived.
fn open(node: &Node, name: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(node.http).expect("the front listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
    let request = format!("GET /{name}/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut reader = BufReader::new(stream);
    let head = lines_until(&mut reader, "\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/event-stream"), "{head}");
    let event = lines_until(&mut reader, "data: one\n");
    assert!(event.len() < 40, "{name}: {event}");
    reader
}

fn lines_until(reader: &mut BufReader<TcpStream>, last: &str) -> String {
    let mut text = String::new();
    loop {
        let mut line = String::new();
        assert!(reader.read_line(&mut line).expect("a line") > 0, "ended after {text}");
        text.push_str(&line);
        if line == last {
            return text;
        }
    }
}

fn rest(mut reader: BufReader<TcpStream>) -> String {
    let mut rest = String::new();
    reader.read_to_string(&mut rest).expect("the end");
    rest
}

#[test]
fn an_event_leaves_at_once_and_the_deadline_is_for_the_first() {
    let node = Node::start();
    for (name, ..) in SHAPES {
        deploy(&node, name, "timeout = \"700ms\"\n");
        // The function waits after its first event, so the arrival shows that the event was not
        // held back.
        let began = Instant::now();
        let mut reader = open(&node, name);
        // Other calls show that the function still serves, until long after its deadline.
        while began.elapsed() < Duration::from_millis(1500) {
            assert_eq!(node.get(&format!("/{name}/state")).text(), "open", "{name}");
        }
        assert_eq!(node.get(&format!("/{name}/release")).status, 200, "{name}");
        lines_until(&mut reader, "data: two\n");
    }
}

#[test]
fn a_client_that_leaves_ends_the_function() {
    let node = Node::start();
    for (name, ..) in SHAPES {
        deploy(&node, name, "timeout = \"5s\"\n");
        drop(open(&node, name));
        wait_for(&format!("the end of {name}"), || {
            (node.get(&format!("/{name}/state")).text() == "ended").then_some(())
        });
    }
}

#[test]
fn an_error_after_the_head_is_in_the_log() {
    let node = Node::start();
    let code = "def handle(event, ctx):\n    def parts():\n        yield b'one'\n        \
        raise ValueError('gone in the middle')\n    return parts()\n";
    node.deploy_ok("breaks", &[("app.py", code)]);
    let mut stream = TcpStream::connect(node.http).expect("the front listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
    stream.write_all(b"GET /breaks HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.contains("one") && !answer.ends_with("0\r\n\r\n"), "{answer}");
    wait_for("the error in the log", || {
        let log = node.ok(&["logs", "breaks"]);
        let found = log.contains("its answer had begun") && log.contains("gone in the middle");
        found.then_some(())
    });
}

#[test]
fn silence_ends_a_stream_without_its_end_mark() {
    let node = Node::start();
    for (name, ..) in SHAPES {
        deploy(&node, name, "stream_idle = \"300ms\"\n");
        let rest = rest(open(&node, name));
        assert!(!rest.contains("two") && !rest.contains("0\r\n\r\n"), "{name}: {rest}");
        wait_for(&format!("the end of {name}"), || {
            (node.get(&format!("/{name}/state")).text() == "ended").then_some(())
        });
    }
}

#[test]
fn a_browser_connects_again_with_the_number_of_the_last_event() {
    if Command::new("chromium").arg("--version").output().is_err() {
        return skip("EventSource of a browser", "chromium is not installed");
    }
    let node = Node::start();
    deploy(&node, "fetch", "");
    let folder = tempfile::tempdir().expect("a folder");
    let mut browser = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .arg("--remote-debugging-port=0") // it stays until the test ends it
        .arg(format!("--user-data-dir={}", folder.path().display()))
        .arg(format!("http://{}/fetch/page", node.http))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("chromium starts");
    let seen = wait_for("both events", || {
        let seen = node.get("/fetch/seen").json();
        (seen.as_array().is_some_and(|all| all.len() >= 2)).then_some(seen)
    });
    browser.kill().expect("our child");
    browser.wait().expect("our child");
    assert_eq!(seen, serde_json::json!(["?7=first", "?8=again"]));
}
