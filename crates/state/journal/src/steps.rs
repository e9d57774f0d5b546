//! The steps of runs. A run is an accepted invocation of a chain. Each step is recorded on disk
//! before the next one begins. So after a crash, the run continues with the step that it had
//! reached.

use bytes::Bytes;
use mote_core::InvocationId;
use mote_core::accept::AcceptError;
use rusqlite::{OptionalExtension as _, params};
use serde::Deserialize;

use crate::journal::{Journal, disk};
use crate::pending::Number;
use crate::records::{Answer, Records, unix_ms};

/// The most steps of one run, and the most bytes of them.
const STEPS_MAX: u64 = 10_000;
const STEPS_BYTES_MAX: u64 = 8 << 20;
/// The most bytes of steps that are read at once.
const PAGE_BYTES_MAX: usize = 768 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// A call or a message, and how many milliseconds it took.
    Done(u64),
    /// The end of a wait or of a timeout, in milliseconds since 1970.
    Until(u64),
    Caught,
    /// Something else, such as the winner of branches.
    Other,
}

impl StepKind {
    fn parts(self) -> (i64, Option<i64>) {
        match self {
            StepKind::Done(ms) => (0, Some(ms as i64)),
            StepKind::Until(ms) => (1, Some(ms as i64)),
            StepKind::Caught => (2, None),
            StepKind::Other => (3, None),
        }
    }

    fn of_parts(kind: i64, number: Option<i64>) -> Self {
        let number = number.unwrap_or_default().unsigned_abs();
        match kind {
            0 => StepKind::Done(number),
            1 => StepKind::Until(number),
            2 => StepKind::Caught,
            _ => StepKind::Other,
        }
    }

    fn of_value(value: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Known {
            ms: Option<u64>,
            until: Option<u64>,
            error: Option<serde::de::IgnoredAny>,
        }
        match serde_json::from_slice(value) {
            Ok(Known { ms: Some(ms), .. }) => StepKind::Done(ms),
            Ok(Known { until: Some(ms), .. }) => StepKind::Until(ms),
            Ok(Known { error: Some(_), .. }) => StepKind::Caught,
            _ => StepKind::Other,
        }
    }
}

/// A step without its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The step's key: names of tasks, with the numbers of iterations and attempts.
    pub key: String,
    /// When the step was recorded, in milliseconds since 1970.
    pub at_ms: u64,
    pub kind: StepKind,
}

/// Recorded steps that are read at once.
#[derive(Debug, Clone)]
pub struct StepPage {
    /// When the run was accepted, in milliseconds since 1970.
    pub began_ms: u64,
    /// Keys and values, in the order of the keys.
    pub steps: Vec<(String, Bytes)>,
    pub more: bool,
}

impl Records {
    /// Returns the steps of a record whose keys are greater than `after`.
    fn step_page(&self, number: Number, after: String) -> Answer<StepPage> {
        self.run(false, move |connection| {
            let sql = "SELECT accepted_ms FROM records WHERE number = ?1";
            let mut statement = connection.prepare_cached(sql)?;
            let began_ms: Option<i64> =
                statement.query_row([number], |row| row.get(0)).optional()?;
            let sql = "SELECT key, value FROM steps WHERE record = ?1 AND key > ?2 ORDER BY key";
            let mut statement = connection.prepare_cached(sql)?;
            let mut rows = statement.query(params![number, after])?;
            let mut steps = Vec::new();
            let mut bytes = 0;
            let mut more = false;
            while let Some(row) = rows.next()? {
                let (key, value): (String, Option<Vec<u8>>) = (row.get(0)?, row.get(1)?);
                let value = value.unwrap_or_default();
                bytes += key.len() + value.len() + 8;
                if bytes > PAGE_BYTES_MAX && !steps.is_empty() {
                    more = true;
                    break;
                }
                steps.push((key, value.into()));
            }
            Ok(StepPage { began_ms: began_ms.unwrap_or_default().unsigned_abs(), steps, more })
        })
    }

