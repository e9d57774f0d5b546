//! Namespaces through the APIs of OpenFaaS, OpenWhisk and Nuclio: what their tokens reach there,
//! and normal use of each API.

use std::net::SocketAddr;

use mote_tests::namespaces::{HELLO, deploy_ok, start, token};
use mote_tests::{Answer, Node, base64, basic_auth, call_at, wait_for};
use serde_json::{Value, json};

const ROLES: [&str; 3] = ["viewer", "deployer", "operator"];
const ACTION: &str = "def main(args):\n    print('seen')\n    return {'greeting': 'hello ' + args.get('name', 'you')}\n";
const HANDLER: &str = "def handler(context, event):\n    context.logger.info('called')\n    return 'hello ' + event.body.decode()\n";

struct Client {
    address: SocketAddr,
    auth: String,
}

impl Client {
    fn new(node: &Node, api: &str, token: &str) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], node.platform(api).port()));
        Self { address, auth: basic_auth("any", token) }
    }

    fn ask(&self, question: &Question) -> Answer {
        let mut fields = vec![("authorization", self.auth.as_str())];
        fields.extend(question.fields.iter().map(|(name, value)| (*name, value.as_str())));
        let body = match &question.body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        call_at(self.address, question.method, &question.target, &fields, body.as_bytes())
    }

    fn send(&self, method: &'static str, target: &str, body: &Value) -> Answer {
        self.ask(&Question::new(method, target, body.clone()))
    }

    fn get(&self, target: &str) -> Answer {
        self.send("GET", target, &Value::Null)
    }

    fn ok(&self, method: &'static str, target: &str, body: &Value) -> Answer {
        let answer = self.send(method, target, body);
        assert!(answer.status < 300, "{method} {target}: {} {}", answer.status, answer.text());
        answer
    }
}

/// A request that may name a namespace in its target, its body or a field.
#[derive(Debug, Clone)]
struct Question {
    method: &'static str,
    target: String,
    fields: Vec<(&'static str, String)>,
    body: Value,
}

impl Question {
    fn new(method: &'static str, target: &str, body: Value) -> Self {
        Self { method, target: target.to_owned(), fields: Vec::new(), body }
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.fields.push((name, value.to_owned()));
        self
    }

