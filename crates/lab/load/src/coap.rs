//! CoAP. Each client has its own port and at most one confirmable request under way, which is
//! retransmitted as RFC 7252 (4.2) specifies. Block-wise transfer is not supported: if an answer
//! arrives in blocks, only the first block counts.

mod message;

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use rustix::event::epoll::EventFlags;

pub use self::message::UnfitRequest;
use self::message::{Answer, MessageType, Template, stamp};
use crate::clock::SECOND;
use crate::poller::{Poller, Ready};
use crate::{Done, Failure, Mark, Nanos, Outcome, Request, Target, Wire, clock};

/// The pause before the first retransmission, and the number of retransmissions (RFC 7252, 4.8).
/// The pause is extended by up to half, and doubles each time.
const ACK_TIMEOUT: Nanos = 2 * SECOND;
const RETRANSMIT_MAX: u32 = 4;
/// How often the clients are searched for requests that must be retransmitted.
const LOOK_EVERY: Nanos = 50_000_000;
/// The number of requests that a client sends from one port. A server remembers message ids for
/// 247 s (EXCHANGE_LIFETIME) and treats a repeated id as a repetition, so a client changes its port
/// before its ids repeat.
const REQUESTS_PER_PORT: u32 = 1 << 16;
const DATAGRAM_BYTES_MAX: usize = 2_048;

/// The clients of one thread.
pub struct CoapWire {
    poller: Poller,
    address: SocketAddr,
    template: Template,
    /// The message of all requests without Echo. The id and token are set for each request.
    datagram: Vec<u8>,
    clients: Vec<Client>,
    next_token: u32,
    look_at: Nanos,
    early: VecDeque<Done>,
    retransmissions: u64,
}

#[derive(Default)]
struct Client {
    socket: Option<UdpSocket>,
    generation: u32,
    mid: u16,
    requests_left: u32,
    exchange: Option<Exchange>,
}

/// A request under way.
struct Exchange {
    token: u32,
    /// Whether the server has acknowledged the request, so that the answer will arrive in a
    /// separate message.
    is_acknowledged: bool,
    due: Nanos,
    pause: Nanos,
    retransmissions: u32,
    /// The message with the Echo value for which the server asked.
    own: Option<Vec<u8>>,
}

impl CoapWire {
    /// Creates clients, each of which binds its port with its first operation.
    ///
    /// # Errors
    /// Fails if the machine has no event queue left. If the request does not fit into a message,
    /// the error is `InvalidInput`; see [`check`].
    pub fn new(
        target: &Target,
        address: SocketAddr,
        request: &Request,
        clients: usize,
    ) -> io::Result<Self> {
        let template = Template::new(target, request)
            .map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
        Ok(Self {
            poller: Poller::new()?,
            address,
            datagram: template.encode(None),
            template,
            clients: (0..clients).map(|_| Client::default()).collect(),
            next_token: 0,
            look_at: clock::now() + LOOK_EVERY,
            early: VecDeque::new(),
            retransmissions: 0,
        })
    }

    /// Binds a new port if the client has none or if its message ids are used up.
    fn open(&mut self, index: usize) -> io::Result<()> {
        let client = &mut self.clients[index];
        if client.socket.is_some() && client.requests_left > 0 {
            return Ok(());
        }
        let any: SocketAddr = match self.address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(self.address)?;
        socket.set_nonblocking(true)?;
        client.generation = client.generation.wrapping_add(1);
        let token = index as u64 | u64::from(client.generation) << 32;
        self.poller.add(&socket, token, EventFlags::IN)?;
        // The ids depend on the time, because the next client with this port must not start with
        // the same ids.
        client.mid = (clock::now() >> 8) as u16;
        client.requests_left = REQUESTS_PER_PORT;
        client.socket = Some(socket);
        Ok(())
    }

    /// Sends a request. If there is an Echo value, sends the current request again in a new
    /// message.
    fn send(&mut self, index: usize, echo: Option<&[u8]>) {
        let client = &mut self.clients[index];
        self.next_token = self.next_token.wrapping_add(1);
        client.mid = client.mid.wrapping_add(1);
        client.requests_left = client.requests_left.saturating_sub(1);
        let now = clock::now();
        // Any spread is sufficient, because it only prevents clients from repeating at the same
        // time.
        let spread = u64::from(self.next_token.wrapping_mul(0x9e37_79b9)) % (ACK_TIMEOUT / 2);
        let pause = ACK_TIMEOUT + spread;
        client.exchange = Some(Exchange {
            token: self.next_token,
            is_acknowledged: false,
            due: now + pause,
            pause,
            retransmissions: 0,
            own: echo.map(|echo| self.template.encode(Some(echo))),
        });
        self.transmit(index);
    }

