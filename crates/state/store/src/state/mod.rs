//! The state that functions keep in their node, in one SQLite file.
//!
//! [`FileState`] implements [`mote_core::state::State`]. Every change goes through a group
//! committer ([`crate::commit`]), so that callers share one sync of the disk. A read of a recently
//! used key is answered from memory. The file and its thread are created at the first use, so a
//! node whose functions store nothing has neither. This module must not know functions, workers or
//! HTTP.
//!
//! Start with [`FileState`]. `tables.rs` applies operations to the tables, and `cache.rs` holds the
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

/// The most operations that wait while the file is being opened.
const OPENING_MAX: usize = 4_096;

#[derive(Clone)]
pub struct FileState(Arc<Shared>);

struct Shared {
    path: PathBuf,
    phase: Mutex<Phase>,
    /// Separate from the other fields, because the committer's thread uses the cache but must not
    /// become the last owner of the committer.
    cache: Arc<Mutex<Cache>>,
}

enum Phase {
    Closed,
    Opening(Vec<Job>),
    Open(Arc<Committer>),
    /// The node is stopping.
    Ended,
}

/// Submits an operation to the committer, or receives the error that prevented the opening of the
/// file.
type Job = Box<dyn FnOnce(Result<&Committer, StateError>) + Send>;

impl FileState {
    /// The state in the file `path`, which is created when something is first stored.
    pub fn new(path: &Path) -> Self {
        let phase = Mutex::new(Phase::Closed);
        let cache = Arc::default();
        Self(Arc::new(Shared { path: path.to_owned(), phase, cache }))
    }

    /// Fails, without writing, if a newer version of `mote` made the file. Blocks.
    pub fn refuse_newer(path: &Path) -> Result<(), StoreError> {
        crate::commit::refuse_newer(path, tables::STEPS)
    }

    /// Waits until all begun operations are on disk. Later operations are refused. Blocks.
    pub fn close(&self) {
        let phase = std::mem::replace(&mut *self.0.phase.lock(), Phase::Ended);
        // Dropping the committer waits for its thread. Dropping the jobs that wait until the file
        // is open notifies their callers.
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

    /// Opens the file on a separate thread, because opening blocks.
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

    /// Answers without the file: with a value in memory, or with "absent" because there is no file.
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
                    // The cache receives the changes in the right order, because the committer
                    // calls these closures in order.
                    let mut cache = cache.lock();
                    match &result {
                        Ok(tables::Applied { now: Some(entry), .. }) => {
                            cache.put(&place, &key, entry.clone());
                        }
                        Ok(_) => {}
                        Err(_) => cache.forget(&place, &key),
                    }
                }
                // An error means that the caller no longer waits.
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
