//! MQTT triggers with a real Mosquitto broker.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use mote_tests::mqtt::{self, Broker, Relay, Subscriber};
use mote_tests::{Node, skip, wait_for};

/// Answers with what it saw.
const ECHO: &str = "
def handle(event, ctx):
    qos = event.headers['mqtt-qos']
    return f'{event.trigger} {event.method} {event.path} {qos} {event.text}'
";

macro_rules! needs_mosquitto {
    () => {
        if !mqtt::is_there() {
            return skip("MQTT", "mosquitto and its clients are not installed");
        }
    };
}

/// Deploys a Python function with triggers at a broker.
fn deploy(node: &Node, name: &str, code: &str, triggers: &str) {
    let manifest = format!("version = 1\n{triggers}");
    node.deploy_ok(name, &[("mote.toml", &manifest), ("app.py", code)]);
}

/// The triggers of a function.
fn triggers(node: &Node, name: &str) -> Vec<serde_json::Value> {
    let function = node.json(&["--output", "json", "describe", name]);
    function["mqtt"].as_array().cloned().unwrap_or_default()
}

fn wait_for_state(node: &Node, name: &str, state: &str) -> serde_json::Value {
    wait_for(&format!("{name} to be {state}"), || {
        let all = triggers(node, name);
        all.iter().all(|one| one["state"] == state).then(|| all[0].clone())
    })
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

/// Returns the last words of messages, sorted as numbers.
fn last_numbers(lines: &[String]) -> Vec<u32> {
    let word = |line: &String| line.rsplit(' ').next().and_then(|word| word.parse().ok());
    let mut all: Vec<u32> = lines.iter().filter_map(word).collect();
    all.sort_unstable();
    all
}

#[test]
fn every_quality_of_service_of_both_versions() {
    needs_mosquitto!();
    let broker = Broker::start();
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    let mut all = String::new();
    for version in ["3.1.1", "5"] {
        for qos in 0..3 {
            all += &format!(
                "[[trigger]]\nmqtt = \"in/{version}/{qos}/+\"\nversion = \"{version}\"\n\
                 qos = {qos}\nreply = \"out/{{1}}\"\n"
            );
        }
    }
    deploy(&node, "echo", ECHO, &all);
    wait_for_state(&node, "echo", "subscribed");
    let answers = broker.subscribe("out/#");
    for version in ["3.1.1", "5"] {
        for qos in 0..3 {
            let topic = format!("in/{version}/{qos}/{version}-{qos}");
            broker.publish(&topic, qos, &["hello".to_owned()]);
        }
    }
    let mut found = answers.wait(6);
    found.sort();
    let mut expected = Vec::new();
    for version in ["3.1.1", "5"] {
        for qos in 0..3 {
            let id = format!("{version}-{qos}");
            expected.push(format!("out/{id} mqtt POST /in/{version}/{qos}/{id} {qos} hello"));
        }
    }
    assert_eq!(found, expected);
    // A message with a higher QoS than the subscription arrives with the QoS of the subscription.
    broker.publish("in/5/1/low", 2, &["x".to_owned()]);
    assert_eq!(answers.wait(7)[6], "out/low mqtt POST /in/5/1/low 1 x");
    wait_for("all to be counted", || {
        let done: u64 = triggers(&node, "echo").iter().filter_map(|one| one["done"].as_u64()).sum();
        (done == 7).then_some(())
    });
}

#[test]
fn a_response_topic_receives_the_answer_with_its_correlation_data() {
    needs_mosquitto!();
    let broker = Broker::start();
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    let code = "
def handle(event, ctx):
    names = ('mqtt-topic', 'content-type', 'mqtt-user-place', 'mqtt-correlation-data')
    status = 404 if event.text == 'unknown' else 200
    return ' '.join(event.headers.get(name, '-') for name in names), status
";
    deploy(&node, "rpc", code, "[[trigger]]\nmqtt = \"rpc/+\"\n");
    wait_for_state(&node, "rpc", "subscribed");
    let ask = |text: &str| {
        let output = Command::new("mosquitto_rr")
            .args(["-h", "127.0.0.1", "-p", &broker.port.to_string(), "-V", "5", "-W", "30"])
            .args(["-t", "rpc/k ö", "-e", "me/answers", "-q", "1", "-m", text])
            .args(["-D", "publish", "correlation-data", "abc"])
            .args(["-D", "publish", "content-type", "text/x"])
            .args(["-D", "publish", "user-property", "Place", "attic"])
            .args(["-F", "%D %p %P"])
            .output()
            .expect("mosquitto_rr");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    assert_eq!(ask("hello"), "abc rpc/k %C3%B6 text/x attic YWJj status:200");
    assert_eq!(ask("unknown"), "abc rpc/k %C3%B6 text/x attic YWJj status:404");
    // An invalid response topic must not end the connection.
    let before = broker.log().matches("Protocol error").count();
    broker.publish_with(&["-V", "5", "-t", "rpc/x", "-q", "1", "-m", "y"], &[]);
    assert_eq!(ask("again"), "abc rpc/k %C3%B6 text/x attic YWJj status:200");
    assert_eq!(broker.log().matches("Protocol error").count(), before);
}

#[test]
fn a_shared_subscription_shares_its_messages() {
    needs_mosquitto!();
    let broker = Broker::start();
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    let answers = broker.subscribe("out/#");
    for name in ["one", "two"] {
        let trigger =
            format!("[[trigger]]\nmqtt = \"$share/g/in/+\"\nreply = \"out/{name}/{{1}}\"\n");
        deploy(&node, name, ECHO, &trigger);
        wait_for_state(&node, name, "subscribed");
    }
    broker.publish("in/a", 1, &numbers(0..40));
    let found = answers.wait(40);
    assert_eq!(last_numbers(&found), (0..40).collect::<Vec<_>>());
    for name in ["one", "two"] {
        assert!(found.iter().any(|line| line.starts_with(&format!("out/{name}/"))), "{name}");
    }
}

#[test]
fn messages_of_one_topic_run_in_their_order() {
    needs_mosquitto!();
    let broker = Broker::start();
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    let code = "
import asyncio, random

async def handle(event, ctx):
    await asyncio.sleep(random.random() / 100)
    return event.text
";
    deploy(&node, "slow", code, "[[trigger]]\nmqtt = \"in/+\"\nreply = \"out/{1}\"\n");
    wait_for_state(&node, "slow", "subscribed");
    let answers = broker.subscribe("out/#");
    std::thread::scope(|scope| {
        for topic in ["in/a", "in/b", "in/c"] {
            let broker = &broker;
            scope.spawn(move || broker.publish(topic, 1, &numbers(0..50)));
        }
    });
    let mut by_topic: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in answers.wait(150) {
        let (topic, number) = line.split_once(' ').expect("topic and payload");
        by_topic.entry(topic.to_owned()).or_default().push(number.to_owned());
    }
    assert_eq!(by_topic.len(), 3);
    for (topic, found) in by_topic {
        assert_eq!(found, numbers(0..50), "{topic}");
    }
}

#[test]
fn a_poisoned_message_does_not_block_those_after_it() {
    needs_mosquitto!();
    let broker = Broker::start();
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    let code = "
def handle(event, ctx):
    if event.text == 'bad':
        raise ValueError('poison')
    return event.text
";
    deploy(&node, "picky", code, "[[trigger]]\nmqtt = \"in/+\"\nreply = \"out/{1}\"\n");
    wait_for_state(&node, "picky", "subscribed");
    let answers = broker.subscribe("out/#");
    let lines = ["1", "bad", "2"].map(str::to_owned);
    broker.publish("in/a", 1, &lines);
    assert_eq!(answers.wait(2), ["out/a 1", "out/a 2"]);
    let trigger = triggers(&node, "picky")[0].clone();
    assert_eq!((&trigger["given_up"], &trigger["done"]), (&1.into(), &2.into()), "{trigger}");
    let log = node.ok(&["logs", "picky"]);
    assert!(log.contains("[M1205] a message of in/a is given up after 5 attempts"), "{log}");
    assert_eq!(log.matches("ValueError: poison").count(), 5, "{log}");
}

#[test]
fn messages_beyond_the_limit_wait_at_the_broker_and_a_full_function_delays_them() {
    needs_mosquitto!();
    let broker = Broker::start();
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    // Answers 503 to the first call for each message, and reports how many calls ran at once.
    let code = "
import asyncio
running, most, seen = 0, 0, set()

async def handle(event, ctx):
    global running, most
    running += 1
    most = max(most, running)
    await asyncio.sleep(0.005)
    running -= 1
    if event.text not in seen:
        seen.add(event.text)
        return '', 503
    return f'{most} {event.text}'
";
    for version in ["3.1.1", "5"] {
        let trigger = format!(
            "[[trigger]]\nmqtt = \"in/{version}\"\nversion = \"{version}\"\ninflight = 4\n\
             order = \"none\"\nreply = \"out\"\n[scale]\nmax = 1\n"
        );
        let name = format!("full-{}", &version[..1]);
        deploy(&node, &name, code, &trigger);
        wait_for_state(&node, &name, "subscribed");
        let answers = broker.subscribe("out");
        broker.publish(&format!("in/{version}"), 1, &numbers(0..40));
        let found = answers.wait(40);
        assert_eq!(last_numbers(&found), (0..40).collect::<Vec<_>>());
        let most =
            found.iter().filter_map(|line| line.split(' ').nth(1)?.parse::<u32>().ok()).max();
        assert!(most.is_some_and(|most| (2..=4).contains(&most)), "{version}: {most:?} at once");
    }
}

#[test]
fn a_message_that_is_too_large_is_given_up() {
    needs_mosquitto!();
    let broker = Broker::start();
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    let trigger =
        "[limits]\nbody = \"1KiB\"\n[[trigger]]\nmqtt = \"in\"\nqos = 2\nreply = \"out\"\n";
    deploy(&node, "small", "def handle(event, ctx): return event.text", trigger);
    wait_for_state(&node, "small", "subscribed");
    let answers = broker.subscribe("out");
    // One line is longer than the limit, one is so long that it is not even collected, and one
    // fits.
    let lines = ["x".repeat(2_000), "y".repeat(300_000), "z".to_owned()];
    broker.publish("in", 2, &lines);
    assert_eq!(answers.wait(1), ["out z"]);
    let trigger = triggers(&node, "small")[0].clone();
    assert_eq!((&trigger["given_up"], &trigger["running"]), (&2.into(), &0.into()), "{trigger}");
}

#[test]
fn nothing_is_lost_when_broker_or_node_ends() {
    needs_mosquitto!();
    let mut broker = Broker::start();
    let relay = Relay::start(broker.port);
    let url = format!("mqtt://{}", relay.address);
    let mut node = Node::start_with(&["--mqtt-broker", &url]);
    let code = "
import asyncio

async def handle(event, ctx):
    await asyncio.sleep(0.01)
    return event.text
";
    let mut all = String::new();
    for (version, qos) in [("3.1.1", 1), ("3.1.1", 2), ("5", 1), ("5", 2)] {
        all += &format!(
            "[[trigger]]\nmqtt = \"in/{version}/{qos}\"\nversion = \"{version}\"\nqos = {qos}\n\
             reply = \"out/{version}/{qos}\"\n"
        );
    }
    deploy(&node, "keep", code, &all);
    wait_for_state(&node, "keep", "subscribed");
    let ids: Vec<_> = triggers(&node, "keep").iter().map(|one| one["client_id"].clone()).collect();
    let answers =
        Subscriber::start(broker.port, &["-t", "out/#", "-q", "1", "-c", "-i", "answers"]);
    let publish = |broker: &Broker, range: std::ops::Range<u32>| {
        for topic in ["in/3.1.1/1", "in/3.1.1/2", "in/5/1", "in/5/2"] {
            broker.publish(topic, 2, &numbers(range.clone()));
        }
    };
    let complete = |end: u32| {
        wait_for(&format!("the answers to {end} messages of each topic"), || {
            let mut by_topic: BTreeMap<String, Vec<u32>> = BTreeMap::new();
            for line in answers.all() {
                let (topic, number) = line.split_once(' ').expect("topic and payload");
                by_topic
                    .entry(topic.to_owned())
                    .or_default()
                    .push(number.parse().expect("a number"));
            }
            for found in by_topic.values_mut() {
                found.sort_unstable();
                found.dedup();
            }
            let expected: Vec<u32> = (0..end).collect();
            (by_topic.len() == 4 && by_topic.values().all(|found| *found == expected)).then_some(())
        });
    };
    // Cuts the network.
    publish(&broker, 0..50);
    relay.cut();
    complete(50);
    // Ends the broker while messages are unacknowledged.
    publish(&broker, 50..100);
    broker.stop();
    let failing = wait_for_state(&node, "keep", "failing");
    assert_eq!(failing["code"], "M1201", "{failing}");
    broker.start_again();
    complete(100);
    // Kills the node, and publishes messages while it is off.
    publish(&broker, 100..150);
    node = node.crash_and_restart();
    publish(&broker, 150..200);
    complete(200);
    // Deploys again, and restarts the node in good order.
    publish(&broker, 200..250);
    deploy(&node, "keep", &format!("{code}\n# changed\n"), &all);
    let known: Vec<_> =
        triggers(&node, "keep").iter().map(|one| one["client_id"].clone()).collect();
    assert_eq!(known, ids, "the sessions stay");
    node = node.stop_and_restart();
    publish(&broker, 250..300);
    complete(300);
    drop(node);
}

#[test]
fn a_message_with_qos_2_has_one_effect_over_a_cut() {
    needs_mosquitto!();
    let broker = Broker::start();
    let relay = Relay::start(broker.port);
    let node = Node::start_with(&["--mqtt-broker", &format!("mqtt://{}", relay.address)]);
    let code = "
import asyncio
calls = {}

async def handle(event, ctx):
    calls[event.text] = calls.get(event.text, 0) + 1
    await asyncio.sleep(0.02)
    return f'{event.text} {calls[event.text]}'
";
    let trigger = "[[trigger]]\nmqtt = \"in\"\nqos = 2\norder = \"none\"\nreply = \"out\"\n[scale]\nmax = 1\n";
    deploy(&node, "once", code, trigger);
    wait_for_state(&node, "once", "subscribed");
    let answers = broker.subscribe("out");
    for round in 0..5 {
        broker.publish("in", 2, &numbers(round * 20..round * 20 + 20));
        relay.cut();
    }
    let complete = || {
        let mut all = answers.all();
        all.sort();
        all.dedup();
        (all.len() >= 100).then_some(all)
    };
    let all = wait_for("all answers", complete);
    assert!(all.iter().all(|line| line.ends_with(" 1")), "a message ran twice: {all:?}");
}

#[test]
fn wrong_credentials_and_forbidden_topics_are_named() {
    needs_mosquitto!();
    let lines = "allow_anonymous false\npassword_file DIR/passwords\nacl_file DIR/acl\n";
    let broker = Broker::start_with(lines, |folder| {
        let made = Command::new("mosquitto_passwd")
            .args(["-b", "-c", "passwords", "thermo", "right"])
            .current_dir(folder)
            .status();
        assert!(made.expect("mosquitto_passwd").success());
        let acl = "user thermo\ntopic in/#\n";
        std::fs::write(folder.join("acl"), acl).expect("a file");
    });
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    let trigger = |filter: &str, version: &str| {
        format!(
            "[[trigger]]\nmqtt = \"{filter}\"\nversion = \"{version}\"\nusername = \"thermo\"\n\
             password = {{ secret = \"mqtt-password\" }}\n"
        )
    };
    let manifest = format!("version = 1\n{}", trigger("in/+", "5"));
    let refused = node.deploy("locked", &[("mote.toml", &manifest), ("app.py", ECHO)]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("error[M0414]") && text.contains("mqtt-password"), "{text}");
    node.mote_with_input(&["secret", "set", "mqtt-password"], b"wrong\n");
    for version in ["3.1.1", "5"] {
        deploy(&node, "locked", ECHO, &trigger("in/+", version));
        let failing = wait_for_state(&node, "locked", "failing");
        assert_eq!(failing["code"], "M1202", "{failing}");
        let described = node.ok(&["describe", "locked"]);
        assert!(described.contains("M1202 the broker refused the connection"), "{described}");
        assert!(node.ok(&["logs", "locked"]).contains("[M1202] mqtt trigger in/+"));
    }
    node.mote_with_input(&["secret", "set", "mqtt-password"], b"right\n");
    wait_for_state(&node, "locked", "subscribed");
}

#[test]
fn a_refused_subscription_is_named() {
    needs_mosquitto!();
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib"];
    let plugin = folders.map(|folder| format!("{folder}/mosquitto_dynamic_security.so"));
    let Some(plugin) = plugin.iter().find(|path| Path::new(path).exists()) else {
        return skip("a_refused_subscription_is_named", "mosquitto has no plugin for rights here");
    };
    let lines =
        format!("allow_anonymous true\nplugin {plugin}\nplugin_opt_config_file DIR/rights.json\n");
    let broker = Broker::start_with(&lines, |folder| {
        let rights = r#"{"defaultACLAccess": {"publishClientSend": true,
            "publishClientReceive": true, "subscribe": false, "unsubscribe": true}}"#;
        std::fs::write(folder.join("rights.json"), rights).expect("a file");
    });
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    for version in ["3.1.1", "5"] {
        let trigger = format!("[[trigger]]\nmqtt = \"in\"\nversion = \"{version}\"\n");
        deploy(&node, "other", ECHO, &trigger);
        let failing = wait_for_state(&node, "other", "failing");
        assert_eq!(failing["code"], "M1203", "{failing}");
    }
    assert!(node.ok(&["logs", "other"]).contains("the broker refused the subscription"));
}

