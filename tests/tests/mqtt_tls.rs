//! MQTT over TLS at the node's own broker. The clients are Mosquitto's, paho and OpenSSL.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use mote_tests::certificates::certificates;
use mote_tests::mqtt::{self, Subscriber, broker_process};
use mote_tests::{Node, PATIENCE, free_address, mote_binary, repository, signal, skip, wait_for};

/// Makes a certificate `$1` for the names `$2`, signed by the authority `other`, and puts it where
/// the node looks for certificates.
const SIGNED: &str = "set -e
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $1.key -out $1.csr -subj /CN=$1
echo \"subjectAltName=$2\" >$1.ext
openssl x509 -req -in $1.csr -CA other.crt -CAkey other.key -days 2 -extfile $1.ext -out $1.crt
mkdir -p certificates
mv $1.key $1.crt certificates";

/// A folder with authorities, certificates of the node, and certificates of clients.
struct Files(tempfile::TempDir);

impl Files {
    /// Makes the files. If that is not possible or if clients are missing, reports the test as
    /// skipped.
    fn make(test: &str) -> Option<Self> {
        if !mqtt::is_there() {
            skip(test, "the clients of mosquitto are not installed");
            return None;
        }
        let folder = certificates(test)?;
        let files = Self(folder);
        files.sign("a", "DNS:a.example,IP:127.0.0.1");
        files.sign("b", "DNS:b.example");
        Some(files)
    }

    fn sign(&self, name: &str, names: &str) {
        let mut command = Command::new("sh");
        command.args(["-c", SIGNED, "sh", name, names]).current_dir(self.0.path());
        let output = command.output().expect("sh");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("UTF-8").to_owned()
    }
}

/// A node whose broker speaks TLS with these certificates.
struct Bench {
    files: Files,
    node: Node,
    port: u16,
    /// The port without TLS.
    plain: u16,
}

impl Bench {
    fn start(test: &str, flags: &[&str]) -> Option<Self> {
        let files = Files::make(test)?;
        let own = ["--mqtt", "127.0.0.1:0", "--mqtt-tls", "127.0.0.1:0"];
        let folder = files.path("certificates");
        let node = Node::start_with(&[&own[..], &["--certificates", &folder], flags].concat());
        let port = node.platform("mqtts").port();
        let plain = node.platform("mqtt").port();
        Some(Self { files, node, port, plain })
    }

    /// The arguments by which a client trusts the node.
    fn trust(&self) -> [String; 2] {
        ["--cafile".to_owned(), self.files.path("other.crt")]
    }

    fn publish(&self, args: &[&str]) -> Output {
        let trust = self.trust();
        publish(self.port, &[&[&trust[0][..], &trust[1]], args].concat())
    }

    fn publish_ok(&self, args: &[&str]) {
        let output = self.publish(args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.is_empty(), "{args:?}: {text}");
    }

    /// Waits until a publication with these arguments is accepted, or until it is refused.
    fn wait_until(&self, args: &[&str], accepted: bool) {
        wait_for(&format!("{args:?} to be {accepted}"), || {
            (self.publish(args).status.success() == accepted).then_some(())
        });
    }

    fn subscribe(&self, args: &[&str]) -> Subscriber {
        let trust = self.trust();
        Subscriber::start(self.port, &[&[&trust[0][..], &trust[1]], args].concat())
    }

    fn user(&self, name: &str, password: &str, filters: &[&str]) {
        let args = [&["mqtt", "users", "add", name], filters].concat();
        let output = self.node.mote_with_input(&args, password.as_bytes());
        assert!(output.status.success(), "{output:?}");
    }

    /// Runs a handshake with openssl's client and returns its output.
    fn handshake(&self, args: &[&str]) -> Output {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-connect", &format!("127.0.0.1:{}", self.port)]);
        command.args(args).stdin(Stdio::null()).output().expect("openssl")
    }

    /// Returns the serial number of the certificate for clients that name this host.
    fn serial(&self, host: &str) -> String {
        serial(&self.handshake(&["-servername", host]))
    }
}

fn publish(port: u16, args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["20", "mosquitto_pub", "-h", "127.0.0.1", "-p", &port.to_string()]).args(args);
    command.stdin(Stdio::null()).output().expect("mosquitto_pub")
}

