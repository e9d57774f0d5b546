//! The listeners inside a function's sandbox, and which functions have a listener for the services
//! of the node.

use crate::egress::{ANY_HOST, Egress, USUAL_PORTS};
use crate::function::FunctionSpec;
use crate::runtime::Runtime;
use crate::state::StateRules;

/// The port on which a server must listen, unless its manifest sets another one.
pub const SERVER_PORT: u16 = 8080;

/// The name and port at which a function calls other functions of its node:
/// `http://mote.internal/NAME`.
pub const OWN_FRONT: (&str, u16) = ("mote.internal", 80);

/// The port at which programs and servers reach the node's services over HTTP inside their
/// sandboxes. The host name is that of [`OWN_FRONT`].
pub const SERVICES_PORT: u16 = 6685;

/// The host names at which OpenFaaS functions call the gateway in order to call other functions.
pub const OPENFAAS_GATEWAYS: [&str; 3] =
    ["gateway", "gateway.openfaas", "gateway.openfaas.svc.cluster.local"];
/// The port at which OpenFaaS functions call the gateway.
pub const OPENFAAS_GATEWAY_PORT: u16 = 8080;

impl FunctionSpec {
    /// The destinations for which an instance has a listener: those of the manifest, each with one
    /// port, and the node's services. [`ANY_HOST`] does not open the port on which the function
    /// itself listens.
    pub fn doors(&self) -> Vec<Egress> {
        let own_port = self.server_port();
        let mut doors: Vec<Egress> = Vec::new();
        for to in &self.egress {
            let usual: &[u16] = if to.port == 0 { &USUAL_PORTS } else { &[to.port] };
            for port in usual.iter().copied() {
                let door = Egress { port, ..to.clone() };
                let is_any = door.host == ANY_HOST;
                if is_any && (own_port == Some(port) || doors.contains(&door)) {
                    continue;
                }
                doors.push(door);
            }
        }
        if self.has_services_door() {
            doors.push(Egress::tcp(OWN_FRONT.0, SERVICES_PORT));
        }
        doors
    }

    /// The port on which the function itself listens inside its sandbox; `None` if it does not
    /// listen.
    pub fn server_port(&self) -> Option<u16> {
        (self.answered_by() == Runtime::Server).then(|| self.port.unwrap_or(SERVER_PORT))
    }

    /// Whether the function's programs reach the node's services over HTTP. They do only if the
    /// manifest asks for it, or permits something that needs it.
    pub fn has_services_door(&self) -> bool {
        matches!(self.answered_by(), Runtime::Exec | Runtime::Server)
            && (self.services
                || !self.calls.is_empty()
                || !self.publishing.topics.is_empty()
                || self.state != StateRules::default())
    }
}
