//! Manifests of other platforms: folders of files in, functions out.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use mote_api::toml_reader::Mistakes;
use mote_core::spec::{Platform, Runtime};
use mote_project::{Options, Project, foreign, read, write_anew};

/// Reads a folder `demo` with a manifest of another platform.
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
    // Any other file with these keys may belong to the function.
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
        let wrong = read_files(&[(file, manifest)]).err();
        let wrong = wrong.expect("it is refused").0.remove(0);
        assert_eq!((wrong.code, &*wrong.text), ("M0305", said));
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
fn a_nuclio_block_without_a_runtime_is_of_its_files_language() {
    let code = "# @nuclio.configure\n#\n# function.yaml:\n#   spec:\n#     handler: greet:run\n\n\
                def run(context, event):\n    return 'hello'\n";
    let project = read_files(&[("greet.py", code)]).unwrap();
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
