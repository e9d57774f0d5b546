//! Nodes that share the state of their functions over a NATS server.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mote_tests::nats::Server;
use mote_tests::{Connection, Node, mote_binary, signal, wait_for};

const MANIFEST: &str = "version = 1\n[kv]\nshared = [\"site\"]\n";
const PYTHON: &str = r#"
import json

def handle(event, ctx):
    kv = ctx.kv.shared("site")
    key = event.args.get("key", "n")
    try:
        if event.path == "/add":
            return str(kv.increment(key))
        if event.path == "/put":
            version = int(event.args["version"]) if "version" in event.args else None
            return str(kv.put(key, event.body, version=version, durable="fast" not in event.args))
        if event.path == "/get":
            return kv.get(key) or b"none"
        if event.path == "/delete":
            return str(kv.delete(key))
        return json.dumps([one.key for one in kv.list(event.args.get("prefix", ""))])
    except ctx.kv.Conflict as error:
        return "conflict %d" % error.version, 409
    except ctx.kv.Error as error:
        return "%s: %s" % (error.code, error), 503
"#;
const NODE: &str = r#"
export async function handle(event, ctx) {
  const kv = ctx.kv.shared('site');
  const key = event.args.key ?? 'n';
  try {
    switch (event.path) {
      case '/add': return String(await kv.increment(key));
      case '/get': return await kv.get(key) ?? 'none';
      case '/put': {
        const version = 'version' in event.args ? Number(event.args.version) : undefined;
        return String(await kv.put(key, event.body, { version, durable: !('fast' in event.args) }));
      }
      default: return JSON.stringify((await kv.list(event.args.prefix ?? '')).map((one) => one.key));
    }
  } catch (error) {
    if (error.code === 'conflict') return new Response(`conflict ${error.version}`, { status: 409 });
    return new Response(`${error.code}: ${error.message}`, { status: 503 });
  }
}
"#;

/// Starts a node that keeps its functions' state on the server.
fn node(server: &Server) -> Node {
    Node::start_with(&["--nats", &address(server)])
}

fn address(server: &Server) -> String {
    format!("nats://127.0.0.1:{}", server.port)
}

/// Returns the node's process that is connected to NATS.
fn connection_of(node: &Node) -> Option<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", node.pid())).ok()?.flatten();
    let children =
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let all = children.flat_map(|text| {
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
    });
    let is_it = |pid: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.trim() == "mote-nats")
    };
    all.collect::<Vec<_>>().into_iter().find(is_it)
}

#[test]
fn functions_of_two_nodes_share_their_state() {
    let Some(server) = Server::start("") else { return };
    let a = node(&server);
    let b = node(&server);
    a.deploy_ok("py", &[("mote.toml", MANIFEST), ("app.py", PYTHON)]);
    b.deploy_ok("js", &[("mote.toml", MANIFEST), ("index.mjs", NODE)]);
    for round in 1..=10 {
        assert_eq!(a.post("/py/add", b"").text(), (2 * round - 1).to_string());
        assert_eq!(b.post("/js/add", b"").text(), (2 * round).to_string());
    }
    let first = a.post("/py/put?key=k/1&fast=1", b"from a").text();
    assert_eq!(b.get("/js/get?key=k/1").text(), "from a");
    let second = b.post(&format!("/js/put?key=k/1&version={first}"), b"from b").text();
    let refused = a.post(&format!("/py/put?key=k/1&version={first}"), b"x");
    assert_eq!((refused.status, refused.text()), (409, format!("conflict {second}")));
    assert_eq!(a.get("/py/get?key=k/1").text(), "from b");
    a.post("/py/put?key=k/2", b"");
    assert_eq!(b.get("/js/list?prefix=k/").text(), "[\"k/1\",\"k/2\"]");
    // `mote kv` works as before on both nodes.
    assert_eq!(b.ok(&["kv", "get", "shared:site", "k/1"]).trim(), "from b");
    a.ok(&["kv", "put", "shared:site", "theme", "dark"]);
    assert_eq!(b.get("/js/get?key=theme").text(), "dark");
    assert_eq!(b.ok(&["kv", "increment", "shared:site", "n"]).trim(), "21");
    let listed = a.ok(&["kv", "list"]);
    assert!(listed.contains("shared:site  4"), "{listed}");
    assert_eq!(a.ok(&["kv", "list"]), b.ok(&["kv", "list"]));
    b.ok(&["kv", "clear", "shared:site", "--yes"]);
    assert_eq!(a.get("/py/get").text(), "none");
    for node in [&a, &b] {
        assert!(!node.dir.path().join("data/state.db").exists());
        let checks = node.doctor(&[]);
        let line = format!("{} answers, version 2.15.2", address(&server));
        assert!(checks.contains(&line), "{checks}");
    }
}

