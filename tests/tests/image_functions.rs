//! Functions that are container images: archives and names, the image's settings, restarts,
//! rollbacks, and the removal of images that nothing uses.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use mote_tests::images::{Image, Registry, copy_program, go_program};
use mote_tests::{Node, is_root, skip, wait_for};
use serde_json::json;

/// A server whose answer depends on the path.
const SERVER: &str = r##"package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "once" {
		body, _ := io.ReadAll(os.Stdin)
		fmt.Print(os.Getenv("GREETING"), " ", strings.ToUpper(string(body)))
		return
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGQUIT)
	go func() { fmt.Println("stopped by", <-stop); os.Exit(0) }()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		switch r.URL.Path {
		case "/env":
			fmt.Fprint(w, strings.Join(os.Environ(), "\n"))
		case "/who":
			folder, _ := os.Getwd()
			fmt.Fprint(w, os.Getuid(), " ", os.Getgid(), " ", folder, " ", strings.Join(os.Args, " "))
		case "/read":
			text, err := os.ReadFile(query.Get("file"))
			fmt.Fprint(w, string(text), err)
		case "/write":
			fmt.Fprint(w, os.WriteFile(query.Get("file"), []byte("written"), 0o600))
		case "/drop":
			fmt.Fprint(w, syscall.Setgid(33), syscall.Setuid(33), os.Chown("/", 33, 33))
		case "/fork":
			words := strings.Fields(os.Getenv("fprocess"))
			command := exec.Command(words[0], words[1:]...)
			command.Stdin = r.Body
			out, err := command.CombinedOutput()
			if err != nil { w.WriteHeader(500) }
			w.Write(out)
		default:
			fmt.Fprint(w, "hello from ", os.Getenv("VERSION"))
		}
	})
	port := os.Getenv("LISTEN")
	if port == "" { port = os.Getenv("PORT") }
	fmt.Println(http.ListenAndServe(":" + port, nil))
}
"##;

/// The server as a static program, which is built once.
fn server() -> Option<&'static [u8]> {
    static BUILT: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    let built = BUILT.get_or_init(|| go_program(SERVER)).as_deref();
    if built.is_none() {
        skip("functions that are images", "there is no Go");
    }
    built
}

fn image(version: &str) -> Option<Image> {
    let config = json!({"Entrypoint": ["/server"], "Env": [format!("VERSION={version}")]});
    Some(Image::new().files(&[("server*", server()?)]).config(config))
}

/// Deploys, and prints what the command says if it fails.
fn deploy(node: &Node, args: &[&str]) -> String {
    node.ok(&[&["deploy"], args].concat())
}

#[test]
fn a_static_server_from_scratch() {
    let Some(one) = image("1").map(Image::layout) else { return };
    let two = image("2").unwrap().layout();
    let node = Node::start();
    let said = deploy(&node, &[one.archive("hello.tar").to_str().unwrap()]);
    assert!(said.contains("hello@1 is live"), "{said}");
    assert_eq!(node.get("/hello").text(), "hello from 1");
    let described = node.ok(&["describe", "hello"]);
    assert!(described.contains(&one.digest), "{described}");

    // A layout in a folder works too, and a rollback returns to the former image.
    deploy(&node, &[two.path.to_str().unwrap(), "--name", "hello"]);
    assert_eq!(node.get("/hello").text(), "hello from 2");
    node.ok(&["rollback", "hello"]);
    assert_eq!(node.get("/hello").text(), "hello from 1");
    // From here on, only the node's disk is needed.
    drop((one, two));
    let node = node.stop_and_restart();
    assert_eq!(node.get("/hello").text(), "hello from 1");

    let layers = node.dir.path().join("data/images");
    assert!(bytes_below(&layers) > 1_000_000);
    node.ok(&["remove", "hello", "--yes"]);
    wait_for("the images to be removed", || (bytes_below(&layers) < 100_000).then_some(()));
}

