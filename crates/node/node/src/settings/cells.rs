//! The settings of cells.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::config::CellSettings;

use super::Check;

impl Check<'_> {
    /// The node's address for other cells, the shared key, and the addresses of the other cells, if
    /// the node is a cell.
    pub(super) fn cells(&mut self) -> Option<CellSettings> {
        let listen = self.address("cell", None, true);
        let key = self.given("cell_key").map(PathBuf::from);
        let shown = key.as_ref().map_or("none".to_owned(), |path| path.display().to_string());
        self.settle("cell_key", shown);
        let given = self.given("cells").filter(|text| text != "none");
        let given = given.as_deref().map_or(Vec::new(), |text| text.split(',').collect());
        let others: Result<Vec<SocketAddr>, _> =
            given.iter().map(|text| text.trim().parse()).collect();
        let others = others.unwrap_or_else(|_| {
            self.fault("cells", "ADDRESS:PORT, several with commas, or none", None);
            Vec::new()
        });
        if given.is_empty() {
            self.settle("cells", "none".to_owned());
        }
        let Some(listen) = listen else {
            if !others.is_empty() {
                let hint = "name the address of this node for cells with --cell ADDR:PORT";
                self.fault("cells", "needs cell", Some(hint.to_owned()));
            }
            return None;
        };
        let Some(key) = key else {
            let hint = "make one with: head -c 32 /dev/urandom | base64 > cell.key";
            self.fault("cell", "needs cell_key", Some(hint.to_owned()));
            return None;
        };
        Some(CellSettings { listen, key, others })
    }
}
