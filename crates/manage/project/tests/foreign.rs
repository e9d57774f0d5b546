//! Tests the manifests of other platforms: reads folders of files and checks the resulting functions.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use mote_project::{Options, Planned, Project, foreign, read, write_anew};
use mote_spec::toml_reader::Mistakes;
use mote_spec::{Platform, Runtime};

/// Reads a folder `demo` that contains a manifest of another platform.
fn read_files(files: &[(&str, &str)]) -> Result<Project, Mistakes> {
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
    let project = read_files(&[("function.yaml", manifest), ("main.py", code)]).unwrap();
    assert_eq!(project.functions[0].spec.name.as_str(), "demo");
    let other = manifest.replace("pip install requests", "apk add git");
    let wrong = read_files(&[("function.yaml", &other), ("main.py", code)]).err();
    let wrong = wrong.expect("it is refused").0.remove(0);
    assert_eq!(wrong.text, "function.yaml: demo: build.commands: `apk add git` is not supported");
}

#[test]
fn a_func_yaml_of_the_first_versions_is_read() {
    let manifest =
        "name: battery\nruntime: node\nnamespace: \"\"\nenvs:\n- name: UNIT\n  value: C\n";
    let code = "exports.handle = (context) => context.method;\n";
    let project = read_files(&[("func.yaml", manifest), ("index.js", code)]).unwrap();
    let planned = &project.functions[0];
    assert_eq!((planned.spec.name.as_str(), &*planned.spec.env["UNIT"]), ("battery", "C"));
    assert_eq!(planned.manifest.as_deref(), Some("func.yaml"));
    // Other files with these keys may belong to the function, so they are not read as manifests.
    let files = [("settings.yaml", manifest), ("index.js", code)];
    let project = read_files(&files).unwrap();
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
    let project = read_files(&[
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
    assert_eq!(project.functions[0].warnings, [""; 0]);
    assert_eq!(mote_spec::routes::text(&project.functions[0].spec.routes()[0]), "/show");
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
        let wrong = read_files(&[(file, manifest)]).err();
        let wrong = wrong.expect("it is refused").0.remove(0);
        assert_eq!((wrong.code, &*wrong.text), ("M0305", said));
    }
}

#[test]
fn a_template_of_another_name_runs_only_if_its_handler_shows_a_known_contract() {
    let stack = |lang: &str| {
        format!("provider: {{name: openfaas}}\nfunctions:\n  a: {{lang: {lang}, handler: ./a}}\n")
    };
    for (lang, file, code, template) in [
        (
            "python3-http-es",
            "a/handler.py",
            "def handle(event, context):\n    return 1\n",
            "python3-http",
        ),
        ("node-own", "a/handler.js", "module.exports = (context, callback) => {};\n", "node"),
    ] {
        let project = read_files(&[("stack.yml", &stack(lang)), (file, code)]).unwrap();
        let function = &project.functions[0];
        assert_eq!(function.spec.template.as_deref(), Some(template));
        let said = function.warnings.join(" ");
        assert!(said.contains(&format!("lang {lang}: not an official template")), "{said}");
    }
    for (lang, file, code, nearest) in [
        ("python3-fastapi", "a/handler.py", "def handle(req):\n    return req\n", "python3-http"),
        (
            "node-armhf-multiarch",
            "a/handler.js",
            "module.exports = async (context) => 1;\n",
            "node22",
        ),
        (
            "golang-es",
            "a/handler.go",
            "package function\n\nfunc Handler(ctx context.Context) error { return nil }\n",
            "golang-middleware",
        ),
    ] {
        let wrong = read_files(&[("stack.yml", &stack(lang)), (file, code)]).err();
        let wrong = wrong.expect("it is refused").0.remove(0);
        let said = format!("stack.yml: a: lang {lang:?} is not supported");
        assert_eq!((wrong.code, &*wrong.text), ("M0305", &*said));
        let hint = wrong.hint.unwrap_or_default();
        assert!(hint.contains(&format!("write lang: {nearest}")), "{hint}");
    }
}

#[test]
fn a_fission_function_is_read_from_the_spec_beside_its_code() {
    let spec = "apiVersion: fission.io/v1\nkind: Package\nmetadata: {name: hello-pkg}\n---\n\
                apiVersion: fission.io/v1\nkind: Function\nmetadata: {name: hello}\nspec:\n  \
                environment: {name: python-env}\n  functionTimeout: 20\n  \
                package: {functionName: app.greet, packageref: {name: hello-pkg}}\n";
    let code = "def greet():\n    return 'hello'\n";
    let project = read_files(&[("function.yaml", spec), ("app.py", code)]).unwrap();
    let spec = &project.functions[0].spec;
    assert_eq!((spec.name.as_str(), spec.entry.as_str()), ("hello", "app:greet"));
    assert_eq!((spec.compat, spec.limits.timeout_ms), (Some(Platform::Fission), 20_000));

    let package = "apiVersion: fission.io/v1\nkind: Package\nmetadata: {name: p}\n";
    let code = "def main():\n    return 'hello'\n";
    let project = read_files(&[("package.yaml", package), ("main.py", code)]).unwrap();
    assert_eq!(project.functions[0].spec.compat, Some(Platform::Fission));
}

#[test]
fn a_function_of_parliament_is_known_by_its_import() {
    let manifest = "specVersion: 0.36.0\nname: old\nruntime: python\n";
    let code = "from parliament import Context\ndef main(context: Context):\n    return 'x', 200\n";
    let project = read_files(&[("func.yaml", manifest), ("func.py", code)]).unwrap();
    let spec = &project.functions[0].spec;
    assert_eq!((spec.template.as_deref(), &*spec.entry), (Some("parliament"), "func:main"));
}

#[test]
fn a_func_yaml_without_a_version_is_read_by_its_function() {
    let manifest = "name: old\nruntime: python\n";
    for (code, template, entry) in [
        ("def main(context):\n    return 'x', 200\n", Some("parliament"), "func:main"),
        ("def new():\n    return Function()\n", None, "func:new"),
    ] {
        let project = read_files(&[("func.yaml", manifest), ("func.py", code)]).unwrap();
        let spec = &project.functions[0].spec;
        assert_eq!((spec.compat, spec.template.as_deref()), (Some(Platform::Knative), template));
        assert_eq!(&*spec.entry, entry);
    }
    let oracle = "schema_version: 20180708\nname: old\nversion: 0.0.1\nruntime: python\n\
                  entrypoint: /python/bin/fdk /function/func.py handler\nmemory: 256\n";
    let code = "import fdk\ndef handler(ctx, data):\n    return 1\n";
    let wrong = read_files(&[("func.yaml", oracle), ("func.py", code)]).err();
    let wrong = wrong.expect("it is refused").0.remove(0);
    let said = "func.yaml: old: func.yaml of Fn (Oracle Functions) is not supported";
    assert_eq!((wrong.code, &*wrong.text), ("M0305", said));
}

#[test]
fn a_nuclio_block_without_a_runtime_is_of_its_files_language() {
    let code = "# @nuclio.configure\n#\n# function.yaml:\n#   spec:\n#     handler: greet:run\n\n\
                def run(context, event):\n    return 'hello'\n";
    let project = read_files(&[("greet.py", code)]).unwrap();
    let spec = &project.functions[0].spec;
    assert_eq!((spec.runtime, &*spec.entry), (Runtime::Python, "greet:run"));
}

#[test]
fn a_nuclio_block_without_a_handler_means_the_handler_of_its_file() {
    let block = |mark: &str| {
        format!(
            "{mark} @nuclio.configure\n{mark}\n{mark} function.yaml:\n{mark}   spec:\n\
             {mark}     env: [{{name: A, value: b}}]\n\n"
        )
    };
    let python = block("#") + "def handler(context, event):\n    return 'hello'\n";
    let node = block("//") + "exports.handler = (context, event) => context.callback('hello');\n";
    for (file, code, entry) in
        [("abc.py", &python, "abc:handler"), ("abc.js", &node, "abc.js:handler")]
    {
        let project = read_files(&[(file, code)]).unwrap();
        let spec = &project.functions[0].spec;
        assert_eq!((&*spec.entry, spec.env["A"].as_str()), (entry, "b"));
    }
}

#[test]
fn a_function_yaml_is_read_or_refused_by_name() {
    let code = ("abc.py", "def run(context, event):\n    return 'hello'\n");
    let manifest = "metadata: {name: a}\nspec:\n  handler: abc:run\n  env: [{name: A, value: b}]\n";
    let project = read_files(&[("function.yaml", manifest), code]).unwrap();
    let spec = &project.functions[0].spec;
    assert_eq!((spec.compat, &*spec.entry), (Some(Platform::Nuclio), "abc:run"));
    assert_eq!((spec.runtime, spec.env["A"].as_str()), (Runtime::Python, "b"));
    for unknown in ["kind: Function\nspec: {x: y}\n", "spec: {template: {}}\n"] {
        let wrong = read_files(&[("function.yaml", unknown), code]).err();
        let wrong = wrong.expect("it is refused").0.remove(0);
        assert_eq!(
            (wrong.code, &*wrong.text),
            ("M0301", "function.yaml: not a function of a supported platform")
        );
    }
}

#[test]
fn packages_that_a_nuclio_function_names_are_added_to_its_lists() {
    let manifest = "apiVersion: nuclio.io/v1\nmetadata: {name: a}\nspec:\n  runtime: python\n  \
                    handler: abc:run\n  build:\n    requirements: [numpy==1.26.4]\n    \
                    dependencies: [requests]\n    commands: [pip install msgpack]\n";
    let code = ("abc.py", "def run(context, event):\n    return 'hello'\n");
    let project = read_files(&[("function.yaml", manifest), code]).unwrap();
    let function = &project.functions[0];
    let path = function.code.as_ref().expect("a copy").path();
    let list = std::fs::read_to_string(path.join("requirements.txt")).unwrap();
    assert_eq!(list, "msgpack\nnumpy==1.26.4\nrequests\n");
    assert_eq!(function.warnings, [""; 0]);
}

#[test]
fn a_manifest_names_only_files_of_its_project() {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    for folder in ["outside", "repo/deploy", "repo/code", "alone"] {
        std::fs::create_dir_all(at(folder)).unwrap();
    }
    let code = "def handle(event, context):\n    return 1\n";
    for folder in ["outside", "repo/code"] {
        std::fs::write(at(folder).join("handler.py"), code).unwrap();
        std::fs::write(at(folder).join("main.py"), "def main(args):\n    return {}\n").unwrap();
        std::fs::write(at(folder).join("x.yml"), "environment: {A: b}\n").unwrap();
    }
    std::os::unix::fs::symlink(at("outside"), at("alone/link")).unwrap();
    let openfaas = |more: &str| {
        format!("provider: {{name: openfaas}}\nfunctions:\n  a: {{lang: python3-http, {more}}}\n")
    };
    let nuclio = |path: &str| {
        format!(
            "apiVersion: nuclio.io/v1\nmetadata: {{name: a}}\nspec: {{runtime: python, handler: \
             handler:handle, build: {{path: {path}}}}}\n"
        )
    };
    let whisk = |path: &str| {
        format!("packages: {{p: {{actions: {{a: {{function: {path}, runtime: python}}}}}}}}\n")
    };
    let check = |folder: &str, name: &str, manifest: &str, is_refused: bool| {
        let file = at(folder).join(name);
        std::fs::write(&file, manifest).unwrap();
        let read = mote_project::read(&file, Options::default());
        let said =
            read.as_ref().err().map(|mistakes| mistakes.0[0].text.clone()).unwrap_or_default();
        assert_eq!(said.contains("is outside of"), is_refused, "{manifest}: {said}");
    };
    for path in ["../../outside", "../outside", "/etc", "link"] {
        check("alone", "stack.yml", &openfaas(&format!("handler: {path}")), true);
        check("alone", "function.yaml", &nuclio(path), true);
        check("alone", "manifest.yaml", &whisk(&format!("{path}/main.py")), true);
        check("alone", "manifest.yaml", &whisk(&format!("{path}/main.zip")), true);
        let files = format!("handler: ., environment_file: [{path}/x.yml]");
        check("alone", "stack.yml", &openfaas(&files), true);
    }
    // Once a repository contains both folders, a manifest may name a folder outside its own.
    check("repo/deploy", "stack.yml", &openfaas("handler: ../code"), true);
    std::fs::create_dir(at("repo/.git")).unwrap();
    check("repo/deploy", "stack.yml", &openfaas("handler: ../code"), false);
    check("repo/deploy", "function.yaml", &nuclio("../code"), false);
    check("repo/deploy", "manifest.yaml", &whisk("../code/main.py"), false);
    check("repo/deploy", "stack.yml", &openfaas("handler: ../../outside"), true);
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

    // The same applies to a link in place of a file that is not read before.
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
    let project = read_files(&[("manifest.yaml", manifest), ("a.js", code)]).unwrap();
    let said = project.functions[0].warnings.join("\n");
    assert!(said.contains("a.js calls OpenWhisk's API"), "{said}");
}

#[test]
fn manifests_that_would_take_long_to_parse_are_refused_first() {
    let read = |manifest: &str| {
        let since = std::time::Instant::now();
        let read = read_files(&[("stack.yml", manifest)]);
        assert!(since.elapsed() < std::time::Duration::from_secs(10), "{:?}", since.elapsed());
        read.err().map(|wrong| wrong.0[0].text.clone()).unwrap_or_default()
    };
    // The parser visits every open table at every word, so these inputs would take minutes to parse.
    for deep in ["{a: ".repeat(250_000), "[".repeat(1_000_000), "- [{\"a]\": ".repeat(90_000)] {
        assert!(read(&deep).starts_with("stack.yml: too large to read ("), "{:.8}", deep);
    }
    // Small inputs are parsed, and then refused because they are nested too deeply.
    let text = read(&"{a: ".repeat(1_000));
    assert!(text.contains("recursion limit"), "{text}");
    // A large number of functions is not a reason for a refusal.
    let mut many = String::from("provider: {name: openfaas}\nfunctions:\n");
    for n in 0..1_000 {
        many.push_str(&format!(
            "  f{n}: {{lang: nothing, handler: ., limits: {{memory: 64Mi}}, labels: {{a: b}}}}\n"
        ));
    }
    assert!(!read(&many).contains("too large"), "a thousand functions are refused");
}

#[test]
fn an_imported_manifest_has_the_access() {
    for mode in ["public", "key", "basic", "mtls", "local"] {
        let source = format!(
            "apiVersion: nuclio.io/v1\nkind: NuclioFunction\nmetadata: {{name: hello, annotations: \
             {{mote/access: {mode}}}}}\nspec: {{runtime: python, handler: 'main:handler'}}\n"
        );
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("function.yaml"), source).unwrap();
        let found = foreign::read(dir.path()).unwrap().unwrap();
        let text = mote_project::mote_toml("function.yaml", &found.functions[0]);
        let section = format!("\n[access]\nmode = \"{mode}\"  # annotation mote/access\n");
        assert!(text.contains(&section), "{text}");
    }
}