const AUTHORITY: &str = r"
set -e
key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
openssl req -x509 $key -keyout ca.key -out ca.pem -days 2 -subj /CN=authority
openssl req -x509 $key -keyout other.key -out other.pem -days 2 -subj /CN=other
printf 'subjectAltName=IP:127.0.0.1' > names
for name in server client; do
  openssl req $key -keyout $name.key -out $name.csr -subj /CN=$name
  openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out $name.pem -extfile names
done";

fn authority(folder: &Path) -> bool {
    let made = Command::new("sh").args(["-c", AUTHORITY]).current_dir(folder).output();
    made.is_ok_and(|made| made.status.success())
}

#[test]
fn tls_with_a_client_certificate() {
    needs_mosquitto!();
    let certificates = tempfile::tempdir().expect("a folder");
    if !authority(certificates.path()) {
        return skip("tls_with_a_client_certificate", "openssl makes no certificates here");
    }
    let from = certificates.path().display();
    let lines = format!(
        "allow_anonymous true\ncafile {from}/ca.pem\ncertfile {from}/server.pem\n\
         keyfile {from}/server.key\nrequire_certificate true\n"
    );
    let broker = Broker::start_with(&lines, |_| ());
    let node = Node::start();
    for (name, file) in
        [("ca", "ca.pem"), ("other", "other.pem"), ("cert", "client.pem"), ("key", "client.key")]
    {
        let text = std::fs::read(certificates.path().join(file)).expect("a file");
        assert!(node.mote_with_input(&["secret", "set", name], &text).status.success());
    }
    let trigger = |more: &str| {
        format!(
            "[[trigger]]\nmqtt = \"in\"\nbroker = \"mqtts://127.0.0.1:{}\"\nreply = \"out\"\n{more}",
            broker.port
        )
    };
    let client = "certificate = { secret = \"cert\" }\nkey = { secret = \"key\" }\n";
    deploy(&node, "safe", ECHO, &trigger(&format!("ca = {{ secret = \"other\" }}\n{client}")));
    let failing = wait_for_state(&node, "safe", "failing");
    assert_eq!(failing["code"], "M1204", "{failing}");
    deploy(&node, "safe", ECHO, &trigger("ca = { secret = \"ca\" }\n"));
    let failing = wait_for("another problem", || {
        let found = triggers(&node, "safe")[0].clone();
        (found["state"] == "failing" && found["message"] != failing["message"]).then_some(found)
    });
    assert_eq!(failing["code"], "M1204", "{failing}");
    deploy(&node, "safe", ECHO, &trigger(&format!("ca = {{ secret = \"ca\" }}\n{client}")));
    wait_for_state(&node, "safe", "subscribed");
    let tls = |name: &str| certificates.path().join(name).display().to_string();
    let ca = tls("ca.pem");
    let cert = tls("client.pem");
    let key = tls("client.key");
    let tls = ["--cafile", &ca, "--cert", &cert, "--key", &key];
    let answers = Subscriber::start(broker.port, &[&["-t", "out"], &tls[..]].concat());
    broker.publish_with(&[&["-t", "in", "-q", "1", "-m", "hello"], &tls[..]].concat(), &[]);
    assert_eq!(answers.wait(1), ["out mqtt POST /in 1 hello"]);
}

