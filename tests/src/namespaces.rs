//! Nodes with namespaces.

use std::net::SocketAddr;

use crate::{Node, free_address};

/// A function that answers `hello`.
pub const HELLO: &str = "def handle(event, ctx):\n    return 'hello'\n";

/// Starts a node with the namespaces `plant` and `orchard`. Also returns the address of its
/// management API.
pub fn start(more: &[&str]) -> (Node, SocketAddr) {
    let admin = free_address();
    let node = Node::start_with(&[&["--admin", &admin.to_string()], more].concat());
    for name in ["plant", "orchard"] {
        node.ok(&["namespace", "create", name]);
    }
    (node, admin)
}

/// Deploys into a namespace. `name` does not include the namespace.
pub fn deploy(
    node: &Node,
    namespace: &str,
    name: &str,
    files: &[(&str, &str)],
) -> std::process::Output {
    let folder = node.dir.path().join("src").join(namespace).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    for (file, text) in files {
        std::fs::write(folder.join(file), text).expect("a file");
    }
    let folder = folder.to_str().expect("UTF-8").to_owned();
    node.mote(&["--namespace", namespace, "deploy", &folder, "--name", name])
}

/// Deploys into a namespace, which must succeed.
pub fn deploy_ok(node: &Node, namespace: &str, name: &str, files: &[(&str, &str)]) {
    let output = deploy(node, namespace, name, files);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}\n{}", node.log());
}

/// Makes a token for a namespace, or for the whole node.
pub fn token(node: &Node, name: &str, role: &str, namespace: Option<&str>) -> String {
    let mut args = vec!["token", "create", name, "--role", role];
    args.extend(namespace.iter().flat_map(|name| ["--namespace", *name]));
    node.ok(&args).trim().to_owned()
}
