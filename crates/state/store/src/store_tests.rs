use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use mote_core::rollout::{Share, Split};
use mote_spec::{FunctionName, FunctionSpec, Runtime};

use super::*;
use crate::pack::pack;
use crate::packages::Lookup;

fn spec(name: &str) -> FunctionSpec {
    FunctionSpec::with_defaults(FunctionName::new(name).unwrap(), Runtime::Python, "app:handle")
}

fn project(content: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("app.py"), content).unwrap();
    pack(dir.path(), None).unwrap().tar
}

fn deploy(store: &Store, name: &str, content: &str) -> u64 {
    let tar = project(content);
    let staged = store.stage_archive(&tar[..], &ArchiveLimits::default()).unwrap();
    let spec = spec(name);
    let revision = store.add_revision(&spec, &staged.hash, None).unwrap();
    store.set_traffic(&spec.name, &Traffic::whole(revision.revision)).unwrap();
    revision.revision
}

fn live(store: &Store) -> Vec<(String, u64)> {
    let inventory = store.functions().unwrap();
    assert_eq!(inventory.damaged, []);
    inventory
        .functions
        .iter()
        .map(|stored| (stored.live.spec.name.to_string(), stored.live.revision))
        .collect()
}

fn entries(path: &Path) -> usize {
    std::fs::read_dir(path).unwrap().count()
}

#[test]
fn what_was_deployed_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("data");
    {
        let store = Store::open(&root).unwrap();
        assert_eq!(deploy(&store, "b", "1"), 1);
        assert_eq!(deploy(&store, "a", "1"), 1);
        assert_eq!(deploy(&store, "a", "2"), 2);
        assert_eq!(entries(&root.join("code")), 2, "equal code is stored once");
    }
    let store = Store::open(&root).unwrap();
    assert_eq!(live(&store), [("a".into(), 2), ("b".into(), 1)]);
    let stored = &store.functions().unwrap().functions[0].live;
    assert_eq!(stored.spec, spec("a"));
    assert_eq!(std::fs::read_to_string(stored.code_path.join("app.py")).unwrap(), "2");
    assert!(store.verify_code(&stored.code_hash).unwrap());
    std::fs::write(stored.code_path.join("app.py"), "rot").unwrap();
    assert!(!store.verify_code(&stored.code_hash).unwrap());
}

#[test]
fn code_can_be_read_by_sandboxes_and_the_rest_cannot() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    drop(Store::open(&data).unwrap());
    // Earlier versions created the folder with this mode.
    std::fs::set_permissions(data.join("code"), Permissions::from_mode(0o711)).unwrap();
    let store = Store::open(&data).unwrap();
    deploy(&store, "a", "1");
    let code = store.functions().unwrap().functions[0].live.code_path.clone();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(store.root()), 0o711);
    assert_eq!(mode(&store.root().join("code")), 0o700);
    assert_eq!(mode(&store.root().join("packages")), 0o700);
    assert_eq!(mode(&store.root().join("staging")), 0o700);
    assert_eq!(mode(&store.root().join("mote.db")), 0o600);
    assert_eq!(mode(&store.root().join("mote.db-wal")), 0o600);
    assert_eq!(mode(&code), 0o755);
    assert_eq!(mode(&code.join("app.py")), 0o644);
}

#[test]
fn a_refused_archive_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let mut tar = project("1");
    let cut = tar.len() - 1024;
    tar.truncate(cut);
    let error = store.stage_archive(&tar[..], &ArchiveLimits::default()).unwrap_err();
    assert_eq!(error.code(), "M1303");
    assert_eq!(entries(&store.root().join("staging")), 0);
    assert_eq!(entries(&store.root().join("code")), 0);
}

#[test]
fn a_second_opener_is_told_who_holds_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let error = Store::open(dir.path()).unwrap_err();
    assert_eq!(error.code(), "M0702");
    let text = error.to_string();
    let expected = format!("in use by pid {}", std::process::id());
    assert!(text.ends_with(&expected), "{text}");
    drop(store);
    Store::open(dir.path()).unwrap();
}

#[test]
fn a_newer_store_is_refused_before_any_write() {
    let dir = tempfile::tempdir().unwrap();
    {
        let store = Store::open(dir.path()).unwrap();
        deploy(&store, "a", "1");
        store
            .lock()
            .execute_batch("PRAGMA user_version = 9; PRAGMA wal_checkpoint(TRUNCATE);")
            .unwrap();
    }
    let before = snapshot(dir.path());
    let error = Store::open(dir.path()).unwrap_err();
    assert_eq!(error.code(), "M0701");
    let known = crate::schema::VERSION;
    let expected = format!("table format 9, this version knows {known}");
    assert!(error.to_string().contains(&expected), "{error}");
    assert_eq!(before, snapshot(dir.path()));
}

