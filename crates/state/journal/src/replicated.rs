//! How a journal opens, waits and stops if a log keeps its records.

use std::sync::Arc;
use std::time::Duration;

use mote_core::accept::AcceptError;

use crate::journal::{Journal, disk};
use crate::pending::RESULTS;

/// How long a caller waits for the log to confirm the caller's work.
const CONFIRM_MAX: Duration = Duration::from_secs(5);
/// How long a stopping node waits for its log.
const FLUSH_GRACE: Duration = Duration::from_secs(3);
/// How long a journal with a log waits for functions that its node does not have.
const FUNCTIONS_GRACE: Duration = Duration::from_secs(3_600);
/// The pause before the next try to open a journal that has a log.
const OPEN_PAUSE: Duration = Duration::from_secs(1);

impl Journal {
    /// Keeps trying to open the journal until its log can be reached.
    pub(crate) async fn keep_opening(self) {
        let Some(replica) = &self.0.replica else { return };
        loop {
            tokio::time::sleep(OPEN_PAUSE).await;
            if self.is_stopping() {
                return;
            }
            match self.open().await {
                Ok(_) => {
                    let waiting = self.0.state.lock().pending.len();
                    tracing::info!(waiting, "the journal of accepted invocations is open");
                    return;
                }
                Err(error) => {
                    let mut known = replica.closed.lock();
                    if *known != error {
                        tracing::error!(%error, "cannot open the journal of accepted invocations");
                        *known = error;
                    }
                }
            }
        }
    }

    /// Waits until the log has confirmed a piece of work, but no longer than a caller waits. If the
    /// log is known to be unreachable, the work does not begin.
    pub(crate) async fn confirmed<T>(
        &self,
        work: impl Future<Output = Result<T, AcceptError>>,
    ) -> Result<T, AcceptError> {
        let Some(replica) = &self.0.replica else { return work.await };
        if let Some(refusal) = replica.state.refusal() {
            return Err(disk(&Arc::new(refusal)));
        }
        tokio::time::timeout(CONFIRM_MAX, work).await.unwrap_or_else(|_| {
            let text = format!("no confirmation within {} s", CONFIRM_MAX.as_secs());
            Err(AcceptError::Away(text))
        })
    }

    /// Waits for a short time until the log has everything that the journal has noted. Call this
    /// when nothing is running any longer.
    pub async fn flush(&self) {
        let (Some(_), Some(records)) = (&self.0.replica, self.opened()) else { return };
        let _ = tokio::time::timeout(FLUSH_GRACE, records.run(true, |_| Ok(()))).await;
    }

    /// Whether the journal can accept and run work. `None` if no log keeps its records.
    pub fn log_state(&self) -> Option<Result<(), AcceptError>> {
        let replica = self.0.replica.as_ref()?;
        Some(match (self.opened(), replica.state.refusal()) {
            (None, _) => Err(replica.closed.lock().clone()),
            (Some(_), Some(refusal)) => Err(disk(&Arc::new(refusal))),
            (Some(_), None) => Ok(()),
        })
    }

    /// Number of messages that the log has not confirmed. `None` without a log.
    pub fn unconfirmed(&self) -> Option<usize> {
        self.0.replica.as_ref().map(|replica| replica.state.unconfirmed())
    }

    /// Whether accepted invocations may start now.
    pub(crate) fn may_run(&self) -> bool {
        self.0.replica.as_ref().is_none_or(|replica| replica.state.may_run())
    }

    /// Whether invocations wait for functions that this node does not have. A node that has taken
    /// over a journal receives its functions later than its invocations.
    pub(crate) fn waits_for_functions(&self) -> bool {
        let opened = self.0.replica.as_ref().and_then(|replica| replica.opened.get());
        opened.is_some_and(|opened| opened.elapsed() < FUNCTIONS_GRACE)
    }

    /// Whether this is the name of a share for requests that carry results.
    pub(crate) fn is_share_of_results(function: &str) -> bool {
        function.contains(RESULTS)
    }

    /// Whether another node has taken over the journal.
    pub(crate) fn is_taken(&self) -> bool {
        self.0.replica.as_ref().is_some_and(|replica| replica.state.is_taken())
    }
}
