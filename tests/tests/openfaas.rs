//! OpenFaaS' API: the requests of faas-cli one by one, and faas-cli itself if it is installed
//! (`FAAS_CLI`, or on the `PATH`).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::mpsc;
use std::time::Duration;

use mote_tests::namespaces::{deploy_ok, start};
use mote_tests::{Answer, Node, PATIENCE, basic_auth, call_at, repository, skip, wait_for};
use serde_json::{Value, json};

const ON: [&str; 2] = ["--openfaas", ":0"];

/// Permits callbacks to the servers of these tests, which listen on loopback.
const TO_THIS_MACHINE: [(&str, &str); 1] = [("MOTE_OUTGOING", "machine")];

struct Client {
    address: SocketAddr,
    auth: String,
}

impl Client {
    fn of(node: &Node) -> Self {
        let auth = basic_auth("admin", &node.token());
        Self { address: node.platform("openfaas"), auth }
    }

    fn system(&self, method: &str, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let headers = [("authorization", self.auth.as_str()), ("content-type", "application/json")];
        call_at(self.address, method, &format!("/system/{path}"), &headers, body.as_bytes())
    }

    fn call(&self, path: &str, body: &[u8]) -> Answer {
        call_at(self.address, "POST", path, &[("content-type", "text/plain")], body)
    }

    /// Deploys as `faas-cli deploy` does: with an update, or with a creation if the function does
    /// not exist.
    fn deploy(&self, deployment: &Value) -> Answer {
        let answer = self.system("PUT", "functions", deployment);
        match answer.status {
            404 => self.system("POST", "functions", deployment),
            _ => answer,
        }
    }

    fn describe(&self, name: &str) -> Value {
        self.system("GET", &format!("function/{name}"), &Value::Null).json()
    }
}

fn fixture(path: &str) -> String {
    let path = repository().join("tests/fixtures/compat/openfaas").join(path);
    path.to_str().expect("UTF-8").to_owned()
}

fn deploy_http(node: &Node) {
    node.ok(&["deploy", &fixture("http"), "--name", "hello"]);
}

#[test]
fn management_wants_the_token_and_calls_do_not() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    let get =
        |path: &str, headers: &[(&str, &str)]| call_at(client.address, "GET", path, headers, b"");
    assert_eq!(get("/healthz", &[]).status, 200);
    for path in ["functions", "info", "secrets", "namespaces", "logs?name=a", "function/a"] {
        let answer = get(&format!("/system/{path}"), &[]);
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.header("www-authenticate").is_some_and(|value| value.starts_with("Basic")));
        let wrong = basic_auth("admin", "wrong");
        assert_eq!(get(&format!("/system/{path}"), &[("authorization", &wrong)]).status, 401);
    }
    assert_eq!(client.system("GET", "functions", &Value::Null).text(), "[]");
    assert_eq!(client.system("GET", "namespaces", &Value::Null).text(), "[\"openfaas-fn\"]");
    let info = client.system("GET", "info", &Value::Null).json();
    assert_eq!(info["provider"]["provider"], "mote", "{info}");
    assert_eq!(
        client.system("GET", "namespace/openfaas-fn", &Value::Null).json()["name"],
        "openfaas-fn"
    );
    assert_eq!(client.system("POST", "namespace/dev", &json!({"name": "dev"})).status, 501);
    for path in ["functions", "secrets", "info", "function/a", "logs?name=a"] {
        let with = if path.contains('?') { '&' } else { '?' };
        let answer = client.system("GET", &format!("{path}{with}namespace=dev"), &Value::Null);
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        assert!(answer.text().contains("there is no namespace dev"), "{path}");
        let ours =
            client.system("GET", &format!("{path}{with}namespace=openfaas-fn"), &Value::Null);
        assert_ne!(ours.status, 400, "{path}: {}", ours.text());
    }
    let scaled = client.system("POST", "scale-function/a?namespace=dev", &json!({"replicas": 1}));
    assert_eq!(scaled.status, 400, "{}", scaled.text());
    let called = client.call("/function/a.dev", b"");
    assert_eq!(called.status, 404);
    assert!(called.text().contains("no function named a.dev"), "{}", called.text());
    // Repeated wrong guesses are slowed down.
    let slowed =
        (0..64).any(|_| get("/system/info", &[("authorization", "Bearer x")]).status == 429);
    assert!(slowed, "64 wrong tokens in a row were looked at");
}

