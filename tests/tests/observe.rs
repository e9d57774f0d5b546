//! Observation of functions over CoAP (`ctx.notify`) on a real node.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use mote_tests::mqtt::{self, Broker};
use mote_tests::{Node, PATIENCE, coap_client, golang, skip, wait_for};

/// Keeps a temperature, and notifies its observers of each new one.
const PYTHON: &str = r#"
import json

temperature = "20"
asked = 0

def handle(event, ctx):
    global temperature, asked
    if event.trigger == "schedule":
        return str(ctx.notify("/temperature", "scheduled", max_age=7))
    if event.trigger == "mqtt":
        return str(ctx.notify("/temperature", event.text))
    if event.method == "GET":
        asked += 1
        if event.path == "/loop":
            return "notified %d" % ctx.notify("/loop")
        return temperature + event.query
    if event.path == "/wrong":
        try:
            ctx.notify("temperature", "x")
        except ctx.kv.Error as error:
            return "%s: %s" % (error.code, error)
    if event.path == "/json":
        return str(ctx.notify("/temperature", {"celsius": 1}))
    if event.path == "/large":
        return str(ctx.notify("/temperature", "x" * 5000 + "end"))
    temperature = event.text
    return str(ctx.notify("/temperature" + ("?" + event.query if event.query else "")))
"#;
const NODE: &str = r#"
export async function handle(event, ctx) {
  if (event.method === 'GET') return new Response('first', { headers: { 'content-type': 'text/plain' } });
  return String(await ctx.notify(event.path, event.body.length ? event.text() : undefined, { maxAge: 7 }));
}
"#;
const GO: &str = r#"package function

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"mote.internal/mote"
)

func Handle(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain")
	if r.Method == "GET" {
		fmt.Fprint(w, "first")
		return
	}
	body, _ := io.ReadAll(r.Body)
	if len(body) == 0 {
		body = nil
	}
	count, err := mote.Notify(r.Context(), r.URL.Path, body, mote.NotifyOptions{MaxAge: 7 * time.Second})
	if err != nil {
		w.WriteHeader(500)
	}
	fmt.Fprint(w, count)
}
"#;

