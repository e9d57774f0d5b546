//! Functions as resources of a Kubernetes cluster: a real API server, a controller, and cells.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mote_tests::cluster::{Cell, Cluster, lacks};
use mote_tests::{Connection, skip, wait_for};

/// Starts a cluster with this many cells. Returns `None` if the machine lacks Kubernetes.
fn cluster(cells: u32) -> Option<Cluster> {
    if let Some(why) = lacks() {
        let is_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!is_ci, "CI must be able to run these tests: {why}");
        skip("a Kubernetes API server", why);
        return None;
    }
    Some(Cluster::start(cells))
}

fn hello(text: &str) -> String {
    format!(
        "apiVersion: mote.dev/v1alpha1
kind: Function
metadata: {{name: hello}}
spec:
  files:
    hello.py: |
      def handle(request):
          return \"{text}\"
"
    )
}

#[test]
fn an_applied_function_answers_on_every_cell() {
    let Some(cluster) = cluster(2) else { return };
    cluster.apply(&hello("one"));
    for cell in &cluster.cells {
        wait_for("the first answer", || {
            let answer = cell.node.get("/hello");
            (answer.status == 200).then(|| assert_eq!(answer.text(), "one"))
        });
    }
    assert_eq!(cluster.wait_for_reason("hello", "Serving"), "@1 100 %");
    cluster.apply(&hello("two"));
    cluster.kubectl(&["wait", "--for=condition=Ready", "--timeout=30s", "function/hello"]);
    for cell in &cluster.cells {
        assert_eq!(cell.node.get("/hello").text(), "two");
    }
    let row = cluster.kubectl(&["get", "functions", "--no-headers"]);
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(words[..6], ["hello", "python", "2", "True", "2/2", "Serving"]);
    let explained = cluster.kubectl(&["explain", "function.spec.limits.memory"]);
    assert!(explained.contains("Memory of an instance"), "{explained}");

    // Applying the same spec again makes no new revision. Changing a setting does.
    cluster.apply(&hello("two"));
    cluster.apply(&format!("{}  limits: {{memory: 96MiB}}\n", hello("two")));
    cluster.kubectl(&["wait", "--for=condition=Ready", "--timeout=30s", "function/hello"]);
    let revisions = cluster.kubectl(&["get", "functionrevisions", "-o", "name"]);
    assert_eq!(revisions.lines().count(), 3, "{revisions}");
    let described = cluster.cells[0].node.json(&["describe", "hello", "-o", "json"]);
    assert_eq!(described["limits"]["memory_bytes"], 96 << 20);
    assert_eq!(described["revision"], 3);

    // Goes back to an earlier revision through the resource.
    cluster.apply(&format!(
        "{}  limits: {{memory: 96MiB}}\n  traffic: [{{revision: 1, percent: 100}}, {{latest: true, tag: next}}]\n",
        hello("two")
    ));
    cluster.kubectl(&["wait", "--for=condition=Ready", "--timeout=30s", "function/hello"]);
    for cell in &cluster.cells {
        assert_eq!(cell.node.get("/hello").text(), "one");
        assert_eq!(cell.node.get("/hello@next").text(), "two");
    }

    cluster.kubectl(&["delete", "function", "hello"]);
    for cell in &cluster.cells {
        wait_for("the removal", || (cell.node.get("/hello").status == 404).then_some(()));
    }
}

