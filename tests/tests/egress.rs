//! The destinations that functions may reach, and how their connections and datagrams behave:
//! closing, resets, back-pressure, limits, large amounts of data.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use mote_tests::{Node, free_port};

/// The destination in most tests. It is the same inside and outside the sandbox.
const DOOR: &str = "127.0.0.1";

/// A server outside the sandbox that accepts this number of connections, each on a thread.
fn outside<T: Send + 'static>(
    connections: usize,
    serve: impl Fn(TcpStream) -> T + Send + Sync + 'static,
) -> (u16, JoinHandle<Vec<T>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = Arc::new(serve);
    let all = std::thread::spawn(move || {
        let threads: Vec<_> = listener
            .incoming()
            .take(connections)
            .map(|stream| {
                let serve = serve.clone();
                std::thread::spawn(move || serve(stream.unwrap()))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    (port, all)
}

/// A server outside the sandbox for one connection. It waits for a signal before it uses the
/// connection.
fn reluctant<T: Send + 'static>(
    serve: impl Fn(TcpStream) -> T + Send + Sync + 'static,
) -> (u16, mpsc::Sender<()>, JoinHandle<Vec<T>>) {
    let (go, told) = mpsc::channel();
    let told = Mutex::new(told);
    let (port, served) = outside(1, move |stream| {
        told.lock().unwrap().recv().unwrap();
        serve(stream)
    });
    (port, go, served)
}

/// Deploys a function with one permitted destination. `connect()` in its code connects to that
/// destination.
fn deploy(node: &Node, name: &str, port: u16, body: &str) {
    let head = format!(
        "import errno, os, socket\ndef connect():\n    return socket.create_connection(('{DOOR}', {port}), 60)\n"
    );
    // The timeout is long, because the tests measure what passes through and not how long it takes.
    let manifest =
        format!("version = 1\n[limits]\ntimeout = \"60s\"\n[allow]\nnet = [\"{DOOR}:{port}\"]\n");
    node.deploy_ok(name, &[("app.py", &(head + body)), ("mote.toml", &manifest)]);
}

/// The highest memory use of the node so far, in bytes.
fn most_memory(node: &Node) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[test]
fn egress_is_closed_unless_the_manifest_opens_it() {
    let node = Node::start();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(1) {
            use std::io::Write;
            let _ = stream.unwrap().write_all(b"from outside");
        }
    });
    let code = format!(
        "import socket\ndef handle(event, ctx):\n    try:\n        s = socket.create_connection(('localhost.test', {port}) if event.text == 'name' else ('127.0.0.1', {port}), 5)\n        return s.recv(100)\n    except OSError as e:\n        return 'refused %s' % e\n"
    );
    node.deploy_ok("closed", &[("app.py", &code)]);
    assert!(node.post("/closed", b"").text().starts_with("refused"));
    let direct = "import socket\ndef handle(event, ctx):\n    s = socket.create_connection(('127.0.0.1.nothing', 1), 1)\n";
    node.deploy_ok("names", &[("app.py", direct)]);
    assert_eq!(node.get("/names").status, 500, "no resolver inside");
    let manifest = format!("version = 1\n[allow]\nnet = [\"localhost:{port}\"]\n");
    let code = format!(
        "import socket\ndef handle(event, ctx):\n    return socket.create_connection(('localhost', {port}), 60).recv(100)\n"
    );
    node.deploy_ok("open", &[("app.py", &code), ("mote.toml", &manifest)]);
    assert_eq!(node.get("/open").text(), "from outside");
}

#[test]
fn one_side_may_end_before_the_other_answers() {
    let (port, served) = outside(1, |mut stream| {
        let mut text = Vec::new();
        stream.read_to_end(&mut text).unwrap();
        write!(stream, "{} bytes", text.len()).unwrap();
    });
    let node = Node::start();
    let code = "def handle(event, ctx):
    with connect() as s:
        s.sendall(b'x' * 300_000)
        s.shutdown(socket.SHUT_WR)
        return s.makefile('rb').read()
";
    deploy(&node, "f", port, code);
    assert_eq!(node.get("/f").text(), "300000 bytes");
    served.join().unwrap();
    assert_eq!(bytes_of(&node, "f", &format!("{DOOR}:{port}")), [300_000, 12]);
}

/// How many bytes a function sent to a destination and received from it, according to the metrics.
fn bytes_of(node: &Node, function: &str, destination: &str) -> [u64; 2] {
    let (_, text) = node.manage("GET", "/metrics", "");
    ["sent", "received"].map(|direction| {
        let start = format!(
            "mote_egress_bytes_total{{function=\"{function}\",destination=\"{destination}\",\
             direction=\"{direction}\"}} "
        );
        let count = text.lines().find_map(|line| line.strip_prefix(&start));
        count.and_then(|count| count.parse().ok()).unwrap_or_default()
    })
}

#[test]
fn a_reset_does_not_look_like_an_end() {
    // A process that closes a socket with unread bytes resets the connection.
    let (port, served) = outside(2, |mut stream| {
        let mut first = [0];
        stream.read_exact(&mut first).unwrap();
        if first == *b"a" {
            stream.write_all(b"begun").unwrap();
            return None;
        }
        stream.write_all(b"unread").unwrap();
        let error = stream.read(&mut first).unwrap_err();
        Some(error.kind())
    });
    let node = Node::start();
    let code = "def handle(event, ctx):
    s = connect()
    if event.text == 'inside':
        s.sendall(b'b')
        s.recv(6, socket.MSG_PEEK)
        s.close()
        return ''
    s.sendall(b'ab')
    text = b''
    try:
        while piece := s.recv(100):
            text += piece
        return text + b' and an end'
    except ConnectionResetError:
        return text + b' and a reset'
";
    deploy(&node, "f", port, code);
    assert!(node.post("/f", b"outside").text().ends_with(" and a reset"));
    assert_eq!(node.post("/f", b"inside").status, 200);
    let served = served.join().unwrap();
    assert!(served.contains(&Some(ErrorKind::ConnectionReset)), "{served:?}");
}

#[test]
fn a_destination_that_is_not_there_resets() {
    let port = free_port();
    let node = Node::start();
    let code = "def handle(event, ctx):
    try:
        return connect().recv(1) + b'an end'
    except ConnectionResetError:
        return 'a reset'
";
    deploy(&node, "f", port, code);
    assert_eq!(node.get("/f").text(), "a reset");
    let logs = node.ok(&["logs", "f"]);
    assert!(logs.contains(&format!("egress 127.0.0.1:{port}")), "{logs}");
}

#[test]
fn who_is_not_read_stops_sending() {
    let (port, go, served) = reluctant(|mut stream| {
        let mut piece = vec![0; 1 << 16];
        let mut total = 0;
        loop {
            match stream.read(&mut piece).unwrap() {
                0 => return total,
                count => total += count,
            }
        }
    });
    let node = Node::start();
    let code = "import select
s, sent = None, 0
def handle(event, ctx):
    global s, sent
    if event.text == 'end':
        s.close()
        return str(sent)
    s = connect()
    s.setblocking(False)
    # Writable at once, or not for a second: nobody takes anything any more.
    while select.select([], [s], [], 1)[1]:
        sent += s.send(bytes(1 << 16))
    return str(sent)
";
    deploy(&node, "f", port, code);
    let before = most_memory(&node);
    let held: usize = node.get("/f").text().parse().unwrap();
    assert!(held < 64 << 20, "{held} bytes went out and nobody read");
    let grown = most_memory(&node) - before;
    assert!(grown < 2 << 20, "{held} bytes held took {grown} bytes of the node");
    go.send(()).unwrap();
    let sent: usize = node.post("/f", b"end").text().parse().unwrap();
    assert_eq!(served.join().unwrap(), [sent]);
}

#[test]
fn a_gigabyte_takes_no_memory() {
    const GIGABYTE: usize = 1 << 30;
    let (port, served) = outside(1, |mut stream| {
        let mut piece = vec![0; 1 << 18];
        let mut total = 0;
        while total < GIGABYTE {
            total += stream.read(&mut piece).unwrap();
        }
        for _ in 0..GIGABYTE / piece.len() {
            stream.write_all(&piece).unwrap();
        }
        total
    });
    let node = Node::start();
    let code = "def handle(event, ctx):
    piece, total = bytearray(1 << 18), 0
    with connect() as s:
        for _ in range((1 << 30) // len(piece)):
            s.sendall(piece)
        while count := s.recv_into(piece):
            total += count
    return str(total)
";
    deploy(&node, "f", port, code);
    let before = most_memory(&node);
    assert_eq!(node.get("/f").text(), GIGABYTE.to_string());
    assert_eq!(served.join().unwrap(), [GIGABYTE]);
    let grown = most_memory(&node) - before;
    assert!(grown < 2 << 20, "the node took {grown} bytes more");
}

#[test]
fn last_words_of_an_instance_arrive() {
    let (port, go, served) = reluctant(|mut stream| {
        let mut text = Vec::new();
        stream.read_to_end(&mut text).map(|_| text.len())
    });
    let node = Node::start();
    let code = "def handle(event, ctx):
    s = connect()
    s.sendall(bytes(1_000_000))
    os._exit(0)
";
    deploy(&node, "f", port, code);
    assert_eq!(node.get("/f").status, 502);
    go.send(()).unwrap();
    let served = served.join().unwrap();
    assert!(matches!(served[..], [Ok(1_000_000)]), "{served:?}");
}

#[test]
fn a_destination_takes_64_connections_of_an_instance() {
    let open = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let now = open.clone();
    let peak = most.clone();
    let (port, served) = outside(70, move |mut stream| {
        peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let mut byte = [0];
        while stream.read(&mut byte).unwrap() > 0 {
            stream.write_all(&byte).unwrap();
        }
        now.fetch_sub(1, Ordering::SeqCst);
    });
    let node = Node::start();
    let code = "def handle(event, ctx):
    every = [connect() for _ in range(70)]
    for s in every:
        s.sendall(b'x')
    # The first 64 are open together before any is closed; the others wait for places.
    for s in every[:64]:
        s.recv(1)
    for s in every[:64]:
        s.close()
    for s in every[64:]:
        s.recv(1)
        s.close()
    return 'all'
";
    deploy(&node, "f", port, code);
    assert_eq!(node.get("/f").text(), "all");
    served.join().unwrap();
    assert_eq!(most.load(Ordering::SeqCst), 64);
}

#[test]
fn connections_of_one_function_leave_descriptors_for_others() {
    let node = Node::start();
    let limit = std::process::Command::new("prlimit")
        .args([format!("--pid={}", node.pid()), "--nofile=512:512".to_owned()])
        .status();
    if !limit.is_ok_and(|status| status.success()) {
        return mote_tests::skip("descriptors of a node", "no prlimit that works here");
    }
    let listeners: Vec<_> = (0..8).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<_> = listeners.iter().map(|l| l.local_addr().unwrap().port()).collect();
    let open = Arc::new(AtomicUsize::new(0));
    for listener in listeners {
        let open = open.clone();
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for stream in listener.incoming() {
                open.fetch_add(1, Ordering::SeqCst);
                held.push(stream);
            }
        });
    }
    let code = format!(
        "import socket, time\nHELD = []\ndef handle(event, ctx):\n    for port in {ports:?}:\n        for _ in range(60):\n            s = socket.socket()\n            s.setblocking(False)\n            s.connect_ex(('{DOOR}', port))\n            HELD.append(s)\n    return str(len(HELD))\n"
    );
    let net: Vec<_> = ports.iter().map(|port| format!("\"127.0.0.1:{port}\"")).collect();
    let manifest = format!("version = 1\n[allow]\nnet = [{}]\n", net.join(", "));
    node.deploy_ok("hog", &[("app.py", &code), ("mote.toml", &manifest)]);
    node.deploy_ok("other", &[("app.py", "def handle(event, ctx):\n    return 'ok'\n")]);
    assert_eq!(node.get("/hog").text(), "480");
    // The limit is the share of one destination. If the node may open only few files, the limit is
    // an eighth of them.
    let has_said =
        || node.log_lines("hog").iter().any(|line| line.message.contains("too many connections"));
    mote_tests::wait_for("all that it can get", || {
        (has_said() || open.load(Ordering::SeqCst) > 200).then_some(())
    });
    for _ in 0..20 {
        // One connection for each function, and one start for the first function.
        assert_eq!(node.get("/other").text(), "ok");
    }
    let open = open.load(Ordering::SeqCst);
    assert!(open <= 64, "{open} connections of one function");
}

