//! The memory budget of a node: idle instances are evicted, and working ones never are. A caller
//! that cannot be served in time receives an error that says so (R71). Also `mote scale` (R119),
//! and the choice of the instance for a call (R76, R100).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mote_tests::{Answer, Connection, Node, coap_client, signal, skip, wait_for};

const MIB: u64 = 1 << 20;

/// Returns the figures of the node's memory ledger: the budget, the reserved part, and the largest
/// reserved part so far.
fn memory(node: &Node) -> (u64, u64, u64) {
    let node = &node.json(&["top", "--once", "-o", "json"])["node"];
    let bytes = |key: &str| node["budget"][key].as_u64().expect("a number");
    (bytes("memory_bytes"), bytes("taken_bytes"), bytes("peak_bytes"))
}

fn described(node: &Node, name: &str) -> serde_json::Value {
    node.json(&["describe", name, "-o", "json"])
}

/// Returns the reasons of the stops that `mote describe` shows.
fn stops(node: &Node, name: &str) -> Vec<String> {
    let list = described(node, name)["stops"].as_array().cloned().unwrap_or_default();
    list.iter().filter_map(|stop| stop["reason"].as_str().map(str::to_owned)).collect()
}

fn instances(node: &Node, name: &str) -> usize {
    described(node, name)["instances"].as_array().map_or(0, Vec::len)
}

/// Answers with its name. If the path names a file, it answers only when that file exists.
const WAITS: &str = "import os, time
ME = os.environ['MOTE_FUNCTION']
def handle(event, ctx):
    seconds = float(event.body or b'0')
    time.sleep(seconds)
    return ME
";

fn manifest(more: &str) -> String {
    format!("version = 1\n[limits]\nmemory = \"64MiB\"\n{more}")
}

fn call_later(
    http: SocketAddr,
    path: String,
    body: &'static [u8],
) -> std::thread::JoinHandle<Answer> {
    std::thread::spawn(move || Connection::open(http).call("POST", &path, &[], body))
}

fn running(node: &Node, name: &str) -> u64 {
    described(node, name)["requests"]["running"].as_u64().expect("a number")
}

#[test]
fn idle_instances_make_room_and_working_ones_never_do() {
    const FUNCTIONS: usize = 5;
    let node = Node::start_with(&["--prewarm", "off", "--memory", "192MiB"]);
    for at in 0..FUNCTIONS {
        // Deploys use the same ledger: the fourth deploy evicts an idle instance.
        let timeout = if at == FUNCTIONS - 1 { "2s" } else { "30s" };
        let files =
            [("app.py", WAITS), ("mote.toml", &manifest(&format!("timeout = \"{timeout}\"\n")))];
        node.deploy_ok(&format!("f{at}"), &files);
    }
    for round in 0..3 {
        for at in 0..FUNCTIONS {
            let answer = node.post(&format!("/f{at}"), b"0");
            assert_eq!((answer.status, answer.text()), (200, format!("f{at}")), "round {round}");
        }
    }
    let (budget, _, peak) = memory(&node);
    assert_eq!(budget, 192 * MIB);
    assert!(peak <= budget, "{peak} bytes were taken");
    let evicted: usize = (0..FUNCTIONS)
        .map(|at| stops(&node, &format!("f{at}")).iter().filter(|why| *why == "evicted").count())
        .sum();
    println!("{evicted} evictions for {} calls and {FUNCTIONS} deploys", 3 * FUNCTIONS);
    assert!(evicted >= FUNCTIONS, "only {evicted} went");
    let said = node.ok(&["logs", "f0", "--tail", "1000"]);
    assert!(said.contains("stopping (evicted): idle for "), "{said}");
    assert!(node.ok(&["describe", "f0"]).contains("evicted: idle for "));

    // All instances work for longer than the next call may wait, so the node asks its caller to try
    // again. A deploy may take as long as a start. By the time the deploy gives up, the work has
    // run for longer than the call below may wait, so the node expects the work to last that long
    // again.
    let busy: Vec<_> = (0..3).map(|at| call_later(node.http, format!("/f{at}"), b"12")).collect();
    wait_for("three to work", || {
        (0..3).all(|at| running(&node, &format!("f{at}")) == 1).then_some(())
    });
    let deployed = node.deploy("late", &[("app.py", WAITS), ("mote.toml", &manifest(""))]);
    let said = String::from_utf8_lossy(&deployed.stderr);
    assert!(!deployed.status.success() && said.contains("M0505"), "{said}");
    assert!(said.contains("the node is full: an instance may use 64 MiB"), "{said}");
    let refused = node.call("POST", "/f4", &[("x", "y")], b"0");
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(refused.header("retry-after"), Some("1"), "{:?}", refused.headers);
    assert_eq!(refused.json()["code"], "M0505");
    coap_says_so_too(&node);
    for call in busy {
        assert_eq!(call.join().expect("a caller").status, 200, "a working instance was stopped");
    }
    let later = node.post("/f4", b"0");
    assert_eq!((later.status, later.text()), (200, "f4".to_owned()));
    let (budget, _, peak) = memory(&node);
    assert!(peak <= budget, "{peak} bytes were taken");
}