#[test]
fn settings_of_the_image_and_of_the_function() {
    let Some(server) = server() else { return };
    let passwd = b"root:x:0:0::/root:/bin/sh\nweb:x:33:34::/home/web:/bin/sh\n";
    let of_user = |user: &str| {
        let config = json!({
            "Entrypoint": ["/bin/server"],
            "Cmd": ["from-image"],
            "Env": ["VERSION=image", "KEPT=yes", "PORT=1"],
            "WorkingDir": "/srv/folder",
            "User": user,
            "ExposedPorts": {"80/tcp": {}},
            "StopSignal": "SIGQUIT",
        });
        let files: [(&str, &[u8]); 3] =
            [("bin/server*", server), ("etc/passwd", passwd), ("etc/shadow", b"secret")];
        Image::new().files(&files).config(config).layout()
    };
    let node = Node::start();
    let root = of_user("");
    deploy(&node, &[root.path.to_str().unwrap(), "--name", "admin"]);
    assert_eq!(node.get("/admin/who").text(), "0 0 /srv/folder /bin/server from-image");
    let env = node.get("/admin/env").text();
    for line in ["VERSION=image", "KEPT=yes", "PORT=80", "HOME=/root"] {
        assert!(env.lines().any(|one| one == line), "{line}: {env}");
    }
    assert_eq!(node.get("/admin/read?file=/etc/shadow").text(), "secret<nil>");
    assert_eq!(node.get("/admin/write?file=/etc/shadow").text(), "<nil>");
    assert_eq!(node.get("/admin/read?file=/etc/shadow").text(), "written<nil>");
    assert_eq!(node.get("/admin/drop").text(), "<nil> <nil> <nil>");
    assert_eq!(node.get("/admin/who").text(), "0 0 /srv/folder /bin/server from-image");
    node.ok(&["scale", "admin", "0"]);
    wait_for("the signal", || {
        node.ok(&["logs", "admin"]).contains("stopped by quit").then_some(())
    });

    let web = of_user("web");
    let folder = tempfile::tempdir().unwrap();
    let manifest = format!(
        "version = 1\nname = \"web\"\nimage = {:?}\ncommand = [\"server\", \"own\"]\n\
         [env]\nVERSION = \"function\"\n",
        web.archive("web.tar")
    );
    std::fs::write(folder.path().join("mote.toml"), manifest).unwrap();
    deploy(&node, &[folder.path().to_str().unwrap()]);
    assert_eq!(node.get("/web/who").text(), "33 34 /srv/folder server own");
    let env = node.get("/web/env").text();
    assert!(env.contains("VERSION=function") && env.contains("HOME=/home/web"), "{env}");
    assert!(!env.contains("VERSION=image"), "{env}");
    assert_eq!(node.get("/web/read?file=/etc/shadow").text(), "secret<nil>");
    assert!(node.get("/web/drop").text().contains("not permitted"));
}

#[test]
fn one_program_per_call() {
    let Some(image) = image("x") else { return };
    let layout = image
        .config(json!({"Entrypoint": ["/server"], "Cmd": ["once"], "Env": ["GREETING=image"]}))
        .layout();
    let folder = tempfile::tempdir().unwrap();
    let archive = layout.archive("once.tar");
    let manifest = |more: &str| {
        let text = format!(
            "version = 1\nname = \"once\"\nimage = {archive:?}\nruntime = \"exec\"\n{more}"
        );
        std::fs::write(folder.path().join("mote.toml"), text).unwrap();
        folder.path().to_str().unwrap()
    };
    let node = Node::start();
    deploy(&node, &[manifest("")]);
    assert_eq!(node.post("/once", b"shout").text(), "image SHOUT");
    deploy(&node, &[manifest("[env]\nGREETING = \"function\"\n")]);
    assert_eq!(node.post("/once", b"shout").text(), "function SHOUT");
}

