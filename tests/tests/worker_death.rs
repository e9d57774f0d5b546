//! The death of a worker is reported correctly and costs no more than the calls that the worker
//! held (T-WORK).
//!
//! Workers are killed from outside while they run a call: 50 times, or 1,000 times with
//! `MOTE_LONG=1`.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use mote_tests::{
    Answer, Connection, Node, SLOWNESS, has_one_processor, is_long, programs, rounds, signal, skip,
    wait_for,
};

/// Run time of a call whose worker will be killed. The kill must come before its end.
const WORK_MS: u32 = 150 * SLOWNESS;
const SAID: &str = "killed by signal 9";

type Headers<'a> = &'a [(&'a str, &'a str)];

/// There is one instance at a time, so that a kill hits the working one.
const ALONE: &str = "version = 1\n[scale]\nmax = 1\n";

fn works(ms: u32) -> String {
    format!(
        "import time\ndef handle(event, ctx):\n    time.sleep({ms} / 1000)\n    return 'answered'\n"
    )
}

/// Reads an answer of the management API without starting a process for the request.
fn management(node: &Node, path: &str) -> String {
    let mut socket = UnixStream::connect(node.dir.path().join("s")).expect("the node's socket");
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).expect("the node reads");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("the node answers");
    text.split_once("\r\n\r\n").expect("an answer").1.to_owned()
}

/// Counts the invocations that run in instances of `function`.
fn running(node: &Node, function: &str) -> u64 {
    let body = management(node, &format!("/v1/functions/{function}"));
    let described: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    described["requests"]["running"].as_u64().expect("a number")
}

/// Kills every worker of the node while one call runs. Returns the time from the kill until the
/// answer. If `kills` is more than one, the next kill follows when the call runs again.
fn killed(
    node: &Node,
    function: &str,
    method: &str,
    headers: Headers,
    kills: u32,
) -> (Answer, Duration) {
    let http = node.http;
    let path = format!("/{function}");
    // An answer can be complete while the node still counts its invocation as running. The kill
    // would then come before the call.
    wait_for("the call before to end", || (running(node, function) == 0).then_some(()));
    std::thread::scope(|scope| {
        let call = scope.spawn(move || {
            let answer = Connection::open(http).call(method, &path, headers, b"");
            (answer, Instant::now())
        });
        let mut at = Instant::now();
        let mut before = Vec::new();
        for _ in 0..kills {
            // Waits for an instance in which the call has not run before.
            let pids = wait_for("the call to run in a worker", || {
                let pids = programs(node.pid());
                let fresh = pids.iter().any(|pid| !before.contains(pid));
                (fresh && running(node, function) == 1).then_some(pids)
            });
            at = Instant::now();
            for pid in &pids {
                signal(*pid, "KILL");
            }
            before = pids;
        }
        let (answer, ended) = call.join().expect("a caller");
        (answer, ended - at)
    })
}