#[test]
fn the_command_line_works_as_with_a_node() {
    let Some(cluster) = cluster(2) else { return };
    let code = |text: &str| {
        format!(
            "import os\n\ndef handle(request):\n    print('called')\n    return '{text} ' + os.environ['KEY']\n"
        )
    };
    let manifest = "version = 1\n[env]\nKEY = { secret = \"db\" }\n";
    let deploy = |text: &str, more: &[&str]| {
        let folder = cluster.folder("thermo", &[("app.py", &code(text)), ("mote.toml", manifest)]);
        cluster.mote(&[&["deploy", folder.as_str()], more].concat())
    };
    let refused = deploy("one", &[]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && error.contains("secret db"), "{error}");
    assert_eq!(cluster.kubectl(&["get", "functions", "-o", "name"]), "");

    assert!(cluster.mote_with_input(&["secret", "set", "db"], b"s1").status.success());
    assert!(deploy("one", &[]).status.success());
    let answers =
        || cluster.cells.iter().map(|cell| cell.node.get("/thermo").text()).collect::<Vec<_>>();
    assert_eq!(answers(), ["one s1", "one s1"]);
    assert!(deploy("two", &["--tag", "next"]).status.success());
    assert_eq!(answers(), ["one s1", "one s1"]);
    for cell in &cluster.cells {
        assert_eq!(cell.node.get("/thermo@next").text(), "two s1");
    }
    assert!(deploy("three", &["--no-traffic"]).status.success());
    let last = cluster.ok(&["revisions", "thermo", "-o", "json"]);
    let last: serde_json::Value = serde_json::from_str(&last).unwrap();
    let newest = last["revisions"][0]["revision"].as_u64().unwrap();
    cluster.ok(&["traffic", "thermo", &format!("{newest}=100")]);
    assert_eq!(answers(), ["three s1", "three s1"]);
    cluster.ok(&["rollback", "thermo"]);
    assert_eq!(answers(), ["one s1", "one s1"]);

    // The number of a failed deploy is not reused. Otherwise a cell would take the next code for
    // the failed one.
    assert!(!deploy("an open quote '", &[]).status.success());
    assert!(!deploy("another open quote '", &[]).status.success());
    assert_eq!(answers(), ["one s1", "one s1"]);
    assert!(deploy("one", &[]).status.success());
    let list: serde_json::Value =
        serde_json::from_str(&cluster.ok(&["list", "-o", "json"])).unwrap();
    assert_eq!(list["functions"][0]["name"], "thermo");
    assert_eq!(list["functions"][0]["urls"]["http"], "http://mote.test/thermo");
    let called = cluster.ok(&["logs", "thermo"]).matches("called").count();
    assert_eq!(called, 12, "{}", cluster.ok(&["logs", "thermo"]));
    assert!(cluster.ok(&["invoke", "thermo"]).contains("one s1"));
    cluster.ok(&["scale", "thermo", "4"]);
    wait_for("four instances", || {
        let text = cluster.ok(&["describe", "thermo", "-o", "json"]);
        let described: serde_json::Value = serde_json::from_str(&text).unwrap();
        let ready = described["instances"].as_array()?.iter().filter(|one| one["state"] == "ready");
        (ready.count() == 4).then_some(())
    });
    // A cell that has had no traffic for a moment may still be stopping an instance of an older
    // revision.
    wait_for("two instances in each cell", || {
        let two = |cell: &Cell| {
            let described = cell.node.json(&["describe", "thermo", "-o", "json"]);
            described["instances"].as_array().is_some_and(|instances| instances.len() == 2)
        };
        cluster.cells.iter().all(two).then_some(())
    });
    cluster.ok(&["remove", "thermo", "--yes"]);
    assert!(cluster.cells.iter().all(|cell| cell.node.get("/thermo").status == 404));

    let stranger = std::process::Command::new(mote_tests::mote_binary())
        .args(["list", "--node", &cluster.address()])
        .env("MOTE_TOKEN", "wrong")
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&stranger.stderr).contains("kubectl get secret"));
}

#[test]
fn a_revision_that_does_not_start_receives_no_traffic() {
    let Some(cluster) = cluster(2) else { return };
    cluster.apply(&hello("good"));
    cluster.wait_for_reason("hello", "Serving");
    let bad = hello("x")
        .replace("def handle(request):", "import nothing_like_it\n      def handle(request):");
    cluster.apply(&bad);
    let message = cluster.wait_for_reason("hello", "NotStarted");
    assert!(message.contains("nothing_like_it") && message.contains("cell-"), "{message}");
    assert!(cluster.cells.iter().all(|cell| cell.node.get("/hello").text() == "good"));
    // None of the resource's files is a function.
    cluster.apply(&hello("x").replace("hello.py", "hello.txt"));
    let message = cluster.wait_for_reason("hello", "Invalid");
    assert!(message.contains("runtime"), "{message}");
    assert!(cluster.cells.iter().all(|cell| cell.node.get("/hello").text() == "good"));
    let events = cluster.kubectl(&["get", "events", "-o", "jsonpath={.items[*].reason}"]);
    assert!(events.contains("NotStarted") && events.contains("Invalid"), "{events}");
    cluster.apply(&hello("mended"));
    wait_for("the mended one", || (cluster.ready("hello").1 == "Serving").then_some(()));
    assert!(cluster.cells.iter().all(|cell| cell.node.get("/hello").text() == "mended"));
}

