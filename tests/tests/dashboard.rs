//! The dashboard: its files, browser sessions, and what another site's page cannot do.

use std::fs::Permissions;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Duration;

use mote_tests::namespaces::{HELLO, deploy_ok, start, token};
use mote_tests::network::Far;
use mote_tests::{
    Answer, Node, PATIENCE, call_at, free_address, is_long, mote_binary, repository, skip,
};

/// A browser with a session.
struct Browser {
    address: SocketAddr,
    cookie: String,
    csrf: String,
}

impl Browser {
    /// Logs in. `proof` is the body of the request.
    fn log_in(address: SocketAddr, proof: &str) -> Self {
        let answer = log_in(address, proof, &[]);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let cookie = answer.header("set-cookie").expect("a cookie");
        let cookie = cookie.split(';').next().expect("a value").to_owned();
        let csrf = answer.json()["csrf"].as_str().expect("text").to_owned();
        Self { address, cookie, csrf }
    }

    /// Logs in with a code that the command line has made.
    fn open(node: &Node) -> Self {
        let (address, code) = code(node);
        Self::log_in(address, &format!("{{\"code\":\"{code}\"}}"))
    }

    /// Sends a request as the dashboard does.
    fn call(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        self.call_with(method, path, &[("mote-csrf", &self.csrf)], body)
    }

    /// Sends a request with the cookie and these fields.
    fn call_with(&self, method: &str, path: &str, more: &[(&str, &str)], body: &[u8]) -> Answer {
        let fields = [&[("cookie", self.cookie.as_str())], more].concat();
        call_at(self.address, method, path, &fields, body)
    }

    fn get(&self, path: &str) -> Answer {
        self.call_with("GET", path, &[], b"")
    }
}

fn log_in(address: SocketAddr, proof: &str, more: &[(&str, &str)]) -> Answer {
    let fields = [&[("content-type", "application/json")], more].concat();
    call_at(address, "POST", "/v1/session", &fields, proof.as_bytes())
}

fn with_token(token: &str) -> String {
    format!("{{\"token\":\"{token}\"}}")
}

/// Runs `mote dashboard`. Returns the address of the dashboard and the code.
fn code(node: &Node) -> (SocketAddr, String) {
    let url = node.ok(&["dashboard", "-o", "name"]);
    let rest = url.trim().strip_prefix("http://").expect("an address");
    let (address, code) = rest.split_once("/dashboard/#code=").expect("a code");
    (address.parse().expect("an address"), code.to_owned())
}

fn assert_refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{}", answer.text());
    assert_eq!(answer.json()["code"], code, "{}", answer.text());
}

#[test]
fn a_browser_on_the_nodes_machine_needs_no_settings() {
    let node = Node::start();
    let browser = Browser::open(&node);
    assert!(browser.address.ip().is_loopback());
    let session = browser.get("/v1/session").json();
    assert_eq!((session["role"].as_str(), session.get("namespace")), (Some("operator"), None));
    assert!(session["name"].as_str().expect("a name").starts_with("user "));
    assert_eq!(session["csrf"].as_str(), Some(browser.csrf.as_str()));
    assert_eq!(browser.get("/v1/status").status, 200);
    assert_eq!(browser.call("PUT", "/v1/secrets/password", b"value").status, 201);
    // A second browser uses the same listener. Both sessions go on.
    let second = Browser::open(&node);
    assert_eq!((second.address, browser.get("/v1/status").status), (browser.address, 200));
    assert_ne!(second.cookie, browser.cookie);

    assert_eq!(browser.call("DELETE", "/v1/session", b"").status, 204);
    assert_refused(&browser.get("/v1/session"), 401, "M1401");
    assert_refused(&browser.get("/v1/status"), 401, "M1401");
    assert_eq!(second.get("/v1/status").status, 200, "the other session goes on");

    let record = node.ok(&["audit", "-o", "jsonl"]);
    for act in ["POST /v1/session/code", "POST /v1/session\"", "DELETE /v1/session\""] {
        assert!(record.contains(act), "{act} is not in {record}");
    }
    let secret = second.cookie.split_once('=').expect("a value").1;
    for text in [record, node.log()] {
        assert!(!text.contains(secret) && !text.contains(&second.csrf), "{text}");
    }
    let node = node.stop_and_restart();
    let third = Browser::open(&node);
    let stale = Browser { address: third.address, ..second };
    assert_refused(&stale.get("/v1/status"), 401, "M1401");
}

