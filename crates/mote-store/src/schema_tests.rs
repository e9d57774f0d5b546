use super::*;

/// A store with a function, as version 1 wrote it.
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