/// Returns the routes of the functions in a folder, each with its function's name, and all warnings.
fn routes(files: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
    let project = read_files(files).unwrap();
    let of = |one: &Planned| {
        let routes = one.spec.routes().iter();
        routes
            .map(|route| format!("{}: {}", one.spec.name, mote_spec::routes::text(route)))
            .collect()
    };
    let routes = project.functions.iter().flat_map(|one| -> Vec<String> { of(one) }).collect();
    let warnings = project.functions.iter().flat_map(|one| one.warnings.clone()).collect();
    (routes, warnings)
}

fn fission_trigger(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: fission.io/v1\nkind: HTTPTrigger\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"
    )
}

const FISSION: &str = "apiVersion: fission.io/v1\nkind: Function\nmetadata: {name: orders}\nspec:\n  \
                       environment: {name: python}\n  package: {functionName: main}\n";

#[test]
fn triggers_of_fission_become_routes() {
    let to = "functionref: {type: name, name: orders}";
    for (spec, expected, said) in [
        ("relativeurl: /orders", "", ""),
        ("relativeurl: /orders, host: a.org", "a.org/orders", ""),
        ("relativeurl: '/o/{id}', methods: [GET, PUT]", "GET,PUT /o/{id}", ""),
        ("relativeurl: '/o/{id}', method: POST, methods: [GET]", "GET,POST /o/{id}", ""),
        ("relativeurl: '/f/{path:.*}', host: '*'", "/f/{path...}", ""),
        ("relativeurl: '/o/{id:[0-9]+}'", "/o/{id}", "{id:[0-9]+} matches any text"),
        ("prefix: /orders", "", ""),
        ("prefix: /orders/, keepPrefix: true", "/orders/*", ""),
        ("prefix: /api", "/api/*", "the whole path, with /api at its beginning"),
        ("prefix: /api, keepPrefix: true, relativeurl: /b", "/api/*", ""),
        ("relativeurl: /a, createingress: true, ingressconfig: {host: b.org}", "b.org/a", ""),
        ("relativeurl: /a, createingress: false, ingressconfig: {host: b.org}", "/a", ""),
        (
            "relativeurl: /a, createingress: true, ingressconfig: {host: b.org, path: '/x(/|$)(.*)', \
             annotations: {nginx.ingress.kubernetes.io/rewrite-target: /a}}",
            "b.org/x/*",
            "the whole path, with /x(/|$)(.*) at its beginning",
        ),
        ("relativeurl: /a, routeConfig: {provider: gateway, hostnames: [c.org]}", "c.org/a", ""),
        ("relativeurl: '/{a}.txt'", "", "/{a}.txt cannot be a route: a path such as"),
        ("relativeurl: /_node", "", "/_node cannot be a route: what begins with /_ belongs to"),
        ("host: a.org", "", "HTTPTrigger t: it has neither relativeurl nor prefix"),
        (
            "relativeurl: /a, corsConfig: {allowOrigins: ['*']}",
            "/a",
            "HTTPTrigger t: spec.corsConfig",
        ),
    ] {
        let spec = format!("{spec}, {to}");
        let source = format!("{FISSION}{}", fission_trigger("t", &spec));
        let (routes, warnings) =
            routes(&[("f.yaml", &source), ("main.py", "def main(): return 'x'\n")]);
        let expected =
            if expected.is_empty() { vec![] } else { vec![format!("orders: {expected}")] };
        assert_eq!(routes, expected, "{spec}");
        assert_eq!(warnings.is_empty(), said.is_empty(), "{spec}: {warnings:?}");
        assert!(warnings.iter().all(|text| text.contains(said)), "{spec}: {warnings:?}");
    }
}