#[test]
fn sixty_layers_and_ten_functions_on_one_base() {
    let Some(server) = server() else { return };
    let base = |version: &str| {
        let mut image = Image::new().files(&[("server*", server)]);
        for layer in 0..58 {
            image = image.files(&[("top", format!("{layer}").as_bytes())]);
        }
        let env = format!("VERSION={version}");
        image.files(&[("own", version.as_bytes())]).config(
            json!({"Entrypoint": ["/server"], "Env": [env], "ExposedPorts": {"9000/tcp": {}}}),
        )
    };
    let node = Node::start();
    let images = node.dir.path().join("data/images");
    let mut sizes = Vec::new();
    for number in 0..10 {
        let layout = base(&number.to_string()).layout();
        deploy(&node, &[layout.path.to_str().unwrap(), "--name", &format!("f{number}")]);
        sizes.push(bytes_below(&images));
    }
    for number in 0..10 {
        assert_eq!(node.get(&format!("/f{number}")).text(), format!("hello from {number}"));
        assert_eq!(node.get(&format!("/f{number}/read?file=/top")).text(), "57<nil>");
    }
    println!("bytes on disk after each deploy: {sizes:?}");
    assert!(sizes[9] - sizes[0] < sizes[0] / 5, "the base is there more than once: {sizes:?}");
}

#[test]
fn programs_of_a_distribution() {
    let Some(shell) = which("sh") else { return };
    let Some(python) = python_layer() else {
        return skip("Python in an image", "there is no python3");
    };
    copy_program(python.path(), &shell, "/bin/sh");
    let config = json!({
        "Cmd": ["/bin/sh", "-c", "cd /srv && exec python3 -m http.server $PORT"],
        "Env": ["PATH=/usr/bin:/bin", "PYTHONHOME=/usr"],
        "ExposedPorts": {"8000/tcp": {}},
    });
    let image = Image::new()
        .layer(python.path())
        .files(&[("srv/index.html", b"a page of an image\n")])
        .config(config)
        .layout();
    let node = Node::start();
    deploy(&node, &[image.path.to_str().unwrap(), "--name", "pages"]);
    assert_eq!(node.get("/pages/index.html").text(), "a page of an image\n");
}

#[test]
fn nginx_begins_as_root_and_becomes_another_user() {
    let Some(nginx) = which("nginx") else {
        return skip("nginx in an image", "nginx is not installed");
    };
    let layer = tempfile::tempdir().unwrap();
    copy_program(layer.path(), &nginx, "/usr/sbin/nginx");
    let configuration = "user www-data;\npid /run/nginx.pid;\nerror_log /dev/stderr;\ndaemon off;\n\
        events {}\nhttp { access_log /dev/stdout; server { listen 80; root /srv; } }\n";
    let files: [(&str, &[u8]); 6] = [
        ("etc/passwd", b"root:x:0:0::/root:/bin/sh\nwww-data:x:33:33::/var/www:/bin/false\n"),
        ("etc/group", b"root:x:0:\nwww-data:x:33:\n"),
        ("etc/nginx/nginx.conf", configuration.as_bytes()),
        ("srv/index.html", b"from nginx\n"),
        ("run/.keep", b""),
        ("var/lib/nginx/.keep", b""),
    ];
    let image = Image::new()
        .layer(layer.path())
        .files(&files)
        .files(&[("var/log/nginx/.keep", b"")])
        .config(json!({
            "Entrypoint": ["nginx", "-c", "/etc/nginx/nginx.conf"],
            "ExposedPorts": {"80/tcp": {}},
            "StopSignal": "SIGQUIT",
        }))
        .layout();
    let node = Node::start();
    deploy(&node, &[image.path.to_str().unwrap(), "--name", "nginx"]);
    assert_eq!(node.get("/nginx/index.html").text(), "from nginx\n");
}

