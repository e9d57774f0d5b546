//! The facts about the sender of a request that access rules ask for.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use mote_core::invocation::Head;
use mote_core::{Fault, Invoker, Routed};
use mote_spec::Access;

use super::cutting::Frame;
use super::exchange::Exchange;
use super::translate;

/// Returns the names in a client's certificate (X.509, DER), or `None` if the certificate is not
/// signed by an authority that the node trusts.
pub type CheckCertificate = Arc<dyn Fn(&[u8]) -> Option<Vec<String>> + Send + Sync>;

#[derive(Default)]
pub(crate) struct Sessions {
    /// For each session number, the address of the session and what its client has proved.
    pub(crate) all: HashMap<u32, (SocketAddr, Proved)>,
    /// Without this check, no client certificate is accepted.
    pub(crate) check: Option<CheckCertificate>,
}

/// What the clients of a front have proved before they send requests.
pub(crate) enum Clients {
    /// The clients have proved nothing, as over UDP and TCP.
    Unknown,
    /// The client of each session has proved the identity of its pre-shared key, or the names in
    /// its certificate.
    Sessions(Box<Sessions>),
    /// The only client, at the other end of a connection, has proved the names in its certificate.
    Certified(Arc<Vec<String>>),
}

/// What the client of a request has proved.
#[derive(Clone)]
pub(crate) enum Proved {
    Nothing,
    Identity(Arc<String>),
    Names(Arc<Vec<String>>),
}

/// The sender of a request that the function has accepted.
pub(crate) struct Sender {
    pub(crate) from: IpAddr,
    /// What is known about the sender. Empty for a function that everyone may call.
    pub(crate) head: Head,
}

impl Sender {
    /// Checks whether the sender may call the function. Each block of a transfer is checked. The
    /// key is removed from the query, so that neither the function nor an observed resource sees
    /// it.
    pub(crate) fn admit<I: Invoker>(
        exchange: &mut Exchange,
        (frame, proved): (Frame, Proved),
        invoker: &I,
        route: &I::Route,
    ) -> Result<Self, Fault> {
        let from = Self::address(exchange, frame);
        if route.info().access == Access::Public {
            return Ok(Self { from, head: Head::default() });
        }
        // An empty head needs no memory.
        let mut head = Head::default();
        if let Some(key) = translate::take_key(&mut exchange.to.query) {
            head.replace_header(b"x-api-key", &key);
        }
        match proved {
            Proved::Nothing => {}
            Proved::Identity(identity) => head.set_psk(identity),
            Proved::Names(names) => head.set_certificate(Some(names)),
        }
        invoker.admit(route, &mut head, Some(from))?;
        Ok(Self { from, head })
    }

    /// The sender's address, for access decisions. An IPv6 datagram from another machine may have
    /// the IPv4 loopback address as its source, so that address does not count as this machine.
    pub(crate) fn address(exchange: &Exchange, frame: Frame) -> IpAddr {
        let ip = exchange.to.peer.ip();
        if let Frame::Session = frame {
            return ip.to_canonical();
        }
        let is_forgeable = matches!(frame, Frame::Datagram) && !ip.is_loopback();
        if is_forgeable && ip.to_canonical().is_loopback() {
            return Ipv6Addr::UNSPECIFIED.into();
        }
        ip
    }

    /// Whether the sender must first prove its address. Otherwise a forged address could use up the
    /// rate of another caller.
    pub(crate) fn must_prove(&self, exchange: &Exchange, route: &impl Routed) -> bool {
        let is_proven = exchange.to.limit.is_none() || self.head.caller().is_some();
        route.info().rates.is_by_caller() && !is_proven
    }

    /// Copies what is known about the sender into the head of the invocation.
    pub(crate) fn mark(&mut self, head: &mut Head) {
        head.keep_place(self.head.take_place());
        if self.head.is_admitted() {
            head.admit(self.head.caller());
        }
        if self.head.is_counted() {
            head.count();
        }
        if self.head.is_local() {
            head.set_local();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::Recipient;
    use crate::message::{MessageType, Token};

    fn exchange(peer: &str) -> Exchange {
        let peer = peer.parse().unwrap();
        Exchange {
            noted: None,
            serial: 1,
            kind: MessageType::Con,
            mid: 1,
            method: b"GET",
            function: None,
            accept: None,
            block1: None,
            acked: false,
            watch: None,
            to: Recipient::of(peer, 1, Token::new(b"t"), None),
        }
    }

    #[test]
    fn a_datagram_does_not_come_from_this_machine_because_it_says_so() {
        for (peer, of_datagram, of_stream) in [
            ("127.0.0.1:1", "127.0.0.1", "127.0.0.1"),
            ("[::1]:1", "::1", "::1"),
            ("[::ffff:127.0.0.1]:1", "::", "::ffff:127.0.0.1"),
            ("[::ffff:127.9.9.9]:1", "::", "::ffff:127.9.9.9"),
            ("[::ffff:192.0.2.1]:1", "::ffff:192.0.2.1", "::ffff:192.0.2.1"),
        ] {
            let exchange = exchange(peer);
            let stream = Frame::Stream { bytes_max: 1_152, bert: false };
            assert_eq!(Sender::address(&exchange, Frame::Datagram).to_string(), of_datagram);
            assert_eq!(Sender::address(&exchange, stream).to_string(), of_stream);
        }
    }
}
