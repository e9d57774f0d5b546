//! The socket options of a connection between cells.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// Longest time for which sent bytes may stay unacknowledged.
const UNACKNOWLEDGED_MS: u32 = 1_500;
/// For a connection without invocations: how long it may be silent before the kernel probes it.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Sets the options. If the kernel refuses an option, a lost connection is only noticed later.
pub(crate) fn prepare(socket: impl AsFd) {
    let socket = socket.as_fd();
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_tcp_user_timeout(socket, UNACKNOWLEDGED_MS);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, KEEPALIVE);
    let _ = sockopt::set_tcp_keepintvl(socket, Duration::from_secs(1));
    let _ = sockopt::set_tcp_keepcnt(socket, 2);
}
