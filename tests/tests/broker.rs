//! The node's own MQTT broker, tested with Mosquitto's clients, paho and plain sockets.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use std::os::unix::process::CommandExt as _;

use mote_tests::mqtt::{self, Subscriber, broker_process};
use mote_tests::{Node, PATIENCE, is_root, mote_binary, programs, signal, skip, wait_for};

macro_rules! needs_clients {
    () => {
        if !mqtt::is_there() {
            return skip("MQTT", "the clients of mosquitto are not installed");
        }
    };
}

/// Starts a node with a broker. Also returns the port of the broker.
fn start(flags: &[&str]) -> (Node, u16) {
    let mut all = vec!["--mqtt", "127.0.0.1:0"];
    all.extend_from_slice(flags);
    let node = Node::start_with(&all);
    let port = port(&node);
    (node, port)
}

fn port(node: &Node) -> u16 {
    let line =
        node.announcement.lines().find_map(|line| line.strip_prefix("  mqtt   mqtt://127.0.0.1:"));
    line.and_then(|port| port.parse().ok()).expect("the announcement names the broker")
}

fn user(node: &Node, name: &str, password: &str, filters: &[&str]) {
    let mut args = vec!["mqtt", "users", "add", name];
    args.extend_from_slice(filters);
    let output = node.mote_with_input(&args, password.as_bytes());
    assert!(output.status.success(), "{output:?}");
}

fn publish(port: u16, args: &[&str]) -> Output {
    let mut command = Command::new("mosquitto_pub");
    command.args(["-h", "127.0.0.1", "-p", &port.to_string()]).args(args);
    command.stdin(Stdio::null()).output().expect("mosquitto_pub")
}

fn publish_ok(port: u16, args: &[&str]) {
    let output = publish(port, args);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.is_empty(), "{args:?}: {text}");
}

/// Waits until a publication with these arguments is accepted, or until it is refused.
fn wait_until(port: u16, args: &[&str], accepted: bool) {
    wait_for(&format!("{args:?} to be {accepted}"), || {
        (publish(port, args).status.success() == accepted).then_some(())
    });
}

#[test]
fn devices_call_functions_and_functions_answer() {
    needs_clients!();
    let (node, port) = start(&[]);
    let manifest = "version = 1\n[allow]\nmqtt = [\"said/#\", \"back/#\"]\n\
        [[trigger]]\nmqtt = \"in/+\"\nreply = \"out/{1}\"\n";
    let code = "def handle(event, ctx):\n    ctx.publish('said/it', event.body)\n    return event.text.upper()\n";
    node.deploy_ok("echo", &[("mote.toml", manifest), ("app.py", code)]);
    wait_for("the subscription", || {
        let function = node.json(&["--output", "json", "describe", "echo"]);
        (function["mqtt"][0]["state"] == "subscribed").then_some(())
    });
    for version in ["311", "5"] {
        for qos in ["0", "1", "2"] {
            let all =
                Subscriber::start(port, &["-V", version, "-t", "out/#", "-t", "said/#", "-q", qos]);
            publish_ok(port, &["-V", version, "-t", "in/x", "-m", "hello", "-q", qos]);
            let mut found = all.wait(2);
            found.sort();
            assert_eq!(found, ["out/x HELLO", "said/it hello"], "{version} {qos}");
        }
    }
    let answer = Command::new("timeout")
        .args(["20", "mosquitto_rr", "-V", "5", "-h", "127.0.0.1", "-p", &port.to_string()])
        .args(["-t", "in/y", "-e", "back/y", "-m", "ask"])
        .output();
    if let Ok(answer) = answer
        && answer.status.code() != Some(127)
    {
        assert_eq!(String::from_utf8_lossy(&answer.stdout), "ASK\n", "{answer:?}");
        // The publisher cannot make the function answer to a topic that the function may not
        // publish to.
        let elsewhere = Subscriber::start(port, &["-V", "5", "-t", "other/#", "-t", "back/#"]);
        // The function's answer goes to the topic of `reply` instead.
        let replies = Subscriber::start(port, &["-V", "5", "-t", "out/#"]);
        for topic in ["other/y", "back/z"] {
            let properties = ["-D", "publish", "response-topic", topic];
            let args = ["-V", "5", "-t", "in/y", "-m", "ask", "-q", "1"];
            publish_ok(port, &[&args[..], &properties[..]].concat());
        }
        assert_eq!(elsewhere.wait(1), ["back/z ASK"]);
        assert_eq!(replies.wait(1), ["out/y ASK"]);
        let log = node.ok(&["logs", "echo"]);
        assert!(log.contains("no answer is published to the response topic other/y"), "{log}");
    }
}

