//! The node's part in chain runs: it keeps their records, and knows which steps are running.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use mote_core::InvocationId;
use mote_core::accept::AcceptError;
use mote_core::invocation::{Head, headers};
use mote_core::services::{Answer, Begun, Caller, Status, records_answer};
use mote_journal::Journals;
use mote_spec::Runtime;
use parking_lot::Mutex;

/// The field, in a call by a chain, that names the step that makes the call.
const STEP_FIELD: &[u8] = b"mote-step";

/// The records of chain runs, and the steps that are running.
#[derive(Clone)]
pub struct Runs {
    journals: Journals,
    running: Arc<Mutex<HashMap<InvocationId, Vec<String>>>>,
}

/// A step counts as running until this is dropped.
pub struct RunningStep {
    runs: Runs,
    id: InvocationId,
    key: String,
}

impl Drop for RunningStep {
    fn drop(&mut self) {
        let mut running = self.runs.running.lock();
        if let Some(keys) = running.get_mut(&self.id) {
            if let Some(at) = keys.iter().position(|key| *key == self.key) {
                keys.swap_remove(at);
            }
            if keys.is_empty() {
                running.remove(&self.id);
            }
        }
    }
}

impl Runs {
    /// Starts without running steps. The records of runs are in the journals.
    pub fn new(journals: Journals) -> Self {
        Self { journals, running: Arc::default() }
    }

    /// Notes that a step of a chain calls a function. Returns `None` if the caller is not a chain,
    /// or if the call names no step.
    pub(crate) fn step(&self, caller: Caller<'_>, head: &Head) -> Option<RunningStep> {
        if caller.spec.runtime != Runtime::Chain {
            return None;
        }
        let (_, key) = headers(head.headers()).find(|(name, _)| *name == STEP_FIELD)?;
        let key = String::from_utf8_lossy(key).into_owned();
        let id = caller.invocation;
        self.running.lock().entry(id).or_default().push(key.clone());
        Some(RunningStep { runs: self.clone(), id, key })
    }

    /// The steps of a run that are running now.
    pub fn steps_of(&self, id: InvocationId) -> Vec<String> {
        let mut keys = self.running.lock().get(&id).cloned().unwrap_or_default();
        keys.sort_unstable();
        keys
    }

    pub(crate) fn records(&self, caller: Caller<'_>, after: String) -> Begun {
        if caller.spec.runtime != Runtime::Chain {
            return Begun::Done(denied());
        }
        let journals = self.journals.clone();
        let id = caller.invocation;
        Begun::Later(Box::pin(async move {
            match journals.step_page(id, after).await {
                Ok(Some(page)) => records_answer(page.began_ms, &page.steps, page.more),
                // A caller waits for this run, so the journal does not hold it.
                Ok(None) => Answer::new(Status::NotFound, Vec::new(), Bytes::new()),
                Err(error) => refused(&error),
            }
        }))
    }

    pub(crate) fn record(&self, caller: Caller<'_>, key: String, value: Bytes) -> Begun {
        if caller.spec.runtime != Runtime::Chain {
            return Begun::Done(denied());
        }
        let journals = self.journals.clone();
        let id = caller.invocation;
        Begun::Later(Box::pin(async move {
            match journals.keep_step(id, key, value).await {
                Ok(()) => Answer::new(Status::Done, Vec::new(), Bytes::new()),
                Err(error) => refused(&error),
            }
        }))
    }
}

fn denied() -> Answer {
    Answer::text(Status::Denied, "only the runs of chains have records")
}

fn refused(error: &AcceptError) -> Answer {
    let status = match error {
        AcceptError::Full(_) => Status::Full,
        AcceptError::Invalid(_) => Status::Invalid,
        AcceptError::DiskFull(_)
        | AcceptError::Disk(_)
        | AcceptError::Away(_)
        | AcceptError::TakenOver(_)
        | AcceptError::Stopping => Status::Unavailable,
    };
    Answer::text(status, error.to_string())
}