#[test]
fn a_code_works_once_and_for_a_minute() {
    let node = Node::start();
    let (address, code) = code(&node);
    let proof = format!("{{\"code\":\"{code}\"}}");
    Browser::log_in(address, &proof);
    let again = log_in(address, &proof, &[]);
    assert_refused(&again, 401, "M1401");
    assert!(again.text().contains("was used already"), "{}", again.text());
    assert!(!node.log().contains(&code) && !node.ok(&["audit"]).contains(&code));
    for wrong in ["", "{}", "null", "{\"code\":1}", "{\"code\":\"a\",\"token\":\"b\"}"] {
        assert_refused(&log_in(address, wrong, &[]), 422, "M1403");
    }
    assert_eq!(log_in(address, &"x".repeat(100_000), &[]).status, 413);
    // A form of another site's page can send this.
    let plain = [("content-type", "text/plain")];
    let answer = call_at(address, "POST", "/v1/session", &plain, proof.as_bytes());
    assert_refused(&answer, 415, "M1403");
    if is_long() {
        let (address, code) = self::code(&node);
        // Measured: a code that is tried before it expires would be used up.
        std::thread::sleep(Duration::from_secs(61));
        let late = log_in(address, &format!("{{\"code\":\"{code}\"}}"), &[]);
        assert_refused(&late, 401, "M1401");
    }
}

#[test]
fn a_session_has_the_rights_of_its_token_and_ends_with_it() {
    let admin = free_address();
    let node = Node::start_with(&["--admin", &admin.to_string()]);
    node.deploy_ok("hello", &[("app.py", HELLO)]);
    let reader = token(&node, "reader", "viewer", None);
    let viewer = Browser::log_in(admin, &with_token(&reader));
    let owner = Browser::log_in(admin, &with_token(&node.token()));
    assert_eq!(viewer.get("/v1/session").json()["role"], "viewer");
    assert_eq!(owner.get("/v1/session").json()["name"], "admin.token");
    assert_eq!(viewer.get("/v1/functions/hello").status, 200);
    assert_refused(&viewer.call("DELETE", "/v1/functions/hello", b""), 403, "M1407");
    assert_refused(&viewer.get("/v1/audit"), 403, "M1407");
    assert_eq!(owner.get("/v1/audit").status, 200);

    // A code that the session makes has the same rights. A token takes precedence over a cookie.
    let made = viewer.call("POST", "/v1/session/code", b"").json();
    let url = made["url"].as_str().expect("an address");
    assert!(url.starts_with(&format!("http://{admin}/dashboard/#code=")), "{url}");
    let proof = format!("{{\"code\":{}}}", made["code"]);
    let second = Browser::log_in(admin, &proof);
    assert_eq!(second.get("/v1/session").json()["name"], "reader");
    // Sessions and codes that a session has begun end when it logs out.
    let third = Browser::log_in(admin, &with_token(&reader));
    let proof = || {
        let made = third.call("POST", "/v1/session/code", b"").json();
        format!("{{\"code\":{}}}", made["code"])
    };
    let (fourth, unused) = (Browser::log_in(admin, &proof()), proof());
    let followed = follow(&fourth);
    assert_eq!(third.call("DELETE", "/v1/session", b"").status, 204);
    assert_refused(&fourth.get("/v1/functions"), 401, "M1401");
    assert_ends(followed);
    assert_refused(&log_in(admin, &unused, &[]), 401, "M1401");
    let wrong = [("authorization", "Bearer wrong")];
    assert_refused(&owner.call_with("GET", "/v1/status", &wrong, b""), 401, "M1401");
    let bearer = format!("Bearer {reader}");
    let fields = [("authorization", bearer.as_str()), ("mote-csrf", &owner.csrf)];
    let as_reader = owner.call_with("DELETE", "/v1/functions/hello", &fields, b"");
    assert_refused(&as_reader, 403, "M1407");

    let followed = follow(&viewer);
    node.ok(&["token", "revoke", "reader", "--yes"]);
    for browser in [&viewer, &second] {
        assert_refused(&browser.get("/v1/functions"), 401, "M1401");
    }
    assert_ends(followed);
    assert_eq!(owner.get("/v1/functions").status, 200);

    // Wrong tokens at the login count like wrong bearer tokens. Right tokens are not slowed down.
    let tries = (0..40).map(|_| log_in(admin, &with_token("wrong"), &[]).status);
    assert_eq!(tries.max(), Some(429));
    let wrong = call_at(admin, "GET", "/v1/status", &[("authorization", "Bearer wrong")], b"");
    assert_eq!(wrong.status, 429);
    Browser::log_in(admin, &with_token(&node.token()));
}