#[test]
fn what_cannot_run_says_why() {
    let Some(image) = image("1") else { return };
    let no_program = Image::new().files(&[("file", b"x")]).layout();
    let unknown = image.config(json!({"Entrypoint": ["/server"], "User": "nobody-here"})).layout();
    let node = Node::start();
    for (layout, wanted) in
        [(&no_program, "names no program to run"), (&unknown, "find the user nobody-here")]
    {
        let failed = node.mote(&["deploy", layout.path.to_str().unwrap(), "--name", "broken"]);
        let said = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert!(!failed.status.success() && said.contains(wanted), "{said}");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "x").unwrap();
    let packed = folder.path().join("notes.tar");
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(folder.path()).arg("-cf").arg(&packed).arg("notes.txt");
    assert!(tar.status().unwrap().success());
    let elsewhere = self::image("1").unwrap();
    let elsewhere = elsewhere.config(json!({"Entrypoint": ["/server"], "Env": ["LISTEN=9999"]}));
    let elsewhere = elsewhere.layout();
    for (archive, more, wanted) in [
        (packed.as_path(), "", "neither an index.json nor a manifest.json"),
        (elsewhere.path.as_path(), "[limits]\ninit_timeout = \"1s\"\n", "8080"),
    ] {
        let text = format!("version = 1\nname = \"broken\"\nimage = {archive:?}\n{more}");
        std::fs::write(folder.path().join("mote.toml"), text).unwrap();
        let failed = node.mote(&["deploy", folder.path().to_str().unwrap()]);
        let said = String::from_utf8_lossy(&failed.stderr).into_owned();
        println!("{said}");
        assert!(!failed.status.success() && said.contains(wanted), "{said}");
    }
}

/// The platform's clients name an image in a registry, so the archive is deployed first and the same
/// contract is used: a watchdog that starts a program for each request.
#[test]
fn a_program_that_forks_for_each_request() {
    let Some(image) = image("1") else { return };
    let config =
        json!({"Entrypoint": ["/server"], "Env": ["fprocess=/server once", "GREETING=hi"]});
    let layout = image.config(config).layout();
    let node = Node::start();
    deploy(&node, &[layout.path.to_str().unwrap(), "--name", "watchdog"]);
    assert_eq!(node.post("/watchdog/fork", b"shout").text(), "hi SHOUT");
}

macro_rules! registry {
    () => {
        match Registry::start() {
            Some(registry) => registry,
            None => return skip("images of a registry", "docker-registry is not installed"),
        }
    };
}

#[test]
fn a_tag_is_resolved_once_and_the_registry_is_not_needed_afterwards() {
    let Some(one) = image("1").map(Image::layout) else { return };
    let two = image("2").unwrap().layout();
    let registry = registry!();
    let name = registry.push(&one, "team/hello", "latest");
    let node = Node::start();
    let said = deploy(&node, &[&name]);
    assert!(said.contains("hello@1 is live"), "{said}");
    assert_eq!(node.get("/hello").text(), "hello from 1");
    // A moved tag changes nothing until the next deploy.
    registry.push(&two, "team/hello", "latest");
    node.ok(&["scale", "hello", "0"]);
    assert_eq!(node.get("/hello").text(), "hello from 1");
    deploy(&node, &[&name]);
    assert_eq!(node.get("/hello").text(), "hello from 2");
    drop(registry);
    let node = node.stop_and_restart();
    node.ok(&["rollback", "hello"]);
    assert_eq!(node.get("/hello").text(), "hello from 1");
}

