//! Applies operations to the tables. They run in a transaction of the committer. A refused
//! operation changes nothing.

use crate::commit::Steps;
use bytes::Bytes;
use mote_core::state::{
    Condition, Entry, LIST_BYTES_MAX, LIST_MAX, Namespace, Operation, Outcome, Quota, StateError,
    Usage,
};
use rusqlite::{Connection, OptionalExtension as _, params};

/// How many expired entries each change also removes. The number is above one, so that expired
/// entries become fewer.
const SWEPT_PER_CHANGE: u32 = 4;
/// How many expired entries are removed before a quota counts as used up.
const SWEPT_FOR_QUOTA: u32 = 10_000;

/// The tables. `expires_ms` is 0 for entries that do not expire. A namespace's `version` is the
/// newest version that any of its entries had. A namespace is never removed, so that no version is
/// reused.
pub(crate) const STEPS: Steps = &["
CREATE TABLE namespaces (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    keys INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    version INTEGER NOT NULL
) STRICT;
CREATE TABLE entries (
    id INTEGER PRIMARY KEY,
    namespace INTEGER NOT NULL REFERENCES namespaces (id) ON DELETE CASCADE,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    version INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    UNIQUE (namespace, key)
) STRICT;
CREATE INDEX entries_by_end ON entries (expires_ms) WHERE expires_ms > 0;
"];

/// The result of an operation, and the content of its key afterwards.
pub(crate) struct Applied {
    pub(crate) outcome: Result<Outcome, StateError>,
    /// `None` if the content has not changed or is not known.
    pub(crate) now: Option<Option<Entry>>,
}

impl Applied {
    fn refused(error: StateError) -> Self {
        Self { outcome: Err(error), now: None }
    }
}

/// The number of keys and bytes in a namespace.
#[derive(Clone, Copy)]
struct Totals {
    id: i64,
    keys: u64,
    bytes: u64,
}

/// An entry without its value.
struct Held {
    version: u64,
    bytes: u64,
    expires_ms: u64,
}

fn text_of(namespace: &Namespace) -> String {
    match namespace {
        Namespace::Function(name) => format!("function/{name}"),
        Namespace::Shared(name) => format!("shared/{name}"),
    }
}

fn namespace_of(text: &str) -> Option<Namespace> {
    let (kind, name) = text.split_once('/')?;
    match kind {
        "function" => Some(Namespace::Function(name.to_owned())),
        "shared" => Some(Namespace::Shared(name.to_owned())),
        _ => None,
    }
}

pub(crate) fn apply(
    connection: &Connection,
    namespace: &Namespace,
    operation: Operation,
    quota: Quota,
    now_ms: u64,
) -> rusqlite::Result<Applied> {
    let totals = totals(connection, namespace)?;
    let id = totals.map_or(0, |totals| totals.id);
    match operation {
        Operation::Get { key } => {
            let entry = entry(connection, id, &key, now_ms)?;
            Ok(Applied { outcome: Ok(Outcome::Entry(entry.clone())), now: Some(entry) })
        }
        Operation::List { prefix, after, limit, values } => {
            let listed = list(connection, id, &prefix, after, limit, values, now_ms)?;
            Ok(Applied { outcome: Ok(listed), now: None })
        }
        Operation::Put { key, value, condition, ttl_ms } => {
            let held = held(connection, id, &key)?;
            let version = living(held.as_ref(), now_ms).map_or(0, |held| held.version);
            if !condition.holds(version) {
                return Ok(Applied::refused(StateError::Conflict { version }));
            }
            let expires_ms = ttl_ms.map_or(0, |ttl_ms| now_ms.saturating_add(ttl_ms));
            let change = Change { namespace, totals, key: &key, held, quota, now_ms };
            Ok(match change.write(connection, &value, expires_ms)? {
                Err(error) => Applied::refused(error),
                Ok(version) => Applied {
                    outcome: Ok(Outcome::Written { version }),
                    // The value is copied, because a slice would keep everything that was read from
                    // the socket in memory.
                    now: Some(Some(made(Bytes::copy_from_slice(&value), version, expires_ms))),
                },
            })
        }
        Operation::Increment { key, by, ttl_ms } => {
            let found = entry(connection, id, &key, now_ms)?;
            let number = match &found {
                None => Some(0),
                Some(entry) => std::str::from_utf8(&entry.value).ok().and_then(|t| t.parse().ok()),
            };
            let Some(sum) = number.and_then(|number: i64| number.checked_add(by)) else {
                let text = "the entry holds no whole number of 64 bits, or the sum is none";
                return Ok(Applied::refused(StateError::Invalid(text.to_owned())));
            };
            let kept = found.and_then(|entry| entry.expires_unix_ms).unwrap_or(0);
            let expires_ms = ttl_ms.map_or(kept, |ttl_ms| now_ms.saturating_add(ttl_ms));
            let held = held(connection, id, &key)?;
            let change = Change { namespace, totals, key: &key, held, quota, now_ms };
            let value = Bytes::from(sum.to_string());
            Ok(match change.write(connection, &value, expires_ms)? {
                Err(error) => Applied::refused(error),
                Ok(version) => Applied {
                    outcome: Ok(Outcome::Counted { version, value: sum }),
                    now: Some(Some(made(value, version, expires_ms))),
                },
            })
        }
        Operation::Delete { key, condition } => {
            let held = held(connection, id, &key)?;
            let living = living(held.as_ref(), now_ms);
            let version = living.map_or(0, |held| held.version);
            if condition != Condition::None && !condition.holds(version) {
                return Ok(Applied::refused(StateError::Conflict { version }));
            }
            let was = living.is_some();
            if let Some(held) = held {
                remove(connection, id, &key)?;
                count(connection, id, -1, -to_i64(held.bytes))?;
            }
            sweep(connection, now_ms, SWEPT_PER_CHANGE, None)?;
            Ok(Applied { outcome: Ok(Outcome::Deleted(was)), now: Some(None) })
        }
    }
}

fn made(value: Bytes, version: u64, expires_ms: u64) -> Entry {
    Entry { value, version, expires_unix_ms: (expires_ms > 0).then_some(expires_ms) }
}

fn living(held: Option<&Held>, now_ms: u64) -> Option<&Held> {
    held.filter(|held| held.expires_ms == 0 || held.expires_ms > now_ms)
}

/// A value to be written.
struct Change<'a> {
    namespace: &'a Namespace,
    totals: Option<Totals>,
    key: &'a str,
    /// The key's current entry, expired or not.
    held: Option<Held>,
    quota: Quota,
    now_ms: u64,
}

