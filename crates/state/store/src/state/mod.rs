//! The state that functions keep in their node, in one file of SQLite.
//!
//! [`FileState`] is the implementation of [`mote_core::state::State`]. Every change goes through a
//! group committer ([`crate::commit`]), so that callers share one sync of the disk; the value
//! of a key that was read or written lately is answered from memory. The file and its thread exist
//! from the first use on: a node whose functions keep nothing has neither. This module must not know
//! functions, workers or HTTP.
//!
//! Start with [`FileState`]; `tables.rs` is what an operation does to the tables, `cache.rs` the
//! values in memory.

mod cache;
mod tables;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::StoreError;
use crate::commit::{CommitError, Committer};
use mote_core::state::{
    Begun, Namespace, Operation, Outcome, Quota, State, StateError, StateFuture, Usage,
};
use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::state::cache::Cache;

/// Operations that wait while the file is opened, at most.
const OPENING_MAX: usize = 4_096;

#[derive(Clone)]
pub struct FileState(Arc<Shared>);

struct Shared {
    path: PathBuf,
    phase: Mutex<Phase>,
    /// Apart from the rest, because the committer's thread uses it, and must not be the last that
    /// holds the committer.
    cache: Arc<Mutex<Cache>>,
}

enum Phase {
    Closed,
    Opening(Vec<Job>),
    Open(Arc<Committer>),
    /// The node stops.
    Ended,
}

/// Submits itself, or learns why the file could not be opened.
type Job = Box<dyn FnOnce(Result<&Committer, StateError>) + Send>;

impl FileState {
    /// State in the file `path`, which is made when something is first kept.
    pub fn new(path: &Path) -> Self {
        let phase = Mutex::new(Phase::Closed);
        let cache = Arc::default();
        Self(Arc::new(Shared { path: path.to_owned(), phase, cache }))
    }

    /// Refuses a file that a newer version of `mote` made, and writes nothing. Blocks.
    pub fn refuse_newer(path: &Path) -> Result<(), StoreError> {
        crate::commit::refuse_newer(path, tables::STEPS)
    }

    /// Waits until everything that was begun is on disk; later operations are refused. Blocks.
    pub fn close(&self) {
        let phase = std::mem::replace(&mut *self.0.phase.lock(), Phase::Ended);
        // Dropping the committer waits for its thread; dropping what waits for the opening tells
        // those that wait.
        drop(phase);
    }

    fn submit<T: Send + 'static>(
        &self,
        durable: bool,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
        done: impl FnOnce(Result<T, StateError>) + Send + 'static,
    ) {
        let mut phase = self.0.phase.lock();
        match &mut *phase {
            Phase::Open(committer) => {
                let committer = committer.clone();
                drop(phase);
                committer.submit(durable, work, |result| done(result.map_err(of_commit)));
            }
            Phase::Ended => {
                drop(phase);
                done(Err(StateError::Disk("the node is stopping".to_owned())));
            }
            Phase::Opening(jobs) if jobs.len() >= OPENING_MAX => {
                drop(phase);
                done(Err(StateError::Disk("its file is being opened".to_owned())));
            }
            Phase::Opening(jobs) => jobs.push(job(durable, work, done)),
            Phase::Closed => {
                *phase = Phase::Opening(vec![job(durable, work, done)]);
                drop(phase);
                self.open();
            }
        }
    }

    /// Opens the file on a thread of its own, because that blocks.
    fn open(&self) {
        let shared = self.0.clone();
        let open = move || {
            let opened = Committer::open(&shared.path, tables::STEPS, "mote-state");
            let mut phase = shared.phase.lock();
            let Phase::Opening(jobs) = &mut *phase else { return };
            let jobs = std::mem::take(jobs);
            match opened {
                Ok(committer) => {
                    for job in jobs {
                        job(Ok(&committer));
                    }
                    *phase = Phase::Open(Arc::new(committer));
                }
                Err(error) => {
                    // The next operation tries again.
                    *phase = Phase::Closed;
                    drop(phase);
                    let error = of_store(&error);
                    for job in jobs {
                        job(Err(error.clone()));
                    }
                }
            }
        };
        let started = std::thread::Builder::new().name("mote-state-open".to_owned()).spawn(open);
        if let Err(error) = started {
            let phase = std::mem::replace(&mut *self.0.phase.lock(), Phase::Closed);
            if let Phase::Opening(jobs) = phase {
                for job in jobs {
                    job(Err(StateError::Disk(error.to_string())));
                }
            }
        }
    }

    /// What is answered without the file: a value in memory, or that there is nothing because there
    /// is no file.
    fn known(&self, namespace: &Namespace, key: &str, now_unix_ms: u64) -> Option<Outcome> {
        let found = self.0.cache.lock().get(namespace, key)?;
        let lives = |expires: Option<u64>| expires.is_none_or(|at| at > now_unix_ms);
        Some(Outcome::Entry(found.filter(|entry| lives(entry.expires_unix_ms))))
    }
}

