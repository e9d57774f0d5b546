//! The records on disk: SQLite behind a group committer.
//!
//! The future of an accepted record resolves after the record is on disk. The end of an attempt is
//! written without a sync. If a power cut loses this note, the only consequence is that the
//! invocation runs once more.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use mote_core::InvocationId;
use mote_core::accept::SCHEDULE_KEYS;
use mote_core::invocation::Trigger;
pub(crate) use mote_process::clock::unix_ms;
use mote_store::commit::{CommitError, Committer, Steps};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::pending::Number;
use crate::record::{
    Columns, LastAttempt, NewRecord, ScheduleRun, State, Stored, Waiting, Work, decode, encode,
};

use crate::replica::{self, ReplicaState, Replication};

/// The steps that create the tables. A record with `trigger` 0 is a request that carries a result.
const STEPS: Steps = &[
    "
CREATE TABLE records (
    number INTEGER PRIMARY KEY NOT NULL,
    id BLOB NOT NULL,
    function TEXT NOT NULL,
    trigger INTEGER NOT NULL,
    state INTEGER NOT NULL,
    accepted_ms INTEGER NOT NULL,
    since_ms INTEGER NOT NULL,
    due_ms INTEGER NOT NULL,
    key TEXT,
    digest BLOB,
    sequence TEXT,
    attempts INTEGER NOT NULL,
    began_ms INTEGER,
    ended_ms INTEGER,
    status INTEGER,
    fault TEXT,
    detail TEXT,
    fields BLOB,
    body BLOB,
    request BLOB
) STRICT;
CREATE UNIQUE INDEX records_by_id ON records (id);
CREATE UNIQUE INDEX records_by_key ON records (function, key) WHERE key IS NOT NULL;
CREATE INDEX records_by_end ON records (state, ended_ms) WHERE state > 0;
CREATE TABLE activations (number INTEGER PRIMARY KEY AUTOINCREMENT, record BLOB NOT NULL) STRICT;
",
    "
CREATE TABLE steps (
    record INTEGER NOT NULL,
    key TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    number INTEGER,
    value BLOB,
    PRIMARY KEY (record, key)
) STRICT, WITHOUT ROWID;
ALTER TABLE records ADD COLUMN steps INTEGER NOT NULL DEFAULT 0;
ALTER TABLE records ADD COLUMN steps_bytes INTEGER NOT NULL DEFAULT 0;
CREATE TRIGGER steps_end AFTER DELETE ON records WHEN OLD.steps > 0
    BEGIN DELETE FROM steps WHERE record = OLD.number; END;
ALTER TABLE activations ADD COLUMN progress BLOB;
",
];

/// Fails, without writing, if a newer version of `mote` made the journal. Blocks.
pub fn refuse_newer(path: &std::path::Path) -> Result<(), mote_store::StoreError> {
    mote_store::commit::refuse_newer(path, STEPS)
}

/// The future result of a job on the journal's file.
pub type Answer<T> = BoxFuture<'static, Result<T, CommitError>>;

/// The journal's file.
#[derive(Debug)]
pub struct Records {
    committer: Committer,
}

/// The answer to an offered record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inserted {
    /// The record's number, or that of the earlier record with the same key.
    pub number: Number,
    pub id: InvocationId,
    /// Whether the record was stored. False if an earlier record has the same key.
    pub is_new: bool,
    /// Whether the earlier record with the same key contains a different request.
    pub differs: bool,
}

/// The end of a record, and the records that follow from it.
#[derive(Debug)]
pub struct Settled {
    pub number: Number,
    pub state: State,
    /// The attempt that ended the record; `None` if the record never ran.
    pub last: Option<LastAttempt>,
    /// Records that deliver the result. The same commit stores them.
    pub following: Vec<NewRecord>,
}