/// Returns the serial number of the certificate that openssl's client has seen.
fn serial(handshake: &Output) -> String {
    let mut reading = Command::new("openssl")
        .args(["x509", "-noout", "-serial"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl");
    let mut input = reading.stdin.take().expect("piped");
    input.write_all(&handshake.stdout).expect("written");
    drop(input);
    let output = reading.wait_with_output().expect("it ends");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The serial number of a certificate in a file.
fn serial_of(file: &str) -> String {
    let output = Command::new("cat").arg(file).output().expect("cat");
    serial(&output)
}

#[test]
fn functions_are_called_by_messages_over_tls() {
    let test = "functions_are_called_by_messages_over_tls";
    let Some(bench) = Bench::start(test, &[]) else { return };
    let manifest = "version = 1\n[[trigger]]\nmqtt = \"in/+\"\nreply = \"out/{1}\"\n";
    let code = "def handle(event, ctx):\n    return event.text.upper()\n";
    bench.node.deploy_ok("echo", &[("mote.toml", manifest), ("app.py", code)]);
    wait_for("the subscription", || {
        let function = bench.node.json(&["--output", "json", "describe", "echo"]);
        (function["mqtt"][0]["state"] == "subscribed").then_some(())
    });
    for version in ["311", "5"] {
        for qos in ["0", "1", "2"] {
            let encrypted = bench.subscribe(&["-V", version, "-t", "out/#", "-q", qos]);
            let plain = Subscriber::start(bench.plain, &["-V", version, "-t", "out/#", "-q", qos]);
            bench.publish_ok(&["-V", version, "-t", "in/x", "-m", "hello", "-q", qos]);
            assert_eq!(encrypted.wait(1), ["out/x HELLO"], "{version} {qos}");
            assert_eq!(plain.wait(1), ["out/x HELLO"], "{version} {qos}");
        }
    }
    // A message of the largest size passes in both directions. It takes many TLS records.
    let body = bench.files.path("body");
    std::fs::write(&body, "x".repeat(120_000)).expect("a file");
    let large = bench.subscribe(&["-t", "large", "-q", "1"]);
    bench.publish_ok(&["-t", "large", "-f", &body, "-q", "1"]);
    assert_eq!(large.wait(1), [format!("large {}", "x".repeat(120_000))]);

    // Each port speaks only its own protocol, and a client that trusts another authority does not
    // connect.
    let message = ["-t", "in/x", "-m", "x"];
    let own = bench.files.path("other.crt");
    let wrong = bench.files.path("plant.crt");
    for (port, trusted) in
        [(bench.port, None), (bench.plain, Some(&own)), (bench.port, Some(&wrong))]
    {
        let trust = trusted.map(|file| ["--cafile", file]);
        let args = [trust.as_ref().map_or(&[][..], |trust| &trust[..]), &message].concat();
        let output = publish(port, &args);
        assert!(!output.status.success(), "{port} {trusted:?}: {output:?}");
    }
    bench.publish_ok(&message);
}

#[test]
fn users_are_the_same_with_and_without_tls() {
    let test = "users_are_the_same_with_and_without_tls";
    let Some(bench) = Bench::start(test, &["--mqtt-anonymous", "off"]) else { return };
    assert!(!bench.publish(&["-t", "a", "-m", "x"]).status.success(), "nobody without a name");
    // The users are added in order, so the test waits only for the last one.
    bench.user("watch", "w", &["--read", "sensors/#"]);
    bench.user("thermo", "s3cret", &["--write", "sensors/+/temp"]);
    let thermo = ["-V", "5", "-u", "thermo", "-P", "s3cret", "-q", "1"];
    let with = |more: &[&'static str]| [&thermo[..], more].concat();
    bench.wait_until(&with(&["-t", "sensors/a/temp", "-m", "1"]), true);
    let wrong = ["-u", "thermo", "-P", "wrong", "-t", "sensors/a/temp", "-m", "x"];
    assert!(!bench.publish(&wrong).status.success());
    let watch = ["-u", "watch", "-P", "w", "-t", "sensors/#", "-q", "1"];
    let plain = Subscriber::start(bench.plain, &watch);
    let encrypted = bench.subscribe(&watch);
    let other = bench.publish(&with(&["-t", "other", "-m", "no"]));
    let text = String::from_utf8_lossy(&other.stderr).to_lowercase();
    assert!(!other.status.success() || text.contains("not authorized"), "{other:?}");
    bench.publish_ok(&with(&["-t", "sensors/b/temp", "-m", "yes"]));
    assert_eq!(plain.wait(1), ["sensors/b/temp yes"]);
    assert_eq!(encrypted.wait(1), ["sensors/b/temp yes"]);
    // A client id belongs to its user on both ports.
    bench.publish_ok(&with(&["-i", "sensor1", "-t", "sensors/a/temp", "-m", "1"]));
    let stolen = ["-u", "watch", "-P", "w", "-i", "sensor1", "-t", "x", "-m", "x"];
    assert!(!publish(bench.plain, &stolen).status.success());
    let own = ["-u", "watch", "-P", "w", "-i", "watch1", "-t", "x", "-m", "x"];
    assert!(
        publish(bench.plain, &own).status.success(),
        "with a client id of its own it may connect"
    );
    bench.node.ok(&["mqtt", "users", "remove", "thermo"]);
    bench.wait_until(&with(&["-t", "sensors/a/temp", "-m", "1"]), false);
}

#[test]
fn certificates_are_replaced_while_a_connection_stands() {
    let test = "certificates_are_replaced_while_a_connection_stands";
    let Some(bench) = Bench::start(test, &[]) else { return };
    let now = |name: &str| serial_of(&bench.files.path(&format!("certificates/{name}.crt")));
    assert_eq!(bench.serial("a.example"), now("a"));
    assert_eq!(bench.serial("b.example"), now("b"));
    assert_eq!(serial(&bench.handshake(&["-noservername"])), now("a"), "the first one");
    // If the connection broke, the broker would publish the client's will.
    let standing = ["-t", "news", "-q", "1", "--will-topic", "will", "--will-payload", "gone"];
    let standing = bench.subscribe(&standing);
    let wills = Subscriber::start(bench.plain, &["-t", "will", "-q", "1"]);
    let pid = broker_process(&bench.node);
    let before = now("a");
    bench.files.sign("a", "DNS:a.example,IP:127.0.0.1");
    assert_ne!(now("a"), before);
    wait_for("the new certificate", || (bench.serial("a.example") == now("a")).then_some(()));
    assert_eq!(bench.serial("b.example"), now("b"));
    bench.publish_ok(&["-t", "news", "-m", "later", "-q", "1"]);
    assert_eq!(standing.wait(1), ["news later"]);
    bench.publish_ok(&["-t", "will", "-m", "none", "-q", "1"]);
    assert_eq!(wills.wait(1), ["will none"]);

    // A certificate for a further name is used as well. A damaged one has no effect.
    bench.files.sign("c", "DNS:c.example");
    wait_for("the third certificate", || (bench.serial("c.example") == now("c")).then_some(()));
    let used = now("b");
    std::fs::write(bench.files.path("certificates/b.crt"), "broken").expect("written");
    wait_for("the fault", || bench.node.log().contains("b.crt").then_some(()));
    assert_eq!(bench.serial("b.example"), used);
    assert_eq!(broker_process(&bench.node), pid);
    assert_eq!(standing.all(), ["news later"]);

    // After its end, the broker is started again at the same port and with the current
    // certificates.
    signal(pid, "KILL");
    wait_for("another process", || (broker_process(&bench.node) != pid).then_some(()));
    bench.wait_until(&["-t", "x", "-m", "y"], true);
    assert_eq!(bench.serial("a.example"), now("a"));
    assert_eq!(bench.serial("b.example"), used, "also those whose files are broken by now");
}

#[test]
fn keys_are_told_to_nobody() {
    let Some(bench) = Bench::start("keys_are_told_to_nobody", &[]) else { return };
    let pid = broker_process(&bench.node);
    let file = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).expect("it runs");
    let command = String::from_utf8_lossy(&file("cmdline")).into_owned();
    let words: Vec<&str> = command.split_terminator('\0').collect();
    assert!(matches!(words[..], [program, "run"] if program.ends_with("mote-broker")), "{words:?}");
    assert_eq!(file("environ"), b"MALLOC_MMAP_THRESHOLD_=32768\0");
    let key = std::fs::read_to_string(bench.files.path("certificates/a.key")).expect("a key");
    let line = key.lines().nth(1).expect("a line of PEM");
    assert!(!bench.node.log().contains(line));
    let data = bench.node.dir.path().join("data");
    let found = Command::new("grep").args(["-rlF", line]).arg(&data).output().expect("grep");
    assert_eq!(found.status.code(), Some(1), "no copy in the data folder: {found:?}");
    assert!(bench.node.stop().success());
}

#[test]
fn only_versions_in_use_and_the_protocol_are_accepted() {
    let test = "only_versions_in_use_and_the_protocol_are_accepted";
    let Some(bench) = Bench::start(test, &[]) else { return };
    let said = |args: &[&str]| {
        let output = bench.handshake(args);
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    for version in ["-tls1_2", "-tls1_3"] {
        let (accepted, text) = said(&[version]);
        assert!(accepted && text.contains("BEGIN CERTIFICATE"), "{version}: {text}");
    }
    for version in ["-tls1", "-tls1_1"] {
        // By default, the client itself would not offer these ciphers.
        let (accepted, text) = said(&[version, "-cipher", "DEFAULT:@SECLEVEL=0"]);
        assert!(!accepted && text.contains("SSL alert number"), "{version}: {text}");
    }
    let (accepted, text) = said(&["-alpn", "mqtt"]);
    assert!(accepted && text.contains("ALPN protocol: mqtt"), "{text}");
    let (accepted, text) = said(&["-alpn", "h2"]);
    assert!(!accepted && text.contains("alert no application protocol"), "{text}");
}

/// A device that speaks MQTT 3.1 is told why it cannot connect, as without TLS.
#[test]
fn a_client_of_an_old_version_gets_an_answer() {
    let Some(bench) = Bench::start("mqtt_tls", &[]) else { return };
    let mut client = Command::new("openssl")
        .args(["s_client", "-quiet", "-connect", &format!("127.0.0.1:{}", bench.port)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl");
    let mut input = client.stdin.take().expect("piped");
    input.write_all(b"\x10\x0f\0\x06MQIsdp\x03\x02\0\x3c\0\x01a").expect("sent");
    let mut answer = [0; 4];
    client.stdout.take().expect("piped").read_exact(&mut answer).expect("an answer");
    assert_eq!(answer, [0x20, 2, 0, 1], "unacceptable protocol version");
    drop(input);
    client.wait().expect("our child");
    wait_for("a line in the log", || {
        bench.node.log().contains("MQTT 3.1 is refused").then_some(())
    });
    bench.publish_ok(&["-t", "a", "-m", "others are served"]);
}

#[test]
fn clients_that_are_silent_or_hostile_stop_nobody() {
    let test = "clients_that_are_silent_or_hostile_stop_nobody";
    let Some(bench) = Bench::start(test, &[]) else { return };
    let pid = broker_process(&bench.node);
    let at = SocketAddr::from(([127, 0, 0, 1], bench.port));
    let open = || {
        let stream = TcpStream::connect(at).expect("the broker listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    };
    let message = ["-t", "x", "-m", "y"];
    // A client that sends nothing does not delay the next client.
    let silent = open();
    bench.publish_ok(&message);
    drop(silent);
    // Connections with anything other than a handshake end at once.
    let connect = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01c";
    let mut begun = vec![22, 3, 1, 0x40, 0];
    begun.resize(64, 0xff);
    for garbage in [&connect[..], b"GET / HTTP/1.1\r\n\r\n", &[0xff; 4_096], &begun] {
        let mut stream = open();
        stream.write_all(garbage).expect("sent");
        let _ = stream.shutdown(Shutdown::Write);
        let mut rest = Vec::new();
        // The other side sends an alert and ends the connection, or resets it because not
        // everything was read.
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty() || rest[0] == 21, "{rest:?}");
    }
    // If an address exceeds its share, its oldest silent connection is closed too. Clients that
    // send something are served.
    let mut silent: Vec<_> = (0..260).map(|_| open()).collect();
    bench.publish_ok(&message);
    bench.publish_ok(&[&message[..], &["-A", "127.0.0.5"]].concat());
    let read = silent[0].read(&mut [0; 64]);
    assert!(read.as_ref().map_or(true, |length| *length == 0), "it was not closed: {read:?}");
    drop(silent);
    assert_eq!(broker_process(&bench.node), pid);
    let log = bench.node.log();
    assert!(!log.contains("ERROR") && !log.contains("panicked"), "{log}");
    assert!(bench.node.stop().success());
}

#[test]
fn a_certificate_stands_for_the_user_that_it_names() {
    let test = "a_certificate_stands_for_the_user_that_it_names";
    let Some(files) = Files::make(test) else { return };
    let clients = files.path("clients.pem");
    std::fs::copy(files.path("plant.crt"), &clients).expect("copied");
    let folder = files.path("certificates");
    let node = Node::start_with(&[
        "--mqtt=127.0.0.1:0",
        "--mqtt-tls=127.0.0.1:0",
        "--mqtt-anonymous=off",
        "--certificates",
        &folder,
        "--client-ca",
        &clients,
    ]);
    let port = node.platform("mqtts").port();
    let plain = node.platform("mqtt").port();
    let bench = Bench { files, node, port, plain };
    // The users are added in order, so the test waits only for the last one.
    for name in ["fan-2", "pump-4.plant.example", "pump-5", "pump-3"] {
        bench.user(name, "s3cret", &["--write", &format!("{name}/#")]);
    }
    let shown = |name: &str, more: &[&str]| {
        let file = |ending| bench.files.path(&format!("{name}.{ending}"));
        let certificate = file("crt");
        let key = file("key");
        let args = ["--cert", &certificate, "--key", &key, "-V", "5", "-q", "1", "-m", "x"];
        let output = bench.publish(&[&args[..], more].concat());
        let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
        eprintln!("{name} {more:?}: {} {said}", output.status);
        output.status.success() && !said.contains("not authorized")
    };
    wait_for("the users", || shown("pump", &["-t", "pump-3/x"]).then_some(()));
    assert!(shown("pump", &["-t", "pump-3/x", "-u", "pump-3"]), "it may say its name");
    assert!(shown("named", &["-t", "pump-4.plant.example/x"]), "a name of DNS");
    assert!(!shown("pump", &["-t", "pump-4.plant.example/x"]), "the filters are those of the user");
    assert!(!shown("pump", &["-t", "fan-2/x", "-u", "fan-2"]), "the name of somebody else");
    assert!(!shown("fan", &["-t", "fan-1/x"]), "a name that is no user");
    assert!(!shown("nameless", &["-t", "x"]));
    for name in ["stranger", "server", "expired"] {
        assert!(!shown(name, &["-t", "pump-3/x"]), "{name}");
    }
    // The password proves another user, with or without a certificate.
    assert!(shown("pump", &["-t", "fan-2/x", "-u", "fan-2", "-P", "s3cret"]));
    assert!(!shown("pump", &["-t", "pump-3/x", "-u", "pump-3", "-P", "wrong"]));
    let password = ["-u", "fan-2", "-P", "s3cret", "-t", "fan-2/x", "-m", "x"];
    bench.publish_ok(&password);
    let without = ["-u", "pump-3", "-t", "pump-3/x", "-m", "x"];
    assert!(!bench.publish(&without).status.success(), "a name alone proves nothing");
    assert!(!publish(bench.plain, &without).status.success());

    // A certificate that is revoked, or a user that is removed, while the node runs is refused.
    assert!(shown("lost", &["-t", "pump-5/x"]));
    let read = |name: &str| std::fs::read_to_string(bench.files.path(name)).expect("a file");
    std::fs::write(&clients, read("plant.crt") + &read("plant.crl")).expect("written");
    wait_for("the revocation", || (!shown("lost", &["-t", "pump-5/x"])).then_some(()));
    assert!(shown("pump", &["-t", "pump-3/x"]));
    bench.node.ok(&["mqtt", "users", "remove", "pump-3"]);
    wait_for("the removal", || (!shown("pump", &["-t", "pump-3/x"])).then_some(()));
}

#[test]
fn a_node_makes_a_certificate_and_tells_of_the_listener() {
    let test = "a_node_makes_a_certificate_and_tells_of_the_listener";
    if !mqtt::is_there() {
        return skip(test, "the clients of mosquitto are not installed");
    }
    let node = Node::start_with(&["--lan", "--mqtt", "0.0.0.0:0", "--mqtt-tls", "0.0.0.0:0"]);
    let at = node.platform("mqtts");
    let own = node.dir.path().join("data/certificates/self-signed.crt");
    let certificate = own.to_str().expect("UTF-8");
    let args = ["--cafile", certificate, "-t", "x", "-m", "y"];
    let output = publish(at.port(), &args);
    assert!(output.status.success(), "{output:?}");
    assert!(node.announcement.contains(&format!("  mqtts  mqtts://{at}\n")));
    // The announcement has a colon where `mote doctor` has a column.
    let squeezed =
        |text: &str| text.replace(": ", " ").split_whitespace().collect::<Vec<_>>().join(" ");
    let plain = format!("mqtt {}", node.platform("mqtt"));
    for text in [&node.announcement, &node.doctor(&[])] {
        let text = squeezed(text);
        assert!(text.contains(&format!("mqtts {at} users of the broker")), "{text}");
        assert!(text.contains(&format!("{plain} users of the broker; not encrypted")), "{text}");
    }
    let node = node.stop_and_restart();
    let output = publish(node.platform("mqtts").port(), &args);
    assert!(output.status.success(), "the certificate is kept: {output:?}");
}

/// Tests with paho: both protocol versions over TLS, and many clients at once.
const PAHO: &str = "
import queue, ssl, sys
import paho.mqtt.client as mqtt

def client(name, version):
    one = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name, protocol=version)
    one.got, one.ready = queue.Queue(), queue.Queue()
    one.on_message = lambda c, u, m: one.got.put((m.topic, m.payload.decode(), m.qos))
    one.on_subscribe = lambda *a: one.ready.put(1)
    one.tls_set(sys.argv[2])
    one.connect('127.0.0.1', int(sys.argv[1]))
    one.loop_start()
    return one

for version in (mqtt.MQTTv311, mqtt.MQTTv5):
    many = [client(f'm{version}-{at}', version) for at in range(50)]
    for one in many:
        one.subscribe('all/#', 2)
    for one in many:
        one.ready.get(timeout=20)
    for number in range(20):
        many[0].publish(f'all/{number % 3}', str(number), number % 3).wait_for_publish(20)
    for one in many:
        got = sorted(one.got.get(timeout=20) for _ in range(20))
        assert got == sorted((f'all/{n % 3}', str(n), n % 3) for n in range(20)), got
    for one in many:
        one.disconnect()
        one.loop_stop()
print('done')
";

#[test]
fn paho_finds_everything_over_tls() {
    let test = "paho_finds_everything_over_tls";
    let python = repository().join(".cache/test-venv/bin/python");
    let mut asking = Command::new(&python);
    let asked = asking.args(["-c", "import paho.mqtt"]).stderr(Stdio::null()).status();
    if !asked.is_ok_and(|status| status.success()) {
        return skip(test, "paho-mqtt is not installed");
    }
    let Some(bench) = Bench::start(test, &[]) else { return };
    let port = bench.port.to_string();
    let trusted = bench.files.path("other.crt");
    let output = Command::new(python).args(["-c", PAHO, &port, &trusted]).output();
    let output = output.expect("python");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"done\n", "{text}");
}

/// Returns what `mote up` prints when it refuses to start.
fn refused(data: &Path, flags: &[&str]) -> String {
    let mut command = Command::new(mote_binary());
    command.args(["up", "--http", "127.0.0.1:0", "--coap", "off", "--data"]).arg(data).args(flags);
    let output = command.output().expect("mote");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{flags:?}: {said}");
    said
}

#[test]
fn wrong_settings_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let data: PathBuf = folder.path().join("data");
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).expect("a folder");
    let empty = empty.to_str().expect("UTF-8");
    let one = free_address().to_string();
    let taken = free_address();
    let holder = std::net::TcpListener::bind(taken).expect("a free port");
    let in_use = format!("port {} is already in use", taken.port());
    let taken = taken.to_string();
    for (flags, expected) in [
        (&["--mqtt-tls", "on"][..], "mqtt_tls: needs mqtt = \"on\" or an address"),
        (&["--mqtt", &one, "--mqtt-tls", &one], "mqtt_tls: not the address of mqtt"),
        (&["--mqtt", &one, "--mqtt-tls", "8883"], "mqtt_tls"),
        (&["--mqtt", "127.0.0.1:0", "--mqtt-tls", &taken], &in_use),
        (
            &["--mqtt", "127.0.0.1:0", "--mqtt-tls", "127.0.0.1:0", "--certificates", empty],
            "the folder has no certificate",
        ),
        (&["--mqtt", "127.0.0.1:0", "--client-ca", empty], "client_ca: only with https"),
    ] {
        let said = refused(&data, flags);
        assert!(said.contains(expected), "{flags:?}: {said}");
    }
    drop(holder);
}
