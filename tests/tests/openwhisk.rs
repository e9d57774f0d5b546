//! OpenWhisk's API: the requests of wsk one by one, and Apache's npm client. wsk itself was not
//! available where these tests were written. If it is installed (`WSK`, or on the `PATH`), it runs
//! too.

use std::net::SocketAddr;
use std::process::Command;

use mote_tests::compat::deploy_manifest;
use mote_tests::namespaces::start;
use mote_tests::{Answer, Node, base64, basic_auth, call_at, repository, skip, wait_for};
use serde_json::{Value, json};

const ON: [&str; 2] = ["--openwhisk", ":0"];

struct Client {
    address: SocketAddr,
    auth: String,
}

impl Client {
    fn of(node: &Node) -> Self {
        let auth = basic_auth("guest", &node.token());
        Self { address: node.platform("openwhisk"), auth }
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let headers = [("authorization", self.auth.as_str()), ("content-type", "application/json")];
        let path = format!("/api/v1/namespaces/_/{path}");
        call_at(self.address, method, &path, &headers, body.as_bytes())
    }

    fn ok(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.send(method, path, body);
        assert!(answer.status < 300, "{method} {path}: {} {}", answer.status, answer.text());
        if answer.body.is_empty() { Value::Null } else { answer.json() }
    }

    fn get(&self, path: &str) -> Value {
        self.ok("GET", path, &Value::Null)
    }

    /// Creates an action in Python or Node, depending on its code.
    fn action(&self, name: &str, code: &str, more: Value) -> Value {
        let kind = if code.contains("def ") { "python:3" } else { "nodejs:default" };
        let mut body = json!({ "exec": { "kind": kind, "code": code } });
        for (key, value) in more.as_object().into_iter().flatten() {
            body[key] = value.clone();
        }
        self.ok("PUT", &format!("actions/{name}"), &body)
    }

    fn invoke(&self, name: &str, args: &Value) -> Answer {
        self.send("POST", &format!("actions/{name}?blocking=true&result=true"), args)
    }

    /// Sends a call that is answered with 202. Returns the id of the activation.
    fn accepted(&self, path: &str, name: &str) -> Value {
        let answer = self.send("POST", path, &json!({ "name": name }));
        assert_eq!(answer.status, 202, "{}", answer.text());
        answer.json()["activationId"].clone()
    }

    fn web(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        call_at(self.address, method, &format!("/api/v1/web/{path}"), headers, body)
    }

    fn activation(&self, id: &Value) -> Value {
        let path = format!("activations/{}", id.as_str().expect("an id"));
        wait_for("the activation", || {
            let answer = self.send("GET", &path, &Value::Null);
            (answer.status == 200).then(|| answer.json())
        })
    }
}

const HELLO: &str = "def main(args):\n    print('seen')\n    return {'greeting': 'Hello ' + \
                     args.get('name', 'stranger') + args.get('mark', '')}\n";

#[test]
fn actions() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    let made = client.action("hello", HELLO, json!({ "limits": { "timeout": 2000 } }));
    assert_eq!((&made["name"], &made["version"]), (&"hello".into(), &"0.0.1".into()), "{made}");
    assert_eq!(made["limits"]["timeout"], 2000);
    let again = client.send(
        "PUT",
        "actions/hello",
        &json!({ "exec": { "kind": "python:3", "code": HELLO } }),
    );
    assert_eq!(
        (again.status, again.json()["error"].as_str()),
        (409, Some("resource already exists"))
    );
    let parameters = json!({ "parameters": [{ "key": "mark", "value": "!" }] });
    let updated = client.ok("PUT", "actions/hello?overwrite=true", &parameters);
    assert_eq!(updated["version"], "0.0.2");
    let answer = client.invoke("hello", &json!({ "name": "you" }));
    assert_eq!((answer.status, answer.json()), (200, json!({ "greeting": "Hello you!" })));
    let whole = client.ok("POST", "actions/hello?blocking=true", &json!({}));
    assert_eq!(whole["response"]["status"], "success", "{whole}");
    assert_eq!(whole["response"]["result"], json!({ "greeting": "Hello stranger!" }));
    let accepted = client.send("POST", "actions/hello", &json!({ "name": "later" }));
    assert_eq!(accepted.status, 202);
    let record = client.activation(&accepted.json()["activationId"]);
    assert_eq!(record["response"]["result"]["greeting"], "Hello later!");
    let logs = record["logs"].as_array().expect("lines");
    assert!(
        logs.iter().any(|line| line.as_str().is_some_and(|l| l.ends_with("stdout: seen"))),
        "{record}"
    );
    assert_eq!(client.get("actions/hello")["exec"]["code"], HELLO);
    assert!(client.get("actions/hello?code=false")["exec"]["code"].is_null());
    assert_eq!(client.get("actions").as_array().map(Vec::len), Some(1));
    // The action is also a function of the node.
    assert_eq!(node.get("/hello?name=me").json()["greeting"], "Hello me!");
    assert_eq!(client.get("activations?name=hello&limit=2").as_array().map(Vec::len), Some(2));
    client.ok("DELETE", "actions/hello", &Value::Null);
    assert_eq!(client.invoke("hello", &Value::Null).status, 404);
    assert_eq!(node.get("/hello").status, 404);
}

