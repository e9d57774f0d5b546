//! Instances follow demand on a real node: from zero to many and back, without a lost call
//! (T-ELA-1, R102 to R106).
//!
//! Callers follow a schedule, and no test waits for a condition by sleeping.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use mote_tests::{Connection, Node, wait_for};

/// Longest wait for the instances that a load needs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Counts the programs in instances. The node also keeps a few sandboxes that run no program yet,
/// or a prewarmed interpreter.
fn programs(node: &Node) -> usize {
    mote_tests::programs(node.pid()).len()
}

/// A function that works for `ms` and names its instance.
fn works(ms: u32) -> String {
    format!(
        "import os, time\nME = os.urandom(8).hex()\ndef handle(event, ctx):\n    time.sleep({ms} / 1000)\n    return ME\n"
    )
}

/// The observations of the callers until they were stopped.
#[derive(Default)]
struct Tally {
    answered: AtomicU64,
    refused: AtomicU64,
    other: AtomicU64,
}

/// Calls `path` from `callers` connections at once until `instances` different instances have
/// answered. Returns how long that took. A refused caller tries again after a short pause.
fn call_until(
    http: SocketAddr,
    path: &'static str,
    callers: u32,
    instances: usize,
) -> (Duration, Arc<Tally>) {
    let stop = Arc::new(AtomicBool::new(false));
    let tally = Arc::new(Tally::default());
    let (seen, answers) = mpsc::channel();
    let since = Instant::now();
    let callers: Vec<_> = (0..callers)
        .map(|_| {
            let stop = stop.clone();
            let tally = tally.clone();
            let seen = seen.clone();
            std::thread::spawn(move || {
                let mut connection = Connection::open(http);
                while !stop.load(Ordering::Relaxed) {
                    let answer = connection.call("GET", path, &[], b"");
                    let count = match answer.status {
                        200 => &tally.answered,
                        429 => &tally.refused,
                        _ => &tally.other,
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                    if answer.status == 200 {
                        let _ = seen.send(answer.text());
                    } else {
                        std::thread::park_timeout(Duration::from_millis(5));
                    }
                }
            })
        })
        .collect();
    drop(seen);
    let mut distinct = BTreeSet::new();
    while distinct.len() < instances {
        let left = PATIENCE.saturating_sub(since.elapsed());
        let Ok(name) = answers.recv_timeout(left) else { break };
        distinct.insert(name);
    }
    let took = since.elapsed();
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.join().expect("a caller");
    }
    assert_eq!(distinct.len(), instances, "after {took:?}");
    (took, tally)
}

#[test]
fn scale_to_zero_and_back() {
    let node = Node::start();
    let manifest = "version = 1\n[scale]\nidle = \"50ms\"\n";
    let deployed = node.deploy("f", &[("app.py", &works(0)), ("mote.toml", manifest)]);
    let said = String::from_utf8_lossy(&deployed.stderr);
    assert!(deployed.status.success(), "{said}");
    // On nearly every machine, Python takes longer than 50 ms to start. On a faster machine, there
    // is no warning.
    println!("{}", said.lines().find(|line| line.contains("scale.idle")).unwrap_or("no warning"));
    let deployed = node.deploy(
        "trap",
        &[("app.py", &works(0)), ("mote.toml", "version = 1\n[scale]\nqueue = 0\n")],
    );
    let said = String::from_utf8_lossy(&deployed.stderr);
    assert!(said.contains("warning: scale.queue: without a queue no call"), "{said}");
    node.ok(&["remove", "trap", "--yes"]);
    wait_for("the instance of the deploy to go", || (programs(&node) == 0).then_some(()));
    let mut cold = Vec::new();
    for _ in 0..5 {
        let since = Instant::now();
        assert_eq!(node.get("/f").status, 200);
        cold.push(since.elapsed());
        wait_for("every process of the function to go", || (programs(&node) == 0).then_some(()));
    }
    // The processes end shortly before the node notices it.
    wait_for("the function to be idle", || {
        let described = node.json(&["describe", "f", "-o", "json"]);
        let seen = (described["state"].as_str(), described["scaling"]["desired"].as_u64());
        (seen == (Some("idle"), Some(0))).then_some(())
    });
    let log = node.ok(&["logs", "f", "--tail", "200"]);
    for said in ["started (deploy): ", "started (first-invocation): ", "stopping (idle): "] {
        assert!(log.contains(said), "{said} is not in {log}");
    }
    println!("from zero to the answer: {cold:?}");
}

