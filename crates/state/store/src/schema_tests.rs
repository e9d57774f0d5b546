use super::*;

/// A store with one function, in the format of version 1.
fn version_1(path: &Path) {
    let connection = Connection::open(path).unwrap();
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA foreign_keys = ON;").unwrap();
    connection.execute_batch(TABLES).unwrap();
    connection
        .execute_batch(&format!(
            "PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1; BEGIN;
             INSERT INTO functions VALUES ('a', 7, 8, 5);
             INSERT INTO revisions VALUES ('a', 7, '{{}}', 'h', NULL, 6, 'live'); COMMIT;"
        ))
        .unwrap();
}

#[test]
fn tables_of_version_1_are_brought_up_to_date_and_keep_their_rows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mote.db");
    version_1(&path);
    for opened in ["first", "again"] {
        let connection = open(&path, None).unwrap();
        assert_eq!(pragma(&connection, "user_version").unwrap(), VERSION, "{opened}");
        let row: (String, u32, u32, Option<String>, Option<String>, String) = connection
            .query_row(
                "SELECT f.name, f.live, f.next_revision, f.split, f.scale, r.state
                 FROM functions f JOIN revisions r ON r.function = f.name",
                [],
                |row| {
                    let text = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
                    Ok((text.0, text.1, text.2, text.3, row.get(4)?, row.get(5)?))
                },
            )
            .unwrap();
        assert_eq!(row, ("a".into(), 7, 8, None, None, "live".into()), "{opened}");
    }
}

#[test]
fn functions_of_former_versions_stay_public() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mote.db");
    version_1(&path);
    let connection = Connection::open(&path).unwrap();
    let rows = r#"INSERT INTO revisions VALUES ('a', 8, '{"access":"key","x":1.5}', 'h', NULL, 6, 'retired');
                  INSERT INTO revisions VALUES ('a', 9, 'damaged', 'h', NULL, 6, 'retired')"#;
    connection.execute_batch(rows).unwrap();
    drop(connection);
    let connection = open(&path, None).unwrap();
    let mut specs = connection.prepare("SELECT spec FROM revisions ORDER BY revision").unwrap();
    let specs: Vec<String> =
        specs.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(specs, [r#"{"access":"public"}"#, r#"{"access":"key","x":1.5}"#, "damaged"]);
}

#[test]
fn a_migration_keeps_the_file_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mote.db");
    version_1(&path);
    open(&path, None).unwrap();
    let copy = dir.path().join("mote.db.format-1");
    assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    let kept = Connection::open(&copy).unwrap();
    assert_eq!(pragma(&kept, "user_version").unwrap(), 1);
    assert_eq!(pragma(&kept, "application_id").unwrap(), APPLICATION_ID);
    let name: String = kept.query_row("SELECT name FROM functions", [], |row| row.get(0)).unwrap();
    assert_eq!(name, "a");
    drop(kept);
    // Without a migration nothing is copied. After a further migration only the latest copy
    // remains.
    std::fs::remove_file(&copy).unwrap();
    drop(open(&path, None).unwrap());
    assert!(!copy.exists());
    let numbers = dir.path().join("numbers.db");
    let steps = ["CREATE TABLE a (x)", "CREATE TABLE b (x)", "CREATE TABLE c (x)"];
    for count in 1..=steps.len() {
        drop(open_file(&numbers, &steps[..count]).unwrap());
    }
    let copies: Vec<bool> = (1..=3).map(|version| former(&numbers, version).exists()).collect();
    assert_eq!(copies, [false, true, false]);
}

#[test]
fn a_newer_version_is_also_found_in_the_log_and_nothing_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("numbers.db");
    drop(open_file(&path, &["CREATE TABLE a (x)"]).unwrap());
    // The process that wrote the newer version was killed, so its log remains.
    let newer = Connection::open(&path).unwrap();
    newer.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
    newer.execute_batch("PRAGMA user_version = 9").unwrap();
    drop(newer);
    let bytes = |path: &Path| std::fs::read(path).unwrap();
    let log = beside(&path, "-wal");
    let before = (bytes(&path), bytes(&log));
    assert!(check_header(&path, 1).is_ok(), "only the log has the newer version");
    let refused = refuse_newer(&path, 1);
    assert!(matches!(refused, Err(StoreError::Newer { found: 9, known: 1, .. })), "{refused:?}");
    assert!(before == (bytes(&path), bytes(&log)), "it was changed");
    assert!(refuse_newer(&path, 9).is_ok());
    assert!(refuse_newer(&dir.path().join("none.db"), 1).is_ok());
}

#[test]
fn a_migration_that_fails_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mote.db");
    version_1(&path);
    let half = Connection::open(&path).unwrap();
    half.execute_batch("ALTER TABLE functions ADD COLUMN scale TEXT").unwrap();
    drop(half);
    assert!(open(&path, None).is_err(), "the second column is there already");
    let after = Connection::open(&path).unwrap();
    assert_eq!(pragma(&after, "user_version").unwrap(), 1);
    assert!(after.prepare("SELECT split FROM functions").is_err(), "not half a migration");
}