fn snapshot(path: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(snapshot(&path));
        } else {
            let content = std::fs::read(&path).unwrap();
            files.push((path, content));
        }
    }
    files.sort();
    files
}

#[test]
fn a_foreign_or_broken_file_is_named() {
    for content in [&b"hello, I am not a database, not at all, and longer than one hundred bytes, which is what the header takes"[..], b"SQLite format 3\0"] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("mote.db"), content).unwrap();
        let error = Store::open(dir.path()).unwrap_err();
        assert_eq!(error.code(), "M0705", "{error}");
    }
}

#[test]
fn a_damaged_row_stands_in_nobodys_way() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    deploy(&store, "a", "1");
    deploy(&store, "b", "2");
    deploy(&store, "c", "3");
    store.lock().execute("UPDATE revisions SET spec = '{' WHERE function = 'a'", []).unwrap();
    let gone = store.functions().unwrap().functions[1].live.code_path.clone();
    std::fs::remove_dir_all(gone).unwrap();
    let inventory = store.functions().unwrap();
    assert_eq!(inventory.functions.len(), 1);
    let damaged: Vec<_> = inventory.damaged.iter().map(|d| d.function.as_str()).collect();
    assert_eq!(damaged, ["a", "c"]);
}

#[test]
fn text_that_is_not_utf_8_damages_only_its_own_revision() {
    for column in ["spec", "code_hash"] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        deploy(&store, "a", "1");
        deploy(&store, "b", "2");
        let sql = format!(
            "UPDATE revisions SET {column} = CAST(X'7BFF00FE' AS TEXT) WHERE function = 'a'"
        );
        store.lock().execute(&sql, []).unwrap();
        let inventory = store.functions().unwrap();
        assert_eq!(inventory.functions.len(), 1, "{column}");
        assert_eq!(inventory.damaged[0].function, "a", "{column}");
    }
}

#[test]
fn revisions_are_kept_up_to_ten_and_the_live_one_always() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let name = FunctionName::new("a").unwrap();
    for number in 1..=12 {
        deploy(&store, "a", &number.to_string());
    }
    store.set_traffic(&name, &Traffic::whole(4)).unwrap();
    for number in 13..=30 {
        let tar = project(&number.to_string());
        let staged = store.stage_archive(&tar[..], &ArchiveLimits::default()).unwrap();
        store.add_revision(&spec("a"), &staged.hash, None).unwrap();
    }
    let kept: Vec<u64> = store.revisions(&name).unwrap().iter().map(|r| r.revision).collect();
    assert_eq!(kept, [30, 29, 28, 27, 26, 25, 24, 23, 4, 3], "3 is where rolling back goes");
    assert_eq!(live(&store), [("a".into(), 4)]);
    assert!(matches!(
        store.set_traffic(&name, &Traffic::whole(5)),
        Err(StoreError::NoSuchRevision { revision: 5, .. })
    ));
    assert_eq!(live(&store), [("a".into(), 4)], "a refused change changes nothing");
    store.collect_garbage(&HashSet::new()).unwrap();
    assert_eq!(entries(&store.root().join("code")), 10);
}

fn share(revision: u64, percent: u32, tag: Option<&str>) -> Share {
    Share { revision, percent, tag: tag.map(str::to_owned) }
}

#[test]
fn a_split_outlives_a_restart_and_many_deploys() {
    let dir = tempfile::tempdir().unwrap();
    let name = FunctionName::new("a").unwrap();
    let store = Store::open(dir.path()).unwrap();
    for number in 1..=4 {
        deploy(&store, "a", &number.to_string());
    }
    let shares = vec![share(4, 30, None), share(3, 70, None), share(1, 0, Some("old"))];
    let traffic = Traffic { before: vec![2], ..Traffic::new(Split::new(shares).unwrap()) };
    store.set_traffic(&name, &traffic).unwrap();
    let bad = Split::new(vec![share(4, 100, None), share(9, 0, Some("x"))]).unwrap();
    let refused = store.set_traffic(&name, &traffic.moved(bad));
    assert!(matches!(refused, Err(StoreError::NoSuchRevision { revision: 9, .. })));
    drop(store);

    let store = Store::open(dir.path()).unwrap();
    for number in 5..=30 {
        let tar = project(&number.to_string());
        let staged = store.stage_archive(&tar[..], &ArchiveLimits::default()).unwrap();
        store.add_revision(&spec("a"), &staged.hash, None).unwrap();
    }
    let revisions = store.revisions(&name).unwrap();
    let kept: Vec<u64> = revisions.iter().map(|stored| stored.revision).collect();
    assert_eq!(kept, [30, 29, 28, 27, 26, 25, 24, 4, 3, 1]);
    assert_eq!(revisions[8].state, RevisionState::Live, "the largest share");
    assert_eq!(store.traffic(&name).unwrap(), Some(traffic.clone()));
    let function = store.functions().unwrap().functions.remove(0);
    let others: Vec<u64> = function.others.iter().map(|other| other.revision).collect();
    assert_eq!((function.live.revision, others), (3, vec![1, 4]));
    assert_eq!(function.traffic, traffic);

    std::fs::remove_dir_all(&function.others[1].code_path).unwrap();
    let inventory = store.functions().unwrap();
    assert_eq!(inventory.damaged[0].revision, 4);
    let left = inventory.functions[0].traffic.split.to_string();
    assert_eq!(left, "@1:old 0 %, @3 100 %", "its share goes to the live one");
}