/// Counts the instances that ended by themselves, according to the node's metrics.
fn crashes(node: &Node) -> u64 {
    let answer = management(node, "/metrics");
    let counts = answer.lines().filter(|line| {
        line.starts_with("mote_instance_stops_total{") && line.contains("reason=\"crash\"")
    });
    counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Measures how much longer a call takes if it needs a new instance.
fn cold_start(node: &Node) -> Duration {
    let since = Instant::now();
    let answer = Connection::open(node.http).call("GET", "/f", &[], b"");
    let took = since.elapsed();
    assert_eq!(answer.status, 200, "{answer:?}");
    took.saturating_sub(Duration::from_millis(WORK_MS.into()))
}

#[test]
fn a_killed_worker_fails_only_what_may_not_run_twice() {
    let node = Node::start();
    node.deploy_ok("f", &[("app.py", &works(WORK_MS)), ("mote.toml", ALONE)]);
    let rounds = if is_long() { 1_000 } else { rounds(50, 6) as usize };
    let key = [("idempotency-key", "k")];
    let kinds: [(&str, Headers, u16); 6] = [
        ("POST", &[], 502),
        ("GET", &[], 200),
        ("HEAD", &[], 200),
        ("PUT", &[], 200),
        ("DELETE", &[], 200),
        ("POST", &key, 200),
    ];
    let mut failed = 0;
    let mut again = 0;
    let mut cold = Vec::new();
    let mut replaced = Vec::new();
    for round in 0..rounds {
        let (method, headers, expected) = kinds[round % kinds.len()];
        let (answer, took) = killed(&node, "f", method, headers, 1);
        assert_eq!(answer.status, expected, "round {round}, {method}: {answer:?}");
        if expected == 200 {
            again += 1;
            replaced.push(took.saturating_sub(Duration::from_millis(WORK_MS.into())));
            continue;
        }
        failed += 1;
        assert!(answer.text().contains(SAID), "{}", answer.text());
        assert_eq!(answer.json()["code"], "M0511");
        // No call waited, so no instance was started until now.
        cold.push(cold_start(&node));
    }
    let cold = median(&mut cold);
    let replaced = median(&mut replaced);
    println!(
        "{rounds} workers killed, {failed} calls failed, {again} ran again; from the kill to work \
         in the replacement {replaced:?}, cold start {cold:?}: {:.2}",
        replaced.as_secs_f64() / cold.as_secs_f64()
    );
    let lines = node.log_lines("f");
    let told = lines.iter().filter(|line| line.message.contains(SAID)).count();
    assert!(told >= rounds.min(lines.len() / 4), "the log tells of {told} deaths of {rounds}");
}

#[test]
fn a_call_runs_again_once_and_never_after_its_answer_began() {
    let node = Node::start();
    node.deploy_ok("f", &[("app.py", &works(WORK_MS)), ("mote.toml", ALONE)]);
    let (answer, _) = killed(&node, "f", "GET", &[], 2);
    assert_eq!(answer.status, 502, "{answer:?}");
    node.ok(&["remove", "f", "--yes"]);
    let code = "import time\ndef handle(event, ctx):\n    if event.path.endswith('/quick'):\n        return 'answered'\n    def parts():\n        yield 'begun'\n        time.sleep(5)\n        yield 'ended'\n    return parts()\n";
    node.deploy_ok("s", &[("app.py", code)]);
    let mut connection = std::net::TcpStream::connect(node.http).expect("the front listens");
    connection.write_all(b"GET /s HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("the front reads");
    let mut seen = Vec::new();
    while !seen.windows(5).any(|part| part == b"begun") {
        let mut piece = [0; 1024];
        let count = connection.read(&mut piece).expect("the answer begins");
        assert!(count > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..count]);
    }
    programs(node.pid()).into_iter().for_each(|pid| signal(pid, "KILL"));
    connection.set_read_timeout(Some(Duration::from_secs(4))).expect("timeout");
    // The connection is closed or reset. The end of a complete answer must not arrive.
    let _ = connection.read_to_end(&mut seen);
    let text = String::from_utf8_lossy(&seen);
    assert_eq!(text.matches("begun").count(), 1, "{text}");
    assert!(!text.ends_with("0\r\n\r\n") && !text.contains("ended"), "{text}");
    wait_for("the replacement", || (node.get("/s/quick").status == 200).then_some(()));
}

/// A Node worker that ends by itself takes a moment to exit. Formerly, calls that arrived during
/// this moment were lost with it.
#[test]
fn calls_right_after_an_uncaught_exception_are_answered_by_the_next_worker() {
    let node = Node::start();
    let code = "export default (request) => {\n  const end = new URL(request.url).pathname;\n  if (end === '/') return 'answered';\n  setTimeout(() => { if (end === '/exit') process.exit(3); throw new Error('loose'); });\n  return new Promise(() => {});\n};\n";
    node.deploy_ok("f", &[("app.mjs", code), ("mote.toml", ALONE)]);
    let rounds = if is_long() { 200 } else { rounds(20, 2) };
    for round in 0..rounds {
        let end = if round % 2 == 0 { "/f/throw" } else { "/f/exit" };
        let mut first = Connection::open(node.http);
        let failed = first.call("POST", end, &[], b"");
        assert_eq!(failed.status, 500, "round {round}: {failed:?}");
        let is_answered = |connection: &mut Connection| {
            let next = connection.call("POST", "/f", &[], b"");
            assert_eq!((next.status, next.text().as_str()), (200, "answered"), "round {round}");
        };
        is_answered(&mut first);
        // If a start takes long, the front would close a connection that was opened before the
        // start.
        is_answered(&mut Connection::open(node.http));
    }
}

#[test]
fn no_more_calls_fail_than_the_worker_held() {
    const CALLS: usize = 12;
    let node = Node::start();
    let code = format!(
        "export default async () => {{ await new Promise(r => setTimeout(r, {WORK_MS})); return 'answered' }}\n"
    );
    let manifest = "version = 1\n[limits]\nconcurrency = 3\n[scale]\nmax = 2\nmin = 2\n";
    node.deploy_ok("f", &[("app.mjs", &code), ("mote.toml", manifest)]);
    let rounds = if is_long() { 100 } else { 5 };
    let mut failed = 0;
    let mut most = 0;
    let mut hit = 0;
    for round in 0..rounds {
        // The worker that was killed last must be gone, and the node must know it. Otherwise the
        // node might give calls to the dying worker, and these would be lost in addition to the
        // next worker's calls.
        wait_for("the end of the worker that was killed", || {
            (crashes(&node) == round).then_some(())
        });
        wait_for("both instances", || (programs(node.pid()).len() == 2).then_some(()));
        let http = node.http;
        let answers: Vec<Answer> = std::thread::scope(|scope| {
            let calls: Vec<_> = (0..CALLS)
                .map(|_| scope.spawn(move || Connection::open(http).call("POST", "/f", &[], b"")))
                .collect();
            // If this machine stalls, all calls may end before the kill. Then nothing is lost.
            wait_for("calls to run", || {
                let over = calls.iter().all(|call| call.is_finished());
                (over || running(&node, "f") >= 6).then_some(())
            });
            signal(*programs(node.pid()).first().expect("a worker"), "KILL");
            calls.into_iter().map(|call| call.join().expect("a caller")).collect()
        });
        let lost = answers.iter().filter(|answer| answer.status == 502).count();
        let good = answers.iter().filter(|answer| answer.status == 200).count();
        assert!(
            lost + good == CALLS && lost <= 3,
            "{lost} calls failed, {good} succeeded; the worker held 3: {:#?}, {:#?}",
            answers.iter().map(Answer::text).collect::<Vec<_>>(),
            node.log_lines("f")
        );
        failed += lost;
        most = most.max(lost);
        hit += u64::from(lost > 0);
    }
    println!(
        "{rounds} workers killed, {hit} at work: {failed} calls failed, {most} at most at once"
    );
    // On one processor, or a slow one, the calls may all end before the test runs again.
    if hit <= rounds / 2 && (has_one_processor() || SLOWNESS > 1) {
        return skip("kills of workers at work", "this machine is too slow");
    }
    assert!(hit > rounds / 2, "only {hit} of {rounds} were at work");
}

#[test]
fn a_crash_loop_backs_off_and_says_so() {
    let node = Node::start();
    // The function exits by itself soon after it is ready, without any request.
    let code = "import os, threading\nthreading.Timer(0.2, os._exit, [3]).start()\ndef handle(event, ctx):\n    return 'fine'\n";
    node.deploy_ok("f", &[("app.py", code), ("mote.toml", "version = 1\n[scale]\nmin = 1\n")]);
    let pauses: &[u64] = if is_long() { &[1, 2, 4, 8, 16, 32, 60, 60] } else { &[1, 2] };
    let mut refused = 0;
    for (count, pause) in pauses.iter().enumerate() {
        let said = format!("died {} times before its first answer", 3 + count);
        wait_for(&said, || {
            node.log_lines("f").iter().any(|line| line.message.contains(&said)).then_some(())
        });
        // A caller that arrives now is answered at once, unless this machine stalled for that long.
        refused += usize::from(node.post("/f", b"").json()["code"] == "M0411");
        println!("pause of {pause} s: {refused} refused");
    }
    // The node's clock decides, because a caller may learn of a death late.
    let lines = wait_for("the start after the last pause", || {
        let lines = node.log_lines("f");
        let last = lines.iter().rposition(|line| line.message.contains("before its first answer"));
        let again =
            |at: usize| lines[at..].iter().any(|line| line.message.starts_with("ready after"));
        last.is_some_and(again).then_some(lines)
    });
    for (count, pause) in pauses.iter().enumerate() {
        let said = format!(
            "died {} times before its first answer: the next start is tried in {pause} s",
            3 + count
        );
        let paused = lines.iter().position(|line| line.message.contains(&said)).expect(&said);
        let next = lines[paused..].iter().find(|line| line.message.starts_with("ready after"));
        let gap_us = next.expect("it is started again").unix_us - lines[paused].unix_us;
        // The line is written after the pause has begun, on a busy machine some milliseconds later.
        assert!(gap_us >= pause * 1_000_000 - 100_000, "{gap_us} us, not {pause} s");
    }
    assert!(refused > 0);
}

#[test]
fn requests_that_kill_their_worker_cost_others_little() {
    let node = Node::start();
    let code = "import os\ndef handle(event, ctx):\n    if event.path == '/kill':\n        os.kill(os.getpid(), 9)\n    return 'fine'\n";
    node.deploy_ok("f", &[("app.py", code), ("mote.toml", ALONE)]);
    let rounds = if is_long() { 100 } else { 5 };
    let mut killed = 0;
    let mut served = 0;
    for _ in 0..rounds {
        // Each call kills a worker, and then the worker that runs the call again.
        for _ in 0..2 {
            killed += usize::from(node.get("/f/kill").json()["code"] == "M0511");
        }
        served += usize::from(node.post("/f", b"").status == 200);
    }
    let told = node.log();
    let line = told.lines().find(|line| line.contains("instance ended")).expect(&told);
    for part in ["\"f@1\"", "crash", SAID] {
        assert!(line.contains(part), "{line} without {part}");
    }
    println!("{served} of {rounds} calls were served between {killed} GETs that killed");
    assert_eq!((killed, served), (2 * rounds, rounds));
}
