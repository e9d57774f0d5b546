//! The data that all revisions of a node share.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::egress_doors::{Carrier, EgressShares};
use mote_core::backend::Backend;
use mote_core::elsewhere::Elsewhere;
use mote_core::services::Services;
use mote_pool::admission::ProcessorMeter;
use mote_spec::Egress;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::entry::settings::Config;
use crate::entry::watch::Watches;
use crate::instance::prewarm::Prewarm;
use crate::ledger::Ledger;
use crate::thread::busy_poll::BusyPoll;
use crate::thread::threads::Threads;

/// The data that all revisions share.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) config: Config,
    /// The runtime for the engine's tasks that do not belong to a particular thread.
    pub(crate) runtime: Handle,
    /// The threads that serve connections and instances.
    pub(crate) threads: Threads,
    pub(crate) busy_poll: Arc<BusyPoll>,
    pub(crate) prewarm: Arc<Prewarm>,
    pub(crate) ledger: Arc<Ledger>,
    /// Carries bytes between functions and other hosts.
    pub(crate) carrier: Carrier,
    /// The limits on connections to other hosts and on look-ups.
    pub(crate) egress: EgressShares,
    /// The addresses of the node's own APIs, by the destinations that functions of other platforms
    /// use for them. Set once, at the start.
    pub(crate) own_apis: OnceLock<HashMap<Egress, SocketAddr>>,
    /// The services that functions may request from the node. Set once, at the start.
    pub(crate) services: OnceLock<Arc<dyn Services>>,
    /// The other cells, if the node has any. Set once, at the start.
    pub(crate) elsewhere: OnceLock<Arc<dyn Elsewhere>>,
    /// The watchers of invocations. Usually there are none.
    pub(crate) watches: Arc<Watches>,
    /// The memory for further instances in bytes, as last reported to other cells.
    pub(crate) free_bytes: AtomicU64,
    pub(crate) instances: AtomicU64,
    /// The processor time of each namespace that recently used some while functions of other
    /// namespaces were called.
    pub(crate) meters: Mutex<HashMap<u64, ProcessorMeter>>,
}

impl Shared {
    pub(crate) fn next_instance(&self) -> u64 {
        self.instances.fetch_add(1, Ordering::Relaxed) + 1
    }
}
