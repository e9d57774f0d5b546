//! Functions with `isolation = "pod"`: a cell with waiting pods, which are processes on loopback as a
//! user without rights. `tests/kubernetes/pods.py` has the same on a real cluster.

use std::io::Read as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use mote_tests::pods::{Pod, key_of_cells, tell};
use mote_tests::{Node, free_address, signal, wait_for};

const PYTHON: &str = "python-67108864";
const NODE: &str = "node-134217728";
const MANIFEST: &str = "version = 1\nisolation = \"pod\"\n";
/// Says where it runs, what it finds there, and ends as it is told.
const CODE: &str = r#"
import os, sys, time

def handle(event, ctx):
    if event.path == "/secret":
        return open(ctx.env("PLACE") if hasattr(ctx, "env") else os.environ["PLACE"]).read()
    if event.path == "/die":
        os._exit(3)
    if event.path == "/sleep":
        time.sleep(30)
    if event.path == "/echo":
        return event.body
    if event.path == "/print":
        print("a line of the function")
    return f"{os.getuid()} {os.getppid()} {os.environ.get('A', '')}"
"#;

/// A cell without other cells.
fn cell() -> Node {
    let dir = tempfile::Builder::new().prefix("mote-pods").tempdir().expect("temp folder");
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), mode).expect("mode");
    let key = dir.path().join("cell.key");
    std::fs::write(&key, "0123456789abcdef0123456789abcdef").expect("the key");
    let (at, key) = (free_address().to_string(), key.to_string_lossy().into_owned());
    Node::start_in(dir, &["--cell", &at, "--cell-key", &key])
}

fn deploy(node: &Node, more: &str) {
    node.deploy_ok("f", &[("mote.toml", &format!("{MANIFEST}{more}")), ("app.py", CODE)]);
}

#[test]
fn without_a_cluster_the_deploy_is_refused() {
    let refused = |node: &Node| {
        let output = node.deploy("f", &[("mote.toml", MANIFEST), ("app.py", CODE)]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{text}");
        assert!(text.contains("M0417") && text.contains("no pods"), "{text}");
    };
    refused(&Node::start());
    // A cell without an agent knows no pods either.
    refused(&cell());
}

#[test]
fn an_instance_is_a_pod_and_answers_as_others_do() {
    let node = cell();
    let cells = key_of_cells(&node);
    let mut pods = [Pod::start("a", PYTHON, &cells), Pod::start("b", PYTHON, &cells)];
    tell(&node, &[&pods[0], &pods[1]]);
    deploy(&node, "[env]\nA = \"value\"\n");
    let parts = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let first = parts(&node.get("/f").text());
    let at = pods.iter().position(|pod| pod.pid().to_string() == first[1]);
    let at = at.expect("the worker's parent is the main process of a pod");
    assert_eq!(first[2], "value");
    if mote_tests::is_root() {
        assert_eq!(first[0], "65532");
    }
    // The bodies are longer than any buffer on the way.
    let body: Vec<u8> = (0..3_000_000_u32).flat_map(|number| number.to_le_bytes()).collect();
    let body = &body[..5_000_000];
    assert!(node.post("/f/echo", body).body == body);
    assert_eq!(node.get("/f/print").status, 200);
    let logs = node.ok(&["logs", "f"]);
    assert!(logs.contains("a line of the function"), "{logs}");
    // The pod accepts nobody else for as long as it lives.
    assert!(TcpStream::connect(pods[at].address).is_err());
    // It ends with its instance, and the next instance is the other pod.
    node.ok(&["remove", "f", "--yes"]);
    assert!(pods[at].ended().success());
    deploy(&node, "");
    assert_eq!(parts(&node.get("/f").text())[1], pods[1 - at].pid().to_string());
}

#[test]
fn a_node_function_runs_in_a_pod() {
    let node = cell();
    let pod = Pod::start("a", NODE, &key_of_cells(&node));
    tell(&node, &[&pod]);
    let code = "export function handle(event) { return `${process.ppid} ${event.text()}`; }\n";
    node.deploy_ok("f", &[("mote.toml", MANIFEST), ("app.mjs", code)]);
    assert_eq!(node.post("/f", b"hello").text(), format!("{} hello", pod.pid()));
}

#[test]
fn a_pod_that_dies_is_replaced_and_safe_invocations_are_repeated() {
    let node = cell();
    let cells = key_of_cells(&node);
    let pods = [Pod::start("a", PYTHON, &cells), Pod::start("b", PYTHON, &cells)];
    tell(&node, &[&pods[0], &pods[1]]);
    deploy(&node, "");
    let first = node.get("/f").text();
    let at = pods.iter().position(|pod| first.contains(&pod.pid().to_string())).expect("a pod");
    let http = node.http;
    let slow = std::thread::spawn(move || mote_tests::call_at(http, "POST", "/f/sleep", &[], b""));
    wait_for("the invocation", || {
        (node.management("/v1/functions/f")["requests"]["running"] == 1).then_some(())
    });
    let killed = Instant::now();
    signal(pods[at].pid(), "KILL");
    // Nobody knows how far a POST got.
    assert_eq!(slow.join().expect("no panic").status, 502);
    let next = node.get("/f").text();
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
    assert!(next.contains(&pods[1 - at].pid().to_string()), "{next}");
    let logs = node.ok(&["logs", "f"]);
    assert!(logs.contains("is lost"), "{logs}");
}

#[test]
fn callers_wait_for_a_pod_that_is_on_its_way() {
    let node = cell();
    let cells = key_of_cells(&node);
    let first = Pod::start("a", PYTHON, &cells);
    tell(&node, &[&first]);
    deploy(&node, "");
    signal(first.pid(), "KILL");
    let http = node.http;
    let waiting = std::thread::spawn(move || mote_tests::call_at(http, "GET", "/f", &[], b""));
    wait_for("the caller", || {
        let function = node.management("/v1/functions/f");
        (function["requests"]["queued"] == 1).then_some(())
    });
    let second = Pod::start("b", PYTHON, &cells);
    tell(&node, &[&second]);
    let answer = waiting.join().expect("no panic");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.text().contains(&second.pid().to_string()));
}

