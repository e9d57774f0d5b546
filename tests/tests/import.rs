//! `mote import` for the objects of a cluster. The objects come from a real API server with the
//! resources of Knative, OpenFaaS and Kubeless, or from a file with kubectl's output.

use std::path::Path;
use std::process::{Command, Output};

use mote_tests::kubernetes::ApiServer;
use mote_tests::{Node, mote_binary};

/// Resource types as (group, version, kind, plural).
const RESOURCES: [(&str, &str, &str, &str); 4] = [
    ("serving.knative.dev", "v1", "Service", "services"),
    ("openfaas.com", "v1", "Function", "functions"),
    ("kubeless.io", "v1beta1", "Function", "functions"),
    ("kubeless.io", "v1beta1", "CronJobTrigger", "cronjobtriggers"),
];

const OBJECTS: &str = r#"
apiVersion: kubeless.io/v1beta1
kind: Function
metadata: {name: hello, namespace: default}
spec:
  runtime: python3.8
  handler: hello.greet
  deps: ""
  timeout: "20"
  function: |
    def greet(event, context):
        return 'hello ' + event['data'].decode()
---
apiVersion: kubeless.io/v1beta1
kind: CronJobTrigger
metadata: {name: hello, namespace: default}
spec: {function-name: hello, schedule: "*/5 * * * *"}
---
apiVersion: kubeless.io/v1beta1
kind: Function
metadata: {name: packed, namespace: default}
spec:
  runtime: python3.8
  handler: packed.run
  function-content-type: base64+zip
  function: "ZIP"
---
apiVersion: kubeless.io/v1beta1
kind: Function
metadata: {name: jvm, namespace: default}
spec: {runtime: java1.8, handler: Foo.foo, function: "class Foo {}"}
---
apiVersion: openfaas.com/v1
kind: Function
metadata: {name: figlet, namespace: default}
spec:
  name: figlet
  image: ghcr.io/openfaas/figlet:latest
  environment: {STYLE: banner}
  labels: {com.openfaas.scale.max: "3"}
  annotations: {topic: "cron-function", schedule: "0 6 * * *"}
  limits: {memory: 96Mi}
  requests: {memory: 64Mi}
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: greeter, namespace: default}
spec:
  template:
    metadata: {annotations: {autoscaling.knative.dev/max-scale: "5"}}
    spec:
      containerConcurrency: 7
      enableServiceLinks: false
      containers:
      - image: example.com/greeter@sha256:0000
        name: user-container
        env: [{name: TONE, value: warm}]
        readinessProbe: {successThreshold: 1, tcpSocket: {port: 0}}
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: unknown, namespace: default}
spec: {template: {spec: {containers: [{image: example.com/unknown}]}}}
"#;