/// Limits on the ended records that are kept.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The maximum number of ended records without an idempotency key. Dead letters are counted
    /// separately, against the same number. One function may use at most half of this number. Above the limit, the namespace
    /// that holds the most records loses records first.
    pub records: u64,
    /// The most bytes of answers and requests. Dead letters are counted separately, against the
    /// same number. `None` skips this limit, which is the most expensive one to check.
    pub bytes: Option<u64>,
    /// The maximum number of ended records with an idempotency key, which do not count in `records`.
    pub keyed: u64,
    /// Records that ended before this time, in milliseconds since 1970, are removed.
    pub ended_before_ms: u64,
    /// Dead letters that ended before this time are removed.
    pub dead_before_ms: u64,
}

impl Records {
    /// Opens the file, and creates it if it does not exist. Blocks.
    pub fn open(path: &std::path::Path) -> Result<Self, mote_store::StoreError> {
        let committer = Committer::open(path, STEPS, "mote-journal")?;
        committer.submit(false, replica::leave_log, |_| ());
        Ok(Self { committer })
    }

    /// Opens the file as a view of the log that keeps the records. Blocks.
    pub(crate) fn replicated(
        path: &std::path::Path,
        replication: &Replication,
        state: &Arc<ReplicaState>,
    ) -> Result<Self, mote_store::StoreError> {
        Ok(Self { committer: replica::open(path, STEPS, replication, state)? })
    }

