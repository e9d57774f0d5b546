//! Calls between functions inside a real node (`ctx.call`).

use std::time::{Duration, Instant};

use mote_tests::{Node, golang, skip, wait_for};

const PYTHON: &str = r#"
def handle(event, ctx):
    args = event.args
    try:
        reply = ctx.call(args["to"], event.body or None, path=args.get("path", "/"), query=args.get("query", ""),
                         headers={"x-from": "python"}, timeout=float(args["timeout"]) if "timeout" in args else None)
    except ctx.kv.Error as error:
        return "%s %s: %s" % (error.code, getattr(error, "status", 0), error), 400
    return reply.body, reply.status, {"x-called": reply.headers.get("x-answer", "")}
"#;
const LOOP: &str = r#"
async def handle(event, ctx):
    args = event.args
    try:
        reply = await ctx.call(args["to"], event.body or None, path=args.get("path", "/"), query=args.get("query", ""),
                               headers={"x-from": "loop"}, timeout=float(args["timeout"]) if "timeout" in args else None)
    except ctx.kv.Error as error:
        return "%s %s: %s" % (error.code, getattr(error, "status", 0), error), 400
    return reply.body, reply.status, {"x-called": reply.headers.get("x-answer", "")}
"#;
const NODE: &str = r#"
export async function handle(event, ctx) {
  const { args } = event;
  try {
    const reply = await ctx.call(args.to, event.body.length ? event.body : null, {
      path: args.path ?? '/', query: args.query ?? '', headers: { 'X-From': 'node' }, timeout: args.timeout && Number(args.timeout),
    });
    return new Response(reply.body, { status: reply.status, headers: { 'x-called': reply.headers['x-answer'] ?? '' } });
  } catch (error) {
    if (!error.code) throw error;
    return new Response(`${error.code} ${error.status ?? 0}: ${error.message}`, { status: 400 });
  }
}
"#;
const GO: &str = r#"package function

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"mote.internal/mote"
)

func Handle(w http.ResponseWriter, r *http.Request) {
	args := r.URL.Query()
	body, _ := io.ReadAll(r.Body)
	options := mote.CallOptions{Path: args.Get("path"), Query: args.Get("query"), Header: http.Header{"X-From": {"go"}}}
	if text := args.Get("timeout"); text != "" {
		seconds, _ := strconv.ParseFloat(text, 64)
		options.Timeout = time.Duration(seconds * float64(time.Second))
	}
	reply, err := mote.Call(r.Context(), args.Get("to"), body, options)
	if err != nil {
		code, status := "other", 0
		if known, ok := err.(*mote.Error); ok {
			code, status = known.Code, known.Status
		}
		w.WriteHeader(400)
		fmt.Fprintf(w, "%s %d: %s", code, status, err)
		return
	}
	w.Header().Set("X-Called", reply.Header.Get("X-Answer"))
	w.WriteHeader(reply.Status)
	w.Write(reply.Body)
}
"#;
/// The called function. It tells what it saw, fails, or waits.
const CALLED: &str = r#"
import asyncio
import os

async def handle(event, ctx):
    if event.path == "/fail":
        raise ValueError("on purpose")
    if event.path == "/teapot":
        return "teapot", 418
    if event.path == "/large":
        return b"x" * (int(event.args["bytes"]))
    if event.path == "/remaining":
        return str(ctx.remaining_ms())
    if event.path == "/wait":
        print("waits", flush=True)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            print("was cancelled", flush=True)
            raise
    seen = [event.method, event.path, event.query, event.trigger, event.headers.get("x-from", "-"), event.text]
    return " ".join(seen), 200, {"x-answer": "yes"}
"#;
/// The calling function calls itself or another function, as the request says.
const MANIFEST: &str = "version = 1\n[allow]\nfunctions = [\"called\", \"gone\", \"python\", \"loop\"]\n[limits]\ntimeout = \"20s\"\n";

fn node_with_called() -> Node {
    let node = Node::start();
    let manifest = "version = 1\n[limits]\ntimeout = \"20s\"\n";
    node.deploy_ok("called", &[("handler.py", CALLED), ("mote.toml", manifest)]);
    node.deploy_ok("secret", &[("handler.py", CALLED), ("mote.toml", manifest)]);
    node
}

