//! A node under a service manager (systemd's protocol). It takes sockets that are already bound and
//! reports its state, and a restart loses no request. SPECIFICATION.md, restarts.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mote_tests::restarting::{Callers, ECHO, SLOW};
use mote_tests::service_manager::{ServiceManager, hand_over};
use mote_tests::{
    Connection, PATIENCE, call_at, free_address, is_long, is_root, mote_binary, repository, signal,
    skip, wait_for,
};

/// A confirmable GET of `echo/x` over CoAP, with the token 7.
const COAP_GET: &[u8] = b"\x41\x01\x12\x34\x07\xb4echo\x01x";

#[test]
fn the_node_says_when_it_is_ready_and_when_it_stops() {
    let mut manager = ServiceManager::bind();
    manager.start_ready();
    manager.deploy("echo", ECHO);
    manager.begin_stop();
    manager.wait_told("STOPPING=1");
    assert!(manager.ended().success());
    // The watchdog belongs to another process, so the node does not notify it.
    manager.start(&[], &[("WATCHDOG_USEC", "20000"), ("WATCHDOG_PID", "1")]);
    let told = manager.wait_told("READY=1");
    let status = told.lines().find_map(|line| line.strip_prefix("STATUS=")).expect("a status");
    let expected = format!("serves HTTP ({}) and CoAP ({})", manager.http, manager.coap);
    assert_eq!(status, expected);
    // A stored function answers as soon as the node is ready, without a second attempt.
    let answer = call_at(manager.http, "POST", "/echo", &[], b"stored");
    assert_eq!((answer.status, answer.text().as_str()), (200, "stored"));
    assert_eq!(manager.told(Duration::from_millis(200)), None, "nobody asked for a watchdog");
    manager.begin_stop();
    let told = manager.wait_told("STOPPING=1");
    assert!(told.contains("STATUS=finishes the calls"), "{told}");
    assert!(manager.ended().success());
}

#[test]
fn the_watchdog_hears_from_a_node_that_works() {
    let mut manager = ServiceManager::bind();
    let watchdog = Duration::from_millis(400);
    manager.start(&[], &[("WATCHDOG_USEC", "400000")]);
    manager.wait_told("READY=1");
    let since = Instant::now();
    for _ in 0..6 {
        manager.wait_told("WATCHDOG=1");
    }
    // There are six notifications. The first is immediate, so they span five halves of the watchdog
    // time.
    assert!(since.elapsed() >= watchdog * 2, "{:?}", since.elapsed());
    signal(manager.pid(), "STOP");
    wait_for("the last message", || manager.told(watchdog * 2).is_none().then_some(()));
    signal(manager.pid(), "CONT");
    manager.wait_told("WATCHDOG=1");
    manager.begin_stop();
    manager.wait_told("STOPPING=1");
    assert!(manager.ended().success());
}

#[test]
fn given_sockets_replace_those_of_the_settings() {
    let mut manager = ServiceManager::bind();
    let unused = free_address();
    let flags = ["--http", &unused.to_string(), "--coap", "off", "--socket", "/nonexistent/s"];
    manager.start(&flags, &[]);
    manager.wait_told("READY=1");
    manager.deploy("echo", ECHO);
    let log = manager.log();
    let http = manager.http;
    let coap = manager.coap;
    for line in [
        format!("http   http://{http}\n"),
        format!("coap   coap://{coap}\n"),
        format!("admin  {}\n", manager.management.display()),
        "the service manager's socket replaces the setting".to_owned(),
    ] {
        assert!(log.contains(&line), "{line} is not in {log}");
    }
    assert!(TcpStream::connect(unused).is_err(), "the setting's address is not used");
    assert_eq!(call_at(http, "POST", "/echo", &[], b"here").text(), "here");
    assert!(coap_answer(&coap_client(&manager)).ends_with(b"\xffx"));
    manager.begin_stop();
    assert!(manager.ended().success());
    assert!(manager.management.exists(), "the socket belongs to the service manager");
}

fn coap_client(manager: &ServiceManager) -> UdpSocket {
    let client = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    client.connect(manager.coap).expect("loopback");
    client.set_read_timeout(Some(PATIENCE)).expect("timeout");
    client.send(COAP_GET).expect("sent");
    client
}

/// The answer to [`COAP_GET`], with its acknowledgement or as a separate message.
fn coap_answer(client: &UdpSocket) -> Vec<u8> {
    let mut buffer = [0; 256];
    loop {
        let length = client.recv(&mut buffer).expect("an answer");
        if buffer[1] != 0 {
            return buffer[..length].to_vec();
        }
    }
}

