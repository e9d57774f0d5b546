//! Tests the CoAP front with clients of other projects: libcoap's `coap-client` and aiocoap. The
//! tests cover every method, block-wise transfer in both directions, observation and slow answers,
//! and repeat all of it through a relay that drops and reorders datagrams. If a client is not
//! installed, its tests are skipped with a message (`scripts/setup.sh test` installs both).

#![allow(clippy::unwrap_used)]

mod support;

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mote_coap::{Config, serve};
use support::coap::Stopper;
use support::relay::Relay;
use support::{Fake, pattern_bytes, seed};

/// The time limit for one run of a client. Each lost datagram costs 2 s or more. Two transfers of
/// 100 KiB through the relay took 46 to 142 s in 120 runs, with a median of 89 s.
const CLIENT_LIMIT: Duration = Duration::from_secs(330);
/// The number of seconds after which libcoap's client gives up.
const LIBCOAP_SECONDS: &str = "300";
const TRANSFER: usize = 100 << 10;

struct Server {
    address: SocketAddr,
    fake: Fake,
    stopper: Stopper,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    fn start() -> Self {
        let (fake, (stopper, end)) = (Fake::default(), Stopper::new());
        let invoker = fake.clone();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        socket.set_nonblocking(true).unwrap();
        let config = Config { ack_delay_ns: 50_000_000, ..Config::default() };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let socket = tokio::net::UdpSocket::from_std(socket).unwrap();
                serve(socket, invoker, config, end).await.unwrap();
            });
        });
        Self { address, fake, stopper, thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            thread.join().unwrap();
        }
    }
}

fn skipped(client: &str) {
    eprintln!("SKIPPED: {client} is not installed; scripts/setup.sh test installs it");
}

fn libcoap() -> Option<&'static str> {
    ["coap-client-notls", "coap-client", "coap-client-openssl", "coap-client-gnutls"]
        .into_iter()
        .find(|name| Command::new(name).output().is_ok())
}

fn venv_python() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let python = root.join(".cache/test-venv/bin/python");
    let works = Command::new(&python).args(["-c", "import aiocoap"]).output();
    works.is_ok_and(|output| output.status.success()).then_some(python)
}

/// Runs a client to its end, or kills it after its time limit.
fn run(command: &mut Command) -> Output {
    let shown = format!("{command:?}");
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (sender, over) = std::sync::mpsc::channel::<()>();
    let id = i32::try_from(child.id()).unwrap();
    let guard = std::thread::spawn(move || {
        if over.recv_timeout(CLIENT_LIMIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _ = Command::new("kill").arg(id.to_string()).status();
        }
    });
    let mut out = child.stdout.take().unwrap();
    let mut err = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        std::io::Read::read_to_end(&mut err, &mut text).unwrap();
        text
    });
    let mut stdout = Vec::new();
    std::io::Read::read_to_end(&mut out, &mut stdout).unwrap();
    let status = child.wait().unwrap();
    drop(sender);
    guard.join().unwrap();
    let stderr = reader.join().unwrap();
    assert!(status.success(), "{shown}: {status}\n{}", String::from_utf8_lossy(&stderr));
    Output { status, stdout, stderr }
}

/// Lets a call of `slow` end after it has been acknowledged, which takes 50 ms.
fn release_slow_later(fake: &Fake, begun: u64) -> std::thread::JoinHandle<()> {
    let fake = fake.clone();
    std::thread::spawn(move || {
        fake.wait("the slow call", |state| state.calls.load(Ordering::SeqCst) > begun);
        let begin = Instant::now();
        fake.wait("its acknowledgement", |_| begin.elapsed() > Duration::from_millis(300));
        fake.permits.add_permits(1);
    })
}

struct Libcoap<'a> {
    name: &'static str,
    server: &'a Server,
    to: SocketAddr,
    steps: u32,
}

