//! The main purpose: deploy the examples, call them over HTTP and CoAP, inspect them, and remove
//! them (R1 to R6, R17, R19, R28, R30, R31, R41).

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use mote_tests::{Connection, Node, coap_client, mote_binary, repository, signal, skip, wait_for};

fn deploy_example(node: &Node, name: &str) {
    let path = repository().join("examples").join(name);
    node.ok(&["deploy", path.to_str().expect("UTF-8")]);
}

#[test]
fn every_example_answers_over_http() {
    let node = Node::start();
    for runtime in ["python", "node", "shell", "server"] {
        let hello = format!("hello-{runtime}");
        let echo = format!("echo-{runtime}");
        deploy_example(&node, &hello);
        deploy_example(&node, &echo);
        let answer = node.get(&format!("/{hello}"));
        assert_eq!((answer.status, answer.text().trim()), (200, "mote"), "{hello}");
        assert!(answer.header("server-timing").is_some_and(|text| text.contains("invoke;dur=")));
        assert_eq!(answer.header("mote-invocation").map(str::len), Some(26));
        let body: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        let answer = node.post(&format!("/{echo}"), &body);
        assert_eq!(answer.status, 200, "{echo}");
        assert!(answer.body == body, "{echo} changed the body");
    }
    deploy_example(&node, "sieve-node");
    assert_eq!(node.get("/sieve-node").text(), "168");
}

#[test]
fn method_path_query_headers_and_status_pass_through() {
    let node = Node::start();
    for example in ["echo-python", "echo-node"] {
        deploy_example(&node, example);
        let answer = node.call(
            "PATCH",
            &format!("/{example}/inspect?a=1&b=%20x"),
            &[("X-Sensor", "t1"), ("x-sensor", "t2")],
            b"{}",
        );
        let seen = answer.json();
        assert_eq!(seen["method"], "PATCH", "{example}");
        assert_eq!(seen["path"], "/inspect", "{example}");
        let text = answer.text();
        assert!(text.contains("t1") && text.contains("t2"), "{example}: {text}");
    }
    let teapot = "def handle(event, ctx):\n    return ('short', 418, {'X-Kind': 'teapot'})\n";
    node.deploy_ok("teapot", &[("app.py", teapot)]);
    let answer = node.get("/teapot");
    assert_eq!((answer.status, answer.header("x-kind")), (418, Some("teapot")));
}

