//! The tokens of those who manage a node: what each role may do on every route and through the APIs
//! of other platforms, and the record of what was done.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};

use mote_tests::{Answer, Node, basic_auth, call_at, free_address, wait_for};

const HELLO: &str = "def handle(event, ctx):\n    return 'hello'\n";
const ROLES: [&str; 3] = ["viewer", "deployer", "operator"];

fn token(node: &Node, name: &str, more: &[&str]) -> String {
    let args = [&["token", "create", name], more].concat();
    node.ok(&args).trim().to_owned()
}

fn manage(admin: SocketAddr, method: &str, path: &str, token: Option<&str>) -> Answer {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let fields: Vec<_> = bearer.iter().map(|text| ("authorization", text.as_str())).collect();
    call_at(admin, method, path, &fields, b"")
}

/// Returns the roles that may send a request, according to the documentation.
fn permitted(method: &str, path: &str) -> &'static [&'static str] {
    let is_below = |topic: &str| path.starts_with(&format!("/v1/{topic}"));
    let of_operators = ["keys", "tokens", "audit", "mqtt", "cells", "journals", "namespaces"];
    match method {
        "get" if is_below("audit") => &ROLES[2..],
        "get" if is_below("kv") || is_below("files") || path.ends_with("/recording") => &ROLES[1..],
        "get" => &ROLES,
        _ if path == "/v1/session/code" => &ROLES,
        _ if of_operators.into_iter().any(is_below) => &ROLES[2..],
        _ => &ROLES[1..],
    }
}

#[test]
fn every_route_asks_for_its_role() {
    let admin = free_address();
    let node = Node::start_with(&["--admin", &admin.to_string()]);
    let tokens = ROLES.map(|role| (role, token(&node, role, &["--role", role])));
    let document = node.management("/v1/openapi.json");
    let mut asked = 0;
    for (path, methods) in document["paths"].as_object().expect("paths") {
        // The health routes reveal only that the node is running.
        if path == "/livez" || path == "/readyz" {
            assert_eq!(manage(admin, "GET", path, None).status, 200);
            continue;
        }
        // A token has no session, and anybody may try to begin one.
        if path == "/v1/session" {
            continue;
        }
        // Nothing has these names, so a permitted request changes nothing.
        let mut target = path.clone();
        while let (Some(from), Some(to)) = (target.find('{'), target.find('}')) {
            target.replace_range(from..=to, "nothing");
        }
        for method in methods.as_object().expect("methods").keys() {
            let upper = method.to_uppercase();
            for wrong in [None, Some("wrong"), Some("mote_op_0")] {
                let status = manage(admin, &upper, &target, wrong).status;
                assert!(matches!(status, 401 | 429), "{method} {path} with {wrong:?}: {status}");
            }
            for (role, token) in &tokens {
                let answer = manage(admin, &upper, &target, Some(token));
                let text = answer.text();
                if permitted(method, path).contains(role) {
                    let is_refused = matches!(answer.status, 401 | 403);
                    assert!(!is_refused, "{method} {path} as {role}: {text}");
                } else {
                    assert_eq!(answer.status, 403, "{method} {path} as {role}: {text}");
                    assert!(text.contains("M1407"), "{method} {path} as {role}: {text}");
                }
                asked += 1;
            }
        }
    }
    assert!(asked > 120, "{asked} questions");
    // Even a route that does not exist requires a role.
    assert_eq!(manage(admin, "POST", "/v1/new", Some(&tokens[0].1)).status, 403);
    assert_eq!(manage(admin, "POST", "/v1/new", Some(&tokens[1].1)).status, 404);
}

#[test]
fn a_token_is_valid_until_it_expires_or_is_revoked_and_survives_a_restart() {
    let admin = free_address();
    let node = Node::start_with(&["--admin", &admin.to_string()]);
    let reader = token(&node, "reader", &["--role", "viewer"]);
    let short = token(&node, "short", &["--role", "viewer", "--expires", "1s"]);
    let list = |token: &str| manage(admin, "GET", "/v1/functions", Some(token)).status;
    assert_eq!((list(&reader), list(&node.token())), (200, 200));
    wait_for("the end of the short token", || (list(&short) == 401).then_some(()));

    let listed = node.json(&["token", "list", "-o", "json"]);
    assert_eq!(listed["tokens"][0]["name"], "reader");
    assert_eq!(listed["tokens"][0]["role"], "viewer");
    assert!(!listed.to_string().contains(&reader), "tokens are not shown again");
    let table = node.ok(&["token", "list"]);
    assert!(table.starts_with("NAME") && table.contains("(expired)"), "{table}");

    let again = node.mote(&["token", "create", "reader", "--role", "viewer"]);
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(said.contains("M0421") && said.contains("mote token revoke reader"), "{said}");
    let wrong = node.mote(&["token", "create", "x", "--role", "root"]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("viewer"), "{wrong:?}");

    let node = node.stop_and_restart();
    assert_eq!(list(&reader), 200);
    node.ok(&["token", "revoke", "reader", "--yes"]);
    assert_eq!(list(&reader), 401);
    let gone = node.mote(&["token", "revoke", "reader", "--yes"]);
    assert!(String::from_utf8_lossy(&gone.stderr).contains("M0420"), "{gone:?}");
    // The owner's token cannot be revoked by mistake.
    let owners = node.mote(&["token", "revoke", "admin.token", "--yes"]);
    assert!(!owners.status.success());
    assert_eq!(list(&node.token()), 200);
}

