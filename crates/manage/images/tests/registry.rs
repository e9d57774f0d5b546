//! Pulls images from a real registry, Debian's `docker-registry`, to which skopeo has pushed them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use mote_images::{
    Credentials, Image, ImageError, Images, Limits, Platform, Progress, Reference,
    credentials_from_docker_config,
};
use mote_outgoing::{Outgoing, Reach};

#[allow(unreachable_pub)] // the end-to-end tests include this file, too
#[path = "registry_server/process.rs"]
mod server;

use server::{Asks, PASSWORD, Registry, USER, has, layout, run};

const AMD64: (&str, &str) = ("linux", "amd64");
const ARM64: (&str, &str) = ("linux", "arm64");

fn images() -> (tempfile::TempDir, Images) {
    let folder = tempfile::tempdir().unwrap();
    let images = Images::open(&folder.path().join("images"), Limits::default()).unwrap();
    (folder, images)
}

fn anna() -> Credentials {
    Credentials::Password { user: USER.to_owned(), password: PASSWORD.to_owned() }
}

/// This machine's registries are reached.
fn outgoing() -> Outgoing {
    Outgoing { reach: Reach::Machine, ..Outgoing::default() }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

fn pull_for(
    images: &Images,
    name: &str,
    credentials: Option<&Credentials>,
    platform: &str,
) -> Result<Image, ImageError> {
    let reference: Reference = name.parse().unwrap();
    let platform: Platform = platform.parse().unwrap();
    wait(images.pull(&reference, credentials, &platform, &outgoing(), &|_| {}))
}

fn pull(
    images: &Images,
    name: &str,
    credentials: Option<&Credentials>,
) -> Result<Image, ImageError> {
    pull_for(images, name, credentials, "linux/amd64")
}

/// The error's code, text and hint, without the parts that differ between runs.
fn refused(result: Result<Image, ImageError>, registry: &Registry) -> String {
    let error = result.expect_err("refused");
    let text = format!("{} {error}\n  {}", error.code(), error.hint().unwrap_or_default());
    text.replace(&format!("localhost:{}", registry.port), "REGISTRY")
}

/// The files that a container would see when overlayfs joins the layers.
fn root(image: &Image) -> BTreeMap<String, String> {
    use std::os::unix::fs::FileTypeExt as _;
    let mut all = BTreeMap::new();
    for layer in &image.layers {
        let mut folders = vec![layer.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(layer).unwrap().display().to_string();
                let kind = path.symlink_metadata().unwrap().file_type();
                if kind.is_dir() {
                    folders.push(path);
                } else if kind.is_char_device() {
                    let below = format!("{name}/");
                    all.retain(|known: &String, _| *known != name && !known.starts_with(&below));
                } else {
                    all.insert(name, std::fs::read_to_string(path).unwrap());
                }
            }
        }
    }
    all
}

fn files(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

/// Runs the calling test again in a process that trusts the registry's authority. In that process,
/// returns the registry's address. In the calling process, returns `None` after the other has
/// passed.
fn trusting(test: &str, prepare: impl FnOnce(&Registry)) -> Option<String> {
    if let Ok(address) = std::env::var("MOTE_TEST_REGISTRY") {
        return Some(address);
    }
    let registry = Registry::start(Asks { tls: true, password: true })?;
    prepare(&registry);
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("MOTE_TEST_REGISTRY", registry.name(""))
        .env("SSL_CERT_FILE", registry.authority())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        registry.log()
    );
    None
}

