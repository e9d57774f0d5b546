//! Questions to all cells, and which functions a change of a cell concerns.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;
use kube::ResourceExt as _;
use mote_api::client::Endpoint;
use mote_api::{Client, ClientError};

use super::Controller;
use crate::mirror::Mirror;
use crate::resources::{Cell, Function};

/// Returns the functions whose status may depend on the change of a cell.
pub(super) fn changed(
    before: Option<&Cell>,
    after: Option<&Cell>,
    functions: &Mirror<Function>,
) -> BTreeSet<String> {
    let status =
        |cell: Option<&Cell>| cell.and_then(|cell| cell.status.clone()).unwrap_or_default();
    let before = status(before);
    let after = status(after);
    if before.synced != after.synced {
        return functions.names().into_iter().collect();
    }
    let names = before.functions.keys().chain(after.functions.keys());
    let differ = |name: &&String| before.functions.get(*name) != after.functions.get(*name);
    names.filter(differ).cloned().collect()
}

impl Controller {
    /// Creates a client for the management API of a cell.
    pub(super) fn cell(&self, cell: &Cell) -> Result<Client, ClientError> {
        let port = cell.spec.agent_port.unwrap_or(8082);
        let address = format!("http://{}:{port}", cell.spec.address);
        Ok(Client::new(Endpoint::parse(&address, Some(self.key.clone()))?))
    }

    /// Asks every cell, and returns the answers of the cells that answered.
    pub(super) async fn ask<T, F>(
        &self,
        ask: impl Fn(Client) -> F,
    ) -> Vec<(Arc<Cell>, Result<T, ClientError>)>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let asked = self.live_cells().into_iter().map(|cell| {
            let client = self.cell(&cell);
            let asking = client.map(&ask);
            async move {
                let answer = match asking {
                    Ok(asking) => asking.await,
                    Err(error) => Err(error),
                };
                if let Err(error) = &answer
                    && !matches!(error, ClientError::Problem(_))
                {
                    tracing::warn!("{} does not answer: {error}", cell.name_any());
                }
                (cell, answer)
            }
        });
        join_all(asked).await
    }
}