/// Returns an address of this machine other than loopback, if there is one.
fn own_address() -> Option<std::net::Ipv4Addr> {
    // Connecting a datagram socket sends nothing. It only chooses the source address.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    match socket.local_addr().ok()?.ip() {
        std::net::IpAddr::V4(v4) if !v4.is_loopback() => Some(v4),
        _ => None,
    }
}

#[test]
fn any_host_is_reached_where_the_manifest_says_so_and_the_node_never() {
    let Some(own) = own_address() else {
        return mote_tests::skip("any host", "this machine has no address but loopback");
    };
    let node = Node::start();
    let listener = TcpListener::bind((own, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(b"from outside");
        }
    });
    let code = "import socket, struct\n\
        def ask(name):\n    \
            question = b''.join(bytes([len(p)]) + p.encode() for p in name.split('.')) + b'\\0'\n    \
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:\n        \
                s.settimeout(10)\n        \
                s.sendto(struct.pack('>6H', 7, 256, 1, 0, 0, 0) + question + b'\\0\\1\\0\\1', ('127.77.0.1', 53))\n        \
                answer = s.recv(512)\n    \
            return answer[3] & 15, [socket.inet_ntoa(answer[-4:])] if answer[7] else None\n\
        def handle(event, ctx):\n    \
            what, _, rest = event.text.partition(' ')\n    \
            try:\n        \
                if what == 'ask':\n            \
                    return repr(ask(rest))\n        \
                if what == 'name':\n            \
                    return socket.gethostbyname(rest)\n        \
                host, _, port = rest.rpartition(':')\n        \
                with socket.create_connection((host, int(port)), 10) as s:\n            \
                    return s.recv(100) or 'closed'\n    \
            except OSError as error:\n        \
                return 'refused ' + str(error)\n";
    let deploy = |name: &str, net: &str| {
        let manifest = format!("version = 1\n[allow]\nnet = [{net}]\n");
        let deployed = node.deploy(name, &[("app.py", code), ("mote.toml", &manifest)]);
        let said = String::from_utf8_lossy(&deployed.stderr).into_owned();
        assert!(deployed.status.success(), "{said}");
        assert!(said.contains("may reach any machine"), "{said}");
    };
    deploy("port", &format!("\"*:{port}\""));
    let call = |name: &str, text: String| node.post(&format!("/{name}"), text.as_bytes()).text();
    assert_eq!(call("port", format!("to {own}:{port}")), "from outside");
    assert_eq!(call("port", format!("ask {own}")), format!("(0, ['{own}'])"));
    // The function can reach neither the node nor the node's loopback interface, by address or by
    // name.
    let by_loopback = call("port", format!("to 127.0.0.1:{port}"));
    assert!(by_loopback.starts_with("refused"), "{by_loopback}");
    assert_eq!(call("port", "ask localhost".to_owned()), "(0, None)");
    let unknown = call("port", "name no-such-name.invalid".to_owned());
    assert!(unknown.starts_with("refused"), "{unknown}");
    // Other ports are closed.
    let other = call("port", format!("to {own}:{}", if port == 81 { 82 } else { 81 }));
    assert!(other.contains("Connection refused"), "{other}");

    // All usual ports are open, and also one destination, by its name.
    let local = TcpListener::bind("127.0.0.1:0").unwrap();
    let local_port = local.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in local.incoming() {
            let _ = stream.unwrap().write_all(b"from this machine");
        }
    });
    deploy("usual", &format!("\"*\", \"127.0.0.1:{local_port}\""));
    let named = call("usual", format!("to {DOOR}:{local_port}"));
    assert_eq!(named, "from this machine");
    assert_eq!(call("usual", format!("ask {own}")), format!("(0, ['{own}'])"));
}

