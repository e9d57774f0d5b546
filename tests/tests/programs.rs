//! The node's services for programs and servers over HTTP, used with curl and with Python's own
//! client.

use std::time::{Duration, Instant};

use mote_tests::mqtt::{self, Broker};
use mote_tests::{Node, repository, skip, wait_for};

/// Runs curl with the arguments in the body, one per line, after the address of the services. The
/// answer is curl's output: the status, the relevant fields, and the body.
const SHELL: &str = r##"#!/bin/sh
set -f
IFS='
'
read -r path
exec curl -sS -w '|%{http_code}|%header{etag}|%header{mote-error}' $(cat) "$MOTE_SERVICES$path"
"##;
const ALLOW: &str = "[allow]\nfunctions = [\"called\", \"shell\", \"server\"]\n";

/// A server that sends what its query describes to the services.
const SERVER: &str = r#"
import http.server, os, urllib.error, urllib.parse, urllib.request

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        wish = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        fields = {}
        if "unnamed" not in wish:
            fields["Mote-Invocation"] = wish.get("name", self.headers.get("Mote-Invocation"))
        url = os.environ["MOTE_SERVICES"] + wish["to"]
        data = wish["data"].encode() if "data" in wish else None
        request = urllib.request.Request(url, data, fields, method=wish.get("method", "GET"))
        try:
            with urllib.request.urlopen(request) as reply:
                status, body = reply.status, reply.read()
        except urllib.error.HTTPError as error:
            status, body = error.code, error.read()
        if wish.get("show"):
            body = repr(self.headers.get_all("Mote-Invocation")).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

const CALLED: &str = r#"
import asyncio

async def handle(event, ctx):
    if event.path == "/teapot":
        return "teapot", 418
    if event.path == "/back":
        return (await ctx.call("shell", event.args["to"])).text
    if event.path == "/wait":
        print("waits", flush=True)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            print("was cancelled", flush=True)
            raise
    fields = event.headers
    seen = [event.method, event.path, event.query, event.trigger, fields.get("x-from", "-"), event.text,
            str("mote-invocation" in fields)]
    return " ".join(seen), 200, {"x-answer": "yes"}
"#;

fn has_curl() -> bool {
    let found = std::process::Command::new("curl").arg("--version").output();
    found.is_ok_and(|output| output.status.success())
}

macro_rules! needs_curl {
    () => {
        if !has_curl() {
            return skip("programs", "curl is not installed");
        }
    };
}

fn deploy_shell(node: &Node, name: &str, rest: &str) {
    let manifest =
        format!("version = 1\nruntime = \"exec\"\ncommand = [\"sh\", \"ask.sh\"]\n{rest}");
    node.deploy_ok(name, &[("ask.sh", SHELL), ("mote.toml", &manifest)]);
}

/// Returns what a program of this function gets for `curl ARGS $MOTE_SERVICES PATH`.
fn curl(node: &Node, name: &str, path: &str, args: &[&str]) -> String {
    let answer =
        node.post(&format!("/{name}"), format!("{path}\n{}\n", args.join("\n")).as_bytes());
    let text = answer.text();
    assert_eq!(answer.status, 200, "{text}: {}", node.ok(&["logs", name]));
    text
}

#[test]
fn a_shell_script_keeps_state() {
    needs_curl!();
    let node = Node::start();
    deploy_shell(&node, "shell", "services = true\n[kv]\nshared = [\"site\"]\nquota = \"1KiB\"\n");
    let ask = |path: &str, args: &[&str]| curl(&node, "shell", path, args);
    assert_eq!(ask("/kv/a", &[]), "there is no such entry\n|404||absent");
    assert_eq!(ask("/kv/a", &["-XPUT", "-dred"]), "1\n|200|\"1\"|");
    assert_eq!(ask("/kv/a", &[]), "red|200|\"1\"|");
    let stale = ["-XPUT", "-dblue", "-HIf-None-Match: *"];
    assert_eq!(ask("/kv/a", &stale), "the entry has version 1\n|412|\"1\"|conflict");
    let next = ["-XPUT", "-dblue", "-HIf-Match: \"1\""];
    assert_eq!(ask("/kv/a", &next), "2\n|200|\"2\"|");
    assert_eq!(ask("/kv/n?increment=5", &["-XPOST"]), "5\n|200|\"3\"|");
    assert_eq!(ask("/kv/n?increment=-7", &["-XPOST"]), "-2\n|200|\"4\"|");
    assert_eq!(ask("/kv/folder%2Fx%20y/z?ttl=60", &["-XPUT", "-d1"]), "5\n|200|\"5\"|");
    let listed = ask("/kv?limit=2", &[]);
    let (json, rest) = listed.split_once('\n').expect("a line of JSON");
    assert_eq!(rest, "|200||");
    let json: serde_json::Value = serde_json::from_str(json).expect("JSON");
    let expected = serde_json::json!({
        "entries": [
            { "key": "a", "version": 2, "value": "blue" },
            { "key": "folder/x y/z", "version": 5, "value": "1" },
        ],
        "after": "folder/x y/z",
    });
    assert_eq!(json, expected);
    let rest = ask("/kv?after=folder/x%20y/z&values=false", &[]);
    assert!(rest.contains("\"after\":null") && rest.contains("\"key\":\"n\""), "{rest}");
    assert_eq!(ask("/kv/a", &["-XDELETE"]), "|204||");
    assert_eq!(ask("/kv/a", &["-XDELETE"]), "there is no such entry\n|404||absent");
    assert_eq!(ask("/kv/theme?shared=site", &["-XPUT", "-ddark"]), "1\n|200|\"1\"|");
    let denied = ask("/kv/theme?shared=other", &[]);
    assert!(denied.contains("[kv] shared") && denied.ends_with("|403||denied"), "{denied}");
    let full = ask("/kv/large", &["-XPUT", &format!("-d{}", "x".repeat(2000))]);
    assert!(full.ends_with("|507||full"), "{full}");
    assert_eq!(node.ok(&["kv", "get", "shared:site", "theme"]), "dark");
    // The answer names what cannot be done.
    let wrong = ask("/kv/a?shard=x", &[]);
    assert!(
        wrong.starts_with("unknown parameter \"shard\"") && wrong.ends_with("|400||invalid"),
        "{wrong}"
    );
    let wrong = ask("/kw/a", &[]);
    assert!(wrong.contains("the services are") && wrong.ends_with("|404||invalid"), "{wrong}");
}

