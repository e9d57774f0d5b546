//! The management API over TCP: who may use it (R42; reliability: T-AUTH), and whether it serves
//! what its documentation says.

use std::net::SocketAddr;

use mote_tests::{Connection, Node, free_address};
use serde_json::Value;

fn admin_node() -> (Node, SocketAddr, String) {
    let address = free_address();
    let node = Node::start_with(&["--admin", &address.to_string()]);
    let token = std::fs::read_to_string(node.dir.path().join("data/admin.token")).unwrap();
    (node, address, token.trim().to_owned())
}

#[test]
fn every_route_wants_the_token() {
    let (node, address, token) = admin_node();
    node.deploy_ok("f", &[("app.py", "def handle(event, ctx):\n    return 'x'\n")]);
    let bearer = format!("Bearer {token}");
    for (method, path, right) in [
        ("GET", "/v1/status", 200),
        ("GET", "/v1/doctor", 200),
        ("GET", "/v1/functions", 200),
        ("GET", "/v1/functions/f", 200),
        ("GET", "/v1/functions/nope", 404),
        ("GET", "/v1/functions/f/logs", 200),
        ("POST", "/v1/functions/f/invoke", 200),
        ("GET", "/v1/secrets", 200),
        ("PUT", "/v1/secrets/.x", 422),
        ("DELETE", "/v1/secrets/nope", 404),
        ("GET", "/v1/openapi.json", 200),
        ("GET", "/metrics", 200),
        ("DELETE", "/v1/functions/nope", 404),
        ("PUT", "/v1/functions/f", 400),
        ("GET", "/v1/elsewhere", 404),
        ("PUT", "/v1/status", 405),
    ] {
        let mut connection = Connection::open(address);
        let denied = connection.call(method, path, &[], b"");
        assert_eq!(
            (denied.status, denied.header("www-authenticate")),
            (401, Some("Bearer")),
            "{path}"
        );
        let mut connection = Connection::open(address);
        let answer = connection.call(method, path, &[("authorization", &bearer)], b"");
        let allowed = if path == "/v1/functions/f" && method == "PUT" {
            // The refusal comes from the archive's rules, because the upload is empty, and not from
            // the access check.
            (400..=422).contains(&answer.status)
        } else {
            answer.status == right
        };
        assert!(allowed, "{method} {path}: {answer:?}");
    }
    for path in ["/livez", "/readyz"] {
        assert_eq!(Connection::open(address).call("GET", path, &[], b"").status, 200);
    }
}

#[test]
fn wrong_credentials_are_told_apart_from_nothing() {
    let (_node, address, token) = admin_node();
    let call = |headers: &[(&str, &str)], path: &str| {
        Connection::open(address).call("GET", path, headers, b"").status
    };
    assert_eq!(call(&[("authorization", "Bearer wrong")], "/v1/status"), 401);
    let said = |headers: &[(&str, &str)]| {
        Connection::open(address).call("GET", "/v1/status", headers, b"").text()
    };
    assert!(
        said(&[("authorization", "Bearer wrong")])
            .contains("is not valid: it has expired, was revoked")
    );
    assert!(said(&[]).contains("contains no token"));
    assert_eq!(call(&[("authorization", &format!("Basic {token}"))], "/v1/status"), 401);
    assert_eq!(call(&[("authorization", &format!("Bearer {}", &token[1..]))], "/v1/status"), 401);
    let right = format!("Bearer {token}");
    assert_eq!(call(&[("authorization", &right), ("authorization", &right)], "/v1/status"), 401);
    assert_eq!(call(&[], &format!("/v1/status?token={token}")), 400);
    assert_eq!(call(&[("authorization", &right)], "/v1/status"), 200);
    let mut last = 0;
    for _ in 0..40 {
        last = call(&[("authorization", "Bearer guess")], "/v1/status");
    }
    assert_eq!(last, 429);
    assert_eq!(
        call(&[("authorization", &right)], "/v1/status"),
        200,
        "the owner is not locked out"
    );
}

#[test]
fn the_served_document_is_the_checked_in_one() {
    let node = Node::start_with(&[]);
    let stored =
        std::fs::read_to_string(mote_tests::repository().join("docs/reference/openapi.json"));
    let (_other, address, token) = admin_node();
    let bearer = format!("Bearer {token}");
    let answer = Connection::open(address).call(
        "GET",
        "/v1/openapi.json",
        &[("authorization", &bearer)],
        b"",
    );
    assert_eq!(answer.text(), stored.unwrap());
    // Every answer of the main routes has the fields that the OpenAPI document requires.
    let document = answer.json();
    let status =
        Connection::open(address).call("GET", "/v1/status", &[("authorization", &bearer)], b"");
    let required = document["components"]["schemas"]["NodeStatus"]["required"].clone();
    for field in required.as_array().unwrap() {
        assert!(status.json().get(field.as_str().unwrap()).is_some(), "{field}");
    }
    drop(node);
}

