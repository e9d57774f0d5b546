//! The tables, and how the database is opened.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::error::StoreError;

/// Version of the tables. Each change raises it by one and adds one migration.
pub(crate) const VERSION: u32 = 1 + MIGRATIONS.len() as u32;
/// How long a statement waits for another connection of the node.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The mark that says that the file contains no remains of secrets in plain text.
pub(crate) const SECRETS_CLEANED: &str = "secrets-cleaned";
/// Marks the file as a database of `mote`. The bytes are the name in ASCII.
const APPLICATION_ID: u32 = 0x6d6f_7465;

/// Version 1. A revision number is not reused while its function exists, so a number in a log or a
/// bug report identifies one revision. `state` is `added`, `live` or `retired`.
const TABLES: &str = "
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
";

/// Marks the migration that [`keep_public`] performs.
const KEEP_PUBLIC: &str = "-- keep_public";

/// The migrations from each version to the next, beginning with version 1. A released migration
/// never changes. New files go through the same migrations, so that old and new files have equal
/// tables.
const MIGRATIONS: &[&str] = &[
    // `split` is the traffic split in JSON, where NULL means everything to `live`. `scale` is JSON
    // or NULL.
    "ALTER TABLE functions ADD COLUMN split TEXT; ALTER TABLE functions ADD COLUMN scale TEXT;",
    // Calls that were accepted and have not ended, and the secrets that functions read as files.
    "CREATE TABLE calls (number INTEGER PRIMARY KEY AUTOINCREMENT, record BLOB NOT NULL) STRICT;
     CREATE TABLE secrets (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL) STRICT;",
    // Documents of other platforms' APIs, by collection and key.
    "CREATE TABLE documents (collection TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
         PRIMARY KEY (collection, key)) STRICT, WITHOUT ROWID;",
    // Times that survive a restart, by name, in milliseconds since 1970.
    "CREATE TABLE marks (name TEXT PRIMARY KEY NOT NULL, value INTEGER NOT NULL)
         STRICT, WITHOUT ROWID;",
    // The keys of callers by their SHA-256. `functions` contains patterns with spaces between them.
    "CREATE TABLE keys (hash BLOB PRIMARY KEY NOT NULL, name TEXT NOT NULL, functions TEXT NOT NULL,
         created_at_ms INTEGER NOT NULL, expires_at_ms INTEGER, is_current INTEGER NOT NULL)
         STRICT, WITHOUT ROWID;",
    // Until this version, everyone could call a function whose spec did not say who may.
    KEEP_PUBLIC,
    // Encrypted secrets. The node encrypts the secrets in `plain_secrets` once it has its key.
    "ALTER TABLE secrets RENAME TO plain_secrets;
     CREATE TABLE secrets (name TEXT PRIMARY KEY NOT NULL, sealed BLOB NOT NULL) STRICT;",
];

/// SQL for the namespace of a key or a secret with its slash, like [`namespace_of`]. Empty for the
/// default namespace.
pub(crate) const NAMESPACE: &str = "substr(name, 1, instr(name, '/'))";

/// The part of a name up to and including its first slash.
pub(crate) fn namespace_of(name: &str) -> &str {
    &name[..name.find('/').map_or(0, |at| at + 1)]
}

/// Fails, before anything is written, if the file is foreign or newer. `known` is the newest
/// version of the tables that this program knows.
pub(crate) fn refuse_newer(path: &Path, known: u32) -> Result<(), StoreError> {
    check_header(path, known)?;
    // The log next to the file may hold a newer version than the file's header. The read turns off
    // the checkpoint that SQLite makes when the last connection closes, because the checkpoint
    // would write.
    let log = beside(path, "-wal");
    if std::fs::metadata(&log).is_ok_and(|meta| meta.len() > 0) {
        let connection = connect(path)?;
        let sql = |error| sql(path, error);
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(sql)?;
        let version = pragma(&connection, "user_version").map_err(sql)?;
        refuse(path, version, pragma(&connection, "application_id").map_err(sql)?, known)?;
    }
    Ok(())
}

/// Checks only the file's header in the same way.
fn check_header(path: &Path, known: u32) -> Result<(), StoreError> {
    let Some(header) = header(path)? else { return Ok(()) };
    if &header[..16] != b"SQLite format 3\0" {
        return Err(StoreError::Damaged(format!("{}: not a database", path.display())));
    }
    refuse(path, number(&header, 60), number(&header, 68), known)
}

/// Fails if the database is missing or empty although `tree` shows that there was one. An empty
/// database would name no code, so all code would be removed as unused.
fn refuse_lost(path: &Path, tree: &Path) -> Result<(), StoreError> {
    let bytes = match std::fs::metadata(path) {
        Ok(meta) => meta.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(error) => return Err(StoreError::io(path, error)),
    };
    if bytes > 0 {
        return Ok(());
    }
    Err(StoreError::Lost { path: path.to_owned(), tree: tree.to_owned() })
}