#[test]
fn closed_networks_are_reached_only_by_name_and_not_by_any_host() {
    let Some(own) = own_address() else {
        return mote_tests::skip("closed networks", "this machine has no address but loopback");
    };
    let node = Node::start_with(&[&format!("--closed-networks=private,{own}")]);
    let listener = TcpListener::bind((own, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(b"from outside");
        }
    });
    let code = "import socket\n\
        def handle(event, ctx):\n    \
            host, _, port = event.text.rpartition(':')\n    \
            try:\n        \
                with socket.create_connection((host, int(port)), 10) as s:\n            \
                    return s.recv(100) or 'closed'\n    \
            except OSError as error:\n        \
                return 'refused ' + str(error)\n";
    let ask = |name: &str, net: &str, to: &str| {
        let manifest = format!("version = 1\n[allow]\nnet = [\"{net}\"]\n");
        node.deploy_ok(name, &[("app.py", code), ("mote.toml", &manifest)]);
        node.post(&format!("/{name}"), format!("{to}:{port}").as_bytes()).text()
    };
    let by_any_host = ask("any", &format!("*:{port}"), &own.to_string());
    assert!(by_any_host.starts_with("refused"), "{by_any_host}");
    mote_tests::wait_for("the reason in the log", || {
        node.ok(&["logs", "any"]).contains("in a network that * does not open").then_some(())
    });
    assert_eq!(ask("named", &format!("{own}:{port}"), &own.to_string()), "from outside");
}

