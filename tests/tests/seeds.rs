//! Functions that load slowly: further instances are copies of one that has loaded the function.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use mote_tests::{Node, programs, signal, skip, wait_for};

/// Takes 300 ms to load and holds 50 MiB. Answers with the number of its process, the number of calls
/// that this instance has answered, what is in its /tmp, and a random number.
const SLOW: &str = "import os, random, time
time.sleep(0.3)
data = os.urandom(50 << 20)
count = 0
def handle(event, ctx):
    global count
    count += 1
    open('/tmp/%d' % count, 'w').close()
    time.sleep(0.02)
    return '%d %d %d %s' % (os.getpid(), count, len(os.listdir('/tmp')), random.random())
";

const INSTANCES: usize = 8;

fn manifest(scale: &str) -> String {
    format!("version = 1\nruntime = \"python\"\nentry = \"app:handle\"\n[scale]\n{scale}\n")
}

/// The process ids of the ready instances on the host, by the ids of the instances.
fn instances(node: &Node, name: &str) -> BTreeMap<String, u32> {
    let described = node.json(&["describe", name, "-o", "json"]);
    let all = described["instances"].as_array().cloned().unwrap_or_default();
    let id = |one: &serde_json::Value| one["id"].as_str().expect("an id").to_owned();
    let pid = |one: &serde_json::Value| one["pid"].as_u64().expect("a number") as u32;
    all.iter().filter(|one| one["state"] == "ready").map(|one| (id(one), pid(one))).collect()
}

fn wait_for_instances(node: &Node, name: &str, count: usize) -> BTreeMap<String, u32> {
    wait_for(&format!("{count} instances of {name}"), || {
        let found = instances(node, name);
        (found.len() == count).then_some(found)
    })
}

fn line_of(pid: u32, file: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)).map(|rest| rest.trim().to_owned())
}

/// The memory of these processes in bytes. Memory that several processes share counts once.
fn memory_bytes(pids: impl IntoIterator<Item = u32>) -> u64 {
    let of = |pid| line_of(pid, "smaps_rollup", "Pss:");
    let number = |text: String| text.split(' ').next().and_then(|text| text.parse::<u64>().ok());
    pids.into_iter().filter_map(of).filter_map(number).sum::<u64>() << 10
}

/// The programs in the sandbox in which this process is: they have the same user on the host.
fn in_same_sandbox(node: &Node, pid: u32) -> BTreeSet<u32> {
    let user = |pid| line_of(pid, "status", "Uid:");
    let own = user(pid);
    programs(node.pid()).into_iter().filter(|other| own.is_some() && user(*other) == own).collect()
}

/// Scales the function to eight instances, after the node has seen that it loads slowly.
fn scaled(node: &Node, name: &str) -> BTreeMap<String, u32> {
    node.deploy_ok(name, &[("app.py", SLOW), ("mote.toml", &manifest("max = 8\nidle = \"1ms\""))]);
    wait_for_instances(node, name, 0);
    node.ok(&["scale", name, "--min", "8"]);
    wait_for_instances(node, name, INSTANCES)
}

