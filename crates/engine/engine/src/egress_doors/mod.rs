//! The connections of functions to other hosts: the allowed destinations, each function's share of
//! connections and look-ups, answers to DNS questions, and the copying of bytes.
//!
//! This module knows an instance only through [`Instance`], and must not know revisions, workers or
//! queues. Start reading at `door.rs`.

mod bytes;
mod datagrams;
mod door;
mod lookups;
mod names;
mod relay;
mod shares;

use std::net::{IpAddr, SocketAddr};

use mote_spec::{Egress, FunctionName};

pub use bytes::{Destinations, EgressBytes};
pub use door::{Door, adopt, hint, is_of_this_machine};
pub use names::Names;
pub use relay::Carrier;
pub use shares::EgressShares;

/// An instance whose connections this module carries.
pub trait Instance: Send + Sync + 'static {
    /// The number of the instance's function, unique among all functions of the node.
    fn function(&self) -> u64;
    /// The number of the instance.
    fn instance(&self) -> u64;
    fn name(&self) -> &FunctionName;
    /// The shares from which the connections of all functions take their places.
    fn shares(&self) -> &EgressShares;
    /// Whether the function is in a namespace, and therefore reaches no address of this machine.
    fn is_confined(&self) -> bool;
    /// The address of the node's own API, if this destination stands for that API.
    fn own_api(&self, to: &Egress) -> Option<SocketAddr>;
    /// Whether the network of this address stays closed even if the manifest allows `*`.
    fn is_closed(&self, address: IpAddr) -> bool;
    /// Writes a warning to the function's log.
    fn warn(&self, text: &str);
}
