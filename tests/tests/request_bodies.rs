//! A client that starts a body and then stops does not block other clients.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use mote_tests::{Node, call_at};

/// One call at a time, in one instance. A call without a place would wait for a minute.
const LIMITS: &str = "[limits]\ntimeout = \"60s\"\nconcurrency = 1\n[scale]\nmax = 1\n";
/// A program under the contract of OpenFaaS' classic watchdog.
const PROGRAM: &str = "runtime = \"exec\"\ncompat = \"openfaas\"\ncommand = [\"wc\", \"-c\"]\n";
const PYTHON: &str = "def handle(event, ctx):\n    return str(len(event.body))\n";
const LENGTH: usize = 200_000;

/// Begins a request, and stops after three quarters of its body.
fn begun(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("the node listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {LENGTH}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("the node reads");
    stream.write_all(&vec![b'x'; LENGTH / 4 * 3]).expect("the node reads");
    stream
}

fn completed(mut stream: TcpStream) {
    stream.write_all(&vec![b'x'; LENGTH / 4]).expect("the node reads");
    let mut text = Vec::new();
    let mut buffer = [0; 4_096];
    while !text.trim_ascii_end().ends_with(LENGTH.to_string().as_bytes()) {
        let read = stream.read(&mut buffer).expect("an answer");
        assert!(read > 0, "{}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&buffer[..read]);
    }
    assert!(text.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&text));
}

#[test]
fn calls_are_served_while_other_bodies_are_on_their_way() {
    let node = Node::start_with(&["--openfaas", "127.0.0.1:0"]);
    let manifest = |function: &str| format!("version = 1\n{function}{LIMITS}");
    node.deploy_ok("length", &[("mote.toml", &manifest("")), ("length.py", PYTHON)]);
    node.deploy_ok("program", &[("mote.toml", &manifest(PROGRAM))]);
    let openfaas = node.platform("openfaas");
    for (address, path) in
        [(node.http, "/length"), (openfaas, "/function/length"), (node.http, "/program")]
    {
        let slow: Vec<_> = (0..4).map(|_| begun(address, path)).collect();
        // These are more calls than the worker accepts in advance.
        for _ in 0..20 {
            let answer = call_at(address, "POST", path, &[], b"abc");
            assert_eq!((answer.status, answer.text().trim()), (200, "3"), "{path}");
        }
        slow.into_iter().for_each(completed);
    }
}

#[test]
fn a_function_that_reads_its_body_as_it_arrives_is_called_at_once() {
    let node = Node::start();
    let code = "stream_request = True\n\nasync def handle(event, ctx):\n    \
                async for chunk in event.astream():\n        return 'begun'\n";
    node.deploy_ok("reader", &[("reader.py", code)]);
    let mut stream = begun(node.http, "/reader");
    let mut buffer = [0; 4_096];
    let read = stream.read(&mut buffer).expect("an answer before the body's end");
    let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
    assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("begun"), "{text}");
}

#[test]
fn the_deadline_of_a_call_begins_with_the_last_byte_of_its_body() {
    let node = Node::start();
    let manifest = "version = 1\n[limits]\ntimeout = \"500ms\"\n";
    node.deploy_ok("length", &[("mote.toml", manifest), ("length.py", PYTHON)]);
    let mut slow = Vec::new();
    for length in [40_000, LENGTH] {
        let mut stream = TcpStream::connect(node.http).expect("the node listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let head =
            format!("POST /length HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("the node reads");
        stream.write_all(&vec![b'x'; length / 2]).expect("the node reads");
        slow.push((stream, length));
    }
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_millis(700) {
        assert_eq!(node.get("/length").text(), "0");
    }
    for (mut stream, length) in slow {
        stream.write_all(&vec![b'x'; length / 2]).expect("the node reads");
        let mut buffer = [0; 4_096];
        let read = stream.read(&mut buffer).expect("an answer");
        let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
        assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with(&length.to_string()), "{text}");
    }
}
