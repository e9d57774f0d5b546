//! Functions written for other platforms, as they are, on a real node: contracts first, then the
//! platforms' own manifests.

use std::process::Command;

use mote_tests::{Answer, Node, repository, skip};

fn fixture(path: &str) -> String {
    let path = repository().join("tests/fixtures/compat").join(path);
    path.to_str().expect("UTF-8").to_owned()
}

/// Deploys a fixture as `name`; returns what was said.
fn deploy(node: &Node, path: &str, name: &str) -> String {
    let output = node.mote(&["deploy", &fixture(path), "--name", name]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{path}: {said}\nnode: {}", node.log());
    said
}

fn call(node: &Node, method: &str, path: &str, body: &[u8]) -> Answer {
    let headers = [("x-sensor", "t1"), ("content-type", "text/plain")];
    node.call(method, path, &headers, body)
}

fn json_call(node: &Node, path: &str, body: &str) -> Answer {
    node.call(
        "POST",
        path,
        &[("content-type", "application/json"), ("x-sensor", "t1")],
        body.as_bytes(),
    )
}

/// An error's words reach the log and not the caller.
fn check_error(node: &Node, name: &str, answer: &Answer) {
    assert_eq!(answer.status, 500, "{name}: {}", answer.text());
    assert!(!answer.text().contains("secret"), "{name}: {}", answer.text());
    mote_tests::wait_for("the error in the log", || {
        node.ok(&["logs", name]).contains("secret words").then_some(())
    });
}

fn has_flask() -> bool {
    let found = Command::new("python3").args(["-sEc", "import flask"]).output();
    found.is_ok_and(|output| output.status.success())
}

#[test]
fn tinyfaas() {
    let node = Node::start();
    let said = deploy(&node, "tinyfaas/hello", "hello");
    assert!(said.contains("compat tinyfaas (fn.py: fn(input, headers))"), "{said}");
    assert_eq!(call(&node, "POST", "/hello", b"you").text(), "hello you");
    assert_eq!(node.get("/hello").text(), "hello nobody");
    assert_eq!(node.get("/hello/below").status, 404);
    deploy(&node, "tinyfaas/headers", "headers");
    assert_eq!(call(&node, "POST", "/headers", b"x").text(), "t1 text/plain");
    deploy(&node, "tinyfaas/error", "error");
    let answer = call(&node, "POST", "/error", b"a");
    assert_eq!((answer.status, answer.text().as_str()), (200, "no reading in 'a'"));
    deploy(&node, "tinyfaas/nothing", "nothing");
    let answer = call(&node, "POST", "/nothing", b"a");
    assert_eq!((answer.status, answer.text().as_str()), (200, ""));
    deploy(&node, "tinyfaas/environment", "environment");
    assert_eq!(node.get("/environment").text(), "C");

    deploy(&node, "tinyfaas/echo-node", "echo-node");
    assert_eq!(call(&node, "POST", "/echo-node", "grün".as_bytes()).text(), "grün");
    deploy(&node, "tinyfaas/status-node", "status-node");
    let answer = call(&node, "POST", "/status-node", b"a");
    assert_eq!((answer.status, answer.text().as_str()), (200, "t1 POST"));
    assert_eq!(answer.header("x-kind"), None);

    deploy(&node, "tinyfaas/upper-shell", "upper-shell");
    let answer = call(&node, "POST", "/upper-shell", b"abc");
    assert_eq!((answer.status, answer.text().as_str()), (200, "to both\nABC"));
    deploy(&node, "tinyfaas/error-shell", "error-shell");
    let answer = call(&node, "POST", "/error-shell", b"abc");
    assert_eq!((answer.status, answer.text().as_str()), (200, "exit status 3"));
}

#[test]
fn openfaas_by_folder() {
    let node = Node::start();
    let said = deploy(&node, "openfaas/http", "http");
    assert!(said.contains("compat openfaas (handler.py: handle, template python3-http)"), "{said}");
    assert_eq!(call(&node, "POST", "/http", b"you").text(), "hello you");
    let said = deploy(&node, "openfaas/classic", "classic");
    assert!(said.contains("template python3)"), "{said}");
    assert_eq!(call(&node, "POST", "/classic", b"abc").text(), "method POST\nABC t1\n");
    deploy(&node, "openfaas/node-callback", "node-callback");
    assert_eq!(node.get("/node-callback").body, [0, 255, 1]);
    if !has_flask() {
        return skip("openfaas_by_folder: python3-flask", "Flask is not installed");
    }
    deploy(&node, "openfaas/flask", "flask");
    let answer = call(&node, "POST", "/flask", b"abc");
    assert_eq!(answer.status, 202, "{}", answer.text());
    assert_eq!(answer.json(), serde_json::json!({ "got": "abc", "sensor": "t1" }));
}

#[test]
fn nuclio_by_folder() {
    let node = Node::start();
    let said = deploy(&node, "nuclio/async", "async");
    assert!(said.contains("compat nuclio (main.py: handler(context, event))"), "{said}");
    let answer = call(&node, "POST", "/async", b"x");
    assert_eq!((answer.status, answer.body.as_slice()), (202, &b"\x00\xffx"[..]));
    deploy(&node, "nuclio/error", "error");
    check_error(&node, "error", &node.get("/error"));
    deploy(&node, "nuclio/node", "node");
    let answer = call(&node, "POST", "/node", b"abc");
    let wanted = serde_json::json!({ "greeting": "hello", "body": "abc", "method": "POST" });
    assert_eq!((answer.status, answer.json()), (200, wanted));
    let answer = call(&node, "POST", "/node/whole", b"abc");
    assert_eq!((answer.status, answer.text().as_str()), (203, "made"));
    assert_eq!(answer.header("content-type"), Some("text/x-test"));
    assert_eq!(answer.header("x-kind"), Some("test"));
}

#[test]
fn kubeless_by_folder() {
    let node = Node::start();
    deploy(&node, "kubeless/binary", "binary");
    let answer = call(&node, "POST", "/binary", &[1, 255]);
    assert_eq!((answer.status, answer.body.as_slice()), (200, &[255, 1][..]));
    assert_eq!(answer.header("x-unit"), Some("C"));
    deploy(&node, "kubeless/error", "error");
    check_error(&node, "error", &node.get("/error"));
}

#[test]
fn openwhisk_by_folder() {
    let node = Node::start();
    let said = deploy(&node, "openwhisk/hello", "hello");
    assert!(said.contains("compat openwhisk (__main__.py: main(args))"), "{said}");
    let hello = |answer: Answer| answer.json()["greeting"].as_str().unwrap_or("").to_owned();
    assert_eq!(hello(node.get("/hello?name=you")), "Hello you!");
    assert_eq!(hello(json_call(&node, "/hello", r#"{"name":"me"}"#)), "Hello me!");
    deploy(&node, "openwhisk/web", "web");
    let answer = call(&node, "PATCH", "/web/a", b"");
    assert_eq!((answer.status, answer.header("x-kind")), (201, Some("test")));
    let cookies = answer.headers.iter().filter(|(name, _)| name == "set-cookie").count();
    assert_eq!(cookies, 2);
    let wanted = serde_json::json!({ "method": "patch", "path": "/a", "sensor": "t1" });
    assert_eq!(answer.json(), wanted);
    deploy(&node, "openwhisk/binary", "binary");
    let answer = node.call("POST", "/binary", &[("content-type", "image/png")], &[1, 2, 255]);
    assert_eq!(answer.body, [255, 2, 1]);
    deploy(&node, "openwhisk/empty", "empty");
    assert_eq!(node.get("/empty").status, 204);
    deploy(&node, "openwhisk/error", "error");
    let answer = node.get("/error");
    assert_eq!((answer.status, answer.json()["error"].as_str()), (502, Some("no such sensor")));
    check_error(&node, "error", &node.get("/error?throw=1"));
}

#[test]
fn fission_by_folder() {
    let node = Node::start();
    deploy(&node, "fission/node", "node");
    let answer = json_call(&node, "/node?b=c", r#"{"n":1}"#);
    assert_eq!((answer.status, answer.header("x-kind")), (201, Some("test")));
    let wanted = serde_json::json!({
        "method": "POST", "body": { "n": 1 }, "query": { "b": "c" }, "unit": "C",
    });
    assert_eq!(answer.json(), wanted);
    let said = deploy(&node, "fission/binary", "binary");
    assert!(said.contains("compat fission (index.js: module.exports"), "{said}");
    assert_eq!(node.get("/binary").body, [0, 255, 1]);
    deploy(&node, "fission/node-error", "node-error");
    check_error(&node, "node-error", &node.get("/node-error"));
    deploy(&node, "fission/hello", "hello");
    assert_eq!(node.get("/hello").text(), "Hello, world!\n");
    if !has_flask() {
        return skip("fission_by_folder: flask.request", "Flask is not installed");
    }
    deploy(&node, "fission/request", "request");
    assert_eq!(call(&node, "POST", "/request", b"abc").text(), "POST t1 abc");
    let answer = call(&node, "GET", "/request/status", b"");
    assert_eq!((answer.status, answer.header("x-kind")), (418, Some("teapot")));
    deploy(&node, "fission/error", "error");
    check_error(&node, "error", &node.get("/error"));
}

#[test]
fn what_is_not_offered_is_refused_by_name() {
    let node = Node::start();
    let knative = "def new():\n    return None\n";
    let output = node.deploy("kn", &[("func.py", knative)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(said.contains("M0305") && said.contains("\"knative\" is not offered yet"), "{said}");
    let manifest = "version = 1\ncompat = \"openwhisk\"\nruntime = \"exec\"\ncommand = [\"cat\"]\n";
    let output = node.deploy("ow", &[("mote.toml", manifest)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("compat \"openwhisk\" is not offered yet for runtime exec"), "{said}");
    // A handler of our own in a file of that name stays ours.
    let own = "def handle(event, ctx):\n    return event.path\n";
    node.deploy_ok("own", &[("handler.py", own)]);
    assert_eq!(node.get("/own/a").text(), "/a");
}
