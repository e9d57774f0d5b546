//! The class of each fault and the caller's answer (reliability.md 4, row 92; T-WORK), and limits.

use std::time::{Duration, Instant};

use mote_tests::{Connection, Node, signal, wait_for};

fn manifest(limits: &str) -> String {
    format!("version = 1\n[limits]\n{limits}\n")
}

#[test]
fn an_error_in_the_function_is_500_and_the_worker_lives_on() {
    let node = Node::start();
    let code = "calls = 0\ndef handle(event, ctx):\n    global calls\n    calls += 1\n    if event.text == 'bad':\n        raise ValueError('secret-word')\n    return str(calls)\n";
    node.deploy_ok("f", &[("app.py", code)]);
    let answer = node.post("/f", b"bad");
    assert_eq!((answer.status, answer.json()["code"].as_str()), (500, Some("M0510")));
    assert!(!answer.text().contains("secret-word"), "the function's words reached the network");
    assert_eq!(node.post("/f", b"good").text(), "2");
    let output = node.mote(&["invoke", "f", "-d", "bad"]);
    assert_eq!(output.status.code(), Some(5));
    let logs = node.ok(&["logs", "f"]);
    assert!(logs.contains("secret-word") && logs.contains("app.py"), "{logs}");
}

/// A caller leaves, and its call goes on for longer than the second within which an instance must
/// end a call whose deadline has passed.
#[test]
fn a_caller_that_leaves_does_not_fail_the_calls_of_others() {
    let node = Node::start();
    let code = "export async function handle(event) {\n  \
                await new Promise((end) => setTimeout(end, 3000));\n  return 'done';\n}\n";
    let manifest = "version = 1\n[scale]\nmax = 1\n";
    node.deploy_ok("slow", &[("app.mjs", code), ("mote.toml", manifest)]);
    let http = node.http;
    let others: Vec<_> = (0..3)
        .map(|_| std::thread::spawn(move || mote_tests::call_at(http, "GET", "/slow", &[], b"")))
        .collect();
    let mut leaves = std::net::TcpStream::connect(http).expect("the node listens");
    std::io::Write::write_all(&mut leaves, b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .expect("sent");
    mote_tests::wait_for("four calls in the function", || {
        let shown = node.json(&["describe", "slow", "-o", "json"]);
        (shown["requests"]["running"] == 4).then_some(())
    });
    drop(leaves);
    for other in others {
        let answer = other.join().expect("an answer");
        assert_eq!((answer.status, answer.text()), (200, "done".into()));
    }
    assert!(!node.ok(&["logs", "slow"]).contains("killed"), "{}", node.ok(&["logs", "slow"]));
}

#[test]
fn a_deadline_ends_the_wait_and_the_stuck_worker() {
    let node = Node::start();
    let code = "import time\ndef handle(event, ctx):\n    if event.text == 'hang':\n        time.sleep(60)\n    return 'ok'\n";
    node.deploy_ok("f", &[("app.py", code), ("mote.toml", &manifest("timeout = \"500ms\""))]);
    let started = Instant::now();
    let answer = node.post("/f", b"hang");
    let took = started.elapsed();
    assert_eq!((answer.status, answer.json()["code"].as_str()), (504, Some("M0509")));
    let deadline = Duration::from_millis(500) * mote_tests::SLOWNESS;
    assert!(took >= deadline, "{took:?}");
    println!("504 after {} ms of {}", took.as_millis(), deadline.as_millis());
    // The stuck worker is replaced. The next call may have to wait for the replacement, but is
    // answered.
    wait_for("a fresh worker", || (node.post("/f", b"fine").status == 200).then_some(()));
    let id = answer.header("mote-invocation").expect("an id");
    let of_call = node.ok(&["logs", "f", "--invocation", id]);
    assert!(
        of_call.contains("call failed: f: deadline of") && of_call.contains("M0509"),
        "{of_call}"
    );
    let output = node.mote(&["invoke", "f", "-d", "hang"]);
    assert_eq!(output.status.code(), Some(6));
}

/// More calls wait for a stuck instance than it can be given in advance.
#[test]
fn calls_that_expire_in_the_queue_have_lines() {
    let node = Node::start();
    let code = "import time\ndef handle(event, ctx):\n    time.sleep(60)\n";
    let limits = manifest("timeout = \"500ms\"\nconcurrency = 1\n[scale]\nmax = 1");
    node.deploy_ok("f", &[("app.py", code), ("mote.toml", &limits)]);
    let http = node.http;
    let calls: Vec<_> = (0..30)
        .map(|_| std::thread::spawn(move || mote_tests::call_at(http, "POST", "/f", &[], b"")))
        .collect();
    let mut queued = 0;
    for call in calls {
        let answer = call.join().expect("an answer");
        let id = answer.header("mote-invocation").expect("an id");
        let code = answer.json()["code"].as_str().expect("a code").to_owned();
        wait_for("the line of the call", || {
            let of_call = node.ok(&["logs", "f", "--invocation", id]);
            let is_there = of_call.contains("call failed: f: deadline of");
            (is_there && of_call.contains(&code)).then_some(())
        });
        queued += u32::from(code == "M0507");
    }
    assert!(queued > 0, "no call expired in the queue");
}

/// Sends a request and reads everything until the connection closes. Returns the id of the call.
fn torn(node: &Node, path: &str) -> String {
    let mut socket = std::net::TcpStream::connect(node.http).expect("the node listens");
    let request = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n");
    std::io::Write::write_all(&mut socket, request.as_bytes()).expect("sent");
    socket.set_read_timeout(Some(mote_tests::PATIENCE)).expect("a limit");
    let mut answer = Vec::new();
    let _ = std::io::Read::read_to_end(&mut socket, &mut answer);
    let answer = String::from_utf8_lossy(&answer).to_lowercase();
    assert!(answer.contains("begun") && !answer.ends_with("0\r\n\r\n"), "{answer}");
    let id = answer.split("mote-invocation: ").nth(1).expect("an id");
    id.split("\r\n").next().expect("an id").to_uppercase()
}

/// The caller of an answer that stops in the middle cannot see why.
#[test]
fn answers_that_end_early_have_a_line() {
    let node = Node::start();
    let shim = "import os, signal\ndef handle(event, ctx):\n    yield b'begun'\n    \
                os.kill(os.getpid(), signal.SIGKILL)\n    yield b'never'\n";
    node.deploy_ok("shim", &[("app.py", shim)]);
    let server = r#"
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_POST(self):
        self.send_response(200)
        self.send_header('transfer-encoding', 'chunked')
        self.end_headers()
        self.wfile.write(b'5\r\nbegun\r\n')
        self.wfile.flush()
        self.close_connection = True
http.server.ThreadingHTTPServer(('127.0.0.1', int(os.environ['PORT'])), Handler).serve_forever()
"#;
    let manifest = "version = 1\nruntime = \"server\"\ncommand = [\"python3\", \"server.py\"]\n";
    node.deploy_ok("server", &[("server.py", server), ("mote.toml", manifest)]);
    for (function, reason) in [
        ("shim", "shim: worker was killed by signal 9 (M0511)"),
        ("server", "reply ended early (M0513)"),
    ] {
        let id = torn(&node, &format!("/{function}"));
        let expected = format!("call failed: its answer had begun; {reason}");
        let mut of_call = String::new();
        wait_for("the line of the call", || {
            of_call = node.ok(&["logs", function, "--invocation", &id]);
            of_call.contains(&expected).then_some(())
        });
    }
}

/// A call waits for something that never comes. The instance can still run other callers' calls,
/// and shows this by its answer to the cancellation.
#[test]
fn a_passed_deadline_does_not_fail_the_calls_of_others() {
    let node = Node::start();
    let code = "export async function handle(event) {\n  \
                await new Promise((end) => event.path === '/hang' || setTimeout(end, 1800));\n  \
                return 'done';\n}\n";
    let manifest = "version = 1\n[scale]\nmax = 1\n[limits]\ntimeout = \"2s\"\n";
    node.deploy_ok("f", &[("app.mjs", code), ("mote.toml", manifest)]);
    assert_eq!(node.get("/f/hang").status, 504);
    let answer = node.post("/f", b"");
    assert_eq!((answer.status, answer.text()), (200, "done".into()));
    wait_for("the end of the instance", || {
        node.ok(&["logs", "f"]).contains("deadline").then_some(())
    });
    assert_eq!(node.post("/f", b"").status, 200);
}

#[test]
fn a_slow_machine_extends_the_timeouts_of_its_functions() {
    // An emulated machine needs more than 10 s to start an interpreter. 100 is the largest factor.
    let factor = (20 * mote_tests::SLOWNESS).min(100);
    let node = Node::start_with(&["--timeout-factor", &factor.to_string()]);
    // Loading takes a second, and so does the work. The manifest allows half a second for each.
    let code = "import time\ntime.sleep(1)\ndef handle(event, ctx):\n    time.sleep(1)\n    return 'late'\n";
    let manifest = manifest("timeout = \"500ms\"\ninit_timeout = \"500ms\"");
    node.deploy_ok("f", &[("app.py", code), ("mote.toml", &manifest)]);
    assert_eq!(node.get("/f").text(), "late");
    let described = node.json(&["describe", "f", "-o", "json"]);
    assert_eq!(described["limits"]["timeout_ms"], 500 * factor, "{described}");
}

#[test]
fn a_killed_worker_is_named_and_safe_methods_run_again() {
    let node = Node::start();
    // The function kills itself when the request asks for it, but only once per file in its own
    // /tmp. A new instance has an empty /tmp, so for the second attempt the only possible marker is
    // in the request.
    let code = "import os, signal\ndef handle(event, ctx):\n    if event.method == 'POST' or event.headers.get('x-die') == 'always':\n        os.kill(os.getpid(), signal.SIGKILL)\n    return 'alive'\n";
    node.deploy_ok("f", &[("app.py", code)]);
    let answer = node.post("/f", b"");
    assert_eq!((answer.status, answer.json()["code"].as_str()), (502, Some("M0511")));
    assert!(answer.text().contains("signal 9"), "{}", answer.text());
    let id = answer.header("mote-invocation").expect("an id");
    let of_call = node.ok(&["logs", "f", "--invocation", id]);
    assert!(of_call.contains("signal 9 (M0511)"), "{of_call}");
    // If a GET kills every worker, it is retried only once.
    let answer = node.call("GET", "/f", &[("x-die", "always")], b"");
    assert_eq!(answer.status, 502);
    assert!(answer.text().contains("also at the second attempt"), "{}", answer.text());
    wait_for("a fresh worker", || (node.get("/f").status == 200).then_some(()));
}

#[test]
fn a_get_whose_worker_is_killed_from_outside_is_answered_by_the_next() {
    let node = Node::start();
    // The work takes long enough for the function to be killed meanwhile.
    let seconds = f64::from(mote_tests::SLOWNESS) / 2.0;
    let code = format!(
        "import time\ndef handle(event, ctx):\n    time.sleep({seconds})\n    return 'answered'\n"
    );
    node.deploy_ok("f", &[("app.py", &code)]);
    let http = node.http;
    let call = std::thread::spawn(move || Connection::open(http).call("GET", "/f", &[], b""));
    let instance = wait_for("the call to run", || {
        let described = node.json(&["describe", "f", "-o", "json"]);
        let pid = described["instances"][0]["pid"].as_u64()?;
        (described["requests"]["running"] == 1).then_some(pid as u32)
    });
    let output = std::process::Command::new("pgrep").args(["-f", "mote_shim.py"]).output().unwrap();
    let all = String::from_utf8_lossy(&output.stdout).into_owned();
    let ours = all
        .lines()
        .filter_map(|line| line.parse::<u32>().ok())
        .filter(|pid| descends_from(*pid, instance));
    for pid in ours {
        signal(pid, "KILL");
    }
    let answer = call.join().unwrap();
    assert_eq!((answer.status, answer.text()), (200, "answered".into()));
}

fn descends_from(mut pid: u32, ancestor: u32) -> bool {
    while pid > 1 {
        if pid == ancestor {
            return true;
        }
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(2)?.parse().ok());
        pid = parent.unwrap_or(0);
    }
    false
}

