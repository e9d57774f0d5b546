//! The rules of functions for HTTP requests, tested with real clients and a browser, and limits on
//! concurrent calls.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc;

use mote_tests::{Answer, Connection, Node, PATIENCE, call_at, coap_client, skip, wait_for};
use serde_json::Value;

const APP: &str = "https://app.example";
const EVIL: &str = "https://evil.example";

const CODE: &str = "
calls = []

def handle(event, ctx):
    if event.path == '/calls':
        return ','.join(calls)
    calls.append(event.method)
    own = {'access-control-allow-origin': 'https://own.example', 'x-count': '7', 'x-secret': '8'}
    return f'read {len(event.body)}', 200, own
";

type Fields<'a> = &'a [(&'a str, &'a str)];

/// Deploys a function that everyone may call, unless its manifest says who may. If only this
/// machine may call a function, pages of other origins may not, whatever `[http.cors]` says.
fn deploy(node: &Node, name: &str, manifest: &str) {
    let access = if manifest.contains("[access]") { "" } else { "[access]\nmode = \"public\"" };
    let manifest = format!("version = 1\n{manifest}\n{access}\n");
    node.deploy_ok(name, &[("app.py", CODE), ("mote.toml", &manifest)]);
}

fn total(node: &Node, name: &str) -> Value {
    node.json(&["describe", name, "-o", "json"])["requests"]["total"].clone()
}

/// Sends one request with curl. Returns status, fields in lower case, and body.
fn curl(
    version: &str,
    at: SocketAddr,
    (method, path): (&str, &str),
    fields: Fields<'_>,
    body: &[u8],
) -> Answer {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), body).expect("written");
    let mut curl = Command::new("curl");
    curl.args(["-sS", "-i", version, "-m", "30", "-H", "expect:"]);
    match method {
        "HEAD" => curl.arg("--head"),
        method => curl.args(["-X", method]),
    };
    if !body.is_empty() {
        curl.arg("--data-binary").arg(format!("@{}", file.path().display()));
    }
    for (name, value) in fields {
        curl.args(["-H", &format!("{name}: {value}")]);
    }
    curl.arg(format!("http://{at}{path}"));
    // Over HTTP/2, curl sometimes loses the answer to a request whose body was refused (error 92),
    // because the node resets the stream after the answer. Such a request has not run the function,
    // so it is sent again.
    let output = wait_for("an answer that curl has read", || {
        let output = curl.output().expect("curl");
        (output.status.code() != Some(92)).then_some(output)
    });
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{output:?}"));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status");
    let field = |line: &str| {
        let (name, value) = line.split_once(':').expect("a field");
        (name.to_ascii_lowercase(), value.trim().to_owned())
    };
    Answer {
        status: status.parse().expect("a number"),
        headers: lines.map(field).collect(),
        body: body.as_bytes().to_vec(),
    }
}