    pub(crate) fn run<T: Send + 'static>(
        &self,
        is_durable: bool,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answer<T> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        self.committer.submit(is_durable, work, |done| {
            // The caller may have gone away.
            let _ = answer.send(done);
        });
        Box::pin(async move {
            let lost = || mote_store::StoreError::Damaged("the journal has ended".to_owned());
            answered.await.unwrap_or_else(|_| Err(lost().into()))
        })
    }

    /// Keeps a record. `done` runs on the committer's thread once the record is on disk, even if no
    /// caller waits for it any longer. `done` must not block.
    pub fn insert(
        &self,
        record: NewRecord,
        done: impl FnOnce(Result<Inserted, CommitError>) + Send + 'static,
    ) {
        self.committer.submit_one(true, move |connection| insert(connection, &record), done);
    }

    /// Notes the end of a record. `done` runs like that of [`Records::insert`]. The records in
    /// `following` are on disk by then.
    pub fn settle(
        &self,
        settled: Settled,
        done: impl FnOnce(Result<Vec<Inserted>, CommitError>) + Send + 'static,
    ) {
        if settled.following.is_empty() {
            self.committer.submit_one(false, move |open| settle(open, &settled), done);
        } else {
            self.committer.submit(true, move |open| settle(open, &settled), done);
        }
    }

    /// Notes that a record will be tried again at `due_ms`.
    pub fn postpone(&self, number: Number, due_ms: u64, last: LastAttempt) -> Answer<()> {
        self.run(false, move |connection| {
            let sql = "UPDATE records SET due_ms = ?2, attempts = ?3, began_ms = ?4, ended_ms = ?5,
                status = ?6, fault = ?7, detail = ?8 WHERE number = ?1 AND state = 0";
            let mut statement = connection.prepare_cached(sql)?;
            statement.execute(params![
                number,
                due_ms as i64,
                last.attempts,
                last.began_ms as i64,
                last.ended_ms as i64,
                last.status,
                last.fault,
                last.detail,
            ])?;
            Ok(())
        })
    }

    /// Returns the work of a record and its depth. Returns `None` if the record has ended or its
    /// bytes are not valid.
    pub fn work(&self, number: Number) -> Answer<Option<(Work, u32)>> {
        self.run(false, move |connection| {
            let sql = "SELECT function, trigger, key, sequence, due_ms, request FROM records
                WHERE number = ?1";
            let mut statement = connection.prepare_cached(sql)?;
            let found = statement.query_row([number], |row| {
                let columns = Columns {
                    function: row.get(0)?,
                    trigger: row.get(1)?,
                    key: row.get(2)?,
                    order: row.get(3)?,
                    due_ms: unsigned(row, 4)?,
                };
                Ok((columns, row.get::<_, Option<Vec<u8>>>(5)?))
            });
            let Some((columns, Some(request))) = found.optional()? else { return Ok(None) };
            Ok(decode(&Bytes::from(request), columns))
        })
    }

    /// Returns the waiting records in the order of their numbers.
    pub fn waiting(&self) -> Answer<Vec<Waiting>> {
        self.run(false, |connection| {
            let sql = "SELECT number, id, function, sequence, due_ms, since_ms, attempts,
                length(request) + steps_bytes, trigger = 0 FROM records WHERE state = 0 ORDER BY number";
            let mut statement = connection.prepare(sql)?;
            let rows = statement.query_map([], |row| {
                Ok(Waiting {
                    number: row.get(0)?,
                    id: id_of(row, 1)?,
                    function: row.get(2)?,
                    order: row.get(3)?,
                    due_ms: unsigned(row, 4)?,
                    since_ms: unsigned(row, 5)?,
                    attempts: row.get(6)?,
                    bytes: unsigned(row, 7)?,
                    is_post: row.get(8)?,
                })
            })?;
            rows.collect()
        })
    }

    pub fn show(&self, id: InvocationId) -> Answer<Option<Stored>> {
        self.run(false, move |connection| {
            let sql = format!("SELECT {SHOWN}, fields, body FROM records WHERE id = ?1");
            let mut statement = connection.prepare_cached(&sql)?;
            let found = statement.query_row([&id.0.to_be_bytes()[..]], |row| {
                let mut stored = shown(row)?;
                if let Some(last) = &mut stored.last {
                    last.fields = row.get::<_, Option<Vec<u8>>>(14)?.unwrap_or_default().into();
                    last.body = row.get::<_, Option<Vec<u8>>>(15)?.map(Bytes::from);
                }
                Ok(stored)
            });
            found.optional()
        })
    }

    /// Returns records without their answers, newest first. Filters: some functions or all, one
    /// state or any, accepted before `before`. A name that begins with a dot selects all functions
    /// of that namespace. With `by_id`, records are ordered by id, which is the same order in
    /// several journals: ids begin with the time, and the order within one millisecond has no
    /// meaning.
    pub fn list(
        &self,
        functions: Option<Vec<String>>,
        state: Option<State>,
        before: Option<InvocationId>,
        limit: usize,
        by_id: bool,
    ) -> Answer<Vec<Stored>> {
        let namespace = functions.iter().flatten().find_map(|name| of_namespace(name));
        // The slash is a safe separator because no function name contains one.
        let functions = functions.map(|names| format!("/{}/", names.join("/")));
        self.run(false, move |connection| {
            let before = before.map(|id| id.0.to_be_bytes().to_vec());
            let (older, order) = if by_id {
                ("id < ?3", "id")
            } else {
                ("number < (SELECT number FROM records WHERE id = ?3)", "number")
            };
            let sql = format!(
                "SELECT {SHOWN} FROM records
                 WHERE (?1 IS NULL OR instr(?1, '/' || function || '/') > 0
                     OR instr(function || '@', ?5) > 0)
                 AND (?2 IS NULL OR state = ?2)
                 AND (?3 IS NULL OR {older}) ORDER BY {order} DESC LIMIT ?4"
            );
            let mut statement = connection.prepare_cached(&sql)?;
            let state = state.map(|state| state as i64);
            let row = params![functions, state, before, limit as i64, namespace];
            let rows = statement.query_map(row, shown)?;
            rows.collect()
        })
    }

    /// Whether the file holds no record and no activation.
    pub fn is_empty(&self) -> Answer<bool> {
        self.run(false, |connection| {
            let sql = "SELECT NOT EXISTS (SELECT 1 FROM records)
                AND NOT EXISTS (SELECT 1 FROM activations)";
            connection.query_row(sql, [], |row| row.get(0))
        })
    }

    /// Returns what is stored about the schedules of a function. Their keys are
    /// `schedule/IDENTITY/DUE`.
    pub fn schedule_runs(&self, function: String) -> Answer<Vec<ScheduleRun>> {
        self.run(false, move |connection| {
            let sql = "SELECT substr(key, 10, 16), max(CAST(substr(key, 27) AS INTEGER))
                FROM records WHERE function = ?1 AND key > 'schedule/' AND key < 'schedule0'
                GROUP BY 1";
            let mut statement = connection.prepare(sql)?;
            let rows = statement.query_map([&function], |row| {
                let identity: String = row.get(0)?;
                let newest_due_ms = row.get(1)?;
                let identity = u64::from_str_radix(&identity, 16).unwrap_or_default();
                Ok(ScheduleRun { identity, newest_due_ms, waiting: Vec::new() })
            })?;
            let mut runs: Vec<ScheduleRun> = rows.collect::<Result<_, _>>()?;
            let sql = "SELECT id FROM records WHERE function = ?1 AND state = 0
                AND key > ?2 AND key < ?2 || ':'";
            let mut statement = connection.prepare(sql)?;
            for run in &mut runs {
                let keys = format!("{SCHEDULE_KEYS}{:016x}/", run.identity);
                let ids = statement.query_map([&function, &keys], |row| id_of(row, 0))?;
                run.waiting = ids.collect::<Result<_, _>>()?;
            }
            Ok(runs)
        })
    }

    /// Makes a dead letter wait again, with all its attempts. Returns `None` if there is no such
    /// dead letter.
    pub fn revive(&self, id: InvocationId, now_ms: u64) -> Answer<Option<Waiting>> {
        self.run(true, move |connection| {
            let sql = "UPDATE records SET state = 0, due_ms = 0, attempts = 0, since_ms = ?2
                WHERE id = ?1 AND state = 2 AND request IS NOT NULL
                RETURNING number, function, sequence, length(request) + steps_bytes, trigger = 0";
            let mut statement = connection.prepare_cached(sql)?;
            let found =
                statement.query_row(params![&id.0.to_be_bytes()[..], now_ms as i64], |row| {
                    Ok(Waiting {
                        number: row.get(0)?,
                        id,
                        function: row.get(1)?,
                        order: row.get(2)?,
                        due_ms: 0,
                        since_ms: now_ms,
                        attempts: 0,
                        bytes: unsigned(row, 3)?,
                        is_post: row.get(4)?,
                    })
                });
            found.optional()
        })
    }

    /// Removes one dead letter, all dead letters of a function or a namespace, or all of them.
    /// Returns how many it removed.
    pub fn delete_dead(&self, id: Option<InvocationId>, function: Option<String>) -> Answer<usize> {
        self.run(true, move |connection| {
            let id = id.map(|id| id.0.to_be_bytes().to_vec());
            let sql = "DELETE FROM records WHERE state = 2 AND (?1 IS NULL OR id = ?1)
                AND (?2 IS NULL OR function = ?2 OR instr(function || '@', ?3) > 0)";
            let namespace = function.as_deref().and_then(of_namespace);
            connection.prepare_cached(sql)?.execute(params![id, function, namespace])
        })
    }

    /// Removes all ended records of a namespace's functions, idempotency keys included.
    pub fn forget(&self, namespace: &str) -> Answer<usize> {
        let namespace = format!(".{namespace}@");
        self.run(true, move |connection| {
            let sql = "DELETE FROM records WHERE state > 0 AND instr(function || '@', ?1) > 0";
            connection.prepare_cached(sql)?.execute([namespace])
        })
    }

    /// Removes ended records beyond the bounds. Returns how many of them were dead letters.
    pub fn sweep(&self, bounds: Bounds) -> Answer<usize> {
        self.run(false, move |connection| {
            let run = |sql: &str, number: u64| {
                connection.prepare_cached(sql)?.execute([number.min(i64::MAX as u64) as i64])
            };
            run(
                "DELETE FROM records WHERE state IN (1, 3) AND ended_ms < ?1",
                bounds.ended_before_ms,
            )?;
            let mut dead = run(
                "DELETE FROM records WHERE state = 2 AND ended_ms < ?1",
                bounds.dead_before_ms,
            )?;
            // The limit for one function comes first, so that no function pushes out the records of
            // others.
            for (chosen, places) in [
                ("state IN (1, 3) AND key IS NULL", bounds.records),
                ("state IN (1, 3) AND key IS NOT NULL", bounds.keyed),
                ("state = 2", bounds.records),
            ] {
                let removed = run(&beyond_share(chosen), places / 2)?;
                dead += if chosen == "state = 2" { removed } else { 0 };
            }
            if let Some(bytes) = bounds.bytes {
                keep_newest(connection, "state IN (1, 3)", BYTES, bytes)?;
                dead += keep_newest(connection, "state = 2", BYTES, bytes)?;
            }
            keep_newest(connection, "state IN (1, 3) AND key IS NULL", "1", bounds.records)?;
            keep_newest(connection, "state IN (1, 3) AND key IS NOT NULL", "1", bounds.keyed)?;
            dead += keep_newest(connection, "state = 2", "1", bounds.records)?;
            Ok(dead)
        })
    }

    /// Keeps an activation of OpenWhisk. The activation is on disk when the future resolves to its
    /// number, which is never used again.
    pub fn keep_activation(&self, record: Vec<u8>) -> Answer<u64> {
        self.run(true, move |connection| {
            let sql = "INSERT INTO activations (record) VALUES (?1)";
            connection.prepare_cached(sql)?.execute([record])?;
            Ok(connection.last_insert_rowid().unsigned_abs())
        })
    }

    /// Notes the progress of a kept activation. The note is on disk when the future resolves.
    pub fn note_progress(&self, number: u64, progress: Vec<u8>) -> Answer<()> {
        self.run(true, move |connection| {
            let sql = "UPDATE activations SET progress = ?2 WHERE number = ?1";
            connection.prepare_cached(sql)?.execute(params![number as i64, progress]).map(|_| ())
        })
    }

    /// Returns the last progress noted for a kept activation.
    pub fn progress(&self, number: u64) -> Answer<Option<Vec<u8>>> {
        self.run(false, move |connection| {
            let sql = "SELECT progress FROM activations WHERE number = ?1";
            let mut statement = connection.prepare_cached(sql)?;
            let found = statement.query_row([number as i64], |row| row.get(0)).optional()?;
            Ok(found.flatten())
        })
    }

    pub fn activation(&self, number: u64) -> Answer<Option<Vec<u8>>> {
        self.run(false, move |connection| {
            let sql = "SELECT record FROM activations WHERE number = ?1";
            connection.prepare_cached(sql)?.query_row([number as i64], |row| row.get(0)).optional()
        })
    }

    pub fn forget_activation(&self, number: u64) -> Answer<()> {
        self.run(false, move |connection| {
            let sql = "DELETE FROM activations WHERE number = ?1";
            connection.prepare_cached(sql)?.execute([number as i64]).map(|_| ())
        })
    }

    /// Returns the number and the length in bytes of every kept activation, oldest first.
    pub fn activations(&self) -> Answer<Vec<(u64, u64)>> {
        self.run(false, |connection| {
            let sql = "SELECT number, length(record) FROM activations ORDER BY number";
            let mut statement = connection.prepare(sql)?;
            let rows = statement.query_map([], |row| Ok((unsigned(row, 0)?, unsigned(row, 1)?)))?;
            rows.collect()
        })
    }
}

