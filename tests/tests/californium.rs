//! Eclipse Californium and its DTLS library Scandium against a real node: CoAP over UDP, and over
//! DTLS with pre-shared keys and with certificates.
//!
//! The client is the Java program in `tests/californium`. It is built into `.cache/californium`
//! whenever it has changed. The build needs a JDK, and Maven, which downloads the libraries. If the
//! build is not possible, the tests are skipped.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use mote_tests::certificates::certificates;
use mote_tests::network::Far;
use mote_tests::{Node, SLOWNESS, repository, signal, skip, wait_for};

/// The function for the client's exchanges.
const APP: &str = r#"
import time

TEXT = "text/plain; charset=utf-8"

def handle(event, ctx):
    path, fields = event.path, event.headers
    if path == "/query":
        return event.query
    if path == "/formats":
        return f"{fields['content-type']} {fields['accept']}", 200, {"content-type": TEXT}
    if path == "/json":
        return {"celsius": 21.5}
    if path == "/tagged":
        tag = {"etag": '"0a0b"', "cache-control": "max-age=7"}
        known = fields.get("if-none-match") == '"0a0b"'
        return ("", 304, tag) if known else ("tagged", 200, tag)
    if path == "/created":
        return "", 201, {"location": "/open/items/7"}
    if path == "/slow":
        time.sleep(1.5)  # The node acknowledges the request after 0.5 s.
        return "late"
    if path == "/length":
        return str(len(event.body))
    if path == "/same":
        return event.body, 200, {"content-type": fields.get("content-type", TEXT)}
    if path == "/large":
        return "x" * 20000 + "end"
    if path == "/state":
        return "first"
    if path == "/notify":
        return str(ctx.notify("/state", event.text))
    return f"{event.method} {event.caller} {len(event.body)}"
"#;

/// Longest time that Maven may take to download the libraries.
const FETCH_SECONDS: u32 = 300;
/// Longest run of the client. A refused handshake takes the client 3 s.
const CLIENT_SECONDS: u32 = 120 * SLOWNESS;

const EXCHANGES: [&str; 27] = [
    "GET",
    "POST",
    "PUT",
    "DELETE",
    "FETCH",
    "PATCH",
    "iPATCH",
    "query",
    "bytes",
    "formats",
    "format that does not match",
    "ETag and Max-Age",
    "Location-Path",
    "separate answer",
    "non-confirmable",
    "slow non-confirmable",
    "several at once",
    "upload in blocks",
    "download in blocks",
    "blocks in both directions",
    "blocks of 64 bytes",
    "observation",
    "observation that is forgotten",
    "missing function",
    "unknown critical option",
    "discovery",
    "ping",
];
const PROOFS: [&str; 6] = [
    "short answer without a proof",
    "POST in blocks without a proof",
    "proof",
    "long answer after the proof",
    "observation",
    "observation that is forgotten",
];
/// The exchanges before the node's process that holds the sessions is killed.
const SESSIONS: [&str; 21] = [
    "extensions by default",
    "connection id",
    "empty connection id",
    "record size limit",
    "maximum fragment length of 1024 bytes",
    "maximum fragment length of 512 bytes",
    "server name",
    "secure renegotiation",
    "required extended master secret",
    "all cipher suites",
    "several messages in a record",
    "one message in a record",
    "wrong key",
    "unknown identity",
    "no extended master secret",
    "closed session",
    "resumption",
    "resumption that probes",
    "full handshake in a session",
    "client that restarts at its port",
    "waits",
];

/// The folder of the client with its libraries, or the reason why it cannot be built.
static CLIENT: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
    let source = repository().join("tests/californium");
    let mut files = vec![source.join("pom.xml")];
    let folder = std::fs::read_dir(source.join("src/main/java/mote")).expect("the client");
    files.extend(folder.map(|entry| entry.expect("a file").path()));
    files.sort();
    let text: Vec<String> =
        files.iter().map(|file| std::fs::read_to_string(file).expect("text")).collect();
    let text = text.concat();
    let built = repository().join(".cache/californium");
    require("java")?;
    if std::fs::read_to_string(built.join("sources")).is_ok_and(|former| former == text) {
        return Ok(built);
    }
    require("javac")?;
    require("mvn")?;
    build(&files, &text, &built)?;
    Ok(built)
});