#[test]
fn the_example_counts() {
    needs_curl!();
    let node = Node::start();
    node.ok(&["deploy", &repository().join("examples/counter-shell").display().to_string()]);
    assert_eq!(node.get("/counter-shell").text(), "call 1\n");
    assert_eq!(node.get("/counter-shell").text(), "call 2\n");
    assert_eq!(node.ok(&["kv", "get", "counter-shell", "count"]), "2");
}

#[test]
fn a_shell_script_calls_functions() {
    needs_curl!();
    let node = Node::start();
    node.deploy_ok(
        "called",
        &[("handler.py", CALLED), ("mote.toml", &format!("version = 1\n{ALLOW}"))],
    );
    node.deploy_ok("secret", &[("handler.py", CALLED)]);
    deploy_shell(&node, "shell", ALLOW);
    let ask = |path: &str, args: &[&str]| curl(&node, "shell", path, args);
    let post = ["-dbody", "-HX-From: shell"];
    let expected = "POST /x/y a=b function shell body False|200||";
    assert_eq!(ask("/call/called/x/y?a=b", &post), expected);
    assert_eq!(ask("/call/called", &["-XPUT"]), "PUT /  function -  False|200||");
    assert_eq!(ask("/call/called/teapot", &[]), "teapot|418||", "an answer, not an error");
    let denied = ask("/call/secret", &[]);
    assert!(denied.contains("[allow] functions") && denied.ends_with("|403||denied"), "{denied}");
    let late = ask("/call/called/wait", &["-HMote-Timeout: 0.2"]);
    assert!(late.ends_with("|504||failed"), "{late}");
    let gone = ask("/call/server", &[]);
    assert!(
        gone.starts_with("no function named server") && gone.ends_with("|404||failed"),
        "{gone}"
    );
    // The chain of callers is also tracked through a program.
    let cycle = ask("/call/called/back?to=/call/called", &[]);
    let text = "a cycle of calls: called calls shell calls called";
    assert!(cycle.contains("a cycle of calls: shell calls called calls shell"), "{cycle} {text}");
    // A call for later.
    let accepted = ask("/call-async/called/later", &["-dlater", "-HIdempotency-Key: k"]);
    let (id, rest) = accepted.split_once('\n').expect("an id");
    assert_eq!((id.len(), rest), (26, "|202||"), "{accepted}");
    let again = ask("/call-async/called/later", &["-dlater", "-HIdempotency-Key: k"]);
    assert_eq!(again, accepted, "the same call");
    let denied = ask("/call-async/secret", &["-dx"]);
    assert!(denied.ends_with("|403||denied"), "{denied}");
    assert_eq!(ask("/notify/t", &["-d21"]), "0\n|200||", "nobody observes");
    let large = ask("/kv/x", &["-T/bin/bash"]);
    assert!(large.ends_with("|413||invalid"), "{large}");
}

