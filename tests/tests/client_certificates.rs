//! Functions for clients with a certificate: openssl makes the certificates, and curl connects.

use std::process::Command;

use mote_tests::certificates::{certificates, join};
use mote_tests::{Node, call_at, coap_client, free_address, skip, wait_for};
use serde_json::json;

const TELLS: &str = "def handle(event, ctx):\n    return f'{event.caller}'\n";
const ALL: &str = "version = 1\n[access]\nmode = \"mtls\"\n";

/// A new folder with authorities and certificates of clients, and a node that knows the authority
/// `plant` and its revocations.
struct Bench {
    folder: tempfile::TempDir,
    node: Node,
    https: String,
}

impl Bench {
    /// Starts the node. If openssl or curl is missing, reports the test as skipped.
    fn start(test: &str, flags: &[&str]) -> Option<Self> {
        if Command::new("curl").arg("-V").output().is_err() {
            skip(test, "there is no curl");
            return None;
        }
        let folder = certificates(test)?;
        let of_clients = folder.path().join("clients.pem");
        join(folder.path(), &["plant.crt", "plant.crl"], &of_clients);
        let https = free_address().to_string();
        let file = of_clients.to_str().expect("UTF-8");
        let node = Node::start_with(&[&["--https", &https, "--client-ca", file], flags].concat());
        Some(Self { folder, node, https })
    }

    /// Calls a function over HTTPS. Returns the body and the status, or 0 if there was no answer.
    fn call(&self, certificate: Option<(&str, &str)>, path: &str, rest: &[&str]) -> (u16, String) {
        let mut curl = Command::new("curl");
        curl.current_dir(self.folder.path()).args(["-sk", "-w", "\n%{http_code}"]).args(rest);
        if let Some((certificate, key)) = certificate {
            curl.args(["--cert", certificate, "--key", key]);
        }
        let output = curl.arg(format!("https://{}{path}", self.https)).output().expect("curl");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = said.rsplit_once('\n').unwrap_or_default();
        (status.parse().unwrap_or_default(), body.to_owned())
    }

    /// Calls a function with the certificate `NAME.crt`.
    fn with(&self, name: &str, path: &str) -> (u16, String) {
        self.call(Some((&format!("{name}.crt"), &format!("{name}.key"))), path, &[])
    }
}

fn refused((status, body): (u16, String), what: &str) {
    assert_eq!(status, 403, "{what}: {body}");
    let problem: serde_json::Value = serde_json::from_str(&body).expect("a problem");
    assert_eq!(problem["code"], "M0532", "{what}");
}

