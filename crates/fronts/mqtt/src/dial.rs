//! Connections to brokers: opening the socket, TLS, and reading the broker's answer to CONNECT.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::BytesMut;
use mote_spec::addresses::is_link_local;
use mote_spec::mqtt::{Broker, Connection, LOCAL, MqttVersion};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::host::Host;
use crate::packet::{self, ConnAck, Malformed, Packet, Read};
use crate::reasons::refusal;
use crate::state::Problem;
use crate::tls;

/// How long a connection may take until the broker has accepted the client.
pub(crate) const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// After this much silence, a client pings the broker.
pub(crate) const KEEP_ALIVE_S: u16 = 30;
/// How long the broker may take to answer a ping.
pub(crate) const PING_PATIENCE: Duration = Duration::from_secs(15);
/// The first and the longest pause between two connections.
pub(crate) const BACKOFF_MIN: Duration = Duration::from_millis(250);
pub(crate) const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// After a connection that lasted this long, the pauses start again with the shortest one.
pub(crate) const STABLE: Duration = Duration::from_secs(10);
/// A lasting problem is logged at most once in this time.
pub(crate) const LOG_EVERY: Duration = Duration::from_secs(60);
/// The bytes that a packet may have for its topic and properties, in addition to the largest body.
pub(crate) const PACKET_EXTRA_BYTES: usize = 64 << 10;

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection on which nothing has been sent yet, and the credentials that the node will use on
/// it.
pub(crate) struct Opened {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
}

pub(crate) fn unreachable(error: &io::Error) -> Problem {
    if let Some(problem) = tls::problem(error) {
        return problem;
    }
    let text = error.to_string();
    Problem::Unreachable(text.split(" (os error").next().unwrap_or_default().to_lowercase())
}

impl From<Malformed> for Problem {
    fn from(error: Malformed) -> Self {
        Problem::Unreachable(error.to_string())
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        unreachable(&error)
    }
}

/// Reads the text of a secret that a trigger names.
fn secret(host: &dyn Host, name: &Option<String>) -> Result<Option<String>, Problem> {
    match name {
        None => Ok(None),
        Some(name) => match host.secret(name) {
            // Editors end a file with a line feed, which is not part of the password.
            Some(text) => Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned())),
            None => Err(Problem::Secret(name.clone())),
        },
    }
}

/// The address from which the node connects to its own broker.
const NODE_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), 0);

fn local_address(broker: &Broker) -> Option<SocketAddr> {
    Some(SocketAddr::new(broker.host.parse().ok()?, broker.port))
}

/// The addresses of a broker to which a node may connect. Link-local addresses are left out:
/// machines find their metadata there (in a cloud, even credentials), and no broker has such an
/// address.
fn permitted(found: impl Iterator<Item = SocketAddr>) -> Result<Vec<SocketAddr>, Problem> {
    let (closed, open): (Vec<_>, Vec<_>) = found.partition(|address| is_link_local(address.ip()));
    match closed.first().filter(|_| open.is_empty()) {
        Some(closed) => {
            let text = format!("its address {} is link-local, which is closed", closed.ip());
            Err(Problem::Unreachable(text))
        }
        None => Ok(open),
    }
}

/// Connects to the broker.
pub(crate) async fn open(host: &dyn Host, connection: &Connection) -> Result<Opened, Problem> {
    let address = connection.broker.clone().unwrap_or_else(|| host.broker());
    let is_local = address == LOCAL;
    let (broker, username, password) = if is_local {
        let off = "this node's own broker is not running; the setting mqtt starts it";
        let local = host.local().ok_or_else(|| Problem::Unreachable(off.to_owned()))?;
        let host = local.address.ip().to_string();
        let broker = Broker { tls: false, host, port: local.address.port() };
        (broker, Some(local.username), Some(local.password))
    } else {
        // Specs and configuration have already been checked, so this parse normally succeeds.
        let broker = Broker::parse(&address).map_err(Problem::Unreachable)?;
        (broker, connection.username.clone(), secret(host, &connection.password)?)
    };
    let ca = secret(host, &connection.ca)?;
    let certificate = secret(host, &connection.certificate)?;
    let client = certificate.zip(secret(host, &connection.key)?);
    let opening = async {
        let stream = match local_address(&broker).filter(|_| is_local) {
            // The broker limits the connections of each address. The node uses its own address, so
            // that its connections are not counted together with those of other programs on this
            // machine.
            Some(to) => {
                let socket = TcpSocket::new_v4()?;
                socket.bind(NODE_ADDRESS)?;
                socket.connect(to).await?
            }
            None => {
                let found = tokio::net::lookup_host((broker.host.as_str(), broker.port)).await?;
                TcpStream::connect(permitted(found)?.as_slice()).await?
            }
        };
        stream.set_nodelay(true)?;
        let stream: Box<dyn Stream> = if broker.tls {
            Box::new(tls::connect(&broker.host, stream, tls::Pem { ca, client }).await?)
        } else {
            Box::new(stream)
        };
        Ok(Opened { stream, username, password })
    };
    match timeout(CONNECT_PATIENCE, opening).await {
        Ok(opened) => opened,
        Err(_) => Err(Problem::Unreachable("it did not answer in time".to_owned())),
    }
}

/// Reads the broker's answer to CONNECT.
pub(crate) async fn connack(
    stream: &mut Box<dyn Stream>,
    input: &mut BytesMut,
    version: MqttVersion,
) -> Result<ConnAck, Problem> {
    loop {
        match packet::read(input, version, PACKET_EXTRA_BYTES)? {
            Read::Packet(Packet::ConnAck(ack)) if ack.code == 0 => return Ok(ack),
            Read::Packet(Packet::ConnAck(ack)) => {
                return Err(Problem::Refused(refusal(&ack, version)));
            }
            Read::More => {}
            _ => return Err(Malformed("its first packet is not CONNACK").into()),
        }
        if stream.read_buf(input).await? == 0 {
            let text = "it closed the connection instead of accepting the client".to_owned();
            return Err(Problem::Unreachable(text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_addresses_are_closed() {
        let of = |addresses: &[&str]| {
            let found: Vec<SocketAddr> =
                addresses.iter().map(|text| text.parse().unwrap()).collect();
            permitted(found.into_iter()).map(|open| open.len())
        };
        for closed in ["169.254.169.254:80", "[fe80::1]:1883", "[::ffff:169.254.169.254]:80"] {
            let Err(Problem::Unreachable(text)) = of(&[closed]) else { panic!("{closed} is open") };
            assert!(text.contains("link-local"), "{text}");
        }
        assert_eq!(of(&["169.254.1.1:1883", "192.0.2.1:1883", "127.0.0.1:1883"]).ok(), Some(2));
    }
}
