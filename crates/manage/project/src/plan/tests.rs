use std::os::unix::fs::PermissionsExt;

use mote_spec::Egress;

use super::*;

/// Makes a folder `demo` with these files and reads it. A `!` before a file's name makes the file
/// executable.
fn read_files(files: &[(&str, &str)]) -> Result<Vec<Planned>, String> {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("demo");
    for (name, content) in files {
        let path = root.join(name.trim_start_matches('!'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        if name.starts_with('!') {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
    let options = Options { check_machine: true, ..Options::default() };
    read_own(&root, options)
        .map(|project| project.functions)
        .map_err(|mistakes| mistakes.to_string())
}

fn check(files: &[(&str, &str)], runtime: Runtime, entry: &str) {
    let planned = read_files(files).unwrap();
    let spec = &planned[0].spec;
    let found = match runtime {
        Runtime::Python | Runtime::Node | Runtime::Bun | Runtime::Deno | Runtime::Go => {
            spec.entry.clone()
        }
        _ => spec.command.join(" "),
    };
    assert_eq!((spec.runtime, found.as_str()), (runtime, entry), "{files:?}");
}

fn check_error(files: &[(&str, &str)], expected: &str) {
    let error = read_files(files).unwrap_err();
    assert_eq!(error, expected, "{files:?}");
}

const HANDLE: &str = "def handle(event, ctx):\n    return 1\n";

/// In a stranger's project, each file that is read before the upload may be a pipe, a device or a link.
#[test]
fn only_regular_files_of_a_project_are_read() {
    use std::os::unix::fs::symlink;
    let names = [
        "mote.toml",
        "stack.yml",
        "function.yaml",
        "func.yaml",
        "chain.yaml",
        "manifest.yaml",
        "package.json",
        "requirements.txt",
        "handler.js",
        "specs/a.yaml",
    ];
    for name in names {
        for kind in ["pipe", "/dev/zero", "/etc/passwd", "/etc"] {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().join("demo");
            fs::create_dir_all(root.join("specs")).unwrap();
            fs::write(root.join("app.py"), HANDLE).unwrap();
            let path = root.join(name);
            match kind {
                "pipe" => {
                    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
                    assert!(made.success());
                }
                target => symlink(target, &path).unwrap(),
            }
            // Reading must end; any result is accepted. No archive may contain such a file either.
            let read = read(&root, Options::default());
            let packed = mote_store::pack::pack(&root, None);
            if name == "mote.toml" {
                let text = read.expect_err(kind).to_string();
                assert!(
                    text.starts_with("error[M1301]: ") && text.contains(name),
                    "{kind}: {text}"
                );
            }
            let error = packed.expect_err(kind);
            assert_eq!(error.code(), "M1301", "{name} {kind}: {error}");
            assert!(error.to_string().starts_with(name), "{error}");
        }
    }
    // A large manifest and a link within the folder are permitted.
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("app.py"), HANDLE).unwrap();
    fs::write(dir.path().join("real.toml"), "version = 1\n").unwrap();
    symlink("real.toml", dir.path().join("mote.toml")).unwrap();
    read(dir.path(), Options::default()).expect("usable");
    fs::write(dir.path().join("real.toml"), "#".repeat(2 << 20)).unwrap();
    let text = read(dir.path(), Options::default()).expect_err("too large").to_string();
    assert!(text.contains("larger than 1 mib"), "{text}");
}

#[test]
fn guesses() {
    check(&[("hello.py", HANDLE)], Runtime::Python, "hello:handle");
    check(&[("a.py", ""), ("app.py", "app = Flask(__name__)")], Runtime::Python, "app:app");
    check(
        &[("a.py", ""), ("demo.py", "async def handle(e, c): pass")],
        Runtime::Python,
        "demo:handle",
    );
    check(&[("main.py", "from lib import handle\n")], Runtime::Python, "main:handle");
    check(&[("index.mjs", "export default {}")], Runtime::Node, "index.mjs");
    let parts = [("index.ts", "export default {}"), ("page.tsx", "export const page = 1")];
    check(&parts, Runtime::Node, "index.ts");
    check(&[("f.cts", "export default {}")], Runtime::Node, "f.cts");
    let tsx = |runtime: &str| format!("version = 1\nruntime = \"{runtime}\"\n");
    for (name, runtime) in [("bun", Runtime::Bun), ("deno", Runtime::Deno)] {
        let files = [("index.tsx", "export default {}"), ("mote.toml", &tsx(name))];
        check(&files, runtime, "index.tsx");
    }
    check(
        &[("package.json", r#"{"main": "./src/f.js"}"#), ("src/f.js", "")],
        Runtime::Node,
        "src/f.js",
    );
    check(&[("go.mod", "module a"), ("a.go", "package a\nfunc Handle(w")], Runtime::Go, "Handle");
    check(&[("!run", "#!/bin/sh\n")], Runtime::Exec, "./run");
    check(&[("fn.sh", "cat\n")], Runtime::Exec, "sh ./fn.sh");
    check(
        &[("mote.toml", "version = 1\nentry = \"pkg.mod:go\"\n"), ("pkg/mod.py", "")],
        Runtime::Python,
        "pkg.mod:go",
    );
    check(&[("mote.toml", "version = 1\ncommand = [\"cat\"]\n")], Runtime::Exec, "cat");
    check(
        &[("mote.toml", "version = 1\nruntime = \"server\"\n"), ("!srv", "#!/bin/sh\n")],
        Runtime::Server,
        "./srv",
    );
}

#[test]
fn what_cannot_be_guessed_is_said() {
    check_error(
        &[("Dockerfile", "FROM scratch")],
        "error[M0111]: demo: a Dockerfile, from which mote builds nothing\n  build the image and deploy it: docker build -t NAME . && docker save NAME -o NAME.tar && mote deploy NAME.tar",
    );
    check_error(
        &[("index.tsx", "export default {}")],
        "error[M0112]: index.tsx: Node runs no files with JSX\n  write runtime = \"bun\" or \"deno\" in mote.toml, or build the file to JavaScript",
    );
    check_error(
        &[("a.py", HANDLE), ("index.js", "")],
        "error[M0110]: a.py suggests python, index.js suggests node\n  write runtime = \"python\" or \"node\" in mote.toml",
    );
    check_error(
        &[("package.json", r#"{"main": "dist/f.js", "scripts": {"build": "x"}}"#)],
        "error[M0113]: package.json: main `dist/f.js` is not part of the function\n  build it first: npm install, npm run build; or name another file in main",
    );
    check_error(
        &[("f.py", "def handler(event, context):\n    return event['data']\n")],
        "error[M0112]: f.py has no `def handle(event, ctx)` and no `app`\n  to use `handler`: entry = \"f:handler\" in mote.toml, and compat = \"kubeless\" if it was written for Kubeless",
    );
    check_error(
        &[("f.py", "def lambda_handler(event, context): pass\n")],
        "error[M0112]: f.py has no `def handle(event, ctx)` and no `app`\n  to use `lambda_handler`: entry = \"f:lambda_handler\" in mote.toml",
    );
    check_error(
        &[("!a", "#!/bin/sh\n"), ("!b", "#!/bin/sh\n")],
        "error[M0110]: demo: several programs (a, b)\n  write command = [\"./a\"] in mote.toml",
    );
    check_error(
        &[("!run.sh", "#!/bin/sh\r\necho\r\n")],
        "error[M0121]: run.sh: line 1 ends in CR, so its interpreter cannot be found\n  sed -i 's/\\r$//' run.sh",
    );
    check_error(
        &[("mote.toml", "version = 1\ncommand = [\"./x\"]\n")],
        "error[M0113]: command: `./x` is not part of the function",
    );
    check_error(
        &[("mote.toml", "version = 1\ncommand = [\"./x\"]\n"), ("x", "#!/bin/sh\n")],
        "error[M0114]: x is not executable\n  chmod +x x",
    );
    check_error(
        &[("mote.toml", "version = 1\nname = \"Foo\"\n"), ("a.py", HANDLE)],
        "error[M0115]: mote.toml: name: 1–63 characters of a–z, 0–9 and -, not beginning or ending with - (line 2)",
    );
    check_error(
        &[("mote.toml", "version = 1\nentry = \"../x:y\"\n")],
        "error[M0303]: mote.toml: entry: module:object, e.g. app:handle; found `../x:y` (line 2)",
    );
    check_error(
        &[("mote.toml", "version = 1\n[[trigger]]\nhttp = \"/a//b\"\n"), ("a.py", HANDLE)],
        "error[M0303]: mote.toml: http: a path such as /orders/{id} or /files/{path...}: it begins with /; parameter names differ, have at most 32 lower-case letters, digits or _, and do not begin with a digit; {name...} or * is the last segment; other segments contain no %, space, *, { or }; at most 32 segments and 1,024 bytes (line 3)",
    );
}

/// Checks which platform, runtime and entry the files imply; `None` stands for `mote`'s own contract.
fn check_contract(files: &[(&str, &str)], expected: Option<(Platform, &str)>) {
    let spec = read_files(files).unwrap().remove(0).spec;
    let found = if spec.runtime == Runtime::Exec { spec.command.join(" ") } else { spec.entry };
    let found = spec.compat.map(|compat| (compat, found.as_str().to_owned()));
    assert_eq!(found, expected.map(|(compat, entry)| (compat, entry.to_owned())), "{files:?}");
}

#[test]
fn contracts_of_other_platforms() {
    use Platform::{Fission, Knative, Nuclio, OpenFaas, OpenWhisk, TinyFaas};
    let check = check_contract;
    check(&[("main.py", "def handler(context, event):\n")], Some((Nuclio, "main:handler")));
    check(
        &[("a.py", "import nuclio_sdk\nasync def handler(c: X,\n  e):\n")],
        Some((Nuclio, "a:handler")),
    );
    check(
        &[("handler.js", "exports.handler = function (context, event) {}")],
        Some((Nuclio, "handler.js:handler")),
    );
    check(&[("fn.py", "def fn(input: str, headers):\n")], Some((TinyFaas, "fn:fn")));
    check(&[("fn.sh", "#!/bin/sh\n")], Some((TinyFaas, "sh ./fn.sh")));
    check(
        &[("fn.sh", "#!/usr/bin/env bash\n"), ("a.sh", "#!/bin/sh\n")],
        Some((TinyFaas, "/usr/bin/env bash ./fn.sh")),
    );
    check(&[("package.json", "{\"name\":\"fn\"}"), ("index.js", "")], Some((TinyFaas, "index.js")));
    check(&[("handler.py", "def handle(event, context):\n")], Some((OpenFaas, "handler:handle")));
    check(&[("handler.py", "def handle(req):\n")], Some((OpenFaas, "handler:handle")));
    check(
        &[("handler.js", "module.exports = async (event, context) => {}")],
        Some((OpenFaas, "handler.js")),
    );
    check(&[("hello.py", "def main(args):\n")], Some((OpenWhisk, "hello:main")));
    for source in [
        "function main(params) {}",
        "function main (params) {}\nexports.main = main",
        "async function main({ a, b: { c } }) {}",
        "function main ({\n  a,\n  b = [1, 2]\n}) {}",
        "const main = async (params) => params;",
        "var main = function ({ a }) {}",
    ] {
        check(&[("index.js", source)], Some((OpenWhisk, "index.js:main")));
    }
    check(&[("m.py", "def main(args: Dict[str, Any]) -> dict:\n")], Some((OpenWhisk, "m:main")));
    // No platform is inferred for a function with two arguments.
    check(&[("index.js", "const main = ({ a }, b) => 1;\nexport default main;")], None);
    check(&[("user.py", "from flask import request\ndef main():\n")], Some((Fission, "user:main")));
    let fastapi = "from fastapi import Request\nasync def main(request: Request):\n";
    check(&[("user.py", fastapi)], Some((Fission, "user:main")));
    let parliament = "from parliament import Context\ndef main(context: Context):\n";
    check(&[("func.py", parliament)], Some((Knative, "func:main")));
    check(&[("m.py", "import fastapiary\ndef main(args):\n")], Some((OpenWhisk, "m:main")));
    check(
        &[("index.js", "const f = async (context) => 1;\nmodule.exports = f;")],
        Some((Fission, "index.js")),
    );
    check(&[("func.py", "def new():\n")], Some((Knative, "func:new")));
    check(
        &[
            ("function/__init__.py", "from .func import new\n"),
            ("function/func.py", "def new():\n"),
            ("pyproject.toml", ""),
        ],
        Some((Knative, "function:new")),
    );
    for source in [
        "exports.handle = async (context, body) => {}",
        "const handle = async (context, event) => {};\nmodule.exports = { handle };",
        "async function handle(context) {}\nexport { other, handle };",
        "export async function handle(context, body) {}",
        "module.exports = {\n  init: () => {},\n  handle: (context) => 1,\n};",
    ] {
        check(&[("index.js", source)], Some((Knative, "index.js:handle")));
    }
    check(&[("fn.go", "package main\nfunc fn(d string)")], Some((TinyFaas, "fn")));
    check(
        &[("h.go", "package function\nfunc Handle(w http.ResponseWriter, r *http.Request) {")],
        Some((OpenFaas, "Handle")),
    );
    check(&[("f.go", "package function\nfunc New() *T {")], Some((Knative, "New")));
    check(
        &[("f.go", "package function\nfunc Handle(ctx context.Context, e event.Event) error {")],
        Some((Knative, "Handle")),
    );
    check(&[("m.go", "package main\nfunc Main(obj map[string]any) {")], Some((OpenWhisk, "Main")));
    check(&[("m.go", "package main\nfunc Handler(w, r) {")], Some((Fission, "Handler")));
    // This function resembles that of a platform, but it follows `mote`'s own contract.
    check(&[("a.go", "package a\nfunc Handle(w http.ResponseWriter, r *http.Request) {")], None);
    check(&[("handler.py", "def handle(event, ctx):\n")], None);
    check(&[("handler.py", "def handle(event):\n")], None);
    check(&[("handler.js", "module.exports = (event, ctx) => 1")], None);
    check(&[("handler.js", "exports.handle = (event, ctx) => 1")], None);
    check(
        &[
            ("mote.toml", "version = 1\nentry = \"handler:handle\"\n"),
            ("handler.py", "def handle(event, context):\n"),
        ],
        None,
    );
}

#[test]
fn a_named_contract_needs_no_entry() {
    let manifest = ("mote.toml", "version = 1\ncompat = \"nuclio\"\n");
    check_contract(&[manifest, ("main.py", "")], Some((Platform::Nuclio, "main:handler")));
    check_error(
        &[("mote.toml", "version = 1\ncompat = \"knative\"\ncommand = [\"cat\"]\n")],
        "error[M0305]: mote.toml: compat \"knative\" is not supported yet for runtime exec (line 2)",
    );
    for (arguments, contract) in [
        ("context *nuclio.Context, event nuclio.Event", Platform::Nuclio),
        ("event functions.Event, context functions.Context", Platform::Kubeless),
    ] {
        let code = format!("package main\nfunc Help() {{}}\nfunc Measure({arguments}) {{");
        check_contract(&[("m.go", &code)], Some((contract, "Measure")));
    }
    let bytes = ("handler.go", "package function\nfunc Handle(req []byte) string {");
    check_contract(&[bytes], Some((Platform::OpenFaas, "Handle")));
    check_error(
        &[("mote.toml", "version = 1\ntemplate = \"python3\"\n"), ("app.py", HANDLE)],
        "error[M0306]: mote.toml: template: needs compat, the platform whose template it is (line 2)",
    );
    check_error(
        &[("mote.toml", "version = 1\nport = 5000\n"), ("app.py", HANDLE)],
        "error[M0303]: mote.toml: port: only for runtime server (line 2)",
    );
}

#[test]
fn programs_of_other_machines_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hello");
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0".to_vec();
    let foreign: u16 = if cfg!(target_arch = "riscv64") { 62 } else { 243 };
    elf.extend(foreign.to_le_bytes());
    fs::write(&path, &elf).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let mut options = Options { check_machine: true, ..Options::default() };
    let error = read_own(&path, options).unwrap_err();
    assert_eq!(error.0[0].code, "M0120");
    assert!(error.0[0].text.starts_with("hello is built for "), "{error}");
    options.check_machine = false;
    assert_eq!(read_own(&path, options).unwrap().functions[0].spec.command, ["./hello"]);
}

#[test]
fn a_manifest_that_hides_a_contract_is_said() {
    let handler = ("handler.py", "def handle(event, context):\n    return {\"statusCode\": 201}\n");
    let warnings = |manifest: &str| {
        let files = [handler, ("mote.toml", manifest)];
        read_files(&files).unwrap()[0].warnings.clone()
    };
    let told = "the files look like a function of openfaas (handler.py: handle, template \
                python3-http), and mote.toml does not say so; write compat = \"openfaas\" in it, or \
                entry for a function of mote";
    assert_eq!(warnings("version = 1\n"), [told]);
    assert!(warnings("version = 1\ncompat = \"openfaas\"\n").is_empty());
    assert!(warnings("version = 1\nentry = \"handler:handle\"\n").is_empty());
    let own = [("handler.py", HANDLE), ("mote.toml", "version = 1\n")];
    assert!(read_files(&own).unwrap()[0].warnings.is_empty());
}

#[test]
fn a_single_file_is_named_by_its_stem() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("My_Func.py");
    fs::write(&path, HANDLE).unwrap();
    let planned = read_own(&path, Options::default()).unwrap().functions;
    assert_eq!(planned[0].spec.name.as_str(), "my-func");
    assert_eq!(planned[0].spec.entry, "My_Func:handle");
    assert_eq!(planned[0].guesses, ["python (My_Func.py)", "entry My_Func:handle"]);
    let named = Options { name: Some("other"), ..Options::default() };
    assert_eq!(read_own(&path, named).unwrap().functions[0].spec.name.as_str(), "other");
}

#[test]
fn several_functions_share_a_folder() {
    let planned = read_files(&[
        ("mote.toml", "version = 1\n[function.a]\nentry = \"m:a\"\n[function.b]\nentry = \"m:b\"\n[function.b.limits]\nmemory = \"8MiB\"\n"),
        ("m.py", ""),
    ])
    .unwrap();
    assert_eq!(planned.len(), 2);
    assert_eq!(planned[1].spec.limits.memory_bytes, 8 << 20);
}

/// The check of specs must accept every value that the manifest's own ranges permit.
#[test]
fn the_widest_manifest_is_a_valid_spec() {
    let manifest = "version = 1\nmethods = [\"GET\"]\n[limits]\nmemory = \"512GiB\"\ntimeout = \"1h\"\n\
         init_timeout = \"10m\"\nconcurrency = 4096\ncpu = 1024\npids = 32768\nbody = \"1GiB\"\n\
         disk = \"64GiB\"\n[scale]\nmin = 1000\nmax = 1000\nidle = \"168h\"\nqueue = 100000\n\
         [allow]\nnet = [\"[::1]:80\", \"influx.local:8086\"]\n";
    let planned = read_files(&[("mote.toml", manifest), ("app.py", HANDLE)]).unwrap();
    assert_eq!(planned[0].spec.check(), []);
    assert_eq!(planned[0].spec.egress[0], Egress::tcp("::1", 80));
}

#[test]
fn mqtt_triggers() {
    use mote_spec::mqtt::{Acknowledge, MqttTrigger, MqttVersion};
    let manifest = |lines: &str| format!("version = 1\n[[trigger]]\nmqtt = \"s/+/t\"\n{lines}");
    let of = |lines: &str| read_files(&[("mote.toml", &manifest(lines)), ("a.py", HANDLE)]);
    let trigger = |lines: &str| of(lines).unwrap()[0].spec.mqtt[0].clone();
    assert_eq!(trigger(""), MqttTrigger::new("s/+/t"));
    let found = trigger("version = \"3.1.1\"\nacknowledge = \"stored\"\nqos = 2\n");
    assert_eq!((found.version, found.acknowledge), (MqttVersion::V311, Acknowledge::Stored));
    let error = |lines: &str| of(lines).unwrap_err();
    assert_eq!(
        error("qos = 1\nbroker = \"tcp://a\"\n"),
        "error[M0303]: mote.toml: broker: mqtt://HOST:PORT or mqtts://HOST:PORT (line 5)"
    );
    assert_eq!(
        error("reply = \"s/{2}/x\"\n"),
        "error[M0303]: mote.toml: reply: {1} stands for the wildcard of the filter (line 4)"
    );
    let twice = "[[trigger]]\nmqtt = \"s/+/t\"\n";
    assert_eq!(
        error(twice),
        "error[M0303]: mote.toml: mqtt: another trigger of this function has the same filter and \
         broker (line 5)"
    );
}

#[test]
fn a_destination_that_is_always_refused_is_said() {
    let warnings = |net: &str| {
        let manifest = format!("version = 1\n[allow]\nnet = [\"{net}\"]\n");
        let files = [("demo.py", HANDLE), ("mote.toml", &manifest)];
        let mut planned = read_files(&files).unwrap().remove(0);
        crate::allow(&mut planned, &[]);
        planned.warnings
    };
    let said = "is a link-local address, which no function can reach: connections to it will fail";
    assert_eq!(warnings("169.254.169.254:80"), [format!("allow.net: 169.254.169.254:80 {said}")]);
    assert_eq!(warnings("udp://[fe80::1]:53"), [format!("allow.net: udp://[fe80::1]:53 {said}")]);
    assert!(warnings("192.0.2.7:80").is_empty());
}

#[test]
fn a_manifest_names_no_field_of_a_connection() {
    for name in mote_spec::hop_by_hop::FIELDS {
        let manifest = format!("version = 1\n[http]\nheaders = [\"{name}\"]\n");
        let error = read_files(&[("mote.toml", &manifest), ("function.py", HANDLE)]).unwrap_err();
        assert!(error.contains("never has this field"), "{name}: {error}");
    }
}

/// Nodes read uploads with the same code, so the path of a program must not lead out of the folder.
#[test]
fn the_program_of_a_rust_function_is_in_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("thermo");
    fs::create_dir_all(path.join("target/release")).unwrap();
    fs::write(folder.path().join("outside"), "#!/bin/sh\n").unwrap();
    fs::write(path.join("Cargo.toml"), "[package]\nname = \"meter\"\n").unwrap();
    let manifest = |more: &str| {
        let text = format!("version = 1\nruntime = \"rust\"\n{more}");
        fs::write(path.join("mote.toml"), text).unwrap();
    };
    let mistake = || read_own(&path, Options::default()).unwrap_err().to_string();
    manifest("");
    assert!(mistake().contains("target/release/meter is not there"), "{}", mistake());
    for program in ["../outside", "target/../../outside"] {
        manifest(&format!("command = [\"{program}\"]\n"));
        assert!(mistake().contains("is not there"), "{}", mistake());
    }
    std::os::unix::fs::symlink(folder.path().join("outside"), path.join("link")).unwrap();
    manifest("command = [\"link\"]\n");
    assert!(mistake().contains("the link leaves the folder"), "{}", mistake());
    let program = path.join("target/release/meter");
    fs::write(&program, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    manifest("");
    let planned = &read_own(&path, Options::default()).unwrap().functions[0];
    assert_eq!(planned.spec.command, ["./target/release/meter"]);
    assert!(planned.code.is_none());
    let planned = &crate::read(&path, Options::default()).unwrap().functions[0];
    assert_eq!(planned.spec.command, ["./meter"]);
    assert_eq!(planned.code.as_ref().map(crate::Code::path), Some(program.as_path()));
}
