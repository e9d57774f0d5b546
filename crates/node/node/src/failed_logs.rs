//! The logs of functions whose first deploy failed. Such a function has no revision that could hold
//! the log, and its author needs the log to find the cause.

use std::collections::VecDeque;
use std::sync::Arc;

use mote_engine::revision::logs::FunctionLog;
use mote_spec::FunctionName;
use parking_lot::Mutex;

/// Logs kept at most. Another log replaces the oldest one.
const LOGS_MAX: usize = 8;

#[derive(Default)]
pub(crate) struct FailedLogs(Mutex<VecDeque<(FunctionName, Arc<FunctionLog>)>>);

impl FailedLogs {
    /// Keeps the log of a failed deploy. It replaces an earlier log for the same name.
    pub(crate) fn keep(&self, name: &FunctionName, log: &Arc<FunctionLog>) {
        let mut kept = self.0.lock();
        kept.retain(|(other, _)| other != name);
        kept.push_back((name.clone(), log.clone()));
        if kept.len() > LOGS_MAX {
            kept.pop_front();
        }
    }

    /// The log of the last failed deploy of this name.
    pub(crate) fn of(&self, name: &str) -> Option<Arc<FunctionLog>> {
        let kept = self.0.lock();
        kept.iter().find(|(other, _)| other.as_str() == name).map(|(_, log)| log.clone())
    }
}
