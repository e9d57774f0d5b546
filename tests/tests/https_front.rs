//! The HTTP front over TLS. The clients are OpenSSL (Python's ssl) and curl.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use mote_tests::{Node, free_address, mote_binary, repository, skip, wait_for};

const ECHO: &str =
    "export default { async fetch(request) { return new Response(await request.bytes()); } };";
const SCHEME: &str = "export default { fetch(request) {
  return new Response(`${request.url} ${request.headers.get('x-forwarded-proto')}`);
} };";
/// Sends each message of a WebSocket back.
const TALK: &str = "export default { async fetch() {
  const [client, server] = Object.values(new WebSocketPair());
  server.accept();
  server.addEventListener('message', ({ data }) => server.send(data));
  return new Response(null, { status: 101, webSocket: client });
} };";

/// Runs a job of the client, and returns what the job printed.
fn client(job: &str, address: &str, rest: &[&str]) -> String {
    let script = repository().join("tests/fixtures/tls/client.py");
    let output = Command::new("python3")
        .arg("-B")
        .arg(script)
        .args([job, address])
        .args(rest)
        .output()
        .expect("python3");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{job}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// Returns the fingerprint in a node's announcement.
fn announced(node: &Node) -> &str {
    let line = node.announcement.lines().find_map(|line| line.trim().strip_prefix("SHA-256 "));
    line.expect("the announcement has the fingerprint")
}

/// Makes certificates for these names in a new folder, as `NAME.crt` with `NAME.key`.
fn certificates(folder: &Path, names: &[&str]) -> bool {
    std::fs::create_dir_all(folder).expect("a folder");
    names.iter().all(|name| {
        let script = format!(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=own \
             -keyout {name}.key -out {name}.crt -addext subjectAltName=DNS:{name}"
        );
        let made = Command::new("sh").args(["-c", &script]).current_dir(folder).output();
        made.is_ok_and(|made| made.status.success())
    })
}

#[test]
fn a_node_makes_a_certificate_and_keeps_it() {
    let address = free_address().to_string();
    let node = Node::start_with(&["--https", &address]);
    node.deploy_ok("echo", &[("echo.mjs", ECHO)]);
    let fingerprint = announced(&node).to_owned();
    let expected = format!("TLSv1.2 {fingerprint}\nTLSv1.3 {fingerprint}\nTLSv1.1 refused\n");
    assert_eq!(client("versions", &address, &[]), expected);
    assert_eq!(
        client("bodies", &address, &[]),
        "0 200 True\n1 200 True\n16384 200 True\n65537 200 True\n3000000 200 True\n\
         plain text False\namong silent clients (200, b'x')\nafterwards (200, b'y')\n"
    );
    node.deploy_ok("scheme", &[("scheme.mjs", SCHEME)]);
    let said = client("scheme", &address, &[]);
    assert_eq!(said, "https://localhost/x?y=1 https\n", "whatever the client claims");
    node.deploy_ok("talk", &[("talk.mjs", TALK)]);
    let said = client("websocket", &address, &[]);
    assert_eq!(said, "HTTP/1.1 101 Switching Protocols\nover TLS\n");
    // The plain front still works, and a restart keeps the certificate.
    assert_eq!(node.post("/echo", b"plain").text(), "plain");
    let node = node.stop_and_restart();
    assert_eq!(announced(&node), fingerprint);
}

#[test]
fn curl_chooses_the_version_of_http_during_the_handshake() {
    let address = free_address().to_string();
    let node = Node::start_with(&["--https", &address]);
    node.deploy_ok("echo", &[("echo.mjs", ECHO)]);
    let ask = |version: &str| {
        let url = format!("https://{address}/echo");
        let arguments = ["-sk", version, "-d", "hello", "-w", " %{http_version}", &url];
        let output = Command::new("curl").args(arguments).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let Some(answer) = ask("--http1.1") else {
        return skip("curl_chooses_the_version_of_http_during_the_handshake", "there is no curl");
    };
    assert_eq!(answer, "hello 1.1");
    assert_eq!(ask("--http2").as_deref(), Some("hello 2"));
}

/// sslyze tries all old versions, all ciphers, and known attacks, and compares the result with
/// Mozilla's configuration `intermediate`.
#[test]
fn an_independent_scanner_finds_nothing_weak() {
    let test = "an_independent_scanner_finds_nothing_weak";
    let sslyze = repository().join(".cache/test-venv/bin/sslyze");
    if !sslyze.exists() {
        return skip(test, "sslyze is not in .cache/test-venv: scripts/setup.sh test");
    }
    let address = free_address().to_string();
    let _node = Node::start_with(&["--https", &address]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.json");
    let scan = Command::new(sslyze)
        .args(["--mozilla_config", "intermediate", "--json_out"])
        .args([file.as_os_str(), address.as_ref()])
        .output();
    // A user without access to the folder of root's Python cannot run sslyze.
    let scan = match scan {
        Ok(scan) => scan,
        Err(error) => return skip(test, &format!("sslyze cannot be run: {error}")),
    };
    let said = String::from_utf8_lossy(&scan.stdout).into_owned();
    let report = std::fs::read(&file).unwrap_or_else(|error| panic!("{error}: {said}"));
    let report: serde_json::Value = serde_json::from_slice(&report).expect("a report in JSON");
    let found = &report["server_scan_results"][0]["scan_result"];
    let accepted = |version: &str| {
        let result = &found[version];
        assert_eq!(result["status"], "COMPLETED", "{version}: {result}");
        result["result"]["accepted_cipher_suites"].as_array().expect("a list").len()
    };
    for version in ["ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1"] {
        assert_eq!(accepted(&format!("{version}_cipher_suites")), 0, "{version}");
    }
    for version in ["tls_1_2", "tls_1_3"] {
        assert_eq!(accepted(&format!("{version}_cipher_suites")), 3, "{version}");
    }
    for (check, field, expected) in [
        ("heartbleed", "is_vulnerable_to_heartbleed", false),
        ("openssl_ccs_injection", "is_vulnerable_to_ccs_injection", false),
        ("session_renegotiation", "is_vulnerable_to_client_renegotiation_dos", false),
        ("session_renegotiation", "supports_secure_renegotiation", true),
        ("tls_compression", "supports_compression", false),
        ("tls_fallback_scsv", "supports_fallback_scsv", true),
        ("tls_extended_master_secret", "supports_ems_extension", true),
    ] {
        assert_eq!(found[check]["result"][field], expected, "{check}: {}", found[check]);
    }
    // The certificate is the node's own, so no authority has signed it.
    let complaints: Vec<&str> = said
        .lines()
        .filter_map(|line| line.trim().strip_prefix("* ")?.split(':').next())
        .filter(|what| !what.contains(' ') && what.contains('_'))
        .collect();
    assert_eq!(complaints, ["certificate_path_validation", "maximum_certificate_lifespan"]);
}

#[test]
fn each_host_gets_its_certificate_and_changed_ones_are_read_under_load() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path().join("here");
    let fresh = folder.path().join("fresh");
    let names = ["a.example", "b.example"];
    if !certificates(&here, &names) || !certificates(&fresh, &names) {
        let name = "each_host_gets_its_certificate_and_changed_ones_are_read_under_load";
        return skip(name, "openssl makes no certificates here");
    }
    let address = free_address().to_string();
    let path = here.to_str().expect("UTF-8");
    let node = Node::start_with(&["--https", &address, "--certificates", path]);
    node.deploy_ok("echo", &[("echo.mjs", ECHO)]);
    let said = client("names", &address, &["a.example", "b.example", "c.example"]);
    let found: Vec<&str> = said.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(found[0], announced(&node), "the first one is announced");
    assert_ne!(found[0], found[1]);
    assert_eq!(found[0], found[2], "an unknown host gets the first one");

    let fresh = fresh.to_str().expect("UTF-8");
    let said = client("rotate", &address, &[path, fresh, "120"]);
    assert_eq!(said, "asked True failed 0 changed True\n", "{}", node.log());
    // The log names a damaged file. The former certificate stays in use.
    let kept = client("names", &address, &["a.example"]);
    std::fs::write(here.join("a.example.key"), "no key").expect("a file");
    let log = wait_for("the log to name the file", || {
        let log = node.log();
        log.contains("a changed certificate is not used").then_some(log)
    });
    assert!(log.contains("a.example.key"), "{log}");
    assert_eq!(client("names", &address, &["a.example"]), kept);
}

/// Returns what openssl prints after a handshake in which the client accepts only these signatures.
fn handshake(address: &str, signatures: &str) -> String {
    let script = format!(
        "openssl s_client -connect {address} -tls1_2 -sigalgs {signatures} </dev/null 2>/dev/null \
         | openssl x509 -noout -text"
    );
    let output = Command::new("sh").args(["-c", &script]).output().expect("openssl");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_client_gets_a_certificate_of_a_kind_that_it_accepts() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    let rsa =
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=own -keyout z.key -out z.crt";
    let made = Command::new("sh").args(["-c", rsa]).current_dir(folder.path()).output();
    if !certificates(folder.path(), &["a.example"]) || !made.is_ok_and(|made| made.status.success())
    {
        let name = "a_client_gets_a_certificate_of_a_kind_that_it_accepts";
        return skip(name, "openssl makes no certificates here");
    }
    let address = free_address().to_string();
    let node = Node::start_with(&["--https", &address, "--certificates", path]);
    assert!(handshake(&address, "ECDSA+SHA256").contains("id-ecPublicKey"));
    assert!(handshake(&address, "RSA+SHA256").contains("rsaEncryption"));
    drop(node);

    let address = free_address().to_string();
    let node = Node::start_with(&["--https", &address]);
    assert!(!handshake(&address, "RSA+SHA256").contains("Public Key"));
    wait_for("the log to name the client", || {
        node.log().contains("accepts no certificate of this kind").then_some(())
    });
}

/// Counts the connections to this loopback port that the server holds.
fn connections(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel's table");
    let local = format!(":{port:04X}");
    let is_held = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        let is_local = words.next().is_some_and(|address| address.ends_with(&local));
        // The connection is established, or only the client has closed it.
        is_local && words.nth(1).is_some_and(|state| ["01", "08"].contains(&state))
    };
    table.lines().filter(is_held).count()
}

#[test]
fn clients_that_read_nothing_are_disconnected() {
    let address = free_address().to_string();
    let node = Node::start_with(&["--https", &address]);
    let long = "export default { fetch() { return new Response('x'.repeat(8 << 20)); } };";
    node.deploy_ok("long", &[("long.mjs", long)]);
    assert_eq!(node.get("/long").body.len(), 8 << 20);
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a port");
    let script = repository().join("tests/fixtures/tls/client.py");
    let mut deaf = Command::new("python3")
        .arg("-B")
        .arg(script)
        .args(["deaf", &address])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut said = String::new();
    BufReader::new(deaf.stdout.take().expect("piped")).read_line(&mut said).expect("a line");
    assert_eq!(said, "asked\n");
    assert_eq!(connections(port), 4);
    // The front closes a connection if the client reads nothing of its answer for 30 s.
    wait_for("the end of their connections", || (connections(port) == 0).then_some(()));
    assert_eq!(node.get("/long").status, 200);
    drop(deaf.stdin.take());
    deaf.wait().expect("our child");
}

#[test]
fn unusable_certificates_are_refused_at_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let certificates = folder.path().join("certificates");
    std::fs::create_dir(&certificates).expect("a folder");
    let data = folder.path().join("data");
    let refused = |expected: &[&str]| {
        let output = Command::new(mote_binary())
            .args(["up", "--http", "off", "--coap", "off", "--https", ":0", "--data"])
            .arg(&data)
            .arg("--socket")
            .arg(folder.path().join("s"))
            .arg("--certificates")
            .arg(&certificates)
            .output()
            .expect("the binary starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{said}");
        for text in expected {
            assert!(said.contains(text), "{said}");
        }
    };
    refused(&["certificates", "the folder has no certificate"]);
    std::fs::write(certificates.join("a.crt"), "nothing").expect("a file");
    refused(&["a.key", "the file is missing", "NAME.crt needs its key in NAME.key"]);
    std::fs::write(certificates.join("a.key"), "nothing").expect("a file");
    refused(&["a.crt", "no certificate in PEM"]);
}
