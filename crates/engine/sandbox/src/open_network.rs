//! The network of a function that may reach any host. Every address leads to the sandbox's own
//! listeners, and the node then connects to the address that the function asked for.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::step::{Failure, StepName};
use crate::{local_routes, sys};

/// The address at which programs resolve names. It is the first address that does not stand for a
/// destination.
pub(crate) const NAME_SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 77, 0, 1), 53);

/// The maximum number of connections that wait to be accepted. The standard library uses the same
/// number.
pub(crate) const BACKLOG: libc::c_int = 128;

/// Delivers packets for every IPv4 address to this network namespace, and opens the socket for
/// looking up names. Needs the rights of the namespace's owner, as listening below port 1024 does.
pub(crate) fn open() -> Result<OwnedFd, Failure> {
    local_routes::deliver(None).step("deliver every address to the sandbox")?;
    let names = UdpSocket::bind(NAME_SERVER).step("open the socket for names")?;
    names.set_nonblocking(true).step("make the socket for names non-blocking")?;
    Ok(OwnedFd::from(names))
}

/// Listens on a port of every address. On the same port, listeners for single addresses take
/// precedence.
pub(crate) fn listen(address: SocketAddrV4) -> io::Result<TcpListener> {
    let name = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    };
    let yes: libc::c_int = 1;
    // SAFETY: the option and the name outlive the calls, with their true lengths; the descriptor is
    // ours.
    unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        let socket = libc::socket(libc::AF_INET, kind, 0);
        sys::check(libc::c_long::from(socket))?;
        let socket = OwnedFd::from_raw_fd(socket);
        let fd = socket.as_raw_fd();
        let set = libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_REUSEPORT,
            (&raw const yes).cast(),
            size_of_val(&yes) as libc::socklen_t,
        );
        sys::check(libc::c_long::from(set))?;
        let length = size_of_val(&name) as libc::socklen_t;
        sys::check(libc::c_long::from(libc::bind(fd, (&raw const name).cast(), length)))?;
        sys::check(libc::c_long::from(libc::listen(fd, BACKLOG)))?;
        Ok(TcpListener::from(socket))
    }
}
