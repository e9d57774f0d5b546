//! Separate TCP ports of functions: `node_port` in `[http]` of manifests.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use mote_tests::namespaces::{HELLO, start};
use mote_tests::{
    Answer, Connection, Node, call_at, free_address, free_port, is_root, namespaces, skip, wait_for,
};
use serde_json::{Value, json};

const SAYS: &str = "
import json

def handle(event, ctx):
    return json.dumps([ctx.function, event.method, event.path, event.caller])
";
/// All ports that [`free_port`] gives.
const PERMIT: [&str; 2] = ["--function-ports", "1024-32000"];

fn at(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn manifest(port: u16, more: &str) -> String {
    format!("version = 1\n[http]\nnode_port = {port}\n{more}")
}

fn deploy(node: &Node, name: &str, port: u16) {
    node.deploy_ok(name, &[("app.py", SAYS), ("mote.toml", &manifest(port, ""))]);
}

/// Deploys a function that must be refused, and returns the message.
fn refused(node: &Node, name: &str, port: u16) -> String {
    let output = node.deploy(name, &[("app.py", SAYS), ("mote.toml", &manifest(port, ""))]);
    assert!(!output.status.success(), "{name} was deployed with port {port}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn get(address: SocketAddr, path: &str) -> Answer {
    call_at(address, "GET", path, &[("host", "localhost")], b"")
}

fn seen(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// The port of a function as the management API shows it.
fn shown(node: &Node, name: &str) -> Value {
    node.json(&["describe", name, "-o", "json"])["urls"]["port"].clone()
}

fn is_closed(port: u16) -> bool {
    TcpStream::connect(at(port)).is_err()
}

/// Returns what curl received: the version of HTTP, and the answer.
fn curl(url: &str, more: &[&str]) -> String {
    let arguments = ["-sSk", "-m", "30", "-w", " %{http_version}"];
    let output = Command::new("curl").args(arguments).args(more).arg(url).output().expect("curl");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_function_answers_at_every_path_of_its_port() {
    let node = Node::start_with(&PERMIT);
    let port = free_port();
    let open = "[access]\nmode = \"public\"\n";
    node.deploy_ok("other", &[("app.py", SAYS)]);
    node.deploy_ok("shop", &[("app.py", SAYS), ("mote.toml", &manifest(port, open))]);
    for path in
        ["/", "/a", "/a/", "/other", "/shop/x", "/_next/a.js", "/a/b%20c/", "/.well-known/x"]
    {
        for host in ["localhost", "shop.example.org", "10.1.2.3:80"] {
            let answer = call_at(at(port), "GET", path, &[("host", host)], b"");
            assert_eq!(seen(&answer), json!(["shop", "GET", path, null]), "{host}{path}");
        }
    }
    assert_eq!(get(at(port), "/../a").status, 400);
    let h2 = curl(&format!("http://{}/other/", at(port)), &["--http2-prior-knowledge"]);
    assert_eq!(h2, "[\"shop\", \"GET\", \"/other/\", null] 2");
    // The function keeps its name, and the other function keeps what it has.
    assert_eq!(seen(&get(node.http, "/shop/x")), json!(["shop", "GET", "/x", null]));
    assert_eq!(seen(&get(node.http, "/other")), json!(["other", "GET", "/", null]));

    let url = format!("http://{}/", at(port));
    assert_eq!(shown(&node, "shop"), json!({ "number": port, "url": url }));
    assert_eq!(shown(&node, "other"), Value::Null);
    let described = node.ok(&["describe", "shop"]);
    assert!(described.lines().any(|line| line.starts_with("port") && line.ends_with(&url)));
    let again = node.deploy("shop", &[("app.py", SAYS), ("mote.toml", &manifest(port, open))]);
    let said = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(said.contains(&format!("  port  {url}\n")), "{said}");
}

#[test]
fn the_rules_of_the_function_hold_on_its_port() {
    let log = tempfile::NamedTempFile::new().expect("a file");
    let path = log.path().to_str().expect("UTF-8");
    let node = Node::start_with(&[&PERMIT[..], &["--access-log", path]].concat());
    let port = free_port();
    let rules = "methods = [\"GET\", \"POST\"]\nheaders = [\"x-device\"]\n\
                 [http.cors]\norigins = [\"https://app.example\"]\n\
                 [access]\nmode = \"key\"\n[limits]\nrate = \"1/h\"\nburst = 3\n";
    node.deploy_ok("shop", &[("app.py", SAYS), ("mote.toml", &manifest(port, rules))]);
    let key = node.ok(&["key", "create", "lamp", "--function", "shop"]).trim().to_owned();
    let bearer = format!("Bearer {key}");
    let call = |method: &str, more: &[(&str, &str)]| {
        let fields = [("host", "localhost"), ("authorization", bearer.as_str())];
        call_at(at(port), method, "/orders", &[&fields, more].concat(), b"")
    };
    assert_eq!(get(at(port), "/orders").status, 401);
    let other = call("PUT", &[("x-device", "1")]);
    assert_eq!((other.status, other.header("allow")), (405, Some("GET, POST, HEAD")));
    assert_eq!(call("GET", &[]).status, 400);
    let origin = [("x-device", "1"), ("origin", "https://app.example")];
    let answer = call("GET", &origin);
    assert_eq!(seen(&answer), json!(["shop", "GET", "/orders", "lamp"]));
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"));
    // Calls on the port use up the same rate as calls under the name.
    let fields = [("host", "localhost"), ("authorization", bearer.as_str()), ("x-device", "1")];
    assert_eq!(call_at(node.http, "GET", "/shop", &fields, b"").status, 200);
    assert_eq!(call("GET", &[("x-device", "1")]).status, 200);
    assert_eq!(call("GET", &[("x-device", "1")]).status, 429);
    assert_eq!(call_at(node.http, "GET", "/shop", &fields, b"").status, 429);
    wait_for("the lines of the access log", || {
        let lines = std::fs::read_to_string(path).expect("a file");
        let count = |end: &str| lines.lines().filter(|line| line.contains(end)).count();
        (count("\"GET /orders HTTP/1.1\"") == 5 && count("\"GET /shop HTTP/1.1\"") == 2)
            .then_some(())
    });

    // An accepted invocation must be looked up at the port where it was accepted.
    let port = free_port();
    node.deploy_ok("later", &[("app.py", SAYS), ("mote.toml", &manifest(port, ""))]);
    let prefer = [("host", "localhost"), ("prefer", "respond-async")];
    let accepted = call_at(at(port), "POST", "/x", &prefer, b"");
    assert_eq!(accepted.status, 202, "{accepted:?}");
    let place = accepted.header("location").expect("a location").to_owned();
    let result = wait_for("the result", || {
        let answer = get(at(port), &format!("{place}/result"));
        (answer.status == 200).then_some(answer)
    });
    assert_eq!(seen(&result), json!(["later", "POST", "/x", null]));
}

#[test]
fn only_this_machine_and_its_pages_reach_a_function_without_access() {
    let node = Node::start_with(&[&PERMIT[..], &["--lan"]].concat());
    let port = free_port();
    deploy(&node, "shop", port);
    assert_eq!(seen(&get(at(port), "/x")), json!(["shop", "GET", "/x", null]));
    // A page of another site could send this request.
    let foreign = [("host", "localhost"), ("origin", "https://evil.example")];
    assert_eq!(call_at(at(port), "POST", "/x", &foreign, b"").status, 403);
    let doctor = node.doctor(&[]);
    let row = format!("0.0.0.0:{port}");
    assert!(doctor.contains("port of shop") && doctor.contains(&row), "{doctor}");
}

#[test]
fn a_port_that_cannot_be_had_refuses_the_deploy_and_changes_nothing() {
    let free = free_port();
    let permit = format!("1-{},{}-65535", free - 1, free + 1);
    let node = Node::start_with(&["--function-ports", &permit]);
    let first = free_port();
    let second = free_port();
    deploy(&node, "first", first);
    deploy(&node, "second", second);

    let said = refused(&node, "other", first);
    assert!(said.contains("M0431") && said.contains("the function first"), "{said}");
    let said = refused(&node, "other", node.http.port());
    assert!(said.contains("M0431") && said.contains("the node itself"), "{said}");
    let program = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = program.local_addr().expect("an address").port();
    let said = refused(&node, "other", taken);
    assert!(said.contains("M0431") && said.contains("something else on this machine"), "{said}");
    let said = refused(&node, "other", free);
    assert!(said.contains("M0430") && said.contains(&permit), "{said}");
    assert_eq!(get(node.http, "/other").status, 404, "none of them was deployed");

    // If a new revision cannot have its port, the function stays as it was.
    let before = node.json(&["describe", "second", "-o", "json"])["revision"].clone();
    let said = refused(&node, "second", first);
    assert!(said.contains("M0431"), "{said}");
    assert_eq!(node.json(&["describe", "second", "-o", "json"])["revision"], before);
    assert_eq!(seen(&get(at(second), "/x"))[0], "second");
    assert_eq!(seen(&get(at(first), "/x"))[0], "first");

    let folder = node.dir.path().join("src/other");
    let dry = node.mote(&["deploy", folder.to_str().expect("UTF-8"), "--dry-run"]);
    assert!(!dry.status.success() && String::from_utf8_lossy(&dry.stderr).contains("M0430"));
    let zero = node.deploy("zero", &[("app.py", SAYS), ("mote.toml", &manifest(0, ""))]);
    let said = String::from_utf8_lossy(&zero.stderr).into_owned();
    assert!(said.contains("M0303") && said.contains("from 1 to 65535"), "{said}");

    if is_root() {
        return skip("a port below 1024 without the right", "root may listen there");
    }
    let said = refused(&node, "other", 1);
    assert!(said.contains("M0430") && said.contains("no right"), "{said}");
}

#[test]
fn a_node_gives_functions_only_the_ports_of_its_setting() {
    let node = Node::start();
    let said = refused(&node, "shop", 9_000);
    assert!(said.contains("M0430") && said.contains("30000-32767"), "{said}");
    let node = node.stop_and_restart_with(&["--function-ports", "off"]);
    let said = refused(&node, "shop", 30_000);
    assert!(said.contains("M0430") && said.contains("gives them none"), "{said}");
    let (node, _) = start(&PERMIT);
    let files = [("app.py", HELLO), ("mote.toml", &*manifest(free_port(), ""))];
    let output = namespaces::deploy(&node, "plant", "hello", &files);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("M0429"), "{said}");
}

#[test]
fn a_port_follows_the_live_revision() {
    let node = Node::start_with(&PERMIT);
    let old = free_port();
    let new = free_port();
    deploy(&node, "shop", old);
    let mut kept = Connection::open(at(old));
    let mut call = |path: &str| kept.call("GET", path, &[("host", "localhost")], b"");
    assert_eq!(seen(&call("/1"))[2], "/1");
    // The port of a new revision stays open, and so do its connections.
    deploy(&node, "shop", old);
    assert_eq!(seen(&call("/2"))[2], "/2");
    // A revision without traffic has no port.
    let folder = node.dir.path().join("src/shop");
    std::fs::write(folder.join("mote.toml"), manifest(new, "")).expect("a file");
    let folder = folder.to_str().expect("UTF-8");
    node.ok(&["deploy", folder, "--no-traffic"]);
    assert!(is_closed(new));
    node.ok(&["traffic", "shop", "3=100"]);
    assert_eq!(seen(&get(at(new), "/3"))[2], "/3");
    wait_for("the old port to close", || is_closed(old).then_some(()));
    // The open connection to the old port belonged to the same function.
    node.ok(&["rollback", "shop"]);
    assert_eq!(seen(&get(at(old), "/4"))[2], "/4");
    wait_for("the port of the other revision to close", || is_closed(new).then_some(()));

    // A removed function releases its port at once.
    node.ok(&["remove", "shop", "--yes"]);
    deploy(&node, "next", old);
    assert_eq!(seen(&get(at(old), "/5"))[0], "next");
    // A function that no longer asks for a port releases it too.
    node.deploy_ok("next", &[("app.py", SAYS)]);
    wait_for("the port to close", || is_closed(old).then_some(()));
    assert_eq!(shown(&node, "next"), Value::Null);
}

#[test]
fn a_port_is_open_again_after_a_restart_or_the_node_says_why_not() {
    let node = Node::start_with(&PERMIT);
    let mine = free_port();
    let lost = free_port();
    deploy(&node, "mine", mine);
    deploy(&node, "lost", lost);
    let node = node.crash_and_restart();
    assert_eq!(seen(&get(at(mine), "/1"))[0], "mine");
    assert_eq!(seen(&get(at(lost), "/1"))[0], "lost");

    let mut program = None;
    let node = node.restart_after(false, || {
        program = Some(TcpListener::bind(at(lost)).expect("the port is free"));
    });
    assert_eq!(seen(&get(at(mine), "/2"))[0], "mine");
    assert_eq!(seen(&get(node.http, "/lost"))[0], "lost");
    let problem = format!("lost: something else on this machine listens on port {lost}");
    assert_eq!(shown(&node, "lost"), json!({ "number": lost, "problem": problem }));
    assert!(node.ok(&["describe", "lost"]).contains("is not open"));
    assert!(node.log().contains("the port is not open"), "{}", node.log());
    // This does not stop a new revision, and no other function gets the port.
    deploy(&node, "lost", lost);
    assert!(refused(&node, "other", lost).contains("the function lost"));
    drop(program);
    wait_for("the port to be open", || shown(&node, "lost")["url"].is_string().then_some(()));
    assert_eq!(seen(&get(at(lost), "/3"))[0], "lost");

    // The node's setting also applies to functions that it already has.
    let node = node.stop_and_restart_with(&["--function-ports", "off"]);
    assert!(shown(&node, "mine")["problem"].as_str().is_some_and(|text| text.contains("no port")));
    assert!(is_closed(mine));
    assert_eq!(seen(&get(node.http, "/mine"))[0], "mine");
}

#[test]
fn ports_speak_tls_if_the_node_has_a_front_that_does() {
    let https = free_address().to_string();
    let node = Node::start_with(&[&PERMIT[..], &["--https", &https]].concat());
    let port = free_port();
    deploy(&node, "shop", port);
    let url = format!("https://{}/", at(port));
    assert_eq!(shown(&node, "shop")["url"], url);
    assert_eq!(curl(&format!("{url}a/"), &[]), "[\"shop\", \"GET\", \"/a/\", null] 2");
    assert_eq!(curl(&url, &["--http1.1"]), "[\"shop\", \"GET\", \"/\", null] 1.1");
    let plain = url.replace("https", "http");
    let plain = Command::new("curl").args(["-s", "-m", "30", &plain]).output().expect("curl");
    assert!(!plain.status.success(), "{plain:?}");
}

#[test]
fn a_site_on_a_port_has_relative_addresses() {
    let node = Node::start_with(&PERMIT);
    let port = free_port();
    let site = manifest(port, "[static]\nfolder = \"public\"\n");
    let files = [
        ("app.py", SAYS),
        ("mote.toml", &*site),
        ("public/index.html", "start"),
        ("public/docs/index.html", "docs"),
    ];
    node.deploy_ok("site", &files);
    assert_eq!(get(at(port), "/").text(), "start");
    let moved = get(at(port), "/docs");
    assert_eq!((moved.status, moved.header("location")), (308, Some("docs/")));
    assert_eq!(get(at(port), "/docs/").text(), "docs");
    assert_eq!(seen(&get(at(port), "/api"))[2], "/api");
}
