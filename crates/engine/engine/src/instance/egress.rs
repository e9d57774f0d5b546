//! The destinations that an instance may reach: listeners inside its sandbox, served by
//! [`crate::egress_doors`].

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::egress_doors::{Door, EgressShares, Instance, Names};
use mote_spec::{Egress, FunctionName, OWN_FRONT, SERVICES_PORT, Transport};
use tokio::sync::watch;

use crate::revision::Revision;
use crate::revision::logs::LogLevel;

/// The listeners of an instance. Dropping this value closes them.
pub(crate) struct Doors(#[expect(dead_code, reason = "its end is what counts")] watch::Sender<()>);

/// Serves the listeners of an instance until the returned value is dropped. Open connections may
/// last a little longer.
pub(crate) fn serve(revision: &Arc<Revision>, instance: u64, listeners: Vec<OwnedFd>) -> Doors {
    let (open, closed) = watch::channel(());
    let shared = &revision.shared;
    let runtime = || shared.carrier.runtime(&shared.runtime);
    let doors = revision.spec.doors();
    let mut listeners = listeners.into_iter();
    let inside = Arc::new(Inside { revision: revision.clone(), instance });
    for to in doors {
        let Some(listener) = listeners.next() else { break };
        if revision.spec.has_services_door() && to.port == SERVICES_PORT && to.host == OWN_FRONT.0 {
            if let Ok(listener) = crate::egress_doors::adopt(listener) {
                crate::instance::services_door::serve(revision, instance, listener, closed.clone());
            }
            continue;
        }
        let bytes = revision.metrics.egress.of(&to);
        let door = Arc::new(Door { inside: inside.clone(), to, bytes });
        let closed = closed.clone();
        match door.to.transport {
            Transport::Tcp => runtime().spawn(door.accept(listener, closed)),
            Transport::Udp => runtime().spawn(door.carry_datagrams(listener, closed)),
        };
    }
    // If the function may reach any host, the last one is the socket for looking up names.
    if let Some(socket) = listeners.next() {
        runtime().spawn(Names(inside).serve(socket, closed));
    }
    Doors(open)
}

/// The view of an instance that its connections have.
struct Inside {
    revision: Arc<Revision>,
    instance: u64,
}

impl Instance for Inside {
    fn function(&self) -> u64 {
        self.revision.who.function
    }

    fn instance(&self) -> u64 {
        self.instance
    }

    fn name(&self) -> &FunctionName {
        &self.revision.spec.name
    }

    fn is_confined(&self) -> bool {
        self.revision.is_confined
    }

    fn shares(&self) -> &EgressShares {
        &self.revision.shared.egress
    }

    fn own_api(&self, to: &Egress) -> Option<SocketAddr> {
        self.revision.shared.own_apis.get()?.get(to).copied()
    }

    fn is_closed(&self, address: IpAddr) -> bool {
        self.revision.shared.config.closed_networks.contains(address)
    }

    fn warn(&self, text: &str) {
        self.revision.log.platform(LogLevel::Warn, self.revision.number, self.instance, text);
    }
}
