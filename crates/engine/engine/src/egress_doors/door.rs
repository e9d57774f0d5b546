//! The destinations that a function may reach. Each destination is a listener inside the function's
//! sandbox, and this module serves the listener.
//!
//! The sandbox has no route to any other host. The node accepts a connection to one of the
//! listeners, connects to the one destination that the manifest names, and copies bytes in both
//! directions. The node resolves the name again for each connection, and checks the resolved
//! address, not the name.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use mote_core::destination::is_local;
use mote_spec::addresses::is_link_local;
use mote_spec::{
    ANY_HOST, Egress, FunctionSpec, OPENFAAS_GATEWAY_PORT, OPENFAAS_GATEWAYS, OWN_FRONT,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::egress_doors::lookups::look_up;
use crate::egress_doors::shares::{CONNECTIONS_MAX, Place, Rooms};
use crate::egress_doors::{EgressBytes, Instance, relay};

/// How long connecting to a destination may take.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the node may go on carrying bytes that an instance sent before it ended.
const LAST_WORDS: Duration = Duration::from_secs(30);
/// How long accepting pauses when the node has no descriptors or memory left. Meanwhile,
/// connections wait in the listener.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// One listener of an instance, or one of its sockets for datagrams (`datagrams.rs`).
pub struct Door<I> {
    pub inside: Arc<I>,
    /// The destination of the connections.
    pub to: Egress,
    /// Counts the bytes that are carried.
    pub bytes: Arc<EgressBytes>,
}

impl<I: Instance> Door<I> {
    /// Accepts connections until the instance has ended.
    pub async fn accept(self: Arc<Self>, listener: OwnedFd, mut closed: watch::Receiver<()>) {
        let listener = match adopt(listener) {
            Ok(listener) => listener,
            Err(error) => return self.warn(&error),
        };
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut has_warned = false;
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let accepted = tokio::select! {
                // Connections that arrived before the end are still accepted.
                biased;
                accepted = listener.accept() => accepted,
                _ = closed.changed() => return,
            };
            match accepted {
                Ok((inside, _)) => {
                    let shares = match self.try_share() {
                        Some(shares) => shares,
                        None => {
                            if !std::mem::replace(&mut has_warned, true) {
                                self.warn(
                                    &"too many connections: further ones wait until others end",
                                );
                            }
                            tokio::select! {
                                shares = self.share() => shares,
                                _ = closed.changed() => return,
                            }
                        }
                    };
                    let door = self.clone();
                    let closed = closed.clone();
                    tokio::spawn(async move {
                        let _places = (place, shares);
                        door.pass(inside, closed).await;
                    });
                }
                Err(error) if is_shortage(&error) => tokio::time::sleep(SHORTAGE_PAUSE).await,
                // The connection ended before it was accepted.
                Err(_) => {}
            }
        }
    }

    pub(crate) fn rooms(&self) -> &Rooms {
        self.inside.shares().get()
    }

    /// Takes a place for one connection from the shares of the instance and of the function, if
    /// both shares have a free place.
    pub(crate) fn try_share(&self) -> Option<[Place; 2]> {
        let instance = self.rooms().instances.try_take(self.inside.instance())?;
        Some([instance, self.rooms().functions.try_take(self.inside.function())?])
    }

    /// Like [`Door::try_share`], but waits until there is a place.
    async fn share(&self) -> [Place; 2] {
        let instance = self.rooms().instances.take(self.inside.instance()).await;
        [instance, self.rooms().functions.take(self.inside.function()).await]
    }

    async fn pass(&self, inside: TcpStream, mut closed: watch::Receiver<()>) {
        let connected = if self.to.host == ANY_HOST {
            // The sandbox delivers all addresses to this listener, so the local address of the
            // connection is the destination that the function asked for.
            match inside.local_addr() {
                Ok(wanted) => self.connect_to(wanted).await,
                Err(error) => Err(error),
            }
        } else if self.inside.is_confined() {
            self.connect().await
        } else if let Some(own) = self.inside.own_api(&self.to) {
            TcpStream::connect(own).await
        } else if is_gateway(&self.to) {
            Err(io::Error::other("the node's OpenFaaS API is off: start it with --openfaas on"))
        } else if self.to.host == OWN_FRONT.0 {
            let (host, port) = OWN_FRONT;
            Err(io::Error::other(format!(
                "{host} is the node's HTTP front, which answers at port {port} unless it is off \
                 (--http off)"
            )))
        } else {
            self.connect().await
        };
        let outside = match connected {
            Ok(outside) => outside,
            Err(error) => {
                relay::reset(inside);
                return self.warn(&error);
            }
        };
        for leg in [&inside, &outside] {
            // Pieces are passed on as they arrive. If a piece had to wait until the previous one is
            // acknowledged, a caller would lose 40 ms per request.
            let _ = leg.set_nodelay(true);
        }
        tokio::select! {
            () = relay::carry(inside, outside, &self.bytes) => {}
            () = async {
                let _ = closed.changed().await;
                tokio::time::sleep(LAST_WORDS).await;
            } => {}
        }
    }

    /// The addresses of the named destination that this function may reach. There is at least one.
    pub(crate) async fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let lookups = (&self.rooms().lookups, self.inside.function());
        let mut permitted = Vec::new();
        let mut refusal = None;
        for address in look_up(&self.to, lookups).await? {
            match self.refusal(address) {
                Some(error) => refusal = Some(error),
                None => permitted.push(address),
            }
        }
        if permitted.is_empty() {
            let none = || io::Error::other("the name has no address");
            return Err(refusal.unwrap_or_else(none));
        }
        Ok(permitted)
    }

    /// Why this function may not reach an address of its destination. A function of a namespace
    /// reaches no address of this machine, even if its manifest names one.
    fn refusal(&self, address: SocketAddr) -> Option<io::Error> {
        if self.inside.is_confined() {
            let is_here = is_of_this_machine(address).unwrap_or(true);
            return is_here.then(|| of_this_machine(address.ip()));
        }
        (!is_allowed(&self.to.host, address.ip())).then(|| refused(address.ip()))
    }

    /// Connects to the named destination.
    async fn connect(&self) -> io::Result<TcpStream> {
        let connecting = async {
            for address in self.addresses().await? {
                if let Ok(stream) = TcpStream::connect(address).await {
                    return Ok(stream);
                }
            }
            Err(io::Error::other("no address answered"))
        };
        within(CONNECT_TIMEOUT, connecting).await
    }

    /// Connects to an address that the function itself chose.
    async fn connect_to(&self, wanted: SocketAddr) -> io::Result<TcpStream> {
        if is_local(wanted.ip()) {
            return Err(refused(wanted.ip()));
        }
        if self.inside.is_confined() && is_of_this_machine(wanted).unwrap_or(true) {
            return Err(of_this_machine(wanted.ip()));
        }
        if self.inside.is_closed(wanted.ip()) {
            return Err(io::Error::other(format!(
                "{} is in a network that * does not open here: name the host in [allow] net",
                wanted.ip()
            )));
        }
        within(CONNECT_TIMEOUT, TcpStream::connect(wanted)).await
    }

    pub(crate) fn warn(&self, error: &dyn std::fmt::Display) {
        self.inside.warn(&format!("egress {}: {error}", self.to));
    }
}

