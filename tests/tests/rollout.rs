//! Revisions are listed, rolled back, split and tagged, and callers never notice a switch of
//! traffic (T-ROLL).

use std::collections::BTreeSet;
use std::process::Output;
use std::time::Instant;

use mote_tests::load::{Load, Sample};
use mote_tests::{Node, coap_client, skip, wait_for};

/// A function that answers with the number in its code.
fn says(number: u64) -> String {
    format!("def handle(event, ctx):\n    return '{number}'\n")
}

/// The same function with so much work that calls often wait at the rate of the test.
fn works_and_says(number: u64) -> String {
    format!("import time\ndef handle(event, ctx):\n    time.sleep(0.0015)\n    return '{number}'\n")
}

const BROKEN: &str = "import no_such_module_here\ndef handle(event, ctx):\n    return 'broken'\n";

fn deploy(node: &Node, code: &str, flags: &[&str]) -> Output {
    let folder = node.dir.path().join("src");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("app.py"), code).unwrap();
    let mut args = vec!["deploy", folder.to_str().unwrap(), "--name", "f"];
    args.extend(flags);
    node.mote(&args)
}

fn deploy_ok(node: &Node, number: u64, flags: &[&str]) {
    let output = deploy(node, &says(number), flags);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\nnode: {}", node.log());
}

/// Checks that the command failed with this exit code and these words.
fn refused(output: &Output, exit: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(exit), "{text}");
    assert!(words.iter().all(|word| text.contains(word)), "{words:?} in {text}");
}

/// `(revision, state, percent, tag)`, newest first.
fn revisions(node: &Node) -> Vec<(u64, String, u64, Option<String>)> {
    let list = node.json(&["revisions", "f", "-o", "json"]);
    let row = |info: &serde_json::Value| {
        assert_eq!(info["code"].as_str().unwrap().len(), 64);
        (
            info["revision"].as_u64().unwrap(),
            info["state"].as_str().unwrap().to_owned(),
            info["percent"].as_u64().unwrap(),
            info["tag"].as_str().map(str::to_owned),
        )
    };
    list["revisions"].as_array().unwrap().iter().map(row).collect()
}

fn row(revision: u64, state: &str, percent: u64) -> (u64, String, u64, Option<String>) {
    (revision, state.to_owned(), percent, None)
}

#[test]
fn rolling_back_goes_to_what_was_live_before_and_lasts() {
    let node = Node::start();
    for number in 1..=3 {
        deploy_ok(&node, number, &[]);
    }
    refused(&deploy(&node, BROKEN, &[]), 8, &["M0411", "no_such_module_here"]);
    let expected =
        [row(4, "added", 0), row(3, "live", 100), row(2, "retired", 0), row(1, "retired", 0)];
    assert_eq!(revisions(&node), expected);
    assert_eq!(node.json(&["rollback", "f", "-o", "json"])["revision"], 2);
    assert_eq!(node.get("/f").text(), "2");
    let node = node.crash_and_restart();
    assert_eq!(node.get("/f").text(), "2");
    node.ok(&["rollback", "f"]);
    assert_eq!(node.get("/f").text(), "1", "rolling back twice goes further back");
    refused(&node.mote(&["rollback", "f"]), 3, &["M0412", "f has no earlier live revision"]);
    refused(&node.mote(&["rollback", "f", "9"]), 3, &["M0412", "f has no revision 9"]);
    // The broken revision is stored, but does not receive traffic in this way either.
    refused(&node.mote(&["rollback", "f", "4"]), 8, &["M0411", "| ModuleNotFoundError"]);
    assert_eq!(node.get("/f").text(), "1");
    node.ok(&["rollback", "f", "3"]);
    assert_eq!(node.get("/f").text(), "3");
    let log = node.ok(&["logs", "f"]);
    assert!(log.contains("traffic (rollback): @3 100 %, was @1 100 %"), "{log}");
}

