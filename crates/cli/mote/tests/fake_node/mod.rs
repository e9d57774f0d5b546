//! A node with a few fixed functions, for tests of the command line.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Starts a server that answers as a node would.
pub(crate) fn start(socket: &Path) {
    serve(socket, |stream| {
        let Some((method, path, sent)) = read_request(stream) else {
            return;
        };
        let (status, kind, body) = answer(&method, &path, &sent);
        let fault = if kind == PROBLEM && path.ends_with("/invoke") {
            "mote-fault: x\r\n"
        } else {
            "mote-invocation: 01ABC\r\n"
        };
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{fault}content-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(body.as_bytes());
    });
}

/// Starts a server that accepts connections and never answers.
pub(crate) fn start_mute(socket: &Path) {
    serve(socket, |stream| {
        let mut sink = Vec::new();
        let _ = stream.read_to_end(&mut sink);
    });
}

/// Starts a server that answers in another protocol.
pub(crate) fn start_garbage(socket: &Path) {
    serve(socket, |stream| {
        let _ = read_request(stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello");
    });
}

fn serve(socket: &Path, handle: fn(&mut UnixStream)) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            handle(&mut stream.unwrap());
        }
    });
}

/// Reads a whole request. Returns its method, its target, and its body as far as the body is text.
fn read_request(stream: &mut UnixStream) -> Option<(String, String, String)> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        match stream.read(&mut buffer).ok()? {
            0 => return None,
            count => bytes.extend_from_slice(&buffer[..count]),
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let length: usize = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |value| value.trim().parse().unwrap());
    while bytes.len() < end + length {
        let count = stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&buffer[..count]);
    }
    let body = String::from_utf8_lossy(&bytes[end..]).into_owned();
    let line = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut words = line.split(' ');
    Some((words.next()?.to_owned(), words.next()?.to_owned(), body))
}

const SPLIT: &str = r#"[{"revision":3,"percent":90},{"revision":4,"percent":10,"tag":"next"}]"#;

/// Hashes of code that are as long as real ones.
const REVISIONS: [&str; 3] = [
    r#"{"revision":4,"state":"live","percent":10,"tag":"next","created_at":"2026-01-31T12:00:00Z","age_ms":90000,"code":"0123456789abcdef0123456789abcdef"}"#,
    r#"{"revision":3,"state":"live","percent":90,"created_at":"2026-01-30T12:00:00Z","age_ms":86490000,"code":"fedcba9876543210fedcba9876543210"}"#,
    r#"{"revision":2,"state":"added","percent":0,"created_at":"2026-01-01T12:00:00Z","age_ms":2592090000,"code":"00112233445566778899aabbccddeeff"}"#,
];

fn moved(revision: u64, previous: u64, traffic: &str) -> (u16, &'static str, String) {
    let body = format!(
        r#"{{"function":"hello","revision":{revision},"previous":{previous},"traffic":{traffic},"steps":[{{"name":"start","detail":"hello@{revision}","ms":120}}]}}"#
    );
    (200, JSON, body)
}

const PROBLEM: &str = "application/problem+json";
const JSON: &str = "application/json";