pub(crate) fn number(header: &[u8; 100], at: usize) -> u32 {
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

/// Returns the first bytes of the file; `None` if the file is shorter.
pub(crate) fn header(path: &Path) -> Result<Option<[u8; 100]>, StoreError> {
    let mut header = [0; 100];
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io(path, error)),
    };
    // The file is empty, or was cut off before its first page was written. SQLite either
    // initializes or refuses such a file.
    Ok(file.read_exact(&mut header).is_ok().then_some(header))
}

fn refuse(path: &Path, version: u32, application: u32, known: u32) -> Result<(), StoreError> {
    if application != APPLICATION_ID && (application != 0 || version != 0) {
        let text = format!("{}: the database of another program", path.display());
        return Err(StoreError::Damaged(text));
    }
    if version > known {
        return Err(StoreError::Newer { path: path.to_owned(), found: version, known });
    }
    Ok(())
}

/// Opens the database so that a commit is on disk when it returns, and migrates the tables. `tree`
/// is existing code that the database must name. If `tree` is given, this makes no new database.
pub(crate) fn open(path: &Path, tree: Option<&Path>) -> Result<Connection, StoreError> {
    check_header(path, VERSION)?;
    if let Some(tree) = tree {
        refuse_lost(path, tree)?;
    }
    let mut connection = connect(path)?;
    prepare(path, &mut connection, tree)?;
    Ok(connection)
}

/// Opens another database of the node so that a commit is on disk when it returns. Only the node's
/// user can read the file. `steps` lead from an empty file to the newest tables.
pub(crate) fn open_file(path: &Path, steps: &[&str]) -> Result<Connection, StoreError> {
    let known = steps.len() as u32;
    check_header(path, known)?;
    let mut connection = connect(path)?;
    let sql = |error| sql(path, error);
    let version = pragma(&connection, "user_version").map_err(sql)?;
    refuse(path, version, pragma(&connection, "application_id").map_err(sql)?, known)?;
    if version == 0 {
        note_made(path)?;
    }
    for name in [path.to_owned(), beside(path, "-wal"), beside(path, "-shm")] {
        if name.exists() {
            std::fs::set_permissions(&name, Permissions::from_mode(0o600))
                .map_err(|error| StoreError::io(&name, error))?;
        }
    }
    make_durable(path, &connection)?;
    keep_former(path, &connection, version, known)?;
    migrate(&mut connection, version, &[], steps).map_err(sql)?;
    remove_former(path, version);
    Ok(connection)
}

/// The name of the mark in `mote.db` that says that the node has made the file `name`.
pub(crate) fn made(name: &str) -> String {
    format!("made/{name}")
}

/// Notes in the `mote.db` next to `path` that this database is being made. The note comes before
/// the database has any content.
fn note_made(path: &Path) -> Result<(), StoreError> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let store = folder.join("mote.db");
    if !store.exists() {
        return Ok(());
    }
    let connection = connect(&store)?;
    let row = (made(&name.to_string_lossy()),);
    let insert = "INSERT OR REPLACE INTO marks (name, value) VALUES (?1, 1)";
    connection.execute(insert, row).map(|_| ()).map_err(|error| sql(&store, error))
}

pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

pub(crate) fn connect(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let there = with_real_folder(path)?;
    let connection = Connection::open_with_flags(there, flags).map_err(|error| sql(path, error))?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(|error| sql(path, error))?;
    Ok(connection)
}

/// Returns the path of a file with the links in its folder's path resolved. The file itself must
/// not be a link, so SQLite follows no links. With this setting, SQLite would refuse links anywhere in
/// the path, although a link may well lead to the data folder, for example on another disk.
pub(crate) fn with_real_folder(path: &Path) -> Result<PathBuf, StoreError> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(path.to_owned());
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let real = std::fs::canonicalize(folder).map_err(|error| StoreError::io(folder, error))?;
    Ok(real.join(name))
}

fn prepare(
    path: &Path,
    connection: &mut Connection,
    tree: Option<&Path>,
) -> Result<(), StoreError> {
    let sql = |error| sql(path, error);
    // The log next to the file may hold a newer version than the file's header.
    let version = pragma(connection, "user_version").map_err(sql)?;
    let application = pragma(connection, "application_id").map_err(sql)?;
    refuse(path, version, application, VERSION)?;
    if let Some(tree) = tree.filter(|_| version == 0) {
        return Err(StoreError::Lost { path: path.to_owned(), tree: tree.to_owned() });
    }
    make_durable(path, connection)?;
    keep_former(path, connection, version, VERSION)?;
    migrate(connection, version, &[TABLES], MIGRATIONS).map_err(sql)?;
    if version == 0 {
        // A new file has never contained a secret in plain text.
        let mark = "INSERT INTO marks (name, value) VALUES (?1, 1)";
        connection.execute(mark, [SECRETS_CLEANED]).map_err(sql)?;
    }
    remove_former(path, version);
    check_whole(path, connection)
}