#[test]
fn over_tls_with_a_password() {
    let test = "over_tls_with_a_password";
    let Some(address) = trusting(test, |registry| {
        let folder = tempfile::tempdir().unwrap();
        let layers: [server::Files<'_>; 2] = [
            &[("etc/a", Some("one")), ("etc/b", Some("two"))],
            &[("etc/a", None), ("c", Some("x"))],
        ];
        let config =
            r#"{"Entrypoint": ["/server"], "Env": ["A=b"], "ExposedPorts": {"80/tcp": {}}}"#;
        layout(folder.path(), &layers, config, AMD64);
        registry.push(&format!("oci:{}", folder.path().display()), "team/app:1", &[]);
    }) else {
        return;
    };
    let name = format!("{address}team/app:1");
    let (folder, images) = images();
    let image = pull(&images, &name, Some(&anna())).unwrap();
    assert_eq!(root(&image), files(&[("etc/b", "two"), ("c", "x")]));
    assert_eq!(image.config.entrypoint, ["/server"]);
    assert_eq!(image.config.ports, [80]);
    assert_eq!(image.name, format!("{name}@{}", image.digest));
    assert_eq!(image.bytes, 7 + 3 * 4096, "three files, two folders and a marker");
    // The file of `docker login`.
    let login = server_login(folder.path(), &address, PASSWORD);
    let reference: Reference = name.parse().unwrap();
    assert_eq!(credentials_from_docker_config(&login, &reference).unwrap(), Some(anna()));
    // The errors name the registry.
    let registry = address.trim_end_matches('/');
    let said =
        |error: ImageError| format!("{} {error}", error.code()).replace(registry, "REGISTRY");
    let without = pull(&images, &name, None).unwrap_err();
    assert_eq!(
        said(without),
        "M1502 the registry REGISTRY does not give REGISTRY/team/app to a client without a login"
    );
    let wrong = Credentials::Password { user: USER.into(), password: "wrong".into() };
    let wrong = pull(&images, &name, Some(&wrong)).unwrap_err();
    assert_eq!(
        said(wrong),
        "M1502 the registry REGISTRY does not accept the user name and password"
    );
    // A name with a digest no longer needs the registry.
    let pinned = format!("{address}team/app@{}", image.digest);
    let again = pull(&images, &pinned, None).unwrap();
    assert_eq!(again.layers, image.layers);
}

fn server_login(folder: &Path, address: &str, password: &str) -> std::path::PathBuf {
    let path = folder.join("config.json");
    run(Command::new("skopeo").args(["login", "-u", USER, "-p", password]).args([
        "--tls-verify=false",
        "--authfile",
        path.to_str().unwrap(),
        address.trim_end_matches('/'),
    ]));
    path
}

#[test]
fn a_registry_that_is_not_trusted() {
    let Some(registry) = Registry::start(Asks { tls: true, password: false }) else { return };
    let (_folder, images) = images();
    let said = refused(pull(&images, &registry.name("app"), None), &registry);
    assert!(said.starts_with("M1503 the certificate of localhost is not trusted: "), "{said}");
    assert!(said.contains("update-ca-certificates"), "{said}");
}

#[test]
fn names_that_are_not_there() {
    let Some(mut registry) = Registry::start(Asks::default()) else { return };
    let folder = tempfile::tempdir().unwrap();
    layout(folder.path(), &[&[("a", Some("x"))]], "{}", AMD64);
    registry.push(&format!("oci:{}", folder.path().display()), "app:1", &[]);
    let (_folder, images) = images();
    let digest = format!("sha256:{}", "0".repeat(64));
    for (name, expected) in [
        ("other:1".to_owned(), "M1501 no image `REGISTRY/other` in the registry REGISTRY"),
        ("app:2".to_owned(), "M1501 the image REGISTRY/app has no tag `2`\n  its tags are: 1"),
        ("app".to_owned(), "M1501 the image REGISTRY/app has no tag `latest`"),
        (format!("app@{digest}"), "M1501 the image REGISTRY/app has no manifest sha256:000000"),
    ] {
        let said = refused(pull(&images, &registry.name(&name), None), &registry);
        assert!(said.starts_with(expected), "{said}");
    }
    registry.stop();
    let said = refused(pull(&images, &registry.name("app:1"), None), &registry);
    assert!(said.starts_with("M1503 the registry REGISTRY cannot be reached\n"), "{said}");
    // The node's setting forbids this machine.
    let reference: Reference = registry.name("app:1").parse().unwrap();
    let public = Outgoing::default();
    let result = wait(images.pull(&reference, None, &Platform::host(), &public, &|_| {}));
    let said = refused(result, &registry);
    assert!(said.contains("the node's setting `outgoing`"), "{said}");
}