#[test]
fn a_function_lives_through_the_api() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    let api_key = json!({"name": "api-key", "value": "k"});
    assert_eq!(client.system("POST", "secrets", &api_key).status, 201);
    node.ok(&["deploy", &fixture("stack.yml")]);
    let listed = client.system("GET", "functions", &Value::Null).json();
    let http = listed.as_array().expect("a list").iter().find(|one| one["name"] == "http");
    let http = http.unwrap_or_else(|| panic!("{listed}"));
    assert_eq!(http["image"], "docker.io/test/http:latest");
    assert_eq!(http["namespace"], "openfaas-fn");
    assert_eq!(http.get("envVars"), None, "absent where there are none");

    // The same code with another name and other settings.
    let wish = json!({
        "service": "renamed", "image": "docker.io/test/http:0.2", "namespace": "",
        "envProcess": "python index.py", "envVars": {"UNIT": "F", "exec_timeout": "20s"},
        "labels": {"com.openfaas.scale.max": "3", "team": "a"},
        "annotations": {"note": "b"}, "limits": {"memory": "100Mi"}, "secrets": null,
    });
    let answer = client.deploy(&wish);
    assert_eq!((answer.status, answer.text().as_str()), (202, ""));
    assert_eq!(client.call("/function/renamed", b"you").text(), "hello you");
    let seen = client.describe("renamed");
    assert_eq!(seen["image"], wish["image"]);
    let labels = json!({
        "com.openfaas.scale.max": "3", "team": "a", "faas_function": "renamed",
    });
    assert_eq!((&seen["labels"], &seen["annotations"]), (&labels, &wish["annotations"]));
    assert_eq!((&seen["envProcess"], &seen["envVars"]), (&wish["envProcess"], &wish["envVars"]));
    assert_eq!(seen["availableReplicas"], 1, "{seen}");
    let described = node.json(&["describe", "renamed", "-o", "json"]);
    assert_eq!(described["limits"]["memory_bytes"], 100 << 20, "{described}");
    assert_eq!(described["limits"]["timeout_ms"], 20_000);
    assert_eq!(described["limits"]["instances_max"], 3);

    // An update of the function succeeds, but a second creation is refused.
    let answer = client.deploy(&json!({ "service": "renamed", "image": "mote://http-environment",
        "envVars": {"UNIT": "K"} }));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(client.call("/function/renamed", b"").text(), "K True");
    let answer = client.system("POST", "functions", &wish);
    assert_eq!(answer.status, 400, "{}", answer.text());

    assert_eq!(
        client.system("DELETE", "functions", &json!({"functionName": "renamed"})).status,
        202
    );
    assert_eq!(
        client.system("DELETE", "functions", &json!({"functionName": "renamed"})).status,
        404
    );
    assert_eq!(client.call("/function/renamed", b"").status, 404);
}

#[test]
fn images_that_cannot_be_pulled_are_refused_with_what_helps() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    let wish = json!({"service": "figlet", "image": "127.0.0.1:9/openfaas/figlet:latest"});
    let answer = client.deploy(&wish);
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert!(answer.text().contains("127.0.0.1:9 cannot be reached"), "{}", answer.text());
    // A program that is installed on the machine needs no code.
    let wish =
        json!({"service": "count", "image": "functions/alpine:latest", "envProcess": "wc -c"});
    let answer = client.deploy(&wish);
    assert_eq!(answer.status, 202, "{}", answer.text());
    assert_eq!(client.call("/function/count", b"12345").text().trim(), "5");
    // As with the classic watchdog, the log has lines for each call.
    wait_for("the watchdog's lines", || {
        let log = client.system("GET", "logs?name=count", &Value::Null).text();
        let has = |words: &str| log.contains(words);
        (has("Forking fprocess.") && has("Wrote 2 Bytes - Duration: ")).then_some(())
    });
    for (wish, words) in [
        (json!({"service": "Bad_Name", "image": "mote://count"}), "service"),
        (json!({"service": "x", "image": "mote://count", "namespace": "dev"}), "no namespace dev"),
        (json!({"service": "x", "image": "mote://count", "secrets": ["s"]}), "no secret named s"),
        (json!({"service": "x", "image": "mote://count", "limits": {"memory": "1"}}), "memory"),
        (json!({"image": "mote://count"}), "service"),
    ] {
        let answer = client.deploy(&wish);
        assert_eq!(answer.status, 400, "{wish}: {}", answer.text());
        assert!(answer.text().contains(words), "{wish}: {}", answer.text());
    }
}

