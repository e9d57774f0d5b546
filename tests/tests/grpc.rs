//! gRPC into functions that are HTTP/2 servers. Both sides use the gRPC packages for Python.

use mote_tests::{Node, repository, wait_for};

fn fixture(name: &str) -> String {
    let path = repository().join("tests/fixtures/grpc").join(name);
    std::fs::read_to_string(path).expect("a fixture")
}

const PACKAGES: &str = "grpcio==1.85.1\n";

#[test]
fn all_kinds_of_calls_pass() {
    let node = Node::start();
    let manifest = "version = 1\nruntime = \"server\"\nprotocol = \"h2c\"\n\
                    command = [\"python3\", \"-u\", \"serve.py\"]\n[limits]\ntimeout = \"60s\"\n";
    let code = fixture("serve.py");
    let files = [("serve.py", &*code), ("requirements.txt", PACKAGES), ("mote.toml", manifest)];
    node.deploy_ok("served", &files);
    let manifest = "version = 1\n[allow]\nnet = [\"mote.internal:80\"]\n[limits]\n\
                    timeout = \"60s\"\nmemory = \"128MiB\"\n";
    let code = fixture("client.py");
    let files = [("app.py", &*code), ("requirements.txt", PACKAGES), ("mote.toml", manifest)];
    node.deploy_ok("client", &files);
    let answer = node.get("/client");
    assert_eq!((answer.status, answer.text().as_str()), (200, "all"), "{}", node.log());
    wait_for("all calls to end", || {
        let described = node.json(&["describe", "served", "-o", "json"]);
        (described["requests"]["running"] == 0).then_some(())
    });
}
