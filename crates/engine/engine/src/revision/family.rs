//! What a revision knows of copies of its instances, and its seed. `instance/family.rs` makes the
//! copies.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use mote_core::backend::{InstanceControl, InstanceRequest, Seed};
use mote_core::wire::Ready;
use parking_lot::Mutex;

use crate::ledger::Reservation;

/// Copies are made of a function that takes at least this long to load. Below it, the memory and the
/// start of the seed cost more than they save.
const LOAD_NS_MIN: u64 = 100_000_000;

/// What is known of the copies of one revision, and its seed.
#[derive(Default)]
pub(crate) struct Family {
    known: Mutex<Known>,
    /// The lock is held while a seed loads, so that the starts of a burst wait for the same one.
    pub(crate) seed: tokio::sync::Mutex<Weak<OwnSeed>>,
}

#[derive(Default)]
struct Known {
    /// Whether the function loads slowly.
    is_slow: bool,
    /// Why the worker that loaded last cannot be copied.
    obstacle: Option<String>,
    /// Why copies are not tried any more.
    given_up: Option<String>,
}

/// A running seed with everything that ends with it.
pub(crate) struct OwnSeed {
    pub(crate) copies: Arc<dyn Seed>,
    pub(crate) control: Arc<dyn InstanceControl>,
    /// What its copies would have been started with. If this changes, they no longer fit.
    pub(crate) request: InstanceRequest,
    pub(crate) variables: BTreeMap<String, String>,
    /// The connections of all copies to other hosts.
    #[expect(dead_code, reason = "its end is what counts")]
    pub(crate) doors: Box<dyn Send + Sync>,
    /// Given back when the seed has ended.
    pub(crate) reservation: Option<Reservation>,
    pub(crate) runtime: tokio::runtime::Handle,
}

impl Family {
    /// Notes what a worker that has loaded the function says about copies.
    pub(crate) fn learn(&self, ready: &Ready) {
        let mut known = self.known.lock();
        // A worker that knows nothing of copies has not looked for obstacles.
        known.is_slow = ready.init_ns >= LOAD_NS_MIN && ready.no_copies.is_some();
        known.obstacle = ready.no_copies.clone().filter(|why| !why.is_empty());
    }

    /// Why instances of a function that loads slowly are not copies; `None` if they are, or if it
    /// loads fast.
    pub(crate) fn no_copies(&self) -> Option<String> {
        let known = self.known.lock();
        let why = known.given_up.as_ref().or(known.obstacle.as_ref());
        why.filter(|_| known.is_slow).cloned()
    }

    pub(crate) fn is_useful(&self) -> bool {
        let known = self.known.lock();
        known.is_slow && known.obstacle.is_none() && known.given_up.is_none()
    }

    /// From now on, instances of this revision load the function themselves.
    pub(crate) fn give_up(&self, why: String) {
        self.known.lock().given_up = Some(why);
    }
}

impl Drop for OwnSeed {
    fn drop(&mut self) {
        self.control.kill();
        let (exited, reservation) = (self.control.exited(), self.reservation.take());
        self.runtime.spawn(async move {
            exited.await;
            drop(reservation);
        });
    }
}