#[test]
fn users_may_do_what_their_filters_say() {
    needs_clients!();
    let (node, port) = start(&["--mqtt-anonymous", "off"]);
    assert!(!publish(port, &["-t", "a", "-m", "x"]).status.success(), "nobody without a name");
    user(&node, "thermo", "s3cret", &["--write", "sensors/+/temp", "--read", "orders/#"]);
    user(&node, "watch", "w", &["--read", "sensors/#", "--read", "state/#", "--write", "orders/1"]);
    let thermo = ["-V", "5", "-u", "thermo", "-P", "s3cret", "-q", "1"];
    let with = |more: &[&'static str]| [&thermo[..], more].concat();
    wait_until(port, &with(&["-t", "sensors/a/temp", "-m", "1"]), true);
    let order = ["-V", "5", "-u", "watch", "-P", "w", "-q", "1", "-t", "orders/1", "-m", "1"];
    wait_until(port, &order, true);
    for wrong in [
        ["-u", "thermo", "-P", "wrong"],
        ["-u", "nobody", "-P", "x"],
        ["-u", "mote-node", "-P", "x"],
    ] {
        let output = publish(port, &[&wrong[..], &["-t", "sensors/a/temp", "-m", "x"]].concat());
        assert!(!output.status.success(), "{wrong:?}");
    }
    // A client id belongs to the first user that connected with it, even if another user connects
    // with a clean start. Ids in the format of the node's own ids belong to the node.
    let named = |id: &'static str| with(&["-i", id, "-t", "sensors/a/temp", "-m", "1"]);
    assert!(publish(port, &named("sensor1")).status.success());
    let stolen = ["-u", "watch", "-P", "w", "-i", "sensor1", "-t", "orders/1", "-m", "x"];
    assert!(!publish(port, &stolen).status.success(), "the id of another user");
    assert!(
        !publish(port, &named("mote2345abcdefghijklmno")).status.success(),
        "an id of the node"
    );
    assert!(publish(port, &named("sensor1")).status.success(), "the owner is still let in");
    let all = Subscriber::start(port, &["-u", "watch", "-P", "w", "-t", "sensors/#", "-q", "1"]);
    for topic in ["sensors/a/b/temp", "sensors/temp", "other", "$SYS/x"] {
        let output = publish(port, &[&thermo[..], &["-t", topic, "-m", "no"]].concat());
        let text = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert!(!output.status.success() || text.contains("not authorized"), "{topic}: {output:?}");
    }
    publish_ok(port, &with(&["-t", "sensors/b/temp", "-m", "yes"]));
    assert_eq!(all.wait(1), ["sensors/b/temp yes"]);

    // A subscription that asks for more is refused, including attempts through shared and system
    // topics.
    for filter in ["#", "+/a/temp", "$SYS/#", "$share/g/#", "$share/g/$SYS/#", "sensors/#"] {
        let output = Command::new("timeout")
            .args(["5", "mosquitto_sub", "-h", "127.0.0.1", "-p", &port.to_string(), "-V", "5"])
            .args(["-u", "thermo", "-P", "s3cret", "-t", filter, "-E"])
            .output()
            .expect("mosquitto_sub");
        let text = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert!(text.contains("denied") || text.contains("not authorized"), "{filter}: {output:?}");
    }
    // If the will is outside the filters, the connection is refused.
    let will =
        with(&["-t", "sensors/a/temp", "-m", "1", "--will-topic", "other", "--will-payload", "x"]);
    assert!(!publish(port, &will).status.success());

    // Changes of users take effect without a restart.
    let listed = node.json(&["mqtt", "users", "list", "-o", "json"]);
    let thermo_of = listed["users"].as_array().and_then(|users| users.first()).cloned();
    let expected = serde_json::json!(
        {"name": "thermo", "read": ["orders/#"], "write": ["sensors/+/temp"]}
    );
    assert_eq!(thermo_of, Some(expected), "{listed}");
    for (args, code, text) in [
        (&["remove", "nobody"][..], "M1209", "no user nobody"),
        (&["add", "x", "--read", "a/#/b"], "M0303", "a/#/b"),
        (&["add", "mote-node", "--read", "#"], "M0303", "belongs to the node"),
    ] {
        let args = [&["mqtt", "users"], args].concat();
        let output = node.mote_with_input(&args, b"password");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(code) && said.contains(text), "{said}");
    }
    let file =
        std::fs::read_to_string(node.dir.path().join("data/broker/users.toml")).expect("a file");
    assert!(file.contains("$argon2id$") && !file.contains("s3cret"), "{file}");
    node.ok(&["mqtt", "users", "remove", "thermo"]);
    wait_until(port, &with(&["-t", "sensors/a/temp", "-m", "1"]), false);
}

