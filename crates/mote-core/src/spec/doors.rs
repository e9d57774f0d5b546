//! The listeners in a function's sandbox, and which functions have one for the services of the node.

use super::{ANY_HOST, Egress, FunctionSpec, Runtime, StateRules, USUAL_PORTS};
use crate::services::SERVICES_PORT;

/// The name and port by which a function calls the others of its node, `http://mote.internal/NAME`.
pub const OWN_FRONT: (&str, u16) = ("mote.internal", 80);

/// The names by which functions of OpenFaaS call the gateway, to call other functions.
pub const OPENFAAS_GATEWAYS: [&str; 3] =
    ["gateway", "gateway.openfaas", "gateway.openfaas.svc.cluster.local"];
/// The port on which they call it.
pub const OPENFAAS_GATEWAY_PORT: u16 = 8080;

impl FunctionSpec {
    /// The destinations that an instance has a listener for: those of the manifest, with a port
    /// each. `own_port` is the port on which the function itself listens; [`ANY_HOST`] does not
    /// open it.
    pub fn doors(&self, own_port: Option<u16>) -> Vec<Egress> {
        let mut doors: Vec<Egress> = Vec::new();
        for to in &self.egress {
            let usual: &[u16] = if to.port == 0 { &USUAL_PORTS } else { &[to.port] };
            for port in usual.iter().copied() {
                let door = Egress { host: to.host.clone(), port };
                let is_any = door.host == ANY_HOST;
                if is_any && (own_port == Some(port) || doors.contains(&door)) {
                    continue;
                }
                doors.push(door);
            }
        }
        if self.has_services_door() {
            let (host, port) = (OWN_FRONT.0.to_owned(), SERVICES_PORT);
            doors.push(Egress { host, port });
        }
        doors
    }

    /// Whether its programs reach the services of the node over HTTP. Only those have a listener for
    /// them whose manifest asks for one or permits something that needs one.
    pub fn has_services_door(&self) -> bool {
        matches!(self.answered_by(), Runtime::Exec | Runtime::Server)
            && (self.services
                || !self.calls.is_empty()
                || !self.publishing.topics.is_empty()
                || self.state != StateRules::default())
    }

    /// What must hold for the services to be reached: whether it does, the setting, and the problem.
    pub(super) fn door_rules(&self) -> [(bool, &'static str, &'static str); 2] {
        let speaks_http = matches!(self.runtime, Runtime::Exec | Runtime::Server)
            || self.answered_by() == Runtime::Exec;
        let own_port = self.runtime == Runtime::Server && self.port == Some(SERVICES_PORT);
        [
            (
                !self.services || speaks_http,
                "services",
                "only for exec and server; functions of other runtimes have the services as ctx.kv, \
                 ctx.call and so on",
            ),
            (
                !own_port || !self.has_services_door(),
                "port",
                "not 6685, at which the function reaches the services of the node",
            ),
        ]
    }
}
