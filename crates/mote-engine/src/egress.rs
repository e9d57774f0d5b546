//! Destinations a function may reach: each is a listener inside its sandbox, served from here.
//!
//! The sandbox has no route to anywhere; a connection to one of its listeners is accepted on the
//! node, which connects to the one destination the manifest names and copies bytes both ways. Names
//! are resolved per connection, and what they resolve to is checked, not the name.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use mote_core::spec::Egress;
use tokio::net::{TcpListener, TcpStream};

use crate::logs::LogLevel;
use crate::revision::Revision;

/// Time to connect outward.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections per destination and instance at once.
const CONNECTIONS_MAX: usize = 64;

/// Serves the listeners until the instance (the other end of each) is gone.
pub(crate) fn serve(revision: &Arc<Revision>, instance: u64, listeners: Vec<OwnedFd>) {
    for (listener, destination) in listeners.into_iter().zip(revision.spec.egress.iter().cloned()) {
        let revision = revision.clone();
        revision.shared.runtime.clone().spawn(async move {
            if let Err(error) = accept(&revision, instance, listener, &destination).await {
                let text = format!("egress {}:{}: {error}", destination.host, destination.port);
                revision.log.platform(LogLevel::Warn, revision.number, instance, &text);
            }
        });
    }
}

async fn accept(
    revision: &Arc<Revision>,
    instance: u64,
    listener: OwnedFd,
    destination: &Egress,
) -> std::io::Result<()> {
    let listener = std::net::TcpListener::from(listener);
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let places = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return Ok(()) };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // The instance is gone when it is no longer in the pool.
            () = gone(revision, instance) => return Ok(()),
        };
        let (mut inside, _) = accepted?;
        let destination = destination.clone();
        let revision = revision.clone();
        tokio::spawn(async move {
            let _place = place;
            match connect(&destination).await {
                Ok(mut outside) => {
                    // Pieces are passed on as they come; to hold one back until the piece before
                    // is acknowledged costs a caller 40 ms per request.
                    let _ = inside.set_nodelay(true);
                    let _ = outside.set_nodelay(true);
                    let _ = tokio::io::copy_bidirectional(&mut inside, &mut outside).await;
                }
                Err(error) => {
                    let text = format!("egress {}:{}: {error}", destination.host, destination.port);
                    revision.log.platform(LogLevel::Warn, revision.number, instance, &text);
                }
            }
        });
    }
}

/// Resolves when the instance has ended. Looked at rarely: a listener without its instance costs
/// one descriptor and nobody can connect to it.
async fn gone(revision: &Revision, instance: u64) {
    let mut pace = tokio::time::interval(Duration::from_secs(5));
    pace.tick().await;
    loop {
        pace.tick().await;
        let pool = revision.pool.lock();
        if pool.starting == 0 && !pool.workers.iter().any(|(_, worker)| worker.instance == instance)
        {
            return;
        }
    }
}

async fn connect(destination: &Egress) -> std::io::Result<TcpStream> {
    let connecting = async {
        let mut refused = None;
        for address in
            tokio::net::lookup_host((destination.host.as_str(), destination.port)).await?
        {
            if !is_allowed(&destination.host, address) {
                refused = Some(address);
                continue;
            }
            if let Ok(stream) = TcpStream::connect(address).await {
                return Ok(stream);
            }
        }
        Err(std::io::Error::other(match refused {
            Some(address) => {
                format!("{} is not allowed: name an address of that kind literally", address.ip())
            }
            None => "no address answered".to_owned(),
        }))
    };
    tokio::time::timeout(CONNECT_TIMEOUT, connecting)
        .await
        .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))?
}

/// A name must not lead to the node itself or to link-local addresses (cloud metadata); who wants
/// one of those names it literally.
fn is_allowed(host: &str, address: SocketAddr) -> bool {
    if host.parse::<IpAddr>().is_ok() || host == "localhost" {
        return !is_link_local(address.ip());
    }
    let ip = address.ip();
    !(ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || is_link_local(ip))
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => v4.is_link_local(),
            None => (v6.segments()[0] & 0xffc0) == 0xfe80,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_never_lead_to_the_node_or_link_local() {
        let check = |host: &str, address: &str, allowed: bool| {
            let address = SocketAddr::new(address.parse().unwrap(), 80);
            assert_eq!(is_allowed(host, address), allowed, "{host} -> {address}");
        };
        check("influx.local", "192.168.1.5", true);
        check("rebind.example", "127.0.0.1", false);
        check("rebind.example", "::1", false);
        check("rebind.example", "169.254.169.254", false);
        check("rebind.example", "::ffff:169.254.169.254", false);
        check("rebind.example", "fe80::1", false);
        check("rebind.example", "0.0.0.0", false);
        check("127.0.0.1", "127.0.0.1", true);
        check("localhost", "127.0.0.1", true);
        check("169.254.169.254", "169.254.169.254", false);
    }
}