#[test]
fn changes_of_users_at_once_all_take_effect() {
    needs_clients!();
    let (node, _port) = start(&[]);
    let folder = node.dir.path().join("data/broker");
    let names = |from: usize| (from..from + 12).map(|at| format!("user-{at:02}"));
    let add = |name: &str| {
        // Some users are added through the node, the others as another node of this folder would do
        // it.
        let output = if name.ends_with(['0', '3', '6', '9']) {
            let mut direct = Command::new(mote_binary());
            direct.arg0("mote-broker").args(["users", "--folder"]).arg(&folder).args(["add", name]);
            direct.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut direct = direct.spawn().expect("mote-broker");
            let mut stdin = direct.stdin.take().expect("piped");
            stdin.write_all(b"password").expect("written");
            drop(stdin);
            direct.wait_with_output().expect("it ends")
        } else {
            node.mote_with_input(&["mqtt", "users", "add", name], b"password")
        };
        assert!(output.status.success(), "{output:?}");
    };
    let at_once = |remove: &[String], adding: &[String]| {
        std::thread::scope(|scope| {
            for name in adding {
                scope.spawn(|| add(name));
            }
            for name in remove {
                scope.spawn(|| node.ok(&["mqtt", "users", "remove", name]));
            }
        });
    };
    let (first, second): (Vec<_>, Vec<_>) = (names(0).collect(), names(12).collect());
    at_once(&[], &first);
    at_once(&first, &second);
    let listed = node.json(&["mqtt", "users", "list", "-o", "json"]);
    let listed = listed["users"].as_array().expect("a list").iter();
    let listed: Vec<_> = listed.filter_map(|user| user["name"].as_str()).collect();
    assert_eq!(listed, second);
}

#[test]
fn a_session_belongs_to_its_user_after_a_restart() {
    needs_clients!();
    let (node, before) = start(&["--mqtt-anonymous", "off"]);
    user(&node, "owner", "o", &["--read", "orders/#", "--write", "orders/#"]);
    user(&node, "other", "x", &["--read", "#", "--write", "#"]);
    let subscribe = |port: u16, name: &str, password: &str| {
        let output = Command::new("timeout")
            .args(["5", "mosquitto_sub", "-h", "127.0.0.1", "-p", &port.to_string(), "-V", "5"])
            .args(["-u", name, "-P", password, "-c", "-x", "600", "-i", "device-1"])
            .args(["-q", "1", "-t", "orders/#", "-E"])
            .output();
        output.expect("mosquitto_sub").status.success()
    };
    wait_for("the users", || subscribe(before, "owner", "o").then_some(()));
    let node = node.stop_and_restart();
    let after = port(&node);
    let known = ["-u", "owner", "-P", "o", "-t", "orders/1", "-m", "x"];
    wait_until(after, &known, true);
    assert!(!subscribe(after, "other", "x"), "the session of another user");
    assert!(subscribe(after, "owner", "o"), "the session of its user");
    let file = std::fs::read_to_string(node.dir.path().join("data/broker/sessions.json"));
    assert_eq!(file.expect("a file"), "{\"device-1\":\"owner\"}");
}