#[test]
fn a_copy_says_itself_who_may_call_it() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    let public = "version = 1\ncompat = \"openfaas\"\n[access]\nmode = \"public\"\n";
    let code = "def handle(req):\n    return req\n";
    node.deploy_ok("base", &[("handler.py", code), ("mote.toml", public)]);
    let copy = |method: &str, annotations: Value| {
        let wish = json!({"service": "copy", "image": "base:latest", "annotations": annotations});
        let answer = client.system(method, "functions", &wish);
        assert!(matches!(answer.status, 200 | 202), "{}", answer.text());
        node.json(&["describe", "copy", "-o", "json"])["access"].clone()
    };
    assert_ne!(copy("POST", json!({})), "public", "it does not inherit this");
    assert_eq!(copy("PUT", json!({"mote/access": "key"})), "key");
    assert_eq!(copy("PUT", json!({})), "key", "a deploy that does not say keeps it");
    assert_eq!(copy("PUT", json!({"mote/access": "public"})), "public");
}

#[test]
fn calls_carry_their_id_path_and_answer() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    node.ok(&["deploy", &fixture("http-status"), "--name", "status"]);
    let headers = [("x-call-id", "mine"), ("x-sensor", "t1")];
    let path = "/function/status.openfaas-fn/a/b?code=418";
    let answer = call_at(client.address, "PUT", path, &headers, b"");
    assert_eq!((answer.status, answer.header("x-kind")), (418, Some("test")));
    let seen = answer.json();
    assert_eq!((&seen["method"], &seen["path"]), (&json!("PUT"), &json!("/a/b")), "{seen}");
    assert_eq!(seen["sensor"], "t1");
    assert_eq!(answer.header("x-call-id"), Some("mine"));
    for name in ["x-start-time", "x-duration-seconds", "x-served-by"] {
        assert!(answer.header(name).is_some(), "{name}: {:?}", answer.headers);
    }
    assert_eq!(answer.header("x-openfaas-internal"), None);
    let answer = client.call("/function/nothing", b"");
    assert_eq!((answer.status, answer.header("x-openfaas-internal")), (404, Some("mote")));
    assert_eq!(client.call("/function/status/%2e%2e/x", b"").status, 400);
    for (path, below) in [("", "/"), ("/", "/"), ("/a/", "/a/"), ("?code=200", "/")] {
        let answer = client.call(&format!("/function/status{path}"), b"");
        assert_eq!(answer.json()["path"], below, "{path}: {}", answer.text());
    }
    let id = client.call("/function/status", b"").header("x-call-id").expect("an id").to_owned();
    assert_eq!(id.len(), 36, "{id}");
    let metrics = call_at(client.address, "GET", "/metrics", &[], b"").text();
    let line =
        "gateway_function_invocation_total{function_name=\"status.openfaas-fn\",code=\"418\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn secrets_are_files_of_the_functions_that_name_them() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    let secret = |method: &str, body: Value| client.system(method, "secrets", &body).status;
    assert_eq!(secret("PUT", json!({"name": "api-key", "value": "v"})), 404);
    assert_eq!(secret("POST", json!({"name": "api-key", "value": "first"})), 201);
    assert_eq!(secret("POST", json!({"name": "api-key", "value": "again"})), 409);
    assert_eq!(secret("POST", json!({"name": "../x", "value": "v"})), 400);
    assert_eq!(secret("POST", json!({"name": "long", "value": "v".repeat(65 << 10)})), 400);
    assert_eq!(secret("POST", json!({"name": "long", "value": "v".repeat(2 << 20)})), 413);
    let listed = client.system("GET", "secrets", &Value::Null).text();
    assert!(listed.contains("api-key") && !listed.contains("first"), "{listed}");

    let read = "cat /var/openfaas/secrets/api-key";
    let wish =
        json!({"service": "reads", "image": "alpine", "envProcess": read, "secrets": ["api-key"]});
    assert_eq!(client.deploy(&wish).status, 202);
    assert_eq!(client.call("/function/reads", b"").text(), "first");
    let wish = json!({"service": "others", "image": "alpine", "envProcess": "ls /var/openfaas"});
    assert_eq!(client.deploy(&wish).status, 202);
    assert_eq!(client.call("/function/others", b"").status, 500, "others do not see it");
    assert_eq!(client.describe("reads")["secrets"], json!(["api-key"]));

    // Instances that start afterwards see the new value, even after a crash of the node.
    assert_eq!(secret("PUT", json!({"name": "api-key", "rawValue": "c2Vjb25k"})), 202);
    let node = node.crash_and_restart();
    let client = Client::of(&node);
    assert_eq!(client.call("/function/reads", b"").text(), "second");
    assert_eq!(client.system("DELETE", "secrets", &json!({"name": "api-key"})).status, 202);
    let listed = client.system("GET", "secrets", &Value::Null).text();
    assert_eq!(listed, "[]");
    let modes =
        Command::new("stat").args(["-c", "%a"]).arg(node.dir.path().join("data/mote.db")).output();
    assert_eq!(String::from_utf8_lossy(&modes.expect("stat").stdout).trim(), "600");
}