#[test]
fn a_missing_secret_is_named_and_its_arrival_is_enough() {
    let Some(cluster) = cluster(1) else { return };
    cluster.apply(&format!("{}  secrets: [db]\n", hello("one")));
    let message = cluster.wait_for_reason("hello", "NotStarted");
    assert!(message.contains("secret db"), "{message}");
    cluster.kubectl(&["create", "secret", "generic", "mote-secrets", "--from-literal=db=x"]);
    cluster.wait_for_reason("hello", "Serving");
    assert_eq!(cluster.cells[0].node.get("/hello").text(), "one");
}

#[test]
fn cells_come_and_go_and_forget_what_was_removed_while_their_agents_were_away() {
    let Some(mut cluster) = cluster(1) else { return };
    cluster.apply(&hello("one"));
    cluster.apply(&hello("stays").replace("name: hello", "name: other"));
    cluster.wait_for_reason("hello", "Serving");
    cluster.apply(&hello("two"));
    cluster.apply(&format!(
        "{}  traffic: [{{revision: 1, percent: 50}}, {{revision: 2, percent: 50}}]\n",
        hello("two")
    ));
    wait_for("the split", || (cluster.ready("hello").2 == "@1 50 %, @2 50 %").then_some(()));
    cluster.add_cell();
    cluster.wait_until_synced();
    // The cells know each other's addresses.
    for cell in &cluster.cells {
        wait_for("the other cell", || {
            let other = cell.node.management("/v1/cells")["cells"][0].clone();
            (other["state"] == "connected").then_some(())
        });
    }
    // A cell that was restarted is told the addresses again.
    cluster.restart_node(0);
    wait_for("the other cell after a restart", || {
        let other = cluster.cells[0].node.management("/v1/cells")["cells"][0].clone();
        (other["state"] == "connected").then_some(())
    });
    // The cell's resource is written again after somebody removes it.
    let name = cluster.cells[1].name.clone();
    cluster.kubectl(&["delete", "cell", "-n", "mote-system", &name]);
    cluster.wait_until_synced();
    // The new cell has the same revisions with the same numbers, but has started none of them.
    let described = cluster.cells[1].node.json(&["describe", "hello", "-o", "json"]);
    assert_eq!(described["traffic"].as_array().unwrap().len(), 2, "{described}");
    assert_eq!(described["instances"].as_array().unwrap().len(), 0);
    assert_eq!(cluster.cells[1].node.get("/hello").status, 200);

    cluster.kill_agent(0);
    cluster.kubectl(&["delete", "function", "hello"]);
    wait_for("the removal", || (cluster.cells[1].node.get("/hello").status == 404).then_some(()));
    // The data path does not depend on the agent.
    assert_eq!(cluster.cells[0].node.get("/other").text(), "stays");
    assert_eq!(cluster.cells[0].node.get("/hello").status, 200);
    cluster.restart_agent(0);
    wait_for("the removal", || (cluster.cells[0].node.get("/hello").status == 404).then_some(()));
    assert_eq!(cluster.cells[0].node.get("/other").text(), "stays");
}

