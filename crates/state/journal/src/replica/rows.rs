//! Converts rows to messages and back: the changes of a transaction, and the rows that messages
//! hold.
//!
//! Temporary triggers of the writing connection note the keys of changed rows. A message holds the
//! whole row as it is after the transaction, so the last messages of all rows together make up the
//! journal.

use std::collections::HashMap;

use bytes::Bytes;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Statement, params, params_from_iter};
use sha2::{Digest as _, Sha256};

use super::log::Message;

/// The format of the bytes of a row.
const FORMAT: u8 = 1;
/// The most bytes of one message. NATS takes 1 MiB unless its operator allows more.
const PART_BYTES: usize = 768 << 10;

/// Notes changed rows: kind of the row, its number, the key of a step, and how it changed (1 for
/// inserted, 2 for updated, 4 for deleted). The kinds are 0 for a record, 1 for a step, and 2 for
/// an activation.
const CAPTURE: &str = "
CREATE TEMP TABLE changed (kind INTEGER, number INTEGER, key TEXT, how INTEGER NOT NULL,
    PRIMARY KEY (kind, number, key)) WITHOUT ROWID;
";

/// The data about its log that the file keeps: the place of the message by which this node took the
/// log, the place of the newest message, and the rows with several messages. Only replicated files
/// have these tables.
const TABLES: &str = "
CREATE TABLE IF NOT EXISTS replica (one INTEGER PRIMARY KEY CHECK (one = 0),
    epoch INTEGER NOT NULL, place INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS replica_parts (subject TEXT PRIMARY KEY, parts INTEGER NOT NULL) STRICT;
";

/// The messages of one row, which are stored together.
pub(crate) type RowMessages = Vec<Message>;

struct Table {
    letter: char,
    name: &'static str,
    /// The columns of the row's key for use in a trigger, where `ROW` stands for the row.
    key: &'static str,
    by_key: &'static str,
}

const RECORDS: usize = 0;
const STEPS: usize = 1;
const KINDS: [Table; 3] = [
    Table {
        letter: 'r',
        name: "records",
        key: "ROW.number, ''",
        by_key: "number = ?1 AND ?2 = ''",
    },
    Table {
        letter: 's',
        name: "steps",
        key: "ROW.record, ROW.key",
        by_key: "record = ?1 AND key = ?2",
    },
    Table {
        letter: 'a',
        name: "activations",
        key: "ROW.number, ''",
        by_key: "number = ?1 AND ?2 = ''",
    },
];

/// A row that a transaction has changed.
struct Changed {
    kind: usize,
    number: i64,
    key: String,
    how: i64,
}

impl Changed {
    fn subject(&self) -> String {
        let letter = KINDS[self.kind].letter;
        if self.kind != STEPS {
            return format!("{letter}.{}", self.number);
        }
        let hash = Sha256::digest(self.key.as_bytes());
        let hex: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{letter}.{}.{hex}", self.number)
    }
}

/// Makes the tables that only a replicated file has.
pub(crate) fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    // The replica's statements need room in the cache in addition to the journal's.
    connection.set_prepared_statement_cache_capacity(64);
    connection.execute_batch(TABLES)
}

/// Starts noting changes.
pub(crate) fn capture(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(CAPTURE)?;
    for (kind, Table { name, key, .. }) in KINDS.iter().enumerate() {
        // The counts of a record's steps are left out, because they can be computed from the steps.
        // If they were included, each step would append the whole request of its record again.
        let mut columns = columns(connection, name)?;
        columns.retain(|column| !matches!(&column[..], "steps" | "steps_bytes"));
        let update = format!("UPDATE OF {}", columns.join(", "));
        for (event, row, how) in [("INSERT", "NEW", 1), (&update, "NEW", 2), ("DELETE", "OLD", 4)] {
            let key = key.replace("ROW", row);
            connection.execute_batch(&format!(
                "CREATE TEMP TRIGGER changed_{name}_{how} AFTER {event} ON main.{name} BEGIN
                 INSERT INTO changed VALUES ({kind}, {key}, {how})
                 ON CONFLICT DO UPDATE SET how = how | {how}; END"
            ))?;
        }
    }
    Ok(())
}

fn columns(connection: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(&format!("PRAGMA table_info({table})"))?;
    statement.query_map([], |row| row.get(1))?.collect()
}