#[test]
fn the_end_of_a_program_cancels_its_call() {
    needs_curl!();
    let node = Node::start();
    node.deploy_ok("called", &[("handler.py", CALLED)]);
    deploy_shell(&node, "shell", ALLOW);
    let mut client = std::net::TcpStream::connect(node.http).expect("connects");
    let body = "/call/called/wait\n";
    let request = format!(
        "POST /shell HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    std::io::Write::write_all(&mut client, request.as_bytes()).expect("sent");
    let logs = || node.ok(&["logs", "called"]);
    wait_for("the call to run", || logs().contains("stdout: waits").then_some(()));
    drop(client);
    wait_for("the call to end", || logs().contains("was cancelled").then_some(()));
}

#[test]
fn programs_without_a_wish_have_no_address() {
    let node = Node::start();
    let env = "#!/bin/sh\necho \"${MOTE_SERVICES-none}\"\n";
    let manifest = "version = 1\nruntime = \"exec\"\ncommand = [\"sh\", \"env.sh\"]\n";
    node.deploy_ok("plain", &[("env.sh", env), ("mote.toml", manifest)]);
    assert_eq!(node.get("/plain").text(), "none\n");
    let wished = format!("{manifest}services = true\n");
    node.deploy_ok("wished", &[("env.sh", env), ("mote.toml", &wished)]);
    let text = node.get("/wished").text();
    assert!(text.starts_with("http://mote.internal:6685/"), "{text}");
    let output =
        node.deploy("py", &[("app.py", CALLED), ("mote.toml", "version = 1\nservices = true\n")]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("services: only for exec and server"),
        "{text}"
    );
}

#[test]
fn a_server_names_the_invocation_that_asks() {
    needs_curl!();
    let node = Node::start();
    let manifest = |rest: &str| {
        format!("version = 1\nruntime = \"server\"\ncommand = [\"python3\", \"server.py\"]\n{rest}")
    };
    node.deploy_ok("server", &[("server.py", SERVER), ("mote.toml", &manifest(ALLOW))]);
    node.deploy_ok("called", &[("handler.py", CALLED)]);
    let ask = |query: &str| {
        let answer = node.get(&format!("/server?{query}"));
        (answer.status, answer.text())
    };
    assert_eq!(ask("to=/kv/n?increment%3D1&method=POST"), (200, "1\n".to_owned()));
    assert_eq!(ask("to=/kv/n&unnamed=1"), (200, "1".to_owned()), "state needs no invocation");
    let expected = "POST /x  function - hello False".to_owned();
    assert_eq!(ask("to=/call/called/x&method=POST&data=hello"), (200, expected));
    let (status, text) = ask("to=/call/called&unnamed=1");
    assert!(status == 400 && text.contains("pass on the field Mote-Invocation"), "{text}");
    let (status, text) = ask("to=/call/called&name=01ARZ3NDEKTSV4RRFFQ69G5FAV");
    assert!(status == 410 && text.contains("does not run the invocation"), "{text}");
    let (status, text) = ask("to=/call/called&name=nothing");
    assert!(status == 400 && text.contains("not an id"), "{text}");
    let (_, text) = ask("to=/call/server?to%3D/kv/n");
    assert!(text.contains("a cycle of calls: server calls server"), "{text}");
    // A client cannot choose the id of the invocation.
    let fields = [("mote-invocation", "01ARZ3NDEKTSV4RRFFQ69G5FAV")];
    let answer = node.call("GET", "/server?to=/call/called&show=1", &fields, b"");
    let seen = answer.text();
    assert!(seen.len() == 30 && !seen.contains("01ARZ3NDEKTSV4RRFFQ69G5FAV"), "{seen}");
    // Without the token the services do not answer, so an address that somebody else chose is of no
    // use.
    let base = "to=/../../kv/n&unnamed=1";
    let (status, text) = ask(base);
    assert!(status == 404, "{text}");
}

#[test]
fn many_requests_at_once_are_bounded_and_answered() {
    needs_curl!();
    const MANY: &str = r#"#!/bin/sh
i=0
urls=""
while [ $i -lt 400 ]; do urls="$urls $MOTE_SERVICES/kv/n?increment=1&durable=false"; i=$((i+1)); done
curl -sS --parallel --parallel-max 200 -X POST $urls > /dev/null
curl -sS "$MOTE_SERVICES/kv/n"
"#;
    let node = Node::start();
    let manifest = "version = 1\nruntime = \"exec\"\ncommand = [\"sh\", \"many.sh\"]\nservices = true\n[limits]\nmemory = \"128MiB\"\ntimeout = \"60s\"\n";
    node.deploy_ok("many", &[("many.sh", MANY), ("mote.toml", manifest)]);
    let began = Instant::now();
    assert_eq!(node.get("/many").text(), "400", "{}", node.ok(&["logs", "many"]));
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_shell_script_publishes() {
    needs_curl!();
    if !mqtt::is_there() {
        return skip("MQTT", "mosquitto and its clients are not installed");
    }
    let broker = Broker::start();
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    deploy_shell(&node, "shell", "[allow]\nmqtt = [\"out/#\"]\n");
    let format = ["-V", "5", "-t", "out/#", "-q", "1", "-F", "OUT %t|%C|%P|%p"];
    let all = mqtt::Subscriber::start(broker.port, &format);
    let ask = |path: &str, args: &[&str]| curl(&node, "shell", path, args);
    assert_eq!(
        ask("/publish/out/a%20b?property=k=v", &["-d21", "-HContent-Type: text/plain"]),
        "|204||"
    );
    assert_eq!(all.wait(1), ["out/a b|text/plain|k:v|21"]);
    let denied = ask("/publish/other", &["-d21"]);
    assert!(denied.contains("[allow] mqtt") && denied.ends_with("|403||denied"), "{denied}");
}