#[test]
fn triggers_of_fission_name_functions_of_other_files() {
    let function = |name: &str| {
        format!(
            "kind: ArchiveUploadSpec\nname: a\ninclude: [main.py]\n---\n\
             apiVersion: fission.io/v1\nkind: Package\nmetadata: {{name: p}}\nspec:\n  \
             source: {{type: url, url: 'archive://a'}}\n---\n\
             apiVersion: fission.io/v1\nkind: Function\nmetadata: {{name: {name}, \
             annotations: {{mote/access: public}}}}\nspec:\n  environment: {{name: python}}\n  \
             package: {{functionName: main, packageref: {{name: p}}}}\n"
        )
    };
    let triggers = [
        ("one", "relativeurl: /first, functionref: {name: a}"),
        ("two", "relativeurl: /second, host: b.org, functionref: {name: a}"),
        ("three", "relativeurl: /first, functionref: {name: b}"),
        ("four", "relativeurl: /x, functionref: {name: lost}"),
        (
            "five",
            "relativeurl: /shared, functionref: {type: function-weights, functionweights: {a: 20, b: 80}}",
        ),
    ];
    let triggers: String =
        triggers.iter().map(|(name, spec)| fission_trigger(name, spec)).collect();
    let (routes, warnings) = routes(&[
        ("specs/a.yaml", &function("a")),
        ("specs/b.yaml", &function("b")),
        ("specs/triggers.yaml", &triggers),
        ("main.py", "def main(): return 'x'\n"),
    ]);
    assert_eq!(routes, ["a: /first", "a: b.org/second", "b: /shared"]);
    assert_eq!(
        warnings,
        [
            "HTTPTrigger four: there is no function lost",
            "HTTPTrigger five: all requests reach b, without shares for a, b: deploy these as \
             revisions of one function, and share its requests with mote traffic b",
            "HTTPTrigger three: /first cannot be a route: the function a has this route; use \
             /NAME, or import it and write another path in mote.toml",
        ]
    );
}

