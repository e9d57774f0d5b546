//! A crash preserves every function, and nothing else (R85; reliability: T-KILL's sync half,
//! T-BOOT).

use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mote_tests::{
    Connection, Node, cgroup_folders, cgroup_processes, mote_binary, signal, skip, wait_for,
};

const FUNCTIONS: usize = 200 / mote_tests::SLOWNESS as usize;

#[test]
fn two_hundred_functions_come_back_after_kill_9() {
    let node = Node::start();
    // One revision is deployed normally. Each deploy starts an instance, so the other functions
    // share the code, and a short idle time stops their instances.
    for number in 0..FUNCTIONS {
        let code = format!("def handle(event, ctx):\n    return 'f{number}'\n");
        let manifest = "version = 1\nruntime = \"python\"\nentry = \"app:handle\"\n[scale]\nidle = \"100ms\"\n";
        node.deploy_ok(&format!("f{number}"), &[("app.py", &code), ("mote.toml", manifest)]);
    }
    let pid = node.pid();
    let node = node.crash_and_restart();
    println!("ready after {} ms with {FUNCTIONS} functions", node.ready_after.as_millis());
    // `make bench-footprint` measures the exact time. On a shared machine, a test cannot prove a
    // duration.
    let limit = Duration::from_secs(20) * mote_tests::SLOWNESS;
    assert!(node.ready_after < limit, "{:?}", node.ready_after);
    assert_eq!(cgroup_folders(pid), Vec::<std::path::PathBuf>::new(), "left by the killed node");
    let started = Instant::now();
    let mut connection = Connection::open(node.http);
    for number in 0..FUNCTIONS {
        let answer = connection.call("GET", &format!("/f{number}"), &[], b"");
        assert_eq!((answer.status, answer.text()), (200, format!("f{number}")));
    }
    println!("{FUNCTIONS} first answers in {} ms", started.elapsed().as_millis());
    let list = node.json(&["list", "-o", "json"]);
    let text = list.to_string();
    assert!((0..FUNCTIONS).all(|number| text.contains(&format!("\"f{number}\""))));
}

#[test]
fn a_node_that_is_still_starting_ends_when_it_is_told_to() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name);
    // A fake compiler that is killed before it prints its version. It records that it was asked.
    let fake = format!(
        "#!/bin/sh\ntouch {0}\nexec cat {1}\n",
        path("asked").display(),
        path("never").display()
    );
    std::fs::create_dir(path("bin")).expect("a folder");
    std::fs::write(path("bin/go"), fake).expect("a file");
    std::fs::set_permissions(path("bin/go"), std::fs::Permissions::from_mode(0o755)).expect("mode");
    let made = Command::new("mkfifo").arg(path("never")).status().expect("mkfifo");
    assert!(made.success());
    let old = std::env::var("PATH").unwrap_or_default();
    let mut node = Command::new(mote_binary())
        .args(["up", "--http", "127.0.0.1:0", "--coap", "off", "--data"])
        .arg(path("data"))
        .arg("--socket")
        .arg(path("s"))
        .env("PATH", format!("{}:{old}", path("bin").display()))
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(path("log")).expect("a file"))
        .spawn()
        .expect("the node");
    wait_for("the compiler to be asked", || path("asked").exists().then_some(()));
    signal(node.id(), "TERM");
    let ended = wait_for("the end of the start", || node.try_wait().expect("a child"));
    // Opening the file for writing lets the process that the compiler started read to its end.
    let _ = std::fs::OpenOptions::new().write(true).custom_flags(0o4000).open(path("never"));
    // The compiler was asked before the node was ready, because the node waits for it up to the
    // time limit.
    let log = std::fs::read_to_string(path("log")).expect("a log");
    assert!(
        ended.success() && log.contains("received a signal to stop while it was starting"),
        "{ended}: {log}"
    );
}

/// Starts a node with a running instance. Also returns the node's process id.
fn serving() -> (Node, u32) {
    let node = Node::start();
    node.deploy_ok("f", &[("app.py", "def handle(event, ctx):\n    return 'here'\n")]);
    assert_eq!(node.get("/f").text(), "here");
    let pid = node.pid();
    (node, pid)
}

fn gone(processes: &[u32]) -> Option<()> {
    let alive = |pid: &u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
    (!processes.iter().any(alive)).then_some(())
}

#[test]
fn a_clean_stop_leaves_no_processes_or_cgroups() {
    let (node, pid) = serving();
    if !node.has_cgroups() {
        return skip("leftovers", "control groups need root or a delegated group");
    }
    let processes = cgroup_processes(pid);
    assert!(!cgroup_folders(pid).is_empty() && !processes.is_empty());
    assert!(node.stop().success());
    assert_eq!(cgroup_folders(pid), Vec::<std::path::PathBuf>::new());
    wait_for("the last process to go", || gone(&processes));
}

#[test]
fn the_next_start_removes_what_kill_9_left() {
    let (node, pid) = serving();
    if !node.has_cgroups() {
        return skip("leftovers", "control groups need root or a delegated group");
    }
    let processes = cgroup_processes(pid);
    assert!(!processes.is_empty());
    let node = node.crash_and_restart();
    assert_eq!(cgroup_folders(pid), Vec::<std::path::PathBuf>::new());
    wait_for("the last process to go", || gone(&processes));
    assert_eq!(node.get("/f").text(), "here");
}

