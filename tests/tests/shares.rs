//! Connections and guesses from many addresses do not shut out proven callers, operators and
//! devices.
//!
//! All of loopback counts as one owner. Therefore the attackers and the callers are in another
//! network, where each has a separate address. The latencies are printed but not compared with a
//! limit, because they depend on the machine. A test checks that every request of a caller is
//! answered while the attack goes on.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use mote_tests::network::{Far, connect_from};
use mote_tests::{
    Answer, Connection, Node, OPEN_FILES, PATIENCE, free_port, is_root, p99, skip, wait_for,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const OPEN: &str = "version = 1\n[access]\nmode = \"public\"\n";
const KEY: &str = "version = 1\n[access]\nmode = \"key\"\n";
const CODE: &str = "def handle(event, ctx):\n    return 'ran'\n";
/// How many addresses take part in each attack.
const ADDRESSES: [usize; 5] = [2, 4, 60, 150, 1_000];
/// Number of requests of each caller during an attack.
const PROBES: usize = 12;
/// How many of the attackers' connections are renewed between two requests.
const ANEW: usize = 20;

/// Starts a node that other machines can reach, with these variables.
fn node(env: &[(&str, &str)], flags: &[&str]) -> Node {
    let node = Node::start_with_env(&[&["--lan"], flags].concat(), env);
    // The attackers need many open files.
    let limit = getrlimit(Resource::Nofile);
    let many = Rlimit { current: limit.maximum, ..limit };
    setrlimit(Resource::Nofile, many).expect("a process may use what it is given");
    node.deploy_ok("open", &[("app.py", CODE), ("mote.toml", OPEN)]);
    node.deploy_ok("locked", &[("app.py", CODE), ("mote.toml", KEY)]);
    node
}

fn network(test: &str) -> Option<(Far, Vec<Ipv4Addr>)> {
    let far = if is_root() { Far::new() } else { None };
    let found = far.and_then(|far| {
        let addresses = far.more_addresses(*ADDRESSES.last().expect("some"))?;
        Some((far, addresses))
    });
    if found.is_none() {
        skip(test, "needs root, and cannot make a network namespace");
    }
    found
}

/// The connections that attackers hold.
struct Attack<'a> {
    sources: &'a [Ipv4Addr],
    /// A proxy that opens all connections and names the client of each.
    via: Option<Ipv4Addr>,
    to: SocketAddr,
    /// What each connection sends, and whether it then waits for an answer.
    sends: &'a [u8],
    waits: bool,
    held: VecDeque<TcpStream>,
    begun: usize,
}

impl<'a> Attack<'a> {
    fn new(sources: &'a [Ipv4Addr], to: SocketAddr, sends: &'a [u8], waits: bool) -> Self {
        Self { sources, via: None, to, sends, waits, held: VecDeque::new(), begun: 0 }
    }

    fn begin(&mut self, count: usize) {
        for _ in 0..count {
            let source = self.sources[self.begun % self.sources.len()];
            self.begun += 1;
            let near = self.via.unwrap_or(source);
            let mut stream = connect_from(near, self.to).expect("the kernel accepts it");
            let mut sent = Vec::new();
            if self.via.is_some() {
                sent = format!("PROXY TCP4 {source} {} 1024 443\r\n", self.to.ip()).into_bytes();
            }
            sent.extend_from_slice(self.sends);
            // The node may already have closed this connection to make room for another.
            if stream.write_all(&sent).is_ok() && self.waits {
                let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
                let _ = stream.read(&mut [0; 1_024]);
            }
            self.held.push_back(stream);
        }
    }

    fn anew(&mut self, count: usize) {
        self.held.drain(..count.min(self.held.len()));
        self.begin(count);
    }
}

/// How long callers have waited, for the report.
#[derive(Default)]
struct Waited(Vec<Duration>);

impl Waited {
    fn call(&mut self, what: &str, ask: impl FnOnce() -> std::io::Result<Answer>) {
        let begun = Instant::now();
        let answer = ask().unwrap_or_else(|error| panic!("{what}: no answer: {error}"));
        self.0.push(begun.elapsed());
        assert_eq!(answer.status, 200, "{what}: {}", answer.text());
    }

