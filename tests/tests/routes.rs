//! Hosts and paths at which functions answer: `[[route]]` of manifests, over HTTP/1.1 and HTTP/2.

use std::net::SocketAddr;
use std::process::Command;

use mote_tests::{Answer, Node, call_at, wait_for};
use serde_json::{Value, json};

const SAYS: &str = "
import json

def handle(event, ctx):
    seen = [ctx.function, event.path, event.params, event.caller]
    return json.dumps(seen, ensure_ascii=True)
";

const SHOP: &str = "version = 1
[access]
mode = \"public\"
[[route]]
path = \"/orders/{id}\"
methods = [\"GET\", \"PUT\"]
[[route]]
host = \"shop.example.org\"
path = \"/{path...}\"
[[route]]
path = \"/old/{id}\"
redirect = \"/orders/{id}\"
[[route]]
host = \"www.example.org\"
path = \"/*\"
redirect = \"https://shop.example.org/{rest}\"
status = 301
";

fn deploy(node: &Node, name: &str, manifest: &str) {
    node.deploy_ok(name, &[("app.py", SAYS), ("mote.toml", manifest)]);
}

/// Sends a request to the node under another host name.
fn at(node: &Node, host: &str, method: &str, path: &str) -> Answer {
    call_at(node.http, method, path, &[("host", host)], b"")
}

fn seen(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// Returns status, `location` and body that curl received over HTTP/2.
fn over_h2(http: SocketAddr, host: &str, path: &str) -> (String, String, String) {
    let url = format!("http://{http}{path}");
    let form = "\n%{http_version} %{http_code}\n%header{location}";
    let output = Command::new("curl")
        .args(["-sS", "-m", "30", "--http2-prior-knowledge", "-w", form, &url])
        .args(["-H", &format!("host: {host}")])
        .output()
        .expect("curl runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (rest, location) = text.rsplit_once('\n').unwrap_or_else(|| panic!("{output:?}"));
    let (body, status) = rest.rsplit_once('\n').unwrap_or_else(|| panic!("{output:?}"));
    (status.to_owned(), location.to_owned(), body.to_owned())
}

#[test]
fn paths_lead_to_functions_with_their_parameters() {
    let node = Node::start();
    deploy(&node, "shop", SHOP);
    let get = |path: &str| at(&node, "localhost", "GET", path);
    let order = json!(["shop", "/orders/a%20b", {"id": "a b"}, null]);
    assert_eq!(seen(&get("/orders/a%20b")), order);
    assert_eq!(seen(&at(&node, "localhost", "PUT", "/orders/a%20b")), order);
    assert_eq!(at(&node, "localhost", "HEAD", "/orders/1").status, 200);
    // The function's own path still works, and has no parameters.
    assert_eq!(seen(&get("/shop/orders/1")), json!(["shop", "/orders/1", {}, null]));
    let other = at(&node, "localhost", "POST", "/orders/1");
    assert_eq!((other.status, other.header("allow")), (405, Some("GET, PUT, HEAD")));
    for path in ["/orders", "/orders/1/2", "/orders//", "/other/1", "/"] {
        assert_eq!(get(path).status, 404, "{path}");
    }
    for path in ["/orders/../shop", "/orders/%2e%2e"] {
        assert_eq!(get(path).status, 400, "{path}");
    }
    let described = node.ok(&["describe", "shop"]);
    for text in [
        "GET,PUT /orders/{id}\n",
        "shop.example.org/{path...}\n",
        "/old/{id} \u{2192} /orders/{id} (308)",
    ] {
        assert!(described.contains(text), "{text} in {described}");
    }
    // Only the node sets the parameters, so a caller's fields are dropped.
    for (path, field) in [("/shop", "mote-params"), ("/orders/1", "mote_params")] {
        let forged = [("host", "localhost"), (field, "id=9")];
        let told = seen(&call_at(node.http, "GET", path, &forged, b""));
        assert_ne!(told[2]["id"], "9", "{told}");
    }
    let (status, _, body) = over_h2(node.http, "localhost", "/orders/7");
    assert_eq!((status.as_str(), body.contains("{\"id\": \"7\"}")), ("2 200", true), "{body}");
}

#[test]
fn hosts_come_first_and_names_before_other_paths() {
    let node = Node::start();
    deploy(&node, "shop", SHOP);
    let any = "version = 1\n[access]\nmode = \"public\"\n[[trigger]]\nhttp = \"/{all...}\"\n";
    deploy(&node, "any", any);
    for (host, path, expected) in [
        ("shop.example.org", "/", json!(["shop", "/", {"path": ""}, null])),
        ("SHOP.example.org:80", "/any/x", json!(["shop", "/any/x", {"path": "any/x"}, null])),
        ("shop.example.org", "/any/", json!(["shop", "/any/", {"path": "any"}, null])),
        ("pi.example.org", "/any/x", json!(["any", "/x", {}, null])),
        ("localhost", "/shop", json!(["shop", "/", {}, null])),
        ("localhost", "/deep/er", json!(["any", "/deep/er", {"all": "deep/er"}, null])),
        ("localhost", "/orders/1", json!(["shop", "/orders/1", {"id": "1"}, null])),
        ("localhost", "/", json!(["any", "/", {"all": ""}, null])),
    ] {
        assert_eq!(seen(&at(&node, host, "GET", path)), expected, "{host}{path}");
    }
    // A function named like the first segment of another function's route takes the path. The
    // routes of the other function that are more specific still take precedence over the name.
    let own = "version = 1\n[access]\nmode = \"public\"\n[[route]]\npath = \"/orders/{n}/own\"\n";
    deploy(&node, "orders", own);
    assert_eq!(
        seen(&at(&node, "localhost", "GET", "/orders/1")),
        json!(["orders", "/1", {}, null])
    );
    let placed = json!(["orders", "/orders/1/own", {"n": "1"}, null]);
    assert_eq!(seen(&at(&node, "localhost", "GET", "/orders/1/own")), placed);
    // The paths of the node itself stay with the node.
    for host in ["localhost", "shop.example.org"] {
        for path in ["/_invocations/x", "/_other"] {
            assert_eq!(at(&node, host, "GET", path).status, 404, "{host}{path}");
        }
    }
    let odd = json!(["any", "//shop/a", {"all": "/shop/a"}, null]);
    assert_eq!(seen(&at(&node, "localhost", "GET", "//shop/a")), odd);
    let (status, _, body) = over_h2(node.http, "shop.example.org", "/any/x");
    assert_eq!((status.as_str(), body.contains("any/x")), ("2 200", true), "{body}");
}

#[test]
fn redirects_keep_the_query_and_the_host() {
    let node = Node::start();
    deploy(&node, "shop", SHOP);
    for (host, path, status, location) in [
        ("localhost", "/old/7?full=1", 308, "/orders/7?full=1"),
        ("www.example.org", "/a/b?c", 301, "https://shop.example.org/a/b?c"),
        ("www.example.org", "/", 301, "https://shop.example.org/"),
    ] {
        let answer = at(&node, host, "POST", path);
        assert_eq!((answer.status, answer.header("location")), (status, Some(location)));
        assert!(answer.body.is_empty(), "{answer:?}");
        let (told, to, _) = over_h2(node.http, host, path);
        assert_eq!((told, to), (format!("2 {status}"), location.to_owned()));
    }
}

#[test]
fn a_route_belongs_to_one_function_and_follows_its_revisions() {
    let node = Node::start();
    deploy(&node, "shop", SHOP);
    let taken = "version = 1\n[[route]]\npath = \"/orders/{number}\"\nmethods = [\"GET\"]\n";
    let output = node.deploy("thief", &[("app.py", SAYS), ("mote.toml", taken)]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("M0422"), "{text}");
    assert!(text.contains("shop") && text.contains("/orders/{number}"), "{text}");
    // If two functions are deployed at the same time, only one gets the route.
    std::thread::scope(|scope| {
        let twin = "version = 1\n[[route]]\npath = \"/twins/{x}\"\n";
        let node = &node;
        let both = ["twin-a", "twin-b"].map(|name| {
            scope.spawn(move || node.deploy(name, &[("app.py", SAYS), ("mote.toml", twin)]))
        });
        let live = both.map(|one| one.join().expect("a deploy").status.success());
        assert_eq!(live.iter().filter(|live| **live).count(), 1, "{live:?}");
    });
    // With another method it is a different route.
    deploy(&node, "maker", &taken.replace("GET", "POST"));
    assert_eq!(seen(&at(&node, "localhost", "POST", "/orders/1"))[0], "maker");
    // A deploy without the routes releases them, and the other function may have them.
    deploy(&node, "shop", "version = 1\n");
    wait_for("the route to go", || {
        (at(&node, "localhost", "GET", "/orders/1").status == 405).then_some(())
    });
    deploy(&node, "thief", taken);
    assert_eq!(seen(&at(&node, "localhost", "GET", "/orders/1"))[0], "thief");
    node.ok(&["rollback", "maker", "1"]);
    // Routes are in place again after a restart, and are removed with their function.
    let node = node.crash_and_restart();
    assert_eq!(seen(&at(&node, "localhost", "GET", "/orders/1"))[0], "thief");
    node.ok(&["remove", "thief", "--yes"]);
    node.ok(&["remove", "maker", "--yes"]);
    assert_eq!(at(&node, "localhost", "GET", "/orders/1").status, 404);
}

#[test]
fn traffic_and_hosts_are_checked_too() {
    let node = Node::start();
    let with = |path: &str| format!("version = 1\n[[route]]\npath = \"{path}\"\n");
    deploy(&node, "a", &with("/one/{x}"));
    let folder = node.dir.path().join("src/a");
    std::fs::write(folder.join("mote.toml"), with("/two/{x}")).expect("written");
    node.ok(&["deploy", folder.to_str().expect("UTF-8"), "--name", "a", "--no-traffic"]);
    node.ok(&["traffic", "a", "1=40", "2=60"]);
    // The route of the first revision is free now. `b` takes it, so the revision cannot have it
    // again.
    deploy(&node, "b", &with("/one/{y}"));
    let output = node.mote(&["traffic", "a", "1=100"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("M0422"), "{text}");
    assert_eq!(seen(&at(&node, "localhost", "GET", "/one/1"))[0], "b");
    // A redirect applies even if a revision without it is picked.
    deploy(&node, "d", "version = 1\n");
    let folder = node.dir.path().join("src/d");
    let away = "version = 1\n[[route]]\npath = \"/away\"\nredirect = \"/one/1\"\n";
    std::fs::write(folder.join("mote.toml"), away).expect("written");
    node.ok(&["deploy", folder.to_str().expect("UTF-8"), "--name", "d", "--no-traffic"]);
    node.ok(&["traffic", "d", "1=40", "2=60"]);
    for _ in 0..20 {
        assert_eq!(at(&node, "localhost", "GET", "/away").status, 308);
    }
    let host = "version = 1\n[[route]]\nhost = \"h.example\"\npath = \"/*\"\n";
    let output = node.deploy("c", &[("app.py", SAYS), ("mote.toml", host)]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("only this machine may call"), "{text}");
}

#[test]
fn wrong_routes_are_refused_with_their_line() {
    let node = Node::start();
    for (route, wanted) in [
        ("path = \"orders\"", "path: a path such as /orders/{id}"),
        ("path = \"/_mote\"", "path: what begins with /_ belongs to the node"),
        ("path = \"/a\"\nhost = \"localhost\"", "host: the name of a host"),
        ("path = \"/a\"\nhost = \"mote.internal\"", "host: the name of a host"),
        ("path = \"/a\"\nredirect = \"//evil.example\"", "redirect: a path, or a URL"),
        ("path = \"/a\"\nredirect = \"/{id}\"", "redirect: a path, or a URL"),
        ("path = \"/a\"\nredirect = \"/b\"\nstatus = 305", "status: 301, 302"),
    ] {
        let manifest = format!("version = 1\n[[route]]\n{route}\n");
        let output = node.deploy("f", &[("app.py", SAYS), ("mote.toml", &manifest)]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains("M0303"), "{route}: {text}");
        assert!(text.contains(wanted) && text.contains("line 2"), "{route}: {text}");
    }
}

#[test]
fn a_route_opens_nothing_that_its_function_closes() {
    let node = Node::start();
    let closed = |access: &str, path: &str| {
        format!(
            "version = 1\n{access}[[route]]\npath = \"{path}\"\n[[route]]\nhost = \"a.example\"\npath = \"{path}\"\n"
        )
    };
    deploy(&node, "held", &closed("[access]\nmode = \"key\"\n", "/held/it"));
    deploy(&node, "local", &closed("", "/in/{x}"));
    let key = node.ok(&["key", "create", "web", "--function", "held"]);
    let key = format!("Bearer {}", key.trim());
    for host in ["localhost", "a.example"] {
        assert_eq!(at(&node, host, "GET", "/held/it").status, 401, "{host}");
        let with = [("host", host), ("authorization", key.as_str())];
        let answer = seen(&call_at(node.http, "GET", "/held/it", &with, b""));
        assert_eq!(answer[3], "web");
    }
    // A redirect reveals its target only to callers that may call the function.
    let away = "version = 1\n[access]\nmode = \"key\"\n[[route]]\npath = \"/away\"\nredirect = \"/held/it\"\n";
    deploy(&node, "away", away);
    let answer = at(&node, "localhost", "GET", "/away");
    assert_eq!((answer.status, answer.header("location")), (401, None));
    // Under a foreign host name, the caller could be a page of another site.
    assert_eq!(at(&node, "a.example", "GET", "/in/1").status, 403);
    assert_eq!(at(&node, "localhost", "GET", "/in/1").status, 200);
}

#[test]
fn accepted_calls_and_preflights_take_routes_too() {
    let node = Node::start();
    let manifest = "version = 1\n[access]\nmode = \"public\"\n[[route]]\npath = \"/jobs/{id}\"\n\
                    methods = [\"POST\"]\n[http.cors]\norigins = [\"https://app.example\"]\n";
    deploy(&node, "jobs", manifest);
    let later = [("host", "localhost"), ("prefer", "respond-async")];
    let accepted = call_at(node.http, "POST", "/jobs/7", &later, b"x");
    assert_eq!(accepted.status, 202, "{accepted:?}");
    let location = accepted.header("location").expect("a location").to_owned();
    let result = wait_for("the result", || {
        let shown = at(&node, "localhost", "GET", &location).json();
        (shown["state"] == "succeeded").then(|| shown["body"].as_str().unwrap_or("").to_owned())
    });
    assert_eq!(result, "[\"jobs\", \"/jobs/7\", {\"id\": \"7\"}, null]");
    let asks = [
        ("host", "localhost"),
        ("origin", "https://app.example"),
        ("access-control-request-method", "POST"),
    ];
    let answer = call_at(node.http, "OPTIONS", "/jobs/7", &asks, b"");
    let allowed = answer.header("access-control-allow-origin");
    assert_eq!((answer.status, allowed), (204, Some("https://app.example")));
}