/// `faas-cli deploy --image` and `stack.yml`, with an image that has a watchdog on port 8080.
#[test]
fn images_of_openfaas() {
    let Some(image) = image("1") else { return };
    let config = json!({"Entrypoint": ["/server"], "Env": ["LISTEN=8080", "GREETING=image"]});
    let layout = image.config(config).layout();
    let registry = registry!();
    let name = registry.push(&layout, "shop/watchdog", "1");
    let node = Node::start_with(&["--openfaas", "127.0.0.1:0"]);
    let gateway = node.platform("openfaas");
    let auth = mote_tests::basic_auth("admin", &node.token());
    let deployment = |service: &str| {
        json!({
            "service": service, "image": name, "envProcess": "/server once",
            "envVars": {"GREETING": "deployment"},
        })
    };
    let send = |method: &str, service: &str| {
        let body = deployment(service).to_string();
        let headers = [("authorization", auth.as_str()), ("content-type", "application/json")];
        mote_tests::call_at(gateway, method, "/system/functions", &headers, body.as_bytes())
    };
    let made = send("POST", "watch");
    assert_eq!(made.status, 202, "{}", made.text());
    assert_eq!(node.post("/watch/fork", b"shout").text(), "deployment SHOUT");
    assert_eq!(send("PUT", "watch").status, 200);
    assert_eq!(node.post("/watch/fork", b"again").text(), "deployment AGAIN");
    let headers = [("authorization", auth.as_str())];
    let shown = mote_tests::call_at(gateway, "GET", "/system/function/watch", &headers, b"");
    assert_eq!(shown.json()["image"], name.as_str(), "{}", shown.text());

    let folder = tempfile::tempdir().unwrap();
    let stack = format!(
        "version: 1.0\nprovider:\n  name: openfaas\nfunctions:\n  stacked:\n    image: {name}\n    \
         fprocess: /server once\n    environment:\n      GREETING: stack\n"
    );
    std::fs::write(folder.path().join("stack.yml"), stack).unwrap();
    deploy(&node, &[folder.path().join("stack.yml").to_str().unwrap()]);
    assert_eq!(node.post("/stacked/fork", b"shout").text(), "stack SHOUT");
}

#[test]
fn images_of_knative_and_openwhisk() {
    let Some(server) = server() else { return };
    let registry = registry!();
    let layout = Image::new()
        .files(&[("bin/server*", server)])
        .config(json!({"Entrypoint": ["/bin/server"], "Cmd": ["from-image"]}))
        .layout();
    let name = registry.push(&layout, "k/service", "1");
    let node = Node::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("service.yaml");
    let service = format!(
        "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {{name: greeter}}\nspec:\n  \
         template:\n    spec:\n      containers:\n      - image: {name}\n        \
         args: [from-service]\n        env: [{{name: VERSION, value: k}}]\n"
    );
    std::fs::write(&file, service).unwrap();
    deploy(&node, &[file.to_str().unwrap()]);
    assert!(node.get("/greeter/who").text().ends_with("/bin/server from-service"));
    let env = node.get("/greeter/env").text();
    for line in ["VERSION=k", "K_SERVICE=greeter", "PORT=8080"] {
        assert!(env.lines().any(|one| one == line), "{line}: {env}");
    }

    let Some(action) = go_program(ACTION) else { return };
    let layout = Image::new()
        .files(&[("action*", &action)])
        .config(json!({"Entrypoint": ["/action"]}))
        .layout();
    let name = registry.push(&layout, "w/action", "1");
    let manifest = format!(
        "packages:\n  default:\n    actions:\n      greet:\n        docker: {name}\n        \
         inputs: {{greeting: hello}}\n"
    );
    std::fs::write(folder.path().join("manifest.yaml"), manifest).unwrap();
    deploy(&node, &[folder.path().join("manifest.yaml").to_str().unwrap()]);
    let answer = node.call(
        "POST",
        "/greet",
        &[("content-type", "application/json")],
        br#"{"name": "world"}"#,
    );
    assert_eq!(answer.json()["text"], "hello world after 1 /init", "{}", answer.text());
}

#[test]
fn images_of_nuclio() {
    let Some(server) = server() else { return };
    let registry = registry!();
    // The processor of Nuclio listens on port 8080.
    let layout = Image::new()
        .files(&[("processor*", server)])
        .config(json!({"Entrypoint": ["/processor"], "Env": ["LISTEN=8080"]}))
        .layout();
    let name = registry.push(&layout, "n/processor", "1");
    let node = Node::start();
    let folder = tempfile::tempdir().unwrap();
    let function = |image: &str| {
        let text = format!(
            "apiVersion: nuclio.io/v1\nkind: NuclioFunction\nmetadata: {{name: shipped}}\nspec:\n  \
             {image}\n  build: {{codeEntryType: image}}\n  env: [{{name: VERSION, value: nuclio}}]\n"
        );
        std::fs::write(folder.path().join("function.yaml"), text).unwrap();
        node.mote(&["deploy", folder.path().join("function.yaml").to_str().unwrap()])
    };
    let made = function(&format!("image: {name}"));
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert_eq!(node.get("/shipped").text(), "hello from nuclio");
    let env = node.get("/shipped/env").text();
    assert!(env.lines().any(|line| line == "NUCLIO_FUNCTION_NAME=shipped"), "{env}");
    assert!(!function("handler: x").status.success(), "without an image");
}