fn check(node: &Node, kind: &str) {
    let ask = |query: &str, body: &[u8]| {
        let answer = node.post(&format!("/{kind}?{query}"), body);
        (answer.status, answer.text())
    };
    let answer = node.post(&format!("/{kind}?to=called&path=/x&query=a=b"), b"body");
    assert_eq!(answer.text(), format!("POST /x a=b function {kind} body"), "{}", node.log());
    assert_eq!((answer.status, answer.header("x-called")), (200, Some("yes")));
    // A status other than 200 is also an answer, not an error of the call.
    assert_eq!(ask("to=called&path=/teapot", b""), (418, "teapot".to_owned()));
    let (_, text) = ask("to=called&path=/fail", b"");
    assert!(text.starts_with("failed 500: called failed: ValueError: on purpose"), "{text}");
    let (_, text) = ask("to=gone", b"");
    assert!(text.starts_with("failed 404: no function named gone"), "{text}");
    let (_, text) = ask("to=secret", b"");
    assert!(text.starts_with("denied 0:") && text.contains("[allow] functions"), "{text}");
    // Sends long bodies in both directions.
    let long = vec![b'y'; 900_000];
    let echoed = node.post(&format!("/{kind}?to=called"), &long);
    assert!(echoed.text().ends_with("yyy"), "{kind}: {}", echoed.status);
    assert_eq!(echoed.body.len(), format!("POST /  function {kind} ").len() + long.len());
    let (_, text) = ask("to=called&path=/large&query=bytes=1000000", b"");
    assert!(text.starts_with("failed 502: called answered with more than 960 KiB"), "{text}");
    // The deadline of the called function is the rest of the caller's time, or less if the caller
    // asks for less.
    let remaining: u64 = ask("to=called&path=/remaining", b"").1.parse().expect("a number");
    assert!((1..=20_000).contains(&remaining), "{remaining}");
    let remaining: u64 =
        ask("to=called&path=/remaining&timeout=3", b"").1.parse().expect("a number");
    assert!((1..=3_000).contains(&remaining), "{remaining}");
    let began = Instant::now();
    let (_, text) = ask("to=called&path=/wait&timeout=0.2", b"");
    assert!(text.starts_with("failed 504:"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn python_functions_call_others() {
    let node = node_with_called();
    let files = |text| [("handler.py", text), ("mote.toml", MANIFEST)];
    node.deploy_ok("python", &files(PYTHON));
    check(&node, "python");
    node.deploy_ok("loop", &files(LOOP));
    check(&node, "loop");
}

#[test]
fn node_functions_call_others() {
    let node = node_with_called();
    node.deploy_ok("node", &[("handler.js", NODE), ("mote.toml", MANIFEST)]);
    check(&node, "node");
}

#[test]
fn go_functions_call_others() {
    let node = node_with_called();
    if !golang::prepare(&node) {
        return skip("go_functions_call_others", "Go is not installed");
    }
    let module = "module function\n\ngo 1.21\n";
    node.deploy_ok("go", &[("handler.go", GO), ("go.mod", module), ("mote.toml", MANIFEST)]);
    check(&node, "go");
}

#[test]
fn a_cycle_of_calls_ends() {
    let node = node_with_called();
    let files = |text| [("handler.py", text), ("mote.toml", MANIFEST)];
    node.deploy_ok("python", &files(PYTHON));
    node.deploy_ok("loop", &files(LOOP));
    let (status, text) = {
        let answer = node.post("/python?to=loop&query=to=python", b"");
        (answer.status, answer.text())
    };
    assert_eq!(status, 400);
    assert_eq!(text, "invalid 0: a cycle of calls: python calls loop calls python");
    let own = node.post("/python?to=python", b"").text();
    assert_eq!(own, "invalid 0: a cycle of calls: python calls python");
}

#[test]
fn functions_call_each_other_only_so_deep() {
    const RELAY: &str = r#"
async def handle(event, ctx):
    number = int(ctx.function[1:])
    try:
        return (await ctx.call("f%d" % (number + 1))).text
    except ctx.kv.Error as error:
        return str(error)
"#;
    let manifest = "version = 1\n[allow]\nfunctions = [\"*\"]\n[limits]\ntimeout = \"60s\"\n";
    let node = Node::start();
    for number in 0..17 {
        let name = format!("f{number}");
        node.deploy_ok(&name, &[("handler.py", RELAY), ("mote.toml", manifest)]);
    }
    let text = node.get("/f0").text();
    assert!(text.starts_with("more than 16 functions call each other: f0 calls f1"), "{text}");
    assert!(text.ends_with("f15 calls f16"), "{text}");
    assert_eq!(node.get("/f16").text(), "no function named f17");
}

#[test]
fn a_caller_that_leaves_cancels_what_it_called() {
    let node = node_with_called();
    node.deploy_ok("loop", &[("handler.py", LOOP), ("mote.toml", MANIFEST)]);
    let logs = || node.ok(&["logs", "called"]);
    let mut client = std::net::TcpStream::connect(node.http).expect("connects");
    let request = "GET /loop?to=called&path=/wait HTTP/1.1\r\nhost: localhost\r\n\r\n";
    std::io::Write::write_all(&mut client, request.as_bytes()).expect("sent");
    wait_for("the call to run", || logs().contains("stdout: waits").then_some(()));
    drop(client);
    wait_for("the call to end", || logs().contains("was cancelled").then_some(()));
}

#[test]
fn more_calls_at_once_than_allowed_are_refused_and_the_rest_answered() {
    const FAN: &str = r#"
import asyncio

async def handle(event, ctx):
    calls = [ctx.call("called", timeout=10) for _ in range(int(event.args["calls"]))]
    results = await asyncio.gather(*calls, return_exceptions=True)
    refused = [one for one in results if isinstance(one, Exception)]
    return "%d answered, %d refused: %s" % (len(results) - len(refused), len(refused), refused[0] if refused else "")
"#;
    let node = node_with_called();
    let manifest = "version = 1\n[allow]\nfunctions = [\"*\"]\n";
    node.deploy_ok("fan", &[("handler.py", FAN), ("mote.toml", manifest)]);
    assert_eq!(node.get("/fan?calls=64").text(), "64 answered, 0 refused: ");
    let text = node.get("/fan?calls=100").text();
    assert!(text.contains("more than 64 calls of one invocation at once"), "{text}");
    assert_eq!(node.get("/fan?calls=64").text(), "64 answered, 0 refused: ");
}

#[test]
fn functions_hand_over_calls_that_run_later() {
    const PYTHON: &str = r#"
def handle(event, ctx):
    if event.path == "/refused":
        try:
            return ctx.call_async("secret", "x")
        except ctx.kv.Error as error:
            return error.code
    return ctx.call_async("counter", event.body, path="/from/python", key=event.args.get("key"), delay=float(event.args.get("delay", 0)))
"#;
    const NODE: &str = r#"
export const handle = (event, ctx) => ctx.callAsync('counter', event.body, { path: '/from/node' });
"#;
    const COUNTER: &str = r#"
def handle(event, ctx):
    ctx.kv.put("last", "%s %s %s %s" % (event.path, event.trigger, event.text, event.id))
    ctx.kv.increment("runs")
"#;
    let manifest = "version = 1\n[allow]\nfunctions = [\"counter\"]\n";
    let mut node = Node::start();
    node.deploy_ok("counter", &[("handler.py", COUNTER)]);
    node.deploy_ok("python", &[("handler.py", PYTHON), ("mote.toml", manifest)]);
    node.deploy_ok("node", &[("handler.js", NODE), ("mote.toml", manifest)]);
    assert_eq!(node.get("/python/refused").text(), "denied");
    let runs = |node: &Node, wanted: &str| {
        let read = node.mote(&["kv", "get", "counter", "runs"]);
        (String::from_utf8_lossy(&read.stdout) == wanted).then_some(())
    };
    let id = node.post("/python", b"one").text();
    assert_eq!(id.len(), 26, "{id}");
    wait_for("the first call", || runs(&node, "1"));
    let last = node.ok(&["kv", "get", "counter", "last"]);
    assert_eq!(last, format!("/from/python function one {id}"));
    let id = node.post("/node", b"two").text();
    wait_for("the second call", || runs(&node, "2"));
    let last = node.ok(&["kv", "get", "counter", "last"]);
    assert_eq!(last, format!("/from/node function two {id}"));
    // Two calls with the same key count as one call.
    let first = node.post("/python?key=once", b"three").text();
    assert_eq!(node.post("/python?key=once", b"three").text(), first);
    wait_for("the third call", || runs(&node, "3"));
    // An accepted call survives a crash.
    node.post("/python?delay=1", b"four");
    node = node.crash_and_restart();
    wait_for("the call after the crash", || runs(&node, "4"));
    assert!(node.ok(&["kv", "get", "counter", "last"]).contains(" four "));
}

/// A header field from an outside caller has no influence on the chain.
#[test]
fn what_a_function_may_call_is_in_its_manifest_alone() {
    let node = node_with_called();
    node.deploy_ok("python", &[("handler.py", PYTHON)]);
    let answer = node.call(
        "POST",
        "/python?to=called",
        &[("mote-chain", "called"), ("x-allow-functions", "*")],
        b"",
    );
    assert!(answer.text().starts_with("denied 0:"), "{}", answer.text());
}
