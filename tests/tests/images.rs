//! Functions whose image is in a private registry: Debian's `docker-registry` with TLS and a password.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use mote_tests::registry::{Asks, PASSWORD, Registry, USER, layout};
use mote_tests::{Answer, Node, base64, basic_auth, call_at, mote_binary, skip, wait_for};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};

/// A static program that can also serve files.
const BUSYBOX: &str = "/bin/busybox";

/// Starts a registry with the image `team/site:1`, which answers with `text`.
fn registry(text: &str) -> Option<Registry> {
    if !Path::new(BUSYBOX).exists() {
        skip("images of a registry", "busybox-static is not installed");
        return None;
    }
    let registry = Registry::start(Asks { tls: true, password: true })?;
    push(&registry, text);
    Some(registry)
}

fn push(registry: &Registry, text: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = format!("@{BUSYBOX}");
    let config = r#"{"Entrypoint": ["/bin/busybox", "httpd", "-f", "-p", "8080", "-h", "/www"],
        "ExposedPorts": {"8080/tcp": {}}}"#;
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let layers: [&[(&str, Option<&str>)]; 2] =
        [&[("bin/busybox", Some(&program))], &[("www/index.html", Some(text))]];
    layout(folder.path(), &layers, config, ("linux", architecture));
    registry.push(&format!("oci:{}", folder.path().display()), "team/site:1", &[]);
}

/// A client of the node whose user has logged in at the registry with this password.
pub(crate) struct Client<'a> {
    node: &'a Node,
    home: tempfile::TempDir,
}

impl<'a> Client<'a> {
    pub(crate) fn new(node: &'a Node, registry: &Registry, password: Option<&str>) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        if let Some(password) = password {
            let auth = base64(format!("{USER}:{password}"));
            let name = registry.name("");
            let name = name.trim_end_matches('/');
            let text = format!(r#"{{"auths": {{"{name}": {{"auth": "{auth}"}}}}}}"#);
            std::fs::write(home.path().join("config.json"), text).expect("written");
        }
        Self { node, home }
    }

