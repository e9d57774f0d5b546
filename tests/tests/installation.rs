//! Package installations: which functions share a result, which hosts an installation can reach,
//! and what stays on disk.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use mote_tests::{Node, wait_for};

/// Writes a function's folder.
fn folder(node: &Node, name: &str, files: &[(&str, &str)]) -> PathBuf {
    let folder = node.dir.path().join("src").join(name);
    for (file, text) in files {
        let path = folder.join(file);
        std::fs::create_dir_all(path.parent().expect("has a parent")).expect("folder");
        std::fs::write(path, text).expect("file");
    }
    folder
}

fn deploy(node: &Node, name: &str, folder: &Path) -> String {
    let output = node.mote(&["deploy", folder.to_str().expect("UTF-8"), "--name", name]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}\nnode: {}", node.log());
    text
}

/// Makes a wheel with the module `brought`, whose `NAME` is `name`.
fn wheel(folder: &Path, name: &str) {
    std::fs::create_dir_all(folder).expect("folder");
    let script = "import sys, zipfile
with zipfile.ZipFile(sys.argv[1], 'w') as out:
    out.writestr('brought.py', 'NAME = %r' % sys.argv[2])
    out.writestr('brought-1.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: brought\\nVersion: 1\\n')
    out.writestr('brought-1.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    out.writestr('brought-1.dist-info/RECORD', '')
";
    let made = Command::new("python3")
        .args(["-c", script])
        .arg(folder.join("brought-1-py3-none-any.whl"))
        .arg(name)
        .status();
    assert!(made.expect("python3").success());
}

#[test]
fn packages_that_a_function_brings_are_its_own() {
    let node = Node::start();
    let code = "import brought\ndef handle(event, ctx):\n    return brought.NAME\n";
    let list = "--no-index\n--find-links /function/wheels\nbrought==1\n";
    for name in ["one", "two"] {
        let folder = folder(&node, name, &[("app.py", code), ("requirements.txt", list)]);
        wheel(&folder.join("wheels"), name);
        deploy(&node, name, &folder);
    }
    assert_eq!(node.get("/one").text(), "one");
    assert_eq!(node.get("/two").text(), "two");
}

#[test]
fn a_change_behind_a_list_installs_again() {
    let node = Node::start();
    let code = "import six\ndef handle(event, ctx):\n    return six.__version__\n";
    for version in ["1.16.0", "1.15.0"] {
        let more = format!("six=={version}\n");
        let files = [("app.py", code), ("requirements.txt", "-r more.txt\n"), ("more.txt", &*more)];
        let folder = folder(&node, "f", &files);
        deploy(&node, "f", &folder);
        assert_eq!(node.get("/f").text(), version);
    }
}

#[test]
fn scripts_of_an_installation_do_not_reach_the_host() {
    let node = Node::start();
    let host = TcpListener::bind("127.0.0.1:0").expect("loopback");
    host.set_nonblocking(true).expect("a socket");
    let port = host.local_addr().expect("bound").port();
    let attempt = format!(
        "const {{ writeFileSync }} = require('fs');\n\
         const socket = require('net').connect({port}, '127.0.0.1');\n\
         const say = (text) => {{ writeFileSync('/packages/said.txt', text); process.exit(0); }};\n\
         socket.on('connect', () => say('reached'));\n\
         socket.on('error', () => say('refused'));\n"
    );
    let package = r#"{"name": "f", "main": "index.mjs", "type": "module",
        "scripts": {"postinstall": "node /function/attempt.cjs"}, "dependencies": {"is-number": "7.0.0"}}"#;
    let code = "import { readFileSync } from 'fs';\n\
                export default { async fetch() { return new Response(readFileSync('/packages/said.txt', 'utf8')); } };\n";
    let files = [("index.mjs", code), ("package.json", package), ("attempt.cjs", &*attempt)];
    let folder = folder(&node, "f", &files);
    deploy(&node, "f", &folder);
    assert_eq!(node.get("/f").text(), "refused");
    assert!(host.accept().is_err(), "the script reached the host");
}

#[test]
fn code_that_nothing_uses_goes_without_a_restart() {
    let node = Node::start();
    for number in 0..14 {
        let code = format!("def handle(event, ctx):\n    return '{number}'\n");
        node.deploy_ok("f", &[("app.py", &code)]);
    }
    let trees = || {
        let folder = node.dir.path().join("data/code");
        std::fs::read_dir(folder).expect("code").count()
    };
    // 10 is the number of revisions that are kept for a rollback.
    wait_for("old code to go", || (trees() <= 10).then_some(()));
    assert_eq!(node.get("/f").text(), "13");
    node.ok(&["remove", "f", "--yes"]);
    wait_for("all code to go", || (trees() == 0).then_some(()));
}

#[test]
fn psutil_tells_an_instance_of_its_own_limits() {
    let node = Node::start();
    let code = "import json, os, psutil\n\
                def handle(event, ctx):\n    \
                memory = psutil.virtual_memory()\n    \
                return {'total': memory.total, 'available': memory.available, 'percent': memory.percent,\n        \
                'swap': psutil.swap_memory().total, 'cpus': psutil.cpu_count(), 'affinity': len(os.sched_getaffinity(0)),\n        \
                'cpu': psutil.cpu_percent(interval=0.01), 'each': psutil.cpu_percent(percpu=True),\n        \
                'boot': psutil.boot_time(), 'disk': psutil.disk_usage('/tmp').total,\n        \
                'parts': len(psutil.disk_partitions()), 'made': psutil.Process().create_time(),\n        \
                'rss': psutil.Process().memory_info().rss, 'pids': psutil.pids()}\n";
    let manifest = "version = 1\n[limits]\nmemory = \"96MiB\"\ndisk = \"8MiB\"\n";
    let files =
        [("app.py", code), ("requirements.txt", "psutil==7.1.3\n"), ("mote.toml", manifest)];
    node.deploy_ok("facts", &files);
    let answer = node.get("/facts");
    assert_eq!(answer.status, 200, "{}", node.ok(&["logs", "facts"]));
    let facts = answer.json();
    let number = |name: &str| facts[name].as_f64().unwrap_or_else(|| panic!("{name}: {facts}"));
    assert_eq!((number("total"), number("swap")), (f64::from(96 << 20), 0.0), "{facts}");
    assert!(number("available") <= number("total") && number("percent") <= 100.0, "{facts}");
    assert_eq!(number("cpus"), number("affinity"), "{facts}");
    assert_eq!(facts["each"].as_array().map(Vec::len), Some(number("cpus") as usize), "{facts}");
    // The activity of other processes on this machine is not reported.
    assert_eq!(number("cpu"), 0.0, "{facts}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
    let age_s = now.as_secs_f64() - number("made");
    assert!((-2.0..300.0).contains(&age_s), "a process made {age_s} s ago: {facts}");
    assert!(number("boot") <= number("made") && number("rss") > 1e6, "{facts}");
    assert_eq!(number("disk"), f64::from(8 << 20), "{facts}");
}