/// CoAP answers with 5.03 and Max-Age 1.
fn coap_says_so_too(node: &Node) {
    let Some(client) = coap_client() else {
        return skip("CoAP", "libcoap's client is not installed");
    };
    let url = format!("coap://{}/f4", node.coap);
    let output = Command::new(client)
        .args(["-v", "7", "-B", "30", "-m", "post", "-e", "0", &url])
        .output()
        .expect("the client runs");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("5.03") && said.contains("Max-Age:1"), "{said}");
}

#[test]
fn a_call_waits_for_work_that_ends_before_its_deadline() {
    let node = Node::start_with(&["--prewarm", "off", "--memory", "64MiB"]);
    for name in ["a", "b"] {
        let files = [("app.py", WAITS), ("mote.toml", &manifest("timeout = \"20s\"\n"))];
        node.deploy_ok(name, &files);
    }
    let first = call_later(node.http, "/a".into(), b"1");
    wait_for("a to work", || (running(&node, "a") == 1).then_some(()));
    let second = node.post("/b", b"0");
    assert_eq!((second.status, second.text()), (200, "b".to_owned()));
    assert_eq!(first.join().expect("a caller").status, 200);
    // An instance that its owner keeps is not evicted, so there is no room for the other function.
    node.ok(&["scale", "b", "--min", "1"]);
    wait_for("b to be kept", || (instances(&node, "b") == 1).then_some(()));
    let refused = node.post("/a", b"0");
    assert_eq!(refused.status, 503, "{}", refused.text());
    let large = manifest("").replace("64MiB", "65MiB");
    let deployed = node.deploy("large", &[("app.py", WAITS), ("mote.toml", &large)]);
    let said = String::from_utf8_lossy(&deployed.stderr);
    assert!(said.contains("65 MiB requested, but the node has 64 MiB"), "{said}");
}

#[test]
fn a_call_waits_for_work_of_a_revision_that_was_replaced() {
    let node = Node::start_with(&["--prewarm", "off", "--memory", "128MiB"]);
    let kept = manifest("timeout = \"20s\"\n[scale]\nmin = 1\n");
    node.deploy_ok("b", &[("app.py", WAITS), ("mote.toml", &manifest("timeout = \"20s\"\n"))]);
    node.deploy_ok("a", &[("app.py", WAITS), ("mote.toml", &kept)]);
    node.ok(&["scale", "b", "0"]);
    let first = call_later(node.http, "/a".into(), b"3");
    wait_for("a to work", || (running(&node, "a") == 1).then_some(()));
    // From now on the new revision uses one half of the node's memory and the old revision the
    // other half.
    node.deploy_ok("a", &[("app.py", &format!("{WAITS}# 2\n")), ("mote.toml", &kept)]);
    let second = node.post("/b", b"0");
    assert_eq!((second.status, second.text()), (200, "b".to_owned()));
    assert_eq!(first.join().expect("a caller").status, 200);
}