#[test]
fn ingresses_of_nuclio_become_routes() {
    for (attributes, expected, said) in [
        ("port: 32001", "", "ignored: triggers.web.attributes.port"),
        ("ingresses: {a: {host: a.org, paths: [/v1, /v2/]}}", "a.org/v1/* a.org/v2/*", ""),
        ("ingresses: {a: {host: a.org}}", "a.org/*", ""),
        ("ingresses: {a: {paths: [/v1], pathType: Exact}}", "/v1", ""),
        ("ingresses: {a: {paths: [/v1], pathType: Prefix}}", "/v1/*", ""),
        ("ingresses: {a: {hostTemplate: x, paths: [/]}}", "", "does not fill in a hostTemplate"),
        ("ingresses: {a: {paths: [/hello], pathType: Exact}}", "", ""),
        ("ingresses: {a: {host: localhost, paths: [/]}}", "", "localhost/* cannot be a route"),
    ] {
        let source = format!(
            "apiVersion: nuclio.io/v1\nkind: NuclioFunction\nmetadata: {{name: hello}}\nspec:\n  \
             runtime: python\n  handler: main:handler\n  triggers:\n    web: {{kind: http, \
             attributes: {{{attributes}}}}}\n"
        );
        let code = "def handler(context, event):\n    return ''\n";
        let block = source.lines().map(|line| format!("#   {line}\n")).collect::<String>();
        let block = format!("# @nuclio.configure\n#\n# function.yaml:\n{block}\n{code}");
        for files in [&[("function.yaml", &*source), ("main.py", code)][..], &[("main.py", &block)]]
        {
            let (routes, warnings) = routes(files);
            let expected: Vec<String> =
                expected.split_whitespace().map(|route| format!("hello: {route}")).collect();
            assert_eq!(routes, expected, "{attributes}");
            assert_eq!(warnings.is_empty(), said.is_empty(), "{attributes}: {warnings:?}");
            assert!(warnings.iter().all(|text| text.contains(said)), "{attributes}: {warnings:?}");
        }
    }
}

