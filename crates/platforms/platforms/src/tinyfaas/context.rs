//! What the management API needs from the node.

use crate::compat::node::Managed;

/// The context of the management API.
pub type Context = crate::compat::Context<dyn Managed>;

/// Ports of the fronts that are on, for the answer to an upload.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ports {
    pub http: Option<u16>,
    /// CoAP.
    pub coap: Option<u16>,
    /// gRPC.
    pub grpc: Option<u16>,
}