#[test]
fn memory_is_limited_and_the_answer_says_so() {
    let node = Node::start();
    let code = "def handle(event, ctx):\n    held = bytearray(int(event.text) << 20)\n    return str(len(held))\n";
    node.deploy_ok("f", &[("app.py", code), ("mote.toml", &manifest("memory = \"48MiB\""))]);
    assert_eq!(node.post("/f", b"1").text(), (1 << 20).to_string());
    let answer = node.post("/f", b"400");
    // If the interpreter notices the refusal first, it raises MemoryError. Otherwise the kernel
    // kills it.
    let code = answer.json()["code"].as_str().map(str::to_owned);
    assert!(
        matches!((answer.status, code.as_deref()), (502, Some("M0502")) | (500, Some("M0510"))),
        "{answer:?}"
    );
    wait_for("a fresh worker", || (node.post("/f", b"1").status == 200).then_some(()));
}

#[test]
fn the_private_disk_has_a_quota() {
    let node = Node::start();
    let code = "def handle(event, ctx):\n    try:\n        with open('/tmp/x', 'wb') as f:\n            for _ in range(64):\n                f.write(bytes(1 << 20))\n    except OSError as e:\n        return 'errno %d' % e.errno\n    return 'no limit'\n";
    let limits = manifest("disk = \"4MiB\"\nmemory = \"128MiB\"");
    node.deploy_ok("f", &[("app.py", code), ("mote.toml", &limits)]);
    assert_eq!(node.get("/f").text(), "errno 28");
}