#[test]
fn what_arrives_between_two_nodes_is_answered_by_the_second() {
    let mut manager = ServiceManager::bind();
    manager.start_ready();
    manager.deploy("echo", ECHO);
    manager.begin_stop();
    assert!(manager.ended().success());
    let mut http = Connection::open(manager.http);
    http.send("POST", "/echo", &[], b"early").expect("sent");
    let coap = coap_client(&manager);
    let mut management = UnixStream::connect(&manager.management).expect("the socket");
    write!(management, "GET /livez HTTP/1.0\r\nHost: node\r\n\r\n").expect("sent");
    manager.start_ready();
    let answer = http.read_answer(false).expect("an answer");
    assert_eq!((answer.status, answer.text().as_str()), (200, "early"));
    assert!(coap_answer(&coap).ends_with(b"\xffx"));
    let mut text = String::new();
    management.read_to_string(&mut text).expect("an answer");
    assert!(text.starts_with("HTTP/1.0 200"), "{text}");
}

#[test]
fn a_kept_connection_is_answered_once_more_after_the_stop_began() {
    let mut manager = ServiceManager::bind();
    manager.start_ready();
    manager.deploy("echo", ECHO);
    let mut kept = Connection::open(manager.http);
    let answer = kept.call("POST", "/echo", &[], b"before");
    assert_eq!((answer.status, answer.header("connection")), (200, None));
    let mut new = Connection::open(manager.http);
    // When the node answers a later connection, it has accepted this one.
    call_at(manager.http, "POST", "/echo", &[], b"");
    manager.begin_stop();
    manager.wait_told("STOPPING=1");
    for connection in [&mut kept, &mut new] {
        let answer = connection.call("POST", "/echo", &[], b"after");
        assert_eq!((answer.status, answer.text().as_str()), (200, "after"));
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(connection.try_call("POST", "/echo", &[], b"late").is_err(), "it is closed");
    }
    assert!(manager.ended().success());
}

/// Starts a node with these sockets, which it must refuse. Returns its log.
fn refused(sockets: Vec<(&str, OwnedFd)>, flags: &[&str], env: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().expect("temp folder");
    let mut node = hand_over(sockets, dir.path(), &mote_binary())
        .arg("up")
        .args(["--data".as_ref(), dir.path().join("data").as_os_str()])
        .args(["--socket".as_ref(), dir.path().join("s").as_os_str()])
        .args(["--http", "127.0.0.1:0", "--coap", "off"])
        .args(flags)
        .envs(env.iter().copied())
        .spawn()
        .expect("a shell");
    let status = wait_for("the node to refuse", || node.try_wait().expect("our child"));
    let log = std::fs::read_to_string(dir.path().join("up.err")).expect("a log");
    assert_eq!(status.code(), Some(78), "{log}");
    assert!(log.starts_with("error[M0211]: "), "{log}");
    assert!(!dir.path().join("data").exists(), "nothing was begun");
    log
}

fn tcp(address: &str) -> OwnedFd {
    TcpListener::bind(address).expect("an address").into()
}

#[test]
fn sockets_that_the_node_cannot_use_are_refused() {
    let udp = || OwnedFd::from(UdpSocket::bind("127.0.0.1:0").expect("loopback"));
    let dir = tempfile::tempdir().expect("temp folder");
    let unix = |name| OwnedFd::from(UnixListener::bind(dir.path().join(name)).expect("a socket"));
    let local = "127.0.0.1:0";
    let check = |sockets: Vec<(&str, OwnedFd)>, expected: &str| {
        let log = refused(sockets, &[], &[]);
        assert!(log.contains(expected), "{expected} is not in {log}");
    };
    check(vec![("mote.socket", tcp(local))], "the name \"mote.socket\" (descriptor 3)");
    check(vec![("http", tcp(local)), ("", udp())], "the name \"\" (descriptor 4)");
    check(vec![("http", tcp(local)), ("http", tcp(local))], "two sockets with the name \"http\"");
    check(vec![("http", udp())], "\"http\" (descriptor 3) is not a listening TCP socket");
    check(vec![("coap", tcp(local))], "\"coap\" (descriptor 3) is not a UDP socket");
    check(vec![("coap-tcp", unix("a"))], "\"coap-tcp\" (descriptor 3) is not a listening TCP");
    check(
        vec![("management", tcp(local))],
        "\"management\" (descriptor 3) is not a listening Unix",
    );
    check(vec![("http", tcp("0.0.0.0:0"))], "set lan = true");
    check(vec![("coap-tcp", tcp("[::]:0"))], "set lan = true");
    let log = refused(vec![], &[], &[("LISTEN_FDS", "many")]);
    assert!(log.contains("LISTEN_FDS is \"many\""), "{log}");
    let log = refused(vec![("http", tcp(local))], &[], &[("LISTEN_FDS", "9")]);
    assert!(log.contains("the name \"\" (descriptor 4)"), "{log}");
    let log = refused(vec![("http", tcp(local))], &[], &[("NOTIFY_SOCKET", "vsock:2:1")]);
    assert!(log.contains("NOTIFY_SOCKET is \"vsock:2:1\""), "{log}");
    let log = refused(vec![("http", tcp(local))], &[], &[("WATCHDOG_USEC", "soon")]);
    assert!(log.contains("WATCHDOG_USEC is \"soon\""), "{log}");
}

