//! CoAP over DTLS with certificates: libcoap's clients against a real node.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mote_tests::certificates::{certificates, join};
use mote_tests::{Node, secure_coap_clients, skip, wait_for};

/// Answers with the caller's name and the length of the body.
const TELLS: &str = "def handle(event, ctx):
    if event.path == '/large':
        return 'x' * 5000 + 'end'
    return f'{event.method} {event.caller} {len(event.body)}'
";
const ACCESS: [(&str, &str); 4] =
    [("open", "public"), ("shut", "key"), ("here", "local"), ("proved", "mtls")];

/// A node, and files with certificates of clients.
struct Bench {
    node: Node,
    folder: tempfile::TempDir,
    at: String,
}

impl Bench {
    /// Starts a node. With `asks`, the node asks clients for certificates. If this machine lacks a
    /// program, reports `test` as skipped.
    fn start(test: &str, asks: bool) -> Option<Self> {
        let folder = certificates(test)?;
        if secure_coap_clients().is_empty() {
            skip(test, "libcoap's clients with DTLS are not installed");
            return None;
        }
        let authorities = folder.path().join("clients.pem");
        join(folder.path(), &["plant.crt"], &authorities);
        let file = authorities.to_str().expect("UTF-8");
        let flags: &[&str] = if asks { &["--client-ca", file] } else { &[] };
        let node = Node::start_with(&[&["--coap-dtls", "127.0.0.1:0"], flags].concat());
        for (name, mode) in ACCESS {
            let manifest = format!("version = 1\n[access]\nmode = \"{mode}\"\n");
            node.deploy_ok(name, &[("app.py", TELLS), ("mote.toml", &manifest)]);
        }
        let at = node.platform("coaps").to_string();
        Some(Self { node, folder, at })
    }

    /// The certificate of the node.
    fn own(&self) -> PathBuf {
        self.node.dir.path().join("data/certificates/self-signed.crt")
    }

    /// Replaces the certificate of the node by one that openssl makes with these arguments.
    fn replace_own(&self, algorithm: &[&str], name: &str) {
        let path = |end: &str| self.folder.path().join(format!("{name}.{end}"));
        let made = Command::new("openssl")
            .args(["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost"])
            .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
            .args(algorithm)
            .arg("-keyout")
            .arg(path("key"))
            .arg("-out")
            .arg(path("crt"))
            .output();
        assert!(made.expect("openssl runs").status.success());
        for end in ["crt", "key"] {
            let to = self.own().with_extension(end);
            std::fs::copy(path(end), to.with_extension("part")).expect("copied");
            std::fs::rename(to.with_extension("part"), to).expect("in place");
        }
    }

    /// Runs a request with these credentials and returns its output: the answer, or nothing.
    fn call_with(&self, client: &str, credentials: &[&str], path: &str, args: &[&str]) -> String {
        let output = Command::new(client)
            .current_dir(self.folder.path())
            .args(["-B", "5", "-v", "0"])
            .args(credentials)
            .args(args)
            .arg(format!("coaps://{}{path}", self.at))
            .stdin(Stdio::null())
            .output();
        let output = output.expect("the client runs");
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).trim().to_owned()
    }

    /// Runs a request that trusts the node's certificate, with the named client certificate or
    /// without one.
    fn call(&self, client: &str, name: Option<&str>, path: &str, args: &[&str]) -> String {
        let own = self.own();
        let own = own.to_str().expect("UTF-8");
        let files = name.map(|name| (format!("{name}.crt"), format!("{name}.key")));
        let mut credentials = vec!["-R", own];
        if let Some((certificate, key)) = &files {
            credentials.extend(["-c", certificate, "-j", key]);
        }
        self.call_with(client, &credentials, path, args)
    }

    /// Runs a request with a pre-shared key, given as identity and key.
    fn call_with_psk(&self, client: &str, psk: &str, path: &str) -> String {
        let (identity, key) = psk.trim().split_once(' ').expect("an identity and a key");
        self.call_with(client, &["-u", identity, "-k", key], path, &[])
    }
}

