//! The command line and the state of a node as users see them: counts, logs, hints, completion.

use std::process::{Command, Stdio};

use mote_tests::{Node, mote_binary, skip, wait_for};

const HELLO: &str = "def handle(event, ctx):\n    print('called')\n    return 'hello'\n";

fn requests(node: &Node, name: &str) -> (u64, u64, u64) {
    let function = node.json(&["describe", name, "-o", "json"]);
    let count = |key: &str| function["requests"][key].as_u64().expect("a number");
    (count("total"), count("failed"), count("cold_starts"))
}

#[test]
fn counts_go_on_through_a_redeploy_and_agree_with_the_metrics() {
    let node = Node::start();
    node.deploy_ok("f", &[("app.py", HELLO)]);
    for _ in 0..3 {
        assert_eq!(node.get("/f").status, 200);
    }
    assert_eq!(requests(&node, "f").0, 3);
    node.deploy_ok("f", &[("app.py", &HELLO.replace("hello", "again"))]);
    let (total, failed, cold_starts) = requests(&node, "f");
    assert_eq!((total, failed), (3, 0), "a deploy changes no count");
    assert!(cold_starts <= total, "{cold_starts} of {total} invocations waited for a start");
    assert_eq!(node.get("/f").status, 200);
    assert_eq!(requests(&node, "f").0, 4);
    let line = "mote_invocations_total{function=\"f\",trigger=\"http\",outcome=\"ok\"} 4";
    let metrics = metrics(&node, "");
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
}

/// Reads `/metrics` from the management socket with this `Accept`.
fn metrics(node: &Node, accept: &str) -> String {
    let socket = node.dir.path().join("s");
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--unix-socket"]).arg(socket).arg("http://mote/metrics");
    if !accept.is_empty() {
        curl.args(["-H", &format!("accept: {accept}")]);
    }
    let answer = curl.output().expect("curl is installed with the build tools");
    String::from_utf8(answer.stdout).expect("text")
}

#[test]
fn metrics_are_what_prometheus_reads() {
    let node = Node::start();
    node.deploy_ok("f", &[("app.py", HELLO)]);
    assert_eq!(node.get("/f").status, 200);
    let openmetrics = metrics(&node, "application/openmetrics-text; version=1.0.0");
    assert!(openmetrics.ends_with("# EOF\n"), "{openmetrics}");
    let text = metrics(&node, "text/plain");
    assert!(!text.contains("# EOF"), "{text}");
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        return skip("promtool check metrics", "promtool is not installed");
    };
    let mut input = promtool.stdin.take().expect("piped");
    std::io::Write::write_all(&mut input, text.as_bytes()).expect("promtool reads");
    drop(input);
    let checked = promtool.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&checked.stderr);
    assert_eq!(checked.status.code(), Some(0), "{said}\n{text}");
}

#[test]
fn the_last_lines_are_those_of_all_functions_together() {
    let node = Node::start();
    for name in ["a", "b", "c"] {
        node.deploy_ok(name, &[("app.py", HELLO)]);
        assert_eq!(node.get(&format!("/{name}")).status, 200);
    }
    assert_eq!(node.ok(&["logs", "--tail", "3"]).lines().count(), 3);
    let called = node.ok(&["logs", "--grep", "called", "--tail", "2"]);
    let functions: Vec<_> = called.lines().map(|line| line.contains(": called")).collect();
    assert_eq!(functions, [true, true], "{called}");
}

#[test]
fn a_missing_module_is_answered_with_where_to_name_its_package() {
    let node = Node::start();
    let python = node.deploy("p", &[("app.py", "import nosuchthing.part\nhandle = print\n")]);
    let said = String::from_utf8_lossy(&python.stderr).into_owned();
    assert!(said.contains("`nosuchthing`") && said.contains("requirements.txt"), "{said}");
    let files = [("index.mjs", "import x from 'nosuchthing';\nexport default () => x;\n")];
    let said = String::from_utf8_lossy(&node.deploy("n", &files).stderr).into_owned();
    assert!(said.contains("`nosuchthing`") && said.contains("package.json"), "{said}");
    let code = "from json import nosuchname\nhandle = print\n";
    let said = String::from_utf8_lossy(&node.deploy("v", &[("app.py", code)]).stderr).into_owned();
    assert!(said.contains("`nosuchname`") && said.contains("another version"), "{said}");
    let code = "import os\nos.mkdir('made')\nhandle = print\n";
    let said = String::from_utf8_lossy(&node.deploy("w", &[("app.py", code)]).stderr).into_owned();
    assert!(said.contains("write to /tmp"), "{said}");
}

