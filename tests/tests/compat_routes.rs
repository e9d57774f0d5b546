//! Hosts and paths that the manifests of other platforms give to functions. A node must answer
//! there.

use std::path::Path;

use mote_tests::{Answer, Node, call_at};
use serde_json::json;

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("below the folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
    folder
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Deploys a folder, and returns the output of the command.
fn deploy(node: &Node, folder: &Path, more: &[&str]) -> String {
    let ended = node.mote(&[&["deploy", text(folder)], more].concat());
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{said}");
    said
}

/// Sends a request to the node under another host name.
fn at(node: &Node, host: &str, method: &str, path: &str) -> Answer {
    call_at(node.http, method, path, &[("host", host)], b"")
}

const ORDERS: &str = "
module.exports = async ({ request }) => {
  const { headers } = request;
  const own = Object.entries(headers).filter(([name]) => name.startsWith('x-fission-params-'));
  const parameters = own.map(([name, value]) => [name.slice('x-fission-params-'.length), value]);
  const body = [request.path, headers['x-fission-full-url'] ?? null, Object.fromEntries(parameters)];
  return { status: 200, body };
};
";

const TRIGGERS: &str = "
apiVersion: fission.io/v1
kind: HTTPTrigger
metadata: {name: one}
spec:
  relativeurl: /of/{customer}/orders/{id:[0-9]+}
  methods: [GET]
  functionref: {type: name, name: orders}
---
apiVersion: fission.io/v1
kind: HTTPTrigger
metadata: {name: site}
spec:
  host: shop.example.org
  prefix: /api
  keepPrefix: true
  methods: [GET, POST]
  functionref: {type: name, name: orders}
---
apiVersion: fission.io/v1
kind: HTTPTrigger
metadata: {name: names}
spec: {relativeurl: '/say/{word}.txt', method: GET, functionref: {type: name, name: says}}
---
apiVersion: fission.io/v1
kind: HTTPTrigger
metadata: {name: words}
spec: {relativeurl: '/say/{word:.*}', method: GET, functionref: {type: name, name: says}}
";

/// The manifest of a Fission function with its package. Its code is in the folder with the
/// function's name.
fn fission(name: &str, environment: &str, entry: &str) -> String {
    format!(
        "include: ['{name}/*']\nkind: ArchiveUploadSpec\nname: a-{name}\n---\n\
         apiVersion: fission.io/v1\nkind: Package\nmetadata: {{name: p-{name}}}\nspec:\n  \
         deployment: {{type: url, url: 'archive://a-{name}'}}\n---\n\
         apiVersion: fission.io/v1\nkind: Function\n\
         metadata: {{name: {name}, annotations: {{mote/access: public}}}}\nspec:\n  \
         environment: {{name: {environment}}}\n  \
         package: {{functionName: {entry}, packageref: {{name: p-{name}}}}}\n"
    )
}

#[test]
fn fission_functions_answer_at_the_paths_of_their_triggers() {
    let node = Node::start();
    let (orders, says) =
        (fission("orders", "nodejs", "index"), fission("says", "binary", "say.sh"));
    let folder = folder(&[
        ("specs/orders.yaml", &orders),
        ("specs/says.yaml", &says),
        ("specs/triggers.yaml", TRIGGERS),
        ("orders/index.js", ORDERS),
        ("says/say.sh", "#!/bin/sh\nprintf '%s' \"$HTTP_X_FISSION_PARAMS_WORD $REQUEST_URI\"\n"),
    ]);
    let said = deploy(&node, folder.path(), &[]);
    for part in [
        "HTTPTrigger one: {id:[0-9]+} matches any text: check id in the function",
        "HTTPTrigger names: GET /say/{word}.txt cannot be a route",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    check_fission(&node);
    node.ok(&["remove", "orders", "says", "--yes"]);

    // The manifests that `mote import` writes have the same routes.
    node.ok(&["import", text(folder.path())]);
    for name in ["orders", "says"] {
        deploy(&node, &folder.path().join(name), &[]);
    }
    check_fission(&node);
}

fn check_fission(node: &Node) {
    let get = |path: &str| at(node, "localhost", "GET", path);
    let path = "/of/a%20b/orders/7";
    let seen = json!([path, format!("{path}?q=1"), {"customer": "a b", "id": "7"}]);
    let answer = get(&format!("{path}?q=1"));
    assert_eq!((answer.status, answer.json()), (200, seen.clone()), "{}", node.log());
    let forged = [("host", "localhost"), ("x-fission-params-id", "8")];
    assert_eq!(call_at(node.http, "GET", &format!("{path}?q=1"), &forged, b"").json(), seen);
    let other = at(node, "localhost", "POST", path);
    assert_eq!((other.status, other.header("allow")), (405, Some("GET, HEAD")));
    assert_eq!(get("/of/a/orders").status, 404);
    assert_eq!(get("/orders/x").json(), json!(["/x", null, {}]));

    let site = at(node, "shop.example.org", "POST", "/api/x").json();
    assert_eq!((&site[0], &site[1]), (&json!("/api/x"), &json!("/api/x")));
    assert_eq!(at(node, "shop.example.org", "GET", "/api").status, 200);
    assert_eq!(at(node, "shop.example.org", "PUT", "/api").status, 405);
    assert_eq!(get("/api/x").status, 404);

    assert_eq!(get("/say/good%20tea/now?x").text(), "good tea/now /say/good%20tea/now?x");
}

#[test]
fn a_nuclio_function_answers_at_its_ingresses() {
    let node = Node::start();
    let manifest = "apiVersion: nuclio.io/v1\nkind: NuclioFunction\nmetadata: {name: hello}\nspec:\n  \
                    runtime: python\n  handler: main:handler\n  triggers:\n    web:\n      kind: http\n      \
                    attributes:\n        port: 32001\n        ingresses:\n          \
                    first: {host: hello.example.org, paths: [/v1]}\n          \
                    second: {paths: [/greet], pathType: Exact}\n";
    let code = "def handler(context, event):\n    return 'hello ' + event.path\n";
    let folder = folder(&[("function.yaml", manifest), ("main.py", code)]);
    let said = deploy(&node, folder.path(), &[]);
    for part in
        ["ignored: triggers.web.attributes.port", "will answer 403 to requests for this host"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(at(&node, "localhost", "GET", "/greet").text(), "hello /greet");
    assert_eq!(at(&node, "localhost", "GET", "/greet/x").status, 404);
    // A page of another site could send this request.
    assert_eq!(at(&node, "hello.example.org", "GET", "/v1/x").status, 403);
    deploy(&node, folder.path(), &["--access", "public"]);
    assert_eq!(at(&node, "hello.example.org", "GET", "/v1/x").text(), "hello /v1/x");
    assert_eq!(at(&node, "hello.example.org", "POST", "/v1").text(), "hello /v1");
    assert_eq!(at(&node, "localhost", "GET", "/v1/x").status, 404);
}
