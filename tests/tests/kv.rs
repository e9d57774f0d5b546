//! The state of functions (`ctx.kv`) on a real node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mote_tests::{Connection, Node, golang, skip};

/// Serves one operation per path. The operations use `kv`.
const PYTHON: &str = r#"
def run(kv, event):
    args = event.args
    key = args.get("key", "k")
    if event.path == "/put":
        version = int(args["version"]) if "version" in args else None
        ttl = float(args["ttl"]) if "ttl" in args else None
        return kv.put(key, event.body, version=version, ttl=ttl, durable="fast" not in args)
    if event.path == "/get":
        return kv.get(key, b"none")
    if event.path == "/entry":
        return kv.entry(key)
    if event.path == "/delete":
        return kv.delete(key)
    if event.path == "/increment":
        return kv.increment(key, int(args.get("by", 1)), durable="fast" not in args)
    if event.path == "/list":
        return kv.list(args.get("prefix", ""), limit=int(args.get("limit", 0)), after=args.get("after"))

def shown(value):
    if isinstance(value, list):
        return {"entries": {one.key: one.text for one in value}, "after": value.after}
    if hasattr(value, "version"):
        return {"text": value.text, "version": value.version, "expires": value.expires_ms is not None}
    return value if isinstance(value, bytes) else str(value)
"#;
const PYTHON_SYNC: &str = r#"
def handle(event, ctx):
    kv = ctx.kv.shared(event.args["shared"]) if "shared" in event.args else ctx.kv
    try:
        return shown(run(kv, event))
    except ctx.kv.Conflict as error:
        return "conflict %d" % error.version, 409
    except ctx.kv.Error as error:
        return "%s: %s" % (error.code, error), 400
"#;
const PYTHON_ASYNC: &str = r#"
import asyncio

async def handle(event, ctx):
    if event.path == "/many":
        sums = await asyncio.gather(*[ctx.kv.increment("many", durable=False) for _ in range(1000)])
        return str(max(sums))
    kv = ctx.kv.shared(event.args["shared"]) if "shared" in event.args else ctx.kv
    try:
        return shown(await run(kv, event))
    except ctx.kv.Conflict as error:
        return "conflict %d" % error.version, 409
    except ctx.kv.Error as error:
        return "%s: %s" % (error.code, error), 400
"#;
const NODE: &str = r#"
const shown = (value) => {
  if (Array.isArray(value)) return { entries: Object.fromEntries(value.map((one) => [one.key, one.text])), after: value.after };
  if (value?.version) return { text: value.text, version: value.version, expires: value.expiresMs !== null };
  return value instanceof Uint8Array ? value : { False: 'False' }[value] ?? String(value);
};
const word = (flag) => (flag ? 'True' : 'False');

export async function handle(event, ctx) {
  const { args, path } = event;
  const kv = 'shared' in args ? ctx.kv.shared(args.shared) : ctx.kv;
  const key = args.key ?? 'k';
  const durable = !('fast' in args);
  try {
    switch (path) {
      case '/many': {
        const sums = await Promise.all(Array.from({ length: 1000 }, () => kv.increment('many', 1, { durable: false })));
        return String(Math.max(...sums));
      }
      case '/put': {
        const version = 'version' in args ? Number(args.version) : undefined;
        return shown(await kv.put(key, event.body, { version, ttl: args.ttl && Number(args.ttl), durable }));
      }
      case '/get': return await kv.get(key) ?? 'none';
      case '/entry': return shown(await kv.entry(key) ?? 'None');
      case '/delete': return word(await kv.delete(key));
      case '/increment': return shown(await kv.increment(key, Number(args.by ?? 1), { durable }));
      case '/list': return shown(await kv.list(args.prefix ?? '', { limit: Number(args.limit ?? 0), after: args.after }));
    }
  } catch (error) {
    if (error.code === 'conflict') return new Response(`conflict ${error.version}`, { status: 409 });
    if (error.code) return new Response(`${error.code}: ${error.message}`, { status: 400 });
    throw error;
  }
}
"#;
const GO: &str = r#"package function

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"mote.internal/mote"
)

