//! CoAP over TLS (RFC 8323, 8.2): libcoap's clients, aiocoap and OpenSSL against a real node.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use mote_tests::certificates::certificates;
use mote_tests::{Node, repository, secure_coap_clients, skip, wait_for};

/// Answers with the caller's name and the length of the body.
const TELLS: &str = "def handle(event, ctx):
    if event.path == '/large':
        return 'x' * 300000 + 'end'
    if event.path == '/notify':
        return str(ctx.notify('/state', event.text))
    return f'{event.method} {event.caller} {len(event.body)}'
";
const ACCESS: [(&str, &str); 4] =
    [("open", "public"), ("shut", "key"), ("here", "local"), ("proved", "mtls")];

/// A node with its own certificate and an authority for clients, and the files that clients need.
struct Bench {
    node: Node,
    folder: tempfile::TempDir,
    at: String,
}

impl Bench {
    /// Starts the node. If openssl is missing, reports the test as skipped.
    fn start(test: &str) -> Option<Self> {
        let folder = certificates(test)?;
        let file = folder.path().join("plant.crt");
        let file = file.to_str().expect("UTF-8");
        let node = Node::start_with(&["--coap-tls", "127.0.0.1:0", "--client-ca", file]);
        for (name, mode) in ACCESS {
            let manifest = format!("version = 1\n[access]\nmode = \"{mode}\"\n");
            node.deploy_ok(name, &[("app.py", TELLS), ("mote.toml", &manifest)]);
        }
        let at = node.platform("coaps+tcp").to_string();
        Some(Self { node, folder, at })
    }

    /// The certificate of the node.
    fn authority(&self) -> PathBuf {
        self.node.dir.path().join("data/certificates/self-signed.crt")
    }

    fn libcoap(&self, client: &str, path: &str, args: &[&str]) -> Command {
        let mut command = Command::new(client);
        command
            .current_dir(self.folder.path())
            .args(["-B", "5", "-v", "0", "-R"])
            .arg(self.authority())
            .args(args)
            .arg(format!("coaps+tcp://{}{path}", self.at))
            .stdin(Stdio::null());
        command
    }

    /// Runs a libcoap request and returns its output: the answer, or nothing.
    fn call(&self, client: &str, path: &str, args: &[&str]) -> String {
        let output = self.libcoap(client, path, args).output().expect("the client runs");
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).trim().to_owned()
    }

    /// Runs a job of the Python client, and returns what the job printed.
    fn python(&self, job: &str, rest: &[&str]) -> String {
        let output = Command::new(python())
            .arg("-B")
            .arg(repository().join("tests/fixtures/tls/coaps_tcp.py"))
            .args([job, &self.at])
            .arg(self.authority())
            .args(rest)
            .current_dir(self.folder.path())
            .output()
            .expect("python3");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let failed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{job}: {said}{failed}\n{}", self.node.log());
        said
    }
}

/// Returns the Python interpreter that has aiocoap.
fn python() -> PathBuf {
    repository().join(".cache/test-venv/bin/python3")
}

fn has_python(test: &str) -> bool {
    let found = python().exists();
    if !found {
        skip(test, "aiocoap is not in .cache/test-venv: scripts/setup.sh test");
    }
    found
}

#[test]
fn libcoap_calls_functions_over_tls() {
    let test = "libcoap_calls_functions_over_tls";
    let Some(bench) = Bench::start(test) else { return };
    if secure_coap_clients().is_empty() {
        return skip(test, "libcoap's clients with TLS are not installed");
    }
    let key = bench.node.ok(&["key", "create", "shop"]);
    let with_key = format!("/shut?mote-key={}", key.trim());
    let large = format!("{}end", "x".repeat(300_000));
    let body = bench.folder.path().join("body");
    std::fs::write(&body, "y".repeat(200_000)).expect("a file");
    for client in secure_coap_clients() {
        let call = |path: &str, args: &[&str]| bench.call(client, path, args);
        assert_eq!(call("/open", &[]), "GET None 0");
        assert_eq!(call("/here", &[]), "GET None 0", "the client is on this machine");
        // libcoap 4.3.1 with GnuTLS cannot send a message that needs two records, not even to
        // itself.
        let blocks: &[&str] = if client.ends_with("gnutls") { &["-b", "1024"] } else { &[] };
        let sent = call("/open", &[&["-m", "post", "-f", "body"], blocks].concat());
        assert_eq!(sent, "POST None 200000");
        assert_eq!(call("/open/large", &[]), large);
        assert_eq!(call(&with_key, &[]), "GET shop 0");
        assert!(call("/shut", &[]).starts_with("4.01"));
        assert!(call("/.well-known/core", &[]).contains("</open>"));
    }
}

