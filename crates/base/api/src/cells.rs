//! The other cells of a cluster. A node forwards to them the invocations that it cannot run.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The most other cells that a cell can know.
pub const CELLS_MAX: usize = 64;

/// The whole list of the other cells, which replaces the previous list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CellsRequest {
    /// The name of this cell.
    #[serde(default)]
    pub name: String,
    /// The other cells.
    pub cells: Vec<CellPlace>,
}

/// Where a cell is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CellPlace {
    /// Its name. If a cell of another name answers at the address, nothing is forwarded to it.
    #[serde(default)]
    pub name: String,
    /// The address and port at which it listens for cells, for example `198.18.128.7:8095`.
    pub address: String,
}

/// The other cells, as this cell sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CellList {
    /// The name of this cell; empty if the cell was not given a name.
    pub name: String,
    /// The address at which it listens for cells; absent if the setting `cell` is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listens: Option<String>,
    /// The other cells.
    pub cells: Vec<Cell>,
}

/// Another cell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cell {
    /// Its name; empty if it is not known.
    pub name: String,
    /// Its address.
    pub address: String,
    /// `connected`, `draining` (the cell accepts no more invocations) or `unreachable`.
    pub state: String,
    /// Memory that the cell has for further instances, in bytes.
    pub free_bytes: u64,
    /// Invocations from this cell that the other cell is running.
    pub in_flight: u64,
    /// Why there is no connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}
