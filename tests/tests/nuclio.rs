//! The API of Nuclio's dashboard: the requests that its clients send for functions and invocations.

use std::net::SocketAddr;
use std::process::Command;

use mote_tests::namespaces::{deploy_ok, start};
use mote_tests::{Answer, Node, base64, basic_auth, call_at, repository, wait_for};
use serde_json::{Value, json};

const ON: [&str; 2] = ["--nuclio", ":0"];

const HELLO: &str = "import os\n\
    def handler(context, event):\n\
    \x20   context.logger.info('called')\n\
    \x20   return context.Response(body='%s %s' % (os.environ['UNIT'], event.body.decode()),\n\
    \x20       headers={'x-path': event.path}, content_type='text/plain', status_code=201)\n";

struct Dashboard(SocketAddr);

impl Dashboard {
    fn of(node: &Node) -> Self {
        Self(node.platform("nuclio"))
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let headers =
            [("content-type", "application/json"), ("x-nuclio-function-namespace", "nuclio")];
        call_at(self.0, method, path, &headers, body.as_bytes())
    }

    fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &Value::Null)
    }

    /// Polls, as clients do, until the state of the function is final.
    fn settled(&self, name: &str) -> Value {
        wait_for("the function", || {
            let function = self.get(&format!("/api/functions/{name}")).json();
            (function["status"]["state"] != "building").then_some(function)
        })
    }

    fn invoke(&self, name: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut all = vec![("x-nuclio-function-name", name)];
        all.extend_from_slice(headers);
        call_at(self.0, "POST", "/api/function_invocations", &all, body)
    }
}

fn document(name: &str, source: &str, unit: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "nuclio",
            "labels": {"nuclio.io/project-name": "plants"}, "annotations": {"a": "b"},
        },
        "spec": {
            "handler": "main:handler", "runtime": "python:3.11",
            "env": [{"name": "UNIT", "value": unit}],
            "resources": {"limits": {"memory": "100Mi"}}, "eventTimeout": "20s",
            "build": {"functionSourceCode": base64(source.as_bytes())},
        },
    })
}

#[test]
fn a_function_is_built_polled_called_updated_and_removed() {
    let node = Node::start_with(&ON);
    let dashboard = Dashboard::of(&node);
    assert_eq!(dashboard.get("/api/functions").text(), "{}");
    let wish = document("hello", HELLO, "C");
    assert_eq!(dashboard.ask("POST", "/api/functions", &wish).status, 202);
    let function = dashboard.settled("hello");
    assert_eq!(function["status"]["state"], "ready", "{function}");
    assert_eq!(
        (&function["metadata"]["labels"], &function["spec"]),
        (&wish["metadata"]["labels"], &wish["spec"])
    );
    let url = function["status"]["externalInvocationUrls"][0].as_str().expect("a URL").to_owned();
    assert_eq!(url, format!("{}/hello", node.http));
    let described = node.json(&["describe", "hello", "-o", "json"]);
    assert_eq!(described["limits"]["memory_bytes"], 100 << 20);
    assert_eq!(described["limits"]["timeout_ms"], 20_000);

    let answer = dashboard.invoke("hello", &[("x-nuclio-path", "/a/b?c=1")], b"you");
    assert_eq!((answer.status, answer.text().as_str()), (201, "C you"));
    assert_eq!(
        (answer.header("x-path"), answer.header("content-type")),
        (Some("/a/b"), Some("text/plain"))
    );
    assert_eq!(node.post("/hello", b"you").text(), "C you", "the node's own front has it too");

    assert_eq!(dashboard.ask("POST", "/api/functions", &wish).status, 409);
    let all = dashboard.get("/api/functions").json();
    assert_eq!(all["hello"]["metadata"]["name"], "hello");
    let project = |name: &str| {
        let headers = [("x-nuclio-project-name", name)];
        call_at(dashboard.0, "GET", "/api/functions", &headers, b"").json()
    };
    assert_eq!(project("plants"), all);
    assert_eq!(project("others"), json!({}));
    let projects = dashboard.get("/api/projects").json();
    assert!(projects["default"].is_object() && projects["plants"].is_object(), "{projects}");

    // An update without a source only changes the other settings.
    let mut wish = document("hello", HELLO, "F");
    wish["spec"]["build"] = json!({});
    assert_eq!(dashboard.ask("PUT", "/api/functions/hello", &wish).status, 202);
    assert_eq!(dashboard.settled("hello")["status"]["state"], "ready");
    assert_eq!(dashboard.invoke("hello", &[], b"you").text(), "F you");
    assert_eq!(
        dashboard.ask("PUT", "/api/functions/nobody", &document("nobody", HELLO, "C")).status,
        404
    );

    let replicas = dashboard.get("/api/functions/hello/replicas").json();
    let replica = replicas["names"][0].as_str().expect("a replica").to_owned();
    let logs = wait_for("the log", || {
        let logs = dashboard.get(&format!("/api/functions/hello/logs/{replica}?tailLines=50"));
        logs.text().contains("called").then_some(logs)
    });
    assert!(logs.header("content-type").is_some_and(|kind| kind.starts_with("text/plain")));
    assert_eq!(
        dashboard
            .ask("PATCH", "/api/functions/hello", &json!({"desiredState": "scaledToZero"}))
            .status,
        202
    );
    wait_for("no replica", || {
        (dashboard.get("/api/functions/hello/replicas").json()["names"] == json!([])).then_some(())
    });
    assert_eq!(
        dashboard.ask("PATCH", "/api/functions/hello", &json!({"desiredState": "gone"})).status,
        400
    );

    let named = json!({"metadata": {"name": "hello"}});
    assert_eq!(dashboard.ask("DELETE", "/api/functions", &named).status, 204);
    assert_eq!(dashboard.get("/api/functions/hello").status, 404);
    assert_eq!(dashboard.ask("DELETE", "/api/functions/hello", &Value::Null).status, 404);
}