#[test]
fn certificates_say_who_calls() {
    let Some(bench) = Bench::start("certificates_say_who_calls", &[]) else { return };
    let node = &bench.node;
    let some = "callers = [\"pump-*\", \"spiffe://plant/*\"]\n";
    node.deploy_ok("all", &[("app.py", TELLS), ("mote.toml", ALL)]);
    node.deploy_ok("pumps", &[("app.py", TELLS), ("mote.toml", &format!("{ALL}{some}"))]);
    let open = "version = 1\n[access]\nmode = \"public\"\n";
    node.deploy_ok("open", &[("app.py", TELLS), ("mote.toml", open)]);
    for (certificate, path, caller) in [
        ("pump", "/all", "pump-3"),
        ("pump", "/pumps", "pump-3"),
        ("fan", "/all", "fan-1"),
        ("named", "/all", "pump-4.plant.example"),
        ("named", "/pumps", "pump-4.plant.example"),
        // A function that is open to everyone sees nothing of certificates.
        ("pump", "/open", "None"),
        ("fan", "/open", "None"),
    ] {
        assert_eq!(bench.with(certificate, path), (200, caller.into()), "{certificate} {path}");
    }
    for (certificate, path) in [("fan", "/pumps"), ("nameless", "/all"), ("nameless", "/pumps")] {
        refused(bench.with(certificate, path), &format!("{certificate} {path}"));
    }
    assert_eq!(bench.with("nameless", "/open").0, 200);
    refused(bench.call(None, "/all", &[]), "no certificate");
    assert_eq!(bench.call(None, "/open", &[]), (200, "None".into()), "it is asked, not required");
    // Clients with these certificates get no connection, whatever they call.
    for certificate in ["stranger", "server", "expired", "lost", "below", "old"] {
        for path in ["/all", "/open"] {
            assert_eq!(bench.with(certificate, path).0, 0, "{certificate} {path}");
        }
    }
    let log = node.log();
    let lines = log.matches("the certificate of a client was not accepted").count();
    assert_eq!(lines, 4, "one for each of the names pump-3, pump-5, pump-6 and pump-9: {log}");
    for reason in ["no authority in client_ca has signed it", "its authority has revoked it"] {
        assert!(log.contains(reason), "{reason}: {log}");
    }
    let below = Some(("below.pem", "below.key"));
    assert_eq!(bench.call(below, "/all", &[]), (200, "pump-9".into()), "with its authority");

    // Tests both versions of HTTP and of TLS, kept connections, and forged claims of the client.
    let pump = Some(("pump.crt", "pump.key"));
    for version in [&["--http1.1"][..], &["--http2"], &["--tls-max", "1.2"]] {
        assert_eq!(bench.call(pump, "/all", version), (200, "pump-3".into()), "{version:?}");
        refused(bench.call(Some(("fan.crt", "fan.key")), "/pumps", version), "another name");
        refused(bench.call(None, "/all", version), "none");
    }
    let claims = ["-H", "mote-caller: pump-1", "-H", "x-client-cert: pump-1", "-d", "x"];
    assert_eq!(bench.call(pump, "/all", &claims), (200, "pump-3".into()));
    refused(bench.call(None, "/all", &claims), "claims");
    for page in ["sec-fetch-site: cross-site", "origin: https://evil.example", "origin: null"] {
        let (status, body) = bench.call(pump, "/all", &["-H", page]);
        assert!(status == 403 && body.contains("M0525"), "{page}: {body}");
    }
    let own = format!("origin: https://{}", bench.https);
    assert_eq!(bench.call(pump, "/all", &["-H", &own]).0, 200);
}

#[test]
fn no_other_front_runs_them() {
    let flags = ["openfaas", "tinyfaas", "tinyfaas-http", "tinyfaas-coap", "tinyfaas-grpc"];
    let flags = flags.map(|one| format!("--{one}=:0"));
    let flags = flags.each_ref().map(String::as_str);
    let Some(bench) = Bench::start("no_other_front_runs_them", &flags) else { return };
    let node = &bench.node;
    node.deploy_ok("all", &[("app.py", TELLS), ("mote.toml", ALL)]);
    let code = |address, path: &str, fields: &[(&str, &str)]| {
        let answer = call_at(address, "POST", path, fields, b"x");
        (answer.status, answer.json()["code"].as_str().unwrap_or_default().to_owned())
    };
    let fields = [("mote-caller", "pump-3"), ("x-tinyfaas-async", "1"), ("mote-from", "127.0.0.1")];
    assert_eq!(code(node.http, "/all", &fields), (403, "M0532".into()));
    let later = [("prefer", "respond-async")];
    assert_eq!(code(node.http, "/all", &later), (403, "M0532".into()));
    let gateway = node.platform("openfaas");
    for path in ["/function/all", "/async-function/all"] {
        assert_eq!(call_at(gateway, "POST", path, &fields, b"x").status, 403, "{path}");
    }
    assert_eq!(call_at(node.platform("tinyfaas http"), "POST", "/all", &fields, b"x").status, 403);
    if let Some(client) = coap_client() {
        let ask = |path: &str| {
            let url = format!("coap://{}/{path}", node.coap);
            let said = Command::new(client).args(["-m", "get", "-B", "5", &url]).output();
            let said = said.expect("a CoAP client");
            String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned()
        };
        assert!(ask("all").contains("4.03"), "{}", ask("all"));
        assert!(!ask(".well-known/core").contains("all"), "nobody can call it over CoAP");
    }
    // The node itself may call the function.
    assert_eq!(node.ok(&["invoke", "all"]).trim(), "None");

    // An accepted invocation is shown to callers that may call its function.
    let pump = Some(("pump.crt", "pump.key"));
    let (status, accepted) = bench.call(pump, "/all", &["-d", "x", "-H", "prefer: respond-async"]);
    assert_eq!(status, 202, "{accepted}");
    let accepted: serde_json::Value = serde_json::from_str(&accepted).expect("JSON");
    let path = format!("/_invocations/{}", accepted["id"].as_str().expect("its id"));
    let done = wait_for("the result", || {
        let (status, body) = bench.call(pump, &path, &[]);
        (status == 200 && body.contains("succeeded")).then_some(body)
    });
    assert!(done.contains("all"), "{done}");
    assert_eq!(bench.call(None, &path, &[]).0, 404);
    assert_eq!(bench.with("nameless", &path).0, 404);
    assert_eq!(node.get(&path).status, 404, "not even to this machine");
}

