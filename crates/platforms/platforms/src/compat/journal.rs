//! The journal of accepted OpenWhisk activations that have not ended. OpenWhisk's API runs these
//! activations itself, because one activation may call several actions. A record is on disk from
//! before the client receives its 202 until the activation has ended. An activation that a restart
//! interrupts therefore runs again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use mote_api::Problem;
use serde::{Deserialize, Serialize};

use crate::compat::node::KeptCalls;

/// The most records that may be kept at once, and the most bytes that they may use on disk.
const RECORDS_MAX: u64 = 10_000;
const BYTES_MAX: u64 = 256 << 20;

/// The part of the node that runs a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Runner {
    #[default]
    Call,
    /// OpenWhisk's API.
    Activation,
}

impl Runner {
    /// Returns the part of the node that runs this record. The record's description names the part; if
    /// it names none, the record is a call.
    pub fn of(record: &Bytes) -> Option<Self> {
        #[derive(Deserialize)]
        struct Described {
            #[serde(default)]
            kind: Runner,
        }
        let [description, ..] = parts(record)?;
        serde_json::from_slice::<Described>(&description).ok().map(|described| described.kind)
    }
}

/// Encodes a record: the length and text of its description in JSON, the length and bytes of its header
/// fields, then the body.
pub fn record(description: &impl Serialize, fields: &[u8], body: &[u8]) -> Vec<u8> {
    let description = serde_json::to_vec(description).unwrap_or_default();
    let mut record = Vec::with_capacity(8 + description.len() + fields.len() + body.len());
    for part in [&description[..], fields] {
        record.extend_from_slice(&(part.len() as u32).to_le_bytes());
        record.extend_from_slice(part);
    }
    record.extend_from_slice(body);
    record
}

/// Splits a record into description, fields and body; `None` if the record is not valid.
pub fn parts(record: &Bytes) -> Option<[Bytes; 3]> {
    let mut rest = record.clone();
    let mut part = || {
        let length = rest.get(..4)?.try_into().ok().map(u32::from_le_bytes)? as usize;
        rest.get(4..)?.get(..length)?;
        let found = rest.slice(4..4 + length);
        rest = rest.slice(4 + length..);
        Some(found)
    };
    let description = part()?;
    let fields = part()?;
    Some([description, fields, rest])
}

/// The records of a node. A clone is cheap.
#[derive(Clone)]
pub struct Journal {
    node: Arc<dyn KeptCalls>,
    records: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
}

/// A record on disk. If this value is dropped, the record stays on disk, and the next start of the node
/// finds it.
#[must_use]
pub struct Kept {
    journal: Journal,
    number: u64,
    length: u64,
}

impl Journal {
    /// Makes the journal of a node; there must be only one per node.
    pub fn new(node: Arc<dyn KeptCalls>) -> Self {
        Self { node, records: Arc::default(), bytes: Arc::default() }
    }

    /// Stores a record, which is on disk when this returns `Ok`. Fails with 429 if too many records are
    /// kept.
    pub async fn keep(&self, record: Vec<u8>) -> Result<Kept, Problem> {
        let length = record.len() as u64;
        self.reserve(length)?;
        match self.node.keep_call(record).await {
            Ok(number) => Ok(Kept { journal: self.clone(), number, length }),
            Err(problem) => {
                self.release(length);
                Err(problem)
            }
        }
    }

    /// Returns the records that an earlier run of the node left, oldest first. The caller must call
    /// this before any record is kept, because later records would otherwise be returned, too.
    pub async fn left(&self) -> Result<Vec<Kept>, Problem> {
        let left = self.node.kept_calls().await?;
        let taken_up = |(number, length)| {
            self.records.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(length, Ordering::Relaxed);
            Kept { journal: self.clone(), number, length }
        };
        Ok(left.into_iter().map(taken_up).collect())
    }

    fn reserve(&self, length: u64) -> Result<(), Problem> {
        let records = self.records.fetch_add(1, Ordering::Relaxed) + 1;
        let bytes = self.bytes.fetch_add(length, Ordering::Relaxed) + length;
        if records <= RECORDS_MAX && bytes <= BYTES_MAX {
            return Ok(());
        }
        self.release(length);
        let text = format!("{RECORDS_MAX} accepted calls or {} MiB of them wait", BYTES_MAX >> 20);
        Err(Problem::new(429, "M0504", text))
    }

    fn release(&self, length: u64) {
        self.records.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(length, Ordering::Relaxed);
    }
}

impl Kept {
    /// The number of the record, which is never used again.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Reads the content of the record; `None` if it is no longer kept.
    pub async fn read(&self) -> Result<Option<Bytes>, Problem> {
        Ok(self.journal.node.kept_call(self.number).await?.map(Bytes::from))
    }

    /// Notes the progress of the record's work. If the note cannot be written, the only consequence is
    /// that a restart repeats more of the work.
    pub async fn note_progress(&self, progress: Vec<u8>) {
        if let Err(problem) = self.journal.node.note_progress(self.number, progress).await {
            tracing::warn!(
                number = self.number,
                problem = problem.detail,
                "cannot note how far an accepted call has got"
            );
        }
    }

    /// Returns the progress that was noted last.
    pub async fn progress(&self) -> Option<Vec<u8>> {
        self.journal.node.progress(self.number).await.ok().flatten()
    }

    /// Removes the record, because its work has ended.
    pub async fn forget(self) {
        if let Err(problem) = self.journal.node.forget_call(self.number).await {
            tracing::error!(
                number = self.number,
                problem = problem.detail,
                "an accepted call has ended but cannot be removed"
            );
        }
        self.journal.release(self.length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        let old = record(&serde_json::json!({ "function": "f" }), b"", b"x");
        assert_eq!(Runner::of(&old.into()), Some(Runner::Call));
        let new = record(&serde_json::json!({ "kind": "activation" }), b"", b"");
        assert_eq!(Runner::of(&new.into()), Some(Runner::Activation));
        let unknown = record(&serde_json::json!({ "kind": "other" }), b"", b"");
        assert_eq!(Runner::of(&unknown.into()), None);
        assert_eq!(Runner::of(&Bytes::from_static(b"\xff\xff\xff\xff")), None);
    }
}