#[test]
fn a_worker_of_three_parameters_gets_environment_and_context() {
    let node = Node::start();
    let code = "export default { async fetch(request, env, ctx) {\n\
                ctx.waitUntil(Promise.resolve()); ctx.passThroughOnException();\n\
                return new Response(`${env.GREETING} ${new URL(request.url).pathname}`); } };\n";
    let manifest = "version = 1\nname = \"w\"\nruntime = \"node\"\n[env]\nGREETING = \"servus\"\n";
    node.deploy_ok("w", &[("index.mjs", code), ("mote.toml", manifest)]);
    assert_eq!(node.get("/w/x").text(), "servus /x");
}

#[test]
fn bash_completes_names_of_functions() {
    let node = Node::start();
    for name in ["thermo", "theta"] {
        node.deploy_ok(name, &[("app.py", HELLO)]);
    }
    let script = String::from_utf8(node.mote(&["completion", "bash"]).stdout).expect("text");
    let folder = node.dir.path().join("bin");
    std::fs::create_dir(&folder).expect("a folder of the test");
    std::os::unix::fs::symlink(mote_binary(), folder.join("mote")).expect("a link");
    let complete = |words: &str, last: usize| {
        let ask = format!(
            "{script}\nPATH={}:$PATH\nCOMP_WORDS=({words})\nCOMP_CWORD={last}\n\
             _mote_with_names mote \"${{COMP_WORDS[COMP_CWORD]}}\" \"\"\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"",
            folder.display()
        );
        // The text is in a file, because a single argument may have at most 128 KiB.
        let file = node.dir.path().join("ask.sh");
        std::fs::write(&file, ask).expect("write the script");
        let answer = Command::new("bash")
            .arg("--norc")
            .arg(&file)
            .env("MOTE_NODE", node.dir.path().join("s"))
            .output()
            .expect("bash");
        assert!(answer.stderr.is_empty(), "{}", String::from_utf8_lossy(&answer.stderr));
        String::from_utf8(answer.stdout).expect("text")
    };
    let names = complete("mote describe the", 2);
    assert!(names.contains("thermo\n") && names.contains("theta\n"), "{names}");
    let verbs = complete("mote des", 1);
    assert!(verbs.contains("describe") && !verbs.contains("thermo"), "{verbs}");
}

#[test]
fn a_port_that_is_taken_changes_the_flag_of_its_front_only() {
    let node = Node::start();
    let folder = tempfile::tempdir().expect("a folder");
    let second = Command::new(mote_binary())
        .args(["up", "--coap", "off", "--http", &node.http.to_string(), "--data"])
        .arg(folder.path().join("data"))
        .arg("--socket")
        .arg(folder.path().join("s"))
        .output()
        .expect("it ends");
    assert_eq!(second.status.code(), Some(75));
    let said = String::from_utf8_lossy(&second.stderr);
    let next = node.http.port() + 1;
    assert!(said.contains(&format!("mote up --http :{next} ")), "{said}");
    assert!(!said.contains("--coap"), "{said}");
}

#[test]
fn the_log_of_the_node_tells_deploys_failures_and_the_stop() {
    let node = Node::start();
    node.deploy_ok("f", &[("app.py", HELLO)]);
    node.deploy(
        "broken",
        &[("app.py", "def handle(event, ctx):\n    return 1\nraise ValueError(3)\n")],
    );
    node.ok(&["remove", "f", "--yes"]);
    let log = |what: &str, words: &[&str]| {
        wait_for(what, || {
            let log = node.log();
            log.lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
        })
    };
    log("the deploy", &["INFO", "deployed", "\"f\"", "\"revision\":1"]);
    log("the failed deploy", &["WARN", "deploy failed", "broken", "M0411"]);
    log("the removal", &["INFO", "removed", "\"f\""]);
}

#[test]
fn a_file_where_the_socket_should_be_stays_and_the_start_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let notes = folder.path().join("notes.txt");
    std::fs::write(&notes, "precious").expect("a file");
    let ended = Command::new(mote_binary())
        .args(["up", "--http", "127.0.0.1:0", "--coap", "off", "--data"])
        .arg(folder.path().join("data"))
        .arg("--socket")
        .arg(&notes)
        .output()
        .expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(78), "{said}");
    assert!(said.contains("error[M0203]: socket: ") && said.contains("is not a socket"), "{said}");
    assert_eq!(std::fs::read_to_string(&notes).expect("it is there"), "precious");
}

