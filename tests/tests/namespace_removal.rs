//! The removal of a namespace: what remains if it is refused or if the node ends meanwhile, and
//! which requests it delays.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use mote_tests::namespaces::{HELLO, deploy};
use mote_tests::{Node, free_address, signal, wait_for};

fn start() -> (Node, SocketAddr) {
    let admin = free_address();
    let node = Node::start_with(&["--admin", &admin.to_string()]);
    node.ok(&["namespace", "create", "plant"]);
    (node, admin)
}

fn is_closed(node: &Node) -> bool {
    node.json(&["namespace", "describe", "plant", "-o", "json"])["is_being_deleted"] == true
}

/// Starts a request of which only the beginning is sent.
fn slow_request(admin: SocketAddr, path: &str, token: &str) -> TcpStream {
    let mut stream = TcpStream::connect(admin).expect("connected");
    let head = format!(
        "PUT {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
         content-length: 5000\r\n\r\nabc"
    );
    stream.write_all(head.as_bytes()).expect("sent");
    stream
}

#[test]
fn a_removal_does_not_wait_for_slow_senders() {
    let (node, admin) = start();
    let token = node.ok(&["token", "create", "ada", "--role", "deployer", "--namespace", "plant"]);
    let paths = ["/v1/functions/late", "/v1/secrets/db", "/v1/kv/late/entry?key=k"];
    let mut slow = paths.map(|path| slow_request(admin, path, token.trim()));
    // A second deploy of the same function is refused once the first has begun.
    wait_for("the deploy", || {
        let (status, _) = node.manage("PUT", "/v1/functions/late.plant", "");
        // If the first deploy arrived while another of these deploys was running, it was itself
        // refused.
        slow[0].set_nonblocking(true).expect("a mode");
        if status != 409 && slow[0].peek(&mut [0]).is_ok() {
            slow[0] = slow_request(admin, paths[0], token.trim());
        }
        slow[0].set_nonblocking(false).expect("a mode");
        (status == 409).then_some(())
    });
    let since = Instant::now();
    node.ok(&["namespace", "create", "orchard"]);
    node.ok(&["namespace", "update", "orchard", "--functions", "3"]);
    node.ok(&["namespace", "delete", "orchard", "--yes"]);
    node.ok(&["namespace", "delete", "plant", "--force", "--yes"]);
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    for (path, mut stream) in paths.into_iter().zip(slow) {
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a limit");
        let mut answer = vec![0; 4096];
        let length = stream.read(&mut answer).expect("an answer");
        let text = String::from_utf8_lossy(&answer[..length]).into_owned();
        assert!(text.starts_with("HTTP/1.1 409") && text.contains("M0424"), "{path}: {text}");
    }
    node.ok(&["namespace", "create", "plant"]);
    assert_eq!(node.ok(&["secret", "list", "-o", "name", "--namespace", "plant"]), "");
}

