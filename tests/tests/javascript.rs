//! Functions in Bun and Deno: what differs from Node, and what must not.

use std::path::PathBuf;
use std::process::Command;

use mote_tests::{Node, call_at, free_port, has_npm, mote_binary, repository, skip, wait_for};

const INTERPRETERS: [&str; 2] = ["bun", "deno"];
/// The packages of `tests/package.json` that contain the interpreters.
const PACKAGES: [&str; 4] = [
    "@oven/bun-linux-x64-baseline/bin",
    "@oven/bun-linux-aarch64/bin",
    "@deno/linux-x64-glibc",
    "@deno/linux-arm64-glibc",
];

/// The interpreters that are installed, and a `PATH` on which they are found.
fn installed() -> (Vec<&'static str>, String) {
    let modules = repository().join(".cache/test-node/node_modules");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path)
        .chain(PACKAGES.map(|package| modules.join(package)))
        .filter(|folder| folder.is_dir())
        .collect();
    let is_there = |name: &&str| {
        let found = folders.iter().any(|folder| folder.join(name).is_file());
        if !found {
            skip(name, "not installed: scripts/setup.sh test");
        }
        found
    };
    let path = std::env::join_paths(&folders).expect("folders from PATH");
    (INTERPRETERS.into_iter().filter(is_there).collect(), path.to_string_lossy().into_owned())
}

/// A node that finds the interpreters, and those that are installed.
fn start() -> (Node, Vec<&'static str>) {
    let (installed, path) = installed();
    (Node::start_with_env(&[], &[("PATH", &path)]), installed)
}

fn manifest(runtime: &str, rest: &str) -> String {
    format!("version = 1\nruntime = \"{runtime}\"\n{rest}")
}

const FETCH: &str = r#"
export default { async fetch(request, ctx) {
  const { pathname, searchParams } = new URL(request.url);
  switch (pathname.split('/').pop()) {
    case 'who': return globalThis.Bun ? 'bun' : globalThis.Deno ? 'deno' : 'node';
    case 'log': await null; console.log('a line %d', 1, { a: 1 }); console.error('wrong'); return ctx.id;
    case 'echo': return new Response(await request.arrayBuffer(), { headers: { 'x-method': request.method } });
    case 'stream': return new Response(new ReadableStream({
      async start(c) { for (let i = 0; i < 40; i++) { c.enqueue(new Uint8Array(50000).fill(65)); await null; } c.close(); },
    }));
    case 'count': return String(await ctx.kv.increment('n', 1));
    case 'fail': throw new RangeError('no luck');
    case 'outside': return fetch('http://192.0.2.1/').then(() => 'reached', (error) => `refused: ${error.name}`);
    case 'write': return import('node:fs').then((fs) => { try { fs.writeFileSync('/function/x', ''); return 'written'; } catch (e) { return e.code; } });
    case 'fill': { const kept = []; for (;;) { kept.push(new Uint8Array(8 << 20).fill(1)); await null; } }
    case 'exit': process.exit(3);
    case 'left': return String(ctx.remainingMs() > 1000 && ctx.remainingMs() <= 30000);
    case 'child': { const { execFileSync } = await import('node:child_process');
      return execFileSync('/bin/sh', ['-c', 'readlink /proc/self/fd/3 || echo none']).toString(); }
    default: return Response.json({ method: request.method, a: searchParams.get('a') });
  }
} };
"#;

#[test]
fn functions_answer() {
    let (node, installed) = start();
    for name in installed {
        let files = [("index.mjs", FETCH), ("mote.toml", &manifest(name, ""))];
        node.deploy_ok(name, &files);
        let get = |path: &str| node.get(&format!("/{name}/{path}"));
        assert_eq!(get("who").text(), name);
        assert_eq!(get("?a=b").json(), serde_json::json!({"method": "GET", "a": "b"}));
        let long: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
        let echo = node.post(&format!("/{name}/echo"), &long);
        assert!(echo.body == long && echo.header("x-method") == Some("POST"), "{name}");
        assert_eq!(get("stream").body.len(), 2_000_000);
        assert_eq!((get("count").text().as_str(), get("count").text().as_str()), ("1", "2"));
        assert_eq!(get("left").text(), "true", "{name}");
        assert_eq!(get("fail").status, 500);
        let id = get("log").text();
        let shown = node.ok(&["logs", name, "--invocation", &id]);
        assert!(shown.contains("a line 1 { a: 1 }") && shown.contains("wrong"), "{name}: {shown}");
        assert!(node.ok(&["logs", name]).contains("RangeError: no luck"), "{name}");
        assert_eq!(node.json(&["describe", name, "-o", "json"])["runtime"], name);
    }
}

