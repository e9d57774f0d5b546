//! Twenty images as other people make them, unchanged, from Debian's `docker-registry` with TLS and a
//! password. The images with a whole language and the large one belong to the long tests.
//!
//! | Image | Content | Made with |
//! |---|---|---|
//! | `static` | a static Go server | skopeo, from an OCI layout |
//! | `busybox` | busybox httpd | buildah, from scratch |
//! | `saved` | busybox httpd | skopeo, `docker save`'s format, deployed as a file |
//! | `repacked` | busybox httpd, with a file that a later layer deletes | umoci |
//! | `zstd` | a static server | skopeo, zstd layers |
//! | `schema2` | a static server | skopeo, Docker's manifest |
//! | `shell` | a shell line that reads `$PORT` | skopeo |
//! | `user` | a server with `USER`, `WORKDIR` and port 80 | skopeo |
//! | `platforms` | an index for two processors | skopeo |
//! | `knative-go` | a Knative server: `$PORT`, `$TARGET` | skopeo |
//! | `classic` | OpenFaaS's classic contract: a process for each call | skopeo |
//! | `watchdog` | OpenFaaS's HTTP contract: a proxy in front of a server | skopeo |
//! | `h2c` | a server of HTTP/2 without TLS | skopeo |
//! | `knative-python`, `knative-node`, `knative-ruby`, `knative-php` | the same Knative server | skopeo, long |
//! | `java` | a server of the JDK | skopeo, long |
//! | `nginx` | nginx from Debian | buildah, long |
//! | `large` | 1 GiB that does not compress | skopeo, long |

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use mote_tests::images::{Image, copy_program, go_program};
use mote_tests::registry::{Asks, PASSWORD, Registry, USER, has, layout, run};
use mote_tests::{Node, is_long, skip};
use serde_json::{Value, json};

use crate::images::Client;

/// One program for all contracts. Its first argument chooses one.
const PROGRAM: &str = r##"package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"
)

func env(name, value string) string {
	if set := os.Getenv(name); set != "" {
		return set
	}
	return value
}

func health(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "OK") }

func main() {
	words := strings.Fields(env("fprocess", "cat"))
	switch os.Args[1] {
	case "upper": // a program of the classic contract
		body, _ := io.ReadAll(os.Stdin)
		fmt.Print(strings.ToUpper(string(body)), os.Getenv("Http_Method"), os.Getenv("Http_Query"))
		return
	case "classic":
		http.HandleFunc("/_/health", health)
		http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
			command := exec.Command(words[0], words[1:]...)
			command.Stdin, command.Stderr = r.Body, os.Stderr
			command.Env = append(os.Environ(), "Http_Method="+r.Method, "Http_Query="+r.URL.RawQuery)
			var out bytes.Buffer
			command.Stdout = &out
			if command.Run() != nil {
				w.WriteHeader(500)
			}
			w.Write(out.Bytes())
		})
	case "watchdog":
		command := exec.Command(words[0], words[1:]...)
		command.Stdout, command.Stderr = os.Stdout, os.Stderr
		command.Start()
		upstream, _ := url.Parse(os.Getenv("upstream_url"))
		for {
			answer, err := http.Get(upstream.String())
			if err == nil {
				answer.Body.Close()
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		http.HandleFunc("/_/health", health)
		http.Handle("/", httputil.NewSingleHostReverseProxy(upstream))
	default:
		http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			folder, _ := os.Getwd()
			text := os.Args[1] + " " + env("TARGET", "World") + " " + r.Proto + " " + folder
			fmt.Fprint(w, text, " ", os.Getuid(), " ", string(body))
		})
	}
	address := ":" + env("PORT", "8080")
	if os.Args[1] == "upstream" {
		address = "127.0.0.1:3000"
	}
	server := &http.Server{Addr: address}
	if os.Args[1] == "h2c" {
		server.Protocols = new(http.Protocols)
		server.Protocols.SetUnencryptedHTTP2(true)
	}
	fmt.Println(server.ListenAndServe())
}
"##;