    fn report(&mut self, what: &str) {
        self.0.sort();
        let most = self.0.last().copied().unwrap_or_default();
        println!("{what}: {} answers, p99 {:?}, most {most:?}", self.0.len(), p99(&self.0));
    }
}

/// Makes calls over a kept connection and over new connections.
fn probe(
    waited: &mut Waited,
    what: &str,
    at: SocketAddr,
    kept: &mut Connection,
    path: &str,
    fields: &[(&str, &str)],
) {
    waited.call(&format!("{what}, kept connection"), || kept.try_call("GET", path, fields, b""));
    waited.call(&format!("{what}, new connection"), || {
        Connection::try_open(at)?.try_call("GET", path, fields, b"")
    });
}

#[test]
fn connections_of_many_addresses_keep_nobody_out() {
    let test = "connections_of_many_addresses_keep_nobody_out";
    let Some((far, addresses)) = network(test) else { return };
    let admin = free_port();
    let node = node(&[(OPEN_FILES, "4096")], &["--admin", &format!("http://0.0.0.0:{admin}")]);
    let key = node.ok(&["key", "create", "web", "--function", "locked"]);
    let key = key.split_whitespace().find(|word| word.starts_with("mote_")).expect("a key");
    let bearer = format!("Bearer {}", node.token());
    let http = SocketAddr::from((far.near, node.http.port()));
    let admin = SocketAddr::from((far.near, admin));
    let caller = [("x-api-key", key)];
    let operator = [("authorization", bearer.as_str())];
    far.run(|| {
        let mut kept = Connection::open(http);
        let mut managing = Connection::open(admin);
        let mut first = Waited::default();
        probe(&mut first, "before", http, &mut kept, "/locked", &caller);
        probe(&mut first, "before", admin, &mut managing, "/v1/status", &operator);
        let idle = b"GET /open HTTP/1.1\r\nhost: a\r\n\r\n";
        for (kind, sends, waits) in [
            ("silent", &b""[..], false),
            ("half heads", b"GET /open HTTP/1.1\r\nhost: a\r\nx-", false),
            (
                "half bodies",
                b"POST /open HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nab",
                false,
            ),
            ("idle", idle, true),
        ] {
            for count in ADDRESSES.into_iter().filter(|count| !waits || *count == 60) {
                let what = format!("{kind} HTTP connections of {count} addresses");
                let mut attack = Attack::new(&addresses[..count], http, sends, waits);
                attack.begin(1_700);
                let mut waited = Waited::default();
                for _ in 0..PROBES {
                    attack.anew(ANEW);
                    probe(&mut waited, &what, http, &mut kept, "/locked", &caller);
                    // A caller without a key finds room too.
                    waited.call(&format!("{what}, no key"), || {
                        Connection::try_open(http)?.try_call("GET", "/open", &[], b"")
                    });
                    probe(&mut waited, &what, admin, &mut managing, "/v1/status", &operator);
                }
                waited.report(&what);
            }
        }
        for count in ADDRESSES {
            let what = format!("silent management connections of {count} addresses");
            let mut attack = Attack::new(&addresses[..count], admin, b"", false);
            attack.begin(600);
            let mut waited = Waited::default();
            for _ in 0..PROBES {
                attack.anew(ANEW);
                probe(&mut waited, &what, admin, &mut managing, "/v1/status", &operator);
                probe(&mut waited, &what, http, &mut kept, "/locked", &caller);
            }
            waited.report(&what);
        }
    });
}