#[test]
fn objects_next_to_a_function_become_routes() {
    let rules = "[{host: a.org, http: {paths: [{path: /v1, pathType: Prefix, backend: {service: {name: \
                 NAME}}}, {path: /one, pathType: Exact, backend: {serviceName: NAME}}, {path: /other, \
                 backend: {service: {name: other}}}]}}]";
    let ingress = format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: front}}\nspec: {{rules: {rules}}}\n"
    );
    let kubeless = "apiVersion: kubeless.io/v1beta1\nkind: Function\nmetadata: {name: hi, annotations: \
                    {mote/access: key}}\nspec: {runtime: python3.8, handler: hi.run, function: \"def \
                    run(event, context):\\n  return 1\"}\n---\napiVersion: kubeless.io/v1beta1\nkind: \
                    HTTPTrigger\nmetadata: {name: t}\nspec: {function-name: hi, host-name: k.org, path: \
                    say}\n---\napiVersion: kubeless.io/v1beta1\nkind: HTTPTrigger\nmetadata: {name: \
                    u}\nspec: {function-name: hi, path: hi}\n";
    let nuclio = "apiVersion: nuclio.io/v1\nkind: NuclioFunction\nmetadata: {name: hi, annotations: \
                  {mote/access: key}}\nspec: {runtime: python, handler: 'main:handler'}\n";
    let knative = "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: hi}\nspec: \
                   {template: {metadata: {annotations: {mote/access: key}}, spec: {containers: [{command: \
                   [python3, main.py]}]}}}\n---\napiVersion: serving.knative.dev/v1beta1\nkind: \
                   DomainMapping\nmetadata: {name: k.example.org}\nspec: {ref: {kind: Service, name: hi}}\n";
    let openfaas = "provider: {name: openfaas}\nfunctions: {hi: {lang: python3-http, handler: ., \
                    annotations: {mote/access: key}}}\n---\napiVersion: openfaas.com/v1alpha2\nkind: \
                    FunctionIngress\nmetadata: {name: f}\nspec: {domain: f.org, function: hi, path: \
                    '/v1/hi/(.*)'}\n";
    for (file, source, service, own) in [
        ("f.yaml", kubeless, "hi", "hi: k.org/say/*"),
        ("function.yaml", nuclio, "nuclio-hi", ""),
        ("service.yaml", knative, "hi", "hi: k.example.org/*"),
        ("stack.yml", openfaas, "hi", "hi: f.org/v1/hi/*"),
    ] {
        let source = format!("{source}{}", ingress.replace("NAME", service));
        let code = "def handler(context, event): pass\n";
        let (routes, warnings) = routes(&[
            (file, &source),
            ("main.py", code),
            ("handler.py", "def handle(a, b): pass\n"),
        ]);
        let own = Some(own).filter(|own| !own.is_empty());
        let expected: Vec<&str> =
            own.into_iter().chain(["hi: a.org/v1/*", "hi: a.org/one"]).collect();
        assert_eq!(routes, expected, "{file}");
        let mut said = vec!["Ingress front: there is no function other"];
        if file == "stack.yml" {
            said.push("FunctionIngress f: the function receives the whole path, with /v1/hi at its beginning");
        }
        assert_eq!(warnings, said, "{file}");
    }
}