#[test]
fn projects_are_made_before_their_functions() {
    let node = Node::start_with(&ON);
    let dashboard = Dashboard::of(&node);
    let project = |name: &str, said: &str| {
        json!({"metadata": {"name": name, "namespace": "nuclio", "labels": {"a": "b"}},
            "spec": {"description": said}})
    };
    let answer = dashboard.ask("POST", "/api/projects", &project("plants", "green"));
    assert_eq!(answer.status, 201, "{}", answer.text());
    assert_eq!(answer.json()["metadata"]["name"], "plants");
    assert_eq!(dashboard.ask("POST", "/api/projects", &project("plants", "")).status, 409);
    assert_eq!(dashboard.ask("POST", "/api/projects", &project("Not a name", "")).status, 400);
    let wish = document("hello", HELLO, "C");
    assert_eq!(dashboard.ask("POST", "/api/functions", &wish).status, 202);
    assert_eq!(dashboard.settled("hello")["status"]["state"], "ready", "{}", node.log());

    let node = node.stop_and_restart();
    let dashboard = Dashboard::of(&node);
    let kept = dashboard.get("/api/projects/plants").json();
    assert_eq!(
        (&kept["spec"]["description"], &kept["metadata"]["labels"]["a"]),
        (&"green".into(), &"b".into())
    );
    let change = project("plants", "greener");
    assert_eq!(dashboard.ask("PUT", "/api/projects/plants", &change).status, 204);
    assert_eq!(dashboard.ask("PUT", "/api/projects/others", &change).status, 400);
    assert_eq!(dashboard.ask("PUT", "/api/projects/gone", &project("gone", "")).status, 404);
    let listed = dashboard.get("/api/projects").json();
    assert_eq!(listed["plants"]["spec"]["description"], "greener");

    assert_eq!(dashboard.ask("DELETE", "/api/projects", &change).status, 412, "it has a function");
    assert_eq!(dashboard.ask("DELETE", "/api/functions/hello", &Value::Null).status, 204);
    assert_eq!(dashboard.ask("DELETE", "/api/projects", &change).status, 204);
    assert_eq!(dashboard.get("/api/projects/plants").status, 404);
    assert_eq!(dashboard.ask("DELETE", "/api/projects/plants", &Value::Null).status, 404);
    assert_eq!(dashboard.ask("DELETE", "/api/projects/default", &Value::Null).status, 412);
}

#[test]
fn node_and_shell_functions() {
    let node = Node::start_with(&ON);
    let dashboard = Dashboard::of(&node);
    let script = "#!/bin/sh\nrev\n";
    let mut shell = document("reverser", script, "C");
    shell["spec"]["runtime"] = "shell".into();
    shell["spec"]["handler"] = "reverser.sh".into();
    assert_eq!(dashboard.ask("POST", "/api/functions", &shell).status, 202);
    assert_eq!(dashboard.settled("reverser")["status"]["state"], "ready", "{}", node.log());
    assert_eq!(dashboard.invoke("reverser", &[], b"abc").text().trim(), "cba");
    if Command::new("node").arg("--version").output().is_err() {
        return mote_tests::skip("node_and_shell_functions", "node is not installed");
    }
    let source = "exports.handler = (context, event) => context.callback(`js ${event.body}`);\n";
    let mut js = document("js", source, "C");
    js["spec"]["runtime"] = "nodejs".into();
    js["spec"]["handler"] = "handler".into();
    assert_eq!(dashboard.ask("POST", "/api/functions", &js).status, 202);
    assert_eq!(dashboard.settled("js")["status"]["state"], "ready", "{}", node.log());
    assert_eq!(dashboard.invoke("js", &[], b"you").text(), "js you");
}

