//! CoAP over DTLS with pre-shared keys: libcoap's clients against a real node.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use mote_tests::{Node, is_root, secure_coap_clients, signal, skip, wait_for};
use serde_json::Value;

/// Answers with the caller's name and the length of the body.
const TELLS: &str = "def handle(event, ctx):
    if event.path == '/large':
        return 'x' * 5000 + 'end'
    if event.path == '/notify':
        return str(ctx.notify('/state', event.text))
    return f'{event.method} {event.caller} {len(event.body)}'
";
const KEY: &str = "version = 1\n[access]\nmode = \"key\"\n";
const PUBLIC: &str = "version = 1\n[access]\nmode = \"public\"\n";
const LOCAL: &str = "version = 1\n[access]\nmode = \"local\"\n";

/// A client and a node.
struct Bench {
    client: &'static str,
    node: Node,
    at: SocketAddr,
}

/// An identity and its pre-shared key.
#[derive(Clone)]
struct Psk(String, String);

impl Bench {
    fn start(client: &'static str) -> Self {
        let node = Node::start_with(&["--coap-dtls", "127.0.0.1:0"]);
        let at = node.platform("coaps");
        for (name, manifest) in [("open", PUBLIC), ("shut", KEY), ("here", LOCAL)] {
            node.deploy_ok(name, &[("app.py", TELLS), ("mote.toml", manifest)]);
        }
        Self { client, node, at }
    }

    fn key(&self, args: &[&str]) -> Psk {
        let text = self.node.ok(&[&["key"][..], args, &["--psk"]].concat());
        let (identity, key) = text.trim().split_once(' ').expect("an identity and a key");
        Psk(identity.to_owned(), key.to_owned())
    }

    fn command(&self, psk: &Psk, path: &str, args: &[&str]) -> Command {
        let mut command = Command::new(self.client);
        command
            .args(["-B", "5", "-v", "0", "-u", &psk.0, "-k", &psk.1])
            .args(args)
            .arg(format!("coaps://{}{path}", self.at))
            .stdin(Stdio::null());
        command
    }

    /// Runs a request and returns its output: the answer, or nothing.
    fn call(&self, psk: &Psk, path: &str, args: &[&str]) -> String {
        let output = self.command(psk, path, args).output().expect("the client runs");
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).trim().to_owned()
    }

    /// The process `mote-dtls` of the node.
    fn program(&self) -> Option<u32> {
        let node = self.node.pid();
        let children = std::fs::read_dir(format!("/proc/{node}/task")).expect("its threads");
        children.flatten().find_map(|task| {
            let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            text.split_whitespace().find_map(|pid| {
                let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
                (name.trim() == "mote-dtls").then(|| pid.parse().ok())?
            })
        })
    }

    /// Fails unless the key opens the function for this caller.
    fn check(&self, psk: &Psk, caller: &str) {
        assert_eq!(self.call(psk, "/shut", &[]), format!("GET {caller} 0"), "{}", self.node.log());
    }

    /// Fails if the key gives a session. Within a session, even public functions could be called.
    fn check_refused(&self, psk: &Psk) {
        let text = self.call(psk, "/open", &["-B", "2"]);
        assert!(!text.contains("GET"), "{}: {text}", self.client);
    }
}

/// A client that observes a resource, and the output of that client.
struct Observer {
    child: Child,
    out: tempfile::NamedTempFile,
}

impl Observer {
    fn start(bench: &Bench, psk: &Psk, path: &str) -> Self {
        let out = tempfile::NamedTempFile::new().expect("a file");
        let mut plain = bench.command(psk, path, &["-w", "-s", "100", "-B", "100"]);
        let child = Command::new("stdbuf")
            .args(["-oL", "-eL"])
            .arg(plain.get_program())
            .args(plain.get_args())
            .stdin(Stdio::null())
            .stdout(out.reopen().expect("the file"))
            .stderr(out.reopen().expect("the file"))
            .spawn();
        let child = child.expect("stdbuf and the client run");
        plain.stdin(Stdio::null());
        Self { child, out }
    }