#[test]
fn tables_of_version_1_are_brought_up_to_date() {
    // The tables in the form that version 1 wrote. This text must not change.
    const VERSION_1: &str = "
        CREATE TABLE functions (
            name TEXT PRIMARY KEY NOT NULL,
            live INTEGER,
            next_revision INTEGER NOT NULL,
            created_at_ms INTEGER NOT NULL,
            FOREIGN KEY (name, live) REFERENCES revisions (function, revision) DEFERRABLE INITIALLY DEFERRED
        ) STRICT;
        CREATE TABLE revisions (
            function TEXT NOT NULL REFERENCES functions (name) ON DELETE CASCADE,
            revision INTEGER NOT NULL,
            spec TEXT NOT NULL,
            code_hash TEXT NOT NULL,
            packages_key TEXT,
            created_at_ms INTEGER NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('added', 'live', 'retired')),
            PRIMARY KEY (function, revision)
        ) STRICT;
        CREATE INDEX revisions_by_code ON revisions (code_hash);
        CREATE INDEX revisions_by_packages ON revisions (packages_key);
        PRAGMA application_id = 0x6d6f7465; PRAGMA user_version = 1; PRAGMA journal_mode = WAL;";
    let dir = tempfile::tempdir().unwrap();
    let code = dir.path().join("code/c0de");
    std::fs::create_dir_all(&code).unwrap();
    let old = Connection::open(dir.path().join("mote.db")).unwrap();
    old.execute_batch(VERSION_1).unwrap();
    let json = mote_spec::json::to_json(&spec("a"));
    old.execute_batch("BEGIN").unwrap();
    old.execute("INSERT INTO functions VALUES ('a', 3, 5, 7)", []).unwrap();
    for (revision, state) in [(1, "retired"), (2, "added"), (3, "live"), (4, "added")] {
        old.execute(
            "INSERT INTO revisions VALUES ('a', ?1, ?2, 'c0de', NULL, 7, ?3)",
            params![revision, json, state],
        )
        .unwrap();
    }
    old.execute_batch("COMMIT").unwrap();
    drop(old);

    let store = Store::open(dir.path()).unwrap();
    let name = FunctionName::new("a").unwrap();
    assert_eq!(live(&store), [("a".into(), 3)]);
    let traffic = store.traffic(&name).unwrap().unwrap();
    assert_eq!((&traffic.split, traffic.back()), (&Split::whole(3), Some(1)));
    let part = Split::new(vec![share(3, 90, None), share(4, 10, None)]).unwrap();
    store.set_traffic(&name, &traffic.moved(part.clone())).unwrap();
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.traffic(&name).unwrap().unwrap().split, part);
    let columns = |store: &Store| -> Vec<String> {
        let connection = store.lock();
        let sql = "SELECT name FROM pragma_table_info('functions')";
        let mut statement = connection.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect()
    };
    let fresh = Store::open(&dir.path().join("fresh")).unwrap();
    assert_eq!(columns(&store), columns(&fresh), "old and new files have equal tables");
    assert_eq!(columns(&store)[4..], ["split", "scale"]);
}