fn insert(connection: &Connection, record: &NewRecord) -> rusqlite::Result<Inserted> {
    let work = &record.work;
    let digest = work.key().map(|_| digest(work));
    if let Some(key) = work.key() {
        let sql = "SELECT number, id, digest FROM records WHERE function = ?1 AND key = ?2";
        let mut statement = connection.prepare_cached(sql)?;
        let found = statement.query_row(params![work.function(), key], |row| {
            let differs = row.get::<_, Option<Vec<u8>>>(2)? != digest;
            Ok(Inserted { number: row.get(0)?, id: id_of(row, 1)?, is_new: false, differs })
        });
        if let Some(found) = found.optional()? {
            return Ok(found);
        }
    }
    let trigger = match work {
        Work::Invoke(deferred) => deferred.trigger as u8,
        Work::Post(_) => 0,
    };
    let sql = "INSERT INTO records (id, function, trigger, state, accepted_ms, since_ms, due_ms,
        key, sequence, attempts, request, digest)
        VALUES (?1, ?2, ?3, 0, ?4, ?5, ?6, ?7, ?8, 0, ?9, ?10)";
    connection.prepare_cached(sql)?.execute(params![
        &record.id.0.to_be_bytes()[..],
        work.function(),
        trigger,
        record.accepted_ms as i64,
        record.accepted_ms.max(work.due_unix_ms()) as i64,
        work.due_unix_ms() as i64,
        work.key(),
        work.order(),
        encode(work, record.depth),
        digest,
    ])?;
    let number = connection.last_insert_rowid();
    Ok(Inserted { number, id: record.id, is_new: true, differs: false })
}

