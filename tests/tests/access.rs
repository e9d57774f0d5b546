//! Keys of callers. Every front asks for them, but calls inside the node need no key.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

use mote_tests::network::Far;
use mote_tests::{
    Answer, Connection, Node, PATIENCE, basic_auth, call_at, coap_client, free_address, is_root,
    skip, wait_for,
};
use serde_json::{Value, json};

/// Answers with what it received.
const TELLS: &str = "import json\n\ndef handle(event, ctx):\n    \
    return json.dumps({'caller': event.caller, 'headers': dict(event.headers), \
    'query': event.query, 'trigger': event.trigger})\n";
/// Accepts a WebSocket, and does the same.
const SOCKETS: &str = "async def app(scope, receive, send):\n    \
    if scope['type'] == 'websocket':\n        await receive()\n        \
    await send({'type': 'websocket.accept'})\n        await receive()\n";
/// A handler in the form of OpenFaaS.
const HANDLER: &str = "def handle(req):\n    return req\n";
const KEY: &str = "version = 1\n[access]\nmode = \"key\"\n";
const PUBLIC: &str = "version = 1\n[access]\nmode = \"public\"\n";
const LOCAL: &str = "version = 1\n[access]\nmode = \"local\"\n";
/// A manifest that does not say who may call the function.
const UNSET: &str = "version = 1\n";

struct Keys {
    good: String,
    /// A key for another function.
    other: String,
    /// Keys that are not valid: unknown, expired, revoked.
    bad: [String; 3],
}

/// The statuses that a front answers, in its own numbers.
struct Expected {
    done: u16,
    no_key: u16,
    other_key: u16,
    /// The status after an address has sent too many wrong keys.
    slowed: u16,
}

const HTTP: Expected = Expected { done: 200, no_key: 401, other_key: 403, slowed: 429 };
/// 2.05, 4.01, 4.03 and 4.29 as bytes.
const COAP: Expected = Expected { done: 0x45, no_key: 0x81, other_key: 0x83, slowed: 0x9d };
/// OK, UNAUTHENTICATED, PERMISSION_DENIED, RESOURCE_EXHAUSTED.
const GRPC: Expected = Expected { done: 0, no_key: 16, other_key: 7, slowed: 8 };

fn new_key(node: &Node, arguments: &[&str]) -> String {
    let key = node.ok(&[&["key", "create"], arguments].concat());
    let key = key.trim_end().to_owned();
    assert!(key.starts_with("mote_") && key.len() == 48, "{key}");
    key
}

