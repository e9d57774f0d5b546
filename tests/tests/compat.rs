//! Unchanged functions of other platforms on a real node: first the contracts, then the platforms'
//! own manifests.

use std::process::Command;

use mote_tests::compat::{call, check_error, deploy, deploy_manifest, fixture, json_call};
use mote_tests::{Answer, Node, base64};
use serde_json::json;

#[test]
fn tinyfaas() {
    let node = Node::start();
    let said = deploy(&node, "tinyfaas/hello", "hello");
    assert!(said.contains("compat tinyfaas (fn.py: fn(input, headers))"), "{said}");
    assert_eq!(call(&node, "POST", "/hello", b"you").text(), "hello you");
    assert_eq!(node.get("/hello").text(), "hello nobody");
    assert_eq!(node.get("/hello/below").status, 404);
    deploy(&node, "tinyfaas/headers", "headers");
    assert_eq!(call(&node, "POST", "/headers", b"x").text(), "t1 text/plain");
    deploy(&node, "tinyfaas/error", "error");
    let answer = call(&node, "POST", "/error", b"a");
    assert_eq!((answer.status, answer.text().as_str()), (200, "no reading in 'a'"));
    deploy(&node, "tinyfaas/nothing", "nothing");
    let answer = call(&node, "POST", "/nothing", b"a");
    assert_eq!((answer.status, answer.text().as_str()), (200, ""));
    deploy(&node, "tinyfaas/environment", "environment");
    assert_eq!(node.get("/environment").text(), "C");

    deploy(&node, "tinyfaas/echo-node", "echo-node");
    assert_eq!(call(&node, "POST", "/echo-node", "grün".as_bytes()).text(), "grün");
    deploy(&node, "tinyfaas/status-node", "status-node");
    let answer = call(&node, "POST", "/status-node", b"a");
    assert_eq!((answer.status, answer.text().as_str()), (200, "t1 POST"));
    assert_eq!(answer.header("x-kind"), None);

    deploy(&node, "tinyfaas/upper-shell", "upper-shell");
    let answer = call(&node, "POST", "/upper-shell", b"abc");
    assert_eq!((answer.status, answer.text().as_str()), (200, "to both\nABC"));
    deploy(&node, "tinyfaas/error-shell", "error-shell");
    let answer = call(&node, "POST", "/error-shell", b"abc");
    assert_eq!((answer.status, answer.text().as_str()), (200, "exit status 3"));
}

fn check_open_faas_python(node: &Node) {
    assert_eq!(call(node, "POST", "/http", b"you").text(), "hello you");
    let answer = call(node, "PUT", "/http-status/a/b?code=418", b"");
    assert_eq!((answer.status, answer.header("x-kind")), (418, Some("test")));
    let seen = answer.json();
    assert_eq!((&seen["method"], &seen["path"]), (&"PUT".into(), &"/a/b".into()), "{seen}");
    assert_eq!(seen["sensor"], "t1");
    let answer = call(node, "POST", "/http-binary", &[0, 255, 7]);
    assert_eq!(answer.body, [7, 255, 0]);
    assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
    check_error(node, "http-error", &node.get("/http-error"));
    assert_eq!(node.get("/http-environment").text(), "C True");
    let answer = call(node, "POST", "/classic", b"abc");
    assert_eq!((answer.status, answer.text().as_str()), (200, "method POST\nABC t1\n"));
    assert_eq!(answer.header("content-type"), Some("text/plain"));
    let answer = call(node, "POST", "/classic", b"fail");
    assert_eq!((answer.status, answer.text().as_str()), (500, "exit status 2\nmethod POST\n"));
}

