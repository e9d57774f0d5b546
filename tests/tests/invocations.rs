//! Invocations that are accepted for later, over HTTP, CoAP, the management API and the command
//! line: their attempts, results, dead letters and recipients (reliability: T-KILL).

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mote_tests::{Connection, Node, coap_client, is_long, skip, wait_for};
use serde_json::Value;

const ASYNC: (&str, &str) = ("prefer", "respond-async");

const ECHO: &str = "def handle(event, ctx):\n    return event.body\n";

/// Fails until the attempt whose number is in the body.
const FLAKY: &str = "def handle(event, ctx):\n    \
    attempt = int(event.headers.get('mote-attempt', '1'))\n    \
    if attempt < int(event.body):\n        raise ValueError('not yet')\n    \
    return str(attempt)\n";

fn quick_retries(more: &str) -> String {
    format!("version = 1\n[async]\nbackoff = \"1ms\"\n{more}\n")
}

/// Sends one invocation, which must be accepted. Returns its id.
fn accept(node: &Node, path: &str, headers: &[(&str, &str)], body: &[u8]) -> String {
    let mut all = vec![ASYNC];
    all.extend_from_slice(headers);
    let answer = node.call("POST", path, &all, body);
    assert_eq!(answer.status, 202, "{}", answer.text());
    let id = answer.json()["id"].as_str().expect("an id").to_owned();
    assert_eq!(answer.header("location"), Some(&format!("/_invocations/{id}")[..]));
    assert_eq!(answer.header("preference-applied"), Some("respond-async"));
    id
}

fn show(node: &Node, id: &str) -> Value {
    node.get(&format!("/_invocations/{id}")).json()
}

/// Waits for the end of an invocation and returns it.
fn ended(node: &Node, id: &str) -> Value {
    wait_for("the invocation to end", || {
        let shown = show(node, id);
        let ended = !matches!(shown["state"].as_str(), Some("waiting" | "running"));
        ended.then_some(shown)
    })
}

#[test]
fn a_caller_that_does_not_wait_finds_the_result_later() {
    let node = Node::start();
    node.deploy_ok("echo", &[("app.py", ECHO)]);
    let id = accept(&node, "/echo", &[("content-type", "text/x-test")], b"later");
    let shown = ended(&node, &id);
    assert_eq!(shown["state"], "succeeded");
    assert_eq!(shown["status"], 200);
    assert_eq!(shown["attempts"], 1);
    assert_eq!(shown["body"], "later");
    let result = node.get(&format!("/_invocations/{id}/result"));
    assert_eq!((result.status, result.text().as_str()), (200, "later"));
    // The management API and the command line show the same.
    let told = node.json(&["invocation", "show", &id, "-o", "json"]);
    assert_eq!((&told["state"], &told["trigger"]), (&shown["state"], &Value::from("http")));
    assert_eq!(node.ok(&["invocation", "result", &id]), "later");
    assert!(node.ok(&["invocation", "list"]).contains(&id));
    let waited = node.call("POST", "/echo", &[("prefer", "respond-async, wait=20")], b"now");
    assert_eq!((waited.status, waited.text().as_str()), (200, "now"));
    // Without the preference, the call is answered directly.
    assert_eq!(node.post("/echo", b"sync").text(), "sync");
    assert_eq!(node.call("POST", "/echo", &[("prefer", "wait=1")], b"sync").status, 200);
    let list = node.json(&["invocation", "list", "-o", "json"]);
    assert_eq!(list["invocations"].as_array().map(Vec::len), Some(2), "{list}");
    let id = node.ok(&["invoke", "echo", "--async", "-d", "cli"]);
    assert_eq!(ended(&node, id.trim())["trigger"], "admin");
    // A list that leaves out some invocations says so.
    for (limit, is_cut) in [("2", true), ("3", false)] {
        let listed = node.mote(&["invocation", "list", "--limit", limit]);
        let said = String::from_utf8_lossy(&listed.stderr).into_owned();
        assert_eq!(said.contains("these are the newest 2 of more"), is_cut, "{said}");
    }
}

