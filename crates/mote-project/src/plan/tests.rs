use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::write_anew;

/// Makes a folder `demo` of these files (`!` before a name makes it executable) and reads it.
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
        Runtime::Python | Runtime::Node | Runtime::Go => spec.entry.clone(),
        _ => spec.command.join(" "),
    };
    assert_eq!((spec.runtime, found.as_str()), (runtime, entry), "{files:?}");
}

fn check_error(files: &[(&str, &str)], expected: &str) {
    let error = read_files(files).unwrap_err();
    assert_eq!(error, expected, "{files:?}");
}

const HANDLE: &str = "def handle(event, ctx):\n    return 1\n";

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

/// Reads a folder `demo` with a manifest of another platform.
fn read_foreign_files(files: &[(&str, &str)]) -> Result<Project, Mistakes> {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("demo");
    for (name, content) in files {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    read(&root, Options::default())
}

#[test]
fn a_copy_of_a_folder_does_not_name_the_function() {
    let manifest = "apiVersion: nuclio.io/v1\nkind: NuclioFunction\nspec:\n  runtime: python\n  \
                    handler: main:handler\n  build:\n    commands: [pip install requests]\n";
    let code = "def handler(context, event):\n    return 1\n";
    let project = read_foreign_files(&[("function.yaml", manifest), ("main.py", code)]).unwrap();
    assert_eq!(project.functions[0].spec.name.as_str(), "demo");
    let other = manifest.replace("pip install requests", "apk add git");
    let wrong = read_foreign_files(&[("function.yaml", &other), ("main.py", code)]).err();
    let wrong = wrong.expect("it is refused").0.remove(0);
    assert_eq!(wrong.text, "function.yaml: demo: build.commands: `apk add git` is not supported");
}

#[test]
fn a_func_yaml_of_the_first_versions_is_read() {
    let manifest =
        "name: battery\nruntime: node\nnamespace: \"\"\nenvs:\n- name: UNIT\n  value: C\n";
    let code = "exports.handle = (context) => context.method;\n";
    let project = read_foreign_files(&[("func.yaml", manifest), ("index.js", code)]).unwrap();
    let planned = &project.functions[0];
    assert_eq!((planned.spec.name.as_str(), &*planned.spec.env["UNIT"]), ("battery", "C"));
    assert_eq!(planned.manifest.as_deref(), Some("func.yaml"));
    // Any other file with these keys may belong to the function.
    let files = [("settings.yaml", manifest), ("index.js", code)];
    let project = read_foreign_files(&files).unwrap();
    assert_eq!(project.functions[0].manifest, None);
}

#[test]
fn specs_of_fission_name_the_code_beside_them() {
    let spec = |name: &str, include: &str, environment: &str, function: &str| {
        format!(
            "kind: ArchiveUploadSpec\nname: a-{name}\ninclude: {include}\n---\n\
             apiVersion: fission.io/v1\nkind: Package\nmetadata: {{name: p-{name}}}\nspec:\n  \
             source: {{type: url, url: 'archive://a-{name}'}}\n---\n\
             apiVersion: fission.io/v1\nkind: Function\nmetadata: {{name: {name}}}\nspec:\n  \
             environment: {{name: {environment}}}\n  \
             package: {{functionName: '{function}', packageref: {{name: p-{name}}}}}\n"
        )
    };
    let environments = "apiVersion: fission.io/v1\nkind: Environment\nmetadata: {name: own}\n\
                        spec: {runtime: {image: 'fission/node-env:1'}}\n---\n\
                        apiVersion: fission.io/v1\nkind: HTTPTrigger\nmetadata: {name: route}\n\
                        spec: {functionref: {name: form}, relativeurl: /show}\n";
    let form = spec("form", "['form/*']", "python", "form.main");
    let single = spec("single", "['calc.py']", "python", "user.main");
    let several = spec("several", "['src/*', 'lib', 'node_modules/']", "own", "index");
    let program = spec("program", "['*.sh', tool]", "binary", "run.sh");
    let lost = spec("lost", "['dist/*.zip']", "go", "Handler");
    let java = spec("java", "['calc.py']", "jvm", "io.Hello");
    let main = "def main():\n    return 'x'\n";
    let project = read_foreign_files(&[
        (
            "specs/fission-deployment-config.yaml",
            "apiVersion: fission.io/v1\nkind: DeploymentConfig\n",
        ),
        ("specs/environments.yaml", environments),
        ("specs/form.yaml", &form),
        ("specs/single.yaml", &single),
        ("specs/several.yaml", &several),
        ("specs/program.yaml", &program),
        ("specs/lost.yaml", &lost),
        ("specs/java.yaml", &java),
        ("specs/notes.yaml", "not: [whole"),
        ("form/form.py", main),
        ("form/requirements.txt", ""),
        ("calc.py", main),
        ("src/index.js", "module.exports = async (context) => ({ status: 200 });\n"),
        ("lib/words.js", "module.exports = 'x';\n"),
        ("package.json", "{}"),
        ("run.sh", "#!/bin/sh\n./tool\n"),
        ("tool", "#!/bin/sh\necho x\n"),
    ])
    .unwrap();
    let told: Vec<String> = project
        .functions
        .iter()
        .map(|one| {
            let spec = &one.spec;
            let code = one.code.as_ref().unwrap().path();
            let mut files: Vec<String> = match fs::read_dir(code) {
                Ok(entries) => {
                    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
                }
                _ => vec![code.file_name().unwrap().to_str().unwrap().to_owned()],
            };
            files.sort();
            let called = format!("{}{}", spec.entry, spec.command.join(" "));
            format!("{} {} {called}: {}", spec.name, spec.runtime.as_str(), files.join(" "))
        })
        .collect();
    assert_eq!(
        told,
        [
            "form python form:main: form",
            "program exec /bin/sh ./run.sh: run.sh tool",
            "several node index.js: index.js lib package.json",
            "single python calc:main: calc.py",
        ]
    );
    let said: Vec<&str> = project.left_out.iter().map(|one| &*one.mistakes.0[0].text).collect();
    assert_eq!(
        said,
        [
            "specs: java: environment \"jvm\" is not supported",
            "specs: lost: no file matches dist/*.zip of its ArchiveUploadSpec",
        ]
    );
    assert_eq!(
        project.functions[0].warnings,
        ["HTTPTrigger route: the function answers at /form here, not at /show"]
    );
    assert_eq!(project.functions[2].warnings, ["ArchiveUploadSpec: no file matches node_modules/"]);
}

#[test]
fn templates_that_have_no_adapter_are_refused_by_name() {
    for (file, manifest, said) in [
        (
            "stack.yml",
            "provider: {name: openfaas}\nfunctions:\n  a: {lang: node10-express-service, handler: .}\n",
            "stack.yml: a: lang \"node10-express-service\" is not supported",
        ),
        (
            "old.yaml",
            "apiVersion: k8s.io/v1\nkind: Function\nmetadata: {name: a}\nspec:\n  handler: a.f\n  \
             runtime: python2.7\n  function: \"def f():\\n  return 1\"\n",
            "old.yaml: a: a function without event and context is not supported",
        ),
        (
            "function.yaml",
            "metadata: {name: a}\nspec:\n  runtime: golang\n  handler: main:Handler\n  \
             dataBindings: {db0: {class: v3io}}\n",
            "function.yaml: a: spec.dataBindings is not supported",
        ),
    ] {
        let wrong = read_foreign_files(&[(file, manifest)]).err();
        let wrong = wrong.expect("it is refused").0.remove(0);
        assert_eq!((wrong.code, &*wrong.text), ("M0305", said));
    }
}

#[test]
fn what_cannot_be_guessed_is_said() {
    check_error(
        &[("Dockerfile", "FROM scratch")],
        "error[M0111]: demo: container images (Dockerfile) are not supported yet\n  deploy the program itself: runtime = \"server\" and command in mote.toml",
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

/// Checks the platform that the files imply, with runtime and entry; `None` for our own contract.
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
    // Similar to a platform's function, but our own.
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
    assert_eq!(planned[0].spec.egress[0], Egress { host: "::1".into(), port: 80 });
}

#[test]
fn a_fission_function_is_read_from_the_spec_beside_its_code() {
    let spec = "apiVersion: fission.io/v1\nkind: Package\nmetadata: {name: hello-pkg}\n---\n\
                apiVersion: fission.io/v1\nkind: Function\nmetadata: {name: hello}\nspec:\n  \
                environment: {name: python-env}\n  functionTimeout: 20\n  \
                package: {functionName: app.greet, packageref: {name: hello-pkg}}\n";
    let code = "def greet():\n    return 'hello'\n";
    let project = read_foreign_files(&[("function.yaml", spec), ("app.py", code)]).unwrap();
    let spec = &project.functions[0].spec;
    assert_eq!((spec.name.as_str(), spec.entry.as_str()), ("hello", "app:greet"));
    assert_eq!((spec.compat, spec.limits.timeout_ms), (Some(Platform::Fission), 20_000));

    let package = "apiVersion: fission.io/v1\nkind: Package\nmetadata: {name: p}\n";
    let code = "def main():\n    return 'hello'\n";
    let project = read_foreign_files(&[("package.yaml", package), ("main.py", code)]).unwrap();
    assert_eq!(project.functions[0].spec.compat, Some(Platform::Fission));
}

#[test]
fn a_function_of_parliament_is_known_by_its_import() {
    let manifest = "specVersion: 0.36.0\nname: old\nruntime: python\n";
    let code = "from parliament import Context\ndef main(context: Context):\n    return 'x', 200\n";
    let project = read_foreign_files(&[("func.yaml", manifest), ("func.py", code)]).unwrap();
    let spec = &project.functions[0].spec;
    assert_eq!((spec.template.as_deref(), &*spec.entry), (Some("parliament"), "func:main"));
}

#[test]
fn a_nuclio_block_without_a_runtime_is_of_its_files_language() {
    let code = "# @nuclio.configure\n#\n# function.yaml:\n#   spec:\n#     handler: greet:run\n\n\
                def run(context, event):\n    return 'hello'\n";
    let project = read_foreign_files(&[("greet.py", code)]).unwrap();
    let spec = &project.functions[0].spec;
    assert_eq!((spec.runtime, &*spec.entry), (Runtime::Python, "greet:run"));
}

#[test]
fn nothing_is_written_where_a_link_in_the_code_leads() {
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim");
    fs::write(&victim, "untouched").unwrap();
    let root = dir.path().join("demo");
    fs::create_dir(&root).unwrap();
    let manifest = "metadata: {name: demo}\nspec:\n  runtime: python\n  handler: main:handler\n  \
                    build:\n    commands: [pip install requests]\n";
    fs::write(root.join("function.yaml"), manifest).unwrap();
    fs::write(root.join("main.py"), "def handler(context, event):\n    return 1\n").unwrap();
    std::os::unix::fs::symlink(&victim, root.join("requirements.txt")).unwrap();
    let read = read(&root, Options::default());
    assert!(read.is_err());
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");

    // The same applies to a link in place of a file that is not read first.
    fs::remove_file(root.join("requirements.txt")).unwrap();
    std::os::unix::fs::symlink(&victim, root.join("mote.toml")).unwrap();
    write_anew(&root.join("mote.toml"), "own").unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
    assert_eq!(fs::read_to_string(root.join("mote.toml")).unwrap(), "own");
}

#[test]
fn an_action_that_calls_its_platform_is_told_so_at_its_deploy() {
    let manifest = "packages:\n  default:\n    actions:\n      a: {function: a.js}\n";
    let code = "const ow = require('openwhisk');\nfunction main(args) { return ow(); }\n";
    let project = read_foreign_files(&[("manifest.yaml", manifest), ("a.js", code)]).unwrap();
    let said = project.functions[0].warnings.join("\n");
    assert!(said.contains("a.js calls OpenWhisk's API"), "{said}");
}

#[test]
fn manifests_that_would_take_long_to_parse_are_refused_first() {
    let read = |manifest: &str| {
        let since = std::time::Instant::now();
        let read = read_foreign_files(&[("stack.yml", manifest)]);
        assert!(since.elapsed() < std::time::Duration::from_secs(10), "{:?}", since.elapsed());
        read.err().map(|wrong| wrong.0[0].text.clone()).unwrap_or_default()
    };
    // The parser visits every open table at every word, so these inputs would take minutes.
    for deep in ["{a: ".repeat(250_000), "[".repeat(1_000_000), "- [{\"a]\": ".repeat(90_000)] {
        assert!(read(&deep).starts_with("stack.yml: too large to read ("), "{:.8}", deep);
    }
    // Small inputs are parsed and are then refused for their depth.
    let text = read(&"{a: ".repeat(1_000));
    assert!(text.contains("recursion limit"), "{text}");
    // A large number of functions alone is not refused.
    let mut many = String::from("provider: {name: openfaas}\nfunctions:\n");
    for n in 0..1_000 {
        many.push_str(&format!(
            "  f{n}: {{lang: nothing, handler: ., limits: {{memory: 64Mi}}, labels: {{a: b}}}}\n"
        ));
    }
    assert!(!read(&many).contains("too large"), "a thousand functions are refused");
}

#[test]
fn mqtt_triggers() {
    use mote_core::spec::mqtt::{Acknowledge, MqttTrigger, MqttVersion};
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