/// Starts a node with a public function `open` and a protected function `shut`.
fn start(flags: &[&str]) -> (Node, Keys) {
    let node = Node::start_with(flags);
    node.deploy_ok("open", &[("app.py", TELLS), ("mote.toml", PUBLIC)]);
    let output = node.deploy("shut", &[("app.py", TELLS), ("mote.toml", KEY)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let hint = "no key opens shut yet; make one: mote key create CALLER --function shut";
    assert!(output.status.success() && said.contains(hint), "{said}");
    let good = new_key(&node, &["web", "--function", "shut", "--function", "sock*"]);
    let other = new_key(&node, &["else", "--function", "elsewhere"]);
    let expired = new_key(&node, &["late", "--expires", "1ms"]);
    let revoked = new_key(&node, &["gone"]);
    node.ok(&["key", "revoke", "gone", "--yes"]);
    let unknown = format!("mote_{}", "A".repeat(43));
    (node, Keys { good, other, bad: [unknown, expired, revoked] })
}

/// Checks each kind of key at one front. `call` calls a function with a key and returns the status.
fn check(
    what: &str,
    keys: &Keys,
    expected: &Expected,
    (open, shut): (&str, &str),
    call: impl Fn(&str, Option<&str>) -> u16,
) {
    for key in [None, Some(&keys.good), Some(&keys.bad[0])] {
        assert_eq!(call(open, key.map(String::as_str)), expected.done, "{what}: public, {key:?}");
    }
    assert_eq!(call(shut, None), expected.no_key, "{what}: no key");
    assert_eq!(call(shut, Some(&keys.other)), expected.other_key, "{what}: another function's");
    for key in &keys.bad {
        // This address has also sent wrong keys to other fronts, so the node may slow it down for a
        // while.
        let status = wait_for("an answer to a wrong key", || {
            Some(call(shut, Some(key))).filter(|status| *status != expected.slowed)
        });
        assert_eq!(status, expected.no_key, "{what}: {key}");
    }
    assert_eq!(call(shut, Some(&keys.good)), expected.done, "{what}: good key");
}

/// Checks that a function did not see the caller name that a client has forged.
fn unforged(what: &str, told: &[u8]) {
    let told = String::from_utf8_lossy(told);
    assert!(told.contains("\"caller\": null") && !told.contains("forged"), "{what}: {told}");
}

fn bearer(key: &str) -> String {
    format!("Bearer {key}")
}

/// The status of an HTTP call.
fn http(at: SocketAddr, path: &str, key: Option<&str>) -> u16 {
    let field = key.map(bearer);
    let headers: Vec<_> = field.iter().map(|field| ("authorization", field.as_str())).collect();
    let answer = call_at(at, "GET", path, &headers, b"");
    if answer.status == 401 {
        assert_eq!(answer.header("www-authenticate"), Some("Bearer realm=\"mote\""), "{path}");
    }
    answer.status
}

/// The status of a call with curl.
fn curl(url: &str, flags: &[&str], key: Option<&str>) -> u16 {
    let mut command = Command::new("curl");
    command.args(["-s", "-k", "-o", "/dev/null", "-w", "%{http_code}"]).args(flags);
    if let Some(key) = key {
        command.args(["-H", &format!("X-API-Key: {key}")]);
    }
    let output = command.arg(url).output().expect("curl");
    String::from_utf8_lossy(&output.stdout).parse().expect("a status")
}

/// The status of a request for a WebSocket.
fn websocket(at: SocketAddr, path: &str, key: Option<&str>) -> u16 {
    let mut stream = TcpStream::connect(at).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let field = key.map(|key| format!("X-API-Key: {key}\r\n")).unwrap_or_default();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{field}\r\n"
    )
    .expect("sent");
    let mut line = [0; 12];
    stream.read_exact(&mut line).expect("a status line");
    std::str::from_utf8(&line[9..]).expect("ASCII").parse().expect("a status")
}

/// The options of a CoAP request. The path names the function, and the query contains the key.
fn coap_options(function: &str, key: Option<&str>, more: &[(u8, &[u8])]) -> Vec<u8> {
    let mut all = vec![(11, function.as_bytes().to_vec())];
    if let Some(key) = key {
        all.push((15, format!("mote-key={key}").into_bytes()));
    }
    all.extend(more.iter().map(|(number, value)| (*number, value.to_vec())));
    let mut out = Vec::new();
    let mut last = 0;
    for (number, value) in all {
        let delta = number - last;
        last = number;
        let (delta, delta_more) = if delta < 13 { (delta, None) } else { (13, Some(delta - 13)) };
        let length = u8::try_from(value.len()).expect("short");
        let (nibble, length) = if length < 13 { (length, None) } else { (13, Some(length - 13)) };
        out.push(delta << 4 | nibble);
        out.extend(delta_more.into_iter().chain(length));
        out.extend(value);
    }
    out
}

/// Sends a CoAP request over UDP. Returns the code and the payload of the answer.
fn coap(at: SocketAddr, function: &str, key: Option<&str>) -> (u8, Vec<u8>) {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    // Each request has a new id. The node repeats its former answer if a message id is repeated
    // from the same port, and the machine may assign the same port again.
    static IDS: AtomicU16 = AtomicU16::new(0);
    let [high, low] = IDS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let mut request = vec![0x41, 1, high, low, 7];
    request.extend(coap_options(function, key, &[(15, b"a=1")]));
    socket.send_to(&request, at).expect("sent");
    let mut answer = [0; 2_048];
    loop {
        let length = socket.recv(&mut answer).expect("an answer");
        // If the function takes long, an empty acknowledgement arrives first.
        if answer[1] != 0 {
            return (answer[1], payload(&answer[..length]));
        }
    }
}

/// Returns the bytes after the payload marker.
fn payload(message: &[u8]) -> Vec<u8> {
    let at = message.iter().position(|byte| *byte == 0xff);
    at.map_or_else(Vec::new, |at| message[at + 1..].to_vec())
}

/// Sends a CoAP request over TCP. Returns the code of the answer.
fn coap_tcp(at: SocketAddr, function: &str, key: Option<&str>) -> u8 {
    let mut stream = TcpStream::connect(at).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    // First a CSM without options, then the request with an extended length.
    let options = coap_options(function, key, &[]);
    let mut request = vec![0x00, 0xe1];
    match options.len() {
        length @ ..13 => request.push((length as u8) << 4 | 1),
        length => request.extend([0xd1, (length - 13) as u8]),
    }
    request.extend([1, 7]);
    request.extend(options);
    stream.write_all(&request).expect("sent");
    loop {
        let mut first = [0; 1];
        stream.read_exact(&mut first).expect("a message");
        let mut length = usize::from(first[0] >> 4);
        let more = match length {
            13 => 1,
            14 => 2,
            15 => 4,
            _ => 0,
        };
        if more > 0 {
            let mut bytes = vec![0; more];
            stream.read_exact(&mut bytes).expect("a length");
            let number = bytes.iter().fold(0, |all, byte| all << 8 | usize::from(*byte));
            length = number + [0, 13, 269, 0, 65_805][more];
        }
        let mut rest = vec![0; 1 + usize::from(first[0] & 15) + length];
        stream.read_exact(&mut rest).expect("a message");
        if rest[0] != 0xe1 {
            return rest[0];
        }
    }
}

#[test]
fn http_fronts_ask_for_keys() {
    let https = free_address().to_string();
    let (node, keys) = start(&["--https", &https]);
    for (name, mode) in [("sockets", KEY), ("opensockets", PUBLIC)] {
        node.deploy_ok(name, &[("app.py", SOCKETS), ("mote.toml", mode)]);
    }
    let both = ("/open", "/shut");
    check("HTTP/1.1", &keys, &HTTP, both, |path, key| http(node.http, path, key));
    let h2 = format!("http://{}", node.http);
    check("HTTP/2", &keys, &HTTP, both, |path, key| {
        curl(&format!("{h2}{path}"), &["--http2-prior-knowledge"], key)
    });
    check("HTTPS", &keys, &HTTP, both, |path, key| {
        curl(&format!("https://{https}{path}"), &[], key)
    });
    let output = Command::new("curl")
        .args(["-s", "--http2-prior-knowledge", "-H", "mote-caller: forged", &format!("{h2}/open")])
        .output()
        .expect("curl");
    unforged("HTTP/2", &output.stdout);
    let upgraded = Expected { done: 101, ..HTTP };
    let sockets = ("/opensockets", "/sockets");
    check("WebSocket", &keys, &upgraded, sockets, |path, key| websocket(node.http, path, key));
}

#[test]
fn coap_fronts_ask_for_keys() {
    let tcp = free_address();
    let (node, keys) = start(&["--coap-tcp", &tcp.to_string()]);
    let both = ("open", "shut");
    check("CoAP over UDP", &keys, &COAP, both, |name, key| coap(node.coap, name, key).0.into());
    check("CoAP over TCP", &keys, &COAP, both, |name, key| coap_tcp(tcp, name, key).into());
    let told = |name: &str| -> Value {
        let (_, payload) = coap(node.coap, name, Some(&keys.good));
        serde_json::from_slice(&payload).expect("JSON")
    };
    let shut = told("shut");
    assert_eq!((&shut["caller"], &shut["query"]), (&json!("web"), &json!("a=1")), "{shut}");
    assert!(!shut.to_string().contains(&keys.good), "{shut}");
    let open = told("open");
    assert_eq!(open["query"], format!("mote-key={}&a=1", keys.good), "as it was sent");
    assert_eq!(open["caller"], Value::Null);
}

#[test]
fn the_apis_of_other_platforms_ask_for_keys() {
    let on = ["--openfaas", ":0", "--nuclio", ":0"];
    let (node, keys) = start(&on);
    let at = node.platform("openfaas");
    check("OpenFaaS", &keys, &HTTP, ("/function/open", "/function/shut"), |path, key| {
        http(at, path, key)
    });
    let accepted = Expected { done: 202, ..HTTP };
    let later = ("/async-function/open", "/async-function/shut");
    check("OpenFaaS, later", &keys, &accepted, later, |path, key| {
        let field = key.map(bearer);
        let headers: Vec<_> = field.iter().map(|field| ("authorization", field.as_str())).collect();
        call_at(at, "POST", path, &headers, b"x").status
    });
    let forged = ("mote-caller", "forged");
    unforged("OpenFaaS", &call_at(at, "GET", "/function/open", &[forged], b"").body);
    let at = node.platform("nuclio");
    let fields = [("x-nuclio-function-name", "open"), forged];
    unforged("Nuclio", &call_at(at, "GET", "/api/function_invocations", &fields, b"").body);
    check("Nuclio", &keys, &HTTP, ("open", "shut"), |name, key| {
        let mut headers = vec![("x-nuclio-function-name", name)];
        headers.extend(key.map(|key| ("x-api-key", key)));
        call_at(at, "GET", "/api/function_invocations", &headers, b"").status
    });
    wait_for("the accepted calls", || {
        let seen = node.json(&["describe", "shut", "-o", "json"]);
        // There was one call through each of the two fronts that answer, and one accepted call.
        (seen["requests"]["total"] == 3).then_some(())
    });
}

#[test]
fn the_fronts_of_tinyfaas_ask_for_keys() {
    let (node, keys) = start(&[
        "--tinyfaas",
        ":0",
        "--tinyfaas-http",
        ":0",
        "--tinyfaas-coap",
        ":0",
        "--tinyfaas-grpc",
        ":0",
    ]);
    let at = node.platform("tinyfaas http");
    check("tinyFaaS", &keys, &HTTP, ("/open", "/shut"), |path, key| http(at, path, key));
    unforged("tinyFaaS", &call_at(at, "GET", "/open", &[("mote-caller", "forged")], b"").body);
    let accepted = Expected { done: 202, ..HTTP };
    check("tinyFaaS, later", &keys, &accepted, ("/open", "/shut"), |path, key| {
        let mut headers = vec![("x-tinyfaas-async", "1")];
        headers.extend(key.map(|key| ("x-api-key", key)));
        call_at(at, "POST", path, &headers, b"x").status
    });
    let at = node.platform("tinyfaas coap");
    check("tinyFaaS over CoAP", &keys, &COAP, ("open", "shut"), |name, key| {
        coap(at, name, key).0.into()
    });
    let at = node.platform("tinyfaas grpc");
    check("tinyFaaS over gRPC", &keys, &GRPC, ("open", "shut"), |name, key| {
        grpc(at, name, key, "")
    });
    check("tinyFaaS over gRPC, later", &keys, &GRPC, ("open", "shut"), |name, key| {
        grpc(at, name, key, "x-tinyfaas-async: 1")
    });
}

/// Calls tinyFaaS' gRPC method and returns the outcome.
fn grpc(at: SocketAddr, function: &str, key: Option<&str>, field: &str) -> u16 {
    let mut message = vec![0x0a, function.len() as u8];
    message.extend(function.as_bytes());
    message.extend([0x12, 1, b'x']);
    let mut framed = vec![0];
    framed.extend((message.len() as u32).to_be_bytes());
    framed.extend(message);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("message");
    std::fs::write(&file, framed).expect("written");
    let mut command = Command::new("curl");
    command.args(["-s", "--http2-prior-knowledge", "-D", "-", "-o", "/dev/null"]);
    command.args(["-H", "content-type: application/grpc", "-H", "te: trailers"]);
    if !field.is_empty() {
        command.args(["-H", field]);
    }
    if let Some(key) = key {
        command.args(["-H", &format!("authorization: Bearer {key}")]);
    }
    command.arg("--data-binary").arg(format!("@{}", file.display()));
    let url = format!("http://{at}/openfogstack.tinyfaas.tinyfaas.TinyFaaS/Request");
    let output = command.arg(url).output().expect("curl");
    let text = String::from_utf8_lossy(&output.stdout).to_ascii_lowercase();
    assert!(text.starts_with("http/2 200"), "{text}");
    // A failure is reported in the head. After a message, the outcome is in the trailers, which
    // curl does not print. This front sends a message only if the outcome is OK.
    let status = text.lines().find_map(|line| line.strip_prefix("grpc-status: "));
    status.map_or(0, |status| status.trim().parse().expect("a number"))
}

#[test]
fn openwhisk_asks_for_keys() {
    let (node, keys) = start(&["--openwhisk", ":0"]);
    let at = node.platform("openwhisk");
    let auth = basic_auth("guest", &node.token());
    let send = |method: &str, path: &str, key: Option<&str>, body: &Value| {
        let mut headers =
            vec![("authorization", auth.as_str()), ("content-type", "application/json")];
        headers.extend(key.map(|key| ("x-api-key", key)));
        let path = format!("/api/v1/namespaces/_/{path}");
        call_at(at, method, &path, &headers, body.to_string().as_bytes())
    };
    let made = |path: &str, body: &Value| {
        let answer = send("PUT", path, None, body);
        assert!(answer.status < 300, "{path}: {}", answer.text());
    };
    let code = "def main(args):\n    return {'body': args.get('__ow_headers', {}), 'ran': True}\n";
    let web = json!([{ "key": "web-export", "value": true }]);
    for name in ["free", "held"] {
        let exec = json!({ "kind": "python:3", "code": code });
        made(&format!("actions/{name}"), &json!({ "exec": exec, "annotations": web }));
    }
    // OpenWhisk's API cannot say who may call a function. Later changes through the API keep the
    // mode.
    let manifest = KEY.replace("version = 1\n", "version = 1\ncompat = \"openwhisk\"\n");
    node.deploy_ok("held", &[("__main__.py", code), ("mote.toml", &manifest)]);
    let exec = json!({ "kind": "python:3", "code": format!("{code}# changed\n") });
    made("actions/held?overwrite=true", &json!({ "exec": exec, "annotations": web }));
    assert_eq!(node.json(&["describe", "held", "-o", "json"])["access"], "key");
    let both = json!({ "exec": { "kind": "sequence", "components": ["/_/free", "/_/held"] } });
    made("actions/both", &both);
    made("triggers/bell", &json!({}));
    made("rules/rule", &json!({ "trigger": "/_/bell", "action": "/_/held" }));
    made("triggers/whistle", &json!({}));
    made("rules/other", &json!({ "trigger": "/_/whistle", "action": "/_/free" }));
    let good = new_key(&node, &["whisk", "--function", "held"]);
    let keys = Keys { good, ..keys };

    let body = json!({});
    check("actions", &keys, &HTTP, ("free", "held"), |name, key| {
        send("POST", &format!("actions/{name}?blocking=true"), key, &body).status
    });
    let accepted = Expected { done: 202, ..HTTP };
    check("actions, later", &keys, &accepted, ("free", "both"), |name, key| {
        send("POST", &format!("actions/{name}"), key, &body).status
    });
    check("triggers", &keys, &accepted, ("whistle", "bell"), |name, key| {
        send("POST", &format!("triggers/{name}"), key, &body).status
    });
    let web = |name: &str, key: Option<&str>| {
        let mut headers = vec![("mote-caller", "forged")];
        headers.extend(key.map(|key| ("x-api-key", key)));
        call_at(at, "GET", &format!("/api/v1/web/guest/default/{name}.json"), &headers, b"")
    };
    check("web actions", &keys, &HTTP, ("free", "held"), |name, key| web(name, key).status);
    let seen = |name| web(name, Some(&keys.good)).json()["body"].clone();
    assert_eq!(seen("held")["mote-caller"], "whisk");
    assert_eq!(seen("held")["x-api-key"], Value::Null);
    assert_eq!(seen("free")["mote-caller"], Value::Null);
    assert_eq!(seen("free")["x-api-key"], keys.good.as_str());
    // The calls that were accepted with a key have run: an action, and a sequence that contains the
    // action.
    wait_for("the accepted activations", || {
        let list = send("GET", "activations?limit=200", None, &json!({})).json();
        let ran = |name: &str| {
            let all = list.as_array().expect("a list").iter();
            all.filter(|one| one["name"] == name && one["statusCode"] == 0).count()
        };
        (ran("both") == 1 && ran("held") >= 4).then_some(())
    });
}

#[test]
fn a_function_sees_its_caller_and_no_key() {
    let (node, keys) = start(&[]);
    let held = bearer(&keys.good);
    let fields = [("authorization", held.as_str()), ("mote-caller", "forged"), ("x-own", "1")];
    let seen = node.call("GET", "/shut?a=1", &fields, b"").json();
    assert_eq!((&seen["caller"], &seen["headers"]["mote-caller"]), (&json!("web"), &json!("web")));
    assert_eq!(seen["headers"]["x-own"], "1");
    assert!(!seen.to_string().contains(&keys.good), "{seen}");
    // Credentials that are meant for the function itself are passed on.
    let fields = [("authorization", "Bearer own"), ("x-api-key", keys.good.as_str())];
    let seen = node.call("GET", "/shut", &fields, b"").json();
    assert_eq!(seen["headers"]["authorization"], "Bearer own");
    assert_eq!(seen["headers"]["x-api-key"], Value::Null);
    // A public function receives every field except a forged name.
    let fields = [("authorization", held.as_str()), ("mote_caller", "forged")];
    let seen = node.call("GET", "/open", &fields, b"").json();
    assert_eq!(seen["headers"]["authorization"], held.as_str());
    assert_eq!(seen["caller"], Value::Null);
    assert!(!seen.to_string().contains("forged"), "{seen}");
    for function in ["open", "shut"] {
        let seen = node.json(&["invoke", function, "-H", "mote-caller: forged"]);
        assert_eq!((&seen["caller"], &seen["trigger"]), (&Value::Null, &json!("admin")), "{seen}");
    }

    let javascript = "export function handle(event, ctx) { return [event.caller, ctx.caller]; }";
    node.deploy_ok("sock-js", &[("index.mjs", javascript), ("mote.toml", KEY)]);
    let seen = node.call("GET", "/sock-js", &[("x-api-key", &keys.good)], b"").json();
    assert_eq!(seen, json!(["web", "web"]));
    assert_eq!(node.json(&["invoke", "sock-js"]), json!([null, null]));
}

#[test]
fn a_refused_request_costs_the_function_nothing() {
    let (node, keys) = start(&[]);
    // The body never arrives. The node refuses without waiting for it.
    let mut stream = TcpStream::connect(node.http).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let head = "POST /shut HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("sent");
    let mut line = [0; 12];
    stream.read_exact(&mut line).expect("an answer");
    assert_eq!(&line, b"HTTP/1.1 401");

    let prefer = ("prefer", "respond-async");
    let later = |key: Option<&str>| {
        let mut headers = vec![prefer];
        headers.extend(key.map(|key| ("x-api-key", key)));
        node.call("POST", "/shut", &headers, b"x")
    };
    assert_eq!(later(None).status, 401);
    assert_eq!(later(Some(&keys.bad[0])).status, 401);
    assert_eq!(later(Some(&keys.other)).status, 403);
    assert_eq!(node.json(&["invocation", "list", "-o", "json"])["invocations"], json!([]));
    let seen = node.json(&["describe", "shut", "-o", "json"]);
    assert_eq!(seen["requests"]["total"], 0, "{seen}");
    assert_eq!(seen["requests"]["cold_starts"], 0, "{seen}");

    let accepted = later(Some(&keys.good));
    assert_eq!(accepted.status, 202);
    let place = accepted.header("location").expect("a place").to_owned();
    let look = |key: Option<&str>| -> Answer {
        let headers: Vec<_> = key.map(|key| ("x-api-key", key)).into_iter().collect();
        node.call("GET", &format!("{place}/result"), &headers, b"")
    };
    for key in [None, Some(&keys.other), Some(&keys.bad[0])] {
        assert_eq!(look(key.map(String::as_str)).status, 404, "{key:?}");
    }
    let result = wait_for("the result", || {
        Some(look(Some(&keys.good))).filter(|answer| answer.status == 200)
    });
    assert_eq!(result.json()["caller"], "web");
    assert!(!result.text().contains(&keys.good), "{}", result.text());
    let open = node.call("POST", "/open", &[prefer], b"x");
    let place = open.header("location").expect("a place").to_owned();
    wait_for("the public result", || {
        let answer = node.get(&format!("{place}/result"));
        (answer.status == 200).then_some(())
    });
}

#[test]
fn nothing_inside_of_the_node_is_asked() {
    let node = Node::start();
    let manifest = format!("{KEY}[[trigger]]\nevery = \"1s\"\n");
    node.deploy_ok("shut", &[("app.py", TELLS), ("mote.toml", &manifest)]);
    let calls = "def handle(event, ctx):\n    return ctx.call('shut', b'').body\n";
    let allowed = "version = 1\n[allow]\nfunctions = [\"shut\"]\n";
    node.deploy_ok("calls", &[("app.py", calls), ("mote.toml", allowed)]);
    assert_eq!(node.get("/shut").status, 401);
    assert_eq!(node.json(&["invoke", "shut"])["trigger"], "admin");
    let seen = node.get("/calls").json();
    assert_eq!((&seen["trigger"], &seen["caller"]), (&json!("function"), &Value::Null));
    wait_for("a run of the schedule", || {
        let all = node.json(&["schedules", "-o", "json"]);
        (all["schedules"][0]["last"]["state"] == "succeeded").then_some(())
    });
}

#[test]
fn keys_survive_a_restart_and_are_replaced() {
    let (node, keys) = start(&[]);
    let call = |node: &Node, key: &str| http(node.http, "/shut", Some(key));
    let listed = node.json(&["key", "list", "-o", "json"]);
    let names: Vec<_> = listed["keys"].as_array().expect("a list").iter().collect();
    let names: Vec<_> = names.iter().map(|key| key["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["else", "late", "web"]);
    assert!(!listed.to_string().contains("mote_"), "{listed}");
    assert_eq!(listed["keys"][2]["functions"], json!(["shut", "sock*"]));

    let node = node.stop_and_restart();
    assert_eq!(call(&node, &keys.good), 200);
    assert_eq!(call(&node, &keys.other), 403);
    let rotated = node.ok(&["key", "rotate", "web", "--grace", "1h"]).trim_end().to_owned();
    assert_eq!((call(&node, &rotated), call(&node, &keys.good)), (200, 200), "during the grace");
    let node = node.crash_and_restart();
    assert_eq!((call(&node, &rotated), call(&node, &keys.good)), (200, 200), "after a restart");
    let last = node.ok(&["key", "rotate", "web"]).trim_end().to_owned();
    assert_eq!(call(&node, &last), 200);
    assert_eq!((call(&node, &rotated), call(&node, &keys.good)), (401, 401), "both are replaced");
    node.ok(&["key", "revoke", "web", "--yes"]);
    assert_eq!(call(&node, &last), 401);

    for (arguments, code) in [
        (["rotate", "web"].as_slice(), "M0418"),
        (&["revoke", "web", "--yes"], "M0418"),
        (&["create", "else"], "M0419"),
        (&["create", ".x"], "M0303"),
        (&["create", "x", "--function", "a*b"], "M0303"),
        (&["create", "x", "--expires", "soon"], "M0101"),
        (&["revoke", "else"], "M0101"),
    ] {
        let output = node.mote(&[&["key"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(code), "{arguments:?}: {said}");
    }
    assert_eq!(node.manage("POST", "/v1/keys", "{\"name\":\"x\",\"more\":1}").0, 422);
}

#[test]
fn guesses_are_slowed_down_and_right_keys_are_not() {
    let (node, keys) = start(&[]);
    let mut connection = Connection::open(node.http);
    let mut send = |key: &str| connection.call("GET", "/shut", &[("x-api-key", key)], b"");
    let answers: Vec<Answer> = (0..40).map(|_| send(&keys.bad[0])).collect();
    assert!(answers[..10].iter().all(|answer| answer.status == 401));
    let slowed = answers.iter().find(|answer| answer.status == 429).expect("one of them");
    assert_eq!(
        (slowed.header("retry-after"), &slowed.json()["code"]),
        (Some("1"), &json!("M0522"))
    );
    assert_eq!(send(&keys.good).status, 200);
    assert_eq!(node.get("/shut").status, 401, "a request without a key guesses nothing");
    assert_eq!(node.get("/open").status, 200);
}

/// Writes a folder with a public function.
fn folder(node: &Node) -> String {
    let folder = node.dir.path().join("next");
    std::fs::create_dir_all(&folder).expect("a folder");
    for (name, text) in [("app.py", TELLS), ("mote.toml", PUBLIC)] {
        std::fs::write(folder.join(name), text).expect("written");
    }
    folder.display().to_string()
}

/// Flags of a node that is open to other machines in all ways. The caller chooses the ports of
/// HTTPS and of CoAP over TCP, because the announcement of a node does not list them.
fn open_flags(https: u16, coap_tcp: u16) -> Vec<String> {
    let mut flags: Vec<String> = vec!["--lan".into()];
    for (flag, port) in [("--https", https), ("--coap-tcp", coap_tcp)] {
        flags.extend([flag.to_owned(), format!("0.0.0.0:{port}")]);
    }
    for flag in ["openfaas", "nuclio", "openwhisk", "tinyfaas", "tinyfaas-http", "tinyfaas-coap"] {
        flags.extend([format!("--{flag}"), "0.0.0.0:0".to_owned()]);
    }
    flags.extend(["--tinyfaas-grpc".to_owned(), "0.0.0.0:0".to_owned()]);
    flags
}

/// Calls each function at each front of a node. Returns the statuses by front. `host` is the
/// address of the node, and `key` is sent with each call.
fn answers(
    node: &Node,
    host: std::net::Ipv4Addr,
    (https, coap_tcp_port): (u16, u16),
    functions: &[&str],
    key: Option<&str>,
) -> Vec<(&'static str, Vec<u16>)> {
    let at = |port: u16| SocketAddr::from((host, port));
    let platform = |name: &str| at(node.platform(name).port());
    let token = basic_auth("admin", &node.token());
    let plain = at(node.http.port());
    let all = |call: &dyn Fn(&str) -> u16| functions.iter().map(|name| call(name)).collect();
    let held = |mut headers: Vec<(&'static str, String)>| {
        headers.extend(key.map(|key| ("x-api-key", key.to_owned())));
        headers
    };
    let send = |at: SocketAddr, method: &str, path: &str, headers: Vec<(&str, String)>| {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        call_at(at, method, path, &headers, b"{}").status
    };
    let authorized = || held(vec![("authorization", token.clone())]);
    vec![
        ("HTTP/1.1", all(&|name| http(plain, &format!("/{name}"), key))),
        (
            "HTTP/2",
            all(&|name| curl(&format!("http://{plain}/{name}"), &["--http2-prior-knowledge"], key)),
        ),
        ("HTTPS", all(&|name| curl(&format!("https://{}/{name}", at(https)), &[], key))),
        ("WebSocket", all(&|name| websocket(plain, &format!("/ws-{name}"), key))),
        ("CoAP", all(&|name| coap(at(node.coap.port()), name, key).0.into())),
        ("CoAP over TCP", all(&|name| coap_tcp(at(coap_tcp_port), name, key).into())),
        ("tinyFaaS", all(&|name| http(platform("tinyfaas http"), &format!("/{name}"), key))),
        ("tinyFaaS, CoAP", all(&|name| coap(platform("tinyfaas coap"), name, key).0.into())),
        ("tinyFaaS, gRPC", all(&|name| grpc(platform("tinyfaas grpc"), name, key, ""))),
        (
            "OpenFaaS",
            all(&|name| {
                let path = format!("/function/{name}");
                send(platform("openfaas"), "GET", &path, authorized())
            }),
        ),
        (
            "OpenFaaS, later",
            all(&|name| {
                let path = format!("/async-function/{name}");
                send(platform("openfaas"), "POST", &path, authorized())
            }),
        ),
        (
            "Nuclio",
            all(&|name| {
                let mut headers = authorized();
                headers.push(("x-nuclio-function-name", name.to_owned()));
                send(platform("nuclio"), "GET", "/api/function_invocations", headers)
            }),
        ),
        (
            "OpenWhisk",
            all(&|name| {
                let path = format!("/api/v1/namespaces/_/actions/ow-{name}?blocking=true");
                send(platform("openwhisk"), "POST", &path, authorized())
            }),
        ),
        (
            "OpenWhisk, later",
            all(&|name| {
                let path = format!("/api/v1/namespaces/_/actions/ow-{name}");
                send(platform("openwhisk"), "POST", &path, authorized())
            }),
        ),
    ]
}

/// The statuses by which a front reports a call that ran, a call without a key, and a call that is
/// not allowed.
fn statuses(front: &str) -> [u16; 3] {
    match front {
        "WebSocket" => [101, 401, 403],
        "CoAP" | "CoAP over TCP" | "tinyFaaS, CoAP" => [COAP.done, COAP.no_key, COAP.other_key],
        "tinyFaaS, gRPC" => [GRPC.done, GRPC.no_key, GRPC.other_key],
        "OpenFaaS, later" | "OpenWhisk, later" => [202, 401, 403],
        _ => [200, 401, 403],
    }
}

#[test]
fn other_machines_call_only_what_is_open() {
    if !is_root() {
        return skip("calls from another machine", "needs root");
    }
    let Some(far) = Far::new() else {
        return skip("calls from another machine", "cannot make a network namespace");
    };
    let modes = [("open", PUBLIC), ("shut", KEY), ("unset", UNSET), ("inner", LOCAL)];
    let names = modes.map(|(name, _)| name);
    let ran = |expected: [u16; 3], which: [usize; 4]| which.map(|one| expected[one]).to_vec();
    let loopback = std::net::Ipv4Addr::LOCALHOST;
    // The outcome of calls without a key for each setting, from this machine and from another
    // machine. 0 is an answer of the function, 1 is a refusal for lack of a key, and 2 is a refusal
    // because of where the sender is.
    for (access, near, away) in [
        ("local", [0, 1, 0, 0], [0, 1, 2, 2]),
        ("public", [0, 1, 0, 0], [0, 1, 0, 2]),
        ("key", [0, 1, 1, 0], [0, 1, 1, 2]),
    ] {
        let ports = (free_address().port(), free_address().port());
        let mut flags = open_flags(ports.0, ports.1);
        flags.extend(["--access".to_owned(), access.to_owned()]);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let node = Node::start_with(&flags);
        for (name, manifest) in modes {
            let output = node.deploy(name, &[("app.py", TELLS), ("mote.toml", manifest)]);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{said}");
            let hint = "other machines cannot call unset; to open it, deploy it with a mote.toml";
            assert_eq!(said.contains(hint), name == "unset" && access == "local", "{said}");
            node.deploy_ok(&format!("ws-{name}"), &[("app.py", SOCKETS), ("mote.toml", manifest)]);
            let manifest =
                manifest.replace("version = 1\n", "version = 1\ncompat = \"openwhisk\"\n");
            let code = "def main(args):\n    return {'ran': True}\n";
            let action = json!({ "exec": { "kind": "python:3", "code": code } }).to_string();
            let auth = basic_auth("admin", &node.token());
            let fields = [("authorization", auth.as_str()), ("content-type", "application/json")];
            let path = format!("/api/v1/namespaces/_/actions/ow-{name}");
            let at = SocketAddr::from((loopback, node.platform("openwhisk").port()));
            let made = call_at(at, "PUT", &path, &fields, action.as_bytes());
            assert_eq!(made.status, 200, "{}", made.text());
            node.deploy_ok(
                &format!("ow-{name}"),
                &[("__main__.py", code), ("mote.toml", &manifest)],
            );
        }
        let here = answers(&node, loopback, ports, &names, None);
        for (front, seen) in here {
            assert_eq!(seen, ran(statuses(front), near), "{access}: {front} from this machine");
        }
        // A call to this machine's address in the network counts as a call from another machine.
        for (front, seen) in answers(&node, far.near, ports, &names, None) {
            assert_eq!(seen, ran(statuses(front), away), "{access}: {front} from its own address");
        }
        let there = far.run(|| answers(&node, far.near, ports, &names, None));
        for (front, seen) in there {
            assert_eq!(seen, ran(statuses(front), away), "{access}: {front} from another machine");
        }
        // A key opens the functions that ask for a key, and no others.
        let key = new_key(&node, &["all"]);
        let there = far.run(|| answers(&node, far.near, ports, &names, Some(&key)));
        let with_key = away.map(|one| if one == 1 { 0 } else { one });
        for (front, seen) in there {
            assert_eq!(seen, ran(statuses(front), with_key), "{access}: {front} with a key");
        }
        let links = |node: &Node| {
            let links = Command::new(coap_client().expect("libcoap"))
                .args(["-m", "get", "-B", "20"])
                .arg(format!("coap://{}:{}/.well-known/core", far.near, node.coap.port()))
                .output();
            String::from_utf8_lossy(&links.expect("coap-client").stdout).into_owned()
        };
        let shown = far.run(|| links(&node));
        for ((name, _), seen) in modes.into_iter().zip(away) {
            assert_eq!(shown.contains(&format!("</{name}>")), seen != 2, "{name}: {shown}");
        }
        let doctor = serde_json::from_str::<Value>(&node.doctor(&["-o", "json"])).expect("JSON");
        let who = |what: &str| {
            let all = doctor["reach"].as_array().expect("a list").iter();
            all.filter(|one| one["what"] == what).map(|one| one["who"].clone()).next()
        };
        assert_eq!(who("function open"), Some(json!("everyone")), "{doctor}");
        assert_eq!(who("function shut"), Some(json!("callers with a key")), "{doctor}");
        assert_eq!(who("function inner"), Some(json!("this machine only")), "{doctor}");
        let unset = match access {
            "public" => "everyone",
            "key" => "callers with a key",
            _ => "this machine only, because its mote.toml has no [access]",
        };
        assert_eq!(who("function unset"), Some(json!(unset)), "{doctor}");
        let metrics = Command::new("curl")
            .args(["-s", "--unix-socket", &node.dir.path().join("s").display().to_string()])
            .arg("http://mote/metrics")
            .output()
            .expect("curl");
        let metrics = String::from_utf8_lossy(&metrics.stdout).into_owned();
        let refused = "mote_refused_calls_total{code=\"M0523\"} ";
        let count = metrics.lines().find_map(|line| line.strip_prefix(refused));
        assert!(count.is_some_and(|count| count != "0"), "{metrics}");
        let lines = node.log().lines().filter(|line| line.contains("a call was refused")).count();
        assert!((2..40).contains(&lines), "{lines} lines: {}", node.log());
        // The same holds for results of calls that this machine has accepted.
        let prefer = [("prefer", "respond-async")];
        let accepted = node.call("POST", "/inner", &prefer, b"x");
        assert_eq!(accepted.status, 202, "{}", accepted.text());
        let place = accepted.header("location").expect("a place").to_owned();
        let at = SocketAddr::from((far.near, node.http.port()));
        for path in [place.clone(), format!("{place}/result")] {
            assert_eq!(far.run(|| http(at, &path, None)), 404, "{path}");
        }
        wait_for("the result", || (node.get(&place).status == 200).then_some(()));
        // An open revision counts too, even if it can be reached only by a tag.
        if access == "local" {
            node.ok(&["deploy", "--tag", "next", "--name", "inner", &folder(&node)]);
            let doctor = node.doctor(&[]);
            assert!(doctor.contains("this machine only (@1); everyone (@2)"), "{doctor}");
            let at = SocketAddr::from((far.near, node.http.port()));
            assert_eq!(far.run(|| http(at, "/inner@next", None)), 200);
            assert_eq!(far.run(|| http(at, "/inner", None)), 403);
        }
        assert!(
            node.announcement.contains("  reach  the local network:\n"),
            "{}",
            node.announcement
        );
    }
}

#[test]
fn a_node_that_only_this_machine_reaches_shows_who_may_call_functions() {
    let node = Node::start();
    node.deploy_ok("unset", &[("app.py", TELLS)]);
    let doctor = serde_json::from_str::<Value>(&node.doctor(&["-o", "json"])).expect("JSON");
    assert_eq!(doctor["reach"], Value::Null, "{doctor}");
    let who = "this machine only, because its mote.toml has no [access]";
    assert_eq!(doctor["functions"], json!([{ "what": "function unset", "who": who }]), "{doctor}");
    let said = node.doctor(&[]);
    assert!(said.contains("Who may call functions, from this machine alone:\n"), "{said}");
    assert_eq!(node.json(&["describe", "unset", "-o", "json"])["access"], "local");
    assert_eq!(node.get("/unset").status, 200);
    let wrong = Command::new(mote_tests::mote_binary())
        .args(["config", "check", "--access", "everyone"])
        .output()
        .expect("the binary starts");
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(said.contains("access: local, public or key; found \"everyone\""), "{said}");
}

#[test]
fn functions_of_other_platforms_say_who_may_call_them() {
    let node = Node::start();
    let stack = "version: 1.0\nprovider: {name: openfaas}\nfunctions:\n  guarded:\n    \
                 lang: python3\n    handler: ./code\n    annotations: {mote/access: key}\n";
    let files =
        |stack: &str| node.deploy("guarded", &[("stack.yml", stack), ("code/handler.py", HANDLER)]);
    let deployed = files(stack);
    assert!(deployed.status.success(), "{deployed:?}");
    assert_eq!(node.get("/guarded").status, 401);
    let folder = node.dir.path().join("src/guarded");
    node.ok(&["deploy", folder.to_str().expect("UTF-8"), "--access", "public"]);
    assert_eq!(node.get("/guarded").status, 200);

    let deployed = files(&stack.replace("key", "keys"));
    let said = String::from_utf8_lossy(&deployed.stderr).into_owned();
    assert!(
        said.contains("mote/access: `keys` is not public, key, basic, mtls or local"),
        "{said}"
    );
    assert!(!said.contains("ignored"), "{said}");
    assert!(node.ok(&["describe", "guarded"]).contains("local"), "closed rather than open");
    let folder = folder.to_str().expect("UTF-8");
    let wrong = node.mote(&["deploy", folder, "--access", "anyone"]);
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(said.contains("anyone") && said.contains("public, key, basic, mtls, local"), "{said}");
}
