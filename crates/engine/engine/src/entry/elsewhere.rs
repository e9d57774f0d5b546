//! Invocations that leave for another cell, and invocations that arrive from another cell.
//!
//! An invocation leaves if the pool would let it wait, no further instance can be started, and a
//! cell reports that it has room ([`mote_core::elsewhere`]). A waiting invocation may also leave
//! later. An invocation that arrived from another cell never leaves for a third one: if this node
//! turns out to have no room, the invocation returns to the cell that sent it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mote_core::elsewhere::{
    Elsewhere, HEAD_BYTES_MAX, Here, Later, Load, Place, Places, Ran, RevisionKey, Sent,
};
use mote_core::rollout::sticky_key;
use mote_core::{Fault, Invocation, Reply};
use mote_pool::Withdrawn;
use mote_spec::{FunctionSpec, Runtime};
use tokio::sync::oneshot;

use crate::entry::engine::Engine;
use crate::entry::offer::{Failure, Offer, Origin, Unanswered};
use crate::entry::routes::Route;
use crate::revision::pool::Pending;
use crate::revision::{Revision, answered};
use mote_process::clock::now_ns;

impl Engine {
    /// Continues with an invocation that a revision has not answered: on this node, at another
    /// cell, or at the next revision. Each iteration of the loop uses up one place that a cell
    /// offered.
    pub(crate) async fn go_on(
        &self,
        elsewhere: Option<&Arc<dyn Elsewhere>>,
        route: &Route,
        mut unanswered: Unanswered,
    ) -> Result<Reply, Failure> {
        let revision = &route.revision;
        loop {
            let (offer, place) = match unanswered {
                Unanswered::Failed(failure) => return Err(failure),
                Unanswered::Leaves(left) => (left.0, Some(left.1)),
                Unanswered::Overflows(offer) => (*offer, revision.claim(elsewhere)),
                Unanswered::Replaced(offer) => {
                    let mut offer = *offer;
                    if revision.pool.lock().is_closed() {
                        offer.origin = Origin::Own;
                        return self.invoke_again(route, offer).await;
                    }
                    let place = revision.claim(elsewhere);
                    if place.is_none() {
                        let Invocation { trigger, id, .. } = offer.invocation;
                        let failure = Fault::NodeFull.into();
                        revision.failed(trigger, id, &failure);
                        return Err(failure);
                    }
                    (offer, place)
                }
            };
            let offer = match place {
                None => Offer { origin: Origin::Waits, ..offer },
                Some(place) => match revision.send(offer, place).await {
                    Ok(result) => return result,
                    Err(offer) => offer,
                },
            };
            match revision.invoke(offer).await {
                Ok(reply) => return Ok(reply),
                Err(still) => unanswered = still,
            }
        }
    }
}

impl Revision {
    /// Whether another cell could run an invocation of this function. Chains stay here, because
    /// their records are on the node that accepted them. WebSockets stay here, because they last
    /// too long to be worth a hop. Functions with a data folder stay here, because the folder is here.
    pub(crate) fn may_move(&self, invocation: &Invocation) -> bool {
        let head = &invocation.head;
        self.spec.runtime != Runtime::Chain
            && self.spec.files.data_bytes.is_none()
            && !head.wants_websocket()
            && head.wire().len() <= HEAD_BYTES_MAX
    }

    /// The key of this revision for other cells. Two nodes have the same key only if the code and
    /// the settings are equal.
    pub(crate) fn key(&self) -> &RevisionKey {
        self.key.get_or_init(|| {
            // The folder's name is the hash of the code. Where the code came from makes no
            // difference.
            let folder = self.code_dir.file_name().unwrap_or_default().as_encoded_bytes();
            let spec = FunctionSpec { origin: None, ..self.spec.clone() };
            let content = [folder, mote_spec::json::to_json(&spec).as_bytes()].concat();
            RevisionKey {
                function: self.spec.name.clone(),
                number: self.number,
                content: sticky_key(&content),
            }
        })
    }

    fn claim(&self, elsewhere: Option<&Arc<dyn Elsewhere>>) -> Option<Box<dyn Place>> {
        elsewhere?.claim(self.key(), self.spec.limits.memory_bytes)
    }

    fn is_stuck(&self) -> bool {
        self.pool.lock().is_stuck(self.shared.ledger.version())
    }

