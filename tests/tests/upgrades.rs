//! Data folders of former versions (`tests/fixtures/data`, made by `scripts/data-fixture.sh`) work
//! with this version. Data folders of a newer version are refused before anything in them changes.
//! SPECIFICATION.md, upgrades.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use mote_tests::releases::run;
use mote_tests::{Node, mote_binary, repository, wait_for};

fn fixtures() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(repository().join("tests/fixtures/data")).expect("fixtures");
    let mut found: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    found.sort();
    assert!(!found.is_empty(), "no data folder is kept");
    found
}

/// Makes a folder with the data folder of a fixture.
fn unpacked(fixture: &Path) -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("mote-test").tempdir().expect("temp folder");
    // Sandboxes read the code as another user.
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("mode");
    run(Command::new("tar")
        .arg("-xzf")
        .arg(fixture)
        .arg("-C")
        .arg(dir.path())
        .arg("--no-same-owner"));
    dir
}

#[test]
fn data_of_former_versions_is_all_there_and_accepted_work_runs() {
    for fixture in fixtures() {
        let version = fixture.display().to_string();
        let dir = unpacked(&fixture);
        let accepted = std::fs::read_to_string(dir.path().join("accepted")).expect("the list");
        let accepted: Vec<&str> = accepted.lines().collect();
        assert_eq!(accepted.len(), 5, "{version}");
        let node = Node::start_in(dir, &[]);
        let names = node.ok(&["list", "-o", "name"]);
        assert_eq!(names.split_whitespace().collect::<Vec<_>>(), ["kept", "waits"], "{version}");
        // Reads the function's code, its secret and its state.
        let answer = node.get("/kept").text();
        assert_eq!(answer, "a kept secret blue", "{version}: {}", node.ok(&["logs", "kept"]));
        assert_eq!(node.ok(&["kv", "get", "kept", "color"]).trim(), "blue", "{version}");
        let schedules = node.json(&["schedules", "-o", "json"]).to_string();
        assert!(schedules.contains("30 6 1 1 *"), "{version}: {schedules}");
        let state = |location: &str| node.get(location).json();
        for location in &accepted {
            let shown = state(location);
            let is_open = matches!(shown["state"].as_str(), Some("waiting" | "running"));
            assert!(is_open, "{version}: {shown}");
        }
        node.ok(&["kv", "put", "waits", "gate", "open"]);
        for (number, location) in accepted.iter().enumerate() {
            let ended = wait_for("an accepted invocation", || {
                let shown = state(location);
                (!matches!(shown["state"].as_str(), Some("waiting" | "running"))).then_some(shown)
            });
            assert_eq!(ended["state"], "succeeded", "{version}: {ended}");
            assert_eq!(ended["body"], format!("ran {}", number + 1), "{version}");
        }
        assert_eq!(node.ok(&["kv", "get", "waits", "runs"]).trim(), "5", "{version}");
        // The set of permitted callers does not change. When the function was deployed, everyone
        // could call it.
        let mode = |name: &str| node.json(&["describe", name, "-o", "json"])["access"].clone();
        assert_eq!((mode("kept"), mode("waits")), ("public".into(), "public".into()), "{version}");
        // A deploy makes the next revision of a function that an earlier version has deployed.
        node.deploy_ok("waits", &[("app.py", "def handle(event, ctx):\n    return 'new'\n")]);
        assert_eq!(node.get("/waits").text(), "new", "{version}");
        assert_eq!(mode("waits"), "local", "{version}");
        let revisions = node.ok(&["revisions", "waits"]);
        assert!(revisions.lines().any(|line| line.starts_with("2 ")), "{version}: {revisions}");
        assert!(node.stop().success(), "{version}");
    }
}

/// Returns the content of each file below a folder, except for files named `skipped`.
fn contents(folder: &Path, skipped: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                all.insert(path.clone(), Vec::new());
                folders.push(path);
            } else if !path.to_string_lossy().ends_with(skipped) {
                all.insert(path.clone(), std::fs::read(&path).expect("a file"));
            }
        }
    }
    all
}

#[test]
fn data_of_a_newer_version_is_refused_before_it_is_touched() {
    let newest = fixtures().pop().expect("a fixture");
    // The log of a killed node may be the only file that contains the newer version number.
    let in_file = "connection.execute('PRAGMA wal_checkpoint(TRUNCATE)')\nconnection.close()\n";
    for (place, end) in [("file", in_file), ("log", "os._exit(0)\n")] {
        for store in ["mote.db", "journal.db", "state.db"] {
            let dir = unpacked(&newest);
            let data = dir.path().join("data");
            let path = data.join(store);
            let newer = format!(
                "import os, sqlite3, sys\nconnection = sqlite3.connect(sys.argv[1])\n\
                 connection.execute('PRAGMA user_version = 99')\nconnection.commit()\n\
                 {end}"
            );
            run(Command::new("python3").arg("-c").arg(newer).arg(&path));
            // SQLite rebuilds the index of the log (-shm) when it reads the log.
            let before = contents(&data, "-shm");
            let output = Command::new(mote_binary())
                .args(["up", "--http", "127.0.0.1:0", "--coap", "off", "--data"])
                .arg(&data)
                .arg("--socket")
                .arg(dir.path().join("s"))
                .output()
                .expect("the binary starts");
            let errors = String::from_utf8_lossy(&output.stderr);
            let when = format!("{store}, in its {place}: {errors}");
            assert_eq!(output.status.code(), Some(78), "{when}");
            let line = errors.lines().find(|line| line.starts_with("error[M0701]: "));
            let line = line.unwrap_or_else(|| panic!("{when}"));
            for part in [store, "table format 99", "Install the newer version again"] {
                assert!(line.contains(part), "{part}: {when}");
            }
            let after = contents(&data, "-shm");
            assert!(before.keys().eq(after.keys()), "{when}: {:?}", after.keys());
            assert!(before == after, "{when}: a file was changed");
        }
    }
}
