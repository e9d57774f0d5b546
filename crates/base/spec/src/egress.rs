//! Destinations to which a function may connect.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

use crate::addresses::is_link_local;

/// The protocol in which a destination is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP connections.
    #[default]
    Tcp,
    /// UDP datagrams.
    Udp,
}

impl Transport {
    /// Whether the transport is TCP. Manifests and stored specs omit this default.
    pub fn is_tcp(&self) -> bool {
        *self == Transport::Tcp
    }
}

/// One destination that a function may reach: `host:port` or `udp://host:port`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Egress {
    /// The protocol.
    pub transport: Transport,
    /// The host name or address, as written in the manifest, or [`ANY_HOST`], which is possible
    /// only with TCP.
    pub host: String,
    /// The port. With [`ANY_HOST`], 0 stands for all [`USUAL_PORTS`].
    pub port: u16,
}

impl Egress {
    /// Makes a destination that is reached over TCP.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self { transport: Transport::Tcp, host: host.into(), port }
    }

    /// If the manifest names this destination by an address, or by `localhost`, returns the address
    /// at which code inside a sandbox reaches it. Returns `None` for other names, and for an
    /// address that does not stand for a single host.
    pub fn literal(&self) -> Option<IpAddr> {
        let address = match self.host.as_str() {
            "localhost" => Ipv4Addr::LOCALHOST.into(),
            host => host.parse::<IpAddr>().ok()?.to_canonical(),
        };
        let names_no_host = address.is_unspecified()
            || address.is_multicast()
            // A link-local IPv6 address stands for another host on each link. A link-local IPv4
            // address leads to the node, which refuses the connection.
            || (address.is_ipv6() && is_link_local(address))
            || address == IpAddr::V4(Ipv4Addr::BROADCAST);
        (!names_no_host).then_some(address)
    }
}

/// Writes the destination in the form that manifests use.
impl fmt::Display for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.transport == Transport::Udp {
            f.write_str("udp://")?;
        }
        match (self.host.as_str(), self.port) {
            (ANY_HOST, 0) => f.write_str(ANY_HOST),
            (host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            (host, port) => write!(f, "{host}:{port}"),
        }
    }
}

/// The host name that stands for every host.
pub const ANY_HOST: &str = "*";

/// The ports that `net = ["*"]` opens. They are the ports of services that functions usually call.
/// Opening every port is not possible, because a sandbox needs a listener for each open port.
pub const USUAL_PORTS: [u16; 28] = [
    22, 25, 80, 389, 443, 465, 587, 636, 993, 1433, 1521, 1883, 3000, 3306, 4222, 5000, 5432, 5672,
    6379, 8000, 8080, 8086, 8443, 8883, 9000, 9092, 9200, 27017,
];
