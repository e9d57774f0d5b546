//! Many messages pass through Mosquitto while node, broker and network fail. None may be lost.
//!
//! The short form sends 500 messages for each case. `make test-mqtt` sends 10,000.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mote_tests::mqtt::{self, Broker, Effects, Relay};
use mote_tests::{Node, is_long, repository, skip};

/// Publishes `count` messages with QoS 1 or 2, each with its number as the idempotency key, and
/// retries when the broker fails. Ends when the broker has acknowledged all messages.
const PUBLISHER: &str = r#"
import sys, time
import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

port, count, topics = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
client = mqtt.Client(
    mqtt.CallbackAPIVersion.VERSION2, "publisher", protocol=mqtt.MQTTv5
)
client.reconnect_delay_set(0.05, 0.5)
client.max_queued_messages_set(0)
session = Properties(PacketTypes.CONNECT)
session.SessionExpiryInterval = 3600
client.connect("127.0.0.1", port, clean_start=False, properties=session)
client.loop_start()
sent = []
for number in range(count):
    for topic in topics:
        about = Properties(PacketTypes.PUBLISH)
        about.UserProperty = ("idempotency-key", f"{topic}-{number}")
        sent.append(client.publish(topic, str(number), int(topic[-1]), properties=about))
    if number % 20 == 19:
        # The failures of the test fall into the time of the messages.
        while sum(not one.is_published() for one in sent[-2000:]) > 200:
            time.sleep(0.005)
for one in sent:
    while not one.is_published():
        time.sleep(0.01)
client.disconnect()
client.loop_stop()
print("published", len(sent))
"#;

fn publisher(port: u16, count: usize, topics: &[String]) -> Child {
    Command::new(repository().join(".cache/test-venv/bin/python"))
        .args(["-c", PUBLISHER, &port.to_string(), &count.to_string()])
        .args(topics)
        .stdout(Stdio::piped())
        .spawn()
        .expect("python")
}

fn has_paho() -> bool {
    let python = repository().join(".cache/test-venv/bin/python");
    let asked =
        Command::new(python).args(["-c", "import paho.mqtt"]).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

#[test]
fn no_message_is_lost_while_node_broker_and_network_fail() {
    if !mqtt::is_there() || !has_paho() {
        return skip("MQTT", "mosquitto, its clients or paho-mqtt are not installed");
    }
    let (count, failures) = if is_long() { (10_000, 30) } else { (500, 4) };
    let mut broker = Broker::start();
    let relay = Relay::start(broker.port);
    let effects = Effects::start();
    let url = format!("mqtt://{}", relay.address);
    let mut node = Node::start_with(&["--mqtt-broker", &url]);
    let code = effects.code()
        + "
def handle(event, ctx):
    key = event.headers.get('idempotency-key', '-')
    effect(f'{event.headers[\"mqtt-topic\"]} {event.text} {event.id} {key}')
";
    let mut manifest = format!("version = 1\n{}", effects.allow());
    let mut topics = Vec::new();
    for acknowledge in ["answered", "stored"] {
        for qos in [1, 2] {
            let topic = format!("{acknowledge}/{qos}");
            manifest += &format!(
                "[[trigger]]\nmqtt = \"{topic}\"\nqos = {qos}\nacknowledge = \"{acknowledge}\"\n"
            );
            topics.push(topic);
        }
    }
    node.deploy_ok("count", &[("mote.toml", &manifest), ("app.py", &code)]);
    let mut child = publisher(broker.port, count, &topics);
    let total = count * topics.len();
    let mut distinct = BTreeSet::new();
    let mut read = 0;
    let began = Instant::now();
    let mut failed = 0;
    let mut last = Instant::now();
    while distinct.len() < total {
        for line in effects.all().drain(read..) {
            let mut words = line.split(' ').map(str::to_owned);
            distinct.insert((words.next(), words.next()));
            read += 1;
        }
        // There is a failure after each equal share of the messages.
        if failed < failures && distinct.len() * (failures + 1) > (failed + 1) * total {
            match failed % 4 {
                0 => node = node.crash_and_restart(),
                2 => {
                    broker.stop();
                    broker.start_again();
                }
                _ => relay.cut(),
            }
            failed += 1;
            last = Instant::now();
        }
        assert!(
            last.elapsed() < Duration::from_secs(300),
            "{} of {total} messages after {failed} failures; node: {}",
            distinct.len(),
            node.log()
        );
        std::thread::park_timeout(Duration::from_millis(5));
    }
    assert!(child.wait().expect("our child").success());
    assert_eq!(failed, failures, "every failure happened before the end");
    // With a key, the journal accepts a message once, so all attempts have the same id.
    let mut ids: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut runs: BTreeMap<String, usize> = BTreeMap::new();
    for line in effects.all() {
        let words: Vec<&str> = line.split(' ').collect();
        ids.entry(words[3].to_owned()).or_default().insert(words[2].to_owned());
        *runs.entry(words[0].to_owned()).or_default() += 1;
    }
    for (key, ids) in &ids {
        assert!(!key.starts_with("stored/") || ids.len() == 1, "{key} was accepted twice: {ids:?}");
    }
    println!(
        "{total} messages, {failures} failures, {:.0} s, 0 lost; runs of {count} messages: {runs:?}",
        began.elapsed().as_secs_f64()
    );
}
