//! Ways to avoid a cold start: prewarmed interpreters, paused instances and spare instances (R57,
//! R58, R107; T-RNG).

use std::collections::BTreeSet;

use mote_tests::{Node, skip, wait_for};

/// The states of the instances in the order of `mote describe`.
fn states(node: &Node, name: &str) -> Vec<String> {
    let described = node.json(&["describe", name, "-o", "json"]);
    let instances = described["instances"].as_array().expect("a list").clone();
    instances.iter().map(|one| one["state"].as_str().expect("a word").to_owned()).collect()
}

fn wait_for_states(node: &Node, name: &str, wanted: &[&str]) {
    wait_for(&format!("{name} to be {wanted:?}"), || (states(node, name) == wanted).then_some(()));
}

fn manifest(scale: &str) -> String {
    format!("version = 1\nruntime = \"python\"\nentry = \"app:handle\"\n\n[scale]\n{scale}\n")
}

/// Returns random values of a fresh instance. No value may occur twice, however the instance was
/// made.
const RANDOM: &str = "import os, random, secrets, uuid, ssl, tempfile
def handle(event, ctx):
    return '\\n'.join([str(uuid.uuid4()), str(random.random()), secrets.token_hex(16),
                      ssl.RAND_bytes(16).hex(), os.urandom(16).hex(),
                      next(tempfile._get_candidate_names())])
";

#[test]
fn every_instance_has_random_numbers_of_its_own() {
    let node = Node::start();
    if !node.has_prewarmed() {
        return skip("sandboxes that wait", "needs root and a memory controller");
    }
    let rounds = if std::env::var_os("MOTE_LONG").is_some() { 1_000 } else { 40 };
    let quick = manifest("idle = \"1ms\"");
    node.deploy_ok("r", &[("app.py", RANDOM), ("mote.toml", &quick)]);
    let mut seen = BTreeSet::new();
    let mut values = 0;
    for _ in 0..rounds {
        wait_for_states(&node, "r", &[]);
        let answer = node.get("/r");
        assert_eq!(answer.status, 200, "{}", answer.text());
        for value in answer.text().lines() {
            values += 1;
            assert!(seen.insert(value.to_owned()), "{value} came twice");
        }
    }
    assert_eq!(values, rounds * 6);
    let waited = node.ok(&["logs", "r"]).matches("in a prewarmed sandbox").count();
    println!("{rounds} instances, {waited} of those in the log had waited");
    assert!(waited > 0, "no instance started in a prewarmed sandbox");
}

#[test]
fn a_spare_instance_answers_before_a_new_one_could_load() {
    let node = Node::start();
    if !node.has_cgroups() {
        return skip("instances that are paused", "needs control groups");
    }
    let code = "import time\ntime.sleep(2)\ndef handle(event, ctx):\n    return 'here'\n";
    let scale = manifest("idle = \"1ms\"\nspare = 1\nmax = 3");
    node.deploy_ok("s", &[("app.py", code), ("mote.toml", &scale)]);
    wait_for_states(&node, "s", &["spare"]);
    let answer = node.get("/s");
    assert_eq!((answer.status, answer.text()), (200, "here".into()));
    let timing = answer.header("server-timing").expect("timing").to_owned();
    assert!(timing.contains("init;dur=0,"), "it waited for a start: {timing}");
    // Another spare instance replaces the used one.
    wait_for_states(&node, "s", &["spare"]);
}

#[test]
fn an_idle_instance_is_paused_and_goes_on() {
    let node = Node::start();
    if !node.has_cgroups() {
        return skip("instances that are paused", "needs control groups");
    }
    let code = "import threading, time
ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        time.sleep(0.001)
threading.Thread(target=tick, daemon=True).start()
def handle(event, ctx):
    return str(ticks)
";
    let scale = manifest("start = \"always\"\npause = \"0s\"");
    node.deploy_ok("p", &[("app.py", code), ("mote.toml", &scale)]);
    let ticks = || node.get("/p").text().parse::<u64>().expect("a number");
    let first = ticks();
    wait_for_states(&node, "p", &["paused"]);
    let then = std::time::Instant::now();
    let paused = ticks();
    wait_for("time to pass", || (then.elapsed().as_millis() > 200).then_some(()));
    wait_for_states(&node, "p", &["paused"]);
    let later = ticks();
    println!("ticks {first}, {paused}, {later}");
    // The instance is awake only until the reconciler's next check. 200 ms would be 200 ticks.
    assert!(later > paused && later - paused < 150, "{paused} {later}");
    // A paused instance ends like any other instance.
    let instance = node.json(&["describe", "p", "-o", "json"])["instances"][0]["id"].clone();
    node.deploy_ok("p", &[("app.py", code), ("mote.toml", &scale)]);
    wait_for("the paused one to go", || {
        let described = node.json(&["describe", "p", "-o", "json"]);
        let all = described["instances"].as_array().cloned().unwrap_or_default();
        (all.len() == 1 && all[0]["id"] != instance).then_some(())
    });
}

#[test]
fn programs_run_in_waiting_sandboxes_with_their_own_files_and_environment() {
    let node = Node::start();
    if !node.has_prewarmed() {
        return skip("sandboxes that wait", "needs root and a memory controller");
    }
    for name in ["one", "two"] {
        let program = format!("#!/bin/sh\necho {name} $WORD $MOTE_FUNCTION $(pwd) $(ls)\n");
        let manifest = format!(
            "version = 1\nruntime = \"exec\"\ncommand = [\"./run.sh\"]\n[env]\nWORD = \"of-{name}\"\n[scale]\nidle = \"1ms\"\n"
        );
        node.deploy_ok(name, &[("run.sh", &program), ("mote.toml", &manifest)]);
    }
    for _ in 0..10 {
        for name in ["one", "two"] {
            wait_for_states(&node, name, &[]);
            let answer = node.get(&format!("/{name}"));
            let expected = format!("{name} of-{name} {name} /function mote.toml run.sh\n");
            assert_eq!((answer.status, answer.text()), (200, expected));
        }
    }
    assert!(node.ok(&["logs", "one"]).contains("in a prewarmed sandbox"));
    // A missing program is reported in the same way as on a node without prewarmed sandboxes.
    let manifest = "version = 1\nruntime = \"exec\"\ncommand = [\"./gone\"]\n";
    let waited = node.deploy("gone", &[("mote.toml", manifest)]);
    let bare = Node::start_with(&["--prewarm", "off"]);
    let fresh = bare.deploy("gone", &[("mote.toml", manifest)]);
    assert!(!waited.status.success() && waited.stderr == fresh.stderr, "{waited:?} {fresh:?}");
}
