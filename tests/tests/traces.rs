//! Traces: W3C Trace Context in and out, and the records of calls.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use mote_tests::mqtt::{self, Broker};
use mote_tests::{Node, free_address, repository, skip, wait_for};
use serde_json::Value;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// Calls `last`, which publishes to a topic to which `listens` is subscribed.
const FIRST: &str = r#"
def handle(event, ctx):
    answer = ctx.call("last", b"x")
    return event.headers.get("traceparent", "none") + " " + answer.text
"#;
const LAST: &str = r#"
def handle(event, ctx):
    ctx.publish("traced/topic", b"x")
    return event.headers.get("traceparent", "none")
"#;
const LISTENS: &str = r#"
def handle(event, ctx):
    return event.headers.get("traceparent", "none")
"#;

fn deploy(node: &Node, broker: &str) {
    let version = "version = 1\n";
    let first = format!("{version}[allow]\nfunctions = [\"last\"]\n");
    node.deploy_ok("first", &[("app.py", FIRST), ("mote.toml", &first)]);
    let last =
        format!("{version}[mqtt]\nbroker = \"{broker}\"\n[allow]\nmqtt = [\"traced/topic\"]\n");
    node.deploy_ok("last", &[("app.py", LAST), ("mote.toml", &last)]);
    let listens = format!("{version}[[trigger]]\nmqtt = \"traced/topic\"\nbroker = \"{broker}\"\n");
    node.deploy_ok("listens", &[("app.py", LISTENS), ("mote.toml", &listens)]);
    wait_for("the subscription", || {
        let shown = node.json(&["describe", "listens", "-o", "json"]);
        (shown["mqtt"][0]["state"] == "subscribed").then_some(())
    });
}

/// The OpenTelemetry Collector, which prints what it receives. `None` if it was not built.
struct Collector {
    child: Child,
    dir: tempfile::TempDir,
    grpc: SocketAddr,
    http: SocketAddr,
}

impl Collector {
    /// Starts a collector for these signals.
    fn start(signals: &[&str]) -> Option<Self> {
        Self::start_at(signals, free_address(), free_address())
    }