/// The result of an attempt, or an error if the attempt takes longer than this time.
pub(crate) async fn within<T>(
    patience: Duration,
    attempt: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    tokio::time::timeout(patience, attempt)
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Converts the listener of a sandbox into one of this runtime.
pub fn adopt(listener: OwnedFd) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::from(listener);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Whether accepting failed because of the node's state rather than because of the connection.
fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

/// A hint for an error that a function reports, if the function may have tried to reach a
/// destination that is not allowed. To the function, this looks like a name that cannot be looked
/// up.
pub fn hint(spec: &FunctionSpec, error: &str) -> Option<&'static str> {
    let signs = [
        "Temporary failure in name resolution",
        "Name or service not known",
        "getaddrinfo EAI_AGAIN",
        "getaddrinfo ENOTFOUND",
        "ENETUNREACH",
        "Network is unreachable",
        "network is unreachable",
        "on [::1]:53",
    ];
    let unreached = !spec.reaches_any_host() && signs.iter().any(|sign| error.contains(sign));
    unreached.then_some(
        "the function can reach only the destinations in its manifest: add this one to \
         [allow] net as HOST:PORT (udp://HOST:PORT for UDP), or \"*\" for any host over TCP",
    )
}

/// Whether a destination is the gateway, under the name that functions of OpenFaaS use for it.
fn is_gateway(to: &Egress) -> bool {
    to.port == OPENFAAS_GATEWAY_PORT && OPENFAAS_GATEWAYS.contains(&to.host.as_str())
}