/// A `coap-client` that observes a resource, and its output.
struct Observer {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Observer {
    fn start(client: &str, url: &str) -> Self {
        // `stdbuf` makes the client print line by line, even though its output is not a terminal.
        let mut child = Command::new("stdbuf")
            .args(["-oL", "-eL", client, "-w", "-s", "100", "-B", "100", "-m", "get", url])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("stdbuf and coap-client run");
        let (sender, lines) = mpsc::channel();
        let streams: [Box<dyn std::io::Read + Send>; 2] = [
            Box::new(child.stdout.take().expect("it is piped")),
            Box::new(child.stderr.take().expect("it is piped")),
        ];
        for stream in streams {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if !line.is_empty() {
                        let _ = sender.send(line);
                    }
                }
            });
        }
        Self { child, lines }
    }

    fn expect(&self, line: &str) {
        assert_eq!(self.lines.recv_timeout(PATIENCE).as_deref(), Ok(line));
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn metric(node: &Node, name: &str) -> u64 {
    let output = Command::new("curl")
        .args(["-s", "--unix-socket"])
        .arg(node.dir.path().join("s"))
        .arg("http://mote/metrics")
        .output()
        .expect("curl runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    line.unwrap_or_else(|| panic!("no metric {name} in {text}"))
}

#[test]
fn observers_follow_a_function() {
    let Some(client) = coap_client() else {
        return skip("observe", "no coap-client");
    };
    let node = Node::start_with(&["--coap-tcp", "127.0.0.1:0"]);
    node.deploy_ok("thermo", &[("app.py", PYTHON)]);
    let tell = |path: &str, body: &str| node.post(path, body.as_bytes()).text();
    assert_eq!(tell("/thermo", "21"), "0", "nobody observes");
    let url = format!("coap://{}/thermo/temperature", node.coap);
    let tcp = node.platform("coap+tcp");
    let celsius = Observer::start(client, &url);
    let kelvin = Observer::start(client, &format!("{url}?unit=k"));
    let over_tcp = Observer::start(client, &format!("coap+tcp://{tcp}/thermo/temperature"));
    celsius.expect("21");
    kelvin.expect("21unit=k");
    over_tcp.expect("21");
    // The notice has no body, so the node asks the function for each of the two resources.
    assert_eq!(tell("/thermo", "22"), "3");
    celsius.expect("22");
    kelvin.expect("22unit=k");
    over_tcp.expect("22");
    assert_eq!(tell("/thermo?unit=k", "23"), "1");
    kelvin.expect("23unit=k");
    assert_eq!(tell("/thermo/large", ""), "3");
    let large = format!("{}end", "x".repeat(5_000));
    for observer in [&celsius, &kelvin, &over_tcp] {
        observer.expect(&large);
    }
    assert!(tell("/thermo/wrong", "").starts_with("invalid: a notice needs a path"));
    assert_eq!(metric(&node, "mote_observers "), 3);
    assert!(metric(&node, "mote_notifications_total ") >= 7);
    // A notice of the answering function itself must not make the node ask forever.
    let looping = Observer::start(client, &format!("coap://{}/thermo/loop", node.coap));
    looping.expect("notified 1");
    looping.expect("notified 0");
    // A notification has the same format as the first answer.
    assert_eq!(tell("/thermo/json", ""), "3");
    celsius.expect("4.06 the function now answers in another format");
    wait_for("the observations end", || (metric(&node, "mote_observers ") == 1).then_some(()));
    node.ok(&["remove", "thermo", "--yes"]);
    looping.expect("4.04 the function was removed");
    assert_eq!(metric(&node, "mote_observers "), 0);
}

#[test]
fn schedules_and_messages_notify() {
    let Some(client) = coap_client() else {
        return skip("observe", "no coap-client");
    };
    if !mqtt::is_there() {
        return skip("observe", "mosquitto and its clients are not installed");
    }
    let broker = Broker::start();
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    let manifest = "version = 1\n[[trigger]]\nmqtt = \"in\"\n\
        [[trigger]]\nevery = \"1s\"\n";
    node.deploy_ok("thermo", &[("app.py", PYTHON), ("mote.toml", manifest)]);
    wait_for("the subscription", || {
        let function = node.json(&["--output", "json", "describe", "thermo"]);
        (function["mqtt"][0]["state"] == "subscribed").then_some(())
    });
    let observer = Observer::start(client, &format!("coap://{}/thermo/temperature", node.coap));
    observer.expect("20");
    observer.expect("scheduled");
    broker.publish("in", 1, &["from a message".to_owned()]);
    let lines = std::iter::from_fn(|| observer.lines.recv_timeout(PATIENCE).ok());
    let before: Vec<String> = lines.take_while(|line| line != "from a message").collect();
    assert!(before.iter().all(|line| line == "scheduled") && before.len() < 60, "{before:?}");
    observer.expect("scheduled");
}

#[test]
fn node_and_go_functions_notify() {
    let Some(client) = coap_client() else {
        return skip("observe", "no coap-client");
    };
    let node = Node::start();
    let mut all = vec![("js", vec![("handler.js", NODE)])];
    if golang::prepare(&node) {
        let module = ("go.mod", "module function\n\ngo 1.21\n");
        all.push((
            "go",
            vec![("handler.go", GO), module, ("mote.toml", "version = 1\nruntime = \"go\"\n")],
        ));
    } else {
        skip("node_and_go_functions_notify", "Go is not installed");
    }
    for (name, files) in &all {
        node.deploy_ok(name, files);
        let observer = Observer::start(client, &format!("coap://{}/{name}/a", node.coap));
        observer.expect("first");
        assert_eq!(node.post(&format!("/{name}/a"), b"second").text(), "1");
        observer.expect("second");
        assert_eq!(node.post(&format!("/{name}/a"), b"").text(), "1", "it is asked");
        observer.expect("first");
        assert_eq!(node.post(&format!("/{name}/b"), b"nobody").text(), "0");
    }
}

#[test]
fn a_path_has_one_form_over_http_and_coap() {
    let Some(client) = coap_client() else {
        return skip("observe", "no coap-client");
    };
    let node = Node::start();
    let python = "def handle(event, ctx):\n    \
        if event.method == 'GET':\n        return event.path\n    \
        return str(ctx.notify(event.path, event.text))\n";
    node.deploy_ok("mirror", &[("app.py", python)]);
    // coap-client decodes the path and sends it as plain segments.
    for (spelled, seen) in
        [("/AA%3ABB", "/AA:BB"), ("/%c3%bc%7e", "/%C3%BC~"), ("/a%20b%26%25", "/a%20b&%25")]
    {
        assert_eq!(node.get(&format!("/mirror{spelled}")).text(), seen);
        let observer = Observer::start(client, &format!("coap://{}/mirror{spelled}", node.coap));
        observer.expect(seen);
        assert_eq!(node.post(&format!("/mirror{spelled}"), b"changed").text(), "1", "{spelled}");
        observer.expect("changed");
    }
    for refused in ["/a%2Fb", "/a%3Bb", "/%2541"] {
        assert_eq!(node.get(&format!("/mirror{refused}")).status, 400, "{refused}");
        let observer = Observer::start(client, &format!("coap://{}/mirror{refused}", node.coap));
        observer.expect("4.00 path is not in normal form");
    }
}
