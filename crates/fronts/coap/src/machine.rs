//! The state machine without its socket, for the fuzzer: its input is datagrams, results and time,
//! and its output is datagrams and invocations.

use std::net::SocketAddr;

use bytes::Bytes;
use mote_core::Invoker;

use super::cutting::Frame;
use super::server::{Config, Server};
use super::stream::{self, BASE_MESSAGE_BYTES, Broken};

/// See [`Server`].
pub struct Machine<I: Invoker>(Server<I>);

impl<I: Invoker> Machine<I> {
    /// A front that has received nothing yet.
    pub fn new(invoker: I, config: Config) -> Self {
        Self(Server::new(invoker, config))
    }

    pub fn datagram(&mut self, peer: SocketAddr, bytes: &[u8], now_ns: u64) {
        self.0.datagram(peer, bytes, now_ns);
    }

    /// Takes what has arrived over a connection whose peer reads messages of this size; returns how
    /// many bytes of it were complete messages.
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

    /// Bytes to send over the connection.
    pub fn take_stream(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.0.out.take_bytes(&mut bytes);
        bytes
    }

    /// Lets time pass.
    pub fn time_passed(&mut self, now_ns: u64) {
        self.0.time_passed(now_ns);
        self.0
            .notify_changed(&mut std::task::Context::from_waker(std::task::Waker::noop()), now_ns);
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
