//! Deploys: after a failure the old revision keeps serving, and packages are installed at deploy
//! time.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use mote_tests::{Node, has_npm, has_pip, mote_binary, wait_for};

fn says(text: &str) -> String {
    format!("def handle(event, ctx):\n    return '{text}'\n")
}

#[test]
fn a_new_revision_replaces_the_old_one() {
    let node = Node::start();
    node.deploy_ok("f", &[("app.py", &says("one"))]);
    assert_eq!(node.get("/f").text(), "one");
    node.deploy_ok("f", &[("app.py", &says("two"))]);
    assert_eq!(node.get("/f").text(), "two");
    assert_eq!(node.json(&["describe", "f", "-o", "json"])["revision"], 2);
}

#[test]
fn a_broken_revision_never_takes_traffic_and_says_why() {
    let node = Node::start();
    node.deploy_ok("f", &[("app.py", &says("good"))]);
    let broken = "import no_such_module_here\ndef handle(event, ctx):\n    return 'bad'\n";
    let output = node.deploy("f", &[("app.py", broken)]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(8), "{text}");
    assert!(text.contains("M0411") && text.contains("no_such_module_here"), "{text}");
    assert_eq!(node.get("/f").text(), "good");
    let node = node.crash_and_restart();
    assert_eq!(node.get("/f").text(), "good", "a broken revision came back");
}