fn mote(server: &ApiServer, folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(mote_binary());
    command.arg("import").args(args).current_dir(folder).envs(server.env());
    command.output().expect("the binary starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A zip archive of one stored file, in base64.
fn zip(name: &str, text: &str) -> String {
    let script = "import base64, io, sys, zipfile\nout = io.BytesIO()\n\
        with zipfile.ZipFile(out, 'w') as file:\n    file.writestr(sys.argv[1], sys.argv[2])\n\
        print(base64.b64encode(out.getvalue()).decode())";
    let output =
        Command::new("python3").args(["-c", script, name, text]).output().expect("python3");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Starts a server with the resources and objects of three platforms, and prepares the folders of
/// two images.
fn prepared() -> Option<(ApiServer, tempfile::TempDir)> {
    let server = ApiServer::start("functions of a cluster")?;
    let dir = tempfile::tempdir().expect("temp folder");
    let empty = mote(&server, dir.path(), &["--from-cluster"]);
    assert!(said(&empty).contains("the cluster has no functions of Knative"), "{}", said(&empty));
    for (group, version, kind, plural) in RESOURCES {
        let resource = format!(
            "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
             metadata: {{name: {plural}.{group}}}\nspec:\n  group: {group}\n  scope: Namespaced\n  \
             names: {{plural: {plural}, singular: {singular}, kind: {kind}}}\n  versions:\n  \
             - name: {version}\n    served: true\n    storage: true\n    schema: {{openAPIV3Schema: \
             {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}\n",
            singular = kind.to_lowercase(),
        );
        server.ok(&["apply", "-f", "-"], &resource);
        let name = format!("crd/{plural}.{group}");
        server.ok(&["wait", "--for=condition=Established", "--timeout=60s", &name], "");
    }
    let code = "def run(event, context):\n    return 'unpacked'\n";
    server.ok(&["apply", "-f", "-"], &OBJECTS.replace("ZIP", &zip("packed.py", code)));
    for (folder, file, text) in [
        ("figlet-code", "handler.py", "def handle(event, context):\n    return {'body': 'F'}\n"),
        ("greeter-code", "app.py", "def handle(event, ctx):\n    return 'G'\n"),
    ] {
        std::fs::create_dir(dir.path().join(folder)).expect("folder");
        std::fs::write(dir.path().join(folder).join(file), text).expect("file");
    }
    Some((server, dir))
}

#[test]
fn functions_of_a_cluster_become_projects() {
    let Some((server, dir)) = prepared() else { return };
    let sources = ["--source", "figlet=figlet-code", "--source", "greeter=greeter-code"];
    let args =
        [&["--from-cluster", "--context", "mote", "--namespace", "default"][..], &sources].concat();
    let output = mote(&server, dir.path(), &args);
    let text = said(&output);
    // One function cannot be imported, but the others are.
    assert_eq!(output.status.code(), Some(8), "{text}");
    for part in ["jvm: runtime \"java1.8\" is not supported", "figlet: lang: guessed python3-http"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("managedFields") && !text.contains("readinessProbe"), "{text}");
    let toml = |folder: &str| {
        std::fs::read_to_string(dir.path().join(folder).join("mote.toml")).expect("a manifest")
    };
    let unknown = toml("unknown");
    assert!(unknown.contains("image = \"example.com/unknown\""), "{unknown}");
    let hello = toml("hello");
    for part in ["compat = \"kubeless\"", "timeout = \"20s\"", "cron = \"*/5 * * * *\""] {
        assert!(hello.contains(part), "{part}: {hello}");
    }
    let figlet = toml("figlet-code");
    for part in
        ["name = \"figlet\"", "STYLE = \"banner\"", "memory = \"96MiB\"", "max = 3", "cron = \"0 6"]
    {
        assert!(figlet.contains(part), "{part}: {figlet}");
    }
    let greeter = toml("greeter-code");
    for part in ["name = \"greeter\"", "TONE = \"warm\"", "max = 5", "concurrency = 7"] {
        assert!(greeter.contains(part), "{part}: {greeter}");
    }

    let node = Node::start();
    for (folder, name, expected) in [
        ("hello", "hello", "hello you"),
        ("packed", "packed", "unpacked"),
        ("figlet-code", "figlet", "F"),
        ("greeter-code", "greeter", "G"),
    ] {
        node.ok(&["deploy", dir.path().join(folder).to_str().expect("UTF-8")]);
        let answer = node.post(&format!("/{name}"), b"you");
        assert_eq!(answer.text(), expected, "{name}: {}", node.log());
    }
    let wrong = mote(&server, dir.path(), &["--from-cluster", "--context", "nowhere"]);
    assert!(said(&wrong).contains("error[M0102]: kubectl: "), "{}", said(&wrong));

    // The same objects from a file in the form that kubectl prints, with lists and the fields that
    // servers add.
    let kinds = "functions.kubeless.io,functions.openfaas.com,services.serving.knative.dev";
    for format in ["yaml", "json"] {
        let objects = server.ok(&["get", kinds, "-o", format, "--show-managed-fields"], "");
        assert!(objects.contains("managedFields"));
        let folder = dir.path().join(format);
        std::fs::create_dir(&folder).expect("folder");
        let file = folder.join(format!("objects.{format}"));
        std::fs::write(&file, objects).expect("file");
        for (name, code) in [("figlet", "handler.py"), ("greeter", "app.py")] {
            std::fs::create_dir(folder.join(name)).expect("folder");
            let from = dir.path().join(format!("{name}-code")).join(code);
            std::fs::copy(from, folder.join(name).join(code)).expect("file");
        }
        let sources = ["--source", "figlet=figlet", "--source", "greeter=greeter"];
        let file = file.to_str().expect("UTF-8");
        let output = mote(&server, &folder, &[&[file][..], &sources].concat());
        assert_eq!(output.status.code(), Some(8), "{}", said(&output));
        for name in ["hello", "packed", "figlet", "greeter"] {
            assert!(folder.join(name).join("mote.toml").is_file(), "{name}: {}", said(&output));
        }
    }
}

#[test]
fn an_import_writes_nothing_outside_of_the_project() {
    let dir = tempfile::tempdir().expect("a folder");
    let project = dir.path().join("project");
    let outside = dir.path().join("outside");
    for folder in [&project, &outside] {
        std::fs::create_dir(folder).expect("a folder");
    }
    let code = "def handle(event, context):\n    return 1\n";
    std::fs::write(outside.join("handler.py"), code).expect("a file");
    let stack =
        "provider: {name: openfaas}\nfunctions:\n  a: {lang: python3-http, handler: ../outside}\n";
    std::fs::write(project.join("stack.yml"), stack).expect("a file");
    let output = Command::new(mote_binary())
        .arg("import")
        .arg(&project)
        .output()
        .expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("`../outside` is outside of"), "{said}");
    assert!(!output.status.success() && !outside.join("mote.toml").exists());
}