    /// Returns the same request about the namespace `name`.
    fn about(&self, name: &str) -> Self {
        let within = |text: &str| text.replace("NS", name);
        let fields = self.fields.iter().map(|(field, value)| (*field, within(value)));
        let body = serde_json::from_str(&within(&self.body.to_string())).expect("JSON");
        Self { method: self.method, target: within(&self.target), fields: fields.collect(), body }
    }
}

/// Sends each request with each role of `plant`: about its own namespace, where nothing exists,
/// about another one, where something exists, and about one that does not exist.
fn check_all(node: &Node, api: &str, questions: &[Question]) {
    let scoped = ROLES.map(|role| token(node, &format!("{api}-{role}"), role, Some("plant")));
    let mut asked = 0;
    for question in questions {
        for (role, token) in ROLES.iter().zip(&scoped) {
            let client = Client::new(node, api, token);
            let ask = |namespace: &str| {
                let answer = client.ask(&question.about(namespace));
                (answer.status, answer.text())
            };
            let (status, text) = ask("orchard");
            let shown = format!("{question:?} as {role}: {status} {text}");
            if question.method != "GET" && *role == "viewer" {
                for (status, text) in [(status, text), ask("plant"), ask("nowhere")] {
                    assert!(status == 403 && text.contains("the role viewer"), "{shown}");
                }
                continue;
            }
            assert!(matches!(status, 400 | 404), "{shown}");
            // The answer about an existing thing equals the answer about a missing one.
            let (none, said) = ask("nowhere");
            assert_eq!((none, said), (status, text.replace("orchard", "nowhere")), "{shown}");
            let (own, said) = ask("plant");
            assert!(!matches!(own, 401 | 403 | 500), "{question:?} as {role}: {own} {said}");
            assert!(!said.contains("orchard"), "{shown}: {said}");
            asked += 3;
        }
    }
    assert!(asked > 60, "{asked} questions");
}

fn refused_for_the_node(client: &Client, questions: &[(&'static str, &str)]) {
    for (method, target) in questions {
        let answer = client.send(method, target, &json!({}));
        let text = answer.text();
        assert!(
            answer.status == 403
                && text.contains("M1408")
                && text.contains("concerns the whole node"),
            "{target}: {text}"
        );
    }
}

#[test]
fn openfaas_asks_for_the_scope_of_a_token() {
    let (node, _) = start(&["--openfaas", ":0"]);
    deploy_ok(&node, "orchard", "hello", &[("app.py", HELLO)]);
    node.deploy_ok("hello", &[("app.py", HELLO)]);
    node.mote_with_input(&["secret", "set", "db", "--namespace", "orchard"], b"value");
    let q = Question::new;
    let wish =
        |service: &str| json!({"service": service, "image": "mote://hello", "namespace": "NS"});
    let secret = json!({"name": "db", "value": "x", "namespace": "NS"});
    let mut questions = vec![
        q("GET", "/system/functions?namespace=NS", Value::Null),
        q("GET", "/system/function/hello?namespace=NS", Value::Null),
        q("GET", "/system/function/hello?usage=1&namespace=NS", Value::Null),
        q("GET", "/system/logs?name=hello&namespace=NS", Value::Null),
        q("GET", "/system/secrets?namespace=NS", Value::Null),
        q("GET", "/system/namespaces?namespace=NS", Value::Null),
        q("GET", "/system/info?namespace=NS", Value::Null),
        q("GET", "/system/namespace/NS", Value::Null),
        q("PUT", "/system/functions", wish("hello")),
        q("POST", "/system/functions", wish("hello")),
        q("DELETE", "/system/functions", json!({"functionName": "hello", "namespace": "NS"})),
        q("DELETE", "/system/functions?namespace=NS", json!({"functionName": "hello"})),
        q("POST", "/system/scale-function/hello", json!({"replicas": 1, "namespace": "NS"})),
        q("POST", "/system/scale-function/hello?namespace=NS", json!({"replicas": 1})),
    ];
    for method in ["PUT", "DELETE"] {
        questions.push(q(method, "/system/secrets", secret.clone()));
        questions.push(q(method, "/system/secrets?namespace=NS", json!({"name": "db"})));
    }
    // Names with a dot, including an encoded dot.
    for name in ["hello.NS", "hello%2ENS", "hello%2eNS"] {
        questions.push(q("GET", &format!("/system/function/{name}"), Value::Null));
        questions.push(q("GET", &format!("/system/logs?name={name}"), Value::Null));
        let scale = format!("/system/scale-function/{name}");
        questions.push(q("POST", &scale, json!({"replicas": 1})));
    }
    let plain = json!({"service": "hello.NS", "image": "mote://hello"});
    questions.push(q("PUT", "/system/functions", plain.clone()));
    questions.push(q("POST", "/system/functions", plain));
    questions.push(q("DELETE", "/system/functions", json!({"functionName": "hello.NS"})));
    // Any other name is that of an image in a registry, whatever is in the namespace.
    let image = "mote://hello.NS";
    questions.push(q("POST", "/system/functions", json!({"service": "copy", "image": image})));
    let copy =
        json!({"service": "copy", "image": "alpine", "envProcess": "cat", "secrets": ["NS/db"]});
    questions.push(q("POST", "/system/functions", copy));
    questions.push(q("POST", "/system/secrets", json!({"name": "NS/db", "value": "x"})));
    check_all(&node, "openfaas", &questions);

    let operator = token(&node, "op", "operator", Some("plant"));
    let client = Client::new(&node, "openfaas", &operator);
    refused_for_the_node(
        &client,
        &[
            ("POST", "/system/alert"),
            ("POST", "/system/namespace/plant"),
            ("POST", "/system/namespace/"),
            ("DELETE", "/system/namespace/plant"),
            ("PUT", "/system/namespace/orchard"),
        ],
    );
    for name in ["openfaas-fn", "default"] {
        assert_eq!(client.get(&format!("/system/functions?namespace={name}")).status, 400);
    }
    assert_eq!(client.get("/system/functions").text(), "[]");
    assert_eq!(client.get("/system/secrets").text(), "[]");
    assert_eq!(client.get("/system/namespaces").text(), "[\"plant\"]");
    // Everything of the other namespaces is unchanged.
    assert_eq!(node.get("/hello.orchard").text(), "hello");
    assert_eq!(node.ok(&["list", "-o", "name"]), "hello\nhello.orchard\n");
    assert_eq!(node.ok(&["secret", "list", "-o", "name"]), "orchard/db\n");
    // The answer to a call reveals no more about a namespace.
    let call = |name: &str| {
        let answer = call_at(client.address, "POST", &format!("/function/{name}"), &[], b"");
        (answer.status, answer.text().replace("orchard", "nowhere"))
    };
    assert_eq!(call("none.orchard"), call("none.nowhere"));

    // A token of the node can name any namespace. Without a name, the default one is meant.
    let whole = Client::new(&node, "openfaas", &node.token());
    let all = whole.get("/system/namespaces").json();
    assert_eq!(all, json!(["openfaas-fn", "orchard", "plant"]));
    for (query, namespace) in [
        ("", "openfaas-fn"),
        ("?namespace=openfaas-fn", "openfaas-fn"),
        ("?namespace=orchard", "orchard"),
    ] {
        let list = whole.get(&format!("/system/functions{query}")).json();
        let found = (list.as_array().map(Vec::len), &list[0]["name"], &list[0]["namespace"]);
        assert_eq!(found, (Some(1), &json!("hello"), &json!(namespace)), "{query}");
    }
    assert_eq!(whole.get("/system/functions?namespace=nowhere").status, 400);
    let viewer = Client::new(&node, "openfaas", &token(&node, "v", "viewer", None));
    let wish = json!({"service": "hello", "image": "mote://hello", "namespace": "orchard"});
    assert_eq!(viewer.send("PUT", "/system/functions", &wish).status, 403);
    // Requests without a token get the metrics of the default namespace.
    assert_eq!(call_at(client.address, "POST", "/function/hello.orchard", &[], b"").status, 200);
    let metrics = call_at(client.address, "GET", "/metrics", &[], b"").text();
    assert!(metrics.contains("hello.openfaas-fn") && !metrics.contains("orchard"), "{metrics}");
    assert!(!client.get("/metrics").text().contains("hello"));
    let line = "gateway_function_invocation_total{function_name=\"hello.orchard\",code=\"200\"} 1";
    assert!(whole.get("/metrics").text().contains(line));
}

#[test]
fn an_owner_uses_openfaas() {
    let (node, _) = start(&["--openfaas", ":0"]);
    let client = Client::new(&node, "openfaas", &token(&node, "ada", "deployer", Some("plant")));
    let secret = json!({"name": "db", "value": "of plant"});
    assert_eq!(client.ok("POST", "/system/secrets", &secret).status, 201);
    let listed = client.get("/system/secrets").json();
    assert_eq!(listed, json!([{"name": "db", "namespace": "plant"}]));
    let read = "cat /var/openfaas/secrets/db";
    let mut wish =
        json!({"service": "reads", "image": "alpine", "envProcess": read, "secrets": ["db"]});
    // faas-cli also tries an update first.
    assert_eq!(client.send("PUT", "/system/functions", &wish).status, 404);
    client.ok("POST", "/system/functions", &wish);
    let call = |path: &str| call_at(client.address, "POST", path, &[], b"");
    assert_eq!(call("/function/reads.plant").text(), "of plant");
    assert_eq!(node.get("/reads.plant").text(), "of plant");
    assert_eq!(call("/function/reads").status, 404);
    let list = client.get("/system/functions").json();
    assert_eq!((&list[0]["name"], &list[0]["namespace"]), (&json!("reads"), &json!("plant")));
    assert_eq!(list[0]["image"], "alpine");
    let one = client.get("/system/function/reads?namespace=plant").json();
    assert_eq!(one["labels"]["faas_function"], "reads");
    wait_for("the log", || {
        let log = client.get("/system/logs?name=reads").text();
        let line: Value = serde_json::from_str(log.lines().next()?).ok()?;
        (line["name"] == "reads" && line["namespace"] == "plant").then_some(())
    });
    assert_eq!(call("/async-function/reads.plant").status, 202);
    wait_for("the accepted call", || {
        let all = node.json(&["invocation", "list", "--namespace", "plant", "-o", "json"]);
        (all["invocations"][0]["state"] == "succeeded").then_some(())
    });
    client.ok("POST", "/system/scale-function/reads", &json!({"replicas": 2}));
    wish["service"] = "reads.plant".into();
    wish["envProcess"] = "wc -c".into();
    wish["namespace"] = "plant".into();
    client.ok("PUT", "/system/functions", &wish);
    assert_eq!(call("/function/reads.plant").text().trim(), "0");
    let copy = json!({"service": "copy", "image": "mote://reads", "envProcess": "wc -l"});
    client.ok("POST", "/system/functions", &copy);
    assert_eq!(call("/function/copy.plant").text().trim(), "0");

    // The rules and limits of the namespace apply.
    let net = json!({
        "service": "net", "image": "functions/alpine", "envProcess": "cat",
        "envVars": {"via": "gateway"},
    });
    let said = client.send("POST", "/system/functions", &net);
    assert!(said.status == 400 && said.text().contains("M0425"), "{}", said.text());
    node.ok(&["namespace", "update", "plant", "--functions", "2", "--rate", "2/s"]);
    let third = json!({"service": "third", "image": "mote://reads"});
    let said = client.send("POST", "/system/functions", &third);
    assert!(said.text().contains("M0428"), "{}", said.text());
    let statuses: Vec<u16> = (0..8).map(|_| call("/function/copy.plant").status).collect();
    assert!(statuses.contains(&429) && statuses.contains(&200), "{statuses:?}");

    client.ok("DELETE", "/system/functions", &json!({"functionName": "copy"}));
    client.ok(
        "DELETE",
        "/system/functions",
        &json!({"functionName": "reads", "namespace": "plant"}),
    );
    client.ok("DELETE", "/system/secrets", &json!({"name": "db"}));
    assert_eq!(node.ok(&["list", "-o", "name"]), "");
    let record = node.ok(&["audit"]);
    assert!(record.contains("ada") && record.contains("/system/functions"), "{record}");
    node.ok(&["namespace", "delete", "plant", "--force", "--yes"]);
    assert_eq!(client.get("/system/functions").status, 401);
}

fn action(code: &str) -> Value {
    json!({"exec": {"kind": "python:3", "code": code}})
}

const NAMESPACES: &str = "/api/v1/namespaces";

#[test]
fn openwhisk_asks_for_the_scope_of_a_token() {
    let (node, _) = start(&["--openwhisk", ":0"]);
    let whole = Client::new(&node, "openwhisk", &node.token());
    let mut exported = action(ACTION);
    exported["annotations"] = json!([
        {"key": "web-export", "value": true}, {"key": "require-whisk-auth", "value": true}
    ]);
    let mut ids = Vec::new();
    for namespace in ["orchard", "guest"] {
        whole.ok("PUT", &format!("{NAMESPACES}/{namespace}/actions/hello"), &exported);
        let invoke = format!("{NAMESPACES}/{namespace}/actions/hello?blocking=true");
        let record = whole.ok("POST", &invoke, &json!({})).json();
        assert_eq!(record["namespace"], namespace, "{record}");
        ids.push(record["activationId"].as_str().expect("an id").to_owned());
    }
    let q = Question::new;
    let mut questions = vec![];
    for path in [
        "actions",
        "actions?count=true",
        "actions/hello",
        "actions/hello?code=false",
        "actions/pkg/hello",
        "activations",
        "activations?name=hello&docs=true",
        "packages",
        "packages/p",
        "triggers",
        "triggers/t",
        "rules",
        "rules/r",
        "nothing",
    ] {
        questions.push(q("GET", &format!("{NAMESPACES}/NS/{path}"), Value::Null));
    }
    // This route is missing from the list.
    let unlisted = questions.pop().expect("one");
    questions.push(q("GET", &format!("{NAMESPACES}/NS/activations/{}", ids[0]), Value::Null));
    for (method, path, body) in [
        ("PUT", "actions/hello?overwrite=true", json!({"exec": {"kind": "cobol", "code": "x"}})),
        ("POST", "actions/hello?blocking=true", json!({})),
        ("POST", "actions/hello", json!({})),
        ("DELETE", "actions/hello", Value::Null),
        ("PUT", "actions/pkg/hello", action(ACTION)),
        ("PUT", "packages/p", json!({})),
        ("DELETE", "packages/p", Value::Null),
        ("PUT", "triggers/t", json!({})),
        ("POST", "triggers/t", json!({})),
        ("PUT", "rules/r", json!({"trigger": "/_/t", "action": "/orchard/hello"})),
        ("DELETE", "rules/r", Value::Null),
    ] {
        questions.push(q(method, &format!("{NAMESPACES}/NS/{path}"), body));
    }
    check_all(&node, "openwhisk", &questions);

    let operator = token(&node, "op", "operator", Some("plant"));
    let client = Client::new(&node, "openwhisk", &operator);
    assert_eq!(client.ask(&unlisted.about("plant")).status, 403);
    refused_for_the_node(
        &client,
        &[
            ("POST", &format!("{NAMESPACES}/whisk.system/actions/utils/echo")),
            ("POST", NAMESPACES),
            ("GET", &format!("{NAMESPACES}/plant")),
            ("GET", &format!("{NAMESPACES}/_/%61ctions")),
        ],
    );
    // Names that lead elsewhere after decoding.
    for name in [
        "%2Fguest%2Fhello",
        "%2Forchard%2Fhello",
        "%2F_%2Fhello",
        "hello.orchard",
        "pkg%2Fhello",
        "%2Fwhisk.system%2Futils%2Fecho",
    ] {
        for method in ["GET", "POST", "DELETE"] {
            let answer = client.send(method, &format!("{NAMESPACES}/_/actions/{name}"), &json!({}));
            assert!(matches!(answer.status, 400 | 404), "{method} {name}: {}", answer.text());
        }
    }
    for namespace in ["guest", "default", "%70lant", "orchard%2e"] {
        let answer = client.get(&format!("{NAMESPACES}/{namespace}/actions"));
        assert_eq!(answer.status, 404, "{namespace}");
    }
    assert_eq!(client.get(NAMESPACES).json(), json!(["plant"]));
    assert_eq!(whole.get(NAMESPACES).json(), json!(["guest", "orchard", "plant"]));
    // Activations of other namespaces look as missing as activations that do not exist.
    let missing = client.get(&format!("{NAMESPACES}/_/activations/{}", "0".repeat(32)));
    for id in &ids {
        for part in ["", "/logs", "/result"] {
            let answer = client.get(&format!("{NAMESPACES}/_/activations/{id}{part}"));
            assert_eq!((answer.status, answer.text()), (missing.status, missing.text()), "{id}");
        }
    }
    assert_eq!(client.get(&format!("{NAMESPACES}/_/activations")).text(), "[]");
    let of = |namespace: &str| whole.get(&format!("{NAMESPACES}/{namespace}/activations")).json();
    assert_eq!((of("guest")[0]["activationId"].as_str()), Some(ids[1].as_str()));
    assert_eq!((of("orchard").as_array().map(Vec::len)), Some(1));
    // Entities that a namespace cannot have are refused with a reason, even with the node's token.
    for token in [&client, &whole] {
        let package = token.send("PUT", &format!("{NAMESPACES}/plant/packages/p"), &json!({}));
        assert!(package.status == 400 && package.text().contains("has actions only"));
        let sequence = json!({"exec": {"kind": "sequence", "components": ["/_/hello"]}});
        let path = format!("{NAMESPACES}/plant/actions/both");
        let sequence = token.send("PUT", &path, &sequence);
        assert!(sequence.status == 400 && sequence.text().contains("has actions only"));
    }
    // Calls web actions with the key of another namespace.
    for (auth, status) in [
        (&client.auth, 404),
        (&whole.auth, 200),
        (&basic_auth("o", &token(&node, "o", "deployer", Some("orchard"))), 200),
        (&basic_auth("r", &token(&node, "r", "viewer", Some("orchard"))), 403),
    ] {
        let fields = [("authorization", auth.as_str())];
        let path = "/api/v1/web/orchard/default/hello.json";
        let answer = call_at(client.address, "GET", path, &fields, b"");
        assert_eq!(answer.status, status, "{}", answer.text());
    }
    let web = |namespace: &str, action: &str| {
        let path = format!("/api/v1/web/{namespace}/default/{action}");
        let answer = call_at(client.address, "GET", &path, &[], b"");
        (answer.status, answer.text())
    };
    assert_eq!(web("orchard", "none"), web("nowhere", "hello"));
    assert_eq!(node.get("/hello.orchard").json()["greeting"], "hello you");
}

#[test]
fn an_owner_uses_openwhisk() {
    let (node, _) = start(&["--openwhisk", ":0"]);
    let ada = token(&node, "ada", "deployer", Some("plant"));
    let client = Client::new(&node, "openwhisk", &ada);
    let mut wish = action(ACTION);
    wish["parameters"] = json!([{"key": "name", "value": "plants"}]);
    wish["annotations"] = json!([{"key": "web-export", "value": true}]);
    let path = format!("{NAMESPACES}/_/actions/Say_Hello");
    let made = client.ok("PUT", &path, &wish).json();
    assert_eq!(
        (&made["namespace"], &made["name"]),
        (&json!("plant"), &json!("Say_Hello")),
        "{made}"
    );
    assert_eq!(made["version"], "0.0.1");
    assert_eq!(client.send("PUT", &path, &wish).status, 409);
    assert_eq!(node.ok(&["list", "-o", "name"]), "say-hello.plant\n");
    let result = client.ok("POST", &format!("{path}?blocking=true&result=true"), &json!({}));
    assert_eq!(result.json(), json!({"greeting": "hello plants"}));
    let whole = client.ok("POST", &format!("{path}?blocking=true"), &json!({"name": "ada"})).json();
    assert_eq!(whole["response"]["result"]["greeting"], "hello ada", "{whole}");
    assert_eq!(whole["annotations"][0]["value"], "plant/Say_Hello");
    assert!(!whole.to_string().contains("namespaceCreated"), "{whole}");
    let accepted = client.ok("POST", &path, &json!({"name": "later"}));
    assert_eq!(accepted.status, 202);
    let id = accepted.json()["activationId"].as_str().expect("an id").to_owned();
    let record = wait_for("the activation", || {
        let answer = client.get(&format!("{NAMESPACES}/plant/activations/{id}"));
        (answer.status == 200).then(|| answer.json())
    });
    assert_eq!(record["response"]["result"]["greeting"], "hello later");
    let web = "/api/v1/web/plant/default/Say_Hello.json?name=web";
    let answer = call_at(client.address, "GET", web, &[], b"");
    assert_eq!(answer.json()["greeting"], "hello web");
    // Changes other settings with the same code.
    let change =
        json!({"parameters": [{"key": "name", "value": "all"}], "limits": {"timeout": 5000}});
    let changed = client.ok("PUT", &format!("{path}?overwrite=true"), &change).json();
    assert_eq!(
        (&changed["version"], &changed["limits"]["timeout"]),
        (&json!("0.0.2"), &json!(5000))
    );
    let list = client.get(&format!("{NAMESPACES}/plant/actions")).json();
    assert_eq!((list.as_array().map(Vec::len), &list[0]["name"]), (Some(1), &json!("Say_Hello")));
    for empty in ["packages", "triggers", "rules"] {
        assert_eq!(client.get(&format!("{NAMESPACES}/_/{empty}")).text(), "[]");
    }
    node.ok(&["namespace", "update", "plant", "--functions", "1"]);
    let more = client.send("PUT", &format!("{NAMESPACES}/_/actions/more"), &action(ACTION));
    assert!(more.text().contains("M0428"), "{}", more.text());

    let node = node.stop_and_restart();
    let client = Client::new(&node, "openwhisk", &ada);
    let result = client.ok("POST", &format!("{path}?blocking=true&result=true"), &json!({}));
    assert_eq!(result.json(), json!({"greeting": "hello all"}));
    assert_eq!(client.get(&format!("{NAMESPACES}/_/activations/{id}")).status, 200);
    // A namespace that is created again has neither actions nor activations.
    node.ok(&["namespace", "delete", "plant", "--force", "--yes"]);
    node.ok(&["namespace", "create", "plant"]);
    let client = Client::new(&node, "openwhisk", &token(&node, "bob", "deployer", Some("plant")));
    assert_eq!(client.get(&format!("{NAMESPACES}/_/actions")).text(), "[]");
    assert_eq!(client.get(&format!("{NAMESPACES}/_/activations")).text(), "[]");
    assert_eq!(client.get(&format!("{NAMESPACES}/_/activations/{id}")).status, 404);
    client.ok("PUT", &path, &action(ACTION));
    client.ok("DELETE", &path, &Value::Null);
    assert_eq!(client.get(&path).status, 404);
    assert_eq!(node.ok(&["list", "-o", "name"]), "");
}

/// Each namespace has separate limits.
#[test]
fn openwhisk_throttles_each_namespace() {
    let (node, _) = start(&["--openwhisk", ":0"]);
    let client = |namespace: &str| {
        let token = token(&node, namespace, "deployer", Some(namespace));
        let client = Client::new(&node, "openwhisk", &token);
        client.ok("PUT", &format!("{NAMESPACES}/_/actions/hello"), &action(ACTION));
        client
    };
    let plant = client("plant");
    let orchard = client("orchard");
    let invoke = format!("{NAMESPACES}/_/actions/hello?blocking=true&result=true");
    let refused = (0..130).any(|_| plant.send("POST", &invoke, &json!({})).status == 429);
    assert!(refused, "130 invocations in a row");
    assert_eq!(orchard.send("POST", &invoke, &json!({})).status, 200);
}

/// The name of a spec in an upload.
const SPEC_ENTRY: &str = ".mote/spec.json";

/// An owner who writes annotations by hand does not reach another owner's function.
#[test]
fn annotations_of_a_function_lead_to_no_other_function() {
    let (node, admin) = start(&["--openwhisk", ":0"]);
    node.deploy_ok("hello", &[("app.py", HELLO)]);
    let ada = token(&node, "ada", "deployer", Some("plant"));
    let client = Client::new(&node, "openwhisk", &ada);
    client.ok("PUT", &format!("{NAMESPACES}/_/actions/own"), &action(ACTION));
    let store = node.dir.path().join("data/mote.db");
    let spec = std::process::Command::new("python3")
        .args(["-c", "import sqlite3, sys\nprint(sqlite3.connect(sys.argv[1]).execute(\"SELECT spec FROM revisions WHERE function = 'own.plant'\").fetchone()[0])"])
        .arg(&store)
        .output()
        .expect("python3");
    let text = String::from_utf8_lossy(&spec.stdout).into_owned();
    let mut spec: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{spec:?}"));
    let kept = spec["annotations"]["openwhisk"].as_str().expect("an annotation");
    let mut kept: Value = serde_json::from_str(kept).expect("JSON");
    kept["entity"]["what"]["action"]["function"] = "hello".into();
    spec["annotations"]["openwhisk"] = kept.to_string().into();
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("__main__.py"), ACTION).expect("a file");
    std::fs::create_dir(folder.path().join(".mote")).expect("a folder");
    std::fs::write(folder.path().join(SPEC_ENTRY), spec.to_string()).expect("a file");
    let tar = std::process::Command::new("tar")
        .args(["-C", folder.path().to_str().expect("UTF-8"), "-c"])
        .args([SPEC_ENTRY, "__main__.py"])
        .output()
        .expect("tar runs");
    let bearer = format!("Bearer {ada}");
    let fields = [("authorization", bearer.as_str()), ("host", "localhost")];
    let answer = call_at(admin, "PUT", "/v1/functions/own", &fields, &tar.stdout);
    assert!(answer.status < 300, "{}", answer.text());
    let invoke = format!("{NAMESPACES}/_/actions/own?blocking=true&result=true");
    let result = client.ok("POST", &invoke, &json!({"name": "own"})).json();
    assert_eq!(result, json!({"greeting": "hello own"}), "not the function of another");
    client.ok("DELETE", &format!("{NAMESPACES}/_/actions/own"), &Value::Null);
    assert_eq!(node.ok(&["list", "-o", "name"]), "hello\n");
}

/// Returns the document of a function. `NS` is its project.
fn document(name: &str, project: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "nuclio",
            "labels": {"nuclio.io/project-name": project}},
        "spec": {"runtime": "python:3.11", "handler": "main:handler",
            "build": {"functionSourceCode": base64(HANDLER.as_bytes())}},
    })
}

