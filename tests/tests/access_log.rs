//! The access log of a node: one line for each HTTP request, whoever sends the request and however
//! it ends.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use mote_tests::{Connection, Node, call_at, free_address, skip, wait_for};
use serde_json::Value;

const TELLS: &str = "def handle(event, ctx):\n    return 'ran' * int(event.text or 1)\n";

fn lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Waits until the log has this many lines.
fn wait_for_lines(path: &Path, count: usize) -> Vec<String> {
    wait_for("the lines of the access log", || {
        let all = lines(path);
        (all.len() >= count).then_some(all)
    })
}

/// Waits until the log has this many lines of JSON.
fn wait_for_objects(path: &Path, count: usize) -> Vec<Value> {
    let parse = |line: String| serde_json::from_str(&line).expect("a line is JSON");
    wait_for_lines(path, count).into_iter().map(parse).collect()
}

struct Logged {
    node: Node,
    folder: tempfile::TempDir,
}

impl Logged {
    fn start(format: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("access.log");
        let own = ["--access-log", path.to_str().expect("UTF-8"), "--access-log-format", format];
        let node = Node::start_with(&[&own[..], flags].concat());
        node.deploy_ok("tells", &[("app.py", TELLS)]);
        Self { node, folder }
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("access.log")
    }
}

#[test]
fn each_request_has_a_line_in_the_combined_format() {
    let logged = Logged::start("combined", &[]);
    let node = &logged.node;
    let mut kept = Connection::open(node.http);
    let fields = [("user-agent", "probe \"1\""), ("referer", "http://plant.example/")];
    kept.call("POST", "/tells/a%20b?c=d", &fields, b"3");
    kept.call("GET", "/nowhere", &[], b"");
    kept.call("HEAD", "/tells/", &[], b"");
    let mut broken = TcpStream::connect(node.http).expect("connects");
    broken.write_all(b"GET / HTTP/1.1\r\nno colon\r\n\r\n").expect("sends");
    broken.read_to_end(&mut Vec::new()).expect("an answer");
    let all = wait_for_lines(&logged.path(), 4);
    assert_eq!(all.len(), 4, "{all:?}");
    for line in &all {
        let (head, rest) = line.split_once(" [").expect("a time");
        assert_eq!(head, "127.0.0.1 - -");
        let (time, _) = rest.split_once("] \"").expect("a request line");
        assert_eq!((time.len(), &time[2..3], &time[20..]), (26, "/", " +0000"), "{line}");
    }
    let ends = |at: usize, end: &str| assert!(all[at].ends_with(end), "{}", all[at]);
    ends(
        0,
        "\"POST /tells/a%20b?c=d HTTP/1.1\" 200 9 \"http://plant.example/\" \"probe \\\"1\\\"\"",
    );
    assert!(all[1].contains("\"GET /nowhere HTTP/1.1\" 404 "), "{}", all[1]);
    ends(2, "\"HEAD /tells/ HTTP/1.1\" 200 - \"-\" \"-\"");
    assert!(all[3].contains("] \"GET / HTTP/1.1\" 400 "), "{}", all[3]);
    let mode = std::fs::metadata(logged.path()).expect("a file").permissions().mode();
    assert_eq!(mode & 0o007, 0, "other users may not read addresses of clients: {mode:o}");
}

#[test]
fn json_names_function_caller_and_invocation() {
    let proxy = ["--trusted-proxies", "127.0.0.1", "--https", "127.0.0.1:0"];
    let logged = Logged::start("json", &proxy);
    let node = &logged.node;
    let keyed = "version = 1\n[access]\nmode = \"key\"\n[[route]]\npath = \"/orders/{id}\"\n";
    node.deploy_ok("keyed", &[("app.py", TELLS), ("mote.toml", keyed)]);
    let key = node.ok(&["key", "create", "pump-3", "-q"]);
    let key = key.trim();
    let from = ("x-forwarded-for", "2001:db8::17");
    let refused = node.call("GET", "/orders/7?a=b", &[from], b"");
    let answer = node.call("GET", "/orders/7", &[from, ("x-api-key", key)], b"");
    assert_eq!((refused.status, answer.status), (401, 200), "{}", answer.text());
    let url = format!("http://{}/tells", node.http);
    let output = Command::new("curl")
        .args(["-s", "--http2-prior-knowledge", "-d", "2", "-A", "over two", &url])
        .output()
        .expect("curl starts");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ranran");
    let all = wait_for_objects(&logged.path(), 3);
    assert_eq!(all.len(), 3, "{all:?}");
    let refused = &all[0];
    let called = &all[1];
    let second = &all[2];
    assert_eq!((&refused["status"], &refused["target"]), (&401.into(), &"/orders/7?a=b".into()));
    assert!(refused.get("caller").is_none() && refused["function"] == "keyed", "{refused}");
    assert_eq!(called["client"], "2001:db8::17");
    assert_eq!(called["caller"], "pump-3");
    assert_eq!(called["function"], "keyed");
    assert_eq!(called["target"], "/orders/7");
    assert_eq!(called["invocation"], answer.header("mote-invocation").expect("an id"));
    assert!(called["duration_ms"].as_f64().expect("a number") > 0.0);
    assert_eq!((&second["protocol"], &second["bytes"]), (&"HTTP/2.0".into(), &6.into()));
    assert_eq!((&second["user_agent"], &second["method"]), (&"over two".into(), &"POST".into()));
    let text = std::fs::read_to_string(logged.path()).expect("a file");
    assert!(!text.contains(key), "the log has a key");
}

