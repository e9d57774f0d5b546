//! The node's parts that the management API needs.

use crate::compat::node::Managed;

/// The context of the management API.
pub type Context = crate::compat::Context<dyn Managed>;

/// The ports of the fronts that are switched on. They are part of the answer to an upload.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ports {
    pub http: Option<u16>,
    pub coap: Option<u16>,
    pub grpc: Option<u16>,
}
