//! WebAssembly functions: components for `wasi:http/proxy`, and programs of WASI preview 1.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use mote_tests::wasm::{component, deploy, deploy_ok, has_engine, program, refusal};
use mote_tests::{Connection, Node, skip, wait_for};

macro_rules! fixture {
    ($of:expr) => {
        match $of {
            Some(fixture) => fixture,
            None => return,
        }
    };
}

#[test]
fn a_component_answers() {
    let wasm = fixture!(component());
    let node = Node::start();
    // The runtime and the entry are guessed from the file.
    let told = deploy_ok(&node, "hello", wasm, "[env]\nGREETING = \"hi\"\n");
    assert!(told.contains("wasm"), "{told}");
    let answer = node.get("/hello");
    assert_eq!((answer.status, answer.text().as_str()), (200, "hello from a component"));
    assert_eq!(answer.header("content-type"), Some("text/plain"));
    let about = node.call("POST", "/hello/about?q=1", &[("x-a", "b")], b"");
    assert_eq!(about.text(), "POST q=1 b hi");
    assert_eq!(node.get("/hello/status?418").status, 418);
    assert_eq!(node.post("/hello/echo", b"abc").text(), "abc");
    assert_eq!(node.get("/hello/file").text(), "a note");
    let fields = node.get("/hello/headers");
    assert_eq!((fields.text().as_str(), fields.header("x-answer")), ("ok", Some("yes")));
    let shown = node.json(&["describe", "hello", "-o", "json"]);
    assert_eq!(shown["runtime"], "wasm", "{shown}");
    // The same code is not compiled again.
    let again = deploy_ok(&node, "hello", wasm, "[env]\nGREETING = \"ho\"\n");
    assert!(again.contains("from cache"), "{again}");
    assert_eq!(node.get("/hello/about").text(), "GET   ho");
}

#[test]
fn each_call_has_its_own_instance() {
    let wasm = fixture!(component());
    let node = Node::start();
    deploy_ok(&node, "hello", wasm, "");
    for _ in 0..20 {
        assert_eq!(node.get("/hello/count").text(), "1");
    }
}

#[test]
fn long_bodies_pass_in_both_directions() {
    let wasm = fixture!(component());
    let node = Node::start();
    deploy_ok(&node, "hello", wasm, "");
    let long: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    assert_eq!(node.post("/hello/length", &long).text(), "3000000");
    assert_eq!(node.post("/hello/echo", &long).body, long);
    let streamed = node.get("/hello/stream");
    assert_eq!(streamed.body.len(), 4_000_000);
    // Even if the function does not read the body, the caller can send it.
    assert_eq!(node.post("/hello", &long).status, 200);
    // The first part of an answer arrives before the function ends.
    let mut stream = TcpStream::connect(node.http).expect("the front");
    let head = "GET /hello/early HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("sent");
    let mut text = String::new();
    while !text.contains("first\n") {
        let mut piece = [0; 1024];
        let read = stream.read(&mut piece).expect("a piece");
        assert!(read > 0, "{text}");
        text += &String::from_utf8_lossy(&piece[..read]);
    }
    assert!(!text.contains("second"), "{text}");
    stream.read_to_string(&mut text).expect("the rest");
    assert!(text.contains("second\n"), "{text}");
}

#[test]
fn lines_belong_to_their_invocation() {
    let wasm = fixture!(component());
    let node = Node::start();
    deploy_ok(&node, "hello", wasm, "");
    let answer = node.get("/hello/log?seven");
    let id = answer.header("mote-invocation").expect("an id").to_owned();
    let shown = wait_for("the lines", || {
        let shown = node.ok(&["logs", "hello", "-o", "json"]);
        shown.contains("to the log").then_some(shown)
    });
    for text in ["to stdout: seven", "to stderr: seven", "part: to the log: seven"] {
        let line = shown.lines().find(|line| line.contains(text));
        assert!(line.is_some_and(|line| line.contains(&id)), "{text}: {shown}");
    }
}

