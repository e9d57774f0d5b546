//! Tokens and passwords of callers. PyJWT signs the tokens, a server of the test is their issuer,
//! and the node fetches the issuer's keys.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use mote_tests::answering::Answering;
use mote_tests::{
    Answer, Node, PATIENCE, basic_auth, call_at, free_address, repository, skip, wait_for,
};
use serde_json::{Value, json};

/// Answers with the caller's name, and whether the token is still in the request.
const TELLS: &str = "import json\n\ndef handle(event, ctx):\n    \
    return json.dumps({'caller': event.caller, 'token': event.headers.get('authorization')})\n";
const ALGORITHMS: [(&str, &str); 7] = [
    ("RS256", "rsa"),
    ("RS384", "rsa"),
    ("RS512", "rsa"),
    ("PS256", "rsa"),
    ("ES256", "p256"),
    ("ES384", "p384"),
    ("EdDSA", "ed"),
];
const AUDIENCE: &str = "thermometers";
const MACHINE: [&str; 2] = ["--outgoing", "machine"];

/// Makes keys and tokens with PyJWT.
struct Signer(Answering);

impl Signer {
    /// Starts the signer. If PyJWT is missing, reports the test as skipped.
    fn start(test: &str) -> Option<Self> {
        let python = repository().join(".cache/test-venv/bin/python");
        let found = Command::new(&python).args(["-c", "import jwt, cryptography"]).output();
        if !found.is_ok_and(|output| output.status.success()) {
            skip(test, "PyJWT is not in .cache/test-venv: scripts/setup.sh test");
            return None;
        }
        let script = repository().join("tests/clients/jwt_issuer.py");
        Some(Self(Answering::start(Command::new(&python).arg(script))))
    }

    /// Makes a new key of each type.
    fn keys(&mut self, id: &str) -> String {
        self.0.ask(&json!({ "keys": id })).to_string()
    }

    fn token(&mut self, algorithm: &str, kid: &str, claims: &Value) -> String {
        let wish = json!({ "alg": algorithm, "kid": kid, "claims": claims });
        self.0.ask(&wish).as_str().expect("a token").to_owned()
    }
}

