//! The durable work of a cluster of cells. Accepted invocations outlive the machine of their cell,
//! and each time of a schedule is accepted exactly once, whichever part is lost. The API server and
//! NATS are real. Controllers, agents and cells are processes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mote_tests::cluster::{Cluster, lacks};
use mote_tests::{Node, is_long, nats, skip, wait_for};
use serde_json::Value;

/// Starts a cluster with this many cells and their NATS. Returns `None` if the machine lacks
/// something.
fn cluster(cells: u32) -> Option<(nats::Server, Cluster)> {
    if let Some(why) = lacks() {
        let is_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!is_ci, "CI must be able to run these tests: {why}");
        skip("a Kubernetes API server", why);
        return None;
    }
    let server = nats::Server::start("")?;
    let url = format!("nats://127.0.0.1:{}", server.port);
    Some((server, Cluster::start_durable(cells, url)))
}

fn function(name: &str, code: &str, settings: &str) -> String {
    let code = code.replace('\n', "\n      ");
    format!(
        "apiVersion: mote.dev/v1alpha1
kind: Function
metadata: {{name: {name}}}
spec:
{settings}  files:
    app.py: |
      {code}
"
    )
}

/// Counts its calls by body in the state that all cells share. Ends when the entry `released`
/// exists.
const HOLDS: &str = "import time
def handle(event, ctx):
    ctx.kv.increment('begun/' + event.text)
    while not ctx.kv.get('released'):
        time.sleep(0.01)
    ctx.kv.increment('ended/' + event.text)
    return 'held ' + event.text";

fn accept(node: &Node, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let headers = [&[("prefer", "respond-async")], headers].concat();
    let answer = node.call("POST", path, &headers, body.as_bytes());
    assert_eq!(answer.status, 202, "{}\n{}", answer.text(), node.log());
    answer.json()["id"].as_str().expect("an id").to_owned()
}

/// Returns an invocation from the management API of the cluster.
fn show(cluster: &Cluster, id: &str) -> Option<Value> {
    let output = cluster.mote(&["invocation", "show", id, "-o", "json"]);
    serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success())
}

fn state(cluster: &Cluster, id: &str) -> String {
    let shown = show(cluster, id).unwrap_or_default();
    shown["state"].as_str().unwrap_or("unknown").to_owned()
}

/// Returns the index of the cell that should run a journal, if that cell is running.
fn holder(cluster: &Cluster, journal: &str) -> Option<usize> {
    cluster.cells.iter().position(|cell| {
        let path = "jsonpath={.status.journals}";
        let list = cluster.kubectl(&["get", "cell", "-n", "mote-system", &cell.name, "-o", path]);
        list.contains(&format!("\"{journal}\""))
    })
}

fn runs(node: &Node, journal: &str) -> bool {
    let list = node.management("/v1/journals");
    let all = list["journals"].as_array().expect("a list");
    all.iter().any(|one| one["name"] == journal && one["state"] != "taken")
}

