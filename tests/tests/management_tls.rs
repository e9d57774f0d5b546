//! The management API and the APIs of other platforms over TLS. The same ports also speak plain
//! HTTP.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};

use mote_tests::network::Far;
use mote_tests::{Node, call_at, free_address, is_root, mote_binary, skip};

const HELLO: &str = "def handle(event, ctx):\n    return 'hello'\n";

/// Runs `mote` with these settings and no other user settings.
fn mote(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(mote_binary());
    for name in ["MOTE_NODE", "MOTE_TOKEN", "MOTE_FINGERPRINT", "MOTE_CA", "MOTE_NODES"] {
        command.env_remove(name);
    }
    command.args(args).envs(variables.iter().copied()).output().expect("the binary starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the SHA-256 that a node prints when it starts.
fn fingerprint(node: &Node) -> String {
    let (_, rest) = node.announcement.split_once("SHA-256 ").expect("a fingerprint");
    rest.lines().next().expect("a line").trim().to_owned()
}

#[test]
fn a_certificate_is_trusted_by_fingerprint_or_authority() {
    let admin = free_address().to_string();
    let node = Node::start_with(&["--admin", &admin, "--https", "127.0.0.1:0"]);
    node.deploy_ok("hello", &[("app.py", HELLO)]);
    let token = node.token();
    let print = fingerprint(&node);
    let address = format!("https://{admin}");
    let list = ["--node", address.as_str(), "list", "-o", "name"];
    let base = ("MOTE_TOKEN", token.as_str());

    let other = print.replace(['1', '2', '3', '4'], "0");
    assert_eq!(printed(&mote(&list, &[base, ("MOTE_FINGERPRINT", &print)])), "hello\n");
    let plain = print.replace(':', "").to_lowercase();
    assert_eq!(printed(&mote(&list, &[base, ("MOTE_FINGERPRINT", &plain)])), "hello\n");
    let authority = node.dir.path().join("data/certificates/self-signed.crt");
    let authority = authority.to_str().expect("UTF-8");
    assert_eq!(printed(&mote(&list, &[base, ("MOTE_CA", authority)])), "hello\n");

    for (variables, reason) in [
        (vec![base], "no authority that is trusted here has signed it"),
        (vec![base, ("MOTE_FINGERPRINT", other.as_str())], "it is another one"),
    ] {
        let refused = mote(&list, &variables);
        assert_eq!(refused.status.code(), Some(4), "{refused:?}");
        let text = said(&refused);
        assert!(text.starts_with("error[M0208]: "), "{text}");
        let end = format!("is not trusted: {reason}");
        assert!(text.contains(&end) || text.contains("this machine trusts no authority"), "{text}");
        assert!(text.contains(&format!("(SHA-256 {print})")), "{text}");
        assert!(text.contains("MOTE_FINGERPRINT"), "{text}");
    }
    for (name, value, wanted) in [
        ("MOTE_FINGERPRINT", "AB:CD", "AB:CD: not a fingerprint"),
        ("MOTE_CA", "/missing.pem", "/missing.pem: "),
    ] {
        let wrong = mote(&list, &[base, (name, value)]);
        assert!(!wrong.status.success() && said(&wrong).contains(wanted), "{wrong:?}");
    }

    // A file names the node, and says which certificate to trust.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nodes.toml");
    std::fs::write(folder.path().join("token"), &token).unwrap();
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(folder.path().join("token"), private).unwrap();
    let names = format!(
        "[nodes]\none = {{ address = \"{address}\", token_file = \"token\", fingerprint = \"{print}\" }}\n\
         two = {{ address = \"{address}/\", token_file = \"token\", ca = \"{authority}\" }}\n"
    );
    std::fs::write(&file, names).unwrap();
    let file = file.to_str().expect("UTF-8");
    for name in ["one", "two"] {
        let list = ["--node", name, "list", "-o", "name"];
        assert_eq!(printed(&mote(&list, &[("MOTE_NODES", file)])), "hello\n", "{name}");
    }
    // For one node, a variable takes precedence over the file. It holds for no more than one node.
    for (variable, value, code) in
        [("MOTE_TOKEN", "wrong", "M1401"), ("MOTE_FINGERPRINT", other.as_str(), "M0208")]
    {
        let variables = [("MOTE_NODES", file), (variable, value)];
        let refused = mote(&["--node", "one", "list"], &variables);
        assert!(said(&refused).contains(code), "{refused:?}");
        let both = mote(&["--node", "one,two", "list", "-o", "name"], &variables);
        assert_eq!(printed(&both), "hello\nhello\n");
        assert!(said(&both).contains(&format!("{variable} is ignored")), "{both:?}");
    }

    // The same port speaks plain HTTP with this machine, and closes connections that are neither.
    let admin: SocketAddr = admin.parse().unwrap();
    let bearer = format!("Bearer {token}");
    let answer = call_at(admin, "GET", "/v1/status", &[("authorization", &bearer)], b"");
    assert_eq!(answer.status, 200);
    let nothing = std::net::TcpStream::connect(admin).unwrap();
    nothing.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut &nothing, &mut text).unwrap();
    assert_eq!(text, "");
}

#[test]
fn login_keeps_a_token_that_the_node_accepts_and_logout_forgets_it() {
    let admin = free_address().to_string();
    let node = Node::start_with(&["--admin", &admin, "--https", "127.0.0.1:0"]);
    node.deploy_ok("hello", &[("app.py", HELLO)]);
    let made = node.ok(&["token", "create", "me", "--role", "viewer"]);
    let token = made.trim();
    let print = fingerprint(&node);
    let address = format!("https://{admin}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new/nodes.toml");
    let kept = folder.path().join("new/here.token");
    let shown = file.to_str().expect("UTF-8");
    // The token arrives in a file, so that it does not appear among the arguments.
    let given = folder.path().join("given");
    let login = |token: &str, more: &[&str]| {
        std::fs::write(&given, token).unwrap();
        let mut args = vec!["login", address.as_str(), "--token-file", given.to_str().unwrap()];
        args.extend(more);
        mote(&args, &[("MOTE_NODES", shown)])
    };

    for (token, more, wanted) in [
        (token, &["--name", "here"][..], "(SHA-256 "),
        ("wrong", &["--name", "here", "--fingerprint", &print], "M1401"),
        ("", &["--name", "here", "--fingerprint", &print], "no token for here"),
        ("a\nb", &["--name", "here", "--fingerprint", &print], "no token for here"),
        (token, &["--name", "h ere", "--fingerprint", &print], "cannot be the name"),
        (token, &["--name=--", "--fingerprint", &print], "cannot be the name"),
        (token, &["--name", "here", "--ca", "/missing.pem"], "/missing.pem"),
    ] {
        let refused = login(token, more);
        assert!(!refused.status.success() && said(&refused).contains(wanted), "{refused:?}");
        assert!(!file.exists() && !kept.exists(), "nothing is kept of {refused:?}");
    }
    let untrusted = said(&login(token, &["--name", "here"]));
    assert!(untrusted.contains(&format!("--fingerprint {print}")), "{untrusted}");

    let named = ["--name", "here", "--fingerprint", print.as_str()];
    let text = printed(&login(token, &named));
    assert!(text.contains("--node here"), "{text}");
    let mode = std::fs::metadata(&kept).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let list = ["--node", "here", "list", "-o", "name"];
    assert_eq!(printed(&mote(&list, &[("MOTE_NODES", shown)])), "hello\n");
    let denied = mote(&["--node", "here", "remove", "hello", "--yes"], &[("MOTE_NODES", shown)]);
    assert!(said(&denied).contains("M1407"), "a viewer removes nothing: {denied:?}");

    // The new token replaces the first one. Comments and other nodes stay in the file.
    let mut written = std::fs::read_to_string(&file).unwrap();
    written.insert_str(0, "# ours\n");
    written.push_str("\n[groups]\nall-of-us = [\"here\"]\n");
    std::fs::write(&file, written).unwrap();
    let other = node.ok(&["token", "create", "again", "--role", "operator"]);
    printed(&login(&other, &named));
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("# ours\n") && text.contains("all-of-us"), "{text}");
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), other);
    let taken = mote(&["login", "https://127.0.0.1:1", "--name", "here"], &[("MOTE_NODES", shown)]);
    assert!(said(&taken).contains("here is the name of https://"), "{taken:?}");
    let group = ["login", address.as_str(), "--name", "all-of-us"];
    assert!(said(&mote(&group, &[("MOTE_NODES", shown)])).contains("is a group"));

    // Commands that run at the same time do not lose each other's changes.
    let all: Vec<String> = (0..5).map(|number| format!("n{number}")).collect();
    std::fs::write(&given, token).unwrap();
    let begin = |name: &String| {
        Command::new(mote_binary())
            .args(["login", &address, "--name", name, "--fingerprint", &print, "--token-file"])
            .arg(&given)
            .env("MOTE_NODES", shown)
            .stdout(Stdio::null())
            .spawn()
            .expect("the binary starts")
    };
    let running: Vec<_> = all.iter().map(begin).collect();
    for mut login in running {
        assert!(login.wait().unwrap().success());
    }
    let names: Vec<&str> =
        std::iter::once("logout").chain(all.iter().map(String::as_str)).collect();
    assert!(mote(&names, &[("MOTE_NODES", shown)]).status.success());

    // What a variable says about the certificate is kept.
    let path = given.to_str().unwrap();
    let told = ("MOTE_FINGERPRINT", print.as_str());
    let by_variable = ["login", &address, "--name", "told", "--token-file", path];
    printed(&mote(&by_variable, &[("MOTE_NODES", shown), told]));
    let list = ["--node", "told", "list", "-o", "name"];
    assert_eq!(printed(&mote(&list, &[("MOTE_NODES", shown)])), "hello\n");
    assert!(mote(&["logout", "told"], &[("MOTE_NODES", shown)]).status.success());

    let unknown = mote(&["logout", "there"], &[("MOTE_NODES", shown)]);
    assert!(said(&unknown).contains("no node is called there"), "{unknown:?}");
    assert!(mote(&["logout", "here"], &[("MOTE_NODES", shown)]).status.success());
    assert!(!kept.exists());
    assert!(!std::fs::read_to_string(&file).unwrap().contains("here"));
}

