//! The checked and complete configuration of a node. [`crate::settings`] reads it from files, flags
//! and the environment. [`crate::run()`] runs a node with it.

mod function_ports;

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use mote_core::destination::ClosedNetworks;
use mote_core::fault::bytes_text;
use mote_core::shared_folders::SharedFolders;
use mote_http::access_log::{Destination, Format};
use mote_http::http::Proxies;
use mote_platforms::compat::Reach;
use mote_spec::quantity::parse_size;
use mote_spec::{Access, MEMORY_BYTES_MIN};
use mote_store::log_files::LogLimits;
use mote_store::seal::KeySource;

pub use function_ports::FunctionPorts;

/// A checked configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub data: PathBuf,
    /// The keys that encrypt secrets. The first one encrypts new values. If the list is empty, the
    /// node uses the key in the data folder.
    pub secrets_key: Vec<KeySource>,
    /// Address of the HTTP front; `None` switches it off.
    pub http: Option<SocketAddr>,
    /// Address of the HTTP front over TLS; `None` switches it off.
    pub https: Option<SocketAddr>,
    pub certificates: PathBuf,
    /// The file with the authorities that sign clients' certificates. With `None`, no client is
    /// asked for a certificate.
    pub client_ca: Option<PathBuf>,
    /// The arguments that tell `mote-acme` which certificate to order, and from which authority;
    /// `None` if it orders none.
    pub acme: Option<Vec<OsString>>,
    /// The TCP ports that may belong to single functions.
    pub function_ports: FunctionPorts,
    /// Proxies in front of the HTTP fronts. They tell the node who their clients are.
    pub proxies: Option<Arc<Proxies>>,
    /// The destination and the format of the HTTP fronts' access log; `None` writes no log.
    pub access_log: Option<(Destination, Format)>,
    /// The limits of the functions' logs on disk; `None` keeps lines only in memory.
    pub logs: Option<LogLimits>,
    /// The collector that receives traces and lines of functions: `http://`, `https://` or `grpc://`.
    pub collector: Option<String>,
    /// Which invocations are recorded as traces; `None` records none.
    pub traces: Option<TraceRules>,
    /// Address of the CoAP front; `None` switches it off.
    pub coap: Option<SocketAddr>,
    /// Address of the CoAP front over TCP; `None` switches it off.
    pub coap_tcp: Option<SocketAddr>,
    /// Address of the CoAP front over DTLS; `None` switches it off.
    pub coap_dtls: Option<SocketAddr>,
    /// Address of the CoAP front over TLS; `None` switches it off.
    pub coap_tls: Option<SocketAddr>,
    /// Address of the management API over TCP; `None` switches it off.
    pub admin: Option<SocketAddr>,
    /// Whether the management API also answers other machines without TLS.
    pub admin_plain: bool,
    /// Path of the management socket.
    pub socket: PathBuf,
    /// Whether the fronts listen beyond this machine.
    pub lan: bool,
    /// The access mode of functions whose manifest does not set one. Never [`Access::Unset`].
    pub access: Access,
    /// The memory that all instances together may use.
    pub memory: Share,
    /// Number of threads that serve HTTP connections. With 0, the number of cores decides.
    pub threads: usize,
    /// Whether to poll for the next event before sleeping.
    pub polling: bool,
    /// The factor by which `timeout` and `init_timeout` of each function are multiplied.
    pub timeout_factor: u32,
    /// Memory for prewarmed interpreters in bytes; `None` means a share of the machine's memory.
    pub prewarm_bytes: Option<u64>,
    /// Whether debuggers may attach to functions. Only for a node that one developer uses.
    pub inspect: bool,
    /// Whether builds of Go functions include their tests.
    pub go_tests: bool,
    /// The folder in which Go keeps what it has compiled, if it is not in the data folder. No other
    /// process may use it at the same time.
    pub go_cache: Option<PathBuf>,
    /// A folder that keeps packages for other data folders; `None` keeps them in the data folder
    /// only.
    pub packages_cache: Option<PathBuf>,
    /// First user id of instances.
    pub uid_base: u32,
    /// APIs of other platforms.
    pub compat: PlatformApis,
    /// The node's own MQTT broker; `None` switches it off.
    pub mqtt: Option<OwnBroker>,
    /// The broker for MQTT triggers whose manifest names no broker: `mqtt://HOST:PORT`, or `local`.
    pub mqtt_broker: String,
    /// The NATS servers that keep what several nodes share; `None` if the node shares nothing.
    pub nats: Option<NatsServers>,
    /// The name under which NATS keeps accepted invocations; with `None`, only the disk keeps them.
    pub journal_name: Option<String>,
    /// The journal in NATS that accepts the runs of schedules. Schedules run on the node that
    /// currently runs this journal. With `None`, they use the node's own journal.
    pub schedule_journal: Option<String>,
    /// The settings of the node as a cell of a cluster; `None` for a node without a cluster.
    pub cell: Option<CellSettings>,
    /// The destinations that the node's own requests may reach.
    pub outgoing: Reach,
    /// Folders of the host that functions may read.
    pub shared_folders: SharedFolders,
    /// Networks in which a function reaches a host only if its manifest names the host.
    pub closed_networks: ClosedNetworks,
}

