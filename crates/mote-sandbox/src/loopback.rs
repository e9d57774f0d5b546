//! The network of a sandbox: loopback, and one listener per permitted destination.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::step::{Failure, StepName};
use crate::{open_network, sys};

/// Destinations of one instance at most; more would not fit into one message with descriptors.
pub(crate) const EGRESS_MAX: usize = crate::message::FDS_MAX;

/// The loopback address on which host number `number` is offered.
pub(crate) fn egress_address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 77, 0, number.saturating_add(2))
}

/// Minimum, usual and maximum bytes of the buffers of a TCP socket in a sandbox. All peers are on
/// this machine, where larger buffers carry no more.
const TCP_BUFFERS: [(&str, &str); 2] = [
    ("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 524288"),
    ("/proc/sys/net/ipv4/tcp_wmem", "4096 16384 524288"),
];

/// Bounds the buffers of each socket of this network namespace. If the kernel refuses, only the
/// control group's limit remains, where there is one.
pub(crate) fn bound_buffers() {
    for (file, sizes) in TCP_BUFFERS {
        let _ = std::fs::write(file, sizes);
    }
}

/// Brings `lo` up in this network namespace; the kernel then gives it 127.0.0.1/8.
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

/// Listens at each of these loopback addresses. Where one is the unspecified address, it listens at
/// that port of every address, and the last descriptor is the socket for names (see
/// `open_network.rs`). Runs with privileges, so ports below 1024 work. A destination that is named
/// twice gets a second descriptor of the same listener.
pub(crate) fn egress_listeners(destinations: &[SocketAddrV4]) -> Result<Vec<OwnedFd>, Failure> {
    let is_open = destinations.iter().any(|address| address.ip().is_unspecified());
    let mut listeners: Vec<OwnedFd> = Vec::with_capacity(destinations.len() + usize::from(is_open));
    for (at, destination) in destinations.iter().enumerate() {
        if let Some(first) = destinations[..at].iter().position(|other| other == destination) {
            let again = listeners[first].try_clone().step("repeat an egress listener")?;
            listeners.push(again);
            continue;
        }
        let bound = if is_open {
            open_network::listen(*destination)
        } else {
            TcpListener::bind(destination)
        };
        let listener = bound.step(format_args!("listen for egress on {destination}"))?;
        listener.set_nonblocking(true).step("make an egress listener non-blocking")?;
        listeners.push(OwnedFd::from(listener));
    }
    if is_open {
        listeners.push(open_network::open()?);
    }
    Ok(listeners)
}
