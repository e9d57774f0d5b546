//! WebSockets in ASGI applications and in `fetch` functions, tested with clients of other
//! implementations, a framework, and clients that break the rules.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use mote_tests::{Node, repository, skip, wait_for};

/// The key in each request for a WebSocket. The value is the example of RFC 6455.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
/// A close frame with the code 1001, "going away".
const GOING_AWAY: [u8; 4] = [0x88, 0x02, 0x03, 0xe9];
const CLIENT: &str = "version = 1\n[allow]\nnet = [\"mote.internal:80\"]\n[limits]\ntimeout = \"5m\"\n\
                      memory = \"256MiB\"\ndisk = \"64MiB\"\n";

fn fixture(name: &str) -> String {
    let path = repository().join("tests/fixtures/websockets").join(name);
    std::fs::read_to_string(path).expect("a fixture")
}

fn deploy_asgi(node: &Node, rest: &str) {
    let manifest = format!("version = 1\n{rest}");
    node.deploy_ok("asgi", &[("app.py", &fixture("asgi.py")), ("mote.toml", &manifest)]);
}

fn connect(node: &Node, path: &str, fields: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(node.http).expect("the front listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n{fields}\r\n"
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.extend(read(&mut stream, 1));
    }
    (stream, String::from_utf8(head).expect("a head").to_ascii_lowercase())
}

fn open(node: &Node, path: &str) -> TcpStream {
    let (stream, head) = connect(node, path, "");
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    stream
}

fn read(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).expect("more bytes");
    bytes
}

/// Returns everything that arrives until the end of the connection.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => bytes,
        Err(error) => panic!("{error} after {bytes:?}"),
    }
}

/// Builds a client frame with a mask of zeros.
fn frame(first: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match content.len() {
        length @ 0..=125 => bytes.push(0x80 | length as u8),
        length => {
            bytes.push(0x80 | 126);
            bytes.extend(u16::try_from(length).expect("a short frame").to_be_bytes());
        }
    }
    bytes.extend([0; 4]);
    bytes.extend(content);
    bytes
}

fn running(node: &Node, name: &str) -> u64 {
    node.json(&["describe", name, "-o", "json"])["requests"]["running"].as_u64().expect("a number")
}

/// Waits until the function has recorded how the WebSocket of this path ended.
fn wait_for_end(node: &Node, name: &str, path: &str, expected: &str) {
    wait_for("the end", || (running(node, name) == 0).then_some(()));
    wait_for("what the function keeps", || {
        let found = node.mote(&["kv", "get", name, &format!("ended{path}")]);
        (found.stdout == expected.as_bytes()).then_some(())
    });
}

/// Runs clients of other implementations, and the cases of the Autobahn suite, against functions.
fn check_peers(node: &Node, functions: &[&str]) {
    let list = "websockets==16.0\nkosoku==0.1.0\n";
    let files =
        [("app.py", &*fixture("peer.py")), ("requirements.txt", list), ("mote.toml", CLIENT)];
    node.deploy_ok("pypeer", &files);
    for name in functions {
        let target = format!("?target=ws://mote.internal/{name}");
        assert_eq!(node.get(&format!("/pypeer/talk{target}")).text(), "closed with 1000", "{name}");
        let said = node.get(&format!("/pypeer/suite{target}")).text();
        let failed: Vec<&str> = said.lines().filter(|line| line.contains("behavior=")).collect();
        assert!(failed.is_empty() && said.contains("247 cases"), "{name}: {said}");
    }
}

#[test]
fn asgi_applications_pass_the_suite() {
    let node = Node::start();
    deploy_asgi(&node, "[limits]\nbody = \"16MiB\"\nmemory = \"256MiB\"\n");
    check_peers(&node, &["asgi"]);
}

#[test]
fn fetch_functions_pass_the_suite() {
    let node = Node::start();
    let manifest = "version = 1\n[limits]\nbody = \"16MiB\"\nmemory = \"256MiB\"\n";
    node.deploy_ok("fetch", &[("index.mjs", &fixture("fetch.mjs")), ("mote.toml", manifest)]);
    check_peers(&node, &["fetch"]);
}