#[test]
fn what_cannot_be_built_says_why() {
    let node = Node::start_with(&ON);
    let dashboard = Dashboard::of(&node);
    let wish = document("broken", "raise RuntimeError('at import')\n", "C");
    assert_eq!(dashboard.ask("POST", "/api/functions", &wish).status, 202);
    let function = dashboard.settled("broken");
    assert_eq!(function["status"]["state"], "error", "{function}");
    assert!(function["status"]["message"].as_str().is_some_and(|text| !text.is_empty()));
    assert_eq!(dashboard.invoke("broken", &[], b"").status, 404);
    // The deploy may be retried, and the function may be removed.
    assert_eq!(
        dashboard.ask("POST", "/api/functions", &document("broken", HELLO, "C")).status,
        202
    );
    assert_eq!(dashboard.settled("broken")["status"]["state"], "ready");
    let waits = [("x-nuclio-wait-function-action", "true")];
    let body = document("waited", "not python(", "C").to_string();
    let answer = call_at(dashboard.0, "POST", "/api/functions", &waits, body.as_bytes());
    assert!(answer.status >= 400, "{}", answer.text());
    assert_eq!(dashboard.ask("DELETE", "/api/functions/waited", &Value::Null).status, 204);

    let with = |change: &dyn Fn(&mut Value)| {
        let mut document = document("other", HELLO, "C");
        change(&mut document);
        document
    };
    for (wish, words) in [
        (with(&|d| d["spec"]["runtime"] = "java".into()), "java"),
        (with(&|d| d["spec"]["handler"] = "../../etc/passwd:handler".into()), "at another address"),
        (with(&|d| d["spec"]["build"] = json!({"path": "/etc"})), "at another address"),
        (with(&|d| d["spec"]["build"] = json!({"codeEntryType": "git"})), "at another address"),
        (
            with(&|d| {
                let reference = json!({"secretKeyRef": {"name": "db", "key": "password"}});
                d["spec"]["env"] = json!([{"name": "S", "valueFrom": reference}]);
            }),
            "without the node's token cannot name secret db.password",
        ),
        (
            with(&|d| {
                let source =
                    format!("# @nuclio.configure\n# function.yaml:\n#   spec: {{}}\n{HELLO}");
                d["spec"]["build"]["functionSourceCode"] = base64(source.as_bytes()).into();
            }),
            "a block @nuclio.configure in the source is not supported",
        ),
        (
            with(&|d| d["spec"]["build"]["commands"] = json!(["apk add curl"])),
            "build.commands: `apk add curl` is not supported",
        ),
        (
            with(&|d| d["spec"]["build"]["requirements"] = json!(["mote-no-such-package==1"])),
            "mote-no-such-package",
        ),
        (with(&|d| d["spec"]["build"] = json!({})), "functionSourceCode"),
        (with(&|d| d["spec"]["build"]["functionSourceCode"] = "%%".into()), "base64"),
    ] {
        assert_eq!(dashboard.ask("POST", "/api/functions", &wish).status, 202, "{wish}");
        let status = dashboard.settled("other")["status"].clone();
        assert_eq!(status["state"], "error", "{wish}");
        assert!(
            status["message"].as_str().is_some_and(|text| text.contains(words)),
            "{words}: {status}"
        );
    }
    for wish in [
        json!({}),
        json!({"metadata": {"name": "Bad_Name"}, "spec": {}}),
        json!({"metadata": {"name": "a"}}),
    ] {
        let answer = dashboard.ask("POST", "/api/functions", &wish);
        assert_eq!(answer.status, 400, "{wish}");
        assert!(answer.json()["error"].is_string(), "{}", answer.text());
    }
    assert_eq!(call_at(dashboard.0, "POST", "/api/functions", &[], b"{no json").status, 400);
    // A page of another site would make a browser send this request.
    let answer =
        call_at(dashboard.0, "DELETE", "/api/functions/broken", &[("origin", "http://x")], b"");
    assert_eq!(answer.status, 403);
}