const BUSYBOX: &str = "/bin/busybox";

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

struct Collection {
    registry: Registry,
    node: Node,
    folder: tempfile::TempDir,
}

impl Collection {
    fn start() -> Option<Self> {
        if !(has("buildah") && has("umoci")) {
            return None;
        }
        if !Path::new(BUSYBOX).exists() {
            skip("images of several tools", "busybox-static is not installed");
            return None;
        }
        let registry = Registry::start(Asks { tls: true, password: true })?;
        let authority = registry.authority();
        let authority = authority.to_str().expect("UTF-8");
        let node = Node::start_with_env(&[], &[("SSL_CERT_FILE", authority)]);
        Some(Self { registry, node, folder: tempfile::tempdir().expect("a folder") })
    }

    fn push(&self, image: Image, name: &str, flags: &[&str]) {
        let layout = image.layout();
        self.registry.push(&format!("oci:{}", layout.path.display()), &tag(name), flags);
    }

    /// Deploys with the login of the registry. `manifest` has further lines of a `mote.toml`.
    fn deploy(&self, name: &str, manifest: &str) {
        let client = Client::new(&self.node, &self.registry, Some(PASSWORD));
        let folder = tempfile::tempdir().expect("a folder");
        let image = self.registry.name(&tag(name));
        let text = format!("version = 1\nname = \"{name}\"\nimage = \"{image}\"\n{manifest}");
        std::fs::write(folder.path().join("mote.toml"), text).expect("written");
        let said = client.deploy(&[folder.path().to_str().expect("UTF-8")]);
        said.unwrap_or_else(|said| panic!("{name}: {said}\n{}", self.node.log()));
    }

    fn answers(&self, name: &str, path: &str, body: &str, expected: &str) {
        let answer = self.node.post(&format!("/{name}{path}"), body.as_bytes());
        let log = || self.node.ok(&["logs", name]);
        assert_eq!((answer.status, answer.text().trim()), (200, expected), "{name}: {}", log());
        println!("{name}: {expected}");
    }

    fn serves(&self, name: &str, path: &str, expected: &str) {
        let answer = self.node.get(&format!("/{name}{path}"));
        assert_eq!((answer.status, answer.text().trim()), (200, expected), "{name}");
        println!("{name}: {expected}");
    }

    fn script(&self, text: &str, name: &str) {
        run(Command::new("bash")
            .args(["-c", text])
            .env("NAME", self.registry.name(&tag(name)))
            .env("CERTS", self.registry.folder.path().join("certs"))
            .env("CREDS", format!("{USER}:{PASSWORD}"))
            .current_dir(self.folder.path()));
    }
}

fn tag(name: &str) -> String {
    format!("collection/{name}:1")
}

/// An image of [`PROGRAM`] in this form.
fn image(program: &[u8], arguments: &[&str], more: Value) -> Image {
    let mut config = json!({"Entrypoint": ["/program"], "Cmd": arguments});
    for (key, value) in more.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    Image::new().files(&[("program*", program)]).config(config)
}

