//! Registries that fail, lie, or try to lead the node elsewhere. The messages are in
//! `hostile_registry.txt`; `MOTE_BLESS=1` rewrites it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mote_images::{Credentials, Image, ImageError, Images, Limits, Platform, Reference};
use mote_outgoing::{Outgoing, Reach};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

const KIND: &str = "application/vnd.oci.image.";

#[derive(Clone, Default)]
struct Answer {
    status: u16,
    fields: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// A length other than that of the body.
    length: Option<u64>,
    /// The connection stays open, and the server sends nothing more.
    stalls: bool,
}

fn ok(body: impl Into<Vec<u8>>) -> Answer {
    Answer { status: 200, body: body.into(), ..Answer::default() }
}

fn status(status: u16, fields: &[(&'static str, &str)], body: &str) -> Answer {
    let fields = fields.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Answer { status, fields, body: body.into(), ..Answer::default() }
}

/// Names of fields in lower case.
type Fields = HashMap<String, String>;

type Handler = dyn Fn(&str, &Fields) -> Answer + Send + Sync;

/// The paths and fields of the requests so far.
type Requests = Mutex<Vec<(String, Fields)>>;

/// A server on loopback that speaks HTTP without TLS, and remembers its requests.
struct Server {
    port: u16,
    requests: Arc<Requests>,
}

impl Server {
    fn start(handler: impl Fn(&str, &Fields) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (handler, seen): (Arc<Handler>, _) = (Arc::new(handler), requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (handler, seen) = (handler.clone(), seen.clone());
                std::thread::spawn(move || serve(stream, &*handler, &seen));
            }
        });
        Self { port, requests }
    }

    fn requests(&self) -> Vec<(String, Fields)> {
        self.requests.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, handler: &Handler, seen: &Requests) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) if head.is_empty() && byte[0] == 0x16 => return, // a greeting of TLS
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut lines = head.lines();
    let path = lines.next().unwrap_or_default().split(' ').nth(1).unwrap_or_default().to_owned();
    let fields: Fields = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let mut fields = fields;
    if let Some(length) = fields.get("content-length").and_then(|text| text.parse().ok()) {
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        fields.insert("(body)".to_owned(), String::from_utf8_lossy(&body).into_owned());
    }
    seen.lock().unwrap().push((path.clone(), fields.clone()));
    let answer = handler(&path, &fields);
    let mut text = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", answer.status);
    for (name, value) in &answer.fields {
        write!(text, "{name}: {value}\r\n").unwrap();
    }
    let length = answer.length.unwrap_or(answer.body.len() as u64);
    write!(text, "content-length: {length}\r\n\r\n").unwrap();
    let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.write_all(&answer.body));
    if answer.stalls {
        // Until the client leaves.
        let _ = stream.read(&mut byte);
    }
}

fn digest(bytes: &[u8]) -> String {
    let mut text = "sha256:".to_owned();
    for byte in Sha256::digest(bytes) {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

/// The documents and blobs of a registry with one image, `app:1`. A test changes them.
#[derive(Clone)]
struct Contents {
    layer: Vec<u8>,
    config: Value,
    manifest: Value,
    /// Answers for certain paths. They take precedence over all others.
    instead: Vec<(String, Answer)>,
}

impl Contents {
    fn new() -> Self {
        Self::of(layer())
    }

    fn of(layer: Vec<u8>) -> Self {
        let config = json!({"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/a"]},
            "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]}});
        let manifest = json!({
            "schemaVersion": 2, "mediaType": format!("{KIND}manifest.v1+json"),
            "config": {"mediaType": format!("{KIND}config.v1+json"), "digest": "", "size": 0},
            "layers": [{"mediaType": format!("{KIND}layer.v1.tar"),
                        "digest": digest(&layer), "size": layer.len()}],
        });
        Self { layer, config, manifest, instead: Vec::new() }
    }

    fn config(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.config);
        self
    }

    fn manifest(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.manifest);
        self
    }

    fn instead(mut self, path: &str, answer: Answer) -> Self {
        self.instead.push((path.to_owned(), answer));
        self
    }

    fn layer_path(&self) -> String {
        format!("/blobs/{}", digest(&self.layer))
    }

    fn start(self) -> Server {
        let config = self.config.to_string().into_bytes();
        let mut manifest = self.manifest;
        if manifest["config"]["digest"] == "" {
            manifest["config"]["digest"] = digest(&config).into();
            manifest["config"]["size"] = config.len().into();
        }
        let mut all = self.instead;
        all.push(("/manifests/1".into(), ok(manifest.to_string())));
        all.push((format!("/blobs/{}", digest(&config)), ok(config)));
        all.push((format!("/blobs/{}", digest(&self.layer)), ok(self.layer)));
        Server::start(move |path, _| {
            let found = all.iter().find(|(end, _)| path.ends_with(end.as_str()));
            found.map_or(status(404, &[], ""), |(_, answer)| answer.clone())
        })
    }
}