impl Libcoap<'_> {
    /// Returns the payload of the answer, and the client's other output (errors, or everything with
    /// `-v 7`).
    fn call(&mut self, method: &str, path: &str, more: &[&str]) -> (Vec<u8>, String) {
        self.steps += 1;
        let uri = format!("coap://{}/{path}", self.to);
        let output = run(Command::new(self.name)
            .args(["-B", LIBCOAP_SECONDS, "-m", method])
            .args(more)
            .arg(uri));
        // The client ends its output with a line feed, which is not part of the payload.
        let mut payload = output.stdout;
        if payload.last() == Some(&b'\n') {
            payload.pop();
        }
        (payload, String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn text(&mut self, method: &str, path: &str, more: &[&str]) -> String {
        String::from_utf8_lossy(&self.call(method, path, more).0).into_owned()
    }

    fn all(&mut self) {
        for method in ["get", "post", "put", "delete", "fetch", "patch", "ipatch"] {
            let body: &[&str] = match method {
                "get" | "delete" => &[],
                _ => &["-e", "hello", "-t", "0"],
            };
            let text = self.text(method, "echo/a/b?x=1", body);
            assert!(text.starts_with(&format!("{} /a/b x=1\n", method.to_uppercase())), "{text}");
            assert!(body.is_empty() || text.ends_with("\n\nhello"), "{method}: {text}");
        }
        let text = self.text("get", "echo", &["-N"]);
        assert!(text.starts_with("GET / \n"), "{text}");
        let text = self.text("get", ".well-known/core?rt=temp*", &[]);
        assert!(text.starts_with("</number>;rt="), "{text}");
        assert_eq!(self.text("get", "number", &["-A", "50"]), "7");
        let errors = self.call("get", "number", &["-A", "60"]);
        assert!(errors.1.contains("4.06") || errors.0.is_empty(), "{errors:?}");
        let errors = self.call("get", "nobody", &[]).1;
        assert!(errors.contains("4.04"), "{errors}");
        // A client that asks to observe gets the plain answer, and then stops waiting by itself.
        let text = self.text("get", "number", &["-s", "1"]);
        assert_eq!(text, "7");
        let calls = self.server.fake.calls();
        let release = release_slow_later(&self.server.fake, calls);
        assert!(self.text("get", "slow", &[]).starts_with("slow "));
        release.join().unwrap();
        for size in ["1024", "256"] {
            self.blocks(size);
        }
    }

    fn blocks(&mut self, size: &str) {
        let (body, _) = self.call("get", &format!("big?n={TRANSFER}"), &["-b", size]);
        // `call` has removed the last byte if it was a line feed.
        let whole = pattern_bytes(TRANSFER);
        assert!(body == whole || [&body[..], b"\n"].concat() == whole, "{} bytes", body.len());
        let file = std::env::temp_dir().join(format!("mote-interop-{}", std::process::id()));
        std::fs::write(&file, &whole).unwrap();
        self.server.fake.take_saw();
        let (_, errors) = self.call("put", "echo", &["-b", size, "-f", file.to_str().unwrap()]);
        std::fs::remove_file(&file).unwrap();
        let saw = self.server.fake.take_saw();
        assert_eq!(saw.len(), 1, "the upload ran {} times: {errors}", saw.len());
        assert!(saw[0].body.as_ref().is_ok_and(|body| *body == whole), "the upload differs");
    }
}

#[test]
fn libcoap_client() {
    let Some(name) = libcoap() else { return skipped("libcoap's coap-client") };
    let server = Server::start();
    let mut client = Libcoap { name, server: &server, to: server.address, steps: 0 };
    client.all();
    let steps = client.steps;
    println!("{name}: {steps} tried / {steps} as expected");
}

#[test]
fn libcoap_client_through_a_bad_network() {
    let Some(name) = libcoap() else { return skipped("libcoap's coap-client") };
    let seed = seed();
    let server = Server::start();
    let relay = Relay::start(server.address, seed);
    let mut client = Libcoap { name, server: &server, to: relay.address, steps: 0 };
    client.blocks("1024");
    for _ in 0..5 {
        assert!(client.text("post", "echo", &["-e", "x"]).ends_with("\n\nx"));
    }
    let steps = client.steps;
    let dropped = relay.dropped.load(Ordering::SeqCst);
    let swapped = relay.swapped.load(Ordering::SeqCst);
    println!(
        "{name}: {steps} tried / {steps} as expected; seed {seed}, {dropped} datagrams dropped, {swapped} swapped"
    );
}

struct Aiocoap<'a> {
    python: PathBuf,
    server: &'a Server,
    to: SocketAddr,
    steps: u32,
}

