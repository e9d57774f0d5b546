//! tinyFaaS' management API and fronts, tested with common clients: plain HTTP for the requests
//! that its scripts send with curl, and grpcio and aiocoap for the others.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use mote_tests::{Answer, Node, base64, call_at, golang, repository, skip, wait_for};
use serde_json::{Value, json};

const ON: [&str; 8] =
    ["--tinyfaas", ":0", "--tinyfaas-http", ":0", "--tinyfaas-coap", ":0", "--tinyfaas-grpc", ":0"];

/// Makes a zip of the files below a folder, as `zip -r - ./*` does.
fn zipped(folder: &Path) -> Vec<u8> {
    let script = "import os, sys, zipfile\n\
        os.chdir(sys.argv[1])\n\
        with zipfile.ZipFile(sys.stdout.buffer, 'w', zipfile.ZIP_DEFLATED) as out:\n\
        \tfor at, folders, files in os.walk('.'):\n\
        \t\tfor name in folders + files: out.write(os.path.join(at, name))\n";
    let output =
        Command::new("python3").args(["-c", script]).arg(folder).output().expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn fixture(name: &str) -> PathBuf {
    repository().join("tests/fixtures/compat/tinyfaas").join(name)
}

struct Manager(SocketAddr);

impl Manager {
    fn of(node: &Node) -> Self {
        Self(node.platform("tinyfaas"))
    }

    fn get(&self, path: &str) -> Answer {
        call_at(self.0, "GET", path, &[], b"")
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        // curl sends this content type with --data.
        let form = [("content-type", "application/x-www-form-urlencoded")];
        call_at(self.0, "POST", path, &form, body.to_string().as_bytes())
    }

    fn upload(&self, name: &str, env: &str, folder: &str, envs: &[&str]) -> Answer {
        let zip = base64(zipped(&fixture(folder)));
        let wish = json!({"name": name, "env": env, "threads": 1, "zip": zip, "envs": envs});
        self.post("/upload", &wish)
    }
}

fn call(node: &Node, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    call_at(node.platform("tinyfaas http"), method, path, headers, body)
}

#[test]
fn functions_are_uploaded_called_listed_and_wiped() {
    let node = Node::start_with(&ON);
    let manager = Manager::of(&node);
    node.deploy_ok("kept", &[("app.py", "def handle(event, ctx):\n    return 'own'\n")]);
    let answer = manager.upload("hello", "python3", "hello", &[]);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let http = node.platform("tinyfaas http").port();
    assert!(answer.text().contains(&format!("http://:{http}/hello\n")), "{}", answer.text());
    assert_eq!(answer.text().lines().count(), 3, "{}", answer.text());
    for (name, env, folder) in [
        ("Echo", "nodejs", "echo-node"),
        ("upper", "binary", "upper-shell"),
        ("failing", "python3", "error"),
    ] {
        let answer = manager.upload(name, env, folder, &[]);
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
    }
    let answer = manager.upload("unit", "python3", "environment", &["UNIT=F=2"]);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut listed: Vec<String> = manager.get("/list").text().lines().map(str::to_owned).collect();
    listed.sort();
    assert_eq!(listed, ["Echo", "failing", "hello", "unit", "upper"]);

    assert_eq!(call(&node, "POST", "/hello", &[], b"you").text(), "hello you");
    assert_eq!(call(&node, "GET", "/hello?x=1", &[], b"").text(), "hello nobody");
    assert_eq!(call(&node, "POST", "/Echo", &[], "grün".as_bytes()).text(), "grün");
    assert_eq!(call(&node, "DELETE", "/upper", &[], b"abc").text(), "to both\nABC");
    assert_eq!(call(&node, "GET", "/unit", &[], b"").text(), "F=2");
    // Whatever the function and the node do, the answer is 200 and the body. The path contains only
    // the name.
    let answer = call(&node, "POST", "/failing", &[], b"a");
    assert_eq!((answer.status, answer.text().as_str()), (200, "no reading in 'a'"));
    assert_eq!(call(&node, "POST", "/hello/below", &[], b"").status, 404);
    assert_eq!(call(&node, "POST", "/nobody", &[], b"").status, 404);
    assert_eq!(call(&node, "POST", "/kept", &[], b"").text(), "own", "all functions are called");

    let logs = manager.get("/logs?name=hello").text();
    assert!(
        !logs.is_empty() && logs.lines().all(|line| line.starts_with("function=hello handler=")),
        "{logs}"
    );
    assert!(manager.get("/logs").text().contains("function=Echo handler="));
    assert_eq!(manager.get("/logs?name=nobody").status, 500);

    assert_eq!(manager.post("/delete", &json!({"name": "hello"})).status, 200);
    assert_eq!(call(&node, "POST", "/hello", &[], b"").status, 404);
    assert_eq!(manager.post("/delete", &json!({"name": "hello"})).status, 500);
    assert_eq!(manager.post("/delete", &json!({"name": "kept"})).status, 500, "not uploaded here");
    assert_eq!(manager.post("/wipe", &json!({})).status, 200);
    assert_eq!(manager.get("/list").text(), "");
    assert_eq!(call(&node, "POST", "/kept", &[], b"").text(), "own");
}

#[test]
fn a_new_upload_takes_over_without_a_gap_and_a_bad_one_changes_nothing() {
    let node = Node::start_with(&ON);
    let manager = Manager::of(&node);
    assert_eq!(manager.upload("hello", "python3", "hello", &[]).status, 200);
    let front = node.platform("tinyfaas http");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let statuses = std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let mut seen = Vec::new();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                seen.push(call_at(front, "POST", "/hello", &[], b"you").status);
            }
            seen
        });
        assert_eq!(manager.upload("hello", "python3", "headers", &[]).status, 200);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        caller.join().expect("calls")
    });
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    let headers = [("x-sensor", "t1"), ("x-sensor", "t2"), ("content-type", "text/plain")];
    assert_eq!(call(&node, "POST", "/hello", &headers, b"x").text(), "t1 text/plain");
    let broken = json!({"name": "hello", "env": "python3", "zip": base64(b"no zip")});
    assert_eq!(manager.post("/upload", &broken).status, 500);
    assert_eq!(call(&node, "POST", "/hello", &headers, b"x").text(), "t1 text/plain");
    let node = node.crash_and_restart();
    assert_eq!(call(&node, "POST", "/hello", &headers, b"x").text(), "t1 text/plain");
}