#[test]
fn whatever_dies_is_taken_off_the_ledger() {
    const KILLS: usize = 25;
    let node = Node::start_with(&["--prewarm", "off", "--memory", "512MiB"]);
    let names = ["a", "b", "c"];
    for name in names {
        let more = "concurrency = 1\n[scale]\nmax = 3\nidle = \"200ms\"\n";
        node.deploy_ok(name, &[("app.py", WAITS), ("mote.toml", &manifest(more))]);
    }
    let broken = "import os\nos._exit(3)\ndef handle(event, ctx):\n    pass\n";
    let failed = node.deploy("broken", &[("app.py", broken), ("mote.toml", &manifest(""))]);
    assert!(!failed.status.success());
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..6)
        .map(|at| {
            let stop = stop.clone();
            let http = node.http;
            let path = format!("/{}", names[at % names.len()]);
            std::thread::spawn(move || {
                let mut answers = BTreeMap::<u16, u64>::new();
                while !stop.load(Ordering::Relaxed) {
                    let answer = Connection::open(http).call("POST", &path, &[], b"0.01");
                    *answers.entry(answer.status).or_default() += 1;
                    if answer.status != 200 {
                        std::thread::park_timeout(Duration::from_millis(20));
                    }
                }
                answers
            })
        })
        .collect();
    let mut state = 7u64;
    let mut killed = 0;
    while killed < KILLS {
        let victims = workers(node.pid());
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if let Some(victim) = victims.get((state >> 33) as usize % victims.len().max(1)) {
            signal(*victim, "KILL");
            killed += 1;
        }
        // Leaves time for one or two answers, because workers that die before their first answer
        // are not restarted at once.
        std::thread::park_timeout(Duration::from_millis(120));
    }
    stop.store(true, Ordering::Relaxed);
    let answers: Vec<_> = callers.into_iter().map(|c| c.join().expect("a caller")).collect();
    println!("{killed} workers killed; answers by status: {answers:?}");
    for name in names {
        node.ok(&["scale", name, "0"]);
    }
    wait_for("the ledger to be empty", || {
        let (_, taken, _) = memory(&node);
        (taken == 0).then_some(())
    });
    let (budget, _, peak) = memory(&node);
    assert!(peak > 0 && peak <= budget, "{peak} bytes were taken");
    let status = &node.json(&["top", "--once", "-o", "json"])["node"]["budget"];
    for key in ["leaving_bytes", "promised_bytes", "starting"] {
        assert_eq!(status[key].as_u64(), Some(0), "{key}");
    }
}

