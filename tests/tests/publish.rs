//! Functions that publish messages, and results that go to a topic, with a real Mosquitto broker.

use mote_tests::mqtt::{self, Broker, Relay, Subscriber};
use mote_tests::{Node, free_address, skip, wait_for};

macro_rules! needs_mosquitto {
    () => {
        if !mqtt::is_there() {
            return skip("MQTT", "mosquitto and its clients are not installed");
        }
    };
}

/// Publishes what the body describes. Answers with `published`, or with the error's code and text.
const PYTHON: &str = "
import json

def handle(event, ctx):
    wish = json.loads(event.body)
    try:
        ctx.publish(wish.pop('topic'), wish.pop('body', None), **wish)
    except Exception as error:
        return f'{getattr(error, \"code\", \"?\")} {error}'
    return 'published'
";

const NODE: &str = "
export default async function (event, ctx) {
  const { topic, body, ...options } = await event.json();
  try {
    await ctx.publish(topic, body, options);
  } catch (error) {
    return `${error.code} ${error.message}`;
  }
  return 'published';
}
";

const ALLOW: &str = "version = 1\n[allow]\nmqtt = [\"out/#\", \"one/+/two\"]\n";

fn ask(node: &Node, name: &str, wish: &serde_json::Value) -> String {
    node.post(&format!("/{name}"), wish.to_string().as_bytes()).text()
}

#[test]
fn functions_publish_with_every_quality_of_service() {
    needs_mosquitto!();
    let broker = Broker::start();
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    let old = format!("{ALLOW}[mqtt]\nversion = \"3.1.1\"\n");
    node.deploy_ok("py", &[("mote.toml", ALLOW), ("app.py", PYTHON)]);
    node.deploy_ok("old", &[("mote.toml", &old), ("app.py", PYTHON)]);
    node.deploy_ok("js", &[("mote.toml", ALLOW), ("app.mjs", NODE)]);
    let all = Subscriber::start(broker.port, &["-t", "#", "-q", "2"]);
    let mut expected = Vec::new();
    for name in ["py", "old", "js"] {
        for qos in 0..3 {
            let wish = serde_json::json!({
                "topic": format!("out/{name}/{qos}"), "body": "hello", "qos": qos,
            });
            assert_eq!(ask(&node, name, &wish), "published", "{wish}");
            expected.push(format!("out/{name}/{qos} hello"));
        }
    }
    // A body that is not text becomes JSON.
    let wish = serde_json::json!({ "topic": "one/ü 1/two", "body": { "a": 1 }, "retain": true });
    assert_eq!(ask(&node, "py", &wish), "published");
    expected.push("one/ü 1/two {\"a\":1}".to_owned());
    let mut found = all.wait(expected.len());
    // Mosquitto passes a message with QoS 2 on after its exchange is complete.
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    let kept = broker.subscribe("one/#");
    assert_eq!(kept.wait(1), ["one/ü 1/two {\"a\":1}"], "kept for later subscribers");
}

#[test]
fn properties_arrive() {
    needs_mosquitto!();
    let broker = Broker::start();
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    node.deploy_ok("py", &[("mote.toml", ALLOW), ("app.py", PYTHON)]);
    node.deploy_ok("js", &[("mote.toml", ALLOW), ("app.mjs", NODE)]);
    let format = "OUT %C|%R|%D|%P|%p";
    let all = Subscriber::start(broker.port, &["-V", "5", "-t", "out", "-q", "1", "-F", format]);
    let wish = serde_json::json!({
        "topic": "out", "body": "x", "content_type": "a/b", "response_topic": "back",
        "correlation": "c1", "user": { "k": "v" },
    });
    assert_eq!(ask(&node, "py", &wish), "published");
    let wish = serde_json::json!({
        "topic": "out", "body": "x", "contentType": "a/b", "responseTopic": "back",
        "correlation": "c1", "user": { "k": "v" },
    });
    assert_eq!(ask(&node, "js", &wish), "published");
    assert_eq!(all.wait(2), ["a/b|back|c1|k:v|x"; 2]);
}

#[test]
fn only_topics_of_the_manifest_are_published() {
    needs_mosquitto!();
    let broker = Broker::start();
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    node.deploy_ok("py", &[("mote.toml", ALLOW), ("app.py", PYTHON)]);
    node.deploy_ok(
        "all",
        &[("mote.toml", "version = 1\n[allow]\nmqtt = [\"#\"]\n"), ("app.py", PYTHON)],
    );
    node.deploy_ok("none", &[("app.py", PYTHON)]);
    let everything = Subscriber::start(broker.port, &["-t", "#", "-t", "$SYS/x/#", "-q", "1"]);
    let wish = |topic: &str| serde_json::json!({ "topic": topic, "body": "x" });
    for (name, topic, code) in [
        ("none", "out/a", "denied"),
        ("py", "outside", "denied"),
        ("py", "one/two", "denied"),
        ("py", "/out", "denied"),
        ("py", "out/#", "invalid"),
        ("py", "one/+/two", "invalid"),
        ("py", "", "invalid"),
        ("py", "out/a\u{0}b", "invalid"),
        ("all", "$SYS/x/y", "invalid"),
        ("all", "$share/g/out", "invalid"),
        ("all", &"a".repeat(1_025), "invalid"),
    ] {
        let answer = ask(&node, name, &wish(topic));
        assert!(answer.starts_with(code), "{name} {topic:?}: {answer}");
    }
    let large = serde_json::json!({ "topic": "out/a", "body": "x".repeat((960 << 10) + 1) });
    assert!(ask(&node, "py", &large).starts_with("invalid"));
    assert_eq!(ask(&node, "all", &wish("last")), "published");
    assert_eq!(everything.wait(1), ["last x"]);
}

