//! Namespaces share the WebSockets, the observers, the kept messages and the builds of a node.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use mote_tests::mqtt::{self, Subscriber};
use mote_tests::namespaces::{HELLO, deploy, deploy_ok, start};
use mote_tests::network::Far;
use mote_tests::{Node, PATIENCE, is_root, repository, skip, wait_for};

/// Makes another machine, because each address has a separate share.
fn far(test: &str) -> Option<Far> {
    if !is_root() {
        skip(test, "needs root");
        return None;
    }
    let far = Far::new();
    if far.is_none() {
        skip(test, "cannot make a network namespace");
    }
    far
}

/// Changes how many files this process, and the node that it starts, may open.
fn limit_files(limit: &str) -> bool {
    let pid = format!("--pid={}", std::process::id());
    let status = Command::new("prlimit")
        .args([&pid, &format!("--nofile={limit}")])
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

fn files_max() -> Option<String> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let mut words = line.split_whitespace();
    Some(format!("{}:{}", words.next()?, words.next()?))
}

/// Opens a WebSocket of a function. If that fails, returns the answer to the request.
fn open(at: SocketAddr, function: &str) -> Result<TcpStream, String> {
    let mut stream = TcpStream::connect(at).expect("the front listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let request = format!(
        "GET /{function}/echo HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a head");
        head.extend(byte);
    }
    let head = String::from_utf8(head).expect("a head");
    if head.starts_with("HTTP/1.1 101 ") {
        return Ok(stream);
    }
    let length = head.to_ascii_lowercase();
    let length = length.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |text| text.parse().expect("a number"))];
    stream.read_exact(&mut body).expect("a body");
    Err(head + &String::from_utf8_lossy(&body))
}

#[test]
fn a_namespace_leaves_websockets_to_others() {
    let Some(far) = far("WebSockets of namespaces") else { return };
    let Some(files) = files_max() else { return skip("WebSockets of namespaces", "no limits") };
    // With this limit the front has 256 connections. 128 of them may be WebSockets, and 64 may be
    // of one address.
    if !limit_files("768:768") {
        return skip("WebSockets of namespaces", "no prlimit that works here");
    }
    let (node, _) = start(&["--lan", "--access", "public"]);
    // Without the right to raise the limit again, it stays low. The other tests here can run with
    // it.
    limit_files(&files);
    let code = std::fs::read_to_string(repository().join("tests/fixtures/websockets/raw.py"));
    let manifest = "version = 1\nruntime = \"server\"\ncommand = [\"python3\", \"raw.py\"]\n\
                    [limits]\nconcurrency = 200\n[scale]\nmax = 1\n";
    let server = [("raw.py", &*code.expect("a fixture")), ("mote.toml", manifest)];
    node.deploy_ok("one", &server);
    for (namespace, name) in [("plant", "one"), ("plant", "two"), ("orchard", "one")] {
        deploy_ok(&node, namespace, name, &server);
    }
    let near = node.http;
    let from_far = SocketAddr::from((far.near, near.port()));
    let opened = |function: &str| open(near, function).expect("a WebSocket from here");
    let _default = opened("one");
    let plant = ["one.plant", "two.plant"];
    let mut held: Vec<_> = (0..40).map(|at| opened(plant[at % 2])).collect();
    // There are 128 WebSockets for all namespaces, and the default one holds one, so plant may have
    // half.
    let refused = far.run(|| {
        loop {
            match open(from_far, plant[held.len() % 2]) {
                Ok(stream) => held.push(stream),
                Err(answer) => return answer,
            }
            assert!(held.len() < 100, "no limit");
        }
    });
    assert_eq!(held.len(), 64);
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("M1033"), "{refused}");
    assert!(refused.contains("of the namespace plant; close some"), "{refused}");
    let _others: Vec<_> = far.run(|| {
        (0..8).map(|_| open(from_far, "one.orchard").expect("it has less than its share")).collect()
    });
    let _more = opened("one");
    drop(held.split_off(32));
    wait_for("room for plant", || open(near, "one.plant").ok());
}

/// A CoAP client with one socket.
struct Observers {
    socket: UdpSocket,
    number: u16,
    echo: Vec<u8>,
}

impl Observers {
    fn new(at: SocketAddr) -> Self {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket.connect(at).expect("an address");
        Self { socket, number: 0, echo: Vec::new() }
    }

    /// Observes the root of a function. Returns whether the answer begins an observation.
    fn observe(&mut self, function: &str) -> bool {
        let (code, options) = self.get(function);
        // The first answer to another machine contains a value that the client must repeat (RFC
        // 9175).
        if let Some((_, echo)) = options.iter().find(|(number, _)| *number == 252) {
            assert_eq!(code, 0x81, "4.01");
            self.echo.clone_from(echo);
            return self.observe(function);
        }
        assert_eq!(code, 0x45, "2.05 for {function}");
        options.iter().any(|(number, _)| *number == 6)
    }