#[test]
fn the_log_that_a_page_follows_ends_with_the_session() {
    let node = Node::start();
    node.deploy_ok("hello", &[("app.py", HELLO)]);
    let browser = Browser::open(&node);
    let followed = follow(&browser);
    assert_eq!(browser.call("DELETE", "/v1/session", b"").status, 204);
    assert_ends(followed);
}

/// Follows the log of the function `hello`. Returns once the answer has begun.
fn follow(browser: &Browser) -> TcpStream {
    let Browser { address, cookie, .. } = browser;
    let mut stream = TcpStream::connect(address).expect("the node listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let path = "/v1/functions/hello/logs?follow=true";
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nCookie: {cookie}\r\n\r\n")
        .expect("sent");
    let mut begin = [0; 15];
    stream.read_exact(&mut begin).expect("an answer");
    assert_eq!(&begin, b"HTTP/1.1 200 OK");
    stream
}

fn assert_ends(mut followed: TcpStream) {
    // An answer that is cut off may also end with an error.
    let ended = followed.read_to_end(&mut Vec::new());
    let is_late = ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    assert!(!is_late, "the answer goes on");
}

#[test]
fn pages_of_others_cannot_use_a_session() {
    let node = Node::start();
    let browser = Browser::open(&node);
    let csrf = ("mote-csrf", browser.csrf.as_str());
    let put = |fields: &[(&str, &str)]| browser.call_with("PUT", "/v1/secrets/a", fields, b"value");
    for fields in [
        &[][..],
        &[("mote-csrf", "")],
        &[("mote-csrf", "wrong")],
        &[csrf, csrf],
        &[csrf, ("sec-fetch-site", "cross-site")],
        &[csrf, ("sec-fetch-site", "same-site")],
        &[csrf, ("sec-fetch-site", "none")],
        &[csrf, ("host", "evil.example")],
        &[csrf, ("host", "192.0.2.1:6684")],
    ] {
        let answer = put(fields);
        // The name of the cookie contains the port of the host, so some are simply unknown.
        assert!(matches!(answer.status, 401 | 403), "{fields:?}: {}", answer.text());
    }
    assert_refused(&put(&[]), 403, "M1410");
    assert_eq!(put(&[csrf, ("sec-fetch-site", "same-origin")]).status, 201);
    let get = |fields: &[(&str, &str)]| browser.call_with("GET", "/v1/status", fields, b"");
    for site in ["same-origin", "none"] {
        assert_eq!(get(&[("sec-fetch-site", site)]).status, 200, "{site}");
    }
    for site in ["cross-site", "same-site"] {
        assert_refused(&get(&[("sec-fetch-site", site)]), 403, "M1410");
    }
    // Somebody else's host name that leads to loopback (DNS rebinding).
    let port = browser.address.port();
    let evil = format!("evil.example:{port}");
    assert_refused(&get(&[("host", &evil)]), 403, "M1410");
    let (_, code) = code(&node);
    let proof = format!("{{\"code\":\"{code}\"}}");
    for field in [("host", evil.as_str()), ("sec-fetch-site", "cross-site")] {
        assert_refused(&log_in(browser.address, &proof, &[field]), 403, "M1410");
    }
    for own in [format!("localhost:{port}"), format!("127.0.0.1:{port}")] {
        assert_eq!(get(&[("host", &own)]).status, 200, "{own}");
    }
    let other = call_at(browser.address, "GET", "/dashboard/", &[("host", &evil)], b"");
    assert_eq!(other.status, 403);
    // Another server on this host may set a second cookie of this name.
    let twice = format!("{}; {}", browser.cookie, browser.cookie);
    let twice = call_at(browser.address, "GET", "/v1/status", &[("cookie", &twice)], b"");
    assert_refused(&twice, 401, "M1401");
    Browser::log_in(browser.address, &proof);
}

#[test]
fn cookies_are_closed_to_scripts_and_to_connections_that_others_can_read() {
    let admin = free_address();
    let node = Node::start_with(&["--admin", &admin.to_string(), "--https", "127.0.0.1:0"]);
    let answer = log_in(admin, &with_token(&node.token()), &[]);
    let cookie = answer.header("set-cookie").expect("a cookie").to_owned();
    let name = format!("mote-session-{}=", admin.port());
    assert!(cookie.starts_with(&name), "{cookie}");
    assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"), "{cookie}");
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let secured = Command::new("curl")
        .args(["-ksi", &format!("https://{admin}/v1/session"), "-d", &with_token(&node.token())])
        .args(["-H", "content-type: application/json"])
        .output()
        .expect("curl runs");
    let secured = String::from_utf8_lossy(&secured.stdout).into_owned();
    assert!(secured.contains("; HttpOnly; SameSite=Strict; Secure"), "{secured}");
}

#[test]
fn other_machines_log_in_over_tls_only() {
    let Some(far) = Far::new() else {
        return skip("the dashboard from another machine", "cannot make a network namespace");
    };
    let port = free_address().port();
    let node = Node::start_with(&["--lan", "--admin", &format!("0.0.0.0:{port}")]);
    let there = SocketAddr::from((far.near, port));
    let proof = with_token(&node.token());
    let led = far.run(|| call_at(there, "GET", "/dashboard/", &[], b""));
    let target = format!("https://{there}/dashboard/");
    assert_eq!((led.status, led.header("location")), (307, Some(target.as_str())));
    assert_refused(&far.run(|| log_in(there, &proof, &[])), 403, "M1406");
    let session = format!("https://{there}/v1/session");
    let mut curl = Command::new("curl");
    curl.args(["-ksi", &session, "-d", &proof, "-H", "content-type: application/json"]);
    let secured = far.run(|| curl.output()).expect("curl runs");
    let secured = String::from_utf8_lossy(&secured.stdout).into_owned();
    assert!(secured.contains("; HttpOnly; SameSite=Strict; Secure"), "{secured}");
    // The address of a code is for a browser on the node's machine.
    let (address, _) = code(&node);
    assert_eq!(address, SocketAddr::from(([127, 0, 0, 1], port)));
}

/// The desktop of this test notes what it should open.
#[test]
fn a_desktop_opens_the_dashboard() {
    let node = Node::start();
    let folder = tempfile::tempdir().expect("a folder");
    let opener = folder.path().join("xdg-open");
    let open = |script: &str| {
        std::fs::write(&opener, script).expect("written");
        std::fs::set_permissions(&opener, Permissions::from_mode(0o755)).expect("a mode");
        let output = Command::new(mote_binary())
            .arg("dashboard")
            .env("MOTE_SOCKET", node.dir.path().join("s"))
            .env_remove("MOTE_NODE")
            .env("DISPLAY", ":0")
            .env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()))
            .output()
            .expect("the binary starts");
        assert!(output.status.success(), "{output:?}");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr))
    };
    let (printed, said) = open("#!/bin/sh\necho \"$1\" > \"$0.url\"\n");
    assert_eq!(printed, "");
    assert!(said.starts_with("opened http://127.0.0.1:") && !said.contains("code"), "{said}");
    let url = std::fs::read_to_string(folder.path().join("xdg-open.url")).expect("an address");
    assert!(url.contains("/dashboard/#code="), "{url}");
    let (printed, said) = open("#!/bin/sh\nexit 3\n");
    assert!(printed.contains("/dashboard/#code=") && said.contains("ssh -L "), "{printed}{said}");
}

