//! Go functions. The node builds them with only the standard library, unless they import more.

use std::process::Command;

use mote_tests::compat::{call, check_error, deploy, deploy_manifest, fixture};
use mote_tests::{Answer, Node, golang, skip};
use serde_json::json;

/// Starts a node. Returns `None` if Go is missing.
fn node(test: &str) -> Option<Node> {
    let node = Node::start();
    if !golang::prepare(&node) {
        skip(test, "Go is not installed");
        return None;
    }
    Some(node)
}

fn event(node: &Node, path: &str, kind: &str, body: &[u8]) -> Answer {
    let headers = [
        ("ce-specversion", "1.0"),
        ("ce-id", "e-1"),
        ("ce-source", "/test"),
        ("ce-type", kind),
        ("ce-subject", "gr%C3%BCn"),
        ("content-type", "application/json"),
    ];
    node.call("POST", path, &headers, body)
}

fn check_tiny_faas(node: &Node) {
    let said = deploy(node, "tinyfaas/go", "tf");
    assert!(said.contains("compat tinyfaas (package main, func fn)"), "{said}");
    let answer = call(node, "POST", "/tf", b"abc");
    assert_eq!((answer.status, answer.text().as_str()), (200, "ABC t1 "), "{}", node.log());
    assert_eq!(node.get("/tf/below").status, 404);
    deploy(node, "tinyfaas/go-error", "tf-error");
    let answer = call(node, "POST", "/tf-error", b"a");
    assert_eq!((answer.status, answer.text().as_str()), (200, "no reading in 'a'"));
    check_error(node, "tf-error", &call(node, "POST", "/tf-error", b"panic"));
}

fn check_open_faas(node: &Node) {
    deploy(node, "openfaas/go", "of");
    let answer = call(node, "PUT", "/of/a%20b?b=c", b"abc");
    assert_eq!((answer.status, answer.header("x-kind")), (418, Some("test")));
    let wanted = json!({
        "method": "PUT", "path": "/a b", "query": "c", "length": 3, "sensor": "t1", "unit": "C",
        "host": true,
    });
    assert_eq!(answer.json(), wanted);
    assert_eq!(call(node, "POST", "/of", &vec![1; 1 << 20]).json()["length"], 1 << 20);
    assert_eq!(node.get("/of/large").body.len(), 300_000);
    assert_eq!(node.get("/of/bytes").body, [0, 255, 1]);
    assert_eq!(node.get("/of/stream").text(), "part part part ");
    check_error(node, "of", &node.get("/of/panic"));
    assert_eq!(node.get("/of/slow").status, 504);
    assert_eq!(node.get("/of").status, 418, "the instance lives on");
    let said = deploy(node, "openfaas/go-http", "of-http");
    assert!(said.contains("compat openfaas (package function, func Handle)"), "{said}");
    let answer = call(node, "POST", "/of-http?q=1", b"abc");
    assert_eq!((answer.status, answer.text().as_str()), (202, "POST q=1 abc true"));
    assert_eq!(answer.header("x-kind"), Some("test"));
    check_error(node, "of-http", &node.get("/of-http"));
}

/// Tests functions that take bytes, where each call runs in a separate process, and functions that
/// use the platform's packages.
fn check_open_faas_packages(node: &Node) {
    let said = deploy(node, "openfaas/go-classic", "of-go");
    assert!(said.contains("compat openfaas (package function, func Handle(req []byte))"), "{said}");
    for _ in 0..2 {
        let answer = call(node, "PUT", "/of-go?b=c", b"abc");
        assert_eq!((answer.status, answer.text().as_str()), (200, "printed PUT b=c ABC C1\n"));
    }
    let answer = call(node, "POST", "/of-go", b"fail");
    assert_eq!(answer.status, 500, "{}", answer.text());
    assert!(answer.text().contains("no such sensor"), "{}", answer.text());
    deploy(node, "openfaas/go-sdk", "of-sdk");
    let answer = call(node, "POST", "/of-sdk", b"abc");
    assert_eq!((answer.status, answer.text().as_str()), (202, "POST abc <nil>"));
    assert_eq!(answer.header("x-sensor"), Some("t1"));
    check_error(node, "of-sdk", &node.get("/of-sdk"));
}