#[test]
fn objects_of_a_cluster_become_routes() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("handler.py"), "def handle(event, context):\n    pass\n").unwrap();
    let object = |api: &str, kind: &str, name: &str, spec: serde_json::Value| serde_json::json!({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec});
    let reference = serde_json::json!({"ref": {"kind": "Service", "name": "greeter"}});
    let domain = serde_json::json!({"domain": "f.org", "function": "figlet"});
    let container = serde_json::json!({"image": "example.com/greeter"});
    let objects = vec![
        object("openfaas.com/v1alpha2", "FunctionIngress", "front", domain),
        object("serving.knative.dev/v1beta1", "DomainMapping", "g.org", reference),
        object("openfaas.com/v1", "Function", "figlet", serde_json::json!({"name": "figlet"})),
        object(
            "serving.knative.dev/v1",
            "Service",
            "greeter",
            serde_json::json!({"template": {"spec": {"containers": [container]}}}),
        ),
    ];
    let at = |name: &str| (name.to_owned(), dir.path().to_owned());
    let sources = [at("figlet"), at("greeter")].into();
    let found = foreign::cluster::read("cluster", objects, &sources, dir.path()).unwrap();
    let hosts: Vec<Option<&str>> = found
        .functions
        .iter()
        .flat_map(|one| one.function.routes.iter().map(|route| route.value.host.as_deref()))
        .collect();
    assert_eq!((hosts, found.warnings), (vec![Some("f.org"), Some("g.org")], vec![]));
}