    /// Runs `mote deploy`. Returns what it says, or its errors.
    pub(crate) fn deploy(&self, args: &[&str]) -> Result<String, String> {
        let output = self.command(args).output().expect("the binary starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(mote_binary());
        command
            .arg("deploy")
            .args(args)
            .env("MOTE_SOCKET", self.node.dir.path().join("s"))
            .env("DOCKER_CONFIG", self.home.path())
            .env("HOME", self.home.path())
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("MOTE_NODE");
        command
    }
}

#[test]
fn an_image_of_a_private_registry() {
    let Some(mut registry) = registry("hello") else { return };
    let authority = registry.authority();
    let authority = authority.to_str().expect("UTF-8");
    let node = Node::start_with_env(&[], &[("SSL_CERT_FILE", authority)]);
    let name = registry.name("team/site:1");
    let refused = |password: Option<&str>, name: &str, expected: &[&str]| {
        let said = Client::new(&node, &registry, password).deploy(&[name]).expect_err(name);
        for part in expected {
            assert!(said.contains(part), "{part}: {said}");
        }
    };
    refused(None, &name, &["M1502", "without a login", "docker login localhost"]);
    refused(Some("wrong"), &name, &["M1502", "does not accept the user name and password"]);
    refused(Some(PASSWORD), &registry.name("team/site:2"), &["M1501", "its tags are: 1"]);
    refused(Some(PASSWORD), &registry.name("team/other"), &["M1501", "no image"]);

    let client = Client::new(&node, &registry, Some(PASSWORD));
    let said = client.deploy(&[&name]).unwrap_or_else(|said| panic!("{said}\n{}", node.log()));
    assert!(said.contains("site@1 is live"), "{said}");
    assert_eq!(node.get("/site/index.html").text(), "hello");
    let described = node.ok(&["describe", "site"]);
    let at = described.find("sha256:").expect("a digest");
    let digest = described[at..at + 71].to_owned();
    // The login was for this pull only.
    for secret in [PASSWORD.to_owned(), base64(format!("{USER}:{PASSWORD}"))] {
        let found = Command::new("grep").args(["-rlF", &secret]).arg(node.dir.path()).output();
        assert_eq!(String::from_utf8_lossy(&found.expect("grep").stdout), "", "{secret}");
    }

    // From here on, the registry is needed only for new tags.
    registry.stop();
    let node = node.stop_and_restart();
    assert_eq!(node.get("/site/index.html").text(), "hello");
    let client = Client::new(&node, &registry, None);
    let said = client.deploy(&[&name]).expect_err("the registry is away");
    assert!(said.contains("M1503") && said.contains("cannot be reached"), "{said}");
    let pinned = registry.name(&format!("team/site@{digest}"));
    let said = client.deploy(&[&pinned, "--name", "again"]);
    let said = said.unwrap_or_else(|said| panic!("{said}"));
    assert!(said.contains("again@1 is live"), "{said}");
    assert_eq!(node.get("/again/index.html").text(), "hello");
    registry.again();
    push(&registry, "changed");
    let client = Client::new(&node, &registry, Some(PASSWORD));
    client.deploy(&[&name]).unwrap_or_else(|said| panic!("{said}"));
    assert_eq!(node.get("/site/index.html").text(), "changed");
}

#[test]
fn a_registry_whose_authority_the_machine_does_not_know() {
    let Some(registry) = registry("hello") else { return };
    let node = Node::start();
    let client = Client::new(&node, &registry, Some(PASSWORD));
    let said = client.deploy(&[&registry.name("team/site:1")]).expect_err("refused");
    assert!(said.contains("M1503") && said.contains("certificate of localhost"), "{said}");
    assert!(said.contains("update-ca-certificates"), "{said}");
}

/// The requests that OpenFaaS's clients send in the life of a function from a private registry. The
/// fields are those of the API's public description.
#[test]
fn openfaas_clients_deploy_from_a_private_registry() {
    let Some(registry) = registry("one") else { return };
    let authority = registry.authority();
    let authority = authority.to_str().expect("UTF-8");
    let node =
        Node::start_with_env(&["--openfaas", "127.0.0.1:0"], &[("SSL_CERT_FILE", authority)]);
    let gateway = node.platform("openfaas");
    let auth = basic_auth("admin", &node.token());
    let send = |method: &str, path: &str, body: &Value| -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let headers = [("authorization", auth.as_str()), ("content-type", "application/json")];
        call_at(gateway, method, &format!("/system/{path}"), &headers, body.as_bytes())
    };
    let login = base64(format!("{USER}:{PASSWORD}"));
    let deployment = |auth: Option<&str>| {
        let mut wish = json!({
            "service": "site", "image": registry.name("team/site:1"), "network": "", "envProcess": "",
            "envVars": {}, "constraints": null, "secrets": [], "labels": {"team": "web"},
            "annotations": {}, "requests": null, "limits": null, "readOnlyRootFilesystem": false,
        });
        if let Some(auth) = auth {
            wish["registryAuth"] = auth.into();
        }
        wish
    };
    // A client updates first, and creates what is not there.
    assert_eq!(send("PUT", "functions", &deployment(Some(&login))).status, 404);
    for (auth, expected) in [
        (None, "without a login"),
        (Some(base64(format!("{USER}:wrong"))), "does not accept the user name and password"),
        (Some(base64("no colon")), "registryAuth: not USER:PASSWORD in base64"),
        (Some("*".to_owned()), "registryAuth: not USER:PASSWORD in base64"),
    ] {
        let refused = send("POST", "functions", &deployment(auth.as_deref()));
        let text = refused.text();
        assert!((400..500).contains(&refused.status) && text.contains(expected), "{text}");
    }
    let made = send("POST", "functions", &deployment(Some(&login)));
    assert_eq!(made.status, 202, "{}", made.text());
    let call = || call_at(gateway, "GET", "/function/site/index.html", &[], b"").text();
    assert_eq!(call(), "one");

    let shown = send("GET", "function/site", &Value::Null);
    assert_eq!(shown.json()["image"], registry.name("team/site:1").as_str());
    assert_eq!(shown.json()["labels"]["team"], "web");
    let listed = send("GET", "functions", &Value::Null).text();
    for secret in [PASSWORD, &login] {
        assert!(!shown.text().contains(secret) && !listed.contains(secret), "{listed}");
        let found = Command::new("grep").args(["-rlF", secret]).arg(node.dir.path()).output();
        assert_eq!(String::from_utf8_lossy(&found.expect("grep").stdout), "", "{secret}");
    }

