//! Removes all data that a journal has about a namespace.

use std::time::{Duration, Instant};

use mote_core::accept::AcceptError;

use crate::journal::{Journal, disk};
use crate::record::State;

/// The most invocations that one query returns.
const AT_ONCE: usize = 1_000;
/// Pause between two checks for invocations that have not ended.
const PAUSE: Duration = Duration::from_millis(20);

impl Journal {
    /// Cancels the waiting and running invocations of the namespace's functions, waits until they
    /// have ended, and then removes everything about the namespace. Returns false if an invocation
    /// has not ended after `patience`.
    pub async fn forget(&self, namespace: &str, patience: Duration) -> Result<bool, AcceptError> {
        let Some(records) = self.existing().await? else { return Ok(true) };
        let functions = vec![format!(".{namespace}")];
        let until = Instant::now() + patience;
        loop {
            let waiting =
                self.list(Some(functions.clone()), Some(State::Waiting), None, AT_ONCE, false);
            let waiting = waiting.await?;
            if waiting.is_empty() {
                break;
            }
            if Instant::now() > until {
                return Ok(false);
            }
            for one in waiting {
                self.cancel(one.stored.id).await?;
            }
            tokio::time::sleep(PAUSE).await;
        }
        let forgotten = async { records.forget(namespace).await.map_err(|error| disk(&error)) };
        self.confirmed(forgotten).await.map(|_| true)
    }
}
