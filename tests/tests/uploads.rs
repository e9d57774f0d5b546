//! Projects that a client other than `mote` sends to the management API without a spec.

use std::process::Command;

use mote_tests::{Connection, Node, free_address};

/// An archive of these files.
fn tar(files: &[(&str, &str)]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let output = Command::new("tar").arg("-C").arg(folder.path()).args(["-cf", "-", "."]).output();
    output.unwrap().stdout
}

#[test]
fn a_project_without_a_spec_is_read_as_mote_reads_it() {
    let address = free_address();
    let node = Node::start_with(&["--admin", &address.to_string()]);
    let bearer = format!("Bearer {}", node.token());
    let put = |name: &str, files: &[(&str, &str)]| {
        let path = format!("/v1/functions/{name}");
        let headers = [("authorization", bearer.as_str())];
        Connection::open(address).call("PUT", &path, &headers, &tar(files))
    };
    let hello = ("app.py", "def handle(event, ctx):\n    return 'hello'\n");
    let answer = put("hello", &[hello]);
    assert_eq!(answer.status, 201, "{}", answer.text());
    assert_eq!(node.get("/hello").text(), "hello");

    // The manifest is used, and the functions that a chain may call are read from the chain's file.
    let chain = "document: { dsl: '1.0.3', namespace: n, name: steps, version: 1.0.0 }\ndo:\n  - a: { call: hello }\n";
    let manifest = ("mote.toml", "version = 1\nruntime = \"chain\"\n[limits]\ntimeout = \"9s\"\n");
    let answer = put("steps", &[("steps.yaml", chain), manifest]);
    assert_eq!(answer.status, 201, "{}", answer.text());
    let described = node.management("/v1/functions/steps");
    assert_eq!(described["limits"]["timeout_ms"], 9_000, "{described}");
    assert_eq!(node.post("/steps", b"{}").text(), "\"hello\"");

    let answer = put("bad", &[hello, ("mote.toml", "version = 1\nruntime = python\n")]);
    assert_eq!((answer.status, answer.json()["code"].as_str()), (422, Some("M0301")));
    assert!(answer.text().contains("`python` needs quotes (line 2)"), "{answer:?}");
    let answer = put("bad", &[("notes.txt", "nothing to run")]);
    assert_eq!((answer.status, answer.json()["code"].as_str()), (422, Some("M0110")));
}
