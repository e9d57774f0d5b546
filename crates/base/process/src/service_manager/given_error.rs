//! The reasons why the sockets and settings from the service manager cannot be used.

use std::os::fd::RawFd;

/// The maximum number of descriptors that are examined. A node needs only one of each kind.
pub(super) const FDS_MAX: RawFd = 64;
/// The names that sockets may have, for messages.
const NAMES: &str = "http, https, coap, coap-tcp, coap-dtls, coap-tls and management";

/// Why the sockets or settings from the service manager cannot be used. Another start would fail in
/// the same way.
#[derive(Debug, thiserror::Error)]
pub enum GivenError {
    /// The number of descriptors is not a number, or too large.
    #[error("LISTEN_FDS is \"{0}\"; it must be a number of sockets, {max} at most", max = FDS_MAX)]
    Count(String),
    /// A descriptor is not open.
    #[error("LISTEN_FDS names descriptor {0}, which is not open")]
    Closed(RawFd),
    /// A socket has a name that the node does not know.
    #[error(
        "the service manager gives a socket with the name \"{name}\" (descriptor {fd}); the names are {known}: set FileDescriptorName= in its .socket unit",
        known = NAMES
    )]
    Name { fd: RawFd, name: String },
    /// Two sockets have the same name.
    #[error(
        "the service manager gives two sockets with the name \"{0}\"; the node serves one: remove a Listen line or a .socket unit"
    )]
    Twice(&'static str),
    /// A socket has the wrong type.
    #[error("the service manager's socket \"{name}\" (descriptor {fd}) is not {wanted}")]
    Kind {
        name: &'static str,
        fd: RawFd,
        /// The type that the socket should have, and how a .socket unit requests it.
        wanted: &'static str,
    },
    /// A socket is reachable from other machines, but the configuration does not allow that.
    #[error(
        "the service manager's socket \"{name}\" listens on {address}, which other machines can reach: set lan = true in the configuration, or a loopback address in the .socket unit"
    )]
    Reach { name: &'static str, address: std::net::SocketAddr },
    /// The address for notifications cannot be used.
    #[error("NOTIFY_SOCKET is \"{0}\"; it must be the path of a Unix socket, or a name after @")]
    NotifySocket(String),
    /// The timeout of the watchdog is not a number.
    #[error("WATCHDOG_USEC is \"{0}\"; it must be a number of microseconds")]
    Watchdog(String),
    /// The process already has threads.
    #[error("the environment cannot be changed: {0}")]
    Threads(String),
}
