//! Signed requests. The libraries of GitHub, Stripe and Standard Webhooks sign them.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use mote_tests::answering::Answering;
use mote_tests::{Answer, Node, call_at, coap_client, repository, skip, wait_for};
use serde_json::json;

const TELLS: &str = "import json\n\ndef handle(event, ctx):\n    \
    return json.dumps({'caller': event.caller, 'bytes': len(event.body)})\n";
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER_SECRET: &str = "whsec_c2VjcmV0LW9mLXNvbWVib2R5LWVsc2U=";

/// Signs requests as the services do.
struct Signer(Answering);

impl Signer {
    /// Starts the signer. If the libraries are missing, reports the test as skipped.
    fn start(test: &str) -> Option<Self> {
        let modules = repository().join(".cache/test-node/node_modules");
        if !modules.join("standardwebhooks").is_dir() {
            skip(test, "the libraries are not in .cache/test-node: scripts/setup.sh test");
            return None;
        }
        let script = repository().join("tests/clients/webhooks.mjs");
        Some(Self(Answering::start(Command::new("node").arg(script).arg(modules))))
    }

    /// Returns the header fields of a signed request.
    fn sign(&mut self, scheme: &str, secret: &str, body: &str, time: u64) -> Vec<(String, String)> {
        let wish = json!({ "scheme": scheme, "secret": secret, "body": body, "time": time });
        let fields = self.0.ask(&wish);
        let fields = fields.as_object().expect("fields");
        fields
            .iter()
            .map(|(name, value)| (name.clone(), value.as_str().expect("a text").to_owned()))
            .collect()
    }
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

fn manifest(scheme: &str) -> String {
    format!("version = 1\n[access]\nmode = \"webhook\"\nscheme = \"{scheme}\"\nsecret = \"hook\"\n")
}

fn post(node: &Node, path: &str, fields: &[(String, String)], body: &str) -> Answer {
    let fields: Vec<_> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
    node.call("POST", path, &fields, body.as_bytes())
}

fn set_secret(node: &Node, value: &str) {
    let done = node.mote_with_input(&["secret", "set", "hook"], value.as_bytes());
    assert!(done.status.success(), "{done:?}");
}

fn refused(answer: &Answer, what: &str) {
    assert_eq!((answer.status, answer.json()["code"].as_str()), (401, Some("M0530")), "{what}");
    let detail = answer.json()["detail"].to_string();
    assert!(detail.contains("send a request with a valid signature"), "{what}: {detail}");
}

#[test]
fn requests_are_accepted_as_the_libraries_sign_them() {
    let Some(mut signer) = Signer::start("requests_are_accepted_as_the_libraries_sign_them") else {
        return;
    };
    let node = Node::start();
    set_secret(&node, SECRET);
    for scheme in ["github", "stripe", "standard"] {
        node.deploy_ok(scheme, &[("app.py", TELLS), ("mote.toml", &manifest(scheme))]);
        let path = format!("/{scheme}");
        let now = unix_s();
        let long = "x".repeat(3 << 20);
        // GitHub's library does not sign an empty body.
        let shortest = if scheme == "github" { " " } else { "" };
        for body in ["{\"action\":\"opened\"}", shortest, "ä\r\n\0", &long] {
            let fields = signer.sign(scheme, SECRET, body, now);
            let answer = post(&node, &path, &fields, body);
            let expected = json!({ "caller": scheme, "bytes": body.len() });
            assert_eq!((answer.status, answer.json()), (200, expected), "{scheme}");
        }
        let body = "{\"a\":1}";
        let good = signer.sign(scheme, SECRET, body, now);
        refused(&post(&node, &path, &[], body), "without");
        refused(&post(&node, &path, &good, "{\"a\":2}"), "another body");
        refused(&post(&node, &path, &good, ""), "no body");
        let other = signer.sign(scheme, OTHER_SECRET, body, now);
        refused(&post(&node, &path, &other, body), "another secret");
        let twice = [&good[..], &good[..]].concat();
        refused(&post(&node, &path, &twice, body), "twice");
        for (at, _) in good.iter().enumerate() {
            let mut less = good.clone();
            less.remove(at);
            refused(&post(&node, &path, &less, body), "a field less");
        }
        let claimed = [("mote-caller".to_owned(), scheme.to_owned())];
        refused(&post(&node, &path, &claimed, body), "a claim");
        if scheme != "github" {
            for time in [now - 400, now + 400] {
                let fields = signer.sign(scheme, SECRET, body, time);
                refused(&post(&node, &path, &fields, body), "another time");
            }
        }
        // A request that is accepted for later is checked before it is accepted.
        let later = ("prefer".to_owned(), "respond-async".to_owned());
        let accepted =
            post(&node, &path, &[&good[..], std::slice::from_ref(&later)].concat(), body);
        assert_eq!(accepted.status, 202, "{}", accepted.text());
        refused(&post(&node, &path, &[&other[..], &[later]].concat(), body), "accepted later");
        let said = node.ok(&["describe", scheme]);
        assert!(said.contains(&format!("scheme {scheme}, secret hook")), "{said}");
        assert!(!said.contains("coap://"), "{said}");
    }
}

#[test]
fn the_secret_can_come_later_and_be_replaced() {
    let Some(mut signer) = Signer::start("the_secret_can_come_later_and_be_replaced") else {
        return;
    };
    let node = Node::start();
    let done = node.deploy("hook", &[("app.py", TELLS), ("mote.toml", &manifest("github"))]);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success() && said.contains("mote secret set hook"), "{said}");
    let body = "{}";
    let first = signer.sign("github", SECRET, body, 0);
    let answer = post(&node, "/hook", &first, body);
    assert_eq!((answer.status, answer.json()["code"].as_str()), (503, Some("M0531")));
    assert_eq!(answer.header("retry-after"), Some("60"));
    // Line feeds at the end are ignored, because editors add them.
    set_secret(&node, &format!("{SECRET}\n"));
    assert_eq!(post(&node, "/hook", &first, body).status, 200);
    set_secret(&node, OTHER_SECRET);
    refused(&post(&node, "/hook", &first, body), "the secret before");
    let second = signer.sign("github", OTHER_SECRET, body, 0);
    assert_eq!(post(&node, "/hook", &second, body).status, 200);
    let node = node.crash_and_restart();
    let answer = wait_for("the function", || Some(post(&node, "/hook", &second, body)));
    assert_eq!(answer.status, 200, "{}", answer.text());
    refused(&post(&node, "/hook", &first, body), "after a restart");
    // Users who manage the node need no signature.
    assert!(node.ok(&["invoke", "hook", "-d", body]).contains("caller"));
}