/// A browser sends the cookies of a host to all its ports.
#[test]
fn functions_see_no_session() {
    let node = Node::start_with(&["--openfaas", "127.0.0.1:0"]);
    let shows = "def handle(event, ctx):\n    return event.headers.get('cookie', 'none')\n";
    node.deploy_ok("shows", &[("app.py", shows)]);
    let browser = Browser::open(&node);
    let cookies = format!("a=1; {}", browser.cookie);
    let fields = [("cookie", cookies.as_str()), ("mote-csrf", browser.csrf.as_str())];
    for (address, path) in [
        (node.http, "/shows"),
        (node.platform("openfaas"), "/function/shows"),
        (browser.address, "/v1/functions/shows/invoke"),
    ] {
        let answer = call_at(address, "POST", path, &fields, b"");
        assert_eq!(answer.text(), "a=1", "{path}");
        let only = [("cookie", browser.cookie.as_str()), fields[1]];
        assert_eq!(call_at(address, "POST", path, &only, b"").text(), "none", "{path}");
    }
}

#[test]
fn a_session_for_a_namespace_sees_nothing_of_others() {
    let (node, admin) = start(&[]);
    let timer = "version = 1\n[[trigger]]\ncron = \"0 0 1 1 *\"\n";
    for namespace in ["plant", "orchard"] {
        deploy_ok(&node, namespace, "hello", &[("app.py", HELLO), ("mote.toml", timer)]);
        node.mote_with_input(&["secret", "set", "db", "--namespace", namespace], b"value");
        node.ok(&["key", "create", "dev", "--namespace", namespace]);
        node.ok(&["kv", "put", "hello", "k", "v", "--namespace", namespace]);
        let path = format!("/hello.{namespace}");
        assert_eq!(node.call("POST", &path, &[("prefer", "respond-async")], b"").status, 202);
    }
    let accepted = node.call("POST", "/hello.orchard", &[("prefer", "respond-async")], b"");
    let id = accepted.json()["id"].as_str().expect("an id").to_owned();
    let ada = token(&node, "ada", "operator", Some("plant"));
    let browser = Browser::log_in(admin, &with_token(&ada));
    let session = browser.get("/v1/session").json();
    assert_eq!(
        (session["name"].as_str(), session["namespace"].as_str()),
        (Some("ada"), Some("plant"))
    );
    let document = node.management("/v1/openapi.json");
    let mut asked = 0;
    for (path, methods) in document["paths"].as_object().expect("paths") {
        if methods.get("get").is_none() {
            continue;
        }
        let name = match path.split('/').nth(2) {
            Some("invocations" | "dead-letters") => id.as_str(),
            Some("namespaces") => "orchard",
            Some("secrets" | "keys") => "orchard%2Fdev",
            _ => "hello.orchard",
        };
        let mut target = path.clone();
        while let (Some(from), Some(to)) = (target.find('{'), target.find('}')) {
            target.replace_range(from..=to, name);
        }
        let answer = browser.get(&target);
        let text = answer.text();
        match target == *path {
            true => assert!(!text.contains("orchard"), "{target}: {text}"),
            false => assert!(matches!(answer.status, 403 | 404), "{target}: {text}"),
        }
        asked += 1;
    }
    assert!(asked >= 25, "{asked} questions");
    let summary = browser.get("/v1/functions?view=summary").json();
    assert_eq!(summary["functions"].as_array().map(Vec::len), Some(1));
    assert_eq!(summary["functions"][0]["name"], "hello.plant");
    assert_eq!(browser.get("/v1/functions/hello/durations").status, 200);
    assert_refused(&browser.call("DELETE", "/v1/functions/hello.orchard", b""), 404, "M0501");
    assert_refused(&browser.get("/v1/status"), 403, "M1408");
    assert!(node.ok(&["audit"]).contains("plant/ada"));
}

