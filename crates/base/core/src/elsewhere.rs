//! Invocations that another node of the same cluster runs: the seams between the engine and the
//! connections to those nodes, which are called cells.
//!
//! The engine offers an invocation that it cannot run to [`Elsewhere`], and runs those of other
//! cells through [`Here`]. Neither side knows more of the other.

use std::future::Future;
use std::pin::Pin;

use mote_spec::FunctionName;

use crate::fault::Fault;
use crate::invocation::{Invocation, Reply};

/// Longest head of an invocation that may leave; fronts accept far shorter ones.
pub const HEAD_BYTES_MAX: usize = 384 << 10;

/// A future of this module.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A revision as all cells name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RevisionKey {
    /// The function.
    pub function: FunctionName,
    /// The number of the revision.
    pub number: u64,
    /// A number that the revision's code and settings determine, because cells that were deployed to
    /// one by one may use the same number for different ones.
    pub content: u64,
}

/// Invocations of a revision that a cell could take now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Places {
    /// Free places of instances that are ready.
    pub ready: u32,
    /// Places of instances that are starting, or that the cell could start.
    pub more: u32,
}

/// How much room a cell has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Load {
    /// Memory for further instances, in bytes. A function that is not listed has as many places as
    /// instances fit into it.
    pub free_bytes: u64,
    /// The revisions that have instances.
    pub revisions: Vec<(RevisionKey, Places)>,
}

/// What became of an invocation that was sent to another cell.
#[derive(Debug)]
pub enum Sent {
    /// The cell ran it.
    Answered(Result<Reply, Fault>),
    /// The cell did not begin it: it has no room, or does not have the revision.
    Back(Invocation),
    /// The connection was lost, so the cell may have begun it. The invocation is there as long as
    /// none of its body was taken.
    Lost(Option<Invocation>, Fault),
}

/// A place for one invocation at another cell. Dropping it gives the place back.
pub trait Place: Send {
    /// Sends the invocation. Dropping the future cancels the invocation.
    fn send(self: Box<Self>, invocation: Invocation) -> Later<Sent>;
}

/// The other cells, as the engine sees them. No method blocks.
pub trait Elsewhere: Send + Sync + 'static {
    /// Takes a place at a cell that says that it has room. An instance of the revision may use
    /// `memory_bytes`.
    fn claim(&self, wanted: &RevisionKey, memory_bytes: u64) -> Option<Box<dyn Place>>;
    /// Resolves when it is worth claiming a place again.
    fn room(&self, wanted: &RevisionKey) -> Later<()>;
    /// `waiting` invocations of the revision wait here, and no further instance can be started for
    /// them.
    fn stuck(&self, wanted: &RevisionKey, waiting: usize);
    /// The load of this node may have changed.
    fn changed(&self);
    /// Whether this node is stopping, so that invocations that wait should leave even if it could
    /// run them later.
    fn is_leaving(&self) -> bool;
}

/// What became of an invocation of another cell.
#[derive(Debug)]
pub enum Ran {
    /// It has run.
    Answered(Result<Reply, Fault>),
    /// Nothing of it has run, because the node does not serve this revision.
    NotHere,
    /// Nothing of it has run, because the node has no room.
    Busy,
}

/// This node, as the connections to other cells see it. No method blocks.
pub trait Here: Send + Sync + 'static {
    /// Runs an invocation of another cell, never at a third one. Dropping the future cancels it.
    fn run(&self, wanted: &RevisionKey, invocation: Invocation) -> Later<Ran>;
    /// How much room it has, for at most `revisions_max` revisions. Visits every function.
    fn load(&self, revisions_max: usize) -> Load;
}