#[test]
fn a_broker_that_refuses_or_is_away_is_an_error() {
    needs_mosquitto!();
    let broker = Broker::start_with("allow_anonymous true\nacl_file DIR/acl\n", |dir| {
        std::fs::write(dir.join("acl"), "topic write out/good\ntopic read #\n").expect("a file")
    });
    let address = free_address();
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    let away =
        format!("{ALLOW}[mqtt]\nbroker = \"mqtt://{address}\"\n[limits]\ntimeout = \"60s\"\n");
    node.deploy_ok("py", &[("mote.toml", ALLOW), ("app.py", PYTHON)]);
    node.deploy_ok("away", &[("mote.toml", &away), ("app.py", PYTHON)]);
    let wish = |topic: &str| serde_json::json!({ "topic": topic, "body": "x" });
    assert_eq!(ask(&node, "py", &wish("out/good")), "published");
    let refused = ask(&node, "py", &wish("out/bad"));
    assert_eq!(refused, "denied the broker refused the message: not authorized");
    let failed = ask(&node, "away", &wish("out/good"));
    assert!(failed.starts_with(&format!("unavailable mqtt://{address}: ")), "{failed}");
    assert!(failed.contains("cannot be reached"), "{failed}");
}

#[test]
fn messages_survive_cuts_of_the_network() {
    needs_mosquitto!();
    let broker = Broker::start();
    let relay = Relay::start(broker.port);
    let node = Node::start_with(&["--mqtt-broker", &format!("mqtt://{}", relay.address)]);
    let code = "
async def handle(event, ctx):
    for number in range(int(event.text), int(event.text) + 100):
        await ctx.publish('out/x', str(number), qos=2)
    return 'done'
";
    node.deploy_ok("many", &[("mote.toml", ALLOW), ("app.py", code)]);
    let all = Subscriber::start(broker.port, &["-t", "out/x", "-q", "2"]);
    for round in 0..5 {
        let text = (round * 100).to_string();
        let answer = std::thread::scope(|scope| {
            let asking = scope.spawn(|| node.post("/many", text.as_bytes()).text());
            all.wait(round * 100 + 20);
            relay.cut();
            asking.join().expect("an answer")
        });
        assert_eq!(answer, "done");
    }
    // With MQTT 5 the node's session survives the cuts, so no message arrives twice.
    let expected: Vec<_> = (0..500).map(|number| format!("out/x {number}")).collect();
    assert_eq!(all.wait(500), expected);
}

#[test]
fn results_go_to_a_topic() {
    needs_mosquitto!();
    let mut broker = Broker::start();
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    let code = "
def handle(event, ctx):
    if event.text == 'bad':
        raise ValueError('no')
    return event.text.upper()
";
    let manifest = "version = 1\n[async]\nattempts = 1\n\
         on_success = { topic = \"results/{function}\", qos = 2 }\n\
         on_failure = { topic = \"alerts/{function}\", retain = true }\n";
    node.deploy_ok("work", &[("mote.toml", manifest), ("app.py", code)]);
    let format = "OUT %t %P %p";
    let all = Subscriber::start(broker.port, &["-V", "5", "-t", "#", "-q", "2", "-F", format]);
    let accept = |body: &[u8]| {
        let answer = node.call("POST", "/work", &[("prefer", "respond-async")], body);
        assert_eq!(answer.status, 202, "{}", answer.text());
    };
    accept(b"good");
    let found = all.wait(1);
    assert!(found[0].starts_with("results/work mote-source:work "), "{found:?}");
    assert!(
        found[0].contains("mote-source-status:200") && found[0].ends_with(" GOOD"),
        "{found:?}"
    );
    accept(b"bad");
    let found = all.wait(2);
    assert!(found[1].starts_with("alerts/work "), "{found:?}");
    assert!(found[1].contains("mote-source-fault:") && found[1].ends_with(" bad"), "{found:?}");
    let kept = broker.subscribe("alerts/#");
    assert_eq!(kept.wait(1), ["alerts/work bad"]);
    drop((all, kept));

    // A result waits while the broker is off.
    let keeps = ["-t", "results/#", "-q", "1", "-c", "-i", "keeps"];
    drop(Subscriber::start(broker.port, &keeps));
    broker.stop();
    accept(b"later");
    broker.start_again();
    let all = Subscriber::start(broker.port, &keeps);
    assert_eq!(all.wait(1), ["results/work LATER"]);
}