fn require(program: &str) -> Result<(), String> {
    let found = Command::new(program).arg("-version").output();
    let runs = found.is_ok_and(|output| output.status.success());
    if runs { Ok(()) } else { Err(format!("{program} cannot be run: scripts/setup.sh java")) }
}

fn build(files: &[PathBuf], text: &str, built: &Path) -> Result<(), String> {
    let cache = built.parent().expect("a folder");
    std::fs::create_dir_all(cache).map_err(|error| error.to_string())?;
    // The build runs in a temporary folder, so that another run never finds a partial build.
    let fresh = tempfile::Builder::new().prefix("californium-").tempdir_in(cache);
    let fresh = fresh.map_err(|error| error.to_string())?;
    let lib = fresh.path().join("lib");
    let fetched = Command::new("timeout")
        .args([&FETCH_SECONDS.to_string(), "mvn", "--quiet", "--batch-mode", "-Dstyle.color=never"])
        .args(["--file".as_ref(), repository().join("tests/californium/pom.xml").as_os_str()])
        .arg("dependency:copy-dependencies")
        .arg(format!("-DoutputDirectory={}", lib.display()))
        .stdin(Stdio::null())
        .output()
        .expect("timeout runs");
    if !fetched.status.success() {
        let said = String::from_utf8_lossy(&fetched.stdout);
        let said = said.lines().find(|line| line.contains("ERROR")).unwrap_or("it was too slow");
        return Err(format!("Maven could not fetch the libraries: {said}"));
    }
    let compiled = Command::new("javac")
        .args(["-cp", &format!("{}/*", lib.display()), "-d"])
        .arg(fresh.path().join("classes"))
        .args(files.iter().filter(|file| file.extension().is_some_and(|end| end == "java")))
        .output()
        .expect("javac runs");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    std::fs::write(fresh.path().join("sources"), text).expect("written");
    let _ = std::fs::remove_dir_all(built);
    std::fs::rename(fresh.keep(), built).expect("renamed");
    Ok(())
}

/// A node with the function `open` for everyone, and the function `shut` for callers with a key.
struct Bench {
    node: Node,
    client: &'static Path,
}

impl Bench {
    /// Starts the node. If there is no client, reports the test as skipped.
    fn start() -> Option<Self> {
        Self::start_with(&["--coap-dtls", "127.0.0.1:0"])
    }

    fn start_with(flags: &[&str]) -> Option<Self> {
        let client = match &*CLIENT {
            Ok(client) => client,
            Err(why) => {
                skip("Californium", why);
                return None;
            }
        };
        let node = Node::start_with(flags);
        for (name, mode) in [("open", "public"), ("shut", "key"), ("proved", "mtls")] {
            let manifest = format!("version = 1\n[access]\nmode = \"{mode}\"\n");
            node.deploy_ok(name, &[("app.py", APP), ("mote.toml", &manifest)]);
        }
        Some(Self { node, client })
    }

    /// Returns the URI of `shut` at this host over DTLS, an identity, and the identity's key.
    fn secured(&self, host: &str) -> [String; 3] {
        let text = self.node.ok(&["key", "create", "shop", "--psk"]);
        let (identity, key) = text.trim().split_once(' ').expect("an identity and a key");
        let uri = format!("coaps://{host}:{}/shut", self.node.platform("coaps").port());
        [uri, identity.to_owned(), key.to_owned()]
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        let classpath = format!("{0}/classes:{0}/lib/*", self.client.display());
        command
            .args([&CLIENT_SECONDS.to_string(), "java", "-cp", &classpath, "mote.Client"])
            .args(args);
        command
    }

    /// Fails unless the client makes exactly these exchanges and all of them succeed.
    fn check(&self, args: &[&str], names: &[&str]) {
        let output = self.command(args).stdin(Stdio::null()).output().expect("timeout runs");
        let said = String::from_utf8_lossy(&output.stdout);
        let failed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.lines().collect::<Vec<_>>(), succeeded(names), "{failed}");
        self.check_log(|_| false);
    }

    /// Fails if the node has logged a warning or an error that is not expected.
    fn check_log(&self, is_expected: impl Fn(&str) -> bool) {
        let log = self.node.log();
        let is_bad = |line: &&str| line.contains("\"ERROR\"") || line.contains("\"WARN\"");
        let bad: Vec<&str> = log.lines().filter(is_bad).filter(|line| !is_expected(line)).collect();
        assert!(bad.is_empty(), "{bad:?}");
    }

    /// The process `mote-dtls` of the node.
    fn program(&self) -> Option<u32> {
        let node = self.node.pid().to_string();
        let found = Command::new("pgrep").args(["-x", "-P", &node, "mote-dtls"]).output();
        String::from_utf8_lossy(&found.expect("pgrep runs").stdout).trim().parse().ok()
    }
}