#[test]
fn half_handshakes_of_many_addresses_keep_nobody_out() {
    let test = "half_handshakes_of_many_addresses_keep_nobody_out";
    if Command::new("curl").arg("--version").output().is_err() {
        return skip(test, "needs curl");
    }
    let Some((far, addresses)) = network(test) else { return };
    let proxy = format!("{}/32", far.far);
    let proxied = ["--trusted-proxies", &proxy, "--proxy-header", "proxy-protocol"];
    // The beginning of a TLS record with a handshake.
    let half = [22, 3, 1, 2, 0, 1];
    for flags in [&[][..], &proxied] {
        let port = free_port();
        let address = format!("0.0.0.0:{port}");
        let _node = node(&[], &[&["--https", &address], flags].concat());
        let to = SocketAddr::from((far.near, port));
        let via = if flags.is_empty() { None } else { Some(far.far) };
        let curl = || {
            let mut curl = Command::new("curl");
            curl.args(["-sk", "-m", "20", "-o", "/dev/null", "-w", "%{http_code} %{time_total}"]);
            curl.args(via.map(|_| "--haproxy-protocol"));
            let output = curl.arg(format!("https://{to}/open")).output().expect("curl");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        far.run(|| {
            for count in [4, 150, 1_000] {
                let behind = if via.is_some() { " behind a proxy" } else { "" };
                let what = format!("half handshakes of {count} addresses{behind}");
                let mut attack = Attack::new(&addresses[..count], to, &half, false);
                attack.via = via;
                attack.begin(1_500);
                let mut waited = Waited::default();
                for _ in 0..PROBES {
                    attack.anew(ANEW);
                    let said = curl();
                    let time = said.strip_prefix("200 ").and_then(|time| time.parse().ok());
                    let time = time.unwrap_or_else(|| panic!("{what}: {said}"));
                    waited.0.push(Duration::from_secs_f64(time));
                }
                waited.report(&what);
            }
        });
    }
}

/// A CONNECT of MQTT 3.1.1.
fn connect(id: &str, user: &str, password: &str) -> Vec<u8> {
    let mut rest = b"\0\x04MQTT\x04\xc2\0\x3c".to_vec();
    for field in [id, user, password] {
        rest.extend_from_slice(&(field.len() as u16).to_be_bytes());
        rest.extend_from_slice(field.as_bytes());
    }
    let mut packet = vec![0x10, rest.len() as u8];
    packet.extend_from_slice(&rest);
    packet
}

/// Whether a client is accepted. `None` if it has received no answer yet.
fn accepted(stream: &mut TcpStream, waits: bool) -> Option<bool> {
    stream.set_nonblocking(!waits).expect("a mode");
    let mut answer = [0; 4];
    match stream.read_exact(&mut answer) {
        Ok(()) => Some(answer[3] == 0),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && !waits => None,
        Err(_) => Some(false),
    }
}

#[test]
fn guesses_of_many_addresses_do_not_delay_devices() {
    let test = "guesses_of_many_addresses_do_not_delay_devices";
    let Some((far, addresses)) = network(test) else { return };
    let node = node(&[], &["--mqtt", "0.0.0.0:0"]);
    let mut lines = node.announcement.lines();
    let port = lines.find_map(|line| line.strip_prefix("  mqtt   mqtt://"));
    let port = port.and_then(|address| address.rsplit_once(':')?.1.parse().ok());
    let to = SocketAddr::from((far.near, port.expect("the announcement names the broker")));
    let add = |name: &str| {
        let added = node.mote_with_input(&["mqtt", "users", "add", name, "--read", "#"], b"right");
        assert!(added.status.success(), "{added:?}");
    };
    ["new2", "new4", "new60", "new150", "one"].into_iter().for_each(add);
    far.run(|| {
        let open = |source: Ipv4Addr, user: &str, password: &str| {
            let mut stream = connect_from(source, to).expect("a connection");
            stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a limit");
            let id = format!("c{source}{user}");
            stream.write_all(&connect(&id, user, password)).expect("sent");
            stream
        };
        let guess = |source: &Ipv4Addr| open(*source, "one", "wrong");
        // The broker reads its users again within a second.
        wait_for("the users", || {
            (accepted(&mut open(far.far, "one", "right"), true) == Some(true)).then_some(())
        });
        let mut refused = 0;
        for count in [2, 4, 60, 150] {
            // After this loop, each of these addresses has failed at least once. Only a few are
            // tried at a time, because the broker gives up on clients that have waited for 10 s.
            for some in addresses[refused..count].chunks(8) {
                let guesses: Vec<_> = some.iter().map(guess).collect();
                for mut guess in guesses {
                    assert_eq!(accepted(&mut guess, true), Some(false));
                }
            }
            refused = count;
            let sources = addresses[..count].iter();
            let mut waiting: Vec<_> = sources.clone().chain(sources).map(guess).collect();
            // A device whose password was right before, and another device at an unknown address.
            let user = format!("new{count}");
            let device = |source: Ipv4Addr, user: &str| {
                let begun = Instant::now();
                assert_eq!(accepted(&mut open(source, user, "right"), true), Some(true));
                begun.elapsed()
            };
            let known = device(far.far, "one");
            let new = device(addresses[500 + count], &user);
            let left =
                waiting.iter_mut().filter_map(|one| accepted(one, false).is_none().then_some(()));
            let left = left.count();
            assert!(count < 60 || left > count, "{left} of {} guesses waited longer", 2 * count);
            println!(
                "among guesses of {count} addresses ({left} left): a device that was there before \
                 {known:?}, a new one {new:?}"
            );
            drop(waiting);
        }
    });
    // Adding a user does not affect devices that are already connected.
    add("four");
    drop(node);
}

#[test]
fn connections_of_one_user_from_many_addresses_keep_no_device_out() {
    let test = "connections_of_one_user_from_many_addresses_keep_no_device_out";
    let Some((far, addresses)) = network(test) else { return };
    let node = node(&[], &["--mqtt", "0.0.0.0:0"]);
    let manifest = "version = 1\n[access]\nmode = \"public\"\n[allow]\nmqtt = [\"said\"]\n";
    let says = "def handle(event, ctx):\n    ctx.publish('said', 'x')\n    return 'ran'\n";
    node.deploy_ok("says", &[("app.py", says), ("mote.toml", manifest)]);
    let mut lines = node.announcement.lines();
    let port = lines.find_map(|line| line.strip_prefix("  mqtt   mqtt://"));
    let port = port.and_then(|address| address.rsplit_once(':')?.1.parse().ok());
    let port: u16 = port.expect("the announcement names the broker");
    for name in ["greedy", "device"] {
        let added = node.mote_with_input(&["mqtt", "users", "add", name], b"right");
        assert!(added.status.success(), "{added:?}");
    }
    let open = |source: Ipv4Addr, id: &str, user: &str| {
        let mut stream = connect_from(source, SocketAddr::from((far.near, port))).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a limit");
        stream.write_all(&connect(id, user, "right")).ok()?;
        (accepted(&mut stream, true) == Some(true)).then_some(stream)
    };
    let is_open = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).expect("a mode");
        let read = stream.read(&mut [0; 64]);
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    far.run(|| {
        // The broker may have read its users between the two additions.
        wait_for("the users", || {
            open(far.far, "first", "greedy").and(open(far.far, "second", "device"))
        });
        let mut device = open(addresses[700], "device", "device").expect("accepted");
        let mut held: Vec<_> = (0..1_200)
            .filter_map(|at| open(addresses[at % 5], &format!("g{at}"), "greedy"))
            .collect();
        for at in 0..PROBES {
            let source = addresses[701 + at];
            assert!(open(source, &format!("new{at}"), "device").is_some(), "{}", node.log());
            held.extend(open(addresses[at % 5], &format!("more{at}"), "greedy"));
        }
        assert!(is_open(&mut device), "it was ended: {}", node.log());
        // The broker accepts the newest connection before it closes the oldest one.
        wait_for("a user with at most 500 connections", || {
            let left = held.iter_mut().filter_map(|one| is_open(one).then_some(())).count();
            assert!(left > 0, "all connections of the user were closed");
            (left <= 500).then_some(())
        });
        wait_for("the name of the user in the log", || {
            let log = node.log();
            let named = log.lines().filter(|line| line.contains("greedy")).count();
            assert!(named < 5, "{log}");
            (named > 0).then_some(())
        });
        let removed = node.mote(&["mqtt", "users", "remove", "greedy"]);
        assert!(removed.status.success(), "{removed:?}");
        wait_for("the end of its connections", || {
            held.iter_mut().all(|one| !is_open(one)).then_some(())
        });
        assert!(is_open(&mut device), "another user was removed: {}", node.log());
    });
    let near = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut local = TcpStream::connect(near).expect("a connection");
    let anonymous = b"\x10\x11\0\x04MQTT\x04\x02\0\x3c\0\x05local";
    local.write_all(anonymous).expect("sent");
    assert_eq!(accepted(&mut local, true), Some(true));
    let answer = node.post("/says", b"");
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Counts the connections that are still open, without waiting.
fn open_ones(streams: &mut [TcpStream]) -> usize {
    let is_open = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).expect("a mode");
        let mut bytes = [0; 4_096];
        loop {
            match stream.read(&mut bytes) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
    };
    streams.iter_mut().filter_map(|one| is_open(one).then_some(())).count()
}

