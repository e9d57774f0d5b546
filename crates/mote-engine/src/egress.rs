//! Destinations a function may reach: each is a listener inside its sandbox, served from here.
//!
//! The sandbox has no route to anywhere; a connection to one of its listeners is accepted on the
//! node, which connects to the one destination the manifest names and copies bytes both ways. Names
//! are resolved per connection, and what they resolve to is checked, not the name.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use mote_core::spec::Egress;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::logs::LogLevel;
use crate::relay;
use crate::revision::Revision;

/// Time to connect outward.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections per destination and instance at once.
const CONNECTIONS_MAX: usize = 64;
/// What an instance sent before it ended may still go out for so long.
const LAST_WORDS: Duration = Duration::from_secs(30);
/// Pause when the node is out of descriptors or memory; connections wait in the listener meanwhile.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// The listeners of an instance. Dropping it closes them.
pub(crate) struct Doors(#[expect(dead_code, reason = "its end is what counts")] watch::Sender<()>);

/// Serves the listeners of an instance until what is returned is dropped, connections a little
/// longer.
pub(crate) fn serve(revision: &Arc<Revision>, instance: u64, listeners: Vec<OwnedFd>) -> Doors {
    let (open, closed) = watch::channel(());
    for (listener, to) in listeners.into_iter().zip(revision.spec.egress.iter().cloned()) {
        let shared = &revision.shared;
        let door = Arc::new(Door { revision: revision.clone(), instance, to });
        shared.carrier.runtime(&shared.runtime).spawn(door.accept(listener, closed.clone()));
    }
    Doors(open)
}

/// One way out of one instance.
struct Door {
    revision: Arc<Revision>,
    instance: u64,
    to: Egress,
}

impl Door {
    async fn accept(self: Arc<Self>, listener: OwnedFd, mut closed: watch::Receiver<()>) {
        let listener = match adopt(listener) {
            Ok(listener) => listener,
            Err(error) => return self.warn(&error),
        };
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let accepted = tokio::select! {
                // Who came before the end is let through.
                biased;
                accepted = listener.accept() => accepted,
                _ = closed.changed() => return,
            };
            match accepted {
                Ok((inside, _)) => {
                    let (door, closed) = (self.clone(), closed.clone());
                    tokio::spawn(async move {
                        let _place = place;
                        door.pass(inside, closed).await;
                    });
                }
                Err(error) if is_shortage(&error) => tokio::time::sleep(SHORTAGE_PAUSE).await,
                // A connection that ended before it was accepted.
                Err(_) => {}
            }
        }
    }

    async fn pass(&self, inside: TcpStream, mut closed: watch::Receiver<()>) {
        let outside = match connect(&self.to).await {
            Ok(outside) => outside,
            Err(error) => {
                relay::reset(inside);
                return self.warn(&error);
            }
        };
        for leg in [&inside, &outside] {
            // Pieces are passed on as they come; to hold one back until the piece before is
            // acknowledged costs a caller 40 ms per request.
            let _ = leg.set_nodelay(true);
        }
        tokio::select! {
            () = relay::carry(inside, outside) => {}
            () = async {
                let _ = closed.changed().await;
                tokio::time::sleep(LAST_WORDS).await;
            } => {}
        }
    }

    fn warn(&self, error: &io::Error) {
        let text = format!("egress {}:{}: {error}", self.to.host, self.to.port);
        self.revision.log.platform(LogLevel::Warn, self.revision.number, self.instance, &text);
    }
}

fn adopt(listener: OwnedFd) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::from(listener);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Whether the node, and not the connection, is why nothing could be accepted.
fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
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