impl Config {
    /// Returns the access mode that applies if a manifest sets `access`.
    pub fn access_of(&self, access: Access) -> Access {
        access.or(self.access)
    }

    /// The first TLS or DTLS listener that is on, without the APIs for operators.
    pub fn first_tls(&self) -> Option<SocketAddr> {
        let broker = self.mqtt.as_ref().and_then(|broker| broker.tls);
        self.https.or(self.coap_tls).or(self.coap_dtls).or(broker)
    }

    /// Whether callers of functions can show client certificates.
    pub fn checks_certificates(&self) -> bool {
        self.https.or(self.coap_tls).or(self.coap_dtls).is_some() && self.client_ca.is_some()
    }
}

/// Addresses of the APIs of other platforms. `None` switches an API off.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlatformApis {
    /// OpenFaaS' gateway.
    pub openfaas: Option<SocketAddr>,
    pub tinyfaas: Option<TinyFaas>,
    /// Nuclio's dashboard.
    pub nuclio: Option<SocketAddr>,
    /// OpenWhisk's API.
    pub openwhisk: Option<SocketAddr>,
}

impl PlatformApis {
    /// Whether all platform APIs are switched off.
    pub fn is_off(&self) -> bool {
        *self == Self::default()
    }
}

/// The addresses of tinyFaaS: of its management API, and of its fronts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TinyFaas {
    pub management: SocketAddr,
    /// Address of tinyFaaS' HTTP front; `None` switches it off.
    pub http: Option<SocketAddr>,
    /// Address of tinyFaaS' CoAP front; `None` switches it off.
    pub coap: Option<SocketAddr>,
    /// Address of tinyFaaS' gRPC front; `None` switches it off.
    pub grpc: Option<SocketAddr>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnBroker {
    pub listen: SocketAddr,
    /// The broker's address for TLS; `None` switches TLS off.
    pub tls: Option<SocketAddr>,
    /// Which clients need no user name: `off`, `loopback` or `all`.
    pub anonymous: &'static str,
}

/// The settings of a node as a cell. Cells are nodes that forward invocations to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellSettings {
    /// The address at which this cell listens for other cells.
    pub listen: SocketAddr,
    /// The file with the key that all cells share.
    pub key: PathBuf,
    /// The other cells that are known at the start.
    pub others: Vec<SocketAddr>,
}

/// Which invocations are recorded, and where the records go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceRules {
    /// Millionths of all invocations that begin a trace. Invocations that belong to a recorded
    /// trace, fail or are slow are recorded in any case.
    pub millionths: u32,
    /// The collector; `None` keeps the records only in memory.
    pub collector: Option<String>,
}

/// NATS servers with JetStream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatsServers {
    /// The addresses of the servers: `nats://HOST:PORT` or `tls://HOST:PORT`.
    pub servers: Vec<String>,
    pub credentials: Option<PathBuf>,
    /// The file with certificates (PEM) of the authorities that sign the servers' certificates.
    pub authorities: Option<PathBuf>,
    /// The number of copies of each stream.
    pub replicas: u8,
}

/// A part of the machine's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    Bytes(u64),
    Percent(u64),
}

impl Share {
    /// The share in bytes, on a machine with `machine_bytes`.
    pub fn of(self, machine_bytes: u64) -> u64 {
        match self {
            Share::Bytes(bytes) => bytes,
            Share::Percent(percent) => {
                (u128::from(machine_bytes) * u128::from(percent) / 100) as u64
            }
        }
    }

    /// Reads a size, or a percentage such as `75%`. Returns `None` for any other text, and for less
    /// memory than one instance needs.
    pub fn parse(text: &str) -> Option<Self> {
        let share = match text.strip_suffix('%') {
            Some(percent) => Share::Percent(percent.parse().ok()?),
            None => Share::Bytes(parse_size(text).ok()?),
        };
        match share {
            Share::Percent(percent) => (1..=100).contains(&percent),
            Share::Bytes(bytes) => bytes >= MEMORY_BYTES_MIN,
        }
        .then_some(share)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Share::Bytes(bytes) => f.write_str(&bytes_text(*bytes).replace(' ', "")),
            Share::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_in_bytes() {
        assert_eq!(Share::Percent(75).of(1 << 30), 768 << 20);
        assert_eq!(Share::Percent(75).of(u64::MAX), u64::MAX / 4 * 3 + 2);
        assert_eq!(Share::Bytes(512 << 20).to_string(), "512MiB");
    }
}
