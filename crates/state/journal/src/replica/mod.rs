//! Keeps the rows of the journal in a log that survives the loss of the machine.
//!
//! The file on disk is a view of the log. Each transaction appends the rows that it changed to the
//! log (`rows`), and durable work is answered when the log has those rows (`publisher`). One node
//! at a time owns a log. Each append names the last place that its node knows. Taking the log
//! (`taking`) moves that place, so a former owner can no longer append.

mod epoch;
mod log;
mod publisher;
mod rows;
mod state;
mod taking;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::Instant;

use mote_core::accept::AcceptError;
use mote_store::StoreError;
use mote_store::commit::{Answer, CommitError, Committer, Follower, Steps};
use parking_lot::Mutex;
use rusqlite::Connection;

pub use log::{Kept, Log, LogError, Message, Page};
use publisher::{Batch, Publisher};
pub use state::ReplicaState;

/// Where the rows of a journal are kept.
pub struct Replication {
    /// Creates a handle of the log. The first call on the handle connects.
    pub log: Box<dyn Fn() -> Box<dyn Log> + Send + Sync>,
    /// The name of the node, for people.
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

/// Opens a file whose rows are kept in a log: takes the log, and makes the file equal to the log.
/// Blocks.
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
        let parts = None;
        let collected = Batch::default();
        let state = state.clone();
        Ok(Box::new(Following { epoch, place, parts, collected, publisher, state }))
    })
}

/// The journal's side of the committer: appends the changes of each transaction to the log.
struct Following {
    epoch: u64,
    /// The place of the newest message that a transaction has produced.
    place: u64,
    /// The rows that need several messages; `None` if the rows must be read again.
    parts: Option<HashMap<String, usize>>,
    /// The changes of the current transaction.
    collected: Batch,
    publisher: Publisher,
    state: Arc<ReplicaState>,
}

impl Follower for Following {
    fn thread(&self) -> ThreadId {
        self.publisher.thread()
    }

    fn refusal(&self) -> Option<CommitError> {
        // If the log cannot be reached, work is still accepted here: running attempts may end, and
        // their ends are kept until the log can be reached again.
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
