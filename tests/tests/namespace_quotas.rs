//! Limits of a namespace on processors, disk, keys, secrets and the record of acts.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use mote_tests::namespaces::{HELLO, deploy, deploy_ok, start};
use mote_tests::{Connection, Node, has_npm, has_pip, wait_for};

fn describe(node: &Node, key: &str) -> u64 {
    let one = node.json(&["namespace", "describe", "plant", "-o", "json"]);
    one[key].as_u64().unwrap_or_else(|| panic!("{key}: {one}"))
}

fn refused(node: &Node, name: &str, files: &[(&str, &str)], parts: &[&str]) {
    let output = deploy(node, "plant", name, files);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
}

/// Returns code that takes as much space on disk as it has bytes.
fn code_of(bytes: usize, what: &str) -> String {
    format!("{HELLO}# {}\n", what.repeat(bytes / what.len()))
}

#[test]
fn instances_share_the_processors_of_their_namespace() {
    let (node, _) = start(&[]);
    node.ok(&["namespace", "update", "plant", "--cpu", "1.2"]);
    // Each call needs a separate instance.
    let slow = "import time\ndef handle(event, ctx):\n    for _ in range(10):\n        time.sleep(0.1)\n    return 'slow'\n";
    let half = "version = 1\n[limits]\ncpu = 0.5\nmemory = \"32MiB\"\n[scale]\nmax = 8\n";
    deploy_ok(&node, "plant", "half", &[("app.py", slow), ("mote.toml", half)]);
    let most = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let call = || assert_eq!(node.get("/half.plant").status, 200);
        let calls: Vec<_> = (0..8).map(|_| scope.spawn(call)).collect();
        while calls.iter().any(|call| !call.is_finished()) {
            most.fetch_max(describe(&node, "cpu_millis"), Ordering::SeqCst);
        }
    });
    assert_eq!(most.load(Ordering::SeqCst), 1_000, "two instances, and no third");
    // An instance without a limit may use all processors of the machine.
    node.ok(&["namespace", "update", "plant", "--cpu", "0.6"]);
    refused(&node, "whole", &[("app.py", HELLO)], &["M0428", "0.6 processors", "[limits] cpu"]);
    // The limit of one namespace does not apply to another.
    deploy_ok(&node, "orchard", "whole", &[("app.py", HELLO)]);
    let listed = node.ok(&["namespace", "list"]);
    assert!(listed.contains("/0.6"), "{listed}");
}

#[test]
fn files_of_a_namespace_have_a_limit() {
    let (node, _) = start(&[]);
    node.ok(&["namespace", "update", "plant", "--disk", "200KiB"]);
    let first = code_of(90_000, "first ");
    let second = code_of(90_000, "second");
    deploy_ok(&node, "plant", "one", &[("app.py", &first)]);
    let used = describe(&node, "disk_bytes");
    assert!((90_000..110_000).contains(&used), "{used}");
    // The same code is already stored, and code of another namespace does not count here.
    deploy_ok(&node, "plant", "two", &[("app.py", &first)]);
    deploy_ok(&node, "orchard", "one", &[("app.py", &second)]);
    assert_eq!(describe(&node, "disk_bytes"), used);
    deploy_ok(&node, "plant", "two", &[("app.py", &second)]);
    let third = code_of(90_000, "third ");
    refused(&node, "two", &[("app.py", &third)], &["M0428", "at most 200 KiB"]);
    assert_eq!(node.get("/two.plant").text(), "hello", "the former revision goes on");
    // The former revisions are removed together with the function.
    node.ok(&["remove", "two", "--yes", "--namespace", "plant"]);
    wait_for("room", || (describe(&node, "disk_bytes") == used).then_some(()));
    deploy_ok(&node, "plant", "two", &[("app.py", &third)]);
    // A function that was never live takes no room.
    node.ok(&["remove", "two", "--yes", "--namespace", "plant"]);
    for attempt in 0..3 {
        let code = format!("raise Exception('no')\n{}", code_of(60_000, &format!("try {attempt}")));
        refused(&node, "bad", &[("app.py", &code)], &["M0411"]);
    }
    assert_eq!(describe(&node, "disk_bytes"), used);
    assert_eq!(node.get("/one.plant").text(), "hello");
}