#[test]
fn scaling_by_hand() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    deploy_http(&node);
    let scale = |replicas: u32| {
        let body = json!({"serviceName": "hello", "replicas": replicas});
        client.system("POST", "scale-function/hello", &body).status
    };
    assert_eq!(scale(2), 202);
    wait_for("two replicas", || (client.describe("hello")["availableReplicas"] == 2).then_some(()));
    // This is more than the number of the machine's cores, which is the default maximum.
    assert_eq!(scale(5), 202);
    assert_eq!(client.describe("hello")["replicas"], 5, "counted at once");
    wait_for("five replicas", || {
        (client.describe("hello")["availableReplicas"] == 5).then_some(())
    });
    assert_eq!(scale(1_000_000), 400);
    assert_eq!(scale(0), 202);
    assert_eq!(client.describe("hello")["replicas"], 0, "counted at once");
    assert_eq!(client.call("/function/hello", b"you").text(), "hello you", "from zero");
    let kept = json!({"service": "kept", "image": "functions/alpine", "envProcess": "cat",
        "labels": {"com.openfaas.scale.min": "2", "com.openfaas.scale.max": "2"}});
    assert_eq!(client.deploy(&kept).status, 202);
    assert_eq!(client.describe("kept")["replicas"], 2, "its minimum, at once");
    let nobody = client.system("POST", "scale-function/nobody", &json!({"replicas": 1}));
    assert_eq!(nobody.status, 404);
}

#[test]
fn logs_are_read_and_followed() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    let script = "#!/bin/sh\necho \"said $(cat)\" >&2\n";
    node.deploy_ok("says", &[("run.sh", script)]);
    client.call("/function/says", b"one");
    let read = |query: &str| client.system("GET", &format!("logs?{query}"), &Value::Null);
    let lines = wait_for("the line", || {
        let answer = read("name=says&follow=false");
        answer.text().contains("said one").then_some(answer)
    });
    assert_eq!(lines.header("content-type"), Some("application/x-ndjson"));
    for line in lines.text().lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!((&line["name"], &line["namespace"]), (&json!("says"), &json!("openfaas-fn")));
        assert!(line["text"].is_string() && line["instance"].is_string(), "{line}");
    }
    assert_eq!(read("name=says&tail=1").text().lines().count(), 1);
    assert_eq!(read("name=says&since=2999-01-01T00:00:00%2B01:00").text(), "");
    assert_eq!(read("name=says&since=yesterday").status, 422);
    assert_eq!(read("").status, 422);
    assert_eq!(read("name=nobody").status, 404);

    let mut stream = std::net::TcpStream::connect(client.address).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let request = format!(
        "GET /system/logs?name=says&follow=true&tail=1 HTTP/1.1\r\nhost: localhost\r\nauthorization: {}\r\n\r\n",
        client.auth
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut followed = BufReader::new(stream);
    let mut line = String::new();
    while !line.contains("\"text\"") {
        line.clear();
        assert!(followed.read_line(&mut line).expect("the first line") > 0);
    }
    client.call("/function/says", b"two");
    while !line.contains("said two") {
        line.clear();
        assert!(followed.read_line(&mut line).expect("the next line") > 0);
    }
    // A client that follows the log does not delay the stop of a node.
    assert!(node.stop().success());
}