#[test]
fn schedules_run_on_one_cell_and_bounds_hold_for_the_cluster() {
    let Some(mut cluster) = cluster(2) else { return };
    cluster
        .apply(&format!("{}  trigger: [{{every: 1s}}]\n  scale: {{min: 3, max: 4}}\n", hello("x")));
    cluster.wait_for_reason("hello", "Serving");
    let home = cluster.kubectl(&["get", "function", "hello", "-o", "jsonpath={.status.home}"]);
    let index = cluster.cells.iter().position(|cell| cell.name == home).expect("a live cell");
    let scheduled = |cluster: &Cluster, index: usize| {
        let list = cluster.cells[index].node.json(&["schedules", "-o", "json"]);
        list["schedules"].as_array().expect("a list").len()
    };
    assert_eq!((scheduled(&cluster, index), scheduled(&cluster, 1 - index)), (1, 0));
    let ran = |cluster: &Cluster, index: usize| {
        let described = cluster.cells[index].node.json(&["describe", "hello", "-o", "json"]);
        described["requests"]["total"].as_u64().expect("a number")
    };
    wait_for("runs", || (ran(&cluster, index) > 3).then_some(()));
    assert_eq!(ran(&cluster, 1 - index), 0);
    let instances = |cluster: &Cluster| -> Vec<usize> {
        let of = |node: &mote_tests::Node| {
            let described = node.json(&["describe", "hello", "-o", "json"]);
            described["instances"].as_array().expect("a list").len()
        };
        cluster.cells.iter().map(|cell| of(&cell.node)).collect()
    };
    wait_for("three instances", || {
        let mut instances = instances(&cluster);
        instances.sort_unstable();
        (instances == [1, 2]).then_some(())
    });
    cluster.kubectl(&["scale", "function", "hello", "--replicas=1"]);
    let revision =
        cluster.kubectl(&["get", "function", "hello", "-o", "jsonpath={.status.latest}"]);
    let all = || cluster.kubectl(&["get", "functionrevisions", "-o", "yaml"]);
    assert_eq!(revision, "1", "kubectl scale makes no revision: {}", all());
    wait_for("the bounds", || {
        let path = "jsonpath={.status.shares}";
        let shares = cluster.kubectl(&["get", "function", "hello", "-o", path]);
        let shares: serde_json::Value = serde_json::from_str(&shares).expect("JSON");
        let of = |index: usize| shares[cluster.cells[index].name.as_str()].clone();
        let a = of(0);
        let b = of(1);
        let min = a["min"].as_u64()? + b["min"].as_u64()?;
        (min == 1 && a["max"] == 2 && b["max"] == 2).then_some(())
    });
    // The maximum is less than the number of cells, so one cell has no instance and forwards.
    cluster.kubectl(&[
        "patch",
        "function",
        "hello",
        "--type=merge",
        "-p",
        r#"{"spec": {"scale": {"min": 0, "max": 1}}}"#,
    ]);
    wait_for("the parts of the maximum", || {
        let most = |index: usize| {
            let node = &cluster.cells[index].node;
            node.json(&["describe", "hello", "-o", "json"])["bounds"]["max"].as_u64()
        };
        let mut most = [most(0), most(1)];
        most.sort_unstable();
        (most == [Some(0), Some(1)]).then_some(())
    });
    for _ in 0..20 {
        for cell in &cluster.cells {
            assert_eq!(cell.node.get("/hello").text(), "x");
        }
        assert!(instances(&cluster).iter().sum::<usize>() <= 2, "{:?}", instances(&cluster));
    }
    wait_for("one instance", || (instances(&cluster).iter().sum::<usize>() == 1).then_some(()));
    // The schedules move when their cell is removed.
    let gone = cluster.cells.remove(index);
    let name = gone.name.clone();
    drop(gone);
    wait_for("the loss in the log", || {
        let missing = format!("the cell {name} does not answer: its lines are missing");
        cluster.ok(&["logs", "hello"]).contains(&missing).then_some(())
    });
    cluster.kubectl(&["delete", "cell", "-n", "mote-system", &name]);
    wait_for("the schedule to move", || (scheduled(&cluster, 0) == 1).then_some(()));
}