#[test]
fn what_clients_rely_on_survives_the_end_of_the_broker_and_of_the_node() {
    needs_clients!();
    let (node, port) = start(&[]);
    let keeps = ["-c", "-i", "keeper", "-q", "1", "-t", "kept/#"];
    drop(Subscriber::start(port, &keeps));
    publish_ok(port, &["-t", "state/a", "-m", "on", "-r", "-q", "1"]);
    publish_ok(port, &["-t", "kept/1", "-m", "one", "-q", "1"]);
    publish_ok(port, &["-t", "kept/2", "-m", "two", "-q", "2"]);
    // The library writes to disk with a delay, so a kill may lose messages that were acknowledged a
    // moment ago.
    let settled = Subscriber::start(port, &["-t", "state/#", "-q", "1"]);
    assert_eq!(settled.wait(1), ["state/a on"]);
    drop(settled);
    // The library writes a batch in any order. It writes each record to a file with another name
    // and then renames the file.
    let queue = node.dir.path().join("data/broker/storage/queues/keeper");
    wait_for("both messages to be written", || {
        let files = std::fs::read_dir(&queue).ok()?.flatten();
        let records = files.filter(|file| file.path().extension().is_some_and(|end| end == "json"));
        (records.count() == 2).then_some(())
    });
    let first = broker_process(&node);
    signal(first, "KILL");
    wait_for("another process", || (broker_process(&node) != first).then_some(()));
    wait_until(port, &["-t", "x", "-m", "y"], true);
    let kept = Subscriber::start(port, &["-t", "state/#", "-q", "1"]);
    assert_eq!(kept.wait(1), ["state/a on"]);
    let session = Subscriber::start(port, &keeps);
    let mut found = session.wait(2);
    found.sort();
    assert_eq!(found, ["kept/1 one", "kept/2 two"]);
    drop((kept, session));

    publish_ok(port, &["-t", "kept/3", "-m", "three", "-q", "1"]);
    let node = node.stop_and_restart();
    let port = self::port(&node);
    let kept = Subscriber::start(port, &["-t", "state/#", "-q", "1"]);
    assert_eq!(kept.wait(1), ["state/a on"]);
    // The session ended before the client could acknowledge everything that it had printed, so some
    // messages may arrive twice.
    let session = Subscriber::start(port, &keeps);
    wait_for("the message from before the restart", || {
        session.all().iter().any(|line| line == "kept/3 three").then_some(())
    });
}

#[test]
fn a_device_that_vanishes_leaves_its_will() {
    needs_clients!();
    let (_node, port) = start(&[]);
    let all = Subscriber::start(port, &["-t", "state/#", "-q", "1"]);
    let mut device = Command::new("mosquitto_sub")
        .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-t", "x", "-i", "device"])
        .args(["--will-topic", "state/device", "--will-payload", "gone", "--will-qos", "1"])
        .spawn()
        .expect("mosquitto_sub");
    let connected = || {
        // A second client with this name would end the first client.
        let output = Command::new("ss").args(["-tn", "state", "established"]).output().ok()?;
        String::from_utf8_lossy(&output.stdout).contains(&format!(":{port}")).then_some(())
    };
    wait_for("the connection", connected);
    publish_ok(port, &["-t", "state/first", "-m", "x", "-q", "1"]);
    all.wait(1);
    device.kill().expect("our child");
    device.wait().expect("our child");
    assert_eq!(all.wait(2)[1], "state/device gone");
}

#[test]
fn the_broker_has_no_rights_and_ends_with_its_node() {
    needs_clients!();
    let (mut node, port) = start(&[]);
    let pid = broker_process(&node);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = |name: &str| {
        let found = status.lines().find_map(|line| line.strip_prefix(name));
        found.unwrap_or_default().trim().to_owned()
    };
    assert_eq!(line("NoNewPrivs:"), "1");
    if is_root() {
        assert!(!line("Uid:").split('\t').any(|uid| uid == "0"), "{status}");
        assert!(!line("Gid:").split('\t').any(|gid| gid == "0"), "{status}");
        assert_eq!(line("Groups:"), "");
        assert_eq!(line("CapEff:"), "0000000000000000");
        assert_eq!(line("CapPrm:"), "0000000000000000");
    }
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    assert_eq!(environment, "MALLOC_MMAP_THRESHOLD_=32768\0", "nothing of the node's");
    publish_ok(port, &["-t", "a", "-m", "x"]);
    signal(node.pid(), "KILL");
    node.ended();
    wait_for("the broker to end", || {
        (!std::path::Path::new(&format!("/proc/{pid}")).exists()).then_some(())
    });
}