#[test]
fn a_tagged_revision_is_reached_by_its_tag_alone() {
    let node = Node::start();
    refused(&deploy(&node, &says(1), &["--tag", "next"]), 2, &["M0413", "no live revision"]);
    deploy_ok(&node, 1, &[]);
    deploy_ok(&node, 2, &["--tag", "next"]);
    assert_eq!(node.get("/f").text(), "1");
    assert_eq!(node.get("/f@next/some/path?q=1").text(), "2");
    assert_eq!(node.get("/f@old").status, 404);
    assert_eq!(node.ok(&["invoke", "f@next"]).trim(), "2");
    assert_eq!(node.ok(&["invoke", "f@next", "--via", "http"]).trim(), "2");
    refused(&node.mote(&["invoke", "f@old"]), 3, &["M0501", "its tags: next"]);
    match coap_client() {
        Some(client) => {
            let url = format!("coap://{}/f@next/x", node.coap);
            let output = std::process::Command::new(client).args(["-B", "20", &url]).output();
            assert_eq!(String::from_utf8_lossy(&output.unwrap().stdout).trim(), "2");
        }
        None => skip("the tag over CoAP", "libcoap's client is not installed"),
    }
    deploy_ok(&node, 3, &["--no-traffic"]);
    assert_eq!((node.get("/f").text(), node.get("/f@next").text()), ("1".into(), "2".into()));
    // A plain deploy moves the traffic and leaves the tag. Many such deploys do not remove the
    // tagged revision.
    for number in 4..=16 {
        deploy_ok(&node, number, &[]);
    }
    let node = node.crash_and_restart();
    assert_eq!((node.get("/f").text(), node.get("/f@next").text()), ("16".into(), "2".into()));
    let shown = node.ok(&["describe", "f"]);
    assert!(shown.contains("traffic      @2  0 %  tag next\n             @16  100 %"), "{shown}");
    deploy_ok(&node, 17, &["--tag", "next"]);
    assert_eq!(node.get("/f@next").text(), "17", "the tag moves");
    node.ok(&["traffic", "f", "17:"]);
    assert_eq!(node.get("/f@next").status, 404);
    assert_eq!(node.get("/f").text(), "16");
}

#[test]
fn a_split_is_checked_and_outlives_a_restart() {
    let node = Node::start();
    deploy_ok(&node, 1, &[]);
    deploy_ok(&node, 2, &[]);
    refused(&deploy(&node, BROKEN, &["--tag", "next"]), 8, &["M0411"]);
    for (shares, exit, words) in [
        (&["1=90", "2=20"][..], 2, &["M0413", "110 %"][..]),
        (&["1=50", "9=50"], 3, &["M0412", "no revision 9"]),
        (&["1:Next=0"], 2, &["M0413", "tag `Next`"]),
        // One of the revisions is broken, so nothing changes, not even for the other revision.
        (&["1=50", "3=50"], 8, &["M0411", "f@3"]),
    ] {
        refused(&node.mote(&[&["traffic", "f"], shares].concat()), exit, words);
        assert_eq!(revisions(&node)[1], row(2, "live", 100), "{shares:?}");
    }
    node.ok(&["traffic", "f", "1:old=50", "2=50"]);
    let node = node.crash_and_restart();
    let expected = [row(3, "added", 0), row(2, "live", 50)];
    assert_eq!(revisions(&node)[..2], expected);
    let mut seen = BTreeSet::new();
    wait_for("both revisions to answer", || {
        seen.insert(node.get("/f").text());
        (seen.len() == 2).then_some(())
    });
    for key in 0..20 {
        let key = key.to_string();
        let answer = || node.call("GET", "/f", &[("Mote-Split-Key", &key)], b"").text();
        let first = answer();
        assert!((0..5).all(|_| answer() == first), "equal keys, equal revisions");
    }
    let log = node.ok(&["traffic", "f"]);
    assert!(log.contains("1    50 %     old"), "{log}");
    // A rollback ends a split.
    node.ok(&["rollback", "f"]);
    assert_eq!(revisions(&node)[1].2, 100, "revision 2 had everything before the split");
}

/// A change that was made while callers called, and the revisions that may answer after it.
struct Operation {
    begun: Instant,
    ended: Instant,
    allowed: BTreeSet<u64>,
}

struct Rollout {
    node: Node,
    operations: Vec<Operation>,
    /// The number of the newest revision.
    newest: u64,
}

impl Rollout {
    /// Makes a change after which only these revisions may answer.
    fn operate(&mut self, allowed: &[u64], work: impl FnOnce(&Node)) {
        let begun = Instant::now();
        work(&self.node);
        let allowed = allowed.iter().copied().collect();
        self.operations.push(Operation { begun, ended: Instant::now(), allowed });
    }

    fn live(&self) -> u64 {
        *self.operations.last().unwrap().allowed.iter().next_back().unwrap()
    }

    fn deploy(&mut self) {
        self.newest += 1;
        let number = self.newest;
        self.operate(&[number], |node| {
            let output = deploy(node, &works_and_says(number), &[]);
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{text}\nnode: {}", node.log());
        });
    }

    fn deploy_broken(&mut self) {
        self.newest += 1;
        let live = self.live();
        self.operate(&[live], |node| {
            refused(&deploy(node, BROKEN, &[]), 8, &["M0411", "no_such_module_here"]);
        });
    }

