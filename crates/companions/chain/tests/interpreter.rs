//! Runs chains against a host whose functions are defined in this file and whose records are in
//! memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use mote_chain::document::Chain;
use mote_chain::expression::{from_json, parse, to_json};
use mote_chain::host::{Error, Host, Outgoing, Publication, Reply, Stop};
use mote_chain::interpreter::{Beginning, Outcome, run};
use mote_chain::reader;
use serde_json::{Value, json};

/// The node of one test. `double` doubles `.n`, `fail` answers 503 until it has been called `fails`
/// times, `echo` answers with its body, and `slow` never answers.
#[derive(Default)]
struct Node {
    calls: RefCell<Vec<(String, String)>>,
    published: RefCell<Vec<Publication>>,
    records: RefCell<HashMap<String, String>>,
    journalled: bool,
    fails: Cell<usize>,
    /// The number of the record after which the node ends, like a crash right after writing the
    /// record.
    crash_at: Cell<Option<usize>>,
    written: Cell<usize>,
    now_ms: Cell<u64>,
}

impl Host for Node {
    fn call(&self, call: Outgoing) -> LocalBoxFuture<'_, Result<Reply, Stop>> {
        self.calls.borrow_mut().push((call.function.clone(), call.step.clone()));
        let json = |value: Value| Reply {
            status: 200,
            headers: vec![("content-type".into(), "application/json".into())],
            body: value.to_string().into_bytes(),
        };
        let body: Value = serde_json::from_slice(&call.body).unwrap_or(Value::Null);
        match call.function.as_str() {
            "double" => {
                let number = body["n"].as_i64().unwrap_or_default();
                async move { Ok(json(json!({"n": number * 2}))) }.boxed_local()
            }
            "echo" => async move { Ok(json(body)) }.boxed_local(),
            "request" => {
                let method = call.method;
                let path = call.path;
                let query = call.query;
                let seen = json!({"method": method, "path": path, "query": query, "body": body});
                async move { Ok(json(seen)) }.boxed_local()
            }
            "slow" => futures_util::future::pending().boxed_local(),
            "fail" => {
                let left = self.fails.get();
                self.fails.set(left.saturating_sub(1));
                async move {
                    match left {
                        0 => Ok(json(json!({"ok": true}))),
                        _ => Ok(Reply { status: 503, body: b"busy".to_vec(), ..Reply::default() }),
                    }
                }
                .boxed_local()
            }
            other => panic!("no function {other}"),
        }
    }

    fn publish(&self, message: Publication) -> LocalBoxFuture<'_, Result<(), Stop>> {
        self.published.borrow_mut().push(message);
        async { Ok(()) }.boxed_local()
    }

    fn record(&self, key: &str, value: String) -> LocalBoxFuture<'_, Result<(), Stop>> {
        assert!(self.journalled);
        let old = self.records.borrow_mut().insert(key.to_owned(), value);
        assert_eq!(old, None, "{key} was recorded twice");
        self.written.set(self.written.get() + 1);
        let crashes = self.crash_at.get() == Some(self.written.get());
        async move {
            match crashes {
                true => Err(Stop::Broken("the node has ended".to_owned())),
                false => Ok(()),
            }
        }
        .boxed_local()
    }

    fn is_journalled(&self) -> bool {
        self.journalled
    }

    fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    fn begins_until_ms(&self) -> u64 {
        u64::MAX
    }

    fn random(&self) -> f64 {
        0.5
    }
}

fn chain(tasks: &str) -> Chain {
    let head = "document: { dsl: '1.0.3', namespace: test, name: chain, version: '1.0.0' }\n";
    reader::read(&format!("{head}{tasks}")).unwrap()
}

/// Runs one attempt on a paused clock, on which time passes at once.
fn attempt(node: &Node, chain: &Chain, input: &Value) -> Outcome {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let kept = node.records.borrow().clone();
    let records = kept.into_iter().map(|(key, value)| (key, parse(value.as_bytes()).unwrap()));
    let beginning = Beginning {
        id: "01RUN".into(),
        began_ms: 1_000,
        input: from_json(input),
        records: records.collect(),
    };
    runtime.unwrap().block_on(run(chain, node, beginning))
}