impl Change<'_> {
    fn write(
        mut self,
        connection: &Connection,
        value: &[u8],
        expires_ms: u64,
    ) -> rusqlite::Result<Result<u64, StateError>> {
        let bytes = (self.key.len() + value.len()) as u64;
        if let Some(most) = self.quota.together_bytes
            && let Some(error) = self.exceeds_together(connection, bytes, most)?
        {
            return Ok(Err(error));
        }
        if let Some(error) = self.exceeds(bytes) {
            // Expired entries do not count, so they are removed before the quota is checked again.
            let Some(totals) = self.totals else { return Ok(Err(error)) };
            sweep(connection, self.now_ms, SWEPT_FOR_QUOTA, Some(totals.id))?;
            self.totals = self::totals(connection, self.namespace)?;
            self.held = held(connection, totals.id, self.key)?;
            if let Some(error) = self.exceeds(bytes) {
                return Ok(Err(error));
            }
        }
        let id = match self.totals {
            Some(totals) => totals.id,
            None => {
                let sql =
                    "INSERT INTO namespaces (name, keys, bytes, version) VALUES (?1, 0, 0, 0)";
                connection.prepare_cached(sql)?.execute([text_of(self.namespace)])?;
                connection.last_insert_rowid()
            }
        };
        let old = self.held.as_ref().map_or(0, |held| held.bytes);
        let keys = i64::from(self.held.is_none());
        let sql =
            "UPDATE namespaces SET version = version + 1, keys = keys + ?2, bytes = bytes + ?3
                   WHERE id = ?1 RETURNING version";
        let row = params![id, keys, to_i64(bytes) - to_i64(old)];
        let version: u64 = connection.prepare_cached(sql)?.query_row(row, |row| row.get(0))?;
        let sql = "INSERT INTO entries (namespace, key, value, version, expires_ms)
                   VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (namespace, key) DO UPDATE
                   SET value = ?3, version = ?4, expires_ms = ?5";
        let row = params![id, self.key, value, version, expires_ms];
        connection.prepare_cached(sql)?.execute(row)?;
        sweep(connection, self.now_ms, SWEPT_PER_CHANGE, None)?;
        Ok(Ok(version))
    }

    /// Checks the limit on all functions of this function's namespace together. Expired entries
    /// count until they are removed.
    fn exceeds_together(
        &self,
        connection: &Connection,
        bytes: u64,
        most: u64,
    ) -> rusqlite::Result<Option<StateError>> {
        let (Namespace::Function(name) | Namespace::Shared(name)) = self.namespace;
        let Some(namespace) = mote_spec::name::split(name).1 else { return Ok(None) };
        let old = self.held.as_ref().map_or(0, |held| held.bytes);
        let sql = "SELECT coalesce(sum(bytes), 0) FROM namespaces
                   WHERE substr(name, -length(?1)) = ?1";
        let all = |connection: &Connection| {
            let mut statement = connection.prepare_cached(sql)?;
            statement.query_row([format!(".{namespace}")], |row| row.get::<_, u64>(0))
        };
        if bytes <= old || all(connection)? - old + bytes <= most {
            return Ok(None);
        }
        sweep(connection, self.now_ms, SWEPT_FOR_QUOTA, None)?;
        let now = all(connection)?;
        if now.saturating_sub(old) + bytes <= most {
            return Ok(None);
        }
        let text = format!(
            "the namespace {namespace} keeps {now} bytes of state, of at most {most}; remove keys, or let \
             an operator raise the limit with mote namespace update {namespace} --state"
        );
        Ok(Some(StateError::Full(text)))
    }

    /// Whether the change would exceed the quota and also make the namespace larger than before.
    fn exceeds(&self, bytes: u64) -> Option<StateError> {
        let (keys, held) = self.totals.map_or((0, 0), |totals| (totals.keys, totals.bytes));
        let old = self.held.as_ref().map_or(0, |held| held.bytes);
        if self.held.is_none() && keys + 1 > self.quota.keys {
            let text = format!("the namespace holds {} keys, its most", self.quota.keys);
            return Some(StateError::Full(text));
        }
        if bytes > old && held - old + bytes > self.quota.bytes {
            let text = format!(
                "the namespace holds {held} bytes of keys and values of its quota of {}",
                self.quota.bytes
            );
            return Some(StateError::Full(text));
        }
        None
    }
}

