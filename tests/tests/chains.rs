//! Chains: deployed from one file, run for a waiting caller or as accepted invocations, continued
//! after kills of the node, looked up, and cancelled.

use mote_tests::{Node, is_long, wait_for};
use serde_json::{Value, json};

const ASYNC: (&str, &str) = ("prefer", "respond-async");
const HEAD: &str = "document:\n  dsl: '1.0.3'\n  namespace: test\n  version: '1.0.0'\n";

/// Counts its calls by step, doubles `n`, and does what the body says.
const STEP: &str = "import time\n\
def handle(event, ctx):\n    \
    step = event.headers.get('mote-step', 'none')\n    \
    ctx.kv.increment('calls/' + step)\n    \
    data = event.json()\n    \
    if data.get('fail') and not ctx.kv.get('mended'):\n        raise ValueError('not yet')\n    \
    while data.get('hold') and not ctx.kv.get('released'):\n        time.sleep(0.01)\n    \
    return {'n': data.get('n', 0) * 2}\n";

fn deploy(node: &Node, name: &str, tasks: &str) {
    let output = try_deploy(node, name, tasks);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
}

fn try_deploy(node: &Node, name: &str, tasks: &str) -> std::process::Output {
    let file = node.dir.path().join(format!("{name}.yaml"));
    std::fs::write(&file, format!("{HEAD}  name: {name}\n{tasks}")).expect("write the chain");
    node.mote(&["deploy", file.to_str().expect("UTF-8")])
}

fn accept(node: &Node, chain: &str, input: &Value) -> String {
    let answer = node.call("POST", &format!("/{chain}"), &[ASYNC], input.to_string().as_bytes());
    assert_eq!(answer.status, 202, "{}", answer.text());
    answer.json()["id"].as_str().expect("an id").to_owned()
}

fn show(node: &Node, id: &str) -> Value {
    node.json(&["runs", "show", id, "-o", "json"])
}

fn reached(node: &Node, id: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    wait_for(what, || {
        let shown = show(node, id);
        holds(&shown).then_some(shown)
    })
}

fn ended(node: &Node, id: &str) -> Value {
    let is_ended = |shown: &Value| !matches!(shown["state"].as_str(), Some("waiting" | "running"));
    reached(node, id, "the run to end", is_ended)
}