#[test]
fn a_crash_in_the_middle_of_a_deploy_leaves_the_old_revision() {
    let node = Node::start();
    node.deploy_ok("f", &[("app.py", &says("old"))]);
    // The revision takes so long to start that the start can be interrupted.
    let slow = "import time\ntime.sleep(30)\ndef handle(event, ctx):\n    return 'new'\n";
    let folder = node.dir.path().join("slow");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("app.py"), slow).unwrap();
    let mut deploying = Command::new(mote_binary())
        .args(["deploy", folder.to_str().unwrap(), "--name", "f"])
        .env("MOTE_SOCKET", node.dir.path().join("s"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the second instance to start", || (instances(&node) >= 2).then_some(()));
    let node = node.crash_and_restart();
    assert_eq!(deploying.wait().unwrap().code(), Some(4), "the client says the node is gone");
    assert_eq!(node.get("/f").text(), "old");
}

/// Counts the sandboxes of this node, which are the zygote's children.
fn instances(node: &Node) -> usize {
    let children = |pid: &str| -> Vec<String> {
        let output = Command::new("pgrep").args(["-P", pid]).output().expect("pgrep");
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    };
    children(&node.pid().to_string()).iter().map(|helper| children(helper).len()).sum()
}

#[test]
fn python_packages_are_installed_once_and_never_at_cold_start() {
    if !has_pip() {
        return;
    }
    let node = Node::start();
    let code = "import six\ndef handle(event, ctx):\n    return six.__name__\n";
    let files = [
        ("app.py", code),
        ("requirements.txt", "six==1.16.0\n"),
        ("mote.toml", "version = 1\n[scale]\nidle = \"50ms\"\n"),
    ];
    let first = node.deploy("f", &files);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    assert_eq!(node.get("/f").text(), "six");
    let again = node.deploy("g", &files);
    let text = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.success() && text.contains("from cache"), "{text}");
    wait_for("the instance to go", || {
        let described = node.json(&["describe", "g", "-o", "json"]);
        described["instances"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    let started = Instant::now();
    assert_eq!(node.get("/g").text(), "six");
    println!("cold start with packages: {} ms", started.elapsed().as_millis());
}

#[test]
fn node_packages_are_installed() {
    if !has_npm() {
        return;
    }
    let node = Node::start();
    let code = "import isNumber from 'is-number';\nexport default { async fetch(request) { return new Response(String(isNumber(5))); } };\n";
    let package =
        r#"{"name":"f","type":"module","main":"index.mjs","dependencies":{"is-number":"7.0.0"}}"#;
    node.deploy_ok("f", &[("index.mjs", code), ("package.json", package)]);
    assert_eq!(node.get("/f").text(), "true");
}

#[test]
fn a_failed_installation_shows_what_the_client_said() {
    if !has_pip() {
        return;
    }
    let node = Node::start();
    let output =
        node.deploy("f", &[("app.py", &says("x")), ("requirements.txt", "six==99.99.99\n")]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(text.contains("M0401") && text.contains("99.99.99"), "{text}");
    let decisive = text.find("ERROR: No matching distribution found for six==99.99.99");
    let tail = text.find("its last lines:").unwrap_or(text.len());
    assert!(decisive.is_some_and(|at| at < tail), "{text}");
    assert_eq!(node.get("/f").status, 404);
}

#[test]
fn a_first_deploy_that_fails_shows_its_log_and_names_no_command_where_that_is_all() {
    let node = Node::start();
    let broken = "for n in range(9):\n    print('line', n)\nraise ValueError('not today')\ndef handle(event, ctx):\n    return 'bad'\n";
    let said = |name: &str| {
        let output = node.deploy(name, &[("app.py", broken)]);
        assert_eq!(output.status.code(), Some(8));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let first = said("new");
    assert!(first.contains("line 0") && first.contains("not today"), "{first}");
    assert!(!first.contains("mote logs"), "{first}");
    assert!(node.ok(&["logs", "new"]).contains("line 0"));
    node.deploy_ok("old", &[("app.py", &says("x"))]);
    let later = said("old");
    assert!(later.contains("not today") && later.contains("see: mote logs old"), "{later}");
    assert!(node.ok(&["logs", "old"]).contains("line 0"));
}

#[test]
fn files_of_secrets_are_not_deployed_unless_asked_for() {
    let node = Node::start();
    let code = "import os\ndef handle(event, ctx):\n    return ' '.join(sorted(n for n in os.listdir('.') if n.startswith('.env')))\n";
    let files =
        [("app.py", code), (".env", "KEY=1"), (".env.local", "KEY=2"), (".env.example", "KEY=")];
    let output = node.deploy("f", &files);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("may hold secrets: .env, .env.local;"), "{text}");
    assert_eq!(node.get("/f").text(), ".env.example");
    let output =
        node.deploy("f", &[&files[..], &[(".moteignore", "!.env\n.env.local\n")]].concat());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!text.contains("secrets"), "{text}");
    assert_eq!(node.get("/f").text(), ".env .env.example");
}

#[test]
fn the_steps_of_several_functions_name_theirs() {
    let node = Node::start();
    let folder = node.dir.path().join("src");
    std::fs::create_dir_all(&folder).unwrap();
    let [one, two] = ["one.py", "two.py"].map(|name| {
        std::fs::write(folder.join(name), says(name)).unwrap();
        folder.join(name).to_str().unwrap().to_owned()
    });
    let steps = |paths: &[&str]| -> Vec<String> {
        let output = node.mote(&[&["deploy"], paths].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        text.lines().filter(|line| line.starts_with("  ")).map(str::to_owned).collect()
    };
    let both = steps(&[&one, &two]);
    assert!(both.len() >= 10, "{both:#?}");
    for line in &both {
        assert!(line.contains(" one: ") != line.contains(" two: "), "{line}");
    }
    assert!(steps(&[&one]).iter().all(|line| !line.contains(" one: ")));
}

#[test]
fn what_comes_from_elsewhere_is_not_replaced_in_silence() {
    let node = Node::start();
    let manifest =
        "packages:\n  default:\n    actions:\n      greet:\n        function: greet.js\n";
    let action = "function main() { return { body: 'hello' }; }\n";
    let project = |folder: &str, files: &[(&str, &str)]| {
        let folder = node.dir.path().join("work").join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text) in files {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let output = node.mote(&["deploy", folder.to_str().unwrap()]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        text
    };
    let own = [("app.py", says("one"))];
    let own: Vec<_> = own.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let name = [("mote.toml", "version = 1\nname = \"greet\"\n")];
    let own = [&own[..], &name[..]].concat();
    // This also holds if the folder had a mote.toml before.
    let without: Vec<_> = own.iter().filter(|(file, _)| *file == "app.py").copied().collect();
    for files in [&own, &own, &without, &own] {
        let said = project("own", files);
        assert!(!said.contains("replaces"), "{said}");
    }
    let foreign = [("manifest.yaml", manifest), ("greet.js", action)];
    let said = project("shop", &foreign);
    let told = "greet: this deploy, from manifest.yaml in work/shop, replaces the function greet from the folder work/own;";
    assert!(said.contains(told), "{said}");
    let said = project("shop", &foreign);
    assert!(!said.contains("replaces"), "{said}");
}

#[test]
fn a_dry_run_changes_nothing() {
    let node = Node::start();
    let file = node.dir.path().join("f.py");
    std::fs::write(&file, says("x")).unwrap();
    node.ok(&["deploy", file.to_str().unwrap(), "--dry-run"]);
    assert_eq!(node.get("/f").status, 404);
}

#[test]
fn followed_logs_arrive_as_they_are_written() {
    let node = Node::start();
    let code = "def handle(event, ctx):\n    print('line', event.text)\n    return 'ok'\n";
    node.deploy_ok("f", &[("app.py", code)]);
    let mut follower = Command::new(mote_binary())
        .args(["logs", "f", "-f", "-o", "jsonl"])
        .env("MOTE_SOCKET", node.dir.path().join("s"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    for number in 0..5 {
        node.post("/f", number.to_string().as_bytes());
        let wanted = format!("line {number}");
        assert!(lines.by_ref().any(|line| line.expect("a line").contains(&wanted)));
    }
    follower.kill().unwrap();
    follower.wait().unwrap();
}

#[test]
fn a_followed_log_ends_with_its_node() {
    for name in ["TERM", "KILL"] {
        let mut node = Node::start();
        node.deploy_ok("f", &[("app.py", "def handle(event, ctx):\n    print('here')\n")]);
        node.get("/f");
        let mut follower = Command::new(mote_binary())
            .args(["logs", "f", "-f"])
            .env("MOTE_SOCKET", node.dir.path().join("s"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
        assert!(lines.by_ref().any(|line| line.expect("a line").ends_with("here")));
        mote_tests::signal(node.pid(), name);
        node.ended();
        let ended = follower.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(said, "the node has stopped; the log ends here\n", "{name}");
        assert_eq!(ended.status.code(), Some(0), "{name}");
    }
}

#[test]
fn a_log_that_nobody_reads_changes_no_outcome() {
    let node = Node::start_unheard(&[]);
    let code = "import os
def handle(event, ctx):
    print('a line')
    return os._exit(3) if event.text == 'end' else 'alive'
";
    for _ in 0..2 {
        node.deploy_ok("f", &[("app.py", code)]);
        assert_eq!(node.get("/f").text(), "alive");
    }
    let refused = node.deploy(
        "bad",
        &[("app.py", "import nothing_of_that_name\ndef handle(event, ctx):\n    pass\n")],
    );
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("nothing_of_that_name"), "{said}");
    assert_eq!(node.post("/f", b"end").status, 502);
    assert_eq!(node.get("/f").text(), "alive");
    node.ok(&["remove", "--yes", "f"]);
    assert_eq!(node.get("/f").status, 404);
}

#[test]
fn variables_that_interpreters_read_at_their_start_have_their_effect() {
    let node = Node::start();
    let python = "import sys, time
import vendored
BORN = time.localtime(0).tm_hour
def handle(event, ctx):
    return f'{BORN} {time.localtime(0).tm_hour} {sys.flags.optimize} {vendored.NAME} {hash(\"abc\")}'
";
    let js = "exports.handle = () => [
  new Date(0).getHours(), require('extra'), globalThis.early ?? 'late', process.env.NODE_ENV,
].join(' ');
";
    let manifest = |env: &str| {
        format!("version = 1\n[limits]\nmemory = \"128MiB\"\n[env]\nTZ = \"Asia/Tokyo\"\n{env}")
    };
    // First the variables that a running interpreter can apply, then those that need a new
    // interpreter.
    let applied =
        "PYTHONPATH = \"/function/lib\"\nNODE_PATH = \"/function/node\"\nNODE_ENV = \"test\"\n";
    let early = "PYTHONHASHSEED = \"0\"\nPYTHONOPTIMIZE = \"1\"\n\
                 NODE_OPTIONS = \"--require /function/early.cjs\"\n";
    let both = manifest(&format!("{applied}{early}"));
    for (name, manifest) in [("some", manifest(applied)), ("all", both)] {
        let files =
            [("app.py", python), ("lib/vendored.py", "NAME = 'found'\n"), ("mote.toml", &manifest)];
        node.deploy_ok(&format!("p-{name}"), &files);
        let files = [
            ("index.cjs", js),
            ("early.cjs", "globalThis.early = 'early';\n"),
            ("node/extra.js", "module.exports = 'found';\n"),
            ("mote.toml", &manifest),
        ];
        node.deploy_ok(&format!("j-{name}"), &files);
    }
    let mut seeded = String::new();
    for _ in 0..2 {
        let some = node.get("/p-some").text();
        assert!(some.starts_with("9 9 0 found "), "{some}");
        let all = node.get("/p-all").text();
        assert!(all.starts_with("9 9 1 found "), "{all}");
        // Without the variable, each interpreter has a different hash.
        assert!(seeded.is_empty() || seeded == all, "{seeded}, then {all}");
        seeded = all;
        assert_eq!(node.get("/j-some").text(), "9 found late test");
        assert_eq!(node.get("/j-all").text(), "9 found early test");
        for name in ["p-some", "p-all", "j-some", "j-all"] {
            node.ok(&["scale", name, "0"]);
        }
    }
}

#[test]
fn code_may_be_written_to_where_the_platform_or_the_manifest_says_so() {
    let node = Node::start();
    let body = "    import os
    folder = os.path.dirname(os.path.abspath(__file__))
    count = os.path.join(folder, 'count.txt')
    try:
        old = open(count).read()
        with open(count, 'w') as file:
            file.write(old + 'x')
        with open(os.path.join(folder, 'fresh-%d' % len(old)), 'w'):
            pass
        return '%s %d' % (open(count).read(), len(os.listdir(folder)))
    except OSError as error:
        return type(error).__name__ + ' ' + str(error.errno)
";
    let native = format!("def handle(event, ctx):\n{body}");
    let count = ("count.txt", "n");
    node.deploy_ok("plain", &[("app.py", &native), count]);
    assert_eq!(node.get("/plain").text(), "OSError 30", "read-only");
    let manifest = "version = 1\nwritable = true\n";
    node.deploy_ok("own", &[("app.py", &native), count, ("mote.toml", manifest)]);
    let openfaas = format!("def handle(req):\n{body}");
    let manifest = "version = 1\nruntime = \"python\"\ncompat = \"openfaas\"\n\
                    template = \"python3\"\nentry = \"handler\"\n";
    node.deploy_ok("faas", &[("handler.py", &openfaas), count, ("mote.toml", manifest)]);
    for name in ["own", "faas"] {
        for _ in 0..2 {
            let first = node.get(&format!("/{name}")).text();
            assert!(first.trim().starts_with("nx "), "{name}: {first}");
            let second = node.get(&format!("/{name}")).text();
            assert!(second.trim().starts_with("nxx "), "{name}: {second}");
            // A new instance starts with the code as it was deployed.
            node.ok(&["scale", name, "0"]);
        }
    }
}

#[test]
fn a_java_virtual_machine_runs() {
    // keytool is part of every Java runtime, and it reads the configuration of the security
    // providers.
    let has_java = Command::new("keytool").arg("-help").output().is_ok();
    if !has_java {
        return mote_tests::skip("Java", "keytool is not installed: scripts/setup.sh java");
    }
    let node = Node::start();
    let run = "#!/bin/sh
keytool -genkeypair -keyalg EC -alias a -dname CN=lamp -keystore /tmp/keys -storepass changeit 2>&1 &&
keytool -list -keystore /tmp/keys -storepass changeit 2>&1
";
    let manifest = "version = 1\nruntime = \"exec\"\ncommand = [\"./run.sh\"]\n\
                    [limits]\nmemory = \"512MiB\"\ndisk = \"64MiB\"\ntimeout = \"60s\"\n";
    node.deploy_ok("f", &[("run.sh", run), ("mote.toml", manifest)]);
    let said = node.get("/f").text();
    assert!(said.contains("PrivateKeyEntry"), "{said}");
}

#[test]
fn a_server_that_ignores_its_port_is_told_where_it_listens() {
    let node = Node::start();
    let server = "import http.server\n\
        http.server.HTTPServer(('0.0.0.0', 3123), http.server.BaseHTTPRequestHandler).serve_forever()\n";
    let manifest = "version = 1\nruntime = \"server\"\ncommand = [\"python3\", \"app.py\"]\n\
                    [limits]\ninit_timeout = \"4s\"\n";
    let deployed = node.deploy("f", &[("app.py", server), ("mote.toml", manifest)]);
    let said = String::from_utf8_lossy(&deployed.stderr).into_owned();
    assert!(!deployed.status.success());
    assert!(said.contains("nothing listens on $PORT (8080)"), "{said}");
    assert!(said.contains("the program listens on port 3123"), "{said}");
    let silent = "import time\nprint('waits', flush=True)\ntime.sleep(60)\n";
    let deployed = node.deploy("f", &[("app.py", silent), ("mote.toml", manifest)]);
    let said = String::from_utf8_lossy(&deployed.stderr).into_owned();
    assert!(said.contains("nothing listens on $PORT (8080)") && said.contains("waits"), "{said}");
}

#[test]
fn a_failed_first_deploy_shows_both_ends_of_its_output_and_keeps_its_log() {
    let node = Node::start();
    let code = "import sys
for at in range(200):
    print('line %d.' % at, file=sys.stderr)
raise SystemExit('the end')
def handle(event, ctx):
    pass
";
    let deployed = node.deploy("f", &[("app.py", code)]);
    assert!(!deployed.status.success());
    let said = String::from_utf8_lossy(&deployed.stderr).into_owned();
    for wanted in ["line 0.", "line 9.", "line 199.", "more lines", "mote logs f"] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    assert!(!said.contains("line 100."), "{said}");
    let log = node.ok(&["logs", "f", "--tail", "1000"]);
    assert!(
        log.contains("line 0.") && log.contains("line 100.") && log.contains("line 199."),
        "{log}"
    );
    assert!(!node.mote(&["logs", "g"]).status.success(), "nobody has deployed it");
}

#[test]
fn a_server_gets_a_sigterm_and_time_before_it_is_killed() {
    let node = Node::start();
    let server = |text: &str| {
        format!(
            "import http.server, os, signal, sys, threading, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{text}')
server = http.server.ThreadingHTTPServer(('127.0.0.1', int(os.environ['PORT'])), Handler)
def end(*_):
    print('asked to end', flush=True)
    time.sleep(1.5)
    print('has ended well', flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
server.serve_forever()
"
        )
    };
    // There is one instance at a time, so that each end is counted once.
    let manifest = "version = 1\nruntime = \"server\"\ncommand = [\"python3\", \"app.py\"]\n\
                    [scale]\nmax = 1\n";
    let log_says = |text: &str, times: usize| {
        wait_for(text, || (node.ok(&["logs", "f"]).matches(text).count() == times).then_some(()));
    };
    for (at, text) in ["one", "two"].iter().enumerate() {
        node.deploy_ok("f", &[("app.py", &server(text)), ("mote.toml", manifest)]);
        assert_eq!(node.get("/f").text(), *text);
        log_says("has ended well", at);
    }
    node.ok(&["scale", "f", "0"]);
    log_says("has ended well", 2);
    let log = node.ok(&["logs", "f"]);
    assert!(!log.contains("killed") && !log.contains("crash"), "{log}");
}
