//! Accepted invocations in NATS. They outlive the machine with its disk, another node takes them
//! over, and the former node can no longer write (reliability: T-KILL-NATS).

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mote_tests::{Answer, Connection, Node, free_port, is_long, signal, skip, wait_for};
use serde_json::{Value, json};

const ASYNC: (&str, &str) = ("prefer", "respond-async");
const ECHO: (&str, &str) = ("app.mjs", "export default async (event) => event.body;\n");
const FAILS: &str = "def handle(event, ctx):\n    raise ValueError('no')\n";
const SLOW: &str = "import time\ndef handle(event, ctx):\n    time.sleep(2)\n    return 'slow'\n";
/// Waits until its entry in the state says that it may end.
const HOLDS: &str = "import time\n\
def handle(event, ctx):\n    \
    ctx.kv.increment('begun')\n    \
    while not ctx.kv.get('released'):\n        time.sleep(0.01)\n    \
    return 'held'\n";

/// A NATS server that syncs each message to disk.
struct Server {
    program: PathBuf,
    folder: tempfile::TempDir,
    port: u16,
    child: Option<Child>,
}

impl Server {
    /// Starts a server, or reports that it cannot.
    fn start() -> Option<Self> {
        let program = match std::env::var_os("MOTE_NATS_SERVER") {
            Some(path) => PathBuf::from(path),
            None => {
                let own = Path::new(env!("CARGO_MANIFEST_DIR"));
                own.join("../.cache/nats-server-v2.15.2")
            }
        };
        if !program.is_file() {
            skip("the journal in NATS", "there is no nats-server");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let store = folder.path().join("store");
        let config = format!(
            "listen: \"127.0.0.1:{port}\"\n\
             jetstream {{ store_dir: {store:?}, sync_interval: always }}\n"
        );
        std::fs::write(folder.path().join("server.conf"), config).expect("written");
        let mut server = Self { program, folder, port, child: None };
        server.again();
        Some(server)
    }

    /// Starts the server again with the messages that it has stored.
    fn again(&mut self) {
        let log = std::fs::File::create(self.folder.path().join("log")).expect("a file");
        let child = Command::new(&self.program)
            .arg("-c")
            .arg(self.folder.path().join("server.conf"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("started");
        self.child = Some(child);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        wait_for("the server", || TcpStream::connect(address).ok());
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killed");
            child.wait().expect("ended");
        }
    }

    /// Returns the flags of a node whose journal is on this server.
    fn flags(&self, name: &str) -> Vec<String> {
        let url = format!("nats://127.0.0.1:{}", self.port);
        vec!["--nats".to_owned(), url, "--journal-name".to_owned(), name.to_owned()]
    }

    fn node(&self, name: &str) -> Node {
        let flags = self.flags(name);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Node::start_with(&flags)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn ask(node: &Node, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut all = vec![ASYNC];
    all.extend_from_slice(headers);
    node.call("POST", path, &all, body)
}

fn accept(node: &Node, path: &str, headers: &[(&str, &str)], body: &[u8]) -> String {
    let answer = ask(node, path, headers, body);
    assert_eq!(answer.status, 202, "{}\n{}", answer.text(), node.log());
    answer.json()["id"].as_str().expect("an id").to_owned()
}

fn show(node: &Node, id: &str) -> Value {
    node.get(&format!("/_invocations/{id}")).json()
}

fn ended(node: &Node, id: &str) -> Value {
    wait_for("the invocation to end", || {
        let shown = show(node, id);
        let ended = !matches!(shown["state"].as_str(), Some("waiting" | "running"));
        ended.then_some(shown)
    })
}

/// Ends a node and destroys its disk at once.
fn lose(node: Node) {
    signal(node.pid(), "KILL");
    // Dropping the node removes its folder.
    drop(node);
}

#[test]
fn what_was_accepted_continues_on_another_machine() {
    let Some(server) = Server::start() else { return };
    let first = server.node("line-1");
    first.deploy_ok("echo", &[ECHO]);
    let once = "version = 1\n[async]\nattempts = 1\n";
    first.deploy_ok("fails", &[("app.py", FAILS), ("mote.toml", once)]);
    first.deploy_ok("holds", &[("app.py", HOLDS)]);
    let done = accept(&first, "/echo", &[("idempotency-key", "a")], b"done");
    assert_eq!(ended(&first, &done)["state"], "succeeded");
    let dead = accept(&first, "/fails", &[], b"dead");
    assert_eq!(ended(&first, &dead)["state"], "dead");
    let delayed = accept(&first, "/echo", &[("mote-after", "1h")], b"delayed");
    let long = vec![b'x'; 3 << 20];
    let soon = accept(&first, "/echo", &[("mote-after", "8s")], &long);
    let running = accept(&first, "/holds", &[], b"");
    wait_for("it runs", || (show(&first, &running)["state"] == "running").then_some(()));
    let due = show(&first, &delayed)["due_at"].clone();
    assert!(due.is_string());
    lose(first);

    let second = server.node("line-1");
    // The other machine has no functions yet. Invocations that wait for them are not given up.
    let waits = show(&second, &running);
    assert_eq!(waits["state"], "waiting", "{waits}");
    second.deploy_ok("echo", &[ECHO]);
    second.deploy_ok("holds", &[("app.py", HOLDS)]);
    second.ok(&["kv", "put", "holds", "released", "yes"]);
    assert_eq!(ended(&second, &running)["body"], "held");
    let shown = show(&second, &done);
    assert_eq!((&shown["state"], &shown["body"]), (&"succeeded".into(), &"done".into()));
    assert_eq!(accept(&second, "/echo", &[("idempotency-key", "a")], b"done"), done);
    assert_eq!(show(&second, &delayed)["due_at"], due);
    assert_eq!(ended(&second, &soon)["state"], "succeeded");
    let result = second.get(&format!("/_invocations/{soon}/result"));
    assert_eq!(result.status, 410, "an answer of 3 MiB is not kept");
    let letters = second.json(&["dead-letters", "list", "-o", "json"]);
    assert_eq!(letters["invocations"][0]["id"], dead.as_str(), "{letters}");
    second.deploy_ok("fails", &[ECHO]);
    second.ok(&["dead-letters", "retry", &dead]);
    assert_eq!(ended(&second, &dead)["state"], "succeeded");
    second.ok(&["invocation", "cancel", &delayed]);
    lose(second);

    let third = server.node("line-1");
    assert_eq!(show(&third, &delayed)["state"], "cancelled");
    assert_eq!(show(&third, &dead)["state"], "succeeded");
    // If nothing has happened meanwhile, the file is not rebuilt.
    let third = third.stop_and_restart();
    assert!(!third.log().contains("was read from its stream"), "{}", third.log());
    // Another name means another journal.
    let other = server.node("line-2");
    assert_eq!(other.get(&format!("/_invocations/{dead}")).status, 404);
}

#[test]
fn a_node_that_was_taken_over_refuses_and_says_who_did_it() {
    let Some(server) = Server::start() else { return };
    let old = server.node("line");
    old.deploy_ok("echo", &[ECHO]);
    old.deploy_ok("holds", &[("app.py", HOLDS)]);
    let running = accept(&old, "/holds", &[], b"");
    wait_for("it runs", || (show(&old, &running)["state"] == "running").then_some(()));
    let new = server.node("line");
    new.deploy_ok("echo", &[ECHO]);
    let refused = ask(&old, "/echo", &[("idempotency-key", "k")], b"");
    assert_eq!(refused.status, 503, "{}", refused.text());
    let problem = refused.json();
    assert_eq!(problem["code"], "M0707", "{problem}");
    let by = new.http.to_string();
    assert!(!problem.to_string().contains(&by), "callers learn no addresses: {problem}");
    let doctor = old.mote(&["doctor"]);
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(doctor.contains("journal") && doctor.contains(&by), "{doctor}");
    assert!(old.log().contains("has taken over") && old.log().contains(&by), "{}", old.log());
    // Invocations that the old node still runs end there. Nobody is notified twice, even though the
    // new node runs them too.
    old.ok(&["kv", "put", "holds", "released", "yes"]);
    new.deploy_ok("holds", &[("app.py", HOLDS)]);
    new.ok(&["kv", "put", "holds", "released", "yes"]);
    assert_eq!(ended(&new, &running)["state"], "succeeded");
    let id = accept(&new, "/echo", &[("idempotency-key", "k")], b"new");
    assert_eq!(ended(&new, &id)["body"], "new");
    // The old node still serves waiting callers.
    assert_eq!(old.post("/echo", b"sync").text(), "sync");
    assert!(old.stop().success());
}

const STEP: &str = "import time\n\
def handle(event, ctx):\n    \
    step = event.headers.get('mote-step', 'none')\n    \
    ctx.kv.increment('calls/' + step)\n    \
    data = event.json()\n    \
    while data.get('hold') and not ctx.kv.get('released'):\n        time.sleep(0.01)\n    \
    return {'n': data.get('n', 0) * 2}\n";
const CHAIN: &str = "document:\n  dsl: '1.0.3'\n  namespace: test\n  version: '1.0.0'\n  name: sums
do:
  - first: { call: step, with: { n: '${ .n }' } }
  - second: { call: step, with: { n: '${ .n }', hold: '${ $workflow.input.hold }' } }
  - third: { call: step, with: { n: '${ .n }' } }
";

#[test]
fn a_chain_continues_on_another_machine_with_the_step_that_it_had_reached() {
    let Some(server) = Server::start() else { return };
    let deploy = |node: &Node| {
        node.deploy_ok("step", &[("app.py", STEP)]);
        let output = node.deploy_file("sums.yaml", CHAIN);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let calls = |node: &Node, step: &str| {
        let output = node.mote(&["kv", "get", "step", &format!("calls/{step}")]);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let first = server.node("line");
    deploy(&first);
    let id = accept(&first, "/sums", &[], json!({"n": 3, "hold": true}).to_string().as_bytes());
    wait_for("the second step", || (calls(&first, "second") == "1").then_some(()));
    lose(first);

    let second = server.node("line");
    let steps = second.json(&["runs", "show", &id, "-o", "json"])["steps"].clone();
    assert_eq!((&steps[0]["step"], &steps[0]["state"]), (&"first".into(), &"done".into()));
    deploy(&second);
    second.ok(&["kv", "put", "step", "released", "yes"]);
    let shown = ended(&second, &id);
    assert_eq!((&shown["state"], &shown["body"]), (&"succeeded".into(), &r#"{"n":24}"#.into()));
    // The state of functions is in NATS too, so this is the number of calls on both machines.
    assert_eq!(calls(&second, "first"), "1", "the first step had ended on the other machine");
    assert_eq!((calls(&second, "second"), calls(&second, "third")), ("2".into(), "1".into()));
}

#[test]
fn while_nats_is_gone_nothing_is_accepted_and_what_runs_ends() {
    let Some(mut server) = Server::start() else { return };
    let node = server.node("line");
    node.deploy_ok("echo", &[ECHO]);
    node.deploy_ok("slow", &[("app.py", SLOW)]);
    let running = accept(&node, "/slow", &[], b"");
    wait_for("it runs", || (show(&node, &running)["state"] == "running").then_some(()));
    server.kill();
    let asked = Instant::now();
    let refused = ask(&node, "/echo", &[("idempotency-key", "k")], b"now");
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(refused.json()["code"], "M0706", "{}", refused.text());
    wait_for("the node to know it", || {
        let asked = Instant::now();
        let refused = ask(&node, "/echo", &[], b"lost");
        assert_eq!(refused.status, 503, "{}", refused.text());
        (asked.elapsed() < Duration::from_secs(1)).then_some(())
    });
    assert_eq!(node.post("/echo", b"sync").text(), "sync", "callers that wait are served");
    wait_for("what runs to end", || {
        (node.json(&["invocation", "show", &running, "-o", "json"])["state"] == "succeeded")
            .then_some(())
    });
    server.again();
    let id = wait_for("acceptance", || {
        let answer = ask(&node, "/echo", &[("idempotency-key", "k")], b"now");
        (answer.status == 202).then(|| answer.json()["id"].as_str().expect("an id").to_owned())
    });
    assert_eq!(ended(&node, &id)["body"], "now");
    lose(node);
    let other = server.node("line");
    assert_eq!(show(&other, &running)["state"], "succeeded", "its end was not forgotten");
    assert_eq!(show(&other, &id)["state"], "succeeded");
}

#[test]
fn a_node_without_nats_serves_and_opens_its_journal_later() {
    let Some(mut server) = Server::start() else { return };
    server.kill();
    let node = server.node("line");
    node.deploy_ok("echo", &[ECHO]);
    assert_eq!(node.post("/echo", b"sync").text(), "sync");
    let refused = ask(&node, "/echo", &[], b"");
    assert_eq!((refused.status, &refused.json()["code"]), (503, &json!("M0706")));
    server.again();
    let id = wait_for("acceptance", || {
        let answer = ask(&node, "/echo", &[], b"later");
        (answer.status == 202).then(|| answer.json()["id"].as_str().expect("an id").to_owned())
    });
    assert_eq!(ended(&node, &id)["body"], "later");
}

#[test]
fn a_start_without_the_name_that_changes_nothing_does_no_harm() {
    let Some(server) = Server::start() else { return };
    let node = server.node("line");
    node.deploy_ok("echo", &[ECHO]);
    let id = accept(&node, "/echo", &[("mote-after", "1h")], b"");
    let doctor = node.doctor(&[]);
    assert!(doctor.contains("line is open"), "{doctor}");
    let node = node.stop_and_restart_with(&[]);
    assert_eq!(show(&node, &id)["state"], "waiting");
    let flags = server.flags("line");
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let node = node.stop_and_restart_with(&flags);
    assert_eq!(show(&node, &id)["state"], "waiting");

    // Work that exists only on the disk is not given up.
    let node = node.stop_and_restart_with(&[]);
    accept(&node, "/echo", &[("mote-after", "1h")], b"");
    let node = node.stop_and_restart_with(&flags);
    wait_for("the reason", || node.log().contains("does not have").then_some(()));
    assert!(!node.mote(&["doctor"]).status.success(), "doctor finds it");
    assert_eq!(node.get(&format!("/_invocations/{id}")).status, 507);
}

/// Clients that send invocations, each with a key, until each has been accepted.
struct Senders {
    accepted: Arc<Mutex<HashMap<usize, String>>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Senders {
    fn start(count: usize, total: usize, address: Arc<Mutex<SocketAddr>>) -> Self {
        let accepted = Arc::new(Mutex::new(HashMap::new()));
        let next = Arc::new(AtomicUsize::new(0));
        let thread = |_| {
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
        };
        let threads = (0..count).map(thread).collect();
        Self { accepted, threads }
    }

    fn count(&self) -> usize {
        self.accepted.lock().expect("not poisoned").len()
    }
}

fn send_until_accepted(number: usize, address: &Mutex<SocketAddr>) -> String {
    let key = format!("key-{number}");
    let body = number.to_string();
    loop {
        let at = *address.lock().expect("not poisoned");
        let Ok(mut connection) = Connection::try_open(at) else {
            std::thread::yield_now();
            continue;
        };
        let headers = [ASYNC, ("idempotency-key", key.as_str())];
        match connection.try_call("POST", "/echo", &headers, body.as_bytes()) {
            Ok(answer) if answer.status == 202 => {
                return answer.json()["id"].as_str().expect("an id").to_owned();
            }
            // NATS cannot be reached, or the node is stopping or has no functions yet.
            Ok(answer) if matches!(answer.status, 404 | 429 | 503) => std::thread::yield_now(),
            Ok(answer) => panic!("{}: {}", answer.status, answer.text()),
            Err(_) => {}
        }
    }
}

/// Returns the node's process that is connected to NATS.
fn connector(node: &Node) -> Option<u32> {
    let of_node = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some((name, rest)) = stat.rsplit_once(')') else { return false };
        let parent = rest.split_whitespace().nth(1).and_then(|text| text.parse().ok());
        name.ends_with("(mote-nats") && parent == Some(node.pid())
    };
    let entries = std::fs::read_dir("/proc").expect("proc").flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(of_node)
}

#[test]
fn nothing_that_was_accepted_is_lost_when_anything_is_killed() {
    let (total, kills) = if is_long() { (20_000, 50) } else { (1_500, 8) };
    let Some(mut server) = Server::start() else { return };
    let mut node = server.node("line");
    node.deploy_ok("echo", &[ECHO]);
    let address = Arc::new(Mutex::new(node.http));
    let began = Instant::now();
    let senders = Senders::start(8, total, address.clone());
    let mut longest = Duration::ZERO;
    for kill in 1..=kills {
        // Kills are spread over the whole run. Their moments depend on the progress of the run.
        let goal = total * kill / (kills + 1);
        wait_for("more accepted invocations", || (senders.count() >= goal).then_some(()));
        let killed = Instant::now();
        match kill % 4 {
            1 => node = node.crash_and_restart(),
            2 => {
                let pid = wait_for("mote-nats", || connector(&node));
                signal(pid, "KILL");
            }
            3 => {
                server.kill();
                server.again();
            }
            _ => {
                lose(node);
                node = server.node("line");
                node.deploy_ok("echo", &[ECHO]);
            }
        }
        *address.lock().expect("not poisoned") = node.http;
        let before = senders.count();
        wait_for("acceptance", || {
            (senders.count() > before || senders.count() == total).then_some(())
        });
        longest = longest.max(killed.elapsed());
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
    println!(
        "{total} accepted in {:.1} s, {kills} kills, 0 lost, {again} with more than one attempt, \
         longest pause {:.1} s",
        began.elapsed().as_secs_f64(),
        longest.as_secs_f64()
    );
}
