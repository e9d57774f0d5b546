//! Rates of functions: which calls count, which do not, and what a refused caller receives.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use mote_tests::network::Far;
use mote_tests::{Answer, Node, PATIENCE, call_at, coap_client, is_root, skip, wait_for};
use serde_json::{Value, json};

const CODE: &str = "def handle(event, ctx):\n    return f'read {len(event.body)}'\n";

/// A manifest with these lines in `[limits]`.
fn manifest(limits: &str) -> String {
    format!("version = 1\n[limits]\n{limits}\n")
}

type Fields<'a> = &'a [(&'a str, &'a str)];

/// Permits three calls at once, and then none for the rest of the test.
const THREE: &str = "rate = \"1/h\"\nburst = 3";

fn described(node: &Node, name: &str) -> Value {
    node.json(&["describe", name, "-o", "json"])
}

/// Calls until a call is refused. Returns how many were not.
fn until_refused(what: &str, refused: impl Fn(&str) -> bool, call: impl Fn() -> String) -> usize {
    for count in 0..20 {
        if refused(&call()) {
            return count;
        }
    }
    panic!("{what}: twenty calls were accepted");
}

fn check_refusal(answer: &Answer) {
    assert_eq!((answer.status, answer.json()["code"].as_str()), (429, Some("M0524")));
    let seconds: u32 = answer.header("retry-after").expect("a time").parse().expect("a number");
    assert!((3_500..=3_600).contains(&seconds), "{seconds}");
}

#[test]
fn every_front_counts() {
    let flags = ["--openfaas", ":0", "--nuclio", ":0", "--tinyfaas", ":0"];
    let fronts = ["--tinyfaas-http", ":0", "--tinyfaas-coap", ":0", "--tinyfaas-grpc", "off"];
    let node = Node::start_with(&[&flags[..], &fronts].concat());
    let deploy = |name: &str| {
        node.deploy_ok(name, &[("app.py", CODE), ("mote.toml", &manifest(THREE))]);
    };
    let status = |at: SocketAddr, path: &str, headers: &[(&str, &str)]| {
        call_at(at, "POST", path, headers, b"x").status.to_string()
    };
    let is_429 = |text: &str| text == "429";
    let later = [("prefer", "respond-async")];
    let openfaas = node.platform("openfaas");
    let http: [(&str, SocketAddr, &str, Fields<'_>); 6] = [
        ("http", node.http, "/http", &[]),
        ("later", node.http, "/later", &later),
        ("tiny", node.platform("tinyfaas http"), "/tiny", &[]),
        ("open", openfaas, "/function/open", &[]),
        ("open-later", openfaas, "/async-function/open-later", &[]),
        (
            "nuclio",
            node.platform("nuclio"),
            "/api/function_invocations",
            &[("x-nuclio-function-name", "nuclio")],
        ),
    ];
    for (name, at, path, headers) in http {
        deploy(name);
        assert_eq!(until_refused(name, is_429, || status(at, path, headers)), 3, "{name}");
        wait_for("the accepted calls to run", || {
            (described(&node, name)["requests"]["total"] == 3).then_some(())
        });
    }
    check_refusal(&node.get("/http"));

    deploy("h2");
    let url = format!("http://{}/h2", node.http);
    let h2 = || {
        let output = Command::new("curl")
            .args(["-s", "--http2-prior-knowledge", "-o", "/dev/null", "-w", "%{http_code}", &url])
            .output();
        String::from_utf8_lossy(&output.expect("curl").stdout).into_owned()
    };
    assert_eq!(until_refused("HTTP/2", is_429, h2), 3);

    for (name, at) in [("coap", node.coap), ("tiny-coap", node.platform("tinyfaas coap"))] {
        deploy(name);
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), vec![b'x'; 5_000]).expect("written");
        // A transfer in blocks of 64 bytes is one call.
        let call = || {
            let output = Command::new(coap_client().expect("libcoap"))
                .args(["-m", "post", "-B", "20", "-b", "64", "-f"])
                .arg(file.path())
                .arg(format!("coap://{at}/{name}"))
                .output()
                .expect("coap-client");
            let text = [output.stdout, output.stderr].concat();
            String::from_utf8_lossy(&text).into_owned()
        };
        let refused = |text: &str| {
            assert!(text.contains("4.29") || text.contains("read 5000"), "{name}: {text}");
            text.contains("4.29")
        };
        assert_eq!(until_refused(name, refused, call), 3, "{name}");
        assert_eq!(described(&node, name)["requests"]["total"], 3);
    }
}