#[test]
fn a_failed_look_up_is_logged_with_the_cure() {
    let node = Node::start();
    let code = "import socket\ndef handle(event, ctx):\n    socket.gethostbyname('api.example')\n";
    let deployed = node.deploy("f", &[("app.py", code)]);
    let said = String::from_utf8_lossy(&deployed.stderr).into_owned();
    assert!(said.contains("appears to call other machines"), "{said}");
    assert_eq!(node.get("/f").status, 500);
    mote_tests::wait_for("the cure in the log", || {
        node.ok(&["logs", "f"]).contains("add this one to [allow] net").then_some(())
    });
}

/// A function that sends text to an address, given as `HOST PORT TEXT`, over UDP or TCP, and
/// returns the answer.
const CALLER: &str = "import socket
def handle(event, ctx):
    kind, host, port, text = event.text.split(' ')
    family = socket.AF_INET6 if ':' in host else socket.AF_INET
    kind = socket.SOCK_DGRAM if kind == 'udp' else socket.SOCK_STREAM
    try:
        with socket.socket(family, kind) as s:
            s.settimeout(20)
            s.connect((host, int(port)))
            s.sendall(text.encode())
            return s.recv(2000)
    except OSError as error:
        return 'failed: %s' % error
";

fn deploy_caller(node: &Node, name: &str, net: &[String]) {
    let net: Vec<_> = net.iter().map(|to| format!("\"{to}\"")).collect();
    let manifest =
        format!("version = 1\n[limits]\ntimeout = \"60s\"\n[allow]\nnet = [{}]\n", net.join(", "));
    node.deploy_ok(name, &[("app.py", CALLER), ("mote.toml", &manifest)]);
}