#[test]
fn the_sandbox_holds() {
    let (node, installed) = start();
    for name in installed {
        let files = [("index.mjs", FETCH), ("mote.toml", &manifest(name, ""))];
        node.deploy_ok(name, &files);
        let get = |path: &str| node.get(&format!("/{name}/{path}"));
        assert!(get("outside").text().starts_with("refused"), "{name}: {}", get("outside").text());
        assert_eq!(get("write").text(), "EROFS", "{name}");
        assert_eq!(get("child").text(), "none\n", "{name}");
        let filled = get("fill");
        assert_eq!((filled.status, filled.json()["code"].as_str()), (502, Some("M0502")), "{name}");
        assert_eq!(get("exit").status, 500, "{name}");
        assert_eq!(get("who").text(), name);
    }
}

/// The node copies the connections that `[allow] net` permits.
#[test]
fn permitted_places_are_reached() {
    let (node, installed) = start();
    node.deploy_ok("called", &[("app.py", "def handle(event, ctx):\n    return 'called'\n")]);
    let code = "import fs from 'node:fs';\nexport default async (request) => {\n  \
                const answer = await fetch(`http://localhost:${new URL(request.url).searchParams.get('port')}/called`);\n  \
                return `${await answer.text()} ${fs.readdirSync('/tmp').length}`;\n};\n";
    for name in installed {
        let port = node.http.port();
        let settings = manifest(name, &format!("[allow]\nnet = [\"localhost:{port}\"]\n"));
        node.deploy_ok(name, &[("index.mjs", code), ("mote.toml", &settings)]);
        // The interpreters leave nothing in the folder for temporary files.
        assert_eq!(node.get(&format!("/{name}?port={port}")).text(), "called 0", "{name}");
    }
}