#[test]
fn a_failed_call_says_why_and_fails_alone() {
    let wasm = fixture!(component());
    let node = Node::start();
    let manifest = "[limits]\ntimeout = \"1s\"\nmemory = \"64MiB\"\n[scale]\nmax = 1\n";
    deploy_ok(&node, "hello", wasm, manifest);
    let code = |path: &str| {
        let answer = node.get(path);
        (answer.status, answer.json()["code"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(code("/hello/trap"), (500, "M0510".to_owned()));
    assert_eq!(code("/hello/panic"), (500, "M0510".to_owned()));
    assert_eq!(code("/hello/silent"), (502, "M0513".to_owned()));
    assert_eq!(code("/hello/memory"), (500, "M0510".to_owned()));
    let logs = wait_for("the reasons", || {
        let logs = node.ok(&["logs", "hello"]);
        logs.contains("[limits] memory").then_some(logs)
    });
    assert!(logs.contains("about to trap"), "{logs}");
    assert!(logs.contains("unreachable"), "{logs}");
    assert!(logs.contains("without an answer"), "{logs}");
    // A call that spins ends at its deadline. Meanwhile, the same instance answers other calls.
    let spinning = {
        let mut connection = Connection::open(node.http);
        connection.send("GET", "/hello/spin", &[], b"").expect("sent");
        connection
    };
    let mut spinning = spinning;
    for _ in 0..20 {
        assert_eq!(node.get("/hello").status, 200);
    }
    let answer = spinning.read_answer(false).expect("an answer");
    assert_eq!((answer.status, answer.json()["code"].as_str()), (504, Some("M0509")));
    let shown = node.json(&["describe", "hello", "-o", "json"]);
    let logs = node.ok(&["logs", "hello"]);
    assert!(!logs.contains("stopped ("), "one instance served all: {shown} {logs}");
}

#[test]
fn a_program_of_preview_1_answers() {
    let wasm = fixture!(program());
    let node = Node::start();
    deploy_ok(&node, "tool", wasm, "[env]\nGREETING = \"hi\"\n[limits]\ntimeout = \"1s\"\n");
    let answer = node.get("/tool");
    assert_eq!(answer.text(), "hello from preview 1\n");
    assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(node.post("/tool/upper", b"abc").text(), "ABC");
    let facts = node.call("POST", "/tool/facts?a=1", &[("x-a", "b")], b"").text();
    let expected = "MOTE_METHOD=POST\nMOTE_QUERY=a=1\nMOTE_TRIGGER=http\nMOTE_HEADER_X_A=b\n\
                    GREETING=hi\n";
    assert_eq!(facts, expected);
    assert_eq!(node.get("/tool/file").text(), "a note");
    assert_eq!(node.get("/tool/long").body.len(), 1_000_000);
    for (path, text) in [("/tool/fail", "exited 3: this is why"), ("/tool/panic", "on purpose")] {
        assert_eq!(node.get(path).status, 500);
        wait_for(text, || node.ok(&["logs", "tool"]).contains(text).then_some(()));
    }
    assert_eq!(node.get("/tool/spin").status, 504);
    assert_eq!(node.get("/tool").status, 200);
}

#[test]
fn state_calls_and_configuration() {
    let wasm = fixture!(component());
    let node = Node::start();
    let called =
        "def handle(event, ctx):\n    return event.text + ' from ' + event.headers['x-from']\n";
    node.deploy_ok("called", &[("app.py", called)]);
    let manifest =
        "[env]\nCOLOUR = \"red\"\n[allow]\nfunctions = [\"called\"]\n[kv]\nshared = [\"site\"]\n";
    deploy_ok(&node, "hello", wasm, manifest);
    assert_eq!(node.get("/hello/config?COLOUR").text(), "red");
    assert_eq!(node.get("/hello/config?NONE").text(), "absent");
    assert_eq!(node.get("/hello/kv?default/a").text(), "false red 5 a,n true");
    assert_eq!(node.get("/hello/kv?default/a").text(), "false red 10 a,n true");
    assert_eq!(node.get("/hello/kv?site/b").text(), "false red 5 b,n true");
    let denied = node.get("/hello/kv?other/b");
    assert!(denied.text().contains("AccessDenied"), "{}", denied.text());
    assert_eq!(node.post("/hello/call?called", b"hi").text(), "hi from wasm");
    let denied = node.post("/hello/call?hello", b"hi");
    assert!(denied.text().contains("Denied"), "{}", denied.text());
}

#[test]
fn requests_reach_permitted_hosts_only() {
    let wasm = fixture!(component());
    let node = Node::start();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let outside = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut head = [0; 1024];
        let read = stream.read(&mut head).expect("a request");
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\noutside").expect("sent");
        String::from_utf8_lossy(&head[..read]).into_owned()
    });
    deploy_ok(&node, "closed", wasm, "");
    assert_eq!(node.get(&format!("/closed/fetch?{address}")).status, 502);
    deploy_ok(&node, "open", wasm, &format!("[allow]\nnet = [\"{address}\"]\n"));
    let answer = node.get(&format!("/open/fetch?{address}"));
    assert_eq!((answer.status, answer.text().as_str()), (200, "outside"));
    assert!(outside.join().expect("it ended").starts_with("GET / HTTP/1.1\r\n"));
}

#[test]
fn many_calls_at_once_share_one_process() {
    let wasm = fixture!(component());
    let node = Node::start();
    deploy_ok(&node, "hello", wasm, "[scale]\nmax = 1\n");
    let since = Instant::now();
    let mut all: Vec<_> = (0..32)
        .map(|_| {
            let mut connection = Connection::open(node.http);
            connection.send("GET", "/hello/sleep?300", &[], b"").expect("sent");
            connection
        })
        .collect();
    for connection in &mut all {
        assert_eq!(connection.read_answer(false).expect("an answer").text(), "slept");
    }
    // One after another, the calls would take 9.6 s.
    assert!(since.elapsed() < Duration::from_secs(6), "{:?}", since.elapsed());
}

#[test]
fn a_restarted_node_does_not_compile_again() {
    let wasm = fixture!(component());
    let node = Node::start();
    deploy_ok(&node, "hello", wasm, "");
    let node = node.stop_and_restart();
    assert_eq!(node.get("/hello").text(), "hello from a component");
    assert!(!node.ok(&["logs", "hello"]).contains("compiled again"));
}

#[test]
fn a_caller_that_leaves_ends_its_instance() {
    let wasm = fixture!(component());
    let node = Node::start();
    deploy_ok(&node, "hello", wasm, "[limits]\nconcurrency = 1\n[scale]\nmax = 1\n");
    let mut connection = Connection::open(node.http);
    connection.send("GET", "/hello/sleep?60000", &[], b"").expect("sent");
    wait_for("the call to run", || {
        let shown = node.ok(&["describe", "hello", "-o", "json"]);
        shown.contains("\"running\": 1").then_some(())
    });
    drop(connection);
    assert_eq!(node.get("/hello").status, 200, "the only place is free again");
}

#[test]
fn mistakes_are_named_at_the_deploy() {
    if !has_engine() {
        return;
    }
    let node = Node::start();
    let text = refusal(&node, "text", b"(module)");
    assert!(text.contains("error[M0123]") && text.contains("text format"), "{text}");
    let empty = refusal(&node, "empty", b"");
    assert!(empty.contains("M0123") && empty.contains("\\0asm"), "{empty}");
    let cut = refusal(&node, "cut", b"\0asm\x01\0\0\0\x01");
    assert!(cut.contains("M0123"), "{cut}");
    let elf = refusal(&node, "elf", &std::fs::read("/proc/self/exe").expect("a program"));
    assert!(elf.contains("M0123") && !elf.contains("machine code,"), "{elf}");
    let module = |text: &str| wat::parse_str(text).expect("a module");
    let foreign = refusal(&node, "foreign", &module("(module (import \"env\" \"f\" (func)))"));
    assert!(foreign.contains("imports f from env"), "{foreign}");
    let library = refusal(&node, "library", &module("(module (func (export \"add\")))"));
    assert!(library.contains("_start"), "{library}");
    let component = refusal(&node, "nothing", &module("(component)"));
    assert!(component.contains("exports nothing"), "{component}");
    let import =
        "(component (import \"acme:things/thing@1.0.0\" (instance (export \"f\" (func)))))";
    let import = refusal(&node, "import", &module(import));
    assert!(import.contains("acme:things/thing@1.0.0"), "{import}");
    let several = node.deploy("several", &[("a.wasm", "x"), ("b.wasm", "x")]);
    let several = String::from_utf8_lossy(&several.stderr).into_owned();
    assert!(several.contains("M0112") && several.contains("entry = \"a.wasm\""), "{several}");
}

/// Cargo builds the component of a new function, and only the component is deployed.
#[test]
fn a_new_component_is_built_and_served() {
    if component().is_none() {
        return;
    }
    let node = Node::start();
    let folder = node.dir.path().join("src/fresh");
    let path = folder.display().to_string();
    node.ok(&["new", &path, "-t", "wasm"]);
    let told = node.mote(&["deploy", &path]);
    let text = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(told.status.success(), "{text}\nnode: {}", node.log());
    assert!(text.contains("building: cargo build --release --target wasm32-wasip2"), "{text}");
    let answer = node.get("/fresh?name=Ada");
    assert_eq!((answer.status, answer.text().as_str()), (200, "Hello, Ada!\n"));
    assert_eq!(node.json(&["describe", "fresh", "-o", "json"])["runtime"], "wasm");
    // A mistake in the code stops the deploy, and the former revision serves.
    std::fs::write(folder.join("src/main.rs"), "fn main() { broken }\n").expect("written");
    let failed = node.mote(&["deploy", &path]);
    let text = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(!failed.status.success() && text.contains("M0402"), "{text}");
    assert!(!text.contains("rustup"), "the tools are there: {text}");
    assert_eq!(node.get("/fresh").text(), "Hello, world!\n");
}

/// Compilers that put a whole interpreter into a component, with their default settings and the
/// function's default limits.
#[test]
fn components_in_other_languages_answer() {
    if !mote_tests::is_long() {
        return skip("wasm", "the compilers of other languages run in the long tests");
    }
    if !has_engine() {
        return;
    }
    let node = Node::start();
    let folder = node.dir.path().join("wasm");
    let examples = mote_tests::repository().join("examples/wasm");
    let copied = Command::new("cp").arg("-R").args([&examples, &folder]).status();
    assert!(copied.expect("cp runs").success());
    for (language, program, version) in
        [("js", "npm", "--version"), ("python", "python3", "--version"), ("go", "go", "version")]
    {
        if Command::new(program).arg(version).output().is_err() {
            skip(language, &format!("{program} is not installed"));
            continue;
        }
        let name = format!("hello-{language}");
        let begun = Instant::now();
        node.ok(&["deploy", &folder.join(&name).display().to_string()]);
        let deployed = begun.elapsed();
        let bytes = std::fs::metadata(folder.join(&name).join("hello.wasm")).expect("built").len();
        let first = Instant::now();
        let said = node.get(&format!("/{name}"));
        let first = first.elapsed();
        let text = said.text();
        assert!(said.status == 200 && text.starts_with("hello from "), "{name}: {text}");
        assert_eq!(node.post(&format!("/{name}/upper"), b"abc").text(), "ABC", "{name}");
        node.ok(&["scale", &name, "0"]);
        assert_eq!(node.post(&format!("/{name}/upper"), b"again").text(), "AGAIN", "{name}");
        println!("{name}: {bytes} bytes, built and deployed in {deployed:?}, first {first:?}");
    }
}

#[test]
fn a_node_without_the_engine_says_what_to_install() {
    let node = Node::start();
    if has_engine() {
        // The node finds the engine next to its own program.
        assert!(node.doctor(&[]).contains("wasm"));
        return;
    }
    let output = deploy(&node, "hello", b"\0asm", "");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("M0403") && text.contains("package mote-wasm"), "{text}");
}