#[test]
fn a_tag_that_moves_and_a_registry_that_is_away() {
    let Some(mut registry) = Registry::start(Asks::default()) else { return };
    let (folder, images) = images();
    let name = registry.name("app:1");
    let push = |registry: &Registry, text: &str| {
        let folder = tempfile::tempdir().unwrap();
        let layers: [server::Files<'_>; 2] = [&[("base", Some("base"))], &[("a", Some(text))]];
        layout(folder.path(), &layers, "{}", AMD64);
        registry.push(&format!("oci:{}", folder.path().display()), "app:1", &[]);
    };
    push(&registry, "one");
    let one = pull(&images, &name, None).unwrap();
    push(&registry, "two");
    let two = pull(&images, &name, None).unwrap();
    assert_ne!(one.digest, two.digest);
    assert_eq!(one.layers[0], two.layers[0], "the base is kept once");
    assert_eq!(root(&two), files(&[("base", "base"), ("a", "two")]));
    let count = registry.log().matches("blobs/sha256").count();
    pull(&images, &name, None).unwrap();
    assert_eq!(registry.log().matches("blobs/sha256").count(), count, "nothing is downloaded");
    registry.stop();
    let (digest, layers) = (one.digest.clone(), one.layers.clone());
    drop((one, two, images));
    let images = Images::open(&folder.path().join("images"), Limits::default()).unwrap();
    let one = images.get(&digest).unwrap().expect("still there");
    assert_eq!(one.layers, layers);
    // Only what is in use stays.
    drop(one);
    let collected = images.collect_garbage(std::slice::from_ref(&digest)).unwrap();
    assert_eq!((collected.images, collected.layers), (1, 1));
    let one = images.get(&digest).unwrap().expect("still there");
    assert_eq!(root(&one), files(&[("base", "base"), ("a", "one")]));
    assert_eq!(images.collect_garbage(&[]).unwrap().images, 0, "it is leased");
    drop(one);
    let collected = images.collect_garbage(&[]).unwrap();
    assert_eq!((collected.images, collected.layers), (1, 2));
    assert!(images.get(&digest).unwrap().is_none());
}

#[test]
fn platforms() {
    let Some(registry) = Registry::start(Asks::default()) else { return };
    let folder = tempfile::tempdir().unwrap();
    layout(folder.path(), &[&[("arch", Some("amd64"))]], "{}", AMD64);
    layout(folder.path(), &[&[("arch", Some("arm64"))]], "{}", ARM64);
    // skopeo copies all entries of an index only if the layout has one entry, the index.
    nest_index(folder.path());
    let from = format!("oci:{}", folder.path().display());
    registry.push(&from, "app:1", &["--all"]);
    let (_folder, images) = images();
    for arch in ["amd64", "arm64"] {
        let image =
            pull_for(&images, &registry.name("app:1"), None, &format!("linux/{arch}")).unwrap();
        assert_eq!(root(&image), files(&[("arch", arch)]));
    }
    let said =
        refused(pull_for(&images, &registry.name("app:1"), None, "linux/riscv64"), &registry);
    assert!(
        said.starts_with(
            "M1504 REGISTRY/app:1 is not for linux/riscv64; it is for linux/amd64, linux/arm64\n"
        ),
        "{said}"
    );
    // A name with the digest of the index no longer needs the registry.
    let index = index_digest(&registry);
    let pinned = registry.name(&format!("app@{index}"));
    let requests = |registry: &Registry| registry.log().matches("mote/").count();
    for arch in ["amd64", "arm64"] {
        let image = pull_for(&images, &pinned, None, &format!("linux/{arch}")).unwrap();
        assert_ne!(image.digest, index);
        let before = requests(&registry);
        let again = pull_for(&images, &pinned, None, &format!("linux/{arch}")).unwrap();
        assert_eq!((again.digest, requests(&registry)), (image.digest, before), "{arch}");
    }
    // An image without an index names its own platform.
    let folder = tempfile::tempdir().unwrap();
    layout(folder.path(), &[&[("arch", Some("arm64"))]], "{}", ARM64);
    registry.push(&format!("oci:{}", folder.path().display()), "arm:1", &[]);
    let said = refused(pull(&images, &registry.name("arm:1"), None), &registry);
    assert!(said.contains("is not for linux/amd64; it is for linux/arm64"), "{said}");
}

/// The digest of the index `app:1`, as the registry knows it.
fn index_digest(registry: &Registry) -> String {
    let text = run(Command::new("skopeo").args([
        "inspect",
        "--tls-verify=false",
        "--raw",
        &format!("docker://{}", registry.name("app:1")),
    ]));
    let path = registry.folder.path().join("index.json");
    std::fs::write(&path, text).unwrap();
    let sum = run(Command::new("sha256sum").arg(&path));
    format!("sha256:{}", sum.split(' ').next().unwrap())
}

/// Opens an archive. A folder is packed.
fn archive(path: &str) -> File {
    if !Path::new(path).is_dir() {
        return File::open(path).unwrap();
    }
    let packed = format!("{path}.packed");
    run(Command::new("tar").args(["-C", path, "-cf", &packed, "."]));
    File::open(packed).unwrap()
}

/// Turns the index of a layout into a separate document.
fn nest_index(folder: &Path) {
    let script = "import hashlib, json, sys
folder = sys.argv[1]
index = json.load(open(folder + '/index.json'))
index['mediaType'] = 'application/vnd.oci.image.index.v1+json'
data = json.dumps(index).encode()
digest = hashlib.sha256(data).hexdigest()
open(folder + '/blobs/sha256/' + digest, 'wb').write(data)
entry = {'mediaType': index['mediaType'], 'digest': 'sha256:' + digest, 'size': len(data)}
json.dump({'schemaVersion': 2, 'manifests': [entry]}, open(folder + '/index.json', 'w'))";
    run(Command::new("python3").args(["-c", script]).arg(folder));
}

#[test]
fn forms_of_images_and_archives() {
    let Some(registry) = Registry::start(Asks::default()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let text = "a line of text\n".repeat(5_000);
    let layers: [server::Files<'_>; 2] =
        [&[("a", Some(&text)), ("d/gone", Some("x"))], &[("d/gone", None)]];
    layout(&folder.path().join("layout"), &layers, r#"{"Cmd": ["/a"]}"#, AMD64);
    let from = format!("oci:{}", path("layout"));
    let expected = files(&[("a", &text)]);
    for (name, flags) in [
        ("oci:1", &["--format", "oci"][..]),
        ("docker:1", &["--format", "v2s2"]),
        ("gzip:1", &["--dest-compress-format", "gzip", "--dest-compress"]),
        ("zstd:1", &["--dest-compress-format", "zstd", "--dest-compress"]),
    ] {
        registry.push(&from, name, flags);
        let (_folder, images) = images();
        let image = pull(&images, &registry.name(name), None).unwrap();
        assert_eq!(root(&image), expected, "{name}");
        assert_eq!(image.config.cmd, ["/a"], "{name}");
    }
    let copy =
        |to: &str| run(Command::new("skopeo").args(["--insecure-policy", "copy", "-q", &from, to]));
    copy(&format!("docker-archive:{}:example.org/app:1", path("docker.tar")));
    copy(&format!("oci-archive:{}:app", path("oci.tar")));
    run(Command::new("gzip").arg("-k").arg(path("docker.tar")));
    if has("zstd") {
        run(Command::new("zstd").args(["-q", &path("oci.tar"), "-o", &path("oci.tar.zst")]));
    }
    let mut digests = Vec::new();
    for name in ["docker.tar", "docker.tar.gz", "oci.tar", "oci.tar.zst", "layout"] {
        if name == "oci.tar.zst" && !Path::new(&path(name)).exists() {
            continue;
        }
        let (_folder, images) = images();
        let platform = Platform::host();
        let image = images.import(archive(&path(name)), None, &platform, &|_| {}).unwrap();
        assert_eq!(root(&image), expected, "{name}");
        assert_eq!(image.config.cmd, ["/a"], "{name}");
        digests.push(image.digest.clone());
        let again = images.import(archive(&path(name)), None, &platform, &|_| {}).unwrap();
        assert_eq!(again.layers, image.layers, "{name}");
    }
    assert_eq!(digests[0], digests[1]);
    // Several images in one archive.
    let (_folder, images) = images();
    let other = folder.path().join("other");
    layout(&other, &[&[("b", Some("other"))]], "{}", AMD64);
    let several = path("several");
    copy(&format!("oci:{several}:one"));
    let from = format!("oci:{}", other.display());
    run(Command::new("skopeo").args([
        "--insecure-policy",
        "copy",
        "-q",
        &from,
        &format!("oci:{several}:two"),
    ]));
    let import =
        |name: Option<&str>| images.import(archive(&several), name, &Platform::host(), &|_| {});
    let error = import(None).unwrap_err();
    assert_eq!(error.to_string(), "the archive has several images: one, two");
    assert_eq!(error.hint().unwrap(), "save only one of them: docker save NAME -o FILE");
    let two = import(Some("two")).unwrap();
    assert_eq!(root(&two), files(&[("b", "other")]));
    let error = import(Some("three")).unwrap_err();
    assert_eq!(error.to_string(), "the archive has no image `three`, only one, two");
}

#[test]
fn layers_of_other_builders() {
    let Some(registry) = Registry::start(Asks::default()) else { return };
    if !(has("buildah") && has("umoci")) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    // umoci compares two roots, so it writes markers for deleted files, and GNU or PAX headers.
    let script = r#"set -e
        umoci init --layout layout
        umoci new --image layout:base
        umoci unpack --rootless --image layout:base bundle
        long=$(printf 'd%.0s' $(seq 120))
        mkdir -p bundle/rootfs/etc bundle/rootfs/$long/$long
        echo one >bundle/rootfs/etc/a; echo two >bundle/rootfs/etc/b
        echo deep >bundle/rootfs/$long/$long/file
        ln bundle/rootfs/etc/b bundle/rootfs/etc/c
        ln -s a bundle/rootfs/etc/link
        chmod 4755 bundle/rootfs/etc/a
        umoci repack --image layout:base bundle >&2
        rm bundle/rootfs/etc/a; echo three >bundle/rootfs/etc/b; rm -r bundle/rootfs/$long
        umoci repack --refresh-bundle --image layout:next bundle >&2"#;
    run(Command::new("bash").args(["-c", script]).current_dir(dir));
    registry.push(&format!("oci:{}:next", dir.join("layout").display()), "umoci:1", &[]);
    let (_folder, images) = images();
    let image = pull(&images, &registry.name("umoci:1"), None).unwrap();
    let root_files = root_without_links(&image);
    assert_eq!(root_files.get("etc/b").map(String::as_str), Some("three\n"), "{root_files:?}");
    assert!(!root_files.contains_key("etc/a"), "{root_files:?}");
    // buildah, from nothing.
    std::fs::write(dir.join("program"), "#!/bin/sh\n").unwrap();
    let script = r#"set -e
        b() { buildah --root "$PWD/store" --runroot "$PWD/run" --storage-driver vfs "$@"; }
        c=$(b from scratch)
        b copy --chmod 755 "$c" program /bin/program >&2
        b config --entrypoint '["/bin/program"]' --port 8080 --env GREETING=hello --workingdir /srv --user 1000 "$c"
        b commit -q "$c" built >&2
        b push -q built docker-archive:built.tar:built:1 >&2
        b push -q --tls-verify=false built docker://$NAME >&2"#;
    run(Command::new("bash")
        .args(["-c", script])
        .env("NAME", registry.name("built:1"))
        .current_dir(dir));
    let pulled = pull(&images, &registry.name("built:1"), None).unwrap();
    let built = archive(&dir.join("built.tar").display().to_string());
    let imported = images.import(built, None, &Platform::host(), &|_| {}).unwrap();
    assert_eq!(pulled.layers, imported.layers, "one layer, kept once");
    assert_eq!(pulled.config, imported.config);
    assert_eq!(pulled.config.entrypoint, ["/bin/program"]);
    assert_eq!((pulled.config.user.as_str(), pulled.config.work_dir.as_str()), ("1000", "/srv"));
    assert_eq!(pulled.config.ports, [8080]);
    assert!(pulled.config.env.contains(&("GREETING".to_owned(), "hello".to_owned())));
    use std::os::unix::fs::PermissionsExt as _;
    let program = pulled.layers[0].join("bin/program").metadata().unwrap();
    assert_eq!(program.permissions().mode() & 0o7777, 0o755);
}

fn root_without_links(image: &Image) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for layer in &image.layers {
        for name in ["etc/a", "etc/b", "etc/c"] {
            use std::os::unix::fs::FileTypeExt as _;
            let path = layer.join(name);
            match path.symlink_metadata() {
                Ok(meta) if meta.file_type().is_char_device() => {
                    all.remove(name);
                }
                Ok(_) => {
                    all.insert(name.to_owned(), std::fs::read_to_string(&path).unwrap());
                }
                Err(_) => {}
            }
        }
    }
    all
}

/// Several pulls of one image at once download each layer once.
#[test]
fn pulls_at_once() {
    let Some(registry) = Registry::start(Asks::default()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let text = "0123456789abcdef".repeat(200_000);
    let layers: [server::Files<'_>; 3] =
        [&[("a", Some(&text))], &[("b", Some("b"))], &[("c", Some("c"))]];
    layout(folder.path(), &layers, "{}", AMD64);
    registry.push(&format!("oci:{}", folder.path().display()), "app:1", &["--dest-decompress"]);
    let before = registry.log().matches("GET /v2/app/blobs/").count();
    let (_folder, images) = images();
    let reference: Reference = registry.name("app:1").parse().unwrap();
    let progress = Mutex::new(Vec::new());
    let seen = |step: Progress| progress.lock().unwrap().push(step);
    wait(async {
        let platform = Platform::host();
        let outgoing = outgoing();
        let one = || images.pull(&reference, None, &platform, &outgoing, &seen);
        let (a, b, c, d) = tokio::join!(one(), one(), one(), one());
        for image in [&a, &b, &c, &d] {
            assert_eq!(image.as_ref().unwrap().layers, a.as_ref().unwrap().layers);
        }
    });
    let log = registry.log();
    let blobs = log.matches("GET /v2/app/blobs/").count() - before;
    // Each pull reads the configuration, and all of them together read each layer once.
    assert!(blobs <= 4 + 3, "{blobs} requests for blobs:\n{log}");
    let steps = progress.into_inner().unwrap();
    assert!(matches!(steps[0], Progress::Resolved { layers: 3, .. }), "{:?}", steps[0]);
    assert!(steps.contains(&Progress::Unpacked { layers: 3, total: 3 }));
}

/// A download whose connection breaks continues where it stopped.
#[test]
fn broken_connections() {
    let Some(registry) = Registry::start(Asks::default()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let text = run(Command::new("sh").args(["-c", "head -c 6000000 /dev/urandom | base64 -w 0"]));
    layout(folder.path(), &[&[("a", Some(&text))]], "{}", AMD64);
    registry.push(&format!("oci:{}", folder.path().display()), "app:1", &["--dest-decompress"]);
    let relay = Relay::start(registry.port, 3 << 20);
    let (_folder, images) = images();
    let image = pull(&images, &format!("localhost:{}/app:1", relay.port), None).unwrap();
    assert!(root(&image) == files(&[("a", &text)]));
    let total = relay.bytes.load(Ordering::Relaxed);
    assert!(total < 12 << 20, "8 MB needed {total} bytes in connections of at most 3 MiB");
    assert!(relay.connections.load(Ordering::Relaxed) >= 5, "it broke at least twice");
}

/// Forwards connections to a port, and ends each one after this many bytes of the answer.
struct Relay {
    port: u16,
    bytes: Arc<AtomicU64>,
    connections: Arc<AtomicU64>,
}

impl Relay {
    fn start(to: u16, most: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (bytes, connections) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (counted, number) = (bytes.clone(), connections.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                number.fetch_add(1, Ordering::Relaxed);
                let counted = counted.clone();
                let (mut near_in, mut far_out) =
                    (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut near_in, &mut far_out);
                    let _ = far_out.shutdown(std::net::Shutdown::Write);
                });
                std::thread::spawn(move || {
                    let (mut near, mut far) = (near, far);
                    let mut buffer = [0; 16 << 10];
                    let mut left = most;
                    while left > 0 {
                        let want = buffer.len().min(left);
                        let Ok(count @ 1..) = far.read(&mut buffer[..want]) else { break };
                        if near.write_all(&buffer[..count]).is_err() {
                            break;
                        }
                        counted.fetch_add(count as u64, Ordering::Relaxed);
                        left -= count;
                    }
                    let _ = near.shutdown(std::net::Shutdown::Both);
                    let _ = far.shutdown(std::net::Shutdown::Both);
                });
            }
        });
        Self { port, bytes, connections }
    }
}

#[test]
fn files_that_are_not_images() {
    let folder = tempfile::tempdir().unwrap();
    let (_folder, images) = images();
    let import = |bytes: &[u8]| {
        let path = folder.path().join("file.tar");
        std::fs::write(&path, bytes).unwrap();
        let error = images
            .import(File::open(&path).unwrap(), None, &Platform::host(), &|_| {})
            .unwrap_err();
        format!("{} {error}", error.code())
    };
    assert_eq!(
        import(b"text"),
        "M1504 the archive is not a container image: it is not a tar archive"
    );
    assert_eq!(
        import(&[0; 1024]),
        "M1504 the archive is not a container image: it has neither an index.json nor a manifest.json"
    );
}

/// Checks how overlayfs reads the markers in the layers, with both forms of its attributes.
#[test]
fn overlayfs_reads_the_layers() {
    let may_mount = Command::new("unshare")
        .args(["-m", "mount", "-t", "tmpfs", "none", "/mnt"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !may_mount {
        server::skip("mounts", "only root may mount here");
        return;
    }
    let (_folder, images) = images();
    let folder = tempfile::tempdir().unwrap();
    let script = r#"set -e
        mkdir -p one/keep one/gone one/opaque two/opaque two/keep
        echo 1 >one/keep/a; echo 1 >one/gone/a; echo 1 >one/opaque/old; echo 1 >one/file
        echo 2 >two/opaque/new; touch two/opaque/.wh..wh..opq two/.wh.gone two/.wh.file two/keep/.wh.missing
        for layer in one two; do tar -C $layer -cf $layer.tar .; done
        python3 - <<'END'
import hashlib, json
ids = ["sha256:" + hashlib.sha256(open(name + ".tar", "rb").read()).hexdigest() for name in ("one", "two")]
json.dump({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ids}}, open("config.json", "w"))
json.dump([{"Config": "config.json", "Layers": ["one.tar", "two.tar"]}], open("manifest.json", "w"))
END
        tar -cf image.tar manifest.json config.json one.tar two.tar"#;
    run(Command::new("bash").args(["-c", script]).current_dir(folder.path()));
    let archive = File::open(folder.path().join("image.tar")).unwrap();
    let platform: Platform = "linux/amd64".parse().unwrap();
    let image = images.import(archive, None, &platform, &|_| {}).unwrap();
    let lower = format!("{}:{}", image.layers[1].display(), image.layers[0].display());
    for option in ["", ",userxattr"] {
        let script = format!(
            "mount -t overlay none -o 'lowerdir={lower}{option}' /mnt && cd /mnt && find . | sort"
        );
        let there = run(Command::new("unshare").args(["-m", "sh", "-c", &script]));
        let there: Vec<&str> = there.lines().collect();
        assert_eq!(there, [".", "./keep", "./keep/a", "./opaque", "./opaque/new"], "{option}");
    }
}