#[test]
fn without_credentials_functions_that_came_another_way_are_called_and_nothing_else() {
    let node = Node::start_with(&ON);
    let dashboard = Dashboard::of(&node);
    let path = repository().join("tests/fixtures/compat/nuclio/hello");
    node.ok(&["deploy", path.to_str().expect("UTF-8")]);
    let shown = dashboard.get("/api/functions").json();
    assert_eq!(shown, json!({}), "whoever runs a process here could read it");
    let theirs = json!({"metadata": {"name": "nu-hello"}, "spec": {"runtime": "python:3.11",
        "handler": "main:handler", "build": {"functionSourceCode": base64(HELLO.as_bytes())}}});
    let theirs = theirs.to_string();
    let desired = br#"{"desiredState": "scaledToZero"}"#;
    for (method, path, body) in [
        ("GET", "/api/functions/nu-hello", &b""[..]),
        ("PUT", "/api/functions/nu-hello", theirs.as_bytes()),
        ("PATCH", "/api/functions/nu-hello", desired),
        ("DELETE", "/api/functions/nu-hello", b""),
        ("DELETE", "/api/functions", theirs.as_bytes()),
        ("GET", "/api/functions/nu-hello/replicas", b""),
        ("GET", "/api/functions/nu-hello/logs/nu-hello", b""),
    ] {
        let answer = call_at(dashboard.0, method, path, &[], body);
        assert_eq!(answer.status, 403, "{method} {path}: {}", answer.text());
    }
    let proxied = [("x-forwarded-for", "192.0.2.1")];
    assert_eq!(call_at(dashboard.0, "GET", "/api/functions", &proxied, b"").status, 403);
    assert_eq!(dashboard.invoke("nu-hello", &[], b"you").text(), "hello you C");
    assert_eq!(dashboard.invoke("nobody", &[], b"").status, 404);
    let nameless = call_at(dashboard.0, "POST", "/api/function_invocations", &[], b"");
    assert_eq!(nameless.status, 400);
    let answer = dashboard.invoke("nu-hello", &[("x-nuclio-path", "/../x")], b"");
    assert_eq!(answer.status, 400);
    for path in
        ["/api/versions", "/api/external_ip_addresses", "/api/function_events", "/api/api_gateways"]
    {
        assert!(dashboard.get(path).json().is_object(), "{path}");
    }
}

#[test]
fn with_the_token_all_functions_are_shown_without_what_is_in_their_environment() {
    let node = Node::start_with(&["--lan", "--nuclio", "0.0.0.0:0"]);
    let address = SocketAddr::from(([127, 0, 0, 1], node.platform("nuclio").port()));
    let manifest = "version = 1\nname = \"holds\"\n[env]\nPASSWORD = \"hunter2\"\n";
    let code = "def handle(event, ctx):\n    return 'held'\n";
    node.deploy_ok("holds", &[("app.py", code), ("mote.toml", manifest)]);
    let auth = basic_auth("admin", &node.token());
    let headers = [("authorization", auth.as_str())];
    let all = call_at(address, "GET", "/api/functions", &headers, b"");
    assert_eq!(all.json()["holds"]["status"]["state"], "ready", "{}", all.text());
    assert_eq!(all.json()["holds"]["metadata"]["labels"]["nuclio.io/project-name"], "default");
    assert!(!all.text().contains("hunter2"), "{}", all.text());
}

#[test]
fn the_token_is_not_shown_to_functions() {
    let node = Node::start_with(&["--lan", "--nuclio", "0.0.0.0:0"]);
    let address = SocketAddr::from(([127, 0, 0, 1], node.platform("nuclio").port()));
    let code = "def handle(event, ctx):\n    return str(dict(event.headers))\n";
    node.deploy_ok("shows", &[("app.py", code)]);
    let auth = basic_auth("admin", &node.token());
    let ask = |headers: &[(&str, &str)]| {
        let named = [&[("x-nuclio-function-name", "shows"), ("x-other", "kept")], headers].concat();
        call_at(address, "POST", "/api/function_invocations", &named, b"")
    };
    assert_eq!(ask(&[]).status, 401);
    let seen = ask(&[("authorization", &auth)]);
    assert_eq!(seen.status, 200, "{}", seen.text());
    let text = seen.text().to_lowercase();
    assert!(text.contains("x-other") && !text.contains("authorization"), "{text}");
}

