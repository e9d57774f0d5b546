//! The sockets that a node takes, named as in .socket units.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use rustix::net::{AddressFamily, SocketType, sockopt};

use super::given_error::GivenError;

const TCP: &str = "a listening TCP socket (ListenStream=ADDRESS:PORT)";
const UDP: &str = "a UDP socket (ListenDatagram=ADDRESS:PORT)";
const UNIX: &str = "a listening Unix socket with a path (ListenStream=PATH)";

/// Sockets that the service manager has bound and passed to the node. They are non-blocking.
#[derive(Debug, Default)]
pub struct Sockets {
    /// For the HTTP front.
    pub http: Option<TcpListener>,
    /// For the HTTP front over TLS.
    pub https: Option<TcpListener>,
    /// For the CoAP front.
    pub coap: Option<UdpSocket>,
    /// For the CoAP front over TCP.
    pub coap_tcp: Option<TcpListener>,
    /// For the CoAP front over DTLS.
    pub coap_dtls: Option<UdpSocket>,
    /// For the CoAP front over TLS.
    pub coap_tls: Option<TcpListener>,
    /// For the management API, with its path.
    pub management: Option<(UnixListener, PathBuf)>,
}

impl Sockets {
    pub(crate) fn add(&mut self, fd: RawFd, name: &str, socket: OwnedFd) -> Result<(), GivenError> {
        match name {
            "http" => set(&mut self.http, "http", fd, TCP, tcp(socket)),
            "https" => set(&mut self.https, "https", fd, TCP, tcp(socket)),
            "coap" => set(&mut self.coap, "coap", fd, UDP, udp(socket)),
            "coap-tcp" => set(&mut self.coap_tcp, "coap-tcp", fd, TCP, tcp(socket)),
            "coap-dtls" => set(&mut self.coap_dtls, "coap-dtls", fd, UDP, udp(socket)),
            "coap-tls" => set(&mut self.coap_tls, "coap-tls", fd, TCP, tcp(socket)),
            "management" => set(&mut self.management, "management", fd, UNIX, unix(socket)),
            _ => Err(GivenError::Name { fd, name: name.escape_debug().to_string() }),
        }
    }

    /// Refuses sockets that other machines can reach, unless `lan` allows them.
    pub fn check_reach(&self, lan: bool) -> Result<(), GivenError> {
        let address = |tcp: &Option<TcpListener>| tcp.as_ref()?.local_addr().ok();
        let all = [
            ("http", address(&self.http)),
            ("https", address(&self.https)),
            ("coap", self.coap.as_ref().and_then(|udp| udp.local_addr().ok())),
            ("coap-tcp", address(&self.coap_tcp)),
            ("coap-dtls", self.coap_dtls.as_ref().and_then(|udp| udp.local_addr().ok())),
            ("coap-tls", address(&self.coap_tls)),
        ];
        for (name, address) in all {
            if let Some(address) = address.filter(|address| !lan && !is_loopback(address)) {
                return Err(GivenError::Reach { name, address });
            }
        }
        Ok(())
    }
}

fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Stores a socket of the right type under its name, unless the name is already taken.
fn set<T>(
    place: &mut Option<T>,
    name: &'static str,
    fd: RawFd,
    wanted: &'static str,
    socket: Option<T>,
) -> Result<(), GivenError> {
    if place.is_some() {
        return Err(GivenError::Twice(name));
    }
    *place = Some(socket.ok_or(GivenError::Kind { name, fd, wanted })?);
    Ok(())
}

fn is(socket: &OwnedFd, kind: SocketType, families: &[AddressFamily]) -> bool {
    sockopt::socket_type(socket).is_ok_and(|found| found == kind)
        && sockopt::socket_domain(socket).is_ok_and(|found| families.contains(&found))
}

fn listens(socket: &OwnedFd) -> bool {
    sockopt::socket_acceptconn(socket).unwrap_or(false)
}

fn tcp(socket: OwnedFd) -> Option<TcpListener> {
    let fits = is(&socket, SocketType::STREAM, &[AddressFamily::INET, AddressFamily::INET6]);
    let listener = (fits && listens(&socket)).then(|| TcpListener::from(socket))?;
    listener.set_nonblocking(true).ok()?;
    Some(listener)
}