#[test]
fn actions_that_fail() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    client.action("fails", "def main(args):\n    if 'throw' in args:\n        raise ValueError('secret')\n    if 'words' in args:\n        return 'words'\n    return {'error': 'no such sensor'}\n", json!({}));
    let answer = client.invoke("fails", &json!({}));
    assert_eq!((answer.status, answer.json()), (502, json!({ "error": "no such sensor" })));
    // The platform shows its callers the text of an exception. The function's own address does not.
    let whole = client.send("POST", "actions/fails?blocking=true", &json!({ "throw": 1 }));
    let response = whole.json()["response"].clone();
    assert_eq!((whole.status, &response["status"]), (502, &"application error".into()));
    assert_eq!(response["result"], json!({ "error": "secret" }));
    let answer = node.post("/fails?throw=1", b"");
    assert!(answer.status == 500 && !answer.text().contains("secret"), "{}", answer.text());
    let log = node.ok(&["logs", "fails"]);
    assert!(log.contains("ValueError: secret"), "{log}");
    let code = "function main(p) { if (p.late) return Promise.reject(new TypeError('late')); throw new Error('now'); }";
    client.action("throws", code, json!({}));
    let whole = client.send("POST", "actions/throws?blocking=true", &json!({}));
    let response = whole.json()["response"].clone();
    assert_eq!(response["status"], "action developer error");
    assert_eq!(response["result"], json!({ "error": "An error has occurred: Error: now" }));
    let error = client.invoke("throws", &json!({ "late": 1 })).json()["error"].clone();
    assert_eq!((&error["name"], &error["message"]), (&"TypeError".into(), &"late".into()));
    let whole = client.send("POST", "actions/fails?blocking=true", &json!({ "words": 1 }));
    assert_eq!(whole.json()["response"]["statusCode"], 2);
    let slow = "function main() { return new Promise(() => {}); }";
    client.action("slow", slow, json!({ "limits": { "timeout": 300 } }));
    let answer = client.invoke("slow", &json!({}));
    let text = "The action exceeded its time limits of 300 milliseconds.";
    assert_eq!((answer.status, answer.json()["error"].as_str()), (502, Some(text)));
    let bad =
        client.send("PUT", "actions/bad", &json!({ "exec": { "kind": "cobol:1", "code": "x" } }));
    assert_eq!(bad.status, 400, "{}", bad.text());
    let bad = client.send(
        "PUT",
        "actions/bad",
        &json!({ "exec": { "kind": "python:3", "code": HELLO }, "limits": { "memory": 9000 } }),
    );
    assert_eq!(bad.status, 400, "{}", bad.text());
    assert_eq!(client.send("POST", "actions/fails", &json!([1])).status, 400);
    let large = json!({ "text": "x".repeat(1_100_000) });
    assert_eq!(client.invoke("fails", &large).status, 413);
    let without = call_at(client.address, "GET", "/api/v1/namespaces/_/actions", &[], b"");
    assert_eq!((without.status, without.json()["code"].is_string()), (401, true));
    assert_eq!(client.send("GET", "actions/none", &Value::Null).status, 404);
}

#[test]
fn sequences_and_packages() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    client.ok("PUT", "packages/tools", &json!({ "parameters": [{ "key": "step", "value": 2 }] }));
    client.action("tools/add", "def main(args):\n    if args.get('n', 0) > 90:\n        return {'error': 'too much'}\n    return {'n': args.get('n', 0) + args['step']}\n", json!({}));
    client.action("double", "function main(p) { return { n: 2 * p.n }; }", json!({}));
    assert_eq!(client.invoke("tools/add", &json!({ "n": 1 })).json(), json!({ "n": 3 }));
    let sequence = json!({ "exec": { "kind": "sequence", "components": ["/_/tools/add", "/guest/double", "/_/tools/add"] } });
    client.ok("PUT", "actions/both", &sequence);
    let whole = client.ok("POST", "actions/both?blocking=true", &json!({ "n": 1 }));
    assert_eq!(whole["response"]["result"], json!({ "n": 8 }), "{whole}");
    let parts = whole["logs"].as_array().expect("ids").clone();
    assert_eq!(parts.len(), 3);
    assert_eq!(client.activation(&parts[1])["cause"], whole["activationId"]);
    let failed = client.invoke("both", &json!({ "n": 91 }));
    assert_eq!((failed.status, failed.json()), (502, json!({ "error": "too much" })));
    assert_eq!(
        client.get("actions/both")["exec"]["components"],
        json!(["/guest/tools/add", "/guest/double", "/guest/tools/add"])
    );
    let own = json!({ "exec": { "kind": "sequence", "components": ["/whisk.system/utils/echo"] } });
    let shown = client.ok("PUT", "actions/echoes", &own);
    assert_eq!(shown["exec"]["components"], own["exec"]["components"]);
    let missing = json!({ "exec": { "kind": "sequence", "components": ["/_/none"] } });
    assert_eq!(client.send("PUT", "actions/other", &missing).status, 404);
    client.ok("PUT", "packages/mine", &json!({ "binding": { "namespace": "_", "name": "tools" }, "parameters": [{ "key": "step", "value": 5 }] }));
    assert_eq!(client.invoke("mine/add", &json!({ "n": 1 })).json(), json!({ "n": 6 }));
    let shown = client.get("packages/mine");
    assert_eq!(
        (&shown["binding"]["name"], &shown["actions"][0]["name"]),
        (&"tools".into(), &"add".into())
    );
    assert_eq!(client.send("DELETE", "packages/tools", &Value::Null).status, 409);
    client.ok("DELETE", "packages/tools?force=true", &Value::Null);
    assert_eq!(client.invoke("mine/add", &json!({})).status, 404);
}

