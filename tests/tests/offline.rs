//! A node needs nobody outside: everything works without a connection, and nothing leaves the
//! machine unless a function sends it.

use std::process::Command;

use mote_tests::network::Far;
use mote_tests::{Node, coap_client, is_root, skip, wait_for};

const THERMO: &str = r#"
import json
SUMS = {}

def handle(event, ctx):
    reading = json.loads(event.body)
    sums = SUMS.setdefault(reading["sensor"], [0, 0.0])
    sums[0] += 1
    sums[1] += reading["celsius"]
    return {"mean": sums[1] / sums[0], "count": sums[0]}
"#;
const TICK: &str = "def handle(event, ctx):\n    ctx.kv.increment('ticks')\n";

#[test]
fn nothing_leaves_a_node_that_nobody_asks_to_send() {
    let test = "nothing_leaves_a_node_that_nobody_asks_to_send";
    if !is_root() {
        return skip(test, "needs root");
    }
    let Some(far) = Far::new() else {
        return skip(test, "cannot make a network namespace");
    };
    // The node could reach the world: it has an address and a route. Only IPv6 is off, with which
    // the kernel itself would greet its neighbours.
    let inside = ["netns", "exec", far.name()];
    for command in [
        format!("ip route add default via {}", far.near),
        "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6".to_owned(),
    ] {
        let done = Command::new("ip").args(inside).args(["sh", "-c", &command]).status();
        assert!(done.is_ok_and(|status| status.success()), "{command}");
    }
    far.run(|| {
        let packets = || {
            let text = std::fs::read_to_string("/proc/thread-self/net/dev").expect("devices");
            let line = text.lines().find_map(|line| line.trim().strip_prefix("far:"));
            let fields: Vec<u64> = line
                .expect("the cable")
                .split_whitespace()
                .map(|field| field.parse().expect("a number"))
                .collect();
            fields[9]
        };
        let before = packets();
        let node = Node::start_with(&["--mqtt", "127.0.0.1:0"]);
        node.deploy_ok("thermo", &[("app.py", THERMO)]);
        let schedule = "version = 1\n[[trigger]]\nevery = \"1s\"\n";
        node.deploy_ok("tick", &[("app.py", TICK), ("mote.toml", schedule)]);
        for count in 1..=20 {
            let reading = br#"{"sensor":"attic","celsius":21.5}"#;
            let answer = node.post("/thermo", reading);
            assert_eq!((answer.status, answer.json()["count"].as_u64()), (200, Some(count)));
        }
        if let Some(client) = coap_client() {
            let uri = format!("coap://{}/thermo", node.coap);
            let body = r#"{"sensor":"attic","celsius":21.5}"#;
            let done = Command::new(client).args(["-m", "post", "-e", body, &uri]).output();
            let answer = String::from_utf8(done.expect("it runs").stdout).expect("text");
            assert!(
                answer.contains("\"count\": 21") || answer.contains("\"count\":21"),
                "{answer}"
            );
        }
        wait_for("three calls by schedule", || {
            let shown = node.mote(&["kv", "get", "tick", "ticks"]);
            let count: u64 = String::from_utf8_lossy(&shown.stdout).trim().parse().ok()?;
            (count >= 3).then_some(())
        });
        node.ok(&["list"]);
        node.ok(&["logs", "thermo"]);
        let node = node.crash_and_restart();
        assert_eq!(node.post("/thermo", br#"{"sensor":"attic","celsius":20}"#).status, 200);
        assert_eq!(packets() - before, 0, "packets of the node have left the machine");
        // A packet that leaves would have been counted.
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket");
        socket.send_to(b"out", "192.0.2.1:9").expect("there is a route");
        wait_for("the packet to be counted", || (packets() > before).then_some(()));
    });
}