/// Returns the processes of instances: those that are three or more generations below the node.
fn workers(node: u32) -> Vec<u32> {
    let output = Command::new("ps").args(["-e", "-o", "pid=,ppid="]).output().expect("ps");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut children = BTreeMap::<u32, Vec<u32>>::new();
    for line in text.lines() {
        let mut words = line.split_whitespace().filter_map(|word| word.parse().ok());
        if let (Some(pid), Some(parent)) = (words.next(), words.next()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let below = |all: &[u32]| -> Vec<u32> {
        all.iter().filter_map(|pid| children.get(pid)).flatten().copied().collect()
    };
    below(&below(&below(&[node])))
}

#[test]
fn scaling_by_hand() {
    let node = Node::start();
    let scale = "[scale]\nmax = 4\nidle = \"1h\"\n";
    node.deploy_ok("f", &[("app.py", WAITS), ("mote.toml", &manifest(scale))]);
    node.ok(&["scale", "f", "3"]);
    wait_for("three instances", || (instances(&node, "f") == 3).then_some(()));
    let text = node.ok(&["describe", "f"]);
    assert!(text.contains("started (scale): mote scale asked for it"), "{text}");
    // The autoscaler continues to work. For now, it keeps the instances, and they are used.
    for _ in 0..5 {
        assert_eq!(node.post("/f", b"0").status, 200);
    }
    assert_eq!(instances(&node, "f"), 3);
    let said = node.ok(&["scale", "f", "0"]);
    assert!(said.contains("3 stopping"), "{said}");
    wait_for("none", || (instances(&node, "f") == 0).then_some(()));
    assert_eq!(stops(&node, "f"), ["scale", "scale", "scale"]);
    assert_eq!(node.post("/f", b"0").status, 200, "and back with the next call");

    node.ok(&["scale", "f", "--min", "2", "--max", "5"]);
    wait_for("the minimum", || (instances(&node, "f") == 2).then_some(()));
    assert!(node.ok(&["scale", "f", "0"]).contains("2 more instances keep running"));
    let refused = node.mote(&["scale", "f", "6"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("6 is above max 5"), "{said}");
    assert!(!node.mote(&["scale", "f", "--min", "6"]).status.success());
    assert!(!node.mote(&["scale", "nobody", "1"]).status.success());

    // Without a maximum, a minimum above the number of cores can be reached.
    let more = std::thread::available_parallelism().expect("a number").get() + 1;
    node.deploy_ok("many", &[("app.py", WAITS), ("mote.toml", &manifest(""))]);
    node.ok(&["scale", "many", "--min", &more.to_string()]);
    wait_for("more than cores", || (instances(&node, "many") == more).then_some(()));
    node.ok(&["remove", "many", "--yes"]);

    // Bounds that were set by hand survive a restart of the node and end with the next deploy.
    let node = node.crash_and_restart();
    wait_for("the minimum again", || (instances(&node, "f") == 2).then_some(()));
    assert!(node.ok(&["describe", "f"]).contains("min 2, max 5 until the next deploy"));
    node.deploy_ok("f", &[("app.py", WAITS), ("mote.toml", &manifest(scale))]);
    assert!(described(&node, "f")["bounds"].is_null());
    node.ok(&["scale", "f", "--max", "2"]);
    node.ok(&["scale", "f", "--reset"]);
    assert!(described(&node, "f")["bounds"].is_null());
}

#[test]
fn shares_come_out_as_the_rule_says() {
    const CALLS: u64 = 300;
    let node = Node::start();
    let code = "import os\nME = os.urandom(8).hex()\ndef handle(event, ctx):\n    return ME\n";
    for rule in ["late-binding", "round-robin", "random", "least-connections"] {
        let manifest =
            format!("version = 1\n[scale]\nmax = 3\nidle = \"1h\"\nbalance = \"{rule}\"\n");
        node.deploy_ok(rule, &[("app.py", code), ("mote.toml", &manifest)]);
        let path = format!("/{rule}");
        // The connection is made before there are three instances. A persistent connection must
        // also reach the new ones.
        let mut connection = Connection::open(node.http);
        assert_eq!(connection.call("GET", &path, &[], b"").status, 200);
        node.ok(&["scale", rule, "3"]);
        wait_for("three instances", || (instances(&node, rule) == 3).then_some(()));
        let mut shares = BTreeMap::<String, u64>::new();
        for _ in 0..CALLS {
            let answer = connection.call("GET", &path, &[], b"");
            assert_eq!(answer.status, 200, "{}", answer.text());
            *shares.entry(answer.text()).or_default() += 1;
        }
        let shares: Vec<u64> = shares.into_values().collect();
        println!("{rule}: {shares:?}");
        match rule {
            // With one call at a time, one instance can do all the work.
            "late-binding" => assert_eq!(shares, [CALLS]),
            // Each share should be 100 of 300 calls, within five standard deviations of 8.2.
            "random" => assert!(shares.len() == 3 && shares.iter().all(|n| (59..=141).contains(n))),
            _ => assert_eq!(shares, [CALLS / 3; 3]),
        }
        assert!(node.ok(&["describe", rule]).contains(rule));
    }
}

#[test]
fn a_thousandth_idle_function_costs_as_little_as_the_first() {
    const FUNCTIONS: u64 = 60;
    let node = Node::start_with(&["--prewarm", "off"]);
    let code = "def handle(event, ctx):\n    return 'ok'\n";
    let manifest = "version = 1\n[scale]\nidle = \"50ms\"\n";
    let deploy = |at: u64| {
        node.deploy_ok(&format!("f{at}"), &[("app.py", code), ("mote.toml", manifest)]);
    };
    let settle = || {
        wait_for("all to be at zero", || {
            let list = node.json(&["list", "-o", "json"]);
            let functions = list["functions"].as_array().expect("functions");
            functions.iter().all(|f| f["instances"] == serde_json::json!([])).then_some(())
        });
    };
    // These deploys are not measured. They allocate the memory that all functions share, and the
    // memory for an answer that lists many functions.
    (0..10).for_each(deploy);
    settle();
    let before = resident(node.pid());
    let tasks = threads(node.pid());
    (10..10 + FUNCTIONS).for_each(deploy);
    settle();
    let each = resident(node.pid()).saturating_sub(before) / FUNCTIONS;
    println!("{} KiB of resident memory per idle function", each / 1024);
    // 10 MiB per thousand functions is 10 KiB each. With sixty functions, whole pages show only the
    // magnitude. A ring or a channel that is allocated in advance would cost several times as much.
    assert!(each < 32 << 10, "{each} bytes each");
    wait_for("threads to go", || (threads(node.pid()) <= tasks + 1).then_some(()));
    assert_eq!(memory(&node).1, 0);
    assert_eq!(workers(node.pid()), Vec::<u32>::new());
    let ticks = |pid: u32| -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("our child");
        let fields: Vec<_> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
        fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime")
    };
    let since = std::time::Instant::now();
    let at = ticks(node.pid());
    while since.elapsed() < Duration::from_secs(2) {
        std::thread::park_timeout(Duration::from_millis(100));
    }
    println!("{} ticks of 10 ms in 2 s of nothing", ticks(node.pid()) - at);
}

fn field(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("our child");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
    line.split_whitespace().next().expect("a number").parse().expect("a number")
}

/// Bytes of the process's own memory. Pages of its program are not counted: the kernel takes and
/// reads those again as it likes.
fn resident(pid: u32) -> u64 {
    field(pid, "RssAnon:") << 10
}

fn threads(pid: u32) -> u64 {
    field(pid, "Threads:")
}

#[test]
fn warm_and_always_have_an_instance_before_the_first_call() {
    let node = Node::start();
    for start in ["cold", "warm", "always"] {
        let scale = format!("[scale]\nidle = \"1h\"\nstart = \"{start}\"\n");
        node.deploy_ok(start, &[("app.py", WAITS), ("mote.toml", &manifest(&scale))]);
    }
    let node = node.crash_and_restart();
    for start in ["warm", "always"] {
        wait_for("an instance without a call", || (instances(&node, start) == 1).then_some(()));
    }
    assert_eq!(instances(&node, "cold"), 0);
    let reason = |name: &str| described(&node, name)["instances"][0]["reason"].clone();
    assert_eq!((reason("warm").as_str(), reason("always").as_str()), (Some("warm"), Some("min")));
    // A warm instance may be stopped, and starts again with the next call. With `always`, it is not
    // stopped.
    for name in ["warm", "always"] {
        node.ok(&["scale", name, "0"]);
    }
    wait_for("warm to go", || (instances(&node, "warm") == 0).then_some(()));
    assert_eq!(instances(&node, "always"), 1);
    assert_eq!(described(&node, "warm")["requests"]["total"].as_u64(), Some(0));
    assert_eq!(node.post("/warm", b"0").status, 200);
}

#[test]
fn top_shows_what_happens() {
    let node = Node::start_with(&["--prewarm", "off", "--memory", "50%"]);
    node.deploy_ok("f", &[("app.py", WAITS), ("mote.toml", &manifest(""))]);
    let stop = Arc::new(AtomicBool::new(false));
    let count = Arc::new(AtomicU64::new(0));
    let caller = {
        let stop = stop.clone();
        let count = count.clone();
        let http = node.http;
        std::thread::spawn(move || {
            let mut connection = Connection::open(http);
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(connection.call("POST", "/f", &[], b"0.001").status, 200);
                count.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    wait_for("calls", || (count.load(Ordering::Relaxed) > 10).then_some(()));
    let view = node.json(&["top", "--once", "-o", "json"]);
    let table = node.ok(&["top"]);
    let instances = node.ok(&["top", "f"]);
    stop.store(true, Ordering::Relaxed);
    caller.join().expect("a caller");
    assert!(view["functions"][0]["rate_per_s"].as_f64().expect("a rate") > 1.0, "{view}");
    for word in ["LAST CHANGE", "started (", " MiB of ", " starting\n"] {
        assert!(table.contains(word), "{word} is not in {table}");
    }
    assert!(instances.contains("SERVED") && instances.contains("ready"), "{instances}");
    assert!(node.doctor(&[]).contains("memory budget"));
    println!("{table}\n{instances}");
}