#[test]
fn images_of_several_tools_and_contracts_answer_unchanged() {
    let Some(all) = Collection::start() else { return };
    let Some(program) = go_program(PROGRAM) else {
        return skip("images of several contracts", "there is no Go");
    };
    let program = program.as_slice();
    let of = |arguments: &[&str], more: Value| image(program, arguments, more);

    all.push(of(&["static"], json!({})), "static", &[]);
    all.push(of(&["zstd"], json!({})), "zstd", &["--dest-compress-format", "zstd"]);
    all.push(of(&["schema2"], json!({})), "schema2", &["--format", "v2s2"]);
    for name in ["static", "zstd", "schema2"] {
        all.deploy(name, "");
        all.answers(name, "", "in", &format!("{name} World HTTP/1.1 / 0 in"));
    }

    let config = json!({"User": "1000", "WorkingDir": "/srv/data", "ExposedPorts": {"80/tcp": {}}});
    all.push(of(&["user"], config), "user", &[]);
    all.deploy("user", "");
    all.answers("user", "", "in", "user World HTTP/1.1 /srv/data 1000 in");

    all.push(of(&["knative"], json!({"Env": ["TARGET=Go"]})), "knative-go", &[]);
    all.deploy("knative-go", "[env]\nTARGET = \"Knative\"\n");
    all.answers("knative-go", "", "", "knative Knative HTTP/1.1 / 0");

    let env = json!({"Env": ["fprocess=/program upper"], "ExposedPorts": {"8080/tcp": {}}});
    all.push(of(&["classic"], env), "classic", &[]);
    all.deploy("classic", "");
    all.answers("classic", "/?a=1", "shout ", "SHOUT POSTa=1");
    all.serves("classic", "/_/health", "OK");

    let env = json!({"Env": ["fprocess=/program upstream", "upstream_url=http://127.0.0.1:3000"]});
    all.push(of(&["watchdog"], env), "watchdog", &[]);
    all.deploy("watchdog", "");
    all.answers("watchdog", "", "in", "upstream World HTTP/1.1 / 0 in");

    all.push(of(&["h2c"], json!({})), "h2c", &[]);
    all.deploy("h2c", "protocol = \"h2c\"\n");
    let url = format!("http://{}/h2c", all.node.http);
    let said = run(Command::new("curl").args(["-sS", "--http2-prior-knowledge", "-d", "in", &url]));
    assert_eq!(said, "h2c World HTTP/2.0 / 0 in");

    let busybox = std::fs::read(BUSYBOX).expect("busybox");
    let line = "mkdir /www; echo shell > /www/index.html; exec busybox httpd -f -p $PORT -h /www";
    let shell = Image::new()
        .files(&[("bin/sh*", &busybox), ("bin/busybox*", &busybox)])
        .files(&[("bin/mkdir*", &busybox)])
        .config(json!({"Cmd": ["/bin/sh", "-c", line], "Env": ["PATH=/bin"]}));
    all.push(shell, "shell", &[]);
    all.deploy("shell", "");
    all.serves("shell", "/index.html", "shell");

    tools(&all);
    platforms(&all);
}

/// Images of buildah, umoci, and `docker save`'s format.
fn tools(all: &Collection) {
    let script = r#"set -e
        b() { buildah --root "$PWD/store" --runroot "$PWD/run" --storage-driver vfs "$@"; }
        mkdir www; echo busybox >www/index.html
        c=$(b from scratch)
        b copy "$c" /bin/busybox /bin/busybox >&2
        b copy "$c" www /www >&2
        b config --entrypoint '["/bin/busybox", "httpd", "-f", "-p", "8080", "-h", "/www"]' --port 8080 "$c"
        b commit -q "$c" built >&2
        b push -q --creds "$CREDS" --cert-dir "$CERTS" built docker://$NAME >&2
        b push -q built oci:layout:busybox >&2
        skopeo --insecure-policy copy -q oci:layout:busybox docker-archive:saved.tar:shop/saved:1 >&2
        umoci unpack --rootless --image layout:busybox bundle
        echo deleted >bundle/rootfs/www/old; umoci repack --refresh-bundle --image layout:one bundle >&2
        rm bundle/rootfs/www/old; echo repacked >bundle/rootfs/www/index.html
        umoci repack --image layout:two bundle >&2"#;
    all.script(script, "busybox");
    all.deploy("busybox", "");
    all.serves("busybox", "/index.html", "busybox");

    let saved = all.folder.path().join("saved.tar");
    all.node.ok(&["deploy", saved.to_str().expect("UTF-8")]);
    all.serves("saved", "/index.html", "busybox");

    let layout = format!("oci:{}:two", all.folder.path().join("layout").display());
    all.registry.push(&layout, &tag("repacked"), &[]);
    all.deploy("repacked", "");
    all.serves("repacked", "/index.html", "repacked");
    assert_eq!(all.node.get("/repacked/old").status, 404);
}

