//! Looks up names for functions, and limits each function to its share of the threads for look-ups.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use mote_core::destination::is_local;
use mote_spec::Egress;

use crate::egress_doors::shares::Room;

/// The IPv4 addresses of a name for which a function asks, without the addresses that the function
/// may not reach.
pub(crate) async fn addresses_of(
    name: &str,
    lookups: (&Arc<Room>, u64),
) -> io::Result<Vec<Ipv4Addr>> {
    let destination = Egress::tcp(name, 0);
    let found = look_up(&destination, lookups).await?;
    let mut addresses = Vec::new();
    for address in found {
        if let IpAddr::V4(v4) = address.ip().to_canonical()
            && !is_local(address.ip())
            && !addresses.contains(&v4)
        {
            addresses.push(v4);
        }
    }
    Ok(addresses)
}

/// The addresses of a destination. A look-up keeps its place until its thread has finished, even
/// after its caller has stopped waiting.
pub(crate) async fn look_up(
    destination: &Egress,
    (lookups, function): (&Arc<Room>, u64),
) -> io::Result<Vec<SocketAddr>> {
    let host = destination.host.clone();
    let port = destination.port;
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![(ip, port).into()]);
    }
    let place = lookups.take(function).await;
    let look = move || {
        let _place = place;
        Ok((host.as_str(), port).to_socket_addrs()?.collect())
    };
    tokio::task::spawn_blocking(look).await.map_err(io::Error::other)?
}