#[test]
fn changed_authorities_are_read_again() {
    let Some(bench) = Bench::start("changed_authorities_are_read_again", &[]) else { return };
    let node = &bench.node;
    node.deploy_ok("all", &[("app.py", TELLS), ("mote.toml", ALL)]);
    let file = bench.folder.path().join("clients.pem");
    assert_eq!(bench.with("pump", "/all").0, 200);
    assert_eq!(bench.with("stranger", "/all").0, 0);
    join(bench.folder.path(), &["other.crt"], &file);
    wait_for("the other authority", || (bench.with("stranger", "/all").0 == 200).then_some(()));
    assert_eq!(bench.with("pump", "/all").0, 0, "the former authority");
    // A damaged file has no effect.
    join(bench.folder.path(), &["plant.key"], &file);
    let log = wait_for("the log to say so", || {
        let log = node.log();
        log.contains("changed authorities of clients are not used").then_some(log)
    });
    assert!(log.contains("clients.pem"), "{log}");
    assert_eq!(bench.with("stranger", "/all").0, 200);
    join(bench.folder.path(), &["plant.crt"], &file);
    wait_for("the first authority", || (bench.with("pump", "/all").0 == 200).then_some(()));
    assert_eq!(bench.with("lost", "/all").0, 200, "without a list nothing is revoked");
}

#[test]
fn a_node_says_who_may_call_them() {
    let some = "version = 1\n[access]\nmode = \"mtls\"\ncallers = [\"pump-*\"]\n";
    let node = Node::start();
    let said = node.deploy("pumps", &[("app.py", TELLS), ("mote.toml", some)]);
    let said = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
    assert!(said.contains("pumps refuses all requests; turn on https"), "{said}");
    assert!(!said.contains("coap://"), "{said}");
    let doctor = node.doctor(&[]);
    assert!(doctor.contains("nobody, because the node checks no certificates"), "{doctor}");
    let described = node.json(&["describe", "pumps", "-o", "json"]);
    assert_eq!(described["access"], "mtls");
    assert_eq!(described["certificate_names"], json!(["pump-*"]));
    assert_eq!(described["urls"], json!({}), "no address of this node opens it");
    assert_eq!(call_at(node.http, "GET", "/pumps", &[], b"").status, 403);
    drop(node);

    let Some(bench) = Bench::start("a_node_says_who_may_call_them", &[]) else { return };
    bench.node.deploy_ok("pumps", &[("app.py", TELLS), ("mote.toml", some)]);
    let doctor = bench.node.doctor(&[]);
    assert!(doctor.contains("clients with a certificate for pump-*"), "{doctor}");
    let urls = bench.node.json(&["describe", "pumps", "-o", "json"])["urls"].clone();
    assert_eq!(urls, json!({ "http": format!("https://{}/pumps", bench.https) }));

    let folder = tempfile::tempdir().expect("a folder");
    for (https, file, expected) in [
        ("off", "plant.crt", "client_ca: only with https"),
        ("127.0.0.1:0", "nowhere.crt", "client_ca"),
        ("127.0.0.1:0", "plant.key", "the file has no certificate in PEM"),
        ("127.0.0.1:0", "pump.crt", "certificate 1 (pump-3) is not the one of an authority"),
        ("127.0.0.1:0", "", "this is not a file"),
    ] {
        let up = Command::new(mote_tests::mote_binary())
            .args(["up", "--http", "127.0.0.1:0", "--coap", "off", "--https", https, "--data"])
            .arg(folder.path())
            .arg("--client-ca")
            .arg(bench.folder.path().join(file))
            .output()
            .expect("mote");
        let said = String::from_utf8_lossy(&up.stderr).into_owned();
        assert!(!up.status.success() && said.contains(expected), "{file}: {said}");
    }
}