#[test]
fn a_certificate_says_who_calls() {
    let test = "a_certificate_says_who_calls";
    let Some(bench) = Bench::start(test) else { return };
    for client in secure_coap_clients() {
        let with = |name: &str| {
            let certificate = format!("{name}.crt");
            let key = format!("{name}.key");
            bench.call(client, "/proved", &["-c", &certificate, "-j", &key])
        };
        assert_eq!(with("pump"), "GET pump-3 0");
        assert_eq!(with("named"), "GET pump-4.plant.example 0");
        let none = bench.call(client, "/proved", &[]);
        assert!(none.starts_with("4.03") && none.contains("over TLS"), "{client}: {none}");
        for name in ["stranger", "server", "expired"] {
            let said = with(name);
            assert!(!said.contains("GET"), "{client} with {name}: {said}");
        }
    }
    if has_python(test) {
        let with = ["/proved", "POST", "70000", "pump.crt", "pump.key"];
        assert_eq!(bench.python("call", &with), "2.04 17 POST pump-3 70000\n");
        assert!(bench.python("call", &["/proved", "GET", "0"]).starts_with("4.03 "));
    }
}

#[test]
fn observers_receive_states_over_tls() {
    let test = "observers_receive_states_over_tls";
    let Some(bench) = Bench::start(test) else { return };
    for client in secure_coap_clients() {
        let out = tempfile::NamedTempFile::new().expect("a file");
        let plain = bench.libcoap(client, "/open/state", &["-w", "-s", "100", "-B", "100"]);
        let observer = Command::new("stdbuf")
            .arg("-oL")
            .arg(plain.get_program())
            .args(plain.get_args())
            .stdin(Stdio::null())
            .stdout(out.reopen().expect("the file"))
            .spawn();
        let mut observer = observer.expect("stdbuf and the client run");
        let expect = |line: &str| {
            wait_for(line, || {
                let text = std::fs::read_to_string(out.path()).unwrap_or_default();
                text.lines().any(|found| found == line).then_some(())
            });
        };
        expect("GET None 0");
        assert_eq!(bench.call(client, "/open/notify", &["-m", "post", "-e", "news"]), "1");
        expect("news");
        let _ = observer.kill();
        let _ = observer.wait();
    }
}

#[test]
fn clients_that_are_slow_or_hostile_keep_nothing() {
    let test = "clients_that_are_slow_or_hostile_keep_nothing";
    let Some(bench) = Bench::start(test) else { return };
    if !has_python(test) {
        return;
    }
    assert_eq!(
        bench.python("protocols", &[]),
        "TLSv1.3 coap\nTLSv1.3 coap\nTLSv1.3 None\nrefused\n"
    );
    // This is the largest message that the node sends. Nothing of it may be lost in TLS.
    assert_eq!(bench.python("slow", &["/open/large", "260000"]), "261120 x xxx\n");
    assert_eq!(bench.python("hostile", &[]), "alert\n2.05 10 GET None 0\nclosed\n");
    let log = bench.node.log();
    assert!(!log.contains("ERROR") && !log.contains("WARN"), "{log}");
}

#[test]
fn the_node_tells_of_the_front() {
    let Some(bench) = Bench::start("the_node_tells_of_the_front") else { return };
    let line = format!("  coaps+tcp  coaps+tcp://{}\n", bench.at);
    assert!(bench.node.announcement.contains(&line), "{}", bench.node.announcement);
    assert!(bench.authority().exists());
    for client in secure_coap_clients() {
        assert_eq!(bench.call(client, "/open", &[]), "GET None 0");
    }
    assert!(bench.node.stop().success());
}