fn job<T: Send + 'static>(
    durable: bool,
    work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    done: impl FnOnce(Result<T, StateError>) + Send + 'static,
) -> Job {
    Box::new(move |committer| match committer {
        Ok(committer) => committer.submit(durable, work, |result| done(result.map_err(of_commit))),
        Err(error) => done(Err(error)),
    })
}

impl State for FileState {
    fn begin(
        &self,
        namespace: Namespace,
        operation: Operation,
        quota: Quota,
        durable: bool,
        now_unix_ms: u64,
    ) -> Begun {
        if let Operation::Get { key } = &operation
            && let Some(outcome) = self.known(&namespace, key, now_unix_ms)
        {
            return Begun::Done(Ok(outcome));
        }
        let (answer, answered) = oneshot::channel();
        let key = match &operation {
            Operation::Get { key }
            | Operation::Put { key, .. }
            | Operation::Delete { key, .. }
            | Operation::Increment { key, .. } => Some(key.clone()),
            Operation::List { .. } => None,
        };
        let cache = self.0.cache.clone();
        let place = namespace.clone();
        let durable = durable && operation.writes();
        self.submit(
            durable,
            move |connection| tables::apply(connection, &namespace, operation, quota, now_unix_ms),
            move |result| {
                if let Some(key) = key {
                    // In the order of the changes, because the committer calls these in order.
                    let mut cache = cache.lock();
                    match &result {
                        Ok(tables::Applied { now: Some(entry), .. }) => {
                            cache.put(&place, &key, entry.clone());
                        }
                        Ok(_) => {}
                        Err(_) => cache.forget(&place, &key),
                    }
                }
                // An error means that nobody waits any more.
                let _ = answer.send(result.and_then(|applied| applied.outcome));
            },
        );
        Begun::Later(Box::pin(async move { answered.await.unwrap_or_else(|_| stopped()) }))
    }

    fn usage(&self) -> StateFuture<Vec<Usage>> {
        if matches!(*self.0.phase.lock(), Phase::Closed) && !self.0.path.exists() {
            return Box::pin(async { Ok(Vec::new()) });
        }
        let (answer, answered) = oneshot::channel();
        self.submit(false, tables::usage, |result| {
            let _ = answer.send(result);
        });
        Box::pin(async move { answered.await.unwrap_or_else(|_| stopped()) })
    }

    fn clear(&self, namespace: Namespace) -> StateFuture<()> {
        if matches!(*self.0.phase.lock(), Phase::Closed) && !self.0.path.exists() {
            return Box::pin(async { Ok(()) });
        }
        let (answer, answered) = oneshot::channel();
        let cache = self.0.cache.clone();
        let place = namespace.clone();
        self.submit(
            true,
            move |connection| tables::clear(connection, &namespace),
            move |result| {
                cache.lock().clear(&place);
                let _ = answer.send(result);
            },
        );
        Box::pin(async move { answered.await.unwrap_or_else(|_| stopped()) })
    }
}

fn stopped<T>() -> Result<T, StateError> {
    Err(StateError::Disk("the node is stopping".to_owned()))
}

fn of_commit(error: CommitError) -> StateError {
    of_store(&error)
}

fn of_store(error: &StoreError) -> StateError {
    StateError::Disk(mote_core::fault::error_chain(error))
}

#[cfg(test)]
mod tests;