    /// Sends a GET with a fresh token. Returns the code of the answer and its options.
    fn get(&mut self, function: &str) -> (u8, Vec<(u16, Vec<u8>)>) {
        self.number += 1;
        let id = self.number.to_be_bytes();
        let mut message = vec![0x42, 1, id[0], id[1], id[0], id[1], 0x60];
        message.push(0x50 | u8::try_from(function.len()).expect("a short name"));
        message.extend(function.bytes());
        if !self.echo.is_empty() {
            // Uri-Path is 11, and Echo is 252.
            message.extend([0xd0 | u8::try_from(self.echo.len()).expect("short"), 252 - 11 - 13]);
            message.extend(&self.echo);
        }
        self.socket.send(&message).expect("sent");
        let mut answer = [0; 2_048];
        loop {
            let length = self.socket.recv(&mut answer).expect("an answer");
            let answer = &answer[..length];
            // The message is neither an empty acknowledgement nor a notification.
            if answer[1] != 0 && answer[4..6] == id {
                return (answer[1], options(&answer[6..]));
            }
        }
    }
}

fn options(mut bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut take = |count: usize| {
        let (taken, rest) = bytes.split_at(count.min(bytes.len()));
        bytes = rest;
        taken.to_vec()
    };
    let mut number = 0;
    let mut all = Vec::new();
    while let [first] = take(1)[..]
        && first != 0xff
    {
        let mut long = |part: u8| match part {
            13 => 13 + u16::from(take(1)[0]),
            14 => 269 + u16::from_be_bytes([take(1)[0], take(1)[0]]),
            short => u16::from(short),
        };
        number += long(first >> 4);
        let length = long(first & 15);
        all.push((number, take(length.into())));
    }
    all
}

#[test]
fn a_namespace_leaves_observers_to_others() {
    let Some(far) = far("observers of namespaces") else { return };
    let (node, _) = start(&["--lan", "--access", "public"]);
    node.deploy_ok("a", &[("app.py", HELLO)]);
    node.get("/a");
    for (namespace, name) in [("plant", "a"), ("plant", "b"), ("orchard", "a")] {
        deploy_ok(&node, namespace, name, &[("app.py", HELLO)]);
        node.get(&format!("/{name}.{namespace}"));
    }
    let mut near = Observers::new(node.coap);
    let from_far = SocketAddr::from((far.near, node.coap.port()));
    let mut distant = far.run(|| Observers::new(from_far));
    assert!(near.observe("a"));
    let plant = ["a.plant", "b.plant"];
    let mut count = 0;
    while count < 1_300 {
        assert!(near.observe(plant[count % 2]), "{count}");
        count += 1;
    }
    // There are 4,096 observers for all namespaces, and the default one has one, so plant may have
    // half.
    while count < 2_100 && distant.observe(plant[count % 2]) {
        count += 1;
    }
    assert_eq!(count, 2_048);
    for _ in 0..10 {
        assert!(distant.observe("a.orchard"), "it has less than its share");
    }
    assert!(near.observe("a"));
}

/// Publishes messages to be kept for the topics `BELOW/FROM` to `BELOW/TO`. Answers with how many
/// it could publish, and why the next one failed.
const KEEPER: &str = "
def handle(event, ctx):
    below, first, last = event.args['below'], int(event.args['from']), int(event.args['to'])
    for number in range(first, last):
        try:
            ctx.publish('%s/%d' % (below, number), '' if 'clear' in event.args else 'x',
                        qos=int(event.args.get('qos', 1)), retain='plain' not in event.args)
        except Exception as error:
            return '%d %s %s' % (number - first, error.code, error)
    return str(last - first)
";

fn broker_port(node: &Node) -> u16 {
    let line =
        node.announcement.lines().find_map(|line| line.strip_prefix("  mqtt   mqtt://127.0.0.1:"));
    line.and_then(|port| port.parse().ok()).expect("the announcement names the broker")
}

/// Publishes a message to be kept, as a device would, and returns the answer to the device.
fn publish(node: &Node, topic: &str) -> String {
    let port = broker_port(node).to_string();
    let output = Command::new("mosquitto_pub")
        .args(["-h", "127.0.0.1", "-p", &port, "-V", "5", "-q", "1", "-r", "-m", "x", "-t", topic])
        .stdin(Stdio::null())
        .output()
        .expect("mosquitto_pub");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).to_lowercase()
}