#[test]
fn an_imported_manifest_has_the_routes() {
    let spec = "relativeurl: '/o/{id}', host: a.org, methods: [GET], functionref: {name: orders}";
    let dir = tempfile::tempdir().unwrap();
    let source = format!("{FISSION}{}", fission_trigger("t", spec));
    fs::write(dir.path().join("f.yaml"), source).unwrap();
    fs::write(dir.path().join("main.py"), "def main(): return 'x'\n").unwrap();
    let found = foreign::read(dir.path()).unwrap().unwrap();
    let text = mote_project::mote_toml("f.yaml", &found.functions[0]);
    let end = "\n[[route]]\nhost = \"a.org\"  # HTTPTrigger t\npath = \"/o/{id}\"  # HTTPTrigger t\n\
               methods = [\"GET\"]  # HTTPTrigger t\n";
    assert!(text.ends_with(end), "{text}");
    fs::write(dir.path().join("mote.toml"), &text).unwrap();
    let project = read(dir.path(), Options::default()).unwrap();
    assert_eq!(mote_spec::routes::text(&project.functions[0].spec.routes()[0]), "GET a.org/o/{id}");
}

#[test]
fn functions_that_a_client_sends_to_a_node_claim_no_paths() {
    let document = serde_json::json!({
        "metadata": {"name": "hello"},
        "spec": {
            "runtime": "python:3.11", "handler": "main:handler",
            "build": {"functionSourceCode": "eA=="},
            "triggers": {"web": {"kind": "http", "attributes":
                {"ingresses": {"a": {"host": "a.org", "paths": ["/"]}}}}},
        },
    });
    let described = foreign::nuclio_document(&document).unwrap();
    assert_eq!(described.function.routes, []);
}

#[test]
fn components_of_spin_become_functions() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    let manifest = r#"
spin_manifest_version = 2
application = { name = "app" }
variables = { greeting = { default = "hi" }, password = { required = true } }

[[trigger.http]]
route = "/hello/..."
component = "hello"

[[trigger.http]]
route = "/things/..."
component = "hello"

[[trigger.redis]]
channel = "x"
component = "hello"

