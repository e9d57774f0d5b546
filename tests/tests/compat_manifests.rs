//! Things other than code that users bring from other platforms: manifests with several functions,
//! some of which cannot run here; commands that install packages; older contracts; longer
//! deadlines.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use mote_tests::{Node, skip};

/// Writes files below a folder of the test.
fn write(folder: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().expect("below the folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), files);
    folder
}

#[test]
fn a_lock_file_of_an_older_npm_is_brought_up_to_date() {
    let node = Node::start();
    let stack = "provider: {name: openfaas}\nfunctions:\n  \
                 waits: {lang: node10, handler: ./waits, environment: {exec_timeout: 10000s}}\n";
    let handler = "const ms = require('ms');\n\
                   module.exports = (context, callback) => callback(null, String(ms(context)));\n";
    let package = r#"{"name": "waits", "dependencies": {"ms": "2.0.0"}}"#;
    let lock = r#"{"name": "waits", "lockfileVersion": 1, "requires": true, "dependencies":
        {"ms": {"version": "2.0.0"}}}"#;
    let folder = folder(&[
        ("stack.yml", stack),
        ("waits/handler.js", handler),
        ("waits/package.json", package),
        ("waits/package-lock.json", lock),
    ]);
    // The file is read-only, as in a repository that was checked out read-only.
    let path = folder.path().join("waits/package-lock.json");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).expect("a file");
    let said = node.mote(&["deploy", folder.path().to_str().expect("text")]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("`10000s`: the longest deadline is 1 h"), "{said}");
    assert_eq!(node.post("/waits", b"2 days").text(), "172800000");
}

const STACK: &str = "provider: {name: openfaas}\nfunctions:\n  \
    good: {lang: python3-http, handler: ./good}\n  \
    image: {lang: dockerfile, handler: ./image}\n  \
    old: {lang: node, handler: ./old}\n  \
    rust: {lang: rust, handler: ./rust}\n";
const GOOD: &str = "def handle(event, context):\n    return {'statusCode': 200, 'body': 'good'}\n";

#[test]
fn a_stack_is_deployed_but_for_the_functions_that_cannot_be() {
    let node = Node::start();
    let old = "module.exports = (context, callback) => {\n  \
               callback(undefined, {status: context ? 'got ' + context : 'nothing'});\n}\n";
    let files = [("stack.yml", STACK), ("good/handler.py", GOOD), ("old/handler.js", old)];
    let folder = folder(&files);
    let path = folder.path().to_str().expect("text");
    let ended = node.mote(&["deploy", path]);
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(8), "{said}");
    assert!(said.contains("left out: image, rust"), "{said}");
    assert!(said.contains("image: lang \"dockerfile\" is not supported"), "{said}");
    assert_eq!(node.get("/good").text(), "good");
    // The oldest Node template receives the body and a callback.
    assert_eq!(node.post("/old", b"tea").json()["status"], "got tea");
    node.ok(&["remove", "good", "old", "--yes"]);

    node.ok(&["deploy", path, "--filter", "g*d"]);
    assert_eq!(node.get("/good").text(), "good");
    assert_eq!(node.get("/old").status, 404);
    let ended = node.mote(&["deploy", path, "--filter", "nothing"]);
    assert_eq!(ended.status.code(), Some(2));
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("its functions: good, old, image, rust"), "{said}");
    let ended = node.mote(&["deploy", path, "--filter", "r*"]);
    assert!(String::from_utf8_lossy(&ended.stderr).contains("lang \"rust\" is not supported"));
}

