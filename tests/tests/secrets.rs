//! Secrets that `mote.toml` names. `mote secret set` passes them to a file or a variable of the
//! function, and nowhere else.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use mote_tests::Node;
use serde_json::json;

const MANIFEST: &str =
    "version = 1\nsecrets = [\"api-key\"]\n[env]\nTOKEN = { secret = \"token\" }\n";
const PYTHON: &str = "import os\n\ndef handle(event, ctx):\n    \
    files = [open(f'/secrets/{name}').read() for name in os.listdir('/secrets')]\n    \
    return ' '.join(files + [os.environ['TOKEN']])\n";
const NODE: &str = "const fs = require('fs');\nmodule.exports = () => {\n  \
    const files = fs.readdirSync('/secrets');\n  \
    return [...files.map((name) => fs.readFileSync(`/secrets/${name}`, 'utf8')), \
    process.env.TOKEN].join(' ');\n};\n";
const SHELL: &str = "#!/bin/sh\necho \"$(cat /secrets/*) $TOKEN\"\n";
const SERVER: &str = "#!/usr/bin/env python3\nimport http.server, os\n\n\
    class Answers(http.server.BaseHTTPRequestHandler):\n    def do_GET(self):\n        \
    text = open('/secrets/api-key').read() + ' ' + os.environ['TOKEN']\n        \
    self.send_response(200)\n        self.end_headers()\n        \
    self.wfile.write(text.encode())\n\n\
    http.server.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), Answers).serve_forever()\n";