fn coap(at: SocketAddr, method: &str, path: &str, body: &[u8]) -> String {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), body).expect("written");
    let mut client = Command::new(coap_client().expect("libcoap"));
    client.args(["-m", method, "-B", "20"]);
    if !body.is_empty() {
        client.arg("-f").arg(file.path());
    }
    let output = client.arg(format!("coap://{at}{path}")).output().expect("coap-client");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn methods_fields_and_bodies_are_checked_before_anything_is_counted() {
    let node = Node::start_with(&[
        "--tinyfaas",
        ":0",
        "--tinyfaas-http",
        ":0",
        "--tinyfaas-coap",
        "off",
        "--tinyfaas-grpc",
        "off",
    ]);
    let rules = "[http]\nmethods = [\"GET\", \"POST\", \"iPATCH\"]\nheaders = [\"X-Device\"]\n\
                 body_max = \"1KiB\"\n";
    let limits = "[limits]\nrate = \"1/h\"\nburst = 6\n[access]\nmode = \"key\"\n";
    deploy(&node, "ruled", &format!("{rules}{limits}"));
    let key = node.ok(&["key", "create", "web"]).trim().to_owned();
    let with_key = ("x-api-key", key.as_str());
    let device = ("x-device", "7");
    let tiny = node.platform("tinyfaas http");
    let fronts =
        [("--http1.1", node.http), ("--http2-prior-knowledge", node.http), ("--http1.1", tiny)];
    for (version, at) in fronts {
        let call = |method, fields: Fields<'_>, body: &[u8]| {
            curl(version, at, (method, "/ruled"), fields, body)
        };
        // A caller that may not call the function learns nothing about its rules.
        for method in ["GET", "PUT"] {
            assert_eq!(call(method, &[], b"").status, 401, "{version} {at}");
        }
        let refused = call("PUT", &[with_key, device], b"");
        assert_eq!(
            (refused.status, refused.header("allow")),
            (405, Some("GET, POST, IPATCH, HEAD"))
        );
        assert_eq!(refused.json()["code"], "M1030");
        let refused = call("GET", &[with_key], b"");
        assert_eq!((refused.status, refused.json()["code"].as_str()), (400, Some("M1034")));
        assert!(refused.text().contains("the field x-device is required"), "{}", refused.text());
        let refused = call("POST", &[with_key, device], &[b'x'; 1_025]);
        assert_eq!((refused.status, refused.json()["code"].as_str()), (413, Some("M1024")));
        assert_eq!(call("OPTIONS", &[with_key, device], b"").status, 405, "without [http.cors]");
    }
    // Refused calls have not used up any of the rate.
    for (version, at) in &fronts[..2] {
        let get = curl(version, *at, ("GET", "/ruled"), &[with_key, device], b"");
        assert_eq!((get.status, get.text().as_str()), (200, "read 0"), "{version}");
        let head = curl(version, *at, ("HEAD", "/ruled"), &[with_key, device], b"");
        assert_eq!(head.status, 200);
        let post = curl(version, *at, ("POST", "/ruled"), &[with_key, device], &[b'x'; 1_024]);
        assert_eq!(post.text(), "read 1024");
    }
    let post = curl("--http1.1", node.http, ("POST", "/ruled"), &[with_key, device], b"");
    assert_eq!(post.json()["code"], "M0524");
    assert_eq!(total(&node, "ruled"), 6);
}

#[test]
fn methods_and_bodies_are_checked_over_coap() {
    let node = Node::start();
    let rules = "[http]\nmethods = [\"POST\", \"iPATCH\"]\nheaders = [\"x-device\"]\n\
                 body_max = \"1KiB\"\n";
    deploy(&node, "ruled", rules);
    let call = |method: &str, body: &[u8]| coap(node.coap, method, "/ruled", body);
    for method in ["get", "put", "delete", "fetch", "patch"] {
        let text = call(method, b"");
        assert!(text.contains("4.05") && text.contains("POST, IPATCH only"), "{method}: {text}");
    }
    for method in ["post", "ipatch"] {
        assert!(call(method, b"abc").contains("read 3"), "{method}");
    }
    let text = call("post", &[b'x'; 1_025]);
    assert!(text.contains("4.13"), "{text}");
    assert_eq!(total(&node, "ruled"), 2);
}