/// Turns the index of a layout into a separate document, because skopeo copies all images of an index
/// only if the layout has one entry.
fn nest_index(folder: &Path) {
    let script = r#"set -e
        entry='{"mediaType": "application/vnd.oci.image.index.v1+json", "digest": "sha256:%s", "size": %s}'
        digest=$(sha256sum index.json | cut -c1-64)
        mv index.json blobs/sha256/$digest
        entry=$(printf "$entry" $digest $(stat -c %s blobs/sha256/$digest))
        echo "{\"schemaVersion\": 2, \"manifests\": [$entry]}" >index.json"#;
    run(Command::new("bash").args(["-c", script]).current_dir(folder));
}

fn platforms(all: &Collection) {
    let program = format!("@{BUSYBOX}");
    let config = r#"{"Entrypoint": ["/bin/busybox", "httpd", "-f", "-p", "8080", "-h", "/www"]}"#;
    let folder = all.folder.path().join("platforms");
    for (architecture, text) in [("s390x", "another processor"), (architecture(), "this one")] {
        let layers: [&[(&str, Option<&str>)]; 1] =
            [&[("bin/busybox", Some(&program)), ("www/index.html", Some(text))]];
        layout(&folder, &layers, config, ("linux", architecture));
    }
    nest_index(&folder);
    let from = format!("oci:{}", folder.display());
    all.registry.push(&from, &tag("platforms"), &["--all"]);
    all.deploy("platforms", "");
    all.serves("platforms", "/index.html", "this one");

    let client = Client::new(&all.node, &all.registry, Some(PASSWORD));
    let name = all.registry.name(&tag("static"));
    let said = client.deploy(&[&name, "--platform", "linux/s390x"]).expect_err("refused");
    assert!(said.contains("M1504") && said.contains("is not for linux/s390x; it is for"), "{said}");
    let name = all.registry.name(&tag("platforms"));
    let said = client.deploy(&[&name, "--platform", "windows/arm64"]).expect_err("refused");
    assert!(said.contains("it is for linux/s390x, linux/"), "{said}");
    let said = client.deploy(&[&name, "--platform", "arm 64"]).expect_err("refused");
    assert!(said.contains("M0303"), "{said}");
}

/// Copies a program of this machine and folders that it needs, all to the places that they have here.
fn copy_language(root: &Path, programs: &[&Path], folders: &[&str]) {
    for program in programs {
        copy_program(root, program, program.to_str().expect("UTF-8"));
    }
    for folder in folders.iter().filter(|folder| Path::new(folder).is_dir()) {
        let to = root.join(folder.trim_start_matches('/'));
        std::fs::create_dir_all(&to).expect("a folder");
        let script = "tar -C \"$0\" --exclude=site-packages --exclude=dist-packages --exclude=test \
                      --exclude=src.zip --exclude='*.jsa' -chf - . | tar -C \"$1\" -xf -";
        run(Command::new("sh").args(["-c", script, folder]).arg(&to));
        let found = run(Command::new("find").arg(&to).args(["-name", "*.so"]));
        for library in found.lines().map(Path::new) {
            let here = Path::new("/").join(library.strip_prefix(root).expect("below the root"));
            copy_program(root, &here, here.to_str().expect("UTF-8"));
        }
    }
}

fn found(program: &str) -> Option<PathBuf> {
    let output = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().ok()?;
    let path = std::fs::canonicalize(String::from_utf8(output.stdout).ok()?.trim()).ok();
    if path.is_none() {
        skip(program, "not installed: scripts/setup.sh languages");
    }
    path
}

const PYTHON: &str = "\
import http.server, os

class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'Hello %s!' % os.environ['TARGET'].encode())