#[test]
fn an_array_is_the_argument_of_the_next_action_in_a_sequence() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    let list = "function main(p) { return [p.n, p.n + 1]; }";
    client.action("list", list, json!({ "parameters": [{ "key": "n", "value": 1 }] }));
    let python = "def main(args):\n    return [n * 2 for n in args]\n";
    client.action("double", python, json!({ "parameters": [{ "key": "x", "value": 1 }] }));
    client.action("back", "const main = (args) => args.reverse();", json!({}));
    let program = "#!/bin/sh\nprintf '{\"seen\": %s}\\n' \"$1\"\n";
    let program = json!({ "exec": { "kind": "blackbox", "code": program } });
    client.ok("PUT", "actions/program", &program);
    let components = ["/_/list", "/_/double", "/_/back", "/_/program"];
    let sequence = json!({ "exec": { "kind": "sequence", "components": components } });
    client.ok("PUT", "actions/all", &sequence);
    let whole = client.ok("POST", "actions/all?blocking=true", &json!({ "n": 4 }));
    assert_eq!(whole["response"]["result"], json!({ "seen": [10, 8] }), "{whole}");
    assert_eq!(whole["logs"].as_array().map(Vec::len), Some(4), "{whole}");
}

#[test]
fn actions_of_the_platform_itself_are_served() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    let call = |method: &str, path: &str, body: &Value| {
        let headers =
            [("authorization", client.auth.as_str()), ("content-type", "application/json")];
        let path = format!("/api/v1/namespaces/whisk.system/actions/{path}");
        call_at(client.address, method, &path, &headers, body.to_string().as_bytes())
    };
    let answer = call("POST", "utils/echo?blocking=true&result=true", &json!({ "payload": 1 }));
    assert_eq!((answer.status, answer.json()), (200, json!({ "payload": 1 })));
    let whole = call("POST", "utils/date?blocking=true", &json!({})).json();
    assert!(whole["response"]["result"]["date"].as_str().is_some_and(|date| date.ends_with('Z')));
    assert_eq!(whole["annotations"][0]["value"], "whisk.system/utils/date", "{whole}");
    assert_eq!(call("POST", "utils/smash?blocking=true&result=true", &json!({})).status, 502);
    assert_eq!(call("GET", "utils/sort", &Value::Null).json()["name"], "sort");
    assert_eq!(call("DELETE", "utils/sort", &Value::Null).status, 405);
    let missing = call("POST", "weather/forecast", &json!({}));
    assert_eq!(missing.status, 404);
    assert!(missing.text().contains("create an action of your own"), "{}", missing.text());
    client.action(
        "shout",
        "function main({ lines }) { return { lines: lines.map((l) => `${l}!`) }; }",
        json!({}),
    );
    let components = [
        "/whisk.system/utils/split",
        "/whisk.system/utils/sort",
        "/_/shout",
        "/whisk.system/utils/cat",
    ];
    let sequence = json!({ "exec": { "kind": "sequence", "components": components } });
    client.ok("PUT", "actions/lines", &sequence);
    let lines = client.invoke("lines", &json!({ "payload": "b,a", "separator": "," })).json();
    assert_eq!(lines, json!({ "lines": ["a!", "b!"], "payload": "a!\nb!" }));
    let named =
        json!({ "exec": { "kind": "sequence", "components": ["/whisk.system/utils/none"] } });
    let named = client.send("PUT", "actions/other", &named);
    assert_eq!(named.status, 404);
    assert!(
        named.text().contains("/whisk.system/utils/none is not on this node"),
        "{}",
        named.text()
    );
}

#[test]
fn an_action_that_is_there_is_a_conflict_also_for_code_that_does_not_load() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    client.action("hello", HELLO, json!({}));
    let broken = json!({ "exec": { "kind": "python:3", "code": "def main(:" } });
    let known = client.send("PUT", "actions/hello", &broken);
    assert_eq!(known.status, 409, "{}", known.text());
    let new = client.send("PUT", "actions/other", &broken);
    assert_eq!(new.status, 400, "{}", new.text());
}