#[test]
fn browsers_are_answered_without_the_function() {
    let node = Node::start_with(&[
        "--tinyfaas",
        ":0",
        "--tinyfaas-http",
        ":0",
        "--tinyfaas-coap",
        "off",
        "--tinyfaas-grpc",
        "off",
    ]);
    let rules = "[http]\nmethods = [\"GET\", \"PUT\"]\nheaders = [\"x-device\"]\n\
                 [http.cors]\norigins = [\"https://app.example\"]\nexpose = [\"X-Count\"]\n\
                 max_age = \"10m\"\n[access]\nmode = \"key\"\n";
    deploy(&node, "shop", rules);
    deploy(&node, "closed", &rules.replace("key", "local"));
    let key = node.ok(&["key", "create", "web"]).trim().to_owned();
    let origin = "access-control-allow-origin";
    let asks = ("access-control-request-method", "PUT");
    let tiny = node.platform("tinyfaas http");
    let fronts =
        [("--http1.1", node.http), ("--http2-prior-knowledge", node.http), ("--http1.1", tiny)];
    for (version, at) in fronts {
        let call = |method, fields: Fields<'_>| curl(version, at, (method, "/shop"), fields, b"");
        let answer = call("OPTIONS", &[("origin", APP), asks]);
        assert_eq!((answer.status, answer.text().as_str()), (204, ""), "{version} {at}");
        for (name, value) in [
            (origin, APP),
            ("access-control-allow-methods", "GET, PUT"),
            ("access-control-allow-headers", "x-device"),
            ("access-control-max-age", "600"),
            ("vary", "Origin"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{version} {at}");
        }
        for name in ["content-length", "content-type", "access-control-allow-credentials"] {
            assert_eq!(answer.header(name), None, "{name}");
        }
        let answer = call("OPTIONS", &[("origin", EVIL), asks]);
        assert_eq!((answer.status, answer.header(origin)), (204, None));
        // A page must be able to read why its request was refused.
        let answer = call("GET", &[("origin", APP)]);
        assert_eq!((answer.status, answer.header(origin)), (401, Some(APP)));
        let answer = call("OPTIONS", &[("origin", APP)]);
        assert_eq!(answer.status, 401, "not a preflight request");
    }
    assert_eq!(total(&node, "shop"), 0);
    let with_key = ("x-api-key", key.as_str());
    for (version, at) in fronts {
        for (from, allowed) in [(APP, Some(APP)), (EVIL, None)] {
            let fields = [("origin", from), with_key, ("x-device", "1")];
            let answer = curl(version, at, ("GET", "/shop"), &fields, b"");
            assert_eq!((answer.status, answer.header(origin)), (200, allowed), "{version} {at}");
            assert_eq!(answer.header("vary"), Some("Origin"));
            let exposed = answer.header("access-control-expose-headers");
            assert_eq!(exposed, allowed.map(|_| "x-count"));
        }
    }
    // A function that only this machine may call is closed to pages of other sites, whatever its
    // origins say.
    let mut kept = Connection::open(node.http);
    for (path, status) in [("/closed", 403), ("/shop", 204), ("/shop", 204)] {
        let answer = kept.call("OPTIONS", path, &[("origin", APP), asks], b"");
        assert_eq!((answer.status, answer.header(origin)), (status, Some(APP)), "{path}");
    }
    // A function that fails.
    let broken = "def handle(event, ctx):\n    raise ValueError\n";
    let manifest = rules
        .replace("mode = \"key\"", "mode = \"public\"")
        .replace("headers = [\"x-device\"]\n", "");
    let manifest = format!("version = 1\n{manifest}");
    node.deploy_ok("broken", &[("app.py", broken), ("mote.toml", &manifest)]);
    for (version, at) in &fronts[..2] {
        let answer = curl(version, *at, ("GET", "/broken"), &[("origin", APP)], b"");
        assert_eq!((answer.status, answer.header(origin)), (500, Some(APP)), "{version}");
    }
}

#[test]
fn with_credentials_other_origins_are_refused() {
    let node = Node::start();
    deploy(&node, "bank", "[http.cors]\norigins = [\"https://app.example\"]\ncredentials = true\n");
    let host = node.http.to_string();
    let own = format!("http://{host}");
    for (version, method, origin, status) in [
        ("--http1.1", "POST", EVIL, 403),
        ("--http2-prior-knowledge", "POST", EVIL, 403),
        ("--http1.1", "DELETE", "null", 403),
        ("--http1.1", "GET", EVIL, 200),
        ("--http1.1", "POST", APP, 200),
        ("--http2-prior-knowledge", "POST", &own, 200),
        ("--http1.1", "POST", &own, 200),
    ] {
        let answer = curl(version, node.http, (method, "/bank"), &[("origin", origin)], b"");
        assert_eq!(answer.status, status, "{version} {method} {origin}");
        let credentials = answer.header("access-control-allow-credentials");
        assert_eq!(credentials, (origin == APP).then_some("true"));
        if status == 403 {
            assert_eq!(answer.json()["code"], "M1035");
        }
    }
    assert_eq!(node.get("/bank/calls").text(), "GET,POST,POST,POST");
    let handshake = [
        ("host", host.as_str()),
        ("origin", EVIL),
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    assert_eq!(call_at(node.http, "GET", "/bank", &handshake, b"").status, 403);
}

#[test]
fn contradicting_rules_are_refused() {
    let node = Node::start();
    for (lines, part) in [
        ("[http]\nmethod = [\"GET\"]", "did you mean `methods`"),
        ("methods = [\"GET\"]\n[http]\nmethods = [\"GET\"]", "the same setting"),
        ("[http]\nbody_max = \"1KiB\"\n[limits]\nbody = \"2KiB\"", "the same setting"),
        ("[http]\nheaders = [\"a b\"]", "names of fields"),
        ("[http]\nheaders = [\"Connection\"]", "never has this field"),
        ("[http]\n", "needs a key"),
        ("[http.cors]\nmethods = [\"GET\"]", "needs origins"),
        ("[http.cors]\norigins = [\"*\"]\ncredentials = true", "exclude each other"),
        ("[http.cors]\norigins = [\"https://app.example/\"]", "http.cors.origins"),
        ("[http.cors]\norigins = []", "http.cors.origins"),
        ("[http.cors]\norigins = [\"*\"]\nmax_age = \"25h\"", "0s\u{2013}24h"),
        ("[limits]\ncalls_at_once = 0", "calls_at_once"),
        ("[limits]\ncalls_at_once = 2\ncaller_calls_at_once = 3", "at most calls_at_once"),
    ] {
        let manifest = format!("version = 1\n{lines}\n");
        let output = node.deploy("odd", &[("app.py", CODE), ("mote.toml", &manifest)]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(part), "{lines}: {text}");
    }
}

/// Waits until its caller goes away, streams pieces, or answers at once.
const HOLDING: &str = "
import asyncio

async def pieces():
    for number in range(50):
        yield b'x' * 4096
        await asyncio.sleep(0)

async def silence():
    yield b'begun'
    await asyncio.sleep(600)

async def handle(event, ctx):
    if event.path == '/hold':
        await asyncio.sleep(600)
    if event.path == '/pieces':
        return pieces()
    if event.path == '/silence':
        return silence()
    return 'answered'
";

fn deploy_holding(node: &Node, lines: &str) {
    let manifest =
        format!("version = 1\n[limits]\ntimeout = \"10m\"\n{lines}\n[scale]\nmin = 1\nmax = 1\n");
    node.deploy_ok("hold", &[("app.py", HOLDING), ("mote.toml", &manifest)]);
}

fn running(node: &Node) -> u64 {
    let described = node.json(&["describe", "hold", "-o", "json"]);
    described["requests"]["running"].as_u64().expect("a number")
}

/// Sends a request and does not read the answer.
fn begin(node: &Node, path: &str, key: &str) -> TcpStream {
    let mut stream = TcpStream::connect(node.http).expect("the front listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    stream
}

fn check_refusal(answer: &Answer, of_caller: bool) {
    assert_eq!((answer.status, answer.json()["code"].as_str()), (429, Some("M0526")));
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(answer.text().contains("of this caller"), of_caller, "{}", answer.text());
}

#[test]
fn calls_at_once_are_limited() {
    let node = Node::start();
    deploy_holding(&node, "calls_at_once = 3\ncaller_calls_at_once = 2\n[access]\nmode = \"key\"");
    let key = |name: &str| node.ok(&["key", "create", name]).trim().to_owned();
    let one = key("one");
    let two = key("two");
    let call = |key: &str| node.call("GET", "/hold", &[("x-api-key", key)], b"");
    let answered =
        |key: &str| node.call("GET", "/hold/quick", &[("x-api-key", key)], b"").status == 200;
    let mut held = vec![begin(&node, "/hold/hold", &one)];
    // A streamed answer counts as a running call until it ends.
    let mut stream = begin(&node, "/hold/silence", &one);
    wait_for("two calls", || (running(&node) == 2).then_some(()));
    for _ in 0..3 {
        check_refusal(&call(&one), true);
    }
    assert!(answered(&two), "another caller");
    held.push(begin(&node, "/hold/hold", &two));
    wait_for("three calls", || (running(&node) == 3).then_some(()));
    check_refusal(&call(&two), false);
    let text = coap(node.coap, "get", &format!("/hold/quick?mote-key={two}"), b"");
    assert!(text.contains("4.29"), "{text}");
    let h2 = curl(
        "--http2-prior-knowledge",
        node.http,
        ("GET", "/hold/quick"),
        &[("x-api-key", &two)],
        b"",
    );
    check_refusal(&h2, false);
    let metrics = Command::new("curl")
        .args(["-s", "--unix-socket", &node.dir.path().join("s").display().to_string()])
        .arg("http://mote/metrics")
        .output()
        .expect("curl");
    let metrics = String::from_utf8_lossy(&metrics.stdout).into_owned();
    assert!(metrics.contains("mote_refused_calls_total{code=\"M0526\"} 6"), "{metrics}");
    // A place becomes free when its caller goes away, whether or not an answer has begun.
    drop(held.pop());
    wait_for("a place", || answered(&two).then_some(()));
    stream.read_exact(&mut [0; 12]).expect("the answer has begun");
    drop(stream);
    wait_for("the place of the stream", || answered(&one).then_some(()));
    // Calls that are answered later hold a place only while they are being accepted.
    for _ in 0..5 {
        let later = [("x-api-key", one.as_str()), ("prefer", "respond-async")];
        assert_eq!(node.call("GET", "/hold/quick", &later, b"").status, 202);
    }
    assert!(answered(&one));
    let limits = node.json(&["describe", "hold", "-o", "json"])["limits"].clone();
    assert_eq!((&limits["calls_at_once"], &limits["caller_calls_at_once"]), (&3.into(), &2.into()));
    drop(held);
}

#[test]
fn bodies_that_arrive_slowly_hold_no_place() {
    let node = Node::start();
    deploy_holding(&node, "calls_at_once = 1\nrate = \"5/h\"\nburst = 5");
    let begin_post = |bytes: usize| {
        let mut stream = TcpStream::connect(node.http).expect("the front listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let head = format!(
            "POST /hold HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n\
             content-length: {bytes}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("sent");
        // From here on, the node reads the body.
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).expect("an answer");
        assert_eq!(line, "HTTP/1.1 100 Continue\r\n");
        stream
    };
    // One body is short, and one is gathered by the node first.
    let slow = [(begin_post(10), 10), (begin_post(100_000), 100_000)];
    assert_eq!(node.get("/hold").status, 200, "the place is free");
    let held = begin(&node, "/hold/hold", "");
    wait_for("the call to run", || (running(&node) == 1).then_some(()));
    for (mut stream, bytes) in slow {
        stream.write_all(&vec![b'x'; bytes]).expect("sent");
        let mut answer = String::new();
        let mut reader = BufReader::new(&stream);
        while !answer.contains("HTTP/1.1 ") {
            reader.read_line(&mut answer).expect("an answer");
        }
        assert!(answer.contains("HTTP/1.1 429 "), "the place is taken meanwhile: {answer}");
    }
    drop(held);
    wait_for("the place to be free", || (node.get("/hold").status != 429).then_some(()));
    // Five calls were counted, even though two of them asked for a place twice.
    let last = node.get("/hold");
    assert_eq!((last.status, last.json()["code"].as_str()), (429, Some("M0524")));
}

#[test]
fn streams_and_websockets_hold_their_places() {
    let node = Node::start();
    deploy_holding(&node, "calls_at_once = 1");
    let is_free = |path: &str| node.get(path).status != 429;
    let stream = Command::new("curl")
        .args(["-sN", "--http2-prior-knowledge", "-o", "/dev/null"])
        .arg(format!("http://{}/hold/silence", node.http))
        .spawn();
    let mut stream = stream.expect("curl");
    wait_for("the stream", || (running(&node) == 1).then_some(()));
    check_refusal(&node.get("/hold/quick"), false);
    stream.kill().expect("our child");
    stream.wait().expect("our child");
    wait_for("the place of the stream", || is_free("/hold/quick").then_some(()));

    let echo = "async def app(scope, receive, send):
    if scope['type'] != 'websocket':
        await send({'type': 'http.response.start', 'status': 204, 'headers': []})
        await send({'type': 'http.response.body', 'body': b''})
        return
    await receive()
    await send({'type': 'websocket.accept'})
    while (await receive())['type'] == 'websocket.receive':
        pass
";
    let manifest = "version = 1\n[limits]\ncalls_at_once = 1\n";
    node.deploy_ok("socket", &[("app.py", echo), ("mote.toml", manifest)]);
    for ends_early in [false, true] {
        let mut socket = TcpStream::connect(node.http).expect("the front listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let request = "GET /socket HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n\
                       upgrade: websocket\r\nsec-websocket-version: 13\r\n\
                       sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        socket.write_all(request.as_bytes()).expect("sent");
        let mut begun = [0; 12];
        socket.read_exact(&mut begun).expect("an answer");
        assert_eq!(&begun, b"HTTP/1.1 101");
        check_refusal(&node.get("/socket"), false);
        if !ends_early {
            // A close frame with an empty mask.
            socket.write_all(&[0x88, 0x80, 0, 0, 0, 0]).expect("sent");
            let _ = socket.read_to_end(&mut Vec::new());
        }
        drop(socket);
        wait_for("the place of the WebSocket", || is_free("/socket").then_some(()));
    }
}

/// Returns the random number after this one (xorshift). The sequence is the same in each run.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn no_place_is_lost_when_clients_disconnect() {
    const CLIENTS: u64 = 8;
    const CALLS: u64 = 10_000 / CLIENTS;
    const PLACES: usize = 6;
    let node = Node::start();
    deploy_holding(&node, &format!("calls_at_once = {PLACES}\ncaller_calls_at_once = {PLACES}"));
    let client = |seed: u64| {
        let mut random = seed;
        let mut refused = 0;
        for _ in 0..CALLS {
            let path = ["/hold/quick", "/hold/pieces", "/hold/silence", "/hold/hold"]
                [next(&mut random) as usize % 4];
            let mut stream = TcpStream::connect(node.http).expect("the front listens");
            let body = if path.ends_with("quick") { 100_000 } else { 0 };
            let mut request = format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {body}\r\n\r\n"
            )
            .into_bytes();
            request.resize(request.len() + body, b'x');
            // The client leaves at some point in its request or in the answer.
            let sent = next(&mut random) as usize % (2 * request.len());
            let is_sent = stream.write_all(&request[..sent.min(request.len())]).is_ok();
            if is_sent && sent >= request.len() && !path.ends_with("hold") {
                let mut seen = vec![0; 1 + next(&mut random) as usize % 30_000];
                let read = stream.read(&mut seen).unwrap_or(0);
                refused += usize::from(seen[..read].starts_with(b"HTTP/1.1 429"));
            }
        }
        refused
    };
    let refused: usize = std::thread::scope(|scope| {
        let client = &client;
        let clients: Vec<_> = (1..=CLIENTS).map(|seed| scope.spawn(move || client(seed))).collect();
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    });
    assert!(refused > 0, "the limit was reached");
    // All places are free again, and there are no more than before.
    wait_for("the last calls to end", || (running(&node) == 0).then_some(()));
    let held: Vec<_> = (0..PLACES).map(|_| begin(&node, "/hold/hold", "")).collect();
    wait_for("all places to be taken", || (running(&node) == PLACES as u64).then_some(()));
    check_refusal(&node.get("/hold/quick"), true);
    drop(held);
}

/// The page's script. Each line of its report has the name of a request and its outcome.
const PAGE: &str = r#"<!doctype html><script>
const node = "http://NODE";
const report = [];
async function ask(name, path, options) {
  try {
    const answer = await fetch(node + path, options);
    const fields = ["x-count", "x-secret"].map((field) => answer.headers.get(field));
    report.push(`${name} ${answer.status} ${fields.join(" ")}`);
  } catch (error) {
    report.push(`${name} ${error.name}`);
  }
}
(async () => {
  await ask("simple", "/open");
  await ask("preflight", "/open", { method: "PUT", headers: { "x-device": "1" } });
  await ask("method", "/open", { method: "DELETE" });
  await ask("field", "/open", { method: "PUT", headers: { "x-other": "1" } });
  await ask("refused", "/locked");
  await ask("key", "/locked", { headers: { authorization: "Bearer KEY" } });
  await ask("credentials", "/bank", { credentials: "include" });
  await ask("change", "/bank", { method: "POST", credentials: "include" });
  await ask("any", "/any");
  await ask("any-credentials", "/any", { credentials: "include" });
  await ask("none", "/none");
  await fetch("/report", { method: "POST", body: report.join("\n") });
})();
</script>"#;

/// Serves the page on a loopback port, and returns a channel with the page's reports.
fn serve_page(page: String, listener: TcpListener) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.expect("a connection"));
            let mut head = String::new();
            let mut length = 0;
            while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap_or(0) > 0 {
                let line = head.lines().last().unwrap_or_default().to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a length");
                }
            }
            let mut body = vec![0; length];
            if reader.read_exact(&mut body).is_err() {
                continue;
            }
            if head.starts_with("POST /report ") {
                let _ = sender.send(String::from_utf8_lossy(&body).into_owned());
            }
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\
                 connection: close\r\n\r\n{page}",
                page.len()
            );
            let _ = reader.get_mut().write_all(answer.as_bytes());
        }
    });
    receiver
}

