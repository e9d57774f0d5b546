//! A node orders its certificates from an authority, and answers the authority's checks. The
//! authority is Pebble, which checks over TLS and HTTP as a real authority does.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use mote_tests::acme::Authority;
use mote_tests::{Node, free_address, is_root, skip, wait_for};

const TELLS: &str = "def handle(event, ctx):\n    return 'here'\n";

/// Sends a request to a name over HTTPS. Returns the answer, or `None` if the authority did not
/// issue the certificate.
fn ask(authority: &Authority, name: &str, address: &str) -> Option<String> {
    let (_, port) = address.rsplit_once(':').expect("a port");
    let output = Command::new("curl")
        .args(["-s", "--cacert"])
        .arg(authority.trusted())
        .args(["--resolve", &format!("{name}:{port}:127.0.0.1")])
        .arg(format!("https://{name}:{port}/tells"))
        .output()
        .expect("curl");
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns a part of the certificate that a client sees, as openssl prints it.
fn seen(name: &str, address: &str, what: &str) -> String {
    let host = if name.is_empty() { "-noservername".into() } else { format!("-servername {name}") };
    let script = format!(
        "openssl s_client -connect {address} {host} </dev/null 2>/dev/null | openssl x509 -noout {what}"
    );
    let output = Command::new("sh").args(["-c", &script]).output().expect("openssl");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn start(flags: &[String], https: &str) -> Node {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let node = Node::start_with(&[&["--https", https, "--access", "public"][..], &flags].concat());
    node.deploy_ok("tells", &[("tells.py", TELLS)]);
    node
}

#[test]
fn a_certificate_is_ordered_and_kept() {
    let test = "a_certificate_is_ordered_and_kept";
    let https = free_address();
    // Nothing listens at the port for HTTP checks, so only TLS handshakes can prove who holds the
    // names.
    let closed = free_address().port();
    let Some(mut authority) = Authority::start(test, closed, https.port(), 30) else { return };
    let https = https.to_string();
    let node = start(&authority.flags("a.example,B.example,127.0.0.1", "default"), &https);
    for name in ["a.example", "b.example", "127.0.0.1"] {
        let answer = wait_for("a certificate", || ask(&authority, name, &https));
        assert_eq!(answer, "here", "{name}");
    }
    assert_eq!(ask(&authority, "c.example", &https), None, "no other name");
    let serial = seen("a.example", &https, "-serial");
    assert!(serial.starts_with("serial="), "{serial}");
    assert_eq!(seen("", &https, "-serial"), serial, "also for clients that name no host");
    let log = wait_for("the log", || {
        let log = node.log();
        log.contains("received a new").then_some(log)
    });
    assert!(log.contains("it expires in 89 days") || log.contains("in 90 days"), "{log}");
    // The node answers the authority's checks only while an order is running.
    let question = format!(
        "openssl s_client -connect {https} -servername a.example -alpn acme-tls/1 </dev/null"
    );
    // The order ends a moment after its certificate is in use.
    wait_for("the end of the order", || {
        let asked = Command::new("sh").args(["-c", &question]).output().expect("openssl");
        (!asked.status.success()).then_some(())
    });
    let node = node.stop_and_restart();
    assert_eq!(seen("a.example", &https, "-serial"), serial);
    assert_eq!(authority.issued(), 1, "it is not ordered again");
    // Other names need another certificate. The authority has forgotten the account in the
    // meantime.
    authority.again();
    let flags = authority.flags("d.example", "default");
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let flags = [&["--https", &https, "--access", "public"][..], &flags].concat();
    let node = node.stop_and_restart_with(&flags);
    assert_eq!(wait_for("a certificate", || ask(&authority, "d.example", &https)), "here");
    assert!(!node.log().contains("M1216"), "{}", node.log());
    // Nobody else may read the key.
    use std::os::unix::fs::MetadataExt as _;
    let key = node.dir.path().join("data/acme/live/privkey.pem");
    let mode = std::fs::metadata(key).expect("a key").mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// Forwards connections, as a router does.
fn forward(listener: TcpListener, to: SocketAddr) {
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let far = TcpStream::connect(to).expect("the node listens");
            for (mut from, mut to) in [
                (near.try_clone().expect("a socket"), far.try_clone().expect("a socket")),
                (far, near),
            ] {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
}

#[test]
fn http_is_tried_if_handshakes_do_not_reach_the_node() {
    let test = "http_is_tried_if_handshakes_do_not_reach_the_node";
    let https = free_address().to_string();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let closed = free_address();
    let port = listener.local_addr().expect("bound").port();
    let Some(authority) = Authority::start(test, port, closed.port(), 30) else { return };
    let node = start(&authority.flags("a.example", "default"), &https);
    forward(listener, node.http);
    assert_eq!(wait_for("a certificate", || ask(&authority, "a.example", &https)), "here");
    let record = node.dir.path().join("data/acme/record.json");
    let record = wait_for("the record", || {
        let text = std::fs::read_to_string(&record).ok()?;
        text.contains("http-01").then_some(text)
    });
    assert!(record.contains(r#""challenge":"http-01""#), "{record}");
    // After the order, this path is like any other.
    let url = format!("http://{}/.well-known/acme-challenge/x", node.http);
    let output = Command::new("curl").args(["-s", &url]).output().expect("curl");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("M0501"), "{said}");
}

#[test]
fn an_order_that_fails_says_why_and_is_not_repeated_too_often() {
    let test = "an_order_that_fails_says_why_and_is_not_repeated_too_often";
    let https = free_address().to_string();
    let closed = free_address().port();
    let Some(authority) = Authority::start(test, closed, closed, 30) else { return };
    let mut node = start(&authority.flags("a.example", "default"), &https);
    for round in 1..=2 {
        let log = wait_for("the reason", || {
            let log = node.log();
            log.contains("[M1216]").then_some(log)
        });
        for part in [
            "certificate for a.example",
            "tls-alpn-01: a.example",
            "http-01: a.example",
            "refused",
            "the next try is in",
        ] {
            assert!(log.contains(part), "{round}: {part}: {log}");
        }
        node = node.stop_and_restart();
    }
    // Both orders of both rounds have failed, and the authority permits no more orders within an
    // hour.
    wait_for("a pause", || node.log().contains("4 orders failed within an hour").then_some(()));
    assert!(!node.log().contains("refused"), "no order was made: {}", node.log());
    let subject = seen("a.example", &https, "-issuer -subject");
    let [issuer, own] = subject.lines().collect::<Vec<_>>()[..] else { panic!("{subject}") };
    assert_eq!(issuer.strip_prefix("issuer="), own.strip_prefix("subject="), "its own signature");
}

#[test]
fn a_short_certificate_is_replaced_without_a_failed_request() {
    let test = "a_short_certificate_is_replaced_without_a_failed_request";
    let https = free_address();
    let closed = free_address().port();
    let Some(authority) = Authority::start(test, closed, https.port(), 30) else { return };
    let https = https.to_string();
    let broker = ["--mqtt=127.0.0.1:0", "--mqtt-tls=127.0.0.1:0"].map(str::to_owned);
    let node = start(&[&authority.flags("a.example", "short")[..], &broker].concat(), &https);
    let mqtts = node.platform("mqtts").to_string();
    wait_for("a certificate", || ask(&authority, "a.example", &https));
    let first = seen("a.example", &https, "-serial");
    // At any time, new connections get a valid certificate.
    let second = wait_for("another certificate", || {
        assert_eq!(ask(&authority, "a.example", &https).as_deref(), Some("here"));
        let serial = seen("a.example", &https, "-serial");
        (serial != first).then_some(serial)
    });
    assert!(second.starts_with("serial="), "{second}");
    assert_eq!(ask(&authority, "a.example", &https).as_deref(), Some("here"));
    // The broker has the same certificate as the front. By now, this may already be the next
    // certificate.
    wait_for("the certificate of the front", || {
        let of_broker = seen("a.example", &mqtts, "-serial");
        (of_broker == seen("a.example", &https, "-serial") && of_broker != first).then_some(())
    });
}

#[test]
fn wrong_settings_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("no.pem").display().to_string();
    for (flags, expected) in [
        (&["--acme", "a.example"][..], "acme: only with https"),
        (&["--https", "on", "--acme", "*.example"], "name each host"),
        (&["--https", "on", "--acme", "a_b.example"], "names of hosts"),
        (&["--https", "on", "--acme-profile", "short"], "only with acme"),
        (
            &["--https", "on", "--acme", "a.example", "--acme-directory", "http://x/"],
            "begins with https://",
        ),
        (&["--https", "on", "--acme", "a.example", "--acme-contact", "me"], "one mail address"),
    ] {
        let output = Command::new(mote_tests::mote_binary())
            .args(["config", "check"])
            .args(flags)
            .output()
            .expect("mote");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{flags:?}: {said}");
        assert!(said.contains(expected), "{flags:?}: {said}");
    }
    let output = Command::new(mote_tests::mote_binary())
        .args([
            "up",
            "--http",
            "off",
            "--coap",
            "off",
            "--acme",
            "a.example",
            "--acme-ca",
            &missing,
        ])
        .args(["--https", &free_address().to_string(), "--data"])
        .arg(folder.path().join("data"))
        .arg("--socket")
        .arg(folder.path().join("s"))
        .output()
        .expect("mote");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("acme_ca") && said.contains("no.pem: No such file"), "{said}");
}

#[test]
fn nothing_is_ordered_that_could_not_be_stored() {
    let test = "nothing_is_ordered_that_could_not_be_stored";
    if !is_root() {
        return skip(test, "needs root");
    }
    let https = free_address();
    let closed = free_address().port();
    let Some(authority) = Authority::start(test, closed, https.port(), 30) else { return };
    let https = https.to_string();
    let node = start(&authority.flags("a.example", "default"), &https);
    wait_for("a certificate", || ask(&authority, "a.example", &https));
    // Simulates a restore from a copy that root has made.
    let folder = node.dir.path().join("data/acme");
    // After a renewal the former certificate is still there.
    std::fs::create_dir(folder.join("b")).expect("a folder");
    std::fs::copy(folder.join("a/fullchain.pem"), folder.join("b/fullchain.pem")).expect("a file");
    let owned = Command::new("chown").args(["-R", "0:0"]).arg(&folder).status().expect("chown");
    assert!(owned.success());
    let node = node.stop_and_restart();
    let log = wait_for("the reason", || {
        let log = node.log();
        log.contains("[M1216]").then_some(log)
    });
    assert!(log.contains("cannot write") && log.contains("chown -R 999997:999997 /"), "{log}");
    assert!(
        log.contains("a certificate is not used") && log.contains("not belong to user 999997"),
        "{log}"
    );
    assert_eq!(authority.issued(), 1, "nothing was ordered in vain");
    let owned = Command::new("chown").args(["-R", "999997:999997"]).arg(&folder).status();
    assert!(owned.is_ok_and(|status| status.success()));
    let node = node.stop_and_restart();
    assert_eq!(wait_for("the certificate", || ask(&authority, "a.example", &https)), "here");
    assert!(!node.log().contains("[M1216]") && authority.issued() == 1, "{}", node.log());
}