#[test]
fn an_installation_ends_at_the_limit_of_its_namespace() {
    if !has_pip() {
        return;
    }
    let (node, _) = start(&[]);
    node.ok(&["namespace", "update", "plant", "--disk", "4MiB"]);
    // The wheel is small, but what is installed from it is large.
    let script = "import sys, zipfile
with zipfile.ZipFile(sys.argv[1], 'w', zipfile.ZIP_DEFLATED) as out:
    out.writestr('brought.py', '')
    for n in range(int(sys.argv[2])):
        out.writestr('more%d.py' % n, '#' * 1000000)
    out.writestr('brought-1.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: brought\\nVersion: 1\\n')
    out.writestr('brought-1.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    out.writestr('brought-1.dist-info/RECORD', '')
";
    let list = "--no-index\n--find-links /function/wheels\nbrought==1\n";
    let code = "import brought\ndef handle(event, ctx):\n    return 'installed'\n";
    let attempt = |bytes: &str| {
        let folder = node.dir.path().join("src/plant/f");
        std::fs::create_dir_all(folder.join("wheels")).expect("a folder");
        std::fs::write(folder.join("app.py"), code).expect("a file");
        std::fs::write(folder.join("requirements.txt"), list).expect("a file");
        let wheel = folder.join("wheels/brought-1-py3-none-any.whl");
        let made = Command::new("python3").args(["-c", script]).arg(wheel).arg(bytes).status();
        assert!(made.expect("python3").success());
        let folder = folder.to_str().expect("UTF-8").to_owned();
        let output = node.mote(&["--namespace", "plant", "deploy", &folder, "--name", "f"]);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = attempt("50");
    assert!(said.contains("need too much space"), "{said}");
    assert_eq!(describe(&node, "functions"), 0, "{said}");
    let said = attempt("5");
    assert!(said.contains("need too much space") || said.contains("M0428"), "{said}");
    attempt("1");
    assert_eq!(node.get("/f.plant").text(), "installed");
    assert!(describe(&node, "disk_bytes") > 1_000_000);
}

/// Sends requests with an operator's token of the namespace `plant`, and checks their statuses.
struct Ada {
    connection: Connection,
    bearer: String,
}

impl Ada {
    fn new(node: &Node, admin: SocketAddr) -> Self {
        let make = ["token", "create", "ada", "--role", "operator", "--namespace", "plant"];
        let bearer = format!("Bearer {}", node.ok(&make).trim());
        Self { connection: Connection::open(admin), bearer }
    }

    fn sends(&mut self, method: &str, path: &str, body: &str, status: u16) -> String {
        let fields = [("authorization", self.bearer.as_str())];
        let answer = self.connection.call(method, path, &fields, body.as_bytes());
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
        answer.text()
    }
}

#[test]
fn a_token_of_a_namespace_does_not_push_out_the_record() {
    let (node, admin) = start(&[]);
    let mut ada = Ada::new(&node, admin);
    let began = Instant::now();
    for _ in 0..200 {
        ada.sends("DELETE", "/v1/secrets/nothing", "", 404);
    }
    ada.sends("PUT", "/v1/secrets/something", "value", 201);
    let most = began.elapsed().as_secs() + 2;
    let record = node.json(&["audit", "-n", "1000", "-o", "json"]);
    let entries = record["entries"].as_array().expect("entries");
    let (hers, others): (Vec<_>, Vec<_>) =
        entries.iter().partition(|one| one["who"] == "plant/ada");
    assert_eq!(others.len(), 3, "two namespaces and her token: {record}");
    assert!((1..=most).contains(&(hers.len() as u64 - 1)), "{record}");
    assert_eq!(hers.last().expect("hers")["act"], "PUT /v1/secrets/plant%2Fsomething");
    let data = node.dir.path().join("data");
    let lines = |name: &str| std::fs::read_to_string(data.join(name)).expect("a record");
    assert!(!lines("audit.log").contains("plant/ada"));
    node.ok(&["namespace", "delete", "plant", "--force", "--yes"]);
    assert_eq!(lines("audit-plant.log").lines().count(), hers.len());
}

#[test]
fn a_namespace_has_a_thousand_keys_at_most() {
    let (node, admin) = start(&[]);
    let mut ada = Ada::new(&node, admin);
    let body = |name: &str| format!(r#"{{"name":"{name}","functions":[]}}"#);
    for number in 0..1_000 {
        ada.sends("POST", "/v1/keys", &body(&format!("k{number}")), 201);
    }
    let said = ada.sends("POST", "/v1/keys", &body("more"), 507);
    assert!(said.contains("M0428") && said.contains("plant may have at most 1000 keys"), "{said}");
    for namespace in [&[][..], &["--namespace", "orchard"]] {
        node.ok(&[&["key", "create", "other"], namespace].concat());
    }
    node.ok(&["namespace", "delete", "plant", "--force", "--yes"]);
    let left = node.ok(&["key", "list", "-o", "json"]);
    assert_eq!(left.matches("\"name\"").count(), 2, "{left}");
}

#[test]
fn secrets_of_a_namespace_have_limits() {
    let (node, admin) = start(&[]);
    let mut ada = Ada::new(&node, admin);
    let long = "x".repeat(64 << 10);
    // An encrypted value is a little longer than the value itself.
    for number in 0..63 {
        ada.sends("PUT", &format!("/v1/secrets/long{number}"), &long, 201);
    }
    let said = ada.sends("PUT", "/v1/secrets/more", &long, 507);
    assert!(said.contains("M0428") && said.contains("plant may have at most 4 MiB"), "{said}");
    ada.sends("PUT", "/v1/secrets/long0", &long, 200);
    for number in 63..256 {
        ada.sends("PUT", &format!("/v1/secrets/short{number}"), "x", 201);
    }
    let said = ada.sends("PUT", "/v1/secrets/more", "x", 507);
    assert!(said.contains("plant may have at most 256 secrets"), "{said}");
    ada.sends("PUT", "/v1/secrets/short100", "y", 200);
    for namespace in [&[][..], &["--namespace", "orchard"]] {
        let set = [&["secret", "set", "other"], namespace].concat();
        assert!(node.mote_with_input(&set, b"x").status.success());
    }
    node.ok(&["namespace", "delete", "plant", "--force", "--yes"]);
    let left = node.ok(&["secret", "list", "-o", "json"]);
    assert_eq!(left.matches("\"name\"").count(), 2, "{left}");
    // A new namespace of the same name starts without them.
    node.ok(&["namespace", "create", "plant"]);
    let reads = "version = 1\nsecrets = [\"short100\"]\n";
    refused(&node, "reads", &[("app.py", HELLO), ("mote.toml", reads)], &["M0414"]);
}

#[test]
fn an_installation_for_a_namespace_sees_no_credentials() {
    if !has_npm() {
        return;
    }
    let admin = mote_tests::free_address();
    // A one-time password. A shell passes this variable on, unlike variables with slashes in their
    // names.
    let password = ("npm_config_otp", "word-of-the-node");
    let node = Node::start_with_env(&["--admin", &admin.to_string()], &[password]);
    node.ok(&["namespace", "create", "plant"]);
    let attempt = "const { writeFileSync } = require('fs');
const seen = JSON.stringify(process.env).includes('word-of-the-node');
writeFileSync('/packages/said.txt', seen ? 'seen' : 'hidden');
";
    let package = r#"{"name": "f", "main": "index.mjs", "type": "module",
        "scripts": {"postinstall": "node /function/attempt.cjs"}, "dependencies": {"is-number": "7.0.0"}}"#;
    let code = "import { readFileSync } from 'fs';
export default { async fetch() { return new Response(readFileSync('/packages/said.txt', 'utf8')); } };
";
    let files = [("index.mjs", code), ("package.json", package), ("attempt.cjs", attempt)];
    node.deploy_ok("f", &files);
    deploy_ok(&node, "plant", "f", &files);
    assert_eq!(node.get("/f").text(), "seen", "its operator's functions use the registry");
    assert_eq!(node.get("/f.plant").text(), "hidden");
}
