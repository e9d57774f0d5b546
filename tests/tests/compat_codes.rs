//! Status codes by condition under the contracts of Knative and Kubeless, whose management API is
//! that of Kubernetes. `openwhisk.rs` tests the codes of OpenWhisk. `compat_status.rs` tests full
//! queues and the other platforms.

use mote_tests::{Node, wait_for};

const LIMITS: &str = "[limits]\ntimeout = \"3s\"\nbody = \"1KiB\"\n";

fn check(node: &Node, name: &str, path: &str, body: &[u8], expected: u16) {
    let answer = node.post(&format!("/{name}{path}"), body);
    assert_eq!(answer.status, expected, "{name}{path}: {}", answer.text());
}

/// Checks the answers that every contract requires of a function that fails in the way that the
/// path says. `late` is the status after the deadline.
fn check_all(node: &Node, name: &str, late: u16) {
    check(node, name, "", b"", 200);
    check(node, name, "/fail", b"", 500);
    check(node, name, "/slow", b"", late);
    check(node, name, "/die", b"", 502);
    check(node, name, "", &[7; 2000], 413);
    wait_for("another instance to serve", || {
        (node.post(&format!("/{name}"), b"").status == 200).then_some(())
    });
}

#[test]
fn knative() {
    let node = Node::start();
    let code = "import asyncio, os\n\nasync def handle(scope, receive, send):\n    path = scope['path']\n    \
                if path == '/fail':\n        raise ValueError('secret')\n    if path == '/slow':\n        \
                await asyncio.sleep(60)\n    if path == '/die':\n        os._exit(1)\n    status = 418 if \
                path == '/own' else 200\n    await send({'type': 'http.response.start', 'status': status, \
                'headers': []})\n    await send({'type': 'http.response.body', 'body': b'ok'})\n";
    let manifest = format!("version = 1\ncompat = \"knative\"\n{LIMITS}");
    node.deploy_ok("kn", &[("func.py", code), ("mote.toml", &manifest)]);
    check(&node, "none", "", b"", 404);
    check(&node, "kn", "/own", b"", 418);
    check_all(&node, "kn", 504);
}

#[test]
fn kubeless() {
    let node = Node::start();
    let code = "import os, time\n\ndef hello(event, context):\n    path = event['extensions']['request'].path\n    \
                if path == '/fail':\n        raise ValueError('secret')\n    if path == '/slow':\n        \
                time.sleep(60)\n    if path == '/die':\n        os._exit(1)\n    return 'ok'\n";
    let manifest = format!("version = 1\ncompat = \"kubeless\"\nentry = \"work:hello\"\n{LIMITS}");
    node.deploy_ok("kl", &[("work.py", code), ("mote.toml", &manifest)]);
    check(&node, "none", "", b"", 404);
    check_all(&node, "kl", 408);
}