#[test]
fn a_node_without_a_broker_has_no_process_for_it() {
    let node = Node::start();
    assert!(!node.announcement.contains("mqtt://"));
    assert!(programs(node.pid()).is_empty());
    assert!(!node.dir.path().join("data/broker").exists());
}

/// A CONNECT of MQTT 3.1.1 for a client id.
fn connect(id: &str, clean: bool) -> Vec<u8> {
    let mut packet = vec![0x10, 12 + id.len() as u8, 0, 4];
    packet.extend_from_slice(b"MQTT");
    packet.extend_from_slice(&[4, if clean { 2 } else { 0 }, 0, 60, 0, id.len() as u8]);
    packet.extend_from_slice(id.as_bytes());
    packet
}

/// Opens a connection and reads the CONNACK. Returns `None` if the connection is refused.
fn client(port: u16, id: &str, clean: bool) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(Duration::from_secs(2))).expect("a timeout");
    stream.write_all(&connect(id, clean)).ok()?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).ok()?;
    (answer == [0x20, 2, 0, 0]).then_some(stream)
}

/// A device that speaks MQTT 3.1 is told why it cannot connect.
#[test]
fn a_client_of_an_old_version_gets_an_answer() {
    let (_node, port) = start(&[]);
    let mut stream =
        TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).expect("a broker");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(b"\x10\x0f\0\x06MQIsdp\x03\x02\0\x3c\0\x01a").expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    assert_eq!(answer, [0x20, 2, 0, 1], "unacceptable protocol version");
}