fn steps(shown: &Value) -> Vec<(String, String)> {
    let text = |step: &Value, key: &str| step[key].as_str().unwrap_or_default().to_owned();
    let all = shown["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().map(|step| (text(step, "step"), text(step, "state"))).collect()
}

fn calls(node: &Node, step: &str) -> String {
    let output = node.mote(&["kv", "get", "step", &format!("calls/{step}")]);
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

const SEQUENCE: &str = "do:
  - first: { call: step, with: { n: '${ .n }' } }
  - second: { call: step, with: { n: '${ .n }', hold: '${ $workflow.input.hold }' } }
  - both:
      fork:
        branches:
          - left: { call: step }
          - right: { call: step, with: { n: 10 } }
  - last: { set: { sum: '${ [.[].n] | add }' } }
";

#[test]
fn a_chain_is_deployed_from_one_file_and_answers() {
    let node = Node::start();
    node.deploy_ok("step", &[("app.py", STEP)]);
    deploy(&node, "sums", SEQUENCE);
    let answer = node.post("/sums", br#"{"n": 3}"#);
    assert_eq!((answer.status, answer.json()), (200, json!({"sum": 44})), "{}", answer.text());
    let listed = node.json(&["runs", "list", "-o", "json"]);
    assert_eq!(listed["invocations"], json!([]), "nobody asked for a journal");
    let id = accept(&node, "sums", &json!({"n": 3}));
    let shown = ended(&node, &id);
    assert_eq!((&shown["state"], &shown["status"]), (&"succeeded".into(), &200.into()), "{shown}");
    assert_eq!(shown["body"], r#"{"sum":44}"#);
    let mut names = steps(&shown);
    names.sort();
    let done = |name: &str| (name.to_owned(), "done".to_owned());
    assert_eq!(names, [done("both/left"), done("both/right"), done("first"), done("second")]);
    let listed = node.json(&["runs", "list", "--chain", "sums", "-o", "json"]);
    assert_eq!(listed["invocations"][0]["id"], id.as_str());
    assert!(node.ok(&["runs", "show", &id]).contains("both/left"), "people see the steps");
    // Bodies that are not JSON and errors of functions lead to answers that give a reason.
    let answer = node.post("/sums", b"{");
    assert_eq!((answer.status, answer.json()["status"].clone()), (400, json!(400)));
    deploy(&node, "fails", "do:\n  - a: { call: step, with: { fail: true } }\n");
    let answer = node.post("/fails", b"");
    assert_eq!((answer.status, answer.json()["instance"].clone()), (500, json!("/do/0/a")));
    assert!(answer.text().contains("errors/communication"), "{}", answer.text());
}

#[test]
fn a_run_continues_after_a_kill_with_the_step_that_it_had_reached() {
    let mut node = Node::start();
    node.deploy_ok("step", &[("app.py", STEP)]);
    deploy(&node, "sums", SEQUENCE);
    let id = accept(&node, "sums", &json!({"n": 3, "hold": true}));
    let second = ("second".to_owned(), "running".to_owned());
    for kill in 1..=5 {
        let shown = reached(&node, &id, "the second step", |shown| steps(shown).contains(&second));
        assert_eq!(shown["state"], "running");
        wait_for("the call of the second step", || {
            (calls(&node, "second") == kill.to_string()).then_some(())
        });
        node = node.crash_and_restart();
    }
    node.ok(&["kv", "put", "step", "released", "yes"]);
    let shown = ended(&node, &id);
    assert_eq!((&shown["state"], &shown["body"]), (&"succeeded".into(), &r#"{"sum":44}"#.into()));
    assert_eq!(calls(&node, "first"), "1", "the first step ended before the kills");
    assert_eq!(calls(&node, "second"), "6");
    assert_eq!(calls(&node, "both/left"), "1");
}

#[test]
fn a_run_that_waits_keeps_no_instance_and_survives_a_stop() {
    let node = Node::start();
    node.deploy_ok("step", &[("app.py", STEP)]);
    let tasks =
        "do:\n  - before: { call: step }\n  - pause: { wait: PT4S }\n  - after: { call: step }\n";
    deploy(&node, "pauses", tasks);
    let id = accept(&node, "pauses", &json!({"n": 1}));
    let shown = reached(&node, &id, "the pause", |shown| {
        shown["state"] == "waiting" && shown["due_at"].is_string()
    });
    assert_eq!(steps(&shown)[1], ("pause".to_owned(), "timed".to_owned()));
    let node = node.stop_and_restart();
    let shown = ended(&node, &id);
    assert_eq!((&shown["state"], &shown["body"]), (&"succeeded".into(), &r#"{"n":4}"#.into()));
    assert_eq!((calls(&node, "before"), calls(&node, "after")), ("1".to_owned(), "1".to_owned()));
    let id = accept(&node, "pauses", &json!({}));
    reached(&node, &id, "the pause", |shown| {
        shown["state"] == "waiting" && steps(shown).len() == 2
    });
    node.ok(&["runs", "cancel", &id]);
    assert_eq!(ended(&node, &id)["state"], "cancelled");
}

#[test]
fn a_run_that_failed_goes_on_with_the_step_that_failed() {
    let node = Node::start();
    node.deploy_ok("step", &[("app.py", STEP)]);
    let tasks = "do:\n  - good: { call: step }\n  - bad: { call: step, with: { fail: true } }\n";
    let folder = node.dir.path().join("fragile");
    std::fs::create_dir(&folder).expect("make the folder");
    std::fs::write(folder.join("c.yaml"), format!("{HEAD}  name: fragile\n{tasks}"))
        .expect("write");
    let manifest = "version = 1\nname = \"fragile\"\nruntime = \"chain\"\n[async]\nattempts = 2\nbackoff = \"1ms\"\n";
    std::fs::write(folder.join("mote.toml"), manifest).expect("write");
    node.ok(&["deploy", folder.to_str().expect("UTF-8")]);
    let id = accept(&node, "fragile", &json!({"n": 1}));
    let shown = ended(&node, &id);
    assert_eq!((&shown["state"], &shown["attempts"]), (&"dead".into(), &2.into()), "{shown}");
    assert_eq!((calls(&node, "good"), calls(&node, "bad")), ("1".to_owned(), "2".to_owned()));
    node.ok(&["kv", "put", "step", "mended", "yes"]);
    node.ok(&["dead-letters", "retry", &id]);
    assert_eq!(ended(&node, &id)["state"], "succeeded");
    assert_eq!((calls(&node, "good"), calls(&node, "bad")), ("1".to_owned(), "3".to_owned()));
    // An error that the chain itself raises is not retried.
    let raises =
        "do:\n  - a: { raise: { error: { type: 'https://example.com/no', status: 422 } } }\n";
    deploy(&node, "raises", raises);
    let id = accept(&node, "raises", &json!({}));
    let shown = ended(&node, &id);
    assert_eq!((&shown["state"], &shown["attempts"]), (&"dead".into(), &1.into()), "{shown}");
}

#[test]
fn files_with_mistakes_are_refused_with_the_line() {
    let node = Node::start();
    node.deploy_ok("step", &[("app.py", STEP)]);
    for (tasks, expected) in [
        ("do:\n  - a:\n      call: step\n      given: {}\n", "line 9: task \"a\" has no \"given\""),
        ("do:\n  - a: { set: '${ .a + }' }\n", "line 7: the expression \" .a + \""),
        (
            "do:\n  - a: { call: http, with: { method: get, endpoint: 'http://x.y/' } }\n",
            "only functions of its node",
        ),
    ] {
        let output = try_deploy(&node, "wrong", tasks);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(expected), "{text}");
    }
    deploy(&node, "strange", "do:\n  - a: { call: nobody }\n");
    let answer = node.post("/strange", b"");
    assert_eq!(answer.status, 404, "{}", answer.text());
    let scheduled = "schedule: { every: { hours: 1 } }\ndo:\n  - a: { call: step }\n";
    deploy(&node, "hourly", scheduled);
    assert!(node.ok(&["schedules"]).contains("hourly"));
}

#[test]
fn a_dry_run_reads_the_tasks_and_names_functions_that_are_missing() {
    let node = Node::start();
    let path = node.dir.path().join("wrong.yaml");
    let file = path.to_str().expect("UTF-8");
    let write = |tasks: &str| {
        let text = format!("{HEAD}  name: wrong\ndo:\n{tasks}");
        std::fs::write(&path, text).expect("write the chain");
    };
    let dry_run = || {
        let output = node.mote(&["deploy", "--dry-run", file]);
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    write("  - a: { cal: step }\n  - b: { set: 1 }\n  - c: { call: step, given: {} }\n");
    let (is_right, text) = dry_run();
    assert!(!is_right && text.contains("line 7: task \"a\"") && text.contains("line 9:"), "{text}");
    assert_eq!(text.matches("line 7").count(), 1, "a mistake is named once: {text}");
    write("  - a: { call: absent }\n");
    let (is_right, text) = dry_run();
    assert!(is_right && text.contains("call absent, which this node does not have"), "{text}");
    let unknown = node.mote(&["runs", "show", "nothing"]);
    let text = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(text.contains("mote runs list"), "{text}");
    assert!(node.mote(&["describe", "wrong"]).status.code() != Some(0), "nothing was deployed");
    let list = node.mote(&["runs", "list", "--chain", "wrong"]);
    assert!(!list.status.success(), "no chain has this name");
}

/// Starts many runs while the node is killed again and again. Each run must end with the right
/// output. Each step must have run at least once, and a step whose record was written must not run
/// again.
#[test]
fn no_run_is_lost_under_kills() {
    let (runs, kills) = if is_long() { (2_000, 100) } else { (60, 5) };
    let mut node = Node::start();
    node.deploy_ok("step", &[("app.py", STEP)]);
    let tasks = "do:
  - one: { call: step, with: { n: '${ .n }' } }
  - two: { call: step }
  - pause: { wait: { milliseconds: 20 } }
  - each:
      for: { in: '[1, 2, 3]' }
      metadata: { parallel: 3 }
      do: [ { three: { call: step, with: { n: '${ $item + $input.n }' } } } ]
  - sum: { set: '${ [.[].n] | add }' }
  - four: { call: step, with: { n: '${ . }' } }
";
    deploy(&node, "sums", tasks);
    let mut ids = Vec::new();
    for kill in 0..kills {
        for _ in 0..runs / kills {
            let n = ids.len();
            ids.push((n, accept(&node, "sums", &json!({"n": n}))));
        }
        // Each kill happens at a different point of the runs.
        let ended = kill % 7;
        wait_for("some runs to get on", || {
            let (_, id) = &ids[ids.len() - 1 - ended % ids.len()];
            (steps(&show(&node, id)).len() >= kill % 6).then_some(())
        });
        node = node.crash_and_restart();
    }
    for (n, id) in &ids {
        let shown = ended(&node, id);
        let expected = 2 * (2 * (3 * 4 * n + 6));
        assert_eq!(shown["state"], "succeeded", "{shown}");
        assert_eq!(shown["body"], json!({"n": expected}).to_string(), "run {n}: {shown}");
    }
    let count = |step: &str| calls(&node, step).parse::<usize>().unwrap_or_default();
    for step in ["one", "two", "each[0]/three", "each[1]/three", "each[2]/three", "four"] {
        let ran = count(step);
        println!("{step}: {ran} calls for {} runs and {kills} kills", ids.len());
        assert!(ran >= ids.len(), "{step} ran {ran} times");
    }
}

#[test]
fn an_endless_expression_ends_only_its_own_run() {
    let node = Node::start();
    node.deploy_ok("step", &[("app.py", STEP)]);
    let tasks = "do:
  - endless: { if: .endless, set: '${ reduce range(1000000000000000) as $i (0; .) }' }
  - hold: { call: step, with: { n: 2, hold: true } }
";
    deploy(&node, "risky", tasks);
    let good = accept(&node, "risky", &json!({}));
    let held = ("hold".to_owned(), "running".to_owned());
    reached(&node, &good, "the held step", |shown| steps(shown).contains(&held));
    let answer = node.post("/risky", br#"{"endless": true}"#);
    assert_eq!(answer.status, 500, "{}", answer.text());
    let logs = node.ok(&["logs", "risky"]);
    assert!(logs.contains("longer than 5 s"), "{logs}");
    node.ok(&["kv", "put", "step", "released", "yes"]);
    let shown = ended(&node, &good);
    assert_eq!((&shown["state"], &shown["attempts"]), (&"succeeded".into(), &1.into()), "{shown}");
    // Hostile data must not end the worker.
    let nested = "[".repeat(500_000);
    let answer = node.post("/risky", nested.as_bytes());
    assert_eq!(answer.status, 400, "{}", answer.text());
}