    fn roll_back(&mut self) {
        let live = node_before(&self.operations);
        self.operate(&[live], |node| {
            let result = node.json(&["rollback", "f", "-o", "json"]);
            assert_eq!(result["revision"], live);
        });
    }

    /// Returns the revisions that may answer a request. They are those of several changes: from the
    /// last change that had ended when the request began, to the last change that had begun when
    /// the request ended.
    fn allowed(&self, sample: &Sample) -> BTreeSet<u64> {
        let first = self.operations.iter().rposition(|o| o.ended <= sample.begun).unwrap();
        let last = self.operations.iter().rposition(|o| o.begun <= sample.ended).unwrap();
        self.operations[first..=last].iter().flat_map(|o| o.allowed.clone()).collect()
    }
}

/// The revision that was live before the current one.
fn node_before(operations: &[Operation]) -> u64 {
    let live = &operations.last().unwrap().allowed;
    let before = operations.iter().rfind(|operation| operation.allowed != *live);
    *before.unwrap().allowed.iter().next_back().unwrap()
}

/// Requests per second of all callers together.
const RATE: u32 = 500 / mote_tests::SLOWNESS;
/// Requests of the split phase that are counted.
const COUNTED: usize = 2_000;

#[test]
fn callers_never_notice_a_switch() {
    let long = std::env::var_os("MOTE_LONG").is_some_and(|value| value == "1");
    let swaps = if long { 200 } else { 5 };
    let mut rollout = Rollout { node: Node::start(), operations: Vec::new(), newest: 0 };
    rollout.deploy();
    let mut load = Load::default();
    let http = rollout.node.http;
    let coap = rollout.node.coap;
    for _ in 0..8 {
        load.http1(http, "/f", RATE / 20);
    }
    load.http2(http, "/f", RATE * 2 / 5);
    load.coap(coap, "f", RATE / 5);
    let started = Instant::now();
    for swap in 0..swaps {
        rollout.deploy();
        if swap % 3 == 1 {
            rollout.deploy_broken();
        }
        if swap % 4 == 2 {
            rollout.roll_back();
        }
    }
    let swapped = started.elapsed();
    let old = node_before(&rollout.operations);
    let new = rollout.live();
    rollout.operate(&[old, new], |node| {
        node.ok(&["traffic", "f", &format!("{old}=75"), &format!("{new}=25")]);
    });
    let split = rollout.operations.last().unwrap().ended;
    let before = load.count();
    wait_for("the split to be used", || (load.count() > before + COUNTED).then_some(()));
    let merged = Instant::now();
    rollout.operate(&[new], |node| {
        node.ok(&["traffic", "f", &format!("{new}=100")]);
    });
    let after = load.count();
    wait_for("some more answers", || (load.count() > after + 200).then_some(()));
    let samples = load.stop();

    judge(&rollout, &samples);
    let switches = rollout.operations.len() - 1;
    let mut times: Vec<_> = samples.iter().map(|sample| sample.ended - sample.begun).collect();
    times.sort();
    println!(
        "{swaps} swaps, {switches} operations in {:.1} s: {} answers, 0 failed, 0 of an older \
         revision; slowest {} ms, p99 {} ms",
        swapped.as_secs_f64(),
        samples.len(),
        times.last().unwrap().as_millis(),
        mote_tests::p99(&times).as_millis(),
    );
    let in_split = |sample: &&Sample| sample.begun >= split && sample.ended < merged;
    let counted: Vec<_> = samples.iter().filter(in_split).collect();
    for protocol in ["http/1.1", "http/2", "coap"] {
        let of = |sample: &&&Sample| sample.protocol == protocol;
        let all = counted.iter().filter(of).count();
        let to_new = counted.iter().filter(of).filter(|s| s.body == Ok(new.to_string())).count();
        let percent = to_new as f64 / all as f64 * 100.0;
        println!("  {protocol}: split 75/25: {percent:.1} % of {all} to 25");
        assert!((15.0..35.0).contains(&percent), "{protocol}: {percent}");
    }
}

/// Checks that no request failed, and that each answer comes from a revision that was allowed to
/// give it.
fn judge(rollout: &Rollout, samples: &[Sample]) {
    let failed: Vec<_> = samples.iter().filter(|sample| sample.body.is_err()).collect();
    assert!(failed.is_empty(), "{} failed: {:?}", failed.len(), &failed[..failed.len().min(5)]);
    let wrong = |sample: &&Sample| {
        let number = sample.body.as_ref().unwrap().parse().unwrap_or(0);
        !rollout.allowed(sample).contains(&number)
    };
    let wrong: Vec<_> = samples.iter().filter(wrong).collect();
    assert!(wrong.is_empty(), "{} of a wrong revision: {:?}", wrong.len(), wrong[0]);
}