#[test]
fn a_pod_accepts_only_its_cells_and_a_cell_only_its_pods() {
    let node = cell();
    let cells = key_of_cells(&node);
    let other_cells = "11".repeat(32);
    // One pod expects other cells; of another one, the cell expects another key.
    let foreign = Pod::start("foreign", PYTHON, &other_cells);
    let mut imposter = Pod::start("imposter", PYTHON, &cells);
    imposter.key = other_cells;
    let good = Pod::start("good", PYTHON, &cells);
    tell(&node, &[&foreign, &imposter, &good]);
    deploy(&node, "");
    assert!(node.get("/f").text().contains(&good.pid().to_string()));
    for pod in [&foreign, &imposter] {
        assert_eq!(pod.printed(), "", "nothing was sent to it");
        let claimed = pod.root().join("function");
        assert!(!claimed.exists());
        // It still waits for those that it expects.
        let mut probe = TcpStream::connect(pod.address).expect("it listens");
        probe.shutdown(std::net::Shutdown::Write).expect("closed");
        assert_eq!(probe.read(&mut [0; 64]).unwrap_or(0), 0);
    }
}

#[test]
fn the_function_in_a_pod_finds_neither_the_key_nor_the_memory_of_its_main_process() {
    if !mote_tests::is_root() {
        mote_tests::skip("the user of the pod", "only root can start it as another user");
        return;
    }
    let node = cell();
    let pod = Pod::start("a", PYTHON, &key_of_cells(&node));
    tell(&node, &[&pod]);
    let code = r#"
import os

def handle(event, ctx):
    parent = os.getppid()
    found = []
    for name in ("environ", "mem", "maps", "fd/0", "root/etc/passwd"):
        try:
            with open(f"/proc/{parent}/{name}", "rb") as file:
                found.append(name + " " + repr(file.read(4096)))
        except OSError as error:
            pass
    for base, _, files in os.walk(os.environ["ROOT"]):
        for file in files:
            with open(os.path.join(base, file), "rb") as text:
                if b"a secret of a, " + b"long enough" in text.read():
                    found.append(file)
    for name in os.listdir("/proc/self/fd"):
        try:
            found += [name] if "mote-pod" in os.readlink("/proc/self/fd/" + name) else []
        except OSError:
            pass
    own = open("/proc/self/environ", "rb").read() + str(os.environ).encode()
    return repr(found) + ("secret in the environment" if b"a secret of a, " + b"long enough" in own else "")
"#;
    let manifest = format!("{MANIFEST}[env]\nROOT = \"{}\"\n", pod.root().display());
    node.deploy_ok("f", &[("mote.toml", &manifest), ("app.py", code)]);
    assert_eq!(node.get("/f").text(), "[]");
    // The check finds what there is: the environment of its own process.
    let environment = std::fs::read(format!("/proc/{}/environ", pod.pid())).expect("we are root");
    assert!(!String::from_utf8_lossy(&environment).contains("long enough"));
}

#[test]
fn secrets_reach_the_pod_as_files_and_variables() {
    let node = cell();
    let pod = Pod::start("a", PYTHON, &key_of_cells(&node));
    tell(&node, &[&pod]);
    let set = node.mote_with_input(&["secret", "set", "token"], b"sesame");
    assert!(set.status.success(), "{set:?}");
    let place = pod.root().join("secrets/token");
    let more = format!(
        "secrets = [\"token\"]\n[env]\nA = {{ secret = \"token\" }}\nPLACE = \"{}\"\n",
        place.display()
    );
    deploy(&node, &more);
    assert_eq!(node.get("/f/secret").text(), "sesame");
    assert!(node.get("/f").text().ends_with("sesame"));
}

#[test]
fn a_cold_start_from_a_waiting_pod_is_fast() {
    let node = cell();
    let cells = key_of_cells(&node);
    let pods: Vec<Pod> = (0..6).map(|at| Pod::start(&at.to_string(), PYTHON, &cells)).collect();
    tell(&node, &pods.iter().collect::<Vec<_>>());
    deploy(&node, "[scale]\nidle = \"0s\"\n");
    let mut times = Vec::new();
    while times.len() < 5 {
        wait_for("no instance", || (node.management("/v1/pods")["running"] == 0).then_some(()));
        let begun = Instant::now();
        assert_eq!(node.get("/f").status, 200);
        times.push(begun.elapsed());
    }
    times.sort();
    // The bound is wide, because other tests share the machine; pods.py measures.
    assert!(times[2] < Duration::from_millis(250), "{times:?}");
    eprintln!("cold starts: {times:?}");
}