#[test]
fn the_files_of_the_dashboard_are_served_without_a_login() {
    let admin = free_address();
    let _node = Node::start_with(&["--admin", &admin.to_string()]);
    let get = |path: &str, fields: &[(&str, &str)]| call_at(admin, "GET", path, fields, b"");
    for path in ["/", "/dashboard"] {
        let answer = get(path, &[]);
        assert_eq!((answer.status, answer.header("location")), (302, Some("/dashboard/")));
    }
    let index = get("/dashboard/", &[]);
    assert_eq!(index.status, 200);
    assert_eq!(index.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(index.header("cache-control"), Some("no-cache"));
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                  font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                  frame-ancestors 'none'";
    let missing = get("/dashboard/assets/nothing.js", &[]);
    assert_eq!(missing.status, 404);
    for answer in [&index, &missing] {
        for (name, value) in [
            ("content-security-policy", policy),
            ("x-frame-options", "DENY"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
        ] {
            assert_eq!(answer.header(name), Some(value));
        }
    }
    let tag = index.header("etag").expect("a tag");
    let same = get("/dashboard/", &[("if-none-match", tag)]);
    assert_eq!((same.status, same.body.len()), (304, 0));
    let text = index.text();
    let (_, rest) = text.split_once("src=\"").expect("a script");
    let script = rest.split('"').next().expect("a name").trim_start_matches("./");
    let script = match script.starts_with('/') {
        true => script.to_owned(),
        false => format!("/dashboard/{script}"),
    };
    let plain = get(&script, &[]);
    assert_eq!(plain.status, 200, "{script}");
    let kept = "public, max-age=31536000, immutable";
    assert_eq!(plain.header("cache-control"), Some(kept));
    let packed = get(&script, &[("accept-encoding", "gzip, br")]);
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    assert!(packed.body.len() < plain.body.len());
    assert_eq!(call_at(admin, "HEAD", "/dashboard/", &[], b"").status, 200);
    assert_eq!(call_at(admin, "POST", "/dashboard/", &[], b"").status, 405);
}

#[test]
fn lists_are_short_and_compressed() {
    let node = Node::start();
    node.deploy_ok("hello", &[("app.py", HELLO)]);
    for _ in 0..3 {
        assert_eq!(node.get("/hello").status, 200);
    }
    let browser = Browser::open(&node);
    let summary = browser.get("/v1/functions?view=summary").json();
    let hello = &summary["functions"][0];
    assert_eq!((&hello["name"], &hello["requests"]["total"]), (&"hello".into(), &3.into()));
    assert!(hello["instances"].is_u64() && hello.get("limits").is_none(), "{hello}");
    assert_refused(&browser.get("/v1/functions?view=all"), 400, "M1403");

    let durations = browser.get("/v1/functions/hello/durations").json();
    let bounds = durations["bounds_us"].as_array().expect("bounds").len();
    let counts = |list: &serde_json::Value| -> Vec<u64> {
        list.as_array().expect("counts").iter().filter_map(serde_json::Value::as_u64).collect()
    };
    let request = counts(&durations["request"]["http"]);
    assert_eq!((request.len(), request.iter().sum::<u64>()), (bounds + 1, 3));
    for list in ["queue", "start", "run"] {
        assert_eq!(counts(&durations[list]).len(), bounds + 1, "{list}");
    }
    assert!(durations["sum_us"]["request"]["http"].as_u64().expect("a sum") > 0);
    assert_refused(&browser.get("/v1/functions/nothing/durations"), 404, "M0501");

    let accepts = [("accept-encoding", "gzip")];
    let packed = browser.call_with("GET", "/v1/openapi.json", &accepts, b"");
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    assert_eq!(browser.get("/v1/openapi.json").header("content-encoding"), None);
    let short = browser.call_with("GET", "/v1/status", &accepts, b"");
    assert_eq!(short.header("content-encoding"), None);
}

#[test]
fn wrong_queries_are_problems() {
    let admin = free_address();
    let node = Node::start_with(&["--admin", &admin.to_string()]);
    node.deploy_ok("hello", &[("app.py", HELLO)]);
    let bearer = format!("Bearer {}", node.token());
    let field = [("authorization", bearer.as_str())];
    for (method, path, wrong) in [
        ("GET", "/v1/traces?limit=abc", "limit"),
        ("GET", "/v1/invocations?limit=-1", "limit"),
        ("GET", "/v1/invocations?runs=maybe", "runs"),
        ("DELETE", "/v1/namespaces/none?force=1", "force"),
        ("GET", "/v1/audit?limit=x", "limit"),
        ("GET", "/v1/kv/hello?limit=x", "limit"),
        ("GET", "/v1/kv/hello/entry?key=k&version=x", "version"),
        ("GET", "/v1/functions/hello/logs?tail=x", "tail"),
        ("GET", "/v1/functions/hello/logs?follow=yes", "follow"),
        ("PUT", "/v1/functions/hello?dry_run=2", "dry_run"),
    ] {
        let answer = call_at(admin, method, path, &field, b"");
        assert_refused(&answer, 400, "M1403");
        assert_eq!(answer.json()["field"], wrong, "{path}: {}", answer.text());
    }
    for (method, path) in [("PUT", "/v1/functions/hello/revisions/abc"), ("GET", "/v1/traces/%ff")]
    {
        assert_refused(&call_at(admin, method, path, &field, b""), 400, "M1403");
    }
    let answer = call_at(admin, "GET", "/v1/kv/hello/entry", &field, b"");
    assert_refused(&answer, 400, "M1403");
    assert!(answer.text().contains("missing field `key`"), "{}", answer.text());
}

/// A page asks for a call without knowing whether it was accepted for later.
#[test]
fn a_list_of_accepted_calls_has_one_of_them_or_none() {
    let (node, admin) = start(&[]);
    for namespace in ["plant", "orchard"] {
        deploy_ok(&node, namespace, "hello", &[("app.py", HELLO)]);
    }
    let accepted = node.call("POST", "/hello.orchard", &[("prefer", "respond-async")], b"");
    let id = accepted.json()["id"].as_str().expect("an id").to_owned();
    let plain = node.get("/hello.orchard");
    let plain = plain.header("mote-invocation").expect("an id");
    let count = |token: &str, id: &str| {
        let bearer = format!("Bearer {token}");
        let path = format!("/v1/invocations?id={id}");
        let answer = call_at(admin, "GET", &path, &[("authorization", &bearer)], b"");
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["invocations"].as_array().map(Vec::len)
    };
    let owner = node.token();
    let ada = token(&node, "ada", "operator", Some("plant"));
    let ben = token(&node, "ben", "viewer", Some("orchard"));
    for (token, id, expected) in
        [(&owner, &*id, 1), (&ben, &*id, 1), (&ada, &*id, 0), (&owner, plain, 0), (&owner, "x", 0)]
    {
        assert_eq!(count(token, id), Some(expected), "{id}");
    }
}

/// Drives the page in Chromium, as a user does.
#[test]
fn the_page_works_in_a_browser() {
    let folder = repository().join("dashboard");
    let runner = folder.join("e2e/run.mjs");
    let needed = [runner.clone(), folder.join("node_modules/playwright-core")];
    if let Some(missing) = needed.iter().find(|path| !path.exists()) {
        skip("the dashboard in a browser", &format!("{} is missing", missing.display()));
        return;
    }
    let chromium = Command::new("sh").args(["-c", "command -v chromium"]).output().expect("sh");
    let chromium = String::from_utf8_lossy(&chromium.stdout).trim().to_owned();
    if chromium.is_empty() {
        skip("the dashboard in a browser", "chromium is not installed");
        return;
    }
    let node = Node::start_with(&["--trace", "100%"]);
    let (address, _) = code(&node);
    let socket = node.dir.path().join("s");
    let code = format!("{} dashboard -q -o name", mote_binary().display());
    let output = Command::new("node")
        .arg(&runner)
        .args(["--base", &format!("http://{address}"), "--code-command", &code])
        .args(["--chromium", &chromium])
        .env("MOTE_SOCKET", &socket)
        .output();
    let Ok(output) = output else {
        skip("the dashboard in a browser", "node is not installed");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_node_that_is_known_by_an_address_is_opened_there() {
    let admin = free_address();
    let node = Node::start_with(&["--admin", &admin.to_string()]);
    let output = Command::new(mote_binary())
        .args(["--node", &format!("http://localhost:{}", admin.port()), "dashboard", "-o", "name"])
        .env("MOTE_TOKEN", token(&node, "reader", "viewer", None))
        .output()
        .expect("the binary starts");
    let url = String::from_utf8_lossy(&output.stdout).into_owned();
    let start = format!("http://localhost:{}/dashboard/#code=", admin.port());
    let code = url.trim().strip_prefix(&start).unwrap_or_else(|| panic!("{output:?}"));
    let browser = Browser::log_in(admin, &format!("{{\"code\":\"{code}\"}}"));
    assert_eq!(browser.get("/v1/session").json()["name"], "reader");
}