#[test]
fn eight_instances_share_the_memory_of_one() {
    let node = Node::start();
    if !node.has_prewarmed() {
        return skip("seeds", "needs root and a memory controller");
    }
    let alone = manifest("max = 1\nstart = \"always\"");
    node.deploy_ok("one", &[("app.py", SLOW), ("mote.toml", &alone)]);
    let pid = *wait_for_instances(&node, "one", 1).values().next().expect("an instance");
    assert!(node.get("/one").status == 200);
    let one = memory_bytes(in_same_sandbox(&node, program_of(pid)));

    let pids = scaled(&node, "many");
    let log = node.ok(&["logs", "many"]);
    assert_eq!(log.matches("as a copy").count(), INSTANCES, "{log}");
    assert_eq!(log.matches("seed loaded after").count(), 1, "{log}");
    let described = node.ok(&["describe", "many"]);
    assert!(!described.contains("copies"), "{described}");

    // Each instance has its own numbers, files and variables.
    let mut calls: BTreeMap<String, Vec<(u32, u32)>> = BTreeMap::new();
    let mut random = BTreeSet::new();
    wait_for("a call in every instance", || {
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..INSTANCES).map(|_| scope.spawn(|| node.get("/many"))).collect();
            for answer in all {
                let answer = answer.join().expect("an answer");
                assert_eq!(answer.status, 200, "{}", answer.text());
                let text = answer.text();
                let words: Vec<&str> = text.split(' ').collect();
                let number = |at: usize| words[at].parse().expect("a number");
                calls.entry(words[0].to_owned()).or_default().push((number(1), number(2)));
                assert!(random.insert(words[3].to_owned()), "{} came twice", words[3]);
            }
        });
        (calls.len() == INSTANCES).then_some(())
    });
    for (pid, mut seen) in calls {
        seen.sort_unstable();
        let own: Vec<_> = (1..).map(|count| (count, count)).take(seen.len()).collect();
        assert_eq!(seen, own, "instance with process {pid}");
    }

    let first = *pids.values().next().expect("an instance");
    let all = in_same_sandbox(&node, first);
    assert_eq!(all.len(), INSTANCES + 1, "the copies and their seed");
    let many = memory_bytes(all.iter().copied());
    println!("one instance {} MiB, eight {} MiB", one >> 20, many >> 20);
    assert!(many * 10 <= one * 13, "eight hold {many} bytes, one {one}");

    // The end of one instance ends no other one.
    signal(first, "KILL");
    let after = wait_for("another instance in its place", || {
        let found = instances(&node, "many");
        (found.len() == INSTANCES && !found.values().any(|pid| *pid == first)).then_some(found)
    });
    assert_eq!(after.iter().filter(|one| pids.contains_key(one.0)).count(), INSTANCES - 1);

    // A function without instances takes no memory, and starts again.
    node.ok(&["scale", "many", "--min", "0"]);
    wait_for_instances(&node, "many", 0);
    wait_for("the seed to end", || {
        let left = all.iter().filter(|pid| programs(node.pid()).contains(pid)).count();
        (left == 0).then_some(())
    });
    let answer = node.get("/many");
    assert_eq!(answer.status, 200);
    assert!(answer.text().split(' ').nth(1) == Some("1"), "{}", answer.text());
}

/// The program that pid 1 of a sandbox has started.
fn program_of(init: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{init}/task/{init}/children"));
    let children = children.unwrap_or_default();
    children.split(' ').next().and_then(|pid| pid.parse().ok()).expect("a program")
}

/// If a seed ends, all its copies end. Calls that may be repeated are answered by others.
#[test]
fn the_end_of_a_seed_loses_no_call() {
    let node = Node::start();
    if !node.has_prewarmed() {
        return skip("seeds", "needs root and a memory controller");
    }
    let pids = scaled(&node, "many");
    let copies: BTreeSet<u32> = pids.values().copied().collect();
    let first = *copies.first().expect("an instance");
    let mut all = in_same_sandbox(&node, first);
    all.retain(|pid| !copies.contains(pid));
    let seed = *all.first().expect("a seed");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let call = || {
            let mut answered = 0;
            while !is_over.load(Ordering::Relaxed) {
                let answer = node.get("/many");
                assert_eq!(answer.status, 200, "{}", answer.text());
                answered += 1;
            }
            answered
        };
        let callers: Vec<_> = (0..4).map(|_| scope.spawn(call)).collect();
        wait_for("calls that run", || {
            let described = node.json(&["describe", "many", "-o", "json"]);
            (described["requests"]["running"].as_u64() > Some(0)).then_some(())
        });
        signal(seed, "KILL");
        wait_for("eight other instances", || {
            let found = instances(&node, "many");
            let others = found.values().filter(|pid| !copies.contains(pid)).count();
            (others == INSTANCES).then_some(())
        });
        is_over.store(true, Ordering::Relaxed);
        let answered: u32 = callers.into_iter().map(|one| one.join().expect("answers")).sum();
        println!("{answered} calls were answered");
    });
    let log = node.ok(&["logs", "many"]);
    assert_eq!(log.matches("seed loaded after").count(), 2, "{log}");
}