fn to_i64(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn totals(connection: &Connection, namespace: &Namespace) -> rusqlite::Result<Option<Totals>> {
    let sql = "SELECT id, keys, bytes FROM namespaces WHERE name = ?1";
    connection
        .prepare_cached(sql)?
        .query_row([text_of(namespace)], |row| {
            Ok(Totals { id: row.get(0)?, keys: row.get(1)?, bytes: row.get(2)? })
        })
        .optional()
}

fn held(connection: &Connection, id: i64, key: &str) -> rusqlite::Result<Option<Held>> {
    let sql = "SELECT version, octet_length(key) + octet_length(value), expires_ms
               FROM entries WHERE namespace = ?1 AND key = ?2";
    connection
        .prepare_cached(sql)?
        .query_row(params![id, key], |row| {
            Ok(Held { version: row.get(0)?, bytes: row.get(1)?, expires_ms: row.get(2)? })
        })
        .optional()
}

fn entry(
    connection: &Connection,
    id: i64,
    key: &str,
    now_ms: u64,
) -> rusqlite::Result<Option<Entry>> {
    let sql = "SELECT value, version, expires_ms FROM entries
               WHERE namespace = ?1 AND key = ?2 AND (expires_ms = 0 OR expires_ms > ?3)";
    connection
        .prepare_cached(sql)?
        .query_row(params![id, key, now_ms], |row| {
            Ok(made(row.get::<_, Vec<u8>>(0)?.into(), row.get(1)?, row.get(2)?))
        })
        .optional()
}

fn list(
    connection: &Connection,
    id: i64,
    prefix: &str,
    after: Option<String>,
    limit: u32,
    values: bool,
    now_ms: u64,
) -> rusqlite::Result<Outcome> {
    let limit = match limit {
        0 => LIST_MAX,
        limit => limit.min(LIST_MAX),
    } as usize;
    let sql = "SELECT key, version, expires_ms, CASE WHEN ?5 THEN value ELSE x'' END FROM entries
               WHERE namespace = ?1 AND key >= ?2 AND key > ?3
               AND (expires_ms = 0 OR expires_ms > ?4) ORDER BY key";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows =
        statement.query(params![id, prefix, after.unwrap_or_default(), now_ms, values])?;
    let mut entries = Vec::new();
    let mut bytes = 0;
    let mut more = false;
    while let Some(row) = rows.next()? {
        let key: String = row.get(0)?;
        if !key.starts_with(prefix) {
            break;
        }
        let entry = made(row.get::<_, Vec<u8>>(3)?.into(), row.get(1)?, row.get(2)?);
        bytes += key.len() + entry.value.len();
        if entries.len() == limit || (bytes > LIST_BYTES_MAX && !entries.is_empty()) {
            more = true;
            break;
        }
        entries.push((key, entry));
    }
    Ok(Outcome::Listed { entries, more })
}

fn remove(connection: &Connection, id: i64, key: &str) -> rusqlite::Result<()> {
    let sql = "DELETE FROM entries WHERE namespace = ?1 AND key = ?2";
    connection.prepare_cached(sql)?.execute(params![id, key]).map(|_| ())
}

fn count(connection: &Connection, id: i64, keys: i64, bytes: i64) -> rusqlite::Result<()> {
    let sql = "UPDATE namespaces SET keys = keys + ?2, bytes = bytes + ?3 WHERE id = ?1";
    connection.prepare_cached(sql)?.execute(params![id, keys, bytes]).map(|_| ())
}

/// Removes expired entries of one namespace or of all.
fn sweep(
    connection: &Connection,
    now_ms: u64,
    most: u32,
    namespace: Option<i64>,
) -> rusqlite::Result<()> {
    let sql = "DELETE FROM entries WHERE id IN (
                   SELECT id FROM entries WHERE expires_ms > 0 AND expires_ms <= ?1
                   AND (?2 IS NULL OR namespace = ?2) ORDER BY expires_ms LIMIT ?3)
               RETURNING namespace, octet_length(key) + octet_length(value)";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params![now_ms, namespace, most])?;
    let mut removed: Vec<(i64, i64)> = Vec::new();
    while let Some(row) = rows.next()? {
        removed.push((row.get(0)?, row.get(1)?));
    }
    drop(rows);
    for (namespace, bytes) in removed {
        count(connection, namespace, -1, -bytes)?;
    }
    Ok(())
}

/// Returns how much each namespace holds, sorted by name.
pub(crate) fn usage(connection: &Connection) -> rusqlite::Result<Vec<Usage>> {
    let sql = "SELECT name, keys, bytes FROM namespaces WHERE keys > 0 ORDER BY name";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| {
        let name: String = row.get(0)?;
        Ok((namespace_of(&name), row.get(1)?, row.get(2)?))
    })?;
    let rows = rows.collect::<rusqlite::Result<Vec<_>>>()?;
    let known = rows
        .into_iter()
        .filter_map(|(namespace, keys, bytes)| Some(Usage { namespace: namespace?, keys, bytes }));
    Ok(known.collect())
}

/// Removes the entries of a namespace.
pub(crate) fn clear(connection: &Connection, namespace: &Namespace) -> rusqlite::Result<()> {
    let Some(totals) = totals(connection, namespace)? else { return Ok(()) };
    connection.prepare_cached("DELETE FROM entries WHERE namespace = ?1")?.execute([totals.id])?;
    count(connection, totals.id, -to_i64(totals.keys), -to_i64(totals.bytes))
}