const PROJECT: &str = "x-nuclio-project-name";
const WAIT: &str = "x-nuclio-wait-function-action";
const ANYWHERE: [&str; 3] = ["--lan", "--nuclio", "0.0.0.0:0"];

#[test]
fn nuclio_asks_for_the_scope_of_a_token() {
    let (node, _) = start(&ANYWHERE);
    let whole = Client::new(&node, "nuclio", &node.token());
    for project in ["orchard", "default"] {
        let wish = Question::new("POST", "/api/functions", document("hello", project));
        let answer = whole.ask(&wish.with(WAIT, "true"));
        assert_eq!(answer.status, 202, "{}", answer.text());
    }
    assert_eq!(node.ok(&["list", "-o", "name"]), "hello\nhello.orchard\n");
    let q = Question::new;
    let mut questions = vec![q("GET", "/api/projects/NS", Value::Null)];
    for path in ["", "/hello", "/hello/replicas", "/hello/logs/hello"] {
        let target = format!("/api/functions{path}");
        questions.push(q("GET", &target, Value::Null).with(PROJECT, "NS"));
    }
    for name in ["hello.NS", "hello%2ENS"] {
        for path in ["", "/replicas", "/logs/hello"] {
            questions.push(q("GET", &format!("/api/functions/{name}{path}"), Value::Null));
        }
        questions.push(q("DELETE", &format!("/api/functions/{name}"), Value::Null));
        let ready = json!({"desiredState": "ready"});
        questions.push(q("PATCH", &format!("/api/functions/{name}"), ready));
    }
    let ready = json!({"desiredState": "ready"});
    questions.push(q("PATCH", "/api/functions/hello", ready).with(PROJECT, "NS"));
    questions.push(q("DELETE", "/api/functions/hello", Value::Null).with(PROJECT, "NS"));
    questions.push(q("DELETE", "/api/functions", document("hello", "NS")));
    questions.push(q("DELETE", "/api/functions", json!({"metadata": {"name": "hello.NS"}})));
    questions.push(q("PUT", "/api/functions/hello", document("hello", "NS")));
    let mut wrong = document("hello", "NS");
    wrong["metadata"]["namespace"] = "other".into();
    questions.push(q("POST", "/api/functions", wrong));
    let mut dotted = document("hello.NS", "");
    questions.push(q("PUT", "/api/functions/hello.NS", dotted.clone()));
    dotted["spec"]["runtime"] = "none".into();
    questions.push(q("POST", "/api/functions", dotted).with(WAIT, "true"));
    for name in ["hello", "hello.NS"] {
        let call = q("POST", "/api/function_invocations", Value::Null);
        let call = call.with("x-nuclio-function-name", name);
        questions.push(if name == "hello" { call.with(PROJECT, "NS") } else { call });
    }
    check_all(&node, "nuclio", &questions);

    let operator = token(&node, "op", "operator", Some("plant"));
    let client = Client::new(&node, "nuclio", &operator);
    refused_for_the_node(
        &client,
        &[
            ("POST", "/api/projects"),
            ("DELETE", "/api/projects/plant"),
            ("PUT", "/api/projects/plant"),
            ("GET", "/api/api_gateways"),
            ("GET", "/api/function_templates"),
        ],
    );
    // One of the requests was a deploy that failed.
    client.ok("DELETE", "/api/functions/hello", &Value::Null);
    assert_eq!(client.get("/api/functions").text(), "{}");
    let projects = client.get("/api/projects").json();
    assert_eq!(
        projects.as_object().map(|all| all.keys().cloned().collect()),
        Some(vec!["plant".to_owned()])
    );
    for project in ["default", "nuclio", "greens"] {
        let list = Question::new("GET", "/api/functions", Value::Null).with(PROJECT, project);
        assert_eq!(client.ask(&list).status, 404, "{project}");
    }
    // The node's token sees namespaces as projects, but cannot change them here.
    let projects = whole.get("/api/projects").json();
    for name in ["default", "orchard", "plant"] {
        assert!(projects[name].is_object(), "{projects}");
    }
    let wish = json!({"metadata": {"name": "plant"}, "spec": {}});
    assert_eq!(whole.send("POST", "/api/projects", &wish).status, 409);
    assert_eq!(whole.send("PUT", "/api/projects/plant", &wish).status, 412);
    assert_eq!(whole.send("DELETE", "/api/projects/plant", &Value::Null).status, 412);
    let list = Question::new("GET", "/api/functions", Value::Null);
    let found = whole.ask(&list.clone().with(PROJECT, "orchard")).json();
    assert_eq!(
        found["hello"]["metadata"]["labels"]["nuclio.io/project-name"], "orchard",
        "{found}"
    );
    let found = whole.ask(&list).json();
    assert_eq!(found.as_object().map(serde_json::Map::len), Some(1), "{found}");
    assert_eq!(node.ok(&["list", "-o", "name"]), "hello\nhello.orchard\n");
}

