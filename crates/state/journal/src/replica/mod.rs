//! Rows of the journal in a log that outlives the machine.
//!
//! The file on disk is a view of the log. Each transaction puts the rows that it changed into the
//! log (`rows`), and durable work is answered when the log has them (`publisher`). One node at a
//! time owns a log: each append names the last place that its node knows, and taking the log
//! (`taking`) moves that place, so a former owner cannot append any more.

mod log;
mod publisher;
mod rows;
mod taking;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::Instant;

use mote_core::accept::AcceptError;
use mote_store::StoreError;
use mote_store::commit::{Answer, CommitError, Committer, Follower, Steps};
use parking_lot::Mutex;
use rusqlite::Connection;
use serde::{Deserialize, Serialize};

pub use log::{Kept, Log, LogError, Message, Page};
use publisher::{Batch, Publisher};

/// Messages and bytes that the log has not confirmed, above which no further accepted invocation
/// begins.
const BEHIND_MESSAGES: usize = 4_096;
const BEHIND_BYTES: usize = 16 << 20;

/// The subject of the message by which a node takes a log.
pub(crate) const EPOCH: &str = "e";

/// Says who took a log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Epoch {
    /// The form of the log; a node refuses one that it does not know.
    pub(crate) format: u32,
    pub(crate) node: String,
    /// When, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// Whether the rows of the node's file were still missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) filling: bool,
}

/// Where the rows of a journal are kept.
pub struct Replication {
    /// Makes a connection to the log; connecting is the matter of its first call.
    pub log: Box<dyn Fn() -> Box<dyn Log> + Send + Sync>,
    /// The node, for people.
    pub node: String,
}

/// The log of a journal.
pub(crate) struct Replica {
    pub(crate) replication: Arc<Replication>,
    pub(crate) state: Arc<ReplicaState>,
    /// Why the journal is not open yet.
    pub(crate) closed: Mutex<AcceptError>,
    pub(crate) opened: OnceLock<Instant>,
}

/// What the other parts of the node learn about the log.
pub struct ReplicaState {
    /// The log has not answered for some seconds.
    away: AtomicBool,
    /// Why, in words.
    reason: Mutex<String>,
    /// Who owns the log now, if that is another node.
    taken: OnceLock<String>,
    /// What the log has not confirmed.
    messages: AtomicUsize,
    bytes: AtomicUsize,
    /// Runs when the log can be reached again, and when it has caught up.
    changed: Box<dyn Fn() + Send + Sync>,
}

impl ReplicaState {
    pub(crate) fn new(changed: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            away: AtomicBool::new(false),
            reason: Mutex::default(),
            taken: OnceLock::new(),
            messages: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            changed: Box::new(changed),
        }
    }

    /// Why nothing new is accepted, if that is so.
    pub(crate) fn refusal(&self) -> Option<StoreError> {
        if let Some(taken) = self.taken.get() {
            return Some(StoreError::TakenOver(taken.clone()));
        }
        self.is_away().then(|| StoreError::Away(self.reason.lock().clone()))
    }

    /// Whether accepted invocations may begin. They may not while the log is away, because another
    /// node may have taken it over; those that run go on.
    pub(crate) fn may_run(&self) -> bool {
        !self.is_away() && !self.is_taken() && !self.is_behind()
    }

    fn is_away(&self) -> bool {
        self.away.load(Ordering::Acquire)
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.taken.get().is_some()
    }

    /// Messages that the log has not confirmed.
    pub(crate) fn unconfirmed(&self) -> usize {
        self.messages.load(Ordering::Acquire)
    }

    fn is_behind(&self) -> bool {
        self.messages.load(Ordering::Acquire) > BEHIND_MESSAGES
            || self.bytes.load(Ordering::Acquire) > BEHIND_BYTES
    }

    fn set_away(&self, reason: &str) {
        *self.reason.lock() = reason.to_owned();
        self.away.store(true, Ordering::Release);
    }

    fn set_here(&self) -> bool {
        self.away.swap(false, Ordering::AcqRel)
    }

    fn add(&self, messages: usize, bytes: usize) {
        self.messages.fetch_add(messages, Ordering::AcqRel);
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    fn confirmed(&self, messages: usize, bytes: usize) {
        let was_behind = self.is_behind();
        self.messages.fetch_sub(messages, Ordering::AcqRel);
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        if was_behind && !self.is_behind() {
            (self.changed)();
        }
    }
}

/// Opens a file whose rows are kept in a log: takes the log, and makes the file equal to it. Blocks.
pub(crate) fn open(
    path: &std::path::Path,
    steps: Steps,
    replication: &Replication,
    state: &Arc<ReplicaState>,
) -> Result<Committer, StoreError> {
    let mut log = (replication.log)();
    Committer::open_followed(path, steps, "mote-journal", |connection| {
        rows::prepare(connection).map_err(StoreError::Database)?;
        let (epoch, place) = taking::take(connection, &mut *log, &replication.node)?;
        rows::capture(connection).map_err(StoreError::Database)?;
        let publisher = Publisher::start(log, epoch, place, state.clone())?;
        let (parts, collected, state) = (None, Batch::default(), state.clone());
        Ok(Box::new(Following { epoch, place, parts, collected, publisher, state }))
    })
}

/// The journal's side of the committer: puts what a transaction changed into the log.
struct Following {
    epoch: u64,
    /// The place of the newest message that a transaction has produced.
    place: u64,
    /// The rows with several messages; `None` if that has to be read again.
    parts: Option<HashMap<String, usize>>,
    /// What the transaction at hand has changed.
    collected: Batch,
    publisher: Publisher,
    state: Arc<ReplicaState>,
}

impl Follower for Following {
    fn thread(&self) -> ThreadId {
        self.publisher.thread()
    }

    fn refusal(&self) -> Option<CommitError> {
        // A log that is away refuses nothing here: what runs may end, and is kept until the log is
        // back.
        let taken = self.state.taken.get()?;
        Some(Arc::new(StoreError::TakenOver(taken.clone())))
    }

    fn collect(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let parts = match &mut self.parts {
            Some(parts) => parts,
            None => self.parts.insert(rows::parts(connection)?),
        };
        let rows = rows::collect(connection, parts)?;
        let messages: usize = rows.iter().map(Vec::len).sum();
        if messages > 0 {
            rows::set_mark(connection, self.epoch, self.place + messages as u64)?;
        }
        self.collected = Batch::of(rows);
        Ok(())
    }

    fn undone(&mut self) {
        self.collected = Batch::default();
        self.parts = None;
    }

    fn committed(&mut self, answers: Vec<Answer>) {
        let mut batch = std::mem::take(&mut self.collected);
        batch.answers = answers;
        if batch.is_empty() {
            return;
        }
        self.place += batch.messages() as u64;
        self.state.add(batch.messages(), batch.bytes());
        self.publisher.send(batch);
    }
}

pub(crate) use rows::leave_log;
