//! Runs Debian's `docker-registry` for tests, and fills it with images that `skopeo` pushes.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// How long the registry may take to accept connections.
const PATIENCE: Duration = Duration::from_secs(20);
/// The name and the password of the registry's only user.
pub const USER: &str = "anna";
pub const PASSWORD: &str = "a secret: 1";
/// The registry's password file. Its line is the output of `htpasswd -nbB -C 4 anna 'a secret: 1'`.
const HTPASSWD: &str = "anna:$2y$04$sC.fNCKvlr1xuoogw0J8S.J4zmiwsVcgqeRgTUzYvKZ7OYSylKjlm\n";

/// Whether a program can be run. If not, prints that the test is skipped.
pub fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        skip(program, "not installed; scripts/setup.sh test installs it");
    }
    found
}

/// Prints that the calling test, or a part of it, cannot run here.
pub fn skip(what: &str, why: &str) {
    // The message bypasses the test runner, which hides the output of tests that pass.
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("test");
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {what}: {why}");
}

/// Returns a free loopback port outside the range that the kernel uses for outgoing connections.
fn free_port() -> u16 {
    const FIRST: u16 = 16_000;
    const COUNT: u16 = 16_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = ((std::process::id() * 97 + u32::from(COUNT) / 4) % u32::from(COUNT)) as u16;
    let mut ports = std::iter::repeat_with(|| {
        FIRST + (begin + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT
    });
    ports.find(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()).expect("no end")
}

/// What a registry requires of its clients.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asks {
    /// TLS with a certificate of [`Registry::authority`].
    pub tls: bool,
    /// [`USER`] and [`PASSWORD`].
    pub password: bool,
}

/// A running registry. Dropping this value kills it and removes its images.
#[derive(Debug)]
pub struct Registry {
    pub folder: tempfile::TempDir,
    pub port: u16,
    asks: Asks,
    child: Option<Child>,
}

impl Registry {
    /// Starts a registry on loopback. If a program is missing, prints that and returns `None`.
    pub fn start(asks: Asks) -> Option<Self> {
        if !(has("docker-registry") && has("skopeo") && has("openssl")) {
            return None;
        }
        let folder = tempfile::Builder::new().prefix("mote-registry").tempdir().expect("a folder");
        let mut registry = Self { folder, port: free_port(), asks, child: None };
        if asks.tls {
            registry.make_certificates();
        }
        registry.again();
        Some(registry)
    }