fn call(node: &Node, name: &str, text: &str) -> String {
    node.post(&format!("/{name}"), text.as_bytes()).text()
}

/// Starts servers for connections and for datagrams at an address. Both answer with what they
/// received, in brackets. Returns their ports.
fn echo(address: impl Into<std::net::IpAddr>) -> (u16, u16) {
    let address = address.into();
    let listener = TcpListener::bind((address, 0)).unwrap();
    let tcp = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut piece = [0; 2000];
            let length = stream.read(&mut piece).unwrap_or(0);
            let _ = stream.write_all(&[b"[", &piece[..length], b"]"].concat());
        }
    });
    let socket = UdpSocket::bind((address, 0)).unwrap();
    let udp = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut piece = [0; 70_000];
        while let Ok((length, from)) = socket.recv_from(&mut piece) {
            let _ = socket.send_to(&[b"[", &piece[..length], b"]"].concat(), from);
        }
    });
    (tcp, udp)
}

#[test]
fn an_address_in_the_manifest_is_reached_as_code_expects() {
    let node = Node::start();
    let mut hosts = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    hosts.extend(own_address().map(|own| own.to_string()));
    if TcpListener::bind("[::1]:0").is_ok() {
        hosts.push("::1".to_owned());
    }
    for (at, host) in hosts.iter().enumerate() {
        let address = if host == "localhost" { "127.0.0.1" } else { host };
        let (tcp, udp) = echo(address.parse::<std::net::IpAddr>().unwrap());
        let shown = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let name = format!("f{at}");
        deploy_caller(&node, &name, &[format!("{shown}:{tcp}"), format!("udp://{shown}:{udp}")]);
        assert_eq!(call(&node, &name, &format!("tcp {host} {tcp} one")), "[one]", "{host}");
        assert_eq!(call(&node, &name, &format!("udp {host} {udp} two")), "[two]", "{host}");
        assert_eq!(bytes_of(&node, &name, &format!("{shown}:{tcp}")), [3, 5], "{host}");
        assert_eq!(bytes_of(&node, &name, &format!("udp://{shown}:{udp}")), [3, 5], "{host}");
        // The other protocol is closed, and so is every other port.
        let closed = call(&node, &name, &format!("tcp {host} {udp} x"));
        assert!(closed.starts_with("failed"), "{closed}");
        let closed = call(&node, &name, &format!("udp {host} {tcp} x"));
        assert!(closed.starts_with("failed"), "{closed}");
    }
}

