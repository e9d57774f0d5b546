//! Files of a function, and compressed answers, as clients receive them.

use std::process::Command;

use mote_tests::{Node, call_at, wait_for};

const SAYS: &str =
    "def handle(event, ctx):\n    print('ran')\n    return f'function {event.path}'\n";
const SITE: &str = "version = 1\n[static]\nfolder = \"public\"\ncache = \"1h\"\n";
const PAGE: &str = "<!doctype html><title>Plant</title><link rel=stylesheet href=style.css>";

/// Returns what curl receives: the fields and the body.
fn curl(node: &Node, args: &[&str], path: &str) -> (String, Vec<u8>) {
    let output = Command::new("curl")
        .args(["-s", "-D", "/dev/stderr"])
        .args(args)
        .arg(format!("http://{}{path}", node.http))
        .output()
        .expect("curl starts");
    (String::from_utf8_lossy(&output.stderr).to_lowercase(), output.stdout)
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.gz");
    std::fs::write(&file, bytes).expect("a file");
    let output = Command::new("gzip").args(["-dc"]).arg(&file).output().expect("gzip starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn files_are_served_without_the_function() {
    let node = Node::start();
    let long = "0123456789".repeat(50_000);
    let route = format!("{SITE}[[route]]\nhost = \"plant.example\"\npath = \"/*\"\n");
    let public = format!("{route}[access]\nmode = \"public\"\n");
    node.deploy_ok(
        "site",
        &[
            ("app.py", SAYS),
            ("mote.toml", &public),
            ("public/index.html", PAGE),
            ("public/style.css", "body { color: #123 }"),
            ("public/long.txt", &long),
            ("public/docs/index.html", "docs"),
        ],
    );
    for flags in [&["--http1.1"][..], &["--http2-prior-knowledge"]] {
        let (fields, body) = curl(&node, flags, "/site/");
        assert_eq!(body, PAGE.as_bytes());
        assert!(fields.contains("content-type: text/html; charset=utf-8"), "{fields}");
        assert!(fields.contains("cache-control: max-age=3600"), "{fields}");
        // A browser must resolve style.css below the function's name.
        let (fields, _) = curl(&node, flags, "/site?a=b");
        assert!(fields.contains(" 308") && fields.contains("location: site/?a=b"), "{fields}");
        let (fields, _) = curl(&node, flags, "/site/docs");
        assert!(fields.contains("location: docs/"), "{fields}");
        // curl 7.88 cannot use a connection with prior knowledge twice, so it does not follow the
        // redirect.
        assert_eq!(curl(&node, flags, "/site/docs/").1, b"docs");
        assert_eq!(curl(&node, flags, "/site/long.txt").1, long.as_bytes());
        let part = [flags, &["-r", "100000-399999"]].concat();
        let (fields, body) = curl(&node, &part, "/site/long.txt");
        assert_eq!(body, &long.as_bytes()[100_000..400_000]);
        assert!(
            fields.contains(" 206") && fields.contains("bytes 100000-399999/500000"),
            "{fields}"
        );
        let hosted = [flags, &["-H", "host: plant.example"]].concat();
        assert_eq!(curl(&node, &hosted, "/style.css").1, b"body { color: #123 }");
        assert_eq!(curl(&node, &hosted, "/").1, PAGE.as_bytes());
    }
    let tag = node.get("/site/style.css").header("etag").expect("a tag").to_owned();
    let known = node.call("GET", "/site/style.css", &[("if-none-match", &tag)], b"");
    assert_eq!((known.status, known.body.len()), (304, 0));
    let head = node.call("HEAD", "/site/long.txt", &[], b"");
    assert_eq!(head.header("content-length"), Some("500000"));
    assert!(!node.ok(&["logs", "site"]).contains("ran"), "the function was called");
    // Requests for paths that are not files go to the function, and so does a POST.
    assert_eq!(node.get("/site/orders/7").text(), "function /orders/7");
    assert_eq!(node.post("/site/style.css", b"x").text(), "function /style.css");
    // A new revision has new entity tags.
    node.deploy_ok(
        "site",
        &[("app.py", SAYS), ("mote.toml", SITE), ("public/style.css", "body { color: #456 }")],
    );
    let changed = node.call("GET", "/site/style.css", &[("if-none-match", &tag)], b"");
    assert_eq!((changed.status, changed.text()), (200, "body { color: #456 }".to_owned()));
}

#[test]
fn files_are_as_closed_as_their_function() {
    let node = Node::start();
    let keyed = format!("{SITE}[access]\nmode = \"key\"\n[limits]\nrate = \"2/m\"\n");
    let files = [("app.py", SAYS), ("mote.toml", &keyed), ("public/a.txt", "for callers")];
    node.deploy_ok("closed", &files);
    let key = node.ok(&["key", "create", "reader", "-q"]);
    let key = [("x-api-key", key.trim())];
    assert_eq!(node.get("/closed/a.txt").status, 401);
    assert_eq!(node.call("GET", "/closed/a.txt", &key, b"").text(), "for callers");
    let status = || node.call("GET", "/closed/a.txt", &key, b"").status;
    assert!((0..3).any(|_| status() == 429), "files count as calls");
    // This function has no rate.
    let open = keyed.replace("rate = \"2/m\"", "");
    node.deploy_ok("closed", &[("app.py", SAYS), ("mote.toml", &open), ("public/a.txt", "")]);
    for path in ["/closed/../app.py", "/closed/%2e%2e/app.py", "/closed/..%2fapp.py"] {
        let answer = node.call("GET", path, &key, b"");
        assert!(!answer.text().contains("def handle"), "{path}: {}", answer.text());
    }
    // A missing folder is a mistake in the manifest.
    let output = node.deploy("lacks", &[("app.py", SAYS), ("mote.toml", SITE)]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("no folder public") && text.contains("line 3"), "{text}");
    let outside = SITE.replace("public", "../public");
    let output = node.deploy("out", &[("app.py", SAYS), ("mote.toml", &outside)]);
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn answers_are_compressed_for_clients_that_ask() {
    let node = Node::start();
    let code = "
import time
def handle(event, ctx):
    if event.path == '/stream':
        def parts():
            yield 'first ' * 10
            time.sleep(30)
            yield 'second'
        return parts()
    return {'rows': [n for n in range(int(event.path[1:] or 5))]}
";
    let manifest = "version = 1\n[http]\ncompress = true\n";
    node.deploy_ok("rows", &[("app.py", code), ("mote.toml", manifest)]);
    let plain = node.get("/rows/90000");
    assert!(plain.header("content-encoding").is_none());
    assert_eq!(plain.header("vary"), Some("accept-encoding"));
    let gzip = [("accept-encoding", "br, gzip")];
    for rows in [1_000, 90_000] {
        let path = format!("/rows/{rows}");
        let packed = node.call("GET", &path, &gzip, b"");
        assert_eq!(packed.header("content-encoding"), Some("gzip"), "{rows}");
        let whole = node.get(&path);
        assert_eq!(gunzip(&packed.body), whole.body);
        assert!(packed.body.len() * 2 < whole.body.len());
        let second = curl(&node, &["--http2-prior-knowledge", "--compressed"], &path);
        assert_eq!(second.1, whole.body);
        assert!(second.0.contains("content-encoding: gzip"), "{}", second.0);
    }
    let short = node.call("GET", "/rows/5", &gzip, b"");
    assert!(short.header("content-encoding").is_none());
    let none = node.call("GET", "/rows/1000", &[("accept-encoding", "gzip;q=0, br")], b"");
    assert!(none.header("content-encoding").is_none());
    // The first part of a stream arrives even though the second is far away.
    let mut child = Command::new("curl")
        .args(["-sN", "--compressed", &format!("http://{}/rows/stream", node.http)])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("curl starts");
    let mut first = [0; 12];
    std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut first).expect("a part");
    assert_eq!(&first, b"first first ");
    child.kill().expect("our child");
    child.wait().expect("our child");
    wait_for("the next call", || {
        (call_at(node.http, "GET", "/rows/5", &[], b"").status == 200).then_some(())
    });
}

#[test]
fn a_page_of_files_works_in_a_browser_with_its_function() {
    let node = Node::start();
    let app = "<!doctype html><title>wait</title><script src=app.js></script>";
    let script = "fetch('api/value').then(a => a.text()).then(t => { document.title = t })";
    let manifest = "version = 1\n[static]\nfolder = \"public\"\nfallback = \"index.html\"\n";
    node.deploy_ok(
        "app",
        &[
            ("app.py", SAYS),
            ("mote.toml", manifest),
            ("public/index.html", app),
            ("public/app.js", script),
        ],
    );
    // A request for a missing page gets the application's page, and a script's request gets the
    // function's answer.
    let html = [("accept", "text/html,*/*")];
    assert_eq!(node.call("GET", "/app/orders", &html, b"").text(), app);
    let value = node.get("/app/api/value");
    assert_eq!(value.text(), "function /api/value");
    // A cache must not serve one of these answers in place of the other.
    let page = node.call("GET", "/app/api/value", &html, b"");
    for answer in [&value, &page] {
        assert_eq!(answer.header("vary"), Some("accept"));
    }
    assert_eq!(page.header("cache-control"), Some("no-cache"));
    if Command::new("chromium").arg("--version").output().is_err() {
        mote_tests::skip("a_page_of_files_works_in_a_browser_with_its_function", "no chromium");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"])
        .arg(format!("--user-data-dir={}", folder.path().display()))
        .args(["--dump-dom", &format!("http://{}/app", node.http)])
        .output()
        .expect("chromium starts");
    let page = String::from_utf8_lossy(&output.stdout);
    assert!(page.contains("<title>function /api/value</title>"), "{page}");
}
