//! Data folders of functions, and folders of the host, on a real node.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

use mote_tests::{Node, is_root, mote_binary, repository, skip};

const MANIFEST: &str = "version = 1\n[files]\ndata = \"16MiB\"\n[scale]\nmax = 2\nidle = \"0s\"\n";
/// Runs one operation for each path.
const PYTHON: &str = r#"
import errno, os

def handle(event, ctx):
    path = "/data/" + event.args.get("path", "file")
    try:
        if event.path == "/write":
            with open(path, "wb") as file:
                file.write(event.body)
                file.flush()
                os.fsync(file.fileno())
            return "written"
        if event.path == "/read":
            return open(path, "rb").read()
        if event.path == "/list":
            return ",".join(sorted(os.listdir("/data")))
        if event.path == "/fill":
            with open(path, "wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
        if event.path == "/link":
            os.symlink(event.args["to"], path)
            return "linked"
        if event.path == "/pipe":
            os.mkfifo(path)
            return "made"
        if event.path == "/size":
            stat = os.statvfs("/data")
            return str(stat.f_blocks * stat.f_frsize)
        if event.path == "/model":
            return open("/mnt/models/model").read()
    except OSError as error:
        return errno.errorcode[error.errno], 507
"#;

/// Whether functions can have data folders here. If not, says why.
fn can(test: &str) -> bool {
    if !is_root() {
        skip(test, "data folders need root");
        return false;
    }
    if !std::path::Path::new("/dev/loop-control").exists() {
        skip(test, "there are no loop devices");
        return false;
    }
    true
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn deploy(node: &Node, name: &str, manifest: &str, code: &str) {
    node.deploy_ok(name, &[("mote.toml", manifest), ("app.py", code)]);
}

#[test]
fn files_survive_instances_revisions_and_the_node() {
    if !can("files_survive_instances_revisions_and_the_node") {
        return;
    }
    let node = Node::start();
    deploy(&node, "keeper", MANIFEST, PYTHON);
    deploy(&node, "other", MANIFEST, PYTHON);
    assert_eq!(node.post("/keeper/write", b"one").text(), "written");
    assert_eq!(node.get("/keeper/read").text(), "one");
    assert_eq!(node.get("/other/list").text(), "", "another function has its own folder");
    // Another revision.
    deploy(&node, "keeper", MANIFEST, &PYTHON.replace("written", "stored"));
    assert_eq!(node.get("/keeper/read").text(), "one");
    assert_eq!(node.post("/keeper/write", b"two").text(), "stored");
    let node = node.crash_and_restart();
    assert_eq!(node.get("/keeper/read").text(), "two", "a kill of the node loses nothing");
    let node = node.stop_and_restart();
    assert_eq!(node.get("/keeper/read").text(), "two");
    // Without the function, its folder is kept until it is removed too.
    node.ok(&["remove", "keeper", "--yes"]);
    let kept = node.ok(&["files", "list"]);
    assert!(kept.contains("keeper"), "{kept}");
    deploy(&node, "keeper", MANIFEST, PYTHON);
    assert_eq!(node.get("/keeper/read").text(), "two");
    node.ok(&["remove", "keeper", "--with-state", "--yes"]);
    deploy(&node, "keeper", MANIFEST, PYTHON);
    assert_eq!(node.get("/keeper/list").text(), "", "the folder is new");
    // A folder that a backup lacks does not look like one that the function has emptied.
    let image = node.dir.path().join("data/files/other.ext4");
    let node = node.restart_after(false, || std::fs::remove_file(&image).expect("it is there"));
    assert_eq!(node.get("/other/list").text(), "");
    assert!(node.log().contains("other.ext4 was missing: a new, empty one"), "{}", node.log());
    assert!(!node.log().contains("keeper.ext4 was missing"), "{}", node.log());
}

#[test]
fn the_quota_holds_and_grows() {
    if !can("the_quota_holds_and_grows") {
        return;
    }
    let node = Node::start();
    deploy(&node, "full", MANIFEST, PYTHON);
    let filled = node.get("/full/fill?path=a");
    assert_eq!((filled.status, filled.text().as_str()), (507, "ENOSPC"));
    let before: u64 = node.get("/full/size").text().parse().expect("a number");
    assert!(before <= 16 << 20, "{before}");
    deploy(&node, "full", &MANIFEST.replace("16MiB", "64MiB"), PYTHON);
    // If the kernel does not let this process enlarge a mounted folder, it grows at the next start
    // without instances.
    let node = node.stop_and_restart();
    let after: u64 = node.get("/full/size").text().parse().expect("a number");
    assert!(after > 48 << 20, "{after}");
    assert_eq!(node.get("/full/list").text(), "a", "the tools of ext4 leave nothing behind");
    assert_eq!(node.post("/full/write?path=b", &vec![1; 4 << 20]).text(), "written");
    let shrunk = node.deploy("full", &[("mote.toml", MANIFEST), ("app.py", PYTHON)]);
    assert!(
        said(&shrunk).contains("M0433") && said(&shrunk).contains("64 MiB"),
        "{}",
        said(&shrunk)
    );
}

#[test]
fn people_read_and_change_files_and_nothing_else() {
    if !can("people_read_and_change_files_and_nothing_else") {
        return;
    }
    let node = Node::start();
    deploy(&node, "planter", MANIFEST, PYTHON);
    node.post("/planter/write?path=file", b"content");
    let local = tempfile::tempdir().expect("a folder");
    let source = local.path().join("source");
    std::fs::write(&source, vec![7; 3 << 20]).expect("a file");
    let source = source.to_str().expect("UTF-8");
    node.ok(&["files", "put", "planter", "maps/2026/a", source]);
    assert_eq!(node.get("/planter/read?path=maps/2026/a").body.len(), 3 << 20);
    assert_eq!(node.ok(&["files", "get", "planter", "file"]), "content");
    let target = local.path().join("target");
    node.ok(&["files", "get", "planter", "maps/2026/a", target.to_str().expect("UTF-8")]);
    assert_eq!(std::fs::read(&target).expect("it is there"), vec![7; 3 << 20]);

    // The function plants links to what only the node may read, a pipe, and a name for terminals.
    node.get("/planter/link?path=shadow&to=/etc/shadow");
    node.get("/planter/link?path=up&to=..");
    node.get("/planter/link?path=root&to=/");
    node.get("/planter/pipe?path=pipe");
    node.post("/planter/write?path=%1b%5B31mred", b"x");
    for path in ["shadow", "up/admin.token", "root/etc/shadow", "pipe", "../admin.token"] {
        for args in [
            &["files", "get", "planter", path][..],
            &["files", "put", "planter", &format!("{path}/x"), source],
        ] {
            let output = node.mote(args);
            let text = said(&output);
            assert!(!output.status.success(), "{args:?}: {text}");
            assert!(text.contains("M0907") || text.contains("M0906"), "{args:?}: {text}");
            assert!(!text.contains("root:"), "{args:?}: {text}");
        }
    }
    let listed = node.ok(&["files", "list", "planter"]);
    assert!(listed.contains("link") && !listed.contains('\u{1b}'), "{listed:?}");
    // What a link names stays when the link is written or removed.
    node.ok(&["files", "put", "planter", "shadow", source]);
    node.ok(&["files", "remove", "planter", "root"]);
    assert!(std::fs::symlink_metadata("/etc/shadow").is_ok());
    assert_eq!(node.get("/planter/read?path=shadow").body.len(), 3 << 20);
    let refused = said(&node.mote(&["files", "remove", "planter", "maps"]));
    assert!(refused.contains("M0908"), "{refused}");
    node.ok(&["files", "remove", "planter", "maps", "--recursive"]);
    let full = local.path().join("full");
    std::fs::write(&full, vec![0; 20 << 20]).expect("a file");
    let refused =
        said(&node.mote(&["files", "put", "planter", "full", full.to_str().expect("UTF-8")]));
    assert!(refused.contains("M0909"), "{refused}");
    let names = node.get("/planter/list").text();
    assert!(!names.contains("full") && !names.contains("mote-upload"), "{names}");
    // The folder of a function that is deployed is not removed.
    let (status, text) = node.manage("DELETE", "/v1/files/planter", "");
    assert!(status == 409 && text.contains("M0908"), "{status} {text}");
}

#[test]
fn folders_of_the_host_need_an_operator() {
    let models = tempfile::tempdir().expect("a folder");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(models.path(), mode).expect("mode");
    std::fs::write(models.path().join("model"), "weights").expect("a file");
    let path = models.path().to_str().expect("UTF-8");
    let manifest = format!("version = 1\n[files]\nmodels = {{ from = \"{path}\" }}\n");
    let files = [("mote.toml", manifest.as_str()), ("app.py", PYTHON)];
    let node = Node::start();
    let refused = said(&node.deploy("reader", &files));
    assert!(refused.contains("M0434") && refused.contains("shared_folders"), "{refused}");
    let node = node.stop_and_restart_with(&["--shared-folders", path]);
    node.deploy_ok("reader", &files);
    assert_eq!(node.get("/reader/model").text(), "weights");
    // The operator takes the folder back.
    let node = node.stop_and_restart_with(&[]);
    let refused = node.get("/reader/model");
    assert_eq!(refused.status, 502, "{}", refused.text());
    let log = node.ok(&["logs", "reader"]);
    assert!(log.contains("no longer shares the folder"), "{log}");
}

#[test]
fn without_rights_a_deploy_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let script = "cd ~ && \"$0\" new attic -t shell && \
                  printf 'version = 1\\n[files]\\ndata = \"16MiB\"\\n' > attic/mote.toml && exec \"$0\" test attic";
    let mut command = match is_root() {
        true => {
            let mut command = Command::new(repository().join("scripts/as-user.sh"));
            command.arg(dir.path().join("user")).arg("sh");
            command
        }
        false => {
            let mut command = Command::new("sh");
            command.env("HOME", dir.path());
            command
        }
    };
    let output = command.args(["-c", script]).arg(mote_binary()).output().expect("it starts");
    let all = said(&output);
    if all.contains("user namespaces") {
        return skip("without_rights_a_deploy_is_refused", &all);
    }
    assert!(!output.status.success() && all.contains("M0432"), "{all}");
    assert!(all.contains("run the node as root"), "{all}");
}