#[test]
fn triggers_rules_and_restarts() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    client.action("hello", HELLO, json!({}));
    client.ok("PUT", "triggers/door", &json!({ "parameters": [{ "key": "mark", "value": "?" }] }));
    assert_eq!(client.send("POST", "triggers/door", &json!({})).status, 204, "no rule yet");
    // The request of wsk, which contains a status without a meaning.
    let rule = json!({ "trigger": "/_/door", "action": "/_/hello", "status": "" });
    let made = client.ok("PUT", "rules/opens", &rule);
    assert_eq!((&made["status"], &made["trigger"]["name"]), (&"active".into(), &"door".into()));
    let fired = client.send("POST", "triggers/door", &json!({ "name": "visitor" }));
    assert_eq!(fired.status, 202);
    let id = fired.json()["activationId"].clone();
    let record = client.activation(&id);
    let line: Value =
        serde_json::from_str(record["logs"][0].as_str().expect("a line")).expect("JSON");
    let caused = client.activation(&line["activationId"]);
    assert_eq!(caused["response"]["result"]["greeting"], "Hello visitor?");
    assert_eq!(caused["cause"], id);
    assert_eq!(client.get("triggers/door")["rules"]["guest/opens"]["status"], "active");
    let text = id.as_str().expect("an id").as_bytes().to_vec();
    wait_for("the record to be on disk", || {
        let files = std::fs::read_dir(node.dir.path().join("data")).ok()?.flatten();
        let mut held = files.filter_map(|file| std::fs::read(file.path()).ok());
        held.any(|bytes| bytes.windows(text.len()).any(|part| part == text)).then_some(())
    });
    let node = node.crash_and_restart();
    let client = Client::of(&node);
    assert_eq!(client.get(&format!("activations/{}", id.as_str().expect("an id")))["name"], "door");
    assert_eq!(client.invoke("hello", &json!({})).json()["greeting"], "Hello stranger");
    client.ok("POST", "rules/opens", &json!({ "status": "inactive" }));
    assert_eq!(client.send("POST", "triggers/door", &json!({})).status, 204);
    client.ok("DELETE", "rules/opens", &Value::Null);
    client.ok("DELETE", "triggers/door", &Value::Null);
    let bad = client.send("PUT", "rules/opens", &rule);
    assert_eq!(bad.status, 404, "{}", bad.text());
}

#[test]
fn web_actions() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    let code = "def main(args):\n    if 'page' in args:\n        return {'html': '<p>hi</p>', 'deep': {'n': 1}}\n    return {'statusCode': 201, 'headers': {'X-Kind': 'test'}, 'body': {'method': args['__ow_method'], 'path': args['__ow_path'], 'name': args.get('name'), 'raw': args.get('__ow_body')}}\n";
    let web = |more: &[(&str, Value)]| {
        let mut all = vec![json!({ "key": "web-export", "value": true })];
        all.extend(more.iter().map(|(key, value)| json!({ "key": key, "value": value })));
        json!({ "annotations": all })
    };
    client.action("page", code, web(&[]));
    let answer = client.web("PUT", "guest/default/page/a/b?name=you", &[], b"");
    assert_eq!((answer.status, answer.header("x-kind")), (201, Some("test")), "{}", answer.text());
    let wanted = json!({ "method": "put", "path": "/a/b", "name": "you", "raw": null });
    assert_eq!(answer.json(), wanted);
    let answer = client.web("GET", "_/default/page.html?page=1", &[], b"");
    assert_eq!(
        (answer.text().as_str(), answer.header("content-type")),
        ("<p>hi</p>", Some("text/html; charset=UTF-8"))
    );
    let answer = client.web("GET", "_/default/page.json/deep/n?page=1", &[], b"");
    assert_eq!(answer.text(), "1");
    let asks = [("origin", "http://shop.example"), ("access-control-request-headers", "x-mine")];
    let answer = client.web("OPTIONS", "_/default/page", &asks, b"");
    let allowed = |name: &str| answer.header(&format!("access-control-allow-{name}"));
    assert_eq!(
        (answer.status, allowed("origin"), allowed("headers")),
        (200, Some("*"), Some("x-mine"))
    );
    assert!(allowed("methods").is_some_and(|methods| methods.contains("PATCH")));
    let answer = client.web("GET", "_/default/page", &[], b"");
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    client.action("own", code, web(&[("web-custom-options", true.into())]));
    let answer = client.web("OPTIONS", "_/default/own", &[], b"");
    assert_eq!((answer.status, answer.json()["method"].as_str()), (201, Some("options")));
    assert_eq!(answer.header("access-control-allow-origin"), None);
    client.action("closed", code, json!({}));
    assert_eq!(client.web("GET", "_/default/closed", &[], b"").status, 404);
    client.action(
        "raw",
        code,
        web(&[("raw-http", true.into()), ("require-whisk-auth", "word".into())]),
    );
    assert_eq!(client.web("POST", "_/default/raw", &[], b"abc").status, 401);
    let headers = [("x-require-whisk-auth", "word"), ("content-type", "application/json")];
    let answer = client.web("POST", "_/default/raw?name=you", &headers, b"{}");
    assert_eq!(answer.json()["raw"], "{}", "{}", answer.text());
    let mut last = web(&[("final", true.into())]);
    last["parameters"] = json!([{ "key": "name", "value": "fixed" }]);
    client.action("final", code, last);
    assert_eq!(client.web("GET", "_/default/final?name=other", &[], b"").status, 400);
    assert_eq!(client.web("GET", "_/default/final", &[], b"").json()["name"], "fixed");
}