fn memory_bytes(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// A PUBLISH with QoS 0.
fn message(topic: &str, bytes: usize) -> Vec<u8> {
    let mut body = vec![0, topic.len() as u8];
    body.extend_from_slice(topic.as_bytes());
    body.resize(body.len() + bytes, b'x');
    let mut packet = vec![0x30];
    let mut length = body.len();
    while length > 0x7f {
        packet.push(length as u8 & 0x7f | 0x80);
        length >>= 7;
    }
    packet.push(length as u8);
    packet.extend_from_slice(&body);
    packet
}

fn subscribe(filters: &[String]) -> Vec<u8> {
    let mut body = vec![0, 1];
    for filter in filters {
        body.extend_from_slice(&(filter.len() as u16).to_be_bytes());
        body.extend_from_slice(filter.as_bytes());
        body.push(0);
    }
    let mut packet =
        vec![0x82, body.len() as u8 & 0x7f | 0x80, (body.len() >> 7) as u8 & 0x7f | 0x80];
    packet.push((body.len() >> 14) as u8);
    packet.extend_from_slice(&body);
    packet
}

#[test]
fn attackers_use_bounded_memory() {
    needs_clients!();
    let (node, port) = start(&[]);
    let pid = broker_process(&node);
    let before = memory_bytes(pid);

    // If one address exceeds its share of connections, its oldest ones are closed.
    let idle: Vec<_> = (0..400).filter_map(|at| client(port, &format!("c{at}"), true)).collect();
    assert_eq!(idle.len(), 400);
    let open = |stream: &&TcpStream| {
        stream.set_nonblocking(true).expect("a mode");
        let read = (&mut &**stream).read(&mut [0; 64]);
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    wait_for("those beyond the share to be closed", || {
        (idle.iter().filter(open).count() <= 250).then_some(())
    });
    assert!(idle[150..].iter().filter(open).count() > 200, "the newest stay");
    drop(idle);
    // The broker notices one after the other that the many connections of this address are closed.
    let accepted = |id: &str, clean: bool| {
        wait_for(&format!("room for the client {id}"), || client(port, id, clean))
    };

    // If a packet announces a length above the limit, the connection ends.
    let mut large = accepted("large", true);
    let _ = large.write_all(b"\x30\xff\xff\xff\x7f\x00\x01a");
    let _ = large.write_all(&vec![0; 2 << 20]);
    let mut rest = Vec::new();
    assert!(large.read_to_end(&mut rest).is_err() || rest.len() < 64);

    // A client asks for hundreds of subscriptions. Most of them are refused.
    let mut many = accepted("many", true);
    let filters: Vec<_> = (0..1_000).map(|at| format!("f/{at}/+/#")).collect();
    let _ = many.write_all(&subscribe(&filters));
    let _ = many.read(&mut [0; 4096]);

    // A client subscribes and does not read, while 200 MB are published to it.
    let mut slow = accepted("slow", false);
    slow.write_all(&subscribe(&["flood".to_owned()])).expect("sent");
    slow.read_exact(&mut [0; 5]).expect("SUBACK");
    let mut source = accepted("source", true);
    let large = message("flood", 100 << 10);
    let mut sent = 0;
    while sent < 200 << 20 && source.write_all(&large).is_ok() {
        sent += large.len();
    }
    // A client publishes messages to keep, for topics that nobody will ever use.
    let mut kept = accepted("kept", true);
    for at in 0..5_000 {
        let mut packet = message(&format!("kept/{at}"), 1_000);
        packet[0] |= 1;
        if kept.write_all(&packet).is_err() {
            break;
        }
    }
    // Sessions without a connection.
    for at in 0..3_000 {
        drop(client(port, &format!("stays-{at}"), false));
    }
    wait_until(port, &["-t", "still", "-m", "there", "-q", "1"], true);
    assert_eq!(broker_process(&node), pid, "it was not restarted: {}", node.log());
    let grown = memory_bytes(pid).saturating_sub(before);
    assert!(grown < 96 << 20, "grew by {} MiB", grown >> 20);
}

#[test]
fn sessions_of_absent_clients_use_bounded_memory() {
    needs_clients!();
    let (node, port) = start(&[]);
    let pid = broker_process(&node);
    let mut sessions = 0;
    for at in 0..1_000 {
        let Some(mut away) = client(port, &format!("away-{at}"), false) else { continue };
        let mut packet = subscribe(&["#".to_owned()]);
        *packet.last_mut().expect("the QoS") = 1;
        let _ = away.write_all(&packet);
        sessions += u32::from(away.read(&mut [0; 5]).is_ok_and(|bytes| bytes > 0));
    }
    assert!((100..=125).contains(&sessions), "the share of one user: {sessions}");
    // A message of which each session keeps a copy.
    let text = "x".repeat(120 << 10);
    let file = node.dir.path().join("large");
    std::fs::write(&file, text).expect("a file");
    // The earlier connections may still count.
    let args = ["-t", "large", "-q", "1", "-f", file.to_str().expect("UTF-8")];
    for _ in 0..20 {
        wait_until(port, &args, true);
    }
    assert!(memory_bytes(pid) < 384 << 20, "{} MiB", memory_bytes(pid) >> 20);
    assert_eq!(broker_process(&node), pid, "it was not restarted: {}", node.log());
    signal(pid, "KILL");
    wait_for("another process", || (broker_process(&node) != pid).then_some(()));
    wait_until(port, &["-t", "still", "-m", "there", "-q", "1"], true);
}

#[test]
fn unread_messages_of_many_clients_slow_down_who_publishes() {
    needs_clients!();
    let (node, port) = start(&[]);
    let pid = broker_process(&node);
    // Each client reads a different topic, so that their unread messages share no memory.
    let lazy: Vec<_> = (0..40)
        .map(|at| {
            let mut one = client(port, &format!("lazy-{at}"), true).expect("accepted");
            one.write_all(&subscribe(&[format!("flood/{at}")])).expect("sent");
            one.read_exact(&mut [0; 5]).expect("SUBACK");
            one
        })
        .collect();
    let mut source = client(port, "source", true).expect("accepted");
    source.set_write_timeout(Some(Duration::from_secs(2))).expect("a timeout");
    let waits = (0..250).any(|_| {
        (0..40).any(|at| source.write_all(&message(&format!("flood/{at}"), 100 << 10)).is_err())
    });
    assert!(waits, "1 GB was taken from a client, and nobody read it");
    assert!(memory_bytes(pid) < 300 << 20, "{} MiB", memory_bytes(pid) >> 20);
    drop(lazy);
    wait_until(port, &["-t", "still", "-m", "there", "-q", "1"], true);
    assert_eq!(broker_process(&node), pid, "it was not restarted: {}", node.log());
}

#[test]
fn unread_messages_of_one_user_do_not_stop_others() {
    needs_clients!();
    let (node, port) = start(&[]);
    let pid = broker_process(&node);
    user(&node, "alice", "a", &["--read", "said/#", "--write", "said/#"]);
    let alice = ["-u", "alice", "-P", "a", "-q", "1", "-V", "5"];
    let says = |text: &'static str| [&alice[..], &["-t", "said/alice", "-m", text]].concat();
    wait_until(port, &says("before"), true);
    let manifest = "version = 1\n[allow]\nmqtt = [\"said/#\"]\n";
    let code = "def handle(event, ctx):\n    ctx.publish('said/function', event.body)\n";
    node.deploy_ok("say", &[("mote.toml", manifest), ("app.py", code)]);
    let all = Subscriber::start(port, &[&alice[..], &["-t", "said/#"]].concat());

    // Another user has clients that do not read, and publishes to them until the broker takes no
    // more.
    let lazy: Vec<_> = (0..20)
        .map(|at| {
            let mut one = client(port, &format!("lazy-{at}"), true).expect("accepted");
            one.write_all(&subscribe(&[format!("flood/{at}")])).expect("sent");
            one.read_exact(&mut [0; 5]).expect("SUBACK");
            one
        })
        .collect();
    let mut source = client(port, "source", true).expect("accepted");
    let waits = (0..250).any(|_| {
        (0..20).any(|at| source.write_all(&message(&format!("flood/{at}"), 100 << 10)).is_err())
    });
    assert!(waits, "500 MB were taken from a client, and nobody read it");

    assert_eq!(broker_process(&node), pid, "it was not restarted: {}", node.log());
    for text in ["one", "two"] {
        let output = publish(port, &says(text));
        let is_accepted = output.status.success() && output.stderr.is_empty();
        assert!(is_accepted, "{output:?} {}", node.log());
        let answer = node.post("/say", text.as_bytes());
        assert!(answer.status < 300, "{} {}", answer.status, answer.text());
    }
    let mut found = all.wait(4);
    found.sort();
    assert_eq!(
        found,
        ["said/alice one", "said/alice two", "said/function one", "said/function two"]
    );
    drop(lazy);
    wait_until(port, &["-t", "still", "-m", "there", "-q", "1"], true);
}

#[test]
fn client_ids_stay_with_their_users() {
    needs_clients!();
    let (node, port) = start(&[]);
    user(&node, "alice", "a", &["--write", "said"]);
    let alice = |id: &'static str| {
        ["-u", "alice", "-P", "a", "-q", "1", "-V", "5", "-t", "said", "-m", "x", "-i", id]
    };
    wait_until(port, &alice("mine"), true);
    let held = client(port, "held", true).expect("accepted");
    for at in 0..5_000 {
        wait_for("a connection", || client(port, &format!("many-{at}"), true));
    }
    assert!(client(port, "mine", true).is_none(), "another user pushed out this id");
    assert!(!publish(port, &alice("held")).status.success(), "its client is connected");
    drop(held);
    // The broker may not have noticed yet that the last of the many connections are closed.
    wait_until(port, &alice("mine"), true);
}

/// Tests with paho: every QoS and both protocol versions, kept messages, a session, and many
/// clients at once.
const PAHO: &str = "
import queue, sys
import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

port = int(sys.argv[1])

def client(name, version=mqtt.MQTTv5, clean=True):
    one = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name, protocol=version,
                      **({} if version == mqtt.MQTTv5 else {'clean_session': clean}))
    one.got, one.ready = queue.Queue(), queue.Queue()
    one.on_message = lambda c, u, m: one.got.put((m.topic, m.payload.decode(), m.qos, m.retain))
    one.on_subscribe = lambda *a: one.ready.put(1)
    properties = None
    if version == mqtt.MQTTv5:
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 0 if clean else 600
    kw = {'clean_start': clean, 'properties': properties} if version == mqtt.MQTTv5 else {}
    one.connect('127.0.0.1', port, **kw)
    one.loop_start()
    return one