/// All processes that descend from this one.
fn descendants(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let mut found = Vec::new();
    for thread in threads.filter_map(Result::ok) {
        let children = std::fs::read_to_string(thread.path().join("children"));
        let children = children.unwrap_or_default();
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            found.push(child);
            found.extend(descendants(child));
        }
    }
    found
}

fn open_files(pid: u32) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.map(|link| link.to_string_lossy().into_owned()).collect()
}

#[test]
fn nothing_of_it_reaches_functions_or_helpers() {
    let mut manager = ServiceManager::bind();
    manager.start(&["--mqtt", "127.0.0.1:0"], &[("WATCHDOG_USEC", "20000000")]);
    manager.wait_told("READY=1");
    manager.deploy(
        "look",
        "import json, os\n\ndef handle(event, ctx):\n    files = []\n    \
         for name in os.listdir('/proc/self/fd'):\n        \
         try:\n            files.append(os.readlink('/proc/self/fd/' + name))\n        \
         except OSError:\n            pass\n    \
         return json.dumps({'env': sorted(os.environ), 'files': files})\n",
    );
    let answer = call_at(manager.http, "GET", "/look", &[], b"");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let is_given = |name: &str| {
        ["LISTEN_", "NOTIFY_", "WATCHDOG_"].iter().any(|start| name.starts_with(start))
    };
    let seen = answer.json();
    for name in seen["env"].as_array().expect("names") {
        assert!(!is_given(name.as_str().expect("a name")), "{seen}");
    }
    let given = given_sockets(&manager);
    let files = seen["files"].as_array().expect("files");
    assert!(!files.iter().any(|file| given.iter().any(|socket| file == socket)), "{seen}");
    let own = std::fs::canonicalize(mote_binary()).expect("the binary");
    let mut helpers = 0;
    // A process that was forked a moment ago has all files until it runs its program.
    wait_for("processes without the sockets", || {
        let has_none = |pid| !open_files(pid).iter().any(|file| given.contains(file));
        descendants(manager.pid()).into_iter().all(has_none).then_some(())
    });
    for pid in descendants(manager.pid()) {
        // A process that was only forked shows the variables with which the node was started, but
        // no longer has them.
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        if program == own {
            continue;
        }
        helpers += 1;
        let env = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap_or_default();
        assert!(!env.split('\0').any(is_given), "{}: {env}", program.display());
    }
    assert!(helpers > 1, "the function and the broker");
    manager.begin_stop();
    assert!(manager.ended().success());
}

/// The sockets that the node has received from the service manager, as `/proc` names them.
fn given_sockets(manager: &ServiceManager) -> Vec<String> {
    let given = manager.descriptors();
    let names = given.into_iter().map(|fd| std::fs::read_link(format!("/proc/self/fd/{fd}")));
    let names: Vec<_> =
        names.map(|name| name.expect("open").to_string_lossy().into_owned()).collect();
    let open = open_files(manager.pid());
    assert!(names.iter().all(|name| open.contains(name)), "the node has them: {open:?}");
    names
}

#[test]
fn the_activator_of_systemd_starts_the_node() {
    if Command::new("systemd-socket-activate").arg("--version").output().is_err() {
        return skip("activation", "systemd-socket-activate is not installed");
    }
    let dir = tempfile::tempdir().expect("temp folder");
    let http = free_address();
    let management = dir.path().join("management");
    let log = dir.path().join("log");
    let open = || std::fs::File::create(&log).expect("a file");
    let mut node = Command::new("systemd-socket-activate")
        .args(["--listen", &http.to_string(), "--listen"])
        .arg(&management)
        .args(["--fdname=http:management", "--setenv=HOME"])
        .arg(mote_binary())
        .args(["up", "--coap", "off", "--data"])
        .arg(dir.path().join("data"))
        .stdin(Stdio::null())
        .stdout(open())
        .stderr(open())
        .spawn()
        .expect("the activator");
    // The activator starts the node at the first connection, which the node then accepts.
    let mut first = wait_for("the activator to listen", || Connection::try_open(http).ok());
    let answer = first.call("GET", "/nothing", &[], b"");
    assert_eq!((answer.status, &answer.json()["code"]), (404, &"M0501".into()));
    let output = Command::new(mote_binary())
        .args(["list", "-o", "json"])
        .env("MOTE_SOCKET", &management)
        .env_remove("MOTE_NODE")
        .output()
        .expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    signal(node.id(), "TERM");
    let status = wait_for("the node to end", || node.try_wait().expect("our child"));
    assert!(status.success(), "{status}: {}", std::fs::read_to_string(&log).unwrap_or_default());
}