#[test]
fn garbage_goes_and_what_is_used_stays() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    deploy(&store, "a", "1");
    let running = store.functions().unwrap().functions[0].live.code_hash.clone();
    let tar = project("2");
    let staged = store.stage_archive(&tar[..], &ArchiveLimits::default()).unwrap();
    let name = FunctionName::new("a").unwrap();
    assert!(store.remove(&name).unwrap());
    assert!(!store.remove(&name).unwrap());
    let in_use = HashSet::from([running]);
    assert_eq!(store.collect_garbage(&in_use).unwrap().trees, 0, "one runs, one is being deployed");
    assert_eq!(store.collect_garbage(&HashSet::new()).unwrap().trees, 1);
    assert!(staged.path.is_dir());
    drop(staged);
    assert_eq!(store.collect_garbage(&HashSet::new()).unwrap().trees, 1);
    assert_eq!(entries(&store.root().join("code")), 0);
    assert_eq!(deploy(&store, "a", "1"), 1);
}

#[test]
fn packages_are_built_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let key = "0123abcd-python3.13-aarch64";
    let Lookup::Build(staging) = store.packages_dir(key).unwrap() else {
        panic!("ready before it was built");
    };
    let Lookup::Build(second) = store.packages_dir(key).unwrap() else {
        panic!("ready before it was built");
    };
    std::fs::write(staging.path().join("m.py"), "x").unwrap();
    std::fs::set_permissions(staging.path().join("m.py"), Permissions::from_mode(0o600)).unwrap();
    let path = store.commit_packages(staging).unwrap().path;
    assert_eq!(path, store.commit_packages(second).unwrap().path);
    let mode = std::fs::metadata(path.join("m.py")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    assert!(matches!(store.packages_dir(key).unwrap(), Lookup::Ready(ready) if ready.path == path));
    assert_eq!(entries(&store.root().join("staging")), 0);
    for bad in ["", "..", "a/b", ".x", &"k".repeat(201)] {
        assert!(matches!(store.packages_dir(bad), Err(StoreError::BadKey(_))), "{bad}");
    }
    let tar = project("1");
    let staged = store.stage_archive(&tar[..], &ArchiveLimits::default()).unwrap();
    assert!(matches!(
        store.add_revision(&spec("a"), &staged.hash, Some("never-built")),
        Err(StoreError::NotStored(_))
    ));
}

#[test]
fn bounds_set_by_hand_last_until_the_next_deploy() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    deploy(&store, "a", "1");
    let name = FunctionName::new("a").unwrap();
    let bounds = ScaleOverride { min: Some(1), max: Some(5) };
    assert!(store.set_scale(&name, Some(&bounds)).unwrap());
    assert!(!store.set_scale(&FunctionName::new("b").unwrap(), Some(&bounds)).unwrap());
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.scales().unwrap()["a"], bounds);
    deploy(&store, "a", "2");
    assert!(store.scales().unwrap().is_empty());
    store.set_scale(&name, Some(&bounds)).unwrap();
    store.set_scale(&name, None).unwrap();
    assert!(store.scales().unwrap().is_empty());
}

#[test]
fn a_thousand_functions() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let tar = project("1");
    let staged = store.stage_archive(&tar[..], &ArchiveLimits::default()).unwrap();
    for number in 0..1000 {
        let spec = spec(&format!("f{number}"));
        let revision = store.add_revision(&spec, &staged.hash, None).unwrap();
        store.set_traffic(&spec.name, &Traffic::whole(revision.revision)).unwrap();
    }
    assert_eq!(live(&store).len(), 1000);
    drop(staged);
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(live(&store).len(), 1000);
}

/// The child process of the test below. It deploys version 2 and is killed during the deploy. When
/// it runs as a separate test, it does nothing.
#[test]
fn child_that_crashes() {
    let Some(root) = std::env::var_os("MOTE_STORE_CRASH_DIR") else {
        return;
    };
    let store = Store::open(Path::new(&root)).unwrap();
    if let Lookup::Build(staging) = store.packages_dir("k").unwrap() {
        store.commit_packages(staging).unwrap();
    }
    deploy(&store, "a", "2");
}

#[test]
fn a_crash_between_any_two_steps_leaves_the_old_or_the_new() {
    for (step, expected) in [
        ("packages-built", 1),
        ("unpacked", 1),
        ("renamed", 1),
        ("row-written", 1),
        ("row-committed", 1),
        ("traffic-written", 1),
        ("never", 2),
    ] {
        let dir = tempfile::tempdir().unwrap();
        {
            let store = Store::open(dir.path()).unwrap();
            deploy(&store, "a", "1");
        }
        let ended = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::tests::child_that_crashes", "--nocapture"])
            .env("MOTE_STORE_CRASH_DIR", dir.path())
            .env("MOTE_STORE_CRASH_AT", step)
            .output()
            .unwrap();
        assert_eq!(ended.status.success(), step == "never", "{step}: {ended:?}");
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(live(&store), [("a".into(), expected)], "{step}");
        let stored = &store.functions().unwrap().functions[0].live;
        assert!(store.verify_code(&stored.code_hash).unwrap());
        assert_eq!(entries(&store.root().join("staging")), 0, "{step}");
        let named = store.revisions(&stored.spec.name).unwrap().len();
        assert_eq!(entries(&store.root().join("code")), named, "{step}");
        let recovery = store.recovery();
        match step {
            "packages-built" | "unpacked" => assert!(recovery.staging_removed > 0, "{step}"),
            "renamed" | "row-written" => assert!(recovery.trees_removed > 0, "{step}"),
            _ => {}
        }
        deploy(&store, "a", "3");
        assert_eq!(live(&store)[0].0, "a");
    }
}

