//! The connections of functions to other hosts: which destinations are allowed, each function's
//! share of connections and look-ups, answers to DNS questions, and the copying of bytes.
//!
//! It knows an instance only through [`Instance`], and must not know revisions, workers or queues.
//! Start reading at `door.rs`.

mod datagrams;
mod door;
mod lookups;
mod names;
mod relay;
mod shares;

use std::net::{IpAddr, SocketAddr};

use mote_spec::{Egress, FunctionName};

pub use door::{Door, adopt, hint, is_of_this_machine};
pub use names::Names;
pub use relay::Carrier;
pub use shares::EgressShares;

/// An instance whose connections are carried.
pub trait Instance: Send + Sync + 'static {
    /// The number of its function among all functions of the node.
    fn function(&self) -> u64;
    /// Its own number.
    fn instance(&self) -> u64;
    fn name(&self) -> &FunctionName;
    /// What the connections of all functions share.
    fn shares(&self) -> &EgressShares;
    /// Whether it belongs to a namespace, so that it reaches no address of this machine.
    fn is_confined(&self) -> bool;
    /// The address of the node's own API that this destination stands for, if it stands for one.
    fn own_api(&self, to: &Egress) -> Option<SocketAddr>;
    /// Whether `*` does not open the network of this address.
    fn is_closed(&self, address: IpAddr) -> bool;
    /// Writes a warning to the function's log.
    fn warn(&self, text: &str);
}
