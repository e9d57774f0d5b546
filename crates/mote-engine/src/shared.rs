//! What all revisions of a node share.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use mote_core::backend::Backend;
use mote_core::spec::Egress;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::busy_poll::BusyPoll;
use crate::egress_shares::EgressShares;
use crate::ledger::Ledger;
use crate::prewarm::Prewarm;
use crate::relay::Carrier;
use crate::settings::Config;

/// What all revisions share.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) config: Config,
    /// The runtime of the data path; every task of the engine runs there.
    pub(crate) runtime: Handle,
    pub(crate) busy_poll: Arc<BusyPoll>,
    pub(crate) prewarm: Arc<Prewarm>,
    pub(crate) ledger: Arc<Ledger>,
    /// Carries what functions send to elsewhere and get from there.
    pub(crate) carrier: Carrier,
    /// How many of those connections there may be, and how many look-ups.
    pub(crate) egress: EgressShares,
    /// The node's own APIs by the destinations that functions of other platforms call them by. Set
    /// once, at the start.
    pub(crate) own_apis: OnceLock<HashMap<Egress, SocketAddr>>,
    /// By name. A leaf lock: nothing else is taken while it is held.
    pub(crate) secrets: Mutex<HashMap<String, String>>,
    pub(crate) instances: AtomicU64,
}

impl Shared {
    pub(crate) fn next_instance(&self) -> u64 {
        self.instances.fetch_add(1, Ordering::Relaxed) + 1
    }
}