    /// Keeps a step, which is on disk when the future resolves. Returns false if the record has
    /// ended or already has the maximum number of steps. A step that is already known is left
    /// unchanged.
    fn keep_step(&self, number: Number, key: String, value: Bytes) -> Answer<bool> {
        self.run(true, move |connection| {
            let bytes = (key.len() + value.len()) as i64;
            let sql = "UPDATE records SET steps = steps + 1, steps_bytes = steps_bytes + ?2
                WHERE number = ?1 AND state = 0 AND steps < ?3 AND steps_bytes + ?2 <= ?4";
            let room = connection.prepare_cached(sql)?.execute(params![
                number,
                bytes,
                STEPS_MAX as i64,
                STEPS_BYTES_MAX as i64
            ])?;
            if room == 0 {
                return Ok(false);
            }
            let (kind, at) = StepKind::of_value(&value).parts();
            let sql = "INSERT OR IGNORE INTO steps (record, key, at_ms, kind, number, value)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
            connection.prepare_cached(sql)?.execute(params![
                number,
                key,
                unix_ms() as i64,
                kind,
                at,
                &value[..]
            ])?;
            Ok(true)
        })
    }

    /// Returns the steps of an invocation without their values, in the order in which they were
    /// written.
    fn steps(&self, id: InvocationId) -> Answer<Vec<Step>> {
        self.run(false, move |connection| {
            let sql = "SELECT key, at_ms, kind, number FROM steps
                WHERE record = (SELECT number FROM records WHERE id = ?1) ORDER BY at_ms, key";
            let mut statement = connection.prepare_cached(sql)?;
            let rows = statement.query_map([&id.0.to_be_bytes()[..]], |row| {
                Ok(Step {
                    key: row.get(0)?,
                    at_ms: row.get::<_, i64>(1)?.unsigned_abs(),
                    kind: StepKind::of_parts(row.get(2)?, row.get(3)?),
                })
            })?;
            rows.collect()
        })
    }

    /// Notes that a record continues at `due_ms`. Its attempts and its age are counted from zero
    /// again, because the run has made progress.
    pub(crate) fn pause(&self, number: Number, due_ms: u64) -> Answer<()> {
        self.run(false, move |connection| {
            let sql = "UPDATE records SET due_ms = ?2, since_ms = ?2, attempts = 0
                WHERE number = ?1 AND state = 0";
            connection.prepare_cached(sql)?.execute(params![number, due_ms as i64]).map(|_| ())
        })
    }
}

impl Journal {
    /// Returns the steps of a running run, or `None` if no such run is running.
    pub async fn step_page(
        &self,
        id: InvocationId,
        after: String,
    ) -> Result<Option<StepPage>, AcceptError> {
        let Some((number, records)) = self.running(id) else { return Ok(None) };
        let page = records.step_page(number, after).await.map_err(|error| disk(&error))?;
        Ok(Some(page))
    }

    /// Records a step of a running run. The step is on disk when the future resolves.
    pub async fn keep_step(
        &self,
        id: InvocationId,
        key: String,
        value: Bytes,
    ) -> Result<(), AcceptError> {
        let unknown = || AcceptError::Invalid("no such run is running".to_owned());
        let (number, records) = self.running(id).ok_or_else(unknown)?;
        self.grow(number, (key.len() + value.len()) as u64)?;
        match records.keep_step(number, key, value).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(AcceptError::Full(format!(
                "a run has at most {STEPS_MAX} steps with {} MiB of data",
                STEPS_BYTES_MAX >> 20
            ))),
            Err(error) => Err(disk(&error)),
        }
    }

    /// Returns the steps of an invocation; empty if it has none.
    pub async fn steps(&self, id: InvocationId) -> Result<Vec<Step>, AcceptError> {
        let Some(records) = self.existing().await? else { return Ok(Vec::new()) };
        records.steps(id).await.map_err(|error| disk(&error))
    }
}
