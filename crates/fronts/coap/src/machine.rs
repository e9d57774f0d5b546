//! The front's state machine without its socket, for the fuzzer. Its inputs are datagrams, results
//! and time; its outputs are datagrams and invocations.

use std::net::SocketAddr;

use bytes::Bytes;
use mote_core::Invoker;

use super::cutting::Frame;
use super::server::{Config, Server};
use super::stream::{self, BASE_MESSAGE_BYTES, Broken};

/// See [`Server`].
pub struct Machine<I: Invoker>(Server<I>);

impl<I: Invoker> Machine<I> {
    /// A front that has not received anything yet.
    pub fn new(invoker: I, config: Config) -> Self {
        Self(Server::new(invoker, config))
    }

    pub fn datagram(&mut self, peer: SocketAddr, bytes: &[u8], now_ns: u64) {
        self.0.datagram(peer, bytes, now_ns);
    }

    /// Takes bytes that arrived over a connection whose peer reads messages of this size. Returns
    /// how many of the bytes were complete messages.
    pub fn stream(
        &mut self,
        peer: SocketAddr,
        bytes: &[u8],
        bytes_max: usize,
        now_ns: u64,
    ) -> Result<usize, Broken> {
        self.0.frame = Frame::Stream { bytes_max, bert: bytes_max > BASE_MESSAGE_BYTES };
        let mut used = 0;
        while let Some((message, length)) = stream::parse(&bytes[used..])? {
            match message.code.0 {
                7 => _ = stream::signal(&message)?,
                0 if message.code.1 > 0 => {
                    self.0.stream_request(peer, &message, now_ns).map_err(|_| Broken::Request)?
                }
                _ => {}
            }
            used += length;
        }
        Ok(used)
    }

    /// Takes the bytes to send over the connection.
    pub fn take_stream(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.0.out.take_bytes(&mut bytes);
        bytes
    }

    /// Lets the front act on the passing of time.
    pub fn time_passed(&mut self, now_ns: u64) {
        self.0.time_passed(now_ns);
        self.0
            .notify_changed(&mut std::task::Context::from_waker(std::task::Waker::noop()), now_ns);
    }

    /// Takes the datagrams to send.
    pub fn take_out(&mut self) -> Vec<(Bytes, SocketAddr)> {
        self.0.out.take()
    }

    /// Takes the ids of the invocations to run.
    pub fn take_work(&mut self) -> Vec<usize> {
        self.0.work.drain(..).map(|work| work.id).collect()
    }

    /// Passes the answer of an invocation to the front.
    pub fn finish(&mut self, id: usize, status: u16, headers: Bytes, body: Bytes, now_ns: u64) {
        self.0.finish(id, Ok((status, headers, body)), now_ns);
    }

    /// The bytes of everything that is remembered, and the number of marks that record its order in
    /// queues.
    pub fn held(&self) -> (usize, usize) {
        self.0.held()
    }
}