#[test]
fn scale_workload_steady() {
    let node = Node::start();
    let manifest = "version = 1\n[scale]\nmax = 4\n";
    node.deploy_ok("f", &[("app.py", &works(20)), ("mote.toml", manifest)]);
    let (took, tally) = call_until(node.http, "/f", 8, 4);
    println!("1 to 4 instances under 8 callers: {} ms", took.as_millis());
    assert_eq!(tally.other.load(Ordering::Relaxed) + tally.refused.load(Ordering::Relaxed), 0);
    assert_eq!(programs(&node), 4);
    let described = node.json(&["describe", "f", "-o", "json"]);
    let reasons: BTreeSet<_> = described["instances"]
        .as_array()
        .expect("instances")
        .iter()
        .filter_map(|instance| instance["reason"].as_str())
        .collect();
    assert!(reasons.contains("deploy"), "{described}");
    assert!(reasons.contains("backlog") || reasons.contains("offered-load"), "{described}");
    assert!(node.ok(&["describe", "f"]).contains("started ("));
}

#[test]
fn refused_or_queued_requests_count_as_demand() {
    let node = Node::start();
    // One instance answers 20 calls per second, so a rule that counts answers would never ask for a
    // second instance.
    for (path, name, policy) in
        [("/auto", "auto", ""), ("/rps", "rps", "policy = \"rps\"\ntarget = 25\n")]
    {
        let manifest = format!("version = 1\n[scale]\nmax = 3\nqueue = 1\n{policy}");
        node.deploy_ok(name, &[("app.py", &works(50)), ("mote.toml", &manifest)]);
        let (took, tally) = call_until(node.http, path, 8, 3);
        let refused = tally.refused.load(Ordering::Relaxed);
        println!(
            "{name}: 1 to 3 instances in {} ms, {refused} refused, {} answered",
            took.as_millis(),
            tally.answered.load(Ordering::Relaxed)
        );
        assert!(refused > 0, "the queue of one was never full");
        assert_eq!(tally.other.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn an_instance_starts_ahead_of_a_call_at_regular_times() {
    let node = Node::start();
    // An idle instance stops after a second, so no call would find one.
    let manifest = "version = 1\n[scale]\nidle = \"1s\"\n[[trigger]]\nevery = \"3s\"\n";
    let code = "def handle(event, ctx):\n    print('called')\n";
    node.deploy_ok("f", &[("app.py", code), ("mote.toml", manifest)]);
    wait_for("a call that finds an instance that was started ahead of it", || {
        let log = node.ok(&["logs", "f"]);
        // On a busy machine, a start or a call can be late. The next one makes up for it.
        let found = log.split("started (predicted): ").skip(1).any(|after| {
            let until_call = after.split("called").next().filter(|part| part.len() < after.len());
            until_call
                .is_some_and(|part| !part.contains("started (") && !part.contains("stopping ("))
        });
        found.then_some(())
    });
    assert!(node.ok(&["logs", "f"]).contains("stopping (idle): "), "it does not keep running");
}

#[test]
fn no_request_is_lost_at_idle_stops() {
    const CALLS: u32 = 300;
    let node = Node::start();
    let manifest = "version = 1\n[scale]\nidle = \"30ms\"\n";
    let names: Vec<String> = (0..8).map(|at| format!("f{at}")).collect();
    for (at, name) in names.iter().enumerate() {
        if at < 2 {
            node.deploy_ok(name, &[("app.py", &works(0)), ("mote.toml", manifest)]);
        } else {
            let manifest = format!("{manifest}[limits]\nconcurrency = 1\n").replacen(
                "version = 1\n",
                "version = 1\nruntime = \"exec\"\ncommand = [\"sh\", \"main.sh\"]\n",
                1,
            );
            node.deploy_ok(name, &[("main.sh", "echo ok\n"), ("mote.toml", &manifest)]);
        }
    }
    let since = Instant::now();
    let callers: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let http = node.http;
            let path = format!("/{name}");
            std::thread::spawn(move || {
                let mut connection = Connection::open(http);
                let mut state = at as u64 + 1;
                let mut failures = Vec::new();
                for _ in 0..CALLS {
                    // The gaps are 15 to 70 ms, around the idle time and the interval of the node's
                    // checks.
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let gap = Duration::from_micros(15_000 + (state >> 33) % 55_000);
                    let until = Instant::now() + gap;
                    while Instant::now() < until {
                        std::thread::park_timeout(until.saturating_duration_since(Instant::now()));
                    }
                    match connection.try_call("POST", &path, &[], b"x") {
                        Ok(answer) if answer.status == 200 => {}
                        Ok(answer) => failures.push(answer.text()),
                        Err(error) => {
                            failures.push(error.to_string());
                            connection = Connection::open(http);
                        }
                    }
                }
                failures
            })
        })
        .collect();
    let failures: Vec<String> =
        callers.into_iter().flat_map(|caller| caller.join().expect("a caller")).collect();
    let took = since.elapsed();
    let stops: usize = names
        .iter()
        .map(|name| node.ok(&["logs", name, "--tail", "1000"]).matches("stopping (idle)").count())
        .sum();
    let calls = CALLS as usize * names.len();
    println!("{calls} calls, {stops} idle stops, {} failed, {took:?}", failures.len());
    assert!(failures.is_empty(), "{failures:?}");
    assert!(stops > calls / 20, "only {stops} stops among {calls} calls");
}