#[test]
fn specs_of_fission_are_deployed_with_the_code_beside_them() {
    let node = Node::start();
    let spec = |name: &str, include: &str, environment: &str, entry: &str| {
        format!(
            "include: {include}\nkind: ArchiveUploadSpec\nname: a-{name}\n---\n\
             apiVersion: fission.io/v1\nkind: Package\nmetadata: {{name: p-{name}}}\nspec:\n  \
             deployment: {{type: url, url: 'archive://a-{name}'}}\n---\n\
             apiVersion: fission.io/v1\nkind: Function\nmetadata: {{name: {name}}}\nspec:\n  \
             environment: {{name: {environment}}}\n  functionTimeout: 5\n  \
             package: {{functionName: {entry}, packageref: {{name: p-{name}}}}}\n"
        )
    };
    let adds = spec("adds", "['sums/*', words]", "python", "sum.add");
    let shouts = spec("shouts", "['shout.sh', 'loud.sh']", "binary", "shout.sh");
    let sum = "from words import unit\ndef add():\n    return str(1 + 2) + unit.NAME\n";
    let folder = folder(&[
        ("specs/function-adds.yaml", &adds),
        ("specs/function-shouts.yaml", &shouts),
        ("sums/sum.py", sum),
        ("words/__init__.py", ""),
        ("words/unit.py", "NAME = ' C'\n"),
        ("shout.sh", "#!/bin/sh\nsh /userfunc/deployarchive/loud.sh\n"),
        ("loud.sh", "#!/bin/sh\ntr a-z A-Z\n"),
    ]);
    let path = folder.path().to_str().expect("text");
    node.ok(&["deploy", path]);
    assert_eq!(node.get("/adds").text(), "3 C");
    assert_eq!(node.post("/shouts", b"tea").text(), "TEA");
    assert_eq!(node.json(&["describe", "adds", "-o", "json"])["limits"]["timeout_ms"], 5_000);
    // Given the folder of the specs, the command uses the folder that contains it.
    write(folder.path(), &[("specs/fission-deployment-config.yaml", "kind: DeploymentConfig\n")]);
    write(folder.path(), &[("words/unit.py", "NAME = ' F'\n")]);
    node.ok(&["deploy", &format!("{path}/specs")]);
    assert_eq!(node.get("/adds").text(), "3 F");
}

#[test]
fn a_function_that_fills_its_tmp_is_told_of_the_setting() {
    let node = Node::start();
    let code = "with open('/tmp/large', 'wb') as file:\n    file.write(bytes(20 << 20))\n\
                def handle(event, context):\n    return {'statusCode': 200, 'body': 'written'}\n";
    let ended = node.deploy("fills", &[("handler.py", code)]);
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(8), "{said}");
    for words in ["[limits] disk", "mote import writes that file"] {
        assert!(said.contains(words), "{said}");
    }
    let manifest = "version = 1\ncompat = \"openfaas\"\n[limits]\ndisk = \"32MiB\"\n";
    node.deploy_ok("fills", &[("handler.py", code), ("mote.toml", manifest)]);
    assert_eq!(node.get("/fills").text(), "written");
}

#[test]
fn packages_that_commands_of_a_manifest_install_are_installed() {
    let node = Node::start();
    let function = |commands: &str| {
        format!(
            "apiVersion: nuclio.io/v1\nkind: Function\nmetadata: {{name: odd}}\nspec:\n  \
             handler: main:handler\n  runtime: nodejs\n  build:\n    commands: [{commands}]\n"
        )
    };
    let code = "const isOdd = require('is-odd');\n\
                exports.handler = (context, event) => context.callback(String(isOdd(3)));\n";
    let good = function("\"npm install is-odd@3.0.1\"");
    let good = folder(&[("function.yaml", &good), ("main.js", code)]);
    node.ok(&["deploy", good.path().to_str().expect("text")]);
    assert_eq!(node.get("/odd").text(), "true");
    assert!(!good.path().join("package.json").exists(), "the user's folder stays as it is");

    let bad = function("\"apk add imagemagick\"");
    let bad = folder(&[("function.yaml", &bad), ("main.js", code)]);
    let ended = node.mote(&["deploy", bad.path().to_str().expect("text")]);
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(8), "{said}");
    assert!(said.contains("`apk add imagemagick` is not supported"), "{said}");
}

#[test]
fn deadlines_are_the_platforms_own_where_a_function_names_none() {
    let node = Node::start();
    let action = "def main(params):\n    return {'a': 1}\n";
    let fission = "def main():\n    return 'plain'\n";
    for (name, file, code, timeout_ms) in [
        ("action", "__main__.py", action, 60_000),
        ("fission", "main.py", fission, 60_000),
        ("kubeless", "main.py", "def handler(event, context):\n    return 'k'\n", 180_000),
        ("knative", "index.js", "exports.handle = (context) => 'x';\n", 300_000),
        ("nuclio", "main.py", "def handler(context, event):\n    return 'n'\n", 3_600_000),
        ("own", "app.py", "def handle(event, ctx):\n    return 'o'\n", 10_000),
    ] {
        let manifest =
            "version = 1\ncompat = \"kubeless\"\nruntime = \"python\"\nentry = \"main:handler\"\n";
        let mut files = vec![(file, code)];
        if name == "kubeless" {
            files.push(("mote.toml", manifest));
        }
        node.deploy_ok(name, &files);
        let function = node.json(&["describe", name, "-o", "json"]);
        assert_eq!(function["limits"]["timeout_ms"], timeout_ms, "{name}");
    }
    assert_eq!(node.get("/fission").text(), "plain");
}