#[test]
fn a_client_that_goes_and_a_long_answer_have_their_lines() {
    let logged = Logged::start("json", &[]);
    let node = &logged.node;
    let slow = "import time\ndef handle(event, ctx):\n    print('began', flush=True)\n    time.sleep(30)\n";
    node.deploy_ok("slow", &[("app.py", slow)]);
    let streams = "def handle(event, ctx):\n    for _ in range(4):\n        yield 'x' * 100_000\n";
    node.deploy_ok("streams", &[("app.py", streams)]);
    assert_eq!(node.get("/streams").body.len(), 400_000);
    let mut gone = TcpStream::connect(node.http).expect("connects");
    gone.write_all(b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("sends");
    wait_for("the call", || node.ok(&["logs", "slow"]).contains("began").then_some(()));
    drop(gone);
    let all = wait_for_objects(&logged.path(), 2);
    assert_eq!((&all[0]["status"], &all[0]["bytes"]), (&200.into(), &400_000.into()));
    assert_eq!((&all[1]["status"], &all[1]["function"]), (&499.into(), &"slow".into()));
}

#[test]
fn logrotate_moves_the_file_and_no_line_is_lost() {
    if Command::new("logrotate").arg("--version").output().is_err() {
        skip("logrotate_moves_the_file_and_no_line_is_lost", "logrotate is not installed");
        return;
    }
    let logged = Logged::start("common", &[]);
    let rules = logged.folder.path().join("rules");
    let path = logged.path();
    // logrotate does not rotate in a folder that other users may write to, and it reads only rules
    // that belong to its own user.
    let text = format!("{} {{\n  rotate 9\n  su root root\n}}\n", path.display());
    let text = if mote_tests::is_root() { text } else { text.replace("  su root root\n", "") };
    std::fs::write(&rules, text).expect("a file");
    std::fs::set_permissions(&rules, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    let state = logged.folder.path().join("state");
    let mut kept = Connection::open(logged.node.http);
    for round in 1..=3 {
        for _ in 0..50 {
            kept.call("GET", "/tells", &[], b"");
        }
        wait_for("a file that is written", || (!lines(&path).is_empty()).then_some(()));
        let rotated = Command::new("logrotate")
            .args(["-f", "-s", state.to_str().expect("UTF-8")])
            .arg(&rules)
            .output()
            .expect("logrotate starts");
        assert!(rotated.status.success(), "{}", String::from_utf8_lossy(&rotated.stderr));
        assert!(logged.folder.path().join(format!("access.log.{round}")).exists());
    }
    kept.call("GET", "/tells", &[], b"");
    wait_for("all lines", || {
        let files = std::fs::read_dir(logged.folder.path()).expect("a folder").flatten();
        let logs = files.filter(|file| file.file_name().to_string_lossy().starts_with("access"));
        (logs.map(|file| lines(&file.path()).len()).sum::<usize>() == 151).then_some(())
    });
}

#[test]
fn what_was_answered_before_a_stop_is_in_the_file() {
    let logged = Logged::start("common", &[]);
    for _ in 0..20 {
        logged.node.get("/tells");
    }
    let path = logged.path();
    let Logged { node, folder } = logged;
    assert!(node.stop().success());
    assert_eq!(lines(&path).len(), 20);
    drop(folder);
}

#[test]
fn a_log_that_cannot_be_opened_is_an_error_of_the_start() {
    let output = Command::new(mote_tests::mote_binary())
        .args(["up", "--data"])
        .arg(tempfile::tempdir().expect("a folder").path())
        .args(["--http", &free_address().to_string(), "--coap", "off"])
        .args(["--access-log", "/proc/none/access.log"])
        .output()
        .expect("mote starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("/proc/none/access.log"), "{text}");
    assert!(text.contains("access_log"), "{text}");
    // A wrong path for the log must not destroy the node's own files.
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(mote_tests::mote_binary())
        .args(["up", "--coap", "off", "--http", &free_address().to_string(), "--data"])
        .arg(folder.path())
        .arg("--access-log")
        .arg(folder.path().join("mote.db"))
        .output()
        .expect("mote starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("data folder"), "{text}");
    // The node keeps serving even if the log's disk is full.
    let node = Node::start_with(&["--access-log", "/dev/full"]);
    node.deploy_ok("tells", &[("app.py", TELLS)]);
    for _ in 0..3 {
        assert_eq!(call_at(node.http, "GET", "/tells", &[], b"").text(), "ran");
    }
    wait_for("a warning", || node.log().contains("the access log cannot be written").then_some(()));
}
