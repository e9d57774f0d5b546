//! The tokens of those who manage the node, and the record of what they did: the blocking work of
//! [`mote_tenants::operators`], on threads for it.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use mote_api::Problem;
use mote_store::Store;
use mote_tenants::operators::tokens::{self, NotChanged};
use mote_tenants::operators::{Act, Operators};

use super::Node;
use super::store_work::{blocking, internal, store_problem};

/// Loads the tokens from the store.
pub(super) async fn bring_back(node: &Node) -> Result<()> {
    let (store, operators) = (node.store.clone(), node.operators.clone());
    let read = blocking(move || tokens::bring_back(&store, &operators)).await;
    Ok(read.context("cannot read the store")??)
}

/// Makes a change, one after the other.
pub(super) async fn changed<T: Send + 'static>(
    node: &Node,
    work: impl FnOnce(&Store, &Operators) -> Result<T, NotChanged> + Send + 'static,
) -> Result<T, Problem> {
    let _turn = node.token_turn.lock().await;
    let (store, operators) = (node.store.clone(), node.operators.clone());
    let done =
        blocking(move || work(&store, &operators)).await.map_err(|error| internal(&error))?;
    done.map_err(|error| match error {
        NotChanged::Problem(problem) => problem,
        NotChanged::Store(error) => store_problem(&error),
    })
}

/// Records an act; returns when it is in the file.
pub(super) fn record(node: &Arc<Node>, act: Act) -> impl Future<Output = ()> + Send + use<> {
    let audit = node.audit.clone();
    async move {
        if let Err(error) = blocking(move || audit.record(&act)).await {
            tracing::error!(%error, "an act was not recorded");
        }
    }
}