#[test]
fn each_form_of_a_handler_is_found() {
    let (node, installed) = start();
    for name in installed {
        for (form, file, code) in [
            (
                "handle",
                "index.mjs",
                "export function handle(event, ctx) { return { path: event.path, from: ctx.function } }",
            ),
            (
                "plain",
                "index.mjs",
                "export default async (request) => new Response('plain ' + request.method)",
            ),
            ("common", "index.cjs", "module.exports = (event) => 'common ' + event.method"),
            ("common-js", "index.js", "exports.handler = (event) => 'common ' + event.method"),
            (
                "typed",
                "index.ts",
                "enum Kind { A = 'typed' }\nimport type { X } from './types.ts';\nexport default (request: Request): string => `${Kind.A} ${request.method}`",
            ),
        ] {
            let function = format!("{name}-{form}");
            node.deploy_ok(&function, &[(file, code), ("mote.toml", &manifest(name, ""))]);
            let text = node.get(&format!("/{function}/x")).text();
            let expected = match form {
                "handle" => format!(r#"{{"path":"/x","from":"{function}"}}"#),
                "common-js" => "common GET".to_owned(),
                form => format!("{form} GET"),
            };
            assert_eq!(text, expected, "{function}");
        }
    }
}

#[test]
fn packages_are_installed_and_found_by_a_prewarmed_interpreter() {
    if !has_npm() {
        return;
    }
    let (node, installed) = start();
    for name in installed {
        let code = "import isNumber from 'is-number';\nexport default () => String(isNumber(5));\n";
        let package = r#"{"name":"f","type":"module","dependencies":{"is-number":"7.0.0"}}"#;
        let settings = manifest(name, "");
        let files = [("index.ts", code), ("package.json", package), ("mote.toml", &settings)];
        let is_prewarmed = || node.ok(&["logs", name]).contains("in a prewarmed sandbox");
        wait_for(&format!("a prewarmed {name}"), || {
            node.deploy_ok(name, &files);
            assert_eq!(node.get(&format!("/{name}")).text(), "true", "{name}");
            is_prewarmed().then_some(())
        });
    }
}

#[test]
fn what_cannot_be_loaded_is_explained() {
    let (node, installed) = start();
    for name in installed {
        for (code, expected, hint) in [
            ("import x from 'left-pad'; export default () => x", "left-pad", "package.json"),
            (
                "import x from 'npm:left-pad'; export default () => x",
                "npm:left-pad",
                "downloads nothing",
            ),
            ("import x from 'jsr:@std/path'; export default () => x", "@std", "downloads nothing"),
            (
                "import x from 'https://127.0.0.1:1/x.ts'; export default () => x",
                "https://127.0.0.1:1/x.ts",
                "downloads nothing",
            ),
            ("export default () => {", "index.ts", "M0411"),
        ] {
            let output =
                node.deploy(name, &[("index.ts", code), ("mote.toml", &manifest(name, ""))]);
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{name}: {code}");
            assert!(text.contains(expected) && text.contains(hint), "{name}: {code}: {text}");
        }
    }
}

#[test]
fn functions_of_other_platforms_run() {
    let (node, installed) = start();
    for name in installed {
        let code = "exports.main = (args) => ({ body: `hello ${args.name}` });";
        let settings = manifest(name, "entry = \"index.js:main\"\ncompat = \"openwhisk\"\n");
        node.deploy_ok(name, &[("index.js", code), ("mote.toml", &settings)]);
        let answer = node.post(&format!("/{name}?name=ada"), b"");
        assert!(answer.text().contains("hello ada"), "{name}: {}", answer.text());
    }
}

#[test]
fn tests_run_with_the_tool_of_the_interpreter() {
    let (installed, path) = installed();
    for name in installed {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |file: &str, text: &str| std::fs::write(folder.path().join(file), text);
        write("mote.toml", &manifest(name, "name = \"tested\"\n")).expect("written");
        write("index.ts", "export default (request: Request): string => request.method;\n")
            .expect("written");
        let test = "import test from 'node:test';\nimport assert from 'node:assert';\n\
                    import call from './index.ts';\n\
                    test('answers', () => assert.equal(call(new Request('http://h/')), WANTED));\n";
        for (wanted, code) in [("'GET'", 0), ("'POST'", 1)] {
            write("index.test.ts", &test.replace("WANTED", wanted)).expect("written");
            let output = Command::new(mote_binary())
                .arg("test")
                .arg(folder.path())
                .env("PATH", &path)
                .output()
                .expect("it runs");
            assert_eq!(output.status.code(), Some(code), "{name}: {output:?}");
        }
    }
}

#[test]
fn without_the_interpreter_a_deploy_says_so() {
    let node = Node::start_with_env(&[], &[("PATH", "/usr/bin:/bin")]);
    for name in INTERPRETERS {
        if PathBuf::from("/usr/bin").join(name).exists() {
            skip(name, "installed for the whole machine");
            continue;
        }
        let output = node.deploy(name, &[("index.mjs", FETCH), ("mote.toml", &manifest(name, ""))]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("M0403") && text.contains("is not installed"), "{text}");
        assert!(text.contains("mote doctor"), "{text}");
        assert!(node.ok(&["doctor"]).contains(&format!("{name} is not installed")), "{name}");
        let report = node.json(&["doctor", "-o", "json"]);
        let checks = report["checks"].as_array().expect("checks");
        let check = checks.iter().find(|check| check["name"] == name).expect("a check");
        assert_eq!(check["state"], "absent", "{check}");
    }
}

/// Node, and the other interpreters that are installed.
fn with_node(mut installed: Vec<&'static str>) -> Vec<&'static str> {
    installed.push("node");
    installed
}

/// The calls wait for each other, so all of them run when they write their lines.
#[test]
fn lines_of_calls_at_once_keep_their_call() {
    const CALLS: usize = 20;
    let code = format!(
        "const waiting = [];\nexport default async (request, ctx) => {{\n  \
         await new Promise((go) => {{ if (waiting.push(go) === {CALLS}) waiting.forEach((one) => one()); }});\n  \
         console.log(`line of ${{ctx.id}}`);\n  return ctx.id;\n}};\n"
    );
    let (node, installed) = start();
    for name in with_node(installed) {
        let settings = manifest(name, "[scale]\nmax = 1\n");
        node.deploy_ok(name, &[("index.mjs", &code), ("mote.toml", &settings)]);
        let http = node.http;
        let path = format!("/{name}");
        let calls: Vec<_> = (0..CALLS)
            .map(|_| {
                let path = path.clone();
                std::thread::spawn(move || call_at(http, "GET", &path, &[], b"").text())
            })
            .collect();
        for call in calls {
            let id = call.join().expect("an answer");
            let shown = node.ok(&["logs", name, "--invocation", &id]);
            assert!(shown.contains(&format!("line of {id}")), "{name} {id}: {shown}");
            assert_eq!(shown.matches("line of").count(), 1, "{name} {id}: {shown}");
        }
    }
}

#[test]
fn the_memory_of_the_machine_is_that_of_the_function() {
    let code = "import os, { totalmem } from 'node:os';\nexport default () => {\n  \
                const all = [totalmem(), os.totalmem(), process.constrainedMemory?.(), \
                globalThis.Deno?.systemMemoryInfo().total];\n  \
                return [...new Set(all.filter((one) => one !== undefined))];\n};\n";
    let (node, installed) = start();
    for name in with_node(installed) {
        let settings = manifest(name, "[limits]\nmemory = \"200MiB\"\n");
        node.deploy_ok(name, &[("index.mjs", code), ("mote.toml", &settings)]);
        assert_eq!(node.get(&format!("/{name}")).text(), "[209715200]", "{name}");
    }
}

#[test]
fn files_with_jsx_run_where_they_can() {
    let code = "/** @jsxRuntime classic */\n/** @jsx h */\nconst h = (tag: string, _: null, text: string) => `<${tag}>${text}</${tag}>`;\n\
                export default () => new Response(<p>hello</p> as unknown as string);\n";
    let (node, installed) = start();
    for name in installed {
        let files = [("index.tsx", code), ("mote.toml", &manifest(name, ""))];
        node.deploy_ok(name, &files);
        assert_eq!(node.get(&format!("/{name}")).text(), "<p>hello</p>", "{name}");
    }
    let output = node.deploy("page", &[("index.tsx", code)]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("M0112") && text.contains("runtime = \"bun\" or \"deno\""), "{text}");
}

#[test]
fn too_few_processes_are_explained() {
    let (node, installed) = start();
    let code = "import fs from 'node:fs';\nexport default async () => {\n  \
                await fs.promises.stat('/');\n  return 'answered';\n};\n";
    for (name, few, enough, error) in [("node", 8, 12, "M0411"), ("bun", 7, 8, "M0303")] {
        if name != "node" && !installed.contains(&name) {
            continue;
        }
        let limits = |pids: u32| {
            manifest(name, &format!("[limits]\npids = {pids}\ninit_timeout = \"5s\"\n"))
        };
        let output = node.deploy(name, &[("index.mjs", code), ("mote.toml", &limits(few))]);
        let text = String::from_utf8_lossy(&output.stderr);
        let says = |words: &str| text.contains(words);
        assert!(says(error) && says("pids") && says(&enough.to_string()), "{name}: {text}");
        node.deploy_ok(name, &[("index.mjs", code), ("mote.toml", &limits(enough))]);
        assert_eq!(node.get(&format!("/{name}")).text(), "answered", "{name}");
    }
}

const HTTPS_SERVER: &str = "
import http.server, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header('content-length', '5')
        self.end_headers()
        self.wfile.write(b'hello')
server = http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('server.pem', 'server.key')
server.socket = context.wrap_socket(server.socket, server_side=True)
print('ready', flush=True)
server.serve_forever()
";

/// An authority, and a server on loopback with a certificate that the authority has signed.
struct HttpsServer {
    folder: tempfile::TempDir,
    child: std::process::Child,
    port: u16,
}

impl HttpsServer {
    fn start() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let script = "set -e
key='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'
openssl req -x509 $key -keyout ca.key -out ca.pem -days 2 -subj /CN=plant
echo subjectAltName=DNS:localhost > names
openssl req $key -keyout server.key -out server.csr -subj /CN=server
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out server.pem -extfile names";
        let made = Command::new("sh").args(["-c", script]).current_dir(&folder).output();
        if !made.is_ok_and(|made| made.status.success()) {
            skip("private authorities", "openssl makes no certificates here");
            return None;
        }
        let port = free_port();
        let mut child = Command::new("python3")
            .args(["-c", HTTPS_SERVER, &port.to_string()])
            .current_dir(&folder)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("python3");
        let mut ready = [0; 5];
        let stdout = child.stdout.as_mut().expect("piped");
        std::io::Read::read_exact(stdout, &mut ready).expect("the server listens");
        Some(Self { folder, child, port })
    }
}

impl Drop for HttpsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn servers_of_a_private_authority_are_trusted_if_the_manifest_says_so() {
    let Some(server) = HttpsServer::start() else { return };
    let authority = std::fs::read_to_string(server.folder.path().join("ca.pem")).expect("made");
    let port = server.port;
    let code = format!(
        "import https from 'node:https';\nconst url = 'https://localhost:{port}/';\n\
         export default async () => {{\n  \
         const one = await fetch(url).then((answer) => answer.text(), () => 'refused');\n  \
         const two = await new Promise((done) => https.get(url, (answer) => answer.on('data', (data) => done(`${{data}}`)))\
         .on('error', () => done('refused')));\n  return `${{one}} ${{two}}`;\n}};\n"
    );
    let (node, installed) = start();
    for name in with_node(installed) {
        let own = "NODE_EXTRA_CA_CERTS = \"/function/plant.pem\"";
        let of_deno = "DENO_TLS_CA_STORE = \"system\"\nSSL_CERT_FILE = \"/function/plant.pem\"";
        let mut cases = vec![("", "refused refused"), (own, "hello hello")];
        cases.extend((name == "deno").then_some((of_deno, "hello hello")));
        for (env, expected) in cases {
            let settings =
                manifest(name, &format!("[env]\n{env}\n[allow]\nnet = [\"localhost:{port}\"]\n"));
            let files =
                [("index.mjs", &*code), ("plant.pem", &authority), ("mote.toml", &settings)];
            node.deploy_ok(name, &files);
            assert_eq!(node.get(&format!("/{name}")).text(), expected, "{name}: {env}");
        }
    }
}
