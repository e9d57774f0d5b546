//! The cells in the form that the management API, `mote doctor` and the metrics show.

use std::fmt;
use std::net::SocketAddr;

use mote_api::Problem;
use mote_api::cells::{Cell, CellList, CellsRequest};
use mote_api::types::{Check, CheckState};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::{CellAddress, Cells};

impl Cells {
    /// The list for the management API.
    pub fn list(&self) -> CellList {
        let cell = |state: crate::CellState| Cell {
            name: state.cell.name,
            address: state.cell.address.to_string(),
            state: state.state.to_owned(),
            free_bytes: state.free_bytes,
            in_flight: state.in_flight as u64,
            last_error: state.last_error,
        };
        CellList {
            name: self.name(),
            listens: Some(self.address().to_string()),
            cells: self.states().into_iter().map(cell).collect(),
        }
    }

    /// Replaces the list with the one from a request to the management API.
    pub fn put(&self, wish: &CellsRequest) -> Result<CellList, Problem> {
        let wrong = |field: &str, text: String| {
            Problem::new(422, "M1403", format!("{field}: {text}")).with_field(field)
        };
        let mut cells = Vec::new();
        for place in &wish.cells {
            let Ok(address) = place.address.parse::<SocketAddr>() else {
                let text: String =
                    place.address.chars().take(64).flat_map(char::escape_debug).collect();
                let text = format!("ADDRESS:PORT, for example 198.18.128.7:8095; found \"{text}\"");
                return Err(wrong("cells.address", text));
            };
            cells.push(CellAddress { name: place.name.clone(), address });
        }
        self.set(&wish.name, &cells).map_err(|error| wrong("cells", error.to_string()))?;
        Ok(self.list())
    }

    /// The lines of `mote doctor`.
    pub fn checks(&self) -> Vec<Check> {
        let check = |state, detail, hint: Option<&str>| Check {
            name: "cells".into(),
            state,
            detail,
            hint: hint.map(str::to_owned),
        };
        let states = self.states();
        let up = states.iter().filter(|cell| cell.state != "unreachable").count();
        let listens = self.address();
        let mut checks = vec![check(
            if up == states.len() { CheckState::Ok } else { CheckState::Warn },
            format!("listens at {listens}; {up} of {} other cells are connected", states.len()),
            None,
        )];
        for state in states {
            let Some(error) = state.last_error.filter(|_| state.state == "unreachable") else {
                continue;
            };
            let CellAddress { name, address } = &state.cell;
            let title = if name.is_empty() { "the cell" } else { name };
            checks.push(check(
                CheckState::Warn,
                format!("{title} at {address}: {error}"),
                Some("invocations are not forwarded to it until it answers; all cells need the same cell_key"),
            ));
        }
        if let Some(stranger) = self.last_stranger() {
            checks.push(check(
                CheckState::Warn,
                format!("the last connection that was refused came from {stranger}"),
                Some("if it is a cell of this cluster, give it the same cell_key"),
            ));
        }
        checks
    }
}

impl fmt::Debug for Cells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cells")
    }
}

/// The metrics, read at each scrape.
impl Collector for Cells {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let figures = self.figures();
        let states = self.states();
        let connected = states.iter().filter(|cell| cell.state != "unreachable").count();
        let gauges = [
            ("cells", "Other cells in the list", states.len() as u64),
            ("cells_connected", "Other cells to which there is a connection", connected as u64),
            ("cells_inbound", "Connections of other cells", figures.connections),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        let counters = [
            ("spilled_out", "Invocations that other cells ran for this one", figures.spilled_out),
            ("spilled_in", "Invocations that this cell ran for others", figures.spilled_in),
            (
                "spilled_returned",
                "Forwarded invocations that a cell did not take",
                figures.returned,
            ),
            (
                "spilled_repeated",
                "Forwarded invocations that ran again because their cell was lost",
                figures.repeated,
            ),
            (
                "spilled_failed",
                "Forwarded invocations that failed because their cell was lost",
                figures.lost,
            ),
        ];
        for (name, help, value) in counters {
            let counter = ConstCounter::new(value);
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        Ok(())
    }
}