/// A zip of these files, as base64.
fn zipped(files: &[(&str, &str)]) -> String {
    base64(zip_of(files))
}

fn zip_of(files: &[(&str, &str)]) -> Vec<u8> {
    let script = "import json, sys, zipfile\n\
        with zipfile.ZipFile(sys.stdout.buffer, 'w') as out:\n\
        \tfor name, text in json.loads(sys.argv[1]):\n\
        \t\tinfo = zipfile.ZipInfo(name)\n\
        \t\tinfo.external_attr = (0o755 if name == 'exec' else 0o644) << 16\n\
        \t\tout.writestr(info, text)\n";
    let files = json!(files).to_string();
    let output = Command::new("python3").args(["-c", script, &files]).output().expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn archives_bring_what_they_need() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    let put = |name: &str, kind: &str, files: &[(&str, &str)]| {
        let exec = json!({ "kind": kind, "code": zipped(files), "binary": true });
        client.ok("PUT", &format!("actions/{name}"), &json!({ "exec": exec }));
    };
    // Nothing is installed: the node does not ask the registry for the packages in package.json.
    let modules = [
        (".gitignore", "node_modules\n"),
        ("package.json", "{\"main\": \"src/app.js\", \"dependencies\": {\"mine\": \"1\"}}"),
        ("src/app.js", "const mine = require('mine');\nexports.main = () => ({ mine });"),
        ("node_modules/mine/package.json", "{\"name\": \"mine\", \"version\": \"1.0.0\"}"),
        ("node_modules/mine/index.js", "module.exports = 'brought';"),
    ];
    put("modules", "nodejs:20", &modules);
    assert_eq!(client.invoke("modules", &json!({})).json(), json!({ "mine": "brought" }));
    // Changes other settings with the same code.
    let limits = json!({ "limits": { "timeout": 5000 } });
    client.ok("PUT", "actions/modules?overwrite=true", &limits);
    assert_eq!(client.invoke("modules", &json!({})).json(), json!({ "mine": "brought" }));
    let environment = [
        ("__main__.py", "import mine\ndef main(args):\n    return {'mine': mine.VALUE}\n"),
        ("virtualenv/bin/activate_this.py", ""),
        ("virtualenv/lib/python3.11/site-packages/mine/__init__.py", "VALUE = 'brought'\n"),
    ];
    put("environment", "python:3", &environment);
    assert_eq!(client.invoke("environment", &json!({})).json(), json!({ "mine": "brought" }));
}

#[test]
fn results_that_are_none() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    client.action("python", "def main(args):\n    return 'text'\n", json!({}));
    client.action("node", "function main() { return 'text'; }", json!({}));
    for name in ["python", "node"] {
        let answer = client.send("POST", &format!("actions/{name}?blocking=true"), &json!({}));
        let response = &answer.json()["response"];
        let text = "The action did not return a dictionary or array.";
        assert_eq!((answer.status, response["result"]["error"].as_str()), (502, Some(text)));
        assert_eq!(response["status"], "action developer error", "{response}");
    }
}

#[test]
fn throttles() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    client.action("hello", HELLO, json!({}));
    let mut refused = None;
    for _ in 0..130 {
        let answer = client.invoke("hello", &json!({}));
        if answer.status == 429 {
            refused = Some(answer.json());
            break;
        }
    }
    let text = refused.expect("a refusal")["error"].as_str().unwrap_or("").to_owned();
    assert_eq!(text, "Too many requests in the last minute (count: 121, allowed: 120).");
}

/// The function takes a while, so that it is running when the node crashes.
const LATE: &str =
    "def main(args):\n    import time\n    time.sleep(1.5)\n    return {'for': args['name']}\n";