#[test]
fn fission_functions_of_fastapi_are_served_by_it() {
    let node = Node::start();
    let code = "from fastapi import HTTPException, Request, Response\n\
                async def main(request: Request):\n    \
                if request.query_params.get('tea') == 'coffee':\n        \
                raise HTTPException(status_code=418, detail='a teapot')\n    \
                if request.method == 'GET':\n        \
                return Response('plain', media_type='text/plain', headers={'x-a': 'b'})\n    \
                return {'body': (await request.body()).decode(), 'agent': request.headers['x-sensor']}\n";
    let said = node.deploy("fast", &[("main.py", code)]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("installed fastapi, because fission provides it"), "{said}");
    let answer = node.call("POST", "/fast/x", &[("x-sensor", "t1")], b"21");
    assert_eq!(answer.json(), serde_json::json!({"body": "21", "agent": "t1"}));
    let plain = node.get("/fast");
    assert_eq!((plain.text().as_str(), plain.header("x-a")), ("plain", Some("b")));
    let teapot = node.get("/fast?tea=coffee");
    assert_eq!((teapot.status, teapot.json()), (418, serde_json::json!({"detail": "a teapot"})));
    // A plain function without imports. Its text becomes JSON, as with FastAPI.
    let manifest = "version = 1\ncompat = \"fission\"\ntemplate = \"fastapi\"\n";
    let code = "def main(request):\n    return request.url.path\n";
    node.deploy_ok("says", &[("main.py", code), ("mote.toml", manifest)]);
    assert_eq!(node.get("/says/docs").text(), "\"/says/docs\"");
}

#[test]
fn applications_of_old_and_new_starlette_find_their_routes() {
    let node = Node::start();
    let code = "from starlette.applications import Starlette\n\
                from starlette.responses import JSONResponse\n\
                from starlette.routing import Mount, Route\n\
                def seen(request):\n    \
                return JSONResponse([request.path_params, request.url.path, request.url_for('one', n=2).path])\n\
                app = Starlette(routes=[Route('/', seen), Route('/one/{n}', seen, name='one'),\n    \
                Mount('/sub', routes=[Route('/deep', seen)]), Route('/slash/', seen)])\n";
    for (name, version) in [("old", "0.27.0"), ("new", "0.46.2")] {
        let packages = format!("starlette=={version}\n");
        node.deploy_ok(name, &[("app.py", code), ("requirements.txt", &packages)]);
        for (path, parameters) in [
            ("/", serde_json::json!({})),
            ("/one/1", serde_json::json!({"n": "1"})),
            ("/sub/deep", serde_json::json!({})),
            ("/slash/", serde_json::json!({})),
        ] {
            let answer = node.get(&format!("/{name}{path}"));
            assert_eq!(answer.status, 200, "{version} {path}: {}", answer.text());
            // Addresses that the application generates lead through the node back to the
            // application.
            let own = format!("/{name}{path}");
            let expected = serde_json::json!([parameters, own, format!("/{name}/one/2")]);
            assert_eq!(answer.json(), expected, "{version} {path}");
        }
        let moved = node.get(&format!("/{name}/slash"));
        let to = moved.header("location").unwrap_or_default();
        assert!(moved.status == 307 && to.ends_with(&format!("/{name}/slash/")), "{version}: {to}");
        assert_eq!(node.get(&format!("/{name}/{name}/one/1")).status, 404, "{version}");
    }
}

