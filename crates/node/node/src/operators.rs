//! The tokens of those who manage the node, and the record of their acts. Runs the blocking work of
//! [`mote_tenants::operators`] on blocking threads.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use mote_api::Problem;
use mote_store::Store;
use mote_tenants::namespaces::Namespaces;
use mote_tenants::operators::tokens::{self, NotChanged};
use mote_tenants::operators::{Act, Audit, Operators};

use super::store_work::{blocking, internal, store_problem};

/// The namespaces of the node, and those who manage it.
pub(crate) struct Tenants {
    /// The tokens of those who manage the node over TCP.
    pub(crate) operators: Arc<Operators>,
    /// The namespaces of functions.
    pub(crate) namespaces: Arc<Namespaces>,
    /// Held while namespaces are changed.
    pub(crate) namespace_turn: tokio::sync::Mutex<()>,
    /// Held while tokens are changed.
    pub(crate) token_turn: tokio::sync::Mutex<()>,
    pub(crate) audit: Arc<Audit>,
    /// Our effective user id.
    pub(crate) uid: u32,
}

/// Loads the tokens from the store.
pub(super) async fn bring_back(store: &Arc<Store>, operators: &Arc<Operators>) -> Result<()> {
    let store = store.clone();
    let operators = operators.clone();
    let read = blocking(move || tokens::bring_back(&store, &operators)).await;
    Ok(read.context("cannot read the store")??)
}

/// Runs one change of tokens at a time.
pub(super) async fn changed<T: Send + 'static>(
    store: &Arc<Store>,
    tenants: &Tenants,
    work: impl FnOnce(&Store, &Operators) -> Result<T, NotChanged> + Send + 'static,
) -> Result<T, Problem> {
    let _turn = tenants.token_turn.lock().await;
    let store = store.clone();
    let operators = tenants.operators.clone();
    let done =
        blocking(move || work(&store, &operators)).await.map_err(|error| internal(&error))?;
    done.map_err(|error| match error {
        NotChanged::Problem(problem) => problem,
        NotChanged::Store(error) => store_problem(&error),
    })
}

/// Records an act. Resolves once the act is in the file.
pub(super) fn record(audit: &Arc<Audit>, act: Act) -> impl Future<Output = ()> + Send + use<> {
    let audit = audit.clone();
    async move {
        if let Err(error) = blocking(move || audit.record(&act)).await {
            tracing::error!(%error, "an act was not recorded");
        }
    }
}