#[test]
fn what_was_accepted_outlives_a_crash() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    client.ok("PUT", "packages/tools", &json!({}));
    client.action("tools/late", LATE, json!({}));
    let binding = json!({ "binding": { "namespace": "_", "name": "tools" } });
    client.ok("PUT", "packages/mine", &binding);
    client.ok("PUT", "triggers/door", &json!({}));
    client.ok("PUT", "rules/opens", &json!({ "trigger": "/_/door", "action": "/_/mine/late" }));
    let fired = client.accepted("triggers/door", "trigger");
    let plain = client.accepted("actions/tools/late", "plain");
    let waited_for = client.accepted("actions/mine/late?blocking=true&timeout=100", "waited for");
    let node = node.crash_and_restart();
    assert!(node.log().contains("activations from before"), "{}", node.log());
    let client = Client::of(&node);
    for (id, name) in [(&plain, "plain"), (&waited_for, "waited for")] {
        assert_eq!(client.activation(id)["response"]["result"]["for"], name);
    }
    let line = client.activation(&fired)["logs"][0].clone();
    let line: Value = serde_json::from_str(line.as_str().expect("a line")).expect("JSON");
    let caused = client.activation(&line["activationId"]);
    assert_eq!(
        (&caused["response"]["result"]["for"], &caused["cause"]),
        (&"trigger".into(), &fired)
    );
    // An ended activation does not run again. If its action was removed, the record says so.
    let node = node.stop_and_restart();
    assert!(!node.log().contains("activations from before"), "{}", node.log());
    let client = Client::of(&node);
    let last = client.accepted("actions/tools/late", "last");
    client.ok("DELETE", "actions/tools/late", &Value::Null);
    let node = node.crash_and_restart();
    let client = Client::of(&node);
    let record = client.activation(&last);
    assert_ne!(record["response"]["statusCode"], 0, "{record}");
    // A stopping node lets running activations end.
    client.action("tools/late", LATE, json!({}));
    let last = client.accepted("actions/tools/late", "last");
    let node = node.stop_and_restart();
    let client = Client::of(&node);
    assert_eq!(client.activation(&last)["response"]["result"]["for"], "last");
    assert_eq!(client.get("activations?name=tools/late").as_array().map(Vec::len), Some(5));
    assert!(!node.log().contains("activations from before"), "{}", node.log());
}

#[test]
fn at_most_100_are_accepted_at_once() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    let never = "function main() { return new Promise(() => {}); }";
    client.action("never", never, json!({ "limits": { "timeout": 300_000 } }));
    for _ in 0..100 {
        client.accepted("actions/never", "");
    }
    let refused = client.send("POST", "actions/never", &json!({}));
    let text = "Too many concurrent requests in flight (count: 101, allowed: 100).";
    assert_eq!((refused.status, refused.json()["error"].as_str()), (429, Some(text)));
    client.ok("PUT", "triggers/door", &json!({}));
    client.ok("PUT", "rules/opens", &json!({ "trigger": "/_/door", "action": "/_/never" }));
    assert_eq!(client.send("POST", "triggers/door", &json!({})).status, 429);
}

#[test]
fn wsk() {
    let program = std::env::var("WSK").unwrap_or_else(|_| "wsk".to_owned());
    if !Command::new(&program).arg("--help").output().is_ok_and(|out| out.status.success()) {
        return skip("wsk", "wsk is not installed");
    }
    let node = Node::start_with(&ON);
    let host = format!("http://{}", node.platform("openwhisk"));
    let file = node.dir.path().join("hello.py");
    std::fs::write(&file, HELLO).expect("written");
    let key = format!("guest:{}", node.token());
    let run = |args: &[&str]| {
        let output = Command::new(&program)
            .args(["--apihost", &host, "--auth", &key])
            .args(args)
            .output()
            .expect("wsk runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{args:?}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        said
    };
    run(&["action", "create", "hello", file.to_str().expect("UTF-8"), "--kind", "python:3"]);
    assert!(run(&["action", "invoke", "hello", "-r", "-p", "name", "you"]).contains("Hello you"));
    assert!(run(&["action", "list"]).contains("hello"));
    run(&["activation", "list"]);
}

#[test]
fn a_manifest_brings_everything_about() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    let said = deploy_manifest(&node, "openwhisk/manifest.yaml");
    let made = "packages.sensors, actions.sensors/ow-hello, actions.sensors/ow-node, \
                sequences.sensors/both, triggers.every, rules.on-every";
    assert!(said.contains(made) && !said.contains("not created"), "{said}");
    let answer = client.invoke("sensors/ow-node", &json!({ "name": "you" }));
    assert_eq!(answer.json()["payload"], "Hello, you from Kent", "{}", answer.text());
    let shown = client.get("actions/sensors/ow-node");
    assert_eq!(
        (&shown["exec"]["kind"], &shown["limits"]["timeout"]),
        (&json!("nodejs:20"), &json!(20_000))
    );
    let answer = client.web("GET", "guest/sensors/ow-node.json?name=web", &[], b"");
    assert_eq!(
        (answer.status, answer.json()["payload"].as_str()),
        (200, Some("Hello, web from Kent"))
    );
    assert_eq!(client.web("GET", "guest/sensors/ow-hello", &[], b"").status, 404, "not exported");
    let answer = client.invoke("sensors/both", &json!({ "name": "two" }));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let sequence = client.get("actions/sensors/both");
    assert_eq!(
        sequence["exec"]["components"],
        json!(["/guest/sensors/ow-hello", "/guest/sensors/ow-node"])
    );
    let fired = client.send("POST", "triggers/every", &json!({}));
    assert_eq!(fired.status, 202, "{}", fired.text());
    let ran = client.activation(&fired.json()["activationId"]);
    let line: Value = serde_json::from_str(ran["logs"][0].as_str().expect("a line")).expect("JSON");
    assert_eq!(
        (&line["success"], &line["action"]),
        (&json!(true), &json!("guest/sensors/both")),
        "{ran}"
    );

    // Deploys the same manifest again, also after a restart.
    deploy_manifest(&node, "openwhisk/manifest.yaml");
    assert_eq!(client.get("rules/on-every")["version"], "0.0.2");
    let node = node.crash_and_restart();
    let client = Client::of(&node);
    assert_eq!(client.invoke("sensors/both", &json!({})).status, 200);
    assert_eq!(client.get("triggers/every")["rules"]["guest/on-every"]["status"], "active");
}