#[test]
fn one_file_needs_no_manifest() {
    let node = Node::start();
    let file = node.dir.path().join("greet.py");
    std::fs::write(&file, "def handle(event, ctx):\n    return 'hello ' + event.text\n").unwrap();
    let output = node.mote(&["deploy", file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(node.post("/greet", b"you").text(), "hello you");
    assert_eq!(node.ok(&["invoke", "greet", "-d", "me"]).trim_end(), "hello me");
}

#[test]
fn coap_clients_reach_the_same_functions() {
    let Some(client) = coap_client() else {
        return skip("coap_clients_reach_the_same_functions", "libcoap's client is not installed");
    };
    let node = Node::start();
    deploy_example(&node, "hello-python");
    deploy_example(&node, "echo-node");
    let coap = |args: &[&str], path: &str| {
        let url = format!("coap://{}{path}", node.coap);
        let output = Command::new(client).args(args).arg(url).output().expect("the client starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(coap(&["-m", "get", "-B", "20"], "/hello-python").trim(), "mote");
    assert_eq!(coap(&["-m", "post", "-e", "21.5", "-B", "20"], "/echo-node").trim(), "21.5");
    let links = coap(&["-m", "get", "-B", "20"], "/.well-known/core");
    assert!(links.contains("</hello-python>") && links.contains("</echo-node>"), "{links}");
}

#[test]
fn list_describe_logs_and_remove() {
    let node = Node::start();
    let noisy = "import sys\n\
                 def handle(event, ctx):\n    print('to stdout')\n    print('to stderr', file=sys.stderr)\n    return 'ok'\n";
    node.deploy_ok("noisy", &[("app.py", noisy)]);
    let answer = node.get("/noisy");
    let id = answer.header("mote-invocation").expect("an id").to_owned();
    let list = node.json(&["list", "-o", "json"]);
    let text = list.to_string();
    assert!(text.contains("\"noisy\"") && text.contains("\"ready\""), "{text}");
    let described = node.json(&["describe", "noisy", "-o", "json"]);
    assert_eq!(described["revision"], 1);
    assert_eq!(described["requests"]["total"], 1);
    let pid = described["instances"][0]["pid"].as_u64().expect("the instance's first process");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it is there");
    assert!(status.contains("\nNSpid:\t") && status.contains("\t1\n"), "pid 1 inside: {status}");
    assert!(node.ok(&["describe", "noisy"]).contains(&format!("pid {pid}")));
    assert_eq!(described["limits"]["timeout_ms"], 10_000 * mote_tests::SLOWNESS);
    assert!(described["requests"]["p50_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{described}");
    let started = described["instances"][0]["started_at"].as_str().expect("a time").to_owned();
    let created = described["created_at"].as_str().expect("a time").to_owned();
    assert!(created <= started, "created {created}, but started {started}");
    let logs = mote_tests::wait_for("both lines", || {
        let logs = node.ok(&["logs", "noisy", "--invocation", &id, "-o", "jsonl"]);
        (logs.contains("to stdout") && logs.contains("to stderr")).then_some(logs)
    });
    for line in logs.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON lines");
        assert_eq!(line["invocation"], id.as_str());
    }
    node.ok(&["remove", "noisy", "--yes"]);
    let answer = node.get("/noisy");
    assert_eq!(answer.status, 404);
    assert_eq!(answer.json()["code"], "M0501");
    assert_eq!(node.mote(&["describe", "noisy"]).status.code(), Some(3));
}

#[test]
fn connections_are_kept_and_functions_do_not_disturb_each_other() {
    let node = Node::start();
    deploy_example(&node, "hello-node");
    deploy_example(&node, "hello-python");
    let mut connection = Connection::open(node.http);
    for _ in 0..200 {
        for name in ["hello-node", "hello-python"] {
            let answer = connection.call("GET", &format!("/{name}"), &[], b"");
            assert_eq!((answer.status, answer.text().trim()), (200, "mote"));
        }
    }
}

#[test]
fn memory_a_call_freed_is_there_for_the_next_one() {
    // 12 MiB are touched and freed in blocks of 1 MiB. This takes 3,072 pages if the kernel
    // provides new pages each time, and fewer if the interpreter had some memory left. musl and
    // other libraries have no such setting.
    if !Command::new("ldd").arg("--version").output().is_ok_and(|said| said.status.success()) {
        return skip("page faults of freed memory", "the C library is not glibc");
    }
    let node = Node::start();
    let code = "import resource\n\ndef handle(event, ctx):\n    \
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n    \
        blocks = [b'x' * (1 << 20) for _ in range(12)]\n    del blocks\n    \
        return str(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n";
    node.deploy_ok("pages", &[("app.py", code)]);
    let faults = || node.get("/pages").text().parse::<u32>().expect("a number");
    let first = faults();
    assert!(first > 2_500, "{first}: the work does not show what it should");
    let later = faults();
    assert!(later < 300, "{later} page faults in a later call");
}

#[test]
fn the_umask_of_the_shell_does_not_matter() {
    let folder = tempfile::Builder::new().prefix("mote-test").tempdir().expect("a folder");
    // Sandboxes read the code as another user.
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), mode).expect("own folder");
    std::fs::write(folder.path().join("hello.py"), "def handle(event, ctx):\n    return 'hello'\n")
        .expect("written");
    let start = "umask 077; exec timeout 120 \"$0\" up --data data --socket s --http 127.0.0.1:0 --coap off \
                 hello.py >out 2>&1";
    let mut node = Command::new("sh")
        .args(["-c", start])
        .arg(mote_binary())
        .current_dir(folder.path())
        .spawn()
        .expect("sh");
    let said = || std::fs::read_to_string(folder.path().join("out")).unwrap_or_default();
    let text = wait_for("the deploy to end", || {
        Some(said()).filter(|text| text.contains("is live") || text.contains("error["))
    });
    signal(node.id(), "TERM");
    node.wait().expect("our child");
    assert!(text.contains("hello@1 is live"), "{text}");
}
