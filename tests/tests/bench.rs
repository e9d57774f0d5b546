//! `mote bench` against a real node over HTTP and CoAP. Its counts must match the requests that
//! arrived, and the results that it saves, compares and exports must be usable (R86, R89, R97).
//! Times are printed but do not decide the test.

use mote_tests::Node;
use serde_json::Value;

const HELLO: &str = "def handle(event, ctx):\n    return 'mote'\n";

fn requests(node: &Node, name: &str) -> u64 {
    let described = node.json(&["describe", name, "-o", "json"]);
    described["requests"]["total"].as_u64().expect("a count")
}

fn bench(node: &Node, args: &[&str]) -> Value {
    let mut all = vec!["bench"];
    all.extend(args);
    all.extend(["-o", "json"]);
    let report = node.json(&all);
    println!(
        "{args:?}: {:.0}/s, p50 {:.3} ms, p99 {:.3} ms, generator {:.1} us",
        report["answered_per_s"].as_f64().expect("a rate"),
        report["latency"]["p50_ms"].as_f64().unwrap_or(f64::NAN),
        report["latency"]["p99_ms"].as_f64().unwrap_or(f64::NAN),
        report["generator"]["cpu_us_per_operation"].as_f64().expect("a time"),
    );
    report
}

#[test]
fn what_it_counts_is_what_arrived() {
    let node = Node::start();
    node.deploy_ok("hello", &[("app.py", HELLO)]);
    let before = requests(&node, "hello");
    for via in ["http", "coap"] {
        let before = requests(&node, "hello");
        let report = bench(&node, &["hello", "--via", via, "-c", "8", "-n", "250"]);
        assert_eq!(report["answered"], 2_000, "{report}");
        assert_eq!((&report["failed"], &report["protocol"]), (&0.into(), &via.into()));
        assert_eq!(report["bytes"], 8_000);
        assert_eq!(requests(&node, "hello") - before, 2_000, "{via}");
        let counted: u64 = report["histogram"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|row| row[1].as_u64().expect("a count"))
            .sum();
        assert_eq!(counted, 2_000);
    }
    let raw = node.dir.path().join("raw.csv");
    let file = raw.to_str().expect("UTF-8");
    bench(&node, &["hello", "-c", "3", "-n", "20", "--raw", file]);
    let text = std::fs::read_to_string(&raw).expect("rows");
    let rows: Vec<&str> = text.lines().skip(1).collect();
    assert_eq!(rows.len(), 60, "{text}");
    for row in rows {
        let cells: Vec<&str> = row.split(',').collect();
        let times: Vec<u64> = cells[..3].iter().map(|cell| cell.parse().expect(row)).collect();
        assert!(times.is_sorted() && times[0] < times[2], "{row}");
        assert_eq!((cells[3], cells[4], cells.len()), ("answered", "4", 9), "{row}");
    }
    let url = format!("http://{}/hello", node.http);
    let open = ["--rate", "400", "--duration", "1s", "--warmup", "500ms"];
    let report = bench(&node, &[&[url.as_str()], &open[..]].concat());
    assert_eq!((&report["load"], &report["offered"]), (&"open".into(), &400.into()));
    assert_eq!(report["warmup"], 200);
    assert_eq!(requests(&node, "hello") - before, 4_660);
    for phase in ["queue", "init", "handover", "invoke"] {
        assert!(report["phases"][phase]["p50_ms"].is_number(), "{phase}: {report}");
    }
}

#[test]
fn failures_are_named_and_limits_decide_the_exit() {
    let node = Node::start();
    let picky = "def handle(event, ctx):\n    return ('no', 418) if event.text else 'yes'\n";
    node.deploy_ok("picky", &[("app.py", picky)]);
    let few = ["bench", "picky", "-c", "2", "-n", "20"];
    let run = |more: &[&str]| node.mote(&[&few[..], more].concat());
    let good = run(&["--fail-if", "errors>0,p50>60s"]);
    assert_eq!(good.status.code(), Some(0), "{}", String::from_utf8_lossy(&good.stderr));
    let slow = run(&["--fail-if", "p50>1us,errors>0"]);
    let said = String::from_utf8_lossy(&slow.stderr).into_owned();
    assert_eq!(slow.status.code(), Some(9), "{said}");
    assert!(said.contains("error[M0140]: p50>1us: the value was "), "{said}");
    assert!(!said.contains("errors>0"), "{said}");
    // A run with only failures is not a measurement.
    let none = run(&["--body", "x"]);
    let (said, table) =
        (String::from_utf8_lossy(&none.stderr), String::from_utf8_lossy(&none.stdout));
    assert_eq!(none.status.code(), Some(5), "{said}");
    assert!(said.contains("error[M0142]"), "{said}");
    assert!(said.contains("every answer was an error (40 status 418)"), "{said}");
    assert!(table.contains("40 failed (100.000 %: 40 status 418)"), "{table}");
    let gone = node.mote(&["bench", &format!("coap://{}/nobody", node.coap), "-n", "3"]);
    let table = String::from_utf8_lossy(&gone.stdout);
    assert!(table.contains("48 code 4.04"), "{table}");
    assert_eq!(gone.status.code(), Some(5), "{}", String::from_utf8_lossy(&gone.stderr));
    let turns = ["--baseline", "picky", "--body", "x", "--duration", "3s", "--turn", "100ms"];
    let compared = node.mote(&[&["bench", "picky"], &turns[..]].concat());
    let said = String::from_utf8_lossy(&compared.stderr);
    assert_eq!(compared.status.code(), Some(5), "{said}");
    assert!(said.contains("no answer was a success"), "{said}");
}