    /// Sends an invocation to another cell. Returns it as an error if it has to run here.
    async fn send(
        &self,
        offer: Offer,
        place: Box<dyn Place>,
    ) -> Result<Result<Reply, Failure>, Offer> {
        let Offer { invocation, attempts, moved, .. } = offer;
        let trigger = invocation.trigger;
        let id = invocation.id;
        let origin = Origin::Movable;
        match place.send(invocation).await {
            Sent::Answered(result) => Ok(result.map_err(Failure::from)),
            Sent::Back(invocation) => Err(Offer { invocation, attempts, moved, origin }),
            // The same rule as for workers that die: the invocation runs once more if that is safe.
            Sent::Lost(Some(invocation), _) if attempts == 0 && invocation.is_idempotent() => {
                Err(Offer { invocation, attempts: 1, moved: true, origin })
            }
            Sent::Lost(_, fault) => {
                let failure = fault.at_attempt(attempts + 1).into();
                self.failed(trigger, id, &failure);
                Ok(Err(failure))
            }
        }
    }

    /// Waits for the answer. Returns earlier if the invocation is still in the queue and another
    /// cell has a place for it.
    pub(crate) async fn answer_or_place(
        &self,
        mut answer: oneshot::Receiver<Result<Reply, Unanswered>>,
        serial: u64,
        elsewhere: &dyn Elsewhere,
    ) -> Result<Reply, Unanswered> {
        let key = self.key();
        loop {
            let room = tokio::select! {
                biased;
                answer = &mut answer => return answered(answer),
                () = elsewhere.room(key) => self.is_stuck() || elsewhere.is_leaving(),
            };
            let bytes = self.spec.limits.memory_bytes;
            let Some(place) = room.then(|| elsewhere.claim(key, bytes)).flatten() else {
                continue;
            };
            let withdrawn = self.pool.lock().withdraw(serial, now_ns());
            let Withdrawn::Waiting(pending) = withdrawn else {
                // It runs here. The place must be free while it does, or another invocation that
                // waits could not have it.
                drop(place);
                return answered(answer.await);
            };
            let Pending { invocation, attempts, origin, .. } = pending;
            let offer = Offer { invocation, attempts, moved: true, origin };
            return Err(Unanswered::Leaves(Box::new((offer, place))));
        }
    }

    /// Reports to the other cells that `stuck` invocations wait although nothing on this node will
    /// take them, and that this node's load may have changed.
    pub(crate) fn tell_elsewhere(&self, stuck: usize) {
        let Some(elsewhere) = self.shared.elsewhere.get() else { return };
        elsewhere.changed();
        if stuck > 0 {
            elsewhere.stuck(self.key(), stuck);
        }
    }

    /// Sends invocations back to their cells if they wait for an instance that cannot be started.
    pub(crate) fn give_guests_back(&self) {
        if self.shared.elsewhere.get().is_none() {
            return;
        }
        let guests = {
            let mut pool = self.pool.lock();
            if pool.starting_count() > 0 {
                return;
            }
            pool.take_guests(|pending| pending.origin == Origin::Guest, now_ns())
        };
        for pending in guests {
            pending.move_on();
        }
    }

    /// Runs an invocation of another cell if there is room for it.
    async fn run_guest(self: Arc<Self>, invocation: Invocation) -> Ran {
        let bytes = self.shared.free_bytes.load(Ordering::Relaxed);
        if self.pool.lock().places(bytes) == (0, 0) {
            return if self.pool.lock().is_closed() { Ran::NotHere } else { Ran::Busy };
        }
        match self.invoke(Offer::new(invocation, Origin::Guest)).await {
            Ok(reply) => Ran::Answered(Ok(reply)),
            Err(Unanswered::Replaced(_)) if self.pool.lock().is_closed() => Ran::NotHere,
            Err(Unanswered::Failed(Failure { fault, .. })) => match fault {
                Fault::QueueFull | Fault::NodeFull => Ran::Busy,
                fault => Ran::Answered(Err(fault)),
            },
            Err(_) => Ran::Busy,
        }
    }
}

impl Here for Engine {
    fn run(&self, wanted: &RevisionKey, invocation: Invocation) -> Later<Ran> {
        let serving = self.serving(wanted.function.as_str());
        let revision = serving.and_then(|serving| serving.revision(wanted.number).cloned());
        match revision.filter(|revision| revision.key() == wanted) {
            Some(revision) => Box::pin(revision.run_guest(invocation)),
            None => Box::pin(std::future::ready(Ran::NotHere)),
        }
    }

    fn load(&self, revisions_max: usize) -> Load {
        let free_bytes = self.shared.ledger.free_bytes();
        self.shared.free_bytes.store(free_bytes, Ordering::Relaxed);
        let mut load = Load { free_bytes, revisions: Vec::new() };
        for revision in self.revisions() {
            let pool = revision.pool.lock();
            if pool.workers().len() == 0 && pool.starting_count() == 0 {
                continue;
            }
            let (ready, more) = pool.places(free_bytes);
            drop(pool);
            if load.revisions.len() < revisions_max {
                load.revisions.push((revision.key().clone(), Places { ready, more }));
            }
        }
        load
    }
}
