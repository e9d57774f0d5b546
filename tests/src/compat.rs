//! Code that the tests of other platforms' contracts share: deploys and calls their fixtures.

use crate::{Answer, Node, repository};

/// The path of a fixture below `tests/fixtures/compat`.
pub fn fixture(path: &str) -> String {
    let path = repository().join("tests/fixtures/compat").join(path);
    path.to_str().expect("UTF-8").to_owned()
}

/// Deploys a fixture as `name`. Returns the output.
pub fn deploy(node: &Node, path: &str, name: &str) -> String {
    let output = node.mote(&["deploy", &fixture(path), "--name", name]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{path}: {said}\nnode: {}", node.log());
    said
}

/// Sends text with the header fields that the fixtures read.
pub fn call(node: &Node, method: &str, path: &str, body: &[u8]) -> Answer {
    let headers = [("x-sensor", "t1"), ("content-type", "text/plain")];
    node.call(method, path, &headers, body)
}

/// Sends JSON with the header fields that the fixtures read.
pub fn json_call(node: &Node, path: &str, body: &str) -> Answer {
    node.call(
        "POST",
        path,
        &[("content-type", "application/json"), ("x-sensor", "t1")],
        body.as_bytes(),
    )
}

/// Checks that the text of an error reaches the log but not the caller.
pub fn check_error(node: &Node, name: &str, answer: &Answer) {
    assert_eq!(answer.status, 500, "{name}: {}", answer.text());
    assert!(!answer.text().contains("secret"), "{name}: {}", answer.text());
    crate::wait_for("the error in the log", || {
        node.ok(&["logs", name]).contains("secret words").then_some(())
    });
}

/// Deploys a manifest unchanged. Returns the output.
pub fn deploy_manifest(node: &Node, path: &str) -> String {
    let output = node.mote(&["deploy", &fixture(path)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{path}: {said}\nnode: {}", node.log());
    said
}