#[test]
fn clients_without_a_key_trust_the_certificate_of_the_node() {
    let test = "clients_without_a_key_trust_the_certificate_of_the_node";
    let Some(bench) = Bench::start(test, false) else { return };
    let key = bench.node.ok(&["key", "create", "shop"]);
    let with_key = format!("/shut?mote-key={}", key.trim());
    let psk = bench.node.ok(&["key", "create", "attic", "--psk"]);
    std::fs::write(bench.folder.path().join("body"), "y".repeat(20_000)).expect("a file");
    let large = format!("{}end", "x".repeat(5_000));
    for client in secure_coap_clients() {
        let call = |path: &str, args: &[&str]| bench.call(client, None, path, args);
        assert_eq!(call("/open", &[]), "GET None 0", "{}", bench.node.log());
        assert_eq!(call("/here", &[]), "GET None 0", "the client is on this machine");
        assert_eq!(call("/open", &["-m", "post", "-f", "body"]), "POST None 20000");
        assert_eq!(call("/open/large", &[]), large);
        assert_eq!(call(&with_key, &[]), "GET shop 0");
        assert!(call("/shut", &[]).starts_with("4.01"));
        assert!(call("/proved", &[]).starts_with("4.0"), "nobody has checked a certificate");
        // The node does not ask for the client's certificate, so the certificate proves nothing.
        assert!(bench.call(client, Some("pump"), "/proved", &[]).starts_with("4.0"));
        assert!(call("/.well-known/core", &[]).contains("</open>"));
        assert_eq!(bench.call_with_psk(client, &psk, "/shut"), "GET attic 0");
    }
    // libcoap's clients accept every self-signed certificate, but openssl compares certificates.
    let openssl = |trusted: &Path| {
        let output = Command::new("openssl")
            .args([
                "s_client",
                "-dtls1_2",
                "-verify_return_error",
                "-connect",
                &bench.at,
                "-CAfile",
            ])
            .arg(trusted)
            .stdin(Stdio::null())
            .output();
        let text = String::from_utf8_lossy(&output.expect("openssl runs").stdout).into_owned();
        let line = text.lines().find(|line| line.contains("Cipher is")).unwrap_or_default();
        line.to_owned()
    };
    assert!(openssl(&bench.own()).contains("ECDHE-ECDSA-AES"), "{}", openssl(&bench.own()));
    assert!(openssl(&bench.folder.path().join("plant.crt")).contains("(NONE)"));
    let log = bench.node.log();
    assert!(!log.contains("\"ERROR\""), "{log}");
}

#[test]
fn a_certificate_says_who_calls() {
    let test = "a_certificate_says_who_calls";
    let Some(bench) = Bench::start(test, true) else { return };
    let psk = bench.node.ok(&["key", "create", "attic", "--psk"]);
    for client in secure_coap_clients() {
        let with = |name: &str, path: &str| bench.call(client, Some(name), path, &[]);
        assert_eq!(with("pump", "/proved"), "GET pump-3 0", "{}", bench.node.log());
        assert_eq!(with("named", "/proved"), "GET pump-4.plant.example 0");
        assert_eq!(with("pump", "/open"), "GET None 0", "a function for everyone learns nothing");
        assert!(with("pump", "/shut").starts_with("4.01"), "a certificate is not a key");
        for name in ["stranger", "server", "expired"] {
            let said = with(name, "/open");
            assert!(!said.contains("GET"), "{client} with {name}: {said}");
        }
        let said = bench.call(client, None, "/open", &["-B", "2"]);
        assert!(!said.contains("GET"), "{client} without a certificate: {said}");
        assert_eq!(bench.call_with_psk(client, &psk, "/shut"), "GET attic 0");
        let refused = bench.call_with_psk(client, &psk, "/proved");
        assert!(refused.starts_with("4.03"), "a key is not a certificate: {refused}");
    }
    // A certificate no longer counts after its authority was removed from the file.
    let authorities = bench.folder.path().join("clients.pem");
    join(bench.folder.path(), &["other.crt"], &authorities);
    for client in secure_coap_clients() {
        wait_for("the authorities are read again", || {
            let said = bench.call(client, Some("pump"), "/proved", &["-B", "2"]);
            (!said.contains("GET")).then_some(())
        });
        assert_eq!(bench.call_with_psk(client, &psk, "/shut"), "GET attic 0");
    }
    // If the node has no certificate that DTLS can use, it cannot ask clients for certificates.
    let url = format!("coaps://{}/proved", bench.at);
    assert!(bench.node.ok(&["describe", "proved"]).contains(&url));
    bench.replace_own(&["-newkey", "rsa:2048"], "rsa");
    wait_for("the node has the new certificate", || {
        (!bench.node.ok(&["describe", "proved"]).contains("coaps")).then_some(())
    });
    assert!(bench.node.ok(&["describe", "shut"]).contains("coaps://"), "keys still work");
    let manifest = "version = 1\n[access]\nmode = \"mtls\"\n";
    let output = bench.node.deploy("late", &[("app.py", TELLS), ("mote.toml", manifest)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("late refuses all requests: CoAP over DTLS cannot ask"), "{said}");
}

#[test]
fn a_replaced_certificate_is_used_by_new_sessions() {
    let test = "a_replaced_certificate_is_used_by_new_sessions";
    let Some(bench) = Bench::start(test, false) else { return };
    let client = secure_coap_clients()[0];
    assert_eq!(bench.call(client, None, "/open", &[]), "GET None 0");
    let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:secp384r1"];
    bench.replace_own(&curve, "fresh");
    let trusts = ["-R", "fresh.crt"];
    wait_for("the new certificate", || {
        let said = bench.call_with(client, &trusts, "/open", &["-B", "2"]);
        (said == "GET None 0").then_some(())
    });
    // With a key of an unsupported type, only pre-shared keys work. The log reports this.
    bench.replace_own(&["-newkey", "rsa:2048"], "rsa");
    wait_for("the log says so", || {
        bench.node.log().contains("CoAP over DTLS has no certificate").then_some(())
    });
    let psk = bench.node.ok(&["key", "create", "attic", "--psk"]);
    assert_eq!(bench.call_with_psk(client, &psk, "/shut"), "GET attic 0");
}