#[test]
fn a_namespace_leaves_kept_messages_to_others() {
    if !mqtt::is_there() {
        return skip("kept messages of namespaces", "mosquitto and its clients are not installed");
    }
    let (node, _) = start(&["--mqtt", "127.0.0.1:0"]);
    for namespace in ["plant", "orchard"] {
        let allow = format!(
            "version = 1\n[allow]\nmqtt = [\"{namespace}/#\"]\n[limits]\ntimeout = \"60s\"\n"
        );
        deploy_ok(&node, namespace, "keeper", &[("app.py", KEEPER), ("mote.toml", &allow)]);
    }
    let keep = |node: &Node, namespace: &str, args: &str| {
        node.get(&format!("/keeper.{namespace}?below={namespace}{args}")).text()
    };
    assert_eq!(publish(&node, "device/state"), "");
    // There are 1,000 kept messages for all namespaces, and the default one has one, so plant may
    // have half.
    let said = keep(&node, "plant", "&from=0&to=600");
    assert!(said.starts_with("500 full plant/500: the broker keeps as many messages"), "{said}");
    for args in ["&from=500&to=501&qos=0", "&from=500&to=501&qos=2"] {
        let said = keep(&node, "plant", args);
        assert!(said.starts_with("0 full plant/500: "), "{args}: {said}");
    }
    let device = publish(&node, "plant/device");
    assert!(device.contains("quota exceeded"), "{device}");
    // A kept message may be replaced, and a message that is not to be kept is passed on.
    assert_eq!(keep(&node, "plant", "&from=0&to=3&qos=2"), "3");
    assert_eq!(publish(&node, "plant/1"), "");
    assert_eq!(keep(&node, "plant", "&from=500&to=503&plain=1"), "3");
    assert_eq!(keep(&node, "orchard", "&from=0&to=50&qos=2"), "50");
    assert_eq!(publish(&node, "device/other"), "");
    let topics = ["plant/1", "plant/499", "plant/500", "plant/device", "orchard/#", "device/#"];
    let filters: Vec<_> = topics.iter().flat_map(|topic| ["-t", *topic]).collect();
    let kept = Subscriber::start(broker_port(&node), &[&filters[..], &["-q", "1"]].concat());
    let mut found = kept.wait(54);
    found.retain(|line| !line.starts_with("orchard/"));
    found.sort();
    assert_eq!(found, ["device/other x", "device/state x", "plant/1 x", "plant/499 x"]);
    // An empty message makes room for another message.
    assert_eq!(keep(&node, "plant", "&from=0&to=60&clear=1"), "60");
    assert_eq!(keep(&node, "plant", "&from=500&to=501"), "1");

    // After a restart, the shares also include what was kept before.
    let node = node.stop_and_restart();
    let said = keep(&node, "plant", "&from=600&to=700");
    assert!(said.contains(" full plant/6"), "{said}");
    assert_eq!(keep(&node, "orchard", "&from=50&to=60"), "10");
    // When a namespace is removed, its kept messages go too. A later namespace of the same name
    // must not receive them.
    let port = broker_port(&node).to_string();
    let kept = || {
        let output = Command::new("mosquitto_sub")
            .args(["-h", "127.0.0.1", "-p", &port, "-t", "plant/#", "-W", "1", "--retained-only"])
            .stdin(Stdio::null())
            .output()
            .expect("mosquitto_sub");
        let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        match output.status.code() {
            // The command ended at its own time limit.
            Some(27) => Some(lines.count()),
            // The command ends early when a message is published meanwhile, for example one that
            // removes another message.
            Some(0) => None,
            _ => panic!("mosquitto_sub: {}", String::from_utf8_lossy(&output.stderr)),
        }
    };
    let before = wait_for("the messages that are kept for plant", kept);
    assert!(before > 100, "{before}");
    node.ok(&["namespace", "delete", "plant", "--force", "--yes"]);
    node.ok(&["namespace", "create", "plant"]);
    wait_for("the broker to keep nothing for plant", || (kept() == Some(0)).then_some(()));
    assert_eq!(keep(&node, "orchard", "&from=60&to=70"), "10");
}

/// Returns a function in Go. Each text makes a different program.
fn go(text: &str) -> String {
    format!(
        "package hello\n\nimport (\n\t\"io\"\n\t\"net/http\"\n)\n\nfunc Handle(w http.ResponseWriter, r \
         *http.Request) {{\n\tio.WriteString(w, {text:?})\n}}\n"
    )
}

#[test]
fn builds_of_namespaces_take_turns() {
    let found = Command::new("go").arg("version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        return skip("builds of namespaces", "Go is not installed");
    }
    let (node, _) = start(&[]);
    let names = ["one", "two", "three", "four"];
    let order = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for name in names {
            let node = &node;
            let order = &order;
            scope.spawn(move || {
                node.deploy_ok(name, &[("function.go", &go(name))]);
                order.lock().expect("a list").push(name);
            });
        }
        // The first build of a node creates the cache and compiles the standard library into it.
        // That takes much longer than the other builds need to arrive.
        let compiled = node.dir.path().join("data/go-cache/build");
        wait_for("the first build", || compiled.exists().then_some(()));
        let output = deploy(&node, "plant", "late", &[("function.go", &go("late"))]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        order.lock().expect("a list").push("late.plant");
    });
    let order = order.into_inner().expect("a list");
    let at = order.iter().position(|name| *name == "late.plant").expect("it was deployed");
    assert!(at <= 2, "it waited for builds of the default namespace: {order:?}");
    assert_eq!(node.get("/late.plant").text(), "late");
    assert_eq!(node.get("/four").text(), "four");
}