/// The place in the log that the file has reached: the place of the message by which the node took
/// the log, and the place of the newest message.
pub(crate) fn mark(connection: &Connection) -> rusqlite::Result<Option<(u64, u64)>> {
    use rusqlite::OptionalExtension as _;
    let sql = "SELECT epoch, place FROM replica";
    let read = |row: &rusqlite::Row<'_>| {
        Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get::<_, i64>(1)?.unsigned_abs()))
    };
    connection.query_row(sql, [], read).optional()
}

/// Stores the place in the log that the file has reached.
pub(crate) fn set_mark(connection: &Connection, epoch: u64, place: u64) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO replica VALUES (0, ?1, ?2)";
    connection.prepare_cached(sql)?.execute([epoch as i64, place as i64]).map(|_| ())
}

/// Prepares a file to be used without its former log, if it had one. The log will not receive the
/// file's next change, so that change must also delete the file's place in the log.
pub(crate) fn leave_log(connection: &Connection) -> rusqlite::Result<()> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE name = 'replica'";
    if !connection.prepare(sql)?.exists([])? || mark(connection)?.is_none() {
        return Ok(());
    }
    for Table { name, .. } in &KINDS {
        for event in ["INSERT", "UPDATE", "DELETE"] {
            connection.execute_batch(&format!(
                "CREATE TEMP TRIGGER left_{name}_{event} AFTER {event} ON main.{name} BEGIN
                 DELETE FROM replica; END"
            ))?;
        }
    }
    Ok(())
}

/// Whether the file holds work that has not ended.
pub(crate) fn has_work(connection: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM records WHERE state = 0)
        OR EXISTS (SELECT 1 FROM activations)";
    connection.query_row(sql, [], |row| row.get(0))
}

/// Returns the rows that have several messages, and how many each has.
pub(crate) fn parts(connection: &Connection) -> rusqlite::Result<HashMap<String, usize>> {
    let mut statement = connection.prepare("SELECT subject, parts FROM replica_parts")?;
    statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, u32>(1)? as usize)))?.collect()
}

/// Returns the messages of the rows that the transaction has changed. They are ordered so that the
/// journal can continue if only the first of them arrive: new records before the end of the records
/// that caused them, the end of a record before the data of its steps, and removed rows last.
pub(crate) fn collect(
    connection: &Connection,
    parts: &mut HashMap<String, usize>,
) -> rusqlite::Result<Vec<RowMessages>> {
    let mut statement = connection.prepare_cached("SELECT kind, number, key, how FROM changed")?;
    let changed = statement.query_map([], |row| {
        let kind = row.get::<_, u8>(0)?.into();
        Ok(Changed { kind, number: row.get(1)?, key: row.get(2)?, how: row.get(3)? })
    })?;
    let changed: Vec<Changed> = changed.collect::<Result<_, _>>()?;
    if changed.is_empty() {
        return Ok(Vec::new());
    }
    connection.prepare_cached("DELETE FROM changed")?.execute([])?;
    let mut rows = Vec::with_capacity(changed.len());
    for row in &changed {
        let content = read_row(connection, row)?;
        let rank = match (&content, row.how & 1) {
            // Steps are removed only when their record ends. If a record with this number exists
            // here, it is a new record, which must not find the old steps.
            (None, _) if row.kind == STEPS => match exists(connection, row.number)? {
                true => 0,
                false => 4,
            },
            (None, _) => 5,
            (Some(_), 1) => 1,
            (Some(_), _) if row.kind != STEPS => 2,
            (Some(_), _) => 3,
        };
        rows.push((rank, messages(connection, row.subject(), content, parts)?));
    }
    rows.sort_by_key(|(rank, _)| *rank);
    Ok(rows.into_iter().map(|(_, messages)| messages).collect())
}

/// Calls `each` with the messages of every row in the file.
pub(crate) fn all<E: From<rusqlite::Error>>(
    connection: &Connection,
    mut each: impl FnMut(RowMessages) -> Result<(), E>,
) -> Result<(), E> {
    // Records come last: a step without a record is dropped, but a record without its steps would
    // repeat the steps.
    for kind in [STEPS, 2, RECORDS] {
        let sql = match kind {
            STEPS => "SELECT record, key FROM steps",
            2 => "SELECT number, '' FROM activations",
            _ => "SELECT number, '' FROM records",
        };
        let mut statement = connection.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let row = Changed { kind, number: row.get(0)?, key: row.get(1)?, how: 1 };
            let content = read_row(connection, &row)?;
            each(messages(connection, row.subject(), content, &mut HashMap::new())?)?;
        }
    }
    Ok(())
}

