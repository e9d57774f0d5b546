//! Routes that deliver packets for other hosts' addresses to the sandbox itself, where its
//! listeners are.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::sys;

/// Interface number of loopback. The kernel creates loopback first in every network namespace.
const LOOPBACK: u32 = 1;
/// Bytes of `struct nlmsghdr` and `struct rtmsg`.
const HEADS_BYTES: usize = 16 + 12;

/// Adds the route `local ADDRESS dev lo`, or `local 0.0.0.0/0 dev lo` if there is no address
/// (rtnetlink(7)). Needs the rights of the namespace's owner. An existing route is not an error.
pub(crate) fn deliver(address: Option<IpAddr>) -> io::Result<()> {
    let (family, octets) = match address {
        None => (libc::AF_INET, Vec::new()),
        Some(IpAddr::V4(v4)) => (libc::AF_INET, v4.octets().to_vec()),
        Some(IpAddr::V6(v6)) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    let mut message = vec![0; HEADS_BYTES];
    let attribute = |message: &mut Vec<u8>, kind: u16, value: &[u8]| {
        message.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(value);
    };
    if !octets.is_empty() {
        attribute(&mut message, libc::RTA_DST, &octets);
    }
    attribute(&mut message, libc::RTA_OIF, &LOOPBACK.to_ne_bytes());

    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message[4..6].copy_from_slice(&libc::RTM_NEWROUTE.to_ne_bytes());
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    message[6..8].copy_from_slice(&(flags as u16).to_ne_bytes());
    // Family, length of destination, length of source, type of service, table, protocol, scope,
    // type.
    let route = [
        family as u8,
        octets.len() as u8 * 8,
        0,
        0,
        libc::RT_TABLE_LOCAL,
        libc::RTPROT_BOOT,
        libc::RT_SCOPE_HOST,
        libc::RTN_LOCAL,
    ];
    message[16..24].copy_from_slice(&route);

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
    // An error message follows the header. Its code 0 means success.
    let code = answer.get(16..20).filter(|_| length >= 20).and_then(|code| code.first_chunk());
    match code.map(|code| -i32::from_ne_bytes(*code)) {
        Some(0 | libc::EEXIST) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::Error::other("the kernel's answer is too short")),
    }
}