#[test]
fn a_kubeless_response_is_a_stream() {
    let node = Node::start();
    let manifest =
        "version = 1\ncompat = \"kubeless\"\nruntime = \"node\"\nentry = \"index.js:run\"\n";
    let code = "const { Readable } = require('stream');\n\
                const { pipeline } = require('stream/promises');\n\
                module.exports.run = (event) => {\n  \
                const { request, response } = event.extensions;\n  \
                const words = Readable.from(['a', 'b', request.query.end]);\n  \
                response.setHeader('content-type', 'text/x-words');\n  \
                switch (request.query.how) {\n    \
                case 'pipe': words.pipe(response.status(201)); return;\n    \
                case 'pipeline': return pipeline(words, response);\n    \
                case 'write': response.write('YQ==', 'base64'); response.write('b'); response.end('c', () => {}); return;\n    \
                case 'late': return new Promise((done) => setImmediate(() => { words.pipe(response); response.on('finish', done); }));\n    \
                default: return pipeline(Readable.from((function* () { throw new Error('no words'); })()), response);\n  }\n};\n";
    node.deploy_ok("words", &[("index.js", code), ("mote.toml", manifest)]);
    for (how, status) in [("pipe", 201), ("pipeline", 200), ("write", 200), ("late", 200)] {
        let answer = node.get(&format!("/words?how={how}&end=c"));
        let told = (answer.status, answer.text(), answer.header("content-type"));
        assert_eq!(told, (status, "abc".to_owned(), Some("text/x-words")), "{how}");
    }
    assert_eq!(node.get("/words?how=fail").status, 500);
}

#[test]
fn a_nuclio_function_calls_others_of_the_node_by_name() {
    let node = Node::start();
    let called = "import json\ndef handler(context, event):\n    \
                  text = json.dumps([event.method, event.path, event.body.decode()])\n    \
                  return context.Response(body=text, content_type='application/json', status_code=201)\n";
    let calling = "import nuclio_sdk\ndef handler(context, event):\n    \
                   sent = nuclio_sdk.Event(body='tea', method='PUT', path='/a', headers={'X-A': 'b'})\n    \
                   got = context.platform.call_function('called', sent)\n    \
                   return [got.status_code, got.body, got.content_type]\n";
    node.deploy_ok("called", &[("main.py", called)]);
    let said = node.deploy("calling", &[("main.py", calling)]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("net mote.internal:80, the functions of this node"), "{said}");
    let answer = node.get("/calling");
    let expected = serde_json::json!([201, ["PUT", "/a", "tea"], "application/json"]);
    assert_eq!(answer.json(), expected, "{}", node.ok(&["logs", "calling"]));
    // This way leads to no other part of the node.
    let other = "import urllib.request\ndef handle(event, ctx):\n    \
                 return urllib.request.urlopen('http://mote.internal/called').read()\n";
    node.deploy_ok("other", &[("app.py", other)]);
    assert_eq!(node.get("/other").status, 500);
    // Any function that may reach this name can call other functions through it.
    let allowed = "version = 1\n[allow]\nnet = [\"mote.internal:80\"]\n";
    node.deploy_ok("allowed", &[("app.py", other), ("mote.toml", allowed)]);
    assert_eq!(node.get("/allowed").json(), serde_json::json!(["GET", "/", ""]));
}

#[test]
fn knative_functions_of_parliament_are_served_by_it() {
    let node = Node::start();
    let code = "from parliament import Context, event\n\
                @event(event_type='test.reply', event_source='/tests')\n\
                def reply(context):\n    return context.cloud_event.data\n\
                def main(context: Context):\n    \
                if context.cloud_event is not None:\n        return reply(context)\n    \
                return 'hello ' + context.request.args.get('name', 'nobody'), 200\n";
    let manifest = "name: older\nruntime: python\nnamespace: default\n";
    for (name, files) in [
        ("older", vec![("func.py", code), ("func.yaml", manifest)]),
        ("alone", vec![("func.py", code)]),
    ] {
        let said = node.deploy(name, &files);
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.contains("installed parliament-functions"), "{said}");
        assert_eq!(node.get(&format!("/{name}?name=you")).text(), "hello you", "{name}");
        let event = [
            ("ce-specversion", "1.0"),
            ("ce-id", "1"),
            ("ce-type", "test"),
            ("ce-source", "/s"),
            ("content-type", "application/json"),
        ];
        let answer = node.call("POST", &format!("/{name}"), &event, b"{\"a\":1}");
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        assert_eq!(answer.json(), serde_json::json!({"a": 1}), "{name}");
        assert_eq!(answer.header("ce-type"), Some("test.reply"), "{name}: {:?}", answer.headers);
    }
}

