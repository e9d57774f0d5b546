//! The node as a cell: the settings of its connections to other cells, and their start.

use std::sync::Arc;

use anyhow::Result;
use mote_cells::{CellAddress, CellKey, Cells};
use mote_engine::Engine;
use tokio::net::TcpListener;
use tokio::runtime::Handle;

use super::unusable::{busy, unusable};
use crate::config::CellSettings;

/// Starts the node's part in the cluster: it listens for other cells.
pub(super) async fn start(settings: &CellSettings, engine: &Engine) -> Result<Cells> {
    let key =
        CellKey::read(&settings.key).map_err(|error| unusable("cell_key", error.to_string()))?;
    let listener = TcpListener::bind(settings.listen).await;
    let listener = listener.map_err(|error| busy("cell", settings.listen, error))?;
    let cells = Cells::start(listener, key, Arc::new(engine.clone()), Handle::current())?;
    let place = |address| CellAddress { name: String::new(), address };
    let others: Vec<_> = settings.others.iter().copied().map(place).collect();
    cells.set("", &others).map_err(|error| unusable("cells", error.to_string()))?;
    engine.set_elsewhere(Arc::new(cells.clone()));
    engine.metrics().add(cells.clone());
    Ok(cells)
}