impl Aiocoap<'_> {
    fn call(&mut self, method: &str, path: &str, more: serde_json::Value) -> serde_json::Value {
        self.steps += 1;
        let mut wanted = more;
        wanted["method"] = method.into();
        wanted["uri"] = format!("coap://{}/{path}", self.to).into();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/aiocoap_client.py");
        let output = run(Command::new(&self.python).arg(script).arg(wanted.to_string()));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn all(&mut self) {
        let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        for (method, name, code) in [
            ("GET", "GET", "2.05"),
            ("POST", "POST", "2.04"),
            ("PUT", "PUT", "2.04"),
            ("DELETE", "DELETE", "2.02"),
            ("FETCH", "FETCH", "2.05"),
            ("PATCH", "PATCH", "2.04"),
            ("iPATCH", "IPATCH", "2.04"),
        ] {
            let answer = self.call(method, "echo/a/b?x=1", json(r#"{"format": 50, "bytes": 5}"#));
            assert_eq!(answer["code"], code, "{answer}");
            assert_eq!(answer["format"], 50, "{answer}");
            let text = answer["text"].as_str().unwrap();
            assert!(text.starts_with(&format!("{name} /a/b x=1\n")), "{text}");
        }
        let answer = self.call("GET", "echo", json(r#"{"non": true}"#));
        assert_eq!(answer["code"], "2.05", "{answer}");
        let answer = self.call("GET", ".well-known/core?rt=temp*", json("{}"));
        assert_eq!(answer["format"], 40, "{answer}");
        assert!(answer["text"].as_str().unwrap().starts_with("</number>;rt="), "{answer}");
        let answer = self.call("GET", "number", json(r#"{"observe": true}"#));
        assert_eq!((&answer["text"], &answer["observe"]), (&json("\"7\""), &json("null")));
        let answer = self.call("GET", "number", json(r#"{"accept": 60}"#));
        assert_eq!(answer["code"], "4.06", "{answer}");
        let answer = self.call("GET", "nobody", json("{}"));
        assert_eq!(answer["code"], "4.04", "{answer}");
        let calls = self.server.fake.calls();
        let release = release_slow_later(&self.server.fake, calls);
        let answer = self.call("GET", "slow", json("{}"));
        assert!(answer["text"].as_str().unwrap().starts_with("slow "), "{answer}");
        release.join().unwrap();
        self.blocks();
    }

    fn blocks(&mut self) {
        let json = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap();
        let whole = pattern_bytes(TRANSFER);
        let answer = self.call("GET", &format!("big?n={TRANSFER}"), json("{}".into()));
        assert_eq!((&answer["code"], &answer["length"]), (&"2.05".into(), &TRANSFER.into()));
        for method in ["PUT", "POST", "FETCH"] {
            self.server.fake.take_saw();
            let answer = self.call(method, "echo", json(format!(r#"{{"bytes": {TRANSFER}}}"#)));
            assert!(answer["length"].as_u64().unwrap() > TRANSFER as u64, "{method}: {answer}");
            let saw = self.server.fake.take_saw();
            assert_eq!(saw.len(), 1, "{method} ran {} times", saw.len());
            assert!(saw[0].body.as_ref().is_ok_and(|body| *body == whole), "{method}: differs");
        }
    }
}

#[test]
fn aiocoap_client() {
    let Some(python) = venv_python() else { return skipped("aiocoap (.cache/test-venv)") };
    let server = Server::start();
    let mut client = Aiocoap { python, server: &server, to: server.address, steps: 0 };
    client.all();
    let steps = client.steps;
    println!("aiocoap: {steps} tried / {steps} as expected");
}

#[test]
fn aiocoap_client_through_a_bad_network() {
    let Some(python) = venv_python() else { return skipped("aiocoap (.cache/test-venv)") };
    let seed = seed() + 1;
    let server = Server::start();
    let relay = Relay::start(server.address, seed);
    let mut client = Aiocoap { python, server: &server, to: relay.address, steps: 0 };
    let bytes = serde_json::from_str(&format!(r#"{{"bytes": {TRANSFER}}}"#)).unwrap();
    let answer = client.call("PUT", "large", bytes);
    assert_eq!(answer["code"], "2.04", "{answer}");
    let saw = server.fake.take_saw();
    assert_eq!(saw.len(), 1);
    assert!(saw[0].body.as_ref().is_ok_and(|body| *body == pattern_bytes(TRANSFER)));
    let (dropped, swapped) =
        (relay.dropped.load(Ordering::SeqCst), relay.swapped.load(Ordering::SeqCst));
    println!(
        "aiocoap: 1 tried / 1 as expected; seed {seed}, {dropped} datagrams dropped, {swapped} swapped"
    );
}