#[test]
fn no_other_front_runs_the_function() {
    let Some(mut signer) = Signer::start("no_other_front_runs_the_function") else { return };
    let on = ["openfaas", "tinyfaas", "tinyfaas-http", "tinyfaas-coap", "tinyfaas-grpc"];
    let on = on.map(|one| format!("--{one}=:0"));
    let node = Node::start_with(&on.each_ref().map(String::as_str));
    set_secret(&node, SECRET);
    let openfaas =
        manifest("github").replace("version = 1\n", "version = 1\ncompat = \"openfaas\"\n");
    let handler = "def handle(event, context):\n    return {'statusCode': 200, 'body': 'ran'}\n";
    node.deploy_ok("hook", &[("handler.py", handler), ("mote.toml", &openfaas)]);
    let body = "{}";
    let good = signer.sign("github", SECRET, body, 0);
    assert_eq!(post(&node, "/hook", &good, body).text(), "ran");
    let fields: Vec<_> = good.iter().map(|(name, value)| (&**name, &**value)).collect();
    for path in ["/function/hook", "/async-function/hook"] {
        let at = node.platform("openfaas");
        let answer = call_at(at, "POST", path, &fields, body.as_bytes());
        assert_eq!(answer.status, 401, "{path}: {}", answer.text());
    }
    // tinyFaaS would accept requests for later without verifying them first, so it accepts none.
    let other = signer.sign("github", OTHER_SECRET, body, 0);
    for fields in [&good, &other] {
        for later in [None, Some(("x-tinyfaas-async", "true"))] {
            let fields = fields.iter().map(|(name, value)| (&**name, &**value)).chain(later);
            let fields: Vec<_> = fields.collect();
            let at = node.platform("tinyfaas http");
            let answer = call_at(at, "POST", "/hook", &fields, body.as_bytes());
            assert_eq!(answer.status, 401, "{later:?}: {}", answer.text());
        }
    }
    let upgrade = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let answer = node.call("GET", "/hook", &upgrade, b"");
    assert_eq!(answer.status, 401, "{}", answer.text());
    assert_eq!(answer.header("www-authenticate"), Some("Signature realm=\"mote\""));
    let counted = node.json(&["describe", "hook", "-o", "json"])["requests"]["total"].clone();
    assert_eq!(counted, 1, "only the first request ran it");
    let Some(coap) = coap_client() else {
        return skip("no_other_front_runs_the_function: CoAP", "needs a CoAP client");
    };
    let url = format!("coap://{}/hook", node.coap);
    let said = Command::new(coap).args(["-m", "post", "-e", body, "-B", "5", &url]).output();
    let said = said.expect("a CoAP client");
    let said = [said.stdout, said.stderr].concat();
    assert!(String::from_utf8_lossy(&said).contains("4.01"), "{}", String::from_utf8_lossy(&said));
    let list = format!("coap://{}/.well-known/core", node.coap);
    let said = Command::new(coap).args(["-B", "5", &list]).output().expect("a CoAP client");
    assert!(!String::from_utf8_lossy(&said.stdout).contains("hook"));
}
