//! What a node keeps for each function in addition to the function's revisions.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use mote_coap::notices::Notices;
use mote_engine::Revision;
use mote_engine::trees::Trees;
use mote_spec::FunctionName;
use parking_lot::Mutex;

use crate::ports::Ports;

/// When a function is removed, its entries here are removed too.
pub(crate) struct Deployed {
    /// Code and packages in use.
    pub(crate) trees: Arc<Trees>,
    /// The TCP ports that belong to single functions.
    pub(crate) ports: Ports,
    /// The resources of functions that CoAP clients observe.
    pub(crate) notices: Notices,
    pub(crate) created_at_ms: Mutex<HashMap<FunctionName, u64>>,
    /// Functions whose schedules and subscriptions run on another cell of the cluster.
    pub(crate) elsewhere: Mutex<HashSet<FunctionName>>,
}

impl Deployed {
    /// Makes the collection for a node without functions.
    pub(crate) fn new(ports: Ports) -> Self {
        let (trees, notices, created_at_ms, elsewhere) = Default::default();
        Self { trees, ports, notices, created_at_ms, elsewhere }
    }

    /// The time at which the function's first revision was deployed; 0 if the function is being
    /// removed.
    pub(crate) fn created_at_ms(&self, revision: &Revision) -> u64 {
        self.created_at_ms.lock().get(&revision.spec.name).copied().unwrap_or(0)
    }

    /// Records the time at which a function was first deployed. Later calls change nothing.
    pub(crate) fn created(&self, name: &FunctionName, unix_ms: u64) {
        self.created_at_ms.lock().entry(name.clone()).or_insert(unix_ms);
    }

    /// Forgets a removed function.
    pub(crate) fn forget(&self, name: &FunctionName) {
        self.created_at_ms.lock().remove(name);
        self.elsewhere.lock().remove(name);
    }
}
