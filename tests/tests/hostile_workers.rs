//! Functions whose workers do what no honest one does, on a node that serves another function at the
//! same time: that one's calls succeed, the node does not grow, and it does not panic.

use std::io::ErrorKind;

use mote_tests::Node;

/// A server on `$PORT` that answers by path, mostly without end.
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
    // The head of these is in order, so the caller sees an answer that is cut off.
    for path in ["zeros", "extension", "trailers"] {
        let mut connection = mote_tests::Connection::open(node.http);
        let answer = connection.try_call("GET", &format!("/hostile/{path}"), &[], b"");
        let ended = answer.expect_err(path).kind();
        // Not that the test ran out of patience.
        let cut_off = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
        assert!(cut_off.contains(&ended), "{path}: {ended}");
    }
    assert_eq!(node.get("/hostile/fine").text(), "ok");
    assert_eq!(node.get("/other").text(), "ok");
    assert!(!node.log().contains("panicked"), "{}", node.log());
}