#[test]
fn a_removal_that_is_refused_closes_nothing() {
    let (node, _) = start();
    let said = |output: std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    node.mote_with_input(&["secret", "set", "db", "--namespace", "plant"], b"value");
    let full = said(node.mote(&["namespace", "delete", "plant", "--yes"]));
    assert!(full.contains("M0427") && full.contains("has 1 secret\n"), "{full}");
    assert!(!is_closed(&node));
    let default = said(node.mote(&["namespace", "delete", "default", "--yes"]));
    assert!(default.contains("no name of its own"), "{default}");
    let made = said(node.mote_with_input(&["key", "create", "dev", "--namespace", "plant"], b""));
    assert!(made.contains("every function of the namespace plant"), "{made}");
    node.ok(&["key", "revoke", "dev", "--yes", "--namespace", "plant"]);

    let folder = node.dir.path().join("src");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("app.py"), HELLO).expect("a file");
    std::fs::write(folder.join("mote.toml"), "version = 1\nsecrets = [\"none\"]\n")
        .expect("a file");
    let path = folder.to_str().expect("UTF-8");
    let deploy = ["deploy", path, "--name", "hello", "--namespace", "plant"];
    let missing = said(node.mote(&deploy));
    assert!(missing.contains("mote secret set none --namespace plant"), "{missing}");

    // A call that continues delays the removal, and the node ends meanwhile.
    let slow = "import time\ndef handle(event, ctx):\n    for _ in range(600):\n        time.sleep(0.1)\n    return 'done'\n";
    std::fs::write(folder.join("app.py"), slow).expect("a file");
    std::fs::write(folder.join("mote.toml"), "version = 1\n").expect("a file");
    node.ok(&deploy);
    std::thread::scope(|scope| {
        scope.spawn(|| node.mote(&["invoke", "hello", "--namespace", "plant"]));
        wait_for("the call", || {
            let one = node.management("/v1/functions/hello.plant");
            (one["requests"]["running"].as_u64() > Some(0)).then_some(())
        });
        scope.spawn(|| node.mote(&["namespace", "delete", "plant", "--force", "--yes"]));
        wait_for("the removal", || is_closed(&node).then_some(()));
        for verb in [&["create"][..], &["delete", "--force", "--yes"]] {
            let again = said(node.mote(&[&["namespace"], verb, &["plant"]].concat()));
            assert!(again.contains("M0424") && again.contains("being deleted"), "{again}");
        }
        signal(node.pid(), "KILL");
    });
    let node = node.crash_and_restart();
    assert!(!is_closed(&node), "nothing had been removed");
    let names = node.ok(&["secret", "list", "-o", "name", "--namespace", "plant"]);
    assert!(names.contains("db"), "{names}");
    node.mote_with_input(&["secret", "set", "other", "--namespace", "plant"], b"value");
    node.ok(&["namespace", "delete", "plant", "--force", "--yes"]);
}

#[test]
fn a_removal_waits_for_what_runs_and_lets_nothing_else_begin() {
    let (node, _) = start();
    let slow = "import time\ndef handle(event, ctx):\n    for _ in range(30):\n        time.sleep(0.1)\n    return 'done'\n";
    assert!(deploy(&node, "plant", "slow", &[("app.py", slow)]).status.success(), "{}", node.log());
    let late = "import time\nfor _ in range(20):\n    time.sleep(0.1)\ndef handle(event, ctx):\n    return 'late'\n";
    std::thread::scope(|scope| {
        let call = scope.spawn(|| node.get("/slow.plant").text());
        wait_for("the call", || {
            let one = node.management("/v1/functions/slow.plant");
            (one["requests"]["running"].as_u64() > Some(0)).then_some(())
        });
        let change = scope.spawn(|| deploy(&node, "plant", "late", &[("app.py", late)]));
        wait_for("the deploy", || {
            let one = node.json(&["namespace", "describe", "plant", "-o", "json"]);
            (one["instances"].as_u64() > Some(1)).then_some(())
        });
        let removal =
            scope.spawn(|| node.mote(&["namespace", "delete", "plant", "--force", "--yes"]));
        wait_for("the removal", || {
            let one = node.json(&["namespace", "describe", "plant", "-o", "json"]);
            (one["is_being_deleted"] == true).then_some(())
        });
        let output = deploy(&node, "plant", "new", &[("app.py", HELLO)]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("M0424"), "{said}");
        let set = node.mote_with_input(&["secret", "set", "db", "--namespace", "plant"], b"x");
        assert!(String::from_utf8_lossy(&set.stderr).contains("M0424"), "{set:?}");
        assert!(change.join().expect("ended").status.success(), "the deploy had begun");
        let removed = removal.join().expect("ended");
        assert!(removed.status.success(), "{removed:?}\n{}", node.log());
        assert_eq!(call.join().expect("ended"), "done", "the call had begun");
    });
    assert_eq!(node.ok(&["list", "-o", "name"]), "");
    node.ok(&["namespace", "create", "plant"]);
    assert_eq!(node.ok(&["list", "-o", "name"]), "");
}