#[test]
fn datagrams_find_the_socket_that_asked() {
    let (_, port) = echo(std::net::Ipv4Addr::LOCALHOST);
    let node = Node::start();
    let code = "import socket
def handle(event, ctx):
    size = int(event.text)
    every = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(100)]
    for at, s in enumerate(every):
        s.settimeout(20)
        s.connect(('127.0.0.1', PORT))
        # More sockets than a destination has places; the oldest idle one gives way.
        s.send(b'%03d' % at * size)
        assert s.recv(70_000) == b'[' + b'%03d' % at * size + b']', at
    # The others are still there.
    for at in range(60, 100):
        every[at].send(b'again %d' % at)
    for at in range(60, 100):
        assert every[at].recv(100) == b'[again %d]' % at
    return 'all'
";
    let manifest = format!("version = 1\n[allow]\nnet = [\"udp://localhost:{port}\"]\n");
    let code = code.replace("PORT", &port.to_string());
    node.deploy_ok("f", &[("app.py", &code), ("mote.toml", &manifest)]);
    assert_eq!(node.post("/f", b"1").text(), "all");
    // The longest datagrams for which IPv4 has room, including the brackets of the answer.
    assert_eq!(node.post("/f", b"21835").text(), "all");
}

#[test]
fn datagrams_that_an_instance_sent_before_its_end_arrive() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    let node = Node::start();
    let code = format!(
        "import os, socket\ndef handle(event, ctx):\n    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n    for at in range(5):\n        s.sendto(b'last %d' % at, ('localhost', {port}))\n    os._exit(0)\n"
    );
    let manifest = format!("version = 1\n[allow]\nnet = [\"udp://localhost:{port}\"]\n");
    node.deploy_ok("f", &[("app.py", &code), ("mote.toml", &manifest)]);
    assert_eq!(node.get("/f").status, 502);
    let mut piece = [0; 100];
    for at in 0..5 {
        let length = socket.recv(&mut piece).unwrap();
        assert_eq!(piece[..length], *format!("last {at}").as_bytes());
    }
}