#[test]
fn removal_ends_the_session() {
    needs_mosquitto!();
    let broker = Broker::start();
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    let clients = broker.subscribe("$SYS/broker/clients/total");
    let total = |count: &str| {
        let line = format!("$SYS/broker/clients/total {count}");
        wait_for(&line, || (clients.all().last() == Some(&line)).then_some(()));
    };
    total("1");
    for version in ["3.1.1", "5"] {
        let trigger = format!("[[trigger]]\nmqtt = \"in\"\nversion = \"{version}\"\n");
        deploy(&node, "gone", ECHO, &trigger);
        wait_for_state(&node, "gone", "subscribed");
        total("2");
        // Another filter means another session.
        deploy(&node, "gone", ECHO, &trigger.replace("\"in\"", "\"in/+\""));
        wait_for_state(&node, "gone", "subscribed");
        total("2");
        node.ok(&["remove", "gone", "--yes"]);
        total("1");
    }
}

#[test]
fn stored_messages_survive_a_crash_and_a_poisoned_one_is_set_aside() {
    needs_mosquitto!();
    let broker = Broker::start();
    let effects = mqtt::Effects::start();
    let mut node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    let code = effects.code()
        + "
import time

def handle(event, ctx):
    if event.text == 'bad':
        raise ValueError('poison')
    time.sleep(0.005)
    effect(f'{event.trigger} {event.path} {event.text}')
";
    let mut all = effects.allow();
    for version in ["3.1.1", "5"] {
        all += &format!(
            "[[trigger]]\nmqtt = \"in/{version}\"\nversion = \"{version}\"\nqos = 2\n\
             acknowledge = \"stored\"\n"
        );
    }
    deploy(&node, "later", &code, &all);
    wait_for_state(&node, "later", "subscribed");
    let first = numbers(0..100);
    let second = numbers(100..200);
    for version in ["3.1.1", "5"] {
        broker.publish(&format!("in/{version}"), 2, &first);
    }
    wait_for("some effects", || (effects.all().len() > 10).then_some(()));
    // Most messages are acknowledged but have not run yet.
    node = node.crash_and_restart();
    for version in ["3.1.1", "5"] {
        let topic = format!("in/{version}");
        broker.publish(&topic, 2, &["bad".to_owned()]);
        broker.publish(&topic, 2, &second);
    }
    for version in ["3.1.1", "5"] {
        let expected: Vec<String> =
            (0..200).map(|number| format!("mqtt /in/{version} {number}")).collect();
        wait_for("all effects, in their order", || {
            let all = effects.all();
            let mut own: Vec<_> =
                all.into_iter().filter(|line| line.contains(&format!("/{version} "))).collect();
            // The message that was running at the kill ran again. So did those that were stored but
            // not yet acknowledged, because the broker sent them again, in their order.
            let mut seen = std::collections::HashSet::new();
            own.retain(|line| seen.insert(line.clone()));
            (own == expected).then_some(())
        });
    }
    let all = triggers(&node, "later");
    assert!(all.iter().all(|one| one["given_up"] == 0), "{all:?}");
}