#[test]
fn a_browser_obeys_the_rules() {
    if Command::new("chromium").arg("--version").output().is_err() {
        return skip("requests of a browser", "chromium is not installed");
    }
    let node = Node::start();
    let listen = || TcpListener::bind("127.0.0.1:0").expect("a port");
    let permitted = listen();
    let other = listen();
    let origin = format!("http://{}", permitted.local_addr().expect("an address"));
    let cors = |lines: &str| format!("[http.cors]\norigins = [\"{origin}\"]\n{lines}\n");
    deploy(
        &node,
        "open",
        &cors("methods = [\"GET\", \"PUT\"]\nheaders = [\"x-device\"]\nexpose = [\"x-count\"]"),
    );
    deploy(&node, "locked", &cors("headers = [\"authorization\"]\n[access]\nmode = \"key\""));
    deploy(&node, "bank", &cors("credentials = true"));
    deploy(&node, "any", "[http.cors]\norigins = [\"*\"]");
    deploy(&node, "none", "");
    let key = node.ok(&["key", "create", "web"]).trim().to_owned();
    let page = PAGE.replace("NODE", &node.http.to_string()).replace("KEY", &key);
    let visit = |listener: TcpListener| {
        let address = listener.local_addr().expect("an address");
        let reports = serve_page(page.clone(), listener);
        let folder = tempfile::tempdir().expect("a folder");
        let mut browser = Command::new("chromium")
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .arg("--remote-debugging-port=0") // it stays until the test ends it
            .arg(format!("--user-data-dir={}", folder.path().display()))
            .arg(format!("http://{address}/"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromium starts");
        let report = reports.recv_timeout(2 * PATIENCE);
        browser.kill().expect("our child");
        browser.wait().expect("our child");
        report.expect("a report of the page")
    };
    let report = visit(permitted);
    let expected = "simple 200 7 \npreflight 200 7 \nmethod TypeError\nfield TypeError\n\
                    refused 401  \nkey 200  \ncredentials 200  \nchange 200  \nany 200  \n\
                    any-credentials TypeError\nnone TypeError";
    assert_eq!(report, expected);
    assert_eq!(node.get("/open/calls").text(), "GET,PUT", "no preflight request");
    assert_eq!(node.get("/bank/calls").text(), "GET,POST");
    let report = visit(other);
    let expected = "simple TypeError\npreflight TypeError\nmethod TypeError\nfield TypeError\n\
                    refused TypeError\nkey TypeError\ncredentials TypeError\nchange TypeError\n\
                    any 200  \nany-credentials TypeError\nnone TypeError";
    assert_eq!(report, expected);
    assert_eq!(node.get("/open/calls").text(), "GET,PUT,GET", "a simple request is run");
    assert_eq!(node.get("/bank/calls").text(), "GET,POST,GET", "and a change is not");
}

#[test]
fn permitted_origins_of_a_function_that_others_cannot_call_are_warned_of() {
    let node = Node::start();
    for (access, is_warned) in
        [("", true), ("[access]\nmode = \"local\"", true), ("[access]\nmode = \"public\"", false)]
    {
        let manifest = format!("version = 1\n[http.cors]\norigins = [\"{APP}\"]\n{access}\n");
        let deployed = node.deploy("pages", &[("app.py", CODE), ("mote.toml", &manifest)]);
        let said = String::from_utf8_lossy(&deployed.stderr).into_owned();
        assert!(deployed.status.success(), "{said}");
        assert_eq!(
            said.contains("http.cors: pages of other origins"),
            is_warned,
            "{access}: {said}"
        );
    }
}