#[test]
fn bodies_and_methods_have_limits() {
    let node = Node::start();
    let manifest = "version = 1\nmethods = [\"POST\"]\n[limits]\nbody = \"10KiB\"\n";
    node.deploy_ok(
        "f",
        &[
            ("app.py", "def handle(event, ctx):\n    return str(len(event.body))\n"),
            ("mote.toml", manifest),
        ],
    );
    assert_eq!(node.post("/f", &[0; 10 << 10]).text(), "10240");
    let answer = node.post("/f", &[0; (10 << 10) + 1]);
    assert_eq!(answer.status, 413);
    assert!(
        answer
            .text()
            .contains("body limit 10 KiB; raise it: body in [limits] or body_max in [http]")
    );
    let answer = node.get("/f");
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
}

#[test]
fn a_full_queue_refuses_cleanly() {
    let node = Node::start();
    let code = "import time\ndef handle(event, ctx):\n    time.sleep(1)\n    return 'ok'\n";
    let manifest = "version = 1\n[scale]\nmax = 1\nqueue = 2\n";
    node.deploy_ok("f", &[("app.py", code), ("mote.toml", manifest)]);
    let http = node.http;
    let calls: Vec<_> = (0..6)
        .map(|_| std::thread::spawn(move || Connection::open(http).call("GET", "/f", &[], b"")))
        .collect();
    let answers: Vec<_> = calls.into_iter().map(|call| call.join().unwrap()).collect();
    let ok = answers.iter().filter(|answer| answer.status == 200).count();
    let refused: Vec<_> = answers.iter().filter(|answer| answer.status == 429).collect();
    assert_eq!((ok, refused.len()), (3, 3), "{answers:?}");
    assert!(refused.iter().all(|answer| answer.header("retry-after") == Some("1")));
}

/// A server's connection breaks before the node knows that the server has ended.
#[test]
fn a_server_that_ends_during_a_call_is_named() {
    const CODE: &str = "import os, http.server\n\
        class Handler(http.server.BaseHTTPRequestHandler):\n\
        \x20   def do_GET(self):\n\
        \x20       if 'exit' in self.path: os._exit(3)\n\
        \x20       self.send_response(200)\n\
        \x20       self.end_headers()\n\
        port = int(os.environ['PORT'])\n\
        http.server.ThreadingHTTPServer(('127.0.0.1', port), Handler).serve_forever()\n";
    let node = Node::start();
    let manifest = "version = 1\nruntime = \"server\"\ncommand = [\"python3\", \"server.py\"]\n";
    node.deploy_ok("serves", &[("server.py", CODE), ("mote.toml", manifest)]);
    assert_eq!(node.get("/serves").status, 200);
    let answer = node.get("/serves?exit");
    assert_eq!((answer.status, answer.json()["code"].as_str()), (502, Some("M0512")));
    assert_eq!(node.get("/serves").status, 200, "a new instance serves");
}