#[test]
fn listeners_are_guarded() {
    // If a port is in use, the message names the setting of that port.
    let taken = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = taken.local_addr().expect("bound").to_string();
    let dir = tempfile::tempdir().expect("temp folder");
    let output = Command::new(mote_tests::mote_binary())
        .args(["up", "--http", "off", "--coap", "off", "--openfaas", &address, "--data"])
        .args([dir.path(), "--socket".as_ref(), &dir.path().join("s")])
        .output()
        .expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(75), "{said}");
    assert!(said.contains("M0210") && said.contains("mote up --openfaas :"), "{said}");

    // Callers on other machines need the token, even if the platform requires none.
    let any =
        ["--lan", "--openfaas", "0.0.0.0:0", "--nuclio", "0.0.0.0:0", "--tinyfaas", "0.0.0.0:0"];
    let fronts = ["--tinyfaas-http", "off", "--tinyfaas-coap", "off", "--tinyfaas-grpc", "off"];
    let node = Node::start_with(&[&any[..], &fronts].concat());
    let doctor = node.doctor(&[]);
    assert!(doctor.contains("openfaas") && doctor.contains("requires the token"), "{doctor}");
    let auth = basic_auth("admin", &node.token());
    for (platform, path) in
        [("openfaas", "/metrics"), ("tinyfaas", "/list"), ("nuclio", "/api/functions")]
    {
        let port = node.platform(platform).port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let ask = |headers: &[(&str, &str)]| call_at(address, "GET", path, headers, b"").status;
        assert_eq!(ask(&[]), 401, "{platform}");
        assert_eq!(ask(&[("authorization", &auth)]), 200, "{platform}");
    }
}

/// A server that receives one callback. Returns its head and body.
fn callback_server() -> (SocketAddr, mpsc::Receiver<(String, String)>) {
    callback_server_at("127.0.0.1")
}

fn callback_server_at(host: &str) -> (SocketAddr, mpsc::Receiver<(String, String)>) {
    let listener = TcpListener::bind((host, 0)).expect("loopback");
    let address = listener.local_addr().expect("bound");
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.expect("a connection"));
            let mut head = String::new();
            let mut length = 0;
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).expect("a line") <= 2 {
                    break;
                }
                let line = line.to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a number");
                }
                head.push_str(&line);
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).expect("the body");
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            reader.get_mut().write_all(answer).expect("answered");
            if sender.send((head, String::from_utf8_lossy(&body).into_owned())).is_err() {
                return;
            }
        }
    });
    (address, receiver)
}

#[test]
fn accepted_calls_run_and_call_back() {
    let node = Node::start_with_env(&ON, &TO_THIS_MACHINE);
    let client = Client::of(&node);
    deploy_http(&node);
    node.ok(&["deploy", &fixture("http-error"), "--name", "broken"]);
    let (address, called) = callback_server();
    let callback = format!("http://{address}/done?x=1");
    let later = |name: &str, body: &[u8]| {
        let headers = [("x-callback-url", callback.as_str()), ("x-call-id", "mine")];
        call_at(client.address, "POST", &format!("/async-function/{name}"), &headers, body)
    };
    let answer = later("hello", b"you");
    assert_eq!((answer.status, answer.text().as_str()), (202, ""));
    assert_eq!(answer.header("x-call-id"), Some("mine"));
    let (head, body) = called.recv_timeout(PATIENCE).expect("a callback");
    assert_eq!(body, "hello you");
    assert!(head.starts_with("post /done?x=1 http/1.1"), "{head}");
    for field in [
        "x-call-id: mine",
        "x-function-status: 200",
        "x-function-name: hello.openfaas-fn",
        "x-duration-seconds: ",
    ] {
        assert!(head.contains(field), "{field} in {head}");
    }
    assert_eq!(later("broken", b"").status, 202);
    let (head, _) = called.recv_timeout(PATIENCE).expect("a callback");
    assert!(head.contains("x-function-status: 500"), "{head}");
    assert_eq!(later("nobody", b"").status, 404, "nothing is promised for what is not there");
    for url in ["https://", "nonsense", "file:///etc/passwd"] {
        let headers = [("x-callback-url", url)];
        let answer = call_at(client.address, "POST", "/async-function/hello", &headers, b"");
        assert_eq!(answer.status, 400, "{url}");
    }
}