#[test]
fn what_a_lost_cell_had_accepted_ends_once_on_another_one() {
    let Some((_server, mut cluster)) = cluster(3) else { return };
    cluster.apply(&function("holds", HOLDS, "  limits: {timeout: 60s}\n"));
    let echo = "def handle(event, ctx):\n    return event.text";
    cluster.apply(&function("echo", echo, ""));
    cluster.wait_for_reason("holds", "Serving");
    cluster.wait_for_reason("echo", "Serving");
    let node = &cluster.cells[0].node;
    let done = accept(node, "/echo", &[("idempotency-key", "k")], "done");
    wait_for("it to end", || (state(&cluster, &done) == "succeeded").then_some(()));
    let running: Vec<String> =
        (0..4).map(|number| accept(node, "/holds", &[], &number.to_string())).collect();
    let delayed = accept(node, "/echo", &[("mote-after", "1h")], "delayed");
    wait_for("one to run", || (state(&cluster, &running[0]) == "running").then_some(()));

    let lost_at = Instant::now();
    let name = cluster.lose_cell(0);
    let adopter = wait_for("another cell to run its journal", || {
        holder(&cluster, &name).filter(|index| runs(&cluster.cells[*index].node, &name))
    });
    println!(
        "another cell ran the journal {:.1} s after the loss",
        lost_at.elapsed().as_secs_f64()
    );
    // The other cell knows all of these invocations by their ids, and runs them.
    assert_eq!(state(&cluster, &done), "succeeded");
    assert_eq!(state(&cluster, &delayed), "waiting");
    let node = &cluster.cells[adopter].node;
    node.ok(&["kv", "put", "holds", "released", "yes"]);
    for id in &running {
        wait_for("it to end", || (state(&cluster, id) == "succeeded").then_some(()));
    }
    let counted = |cluster: &Cluster, key: &str| -> u32 {
        let output = cluster.cells[adopter].node.mote(&["kv", "get", "holds", key]);
        String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or(0)
    };
    for number in 0..4 {
        assert_eq!(
            counted(&cluster, &format!("ended/{number}")),
            1,
            "invocation {number} ended once"
        );
    }

    // The cell returns with an empty disk and takes its journal back.
    cluster.start_cell(name.clone());
    cluster.wait_until_synced();
    let back = cluster.cells.len() - 1;
    wait_for("its journal to return", || {
        let is_here = runs(&cluster.cells[back].node, &name);
        let is_there = runs(&cluster.cells[adopter].node, &name);
        (is_here && !is_there && holder(&cluster, &name).is_none()).then_some(())
    });
    for (number, id) in running.iter().enumerate() {
        let shown = show(&cluster, id).expect("it is known");
        assert_eq!(shown["state"], "succeeded");
        assert_eq!(shown["body"], format!("held {number}").as_str());
    }
    let node = &cluster.cells[back].node;
    assert_eq!(accept(node, "/echo", &[("idempotency-key", "k")], "done"), done);
    assert_eq!(state(&cluster, &delayed), "waiting");
    cluster.ok(&["invocation", "cancel", &delayed]);
    let fresh = accept(node, "/echo", &[], "fresh");
    wait_for("new work to end", || (state(&cluster, &fresh) == "succeeded").then_some(()));
    for number in 0..4 {
        assert_eq!(
            counted(&cluster, &format!("ended/{number}")),
            1,
            "invocation {number} ended once"
        );
    }
}

/// When a pod is replaced, its name is gone, but the invocations that it had accepted stay.
#[test]
fn the_journal_of_a_pod_that_is_gone_stays_until_nothing_is_in_it() {
    let Some((_server, mut cluster)) = cluster(2) else { return };
    let fails = "def handle(event, ctx):\n    raise ValueError('no')";
    cluster.apply(&function("fails", fails, "  async: {attempts: 1}\n"));
    cluster.wait_for_reason("fails", "Serving");
    cluster.give_pod(0);
    let node = &cluster.cells[0].node;
    let dead = accept(node, "/fails", &[], "dead");
    wait_for("a dead letter", || (state(&cluster, &dead) == "dead").then_some(()));
    let name = cluster.end_pod(0);
    wait_for("the resource of the cell to go", || {
        let cells = cluster.kubectl(&["get", "cells", "-n", "mote-system", "-o", "name"]);
        (!cells.contains(&name)).then_some(())
    });
    assert_eq!(holder(&cluster, &name), Some(0));
    wait_for("its journal", || (state(&cluster, &dead) == "dead").then_some(()));
    // A new controller that has seen nothing of this continues.
    cluster.add_controller();
    cluster.end_controller(false);
    wait_for("a new leader", || (cluster.leader() == cluster.controllers()[0]).then_some(()));
    wait_for("its answer", || (state(&cluster, &dead) == "dead").then_some(()));
    assert_eq!(holder(&cluster, &name), Some(0));
    cluster.cells[0].node.ok(&["dead-letters", "delete", "-y", &dead]);
    wait_for("the empty journal to be given back", || {
        let is_left = holder(&cluster, &name).is_none() && !runs(&cluster.cells[0].node, &name);
        is_left.then_some(())
    });
}