#[test]
fn other_machines_manage_a_node_over_tls_only() {
    if !is_root() {
        return skip("management from another machine", "needs root");
    }
    let Some(far) = Far::new() else {
        return skip("management from another machine", "cannot make a network namespace");
    };
    let admin = free_address().port();
    let openfaas = free_address().port();
    let at = |host: std::net::Ipv4Addr, port: u16| format!("{host}:{port}");
    let open = at(std::net::Ipv4Addr::UNSPECIFIED, admin);
    let gateway = at(std::net::Ipv4Addr::UNSPECIFIED, openfaas);
    let node = Node::start_with(&["--lan", "--admin", &open, "--openfaas", &gateway]);
    node.deploy_ok("hello", &[("app.py", HELLO)]);
    assert!(node.announcement.contains(&format!("https://{open}")), "{}", node.announcement);
    let token = node.token();
    let print = fingerprint(&node);
    let variables = [("MOTE_TOKEN", token.as_str()), ("MOTE_FINGERPRINT", print.as_str())];
    let there = at(far.near, admin);
    let list = |scheme: &str| {
        let address = format!("{scheme}://{there}");
        let known = if scheme == "https" { &variables[..] } else { &variables[..1] };
        far.run(|| mote(&["--node", &address, "list", "-o", "name"], known))
    };
    assert_eq!(printed(&list("https")), "hello\n");
    let refused = list("http");
    assert!(said(&refused).starts_with("error[M1406]: "), "{refused:?}");
    let here = format!("http://127.0.0.1:{admin}");
    let list_here = ["--node", here.as_str(), "list", "-o", "name"];
    assert_eq!(printed(&mote(&list_here, &variables[..1])), "hello\n");
    // The command refuses addresses that would reveal the token to others: http:// together with a
    // fingerprint, and an address without a scheme.
    for (address, wanted) in [
        (format!("http://{there}"), "a fingerprint or an authority needs https://"),
        (there.clone(), "write https://HOST:PORT"),
    ] {
        let refused = far.run(|| mote(&["--node", &address, "list"], &variables));
        assert!(!refused.status.success() && said(&refused).contains(wanted), "{refused:?}");
    }

    // Clients of other platforms may use either scheme.
    for scheme in ["https", "http"] {
        let url = format!("{scheme}://{}/system/functions", at(far.near, openfaas));
        let user = format!("admin:{token}");
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--insecure", "--user", &user, "--write-out", "%{http_code}"]);
        let output = far.run(|| curl.args(["--output", "/dev/null", &url]).output().expect("curl"));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "200", "{scheme}: {output:?}");
    }

    // A user who asks for plain HTTP explicitly may use it.
    let plain = format!("http://{open}");
    let node = node.stop_and_restart_with(&["--lan", "--admin", &plain]);
    assert_eq!(printed(&list("http")), "hello\n");
    assert!(node.announcement.contains("over TLS, or not encrypted"), "{}", node.announcement);

    // A listener on IPv6 recognizes this machine's IPv4 address.
    let both = format!("[::]:{admin}");
    let _node = node.stop_and_restart_with(&["--lan", "--admin", &both]);
    assert_eq!(printed(&mote(&list_here, &variables[..1])), "hello\n");
    assert!(said(&list("http")).starts_with("error[M1406]: "));
}