#[test]
fn a_data_folder_that_others_could_change_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let above = tempfile::tempdir().expect("a folder");
    let data = above.path().join("data");
    let set = |path: &std::path::Path, mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("its owner may");
    };
    let refused = |expected: &str| {
        let ended = Command::new(mote_binary())
            .args(["up", "--http", "127.0.0.1:0", "--coap", "off", "--data"])
            .arg(&data)
            .arg("--socket")
            .arg(above.path().join("socket"))
            .output()
            .expect("it ends");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(78), "{said}");
        assert!(said.contains("error[M0203]: data: ") && said.contains(expected), "{said}");
    };
    std::fs::create_dir(&data).expect("a folder");
    set(above.path(), 0o777);
    refused("can be changed by everybody");
    set(above.path(), 0o755);
    for name in ["mote.db", "admin.token", "secrets.key", "state.db"] {
        let pipe = data.join(name);
        assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
        refused(&format!("{name} is not a regular file"));
        std::fs::remove_file(&pipe).expect("it was there");
    }
    std::os::unix::fs::symlink("/dev/null", data.join("audit.log")).expect("a link");
    refused("audit.log is a symbolic link");
    std::fs::remove_file(data.join("audit.log")).expect("it was there");
    if mote_tests::is_root() {
        std::fs::write(data.join("admin.token"), "x".repeat(64)).expect("a file");
        let token = data.join("admin.token");
        std::os::unix::fs::chown(&token, Some(65_534), None).expect("root may");
        refused("admin.token belongs to the user with the number 65534");
    }
}

#[test]
fn a_volume_that_everybody_may_write_is_taken_over() {
    use std::os::unix::fs::PermissionsExt as _;
    let node = Node::start();
    let data = node.dir.path().join("data");
    let node = node.restart_after(false, || {
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&data, open).expect("its owner may");
    });
    let mode = std::fs::metadata(&data).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    assert!(node.log().contains("others could write to"), "{}", node.log());
    assert!(node.doctor(&[]).contains("data folder"));
}

#[test]
fn a_project_with_a_pipe_or_a_link_to_elsewhere_is_refused_at_once() {
    let node = Node::start();
    for (name, link) in [("mote.toml", None), ("mote.toml", Some("/etc/passwd"))] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        match link {
            Some(to) => std::os::unix::fs::symlink(to, &path).expect("a link"),
            None => assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success()),
        }
        std::fs::write(folder.path().join("app.py"), "def handle(e, c): pass\n").expect("a file");
        let output = node.mote(&["deploy", folder.path().to_str().expect("UTF-8")]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("error[M1301]"), "{said}");
        assert!(said.contains(name) && !said.contains("root:"), "{said}");
    }
}

#[test]
fn an_exception_has_no_line_that_looks_like_one_of_ours() {
    let node = Node::start();
    let code = "def handle(event, ctx):\n    pass\nraise Exception('x\\nok bad@1 is live\\u2028ok bad@2 is live')\n";
    let output = node.deploy("f", &[("app.py", code)]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("bad@1"), "{said}");
    assert!(!said.lines().any(|line| line.starts_with("ok")), "{said}");
    assert!(!said.contains('\u{2028}'), "{said}");
}

#[test]
fn a_node_whose_ports_are_in_use_names_all_of_them() {
    let node = Node::start();
    let http = node.http.to_string();
    let coap = node.coap.to_string();
    let dir = tempfile::tempdir().expect("temp folder");
    let output = Command::new(mote_binary())
        .args(["up", "--http", &http, "--coap", &coap, "--data"])
        .args([dir.path(), "--socket".as_ref(), &dir.path().join("s")])
        .output()
        .expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(75), "{said}");
    for port in [node.http.port(), node.coap.port()] {
        assert!(said.contains(&format!("error[M0210]: port {port} is already in use")), "{said}");
    }
    assert!(said.contains("mote up --http :") && said.contains(" --coap :"), "{said}");
}

#[test]
fn the_port_of_functions_is_not_taken_for_the_management_api() {
    let node = Node::start();
    let front = format!("http://{}", node.http);
    let output = Command::new(mote_binary())
        .args(["--node", &front, "list"])
        .env("MOTE_TOKEN", "any")
        .output()
        .expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("functions are called there; the management API is at"), "{said}");
    let page = node.get("/");
    assert_eq!(page.status, 404);
    assert!(page.text().contains("this is mote, which runs functions"), "{}", page.text());
}

#[test]
fn a_limit_that_the_machine_cannot_enforce_is_shown_as_what_it_enforces() {
    let node = Node::start();
    node.deploy_ok("hello", &[("app.py", HELLO)]);
    let limits = node.json(&["describe", "hello", "-o", "json"])["limits"].clone();
    let doctor = String::from_utf8_lossy(&node.mote(&["doctor"]).stdout).into_owned();
    let is_of_processes = doctor.contains("RLIMIT_DATA");
    assert_eq!(limits["process_memory_bytes"].is_u64(), is_of_processes, "{limits} {doctor}");
    let shown = node.ok(&["describe", "hello"]);
    assert_eq!(shown.contains("enforced here"), is_of_processes, "{shown}");
}
