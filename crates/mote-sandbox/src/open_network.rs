//! The network of a function that may reach any host: every address leads to this sandbox's own
//! listeners, and the node connects to the address that the function asked for.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::step::{Failure, StepName};
use crate::sys;

/// Where programs look up the addresses of names. It is the first address that is not used for a
/// destination.
pub(crate) const NAME_SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 77, 0, 1), 53);

/// Connections that wait to be accepted; the same number as in the standard library.
const BACKLOG: libc::c_int = 128;
/// Interface number of loopback, which the kernel creates first in every network namespace.
const LOOPBACK: u32 = 1;

/// Delivers every IPv4 address to this network namespace, and opens the socket for looking up
/// names. Needs the rights of a namespace's owner, as listening below port 1024 does.
pub(crate) fn open() -> Result<OwnedFd, Failure> {
    deliver_every_address().step("deliver every address to the sandbox")?;
    let names = UdpSocket::bind(NAME_SERVER).step("open the socket for names")?;
    names.set_nonblocking(true).step("make the socket for names non-blocking")?;
    Ok(OwnedFd::from(names))
}

/// Listens on a port of every address. Listeners of single addresses on the same port have
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

/// Adds the route `local 0.0.0.0/0 dev lo` (rtnetlink(7)).
fn deliver_every_address() -> io::Result<()> {
    /// `struct nlmsghdr`, `struct rtmsg` and one attribute with the interface.
    const MESSAGE_BYTES: u32 = 16 + 12 + 8;
    let mut message = Vec::with_capacity(MESSAGE_BYTES as usize);
    message.extend_from_slice(&MESSAGE_BYTES.to_ne_bytes());
    message.extend_from_slice(&libc::RTM_NEWROUTE.to_ne_bytes());
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    message.extend_from_slice(&(flags as u16).to_ne_bytes());
    message.extend_from_slice(&[0; 8]); // sequence, sender
    // Family, lengths of destination and source, type of service, table, protocol, scope, type.
    let route = [
        libc::AF_INET as u8,
        0,
        0,
        0,
        libc::RT_TABLE_LOCAL,
        libc::RTPROT_BOOT,
        libc::RT_SCOPE_HOST,
        libc::RTN_LOCAL,
    ];
    message.extend_from_slice(&route);
    message.extend_from_slice(&[0; 4]); // flags
    message.extend_from_slice(&8_u16.to_ne_bytes());
    message.extend_from_slice(&libc::RTA_OIF.to_ne_bytes());
    message.extend_from_slice(&LOOPBACK.to_ne_bytes());
    debug_assert_eq!(message.len(), MESSAGE_BYTES as usize);

    let mut answer = [0_u8; 512];
    // SAFETY: both buffers outlive the calls, with their true lengths; the descriptor is ours.
    let length = unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        let socket = libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE);
        sys::check(libc::c_long::from(socket))?;
        let socket = OwnedFd::from_raw_fd(socket);
        let fd = socket.as_raw_fd();
        sys::check(libc::send(fd, message.as_ptr().cast(), message.len(), 0) as libc::c_long)?;
        let length = libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), 0);
        sys::check(length as libc::c_long)?;
        length as usize
    };
    // An error message follows the header; 0 is success.
    let code = answer.get(16..20).filter(|_| length >= 20).and_then(|code| code.first_chunk());
    match code.map(|code| i32::from_ne_bytes(*code)) {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(-errno)),
        None => Err(io::Error::other("the kernel's answer is too short")),
    }
}