http.server.HTTPServer(('', int(os.environ['PORT'])), Hello).serve_forever()
";
const NODE: &str = "require('http').createServer((_, answer) => \
answer.end(`Hello ${process.env.TARGET}!\\n`)).listen(process.env.PORT);\n";
const RUBY: &str = "require 'socket'\nserver = TCPServer.new('0.0.0.0', ENV['PORT'].to_i)\n\
loop do\n  Thread.new(server.accept) do |s|\n    nil until s.gets.chomp.empty?\n\
    text = \"Hello #{ENV['TARGET']}!\\n\"\n\
    s.print \"HTTP/1.1 200 OK\\r\\nContent-Length: #{text.bytesize}\\r\\nConnection: close\\r\\n\\r\\n\", text\n\
    s.close\n  rescue StandardError\n    s.close\n  end\nend\n";
const PHP: &str = "<?php echo 'Hello ' . getenv('TARGET') . \"!\\n\";\n";
const JAVA: &str = r#"import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;

public class Hello {
    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(System.getenv("PORT"));
        HttpServer server = HttpServer.create(new InetSocketAddress(port), 0);
        server.createContext("/", exchange -> {
            byte[] text = ("Hello " + System.getenv("TARGET") + "!\n").getBytes();
            exchange.sendResponseHeaders(200, text.length);
            exchange.getResponseBody().write(text);
            exchange.close();
        });
        server.start();
    }
}
"#;

#[test]
fn images_with_a_language_and_a_large_one_answer_unchanged() {
    if !is_long() {
        return skip("images with a language, 1 GiB", "only with MOTE_LONG=1");
    }
    let Some(all) = Collection::start() else { return };
    let target = |target: &str| json!([format!("TARGET={target}"), "PATH=/usr/bin:/bin"]);
    let language =
        |name: &str, program: &Path, folders: &[&str], file: &str, text: &str, command: &[&str]| {
            let root = tempfile::tempdir().expect("a folder");
            copy_language(root.path(), &[program], folders);
            let image = Image::new()
                .layer(root.path())
                .files(&[(file, text.as_bytes())])
                .config(json!({"Cmd": command, "Env": target(name)}));
            all.push(image, name, &[]);
            all.deploy(name, "[limits]\nmemory = \"512MiB\"\ninit_timeout = \"60s\"\n");
            all.serves(name, "/", &format!("Hello {name}!"));
        };
    if let Some(program) = found("python3") {
        // The program behind `python3` may be a script that chooses a version.
        let ask =
            "import sys, sysconfig; print(sys.executable); print(sysconfig.get_path('stdlib'))";
        let said = run(Command::new(program).args(["-c", ask]));
        let (program, library) = said.trim().split_once('\n').expect("two lines");
        let program = std::fs::canonicalize(program).expect("Python");
        let command = [program.to_str().expect("UTF-8"), "/app.py"];
        language("knative-python", &program, &[library.trim()], "app.py", PYTHON, &command);
    }
    if let Some(program) = found("node") {
        let command = [program.to_str().expect("UTF-8"), "/app.js"];
        language("knative-node", &program, &[], "app.js", NODE, &command);
    }
    if let Some(program) = found("ruby") {
        let ask = "puts RbConfig::CONFIG.values_at('rubylibdir', 'rubyarchdir')";
        let said = run(Command::new(&program).args(["-e", ask]));
        let folders: Vec<&str> = said.lines().collect();
        let command = [program.to_str().expect("UTF-8"), "--disable-gems", "/app.rb"];
        language("knative-ruby", &program, &folders, "app.rb", RUBY, &command);
    }
    if let Some(program) = found("php") {
        let path = program.to_str().expect("UTF-8");
        let line = ["/bin/sh", "-c", &format!("exec {path} -n -S 0.0.0.0:$PORT /app.php")];
        let root = tempfile::tempdir().expect("a folder");
        copy_language(root.path(), &[&program], &[]);
        copy_program(root.path(), Path::new(BUSYBOX), "/bin/sh");
        let image = Image::new()
            .layer(root.path())
            .files(&[("app.php", PHP.as_bytes())])
            .config(json!({"Cmd": line, "Env": target("knative-php")}));
        all.push(image, "knative-php", &[]);
        all.deploy("knative-php", "");
        all.serves("knative-php", "/", "Hello knative-php!");
    }
    java(&all);
    nginx(&all);
    large(&all);
}