#[test]
fn without_the_token_an_annotation_closes_a_function_and_never_opens_one() {
    let node = Node::start_with(&ON);
    let dashboard = Dashboard::of(&node);
    let made = |name: &str, mode: &str| {
        let mut wish = document(name, HELLO, "C");
        wish["metadata"]["annotations"] = json!({"mote/access": mode});
        assert_eq!(dashboard.ask("POST", "/api/functions", &wish).status, 202, "{name}");
        dashboard.settled(name)
    };
    for mode in ["public", "key"] {
        let function = made(mode, mode);
        assert_eq!(function["status"]["state"], "error", "{function}");
        assert!(function.to_string().contains("cannot open the function"), "{function}");
    }
    assert_eq!(made("shut", "local")["status"]["state"], "ready");
    assert_eq!(node.json(&["describe", "shut", "-o", "json"])["access"], "local");
}

/// A function that answers with its namespace and the fields that it received.
fn shows(namespace: &str) -> String {
    format!(
        "def handle(event, ctx):\n    return '{namespace} ' + str(dict(event.headers)).lower()\n"
    )
}

/// Credentials are checked on loopback too, even though none are needed there.
#[test]
fn a_token_on_loopback_decides_the_namespace_and_no_function_sees_it() {
    let (node, _) = start(&ON);
    let dashboard = Dashboard::of(&node);
    node.deploy_ok("shows", &[("app.py", &shows("default"))]);
    for namespace in ["plant", "orchard"] {
        deploy_ok(&node, namespace, "shows", &[("app.py", &shows(namespace))]);
    }
    deploy_ok(&node, "orchard", "na", &[("app.py", &shows("na"))]);
    let token = |name: &str, role: &str| {
        let args = ["token", "create", name, "--role", role, "--namespace", "orchard"];
        basic_auth("any", node.ok(&args).trim())
    };
    let call = |auth: &str, name: &str, more: &[(&str, &str)]| {
        let fields = [("x-nuclio-function-name", name), ("authorization", auth)];
        call_at(dashboard.0, "POST", "/api/function_invocations", &[&fields, more].concat(), b"")
    };
    let seen = |auth: &str, name: &str, more: &[(&str, &str)]| {
        let answer = call(auth, name, more);
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        let text = answer.text();
        let (namespace, fields) = text.split_once(' ').expect("a namespace");
        (namespace.to_owned(), fields.contains("authorization"))
    };
    let whole = basic_auth("x", &node.token());
    let bearer = format!("Bearer {}", node.token());
    for auth in [&whole, &bearer] {
        assert_eq!(seen(auth, "shows.plant", &[]), ("plant".to_owned(), false));
        assert_eq!(seen(auth, "shows", &[]), ("default".to_owned(), false));
    }
    let own = token("ada", "deployer");
    let project = [("x-nuclio-project-name", "orchard")];
    assert_eq!(seen(&own, "shows", &[]), ("orchard".to_owned(), false));
    assert_eq!(seen(&own, "na", &project), ("na".to_owned(), false));
    for (name, more) in [
        ("shows.plant", &[][..]),
        ("shows", &[("x-nuclio-project-name", "plant")]),
        ("shows", &[("x-nuclio-project-name", "default")]),
    ] {
        assert_eq!(call(&own, name, more).status, 404, "{name} {more:?}");
    }
    assert_eq!(call(&token("bob", "viewer"), "shows", &[]).status, 403);
    // Credentials that are not a token of the node are passed to the function.
    let other = basic_auth("someone", "a password of the function");
    assert_eq!(seen(&other, "shows", &[]), ("default".to_owned(), true));

    node.ok(&["token", "revoke", "ada", "--yes"]);
    assert_eq!(seen(&own, "shows", &[]), ("default".to_owned(), true));
    let manage = |auth: &str, method: &str, body: &Value| {
        let fields = [("authorization", auth)];
        call_at(dashboard.0, method, "/api/functions", &fields, body.to_string().as_bytes()).status
    };
    let wish = document("made", HELLO, "C");
    for auth in [&own, &other, &basic_auth("x", ""), &"Digest x".to_owned()] {
        assert_eq!(manage(auth, "GET", &Value::Null), 401, "{auth}");
        assert_eq!(manage(auth, "POST", &wish), 401, "{auth}");
    }
    assert_eq!(manage(&basic_auth("", ""), "GET", &Value::Null), 200, "no credentials at all");
    let list = node.ok(&["list", "-o", "name"]);
    assert_eq!(list, "na.orchard\nshows\nshows.orchard\nshows.plant\n");
}