/// Calls a function on every cell until `stop`, over persistent connections. Each answer is a
/// revision number, which must be at least `newest`.
fn callers<'s>(
    scope: &'s std::thread::Scope<'s, '_>,
    cluster: &Cluster,
    stop: &'s AtomicBool,
    newest: &'s AtomicU64,
    count: &'s AtomicU64,
) {
    for cell in &cluster.cells {
        for _ in 0..2 {
            let address = cell.node.http;
            scope.spawn(move || {
                let mut connection = Connection::open(address);
                while !stop.load(Ordering::Relaxed) {
                    let least = newest.load(Ordering::Acquire);
                    let answer = connection.call("GET", "/hello", &[], b"");
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    let number: u64 = answer.text().parse().expect("a number");
                    assert!(number >= least, "revision {number} answered after {least} was live");
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    }
}

#[test]
fn nothing_is_lost_and_nothing_older_answers_while_everything_else_changes() {
    let Some(mut cluster) = cluster(2) else { return };
    let deploy = |cluster: &Cluster, number: u64| {
        let code = format!("def handle(request):\n    return \"{number}\"\n");
        let folder = cluster.folder("hello", &[("app.py", &code)]);
        cluster.mote(&["deploy", &folder])
    };
    assert!(deploy(&cluster, 1).status.success());
    let stop = AtomicBool::new(false);
    let newest = AtomicU64::new(1);
    let count = AtomicU64::new(0);
    let rounds = if mote_tests::is_long() { 20 } else { 3 };
    let mut took = Vec::new();
    std::thread::scope(|scope| {
        // A failed assertion must not leave the callers running.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(&stop);
        callers(scope, &cluster, &stop, &newest, &count);
        for round in 0..rounds {
            cluster.add_controller();
            // Every second controller is killed, so it has no time to give the lease back.
            let killed = Instant::now();
            cluster.end_controller(round % 2 == 0);
            cluster.restart_agent_after_kill(usize::try_from(round % 2).expect("0 or 1"));
            wait_for("a new leader", || {
                (cluster.leader() == cluster.controllers()[0]).then_some(())
            });
            wait_for("the deploy", || deploy(&cluster, round + 2).status.success().then_some(()));
            newest.store(round + 2, Ordering::Release);
            took.push(killed.elapsed());
        }
        cluster.freeze_api_server(true);
        let before = count.load(Ordering::Relaxed);
        let frozen = Instant::now();
        let pause = Duration::from_secs(if mote_tests::is_long() { 60 } else { 5 });
        wait_for("calls without an API server", || (frozen.elapsed() > pause).then_some(()));
        assert!(count.load(Ordering::Relaxed) > before + 100);
        cluster.freeze_api_server(false);
        wait_for("the deploy", || deploy(&cluster, rounds + 2).status.success().then_some(()));
        newest.store(rounds + 2, Ordering::Release);
        let after = count.load(Ordering::Relaxed);
        wait_for("calls of the last revision", || {
            (count.load(Ordering::Relaxed) > after + 1_000).then_some(())
        });
    });
    println!(
        "{} calls, none lost; a change of the controller with a deploy took {took:?}",
        count.load(Ordering::Relaxed)
    );
}

/// Returns the series of the metrics by their names with labels.
fn series(address: &str, path: &str, key: &str) -> std::collections::BTreeMap<String, f64> {
    let address = address.trim_start_matches("http://").parse().expect("an address");
    let mut connection = Connection::open(address);
    let shown = format!("Bearer {key}");
    let answer = connection.call("GET", path, &[("authorization", &shown)], b"");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.text();
    assert!(text.ends_with("# EOF\n"), "{text}");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let split = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        (name.to_owned(), value.parse().expect("a number"))
    };
    lines.map(split).collect()
}

#[test]
fn metrics_count_functions_cells_and_requests_and_nothing_polls() {
    let Some(cluster) = cluster(1) else { return };
    cluster.apply(&hello("one"));
    cluster.wait_for_reason("hello", "Serving");
    cluster.apply(&hello("x").replace("name: hello", "name: broken").replace("hello.py", "a.txt"));
    cluster.wait_for_reason("broken", "Invalid");
    let name = &cluster.cells[0].name;
    let path = "jsonpath={.spec.agentPort}";
    let port = cluster.kubectl(&["get", "cell", "-n", "mote-system", name, "-o", path]);
    let agent_address = format!("127.0.0.1:{port}");
    let controller = || series(&cluster.address(), "/metrics", &cluster.token());
    let agent = || series(&agent_address, "/agent/metrics", &cluster.key("mote-keys", "cell"));
    let found = controller();
    assert_eq!(found["mote_cluster_functions{state=\"Serving\"}"], 1.0, "{found:?}");
    assert_eq!(found["mote_cluster_functions{state=\"Invalid\"}"], 1.0, "{found:?}");
    assert_eq!(found["mote_cluster_cells{state=\"live\"}"], 1.0, "{found:?}");
    assert!(found["mote_cluster_reconciles_total"] >= 3.0, "{found:?}");
    let of_agent = agent();
    assert_eq!(of_agent["mote_agent_functions{state=\"placed\"}"], 2.0, "{of_agent:?}");
    let got = "mote_agent_api_requests_total{verb=\"get\",resource=\"functionrevisions\"}";
    assert_eq!(of_agent[got], 1.0, "{of_agent:?}");

    // While nothing changes, the controller only renews its lease, with one request each time. The
    // number of renewals serves as the clock. Watches are opened again after some minutes.
    let renewals = "mote_cluster_api_requests_total{verb=\"update\",resource=\"leases\"}";
    let requests = |series: std::collections::BTreeMap<String, f64>| {
        let is_request = |name: &String| name.contains("api_requests") && !name.contains("watch");
        series.into_iter().filter(|(name, _)| is_request(name)).collect::<Vec<_>>()
    };
    // The first renewal also reads the lease.
    wait_for("renewals", || {
        controller().get(renewals).is_some_and(|count| *count >= 2.0).then_some(())
    });
    let before = controller();
    let before_agent = requests(agent());
    wait_for("more renewals", || (controller()[renewals] >= before[renewals] + 2.0).then_some(()));
    let mut after = controller();
    after.insert(renewals.to_owned(), before[renewals]);
    assert_eq!(requests(after), requests(before));
    assert_eq!(requests(agent()), before_agent);

    let stranger = |address: &str, path: &str| {
        let address = address.trim_start_matches("http://").parse().expect("an address");
        Connection::open(address).call("GET", path, &[("authorization", "Bearer no")], b"").status
    };
    assert_eq!(stranger(&cluster.address(), "/metrics"), 401);
    assert_eq!(stranger(&agent_address, "/agent/metrics"), 401);
}

#[test]
fn the_objects_with_an_hpa_are_accepted() {
    let Some(cluster) = cluster(0) else { return };
    let folder = mote_tests::repository().join("deploy/autoscaling");
    let folder = folder.to_str().expect("UTF-8");
    let args = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "-k", folder];
    let said = cluster.kubectl(&args);
    for line in [
        "deployment.apps/mote-cell serverside-applied (server dry run)",
        "horizontalpodautoscaler.autoscaling/mote-cell serverside-applied (server dry run)",
    ] {
        assert!(said.contains(line), "{line} is not in\n{said}");
    }
    assert!(!said.contains("daemonset"), "{said}");
}

#[test]
fn the_accounts_may_do_nothing_else() {
    let Some(cluster) = cluster(0) else { return };
    cluster.kubectl(&["create", "namespace", "other"]);
    cluster.kubectl(&["create", "secret", "generic", "private", "--from-literal=a=b"]);
    let new = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n";
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: x, namespace: mote-system}\nspec: {containers: [{name: x, image: x}]}\n";
    let both: [&[&str]; 14] = [
        &["get", "secret", "private"],
        &["get", "secrets"],
        &["get", "secrets", "-n", "mote-system"],
        &["get", "secrets", "-n", "kube-system"],
        &["get", "functions", "-n", "other"],
        &["get", "functions", "-A"],
        &["get", "pods", "-n", "default"],
        &["get", "nodes"],
        &["get", "namespaces"],
        &["delete", "crd", "cells.mote.dev"],
        &["delete", "daemonset", "-n", "mote-system", "mote-cell"],
        &["get", "rolebindings", "-n", "mote-system"],
        &["create", "token", "-n", "mote-system", "mote-controller"],
        &["delete", "secret", "-n", "mote-system", "mote-keys"],
    ];
    let agent: [&[&str]; 8] = [
        &["get", "secret", "-n", "mote-system", "mote-api"],
        &["get", "functionrevisions"],
        &["delete", "cell", "x", "-n", "mote-system"],
        &["delete", "function", "x"],
        &["get", "pods", "-n", "mote-system"],
        &["get", "events"],
        &["delete", "lease", "-n", "mote-system", "mote-controller"],
        &["create", "secret", "generic", "mine"],
    ];
    let controller: [&[&str]; 3] = [
        &["delete", "pod", "x", "-n", "mote-system"],
        &["get", "configmaps", "-n", "mote-system"],
        &["delete", "secret", "private"],
    ];
    let mut tried = 0;
    let mut refused = |account: &str, args: &[&str]| {
        let error = cluster.kubectl_as(account, args).expect_err(&format!("{account}: {args:?}"));
        assert!(error.contains("Forbidden") || error.contains("forbidden"), "{args:?}: {error}");
        tried += 1;
    };
    for (account, own) in [("mote-agent", &agent[..]), ("mote-controller", &controller[..])] {
        both.iter().chain(own).for_each(|args| refused(account, args));
        for (name, manifest) in [("configmap.yaml", new), ("pod.yaml", pod)] {
            let path = cluster.write(name, manifest);
            refused(account, &["create", "-f", &path]);
        }
    }
    println!("{tried} requests of the two accounts were refused");
}

#[test]
fn invalid_resources_are_refused_with_the_field() {
    let Some(cluster) = cluster(0) else { return };
    let cases = [
        ("limits: {memory: 64}", "spec.limits.memory"),
        ("limits: {memory: 64MB}", "spec.limits.memory"),
        ("limits: {memry: 64MiB}", "memry"),
        ("limits: {timeout: soon}", "spec.limits.timeout"),
        ("limits: {concurrency: 0}", "spec.limits.concurrency"),
        ("scale: {min: 3, max: 2}", "min is above max"),
        ("scale: {min: -1}", "spec.scale.min"),
        ("scale: {max: 100000}", "spec.scale.max"),
        ("runtime: cobol", "spec.runtime"),
        ("compat: lambda", "spec.compat"),
        ("protocol: h3", "spec.protocol"),
        ("port: 80", "spec.port"),
        ("methods: [get]", "spec.methods[0]"),
        ("traffic: [{revision: 1, percent: 90}]", "100 %"),
        ("traffic: [{percent: 100}]", "name a revision"),
        ("traffic: [{revision: 1, latest: true, percent: 100}]", "name a revision"),
        ("traffic: [{revision: 1, percent: 100, tag: 9x}]", "spec.traffic[0].tag"),
        ("code: {revision: 1}", "to return to files, use kubectl replace -f"),
        ("secrets: db", "spec.secrets"),
        ("unknown: 1", "unknown"),
        ("env: {A: {secret: a, b: c}}", "spec.env.A"),
        ("env: {A: [[[1]]]}", "spec.env.A"),
        ("env: {A: {b: {c: d}}}", "spec.env.A"),
        ("allow: {net: [1]}", "spec.allow.net[0]"),
        ("allow: {a: {a: {a: 1}}}", "spec.allow.a"),
        (
            "trigger: [{mqtt: x, broker: \"mqtt://b\", username: \"a\\r\\nb\"}]",
            "spec.trigger[0].username",
        ),
        ("trigger: [{cron: {a: 1}}]", "spec.trigger[0].cron"),
        ("async: {attempts: 0}", "spec.async.attempts"),
        ("kv: {quota: much}", "spec.kv.quota"),
    ];
    for (setting, words) in cases {
        let error = cluster.try_apply(&format!("{}  {setting}\n", hello("x"))).expect_err(setting);
        assert!(error.contains(words), "{setting}: {error}");
    }
    let error =
        cluster.try_apply(&hello("x").replace("hello.py", "../hello.py")).expect_err("a path");
    assert!(error.contains("spec.files"), "{error}");
    let empty = "apiVersion: mote.dev/v1alpha1\nkind: Function\nmetadata: {name: a}\nspec: {}\n";
    let error = cluster.try_apply(empty).expect_err("no code");
    assert!(error.contains("give the code"), "{error}");
    let error =
        cluster.try_apply(&hello("x").replace("name: hello", "name: a.b")).expect_err("a name");
    assert!(error.contains("DNS label"), "{error}");
    // Checks that need the code are reported as a condition.
    cluster.apply(&hello("x"));
    assert!(cluster.wait_for_reason("hello", "NoCells").contains("no cell is ready"));
    cluster.apply("apiVersion: mote.dev/v1alpha1\nkind: Function\nmetadata: {name: gone}\nspec: {code: {revision: 7}}\n");
    let message = cluster.wait_for_reason("gone", "Invalid");
    assert!(message.contains("gone-00007") && message.contains("mote deploy"), "{message}");
    // Settings next to deployed code would have no effect, so they are refused. Files may replace
    // the deployed code.
    let both = "apiVersion: mote.dev/v1alpha1\nkind: Function\nmetadata: {name: gone}\nspec: {code: {revision: 7}, limits: {memory: 64MiB}}\n";
    let error = cluster.try_apply(both).expect_err("settings beside code");
    assert!(error.contains("beside code, give only traffic"), "{error}");
    let files = hello("x").replace("name: hello", "name: gone");
    cluster.replace(&files);
    assert!(cluster.wait_for_reason("gone", "NoCells").contains("no cell is ready"));
    let error = cluster.try_apply(
        "apiVersion: mote.dev/v1alpha1\nkind: FunctionRevision\nmetadata: {name: a}\nspec: {function: a, number: 1, digest: x, bytes: 1}\n",
    );
    assert!(error.expect_err("a digest").contains("spec.digest"));
}