    /// Starts the registry again after [`Registry::stop`], with the data that it has kept.
    pub fn again(&mut self) {
        let dir = self.folder.path().display();
        let mut config = format!(
            "version: 0.1\nlog: {{level: info, fields: {{}}}}\nstorage: {{filesystem: {{rootdirectory: {dir}/store}}, \
             delete: {{enabled: true}}}}\nhttp:\n  addr: 127.0.0.1:{}\n",
            self.port
        );
        if self.asks.tls {
            config += &format!("  tls: {{certificate: {dir}/server.crt, key: {dir}/server.key}}\n");
        }
        if self.asks.password {
            std::fs::write(self.folder.path().join("users"), HTPASSWD).expect("written");
            config += &format!("auth: {{htpasswd: {{realm: mote, path: {dir}/users}}}}\n");
        }
        let file = self.folder.path().join("config.yml");
        std::fs::write(&file, config).expect("written");
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))
            .expect("a file");
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&file)
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn()
            .expect("started");
        self.child = Some(child);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            assert!(ended.is_none(), "the registry ended:\n{}", self.log());
            assert!(Instant::now() < end, "the registry does not listen:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The registry's log, which has one line for each request among others.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The authority's certificate.
    pub fn authority(&self) -> PathBuf {
        self.folder.path().join("certs/ca.crt")
    }

    /// The name of an image here.
    pub fn name(&self, image: &str) -> String {
        format!("localhost:{}/{image}", self.port)
    }

    /// Pushes an image. `from` is a source of skopeo, such as `oci:FOLDER`.
    pub fn push(&self, from: &str, image: &str, flags: &[&str]) {
        let output = self.try_push(from, image, flags);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{from}: {said}");
    }

    fn try_push(&self, from: &str, image: &str, flags: &[&str]) -> Output {
        let mut command = Command::new("skopeo");
        command.args(["--insecure-policy", "copy", "-q"]);
        if self.asks.tls {
            command.arg("--dest-cert-dir").arg(self.folder.path().join("certs"));
        } else {
            command.arg("--dest-tls-verify=false");
        }
        if self.asks.password {
            command.arg("--dest-creds").arg(format!("{USER}:{PASSWORD}"));
        }
        command.args(flags).arg(from).arg(format!("docker://{}", self.name(image)));
        command.stdin(Stdio::null()).output().expect("skopeo runs")
    }

    fn make_certificates(&self) {
        let folder = self.folder.path();
        std::fs::create_dir_all(folder.join("certs")).expect("a folder");
        let script = "set -e
            key() { openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out \"$1\"; }
            key ca.key; key server.key
            openssl req -x509 -new -key ca.key -days 30 -subj /CN=mote-test -out certs/ca.crt
            openssl req -new -key server.key -subj /CN=localhost -out server.csr
            printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\\nextendedKeyUsage=serverAuth\\n' >server.ext
            openssl x509 -req -in server.csr -CA certs/ca.crt -CAkey ca.key -extfile server.ext -days 30 \
              -out server.crt 2>&1";
        run(Command::new("bash").args(["-c", script]).current_dir(folder));
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs a command that must succeed.
pub fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("it runs");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

/// A layer of an image under construction: paths and contents. `None` deletes the path, and `@FILE`
/// copies a file of this machine.
pub type Files<'a> = &'a [(&'a str, Option<&'a str>)];

/// Makes an OCI layout with one image. GNU tar writes the layers.
pub fn layout(folder: &Path, layers: &[Files<'_>], config: &str, platform: (&str, &str)) {
    let script = r#"
import hashlib, json, os, shutil, subprocess, sys
folder, config, os_name, arch = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], sys.argv[4]
layers = json.load(open(folder + "/layers.json"))
os.remove(folder + "/layers.json")
def blob(data):
    digest = hashlib.sha256(data).hexdigest()
    os.makedirs(f"{folder}/blobs/sha256", exist_ok=True)
    open(f"{folder}/blobs/sha256/{digest}", "wb").write(data)
    return {"digest": "sha256:" + digest, "size": len(data)}
made = []
for number, files in enumerate(layers):
    root = f"{folder}/layer{number}"
    os.makedirs(root)
    for path, content in files:
        at = os.path.join(root, path)
        os.makedirs(os.path.dirname(at), exist_ok=True)
        if content is None:
            open(os.path.join(os.path.dirname(at), ".wh." + os.path.basename(at)), "w").close()
        elif content.startswith("@"):
            shutil.copy(content[1:], at)
        else:
            open(at, "w").write(content)
    tar = subprocess.run(["tar", "-C", root, "--sort=name", "--mtime=@1", "--owner=0", "--group=0", "-cf", "-", "."], check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["rm", "-r", root], check=True)
    made.append(blob(tar))
image = {"architecture": arch, "os": os_name, "config": config,
         "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in made]}}
config = blob(json.dumps(image).encode())
kind = "application/vnd.oci.image."
manifest = blob(json.dumps({"schemaVersion": 2, "mediaType": kind + "manifest.v1+json",
    "config": {"mediaType": kind + "config.v1+json", **config},
    "layers": [{"mediaType": kind + "layer.v1.tar", **layer} for layer in made]}).encode())
entry = {"mediaType": kind + "manifest.v1+json", **manifest, "platform": {"os": os_name, "architecture": arch}}
index = {"schemaVersion": 2, "manifests": []}
if os.path.exists(f"{folder}/index.json"):
    index = json.load(open(f"{folder}/index.json"))
index["manifests"].append(entry)
json.dump(index, open(f"{folder}/index.json", "w"))
json.dump({"imageLayoutVersion": "1.0.0"}, open(f"{folder}/oci-layout", "w"))
"#;
    std::fs::create_dir_all(folder).expect("a folder");
    let layers: Vec<Vec<(&str, Option<&str>)>> =
        layers.iter().map(|files| files.to_vec()).collect();
    let layers = serde_json::to_string(&layers).expect("JSON");
    std::fs::write(folder.join("layers.json"), layers).expect("written");
    run(Command::new("python3")
        .args(["-c", script])
        .arg(folder)
        .args([config, platform.0, platform.1]));
}
