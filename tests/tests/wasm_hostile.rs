//! WebAssembly files and programs that try to harm the node or their neighbours. Each attempt ends
//! with an error in its own function, or does nothing. It affects neither the node nor another
//! function, which is called all the time.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mote_tests::wasm::{deploy, has_engine};
use mote_tests::{Connection, Node};

/// What must happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The deploy is refused.
    Refused,
    /// The call fails.
    Fails,
    /// The call fails at its deadline.
    Deadline,
    /// The program notices that it cannot go further, and answers.
    Answers,
    /// The answer is cut off, or the call fails.
    Cut,
}
use Outcome::{Answers, Cut, Deadline, Fails, Refused};

const MANIFEST: &str = "runtime = \"wasm\"\n[limits]\ntimeout = \"700ms\"\nmemory = \"64MiB\"\n\
                        disk = \"1MiB\"\n[scale]\nmax = 1\nidle = \"1s\"\n";
/// Functions of preview 1 with a short name. The memory begins with room for results, and contains
/// the path at 64.
const WASI: &str = r#"
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_create_directory" (func $mkdir (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_symlink" (func $symlink (param i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_renumber" (func $renumber (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "clock_time_get" (func $time (param i32 i64 i32) (result i32)))
  (import "wasi_snapshot_preview1" "args_get" (func $args (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi_snapshot_preview1" "sock_accept" (func $accept (param i32 i32 i32) (result i32)))
"#;

/// A program whose body is `body`, with one page of memory that begins with `data`.
fn program(data: &str, body: &str) -> String {
    format!(
        "(module {WASI} (memory (export \"memory\") 1) (data (i32.const 64) \"{data}\")\n\
         (func (export \"_start\") (local $n i32) {body}))"
    )
}

/// A module without imports.
fn plain(parts: &str, body: &str) -> String {
    format!("(module {parts} (func (export \"_start\") (local $n i32) {body}))")
}

/// Tries to open the path at 64 below each of the program's folders, and fails if that succeeds.
fn opens(path: &str, length: usize) -> String {
    let mut body = String::new();
    for folder in 3..6 {
        let _ = write!(
            body,
            "(if (i32.eqz (call $open (i32.const {folder}) (i32.const 1) (i32.const 64) \
             (i32.const {length}) (i32.const 0) (i64.const 2) (i64.const 0) (i32.const 0) \
             (i32.const 0))) (then unreachable))"
        );
    }
    program(path, &body)
}

#[expect(clippy::too_many_lines, reason = "a list")]
fn programs() -> Vec<(&'static str, Outcome, String)> {
    let spin = "(loop $l (br $l))";
    let big = |count: usize, one: &str| one.repeat(count);
    vec![
        // Time.
        ("loop", Deadline, plain("", spin)),
        ("start-loop", Deadline, plain(&format!("(func $f {spin}) (start $f)"), "")),
        (
            "fill-loop",
            Deadline,
            plain(
                "(memory 500)",
                "(loop $l (memory.fill (i32.const 0) (i32.const 1) (i32.const 32768000)) (br $l))",
            ),
        ),
        (
            "copy-loop",
            Deadline,
            plain(
                "(memory 500)",
                "(loop $l (memory.copy (i32.const 0) (i32.const 1) (i32.const 32767999)) (br $l))",
            ),
        ),
        ("call-loop", Deadline, plain("(func $f)", "(loop $l (call $f) (br $l))")),
        (
            "clock-flood",
            Deadline,
            program(
                "",
                "(loop $l (drop (call $time (i32.const 0) (i64.const 1) (i32.const 0))) (br $l))",
            ),
        ),
        (
            "sleep",
            Deadline,
            program(
                // A subscription to a time on the monotonic clock that is an hour away.
                "\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\01\\00\\00\\00\\00\\00\\00\\00\\00\\a0\\b8\\30\\46\\03\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00",
                "(drop (call $poll (i32.const 64) (i32.const 256) (i32.const 1) (i32.const 0)))",
            ),
        ),
        // Stack.
        ("recursion", Fails, plain("(func $f (call $f))", "(call $f)")),
        (
            "recursion-indirect",
            Fails,
            plain(
                "(type $t (func)) (table 1 funcref) (elem (i32.const 0) $f) (func $f (call_indirect (type $t) (i32.const 0)))",
                "(call $f)",
            ),
        ),
        (
            "recursion-locals",
            Fails,
            plain(
                &format!(
                    "(func $f (param {}) (call $f {}))",
                    big(500, "i64 "),
                    (0..500).map(|n| format!("(local.get {n})")).collect::<String>()
                ),
                &format!("(call $f {})", big(500, "(i64.const 1)")),
            ),
        ),
        // Memory and tables.
        (
            "grow",
            Answers,
            plain(
                "(memory 1)",
                "(loop $l (br_if $l (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))",
            ),
        ),
        (
            "grow-touch",
            Answers,
            plain(
                "(memory 1)",
                "(loop $l (local.set $n (memory.grow (i32.const 1))) (if (i32.ne (local.get $n) (i32.const -1)) (then (i32.store (i32.mul (local.get $n) (i32.const 65536)) (i32.const 1)) (br $l))))",
            ),
        ),
        ("grow-all", Answers, plain("(memory 1)", "(drop (memory.grow (i32.const 65535)))")),
        (
            "table-grow",
            Answers,
            plain("(table 1 funcref)", "(drop (table.grow (ref.null func) (i32.const -1)))"),
        ),
        (
            "table-grow-loop",
            Answers,
            plain(
                "(table 1 funcref)",
                "(loop $l (br_if $l (i32.ne (table.grow (ref.null func) (i32.const 1000)) (i32.const -1))))",
            ),
        ),
        ("memory-4gib", Refused, plain("(memory 65536)", "")),
        ("memory-64", Refused, plain("(memory i64 0x1000000000000)", "")),
        ("table-huge", Fails, plain("(table 4000000000 funcref)", "")),
        ("memories", Answers, plain(&big(90, "(memory 1)"), "")),
        ("data-outside", Fails, plain("(memory 1) (data (i32.const 65535) \"abc\")", "")),
        ("elem-outside", Fails, plain("(table 1 funcref) (func $f) (elem (i32.const 1) $f)", "")),
        ("load-outside", Fails, plain("(memory 1)", "(drop (i32.load (i32.const -1)))")),
        (
            "store-outside",
            Fails,
            plain("(memory 1)", "(i64.store offset=0xffffffff (i32.const -1) (i64.const 1))"),
        ),
        // Traps.
        ("unreachable", Fails, plain("", "unreachable")),
        ("division", Fails, plain("", "(drop (i32.div_s (i32.const 1) (local.get $n)))")),
        ("overflow", Fails, plain("", "(drop (i32.trunc_f64_s (f64.const 1e300)))")),
        (
            "null-call",
            Fails,
            plain("(type $t (func)) (table 1 funcref)", "(call_indirect (type $t) (i32.const 0))"),
        ),
        (
            "wrong-call",
            Fails,
            plain(
                "(type $t (func (param i32))) (table 1 funcref) (func $f) (elem (i32.const 0) $f)",
                "(call_indirect (type $t) (i32.const 1) (i32.const 0))",
            ),
        ),
        // Host functions.
        (
            "log-flood",
            Deadline,
            program(
                "line\\n",
                "(i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 5)) (loop $l (drop (call $write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 8))) (br $l))",
            ),
        ),
        (
            "log-endless-line",
            Deadline,
            program(
                "line",
                "(i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 4)) (loop $l (drop (call $write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 8))) (br $l))",
            ),
        ),
        (
            "answer-flood",
            Cut,
            program(
                "line",
                "(i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 60000)) (loop $l (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))) (br $l))",
            ),
        ),
        (
            "write-outside",
            Fails,
            program(
                "",
                "(i32.store (i32.const 0) (i32.const -16)) (i32.store (i32.const 4) (i32.const 100)) (if (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)) (then unreachable))",
            ),
        ),
        (
            "write-many",
            Fails,
            program(
                "",
                "(if (call $write (i32.const 1) (i32.const 0) (i32.const -1) (i32.const 8)) (then unreachable))",
            ),
        ),
        (
            "random-all",
            Fails,
            program("", "(if (call $random (i32.const 0) (i32.const -1)) (then unreachable))"),
        ),
        (
            "poll-many",
            Fails,
            program(
                "",
                "(if (call $poll (i32.const 0) (i32.const 0) (i32.const 0x7fffffff) (i32.const 0)) (then unreachable))",
            ),
        ),
        (
            "args-outside",
            Fails,
            program("", "(if (call $args (i32.const -4) (i32.const -4)) (then unreachable))"),
        ),
        (
            "open-flood",
            Cut,
            program(
                ".",
                "(loop $l (br_if $l (i32.eqz (call $open (i32.const 3) (i32.const 1) (i32.const 64) (i32.const 1) (i32.const 2) (i64.const 0x4000) (i64.const 0) (i32.const 0) (i32.const 0)))))",
            ),
        ),
        (
            "close-all",
            Answers,
            program(
                "",
                "(loop $l (drop (call $close (local.get $n))) (local.set $n (i32.add (local.get $n) (i32.const 1))) (br_if $l (i32.lt_u (local.get $n) (i32.const 1000))))",
            ),
        ),
        (
            "renumber",
            Answers,
            program(
                "",
                "(drop (call $renumber (i32.const 3) (i32.const 1))) (drop (call $renumber (i32.const 4) (i32.const 3)))",
            ),
        ),
        (
            "accept",
            Answers,
            program(
                "",
                "(if (i32.eqz (call $accept (i32.const 3) (i32.const 0) (i32.const 0))) (then unreachable))",
            ),
        ),
        (
            "read-folders",
            Answers,
            program(
                "",
                "(i32.store (i32.const 4) (i32.const 10)) (if (i32.eqz (call $read (i32.const 3) (i32.const 0) (i32.const 1) (i32.const 8))) (then unreachable))",
            ),
        ),
        ("exit-255", Fails, program("", "(call $exit (i32.const 255))")),
        ("exit-early", Answers, program("", "(call $exit (i32.const 0))")),
        // Files.
        ("path-up", Answers, opens("../../../etc/passwd", 19)),
        ("path-absolute", Answers, opens("/etc/passwd", 11)),
        ("path-proc", Answers, opens("../proc/self/mem", 16)),
        ("path-node", Answers, opens("../mote/wasm/mote-wasm", 22)),
        ("path-link", Answers, {
            let mut body = String::new();
            for folder in 3..6 {
                // Makes a link to / and opens a file through it.
                let _ = write!(
                    body,
                    "(drop (call $symlink (i32.const 64) (i32.const 1) (i32.const {folder}) (i32.const 66) (i32.const 1)))"
                );
                let _ = write!(
                    body,
                    "(if (i32.eqz (call $open (i32.const {folder}) (i32.const 1) (i32.const 66) (i32.const 12) (i32.const 0) (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 0))) (then unreachable))"
                );
            }
            program("/ l/etc/passwd", &body)
        }),
        (
            "folder-flood",
            Cut,
            program(
                "aaaaaaaa",
                "(loop $l (i32.store (i32.const 64) (i32.add (i32.const 0x61616161) (local.get $n))) (local.set $n (i32.add (local.get $n) (i32.const 1))) (drop (call $mkdir (i32.const 4) (i32.const 64) (i32.const 8))) (br_if $l (i32.lt_u (local.get $n) (i32.const 200000))))",
            ),
        ),
        // Files that cannot be run.
        (
            "imports",
            Refused,
            plain(
                &big(2_001, "(import \"wasi_snapshot_preview1\" \"proc_exit\" (func (param i32)))"),
                "",
            ),
        ),
        (
            "import-unknown",
            Refused,
            plain("(import \"wasi_snapshot_preview1\" \"escape\" (func))", ""),
        ),
        (
            "import-memory",
            Refused,
            plain("(import \"wasi_snapshot_preview1\" \"memory\" (memory 1))", ""),
        ),
        ("shared-memory", Refused, plain("(memory 1 1 shared)", "")),
        (
            "nested",
            Answers,
            plain("", &format!("{}{}", big(20_000, "block "), big(20_000, "end "))),
        ),
        ("component-empty", Refused, "(component)".to_owned()),
        ("component-nested", Refused, format!("{}{}", big(40, "(component "), big(40, ")"))),
        (
            "component-cycle",
            Refused,
            "(component (import \"a\" (func $f)) (export \"b\" (func $f)))".to_owned(),
        ),
    ]
}

fn malformed() -> Vec<(String, Vec<u8>)> {
    let module =
        wat::parse_str(plain("(memory 1) (data (i32.const 0) \"abc\")", "")).expect("valid");
    let mut all = Vec::new();
    for cut in [4, 7, 8, 9, 12, module.len() / 2, module.len() - 1] {
        all.push((format!("cut-{cut}"), module[..cut].to_vec()));
    }
    for (place, byte) in [(4, 2), (6, 9), (8, 0xff), (9, 0xff), (10, 0x7f), (12, 0xaa)] {
        let mut changed = module.clone();
        changed[place] = byte;
        all.push((format!("changed-{place}"), changed));
    }
    let mut length = b"\0asm\x01\0\0\0\x01".to_vec();
    length.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0x0f]);
    all.push(("section-4gib".to_owned(), length));
    let mut types = b"\0asm\x01\0\0\0".to_vec();
    types.extend_from_slice(&[1, 5, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    all.push(("types-4g".to_owned(), types));
    all.push(("zeros".to_owned(), vec![0; 1 << 20]));
    all.push(("noise".to_owned(), {
        let mut noise = b"\0asm\x01\0\0\0".to_vec();
        let mut state = 1_u32;
        noise.extend((0..100_000).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        }));
        noise
    }));
    all
}

/// Calls another function until `stop`, and counts its answers. Every answer must arrive soon.
fn call_neighbour(
    node: &Node,
    stop: &AtomicBool,
    answers: &AtomicU64,
    troubles: &Mutex<Vec<String>>,
) {
    let mut connection = Connection::open(node.http);
    while !stop.load(Ordering::Relaxed) {
        let since = Instant::now();
        let answer = connection.try_call("GET", "/neighbour", &[], b"");
        let text = answer.as_ref().map(mote_tests::Answer::text);
        let took = since.elapsed();
        if text.as_deref().unwrap_or_default() == "ok" && took < Duration::from_secs(5) {
            answers.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        troubles.lock().expect("no panic").push(format!("after {took:?}: {answer:?}"));
        connection = Connection::open(node.http);
    }
}

#[test]
fn nothing_harms_the_node_or_a_neighbour() {
    if !has_engine() {
        return;
    }
    let node = Node::start();
    node.deploy_ok("neighbour", &[("app.py", "def handle(event, ctx):\n    return 'ok'\n")]);
    let (stop, answers, troubles) = (AtomicBool::new(false), AtomicU64::new(0), Mutex::default());
    let fine = wat::parse_str(plain("", "")).expect("valid");
    assert!(deploy(&node, "fine", &fine, MANIFEST).status.success());
    let kept = std::fs::read_dir(node.dir.path().join("data/packages")).expect("the folder");
    let made = kept.flatten().map(|entry| entry.path().join("function.cwasm"));
    let machine_code = made.into_iter().find_map(|path| std::fs::read(path).ok());
    let mut wrong = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| call_neighbour(&node, &stop, &answers, &troubles));
        for (name, expected, text) in programs() {
            let found = match wat::parse_str(&text) {
                Ok(wasm) => attempt(&node, name, &wasm),
                Err(error) => Err(format!("the test itself: {error}")),
            };
            let fits = match &found {
                Ok(found) => *found == expected || (expected == Cut && *found != Refused),
                Err(_) => false,
            };
            if !fits {
                wrong.push(format!("{name}: {found:?}, not {expected:?}"));
            }
        }
        for (name, bytes) in malformed() {
            let found = attempt(&node, &name, &bytes);
            if found != Ok(Refused) {
                wrong.push(format!("{name}: {found:?}, not Refused"));
            }
        }
        // Machine code is refused, even if this node has made it.
        let found = attempt(&node, "machine-code", &machine_code.expect("machine code"));
        if found != Ok(Refused) {
            wrong.push(format!("machine-code: {found:?}"));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let troubles = troubles.into_inner().expect("no panic");
    assert!(troubles.is_empty(), "{} answers, and {troubles:#?}", answers.load(Ordering::Relaxed));
    assert!(answers.load(Ordering::Relaxed) > 100);
    assert!(!node.log().contains("panicked"), "{}", node.log());
}

/// Deploys a file and calls it.
fn attempt(node: &Node, name: &str, wasm: &[u8]) -> Result<Outcome, String> {
    let output = deploy(node, name, wasm, MANIFEST);
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_explained = ["M0123", "M0401", "M0411"].iter().any(|code| text.contains(code));
        return if is_explained { Ok(Refused) } else { Err(text) };
    }
    if name == "answer-flood" {
        // The answer never ends, so its reader disconnects.
        let mut stream = TcpStream::connect(node.http).expect("the front");
        let head = format!("GET /{name} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("sent");
        let read = std::io::copy(&mut stream.take(8 << 20), &mut std::io::sink());
        assert_eq!(read.expect("an answer"), 8 << 20);
        let _ = node.mote(&["remove", name, "--yes"]);
        return Ok(Cut);
    }
    let mut connection = Connection::open(node.http);
    let outcome = match connection.try_call("GET", &format!("/{name}"), &[], b"") {
        Err(_) => Cut,
        Ok(answer) => match answer.status {
            200 => Answers,
            504 => Deadline,
            500 | 502 => Fails,
            status => return Err(format!("{status}: {}", answer.text())),
        },
    };
    let _ = node.mote(&["remove", name, "--yes"]);
    Ok(outcome)
}