fn set(node: &Node, name: &str, value: &[u8]) -> String {
    let output = node.mote_with_input(&["secret", "set", name], value);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The reason for a failed start goes to whoever deploys, to the node's own log and to the
/// function's log, which keeps it up to a limit. The secret occurs before that limit and across it.
#[test]
fn the_reason_of_a_failed_start_shows_no_secret() {
    let node = Node::start();
    set(&node, "api-key", b"S3cr3tValueABCDEFGH1234567890");
    let manifest = "version = 1\nsecrets = [\"api-key\"]\n";
    for before in ["''", "'x' * 4068", "'x' * 4080"] {
        let code = format!(
            "raise RuntimeError({before} + open('/secrets/api-key').read() + ' more' * 400)\n\ndef handle(event, ctx):\n    return 1\n"
        );
        let failed = node.deploy("fails", &[("app.py", &code), ("mote.toml", manifest)]);
        let logs = node.mote(&["logs", "fails"]);
        let logs = String::from_utf8_lossy(&logs.stdout).into_owned();
        for text in [said(&failed), node.log(), logs] {
            assert!(!text.contains("S3cr3tVa"), "{before}: {text}");
        }
        assert!(said(&failed).contains("RuntimeError"), "{failed:?}");
    }
}

#[test]
fn secrets_reach_every_runtime_as_files_and_variables() {
    let node = Node::start();
    set(&node, "api-key", b"k3y\n");
    set(&node, "token", b"t0ken");
    set(&node, "other", b"not for you");
    let server = format!("{MANIFEST}MODE = \"x\"\n").replace(
        "version = 1\n",
        "version = 1\nruntime = \"server\"\ncommand = [\"./serve.py\"]\n",
    );
    for (name, manifest, file, code) in [
        ("in-python", MANIFEST, "app.py", PYTHON),
        ("in-node", MANIFEST, "index.cjs", NODE),
        ("in-shell", MANIFEST, "run.sh", SHELL),
        ("in-server", server.as_str(), "serve.py", SERVER),
    ] {
        node.deploy_ok(name, &[("mote.toml", manifest), (file, code)]);
        assert_eq!(node.get(&format!("/{name}")).text().trim(), "k3y t0ken", "{name}");
    }
    let seen = node.json(&["describe", "in-shell", "-o", "json"]);
    assert_eq!(seen["secrets"], json!(["api-key", "token"]));

    let blind = "#!/bin/sh\nls /secrets /var/openfaas 2>/dev/null; echo \"[$TOKEN]\"\n";
    node.deploy_ok("blind", &[("run.sh", blind)]);
    assert_eq!(node.get("/blind").text().trim(), "[]", "only those that name it see it");
    let link = "#!/bin/sh\ncat /var/openfaas/secrets/api-key\n";
    node.deploy_ok("link", &[("mote.toml", MANIFEST), ("run.sh", link)]);
    assert_eq!(node.get("/link").text(), "k3y", "OpenFaaS' place for them leads there too");
    let write = "#!/bin/sh\necho x > /secrets/api-key || echo refused\n";
    node.deploy_ok("write", &[("mote.toml", MANIFEST), ("run.sh", write)]);
    assert_eq!(node.get("/write").text().trim(), "refused");
}

#[test]
fn a_function_whose_secret_is_missing_is_not_deployed() {
    let node = Node::start();
    let files = [("mote.toml", MANIFEST), ("run.sh", SHELL)];
    let output = node.deploy("reads", &files);
    assert_eq!(output.status.code(), Some(8), "{output:?}");
    let wanted = "error[M0414]: reads reads the secret api-key, which this node does not have\n  \
                  create it: mote secret set api-key < FILE\n";
    assert!(said(&output).ends_with(wanted), "{}", said(&output));
    set(&node, "api-key", b"1");
    assert!(said(&node.deploy("reads", &files)).contains("reads reads the secret token"));
    set(&node, "token", b"2");
    node.deploy_ok("reads", &files);
    assert_eq!(node.get("/reads").text().trim(), "1 2");

    // The previous revision cannot serve again without the secret that it reads, so the live
    // revision stays live.
    node.deploy_ok("reads", &[("run.sh", "#!/bin/sh\necho none\n")]);
    assert_eq!(said(&node.mote(&["secret", "remove", "token", "--yes"])), "token is removed\n");
    let output = node.mote(&["rollback", "reads"]);
    assert!(
        said(&output).contains("reads reads the secret token, which this node does not have"),
        "{output:?}"
    );
    assert_eq!(node.get("/reads").text().trim(), "none");
}

#[test]
fn values_are_never_shown_and_survive_the_node() {
    let node = Node::start();
    assert_eq!(
        set(&node, "api-key", b"first\r\n"),
        "api-key is set; functions that list it as a secret can read /secrets/api-key\n"
    );
    set(&node, "token", b"second");
    node.deploy_ok("reads", &[("mote.toml", MANIFEST), ("run.sh", SHELL)]);
    assert_eq!(node.get("/reads").text().trim(), "first second");
    assert_eq!(node.ok(&["secret", "list"]), "NAME     READ BY\napi-key  reads\ntoken    reads\n");
    assert_eq!(node.ok(&["secret", "ls", "-o", "name"]), "api-key\ntoken\n");
    let shown = node.ok(&["secret", "list", "-o", "json"])
        + &node.ok(&["describe", "reads", "-o", "json"])
        + &node.ok(&["logs", "reads"])
        + &node.log();
    assert!(!shown.contains("first") && !shown.contains("second"), "{shown}");

    // Instances that start afterwards see the new value.
    let told = set(&node, "token", b"third");
    assert_eq!(told, "token is set; instances of reads that start from now on use it\n");
    let node = node.crash_and_restart();
    assert_eq!(node.get("/reads").text().trim(), "first third");

    let exact = node.dir.path().join("exact");
    std::fs::write(&exact, "a line\n").unwrap();
    let exact = exact.to_str().expect("UTF-8");
    node.ok(&["secret", "set", "api-key", exact, "--exact"]);
    let length = "#!/bin/sh\nwc -c < /secrets/api-key\n";
    node.deploy_ok("length", &[("mote.toml", MANIFEST), ("run.sh", length)]);
    assert_eq!(node.get("/length").text().trim(), "7");

    let output = node.mote(&["secret", "remove", "token", "gone", "--yes"]);
    assert_eq!(output.status.code(), Some(3));
    let wanted = "warning: token is read by length, reads: no instance of these functions starts without it\n\
                  token is removed\nerror[M0415]: no secret named gone\n  \
                  list the secrets: mote secret list\n";
    assert_eq!(said(&output), wanted);
}

#[test]
fn wrong_values_and_names_are_refused() {
    let node = Node::start();
    for (name, value, wanted) in [
        (".x", &b"v"[..], "error[M0303]: name: 1 to 253 of"),
        ("a b", b"v", "error[M0303]: name: 1 to 253 of"),
        ("../x", b"v", "error[M0303]: name: 1 to 253 of"),
        ("x", b"", "error[M0101]: no value for x"),
        ("x", b"\n", "error[M0101]: no value for x"),
        ("x", b"\xff", "error[M0303]: standard input: not UTF-8"),
        ("x", b"a\0b", "error[M0303]: value: text of at most 64 KiB, without NUL"),
        ("x", &[b'v'; (64 << 10) + 1], "error[M0303]: value: text of at most 64 KiB"),
        ("x", &[b'v'; (1 << 20) + 1], "error[M0303]: standard input: too long for a secret"),
    ] {
        let output = node.mote_with_input(&["secret", "set", name], value);
        assert!(said(&output).starts_with(wanted), "{name}: {output:?}");
        assert!(!output.status.success());
    }
    assert_eq!(node.ok(&["secret", "list"]), "");

    // Secrets up to the limit are passed to the sandbox. More secrets are refused before anything
    // starts.
    let names = ["a", "b", "c"];
    for name in names {
        set(&node, name, &[b'v'; 60 << 10]);
    }
    let manifest = |names: &[&str]| format!("version = 1\nsecrets = {names:?}\n");
    let count = "#!/bin/sh\ncat /secrets/* | wc -c\n";
    node.deploy_ok("two", &[("mote.toml", &manifest(&names[..2])), ("run.sh", count)]);
    assert_eq!(node.get("/two").text().trim(), (120 << 10).to_string());
    let output = node.deploy("three", &[("mote.toml", &manifest(&names)), ("run.sh", count)]);
    let wanted = "three reads 184320 bytes of secrets; the limit is 128 KiB";
    assert!(said(&output).contains(wanted), "{output:?}");
    let output =
        node.deploy("bad", &[("mote.toml", &manifest(&["../etc/passwd"])), ("run.sh", count)]);
    assert!(said(&output).contains("error[M0303]: secrets: at most 64 names"), "{output:?}");
}

/// Returns the files below a folder that contain a text.
fn files_with(folder: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files_with(&entry.path(), text));
        } else if std::fs::read(entry.path())
            .is_ok_and(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
        {
            found.push(entry.path().display().to_string());
        }
    }
    found
}

