//! `mote record` and `mote replay`: real calls of a function are kept in a file and sent again.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};

use mote_tests::namespaces::{HELLO, deploy_ok, start, token};
use mote_tests::{Node, PATIENCE, call_at, mote_binary, signal, wait_for};

const SHOP: &str = "def handle(event, ctx):
    if event.path == '/broken':
        raise KeyError('till')
    return {'path': event.path, 'args': dict(event.args), 'bytes': len(event.body)}
";

/// `mote record` that has begun.
struct Recording {
    child: Child,
    said: BufReader<std::process::ChildStderr>,
}

fn record(node: &Node, args: &[&str]) -> Recording {
    let mut child = Command::new(mote_binary())
        .arg("record")
        .args(args)
        .current_dir(node.dir.path())
        .env("MOTE_SOCKET", node.dir.path().join("s"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut said = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    assert!(line.starts_with("recording up to "), "{line}");
    Recording { child, said }
}

impl Recording {
    /// Waits for its end. Returns its exit code and its output.
    fn ended(mut self) -> (Option<i32>, String) {
        let status = wait_for("the end", || self.child.try_wait().expect("our child"));
        let mut text = String::new();
        self.child.stdout.take().expect("a pipe").read_to_string(&mut text).expect("text");
        self.said.read_to_string(&mut text).expect("text");
        (status.code(), text)
    }
}

fn replay(node: &Node, args: &[&str]) -> (Option<i32>, String) {
    let file = node.dir.path().join("calls.jsonl");
    let output = node.mote(&[&["replay", file.to_str().expect("text")], args].concat());
    let all = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&all).into_owned())
}