def end(one):
    one.disconnect()
    one.loop_stop()

for version in (mqtt.MQTTv311, mqtt.MQTTv5):
    a, b = client(f'a{version}', version), client(f'b{version}', version)
    a.subscribe('q/#', 2)
    a.ready.get(timeout=20)
    for qos in range(3):
        for number in range(50):
            b.publish(f'q/{qos}', str(number), qos).wait_for_publish(20)
        got = [a.got.get(timeout=20) for _ in range(50)]
        assert got == [(f'q/{qos}', str(number), qos, False) for number in range(50)], got[:3]
    b.publish('kept/x', 'k', 1, retain=True).wait_for_publish(20)
    late = client(f'late{version}', version)
    late.subscribe('kept/#', 1)
    assert late.got.get(timeout=20) == ('kept/x', 'k', 1, True)
    b.publish('kept/x', '', 1, retain=True).wait_for_publish(20)
    keeper = client(f'keeper{version}', version, clean=False)
    keeper.subscribe('later/#', 2)
    keeper.ready.get(timeout=20)
    end(keeper)
    for qos in (1, 2):
        b.publish(f'later/{qos}', 'x', qos).wait_for_publish(20)
    keeper = client(f'keeper{version}', version, clean=False)
    got = sorted(keeper.got.get(timeout=20) for _ in range(2))
    assert got == [('later/1', 'x', 1, False), ('later/2', 'x', 2, False)], got
    for one in (a, b, late, keeper):
        end(one)

