//! Unchanged Knative functions as `func` creates them, on a real node: HTTP and CloudEvents in both
//! modes, and functions with a server.

use mote_tests::compat::{call, check_error, deploy, deploy_manifest, fixture, json_call};
use mote_tests::{Answer, Node};
use serde_json::json;

/// Sends an event in binary mode.
fn event(node: &Node, path: &str, kind: &str, content_type: &str, body: &[u8]) -> Answer {
    let headers = [
        ("ce-specversion", "1.0"),
        ("ce-id", "e-1"),
        ("ce-source", "/test"),
        ("ce-type", kind),
        ("ce-subject", "gr%C3%BCn"),
        ("content-type", content_type),
    ];
    node.call("POST", path, &headers, body)
}

/// Sends an event in structured mode.
fn structured(node: &Node, path: &str, kind: &str, data: &serde_json::Value) -> Answer {
    let event = json!({
        "specversion": "1.0", "id": "e-2", "source": "/test", "type": kind, "subject": "s",
        "datacontenttype": "application/json", "data": data,
    });
    let headers = [("content-type", "application/cloudevents+json; charset=utf-8")];
    node.call("POST", path, &headers, event.to_string().as_bytes())
}

#[test]
fn node_http() {
    let node = Node::start();
    let output = node.mote(&["deploy", &fixture("knative/node-http")]);
    let said = String::from_utf8_lossy(&output.stderr);
    let missing = "kn-http reads the secret tokens.api, which this node does not have";
    assert!(!output.status.success() && said.contains(missing), "{said}");
    assert!(node.mote_with_input(&["secret", "set", "tokens.api"], b"t0ken\n").status.success());
    let said = deploy_manifest(&node, "knative/node-http");
    assert!(said.contains("func.yaml, node, compat knative"), "{said}");
    for warning in [
        "envs: OUTER: the variable KN_OUTER is not set in this environment",
        "options.scale.utilization",
    ] {
        assert!(said.contains(warning), "{warning}: {said}");
    }
    let answer = node.get("/kn-http/a?b=c");
    let wanted = json!({ "query": { "b": "c" }, "path": "/a", "version": "1.1" });
    assert_eq!((answer.status, answer.json()), (200, wanted));
    assert_eq!(answer.header("content-type"), Some("application/json; charset=utf8"));
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    let wanted = json!({ "got": { "n": 1 }, "sensor": "t1", "unit": "C", "token": "t0ken" });
    assert_eq!(json_call(&node, "/kn-http", r#"{"n":1}"#).json(), wanted);
    assert_eq!(json_call(&node, "/kn-http", "{").status, 400);
    let live = node.get("/kn-http/health/liveness");
    assert_eq!((live.status, live.text().as_str()), (200, "OK"));
    assert_eq!(node.get("/kn-http/ready").text(), "OK");
    let described = node.json(&["describe", "kn-http", "-o", "json"]);
    assert_eq!(described["compat"], "knative", "{described}");
    assert_eq!(described["limits"]["memory_bytes"], 96 << 20);
    assert_eq!(described["limits"]["concurrency"], 50);
}

/// Like `func deploy`, `mote import` uses variables from its own environment.
#[test]
fn import_of_func_yaml() {
    let folder = tempfile::tempdir().expect("a folder");
    let from = fixture("knative/node-http");
    for file in ["func.yaml", "index.js", "package.json"] {
        std::fs::copy(format!("{from}/{file}"), folder.path().join(file)).expect("copied");
    }
    let output = std::process::Command::new(mote_tests::mote_binary())
        .arg("import")
        .arg(folder.path().join("func.yaml"))
        .env("KN_OUTER", "from outside")
        .output()
        .expect("mote runs");
    assert!(output.status.success(), "{output:?}");
    let made = std::fs::read_to_string(folder.path().join("mote.toml")).expect("written");
    for line in [
        "compat = \"knative\"",
        "runtime = \"node\"",
        "OUTER = \"from outside\"",
        "TOKEN = { secret = \"tokens.api\" }  # run.envs; create it: mote secret set tokens.api",
        "max = 2",
    ] {
        assert!(made.contains(line), "{line}: {made}");
    }
    let node = Node::start();
    let path = folder.path().to_str().expect("UTF-8");
    assert!(node.mote_with_input(&["secret", "set", "tokens.api"], b"x").status.success());
    node.ok(&["deploy", path]);
    assert_eq!(json_call(&node, "/kn-http", "1").json()["home"], "from outside");
}

#[test]
fn node_answers() {
    let node = Node::start();
    deploy(&node, "knative/node-answers", "answers");
    let nothing = node.get("/answers/nothing");
    assert_eq!((nothing.status, nothing.body.len()), (204, 0));
    let text = node.get("/answers/text");
    assert_eq!((text.status, text.text().as_str()), (200, "plain words"));
    assert_eq!(text.header("content-type"), Some("text/plain; charset=utf8"));
    let bytes = node.get("/answers/bytes");
    assert_eq!((bytes.status, bytes.body.as_slice()), (203, &[0, 255, 1][..]));
    assert_eq!(bytes.header("content-type"), Some("image/png"));
    let status = node.get("/answers/status");
    assert_eq!((status.status, status.header("x-kind")), (418, Some("teapot")));
    assert_eq!(node.get("/answers/object").json(), json!({ "answer": 42 }));
    // An object without a body is itself the answer, as in faas-js-runtime since 0.9.5.
    let missing = node.get("/answers/missing");
    assert_eq!(missing.status, 404);
    assert_eq!(missing.json(), json!({ "statusCode": 404, "result": "no such city" }));
    let marked = node.get("/answers/marked");
    assert_eq!((marked.status, marked.header("x-kind")), (200, Some("marked")));
    assert_eq!(marked.header("content-type"), Some("application/json; charset=utf8"));
    assert_eq!(marked.json()["result"], 1);
    let null = node.get("/answers/null");
    assert_eq!((null.status, null.body.len()), (201, 0));
    assert_eq!(node.get("/answers/large").body.len(), 300_000);
    let large = vec![7; 1 << 20];
    let sent = node.call(
        "POST",
        "/answers/length",
        &[("content-type", "application/octet-stream")],
        &large,
    );
    assert_eq!(sent.json(), json!({ "length": 1 << 20 }));
    check_error(&node, "answers", &node.get("/answers/throw"));
    assert_eq!(node.get("/answers/never").status, 504);
    let code = "exports.handle = () => ({ statusCode: 404, result: 'no such city' });\n";
    let package = r#"{"dependencies": {"faas-js-runtime": "^0.7.1"}}"#;
    let manifest = "version = 1\ncompat = \"knative\"\n";
    let files = [("index.js", code), ("package.json", package), ("mote.toml", manifest)];
    node.deploy_ok("older", &files);
    let missing = node.get("/older");
    assert_eq!((missing.status, missing.json()), (404, json!({ "result": "no such city" })));
    deploy(&node, "knative/node-health", "health");
    assert_eq!(node.get("/health").json(), json!({ "started": true }));
    let live = node.get("/health/health/liveness");
    assert_eq!((live.status, live.text().as_str()), (503, "tired"));
    node.ok(&["remove", "--yes", "health"]);
}

#[test]
fn node_events() {
    let node = Node::start();
    deploy_manifest(&node, "knative/node-event");
    let answer = event(&node, "/kn-event", "test.ask", "application/json", br#"{"n":1}"#);
    assert_eq!(answer.status, 200, "{}", answer.text());
    for (name, value) in [
        ("ce-id", "answer-e-1"),
        ("ce-type", "test.answer"),
        ("ce-source", "/kn-event"),
        ("ce-specversion", "1.0"),
    ] {
        assert_eq!(answer.header(name), Some(value), "{:?}", answer.headers);
    }
    assert_eq!(answer.json(), json!({ "got": { "n": 1 }, "subject": "grün" }));
    let answer = structured(&node, "/kn-event", "test.ask", &json!([1, 2]));
    assert_eq!(answer.header("ce-id"), Some("answer-e-2"));
    assert_eq!(answer.json()["got"], json!([1, 2]));
    let answer = event(&node, "/kn-event?plain=1", "test.ask", "text/plain", b"words");
    assert_eq!(answer.json(), json!({ "type": "test.ask", "data": "words" }));
    let answer = event(&node, "/kn-event?built=1", "test.ask", "application/json", b"2");
    assert_eq!(answer.header("ce-type"), Some("test.built"));
    let refused = call(&node, "POST", "/kn-event", b"no event");
    assert_eq!(refused.status, 400, "{}", refused.text());
    let headers = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s")];
    let refused = node.call("POST", "/kn-event", &headers, b"");
    assert_eq!((refused.status, refused.text().as_str()), (400, "the event has no type"));
}

#[test]
fn python_http() {
    let node = Node::start();
    let said = deploy_manifest(&node, "knative/python");
    assert!(said.contains("entry function:new"), "{said}");
    let answer = call(&node, "PUT", "/kn-python/a%20b?c=d", b"abc");
    let seen = answer.json();
    let wanted = json!({
        "method": "PUT", "path": "/a b", "query": "c=d", "sensor": "t1", "length": 3, "unit": "K",
        "calls": 1,
    });
    assert_eq!((answer.status, seen), (200, wanted));
    assert_eq!(answer.header("x-kind"), Some("test"));
    let answer = call(&node, "POST", "/kn-python/bytes", &[1, 0, 255]);
    assert_eq!((answer.status, answer.body.as_slice()), (203, &[255, 0, 1][..]));
    assert_eq!(call(&node, "POST", "/kn-python", &vec![1; 1 << 20]).json()["length"], 1 << 20);
    check_error(&node, "kn-python", &node.get("/kn-python/fail"));
    let live = node.get("/kn-python/health/liveness");
    assert_eq!((live.status, live.text().as_str()), (200, "alive"));
    let ready = node.get("/kn-python/health/readiness");
    assert_eq!((ready.status, ready.text().as_str()), (500, "not yet"));
    let said = deploy(&node, "knative/python-slow", "slow");
    assert!(said.contains("compat knative"), "{said}");
    assert_eq!(node.get("/slow").status, 504);
}

#[test]
fn python_events() {
    let node = Node::start();
    deploy_manifest(&node, "knative/python-event");
    let path = "/kn-python-event";
    let answer = event(&node, path, "test.ask", "application/json", br#"{"n":1}"#);
    assert_eq!(answer.status, 201, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/cloudevents+json"));
    let seen = answer.json();
    assert_eq!((&seen["id"], &seen["subject"]), (&"answer-e-1".into(), &"grün".into()), "{seen}");
    assert_eq!(seen["data"], json!({ "got": { "n": 1 }, "type": "test.ask" }));
    let answer = structured(&node, path, "test.binary", &json!({ "n": 2 }));
    assert_eq!(answer.header("ce-type"), Some("test.answer"), "{}", answer.text());
    assert_eq!(answer.json()["got"], json!({ "n": 2 }));
    assert_eq!(event(&node, path, "test.http", "application/json", b"1").status, 202);
    assert_eq!(call(&node, "POST", path, b"no event").status, 400);
}

#[test]
fn a_server_of_ones_own() {
    let node = Node::start();
    let said = deploy_manifest(&node, "knative/server");
    for object in ["Namespace plants", "Service a-service-of-kubernetes"] {
        assert!(said.contains(&format!("ignored: {object}")), "{said}");
    }
    let answer = event(&node, "/kn-server", "test.ask", "text/plain", b"abc");
    assert_eq!((answer.status, answer.text().as_str()), (202, "kn-server test.ask abc"));
}