#[test]
fn a_fetch_function_decides_about_the_handshake() {
    let node = Node::start();
    let deploy = |rest: &str| {
        let manifest = format!("version = 1\n{rest}");
        node.deploy_ok("fetch", &[("index.mjs", &fixture("fetch.mjs")), ("mote.toml", &manifest)]);
    };
    deploy("");
    let (mut stream, head) = connect(&node, "/fetch/echo", "Sec-WebSocket-Protocol: a, b\r\n");
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    assert!(head.contains("\r\nsec-websocket-protocol: b\r\n"), "{head}");
    stream.write_all(&frame(0x81, "grüße".as_bytes())).expect("sent");
    assert_eq!(read(&mut stream, 9), [&b"\x81\x07"[..], "grüße".as_bytes()].concat());
    stream.write_all(&frame(0x82, b"\x00\xff")).expect("sent");
    assert_eq!(read(&mut stream, 4), b"\x82\x02\x00\xff");
    stream.write_all(&frame(0x88, b"\x0f\xa0done")).expect("sent");
    assert_eq!(rest(&mut stream), b"\x88\x06\x0f\xa0done");
    let ended = |path: &str, expected: &str| wait_for_end(&node, "fetch", path, expected);
    ended("/echo", "4000 done");
    let (mut stream, head) = connect(&node, "/fetch/deny", "");
    assert!(head.starts_with("http/1.1 401 ") && head.contains("\r\nx-why: login\r\n"), "{head}");
    assert_eq!(rest(&mut stream), b"who are you");
    let (_, head) = connect(&node, "/fetch/throw", "");
    assert!(head.starts_with("http/1.1 500 "), "{head}");
    assert_eq!(rest(&mut open(&node, "/fetch/close")), b"\x88\x05\x0f\xa1bye");
    for path in ["/fetch/fail", "/fetch/reject"] {
        let mut stream = open(&node, path);
        stream.write_all(&frame(0x81, b"x")).expect("sent");
        assert_eq!(rest(&mut stream), b"\x88\x02\x03\xf3", "1011");
    }
    assert!(node.ok(&["logs", "fetch"]).contains("on purpose"));
    drop(open(&node, "/fetch/gone"));
    ended("/gone", "1006 ");
    assert_eq!(node.get("/fetch/echo").text(), "plain GET");
    let mut replaced = open(&node, "/fetch/replaced");
    deploy("[limits]\nstream_idle = \"4m\"\n");
    assert_eq!(rest(&mut replaced), GOING_AWAY, "a new revision");
    ended("/replaced", "1001 ");
    let handle = "export const handle = () => 'handle';\n";
    node.deploy_ok("handle", &[("index.mjs", handle), ("mote.toml", "version = 1\n")]);
    let node = node.stop_and_restart();
    let (mut stream, head) = connect(&node, "/handle", "");
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    assert_eq!(read(&mut stream, 6), b"handle");
}