[component.hello]
source = "hello.wasm"
environment = { COLOUR = "red" }
allowed_outbound_hosts = ["https://a.org", "http://127.0.0.1:8080", "https://*.b.org", "https://c.org:*"]
key_value_stores = ["default", "site"]
variables = { greeting = "{{ greeting }}, you", secret = "{{ password }}" }
files = ["a.txt"]

[component.other]
source = { url = "https://a.org/x.wasm", digest = "sha256:0" }

[component.unbuilt]
source = "unbuilt.wasm"
build = { command = "cargo build" }
"#;
    write("spin.toml", manifest);
    write("hello.wasm", "\0asm");
    let found = foreign::read(dir.path()).unwrap().unwrap();
    assert_eq!(found.functions.len(), 1);
    let left_out: Vec<_> = found.left_out.iter().map(|one| one.mistakes.0[0].code).collect();
    assert_eq!(left_out, ["M0305", "M0113"]);
    assert_eq!(found.warnings.len(), 1, "the trigger of Redis: {:?}", found.warnings);
    let text = mote_project::mote_toml("spin.toml", &found.functions[0]);
    for line in [
        "# Not converted: allowed_outbound_hosts: `https://*.b.org` has no counterpart\n",
        "# Not converted: allowed_outbound_hosts: `https://c.org:*` has no counterpart\n",
        "# Not converted: ignored: files\n",
        "runtime = \"wasm\"",
        "entry = \"hello.wasm\"",
        "net = [\"a.org:443\", \"127.0.0.1:8080\"]",
        "shared = [\"site\"]",
        "COLOUR = \"red\"",
        "greeting = \"hi, you\"",
        "secret = { secret = \"password\" }",
        "path = \"/things/*\"",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // Calls below /hello need no route.
    assert_eq!(text.matches("[[route]]").count(), 1, "{text}");
    write("mote.toml", &text);
    let project = read(dir.path(), Options::default()).unwrap();
    assert_eq!(project.functions[0].spec.runtime, Runtime::Wasm);
}

#[test]
fn components_of_wasmcloud_become_functions() {
    let manifest = r#"
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: shop, annotations: {version: v0.1.0}}
spec:
  components:
    - name: http-hello
      type: component
      properties:
        image: file://./build/hello_s.wasm
        config: [{name: words, properties: {greeting: hi}}, {name: elsewhere}]
        secrets: [{name: password, properties: {policy: p, key: k}}]
      traits:
        - {type: spreadscaler, properties: {instances: 3}}
        - {type: link, properties: {namespace: wasi, package: keyvalue, interfaces: [store]}}
        - {type: link, properties: {namespace: wasmcloud, package: messaging}}
    - {name: remote, type: component, properties: {image: ghcr.io/a/b:1}}
    - {name: unbuilt, type: component, properties: {image: "file://./no.wasm"}}
    - {name: outside, type: component, properties: {image: "file:///etc/hostname"}}
    - {name: httpserver, type: capability, properties: {image: ghcr.io/wasmcloud/http-server:0.23.0}}
"#;
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("build")).unwrap();
    fs::write(dir.path().join("build/hello_s.wasm"), "\0asm").unwrap();
    fs::write(dir.path().join("wadm.yaml"), manifest).unwrap();
    let found = foreign::read(dir.path()).unwrap().unwrap();
    let left_out: Vec<_> = found.left_out.iter().map(|one| one.mistakes.0[0].code).collect();
    assert_eq!(left_out, ["M0305", "M0113", "M0303"]);
    assert_eq!(found.warnings.len(), 1, "the provider: {:?}", found.warnings);
    let text = mote_project::mote_toml("wadm.yaml", &found.functions[0]);
    for line in [
        "# Not converted: config: elsewhere is not in the manifest: write its keys in [env]\n",
        "# Not converted: ignored: properties.secrets\n",
        "# Not converted: link to wasmcloud:messaging: not offered\n",
        "runtime = \"wasm\"",
        "entry = \"hello_s.wasm\"",
        "greeting = \"hi\"",
        "max = 3",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // An application of another platform is not read.
    let other = manifest.replace("type: component", "type: webservice");
    fs::write(dir.path().join("wadm.yaml"), other).unwrap();
    assert!(foreign::read(dir.path()).unwrap().is_none());
}
