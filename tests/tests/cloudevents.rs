//! CloudEvents between our functions and the official packages of PyPI and npm, over HTTP and MQTT.
//! For each package a separate function makes events or reads them. The test carries the messages.

use std::process::Command;

use mote_tests::mqtt::{self, Broker};
use mote_tests::{Answer, Node, golang, repository, skip, wait_for};
use serde_json::{Value, json};

const MODULE: &str = "module f\n\ngo 1.21\n";

fn fixture(name: &str) -> String {
    let path = repository().join("tests/fixtures/cloudevents").join(name);
    std::fs::read_to_string(path).expect("a fixture")
}

/// Deploys the function that reports what it saw, in each language that is available. Returns the
/// names.
fn deploy_echoes(node: &Node) -> Vec<&'static str> {
    node.deploy_ok("py", &[("app.py", &fixture("echo.py"))]);
    node.deploy_ok("js", &[("index.mjs", &fixture("echo.mjs"))]);
    if !golang::prepare(node) {
        skip("CloudEvents in Go", "Go is not installed");
        return vec!["py", "js"];
    }
    let code = fixture("echo.go");
    let files = [("handler.go", code.as_str()), ("go.mod", MODULE), ("mote.toml", "version = 1\n")];
    node.deploy_ok("go", &files);
    vec!["py", "js", "go"]
}

fn deploy_packages(node: &Node) -> [&'static str; 2] {
    let code = fixture("sdk.py");
    node.deploy_ok("pysdk", &[("app.py", &code), ("requirements.txt", "cloudevents==2.2.0\n")]);
    let package = r#"{"name":"f","type":"module","main":"index.mjs","dependencies":{"cloudevents":"10.0.0"}}"#;
    node.deploy_ok("jssdk", &[("index.mjs", &fixture("sdk.mjs")), ("package.json", package)]);
    ["pysdk", "jssdk"]
}

/// Sends an answer on as a request.
fn carry(node: &Node, message: &Answer, path: &str) -> Answer {
    let fields = message
        .headers
        .iter()
        .filter(|(name, _)| name == "content-type" || name.starts_with("ce-"));
    let fields: Vec<(&str, &str)> =
        fields.map(|(name, value)| (name.as_str(), value.as_str())).collect();
    node.call("POST", path, &fields, &message.body)
}

#[test]
fn events_of_the_official_packages_are_read_and_ours_are_read_by_them() {
    let node = Node::start();
    let ours = deploy_echoes(&node);
    let packages = deploy_packages(&node);
    for package in packages {
        for (kind, of_type, data) in [
            ("json", "application/json", json!({ "n": [1, "ü"] })),
            ("text", "text/plain", json!("grün")),
            ("bytes", "image/png", json!("base64:if8A")),
        ] {
            for mode in ["binary", "structured", "batch"] {
                let message = node.get(&format!("/{package}/{mode}/{kind}"));
                assert_eq!(message.status, 200, "{package} {mode} {kind}: {}", message.text());
                let is_plain = (package, mode) == ("jssdk", "binary");
                let subject = if is_plain { "plain" } else { "grün \"50%\" € 😀" };
                let is_binary = message.headers.iter().any(|(name, _)| name == "ce-id");
                assert_eq!(is_binary, mode == "binary");
                for name in &ours {
                    let answer = carry(&node, &message, &format!("/{name}/all"));
                    let what = format!("{package} {mode} {kind} to {name}: {}", answer.text());
                    assert_eq!(answer.status, 200, "{what}");
                    let mut events = answer.json();
                    let events = events.as_array_mut().expect("a list");
                    assert_eq!(events.len(), if mode == "batch" { 2 } else { 1 }, "{what}");
                    for event in events {
                        let time = event["attributes"]["time"].take();
                        assert!(
                            time.as_str().is_some_and(|t| t.starts_with("2026-02-03T04:05:06"))
                        );
                        let attributes = json!({
                            "specversion": "1.0", "id": "1", "source": "/sdk",
                            "type": "made.by.sdk", "subject": subject, "ext": "a b",
                            "datacontenttype": of_type, "time": null,
                        });
                        let wanted = json!({ "attributes": attributes, "data": data });
                        assert_eq!(*event, wanted, "{what}");
                    }
                }
            }
        }
        for name in &ours {
            let message = node.get(&format!("/{name}/made"));
            assert_eq!(message.status, 200, "{}", message.text());
            assert_eq!(message.header("ce-subject"), Some("gr%C3%BCn%2050%25"));
            let answer = carry(&node, &message, &format!("/{package}/read"));
            let what = format!("{name} to {package}: {}", answer.text());
            assert_eq!(answer.status, 200, "{what}");
            let event = answer.json();
            let seen =
                ["type", "subject", "ext", "datacontenttype"].map(|key| &event["attributes"][key]);
            let subject = if package == "jssdk" { "gr%C3%BCn%2050%25" } else { "grün 50%" };
            assert_eq!(seen, ["made", subject, "true", "application/json"], "{what}");
            assert_eq!(event["data"], json!({ "is": "made" }), "{what}");
            for required in ["id", "time"] {
                assert!(event["attributes"][required].is_string(), "{what}");
            }
        }
    }
}