fn exists(connection: &Connection, record: i64) -> rusqlite::Result<bool> {
    connection.prepare_cached("SELECT 1 FROM records WHERE number = ?1")?.exists([record])
}

/// Returns the values of a row in bytes, if the row exists.
fn read_row(connection: &Connection, row: &Changed) -> rusqlite::Result<Option<Vec<u8>>> {
    let Table { name, by_key, .. } = KINDS[row.kind];
    let sql = format!("SELECT * FROM {name} WHERE {by_key}");
    let mut statement = connection.prepare_cached(&sql)?;
    let columns = statement.column_count();
    let mut rows = statement.query(params![row.number, row.key])?;
    let Some(found) = rows.next()? else { return Ok(None) };
    let mut bytes = vec![columns as u8];
    for column in 0..columns {
        let (tag, value) = match found.get_ref(column)? {
            ValueRef::Null => {
                bytes.push(0);
                continue;
            }
            ValueRef::Integer(number) => {
                bytes.push(1);
                bytes.extend_from_slice(&number.to_le_bytes());
                continue;
            }
            ValueRef::Real(number) => {
                bytes.push(2);
                bytes.extend_from_slice(&number.to_le_bytes());
                continue;
            }
            ValueRef::Text(text) => (3, text),
            ValueRef::Blob(blob) => (4, blob),
        };
        bytes.push(tag);
        bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        bytes.extend_from_slice(value);
    }
    Ok(Some(bytes))
}

/// Returns the messages of one row. The first part comes last and says how many parts there are.
fn messages(
    connection: &Connection,
    subject: String,
    content: Option<Vec<u8>>,
    parts: &mut HashMap<String, usize>,
) -> rusqlite::Result<RowMessages> {
    let part_subject = |part: usize| format!("{subject}.p{part}");
    let before = parts.get(&subject).copied().unwrap_or(1);
    let content = content.map(Bytes::from);
    let now = content.as_ref().map_or(1, |content| content.len().div_ceil(PART_BYTES).max(1));
    let part = |content: &Bytes, number: usize| {
        content.slice(number * PART_BYTES..content.len().min((number + 1) * PART_BYTES))
    };
    let mut all = Vec::with_capacity(now.max(before));
    for number in now..before {
        all.push(Message { subject: part_subject(number), body: None });
    }
    for number in 1..now {
        let body = content.as_ref().map(|content| part(content, number));
        all.push(Message { subject: part_subject(number), body });
    }
    if now != before {
        if now > 1 {
            let sql = "INSERT OR REPLACE INTO replica_parts VALUES (?1, ?2)";
            connection.prepare_cached(sql)?.execute(params![subject, now as i64])?;
            parts.insert(subject.clone(), now);
        } else {
            let sql = "DELETE FROM replica_parts WHERE subject = ?1";
            connection.prepare_cached(sql)?.execute([&subject])?;
            parts.remove(&subject);
        }
    }
    let body = content.map(|content| {
        let first = part(&content, 0);
        let mut body = Vec::with_capacity(3 + first.len());
        body.push(FORMAT);
        body.extend_from_slice(&(now as u16).to_le_bytes());
        body.extend_from_slice(&first);
        body.into()
    });
    all.push(Message { subject, body });
    Ok(all)
}

/// Puts rows back into an empty file.
pub(crate) struct Restoring<'a> {
    connection: &'a Connection,
    /// Parts of rows whose first part has not arrived yet.
    parts: HashMap<String, Bytes>,
    /// Statements by kind and number of columns.
    statements: HashMap<(usize, usize), Statement<'a>>,
}

/// Why a message is not a valid row.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoRow {
    #[error("a newer version of mote wrote the row {0}")]
    Newer(String),
    #[error("the row {0} is damaged")]
    Damaged(String),
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
}

impl<'a> Restoring<'a> {
    /// Empties the file and prepares to restore it.
    pub(crate) fn begin(connection: &'a Connection) -> rusqlite::Result<Self> {
        connection.execute_batch(
            "DELETE FROM steps; DELETE FROM records; DELETE FROM activations;
             DELETE FROM replica_parts;",
        )?;
        Ok(Self { connection, parts: HashMap::new(), statements: HashMap::new() })
    }