/// The text with which the function names of a namespace end, followed by `@`. A tag cannot contain
/// a dot, so the text does not match within a tag.
fn of_namespace(name: &str) -> Option<String> {
    name.starts_with('.').then(|| format!("{name}@"))
}

/// Hash of the parts that two requests with the same idempotency key must have in common: method,
/// path, query and body.
fn digest(work: &Work) -> Vec<u8> {
    use sha2::{Digest as _, Sha256};
    let mut hash = Sha256::new();
    if let Work::Invoke(deferred) = work {
        for part in [deferred.head.method(), deferred.head.path(), deferred.head.query()] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.update(&deferred.body);
    }
    hash.finalize()[..16].to_vec()
}

fn settle(connection: &Connection, settled: &Settled) -> rusqlite::Result<Vec<Inserted>> {
    let number = settled.number;
    let state = settled.state as i64;
    match &settled.last {
        None => {
            let sql = "UPDATE records SET state = ?2, due_ms = 0, ended_ms = ?3, request = NULL,
                key = NULL WHERE number = ?1 AND state = 0";
            connection.prepare_cached(sql)?.execute(params![number, state, unix_ms() as i64])?;
        }
        Some(last) => {
            // A dead letter keeps its request so that it can be run again.
            let sql = "UPDATE records SET state = ?2, due_ms = 0, attempts = ?3, began_ms = ?4,
                ended_ms = ?5, status = ?6, fault = ?7, detail = ?8, fields = ?9, body = ?10,
                request = CASE ?2 WHEN 2 THEN request END WHERE number = ?1 AND state = 0";
            connection.prepare_cached(sql)?.execute(params![
                number,
                state,
                last.attempts,
                last.began_ms as i64,
                last.ended_ms as i64,
                last.status,
                last.fault,
                last.detail,
                &last.fields[..],
                last.body.as_deref(),
            ])?;
        }
    }
    if settled.state != State::Dead {
        // The data of the record's steps is no longer read.
        let sql = "UPDATE records SET steps_bytes = 0 WHERE number = ?1 AND steps > 0";
        if connection.prepare_cached(sql)?.execute([number])? > 0 {
            let sql = "UPDATE steps SET value = NULL WHERE record = ?1";
            connection.prepare_cached(sql)?.execute([number])?;
        }
    }
    settled.following.iter().map(|record| insert(connection, record)).collect()
}