#[test]
fn a_malformed_event_is_the_mistake_of_its_sender() {
    let node = Node::start();
    let ours = deploy_echoes(&node);
    let good = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")];
    for name in ours {
        let answer = node.call("POST", &format!("/{name}"), &good[..3], b"");
        assert_eq!(answer.status, 400, "{name}");
        assert_eq!(answer.text(), "not a CloudEvent: the event has no type\n");
        let structured = [("content-type", "application/cloudevents+json")];
        let answer = node.call("POST", &format!("/{name}"), &structured, b"{");
        assert_eq!((answer.status, answer.text().contains("not JSON")), (400, true), "{name}");
        assert_eq!(node.post(&format!("/{name}"), b"x").text(), "none");
    }
    // An event is read only if the function asks for it, and the function may decide itself what to
    // do with a wrong one.
    for name in ["py", "js"] {
        let answer = node.call("POST", &format!("/{name}/quiet"), &good[..3], b"");
        assert_eq!((answer.status, answer.text().as_str()), (200, "not looked at"));
        let answer = node.call("POST", &format!("/{name}/careful"), &good[..3], b"");
        assert!(answer.text().contains("the event has no type") && answer.status != 400);
    }
}

#[test]
fn a_large_event_is_read_whole() {
    let node = Node::start();
    let text = "x".repeat(300 << 10);
    let event = json!({
        "specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": text,
    });
    for name in deploy_echoes(&node) {
        let fields = [("content-type", "application/cloudevents+json")];
        let answer = node.call("POST", &format!("/{name}"), &fields, event.to_string().as_bytes());
        assert_eq!(answer.json()["data"], Value::String(text.clone()), "{name}");
    }
}

#[test]
fn events_arrive_and_leave_over_mqtt() {
    if !mqtt::is_there() {
        return skip("CloudEvents over MQTT", "mosquitto and its clients are not installed");
    }
    let broker = Broker::start();
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    let mut names =
        vec![("py", "app.py", fixture("echo.py")), ("js", "index.mjs", fixture("echo.mjs"))];
    if golang::prepare(&node) {
        names.push(("go", "handler.go", fixture("echo.go")));
    }
    for (name, file, code) in &names {
        let manifest = format!("version = 1\n[[trigger]]\nmqtt = \"{name}/#\"\n");
        let mut files = vec![("mote.toml", manifest.as_str()), (*file, code.as_str())];
        if *name == "go" {
            files.push(("go.mod", MODULE));
        }
        node.deploy_ok(name, &files);
        wait_for("the trigger", || {
            let function = node.json(&["--output", "json", "describe", name]);
            (function["mqtt"][0]["state"] == "subscribed").then_some(())
        });
    }
    let ask = |topic: &str, properties: &[(&str, &str)], kind: &str, message: &str| {
        let mut asking = Command::new("mosquitto_rr");
        asking.args(["-h", "127.0.0.1", "-p", &broker.port.to_string(), "-V", "5", "-W", "30"]);
        asking.args(["-t", topic, "-e", "me/answers", "-q", "1", "-m", message, "-F", "%p|%P"]);
        asking.args(["-D", "publish", "content-type", kind]);
        for (name, value) in properties {
            asking.args(["-D", "publish", "user-property", name, value]);
        }
        let output = asking.output().expect("mosquitto_rr");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let required = [("specversion", "1.0"), ("id", "1"), ("source", "/a%20b"), ("type", "t")];
    for (name, ..) in &names {
        // Over MQTT, attributes are not percent-encoded.
        let mut all = required.to_vec();
        all.extend([("subject", "grün \"50%\""), ("trace-id", "7")]);
        let answer = ask(name, &all, "application/json", r#"{"n":1}"#);
        let (body, _) = answer.rsplit_once('|').expect("a body");
        let wanted = json!({
            "attributes": {
                "specversion": "1.0", "id": "1", "source": "/a%20b", "type": "t",
                "subject": "grün \"50%\"", "datacontenttype": "application/json",
            },
            "data": { "n": 1 },
        });
        assert_eq!(serde_json::from_str::<Value>(body).expect(body), wanted, "{name}");
        let event = json!({ "specversion": "1.0", "id": "2", "source": "/s", "type": "t" });
        let answer = ask(name, &[], "application/cloudevents+json", &event.to_string());
        assert!(answer.contains(r#""id":"2""#), "{name}: {answer}");
        let answer = ask(name, &required[..3], "text/plain", "x");
        assert_eq!(
            answer.lines().next(),
            Some("not a CloudEvent: the event has no type"),
            "{name}"
        );
        assert!(answer.contains("status:400"), "{name}: {answer}");
        assert!(ask(name, &[("id", "1")], "text/plain", "x").starts_with("none|"), "{name}");
        // The answer is an event. Its attributes are user properties.
        let answer = ask(&format!("{name}/made"), &[], "text/plain", "x");
        for part in ["specversion:1.0", "type:made", "subject:grün 50%", "ext:true"] {
            assert!(answer.contains(part), "{name}: {answer}");
        }
    }
}