/// A tar with one file.
fn layer() -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut head = tar::Header::new_ustar();
    head.set_size(5);
    head.set_mode(0o644);
    head.set_cksum();
    tar.append_data(&mut head, "a", &b"hello"[..]).unwrap();
    tar.into_inner().unwrap()
}

struct Client {
    folder: tempfile::TempDir,
    images: Images,
}

impl Client {
    fn new(limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let images = Images::open(&folder.path().join("images"), limits).unwrap();
        Self { folder, images }
    }

    fn pull(
        &self,
        server: &Server,
        image: &str,
        credentials: Option<&Credentials>,
    ) -> Result<Image, ImageError> {
        let reference: Reference = format!("localhost:{}/{image}", server.port).parse().unwrap();
        let platform: Platform = "linux/amd64".parse().unwrap();
        let outgoing = Outgoing { reach: Reach::Machine, ..Outgoing::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(self.images.pull(&reference, credentials, &platform, &outgoing, &|_| {}))
    }

    /// Whether a failed pull has left only the beginnings of blobs.
    fn is_clean(&self) -> bool {
        ["layers", "manifests", "work"].iter().all(|name| {
            std::fs::read_dir(self.folder.path().join("images").join(name)).unwrap().count() == 0
        })
    }
}

fn pull(server: &Server) -> Result<Image, ImageError> {
    Client::new(Limits::default()).pull(server, "app:1", None)
}

fn anna() -> Credentials {
    Credentials::Password { user: "anna".into(), password: "secret".into() }
}

#[test]
fn messages() {
    let zeros = format!("sha256:{}", "0".repeat(64));
    let new = Contents::new;
    let not_found = |code: &str| {
        status(404, &[], &json!({"errors": [{"code": code, "message": "x"}]}).to_string())
    };
    let with_layer = |layer: Vec<u8>| Contents::of(layer);
    let kind = |kind: &str| {
        let kind = kind.to_owned();
        new().manifest(move |all| all["layers"][0]["mediaType"] = kind.into())
    };
    let configuration = |kind: &str| {
        let kind = kind.to_owned();
        new().manifest(move |all| all["config"]["mediaType"] = kind.into())
    };
    let path = new().layer_path();
    let bearer = |realm: &str| {
        let value = format!("Bearer realm=\"{realm}\",service=\"s\"");
        new().instead("/manifests/1", status(401, &[("www-authenticate", &value)], ""))
    };
    let mut short = ok(layer());
    short.body.truncate(700);
    let mut changed = layer();
    changed[520] ^= 1;
    let cases: Vec<(&str, Contents)> = vec![
        ("no such image", new().instead("/manifests/1", not_found("NAME_UNKNOWN"))),
        ("no such tag", new().instead("/manifests/1", not_found("MANIFEST_UNKNOWN"))),
        ("not found without a reason", new().instead("/manifests/1", status(404, &[], "<html>"))),
        ("login needed", new().instead("/manifests/1", status(401, &[("www-authenticate", "Basic realm=\"x\"")], ""))),
        ("a login of another kind", new().instead("/manifests/1", status(401, &[("www-authenticate", "Negotiate")], ""))),
        ("forbidden", new().instead("/manifests/1", status(403, &[], ""))),
        ("too many requests", new().instead("/manifests/1", status(429, &[("retry-after", "60")], ""))),
        ("a failure", new().instead("/manifests/1", status(500, &[], r#"{"errors":[{"code":"UNKNOWN","message":"disk\u001b[31m full"}]}"#))),
        ("tokens from an address without TLS", bearer("http://10.0.0.1/token")),
        ("tokens from no address", bearer("token")),
        ("tokens from a file", bearer("file:///etc/passwd")),
        ("a redirect without TLS", new().instead("/manifests/1", status(307, &[("location", "http://10.0.0.1/")], ""))),
        ("a redirect to nothing", new().instead("/manifests/1", status(307, &[], ""))),
        ("redirects without end", new().instead("/manifests/1", status(307, &[("location", "/v2/app/manifests/1")], ""))),
        ("a page", new().instead("/manifests/1", ok("<html>"))),
        ("an empty document", new().instead("/manifests/1", ok("{}"))),
        ("a long manifest", new().instead("/manifests/1", ok(vec![b' '; 5 << 20]))),
        ("another digest than announced", new().instead("/manifests/1", Answer { fields: vec![("docker-content-digest", zeros.clone())], ..ok(Contents::new().manifest.to_string()) })),
        ("an old manifest", new().manifest(|all| *all = json!({"schemaVersion": 1, "fsLayers": []}))),
        ("an index and a manifest", new().manifest(|all| all["manifests"] = json!([]))),
        ("an empty index", new().manifest(|all| *all = json!({"schemaVersion": 2, "manifests": []}))),
        ("a helm chart", configuration("application/vnd.cncf.helm.config.v1+json")),
        ("an artifact", configuration("application/vnd.oci.empty.v1+json").manifest(|all| all["artifactType"] = "application/vnd.example+type".into())),
        ("wasm", configuration("application/vnd.wasm.config.v0+json")),
        ("a foreign layer", kind("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip")),
        ("an encrypted layer", kind("application/vnd.oci.image.layer.v1.tar+gzip+encrypted")),
        ("another compression", kind("application/vnd.oci.image.layer.v1.tar+xz")),
        ("another type of layer", kind("text/plain")),
        ("another compression than said", with_layer(b"\xfd7zXZ\0 and so on".to_vec())),
        ("a layer that is text", with_layer(b"hello".repeat(200))),
        ("another algorithm", new().manifest(|all| all["layers"][0]["digest"] = format!("sha512:{}", "0".repeat(128)).into())),
        ("a digest with a path", new().manifest(|all| all["layers"][0]["digest"] = "sha256:../../../x".into())),
        ("no layers", new().manifest(|all| all["layers"] = json!([])).config(|all| all["rootfs"]["diff_ids"] = json!([]))),
        ("too many layers", new().manifest(|all| all["layers"] = vec![all["layers"][0].clone(); 129].into())),
        ("too many bytes", new().manifest(|all| all["layers"][0]["size"] = (9_u64 << 30).into())),
        ("more bytes than numbers have", new().manifest(|all| all["layers"] = vec![json!({"mediaType": format!("{KIND}layer.v1.tar"), "digest": zeros, "size": u64::MAX}); 3].into())),
        ("a long configuration", new().manifest(|all| all["config"] = json!({"mediaType": format!("{KIND}config.v1+json"), "digest": zeros, "size": 5 << 20}))),
        ("another number of layers", new().config(|all| all["rootfs"]["diff_ids"] = json!([zeros, zeros]))),
        ("another machine", new().config(|all| all["architecture"] = "s390x".into())),
        ("another system", new().config(|all| all["os"] = "windows".into())),
        ("a configuration without roots", new().config(|all| *all = json!({"architecture": "amd64", "os": "linux"}))),
        ("a NUL in an argument", new().config(|all| all["config"]["Cmd"] = json!(["a\u{0}b"]))),
        ("another unpacked layer", new().config(|all| all["rootfs"]["diff_ids"] = json!([zeros]))),
        ("a changed layer", new().instead(&path, ok(changed))),
        ("a long layer", new().instead(&path, ok([layer(), vec![0; 512]].concat()))),
        ("a short layer", new().instead(&path, short.clone())),
        ("a layer that breaks off", new().instead(&path, Answer { length: Some(layer().len() as u64), ..short })),
        ("a missing layer", new().instead(&path, status(404, &[], r#"{"errors":[{"code":"BLOB_UNKNOWN","message":"blob unknown to registry"}]}"#))),
        ("a part of a layer that was not asked for", new().instead(&path, Answer { status: 206, fields: vec![("content-range", "bytes 5-9/10".into())], ..ok("hello") })),
    ];
    let mut all = String::new();
    for (name, contents) in cases {
        let server = contents.start();
        let client = Client::new(Limits::default());
        let error = client.pull(&server, "app:1", None).map(|_| ()).expect_err(name);
        assert!(client.is_clean(), "{name}: something was kept");
        let mut text = format!("{} {} {error}", error.code(), error.http_status());
        let mut cause = std::error::Error::source(&error);
        while let Some(inner) = cause {
            write!(text, ": {inner}").unwrap();
            cause = inner.source();
        }
        let hint = error.hint().unwrap_or_default();
        let text = text.replace(&format!("localhost:{}", server.port), "REGISTRY");
        let hint = hint.replace(&format!("localhost:{}", server.port), "REGISTRY");
        assert!(!text.contains('\u{1b}') && !text.contains("localhost"), "{name}: {text}");
        writeln!(all, "{name}\n  {text}\n  {hint}").unwrap();
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostile_registry.txt");
    if std::env::var_os("MOTE_BLESS").is_some() {
        std::fs::write(path, &all).unwrap();
    }
    let stored = std::fs::read_to_string(path).unwrap_or_default();
    for (new, old) in all.lines().zip(stored.lines()) {
        assert_eq!(new, old, "{path} is stale; MOTE_BLESS=1 rewrites it");
    }
    assert_eq!(all.lines().count(), stored.lines().count());
}

#[test]
fn indexes_in_indexes() {
    // Each index names the next one, and no index names an image.
    let mut documents = vec![(digest(b"{}"), b"{}".to_vec())];
    for _ in 0..6 {
        let (below, json) = documents.last().unwrap();
        let index = json!({"schemaVersion": 2, "manifests": [
            {"mediaType": format!("{KIND}index.v1+json"), "digest": below, "size": json.len()}]});
        let index = index.to_string().into_bytes();
        documents.push((digest(&index), index));
    }
    let (_, top) = documents.last().unwrap().clone();
    let server = Server::start(move |path, _| {
        let found = documents.iter().find(|(digest, _)| path.ends_with(digest.as_str()));
        ok(found.map_or(top.clone(), |(_, json)| json.clone()))
    });
    let error = pull(&server).unwrap_err().to_string();
    assert!(error.ends_with("cannot be read: indexes are nested more than 4 deep"), "{error}");
    assert_eq!(server.requests().len(), 4);
}

#[test]
fn a_wrong_manifest_for_a_digest() {
    let server = Contents::new().start();
    let client = Client::new(Limits::default());
    let zeros = format!("sha256:{}", "0".repeat(64));
    let server_with = Server::start(|_, _| ok("{}"));
    let error = client.pull(&server_with, &format!("app@{zeros}"), None).unwrap_err();
    assert!(error.to_string().contains("has the digest sha256:4413"), "{error}");
    // With the right digest, the pull succeeds.
    let image = client.pull(&server, "app:1", None).unwrap();
    let pinned = client.pull(&server, &format!("app:2@{}", image.digest), None).unwrap();
    assert_eq!(pinned.layers, image.layers, "the digest counts, and not the tag");
    assert_eq!(std::fs::read(image.layers[0].join("a")).unwrap(), b"hello");
}

#[test]
fn passwords_and_tokens() {
    let tokens = Server::start(|_, fields| match fields.get("authorization") {
        Some(basic) if basic == "Basic YW5uYTpzZWNyZXQ=" => {
            ok(r#"{"token": "t1", "expires_in": 300}"#)
        }
        Some(_) => status(401, &[], ""),
        None => match fields.get("(body)").map(String::as_str) {
            Some(form)
                if form.contains("grant_type=refresh_token")
                    && form.ends_with("refresh_token=long%20lived") =>
            {
                ok(r#"{"access_token": "t1"}"#)
            }
            Some(_) => status(400, &[], ""),
            None => ok(r#"{"access_token": "t0"}"#),
        },
    });
    let realm = format!("http://localhost:{}/token?a=b", tokens.port);
    let inner = Contents::new().start();
    let inner_port = inner.port;
    let registry = Server::start(move |path, fields| {
        let challenge = format!(
            "Bearer realm=\"{realm}\",service=\"the registry\",scope=\"repository:app:pull\""
        );
        match fields.get("authorization").map(String::as_str) {
            Some("Bearer t1") => fetch(inner_port, path),
            Some("Bearer t0") => status(403, &[], ""),
            _ => status(401, &[("www-authenticate", &challenge)], ""),
        }
    });
    let client = Client::new(Limits::default());
    let image = client.pull(&registry, "app:1", Some(&anna())).unwrap();
    assert_eq!(image.config.cmd, ["/a"]);
    let asked = tokens.requests();
    assert_eq!(asked.len(), 1, "one token for all requests");
    assert_eq!(asked[0].0, "/token?a=b&scope=repository%3Aapp%3Apull&service=the%20registry");
    for (path, fields) in registry.requests() {
        let sent = fields.get("authorization").map(String::as_str);
        assert!(
            matches!(sent, None | Some("Bearer t1")),
            "{path}: the password is for tokens only"
        );
    }
    let client = Client::new(Limits::default());
    let error = client.pull(&registry, "app:1", None).unwrap_err();
    assert!(matches!(error, ImageError::LoginNeeded { .. }), "{error}");
    let wrong = Credentials::Password { user: "anna".into(), password: "wrong".into() };
    let error = client.pull(&registry, "app:1", Some(&wrong)).unwrap_err();
    assert!(matches!(error, ImageError::WrongPassword { .. }), "{error}");
    let count = tokens.requests().len();
    let token = Credentials::IdentityToken("expired".into());
    let error = client.pull(&registry, "app:1", Some(&token)).unwrap_err();
    assert!(matches!(error, ImageError::WrongPassword { .. }), "{error}");
    assert_eq!(tokens.requests().len() - count, 1, "it does not ask for ever");
    let token = Credentials::IdentityToken("long lived".into());
    client.pull(&registry, "app:1", Some(&token)).unwrap();
}

/// Forwards a request.
fn fetch(port: u16, path: &str) -> Answer {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let at = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let status = String::from_utf8_lossy(&all[9..12]).parse().unwrap();
    Answer { status, body: all[at + 4..].to_vec(), ..Answer::default() }
}

#[test]
fn redirects_receive_no_password() {
    let layer = layer();
    let store = Server::start({
        let layer = layer.clone();
        move |_, _| ok(layer.clone())
    });
    let contents = Contents::new();
    let location = format!("http://127.0.0.1:{}/anywhere?signature=x", store.port);
    let path = contents.layer_path();
    let inner = contents.instead(&path, status(307, &[("location", &location)], "")).start();
    let inner_port = inner.port;
    let registry = Server::start(move |path, fields| match fields.get("authorization") {
        Some(_) if path.contains("/blobs/") && path.ends_with(&digest(&layer)) => {
            status(307, &[("location", &location)], "")
        }
        Some(_) => fetch(inner_port, path),
        None => status(401, &[("www-authenticate", "Basic realm=\"x\"")], ""),
    });
    let client = Client::new(Limits::default());
    client.pull(&registry, "app:1", Some(&anna())).unwrap();
    let asked = store.requests();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].1.get("authorization"), None);
    // The first request contains no password, because the registry has not asked for one.
    assert_eq!(registry.requests()[0].1.get("authorization"), None);
}

#[test]
fn downloads_are_continued() {
    let big: Vec<u8> = {
        let mut tar = tar::Builder::new(Vec::new());
        let content: Vec<u8> = (0..3_u32 << 20).map(|at| (at % 251) as u8).collect();
        let mut head = tar::Header::new_ustar();
        head.set_size(content.len() as u64);
        head.set_mode(0o644);
        head.set_cksum();
        tar.append_data(&mut head, "big", &content[..]).unwrap();
        tar.into_inner().unwrap()
    };
    for does_ranges in [true, false] {
        let contents = Contents::of(big.clone());
        let (path, inner) = (contents.layer_path(), contents.start());
        let (inner_port, layer) = (inner.port, big.clone());
        let server = Server::start(move |asked, fields| {
            if !asked.ends_with(&path) {
                return fetch(inner_port, asked);
            }
            let from = fields
                .get("range")
                .filter(|_| does_ranges)
                .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok())
                .unwrap_or(0_usize);
            let total = layer.len();
            // A request with a range receives everything from the offset to the end.
            let most = if fields.contains_key("range") { total } else { 1 << 20 };
            let end = total.min(from + most);
            let mut answer = ok(&layer[from..end]);
            answer.length = Some((total - from) as u64);
            if from > 0 {
                answer.status = 206;
                answer.fields =
                    vec![("content-range", format!("bytes {from}-{}/{total}", total - 1))];
            }
            answer
        });
        let client = Client::new(Limits::default());
        let image = client.pull(&server, "app:1", None).unwrap();
        assert_eq!(image.layers[0].join("big").metadata().unwrap().len(), 3 << 20);
        let ranges: Vec<String> = server
            .requests()
            .iter()
            .filter_map(|(_, fields)| fields.get("range").cloned())
            .collect();
        assert_eq!(ranges, ["bytes=1048576-"]);
    }
}

/// A process that ends during a download leaves the beginning of a layer, and the next process
/// continues it.
#[test]
fn a_restart_in_the_middle() {
    let contents = Contents::new();
    let path = contents.layer_path();
    let mut first = ok(&layer()[..600]);
    first.length = Some(layer().len() as u64);
    first.stalls = true;
    let inner = contents.start();
    let (port, is_first) = (inner.port, AtomicBool::new(true));
    // It does not support ranges, but it records the requests.
    let server = Server::start(move |asked, _| {
        match asked.ends_with(&path) && is_first.swap(false, Ordering::SeqCst) {
            true => first.clone(),
            false => fetch(port, asked),
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { time: Duration::from_secs(2), ..Limits::default() };
    let images = Images::open(&folder.path().join("images"), limits).unwrap();
    let client = Client { folder, images };
    let error = client.pull(&server, "app:1", None).unwrap_err();
    assert!(matches!(error, ImageError::Timeout { .. }), "{error}");
    assert!(client.is_clean());
    let Client { folder, images } = client;
    drop(images);
    let images = Images::open(&folder.path().join("images"), Limits::default()).unwrap();
    let client = Client { folder, images };
    client.pull(&server, "app:1", None).unwrap();
    let ranges: Vec<String> =
        server.requests().iter().filter_map(|(_, fields)| fields.get("range").cloned()).collect();
    assert_eq!(ranges, ["bytes=600-"]);
}

/// What one registry sends, or does not send, does not touch pulls from others.
#[test]
fn a_registry_that_stalls_or_lies_harms_only_its_own_images() {
    let contents = Contents::new();
    let path = contents.layer_path();
    let limits = Limits { time: Duration::from_secs(5), ..Limits::default() };
    let client = Client::new(limits);
    let mut stalls = ok(&layer()[..600]);
    stalls.length = Some(layer().len() as u64);
    stalls.stalls = true;
    let mut lies = ok(vec![0; 600]);
    lies.length = Some(layer().len() as u64);
    let liar = contents.clone().instead(&path, lies).start();
    let error = client.pull(&liar, "app:1", None).unwrap_err();
    assert!(matches!(error, ImageError::Truncated { .. }), "{error}");
    let slow = contents.clone().instead(&path, stalls).start();
    let honest = contents.start();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.pull(&slow, "app:1", None));
        while !slow.requests().iter().any(|(asked, _)| asked.ends_with(&path)) {
            std::thread::yield_now();
        }
        client.pull(&honest, "app:1", None).unwrap();
        assert!(!waiting.is_finished(), "the slow registry still sends nothing");
        waiting.join().unwrap().unwrap_err();
    });
    let ranges = honest.requests().iter().any(|(_, fields)| fields.contains_key("range"));
    assert!(!ranges, "nothing of another registry was continued");
}

#[test]
fn more_than_the_disk_has() {
    let limits = Limits { packed_bytes: u64::MAX, ..Limits::default() };
    let server =
        Contents::new().manifest(|all| all["layers"][0]["size"] = (1_u64 << 60).into()).start();
    let error = Client::new(limits).pull(&server, "app:1", None).unwrap_err();
    assert_eq!(error.code(), "M0703");
    assert!(
        error.to_string().starts_with("no space left for 1099511627776 MiB of the image: "),
        "{error}"
    );
}
