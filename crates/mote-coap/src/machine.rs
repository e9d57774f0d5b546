//! The state machine without its socket, for the fuzzer: its input is datagrams, results and time,
//! and its output is datagrams and invocations.

use std::net::SocketAddr;

use bytes::Bytes;
use mote_core::Invoker;

use super::server::{Config, Server};

/// See [`Server`].
pub struct Machine<I: Invoker>(Server<I>);

impl<I: Invoker> Machine<I> {
    /// A front that has received nothing yet.
    pub fn new(invoker: I, config: Config) -> Self {
        Self(Server::new(invoker, config))
    }

    /// Takes one datagram.
    pub fn datagram(&mut self, peer: SocketAddr, bytes: &[u8], now_ns: u64) {
        self.0.datagram(peer, bytes, now_ns);
    }

    /// Lets time pass.
    pub fn time_passed(&mut self, now_ns: u64) {
        self.0.time_passed(now_ns);
    }

    /// Datagrams to send.
    pub fn take_out(&mut self) -> Vec<(Bytes, SocketAddr)> {
        self.0.out.take()
    }

    /// Invocations to run, by number.
    pub fn take_work(&mut self) -> Vec<usize> {
        self.0.work.drain(..).map(|work| work.id).collect()
    }

    /// Takes the answer of an invocation.
    pub fn finish(&mut self, id: usize, status: u16, headers: Bytes, body: Bytes, now_ns: u64) {
        self.0.finish(id, Ok((status, headers, body)), now_ns);
    }

    /// Bytes of everything that is remembered, and the number of marks for it in queues.
    pub fn held(&self) -> (usize, usize) {
        self.0.held()
    }
}