#[test]
fn results_are_saved_compared_and_exported() {
    let node = Node::start();
    node.deploy_ok("hello", &[("app.py", HELLO)]);
    let file = node.dir.path().join("run.json");
    let file = file.to_str().expect("UTF-8");
    node.ok(&["bench", "hello", "-n", "50", "--save", file]);
    let saved = std::fs::read_to_string(file).expect("it was written");
    let saved: Value = serde_json::from_str(&saved).expect("JSON");
    assert_eq!((&saved["version"], &saved["offered"]), (&1.into(), &800.into()));
    let output = node.mote(&["bench", "hello", "-n", "50", "-c", "4", "--compare", file]);
    let (table, said) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(table.contains("compared with ") && table.contains("RATIO"), "{table}");
    assert!(said.contains("the two runs differ: clients was 16 and is 4"), "{said}");
    let export = |kind: &str| node.ok(&["bench", "hello", "-n", "50", "--export", kind]);
    assert!(export("csv").starts_with("measure,value,unit\nclients,16,count\n"));
    assert!(export("md").contains("\n| latency | "));
    let page = export("html");
    assert!(page.starts_with("<!doctype html>") && page.matches("<svg").count() == 3, "{page}");
    assert!(!page.contains("src="), "the page fetches nothing");
}

#[test]
fn an_interrupt_ends_a_run_and_keeps_what_it_has() {
    let node = Node::start();
    node.deploy_ok("hello", &[("app.py", HELLO)]);
    let child = std::process::Command::new(mote_tests::mote_binary())
        .args(["bench", &format!("http://{}/hello", node.http), "--duration", "1h", "-o", "json"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the binary starts");
    mote_tests::wait_for("requests to arrive", || (requests(&node, "hello") > 100).then_some(()));
    mote_tests::signal(child.id(), "INT");
    let output = child.wait_with_output().expect("our child");
    assert_eq!(output.status.code(), Some(130));
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert!(report["warmup"].as_u64().expect("a count") > 0, "{report}");
}

#[test]
fn two_functions_in_turns_have_a_ratio() {
    let node = Node::start();
    node.deploy_ok("hello", &[("app.py", HELLO)]);
    node.deploy_ok("same", &[("app.py", HELLO)]);
    let slow = "import time\n\ndef handle(event, ctx):\n    time.sleep(0.004)\n    return 'mote'\n";
    node.deploy_ok("slow", &[("app.py", slow)]);
    let few = ["--duration", "600ms", "--warmup", "100ms", "--turn", "50ms", "-c", "2"];
    let compared = |one: &str, other: &str, more: &[&str]| {
        let args = [&["bench", one, "--baseline", other], &few[..], more, &["-o", "json"]].concat();
        node.json(&args)
    };
    for via in ["http", "coap"] {
        let file = node.dir.path().join("turns.json");
        let file = file.to_str().expect("UTF-8");
        let result = compared("hello", "slow", &["--via", via, "--save", file]);
        let [low, high] = [0, 1].map(|at| result["interval"][at].as_f64().expect("a number"));
        // A stall of the machine may affect one pair of turns, but not half of all pairs.
        let ratio = result["ratio"].as_f64().expect("a number");
        assert!(ratio > 1.0 && low <= high, "{via}: one of them sleeps: {result}");
        assert_eq!(result["ratios"].as_array().map(Vec::len), Some(6), "{result}");
        assert_eq!(result["sides"][0]["failed"], 0, "{result}");
        let saved = std::fs::read_to_string(file).expect("it was written");
        assert_eq!(serde_json::from_str::<Value>(&saved).expect("JSON"), result);
    }
    // Targets may also be URLs. The counts for both targets must match the requests that arrived.
    let before = requests(&node, "hello") + requests(&node, "same");
    let url = format!("http://{}/same", node.http);
    let table = node.ok(&[&["bench", "hello", "--baseline", &url], &few[..]].concat());
    assert!(table.contains("in turns of 50 ms") && table.contains("median of 6 pairs"), "{table}");
    assert!(requests(&node, "hello") + requests(&node, "same") > before);
    let wrong = |args: &[&str], said: &str| {
        let output = node.mote(&[&["bench", "hello", "--baseline", "same"], args].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(said), "{text}");
    };
    wrong(&["--duration", "1s"], "a ratio needs at least 6 pairs of turns");
    wrong(&["--turn", "0"], "a run needs at least one operation");
    wrong(&["--rate", "5"], "--rate");
    let gone = node.mote(&["bench", "hello", "--baseline", "nobody"]);
    assert!(!gone.status.success() && gone.stdout.is_empty());
}
