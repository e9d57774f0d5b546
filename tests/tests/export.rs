//! `mote export`: what the command writes works without mote, a Kubernetes API server accepts it, and
//! an exported image runs on a node like every image.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use mote_tests::kubernetes::ApiServer;
use mote_tests::{Node, call_at, free_address, mote_binary, repository};
use serde_json::Value;

fn export(path: &Path, out: &Path, more: &[&str]) -> Output {
    Command::new(mote_binary())
        .args(["export", "kubernetes"])
        .arg(path)
        .arg("--out")
        .arg(out)
        .args(more)
        .output()
        .expect("the binary starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A function as its container runs it, except that the image's folders are in another place.
struct Container {
    child: Child,
    address: SocketAddr,
}

impl Container {
    fn start(folder: &Path) -> Self {
        let code = folder.join("function");
        std::fs::create_dir(&code).expect("folder");
        let mut untar = Command::new("tar");
        untar.arg("xf").arg(folder.join("function.tar")).arg("-C").arg(&code);
        assert!(untar.status().expect("tar").success());
        let path = folder.join("function.json");
        let text = std::fs::read_to_string(&path).expect("file");
        let text = text
            .replace("\"/server/", &format!("\"{}/server/", folder.display()))
            .replace("\"/function\"", &format!("\"{}\"", code.display()));
        std::fs::write(&path, text).expect("file");
        let address = free_address();
        let mut child = Command::new("python3")
            .arg(folder.join("server/standalone/serve.py"))
            .arg(&path)
            .env("LISTEN_PORT", address.port().to_string())
            .env("LEAVING_SECONDS", "0")
            .stderr(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let first = lines.next().expect("a line").expect("UTF-8");
        assert!(first.starts_with("serving "), "{first}");
        Self { child, address }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // A killed server leaves its function's processes behind, so it is asked to stop.
        mote_tests::signal(self.child.id(), "TERM");
        let _ = self.child.wait();
    }
}

#[test]
fn exported_functions_answer_without_mote() {
    let dir = tempfile::tempdir().expect("temp folder");
    for (example, body, expected) in [
        ("hello-python", "", "mote"),
        ("echo-node", "körper", "körper"),
        ("echo-shell", "in", "in"),
        ("hello-server", "", "mote"),
    ] {
        let out = dir.path().join(example);
        let output = export(&repository().join("examples").join(example), &out, &[]);
        assert!(output.status.success(), "{}", said(&output));
        let container = Container::start(&out.join(example));
        let answer = call_at(container.address, "POST", "/", &[], body.as_bytes());
        assert_eq!((answer.status, answer.text().as_str()), (200, expected), "{example}");
    }
    // An existing file is not overwritten.
    let again = export(&repository().join("examples/hello-shell"), dir.path(), &[]);
    assert!(said(&again).contains("already exists"), "{}", said(&again));
}

const THERMO: &str = r#"version = 1
name = "thermo"
runtime = "python"
entry = "app:handle"
secrets = ["api-key"]
[env]
UNIT = "C $(X)"
TOKEN = { secret = "Token_2" }
[limits]
cpu = 0.5
[scale]
max = 4
[allow]
net = ["influx.local:8086", "*:443"]
[[trigger]]
cron = "*/5 * * * *"
timezone = "Europe/Berlin"
path = "/tidy?all=$(X)"
[[trigger]]
every = "10s"
[[trigger]]
mqtt = "sensors/+"
"#;

#[test]
fn an_api_server_accepts_the_objects() {
    let Some(server) = ApiServer::start("objects of exported functions") else { return };
    let dir = tempfile::tempdir().expect("temp folder");
    let project = dir.path().join("thermo");
    std::fs::create_dir(&project).expect("folder");
    std::fs::write(project.join("mote.toml"), THERMO).expect("file");
    std::fs::write(project.join("app.py"), "def handle(event, ctx):\n    return 'x'\n")
        .expect("file");
    std::fs::write(project.join("requirements.txt"), "six\n").expect("file");
    let out = dir.path().join("out");
    let more = ["--registry", "registry.local:5000/shop", "--tag", "v2", "--namespace", "default"];
    let output = export(&project, &out, &more);
    assert!(output.status.success(), "{}", said(&output));
    for lost in
        ["MQTT triggers", "every 10 s", "scale to zero", "names of permitted hosts", "ctx.kv"]
    {
        assert!(said(&output).contains(lost), "{lost}: {}", said(&output));
    }
    let folder = out.join("thermo");
    let objects = std::fs::read_to_string(folder.join("objects.yaml")).expect("file");
    assert!(objects.contains("# - the schedule every 10 s: a CronJob cannot express it"));
    let file = std::fs::read_to_string(folder.join("Containerfile")).expect("file");
    assert!(file.contains("pip install --no-cache-dir --target /packages"), "{file}");

    let made = server.ok(&["apply", "--validate=strict", "-f", "-"], &objects);
    for kind in [
        "configmap",
        "deployment",
        "service",
        "horizontalpodautoscaler",
        "networkpolicy",
        "cronjob",
    ] {
        assert!(made.contains(kind), "{kind}: {made}");
    }
    let get = |what: &str| -> Value {
        serde_json::from_str(&server.ok(&["get", what, "-o", "json"], "")).expect("JSON")
    };
    let deployment = get("deployment/thermo");
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "registry.local:5000/shop/thermo:v2");
    assert_eq!(container["resources"]["limits"]["cpu"], "500m");
    assert_eq!(container["env"][0]["valueFrom"]["secretKeyRef"]["key"], "Token_2");
    assert_eq!(get("configmap/thermo-env")["data"]["UNIT"], "C $(X)");
    let cron = get("cronjob/thermo-0");
    assert_eq!(cron["spec"]["timeZone"], "Europe/Berlin");
    let call = &cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(call["args"][1], "http://thermo/tidy?all=$$(X)");

    // Every example passes the server's own checks.
    for example in ["echo-node", "echo-shell", "hello-server", "thermo-python"] {
        let out = dir.path().join(example);
        let output = export(&repository().join("examples").join(example), &out, &[]);
        assert!(output.status.success(), "{}", said(&output));
        let folder = std::fs::read_dir(&out).expect("folder").next().expect("one").expect("entry");
        let objects = std::fs::read_to_string(folder.path().join("objects.yaml")).expect("file");
        server.ok(&["apply", "--dry-run=server", "--validate=strict", "-f", "-"], &objects);
    }
}

fn export_image(path: &Path, out: &Path) -> Output {
    let mut command = Command::new(mote_binary());
    command.args(["export", "image"]).arg(path).arg("--out").arg(out);
    command.output().expect("the binary starts")
}

#[test]
fn an_exported_image_is_deployed_like_every_image() {
    let dir = tempfile::tempdir().expect("temp folder");
    let node = Node::start();
    for (example, body, expected) in [
        ("hello-python", "", "mote"),
        ("echo-node", "körper", "körper"),
        ("echo-shell", "in", "in"),
    ] {
        let output = export_image(&repository().join("examples").join(example), dir.path());
        assert!(output.status.success(), "{}", said(&output));
        assert!(said(&output).contains("without its name in front"), "{}", said(&output));
        let archive = dir.path().join(format!("{example}.tar"));
        node.ok(&["deploy", archive.to_str().expect("UTF-8")]);
        let answer = node.post(&format!("/{example}"), body.as_bytes());
        assert_eq!((answer.status, answer.text().as_str()), (200, expected), "{example}");
        assert_eq!(node.get(&format!("/{example}/_/health")).text(), "OK\n");
    }
    // Nothing but the archives remains, and none of them is overwritten.
    assert_eq!(std::fs::read_dir(dir.path()).expect("folder").count(), 3);
    let again = export_image(&repository().join("examples/echo-shell"), dir.path());
    assert!(said(&again).contains("already exists"), "{}", said(&again));

    for (manifest, expected) in [
        ("image = \"ghcr.io/owner/site:1\"\n", "it is a container image already"),
        ("runtime = \"server\"\ncommand = [\"ruby\", \"x.rb\"]\n", "program `ruby`"),
    ] {
        let project = tempfile::tempdir().expect("temp folder");
        let text = format!("version = 1\nname = \"refused\"\n{manifest}");
        std::fs::write(project.path().join("mote.toml"), text).expect("file");
        std::fs::write(project.path().join("x.rb"), "puts 1\n").expect("file");
        let refused = export_image(project.path(), dir.path());
        let text = said(&refused);
        assert!(!refused.status.success() && text.contains("M0122"), "{text}");
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("folder").count(), 3);
}