#[test]
fn fission_functions_in_node_are_told_by_their_parameters() {
    let node = Node::start();
    for (name, file, code) in [
        ("promise", "main.mjs", "export default async (context) => ({status: 200, body: 'hi'});\n"),
        (
            "call",
            "index.js",
            "module.exports = function (context, callback) { callback(200, 'hi'); }\n",
        ),
    ] {
        let said = node.deploy(name, &[(file, code)]);
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.contains("compat fission"), "{said}");
        assert_eq!(node.get(&format!("/{name}")).text(), "hi", "{name}");
    }
}

#[test]
fn packages_of_the_platforms_images_are_there_and_those_of_the_machine_are_not() {
    let node = Node::start();
    // Templates of OpenFaaS serve with Flask.
    let code = "from flask import jsonify\ndef handle(event, context):\n    return jsonify(a=1)\n";
    let said = node.deploy("json", &[("handler.py", code)]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("installed flask, because openfaas provides it"), "{said}");
    assert_eq!(node.get("/json").json()["a"], 1);
    // Fission's environment contains Flask.
    let code = "from flask import request\ndef main():\n    return request.get_data()\n";
    let said = node.deploy("form", &[("main.py", code)]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("installed flask, because fission provides it"), "{said}");
    assert_eq!(node.post("/form", b"tea").text(), "tea");
    let paths = "import sys\ndef handle(event, ctx):\n    exit\n    return '\\n'.join(sys.path)\n";
    node.deploy_ok("paths", &[("app.py", paths)]);
    let paths = node.get("/paths").text();
    assert!(!paths.contains("site-packages") && !paths.contains("dist-packages"), "{paths}");
}

#[test]
fn node_functions_learn_of_their_processors_and_interfaces() {
    let node = Node::start();
    let code = "import os, { cpus } from 'node:os';\n\
                export default () => [cpus().length, Object.keys(os.networkInterfaces()), os.totalmem(), \
                os.freemem(), os.uptime()];\n";
    let manifest = "version = 1\n[limits]\nmemory = \"200MiB\"\n";
    node.deploy_ok("facts", &[("index.mjs", code), ("mote.toml", manifest)]);
    let facts = node.get("/facts").json();
    assert!(facts[0].as_u64().is_some_and(|processors| processors > 0), "{facts}");
    assert_eq!(facts[1], serde_json::json!(["lo"]));
    assert_eq!(facts[2], 200 << 20, "{facts}");
    assert!(facts[3].as_u64().is_some_and(|free| free > 0 && free < 200 << 20), "{facts}");
    assert!(facts[4].as_f64().is_some_and(|up| up > 0.0), "{facts}");
}

#[test]
fn a_script_of_another_platform_needs_no_executable_bit() {
    let node = Node::start();
    let manifest = "apiVersion: nuclio.io/v1\nkind: Function\nmetadata: {name: rev}\nspec:\n  \
                    handler: reverse.sh\n  runtime: shell\n";
    let files = [("function.yaml", manifest), ("reverse.sh", "#!/bin/sh\nrev\n")];
    // The file has no executable bit, just as an editor writes it.
    let folder = folder(&files);
    node.ok(&["deploy", folder.path().to_str().expect("text")]);
    assert_eq!(node.post("/rev", b"abc").text().trim_end(), "cba");
}

#[test]
fn an_openwhisk_manifest_is_deployed_but_for_the_actions_that_cannot_be() {
    let node = Node::start();
    let manifest = "packages:\n  tea:\n    actions:\n      \
                    brew: {function: brew.js, web: true}\n      \
                    cup: {function: cup.swift}\n";
    let brew = "async function main ({ leaves = 'green', minutes }) {\n  \
                return { cup: `${leaves} for ${minutes}` };\n}\n";
    let folder = folder(&[("manifest.yaml", manifest), ("brew.js", brew), ("cup.swift", "")]);
    let ended = node.mote(&["deploy", folder.path().to_str().expect("text")]);
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(8), "{said}");
    assert!(said.contains("left out: tea-cup;"), "{said}");
    assert!(said.contains("cup: function \"cup.swift\" is not supported"), "{said}");
    assert_eq!(node.get("/tea-brew?minutes=3").json()["cup"], "green for 3");
    // An action with the same name in another package is a different function.
    let manifest = "packages:\n  coffee:\n    actions:\n      brew: {function: brew.js}\n";
    let brew = "function main() { return { cup: 'black' }; }\n";
    let other = self::folder(&[("manifest.yaml", manifest), ("brew.js", brew)]);
    node.ok(&["deploy", other.path().to_str().expect("text")]);
    assert_eq!(node.get("/coffee-brew").json()["cup"], "black");
    assert_eq!(node.get("/tea-brew?minutes=5").json()["cup"], "green for 5");
}