#[test]
fn no_acknowledged_increment_is_lost_when_nodes_end() {
    let Some(mut server) = Server::start("") else { return };
    let files = [("mote.toml", MANIFEST), ("app.py", PYTHON)];
    let mut a = node(&server);
    let b = node(&server);
    a.deploy_ok("py", &files);
    b.deploy_ok("py", &files);
    let acknowledged = AtomicU64::new(0);
    let tried = AtomicU64::new(0);
    for round in 0..4 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for node in [&a, &b] {
                let stop = &stop;
                let acknowledged = &acknowledged;
                let tried = &tried;
                let address = node.http;
                scope.spawn(move || {
                    let mut connection = None;
                    while !stop.load(Ordering::Relaxed) {
                        let open = connection.take().or_else(|| Connection::try_open(address).ok());
                        let Some(mut open) = open else {
                            std::thread::yield_now();
                            continue;
                        };
                        tried.fetch_add(1, Ordering::Relaxed);
                        let Ok(answer) = open.try_call("POST", "/py/add", &[], b"") else {
                            continue;
                        };
                        if answer.status == 200 {
                            acknowledged.fetch_add(1, Ordering::Relaxed);
                        }
                        connection = Some(open);
                    }
                });
            }
            let more = |count: u64| {
                let wanted = acknowledged.load(Ordering::Relaxed) + count;
                wait_for("more increments", || {
                    (acknowledged.load(Ordering::Relaxed) >= wanted).then_some(())
                });
            };
            more(40);
            match round {
                0 => signal(a.pid(), "KILL"),
                1 => signal(connection_of(&b).expect("it runs"), "KILL"),
                2 => {
                    server.kill();
                    server.again();
                }
                _ => signal(connection_of(&a).expect("it runs"), "KILL"),
            }
            more(40);
            stop.store(true, Ordering::Relaxed);
        });
        if round == 0 {
            a = a.crash_and_restart();
        }
    }
    let held: u64 = b.get("/py/get").text().parse().expect("a number");
    let range = acknowledged.load(Ordering::Relaxed)..=tried.load(Ordering::Relaxed);
    assert!(range.contains(&held), "{held} is not in {range:?}");
}

#[test]
fn a_server_that_does_not_answer_is_named_and_used_again() {
    let user = "authorization { user: mote, password: right-secret }";
    let Some(mut server) = Server::start(user) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("credentials");
    std::fs::write(&file, "mote:right-secret\n").expect("written");
    let credentials = file.to_str().expect("UTF-8");
    let node = Node::start_with(&["--nats", &address(&server), "--nats-credentials", credentials]);
    node.deploy_ok("py", &[("mote.toml", MANIFEST), ("app.py", PYTHON)]);
    assert_eq!(node.post("/py/add", b"").text(), "1");
    server.kill();
    let began = Instant::now();
    let refused = node.post("/py/add", b"");
    let text = refused.text();
    assert_eq!(refused.status, 503, "{text}");
    assert!(text.starts_with("unavailable: the state cannot be read or written"), "{text}");
    assert!(
        text.contains(&format!("the NATS server {} does not answer", address(&server))),
        "{text}"
    );
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let report: serde_json::Value =
        serde_json::from_str(&node.doctor(&["-o", "json"])).expect("JSON");
    let checks = report["checks"].as_array().expect("a list");
    let nats = checks.iter().find(|check| check["name"] == "nats").expect("a check");
    assert_eq!(nats["state"], "fail", "{nats}");
    assert!(nats["detail"].as_str().is_some_and(|text| text.contains("does not answer")), "{nats}");
    server.again();
    let sum = wait_for("the state to be there again", || {
        let answer = node.post("/py/add", b"");
        (answer.status == 200).then(|| answer.text())
    });
    assert!(["2", "3"].contains(&sum.as_str()), "{sum}");
    // The password changes from now on. A new process reads it.
    std::fs::write(&file, "mote:wrong-secret\n").expect("written");
    signal(connection_of(&node).expect("it runs"), "KILL");
    let report = wait_for("the refusal", || {
        let report = node.doctor(&[]);
        report.contains("refuses the credentials").then_some(report)
    });
    assert!(!report.contains("secret") && !node.log().contains("secret"), "{report}");
    let pid = wait_for("a process", || connection_of(&node));
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    assert!(!String::from_utf8_lossy(&arguments).contains("secret"));
}

#[test]
fn the_process_is_confined_and_ends_with_its_node() {
    let Some(server) = Server::start("") else { return };
    let node = node(&server);
    let pid = wait_for("the process", || connection_of(&node));
    wait_for("the connection", || node.doctor(&[]).contains(" answers, version ").then_some(()));
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
        line.split_whitespace().collect::<BTreeSet<_>>()
    };
    assert_eq!(field("NoNewPrivs:"), BTreeSet::from(["1"]));
    if mote_tests::is_root() {
        assert_eq!(field("Uid:"), BTreeSet::from(["999998"]));
        assert_eq!(field("CapEff:"), BTreeSet::from(["0000000000000000"]));
    }
    assert_eq!(field("Threads:"), BTreeSet::from(["1"]));
    assert!(node.stop().success());
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn settings_that_cannot_be_are_refused_without_their_secrets() {
    let up = |args: &[&str]| {
        let output = Command::new(mote_binary()).arg("up").args(args).output().expect("it starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = up(&["--nats", "nats://mote:hunter2@127.0.0.1:4222"]);
    assert_eq!(code, Some(78), "{text}");
    assert!(text.contains("nats_credentials") && !text.contains("hunter2"), "{text}");
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().to_str().expect("UTF-8");
    let nats = ["--data", data, "--http", "off", "--coap", "off", "--nats", "nats://127.0.0.1:1"];
    let mut missing = nats.to_vec();
    let socket = folder.path().join("s");
    missing.extend(["--socket", socket.to_str().expect("UTF-8")]);
    missing.extend(["--nats-credentials", "/no/such/file"]);
    let (code, text) = up(&missing);
    assert_eq!(code, Some(78), "{text}");
    assert!(text.contains("/no/such/file") && text.contains("nats_credentials"), "{text}");
}