/// What no copies can be made of is loaded by each instance, and `mote describe` says why.
#[test]
fn functions_that_cannot_be_copied_load_again() {
    let node = Node::start();
    if !node.has_prewarmed() {
        return skip("seeds", "needs root and a memory controller");
    }
    let cases = [
        (
            "thread",
            "import threading\nthreading.Thread(target=time.sleep, args=[1e6], daemon=True).start()",
            "2 threads run after loading",
        ),
        ("file", "open('/tmp/x', 'w').close()", "there are files in /tmp after loading"),
        ("socket", "import socket\ns = socket.socketpair()", "socket is open after loading"),
        (
            "program",
            "import subprocess\np = subprocess.Popen(['sleep', '1000'])",
            "a program that was started while loading still runs",
        ),
        (
            "shared",
            "import mmap\nm = mmap.mmap(-1, 4096)",
            "memory was made while loading that all copies would share",
        ),
        (
            "timer",
            "import signal\nsignal.signal(signal.SIGALRM, lambda *_: None)\nsignal.alarm(1000)",
            "a timer was set while loading",
        ),
    ];
    for (name, code, why) in cases {
        let code = format!(
            "import time\n{code}\ntime.sleep(0.15)\ndef handle(event, ctx):\n    return 'here'\n"
        );
        let scale = manifest("min = 2\nmax = 2");
        node.deploy_ok(name, &[("app.py", &code), ("mote.toml", &scale)]);
        wait_for_instances(&node, name, 2);
        let described = node.ok(&["describe", name]);
        let line = format!("copies       none, each instance loads the function: {why}\n");
        assert!(described.contains(&line), "{described}");
        assert!(!node.ok(&["logs", name]).contains("as a copy"));
        node.ok(&["remove", name, "--yes"]);
    }
    // A server inside an instance is found only when it listens.
    let code = "import socket, time\ntime.sleep(0.15)\nsocks = []\ndef handle(event, ctx):
    if not socks:
        socks.append(socket.create_server(('127.0.0.1', 7000)))
    time.sleep(0.1)
    return 'here'\n";
    node.deploy_ok("server", &[("app.py", code), ("mote.toml", &manifest("min = 1\nmax = 2"))]);
    assert_eq!(node.get("/server").status, 200);
    node.ok(&["scale", "server", "2"]);
    wait_for_instances(&node, "server", 2);
    let described = node.ok(&["describe", "server"]);
    let why = "an instance listens on port 7000, which copies would share";
    assert!(described.contains(why), "{described}");
}

/// A handler on an event loop, and a file that is open while the function loads, work in copies.
#[test]
fn copies_have_loops_and_file_positions_of_their_own() {
    let node = Node::start();
    if !node.has_prewarmed() {
        return skip("seeds", "needs root and a memory controller");
    }
    let code = "import asyncio, os, time
lines = open('/function/lines', 'rb', buffering=0)
lines.read(2)
lock = None
async def init(ctx):
    global lock
    lock = asyncio.Lock()
    await asyncio.sleep(0.15)
async def handle(event, ctx):
    async with lock:
        await asyncio.sleep(0.05)
        return '%d %s' % (os.getpid(), lines.read(1).decode())
";
    let scale = manifest("max = 4\nidle = \"1ms\"");
    let scale = format!("{scale}[limits]\nconcurrency = 1\n");
    let files = [("app.py", code), ("lines", "abcdefghijklmnopqrstuvwxyz"), ("mote.toml", &scale)];
    node.deploy_ok("a", &files);
    wait_for_instances(&node, "a", 0);
    node.ok(&["scale", "a", "--min", "4"]);
    wait_for_instances(&node, "a", 4);
    assert_eq!(node.ok(&["logs", "a"]).matches("as a copy").count(), 4);
    let mut read: BTreeMap<String, String> = BTreeMap::new();
    wait_for("a call in every instance", || {
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|_| scope.spawn(|| node.get("/a"))).collect();
            for answer in all {
                let answer = answer.join().expect("an answer");
                assert_eq!(answer.status, 200, "{}", answer.text());
                let text = answer.text();
                let (pid, letter) = text.split_once(' ').expect("two words");
                read.entry(pid.to_owned()).or_default().push_str(letter);
            }
        });
        (read.len() == 4).then_some(())
    });
    for (pid, letters) in read {
        let mut sorted: Vec<_> = letters.chars().collect();
        sorted.sort_unstable();
        let sorted: String = sorted.into_iter().collect();
        assert!("cdefghijklmnopqrstuvwxyz".starts_with(&sorted), "{pid} read {letters}");
    }
}
