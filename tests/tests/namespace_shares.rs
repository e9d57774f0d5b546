//! Namespaces share the places of a full node.

use std::sync::atomic::{AtomicUsize, Ordering};

use mote_tests::namespaces::{HELLO, deploy_ok, start};
use mote_tests::wait_for;

/// One namespace sends many times as many calls as the node can run. Another namespace still gets
/// its share.
#[test]
fn a_busy_namespace_leaves_others_their_share() {
    let (node, _) = start(&["--memory", "256MiB", "--prewarm", "off"]);
    let slow = "import time\ndef handle(event, ctx):\n    for _ in range(4):\n        time.sleep(0.05)\n    return 'slow'\n";
    let small = "version = 1\n[limits]\nmemory = \"32MiB\"\n[scale]\nmax = 16\nqueue = 1000\n";
    deploy_ok(&node, "plant", "busy", &[("app.py", slow), ("mote.toml", small)]);
    deploy_ok(&node, "orchard", "calm", &[("app.py", HELLO), ("mote.toml", small)]);
    node.ok(&["scale", "calm.orchard", "0"]);
    let instances = |namespace: &str| {
        let one = node.json(&["namespace", "describe", namespace, "-o", "json"]);
        one["instances"].as_u64().expect("a number")
    };
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let failed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    let status = node.get("/busy.plant").status;
                    failed.fetch_add(usize::from(status != 200), Ordering::SeqCst);
                }
            });
        }
        wait_for("the node to be full", || (instances("plant") >= 8).then_some(()));
        let answers: Vec<u16> = (0..20).map(|_| node.get("/calm.orchard").status).collect();
        let held = instances("orchard");
        is_over.store(true, Ordering::SeqCst);
        assert_eq!(answers, vec![200; 20], "{}", node.ok(&["logs", "calm.orchard"]));
        assert!(held >= 1, "it has an instance");
    });
    assert_eq!(failed.load(Ordering::SeqCst), 0, "calls of the busy one wait, and none fails");
    let log = node.ok(&["logs", "busy.plant"]);
    assert!(log.contains("more than its share") && !log.contains("calm"), "{log}");
}

/// The owner of a namespace chooses the minimum of a function. That minimum must not hold more than
/// the namespace's share.
#[test]
fn a_minimum_holds_no_more_than_a_share() {
    let (node, _) = start(&["--memory", "256MiB", "--prewarm", "off"]);
    let small = "version = 1\n[limits]\nmemory = \"32MiB\"\n[scale]\nmax = 16\n";
    deploy_ok(&node, "plant", "kept", &[("app.py", HELLO), ("mote.toml", small)]);
    deploy_ok(&node, "orchard", "calm", &[("app.py", HELLO), ("mote.toml", small)]);
    node.ok(&["scale", "calm.orchard", "0"]);
    node.ok(&["scale", "kept.plant", "--min", "16", "--max", "16"]);
    wait_for("the node to be full", || {
        let plant = node.json(&["namespace", "describe", "plant", "-o", "json"]);
        (plant["instances"].as_u64() >= Some(8)).then_some(())
    });
    for _ in 0..3 {
        assert_eq!(node.get("/calm.orchard").status, 200, "{}", node.ok(&["logs", "calm.orchard"]));
    }
    assert_eq!(node.get("/kept.plant").status, 200);
}