/// Returns a name other than `localhost` that this machine's hosts file maps to loopback.
fn name_of_loopback() -> Option<String> {
    let hosts = std::fs::read_to_string("/etc/hosts").ok()?;
    let lines = hosts.lines().filter(|line| line.starts_with("127."));
    let mut names = lines.flat_map(|line| line.split_whitespace().skip(1));
    names.find(|name| !name.starts_with("localhost")).map(str::to_owned)
}

#[test]
fn destinations_that_are_refused_are_in_the_log_over_both_protocols() {
    let node = Node::start();
    let (tcp, udp) = echo(std::net::Ipv4Addr::LOCALHOST);
    let log_says = |name: &str, texts: [String; 2]| {
        mote_tests::wait_for("both reasons in the log", || {
            let log = node.ok(&["logs", name]);
            texts.iter().all(|text| log.contains(text)).then_some(())
        });
    };
    // An answer would arrive within this time. A refused datagram gets none.
    let ask = |name: &str, host: &str| {
        let quick = CALLER.replace("settimeout(20)", "settimeout(1)");
        let net = format!("[\"{host}:{tcp}\", \"udp://{host}:{udp}\"]");
        let manifest = format!("version = 1\n[allow]\nnet = {net}\n");
        node.deploy_ok(name, &[("app.py", &quick), ("mote.toml", &manifest)]);
        for (kind, port) in [("tcp", tcp), ("udp", udp)] {
            let answer = call(&node, name, &format!("{kind} {host} {port} x"));
            assert!(answer.is_empty() || answer.starts_with("failed"), "{host}: {answer}");
        }
    };
    if let Some(host) = name_of_loopback() {
        ask("rebound", &host);
        let reason = "is the node itself: functions can reach it only if [allow] net names";
        log_says(
            "rebound",
            [
                format!("egress {host}:{tcp}: 127.0.0.1 {reason}"),
                format!("egress udp://{host}:{udp}: 127.0.0.1 {reason}"),
            ],
        );
    }
    ask("link", "169.254.169.254");
    let reason = "is a link-local address, which functions cannot reach";
    log_says(
        "link",
        [
            format!("egress 169.254.169.254:{tcp}: 169.254.169.254 {reason}"),
            format!("egress udp://169.254.169.254:{udp}: 169.254.169.254 {reason}"),
        ],
    );
    ask("unknown", "no-such-name.invalid");
    log_says(
        "unknown",
        [
            format!("egress no-such-name.invalid:{tcp}: "),
            format!("egress udp://no-such-name.invalid:{udp}: "),
        ],
    );
}

#[test]
fn addresses_that_are_no_hosts_are_refused_at_the_deploy() {
    let node = Node::start();
    for (net, says) in [
        ("udp://224.0.1.187:5683", "multicast"),
        ("0.0.0.0:80", "multicast"),
        ("[ff02::fd]:80", "multicast"),
        ("udp://*:53", "host:port"),
    ] {
        let manifest = format!("version = 1\n[allow]\nnet = [\"{net}\"]\n");
        let deployed = node.deploy("f", &[("app.py", CALLER), ("mote.toml", &manifest)]);
        let said = String::from_utf8_lossy(&deployed.stderr).into_owned();
        assert!(!deployed.status.success() && said.contains(says), "{net}: {said}");
    }
}