#[test]
fn bad_requests_are_refused() {
    let node = Node::start_with(&ON);
    let manager = Manager::of(&node);
    for (method, path) in [
        ("GET", "/upload"),
        ("PUT", "/uploadURL"),
        ("GET", "/delete"),
        ("POST", "/list"),
        ("GET", "/wipe"),
        ("POST", "/logs"),
    ] {
        assert_eq!(call_at(manager.0, method, path, &[], b"").status, 400, "{method} {path}");
    }
    for path in ["/upload", "/uploadURL", "/delete"] {
        assert_eq!(call_at(manager.0, "POST", path, &[], b"{not json").status, 400, "{path}");
    }
    let hello = base64(zipped(&fixture("hello")));
    for (wish, words) in [
        (json!({"name": "a-b", "env": "python3", "zip": hello}), "letters and digits"),
        (json!({"name": "", "env": "python3", "zip": hello}), "letters and digits"),
        (json!({"name": "a", "env": "go", "zip": hello}), ".go"),
        (json!({"name": "a", "env": "cobol", "zip": hello}), "cobol"),
        (json!({"name": "a", "env": "python3", "zip": "%%%"}), "base64"),
        (json!({"name": "a", "env": "python3", "zip": hello, "envs": ["X"]}), "K=V"),
        (json!({"name": "a", "env": "nodejs", "zip": hello}), ""),
    ] {
        let answer = manager.post("/upload", &wish);
        assert_eq!(answer.status, 500, "{wish}");
        assert!(answer.text().contains(words), "{words}: {}", answer.text());
    }
    // A page of another site would make a browser send these fields.
    for field in [
        ("origin", "http://evil.example"),
        ("host", "evil.example"),
        ("sec-fetch-site", "cross-site"),
    ] {
        let answer = call_at(manager.0, "POST", "/wipe", &[field], b"");
        assert!(matches!(answer.status, 400 | 403), "{field:?}: {}", answer.status);
    }
    assert_eq!(manager.get("/list").text(), "");
}