/// An image of an OpenWhisk action.
const ACTION: &str = r##"package main

import (
	"encoding/json"
	"fmt"
	"net/http"
)

func main() {
	inits := 0
	http.HandleFunc("/init", func(w http.ResponseWriter, r *http.Request) {
		inits++
		fmt.Fprint(w, `{"ok": true}`)
	})
	http.HandleFunc("/run", func(w http.ResponseWriter, r *http.Request) {
		var call struct{ Value map[string]any }
		json.NewDecoder(r.Body).Decode(&call)
		text := fmt.Sprintf("%v %v after %d /init", call.Value["greeting"], call.Value["name"], inits)
		json.NewEncoder(w).Encode(map[string]any{"text": text})
	})
	fmt.Println(http.ListenAndServe(":8080", nil))
}
"##;

#[test]
fn an_instance_has_nothing_on_the_host() {
    let Some(image) = image("1").map(Image::layout) else { return };
    if !is_root() {
        return skip("the user of an instance", "the node has to run as root");
    }
    let node = Node::start();
    deploy(&node, &[image.path.to_str().unwrap(), "--name", "nobody"]);
    node.get("/nobody");
    let pid = mote_tests::programs(node.pid())
        .into_iter()
        .find(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with(b"/server")
        })
        .expect("the program runs");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().next().unwrap_or_default().to_owned()
    };
    assert!(field("Uid:").parse::<u32>().unwrap() >= 65_536, "{status}");
    assert_eq!(field("CapEff:"), "0000000000000000");
    assert_eq!(field("CapBnd:"), "0000000000000000");
    assert_eq!(field("NoNewPrivs:"), "1");
    assert_eq!(field("Seccomp:"), "2");
}

fn which(program: &str) -> Option<std::path::PathBuf> {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().ok()?;
    let path = String::from_utf8(found.stdout).ok()?;
    std::fs::canonicalize(path.trim()).ok()
}

/// A layer with this machine's Python.
fn python_layer() -> Option<tempfile::TempDir> {
    let script =
        "import sys, sysconfig; print(sys.executable); print(sysconfig.get_path('stdlib'))";
    let output = Command::new("python3").args(["-c", script]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (program, library) = text.trim().split_once('\n')?;
    let layer = tempfile::tempdir().unwrap();
    copy_program(layer.path(), &std::fs::canonicalize(program).ok()?, "/usr/bin/python3");
    let name = Path::new(library).file_name()?.to_str()?;
    let target = layer.path().join("usr/lib").join(name);
    std::fs::create_dir_all(target.parent()?).unwrap();
    let copied = Command::new("cp").args(["-rL", library]).arg(&target).status();
    assert!(copied.unwrap().success());
    // Modules written in C need further libraries.
    let modules = std::fs::read_dir(target.join("lib-dynload")).into_iter().flatten().flatten();
    for module in modules {
        copy_program(layer.path(), &module.path(), "/unused");
        let _ = std::fs::remove_file(layer.path().join("unused"));
    }
    for unused in ["test", "site-packages", "dist-packages", "idlelib", "lib2to3", "ensurepip"] {
        let _ = std::fs::remove_dir_all(target.join(unused));
    }
    Some(layer)
}

fn bytes_below(folder: &Path) -> u64 {
    let output = Command::new("du").args(["-s", "-B1"]).arg(folder).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().next().and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}
