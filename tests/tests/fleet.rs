//! One command for several independent nodes: the order of a change, the state after a failure, and
//! the way back.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use mote_tests::{Node, free_address, mote_binary, programs, signal, wait_for};
use serde_json::Value;

const ONE: &str = "def handle(event, ctx):\n    return 'one'\n";
const TWO: &str = "def handle(event, ctx):\n    return 'two'\n";
/// A function whose start takes longer than the test, on nodes whose secret says so.
const PACED: &str = "import time\n\nif open('/secrets/pace').read() == 'slow':\n    \
    time.sleep(600)\n\ndef handle(event, ctx):\n    return 'paced'\n";

/// Three nodes, the file with their names, and a project.
struct Fleet {
    nodes: Vec<Node>,
    dir: tempfile::TempDir,
}

impl Fleet {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("temp folder");
        let admin = free_address().to_string();
        let nodes = vec![Node::start(), Node::start_with(&["--admin", &admin]), Node::start()];
        let socket = |node: &Node| node.dir.path().join("s").display().to_string();
        std::fs::write(dir.path().join("b.token"), nodes[1].token()).expect("file");
        let private = Command::new("chmod").arg("600").arg(dir.path().join("b.token")).status();
        assert!(private.expect("chmod").success());
        let text = format!(
            "[nodes]\na = \"{}\"\nb = {{ address = \"http://{admin}\", token_file = \"b.token\" }}\n\
             c = \"{}\"\n[groups]\nshop = [\"a\", \"b\", \"c\"]\n",
            socket(&nodes[0]),
            socket(&nodes[2])
        );
        std::fs::write(dir.path().join("nodes.toml"), text).expect("file");
        std::fs::create_dir(dir.path().join("sign")).expect("folder");
        Self { nodes, dir }
    }

    /// Writes the project `sign`, which reads these secrets.
    fn write(&self, code: &str, secrets: &[&str]) {
        let manifest = format!("version = 1\nname = \"sign\"\nsecrets = {secrets:?}\n");
        std::fs::write(self.dir.path().join("sign/mote.toml"), manifest).expect("file");
        std::fs::write(self.dir.path().join("sign/app.py"), code).expect("file");
    }

    fn spawn(&self, args: &[&str]) -> Child {
        let mut command = Command::new(mote_binary());
        command.args(args).current_dir(self.dir.path());
        command.env("MOTE_NODES", self.dir.path().join("nodes.toml"));
        command.env_remove("MOTE_NODE").env_remove("MOTE_TOKEN");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the binary starts")
    }

    fn mote(&self, args: &[&str]) -> Output {
        self.spawn(args).wait_with_output().expect("our child")
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.mote(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns the answer of each node: the text, or the status of an error.
    fn answers(&self) -> Vec<String> {
        let answer = |node: &Node| {
            let answer = node.get("/sign");
            if answer.status == 200 { answer.text() } else { answer.status.to_string() }
        };
        self.nodes.iter().map(answer).collect()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns a summary such as `a live, b failed` from the table of a deploy.
fn states(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let state = |line: &str| {
        let cells: Vec<&str> =
            line.split("  ").map(str::trim).filter(|it| !it.is_empty()).collect();
        format!("{} {}", cells[0], cells[cells.len() - 1])
    };
    text.lines().skip(1).map(state).collect::<Vec<_>>().join(", ")
}

#[test]
fn one_command_changes_all_nodes_and_undoes_it() {
    let fleet = Fleet::start();
    fleet.write(ONE, &[]);
    let output = fleet.mote(&["deploy", "--node", "shop", "sign"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(states(&output), "a live, b live, c live");
    assert_eq!(said(&output).matches("pack ").count(), 1, "{}", said(&output));
    assert_eq!(fleet.answers(), ["one", "one", "one"]);

    fleet.write(TWO, &[]);
    let lines = fleet.ok(&["deploy", "--node", "a,b,c", "--invoke", "-o", "jsonl", "sign"]);
    let rows: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let nodes: Vec<&str> = rows.iter().filter_map(|row| row["node"].as_str()).collect();
    assert_eq!(nodes, ["a", "b", "c"]);
    assert!(rows.iter().all(|row| row["revision"] == 2 && row["state"] == "live"), "{lines}");
    assert_eq!(fleet.answers(), ["two", "two", "two"]);

    // If the first call fails, the rollout stops. The function stays live on that node.
    fleet.write("def handle(event, ctx):\n    raise ValueError('no')\n", &[]);
    let output = fleet.mote(&["deploy", "--node", "shop", "--invoke", "sign"]);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert_eq!(states(&output), "a live, b not begun, c not begun");
    assert!(said(&output).contains("repeat the command with --node a,b,c"), "{}", said(&output));
    fleet.ok(&["rollback", "sign", "--node", "a"]);

    let list = fleet.ok(&["list", "--node", "all", "-o", "json"]);
    let list: Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!(list["functions"][2]["node"], "c");
    assert_eq!(list["functions"][2]["name"], "sign");
    let nodes = fleet.ok(&["nodes"]);
    assert_eq!(nodes.matches(" up ").count(), 3, "{nodes}");

    fleet.ok(&["rollback", "sign", "--node", "shop"]);
    assert_eq!(fleet.answers(), ["one", "one", "one"]);

    std::fs::write(fleet.dir.path().join("value"), "k3y\n").expect("file");
    fleet.ok(&["secret", "set", "key", "value", "--node", "shop"]);
    let secrets = fleet.ok(&["secret", "list", "--node", "shop", "-o", "name"]);
    assert_eq!(secrets, "key\nkey\nkey\n");
    fleet.ok(&["secret", "remove", "key", "--yes", "--node", "shop"]);
    assert_eq!(fleet.ok(&["secret", "list", "--node", "shop", "-o", "name"]), "");

    fleet.nodes[1].ok(&["remove", "sign", "--yes"]);
    fleet.ok(&["remove", "sign", "--yes", "--node", "shop"]);
    assert_eq!(fleet.answers(), ["404", "404", "404"]);
    let again = fleet.mote(&["remove", "sign", "--yes", "--node", "shop"]);
    assert_eq!(again.status.code(), Some(3), "{again:?}");
}

#[test]
fn a_rollout_stops_at_the_node_that_refuses() {
    let fleet = Fleet::start();
    fleet.write(ONE, &[]);
    fleet.ok(&["deploy", "--node", "shop", "sign"]);
    // Only the nodes `a` and `c` have the secret that the next version reads.
    for node in [&fleet.nodes[0], &fleet.nodes[2]] {
        assert!(node.mote_with_input(&["secret", "set", "key"], b"1").status.success());
    }
    fleet.write(TWO, &["key"]);
    let deploy = ["deploy", "--node", "shop", "--parallel", "1", "sign"];
    let output = fleet.mote(&deploy);
    assert_eq!(output.status.code(), Some(8), "{output:?}");
    assert_eq!(states(&output), "a live, b failed, c not begun");
    assert_eq!(fleet.answers(), ["two", "one", "one"]);
    let text = said(&output);
    for part in [
        "error[M0414]: b: sign reads the secret key",
        "to go on: repeat the command with --node b,c",
        "to go back: mote rollback sign --node a",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    fleet.ok(&["rollback", "sign", "--node", "a"]);

    let back = [&deploy[..], &["--on-failure", "rollback"]].concat();
    let output = fleet.mote(&back);
    assert_eq!(output.status.code(), Some(8), "{output:?}");
    assert_eq!(states(&output), "a rolled back, b failed, c not begun");
    assert_eq!(fleet.answers(), ["one", "one", "one"]);
    let text = said(&output);
    assert!(text.contains("as before the deploy again: a\n"), "{text}");
    assert!(text.contains("to go on: repeat the command with --node a,b,c"), "{text}");

    // A new function is removed again, and a split of the traffic is restored.
    for node in &fleet.nodes[1..] {
        node.ok(&["remove", "sign", "--yes"]);
    }
    fleet.nodes[0].ok(&["traffic", "sign", "1=70", "2=30"]);
    let output = fleet.mote(&back);
    assert_eq!(states(&output), "a rolled back, b failed, c not begun");
    let traffic = fleet.nodes[0].json(&["traffic", "sign", "-o", "json"]);
    assert_eq!(traffic[0]["percent"].as_u64().max(traffic[1]["percent"].as_u64()), Some(70));
    fleet.nodes[0].ok(&["remove", "sign", "--yes"]);
    let output = fleet.mote(&back);
    assert_eq!(states(&output), "a removed, b failed, c not begun");
    assert_eq!(fleet.answers(), ["404", "404", "404"]);
}

#[test]
fn a_node_that_is_down_is_found_before_anything_changes() {
    let mut fleet = Fleet::start();
    fleet.write(ONE, &[]);
    drop(fleet.nodes.remove(1));
    let output = fleet.mote(&["deploy", "--node", "shop", "sign"]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let text = said(&output);
    assert!(text.contains("error[M0201]: b: no node answers at http://"), "{text}");
    assert!(text.contains("1 of 3 nodes cannot take part, so nothing was changed: b"), "{text}");
    assert_eq!(fleet.answers(), ["404", "404"]);
    // Reading commands continue with the nodes that answer.
    fleet.ok(&["deploy", "--node", "a,c", "sign"]);
    let list = fleet.mote(&["list", "--node", "shop", "-o", "name"]);
    assert_eq!(list.status.code(), Some(4));
    assert_eq!(String::from_utf8_lossy(&list.stdout), "sign\nsign\n");
    std::fs::write(fleet.dir.path().join("b.token"), "wrong").expect("file");
    std::fs::remove_file(fleet.dir.path().join("nodes.toml")).expect("file");
    let output = fleet.mote(&["list", "--node", "shop"]);
    assert!(said(&output).contains("M0102"), "{}", said(&output));
}

/// Starts a fleet, and a command in which the deploy to `b` is waiting.
fn with_slow_start(on_failure: &str) -> (Fleet, Child) {
    let fleet = Fleet::start();
    for (node, pace) in fleet.nodes.iter().zip(["fast", "slow", "fast"]) {
        let set = node.mote_with_input(&["secret", "set", "pace"], pace.as_bytes());
        assert!(set.status.success(), "{set:?}");
    }
    fleet.write(PACED, &["pace"]);
    let path: &Path = &fleet.dir.path().join("sign/mote.toml");
    let manifest = std::fs::read_to_string(path).expect("file");
    std::fs::write(path, manifest + "[limits]\ninit_timeout = \"5m\"\n").expect("file");
    let args = ["deploy", "--node", "shop", "--parallel", "1", "--on-failure", on_failure, "sign"];
    let child = fleet.spawn(&args);
    wait_for("the start on b", || (!programs(fleet.nodes[1].pid()).is_empty()).then_some(()));
    (fleet, child)
}

#[test]
fn a_node_that_dies_in_mid_deploy_stops_the_rollout() {
    for on_failure in ["stop", "rollback"] {
        let (mut fleet, child) = with_slow_start(on_failure);
        signal(fleet.nodes[1].pid(), "KILL");
        let output = child.wait_with_output().expect("our child");
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        let first = if on_failure == "stop" { "live" } else { "removed" };
        assert_eq!(states(&output), format!("a {first}, b unknown, c not begun"));
        let text = said(&output);
        assert!(text.contains("to see what is live: mote list --node b"), "{text}");
        drop(fleet.nodes.remove(1));
        let answer = if on_failure == "stop" { "paced" } else { "404" };
        assert_eq!(fleet.answers(), [answer, "404"]);
    }
}

#[test]
fn an_interrupted_rollout_tells_where_it_was() {
    let (fleet, child) = with_slow_start("stop");
    signal(child.id(), "INT");
    let output = child.wait_with_output().expect("our child");
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(states(&output), "a live, b unknown, c not begun");
    drop(fleet);
}