#[test]
fn actions_as_bundlers_and_plain_files_write_them() {
    let node = Node::start();
    let files = [
        ("apart", "function main({ value }) { return { value: value + '!' } }\n"),
        ("arrow", "const main = async (params) => ({ value: params.value + '!' });\n"),
    ];
    for (name, code) in files {
        let said = node.deploy(name, &[("index.js", code)]);
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.contains("compat openwhisk"), "{said}");
        assert_eq!(node.get(&format!("/{name}?value=yes")).json()["value"], "yes!", "{name}");
    }
    let bundle = "!function (parts) { parts[0](); }([function () {\n  \
                  function act(params) { return { value: params.value + '!' }; }\n  \
                  global.main = act;\n}]);\n";
    let manifest = "packages:\n  p:\n    actions:\n      bundle: {function: bundle.js}\n";
    let folder = folder(&[("manifest.yaml", manifest), ("bundle.js", bundle)]);
    node.ok(&["deploy", folder.path().to_str().expect("text")]);
    assert_eq!(node.get("/p-bundle?value=yes").json()["value"], "yes!");
}

#[test]
fn a_function_that_does_not_start_keeps_no_other_from_being_deployed() {
    let node = Node::start();
    let stack = "provider: {name: openfaas}\nfunctions:\n  \
                 broken: {lang: python3-http, handler: ./broken}\n  \
                 good: {lang: python3-http, handler: ./good}\n";
    let broken = "def handle(event, context):\n    return 1\nraise ValueError('no')\n";
    let files = [("stack.yml", stack), ("broken/handler.py", broken), ("good/handler.py", GOOD)];
    let folder = folder(&files);
    let ended = node.mote(&["deploy", folder.path().to_str().expect("text")]);
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(8), "{said}");
    assert!(said.contains("not deployed: broken"), "{said}");
    assert_eq!(node.get("/good").text(), "good");
}

#[test]
fn the_exit_code_of_a_serializing_program_decides_the_status() {
    let node = Node::start();
    let stack = "provider: {name: openfaas}\nfunctions:\n  fails:\n    lang: sh\n    \
                 handler: ./code\n    fprocess: ./run.sh\n    environment: {mode: serializing}\n";
    // The output is usually read before the program ends, so a streaming mode would answer 200 in
    // some runs.
    let run = "#!/bin/sh\nhead -c 50000 /dev/zero | tr '\\0' x\nexit 3\n";
    let folder = folder(&[("stack.yml", stack), ("code/run.sh", run)]);
    node.ok(&["deploy", folder.path().to_str().expect("text")]);
    for _ in 0..20 {
        assert_eq!(node.get("/fails").status, 500);
    }
}

#[test]
fn a_function_that_exceeds_its_limit_is_told_where_its_platform_sets_it() {
    let node = Node::start();
    let doctor = node.mote(&["doctor"]);
    if String::from_utf8_lossy(&doctor.stdout).contains("RLIMIT_DATA") {
        let name = "a_function_that_exceeds_its_limit_is_told_where_its_platform_sets_it";
        return skip(name, "the kernel limits no instance here");
    }
    let manifest = "metadata: {name: big}\nspec:\n  runtime: python\n  handler: big:run\n  \
                    resources: {limits: {memory: 64Mi}}\n";
    let code = "def run(context, event):\n    return str(len(bytearray(b'x') * (200 << 20)))\n";
    let folder = folder(&[("function.yaml", manifest), ("big.py", code)]);
    node.ok(&["deploy", folder.path().to_str().expect("text")]);
    let answer = node.post("/big", b"");
    assert_eq!(answer.status, 502, "{}", answer.text());
    let key =
        "raise it: [limits] memory in mote.toml, or spec.resources.limits.memory in function.yaml";
    assert!(answer.text().contains(key), "{}", answer.text());
}
