//! Separate instances for callers or calls: `balance = "per-caller"` and `"per-call"` in `[scale]`.

use std::collections::BTreeSet;

use mote_tests::{Answer, Node, wait_for};

/// Answers with who has called this instance so far, in memory and in `/tmp`, and how often.
const MEMORY: &str = r#"
import os, json, time

seen = []

def handle(event, ctx):
    seen.append(event.caller)
    with open("/tmp/seen", "a") as file:
        file.write(str(event.caller) + "\n")
    with open("/tmp/seen") as file:
        kept = file.read().split()
    time.sleep(float(event.args.get("wait", 0)))
    return json.dumps([sorted(set(map(str, seen + kept))), len(seen)])
"#;

fn manifest(scale: &str) -> String {
    format!("version = 1\n[access]\nmode = \"key\"\n[scale]\n{scale}")
}

fn deploy(node: &Node, manifest: &str) {
    node.deploy_ok("memory", &[("app.py", MEMORY), ("mote.toml", manifest)]);
}

fn key(node: &Node, name: &str) -> String {
    let made = node.ok(&["key", "create", name, "--function", "memory"]);
    format!("Bearer {}", made.trim())
}

fn call(node: &Node, key: &str, more: &[(&str, &str)], path: &str) -> Answer {
    node.call("POST", path, &[&[("authorization", key)], more].concat(), b"")
}

/// Returns whom the instance has served, and how often.
fn served(answer: &Answer) -> (Vec<String>, u64) {
    assert_eq!(answer.status, 200, "{answer:?}");
    serde_json::from_slice(&answer.body).expect("a list and a number")
}

#[test]
fn no_instance_serves_two_callers() {
    let node = Node::start();
    deploy(&node, &manifest("balance = \"per-caller\"\nmax = 4\n"));
    let callers = ["ann", "bob", "cy"].map(|name| (name, key(&node, name)));
    for round in 1..=3 {
        for (name, key) in &callers {
            let (seen, calls) = served(&call(&node, key, &[], "/memory"));
            assert_eq!((seen, calls), (vec![(*name).to_owned()], round), "round {round}");
        }
    }
    // A call of `mote invoke` has no caller and runs in another instance. An accepted call runs in
    // its caller's instance.
    let own: (Vec<String>, u64) =
        serde_json::from_str(&node.ok(&["invoke", "memory"])).expect("a list and a number");
    assert_eq!(own, (vec!["None".to_owned()], 1));
    let (name, key) = &callers[0];
    let accepted = call(&node, key, &[("prefer", "respond-async")], "/memory");
    assert_eq!(accepted.status, 202, "{accepted:?}");
    let place = format!("{}/result", accepted.header("location").expect("a location"));
    let answer = wait_for("the result", || {
        let answer = node.call("GET", &place, &[("authorization", key)], b"");
        (answer.status == 200).then_some(answer)
    });
    assert_eq!(served(&answer), (vec![(*name).to_owned()], 4));
    let described = node.json(&["describe", "memory", "-o", "json"]);
    assert_eq!(described["instances"].as_array().map(Vec::len), Some(4), "{described}");
}

/// There are more callers than instances, all at the same time. Every caller must be served, but
/// never by another caller's instance.
#[test]
fn callers_share_the_places_and_not_the_instances() {
    let node = Node::start();
    deploy(&node, &manifest("balance = \"per-caller\"\nmax = 2\n"));
    let names: Vec<String> = (0..6).map(|number| format!("caller{number}")).collect();
    let keys: Vec<String> = names.iter().map(|name| key(&node, name)).collect();
    std::thread::scope(|scope| {
        for (name, key) in names.iter().zip(&keys) {
            let node = &node;
            scope.spawn(move || {
                for _ in 0..5 {
                    let (seen, _) = served(&call(node, key, &[], "/memory?wait=0.02"));
                    assert_eq!(seen, [name.as_str()]);
                }
            });
        }
    });
    let described = node.json(&["describe", "memory", "-o", "json"]);
    assert_eq!(described["requests"]["total"], 30, "{described}");
    assert_eq!(described["requests"]["failed"], 0, "{described}");
    let reasons: BTreeSet<&str> = described["stops"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|stop| stop["reason_text"].as_str())
        .collect();
    assert!(reasons.contains("another caller needs an instance of its own"), "{reasons:?}");
}

#[test]
fn each_call_has_a_fresh_instance() {
    let node = Node::start();
    deploy(&node, "version = 1\n[scale]\nbalance = \"per-call\"\nmax = 3\n");
    for _ in 0..4 {
        let answer = node.post("/memory", b"");
        assert_eq!(served(&answer), (vec!["None".to_owned()], 1));
    }
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(served(&node.post("/memory?wait=0.02", b"")).1, 1));
        }
    });
}

#[test]
fn callers_without_a_name_cannot_have_instances_of_their_own() {
    let node = Node::start();
    for access in ["public", "local"] {
        let text = format!(
            "version = 1\n[access]\nmode = \"{access}\"\n[scale]\nbalance = \"per-caller\"\n"
        );
        let output = node.deploy("memory", &[("app.py", MEMORY), ("mote.toml", &text)]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected = format!("the access mode {access} names no callers");
        assert!(!output.status.success() && said.contains(&expected), "{said}");
    }
    let open = "version = 1\n[scale]\nbalance = \"per-caller\"\n";
    let output = node.deploy("memory", &[("app.py", MEMORY), ("mote.toml", open)]);
    assert!(!output.status.success(), "the mode of the node names no callers either");
}