/// An issuer that publishes its configuration and its keys over HTTP.
struct Provider {
    at: SocketAddr,
    keys: Arc<Mutex<String>>,
    fetched: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Provider {
    fn start(at: SocketAddr, keys: String) -> Self {
        let listener = TcpListener::bind(at).expect("a port");
        let keys = Arc::new(Mutex::new(keys));
        let fetched = Arc::<AtomicUsize>::default();
        let ends = Arc::<AtomicBool>::default();
        let of_thread = (keys.clone(), fetched.clone(), ends.clone());
        let thread = std::thread::spawn(move || {
            let (keys, fetched, ends) = of_thread;
            for stream in listener.incoming().map_while(Result::ok) {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                if Self::serve(stream, at, &keys.lock().expect("not poisoned")) {
                    fetched.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        Self { at, keys, fetched, ends, thread: Some(thread) }
    }

    /// Answers one request. Returns whether the request was for the keys.
    fn serve(mut stream: TcpStream, at: SocketAddr, keys: &str) -> bool {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
            head.push(byte[0]);
        }
        let is_for = |path: &str| head.starts_with(format!("GET {path} ").as_bytes());
        let configuration =
            json!({ "issuer": issuer(at), "jwks_uri": format!("http://{at}/keys") }).to_string();
        let (status, body) = if is_for("/.well-known/openid-configuration") {
            ("200 OK", configuration.as_str())
        } else if is_for("/keys") {
            ("200 OK", keys)
        } else {
            ("404 Not Found", "")
        };
        let length = body.len();
        let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
        is_for("/keys")
    }

    fn replace(&self, keys: String) {
        *self.keys.lock().expect("not poisoned") = keys;
    }

    fn fetched(&self) -> usize {
        self.fetched.load(Ordering::SeqCst)
    }

    fn stop(mut self) {
        self.ends.store(true, Ordering::SeqCst);
        // The connection wakes the thread, which then ends.
        drop(TcpStream::connect(self.at));
        self.thread.take().expect("once").join().expect("no panic");
    }
}

fn issuer(at: SocketAddr) -> String {
    format!("http://{at}")
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

fn claims(issuer: &str) -> Value {
    json!({ "iss": issuer, "aud": [AUDIENCE, "other"], "sub": "alice", "exp": unix_s() + 600 })
}

fn with(claims: &Value, name: &str, value: impl Into<Value>) -> Value {
    let mut claims = claims.clone();
    claims[name] = value.into();
    claims
}

fn manifest(issuer: &str, more: &str) -> String {
    format!(
        "version = 1\n[access]\nmode = \"jwt\"\nissuer = \"{issuer}\"\naudience = \"{AUDIENCE}\"\n{more}"
    )
}

fn deploy(node: &Node, name: &str, manifest: &str) {
    node.deploy_ok(name, &[("app.py", TELLS), ("mote.toml", manifest)]);
}

fn get(node: &Node, path: &str, token: &str) -> Answer {
    let field = format!("Bearer {token}");
    node.call("GET", path, &[("authorization", &field)], b"")
}

/// Sends a request and repeats it while the node slows this address down for too many wrong tokens.
/// The test sends wrong tokens fast.
fn get_in_time(node: &Node, path: &str, token: &str) -> Answer {
    wait_for("an answer to a token", || {
        Some(get(node, path, token)).filter(|answer| answer.status != 429)
    })
}

fn code(answer: &Answer) -> (u16, String) {
    (answer.status, answer.json()["code"].as_str().unwrap_or_default().to_owned())
}

/// Repeats a request until the node has the keys.
fn get_once_known(node: &Node, path: &str, token: &str) -> Answer {
    wait_for("the keys of the issuer", || {
        let answer = get(node, path, token);
        if answer.status == 503 {
            assert_eq!(
                (code(&answer).1.as_str(), answer.header("retry-after")),
                ("M0528", Some("5"))
            );
        }
        Some(answer).filter(|answer| answer.status != 503)
    })
}

#[test]
fn tokens_of_a_provider_are_accepted() {
    let Some(mut signer) = Signer::start("tokens_of_a_provider_are_accepted") else { return };
    let at = free_address();
    let provider = Provider::start(at, signer.keys("a"));
    let node = Node::start_with(&MACHINE);
    deploy(&node, "shut", &manifest(&issuer(at), "claims = { role = \"operator\" }\n"));
    let right = with(&claims(&issuer(at)), "role", json!(["user", "operator"]));
    for (algorithm, kind) in ALGORITHMS {
        let token = signer.token(algorithm, &format!("a-{kind}"), &right);
        for again in [false, true] {
            let answer = get_once_known(&node, "/shut", &token);
            let expected = json!({ "caller": "alice", "token": format!("Bearer {token}") });
            assert_eq!(
                (answer.status, answer.json()),
                (200, expected),
                "{algorithm}, again {again}"
            );
        }
    }
    assert_eq!(provider.fetched(), 1, "keys are kept");
    let unauthorized = |answer: Answer, what: &str| {
        assert_eq!(code(&answer), (401, "M0527".to_owned()), "{what}");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer realm=\"mote\""), "{what}");
        assert_eq!(answer.json()["detail"], "shut: send a valid token", "{what}: no hint");
    };
    unauthorized(node.call("GET", "/shut", &[("mote-caller", "alice")], b""), "without");
    unauthorized(node.call("GET", "/shut?access_token=x", &[], b""), "in the query");
    let mut wrong = vec![
        ("expired", signer.token("ES256", "a-p256", &with(&right, "exp", unix_s() - 61))),
        ("not yet", signer.token("ES256", "a-p256", &with(&right, "nbf", unix_s() + 120))),
        ("audience", signer.token("ES256", "a-p256", &with(&right, "aud", "else"))),
        ("issuer", signer.token("ES256", "a-p256", &with(&right, "iss", "https://evil.example"))),
        ("subject", signer.token("ES256", "a-p256", &with(&right, "sub", "a b"))),
        ("garbage", "a.b.c".to_owned()),
    ];
    let mut cut = signer.token("ES256", "a-p256", &right);
    cut.pop();
    wrong.push(("cut", cut));
    for (what, token) in wrong {
        unauthorized(get_in_time(&node, "/shut", &token), what);
    }
    let user = signer.token("ES256", "a-p256", &with(&right, "role", "user"));
    assert_eq!(code(&get(&node, "/shut", &user)), (403, "M0529".to_owned()));
    // A key of the node opens no function here.
    let key = node.ok(&["key", "create", "alice"]);
    unauthorized(node.call("GET", "/shut", &[("x-api-key", key.trim())], b""), "a key");
    let said = node.ok(&["describe", "shut"]);
    assert!(said.contains(&format!("issuer {}, audience {AUDIENCE}", issuer(at))), "{said}");
    provider.stop();
}

#[test]
fn keys_are_replaced_without_a_restart() {
    let Some(mut signer) = Signer::start("keys_are_replaced_without_a_restart") else { return };
    let at = free_address();
    let provider = Provider::start(at, signer.keys("a"));
    let node = Node::start_with(&MACHINE);
    deploy(&node, "shut", &manifest(&issuer(at), &format!("keys = \"http://{at}/keys\"\n")));
    let right = claims(&issuer(at));
    let before = signer.token("RS256", "a-rsa", &right);
    assert_eq!(get_once_known(&node, "/shut", &before).status, 200);
    provider.replace(signer.keys("b"));
    let after = signer.token("RS256", "b-rsa", &right);
    assert_eq!(get(&node, "/shut", &after).status, 401, "not known yet");
    wait_for("the new keys", || (provider.fetched() > 1).then_some(()));
    let answer = wait_for("the new key", || {
        Some(get_in_time(&node, "/shut", &after)).filter(|answer| answer.status == 200)
    });
    assert_eq!(answer.json()["caller"], "alice");
    assert_eq!(
        get_in_time(&node, "/shut", &before).status,
        401,
        "its key is gone, though verified"
    );
    // Many unknown key ids do not cause many requests to the issuer.
    let kids = ["c", "../keys", "' OR 1=1"].map(|kid| {
        let head = base64url(json!({ "alg": "RS256", "kid": kid }).to_string().as_bytes());
        format!("{head}.e30.AAAA")
    });
    for token in kids.iter().cycle().take(30) {
        assert!(matches!(get(&node, "/shut", token).status, 401 | 429));
    }
    assert_eq!(get(&node, "/shut", &after).status, 200, "right tokens still work");
    assert_eq!(provider.fetched(), 2);
    // The issuer is gone. Keys that are already known stay in use.
    provider.stop();
    let later = signer.token("EdDSA", "b-ed", &with(&right, "sub", "bob"));
    assert_eq!(get(&node, "/shut", &later).json()["caller"], "bob");
}

fn base64url(bytes: &[u8]) -> String {
    mote_tests::base64(bytes).replace('+', "-").replace('/', "_").replace('=', "")
}

#[test]
fn a_provider_that_comes_late_is_found() {
    let Some(mut signer) = Signer::start("a_provider_that_comes_late_is_found") else { return };
    let at = free_address();
    let node = Node::start_with(&[]);
    let manifest = manifest(&issuer(at), "");
    let output = node.deploy("shut", &[("app.py", TELLS), ("mote.toml", &manifest)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let warning =
        format!("the keys of http://{at} cannot be fetched: http://{at}: 127.0.0.1 is not");
    assert!(output.status.success() && said.contains(&warning), "{said}");
    let node = node.stop_and_restart_with(&MACHINE);
    let keys = signer.keys("a");
    let token = signer.token("ES384", "a-p384", &claims(&issuer(at)));
    let answer = get(&node, "/shut", &token);
    assert_eq!(code(&answer), (503, "M0528".to_owned()));
    assert_eq!(answer.header("retry-after"), Some("5"));
    wait_for("the failure in the log", || {
        node.log().contains("cannot fetch the keys of an issuer of tokens").then_some(())
    });
    let provider = Provider::start(at, keys);
    assert_eq!(get_once_known(&node, "/shut", &token).status, 200);
    // After a restart, the node fetches the keys before anybody calls.
    let fetched = provider.fetched();
    let node = node.stop_and_restart();
    wait_for("the keys after the restart", || (provider.fetched() > fetched).then_some(()));
    assert_eq!(get_once_known(&node, "/shut", &token).status, 200);
    provider.stop();
}

#[test]
fn keys_in_a_file_need_no_provider() {
    let Some(mut signer) = Signer::start("keys_in_a_file_need_no_provider") else { return };
    let keys = signer.keys("a");
    let others = signer.keys("b");
    let node = Node::start();
    let manifest = manifest("https://login.example", "keys = \"jwks.json\"\n");
    let files = [("app.py", TELLS), ("mote.toml", manifest.as_str()), ("jwks.json", keys.as_str())];
    node.deploy_ok("shut", &files);
    let token = signer.token("EdDSA", "a-ed", &claims("https://login.example"));
    assert_eq!(get(&node, "/shut", &token).json()["caller"], "alice");
    let node = node.stop_and_restart();
    assert_eq!(get(&node, "/shut", &token).status, 200, "the keys are stored");
    // Accepted invocations are visible to callers that may call the function.
    let fields = [("authorization", format!("Bearer {token}")), ("prefer", "respond-async".into())];
    let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let accepted = node.call("POST", "/shut", &fields, b"");
    assert_eq!(accepted.status, 202, "{}", accepted.text());
    let place = accepted.header("location").expect("a place").to_owned();
    let key = node.ok(&["key", "create", "alice"]);
    let stranger = signer.token("EdDSA", "b-ed", &claims("https://login.example"));
    assert_eq!(node.get(&place).status, 404);
    assert_eq!(node.call("GET", &place, &[("x-api-key", key.trim())], b"").status, 404, "its name");
    assert_eq!(get(&node, &place, &stranger).status, 404);
    assert_eq!(get(&node, &place, &token).status, 200);
    // A redeploy with other keys takes effect at once.
    let files =
        [("app.py", TELLS), ("mote.toml", manifest.as_str()), ("jwks.json", others.as_str())];
    node.deploy_ok("shut", &files);
    assert_eq!(get(&node, "/shut", &token).status, 401);
    assert_eq!(get(&node, "/shut", &stranger).status, 200);
    for (keys, expected) in [
        ("{\"keys\":[]}", "keys: the key set has no key for"),
        ("{\"keys\":[{\"kty\":\"oct\",\"k\":\"AA\"}]}", "only public keys belong there"),
    ] {
        let output =
            node.deploy("bad", &[("app.py", TELLS), ("mote.toml", &manifest), ("jwks.json", keys)]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(expected), "{said}");
    }
}

#[test]
fn doctor_says_whose_tokens_open_a_function() {
    let Some(mut signer) = Signer::start("doctor_says_whose_tokens_open_a_function") else {
        return;
    };
    let at = free_address();
    let gone = free_address();
    let provider = Provider::start(at, signer.keys("a"));
    let node = Node::start_with(&[&MACHINE[..], &["--lan"]].concat());
    deploy(&node, "shut", &manifest(&issuer(at), ""));
    deploy(&node, "lost", &manifest(&issuer(gone), ""));
    node.deploy_ok("page", &[("app.py", TELLS), ("mote.toml", BASIC)]);
    node.ok(&["key", "create", "web"]);
    let doctor = wait_for("the keys of one issuer, and a failure of the other", || {
        let said = node.doctor(&["-o", "json"]);
        let is_tried =
            said.contains(&format!("keys of http://{gone} are not known: http://{gone}/"));
        (is_tried && said.contains("callers with a token of")).then_some(said)
    });
    let doctor: Value = serde_json::from_str(&doctor).expect("JSON");
    let who = |what: &str| {
        let mut all = doctor["reach"].as_array().expect("a list").iter();
        all.find(|one| one["what"] == what).map(|one| one["who"].clone())
    };
    let of_issuer = format!("callers with a token of http://{at}");
    assert_eq!(who("function shut"), Some(json!(of_issuer)));
    assert_eq!(who("function page"), Some(json!("callers with a key, also as a password")));
    let lost = who("function lost").expect("a row").to_string();
    assert!(lost.contains("nobody yet, because the keys of"), "{lost}");
    provider.stop();
}

const BASIC: &str = "version = 1\n[access]\nmode = \"basic\"\n";

#[test]
fn passwords_open_functions_for_browsers() {
    let node = Node::start();
    node.deploy_ok("page", &[("app.py", TELLS), ("mote.toml", BASIC)]);
    node.deploy_ok(
        "shut",
        &[("app.py", TELLS), ("mote.toml", "version = 1\n[access]\nmode = \"key\"\n")],
    );
    let key = node.ok(&["key", "create", "web"]).trim().to_owned();
    let other = node.ok(&["key", "create", "else", "--function", "elsewhere"]).trim().to_owned();
    let call = |path: &str, user: &str, password: &str, more: &[(&str, &str)]| {
        let field = basic_auth(user, password);
        let fields = [&[("authorization", field.as_str())], more].concat();
        wait_for("an answer", || {
            Some(node.call("GET", path, &fields, b"")).filter(|answer| answer.status != 429)
        })
    };
    let seen = call("/page", "web", &key, &[]);
    assert_eq!((seen.status, seen.json()), (200, json!({ "caller": "web", "token": null })));
    let asked = Some("Basic realm=\"page\", charset=\"UTF-8\"");
    let none = node.get("/page");
    assert_eq!((none.status, none.header("www-authenticate")), (401, asked));
    for (user, password) in [
        ("web", "wrong"),
        ("else", key.as_str()),
        ("", &key),
        ("web", ""),
        ("we", &key),
        ("web:", &key),
    ] {
        let answer = call("/page", user, password, &[]);
        assert_eq!((answer.status, answer.header("www-authenticate")), (401, asked), "{user}");
    }
    assert_eq!(call("/page", "else", &other, &[]).status, 403, "a key for another function");
    for site in ["cross-site", "same-site", "x", ""] {
        let answer = call("/page", "web", &key, &[("sec-fetch-site", site)]);
        assert_eq!(code(&answer), (403, "M0525".to_owned()), "{site}");
    }
    for site in ["none", "same-origin"] {
        assert_eq!(call("/page", "web", &key, &[("sec-fetch-site", site)]).status, 200, "{site}");
    }
    // Accepts what the mode `key` accepts. Over HTTP/2 it asks for a password in the same way.
    assert_eq!(node.call("GET", "/page", &[("x-api-key", &key)], b"").json()["caller"], "web");
    let h2 = Command::new("curl")
        .args(["-s", "-i", "--http2-prior-knowledge", &format!("http://{}/page", node.http)])
        .output()
        .expect("curl");
    let h2 = String::from_utf8_lossy(&h2.stdout).into_owned();
    assert!(h2.contains("www-authenticate: Basic realm=\"page\", charset=\"UTF-8\""), "{h2}");
    assert_eq!(call("/shut", "web", &key, &[]).status, 401, "the mode `key` takes no password");
    // The same holds for results of accepted invocations.
    let accepted =
        node.call("POST", "/page", &[("x-api-key", &key), ("prefer", "respond-async")], b"");
    let place = accepted.header("location").expect("a place").to_owned();
    assert_eq!(call(&place, "web", &key, &[]).status, 200);
    assert_eq!(call(&place, "web", &key, &[("sec-fetch-site", "cross-site")]).status, 404);
    assert_eq!(call(&place, "else", &other, &[]).status, 404);
}

#[test]
fn a_word_is_enough_for_passwords_and_not_for_tokens() {
    let node = Node::start();
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("app.py"), TELLS).expect("written");
    let path = folder.path().to_str().expect("UTF-8");
    node.ok(&["deploy", path, "--name", "page", "--access", "basic"]);
    assert_eq!(call_at(node.http, "GET", "/page", &[], b"").status, 401);
    let output = node.mote(&["deploy", path, "--name", "page", "--access", "jwt"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected = "jwt needs an issuer and an audience, which only [access] in a mote.toml gives";
    assert!(!output.status.success() && said.contains(expected), "{said}");
}

#[test]
fn other_ways_to_a_function_ask_for_its_tokens() {
    let Some(mut signer) = Signer::start("other_ways_to_a_function_ask_for_its_tokens") else {
        return;
    };
    let node = Node::start_with(&["--openfaas", "127.0.0.1:0"]);
    let manifest = manifest("https://login.example", "keys = \"jwks.json\"\n");
    let keys = signer.keys("a");
    let files = [
        ("handler.py", "def handle(req):\n    return req\n"),
        ("mote.toml", &*manifest.replace("version = 1\n", "version = 1\ncompat = \"openfaas\"\n")),
        ("jwks.json", keys.as_str()),
    ];
    node.deploy_ok("shut", &files);
    let token = signer.token("PS256", "a-rsa", &claims("https://login.example"));
    let at = node.platform("openfaas");
    let field = format!("Bearer {token}");
    let call = |fields: &[(&str, &str)]| call_at(at, "POST", "/function/shut", fields, b"x").status;
    assert_eq!((call(&[]), call(&[("authorization", &field)])), (401, 200));
    // A client that does not know tokens deploys the function again.
    let auth = basic_auth("admin", &node.token());
    let fields = [("authorization", auth.as_str()), ("content-type", "application/json")];
    let update = |annotations: Value| {
        let wish = json!({ "service": "shut", "image": "shut", "annotations": annotations });
        let answer = call_at(at, "PUT", "/system/functions", &fields, wish.to_string().as_bytes());
        assert!((200..300).contains(&answer.status), "{}", answer.text());
    };
    update(json!({}));
    assert_eq!(node.json(&["describe", "shut", "-o", "json"])["access"], "jwt");
    assert_eq!((call(&[]), call(&[("authorization", &field)])), (401, 200));
    // CoAP cannot carry a token, so the function is not listed there.
    if let Some(client) = mote_tests::coap_client() {
        let get = |path: &str| {
            let url = format!("coap://{}/{path}", node.coap);
            let output = Command::new(client).args(["-B", "5", "-m", "get", &url]).output();
            let output = output.expect("a CoAP client");
            let all = [output.stdout, output.stderr].concat();
            String::from_utf8_lossy(&all).into_owned()
        };
        assert!(get("shut").contains("4.01"), "{}", get("shut"));
        assert!(!get(".well-known/core").contains("shut"));
    }
    // A single word is not precise enough, so it must not open anything.
    update(json!({ "mote/access": "jwt" }));
    assert_eq!(node.json(&["describe", "shut", "-o", "json"])["access"], "local");
    update(json!({ "mote/access": "basic" }));
    assert_eq!(node.json(&["describe", "shut", "-o", "json"])["access"], "basic");
}
