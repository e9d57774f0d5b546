//! An invocation that is on its way into a queue, and the possible outcomes if a revision does not
//! answer it.

use mote_core::elsewhere::Place;
use mote_core::{Fault, Invocation, Phases};

/// Where an invocation may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Only on this node.
    Own,
    /// On this node if it has room, otherwise at another cell.
    Movable,
    /// No cell had room when the invocation arrived. It runs on this node, or at another cell that
    /// gets room while the invocation waits.
    Waits,
    /// On this node only. The invocation came from another cell, and returns to that cell if this
    /// node has no room.
    Guest,
}

/// An invocation on its way into a queue.
pub(crate) struct Offer {
    pub(crate) invocation: Invocation,
    /// How often the invocation was already given to a worker that died.
    pub(crate) attempts: u8,
    /// Whether the invocation waited in the queue of a revision that was replaced. If so, it keeps
    /// its place.
    pub(crate) moved: bool,
    pub(crate) origin: Origin,
}

impl Offer {
    pub(crate) fn new(invocation: Invocation, origin: Origin) -> Self {
        Self { invocation, attempts: 0, moved: false, origin }
    }
}

/// Why a revision has not answered an invocation.
pub(crate) enum Unanswered {
    Failed(Failure),
    /// Another revision must run the invocation, because this one was replaced before it answered.
    /// If this revision is not closed, the node had no memory for an instance.
    Replaced(Box<Offer>),
    /// There is no room here, but another cell may have some. The invocation was not put into the
    /// queue.
    Overflows(Box<Offer>),
    /// The invocation was waiting, and another cell has a place for it.
    Leaves(Box<(Offer, Box<dyn Place>)>),
}

/// The failure of an invocation, and how its time was spent until then.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) fault: Fault,
    /// All 0 if the invocation was refused.
    pub(crate) phases: Phases,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self { fault, phases: Phases::default() }
    }
}

impl From<Fault> for Unanswered {
    fn from(fault: Fault) -> Self {
        Unanswered::Failed(fault.into())
    }
}

impl Unanswered {
    /// The failure, at `now_ns`, of an invocation that waited or ran until then.
    pub(crate) fn failed(fault: Fault, mut phases: Phases, now_ns: u64) -> Self {
        phases.fail(now_ns);
        Unanswered::Failed(Failure { fault, phases })
    }
}