/// Returns the lines that the client prints if all of these exchanges succeed.
fn succeeded(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("{name}: ok")).collect()
}

#[test]
fn californium_calls_functions() {
    let Some(bench) = Bench::start() else { return };
    let uri = format!("coap://{}/open", bench.node.coap);
    bench.check(&["exchanges", &uri, "None"], &EXCHANGES);
}

#[test]
fn californium_calls_functions_with_a_pre_shared_key() {
    let Some(bench) = Bench::start() else { return };
    let [uri, identity, key] = bench.secured("localhost");
    bench.check(&["exchanges", &uri, "shop", &identity, &key], &EXCHANGES);
}

#[test]
fn californium_calls_functions_with_certificates() {
    let test = "californium_calls_functions_with_certificates";
    let Some(folder) = certificates(test) else { return };
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let own = ["pump.crt", "pump.key"].map(|name| std::fs::read(path(name)).expect("a file"));
    // The library recognizes the format of a file by the file's name.
    std::fs::write(path("pump.pem"), own.concat()).expect("written");
    let plain = ["--coap-dtls", "127.0.0.1:0"];
    for asks in [false, true] {
        let authorities = path("plant.crt");
        let flags: &[&str] = if asks { &["--client-ca", &authorities] } else { &[] };
        let Some(bench) = Bench::start_with(&[&plain[..], flags].concat()) else { return };
        let of_node = bench.node.dir.path().join("data/certificates/self-signed.crt");
        std::fs::copy(of_node, path("node.pem")).expect("copied");
        let at = format!("coaps://localhost:{}", bench.node.platform("coaps").port());
        let trusted = path("node.pem");
        let own = path("pump.pem");
        if asks {
            let proved = format!("{at}/proved");
            bench.check(&["certified", &proved, "pump-3", &trusted, &own], &EXCHANGES);
        } else {
            let open = format!("{at}/open");
            bench.check(&["certified", &open, "None", &trusted], &EXCHANGES);
        }
    }
}

#[test]
fn californium_calls_functions_from_another_machine() {
    let Some(far) = Far::new() else {
        return skip("calls from another machine", "cannot make a network namespace");
    };
    let Some(bench) = Bench::start_with(&["--lan", "--coap-dtls", "0.0.0.0:0"]) else { return };
    let near = far.near.to_string();
    let plain = format!("coap://{near}:{}/open", bench.node.coap.port());
    let [uri, identity, key] = bench.secured(&near);
    far.run(|| {
        bench.check(&["proofs", &plain], &PROOFS);
        // A session proves the address of its client.
        bench.check(&["exchanges", &uri, "shop", &identity, &key], &EXCHANGES);
    });
}

#[test]
fn scandium_begins_sessions_and_goes_on_after_it_has_lost_one() {
    let Some(bench) = Bench::start() else { return };
    let [uri, identity, key] = bench.secured("localhost");
    let mut command = bench.command(&["sessions", &uri, &identity, &key]);
    let mut client = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("runs");
    let mut output = BufReader::new(client.stdout.take().expect("piped"));
    let mut lines = Vec::new();
    while lines.last().is_none_or(|line| line != "waits: ok") {
        let mut line = String::new();
        if output.read_line(&mut line).expect("text") == 0 {
            break;
        }
        lines.push(line.trim_end().to_owned());
    }
    assert_eq!(lines, succeeded(&SESSIONS));
    let first = bench.program().expect("the program runs");
    signal(first, "KILL");
    wait_for("another process", || bench.program().filter(|pid| *pid != first));
    client.stdin.take().expect("piped").write_all(b"\n").expect("written");
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("text");
    assert_eq!(rest, "lost session: ok\nlost session after a silence: ok\n");
    assert!(client.wait().expect("our child").success());
    bench.check_log(|line| line.contains("[M1217]"));
}