#[test]
fn a_result_that_no_broker_takes_becomes_a_dead_letter() {
    needs_mosquitto!();
    let broker = Broker::start_with("allow_anonymous true\nacl_file DIR/acl\n", |dir| {
        std::fs::write(dir.join("acl"), "topic read #\n").expect("a file")
    });
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    let manifest = "version = 1\n[async]\non_success = { topic = \"results\" }\n";
    node.deploy_ok(
        "work",
        &[("mote.toml", manifest), ("app.py", "def handle(event, ctx): return 'x'")],
    );
    node.call("POST", "/work", &[("prefer", "respond-async")], b"");
    let listed = wait_for("the dead letter", || {
        let listed = node.json(&["--output", "json", "dead-letters", "list"]);
        listed["invocations"].as_array().is_some_and(|all| !all.is_empty()).then_some(listed)
    });
    assert!(listed.to_string().contains("not authorized"), "{listed}");
}

#[test]
fn mistakes_are_found_when_a_manifest_is_deployed() {
    let node = Node::start();
    for (lines, expected) in [
        ("[allow]\nmqtt = [\"a+\"]", "level of its own"),
        ("[allow]\nmqtt = [\"$SYS/#\"]", "belong to the broker"),
        ("[mqtt]\nbroker = \"tcp://x\"", "mqtt://HOST:PORT"),
        ("[async]\non_failure = { topic = \"a/#\" }", "no wildcards"),
        ("[async]\non_failure = { function = \"Not a name\" }", "not the name of a function"),
        ("[async]\non_failure = { url = \"http://a b\" }", "not a URL"),
    ] {
        let manifest = format!("version = 1\n{lines}\n");
        let files = [("mote.toml", &manifest[..]), ("app.py", "def handle(event, ctx): return ''")];
        let output = node.deploy("wrong", &files);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(expected), "{lines}: {text}");
    }
}

#[test]
fn recipients_that_do_not_work_yet_are_warned_of() {
    let node = Node::start();
    let manifest = "version = 1\n[async]\non_success = { function = \"next\" }\n\
                    on_failure = { url = \"http://10.0.0.1/x\" }\n";
    let files = [("mote.toml", manifest), ("app.py", "def handle(event, ctx): return ''")];
    let warnings = |name| {
        let output = node.deploy(name, &files);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let text = warnings("first");
    assert!(text.contains("async.on_success: this node has no function next yet"), "{text}");
    assert!(text.contains("10.0.0.1 is not a public address"), "{text}");
    assert!(!warnings("next").contains("no function next"), "it is its own recipient");
    assert!(!warnings("first").contains("no function next"));
}

#[test]
fn a_chain_ends_at_a_topic() {
    needs_mosquitto!();
    let broker = Broker::start();
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    let chain = "document: { dsl: '1.0.3', namespace: test, name: tell, version: '1.0.0' }\n\
        do:\n  \
        - fixed: { call: mqtt.publish, with: { topic: alarms/all, payload: '${ .text }' } }\n  \
        - made: { call: mqtt.publish, with: { topic: '${ \"alarms/\\(.id)\" }', qos: 2 } }\n";
    let file = node.dir.path().join("tell.yaml");
    std::fs::write(&file, chain).expect("write the chain");
    node.ok(&["deploy", file.to_str().expect("UTF-8")]);
    let all = Subscriber::start(broker.port, &["-t", "#", "-q", "2"]);
    let prefer = [("prefer", "respond-async")];
    let accepted = node.call("POST", "/tell", &prefer, br#"{"id": 7, "text": "hot"}"#);
    assert_eq!(accepted.status, 202);
    assert_eq!(all.wait(2), ["alarms/all hot", "alarms/7 {\"id\":7,\"text\":\"hot\"}"]);
    let wrong = node.post("/tell", br#"{"id": "+", "text": "x"}"#);
    assert_eq!((wrong.status, wrong.text().contains("topic")), (400, true), "{}", wrong.text());
    // A manifest says which topics the function may use.
    let folder = node.dir.path().join("bounded");
    std::fs::create_dir(&folder).expect("make the folder");
    std::fs::write(folder.join("tell.yaml"), chain).expect("write");
    let manifest =
        "version = 1\nname = \"bounded\"\nruntime = \"chain\"\n[allow]\nmqtt = [\"alarms/all\"]\n";
    std::fs::write(folder.join("mote.toml"), manifest).expect("write");
    node.ok(&["deploy", folder.to_str().expect("UTF-8")]);
    let denied = node.post("/bounded", br#"{"id": 7, "text": "x"}"#);
    assert_eq!((denied.status, denied.json()["instance"].clone()), (403, "/do/1/made".into()));
}