#[test]
fn hostile_archives_are_refused() {
    let node = Node::start_with(&ON);
    let manager = Manager::of(&node);
    let script = "import sys, zipfile\n\
        kind = sys.argv[1]\n\
        with zipfile.ZipFile(sys.stdout.buffer, 'w', zipfile.ZIP_DEFLATED) as out:\n\
        \tif kind == 'bomb':\n\
        \t\twith out.open('zeros', 'w', force_zip64=True) as file:\n\
        \t\t\tfor _ in range(256): file.write(bytes(1 << 20))\n\
        \telif kind == 'link':\n\
        \t\tinfo = zipfile.ZipInfo('etc'); info.external_attr = 0o120777 << 16\n\
        \t\tout.writestr(info, '/etc')\n\
        \telif kind == 'many':\n\
        \t\tfor number in range(20000): out.writestr(str(number), '')\n\
        \telse:\n\
        \t\tout.writestr(kind, 'x')\n\
        \tout.writestr('fn.py', 'def fn(input, headers):\\n    return 1\\n')\n";
    for kind in
        ["bomb", "link", "many", "../escaped.py", "/tmp/mote-escaped.py", "a/../../escaped.py"]
    {
        let output = Command::new("python3").args(["-c", script, kind]).output().expect("python3");
        let wish = json!({"name": "a", "env": "python3", "zip": base64(&output.stdout)});
        let answer = manager.post("/upload", &wish);
        assert_eq!(answer.status, 500, "{kind}: {}", answer.text());
        assert!(answer.text().starts_with("M13"), "{kind}: {}", answer.text());
    }
    assert_eq!(manager.get("/list").text(), "");
    assert!(!Path::new("/tmp/mote-escaped.py").exists());
    let too_long = "x".repeat(65 << 20);
    let wish = format!("{{\"name\": \"a\", \"zip\": \"{too_long}\"}}");
    let host = [("host", "localhost")];
    let mut connection = mote_tests::Connection::open(manager.0);
    let answer = connection.try_call("POST", "/upload", &host, wish.as_bytes());
    // The connection may break before the whole body is sent.
    assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status == 413));
    assert_eq!(manager.get("/list").status, 200, "it serves on");
}

#[test]
fn scripts_lie_beside_each_other() {
    let node = Node::start_with(&ON);
    let manager = Manager::of(&node);
    let folder = node.dir.path().join("scripts");
    std::fs::create_dir_all(&folder).expect("folder");
    // The syntax is known only to bash, and the files are not executable.
    let main = "#!/usr/bin/env bash\nnames=(one two)\n. ./other.sh\nsay \"${names[1]}\"\n";
    std::fs::write(folder.join("fn.sh"), main).expect("written");
    std::fs::write(folder.join("other.sh"), "say() { echo \"said $1\"; }\n").expect("written");
    let wish =
        json!({"name": "two", "env": "binary", "threads": 1, "zip": base64(zipped(&folder))});
    let answer = manager.post("/upload", &wish);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(call(&node, "POST", "/two", &[], b"").text(), "said two\n");
}

#[test]
fn functions_in_go_are_built() {
    let node = Node::start_with(&ON);
    if !golang::prepare(&node) {
        return skip("functions_in_go_are_built", "Go is not installed");
    }
    let answer = Manager::of(&node).upload("upper", "go", "go", &["UNIT=F"]);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let headers = [("x-sensor", "t1")];
    assert_eq!(call(&node, "POST", "/upper", &headers, b"abc").text(), "ABC t1 F");
}