#[test]
fn the_data_folder_has_no_value_in_plain_text() {
    let node = Node::start();
    for value in ["a value nobody reads", "another value nobody reads"] {
        set(&node, "api-key", value.as_bytes());
    }
    set(&node, "token", b"a token nobody reads");
    node.deploy_ok("reads", &[("mote.toml", MANIFEST), ("run.sh", SHELL)]);
    let answer = "another value nobody reads a token nobody reads";
    assert_eq!(node.get("/reads").text().trim(), answer);
    let folder = node.dir.path().to_owned();
    assert_eq!(files_with(&folder, "nobody reads"), Vec::<String>::new());
    let node = node.crash_and_restart();
    assert_eq!(node.get("/reads").text().trim(), answer);
    assert_eq!(files_with(&folder, "nobody reads"), Vec::<String>::new());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", node.pid())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("1"), "no core file: {core}");
}

#[test]
fn a_key_is_replaced_without_losing_a_secret() {
    let folder = tempfile::tempdir().unwrap();
    let key = |name: &str| folder.path().join(name).display().to_string();
    for name in ["first", "second", "foreign"] {
        std::fs::write(key(name), format!("the key {name} has at least 32 bytes")).unwrap();
        std::fs::set_permissions(key(name), Permissions::from_mode(0o600)).unwrap();
    }
    let node = Node::start();
    set(&node, "api-key", b"1");
    set(&node, "token", b"2");
    node.deploy_ok("reads", &[("mote.toml", MANIFEST), ("run.sh", SHELL)]);
    let own_key = node.dir.path().join("data/secrets.key");

    // Changes from the key in the data folder to a file, and then to another file.
    let node = node.stop_and_restart_with(&["--secrets-key", &key("first")]);
    assert_eq!(node.get("/reads").text().trim(), "1 2");
    std::fs::remove_file(&own_key).unwrap();
    let both = format!("{},{}", key("second"), key("first"));
    let node = node.stop_and_restart_with(&["--secrets-key", &both]);
    assert_eq!(node.get("/reads").text().trim(), "1 2");
    let node = node.stop_and_restart_with(&["--secrets-key", &key("second")]);
    assert_eq!(node.get("/reads").text().trim(), "1 2");

    // With a key that decrypts nothing, the node serves functions that read no secret, and reports
    // what is missing.
    node.deploy_ok("blind", &[("run.sh", "#!/bin/sh\necho seen\n")]);
    let node = node.stop_and_restart_with(&["--secrets-key", &key("foreign")]);
    assert_eq!(node.get("/blind").text().trim(), "seen");
    assert_eq!(node.get("/reads").status, 502);
    let reason = "the secret api-key is encrypted with a key that this node does not have";
    assert!(node.log().contains(reason), "{}", node.log());
    assert!(node.ok(&["describe", "reads"]).contains(reason));
    set(&node, "api-key", b"3");
    let node = node.stop_and_restart_with(&["--secrets-key", &both.replace("first", "foreign")]);
    assert_eq!(node.get("/reads").text().trim(), "3 2");

    // Without any key the node does not start, and says why.
    let data = node.dir.path().join("data");
    let refused = |flags: &[&str]| {
        let mut command = Command::new(mote_tests::mote_binary());
        command.args(["up", "--http", "127.0.0.1:0", "--coap", "off"]).args(flags);
        let output = command.arg("--data").arg(&data).output().unwrap();
        assert_eq!(output.status.code(), Some(78), "{output:?}");
        said(&output)
    };
    let node = node.restart_after(false, || {
        let text = refused(&[]);
        assert!(text.starts_with("error[M0203]: secrets_key: "), "{text}");
        let wanted = "secrets.key is missing, and there are 2 encrypted secrets";
        assert!(text.contains(wanted), "{text}");
        let text = refused(&["--secrets-key", "credential:mote"]);
        assert!(text.contains("systemd gave no credentials to this process"), "{text}");
        std::fs::set_permissions(key("second"), Permissions::from_mode(0o644)).unwrap();
        let text = refused(&["--secrets-key", &key("second")]);
        assert!(text.contains("second: every user of this machine can read or write it"), "{text}");
        std::fs::set_permissions(key("second"), Permissions::from_mode(0o600)).unwrap();
    });
    assert_eq!(node.get("/reads").text().trim(), "3 2");
    assert!(!own_key.exists());
}
