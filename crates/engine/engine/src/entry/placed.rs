//! The routes that manifests declare, for all functions that serve.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use mote_spec::routes::{Asked, Found, RouteRule, RouteTable};
use mote_spec::{FunctionName, FunctionSpec};
use parking_lot::Mutex;

use crate::entry::routes::Routes;

/// The table of routes. It is rebuilt whenever a function is deployed or removed, or its traffic
/// changes.
#[derive(Default)]
pub(crate) struct Placed {
    table: ArcSwapOption<RouteTable>,
    /// Held while the table is rebuilt, so that the table that is built last contains the newest
    /// functions.
    making: Mutex<()>,
}

impl Placed {
    /// Rebuilds the table for the functions that `newest` returns.
    pub(crate) fn update(&self, newest: impl FnOnce() -> Arc<Routes>) {
        let _making = self.making.lock();
        let routes = newest();
        let is_needed = routes.values().any(|serving| !serving.live().spec.routes().is_empty());
        // Without routes, no table is built. Most nodes have no routes.
        if is_needed || self.table.load().is_some() {
            let table = is_needed.then(|| Arc::new(table(&routes, None)));
            self.table.store(table);
        }
    }

    #[inline]
    pub(crate) fn has_hosts(&self) -> bool {
        self.table.load().as_ref().is_some_and(|table| table.has_hosts())
    }

    pub(crate) fn find(&self, asked: &Asked<'_>) -> Found {
        let table = self.table.load();
        table.as_ref().map_or(Found::Nothing, |table| table.find(asked))
    }
}

/// The first route in `spec` that another function already has, and the name of that function.
pub(crate) fn conflict(routes: &Routes, spec: &FunctionSpec) -> Option<(RouteRule, FunctionName)> {
    table(routes, Some(&spec.name)).add(&spec.name, spec.routes()).err()
}

fn table(routes: &Routes, except: Option<&FunctionName>) -> RouteTable {
    let mut all: Vec<_> = routes.iter().filter(|(name, _)| Some(*name) != except).collect();
    all.sort_unstable_by_key(|(name, _)| *name);
    let mut table = RouteTable::default();
    for (name, serving) in all {
        if let Err((rule, other)) = table.add(name, serving.live().spec.routes()) {
            // The caller that published the function should have found this overlap. This
            // function's later routes are left out as well.
            tracing::error!(function = %name, path = %rule.path, %other, "another function has this route");
        }
    }
    table
}