func Handle(w http.ResponseWriter, r *http.Request) {
	args := r.URL.Query()
	kv := mote.KV(r.Context())
	if name := args.Get("shared"); name != "" {
		kv = kv.Shared(name)
	}
	key := args.Get("key")
	if key == "" {
		key = "k"
	}
	options := mote.PutOptions{NotDurable: args.Has("fast")}
	if text := args.Get("version"); text != "" {
		version, _ := strconv.ParseUint(text, 10, 64)
		options.Version = &version
	}
	if text := args.Get("ttl"); text != "" {
		seconds, _ := strconv.ParseFloat(text, 64)
		options.TTL = time.Duration(seconds * float64(time.Second))
	}
	fail := func(err error) {
		if conflict, ok := err.(*mote.Error); ok && conflict.Code == "conflict" {
			w.WriteHeader(409)
			fmt.Fprintf(w, "conflict %d", conflict.Version)
			return
		}
		w.WriteHeader(400)
		fmt.Fprint(w, err)
	}
	switch r.URL.Path {
	case "/many":
		sums := make(chan int64, 1000)
		for i := 0; i < 1000; i++ {
			go func() {
				sum, _ := kv.Increment("many", 1, mote.PutOptions{NotDurable: true})
				sums <- sum
			}()
		}
		most := int64(0)
		for i := 0; i < 1000; i++ {
			most = max(most, <-sums)
		}
		fmt.Fprint(w, most)
	case "/put":
		body, _ := io.ReadAll(r.Body)
		version, err := kv.Put(key, body, options)
		if err != nil {
			fail(err)
			return
		}
		fmt.Fprint(w, version)
	case "/get", "/entry":
		entry, err := kv.Get(key)
		if err != nil {
			fail(err)
		} else if entry == nil && r.URL.Path == "/get" {
			fmt.Fprint(w, "none")
		} else if entry == nil {
			fmt.Fprint(w, "None")
		} else if r.URL.Path == "/get" {
			w.Write(entry.Value)
		} else {
			json.NewEncoder(w).Encode(map[string]any{"text": string(entry.Value), "version": entry.Version, "expires": !entry.Expires.IsZero()})
		}
	case "/delete":
		was, err := kv.Delete(key, options)
		if err != nil {
			fail(err)
			return
		}
		fmt.Fprint(w, map[bool]string{true: "True", false: "False"}[was])
	case "/increment":
		by := int64(1)
		if text := args.Get("by"); text != "" {
			by, _ = strconv.ParseInt(text, 10, 64)
		}
		sum, err := kv.Increment(key, by, options)
		if err != nil {
			fail(err)
			return
		}
		fmt.Fprint(w, sum)
	case "/list":
		limit, _ := strconv.Atoi(args.Get("limit"))
		entries, after, err := kv.List(args.Get("prefix"), mote.ListOptions{Limit: limit, After: args.Get("after")})
		if err != nil {
			fail(err)
			return
		}
		texts := map[string]string{}
		for _, entry := range entries {
			texts[entry.Key] = string(entry.Value)
		}
		shown := map[string]any{"entries": texts, "after": nil}
		if after != "" {
			shown["after"] = after
		}
		json.NewEncoder(w).Encode(shown)
	}
}
"#;
const MANIFEST: &str =
    "version = 1\n[kv]\nshared = [\"site\"]\nquota = \"1MiB\"\n[limits]\ntimeout = \"60s\"\n";

fn deploy(node: &Node, kind: &str) {
    let python = |handler| format!("{PYTHON}{handler}");
    match kind {
        "python" => {
            let text = python(PYTHON_SYNC);
            node.deploy_ok(kind, &[("handler.py", &text), ("mote.toml", MANIFEST)]);
        }
        "threads" => {
            let manifest = format!("{MANIFEST}concurrency = 8\n");
            let text = python(PYTHON_SYNC);
            node.deploy_ok(kind, &[("handler.py", &text), ("mote.toml", &manifest)]);
        }
        "loop" => {
            let text = python(PYTHON_ASYNC);
            node.deploy_ok(kind, &[("handler.py", &text), ("mote.toml", MANIFEST)]);
        }
        "node" => node.deploy_ok(kind, &[("handler.js", NODE), ("mote.toml", MANIFEST)]),
        _ => {
            let module = "module function\n\ngo 1.21\n";
            node.deploy_ok(
                kind,
                &[("handler.go", GO), ("go.mod", module), ("mote.toml", MANIFEST)],
            );
        }
    }
}