#[test]
fn archives_are_fetched_by_address() {
    // The server of the archive listens on loopback.
    let node = Node::start_with_env(&ON, &[("MOTE_OUTGOING", "machine")]);
    let manager = Manager::of(&node);
    // An archive from a code host has everything below one folder.
    let folder = node.dir.path().join("repo");
    std::fs::create_dir_all(folder.join("main/sub")).expect("folder");
    std::fs::copy(fixture("hello").join("fn.py"), folder.join("main/sub/fn.py")).expect("copied");
    let zip = zipped(&folder);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                zip.len()
            );
            let _ = stream.write_all(answer.as_bytes());
            let _ = stream.write_all(&zip);
        }
    });
    let wish = |url: &str, below: &str| json!({"name": "fetched", "env": "python3", "threads": 1, "url": url, "subfolder_path": below});
    let answer =
        manager.post("/uploadURL", &wish(&format!("http://{address}/main.zip"), "main/sub"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(call(&node, "POST", "/fetched", &[], b"you").text(), "hello you");
    for url in ["https://127.0.0.1/x.zip", "file:///etc/passwd", "http://127.0.0.1:1/x.zip"] {
        assert_eq!(manager.post("/uploadURL", &wish(url, "")).status, 500, "{url}");
    }
}

#[test]
fn calls_that_nobody_waits_for() {
    let node = Node::start_with(&ON);
    node.deploy_ok("says", &[("run.sh", "#!/bin/sh\necho \"said $(cat)\" >&2\n")]);
    let answer = call(&node, "POST", "/says", &[("x-tinyfaas-async", "yes")], b"later");
    assert_eq!((answer.status, answer.text().as_str()), (202, ""));
    wait_for("the call", || node.ok(&["logs", "says"]).contains("said later").then_some(()));
    let answer = call(&node, "POST", "/nobody", &[("x-tinyfaas-async", "yes")], b"later");
    assert_eq!(answer.status, 404);
}

/// Runs `tests/clients/tinyfaas.py`. If its packages are missing, reports the test as skipped.
fn client(args: &[&str]) -> Option<Value> {
    let python = repository().join(".cache/test-venv/bin/python");
    let imports = "import aiocoap, grpc, google.protobuf";
    let found = Command::new(&python).args(["-c", imports]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        return None;
    }
    let script = repository().join("tests/clients/tinyfaas.py");
    let output = Command::new(&python).arg(script).args(args).output().expect("python");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {error}");
    Some(serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {error}")))
}

#[test]
fn grpcio_calls_functions() {
    let node = Node::start_with(&ON);
    let address = node.platform("tinyfaas grpc").to_string();
    let manager = Manager::of(&node);
    for (name, folder) in [("hello", "hello"), ("headers", "headers"), ("failing", "error")] {
        assert_eq!(manager.upload(name, "python3", folder, &[]).status, 200);
    }
    node.deploy_ok("binary", &[("app.py", "def handle(event, ctx):\n    return b'\\xff\\x00'\n")]);
    let call = |args: &[&str]| client(&[&["grpc", address.as_str()], args].concat());
    let Some(answer) = call(&["hello", "you"]) else {
        return skip(
            "grpcio_calls_functions",
            "grpcio is not in .cache/test-venv: scripts/setup.sh test",
        );
    };
    assert_eq!(answer, json!({"response": "hello you"}));
    let ask = |args: &[&str]| call(args).expect("was there before");
    assert_eq!(ask(&["hello", ""])["response"], "hello nobody");
    let long = "x".repeat(100_000);
    assert_eq!(ask(&["hello", &long])["response"], format!("hello {long}"));
    assert_eq!(ask(&["headers", "x", "x-sensor=t1"])["response"], "t1 application/binary");
    assert_eq!(ask(&["failing", "a"])["response"], "no reading in 'a'");
    let missing = json!({"code": "UNKNOWN", "details": "function nobody not found"});
    assert_eq!(ask(&["nobody", "a"]), missing);
    assert_eq!(ask(&["binary", "a"])["code"], "INTERNAL");
    assert_eq!(ask(&["hello", "x", "x-tinyfaas-async=1"])["response"], "");
}

#[test]
fn aiocoap_calls_functions() {
    let node = Node::start_with(&ON);
    let uri = |path: &str| format!("coap://{}/{path}", node.platform("tinyfaas coap"));
    let manager = Manager::of(&node);
    for (name, folder) in [("hello", "hello"), ("failing", "error")] {
        assert_eq!(manager.upload(name, "python3", folder, &[]).status, 200);
    }
    let Some(answer) = client(&["coap", "POST", &uri("hello"), "you"]) else {
        return skip(
            "aiocoap_calls_functions",
            "aiocoap is not in .cache/test-venv: scripts/setup.sh test",
        );
    };
    assert_eq!(
        (&answer["code"], &answer["payload"]),
        (&json!("2.05"), &json!("hello you")),
        "{answer}"
    );
    assert_eq!((&answer["format"], &answer["type"]), (&json!(0), &json!("ACK")), "{answer}");
    let ask = |args: &[&str]| client(&[&["coap"], args].concat()).expect("was there before");
    assert_eq!(ask(&["GET", &uri("hello"), "you"])["payload"], "hello you", "a GET with a payload");
    assert_eq!(ask(&["GET", &uri("hello")])["payload"], "hello nobody");
    let answer = ask(&["POST", &uri("failing"), "a"]);
    assert_eq!(
        (&answer["code"], &answer["payload"]),
        (&json!("2.05"), &json!("no reading in 'a'"))
    );
    assert_eq!(ask(&["POST", &uri("nobody"), "a"])["code"], "4.04");
    assert_eq!(ask(&["POST", &uri("hello/below"), "a"])["code"], "4.04");
    // The node's own front keeps its own codes.
    let own = ask(&["POST", &format!("coap://{}/hello", node.coap), "you"]);
    assert_eq!((&own["code"], &own["payload"]), (&json!("2.04"), &json!("hello you")), "{own}");
}