#[test]
fn a_host_that_does_not_answer_delays_only_its_own_callbacks() {
    let node = Node::start_with_env(&ON, &TO_THIS_MACHINE);
    let client = Client::of(&node);
    deploy_http(&node);
    let later = |callback: SocketAddr| {
        let headers = [("x-callback-url", format!("http://{callback}/"))];
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        let answer = call_at(client.address, "POST", "/async-function/hello", &headers, b"you");
        assert_eq!(answer.status, 202);
    };
    // The kernel accepts its connections, but nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let of_silent = silent.local_addr().expect("bound");
    for _ in 0..60 {
        later(of_silent);
    }
    let held: Vec<_> = (0..4).map(|_| silent.accept().expect("a callback")).collect();
    let (answers, called) = callback_server_at("127.0.0.2");
    for _ in 0..10 {
        later(answers);
        called.recv_timeout(PATIENCE).expect("a callback");
    }
    silent.set_nonblocking(true).expect("a mode");
    assert!(silent.accept().is_err(), "the host has more callbacks than its share");
    drop(held);
}

#[test]
fn what_was_accepted_survives_a_crash() {
    let node = Node::start_with_env(&ON, &TO_THIS_MACHINE);
    let client = Client::of(&node);
    // The first call is still waiting when the node is killed. After that, each call writes a line
    // to the log.
    let wish = json!({"service": "slow", "image": "alpine", "envProcess": "sleep 8"});
    assert_eq!(client.deploy(&wish).status, 202);
    let wish = json!({"service": "slow", "image": "mote://slow", "envProcess": "sleep 8",
        "labels": {"com.openfaas.scale.max": "1"}, "envVars": {"max_inflight": "1"}});
    assert_eq!(client.deploy(&wish).status, 200);
    let (address, called) = callback_server();
    let callback = format!("http://{address}/");
    for number in 0..3 {
        let id = number.to_string();
        let headers = [("x-callback-url", callback.as_str()), ("x-call-id", id.as_str())];
        let answer = call_at(client.address, "POST", "/async-function/slow", &headers, b"");
        assert_eq!(answer.status, 202);
    }
    assert!(called.try_recv().is_err(), "none has ended yet");
    let node = node.crash_and_restart();
    let client = Client::of(&node);
    let wish = json!({"service": "slow", "image": "mote://slow", "envProcess": "true"});
    assert_eq!(client.deploy(&wish).status, 200, "{}", node.log());
    let mut ids: Vec<String> = Vec::new();
    while ids.len() < 3 {
        let (head, _) = called.recv_timeout(PATIENCE).expect("a callback");
        let id = head.lines().find_map(|line| line.strip_prefix("x-call-id: ")).expect("an id");
        ids.push(id.to_owned());
        ids.sort();
        ids.dedup();
    }
    assert_eq!(ids, ["0", "1", "2"]);
    // A call that has ended does not run again.
    wait_for("an empty queue", || {
        let stopped = called.recv_timeout(Duration::from_millis(300)).is_err();
        stopped.then_some(())
    });
    let node = node.crash_and_restart();
    assert!(!node.log().contains("accepted invocations from before"), "{}", node.log());
}

/// The path of faas-cli, if it is installed.
fn faas_cli() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("FAAS_CLI") {
        return Some(path.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join("faas-cli")).find(|file| file.is_file())
}

#[test]
fn faas_cli_itself() {
    let Some(program) = faas_cli() else {
        return skip("faas_cli_itself", "no faas-cli: set FAAS_CLI, or put it on the PATH");
    };
    let node = Node::start_with(&ON);
    let gateway = format!("http://{}", node.platform("openfaas"));
    let run = |args: &[&str], input: &str| -> Output {
        let mut child = Command::new(&program)
            .args(args)
            .env("OPENFAAS_URL", &gateway)
            .env("HOME", node.dir.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("faas-cli starts");
        let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
        child.wait_with_output().expect("our child")
    };
    let ok = |args: &[&str], input: &str| -> String {
        let output = run(args, input);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "faas-cli {args:?}: {text}{error}\n{}", node.log());
        text
    };
    assert!(!run(&["login", "-u", "admin", "-p", "wrong"], "").status.success());
    ok(&["login", "-u", "admin", "--password-stdin"], &node.token());
    deploy_http(&node);
    ok(&["secret", "create", "api-key", "--from-literal", "v"], "");
    assert!(ok(&["secret", "list"], "").contains("api-key"));
    let said = ok(
        &[
            "deploy",
            "--image",
            "mote://hello",
            "--name",
            "again",
            "--secret",
            "api-key",
            "--env",
            "UNIT=C",
            "--label",
            "team=a",
        ],
        "",
    );
    assert!(said.contains("202"), "{said}");
    assert!(ok(&["list"], "").contains("again"));
    assert!(ok(&["describe", "again"], "").contains("Ready"));
    assert_eq!(ok(&["invoke", "again"], "you"), "hello you");
    assert!(ok(&["invoke", "again", "--async"], "you").contains("202"));
    assert!(ok(&["logs", "again", "--follow=false"], "").contains("again"));
    ok(&["scale", "again", "--replicas", "2"], "");
    assert!(ok(&["namespaces"], "").contains("openfaas-fn"));
    ok(&["remove", "again"], "");
    assert!(!ok(&["list"], "").contains("again"));
    ok(&["secret", "remove", "api-key"], "");
}