#[test]
fn an_asgi_application_decides_about_the_handshake() {
    let node = Node::start();
    deploy_asgi(&node, "");
    let (mut stream, head) = connect(&node, "/asgi/echo", "Sec-WebSocket-Protocol: a, b\r\n");
    for line in [
        "http/1.1 101 ",
        "\r\nconnection: upgrade\r\n",
        "\r\nupgrade: websocket\r\n",
        "\r\nsec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n",
        "\r\nsec-websocket-protocol: b\r\n",
        "\r\nx-scheme: ws\r\n",
    ] {
        assert_eq!(head.matches(line).count(), 1, "{line} in {head}");
    }
    stream.write_all(&frame(0x81, "grüße".as_bytes())).expect("sent");
    assert_eq!(read(&mut stream, 9), [&b"\x81\x07"[..], "grüße".as_bytes()].concat());
    stream.write_all(&frame(0x88, b"\x0f\xa0done")).expect("sent");
    assert_eq!(rest(&mut stream), b"\x88\x06\x0f\xa0done", "its own close frame comes back");
    wait_for_end(&node, "asgi", "/echo", "4000 done");
    let (mut stream, head) = connect(&node, "/asgi/refuse", "");
    assert!(head.starts_with("http/1.1 403 ") && rest(&mut stream).is_empty(), "{head}");
    let (mut stream, head) = connect(&node, "/asgi/deny", "");
    assert!(head.starts_with("http/1.1 401 ") && head.contains("\r\nx-why: login\r\n"), "{head}");
    assert_eq!(rest(&mut stream), b"who are you");
    for path in ["/asgi/early", "/asgi/nothing"] {
        let (_, head) = connect(&node, path, "");
        assert!(head.starts_with("http/1.1 500 ") || head.starts_with("http/1.1 502 "), "{head}");
    }
    assert_eq!(rest(&mut open(&node, "/asgi/close")), b"\x88\x05\x0f\xa1bye");
    assert_eq!(rest(&mut open(&node, "/asgi/fail")), b"\x88\x02\x03\xf3", "1011");
    assert!(node.ok(&["logs", "asgi"]).contains("ValueError: after accepting"));
    assert_eq!(rest(&mut open(&node, "/asgi/return")), b"\x88\x02\x03\xe8", "1000");
    // A request that is not a handshake is handled as before.
    assert_eq!(node.get("/asgi/echo").text(), "plain GET");
    let fields = [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-key", "x")];
    assert_eq!(node.call("GET", "/asgi/echo", &fields, b"").text(), "plain GET");
    node.deploy_ok("handle", &[("app.py", "def handle(event, ctx):\n    return 'handle'\n")]);
    let (mut stream, head) = connect(&node, "/handle", "X: y\r\nConnection: close\r\n");
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    assert_eq!(read(&mut stream, 6), b"handle");
}

#[test]
fn a_plain_function_answers_a_handshake_before_its_shape_is_known() {
    let node = Node::start();
    let manifest = "version = 1\n[scale]\nidle = \"50ms\"\n";
    let files =
        [("app.py", "def handle(event, ctx):\n    return 'handle'\n"), ("mote.toml", manifest)];
    node.deploy_ok("handle", &files);
    let node = node.stop_and_restart();
    let (mut stream, head) = connect(&node, "/handle", "");
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    assert_eq!(read(&mut stream, 6), b"handle");
}

#[test]
fn clients_that_break_the_rules_are_closed() {
    let node = Node::start();
    deploy_asgi(&node, "[limits]\nbody = \"100KiB\"\n");
    let check = |bytes: &[u8], code: u16| {
        let mut stream = open(&node, "/asgi/echo");
        stream.write_all(bytes).expect("sent");
        let expected = [&[0x88, 2][..], &code.to_be_bytes()].concat();
        assert_eq!(rest(&mut stream), expected, "{code}");
        wait_for_end(&node, "asgi", "/echo", &format!("{code} "));
    };
    check(b"\x81\x02hi", 1002);
    check(&frame(0x81, b"\xff"), 1007);
    let fragments = [frame(0x02, &[0; 60_000]), frame(0x80, &[0; 60_000])].concat();
    check(&fragments, 1009);
    // This client leaves without a close frame.
    drop(open(&node, "/asgi/gone"));
    wait_for_end(&node, "asgi", "/gone", "1006 ");
    // A close frame without a code.
    let mut stream = open(&node, "/asgi/echo");
    stream.write_all(&frame(0x88, b"")).expect("sent");
    assert_eq!(rest(&mut stream), b"\x88\x00");
}

#[test]
fn the_node_ends_websockets_of_applications() {
    let node = Node::start();
    deploy_asgi(&node, "[limits]\nstream_idle = \"300ms\"\n");
    assert_eq!(rest(&mut open(&node, "/asgi/silent")), GOING_AWAY, "silence");
    wait_for_end(&node, "asgi", "/silent", "1001 ");
    deploy_asgi(&node, "[limits]\nstream_idle = \"5m\"\n");
    let mut replaced = open(&node, "/asgi/replaced");
    let mut deaf = open(&node, "/asgi/deaf");
    deploy_asgi(&node, "[limits]\nstream_idle = \"4m\"\n");
    assert_eq!(rest(&mut replaced), GOING_AWAY, "a new revision");
    wait_for("what the function keeps", || {
        let found = node.mote(&["kv", "get", "asgi", "ended/replaced"]);
        (found.stdout == b"1001 ").then_some(())
    });
    // A function that does not listen is ended together with its instance.
    let end = rest(&mut deaf);
    assert!(end.is_empty() || end.starts_with(&[0x88, 2]), "{end:?}");
}

#[test]
fn messages_in_tiny_fragments_take_about_their_length() {
    const COUNT: usize = 600_000;
    let node = Node::start();
    deploy_asgi(&node, "[limits]\nmemory = \"64MiB\"\n");
    let manifest = "version = 1\n[limits]\nmemory = \"96MiB\"\n";
    node.deploy_ok("fetch", &[("index.mjs", &fixture("fetch.mjs")), ("mote.toml", manifest)]);
    let mut bytes = frame(0x02, b"x");
    for _ in 2..COUNT {
        bytes.extend(frame(0x00, b"x"));
    }
    bytes.extend(frame(0x80, b"x"));
    for name in ["asgi", "fetch"] {
        let mut stream = open(&node, &format!("/{name}/echo"));
        stream.write_all(&bytes).expect("an instance that reads");
        let mut expected = vec![0x82, 127];
        expected.extend((COUNT as u64).to_be_bytes());
        expected.resize(expected.len() + COUNT, b'x');
        let echoed = read(&mut stream, expected.len());
        assert!(echoed == expected, "{name}: {:?}", &echoed[..10]);
    }
}

#[test]
fn a_side_that_does_not_read_stops_the_other() {
    let node = Node::start();
    deploy_asgi(&node, "[limits]\nstream_idle = \"4s\"\nbody = \"1GiB\"\n");
    let mut stream = open(&node, "/asgi/deaf");
    stream.set_write_timeout(Some(Duration::from_secs(1))).expect("a socket");
    let piece = frame(0x82, &[0; 60_000]);
    let mut written = 0;
    let error = loop {
        match stream.write(&piece) {
            Ok(bytes) => written += bytes,
            Err(error) => break error,
        }
        assert!(written < 32 << 20, "{written} bytes were taken");
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert_eq!(rest(&mut stream), GOING_AWAY);
    // If a client does not read, its function must stop sending.
    let stream = open(&node, "/asgi/flood");
    wait_for("the function to wait", || (running(&node, "asgi") == 1).then_some(()));
    drop(stream);
    wait_for("both to end", || (running(&node, "asgi") == 0).then_some(()));
}

#[test]
fn a_framework_serves_websockets() {
    const STARLETTE: &str = r#"
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute

async def echo(websocket):
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text("said " + text)

app = Starlette(routes=[WebSocketRoute("/ws", echo)])
"#;
    let node = Node::start();
    let files = [("app.py", STARLETTE), ("requirements.txt", "starlette\n")];
    let output = node.deploy("star", &files);
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("pip"), "{text}");
        return skip("starlette", "it cannot be installed here");
    }
    let mut stream = open(&node, "/star/ws");
    for text in ["one", "two"] {
        stream.write_all(&frame(0x81, text.as_bytes())).expect("sent");
        assert_eq!(read(&mut stream, 10), [&b"\x81\x08said "[..], text.as_bytes()].concat());
    }
    stream.write_all(&frame(0x88, b"\x03\xe8")).expect("sent");
    assert_eq!(rest(&mut stream), b"\x88\x02\x03\xe8");
    let (_, head) = connect(&node, "/star/other", "");
    assert!(head.starts_with("http/1.1 403 ") || head.starts_with("http/1.1 404 "), "{head}");
}