/// Checks the operations that every runtime offers. The answers must be the same.
fn check(node: &Node, kind: &str) {
    let ask = |path: &str, body: &[u8]| {
        let answer = node.post(&format!("/{kind}{path}"), body);
        (answer.status, answer.text())
    };
    let ok = |text: &str| (200, text.to_owned());
    assert_eq!(ask("/get", b""), ok("none"), "{kind}: {}", node.log());
    assert_eq!(ask("/entry", b"").1, "None");
    assert_eq!(ask("/put", b"one"), ok("1"));
    assert_eq!(ask("/put?fast=1", b"two"), ok("2"));
    assert_eq!(ask("/get", b""), ok("two"));
    let entry = node.post(&format!("/{kind}/entry"), b"").json();
    let expected = serde_json::json!({"text": "two", "version": 2, "expires": false});
    assert_eq!(entry, expected);
    // Compare and set.
    assert_eq!(ask("/put?version=1", b"x"), (409, "conflict 2".to_owned()));
    assert_eq!(ask("/put?version=0", b"x"), (409, "conflict 2".to_owned()));
    assert_eq!(ask("/put?version=2", b"three"), ok("3"));
    assert_eq!(ask("/delete", b""), ok("True"));
    assert_eq!(ask("/delete", b""), ok("False"));
    assert_eq!(ask("/put?version=0", b"new"), ok("4"));
    // Numbers.
    assert_eq!(ask("/increment?key=n", b""), ok("1"));
    assert_eq!(ask("/increment?key=n&by=-5", b""), ok("-4"));
    let (status, text) = ask("/increment?key=k", b"");
    assert_eq!(status, 400);
    assert!(text.contains("no whole number"), "{text}");
    // Listings.
    for key in ["a/1", "a/2", "a/3", "b"] {
        ask(&format!("/put?fast=1&key={key}"), key.as_bytes());
    }
    let list = |path: &str| node.post(&format!("/{kind}/list{path}"), b"").json();
    let expected = serde_json::json!({"entries": {"a/1": "a/1", "a/2": "a/2"}, "after": "a/2"});
    assert_eq!(list("?prefix=a/&limit=2"), expected);
    let expected = serde_json::json!({"entries": {"a/3": "a/3"}, "after": null});
    assert_eq!(list("?prefix=a/&after=a/2"), expected);
    // The time to live is kept. The unit tests cover the expiry itself.
    ask("/put?key=t&ttl=60", b"x");
    assert_eq!(node.post(&format!("/{kind}/entry?key=t"), b"").json()["expires"], true);
    // Shared namespaces.
    assert_eq!(ask("/put?shared=site&key=by", kind.as_bytes()).0, 200);
    let (status, text) = ask("/get?shared=other", b"");
    assert_eq!(status, 400);
    assert!(text.contains("[kv] shared"), "{text}");
    // Values up to 256 KiB are accepted, and no longer ones.
    let long = vec![b'x'; 256 << 10];
    assert_eq!(ask("/put?key=long", &long).0, 200);
    assert_eq!(node.post(&format!("/{kind}/get?key=long"), b"").body, long);
    let (status, text) = ask("/put?key=long", &vec![b'x'; (256 << 10) + 1]);
    assert_eq!(status, 400, "{text}");
    assert!(text.contains("at most 256 KiB"), "{text}");
    // The quota.
    let full = (0..8).map(|at| ask(&format!("/put?key=q{at}"), &long)).find(|got| got.0 != 200);
    let (status, text) = full.expect("more than the quota was written");
    assert_eq!(status, 400);
    assert!(text.contains("quota of 1048576"), "{text}");
}

#[test]
fn python_functions_keep_state() {
    let node = Node::start();
    for kind in ["python", "threads", "loop"] {
        deploy(&node, kind);
        check(&node, kind);
    }
    assert_eq!(node.post("/loop/many", b"").text(), "1000");
    assert_eq!(node.ok(&["kv", "get", "shared:site", "by"]), "loop");
}

#[test]
fn node_functions_keep_state() {
    let node = Node::start();
    deploy(&node, "node");
    check(&node, "node");
    assert_eq!(node.post("/node/many", b"").text(), "1000");
}

#[test]
fn go_functions_keep_state() {
    let node = Node::start();
    if !golang::prepare(&node) {
        return skip("go_functions_keep_state", "Go is not installed");
    }
    deploy(&node, "go");
    check(&node, "go");
    assert_eq!(node.post("/go/many", b"").text(), "1000");
}