/// SQL that removes the oldest chosen records of each function that has more than `?1` of them.
fn beyond_share(chosen: &str) -> String {
    format!(
        "DELETE FROM records WHERE number IN (SELECT number FROM (
         SELECT number, row_number() OVER (PARTITION BY function ORDER BY ended_ms DESC) AS place
         FROM records WHERE {chosen}) WHERE place > ?1)"
    )
}

/// SQL for the size of a record in bytes.
const BYTES: &str = "coalesce(length(body), 0) + coalesce(length(request), 0) + steps_bytes";

/// SQL for the namespace of a record as `.NAME.`, and `.` for the default namespace. A tag cannot
/// contain a dot.
const NAMESPACE: &str = "substr(substr(function, 1, instr(function || '@', '@') - 1) || '.',
    instr(function || '.', '.'))";

/// Removes the oldest of the chosen records until the rest have at most the total weight `most`.
/// The namespace that holds the most loses records first, so a namespace with less than an equal
/// share loses none.
fn keep_newest(
    connection: &Connection,
    chosen: &str,
    weight: &str,
    most: u64,
) -> rusqlite::Result<usize> {
    let sql = format!("SELECT sum({weight}) FROM records WHERE {chosen} GROUP BY {NAMESPACE}");
    let mut statement = connection.prepare_cached(&sql)?;
    let held: Vec<u64> =
        statement.query_map([], |row| unsigned(row, 0))?.collect::<rusqlite::Result<_>>()?;
    let Some(share) = share_of_each(held, most) else { return Ok(0) };
    let sql = format!(
        "DELETE FROM records WHERE number IN (SELECT number FROM (
         SELECT number, sum({weight})
         OVER (PARTITION BY {NAMESPACE} ORDER BY ended_ms DESC, number DESC) AS held
         FROM records WHERE {chosen}) WHERE held > ?1)"
    );
    connection.prepare_cached(&sql)?.execute([share.min(i64::MAX as u64) as i64])
}