fn java(all: &Collection) {
    let (Some(java), Some(javac)) = (found("java"), found("javac")) else { return };
    let root = tempfile::tempdir().expect("a folder");
    let home = java.parent().and_then(Path::parent).expect("JAVA_HOME");
    std::fs::write(root.path().join("Hello.java"), JAVA).expect("written");
    run(Command::new(javac).args(["--release", "11", "Hello.java"]).current_dir(root.path()));
    copy_language(root.path(), &[&java], &[home.to_str().expect("UTF-8")]);
    let command = [java.to_str().expect("UTF-8"), "-XX:+UseSerialGC", "-cp", "/", "Hello"];
    let image = Image::new()
        .layer(root.path())
        .config(json!({"Entrypoint": command, "Env": ["TARGET=java"]}));
    all.push(image, "java", &[]);
    all.deploy("java", "[limits]\nmemory = \"512MiB\"\ninit_timeout = \"60s\"\n");
    all.serves("java", "/", "Hello java!");
}

fn nginx(all: &Collection) {
    let Some(program) = found("nginx") else { return };
    let root = all.folder.path().join("root");
    std::fs::create_dir(&root).expect("a folder");
    copy_program(&root, &program, "/usr/sbin/nginx");
    let script = r#"set -e
        b() { buildah --root "$PWD/store" --runroot "$PWD/run" --storage-driver vfs "$@"; }
        mkdir -p root/etc/nginx root/srv root/run root/var/lib/nginx root/var/log/nginx
        echo 'root:x:0:0::/:/bin/sh' >root/etc/passwd; echo 'root:x:0:' >root/etc/group
        echo 'nobody:x:65534:65534::/:/bin/sh' >>root/etc/passwd; echo 'nogroup:x:65534:' >>root/etc/group
        echo nginx >root/srv/index.html
        echo 'pid /run/nginx.pid; error_log /dev/stderr; daemon off; events {}
            http { access_log off; server { listen 80; root /srv; } }' >root/etc/nginx/nginx.conf
        c=$(b from scratch)
        b copy "$c" root / >&2
        b config --entrypoint '["/usr/sbin/nginx", "-c", "/etc/nginx/nginx.conf"]' --port 80 "$c"
        b commit -q "$c" nginx >&2
        b push -q --creds "$CREDS" --cert-dir "$CERTS" nginx docker://$NAME >&2"#;
    all.script(script, "nginx");
    all.deploy("nginx", "");
    all.serves("nginx", "/index.html", "nginx");
}

fn large(all: &Collection) {
    let root = tempfile::tempdir().expect("a folder");
    let mut random = std::fs::File::open("/dev/urandom").expect("random data").take(1 << 30);
    let mut file = std::fs::File::create(root.path().join("data")).expect("a file");
    std::io::copy(&mut random, &mut file).expect("copied");
    let busybox = std::fs::read(BUSYBOX).expect("busybox");
    let image = Image::new()
        .layer(root.path())
        .files(&[("bin/busybox*", &busybox), ("www/index.html", b"large")])
        .config(json!({"Entrypoint": ["/bin/busybox", "httpd", "-f", "-p", "8080", "-h", "/www"]}));
    all.push(image, "large", &[]);
    drop(root);
    let begun = std::time::Instant::now();
    all.deploy("large", "");
    println!("an image of 1 GiB was live after {:?}", begun.elapsed());
    all.serves("large", "/index.html", "large");
}