#[test]
fn a_manifest_with_mistakes_makes_no_entity() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    let manifest = "packages:\n  default:\n    actions:\n      plain: {code: 'function main() {}', runtime: nodejs}\n    sequences:\n      lost: {actions: 'plain, nobody'}\n      none: {actions: ''}\n    rules:\n      r: {trigger: never, action: nobody}\n";
    let output = node.deploy_file("manifest.yaml", manifest);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(8), "{said}");
    for mistake in [
        "sequences.lost: no action named nobody",
        "sequences.none: 1 to 50 actions",
        "rules.r: no trigger named never",
        "rules.r: no action named nobody",
        "no entity was created; the functions are deployed",
    ] {
        assert!(said.contains(mistake), "{mistake}: {said}");
    }
    assert_eq!(client.get("actions"), json!([]));
    assert_eq!(node.get("/plain").status, 200);
    let good = manifest
        .replace(", nobody", "")
        .replace("''}", "plain}")
        .replace("    rules:\n      r: {trigger: never, action: nobody}\n", "");
    assert!(node.deploy_file("manifest.yaml", &good).status.success());
    assert_eq!(client.invoke("lost", &json!({})).status, 200);
    assert_eq!(client.get("packages"), json!([]), "the default package is none");
}

#[test]
fn a_manifest_names_archives_and_says_first_what_was_left_out() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    let folder = tempfile::tempdir().expect("a folder");
    let archives = [
        (
            "node.zip",
            vec![
                ("lib/a.js", "exports.main = () => ({ from: 'node' });"),
                ("package.json", r#"{"main": "lib/a.js"}"#),
            ],
        ),
        (
            "py.zip",
            vec![
                ("__main__.py", "from other import word\ndef main(args): return {'from': word}"),
                ("other.py", "word = 'python'"),
            ],
        ),
        ("native.zip", vec![("exec", "#!/bin/sh\necho '{\"from\": \"native\"}'\n")]),
    ];
    for (name, files) in &archives {
        let bytes = zip_of(files);
        std::fs::write(folder.path().join(name), bytes).expect("a file");
    }
    let manifest = "packages:\n  tea:\n    actions:\n      \
                    n: {function: node.zip, runtime: 'nodejs:20'}\n      \
                    p: {function: py.zip, runtime: 'python:3'}\n      \
                    x: {function: native.zip, native: true}\n      \
                    swift: {function: a.swift}\n    \
                    sequences:\n      all: {actions: 'n, swift'}\n";
    let file = folder.path().join("manifest.yaml");
    std::fs::write(&file, manifest).expect("a file");
    let file = file.to_str().expect("UTF-8");
    let output = node.mote(&["deploy", file]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(8), "{said}");
    let reason = said.find("tea-swift: function \"a.swift\" is not supported").expect(&said);
    let entity = said.find("sequences.tea/all: no action named tea/swift").expect(&said);
    assert!(reason < entity, "{said}");
    for (name, from) in [("n", "node"), ("p", "python"), ("x", "native")] {
        let answer = node.get(&format!("/tea-{name}"));
        assert_eq!(answer.json()["from"], from, "{name}: {}", answer.text());
    }
    std::fs::write(file, manifest.replace(", swift", ", p")).expect("a file");
    assert_eq!(node.mote(&["deploy", file]).status.code(), Some(8));
    let answer = client.invoke("tea/all", &json!({}));
    assert_eq!(answer.json()["from"], "python", "{}", answer.text());
}