#[test]
fn people_read_and_change_state() {
    let node = Node::start();
    deploy(&node, "python");
    assert!(!node.dir.path().join("data/state.db").exists(), "nothing is kept yet");
    assert_eq!(node.ok(&["kv", "list"]), "");
    assert!(!node.dir.path().join("data/state.db").exists(), "a look writes nothing");
    node.ok(&["kv", "put", "python", "k", "from people"]);
    assert_eq!(node.get("/python/get").text(), "from people");
    node.post("/python/put?key=a", b"from the function");
    assert_eq!(node.ok(&["kv", "get", "python", "a"]), "from the function");
    assert_eq!(node.ok(&["kv", "increment", "python", "n", "41"]), "41\n");
    assert_eq!(node.post("/python/increment?key=n", b"").text(), "42");
    assert_eq!(node.ok(&["kv", "increment", "python", "n", "-2"]), "40\n");
    let keys = node.json(&["kv", "list", "python", "-o", "json"]);
    let keys: Vec<_> = keys
        .as_array()
        .map(|all| all.iter().map(|one| one["key"].clone()).collect())
        .unwrap_or_else(|| {
            keys["entries"]
                .as_array()
                .expect("entries")
                .iter()
                .map(|one| one["key"].clone())
                .collect()
        });
    assert_eq!(keys, ["a", "k", "n"]);
    let conflict = node.mote(&["kv", "put", "python", "k", "x", "--if-version", "99"]);
    assert!(String::from_utf8_lossy(&conflict.stderr).contains("M0902"), "{conflict:?}");
    node.ok(&["kv", "delete", "python", "a"]);
    let gone = node.mote(&["kv", "get", "python", "a"]);
    assert!(String::from_utf8_lossy(&gone.stderr).contains("M0901"), "{gone:?}");
    let listed = node.ok(&["kv", "list"]);
    assert!(listed.contains("python"), "{listed}");
    // A function's entries stay when the function is removed, unless the command asks for their
    // removal.
    node.ok(&["remove", "python", "--yes"]);
    deploy(&node, "python");
    assert_eq!(node.get("/python/get").text(), "from people");
    node.ok(&["remove", "python", "--yes", "--with-state"]);
    deploy(&node, "python");
    assert_eq!(node.get("/python/get").text(), "none");
}

#[test]
fn state_survives_a_redeploy_and_a_stop() {
    let node = Node::start();
    deploy(&node, "node");
    node.post("/node/put?fast=1", b"kept");
    deploy(&node, "node");
    assert_eq!(node.get("/node/get").text(), "kept");
    let node = node.stop_and_restart();
    assert_eq!(node.get("/node/get").text(), "kept");
}

/// Clients increment counters and note each answer, and the node is killed meanwhile. No
/// acknowledged increment may be missing, and none may have happened twice.
#[test]
fn no_acknowledged_increment_is_lost_when_the_node_is_killed() {
    const CLIENTS: usize = 8;
    let mut node = Node::start();
    deploy(&node, "loop");
    let mut ledger: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    for round in 0..3 {
        let killed = Arc::new(AtomicBool::new(false));
        let http = node.http;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let killed = killed.clone();
                std::thread::spawn(move || {
                    let fast = if client % 2 == 0 { "" } else { "&fast=1" };
                    let path = format!("/loop/increment?key=c{client}{fast}");
                    let mut sent = 0;
                    let mut highest = 0;
                    let mut connection = Connection::open(http);
                    while !killed.load(Ordering::SeqCst) {
                        sent += 1;
                        match connection.try_call("POST", &path, &[], b"") {
                            Ok(answer) if answer.status == 200 => {
                                highest = answer.text().parse::<i64>().expect("a number");
                            }
                            _ => break,
                        }
                    }
                    (format!("c{client}"), sent, highest)
                })
            })
            .collect();
        // Waits for so many increments that some are in progress at the kill.
        mote_tests::wait_for("some increments", || {
            let value = node.ok(&["kv", "increment", "loop", "c0", "0"]);
            (value.trim().parse::<i64>().ok()? > 20 * (round + 1)).then_some(())
        });
        mote_tests::signal(node.pid(), "KILL");
        killed.store(true, Ordering::SeqCst);
        for client in clients {
            let (key, sent, highest) = client.join().expect("no panic");
            let noted = ledger.entry(key).or_default();
            noted.0 += sent;
            noted.1 = noted.1.max(highest);
        }
        node = node.crash_and_restart();
        for (key, (sent, acknowledged)) in &ledger {
            let found: i64 =
                node.ok(&["kv", "increment", "loop", key, "0"]).trim().parse().expect("a number");
            assert!(found >= *acknowledged, "{key}: {found} of {acknowledged} acknowledged");
            assert!(found <= *sent, "{key}: {found}, but only {sent} were sent");
        }
    }
    assert!(ledger.values().all(|(_, acknowledged)| *acknowledged > 0), "{ledger:?}");
}

#[test]
fn state_of_a_function_that_does_not_exist_is_warned_of() {
    let node = Node::start();
    node.deploy_ok("there", &[("app.py", "def handle(event, ctx):\n    return ''\n")]);
    for (namespace, is_warned) in [("nobody", true), ("there", false), ("shared:site", false)] {
        let put = node.mote(&["kv", "put", namespace, "a", "b"]);
        let said = String::from_utf8_lossy(&put.stderr).into_owned();
        assert!(put.status.success(), "{said}");
        assert_eq!(said.contains("there is no function named"), is_warned, "{namespace}: {said}");
    }
}
