//! The network of a sandbox: loopback, and one socket per permitted destination.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV6, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use mote_spec::Transport;

use crate::plan::Listen;
use crate::step::{Failure, StepName};
use crate::{local_routes, open_network, sys};

/// The maximum number of destinations of one instance. The descriptors of more would not fit into
/// one message.
pub(crate) const EGRESS_MAX: usize = crate::message::FDS_MAX;

/// The loopback address that stands for host number `number`, for hosts that the manifest gives by
/// name.
pub(crate) fn egress_address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 77, 0, number.saturating_add(2))
}

/// Minimum, usual and maximum bytes of a TCP socket's buffers in a sandbox. All peers are on this
/// machine, where larger buffers do not increase the throughput.
const TCP_BUFFERS: [(&str, &str); 2] = [
    ("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 524288"),
    ("/proc/sys/net/ipv4/tcp_wmem", "4096 16384 524288"),
];

/// Limits the buffers of each socket in this network namespace. If the kernel refuses, only the
/// control group's limit applies, if there is one.
pub(crate) fn bound_buffers() {
    for (file, sizes) in TCP_BUFFERS {
        let _ = std::fs::write(file, sizes);
    }
}

/// Lets every program of this network namespace listen on ports below 1024, as servers in images
/// do. Other functions choose their port. If the kernel refuses, the server reports the error.
pub(crate) fn open_low_ports() {
    let _ = std::fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
}

/// Brings `lo` up in this network namespace. The kernel then gives it the address 127.0.0.1/8.
pub(crate) fn bring_up() -> io::Result<()> {
    // SAFETY: the request struct is zeroed, its name is shorter than the field, and it lives
    // through both calls.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        sys::check(libc::c_long::from(socket))?;
        let socket = OwnedFd::from_raw_fd(socket);
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        sys::check(libc::c_long::from(libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS as _,
            &raw mut request,
        )))?;
    }
    Ok(())
}

/// Opens a socket at each of these addresses, which then lead to this sandbox. For the unspecified
/// address, the socket listens on its port at every address. In that case, the last descriptor is
/// the socket for names (see `open_network.rs`). Runs with privileges, so ports below 1024 work. If
/// a destination is named twice, the second one gets another descriptor of the same socket.
pub(crate) fn egress_listeners(sockets: &[Listen]) -> Result<Vec<OwnedFd>, Failure> {
    let is_open = sockets.iter().any(Listen::is_for_any_host);
    let mut opened: Vec<OwnedFd> = Vec::with_capacity(sockets.len() + usize::from(is_open));
    for (at, socket) in sockets.iter().enumerate() {
        let address = socket.address;
        if let Some(first) = sockets[..at].iter().position(|other| other == socket) {
            let again = opened[first].try_clone().step("repeat an egress listener")?;
            opened.push(again);
            continue;
        }
        if !address.ip().is_loopback() && !address.ip().is_unspecified() {
            if address.is_ipv6() {
                // New namespaces inherit this switch from the host. If the switch cannot be set,
                // adding the route fails too and reports the error.
                let _ = std::fs::write("/proc/sys/net/ipv6/conf/lo/disable_ipv6", "0");
            }
            local_routes::deliver(Some(address.ip()))
                .step(format_args!("deliver {} to the sandbox", address.ip()))?;
        }
        let bound = match (address, socket.transport) {
            (SocketAddr::V6(v6), transport) => listen_v6(v6, transport),
            (SocketAddr::V4(v4), Transport::Tcp) if is_open => {
                open_network::listen(v4).map(OwnedFd::from)
            }
            (SocketAddr::V4(v4), Transport::Tcp) => TcpListener::bind(v4).map(OwnedFd::from),
            (SocketAddr::V4(v4), Transport::Udp) => UdpSocket::bind(v4).map(OwnedFd::from),
        };
        let bound = bound.step(format_args!("listen for egress on {address}"))?;
        sys::set_nonblocking(bound.as_fd()).step("make an egress listener non-blocking")?;
        opened.push(bound);
    }
    if is_open {
        opened.push(open_network::open()?);
    }
    Ok(opened)
}

/// Listens at an address that leads here although no interface has it. IPv4 permits this wherever
/// there is a route, but IPv6 only with the option `IPV6_FREEBIND`.
fn listen_v6(address: SocketAddrV6, transport: Transport) -> io::Result<OwnedFd> {
    /// Linux's `IPV6_FREEBIND`.
    const FREE_BIND: libc::c_int = 78;
    let name = libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as libc::sa_family_t,
        sin6_port: address.port().to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
        sin6_scope_id: 0,
    };
    let yes: libc::c_int = 1;
    let kind = match transport {
        Transport::Tcp => libc::SOCK_STREAM,
        Transport::Udp => libc::SOCK_DGRAM,
    };
    // SAFETY: the option and the name outlive the calls, with their true lengths; the descriptor is
    // ours.
    unsafe {
        let socket = libc::socket(libc::AF_INET6, kind | libc::SOCK_CLOEXEC, 0);
        sys::check(libc::c_long::from(socket))?;
        let socket = OwnedFd::from_raw_fd(socket);
        let fd = socket.as_raw_fd();
        let length = size_of_val(&yes) as libc::socklen_t;
        let option = (&raw const yes).cast();
        let set = libc::setsockopt(fd, libc::IPPROTO_IPV6, FREE_BIND, option, length);
        sys::check(libc::c_long::from(set))?;
        let length = size_of_val(&name) as libc::socklen_t;
        sys::check(libc::c_long::from(libc::bind(fd, (&raw const name).cast(), length)))?;
        if transport == Transport::Tcp {
            sys::check(libc::c_long::from(libc::listen(fd, open_network::BACKLOG)))?;
        }
        Ok(socket)
    }
}