#[test]
fn recorded_calls_are_played_against_another_revision() {
    let node = Node::start();
    node.deploy_ok("shop", &[("app.py", SHOP)]);
    let recording = record(&node, &["shop", "calls.jsonl", "--count", "5"]);
    let secrets = [("authorization", "Bearer tell-nobody"), ("cookie", "id=tell-nobody")];
    assert_eq!(node.call("GET", "/shop/list?page=2", &secrets, b"").status, 200);
    assert_eq!(
        node.call("POST", "/shop/buy", &[("content-type", "text/plain")], b"egg").status,
        200
    );
    assert_eq!(node.post("/shop/photo", &[0xff, 0xfe, 0]).status, 200);
    assert_eq!(node.get("/shop/broken").status, 500);
    assert_eq!(node.post("/shop/film", &vec![b'x'; 2 << 20]).status, 200);
    let (code, text) = recording.ended();
    assert_eq!((code, text.as_str()), (Some(0), "calls.jsonl: 5 calls\n"));

    let file = node.dir.path().join("calls.jsonl");
    assert_eq!(file.metadata().expect("a file").permissions().mode() & 0o777, 0o600);
    let recorded = std::fs::read_to_string(&file).expect("a file");
    assert!(!recorded.contains("tell-nobody"), "{recorded}");
    let calls: Vec<serde_json::Value> =
        recorded.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(calls[0]["path"], "/list?page=2");
    assert_eq!(calls[0]["left_out"], serde_json::json!(["authorization", "cookie"]));
    assert_eq!(calls[1]["body"]["text"], "egg");
    assert_eq!(calls[2]["body"]["base64"], "//4A");
    assert_eq!(calls[3]["answer"]["status"], 500);
    assert!(calls[3]["answer"]["fault"].as_str().expect("text").contains("till"));
    assert_eq!(calls[4]["body"]["missing"], "its body is longer than 1 MiB");
    assert!(calls.iter().all(|call| call["answer"]["ms"].as_f64() > Some(0.0)));

    // The same revision.
    let (code, text) = replay(&node, &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("5 calls, 4 the same, 0 different, 1 skipped"), "{text}");
    // Another revision, which has no traffic yet.
    let folder = node.dir.path().join("shop");
    let code = SHOP.replace("'bytes': len(event.body)", "'size': len(event.body)");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("app.py"), code.replace("'till'", "'shelf'")).expect("written");
    node.ok(&["deploy", folder.to_str().expect("text"), "--tag", "next"]);
    let (code, text) = replay(&node, &["shop@next"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("differs 200  POST /buy"), "{text}");
    assert!(text.contains("   - ") && text.contains("\"bytes\"") && text.contains("\"size\""));
    assert!(text.contains("5 calls, 1 the same, 3 different, 1 skipped"), "{text}");
    // The target is a URL, at which the live revision answers.
    let url = format!("http://{}/shop", node.http);
    let (code, text) = replay(&node, &[&url, "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (code, &json["same"], &json["different"]),
        (Some(0), &4.into(), &0.into()),
        "{text}"
    );
    // One file is not a recording, and the other would be replaced.
    std::fs::write(&file, "{}\n").expect("written");
    let (_, text) = replay(&node, &[]);
    assert!(
        text.contains("error[M0102]") && text.contains("line 1: not a recorded call"),
        "{text}"
    );
    let said = node.mote(&["record", "shop", file.to_str().expect("text")]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("error[M0103]"), "{said:?}");
}

/// The function answers with what it sees of its caller.
#[test]
fn a_replay_through_the_node_has_the_caller_the_trigger_and_the_parameters() {
    let node = Node::start();
    let code = "def handle(event, ctx):\n    return [event.caller, event.trigger, event.params]\n";
    let manifest = "version = 1\n[access]\nmode = \"key\"\n[[route]]\npath = \"/rooms/{room}\"\n";
    node.deploy_ok("who", &[("app.py", code), ("mote.toml", manifest)]);
    let key = node.ok(&["key", "create", "till", "--function", "who"]);
    let fields = [("x-api-key", key.trim())];
    let recording = record(&node, &["who", "calls.jsonl", "--count", "2"]);
    let answer = node.call("GET", "/rooms/hall", &fields, b"");
    assert_eq!(answer.text(), r#"["till","http",{"room":"hall"}]"#);
    assert_eq!(node.call("HEAD", "/who", &fields, b"").status, 200);
    assert_eq!(recording.ended().0, Some(0));
    let (code, text) = replay(&node, &[]);
    assert!(text.contains("2 calls, 2 the same"), "{text}");
    assert_eq!(code, Some(0), "{text}");
    // Nobody else can name a caller.
    let forged = [("x-api-key", key.trim()), ("mote-caller", "boss"), ("mote-trigger", "mqtt")];
    assert_eq!(node.call("GET", "/who", &forged, b"").text(), r#"["till","http",{}]"#);
    let (status, said) = node.manage("POST", "/v1/functions/who/invoke", "");
    assert_eq!((status, said.as_str()), (200, r#"[null,"admin",{}]"#));
}

#[test]
fn an_interrupt_or_the_time_ends_a_recording() {
    let node = Node::start();
    node.deploy_ok("shop", &[("app.py", SHOP)]);
    let recording = record(&node, &["shop", "calls.jsonl"]);
    assert_eq!(node.get("/shop/a").status, 200);
    let file = node.dir.path().join("calls.jsonl");
    wait_for("the call", || (file.metadata().ok()?.len() > 0).then_some(()));
    signal(recording.child.id(), "INT");
    assert_eq!(recording.ended(), (Some(0), "calls.jsonl: 1 calls\n".to_owned()));
    let recording = record(&node, &["shop", "none.jsonl", "--for", "10ms"]);
    assert_eq!(recording.ended(), (Some(0), "none.jsonl: 0 calls\n".to_owned()));
}

#[test]
fn a_recording_ends_with_its_command_and_their_number_is_limited() {
    let node = Node::start();
    node.deploy_ok("shop", &[("app.py", SHOP)]);
    node.deploy_ok("other", &[("app.py", SHOP)]);
    let begin = |number: usize| record(&node, &["shop", &format!("{number}.jsonl")]);
    let mut all: Vec<Recording> = (0..4).map(begin).collect();
    let file = node.dir.path().join("more.jsonl");
    let more = || node.mote(&["record", "shop", file.to_str().expect("text"), "--for", "1ms"]);
    let refused = more();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("error[M1411]"), "{refused:?}");
    // Calls of another function are not recorded.
    assert_eq!(node.get("/other/a").status, 200);
    assert_eq!(node.get("/shop/a").status, 200);
    let recorded = |number: usize| {
        std::fs::read_to_string(node.dir.path().join(format!("{number}.jsonl"))).unwrap_or_default()
    };
    for number in 0..4 {
        let text = wait_for("the call", || Some(recorded(number)).filter(|text| !text.is_empty()));
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let mut killed = all.remove(0);
    killed.child.kill().expect("killed");
    killed.child.wait().expect("ended");
    wait_for("its place", || more().status.success().then_some(()));
    for mut recording in all {
        recording.child.kill().expect("killed");
        recording.child.wait().expect("ended");
    }
    assert_eq!(node.get("/shop/a").status, 200);
}

/// Asks for the calls of a function over TCP. Returns the beginning of the answer, and the connection.
fn ask(admin: SocketAddr, token: &str, name: &str) -> (u16, TcpStream) {
    let mut stream = TcpStream::connect(admin).expect("the node listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    write!(
        stream,
        "GET /v1/functions/{name}/recording HTTP/1.1\r\nhost: localhost\r\n\
         authorization: Bearer {token}\r\n\r\n"
    )
    .expect("sent");
    let mut head = [0; 12];
    stream.read_exact(&mut head).expect("a status");
    let status = std::str::from_utf8(&head[9..]).expect("text").parse().expect("a status");
    (status, stream)
}

#[test]
fn only_who_may_deploy_a_function_records_it_and_it_is_in_the_audit() {
    let (node, admin) = start(&[]);
    deploy_ok(&node, "plant", "hello", &[("app.py", HELLO)]);
    let viewer = token(&node, "viewer", "viewer", Some("plant"));
    let deployer = token(&node, "deployer", "deployer", Some("plant"));
    let foreign = token(&node, "foreign", "deployer", Some("orchard"));
    assert_eq!(ask(admin, &viewer, "hello").0, 403);
    assert_eq!(ask(admin, &foreign, "hello.plant").0, 404);
    assert_eq!(ask(admin, "wrong", "hello.plant").0, 401);
    let (status, mut stream) = ask(admin, &deployer, "hello");
    assert_eq!(status, 200);
    let audit = node.ok(&["audit"]);
    let line = audit.lines().find(|line| line.contains("/recording") && line.contains("deployer"));
    assert!(line.is_some_and(|line| line.contains("200")), "{audit}");
    // Once the token is revoked, its holder receives no further calls.
    node.ok(&["token", "revoke", "deployer", "--namespace", "plant", "--yes"]);
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(call_at(admin, "GET", "/livez", &[], b"").status, 200);
}