#[test]
fn metrics_count_what_happened() {
    let (node, address, token) = admin_node();
    node.deploy_ok("f", &[("app.py", "def handle(event, ctx):\n    return 'x'\n")]);
    for _ in 0..7 {
        node.get("/f");
    }
    let bearer = format!("Bearer {token}");
    let text = Connection::open(address)
        .call("GET", "/metrics", &[("authorization", &bearer)], b"")
        .text();
    let line = "mote_invocations_total{function=\"f\",trigger=\"http\",outcome=\"ok\"} 7";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("mote_request_duration_seconds_bucket"));
}

/// A parameter that the node does not know would otherwise change what a request means.
#[test]
fn unknown_parameters_are_refused() {
    let node = Node::start();
    node.deploy_ok("f", &[("app.py", "def handle(event, ctx):\n    ctx.kv.put('a', 'b')\n")]);
    node.get("/f");
    for (method, path) in [
        ("DELETE", "/v1/kv/f?prefix=b"),
        ("DELETE", "/v1/dead-letters?fnction=f"),
        ("PUT", "/v1/functions/f?dry-run=true"),
        ("POST", "/v1/functions/f/rollback?revisoin=1"),
        ("PUT", "/v1/kv/f/entry?key=a&ttl=60"),
        ("GET", "/v1/functions/f/logs?sinc=1h"),
    ] {
        let (status, text) = node.manage(method, path, "");
        assert!(status == 400 && text.contains("M1403"), "{method} {path}: {status} {text}");
    }
    assert_eq!(node.ok(&["kv", "get", "f", "a"]), "b");
}

/// The document lists what manifests say, and what functions say about themselves.
#[test]
fn functions_are_described_as_openapi() {
    let node = Node::start();
    let code = "def handle(event, ctx):\n    return 'x'\n";
    let routes = "version = 1\n\n[access]\nmode = \"key\"\n\n[http]\nmethods = [\"GET\", \"POST\"]\n\n\
                  [[route]]\npath = \"/rooms/{room}/{rest...}\"\n";
    node.deploy_ok("rooms", &[("app.py", code), ("mote.toml", routes)]);
    let own = r##"{"openapi": "3.1.0", "info": {"title": "t", "version": "1", "description": "Warmth."},
        "paths": {"/now": {"get": {"operationId": "now", "security": [{"theirs": []}], "responses": {"200": {
            "description": "ok", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/T"}}}}}}}},
        "components": {"schemas": {"T": {"type": "number"}}, "securitySchemes": {"theirs": {}}}}"##;
    node.deploy_ok("thermo", &[("app.py", code), ("openapi.json", own)]);
    node.deploy_ok("broken", &[("app.py", code), ("openapi.json", "{")]);
    let document = node.management("/v1/openapi/functions.json");
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["servers"][0]["url"], format!("http://{}", node.http));
    let paths = &document["paths"];
    let methods = |path: &str| -> Vec<&str> {
        let fields = paths[path].as_object().unwrap_or_else(|| panic!("{path}: {document:#}"));
        fields.keys().map(String::as_str).filter(|key| *key != "parameters").collect()
    };
    assert_eq!(methods("/rooms"), ["get", "post"]);
    assert_eq!(methods("/rooms/{room}/{rest}"), ["get", "post"]);
    assert_eq!(paths["/rooms/{room}/{rest}"]["parameters"][0]["name"], "room");
    assert_eq!(paths["/rooms"]["get"]["security"], serde_json::json!([{"key": []}]));
    assert_eq!(methods("/thermo/now"), ["get"]);
    let now = &paths["/thermo/now"]["get"];
    assert_eq!((&now["security"], &now["operationId"]), (&Value::Null, &"thermo.now".into()));
    let schema = &now["responses"]["200"]["content"]["application/json"]["schema"];
    assert_eq!(schema["$ref"], "#/components/schemas/thermo.T");
    assert_eq!(document["components"]["schemas"]["thermo.T"]["type"], "number");
    assert_eq!(document["components"]["securitySchemes"]["theirs"], Value::Null);
    assert_eq!(methods("/broken").len(), 5);
    let tags = document["tags"].as_array().expect("tags");
    let said = |name: &str| {
        let tag = tags.iter().find(|tag| tag["name"] == name).expect("a tag");
        tag["description"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(said("thermo"), "Warmth.");
    assert!(said("broken").contains("openapi.json of this function is not shown"), "{document:#}");
}

/// Silent connections to the TCP address are limited to their share, and the oldest of them make
/// room for others. The Unix socket has a separate share.
#[test]
fn silent_connections_do_not_shut_the_owner_out() {
    use std::io::Read as _;
    let (node, address, token) = admin_node();
    let bearer = format!("Bearer {token}");
    let connect = |_| std::net::TcpStream::connect(address).expect("a connection");
    let mut silent: Vec<_> = (0..700).map(connect).collect();
    let answer =
        Connection::open(address).call("GET", "/v1/status", &[("authorization", &bearer)], b"");
    assert_eq!(answer.status, 200);
    assert_eq!(silent[0].read(&mut [0; 64]).expect("it is closed"), 0);
    node.ok(&["list"]);
}
