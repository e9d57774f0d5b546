//! Who sends a request, as far as somebody asks.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use mote_core::invocation::Head;
use mote_core::{Fault, Invoker, RouteInfo};
use mote_spec::Access;

use super::cutting::Frame;
use super::exchange::Exchange;
use super::translate;

/// The names in the certificate of a client (X.509, DER); `None` if no authority of the node has
/// signed it.
pub type CheckCertificate = Arc<dyn Fn(&[u8]) -> Option<Vec<String>> + Send + Sync>;

#[derive(Default)]
pub(crate) struct Sessions {
    /// By number, the address of each, and what its client has proved.
    pub(crate) all: HashMap<u32, (SocketAddr, Proved)>,
    /// Without it, no certificate of a client counts.
    pub(crate) check: Option<CheckCertificate>,
}

/// What the clients of a front have proved before they send requests.
pub(crate) enum Clients {
    /// Nothing, as over UDP and TCP.
    Unknown,
    /// The clients of sessions have proved the identities of their pre-shared keys, or the names in
    /// their certificates.
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

/// The sender of a request that its function accepts.
pub(crate) struct Sender {
    pub(crate) from: IpAddr,
    /// What is known about the sender; empty for a function that everyone may call.
    pub(crate) head: Head,
}

impl Sender {
    /// Whether the sender may call the function. Each block of a transfer must prove it. The key
    /// leaves the query, so that neither the function nor an observed resource sees it.
    pub(crate) fn admit<I: Invoker>(
        exchange: &mut Exchange,
        (frame, proved): (Frame, Proved),
        invoker: &I,
        route: &I::Route,
    ) -> Result<Self, Fault> {
        let from = Self::address(exchange, frame);
        if route.access() == Access::Public {
            return Ok(Self { from, head: Head::default() });
        }
        // Without a key, it needs no memory.
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

    /// The address of the sender, for the question who it is. A datagram of IPv6 from another
    /// machine may name the IPv4 address of loopback as its source, so that does not count as this
    /// machine.
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

    /// Whether the sender must prove its address first: a forged one must not use up what another
    /// caller may call.
    pub(crate) fn must_prove(&self, exchange: &Exchange, route: &impl RouteInfo) -> bool {
        let is_proven = exchange.to.limit.is_none() || self.head.caller().is_some();
        route.rates().is_by_caller() && !is_proven
    }

    /// Notes in the head of the invocation what is known.
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