fn udp(socket: OwnedFd) -> Option<UdpSocket> {
    let fits = is(&socket, SocketType::DGRAM, &[AddressFamily::INET, AddressFamily::INET6]);
    let socket = fits.then(|| UdpSocket::from(socket))?;
    socket.set_nonblocking(true).ok()?;
    // An unbound socket could not receive anything, and a connected one could receive only from its
    // peer.
    let is_bound = socket.local_addr().is_ok_and(|address| address.port() != 0);
    (is_bound && socket.peer_addr().is_err()).then_some(socket)
}

fn unix(socket: OwnedFd) -> Option<(UnixListener, PathBuf)> {
    let fits = is(&socket, SocketType::STREAM, &[AddressFamily::UNIX]);
    let listener = (fits && listens(&socket)).then(|| UnixListener::from(socket))?;
    listener.set_nonblocking(true).ok()?;
    let path = listener.local_addr().ok()?.as_pathname()?.to_owned();
    Some((listener, path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;
    use std::os::unix::net::UnixDatagram;

    fn listener(address: &str) -> OwnedFd {
        TcpListener::bind(address).unwrap().into()
    }

    fn datagrams(address: &str) -> OwnedFd {
        UdpSocket::bind(address).unwrap().into()
    }

    #[test]
    fn each_name_takes_its_type_of_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let mut sockets = Sockets::default();
        sockets.add(3, "http", listener("127.0.0.1:0")).unwrap();
        sockets.add(4, "coap", datagrams("[::1]:0")).unwrap();
        sockets.add(5, "coap-tcp", listener("[::1]:0")).unwrap();
        sockets.add(6, "management", UnixListener::bind(&path).unwrap().into()).unwrap();
        assert_eq!(sockets.management.as_ref().unwrap().1, path);
        sockets.check_reach(false).unwrap();
        // The sockets are non-blocking.
        let error = sockets.http.as_ref().unwrap().accept().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn sockets_of_other_types_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let connected = UdpSocket::bind("127.0.0.1:0").unwrap();
        connected.connect("127.0.0.1:9").unwrap();
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let stream = UnixListener::bind(dir.path().join("s")).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let wrong: [(&str, OwnedFd, &str); 7] = [
            ("http", datagrams("127.0.0.1:0"), "a listening TCP socket"),
            ("http", client.into(), "a listening TCP socket"),
            ("http", stream.into(), "a listening TCP socket"),
            ("coap", listener("127.0.0.1:0"), "a UDP socket"),
            ("coap", connected.into(), "a UDP socket"),
            ("coap-tcp", file.into(), "a listening TCP socket"),
            ("management", UnixDatagram::unbound().unwrap().into(), "a listening Unix socket"),
        ];
        for (name, socket, wanted) in wrong {
            let error = Sockets::default().add(3, name, socket).unwrap_err().to_string();
            let expected = format!("\"{name}\" (descriptor 3) is not {wanted}");
            assert!(error.contains(&expected), "{error}");
        }
    }

    #[test]
    fn unknown_and_repeated_names_are_refused() {
        let mut sockets = Sockets::default();
        for name in ["", "unknown", "mote.socket", "HTTP", "coap_tcp"] {
            let error = sockets.add(7, name, listener("127.0.0.1:0")).unwrap_err().to_string();
            assert!(error.contains(&format!("\"{name}\" (descriptor 7)")), "{error}");
        }
        sockets.add(3, "http", listener("127.0.0.1:0")).unwrap();
        let error = sockets.add(4, "http", listener("127.0.0.1:0")).unwrap_err().to_string();
        assert!(error.contains("two sockets with the name \"http\""), "{error}");
    }

    #[test]
    fn only_lan_opens_sockets_to_other_machines() {
        let mut sockets = Sockets::default();
        sockets.add(3, "coap", datagrams("0.0.0.0:0")).unwrap();
        let error = sockets.check_reach(false).unwrap_err().to_string();
        assert!(error.contains("\"coap\" listens on 0.0.0.0:"), "{error}");
        sockets.check_reach(true).unwrap();
    }
}