#[test]
fn an_owner_uses_nuclio() {
    let (node, _) = start(&ANYWHERE);
    let client = Client::new(&node, "nuclio", &token(&node, "ada", "deployer", Some("plant")));
    let mut wish = document("hello", "plant");
    client.ok("POST", "/api/functions", &wish);
    let settled = |name: &str| {
        wait_for("the deploy", || {
            let function = client.get(&format!("/api/functions/{name}")).json();
            (function["status"]["state"] != "building").then_some(function)
        })
    };
    let function = settled("hello");
    assert_eq!(function["status"]["state"], "ready", "{function}");
    assert_eq!(function["metadata"]["name"], "hello");
    assert_eq!(node.post("/hello.plant", b"you").text(), "hello you");
    let call = |name: &str| {
        let auth = client.auth.as_str();
        let fields = [("authorization", auth), ("x-nuclio-function-name", name)];
        call_at(client.address, "POST", "/api/function_invocations", &fields, b"ada")
    };
    assert_eq!(call("hello").text(), "hello ada");
    assert_eq!(call("hello.plant").text(), "hello ada");
    let replicas = client.get("/api/functions/hello/replicas").json();
    let replica = replicas["names"][0].as_str().expect("a replica").to_owned();
    wait_for("the log", || {
        let log = client.get(&format!("/api/functions/hello/logs/{replica}")).text();
        log.contains("called").then_some(())
    });
    // A function without a project also belongs to the namespace.
    wish["metadata"] = json!({"name": "other"});
    client.ok("POST", "/api/functions", &wish);
    assert_eq!(settled("other")["metadata"]["labels"]["nuclio.io/project-name"], "plant");
    assert_eq!(node.ok(&["list", "-o", "name"]), "hello.plant\nother.plant\n");
    let all = client.get("/api/functions").json();
    assert_eq!(all.as_object().map(serde_json::Map::len), Some(2));
    wish["spec"]["build"] = json!({});
    client.ok("PUT", "/api/functions/other", &wish);
    assert_eq!(settled("other")["status"]["state"], "ready");
    client.ok("PATCH", "/api/functions/other", &json!({"desiredState": "scaledToZero"}));
    // The failed function is not shown to the next owner of a namespace with this name.
    wish["spec"]["build"] = json!({"functionSourceCode": base64(b"raise RuntimeError()\n")});
    wish["metadata"]["name"] = "broken".into();
    client.ok("POST", "/api/functions", &wish);
    assert_eq!(settled("broken")["status"]["state"], "error");
    let wish = json!({"metadata": {"name": "hello"}});
    client.ok("DELETE", "/api/functions", &wish);
    node.ok(&["namespace", "delete", "plant", "--force", "--yes"]);
    node.ok(&["namespace", "create", "plant"]);
    let client = Client::new(&node, "nuclio", &token(&node, "bob", "deployer", Some("plant")));
    assert_eq!(client.get("/api/functions").text(), "{}");
    assert_eq!(client.get("/api/functions/broken").status, 404);
}