#[test]
fn roles_hold_for_the_apis_of_other_platforms() {
    let on = ["--openfaas", "127.0.0.1:0", "--openwhisk", "127.0.0.1:0", "--admin"];
    let admin = free_address().to_string();
    let node = Node::start_with(&[&on[..], &[&admin]].concat());
    node.deploy_ok("hello", &[("app.py", HELLO)]);
    let reader = token(&node, "reader", &["--role", "viewer"]);
    let shipper = token(&node, "shipper", &["--role", "deployer"]);
    let openfaas = node.platform("openfaas");
    let faas = |method: &str, token: &str, body: &[u8]| {
        let credentials = basic_auth("admin", token);
        let fields = [("authorization", credentials.as_str())];
        call_at(openfaas, method, "/system/functions", &fields, body)
    };
    assert_eq!(faas("GET", &reader, b"").status, 200);
    let remove = br#"{"functionName": "hello"}"#;
    let refused = faas("DELETE", &reader, remove);
    assert_eq!((refused.status, refused.text().contains("the role viewer")), (403, true));
    assert_eq!(node.ok(&["list", "-o", "name"]), "hello\n");

    let openwhisk = node.platform("openwhisk");
    let whisk = |method: &str, path: &str, token: &str| {
        let credentials = basic_auth("guest", token);
        let fields = [("authorization", credentials.as_str())];
        call_at(openwhisk, method, path, &fields, b"{}").status
    };
    assert_eq!(whisk("GET", "/api/v1/namespaces/_/actions", &reader), 200);
    assert_eq!(whisk("PUT", "/api/v1/namespaces/_/actions/new", &reader), 403);
    assert_eq!(whisk("PUT", "/api/v1/namespaces/_/actions/new", "wrong"), 401);

    assert!(faas("DELETE", &shipper, remove).status < 300);
    assert_eq!(node.ok(&["list", "-o", "name"]), "");
    let record = node.ok(&["audit"]);
    for line in ["reader", "shipper"] {
        assert!(record.contains(line) && record.contains("DELETE /system/functions"), "{record}");
    }
}

#[test]
fn the_record_says_what_was_done_by_whom_and_from_where() {
    let admin = free_address();
    let node = Node::start_with(&["--admin", &admin.to_string()]);
    node.deploy_ok("hello", &[("app.py", HELLO)]);
    let secret = "the value of a secret";
    node.mote_with_input(&["secret", "set", "password"], secret.as_bytes());
    let shipper = token(&node, "shipper", &["--role", "deployer"]);
    assert_eq!(manage(admin, "GET", "/v1/functions", Some(&shipper)).status, 200);
    assert_eq!(manage(admin, "DELETE", "/v1/functions/hello", Some(&shipper)).status, 204);
    assert_eq!(manage(admin, "POST", "/v1/tokens", Some(&shipper)).status, 403);
    assert_eq!(manage(admin, "DELETE", "/v1/functions/hello", Some("wrong")).status, 401);
    node.ok(&["audit"]);

    let record = node.json(&["audit", "-o", "json"]);
    let entries: Vec<String> = record["entries"]
        .as_array()
        .expect("entries")
        .iter()
        .map(|one| {
            let text = |key: &str| one[key].as_str().expect("text").to_owned();
            format!("{} {} {} {}", text("who"), text("from"), text("act"), one["status"])
        })
        .collect();
    // The test and the node run as the same user.
    let me = format!("user {}", std::fs::metadata("/proc/self").map(|it| uid(&it)).expect("proc"));
    assert_eq!(
        entries,
        [
            format!("{me} socket PUT /v1/functions/hello 201"),
            format!("{me} socket PUT /v1/secrets/password 201"),
            format!("{me} socket POST /v1/tokens/shipper 201"),
            "shipper 127.0.0.1 DELETE /v1/functions/hello 204".to_owned(),
            "shipper 127.0.0.1 POST /v1/tokens 403".to_owned(),
        ]
    );
    let file = node.dir.path().join("data/audit.log");
    let text = std::fs::read_to_string(&file).expect("the record");
    assert!(!text.contains(secret) && !text.contains(&shipper), "{text}");
    let node = node.stop_and_restart();
    let all = node.json(&["audit", "-n", "2", "-o", "json"]);
    assert_eq!(all["entries"].as_array().expect("entries").len(), 2);
}

#[test]
fn an_act_is_recorded_although_its_client_leaves() {
    let admin = free_address();
    let node = Node::start_with(&["--admin", &admin.to_string()]);
    let operator = token(&node, "operator", &["--role", "operator"]);
    // The node does not read all of these requests before it notices that their clients have gone.
    let leave = |number: u32| {
        let body = format!("{{\"name\":\"t{number}\",\"role\":\"viewer\"}}");
        let request = format!(
            "POST /v1/tokens HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {operator}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut client = TcpStream::connect(admin).expect("the node listens");
        client.write_all(request.as_bytes()).expect("sent");
    };
    (0..20).for_each(leave);
    let mut number = 20;
    let made = |text: &str| text.replace(' ', "").matches("\"name\":\"t").count();
    let recorded = |text: &str| text.matches("POST /v1/tokens").count() - 1;
    wait_for("each token to have its line", || {
        let tokens = node.ok(&["token", "list", "-o", "json"]);
        let record = node.ok(&["audit", "-o", "jsonl"]);
        if made(&tokens) == 0 {
            // A busy node has noticed all of them first.
            leave(number);
            number += 1;
        }
        (made(&tokens) > 0 && recorded(&record) >= made(&tokens)).then_some(())
    });
}

fn uid(metadata: &std::fs::Metadata) -> u32 {
    use std::os::unix::fs::MetadataExt as _;
    metadata.uid()
}
