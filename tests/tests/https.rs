//! The node's own requests over TLS: callbacks of accepted calls and archives by address. The
//! server is real, and an authority of the test signs its certificate.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use mote_tests::{Node, PATIENCE, call_at, skip, wait_for};
use serde_json::json;

/// Answers GET with a file, and prints the bodies of POST requests.
const SERVER: &str = r"
import http.server, ssl, sys

class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def answer(self, body=b''):
        self.send_response(200)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(open(sys.argv[3], 'rb').read())
    def do_POST(self):
        body = self.rfile.read(int(self.headers['content-length'])).decode()
        print('POST', self.headers['host'], self.path, body, flush=True)
        self.answer()
    def log_message(self, *args):
        pass

class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *args):
        pass

server = Server(('127.0.0.1', 0), Answers)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print(server.server_address[1], flush=True)
server.serve_forever()
";
const ZIP: &str = "import sys, zipfile
with zipfile.ZipFile(sys.argv[1], 'w') as out:
    out.writestr('main/fn.py', 'def fn(input, headers):\\n    return \"hello \" + input\\n')
";

struct Server {
    child: Child,
    port: u16,
    said: Receiver<String>,
}

impl Server {
    /// Serves with `NAME.pem` and `NAME.key` of the folder.
    fn start(folder: &Path, name: &str) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", SERVER])
            .args([format!("{name}.pem"), format!("{name}.key"), "main.zip".to_owned()])
            .current_dir(folder)
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let (sender, said) = channel();
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let port = said.recv_timeout(PATIENCE).expect("its port");
        Self { child, port: port.parse().expect("a port"), said }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes an authority, a certificate for 127.0.0.1 that it signed, and a certificate without a
/// trusted signature.
fn certificates() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().expect("a folder");
    let script = "set -e
key='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'
openssl req -x509 $key -keyout ca.key -out ca.pem -days 2 -subj /CN=authority
openssl req -x509 $key -keyout own.key -out own.pem -days 2 -subj /CN=own -addext subjectAltName=IP:127.0.0.1
echo subjectAltName=IP:127.0.0.1 > names
openssl req $key -keyout good.key -out good.csr -subj /CN=good
openssl x509 -req -in good.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out good.pem -extfile names";
    let made = Command::new("sh").args(["-c", script]).current_dir(&folder).output();
    made.is_ok_and(|made| made.status.success()).then_some(folder)
}

fn text(path: PathBuf) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

/// Starts a node that trusts only the authorities in one file.
fn start(flags: &[&str], folder: &tempfile::TempDir, roots: &str) -> Node {
    let no_more = folder.path().join("no-more");
    std::fs::create_dir(&no_more).expect("a folder");
    // The servers of this test listen on loopback.
    let no_more = text(no_more);
    let env = [("SSL_CERT_FILE", roots), ("SSL_CERT_DIR", &no_more), ("MOTE_OUTGOING", "machine")];
    Node::start_with_env(flags, &env)
}

#[test]
fn callbacks_and_uploads_over_tls() {
    let Some(folder) = certificates() else {
        return skip("callbacks_and_uploads_over_tls", "openssl makes no certificates here");
    };
    let zip = Command::new("python3").args(["-c", ZIP, "main.zip"]).current_dir(&folder).status();
    assert!(zip.is_ok_and(|status| status.success()));
    let good = Server::start(folder.path(), "good");
    let own = Server::start(folder.path(), "own");
    let roots = text(folder.path().join("ca.pem"));
    let off = ["--tinyfaas-http", "off", "--tinyfaas-coap", "off", "--tinyfaas-grpc", "off"];
    let on = [["--openfaas", ":0", "--tinyfaas", ":0"].as_slice(), &off].concat();
    let node = start(&on, &folder, &roots);
    node.deploy_ok("hello", &[("run.sh", "#!/bin/sh\necho \"hello $(cat)\"\n")]);
    let later = |url: &str| {
        let headers = [("x-callback-url", url)];
        call_at(node.platform("openfaas"), "POST", "/async-function/hello", &headers, b"you").status
    };
    let upload = |url: &str, name: &str| {
        let wish = json!({ "name": name, "env": "python3", "threads": 1, "url": url, "subfolder_path": "main" });
        let body = wish.to_string();
        let answer = call_at(node.platform("tinyfaas"), "POST", "/uploadURL", &[], body.as_bytes());
        (answer.status, answer.text())
    };
    let logged = |words: &str| {
        wait_for(words, || node.log().contains(words).then_some(()));
    };

    let port = good.port;
    assert_eq!(later(&format!("https://127.0.0.1:{port}/done?x=1")), 202);
    let called = good.said.recv_timeout(PATIENCE).expect("a callback");
    assert_eq!(called, format!("POST 127.0.0.1:{port} /done?x=1 hello you"));
    let (status, said) = upload(&format!("https://127.0.0.1:{port}/main.zip"), "fetched");
    assert_eq!(status, 200, "{said}");
    assert_eq!(node.post("/fetched", b"you").text(), "hello you");

    // The first certificate has no trusted signature, the second has another name, and the third
    // server does not support TLS.
    assert_eq!(later(&format!("https://127.0.0.1:{}/", own.port)), 202);
    logged("the certificate of 127.0.0.1 is not valid: ");
    assert_eq!(later(&format!("https://localhost:{port}/")), 202);
    logged("the certificate of localhost is not valid: ");
    let (status, said) = upload(&format!("https://127.0.0.1:{}/main.zip", own.port), "other");
    assert!(status == 500 && said.contains("127.0.0.1 is not valid: "), "{said}");
    let plain = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = plain.local_addr().expect("bound");
    std::thread::spawn(move || {
        let (mut stream, _) = plain.accept().expect("a connection");
        let _ = std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let (status, said) = upload(&format!("https://{address}/main.zip"), "plain");
    assert!(status == 500 && said.contains("the exchange failed: TLS: "), "{said}");
    let (status, said) = upload(&format!("https://{}/main.zip", node.http), "itself");
    assert!(status == 500 && said.contains("is an address of the node itself"), "{said}");
    assert!(own.said.try_recv().is_err(), "nothing was sent to who is not trusted");
}

#[test]
fn without_roots_nobody_is_trusted() {
    let Some(folder) = certificates() else {
        return skip("without_roots_nobody_is_trusted", "openssl makes no certificates here");
    };
    let good = Server::start(folder.path(), "good");
    let none = text(folder.path().join("none.pem"));
    std::fs::write(&none, "").expect("a file");
    let node = start(&["--openfaas", ":0"], &folder, &none);
    node.deploy_ok("hello", &[("run.sh", "#!/bin/sh\necho hello\n")]);
    let url = format!("https://127.0.0.1:{}/", good.port);
    let headers = [("x-callback-url", url.as_str())];
    let answer = call_at(node.platform("openfaas"), "POST", "/async-function/hello", &headers, b"");
    assert_eq!(answer.status, 202);
    let words = "this machine has no root certificates";
    wait_for(words, || node.log().contains(words).then_some(()));
    assert!(good.said.try_recv().is_err());
}