fn check_nuclio(node: &Node) {
    deploy_manifest(node, "nuclio/go");
    let answer = call(node, "POST", "/nuclio-go/a?n=3&b=c", b"abc");
    assert_eq!(answer.status, 201, "{}", answer.text());
    assert_eq!((answer.header("x-kind"), answer.header("x-count")), (Some("test"), Some("3")));
    let wanted = json!({
        "method": "POST", "path": "/a", "url": "/a?n=3&b=c", "body": "abc", "type": "text/plain",
        "sensor": "t1", "n": 3, "none": true, "fields": { "n": "3", "b": "c" }, "headers": "t1",
        "id": true, "trigger": "http", "function": "nuclio-go", "worker": 0,
    });
    assert_eq!(answer.json(), wanted);
    assert_eq!(node.get("/nuclio-go/text").text(), "text");
    assert_eq!(node.get("/nuclio-go/bytes").body, [0, 255, 1]);
    let answer = node.get("/nuclio-go/nothing");
    assert_eq!((answer.status, answer.body.len()), (200, 0));
    assert_eq!(node.get("/nuclio-go/json").json(), json!({ "calls": 5 }));
    for (path, status, text) in
        [("bad", 400, "no such sensor"), ("missing", 404, "Not Found"), ("wrapped", 409, "wrapped")]
    {
        let answer = node.get(&format!("/nuclio-go/{path}"));
        assert_eq!((answer.status, answer.text().as_str()), (status, text));
    }
    let answer = node.get("/nuclio-go/stream");
    assert_eq!(
        (answer.header("content-type"), answer.text().as_str()),
        (Some("text/event-stream"), "ab")
    );
    check_error(node, "nuclio-go", &node.get("/nuclio-go/fail"));
    check_error(node, "nuclio-go", &node.get("/nuclio-go/panic"));
    let log = node.ok(&["logs", "nuclio-go"]);
    assert!(log.contains(r#"Ready {"unit":"C"}"#) && log.contains("Measured t1"), "{log}");
    let described = node.json(&["describe", "nuclio-go", "-o", "json"]);
    assert_eq!(described["limits"]["concurrency"], 2, "{described}");
    deploy_manifest(node, "nuclio/go-package");
    assert_eq!(call(node, "PUT", "/nuclio-package", b"").text(), "C PUT");
    let failed = node.mote(&["deploy", &fixture("nuclio/go-init"), "--name", "nuclio-init"]);
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(!failed.status.success() && said.contains("InitContext: no unit is set"), "{said}");
}

fn check_kubeless(node: &Node) {
    deploy_manifest(node, "kubeless/go");
    let headers = [("event-type", "test.ask")];
    let answer = node.call("POST", "/kubeless-go", &headers, b"abc");
    let wanted = "abc test.ask POST Measure 7 go1.14 <nil>";
    assert_eq!((answer.status, answer.text().as_str()), (200, wanted));
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    assert_eq!(node.call("OPTIONS", "/kubeless-go", &[], b"").body.len(), 0);
    check_error(node, "kubeless-go", &call(node, "POST", "/kubeless-go", b"fail"));
    assert_eq!(call(node, "POST", "/kubeless-old", b"you").text(), "hello you");
}

fn check_knative(node: &Node) {
    deploy_manifest(node, "knative/go");
    let answer = call(node, "POST", "/kn-go/a", b"abc");
    assert_eq!((answer.status, answer.text().as_str()), (200, "POST /a 3 C"));
    assert_eq!(node.get("/kn-go/health/liveness").text(), "OK");
    assert_eq!(node.get("/kn-go/health/readiness").status, 503);
    let said = deploy(node, "knative/go-static", "kn-static");
    assert!(said.contains("compat knative (package function, func Handle)"), "{said}");
    assert_eq!(node.get("/kn-static").status, 204);
    deploy_manifest(node, "knative/go-event");
    let answer = event(node, "/kn-go-event", "test.ask", br#"{"n":1}"#);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("ce-id"), Some("answer-e-1"));
    assert_eq!(answer.header("ce-type"), Some("test.answer"));
    assert_eq!(answer.json(), json!({ "got": { "n": 1 }, "subject": "grün" }));
    let answer = event(node, "/kn-go-event", "test.nothing", b"1");
    assert_eq!((answer.status, answer.body.len()), (200, 0));
    check_error(node, "kn-go-event", &event(node, "/kn-go-event", "test.fail", b"1"));
    assert_eq!(node.post("/kn-go-event", b"no event").status, 400);
    let whole = br#"{"specversion":"1.0","id":"e-2","source":"/t","type":"t","data":[1]}"#;
    let headers = [("content-type", "application/cloudevents+json")];
    let answer = node.call("POST", "/kn-go-event", &headers, whole);
    assert_eq!(answer.json()["got"], json!([1]));
}

fn check_others(node: &Node) {
    let said = deploy(node, "openwhisk/go", "ow");
    assert!(said.contains("compat openwhisk (package main, func Main)"), "{said}");
    let answer = node.get("/ow?name=you").json();
    let wanted = json!({ "greeting": "Hello you!", "method": "get", "named": "/_/ow" });
    assert_eq!(answer, wanted);
    let answer = node.get("/ow?web=1");
    assert_eq!((answer.status, answer.body.as_slice()), (201, &[0, 255, 1][..]));
    let answer = node.get("/ow?fail=1");
    assert_eq!((answer.status, answer.json()), (502, json!({ "error": "no such sensor" })));
    let said = deploy(node, "fission/go", "fi");
    assert!(said.contains("compat fission (package main, func Handler)"), "{said}");
    let answer = node.get("/fi?name=you");
    assert_eq!((answer.status, answer.text().as_str()), (201, "Hello, you!\n"));
    assert_eq!(answer.header("x-kind"), Some("test"));
}

/// One test with one node, because compiling the standard library takes longer than everything else
/// here.
#[test]
fn contracts() {
    let Some(node) = node("contracts") else { return };
    check_tiny_faas(&node);
    check_open_faas(&node);
    check_open_faas_packages(&node);
    check_nuclio(&node);
    check_kubeless(&node);
    check_knative(&node);
    check_others(&node);
    check_own(&node);
    check_vendored(&node);
    check_mistakes(&node);
}

/// Tests our own contract: a net/http handler in any package.
fn check_own(node: &Node) {
    let files = [(
        "hello.go",
        "package hello\n\nimport (\n\t\"io\"\n\t\"net/http\"\n)\n\nfunc Handle(w http.ResponseWriter, r \
         *http.Request) {\n\tio.WriteString(w, \"hello\")\n}\n",
    )];
    node.deploy_ok("own", &files);
    assert_eq!(node.get("/own").text(), "hello");
    let again = node.deploy("own", &files);
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(said.contains("from cache"), "{said}");
    assert_eq!(node.json(&["describe", "own", "-o", "json"])["runtime"], "go");
}

/// These modules exist nowhere else, so a build that asks a proxy fails.
fn check_vendored(node: &Node) {
    let greeting = (
        "vendor/words.invalid/greeting/greeting.go",
        "package greeting\n\nfunc Of(name string) string { return \"hello \" + name }\n",
    );
    let list = "# words.invalid/greeting v1.0.0\n## explicit\nwords.invalid/greeting\n";
    let handler = (
        "main.go",
        "package main\n\nimport (\n\t\"github.com/nuclio/nuclio-sdk-go\"\n\t\"words.invalid/greeting\"\n)\n\n\
         func Handler(context *nuclio.Context, event nuclio.Event) (interface{}, error) {\n\t\
         context.Logger.Info(\"called\")\n\treturn greeting.Of(string(event.GetBody())), nil\n}\n",
    );
    let go_mod = "module own\n\ngo 1.21\n\nrequire words.invalid/greeting v1.0.0\n";
    let with_sdk = format!("{go_mod}\nrequire github.com/nuclio/nuclio-sdk-go v0.2.0\n");
    for (name, files) in [
        ("bare-vendor", &[handler, greeting][..]),
        ("listed-vendor", &[handler, greeting, ("vendor/modules.txt", list)]),
        (
            "vendor-without-sdk",
            &[handler, greeting, ("vendor/modules.txt", list), ("go.mod", go_mod)],
        ),
        ("sdk-required", &[handler, greeting, ("vendor/modules.txt", list), ("go.mod", &with_sdk)]),
    ] {
        node.deploy_ok(name, files);
        assert_eq!(node.post(&format!("/{name}"), b"you").text(), "hello you", "{name}");
    }
}

fn check_mistakes(node: &Node) {
    for (path, wanted) in [
        ("broken/go-syntax", "undefined: nowhere"),
        ("broken/go-call", "main.go: context.Platform.CallFunction is not supported"),
        (
            "broken/go-bytes",
            "template go calls Handle(req []byte), this is Handle(w http.ResponseWriter",
        ),
        ("broken/go-program", "main.go has a func main: it is a program, not a function"),
    ] {
        let output = node.mote(&["deploy", &fixture(path), "--name", "broken"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(wanted), "{path}: {said}");
    }
}

#[test]
fn modules_come_from_the_proxy() {
    let Some(node) = node("modules_come_from_the_proxy") else { return };
    let reachable = Command::new("go")
        .args(["mod", "download", "github.com/cloudevents/sdk-go/v2@v2.15.2"])
        .current_dir(node.dir.path())
        .output();
    if !reachable.is_ok_and(|output| output.status.success()) {
        return skip("modules_come_from_the_proxy", "the module proxy is out of reach");
    }
    deploy(&node, "knative/go-sdk", "sdk");
    let answer = event(&node, "/sdk", "test.ask", br#"{"n":1}"#);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("ce-type"), Some("function.response"));
    let wanted = json!({ "message": "OK", "subject": "grün", "got": "{\"n\":1}" });
    assert_eq!(answer.json(), wanted);
}

/// The node searches for Go in its own PATH. Here that PATH does not contain Go.
#[test]
fn a_node_without_go_says_so() {
    let empty = tempfile::tempdir().expect("a folder");
    let path = empty.path().to_str().expect("UTF-8");
    let node = Node::start_with_env(&[], &[("PATH", path)]);
    let output = node.deploy("tf", &[("fn.go", "package main\n\nfunc fn() {}\n")]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(8), "{said}");
    let wanted = "error[M0403]: tf cannot be built here: go is not installed\n  \
                  install Go on the node (https://go.dev/dl), or build the program elsewhere: \
                  runtime = \"server\"\n";
    assert!(said.ends_with(wanted), "{said}");
    let doctor = node.mote(&["doctor"]);
    let checks = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        checks.lines().any(|line| line.contains("go") && line.contains("not installed")),
        "{checks}"
    );
    assert_eq!(node.ok(&["list", "-o", "name"]), "", "nothing was kept");
}