    let wish = json!({"serviceName": "site", "replicas": 2});
    assert_eq!(send("POST", "scale-function/site", &wish).status, 202);
    wait_for("two replicas", || {
        let shown = send("GET", "function/site", &Value::Null).json();
        (shown["availableReplicas"] == 2).then_some(())
    });
    push(&registry, "two");
    let updated = send("PUT", "functions", &deployment(Some(&login)));
    assert_eq!(updated.status, 200, "{}", updated.text());
    assert_eq!(call(), "two");
    let logs = send("GET", "logs?name=site&follow=false&tail=10", &Value::Null);
    assert_eq!(logs.status, 200, "{}", logs.text());
    let gone = send("DELETE", "functions", &json!({"functionName": "site"}));
    assert_eq!(gone.status, 202, "{}", gone.text());
    assert_eq!(send("GET", "function/site", &Value::Null).status, 404);
}

/// Passes connections on to a registry. Once `after` bytes have come back, it waits until `open` is
/// set.
fn slow_registry(port: u16, after: usize, open: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let mut passed = 0;
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { return };
            let copies = (client.try_clone().expect("a copy"), server.try_clone().expect("a copy"));
            std::thread::spawn(move || {
                let (mut client, mut server) = copies;
                let _ = std::io::copy(&mut client, &mut server);
                let _ = server.shutdown(Shutdown::Write);
            });
            let (mut client, mut server) = (client, server);
            let mut piece = [0; 16 << 10];
            while let Ok(length @ 1..) = server.read(&mut piece) {
                passed += length;
                if passed > after {
                    wait_for("the progress", || open.load(Ordering::Relaxed).then_some(()));
                }
                if client.write_all(&piece[..length]).is_err() {
                    break;
                }
            }
            let _ = client.shutdown(Shutdown::Both);
        }
    });
    address
}

#[test]
fn a_terminal_shows_how_far_a_download_has_come() {
    let Some(registry) = Registry::start(Asks::default()) else { return };
    let data = tempfile::NamedTempFile::new().expect("a file");
    let mut random = File::open("/dev/urandom").expect("random data").take(4 << 20);
    std::io::copy(&mut random, &mut data.as_file()).expect("copied");
    let (program, data) = (format!("@{BUSYBOX}"), format!("@{}", data.path().display()));
    let config = r#"{"Entrypoint": ["/bin/busybox", "httpd", "-f", "-p", "8080"]}"#;
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let folder = tempfile::tempdir().expect("a folder");
    let layers: [&[(&str, Option<&str>)]; 1] =
        [&[("bin/busybox", Some(&program)), ("data", Some(&data))]];
    layout(folder.path(), &layers, config, ("linux", architecture));
    registry.push(&format!("oci:{}", folder.path().display()), "team/slow:1", &[]);
    let open = Arc::new(AtomicBool::new(false));
    let slow = slow_registry(registry.port, 3 << 20, open.clone());

    let node = Node::start();
    let outer = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&outer).expect("granted");
    unlockpt(&outer).expect("unlocked");
    let name = ptsname(&outer, Vec::new()).expect("a name");
    let name = name.to_str().expect("UTF-8");
    let inner = File::options().read(true).write(true).open(name).expect("opened");
    let again = || inner.try_clone().expect("a copy");
    let client = Client::new(&node, &registry, None);
    let mut command = client.command(&[&format!("{slow}/team/slow:1")]);
    command.stdin(again()).stdout(again()).stderr(again());
    let mut child = command.spawn().expect("the program starts");
    drop((command, inner));
    let printed = Arc::<Mutex<String>>::default();
    let all = printed.clone();
    let mut terminal = File::from(outer);
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = terminal.read(&mut piece) {
            all.lock().expect("text").push_str(&String::from_utf8_lossy(&piece[..length]));
        }
    });
    let text = || printed.lock().expect("text").clone();
    wait_for("the progress", || {
        let text = text();
        text.lines().any(|line| line.contains("image      ") && line.contains(" of ")).then_some(())
    });
    open.store(true, Ordering::Relaxed);
    assert!(child.wait().expect("our child").success(), "{}", text());
    wait_for("the result", || text().contains("slow@1 is live").then_some(()));
}
