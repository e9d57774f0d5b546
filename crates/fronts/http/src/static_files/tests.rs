use std::os::unix::fs::symlink;

use mote_core::invocation::headers;

use super::*;

/// A function's code: a folder of public files, and a file outside it that must not be served.
struct Site {
    dir: tempfile::TempDir,
    rules: StaticFiles,
}

impl Site {
    fn new(files: &[(&str, &str)]) -> Self {
        let dir =
            tempfile::Builder::new().prefix("0123456789abcdef01").tempdir().expect("a folder");
        for (file, text) in files.iter().chain([&("app.py", "secret")]) {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        let rules = StaticFiles { folder: "public".into(), fallback: None, cache_s: 0 };
        Self { dir, rules }
    }

    async fn get(&self, path: &str, fields: &[(&str, &str)]) -> Option<Reply> {
        self.ask("GET", path, fields).await
    }

    async fn ask(&self, method: &str, path: &str, fields: &[(&str, &str)]) -> Option<Reply> {
        let mut head = Head::builder(method.as_bytes(), path.as_bytes(), b"");
        for (name, value) in fields {
            head.header(name.as_bytes(), value.as_bytes());
        }
        answer(self.dir.path(), &self.rules, &head.finish(), None).await
    }

    /// Returns the status and the body.
    async fn text(&self, path: &str, fields: &[(&str, &str)]) -> (u16, String) {
        let Some(reply) = self.get(path, fields).await else { return (0, String::new()) };
        let body = reply.body.collect(1 << 30).await.expect("a body");
        (reply.status, String::from_utf8_lossy(&body).into_owned())
    }
}

fn value(reply: &Reply, wanted: &str) -> Option<String> {
    let found = headers(&reply.headers).find(|(name, _)| *name == wanted.as_bytes());
    found.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
}

#[tokio::test]
async fn files_folders_and_variants() {
    let site = Site::new(&[
        ("public/index.html", "<p>home"),
        ("public/a b.txt", "text"),
        ("public/docs/index.html", "<p>docs"),
        ("public/app.js", "plain"),
        ("public/app.js.gz", "zipped"),
        ("public/app.js.br", "brotli"),
    ]);
    assert_eq!(site.text("/", &[]).await, (200, "<p>home".into()));
    assert_eq!(site.text("/a%20b.txt", &[]).await, (200, "text".into()));
    assert_eq!(site.text("/docs/", &[]).await, (200, "<p>docs".into()));
    assert_eq!(site.text("/nothing", &[]).await.0, 0);
    let folder = site.get("/docs", &[]).await.expect("a redirect");
    assert_eq!((folder.status, value(&folder, "location")), (308, Some("docs/".into())));

    assert_eq!(site.text("/app.js", &[]).await, (200, "plain".into()));
    let gzip = [("accept-encoding", "gzip")];
    assert_eq!(site.text("/app.js", &gzip).await, (200, "zipped".into()));
    let both = [("accept-encoding", "gzip, br")];
    let reply = site.get("/app.js", &both).await.expect("a file");
    assert_eq!(value(&reply, "content-encoding").as_deref(), Some("br"));
    assert_eq!(value(&reply, "vary").as_deref(), Some("accept-encoding"));
    assert_eq!(value(&reply, "content-type").as_deref(), Some("text/javascript; charset=utf-8"));
    assert_eq!(value(&reply, "etag").as_deref(), Some("\"0123456789abcdef-br\""));
    assert!(site.ask("POST", "/app.js", &[]).await.is_none());
}

#[tokio::test]
async fn nothing_outside_of_the_folder_is_served() {
    let site = Site::new(&[
        ("public/a.txt", "text"),
        ("public/.env", "secret"),
        ("public/.git/config", "secret"),
        ("public/.well-known/security.txt", "contact"),
    ]);
    let public = site.dir.path().join("public");
    symlink("../app.py", public.join("link.py")).expect("a link");
    symlink("/etc/passwd", public.join("passwd")).expect("a link");
    symlink("/", public.join("all")).expect("a link");
    symlink("a.txt", public.join("inner.txt")).expect("a link");
    for path in [
        "/../app.py",
        "/%2e%2e/app.py",
        "/..%2fapp.py",
        "/link.py",
        "/passwd",
        "/all/etc/passwd",
        "/.env",
        "/.git/config",
        "/%2eenv",
        "/a.txt/",
        "/a.txt%00.html",
        "//etc/passwd",
    ] {
        assert_eq!(site.text(path, &[]).await.0, 0, "{path}");
    }
    assert_eq!(site.text("/inner.txt", &[]).await, (200, "text".into()));
    assert_eq!(site.text("/.well-known/security.txt", &[]).await, (200, "contact".into()));
    let pipe = public.join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .expect("a pipe");
    assert_eq!(site.text("/pipe", &[]).await.0, 0);
}

#[tokio::test]
async fn long_files_stream_and_have_parts() {
    let long: String = (0..100_000).map(|number| format!("{number:07}")).collect();
    let site = Site::new(&[("public/long.csv", &long)]);
    assert_eq!(site.text("/long.csv", &[]).await, (200, long.clone()));
    let reply = site.get("/long.csv", &[("range", "bytes=100000-299999")]).await.expect("a part");
    assert_eq!(reply.status, 206);
    assert_eq!(value(&reply, "content-range").as_deref(), Some("bytes 100000-299999/700000"));
    assert_eq!(reply.body.length(), Some(200_000));
    let part = reply.body.collect(1 << 30).await.expect("a body");
    assert_eq!(part, long.as_bytes()[100_000..300_000]);
    assert_eq!(site.text("/long.csv", &[("range", "bytes=700000-")]).await.0, 416);
    let known = [("if-none-match", "\"0123456789abcdef\"")];
    assert_eq!(site.text("/long.csv", &known).await, (304, String::new()));
    let head = site.ask("HEAD", "/long.csv", &[("range", "bytes=0-1")]).await.expect("a head");
    assert_eq!((head.status, head.body.length()), (200, Some(700_000)));
}

#[tokio::test]
async fn a_page_stands_for_all_that_is_not_there() {
    let mut site = Site::new(&[("public/index.html", "<p>app"), ("public/a.js", "code")]);
    site.rules.fallback = Some("index.html".into());
    let page = [("accept", "application/xhtml+xml, text/html;q=0.9")];
    assert_eq!(site.text("/orders/7", &page).await, (200, "<p>app".into()));
    assert_eq!(site.text("/a.js", &page).await, (200, "code".into()));
    // A script does not accept `text/html`, so the request goes to the function.
    assert_eq!(site.text("/orders/7", &[("accept", "*/*")]).await.0, 0);
}