#[test]
fn wrong_wishes_and_unknown_ids_are_refused() {
    let node = Node::start();
    node.deploy_ok("echo", &[("app.py", ECHO)]);
    for (field, value, expected) in [
        ("mote-after", "soon", "Mote-After"),
        ("mote-at", "noon", "Mote-At"),
        ("mote-after", "9000h", "366 days"),
        ("idempotency-key", "", "1 to 255"),
        ("idempotency-key", "schedule/1/2", "begins with schedule/"),
        ("mote-order-key", "schedule/1", "begins with schedule/"),
    ] {
        let answer = node.call("POST", "/echo", &[ASYNC, (field, value)], b"");
        assert_eq!(answer.status, 400, "{field}: {value}");
        assert_eq!(answer.json()["code"], "M0516");
        assert!(answer.text().contains(expected), "{}", answer.text());
    }
    for path in ["", "/x", "/01M83DE5PFF5N1ZTG87M7S1BJC", "/01M83DE5PFF5N1ZTG87M7S1BJC/result"] {
        let answer = node.get(&format!("/_invocations{path}"));
        assert_eq!((answer.status, answer.json()["code"].clone()), (404, "M0517".into()), "{path}");
    }
    assert_eq!(node.post("/_invocations/x", b"").status, 405);
    let output = node.mote(&["invocation", "show", "nonsense"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("M0517"), "{text}");
    let output = node.mote(&["invocation", "list", "--state", "sleepy"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("waiting, running, succeeded, dead, cancelled"), "{text}");
    assert_eq!(node.call("POST", "/nothing", &[ASYNC], b"").status, 404);
    assert!(!node.dir.path().join("data/journal.db").exists(), "nothing was accepted");
}

#[test]
fn failures_are_tried_again_and_end_as_dead_letters() {
    let node = Node::start();
    let manifest = quick_retries("attempts = 4");
    node.deploy_ok("flaky", &[("app.py", FLAKY), ("mote.toml", &manifest)]);
    let id = accept(&node, "/flaky", &[], b"4");
    let shown = ended(&node, &id);
    assert_eq!((&shown["state"], &shown["attempts"]), (&"succeeded".into(), &4.into()), "{shown}");
    assert_eq!(shown["body"], "4");
    let id = accept(&node, "/flaky", &[], b"5");
    let shown = ended(&node, &id);
    assert_eq!((&shown["state"], &shown["attempts"]), (&"dead".into(), &4.into()), "{shown}");
    assert_eq!(shown["fault"], "M0510");
    assert!(!shown.to_string().contains("not yet"), "the network sees no text of the function");
    let result = node.get(&format!("/_invocations/{id}/result"));
    assert_eq!((result.status, result.json()["code"].clone()), (500, "M0510".into()));
    let socket = node.dir.path().join("s");
    let scraped = std::process::Command::new("curl")
        .args(["--silent", "--unix-socket"])
        .arg(socket)
        .arg("http://mote/metrics")
        .output()
        .expect("curl runs");
    let scraped = String::from_utf8_lossy(&scraped.stdout).into_owned();
    for line in [
        "mote_accepted_invocations 0",
        "mote_accepted_invocations_succeeded_total 1",
        "mote_accepted_invocations_repeated_total 6",
        "mote_dead_letters_total 1",
    ] {
        assert!(scraped.lines().any(|found| found == line), "{line} is not in {scraped}");
    }
    let listed = node.ok(&["dead-letters", "list"]);
    assert!(listed.contains(&id) && listed.contains("not yet"), "{listed}");
    // A dead letter survives a restart, and can be run again after the function was repaired.
    let node = node.crash_and_restart();
    node.deploy_ok("flaky", &[("app.py", ECHO), ("mote.toml", &manifest)]);
    node.ok(&["dead-letters", "retry", &id]);
    let shown = ended(&node, &id);
    assert_eq!((&shown["state"], &shown["body"]), (&"succeeded".into(), &"5".into()));
    let again = node.mote(&["dead-letters", "retry", &id]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("M0518"));
    node.deploy_ok("flaky", &[("app.py", FLAKY), ("mote.toml", &quick_retries("attempts = 1"))]);
    let dead = [accept(&node, "/flaky", &[], b"9"), accept(&node, "/flaky", &[], b"9")];
    for id in &dead {
        assert_eq!(ended(&node, id)["attempts"], 1);
    }
    node.ok(&["dead-letters", "delete", "--function", "flaky", "--yes"]);
    let list = node.json(&["dead-letters", "list", "-o", "json"]);
    assert_eq!(list["invocations"], Value::Array(Vec::new()));
    assert_eq!(node.get(&format!("/_invocations/{}", dead[0])).status, 404);
}

#[test]
fn an_idempotency_key_is_accepted_once() {
    let node = Node::start();
    node.deploy_ok("echo", &[("app.py", ECHO)]);
    node.deploy_ok("other", &[("app.py", ECHO)]);
    let key = [("idempotency-key", "\"order 7\"")];
    let first = accept(&node, "/echo", &key, b"one");
    assert_eq!(accept(&node, "/echo", &key, b"one"), first);
    // A caller who knows the key but sends another request does not learn the id.
    let other = node.call("POST", "/echo", &[ASYNC, key[0]], b"two");
    assert_eq!((other.status, other.json()["code"].clone()), (400, "M0516".into()));
    assert_ne!(accept(&node, "/other", &key, b"three"), first);
    assert_eq!(ended(&node, &first)["body"], "one");
    let node = node.crash_and_restart();
    assert_eq!(accept(&node, "/echo", &key, b"one"), first);
    assert_eq!(ended(&node, &first)["body"], "one");
    // A cancelled invocation gives up its key.
    let late = [("idempotency-key", "late"), ("mote-after", "1h")];
    let id = accept(&node, "/echo", &late, b"x");
    node.ok(&["invocation", "cancel", &id]);
    assert_ne!(accept(&node, "/echo", &late, b"x"), id);
    node.ok(&["invocation", "cancel", "--function", "echo"]);
    let list = node.json(&["invocation", "list", "--state", "waiting", "-o", "json"]);
    assert_eq!(list["invocations"], Value::Array(Vec::new()));
}

#[test]
fn a_tag_chooses_the_revision_and_nobody_forges_the_fields_of_the_journal() {
    let node = Node::start();
    node.deploy_ok("which", &[("app.py", "def handle(event, ctx):\n    return 'live'\n")]);
    let folder = node.dir.path().join("src/which");
    let code = "def handle(event, ctx):\n    \
        return 'next ' + str([name for name in event.headers if name.startswith('mote-')])\n";
    std::fs::write(folder.join("app.py"), code).expect("written");
    let folder = folder.to_str().expect("UTF-8");
    node.ok(&["deploy", folder, "--name", "which", "--tag", "next"]);
    let forged = [
        ("Mote-Attempt", "7"),
        ("mote-source", "other"),
        ("mote-source-status", "200"),
        ("mote-schedule-due", "2026-01-01T00:00:00Z"),
    ];
    assert_eq!(node.call("GET", "/which@next", &forged, b"").text(), "next []");
    let disguised = [("mote_source", "other"), ("Mote_Schedule", "x"), ("mote_step", "3")];
    let answer = node.call("GET", "/which@next", &disguised, b"").text();
    assert_eq!(answer, "next []");
    let code = "def handle(event, ctx):\n    return ctx.call('which@next', headers={'mote-source': 'x', 'mote-step': 'y'}).text\n";
    let manifest = "version = 1\n[allow]\nfunctions = [\"which\"]\n";
    node.deploy_ok("caller", &[("app.py", code), ("mote.toml", manifest)]);
    assert_eq!(node.get("/caller").text(), "next []", "nor does a function");
    let id = accept(&node, "/which@next", &forged, b"");
    assert_eq!(ended(&node, &id)["body"], "next []");
    let id = accept(&node, "/which", &[], b"");
    assert_eq!(ended(&node, &id)["body"], "live");
}

#[test]
fn invocations_wait_for_their_time_and_can_be_cancelled() {
    let node = Node::start();
    node.deploy_ok("echo", &[("app.py", ECHO)]);
    let slow = "import asyncio\nasync def handle(event, ctx):\n    await asyncio.sleep(600)\n";
    let manifest = "version = 1\n[limits]\ntimeout = \"1h\"\n";
    node.deploy_ok("slow", &[("app.py", slow), ("mote.toml", manifest)]);
    let began = Instant::now();
    let id = accept(&node, "/echo", &[("mote-after", "700ms")], b"x");
    assert_eq!(show(&node, &id)["state"], "waiting");
    assert_eq!(node.get(&format!("/_invocations/{id}/result")).status, 202);
    assert_eq!(ended(&node, &id)["state"], "succeeded");
    assert!(began.elapsed() >= Duration::from_millis(700), "{:?}", began.elapsed());
    let past = accept(&node, "/echo", &[("mote-at", "2020-01-01T00:00:00Z")], b"past");
    assert_eq!(ended(&node, &past)["body"], "past");
    let later = accept(&node, "/echo", &[("mote-after", "1h")], b"x");
    assert_eq!(node.call("DELETE", &format!("/_invocations/{later}"), &[], b"").status, 204);
    assert_eq!(ended(&node, &later)["state"], "cancelled");
    assert_eq!(node.get(&format!("/_invocations/{later}/result")).status, 410);
    let again = node.call("DELETE", &format!("/_invocations/{later}"), &[], b"");
    assert_eq!((again.status, again.json()["code"].clone()), (409, "M0518".into()));
    let running = accept(&node, "/slow", &[], b"");
    wait_for("it runs", || (show(&node, &running)["state"] == "running").then_some(()));
    assert!(node.ok(&["invocation", "cancel", &running]).contains("is being ended"));
    assert_eq!(ended(&node, &running)["state"], "cancelled");
    // However often an invocation is cancelled, its place is given back only once. The function has
    // one place for this work, so the last invocation runs only if all others have given theirs
    // back.
    let one = "version = 1\n[limits]\ntimeout = \"1h\"\n[async]\nconcurrency = 1\n";
    node.deploy_ok("slow", &[("app.py", slow), ("mote.toml", one)]);
    for _ in 0..10 {
        let id = accept(&node, "/slow", &[], b"");
        wait_for("it runs", || (show(&node, &id)["state"] == "running").then_some(()));
        let cancels: Vec<_> = (0..4)
            .map(|_| {
                let http = node.http;
                let path = format!("/_invocations/{id}");
                std::thread::spawn(move || {
                    Connection::open(http).call("DELETE", &path, &[], b"").status
                })
            })
            .collect();
        for cancel in cancels {
            let status = cancel.join().expect("a client");
            assert!(matches!(status, 202 | 409), "{status}");
        }
        assert_eq!(ended(&node, &id)["state"], "cancelled");
    }
}

#[test]
fn who_removes_a_function_learns_what_waits_for_it() {
    let node = Node::start();
    node.deploy_ok("late", &[("app.py", "def handle(event, ctx):\n    return ''\n")]);
    accept(&node, "/late", &[("mote-after", "1h")], b"");
    let said = node.mote(&["remove", "--yes", "late"]);
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(text.contains("1 accepted invocation still waits for a function"), "{text}");
    node.ok(&["invocation", "cancel", "--function", "late"]);
}

#[test]
fn what_was_accepted_for_a_removed_function_runs_once_it_is_deployed_again() {
    let node = Node::start();
    node.deploy_ok("back", &[("app.py", ECHO)]);
    node.deploy_ok("other", &[("app.py", ECHO)]);
    let id = accept(&node, "/back", &[("mote-after", "2s")], b"kept");
    node.ok(&["remove", "--yes", "back"]);
    // This invocation is due later, so by the time it has ended, the first one is due.
    let other = accept(&node, "/other", &[("mote-after", "3s")], b"");
    assert_eq!(ended(&node, &other)["state"], "succeeded");
    assert_eq!(show(&node, &id)["state"], "waiting");
    node.deploy_ok("back", &[("app.py", ECHO)]);
    let shown = ended(&node, &id);
    assert_eq!((&shown["state"], &shown["body"]), (&"succeeded".into(), &"kept".into()), "{shown}");
    assert_eq!(shown["attempts"], 1);
}

#[test]
fn an_order_key_keeps_the_order_through_failures() {
    let node = Node::start();
    let manifest = quick_retries("attempts = 9");
    // Each body succeeds at a different attempt, but the order must stay the same.
    let code = "order = []\n\
        def handle(event, ctx):\n    \
        if event.method == 'GET':\n        return ','.join(order)\n    \
        number = int(event.body)\n    \
        if int(event.headers.get('mote-attempt', '1')) <= number % 3:\n        raise ValueError\n    \
        order.append(str(number))\n";
    node.deploy_ok("ordered", &[("app.py", code), ("mote.toml", &manifest)]);
    let key = [("mote-order-key", "line 1")];
    let ids: Vec<_> = (0..12)
        .map(|number| accept(&node, "/ordered", &key, number.to_string().as_bytes()))
        .collect();
    assert_eq!(ended(&node, &ids[11])["state"], "succeeded");
    let expected: Vec<String> = (0..12).map(|number: u32| number.to_string()).collect();
    assert_eq!(node.get("/ordered").text(), expected.join(","));
}

#[test]
fn results_go_to_functions_and_addresses() {
    let node = Node::start();
    let sink = "seen = []\ndef handle(event, ctx):\n    \
        if event.method == 'GET':\n        return '\\n'.join(sorted(seen))\n    \
        h = event.headers\n    \
        seen.append(' '.join([h['mote-source'], h['mote-source-status'], h['mote-source-attempts'], \
        event.body.decode()]))\n";
    node.deploy_ok("sink", &[("app.py", sink)]);
    let recipients = "attempts = 2\non_success = { function = \"sink\" }\n\
                      on_failure = { function = \"sink\" }";
    let manifest = quick_retries(recipients);
    node.deploy_ok("flaky", &[("app.py", FLAKY), ("mote.toml", &manifest)]);
    accept(&node, "/flaky", &[], b"2");
    accept(&node, "/flaky", &[], b"3");
    let seen = wait_for("both results", || {
        let text = node.get("/sink").text();
        (text.lines().count() == 2).then_some(text)
    });
    // After a success the record carries the answer. After a failure it carries the request.
    assert_eq!(seen, "flaky 200 2 2\nflaky 500 2 3");
    // Two functions that send their results to each other are stopped.
    let to = |name: &str| quick_retries(&format!("on_success = {{ function = \"{name}\" }}"));
    node.deploy_ok("ping", &[("app.py", ECHO), ("mote.toml", &to("pong"))]);
    node.deploy_ok("pong", &[("app.py", ECHO), ("mote.toml", &to("ping"))]);
    accept(&node, "/ping", &[], b"ball");
    wait_for("the loop ends", || node.log().contains("looks like a loop").then_some(()));
    // The node sends nothing to an address of this machine unless the node's owner allows it.
    let manifest = quick_retries("on_success = { url = \"http://127.0.0.1:9/\" }");
    node.deploy_ok("tells", &[("app.py", ECHO), ("mote.toml", &manifest)]);
    accept(&node, "/tells", &[], b"x");
    let dead = wait_for("the result becomes a dead letter", || {
        let list = node.json(&["dead-letters", "list", "--function", "tells", "-o", "json"]);
        list["invocations"].get(0).cloned()
    });
    assert_eq!(dead["trigger"], "result");
    assert!(dead["detail"].as_str().unwrap_or("").contains("`outgoing`"), "{dead}");
}

#[test]
fn coap_clients_need_not_wait_either() {
    let Some(client) = coap_client() else {
        return skip("CoAP", "no coap-client");
    };
    let node = Node::start();
    node.deploy_ok("echo", &[("app.py", ECHO)]);
    let ask = |arguments: &[&str]| {
        let output = std::process::Command::new(client)
            .args(["-B", "10", "-v", "6"])
            .args(arguments)
            .output()
            .expect("coap-client runs");
        format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    };
    let url = format!("coap://{}/echo", node.coap);
    let text = ask(&["-m", "post", "-O", "65000,prefer: respond-async", "-e", "over CoAP", &url]);
    assert!(text.contains("2.01") && text.contains("Location-Path:_invocations"), "{text}");
    let at = text.find("\"location\":\"").expect("a location") + 12;
    let location = &text[at..at + 40];
    let id = location.strip_prefix("/_invocations/").expect("its path");
    assert_eq!(ended(&node, id)["trigger"], "coap");
    let text = ask(&["-m", "get", &format!("coap://{}{location}/result", node.coap)]);
    assert!(text.contains("2.05") && text.contains("over CoAP"), "{text}");
    // The client can tell a missing result from a finished one.
    let wishes = ["-O", "65000,prefer: respond-async", "-O", "65000,mote-after: 1h"];
    let text = ask(&[&["-m", "post", "-e", "later"][..], &wishes, &[&url]].concat());
    let at = text.find("\"location\":\"").expect("a location") + 12;
    let location = &text[at..at + 40];
    let text = ask(&["-m", "get", &format!("coap://{}{location}/result", node.coap)]);
    assert!(text.contains("5.03") && text.contains("Max-Age:1"), "{text}");
    let long = format!("65000,prefer: {}", "x".repeat(300));
    let text = ask(&["-m", "post", "-O", &long, "-e", "x", &url]);
    assert!(text.contains("option 65000 is longer than 255 bytes"), "{text}");
}

#[test]
fn background_work_leaves_room_for_callers() {
    let node = Node::start();
    let code = "import asyncio\nasync def handle(event, ctx):\n    \
        await asyncio.sleep(0.2 if event.body else 0)\n    return 'done'\n";
    let manifest = "version = 1\n[limits]\nconcurrency = 2\n[scale]\nmax = 1\n";
    node.deploy_ok("busy", &[("app.py", code), ("mote.toml", manifest)]);
    let ids: Vec<_> = (0..30).map(|_| accept(&node, "/busy", &[], b"long")).collect();
    // One of the two places stays free for callers.
    for _ in 0..10 {
        let answer = node.get("/busy");
        assert_eq!(answer.text(), "done");
    }
    let waiting = node.json(&["invocation", "list", "--state", "waiting", "-o", "json"]);
    let waiting = waiting["invocations"].as_array().map_or(0, Vec::len);
    assert!(waiting > 0, "the callers were answered only after the background work");
    node.ok(&["invocation", "cancel", &ids[29]]);
}

/// Clients that send invocations, each with a key. If the node is killed, the clients send again
/// once it is back, until each invocation has been accepted.
struct Senders {
    accepted: Arc<Mutex<HashMap<usize, String>>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Senders {
    fn start(count: usize, total: usize, address: Arc<Mutex<std::net::SocketAddr>>) -> Self {
        let accepted = Arc::new(Mutex::new(HashMap::new()));
        let next = Arc::new(AtomicUsize::new(0));
        let threads = (0..count)
            .map(|_| {
                let accepted = accepted.clone();
                let next = next.clone();
                let address = address.clone();
                std::thread::spawn(move || {
                    loop {
                        let number = next.fetch_add(1, Ordering::SeqCst);
                        if number >= total {
                            return;
                        }
                        let id = send_until_accepted(number, &address);
                        accepted.lock().expect("not poisoned").insert(number, id);
                    }
                })
            })
            .collect();
        Self { accepted, threads }
    }

    fn count(&self) -> usize {
        self.accepted.lock().expect("not poisoned").len()
    }
}

fn send_until_accepted(number: usize, address: &Mutex<std::net::SocketAddr>) -> String {
    let key = format!("key-{number}");
    let body = number.to_string();
    loop {
        let at = *address.lock().expect("not poisoned");
        let Ok(mut connection) = Connection::try_open(at) else {
            std::thread::yield_now();
            continue;
        };
        let headers = [ASYNC, ("idempotency-key", key.as_str())];
        match connection.try_call("POST", "/count", &headers, body.as_bytes()) {
            Ok(answer) if answer.status == 202 => {
                return answer.json()["id"].as_str().expect("an id").to_owned();
            }
            // The journal is full, or the node is stopping.
            Ok(answer) if matches!(answer.status, 429 | 503) => std::thread::yield_now(),
            Ok(answer) => panic!("{}: {}", answer.status, answer.text()),
            Err(_) => {}
        }
    }
}

#[test]
fn nothing_that_was_accepted_is_lost_when_the_node_is_killed() {
    let (total, kills) = if is_long() { (100_000, 200) } else { (3_000, 8) };
    let mut node = Node::start();
    let address = Arc::new(Mutex::new(node.http));
    node.deploy_ok("count", &[("app.mjs", "export default async (event) => event.body;\n")]);
    let senders = Senders::start(8, total, address.clone());
    for kill in 1..=kills {
        // Kills are spread over the whole run. Their moments depend on the progress of the run.
        let goal = total * kill / (kills + 1);
        wait_for("more accepted invocations", || (senders.count() >= goal).then_some(()));
        node = node.crash_and_restart();
        *address.lock().expect("not poisoned") = node.http;
    }
    for thread in senders.threads {
        thread.join().expect("a sender");
    }
    let accepted = senders.accepted.lock().expect("not poisoned").clone();
    assert_eq!(accepted.len(), total);
    let mut connection = Connection::open(node.http);
    let mut again = 0;
    for (number, id) in &accepted {
        let shown = wait_for("an accepted invocation to end", || {
            let answer = connection.call("GET", &format!("/_invocations/{id}"), &[], b"");
            assert_eq!(answer.status, 200, "invocation {number} is lost: {}", answer.text());
            let shown = answer.json();
            (shown["state"] == "succeeded").then_some(shown)
        });
        assert_eq!(shown["body"], number.to_string().as_str(), "its own result");
        again += usize::from(shown["attempts"] != 1);
    }
    let mut ids: Vec<&String> = accepted.values().collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), total, "each key has one invocation");
    println!("{total} accepted, {kills} kills, 0 lost, {again} with more than one attempt");
}