/// A third-party program inside a function speaks CoAP with a device.
#[test]
fn coap_clients_inside_functions_reach_a_device() {
    let node = Node::start();
    let device = Node::start();
    let lamp = "state = 'off'
def handle(event, ctx):
    global state
    if event.method == 'PUT':
        state = event.text
    return 'lamp ' + state
";
    device.deploy_ok("lamp", &[("app.py", lamp)]);
    let port = device.coap.port();
    let manifest = |rest: &str| {
        format!(
            "version = 1\n{rest}[limits]\nmemory = \"128MiB\"\ntimeout = \"60s\"\n[allow]\n\
             net = [\"udp://127.0.0.1:{port}\"]\n"
        )
    };
    match mote_tests::coap_client() {
        None => mote_tests::skip("libcoap in a function", "coap-client is not installed"),
        Some(client) => {
            let run = format!(
                "#!/bin/sh\n{client} -B 30 -m put -e on coap://127.0.0.1:{port}/lamp && \
                 {client} -B 30 -m get coap://127.0.0.1:{port}/lamp\n"
            );
            let manifest = manifest("runtime = \"exec\"\ncommand = [\"sh\", \"run.sh\"]\n");
            node.deploy_ok("libcoap", &[("run.sh", &run), ("mote.toml", &manifest)]);
            let said = node.get("/libcoap").text();
            assert!(said.matches("lamp on").count() == 2, "{said}");
        }
    }
    let venv = mote_tests::repository().join(".cache/test-venv/lib");
    let pythons = std::fs::read_dir(venv).into_iter().flatten().flatten();
    let found = pythons.map(|one| one.path().join("site-packages/aiocoap")).find(|at| at.is_dir());
    let Some(aiocoap) = found else {
        let why = "aiocoap is not in .cache/test-venv: scripts/setup.sh test";
        return mote_tests::skip("aiocoap in a function", why);
    };
    let folder = tempfile::tempdir().unwrap();
    let copied =
        std::process::Command::new("cp").arg("-r").args([&aiocoap, folder.path()]).status();
    assert!(copied.unwrap().success());
    let code = format!(
        "import aiocoap
async def handle(event, ctx):
    client = await aiocoap.Context.create_client_context(transports=['simple6'])
    uri = 'coap://127.0.0.1:{port}/lamp'
    put = await client.request(aiocoap.Message(code=aiocoap.PUT, uri=uri, payload=b'dim')).response
    got = await client.request(aiocoap.Message(code=aiocoap.GET, uri=uri)).response
    await client.shutdown()
    return put.payload + b', ' + got.payload
"
    );
    std::fs::write(folder.path().join("app.py"), code).unwrap();
    std::fs::write(folder.path().join("mote.toml"), manifest("name = \"aiocoap\"\n")).unwrap();
    node.ok(&["deploy", folder.path().to_str().unwrap()]);
    assert_eq!(node.get("/aiocoap").text(), "lamp dim, lamp dim");
}

#[test]
fn functions_of_a_namespace_send_no_datagrams_to_the_node() {
    let node = Node::start();
    node.ok(&["namespace", "create", "team"]);
    let mut hosts = vec!["127.0.0.1".to_owned(), "localhost".to_owned(), "[::1]".to_owned()];
    hosts.extend(own_address().map(|own| own.to_string()));
    hosts.extend(name_of_loopback());
    for host in hosts {
        let manifest = format!("version = 1\n[allow]\nnet = [\"udp://{host}:5683\"]\n");
        let files = [("app.py", CALLER), ("mote.toml", manifest.as_str())];
        let deployed = mote_tests::namespaces::deploy(&node, "team", "f", &files);
        let said = String::from_utf8_lossy(&deployed.stderr).into_owned();
        let reason = format!("udp://{host}:5683 is the machine of the node");
        assert!(said.contains("M0425") && said.contains(&reason), "{said}");
    }
}
