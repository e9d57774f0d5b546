//! The data that the handles and the process's task share: the requests that wait for an answer.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;

use crate::nats::frames::{NatsError, Reply};

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) traffic: Mutex<Traffic>,
    /// Wakes the task when there is something to send.
    pub(crate) queued: Notify,
    pub(crate) stopping: watch::Sender<bool>,
    pub(crate) task: Mutex<Option<JoinHandle<()>>>,
}

/// Requests that have not been answered.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) next: u64,
    pub(crate) waiting: HashMap<u64, oneshot::Sender<Reply>>,
    /// Frames that have not been sent to any process yet.
    pub(crate) queue: VecDeque<(u64, Vec<u8>)>,
    pub(crate) queued_bytes: usize,
    /// Why the process is not running; empty while it runs.
    pub(crate) problem: String,
    pub(crate) ended: bool,
}

impl Shared {
    pub(crate) fn next_frame(&self) -> Option<Vec<u8>> {
        let mut traffic = self.traffic.lock();
        loop {
            let (number, frame) = traffic.queue.pop_front()?;
            traffic.queued_bytes -= frame.len();
            // The caller no longer waits for this request, so it is not sent.
            if traffic.waiting.contains_key(&number) {
                return Some(frame);
            }
        }
    }

    pub(crate) fn answered(&self, number: u64, reply: Reply) {
        if let Some(waiting) = self.traffic.lock().waiting.remove(&number) {
            // An error means that the caller no longer waits.
            let _ = waiting.send(reply);
        }
    }

    /// Notes that the process runs.
    pub(crate) fn began(&self) {
        self.traffic.lock().problem.clear();
    }

    /// Notes that the process does not run. Requests that were sent to it are answered with an
    /// error. Requests that are still queued wait for the next process.
    pub(crate) fn broke(&self, problem: &str) {
        let mut traffic = self.traffic.lock();
        traffic.problem = problem.to_owned();
        let queued: std::collections::HashSet<u64> =
            traffic.queue.iter().map(|(number, _)| *number).collect();
        let lost: Vec<u64> =
            traffic.waiting.keys().filter(|number| !queued.contains(number)).copied().collect();
        for number in lost {
            if let Some(waiting) = traffic.waiting.remove(&number) {
                let text = format!("the connection to NATS was lost: {problem}");
                let _ = waiting.send(Reply::Failed(NatsError::Unreachable(text)));
            }
        }
    }

    /// Refuses all requests from now on.
    pub(crate) fn end(&self) {
        let mut traffic = self.traffic.lock();
        traffic.ended = true;
        traffic.queue.clear();
        traffic.queued_bytes = 0;
        // Dropping the senders tells the waiting callers that no answer will come.
        traffic.waiting.clear();
    }
}