    fn expect(&self, line: &str) {
        wait_for(line, || {
            let text = std::fs::read_to_string(self.out.path()).unwrap_or_default();
            text.lines().any(|found| found == line).then_some(())
        });
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn observers(bench: &Bench) -> String {
    let metrics = Command::new("curl")
        .args(["-s", "--unix-socket"])
        .arg(bench.node.dir.path().join("s"))
        .arg("http://mote/metrics")
        .output()
        .expect("curl runs");
    let text = String::from_utf8_lossy(&metrics.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("mote_observers "));
    line.unwrap_or_default().to_owned()
}

/// Resident memory of a process, in KiB.
fn memory_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn libcoap_calls_functions_with_a_pre_shared_key() {
    if secure_coap_clients().is_empty() {
        return skip("dtls", "libcoap's clients with DTLS are not installed");
    }
    for client in secure_coap_clients() {
        let bench = Bench::start(client);
        let shop = bench.key(&["create", "shop"]);
        let other = bench.key(&["create", "other", "--function", "else*"]);
        bench.check(&shop, "shop");
        assert_eq!(bench.call(&shop, "/shut", &["-m", "post", "-e", "12345"]), "POST shop 5");
        assert_eq!(bench.call(&shop, "/open", &[]), "GET None 0");
        assert_eq!(bench.call(&other, "/open", &[]), "GET None 0");
        assert_eq!(bench.call(&shop, "/here", &[]), "GET None 0", "the client is on this machine");
        let refused = bench.call(&other, "/shut", &[]);
        assert!(refused.starts_with("4.03"), "{client}: {refused}");
        let large = format!("{}end", "x".repeat(5_000));
        assert_eq!(bench.call(&shop, "/shut/large", &[]), large);
        let body = bench.node.dir.path().join("body");
        std::fs::write(&body, "y".repeat(20_000)).expect("a file");
        let body = body.to_str().expect("UTF-8");
        assert_eq!(bench.call(&shop, "/shut", &["-m", "post", "-f", body]), "POST shop 20000");
        let small = bench.call(&shop, "/shut", &["-m", "post", "-b", "64", "-f", body]);
        assert_eq!(small, "POST shop 20000", "in blocks of 64 bytes");
        assert!(bench.call(&shop, "/.well-known/core", &[]).contains("</shut>"));
    }
}

#[test]
fn without_its_key_a_client_gets_no_session() {
    for client in secure_coap_clients() {
        let bench = Bench::start(client);
        let shop = bench.key(&["create", "shop"]);
        let wrong = Psk(shop.0.clone(), "0".repeat(32));
        for psk in [
            wrong,
            Psk("shop".to_owned(), shop.1.clone()),
            Psk("nobody.01234567".into(), shop.1.clone()),
        ] {
            bench.check_refused(&psk);
        }
        bench.check(&shop, "shop");
        let log = bench.node.log();
        assert!(!log.contains("ERROR"), "{log}");
    }
}

#[test]
fn a_key_that_is_replaced_or_revoked_ends_its_sessions() {
    for client in secure_coap_clients() {
        let bench = Bench::start(client);
        let shop = bench.key(&["create", "shop"]);
        bench.check(&shop, "shop");
        let new = bench.key(&["rotate", "shop", "--grace", "1h"]);
        bench.check(&shop, "shop");
        bench.check(&new, "shop");
        let observer = Observer::start(&bench, &new, "/open/state");
        observer.expect("GET None 0");
        assert_eq!(observers(&bench), "1");
        assert_eq!(bench.call(&shop, "/open/notify", &["-m", "post", "-e", "news"]), "1");
        observer.expect("news");
        bench.node.ok(&["key", "revoke", "shop", "--yes"]);
        wait_for("the session ends", || (observers(&bench) == "0").then_some(()));
        for psk in [&shop, &new] {
            bench.check_refused(psk);
        }
        let brief = bench.key(&["create", "brief", "--expires", "1h"]);
        bench.check(&brief, "brief");
    }
}

#[test]
fn clients_go_on_after_the_program_or_the_node_was_killed() {
    let Some(client) = secure_coap_clients().into_iter().next() else {
        return skip("dtls", "libcoap's clients with DTLS are not installed");
    };
    let mut bench = Bench::start(client);
    let shop = bench.key(&["create", "shop"]);
    bench.check(&shop, "shop");
    let observer = Observer::start(&bench, &shop, "/open/state");
    observer.expect("GET None 0");
    let first = bench.program().expect("the program runs");
    if is_root() {
        let status = std::fs::read_to_string(format!("/proc/{first}/status")).expect("it runs");
        let line = |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap_or("");
        assert!(line("Uid:").contains("999996"), "{status}");
        assert!(line("NoNewPrivs:").ends_with('1'), "{status}");
        assert!(line("CapEff:").ends_with("0000000000000000"), "{status}");
    }
    signal(first, "KILL");
    wait_for("another process", || bench.program().filter(|pid| *pid != first));
    bench.check(&shop, "shop");
    let log = bench.node.log();
    assert!(log.contains("[M1217] mote-dtls ended (signal: 9 (SIGKILL))"), "{log}");
    wait_for("the observation ends", || (observers(&bench) == "0").then_some(()));
    let second = bench.program().expect("the program runs");
    bench.node = bench.node.crash_and_restart();
    wait_for("the former process ends", || {
        (!Path::new(&format!("/proc/{second}")).exists()).then_some(())
    });
    bench.at = bench.node.platform("coaps");
    bench.check(&shop, "shop");
    let third = bench.program().expect("the program runs");
    assert!(bench.node.stop().success());
    wait_for("the process ends", || (!Path::new(&format!("/proc/{third}")).exists()).then_some(()));
}

#[test]
fn forged_first_messages_and_noise_leave_nothing() {
    let Some(client) = secure_coap_clients().into_iter().next() else {
        return skip("dtls", "libcoap's clients with DTLS are not installed");
    };
    let bench = Bench::start(client);
    let shop = bench.key(&["create", "shop"]);
    bench.check(&shop, "shop");
    let program = bench.program().expect("the program runs");
    let before = memory_kib(program);
    let sockets: Vec<UdpSocket> =
        (0..50).map(|_| UdpSocket::bind("127.0.0.1:0").expect("a socket")).collect();
    let mut hello = vec![22, 0xfe, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 54, 1, 0, 0, 42];
    hello.extend([0; 5]);
    hello.extend([0, 0, 42, 0xfe, 0xfd]);
    hello.extend([7; 32]);
    hello.extend([0, 0, 0, 2, 0xc0, 0xa8, 1, 0]);
    let mut answered = 0;
    let mut answer = [0; 256];
    for number in 0..10_000u32 {
        let socket = &sockets[number as usize % sockets.len()];
        hello[27..31].copy_from_slice(&number.to_be_bytes());
        socket.send_to(&hello, bench.at).expect("sent");
        // Every hundredth client waits for its answer, so that no answer is lost because the socket
        // is full.
        if number % 100 == 0 {
            socket.set_nonblocking(false).expect("a socket");
            let (length, _) = socket.recv_from(&mut answer).expect("a request for a cookie");
            assert_eq!((length, answer[0], answer[13]), (60, 22, 3));
            answered += 1;
        }
    }
    assert_eq!(answered, 100);
    bench.check(&shop, "shop");
    let grown = memory_kib(program).saturating_sub(before);
    assert!(grown <= 1_024, "the program has grown by {grown} KiB");
    // Sends datagrams that look like records, and others that do not.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for number in 0..20_000_usize {
        let mut noise: Vec<u8> = (0..random() % 200).map(|_| random() as u8).collect();
        match number % 4 {
            0 => {}
            1 => noise = hello.clone(),
            _ => noise.splice(0..0, [20 + (random() % 5) as u8, 0xfe, 0xfd, 0, 0]).for_each(drop),
        }
        let length = noise.len().max(1);
        noise.resize(length, 0);
        let place = random() as usize % length;
        noise[place] = random() as u8;
        sockets[number % sockets.len()].send_to(&noise, bench.at).expect("sent");
    }
    bench.check(&shop, "shop");
    assert_eq!(bench.program(), Some(program), "{}", bench.node.log());
}

#[test]
fn the_node_tells_of_the_front() {
    let bench = Bench::start("none");
    assert!(bench.node.announcement.contains(&format!("  coaps  coaps://{}\n", bench.at)));
    assert!(bench.program().is_some());
    let text = bench.node.ok(&["--output", "json", "key", "create", "shop", "--psk"]);
    let key: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(key["name"], "shop");
    assert!(key["identity"].as_str().is_some_and(|text| text.starts_with("shop.")));
    assert_eq!(key["psk"].as_str().map(str::len), Some(32));
    assert!(key["key"].is_null(), "whoever configures the device does not see the key");
    let open = Node::start_with(&["--lan", "--coap-dtls", "0.0.0.0:0"]);
    let doctor = open.doctor(&[]);
    assert!(doctor.contains("coaps"), "{doctor}");
    let without = Node::start();
    assert!(!without.announcement.contains("coaps"));
}