    fn transmit(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let (Some(socket), Some(exchange)) = (&client.socket, &mut client.exchange) else { return };
        let datagram = exchange.own.as_mut().unwrap_or(&mut self.datagram);
        stamp(datagram, client.mid, exchange.token);
        // A datagram that the socket does not accept counts as lost, and is sent again later.
        let _ = socket.send(datagram);
    }

    fn on_ready(&mut self, ready: Ready) -> Option<Done> {
        let index = (ready.token & u64::from(u32::MAX)) as usize;
        let client = &mut self.clients[index];
        if u64::from(client.generation) != ready.token >> 32 {
            return None;
        }
        let mut buffer = [0; DATAGRAM_BYTES_MAX];
        match client.socket.as_ref()?.recv(&mut buffer) {
            Ok(length) => self.on_datagram(index, &buffer[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            // The port is closed, which means that no server listens on it.
            Err(_) => self.over(index, Outcome::Failed(Failure::Connect)),
        }
    }

    fn on_datagram(&mut self, index: usize, datagram: &[u8]) -> Option<Done> {
        let client = &mut self.clients[index];
        let answer = Answer::parse(datagram)?;
        if answer.kind == MessageType::Con {
            // Answers to abandoned requests are acknowledged too, because the server would repeat
            // them otherwise.
            let _ = client.socket.as_ref()?.send(&message::empty(MessageType::Ack, answer.mid));
        }
        let exchange = client.exchange.as_mut()?;
        let is_reply = matches!(answer.kind, MessageType::Ack | MessageType::Rst);
        if is_reply && answer.mid != client.mid {
            return None;
        }
        if answer.kind == MessageType::Rst {
            return self.over(index, Outcome::Failed(Failure::Reset));
        }
        if answer.code == (0, 0) {
            exchange.is_acknowledged |= answer.kind == MessageType::Ack;
            return None;
        }
        if answer.token != exchange.token.to_be_bytes() {
            return None;
        }
        let Some((bytes, echo)) = answer.content() else {
            return self.over(index, Outcome::Failed(Failure::Malformed));
        };
        match (answer.code, echo) {
            ((2, _), _) => self.over(index, Outcome::Answered { bytes, phases: None }),
            // The server asks for proof that the address is ours (RFC 9175). A client proves it
            // once per request.
            ((4, 1), Some(echo)) if exchange.own.is_none() => {
                self.send(index, Some(echo));
                None
            }
            ((class, detail), _) => self.over(index, Outcome::Failed(Failure::Coap(class, detail))),
        }
    }

    fn over(&mut self, index: usize, outcome: Outcome) -> Option<Done> {
        self.clients[index].exchange.take()?;
        Some(Done { client: index, at: clock::now(), outcome })
    }

    /// Repeats requests that were not acknowledged in time.
    fn repeat_due(&mut self, now: Nanos) {
        for index in 0..self.clients.len() {
            let Some(exchange) = &mut self.clients[index].exchange else { continue };
            if exchange.is_acknowledged || exchange.due > now {
                continue;
            }
            if exchange.retransmissions == RETRANSMIT_MAX {
                let done = self.over(index, Outcome::Failed(Failure::Silence));
                self.early.extend(done);
                continue;
            }
            exchange.retransmissions += 1;
            exchange.pause *= 2;
            exchange.due = now + exchange.pause;
            self.retransmissions += 1;
            self.transmit(index);
        }
    }
}

/// Checks that the request fits into one message.
///
/// # Errors
/// Fails if CoAP has no such method or field, or if one message cannot hold the request.
pub fn check(target: &Target, request: &Request) -> Result<(), UnfitRequest> {
    Template::new(target, request).map(|_| ())
}

impl Wire for CoapWire {
    fn now(&mut self) -> Nanos {
        clock::now()
    }

    fn begin(&mut self, client: usize) {
        if self.open(client).is_err() {
            let outcome = Outcome::Failed(Failure::Connect);
            self.early.push_back(Done { client, at: clock::now(), outcome });
            return;
        }
        self.send(client, None);
    }

    fn give_up(&mut self, client: usize) {
        self.clients[client].exchange = None;
        self.early.retain(|done| done.client != client);
    }

    fn next(&mut self, until: Nanos) -> io::Result<Option<Done>> {
        loop {
            if let Some(done) = self.early.pop_front() {
                return Ok(Some(done));
            }
            match self.poller.next(until.min(self.look_at))? {
                Some(ready) => {
                    if let Some(done) = self.on_ready(ready) {
                        return Ok(Some(done));
                    }
                }
                None if until < self.look_at => return Ok(None),
                None => {}
            }
            let now = clock::now();
            if now >= self.look_at {
                self.look_at = now + LOOK_EVERY;
                self.repeat_due(now);
            }
        }
    }

    fn mark(&mut self) -> Mark {
        Mark { cpu: clock::thread_cpu(), machine: clock::machine_ticks() }
    }

    fn repeats(&self) -> u64 {
        self.retransmissions
    }
}
