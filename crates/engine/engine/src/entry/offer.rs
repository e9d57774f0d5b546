//! An invocation that waits for a queue, and its fate when a revision refuses it.

use mote_core::elsewhere::Place;
use mote_core::{Fault, Invocation};

/// Where an invocation may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Only on this node.
    Own,
    /// On this node if it has room, otherwise at another cell.
    Movable,
    /// On this node, or at another cell as long as it waits: no cell had room when it arrived.
    Waits,
    /// On this node, for another cell, which gets it back if the node has no room.
    Guest,
}

/// An invocation on its way into a queue.
pub(crate) struct Offer {
    pub(crate) invocation: Invocation,
    /// How often it was already handed to a worker that died.
    pub(crate) attempts: u8,
    /// It waited in the queue of a revision that was replaced, so it keeps its place.
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
    Failed(Fault),
    /// The revision was replaced before it answered, and another revision must run the invocation.
    /// If the revision is not closed, the node had no memory for an instance.
    Replaced(Box<Offer>),
    /// There is no room here, and another cell may have some. It was not put into the queue.
    Overflows(Box<Offer>),
    /// It waited, and another cell has a place for it.
    Leaves(Box<(Offer, Box<dyn Place>)>),
}

impl From<Fault> for Unanswered {
    fn from(fault: Fault) -> Self {
        Unanswered::Failed(fault)
    }
}