many = [client(f'm{at}') for at in range(100)]
for one in many:
    one.subscribe('all', 1)
for one in many:
    one.ready.get(timeout=20)
many[0].publish('all', 'hello', 1).wait_for_publish(20)
assert all(one.got.get(timeout=20)[1] == 'hello' for one in many)
for one in many:
    end(one)
print('done')
";

#[test]
fn paho_finds_everything_in_order() {
    needs_clients!();
    let python = mote_tests::repository().join(".cache/test-venv/bin/python");
    let mut asking = Command::new(&python);
    let asked = asking.args(["-c", "import paho.mqtt"]).stderr(Stdio::null()).status();
    if !asked.is_ok_and(|status| status.success()) {
        return skip("MQTT", "paho-mqtt is not installed");
    }
    let (_node, port) = start(&[]);
    let output = Command::new(python).args(["-c", PAHO, &port.to_string()]).output();
    let output = output.expect("python");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"done\n", "{text}");
}

/// Tests with mqtt.js: a request and its answer, and a will.
const MQTT_JS: &str = "
import { createRequire } from 'node:module';
const mqtt = createRequire(process.argv[2])('mqtt');
const url = `mqtt://127.0.0.1:${process.argv[3]}`;
for (const protocolVersion of [4, 5]) {
  const will = { topic: 'will', payload: 'gone', qos: 1 };
  const a = await mqtt.connectAsync(url, { protocolVersion, reconnectPeriod: 0 });
  const b = await mqtt.connectAsync(url, { protocolVersion, reconnectPeriod: 0, will });
  const got = [];
  let more;
  a.on('message', (topic, payload) => { got.push(`${topic} ${payload}`); more?.(); });
  const wait = async (count) => { while (got.length < count) await new Promise((resolve) => { more = resolve; }); };
  await a.subscribeAsync({ 'in/#': { qos: 2 }, will: { qos: 1 } });
  for (const qos of [0, 1, 2]) {
    await b.publishAsync(`in/${qos}`, 'x'.repeat(1000), { qos });
    await wait(qos + 1);
  }
  b.on('error', () => {});
  b.stream.destroy();
  await wait(4);
  if (got[3] !== 'will gone' || !got[2].startsWith('in/2 xxx')) throw new Error(got.join());
  await a.endAsync();
}
console.log('done');
";

#[test]
fn mqtt_js_publishes_and_leaves_a_will() {
    needs_clients!();
    let modules = mote_tests::repository().join(".cache/test-node/package.json");
    if !modules.with_file_name("node_modules/mqtt").exists() {
        return skip("MQTT", "mqtt.js is not installed");
    }
    let (node, port) = start(&[]);
    let script = node.dir.path().join("client.mjs");
    std::fs::write(&script, MQTT_JS).expect("a file");
    let mut command = Command::new("timeout");
    command.args(["60", "node"]).arg(script).arg(modules).arg(port.to_string());
    let output = command.output().expect("node");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"done\n", "{text}");
}