/// A function's answer that is sent as a callback must not reach services that trust this machine.
/// Otherwise a document could become a function through the node's own Nuclio API.
#[test]
fn callbacks_do_not_reach_this_machine_unless_allowed_and_the_node_never() {
    let receiver = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let on = ["--openfaas", ":0", "--nuclio", ":0"];
    let source = mote_tests::base64(b"def handler(context, event):\n    return 'planted'\n");
    let planted = json!({"metadata": {"name": "planted"}, "spec": {"runtime": "python:3.11",
        "handler": "main:handler", "build": {"functionSourceCode": source}}});
    let planted = planted.to_string();
    for env in [&[][..], &TO_THIS_MACHINE] {
        let node = Node::start_with_env(&on, env);
        node.deploy_ok("echo", &[("run.sh", "#!/bin/sh\ncat\n")]);
        let nuclio = node.platform("nuclio");
        let mut urls = vec![
            format!("http://{nuclio}/api/functions"),
            format!("http://localhost:{}/api/functions", nuclio.port()),
            format!("http://[::ffff:127.0.0.1]:{}/api/functions", nuclio.port()),
            format!("http://{}/echo", node.http),
        ];
        if env.is_empty() {
            urls.push(format!("http://{}/", receiver.local_addr().expect("bound")));
        }
        for (at, url) in urls.iter().enumerate() {
            let headers = [("x-callback-url", url.as_str()), ("content-type", "application/json")];
            let gateway = node.platform("openfaas");
            let answer =
                call_at(gateway, "POST", "/async-function/echo", &headers, planted.as_bytes());
            assert_eq!(answer.status, 202, "{url}");
            let refused = || node.log().matches("cannot send the result of").count() == at + 1;
            wait_for(&format!("{url} is refused"), || refused().then_some(()));
        }
        assert_eq!(node.get("/planted").status, 404);
        let page = [("x-callback-url", "http://192.0.2.1/"), ("origin", "http://evil.example")];
        let answer = call_at(node.platform("openfaas"), "POST", "/async-function/echo", &page, b"");
        assert_eq!(answer.status, 403, "what a page of somebody else makes a browser send");
    }
    receiver.set_nonblocking(true).expect("a socket");
    assert!(receiver.accept().is_err(), "nothing came");
}

#[test]
fn an_answer_with_very_many_fields_is_an_error_and_its_call_ends() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    let code = "def handle(event, ctx):\n    \
        return 'x', 200, {'a': [''] * 20000}\n";
    node.deploy_ok("many", &[("app.py", code)]);
    let answer = call_at(client.address, "POST", "/function/many", &[], b"");
    assert_eq!(answer.status, 502, "{}", answer.text());
    let gone = [("x-callback-url", "http://127.0.0.1:1/")];
    let later = call_at(client.address, "POST", "/async-function/many", &gone, b"");
    assert_eq!(later.status, 202);
    wait_for("the call ends", || node.log().contains("cannot send the result of").then_some(()));
    assert_eq!(call_at(client.address, "POST", "/function/many", &[], b"").status, 502);
    let node = node.stop_and_restart();
    let log = node.log();
    assert!(!log.contains("accepted invocations from before"), "it would run again: {log}");
}