fn problem(status: u16, code: &str, detail: &str, hint: &str) -> (u16, &'static str, String) {
    let body = format!(
        r#"{{"type":"urn:mote:error:{code}","title":"t","status":{status},"code":"{code}","detail":"{detail}"{}}}"#,
        if hint.is_empty() { String::new() } else { format!(r#","hint":"{hint}""#) }
    );
    (status, PROBLEM, body)
}

fn function(name: &str, url: &str) -> String {
    format!(
        r#"{{"name":"{name}","runtime":"python","revision":3,"state":"ready","instances":[{{"id":"i1","state":"ready","pid":42,"memory_bytes":12582912,"started_at":"2026-01-31T12:00:00Z"}}],"urls":{url},"limits":{{"memory_bytes":67108864,"pids":64,"timeout_ms":10000,"init_timeout_ms":10000,"body_bytes":6291456,"disk_bytes":16777216,"instances_min":0,"idle_timeout_ms":300000,"queue":1024}},"created_at":"2026-01-31T12:00:00Z","requests":{{"total":7,"failed":1,"running":0,"queued":0,"cold_starts":1,"p50_ms":0.4,"p99_ms":2.1}},"last_error":{{"time":"2026-01-31T12:00:01Z","code":"M0510","message":"ValueError: no\u001b[2J"}}}}"#
    )
}

fn answer(method: &str, target: &str, body: &str) -> (u16, &'static str, String) {
    let path = target.split('?').next().unwrap();
    let name = path.split('/').nth(3).unwrap_or_default();
    let verb = path.split('/').nth(4).unwrap_or_default();
    let urls = r#"{"http":"http://127.0.0.1:6683/hello","coap":"coap://127.0.0.1/hello"}"#;
    match (method, name, verb) {
        ("GET", "", _) if path == "/v1/secrets" => {
            (200, JSON, r#"{"secrets":[{"name":"api-key","functions":["hello"]},{"name":"spare"}]}"#.to_owned())
        }
        ("DELETE", "termo", _) if path.starts_with("/v1/secrets/") => {
            problem(404, "M0415", "no secret named termo", "list the secrets: mote secret list")
        }
        ("POST", "", _) if path == "/v1/keys" => {
            problem(409, "M0419", "there is a key named web already", "replace it: mote key rotate web")
        }
        (_, "termo", _) if path.starts_with("/v1/keys/") => {
            problem(404, "M0418", "no key named termo", "list the keys: mote key list")
        }
        _ if path == "/v1/status" => (
            200,
            JSON,
            r#"{"version":"0.1.0","pid":42,"uptime_ms":1,"lan":false,"data_dir":"/srv/mote","functions":2,"instances":1,"memory_bytes":8388608}"#.to_owned(),
        ),
        _ if path == "/v1/doctor" => (
            200,
            JSON,
            r#"{"checks":[{"name":"kernel","state":"ok","detail":"6.1"},{"name":"memory","state":"warn","detail":"no memory cgroup","hint":"add cgroup_enable=memory to the kernel command line"},{"name":"namespaces","state":"fail","detail":"user namespaces are off"}]}"#.to_owned(),
        ),
        ("GET", "", "") => {
            let list = format!(r#"{{"functions":[{},{}]}}"#, function("hello", urls), function("quiet", "{}"));
            (200, JSON, list)
        }
        ("GET", "hello", "") => (200, JSON, function("hello", urls)),
        ("GET", "split", "") => {
            let traffic = format!(r#"{{"traffic":{SPLIT},"#);
            (200, JSON, function("split", urls).replacen('{', &traffic, 1))
        }
        ("GET", "hello", "revisions") => (200, JSON, format!(r#"{{"function":"hello","revisions":[{}]}}"#, REVISIONS.join(","))),
        ("POST", "hello", "rollback") if target.contains("=9") => problem(404, "M0412", "hello has no revision 9", "list the revisions: mote revisions hello"),
        ("POST", "first", "rollback") => problem(404, "M0412", "first has no earlier live revision", "list the revisions: mote revisions first"),
        ("POST", "hello", "rollback") => moved(2, 3, r#"[{"revision":2,"percent":100}]"#),
        ("PUT", "busy", "traffic") => problem(409, "M1405", "another deploy of busy is running", "try again when it has ended"),
        ("PUT", "hello", "traffic") if body.contains("next") => moved(3, 3, SPLIT),
        ("PUT", "hello", "traffic") => problem(422, "M0413", "shares add up to 90 %, not 100 %", ""),
        ("POST", "hello%40old", _) => problem(404, "M0501", "hello has no tag `old`", "its tags: next"),
        ("PUT", "fresh", "") => problem(409, "M0413", "fresh has no live revision that could receive the traffic", "deploy it first without --tag and --no-traffic"),
        ("PUT", "hello", "") if target.contains("tag=next") || target.contains("no_traffic") => {
            let traffic = if target.contains("tag") { SPLIT } else { r#"[{"revision":3,"percent":100}]"# };
            let urls = urls.replace("hello\"", "hello@next\"");
            (201, JSON, format!(r#"{{"function":"hello","revision":4,"previous":3,"held_back":true,"traffic":{traffic},"steps":[],"urls":{urls}}}"#))
        }
        ("GET", "quiet", "") => (200, JSON, function("quiet", "{}")),
        ("GET", "token", "") => problem(401, "M1401", "no token", "put it in MOTE_TOKEN"),
        ("GET", "newer", "") => problem(418, "M9999", "something new", ""),
        ("GET", "hello", "logs") => (200, "application/jsonl", [
            r#"{"time":"2026-01-31T12:00:00Z","level":"info","message":"first","function":"hello","revision":3,"stream":"stdout","invocation":"01ABC"}"#,
            "",
            r#"{"time":"2026-01-31T12:00:01Z","level":"warn","message":"second \u001b[31m","function":"hello","revision":3,"stream":"platform"}"#,
            "",
        ].join("\n")),
        ("POST", "hello", _) => (200, "text/plain", "hello\n".to_owned()),
        ("POST", "teapot", _) => (418, "text/plain", "short and stout\n".to_owned()),
        ("POST", "full", _) => problem(429, "M0504", "full: queue is full, try again later", ""),
        ("POST", "slow", _) => problem(504, "M0509", "slow: deadline of 10000 ms passed while the function ran", ""),
        ("POST", "broken", _) => problem(500, "M0510", "ValueError: no", "see: mote logs broken"),
        ("PUT", "busy", _) => problem(409, "M1405", "another deploy of busy is running", ""),
        ("PUT", "hello", _) => (
            201,
            JSON,
            format!(r#"{{"function":"hello","revision":4,"previous":3,"steps":[{{"name":"start","detail":"1 instance, init 80 ms","ms":80}}],"warnings":["run.sh: set-id and sticky bits were removed"],"urls":{urls}}}"#),
        ),
        ("DELETE", "hello", _) => (204, JSON, String::new()),
        (_, name, _) => problem(404, "M0501", &format!("no function named {name}"), "did you mean `thermo`?"),
    }
}