/// Tests Apache's own npm client with those of its operations that the node has.
#[test]
fn the_client_of_npm() {
    let modules = repository().join(".cache/test-node/node_modules");
    if !modules.join("openwhisk").is_dir() {
        let why = "openwhisk is not in .cache/test-node: scripts/setup.sh test";
        return skip("the_client_of_npm", why);
    }
    let node = Node::start_with(&ON);
    let action = "function main(params) {\n  console.log('seen ' + params.name);\n  if (params.fail) return { error: 'no such sensor' };\n  return { greeting: 'Hello ' + params.name + (params.mark || '') };\n}\n";
    let chain = "function main(params) { return { seen: params }; }\n";
    let zip = "import sys, zipfile\nwith zipfile.ZipFile(sys.stdout.buffer, 'w') as out:\n    out.writestr('package.json', '{\"main\": \"index.js\"}')\n    out.writestr('index.js', 'exports.main = () => ({ from: \"zip\" });')\n";
    let zip = Command::new("python3").args(["-c", zip]).output().expect("python3").stdout;
    let output = Command::new("node")
        .arg(repository().join("tests/clients/openwhisk.cjs"))
        .arg(format!("http://{}", node.platform("openwhisk")))
        .args([&format!("guest:{}", node.token()), action, chain])
        .env("NODE_PATH", modules)
        .env("ZIP", base64(&zip))
        .output()
        .expect("node runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.trim(), "passed", "{errors}\nnode: {}", node.log());
}

#[test]
fn a_sequence_continues_after_a_crash_with_the_component_that_it_had_reached() {
    let node = Node::start_with(&ON);
    let client = Client::of(&node);
    // Each run of the first component has a different result.
    let first = "import random\ndef main(args):\n    return {'name': str(random.random())}\n";
    client.action("first", first, json!({}));
    client.action("late", LATE, json!({}));
    let components = ["/_/first", "/_/late"];
    let sequence = json!({ "exec": { "kind": "sequence", "components": components } });
    client.ok("PUT", "actions/both", &sequence);
    let id = client.accepted("actions/both", "x");
    // When the second component runs, the result of the first is already on disk.
    wait_for("the second component", || {
        let shown = node.json(&["describe", "late", "-o", "json"]);
        let running = shown["instances"].as_array().is_some_and(|all| {
            all.iter().any(|one| one["in_flight"].as_u64().is_some_and(|count| count > 0))
        });
        running.then_some(())
    });
    let before = client.get("activations?name=first")[0]["activationId"].clone();
    let node = node.crash_and_restart();
    let client = Client::of(&node);
    let whole = client.activation(&id);
    assert_eq!(whole["response"]["statusCode"], 0, "{whole}");
    assert_eq!(whole["logs"][0], before, "the first component ran once");
    assert_eq!(whole["logs"].as_array().map(Vec::len), Some(2));
}

/// Web actions receive the fields of a request, but no token of the node.
#[test]
fn web_actions_see_no_token() {
    let (node, _) = start(&ON);
    let client = Client::of(&node);
    let code = |namespace: &str| {
        format!(
            "def main(args):\n    return {{'of': '{namespace}', 'fields': args['__ow_headers']}}\n"
        )
    };
    for namespace in ["guest", "plant"] {
        for (name, keyed, raw) in
            [("open", false, false), ("keyed", true, false), ("raw", true, true)]
        {
            let wish = json!({
                "exec": {"kind": "python:3", "code": code(namespace)},
                "annotations": [
                    {"key": "web-export", "value": true},
                    {"key": "require-whisk-auth", "value": keyed},
                    {"key": "raw-http", "value": raw},
                ],
            });
            let path = format!("/api/v1/namespaces/{namespace}/actions/{name}");
            let fields = [("authorization", client.auth.as_str())];
            let body = wish.to_string();
            let made = call_at(client.address, "PUT", &path, &fields, body.as_bytes());
            assert_eq!(made.status, 200, "{}", made.text());
        }
    }
    let args = ["token", "create", "ada", "--role", "deployer", "--namespace", "plant"];
    let own = basic_auth("any", node.ok(&args).trim());
    let other = basic_auth("someone", "a password of the action");
    let call = |auth: &str, namespace: &str, name: &str| {
        let path = format!("/api/v1/web/{namespace}/default/{name}.json");
        call_at(client.address, "GET", &path, &[("authorization", auth)], b"")
    };
    for (auth, namespace, of) in [
        (&client.auth, "guest", "guest"),
        (&client.auth, "_", "guest"),
        (&client.auth, "plant", "plant"),
        (&own, "plant", "plant"),
        (&own, "_", "plant"),
    ] {
        for name in ["open", "keyed", "raw"] {
            let answer = call(auth, namespace, name);
            assert_eq!(answer.status, 200, "{namespace} {name}: {}", answer.text());
            let seen = answer.json();
            assert_eq!(seen["of"], of);
            assert!(seen["fields"]["host"].is_string(), "{seen}");
            assert!(!seen.to_string().to_lowercase().contains("authorization"), "{seen}");
        }
    }
    for name in ["open", "keyed"] {
        assert_eq!(call(&own, "guest", name).status, 404, "{name}");
        assert_eq!(call(&own, "orchard", name).status, 404, "{name}");
    }
    // Credentials that are not a token of the node are passed to the action.
    assert_eq!(call(&other, "guest", "open").json()["fields"]["authorization"], other);
    assert_eq!(call(&other, "guest", "keyed").status, 401);
}