/// Returns how much each holder may keep so that all together keep at most `most`, or `None` if
/// they already hold no more than that.
fn share_of_each(mut held: Vec<u64>, most: u64) -> Option<u64> {
    held.sort_unstable();
    let mut left = most;
    for (at, one) in held.iter().enumerate() {
        let equal = left / (held.len() - at) as u64;
        if *one > equal {
            return Some(equal);
        }
        left -= one;
    }
    None
}

/// The columns that [`shown`] reads.
const SHOWN: &str = "number, id, function, trigger, state, accepted_ms, due_ms, key, attempts,
    began_ms, ended_ms, status, fault, detail";

fn shown(row: &Row<'_>) -> rusqlite::Result<Stored> {
    let began_ms: Option<i64> = row.get(9)?;
    let last = match began_ms {
        Some(began_ms) => Some(LastAttempt {
            attempts: row.get(8)?,
            began_ms: began_ms.unsigned_abs(),
            ended_ms: row.get::<_, Option<i64>>(10)?.unwrap_or_default().unsigned_abs(),
            status: row.get::<_, Option<u16>>(11)?.unwrap_or_default(),
            fault: row.get(12)?,
            detail: row.get(13)?,
            fields: Bytes::new(),
            body: None,
        }),
        None => None,
    };
    Ok(Stored {
        number: row.get(0)?,
        id: id_of(row, 1)?,
        function: row.get(2)?,
        trigger: Trigger::from_wire(row.get(3)?),
        state: State::from_number(row.get(4)?),
        accepted_ms: unsigned(row, 5)?,
        due_ms: unsigned(row, 6)?,
        key: row.get(7)?,
        last,
    })
}

fn unsigned(row: &Row<'_>, at: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(at).map(i64::unsigned_abs)
}