    /// Takes one message. A message without a body can be skipped, because the file starts empty.
    pub(crate) fn take(&mut self, subject: &str, body: Bytes) -> Result<(), NoRow> {
        let damaged = || NoRow::Damaged(subject.to_owned());
        if body.is_empty() {
            return Ok(());
        }
        let last = subject.rsplit('.').next().unwrap_or_default();
        if last.starts_with('p') {
            self.parts.insert(subject.to_owned(), body);
            return Ok(());
        }
        let letter = subject.chars().next().unwrap_or_default();
        let Some(kind) = KINDS.iter().position(|table| table.letter == letter) else {
            return Ok(());
        };
        if body[0] > FORMAT {
            return Err(NoRow::Newer(subject.to_owned()));
        }
        let parts = body.get(1..3).ok_or_else(damaged)?;
        let parts = usize::from(u16::from_le_bytes([parts[0], parts[1]]));
        let mut content = body.slice(3..);
        if parts > 1 {
            let mut whole = content.to_vec();
            for number in 1..parts {
                let part = self.parts.remove(&format!("{subject}.p{number}"));
                whole.extend_from_slice(&part.ok_or_else(damaged)?);
            }
            content = whole.into();
            let sql = "INSERT OR REPLACE INTO replica_parts VALUES (?1, ?2)";
            self.connection.prepare_cached(sql)?.execute(params![subject, parts as i64])?;
        }
        let values = values(&content).ok_or_else(damaged)?;
        self.insert(kind, values, subject)
    }

    fn insert(&mut self, kind: usize, values: Vec<Value>, subject: &str) -> Result<(), NoRow> {
        let count = values.len();
        let statement = match self.statements.entry((kind, count)) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                let name = KINDS[kind].name;
                let columns = columns(self.connection, name)?;
                // Later versions only add columns at the end, so a row with fewer columns is valid.
                let Some(columns) = columns.get(..count) else {
                    return Err(NoRow::Newer(subject.to_owned()));
                };
                let marks = vec!["?"; count].join(", ");
                let columns = columns.join(", ");
                let sql = format!("INSERT OR REPLACE INTO {name} ({columns}) VALUES ({marks})");
                new.insert(self.connection.prepare(&sql)?)
            }
        };
        statement.execute(params_from_iter(values))?;
        Ok(())
    }

    /// Removes steps without a record, counts the steps of the other records, and makes the numbers
    /// of new activations greater than `used`.
    pub(crate) fn end(self, used: u64) -> rusqlite::Result<()> {
        let connection = self.connection;
        connection
            .execute("DELETE FROM steps WHERE record NOT IN (SELECT number FROM records)", [])?;
        // The data of the steps is kept only for records that have not ended and for dead letters.
        connection.execute(
            "UPDATE records SET (steps, steps_bytes) = (
                 SELECT count(*), CASE WHEN records.state IN (0, 2) THEN
                     sum(octet_length(key) + coalesce(length(value), 0)) ELSE 0 END
                 FROM steps WHERE record = records.number)
             WHERE number IN (SELECT DISTINCT record FROM steps)",
            [],
        )?;
        connection.execute("DELETE FROM sqlite_sequence WHERE name = 'activations'", [])?;
        let sql = "INSERT INTO sqlite_sequence VALUES ('activations',
            max(?1, (SELECT coalesce(max(number), 0) FROM activations)))";
        connection.execute(sql, [used as i64]).map(|_| ())
    }
}

fn values(bytes: &[u8]) -> Option<Vec<Value>> {
    let (&count, mut rest) = bytes.split_first()?;
    let mut values = Vec::with_capacity(count.into());
    for _ in 0..count {
        let (&tag, after) = rest.split_first()?;
        rest = after;
        let length = match tag {
            0 => 0,
            1 | 2 => 8,
            3 | 4 => {
                let (length, after) = rest.split_first_chunk::<4>()?;
                rest = after;
                u32::from_le_bytes(*length) as usize
            }
            _ => return None,
        };
        let (value, after) = rest.split_at_checked(length)?;
        rest = after;
        values.push(match tag {
            0 => Value::Null,
            1 => Value::Integer(i64::from_le_bytes(value.try_into().ok()?)),
            2 => Value::Real(f64::from_le_bytes(value.try_into().ok()?)),
            3 => Value::Text(String::from_utf8(value.to_vec()).ok()?),
            _ => Value::Blob(value.to_vec()),
        });
    }
    rest.is_empty().then_some(values)
}