#[test]
fn restarts_lose_no_request() {
    let (restarts, requests) = if is_long() { (50, 100_000) } else { (5, 1_000) };
    let mut manager = ServiceManager::bind();
    manager.start_ready();
    manager.deploy("echo", ECHO);
    manager.deploy("slow", SLOW);
    let http = manager.http;
    let callers = Callers::of_every_kind(http, manager.coap);
    // Like an upgrade, each restart also replaces the program by a rename, if another version is
    // there (scripts/build-version.sh). The two versions take turns.
    let other = std::env::var_os("MOTE_OTHER_BIN").map(PathBuf::from);
    let builds = [other.unwrap_or_else(mote_binary), mote_binary()];
    let versions = builds.each_ref().map(|build| {
        let output = Command::new(build).arg("version").output().expect("the program starts");
        String::from_utf8_lossy(&output.stdout).trim().trim_start_matches("mote ").to_owned()
    });
    let mut pauses = Vec::new();
    let begun = Instant::now();
    for restart in 0..restarts {
        let turn = restart % builds.len();
        let wanted = callers.answered() + requests / restarts;
        wait_for("requests", || (callers.answered() >= wanted).then_some(()));
        manager.replace_program(&builds[turn]);
        let since = Instant::now();
        manager.begin_stop();
        manager.wait_told("STOPPING=1");
        let status = manager.ended();
        assert!(status.success(), "{status}: {}", manager.log());
        let stopped = since.elapsed();
        manager.start_ready();
        pauses.push((stopped, since.elapsed()));
        assert_eq!(manager.version(), versions[turn]);
    }
    let wanted = callers.answered() + requests / restarts;
    wait_for("requests", || (callers.answered() >= wanted).then_some(()));
    let (tallies, accepted) = callers.stop();
    let took = begun.elapsed();
    let mut lost = 0;
    for (kind, tally) in &tallies {
        println!(
            "{kind}: {} answered, {} sent again, {} lost",
            tally.answered,
            tally.repeated,
            tally.lost.len()
        );
        tally.lost.iter().take(10).for_each(|lost| println!("  lost: {lost}"));
        lost += tally.lost.len();
        assert!(tally.answered > 0, "{kind}: nothing was measured");
    }
    let answered: usize = tallies.values().map(|tally| tally.answered).sum();
    pauses.sort();
    let (stop, all) = pauses[pauses.len() / 2];
    let longest = pauses.iter().map(|(_, all)| *all).max().expect("a restart");
    println!(
        "{restarts} restarts of mote {} and {} in turns, in {:.1} s: {answered} answered, {lost} lost; from the signal to the \
         end {} ms, to the next node's readiness {} ms (medians), at most {} ms",
        versions[0],
        versions[1],
        took.as_secs_f64(),
        stop.as_millis(),
        all.as_millis(),
        longest.as_millis()
    );
    // Every accepted invocation has run, whichever node accepted it.
    for (location, body) in &accepted {
        let ended = wait_for("the invocation to end", || {
            let shown = call_at(http, "GET", location, &[], b"").json();
            (!matches!(shown["state"].as_str(), Some("waiting" | "running"))).then_some(shown)
        });
        assert_eq!((&ended["state"], &ended["body"]), (&"succeeded".into(), &body.as_str().into()));
    }
    println!("{} accepted invocations, all of them have run", accepted.len());
    assert!(!accepted.is_empty());
    assert_eq!(lost, 0, "{}", manager.log());
    manager.begin_stop();
    assert!(manager.ended().success());
}

#[test]
fn the_unit_files_are_valid() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return skip("unit files", "systemd-analyze is not installed");
    }
    let dir = tempfile::tempdir().expect("temp folder");
    let folder = repository().join("deploy/systemd");
    let mut units = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a unit");
        let unit = dir.path().join(path.file_name().expect("a name"));
        // The binary is not installed on this machine.
        let binary = mote_binary();
        let text =
            text.replace("ExecStart=/usr/bin/mote ", &format!("ExecStart={} ", binary.display()));
        std::fs::write(&unit, text).expect("a file");
        units.push(unit);
    }
    assert!(units.len() >= 3, "{units:?}");
    if !is_root() {
        return skip("systemd-analyze verify", "needs root");
    }
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .args(&units)
        .output()
        .expect("systemd-analyze");
    let text = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<_> = text.lines().filter(|line| line.contains("mote")).collect();
    assert!(output.status.success() && ours.is_empty(), "{}: {text}", output.status);
}
