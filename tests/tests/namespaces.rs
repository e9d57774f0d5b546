//! Namespaces: what their tokens and functions can reach, their limits, and their removal.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mote_tests::namespaces::{HELLO, deploy, deploy_ok, start, token};
use mote_tests::{Answer, Node, basic_auth, call_at, free_address, wait_for};

/// Calls a function or uses a shared state, and answers with the outcome.
const ASKER: &str = r#"
def handle(event, ctx):
    args = event.args
    try:
        if "call" in args:
            reply = ctx.call(args["call"])
            return "%d %s" % (reply.status, reply.text)
        if "later" in args:
            return ctx.call_async(args["later"])
        kv = ctx.kv.shared(args["shared"]) if "shared" in args else ctx.kv
        return str(kv.increment("count"))
    except ctx.kv.Error as error:
        return "%s %s" % (error.code, getattr(error, "status", 0)), 400
"#;
const ASKS: &str = "version = 1\n[allow]\nfunctions = [\"*\"]\n[kv]\nshared = [\"sums\"]\n";
const ROLES: [&str; 3] = ["viewer", "deployer", "operator"];

fn refused(node: &Node, args: &[&str]) -> String {
    let output = node.mote(args);
    assert!(!output.status.success(), "{args:?} succeeded");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn manage(admin: SocketAddr, method: &str, path: &str, token: &str, body: &[u8]) -> Answer {
    let bearer = format!("Bearer {token}");
    let fields = [("authorization", bearer.as_str()), ("host", "localhost")];
    call_at(admin, method, path, &fields, body)
}

#[test]
fn functions_of_a_namespace_have_names_with_a_dot() {
    let (node, _) = start(&[]);
    deploy_ok(&node, "plant", "hello", &[("app.py", HELLO)]);
    node.deploy_ok("hello", &[("app.py", "def handle(event, ctx):\n    return 'default'\n")]);
    assert_eq!(node.get("/hello.plant").text(), "hello");
    assert_eq!(node.get("/hello").text(), "default");
    assert_eq!(node.get("/hello.orchard").status, 404);
    assert_eq!(node.ok(&["list", "-o", "name"]), "hello\nhello.plant\n");
    assert_eq!(node.ok(&["list", "-o", "name", "--namespace", "plant"]), "hello.plant\n");
    assert_eq!(node.ok(&["invoke", "hello", "--namespace", "plant"]).trim(), "hello");
    assert_eq!(node.ok(&["invoke", "hello.plant"]).trim(), "hello");
    assert!(node.ok(&["logs", "hello", "--namespace", "plant"]).contains("traffic (deploy)"));

    let missing = refused(&node, &["invoke", "hell", "--namespace", "plant"]);
    assert!(missing.contains("did you mean `hello.plant`"), "{missing}");
    let output = deploy(&node, "nowhere", "hello", &[("app.py", HELLO)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("M0423") && said.contains("mote namespace create nowhere"), "{said}");
    let (status, body) = node.manage("PUT", "/v1/functions/hello.nowhere", "");
    assert!(status == 404 && body.contains("M0423"), "{body}");
    let (status, body) = node.manage("PUT", "/v1/functions/hello.default", "");
    assert!(matches!(status, 404 | 422) && !body.contains("hello.default is"), "{body}");
    for wrong in ["default", "a.b", "-a", "A"] {
        let said = refused(&node, &["namespace", "create", "--", wrong]);
        assert!(said.contains("M0303"), "{wrong}: {said}");
    }
    let again = refused(&node, &["namespace", "create", "plant"]);
    assert!(again.contains("M0426"), "{again}");

    let node = node.stop_and_restart();
    assert_eq!(node.get("/hello.plant").text(), "hello");
    let list = node.json(&["namespace", "list", "-o", "json"]);
    assert_eq!(list["namespaces"][0]["name"], "orchard");
    assert_eq!(list["namespaces"][1]["functions"], 1);
    let full = refused(&node, &["namespace", "delete", "plant", "--yes"]);
    assert!(full.contains("M0427") && full.contains("has 1 function\n"), "{full}");
    assert_eq!(node.get("/hello.plant").text(), "hello", "nothing was removed");
    node.ok(&["remove", "hello", "--yes", "--namespace", "plant"]);
    node.ok(&["namespace", "delete", "plant", "--yes"]);
    node.ok(&["namespace", "delete", "orchard", "--yes"]);
    assert_eq!(node.get("/hello").text(), "default");
}

/// Uploads without a spec, as a program other than `mote` may do.
#[test]
fn an_upload_without_a_spec_gets_the_name_of_its_path() {
    let (node, admin) = start(&[]);
    let deployer = token(&node, "deployer", "deployer", Some("plant"));
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("app.py"), HELLO).expect("a file");
    let tar = std::process::Command::new("tar")
        .args(["-C", folder.path().to_str().expect("UTF-8"), "-c", "app.py"])
        .output()
        .expect("tar runs");
    for path in ["/v1/functions/one", "/v1/functions/two.plant"] {
        let answer = manage(admin, "PUT", path, &deployer, &tar.stdout);
        assert_eq!(answer.status, 201, "{path}: {}", answer.text());
    }
    assert_eq!(node.ok(&["list", "-o", "name"]), "one.plant\ntwo.plant\n");
    assert_eq!(node.get("/one.plant").text(), "hello");
}

/// The expected answer to a request with a token of `plant`.
#[derive(Debug, PartialEq)]
enum Expected {
    /// The same answer as with a token for the whole node.
    Answered,
    /// 403, because of the token's role.
    Role,
    /// 403, because the request concerns the whole node.
    Node,
    /// 404, whether or not there is something with this name.
    Nothing,
}

fn expected(method: &str, path: &str, role: &str, is_own: bool) -> Expected {
    let below = |topic: &str| path.starts_with(&format!("/v1/{topic}"));
    let of_operators =
        ["keys", "tokens", "audit", "mqtt", "cells", "pods", "journals", "namespaces"];
    let reads = method == "get";
    let least = match reads {
        true if below("audit") => 2,
        true if below("kv") || below("files") || path.ends_with("/recording") => 1,
        true => 0,
        false if of_operators.into_iter().any(below) => 2,
        false => 1,
    };
    let of_namespace = [
        "functions",
        "invocations",
        "dead-letters",
        "schedules",
        "secrets",
        "keys",
        "kv",
        "files",
        "openapi",
        "traces",
    ];
    let is_cluster = path.ends_with("/split") || path.ends_with("/{number}");
    let is_namespace = below("namespaces") && reads;
    if is_cluster || (path != "/metrics" && !is_namespace && !of_namespace.into_iter().any(below)) {
        return Expected::Node;
    }
    if ROLES.iter().position(|one| *one == role).expect("a role") < least {
        return Expected::Role;
    }
    match path.contains('{') {
        true if is_namespace => {
            if is_own {
                Expected::Answered
            } else {
                Expected::Node
            }
        }
        true if !is_own => Expected::Nothing,
        _ => Expected::Answered,
    }
}

#[test]
fn every_route_asks_for_the_scope_of_a_token() {
    let (node, admin) = start(&["--trace", "100%"]);
    deploy_ok(&node, "orchard", "hello", &[("app.py", HELLO)]);
    node.deploy_ok("hello", &[("app.py", HELLO)]);
    let scoped = ROLES.map(|role| (role, token(&node, role, role, Some("plant"))));
    let whole = ROLES.map(|role| (role, token(&node, &format!("whole-{role}"), role, None)));
    let accepted = node.call("POST", "/hello.orchard", &[("prefer", "respond-async")], b"");
    let id = accepted.json()["id"].as_str().expect("an id").to_owned();
    let trace = wait_for("the call's trace", || {
        node.management("/v1/traces")["traces"][0]["trace"].as_str().map(str::to_owned)
    });
    let document = node.management("/v1/openapi.json");
    let mut asked = 0;
    // The names in the token's own namespace do not exist, so that nothing is changed. `exists`
    // says whether the other names exist.
    for (kind, is_own, exists) in [
        ("own", true, false),
        ("foreign", false, true),
        ("nowhere", false, false),
        ("default", false, true),
    ] {
        for (path, methods) in document["paths"].as_object().expect("paths") {
            // A token has no session, and a session is not about a namespace.
            if matches!(&**path, "/livez" | "/readyz" | "/v1/session" | "/v1/session/code") {
                continue;
            }
            let name = match (kind, path.split('/').nth(2)) {
                ("own", Some("invocations" | "dead-letters")) => "nothing".to_owned(),
                ("foreign", Some("invocations" | "dead-letters")) => id.clone(),
                (_, Some("invocations" | "dead-letters")) => "nothing".to_owned(),
                ("foreign", Some("traces")) => trace.clone(),
                (_, Some("traces")) => "nothing".to_owned(),
                ("own", Some("namespaces")) => "plant".to_owned(),
                ("foreign", Some("namespaces")) => "orchard".to_owned(),
                (_, Some("namespaces")) => kind.to_owned(),
                ("own", _) => "nothing".to_owned(),
                ("foreign", Some("secrets" | "keys")) => "orchard%2Fhello".to_owned(),
                ("nowhere", Some("secrets" | "keys")) => "nowhere%2Fhello".to_owned(),
                ("foreign", _) => "hello.orchard".to_owned(),
                ("nowhere", _) => "hello.nowhere".to_owned(),
                // There is no written form for names of the default namespace. They would mean
                // names in the token's own namespace.
                (_, _) => continue,
            };
            let mut target = path.clone();
            while let (Some(from), Some(to)) = (target.find('{'), target.find('}')) {
                let value = if &target[from..=to] == "{number}" { "1" } else { &name };
                target.replace_range(from..=to, value);
            }
            for method in methods.as_object().expect("methods").keys() {
                let upper = method.to_uppercase();
                for (role, token) in &scoped {
                    let answer = manage(admin, &upper, &target, token, b"");
                    let status = answer.status;
                    let text = answer.text();
                    let shown = format!("{kind} {upper} {target} as {role}: {status} {text}");
                    match expected(method, path, role, is_own) {
                        Expected::Role => {
                            assert!(status == 403 && text.contains("M1407"), "{shown}");
                        }
                        Expected::Node => {
                            assert!(status == 403 && text.contains("M1408"), "{shown}");
                        }
                        Expected::Nothing => {
                            assert_eq!(status, 404, "{shown}");
                            assert!(!text.contains("did you mean"), "{shown}");
                            // The answer about an existing thing equals the answer about a missing
                            // one.
                            if exists
                                && !path.contains("/invocations")
                                && !path.contains("/dead-letters")
                                && !path.contains("/traces")
                            {
                                let none = target.replace("orchard", "nowhere");
                                let same = manage(admin, &upper, &none, token, b"");
                                let text = text.replace("orchard", "nowhere");
                                assert_eq!((same.status, same.text()), (status, text), "{shown}");
                            }
                        }
                        Expected::Answered => {
                            assert!(!matches!(status, 401 | 403), "{shown}");
                            assert!(!text.contains("orchard"), "{shown}");
                        }
                    }
                    asked += 1;
                }
            }
        }
    }
    assert!(asked > 450, "{asked} questions");
    // The functions of the other namespace are still there, and a token for the node reaches them.
    assert_eq!(node.ok(&["list", "-o", "name"]), "hello\nhello.orchard\n");
    for (role, token) in &whole {
        let seen = manage(admin, "GET", "/v1/functions/hello.orchard", token, b"");
        assert_eq!(seen.status, 200, "{role}");
    }
    let twice = "/v1/functions/hello%2Eorchard";
    assert_eq!(manage(admin, "GET", twice, &scoped[2].1, b"").status, 404);
    let bearer = format!("Bearer {}", scoped[2].1);
    let fields = [("authorization", bearer.as_str()), ("mote-namespace", "orchard")];
    let other = call_at(admin, "GET", "/v1/functions", &fields, b"");
    assert!(other.status == 404 && other.text().contains("M0423"), "{}", other.text());
    let fields = [("authorization", bearer.as_str()), ("mote-namespace", "default")];
    for path in ["/v1/functions", "/v1/functions/hello", "/metrics"] {
        let default = call_at(admin, "GET", path, &fields, b"");
        let text = default.text();
        assert!(default.status == 404 && text.contains("has no name of its own"), "{text}");
    }
    let key = manage(admin, "POST", "/v1/keys", &scoped[2].1, b"{\"name\":\"orchard/dev\"}");
    assert!(key.status == 404 && key.text().contains("M0423"), "{}", key.text());
}

#[test]
fn lists_and_metrics_show_what_a_token_may_see() {
    let mut flags = vec!["--lan", "--tinyfaas", "0.0.0.0:0"];
    for front in ["--tinyfaas-http", "--tinyfaas-coap", "--tinyfaas-grpc"] {
        flags.extend([front, "off"]);
    }
    let (node, admin) = start(&flags);
    let timer = "version = 1\n[[trigger]]\ncron = \"0 0 1 1 *\"\n";
    for namespace in ["plant", "orchard"] {
        deploy_ok(&node, namespace, "hello", &[("app.py", HELLO), ("mote.toml", timer)]);
        node.mote_with_input(&["secret", "set", "db", "--namespace", namespace], b"value");
        node.ok(&["key", "create", "dev", "--namespace", namespace]);
        node.ok(&["kv", "put", "hello", "k", "v", "--namespace", namespace]);
        let path = format!("/hello.{namespace}");
        assert_eq!(node.call("POST", &path, &[("prefer", "respond-async")], b"").status, 202);
        assert_eq!(node.get(&path).status, 200);
    }
    node.deploy_ok("hello", &[("app.py", HELLO)]);
    assert_eq!(node.get("/hello").status, 200);
    let operator = token(&node, "operator", "operator", Some("plant"));
    for path in [
        "/v1/functions",
        "/v1/schedules",
        "/v1/secrets",
        "/v1/keys",
        "/v1/kv",
        "/v1/invocations",
        "/v1/namespaces",
        "/metrics",
        "/v1/invocations?function=hello",
    ] {
        let answer = manage(admin, "GET", path, &operator, b"");
        let text = answer.text();
        assert_eq!(answer.status, 200, "{path}: {text}");
        assert!(text.contains("plant") && !text.contains("orchard"), "{path}: {text}");
        let of_default = text.contains("\"hello\"") && path != "/v1/functions";
        assert!(!of_default || path == "/v1/schedules", "{path}: {text}");
    }
    let foreign = manage(admin, "GET", "/v1/invocations?function=hello.orchard", &operator, b"");
    assert_eq!(foreign.json()["invocations"].as_array().map(Vec::len), Some(0));
    let all = node.json(&["invocation", "list", "-o", "json"]);
    assert_eq!(all["invocations"].as_array().map(Vec::len), Some(2));
    let deleted = manage(admin, "DELETE", "/v1/dead-letters", &operator, b"");
    assert_eq!(deleted.status, 200);

    // The API of tinyFaaS does not know namespaces.
    let credentials = basic_auth("admin", &operator);
    let fields = [("authorization", credentials.as_str())];
    let tiny = SocketAddr::from(([127, 0, 0, 1], node.platform("tinyfaas").port()));
    let list = call_at(tiny, "GET", "/list", &fields, b"");
    assert_eq!(list.status, 403, "{}", list.text());
    let record = node.ok(&["audit"]);
    assert!(!record.contains(&operator));
}

#[test]
fn functions_reach_only_their_own_namespace() {
    let (node, _) = start(&[]);
    let secret = "version = 1\nsecrets = [\"db\"]\n[allow]\nfunctions = [\"*\"]\n[kv]\nshared = [\"sums\"]\n";
    let reads = format!(
        "{ASKER}\nfirst = handle\ndef handle(event, ctx):\n    if 'secret' in event.args:\n        return open('/secrets/db').read()\n    return first(event, ctx)\n"
    );
    for namespace in ["plant", "orchard"] {
        let value = format!("of {namespace}");
        node.mote_with_input(&["secret", "set", "db", "--namespace", namespace], value.as_bytes());
        deploy_ok(&node, namespace, "asker", &[("app.py", &reads), ("mote.toml", secret)]);
        let answer = format!("def handle(event, ctx):\n    return '{namespace}'\n");
        deploy_ok(&node, namespace, "told", &[("app.py", &answer)]);
    }
    deploy_ok(&node, "orchard", "alone", &[("app.py", HELLO)]);
    node.deploy_ok("asker", &[("app.py", ASKER), ("mote.toml", ASKS)]);
    node.deploy_ok("mine", &[("app.py", HELLO)]);

    let ask = |function: &str, query: &str| {
        let answer = node.get(&format!("/{function}?{query}"));
        (answer.status, answer.text())
    };
    assert_eq!(ask("asker.plant", "call=told"), (200, "200 plant".to_owned()));
    assert_eq!(ask("asker.plant", "call=told.plant"), (200, "200 plant".to_owned()));
    assert_eq!(ask("asker.orchard", "call=told"), (200, "200 orchard".to_owned()));
    // Functions of orchard look as missing as functions that do not exist.
    let missing = ask("asker.plant", "call=nothing");
    assert_eq!(missing.0, 400);
    for name in
        ["told.orchard", "alone", "alone.orchard", "mine", "mine.default", "told.plant.orchard"]
    {
        assert_eq!(ask("asker.plant", &format!("call={name}")), missing, "{name}");
        assert_eq!(ask("asker.plant", &format!("later={name}")).0, 400, "{name}");
    }
    for name in ["told.orchard", "told.plant", "told"] {
        assert_eq!(ask("asker", &format!("call={name}")), missing, "{name}");
    }
    assert_eq!(ask("asker", "call=mine"), (200, "200 hello".to_owned()));
    assert_eq!(ask("asker.plant", "later=told").0, 200);

    assert_eq!(ask("asker.plant", "secret=1").1, "of plant");
    assert_eq!(ask("asker.orchard", "secret=1").1, "of orchard");
    for (function, expected) in
        [("asker.plant", "1"), ("asker.plant", "2"), ("asker.orchard", "1"), ("asker", "1")]
    {
        assert_eq!(ask(function, "shared=sums").1, expected, "{function}");
        assert_eq!(ask(function, "own=1").1, expected, "{function}");
    }
    // The message about a missing secret does not reveal that another namespace has it.
    node.mote_with_input(&["secret", "set", "rare", "--namespace", "orchard"], b"x");
    let wants = "version = 1\nsecrets = [\"rare\"]\n";
    let output = deploy(&node, "plant", "wants", &[("app.py", HELLO), ("mote.toml", wants)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("M0414") && !said.contains("orchard"), "{said}");
    let table = node.ok(&["secret", "list"]);
    assert!(table.contains("plant/db") && table.contains("orchard/rare"), "{table}");
}

#[test]
fn results_and_keys_stay_in_a_namespace() {
    let (node, _) = start(&[]);
    let first =
        "version = 1\n[async]\non_success = { function = \"told\" }\n[access]\nmode = \"key\"\n";
    let told = "def handle(event, ctx):\n    ctx.kv.put('seen', event.headers['mote-source'])\n";
    for namespace in ["plant", "orchard"] {
        deploy_ok(&node, namespace, "first", &[("app.py", HELLO), ("mote.toml", first)]);
        deploy_ok(&node, namespace, "told", &[("app.py", told)]);
    }
    node.deploy_ok(
        "first",
        &[("app.py", HELLO), ("mote.toml", "version = 1\n[access]\nmode = \"key\"\n")],
    );
    let key = |args: &[&str]| node.ok(&[&["key", "create"], args].concat()).trim().to_owned();
    let plant = key(&["dev", "--namespace", "plant"]);
    let narrow = key(&["narrow", "--namespace", "plant", "--function", "fir*"]);
    let whole = key(&["dev"]);
    let call = |path: &str, key: &str| {
        let bearer = format!("Bearer {key}");
        let fields = [("authorization", bearer.as_str()), ("prefer", "respond-async")];
        node.call("POST", path, &fields, b"").status
    };
    for (key, path, status) in [
        (&plant, "/first.plant", 202),
        (&narrow, "/first.plant", 202),
        (&plant, "/first.orchard", 403),
        (&plant, "/first", 403),
        (&whole, "/first", 202),
        (&whole, "/first.plant", 403),
        (&whole, "/first.orchard", 403),
    ] {
        assert_eq!(call(path, key), status, "{path}");
    }
    wait_for("the result", || {
        let seen = node.mote(&["kv", "get", "told", "seen", "--namespace", "plant"]);
        (String::from_utf8_lossy(&seen.stdout).trim() == "first.plant").then_some(())
    });
    let other = node.mote(&["kv", "get", "told", "seen", "--namespace", "orchard"]);
    assert!(!other.status.success());
}

/// If a function reached the node's own loopback, it would reach the node's other APIs and, through
/// them, the functions of orchard.
#[test]
fn functions_of_a_namespace_never_reach_the_node() {
    let (node, admin) = start(&["--openfaas", "127.0.0.1:0"]);
    let listener = TcpListener::bind("0.0.0.0:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let reached = Arc::new(AtomicUsize::new(0));
    let count = reached.clone();
    std::thread::spawn(move || {
        for _ in listener.incoming() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let code = "import socket\ndef handle(event, ctx):\n    host, port = event.args['to'].split(',')\n    \
                try:\n        socket.create_connection((host, int(port)), 5).recv(1)\n        return 'closed'\n    \
                except OSError as error:\n        return 'refused'\n";
    let http = node.http.port();
    for (net, is_refused) in [
        (format!("127.0.0.1:{port}"), true),
        (format!("localhost:{port}"), true),
        (format!("LOCALHOST:{port}"), true),
        (format!("x.localhost:{port}"), true),
        (format!("127.1.2.3:{http}"), true),
        ("169.254.169.254:80".to_owned(), true),
        ("mote.internal:80".to_owned(), true),
        (format!("localhost.:{port}"), true),
        ("mote.internal.:80".to_owned(), true),
        ("gateway:8080".to_owned(), true),
        ("192.0.2.1:80".to_owned(), false),
    ] {
        let manifest = format!("version = 1\n[allow]\nnet = [\"{net}\"]\n");
        let output = deploy(&node, "plant", "probe", &[("app.py", code), ("mote.toml", &manifest)]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(!output.status.success(), is_refused, "{net}: {said}");
        assert_eq!(said.contains("M0425"), is_refused, "{net}: {said}");
        // The default namespace is not affected.
        let plain = node.deploy("probe", &[("app.py", code), ("mote.toml", &manifest)]);
        assert!(plain.status.success(), "{net}: {plain:?}");
    }
    // A namespace may not name an address that belongs to no single host.
    let manifest = format!("version = 1\n[allow]\nnet = [\"0.0.0.0:{}\"]\n", admin.port());
    let output = deploy(&node, "plant", "probe", &[("app.py", code), ("mote.toml", &manifest)]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("M0303"), "{output:?}");
    let manifest = "version = 1\n[allow]\nnet = [\"*\"]\n";
    let files = [("app.py", code), ("mote.toml", manifest)];
    deploy_ok(&node, "plant", "probe", &files);
    let mut to = vec![format!("127.0.0.1,{http}"), format!("127.0.0.1,{}", admin.port())];
    // The address of one of the node's interfaces.
    let own = std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket");
    if own.connect("192.0.2.1:9").is_ok() {
        let own = own.local_addr().expect("an address").ip();
        to.push(format!("{own},{port}"));
        let manifest = format!("version = 1\n[allow]\nnet = [\"{own}:{port}\"]\n");
        let files = [("app.py", code), ("mote.toml", manifest.as_str())];
        let output = deploy(&node, "plant", "other", &files);
        assert!(String::from_utf8_lossy(&output.stderr).contains("M0425"), "{output:?}");
    }
    for to in to {
        assert_eq!(node.get(&format!("/probe.plant?to={to}")).text(), "refused", "{to}");
    }
    assert_eq!(reached.load(Ordering::SeqCst), 0, "the machine was reached");
}

#[test]
fn a_namespace_that_comes_again_has_nothing_of_the_former_one() {
    let (node, admin) = start(&[]);
    let asker = [("app.py", ASKER), ("mote.toml", ASKS)];
    deploy_ok(&node, "plant", "asker", &asker);
    deploy_ok(&node, "orchard", "asker", &asker);
    let keyed = [("prefer", "respond-async"), ("idempotency-key", "k1")];
    let later = |path: &str| {
        let answer = node.call("POST", path, &keyed, b"");
        assert_eq!(answer.status, 202, "{}", answer.text());
        answer.json()["id"].as_str().expect("an id").to_owned()
    };
    let first = later("/asker.plant?own=1");
    let kept = later("/asker.orchard?own=1");
    assert_eq!(later("/asker.plant?own=1"), first, "the key is known");
    node.mote_with_input(&["secret", "set", "db", "--namespace", "plant"], b"value");
    let key = node.ok(&["key", "create", "dev", "--namespace", "plant"]).trim().to_owned();
    let operator = token(&node, "operator", "operator", Some("plant"));
    assert_eq!(node.get("/asker.plant?shared=sums").text(), "1");
    // One invocation that waits for a long time.
    let delayed = [("prefer", "respond-async"), ("mote-delay", "1h")];
    node.call("POST", "/asker.plant?own=1", &delayed, b"");

    node.ok(&["namespace", "delete", "plant", "--force", "--yes"]);
    assert_eq!(node.get("/asker.plant").status, 404);
    assert_eq!(manage(admin, "GET", "/v1/functions", &operator, b"").status, 401);
    let gone = refused(&node, &["list", "--namespace", "plant"]);
    assert!(gone.contains("M0423"), "{gone}");

    node.ok(&["namespace", "create", "plant"]);
    for (args, empty) in [
        (vec!["list", "-o", "name"], ""),
        (vec!["secret", "list", "-o", "name"], ""),
        (vec!["key", "list", "-o", "name"], ""),
        (vec!["token", "list", "-o", "name"], ""),
        (vec!["invocation", "list", "-o", "name"], ""),
        (vec!["kv", "list", "-o", "name"], ""),
    ] {
        let args = [&args[..], &["--namespace", "plant"]].concat();
        assert_eq!(node.ok(&args), empty, "{args:?}");
    }
    let shut = "version = 1\n[access]\nmode = \"key\"\n[allow]\nfunctions = [\"*\"]\n[kv]\nshared = [\"sums\"]\n";
    deploy_ok(&node, "plant", "asker", &[("app.py", ASKER), ("mote.toml", shut)]);
    let bearer = format!("Bearer {key}");
    let fields = [("authorization", bearer.as_str())];
    assert_eq!(node.call("GET", "/asker.plant", &fields, b"").status, 401, "the key is not valid");
    deploy_ok(&node, "plant", "asker", &asker);
    assert_ne!(later("/asker.plant?own=1"), first, "the idempotency key is not known");
    assert_eq!(node.get("/asker.plant?shared=sums").text(), "1");
    assert!(node.ok(&["logs", "asker.plant"]).contains("traffic"));
    assert_eq!(manage(admin, "GET", "/v1/functions", &operator, b"").status, 401);
    // The other namespace is not affected.
    assert_eq!(later("/asker.orchard?own=1"), kept);
}

#[test]
fn limits_hold_for_all_revisions() {
    let (node, _) = start(&[]);
    let said = refused(&node, &["namespace", "update", "plant", "--memory", "much"]);
    assert!(said.contains("M0101"), "{said}");
    node.ok(&["namespace", "update", "plant", "--instances", "2", "--functions", "2"]);
    // Each call needs a separate instance.
    let slow = "import time\ndef handle(event, ctx):\n    for _ in range(10):\n        time.sleep(0.1)\n    return str(event.args.get('n'))\n";
    let wide = "version = 1\n[limits]\nmemory = \"32MiB\"\n[scale]\nmax = 8\n";
    let files = [("app.py", slow), ("mote.toml", wide)];
    deploy_ok(&node, "plant", "one", &files);
    deploy_ok(&node, "plant", "two", &files);
    let third = deploy(&node, "plant", "three", &files);
    let said = String::from_utf8_lossy(&third.stderr).into_owned();
    assert!(said.contains("M0428") && said.contains("2 of at most 2 functions"), "{said}");
    deploy_ok(&node, "plant", "two", &files);

    // A tagged revision counts too.
    let folder = node.dir.path().join("src/plant/one");
    let folder = folder.to_str().expect("UTF-8");
    let tagged = ["deploy", folder, "--name", "one", "--tag", "next", "--namespace", "plant"];
    assert!(node.mote(&tagged).status.success(), "an idle instance makes room");
    let most = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..8)
            .map(|number| {
                let function = ["one.plant", "one.plant@next", "two.plant"][number % 3];
                let node = &node;
                scope.spawn(move || node.get(&format!("/{function}?n={number}")).status)
            })
            .collect();
        while calls.iter().any(|call| !call.is_finished()) {
            let one = node.json(&["namespace", "describe", "plant", "-o", "json"]);
            let now = one["instances"].as_u64().expect("a number") as usize;
            most.fetch_max(now, Ordering::SeqCst);
        }
    });
    assert_eq!(most.load(Ordering::SeqCst), 2, "as many as it may have, and no more");

    node.ok(&["namespace", "update", "plant", "--instances", "none", "--memory", "40MiB"]);
    wait_for("an instance within the limit", || {
        (node.get("/two.plant?n=9").text() == "9").then_some(())
    });
    let one = node.json(&["namespace", "describe", "plant", "-o", "json"]);
    assert_eq!(one["quotas"]["memory_bytes"], 40 << 20);
    assert!(one["quotas"]["instances"].is_null());
    // The limit does not apply to another namespace.
    deploy_ok(&node, "orchard", "one", &files);
    assert_eq!(node.get("/one.orchard?n=1").text(), "1");
}

#[test]
fn routes_and_topics_of_others_are_closed() {
    let (node, _) = start(&[]);
    let route = "version = 1\n[[route]]\npath = \"/orchard/{id}\"\n";
    node.deploy_ok(
        "taken",
        &[("app.py", HELLO), ("mote.toml", &route.replace("orchard", "plant"))],
    );
    deploy_ok(&node, "orchard", "private", &[("app.py", HELLO), ("mote.toml", route)]);
    assert_eq!(node.get("/orchard/1").text(), "hello");
    let taken = route.replace("orchard", "plant");
    let output = deploy(&node, "plant", "mine", &[("app.py", HELLO), ("mote.toml", &taken)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("M0422") && !said.contains("taken"), "{said}");
    let named = deploy(&node, "orchard", "mine", &[("app.py", HELLO), ("mote.toml", route)]);
    let said = String::from_utf8_lossy(&named.stderr).into_owned();
    assert!(said.contains("private.orchard"), "{said}");
    // A function takes precedence over a route, so that no route can take the function's name away.
    node.deploy_ok("orchard", &[("app.py", "def handle(event, ctx):\n    return 'default'\n")]);
    assert_eq!(node.get("/orchard/1").text(), "default");
    node.ok(&["remove", "orchard", "--yes"]);
    assert_eq!(node.get("/orchard/1").text(), "hello");
    // A rule with a host would take all requests for that host, and a path that begins differently
    // would take requests for other names.
    for rule in [
        "host = \"shop.example.org\"\npath = \"/x\"",
        "path = \"/{name}\"",
        "path = \"/{all...}\"",
        "path = \"/*\"",
        "path = \"/sensors/{id}\"",
        "path = \"/mine.orchard\"",
        "path = \"/livez\"",
        "path = \"/.well-known/acme-challenge/{x}\"",
        "path = \"/plants/x\"",
        "path = \"/orchard/x\"",
    ] {
        let manifest = format!("version = 1\n[[route]]\n{rule}\n");
        let files = [("app.py", HELLO), ("mote.toml", manifest.as_str())];
        let said =
            String::from_utf8_lossy(&deploy(&node, "plant", "mine", &files).stderr).into_owned();
        assert!(said.contains("M0429"), "{rule}: {said}");
    }
    for (manifest, code) in [
        ("version = 1\n[[trigger]]\nmqtt = \"sensors/#\"\n", "M0429"),
        ("version = 1\n[[trigger]]\nmqtt = \"plants/#\"\n", "M0429"),
        ("version = 1\n[[trigger]]\nmqtt = \"#\"\n", "M0429"),
        ("version = 1\n[allow]\nmqtt = [\"orchard/#\"]\n", "M0429"),
        (
            "version = 1\n[allow]\nmqtt = [\"plant/#\"]\n[mqtt]\nbroker = \"mqtt://127.0.0.1:1\"\n",
            "M0429",
        ),
    ] {
        let output = deploy(&node, "plant", "mine", &[("app.py", HELLO), ("mote.toml", manifest)]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(code), "{manifest}: {said}");
    }
    let own = "version = 1\n[allow]\nmqtt = [\"plant/#\"]\n";
    deploy_ok(&node, "plant", "mine", &[("app.py", HELLO), ("mote.toml", own)]);
}

#[test]
fn calls_and_state_of_a_namespace_are_limited_together() {
    let (node, admin) = start(&[]);
    let asker = [("app.py", ASKER), ("mote.toml", ASKS)];
    let writes = "def handle(event, ctx):\n    try:\n        ctx.kv.put(event.args['key'], b'x' * 1000)\n    \
                  except ctx.kv.Error as error:\n        return str(error), 400\n    return 'kept'\n";
    for name in ["one", "two"] {
        deploy_ok(&node, "plant", name, &[("app.py", writes)]);
        deploy_ok(&node, "orchard", name, &[("app.py", writes)]);
    }
    node.ok(&["namespace", "update", "plant", "--state", "4KiB"]);
    let mut kept = 0;
    for number in 0..3 {
        for name in ["one", "two"] {
            let answer = node.get(&format!("/{name}.plant?key=k{number}"));
            kept += usize::from(answer.status == 200);
            let text = answer.text();
            assert!(answer.status == 200 || text.contains("of at most 4096"), "{text}");
            assert_eq!(node.get(&format!("/{name}.orchard?key=k{number}")).status, 200);
        }
    }
    assert_eq!(kept, 4, "as much as fits for both together");
    let long = "x".repeat(2_000);
    let owner = refused(&node, &["kv", "put", "one", "more", &long, "--namespace", "plant"]);
    assert!(owner.contains("M0904") && owner.contains("the namespace plant keeps"), "{owner}");
    assert_eq!(node.get("/one.plant?key=k0").status, 200, "what is there may be replaced");

    deploy_ok(&node, "plant", "asker", &asker);
    node.ok(&["namespace", "update", "plant", "--rate", "2/s", "--state", "none"]);
    let statuses: Vec<u16> = (0..8)
        .map(|number| {
            let name = ["one", "two", "asker"][number % 3];
            let answer = node.get(&format!("/{name}.plant?key=k&own=1"));
            assert!(answer.status != 429 || answer.header("retry-after").is_some());
            answer.status
        })
        .collect();
    let refusals = statuses.iter().filter(|status| **status == 429).count();
    assert!(refusals >= 3, "{statuses:?}");
    assert!(statuses.contains(&200), "{statuses:?}");
    // Calls through the management API count if they use a token of the namespace.
    let deployer = token(&node, "deployer", "deployer", Some("plant"));
    let called: Vec<Answer> =
        (0..8).map(|_| manage(admin, "POST", "/v1/functions/one/invoke", &deployer, b"")).collect();
    let late = called.iter().find(|answer| answer.status == 429).expect("one too many");
    assert!(late.header("retry-after").is_some(), "{}", late.text());
    let others = (0..8).map(|_| node.get("/one.orchard?key=k").status);
    assert!(others.into_iter().all(|status| status == 200));
    let node = node.stop_and_restart();
    let again: Vec<u16> = (0..8).map(|_| node.get("/one.plant?key=k").status).collect();
    assert!(again.contains(&429), "the limit outlives a restart: {again:?}");
    for (flag, value) in [("--functions", "0"), ("--instances", "0"), ("--rate", "100/m")] {
        let said = refused(&node, &["namespace", "update", "plant", flag, value]);
        assert!(said.contains("at least 1") || said.contains("such as 100/s"), "{said}");
    }
}

/// A failed deploy leaves rows and log lines of a function that was never live.
#[test]
fn nothing_of_a_failed_deploy_comes_again() {
    let (node, _) = start(&[]);
    let broken = "print('the former owner')\nraise ValueError('broken')\n";
    assert!(!deploy(&node, "plant", "late", &[("app.py", broken)]).status.success());
    node.ok(&["namespace", "delete", "plant", "--yes"]);
    node.ok(&["namespace", "create", "plant"]);
    deploy_ok(&node, "plant", "late", &[("app.py", HELLO)]);
    let revisions = node.json(&["revisions", "late.plant", "-o", "json"]);
    assert_eq!(revisions["revisions"].as_array().map(Vec::len), Some(1));
    assert_eq!(revisions["revisions"][0]["revision"], 1);
    assert!(!node.ok(&["logs", "late.plant"]).contains("former owner"));
}

/// Discovery does not ask who is calling, so it must not reveal functions of namespaces.
#[test]
fn discovery_shows_no_function_of_a_namespace() {
    let (node, _) = start(&[]);
    node.deploy_ok("shown", &[("app.py", HELLO), ("mote.toml", "version = 1\n")]);
    deploy_ok(&node, "plant", "hidden", &[("app.py", HELLO), ("mote.toml", "version = 1\n")]);
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(std::time::Duration::from_secs(10))).expect("a time");
    socket.send_to(b"\x40\x01\x00\x07\xbb.well-known\x04core", node.coap).expect("sent");
    let mut answer = [0; 2_048];
    let (length, _) = socket.recv_from(&mut answer).expect("an answer");
    let text = String::from_utf8_lossy(&answer[..length]);
    assert!(text.contains("</shown>") && !text.contains("hidden"), "{text}");
}

/// Other cells do not know the namespaces of a node, so a cell cannot have any.
#[test]
fn a_node_that_is_a_cell_has_no_namespaces() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("cell.key");
    std::fs::write(&key, "0123456789abcdef0123456789abcdef").expect("a file");
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&key, mode).expect("a mode");
    }
    let at = free_address().to_string();
    let flags = ["--cell", &at, "--cell-key", key.to_str().expect("UTF-8")];
    let node = Node::start_with(&flags);
    let said = refused(&node, &["namespace", "create", "plant"]);
    assert!(said.contains("M0429") && said.contains("the setting cell"), "{said}");
}