fn check_open_faas_node(node: &Node) {
    let answer = json_call(node, "/node/a?b=c", r#"{"n":1}"#);
    assert_eq!((answer.status, answer.header("x-kind")), (201, Some("test")));
    let seen = answer.json();
    assert_eq!(seen["body"], r#"{"n":1}"#);
    assert_eq!((&seen["path"], &seen["query"]["b"]), (&"/a".into(), &"c".into()), "{seen}");
    let answer = node.get("/node-fail");
    assert_eq!((answer.status, answer.text().as_str()), (500, "not today"));
    let answer = node.get("/node-fail?error=1");
    assert_eq!((answer.status, answer.text().as_str()), (400, "TypeError: no such sensor"));
    let answer = node.get("/node-fail?throw=1");
    assert!(!answer.text().contains("secret"), "{}", answer.text());
    assert_eq!(answer.status, 500);
    assert_eq!(node.get("/node-callback").body, [0, 255, 1]);
}

fn check_open_faas_programs(node: &Node) {
    let answer = call(node, "POST", "/watchdog/a?b=c", b"body");
    assert_eq!((answer.status, answer.text().as_str()), (200, "POST /a b=c t1 4 C\nbody"));
    assert_eq!(answer.header("content-type"), Some("text/plain"));
    let answer = call(node, "POST", "/watchdog/fail", b"body");
    assert_eq!((answer.status, answer.text().as_str()), (500, "exit status 4\nwent wrong\n"));
    let answer = node.get("/server/a?b=c");
    assert_eq!((answer.status, answer.text().as_str()), (203, "server /a?b=c"));
}

#[test]
fn openfaas_by_folder() {
    let node = Node::start();
    let said = deploy(&node, "openfaas/http", "http");
    assert!(said.contains("compat openfaas (handler.py: handle, template python3-http)"), "{said}");
    assert_eq!(call(&node, "POST", "/http", b"you").text(), "hello you");
    let said = deploy(&node, "openfaas/classic", "classic");
    assert!(said.contains("template python3)"), "{said}");
    assert_eq!(call(&node, "POST", "/classic", b"abc").text(), "method POST\nABC t1\n");
    deploy(&node, "openfaas/node-callback", "node-callback");
    assert_eq!(node.get("/node-callback").body, [0, 255, 1]);
    deploy(&node, "openfaas/flask", "flask");
    let answer = call(&node, "POST", "/flask", b"abc");
    assert_eq!(answer.status, 202, "{}", answer.text());
    assert_eq!(answer.json(), serde_json::json!({ "got": "abc", "sensor": "t1" }));
}

#[test]
fn openfaas_files_beside_the_handler() {
    let node = Node::start();
    let python = "import os\nSEEN = [open(path).read() for path in ('function/a.txt', '/home/app/function/a.txt')]\n\
                  def handle(event, context):\n    return ' '.join(SEEN + [os.getcwd(), open('./function/a.txt').read()])\n";
    node.deploy_ok("python", &[("handler.py", python), ("a.txt", "A")]);
    assert_eq!(node.get("/python").text(), "A A /home/app A");
    let js = "const { readFileSync } = require('fs');\n\
              const seen = readFileSync('./function/a.txt', 'utf8') + require('./b');\n\
              module.exports = async (event, context) => seen + readFileSync('/home/app/function/a.txt', 'utf8');\n";
    let files = [("handler.js", js), ("a.txt", "A"), ("b.js", "module.exports = 'B';")];
    node.deploy_ok("node", &files);
    assert_eq!(node.get("/node").text(), "ABA");
}

fn check_nuclio_fields(node: &Node, unit: serde_json::Value) {
    let answer = json_call(node, "/nu-fields/a?b=c", r#"{"n":1}"#);
    let seen = answer.json();
    assert_eq!(answer.status, 200, "{seen}");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let wanted = serde_json::json!({
        "missing": [], "body": { "n": 1 }, "method": "POST", "path": "/a", "kind": "http",
        "sensor": "t1", "size": 7, "fields": { "b": "c" }, "unit": unit, "year": true,
    });
    assert_eq!(seen, wanted);
}

#[test]
fn nuclio_by_folder() {
    let node = Node::start();
    let said = deploy(&node, "nuclio/async", "async");
    assert!(said.contains("compat nuclio (main.py: handler(context, event))"), "{said}");
    let answer = call(&node, "POST", "/async", b"x");
    assert_eq!((answer.status, answer.body.as_slice()), (202, &b"\x00\xffx"[..]));
    deploy(&node, "nuclio/error", "error");
    check_error(&node, "error", &node.get("/error"));
    deploy(&node, "nuclio/node", "node");
    let answer = call(&node, "POST", "/node", b"abc");
    let wanted = serde_json::json!({ "greeting": "hello", "body": "abc", "method": "POST" });
    assert_eq!((answer.status, answer.json()), (200, wanted));
    let answer = call(&node, "POST", "/node/whole", b"abc");
    assert_eq!((answer.status, answer.text().as_str()), (203, "made"));
    assert_eq!(answer.header("content-type"), Some("text/x-test"));
    assert_eq!(answer.header("x-kind"), Some("test"));
}

#[test]
fn kubeless_by_folder() {
    let node = Node::start();
    deploy(&node, "kubeless/binary", "binary");
    let answer = call(&node, "POST", "/binary", &[1, 255]);
    assert_eq!((answer.status, answer.body.as_slice()), (200, &[255, 1][..]));
    assert_eq!(answer.header("x-unit"), Some("C"));
    deploy(&node, "kubeless/error", "error");
    check_error(&node, "error", &node.get("/error"));
}

#[test]
fn openwhisk_by_folder() {
    let node = Node::start();
    let said = deploy(&node, "openwhisk/hello", "hello");
    assert!(said.contains("compat openwhisk (__main__.py: main(args))"), "{said}");
    let hello = |answer: Answer| answer.json()["greeting"].as_str().unwrap_or("").to_owned();
    assert_eq!(hello(node.get("/hello?name=you")), "Hello you!");
    assert_eq!(hello(json_call(&node, "/hello", r#"{"name":"me"}"#)), "Hello me!");
    deploy(&node, "openwhisk/web", "web");
    let answer = call(&node, "PATCH", "/web/a", b"");
    assert_eq!((answer.status, answer.header("x-kind")), (201, Some("test")));
    let cookies = answer.headers.iter().filter(|(name, _)| name == "set-cookie").count();
    assert_eq!(cookies, 2);
    let wanted = serde_json::json!({ "method": "patch", "path": "/a", "sensor": "t1" });
    assert_eq!(answer.json(), wanted);
    deploy(&node, "openwhisk/binary", "binary");
    let answer = node.call("POST", "/binary", &[("content-type", "image/png")], &[1, 2, 255]);
    assert_eq!(answer.body, [255, 2, 1]);
    deploy(&node, "openwhisk/empty", "empty");
    assert_eq!(node.get("/empty").status, 204);
    deploy(&node, "openwhisk/error", "error");
    let answer = node.get("/error");
    assert_eq!((answer.status, answer.json()["error"].as_str()), (502, Some("no such sensor")));
    check_error(&node, "error", &node.get("/error?throw=1"));
}

#[test]
fn fission_by_folder() {
    let node = Node::start();
    deploy(&node, "fission/node", "node");
    let answer = json_call(&node, "/node?b=c", r#"{"n":1}"#);
    assert_eq!((answer.status, answer.header("x-kind")), (201, Some("test")));
    let wanted = serde_json::json!({
        "method": "POST", "body": { "n": 1 }, "query": { "b": "c" }, "unit": "C",
    });
    assert_eq!(answer.json(), wanted);
    let said = deploy(&node, "fission/binary", "binary");
    assert!(said.contains("compat fission (index.js: exports (context)"), "{said}");
    assert_eq!(node.get("/binary").body, [0, 255, 1]);
    deploy(&node, "fission/node-error", "node-error");
    check_error(&node, "node-error", &node.get("/node-error"));
    deploy(&node, "fission/hello", "hello");
    assert_eq!(node.get("/hello").text(), "Hello, world!\n");
    deploy(&node, "fission/request", "request");
    assert_eq!(call(&node, "POST", "/request", b"abc").text(), "POST t1 abc");
    let answer = call(&node, "GET", "/request/status", b"");
    assert_eq!((answer.status, answer.header("x-kind")), (418, Some("teapot")));
    deploy(&node, "fission/error", "error");
    check_error(&node, "error", &node.get("/error"));
}

#[test]
fn openfaas_by_stack_file() {
    let node = Node::start();
    let output = node.mote(&["deploy", &fixture("openfaas")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(8), "{said}");
    let missing =
        "error[M0414]: http-environment reads the secret api-key, which this node does not have";
    assert!(said.contains(missing) && said.contains("mote secret set api-key < FILE"), "{said}");
    assert!(node.mote_with_input(&["secret", "set", "api-key"], b"k\n").status.success());
    let said = deploy_manifest(&node, "openfaas");
    assert!(said.contains("stack.yml, python, compat openfaas python3-http"), "{said}");
    assert!(said.contains("http-environment: ignored: constraints"), "{said}");
    check_open_faas_python(&node);
    check_open_faas_node(&node);
    check_open_faas_programs(&node);
    let described = node.json(&["describe", "http-environment", "-o", "json"]);
    assert_eq!(described["secrets"], json!(["api-key"]));
    assert_eq!(described["limits"]["memory_bytes"], 96 << 20);
    assert_eq!(described["limits"]["instances_min"], 1);
    assert_eq!(described["limits"]["instances_max"], 2);
    assert_eq!(node.json(&["describe", "server", "-o", "json"])["limits"]["timeout_ms"], 20_000);
}

#[test]
fn nuclio_by_manifest() {
    let node = Node::start();
    deploy_manifest(&node, "nuclio/hello");
    let schedules = node.json(&["describe", "nu-hello", "-o", "json"])["schedules"].clone();
    assert_eq!(schedules[0]["expression"], "every 100h", "{schedules}");
    let answer = call(&node, "POST", "/nu-hello", b"you");
    assert_eq!((answer.status, answer.text().as_str()), (201, "hello you C"));
    assert_eq!(answer.header("x-count"), Some("1"));
    assert_eq!(answer.header("x-self"), Some("nu-hello main:handler"));
    deploy_manifest(&node, "nuclio/fields");
    check_nuclio_fields(&node, "K".into());
    deploy_manifest(&node, "nuclio/shell/function.yaml");
    let answer = call(&node, "POST", "/nu-shell", b"abc");
    assert_eq!((answer.status, answer.text().trim_end()), (200, "POST 2 one\ncba"));
    let headers = [("x-nuclio-arguments", "three")];
    let answer = node.call("POST", "/nu-shell", &headers, b"abc");
    assert_eq!(answer.text().trim_end(), "POST 1 three\ncba");
    assert_eq!(node.post("/nu-shell/fail", b"abc").status, 500);
    deploy_manifest(&node, "nuclio/exported.yaml");
    assert_eq!(call(&node, "POST", "/ex-one", b"you").text(), "one you");
    assert_eq!(call(&node, "POST", "/ex-two", b"you").text(), "two you");
}

#[test]
fn kubeless_by_manifest() {
    let node = Node::start();
    let said = deploy_manifest(&node, "kubeless");
    assert!(!said.contains("CronJobTrigger"), "{said}");
    let schedules = node.json(&["describe", "kl-hello", "-o", "json"])["schedules"].clone();
    assert_eq!(schedules[0]["expression"], "0 3 1 * *", "{schedules}");
    let answer = node.call("POST", "/kl-hello", &[("event-type", "test")], b"you");
    assert_eq!((answer.status, answer.text().as_str()), (200, "hello you 20 test"));
    let wanted = serde_json::json!({
        "data": { "n": 1 }, "method": "POST", "path": "/a", "sensor": "t1",
    });
    assert_eq!(json_call(&node, "/kl-fields/a", r#"{"n":1}"#).json(), wanted);
    let answer = node.get("/kl-callback");
    assert_eq!((answer.status, answer.body.as_slice()), (202, &[0, 255][..]));
    let answer = call(&node, "POST", "/kl-node/status", b"abc");
    assert_eq!((answer.status, answer.header("x-kind")), (418, Some("teapot")));
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    assert_eq!(answer.json(), serde_json::json!({ "data": "abc", "handler": "hello" }));
    let said = deploy_manifest(&node, "kubeless/list.yaml");
    assert!(!said.contains("not a positive duration"), "{said}");
    assert_eq!(node.get("/kl-first").text(), "first 180");
    assert_eq!(call(&node, "POST", "/kl-second", b"abc").text(), "second abc");
}

#[test]
fn kubeless_archives() {
    let node = Node::start();
    // The platform's client writes a function of several files in this form.
    let zip = |files: &[(&str, &str)]| {
        let script = "import sys, zipfile\nnames = sys.argv[1:]\nwith zipfile.ZipFile(sys.stdout.buffer, 'w') as out:\n    \
                      for name, text in zip(names[::2], names[1::2]): out.writestr(name, text)";
        let files = files.iter().flat_map(|(name, text)| [*name, *text]);
        let made = Command::new("python3").args(["-c", script]).args(files).output();
        base64(&made.expect("python3 runs").stdout)
    };
    let manifest = |name: &str, runtime: &str, handler: &str, code: &str, deps: &str| {
        format!(
            "apiVersion: kubeless.io/v1beta1\nkind: Function\nmetadata: {{name: {name}}}\nspec:\n  \
             {{runtime: {runtime}, handler: {handler}, function-content-type: base64+zip, \
             deps: '{deps}', function: {code}}}\n"
        )
    };
    let python = zip(&[
        (
            "main.py",
            "from parts.words import greet\ndef hello(event, context): return greet(event['data'].decode())",
        ),
        ("parts/words.py", "def greet(name): return 'hello ' + name"),
    ]);
    let nodejs = zip(&[
        (
            "index.js",
            "const { twice } = require('./lib/twice'); module.exports = { f: (event) => twice(event.data) };",
        ),
        ("lib/twice.js", "exports.twice = (text) => text + text;"),
    ]);
    let both = [
        manifest("kl-zip", "python3.9", "main.hello", &python, ""),
        manifest("kl-zip-node", "nodejs14", "index.f", &nodejs, "{\"name\": \"deps-win\"}"),
    ];
    let file = node.dir.path().join("functions.yaml");
    std::fs::write(&file, both.join("---\n")).expect("the file is written");
    let file = file.to_str().expect("UTF-8");
    node.ok(&["deploy", file]);
    assert_eq!(call(&node, "POST", "/kl-zip", b"you").text(), "hello you");
    assert_eq!(call(&node, "POST", "/kl-zip-node", b"ab").text(), "abab");
    node.ok(&["import", file]);
    let there = node.dir.path();
    assert!(
        there.join("kl-zip/parts/words.py").is_file() && there.join("kl-zip/mote.toml").is_file()
    );
    let deps =
        std::fs::read_to_string(there.join("kl-zip-node/package.json")).expect("it is there");
    assert!(deps.contains("deps-win"), "{deps}");

    let check = |code: &str, said: &str| {
        let broken = node.dir.path().join("broken.yaml");
        std::fs::write(&broken, manifest("kl-broken", "python3.9", "main.hello", code, ""))
            .expect("written");
        let output = node.mote(&["deploy", broken.to_str().expect("UTF-8")]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(said), "{text}");
    };
    check(&base64(b"no archive"), "kl-broken: cannot read the archive with its code: ");
    check("'!'", "function-content-type base64+zip");
    let outside = zip(&[("../main.py", "def hello(event, context): return 1")]);
    check(&outside, "main.py");
}

#[test]
fn openwhisk_by_manifest() {
    let node = Node::start();
    let said = deploy_manifest(&node, "openwhisk/manifest.yaml");
    for warning in [
        "sequences.sensors/both: not created: the node's OpenWhisk API is off; start it with mote up",
        "triggers.every: not created: ",
        "triggers.every: the feed /whisk.system/alarms/alarm is not used, because no rule connects",
        "rules.on-every: not created: ",
    ] {
        assert!(said.contains(warning), "{warning}: {said}");
    }
    let answer = node.get("/sensors-ow-node?name=you");
    assert_eq!(answer.json()["payload"], "Hello, you from Kent");
    let answer = node.get("/sensors-ow-node?fail=1");
    assert_eq!((answer.status, answer.text().as_str()), (404, "no such sensor"));
    assert_eq!(node.get("/sensors-ow-hello").json()["greeting"], "Hello stranger!");
}

#[test]
fn import_writes_a_manifest_that_deploys_alike() {
    let node = Node::start();
    let folder = node.dir.path().join("imported");
    let copied = Command::new("cp").arg("-r").arg(fixture("openfaas")).arg(&folder).status();
    assert!(copied.is_ok_and(|status| status.success()));
    let folder = folder.to_str().expect("UTF-8");
    node.ok(&["import", folder]);
    let file = format!("{folder}/http-environment/mote.toml");
    let text = std::fs::read_to_string(file).expect("it was written");
    for line in [
        "memory = \"96MiB\"  # limits.memory: 96Mi",
        "template = \"python3-http\"  # lang: python3-http",
        "UNIT = \"C\"  # environment",
        "secrets = [\"api-key\"]  # secrets: files in /secrets; create each with mote secret set NAME",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(node.mote_with_input(&["secret", "set", "api-key"], b"k").status.success());
    for name in ["http", "http-status", "http-binary", "http-error", "http-environment", "classic"]
    {
        node.ok(&["deploy", &format!("{folder}/{name}")]);
    }
    check_open_faas_python(&node);
    let output = node.mote(&["import", folder]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("already exists"));
}

#[test]
fn manifests_that_cannot_be_honoured_are_refused_by_name() {
    let node = Node::start();
    let check = |file: &str, text: &str, expected: &str| {
        let path = node.dir.path().join(file);
        std::fs::write(&path, text).expect("written");
        let output = node.mote(&["deploy", path.to_str().expect("UTF-8")]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(expected), "{expected}: {said}");
    };
    let stack = "provider: {name: openfaas}\nfunctions:\n  f:\n    ";
    check("a.yml", &format!("{stack}secrets: [x]"), "f: lang \"\" is not supported");
    check("b.yml", &format!("{stack}lang: java11"), "f: lang \"java11\" is not supported");
    let nuclio = "apiVersion: nuclio.io/v1\nmetadata: {name: f}\nspec: {runtime: ";
    check("c.yml", &format!("{nuclio}java}}"), "f: runtime \"java\" is not supported");
    let knative = "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: f}\n";
    check("d.yml", knative, "f: a function without code and image is not supported");
    let func = "specVersion: 0.36.0\nname: f\nruntime: quarkus";
    check("e.yml", func, "f: runtime \"quarkus\" is not supported");
    check("f.yml", "a: [1", "not valid YAML");
    check("g.yml", "a: 1", "not a manifest of a supported platform");
    let kubeless = "apiVersion: kubeless.io/v1beta1\nkind: Function\nmetadata: {name: f}\nspec: ";
    let outside = format!("{kubeless}{{handler: a/b.c, runtime: python3.9, function: x}}");
    check("h.yml", &outside, "`a/b.py` is not a file name");
}

#[test]
fn what_is_not_offered_is_refused_by_name() {
    let node = Node::start();
    let nuclio = "package main\nfunc Handler(context *nuclio.Context, event nuclio.Event) {\n\
                  \tcontext.Platform.CallFunction(\"other\", event)\n}\n";
    let output = node.deploy("nu", &[("main.go", nuclio)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(
        said.contains("M0305") && said.contains("Platform.CallFunction is not supported"),
        "{said}"
    );
    let manifest = "version = 1\ncompat = \"kubeless\"\nruntime = \"exec\"\ncommand = [\"cat\"]\n";
    let output = node.deploy("kl", &[("mote.toml", manifest)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("compat \"kubeless\" is not supported yet for runtime exec"), "{said}");
    // A handler under our contract keeps our contract even in a file with that name.
    let own = "def handle(event, ctx):\n    return event.path\n";
    node.deploy_ok("own", &[("handler.py", own)]);
    assert_eq!(node.get("/own/a").text(), "/a");
}