#[test]
fn followed_logs_of_a_viewer_leave_places_to_operators_and_end_with_its_token() {
    let port = free_port();
    let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let node = Node::start_with_env(&["--admin", &admin.to_string()], &[(OPEN_FILES, "4096")]);
    node.deploy_ok("open", &[("app.py", CODE), ("mote.toml", OPEN)]);
    let operator = format!("Bearer {}", node.token());
    let operator = [("authorization", operator.as_str())];
    let token = node.ok(&["token", "create", "watcher", "--role", "viewer"]);
    let token = token.split_whitespace().find(|word| word.starts_with("mote_")).expect("a token");
    let asks = format!(
        "GET /v1/functions/open/logs?follow=true HTTP/1.1\r\nhost: a\r\nauthorization: Bearer \
         {token}\r\n\r\n"
    );
    let mut followed = Vec::new();
    let mut refused = Vec::new();
    for _ in 0..300 {
        let mut stream = TcpStream::connect(admin).expect("the kernel accepts it");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let mut head = [0; 12];
        let sent = stream.write_all(asks.as_bytes()).and_then(|()| stream.read_exact(&mut head));
        sent.unwrap_or_else(|error| panic!("no answer: {error}: {}", node.log()));
        let of_share = head == *b"HTTP/1.1 200";
        if of_share { &mut followed } else { &mut refused }.push(stream);
    }
    // The limit is a quarter of 4,096 / 32 connections.
    assert_eq!(followed.len(), 32);
    for _ in 0..PROBES {
        let answer = Connection::try_open(admin)
            .and_then(|mut one| one.try_call("GET", "/v1/status", &operator, b""))
            .unwrap_or_else(|error| panic!("{error}: {}", node.log()));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(open_ones(&mut followed), 32, "none of them had to end");
    let at_limit = Connection::try_open(admin)
        .and_then(|mut one| {
            let bearer = format!("Bearer {token}");
            one.try_call("GET", "/v1/status", &[("authorization", &bearer)], b"")
        })
        .expect("an answer");
    assert_eq!((at_limit.status, at_limit.text().contains("M1409")), (429, true));
    node.ok(&["token", "revoke", "watcher", "--yes"]);
    wait_for("the end of what the token has begun", || {
        (open_ones(&mut followed) == 0).then_some(())
    });
}

#[test]
fn slow_calls_without_a_key_leave_places_at_another_platforms_api() {
    let test = "slow_calls_without_a_key_leave_places_at_another_platforms_api";
    let Some((far, addresses)) = network(test) else { return };
    let api = free_port();
    let node = node(&[(OPEN_FILES, "4096")], &["--openfaas", &format!("0.0.0.0:{api}")]);
    let slow = "import time\ndef handle(event, ctx):\n    time.sleep(60)\n    return 'ran'\n";
    node.deploy_ok("slow", &[("app.py", slow), ("mote.toml", OPEN)]);
    let key = node.ok(&["key", "create", "web", "--function", "locked"]);
    let key = key.split_whitespace().find(|word| word.starts_with("mote_")).expect("a key");
    let operator = format!("Bearer {}", node.token());
    let to = SocketAddr::from((far.near, api));
    far.run(|| {
        let sends = b"GET /function/slow HTTP/1.1\r\nhost: a\r\n\r\n";
        let mut attack = Attack::new(&addresses[..2], to, sends, false);
        attack.begin(300);
        let ask = |path: &str, fields: &[(&str, &str)]| {
            let answer = Connection::try_open(to)?.try_call("GET", path, fields, b"");
            answer.inspect(|answer| assert_eq!(answer.status, 200, "{}", answer.text()))
        };
        for _ in 0..PROBES {
            attack.anew(ANEW);
            let answers = [
                ask("/function/locked", &[("x-api-key", key)]),
                ask("/system/functions", &[("authorization", &operator)]),
            ];
            for answer in answers {
                answer.unwrap_or_else(|error| panic!("no answer: {error}: {}", node.log()));
            }
        }
    });
}