fn refused(address: IpAddr) -> io::Error {
    io::Error::other(if is_link_local(address) {
        format!("{address} is a link-local address, which functions cannot reach")
    } else {
        format!(
            "{address} is the node itself: functions can reach it only if [allow] net names \
             this address"
        )
    })
}

/// Whether an address belongs to this machine or is link-local. To find out, a socket is connected
/// to the address without sending a packet: for an address of this machine, the kernel chooses the
/// same address as the source. The check fails for an address without a route, but no connection
/// can be made to such an address either.
pub fn is_of_this_machine(address: SocketAddr) -> io::Result<bool> {
    if is_local(address.ip()) {
        return Ok(true);
    }
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = std::net::UdpSocket::bind(any)?;
    // Port 0 cannot be connected to.
    socket.connect((address.ip(), address.port().max(1)))?;
    Ok(socket.local_addr()?.ip().to_canonical() == address.ip().to_canonical())
}

fn of_this_machine(address: IpAddr) -> io::Error {
    io::Error::other(format!(
        "{address} belongs to the machine of the node, which functions of a namespace cannot reach"
    ))
}

/// Whether a destination may lead to this address. A name must not lead to the node itself or to
/// its link. A manifest that needs such an address must contain the address itself. Link-local
/// addresses (cloud metadata) and multicast groups are refused even then.
fn is_allowed(host: &str, ip: IpAddr) -> bool {
    if host.parse::<IpAddr>().is_ok() || host == "localhost" {
        return !is_link_local(ip) && !ip.to_canonical().is_multicast();
    }
    !is_local(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_never_lead_to_the_node_or_link_local() {
        let check = |host: &str, address: &str, allowed: bool| {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(is_allowed(host, address), allowed, "{host} -> {address}");
        };
        check("influx.local", "192.168.1.5", true);
        check("rebind.example", "127.0.0.1", false);
        check("rebind.example", "::1", false);
        check("rebind.example", "169.254.169.254", false);
        check("rebind.example", "::ffff:169.254.169.254", false);
        check("rebind.example", "fe80::1", false);
        check("rebind.example", "0.0.0.0", false);
        check("rebind.example", "::ffff:127.0.0.1", false);
        check("rebind.example", "::ffff:0.0.0.0", false);
        check("rebind.example", "64:ff9b::7f00:1", false);
        check("rebind.example", "2002:7f00:1::", false);
        check("::ffff:127.0.0.1", "::ffff:127.0.0.1", true);
        check("::ffff:169.254.169.254", "::ffff:169.254.169.254", false);
        check("127.0.0.1", "127.0.0.1", true);
        check("localhost", "127.0.0.1", true);
        check("169.254.169.254", "169.254.169.254", false);
        check("224.0.1.187", "224.0.1.187", false);
        check("ff02::fd", "ff02::fd", false);
    }

    #[test]
    fn addresses_of_this_machine_are_recognised() {
        for text in ["127.0.0.1:1", "127.9.9.9:80", "[::1]:80", "0.0.0.0:80", "169.254.169.254:80"]
        {
            assert!(is_of_this_machine(text.parse().unwrap()).unwrap(), "{text}");
        }
        for text in ["[::ffff:127.0.0.1]:80", "[64:ff9b::7f00:1]:80", "[fe80::1]:80"] {
            assert!(is_of_this_machine(text.parse().unwrap()).unwrap(), "{text}");
        }
        // The address of an interface, if this machine has a route to anywhere.
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        if socket.connect("192.0.2.1:9").is_ok() {
            let own = socket.local_addr().unwrap().ip();
            assert!(is_of_this_machine((own, 6683).into()).unwrap(), "{own}");
            assert!(!is_of_this_machine("192.0.2.1:9".parse().unwrap()).unwrap());
        }
    }

    #[test]
    fn errors_of_destinations_that_are_not_allowed_come_with_the_cure() {
        let name = mote_spec::FunctionName::new("f").unwrap();
        let mut spec = FunctionSpec::with_defaults(name, mote_spec::Runtime::Node, "f.mjs");
        let error = "TypeError: fetch failed\n  cause: getaddrinfo EAI_AGAIN api.example";
        assert!(hint(&spec, error).is_some_and(|hint| hint.contains("[allow] net")));
        assert_eq!(hint(&spec, "ValueError: 3"), None);
        spec.egress.push(Egress::tcp(ANY_HOST, 0));
        assert_eq!(hint(&spec, error), None);
    }
}