#[test]
fn a_burst_of_messages_is_not_left_in_a_buffer() {
    needs_mosquitto!();
    let broker = Broker::start();
    let node = Node::start_with(&["--mqtt-broker", &broker.url()]);
    let trigger =
        "[[trigger]]\nmqtt = \"in\"\norder = \"none\"\ninflight = 1000\nreply = \"out\"\n";
    deploy(&node, "burst", "async def handle(event, ctx): return event.text", trigger);
    wait_for_state(&node, "burst", "subscribed");
    let answers = broker.subscribe("out");
    let began = std::time::Instant::now();
    for round in 1..=10 {
        broker.publish("in", 1, &numbers(0..100));
        answers.wait(round * 100);
    }
    // A message that was left in a buffer would arrive only after half a minute of silence.
    assert!(began.elapsed().as_secs() < 25, "{:?}", began.elapsed());
}

#[test]
fn a_silent_broker_does_not_delay_the_stop() {
    // The kernel accepts the connection, but nobody answers on it.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let url = format!("mqtt://{}", silent.local_addr().expect("bound"));
    let node = Node::start_with(&["--mqtt-broker", &url]);
    deploy(&node, "echo", ECHO, "[[trigger]]\nmqtt = \"in\"\n");
    assert_eq!(triggers(&node, "echo")[0]["state"], "connecting");
    let (_connection, _) = silent.accept().expect("the node connects");
    let began = std::time::Instant::now();
    assert!(node.stop().success());
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
}

#[test]
fn a_broker_that_cannot_be_reached_is_logged_once_a_minute() {
    let closing = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let url = format!("mqtt://{}", closing.local_addr().expect("bound"));
    let node = Node::start_with(&["--mqtt-broker", &url]);
    deploy(&node, "echo", ECHO, "[[trigger]]\nmqtt = \"in\"\n");
    let mut times = Vec::new();
    for _ in 0..5 {
        drop(closing.accept().expect("another attempt"));
        times.push(std::time::Instant::now());
    }
    let pauses: Vec<_> = times.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses.windows(2).all(|two| two[1] > two[0]), "growing pauses: {pauses:?}");
    let failing = wait_for_state(&node, "echo", "failing");
    assert_eq!(failing["code"], "M1201", "{failing}");
    let log = node.ok(&["logs", "echo"]);
    assert_eq!(log.matches("[M1201]").count(), 1, "{log}");
}