/// On loopback, a token is not required, but can be sent.
#[test]
fn nuclio_without_a_token_reaches_no_namespace() {
    let (node, _) = start(&["--nuclio", ":0"]);
    let client = Client::new(&node, "nuclio", &token(&node, "ada", "deployer", Some("plant")));
    let wish = Question::new("POST", "/api/functions", document("hello", "plant"));
    let answer = client.ask(&wish.with(WAIT, "true"));
    assert_eq!(answer.status, 202, "{}", answer.text());
    assert_eq!(node.get("/hello.plant").status, 200);
    let ask = |method: &str, path: &str, fields: &[(&str, &str)], body: &Value| {
        call_at(client.address, method, path, fields, body.to_string().as_bytes())
    };
    let none = Value::Null;
    assert_eq!(ask("GET", "/api/functions", &[], &none).text(), "{}");
    assert_eq!(ask("GET", "/api/functions", &[(PROJECT, "plant")], &none).text(), "{}");
    for path in ["hello", "hello.plant"] {
        for method in ["GET", "DELETE"] {
            let path = format!("/api/functions/{path}");
            let answer = ask(method, &path, &[(PROJECT, "plant")], &none);
            assert_eq!(answer.status, 404, "{method} {path}: {}", answer.text());
        }
    }
    let list = ask("GET", "/api/projects", &[], &none).text();
    assert!(!list.contains("plant"), "{list}");
    // Every project exists as a label, so no answer reveals which of them are namespaces.
    let said = ["plant", "nowhere"].map(|name| {
        let wish = json!({"metadata": {"name": name}, "spec": {"description": "a label"}});
        let made = ask("POST", "/api/projects", &[], &wish);
        let deployed = ask("POST", "/api/functions", &[(WAIT, "true")], &document(name, name));
        let listed = ask("GET", "/api/functions", &[(PROJECT, name)], &none);
        assert!(listed.json()[name].is_object(), "{}", listed.text());
        [made, deployed].map(|it| (it.status, it.text().replace("plant", "nowhere")))
    });
    assert_eq!(said[0], said[1]);
    assert_eq!((said[0][0].0, said[0][1].0), (201, 202), "{said:?}");
    let shown = Client::new(&node, "nuclio", &node.token()).get("/api/projects/plant").json();
    assert_eq!(shown["spec"], json!({}), "the namespace");
    // A caller that may send requests from this machine may call its functions, as at the node's
    // front.
    let call = [("x-nuclio-function-name", "hello.plant")];
    assert_eq!(ask("POST", "/api/function_invocations", &call, &none).status, 200);
    assert_eq!(node.ok(&["list", "-o", "name"]), "hello.plant\nnowhere\nplant\n");
    let viewer = Client::new(&node, "nuclio", &token(&node, "bob", "viewer", Some("plant")));
    assert_eq!(viewer.send("DELETE", "/api/functions/hello", &none).status, 403);
    assert!(viewer.get("/api/functions").json()["hello"].is_object());
}