#[test]
fn a_function_calls_another_through_the_gateway() {
    let node = Node::start_with(&ON);
    let chain = "import urllib.request\ndef handle(event, context):\n    \
                 url = 'http://gateway:8080/function/hello'\n    \
                 with urllib.request.urlopen(url, data=b'chain') as answer:\n        \
                 return {'statusCode': 200, 'body': answer.read().decode()}\n";
    deploy_http(&node);
    let said = node.deploy("chain", &[("handler.py", chain)]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("net gateway:8080"), "{said}");
    assert_eq!(node.get("/chain").text(), "hello chain", "{}", node.ok(&["logs", "chain"]));
    // First the variable contains only the name. Then any host is allowed.
    let apart = chain.replace(
        "'http://gateway:8080/function/hello'",
        "f\"http://{os.environ['via']}:8080/function/hello\"",
    );
    let apart = format!("import os\n{apart}");
    let manifest = "version = 1\ncompat = \"openfaas\"\ntemplate = \"python3-http\"\n[env]\nvia = \"gateway.openfaas\"\n";
    let said = node.deploy("apart", &[("handler.py", &apart), ("mote.toml", manifest)]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("net gateway.openfaas:8080"), "{said}");
    assert_eq!(node.get("/apart").text(), "hello chain", "{}", node.ok(&["logs", "apart"]));
    let joined = chain.replace("gateway:8080/function", "' + 'gate' + 'way' + ':8080/function");
    let manifest =
        "version = 1\ncompat = \"openfaas\"\ntemplate = \"python3-http\"\n[allow]\nnet = [\"*\"]\n";
    node.deploy_ok("joined", &[("handler.py", &joined), ("mote.toml", manifest)]);
    assert_eq!(node.get("/joined").text(), "hello chain", "{}", node.ok(&["logs", "joined"]));
    // This way leads to no other part of the node.
    let other = chain.replace("gateway:8080/function/hello", "127.0.0.1:8080/");
    node.deploy_ok("other", &[("handler.py", &other)]);
    assert_eq!(node.get("/other").status, 500);
}

/// A call needs no token. A token that is sent decides the namespace, and no function sees it.
#[test]
fn a_token_that_is_sent_with_a_call_is_not_the_functions() {
    let (node, _) = start(&ON);
    let gateway = Client::of(&node);
    let code = |namespace: &str| {
        format!(
            "def handle(event, ctx):\n    text = '{namespace} ' + str(dict(event.headers)).lower()\n    print(text)\n    return text\n"
        )
    };
    node.deploy_ok("shows", &[("app.py", &code("default"))]);
    for namespace in ["plant", "orchard"] {
        deploy_ok(&node, namespace, "shows", &[("app.py", &code(namespace))]);
    }
    let token = |name: &str, role: &str| {
        let args = ["token", "create", name, "--role", role, "--namespace", "orchard"];
        basic_auth("any", node.ok(&args).trim())
    };
    let call = |auth: &str, path: &str| {
        let fields = [("authorization", auth), ("x-mark", path)];
        call_at(gateway.address, "POST", path, &fields, b"")
    };
    let seen = |auth: &str, path: &str| {
        let answer = call(auth, path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        let text = answer.text();
        (text.split(' ').next().expect("a word").to_owned(), text.contains("authorization"))
    };
    let whole = basic_auth("x", &node.token());
    assert_eq!(seen(&whole, "/function/shows"), ("default".to_owned(), false));
    assert_eq!(seen(&whole, "/function/shows.plant/below"), ("plant".to_owned(), false));
    let own = token("ada", "viewer");
    for name in ["shows", "shows.orchard"] {
        assert_eq!(seen(&own, &format!("/function/{name}")), ("orchard".to_owned(), false));
    }
    for name in ["shows.plant", "shows.openfaas-fn", "shows.nowhere"] {
        for kind in ["function", "async-function"] {
            assert_eq!(call(&own, &format!("/{kind}/{name}")).status, 404, "{kind} {name}");
        }
    }
    // Credentials that are not a token of the node are passed to the function.
    let other = basic_auth("someone", "a password of the function");
    assert_eq!(seen(&other, "/function/shows"), ("default".to_owned(), true));

    for (auth, path, mark, is_seen) in [
        (&whole, "/async-function/shows.plant", "plant", false),
        (&other, "/async-function/shows.plant/theirs", "plant", true),
        (&own, "/async-function/shows", "orchard", false),
    ] {
        assert_eq!(call(auth, path).status, 202, "{path}");
        let logs = format!("/system/logs?name=shows&namespace={mark}");
        let mark = format!("'{path}'");
        let line = wait_for("the call", || {
            let log = call_at(gateway.address, "GET", &logs, &[("authorization", &whole)], b"");
            log.text().lines().find(|line| line.contains(&mark)).map(str::to_owned)
        });
        assert_eq!(line.contains("authorization"), is_seen, "{line}");
    }

    // Owners of a namespace are not told to create namespaces, because they cannot.
    let fields = [("authorization", own.as_str())];
    let path = "/system/functions?namespace=plant";
    let refused = call_at(gateway.address, "GET", path, &fields, b"");
    assert_eq!(refused.text(), "M0423: there is no namespace plant\n");
}
