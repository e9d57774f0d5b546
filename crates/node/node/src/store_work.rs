//! Runs work on the store, and turns its errors into answers.

use std::sync::Arc;

use mote_api::Problem;
use mote_store::{Store, StoreError};
use tokio::task::JoinError;
pub(crate) use tokio::task::spawn_blocking as blocking;

/// Runs `work` on the store, on a thread other than the management thread.
pub(super) async fn with_store<T: Send + 'static>(
    store: &Arc<Store>,
    work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Problem> {
    let store = store.clone();
    blocking(move || work(&store))
        .await
        .map_err(|error| internal(&error))?
        .map_err(|error| store_problem(&error))
}

/// Converts an error of the store into an answer.
pub(crate) fn store_problem(error: &StoreError) -> Problem {
    let status = match error {
        StoreError::Archive(archive) => archive.http_status(),
        StoreError::DiskFull { .. } => 507,
        StoreError::BadKey(_) => 422,
        StoreError::NoSuchRevision { .. } => 404,
        _ => 500,
    };
    let problem = Problem::new(status, error.code(), mote_core::fault::error_chain(error));
    Problem { hint: error.hint().map(str::to_owned), ..problem }
}

/// The answer if one of the node's own tasks panicked or was cancelled.
pub(super) fn internal(error: &JoinError) -> Problem {
    tracing::error!(%error, "a task of the management API failed");
    Problem::new(500, "M0599", "the node could not carry out the request; see its log")
}
