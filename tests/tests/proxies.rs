//! Clients behind a proxy: HAProxy in front of a node that only this machine can reach, and clients
//! on another machine.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};

use mote_tests::network::Far;
use mote_tests::{Answer, Node, call_at, free_address, free_port, is_root, skip, wait_for};

const TELLS: &str = "def handle(event, ctx):\n    return 'ran'\n";
const OPEN: &str = "version = 1\n[access]\nmode = \"public\"\n";

/// A running proxy. It ends on drop.
struct Proxy {
    child: Child,
    _folder: tempfile::TempDir,
}

impl Proxy {
    /// Starts a proxy at `listen`. `backend` is the part of HAProxy's configuration for the node's
    /// side.
    fn start(listen: SocketAddr, backend: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("haproxy.cfg");
        let config = format!(
            "defaults\n  timeout connect 10s\n  timeout client 60s\n  timeout server 60s\n\
             listen node\n  bind {listen}\n{backend}\n"
        );
        std::fs::write(&file, config).expect("written");
        let mut haproxy = Command::new("haproxy");
        haproxy.arg("-db").arg("-f").arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
        let proxy = Self { child: haproxy.spawn().expect("haproxy"), _folder: folder };
        wait_for("the proxy", || std::net::TcpStream::connect(listen).ok());
        proxy
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the statuses of calls of two functions: one that only this machine may call, and one
/// that everyone may call.
fn statuses(at: SocketAddr, fields: &[(&str, &str)]) -> (u16, u16) {
    let call = |name: &str| -> Answer { call_at(at, "GET", &format!("/{name}"), fields, b"") };
    (call("inner").status, call("open").status)
}

fn node(flags: &[&str]) -> Node {
    let node = Node::start_with(flags);
    node.deploy_ok("inner", &[("app.py", TELLS)]);
    node.deploy_ok("open", &[("app.py", TELLS), ("mote.toml", OPEN)]);
    node
}

#[test]
fn clients_behind_a_proxy_are_other_machines() {
    let test = "clients_behind_a_proxy_are_other_machines";
    if !is_root() || Command::new("haproxy").arg("-v").output().is_err() {
        return skip(test, "needs root and haproxy");
    }
    let Some(far) = Far::new() else {
        return skip(test, "cannot make a network namespace");
    };
    let spoofed = [("x-forwarded-for", "127.0.0.1"), ("forwarded", "for=127.0.0.1")];
    let near: SocketAddr = (Ipv4Addr::LOCALHOST, free_port()).into();
    let away: SocketAddr = (far.near, free_port()).into();
    let trusted = ["--trusted-proxies", "127.0.0.1"];
    for (flags, side, expected) in [
        // Without the setting, a proxy exposes functions that are meant for this machine only.
        (&[][..], "  mode http\n  option forwardfor\n  server n NODE", (200, 200)),
        (&trusted[..], "  mode http\n  option forwardfor\n  server n NODE", (403, 200)),
        (&trusted[..], "  mode http\n  option forwardfor\n  server n NODE proto h2", (403, 200)),
        (
            &["--trusted-proxies", "127.0.0.1", "--proxy-header", "forwarded"][..],
            "  mode http\n  http-request set-header forwarded %[req.fhdr(forwarded)],for=%[src] if { req.fhdr(forwarded) -m found }\n  \
             http-request set-header forwarded for=%[src] unless { req.fhdr(forwarded) -m found }\n  server n NODE",
            (403, 200),
        ),
        (
            &["--trusted-proxies", "127.0.0.0/8", "--proxy-header", "proxy-protocol"][..],
            "  mode tcp\n  server n NODE send-proxy",
            (403, 200),
        ),
        (
            &["--trusted-proxies", "127.0.0.0/8", "--proxy-header", "proxy-protocol"][..],
            "  mode tcp\n  server n NODE send-proxy-v2",
            (403, 200),
        ),
    ] {
        let node = node(flags);
        let side = side.replace("NODE", &node.http.to_string());
        let proxy = Proxy::start(away, &side);
        let local = Proxy::start(near, &side);
        let seen = far.run(|| [statuses(away, &[]), statuses(away, &spoofed)]);
        assert_eq!(seen, [expected; 2], "{flags:?}: {side}");
        assert_eq!(statuses(near, &[]), (200, 200), "a client on this machine: {side}");
        drop((proxy, local));
        let refused = node.log().matches("ERROR").count();
        assert_eq!(refused, 0, "{}", node.log());
    }
}

#[test]
fn only_trusted_proxies_are_believed() {
    let node = node(&["--trusted-proxies", "192.0.2.0/24"]);
    let fields = [("x-forwarded-for", "198.51.100.7")];
    assert_eq!(statuses(node.http, &fields), (200, 200), "this machine is no proxy");
    let node = self::node(&["--trusted-proxies", "127.0.0.1, 192.0.2.0/24"]);
    for (field, expected) in [
        ("198.51.100.7", 403),
        ("198.51.100.7, 192.0.2.1", 403),
        ("127.0.0.1, 198.51.100.7", 403),
        ("unknown", 403),
        ("127.0.0.2", 200),
        ("127.0.0.1", 200),
    ] {
        let fields = [("x-forwarded-for", field)];
        assert_eq!(statuses(node.http, &fields), (expected, 200), "{field}");
    }
    assert_eq!(statuses(node.http, &[]), (200, 200), "the proxy's own request");
}

#[test]
fn https_passes_through_a_proxy() {
    let test = "https_passes_through_a_proxy";
    if Command::new("haproxy").arg("-v").output().is_err() {
        return skip(test, "there is no haproxy");
    }
    let https = free_address().to_string();
    let flags = ["--trusted-proxies", "127.0.0.1", "--proxy-header", "proxy-protocol"];
    let node = node(&[&["--https", &https][..], &flags].concat());
    let listen = free_address();
    let _proxy = Proxy::start(listen, &format!("  mode tcp\n  server n {https} send-proxy-v2"));
    let ask = |address: &str, rest: &[&str]| {
        let url = format!("https://{address}/open");
        let mut curl = Command::new("curl");
        curl.args(["-sk", "-m", "20", "-w", " %{http_version}"]).args(rest).arg(url);
        String::from_utf8_lossy(&curl.output().expect("curl").stdout).into_owned()
    };
    assert_eq!(ask(&listen.to_string(), &["--http1.1"]), "ran 1.1");
    assert_eq!(ask(&listen.to_string(), &["--http2"]), "ran 2");
    assert_eq!(ask(&https, &["--haproxy-protocol"]), "ran 2", "curl as its own proxy");
    assert_eq!(ask(&https, &[]), " 0", "a connection without the header is closed");
    let plain = format!("http://{}/open", node.http);
    let output = Command::new("curl").args(["-s", "-m", "20", &plain]).output().expect("curl");
    assert!(!output.status.success() && output.stdout.is_empty());
}