fn id_of(row: &Row<'_>, at: usize) -> rusqlite::Result<InvocationId> {
    let bytes: [u8; 16] = row.get(at)?;
    Ok(InvocationId(u128::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Bounds = Bounds {
        records: 1_000,
        bytes: Some(1_000),
        keyed: 1_000,
        ended_before_ms: 0,
        dead_before_ms: 0,
    };

    /// Sweeps a journal that holds the given dead letters and results, each with a function, an age
    /// and a length. `left` lists what must remain, as the numbers of the records counted from 0.
    fn check(bounds: Bounds, held: &[(&str, i64, usize)], left: &[usize]) {
        for (state, key) in [(2, None), (1, None), (1, Some("key"))] {
            let dir = tempfile::tempdir().expect("a folder");
            let records = Records::open(&dir.path().join("journal.db")).expect("a new file");
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let rows: Vec<_> =
                held.iter().map(|(f, age, bytes)| (f.to_string(), *age, *bytes)).collect();
            let filled = records.run(false, move |connection| {
                for (number, (function, age, bytes)) in rows.iter().enumerate() {
                    let key = key.map(|key: &str| format!("{key}{number}"));
                    connection.execute(
                        "INSERT INTO records (number, id, function, trigger, state, accepted_ms,
                         since_ms, due_ms, key, attempts, ended_ms, body)
                         VALUES (?1, CAST(?1 AS BLOB), ?2, 1, ?3, 0, 0, 0, ?4, 1, ?5, zeroblob(?6))",
                        params![number as i64, function, state, key, 1_000 - age, *bytes as i64],
                    )?;
                }
                Ok(())
            });
            runtime.block_on(filled).expect("rows");
            let dead = runtime.block_on(records.sweep(bounds)).expect("swept");
            let removed = held.len() - left.len();
            assert_eq!(dead, if state == 2 { removed } else { 0 }, "state {state}");
            let kept = records.run(false, |connection| {
                let mut statement = connection.prepare("SELECT number FROM records ORDER BY 1")?;
                let rows = statement.query_map([], |row| row.get::<_, i64>(0))?;
                rows.map(|number| number.map(|number| number as usize)).collect()
            });
            let kept: Vec<usize> = runtime.block_on(kept).expect("read");
            assert_eq!(kept, left, "state {state}, key {key:?}");
        }
    }

    #[test]
    fn without_namespaces_the_oldest_records_are_removed() {
        let held = [("a", 4, 400), ("b", 3, 400), ("c@tag", 2, 400), ("a", 1, 200)];
        check(ALL, &held, &[1, 2, 3]);
        let count = Bounds { records: 2, keyed: 2, bytes: None, ..ALL };
        check(count, &held, &[2, 3]);
    }

    #[test]
    fn the_namespace_that_holds_the_most_loses_its_oldest_records() {
        let held = [
            ("f", 9, 200),
            ("a.house", 8, 100),
            ("a.plant", 3, 400),
            ("b.plant@tag", 2, 400),
            ("c.plant", 1, 200),
        ];
        check(ALL, &held, &[0, 1, 3, 4]);
        // Three records of the namespace plant, two of house, and one of the default namespace.
        let held = [
            ("f", 9, 1),
            ("a.house", 8, 1),
            ("b.house", 7, 1),
            ("a.plant", 3, 1),
            ("b.plant@tag", 2, 1),
            ("c.plant", 1, 1),
        ];
        let count = |most| Bounds { records: most, keyed: most, bytes: None, ..ALL };
        check(count(6), &held, &[0, 1, 2, 3, 4, 5]);
        check(count(5), &held, &[0, 1, 2, 4, 5]);
        check(count(3), &held, &[0, 2, 5]);
    }

    #[test]
    fn shares_of_what_is_kept() {
        assert_eq!(share_of_each(vec![], 10), None);
        assert_eq!(share_of_each(vec![10], 10), None);
        assert_eq!(share_of_each(vec![11], 10), Some(10));
        assert_eq!(share_of_each(vec![90, 3, 4], 20), Some(13));
        assert_eq!(share_of_each(vec![90, 30, 4], 20), Some(8));
        assert_eq!(share_of_each(vec![1, 1, 1], 2), Some(0));
    }
}