#[test]
fn each_caller_has_a_rate_of_its_own() {
    let node = Node::start();
    let limits = "rate = \"1/h\"\nburst = 7\ncaller_rate = \"1/h\"\ncaller_burst = 2";
    let with_key = format!("{}[access]\nmode = \"key\"\n", manifest(limits));
    node.deploy_ok("meter", &[("app.py", CODE), ("mote.toml", &with_key)]);
    let keys: Vec<String> = (0..4)
        .map(|number| node.ok(&["key", "create", &format!("device-{number}")]).trim().to_owned())
        .collect();
    let call = |key: &str| node.call("GET", "/meter", &[("x-api-key", key)], b"");
    let accepted = |key: &str| (0..5).filter(|_| call(key).status == 200).count();
    // The last key finds the function's own rate used up.
    let counts: Vec<usize> = keys.iter().map(|key| accepted(key)).collect();
    assert_eq!(counts, [2, 2, 2, 1]);
    check_refusal(&call(&keys[0]));
    let seen = described(&node, "meter");
    assert_eq!(seen["limits"]["rate"], json!({"calls": 1, "period_ms": 3_600_000, "burst": 7}));
    assert_eq!(seen["limits"]["caller_rate"]["burst"], 2);
    let text = node.ok(&["describe", "meter"]);
    assert!(text.contains("1/h, burst 7") && text.contains("1/h, burst 2"), "{text}");
    // A caller that may not call the function uses up nothing. After a deploy with other rates,
    // counting starts again.
    let more = with_key.replace("burst = 7", "burst = 9").replace("burst = 2", "burst = 3");
    node.deploy_ok("meter", &[("app.py", CODE), ("mote.toml", &more)]);
    for _ in 0..20 {
        assert_eq!(node.get("/meter").status, 401);
    }
    assert_eq!(accepted(&keys[0]), 3);
}

#[test]
fn a_forged_address_uses_up_nothing() {
    if !is_root() {
        return skip("calls from another machine", "needs root");
    }
    let Some(far) = Far::new() else {
        return skip("calls from another machine", "cannot make a network namespace");
    };
    let node = Node::start_with(&["--lan", "--access", "public"]);
    let limits = manifest("caller_rate = \"1/h\"\ncaller_burst = 2");
    node.deploy_ok("meter", &[("app.py", CODE), ("mote.toml", &limits)]);
    let at = SocketAddr::from((far.near, node.coap.port()));
    // Sends what a client with a forged source could send. Such a client never sees the value that
    // it would have to repeat.
    for id in 0..5 {
        let code = far.run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
            socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            let message = [&[0x40, 1, 0, id, 0xb5][..], b"meter"].concat();
            socket.send_to(&message, at).expect("sent");
            let mut answer = [0; 128];
            socket.recv(&mut answer).expect("an answer");
            answer[1]
        });
        assert_eq!(code, 0x81, "4.01, with Echo");
    }
    assert_eq!(described(&node, "meter")["requests"]["total"], 0);
    // libcoap repeats the value, so its calls are accepted.
    let call = || {
        let output = Command::new(coap_client().expect("libcoap"))
            .args(["-m", "get", "-B", "20", &format!("coap://{at}/meter")])
            .output()
            .expect("coap-client");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let refused = |text: &str| text.contains("4.29");
    assert_eq!(until_refused("CoAP", refused, || far.run(call)), 2);
    assert_eq!(described(&node, "meter")["requests"]["total"], 2);
}

#[test]
fn calls_inside_of_the_node_are_not_counted() {
    let node = Node::start();
    let limits = format!("{}[[trigger]]\nevery = \"1s\"\n", manifest("rate = \"1/h\""));
    node.deploy_ok("meter", &[("app.py", CODE), ("mote.toml", &limits)]);
    let calls = "def handle(event, ctx):\n    return ctx.call('meter', b'abc').body\n";
    let allowed = "version = 1\n[allow]\nfunctions = [\"meter\"]\n";
    node.deploy_ok("calls", &[("app.py", calls), ("mote.toml", allowed)]);
    assert_eq!(node.get("/meter").text(), "read 0");
    for _ in 0..5 {
        assert_eq!(node.get("/calls").text(), "read 3");
        assert_eq!(node.ok(&["invoke", "meter"]), "read 0");
    }
    wait_for("two runs of the schedule", || {
        let total = described(&node, "meter")["requests"]["total"].as_u64();
        total.is_some_and(|total| total >= 13).then_some(())
    });
    check_refusal(&node.get("/meter"));
}

#[test]
fn tokens_come_back() {
    let node = Node::start();
    let limits = manifest("rate = \"20/s\"\nburst = 1");
    node.deploy_ok("meter", &[("app.py", CODE), ("mote.toml", &limits)]);
    let mut accepted = 0;
    let mut refused = 0;
    while accepted < 10 || refused == 0 {
        match node.get("/meter").status {
            200 => accepted += 1,
            429 => refused += 1,
            other => panic!("{other}"),
        }
        assert!(accepted + refused < 1_000_000, "{accepted} accepted, {refused} refused");
    }
}
