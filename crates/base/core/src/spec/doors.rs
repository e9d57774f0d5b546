//! The listeners in a function's sandbox, and which functions have one for the services of the node.

use std::net::IpAddr;

use super::{ANY_HOST, Egress, FunctionSpec, Runtime, StateRules, USUAL_PORTS};
use crate::services::SERVICES_PORT;

/// The port on which servers should listen, unless their manifest sets another one.
pub const SERVER_PORT: u16 = 8080;

/// The name and port by which a function calls the others of its node, `http://mote.internal/NAME`.
pub const OWN_FRONT: (&str, u16) = ("mote.internal", 80);

/// The names by which functions of OpenFaaS call the gateway, to call other functions.
pub const OPENFAAS_GATEWAYS: [&str; 3] =
    ["gateway", "gateway.openfaas", "gateway.openfaas.svc.cluster.local"];
/// The port on which they call it.
pub const OPENFAAS_GATEWAY_PORT: u16 = 8080;

impl FunctionSpec {
    /// The destinations that an instance has a listener for: those of the manifest, with a port
    /// each. [`ANY_HOST`] does not open the port on which the function itself listens.
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

    /// The port at which the function itself listens inside its sandbox, if it does.
    pub fn server_port(&self) -> Option<u16> {
        (self.answered_by() == Runtime::Server).then(|| self.port.unwrap_or(SERVER_PORT))
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

    /// The conditions under which the services can be reached: whether each is met, the setting,
    /// and the problem if it is not.
    pub(super) fn door_rules(&self) -> [(bool, &'static str, &'static str); 5] {
        let speaks_http = matches!(self.runtime, Runtime::Exec | Runtime::Server)
            || self.answered_by() == Runtime::Exec;
        let own_port = self.runtime == Runtime::Server && self.port == Some(SERVICES_PORT);
        let is_group = |to: &Egress| {
            to.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_multicast() || ip.is_unspecified())
        };
        let is_itself = |to: &Egress| {
            to.transport.is_tcp()
                && self.server_port() == Some(to.port)
                && to.literal().is_some_and(|ip| ip.is_loopback())
        };
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
            (
                !self.egress.iter().any(is_group),
                "allow.net",
                "0.0.0.0, :: and multicast addresses are no hosts: name the host itself",
            ),
            (
                !self.egress.iter().any(|to| is_broken_address(&to.host)),
                "allow.net",
                "a host that ends in a number is an IPv4 address: four numbers of 0 to 255",
            ),
            (
                !self.egress.iter().any(is_itself),
                "allow.net",
                "inside the sandbox this loopback address is the server itself: set another `port`",
            ),
        ]
    }
}

/// Whether a host looks like an IPv4 address and is none. No name ends in a number, and some programs
/// read `1.2.3` as 1.2.0.3 (WHATWG's URL standard, "ends in a number").
fn is_broken_address(host: &str) -> bool {
    let last = host.strip_suffix('.').unwrap_or(host).rsplit('.').next().unwrap_or_default();
    let is_hex = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    let is_number = !last.is_empty() && last.bytes().all(|digit| digit.is_ascii_digit());
    (is_number || hex.is_some_and(is_hex)) && host.parse::<IpAddr>().is_err()
}