/// Configures the connection so that a commit is durable when it returns.
fn make_durable(path: &Path, connection: &Connection) -> Result<(), StoreError> {
    let sql = |error| sql(path, error);
    let mode: String =
        connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(sql)?;
    connection
        .execute_batch(
            "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF;",
        )
        .map_err(sql)?;
    // Builds of SQLite have different defaults and may ignore a pragma, so the setting is read
    // back.
    let synchronous = pragma(connection, "synchronous").map_err(sql)?;
    let foreign_keys = pragma(connection, "foreign_keys").map_err(sql)?;
    if mode != "wal" || synchronous != 2 || foreign_keys != 1 {
        return Err(StoreError::Damaged(format!(
            "{}: durable settings are not available here (journal {mode}, synchronous {synchronous})",
            path.display()
        )));
    }
    Ok(())
}

/// The path of the copy that has tables of this version.
fn former(path: &Path, version: u32) -> PathBuf {
    beside(path, &format!(".format-{version}"))
}

/// Keeps a copy, such as `mote.db.format-4`, of a file whose tables are about to change. The former
/// version of `mote` cannot read the new tables, and `mote upgrade` goes back to that version if
/// the new one does not start.
fn keep_former(
    path: &Path,
    connection: &Connection,
    version: u32,
    newest: u32,
) -> Result<(), StoreError> {
    if version == 0 || version >= newest {
        return Ok(());
    }
    let copy = former(path, version);
    let new = beside(path, ".format-new");
    let io = |error| StoreError::io(&new, error);
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(error)),
        _ => {}
    }
    // The file is created with this mode, so that only the node's user can ever read the content.
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(io)?;
    let target = new.to_string_lossy();
    connection.execute("VACUUM INTO ?1", [&target]).map_err(|error| sql(&new, error))?;
    File::open(&new).and_then(|file| file.sync_all()).map_err(io)?;
    std::fs::rename(&new, &copy).map_err(|error| StoreError::io(&copy, error))
}

/// Removes the copies of all versions before `kept`.
pub(crate) fn remove_former(path: &Path, kept: u32) {
    for version in 1..kept {
        // If a copy cannot be removed, it only takes space.
        let _ = std::fs::remove_file(former(path, version));
    }
}

/// Runs the steps from `version` to the newest. Either all of them take effect or none: after a
/// crash the previous version remains.
fn migrate(
    connection: &mut Connection,
    version: u32,
    first: &[&str],
    steps: &[&str],
) -> rusqlite::Result<()> {
    let newest = (first.len() + steps.len()) as u32;
    if version >= newest {
        return Ok(());
    }
    let change = connection.transaction()?;
    for step in first.iter().chain(steps).skip(version as usize) {
        match *step {
            KEEP_PUBLIC => keep_public(&change)?,
            step => change.execute_batch(step)?,
        }
    }
    change.execute_batch(&format!(
        "PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {newest};"
    ))?;
    change.commit()
}

/// Adds the mode that permits everyone to specs without an access mode.
fn keep_public(connection: &Connection) -> rusqlite::Result<()> {
    let mut all = connection.prepare("SELECT rowid, spec FROM revisions")?;
    let specs = all.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))?;
    for (row, spec) in specs.collect::<rusqlite::Result<Vec<_>>>()? {
        // A text that is not a spec is reported when it is read.
        let Ok(mut spec) = serde_json::from_str::<serde_json::Map<_, _>>(&spec) else { continue };
        if spec.get("access").is_none_or(serde_json::Value::is_null) {
            spec.insert("access".to_owned(), "public".into());
            let spec = serde_json::Value::from(spec).to_string();
            let change = "UPDATE revisions SET spec = ?1 WHERE rowid = ?2";
            connection.execute(change, rusqlite::params![spec, row])?;
        }
    }
    Ok(())
}

/// Refuses a file whose pages or indexes are inconsistent. With such a file, SQLite would find some
/// rows and miss others, and the node would report an existing function as unknown. The two tables
/// that decide which revisions are served are also compared with their indexes. Takes milliseconds
/// for thousands of rows.
fn check_whole(path: &Path, connection: &Connection) -> Result<(), StoreError> {
    let sql = |error| sql(path, error);
    for check in ["quick_check(1)", "integrity_check(functions)", "integrity_check(revisions)"] {
        let found: String =
            connection.query_row(&format!("PRAGMA {check}"), [], |row| row.get(0)).map_err(sql)?;
        if found != "ok" {
            return Err(StoreError::Damaged(format!("{}: {found}", path.display())));
        }
    }
    let mut orphans = connection.prepare("PRAGMA foreign_key_check").map_err(sql)?;
    if orphans.exists([]).map_err(sql)? {
        let text = format!("{}: a row refers to a function that does not exist", path.display());
        return Err(StoreError::Damaged(text));
    }
    Ok(())
}

pub(crate) fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<u32> {
    connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))
}

/// Distinguishes a full disk and a damaged file from other failures.
pub(crate) fn sql(path: &Path, error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DiskFull) => StoreError::disk_full(path),
        Some(rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase) => {
            StoreError::Damaged(format!("{}: {error}", path.display()))
        }
        _ => StoreError::Database(error),
    }
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;