fn output(tasks: &str, input: Value) -> Value {
    let node = Node::default();
    match attempt(&node, &chain(tasks), &input) {
        Outcome::Done(output) => to_json(&output).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn failure(tasks: &str, input: Value) -> Error {
    let node = Node::default();
    match attempt(&node, &chain(tasks), &input) {
        Outcome::Failed(error) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn data_flow_from_task_to_task() {
    let tasks = "
do:
  - first: { call: double, with: { n: '${ .start + 1 }' }, export: { as: '{ first: .n }' } }
  - second: { call: double }
  - third:
      if: .n > 1000
      call: double
  - last:
      input: { from: .n }
      set: { seen: '${ . }', first: '${ $context.first }', at: '${ $task.reference }' }
output: { as: '. + { id: $workflow.id, input: $workflow.input.start, by: $runtime.name }' }
";
    let expected = json!({"seen": 12, "first": 6, "at": "/do/3/last", "id": "01RUN", "input": 2, "by": "mote"});
    assert_eq!(output(tasks, json!({"start": 2})), expected);
}

#[test]
fn a_task_leads_to_another() {
    let tasks = "
do:
  - start: { set: { colors: '${ .colors + [\"red\"] }' }, then: green }
  - blue: { set: { colors: '${ .colors + [\"blue\"] }' }, then: end }
  - green: { set: { colors: '${ .colors + [\"green\"] }' }, then: blue }
";
    assert_eq!(output(tasks, json!({})), json!({"colors": ["red", "green", "blue"]}));
    let nested = "
do:
  - outer:
      do:
        - one: { set: { n: 1 }, then: exit }
        - two: { set: { n: 2 } }
  - after: { set: { n: '${ .n + 10 }' } }
";
    assert_eq!(output(nested, json!({})), json!({"n": 11}));
    let ended = nested.replace("exit", "end");
    assert_eq!(output(&ended, json!({})), json!({"n": 1}));
    let error = failure("do:\n  - loop: { set: {}, then: loop }\n", json!({}));
    assert!(error.detail.contains("looks like a loop"), "{error:?}");
}

#[test]
fn choices_take_the_first_case_that_holds() {
    let tasks = "
do:
  - choose:
      switch:
        - other: { then: small }
        - big: { when: .n > 10, then: big }
        - huge: { when: .n > 100, then: end }
  - big: { set: { size: big }, then: end }
  - small: { set: { size: small } }
";
    assert_eq!(output(tasks, json!({"n": 200})), json!({"size": "big"}));
    assert_eq!(output(tasks, json!({"n": 2})), json!({"size": "small"}));
}

#[test]
fn loops_pass_data_on_and_parallel_ones_collect() {
    let tasks = "
do:
  - loop:
      for: { each: color, in: .colors, at: place }
      while: (.seen | length) < 2
      do:
        - mark: { set: { colors: '${ $input.colors }', seen: '${ .seen + [\"\\($place)\\($color)\"] }' } }
";
    let colors = json!({"colors": ["red", "green", "blue"]});
    assert_eq!(output(tasks, colors)["seen"], json!(["0red", "1green"]));
    let tasks = "
do:
  - map:
      for: { in: .numbers }
      metadata: { parallel: 2 }
      do:
        - one: { call: double, with: { n: '${ $item }' } }
        - two: { set: '${ .n + $index }' }
";
    assert_eq!(output(tasks, json!({"numbers": [1, 2, 3]})), json!([2, 5, 8]));
    let error =
        failure("do:\n  - a: { for: { in: .x }, do: [ b: { set: {} } ] }\n", json!({"x": 3}));
    assert_eq!((error.status, error.instance.as_str()), (400, "/do/0/a"));
}

#[test]
fn branches_run_at_once() {
    let tasks = "
do:
  - both:
      fork:
        branches:
          - a: { call: double, with: { n: 1 } }
          - b: { call: double, with: { n: 2 } }
";
    assert_eq!(output(tasks, json!({})), json!([{"n": 2}, {"n": 4}]));
    let race = "
do:
  - race:
      fork:
        compete: true
        branches:
          - slow: { call: slow }
          - fast: { call: double, with: { n: 2 } }
";
    assert_eq!(output(race, json!({})), json!({"n": 4}));
}

#[test]
fn errors_are_caught_retried_and_named() {
    let tasks = "
do:
  - careful:
      try:
        - risky: { call: fail }
      catch:
        errors: { with: { status: 503, type: 'https://serverlessworkflow.io/dsl/errors/types/communication' } }
        as: problem
        retry: { delay: { seconds: 3 }, backoff: { exponential: {} }, limit: { attempt: { count: 2 } } }
        do:
          - note: { set: { status: '${ $problem.status }', at: '${ $problem.instance }' } }
";
    let chain = chain(tasks);
    let node = Node { fails: Cell::new(2), ..Node::default() };
    let done = attempt(&node, &chain, &json!({}));
    assert_eq!(done, Outcome::Done(from_json(&json!({"ok": true}))));
    assert_eq!(node.calls.borrow().len(), 3);
    let node = Node { fails: Cell::new(9), ..Node::default() };
    let expected = json!({"status": 503, "at": "/do/0/careful/try/0/risky"});
    assert_eq!(attempt(&node, &chain, &json!({})), Outcome::Done(from_json(&expected)));
    assert_eq!(node.calls.borrow().len(), 3);
    let other = "
do:
  - careful:
      try: [ { risky: { raise: { error: { type: 'https://example.com/no', status: 418, title: '${ .why }' } } } } ]
      catch: { errors: { with: { status: 503 } } }
";
    let error = failure(other, json!({"why": "tea"}));
    assert_eq!((error.status, error.title.as_str()), (418, "tea"));
    assert_eq!(error.instance, "/do/0/careful/try/0/risky");
}

#[test]
fn tasks_and_runs_have_timeouts() {
    let error = failure("do:\n  - a: { call: slow, timeout: { after: PT2S } }\n", json!({}));
    assert_eq!((error.status, error.instance.as_str()), (408, "/do/0/a"));
    let whole = "timeout: { after: { seconds: 1 } }\ndo:\n  - a: { call: slow }\n";
    assert_eq!(failure(whole, json!({})).status, 408);
    assert_eq!(output("do:\n  - a: { wait: { hours: 1 } }\n", json!({"n": 1})), json!({"n": 1}));
}

#[test]
fn functions_are_called_and_messages_published() {
    let tasks = "
do:
  - ask:
      call: http
      with:
        method: get
        endpoint: http://mote.internal/request/pets/{pet}
        query: { q: '${ .q }' }
        output: response
";
    let seen = output(tasks, json!({"pet": "a b", "q": "x&y"}));
    assert_eq!(seen["statusCode"], 200);
    let expected =
        json!({"method": "GET", "path": "/pets/a%20b", "query": "q=x%26y", "body": null});
    assert_eq!(seen["content"], expected);
    let node = Node::default();
    let publish =
        chain("do:\n  - tell: { call: mqtt.publish, with: { topic: '${ \"a/\\(.id)\" }' } }\n");
    attempt(&node, &publish, &json!({"id": 7}));
    let published = node.published.borrow();
    assert_eq!((&*published[0].topic, &*published[0].payload), ("a/7", &br#"{"id":7}"#[..]));
    assert_eq!((published[0].qos, &*published[0].content_type), (1, "application/json"));
}

#[test]
fn schemas_are_checked() {
    let tasks = "
input:
  schema: { format: json, document: { type: object, required: [n] } }
do:
  - a: { set: { n: 1 } }
";
    assert_eq!(output(tasks, json!({"n": 5})), json!({"n": 1}));
    let error = failure(tasks, json!({}));
    assert!(error.kind.ends_with("/validation") && error.detail.contains("required"), "{error:?}");
}

/// A chain that writes every kind of record.
const LONG: &str = "
do:
  - first: { call: double, with: { n: 1 } }
  - pause: { wait: { minutes: 10 } }
  - careful:
      try: [ { risky: { call: fail } } ]
      catch: { retry: { delay: { seconds: 1 }, limit: { attempt: { count: 3 } } } }
  - map:
      for: { in: '[1, 2, 3]' }
      metadata: { parallel: 3 }
      do: [ { one: { call: double, with: { n: '${ $item }' } } } ]
      timeout: { after: PT1H }
  - race:
      fork:
        compete: true
        branches: [ { a: { call: double, with: { n: 10 } } }, { b: { call: slow } } ]
  - again:
      for: { in: '[1, 2]' }
      do: [ { step: { call: echo, with: { n: '${ $item }' } } } ]
  - tell: { call: mqtt.publish, with: { topic: a } }
";

#[test]
fn a_run_continues_with_the_step_that_it_had_reached() {
    let chain = chain(LONG);
    let mut crashes = 0;
    for crash_at in 1.. {
        let node = Node { journalled: true, fails: Cell::new(2), ..Node::default() };
        node.crash_at.set(Some(crash_at));
        let mut attempts = 0;
        let done = loop {
            attempts += 1;
            assert!(attempts < 20);
            match attempt(&node, &chain, &json!({})) {
                Outcome::Done(output) => break to_json(&output).unwrap(),
                Outcome::Broken(_) => crashes += 1,
                Outcome::Suspended(until) => {
                    assert!(until > node.now_ms.get());
                    node.now_ms.set(until);
                }
                Outcome::Failed(error) => panic!("{error:?}"),
            }
        };
        assert_eq!(done, json!({"n": 2}));
        let mut seen: HashMap<String, usize> = HashMap::new();
        for (_, step) in node.calls.borrow().iter() {
            *seen.entry(step.clone()).or_default() += 1;
        }
        // The record of a step is on disk before the crash, so a step does not run twice.
        // Exceptions are the branch that lost its race, and calls that ran at the same time as the
        // one whose record failed.
        for (step, count) in seen {
            let beside = step.starts_with("map/") || step == "map" || step.starts_with("race/");
            assert!(count == 1 || beside, "{step} ran {count} times with a crash at {crash_at}");
        }
        assert_eq!(node.published.borrow().len(), 1);
        if node.written.get() < crash_at {
            assert!(crashes > 12, "{crashes}");
            return;
        }
    }
}

#[test]
fn a_run_that_only_waits_gives_its_place_back() {
    let node = Node { journalled: true, ..Node::default() };
    let waits = chain("do:\n  - a: { wait: { hours: 2 } }\n  - b: { set: { done: true } }\n");
    assert_eq!(attempt(&node, &waits, &json!({})), Outcome::Suspended(7_200_000));
    node.now_ms.set(7_000_000);
    assert_eq!(attempt(&node, &waits, &json!({})), Outcome::Suspended(7_200_000));
    node.now_ms.set(7_200_000);
    let done = Outcome::Done(from_json(&json!({"done": true})));
    assert_eq!(attempt(&node, &waits, &json!({})), done);
}

#[test]
fn mistakes_are_named_with_their_line() {
    let head = "document: { dsl: '1.0.3', namespace: test, name: chain, version: '1.0.0' }\n";
    for (tasks, expected) in [
        ("", "line 1: the file needs \"do\""),
        ("do: 3", "line 2: tasks must be a list"),
        ("do: []", "line 2: the list has no task"),
        ("do:\n  - a:\n      calls: f", "line 4: task \"a\" does nothing"),
        ("do:\n  - a:\n      call: f\n      given: {}", "line 5: task \"a\" has no \"given\""),
        ("do:\n  - a:\n    call: f", "line 3: an item of a list of tasks is one task"),
        (
            "do:\n  - a: { call: f }\n  - a: { call: g }",
            "line 4: a second task of this list is \"a\"",
        ),
        (
            "do:\n  - a: { call: f, then: b }",
            "line 3: there is no task \"b\" in this list; it has a",
        ),
        ("do:\n  - a: { set: '${ .a + }' }", "line 3: the expression \" .a + \": expected term"),
        (
            "do:\n  - a: { set: '${ $b }' }",
            "line 3: the expression \" $b \": there is no variable $b",
        ),
        ("do:\n  - a: { set: { b: 'x ${ .y }' } }", "line 3: an expression is a whole text"),
        ("do:\n  - a: { wait: 5s }", "line 3: \"5s\" is not a duration such as PT5S"),
        ("do:\n  - a: { wait: { weeks: 1 } }", "line 3: a duration has days, hours"),
        (
            "do:\n  - a: { call: http, with: { method: get, endpoint: 'http://x.y/' } }",
            "line 3: a chain reaches only functions of its node",
        ),
        (
            "do:\n  - a: { call: http, with: { method: get, endpoint: { uri: 'http://mote.internal/f', authentication: { use: b } } } }",
            "line 3: endpoint has no \"authentication\"; it has uri",
        ),
        ("do:\n  - a: { emit: {} }", "line 3: a chain cannot emit; publish a message instead"),
        (
            "do:\n  - a: { run: { shell: { command: ls } } }",
            "line 3: a chain can only run a workflow",
        ),
        (
            "do:\n  - a: { fork: { branches: [ { b: { call: f, then: end } } ] } }",
            "line 3: a branch cannot end the run",
        ),
        (
            "do:\n  - a: { try: [ { b: { call: f } } ], catch: { retry: often } }",
            "line 3: use.retries has no \"often\"",
        ),
        ("do:\n  - a: { raise: { error: { status: 1 } } }", "line 3: raise.error needs \"type\""),
        (
            "use: { secrets: [a] }\ndo:\n  - a: { call: f }",
            "line 2: a node has no use.secrets for chains",
        ),
        ("do:\n  - a: { call: f\n", "this is not YAML"),
        (
            "do:\n  - a: { for: { in: '[1]' }, metadata: { parallelism: 2 }, do: [ { b: { call: f } } ] }",
            "line 3: metadata.parallelism: did you mean parallel?",
        ),
        (
            "do:\n  - a: { try: [ { b: { call: f } } ], catch: { errors: { with: { status: '503' } } } }",
            "line 3: a status is a number without quotes, not \"503\"",
        ),
        (
            "do:\n  - a: { cal: f }\n  - b: { call: f }\n  - c: { call: f, wit: 1 }",
            "wait; line 5: task \"c\" has no \"wit\"",
        ),
    ] {
        let error = reader::read(&format!("{head}{tasks}")).unwrap_err().to_string();
        assert!(error.contains(expected), "{tasks}\n{error}");
    }
    let old = head.replace("1.0.3", "0.8");
    let error = reader::read(&format!("{old}do: []")).unwrap_err();
    assert_eq!(error.0[0].text, "dsl is \"0.8\"; this node runs versions 1.0.x of the language");
}
