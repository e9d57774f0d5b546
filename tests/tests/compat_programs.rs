//! Unchanged programs of OpenWhisk and Fission on a real node: native actions, actions that stay
//! running (ActionLoop), and Fission's binary environment.

use mote_tests::Node;
use mote_tests::compat::{call, deploy, json_call};
use serde_json::json;

#[test]
fn native_actions() {
    let node = Node::start();
    let said = deploy(&node, "openwhisk/native", "native");
    assert!(said.contains("compat openwhisk (exec)"), "{said}");
    let answer = json_call(&node, "/native", r#"{"name":"you"}"#);
    let wanted = json!({ "greeting": "Hello you!", "same": "yes", "unit": "", "deadline": "13" });
    assert_eq!((answer.status, answer.json()), (200, wanted));
    assert_eq!(node.get("/native?name=me").json()["greeting"], "Hello me!");
    mote_tests::wait_for("what was printed in the log", || {
        node.ok(&["logs", "native"]).contains("working on /_/native").then_some(())
    });
    let large = format!(r#"{{"name":"you","text":"{}"}}"#, "x".repeat(400_000));
    let answer = json_call(&node, "/native", &large);
    assert_eq!(answer.json()["greeting"], "Hello stranger!", "too long for an argument");
    assert_eq!(json_call(&node, "/native", "{").status, 400);
}

#[test]
fn native_actions_that_fail() {
    let node = Node::start();
    deploy(&node, "openwhisk/native-error", "native");
    let answer = node.get("/native");
    assert_eq!((answer.status, answer.json()), (502, json!({ "error": "no such sensor" })));
    let answer = node.get("/native?a=words");
    assert_eq!(answer.status, 502, "{}", answer.text());
    let answer = node.get("/native?a=web");
    assert_eq!((answer.status, answer.header("x-kind")), (418, Some("teapot")));
    assert_eq!(answer.body, [0, 255, 1]);
    let answer = node.get("/native?a=large");
    assert_eq!(answer.json()["text"].as_str().map(str::len), Some(300_000));
    mote_tests::compat::check_error(&node, "native", &node.get("/native?a=crash"));
}

#[test]
fn actions_that_stay() {
    let node = Node::start();
    let said = deploy(&node, "openwhisk/loop", "stays");
    assert!(said.contains("compat openwhisk (exec, which writes to descriptor 3)"), "{said}");
    for count in 1..=3 {
        let answer = json_call(&node, "/stays", r#"{"name":"you"}"#);
        assert_eq!(answer.json(), json!({ "greeting": "Hello you!", "count": count }));
    }
    let described = node.ok(&["describe", "stays"]);
    assert!(described.contains("compat       openwhisk, actionloop"), "{described}");
    deploy(&node, "openwhisk/loop-ack", "ack");
    let answer = json_call(&node, "/ack/a", r#"{"n":1}"#);
    let wanted = json!({ "got": 1, "path": "/a", "action": "/_/ack", "unit": "C" });
    assert_eq!((answer.status, answer.json()), (200, wanted));
    let large = format!(r#"{{"n":"{}","large":true}}"#, "y".repeat(400_000));
    let answer = json_call(&node, "/ack", &large);
    assert_eq!(answer.json()["got"].as_str().map(str::len), Some(400_000));
    assert_eq!(answer.json()["text"].as_str().map(str::len), Some(300_000));
    assert_eq!(json_call(&node, "/ack", r#"{"sleep":1}"#).status, 504);
    let answer = json_call(&node, "/ack", r#"{"n":2}"#);
    assert_eq!(answer.json()["got"], 2, "in a new instance: {}", answer.text());
    deploy(&node, "openwhisk/loop-crash", "frail");
    let answer = json_call(&node, "/frail", r#"{"crash":1}"#);
    assert!(answer.status >= 500 && !answer.text().contains("secret"), "{}", answer.text());
    assert_eq!(json_call(&node, "/frail", "{}").json(), json!({ "fine": true }));
}

#[test]
fn fission_programs() {
    let node = Node::start();
    deploy(&node, "fission/binary-env", "run");
    let answer = call(&node, "POST", "/run/a?b=c", b"abc");
    assert_eq!((answer.status, answer.text().as_str()), (200, "POST /a?b=c 3 t1 C\nabc"));
    let answer = call(&node, "POST", "/run/fail", b"abc");
    assert_eq!(answer.status, 500);
    assert_eq!(answer.text(), "failed to wait for subprocess: exit status 4");
}
