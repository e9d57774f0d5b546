//! Invocations that another node of the same cluster (a cell) runs. This module has the interfaces
//! between the engine and the connections to other cells.
//!
//! The engine offers an invocation that it cannot run to [`Elsewhere`], and runs the invocations of
//! other cells through [`Here`]. Neither side knows anything else about the other.

use std::future::Future;
use std::pin::Pin;

use mote_spec::FunctionName;

use crate::fault::Fault;
use crate::invocation::{Invocation, Reply};

/// The longest head of an invocation that may be sent to another cell. Fronts accept far shorter
/// ones.
pub const HEAD_BYTES_MAX: usize = 384 << 10;

/// A boxed future, as this module's interfaces return it.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A revision, named in the same way on all cells.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RevisionKey {
    /// The function.
    pub function: FunctionName,
    /// The number of the revision.
    pub number: u64,
    /// A number derived from the revision's code and settings. If cells are deployed to one by one,
    /// they may use the same revision number for different contents.
    pub content: u64,
}

/// The number of invocations of one revision that a cell could take now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Places {
    /// Free places of instances that are ready.
    pub ready: u32,
    /// Places of instances that are starting, or that the cell could still start.
    pub more: u32,
}

/// How much room a cell has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Load {
    /// Memory for further instances, in bytes. For a function that is not listed, the number of
    /// places depends on how many instances fit into this memory.
    pub free_bytes: u64,
    /// The revisions that have instances.
    pub revisions: Vec<(RevisionKey, Places)>,
}

/// The result of sending an invocation to another cell.
#[derive(Debug)]
pub enum Sent {
    /// The cell ran the invocation.
    Answered(Result<Reply, Fault>),
    /// The cell did not begin the invocation, because it has no room or does not have the revision.
    Back(Invocation),
    /// The connection was lost, so the cell may have begun the invocation. The invocation is
    /// returned only if none of its body was taken.
    Lost(Option<Invocation>, Fault),
}

/// A reserved place for one invocation on another cell. Dropping it releases the place.
pub trait Place: Send {
    /// Sends the invocation. Dropping the future cancels the invocation.
    fn send(self: Box<Self>, invocation: Invocation) -> Later<Sent>;
}

/// The other cells, as the engine sees them. No method blocks.
pub trait Elsewhere: Send + Sync + 'static {
    /// Reserves a place on a cell that reports room. An instance of the revision may use
    /// `memory_bytes`.
    fn claim(&self, wanted: &RevisionKey, memory_bytes: u64) -> Option<Box<dyn Place>>;
    /// Resolves when it is worth claiming a place again.
    fn room(&self, wanted: &RevisionKey) -> Later<()>;
    /// Reports that `waiting` invocations of the revision wait on this node, and that no further
    /// instance can be started for them.
    fn stuck(&self, wanted: &RevisionKey, waiting: usize);
    /// Reports that the load of this node may have changed.
    fn changed(&self);
    /// Whether this node is stopping. If so, waiting invocations should move to other cells even if
    /// this node could run them later.
    fn is_leaving(&self) -> bool;
}

/// The result of running an invocation for another cell.
#[derive(Debug)]
pub enum Ran {
    /// The invocation has run.
    Answered(Result<Reply, Fault>),
    /// The invocation did not begin, because the node does not serve this revision.
    NotHere,
    /// The invocation did not begin, because the node has no room.
    Busy,
}

/// This node, as the connections to other cells see it. No method blocks.
pub trait Here: Send + Sync + 'static {
    /// Runs an invocation for another cell. It is never passed on to a third cell. Dropping the
    /// future cancels it.
    fn run(&self, wanted: &RevisionKey, invocation: Invocation) -> Later<Ran>;
    /// The room on this node, for at most `revisions_max` revisions. Visits every function.
    fn load(&self, revisions_max: usize) -> Load;
}