    fn start_at(signals: &[&str], grpc: SocketAddr, http: SocketAddr) -> Option<Self> {
        let home = std::env::var("HOME").unwrap_or_default();
        let folder = std::env::var("XDG_CACHE_HOME").unwrap_or(format!("{home}/.cache"));
        let script = repository().join("scripts/build-collector.sh");
        let script = std::fs::read_to_string(script).expect("the script");
        let version = script.lines().find_map(|line| line.strip_prefix("VERSION="));
        let version = version.expect("a version");
        let program = format!("{folder}/mote-tools/collector-{version}/collector");
        if !Path::new(&program).exists() {
            return None;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let settings = format!(
            "receivers: {{otlp: {{protocols: {{grpc: {{endpoint: '{grpc}'}}, http: {{endpoint: '{http}'}}}}}}}}\n\
             exporters: {{debug: {{verbosity: detailed}}}}\n\
             service: {{telemetry: {{metrics: {{level: none}}}}, \
             pipelines: {{{}}}}}\n",
            signals
                .iter()
                .map(|signal| format!("{signal}: {{receivers: [otlp], exporters: [debug]}}"))
                .collect::<Vec<_>>()
                .join(", ")
        );
        std::fs::write(dir.path().join("settings.yaml"), settings).expect("a file");
        let log = std::fs::File::create(dir.path().join("log")).expect("a file");
        let child = Command::new(program)
            .arg("--config")
            .arg(dir.path().join("settings.yaml"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the collector");
        let collector = Self { child, dir, grpc, http };
        wait_for("the collector", || TcpStream::connect(http).ok());
        Some(collector)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// The spans that have arrived: their ids, the ids of their parents, and their names.
    fn spans(&self) -> Vec<[String; 4]> {
        let log = self.log();
        let blocks = log.split("Span #").skip(1);
        blocks
            .map(|block| ["Trace ID", "Parent ID", "ID ", "Name"].map(|name| field(block, name)))
            .collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_collector_receives_one_trace_over_http_and_over_grpc() {
    let name = "a_collector_receives_one_trace_over_http_and_over_grpc";
    if !mqtt::is_there() {
        return skip(name, "mosquitto is not installed");
    }
    let Some(collector) = Collector::start(&["traces", "logs"]) else {
        return skip(name, "no collector: run scripts/build-collector.sh");
    };
    let broker = Broker::start();
    for url in [format!("http://{}", collector.http), format!("grpc://{}", collector.grpc)] {
        let node = Node::start_with(&["--trace", "100%", "--otlp", &url]);
        deploy(&node, &broker.url());
        let answer = node.get("/first/a");
        let text = answer.text();
        let trace = text.split('-').nth(1).expect("a trace").to_owned();
        let spans = wait_for("the spans", || {
            let spans = collector.spans();
            let is_last = |[of, _, _, name]: &[String; 4]| *of == trace && name == "listens";
            spans.iter().any(is_last).then_some(spans)
        });
        let find = |name: &str| {
            spans.iter().find(|[of, _, _, other]| *of == trace && other == name).expect(name)
        };
        let [first, last, listens] = ["first", "last", "listens"].map(find);
        assert_eq!(first[1], "", "{first:?}");
        assert_eq!((&last[1], &listens[1]), (&first[2], &last[2]));
        assert!(!node.log().contains("did not reach the collector"), "{}", node.log());
    }
}

/// A field of a record that the collector has printed.
fn field(block: &str, name: &str) -> String {
    let line = block.lines().find(|line| line.trim_start().starts_with(name));
    line.and_then(|line| line.split_once(": ")).map_or("", |(_, text)| text.trim()).to_owned()
}

#[test]
fn a_collector_receives_lines_with_the_place_of_their_call() {
    let name = "a_collector_receives_lines_with_the_place_of_their_call";
    let Some(collector) = Collector::start(&["traces", "logs"]) else {
        return skip(name, "no collector: run scripts/build-collector.sh");
    };
    let code = r#"
import logging

def handle(event, ctx):
    print("out " + event.text)
    logging.getLogger().error("bad " + event.text)
    return event.headers.get("traceparent", "none")
"#;
    let blocks = |text: &str| {
        let log = collector.log();
        let blocks = log.split("LogRecord #").skip(1);
        let body = format!("Body: Str({text})");
        blocks.filter(|block| block.contains(&body)).map(str::to_owned).collect::<Vec<_>>()
    };
    for (word, url) in [
        ("http", format!("http://{}", collector.http)),
        ("grpc", format!("grpc://{}", collector.grpc)),
    ] {
        let node = Node::start_with(&["--trace", "100%", "--otlp", &url]);
        node.deploy_ok("talks", &[("app.py", code)]);
        let answer = node.post("/talks", word.as_bytes());
        let text = answer.text();
        let place: Vec<_> = text.split('-').collect();
        let bad = format!("root: bad {word}");
        let block = wait_for("the line", || blocks(&bad).pop());
        let of = ["Trace ID", "Span ID", "SeverityText", "Flags"].map(|name| field(&block, name));
        assert_eq!(of, [place[1], place[2], "ERROR", "1"], "{block}");
        let id = answer.header("mote-invocation").expect("an id");
        assert!(block.contains(&format!("faas.invocation_id: Str({id})")), "{block}");
        let block = wait_for("the line", || blocks(&format!("out {word}")).pop());
        assert!(block.contains("log.iostream: Str(stdout)"), "{block}");
        assert!(collector.log().contains("service.name: Str(talks)"));
        // Even if no calls are recorded, log lines are sent, the last ones when the node stops.
        let node = Node::start_with(&["--trace", "off", "--otlp", &url]);
        node.deploy_ok("talks", &[("app.py", code)]);
        let last = format!("last {word}");
        let answer = node.post("/talks", last.as_bytes());
        assert_eq!(answer.text(), "none");
        let node = node.stop_and_restart();
        let block = wait_for("the line", || blocks(&format!("out {last}")).pop());
        assert_eq!((field(&block, "Span ID"), field(&block, "Flags")), (String::new(), "0".into()));
        assert!(!node.log().contains("did not reach the collector"), "{}", node.log());
    }
}

#[test]
fn a_collector_of_traces_alone_is_not_asked_to_take_lines_again() {
    let name = "a_collector_of_traces_alone_is_not_asked_to_take_lines_again";
    let Some(collector) = Collector::start(&["traces"]) else {
        return skip(name, "no collector: run scripts/build-collector.sh");
    };
    for url in [format!("http://{}", collector.http), format!("grpc://{}", collector.grpc)] {
        let node = Node::start_with(&["--otlp", &url]);
        node.deploy_ok("listens", &[("app.py", LISTENS)]);
        wait_for("the message", || {
            node.log().contains("takes no lines of functions").then_some(())
        });
        assert!(!node.log().contains("did not reach the collector"), "{}", node.log());
    }
}

#[test]
fn lines_wait_for_a_collector_that_starts_later() {
    let name = "lines_wait_for_a_collector_that_starts_later";
    let Some(first) = Collector::start(&["logs"]) else {
        return skip(name, "no collector: run scripts/build-collector.sh");
    };
    let address = first.http;
    drop(first);
    let node = Node::start_with(&["--otlp", &format!("http://{address}")]);
    let code = format!("print('early')\n{LISTENS}");
    node.deploy_ok("listens", &[("app.py", &code)]);
    wait_for("the message", || node.log().contains("did not reach the collector").then_some(()));
    let collector = Collector::start_at(&["traces", "logs"], free_address(), address).expect("one");
    wait_for("the line", || collector.log().contains("Body: Str(early)").then_some(()));
}

fn spans(node: &Node, trace: &str) -> Vec<Value> {
    let (status, text) = node.manage("GET", &format!("/v1/traces/{trace}"), "");
    match status {
        200 => serde_json::from_str::<Value>(&text).expect("JSON")["spans"]
            .as_array()
            .expect("spans")
            .clone(),
        _ => Vec::new(),
    }
}

fn span_of<'a>(spans: &'a [Value], name: &str) -> Option<&'a Value> {
    spans.iter().find(|span| span["name"] == name)
}

#[test]
fn a_call_through_three_functions_and_a_broker_is_one_trace() {
    if !mqtt::is_there() {
        return skip("a_call_through_three_functions", "mosquitto is not installed");
    }
    let broker = Broker::start();
    let node = Node::start_with(&["--trace", "0.0001%"]);
    deploy(&node, &broker.url());
    let field = format!("00-{TRACE}-{PARENT}-01");
    let answer = node.call("GET", "/first/a", &[("traceparent", &field)], b"");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.text();
    let seen: Vec<&str> = text.split(' ').collect();
    assert!(seen.iter().all(|seen| seen.starts_with(&format!("00-{TRACE}-"))), "{text}");
    let all = wait_for("the last span", || {
        let all = spans(&node, TRACE);
        span_of(&all, "listens").is_some().then_some(all)
    });
    let ids = ["first", "last", "listens"].map(|name| {
        let span = span_of(&all, name).expect("a span");
        (span["span"].as_str().expect("id"), span["parent"].as_str().expect("parent"))
    });
    assert_eq!(ids[0].1, PARENT);
    assert_eq!((ids[1].1, ids[2].1), (ids[0].0, ids[1].0), "{all:#?}");
    assert_eq!(
        seen,
        [format!("00-{TRACE}-{}-01", ids[0].0), format!("00-{TRACE}-{}-01", ids[1].0)]
    );
    for part in ["queue", "hand-over", "run"] {
        assert!(span_of(&all, part).is_some_and(|span| span["parent"].is_string()), "{part}");
    }
    // If a caller does not record its trace, its calls are not recorded here either.
    let other = TRACE.replace('4', "5");
    let field = format!("00-{other}-{PARENT}-00");
    let answer = node.call("GET", "/last", &[("traceparent", &field)], b"");
    assert_eq!(answer.text(), field);
    assert!(spans(&node, &other).is_empty());
}

#[test]
fn calls_that_fail_are_recorded_in_any_case() {
    let node = Node::start_with(&["--trace", "0.0001%"]);
    let code = "def handle(event, ctx):\n    raise ValueError('no')\n";
    node.deploy_ok("fails", &[("app.py", code)]);
    let failed = node.get("/fails");
    assert_eq!(failed.status, 500);
    let id = failed.header("mote-invocation").expect("an id").to_owned();
    let list = node.management("/v1/traces?function=fails");
    let call = &list["traces"][0];
    assert_eq!((&call["invocation"], &call["outcome"]), (&id.into(), &"function".into()), "{list}");
    for query in ["function=other", "outcome=ok", "outcome=timeout", "slower_than=1h"] {
        let list = node.management(&format!("/v1/traces?{query}"));
        assert_eq!(list["traces"], serde_json::json!([]), "{query}");
    }
    for query in ["outcome=failed", "outcome=function", "outcome=failed&slower_than=0s"] {
        assert_eq!(node.management(&format!("/v1/traces?{query}")), list, "{query}");
    }
    for (query, field) in
        [("outcome=bad", "outcome"), ("slower_than=x", "slower_than"), ("limit=abc", "limit")]
    {
        let (status, text) = node.manage("GET", &format!("/v1/traces?{query}"), "");
        let problem: Value = serde_json::from_str(&text).expect("a problem");
        assert_eq!(
            (status, &problem["code"], &problem["field"]),
            (400, &"M1403".into(), &field.into())
        );
    }
}

#[test]
fn the_time_of_a_failed_call_is_known() {
    let node = Node::start_with(&["--trace", "0.0001%"]);
    let code = "import time\n\ndef handle(event, ctx):\n    if event.path == '/hang':\n        \
                time.sleep(60)\n    raise ValueError('no')\n";
    let rules = "version = 1\n\n[limits]\ntimeout = \"500ms\"\n";
    node.deploy_ok("fails", &[("app.py", code), ("mote.toml", rules)]);
    for (path, status) in [("/fails/now", 500), ("/fails/hang", 504)] {
        assert_eq!(node.get(path).status, status);
        let list = node.management("/v1/traces?function=fails");
        let call = &list["traces"][0];
        let name = format!("GET {}", path.trim_start_matches("/fails"));
        assert_eq!(call["name"], name, "{list}");
        let all = spans(&node, call["trace"].as_str().expect("an id"));
        let run = span_of(&all, "run").expect("a part")["duration_us"].as_u64().expect("a number");
        assert_eq!(run >= 400_000, status == 504, "{path}: {run}");
    }
    let metrics = node.manage("GET", "/metrics", "").1;
    for line in [
        "mote_request_duration_seconds_count{function=\"fails\",trigger=\"http\"} 2",
        "mote_invoke_duration_seconds_count{function=\"fails\"} 2",
    ] {
        assert!(metrics.contains(line), "{line} is missing:\n{metrics}");
    }
}

#[test]
fn without_the_setting_nothing_is_recorded() {
    let node = Node::start();
    node.deploy_ok("listens", &[("app.py", LISTENS)]);
    let field = format!("00-{TRACE}-{PARENT}-01");
    let answer = node.call("GET", "/listens", &[("traceparent", &field)], b"");
    assert_eq!(answer.text(), field, "the field reaches the function as it came");
    assert_eq!(node.get("/listens").text(), "none");
    let (status, text) = node.manage("GET", "/v1/traces", "");
    assert!(status == 404 && text.contains("--trace 1%"), "{status} {text}");
}

#[test]
fn every_call_is_a_trace_of_its_own_with_all_of_them_recorded() {
    let node = Node::start_with(&["--trace", "100%"]);
    node.deploy_ok("listens", &[("app.py", LISTENS)]);
    let answer = node.get("/listens/p%20q?secret=1");
    let text = answer.text();
    let trace = text.split('-').nth(1).expect("a field");
    let list = node.management("/v1/traces");
    let call = &list["traces"][0];
    assert_eq!((&call["trace"], &call["name"]), (&trace.into(), &"GET /p%20q".into()), "{list}");
    assert_eq!(call["invocation"], answer.header("mote-invocation").expect("an id"));
    for wrong in ["00-0-0-01", "ff-x", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"] {
        let answer = node.call("GET", "/listens", &[("traceparent", wrong)], b"");
        assert!(!answer.text().contains("4BF9") && answer.text().len() == 55, "{wrong}");
    }
}

#[test]
fn spans_of_a_function_continue_the_trace_of_its_call() {
    if !mote_tests::has_pip() || !mote_tests::has_npm() {
        return skip("spans_of_a_function", "pip or npm is not installed");
    }
    let node = Node::start_with(&["--trace", "0.0001%"]);
    let python = r#"
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

trace.set_tracer_provider(TracerProvider())
tracer = trace.get_tracer("own")

def handle(event):
    with tracer.start_as_current_span("work") as span:
        return "%032x %016x" % (span.get_span_context().trace_id, span.parent.span_id)
"#;
    let requirements = "opentelemetry-api\nopentelemetry-sdk\n";
    node.deploy_ok("py", &[("app.py", python), ("requirements.txt", requirements)]);
    let javascript = r#"
import { context, propagation, trace } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { W3CTraceContextPropagator } from '@opentelemetry/core';

context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
propagation.setGlobalPropagator(new W3CTraceContextPropagator());

export async function handle(event) {
  await null;
  const { traceId, spanId } = trace.getSpanContext(context.active());
  return `${traceId} ${spanId}`;
}
"#;
    let packages = r#"{"type": "module", "dependencies": {"@opentelemetry/api": "1", "@opentelemetry/core": "2", "@opentelemetry/context-async-hooks": "2"}}"#;
    node.deploy_ok("js", &[("app.mjs", javascript), ("package.json", packages)]);
    let field = format!("00-{TRACE}-{PARENT}-01");
    for name in ["py", "js"] {
        let answer = node.call("GET", &format!("/{name}"), &[("traceparent", &field)], b"");
        let all = spans(&node, TRACE);
        let span = span_of(&all, name).expect("a span");
        let expected = format!("{TRACE} {}", span["span"].as_str().expect("an id"));
        assert_eq!(answer.text(), expected, "{name}");
    }
}