/// If a file with accepted calls or state is missing or damaged, the node must still start, but
/// must report it.
#[test]
fn lost_databases_are_said_and_the_node_goes_on() {
    let code = "def handle(event, ctx):\n    return str(ctx.kv.increment('n'))\n";
    let mut node = Node::start();
    node.deploy_ok("f", &[("app.py", code)]);
    let data = node.dir.path().join("data");
    type Damage = fn(&std::path::Path);
    let damages: [(Damage, &str); 4] = [
        (|path| std::fs::remove_file(path).unwrap(), "is missing or empty"),
        (|path| std::fs::write(path, "").unwrap(), "is missing or empty"),
        (
            |path| {
                // The log contains whole pages, from which SQLite would restore the file.
                let _ = std::fs::remove_file(path.with_extension("db-wal"));
                std::fs::File::options().write(true).open(path).unwrap().set_len(4_096).unwrap();
            },
            "is damaged (it has ",
        ),
        (
            |path| std::fs::write(path, vec![b'x'; 9_000]).unwrap(),
            "is damaged (it is not a database)",
        ),
    ];
    for (damage, expected) in damages {
        // Both files are made again, and the node has reported the loss.
        assert_eq!(node.get("/f").text(), "1");
        let accepted = node.call("POST", "/f", &[("prefer", "respond-async")], b"");
        assert_eq!(accepted.status, 202, "{}", accepted.text());
        wait_for("the accepted call", || (node.get("/f").text() != "2").then_some(()));
        node = node.restart_after(false, || {
            for name in ["journal.db", "state.db"] {
                damage(&data.join(name));
            }
        });
        let log = node.log();
        let doctor = node.doctor(&[]);
        for name in ["journal.db", "state.db"] {
            assert!(log.contains(&format!("{name} {expected}")), "{log}");
            assert!(doctor.contains(name), "{doctor}");
        }
    }
    assert!(data.join("state.db.damaged-2").exists() && data.join("journal.db.damaged-2").exists());
    // An untouched file is not reported.
    assert_eq!(node.get("/f").text(), "1");
    let node = node.crash_and_restart();
    assert_eq!(node.get("/f").text(), "2");
    assert!(!node.doctor(&[]).contains("state.db"));
}

#[test]
fn a_second_node_on_the_same_data_is_refused() {
    let node = Node::start();
    let data = node.dir.path().join("data");
    let socket = node.dir.path().join("other");
    let output = std::process::Command::new(mote_tests::mote_binary())
        .args(["up", "--http", "127.0.0.1:0", "--coap", "127.0.0.1:0", "--data"])
        .arg(&data)
        .arg("--socket")
        .arg(&socket)
        .output()
        .expect("the binary starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(75), "{text}");
    assert!(text.contains(&format!("in use by pid {}", node.pid())), "{text}");
}

#[test]
fn a_node_without_its_helper_stops_and_says_why() {
    let (mut node, pid) = serving();
    // The zygote is the node's only child.
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.expect("a kernel that lists children");
    let helper: u32 = children.trim().parse().expect("one child");
    mote_tests::signal(helper, "KILL");
    let status = node.ended();
    assert_eq!(status.code(), Some(71), "{status}: {}", node.log());
    let log = node.log();
    assert!(log.contains("the zygote, which starts functions, has ended"), "{log}");
}

#[test]
fn stopping_is_clean() {
    let node = Node::start();
    node.deploy_ok(
        "slow",
        &[(
            "app.py",
            "import time\ndef handle(event, ctx):\n    time.sleep(1)\n    return 'done'\n",
        )],
    );
    let http = node.http;
    let call = std::thread::spawn(move || Connection::open(http).call("GET", "/slow", &[], b""));
    wait_for("the call to run", || {
        let described = node.json(&["describe", "slow", "-o", "json"]);
        (described["requests"]["running"] == 1).then_some(())
    });
    let pid = node.pid();
    let status = node.stop();
    assert!(status.success(), "{status}");
    let answer = call.join().expect("the call");
    assert_eq!((answer.status, answer.text()), (200, "done".into()), "cut short by the stop");
    assert_eq!(cgroup_folders(pid), Vec::<std::path::PathBuf>::new());
}

#[test]
fn functions_that_are_deployed_at_each_start_get_a_revision_only_when_they_change() {
    let project = tempfile::tempdir().expect("a folder");
    let folder = project.path().join("hello");
    std::fs::create_dir(&folder).expect("made");
    let write = |answer: &str| {
        let code = format!("def handle(event, ctx):\n    return '{answer}'\n");
        std::fs::write(folder.join("app.py"), code).expect("written");
    };
    write("one");
    let node = Node::start_with(&[folder.to_str().expect("text")]);
    let said = |node: &Node, text: &str| {
        wait_for(text, || {
            let out = std::fs::read_to_string(node.dir.path().join("up.out")).expect("readable");
            out.contains(text).then_some(())
        });
    };
    let revisions = |node: &Node| {
        let list = node.json(&["revisions", "hello", "-o", "json"]);
        list["revisions"].as_array().expect("a list").len()
    };
    said(&node, "hello@1 is live");
    let node = node.stop_and_restart();
    said(&node, "hello has not changed; @1 stays live");
    assert_eq!(revisions(&node), 1);
    let node = node.restart_after(false, || write("two"));
    said(&node, "hello@2 is live");
    // A rollback stays in effect.
    node.ok(&["rollback", "hello"]);
    let node = node.stop_and_restart();
    said(&node, "hello has not changed; @1 stays live");
    assert_eq!((revisions(&node), node.get("/hello").text().as_str()), (2, "one"));
    // If somebody deploys the same code, that code must become live.
    assert!(node.ok(&["deploy", folder.to_str().expect("text")]).contains("hello@3 is live"));
    assert_eq!(node.get("/hello").text(), "two");
}