#[test]
fn leftovers_that_cannot_be_removed_do_not_stop_a_start() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(dir.path()).unwrap());
    let stuck = dir.path().join("staging/7");
    std::fs::create_dir(&stuck).unwrap();
    // A mount point cannot be removed, not even by root.
    let mounted = Command::new("mount").args(["-t", "tmpfs", "x"]).arg(&stuck).status();
    if !mounted.is_ok_and(|status| status.success()) {
        return eprintln!("SKIPPED: mounting needs root");
    }
    let opened = Store::open(dir.path());
    let again = opened.map(|store| {
        let deployed = deploy(&store, "a", "1");
        (store.recovery().clone(), deployed)
    });
    Command::new("umount").arg(&stuck).status().unwrap();
    let (recovery, deployed) = again.unwrap();
    assert_eq!((recovery.left.len(), deployed), (1, 1));
    assert!(recovery.left[0].contains("staging/7"), "{:?}", recovery.left);
}

#[test]
fn a_lost_database_is_refused_and_the_code_stays() {
    let dir = tempfile::tempdir().unwrap();
    deploy(&Store::open(dir.path()).unwrap(), "a", "1");
    let database = dir.path().join("mote.db");
    let kept = dir.path().join("kept.db");
    std::fs::copy(&database, &kept).unwrap();
    let refused = |what: &str| {
        let error = Store::open(dir.path()).expect_err(what);
        assert!(matches!(error, StoreError::Lost { .. }), "{what}: {error}");
        assert_eq!(entries(&dir.path().join("code")), 1, "{what}");
    };
    std::fs::remove_file(&database).unwrap();
    refused("missing");
    std::fs::write(&database, "").unwrap();
    refused("empty");
    std::fs::remove_file(&database).unwrap();
    Connection::open(&database).unwrap().execute_batch("VACUUM").unwrap();
    refused("without tables");
    std::fs::copy(&kept, &database).unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(live(&store).len(), 1);
    assert!(store.remove(&FunctionName::new("a").unwrap()).unwrap());
    store.collect_garbage(&HashSet::new()).unwrap();
    drop(store);
    std::fs::remove_file(&database).unwrap();
    drop(Store::open(dir.path()).expect("no code, nothing lost"));
}

#[test]
fn a_database_whose_tables_are_only_in_its_log_is_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let copy = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    deploy(&store, "a", "1");
    // The state after a power cut: the log was never moved into the file.
    let copied = Command::new("cp").arg("-R").arg(dir.path().join(".")).arg(copy.path()).status();
    assert!(copied.unwrap().success());
    assert_eq!(live(&Store::open(copy.path()).unwrap()), [("a".into(), 1)]);
}

#[test]
fn a_name_that_has_rotted_is_noticed_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    deploy(&Store::open(dir.path()).unwrap(), "wanderer", "1");
    let database = dir.path().join("mote.db");
    let connection = Connection::open(&database).unwrap();
    connection
        .execute_batch("PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode = DELETE")
        .unwrap();
    drop(connection);
    let whole = std::fs::read(&database).unwrap();
    let places = whole.windows(8).enumerate().filter(|(_, word)| *word == b"wanderer");
    let places: Vec<usize> = places.map(|(at, _)| at).collect();
    assert!(places.len() >= 4, "rows and indexes: {places:?}");
    let unnoticed: Vec<usize> = places
        .into_iter()
        .filter(|at| {
            let mut rotten = whole.clone();
            rotten[*at] ^= 1;
            std::fs::write(&database, rotten).unwrap();
            let Ok(store) = Store::open(dir.path()) else { return false };
            let found = store.functions().unwrap();
            let served =
                found.functions.iter().any(|one| one.live.spec.name.as_str() == "wanderer");
            !served && found.damaged.is_empty()
        })
        .collect();
    assert!(unnoticed.is_empty(), "flips that lose the function in silence: {unnoticed:?}");
}