/// Returns the times of schedules in the journal, by function, in milliseconds since 1970.
fn times(node: &Node, functions: &[String]) -> BTreeMap<String, Vec<u64>> {
    let mut all = BTreeMap::new();
    for function in functions {
        let path = format!("/v1/invocations?function={function}&limit=1000");
        let mut times: Vec<u64> = Vec::new();
        let mut page = node.management(&path);
        loop {
            let list = page["invocations"].as_array().expect("a list").clone();
            for one in &list {
                let key = one["idempotency_key"].as_str().expect("a key");
                assert!(key.starts_with("schedule/"), "{key}");
                let due = key.rsplit('/').next().expect("a time");
                times.push(due.parse().expect("a number"));
            }
            let Some(last) = list.last() else { break };
            let before = last["id"].as_str().expect("an id");
            page = node.management(&format!("{path}&before={before}"));
        }
        times.sort_unstable();
        all.insert(function.clone(), times);
    }
    all
}

/// Several functions run by schedule once a second, while their cell, the controller and NATS are
/// killed. Each time must be in the journal exactly once.
#[test]
fn each_time_of_a_schedule_is_accepted_once_whoever_is_lost() {
    let (functions, goal, kills) = if is_long() { (5, 1_000, 9) } else { (3, 90, 3) };
    let Some((mut server, mut cluster)) = cluster(2) else { return };
    let names: Vec<String> = (0..functions).map(|number| format!("tick-{number}")).collect();
    for name in &names {
        let settings = "  trigger: [{every: 1s, overlap: allow}]\n";
        let code = "def handle(event, ctx):\n    return 'tick'";
        cluster.apply(&function(name, code, settings));
    }
    names.iter().for_each(|name| drop(cluster.wait_for_reason(name, "Serving")));
    let home = |cluster: &Cluster| {
        wait_for("a cell to run the schedules", || {
            holder(cluster, "schedules").filter(|at| runs(&cluster.cells[*at].node, "schedules"))
        })
    };
    let count = |cluster: &Cluster| -> usize {
        let at = home(cluster);
        times(&cluster.cells[at].node, &names).values().map(Vec::len).sum()
    };
    let mut longest = Duration::ZERO;
    for kill in 1..=kills {
        let part = goal * kill / (kills + 1);
        wait_for("more times", || (count(&cluster) >= part).then_some(()));
        let killed = Instant::now();
        match kill % 3 {
            1 => {
                let at = home(&cluster);
                let name = cluster.lose_cell(at);
                // The other cell takes over before the lost cell returns.
                home(&cluster);
                longest = longest.max(killed.elapsed());
                cluster.start_cell(name);
            }
            2 => {
                cluster.add_controller();
                cluster.end_controller(true);
            }
            _ => {
                server.kill();
                server.again();
            }
        }
    }
    wait_for("all times", || (count(&cluster) >= goal).then_some(()));
    let at = home(&cluster);
    let found = times(&cluster.cells[at].node, &names);
    let mut total = 0;
    for (name, times) in &found {
        let first = times[0];
        let last = times[times.len() - 1];
        let expected: Vec<u64> = (first..=last).step_by(1_000).collect();
        assert_eq!(*times, expected, "{name}: each second once, from the first to the last");
        total += times.len();
    }
    println!("{total} times, each once, {kills} kills; schedules moved in {longest:?} at most");
    // The runs of these times have ended, so no run waits for a cell that is gone.
    wait_for("the runs to end", || {
        let list = cluster.cells[home(&cluster)].node.management("/v1/invocations?state=dead");
        assert_eq!(list["invocations"].as_array().map(Vec::len), Some(0), "{list}");
        let waiting = cluster.cells[home(&cluster)].node.management("/v1/journals");
        let all = waiting["journals"].as_array().expect("a list").clone();
        let shared = all.into_iter().find(|one| one["name"] == "schedules");
        shared.and_then(|one| (one["waiting"].as_u64()? < 10).then_some(()))
    });
}

#[test]
fn the_doctor_says_what_a_cluster_without_nats_lacks() {
    if lacks().is_some() {
        skip("a Kubernetes API server", "it is not built");
        return;
    }
    let mut cluster = Cluster::start(1);
    cluster.give_pod(0);
    let doctor = cluster.mote(&["doctor"]);
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let error = String::from_utf8_lossy(&doctor.stderr);
    assert!(text.contains("install --nats"), "{text}{error}{}", cluster.logs());
    // If there is no cell, the answer says so.
    cluster.end_pod(0);
    wait_for("the doctor to miss the cell", || {
        let text = String::from_utf8_lossy(&cluster.mote(&["doctor"]).stdout).into_owned();
        text.contains("none of the").then_some(())
    });
}
